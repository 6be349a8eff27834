"""Between two cells: what makes a wrong input of right values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from automap.activations import Kept, may_be
from automap.diagnosis import Diagnosis, Patient, after, fit_or, words_of
from automap.dtypes import Array
from automap.errors import AutomapError
from automap.experiments import Explanation, explain, name_of
from automap.recording import SAME, Call, distance, fit
from automap.reductions import reduced
from automap.settings import Layer
from automap.sightings import Edit, Fault, Run, Seen

#: So many values before a fault are tried for what lies between.
_VALUES = 24

#: How often the network is run again to try what may lie between two cells.
_TRIALS = 8


class Between:
    """Explains the faults that lie between cells.

    Args:
        patient: both networks.
        again: runs MindSpore once more: ``again(suspects, edits)`` gives every fault of that run.
    """

    def __init__(self, patient: Patient, again: Callable[[Any, Any], list[Fault]]) -> None:
        self.patient, self.again = patient, again

    def diagnose(self, run: Run, fault: Fault) -> Diagnosis:
        """What lies between two cells, as far as the values tell."""
        last = run.at(fault.last)
        torch = [p for p in ((last.call.path if last and last.call else None), _path(fault.call)) if p is not None]
        ours = [p for p in (last.key[0] if last else None, fault.at[0] if fault.at else "") if p is not None]
        diagnosis = Diagnosis(
            fault.seen - 0.5, "between", "between", tuple(dict.fromkeys(torch)), tuple(dict.fromkeys(ours)),
            local=(fault.distance, fault.distance), fault=fault, fed=True,
        )  # fmt: skip
        expected, natural = self.patient.store.read(fault.expected), self.patient.store.read(fault.natural)
        window = run.seen[last.index if last else 0 : fault.seen]
        begin = last.call.index if last and last.call else -1
        end = fault.call.index if fault.call is not None else len(self.patient.calls)
        inner = [c for c in self.patient.calls if min(begin, end) < c.index < max(begin, end)]
        found: Explanation | None = None
        missing = self._leading(fault, [c for c in self.patient.calls if c.inputs and c.outputs])
        extra = self._extra(fault, run.seen[: fault.seen]) if missing is None else None
        if missing is not None:
            found = self._missing(diagnosis, missing)
        elif extra is not None:
            found = self._surplus(diagnosis, extra)
        elif (reduced := self._before_mean(fault, inner)) is not None:
            found = self._missing(diagnosis, reduced, whole=False)
        elif expected.shape == natural.shape:
            values = self._values_before(run, fault, window)
            found = explain(expected, natural, [fit_or(self.patient.store.read(v), expected) for v in values])
            if found is not None:
                diagnosis.value = values[found.value] if found.value is not None else None
                self._name(diagnosis, found, inner, window)
        if found is None:
            found = self._reduced(diagnosis, expected, natural, window)
        if found is None and (other := self.patient.origin(fault)) is not None:
            words = f"it gets what {other.path or 'the network'} gets or gives in PyTorch: another order"
            found = Explanation("order", words)
            diagnosis.torch = tuple(dict.fromkeys((*diagnosis.torch, other.path)))
        if found is not None:
            diagnosis.found, diagnosis.cause, diagnosis.note = found, found.cause, found.words
        elif expected.shape != natural.shape:
            diagnosis.note = f"{list(natural.shape)} here, {list(expected.shape)} in PyTorch"
        if not diagnosis.edits:
            self.patient.feed_input(diagnosis, fault)
        diagnosis.same = self._same(diagnosis)
        return diagnosis

    def _same(self, d: Diagnosis) -> tuple[Any, ...]:
        if d.found is not None and d.cause in ("activation", "gelu", "axis", "pooling"):
            return (d.kind, d.cause, d.note)
        return (d.kind, d.cause, d.note, tuple(words_of(p) for p in d.mindspore[:3]))

    def _name(self, diagnosis: Diagnosis, found: Explanation, inner: list[Call], window: Sequence[Seen]) -> None:
        """Add the modules and cells that do what an experiment found."""
        for layer, side in ((found.torch, "torch"), (found.mindspore, "mindspore")):
            if layer is None:
                continue
            if side == "torch":
                names = [c.path for c in inner if c.stateless and c.layer.kind == layer.kind]
                diagnosis.torch = tuple(dict.fromkeys((*diagnosis.torch, *names[:1])))
            else:
                names = [s.key[0] for s in window if s.call is None and s.layer.kind == layer.kind]
                diagnosis.mindspore = tuple(dict.fromkeys((*diagnosis.mindspore, *names[:1])))

    def _leading(self, fault: Fault, calls: Sequence[Call]) -> Call | None:
        """The PyTorch call that makes the right value of the one that comes to the cell."""
        expected, natural = self.patient.store.read(fault.expected), self.patient.store.read(fault.natural)
        found = []
        for call in calls:
            if call is fault.call or not may_be(call.outputs[0], fault.expected):
                continue
            if may_be(call.inputs[0], fault.natural) and call.inputs[0].statistics != call.outputs[0].statistics:
                a, b = (
                    fit(self.patient.store.read(k), v)
                    for k, v in ((call.inputs[0], natural), (call.outputs[0], expected))
                )
                if a is not None and b is not None and max(a[1], b[1]) < SAME:
                    found.append(call)
        return min(found, key=lambda c: (not c.stateless, not c.leaf, c.end - c.index), default=None)

    def _extra(self, fault: Fault, seen: Sequence[Seen]) -> Seen | None:
        """The MindSpore call that makes the wrong value of the right one."""
        expected, natural = self.patient.store.read(fault.expected), self.patient.store.read(fault.natural)
        for s in reversed(seen):
            if s.inputs and s.outputs and may_be(s.inputs[0], fault.expected) and may_be(s.outputs[0], fault.natural):
                a, b = (
                    fit(self.patient.store.read(k), v) for k, v in ((s.inputs[0], expected), (s.outputs[0], natural))
                )
                if a is not None and b is not None and max(a[1], b[1]) < SAME:
                    return s
        return None

    def _before_mean(self, fault: Fault, calls: Sequence[Call]) -> Call | None:
        """The PyTorch call whose input, averaged over some axes, came to the cell, instead of its output."""
        expected, natural = self.patient.store.read(fault.expected), self.patient.store.read(fault.natural)
        for call in calls:
            if not call.stateless or call.layer.family != "activation" or call.inputs[0].size <= fault.natural.size:
                continue
            given, made = (self.patient.store.read(k) for k in (call.inputs[0], call.outputs[0]))
            for axes in ((-1,), (1,), tuple(range(2, given.ndim)), tuple(range(1, given.ndim - 1))):
                if given.ndim < 3 or given.mean(axes).size != natural.size:
                    continue
                if max(_apart(given.mean(axes), natural), _apart(made.mean(axes), expected)) < SAME / 10:
                    return call
        return None

    def _reduced(
        self, diagnosis: Diagnosis, expected: Array, natural: Array, window: Sequence[Seen]
    ) -> Explanation | None:
        """What is taken along some axes on one side, or another way on the other."""
        fault = diagnosis.fault
        assert fault is not None
        values = dict.fromkeys(k for s in reversed(window) for k in (*s.outputs[:1], *s.inputs[:1]))
        told = reduced(expected, natural, [self.patient.store.read(k) for k in values])
        if told is None:
            return None
        found, way = told
        if way is not None and fault.at is not None and fault.place == "input":

            def function(tensor: Any) -> Any:
                made = way.function(self.patient.mindspore.array(tensor))
                return self.patient.tensor(made.reshape(expected.shape), tensor)

            diagnosis.edits, diagnosis.fed = {fault.at: self.patient.on_input(fault, function)}, False
            diagnosis.local = (diagnosis.local[0], 0.0)
        return found

    def _missing(self, diagnosis: Diagnosis, call: Call, whole: bool = True) -> Explanation:
        """Name what is missing, and where: after what gives the value that it gets in PyTorch."""
        torch, cells = self.patient.around(replace(call, outputs=()))
        at = [_path(diagnosis.fault.call)] if diagnosis.fault else []
        here = [diagnosis.fault.at[0] if diagnosis.fault.at else ""] if diagnosis.fault else []
        diagnosis.torch = tuple(dict.fromkeys((*(torch or diagnosis.torch[:1]), call.path, *at)))
        diagnosis.mindspore = tuple(dict.fromkeys((*(cells or diagnosis.mindspore[:1]), *here)))
        diagnosis.torch_class = call.name
        cause = {"activation": "activation", "softmax": "activation", "pool": "pooling"}.get(call.layer.family, "order")
        if cause == "order":
            partner = [cell for cell, paths in self.patient.pairs.items() if call.path in paths]
            diagnosis.mindspore = tuple(dict.fromkeys((*diagnosis.mindspore, *partner)))
            return Explanation("order", f"{call.name} does not come before it here", torch=call.layer)
        with contextlib.suppress(LookupError, TypeError, ValueError):
            function = self.patient.tools.function_of(call.layer)
            fault = diagnosis.fault
            if whole and fault is not None and fault.at is not None and fault.place == "input":
                diagnosis.edits, diagnosis.fed = {fault.at: self.patient.on_input(fault, function)}, False
                diagnosis.local = (diagnosis.local[0], 0.0)
        return Explanation(cause, f"{name_of(call.layer)} is missing here", torch=call.layer)

    def _surplus(self, diagnosis: Diagnosis, seen: Seen) -> Explanation:
        diagnosis.mindspore = tuple(dict.fromkeys((*diagnosis.mindspore, seen.key[0])))
        diagnosis.ms_class = seen.name
        cause = {"activation": "activation", "softmax": "activation", "pool": "pooling"}.get(seen.layer.family, "order")
        if seen.owns:
            cause = "order"
            if seen.call is not None:
                diagnosis.torch = tuple(dict.fromkeys((*diagnosis.torch, seen.call.path)))
        words = f"{seen.name if seen.owns else name_of(seen.layer)} comes before it here, not in PyTorch"
        return Explanation(cause, words, mindspore=seen.layer)

    def _values_before(self, run: Run, fault: Fault, window: Sequence[Seen]) -> list[Kept]:
        """The values that were there before a fault, the nearest first, each once."""
        values: dict[Kept, None] = {}
        for s in reversed(window):
            values.update(dict.fromkeys((*s.outputs[:1], *s.inputs[:1])))
        for s in reversed(run.seen[: fault.seen]):
            values.update((k, None) for k in (*s.outputs[:1], *s.inputs[:1]) if k.size == fault.expected.size)
            if len(values) >= _VALUES:
                break
        return [v for v in values if np.dtype(v.dtype).kind == "f" and v not in (fault.expected, fault.natural)]

    def trials(self, open_ones: Sequence[Diagnosis]) -> None:
        """Run again with something done differently between two cells, for all open faults at once."""
        plans = {id(d): self._hypotheses(d) for d in open_ones}
        for turn in range(min(_TRIALS, max(map(len, plans.values()), default=0))):
            chosen = [(d, plans[id(d)][turn]) for d in open_ones if d.found is None and turn < len(plans[id(d)])]
            edits = {key: edit for _, (key, edit, _, _) in chosen for key, edit in [(key, edit)]}
            if not edits:
                continue
            try:
                faults = self.again([d.fault.last for d in open_ones if d.fault], edits)
            except AutomapError:
                continue
            left = {(f.at, f.place): f.distance for f in faults}
            for d, (key, edit, found, names) in chosen:
                assert d.fault is not None
                after = left.get((d.fault.at, d.fault.place), 0.0)
                if after <= self.patient.enough(d.fault):
                    d.found, d.cause, d.note = found, found.cause, found.words
                    d.torch = tuple(dict.fromkeys((*d.torch, *names[0])))
                    d.mindspore = tuple(dict.fromkeys((*d.mindspore, *names[1])))
                    d.edits, d.fed, d.local = {key: edit}, False, (d.fault.distance, after)
                    d.same = self._same(d)

    def _hypotheses(self, d: Diagnosis) -> list[Any]:
        """What may be done differently before a fault: key, edit, what it would explain, and names for both sides."""
        fault, run = d.fault, self.patient.run
        assert fault is not None
        last = run.at(fault.last)
        window = run.seen[last.index if last else 0 : fault.seen]
        begin = last.call.index if last and last.call else -1
        end = fault.call.index if fault.call is not None else len(self.patient.calls)
        matched = {s.call.index for s in run.seen if s.call is not None}
        plans: list[Any] = []
        free = [c for c in self.patient.calls if begin <= c.index < end and c.stateless and c.index not in matched]
        # From a little earlier, too: a gate may be computed before the branch that it acts on.
        for call in free:
            source = next((s for s in reversed(run.seen[: fault.seen]) if self.patient.is_output(s, call)), None)
            if source is None:
                continue
            try:
                function = self.patient.tools.function_of(call.layer)
            except (LookupError, TypeError, ValueError):
                continue
            found = Explanation(
                "activation" if call.layer.family == "activation" else "operation",
                f"{name_of(call.layer)} is missing here",
                torch=call.layer,
            )
            plans.append((source.key, after(function), found, ((call.path,), (source.key[0],))))
        for s in window:
            if s.call is not None:
                continue
            for layer in _alternatives(s.layer, [c.layer for c in free]):
                try:
                    function = self.patient.tools.function_of(layer)
                except (LookupError, TypeError, ValueError):
                    continue
                cause = "axis" if layer.family == "softmax" else layer.family
                words = f"{name_of(s.layer)} here, {name_of(layer)} in PyTorch"
                edit: Edit = lambda proceed, args, kwargs, f=function: f(args[0])  # type: ignore[misc]  # noqa: E731
                plans.append((s.key, edit, Explanation(cause, words, layer, s.layer), ((), (s.key[0],))))
        return plans


def _apart(expected: Array, natural: Array) -> float:
    return distance(expected.reshape(natural.shape), natural)


def _path(call: Call | None) -> str:
    return "" if call is None else call.path


def _alternatives(layer: Layer, theirs: Sequence[Layer]) -> list[Layer]:
    """What a function without parameters may be in PyTorch: what is free there of its family, else what is usual."""
    found = [other for other in theirs if other.family == layer.family and other != layer]
    if layer.kind in ("softmax", "log_softmax"):
        found += [Layer(layer.kind, {"axis": a}) for a in (-1, 1, -2) if a != layer.settings.get("axis")]
    if layer.kind == "gelu":
        other = "none" if layer.settings.get("approximate") == "tanh" else "tanh"
        found.append(Layer("gelu", {"approximate": other}))
    if layer.family in ("activation", "dropout", "pool"):
        found.append(Layer("identity"))
    if layer.family == "activation":
        found += [Layer(k) for k in ("relu", "silu", "gelu") if k != layer.kind]
    return found
