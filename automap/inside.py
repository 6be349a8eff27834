"""Inside one cell: why it gives something else than its counterpart although it got the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from automap.activations import may_be
from automap.diagnosis import Diagnosis, Patient, words_of
from automap.dtypes import Array
from automap.experiments import Explanation, explain
from automap.findings import Kind
from automap.recording import SAME, Call, distance
from automap.repairs import with_settings
from automap.settings import Difference, Layer, differences
from automap.sightings import Edit, Fault, Key

#: Of so many parameters every order is tried.
_PLACES = 4


class Inside:
    """Looks at every call that has a counterpart, while it can be run again.

    Attributes:
        diagnoses: what was found.
    """

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self.diagnoses: list[Diagnosis] = []
        self.rank = 0.0
        self._told: set[tuple[str, str, str]] = set()

    def inspect(
        self,
        fault: Fault | None,
        cell: Any,
        layer: Layer,
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: Key,
        call: Call,
        rank: int,
    ) -> None:
        if key[0] in self.patient.moved and not key[1]:
            return
        self.rank = float(rank)
        shape = next((tuple(t.shape) for t in self.patient.mindspore.tensors((args, kwargs))), ())
        found = differences(call.layer, layer, shape)
        if key[2] == 0:
            for d in found:
                if d.training and not (layer.family == "dropout" and fault is not None):
                    self._settle(key, call, layer, d, None, (0.0, 0.0))
        forward = [d for d in found if not d.training]
        if fault is None:
            for d in forward:
                if d.setting == "eps" and key[2] == 0:
                    self._settle(key, call, layer, d, self._edit(cell, call, layer, [d]), (0.0, 0.0))
            return
        if self._by_settings(fault, cell, layer, proceed, args, kwargs, key, call, forward):
            return
        self._by_experiment(fault, cell, layer, proceed, args, kwargs, key, call)

    def _by_settings(
        self,
        fault: Fault,
        cell: Any,
        layer: Layer,
        proceed: Callable[..., Any],
        args: Any,
        kwargs: Any,
        key: Key,
        call: Call,
        found: list[Difference],
    ) -> bool:
        """Whether other settings make the cell agree; each that is needed becomes a diagnosis."""
        if not found:
            return False
        edit = self._edit(cell, call, layer, found)
        if edit is None:
            found = [d for d in found if self._edit(cell, call, layer, [d]) is not None]
            edit = self._edit(cell, call, layer, found) if found else None
        if edit is None:
            return False
        after = self.patient.attempt(fault, edit, proceed, args, kwargs)
        if after > self.patient.enough(fault):
            return False
        needed = []
        for d in found:
            rest = [other for other in found if other is not d]
            without = fault.distance
            if rest and (partial := self._edit(cell, call, layer, rest)) is not None:
                without = self.patient.attempt(fault, partial, proceed, args, kwargs)
            if without > 3 * after + 1e-7 or d.setting == "eps":
                needed.append(d)
        for d in needed or found:
            self._settle(key, call, layer, d, self._edit(cell, call, layer, [d]), (fault.distance, after))
        return True

    def _edit(self, cell: Any, call: Call, layer: Layer, found: Sequence[Difference]) -> Edit | None:
        """The edit that gives a cell or a function PyTorch's settings, or None if there is no way."""
        return with_settings(
            self.patient.tools, cell, call.layer, layer, found, lambda has: self._bias(call.path, cell, has)
        )

    def _bias(self, torch_path: str, cell: Any, has: bool) -> Array | None:
        """What is to be added to what a cell gives: PyTorch's bias, or its own with the other sign."""
        if not has:
            own = getattr(cell, "bias", None)
            return None if own is None else -self.patient.mindspore.array(own)
        name = dict(self.patient.torch.modules[torch_path].own).get("bias")
        return None if name is None else np.array(self.patient.torch.value(name))

    def _settle(
        self, key: Key, call: Call, layer: Layer, d: Difference, edit: Edit | None, local: tuple[float, float]
    ) -> None:
        if (key[0], key[1], d.setting) in self._told:
            return
        self._told.add((key[0], key[1], d.setting))
        kind: Kind = "training" if d.training else "operation" if d.setting == "kind" else "setting"
        ms_class = type(self.patient.mindspore.object(key[0])).__name__ if not key[1] else key[1]
        values = () if d.setting == "padding" else (str(d.torch), str(d.mindspore))
        self.diagnoses.append(
            Diagnosis(
                self.rank, kind, d.cause, (call.path,), (key[0],), call.name, ms_class, d.setting, d.torch, d.mindspore,
                {} if edit is None else {(key[0], key[1], None): edit}, local=local,
                same=(kind, d.cause, d.setting, call.layer.kind, *values), near=call if key[1] else None,
            )
        )  # fmt: skip

    def _by_experiment(
        self,
        fault: Fault,
        cell: Any,
        layer: Layer,
        proceed: Callable[..., Any],
        args: Any,
        kwargs: Any,
        key: Key,
        call: Call,
    ) -> None:
        ms_class = type(cell).__name__ if cell is not None else key[1]
        diagnosis = Diagnosis(
            self.rank, "operation", "operation", (call.path,), (key[0],), call.name, ms_class,
            local=(fault.distance, fault.distance), fault=fault,
        )  # fmt: skip
        self.diagnoses.append(diagnosis)
        if key[1]:
            diagnosis.near = call
        if layer.family == "dropout" and layer.settings.get("training"):
            diagnosis.cause, diagnosis.note = "dropout", "it drops in inference here"
            diagnosis.found = Explanation("dropout", diagnosis.note)
            self.patient.feed_output(diagnosis, key)
            diagnosis.fed, diagnosis.same = False, ("dropout",)
            diagnosis.edits = {(key[0], key[1], None): lambda proceed, args, kwargs: args[0]}
            diagnosis.local = (fault.distance, 0.0)
            return
        if fault.order and list(fault.order) != sorted(fault.order) and layer.kind == call.layer.kind:
            words = "what is joined is in another order here" if layer.kind == "concat" else "the factors are exchanged"
            diagnosis.kind, diagnosis.cause, diagnosis.note = "between", "order", words
            diagnosis.found = Explanation("order", words)
            self.patient.feed_output(diagnosis, key)
            diagnosis.same = ("order", layer.kind, words_of(key[0]))
            return
        if self._zero_filled(diagnosis, fault, call):
            self.patient.feed_output(diagnosis, key)
            return
        if cell is not None and self._transposed(diagnosis, fault, proceed, args, kwargs):
            return
        if cell is not None and self._misplaced(diagnosis, fault, call, proceed, args, kwargs):
            return
        expected, natural = self.patient.store.read(fault.expected), self.patient.store.read(fault.natural)
        if expected.shape == natural.shape:
            values = [self.patient.mindspore.array(t) for t in self.patient.mindspore.tensors((args, kwargs))]
            found = explain(expected, natural, [v for v in values if v.shape == natural.shape])
            if found is not None:
                diagnosis.found, diagnosis.cause, diagnosis.note = found, found.cause, found.words
                if found.cause == "bias" and not self._unbiased(diagnosis, call, cell):
                    diagnosis.cause = "operation"
        else:
            diagnosis.note = f"{list(natural.shape)} here, {list(expected.shape)} in PyTorch"
        self.patient.feed_output(diagnosis, key)
        if diagnosis.found is None and call.owns:
            other = self._same_output(fault, call)
            if other is not None:
                diagnosis.kind, diagnosis.cause = "mapping", "mapping"
                diagnosis.torch = (call.path, other.path)
                diagnosis.note = f"it holds the weights of {other.path}"
        diagnosis.same = (diagnosis.kind, diagnosis.cause, diagnosis.note or key[0], call.name, ms_class)

    def _unbiased(self, diagnosis: Diagnosis, call: Call, cell: Any) -> bool:
        """Whether the constant that is missing is the bias of this very module."""
        name = dict(self.patient.torch.modules[call.path].own).get("bias")
        if name is None or diagnosis.fault is None:
            return False
        expected, natural = (
            self.patient.store.read(diagnosis.fault.expected),
            self.patient.store.read(diagnosis.fault.natural),
        )
        bias = np.sort(np.asarray(self.patient.torch.value(name), dtype=np.float64).ravel())
        for axis in {1, expected.ndim - 1}:
            others = tuple(i for i in range(expected.ndim) if i != axis)
            mean = np.sort((expected.astype(np.float64) - natural).mean(axis=others))
            if mean.shape == bias.shape and np.abs(mean - bias).max() <= 1e-3 * (np.abs(bias).max() or 1.0):
                diagnosis.kind, diagnosis.setting, diagnosis.torch_value, diagnosis.ms_value = (
                    "setting",
                    "bias",
                    True,
                    False,
                )
                return True
        return False

    def _zero_filled(self, diagnosis: Diagnosis, fault: Fault, call: Call) -> bool:
        """Whether only the rows and columns of an output padding differ, which MindSpore does not compute."""
        added = call.layer.settings.get("output_padding") if call.layer.kind == "conv_transpose" else None
        if not added or not any(added):
            return False
        expected, natural = self.patient.store.read(fault.expected), self.patient.store.read(fault.natural)
        kept: Any = (
            ...,
            *(slice(0, side - more) for side, more in zip(natural.shape[-len(added) :], added, strict=True)),
        )
        if expected.shape != natural.shape or distance(expected[kept], natural[kept]) > self.patient.small:
            return False
        words = "MindSpore fills what output_padding adds with zeros, PyTorch computes it"
        diagnosis.cause, diagnosis.setting, diagnosis.note = "output_padding", "", words
        diagnosis.found, diagnosis.same = Explanation("output_padding", words), ("output_padding", diagnosis.ms_class)
        return True

    def _transposed(
        self, diagnosis: Diagnosis, fault: Fault, proceed: Callable[..., Any], args: Any, kwargs: Any
    ) -> bool:
        """Whether the cell agrees with one of its square matrices turned."""
        for attribute, name in self.patient.mindspore.modules[diagnosis.mindspore[0]].own:
            value = self.patient.mindspore.value(name).copy()
            if value.ndim != 2 or value.shape[0] != value.shape[1]:
                continue
            self.patient.mindspore.put({name: np.ascontiguousarray(value.T)})
            try:
                after = self.patient.attempt(fault, lambda p, a, k: p(*a, **k), proceed, args, kwargs)
            finally:
                self.patient.mindspore.put({name: value})
            if after <= self.patient.enough(fault):
                words = f"{attribute} is used transposed here; the mapping has to turn it, or the cell"
                diagnosis.kind, diagnosis.cause, diagnosis.note = "mapping", "transpose", words
                diagnosis.setting, diagnosis.found = attribute, Explanation("transpose", words)
                diagnosis.values = {name: np.ascontiguousarray(value.T)}
                diagnosis.local = (fault.distance, after)
                diagnosis.same = ("transpose", attribute, diagnosis.torch_class, diagnosis.ms_class)
                return True
        return False

    def _misplaced(
        self, diagnosis: Diagnosis, fault: Fault, call: Call, proceed: Callable[..., Any], args: Any, kwargs: Any
    ) -> bool:
        """Whether the cell agrees with other values: its counterpart's own, or its own in other places."""
        runner = self.patient.mindspore
        own = dict(runner.modules[diagnosis.mindspore[0]].own)
        theirs = dict(self.patient.torch.modules[call.path].own)
        for values in self._other_values(own, theirs):
            before = {name: runner.value(name).copy() for name in values}
            runner.put(values)
            try:
                after = self.patient.attempt(fault, lambda p, a, k: p(*a, **k), proceed, args, kwargs)
            finally:
                runner.put(before)
            if after > self.patient.enough(fault):
                continue
            moved = [name for name in values if not np.array_equal(values[name], before[name])]
            held = [self.patient.held.get(name, ("nothing",))[0] for name in moved]
            words = "; ".join(f"{name} holds {other}" for name, other in zip(moved, held, strict=True))
            diagnosis.kind, diagnosis.cause = "mapping", "mapping"
            diagnosis.note = f"{words}, which is wrong: with other values it agrees"
            diagnosis.found, diagnosis.values = Explanation("mapping", diagnosis.note), values
            diagnosis.local, diagnosis.same = (fault.distance, after), ("mapping", diagnosis.mindspore[0])
            return True
        return False

    def _other_values(self, own: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[dict[str, Array]]:
        """Values that a cell may have to hold instead of what the mapping gives it."""
        runner, torch = self.patient.mindspore, self.patient.torch
        mine = set(theirs.values())
        strange = [name for name in own.values() if not mine & set(self.patient.held.get(name, ()))]
        free = [n for n in mine if not any(n in self.patient.held.get(name, ()) for name in own.values())]
        if strange and len(strange) <= _PLACES and len(free) <= _PLACES:
            for chosen in itertools.permutations(free, len(strange)):
                values = {name: np.asarray(torch.value(n)) for name, n in zip(strange, chosen, strict=True)}
                if all(values[name].shape == runner.value(name).shape for name in strange):
                    yield values
        shapes: dict[tuple[int, ...], list[str]] = {}
        for name in own.values():
            shapes.setdefault(tuple(runner.value(name).shape), []).append(name)
        for names in shapes.values():
            now = [runner.value(name).copy() for name in names]
            for order in list(itertools.permutations(range(len(names))))[1:] if len(names) <= _PLACES else []:
                yield {name: now[i] for name, i in zip(names, order, strict=True)}

    def _same_output(self, fault: Fault, call: Call) -> Call | None:
        """Another module of the same kind that gives in PyTorch what this cell gives."""
        natural = self.patient.store.read(fault.natural)
        for other in self.patient.calls:
            if other.owns and other.path != call.path and other.name == call.name and other.outputs:
                kept = other.outputs[0]
                if may_be(kept, fault.natural) and self.patient.is_value(kept, natural, SAME / 10):
                    return other
        return None
