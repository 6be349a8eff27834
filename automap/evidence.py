"""What running both networks proved about a mapping: a value that is kept with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

#: proven: the outputs agree. differs: they do not, though the mapping holds as far as the run could tell. open: they
#: do not, and why is not known. not run: a network cannot run here. no input: none is known that both take.
Status = Literal["proven", "differs", "open", "not run", "no input"]

STATUSES: tuple[Status, ...] = get_args(Status)

_EXIT: dict[Status, int] = {"proven": 0, "differs": 3, "open": 1, "not run": 4, "no input": 0}


@dataclass(frozen=True)
class Proof:
    """What came of running both networks with the mapped weights.

    Numbers are relative to the greatest value of an output.

    Attributes:
        status: see :data:`Status`.
        reason: one sentence, where there is more to say than the numbers do.
        seeds: of the weights and inputs of each run.
        inputs: the inputs in words.
        error: the greatest difference of the outputs, or None where none could be compared, or some are no numbers.
        floor: how far rounding, and what this machine's kernels are known to be off, move PyTorch's own outputs.
        allowed: what was allowed of ``error``.
        not_exercised: PyTorch parameters in the mapping without an effect on the outputs of these runs.
        alike: pairs of PyTorch parameters that can be exchanged without an effect on the outputs.
        findings: what differs between the networks, one line each.
        repaired: the greatest difference once all that was found is repaired in memory, or None.
        notes: what the runs did in another way than the networks would, such as operations without a kernel here.
    """

    status: Status
    reason: str = ""
    seeds: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    error: float | None = None
    floor: float | None = None
    allowed: float | None = None
    not_exercised: tuple[str, ...] = ()
    alike: tuple[tuple[str, str], ...] = ()
    findings: tuple[str, ...] = ()
    repaired: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("error", "floor", "allowed", "repaired"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None or not math.isfinite(value) else _bound(float(value)))
        for name in ("seeds", "inputs", "not_exercised", "findings", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "alike", tuple((a, b) for a, b in self.alike))

    @property
    def exit_code(self) -> int:
        """0 proven, or nothing to run on; 1 the outputs differ, why is open; 3 the networks differ; 4 one cannot."""
        return _EXIT[self.status]

    def __str__(self) -> str:
        runs = f"{len(self.seeds)} seed" + "s" * (len(self.seeds) != 1)
        figures = "" if self.error is None else f": off by less than {self.error:.0e} of their scale"
        if self.allowed is not None and self.floor is not None:
            figures += f" (rounding alone: {self.floor:.0e}, allowed: {self.allowed:.0e})"
        if self.status == "proven":
            words = f"proven by running both networks: the outputs agree under {runs}{figures}"
        elif self.status == "differs":
            words = f"the mapping holds, but the networks differ{figures}"
            if self.repaired is not None:
                words += f"; with all of it repaired: less than {self.repaired:.0e}"
        elif self.status == "open" and self.error != 0:
            words = f"not proven: the outputs differ{figures}"
        else:
            words = "not proven"
        return f"{words}{'; ' if self.reason else ''}{self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file, without what is empty."""
        out: dict[str, Any] = {"status": self.status}
        for name in ("reason", "seeds", "inputs", "error", "floor", "allowed", "repaired"):
            value = getattr(self, name)
            if value not in ("", (), None):
                out[name] = list(value) if isinstance(value, tuple) else value
        for name in ("not_exercised", "findings", "notes"):
            if getattr(self, name):
                out[name] = list(getattr(self, name))
        if self.alike:
            out["alike"] = [list(pair) for pair in self.alike]
        return out


def _bound(value: float) -> float:
    """The power of ten above a number: it is the same in every run, where the digits are not."""
    if value <= 0:
        return 0.0
    return float(f"1e{math.ceil(math.log10(value) - 1e-9)}")
