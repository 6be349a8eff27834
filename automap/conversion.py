"""Conversion: a mapping carried out on tensors. Every check comes before the first tensor is handed out or written.

``apply`` turns a state dict into another, ``load`` puts it into a network and looks whether it arrived, ``convert``
does it with files.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from automap import sources, transforms
from automap.dtypes import (
    Array,
    cast,
    dtype_name,
    is_exact,
    is_float,
    is_same,
    is_zero,
    nans,
    parse_dtype,
    widen,
)
from automap.errors import ConversionError, MappingError, SourceError, TransformError
from automap.files import replacing
from automap.fitting import Fitter, MisfitError, Wishes
from automap.graph import Framework, Listing, Param, Shape
from automap.mapping import Entry, Mapping
from automap.sources import Source
from automap.specs import framework_of, is_model
from automap.transforms import Transform

#: What a mapping can be given as: the value, its file, or PyTorch names to MindSpore names.
AnyMapping = Mapping | str | os.PathLike[str] | Dict[str, str | None]

#: Which parameters something is done to: True for those that it is meant for, or patterns of names.
Names = bool | str | Sequence[str]

_TITLES: dict[Framework, str] = {"torch": "PyTorch", "mindspore": "MindSpore"}


@dataclass
class ConversionReport:
    """What a conversion changed and left out. ``apply`` fills in the one it is given.

    Attributes:
        casts: the dtype before and after, by the name of the new parameter, where they differ.
        overflow: how many finite values the new dtype could not reach, by name.
        underflow: how many values became zero in the new dtype, by name.
        reshaped: new parameters that the mapping only renames, and that took the target's shape because the two differ
            in dimensions of size 1 alone.
        fitted: what else was done to new parameters so that they fit the target, by name: interpolated, filled up ...
        left_out: tensors of the state dict that the new one lacks, with the reason.
        not_made: parameters of the other side that nothing was made for, with the reason.
        prefix: what was taken from the front of every name of the state dict, and what was put there instead.
    """

    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    overflow: dict[str, int] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    reshaped: list[str] = field(default_factory=list)
    fitted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    not_made: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        parts = [f"{n} cast {old} -> {new}" for (old, new), n in sorted(Counter(self.casts.values()).items())]
        for lost, what in ((self.overflow, "out of the range of"), (self.underflow, "turned to zero in")):
            if lost:
                names = ", ".join(f"{name} ({n})" for name, n in lost.items())
                parts.append(f"{sum(lost.values())} value(s) {what} the new dtype: {names}")
        if self.reshaped:
            parts.append(f"{len(self.reshaped)} reshaped by dimensions of size 1")
        if self.fitted:
            names = ", ".join(f"{name} ({what})" for name, what in self.fitted.items())
            parts.append(f"{len(self.fitted)} fitted to the target: {names}")
        if self.left_out:
            parts.append(f"{len(self.left_out)} left out")
        if any(self.prefix):
            parts.append("prefix {!r} read as {!r}".format(*self.prefix))
        return "; ".join(parts) or "only names changed"


@dataclass(frozen=True)
class LoadReport:
    """What ``load`` did to a network.

    Attributes:
        loaded: the parameters that now hold the values of the state dict; they were read back and compared.
        left: the network's other parameters, which keep their values, with the reason.
        conversion: what happened on the way.
    """

    loaded: tuple[str, ...]
    left: dict[str, str]
    conversion: ConversionReport

    @property
    def casts(self) -> dict[str, tuple[str, str]]:
        """The dtype before and after, by name, where they differ."""
        return self.conversion.casts

    def __str__(self) -> str:
        text = f"loaded {len(self.loaded)} of {len(self.loaded) + len(self.left)} parameters; {self.conversion}"
        if self.left:
            left = ", ".join(f"{name} ({why})" for name, why in self.left.items())
            text += f"; left at their initial values: {left}"
        return text


@dataclass(frozen=True)
class ConvertReport:
    """What ``convert`` wrote.

    Attributes:
        output: the file.
        tensors: how many tensors are in it; each was read back and compared.
        bytes: the size of the file.
        needs_review: whether the mapping has something that a person has to look at.
        conversion: what happened on the way.
    """

    output: str
    tensors: int
    bytes: int
    needs_review: bool
    conversion: ConversionReport

    def __str__(self) -> str:
        return f"{self.output}: {self.tensors} tensors, {self.bytes:,} bytes, read back and equal; {self.conversion}"


def apply(
    mapping: AnyMapping,
    state_dict: Any,
    *,
    reverse: bool = False,
    framework: str | None = None,
    target: Any = None,
    dtype: object = None,
    allow_nan: bool = False,
    allow_overflow: bool = False,
    resize: Names = False,
    pad_vocab: float | Dict[str, float] | None = None,
    cut_vocab: Names = False,
    report: ConversionReport | None = None,
) -> dict[str, Any]:
    """Convert a state dict.

    Args:
        mapping: a mapping, its file, or a dict of PyTorch names to MindSpore names (None: left out on purpose).
        state_dict: tensors by name, of either framework or NumPy; or a model or checkpoint that has them. A prefix
            that all its names carry, such as ``module.``, and the mapping's do not (or the other way) is no matter.
        reverse: go against the direction of the mapping: for one as ``infer`` makes it, from MindSpore to PyTorch.
        framework: whose tensors to make: ``"mindspore"`` (each a ``Parameter``), ``"torch"``, or ``"numpy"``; by
            default those of the framework whose names come out. NumPy has no bfloat16: it comes as float32, which is
            exact. NumPy arrays are views of the state dict's memory where nothing had to change.
        target: what the result has to fit, checked before anything is made: a ``Listing``, a model, a checkpoint, or
            a dict of names to ``(shape, dtype)``, either of them None where it does not matter. A tensor is cast to
            its dtype there. The target's names may all carry a prefix, too.
        dtype: the dtype of every floating-point tensor made, whatever the target's.
        allow_nan: let tensors pass that hold NaN.
        allow_overflow: let finite values pass that are out of the range of their new dtype.
        resize: interpolate tables of positions whose length differs from the target's: True for those whose names say
            that they are some, or patterns of names, such as ``"*.place.weight"``, with the grid where the sizes leave
            it open: ``"pos=1+16x16:32x32"``. Without it, another length is an error.
        pad_vocab: the value to fill new rows with where the target's vocabulary is longer, or patterns of names with a
            value each. Without it, another length is an error.
        cut_vocab: True, or patterns of names: drop the last rows where the target's vocabulary is shorter.
        report: filled in with what was changed. Without one, a loss that nobody asked for is warned about.

    Returns:
        The new tensors by name, in the order of the mapping; PyTorch's also under the other names of tied weights.

    Raises:
        ConversionError: at least one tensor is absent, unknown to the mapping, without a counterpart, of a shape that
            cannot be reached, not a number, or out of range; every one of them is named.
        MappingError: the mapping cannot be read, or cannot be reversed.
    """
    filled = ConversionReport() if report is None else report
    wishes = Wishes.of(resize, pad_vocab, cut_vocab)
    job = _Job(mapping, reverse, target, dtype, allow_nan, allow_overflow, filled, wishes)
    if framework not in (None, "numpy", *_TITLES):
        raise ConversionError(f"there is no framework {framework!r}: there are mindspore, torch and numpy")
    arrays = job.run(_open(state_dict, job.mapping.given))
    out: dict[str, Any] = {}
    framework = framework or job.mapping.made
    if framework == "numpy":
        for name, array in arrays.items():
            out[name] = widen(array)
            if out[name] is not array:
                filled.casts.setdefault(name, ("bfloat16", "float32"))
    else:
        parameter = _edge("torch" if framework == "torch" else "mindspore").parameter
        out = {name: parameter(array, name) for name, array in arrays.items()}
    rounded = (old for old, new in filled.casts.values() if not is_exact(old, new))
    unasked = dtype is None and any(map(is_float, rounded))
    if report is None and (unasked or filled.overflow or filled.underflow):
        warnings.warn(f"apply: {filled} (give report=ConversionReport() to have this as a value)", stacklevel=2)
    return out


def load(
    mapping: AnyMapping,
    state_dict: Any,
    net: Any,
    *,
    allow_nan: bool = False,
    allow_overflow: bool = False,
    resize: Names = False,
    pad_vocab: float | Dict[str, float] | None = None,
    cut_vocab: Names = False,
) -> LoadReport:
    """Convert a state dict, load it into a network, and look whether every parameter arrived.

    Args:
        mapping: as for ``apply``; its direction does not matter, the network's framework decides.
        state_dict: as for ``apply``.
        net: a MindSpore ``Cell``, or a PyTorch ``Module`` to go back.
        allow_nan: as for ``apply``.
        allow_overflow: as for ``apply``; a tensor is cast to the dtype it has in the network.
        resize: as for ``apply``; so are the next two.
        pad_vocab: how to fill a longer vocabulary.
        cut_vocab: what may be cut.

    Raises:
        ConversionError: as for ``apply``, or a parameter did not arrive; in the former case the network is untouched.
        MappingError: the mapping cannot be read, or not be reversed.
    """
    framework = framework_of(net)
    if framework is None or not is_model(net):
        raise ConversionError(f"the network is a {type(net).__name__}: give a mindspore.nn.Cell or a torch.nn.Module")
    mapping, filled = _mapping(mapping), ConversionReport()
    wishes = Wishes.of(resize, pad_vocab, cut_vocab)
    job = _Job(mapping, mapping.made != framework, net, None, allow_nan, allow_overflow, filled, wishes)
    arrays = job.run(_open(state_dict, job.mapping.given))
    edge = _edge(framework)
    edge.load_state(net, arrays)
    # What the frameworks return is not proof: MindSpore only logs what it did not load.
    held = edge.state_of(net)
    failed = [name for name, array in arrays.items() if not _arrived(array, held.get(name))]
    if failed:
        raise ConversionError(
            f"{len(failed)} of {len(arrays)} parameters did not arrive in the network: {', '.join(failed)}: "
            "load before the network is wrapped, compiled or run, which can rename its parameters",
            [f"{name}: did not arrive in the network" for name in failed],
        )
    return LoadReport(tuple(arrays), filled.not_made, filled)


def convert(
    mapping: AnyMapping,
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    reverse: bool = False,
    dtype: object = None,
    target: Any = None,
    allow_nan: bool = False,
    allow_overflow: bool = False,
    resize: Names = False,
    pad_vocab: float | Dict[str, float] | None = None,
    cut_vocab: Names = False,
) -> ConvertReport:
    """Convert a checkpoint file. The output is written beside its place, read back, compared, and only then put there.

    Args:
        mapping: as for ``apply``.
        checkpoint: the file to convert.
        output: the file to write; its ending says in which format.
        reverse: as for ``apply``.
        dtype: as for ``apply``.
        target: as for ``apply``.
        allow_nan: as for ``apply``.
        allow_overflow: as for ``apply``.
        resize: as for ``apply``; so are the next two.
        pad_vocab: how to fill a longer vocabulary.
        cut_vocab: what may be cut.

    Raises:
        ConversionError: as for ``apply``, or the output is not what was written. There is no output then.
        MappingError: the mapping cannot be read, or cannot be reversed.
        SourceError: the checkpoint cannot be read, or the output not be written.
    """
    where, filled = Path(output), ConversionReport()
    if where.exists() and os.path.exists(checkpoint) and where.samefile(checkpoint):
        raise ConversionError(f"{output}: the output is the checkpoint itself: give it another name")
    wishes = Wishes.of(resize, pad_vocab, cut_vocab)
    job = _Job(mapping, reverse, target, dtype, allow_nan, allow_overflow, filled, wishes)
    arrays = job.run(_open(os.fspath(checkpoint), job.mapping.given))
    with replacing(where) as part:
        sources.write_tensors(part, arrays, job.mapping.made)
        held = sources.open_source(part, job.mapping.made).read()
        failed = [n for n in arrays.keys() | held.keys() if n not in arrays or not _arrived(arrays[n], held.get(n))]
        if failed:
            raise ConversionError(
                f"{output}: {len(failed)} tensor(s) read back are not what was written: {', '.join(sorted(failed))}: "
                "check the disk, or choose another format (.safetensors)",
                [f"{name}: not what was written" for name in sorted(failed)],
            )
        size = part.stat().st_size
    return ConvertReport(os.fspath(output), len(arrays), size, job.mapping.needs_review, filled)


# -- one conversion -----------------------------------------------------------------------------------------------

#: What can be wrong with a tensor, and what to do about it.
_FAULTS = {
    "absent from it": "is it a checkpoint of this model?",
    "in it but not in the mapping": 'match each in the mapping, or list it under "unmatched" with the reason',
    "not zero and without a counterpart": 'match each, or remove its "review" from the mapping if it can be dropped',
    "another name of a tied weight with other values": "match each in the mapping",
    "with NaN": "allow_nan=True lets them pass",
    "of a shape that does not fit": "is it a checkpoint of this model, and the mapping made for it?",
    "of another length": "is it a checkpoint of this model? resize=True (--resize) interpolates tables of positions; "
    "pad_vocab=VALUE (--pad-vocab VALUE) and cut_vocab=True (--cut-vocab) change a vocabulary",
    "with values that do not fit": "correct the transform, or take another checkpoint",
    "not in the target": "is it the model that the mapping was made for?",
    "of a dtype that does not fit": "give another dtype",
    "out of the range of the new dtype": "take a wider one, such as bfloat16; allow_overflow=True lets them pass",
    "not exact in the new dtype": "keep the dtype of whole numbers",
}


class _Faults:
    """The tensors that stand in the way of a conversion, by what is wrong with them."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: dict[str, list[str]] = {}

    def add(self, fault: str, item: str) -> None:
        self.found.setdefault(fault, []).append(item)

    def check(self) -> None:
        """Raise a ConversionError that names them all, if there are any."""
        if not self.found:
            return
        kinds = [f for f in _FAULTS if f in self.found]
        text = "; ".join(f"{len(self.found[f])} {f}: {', '.join(self.found[f])} ({_FAULTS[f]})" for f in kinds)
        offenders = [f"{item}: {fault}" for fault in kinds for item in self.found[fault]]
        raise ConversionError(f"{self.what} cannot be converted: {text}", offenders)


class _Job:
    """One conversion: mapping, target and options, all in the direction that is asked for."""

    def __init__(
        self,
        mapping: AnyMapping,
        reverse: bool,
        target: Any,
        dtype: object,
        allow_nan: bool,
        allow_overflow: bool,
        report: ConversionReport,
        wishes: Wishes,
    ) -> None:
        self.fitter = Fitter(wishes)
        self.mapping = _mapping(mapping)
        self.dtype = None if dtype is None else _dtype(dtype)
        made: Framework = self.mapping.given if reverse else self.mapping.made
        goals = _goals(target, made)
        names = set(self.mapping.names(made))
        self.prefix = prefix_change(names, goals.keys()) if goals else ("", "")
        self.goals = None if goals is None else {renamed(n, *reversed(self.prefix)): g for n, g in goals.items()}
        if reverse:
            try:
                self.mapping = self.mapping.invert({n: g[0] for n, g in (self.goals or {}).items()})
            except MappingError as e:
                raise MappingError(f"{e}: give the model or checkpoint to fit as the target") from None
        self.allow_nan, self.allow_overflow = allow_nan, allow_overflow
        self.report = report

    def run(self, source: Source) -> dict[str, Array]:
        """The new tensors by name."""
        faults = _Faults(source.text)
        arrays, listed = self._in_the_mappings_names(source)
        found = self._find(arrays, listed)
        for name, array in found.items():
            if array is None:
                faults.add("absent from it", name)
            elif not self.allow_nan and (n := nans(array)):
                faults.add("with NaN", f"{name} ({n} of {array.size})")
        self._check_leftovers(arrays, found, listed, faults)
        steps = [self._steps(entry, found, faults) for entry in self.mapping.entries]
        faults.check()

        made: dict[str, Array] = {}
        for entry, chain in zip(self.mapping.entries, steps, strict=True):
            names = entry.names(self.mapping.given)
            given = [array for name in names if (array := found[name]) is not None]
            try:
                changed = transforms.apply(chain, given)
            except TransformError as e:
                is_cast = any(t.op == "cast" for t in chain)
                fault = "of a dtype that does not fit" if is_cast else "with values that do not fit"
                faults.add(fault, f"{', '.join(names)} ({e})")
                continue
            for name, array in zip(entry.names(self.mapping.made), changed, strict=True):
                made[name] = self._cast(name, array, dtype_name(given[0]), faults)
            if any(t.op == "cast" for t in chain) and (lost := _nonzeros(given) - _nonzeros(changed)):
                key = self._target_name(entry.names(self.mapping.made)[0])
                self.report.underflow[key] = self.report.underflow.get(key, 0) + lost
        faults.check()
        return self._in_the_targets_names(made)

    def _in_the_mappings_names(self, source: Source) -> tuple[dict[str, Array], dict[str, Param]]:
        """The given tensors and what is known of them; a prefix in the way is changed."""
        given, made = self.mapping.given, self.mapping.made
        tensors = source.read()
        known = set(self.mapping.names(given))
        self.report.prefix = prefix_change(tensors.keys(), known)
        arrays = {renamed(name, *self.report.prefix): _native(array) for name, array in tensors.items()}
        if not known & arrays.keys() and set(self.mapping.names(made)) & arrays.keys():
            raise _turned_round(source.text, made)
        listed = {}
        for p in source.listing():
            aliases = tuple(renamed(name, *self.report.prefix) for name in p.aliases)
            listed[renamed(p.name, *self.report.prefix)] = replace(p, aliases=aliases)
        return arrays, listed

    def _find(self, arrays: dict[str, Array], listed: dict[str, Param]) -> dict[str, Array | None]:
        """Every tensor that the entries ask for, by its name or another name of the same tied weight."""
        given = self.mapping.given
        others = {alias: p.name for p in listed.values() for alias in p.aliases}
        others |= {u.alias_of: u.name for u in self.mapping.unmatched[given] if u.alias_of and u.name in arrays}
        wanted = (name for entry in self.mapping.entries for name in entry.names(given))
        return {name: arrays.get(name, arrays.get(others.get(name, ""))) for name in wanted}

    def _check_leftovers(
        self, arrays: dict[str, Array], found: dict[str, Array | None], listed: dict[str, Param], faults: _Faults
    ) -> None:
        """No tensor goes without a reason."""
        unmatched = {u.name: u for u in self.mapping.unmatched[self.mapping.given]}
        for name, array in arrays.items():
            if name in found:
                continue
            item = unmatched.get(name)
            tied = next((other for other in listed[name].aliases if other in found), None)
            if item is not None:
                why = item.why
                same = found.get(item.alias_of) if item.alias_of is not None else None
                if same is not None and not is_same(array, same):
                    faults.add("another name of a tied weight with other values", f"{name} (of {item.alias_of})")
                elif item.review and not is_zero(array):
                    faults.add("not zero and without a counterpart", f"{name} ({why})")
            elif name.rpartition(".")[2] == "num_batches_tracked":
                why = "a counter that MindSpore does not keep"
            elif listed[name].kind == "optimizer":
                why = "a state of an optimizer"
            elif tied is not None:
                why = f"another name of {tied}"
            else:
                faults.add("in it but not in the mapping", f"{name} {list(array.shape)}")
                continue
            self.report.left_out[name] = why

    def _steps(self, entry: Entry, found: dict[str, Array | None], faults: _Faults) -> tuple[Transform, ...]:
        """What to do with the arrays of an entry so that they fit the target."""
        names = entry.names(self.mapping.given)
        shapes = [array.shape for name in names if (array := found[name]) is not None]
        if len(shapes) < len(names):
            return ()
        try:
            made = transforms.shape_after(entry.transform, shapes)
        except TransformError as e:
            faults.add("of a shape that does not fit", f"{', '.join(names)} ({e})")
            return ()
        steps = entry.transform
        for name, shape in zip(entry.names(self.mapping.made), made, strict=True):
            if self.goals is None:
                continue
            if name not in self.goals:
                faults.add("not in the target", name)
                continue
            goal = self.goals[name][0]
            if goal is None or goal == shape:
                continue
            try:
                if len(made) > 1 or (entry.transform and prod(shape) == prod(goal)):
                    raise MisfitError  # the mapping says what happens to it
                fit = self.fitter.fit(shape, goal, (*names, name))
            except MisfitError as e:
                why = f": {e}" if str(e) else ""
                said = f"{', '.join(names)} (becomes {list(shape)}, but {name} is {list(goal)}{why})"
                faults.add("of another length" if e.length else "of a shape that does not fit", said)
                continue
            steps = (*steps, *fit.steps)
            if fit.said:
                self.report.fitted[self._target_name(name)] = fit.said
            else:
                self.report.reshaped.append(self._target_name(name))
        return steps

    def _cast(self, name: str, array: Array, given: str, faults: _Faults) -> Array:
        """An array in the dtype asked for. ``given`` is the dtype that it had in the state dict."""
        old = dtype_name(array)
        goal = self.goals[name][1] if self.goals is not None else None
        new = self.dtype if self.dtype is not None and is_float(old) else goal or old
        key = self._target_name(name)
        if new != given:
            self.report.casts[key] = (given, new)
        if new == old:
            return array
        try:
            out, loss = cast(array, new)
        except TransformError as e:
            faults.add("of a dtype that does not fit", f"{name} ({e})")
            return array
        if loss.overflow:
            self.report.overflow[key] = loss.overflow
            if not self.allow_overflow:
                faults.add("out of the range of the new dtype", f"{name} ({loss.overflow} in {new})")
        if loss.underflow:
            self.report.underflow[key] = loss.underflow
        if loss.inexact:
            faults.add("not exact in the new dtype", f"{name} ({loss.inexact} in {new})")
        return out

    def _in_the_targets_names(self, made: dict[str, Array]) -> dict[str, Array]:
        unmatched = self.mapping.unmatched[self.mapping.made]
        for u in unmatched:
            # PyTorch's state dict has a tied weight under all its names; a MindSpore checkpoint under one.
            if self.mapping.made == "torch" and u.alias_of in made and (self.goals is None or u.name in self.goals):
                made[u.name] = made[u.alias_of]
        reasons = {u.name: u.why for u in unmatched}
        names = reasons if self.goals is None else self.goals
        self.report.not_made = {
            self._target_name(name): reasons.get(name, "not in the mapping") for name in names if name not in made
        }
        return {self._target_name(name): array for name, array in made.items()}

    def _target_name(self, name: str) -> str:
        return renamed(name, *self.prefix)


# -- names and values ---------------------------------------------------------------------------------------------


def _mapping(mapping: AnyMapping) -> Mapping:
    if isinstance(mapping, Mapping):
        return mapping
    if isinstance(mapping, Dict):
        return Mapping.from_dict(mapping)
    return Mapping.read(mapping)


def _dtype(value: object) -> str:
    try:
        return parse_dtype(value)
    except TransformError as e:
        raise ConversionError(str(e)) from None


def _goals(target: Any, framework: Framework) -> dict[str, tuple[Shape | None, str | None]] | None:
    """Shape and dtype by name, of whatever the user aims at."""
    if target is None:
        return None
    if isinstance(target, Dict) and all(isinstance(goal, tuple) for goal in target.values()):
        return {
            name: (None if shape is None else tuple(shape), None if dtype is None else _dtype(dtype))
            for name, (shape, dtype) in target.items()
        }
    if not isinstance(target, Listing):
        target = sources.open_source(target, framework).listing()
    if target.framework != framework:
        raise ConversionError(
            f"the target is {_TITLES[target.framework]}'s, but the conversion leads to {_TITLES[framework]}: "
            "give the other model, or turn it round (reverse=True, --reverse)"
        )
    return {p.name: (p.shape, p.dtype) for p in target if p.kind != "optimizer"}


def _open(state_dict: Any, given: Framework) -> Source:
    """The tensors to convert. Raises ConversionError where they are those of the framework that is to be made."""
    try:
        source = sources.open_source(state_dict, None)
    except SourceError:  # it does not tell its framework, or something is wrong with it that is said again here
        source = sources.open_source(state_dict, given)
    if source.framework != given:
        raise _turned_round(source.text, source.framework)
    return source


def _turned_round(text: str, found: Framework) -> ConversionError:
    given = next(title for framework, title in _TITLES.items() if framework != found)
    return ConversionError(
        f"{text} has the names of {_TITLES[found]}, but the conversion starts from {given}: "
        "turn it round (reverse=True, --reverse)"
    )


def _native(array: Array) -> Array:
    """The array in the byte order of this machine, which is the only one that the frameworks take."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _nonzeros(arrays: Iterable[Array]) -> int:
    return sum(int(np.count_nonzero(widen(array))) for array in arrays)


def _edge(framework: Framework) -> Any:
    return sources._edge(framework, "the conversion")


def prefix_change(have: Collection[str], want: Collection[str]) -> tuple[str, str]:
    """What to take from the front of all names in ``have``, and what to put there, so that most are in ``want``."""
    best = ("", "")
    most = sum(name in want for name in have)
    if most == len(have):
        return best
    for strip in _common_prefixes(have):
        for put in _common_prefixes(want):
            count = sum(renamed(name, strip, put) in want for name in have)
            if count > most:
                best, most = (strip, put), count
    return best


def _common_prefixes(names: Collection[str]) -> list[str]:
    """The dotted prefixes that all names carry, from the empty one on."""
    first, last = min(names), max(names)  # what these two share, all between them share
    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return [""] + [first[: i + 1] for i, (char, _) in enumerate(same) if char == "."]


def renamed(name: str, strip: str, put: str) -> str:
    return put + name[len(strip) :] if name.startswith(strip) else name


def _arrived(array: Array, held: Array | None) -> bool:
    return held is not None and is_same(array, held)
