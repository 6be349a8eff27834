"""Repeated blocks: found once, matched once, and unfolded again.

A large network is mostly the same block over and over: 80 layers, 128 experts in each. Children of one module that
are numbered and alike down to the last shape form a *run*. Matching needs only its first and its last child; what lies
between follows by counting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from automap.layers import Layer

SHORTEST = 4  # a shorter run is not worth folding


@dataclass(frozen=True)
class Folded:
    """One side with its runs folded.

    Attributes:
        layers: all layers of the side.
        kept: positions of the layers that stay: outside of every run, or in the first or last child of each.
        place: for each layer, where it stands in the runs around it, outermost first, and of how many.
        at: the layer with a given first-child path and a given place.
    """

    layers: list[Layer]
    kept: list[int]
    place: list[tuple[tuple[int, int], ...]]
    first: list[tuple[str, ...]]
    at: dict[tuple[tuple[str, ...], tuple[int, ...]], int]


def fold(layers: list[Layer]) -> Folded:
    """Find the runs of a side, the outer before the inner ones."""
    position = _positions(layers)
    place: list[tuple[tuple[int, int], ...]] = []
    first: list[tuple[str, ...]] = []
    kept = []
    for i, layer in enumerate(layers):
        where, base, path = [], [], layer.parts
        edge = True
        for d, part in enumerate(path):
            run = position.get(path[: d + 1])
            if run is None:
                base.append(part)
                continue
            k, n, name = run
            where.append((k, n))
            base.append(name)
            edge = edge and k in (0, n - 1)
        place.append(tuple(where))
        first.append(tuple(base))
        if edge:
            kept.append(i)
    at = {(f, tuple(k for k, _ in p)): i for i, (f, p) in enumerate(zip(first, place, strict=True))}
    return Folded(layers, kept, place, first, at)


def _positions(layers: list[Layer]) -> dict[tuple[str, ...], tuple[int, int, str]]:
    """For each child of a run: its position in the run, the run's length, and the name of the run's first child."""
    children: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    content: dict[tuple[str, ...], list[Hashable]] = defaultdict(list)
    forms: dict[Hashable, int] = {}  # numbers are quicker to compare than what they stand for
    for layer in layers:
        path = layer.parts
        kind = forms.setdefault(layer.form, len(forms))
        for d, part in enumerate(path):
            children[path[:d]][part] = None
            if part.isdigit():
                content[path[: d + 1]].append((path[d + 1 :], kind))
    out: dict[tuple[str, ...], tuple[int, int, str]] = {}
    for parent, names in children.items():
        run: list[str] = []
        alike: frozenset[Hashable] = frozenset()
        for name in sorted((n for n in names if n.isdigit()), key=int):
            # What the children hold counts, not the order in which they define it.
            child = (*parent, name)
            this = frozenset(content[child])
            if run and this == alike and int(name) == int(run[-1]) + 1:
                run.append(name)
                continue
            _note(out, parent, run)
            run, alike = [name], this
        _note(out, parent, run)
    return out


def _note(out: dict[tuple[str, ...], tuple[int, int, str]], parent: tuple[str, ...], run: list[str]) -> None:
    if len(run) >= SHORTEST:
        for k, member in enumerate(run):
            child = (*parent, member)
            out[child] = (k, len(run), run[0])


def unfold(left: Folded, right: Folded, pairs: dict[int, int]) -> dict[int, int] | None:
    """The pairs of all layers from the pairs of the kept ones, or None where the runs of the two sides do not agree.

    Args:
        pairs: from positions of kept layers on the left to positions of kept layers on the right.
    """
    out = dict(pairs)
    model: dict[tuple[str, ...], int] = {}
    for i, j in pairs.items():
        if left.place[i] != right.place[j]:
            return None  # not the same child of runs of the same length
        if model.setdefault(left.first[i], j) != j and right.first[model[left.first[i]]] != right.first[j]:
            return None  # the first and the last child went to different runs
    for i, (first, place) in enumerate(zip(left.first, left.place, strict=True)):
        if i in pairs or first not in model:
            continue
        partner = right.at.get((right.first[model[first]], tuple(k for k, _ in place)))
        if partner is None:
            return None
        out[i] = partner
    return out
