"""Entries that are out of step with their like: what the other repetitions of a block say speaks against them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

#: Repetitions that must agree for one that does not to be out of step, and what part of all.
MANY, MOST = 2, 0.5

#: Names of one entry: PyTorch's and MindSpore's.
Names = tuple[tuple[str, ...], tuple[str, ...]]


def out_of_step(entries: Iterable[Names]) -> Iterator[tuple[Names, Names]]:
    """Entries that take another's place while that of their like is another one; each with one of its like.

    Where a layer is missing in the port, what is left of its block can be given away: the output projection to the
    place of the values, say, which in every other block are a part of another entry. Names that differ in numbers
    alone are alike.
    """
    every = list(entries)
    patterns = [(_pattern(ts), _pattern(ms)) for ts, ms in every]
    goes: dict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
    comes: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    first: dict[tuple[tuple[str, ...], tuple[str, ...]], Names] = {}
    for entry, (t, m) in zip(every, patterns, strict=True):
        goes[t][m] += 1
        first.setdefault((t, m), entry)
        for name in m:
            comes[name][t] += 1
    for entry, (t, m) in zip(every, patterns, strict=True):
        usual, n = goes[t].most_common(1)[0]
        if usual == m or n < MANY or n <= MOST * (goes[t].total() - goes[t][m]):
            continue
        others = sum((Counter({k: x for k, x in comes[name].items() if k != t}) for name in m), Counter())
        if others.total() >= sum(comes[name][t] for name in set(m)):
            yield entry, first[t, usual]


def _pattern(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "#", name) for name in names)
