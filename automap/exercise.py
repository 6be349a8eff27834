"""Which pieces of a tensor that the port keeps apart its outputs depend on, and which weight a bias stands beside.

PyTorch's one tensor has an effect as soon as one of the pieces has one. So the pieces are looked at where they are
apart: in the MindSpore network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from automap import comparison
from automap.dtypes import Array, widen
from automap.errors import AutomapError
from automap.fusions import stem_of
from automap.mapping import Entry
from automap.power import EXERCISED, MOST_TRIED, Allowed
from automap.running import Forward, Inputs, Loss, Runner
from automap.seeding import generator


def idle_pieces(
    runner: Runner, names: list[str], inputs: Inputs, outputs: Any, forward: Forward | None, seed: int, allowed: Allowed
) -> frozenset[str]:
    """Of some MindSpore parameters, those without an effect on the outputs; call it while the network holds weights.

    By one gradient of the outputs; where there is none, by giving each of them other values.
    """
    pairs = comparison.pair(outputs, outputs).pairs
    floats = [(where, a) for where, a, _ in pairs if a.dtype.kind == "f"]
    bound = max((allowed(where, a) for where, a in floats), default=0.0)
    root = math.sqrt(sum(a.size for _, a in floats))
    drawn = _drawn(outputs, seed)
    try:
        slopes = runner.gradients(inputs, Loss(drawn), names, forward)
    except AutomapError:
        return _tried(runner, names, inputs, outputs, forward, seed, allowed)
    idle = set()
    for name in names:
        value = widen(runner.value(name))
        scale = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) if value.size else 0.0
        if float(np.linalg.norm(slopes[name].ravel())) * scale <= EXERCISED * bound * root:
            idle.add(name)
    return frozenset(idle)


def _drawn(outputs: Any, seed: int) -> Any:
    """Weights of a loss for outputs of any form."""
    if isinstance(outputs, np.ndarray):
        if outputs.dtype.kind != "f":
            return None
        rng = generator(seed, f"an output of {outputs.size}")
        return rng.standard_normal(outputs.shape).astype(np.float32)
    if isinstance(outputs, Mapping):
        return {key: _drawn(value, seed) for key, value in outputs.items()}
    if isinstance(outputs, tuple):
        return tuple(_drawn(value, seed) for value in outputs)
    return None


def _tried(
    runner: Runner, names: list[str], inputs: Inputs, outputs: Any, forward: Forward | None, seed: int, allowed: Allowed
) -> frozenset[str]:
    """By one run for each; of very many the last ones count as idle, for nothing shows that they are not."""
    idle = set(names[MOST_TRIED:])
    for name in names[:MOST_TRIED]:
        value = widen(runner.value(name))
        rng = generator(seed, f"another {name}")
        scale = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) or 1.0
        other: Array = (value + scale * rng.standard_normal(value.shape)).astype(value.dtype)
        with runner.holding({name: other}):
            moved = runner.run(inputs, forward)
        found = comparison.pair(outputs, moved).pairs
        if all(comparison.compare(w, 0, a, b, allowed(w, a)).passed for w, a, b in found):
            idle.add(name)
    return frozenset(idle)


def beside_proven(entries: Iterable[Entry], leaf: Callable[[str], str]) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The entries of several names whose modules, in the same order on both sides, have another entry that is proven.

    Where the weights of some layers are told, their biases are told with them, also one without an effect.

    Args:
        leaf: what a name ends with, in its module.
    """
    entries = list(entries)
    proven = {_place(e, leaf) for e in entries if e.evidence.get("proven")}
    several = (e for e in entries if max(len(e.torch), len(e.mindspore)) > 1 and not e.evidence.get("proven"))
    return {(e.torch, e.mindspore) for e in several if _place(e, leaf) in proven}


def _place(e: Entry, leaf: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """The modules of an entry, with what its parameters are called beside ``weight`` and ``bias``."""
    found = []
    for name in (*e.torch, *e.mindspore):
        last = leaf(name)
        found.append((name.removesuffix(last), stem_of(last)[0]))
    return tuple(found)
