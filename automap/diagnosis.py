"""A diagnosis in the making, and the patient: both networks, what PyTorch did, and the ways to repair MindSpore."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rapidfuzz import fuzz

from automap.activations import Activations, Kept, may_be
from automap.dtypes import Array
from automap.experiments import Explanation
from automap.findings import Kind
from automap.graph import ancestors
from automap.recording import SAME, Call, Observed, distance, fit
from automap.repairs import Tools
from automap.running import Forward, Inputs, Runner
from automap.settings import Layer
from automap.sightings import Edit, Fault, Key, Run, Seen, replaced


@dataclass
class Diagnosis:
    """One place of one cause, and its repair.

    Attributes:
        rank: its place in the order of execution.
        kind: see :class:`automap.findings.Finding`, as the attributes that are not named here.
        edits: what repairs it in a run that is not fed.
        values: parameters that repair it.
        local: the distance at this place before and after the repair.
        note: what is the matter, in words, where no setting says it.
        same: what further places must share to be one finding.
    """

    rank: float
    kind: Kind
    cause: str
    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    torch_class: str = ""
    ms_class: str = ""
    setting: str = ""
    torch_value: Any = None
    ms_value: Any = None
    edits: dict[tuple[str, str, int | None], Edit] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    local: tuple[float, float] = (0.0, 0.0)
    note: str = ""
    same: tuple[Any, ...] = ()
    fault: Fault | None = None
    found: Explanation | None = None
    value: Kept | None = None
    fed: bool = False
    near: Call | None = None


class Patient:
    """Both networks and what is known of them.

    Args:
        torch: the runner of the PyTorch network, which holds the weights.
        mindspore: the runner of the port, which holds what the mapping makes of them.
        homes: PyTorch parameter, under all of its names -> MindSpore parameters, for every mapped one.
        torch_read: the settings of a module.
        tools: for cells.
        torch_observed: the context in which PyTorch's functions are seen.
        ms_observed: the same for MindSpore.
        tolerance: what two right implementations may differ by, relative to the scale.
        noise: how far the kernels of this machine are off.

    Attributes:
        small: distances below are rounding.
        great: distances above are faults, whether they are explained or not.
        pairs: for each cell with mapped parameters the modules that own them in PyTorch, the one with most first.
        calls: what PyTorch did.
        expected: what it returned.
        run: what MindSpore did in the latest examination.
    """

    inputs: Inputs
    expected: Any

    def __init__(
        self,
        torch: Runner,
        mindspore: Runner,
        homes: Mapping[tuple[str, ...], Sequence[str]],
        torch_read: Callable[[Any], Layer],
        tools: Tools,
        torch_observed: Observed | None,
        ms_observed: Observed | None,
        tolerance: float,
        noise: float,
    ) -> None:
        self.torch, self.mindspore, self.tools = torch, mindspore, tools
        self.torch_read, self.torch_observed, self.ms_observed = torch_read, torch_observed, ms_observed
        self.small, self.great = 0.3 * tolerance, max(3 * tolerance, 2 * noise)
        self.store = Activations()
        self.pairs = self._pairs(homes)
        #: MindSpore parameter -> the PyTorch parameters in it, under all of their names.
        self.held = {ms: names for names, ms_names in homes.items() for ms in ms_names}
        self.calls: list[Call] = []
        self.run = Run()
        self.ms_forward: Forward | None = None
        #: Cells that run in the place of others which do something else: what they give is not compared.
        self.moved: set[str] = set()
        self._kept: dict[str, Array] = {}

    # -- counterparts --------------------------------------------------------------------------------------------------

    def _pairs(self, homes: Mapping[tuple[str, ...], Sequence[str]]) -> dict[str, list[str]]:
        """For each cell with mapped parameters the modules that own them in PyTorch, the one with most first."""
        torch_owners, ms_owners = _owners(self.torch), _owners(self.mindspore)
        votes: dict[str, dict[str, int]] = {}
        for names, ms_names in homes.items():
            theirs = list(dict.fromkeys(p for name in names for p in torch_owners.get(name, ())))
            for ms_name in ms_names:
                ours = ms_owners.get(ms_name, [])
                for cell, module in self._tied(ours, theirs):
                    row = votes.setdefault(cell, {})
                    row[module] = row.get(module, 0) + 1
        every = {(cell, module) for cell, row in votes.items() for module in row}
        below: tuple[dict[str, set[tuple[str, str]]], ...] = ({}, {})
        for pair in every:
            for side, path in zip(below, pair, strict=True):
                for outer in {"", *ancestors(path)} - {path}:
                    side.setdefault(outer, set()).add(pair)

        def is_whole(cell: str, module: str) -> bool:
            """Whether they have the same children: else the one does only a piece of the other's work."""
            inside = below[0].get(cell, set()) ^ below[1].get(module, set())
            return all(c == cell or m == module for c, m in inside)

        whole = {cell: [m for m in row if is_whole(cell, m)] for cell, row in votes.items()}
        return {cell: sorted(ms, key=lambda m: -votes[cell][m]) for cell, ms in whole.items() if ms}

    def _tied(self, ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The owners of one parameter on both sides: of a tied one, those that do the same with it."""
        if len(ours) == 1 and len(theirs) == 1:
            yield ours[0], theirs[0]
            return
        kinds = {path: self.torch_read(self.torch.object(path)).kind for path in theirs}
        for cell in ours:
            kind = self.tools.read(self.mindspore.object(cell)).kind
            if found := next((path for path in theirs if kinds[path] == kind), None):
                yield cell, found

    def fold_norms(self) -> None:
        """Where a cell has the weights of a layer and of the norm after it, the layer gives what the norm gives."""
        for paths in self.pairs.values():
            own = [c for c in self.calls if c.path in paths and not c.function and c.inputs and c.outputs]
            norms = [c for c in own if c.layer.kind == "batch_norm"]
            for norm in norms:
                layer = next((c for c in own if c.path != norm.path and c.outputs[:1] == norm.inputs[:1]), None)
                if layer is not None:
                    whole = replace(layer.layer, settings={**layer.layer.settings, "bias": True})
                    self.calls[layer.index] = replace(layer, layer=whole, outputs=norm.outputs)
                    paths[:] = [p for p in paths if p != norm.path]

    def around(self, call: Call) -> tuple[list[str], list[str]]:
        """The modules before and after a function's call, by the values that go between them, on both sides."""
        before: list[Call] = []
        for kept in call.inputs:
            wanted, at = kept, call.index
            for _ in range(4):
                made = [c for c in self.calls if c.index < at and wanted in c.outputs]
                if not made:
                    break
                source = min(made, key=lambda c: (c.end - c.index, -c.index))
                if not source.function:
                    before.append(source)
                    break
                if not source.inputs:
                    break
                wanted, at = source.inputs[0], source.index
        after = [c for c in self.calls if c.index > call.index and not c.function and set(c.inputs) & set(call.outputs)]
        if not before:
            ended = [c for c in self.calls if c.end <= call.index and c.leaf and not c.function]
            before = [max(ended, key=lambda c: c.index)] if ended else []
        if not after and call.outputs:
            after = [c for c in self.calls if c.index > call.index and c.leaf and not c.function][:1]
        near = [*before, *sorted(after, key=lambda c: (not c.leaf, c.index))[:1]]
        cells = {s.call.index: s.key[0] for s in self.run.seen if s.call is not None and not s.key[1]}
        return [c.path for c in near], [cells[c.index] for c in near if c.index in cells]

    def elsewhere(self, fault: Fault) -> Call | None:
        """The module with parameters that gets in PyTorch what comes to this cell."""
        assert fault.call is not None
        natural = self.store.read(fault.natural)
        for call in self.calls:
            if not call.owns or call.path == fault.call.path or not call.inputs or not call.outputs:
                continue
            if may_be(call.inputs[0], fault.natural):
                fitted = fit(self.store.read(call.inputs[0]), natural)
                if fitted is not None and fitted[1] < SAME:
                    return call
        return None

    def enough(self, fault: Fault) -> float:
        """How near PyTorch's value a repair has to come."""
        return max(self.small, 0.1 * min(fault.distance, 1.0))

    def is_value(self, kept: Kept, array: Array, within: float = SAME) -> bool:
        """Whether a value that is kept is an array, in whatever layout."""
        fitted = fit(self.store.read(kept), array)
        return fitted is not None and fitted[1] < within

    def origin(self, fault: Fault) -> Call | None:
        """A PyTorch call that gets or gives what comes to the cell."""
        natural = self.store.read(fault.natural)
        for call in self.calls:
            for kept in (*call.outputs[:1], *call.inputs[:1]):
                if may_be(kept, fault.natural):
                    fitted = fit(self.store.read(kept), natural)
                    if fitted is not None and fitted[1] < SAME / 10:
                        return call
        return None

    def is_output(self, s: Seen, call: Call) -> bool:
        if not s.outputs or not may_be(s.outputs[0], call.inputs[0]):
            return False
        fitted = fit(self.store.read(call.inputs[0]), self.store.read(s.outputs[0]), loose=True)
        return fitted is not None and fitted[1] < SAME

    # -- other values in MindSpore's parameters -----------------------------------------------------------------------

    @contextlib.contextmanager
    def values_kept(self) -> Iterator[None]:
        self._kept = {}
        try:
            yield
        finally:
            self.mindspore.put(self._kept)

    def put(self, values: Mapping[str, Array]) -> None:
        for name in values:
            self._kept.setdefault(name, self.mindspore.value(name).copy())
        self.mindspore.put(values)

    def exchange(self, cell: str, partner: str) -> dict[str, Array]:
        """The values of two cells exchanged, empty if they do not fit."""
        ours, theirs = (dict(self.mindspore.modules[p].own) for p in (cell, partner))
        if ours.keys() != theirs.keys():
            return {}
        values = {}
        for attribute, name in ours.items():
            a, b = self.mindspore.value(name), self.mindspore.value(theirs[attribute])
            if a.shape != b.shape:
                return {}
            values[name], values[theirs[attribute]] = b.copy(), a.copy()
        return values

    # -- trying and repairing ------------------------------------------------------------------------------------------

    def distance(self, fault: Fault, out: Any) -> float:
        arrays = [self.mindspore.array(t) for t in self.mindspore.tensors(out)]
        if fault.tensor >= len(arrays):
            return float("inf")
        expected, array = self.store.read(fault.expected), arrays[fault.tensor]
        if fault.call is not None and expected.shape != array.shape:
            fitted = fit(expected, array)
            return float("inf") if fitted is None else fitted[1]
        return distance(expected, array)

    def attempt(self, fault: Fault, edit: Edit, proceed: Callable[..., Any], args: Any, kwargs: Any) -> float:
        try:
            return self.distance(fault, edit(proceed, args, kwargs))
        except Exception:  # whatever a framework raises: this experiment shows nothing
            return float("inf")

    def feed_output(self, d: Diagnosis, key: Key) -> None:
        """Repair by PyTorch's own value in the place of what a cell gives."""
        fault = d.fault
        assert fault is not None
        expected = self.store.read(fault.expected)
        d.fed = True

        def edit(proceed: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            out = proceed(*args, **kwargs)
            tensors = self.mindspore.tensors(out)
            if fault.tensor >= len(tensors):
                return out
            old = tensors[fault.tensor]
            return replaced(out, {id(old): self.tensor(expected, old)})

        d.edits = {key: edit}

    def feed_input(self, d: Diagnosis, fault: Fault) -> None:
        """Repair by PyTorch's own value in the place of what comes to a cell, or what the network gives."""
        if fault.at is None:
            return
        expected = self.store.read(fault.expected)

        def edit(proceed: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            tensors = self.mindspore.tensors((args, kwargs))
            if fault.tensor < len(tensors):
                old = tensors[fault.tensor]
                if fault.unknown and tuple(old.shape) == expected.shape:
                    self.tools.overwrite(old, np.ascontiguousarray(expected))
                args, kwargs = replaced((args, kwargs), {id(old): self.tensor(expected, old)})
            return proceed(*args, **kwargs)

        if fault.place == "input":
            d.edits = {fault.at: edit}
        else:
            self.feed_output(d, fault.at)

    def on_input(self, fault: Fault, function: Callable[..., Any]) -> Edit:
        """A function on one of the tensors that come to a cell."""

        def edit(proceed: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            tensors = self.mindspore.tensors((args, kwargs))
            if fault.tensor < len(tensors):
                old = tensors[fault.tensor]
                args, kwargs = replaced((args, kwargs), {id(old): function(old)})
            return proceed(*args, **kwargs)

        return edit

    def tensor(self, array: Array, like: Any) -> Any:
        made = self.mindspore.tensor(np.ascontiguousarray(array))
        return made if made.dtype == like.dtype else made.astype(like.dtype)


def _owners(runner: Runner) -> dict[str, list[str]]:
    """For each parameter the modules that own it: several, if it is tied."""
    found: dict[str, list[str]] = {}
    for module in runner.modules.values():
        for _, name in module.own:
            found.setdefault(name, []).append(module.path)
    return found


def fit_or(array: Array, like: Array) -> Array:
    """A value in the layout of another, or as it is."""
    fitted = fit(array, like) if array.size == like.size else None
    return array if fitted is None else fitted[0]


def likeness(a: str, b: str) -> float:
    """How alike two paths are, from 0 to 1."""
    return float(fuzz.token_set_ratio(a.replace(".", " "), b.replace(".", " "))) / 100


def words_of(path: str) -> tuple[str, ...]:
    """A path without its numbers: the same for repeated blocks."""
    return tuple(p for p in path.split(".") if not p.isdigit())


def after(function: Callable[..., Any]) -> Edit:
    return lambda proceed, args, kwargs: function(proceed(*args, **kwargs))
