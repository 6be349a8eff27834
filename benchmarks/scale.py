"""How the time and memory of `automap infer` grow with the number of parameters, on listings alone.

    python benchmarks/scale.py [--sizes 1000 10000 100000] [--runs 3] [--automap "automap"]

Each size is a synthetic network of convolutional and transformer blocks, with other words on the MindSpore side and its
norms in MindSpore's order. Prints the seconds and the peak resident memory of the whole process (the best of the runs),
how many entries are right, and the exponent of growth: 1 is linear, 2 is quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

Row = tuple[str, list[int]]

#: The port's words for the modules; the leaves of norms follow MindSpore.
WORDS = {
    "stem": "entry",
    "conv1": "first.filter",
    "bn1": "first.scale",
    "conv2": "second.filter",
    "bn2": "second.scale",
    "norm1": "pre_mix",
    "self_attn.q_proj": "mix.wq",
    "self_attn.k_proj": "mix.wk",
    "self_attn.v_proj": "mix.wv",
    "self_attn.out_proj": "mix.wo",
    "norm2": "pre_ffn",
    "mlp.fc1": "ffn.up",
    "mlp.fc2": "ffn.down",
    "norm": "final_scale",
    "head": "classifier",
}
STAGES = {"backbone.stages": "cnn.groups", "encoder.layers": "transformer.cells"}
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def layer(name: str, shape: list[int], bias: bool = True) -> Iterator[Row]:
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


def batch_norm(name: str, width: int) -> Iterator[Row]:
    for leaf in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{leaf}", [width]
    yield f"{name}.num_batches_tracked", []


def network(size: int) -> Iterator[Row]:
    """The PyTorch listing of a network that shares about ``size`` parameters with its port."""
    yield from layer("stem.conv1", [64, 3, 7, 7], bias=False)
    yield from batch_norm("stem.bn1", 64)
    half = size // 2
    blocks = half // 10
    for i in range(blocks):
        stage = 4 * i // blocks
        name, width = f"backbone.stages.{stage}.{i - math.ceil(stage * blocks / 4)}", 64 << stage
        yield from layer(f"{name}.conv1", [width, width, 1, 1], bias=False)
        yield from batch_norm(f"{name}.bn1", width)
        yield from layer(f"{name}.conv2", [width, width, 3, 3], bias=False)
        yield from batch_norm(f"{name}.bn2", width)
    for i in range((size - half) // 16):
        name, width = f"encoder.layers.{i}", 512
        yield from layer(f"{name}.norm1", [width])
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from layer(f"{name}.self_attn.{part}", [width, width])
        yield from layer(f"{name}.norm2", [width])
        yield from layer(f"{name}.mlp.fc1", [4 * width, width])
        yield from layer(f"{name}.mlp.fc2", [width, 4 * width])
    yield from layer("norm", [512])
    yield from layer("head", [1000, 512])


def mindspore_name(name: str) -> str | None:
    """The port's name for a parameter, or None for what it does not keep."""
    stages, middle, module, leaf = re.fullmatch(
        rf"(?:({'|'.join(map(re.escape, STAGES))})\.((?:\d+\.)+))?(.+)\.(\w+)", name
    ).groups()
    if leaf == "num_batches_tracked":
        return None
    if re.search(r"(norm|bn)\d?$", module):
        leaf = NORM[leaf]
    for ours, theirs in WORDS.items():
        module = re.sub(rf"(?<![^.]){re.escape(ours)}(?![^.])", theirs, module)
    return f"{STAGES[stages]}.{middle}{module}.{leaf}" if stages else f"{module}.{leaf}"


def port(listing: list[Row]) -> Iterator[Row]:
    """The port's listing: batch norms list their statistics first, as MindSpore does."""
    rank = {"moving_mean": 0, "moving_variance": 1, "gamma": 2, "beta": 3}
    named = [(m, shape) for name, shape in listing if (m := mindspore_name(name)) is not None]
    module_at = {}
    for at, (name, _) in enumerate(named):
        module_at.setdefault(name.rpartition(".")[0], at)
    yield from sorted(named, key=lambda row: (module_at[(parts := row[0].rpartition("."))[0]], rank.get(parts[2], 0)))


def measure(command: list[str], folder: Path) -> tuple[float, float, int]:
    """Seconds, peak resident memory in MB, and exit status of a command."""
    start = time.perf_counter()
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return seconds, kilobytes / 1024, process.returncode


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log seconds over log size (least squares)."""
    x, y = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10000, 100000])
    parser.add_argument("--runs", type=int, default=3, help="the best of so many")
    parser.add_argument("--automap", default=f"{sys.executable} -m automap", help="the command")
    args = parser.parse_args()
    seconds_of, all_right = [], True
    print("parameters   seconds   peak MB    right   wrong   of them marked   missing")
    for size in args.sizes:
        listing = list(network(size))
        truth = {name: m for name, _ in listing if (m := mindspore_name(name)) is not None}
        with tempfile.TemporaryDirectory() as d:
            folder = Path(d)
            for file, framework, rows in (("A.json", "torch", listing), ("B.json", "mindspore", port(listing))):
                parameters = [{"name": n, "shape": s, "dtype": "float32"} for n, s in rows]
                (folder / file).write_text(json.dumps({"framework": framework, "parameters": parameters}))
            command = [*shlex.split(args.automap), "infer", "A.json", "B.json", "-o", "out.json"]
            runs = [measure(command, folder) for _ in range(args.runs)]
            if runs[-1][2] not in (0, 1):
                print((folder / "said.txt").read_text(), file=sys.stderr)
                return 1
            entries = json.loads((folder / "out.json").read_text())["entries"]
        seconds, megabytes = min(r[0] for r in runs), min(r[1] for r in runs)
        got = {tuple(e["torch"]): (tuple(e["mindspore"]), e.get("review", False)) for e in entries}
        wrong = [review for t, (m, review) in got.items() if len(t) != 1 or (truth.get(t[0]),) != m]
        missing = sum((t,) not in got for t in truth)
        right = len(got) - len(wrong)
        seconds_of.append(seconds)
        all_right &= right == len(truth) and not wrong
        row = f"{len(truth):10}{seconds:10.2f}{megabytes:10.0f}{right:9}{len(wrong):8}{sum(wrong):17}{missing:10}"
        print(row, flush=True)
    if len(args.sizes) > 1:
        print(f"time grows with the number of parameters to the power of {exponent(args.sizes, seconds_of):.2f}")
    print("every entry is right" if all_right else "not every entry is right")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
