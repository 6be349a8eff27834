"""The state of an optimizer, carried from MindSpore back to PyTorch."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from automap import sources, transforms
from automap.dtypes import is_zero, widen
from automap.errors import ConversionError, TransformError
from automap.mapping import Entry
from automap.mapping import Mapping as ParameterMapping
from automap.optimizer_kinds import TORCH_KEEPS, Kind, kind_called, kind_in, split_state
from automap.optimizer_links import joined, moment_chain, positions_of, theirs_of, torch_shapes
from automap.optimizer_settings import differing, settings
from automap.optimizer_state import Listed, MindSporeOptimizer, OptimizerReport, TorchState, read_state, torch_kind
from automap.optimizers import _edge, arrays_of
from automap.planning import Output, Task, dtypes_after
from automap.specs import framework_of
from automap.stored import Filled, Held, Scaled, Stored


@dataclass(frozen=True)
class Given:
    """The state of a MindSpore optimizer, by the mapping's names.

    Attributes:
        kind: of the optimizer.
        parts: for each of the network's parameters that it trains, where each state is: by PyTorch's word, its own, or
            ``lr`` for the learning rate.
        tensors: what is there, by its name.
        settings: for each parameter, in PyTorch's words, so far as they are known.
        rates: how many learning rates there are that cannot be told apart.
    """

    kind: Kind
    parts: Mapping[str, Mapping[str, str]]
    tensors: Mapping[str, Stored]
    settings: Mapping[str, Mapping[str, Any]]
    rates: tuple[float, ...] = ()

    @property
    def scalars(self) -> set[str]:
        """What the numbers that are read are called, without wrappers."""
        counter = self.kind.counter
        more = ["beta1_power", "beta2_power"] * self.kind.powers + ["momentum"] * self.kind.momentum
        return {*more, *([] if counter is None else [counter.name])}

    def number(self, name: str) -> float | None:
        """The number in a tensor whose name ends so, or None where there is none."""
        for held, tensor in self.tensors.items():
            if held.rpartition(".")[2] == name and prod(tensor.shape) == 1:
                return _decimal(tensor)
        return None


@dataclass(frozen=True)
class Carried:
    """What PyTorch's optimizer gets.

    Attributes:
        tasks: what makes its states; each is called ``optimizer.state.POSITION.STATE``.
        slots: the names of the states at each position.
        rates: the learning rates by group.
        step: how many steps were made, or None where nobody knows.
        report: in words.
    """

    tasks: tuple[Task, ...]
    slots: Mapping[int, tuple[str, ...]]
    rates: Mapping[int, float]
    step: int | None
    report: OptimizerReport


def key_of(position: int, slot: str) -> str:
    """What a state is called in a file and here."""
    return f"optimizer.state.{position}.{slot}"


def to_torch(
    mapping: ParameterMapping,
    given: Any,
    optimizer: Any,
    names: Sequence[str] | None,
    network: Any,
    kind: str | None,
    step: int | None = None,
) -> OptimizerReport:
    """Carry the state of a MindSpore optimizer over to a PyTorch one. See ``apply_optimizer``."""
    edge = _edge("torch")
    edge.checked(optimizer, "it")
    listing = None
    if network is not None:
        listing = [(p.name, p.shape, p.dtype) for p in sources.open_source(network, "torch").listing()]
    mapping = mapping.invert() if mapping.reverse else mapping
    carried = Back(mapping, given_of(mapping, given, kind), state_of(optimizer), listing, names, step).carried()
    arrays = arrays_of(carried.tasks)
    slots = {i: {slot: arrays[key_of(i, slot)] for slot in kept} for i, kept in carried.slots.items()}
    edge.load(optimizer, slots, carried.step, carried.rates)
    return replace(carried.report, torch=type(optimizer).__name__)


def state_of(optimizer: Any) -> TorchState:
    """A PyTorch optimizer's groups, and the shapes of the parameters in them."""
    state = read_state(optimizer.state_dict())
    order = [i for group in state.members for i in group]
    shapes = dict(zip(order, _edge("torch").shapes_of(optimizer), strict=True))
    return replace(state, shapes={i: {"": shape} for i, shape in shapes.items()})


class Back:
    """One way from MindSpore to PyTorch: what makes the state of a PyTorch optimizer; no array is read for it.

    Args:
        mapping: from PyTorch to MindSpore.
        given: MindSpore's state.
        state: PyTorch's groups, with the shapes of their parameters.
        listing: PyTorch's parameters in order; None: in the mapping's order.
        names: of the positions, where they are known.
        step: how many steps were made, where MindSpore does not count them.

    Raises:
        ConversionError: see ``apply_optimizer``.
    """

    def __init__(
        self,
        mapping: ParameterMapping,
        given: Given,
        state: TorchState,
        listing: Listed | None,
        names: Sequence[str] | None,
        step: int | None,
    ) -> None:
        self.mapping, self.given, self.state = mapping, given, state
        parts = given.parts
        trained = {n for e in mapping.entries if all(m in parts for m in e.mindspore) for n in e.torch}
        held = {m: given.tensors[name].shape for m, slots in parts.items() for s, name in slots.items() if s != "lr"}
        known = torch_shapes(mapping, held)
        self.where, self.told = positions_of(mapping, state, listing, names, trained, known)
        self.shapes = {i: held[""] for i, held in state.shapes.items()}
        self.group_of = {i: g for g, members in enumerate(state.members) for i in members}
        self.kind = torch_kind(state)
        self.keeps = TORCH_KEEPS[self.kind]
        self.momentum = given.number("momentum") if given.kind.momentum else None
        self.lost: dict[str, str] = {}
        self.differs: dict[str, None] = {}
        self.notes: list[str] = []
        self.entries = list(self._trained())
        self.step = self._step(step)

    def _trained(self) -> Iterator[Entry]:
        """The entries that both optimizers train."""
        faults, ours, theirs = [], set[str](), set[str]()
        for entry in self.mapping.entries:
            here = {name in self.where for name in entry.torch}
            there = {name in self.given.parts for name in entry.mindspore}
            if here == there == {True}:
                ours.update(entry.torch)
                theirs.update(entry.mindspore)
                yield entry
            elif len(here) > 1 or len(there) > 1:
                odd = [name for name in entry.torch if name not in self.where]
                odd += [name for name in entry.mindspore if name not in self.given.parts]
                faults.append(f"{entry} (not trained: {', '.join(odd)})")
        if faults:
            raise ConversionError(f"{len(faults)} entries are trained in part: {'; '.join(faults)}", faults)
        for side, alone in (
            ("PyTorch", [name for name in self.where if name not in ours]),
            ("MindSpore", [name for name in self.given.parts if name not in theirs]),
        ):
            if alone:
                more = f" and {len(alone) - 1} more are" if len(alone) > 1 else " is"
                self.differs[f"{alone[0]}{more} trained in {side} only"] = None

    def _step(self, told: int | None) -> int | None:
        counter = self.given.kind.counter
        counted = None if counter is None else self.given.number(counter.name)
        if counted is not None and counter is not None:
            return round(counted) - counter.start
        if told is None and "exp_avg" in self.keeps:
            raise ConversionError(
                f"how many steps were made is not told, and PyTorch's {self.kind} needs it: give it (step=, --step)"
            )
        return told

    def carried(self) -> Carried:
        tasks: list[Task] = []
        slots: dict[int, tuple[str, ...]] = {}
        counts: Counter[str] = Counter()
        rates = self._rates()
        for entry in self.entries:
            at = [self.where[name] for name in entry.torch]
            if self._has_not_begun(entry):
                continue
            for slot in self._wanted(at):
                made = self._of_slot(entry, at, slot)
                if made is None:
                    continue
                tasks += made
                counts[slot] += len(at)
                for i in at:
                    slots[i] = (*slots.get(i, ()), slot)
        return Carried(tuple(tasks), slots, rates, self.step, self._report(counts, rates))

    def _has_not_begun(self, entry: Entry) -> bool:
        """Whether SGD's mark says that no step was made."""
        marks = [parts["stat"] for name in entry.mindspore if "stat" in (parts := self.given.parts[name])]
        return bool(marks) and all(bool(np.all(self.given.tensors[name].read())) for name in marks)

    def _wanted(self, at: Sequence[int]) -> list[str]:
        """The states that PyTorch keeps with the settings of these positions."""
        groups = [self.state.groups[self.group_of[i]] for i in at]
        return [slot for slot, needs in self.keeps.items() if not needs or any(group.get(needs) for group in groups)]

    def _rates(self) -> dict[int, float]:
        """The learning rate of each group."""
        rates: dict[int, float] = {}
        for entry in self.entries:
            g = self.group_of[self.where[entry.torch[0]]]
            for name in entry.mindspore:
                if (rate := self._rate(name)) is None:
                    continue
                if not math.isclose(rates.setdefault(g, rate), rate, rel_tol=1e-6):
                    self.differs[f"lr: {rates[g]:g} and {rate:g} in MindSpore in one of PyTorch's groups"] = None
        return rates

    def _rate(self, name: str) -> float | None:
        held = self.given.tensors.get(self.given.parts[name].get("lr", ""))
        return None if held is None else _decimal(held)

    def _of_slot(self, entry: Entry, at: Sequence[int], slot: str) -> list[Task] | None:
        """One state of an entry's parameters, as PyTorch has it; None where there is none."""
        shapes = [self.shapes[i] for i in at]
        found = [self.given.parts[name].get(slot) for name in entry.mindspore]
        if None in found:
            if slot == "momentum_buffer" and self.kind == "SGD":
                return None  # PyTorch's next step makes it
            fresh = [Filled(shape, "float32") for shape in shapes]
            self.differs[
                f"PyTorch keeps {slot}, and MindSpore's {self.given.kind.name} does not: it starts at zero"
            ] = None
            return [self._task((f"{slot} of {n}",), (f,), (), [i], slot) for n, f, i in
                    zip(entry.torch, fresh, at, strict=True)]  # fmt: skip
        tensors: list[Stored] = [self.given.tensors[name] for name in found if name is not None]
        if slot == "momentum_buffer" and self.given.kind.scaled:
            rates = [self._rate(name) for name in entry.mindspore]
            if not all(rates):
                self.lost[slot] = f"MindSpore's {self.given.kind.name} has the learning rate in it, which is not known"
                return [self._task((f"{slot} of {n}",), (Filled(s, "float32"),), (), [i], slot) for n, s, i in
                        zip(entry.torch, shapes, at, strict=True)]  # fmt: skip
            tensors = [Scaled((t,), rate or 0.0, divided=True) for t, rate in zip(tensors, rates, strict=True)]
        try:
            chain = transforms.inverse(moment_chain(entry), shapes)
            return [self._task(tuple(f"{slot} of {n}" for n in entry.mindspore), tensors, chain, at, slot)]
        except TransformError as e:
            raise ConversionError(f"{slot} of {', '.join(entry.mindspore)} cannot go back: {e}", [str(entry)]) from None

    def _task(
        self, names: tuple[str, ...], given: Sequence[Stored], chain: Sequence[Any], at: Sequence[int], slot: str
    ) -> Task:
        made = transforms.shape_after(chain, [tensor.shape for tensor in given])
        types = dtypes_after(chain, [tensor.dtype for tensor in given])
        outputs = []
        for i, shape, dtype in zip(at, made, types, strict=True):
            if prod(shape) != prod(self.shapes[i]):
                raise TransformError(f"it becomes {list(shape)}, and PyTorch's parameter is {list(self.shapes[i])}")
            key = key_of(i, slot)
            outputs.append(Output(key, key, self.shapes[i], dtype, dtype))
        return Task(names, tuple(given), tuple(chain), tuple(outputs))

    # -- what is said ----------------------------------------------------------------------------------------------

    def _report(self, carried: Mapping[str, int], rates: Mapping[int, float]) -> OptimizerReport:
        found, groups = self.given.kind, self.state.groups
        counts = Counter(s for e in self.entries for n in e.mindspore for s in self.given.parts[n] if s in found.slots)
        for slot, n in counts.items():
            if slot in carried or slot in self.lost:
                continue
            if needs := self.keeps.get(slot, ""):
                if self.step == 0 or all(map(self._has_not_begun, self.entries)):
                    continue
                why = f"PyTorch's {self.kind} was made with {needs} {groups[0].get(needs)}, and keeps none"
            elif slot in self.keeps:
                continue
            else:
                why = f"PyTorch's {self.kind} has nothing of the kind"
            if all(is_zero(self.given.tensors[name].read()) for name in self._held(slot)):
                continue
            self.lost[slot] = f"of {n} parameters; {why}"
        rows = [
            (groups[self.group_of[self.where[entry.torch[0]]]], self._settings(name), name)
            for entry in self.entries
            for name in entry.mindspore
        ]
        for what in differing(rows, found.name, without=("lr",)):
            self.differs[what] = None
        if found.lacks and rows:
            self.differs[found.lacks] = None
        if found.by_norm or self.kind in ("LAMB", "LARS"):
            self.differs |= dict.fromkeys(joined(self.entries, self.kind))
        if self.given.rates:
            listed = ", ".join(f"{rate:g}" for rate in self.given.rates)
            self.differs[
                f"lr: {listed} in MindSpore, and the checkpoint does not tell of which parameters: give a factory of "
                "its optimizer (--from-optimizer)"
            ] = None
        elif len(rates) < len(groups):
            kept = ", ".join(f"{float(group['lr']):g}" for g, group in enumerate(groups) if g not in rates)
            words = f"lr: MindSpore's state does not tell it, so that PyTorch's stays as it was made: {kept}"
            if found.rate:  # a schedule was there in its place
                self.differs[words] = None
            else:
                self.notes.append(words)
        if not any(self.given.settings.values()):
            self.notes.append(
                f"what MindSpore's checkpoint does not tell is as the optimizer was made: {settings(self.state)}"
            )
        if found.unproven:
            self.notes.append(f"the steps of MindSpore's {found.name} are not proven here: {found.unproven}")
        told = tuple(sorted({rates.get(g, float(group["lr"])) for g, group in enumerate(groups)}, reverse=True))
        return OptimizerReport(
            self.kind, found.name, dict(carried), self.told, self.step, told, self.lost, tuple(self.differs),
            tuple(self.notes), back=True,
        )  # fmt: skip

    def _held(self, slot: str) -> list[str]:
        parts = [self.given.parts[name] for entry in self.entries for name in entry.mindspore]
        return [held[slot] for held in parts if slot in held]

    def _settings(self, name: str) -> dict[str, Any]:
        """What is known of MindSpore's, in PyTorch's words."""
        more = {} if self.momentum is None else {"momentum": self.momentum}
        return {**self.given.settings.get(name, {}), **self.given.kind.fixed, **more}


def given_of(mapping: ParameterMapping, given: Any, kind: str | None, made: MindSporeOptimizer | None = None) -> Given:
    """The state of a MindSpore optimizer, from whatever it is given as.

    Args:
        mapping: from PyTorch to MindSpore.
        given: the optimizer, a checkpoint or a dict of its parameters.
        kind: of the optimizer, where that is known and there is a checkpoint alone.
        made: an optimizer that was made as the one that the checkpoint is of, for its groups and settings.

    Raises:
        ConversionError: the kind is not known, or cannot be told.
    """
    mapped = [name for entry in mapping.entries for name in entry.mindspore]
    if framework_of(given) == "mindspore" and not isinstance(given, Mapping):
        edge = _edge("mindspore")
        target = edge.described(given)
        called = theirs_of(mapped, target.names)
        parts = {m: {**target.states[n], **_lr(target.rates[n])} for m, n in called.items()}
        values = {name: Held(array) for name, array in edge.values_of(given).items()}
        return Given(target.kind, parts, values, {m: target.settings[n] for m, n in called.items()})
    source = sources.open_source(os.fspath(given) if isinstance(given, os.PathLike) else given, "mindspore")
    tensors = source.tensors()
    marked = {p.name for p in source.listing() if p.kind == "optimizer"}
    found = made.kind if made is not None else kind_called(kind) if kind is not None else None
    apart = {name: t for name, t in tensors.items() if name in marked or not marked}
    found = found or kind_in(apart)
    states: dict[str, dict[str, str]] = {}
    for name in apart:
        if (split := split_state(found, name)) is not None:
            states.setdefault(split[1], {})[split[0]] = name
    called = theirs_of(mapped, list(states))
    held_rates = {n.rpartition(".")[2]: n for n in apart if n.rpartition(".")[2].startswith("learning_rate")}
    parts = {m: dict(states[n]) for m, n in called.items()}
    known: dict[str, Mapping[str, Any]] = {}
    if made is not None:
        theirs = theirs_of(mapped, made.names)
        known = {m: made.settings.get(n, {}) for m, n in theirs.items()}
        for m, n in theirs.items():
            if m in parts:
                parts[m] |= _lr(held_rates.get(made.rates.get(n) or ""))
        return Given(found, parts, tensors, known)
    numbers = {name: _decimal(apart[name]) for name in held_rates.values()}
    if len(set(numbers.values())) == 1:
        parts = {m: {**held, **_lr(next(iter(numbers)))} for m, held in parts.items()}
        return Given(found, parts, tensors, known)
    return Given(found, parts, tensors, known, tuple(sorted(set(numbers.values()), reverse=True)))


def _decimal(tensor: Stored) -> float:
    """A number as somebody wrote it: the shortest decimal that its element type rounds to it."""
    return float(str(np.asarray(widen(tensor.read())).reshape(-1)[0]))


def _lr(name: str | None) -> dict[str, str]:
    return {} if name is None else {"lr": name}
