"""A run in outline: every call of every module and function with its settings, and fingerprints in place of values.

A trace file holds PyTorch's; the port's is made where it runs. Side by side they tell which layer has other settings,
and which is the first to give something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from automap.dtypes import Array
from automap.errors import AutomapError
from automap.recording import Call, Observed, record
from automap.running import Forward, Inputs, Module, Runner
from automap.settings import Layer
from automap.tracing import Fingerprint, fingerprint

#: Kinds that do nothing, or say nothing.
_SILENT = frozenset({"identity", "flatten", "concat", "matmul", ""})


@dataclass(frozen=True)
class Step:
    """One call; for the attributes that are not named here see :class:`automap.recording.Call`.

    Attributes:
        shape: of the first tensor that it got.
        inputs, outputs: fingerprints of the tensors that it got and gave.
        failed: it raised an error. This is not in a file.
        stateless: it has no parameters and calls nothing that is in the outline by itself.
    """

    path: str
    name: str
    function: bool
    layer: Layer
    turn: int
    shape: tuple[int, ...]
    inputs: tuple[Fingerprint, ...]
    outputs: tuple[Fingerprint, ...]
    stateless: bool
    owns: bool
    failed: bool = False


@dataclass(frozen=True)
class Pair:
    """One call of either network that stand for each other; one is None where the other has no counterpart.

    Attributes:
        before, after: PyTorch's and MindSpore's call at the nearest pairs that have both sides.
        near: the same for the pair before that is a layer, and no function.
    """

    torch: Step | None
    mindspore: Step | None
    before: tuple[Step | None, Step | None] = (None, None)
    after: tuple[Step | None, Step | None] = (None, None)
    near: tuple[Step | None, Step | None] = (None, None)


class _Prints:
    """What :func:`automap.recording.record` keeps values in: only their shapes and fingerprints."""

    def keep(self, array: Array) -> tuple[tuple[int, ...], Fingerprint]:
        return array.shape, replace(fingerprint(array), axes=())


def outlined(
    runner: Runner,
    read: Callable[[Any], Layer],
    observed: Observed | None,
    inputs: Inputs,
    forward: Forward | None,
) -> tuple[Step, ...]:
    """Run a network of either framework once: its outline, up to where it raises an error, if it does.

    The arguments are those of :func:`automap.recording.record`.

    Raises:
        AutomapError: it does not even begin to run.
    """
    calls: list[Call] = []
    try:
        record(runner, read, observed, inputs, forward, _Prints(), calls)
    except AutomapError:
        if not calls:
            raise
    return tuple(map(_step, calls))


def _step(call: Call) -> Step:
    inputs: Any = call.inputs
    outputs: Any = call.outputs
    layer = replace(call.layer, settings={k: v for k, v in call.layer.settings.items() if _is_plain(v)})
    return Step(
        call.path, call.name, call.function, layer, call.turn, inputs[0][0] if inputs else (),
        tuple(f for _, f in inputs), tuple(f for _, f in outputs), call.stateless, call.owns,
        call.failed,
    )  # fmt: skip


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def side_by_side(torch: Sequence[Step], mindspore: Sequence[Step], homes: Mapping[str, Sequence[str]]) -> list[Pair]:
    """The calls of both outlines next to each other, in the order of execution.

    Cells that own parameters belong to the modules that the mapping says. What has none belongs to what stands at the
    same place between these and is of the same family.

    Args:
        homes: for each cell with mapped parameters the modules that own them, the one with most first.
    """
    ours = [s for s in torch if s.owns or _says_something(s)]
    theirs = [s for s in mindspore if s.owns or _says_something(s)]
    left = [("own", s.path) if s.owns else ("", s.layer.family) for s in ours]
    right = [("own", next(iter(homes.get(s.path, ())), s.path)) if s.owns else ("", s.layer.family) for s in theirs]
    found: list[Pair] = []
    before: tuple[Step | None, Step | None] = (None, None)
    near = before
    for kind, i, i2, j, j2 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            for a, b in zip(ours[i:i2], theirs[j:j2], strict=True):
                found.append(Pair(a, b, before, near=near))
                before = a, b
                near = near if b.function else before
        else:
            after = (ours[i2], theirs[j2]) if i2 < len(ours) and j2 < len(theirs) else (None, None)
            found += [Pair(a, None, before, after) for a in ours[i:i2]]
            found += [Pair(None, b, before, after) for b in theirs[j:j2]]
    return found


def _says_something(step: Step) -> bool:
    return step.stateless and step.layer.kind not in _SILENT and bool(step.inputs)


def homes_of(
    homes: Mapping[tuple[str, ...], Sequence[str]], torch: Mapping[str, Module], mindspore: Mapping[str, Module]
) -> dict[str, list[str]]:
    """For each cell with mapped parameters the modules that own them in PyTorch, the one with most first.

    Args:
        homes: PyTorch parameter, under all of its names -> MindSpore parameters, for every mapped one.
        torch, mindspore: the modules of both networks.
    """
    above: dict[str, str] = {}
    for module in torch.values():
        for _, name in module.own:
            above.setdefault(name, module.path)
    cell_of = {name: path for path, cell in mindspore.items() for _, name in cell.own}
    votes: dict[str, dict[str, int]] = {}
    for names, ms_names in homes.items():
        path = next((above[name] for name in names if name in above), None)
        for ms_name in ms_names:
            if path is not None and ms_name in cell_of:
                row = votes.setdefault(cell_of[ms_name], {})
                row[path] = row.get(path, 0) + 1
    return {cell: sorted(row, key=lambda p: -row[p]) for cell, row in votes.items()}


# -- in a trace file ---------------------------------------------------------------------------------------------------


def to_json(steps: Sequence[Step], shown: Callable[[Fingerprint], list[Any]]) -> list[Any]:
    """An outline in plain lists; ``shown`` writes a fingerprint."""
    return [
        [
            s.path, s.name, int(s.function), s.layer.kind, dict(s.layer.settings), int(s.layer.own), s.turn, s.shape,
            [shown(f) for f in s.inputs], [shown(f) for f in s.outputs], int(s.stateless), int(s.owns),
        ]
        for s in steps
    ]  # fmt: skip


def from_json(rows: Sequence[Sequence[Any]], read: Callable[[list[Any]], Fingerprint]) -> tuple[Step, ...]:
    """What :func:`to_json` wrote."""
    return tuple(
        Step(
            path, name, bool(function), Layer(kind, {k: _tuples(v) for k, v in settings.items()}, bool(own)), int(turn),
            tuple(map(int, shape)), tuple(map(read, inputs)), tuple(map(read, outputs)), bool(stateless), bool(owns),
        )
        for path, name, function, kind, settings, own, turn, shape, inputs, outputs, stateless, owns in rows
    )  # fmt: skip


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
