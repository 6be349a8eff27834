"""Which modules and cells may be pieces of each other's: options of several parameters, for the search to choose from.

Shapes that add up say which pieces may belong together, and that they see the same input; the order in which they
stand in the whole, and whether by groups, is tried: the plainest first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from automap import fusions, stacks
from automap.arrangements import Option
from automap.fusions import Fit, Layout, Unit
from automap.graph import Listing
from automap.layers import common_module
from automap.running import Module

#: Groups of pieces that are looked at for one whole, and pieces of which any may belong to a group.
MOST_GROUPS, MOST_LOOSE = 12, 8
#: Options that one choice has at most.
MOST_OPTIONS = 40
#: Rearrangements of one layer: as many as are tried in a row.
MOST_TRIES = 60
#: Numbers of heads that are tried, and enclosing modules in which other pieces are looked for.
MOST_HEADS, MOST_LEVELS = 6, 3

#: A unit of the module or cell at a path.
_At = tuple[str, Unit]


class Composites:
    """Options of two networks.

    Args:
        ours: PyTorch's modules that own parameters.
        theirs: MindSpore's cells.
        listings: of both.
        numbers: the whole numbers that the modules of either side hold, by attribute.
    """

    def __init__(
        self,
        ours: dict[str, Module],
        theirs: dict[str, Module],
        listings: tuple[Listing, Listing],
        numbers: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]],
    ) -> None:
        self._modules, self._listings, self._numbers = (ours, theirs), listings, numbers
        self._units: tuple[dict[str, list[Unit]], dict[str, list[Unit]]] = ({}, {})
        self._places = {path: i for i, path in enumerate(ours)}
        self._own = [path for path, m in theirs.items() if m.own]

    def units(self, side: int, path: str) -> list[Unit]:
        """The weights of a module (side 0) or cell (side 1)."""
        known = self._units[side]
        if path not in known:
            by_name = self._listings[side].by_name
            own = self._modules[side][path].own
            known[path] = fusions.units([(attribute, by_name[name]) for attribute, name in own if name in by_name])
        return known[path]

    def heads(self, path: str, cell: str) -> tuple[int, ...]:
        """Numbers that may be of heads or groups: those called so first, then those of the innermost modules."""
        ranked: dict[int, tuple[bool, int]] = {}
        for side, inner in enumerate((path, cell)):
            for level, module in enumerate(_around(inner)):
                for attribute, number in self._numbers[side].get(module, {}).items():
                    # What a layer by itself holds are its own sizes.
                    key = (not re.search("head|group", attribute.lower()), level or 99)
                    ranked[number] = min(key, ranked.get(number, key))
        return tuple(sorted(ranked, key=ranked.__getitem__))[:MOST_HEADS]

    # -------------------------------------------------------------------------------------- a cell of several modules

    def joins(self, cell: str, paths: Iterable[str]) -> Iterator[Option]:
        """A cell that has in one what some of the modules at these paths have in pieces."""
        ordered = sorted(paths, key=self._places.__getitem__)
        pool = [(path, unit) for path in ordered for unit in self.units(0, path)]
        for whole in self.units(1, cell):
            made = []
            for rank, group in enumerate(_groups(pool, whole)):
                pieces = [unit for _, unit in group]
                origins = tuple(dict.fromkeys(path for path, _ in group))
                for at, (fit, layout) in enumerate(self._arrangements(pieces, whole, origins[0], cell)):
                    ways = fusions.joined(pieces, whole, fit, layout)
                    names = tuple(path for path, _ in group)
                    form = ("join", _relative([names[i] for i in layout.order]), fit, layout.groups > 1)
                    if ways:
                        made.append((rank + at, Option(origins[0], ways, origins, (cell,), form)))
            yield from (option for _, option in sorted(made, key=_first))

    # -------------------------------------------------------------------------------------- a module of several cells

    def parts(self, cell: str, path: str, free: Callable[[str], bool]) -> Iterator[Option]:
        """The module at a path that has in one what a cell, and others that are free, have in pieces."""
        for whole in self.units(0, path):
            made = []
            for rank, group in enumerate(self._mates(cell, whole, free)):
                pieces = [unit for _, unit in group]
                cells = tuple(dict.fromkeys([cell, *(c for c, _ in group)]))
                for at, (fit, layout) in enumerate(self._arrangements(pieces, whole, path, cell)):
                    ways = fusions.parted(whole, pieces, fit, layout)
                    names = tuple(c for c, _ in group)
                    form = ("part", _relative([names[i] for i in layout.order]), fit, layout.groups > 1)
                    if ways:
                        made.append((rank + at, Option(path, ways, (path,), cells, form)))
            yield from (option for _, option in sorted(made, key=_first))

    def _mates(self, cell: str, whole: Unit, free: Callable[[str], bool]) -> list[tuple[_At, ...]]:
        """Groups of pieces of which the cell has at least one: in itself, else around it."""
        mine = [(cell, unit) for unit in self.units(1, cell) if _is_smaller(unit, whole)]
        if not mine:
            return []
        found = list(_groups(mine, whole)) if len(mine) > 1 else []
        if found:
            return found
        for level in list(_around(cell))[1 : 1 + MOST_LEVELS]:
            below = f"{level}." if level else ""
            cells = [c for c in self._own if c.startswith(below) and (c == cell or free(c))]
            pool = [(c, unit) for c in cells for unit in self.units(1, c) if _is_smaller(unit, whole)]
            found = [group for group in _groups(pool, whole, cell) if any(c == cell for c, _ in group)]
            if found:
                return found
        return []

    def _arrangements(self, pieces: Sequence[Unit], whole: Unit, path: str, cell: str) -> Iterator[tuple[Fit, Layout]]:
        shapes = [u.weight.shape or () for u in pieces]
        fitting = fusions.fits(shapes, whole.weight.shape or ())
        heads = self.heads(path, cell)
        every = []
        for i, fit in enumerate(fitting):
            sizes = tuple(s[1 - fit.axis if fit.turned else fit.axis] for s in shapes)
            every += [(i + k, fit, layout) for k, layout in enumerate(fusions.layouts(sizes, heads))]
        for _, fit, layout in sorted(every, key=lambda item: item[0])[:MOST_OPTIONS]:
            yield fit, layout

    # ------------------------------------------------------------------------------------- what no input tells

    def blind(self, cell: str, unused: Callable[[str], bool], free: Callable[[str], bool]) -> Iterator[Option]:
        """What a cell may be a part of, or be in one, that its input does not tell; see :mod:`automap.stacks`."""
        mine = self.units(1, cell)
        if not mine:
            return
        ours = [path for path in self._modules[0] if unused(path) and self.units(0, path)]
        if len(mine) > 1 or len(mine[0].weight.shape or ()) == 3:
            pool = [(path, unit) for path in ours for unit in self.units(0, path)]
            yield from stacks.of_experts([(cell, mine)], pool, True)
            yield from stacks.of_gates([(cell, mine)], _by_parent(pool), True)
            return
        wholes = [(p, u) for p in ours if len(u := self.units(0, p)) > 1 or len(u[0].weight.shape or ()) == 3]
        if wholes:
            pool = [(c, unit) for c in self._own if c == cell or free(c) for unit in self.units(1, c)]
            made = itertools.chain(
                stacks.of_experts(wholes, pool, False), stacks.of_gates(wholes, _by_parent(pool), False)
            )
            for option in made:
                if cell in option.cells:
                    yield replace(option, cells=(cell, *(c for c in option.cells if c != cell)))

    # ------------------------------------------------------------------------------------------------- one, rearranged

    def rearrangements(self, option: Option, cell: str) -> Iterator[Option]:
        """The same weights with their rows in another order."""
        if any(not way.single for way in option.ways):
            return
        main = max(option.ways, key=lambda way: way.torch[0].size or 0)
        shape = main.torch[0].shape or ()
        if len([d for d in shape if d > 1]) < 2 or len(shape) < 2:
            return
        vectors = [w for w in option.ways if len(w.torch[0].shape or ()) == 1]
        bias = next((w for w in vectors if w.torch[0].size in shape[:2]), None)
        transposed = any(t.op == "transpose" for t in main.chain)
        if bias is not None and shape[0] != shape[1]:
            axis = shape.index(bias.torch[0].size or 0)
        else:
            axis = int(transposed)
        if axis > 1:
            return
        heads = self.heads(option.path, cell)
        for sizes, ours, theirs in itertools.islice(fusions.rearrangements(shape[axis], heads), MOST_TRIES):
            ways = []
            for way in option.ways:
                at = axis if way is main else 0
                ways.append(
                    fusions.rearranged(way, at, sizes, ours, theirs)
                    if way is main or (way is bias and bias.torch[0].size == shape[axis])
                    else way
                )
            form = ("rows", len(sizes), ours.order, ours.groups > 1, theirs.order, theirs.groups > 1)
            yield Option(option.path, tuple(ways), form=form)


def _by_parent(pool: Sequence[_At]) -> list[list[_At]]:
    """Layers by the module that they stand in."""
    found: dict[str, list[_At]] = {}
    for path, unit in pool:
        found.setdefault(path.rpartition(".")[0], []).append((path, unit))
    return list(found.values())


def _first(item: tuple[int, object]) -> int:
    return item[0]


def _around(path: str) -> Iterator[str]:
    """A path and the modules around it, innermost first, the network last."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def _is_smaller(piece: Unit, whole: Unit) -> bool:
    return 0 < (piece.weight.size or 0) < (whole.weight.size or 0)


def _groups(pool: Sequence[_At], whole: Unit, anchor: str | None = None) -> Iterator[tuple[_At, ...]]:
    """Pieces that add up to the whole, in order of definition: those that follow each other first.

    Args:
        anchor: a path of which one piece has to be.
    """
    size = whole.weight.size or 0
    goal = whole.weight.shape or ()
    seen: set[tuple[int, ...]] = set()

    def candidates() -> Iterator[tuple[int, ...]]:
        places = range(len(pool))
        for k in range(2, len(pool) + 1):
            yield from (tuple(places[i : i + k]) for i in range(len(pool) - k + 1))
        if len(pool) <= MOST_LOOSE:
            for k in range(2, len(pool)):
                yield from itertools.combinations(places, k)

    for group in itertools.islice(candidates(), 2000):
        if group in seen or sum(pool[i][1].weight.size or 0 for i in group) != size:
            continue
        seen.add(group)
        if anchor is not None and all(pool[i][0] != anchor for i in group):
            continue
        if fusions.fits([pool[i][1].weight.shape or () for i in group], goal):
            yield tuple(pool[i] for i in group)
            if len(seen) >= MOST_GROUPS:
                return


def _relative(paths: Sequence[str]) -> tuple[str, ...]:
    """Paths as they are named from the module that holds all of them."""
    common = common_module([f"{p}." for p in paths]) if len(set(paths)) > 1 else paths[0]
    return tuple(p[len(common) :] for p in paths)
