"""Schedules of the learning rate in a training: what each step was made with, and whether it is the same in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from automap.descent import Rule
from automap.descent_alternatives import GOOD, off, seen_of
from automap.optimizer_settings import same
from automap.relabeling import Key
from automap.training import Record
from automap.training_result import Cause, Difference, Training


def rates_of(record: Record, key: Key, side: int) -> list[float]:
    """The learning rate of a weight at each step; none where it is not known. ``side``: 0 for PyTorch's names."""
    found = [row.get(name) for row in record.rates for name in key[side][:1]]
    return [] if None in found else [rate for rate in found if rate is not None]


def based(ours: Record, key: Key) -> Rule:
    """PyTorch's rule of a weight, with the first learning rate that is not zero."""
    rule = ours.rules[key[0][0]]
    return replace(rule, lr=next((rate for rate in rates_of(ours, key, 0) if rate), rule.lr))


def factors(record: Record, key: Key, side: int, ours: Record, steps: int) -> tuple[float, ...]:
    """By how much the learning rate of each step is another one than the rule's; none where it never is."""
    base, rates = based(ours, key).lr, rates_of(record, key, side)[:steps]
    if not base or len(rates) < steps or all(same(rate, base) for rate in rates):
        return ()
    return tuple(rate / base for rate in rates)


def apart(ours: Record, theirs: Record, key: Key) -> tuple[int, float, float] | None:
    """The first step, from 1, at which the learning rates of a weight are not the same, and both."""
    pairs = zip(rates_of(ours, key, 0), rates_of(theirs, key, 1), strict=False)
    return next(((k, a, b) for k, (a, b) in enumerate(pairs, 1) if not same(a, b)), None)


def of_rates(
    ours: Record, theirs: Record, first: Sequence[Difference], steps: int
) -> tuple[list[Cause], list[Difference]]:
    """The schedules of the learning rate as causes, and the differences that they do not explain alone.

    By trying: PyTorch's rule with MindSpore's rates has to give MindSpore's steps, where its own do not.
    """
    left: list[Difference] = []
    found: dict[tuple[int, float, float], list[str]] = {}
    for d in first:
        where = apart(ours, theirs, d.key)
        if where is None or d.key[0][0] not in ours.rules or where[0] > steps:
            left.append(d)
            continue
        rule, way = based(ours, d.key), factors(theirs, d.key, 1, ours, steps)
        own = factors(ours, d.key, 0, ours, steps)
        if off(rule, seen_of(theirs, [d.key], steps, ours, own)) <= GOOD:
            left.append(d)  # what MindSpore's optimizer says of its learning rate is not what it does
            continue
        explained = off(rule, seen_of(theirs, [d.key], steps, ours, way)) <= GOOD
        if explained or where[0] <= d.step:
            found.setdefault(where, []).append(d.name)
        if not explained:
            left.append(d)
    causes = []
    for where, names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        causes.append(Cause("learning rate", f"{_rates_in_words(*where)} ({names[0]}{more})", tuple(names)))
    return causes, left


def of_schedules(ours: Record, theirs: Record, training: Training) -> list[str]:
    """A sentence on the first step at which the learning rates are not the same, where no cause tells it."""
    found = [where for key in ours.weights[0] if (where := apart(ours, theirs, key)) is not None]
    words = _rates_in_words(*min(found)) if found else ""
    if not words or any(cause.words.startswith(words) for cause in training.causes):
        return []
    return [words if training.differences else f"{words}, which makes no difference yet"]


def _rates_in_words(step: int, a: float, b: float) -> str:
    return f"learning rate of step {step}: {a:g} in PyTorch, {b:g} in MindSpore"
