"""What the shapes of two parameters say about the way from one to the other: layouts, transposed matrices, ones.

Nothing here looks at a name. Where several ways lead from shape to shape (a square matrix, transposed or not), they
are all given, the plainest first, and whoever asks has to tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from automap.graph import Param, Shape
from automap.layers import core
from automap.transforms import Transform

Axes = tuple[int, ...]

#: The orders of axes in which the frameworks keep one kernel, by the number of axes: channels first or last, and the
#: outputs first or last. Of three axes also a stack of matrices that are each transposed.
LAYOUTS: dict[int, tuple[Axes, ...]] = {
    2: ((0, 1), (1, 0)),
    3: ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)),
    4: ((0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 0), (0, 3, 1, 2), (3, 2, 0, 1)),
    5: ((0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (2, 3, 4, 1, 0), (0, 4, 1, 2, 3), (4, 3, 0, 1, 2)),
}


def ways(p: Param, q: Param) -> list[Axes]:
    """The orders of axes in which an array of the first shape has the second, the plain one first; none if it cannot.

    Axes are those of the shapes as they are, or without their ones where the numbers of axes differ.
    """
    if p.shape is None or q.shape is None:
        return [()]
    a, b = _comparable(p.shape, q.shape)
    if len(a) < 2 or len(a) not in LAYOUTS:
        return [tuple(range(len(a)))] if a == b else []
    return [axes for axes in LAYOUTS[len(a)] if tuple(a[i] for i in axes) == b] if len(a) == len(b) else []


def can_reach(p: Param, q: Param) -> bool:
    """Whether an array of the first shape can become one of the second; also where a shape is unknown."""
    return bool(ways(p, q))


def reaching(p: Param, q: Param, axes: Axes | None = None) -> tuple[Transform, ...]:
    """The operations that turn an array of the first shape into one of the second: nothing where they are equal.

    Args:
        axes: one of :func:`ways`; the first one without it.
    """
    if p.shape is None or q.shape is None:
        return ()
    if axes is None:
        found = ways(p, q)
        if not found:
            return ()
        axes = found[0]
    a, _ = _comparable(p.shape, q.shape)
    chain: list[Transform] = []
    shape = p.shape
    if axes != tuple(range(len(a))):
        if shape != a:
            chain.append(Transform("reshape", {"shape": list(a), "before": list(shape)}))
        chain.append(Transform("transpose", {"axes": list(axes)}))
        shape = tuple(a[i] for i in axes)
    if shape != q.shape:
        chain.append(Transform("reshape", {"shape": list(q.shape), "before": list(shape)}))
    return tuple(chain)


def _comparable(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    """Two shapes as they are where they have the same number of axes, else (or where that fits) without ones."""
    slim_a, slim_b = core(a) or (), core(b) or ()
    if len(a) == len(b) and ((len(a) > 2 and slim_a != slim_b) or (len(a) == 2 and min(*a, *b) > 1)):
        return a, b
    return slim_a, slim_b


def common(choices: Sequence[list[Axes]]) -> Iterator[Axes]:
    """The orders of axes that are among all of some choices, in the order of the first."""
    for axes in choices[0] if choices else ():
        if all(axes in other for other in choices):
            yield axes
