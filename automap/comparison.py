"""Outputs of two networks compared one by one: how far apart, where, how many elements, and what was allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from automap.dtypes import Array

#: What two right implementations may differ by, relative to the greatest value of an output, by the coarsest element
#: type on the way. float32 leaves room for some 80 roundings; the rest follows PyTorch's own table.
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}

#: How far rounding moves a value is known from samples; the greatest difference may be so many times larger.
SPREAD = 8.0

#: In the place of an output, where there is none because the port raises an error.
REFUSED = "the run"

#: Whether the numbers differ, or already the form of the outputs.
Problem = Literal["", "values", "shape", "structure", "not a number"]


@dataclass(frozen=True)
class Comparison:
    """One output of both networks.

    Attributes:
        where: the place in the outputs, such as ``output[0]['logits']``.
        run: which of the runs, from 0.
        problem: ``""`` if they agree.
        words: one sentence on it.
        shape: the output's shape in PyTorch.
        scale: the greatest absolute value that PyTorch gives.
        absolute: the greatest absolute difference.
        relative: the greatest difference relative to PyTorch's value at the same place.
        to_scale: ``absolute`` relative to ``scale``.
        allowed: what was allowed of ``absolute``.
        differing: how many elements differ by more than that.
        total: how many elements there are.
        index: where the greatest difference is.
        torch: PyTorch's value there.
        mindspore: MindSpore's value there.
    """

    where: str
    run: int
    problem: Problem
    words: str
    shape: tuple[int, ...] = ()
    scale: float = 0.0
    absolute: float = 0.0
    relative: float = 0.0
    to_scale: float = 0.0
    allowed: float = 0.0
    differing: int = 0
    total: int = 0
    index: tuple[int, ...] = ()
    torch: float = 0.0
    mindspore: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return not self.problem


@dataclass(frozen=True)
class Pairing:
    """The outputs of both networks brought together.

    Attributes:
        pairs: the place and both arrays, for every output that both have.
        problems: one sentence for every place where the form differs.
        ignored: one sentence for every place that holds no numbers on either side.
    """

    pairs: tuple[tuple[str, Array, Array], ...]
    problems: tuple[tuple[str, str], ...]
    ignored: tuple[str, ...]


def pair(torch: Any, mindspore: Any) -> Pairing:
    """Bring nested outputs together: two dicts by their keys, everything else by position.

    A container of one thing stands for the thing itself; PyTorch's model outputs are dicts, and ports often return
    the same things as a tuple.
    """
    pairs: list[tuple[str, Array, Array]] = []
    problems: list[tuple[str, str]] = []
    ignored: list[str] = []

    def visit(where: str, a: Any, b: Any) -> None:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            pairs.append((where, a, b))
        elif isinstance(a, Mapping) and isinstance(b, Mapping):
            for key in a.keys() | b.keys():
                if key not in a or key not in b:
                    side = "PyTorch" if key in a else "MindSpore"
                    problems.append((where, f"only {side} gives {where}[{key!r}]"))
            for key in (k for k in a if k in b):
                visit(f"{where}[{key!r}]", a[key], b[key])
        elif (isinstance(a, (tuple, Mapping)) or isinstance(b, (tuple, Mapping))) and not _bare(a) and not _bare(b):
            left, right = _members(where, a), _members(where, b)
            if len(left) == len(right):
                for (place, x), (_, y) in zip(left, right, strict=True):
                    visit(place, x, y)
            else:
                problems.append((where, f"{where} has {len(left)} part(s) in PyTorch, {len(right)} in MindSpore"))
        elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            problems.append((where, f"{where} is {_kind(a)} in PyTorch, {_kind(b)} in MindSpore"))
        elif a is not None or b is not None:
            ignored.append(f"{where} ({_kind(a)}) holds no numbers and was not compared")

    visit("output", torch, mindspore)
    return Pairing(tuple(pairs), tuple(sorted(problems)), tuple(ignored))


def _bare(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _members(where: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"{where}[{key!r}]", v) for key, v in value.items()]
    if isinstance(value, tuple):
        return [(f"{where}[{i}]", v) for i, v in enumerate(value)]
    return [(where, value)]


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "an array"
    if isinstance(value, Mapping):
        return f"a dict of {len(value)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "nothing" if value is None else str(value)


def scale_of(array: Array) -> float:
    """The greatest absolute finite value, 0.0 if there is none."""
    if array.dtype.kind not in "fc":
        return float(np.abs(array.astype(np.float64)).max(initial=0.0))
    return float(np.abs(array[np.isfinite(array)]).astype(np.float64).max(initial=0.0))


def allowance(dtypes: Iterable[str], scale: float, spread: float) -> float:
    """The greatest absolute difference of two right implementations.

    Args:
        dtypes: the element types on the way.
        scale: the greatest absolute value of the output.
        spread: how far rounding, and the error of kernels, were seen to move it.
    """
    return max(max((TOLERANCE.get(d, 0.0) for d in dtypes), default=0.0) * scale, SPREAD * spread)


def moved(outputs: Any, others: Any) -> dict[str, float]:
    """How far each output is from the same one of another run, by its place; only numbers that are not whole count."""
    found: dict[str, float] = {}
    for where, a, b in pair(outputs, others).pairs:
        if a.shape == b.shape and a.dtype.kind in "fc":
            with np.errstate(invalid="ignore"):
                found[where] = scale_of(np.abs(a - b))
    return found


def compare(where: str, run: int, torch: Array, mindspore: Array, allowed: float) -> Comparison:
    """Compare one output element by element.

    Args:
        where: its place, for the words.
        run: which run it is from.
        torch: what PyTorch gives; its values are the ones expected.
        mindspore: what MindSpore gives.
        allowed: the greatest absolute difference that counts as agreement; whole numbers and truth values have to be
            equal. A value that is not a number never agrees; infinities agree with themselves.
    """
    if torch.shape != mindspore.shape:
        words = f"{where} has the shape {_shape(torch)} in PyTorch, {_shape(mindspore)} in MindSpore"
        return Comparison(where, run, "shape", words, torch.shape)
    if torch.dtype.kind not in "fc" and mindspore.dtype.kind not in "fc":
        allowed = 0.0
    wide = np.complex128 if "c" in (torch.dtype.kind, mindspore.dtype.kind) else np.float64
    a, b = torch.astype(wide), mindspore.astype(wide)
    total, scale = a.size, scale_of(torch)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(a == b, 0.0, np.abs(a - b))
    nan = np.isnan(a) | np.isnan(b)
    distance[nan] = np.inf
    differing = int(np.count_nonzero(distance > allowed))
    if not total:
        return Comparison(where, run, "", f"{where} is empty in both", torch.shape, allowed=allowed)
    at = np.unravel_index(int(distance.argmax()), distance.shape) if distance.shape else ()
    index = tuple(int(i) for i in at)
    absolute = float(distance[index])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(distance == 0, 0.0, distance / np.abs(a))
    relative = float(np.nan_to_num(ratios, nan=np.inf).max())
    to_scale = absolute / scale if scale else (0.0 if absolute == 0 else math.inf)
    place = f"{where}{list(index)}" if index else where
    values = f"{_number(a[index])} in PyTorch, {_number(b[index])} in MindSpore"
    problem: Problem = ""
    if nan.any():
        problem = "not a number"
        words = f"{where} has {int(nan.sum())} of {total} element(s) that are not a number, first at {place}: {values}"
    elif differing:
        problem = "values"
        words = (
            f"{where} differs in {differing} of {total} element(s), most at {place}: {values}; "
            f"off by {absolute:.2g}, {_share(absolute, scale)}; allowed {_share(allowed, scale)}"
        )
    else:
        words = f"{where} agrees: off by at most {_share(absolute, scale)}; allowed {_share(allowed, scale)}"
    return Comparison(
        where,
        run,
        problem,
        words,
        torch.shape,
        scale,
        absolute,
        relative,
        to_scale,
        allowed,
        differing,
        total,
        index,
        float(np.real(a[index])),
        float(np.real(b[index])),
    )


def _share(difference: float, scale: float) -> str:
    """A difference in words: relative to the scale of the output, where it has one."""
    return f"{difference / scale:.2g} of its scale" if scale else f"{difference:.2g}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if np.isrealobj(value) else f"{complex(value):.6g}"


def _shape(array: Array) -> str:
    return str(list(array.shape))
