"""Fusions: how several parameters stand in one tensor, and the chains of transforms that lead there and back.

A projection is kept in pieces on one side and in one tensor on the other, or in one tensor on both sides with its rows
in another order. The pieces follow each other in some order, or stand in it by groups (by heads): some rows of each
piece, then the next ones. What holds for the weight holds for its bias.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from automap.arrangements import Way
from automap.graph import Param, Shape
from automap.names import RECURRENT, SLOTS
from automap.transforms import Transform

#: Layouts of one fusion that are looked at, and of pieces more than this only the order that they are in.
MOST_LAYOUTS = 40
MOST_PERMUTED = 4

_APART = re.compile(r"(.+)_(weight|bias)$")
_TURN = Transform("transpose", {"axes": [1, 0]})


@dataclass(frozen=True)
class Unit:
    """A weight and, if it has one, its bias."""

    weight: Param
    bias: Param | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True)
class Layout:
    """Where the rows of the pieces stand.

    Attributes:
        order: the pieces, by position.
        groups: in how many groups each piece is cut; the first ones of all pieces come first, then the second ones.
    """

    order: tuple[int, ...]
    groups: int = 1

    @property
    def plain(self) -> bool:
        """Whether the pieces follow each other in their order."""
        return self.groups == 1 and self.order == tuple(range(len(self.order)))

    def split(self, sizes: Sequence[int], axis: int = 0) -> tuple[Transform, ...]:
        """What cuts one tensor into the pieces, in the order in which they stand in it.

        Args:
            sizes: of the pieces along the axis, by position.
        """
        standing = [sizes[i] for i in self.order]
        if self.groups == 1:
            return (Transform("split", {"axis": axis, "sizes": standing}),)
        each, unit = self._each(standing)
        return (
            Transform("unflatten", {"axis": axis, "sizes": [self.groups, sum(each), unit]}),
            Transform("split", {"axis": axis + 1, "sizes": each}),
            Transform("flatten", {"axis": axis, "count": 3}),
        )

    def join(self, sizes: Sequence[int], axis: int = 0) -> tuple[Transform, ...]:
        """What makes one tensor of the pieces, given in the order in which they are to stand in it."""
        standing = [sizes[i] for i in self.order]
        if self.groups == 1:
            return (Transform("concat", {"axis": axis, "sizes": standing}),)
        each, unit = self._each(standing)
        return (
            Transform("unflatten", {"axis": axis, "sizes": [self.groups, -1, unit]}),
            Transform("concat", {"axis": axis + 1, "sizes": each}),
            Transform("flatten", {"axis": axis, "count": 3}),
        )

    def _each(self, standing: Sequence[int]) -> tuple[list[int], int]:
        """The pieces' shares of a group, in units that they are all multiples of."""
        unit = math.gcd(*(n // self.groups for n in standing))
        return [n // self.groups // unit for n in standing], unit


@lru_cache(maxsize=1024)
def layouts(sizes: tuple[int, ...], groups: tuple[int, ...]) -> tuple[Layout, ...]:
    """The layouts that pieces of these sizes can have, the plainest first.

    Args:
        groups: numbers that may be of heads, the likeliest first.
    """
    plain = tuple(range(len(sizes)))
    fitting = [g for g in groups if g > 1 and all(n % g == 0 for n in sizes)]
    found = [Layout(plain), *(Layout(plain, g) for g in fitting)]
    if len(sizes) <= MOST_PERMUTED:
        orders = list(itertools.permutations(plain))[1:]
        for g in (1, *fitting):
            found += [Layout(order, g) for order in orders]
    return tuple(found[:MOST_LAYOUTS])


# ---------------------------------------------------------------------------------------------- what belongs together


def units(own: Sequence[tuple[str, Param]]) -> list[Unit]:
    """The weights among the parameters that a module owns, each with its bias; norms have none of these.

    A bias goes with the weight that its name says, else, where there are as many, with the weight in its place.
    """
    weights: dict[str, Param] = {}
    biases: dict[str, Param] = {}
    if any(SLOTS.get(attribute) == "mean" for attribute, _ in own):
        return []
    for attribute, p in own:
        if p.shape is None:
            continue
        stem, slot = stem_of(attribute)
        if len([d for d in p.shape if d > 1]) >= 2 or (len(p.shape) >= 2 and slot == "weight"):
            weights[stem] = p
        elif len(p.shape) == 1:
            biases[stem] = p
    lone = [p for stem, p in biases.items() if stem not in weights]
    bare = [stem for stem in weights if stem not in biases]
    if lone and len(lone) == len(bare):
        for stem, p in zip(bare, lone, strict=True):
            if p.shape and p.shape[0] in (weights[stem].shape or ()):
                biases[stem] = p
    return [Unit(p, biases.get(stem)) for stem, p in weights.items()]


def stem_of(attribute: str) -> tuple[str, str]:
    """What a parameter is called beside ``weight`` or ``bias``, and which of them it is."""
    if attribute in SLOTS:
        return "", SLOTS[attribute]
    if found := RECURRENT.match(attribute):
        return attribute.removeprefix(f"{found[1]}_"), found[1]
    if found := _APART.match(attribute):
        return found[1], found[2]
    return attribute, ""


@dataclass(frozen=True)
class Fit:
    """How the weights of pieces fit into a whole: along which axis of it, and whether they are transposed."""

    axis: int
    turned: bool


def fits(pieces: Sequence[Shape], whole: Shape) -> list[Fit]:
    """The ways in which weights of these shapes add up to one, the likeliest first."""
    forms = [_form(p, whole) for p in pieces]
    goal = _flat(whole) if any(f is None for f in forms) else whole
    if any(f is None for f in forms):
        forms = [_flat(p) for p in pieces]
    if any(f is None or len(f) != len(goal) for f in forms) or len(goal) < 2:
        return []
    found = []
    for axis in (0, 1):
        # What is joined along its second axis has its outputs there, which framework layers have along their first.
        for turned in (False, True) if axis == 0 else (True, False):
            if turned and len(goal) != 2:
                continue
            seen = [f[::-1] if turned else f for f in forms if f is not None]
            rest = goal[:axis] + goal[axis + 1 :]
            if all(f[:axis] + f[axis + 1 :] == rest for f in seen) and sum(f[axis] for f in seen) == goal[axis]:
                found.append(Fit(axis, turned))
    return found


def _form(piece: Shape, whole: Shape) -> Shape | None:
    return piece if len(piece) == len(whole) else None


def _flat(shape: Shape) -> Shape:
    """A shape without the dimensions of size 1 after its first two."""
    return (*shape[:2], *(d for d in shape[2:] if d != 1))


def _flattening(shape: Shape) -> tuple[Transform, ...]:
    """What takes away dimensions of size 1 at the end, all but the first two; the same for any first two."""
    return () if len(shape) == 2 else (Transform("flatten", {"axis": 1, "count": len(shape) - 1}),)


def _expanding(shape: Shape) -> tuple[Transform, ...]:
    return () if len(shape) == 2 else (Transform("unflatten", {"axis": 1, "sizes": [-1, *(1,) * (len(shape) - 2)]}),)


def _is_plane(shape: Shape) -> bool:
    return len(shape) >= 2 and all(d == 1 for d in shape[2:])


def joined(pieces: Sequence[Unit], whole: Unit, fit: Fit, layout: Layout) -> tuple[Way, ...]:
    """The ways from PyTorch's pieces to MindSpore's whole; none where there is no chain."""
    standing = [pieces[i] for i in layout.order]
    shapes = [u.weight.shape or () for u in pieces]
    goal = whole.weight.shape or ()
    before, after = _changes(shapes, goal)
    if before is None or after is None:
        return ()
    sizes = _sizes(shapes, fit)
    chain = (*before[0], *((_TURN,) if fit.turned else ()), *layout.join(sizes, fit.axis), *after[1])
    ways = [Way(tuple(u.weight for u in standing), (whole.weight,), chain)]
    for one, biases in _biases(whole, standing, sum(sizes)):
        ways.append(Way(biases, (one,), layout.join(sizes)))
    return tuple(ways)


def parted(whole: Unit, pieces: Sequence[Unit], fit: Fit, layout: Layout) -> tuple[Way, ...]:
    """The ways from PyTorch's whole to MindSpore's pieces; none where there is no chain."""
    standing = [pieces[i] for i in layout.order]
    shapes = [u.weight.shape or () for u in pieces]
    given = whole.weight.shape or ()
    after, before = _changes(shapes, given)
    if before is None or after is None:
        return ()
    sizes = _sizes(shapes, fit)
    chain = (*before[0], *layout.split(sizes, fit.axis), *((_TURN,) if fit.turned else ()), *after[1])
    ways = [Way((whole.weight,), tuple(u.weight for u in standing), chain)]
    for one, biases in _biases(whole, standing, sum(sizes)):
        ways.append(Way((one,), biases, layout.split(sizes)))
    return tuple(ways)


def _biases(whole: Unit, pieces: Sequence[Unit], size: int) -> Iterator[tuple[Param, tuple[Param, ...]]]:
    """The bias of the whole and those of the pieces, where all have one and they add up."""
    biases = tuple(u.bias for u in pieces if u.bias is not None)
    if whole.bias is None or len(biases) < len(pieces):
        return
    if sum(b.size or 0 for b in biases) == whole.bias.size == size:
        yield whole.bias, biases


_Steps = tuple[tuple[Transform, ...], tuple[Transform, ...]]


def _changes(pieces: Sequence[Shape], whole: Shape) -> tuple[_Steps | None, _Steps | None]:
    """What brings the pieces, and the whole, into the form in which they add up, and back again."""
    if all(len(p) == len(whole) for p in pieces):
        return ((), ()), ((), ())
    if len({p[2:] for p in pieces}) > 1 or not _is_plane(pieces[0]) or not _is_plane(whole):
        return None, None
    return (_flattening(pieces[0]), _expanding(pieces[0])), (_flattening(whole), _expanding(whole))


def _sizes(pieces: Sequence[Shape], fit: Fit) -> list[int]:
    return [p[1 - fit.axis if fit.turned else fit.axis] for p in pieces]


# ----------------------------------------------------------------------------------------------- both sides fused


def sections(rows: int, heads: Sequence[int]) -> list[tuple[int, ...]]:
    """What so many rows may consist of: three pieces, queries and fewer keys and values, or two pieces."""
    found: list[tuple[int, ...]] = []
    if rows % 3 == 0:
        found.append((rows // 3,) * 3)
    for many, few in itertools.product(heads, heads):
        if many > few and many % few == 0 and rows % (many + 2 * few) == 0:
            size = rows // (many + 2 * few)
            found.append((many * size, few * size, few * size))
    if rows % 2 == 0:
        found.append((rows // 2,) * 2)
    return list(dict.fromkeys(found))


def rearrangements(rows: int, heads: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Layout, Layout]]:
    """Pieces, the layout that PyTorch may have them in, and MindSpore's: the likeliest first.

    First by heads on one side and one after the other on the other side, then in other orders.
    """
    every = sections(rows, heads)
    for sizes in every:
        plain = layouts(sizes, ())[0]
        for other in layouts(sizes, tuple(heads)):
            if other.groups > 1 and other.order == plain.order:
                yield sizes, other, plain
                yield sizes, plain, other
    for sizes in every:
        plain, *others = layouts(sizes, ())
        for other in others:
            yield sizes, plain, other
    for sizes in every:
        plain = layouts(sizes, ())[0]
        for other in layouts(sizes, tuple(heads)):
            if other.groups > 1 and other.order != plain.order:
                yield sizes, Layout(plain.order, other.groups), Layout(other.order)
                yield sizes, plain, other
                yield sizes, Layout(plain.order, other.groups), other


def rearranged(way: Way, axis: int, sizes: Sequence[int], ours: Layout, theirs: Layout) -> Way:
    """The way of one parameter to one, with its rows brought from one layout into another on their way.

    Args:
        axis: of PyTorch's parameter that has the rows.
        sizes: of the pieces.
    """
    cut, put = ours.split(sizes, axis), theirs.join(sizes, axis)
    places = [ours.order.index(i) for i in theirs.order]
    turn = () if places == sorted(places) else (Transform("reorder", {"places": places}),)
    return way._replace(chain=(*cut, *turn, *put, *way.chain))
