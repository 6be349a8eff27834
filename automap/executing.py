"""A plan carried out on values: what both the conversion in memory and the one from file to file do to a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from automap import transforms
from automap.dtypes import Array, cast, is_same, is_zero, nans, nonzeros
from automap.errors import TransformError
from automap.planning import Output, Plan, Task


@dataclass
class Findings:
    """What only the values tell, of some of a plan's tensors. Several can be added up.

    Attributes:
        nans: for each tensor with NaN, how many of how many elements.
        unequal: further names of a tied weight that have other values, and its name.
        nonzero: tensors without a counterpart that are not zero, and why they have none.
        misfits: entries whose transform the values do not fit, and why.
        overflow: by the name of the tensor made, how many values its type could not reach.
        underflow: how many turned to zero.
        inexact: how many whole numbers, or fractions of them, were changed.
        coarse: how many small values changed by more than one in a hundred, those that turned to zero among them.
    """

    nans: dict[str, tuple[int, int]] = field(default_factory=dict)
    unequal: dict[str, str] = field(default_factory=dict)
    nonzero: dict[str, str] = field(default_factory=dict)
    misfits: dict[str, str] = field(default_factory=dict)
    overflow: dict[str, int] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    inexact: dict[str, int] = field(default_factory=dict)
    coarse: dict[str, int] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        """Add what was found elsewhere, about other tensors."""
        for name, found in vars(other).items():
            getattr(self, name).update(found)

    def note(self, plan: Plan) -> None:
        """Put it all into a plan's report and faults, in the plan's order."""
        faults, report = plan.faults, plan.report
        for name in plan.read:
            if name in self.nans:
                faults.add("with NaN", "{} ({} of {})".format(name, *self.nans[name]))
        for name, other in self.unequal.items():
            faults.add("another name of a tied weight with other values", f"{name} (of {other})")
        for name, why in self.nonzero.items():
            faults.add("not zero and without a counterpart", f"{name} ({why})")
        for task in plan.tasks:
            names = ", ".join(task.names)
            if names in self.misfits:
                is_cast = any(t.op == "cast" for t in task.chain)
                fault = "of a dtype that does not fit" if is_cast else "with values that do not fit"
                faults.add(fault, f"{names} ({self.misfits[names]})")
            for output in task.made:
                if n := self.overflow.get(output.name):
                    report.overflow[output.key] = n
                    if not plan.allow_overflow:
                        faults.add("out of the range of the new dtype", f"{output.name} ({n} in {output.dtype})")
                if n := self.underflow.get(output.name):
                    report.underflow[output.key] = n
                if n := self.inexact.get(output.name):
                    faults.add("not exact in the new dtype", f"{output.name} ({n} in {output.dtype})")
                if n := self.coarse.get(output.name):
                    report.coarse[output.key] = n
                    if n > plan.max_lost * (size := prod(output.shape)):
                        zeros = self.underflow.get(output.name, 0)
                        said = f"{output.name} ({n} of {size} in {output.dtype}, {zeros} of them turn to zero)"
                        faults.add("too small for the new dtype", said)

    def is_fatal(self, allow_overflow: bool) -> bool:
        """Whether there is something that forbids the conversion."""
        overflow = self.overflow and not allow_overflow
        return bool(self.nans or self.unequal or self.nonzero or self.misfits or overflow or self.inexact)


def look(name: str, array: Array, size: int, findings: Findings) -> None:
    """Count what is no number in a tensor of ``size`` elements, or in a part of it."""
    if n := nans(array):
        findings.nans[name] = (findings.nans.get(name, (0, 0))[0] + n, size)


def look_at_leftovers(plan: Plan, findings: Findings) -> None:
    """See whether what is left out may be."""
    for left in plan.leftovers:
        array = left.tensor.read()
        if left.same_as is not None and not is_same(array, left.same_as[1].read()):
            findings.unequal[left.name] = left.same_as[0]
        elif left.zero and not is_zero(array):
            findings.nonzero[left.name] = left.why


def change(task: Task, given: Sequence[Array], findings: Findings) -> list[Array]:
    """The arrays that an entry's transforms make, not yet cast; none where the values do not fit, which is noted."""
    try:
        changed = list(transforms.apply(task.chain, given))
    except TransformError as e:
        findings.misfits[", ".join(task.names)] = str(e)
        return []
    if any(t.op == "cast" for t in task.chain) and (lost := sum(map(nonzeros, given)) - sum(map(nonzeros, changed))):
        _count(findings.underflow, task.made[0].name, lost)
    return changed


def finish(output: Output, array: Array, findings: Findings) -> Array:
    """An array, or a part of one, in the type that it gets; what is lost is noted."""
    if output.changed == output.dtype:
        return array
    made, loss = cast(array, output.dtype)
    _count(findings.overflow, output.name, loss.overflow)
    _count(findings.underflow, output.name, loss.underflow)
    _count(findings.inexact, output.name, loss.inexact)
    _count(findings.coarse, output.name, loss.coarse)
    return made


def in_memory(plan: Plan) -> dict[str, Array]:
    """A plan's tensors by name, views of those given where nothing has to change.

    Raises:
        ConversionError: something stands in the way; every offender is named.
    """
    given = {name: tensor.read() for name, tensor in plan.read.items()}
    findings = Findings()
    if not plan.allow_nan:
        for name, array in given.items():
            look(name, array, array.size, findings)
    look_at_leftovers(plan, findings)
    findings.note(plan)
    plan.faults.check()
    findings, made = Findings(), {}
    for task in plan.tasks:
        changed = change(task, [given[name] for name in task.names], findings)
        for output, array in zip(task.made, changed, strict=False):
            made[output.key] = finish(output, array, findings)
    findings.note(plan)
    plan.faults.check()
    return made | {copy: made[o.key] for task in plan.tasks for o in task.made for copy in o.copies}


def _count(counts: dict[str, int], name: str, n: int) -> None:
    if n:
        counts[name] = counts.get(name, 0) + n
