"""The doctor for a PyTorch network of which only a trace is at hand: it compares outlines, and repairs to see.

Without PyTorch's values no cell can be fed, so what is wrong before a cell shows in it, too. What a trace does hold is
the settings of every layer, and fingerprints of what each got and gave: a setting that differs is repaired in memory,
and the outputs tell whether that was it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from automap import comparison
from automap.activations import Activations
from automap.consultation import Opinion, homes
from automap.diagnosis import Diagnosis, words_of
from automap.doctor import finding
from automap.dtypes import Array
from automap.errors import AutomapError, InputError
from automap.examination import Examination
from automap.experiments import name_of
from automap.findings import Finding, Kind
from automap.graph import Listing
from automap.outline import Pair, Step, homes_of, outlined, side_by_side
from automap.recording import Observed, distance
from automap.repairs import Tools, with_settings
from automap.running import Module
from automap.settings import Difference, differences
from automap.sightings import Edit, Key
from automap.tracing import apart
from automap.witness import Port, Testimony, Witness

#: Families whose members a port may leave out without being wrong.
_OPTIONAL = frozenset({"dropout"})
#: So many causes are told apart by leaving each of them unrepaired; of more, all stand.
_TOLD_APART = 8

_CAUSES = {"activation": "activation", "softmax": "activation", "pool": "pooling"}


@dataclass(frozen=True)
class Recording:
    """What a trace holds of a run that differs.

    Attributes:
        steps: PyTorch's outline.
        listing: of its parameters.
        modules: those that own parameters, by path.
        testimony: the run.
        same: fingerprints of equal values differ by at most this; None if the outline is that of another run.
    """

    steps: Sequence[Step]
    listing: Listing
    modules: Mapping[str, Module]
    testimony: Testimony
    same: float | None


def examine(recording: Recording, port: Port) -> Opinion:
    """Why a port differs from a recorded network, as far as settings and fingerprints tell."""
    from automap import mindspore_operations, mindspore_settings

    cells = [port.runner.object(path) for path in port.runner.modules]
    return _Doctor(
        recording, port, mindspore_settings, lambda observe: mindspore_operations.observed(observe, cells)
    ).opinion()


def of_a_refusal(witness: Witness, testimony: Testimony, port: Port) -> Opinion | None:
    """Why a port raises an error on what PyTorch takes; None where PyTorch's side has no outline."""
    steps = witness.outline()
    if not steps:
        return None
    return examine(Recording(steps, witness.listing, witness.account().trace.modules, testimony, None), port)


def refused(error: InputError, opinion: Opinion | None) -> InputError:
    """The error for a port that does not run, with what is known about it."""
    words = f"{error} (PyTorch takes them)"
    if opinion is not None and opinion.findings:
        words += f"; {'; '.join(f.words for f in opinion.findings)}"
    return InputError(words, error.text)


class _Doctor:
    """One examination."""

    def __init__(self, recording: Recording, port: Port, tools: Tools, observed: Observed) -> None:
        self.recording, self.port, self.tools, self.observed = recording, port, tools, observed
        self.outputs, self.inputs = recording.testimony.outputs, recording.testimony.inputs
        self.failed: Step | None = None  # the innermost call that raised an error
        #: By the identity of a diagnosis: the places where what is missing may be put.
        self.ways: dict[int, list[tuple[Key, Edit]]] = {}
        #: By the identity of a diagnosis: the call in both networks, and what differs there.
        self.settings: dict[int, tuple[Step, Step, Difference]] = {}
        relative = (c.allowed / c.scale for c in port.comparisons if c.scale)
        self.allowed = max(relative, default=comparison.TOLERANCE["float32"])

    def opinion(self) -> Opinion:
        runner, forward = self.port.runner, self.port.forward
        try:
            with runner.holding(self.port.made):
                steps = outlined(runner, self.tools.read, self.observed, self.inputs, forward)
                self.failed = next((s for s in reversed(steps) if s.failed), None)
                found = homes_of(
                    homes(self.port.mapping, self.recording.listing), self.recording.modules, runner.modules
                )
                pairs = side_by_side(self.recording.steps, steps, found)
                if self.failed is not None:  # what would have come after it is not missing
                    last = max((i for i, p in enumerate(pairs) if p.mindspore is not None), default=-1)
                    pairs = pairs[: last + 1]
                return self._concluded(pairs)
        except AutomapError as error:
            return Opinion((), "", 1, (f"the layers could not be examined: {error}",))

    # -- what differs --------------------------------------------------------------------------------------------------

    def _concluded(self, pairs: Sequence[Pair]) -> Opinion:
        groups: dict[tuple[Any, ...], list[Diagnosis]] = {}
        for rank, pair in enumerate(pairs):
            for d in self._diagnoses(pair, float(rank)):
                groups.setdefault(d.same, []).append(d)
        training = {same: group for same, group in groups.items() if group[0].kind == "training"}
        causes = {same: group for same, group in groups.items() if group[0].kind != "training" and group[0].edits}
        errors, repaired = self._repaired(causes)
        findings = [finding(causes[same], error) for same, error in errors.items()]
        clear = bool(findings) and repaired <= self.allowed
        if not clear and self.failed is not None:
            findings.append(self._raised(pairs, self.failed))
        elif not clear:
            # Nothing proves these, but they are what differs.
            findings += [
                finding(g, None) for same, g in causes.items() if g[0].kind == "between" and same not in errors
            ]
            strange = self._first_apart(pairs, [p for f in findings for p in f.mindspore])
            findings += [] if strange is None else [strange]
        findings += [finding(group, None) for group in training.values()]
        return Opinion(tuple(findings), "", 3 if clear else 1, repaired=repaired if errors else None)

    def _raised(self, pairs: Sequence[Pair], failed: Step) -> Finding:
        """Where an error is raised."""
        theirs = next((p.torch for p in pairs if p.mindspore == failed), None)
        d = Diagnosis(
            float(len(pairs)), "operation", "raises", (theirs.path,) if theirs is not None else (), (failed.path,),
            theirs.name if theirs is not None else "nothing", failed.name, note="it raises an error here", fed=True,
        )  # fmt: skip
        return finding([d], None)

    def _diagnoses(self, pair: Pair, rank: float) -> list[Diagnosis]:
        theirs, ours = pair.torch, pair.mindspore
        if theirs is not None and ours is not None:
            found = differences(theirs.layer, ours.layer, ours.shape)
            if ours.layer.family in _OPTIONAL and ours.layer.settings.get("training"):
                return [self._dropping(pair, theirs, ours, rank)]
            return [self._setting(pair, theirs, ours, x, rank) for x in found]
        step = theirs or ours
        if step is None or step.owns or step.layer.family in _OPTIONAL or step.layer.family not in _CAUSES:
            return []
        return [d for d in [self._between(pair, step, rank)] if d.edits]

    def _setting(self, pair: Pair, theirs: Step, ours: Step, found: Difference, rank: float) -> Diagnosis:
        kind: Kind = "training" if found.training else "operation" if found.setting == "kind" else "setting"
        values = () if found.setting == "padding" else (str(found.torch), str(found.mindspore))
        d = Diagnosis(
            rank, kind, found.cause, *_where(pair, theirs, ours), theirs.name, ours.name, found.setting, found.torch,
            found.mindspore, same=(kind, found.cause, found.setting, theirs.layer.kind, *values),
        )  # fmt: skip
        if not found.training:
            edit = self._with(theirs, ours, [found])
            d.edits = {} if edit is None else {_key(ours): edit}
            self.settings[id(d)] = theirs, ours, found
        return d

    def _with(self, theirs: Step, ours: Step, found: Sequence[Difference]) -> Edit | None:
        cell = None if ours.function else self.port.runner.object(ours.path)
        return with_settings(
            self.tools, cell, theirs.layer, ours.layer, found, lambda has: self._bias(theirs, cell, has)
        )

    def _bias(self, theirs: Step, cell: Any, has: bool) -> Array | None:
        if not has:
            own = getattr(cell, "bias", None)
            return None if own is None else -self.port.runner.array(own)
        module = self.recording.modules.get(theirs.path)
        name = dict(module.own).get("bias") if module is not None else None
        return None if name is None else np.array(self.recording.testimony.value(name))

    def _dropping(self, pair: Pair, theirs: Step, ours: Step, rank: float) -> Diagnosis:
        return Diagnosis(
            rank, "operation", "dropout", *_where(pair, theirs, ours), theirs.name, ours.name,
            edits={_key(ours): lambda proceed, args, kwargs: args[0]}, note="it drops in inference here",
            same=("dropout",),
        )  # fmt: skip

    def _between(self, pair: Pair, step: Step, rank: float) -> Diagnosis:
        """A function or a layer without parameters that one side has and the other has not."""
        (theirs, ours), (theirs_next, ours_next) = pair.before, pair.after
        d = Diagnosis(
            rank, "between", _CAUSES[step.layer.family],
            tuple(dict.fromkeys(s.path for s in (theirs, pair.torch, theirs_next) if s is not None)),
            tuple(dict.fromkeys(s.path for s in (ours, pair.mindspore, ours_next) if s is not None)),
        )  # fmt: skip
        if pair.torch is None:
            d.ms_class, d.note = step.name, f"there is {name_of(step.layer)} here, which PyTorch has not"
            d.edits = {_key(step): lambda proceed, args, kwargs: args[0]}
        else:
            d.torch_class, d.note = step.name, f"{name_of(step.layer)} is missing here"
            try:
                function = self.tools.function_of(step.layer)
            except (LookupError, TypeError, ValueError):
                return d
            ways: list[tuple[Key, Edit]] = []
            if ours is not None:
                ways.append((_key(ours), lambda proceed, args, kwargs: function(proceed(*args, **kwargs))))
            if ours_next is not None:
                ways.append(
                    (_key(ours_next), lambda proceed, args, kwargs: proceed(function(args[0]), *args[1:], **kwargs))
                )
            d.edits, self.ways[id(d)] = dict(ways[:1]), ways
        d.same = (d.kind, d.cause, d.note, tuple(map(words_of, d.mindspore[:1])))
        return d

    # -- what it does to the outputs -----------------------------------------------------------------------------------

    def _repaired(
        self, causes: Mapping[tuple[Any, ...], list[Diagnosis]]
    ) -> tuple[dict[tuple[Any, ...], tuple[float, float]], float]:
        """For each cause that counts the error before and after its repair, one after another; and the error at last.

        Where everything together helps, what changes nothing when it is left out is no cause; where it does not, what
        makes it worse is none.
        """
        error = start = self._error(())
        if not causes:
            return {}, start
        chosen = list(causes)
        self._placed(causes)
        after = self._error([d for same in chosen for d in causes[same]])
        if after <= self.allowed and 1 < len(chosen) <= _TOLD_APART:
            for same in list(chosen):
                rest = [d for other in chosen if other != same for d in causes[other]]
                if causes[same][0].setting != "eps" and self._error(rest) <= max(3 * after, after + 1e-7):
                    chosen.remove(same)
        errors: dict[tuple[Any, ...], tuple[float, float]] = {}
        taken: list[Diagnosis] = []
        for same in chosen:
            now = self._error([*taken, *causes[same]])
            if after > self.allowed and not now < error:
                continue
            errors[same] = error, now
            taken += causes[same]
            error = now
        return errors, error

    def _placed(self, causes: Mapping[tuple[Any, ...], list[Diagnosis]]) -> None:
        """Put what is missing where it helps most."""
        every = [d for group in causes.values() for d in group]
        for group in causes.values():
            tried = []
            for way in range(min(len(self.ways.get(id(d), ())) for d in group)):
                for d in group:
                    d.edits = dict([self.ways[id(d)][way]])
                tried.append((self._error(every), way))
            for d in group if len(tried) > 1 else ():
                d.edits = dict([self.ways[id(d)][min(tried)[1]]])

    def _error(self, repaired: Sequence[Diagnosis]) -> float:
        """The error of the outputs with these repairs, relative to their scale; infinite where the form differs."""
        edits: dict[Any, Edit] = {}
        together: dict[Key, tuple[Step, Step, list[Difference]]] = {}
        for d in repaired:
            if id(d) in self.settings:
                theirs, ours, found = self.settings[id(d)]
                together.setdefault(_key(ours), (theirs, ours, []))[2].append(found)
            for key, edit in d.edits.items():
                edits[key] = _both(edits[key], edit) if key in edits else edit
        for key, (theirs, ours, several) in together.items():
            # Settings of one layer that go together are changed together, where there is a way.
            whole = self._with(theirs, ours, several) if len(several) > 1 else None
            if whole is not None:
                edits[key] = whole
        try:
            outputs = self._plain(edits)
        except AutomapError:
            return math.inf
        pairing = comparison.pair(self.outputs, outputs)
        if pairing.problems:
            return math.inf
        return max((distance(a, b) for _, a, b in pairing.pairs if a.dtype.kind == "f"), default=0.0)

    def _plain(self, edits: Mapping[Any, Edit]) -> Any:
        with Activations() as store:
            runner = self.port.runner
            examination = Examination(runner, self.tools.read, self.observed, (), {}, store, 0.0, self.tools.overwrite)
            return examination.plain(self.inputs, self.port.forward, edits)

    # -- what nothing explains -----------------------------------------------------------------------------------------

    def _first_apart(self, pairs: Sequence[Pair], named: Sequence[str]) -> Finding | None:
        """The first layer that gives something else, or the first two between which something else is done."""
        same = self.recording.same
        if same is None:
            return None
        last: Pair | None = None
        for rank, pair in enumerate(pairs):
            if pair.torch is None or pair.mindspore is None:
                continue
            before, after = (
                apart(getattr(pair.torch, side), getattr(pair.mindspore, side)) for side in ("inputs", "outputs")
            )
            theirs, ours = pair.torch, pair.mindspore
            if math.isfinite(before) and before > same:
                if ours.path in named or (last is not None and last.mindspore and last.mindspore.path in named):
                    return None
                paths = [
                    tuple(dict.fromkeys(s.path for s in (one, two) if s is not None))
                    for one, two in (
                        (last.torch if last else None, theirs),
                        (last.mindspore if last else None, ours),
                    )
                ]
                d = Diagnosis(float(rank), "between", "between", paths[0], paths[1], local=(before, before), fed=True)
                return finding([d], None)
            if math.isfinite(after) and after > same:
                if ours.path in named:
                    return None
                d = Diagnosis(
                    float(rank), "operation", "operation", (theirs.path,), (ours.path,), theirs.name, ours.name,
                    local=(after, after), fed=True,
                )  # fmt: skip
                return finding([d], None)
            last = pair
        return None


def _where(pair: Pair, theirs: Step, ours: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths of two calls; of a function also that of the layer before it."""
    found = []
    for step, before in zip((theirs, ours), pair.near, strict=True):
        near = [before.path] if step.function and before is not None else []
        found.append(tuple(dict.fromkeys((step.path, *near))))
    return found[0], found[1]


def _key(step: Step) -> Key:
    return step.path, step.name if step.function else "", step.turn


def _both(first: Edit, second: Edit) -> Edit:
    """Two repairs of one call: the one runs what the other makes of it."""
    return lambda proceed, args, kwargs: second(lambda *a, **k: first(proceed, a, k), args, kwargs)
