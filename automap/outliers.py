"""Entries that are out of step with their like: what the other repetitions of a block say speaks against them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

#: Repetitions that must agree for one that does not to be out of step, and what part of all.
MANY, MOST = 2, 0.5


@dataclass(frozen=True)
class Names:
    """The names of one entry, PyTorch's and MindSpore's, and the kind of their layers, such as how many dimensions."""

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    kind: Hashable = None


def out_of_step(entries: Iterable[Names]) -> Iterator[tuple[Names, Names]]:
    """Entries that take another's place while that of their like is another one; each with one of its like.

    Where a layer is missing in the port, what is left of its block can be given away: the output projection to the
    place of the values, say, which in every other block are a part of another entry. Entries of one kind whose names
    differ in numbers alone are alike.
    """
    every = [(e, (e.kind, *_pattern(e.torch)), _pattern(e.mindspore)) for e in entries]
    goes: dict[Hashable, Counter[tuple[str, ...]]] = defaultdict(Counter)
    comes: dict[Hashable, Counter[Hashable]] = defaultdict(Counter)
    first: dict[Hashable, Names] = {}
    for entry, t, m in every:
        goes[t][m] += 1
        first.setdefault((t, m), entry)
        for name in m:
            comes[name][t] += 1
    for entry, t, m in every:
        usual, n = goes[t].most_common(1)[0]
        if usual == m or n < MANY or n <= MOST * (goes[t].total() - goes[t][m]):
            continue
        others = sum(x for name in m for k, x in comes[name].items() if k != t)
        if others >= sum(comes[name][t] for name in set(m)):
            yield entry, first[t, usual]


def _pattern(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "#", name) for name in names)
