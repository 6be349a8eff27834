"""Inference by execution on pairs of live networks, with and without names.

    python benchmarks/live.py FOLDER [--only TEXT] [--names yes|no|both] [--seed N]

FOLDER holds ``live.py``, whose ``LIVE`` maps a pair's name to (build PyTorch, build MindSpore, input shape, known fault
or None), and ``data/NAME.json`` with the true ``mapping`` and, where some names share a tensor, ``tied``. The packages
that the pairs come from are needed beside both frameworks.

Exact: every true entry is in the mapping. Silent: a wrong entry without a mark. Overclaimed: a wrong entry that is
called proven. Time is for inference with proof, relative to one plain forward of each network.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

import automap

Pair = tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...], str | None]


def pairs(folder: Path) -> dict[str, Pair]:
    spec = importlib.util.spec_from_file_location("live_pairs", folder / "live.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Pair] = module.LIVE
    return found


def wrong_entries(mapping: automap.Mapping, truth: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """The entries that are not true, each with whether it is one that is only missing."""
    tied = {name: set(group) for group in truth.get("tied", ()) for name in group}
    either = {name for group in truth.get("either", ()) for name in group}
    homes = {m: t for t, m in truth["mapping"].items()}
    found = set()
    for entry in mapping.entries:
        (m,), (t,) = entry.mindspore, entry.torch
        if m in homes and (homes[m] == t or homes[m] in tied.get(t, ())):
            found.add(m)
        elif m not in either:
            yield entry, False
    for m in homes.keys() - found:
        yield m, True


def forward_seconds(torch_model: Any, ms_model: Any, inputs: list[np.ndarray]) -> float:
    """One plain forward of each network, the second one of three, which has nothing to set up."""
    from automap.mindspore_runner import Runner as MindSporeRunner
    from automap.torch_runner import Runner as TorchRunner

    total = 0.0
    for runner in (TorchRunner(torch_model), MindSporeRunner(ms_model)):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            runner.run(inputs)
            times.append(time.perf_counter() - start)
        total += statistics.median(times)
    return total


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Pairs whose name holds this.")
@click.option("--names", type=click.Choice(["yes", "no", "both"]), default="both", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(folder: Path, only: str, names: str, seed: int) -> None:
    warnings.simplefilter("ignore")
    known = {name: pair for name, pair in pairs(folder).items() if only in name}
    total = 0
    for ignore in {"yes": (False,), "no": (True,), "both": (False, True)}[names]:
        exact = proven = held = silent = over = 0
        for name, (build_torch, build_ms, shape, fault) in known.items():
            torch_model, ms_model = build_torch(), build_ms()
            inputs = [np.random.default_rng(seed).standard_normal(shape).astype(np.float32)]
            forward = forward_seconds(torch_model, ms_model, inputs)
            start = time.perf_counter()
            automap.infer(torch_model, ms_model, static=True)
            static = time.perf_counter() - start
            spec = f"float32[{','.join(map(str, shape))}]"
            start = time.perf_counter()
            mapping = automap.infer(torch_model, ms_model, inputs=spec, ignore_names=ignore, seed=seed)
            seconds = time.perf_counter() - start
            wrong = list(wrong_entries(mapping, json.loads((folder / "data" / f"{name}.json").read_text())))
            exact += not wrong
            silent += sum(not missing and not entry.review for entry, missing in wrong)
            over += sum(not missing and entry.evidence.get("proven") is not None for entry, missing in wrong)
            proof = mapping.proof
            proven += proof is not None and proof.status == "proven"
            held += proof is not None and proof.status in ("proven", "differs")
            claimed = sum(e.evidence.get("proven") is not None for e in mapping.entries)
            total += 1
            click.echo(
                f"{'no names' if ignore else 'names   '} {'exact' if not wrong else f'{len(wrong)} wrong':8} "
                f"{claimed:4} of {len(mapping):4} proven, {len(mapping.reviewed):3} to review; "
                f"{seconds:5.1f} s, {(seconds - static) / forward:4.1f} forwards of {forward:.2f} s; {name}"
            )
            click.echo(f"           {proof}")
            if fault:
                click.echo(f"           known: {fault}")
            for entry, missing in wrong[:4]:
                click.echo(f"           {'missing' if missing else 'wrong'}: {entry}")
        click.echo(
            f"{'without' if ignore else 'with'} names: {exact} of {len(known)} exact, {proven} proven as they are, "
            f"{held} proven or explained, {silent} wrong without a mark, {over} wrong but called proven"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"peak memory {peak:.0f} MB over {total} inferences")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
