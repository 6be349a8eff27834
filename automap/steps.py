"""What a step of a transform is: one named change of arrays, as a value, and the kind of operation behind it.

The kinds live in the modules beside this one, by what they do: ``steps_layout`` (the same elements elsewhere),
``steps_size`` (elements more or fewer) and ``steps_numbers`` (other numbers). A new kind is one subclass of
``Operation`` there and one strategy in the tests.

Large arrays are changed without a copy where a view will do, and with one copy where not. For that a kind says what
comes out as views of what goes in (``views``), or where in arrays to be filled the arrays that go in belong
(``places``), or how to fill them (``write``). ``automap.transforms.apply`` puts these together.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from automap.dtypes import DTYPES, Array, cast, dtype_name, is_float, widen
from automap.errors import TransformError

Shape = tuple[int, ...]
Args = dict[str, Any]
DType = np.dtype[Any]


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
        # One form for every value: lists and plain numbers in the order of the declaration, as JSON has them.
        object.__setattr__(self, "args", OPERATIONS[self.op].checked(self.args))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{k}={json.dumps(v)}' for k, v in self.args.items())})"


@dataclass(frozen=True)
class Form:
    """What is known of a shape before any array is there.

    Attributes:
        sizes: the sizes that are known, by axis.
        rank: how many axes there are, or None.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    rank: int | None = None

    @classmethod
    def of(cls, shape: Sequence[int] | None) -> Form:
        """All of a shape, or nothing."""
        return cls() if shape is None else cls(dict(enumerate(shape)), len(shape))

    @property
    def whole(self) -> Shape | None:
        """The shape, if all of it is known."""
        if self.rank is None or len(self.sizes) < self.rank:
            return None
        return tuple(self.sizes[i] for i in range(self.rank))

    def at(self, axis: int, count: int = 1) -> list[int | None]:
        """The sizes of so many axes, None where one is not known."""
        return [self.sizes.get(i) for i in range(axis, axis + count)]

    def cut(self, axis: int, count: int, sizes: Sequence[int | None]) -> Form:
        """The same with other sizes in the place of so many axes."""
        more = len(sizes) - count
        kept = {i if i < axis else i + more: n for i, n in self.sizes.items() if not axis <= i < axis + count}
        made = {axis + i: n for i, n in enumerate(sizes) if n is not None}
        return Form(kept | made, None if self.rank is None else self.rank + more)


class Operation(ABC):
    """A kind of transform: what it does to shapes and arrays, and how it is undone.

    Attributes:
        name: as it is written in a mapping.
        required: its arguments, each with its kind; ``_checked`` says what there is.
        optional: arguments that only its inverse needs, where the shapes do not tell, or that have a default.
        fills: whether it has a ``write`` (or ``fill``) of its own.
        elementwise: whether that changes every element by itself, wherever it is.
    """

    name: ClassVar[str]
    required: ClassVar[dict[str, str]]
    optional: ClassVar[dict[str, str]] = {}
    fills: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False

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

    def forms(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        """What is known of the shapes that come out. Raises TransformError where the operation does not take these."""
        whole = [f.whole for f in forms if f.whole is not None]
        if len(whole) == len(forms):
            return [Form.of(s) for s in self.shapes(args, whole)]
        self.count(args, len(forms))
        return self.guess(args, forms)

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        """``forms`` where not all is known. Nothing is, unless a kind says more."""
        return [Form()] * self.count(args, len(forms))

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        """The element types that come out. Raises TransformError where the operation does not take these."""
        if len(set(dtypes)) > 1 and any(d.names for d in dtypes):
            names = " and ".join(dict.fromkeys(map(named, dtypes)))
            raise TransformError(f"{self.name} cannot join {names}: cast one of them first")
        return (np.result_type(*dtypes) if len(set(dtypes)) > 1 else dtypes[0],) * self.count(args, len(dtypes))

    def views(self, args: Args, arrays: Sequence[Array]) -> list[Array] | None:
        """What comes out, as views of what goes in; None where it cannot be had without a copy."""
        return None

    def places(self, args: Args, shapes: Sequence[Shape], out: Sequence[Array]) -> list[Array] | None:
        """Views of what is to come out, one for each array that goes in (of these shapes), to copy it there.

        None where there are no such views, or where it takes more than copying.
        """
        return None

    def write(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        """Fill the arrays that come out. Only needed where there may be neither ``views`` nor ``places``."""
        raise NotImplementedError

    @abstractmethod
    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        """The transform that undoes it, given what is known of the shapes that go in.

        Raises:
            TransformError: there is none, or neither the shapes nor the arguments tell how.
        """


OPERATIONS: dict[str, Operation] = {}


class Each(Operation):
    """An operation on every array by itself."""

    def count(self, args: Args, n: int) -> int:
        return n

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(self.shape(args, s) for s in shapes)

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        return tuple(dtypes)

    def views(self, args: Args, arrays: Sequence[Array]) -> list[Array] | None:
        views = [self.view(args, a) for a in arrays]
        return None if any(v is None for v in views) else [v for v in views if v is not None]

    def places(self, args: Args, shapes: Sequence[Shape], out: Sequence[Array]) -> list[Array] | None:
        places = [self.place(args, s, a) for s, a in zip(shapes, out, strict=True)]
        return None if any(p is None for p in places) else [p for p in places if p is not None]

    def write(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        for a, b in zip(arrays, out, strict=True):
            self.fill(args, a, b)

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        return [self.form(args, f) for f in forms]

    @abstractmethod
    def shape(self, args: Args, shape: Shape) -> Shape:
        """The shape that comes out of one array."""

    def form(self, args: Args, form: Form) -> Form:
        """``guess`` for one array."""
        return Form()

    def view(self, args: Args, array: Array) -> Array | None:
        """``views`` for one array."""
        return None

    def place(self, args: Args, shape: Shape, out: Array) -> Array | None:
        """``places`` for one array."""
        return None

    def fill(self, args: Args, array: Array, out: Array) -> None:
        """``write`` for one array."""
        raise NotImplementedError


class SameShape(Each):
    """An operation on every array by itself that leaves it in its shape."""

    def shape(self, args: Args, shape: Shape) -> Shape:
        return shape

    def form(self, args: Args, form: Form) -> Form:
        return form


def reshaped(array: Array, shape: Sequence[int]) -> Array | None:
    """An array in another shape, as a view; None where its elements are not in one order."""
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        try:
            return np.reshape(array, tuple(shape), copy=False)  # type: ignore[call-overload,no-any-return]
        except ValueError:
            return None
    view = array.view()
    try:
        view.shape = tuple(shape)
    except AttributeError:
        return None
    return view


def along(axis: int, part: slice) -> tuple[slice, ...]:
    """The index of a part along one axis."""
    return (*(slice(None),) * axis, part)


def sized(shape: Shape, axis: int, size: int) -> Shape:
    """A shape with another size along one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def named(dtype: DType) -> str:
    """The name of an element type, such as ``bfloat16``."""
    return dtype_name(np.empty(0, dtype))


def listed(shapes: Sequence[Shape]) -> str:
    """Shapes for a message."""
    return ", ".join(str(list(s)) for s in shapes)


# -- numbers ----------------------------------------------------------------------------------------------------------


#: How many numbers are computed at a time: their copies in float64 take little beside a large array, and fit a cache.
BLOCK = 1 << 15


def blocks(shape: Shape, limit: int = BLOCK) -> Iterator[tuple[slice, ...]]:
    """The parts of an array of this shape, of ``limit`` elements at most, as indices that keep all its axes."""
    if math.prod(shape) <= limit:
        yield (slice(None),) * len(shape)
    elif math.prod(shape[1:]) <= limit:
        step = limit // math.prod(shape[1:])
        for start in range(0, shape[0], step):
            yield (slice(start, start + step), *(slice(None),) * (len(shape) - 1))
    else:
        for i in range(shape[0]):
            for rest in blocks(shape[1:], limit):
                yield (slice(i, i + 1), *rest)


def values(array: Array) -> Array:
    """The numbers of a (small) array or block, to compute with."""
    return widen(array).astype(np.float64)


def store(op: str, numbers: Array, out: Array) -> None:
    """Write computed numbers, rounded to the element type of ``out``.

    Raises:
        TransformError: a finite number is out of the range of this type.
    """
    new, loss = cast(numbers, dtype_name(out))
    if loss.overflow:
        raise TransformError(f"{op}: {loss.overflow} value(s) are out of the range of {dtype_name(out)}")
    out[...] = new


def floats(op: str, dtypes: Sequence[DType]) -> None:
    """Raise a TransformError where an array does not hold floating-point numbers."""
    for d in dtypes:
        if not is_float(named(d)):
            raise TransformError(f"{op} takes floating-point numbers, not {named(d)}")


# -- arguments --------------------------------------------------------------------------------------------------------


def _checked(op: str, arg: str, kind: str, value: Any) -> Any:
    """An argument in its one form, or TransformError.

    The kinds: ``axis`` (from 0 on), ``count`` (from 1 on), ``sizes``, ``pieces`` (at least one size), ``parts`` (one of
    them may be -1), ``axes`` and ``order`` (every number from 0 on once), ``number``, ``flag``, ``dtype``, and any
    other word: one of the words in it, with ``|`` between them.
    """
    if kind == "dtype":
        kind = "|".join(DTYPES)
    if "|" in kind:
        if isinstance(value, str) and value in kind.split("|"):
            return value
        raise TransformError(f"{op}: {arg} must be one of {', '.join(kind.split('|'))}, not {value!r}")
    if kind == "flag":
        if isinstance(value, bool):
            return value
        raise TransformError(f"{op}: {arg} must be true or false, not {value!r}")
    if kind == "number":
        if isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise TransformError(f"{op}: {arg} must be a number, not {value!r}")
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
    if kind in ("axes", "order") and sorted(numbers) != list(range(len(numbers))):
        what = "axis" if kind == "axes" else "position"
        raise TransformError(f"{op}: {arg} must name every {what} once, such as [1, 0], not {numbers}")
    return numbers


def _is_size(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0
