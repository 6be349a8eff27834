"""Changes of arrays on their way from one framework to the other, as values.

A transform takes a list of arrays and gives a list of arrays; a chain of them runs from left to right. It can be
printed and parsed (``transpose(axes=[1, 0])``), it knows the shapes that come out before any array is there, and it
has an inverse, or says why not. Executing one makes no decision. What kinds there are: see ``automap.steps``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import automap.steps_layout
import automap.steps_numbers
import automap.steps_size  # noqa: F401  # these three fill the table of operations
from automap.dtypes import Array
from automap.errors import TransformError
from automap.steps import OPERATIONS, Args, DType, Form, Operation, Shape, Transform

__all__ = [
    "OPERATIONS",
    "Transform",
    "apply",
    "count_after",
    "dtypes_after",
    "from_json",
    "from_text",
    "inverse",
    "shape_after",
    "to_json",
    "to_text",
]

Step = tuple[Operation, Args]

#: What JSON writes in another way than Python.
_WORDS = {"true": True, "false": False}


def count_after(transforms: Iterable[Transform], n: int) -> int:
    """How many arrays a chain gives when ``n`` go in. Raises TransformError where it does not take ``n``."""
    for t in transforms:
        n = OPERATIONS[t.op].count(t.args, n)
    return n


def shape_after(transforms: Iterable[Transform], shapes: Iterable[Sequence[int]]) -> tuple[Shape, ...]:
    """The shapes that a chain makes of these shapes. Raises TransformError, naming the step, where it does not fit."""
    now = tuple(tuple(s) for s in shapes)
    for t in transforms:
        now = OPERATIONS[t.op].shapes(t.args, now)
    return now


def dtypes_after(transforms: Iterable[Transform], dtypes: Iterable[DType]) -> tuple[DType, ...]:
    """The element types that a chain makes of these. Raises TransformError, naming the step, where it cannot."""
    now = tuple(dtypes)
    for t in transforms:
        now = OPERATIONS[t.op].dtypes(t.args, now)
    return now


def apply(transforms: Iterable[Transform], arrays: Iterable[Array]) -> tuple[Array, ...]:
    """The arrays that a chain makes of these arrays: views of them where possible.

    Otherwise they are copied once, straight to where the following steps want them. (A step that computes writes what
    it makes in this way; several of them in one chain make a copy each.)

    Raises:
        TransformError: a step does not fit what it is given.
    """
    now = list(arrays)
    steps: list[Step] = [(OPERATIONS[t.op], t.args) for t in transforms]
    shapes: list[tuple[Shape, ...]] = [tuple(a.shape for a in now)]
    dtypes: list[tuple[DType, ...]] = [tuple(a.dtype for a in now)]
    for operation, args in steps:
        shapes.append(operation.shapes(args, shapes[-1]))
        dtypes.append(operation.dtypes(args, dtypes[-1]))
    at = 0
    while at < len(steps):
        operation, args = steps[at]
        if (seen := operation.views(args, now)) is not None:
            now, at = seen, at + 1
            continue
        end = len(steps)
        while end > at + 1 and _plan(steps[at:end], shapes[at:end], _hollow(shapes[end], dtypes[end])) is None:
            end -= 1
        made: list[Array] = [np.empty(s, d) for s, d in zip(shapes[end], dtypes[end], strict=True)]
        plan = _plan(steps[at:end], shapes[at:end], made)
        assert plan is not None, operation  # one step alone can always be written in one piece
        write, places = plan
        write(now, places)
        now, at = made, end
    return tuple(now)


def _plan(
    steps: Sequence[Step], shapes: Sequence[Sequence[Shape]], out: Sequence[Array]
) -> tuple[Callable[[Sequence[Array], Sequence[Array]], None], Sequence[Array]] | None:
    """How to fill ``out`` with what some steps make, without anything in between: what to call, and with which arrays.

    That works for steps that put elements elsewhere, which are followed backwards from where the elements arrive; and
    for one that computes, if it is the first, or if it takes every element by itself.
    """
    write: Callable[[Sequence[Array], Sequence[Array]], None] | None = None
    for i in reversed(range(len(steps))):
        operation, args = steps[i]
        places = operation.places(args, shapes[i], out)
        if places is not None:
            out = places
        elif write is None and operation.fills and (operation.elementwise or i == 0):
            write = _writer(operation, args)
        else:
            return None
    return write or _copy, out


def _writer(operation: Operation, args: Args) -> Callable[[Sequence[Array], Sequence[Array]], None]:
    return lambda arrays, out: operation.write(args, arrays, out)


def _copy(arrays: Sequence[Array], out: Sequence[Array]) -> None:
    for a, b in zip(arrays, out, strict=True):
        b[...] = a


def _hollow(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> list[Array]:
    """Arrays without memory behind them, to find out which views of real ones there would be."""
    hollow = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        strides, step = [], dtype.itemsize
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        hollow.append(as_strided(np.empty(1, dtype), shape, tuple(reversed(strides))))
    return hollow


def inverse(transforms: Sequence[Transform], shapes: Iterable[Sequence[int] | None]) -> tuple[Transform, ...]:
    """The chain that undoes a chain.

    Args:
        transforms: the chain.
        shapes: the shapes that go into it, one for each array; None where unknown.

    Raises:
        TransformError: a step cannot be undone from what the shapes and its own arguments tell.
    """
    now = [Form.of(s) for s in shapes]
    undone: list[Transform] = []
    for t in transforms:
        operation = OPERATIONS[t.op]
        undone.append(operation.inverse(t.args, now))
        now = operation.forms(t.args, now)
    return tuple(reversed(undone))


def to_json(transforms: Iterable[Transform]) -> list[dict[str, Any]]:
    """A chain as JSON values: ``[{"op": "split", "axis": 0, "sizes": [64, 64]}]``."""
    return [{"op": t.op, **t.args} for t in transforms]


def from_json(value: object) -> tuple[Transform, ...]:
    """A chain from the JSON values of ``to_json``. Raises TransformError where they are not."""
    if not isinstance(value, list):
        raise TransformError(f'a transform is a list of {{"op": …}}, not {value!r}')
    chain = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("op"), str):
            raise TransformError(f'a step of a transform is {{"op": name, …}}, not {item!r}')
        chain.append(Transform(item["op"], {k: v for k, v in item.items() if k != "op"}))
    return tuple(chain)


def to_text(transforms: Iterable[Transform]) -> str:
    """A chain as one line: ``transpose(axes=[1, 0]) | reshape(shape=[6])``; ``""`` for none."""
    return " | ".join(str(t) for t in transforms)


def from_text(text: str) -> tuple[Transform, ...]:
    """A chain from the line that ``to_text`` writes. Raises TransformError where it is not one."""

    def steps(node: ast.expr) -> list[Transform]:
        match node:
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return steps(left) + steps(right)
            case ast.Call(func=ast.Name(id=op), args=[], keywords=keywords):
                return [Transform(op, {k.arg or "**": value(k.value) for k in keywords})]
        raise ValueError

    def value(node: ast.expr) -> object:
        if isinstance(node, ast.Name) and node.id in _WORDS:
            return _WORDS[node.id]
        return ast.literal_eval(node)

    if not text.strip():
        return ()
    try:
        return tuple(steps(ast.parse(text.strip(), mode="eval").body))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise TransformError(f"{text!r} is no transform; one looks like transpose(axes=[1, 0])") from None
