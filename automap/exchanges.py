"""What could be otherwise in an assignment: exchanges of pairs, in all places where the same names stand at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from automap.objective import Problem, Solution, pattern
from automap.scoring import Ints

EXPLORED = 40  # sets of exchanges that are tried
EXPLORED_WIDE = 20  # and of those that change a name's translation everywhere, or shift siblings by one
ROW = 6  # siblings that may be shifted by one


@dataclass
class Move:
    """Pairs that are exchanged for others in several places at once.

    ``places`` counts the decisions in it; in a ``free`` one the other choice is a layer that nothing else claims; a
    ``wide`` one changes several modules, or all siblings, at once.
    """

    old: Ints
    new: Ints
    places: int
    free: bool
    wide: bool = False


@dataclass
class _Exchange:
    """One exchange, what it loses by the present scores, and what kind it is; ``ends`` can only be exchanged once."""

    loss: float
    old: tuple[int, ...]
    new: tuple[int, ...]
    ends: tuple[int, ...]
    kind: tuple[Hashable, ...]
    place: Hashable


def moves(problem: Problem, s: Solution) -> list[Move]:
    """Sets of exchanges that belong together (the same two local names, wherever they stand), likely ones first."""
    groups: dict[tuple[Hashable, ...], list[_Exchange]] = defaultdict(list)
    for exchange in chain(_exchanges(problem, s), _rotations(problem, s)):
        groups[exchange.kind].append(exchange)
    for kind, members in _everywhere(groups):
        groups[kind] = members
    out: list[tuple[bool, float, int, Move]] = []
    # What gains in some of the places, and loses in others, is tried in those where it gains.
    gaining = [(kind, [x for x in members if x.loss < 0]) for kind, members in groups.items()]
    some = [(kind, found) for kind, found in gaining if found and len(found) < len(groups[kind])]
    for kind, members in (*groups.items(), *some):
        members.sort(key=lambda x: x.loss)
        used: set[int] = set()
        taken = []
        for x in members:
            if used.isdisjoint(x.ends):
                used.update(x.ends)
                taken.append(x)
        move = Move(
            np.array([k for x in taken for k in x.old]),
            np.array([k for x in taken for k in x.new]),
            len({x.place for x in taken}),
            kind[0] == "free",
            kind[0] in ("everywhere", "rotation"),
        )
        # Which block is which is seldom in doubt, and there are many pairs of blocks: those come last.
        out.append((kind[0] == "blocks", sum(x.loss for x in taken) / len(taken), len(out), move))
    ranked = sorted(out, key=lambda x: x[:3])
    few = [x[3] for x in ranked if not x[3].wide][:EXPLORED]
    return few + [x[3] for x in ranked if x[3].wide][:EXPLORED_WIDE]


def _exchanges(problem: Problem, s: Solution) -> Iterator[_Exchange]:
    """Every exchange of two chosen pairs, or of one for a pair with a layer that is free.

    A free layer is exchanged by itself, and together with the others of a module that is free as a whole.
    """
    c = problem.c
    at = {(u, v): k for k, (u, v) in enumerate(zip(c.left.tolist(), c.right.tolist(), strict=True))}
    held = _contents(problem)
    of_left = {int(c.left[k]): int(k) for k in s.chosen}
    of_right = {int(c.right[k]): int(k) for k in s.chosen}
    for (u1, v2), k12 in at.items():
        k11, k22 = of_left.get(u1), of_right.get(v2)
        if k11 == k12:
            continue
        if k11 is not None and k22 is not None:
            u2, v1 = int(c.left[k22]), int(c.right[k11])
            k21 = at.get((u2, v1))
            if k21 is None or u2 < u1:
                continue
            loss = float(s.score[k11] + s.score[k22] - s.score[k12] - s.score[k21])
            kind, place = _divergence(problem.left[u1].parts, problem.left[u2].parts, held)
            yield _Exchange(loss, (k11, k22), (k12, k21), (u1, u2), kind, place)
        elif k11 is not None:
            loss = float(s.score[k11] - s.score[k12])
            yield _Exchange(loss, (k11,), (k12,), (u1,), ("free", v2, pattern(problem.left[u1].parts)), u1)
            kind, place = _divergence(problem.right[int(c.right[k11])].parts, problem.right[v2].parts)
            if kind[0] == "siblings" and kind[-1] == () and len(problem.right[v2].parts) > len(place) + 1:
                yield _Exchange(loss, (k11,), (k12,), (u1, -1 - v2), ("free", "mindspore", *kind), place)
        elif k22 is not None:
            loss = float(s.score[k22] - s.score[k12])
            kind = ("free", pattern(problem.left[u1].parts), pattern(problem.right[v2].parts))
            yield _Exchange(loss, (k22,), (k12,), (u1, -1 - v2), kind, u1)
            kind, place = _divergence(problem.left[u1].parts, problem.left[int(c.left[k22])].parts)
            if kind[0] == "siblings" and kind[-1] == () and len(problem.left[u1].parts) > len(place) + 1:
                yield _Exchange(loss, (k22,), (k12,), (u1, -1 - v2), ("free", "torch", *kind), place)


def _everywhere(
    groups: dict[tuple[Hashable, ...], list[_Exchange]],
) -> list[tuple[tuple[Hashable, ...], list[_Exchange]]]:
    """Exchanges of the same local names in different modules, put together: a translation holds everywhere."""
    wide: dict[tuple[Hashable, ...], list[list[_Exchange]]] = defaultdict(list)
    for kind, members in groups.items():
        if kind[0] in ("siblings", "rotation"):
            everywhere = ("everywhere", *kind[2:])
            wide[everywhere].append(members)
    return [(kind, [x for some in every for x in some]) for kind, every in wide.items() if len(every) > 1]


def _rotations(problem: Problem, s: Solution) -> Iterator[_Exchange]:
    """Siblings that could as well go over shifted by one: what is defined first here may be the last one there."""
    c = problem.c
    at = {(u, v): k for k, (u, v) in enumerate(zip(c.left.tolist(), c.right.tolist(), strict=True))}
    rows: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for k in s.chosen.tolist():
        u, v = int(c.left[k]), int(c.right[k])
        rows[int(problem.parent_l[u]), int(problem.parent_r[v]), int(problem.shape[u])].append(k)
    for row in rows.values():
        if not 2 < len(row) <= ROW:
            continue
        row.sort(key=lambda k: int(problem.rank_r[c.right[k]]))
        lefts, rights = c.left[row].tolist(), c.right[row].tolist()
        parts = problem.left[lefts[0]].parts
        names = tuple(problem.left[u].parts[-1:] for u in lefts)
        for by in (1, -1):
            new = [at.get((u, rights[(i + by) % len(row)])) for i, u in enumerate(lefts)]
            if None not in new:
                taken = tuple(k for k in new if k is not None)
                loss = float(s.score[row].sum() - s.score[list(taken)].sum())
                kind = ("rotation", pattern(parts[:-1]), names, by)
                yield _Exchange(loss, tuple(row), taken, tuple(lefts), kind, parts[:-1])


def _contents(problem: Problem) -> dict[tuple[str, ...], Counter[Hashable]]:
    """What each module of the left side holds, by shape."""
    held: dict[tuple[str, ...], Counter[Hashable]] = defaultdict(Counter)
    for i, layer in enumerate(problem.left):
        for d in range(1, len(layer.parts)):
            held[layer.parts[:d]][int(problem.shape[i])] += 1
    return held


def _divergence(
    a: tuple[str, ...], b: tuple[str, ...], held: dict[tuple[str, ...], Counter[Hashable]] | None = None
) -> tuple[tuple[Hashable, ...], tuple[str, ...]]:
    """What kind of exchange two layers are (the parts in which their paths differ, numbers before them ignored),
    and the place where it happens. Layers that differ in one module on the way belong to one exchange."""
    d = 0
    while d < min(len(a), len(b)) and a[d] == b[d]:
        d += 1
    rest = a[d + 1 :], b[d + 1 :]
    here = a[d : d + 1], b[d : d + 1]
    what = "siblings"
    if "".join((*here[0], *here[1])).isdigit():
        alike = any(rest) and (held is None or held.get(a[: d + 1]) == held.get(b[: d + 1]))
        what = "blocks" if alike else "numbered"
    return (what, pattern(a[:d]), *here, () if rest[0] == rest[1] else tuple(map(pattern, rest))), a[:d]
