"""The evidence for an assignment of layers to layers, and its objective: all parts of the evidence, summed.

Structure, usage and order depend on what else is assigned; they are computed from a soft belief about all pairs as well
as from a hard assignment.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

from automap import scoring
from automap.assignment import assign
from automap.layers import Layer, by_number, core, disorder
from automap.scoring import Candidates, Features, Floats, Ints

P = TypeVar("P", bound="Problem")

#: How much each part of the evidence counts. Parts are of one kind (0 to 1 per layer), so a weight says how many
#: others it can outvote.
WORDS, SAME, KIN, NUMBERS, FIT, STRUCTURE, USAGE, ORDER = 1.0, 2.5, 1.0, 0.7, 1.0, 3.0, 2.0, 1.5

SCRAMBLED = 0.2  # more numbered children out of order than this: definition order is not the author's
TRUSTED = 0.3  # where definition order tells more than this, it decides between equal choices
SOFT = 3  # rounds to see what is told apart at all
CLEAR = 0.4  # how far ahead of every other a pair must be to count as told apart
MANY = 20_000  # candidates; of more, those that are neither alike nor at the same place are left out
ALIKE = 12  # candidates per layer that are kept for likeness
NEAR = 6  # layers of the same shape to either side that are kept for their place

#: What a `Problem` keeps for each candidate.
PER_CANDIDATE = ("words", "same_rank", "same_value", "kin", "by_rank", "by_value", "counted", "tie")


@dataclass
class Solution:
    """A hard assignment: the chosen candidates, its objective, and the evidence for all candidates under it."""

    chosen: Ints
    objective: float
    score: Floats
    parts: dict[str, Floats]


class Problem:
    """The layers of two sides, the candidates between them, and what does not depend on a belief."""

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
        self.words = scoring.names(self.f, self.g, self.c) ** 2
        self.same_rank = scoring.same_path(self.f, self.g, self.c, by_rank=True) ** 6
        self.same_value = scoring.same_path(self.f, self.g, self.c, by_rank=False) ** 6
        self.kin = scoring.kinship(self.f, self.g, self.c)
        self.counted = scoring.counted(self.f, self.g, self.c)
        if ignore_names:
            self.words = self.same_rank = self.same_value = self.kin = self.counted = np.zeros(len(self.c))
        self.by_rank = scoring.numbers(self.f.numbers, self.g.numbers, self.c)
        self.by_value = scoring.numbers(self.f.values, self.g.values, self.c)
        # What is symmetric has to be broken somehow, and in every repetition of a block the same way.
        kinds_l, kinds_r = (_numbered([pattern(layer.parts) for layer in x]) for x in (left, right))
        self.tie = (kinds_l[self.c.left] * 40503 + kinds_r[self.c.right] * 30103) % 65537 / 65537
        self.trust = 1.0
        if len(self.c) > MANY:
            self._thin_out()
        self.shapes = all(layer.main[1].shape is not None for layer in (*left, *right))

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
        k = self.best_few(self.base(0.5, zero, zero), ALIKE, np.flatnonzero(near))
        self._keep(self.narrowed(k))

    def _keep(self, fewer: Problem) -> None:
        """Go on with the candidates of the same problem that another one has."""
        for name in ("c", *PER_CANDIDATE):
            setattr(self, name, getattr(fewer, name))

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
        # Where the order of definition tells nothing, that of the numbers does.
        return score + NUMBERS * (1 - self.trust) * self.counted

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
        clear = self.few_of_each(np.flatnonzero(lead > CLEAR))
        if len(clear) < 5:
            return 0.0 if self.scrambled else 1.0
        kept = longest_increasing(self.rank_l[c.left[clear]], self.rank_r[c.right[clear]])
        return float(np.clip(2 * kept / len(clear) - 1, 0, 1))

    def few_of_each(self, k: Ints) -> Ints:
        """Of pairs that differ in numbers alone the first two: a repeated block is one fact, not many."""
        seen: dict[Hashable, int] = defaultdict(int)
        out = []
        for x in k.tolist():
            kind = pattern(self.left[self.c.left[x]].parts), pattern(self.right[self.c.right[x]].parts)
            seen[kind] += 1
            if seen[kind] <= 2:
                out.append(x)
        return np.array(out, dtype=np.int64)

    def narrowed(self: P, k: Ints) -> P:
        """The same problem with the candidates ``k`` alone."""
        new = copy.copy(self)
        new.c = self.c.take(k)
        for name in PER_CANDIDATE:
            setattr(new, name, getattr(self, name)[k])
        return new

    def best_few(self, score: Floats, few: int, also: Ints | None = None) -> Ints:
        keep = np.zeros(len(self.c), bool)
        if also is not None:
            keep[also] = True
        for ends in (self.c.left, self.c.right):
            order = np.lexsort((-score, ends))
            first = np.r_[True, np.diff(ends[order]) > 0]
            start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
            keep[order[np.arange(len(order)) - start < few]] = True
        return np.flatnonzero(keep)

    def siblings(self, chosen: Ints) -> Ints:
        """The candidates that lead to a sibling of the chosen partner, from either side."""
        c = self.c
        to, back = np.full(self.n, -1), np.full(self.m, -1)
        to[c.left[chosen]] = self.parent_r[c.right[chosen]]
        back[c.right[chosen]] = self.parent_l[c.left[chosen]]
        return np.flatnonzero((to[c.left] == self.parent_r[c.right]) & (back[c.right] == self.parent_l[c.left]))


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


def pattern(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "#", p) for p in parts)
