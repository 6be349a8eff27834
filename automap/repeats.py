"""Repeated blocks: found once, matched once, and unfolded again.

A large network is mostly the same block over and over: 80 layers, 128 experts in each. Children of one module that
are numbered and alike down to the last shape form a *run*. Matching needs only its first and its last child; what lies
between follows by counting.

Stages of a pipeline hold a part of a run each, and nothing else of their own kind: their parts count as one run. Where
two runs that belong together are of different length, both are counted from the front.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from automap.layers import Layer

SHORTEST = 4  # a shorter run is not worth folding

Path = tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    """One side with its runs folded.

    Attributes:
        layers: all layers of the side.
        kept: positions of the layers that stay: outside of every run, or in the first or last child of each.
        place: for each layer, where it stands in the runs around it, outermost first, and of how many.
        first: for each layer, its path in the first child of each of these runs.
        at: the layer with a given first-child path and a given place.
    """

    layers: list[Layer]
    kept: list[int]
    place: list[tuple[tuple[int, int], ...]]
    first: list[Path]
    at: dict[tuple[Path, tuple[int, ...]], int]


@dataclass(frozen=True)
class Unfolded:
    """The pairs of all layers.

    Attributes:
        pairs: from positions on the left to positions on the right.
        uncertain: positions on the left of what was counted from the front in runs of different length, where the
            numbers do not say the same: the first may be the one without a counterpart as well as the last.
    """

    pairs: dict[int, int]
    uncertain: frozenset[int] = frozenset()


def fold(layers: list[Layer]) -> Folded:
    """Find the runs of a side, the outer before the inner ones."""
    position = _positions(layers)
    place: list[tuple[tuple[int, int], ...]] = []
    first: list[Path] = []
    kept = []
    for i, layer in enumerate(layers):
        where: list[tuple[int, int]] = []
        base: Path = ()
        path = layer.parts
        edge = True
        for d, part in enumerate(path):
            run = position.get(path[: d + 1]) if part.isdigit() else None
            if run is None:
                base = (*base, part)
                continue
            k, n, begin = run
            where.append((k, n))
            # The first child stands in another module only where no run is around them.
            base = (*base, begin[-1]) if len(where) > 1 else begin
            edge = edge and k in (0, n - 1)
        place.append(tuple(where))
        first.append(base)
        if edge:
            kept.append(i)
    at = {(f, tuple(k for k, _ in p)): i for i, (f, p) in enumerate(zip(first, place, strict=True))}
    return Folded(layers, kept, place, first, at)


def _positions(layers: list[Layer]) -> dict[Path, tuple[int, int, Path]]:
    """For each child of a run: its position in the run, the run's length, and the path of the run's first child."""
    children: dict[Path, dict[str, None]] = defaultdict(dict)
    content: dict[Path, list[tuple[Path, int]]] = defaultdict(list)
    forms: dict[Hashable, int] = {}  # numbers are quicker to compare than what they stand for
    for layer in layers:
        path = layer.parts
        kind = forms.setdefault(layer.form, len(forms))
        for d, part in enumerate(path):
            if part.isdigit():
                children[path[:d]][part] = None
                content[path[: d + 1]].append((path[d + 1 :], kind))
    kinds: dict[Hashable, int] = {}
    # What the children hold counts, not the order in which they define it.
    alike = {child: kinds.setdefault(frozenset(held), len(kinds)) for child, held in content.items()}
    stages = {child for child, held in content.items() if _is_stage(held)}
    out: dict[Path, tuple[int, int, Path]] = {}
    for runs in _by_depth(children):
        parts: dict[Hashable, list[list[Path]]] = defaultdict(list)
        for parent, names in runs:
            inside = any(parent[: d + 1] in out for d in range(len(parent)))
            for run in _runs(parent, names, alike, stages):
                # Parts of one run stand in modules that differ in numbers alone, outside of every other run.
                whole: Hashable = parent if inside else tuple("#" if p.isdigit() else p for p in parent)
                parts[whole, alike[run[0]]].append(run)
        for found in parts.values():
            found.sort(key=lambda run: [int(p) for p in run[0] if p.isdigit()])
            parents = {run[0][:-1] for run in found}
            staged = any(parent[: d + 1] in stages for parent in parents for d in range(len(parent)))
            together = len(parents) == len(found) > 1 and staged  # a number left out ends a run
            for members in [[child for run in found for child in run]] if together else found:
                if len(members) >= SHORTEST:
                    out |= {child: (k, len(members), members[0]) for k, child in enumerate(members)}
    return out


def _is_stage(held: Sequence[tuple[Path, int]]) -> bool:
    """Whether all that a numbered child holds is one list: it is a part of a longer one, and no block."""
    where = set()
    for rest, _ in held:
        d = next((i for i, part in enumerate(rest) if part.isdigit()), None)
        if d is None:
            return False
        where.add(rest[:d])
    return len(where) == 1


def _by_depth(children: dict[Path, dict[str, None]]) -> Iterator[list[tuple[Path, dict[str, None]]]]:
    """Modules with numbered children, those of one depth together, the outer before the inner ones."""
    depths: dict[int, list[tuple[Path, dict[str, None]]]] = defaultdict(list)
    for parent, names in children.items():
        depths[len(parent)].append((parent, names))
    for d in sorted(depths):
        yield depths[d]


def _runs(parent: Path, names: dict[str, None], alike: dict[Path, int], stages: set[Path]) -> Iterator[list[Path]]:
    """The children of a module that follow each other by their numbers and hold the same."""
    run: list[Path] = []
    for name in sorted(names, key=int):
        child = (*parent, name)
        if child in stages:
            if run:
                yield run
            run = []
        elif run and alike[child] == alike[run[-1]] and int(name) == int(run[-1][-1]) + 1:
            run.append(child)
        else:
            if run:
                yield run
            run = [child]
    if run:
        yield run


def unfold(left: Folded, right: Folded, pairs: dict[int, int]) -> Unfolded | None:
    """The pairs of all layers from those of the kept ones, or None where the runs of the two sides do not agree.

    Args:
        pairs: from positions of kept layers on the left to positions of kept layers on the right.
    """
    stretched: set[Path] = set()  # first-child paths on the left of what stands in runs of different length
    model: dict[Path, int] = {}
    for i, j in pairs.items():
        mine, theirs = left.place[i], right.place[j]
        if mine != theirs:
            if not _same_edges(mine, theirs):
                return None  # not the same child of runs
            stretched.add(left.first[i])
        if model.setdefault(left.first[i], j) != j and right.first[model[left.first[i]]] != right.first[j]:
            return None  # the first and the last child went to different runs
    out: dict[int, int] = {}
    uncertain: set[int] = set()
    for i, (first, place) in enumerate(zip(left.first, left.place, strict=True)):
        if first not in stretched and i in pairs:
            out[i] = pairs[i]
            continue
        if first not in model:
            continue
        partner = right.at.get((right.first[model[first]], tuple(k for k, _ in place)))
        if partner is None:
            if first not in stretched:
                return None
            continue
        out[i] = partner
        if first in stretched and _numbers(left.layers[i]) != _numbers(right.layers[partner]):
            uncertain.add(i)
    return Unfolded(out, frozenset(uncertain))


def _same_edges(mine: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...]) -> bool:
    """Whether two places are the first, or the last, of runs that need not be of one length."""
    return len(mine) == len(theirs) and all(
        (k, n) == (m, o) or (k == m == 0) or (k == n - 1 and m == o - 1)
        for (k, n), (m, o) in zip(mine, theirs, strict=True)
    )


def _numbers(layer: Layer) -> list[str]:
    return re.findall(r"\d+", layer.path)
