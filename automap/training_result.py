"""What came of training two networks, as values: the losses, what differs first, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from automap.relabeling import Key

Kind = Literal["loss", "gradient", "statistic", "weight"]
#: What is compared at a step, in the order in which a step makes it.
KINDS: tuple[Kind, ...] = ("loss", "gradient", "statistic", "weight")

#: What the loss has as its key.
LOSS: Key = ((), ())


@dataclass(frozen=True)
class Difference:
    """One thing that differs at a step.

    Attributes:
        step: from 1.
        kind: the loss, a gradient, a running statistic or a weight.
        key: PyTorch's and MindSpore's names; none for the loss.
        absolute: how far it is off at most.
        scale: how much there is of it: the loss, the gradient, the way that a weight or statistic has gone.
        allowed: of ``absolute``.
    """

    step: int
    kind: Kind
    key: Key
    absolute: float
    scale: float
    allowed: float

    @property
    def name(self) -> str:
        """Both names, as a mapping prints them."""
        torch, mindspore = (", ".join(names) for names in self.key)
        return torch if torch == mindspore else f"{torch} -> {mindspore}"

    @property
    def gravity(self) -> float:
        """How many times more than allowed."""
        return self.absolute / self.allowed if self.allowed else math.inf

    @property
    def words(self) -> str:
        """Without its step."""
        off = f"off by {self.absolute / self.scale:.2g}" if self.scale else f"off by {self.absolute:.2g}"
        if self.kind == "loss":
            return f"the loss is {off} of its value, allowed {self.allowed / (self.scale or 1):.2g}"
        what = {"gradient": "the gradient by", "statistic": "the running statistic", "weight": "the weight"}[self.kind]
        of = "of its scale" if self.kind == "gradient" else "of the way that it has gone"
        return f"{what} {self.name} is {off} {of if self.scale else '(it does not move in PyTorch)'}"


@dataclass(frozen=True)
class Cause:
    """Why trainings differ, found by experiment.

    Attributes:
        what: in one word: ``"momentum of BatchNorm"``, ``"weight decay"``, ``"epsilon"`` ...
        words: one sentence.
        names: the parameters that it explains.
    """

    what: str
    words: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Training:
    """What came of training both networks.

    Attributes:
        steps: how many each took.
        loss: in words.
        optimizer: in words.
        torch: PyTorch's loss before each step.
        mindspore: MindSpore's.
        allowed: the difference allowed at each step.
        telling: how many steps rounding leaves enough of to tell something.
        compared: how many weights and running statistics were compared after each.
        differences: what differs first, all of one step and kind, the worst first; none if they agree.
        causes: why.
        greatest: the greatest difference of the losses of these steps, relative.
        notes: what else there is to know, a sentence each.
        mapping_is_wrong: whether every difference is one parameter's gradient at the place of another.
        nothing: why agreement would mean nothing, or ``""``.
    """

    steps: int
    loss: str
    optimizer: str
    torch: tuple[float, ...]
    mindspore: tuple[float, ...]
    allowed: tuple[float, ...]
    telling: int
    compared: int
    differences: tuple[Difference, ...] = ()
    causes: tuple[Cause, ...] = ()
    greatest: float = 0.0
    notes: tuple[str, ...] = ()
    mapping_is_wrong: bool = False
    nothing: str = ""

    @property
    def passed(self) -> bool:
        """Whether the trainings agree, and that means something."""
        return not self.differences and not self.nothing and not self.causes

    @property
    def words(self) -> str:
        """A sentence without its full stop."""
        how = f"{self.steps} step(s) of training ({self.optimizer}; {self.loss})"
        if self.differences:
            first, more = self.differences[0], len(self.differences) - 1
            rest = f", and {more} more" if more else ""
            return f"the training differs from step {first.step} on: {first.words}{rest}"
        if self.causes:
            return f"{how} agree without dropout, but with it they would not"
        if self.nothing:
            return f"{how} prove nothing: {self.nothing}"
        less = f"; rounding leaves nothing to tell after step {self.telling}" if self.telling < self.steps else ""
        parts = (a / abs(x) for a, x in zip(self.allowed[: self.telling], self.torch, strict=False) if x)
        allowed = f", allowed {max(parts, default=0.0):.2g}"
        return f"{how} agree: losses off by at most {self.greatest:.2g} of their value{allowed}{less}"

    def lines(self) -> list[str]:
        """What the verdict does not say yet."""
        out = [f"{d.words}; allowed {_share(d)}" for d in self.differences[1:5]]
        out += [f"cause: {cause.words}" for cause in self.causes]
        if self.differences and not self.causes:
            out.append("no cause was found for it by experiment")
        return out


def _share(d: Difference) -> str:
    return f"{d.allowed / d.scale:.2g}" if d.scale else f"{d.allowed:.2g}"
