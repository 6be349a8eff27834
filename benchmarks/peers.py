"""automap beside its peers, on pairs of listings whose true mapping is known.

    python benchmarks/peers.py --peers-python .venv-peers/bin/python FOLDER-OR-FILE...

FOLDER holds one JSON file (or .json.gz) for each pair: ``torch`` and ``mindspore``, the ordered listings as
``[name, shape or null, dtype]``; ``mapping``, the true names; and where there are any, ``composite`` (``torch`` and
``mindspore`` lists of names that belong together), ``tied`` (groups of torch names of one tensor, each of them right)
and ``either`` (name pairs that may be mapped or left).

``--sizes 1000`` adds the synthetic pair of ``scale.py`` of that size, and one whose port has PyTorch's own names.

Every tool maps every pair in a process of its own; the seconds are those of the whole process, its start and imports
included. Where several tools are exact on a pair, their seconds are set against automap's at the end.

- *automap*: ``automap infer A.json B.json -o out.json``.
- *weightbridge* 0.0.4 maps the arrays of one state dict to those of another and raises where it is not sure. It gets
  arrays of the right shapes (without memory behind them), no formats, since MindSpore lays its weights out as PyTorch
  does, and no ``num_batches_tracked`` where the port has none, which a user would drop first. If it raises, it is
  tried again with ``ignore_unmatched_inputs``, then with ``ignore_unmatched_outputs`` too; the first answer counts,
  and only its own seconds. A pair without shapes is skipped: it cannot work without them.
- *Hungarian*: one dense matrix of rapidfuzz similarities, after MindSpore's words for a norm's parameters were
  translated, and ``scipy.optimize.linear_sum_assignment``; a pair of different shapes is forbidden. Without shapes it
  goes by names alone.

A pair is exact when every true pair is found and nothing else. An entry is wrong when the truth gives another partner
or none; no tool's entry is excused for being marked, but automap's wrong ones that it marked for review are shown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The names of an entry's two sides.
Names = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Outcome:
    """What a tool made of one pair: the entries (True: marked for review), or why there are none."""

    entries: dict[Names, bool]
    seconds: float
    said: str = ""
    skipped: bool = False


@dataclass(frozen=True)
class Score:
    right: int
    wrong: int
    marked: int  # of the wrong ones
    missing: int
    exact: bool


def read(path: Path) -> dict[str, Any]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as f:
        return json.load(f)


def score(pair: dict[str, Any], entries: dict[Names, bool]) -> Score:
    first = {name: group[0] for group in pair.get("tied", []) for name in group}

    def one(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(first.get(n, n) for n in names)

    truth = {one([t]): (m,) for t, m in pair["mapping"].items()}
    truth.update((one(c["torch"]), tuple(c["mindspore"])) for c in pair.get("composite", []))
    free = {((t,), (m,)) for t, m in pair.get("either", [])}
    found: set[tuple[str, ...]] = set()
    wrong = marked = 0
    for (torch, mindspore), review in entries.items():
        key = one(torch)
        if truth.get(key) == mindspore:
            found.add(key)
        elif (key, mindspore) not in free:
            wrong += 1
            marked += review
    right = len(found)
    return Score(right, wrong, marked, len(truth) - right, right == len(truth) and not wrong)


def run_automap(path: Path, pair: dict[str, Any], command: list[str], limit: float) -> Outcome:
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        for file, side in (("A.json", "torch"), ("B.json", "mindspore")):
            parameters = [{"name": n, "shape": s, "dtype": t} for n, s, t in pair[side]]
            (folder / file).write_text(json.dumps({"framework": side, "parameters": parameters}))
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, "infer", "A.json", "B.json", "-o", "out.json"],
                cwd=folder, capture_output=True, text=True, timeout=limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome({}, limit, f"no answer in {limit:.0f} s")
        seconds = time.perf_counter() - start
        if done.returncode not in (0, 1):
            return Outcome({}, seconds, last_line(done.stderr))
        entries = json.loads((folder / "out.json").read_text())["entries"]
    return Outcome({(tuple(e["torch"]), tuple(e["mindspore"])): bool(e.get("review")) for e in entries}, seconds)


def run_weightbridge(path: Path, pair: dict[str, Any], command: list[str], limit: float) -> Outcome:
    if any(shape is None for side in ("torch", "mindspore") for _, shape, _ in pair[side]):
        return Outcome({}, 0.0, "skipped: no shapes", skipped=True)
    first = None
    for ignoring in ("nothing", "inputs", "both"):
        outcome = run_worker("weightbridge", path, command, limit, ignoring)
        first = first or outcome
        if outcome.entries or outcome.seconds >= limit:
            return outcome
    return first


def run_hungarian(path: Path, pair: dict[str, Any], command: list[str], limit: float) -> Outcome:
    return run_worker("Hungarian", path, command, limit)


def run_worker(name: str, path: Path, command: list[str], limit: float, *more: str) -> Outcome:
    """Run this file under the peers' Python."""
    with tempfile.TemporaryDirectory() as d:
        out = Path(d) / "out.json"
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, __file__, "--worker", name, str(path), str(out), *more],
                capture_output=True, text=True, timeout=limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome({}, limit, f"no answer in {limit:.0f} s")
        seconds = time.perf_counter() - start
        if not out.exists():
            return Outcome({}, seconds, last_line(done.stderr))
        return Outcome({((t,), (m,)): False for t, m in json.loads(out.read_text())}, seconds)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no answer"


TOOLS: dict[str, Callable[[Path, dict[str, Any], list[str], float], Outcome]] = {
    "automap": run_automap,
    "weightbridge": run_weightbridge,
    "Hungarian": run_hungarian,
}


def weightbridge(pair: dict[str, Any], ignoring: str) -> list[tuple[str, str]]:
    """In a process of the peers' environment: the pairs weightbridge finds; raises where it refuses."""
    import numpy as np
    import weightbridge

    counter = "num_batches_tracked"
    kept = any(n.endswith(counter) for n, _, _ in pair["mindspore"])
    names = [n for n, _, _ in pair["torch"] if kept or not n.endswith(counter)]
    shapes = {n: s for n, s, _ in pair["torch"]}
    # Each input holds its own number, over and over without memory behind it, so the output says which input it is.
    theirs = {n: np.broadcast_to(np.float64(i), shapes[n]) for i, n in enumerate(names)}
    mine = {n: np.broadcast_to(np.float64(-1), s) for n, s, _ in pair["mindspore"]}
    adapted = weightbridge.adapt(
        theirs,
        mine,
        ignore_unmatched_inputs=ignoring != "nothing",
        ignore_unmatched_outputs=ignoring == "both",
    )
    indices = {n: int(value.flat[0]) for n, value in adapted.items() if value.size}
    return [(names[i], n) for n, i in indices.items() if i >= 0]


def hungarian(pair: dict[str, Any]) -> list[tuple[str, str]]:
    """In a process of the peers' environment: one dense assignment over fuzzy names."""
    import numpy as np
    from rapidfuzz import fuzz, process
    from scipy.optimize import linear_sum_assignment

    torch, mindspore = pair["torch"], pair["mindspore"]
    words = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var",
             "embedding_table": "weight"}  # fmt: skip
    translated = []
    for name, _, _ in mindspore:
        module, dot, leaf = name.rpartition(".")
        translated.append(module + dot + words.get(leaf, leaf))
    cost = process.cdist([n for n, _, _ in torch], translated, scorer=fuzz.ratio, dtype=np.float32)
    np.subtract(100, cost, out=cost)
    known: dict[tuple[int, ...] | None, int] = {}

    def numbers(side: list[Any]) -> np.ndarray:
        return np.array([known.setdefault(None if s is None else tuple(s), len(known)) for _, s, _ in side])

    forbidden = numbers(torch)[:, None] != numbers(mindspore)[None, :]
    cost[forbidden] = 1e6
    rows, columns = linear_sum_assignment(cost)
    return [(torch[i][0], mindspore[j][0]) for i, j in zip(rows, columns, strict=True) if not forbidden[i, j]]


def worker(name: str, path: str, out: str, *more: str) -> None:
    answer = {"weightbridge": weightbridge, "Hungarian": hungarian}[name](read(Path(path)), *more)
    Path(out).write_text(json.dumps(answer))


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="FOLDER-OR-FILE")
    parser.add_argument("--sizes", nargs="+", type=int, default=[], help="synthetic pairs of so many parameters, too")
    parser.add_argument("--automap", default=f"{sys.executable} -m automap", help="the command")
    parser.add_argument(
        "--peers-python", default=sys.executable, help="a Python with benchmarks/requirements-peers.txt"
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--limit", type=float, default=120, help="seconds before a tool is stopped")
    args = parser.parse_args()
    files = sorted(f for p in args.paths for f in ([p] if p.is_file() else p.glob("*.json*")))
    with tempfile.TemporaryDirectory() as folder:
        files += [f for size in args.sizes for f in synthetic(size, Path(folder))]
        if not files:
            parser.error("no pair file there")
        compare(files, args)
    return 0


def synthetic(size: int, folder: Path) -> list[Path]:
    """Pairs of the network of ``scale.py`` and its port: one with other words, one with PyTorch's names."""
    import scale  # the file beside this one

    listing = list(scale.network(size))
    renamed = {name: m for name, _ in listing if (m := scale.mindspore_name(name)) is not None}
    same = {name: name for name in renamed}
    files = []
    for kind, names, port in (
        ("renamed", renamed, list(scale.port(listing))),
        ("same names", same, [row for row in listing if row[0] in same]),
    ):
        sides = {"torch": listing, "mindspore": port}
        pair = {side: [[n, shape, "float32"] for n, shape in rows] for side, rows in sides.items()}
        path = folder / f"{size}-{kind.replace(' ', '-')}.json"
        path.write_text(json.dumps({"id": f"synthetic, {size}, {kind}", **pair, "mapping": names}))
        files.append(path)
    return files


def compare(files: list[Path], args: argparse.Namespace) -> None:
    """Run the tools on every pair, and print what came of it."""
    results: dict[str, list[tuple[Outcome, Score]]] = {tool: [] for tool in args.tools}
    for file in files:
        pair = read(file)
        line = []
        for tool in args.tools:
            command = shlex.split(args.automap if tool == "automap" else args.peers_python)
            outcome = TOOLS[tool](file, pair, command, args.limit)
            scored = score(pair, outcome.entries)
            results[tool].append((outcome, scored))
            verdict = "exact" if scored.exact else outcome.said or f"{scored.wrong} wrong, {scored.missing} missing"
            line.append(f"{tool}: {verdict[:60]}" + ("" if outcome.skipped else f" ({outcome.seconds:.1f} s)"))
        print(f"{pair['id']} ({len(pair['mapping'])}): {'; '.join(line)}", flush=True)
    print(f"\n{'':14}   pairs   exact   no answer   right   wrong   of them marked   missing   seconds   slowest")
    for tool, rows in results.items():
        done = [(o, s) for o, s in rows if not o.skipped]
        total = {k: sum(getattr(s, k) for _, s in done) for k in ("exact", "right", "wrong", "marked", "missing")}
        silent = sum(not o.entries for o, _ in done)
        seconds = [o.seconds for o, _ in done]
        print(
            f"{tool:14}{len(done):8}{total['exact']:8}{silent:12}{total['right']:8}{total['wrong']:8}"
            f"{total['marked']:17}{total['missing']:10}{sum(seconds):10.1f}{max(seconds, default=0):10.1f}"
        )
        if skipped := len(rows) - len(done):
            print(f"{'':14}({skipped} pairs without shapes skipped: {tool} needs them)")
    for tool, rows in results.items():
        if tool == "automap" or "automap" not in results:
            continue
        both = [(o, ours) for (o, s), (ours, t) in zip(rows, results["automap"], strict=True) if s.exact and t.exact]
        if both:
            ratio = sum(o.seconds for o, _ in both) / sum(o.seconds for _, o in both)
            print(f"{len(both)} pairs on which both are exact: {tool} takes {ratio:.2f} times automap's seconds")


if __name__ == "__main__":
    sys.exit(main())
