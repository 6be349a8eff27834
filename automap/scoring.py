"""Two listings to sparse, scored candidates: which layer of one network can be which of the other, and how well.

The unit of matching is the *layer*: the parameters of one module, by slot. Its evidence has four parts, each 0 to 1:

* ``names``: words of the path that are alike, and numbers that stand in the same rank;
* ``order``: how good an order-preserving alignment of both networks can be that pairs the two;
* ``structure``: how much of the modules around the two is matched to each other;
* ``usage``: how regularly the same local name here goes with the same local name there (the learned translation).

The last three are computed from the present belief about all pairs, so they are iterated with it (`inference.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from automap.layers import Layer, bare_paths, core, form, number_ranks
from automap.names import NORM_TOKENS, is_attention_word, likeness, tokens
from automap.reach import can_reach

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


NEAREST = 8  # of the sets that a layer is in, the smallest so many are looked at: the larger ones tell little
#: How many numbers are worked on at a time where each candidate has many.
CACHED = 1 << 15
LETTERS = 1 << 20  # where the places of letters begin, so that they are none of a number


@dataclass
class Sets:
    """Named sets of layers, and which of them each layer is in: the vocabulary in which evidence is pooled."""

    member: sp.csr_matrix  # layer x set, 0 or 1
    ids: Ints  # layer x place: the smallest sets it is in, -1 where there is none
    size: Floats


def _sets(keys: list[list[Hashable]]) -> Sets:
    """The different sets of at least two layers, from the keys that each layer goes under."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, mine in enumerate(keys):
        for k in dict.fromkeys(mine):
            members[k].append(i)
    distinct = {
        tuple(v): None for v in members.values() if len(v) > 1
    }  # a wrapper around the same layers tells nothing new
    ids: list[list[int]] = [[] for _ in keys]
    rows, cols = [], []
    for s, layers in sorted(enumerate(distinct), key=lambda x: len(x[1])):
        for i in layers:
            rows.append(i)
            cols.append(s)
            if len(ids[i]) < NEAREST:
                ids[i].append(s)
    n = max(1, len(distinct))
    m = sp.csr_matrix((np.ones(len(rows)), (rows, cols)), shape=(len(keys), n))
    size = np.ones(n)
    size[: len(distinct)] = [len(v) for v in distinct]
    return Sets(m, _padded(ids), size)


@dataclass
class Features:
    """What the evidence needs of one side's layers, as arrays."""

    layers: list[Layer]
    complete: bool = False  # whether no layer is missing and all come as their author defined them
    places: Sets = field(init=False)  # layers under one module, or sharing a word in their names below it
    usages: Sets = field(init=False)  # layers with the same local name (the last one to three parts)
    words: list[str] = field(init=False)
    word_ids: Ints = field(init=False)  # layer x place, -1 where there is none
    numbers: Ints = field(init=False)  # layer x place from the end: rank of the number among its siblings
    values: Ints = field(init=False)  # the numbers themselves

    def __post_init__(self) -> None:
        paths = [layer.parts for layer in self.layers]
        keys = [_places(p) for p in paths]
        for i in _normed(self.layers) if self.complete else ():
            keys[i - 1].append(("normed", i))
            keys[i].append(("normed", i))
        self.places = _sets(keys)
        held = _held(paths)
        self.usages = _sets([[_local(p, i, held) for i in (1, 2, 3) if i <= len(p)] for p in paths])
        self._words(paths)

    def _words(self, paths: list[tuple[str, ...]]) -> None:
        index: dict[str, int] = {}
        rows, numbers, values = [], [], []
        ranks = number_ranks(paths)
        for path in paths:
            row, num, val = [], [], []
            for i, part in enumerate(path):
                toks = tokens(part)
                for t, rank in zip(toks, ranks.get((path[:i], part), (-1,) * len(toks)), strict=True):
                    if rank >= 0:
                        # Letters are no places in a list: the second norm is ``b``, and the fourth of all layers.
                        apart = 0 if t.isdigit() else LETTERS
                        num.append(apart + rank)
                        val.append(apart + (int(t) if t.isdigit() else rank))
                    if not t.isdigit():
                        row.append(index.setdefault(t, len(index)))
            rows.append(list(dict.fromkeys(row)))
            numbers.append(num)
            values.append(val)
        self.words = list(index)
        self.word_ids = _padded(rows)
        self.numbers = _padded(numbers)
        self.values = _padded(values)


#: What siblings share that are called queries, keys and values, though by different words.
QUERIES_KEYS_VALUES = "q, k, v"


def _held(paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], frozenset[tuple[str, ...]]]:
    """What each numbered module holds, by the names below it."""
    held: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for path in paths:
        for d in range(max(1, len(path) - 2), len(path)):
            if path[d - 1].isdigit():
                held[path[:d]].add(path[d:])
    return {module: frozenset(names) for module, names in held.items()}


def _local(path: tuple[str, ...], n: int, held: dict[tuple[str, ...], frozenset[tuple[str, ...]]]) -> Hashable:
    """The last parts of a path; a number among them is that of a module which holds the same, wherever it stands."""
    at = range(len(path) - n + 1, len(path))
    return path[-n:], tuple(held[path[:d]] for d in at if path[:d] in held)


def _places(path: tuple[str, ...]) -> list[Hashable]:
    """The modules around a layer; and where siblings' names have several words, the siblings that share one of them.

    Queries, keys and values belong together whatever they are called.
    """
    keys: list[Hashable] = []
    for i, part in enumerate(path):
        keys.append(path[:i])
        for t in tokens(part):
            keys.append((path[:i], t))
            if is_attention_word(t):
                keys.append((path[:i], QUERIES_KEYS_VALUES))
    return keys


def _normed(layers: list[Layer]) -> Iterator[int]:
    """The positions of batch norms whose input the layer before them gives, by what is defined when and how wide."""
    for i in range(1, len(layers)):
        norm, before = layers[i], layers[i - 1]
        width = core(norm.main[1].shape)
        if norm.statistics and not before.statistics and width and width[0] in (before.main[1].shape or ()):
            yield i


def _padded(rows: list[list[int]]) -> Ints:
    width = max((len(r) for r in rows), default=0) or 1
    out = np.full((len(rows), width), -1, dtype=np.int64)
    for i, r in enumerate(rows):
        out[i, : len(r)] = r
    return out


@dataclass
class Candidates:
    """The pairs of layers that a transform can reach, and how exactly: parallel arrays over the pairs."""

    left: Ints
    right: Ints
    fit: Floats
    block: Ints  # pairs of different blocks have no layer in common

    def __len__(self) -> int:
        return len(self.left)

    def take(self, k: Ints) -> Candidates:
        """The candidates at the positions ``k``."""
        return Candidates(self.left[k], self.right[k], self.fit[k], self.block[k])


def candidates(left: list[Layer], right: list[Layer], ranks: tuple[Ints, Ints] | None = None) -> Candidates:
    """All pairs of layers whose main shapes can reach each other and whose slots can be the same layer's.

    In a large block only the nearest pairs by position count (and those with the same path): a layer and its
    counterpart stand at about the same place among the layers of their shape. ``ranks`` gives the positions where
    definition order does not.
    """
    groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    unknown = any(layer.main[1].shape is None for layer in (*left, *right))
    for which, layers in enumerate((left, right)):
        for i, layer in enumerate(layers):
            shape = core(layer.main[1].shape)
            key: Hashable = None if unknown or shape is None else tuple(sorted(shape))
            groups[key][which].append(i)
    fits: dict[tuple[Hashable, Hashable], float] = {}
    forms = [form(layer) for layer in left], [form(layer) for layer in right]
    if unknown:
        named = [_is_named_norm(layer) or layer.norm for layer in left]
        # Where the PyTorch side names at least as many norms as there are, what has no such name is none.
        all_named = sum(named) >= sum(layer.norm for layer in right)
    spare = sum(layer.statistics for layer in right) > sum(layer.statistics for layer in left)
    bare = bare_paths(left), bare_paths(right)
    ls, rs, fs, bs = [], [], [], []
    for b, (us, vs) in enumerate(groups.values()):
        if not us or not vs:
            continue
        if ranks is not None:
            us.sort(key=lambda i: int(ranks[0][i]))
            vs.sort(key=lambda j: int(ranks[1][j]))
        windows = _windows(us, vs, bare)
        for i, near in windows:
            fi = forms[0][i]
            for j in near:
                pair = (fi, forms[1][j])
                f = fits.get(pair)
                if f is None:
                    f = fits[pair] = fit(left[i], right[j], spare)
                if unknown and right[j].norm and not named[i]:
                    f = 0.0 if all_named else 0.4 * f
                if f > 0:
                    ls.append(i)
                    rs.append(j)
                    fs.append(f)
                    bs.append(b)
    ends, rights, blocks = (np.array(x, dtype=np.int64) for x in (ls, rs, bs))
    return Candidates(ends, rights, np.array(fs, dtype=np.float64), blocks)


LARGE_BLOCK = 250_000  # pairs
WINDOW = 24  # pairs per layer in a block that is larger


def _windows(
    us: list[int], vs: list[int], bare: tuple[list[tuple[str, ...]], list[tuple[str, ...]]]
) -> Iterator[tuple[int, list[int]]]:
    if len(us) * len(vs) <= LARGE_BLOCK:
        for i in us:
            yield i, vs
        return
    by_path = defaultdict(list)
    for j in vs:
        by_path[bare[1][j]].append(j)
    for k, i in enumerate(us):
        at = k * (len(vs) - 1) / max(1, len(us) - 1)
        lo = max(0, min(int(at) - WINDOW // 2, len(vs) - WINDOW))
        yield i, sorted({*vs[lo : lo + WINDOW], *by_path[bare[0][i]]})


def fit(a: Layer, b: Layer, spare: bool = False) -> float:
    """How exactly two layers have the same form: 1 for the same slots and shapes, 0 for what cannot be.

    Args:
        a, b: PyTorch's layer and MindSpore's.
        spare: MindSpore's norm may have running statistics that PyTorch's has not: some of its norms always do.
    """
    score = 1.0
    if a.statistics != b.statistics:
        if not (spare and _without_statistics(a, b)):
            return 0.0
        score = 0.6
    (slot_a, x), (slot_b, y) = a.main, b.main
    ca, cb = core(x.shape), core(y.shape)
    if ca is not None and cb is not None:
        if b.norm and len(cb) > 1 and not (ca == cb and _is_wide_norm(a) and _is_wide_norm(b)):
            return 0.0
        if ca != cb:
            if not can_reach(x, y):
                return 0.0
            score *= 0.6
        elif x.shape != y.shape:
            score *= 0.9
    if slot_a != slot_b:
        score *= 0.7
    mine, theirs = a.slots.keys() - {"counter"}, b.slots.keys() - {"counter"}
    if mine != theirs:
        score *= 0.75
    for slot in mine & theirs:
        p, q = core(a.slots[slot].shape), core(b.slots[slot].shape)
        if p is not None and q is not None and sorted(p) != sorted(q):
            return 0.0
    return score


def _without_statistics(a: Layer, b: Layer) -> bool:
    """Whether PyTorch's layer can be a norm without running statistics, and MindSpore's one that has them always."""
    return b.statistics and not a.statistics and {"weight", "bias"} <= a.slots.keys() & b.slots.keys()


def _is_wide_norm(layer: Layer) -> bool:
    """Whether a layer can be a norm over several dimensions: its bias has the shape of its weight."""
    weight, bias = (layer.slots.get(slot) for slot in ("weight", "bias"))
    return weight is not None and bias is not None and weight.shape == bias.shape


def _is_named_norm(layer: Layer) -> bool:
    """Whether a name says that a layer is a norm: the only sign of it in PyTorch where shapes are unknown."""
    return any(t in NORM_TOKENS or "norm" in t for part in layer.parts for t in tokens(part))


# ---------------------------------------------------------------------------------------------------------- evidence


def names(f: Features, g: Features, c: Candidates) -> Floats:
    """The likeness of the words in two paths, weighted by how much they tell."""
    table = likeness(f.words, g.words)
    table = np.vstack([table, np.zeros((1, table.shape[1]))])
    table = np.hstack([table, np.zeros((table.shape[0], 1))])
    wf, wg = _weights(f), _weights(g)
    a, b = f.word_ids[c.left], g.word_ids[c.right]
    sims = table[a[:, :, None], b[:, None, :]]
    wa, wb = np.where(a >= 0, wf[a], 0), np.where(b >= 0, wg[b], 0)
    hit = (sims.max(axis=2) * wa).sum(axis=1) + (sims.max(axis=1) * wb).sum(axis=1)
    word: Floats = hit / np.maximum(wa.sum(axis=1) + wb.sum(axis=1), 1e-9)
    return word


def kinship(f: Features, g: Features, c: Candidates) -> Floats:
    """Whether both of a pair belong to families of the same size, or stand alone beside such: 1, else 0.

    A family is what a word puts together among siblings of one shape (``dense1`` to ``dense3`` beside ``projection``),
    or attention's words (``q``, ``k`` and ``v`` beside ``o``).
    """
    mine, theirs = _families(f.layers)[c.left], _families(g.layers)[c.right]
    alike: Floats = ((mine == theirs).all(axis=1) & (mine.sum(axis=1) > 0)).astype(np.float64)
    return alike


def _families(layers: list[Layer]) -> Ints:
    """For each layer, how many it is of in a family, and how many stand in one beside it: one of the two is 0."""
    siblings: dict[Hashable, list[int]] = defaultdict(list)
    for i, layer in enumerate(layers):
        siblings[layer.parts[:-1], layer.main[1].shape and tuple(sorted(layer.main[1].shape))].append(i)
    out = np.zeros((len(layers), 2), dtype=np.int64)
    for group in siblings.values():
        if not 2 < len(group) <= NEAREST or not layers[group[0]].parts:
            continue
        by_word: dict[str, list[int]] = defaultdict(list)
        for i in group:
            words = set(tokens(layers[i].parts[-1]))
            for t in words:
                by_word[t].append(i)
            if any(is_attention_word(t) for t in words):
                by_word[QUERIES_KEYS_VALUES].append(i)
        whole = by_word.pop(QUERIES_KEYS_VALUES, [])
        some = [x for x in (whole, *by_word.values()) if 1 < len(x) < len(group)]
        family = max(some, key=len, default=whole)
        if len(family) > 1:
            out[group, 1] = len(family)
            out[family] = len(family), 0
    return out


def numbers(fa: Ints, ga: Ints, c: Candidates) -> Floats:
    """How far the numbers of two paths agree: their longest common subsequence relative to the longer list."""
    a, b = fa[c.left], ga[c.right]
    n = np.maximum((a >= 0).sum(axis=1), (b >= 0).sum(axis=1))
    return np.where(n > 0, _common(a, b) / np.maximum(n, 1), 1.0)


def counted(f: Features, g: Features, c: Candidates) -> Floats:
    """Whether two layers are the same in a count of their like: 1, else 0.

    Its like are the layers of its side with the same words and shape; they are counted by their numbers, wherever in
    the path these stand. The third of nine is the third of nine, be they in three stages of three blocks or in a row.
    """
    mine, theirs = _counts(f)[c.left], _counts(g)[c.right]
    alike: Floats = ((mine == theirs).all(axis=1) & (mine[:, 1] > 1)).astype(np.float64)
    return alike


def _counts(f: Features) -> Ints:
    """For each layer its place among its like, and how many they are."""
    groups: dict[Hashable, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for i, layer in enumerate(f.layers):
        words = tuple(t for part in layer.parts for t in tokens(part) if not t.isdigit())
        shape = layer.main[1].shape
        key = words, shape and tuple(sorted(shape)), layer.statistics
        groups[key].append((tuple(f.values[i][f.values[i] >= 0].tolist()), i))
    out = np.zeros((len(f.layers), 2), dtype=np.int64)
    for group in groups.values():
        for k, (_, i) in enumerate(sorted(group)):
            out[i] = k, len(group)
    return out


def same_path(f: Features, g: Features, c: Candidates, by_rank: bool) -> Floats:
    """How far two paths are the same words and numbers in the same order, without what a whole side has in front.

    The longest common subsequence relative to the mean length: 1 for the same path. By rank, a number stands for its
    place among the siblings that differ from it in the number alone.
    """
    index: dict[str, int] = {}
    sides = []
    for layers in (f.layers, g.layers):
        paths = bare_paths(layers, ranked=by_rank)
        sides.append(_padded([[index.setdefault(t, len(index)) for t in path] for path in paths]))
    a, b = sides[0][c.left], sides[1][c.right]
    n = (a >= 0).sum(axis=1) + (b >= 0).sum(axis=1)
    return np.where(n > 0, 2 * _common(a, b) / np.maximum(n, 1), 1.0)


def _common(a: Ints, b: Ints) -> Ints:
    """The length of the longest common subsequence, row by row; negative numbers are no members."""
    row = np.zeros((b.shape[1] + 1, len(a)), dtype=np.int64)
    for i in range(a.shape[1]):
        new = np.zeros_like(row)
        for j in range(b.shape[1]):
            hit = (a[:, i] == b[:, j]) & (a[:, i] >= 0)
            new[j + 1] = np.maximum(np.maximum(row[j + 1], new[j]), row[j] + hit)
        row = new
    last: Ints = row[-1]
    return last


def _weights(f: Features) -> Floats:
    """How much a word tells: the rarer, the more (inverse document frequency); one more slot for no word."""
    n = len(f.layers)
    count = np.bincount(f.word_ids[f.word_ids >= 0], minlength=len(f.words))
    return np.append(np.log1p(n / np.maximum(count, 1)), 0.0)


def order(n: int, m: int, c: Candidates, gain: Floats) -> Floats:
    """How much an order-preserving alignment of all loses by pairing two layers, for each candidate.

    The best alignment through each candidate is compared to the best alignment of all (max-marginals of the heaviest
    common subsequence, by dynamic programs from both ends): 0 where nothing is lost.

    Args:
        n, m: how many layers there are on the left and on the right.
        gain: what each candidate adds to an alignment, positive.
    """
    rows = np.argsort(c.left, kind="stable")
    starts = np.searchsorted(c.left[rows], np.arange(n + 1))
    cols, gains = c.right[rows], gain[rows]
    forward = np.zeros((n + 1, m + 1))
    backward = np.zeros((n + 1, m + 1))
    for i in range(n):
        k = slice(starts[i], starts[i + 1])
        row = forward[i].copy()
        j = cols[k]
        row[j + 1] = np.maximum(row[j + 1], forward[i, j] + gains[k])
        np.maximum.accumulate(row, out=forward[i + 1])
    for i in range(n - 1, -1, -1):
        k = slice(starts[i], starts[i + 1])
        row = backward[i + 1].copy()
        j = cols[k]
        row[j] = np.maximum(row[j], backward[i + 1, j + 1] + gains[k])
        backward[i] = np.maximum.accumulate(row[::-1])[::-1]
    through = forward[c.left, c.right] + gain + backward[c.left + 1, c.right + 1]
    loss: Floats = np.maximum(forward[n, m] - through, 0.0)
    return loss


def correspondence(f: Sets, g: Sets, c: Candidates, belief: sp.csr_matrix, power: float) -> Floats:
    """How far the sets around two layers correspond under the present belief, the pair itself left out.

    For two sets the measure is Dice's coefficient over the other layers in them; each set counts with its best
    partner, small sets more than large ones.
    """
    joint = (f.member.T @ belief @ g.member).toarray().ravel()
    rows = (belief @ g.member).toarray().ravel()
    cols = (belief.T @ f.member).toarray().ravel()
    own = np.asarray(belief[c.left, c.right]).ravel()
    out = np.zeros(len(c.left))
    sets_f, sets_g = f.member.shape[1], g.member.shape[1]
    # Sets by sets by candidates, a few thousand of these at a time: what is worked on stays in the cache.
    step = max(1, CACHED // (f.ids.shape[1] * g.ids.shape[1]))
    for k in range(0, len(c.left), step):
        u, v = c.left[k : k + step], c.right[k : k + step]
        a, b = f.ids[u].T, g.ids[v].T
        at_a, at_b = np.maximum(a, 0), np.maximum(b, 0)  # where there is no set, any number will do
        both = joint.take((at_a * sets_g)[:, None] + at_b)
        both -= rows.take(u * sets_g + at_b)
        both -= cols.take(v * sets_f + at_a)[:, None]
        both += own[k : k + step]
        both *= (a >= 0)[:, None] & (b >= 0)
        total = f.size[at_a][:, None] + g.size[at_b]
        total -= 2
        both *= 2
        both /= np.maximum(total, 1, out=total)
        for best, ids, size in ((both.max(axis=1), a, f.size), (both.max(axis=0), b, g.size)):
            w = np.where(ids >= 0, size[ids] ** power, 0)
            best *= w
            # Summed candidate by candidate: the order of a sum is part of its last bits.
            part = np.ascontiguousarray(best.T).sum(axis=1)
            out[k : k + step] += 0.5 * part / np.maximum(np.ascontiguousarray(w.T).sum(axis=1), 1e-9)
    return np.clip(out, 0, 1)
