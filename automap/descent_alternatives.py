"""What an optimizer of MindSpore does otherwise than PyTorch's, by trying: a rule is changed until it gives the steps.

A sample of weights and gradients over some steps is all that is known of MindSpore's optimizer. PyTorch's rule is
repeated on it with other settings, and with the variants that optimizers are known to have; what gives MindSpore's
steps for every element is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from automap import comparison
from automap.descent import Rule
from automap.dtypes import Array
from automap.gradients import EPS
from automap.relabeling import Key
from automap.training import Record

#: An alternative explains a difference that it leaves this part of.
_LEFT = 0.25
#: A rule gives the steps that were seen if it is off by so many times what rounding explains.
GOOD = 1.0
#: Of so many elements in all.
_TRIED = 3000


@dataclass(frozen=True)
class Seen:
    """A sample of weights over some steps.

    Attributes:
        weights: before the first step, and after each.
        gradients: of each step.
        memory: what the optimizer had before the first step.
        done: how many steps it had made.
        factors: of the learning rate at each step, where it changes.
    """

    weights: list[Array]
    gradients: list[Array]
    memory: Mapping[str, Array] = field(default_factory=dict)
    done: int = 0
    factors: tuple[float, ...] = ()

    def tried(self, rule: Rule) -> Iterator[Array]:
        """What a rule adds at each step."""
        return rule.changes(self.weights, self.gradients, self.memory, self.done, self.factors)

    @property
    def changes(self) -> list[Array]:
        """What each step added."""
        pairs = zip(self.weights[1:], self.weights, strict=False)
        return [b.astype(np.float64) - a for b, a in pairs]

    @property
    def rounding(self) -> Array:
        """What the element type alone does to a change."""
        found: Array = 2 * EPS["float32"] * np.max(np.abs(self.weights), axis=0)
        return found


def seen_of(
    record: Record, keys: Sequence[Key], steps: int, start: Record | None = None, factors: tuple[float, ...] = ()
) -> Seen:
    """A sample of some weights over some steps; ``start`` knows what the optimizers began with."""
    # Many combinations are tried, and each alternative shows in a few elements of every weight.
    some = slice(None, max(1, _TRIED // len(keys)))

    def joined(rows: Sequence[dict[Key, Array]]) -> list[Array]:
        return [np.concatenate([row[key][some] for key in keys]) for row in rows]

    held = {} if start is None else {word: joined([row])[0] for word, row in start.memory.items()}
    done = 0 if start is None else start.done
    return Seen(joined(record.weights[: steps + 1]), joined(record.gradients[:steps]), held, done, factors)


def off(rule: Rule, seen: Seen) -> float:
    """How far a rule is from the changes that were seen, in units of what would be a good agreement."""
    worst = 0.0
    for tried, change in zip(seen.tried(rule), seen.changes, strict=True):
        allowed = seen.rounding + 1e-4 * np.abs(change) + 1e-6 * comparison.scale_of(change) + 1e-300
        with np.errstate(all="ignore"):
            worst = max(worst, float(np.nan_to_num(np.abs(tried - change) / allowed, nan=np.inf).max(initial=0.0)))
    return worst


def alternative(rule: Rule, ours: Seen, theirs: Seen) -> list[tuple[str, str]] | None:
    """The fewest changes of PyTorch's rule that give MindSpore's steps: what each is, and a sentence.

    None where PyTorch's rule does not give PyTorch's own steps, or where it gives MindSpore's, too, or nothing does.
    """
    if off(rule, ours) > GOOD or (before := off(rule, theirs)) <= GOOD:
        return None
    singles = list(_alternatives(rule, theirs))
    for count in (1, 2, 3):
        best: tuple[float, list[tuple[str, str]]] | None = None
        for chosen in combinations(singles, count):
            if len({what for what, _, _ in chosen}) < count:
                continue
            changed = rule
            for _, _, change in chosen:
                changed = change(changed)
            left = off(changed, theirs)
            if left <= min(GOOD, _LEFT * before) and (best is None or left < best[0]):
                best = left, [(what, words) for what, words, _ in chosen]
        if best is not None:
            return best[1]
    return None


def _alternatives(rule: Rule, seen: Seen) -> Iterator[tuple[str, str, Any]]:
    """Each is what it is called, a sentence, and how it changes a rule."""

    def to(**changes: Any) -> Any:
        return lambda r: replace(r, **changes)

    decays = rule.weight_decay
    if decays:
        yield "weight decay", f"weight decay: {decays:g} in PyTorch, none in MindSpore", to(weight_decay=0.0)
        here, there = (
            ("beside the gradient (decoupled)", "in the gradient (coupled)")
            if rule.decoupled
            else ("in the gradient (coupled)", "beside the gradient (decoupled)")
        )
        if rule.kind != "sgd" or rule.momentum:
            words = f"weight decay is {here} in PyTorch, {there} in MindSpore"
            yield "coupled weight decay", words, to(decoupled=not rule.decoupled)
    for decoupled in (rule.decoupled,) if decays else (False, True):
        base = replace(rule, decoupled=decoupled)
        value = _fitted(base, seen, "weight_decay", -7, 0)
        if value > 1e-6 and abs(value / (decays or 1e-9) - 1) > 0.02:
            words = f"weight decay: {decays:g} in PyTorch, {value:.3g} in MindSpore"
            words += "" if decays else f" ({_coupled(decoupled)})"
            yield "weight decay", words, to(weight_decay=value, decoupled=decoupled)
    if rule.kind == "adam":
        yield (
            "bias correction",
            "bias correction: PyTorch corrects the moments for their start at zero, MindSpore does not",
            to(corrected=False),
        )
    if rule.kind != "sgd":
        places = {
            "outside": "outside the root",
            "uncorrected": "outside the root of the moment before its correction",
            "inside": "inside the root",
        }
        for place, words in places.items():
            if place != rule.eps_where and (rule.kind == "adam" or place != "uncorrected"):
                said = f"epsilon: {places[rule.eps_where]} in PyTorch, {words} in MindSpore"
                yield "place of epsilon", said, to(eps_where=place)
        for eps in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10):
            if eps != rule.eps:
                yield "epsilon", f"epsilon: {rule.eps:g} in PyTorch, {eps:g} in MindSpore", to(eps=eps)
        value = _fitted(rule, seen, "eps", -10, 0)
        if abs(value / rule.eps - 1) > 0.05:
            yield "epsilon", f"epsilon: {rule.eps:g} in PyTorch, about {value:.2g} in MindSpore", to(eps=value)
    if rule.kind in ("adagrad", "rmsprop"):
        for value in (0.0, 0.1, 1.0, _fitted(rule, seen, "start", -6, 1)):
            if value != rule.start:
                words = f"the sum of squares starts at {rule.start:g} in PyTorch, at {value:.3g} in MindSpore"
                yield "start", words, to(start=value)
    if rule.kind == "sgd" and rule.momentum:
        other = not rule.nesterov
        with_, without = ("with", "without") if rule.nesterov else ("without", "with")
        yield (
            "Nesterov",
            f"Nesterov's momentum: {with_} in PyTorch, {without} in MindSpore",
            to(nesterov=other, dampening=0.0),
        )
        if not rule.dampening:
            yield (
                "dampening",
                f"dampening: none in PyTorch, {rule.momentum:g} in MindSpore",
                to(dampening=rule.momentum),
            )
    if rule.kind in ("sgd", "rmsprop"):
        for value in sorted({0.0, 0.5, 0.8, 0.9, 0.95, 0.99} - {rule.momentum}):
            yield "momentum", f"momentum: {rule.momentum:g} in PyTorch, {value:g} in MindSpore", to(momentum=value)
    if rule.kind in ("adam", "rmsprop"):
        for name in ("beta1", "beta2")[rule.kind == "rmsprop" :]:
            for value in sorted({0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999} - {getattr(rule, name)}):
                yield name, f"{name}: {getattr(rule, name):g} in PyTorch, {value:g} in MindSpore", to(**{name: value})
    tried = np.concatenate(list(seen.tried(rule)))
    factor = factor_of([tried], [np.concatenate(seen.changes)]) if np.isfinite(tried).all() else 1.0
    if abs(factor - 1) > 1e-2 and factor > 0:
        words = f"learning rate: {rule.lr:g} in PyTorch, {rule.lr * factor:.3g} in MindSpore"
        yield "learning rate", words, to(lr=rule.lr * factor)
    elif factor < 0:
        yield "sign", "MindSpore steps up the gradient", to(lr=rule.lr * factor)
    elif not any(c.any() for c in seen.changes):
        yield "no step", "MindSpore's optimizer changes nothing", to(lr=0.0)


def _coupled(decoupled: bool) -> str:
    return "decoupled" if decoupled else "coupled"


def _fitted(rule: Rule, seen: Seen, name: str, low: float, high: float) -> float:
    """The value of a setting, between two powers of ten, that comes closest to what was seen."""

    def cost(x: float) -> float:
        tried = np.concatenate(list(seen.tried(replace(rule, **{name: 10.0**x}))))
        with np.errstate(all="ignore"):
            return float(np.nan_to_num(np.square(tried - np.concatenate(seen.changes)).mean(), nan=1e300))

    grid = np.linspace(low, high, 15)
    start = float(min(grid, key=cost))
    wide = (high - low) / 14
    found = minimize_scalar(cost, bounds=(start - wide, start + wide), method="bounded", options={"xatol": 1e-6})
    return float(f"{10.0**found.x:.6g}")


def factor_of(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """By how much the one is the other, by least squares."""
    a, b = (np.concatenate([x.astype(np.float64) for x in side]) for side in (ours, theirs))
    return float(a @ b / (a @ a)) if a.any() else 1.0
