"""Entries that are out of step with their like: what the other repetitions of a block say speaks against them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

#: What part of the other repetitions must agree for one that does not to be out of step; and as how many, at most, of
#: these there may be of its kind: what is done again and again is no slip.
MOST, FEW = 0.5, 0.25


class Names(NamedTuple):
    """The names of one entry, PyTorch's and MindSpore's, and the kind of their layers, such as how many dimensions."""

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    kind: Hashable = None


def out_of_step(entries: Iterable[Names], listed: Iterable[str]) -> Iterator[tuple[Names, Names]]:
    """Entries that take another's place while that of their like is another one; each with one of its like.

    Where a layer is missing in the port, what is left of its block can be given away: the output projection to the
    place of the values, say, which in every other block are a part of another entry. Alike are entries of one kind, of
    the same place in numbered modules that hold the same. ``listed``: all names of PyTorch's listing.
    """
    some = [(e, tuple(map(_pattern, e.torch)), tuple(map(_pattern, e.mindspore))) for e in entries]
    ways: dict[Hashable, set[tuple[str, ...]]] = defaultdict(set)
    for entry, mine, m in some:
        ways[mine, entry.kind].add(m)
    # Mostly all that are alike go one way, and there is nothing to compare.
    sought = {name for several in ways.values() if len(several) > 1 for m in several for name in m}
    if not sought:
        return
    held = _held(listed)
    every = [
        (entry, (entry.kind, *(_place(name, held) for name in entry.torch)), m)
        for entry, _, m in some
        if not sought.isdisjoint(m)
    ]
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
        if usual == m or goes[t][m] > FEW * n or n <= MOST * (goes[t].total() - goes[t][m]):
            continue
        others = sum(x for name in m for k, x in comes[name].items() if k != t)
        if others >= sum(comes[name][t] for name in set(m)):
            yield entry, first[t, usual]


@lru_cache(maxsize=1 << 14)
def _pattern_of(module: str) -> str:
    return re.sub(r"(?<![^.])\d+(?=\.[^.]+\.)", "#", module)


def _pattern(name: str) -> str:
    """A name with the numbers of blocks replaced: the same in all repetitions. A layer's own number is no block's."""
    end = name.rfind(".") + 1  # parameters of one module, and like modules of all blocks, are looked at once
    return _pattern_of(name[:end]) + name[end:]


def _held(names: Iterable[str]) -> dict[str, int]:
    """What each numbered module holds, as a number for all those that hold the same."""
    held: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for module in _numbered(name):
            held[module].add(_pattern(name[len(module) :]))
    kinds: dict[frozenset[str], int] = {}
    return {module: kinds.setdefault(frozenset(below), len(kinds)) for module, below in held.items()}


def _place(name: str, held: dict[str, int]) -> Hashable:
    """The place of a parameter, the same in all numbered modules that hold the same."""
    return _pattern(name), tuple(held[module] for module in _numbered(name))


def _numbered(name: str) -> tuple[str, ...]:
    return _numbered_above(name[: name.rfind(".") + 1])


@lru_cache(maxsize=1 << 14)
def _numbered_above(module: str) -> tuple[str, ...]:
    return tuple(module[: found.end()] for found in re.finditer(r"(?<![^.])\d+(?=\.)", module))
