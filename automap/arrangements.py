"""How a cell can get its weights from a module: which parameter becomes which, and what happens to the arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from automap import transforms
from automap.dtypes import Array
from automap.graph import Param
from automap.layers import core
from automap.names import PROJECTIONS, RECURRENT, SLOTS, is_framework_word
from automap.reach import can_reach, reaching
from automap.transforms import Transform

#: Arrangements of equally shaped parameters of one module that are looked at.
MOST_ARRANGEMENTS = 6

#: Transforms that leave every value as it is.
ARRANGING = frozenset(
    {
        "reshape",
        "transpose",
        "concat",
        "split",
        "stack",
        "unstack",
        "flatten",
        "unflatten",
        "reorder",
        "reverse",
        "take",
    }
)


class Way(NamedTuple):
    """How some parameters get their values: PyTorch's become MindSpore's, in order, by a chain of transforms."""

    torch: tuple[Param, ...]
    mindspore: tuple[Param, ...]
    chain: tuple[Transform, ...] = ()

    @property
    def single(self) -> bool:
        """Whether one parameter becomes one."""
        return len(self.torch) == len(self.mindspore) == 1

    @property
    def computed(self) -> bool:
        """Whether the values are others afterwards, and not only in other places."""
        return any(t.op not in ARRANGING for t in self.chain)

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """PyTorch's and MindSpore's names."""
        return tuple(t.name for t in self.torch), tuple(m.name for m in self.mindspore)

    def values(self, value: Callable[[str], Array]) -> dict[str, Array]:
        """What MindSpore's parameters get, by name, where ``value`` has PyTorch's values."""
        made = transforms.apply(self.chain, [value(t.name) for t in self.torch])
        return {m.name: array for m, array in zip(self.mindspore, made, strict=True)}


@dataclass(frozen=True)
class Option:
    """One way to give a cell its weights: from the PyTorch module at ``path``.

    Attributes:
        path: of the module, of several the first one.
        ways: of its parameters.
        modules: the paths of all modules, where there are several.
        cells: the paths of all cells that get weights, where there are several.
        form: what kind of arrangement it is, where there is one: the same in another repetition.
    """

    path: str
    ways: tuple[Way, ...]
    modules: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    form: tuple[object, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Of every module that it takes weights from."""
        return self.modules or (self.path,)

    @property
    def several(self) -> bool:
        """Whether it is of several modules or cells, or of parameters that become more or fewer."""
        return len(self.modules) > 1 or len(self.cells) > 1 or not all(way.single for way in self.ways)

    @property
    def torch(self) -> set[str]:
        """The names of PyTorch's parameters."""
        return {t.name for way in self.ways for t in way.torch}

    @property
    def mindspore(self) -> set[str]:
        """The names of MindSpore's parameters."""
        return {m.name for way in self.ways for m in way.mindspore}


def choices(path: str, ours: list[tuple[str, Param]], theirs: list[tuple[str, Param]]) -> list[Option]:
    """Every way in which a cell can get its weights from the module at a path; see :func:`pairings`.

    What has a name of its author's may be used in its author's way: a square matrix also from the other side.
    """
    plain = [Option(path, ways) for ways in pairings(ours, theirs)]
    other = [turned(o, lambda t, m: not is_framework_word(t.leaf, m.leaf)) for o in plain]
    return plain + [o for o in other if o not in plain]


def turned(option: Option, which: Callable[[Param, Param], bool] = lambda t, m: True) -> Option:
    """The same weights with square matrices transposed."""
    turn = Transform("transpose", {"axes": [1, 0]})

    def other(way: Way) -> Way:
        if not way.single or turn in way.chain:
            return way
        (t,), (m,) = way.torch, way.mindspore
        return way._replace(chain=(turn, *way.chain)) if _is_square(t) and which(t, m) else way

    return replace(option, ways=tuple(map(other, option.ways)))


def pairings(ours: list[tuple[str, Param]], theirs: list[tuple[str, Param]]) -> list[tuple[Way, ...]]:
    """The ways in which a cell can get its weights from a module: none where they cannot be each other's.

    What both frameworks' layers call by their own words goes to its like. What has a name of its author's goes to what
    has its shape, in definition order first. Only the greatest parameter of either side must have a counterpart.

    Args:
        ours, theirs: attribute and parameter of the PyTorch module and of the MindSpore cell.
    """
    left = {SLOTS.get(attribute, attribute): p for attribute, p in ours}
    right = {SLOTS.get(attribute, attribute): p for attribute, p in theirs}
    left.pop("counter", None)
    right.pop("counter", None)
    if not left or not right or ("mean" in left) != ("mean" in right):
        return []
    words = [slot for slot in left if slot in right and _is_frameworks_own(slot)]
    fixed = [(left[slot], right[slot]) for slot in words]
    if any(not can_reach(p, q) for p, q in fixed):
        return []
    free_l = {slot: p for slot, p in left.items() if slot not in words}
    free_r = {slot: q for slot, q in right.items() if slot not in words}
    parts: list[list[list[tuple[Param, Param]]]] = [[fixed]]
    for shape in dict.fromkeys(shape_key(q) for q in free_r.values()):
        ps = {slot: p for slot, p in free_l.items() if shape_key(p) == shape}
        qs = {slot: q for slot, q in free_r.items() if shape_key(q) == shape}
        if ps:
            parts.append(_orders(ps, qs))
    found = []
    main_l = max(left.values(), key=lambda p: p.size or 0)
    main_r = max(right.values(), key=lambda p: p.size or 0)
    for combination in itertools.islice(itertools.product(*parts), MOST_ARRANGEMENTS):
        pairs = [pair for part in combination for pair in part]
        whole_l = any((p.size or 0) == (main_l.size or 0) for p, _ in pairs)
        whole_r = any((q.size or 0) == (main_r.size or 0) for _, q in pairs)
        if pairs and whole_l and whole_r:
            found.append(tuple(Way((p,), (q,), reaching(p, q)) for p, q in pairs))
    return found


def _orders(ps: dict[str, Param], qs: dict[str, Param]) -> list[list[tuple[Param, Param]]]:
    """Pairs of equally shaped parameters in every order, those of the same name together first."""
    same = [(slot, slot) for slot in ps if slot in qs]
    rest_p, rest_q = [s for s in ps if s not in qs], [s for s in qs if s not in ps]
    first = dict([*same, *zip(rest_p, rest_q, strict=False)])
    if len(ps) >= len(qs):
        orders = (list(zip(some, qs, strict=True)) for some in itertools.permutations(ps, len(qs)))
    else:
        orders = (list(zip(ps, some, strict=True)) for some in itertools.permutations(qs, len(ps)))
    ranked = sorted(itertools.islice(orders, 120), key=lambda order: -sum(first.get(s) == r for s, r in order))
    pairs = ([(ps[s], qs[r]) for s, r in order] for order in ranked)
    return [order for order in pairs if all(can_reach(p, q) for p, q in order)][:MOST_ARRANGEMENTS]


def _is_frameworks_own(slot: str) -> bool:
    """Whether a framework's layers use the word for a parameter of their own."""
    return slot in SLOTS.values() or RECURRENT.match(slot) is not None or slot in PROJECTIONS


def shape_key(p: Param) -> tuple[int, ...]:
    return tuple(sorted(core(p.shape) or ()))


def _is_square(p: Param) -> bool:
    shape = core(p.shape) or ()
    return len(shape) == 2 and shape[0] == shape[1] and p.shape == shape
