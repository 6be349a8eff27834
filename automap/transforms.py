"""Changes of arrays on their way from one framework to the other, as values.

A transform takes a list of arrays and gives a list of arrays; a chain of them runs from left to right. It can be
printed and parsed (``transpose(axes=[1, 0])``), it knows the shapes that come out before any array is there, and it
has an inverse. Executing one makes no decision.

A new kind is one subclass of ``Operation`` here and one strategy in the tests.
"""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any, ClassVar

import numpy as np

from automap.dtypes import DTYPES, Array, cast, dtype_name
from automap.errors import TransformError

Shape = tuple[int, ...]
Args = dict[str, Any]


@dataclass(frozen=True)
class Transform:
    """One named operation with its arguments, such as ``Transform("transpose", {"axes": [1, 0]})``.

    Raises:
        TransformError: there is no such operation, or an argument is missing, unknown or of the wrong kind.
    """

    op: str
    args: Args = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.op not in OPERATIONS:
            raise TransformError(f"no transform {self.op!r}; there are {', '.join(OPERATIONS)}")
        # One form for every value: lists and plain integers in the order of the declaration, as JSON has them.
        object.__setattr__(self, "args", OPERATIONS[self.op].checked(self.args))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{k}={json.dumps(v)}' for k, v in self.args.items())})"


class Operation(ABC):
    """A kind of transform: what it does to shapes and arrays, and how it is undone.

    Attributes:
        name: as it is written in a mapping.
        required: its arguments, each with its kind (``axis``, ``axes``, ``sizes``, ``pieces``, ``parts``, ``count``,
            ``dtype``).
        optional: arguments that only its inverse needs, where the shapes do not tell.
    """

    name: ClassVar[str]
    required: ClassVar[dict[str, str]]
    optional: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            OPERATIONS[cls.name] = cls()

    def checked(self, args: Args) -> Args:
        """The arguments in their one form. Raises TransformError where they are not what the operation takes."""
        kinds = self.required | self.optional
        if unknown := [k for k in args if k not in kinds]:
            raise TransformError(f"{self.name} takes {', '.join(kinds)}, not {unknown[0]!r}")
        if missing := [k for k in self.required if k not in args]:
            raise TransformError(f"{self.name} needs {missing[0]!r}")
        return {k: _checked(self.name, k, kind, args[k]) for k, kind in kinds.items() if k in args}

    @abstractmethod
    def count(self, args: Args, n: int) -> int:
        """How many arrays come out when ``n`` go in. Raises TransformError where it does not take ``n``."""

    @abstractmethod
    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """The shapes that come out. Raises TransformError where the operation does not take these."""

    @abstractmethod
    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        """The arrays that come out; views where possible. ``shapes`` has accepted what goes in."""

    @abstractmethod
    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        """The transform that undoes it, given the shapes that go in (None: unknown).

        Raises:
            TransformError: neither the shapes nor the arguments tell how.
        """


OPERATIONS: dict[str, Operation] = {}


class Each(Operation):
    """An operation on every array by itself."""

    def count(self, args: Args, n: int) -> int:
        return n

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(self.shape(args, s) for s in shapes)

    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return [self.one(args, a) for a in arrays]

    @abstractmethod
    def shape(self, args: Args, shape: Shape) -> Shape:
        """The shape that comes out of one array."""

    @abstractmethod
    def one(self, args: Args, array: Array) -> Array:
        """One array, changed."""


class Reshape(Each):
    """Another shape, same elements in the same order. ``before`` is the shape that goes in, for the inverse."""

    name = "reshape"
    required: ClassVar = {"shape": "sizes"}
    optional: ClassVar = {"before": "sizes"}

    def shape(self, args: Args, shape: Shape) -> Shape:
        if prod(shape) != prod(args["shape"]):
            raise TransformError(f"reshape to {args['shape']} does not fit {list(shape)}")
        if "before" in args and list(shape) != args["before"]:
            raise TransformError(f"reshape is from {args['before']}, not from {list(shape)}")
        return tuple(args["shape"])

    def one(self, args: Args, array: Array) -> Array:
        return array.reshape(args["shape"])

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        before = {tuple(args["before"])} if "before" in args else set(shapes)
        shape = before.pop() if len(before) == 1 else None
        if shape is None:
            raise TransformError(f'reshape to {args["shape"]} has no inverse without the shape "before"')
        return Transform("reshape", {"shape": shape, "before": args["shape"]})


class Unflatten(Each):
    """One axis taken apart into several, in order; one of their sizes may be -1, which is then found for each array.

    The view of a fused weight by head, ``unflatten(axis=0, sizes=[heads, 3, -1])``, is the same for weight and bias.
    """

    name = "unflatten"
    required: ClassVar = {"axis": "axis", "sizes": "parts"}

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, sizes = args["axis"], args["sizes"]
        if axis < len(shape):
            rest = prod(n for n in sizes if n >= 0)
            found = [n if n >= 0 else shape[axis] // rest for n in sizes]
            if prod(found) == shape[axis]:
                return (*shape[:axis], *found, *shape[axis + 1 :])
        raise TransformError(f"unflatten of axis {axis} into {sizes} does not fit {list(shape)}")

    def one(self, args: Args, array: Array) -> Array:
        return array.reshape(self.shape(args, array.shape))

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        return Transform("flatten", {"axis": args["axis"], "count": len(args["sizes"]), "before": args["sizes"]})


class Flatten(Each):
    """``count`` adjacent axes joined into one, from ``axis`` on.

    ``before`` are their sizes, for the inverse; one may be -1, where the arrays differ or where it is not known.
    """

    name = "flatten"
    required: ClassVar = {"axis": "axis", "count": "count"}
    optional: ClassVar = {"before": "parts"}

    def checked(self, args: Args) -> Args:
        args = super().checked(args)
        if "before" in args and len(args["before"]) != args["count"]:
            raise TransformError(f"flatten: before must have {args['count']} sizes, not {args['before']}")
        return args

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, end = args["axis"], args["axis"] + args["count"]
        if end > len(shape):
            raise TransformError(f"flatten of {args['count']} axes from {axis} on does not fit {list(shape)}")
        if any(n not in (-1, size) for n, size in zip(args.get("before", ()), shape[axis:end], strict=False)):
            raise TransformError(f"flatten from axis {axis} on is of {args['before']}, not of {list(shape[axis:end])}")
        return (*shape[:axis], prod(shape[axis:end]), *shape[end:])

    def one(self, args: Args, array: Array) -> Array:
        return array.reshape(self.shape(args, array.shape))

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        axis, count = args["axis"], args["count"]
        sizes = args.get("before")
        if sizes is None:
            known = {s[axis : axis + count] for s in shapes if s is not None}
            if not known or None in shapes:
                raise TransformError('flatten has no inverse without the sizes "before"')
            # -1 where the arrays differ, as the parts of a projection do that is taken apart by heads.
            sizes = [n[0] if len(set(n)) == 1 else -1 for n in zip(*known, strict=True)]
            if sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes):
                differ = ", ".join(str(list(n)) for n in sorted(known))
                raise TransformError(f"flatten of axes of the sizes {differ} has no inverse that is the same for all")
        return Transform("unflatten", {"axis": axis, "sizes": sizes})


class Transpose(Each):
    """Another order of the axes, as ``numpy.transpose`` has it."""

    name = "transpose"
    required: ClassVar = {"axes": "axes"}

    def shape(self, args: Args, shape: Shape) -> Shape:
        if len(shape) != len(args["axes"]):
            raise TransformError(f"transpose by {args['axes']} does not fit {list(shape)}")
        return tuple(shape[a] for a in args["axes"])

    def one(self, args: Args, array: Array) -> Array:
        return array.transpose(args["axes"])

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        return Transform("transpose", {"axes": [args["axes"].index(i) for i in range(len(args["axes"]))]})


class Concat(Operation):
    """All arrays joined along an axis they have. ``sizes`` are their sizes along it, for the inverse."""

    name = "concat"
    required: ClassVar = {"axis": "axis"}
    optional: ClassVar = {"sizes": "pieces"}

    def count(self, args: Args, n: int) -> int:
        expected = len(args["sizes"]) if "sizes" in args else max(n, 1)
        if n != expected:
            raise TransformError(f"concat of {expected} array(s) is given {n}")
        return 1

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        axis = args["axis"]
        rest = {s[:axis] + s[axis + 1 :] for s in shapes if axis < len(s)}
        if len(rest) != 1 or len({len(s) for s in shapes}) != 1:
            raise TransformError(f"concat along axis {axis} does not fit {', '.join(str(list(s)) for s in shapes)}")
        sizes = [s[axis] for s in shapes]
        if args.get("sizes", sizes) != sizes:
            raise TransformError(f"concat of sizes {args['sizes']} along axis {axis} is given {sizes}")
        first = shapes[0]
        return ((*first[:axis], sum(sizes), *first[axis + 1 :]),)

    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return [np.concatenate(arrays, args["axis"])]

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        known = [s[args["axis"]] for s in shapes if s is not None]
        sizes = args.get("sizes", known)
        if len(sizes) != len(shapes):
            raise TransformError('concat has no inverse without its "sizes"')
        return Transform("split", {"axis": args["axis"], "sizes": sizes})


class Split(Operation):
    """One array cut along an axis into pieces of the given sizes."""

    name = "split"
    required: ClassVar = {"axis": "axis", "sizes": "pieces"}

    def count(self, args: Args, n: int) -> int:
        if n != 1:
            raise TransformError(f"split takes one array, not {n}")
        return len(args["sizes"])

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        axis, (shape,) = args["axis"], shapes
        if axis >= len(shape) or shape[axis] != sum(args["sizes"]):
            raise TransformError(f"split into {args['sizes']} along axis {axis} does not fit {list(shape)}")
        return tuple((*shape[:axis], n, *shape[axis + 1 :]) for n in args["sizes"])

    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return list(np.split(arrays[0], list(accumulate(args["sizes"]))[:-1], args["axis"]))

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        return Transform("concat", args)


class Stack(Operation):
    """All arrays, of one shape, joined along a new axis."""

    name = "stack"
    required: ClassVar = {"axis": "axis"}

    def count(self, args: Args, n: int) -> int:
        if n < 1:
            raise TransformError("stack takes at least one array")
        return 1

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        first = shapes[0]
        if len(set(shapes)) != 1 or args["axis"] > len(first):
            raise TransformError(
                f"stack along axis {args['axis']} does not fit {', '.join(str(list(s)) for s in shapes)}"
            )
        return ((*first[: args["axis"]], len(shapes), *first[args["axis"] :]),)

    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return [np.stack(arrays, args["axis"])]

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        return Transform("unstack", {"axis": args["axis"], "count": len(shapes)})


class Unstack(Operation):
    """One array taken apart along an axis, which goes away."""

    name = "unstack"
    required: ClassVar = {"axis": "axis", "count": "count"}

    def count(self, args: Args, n: int) -> int:
        if n != 1:
            raise TransformError(f"unstack takes one array, not {n}")
        return int(args["count"])

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        n = self.count(args, len(shapes))
        axis, (shape,) = args["axis"], shapes
        if axis >= len(shape) or shape[axis] != n:
            raise TransformError(f"unstack of {n} along axis {axis} does not fit {list(shape)}")
        return ((*shape[:axis], *shape[axis + 1 :]),) * n

    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return list(np.moveaxis(arrays[0], args["axis"], 0))

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        return Transform("stack", {"axis": args["axis"]})


class Reorder(Operation):
    """The same arrays in another order: ``places`` are where each of them stood, ``[1, 0]`` for two exchanged."""

    name = "reorder"
    required: ClassVar = {"places": "axes"}

    def count(self, args: Args, n: int) -> int:
        if n != len(args["places"]):
            raise TransformError(f"reorder to {args['places']} takes {len(args['places'])} arrays, not {n}")
        return n

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        return tuple(shapes[i] for i in args["places"])

    def run(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return [arrays[i] for i in args["places"]]

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        places = args["places"]
        return Transform("reorder", {"places": [places.index(i) for i in range(len(places))]})


class Cast(Each):
    """Another element type, rounded to nearest. ``before`` is the type that goes in, for the inverse.

    Values that are out of the range of the type, or that a whole number cannot hold, are an error.
    """

    name = "cast"
    required: ClassVar = {"dtype": "dtype"}
    optional: ClassVar = {"before": "dtype"}

    def shape(self, args: Args, shape: Shape) -> Shape:
        return shape

    def one(self, args: Args, array: Array) -> Array:
        if args.get("before", dtype_name(array)) != dtype_name(array):
            raise TransformError(f"cast is from {args['before']}, not from {dtype_name(array)}")
        new, loss = cast(array, args["dtype"])
        if loss.overflow or loss.inexact:
            raise TransformError(f"cast to {args['dtype']} cannot hold {loss.overflow + loss.inexact} value(s)")
        return new

    def inverse(self, args: Args, shapes: Sequence[Shape | None]) -> Transform:
        if "before" not in args:
            raise TransformError(f'cast to {args["dtype"]} has no inverse without the type "before"')
        return Transform("cast", {"dtype": args["before"], "before": args["dtype"]})


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


def apply(transforms: Iterable[Transform], arrays: Iterable[Array]) -> tuple[Array, ...]:
    """The arrays that a chain makes of these arrays: views of them where possible, at most one copy a step.

    Raises:
        TransformError: a step does not fit what it is given.
    """
    now = list(arrays)
    for t in transforms:
        operation = OPERATIONS[t.op]
        operation.shapes(t.args, [a.shape for a in now])
        now = operation.run(t.args, now)
    return tuple(now)


def inverse(transforms: Sequence[Transform], shapes: Iterable[Sequence[int] | None]) -> tuple[Transform, ...]:
    """The chain that undoes a chain.

    Args:
        transforms: the chain.
        shapes: the shapes that go into it, one for each array; None where unknown.

    Raises:
        TransformError: a step cannot be undone from what the shapes and its own arguments tell.
    """
    now: list[Shape | None] = [None if s is None else tuple(s) for s in shapes]
    undone: list[Transform] = []
    for t in transforms:
        operation = OPERATIONS[t.op]
        undone.append(operation.inverse(t.args, now))
        known = [s for s in now if s is not None]
        if len(known) == len(now):
            now = list(operation.shapes(t.args, known))
        else:
            after = operation.count(t.args, len(now))
            now = [tuple(t.args["shape"]) if t.op == "reshape" else None] * after
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
                return [Transform(op, {k.arg or "**": ast.literal_eval(k.value) for k in keywords})]
        raise ValueError

    if not text.strip():
        return ()
    try:
        return tuple(steps(ast.parse(text.strip(), mode="eval").body))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise TransformError(f"{text!r} is no transform; one looks like transpose(axes=[1, 0])") from None


def _checked(op: str, arg: str, kind: str, value: Any) -> Any:
    """An argument in its one form, or TransformError."""
    if kind == "dtype":
        if isinstance(value, str) and value in DTYPES:
            return value
        raise TransformError(f"{op}: {arg} must be one of {', '.join(DTYPES)}, not {value!r}")
    if kind in ("axis", "count"):
        if _is_size(value) and (kind == "axis" or value > 0):
            return int(value)
        raise TransformError(f"{op}: {arg} must be a whole number from {int(kind == 'count')} on, not {value!r}")
    if kind == "parts":
        if not isinstance(value, list | tuple) or not value or [v for v in value if not _is_size(v)] not in ([], [-1]):
            raise TransformError(f"{op}: {arg} must be a list of whole numbers, one of them -1 at most, not {value!r}")
        if -1 in value and 0 in value:
            raise TransformError(f"{op}: {arg} has a 0 beside the -1, which could then be anything: {list(value)}")
        return [int(v) for v in value]
    if not isinstance(value, list | tuple) or not all(map(_is_size, value)) or (kind == "pieces" and not value):
        raise TransformError(f"{op}: {arg} must be a list of whole numbers from 0 on, not {value!r}")
    numbers = [int(v) for v in value]
    if kind == "axes" and sorted(numbers) != list(range(len(numbers))):
        raise TransformError(f"{op}: {arg} must name every axis once, such as [1, 0], not {numbers}")
    return numbers


def _is_size(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0
