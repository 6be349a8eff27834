"""The doctor: finds every fault of a port in one go, names its cause, and proves it by a repair in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from automap import comparison
from automap.between import Between
from automap.diagnosis import Diagnosis, Patient
from automap.dtypes import Array
from automap.errors import AutomapError
from automap.examination import Examination
from automap.findings import Finding, effect, places
from automap.inside import Inside
from automap.orders import exchanges, join, swaps
from automap.recording import distance, fit, record
from automap.running import Forward, Inputs
from automap.settings import SETTINGS, show
from automap.sightings import Edit, Fault, Key, Run

#: How often the network is run again for another order of cells.
_ORDERS = 4


class Doctor:
    """Examines one port.

    Attributes:
        error: of the outputs without a repair, relative to their scale.
        repaired_error: with all repairs.
        unclear: a sentence for every cell whose fault is not explained, so that its weights may be wrong.
    """

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self.diagnoses: list[Diagnosis] = []
        self.error = self.repaired_error = 0.0
        self.unclear: list[str] = []

    def examine(
        self, inputs: Inputs, torch_forward: Forward | None = None, ms_forward: Forward | None = None
    ) -> tuple[Finding, ...]:
        """All faults of the port, in the order of execution."""
        patient = self.patient
        patient.inputs, patient.ms_forward = inputs, ms_forward
        with patient.store:
            patient.calls, patient.expected = record(
                patient.torch, patient.torch_read, patient.torch_observed, inputs, torch_forward, patient.store
            )
            patient.fold_norms()
            with patient.values_kept():
                self._collect()
            return self._proven()

    def _collect(self) -> None:
        patient = self.patient
        moved = self._orders()
        open_ones, suspects = self._look_closer()
        unclear = [d for d in open_ones if d.found is None or d.cause == "order"]
        unclear += [d for d in self.diagnoses if d.cause == "order" and d.near is not None]
        if unclear:
            faults = [d.fault for d in unclear if d.fault is not None]
            if exchanged := exchanges(patient, faults, lambda: self._again(suspects, {})):
                moved += exchanged
                self._run()
                open_ones, _ = self._look_closer()
        self.diagnoses += moved + open_ones
        for d in self.diagnoses:
            if d.near is not None:
                theirs, cells = patient.around(d.near)
                d.torch = tuple(dict.fromkeys((*d.torch, *theirs)))
                d.mindspore = tuple(dict.fromkeys((*d.mindspore, *cells)))
        self.diagnoses = [d for d in join(self.diagnoses) if self._counts(d)]

    def _look_closer(self) -> tuple[list[Diagnosis], list[Key | None]]:
        """Explain what lies between cells, if anything does: what has no parameters is now compared there, too."""
        patient = self.patient
        faults = self._between_faults(patient.run)
        suspects = [_anchor(patient.run, f) for f in faults]
        if not faults:
            return [], []
        self._run(suspects)
        helper = Between(patient, self._again)
        open_ones = [helper.diagnose(patient.run, f) for f in self._between_faults(patient.run)]
        helper.trials([d for d in open_ones if d.found is None])
        return open_ones, suspects

    def _between_faults(self, run: Run) -> list[Fault]:
        return [f for f in self._all_faults(run) if not f.inside and f.distance > self.patient.small]

    def _orders(self) -> list[Diagnosis]:
        """Runs MindSpore, and again while cells are found that get what another module gets in PyTorch."""
        found: list[Diagnosis] = []
        for _ in range(_ORDERS):
            self._run()
            moved = swaps(self.patient, self.patient.run)
            if not moved:
                break
            found += moved
        return found

    def _run(self, suspects: Sequence[Key | None] = ()) -> None:
        inside = Inside(self.patient)
        patient = self.patient
        patient.run = Run()
        patient.run = self._examination().run(patient.inputs, patient.ms_forward, None, suspects, inside.inspect)
        self.diagnoses = inside.diagnoses

    def _again(self, suspects: Sequence[Key | None], edits: Any) -> list[Fault]:
        patient = self.patient
        return self._all_faults(self._examination().run(patient.inputs, patient.ms_forward, edits, suspects))

    def _examination(self) -> Examination:
        p = self.patient
        return Examination(
            p.mindspore, p.tools.read, p.ms_observed, p.calls, p.pairs, p.store, p.small, p.tools.overwrite
        )

    def _all_faults(self, run: Run) -> list[Fault]:
        """The faults of a run, with those of the network's own outputs at the end."""
        faults = list(run.faults)
        last = next((s.key for s in reversed(run.seen) if s.call is not None), None)
        for _, a, b in comparison.pair(self.patient.expected, run.outputs).pairs:
            fitted = fit(a, b)
            apart = float("inf") if fitted is None else fitted[1]
            if apart > self.patient.small and a.dtype.kind == "f":
                shown = a if fitted is None else fitted[0]
                keep = self.patient.store.keep
                faults.append(
                    Fault(None, "input", None, apart, keep(shown), keep(b), 0, last, len(run.seen), inside=False)
                )
        return faults

    def _counts(self, d: Diagnosis) -> bool:
        """Whether it is more than noise."""
        if d.kind == "training" or d.setting == "eps":
            return True
        explained = d.found is not None or d.kind == "setting" or d.setting == "kind"
        return d.local[0] > (self.patient.small if explained else self.patient.great)

    # -- findings ------------------------------------------------------------------------------------------------------

    def _proven(self) -> tuple[Finding, ...]:
        """One finding for each cause, with the error of the outputs before and after its repair."""
        groups: dict[tuple[Any, ...], list[Diagnosis]] = {}
        for d in sorted(self.diagnoses, key=lambda d: d.rank):
            groups.setdefault(d.same, []).append(d)
        errors: dict[tuple[Any, ...], tuple[float, float]] = {}
        repaired = [same for same, group in groups.items() if any(d.edits or d.values for d in group)]
        # What is wrong by the most is repaired first: the rest would not show beside it.
        # What can only be fed comes last: it may be what the others bring about.
        repaired.sort(
            key=lambda same: (
                groups[same][0].fed,
                groups[same][0].found is None and groups[same][0].fed,
                -max(d.local[0] for d in groups[same]),
            )
        )
        edits: dict[Any, Edit] = {}
        values: dict[str, Array] = {}
        self.error = before = self._error({}, {})
        for same in repaired:
            if groups[same][0].kind == "training":
                continue
            for d in groups[same]:
                for key, edit in d.edits.items():
                    edits[key] = _both(edits[key], edit) if key in edits else edit
                values |= d.values
            after = self._error(edits, values)
            errors[same] = (before, after)
            before = after
        self.repaired_error = before
        self.unclear = [
            f"{places(d.mindspore[:1])} gives another result than {places(d.torch[:1])} with equal settings"
            for group in groups.values()
            for d in group
            if d.kind == "operation" and d.found is None and d.setting != "kind"
        ]
        # What is not explained and changes nothing once the rest is repaired was brought about by the rest.
        floor = max(self.patient.small, 3 * before) if before <= self.patient.great else 0.0
        return tuple(
            finding(group, errors.get(same))
            for same, group in groups.items()
            if not (group[0].found is None and group[0].fed and same in errors and errors[same][0] <= floor)
        )

    def _error(self, edits: Mapping[Any, Edit], values: Mapping[str, Array]) -> float:
        """The error of the network's outputs with these repairs, relative to their scale."""
        with self.patient.values_kept():
            self.patient.put(values)
            try:
                outputs = self._examination().plain(self.patient.inputs, self.patient.ms_forward, edits)
            except AutomapError:
                return float("inf")
        pairing = comparison.pair(self.patient.expected, outputs)
        if pairing.problems:
            return float("inf")
        return max((distance(a, b) for _, a, b in pairing.pairs if a.dtype.kind == "f"), default=0.0)


def finding(group: Sequence[Diagnosis], error: tuple[float, float] | None) -> Finding:
    """What a group of diagnoses of one cause comes to, with the error of the outputs before and after its repair."""
    first = group[0]
    torch = tuple(dict.fromkeys(p for d in group for p in d.torch))
    ours = tuple(dict.fromkeys(p for d in group for p in d.mindspore))
    before, after = error or (None, None)
    torch_value = ", ".join(dict.fromkeys(show(first.setting, d.torch_value) for d in group))
    ms_value = ", ".join(dict.fromkeys(show(first.setting, d.ms_value) for d in group))
    lowered = before is not None and after is not None and after < before
    local = all(d.local[1] < d.local[0] for d in group)
    words = _words(first, group, torch, ours, torch_value, ms_value) + effect(before, after)
    if first.setting not in SETTINGS:
        torch_value = ms_value = ""
    return Finding(
        first.kind, first.cause, torch, ours, first.torch_class, first.ms_class, first.setting or first.cause,
        torch_value, ms_value, before, after, (lowered or local) and not first.fed, len(group), words,
    )  # fmt: skip


def _words(
    d: Diagnosis,
    group: Sequence[Diagnosis],
    torch: Sequence[str],
    ours: Sequence[str],
    torch_value: str,
    ms_value: str,
) -> str:
    count = f", {len(group)} layers" if len(group) > 1 else ""
    where = places(ours)
    if d.setting == "kind":
        return f"{where}: {ms_value.replace('_', ' ')} here, {torch_value.replace('_', ' ')} in torch{count}"
    if d.setting in SETTINGS:
        name = SETTINGS[d.setting].words
        return f"{d.ms_class} {name} {ms_value} here, {torch_value} in torch{count} ({where})"
    if d.kind == "operation":
        what = d.note or "the settings are the same, the result is not"
        return f"{where} ({d.ms_class}; {d.torch_class} in torch): {what}{count}"
    if d.kind == "mapping" or d.cause == "transpose":
        return f"{where}: {d.note}{count} (torch: {places(torch)})"
    what = d.note or "something differs"
    return f"between {' and '.join(p or 'the network' for p in d.mindspore[:2])}: {what}{count}"


def _anchor(run: Run, fault: Fault) -> Key | None:
    return next((s.key for s in reversed(run.seen[: fault.seen]) if s.call is not None and s.owns), None)


def _both(first: Edit, second: Edit) -> Edit:
    """Two repairs of one cell: the one runs what the other makes of it."""
    return lambda proceed, args, kwargs: second(lambda *a, **k: first(proceed, a, k), args, kwargs)
