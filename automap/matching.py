"""The assignment of layers to layers: annealed from several starts, improved by swaps, and doubted.

What depends on the belief about all pairs (structure, usage, order) and the belief itself are found together, as in
graduated assignment (Gold and Rangarajan, 1996): a soft assignment is computed from the present scores, the scores
are computed again from it, and the temperature falls. Such a search can settle in a local optimum, so it is run from
several starts, and the result with the greatest objective is taken. The objective is the evidence summed over a hard
assignment, every part of it computed from that assignment alone.

An entry is in doubt where a *different* assignment has nearly the same objective. Those are looked for explicitly:
a swap, in all places where the same names stand at once, with everything that follows from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap.assignment import assign
from automap.exchanges import Move, moves
from automap.objective import ORDER, TRUSTED, Problem, Solution, increasing, pattern
from automap.scoring import Floats, Ints
from automap.straightening import Partners, counted, partners

ROUNDS = 8  # of annealing
WARM_UP = 4  # rounds in which a start leaves a part of the evidence out
TIE = 0.05  # how much a run favours one of several equal choices
BROAD = 2  # rounds over all candidates; after them, over the best of each layer
#: What a run leaves out while it warms up, and whether it then takes numbers as they are (1), by rank (0) or both.
STARTS: tuple[tuple[tuple[str, ...], float], ...] = (((), 1.0), ((), 0.0))
#: And what it tries where the results of those differ.
MORE_STARTS: tuple[tuple[tuple[str, ...], float], ...] = ((("words",), 0.5), (("order", "words"), 0.5))
FEW = 5  # candidates per layer that are worth a second look
NEIGHBOURS = 8  # layers to either side that tell whether order is kept hereabouts
CONFLICT = 0.2  # how much better words must be under another run's choice to put them at odds with this one
AT_ODDS = 0.5  # what such a choice counts as losing
NEARLY_ALL = 0.8  # of the repetitions of a block
WIDE = 1.5  # how much more a lead over what changes several modules counts: each of them has been defined in its order
FREE = 0.35  # how much less a lead over an unclaimed layer counts: nothing else speaks against that one
UNSHAPED = 0.6  # how much less any lead counts where shapes are unknown
HOPELESS = 8.0  # a swap that loses more than this at once is not followed up


@dataclass
class Doubt:
    """The best alternative to one pair: what it loses (0: nothing), and the right layer it would take (-1: none).

    ``alike``: the doubt is not about this pair but about nearly all that differ from it in numbers alone.
    """

    loss: float
    instead: int
    alike: bool = False


class Matcher(Problem):
    """The search for the best assignment of one problem, and the doubts about it."""

    def solve(self) -> Solution:
        """The best assignment found; :meth:`doubts` then tells how sure each of its pairs is."""
        self._moved: dict[int, list[int]] = {}  # what its like in the other blocks has moved, and those
        self.trust = 0.0 if self.ignore_names else self._trust()
        if len(np.unique(self.c.left)) == len(np.unique(self.c.right)) == len(self.c):  # there is nothing to choose
            every = np.arange(len(self.c))
            self._runs = [every]
            return self._improve(self.evaluate(every))
        free = self.anneal(("order",), always=True)
        self._runs = _distinct([free, *(self.anneal(*s) for s in STARTS)])
        if len(self._runs) > 1:
            self._runs = _distinct([*self._runs, *(self.anneal(*s) for s in MORE_STARTS)])
        best = max((self.settle(s) for s in self._runs), key=lambda s: s.objective)
        best = self._improve(best)
        if self.ignore_names or not self.shapes:
            return self._straightened(best)
        return self._alike(self._straightened(self._in_step(best)))

    def anneal(self, without: tuple[str, ...] = (), w: float = 0.5, always: bool = False) -> Ints:
        """One run; the parts ``without`` are left out while it warms up (or ``always``). The chosen candidates."""
        at, k = self, np.arange(len(self.c))
        structure, usage = np.zeros(len(k)), np.zeros(len(k))
        score = structure
        for r in range(ROUNDS):
            out = without if r < WARM_UP or always else ()
            if r == BROAD:
                keep = at.best_few(score, 2 * FEW)
                at, k = at.narrowed(keep), k[keep]
                structure, usage = structure[keep], usage[keep]
            beta = 3.0 + 2.0 * r
            score = at.base(w, structure, usage, out)
            if at.trust < TRUSTED:
                score = score + TIE * at.tie
            if "order" not in out and at.trust > 0:
                belief = at.belief(beta * score)
                top = np.zeros(self.n)
                np.maximum.at(top, at.c.left, belief)
                score = score + ORDER * at.order(0.3 + 0.7 * belief / np.maximum(top[at.c.left], 1e-12))
            belief = at.belief(beta * score)
            structure, usage = at.pooled(at.matrix(np.arange(len(k)), belief), at.c)
            if r >= WARM_UP - 1:
                w = at.value_weight(belief)
        chosen = assign(at.c.left, at.c.right, at.c.block, score)
        return k[at.settle(chosen, always).chosen]

    def _in_step(self, s: Solution) -> Solution:
        """The same with blocks that are alike in the order of their numbers, which then is no longer in doubt."""
        c = self.c
        blocks = counted(self.left, self.right, self._pairs(s.chosen))
        ends = zip(c.left.tolist(), c.right.tolist(), strict=True)
        kept = np.array([not blocks.apart(u, v) for u, v in ends], dtype=bool)
        if kept.all():
            return s
        k = np.flatnonzero(kept)
        near = self.narrowed(k)
        found = near.settle(np.searchsorted(k, s.chosen[kept[s.chosen]]), rounds=ROUNDS)
        if len(found.chosen) < len(s.chosen):
            return s
        self._runs = [np.searchsorted(k, run[kept[run]]) for run in self._runs]
        self._keep(near)
        return self._improve(self.evaluate(found.chosen))

    def _alike(self, s: Solution) -> Solution:
        """The same with what nearly all of some blocks that are alike say in every one of them."""
        pairs = self._pairs(s.chosen)
        inside = counted(self.left, self.right, pairs).inside
        at = {pair: k for k, pair in enumerate(zip(self.c.left.tolist(), self.c.right.tolist(), strict=True))}
        moved = {u: v for u, (v, _) in inside.items() if pairs.get(u, v) != v and (u, v) in at}
        new = pairs | moved
        while len(set(new.values())) < len(new):  # only what changes places among itself
            held = Counter(new.values())
            back = {u for u, v in moved.items() if held[v] > 1}
            if not back:
                return s
            moved = {u: v for u, v in moved.items() if u not in back}
            new = pairs | moved
        if not moved:
            return s
        self._moved = {u: inside[u][1] for u in moved}
        return self.evaluate(np.array(sorted(at[pair] for pair in new.items()), dtype=np.int64))

    def _pairs(self, chosen: Ints) -> dict[int, int]:
        return dict(zip(self.c.left[chosen].tolist(), self.c.right[chosen].tolist(), strict=True))

    def _crossing(self, chosen: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The chosen candidates that lead from a block to the counterpart of another one, and all that would."""
        c = self.c
        ends = list(zip(c.left.tolist(), c.right.tolist(), strict=True))
        blocks = partners(self.left, self.right, [ends[k] for k in chosen.tolist()])
        every = np.array([bool(blocks.crossed(u, v)) for u, v in ends], dtype=bool)
        return chosen[every[chosen]], every

    def _off_their_blocks(self, chosen: Ints) -> Iterator[int]:
        """Left layers that go elsewhere than the blocks around them, or stand in lists where some do."""
        ends = [(int(self.c.left[k]), int(self.c.right[k])) for k in chosen]
        blocks = partners(self.left, self.right, ends)
        yield from self._in_crossed_blocks(chosen, ends, blocks)
        yield from (u for u, v in ends if blocks.astray(u, v))

    def _in_crossed_blocks(self, chosen: Ints, ends: list[tuple[int, int]], blocks: Partners) -> Iterator[int]:
        """Left layers in lists of blocks between which a pair leads from one to the counterpart of another."""
        wrong, every = self._crossing(chosen)
        wrong = self._unforced(wrong, every)
        hit = {x for k in wrong.tolist() for x in blocks.crossed(int(self.c.left[k]), int(self.c.right[k]))}
        for u, v in ends:
            around = [("torch", *a[:-1]) for a in blocks.left[u]] + [("mindspore", *b[:-1]) for b in blocks.right[v]]
            if not hit.isdisjoint(around):
                yield u

    def _unforced(self, wrong: Ints, every: NDArray[np.bool_]) -> Ints:
        """Of pairs that cross blocks, those of modules that could do otherwise.

        A module can stand at the end of one block here, and at the start of the next one there. Then it goes over as a
        whole, and what it has of a shape of its own can go nowhere else.
        """
        c = self.c
        free = set(c.left[~every].tolist())
        modules: dict[tuple[int, int], list[int]] = defaultdict(list)
        for k in wrong.tolist():
            modules[int(self.parent_l[c.left[k]]), int(self.parent_r[c.right[k]])].append(k)
        could = [ks for ks in modules.values() if all(int(c.left[k]) in free for k in ks)]
        return np.array([k for ks in could for k in ks], dtype=np.int64)

    def _straightened(self, s: Solution) -> Solution:
        """The same without pairs that lead from a block to the counterpart of another one, where that is possible."""
        if self.ignore_names:
            return s
        wrong, every = self._crossing(s.chosen)
        if not len(wrong):
            return s
        k = np.flatnonzero(~every)
        straight = self.narrowed(k)
        found = straight.settle(np.searchsorted(k, np.setdiff1d(s.chosen, wrong)), rounds=ROUNDS)
        if len(found.chosen) < len(s.chosen):
            return s
        self._runs = [np.searchsorted(k, np.setdiff1d(run, np.flatnonzero(every))) for run in self._runs]
        self._keep(straight)
        return self._improve(self.evaluate(found.chosen))

    def _improve(self, s: Solution) -> Solution:
        """Swaps while one helps; what did not help is kept as the alternatives."""
        for _ in range(6):
            k = self.best_few(s.score, FEW, np.concatenate([s.chosen, self.siblings(s.chosen)]))
            near = self.narrowed(k)
            now = near.evaluate(np.searchsorted(k, s.chosen))
            self._tried = [(k, now, move, near.after(now, move)) for move in moves(near, now)]
            better = [alt for _, _, _, alt in self._tried if alt is not None and alt.objective > now.objective + 1e-6]
            if not better:
                break
            s = self.evaluate(k[max(better, key=lambda a: a.objective).chosen])
        return s

    def after(self, s: Solution, move: Move) -> Solution | None:
        """The assignment after a move and all that follows from it, or None where the move is hopeless."""
        kept = np.setdiff1d(s.chosen, move.old)
        start = np.sort(np.concatenate([kept, move.new]))
        if (s.objective - self.objective(start)) / move.places > HOPELESS:
            return None
        alt = self.settle(start, keep=move.new)
        return alt if len(alt.chosen) >= len(s.chosen) else None

    def doubts(self, chosen: Ints) -> dict[int, Doubt]:
        """For each left layer that an alternative changes: the alternative that loses least, per decision."""
        out: dict[int, Doubt] = {}
        c = self.c
        for k, now, move, alt in self._tried:
            if alt is None:
                continue
            before, after = k[np.setdiff1d(now.chosen, alt.chosen)], k[np.setdiff1d(alt.chosen, now.chosen)]
            if not len(before):
                continue
            # Order counts as far as it is kept hereabouts: where some layers have moved, others may have as well.
            kept = self._kept_around(k[now.chosen])[c.left[before]].mean()
            order = ORDER * self.trust * (self.in_order(k[now.chosen]) - self.in_order(k[alt.chosen]))
            loss = (now.objective - alt.objective - (1 - kept) * max(order, 0.0)) / move.places
            if move.wide:
                loss *= 1 + (WIDE - 1) * self.trust
            if move.free and self.same_value[before].min() < 1:
                loss *= FREE
            if not self.shapes:
                loss *= UNSHAPED
            instead = {int(c.left[x]): int(c.right[x]) for x in after}
            for u in c.left[before].tolist():
                if u not in out or loss < out[u].loss:
                    out[u] = Doubt(loss, instead.get(u, -1))
        for u, v in self._conflicts(chosen):
            if u not in out or out[u].loss > AT_ODDS:
                out[u] = Doubt(AT_ODDS, v)
        for u, peers in self._moved.items():  # what is said of its like in the other blocks holds for it
            told = sorted((out[p].loss for p in peers if p in out and p not in self._moved), reverse=True)
            out.pop(u, None)
            if 2 * len(told) > len(peers):
                out[u] = Doubt(told[len(told) // 2], -1)
        for u in self._off_their_blocks(chosen):
            out[u] = Doubt(0.0, out[u].instead if u in out else -1)
        self._spread(out, chosen)
        return out

    def _spread(self, doubts: dict[int, Doubt], chosen: Ints) -> None:
        """What is in doubt in nearly all repetitions of a block is so in the others, where no alternative shows it."""
        c = self.c
        kinds: dict[Hashable, list[int]] = defaultdict(list)
        for k in chosen.tolist():
            u, v = int(c.left[k]), int(c.right[k])
            kinds[pattern(self.left[u].parts), pattern(self.right[v].parts)].append(u)
        for members in kinds.values():
            losses = sorted(doubts[u].loss for u in members if u in doubts)
            most = int(NEARLY_ALL * len(members))
            if len(members) > 4 and len(losses) > most:
                for u in members:
                    if u not in doubts or doubts[u].loss > losses[most]:
                        doubts[u] = Doubt(losses[most], -1, alike=True)

    def _conflicts(self, chosen: Ints) -> Iterator[tuple[int, int]]:
        """Where another run went by words and this choice goes against them: each left layer with its other partner.

        Only what changes together counts together: the cycles of the exchange from one assignment to the other.
        """
        c = self.c
        now = {int(c.left[k]): int(k) for k in chosen}
        owner = {int(c.right[k]): int(c.left[k]) for k in chosen}
        for run in self._runs:
            other = {int(c.left[k]): int(k) for k in run if now.get(int(c.left[k])) not in (None, int(k))}
            seen: set[int] = set()
            for start in other:
                cycle, u = [], start
                while u in other and u not in seen:
                    seen.add(u)
                    cycle.append(u)
                    u = owner.get(int(c.right[other[u]]), -1)
                if cycle and sum(self.words[other[u]] - self.words[now[u]] for u in cycle) > CONFLICT:
                    yield from ((u, int(c.right[other[u]])) for u in cycle)

    def _kept_around(self, chosen: Ints) -> Floats:
        """For each left layer: how well the layers defined around it keep their order; 0 if it has moved itself."""
        left, right = self.rank_l[self.c.left[chosen]], self.rank_r[self.c.right[chosen]]
        by_left = np.argsort(left, kind="stable")
        kept = np.zeros(len(chosen))
        kept[by_left[increasing(right[by_left].tolist())]] = 1
        out = np.zeros(self.n)
        x = kept[by_left]
        total = np.r_[0.0, np.cumsum(x)]
        i = np.arange(len(x))
        lo, hi = np.maximum(i - NEIGHBOURS, 0), np.minimum(i + NEIGHBOURS + 1, len(x))
        out[self.c.left[chosen][by_left]] = x * np.clip(2 * (total[hi] - total[lo]) / (hi - lo) - 1, 0, 1)
        return out


def _distinct(solutions: list[Ints]) -> list[Ints]:
    return list({tuple(s.tolist()): s for s in solutions}.values())
