"""What stands in front of all names of a checkpoint, and what stands there in a mapping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence


def prefix_change(have: Collection[str], want: Collection[str]) -> tuple[str, str]:
    """What to take from the front of all names in ``have``, and what to put there, so that most are in ``want``."""
    best = ("", "")
    most = sum(name in want for name in have)
    if most == len(have):
        return best
    for strip in _common_prefixes(have):
        for put in _common_prefixes(want):
            count = sum(renamed(name, strip, put) in want for name in have)
            if count > most:
                best, most = (strip, put), count
    return best


def change_of_prefix(changed: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """What most of the old names begin with, and what the new ones have instead."""
    pairs: Counter[tuple[str, str]] = Counter()
    for old, new in changed:
        same = 0
        while same < min(len(old), len(new)) and old[-1 - same] == new[-1 - same]:
            same += 1
        rest = old[len(old) - same :]
        cut = 0 if same in (len(old), len(new)) else rest.find(".") + 1
        pairs[old[: len(old) - same + cut], new[: len(new) - same + cut]] += 1
    return pairs.most_common(1)[0][0] if pairs else ("", "")


def common_prefix(names: Collection[str]) -> str:
    """The dotted prefix that all names have, or ``""``."""
    if not names:
        return ""
    first, last = min(names), max(names)  # what these two share, all between them share
    end = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(last))
    return first[: first.rfind(".", 0, end) + 1]


def _common_prefixes(names: Collection[str]) -> list[str]:
    """The dotted prefixes that all names carry, from the empty one on."""
    whole = common_prefix(names)
    return [""] + [whole[: i + 1] for i, char in enumerate(whole) if char == "."]


def renamed(name: str, strip: str, put: str) -> str:
    """The name with another beginning, where it has the first one."""
    return put + name[len(strip) :] if name.startswith(strip) else name
