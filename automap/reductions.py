"""What is taken of a value along its axes: a mean, a maximum, a sum, or one element; missing, or another one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from automap.dtypes import Array
from automap.experiments import Explanation
from automap.recording import SAME, distance

#: Two ways to reduce a value that are this near to each other are not told apart.
_NEAR = SAME / 10


@dataclass(frozen=True)
class Reduction:
    """A way to make a value smaller.

    Attributes:
        words: what it is, with the axes.
        function: does it to an array.
    """

    words: str
    function: Callable[[Array], Array]


def _element(at: int, axis: int) -> Callable[[Array], Array]:
    return lambda x: np.take(x, at, axis=axis)


def _over(function: Callable[..., Array], axes: tuple[int, ...]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(function(x, axis=axes))


def ways_to_reduce(dims: int) -> Iterator[Reduction]:
    """The ways to reduce a value with so many axes; samples, along the first one, are left apart."""
    single = [(a,) for a in range(1, dims)]
    several = [axes for n in range(2, dims) for axes in itertools.combinations(range(1, dims), n)]
    for axes in (*single, *several):
        where = f"axis {axes[0]}" if len(axes) == 1 else f"axes {' and '.join(map(str, axes))}"
        for name, function in (("mean", np.mean), ("maximum", np.max), ("sum", np.sum)):
            yield Reduction(f"the {name} over {where}", _over(function, axes))
    for (axis,) in single:
        yield Reduction(f"the first of axis {axis}", _element(0, axis))
        yield Reduction(f"the last of axis {axis}", _element(-1, axis))


def reduced(
    expected: Array, natural: Array, values: Sequence[Array] = ()
) -> tuple[Explanation, Reduction | None] | None:
    """What reduces PyTorch's value or MindSpore's, where that tells how they differ.

    Args:
        expected: PyTorch's value.
        natural: MindSpore's.
        values: what was there before, the nearest first.

    Returns:
        It in words, and what is to be done to MindSpore's value, if that is all; None if nothing explains it.
    """
    if expected.dtype.kind != "f" or natural.dtype.kind != "f":
        return None
    if expected.size < natural.size and (way := _way(natural, expected)) is not None:
        return Explanation("pooling", f"{way.words} is not taken here"), way
    if natural.size < expected.size and (way := _way(expected, natural)) is not None:
        return Explanation("pooling", f"{way.words} is taken here, not in PyTorch"), None
    for value in values:
        if value.size > max(expected.size, natural.size) and value.dtype.kind == "f":
            theirs, ours = _way(value, expected), _way(value, natural)
            if theirs is not None and ours is not None and theirs != ours:
                return Explanation("pooling", f"{ours.words} is taken here, {theirs.words} in PyTorch"), None
    return None


def _way(of: Array, target: Array) -> Reduction | None:
    """What makes the second value of the first."""
    if not target.size or of.size % target.size or not np.isfinite(of).all():
        return None
    near: list[tuple[float, int, Reduction]] = []
    for i, way in enumerate(ways_to_reduce(of.ndim)):
        made = way.function(of)
        if made.size == target.size and (apart := distance(target, made.reshape(target.shape))) < _NEAR:
            near.append((apart, i, way))
    return min(near, key=lambda n: n[:2])[2] if near else None
