"""Compounds: virtual parameters that stand for several listed ones while layers are matched.

What is joined to them is found by :mod:`automap.joining`. An entry with a compound becomes one of several names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from automap.graph import Listing, Param
from automap.layers import Layer
from automap.names import split_leaf
from automap.spelling import distinguishing
from automap.transforms import Transform, inverse, shape_after

#: Names of pieces that are said before the rest is left out.
FEW = 4

#: What is known of some parameters: PyTorch's, MindSpore's that they become, and the transform between them.
Told = tuple[tuple[Param, ...], tuple[Param, ...], tuple[Transform, ...]]


@dataclass(frozen=True)
class Compound:
    """Several listed parameters that stand for one.

    Attributes:
        param: the virtual parameter.
        parts: the listed ones, in the order in which they are joined.
        chain: what makes the one array of theirs.
        order: how sure their order is: ``"told"`` (by numbers of equal members, or by the framework's own layer),
            ``"named"`` (their names, or the fused one's, spell it) or ``"assumed"`` (the order of definition).
        rivals: whether other siblings could be joined as well.
        doubt: what else is in doubt about it, in words, or ``""``.
    """

    param: Param
    parts: tuple[Param, ...]
    chain: tuple[Transform, ...]
    order: str
    rivals: bool = False
    doubt: str = ""

    def doubts(self) -> Iterator[str]:
        """What no listing tells about it, for a person to read."""
        words = [w or p.name for w, p in zip(distinguishing([_path(p) for p in self.parts]), self.parts, strict=True)]
        said = ", ".join(words if len(words) <= FEW else [*words[: FEW - 1], "…"])
        if self.order == "named":
            yield f"joined as {said}, one after the other: a listing cannot tell whether their rows are interleaved"
        elif self.order == "assumed":
            yield f"joined as {said}: a listing cannot tell their order, nor whether their rows are interleaved"
        if self.doubt:
            yield self.doubt
        if self.rivals:
            yield "others that stand beside them could be joined in their place"

    def undone(self) -> tuple[Transform, ...]:
        """What takes the one array apart again."""
        return inverse(self.chain, [p.shape for p in self.parts]) if self.chain else ()


@dataclass(frozen=True)
class Joined:
    """A listing with compounds in the place of their parts.

    Attributes:
        listing: what is to be matched.
        layers: its layers, without what takes no part in matching.
        compounds: by the name of the virtual parameter.
        disputed: what could have been joined in the place of something that was.
        computing: what a weight is computed from in a way that is not known, with words that say so.
    """

    listing: Listing
    layers: list[Layer]
    compounds: dict[str, Compound]
    disputed: frozenset[str] = frozenset()
    computing: dict[str, str] = field(default_factory=dict)

    def parts(self, p: Param) -> tuple[Param, ...]:
        """The listed parameters behind one of ``listing``."""
        found = self.compounds.get(p.name)
        return (p,) if found is None else found.parts

    def standing_for(self, parts: tuple[Param, ...]) -> Param:
        """The parameter of ``listing`` that stands for these listed ones."""
        found = (c.param for c in self.compounds.values() if c.parts == parts)
        return next(found) if len(parts) > 1 else next(found, parts[0])


def compound(
    parts: Sequence[Param], chain: tuple[Transform, ...], local: str, order: str, rivals: bool = False
) -> Compound:
    """A compound of some parameters in an order, standing where the first of them does.

    Args:
        parts: what is joined.
        chain: what makes one array of theirs.
        local: the fused layer's own name on the other side, by which the compound goes.
        order, rivals: see :class:`Compound`.

    Raises:
        TransformError: the chain does not fit the shapes.
    """
    paths = [_path(p) for p in parts]
    (shape,) = shape_after(chain, [p.shape or () for p in parts])
    common = 0
    while common < min(map(len, paths)) - 1 and len({p[common] for p in paths}) == 1:
        common += 1
    middle = () if all(p[common].isdigit() for p in paths) else paths[0][common + 1 :]
    leaf = split_leaf(parts[0].name)[1] or "weight"
    # A plus stands in no name of a framework's.
    name = ".".join((*paths[0][:common], f"{local}+", *middle, leaf))
    param = replace(parts[0], name=name, shape=shape, aliases=(), path=None)
    return Compound(param, tuple(parts), chain, order, rivals)


def are_alike(inner: Sequence[Compound | None]) -> bool:
    """Whether compounds are all joined in a row along one axis, so that stacking them is one transform of the parts."""
    chains = [c.chain if c is not None else () for c in inner]
    first = chains[0]
    return len(first) == 1 and first[0].op == "concat" and all(chain == first for chain in chains)


def flattened(c: Compound, inner: Sequence[Compound]) -> Compound:
    """A stack of compounds that are alike (see :func:`are_alike`) as one compound of all of their parts.

    All pieces are joined in a row, and the row is cut in equal lengths: the same as joining each and stacking them.
    """
    first, n = inner[0], len(inner)
    args = first.chain[0].args
    axis = args["axis"]
    whole = first.param.shape or ()
    chain: tuple[Transform, ...] = (
        Transform("concat", {"axis": axis, "sizes": args["sizes"] * n}),
        Transform("unflatten", {"axis": axis, "sizes": [n, whole[axis]]}),
    )
    if axis:
        order = [axis, *range(axis), *range(axis + 1, len(whole) + 1)]
        chain += (Transform("transpose", {"axes": order}),)
    worst = min((c.order, *(i.order for i in inner)), key=_ORDERS.index)
    rivals = c.rivals or any(i.rivals for i in inner)
    return Compound(c.param, tuple(p for i in inner for p in i.parts), chain, worst, rivals)


_ORDERS = ("assumed", "named", "told")


def _path(p: Param) -> tuple[str, ...]:
    return tuple(split_leaf(p.name)[0].split("."))
