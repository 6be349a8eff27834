"""Siblings that could be joined to one layer, in which ways they can make one, and how much names speak for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from automap.graph import Shape
from automap.layers import Layer, core
from automap.names import is_attention_word, tokens
from automap.spelling import distinguishing, spelled
from automap.transforms import Transform

#: Siblings that are joined at most, unless all that stand in a list are.
FEW = 4
#: How much names speak for siblings: those that the fused name spells, attention's words, a word that they alone share,
#: the words of the fused name.
SPELLED, ATTENTION, SHARED, ALIKE = 1.0, 0.5, 0.5, 0.2


@dataclass(frozen=True)
class Form:
    """How pieces make one: joined along an axis that they have, or stacked along a new first one."""

    op: str
    axis: int
    shape: Shape

    def chain(self, shapes: Sequence[Shape]) -> tuple[Transform, ...]:
        if self.op == "stack":
            return (Transform("stack", {"axis": 0}),)
        return (Transform("concat", {"axis": self.axis, "sizes": [s[self.axis] for s in shapes]}),)


@dataclass(frozen=True)
class Place:
    """Siblings that could be joined, and how."""

    members: tuple[Layer, ...]
    form: Form


def rows_of(layers: Sequence[Layer]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], list[Layer]]]:
    """Layers that differ in one part of their paths alone, in order of definition, with what stands before and after.

    Only members of lists may differ in a part that is not the last one (``experts.0.up`` and ``experts.1.up``), or
    siblings that hold one layer each (``key.proj`` and ``value.proj``).
    """
    rows: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Layer]] = defaultdict(list)
    for layer in layers:
        if layer.statistics or layer.norm or len(core(layer.main[1].shape) or ()) < 2:
            continue
        path = layer.parts
        for i in range(max(0, len(path) - 3), len(path)):
            rows[path[:i], path[i + 1 :]].append(layer)
    for (prefix, suffix), row in rows.items():
        if len(row) > 1:
            yield prefix, suffix, row


def choices(row: list[Layer]) -> Iterator[tuple[Layer, ...]]:
    """Members of a row that could be pieces of one; what leads back may stand between them (gate, down, up)."""
    found = list(_windows(row))
    by_shape: dict[Shape, list[Layer]] = defaultdict(list)
    for layer in row:
        by_shape[layer.main[1].shape or ()].append(layer)
    if len(by_shape) == 2 and next(iter(by_shape))[::-1] in by_shape:
        found += (members for some in by_shape.values() for members in _windows(some))
    yield from {tuple(layer.path for layer in members): members for members in found}.values()


def _windows(row: list[Layer]) -> Iterator[tuple[Layer, ...]]:
    """Members of a row that could be pieces of one: a few that follow each other, or all."""
    if len(row) > FEW and len({frozenset(layer.slots) for layer in row}) == 1:
        yield tuple(row)
    if len(row) > 4 * FEW:
        return
    for k in range(2, FEW + 1):
        for i in range(len(row) - k + 1):
            members = row[i : i + k]
            # One of them may lack the bias of the others (a key's does nothing); biases stay apart then.
            if len({layer.main[0] for layer in members}) == 1:
                yield tuple(members)
    yield from _families(row)


def _families(row: list[Layer]) -> Iterator[tuple[Layer, ...]]:
    """Members of a row that a word puts together which the others lack, or attention's words, wherever they stand."""
    words = [{t for part in layer.parts for t in tokens(part)} for layer in row]
    common = set.intersection(*words) if words else set()
    by_word: dict[str, list[int]] = defaultdict(list)
    for i, mine in enumerate(words):
        for t in mine - common:
            by_word[t].append(i)
            if is_attention_word(t):
                by_word["attention"].append(i)
    for at in dict.fromkeys(tuple(dict.fromkeys(x)) for _, x in sorted(by_word.items())):
        apart = len(at) > 1 and at[-1] - at[0] >= len(at)
        if apart and len(at) <= FEW and len({frozenset(row[i].slots) for i in at}) == 1:
            yield tuple(row[i] for i in at)


def forms_of(members: Sequence[Layer]) -> Iterator[Form]:
    """The ways in which the main parameters of layers can make one."""
    shapes = [layer.main[1].shape or () for layer in members]
    first = shapes[0]
    if len({len(s) for s in shapes}) > 1:
        return
    for axis in range(min(len(first), 2)):
        if len({s[:axis] + s[axis + 1 :] for s in shapes}) == 1:
            total = sum(s[axis] for s in shapes)
            yield Form("concat", axis, (*first[:axis], total, *first[axis + 1 :]))
    if len(set(shapes)) == 1:
        yield Form("stack", 0, (len(shapes), *first))


def likeliest(members: Sequence[Layer], fused: Sequence[Layer]) -> tuple[float, str]:
    """How well one of the fused layers' own names spells the members, and that name."""
    words = distinguishing([layer.parts for layer in members])
    common = set.intersection(*({t for part in layer.parts[-2:] for t in tokens(part)} for layer in members))
    best, local = -1.0, ""
    for name in dict.fromkeys(layer.parts[-1] for layer in fused if layer.parts):
        score = SPELLED * (spelled(words, name) is not None) + ALIKE * len(common & set(tokens(name))) / max(
            1, len(set(tokens(name)))
        )
        if score > best:
            best, local = score, name
    return max(best, 0.0), local or fused[0].path


def cohesion(place: Place, beside: Sequence[Layer]) -> float:
    """How much names speak for these siblings together: attention's own words, or a word that they alone share.

    ``beside``: the layers of the same shape in the module of the first of them.
    """
    members = place.members
    words = distinguishing([layer.parts for layer in members])
    score = ATTENTION if all(is_attention_word(w) for w in words) else 0.0
    if place.form.op != "stack" and len({layer.parts[:-1] for layer in members}) > 1:
        return score  # the members of a list have the same words anyway
    others = [x for x in beside if x not in members]
    shared = set.intersection(*(set(tokens(layer.parts[-1])) for layer in members if layer.parts))
    shared -= {t for x in others for t in tokens(x.parts[-1])}
    return score + (SHARED if shared and others else 0.0)
