"""Composites that no cell's input tells: experts stacked in one tensor, and the gates of recurrent layers.

The modules of one side see other values than those of the other side (a part of the tokens, one step of a sequence),
or are no modules there. So only shapes say what may belong together, and what follows which of it does.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from automap import fusions
from automap.arrangements import Option, Way
from automap.fusions import Fit, Layout, Unit
from automap.graph import Param
from automap.transforms import Transform

#: Options of one module at most, and numbers of gates.
MOST_OPTIONS = 48
GATES = (4, 3)

_NUMBERED = re.compile(r"(.*?)\.?(\d+)((?:\.[^.\d][^.]*)*)$")
_TURN = Transform("transpose", {"axes": [0, 2, 1]})


@dataclass(frozen=True)
class Family:
    """Layers of one name, one in each member of a list.

    Attributes:
        name: what the layer is called in its member.
        members: the paths of the layers, by number.
        units: their weights.
    """

    name: str
    members: tuple[str, ...]
    units: tuple[Unit, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.units[0].weight.shape or ()


def families(units: Sequence[tuple[str, Unit]]) -> dict[str, list[Family]]:
    """The families of each list, by the path of the list: of layers of one shape, numbered from 0 on."""
    found: dict[str, dict[str, dict[int, tuple[str, Unit]]]] = defaultdict(lambda: defaultdict(dict))
    for path, unit in units:
        if match := _NUMBERED.match(path):
            found[match[1]][match[3]][int(match[2])] = path, unit
    out: dict[str, list[Family]] = {}
    for prefix, by_name in found.items():
        whole = []
        for name, members in by_name.items():
            ordered = [members[k] for k in sorted(members)]
            shapes = {u.weight.shape for _, u in ordered}
            if len(ordered) > 1 and sorted(members) == list(range(len(ordered))) and len(shapes) == 1:
                whole.append(Family(name, tuple(p for p, _ in ordered), tuple(u for _, u in ordered)))
        if whole:
            out[prefix] = whole
    return out


def stacked(
    wholes: Sequence[Param], some: Sequence[Family], join: bool
) -> Iterator[tuple[tuple[Family, ...], tuple[Way, ...]]]:
    """The ways to stack families in tensors of three axes, or (without ``join``) to take such tensors apart.

    Yields:
        The families that take part, and the ways; tensors that are listed first get the families listed first.
    """
    if not wholes:
        yield (), ()
        return
    first, *rest = wholes
    for group in itertools.chain(((f,) for f in some), itertools.permutations(some, 2)):
        left = [f for f in some if f not in group]
        for way in _one(first, group, join):
            for others, ways in stacked(rest, left, join):
                yield (*group, *others), (way, *ways)


def _one(whole: Param, group: Sequence[Family], join: bool) -> Iterator[Way]:
    shape, count = whole.shape or (), len(group[0].members)
    if len({f.shape[1:] for f in group}) > 1 or len({len(f.members) for f in group}) > 1 or len(group[0].shape) != 2:
        return
    made = (count, sum(f.shape[0] for f in group), group[0].shape[1])
    parts = tuple(f.units[i].weight for i in range(count) for f in group)
    sizes = [f.shape[0] for f in group] * count
    turns = [t for t in (False, True) if (made if not t else (made[0], made[2], made[1])) == shape]
    for turned in turns:
        turn = (_TURN,) if turned else ()
        if join:
            chain = (
                (Transform("stack", {"axis": 0}), *turn)
                if len(group) == 1
                else (
                    Transform("concat", {"axis": 0, "sizes": sizes}),
                    Transform("unflatten", {"axis": 0, "sizes": [count, sum(sizes) // count]}),
                    *turn,
                )
            )
            yield Way(parts, (whole,), chain)
        else:
            chain = (
                (*turn, Transform("unstack", {"axis": 0, "count": count}))
                if len(group) == 1
                else (
                    *turn,
                    Transform("flatten", {"axis": 0, "count": 2, "before": [count, sum(sizes) // count]}),
                    Transform("split", {"axis": 0, "sizes": sizes}),
                )
            )
            yield Way((whole,), parts, chain)


def of_experts(
    wholes: Sequence[tuple[str, Sequence[Unit]]], units: Sequence[tuple[str, Unit]], join: bool
) -> Iterator[Option]:
    """Options of containers whose tensors have an axis for the experts, and of lists of layers.

    Args:
        wholes: paths with their weights, PyTorch's without ``join``.
        units: the layers of the other side.
        join: whether PyTorch's are the list.
    """
    lists = families(units)
    for path, own in wholes:
        tensors = [u.weight for u in own if len(u.weight.shape or ()) == 3]
        for some in lists.values() if tensors else ():
            fitting = [f for f in some if len(f.members) == (tensors[0].shape or ())[0]]
            for group, ways in itertools.islice(stacked(tensors, fitting, join), MOST_OPTIONS):
                members = tuple(m for f in group for m in f.members)
                form = ("blind", tuple(f.name for f in group), tuple(len(w.chain) for w in ways))
                if join:
                    yield Option(members[0], ways, members, (path,), form)
                else:
                    yield Option(path, ways, (path,), members, form)


def of_gates(
    wholes: Sequence[tuple[str, Sequence[Unit]]], pools: Sequence[Sequence[tuple[str, Unit]]], join: bool
) -> Iterator[Option]:
    """Options of recurrent layers, and of layers that hold one gate each.

    Args:
        wholes: paths with their weights, PyTorch's without ``join``; those with two of as many rows count.
        pools: the layers of the other side that stand together.
        join: whether PyTorch's are the gates.
    """
    for path, own in wholes:
        shapes = [u.weight.shape or () for u in own]
        if len(own) != 2 or any(len(s) != 2 for s in shapes) or shapes[0][0] != shapes[1][0]:
            continue
        for pool, gates in itertools.product(pools, GATES):
            if shapes[0][0] % gates:
                continue
            for first, second in _two(pool, shapes, gates):
                for order in itertools.islice(itertools.permutations(range(gates)), MOST_OPTIONS // 2):
                    ways: list[Way] = []
                    for whole, group in zip(own, (first, second), strict=True):
                        pieces = [u for _, u in group]
                        if join:
                            ways += fusions.joined(pieces, whole, Fit(0, False), Layout(order))
                        else:
                            ways += fusions.parted(whole, pieces, Fit(0, False), Layout(order))
                    members = tuple(p for p, _ in (*first, *second))
                    form = ("blind", gates, order)
                    if ways and join:
                        yield Option(members[0], tuple(ways), members, (path,), form)
                    elif ways:
                        yield Option(path, tuple(ways), (path,), members, form)


def _two(
    pool: Sequence[tuple[str, Unit]], shapes: Sequence[tuple[int, ...]], gates: int
) -> Iterator[tuple[list[tuple[str, Unit]], list[tuple[str, Unit]]]]:
    """The gates that see the input, and those that see the state, in order of definition."""
    rows = shapes[0][0] // gates
    first, second = ([item for item in pool if item[1].weight.shape == (rows, s[1])] for s in shapes)
    if shapes[0] != shapes[1]:
        if len(first) == len(second) == gates:
            yield first, second
        return
    if len(first) == 2 * gates:
        for a, b in ((first[:gates], first[gates:]), (first[::2], first[1::2])):
            yield a, b
            yield b, a
