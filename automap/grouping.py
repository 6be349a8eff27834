"""What repeats is said once: names and reasons that differ only in numbers are one line with a count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from automap.graph import ancestors

#: How many lines of groups are shown at most, if nothing else is asked for.
SHOWN = 6

#: A longer line is broken before the reason.
_WIDTH = 100

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Group:
    """Things of one kind, to be said in one line.

    Attributes:
        what: what they are called, with ``*`` for each number in which they differ.
        why: the reason that they share, likewise.
        members: each of them.
    """

    what: str
    why: str
    members: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.members)

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


def grouped(items: Iterable[tuple[str, str]], label: Callable[[str], str] | None = None) -> list[Group]:
    """Texts with their reasons, grouped where both differ in numbers only; the largest groups first.

    Args:
        items: each text with its reason.
        label: what a text is called in its group, itself by default.
    """
    groups: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for what, why in items:
        called = what if label is None else label(what)
        key = _NUMBER.sub("*", called), _NUMBER.sub("*", why)
        groups.setdefault(key, []).append((called, why, what))
    out = []
    for rows in groups.values():
        labels, reasons, members = zip(*rows, strict=True)
        out.append(Group(_common(labels), _common(reasons), members))
    return sorted(out, key=len, reverse=True)


def _common(texts: Sequence[str]) -> str:
    """Texts that differ in numbers only as one, with ``*`` for each number that is not the same in all of them."""
    first, *others = {text: re.split(r"(\d+)", text) for text in texts}.values()
    return "".join(part if all(o[i] == part for o in others) else "*" for i, part in enumerate(first))


def grouped_names(items: Iterable[tuple[str, str]], every: Iterable[str]) -> list[Group]:
    """Names with their reasons, grouped.

    A group that is all there is of a last word (``num_batches_tracked``) or below a module is called so.

    Args:
        items: each name with its reason.
        every: all names that there are.
    """
    reasons = dict(items)
    total = Counter(part for name in every for part in _parts(name))
    alike: dict[str, Counter[str]] = {}
    for name, why in reasons.items():
        alike.setdefault(_NUMBER.sub("*", why), Counter()).update(_parts(name))

    def label(name: str) -> str:
        found = alike[_NUMBER.sub("*", reasons[name])]
        whole = (part for part in _parts(name) if 1 < total[part] == found[part])
        return next(whole, name).removeprefix(".")

    return grouped(reasons.items(), label)


def _parts(name: str) -> list[str]:
    """What a name belongs to: its last word, and the modules above it, outermost first (``.word``, ``module.*``)."""
    return [f".{name.rpartition('.')[2]}", *(f"{module}.*" for module in ancestors(name))]


def group_lines(groups: Sequence[Group], shown: int | None = SHOWN) -> list[str]:
    """A line for each group, or two where one would be too long."""
    lines = []
    for g in groups[:shown]:
        line = f"{len(g):>6}  {g}"
        lines += [line] if len(line) <= _WIDTH else [f"{len(g):>6}  {g.what}", f"        {g.why}"]
    rest = [] if shown is None else groups[shown:]
    if rest:
        lines.append(f"        … and {sum(map(len, rest))} more in {len(rest)} other kind{'s' * (len(rest) > 1)}")
    return lines
