"""What a conversion did, as values: of a state dict, of a network, of files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from automap.loss_scale import LossScaleReport
    from automap.optimizer_state import OptimizerReport


@dataclass
class ConversionReport:
    """What a conversion changed and left out. ``apply`` fills in the one it is given.

    Attributes:
        casts: the dtype before and after, by the name of the new parameter, where they differ.
        overflow: how many finite values the new dtype could not reach, by name.
        underflow: how many values became zero in the new dtype, by name.
        coarse: how many values changed by more than one in a hundred, because the new dtype is coarse so near to zero;
            those that became zero are among them.
        reshaped: new parameters that the mapping only renames, and that took the target's shape because the two differ
            in dimensions of size 1 alone.
        fitted: what else was done to new parameters so that they fit the target, by name: interpolated, filled up ...
        merged: weights of the state dict that LoRA was merged into, by their names without it.
        left_out: tensors of the state dict that the new one lacks, with the reason.
        not_made: parameters of the other side that nothing was made for, with the reason.
        prefix: what was taken from the front of every name of the state dict, and what was put there instead.
        notes: what the user should hear about where the state dict was, and what else was there.
    """

    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    overflow: dict[str, int] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    coarse: dict[str, int] = field(default_factory=dict)
    reshaped: list[str] = field(default_factory=list)
    fitted: dict[str, str] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    not_made: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, str] = ("", "")
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{n} cast {old} -> {new}" for (old, new), n in sorted(Counter(self.casts.values()).items())]
        kept = {name: n for name, n in self.coarse.items() if n > self.underflow.get(name, 0)}
        for lost, what in (
            (self.overflow, "out of the range of"),
            (self.underflow, "turned to zero in"),
            (kept, "changed by more than 1 %, or turned to zero, in"),
        ):
            if lost:
                names = ", ".join(f"{name} ({n})" for name, n in lost.items())
                parts.append(f"{sum(lost.values())} value(s) {what} the new dtype: {names}")
        if self.reshaped:
            parts.append(f"{len(self.reshaped)} reshaped by dimensions of size 1")
        if self.fitted:
            names = ", ".join(f"{name} ({what})" for name, what in self.fitted.items())
            parts.append(f"{len(self.fitted)} fitted to the target: {names}")
        if self.merged:
            parts.append(f"LoRA merged into {len(self.merged)} weight(s)")
        if self.left_out:
            parts.append(f"{len(self.left_out)} left out")
        if any(self.prefix):
            parts.append("prefix {!r} read as {!r}".format(*self.prefix))
        return "; ".join(parts) or "nothing but what the mapping says"


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
        output: the file or folder.
        tensors: how many tensors are in it.
        bytes: the size of the file, or of all files together.
        needs_review: whether the mapping has something that a person has to look at.
        conversion: what happened on the way.
        verified: how many tensors were read back and compared: all of them, or none where that was not wanted.
        files: the names of the files with tensors.
        resumed: how many of the files an earlier run had written.
        optimizer: what became of the optimizer's state, where it was asked for.
        loss_scale: what became of the loss scale, where the checkpoint has one and the optimizer was asked for.
    """

    output: str
    tensors: int
    bytes: int
    needs_review: bool
    conversion: ConversionReport
    verified: int = 0
    files: tuple[str, ...] = ()
    resumed: int = 0
    optimizer: OptimizerReport | None = None
    loss_scale: LossScaleReport | None = None

    def __str__(self) -> str:
        parts = [f"{self.tensors} tensors"]
        if len(self.files) > 1:
            parts.append(f"{len(self.files)} files" + (f" ({self.resumed} by an earlier run)" if self.resumed else ""))
        parts.append(f"{self.bytes:,} bytes")
        parts.append(f"{self.verified} read back and equal" if self.verified else "not read back")
        return f"{self.output}: {', '.join(parts)}; {self.conversion}"
