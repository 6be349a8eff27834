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

import copy
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from automap import scoring
from automap.assignment import assign
from automap.layers import Layer, by_number, core, disorder
from automap.scoring import Candidates, Features, Floats, Ints
from automap.straightening import counted, partners

#: How much each part of the evidence counts. Parts are of one kind (0 to 1 per layer), so a weight says how many
#: others it can outvote.
WORDS, SAME, KIN, NUMBERS, FIT, STRUCTURE, USAGE, ORDER = 1.0, 2.5, 1.0, 0.7, 1.0, 3.0, 2.0, 1.5

SCRAMBLED = 0.2  # more numbered children out of order than this: definition order is not the author's
ROUNDS = 8  # of annealing
WARM_UP = 4  # rounds in which a start leaves a part of the evidence out
TIE = 0.05  # how much a run favours one of several equal choices
TRUSTED = 0.3  # where definition order tells more than this, it decides between equal choices
SOFT = 3  # rounds to see what is told apart at all
CLEAR = 0.4  # how far ahead of every other a pair must be to count as told apart
BROAD = 2  # rounds over all candidates; after them, over the best of each layer
#: What a run leaves out while it warms up, and whether it then takes numbers as they are (1), by rank (0) or both.
STARTS: tuple[tuple[tuple[str, ...], float], ...] = (((), 1.0), ((), 0.0))
#: And what it tries where the results of those differ.
MORE_STARTS: tuple[tuple[tuple[str, ...], float], ...] = ((("words",), 0.5), (("order", "words"), 0.5))
FEW = 5  # candidates per layer that are worth a second look
EXPLORED = 40  # sets of swaps that are tried
EXPLORED_WIDE = 20  # and of those that change a name's translation everywhere, or shift siblings by one
MANY = 20_000  # candidates; of more, those that are neither alike nor at the same place are left out
ALIKE = 12  # candidates per layer that are kept for likeness
NEAR = 6  # layers of the same shape to either side that are kept for their place
NEIGHBOURS = 8  # layers to either side that tell whether order is kept hereabouts
CONFLICT = 0.2  # how much better words must be under another run's choice to put them at odds with this one
AT_ODDS = 0.5  # what such a choice counts as losing
NEARLY_ALL = 0.8  # of the repetitions of a block
WIDE = 1.5  # how much more a lead over what changes several modules counts: each of them has been defined in its order
FREE = 0.35  # how much less a lead over an unclaimed layer counts: nothing else speaks against that one
UNSHAPED = 0.6  # how much less any lead counts where shapes are unknown
HOPELESS = 8.0  # a swap that loses more than this at once is not followed up


#: What a `Matcher` keeps for each candidate.
PER_CANDIDATE = ("words", "same_rank", "same_value", "kin", "by_rank", "by_value", "tie")


@dataclass
class Solution:
    """A hard assignment: the chosen candidates, its objective, and the evidence for all candidates under it."""

    chosen: Ints
    objective: float
    score: Floats
    parts: dict[str, Floats]


@dataclass
class Doubt:
    """The best alternative to one pair: what it loses (0: nothing), and the right layer it would take (-1: none).

    ``alike``: the doubt is not about this pair but about nearly all that differ from it in numbers alone.
    """

    loss: float
    instead: int
    alike: bool = False


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


class Matcher:
    """One problem: the layers of two sides, the candidates between them, and what does not depend on a belief."""

    def __init__(
        self, left: list[Layer], right: list[Layer], forced: dict[int, int] | None = None, ignore_names: bool = False
    ) -> None:
        """``forced`` gives pairs of positions that are settled beforehand; without names, only structure counts."""
        scrambled = [disorder(x) > SCRAMBLED for x in (left, right)]
        self.scrambled, self.ignore_names = any(scrambled), ignore_names
        self.left, self.right, self.n, self.m = left, right, len(left), len(right)
        self.rank_l, self.rank_r = (
            _ranking(x) if s else np.arange(len(x)) for x, s in zip((left, right), scrambled, strict=True)
        )
        self.c = _forced(scoring.candidates(left, right, (self.rank_l, self.rank_r)), forced or {})
        self.shape = _numbered([core(layer.main[1].shape) for layer in left])
        self.parent_l, self.parent_r = (_numbered([layer.parts[:-1] for layer in x]) for x in (left, right))
        # Where one side lacks layers, what stands before a norm may have been before another one.
        norms = [sum(layer.statistics for layer in x) for x in (left, right)]
        complete = not self.scrambled and norms[0] == norms[1]
        self.f, self.g = Features(left, complete), Features(right, complete)
        self._moved: dict[int, list[int]] = {}  # what its like in the other blocks has moved, and those
        self.words = scoring.names(self.f, self.g, self.c) ** 2
        self.same_rank = scoring.same_path(self.f, self.g, self.c, by_rank=True) ** 6
        self.same_value = scoring.same_path(self.f, self.g, self.c, by_rank=False) ** 6
        self.kin = scoring.kinship(self.f, self.g, self.c)
        if ignore_names:
            self.words = self.same_rank = self.same_value = self.kin = np.zeros(len(self.c))
        self.by_rank = scoring.numbers(self.f.numbers, self.g.numbers, self.c)
        self.by_value = scoring.numbers(self.f.values, self.g.values, self.c)
        # What is symmetric has to be broken somehow, and in every repetition of a block the same way.
        kinds_l, kinds_r = (_numbered([_pattern(layer.parts) for layer in x]) for x in (left, right))
        self.tie = (kinds_l[self.c.left] * 40503 + kinds_r[self.c.right] * 30103) % 65537 / 65537
        if len(self.c) > MANY:
            self._thin_out()
        self.shapes = all(layer.main[1].shape is not None for layer in (*left, *right))
        self.trust = 1.0

    def _thin_out(self) -> None:
        """Of very many candidates: the most alike of each layer, and those that stand at about the same place."""
        c = self.c
        place = []
        for ends, rank in ((c.left, self.rank_l), (c.right, self.rank_r)):
            # The position of a layer among those of its block, in definition order.
            which = np.unique(np.stack([c.block, rank[ends]]), axis=1, return_inverse=True)
            table, at = which[0], which[1].ravel()
            first = np.searchsorted(table[0], table[0], side="left")
            count = np.searchsorted(table[0], table[0], side="right") - first
            index = np.arange(table.shape[1]) - first
            place.append((index[at], count[at]))
        (i, n), (j, m) = place
        near = np.abs(i * (m - 1) / np.maximum(n - 1, 1) - j) <= NEAR
        zero = np.zeros(len(c))
        k = self._best_few(self.base(0.5, zero, zero), ALIKE, np.flatnonzero(near))
        self._keep(self.narrowed(k))

    def _keep(self, fewer: Matcher) -> None:
        """Go on with the candidates of the same problem that another one has."""
        for name in ("c", *PER_CANDIDATE):
            setattr(self, name, getattr(fewer, name))

    # -------------------------------------------------------------------------------------------------------- evidence

    def numbers(self, w: float) -> Floats:
        return w * self.by_value + (1 - w) * self.by_rank

    def same(self, w: float) -> Floats:
        return w * self.same_value + (1 - w) * self.same_rank

    def value_weight(self, belief: Floats) -> float:
        """Whether numbers go over as they are or by their rank: whichever agrees better under the belief."""
        gap = float(belief @ (self.by_value - self.by_rank)) / max(float(belief.sum()), 1e-9)
        return float(1 / (1 + np.exp(-20 * gap)))

    def base(self, w: float, structure: Floats, usage: Floats, without: tuple[str, ...] = ()) -> Floats:
        """Everything but order."""
        words = 0.0 if "words" in without else 1.0
        score: Floats = words * (WORDS * self.words + SAME * self.same(w) + KIN * self.kin)
        score = score + NUMBERS * self.numbers(w) + FIT * self.c.fit + STRUCTURE * structure + USAGE * usage
        return score

    def pooled(self, belief: sp.csr_matrix, c: Candidates) -> tuple[Floats, Floats]:
        """Structure and usage of pairs under a belief. The nearest modules tell most; of names, the frequent ones."""
        return (
            scoring.correspondence(self.f.places, self.g.places, c, belief, -0.5),
            scoring.correspondence(self.f.usages, self.g.usages, c, belief, 0.3),
        )

    def matrix(self, k: Ints, x: Floats) -> sp.csr_matrix:
        return sp.csr_matrix((x, (self.c.left[k], self.c.right[k])), shape=(self.n, self.m))

    def order(self, gain: Floats) -> Floats:
        """How well each candidate goes with an order-preserving alignment of all, 0 to 1."""
        if self.trust == 0:
            return np.zeros(len(self.c))
        c = self.c
        ranked = Candidates(self.rank_l[c.left], self.rank_r[c.right], c.fit, c.block)
        kept: Floats = np.exp(-scoring.order(self.n, self.m, ranked, gain))
        return self.trust * gain * kept

    # ------------------------------------------------------------------------------------------------------- annealing

    def anneal(self, without: tuple[str, ...] = (), w: float = 0.5, always: bool = False) -> Ints:
        """One run; the parts ``without`` are left out while it warms up (or ``always``). The chosen candidates."""
        at, k = self, np.arange(len(self.c))
        structure, usage = np.zeros(len(k)), np.zeros(len(k))
        score = structure
        for r in range(ROUNDS):
            out = without if r < WARM_UP or always else ()
            if r == BROAD:
                keep = at._best_few(score, 2 * FEW)
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

    def belief(self, logits: Floats) -> Floats:
        """Rows and columns scaled in turn to sums of one (Sinkhorn's balancing); no belief is above one."""
        c = self.c
        x = np.exp(logits - logits.max()) if len(logits) else logits
        for _ in range(10):
            x = x / np.maximum(np.bincount(c.left, x, self.n), 1e-300)[c.left]
            x = x / np.maximum(np.bincount(c.right, x, self.m), 1e-300)[c.right]
        return np.minimum(x, 1.0)

    def settle(self, chosen: Ints, unordered: bool = False, rounds: int = 2, keep: Ints | None = None) -> Solution:
        """A hard assignment, its evidence computed from itself, assigned again a few times; ``keep`` stays chosen."""
        for _ in range(rounds):
            s = self.evaluate(chosen, unordered)
            score = s.score if keep is None else self._held(s.score, keep)
            new = assign(self.c.left, self.c.right, self.c.block, score)
            if np.array_equal(new, chosen):
                return s
            chosen = new
        return self.evaluate(chosen, unordered)

    def _held(self, score: Floats, keep: Ints) -> Floats:
        c = self.c
        taken_l, taken_r = np.zeros(self.n, bool), np.zeros(self.m, bool)
        taken_l[c.left[keep]] = taken_r[c.right[keep]] = True
        out = np.where(taken_l[c.left] | taken_r[c.right], -np.inf, score)
        out[keep] = score[keep]
        return out

    def evaluate(self, chosen: Ints, unordered: bool = False) -> Solution:
        """The objective of a hard assignment, and the evidence for every candidate under it."""
        c = self.c
        hard = np.zeros(len(c))
        hard[chosen] = 1
        w = self.value_weight(hard)
        structure, usage = self.pooled(self.matrix(chosen, np.ones(len(chosen))), c)
        base = self.base(w, structure, usage)
        order = np.zeros(len(c)) if unordered else self.order(np.maximum(hard, 0.3))
        parts = {
            "words": np.sqrt(self.words),
            "numbers": self.numbers(w),
            "fit": c.fit,
            "structure": structure,
            "usage": usage,
            "order": order,
        }
        kept = 0 if unordered else self.in_order(chosen)
        return Solution(chosen, float(base[chosen].sum()) + ORDER * self.trust * kept, base + ORDER * order, parts)

    def objective(self, chosen: Ints) -> float:
        """The same objective, without the evidence for what is not chosen."""
        at = self.narrowed(chosen)
        every = np.arange(len(chosen))
        ones = np.ones(len(chosen))
        base = at.base(at.value_weight(ones), *at.pooled(at.matrix(every, ones), at.c))
        return float(base.sum()) + ORDER * self.trust * self.in_order(chosen)

    def in_order(self, chosen: Ints) -> float:
        """How many of the chosen pairs keep their order: half by the longest increasing subsequence, half by how
        many follow the pair before them among the layers of the same shape (which are what can be exchanged)."""
        c = self.c
        left, right, shape = self.rank_l[c.left[chosen]], self.rank_r[c.right[chosen]], self.shape[c.left[chosen]]
        k = np.lexsort((left, shape))
        follows = (shape[k][1:] != shape[k][:-1]) | (right[k][1:] > right[k][:-1])
        return 0.5 * longest_increasing(left, right) + 0.5 * (1 + int(follows.sum()))

    # ------------------------------------------------------------------------------------------------ the whole search

    def solve(self) -> Solution:
        """The best assignment found; :meth:`doubts` then tells how sure each of its pairs is."""
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

    def _in_crossed_blocks(self, chosen: Ints) -> Iterator[int]:
        """Left layers in lists of blocks between which a pair leads from one to the counterpart of another."""
        wrong, every = self._crossing(chosen)
        wrong = self._unforced(wrong, every)
        if not len(wrong):
            return
        ends = [(int(self.c.left[k]), int(self.c.right[k])) for k in chosen]
        blocks = partners(self.left, self.right, ends)
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

    def _trust(self) -> float:
        """How far definition order tells: how well those layers keep it that are told apart without it.

        The belief stays soft here, so that what is symmetric stays undecided and does not count.
        """
        c, every = self.c, np.arange(len(self.c))
        score = self.base(0.5, np.zeros(len(c)), np.zeros(len(c)))
        for _ in range(SOFT):
            belief = self.belief(3.0 * score)
            score = self.base(self.value_weight(belief), *self.pooled(self.matrix(every, belief), c))
        lead = np.full(len(c), np.inf)
        for ends in (c.left, c.right):
            rank = np.lexsort((-score, ends))
            e, x = ends[rank], score[rank]
            alone = np.r_[e[1:] != e[:-1], True]
            ahead = np.where(alone, np.inf, x - np.r_[x[1:], 0.0])
            first = np.r_[True, e[1:] != e[:-1]]
            mine = np.full(len(c), -np.inf)
            mine[rank[first]] = ahead[first]
            lead = np.minimum(lead, mine)
        clear = self._few_of_each(np.flatnonzero(lead > CLEAR))
        if len(clear) < 5:
            return 0.0 if self.scrambled else 1.0
        kept = longest_increasing(self.rank_l[c.left[clear]], self.rank_r[c.right[clear]])
        return float(np.clip(2 * kept / len(clear) - 1, 0, 1))

    def _few_of_each(self, k: Ints) -> Ints:
        """Of pairs that differ in numbers alone the first two: a repeated block is one fact, not many."""
        seen: dict[Hashable, int] = defaultdict(int)
        out = []
        for x in k.tolist():
            kind = _pattern(self.left[self.c.left[x]].parts), _pattern(self.right[self.c.right[x]].parts)
            seen[kind] += 1
            if seen[kind] <= 2:
                out.append(x)
        return np.array(out, dtype=np.int64)

    def narrowed(self, k: Ints) -> Matcher:
        """The same problem with the candidates ``k`` alone."""
        new = copy.copy(self)
        new.c = self.c.take(k)
        for name in PER_CANDIDATE:
            setattr(new, name, getattr(self, name)[k])
        return new

    def _best_few(self, score: Floats, few: int, also: Ints | None = None) -> Ints:
        keep = np.zeros(len(self.c), bool)
        if also is not None:
            keep[also] = True
        for ends in (self.c.left, self.c.right):
            order = np.lexsort((-score, ends))
            first = np.r_[True, np.diff(ends[order]) > 0]
            start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
            keep[order[np.arange(len(order)) - start < few]] = True
        return np.flatnonzero(keep)

    def _siblings(self, chosen: Ints) -> Ints:
        """The candidates that lead to a sibling of the chosen partner, from either side."""
        c = self.c
        to, back = np.full(self.n, -1), np.full(self.m, -1)
        to[c.left[chosen]] = self.parent_r[c.right[chosen]]
        back[c.right[chosen]] = self.parent_l[c.left[chosen]]
        return np.flatnonzero((to[c.left] == self.parent_r[c.right]) & (back[c.right] == self.parent_l[c.left]))

    def _improve(self, s: Solution) -> Solution:
        """Swaps while one helps; what did not help is kept as the alternatives."""
        for _ in range(6):
            k = self._best_few(s.score, FEW, np.concatenate([s.chosen, self._siblings(s.chosen)]))
            near = self.narrowed(k)
            now = near.evaluate(np.searchsorted(k, s.chosen))
            self._tried = [(k, now, move, near.after(now, move)) for move in near.moves(now)]
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

    def moves(self, s: Solution) -> list[Move]:
        """Sets of exchanges that belong together (the same two local names, wherever they stand), likely ones first."""
        groups: dict[tuple[Hashable, ...], list[_Exchange]] = defaultdict(list)
        for exchange in chain(self._exchanges(s), self._rotations(s)):
            groups[exchange.kind].append(exchange)
        for kind, members in self._everywhere(groups):
            groups[kind] = members
        out: list[tuple[bool, float, int, Move]] = []
        for kind, members in groups.items():
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

    def _exchanges(self, s: Solution) -> Iterator[_Exchange]:
        """Every exchange of two chosen pairs, or of one for a pair with a layer that is free."""
        c = self.c
        at = {(u, v): k for k, (u, v) in enumerate(zip(c.left.tolist(), c.right.tolist(), strict=True))}
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
                kind, place = _divergence(self.left[u1].parts, self.left[u2].parts)
                yield _Exchange(loss, (k11, k22), (k12, k21), (u1, u2), kind, place)
            elif k11 is not None:
                kind = ("free", v2, _pattern(self.left[u1].parts))
                yield _Exchange(float(s.score[k11] - s.score[k12]), (k11,), (k12,), (u1,), kind, u1)
            elif k22 is not None:
                kind = ("free", _pattern(self.left[u1].parts), _pattern(self.right[v2].parts))
                yield _Exchange(float(s.score[k22] - s.score[k12]), (k22,), (k12,), (u1, -1 - v2), kind, u1)

    @staticmethod
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

    def _rotations(self, s: Solution) -> Iterator[_Exchange]:
        """Siblings that could as well go over shifted by one: what is defined first here may be the last one there."""
        c = self.c
        at = {(u, v): k for k, (u, v) in enumerate(zip(c.left.tolist(), c.right.tolist(), strict=True))}
        rows: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for k in s.chosen.tolist():
            u, v = int(c.left[k]), int(c.right[k])
            rows[int(self.parent_l[u]), int(self.parent_r[v]), int(self.shape[u])].append(k)
        for row in rows.values():
            if not 2 < len(row) <= FEW + 1:
                continue
            row.sort(key=lambda k: int(self.rank_r[c.right[k]]))
            lefts, rights = c.left[row].tolist(), c.right[row].tolist()
            parts = self.left[lefts[0]].parts
            names = tuple(self.left[u].parts[-1:] for u in lefts)
            for by in (1, -1):
                new = [at.get((u, rights[(i + by) % len(row)])) for i, u in enumerate(lefts)]
                if None not in new:
                    taken = tuple(k for k in new if k is not None)
                    loss = float(s.score[row].sum() - s.score[list(taken)].sum())
                    kind = ("rotation", _pattern(parts[:-1]), names, by)
                    yield _Exchange(loss, tuple(row), taken, tuple(lefts), kind, parts[:-1])

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
            loss = (now.objective - alt.objective - (1 - kept) * max(order, 0.0 if move.wide else order)) / move.places
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
        for u in self._in_crossed_blocks(chosen):
            out[u] = Doubt(0.0, out[u].instead if u in out else -1)
        self._spread(out, chosen)
        return out

    def _spread(self, doubts: dict[int, Doubt], chosen: Ints) -> None:
        """What is in doubt in nearly all repetitions of a block is so in the others, where no alternative shows it."""
        c = self.c
        kinds: dict[Hashable, list[int]] = defaultdict(list)
        for k in chosen.tolist():
            u, v = int(c.left[k]), int(c.right[k])
            kinds[_pattern(self.left[u].parts), _pattern(self.right[v].parts)].append(u)
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


def increasing(values: list[int]) -> list[int]:
    """The positions of a longest increasing subsequence, by patience sorting."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for i, x in enumerate(values):
        k = bisect_left(tails, x)
        tails[k : k + 1] = [x]
        ends[k : k + 1] = [i]
        before.append(ends[k - 1] if k else -1)
    out = []
    i = ends[-1] if ends else -1
    while i >= 0:
        out.append(i)
        i = before[i]
    return out[::-1]


def longest_increasing(left: Ints, right: Ints) -> int:
    """How many pairs of a matching keep their order: the length of the longest increasing subsequence."""
    return len(increasing(right[np.argsort(left, kind="stable")].tolist()))


def _ranking(layers: list[Layer]) -> Ints:
    """The position of each layer once numbered children are put in order."""
    where = {layer.path: i for i, layer in enumerate(by_number(layers))}
    return np.array([where[layer.path] for layer in layers], dtype=np.int64)


def _numbered(keys: list[Hashable]) -> Ints:
    """Equal keys by equal numbers."""
    index: dict[Hashable, int] = {}
    return np.array([index.setdefault(k, len(index)) for k in keys], dtype=np.int64)


def _forced(c: Candidates, forced: dict[int, int]) -> Candidates:
    """Candidates without those that contradict a forced pair."""
    if not forced:
        return c
    back = {v: u for u, v in forced.items()}
    keep = [
        k
        for k, (u, v) in enumerate(zip(c.left.tolist(), c.right.tolist(), strict=True))
        if forced.get(u, v) == v and back.get(v, u) == u
    ]
    return c.take(np.array(keep, dtype=np.int64))


def _distinct(solutions: list[Ints]) -> list[Ints]:
    return list({tuple(s.tolist()): s for s in solutions}.values())


def _pattern(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "#", p) for p in parts)


def _divergence(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[tuple[Hashable, ...], Hashable]:
    """What kind of exchange two layers are (the parts in which their paths differ, numbers before them ignored),
    and the place where it happens. Layers that differ in one module on the way belong to one exchange."""
    d = 0
    while d < min(len(a), len(b)) and a[d] == b[d]:
        d += 1
    rest = a[d + 1 :], b[d + 1 :]
    here = a[d : d + 1], b[d : d + 1]
    what = "blocks" if "".join((*here[0], *here[1])).isdigit() else "siblings"
    return (what, _pattern(a[:d]), *here, () if rest[0] == rest[1] else tuple(map(_pattern, rest))), a[:d]
