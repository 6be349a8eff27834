"""What a conversion will do to each entry, from names, shapes and element types alone: no tensor is read for it.

``apply`` and ``convert`` carry out the same plan, the one in memory, the other from file to file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from automap import sources, transforms, wrapping
from automap.checkpoints import why_apart, without_state
from automap.conversion_report import ConversionReport
from automap.dtypes import HELD, check_cast, dtype_name, is_float, is_packed, parse_dtype
from automap.errors import ConversionError, MappingError, SourceError, TransformError
from automap.faults import Faults
from automap.fitting import Fitter, MisfitError, Wishes
from automap.graph import Framework, Listing, Param, Shape
from automap.layout import Frame
from automap.lora import Merge, MergedSource, is_part
from automap.mapping import Entry, Mapping
from automap.prefixes import change_of_prefix, common_prefix, prefix_change, renamed
from automap.sources import Source
from automap.stored import Sliced, Stored
from automap.transforms import Transform

#: What a mapping can be given as: the value, its file, or PyTorch names to MindSpore names.
AnyMapping = Mapping | str | os.PathLike[str] | Dict[str, str | None]

TITLES: dict[Framework, str] = {"torch": "PyTorch", "mindspore": "MindSpore"}

#: Which part of a tensor's values may turn to zero, or change by more than one in a hundred, unless another is allowed.
MAX_LOST = 0.01

#: Transforms that leave the bytes of an array as they are.
_SAME_BYTES = ("reshape", "flatten", "unflatten")


@dataclass(frozen=True)
class Output:
    """A tensor that is made.

    Attributes:
        name: its name in the mapping.
        key: its name in the result.
        shape: its shape.
        changed: the element type that comes out of the transform.
        dtype: the element type that it gets.
        copies: further names of it in the result (a tied weight).
    """

    name: str
    key: str
    shape: Shape
    changed: str
    dtype: str
    copies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What happens to an entry of the mapping.

    Attributes:
        names: the names of the tensors that it takes, in the mapping's words.
        given: these tensors.
        chain: the transforms, also those that only the target asks for.
        made: the tensors that come out.
    """

    names: tuple[str, ...]
    given: tuple[Stored, ...]
    chain: tuple[Transform, ...]
    made: tuple[Output, ...]

    @property
    def is_copy(self) -> bool:
        """Whether the one tensor made has the bytes of the one that it takes."""
        return (
            len(self.given) == len(self.made) == 1
            and _keeps_bytes(self.chain)
            and self.given[0].dtype == self.made[0].dtype
        )


@dataclass(frozen=True)
class Leftover:
    """A tensor that is left out only if its values allow it.

    Attributes:
        name: its name in the mapping's words.
        tensor: the tensor.
        why: why it is left out.
        same_as: the name of the tensor that it has to equal, and that tensor, or None.
        zero: whether it has to be zero.
    """

    name: str
    tensor: Stored
    why: str
    same_as: tuple[str, Stored] | None
    zero: bool


@dataclass(frozen=True)
class Plan:
    """A conversion, ready to be carried out.

    Attributes:
        text: what is converted, in the user's words.
        framework: the framework that it leads to.
        tasks: what happens to each entry.
        leftovers: what has to be looked at before anything may be left out.
        allow_nan: let tensors pass that hold NaN.
        allow_overflow: let finite values pass that are out of the range of their new type.
        max_lost: which part of a tensor's values may turn to zero, or change by more than one in a hundred, in a cast.
        report: what was changed; those who carry it out add what only the values tell.
        faults: what stands in the way.
        read: every tensor that an entry asks for and that is there, also of entries that cannot be carried out.
        frame: what is written around the tensors, if anything is.
    """

    text: str
    framework: Framework
    tasks: tuple[Task, ...]
    leftovers: tuple[Leftover, ...]
    allow_nan: bool
    allow_overflow: bool
    max_lost: float
    report: ConversionReport
    faults: Faults
    read: dict[str, Stored]
    frame: Frame | None = None


@dataclass
class Planner:
    """A mapping, a target and options, in the direction that is asked for; makes the plan for a source.

    The arguments are those of ``apply``, those of fitting as ``Wishes``.
    """

    mapping: Mapping
    reverse: bool = False
    target: Any = None
    dtype: object = None
    allow_nan: bool = False
    allow_overflow: bool = False
    wishes: Wishes = field(default_factory=Wishes)
    report: ConversionReport = field(default_factory=ConversionReport)
    max_lost: float = MAX_LOST

    def __post_init__(self) -> None:
        if not 0 <= self.max_lost <= 1:
            raise ConversionError(f"max_lost is a part of a tensor's values, from 0 to 1, not {self.max_lost}")
        self._fitter = Fitter(self.wishes)
        self._dtype = None if self.dtype is None else _dtype(self.dtype)
        made: Framework = self.mapping.given if self.reverse else self.mapping.made
        goals = _goals(self.target, made)
        if self.wishes and goals is None:
            raise ConversionError(
                "resize, pad_vocab and cut_vocab fit tensors to a target, but there is none: "
                "give the model, checkpoint or listing to fit (target=, --target)"
            )
        names = {name for entry in self.mapping.entries for name in entry.names(made)}
        self._target_names: dict[str, str] = self._called(names, goals.keys(), made) if goals else {}
        back = {new: old for old, new in self._target_names.items()}
        self._goals = None if goals is None else {back.get(n, n): g for n, g in goals.items()}
        if self.reverse:
            try:
                self.mapping = self.mapping.invert({n: g[0] for n, g in (self._goals or {}).items()})
            except MappingError as e:
                more = (
                    ": give the model or checkpoint to fit as the target" if "has no inverse without" in str(e) else ""
                )
                raise MappingError(f"{e}{more}") from None

    def plan(self, source: Source) -> Plan:
        """What happens to each tensor of a source. What stands in the way is noted in the plan, and not raised.

        Raises:
            ConversionError: the names are those of the other framework.
            SourceError: the source has no tensors.
        """
        faults = Faults(source.text)
        if isinstance(source, MergedSource):
            self.report.merged.extend(source.merged)
        tensors, listed = self._in_the_mappings_names(source)
        found = self._find(tensors, listed)
        for name, tensor in found.items():
            if tensor is None:
                faults.add("absent from it", name)
        leftovers = [*self._leftovers(tensors, found, listed, faults), *self._tied(found)]
        tasks = [t for e in self.mapping.entries if (t := self._task(e, found, faults)) is not None]
        return Plan(
            source.text,
            self.mapping.made,
            self._with_copies(tasks),
            tuple(leftovers),
            self.allow_nan,
            self.allow_overflow,
            self.max_lost,
            self.report,
            faults,
            {name: tensor for name, tensor in found.items() if tensor is not None},
        )

    def _called(self, have: Collection[str], want: Collection[str], framework: Framework) -> dict[str, str]:
        """What each name is called on the other side, where prefixes and cells for training are no matter."""
        change = prefix_change(have, want)
        called = {name: renamed(name, *change) for name in have}
        if framework == "mindspore" and not all(name in want for name in called.values()):
            other = wrapping.changes(have, want)
            if len(other) > sum(name in want for name in called.values()):
                return {name: other.get(name, name) for name in have}
        return called

    def _in_the_mappings_names(self, source: Source) -> tuple[dict[str, Stored], dict[str, Param]]:
        """The given tensors and what is known of them; a prefix in the way is changed."""
        given, made = self.mapping.given, self.mapping.made
        tensors = source.tensors()
        known = set(self.mapping.names(given))
        states = {p.name for p in source.listing() if p.kind == "optimizer"}
        wanted = {name for entry in self.mapping.entries for name in entry.names(given)}
        called = self._called([n for n in tensors if n not in states], known if given == "torch" else wanted, given)
        changed = [(name, new) for name, new in called.items() if new in wanted]
        self.report.prefix = change_of_prefix(changed)
        self.report.notes += source.notes
        self._beside: set[str] = set()
        if given == "mindspore":
            bare = common_prefix([name for entry in self.mapping.entries for name in entry.torch])
            idle = without_state(source.listing())
            self._beside = {
                n for n in wrapping.beside([old for old, _ in changed], called, bare, idle) if n not in known
            }
        tensors = {called.get(name, name): tensor for name, tensor in tensors.items()}
        if not known & tensors.keys() and set(self.mapping.names(made)) & tensors.keys():
            raise turned_round(source.text, made)
        listed = {}
        for p in source.listing():
            if p.aliases:
                aliases = tuple(called.get(name, renamed(name, *self.report.prefix)) for name in p.aliases)
                p = replace(p, aliases=aliases)
            listed[called.get(p.name, p.name)] = p
        return tensors, listed

    def _find(self, tensors: dict[str, Stored], listed: dict[str, Param]) -> dict[str, Stored | None]:
        """Every tensor that the entries ask for, by its name or another name of the same tied weight."""
        given = self.mapping.given
        others = {alias: p.name for p in listed.values() for alias in p.aliases}
        others |= {u.alias_of: u.name for u in self.mapping.unmatched[given] if u.alias_of and u.name in tensors}
        if given == "torch":
            tied = ((e.torch[0], [n for n in e.tied if n in tensors]) for e in self.mapping.entries if e.tied)
            others |= {name: names[0] for name, names in tied if names}
        wanted = (name for entry in self.mapping.entries for name in entry.names(given))
        return {name: tensors.get(name, tensors.get(others.get(name, ""))) for name in wanted}

    def _tied(self, found: dict[str, Stored | None]) -> Iterator[Leftover]:
        """On the way to PyTorch: parameters that become one tensor there, and have to be equal."""
        if self.mapping.made != "torch":
            return
        first: dict[str, tuple[str, Stored]] = {}
        for entry in self.mapping.entries:
            tensor = found.get(entry.mindspore[0])
            if not entry.tied or len(entry.mindspore) > 1 or tensor is None:
                continue
            other = next((first[name] for name in entry.tied if name in first), None)
            if other is None:
                first[entry.torch[0]] = entry.mindspore[0], tensor
            else:
                yield Leftover(entry.mindspore[0], tensor, "tied in PyTorch", other, False)

    def _leftovers(
        self,
        tensors: dict[str, Stored],
        found: dict[str, Stored | None],
        listed: dict[str, Param],
        faults: Faults,
    ) -> list[Leftover]:
        """No tensor goes without a reason. Gives those whose values have to be looked at for that."""
        unmatched = {u.name: u for u in self.mapping.unmatched[self.mapping.given]}
        to_see = []
        for name, tensor in tensors.items():
            if name in found:
                continue
            item = unmatched.get(name)
            tied = next((other for other in listed[name].aliases if other in found), None)
            if item is not None:
                why = item.why
                same = found.get(item.alias_of) if item.alias_of is not None else None
                tie = None if same is None or item.alias_of is None else (item.alias_of, same)
                if tie or item.review:
                    to_see.append(Leftover(name, tensor, why, tie, item.review))
            elif name.rpartition(".")[2] == "num_batches_tracked":
                why = "a counter that MindSpore does not keep"
            elif listed[name].kind == "optimizer":
                why = why_apart(name)
            elif name in self._beside:
                why = "kept by a cell around the network"
            elif tied is not None:
                why = f"another name of {tied}"
            elif is_part(name) and self.report.merged:
                why = "of a LoRA adapter that is not merged"
            elif is_part(name):
                faults.add("of LoRA", name)
                continue
            else:
                faults.add("in it but not in the mapping", f"{name} {list(tensor.shape)}")
                continue
            self.report.left_out[name] = why
        return to_see

    def _task(self, entry: Entry, found: dict[str, Stored | None], faults: Faults) -> Task | None:
        """What happens to an entry; None where it cannot be, for a reason that is noted."""
        names = entry.names(self.mapping.given)
        given = tuple(tensor for name in names if (tensor := found[name]) is not None)
        if len(given) < len(names):
            return None
        made = entry.names(self.mapping.made)
        chain, shapes = self._steps(entry, names, [t.shape for t in given], faults)
        try:
            changed = dtypes_after(chain, [t.dtype for t in given])
        except TransformError as e:
            faults.add("of a dtype that does not fit", f"{', '.join(names)} ({e})")
            return None
        if len(shapes) < len(made):
            return None
        packed = next((t.dtype for t in given if is_packed(t.dtype)), None)
        if packed and not (len(made) == 1 == len(given) and _keeps_bytes(chain) and isinstance(given[0], Sliced)):
            faults.add("of a dtype that does not fit", f"{', '.join(names)} ({packed} can be renamed only)")
            return None
        outputs = []
        for name, shape, before in zip(made, shapes, changed, strict=True):
            goal = self._goals.get(name, (None, None))[1] if self._goals is not None else None
            new = self._dtype if self._dtype is not None and is_float(before) else goal or before
            key = self._target_name(name)
            if new != given[0].dtype:
                self.report.casts[key] = (given[0].dtype, new)
            try:
                check_cast(before, new)
            except TransformError as e:
                faults.add("of a dtype that does not fit", f"{name} ({e})")
            outputs.append(Output(name, key, shape, before, new))
        return Task(names, given, chain, tuple(outputs))

    def _steps(
        self, entry: Entry, names: Sequence[str], given: Sequence[Shape], faults: Faults
    ) -> tuple[tuple[Transform, ...], tuple[Shape, ...]]:
        """What to do with the arrays of an entry so that they fit the target, and the shapes that come out."""
        try:
            made = transforms.shape_after(entry.transform, given)
        except TransformError as e:
            faults.add("of a shape that does not fit", f"{', '.join(names)} ({e})")
            return entry.transform, ()
        steps, shapes = entry.transform, list(made)
        for i, (name, shape) in enumerate(zip(entry.names(self.mapping.made), made, strict=True)):
            if self._goals is None:
                continue
            if name not in self._goals:
                faults.add("not in the target", name)
                continue
            goal = self._goals[name][0]
            if goal is None or goal == shape:
                continue
            try:
                if len(made) > 1 or (entry.transform and prod(shape) == prod(goal)):
                    raise MisfitError  # the mapping says what happens to it
                fit = self._fitter.fit(shape, goal, (*names, name))
            except MisfitError as e:
                why = f": {e}" if str(e) else ""
                said = f"{', '.join(names)} (becomes {list(shape)}, but {name} is {list(goal)}{why})"
                faults.add("of another length" if e.length else "of a shape that does not fit", said)
                continue
            steps, shapes[i] = (*steps, *fit.steps), goal
            if fit.said:
                self.report.fitted[self._target_name(name)] = fit.said
            else:
                self.report.reshaped.append(self._target_name(name))
        return steps, tuple(shapes)

    def _with_copies(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks with the further names of tied weights; what is not made is noted."""
        unmatched = self.mapping.unmatched[self.mapping.made]
        homes = {output.name: output.name for task in tasks for output in task.made}
        copies: dict[str, list[str]] = {}
        for u in unmatched:
            # PyTorch's state dict has a tied weight under all its names; a MindSpore checkpoint under one.
            wanted = self._goals is None or u.name in self._goals
            if self.mapping.made == "torch" and u.alias_of is not None and u.alias_of in homes and wanted:
                homes[u.name] = homes[u.alias_of]
                copies.setdefault(homes[u.name], []).append(self._target_name(u.name))
        reasons = {u.name: u.why for u in unmatched}
        names = reasons if self._goals is None else self._goals
        self.report.not_made = {
            self._target_name(name): reasons.get(name, "not in the mapping") for name in names if name not in homes
        }
        if not copies:
            return tuple(tasks)
        return tuple(
            replace(t, made=tuple(replace(o, copies=tuple(copies.get(o.name, ()))) for o in t.made)) for t in tasks
        )

    def _target_name(self, name: str) -> str:
        return self._target_names.get(name, name)


def _keeps_bytes(chain: Sequence[Transform]) -> bool:
    return all(t.op in _SAME_BYTES for t in chain)


def dtypes_after(chain: Sequence[Transform], given: Sequence[str]) -> list[str]:
    """The element types that a chain makes of these. Raises TransformError where it cannot be carried out."""
    # No array is packed: such tensors are only copied, and stay what they are.
    if any(map(is_packed, given)) or (not chain and len(given) == 1):
        return list(given)
    made = transforms.dtypes_after(chain, [HELD[name] for name in given])
    return [dtype_name(np.empty(0, dtype)) for dtype in made]


# -- names and values ---------------------------------------------------------------------------------------------


def as_mapping(mapping: AnyMapping) -> Mapping:
    """A mapping, from whatever it is given as. Raises MappingError where it is none."""
    if isinstance(mapping, Mapping):
        return mapping
    if isinstance(mapping, Dict):
        return Mapping.from_dict(mapping)
    return Mapping.read(mapping)


def open_state(state_dict: Any, mapping: Mapping, merge: Merge | None = None) -> Source:
    """The tensors to convert with a mapping, LoRA merged if that is asked for.

    Raises ConversionError where they are those of the framework that is to be made, or cannot be merged.
    """
    given = mapping.given
    try:
        source = sources.open_source(state_dict, None)
    except SourceError:  # it does not tell its framework, or something is wrong with it that is said again here
        source = sources.open_source(state_dict, given)
    if source.framework != given:
        raise turned_round(source.text, source.framework)
    return source if merge is None else MergedSource(source, merge, mapping.names(given))


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
            f"the target is {TITLES[target.framework]}'s, but the conversion leads to {TITLES[framework]}: "
            "give the other model, or turn it round (reverse=True, --reverse)"
        )
    return {p.name: (p.shape, p.dtype) for p in target if p.kind != "optimizer"}


def turned_round(text: str, found: Framework) -> ConversionError:
    """The error where a source is of the framework that the conversion leads to."""
    given = next(title for framework, title in TITLES.items() if framework != found)
    return ConversionError(
        f"{text} has the names of {TITLES[found]}, but the conversion starts from {given}: "
        "turn it round (reverse=True, --reverse)"
    )
