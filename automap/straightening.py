"""Blocks that are each other's: numbered modules most of whose layers go over to one numbered module of the other side.

A layer of one block does not belong to the counterpart of another block. Where a matching says so, either the layer
has been taken for its like in the other block, or the blocks have been taken for each other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from automap.layers import Layer, core

Path = tuple[str, ...]
Content = Counter[Hashable]

#: How much of two blocks must be matched to each other for them to be each other's (Dice's coefficient).
MOSTLY = 0.5

#: How alike the blocks of two lists must be, on average, when one list is read backwards; and how much more alike than
#: those of any two lists that are read the same way.
BACKWARDS, MORE = 0.9, 0.05


@dataclass(frozen=True)
class Turned:
    """One side with the lists turned round that run the other way than on the other side.

    Attributes:
        layers: the layers, under the numbers that their blocks have when counted from the other end.
        at: for each of them, its position before.
        unsure: positions (as before) of blocks of which it is not certain that their like stand the other way round.
    """

    layers: list[Layer]
    at: list[int]
    unsure: frozenset[int]


def turned(left: Sequence[Layer], right: Sequence[Layer]) -> Turned:
    """The right side with those lists turned round whose blocks run the other way there, as their shapes tell.

    Blocks of one form are alike, so a list that is read backwards shows in the others: in the order in which the forms
    come. Of two forms alone that is no proof, for the list may as well begin elsewhere.
    """
    layers, at = list(right), list(range(len(right)))
    unsure: set[int] = set()
    theirs = {parent: blocks for parent, blocks in _lists(right).items() if _says(blocks)}
    if theirs:
        ours = list({_signature(blocks): blocks for blocks in _lists(left).values() if _says(blocks)}.values())
        for parent, blocks in theirs.items():
            if _runs_backwards(ours, blocks):
                at, layers, moved = _turn(layers, at, parent, [int(b) for b in blocks])
                if len(set(_signature(blocks))) < 3:
                    unsure |= moved
    return Turned(layers, at, frozenset(unsure))


def _lists(layers: Sequence[Layer]) -> dict[Path, dict[str, Content]]:
    """The numbered children of each module, by their numbers, each with the shapes of its layers."""
    found: dict[Path, dict[str, Content]] = defaultdict(dict)
    for layer in layers:
        shape = core(layer.main[1].shape)
        if shape is None:
            return {}
        for i, part in enumerate(layer.parts):
            if part.isdigit():
                found[layer.parts[:i]].setdefault(part, Counter())[tuple(sorted(shape)), layer.norm] += 1
    return {parent: dict(sorted(x.items(), key=lambda item: int(item[0]))) for parent, x in found.items()}


def _signature(blocks: dict[str, Content]) -> tuple[Hashable, ...]:
    return tuple(frozenset(content.items()) for content in blocks.values())


def _says(blocks: dict[str, Content]) -> bool:
    """Whether a list reads otherwise backwards, though it has blocks that are alike."""
    forms = _signature(blocks)
    return len(forms) > 2 and 1 < len(set(forms)) < len(forms) and forms != forms[::-1]


def _runs_backwards(ours: Sequence[dict[str, Content]], blocks: dict[str, Content]) -> bool:
    theirs = list(blocks.values())
    best = {1: 0.0, -1: 0.0}
    for other in ours:
        mine = list(other.values())
        sizes = [sum(content.total() for content in x) for x in (mine, theirs)]
        # Blocks that hold much more than those here would hold what these have whichever way they are read.
        if len(mine) == len(theirs) and min(sizes) >= MOSTLY * max(sizes):
            for way in best:
                both = zip(mine, theirs[::way], strict=True)
                alike = sum((a & b).total() / min(a.total(), b.total()) for a, b in both) / len(mine)
                best[way] = max(best[way], alike)
    return best[-1] >= BACKWARDS and best[-1] > best[1] + MORE


def _turn(
    layers: list[Layer], at: list[int], parent: Path, numbers: list[int]
) -> tuple[list[int], list[Layer], set[int]]:
    """One list turned round: its blocks get each other's numbers, and each other's places in the order."""
    d = len(parent)
    other = dict(zip(numbers, numbers[::-1], strict=True))
    inside = [i for i, x in enumerate(layers) if x.parts[:d] == parent and len(x.parts) > d and x.parts[d].isdigit()]
    held: dict[int, list[int]] = defaultdict(list)
    for i in inside:
        held[other[int(layers[i].parts[d])]].append(i)
    new_layers, new_at = list(layers), list(at)
    for i, (number, k) in zip(inside, ((n, k) for n in sorted(held) for k in held[n]), strict=True):
        parts = layers[k].parts
        new_layers[i] = replace(layers[k], path=".".join((*parts[:d], str(number), *parts[d + 1 :])))
        new_at[i] = at[k]
    return new_at, new_layers, {at[i] for i in inside}


#: How alike blocks must be to be of one form (Dice's coefficient of their shapes), and at least to be each other's, for
#: layers can be missing.
FORM, COUNTED = 0.7, 0.4
#: What part of a list goes over to a list that it is the counterpart of, although others have more around it.
NEARLY = 0.8

#: How many blocks must have a layer at one place, and what part of all, for it to be its place in every block.
MANY, AGREED = 3, 0.7

#: The layers of a block, by their paths in it.
Block = dict[Path, int]


@dataclass(frozen=True)
class Counted:
    """Blocks of two lists that are each other's because the lists have as many of their form.

    Attributes:
        left, right: for layers in such blocks, the groups of blocks that are alike, and the block's number in each.
        inside: for layers of the left in such blocks, the layer of the right that stands where most of the blocks have
            it, and the layers at its place in all of them.
    """

    left: dict[int, dict[int, int]]
    right: dict[int, dict[int, int]]
    inside: dict[int, tuple[int, list[int]]]

    def apart(self, u: int, v: int) -> bool:
        """Whether two layers are in blocks of one group that are not each other's."""
        mine = self.left.get(u)
        return mine is not None and any(mine.get(g, k) != k for g, k in self.right.get(v, {}).items())


def counted(left: Sequence[Layer], right: Sequence[Layer], pairs: dict[int, int]) -> Counted:
    """Which blocks are each other's in lists that go over to each other under a matching.

    Blocks of the same shapes are told apart by nothing but their numbers, and a number says which it is in a row: where
    both lists have as many of a form, the k-th is the k-th, wherever counting begins.
    """
    shapes_l, shapes_r = ([_shape(layer) for layer in side] for side in (left, right))
    lists = _numbered_lists(right)
    out = Counted({}, {}, {})
    groups = 0
    for mine in _numbered_lists(left).values():
        theirs = _counterpart(mine, lists, pairs)
        for ours, others in _by_form(mine, theirs, shapes_l, shapes_r):
            out.inside.update(_inside(ours, others, pairs))
            for k, (a, b) in enumerate(zip(ours, others, strict=True)):
                for i in a.values():
                    out.left.setdefault(i, {})[groups] = k
                for j in b.values():
                    out.right.setdefault(j, {})[groups] = k
            groups += 1
    return out


def _shape(layer: Layer) -> Hashable:
    return tuple(sorted(core(layer.main[1].shape) or ())), layer.norm or layer.statistics


#: A word and the number after it, or a numbered word and the letter after it.
_COUNTED = re.compile(r"(.*?)(?:(\d+)|(?<=\d)([a-z]))")


def _numbered_lists(layers: Sequence[Layer]) -> dict[tuple[Path, str], dict[int, Block]]:
    """By the module around them and their common word: modules that differ in a number or letter, with their layers."""
    found: dict[tuple[Path, str], dict[int, Block]] = defaultdict(dict)
    for i, layer in enumerate(layers):
        parts = layer.parts
        for d, part in enumerate(parts):
            counted = _COUNTED.fullmatch(part)
            if counted is not None:
                word, number, letter = counted.groups()
                count = int(number) if number else ord(letter)
                found[parts[:d], word + "#" * bool(letter)].setdefault(count, {})[parts[d + 1 :]] = i
    return {key: dict(sorted(x.items())) for key, x in found.items() if len(x) > 1}


def _counterpart(
    mine: dict[int, Block], lists: dict[tuple[Path, str], dict[int, Block]], pairs: dict[int, int]
) -> dict[int, Block]:
    """The list that most layers of a list go over to; of lists in each other the innermost: its blocks are counted."""
    goals = {pairs[i] for block in mine.values() for i in block.values() if i in pairs}
    inside = {key: sum(j in goals for block in x.values() for j in block.values()) for key, x in lists.items()}
    best = max(inside.values(), default=0)
    if best <= MOSTLY * sum(map(len, mine.values())):
        return {}
    return lists[max((key for key, n in inside.items() if n >= NEARLY * best), key=lambda k: (len(k[0]), k))]


def _by_form(
    mine: dict[int, Block], theirs: dict[int, Block], shapes_l: list[Hashable], shapes_r: list[Hashable]
) -> Iterator[tuple[list[Block], list[Block]]]:
    """All blocks of two lists, or those of each form of which both have as many, in the order of their numbers."""
    sides = ((mine, shapes_l), (theirs, shapes_r))
    ours, others = ([Counter(shapes[i] for i in b.values()) for b in blocks.values()] for blocks, shapes in sides)
    row_l, row_r = list(mine.values()), list(theirs.values())
    if _are_counted(ours, others):
        yield row_l, row_r
        return
    groups: list[tuple[Content, tuple[list[int], list[int]]]] = []
    for which, contents in enumerate((ours, others)):
        for n, content in enumerate(contents):
            alike, at = max(((_dice(content, form), -g) for g, (form, _) in enumerate(groups)), default=(0.0, 0))
            if alike >= FORM:
                groups[-at][1][which].append(n)
            elif not which:  # what only the other side has is no matter
                groups.append((content, ([n], [])))
    for _, (some, like) in groups:
        if _are_counted([ours[n] for n in some], [others[n] for n in like]):
            yield [row_l[n] for n in some], [row_r[n] for n in like]


def _inside(ours: Sequence[Block], others: Sequence[Block], pairs: dict[int, int]) -> dict[int, tuple[int, list[int]]]:
    """Where layers of blocks go that are alike, if what nearly all blocks say holds for all of them."""
    votes: dict[Path, Counter[Path]] = defaultdict(Counter)
    places = {j: path for b in others for path, j in b.items()}
    for a in ours:
        for path, i in a.items():
            if pairs.get(i) in places:
                votes[path][places[pairs[i]]] += 1
    to = {path: counts.most_common(1)[0] for path, counts in votes.items()}
    agreed = {path: goal for path, (goal, n) in to.items() if n >= MANY and n >= AGREED * votes[path].total()}
    taken = Counter(agreed.values())
    return {
        a[path]: (b[goal], [block[path] for block in ours if path in block])
        for path, goal in agreed.items()
        if taken[goal] == 1
        for a, b in zip(ours, others, strict=True)
        if path in a and goal in b
    }


def _are_counted(ours: Sequence[Content], others: Sequence[Content]) -> bool:
    """Whether there are as many blocks here as there, and the k-th are alike."""
    if len(ours) != len(others) or len(ours) < 2:
        return False
    alike = [_dice(a, b) for a, b in zip(ours, others, strict=True)]
    return sum(alike) / len(alike) >= FORM and min(alike) >= COUNTED


def _dice(a: Content, b: Content) -> float:
    return 2 * (a & b).total() / (a.total() + b.total())


@dataclass(frozen=True)
class Partners:
    """Which numbered modules are each other's under a matching.

    Attributes:
        left, right: for each layer, the numbered modules around it that have a counterpart, outermost first.
        of: for each such module on the left, its counterpart.
    """

    left: list[list[Path]]
    right: list[list[Path]]
    of: dict[Path, Path]

    def crossed(self, u: int, v: int) -> list[Path]:
        """The lists around two layers that are each other's, where the layers stand in blocks that are not."""
        out: list[Path] = []
        for a in self.left[u]:
            for b in self.right[v]:
                mine = self.of[a]
                if mine != b and mine[:-1] == b[:-1]:
                    out += (("torch", *a[:-1]), ("mindspore", *b[:-1]))
        return out

    def astray(self, u: int, v: int) -> bool:
        """Whether each of two layers stands in blocks with counterparts, and none of these are each other's."""
        mine = {self.of[a] for a in self.left[u]}
        theirs = set(self.right[v])
        lists = {b[:-1] for b in mine}
        return bool(mine and theirs) and mine.isdisjoint(theirs) and lists.isdisjoint(b[:-1] for b in theirs)


def partners(left: Sequence[Layer], right: Sequence[Layer], pairs: Iterable[tuple[int, int]]) -> Partners:
    """The numbered modules that are each other's when layers are matched in these pairs."""
    above_l, above_r = ([_numbered(layer.parts) for layer in side] for side in (left, right))
    size_l, size_r = (Counter(a for above in side for a in above) for side in (above_l, above_r))
    votes: dict[Path, Counter[Path]] = defaultdict(Counter)
    for u, v in pairs:
        for a in above_l[u]:
            votes[a].update(above_r[v])
    best: dict[Path, Path] = {}
    back: dict[Path, tuple[float, Path]] = {}
    for a, counts in votes.items():
        dice, b = max((2 * n / (size_l[a] + size_r[b]), b) for b, n in counts.items()) if counts else (0.0, ())
        if dice > MOSTLY:
            best[a] = b
            back[b] = max(back.get(b, (0.0, ())), (dice, a))
    of = {a: b for a, b in best.items() if back[b][1] == a}
    taken = set(of.values())
    mine = [[a for a in above if a in of] for above in above_l]
    theirs = [[b for b in above if b in taken] for above in above_r]
    return Partners(mine, theirs, of)


def _numbered(path: Path) -> list[Path]:
    return [path[: i + 1] for i, part in enumerate(path) if part.isdigit()]
