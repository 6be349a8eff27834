"""Runs MindSpore with PyTorch's own values fed to every cell, so that no fault hides or poisons another.

The counterpart of a cell that owns parameters is what the mapping says. Cells and functions without parameters have as
counterpart the PyTorch call of the same family that gets the same values. Whatever a cell gives is replaced by what its
counterpart gives, and what comes to a cell is compared with what came to its counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from automap.activations import Activations, Kept
from automap.counterparts import Counterparts
from automap.dtypes import Array
from automap.recording import SAME, Call, Observed, fit
from automap.running import Forward, Inputs, Runner, Visit
from automap.settings import Layer
from automap.sightings import Edit, Edits, Fault, Inspect, Key, Run, Seen, replaced


class Examination:
    """Runs MindSpore against a recorded run of PyTorch.

    Args:
        runner: of the MindSpore network, which holds the mapped weights.
        read: the settings of a cell.
        observed: the context in which functions are seen.
        calls: what PyTorch did.
        pairs: for each cell with mapped parameters the paths of the modules that own them in PyTorch, best first.
        store: where the values are.
        small: distances below are rounding.
        overwrite: gives a tensor other values where it is.
    """

    def __init__(
        self,
        runner: Runner,
        read: Callable[[Any], Layer],
        observed: Observed | None,
        calls: Sequence[Call],
        pairs: Mapping[str, Sequence[str]],
        store: Activations,
        small: float,
        overwrite: Callable[[Any, Array], None],
    ) -> None:
        self.runner, self.read, self.observed = runner, read, observed
        self.calls, self.pairs, self.store = calls, pairs, store
        self.small, self.overwrite = small, overwrite
        self.counterparts = Counterparts(calls, pairs, store)

    def run(
        self,
        inputs: Inputs,
        forward: Forward | None,
        edits: Edits | None = None,
        suspects: Iterable[Key | None] = (),
        inspect: Inspect | None = None,
    ) -> Run:
        """One run.

        Args:
            inputs: the same as PyTorch's.
            forward: instead of the network's own.
            edits: what is done differently.
            suspects: after these calls (up to the next that owns parameters) something is wrong: calls without
                parameters whose inputs agree with nothing are counterparts by their position there.
            inspect: called for every fault inside a cell or function, while it can be run again.
        """
        state = _State(self, dict(edits or {}), set(suspects), inspect)
        with self.observed(state.observe) if self.observed is not None else nullcontext():
            state.run.outputs = self.runner.run(inputs, forward, state.watch)
        return state.run

    def plain(self, inputs: Inputs, forward: Forward | None, edits: Edits) -> Any:
        """The outputs of a run in which nothing is fed or compared, only edited."""
        state = _State(self, dict(edits), set(), None)
        with self.observed(state.edit_function) if self.observed is not None else nullcontext():
            return self.runner.run(inputs, forward, state.edit)


class _State:
    """One run of an examination: what is under way."""

    def __init__(self, owner: Examination, edits: dict[Any, Edit], suspects: set[Any], inspect: Inspect | None) -> None:
        self.owner, self.edits, self.suspects, self.inspect = owner, edits, suspects, inspect
        self.run = Run()
        self.turns: dict[tuple[str, str], int] = {}
        self.used: set[int] = set()
        self.inside: list[tuple[str, bool]] = []
        self.last: Seen | None = None  # the latest call that is a counterpart
        self.anchor: Seen | None = None  # the latest one that owns parameters
        self.layers: dict[int, Layer] = {}
        self.quiet = False  # what runs now is an experiment, and not the network

    def key(self, path: str, name: str) -> Key:
        self.turns[path, name] = self.turns.get((path, name), -1) + 1
        return (path, name, self.turns[path, name])

    def edited(self, key: Key, proceed: Callable[..., Any]) -> Callable[..., Any]:
        """A call with what the edits do to it."""
        for which in ((key[0], key[1], None), key):
            if edit := self.edits.get(which):
                proceed = self._with(edit, proceed)
        return proceed

    def _with(self, edit: Edit, proceed: Callable[..., Any]) -> Callable[..., Any]:
        """A call with an edit; the functions that the edit itself uses are not seen."""

        def inner(*args: Any, **kwargs: Any) -> Any:
            before, self.quiet = self.quiet, False
            try:
                return proceed(*args, **kwargs)
            finally:
                self.quiet = before

        def outer(*args: Any, **kwargs: Any) -> Any:
            before, self.quiet = self.quiet, True
            try:
                return edit(inner, args, kwargs)
            finally:
                self.quiet = before

        return outer

    def layer(self, cell: Any) -> Layer:
        if id(cell) not in self.layers:
            self.layers[id(cell)] = self.owner.read(cell)
        return self.layers[id(cell)]

    def closed(self, visit: Visit, layer: Layer) -> bool:
        """Whether what a cell calls is its own business: it is the framework's, or it is looked at as a whole."""
        return (layer.own and bool(layer.kind)) or (bool(visit.module.own) and not visit.obj._cells)

    # -- only edits ----------------------------------------------------------------------------------------------------

    def edit(self, visit: Visit, proceed: Callable[..., Any]) -> Any:
        layer = self.layer(visit.obj)
        key = self.key(visit.module.path, "")
        self.inside.append((visit.module.path, self.closed(visit, layer)))
        try:
            return self.edited(key, proceed)(*visit.args, **visit.kwargs)
        finally:
            self.inside.pop()

    def edit_function(self, name: str, layer: Layer, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        if self.quiet or not self.inside or self.inside[-1][1]:
            return call(*args, **kwargs)
        return self.edited(self.key(self.inside[-1][0], name), call)(*args, **kwargs)

    # -- the examination -----------------------------------------------------------------------------------------------

    def watch(self, visit: Visit, proceed: Callable[..., Any]) -> Any:
        path, layer = visit.module.path, self.layer(visit.obj)
        key = self.key(path, "")
        own = self.closed(visit, layer)

        def entered(*args: Any, **kwargs: Any) -> Any:
            self.inside.append((path, own))
            try:
                return self.edited(key, proceed)(*args, **kwargs)
            finally:
                self.inside.pop()

        if path in self.owner.pairs:
            return self._cell(key, visit, layer, entered)
        if not visit.module.own and not visit.obj._cells:
            return self._stateless(key, visit.module.kind, layer, visit.args, visit.kwargs, entered, visit.obj)
        return entered(*visit.args, **visit.kwargs)

    def observe(self, name: str, layer: Layer, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        if self.quiet or not self.inside or self.inside[-1][1]:
            return call(*args, **kwargs)
        key = self.key(self.inside[-1][0], name)
        return self._stateless(key, name, layer, args, kwargs, self.edited(key, call), None)

    def _arrays(self, nested: Any) -> tuple[list[Any], list[Array]]:
        tensors = self.owner.runner.tensors(nested)
        return tensors, [self.owner.runner.array(t) for t in tensors]

    def _keep(self, arrays: Sequence[Array]) -> tuple[Kept, ...]:
        return tuple(self.owner.store.keep(a) for a in arrays)

    def _note(
        self, key: Key, name: str, layer: Layer, inputs: Any, outputs: Any, call: Call | None, owns: bool
    ) -> None:
        seen = Seen(len(self.run.seen), key, name, layer, inputs, outputs, call, owns)
        self.run.seen.append(seen)
        if call is not None:
            self.last = seen
            if owns:
                self.anchor = seen

    def _fault(self, **found: Any) -> Fault:
        last = None if self.last is None else self.last.key
        fault = Fault(last=last, seen=len(self.run.seen), **found)
        self.run.faults.append(fault)
        return fault

    def _cell(self, key: Key, visit: Visit, layer: Layer, proceed: Callable[..., Any]) -> Any:
        tensors, natural = self._arrays((visit.args, visit.kwargs))
        call = self.owner.counterparts.of_cell(key[0], key[2], natural)
        kept = self._keep(natural)
        if call is None:
            out = proceed(*visit.args, **visit.kwargs)
            self._note(key, visit.module.kind, layer, kept, self._keep(self._arrays(out)[1]), None, True)
            return out
        swap: dict[int, Any] = {}
        count = len(self.run.faults)
        for i, (tensor, array, theirs) in enumerate(zip(tensors, natural, call.inputs, strict=False)):
            self._feed(key, call, i, tensor, array, theirs, swap)
        # What comes of an input in another form, for which nothing was fed, says nothing of the cell.
        blind = any(id(tensors[f.tensor]) not in swap for f in self.run.faults[count:])
        args, kwargs = replaced((visit.args, visit.kwargs), swap)
        # What is inside this cell comes after its input.
        before = self.last
        self.last = Seen(len(self.run.seen), key, visit.module.kind, layer, kept, (), call, True)
        first = len(self.run.seen)
        out = proceed(*args, **kwargs)
        if len(self.run.seen) == first:
            self.last = before
        return self._given(
            key, visit.module.kind, layer, kept, call, visit.obj, proceed, args, kwargs, out, True, first, blind=blind
        )

    def _feed(
        self, key: Key, call: Call, i: int, tensor: Any, array: Array, theirs: Kept, swap: dict[int, Any]
    ) -> None:
        """Compare one input with its counterpart's, and put the counterpart's in its place."""
        expected = self.owner.store.read(theirs)
        if (array.dtype.kind == "f") != (expected.dtype.kind == "f"):
            return  # a mask in another form, say
        fitted = fit(expected, array)
        apart = float("inf") if fitted is None else fitted[1]
        if i and fitted is None:
            return
        if fitted is not None:
            swap[id(tensor)] = self._like(fitted[0], tensor)
        elif expected.ndim == array.ndim:
            swap[id(tensor)] = self._like(expected, tensor)
        if apart > self.owner.small:
            shown = expected if fitted is None else fitted[0]
            natural = self.owner.store.keep(array)
            unknown = fitted is not None and not self.owner.counterparts.known(natural, self.owner.store.read(natural))
            self._fault(
                at=key, place="input", call=call, distance=apart, expected=self.owner.store.keep(shown),
                natural=natural, tensor=i, inside=False, unknown=unknown,
            )  # fmt: skip
            if unknown:
                # It is this very value that is wrong, wherever else it goes.
                self.owner.overwrite(tensor, np.ascontiguousarray(shown))

    def _like(self, array: Array, tensor: Any) -> Any:
        made = self.owner.runner.tensor(np.ascontiguousarray(array))
        return made if made.dtype == tensor.dtype else made.astype(tensor.dtype)

    def _given(
        self,
        key: Key,
        name: str,
        layer: Layer,
        kept: tuple[Kept, ...],
        call: Call,
        cell: Any,
        proceed: Callable[..., Any],
        args: Any,
        kwargs: Any,
        out: Any,
        owns: bool,
        first: int,
        order: tuple[int, ...] = (),
        blind: bool = False,
    ) -> Any:
        """Compare what a cell gave with what its counterpart gave, and return the latter."""
        tensors, natural = self._arrays(out)
        swap: dict[int, Any] = {}
        returned: list[Array] = []
        fault: Fault | None = None
        for i, (tensor, array) in enumerate(zip(tensors, natural, strict=True)):
            if i >= len(call.outputs) or array.dtype.kind != "f":
                returned.append(array)
                continue
            expected, apart = self._expected(key, call, i, array, owns)
            if blind and expected is None:
                expected = self.owner.store.read(call.outputs[i])
            if expected is not None:
                swap[id(tensor)] = self._like(expected, tensor)
            returned.append(array if expected is None else expected)
            if apart > self.owner.small and fault is None and not blind:
                shown = self.owner.store.read(call.outputs[i]) if expected is None else expected
                keep = self.owner.store.keep
                fault = self._fault(
                    at=key, place="output", call=call, distance=apart, expected=keep(shown), natural=keep(array),
                    tensor=i, inside=len(self.run.seen) == first, order=order,
                )  # fmt: skip
        if self.inspect is not None and (fault is None or fault.inside):
            self.quiet = True
            try:
                self.inspect(fault, cell, layer, proceed, args, kwargs, key, call, len(self.run.seen))
            finally:
                self.quiet = False
        self._note(key, name, layer, kept, self._keep(returned), call, owns)
        return replaced(out, swap)

    def _expected(self, key: Key, call: Call, i: int, natural: Array, owns: bool) -> tuple[Array | None, float]:
        """PyTorch's value for an output in MindSpore's layout, and how far the natural one is from it.

        One cell may do the work of a module and of what follows it, or only a part of a module's.
        """
        read = self.owner.store.read
        fitted = fit(read(call.outputs[i]), natural, loose=not owns)
        if fitted is not None and fitted[1] <= self.owner.small:
            return fitted
        if owns and i == 0:
            for other in self._near(call):
                again = fit(read(other), natural)
                if again is not None and again[1] <= max(self.owner.small, SAME / 10):
                    return again
            if (part := self._part(read(call.outputs[0]), natural)) is not None:
                return part
            if (joined := self._joined(key, call, natural)) is not None:
                return joined
        if fitted is not None:
            return fitted
        whole = read(call.outputs[i])
        return (whole if whole.ndim == natural.ndim else None), float("inf")

    def _joined(self, key: Key, call: Call, natural: Array) -> tuple[Array, float] | None:
        """What several modules give, for a cell that does the work of all of them."""
        owner = self.owner
        every = [owner.counterparts.by_path.get(path, []) for path in owner.pairs[key[0]]]
        outputs = [owner.store.read(c[min(call.turn, len(c) - 1)].outputs[0]) for c in every if c]
        if len(outputs) < 2 or len({o.shape[:-1] for o in outputs}) > 1:
            return None
        whole = np.concatenate(outputs, axis=-1)
        fitted = fit(whole, natural) if whole.size == natural.size else None
        if fitted is None:
            return None
        return fitted if fitted[1] < SAME else (natural, 0.0)  # another order: the next cell tells

    def _near(self, call: Call) -> Iterator[Kept]:
        calls = self.owner.calls
        for other in calls[call.index + 1 : call.end]:
            yield from other.inputs[:1]
            yield from other.outputs[:1]
        value = call.outputs[0]
        for other in calls[call.end : call.end + 4]:
            if other.stateless and other.inputs and other.inputs[0] == value:
                value = other.outputs[0] if other.outputs else value
                yield value

    def _part(self, whole: Array, natural: Array) -> tuple[Array, float] | None:
        """The part of a fused output that a cell gives, if it gives one."""
        if not natural.size or whole.size % natural.size or whole.size == natural.size or whole.shape[-1] < 2:
            return None
        parts = whole.size // natural.size
        if whole.shape[-1] % parts:
            return None
        if whole.ndim == natural.ndim and sum(a != b for a, b in zip(whole.shape, natural.shape, strict=True)) > 1:
            return None  # an image of another size
        for piece in np.split(whole, parts, axis=-1):
            fitted = fit(piece, natural)
            if fitted is not None and fitted[1] < SAME:
                return fitted
        return natural, 0.0  # another division: the next cell tells

    # -- cells and functions without parameters ------------------------------------------------------------------------

    def _stateless(
        self, key: Key, name: str, layer: Layer, args: Any, kwargs: Any, proceed: Callable[..., Any], cell: Any
    ) -> Any:
        tensors, natural = self._arrays((args, kwargs))
        if not natural or natural[0].dtype.kind != "f" or layer.kind in ("identity", "flatten"):
            return proceed(*args, **kwargs)
        kept = self._keep(natural)
        position = -1 if self.last is None or self.last.call is None else self.last.call.index
        candidates = self.owner.counterparts.of_values(layer, kept, natural, self.used, position)
        suspect = (None if self.anchor is None else self.anchor.key) in self.suspects
        for call, order in candidates:
            swap: dict[int, Any] = {}
            for tensor, array, i in zip(tensors, natural, order, strict=False):
                theirs = self.owner.store.read(call.inputs[i])
                fitted = fit(theirs, array, loose=True, any_order=layer.kind == "matmul")
                if fitted is not None:
                    swap[id(tensor)] = self._like(fitted[0], tensor)
            new_args, new_kwargs = replaced((args, kwargs), swap)
            out = proceed(*new_args, **new_kwargs)
            given = self._arrays(out)[1]
            _, apart = self._expected(key, call, 0, given[0], False) if given else (None, 0.0)
            # Of calls on one value, one that gives the same is the counterpart.
            if apart > self.owner.small and (len(candidates) > 1 or call.layer.kind != layer.kind):
                better = [c for c, _ in candidates if c is not call and self._gives(c, given[0])]
                if better or (call.layer.kind != layer.kind and not suspect):
                    continue
            if layer.kind == "matmul" and apart > self.owner.small and not suspect:
                continue  # a product may be written in another way, and be turned back later
            self.used.add(call.index)
            return self._given(
                key, name, layer, kept, call, cell, proceed, new_args, new_kwargs, out, False, len(self.run.seen), order
            )
        last = None if self.last is None else self.last.call
        nearest = self.owner.counterparts.of_position(layer, kept, self.used, last) if suspect else None
        if nearest is None:
            out = proceed(*args, **kwargs)
            self._note(key, name, layer, kept, self._keep(self._arrays(out)[1]), None, False)
            return out
        self.used.add(nearest.index)
        feed: dict[int, Any] = {}
        for i, (tensor, array, given_there) in enumerate(zip(tensors, natural, nearest.inputs, strict=False)):
            self._feed(key, nearest, i, tensor, array, given_there, feed)
        args, kwargs = replaced((args, kwargs), feed)
        out = proceed(*args, **kwargs)
        return self._given(key, name, layer, kept, nearest, cell, proceed, args, kwargs, out, False, len(self.run.seen))

    def _gives(self, call: Call, natural: Array) -> bool:
        fitted = fit(self.owner.store.read(call.outputs[0]), natural, loose=True)
        return fitted is not None and fitted[1] <= self.owner.small
