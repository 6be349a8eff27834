"""What came of a validation: a verdict, the comparisons it rests on, and both in words, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from automap import consultation, parity
from automap.comparison import Comparison
from automap.curvature import Curvature
from automap.findings import Finding
from automap.gradients import Gradients
from automap.power import Strength
from automap.training_result import Training

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Validation:
    """What came of running both networks.

    Attributes:
        passed: every output of every run agrees, and the agreement means something.
        verdict: one sentence.
        exit_code: 0 passed; 1 the outputs differ, by the mapping's fault or for a reason that is not clear; 3 the
            mapping holds, but the networks differ; 4 one of the networks cannot run here, so nothing was proven.
        outputs: every comparison, run by run.
        assumptions: one sentence for everything that was guessed, or left out of the comparison.
        left_out: MindSpore parameters that the mapping does not reach; they kept their initial values.
        inputs: the inputs in words, as ``parse_input`` reads them.
        seed: of the weights and inputs.
        operation: the operation that has no kernel here (exit code 4), else ``""``.
        gradients: what came of comparing the gradients, or None if nobody asked or they cannot be had.
        curvature: the same of the second derivatives.
        findings: every cause of a difference that an examination layer by layer found, in the order of execution.
        power: what this run would have noticed, where it passed: parameters without an effect, and exchanges.
        training: what came of steps of training, or None if nobody asked, or the outputs differ already.
    """

    passed: bool
    verdict: str
    exit_code: int
    outputs: tuple[Comparison, ...] = ()
    assumptions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    seed: int = 0
    operation: str = ""
    gradients: Gradients | None = None
    curvature: Curvature | None = None
    findings: tuple[Finding, ...] = ()
    power: Strength | None = None
    training: Training | None = None

    @property
    def greatest(self) -> float | None:
        """The greatest difference of any output relative to its scale, or None if nothing could be compared."""
        numbers = [c.to_scale for c in self.outputs if c.problem in ("", "values", "not a number")]
        return max(numbers, default=None)

    @property
    def allowed(self) -> float | None:
        """What was allowed of it: the tightest bound of all outputs, relative to their scales."""
        return min((c.allowed / c.scale for c in self.outputs if c.scale), default=None)

    def __str__(self) -> str:
        lines = [self.verdict, *(f"  {c.words}" for c in self.outputs if c.words not in self.verdict and not c.passed)]
        found = consultation.lines(self.findings)
        more = [*found, *parity.lines(self.gradients, self.curvature, self.verdict)]
        more += [] if self.training is None else self.training.lines()
        return "\n".join([*lines, *(f"  {a}" for a in (*more, *self._notes))])

    @property
    def _notes(self) -> tuple[str, ...]:
        power = () if self.power is None else self.power.lines()
        training = () if self.training is None else self.training.notes
        return (*self.assumptions, *power, *parity.notes(self.gradients, self.curvature), *training)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        mark = Text("passed  ", style="bold green") if self.passed else Text("failed  ", style="bold red")
        parts: list[RenderableType] = [mark + Text(self.verdict, style="default")]
        if self.outputs:
            table = Table(box=None, pad_edge=False, header_style="dim")
            for title in ("output", "run", "shape", "off by", "of its scale", "allowed", "differing"):
                table.add_column(title, justify="left" if title in ("output", "shape") else "right")
            for c in self.outputs:
                table.add_row(
                    Text(c.where, style="" if c.passed else "red"),
                    str(c.run),
                    "×".join(map(str, c.shape)) or "scalar",
                    *(("", "", "", c.problem) if c.problem in ("shape", "structure") else _figures(c)),
                )
            parts.append(table)
        parts += consultation.table(self.findings)
        parts += parity.tables(self.gradients, self.curvature)
        parts += [] if self.training is None else [Text(line) for line in self.training.lines()]
        parts += [Text(f"note: {a}", style="dim") for a in self._notes]
        return Group(*parts)

    def to_json(self) -> str:
        """Everything as JSON; a number that JSON lacks (infinity) becomes a string."""
        content = {"format": "automap-validation/1", **dataclasses.asdict(self)}
        content["greatest"] = self.greatest
        content["allowed"] = self.allowed
        if self.gradients is not None:
            content["gradients"] |= {"passed": self.gradients.passed, "greatest": self.gradients.greatest}
        if self.curvature is not None:
            content["curvature"]["passed"] = self.curvature.passed
        if self.training is not None:
            content["training"]["passed"] = self.training.passed
        return json.dumps(_plain(content), indent=1, ensure_ascii=False) + "\n"


def _figures(c: Comparison) -> tuple[str, str, str, str]:
    allowed = f"{c.allowed / c.scale:.2g}" if c.scale else f"{c.allowed:.2g}"
    return f"{c.absolute:.2g}", f"{c.to_scale:.2g}", allowed, f"{c.differing} of {c.total}"


def _plain(value: Any) -> Any:
    """A value that JSON has: an infinity or a not-a-number as a word."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
