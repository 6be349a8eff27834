"""Why two trainings differ, found by experiment: a step is repeated with an alternative, to see which one agrees.

Nothing is concluded from what a setting is called. An alternative has to give what MindSpore gave where PyTorch's own
rule does not, for every element of the sample; the numbers that it was tried on are those of the training itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from automap import comparison
from automap.comparison import TOLERANCE
from automap.descent import Rule
from automap.descent_alternatives import GOOD, alternative, factor_of, off, seen_of
from automap.dtypes import Array
from automap.gradients import EPS
from automap.training import ROOM, Course, Record
from automap.training_result import Cause, Difference
from automap.training_schedules import based, factors, of_rates

#: So many weights are looked at, the worst first.
_LOOKED_AT = 12
#: So many steps are repeated.
_STEPS = 6


@dataclass
class Explained:
    """What was found out."""

    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mapping_is_wrong: bool = False


def explain(course: Course, ours: Record, theirs: Record, first: Sequence[Difference]) -> Explained:
    """Look for the cause of the first differences, all of one step and kind."""
    out = Explained()
    kind, step = first[0].kind, first[0].step - 1
    if kind == "loss" and step == 0:
        _of_loss(course, ours, theirs, out)
    elif kind == "gradient":
        _of_gradients(ours, theirs, first, out)
    elif kind == "weight":
        _of_weights(course, ours, theirs, first, out)
    _of_statistics(course, ours, theirs, out)
    return out


def amplified(
    course: Course, ours: Record, theirs: Record, first: Sequence[Difference], dtypes: Collection[str]
) -> bool:
    """Whether a difference is nothing but rounding that a training has made large, by experiment.

    Where an activation has a kink, a value that rounding puts on the other side changes a gradient at once, and the
    runs that measure the noise miss a seldom one. PyTorch takes MindSpore's weights and statistics as they are before
    the step: if it gives MindSpore's loss and gradients there, both compute the same. Weights are held against what
    PyTorch's own rule makes of MindSpore's gradients.
    """
    step, kind = first[0].step - 1, first[0].kind
    share = ROOM * max(TOLERANCE.get(d, 0.0) for d in dtypes)
    keys = list(ours.weights[0])
    if kind == "weight":
        keys = [d.key for d in first]
        if any(k[0][0] not in ours.rules or not theirs.optimized.issuperset(k[1]) for k in keys):
            return False
        seen = (seen_of(theirs, [k], step + 1, ours, factors(ours, k, 0, ours, step + 1)) for k in keys)
        return all(off(based(ours, k), s) <= GOOD for k, s in zip(keys, seen, strict=True))
    if step == 0 or kind == "statistic":
        return False
    again = course.from_mindspore(step)
    loss = theirs.losses[step]
    greatest = max(map(comparison.scale_of, again.gradients[0].values()), default=0.0)
    for key in keys:
        a, b = again.gradients[0][key], theirs.gradients[step][key]
        if not comparison.scale_of(a - b) <= 10 * share * max(comparison.scale_of(a), 1e-2 * greatest):
            return False
    return abs(again.losses[0] - loss) <= share * abs(loss)


# -- randomness --------------------------------------------------------------------------------------------------------


def randomness(course: Course, ours: Record, theirs: Record) -> str:
    """Which network gives another loss under another seed though dropout is off, in words, or ``""``."""
    random = []
    for side, record in (("torch", ours), ("mindspore", theirs)):
        again = course.run(side, 1, seed=1).losses[0]  # type: ignore[arg-type]
        known = record.losses[0]
        if math.isfinite(known) and abs(again - known) > 1e-4 * max(abs(known), abs(again)):
            name = "PyTorch" if side == "torch" else "MindSpore"
            random.append(f"{name}'s loss is {known:.6g} under one seed, {again:.6g} under another")
    if not random:
        return ""
    return f"the network is random in training beyond the dropout that was switched off: {'; '.join(random)}"


def of_dropout(course: Course, notes: list[str]) -> list[Cause]:
    """Dropout layers that keep another part of the signal; a note says what was switched off."""
    ours, theirs = course.torch.kept(), course.mindspore.kept()
    if not ours and not theirs:
        return []
    notes.append(
        f"dropout is random, and was switched off for the comparison ({len(ours)} layer(s) in PyTorch, "
        f"{len(theirs)} in MindSpore); which part each keeps was compared by itself"
    )
    if len(ours) != len(theirs):
        return []
    found = []
    for (path, a), (ms_path, b) in zip(ours, theirs, strict=True):
        # Counted on 20,000 values: some four standard deviations of a count at one half.
        if abs(a - b) > 0.02:
            other = ", which is the other way round (keep_prob for p)" if abs(a - (1 - b)) < 0.02 < abs(a - 0.5) else ""
            words = f"dropout: {path} keeps {a:.0%} of the values, {ms_path} in MindSpore keeps {b:.0%}{other}"
            found.append(Cause("dropout", words, (path,)))
    return found


# -- the loss ----------------------------------------------------------------------------------------------------------


def _of_loss(course: Course, ours: Record, theirs: Record, out: Explained) -> None:
    """The losses differ before any weight has changed: the losses themselves, or the networks in training mode."""
    pairs = comparison.pair(ours.outputs, theirs.outputs).pairs
    dtypes = (course.torch.runner.dtype, course.mindspore.runner.dtype)
    share = ROOM * ROOM * max(TOLERANCE.get(d, 0.0) for d in dtypes)
    apart = [
        (where, comparison.scale_of(a.astype(np.float64) - b) / (comparison.scale_of(a) or 1))
        for where, a, b in pairs
        if a.shape == b.shape and a.dtype.kind == "f"
    ]
    where, worst = max(apart, key=lambda p: p[1], default=("", 0.0))
    if worst > share:
        out.notes.append(f"in training mode {where} differs by {worst:.2g} of its scale, though it agrees in inference")
        return
    a, b = ours.losses[0], theirs.losses[0]
    ratio = b / a if a else math.inf
    for name, number in _sizes(course, pairs):
        for factor, way in (
            (number, "a sum in MindSpore, a mean in PyTorch"),
            (1 / number, "a mean in MindSpore, a sum in PyTorch"),
        ):
            if number < 2 or abs(ratio / factor - 1) > 1e-3:
                continue
            off = _scaled_gradients(ours, theirs, factor)
            if off < 1e-2:
                times = f"{number:g} times" if factor > 1 else f"1/{number:g} of"
                words = (
                    f"mean or sum in the loss: MindSpore's is {times} PyTorch's on equal outputs, and so is every "
                    f"gradient; {number:g} is {name}: {way}"
                )
                out.causes.append(Cause("mean or sum", words))
                return
    out.notes.append(
        f"the outputs agree, and the losses made of them do not: MindSpore's is {ratio:.6g} times PyTorch's"
    )


def _sizes(course: Course, pairs: Sequence[tuple[str, Array, Array]]) -> Iterator[tuple[str, float]]:
    for _, a, _ in pairs:
        if a.ndim:
            yield "the size of the batch", a.shape[0]
            yield "the number of outputs", a.size
            yield "the number of outputs of each sample", a.size / a.shape[0]
            yield "the number of places", math.prod(a.shape[:-1])


def _scaled_gradients(ours: Record, theirs: Record, factor: float) -> float:
    """How far MindSpore's first gradients are from so many times PyTorch's, relative to the greatest."""
    scale = max((comparison.scale_of(g) for g in ours.gradients[0].values()), default=0.0) * abs(factor)
    off = max(comparison.scale_of(theirs.gradients[0][k] - factor * g) for k, g in ours.gradients[0].items())
    return off / scale if scale else math.inf


# -- gradients ---------------------------------------------------------------------------------------------------------


def _of_gradients(ours: Record, theirs: Record, first: Sequence[Difference], out: Explained) -> None:
    step = first[0].step - 1
    a, b = ours.gradients[step], theirs.gradients[step]
    frozen = [d for d in first if not b[d.key].any() and not theirs.optimized.intersection(d.key[1])]
    if frozen:
        out.causes.append(_frozen(frozen, "MindSpore"))
        return
    factor = factor_of([a[k] for k in a], [b[k] for k in a])
    if (
        abs(factor - 1) > 1e-3
        and len(first) > 1
        and all(_left(a[k] * factor, a[k], b[k]) < 0.05 for k in (d.key for d in first))
    ):
        words = f"every gradient is {factor:.4g} times PyTorch's in MindSpore, though the loss agrees"
        out.causes.append(Cause("scaled gradients", words, tuple(d.name for d in first)))
        return
    swapped = {
        d.name: other.name for d in first for other in first if d is not other and _alike(b[d.key], a[other.key])
    }
    if len(swapped) == len(first):
        some = next(iter(swapped.items()))
        out.causes.append(
            Cause("mapping", f"the gradient of {some[0]} is that of {some[1]}: the mapping is wrong there")
        )
        out.mapping_is_wrong = True
        return
    out.notes.append("the loss agrees and its gradient does not: automap validate --grad says between which layers")


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and comparison.scale_of(a - b) <= 1e-3 * comparison.scale_of(b) > 0


def _frozen(found: Sequence[Difference], side: str) -> Cause:
    names = tuple(d.name for d in found)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Cause("frozen", f"{names[0]}{more} is not trained in {side}: its optimizer does not have it", names)


def _left(tried: Array, known: Array, seen: Array) -> float:
    """What part of a difference an alternative leaves."""
    before, after = comparison.scale_of(known - seen), comparison.scale_of(tried - seen)
    return after / before if before else 0.0


# -- running statistics ------------------------------------------------------------------------------------------------


def _of_statistics(course: Course, ours: Record, theirs: Record, out: Explained) -> None:
    """How much a batch counts, from the first step: both networks see the same batch in it."""
    momenta = _momenta(course)
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, before in ours.statistics[0].items():
        if len(key[0]) != 1 or key[0][0] not in momenta:
            continue
        momentum = momenta[key[0][0]]
        start, ms_start = before.astype(np.float64), theirs.statistics[0][key].astype(np.float64)
        way, ms_way = ours.statistics[1][key] - start, theirs.statistics[1][key] - ms_start
        rounding = 8 * EPS["float32"] * comparison.scale_of(ours.statistics[1][key])
        if not momentum or comparison.scale_of(way) <= 8 * rounding:
            continue
        factor = float(way @ ms_way / (way @ way))
        if comparison.scale_of(way - ms_way) <= max(rounding, 1e-3 * comparison.scale_of(way)):
            continue
        if comparison.scale_of(ms_way) <= rounding:
            what, words = (
                "running statistics stand still",
                f"in MindSpore they stay as they are, PyTorch moves them by {momentum:g}",
            )
        elif comparison.scale_of(ms_way - factor * way) <= max(rounding, 5e-3 * comparison.scale_of(ms_way)):
            theirs_is = factor * momentum
            what = "momentum of BatchNorm"
            words = f"a new batch counts {theirs_is:.3g} in MindSpore, {momentum:.3g} in PyTorch"
            if abs(theirs_is - (1 - momentum)) < 1e-2 < abs(momentum - 0.5):
                words += ": it is read the other way round, MindSpore's momentum is 1 minus PyTorch's"
        else:
            # The variance of a batch, with or without Bessel's correction: only the batch's part is scaled.
            batch = start + way / momentum
            scale = float((ms_way + momentum * start) @ (momentum * batch) / ((momentum * batch) @ (momentum * batch)))
            if comparison.scale_of(ms_way - momentum * (scale * batch - start)) > 5e-3 * comparison.scale_of(ms_way):
                continue
            what = "variance of BatchNorm"
            words = f"that of a batch is {scale:.4g} times PyTorch's in MindSpore: one is corrected by n / (n - 1)"
        found.setdefault((what, words), []).append((key[0][0], key[1][0]))
    for (what, words), names in found.items():
        first = " -> ".join(dict.fromkeys(names[0]))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        out.causes.append(Cause(what, f"{what}: {words} ({first}{more})", tuple(n[0] for n in names)))


def _momenta(course: Course) -> dict[str, float]:
    """How much a batch counts in PyTorch, by the name of the statistic."""
    found: dict[str, float] = {}
    runner: Any = course.torch.runner
    for path, module in runner.modules.items():
        momentum = getattr(runner.object(path), "momentum", None)
        if isinstance(momentum, float):
            found |= {name: momentum for attribute, name in module.own if attribute.startswith("running_")}
    return found


# -- the optimizer -----------------------------------------------------------------------------------------------------


def _of_weights(course: Course, ours: Record, theirs: Record, first: Sequence[Difference], out: Explained) -> None:
    """The gradients agree and the steps made of them do not: the optimizers differ."""
    missing = [d for d in first if not theirs.optimized.intersection(d.key[1])]
    extra = [d for d in first if not ours.optimized.intersection(d.key[0])]
    if missing or extra:
        out.causes.append(_frozen(missing or extra, "MindSpore" if missing else "PyTorch"))
        first = [d for d in first if d not in missing and d not in extra]
    steps = min(len(ours.losses), len(theirs.losses), max(_STEPS, first[0].step if first else 0))
    causes, first = of_rates(ours, theirs, first, steps)
    out.causes += causes
    groups: dict[tuple[Any, ...], list[Difference]] = {}
    for d in first[:_LOOKED_AT]:
        if d.key[0][0] in ours.rules:
            way = factors(ours, d.key, 0, ours, steps), factors(theirs, d.key, 1, ours, steps)
            groups.setdefault((based(ours, d.key), *way), []).append(d)
    found: dict[tuple[str, str], list[str]] = {}
    unknown = [d.name for d in first[:_LOOKED_AT] if d.key[0][0] not in ours.rules]
    for (rule, *ways), those in groups.items():
        # One reason for all of them is likelier than one for each.
        parts = [those] if (named := _named(rule, ours, theirs, those, steps, ways)) else [[d] for d in those]
        for part in parts:
            named = named if len(parts) == 1 else _named(rule, ours, theirs, part, steps, ways)
            for reason in named or ():
                found.setdefault(reason, []).extend(d.name for d in part)
            unknown += [] if named else [d.name for d in part]
    for (what, words), names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        out.causes.append(Cause(what, f"{words} ({names[0]}{more})", tuple(names)))
    if unknown and not found:
        known = (
            "a rule of PyTorch's optimizer that is not known here"
            if not ours.rules
            else "no alternative that was tried"
        )
        out.notes.append(f"the gradients agree and the steps do not; {known} explains the step of {unknown[0]}")


def _named(
    rule: Rule,
    ours: Record,
    theirs: Record,
    those: Sequence[Difference],
    steps: int,
    ways: Sequence[tuple[float, ...]],
) -> list[tuple[str, str]] | None:
    keys = [d.key for d in those]
    return alternative(rule, *(seen_of(r, keys, steps, ours, way) for r, way in zip((ours, theirs), ways, strict=True)))
