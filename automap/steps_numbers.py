"""Steps that compute: other element types, and weights that one framework keeps as the product or sum of several.

They compute in float64, a block at a time, and round to the element type that goes in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar, TypeVar

import numpy as np

from automap.dtypes import DTYPES, Array, cast, dtype_name
from automap.errors import TransformError
from automap.steps import (
    BLOCK,
    Args,
    DType,
    Form,
    Operation,
    SameShape,
    Shape,
    Transform,
    blocks,
    floats,
    listed,
    named,
    reshaped,
    store,
    values,
)

T = TypeVar("T")


class Cast(SameShape):
    """Another element type, rounded to nearest. ``before`` is the type that goes in, for the inverse.

    Values that are out of the range of the type, or that a whole number cannot hold, are an error.
    """

    name = "cast"
    required: ClassVar = {"dtype": "dtype"}
    optional: ClassVar = {"before": "dtype"}
    fills = True
    elementwise = True

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        for name in map(named, dtypes):
            if args.get("before", name) != name:
                raise TransformError(f"cast is from {args['before']}, not from {name}")
        return (DTYPES[args["dtype"]],) * len(dtypes)

    def view(self, args: Args, array: Array) -> Array | None:
        return array if dtype_name(array) == args["dtype"] else None

    def fill(self, args: Args, array: Array, out: Array) -> None:
        lost = 0
        for block in blocks(array.shape):
            out[block], loss = cast(array[block], args["dtype"])
            lost += loss.overflow + loss.inexact
        if lost:
            raise TransformError(f"cast to {args['dtype']} cannot hold {lost} value(s)")

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        if "before" not in args:
            raise TransformError(f'cast to {args["dtype"]} has no inverse without the type "before"')
        return Transform("cast", {"dtype": args["before"], "before": args["dtype"]})


class Scale(SameShape):
    """Every element times a factor. The inverse multiplies by one over it, which may differ in the last bit."""

    name = "scale"
    required: ClassVar = {"factor": "number"}
    fills = True
    elementwise = True

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        floats(self.name, dtypes)
        return tuple(dtypes)

    def fill(self, args: Args, array: Array, out: Array) -> None:
        for block in blocks(array.shape):
            store(self.name, values(array[block]) * args["factor"], out[block])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        if not args["factor"]:
            raise TransformError("scale by 0 has no inverse")
        return Transform("scale", {"factor": 1 / args["factor"]})


class Computed(Operation):
    """An operation on a fixed number of floating-point arrays. What comes out has the element type of one of them.

    Attributes:
        given: how many arrays it takes.
        main: which of them has this element type.
        several: whether it takes so many arrays for several, one after the other.
    """

    given: ClassVar[tuple[int, ...]]
    made: ClassVar[int] = 1
    main: ClassVar[int] = 0
    several: ClassVar[bool] = False
    fills = True

    def count(self, args: Args, n: int) -> int:
        if self.several and n and n % self.given[0] == 0:
            return n // self.given[0] * self.made
        if n not in self.given:
            each = " for each weight" * self.several
            raise TransformError(f"{self.name} takes {' or '.join(map(str, self.given))} array(s){each}, not {n}")
        return self.made

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        made: list[Shape] = []
        for some in self._each(shapes):
            found = self.fit(args, some)
            if found is None:
                said = ", ".join(f"{k}={v}" for k, v in args.items())
                raise TransformError(f"{self.name}({said}) does not fit {listed(some)}")
            made += found
        return tuple(made)

    def _each(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """The arrays of each, or what belongs to them."""
        step = self.given[0] if self.several else len(items)
        yield from (items[i : i + step] for i in range(0, len(items), step))

    def write(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        for i, some in enumerate(self._each(arrays)):
            self.compute(args, some, out[i * self.made : (i + 1) * self.made])

    def compute(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        """``write`` for the arrays of one."""
        raise NotImplementedError

    def fit(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        """The shapes that come out; None where those that go in do not fit."""
        raise NotImplementedError

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        floats(self.name, dtypes)
        return tuple(some[self.main] for some in self._each(dtypes) for _ in range(self.made))


class Add(Operation):
    """The sum of arrays of one shape: two biases that one framework keeps as their sum."""

    name = "add"
    required: ClassVar[dict[str, str]] = {}
    fills = True

    def count(self, args: Args, n: int) -> int:
        if n < 1:
            raise TransformError("add takes at least one array")
        return 1

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        if len(set(shapes)) != 1:
            raise TransformError(f"add does not fit {listed(shapes)}")
        return (shapes[0],)

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        floats(self.name, dtypes)
        return super().dtypes(args, dtypes)

    def write(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        for block in blocks(out[0].shape):
            total = values(arrays[0][block])
            for a in arrays[1:]:
                total += values(a[block])
            store(self.name, total, out[0][block])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        raise TransformError("add has no inverse: a sum does not tell its parts")


class WeightNorm(Computed):
    """Lengths and directions -> weight, as ``torch.nn.utils.weight_norm`` keeps them (``weight_g``, ``weight_v``, or
    ``original0``, ``original1``): the weight is ``g * v / norm(v)``.

    The norm is over all axes but ``axis``; without it, over all of them (PyTorch's ``dim=None``). ``lengths`` is the
    shape of the lengths, which only the inverse needs, if it is not that which PyTorch gives them. Of several weights,
    the lengths and directions come in turn.
    """

    name = "weight_norm"
    required: ClassVar[dict[str, str]] = {}
    optional: ClassVar = {"axis": "axis", "lengths": "sizes"}
    given = (2,)
    main = 1
    several = True

    def fit(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        length, shape = shapes
        axis = args.get("axis")
        if (axis is not None and axis >= len(shape)) or list(length) != args.get("lengths", list(length)):
            return None
        return (shape,) if prod(length) == prod(_length_shape(axis, shape)) else None

    def compute(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        length, v = arrays
        norm = _norm(v, args.get("axis"))
        if lost := np.count_nonzero(norm == 0):
            raise TransformError(f"weight_norm: {lost} direction(s) are all zero")
        factor = values(length).reshape(norm.shape) / norm
        for block in blocks(v.shape):
            store(self.name, values(v[block]) * _part(factor, block), out[0][block])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        unusual = set()
        for length, v in self._each([f.whole for f in forms]):
            if length is not None and (v is None or length != _usual_lengths(args.get("axis"), v)):
                unusual.add(length)
        if len(unusual) > 1:
            raise TransformError("weight_norm has no inverse: the lengths are of several shapes")
        return Transform("split_norm", {**args, "lengths": unusual.pop()} if unusual else args)


class SplitNorm(Computed):
    """Weight -> lengths and directions, as ``weight_norm`` puts them together. The direction is the weight itself."""

    name = "split_norm"
    required: ClassVar[dict[str, str]] = {}
    optional: ClassVar = {"axis": "axis", "lengths": "sizes"}
    given = (1,)
    made = 2
    several = True

    def fit(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        axis, (shape,) = args.get("axis"), shapes
        if axis is not None and axis >= len(shape):
            return None
        usual = _usual_lengths(axis, shape)
        lengths = tuple(args.get("lengths", usual))
        return (lengths, shape) if prod(lengths) == prod(usual) else None

    def compute(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        norm = _norm(arrays[0], args.get("axis"))
        if lost := np.count_nonzero(norm == 0):
            raise TransformError(f"split_norm: {lost} part(s) of the weight are all zero and have no direction")
        store(self.name, norm.reshape(out[0].shape), out[0])
        out[1][...] = arrays[0]

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("weight_norm", args)


class SpectralNorm(Computed):
    """Weight and its two singular vectors u, v -> the weight as ``torch.nn.utils.spectral_norm`` has it in evaluation.

    That is the weight over ``u @ W @ v``, where ``W`` has the positions of ``axis`` as its rows.
    """

    name = "spectral_norm"
    required: ClassVar = {"axis": "axis"}
    given = (3,)

    def fit(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        axis, (shape, u, v) = args["axis"], shapes
        if axis >= len(shape) or u != (shape[axis],) or v != (prod(shape) // max(1, shape[axis]),):
            return None
        return (shape,)

    def compute(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        weight = np.moveaxis(arrays[0], args["axis"], 0)
        u, v = values(arrays[1]), values(arrays[2])
        right = v.reshape(weight.shape[1:])
        sigma = 0.0
        for block in blocks(weight.shape):
            rows = u[block[0]].reshape(-1, *(1,) * (weight.ndim - 1))
            sigma += float(np.sum(values(weight[block]) * rows * right[block[1:]]))
        if not sigma:
            raise TransformError("spectral_norm: u @ weight @ v is zero")
        for block in blocks(arrays[0].shape):
            store(self.name, values(arrays[0][block]) / sigma, out[0][block])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        raise TransformError("spectral_norm has no inverse: the factor that it divides by is lost")


class Lora(Computed):
    """Weight, A and B of a low-rank adaptation -> the merged weight, ``W + alpha / rank * B @ A`` (Hu et al., 2021).

    A is ``[rank, …]`` with the sizes of the weight after the first, B is ``[outputs, rank]`` (with ones after it for a
    convolution). ``transposed``: the product belongs there transposed, as with embeddings. ``rooted``: alpha is over
    the square root of the rank.
    """

    name = "lora"
    required: ClassVar = {"alpha": "number"}
    optional: ClassVar = {"transposed": "flag", "rooted": "flag"}
    given = (3,)

    def fit(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        shape, a, b = shapes
        if len(shape) < 2 or not a or not a[0] or len(b) < 2 or b[1] != a[0] or prod(b[2:]) != 1:
            return None
        made = (b[0], *a[1:])
        return (shape,) if shape == (made[::-1] if args.get("transposed") else made) else None

    def compute(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        weight, rank = arrays[0], arrays[1].shape[0]
        factor = args["alpha"] / (rank**0.5 if args.get("rooted") else rank)
        a, b = values(arrays[1]).reshape(rank, -1), values(arrays[2]).reshape(-1, rank) * factor
        left, right = (a.T, b.T) if args.get("transposed") else (b, a)
        step = max(1, BLOCK // max(1, prod(weight.shape[1:])))
        for start in range(0, len(weight), step):
            rows = slice(start, start + step)
            old = values(weight[rows])
            store(self.name, old + (left[rows] @ right).reshape(old.shape), out[0][rows])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        raise TransformError("lora has no inverse: a merged weight does not tell its parts")


class FoldNorm(Computed):
    """Weight (and bias) of a layer, and gamma, beta, mean and variance of the batch normalisation after it -> the
    weight and the bias of the one layer that does the same in evaluation.

    ``axis`` is that of the output channels in the weight: 0 if it is not given, 1 for a transposed convolution.
    ``shape`` is the one that the weight comes out in, if it is another.
    """

    name = "fold_norm"
    required: ClassVar = {"eps": "number"}
    optional: ClassVar = {"axis": "axis", "shape": "sizes"}
    given = (5, 6)
    made = 2

    def fit(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        axis, shape = args.get("axis", 0), shapes[0]
        if axis >= len(shape) or set(shapes[1:]) != {(shape[axis],)}:
            return None
        made = tuple(args.get("shape", shape))
        return (made, (shape[axis],)) if prod(made) == prod(shape) else None

    def compute(self, args: Args, arrays: Sequence[Array], out: Sequence[Array]) -> None:
        weight, *rest = arrays
        gamma, beta, mean, variance = map(values, rest[-4:])
        bias = values(rest[0]) if len(rest) == 5 else 0.0
        if (variance + args["eps"] <= 0).any():
            raise TransformError("fold_norm: a variance is not positive")
        factor = gamma / np.sqrt(variance + args["eps"])
        store(self.name, (bias - mean) * factor + beta, out[1])
        shape = [1] * weight.ndim
        shape[args.get("axis", 0)] = -1
        made = reshaped(out[0], weight.shape)
        made = np.empty(weight.shape, out[0].dtype) if made is None else made
        for block in blocks(weight.shape):
            store(self.name, values(weight[block]) * _part(factor.reshape(shape), block), made[block])
        if not np.may_share_memory(made, out[0]):
            out[0][...] = made.reshape(out[0].shape)

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        raise TransformError("fold_norm has no inverse: a folded weight does not tell its parts")


def _usual_lengths(axis: int | None, shape: Shape) -> Shape:
    """The shape that PyTorch gives the lengths."""
    return _length_shape(axis, shape) if axis is not None else ()


def _length_shape(axis: int | None, shape: Shape) -> Shape:
    """The shape of the norms over all axes but one, with ones for the others."""
    return tuple(n if i == axis else 1 for i, n in enumerate(shape))


def _norm(array: Array, axis: int | None) -> Array:
    """The norm of an array over all axes but one, in float64, with a one for every axis that is gone."""
    total = np.zeros(_length_shape(axis, array.shape))
    others = tuple(i for i in range(array.ndim) if i != axis)
    for block in blocks(array.shape):
        part = _part(total, block)
        part += np.sum(np.square(values(array[block])), others, keepdims=True)
    return np.sqrt(total)


def _part(small: Array, block: tuple[slice, ...]) -> Array:
    """The part of a broadcast array that belongs to a block, as a view."""
    return small[tuple(slice(None) if n == 1 else s for n, s in zip(small.shape, block, strict=True))]
