"""What a validation says of training: the gradients and the curvature that were asked for, after the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from automap.curvature import Curvature, compare_curvature
from automap.dtypes import is_float
from automap.errors import NotRunnableError
from automap.gradients import Case, GradientComparison, Gradients, Point, compare_gradients
from automap.graph import Listing
from automap.mapping import Mapping
from automap.relabeling import Links
from automap.training import UNITS, Course
from automap.training import examine as examine_training
from automap.training_batches import Batches, Wish
from automap.training_beginning import Beginning
from automap.training_result import Training

if TYPE_CHECKING:
    from rich.console import RenderableType

    from automap.outcome import Validation
    from automap.probing import Probe

#: So many differing gradients are shown, the worst first.
_SHOWN = 20


@dataclass(frozen=True)
class Wanted:
    """What is asked for beside the outputs.

    Attributes:
        gradients: whether the gradients are compared; they are with any of the others.
        directions: along how many directions the curvature is.
        eigenvalue: whether the greatest eigenvalue of the Hessian is.
        training: the steps of training that are, if any.
    """

    gradients: bool = False
    directions: int = 0
    eigenvalue: bool = False
    training: Wish = field(default_factory=Wish)

    def __bool__(self) -> bool:
        return self.gradients or self.bends

    @property
    def bends(self) -> bool:
        """Whether anything of the curvature is asked for."""
        return self.directions > 0 or self.eigenvalue


@dataclass(frozen=True)
class Parity:
    """The answer, and what a validation becomes with it; the fields are those of ``Validation``."""

    passed: bool
    verdict: str
    exit_code: int
    gradients: Gradients | None = None
    curvature: Curvature | None = None
    operation: str = ""


def train(
    wish: Wish,
    point: Point,
    statistics: Links,
    probe: Probe,
    case: Case,
    rtol: float | None,
    mapping: Mapping,
    weights: Any,
) -> Training:
    """Take steps of training in both networks, from the weights of a point; see ``training``.

    ``weights`` are what the point's are from: the state of an optimizer may be beside them.

    Raises:
        InputError: there is no loss to train for, or a batch is not what the networks take.
        NotRunnableError: a network cannot be trained here.
    """
    from automap import mindspore_training, torch_training

    way: Any = torch_training.Trainer
    ms_way: Any = mindspore_training.Trainer
    batches = Batches(wish, probe, point.seed, case.torch, case.mindspore)
    pairs = [value if isinstance(value, tuple) else (value, value) for value in (batches.loss, wish.optimizer)]
    beginning = Beginning.of(weights, wish.step) if wish.go_on else None
    (loss, optimizer), (ms_loss, ms_optimizer) = zip(*pairs, strict=True)

    def further(forward: Any) -> tuple[Any, ...]:
        return wish.lr, wish.weight_decay, forward, wish.every, beginning

    ours = way(point.torch, loss, optimizer, *further(point.torch_forward))
    theirs = ms_way(point.mindspore, ms_loss, ms_optimizer, *further(point.ms_forward))
    if beginning is not None:
        theirs.goes_on_from(ours, mapping, point.links)
    course = Course(
        ours,
        theirs,
        point.links,
        statistics,
        point.state,
        point.made,
        batches,
        lambda seed: point.torch._noisy(seed, point.kernel_noise(), UNITS),
        point.seed,
    )
    made = examine_training(course, wish, (point.torch.dtype, point.mindspore.dtype), rtol)
    unused = [] if wish.go_on else Beginning.unused(weights)
    return replace(made, notes=(*made.notes, *unused))


def statistics_of(mapping: Mapping, listing: Listing, target: Listing) -> Links:
    """The running statistics: every buffer of floating-point numbers that an entry has."""
    buffers = {name for p in listing if p.kind == "buffer" and is_float(p.dtype or "") for name in (p.name, *p.aliases)}
    turned = tuple(replace(p, kind="parameter" if p.name in buffers else "buffer") for p in listing)
    return Links.of(mapping, replace(listing, parameters=turned), target, buffers, buffers)


def with_training(result: Validation, training: Callable[[], Training]) -> Validation:
    """A validation with a training, where it passed so far."""
    if not result.passed:
        note = "no training was compared: the outputs, or what else was asked for, have to agree first"
        return replace(result, assumptions=(*result.assumptions, note))
    made = training()
    code = 0 if made.passed else 1 if made.mapping_is_wrong or made.nothing else 3
    verdict = _joined(result.verdict, [made.words], but=not made.passed)
    return replace(result, passed=made.passed, verdict=verdict, exit_code=code, training=made)


def examine(wanted: Wanted, point: Point, cases: Sequence[Case], passed: bool, verdict: str, exit_code: int) -> Parity:
    """Compare what is wanted, and add it to the verdict on the outputs.

    Outputs that differ decide the exit code. Where they agree, gradients or curvature that differ are the networks'
    fault (3), unless the gradients show a wrong entry (1); a backward that cannot run here proves nothing (4).
    """
    gradients: Gradients | None = None
    bend: Curvature | None = None
    try:
        gradients = compare_gradients(point, cases, located=passed)
        if wanted.bends:
            bend = compare_curvature(point, cases[0], wanted.directions, wanted.eigenvalue)
    except NotRunnableError as error:
        known = [] if gradients is None else [gradients.words]
        words = _joined(verdict, [*known, str(error)], but=False)
        return Parity(False, words, error.exit_code if passed else exit_code, gradients, None, error.operation)
    parts = [part for part in (gradients, bend) if part is not None]
    good = all(part.passed for part in parts)
    words = _joined(verdict, [part.words for part in parts], but=passed and not good)
    if passed and not good:
        differing = any(part.of("differs") for part in parts)
        exit_code = 1 if gradients.mapping_is_wrong or not differing else 3
    return Parity(passed and good, words, exit_code, gradients, bend)


def lines(gradients: Gradients | None, curvature: Curvature | None, verdict: str) -> list[str]:
    """What the verdict does not say yet, a line each."""
    out: list[str] = []
    if gradients is not None:
        worst = _worst(gradients)
        out += [f"gradient {c.words}" for c in worst[:_SHOWN] if c.words not in verdict]
        if len(worst) > _SHOWN:
            out.append(f"and {len(worst) - _SHOWN} more gradients")
    if curvature is not None:
        out += [f"curvature {b.words}" for b in curvature.bends if b.words not in verdict]
    return out


def notes(gradients: Gradients | None, curvature: Curvature | None) -> list[str]:
    """What was left out, and what else there is to know."""
    out: list[str] = []
    if gradients is not None:
        reasons: dict[str, list[str]] = {}
        for name, why in gradients.left_out:
            reasons.setdefault(why, []).append(name)
        for why, names in reasons.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            out.append(f"{len(names)} gradient(s) were not compared ({why}): {', '.join(names[:3])}{more}")
        out += gradients.notes
    if curvature is not None:
        out += curvature.notes
    return out


def tables(gradients: Gradients | None, curvature: Curvature | None) -> list[RenderableType]:
    """The differing gradients and every number of the curvature, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    out: list[RenderableType] = []

    def table(*titles: str) -> Table:
        made = Table(box=None, pad_edge=False, header_style="dim")
        for title in titles:
            made.add_column(title, justify="left" if title in titles[:1] else "right")
        out.append(made)
        return made

    if gradients is not None and gradients.of("differs"):
        made = table("gradient by", "run", "scale", "off by", "of its scale", "allowed")
        for c in _worst(gradients)[:_SHOWN]:
            name = f"{c.name} (that of {c.same_as})" if c.same_as else c.name
            figures = (c.scale, c.absolute, c.to_scale, c.allowed / c.scale if c.scale else c.allowed)
            made.add_row(Text(name, style="red"), str(c.run), *(f"{x:.2g}" for x in figures))
    if curvature is not None and curvature.bends:
        made = table("curvature", "PyTorch", "MindSpore", "off by", "allowed")
        for b in curvature.bends:
            style = {"agrees": "", "differs": "red"}.get(b.state, "dim")
            allowed = b.allowed / abs(b.torch) if b.torch else b.allowed
            numbers = (f"{b.torch:.6g}", f"{b.mindspore:.6g}", f"{b.to_scale:.2g}", f"{allowed:.2g}")
            made.add_row(Text(b.what, style=style), *numbers)
    return out


def _worst(gradients: Gradients) -> list[GradientComparison]:
    return sorted(gradients.of("differs"), key=lambda c: (-c.to_scale, -c.absolute))


def _joined(verdict: str, more: Sequence[str], but: bool) -> str:
    return f"{verdict.removesuffix('.')}{', but ' if but else '; '}{'; '.join(more)}."
