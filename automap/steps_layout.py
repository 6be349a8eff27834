"""Steps that put the same elements elsewhere: other shapes, other orders of axes, arrays joined and taken apart."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import ClassVar

import numpy as np

from automap.dtypes import Array
from automap.errors import TransformError
from automap.steps import (
    Args,
    DType,
    Each,
    Form,
    Operation,
    SameShape,
    Shape,
    Transform,
    along,
    listed,
    reshaped,
    sized,
)


class _Reshaping(Each):
    """Another shape for the same elements in the same order."""

    def view(self, args: Args, array: Array) -> Array | None:
        return reshaped(array, self.shape(args, array.shape))

    def place(self, args: Args, shape: Shape, out: Array) -> Array | None:
        return reshaped(out, shape)


class Reshape(_Reshaping):
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

    def form(self, args: Args, form: Form) -> Form:
        return Form.of(args["shape"])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        before = {tuple(args["before"])} if "before" in args else {f.whole for f in forms}
        shape = before.pop() if len(before) == 1 else None
        if shape is None:
            raise TransformError(f'reshape to {args["shape"]} has no inverse without the shape "before"')
        return Transform("reshape", {"shape": shape, "before": args["shape"]})


class Unflatten(_Reshaping):
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

    def form(self, args: Args, form: Form) -> Form:
        axis, sizes = args["axis"], args["sizes"]
        (size,) = form.at(axis)
        hole = None if size is None else size // prod(n for n in sizes if n >= 0)
        return form.cut(axis, 1, [n if n >= 0 else hole for n in sizes])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("flatten", {"axis": args["axis"], "count": len(args["sizes"]), "before": args["sizes"]})


class Flatten(_Reshaping):
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

    def form(self, args: Args, form: Form) -> Form:
        axis, count = args["axis"], args["count"]
        sizes = [n for n in args.get("before") or form.at(axis, count) if n not in (None, -1)]
        return form.cut(axis, count, [prod(sizes) if len(sizes) == count else None])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        axis, count = args["axis"], args["count"]
        sizes = args.get("before")
        if sizes is None:
            known = {tuple(f.at(axis, count)) for f in forms}
            if not known or any(None in sizes for sizes in known):
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

    def form(self, args: Args, form: Form) -> Form:
        sizes = {i: form.sizes[a] for i, a in enumerate(args["axes"]) if a in form.sizes}
        return Form(sizes, len(args["axes"]))

    def view(self, args: Args, array: Array) -> Array:
        return array.transpose(args["axes"])

    def place(self, args: Args, shape: Shape, out: Array) -> Array:
        return out.transpose(self.inverse(args, ()).args["axes"])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("transpose", {"axes": [args["axes"].index(i) for i in range(len(args["axes"]))]})


class Reverse(SameShape):
    """The positions along an axis in the other order."""

    name = "reverse"
    required: ClassVar = {"axis": "axis"}

    def shape(self, args: Args, shape: Shape) -> Shape:
        if args["axis"] >= len(shape):
            raise TransformError(f"reverse of axis {args['axis']} does not fit {list(shape)}")
        return shape

    def view(self, args: Args, array: Array) -> Array:
        return np.flip(array, args["axis"])

    def place(self, args: Args, shape: Shape, out: Array) -> Array:
        return np.flip(out, args["axis"])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("reverse", args)


class Take(SameShape):
    """The positions along an axis in another order, as ``numpy.take`` has it: recurrent layers' gates, for example.

    ``unflatten(axis=0, sizes=[4, -1]) | take(axis=0, indices=[0, 1, 3, 2]) | flatten(axis=0, count=2)`` exchanges the
    last two of four gates that are stacked in one weight or bias.
    """

    name = "take"
    required: ClassVar = {"axis": "axis", "indices": "order"}
    fills = True

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, indices = args["axis"], args["indices"]
        if axis >= len(shape) or shape[axis] != len(indices):
            raise TransformError(f"take of {len(indices)} positions along axis {axis} does not fit {list(shape)}")
        return shape

    def view(self, args: Args, array: Array) -> Array | None:
        return array if args["indices"] == sorted(args["indices"]) else None

    def fill(self, args: Args, array: Array, out: Array) -> None:
        axis, indices = args["axis"], args["indices"]
        start = 0
        for end in range(1, len(indices) + 1):  # runs of neighbours go together
            if end == len(indices) or indices[end] != indices[end - 1] + 1:
                first = indices[start]
                out[along(axis, slice(start, end))] = array[along(axis, slice(first, first + end - start))]
                start = end

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        order = args["indices"]
        back = sorted(range(len(order)), key=order.__getitem__)
        return Transform("take", {"axis": args["axis"], "indices": back})


class _Join(Operation):
    """Several arrays become one."""

    def places(self, args: Args, shapes: Sequence[Shape], out: Sequence[Array]) -> list[Array] | None:
        return self.parts(args, shapes, out[0])

    def views(self, args: Args, arrays: Sequence[Array]) -> list[Array] | None:
        if len(arrays) > 1:
            return None
        return [self.alone(args, arrays[0])]

    @abstractmethod
    def parts(self, args: Args, shapes: Sequence[Shape], out: Array) -> list[Array]:
        """Where the arrays of these shapes are in what they are joined to."""

    @abstractmethod
    def alone(self, args: Args, array: Array) -> Array:
        """What becomes of a single array: a view."""


class Concat(_Join):
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
            raise TransformError(f"concat along axis {axis} does not fit {listed(shapes)}")
        sizes = [s[axis] for s in shapes]
        if args.get("sizes", sizes) != sizes:
            raise TransformError(f"concat of sizes {args['sizes']} along axis {axis} is given {sizes}")
        return (sized(shapes[0], axis, sum(sizes)),)

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        axis = args["axis"]
        sizes = args.get("sizes") or [n for f in forms for n in f.at(axis) if n is not None]
        return [_together(forms).cut(axis, 1, [sum(sizes) if len(sizes) == len(forms) else None])]

    def parts(self, args: Args, shapes: Sequence[Shape], out: Array) -> list[Array]:
        return _cut(out, args["axis"], [s[args["axis"]] for s in shapes])

    def alone(self, args: Args, array: Array) -> Array:
        return array

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        sizes = args.get("sizes") or [n for f in forms for n in f.at(args["axis"]) if n is not None]
        if len(sizes) != len(forms):
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
        return tuple(sized(shape, axis, n) for n in args["sizes"])

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        return [forms[0].cut(args["axis"], 1, [n]) for n in args["sizes"]]

    def views(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return _cut(arrays[0], args["axis"], args["sizes"])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("concat", args)


class Stack(_Join):
    """All arrays, of one shape, joined along a new axis."""

    name = "stack"
    required: ClassVar = {"axis": "axis"}

    def count(self, args: Args, n: int) -> int:
        if n < 1:
            raise TransformError("stack takes at least one array")
        return 1

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        axis, first = args["axis"], shapes[0]
        if len(set(shapes)) != 1 or axis > len(first):
            raise TransformError(f"stack along axis {axis} does not fit {listed(shapes)}")
        return ((*first[:axis], len(shapes), *first[axis:]),)

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        return [_together(forms).cut(args["axis"], 0, [len(forms)])]

    def parts(self, args: Args, shapes: Sequence[Shape], out: Array) -> list[Array]:
        return _apart(out, args["axis"])

    def alone(self, args: Args, array: Array) -> Array:
        return np.expand_dims(array, args["axis"])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("unstack", {"axis": args["axis"], "count": len(forms)})


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

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        return [forms[0].cut(args["axis"], 1, [])] * int(args["count"])

    def views(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return _apart(arrays[0], args["axis"])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("stack", {"axis": args["axis"]})


class Reorder(Operation):
    """The same arrays in another order: ``places`` are where each of them stood, ``[1, 0]`` for two exchanged."""

    name = "reorder"
    required: ClassVar = {"places": "order"}

    def count(self, args: Args, n: int) -> int:
        if n != len(args["places"]):
            raise TransformError(f"reorder to {args['places']} takes {len(args['places'])} arrays, not {n}")
        return n

    def shapes(self, args: Args, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        self.count(args, len(shapes))
        return tuple(shapes[i] for i in args["places"])

    def guess(self, args: Args, forms: Sequence[Form]) -> list[Form]:
        return [forms[i] for i in args["places"]]

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        return tuple(dtypes[i] for i in args["places"])

    def views(self, args: Args, arrays: Sequence[Array]) -> list[Array]:
        return [arrays[i] for i in args["places"]]

    def places(self, args: Args, shapes: Sequence[Shape], out: Sequence[Array]) -> list[Array]:
        return [out[i] for i in self.inverse(args, ()).args["places"]]

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        places = args["places"]
        return Transform("reorder", {"places": [places.index(i) for i in range(len(places))]})


def _together(forms: Sequence[Form]) -> Form:
    """What is known of arrays that are alike but for the axis along which they are joined."""
    sizes = {i: n for f in forms for i, n in f.sizes.items()}
    return Form(sizes, next((f.rank for f in forms if f.rank is not None), None))


def _cut(array: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """The pieces of an array along an axis, as views."""
    return list(np.split(array, list(accumulate(sizes))[:-1], axis))


def _apart(array: Array, axis: int) -> list[Array]:
    """The positions of an array along an axis, as views (with "...", a single element is one as well)."""
    places = np.moveaxis(array, axis, 0)
    return [places[i, ...] for i in range(len(places))]
