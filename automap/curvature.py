"""Curvature parity: whether the loss bends the same way in both networks, so that training takes the same path.

The Hessian H of a loss is never made. What it does to a direction v comes from two gradients, by central differences:
H v = (g(x + h v) - g(x - h v)) / 2h, off by the order of h squared. Such products, how to get them exactly and what
these differences cost in digits are the matter of B. A. Pearlmutter, "Fast exact multiplication by the Hessian", Neural
Computation 6(1), 1994; differences are used here because they need nothing but gradients, which both frameworks have.
Both networks are asked at the very same points: the error of the differences is the same in both, and only rounding
parts them.

The loss is that of the gradients plus half the squares of the outputs, with the same weights without their signs. A
loss that is linear in the outputs would not bend at all along one layer of a network that is piecewise linear (ReLU),
only where two layers multiply. The squares add ``J' |W| J`` (J: the outputs by the parameters), which every network
has. At a kink there is no second derivative; the differences give the mean over the step, with the kinks it crosses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from automap.dtypes import Array, cast, dtype_name, widen
from automap.errors import AutomapError
from automap.gradients import EPS, Case, Point
from automap.relabeling import Arrays
from automap.seeding import generator

#: How many directions are tried, where nobody says.
DIRECTIONS = 3

#: Two right networks may differ by this share of the curvature, even where less noise is seen.
_SHARE = {"float64": 1e-6, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}

#: The noise is seen in a few samples; the greatest difference may be a few times larger.
_SPREAD_FACTOR = 4.0

#: Where noise alone may be this share of the curvature, agreement says nothing.
_TOO_NOISY = 0.25

#: Where half the step changes the number by more than this share, it is no derivative.
_KINKED = 0.1

#: Power iteration ends when the eigenvalue changes by less than this share of itself, or after so many steps.
_CONVERGED, _STEPS = 1e-3, 30

State = Literal["agrees", "differs", "not exercised"]

#: The gradient at a point: both by PyTorch's names.
Gradient = Callable[[Arrays], dict[str, Array]]
Vector = dict[str, Array]


@dataclass(frozen=True)
class Bend:
    """One number of the curvature in both networks.

    Attributes:
        what: ``direction 1`` and so on, or ``greatest eigenvalue``.
        state: whether the numbers agree or differ; *not exercised* where they cannot be told from rounding.
        words: one sentence on it.
        torch: PyTorch's number, in float64 where the network could be copied in it.
        mindspore: MindSpore's number.
        absolute: how far they are apart.
        to_scale: ``absolute`` relative to PyTorch's number.
        noise: what rounding was seen to do to PyTorch's number, absolute.
        allowed: what was allowed of ``absolute``.
        truncation: how much the number changes with half the step, absolute: how far it is from a true derivative. It
            is the same in both networks. 0.0 where it was not measured.
        steps: of the power iteration; 0 for a direction.
        converged: whether the power iteration came to rest.
    """

    what: str
    state: State
    words: str
    torch: float
    mindspore: float
    absolute: float
    to_scale: float
    noise: float
    allowed: float
    truncation: float = 0.0
    steps: int = 0
    converged: bool = True


@dataclass(frozen=True)
class Curvature:
    """What came of comparing the curvature.

    Attributes:
        bends: one for each direction, and one for the greatest eigenvalue where it was asked for.
        step: by which share of its own size a parameter moves, at most.
        reference: the element type of PyTorch's numbers.
        parameters: how many numbers the compared parameters have.
        notes: what else there is to know, a sentence each.
    """

    bends: tuple[Bend, ...]
    step: float
    reference: str
    parameters: int
    notes: tuple[str, ...] = ()

    def of(self, state: State) -> tuple[Bend, ...]:
        """Those that agree, differ, or cannot be told from rounding."""
        return tuple(b for b in self.bends if b.state == state)

    @property
    def passed(self) -> bool:
        """Whether none differs, and at least one is known to agree."""
        return not self.of("differs") and bool(self.of("agrees"))

    @property
    def words(self) -> str:
        """A sentence without its full stop."""
        differing, agreeing, idle = self.of("differs"), self.of("agrees"), self.of("not exercised")
        silent = f"; {len(idle)} cannot be told from rounding" if idle else ""
        if differing:
            worst = max(differing, key=lambda b: b.to_scale)
            return (
                f"the curvature differs in {len(differing)} of {len(self.bends)} number(s), most {worst.words}{silent}"
            )
        if not agreeing:
            reason = "it cannot be told from rounding" if idle else "there is nothing to differentiate"
            return f"the curvature proves nothing: {reason}"
        greatest = max(b.to_scale for b in agreeing)
        return f"the curvature agrees in {len(agreeing)} number(s): off by at most {greatest:.2g} of itself{silent}"


def compare_curvature(point: Point, case: Case, directions: int = DIRECTIONS, eigenvalue: bool = False) -> Curvature:
    """Compare the second derivative of the loss along seeded directions, and the Hessian's greatest eigenvalue.

    A direction moves every compared parameter by the same share of its own size, or a large table of embeddings would
    have nearly all of it; taken together it is a vector of length 1. The greatest eigenvalue (in absolute value) comes
    by power iteration (R. von Mises and H. Pollaczek-Geiringer, "Praktische Verfahren der Gleichungsauflösung", ZAMM
    9, 1929): a seeded vector is multiplied by the Hessian until it points along the eigenvector, PyTorch until it comes
    to rest, MindSpore as often.

    PyTorch's numbers are computed in float64 where the network can be copied in it. The noise is how far the network's
    own element type, its parameters off by a few units in the last place and this machine's kernel errors move them.

    Args:
        point: both networks.
        case: on which inputs.
        directions: how many.
        eigenvalue: whether the eigenvalue is asked for, which takes two gradients a step.

    Raises:
        NotRunnableError: the backward of one of the networks cannot run here.
    """
    middle = {name: point.state[name] for name in point.links.torch}
    size = sum(a.size for a in middle.values())
    sizes = _sizes(middle)
    eps = EPS[max((point.torch.dtype, point.mindspore.dtype), key=lambda d: EPS[d])]
    share = max(_SHARE[d] for d in (point.torch.dtype, point.mindspore.dtype))
    relative = eps ** (1 / 3)  # where the error of the differences and that of rounding are about the same
    found = case.losses(point.seed, 0, bend=1.0)
    if found is None or not size:
        return Curvature((), relative, point.torch.dtype, size)
    side = _Sides(point, case, *found)
    measure = _Differences(middle, sizes, relative)
    exact = side.double if side.double is not None else side.torch
    bends: list[Bend] = []
    notes: list[str] = []
    if side.double is None:
        notes.append("the PyTorch network does not run in float64: its curvature is measured in its own type")
    noise = 0.0
    rows = []
    for k in range(directions):
        way = _direction(middle, sizes, point.seed, f"direction {k}")
        a, b = measure.along(exact, way), measure.along(side.mindspore, way)
        samples = [measure.along(side.noisy(k), way)]
        samples += [measure.along(side.torch, way)] if side.double is not None else []
        half = _Differences(middle, sizes, relative / 2).along(exact, way) if side.double is not None else a
        noise = max([noise, *(abs(s - a) for s in samples)])
        rows.append((f"along direction {k + 1}", a, b, abs(a - half)))
    bends += [_judged(what, a, b, noise, share, truncation=t) for what, a, b, t in rows]
    if kinks := sum(b.truncation > _KINKED * abs(b.torch) for b in bends):
        notes.append(
            f"along {kinks} direction(s) half the step gives another curvature, by more than {_KINKED:.0%}: the step "
            "holds kinks (as of ReLU), or large parts cancel; it is a mean over the step, the same in both networks"
        )
    if eigenvalue:
        start = _direction(middle, dict.fromkeys(middle, 1.0), point.seed, "start")
        a, steps, converged = measure.greatest(exact, start, _STEPS, _CONVERGED)
        b, _, _ = measure.greatest(side.mindspore, start, steps, 0.0)
        noisy, _, _ = measure.greatest(side.noisy(directions), start, steps, 0.0)
        bends.append(
            _judged("in the greatest eigenvalue", a, b, abs(noisy - a), share, steps=steps, converged=converged)
        )
        if not converged:
            notes.append(f"the greatest eigenvalue had not come to rest after {steps} steps, taken in both networks")
    reference = point.torch.dtype if side.double is None else "float64"
    return Curvature(tuple(bends), relative, reference, size, tuple(notes))


class _Sides:
    """The gradient of each network at any point, by PyTorch's names."""

    def __init__(self, point: Point, case: Case, loss: Any, ms_loss: Any) -> None:
        self.point, self.case, self.loss, self.ms_loss = point, case, loss, ms_loss
        self.names, self.ms_names = point.links.torch, point.links.mindspore
        self.double: Gradient | None = self._in_double()

    def torch(self, at: Arrays) -> dict[str, Array]:
        return self._of(self.point.torch, at)

    def mindspore(self, at: Arrays) -> dict[str, Array]:
        point = self.point
        moved = {n: cast(a, dtype_name(point.made[n]))[0] for n, a in point.links.to_mindspore(at).items()}
        with point.mindspore.holding({**point.made, **moved}):
            found = point.mindspore.gradients(self.case.inputs, self.ms_loss, self.ms_names, point.ms_forward)
        return point.links.to_torch(found)

    def noisy(self, number: int) -> Gradient:
        """PyTorch's gradient as another machine might have computed it; its own without a way to do so."""
        point, seed = self.point, self.point.seed + 1000 * number

        def gradient(at: Arrays) -> dict[str, Array]:
            nonlocal seed
            seed += 1
            with point.torch.holding(_over(point.state, at)):
                try:
                    found: dict[str, Array] = point.torch.gradients_with_noise(
                        self.case.inputs, self.loss, self.names, seed, point.kernel_noise(), point.torch_forward
                    )
                except AutomapError:
                    return self.torch(at)
            return found

        return gradient

    def _of(self, runner: Any, at: Arrays) -> dict[str, Array]:
        with runner.holding(_over(self.point.state, at)):
            found: dict[str, Array] = runner.gradients(
                self.case.inputs, self.loss, self.names, self.point.torch_forward
            )
        return found

    def _in_double(self) -> Gradient | None:
        runner = self.point.torch.double()
        if runner is None:
            return None
        try:
            self._of(runner, {})
        except AutomapError:
            return None  # it makes tensors of its own type on the way
        return lambda at: self._of(runner, at)


@dataclass(frozen=True)
class _Differences:
    """Central differences of a gradient around one point.

    Attributes:
        middle: the point.
        sizes: the root of the mean square of each parameter.
        step: by which share of its own size the parameter moves that moves the most. An eigenvector may have nearly
            all its length in one small parameter, which a step by the size of the whole network would take far away.
    """

    middle: Arrays
    sizes: Mapping[str, float]
    step: float

    def product(self, gradient: Gradient, way: Mapping[str, Array]) -> Vector:
        """The Hessian times a vector of length 1."""
        moves = (math.sqrt(float(np.square(a).mean())) / self.sizes[name] for name, a in way.items() if a.size)
        step = self.step / max(moves)
        ahead, behind = (gradient(self._moved(way, sign * step)) for sign in (1, -1))
        return {name: (ahead[name].astype(np.float64) - behind[name]) / (2 * step) for name in way}

    def along(self, gradient: Gradient, way: Mapping[str, Array]) -> float:
        """The second derivative along a direction of length 1."""
        return _dot(self.product(gradient, way), way)

    def greatest(self, gradient: Gradient, start: Vector, most: int, rest: float) -> tuple[float, int, bool]:
        """The eigenvalue of the greatest absolute value by power iteration.

        Returns:
            Rayleigh's quotient of the last vector, the number of steps, and whether it changed by less than ``rest`` of
            itself in the last one.
        """
        way, value = start, math.nan
        for step in range(1, most + 1):
            product = self.product(gradient, way)
            last, value = value, _dot(product, way)
            length = math.sqrt(_dot(product, product))
            if not length or not math.isfinite(length):
                return value, step, length == 0
            if rest and abs(value - last) <= rest * abs(value):
                return value, step, True
            way = {name: array / length for name, array in product.items()}
        return value, most, not rest

    def _moved(self, way: Mapping[str, Array], step: float) -> dict[str, Array]:
        moved = {}
        for name, array in self.middle.items():
            place = widen(array).astype(np.float64) + step * way[name]
            moved[name], _ = cast(place, dtype_name(array))
        return moved


def _over(state: Arrays, at: Arrays) -> dict[str, Array]:
    """A state with other values, which come last: the other names of a tied parameter still have the old ones."""
    return {**{name: array for name, array in state.items() if name not in at}, **at}


def _sizes(middle: Arrays) -> dict[str, float]:
    """The root of the mean square of each parameter; one that is zero throughout gets the usual size."""
    squares = {name: np.square(widen(a), dtype=np.float64) for name, a in middle.items()}
    sizes = {name: math.sqrt(float(square.mean())) if square.size else 0.0 for name, square in squares.items()}
    usual = float(np.median([size for size in sizes.values() if size] or [1.0]))
    return {name: size or usual for name, size in sizes.items()}


def _direction(shapes: Arrays, sizes: Mapping[str, float], seed: int, what: str) -> Vector:
    """A seeded vector of length 1 that moves each parameter in proportion to its size."""
    way = {n: sizes[n] * generator(seed, f"{what} in {n}").standard_normal(a.shape) for n, a in shapes.items()}
    length = math.sqrt(_dot(way, way))
    return {name: array / length for name, array in way.items()}


def _judged(
    what: str,
    a: float,
    b: float,
    noise: float,
    share: float,
    truncation: float = 0.0,
    steps: int = 0,
    converged: bool = True,
) -> Bend:
    scale, absolute = abs(a), abs(a - b)
    allowed = max(share * scale, _SPREAD_FACTOR * noise)
    to_scale = absolute / scale if scale else (0.0 if absolute == 0 else math.inf)
    silent = _SPREAD_FACTOR * noise > _TOO_NOISY * scale or not scale
    state: State = (
        "agrees" if not silent and absolute <= allowed else "not exercised" if absolute <= allowed else "differs"
    )
    room = f"{allowed / scale:.2g}" if scale else f"{allowed:.2g}"
    words = f"{what}: {a:.6g} in PyTorch, {b:.6g} in MindSpore, off by {to_scale:.2g}; allowed {room}"
    return Bend(what, state, words, a, b, absolute, to_scale, noise, allowed, truncation, steps, converged)


def _dot(a: Mapping[str, Array], b: Mapping[str, Array]) -> float:
    return float(sum(np.vdot(a[name].astype(np.float64), b[name]) for name in a))
