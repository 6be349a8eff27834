"""The state of an optimizer, carried from PyTorch to MindSpore, so that training goes on as if nothing had happened.

PyTorch keeps the state by the position of the parameter in the groups (``optimizer_names`` tells the names), MindSpore
in parameters of the optimizer. A moment goes the way of its weight: the entry's transforms change it, too. What kinds
of optimizers there are, and what their states are called, is in ``optimizer_kinds``.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from automap import transforms
from automap.dtypes import DTYPES, Array
from automap.errors import ConversionError, TransformError
from automap.executing import Findings, change, finish
from automap.mapping import Entry
from automap.mapping import Mapping as ParameterMapping
from automap.optimizer_links import joined, moment_chain, positions_of, shapes_before, theirs_of, torch_shapes
from automap.optimizer_settings import differing, settings
from automap.optimizer_state import (
    Listed,
    MindSporeOptimizer,
    OptimizerReport,
    TorchState,
    read_with_network,
    torch_kind,
)
from automap.planning import AnyMapping, Output, Task, as_mapping, dtypes_after
from automap.specs import framework_of
from automap.stored import Filled, Held, Scaled, Stored
from automap.transforms import Transform


def apply_optimizer(
    mapping: AnyMapping,
    optimizer_state: Any,
    optimizer: Any,
    *,
    names: Sequence[str] | None = None,
    network: Any = None,
    step: int | None = None,
    kind: str | None = None,
) -> OptimizerReport:
    """Carry the state of an optimizer over to one of the other framework, so that training goes on from it.

    Moments, steps and learning rates arrive, whatever cells are around the network by then. Settings that are no
    parameters of the optimizer are compared: see what the report says of them.

    Args:
        mapping: a mapping, its file, or a dict of PyTorch names to MindSpore names.
        optimizer_state: to MindSpore: ``optimizer.state_dict()``, the optimizer itself, or a checkpoint that holds one
            (the network's state dict beside it tells the order of its parameters). Back to PyTorch: the MindSpore
            optimizer, or a checkpoint or dict of its parameters.
        optimizer: the optimizer that goes on: ``mindspore.nn``'s, ``experimental.optim``'s or ``mint.optim``'s; or
            PyTorch's to go back.
        names: the names of PyTorch's parameters in the order in which its optimizer has them, where it does not know
            them itself and they cannot be told by order and shapes.
        network: PyTorch's network, or its state dict, for the order of the parameters; the mapping tells it otherwise.
        step: how many steps were made, where PyTorch's optimizer does not count them (SGD).
        kind: of the MindSpore optimizer, such as ``"Momentum"``, where a checkpoint is all that there is of it, and the
            names in it leave that open.

    Raises:
        ConversionError: the optimizer is of no known kind; the positions cannot be told; an entry's transform computes
            with its values, so that a moment cannot go the same way; or a state does not fit.
    """
    mapping = as_mapping(mapping)
    framework = framework_of(optimizer)
    if framework == "mindspore":
        edge = _edge("mindspore")
        target = edge.described(optimizer)
        state, listing = read_with_network(optimizer_state, network)
        tasks, report = to_mindspore(mapping, state, target, listing, names, step)
        edge.assign(optimizer, arrays_of(tasks))
        return report
    if framework == "torch" and hasattr(optimizer, "param_groups"):
        from automap.optimizers_back import to_torch

        return to_torch(mapping, optimizer_state, optimizer, names, network, kind, step)
    raise ConversionError(
        f"the optimizer is a {type(optimizer).__name__}: give one of mindspore.nn, mindspore.experimental.optim, "
        "mindspore.mint.optim or torch.optim"
    )


def to_mindspore(
    mapping: ParameterMapping,
    state: TorchState,
    target: MindSporeOptimizer,
    listing: Listed | None,
    names: Sequence[str] | None = None,
    step: int | None = None,
) -> tuple[list[Task], OptimizerReport]:
    """What makes each parameter of a MindSpore optimizer; no array is read for it.

    Args:
        mapping: between the networks.
        state: PyTorch's.
        target: the optimizer.
        listing: PyTorch's parameters in order: names, shapes, element types. None: in the mapping's order.
        names: of the positions, where they are known.
        step: how many steps were made, where the state does not count them.
    """
    job = _Job(mapping, state, target, listing, names, step)
    return job.tasks(), job.report()


def arrays_of(tasks: Sequence[Task]) -> dict[str, Array]:
    """What tasks make, by name.

    Raises:
        ConversionError: a value is out of the range of the type that it gets.
    """
    out: dict[str, Array] = {}
    findings = Findings()
    for task in tasks:
        changed = change(task, [tensor.read() for tensor in task.given], findings)
        for output, array in zip(task.made, changed, strict=False):
            out[output.key] = finish(output, array.reshape(output.shape), findings)
    bad = [f"{names} ({why})" for names, why in findings.misfits.items()]
    bad += [f"{name} ({n} out of the range of its type)" for name, n in findings.overflow.items()]
    if bad:
        raise ConversionError(f"{len(bad)} states of the optimizer do not fit: {'; '.join(bad)}", bad)
    return out


class _Job:
    """One way from PyTorch to MindSpore."""

    def __init__(
        self,
        mapping: ParameterMapping,
        state: TorchState,
        target: MindSporeOptimizer,
        listing: Listed | None,
        names: Sequence[str] | None,
        step: int | None,
    ) -> None:
        self.mapping = mapping.invert() if mapping.reverse else mapping
        self.state, self.target = state, target
        self.lost: dict[str, str] = {}
        self.differs: list[str] = []
        self.notes: list[str] = []
        mapped = [name for entry in self.mapping.entries for name in entry.mindspore]
        self.called = theirs_of(mapped, target.names)  # the mapping's MindSpore name -> the optimizer's
        trained = {n for e in self.mapping.entries if any(m in self.called for m in e.mindspore) for n in e.torch}
        known = torch_shapes(self.mapping, {m: target.shapes[n] for m, n in self.called.items()})
        self.where, self.told = positions_of(self.mapping, state, listing, names, trained, known)
        self.group_of = {i: g for g, members in enumerate(state.members) for i in members}
        self.entries = list(self._trained())
        self.step = self._step(step)

    def _trained(self) -> Iterator[tuple[Entry, tuple[str, ...]]]:
        """The entries whose parameters both optimizers train, with MindSpore's names there."""
        faults, ours, theirs = [], set[str](), set[str]()
        for entry in self.mapping.entries:
            odd = [name for name in entry.torch if name not in self.where]
            odd += [name for name in entry.mindspore if name not in self.called]
            if not odd:
                names = tuple(self.called[name] for name in entry.mindspore)
                ours.update(entry.torch)
                theirs.update(names)
                yield entry, names
            elif len(odd) < len(entry.torch) + len(entry.mindspore) and not self._is_one_sided(entry):
                faults.append(f"{entry} (not trained: {', '.join(odd)})")
        if faults:
            raise ConversionError(f"{len(faults)} entries are trained in part: {'; '.join(faults)}", faults)
        for side, alone in (
            ("PyTorch", [name for name in self.where if name not in ours]),
            ("MindSpore", [name for name in self.target.names if name not in theirs]),
        ):
            if alone:
                more = f" and {len(alone) - 1} more are" if len(alone) > 1 else " is"
                self._differ(f"{alone[0]}{more} trained in {side} only")

    def _is_one_sided(self, entry: Entry) -> bool:
        """Whether all of an entry's parameters are trained on one side, and none on the other."""
        here = {name in self.where for name in entry.torch}
        there = {name in self.called for name in entry.mindspore}
        return len(here) == len(there) == 1

    def _differ(self, what: str) -> None:
        if what not in self.differs:
            self.differs.append(what)

    def _step(self, given: int | None) -> int | None:
        steps = set(self.state.steps.values())
        if len(steps) > 1:
            counts = ", ".join(
                f"{n} at step {s}" for s, n in sorted(Counter(self.state.steps.values()).items(), reverse=True)
            )
            self._differ(f"MindSpore counts the steps once for all parameters, PyTorch has {counts}")
        return max(steps) if steps else given

    # -- values ----------------------------------------------------------------------------------------------------

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        return tuple(s for s in self.target.kind.slots if any(s in held for held in self.target.states.values()))

    def tasks(self) -> list[Task]:
        """What makes each state and scalar."""
        out: list[Task] = []
        kind = self.target.kind
        rates: dict[str, dict[str, float]] = {}
        for entry, names in self.entries:
            chain = moment_chain(entry)
            at = [self.where[name] for name in entry.torch]
            fresh = not any(self.state.slots.get(i) for i in at)
            rate = float(self._group(entry, at).get("lr", 0.0))
            for slot in self._wanted:
                if all(slot in self.target.states[name] for name in names):
                    out += self._of_slot(entry, chain, at, slot, rate, names)
            for own in kind.own:  # SGD's mark of the first step
                for name in names:
                    held = self.target.states[name][own]
                    out.append(self._one(held, Filled(self.target.shapes[name], "float32", float(fresh))))
            for name in names:
                held_rate = self.target.rates.get(name)
                if held_rate is not None:
                    rates.setdefault(held_rate, {})[name] = rate
        return out + [self._one(name, Held(array)) for name, array in self._scalars(rates).items()]

    def _group(self, entry: Entry, at: Sequence[int]) -> Mapping[str, Any]:
        groups = {self.group_of[i] for i in at}
        if len(groups) > 1:
            self._differ(f"{', '.join(entry.torch)} are in several of PyTorch's groups, and one in MindSpore")
        return self.state.groups[min(groups)]

    def _one(self, held: str, given: Stored) -> Task:
        """A state that comes from nothing in PyTorch, or a number."""
        made = Output(held, held, given.shape, given.dtype, self.target.dtypes.get(held, given.dtype))
        return Task((f"{held} (of the optimizer)",), (given,), (), (made,))

    def _of_slot(
        self,
        entry: Entry,
        chain: Sequence[Transform],
        at: Sequence[int],
        slot: str,
        rate: float,
        names: Sequence[str],
    ) -> list[Task]:
        """One state of an entry's parameters, as MindSpore has them."""
        goals = [tuple(self.target.shapes[name]) for name in names]
        held = [self.target.states[name][slot] for name in names]
        found = [self.state.slots.get(i, {}).get(slot) for i in at]
        there = [tensor for tensor in found if tensor is not None]
        if not there:
            return [self._one(h, Filled(shape, "float32")) for h, shape in zip(held, goals, strict=True)]
        given: Sequence[Stored] = there
        if len(there) < len(found):
            shapes = shapes_before(chain, goals, entry)
            given = [t or Filled(shape, there[0].dtype) for t, shape in zip(found, shapes, strict=True)]
        if slot == "momentum_buffer" and self.target.kind.scaled:
            given = [Scaled((tensor,), rate) for tensor in given]
        try:
            made = transforms.shape_after(chain, [tensor.shape for tensor in given])
            changed = dtypes_after(chain, [tensor.dtype for tensor in given])
        except TransformError as e:
            raise ConversionError(f"{slot} of {', '.join(entry.torch)} does not fit: {e}", entry.torch) from None
        for shape, goal, name in zip(made, goals, names, strict=True):
            if math.prod(shape) != math.prod(goal):
                raise ConversionError(
                    f"{slot} of {', '.join(entry.torch)} becomes {list(shape)}, and {name} is {list(goal)}: is it the "
                    "optimizer of this network?",
                    entry.torch,
                )
        outputs = [
            Output(h, h, goal, dtype, self.target.dtypes.get(h, dtype))
            for h, goal, dtype in zip(held, goals, changed, strict=True)
        ]
        given_names = tuple(f"{slot} of {name}" for name in entry.torch)
        return [Task(given_names, tuple(given), tuple(chain), tuple(outputs))]

    def _scalars(self, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Array]:
        """The counter, the learning rates, the momentum, the powers of the betas."""
        kind, groups = self.target.kind, self.state.groups
        found: dict[str, Array] = {}
        counter = kind.counter
        if counter is not None and self.step is not None:
            found[counter.name] = np.full(counter.shape, self.step + counter.start, DTYPES[counter.dtype])
        for name, wanted in rates.items():
            values = set(wanted.values())
            if len(values) > 1:
                listed = ", ".join(f"{v:g}" for v in sorted(values))
                self._differ(f"lr: MindSpore has one learning rate ({name}) where PyTorch has {listed}")
            found[name] = np.array(max(values), np.float32)
        if kind.momentum:
            values = {float(g["momentum"]) for g in groups if "momentum" in g}
            if len(values) > 1:
                listed = ", ".join(f"{v:g}" for v in sorted(values))
                self._differ(f"momentum: MindSpore has one, PyTorch has {listed}")
            if values:
                found["momentum"] = np.array(max(values), np.float32)
        if kind.powers and self.step is not None:
            for i, name in enumerate(("beta1_power", "beta2_power")):
                betas = {float(g["betas"][i]) for g in groups if "betas" in g}
                if betas:
                    power = np.float32(1)
                    for _ in range(
                        self.step if self.step < 100_000 else 0
                    ):  # as MindSpore computes it, with its rounding
                        power = power * np.float32(max(betas))
                    found[name] = np.array(power if self.step < 100_000 else max(betas) ** self.step, np.float32)
        return {name: value for name, value in found.items() if name in self.target.scalars or name in rates}

    # -- what is said ----------------------------------------------------------------------------------------------

    def report(self) -> OptimizerReport:
        """What is carried over, and what is not."""
        kind, carried = self.target.kind, Counter[str]()
        held = [self.where[name] for entry, _ in self.entries for name in entry.torch]
        for i in held:
            carried.update(s for s in self.state.slots.get(i, {}) if s in self._wanted)
        self._say_what_is_lost(held)
        self._compare()
        if kind.lacks and held:
            self._differ(kind.lacks)
        if kind.by_norm:
            for what in joined([entry for entry, _ in self.entries], kind.name):
                self._differ(what)
        for key, what in self.target.defects.items():
            if any(group.get(key) for group in self.state.groups):
                self._differ(what)
        if not self.target.settings:
            self.notes.append(f"make the MindSpore optimizer with the settings of PyTorch's: {settings(self.state)}")
        if kind.unproven:
            self.notes.append(f"the steps of MindSpore's {kind.name} are not proven here: {kind.unproven}")
        if self.step is None and kind.counter is not None and kind.counter.name in self.target.scalars:
            self.notes.append(
                f"PyTorch's {torch_kind(self.state)} does not count its steps, so {kind.counter.name} stays as it is; "
                "it matters to a schedule of the learning rate (step=, --step)"
            )
        rates = tuple(sorted({float(g["lr"]) for g in self.state.groups if "lr" in g}, reverse=True))
        return OptimizerReport(
            torch_kind(self.state),
            kind.name,
            dict(carried),
            self.told,
            self.step,
            rates,
            self.lost,
            tuple(self.differs),
            tuple(self.notes),
        )

    def _say_what_is_lost(self, held: Sequence[int]) -> None:
        counts = Counter(s for i in held for s in self.state.slots.get(i, {}))
        for slot, n in counts.items():
            if slot in self._wanted:
                continue
            why = f"of {n} parameters; "
            if slot == "max_exp_avg_sq":
                why += "the greatest second moments, of amsgrad=True, which the MindSpore optimizer does not keep"
            elif slot in self.target.kind.slots:
                why += f"the MindSpore {self.target.kind.name} was made without it"
            else:
                why += f"MindSpore's {self.target.kind.name} has nothing of the kind"
            self.lost[slot] = why
        if counts:
            for slot in self._wanted:
                optional = slot in ("max_exp_avg_sq", "grad_avg", "momentum_buffer")
                if slot not in counts and not optional:
                    self._differ(f"PyTorch's {torch_kind(self.state)} has no {slot}: is it the same kind of optimizer?")

    def _compare(self) -> None:
        """Settings that lead to other steps, in words."""
        schedule = self.target.schedule(self.step or 0) if self.target.schedule is not None else {}
        rows = []
        for entry, names in self.entries:
            group = self.state.groups[self.group_of[self.where[entry.torch[0]]]]
            for name in names:
                theirs = {**self.target.settings.get(name, {}), **self.target.kind.fixed}
                if name in schedule:
                    theirs["lr"] = schedule[name]
                rows.append((group, theirs, name))
        for what in differing(rows, self.target.kind.name):
            self._differ(what)


def _edge(framework: str) -> Any:
    return importlib.import_module(f"automap.{framework}_optimizers")
