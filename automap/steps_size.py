"""Steps that leave an array with more elements or fewer: filled up, cut, repeated, interpolated."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from automap.dtypes import Array, cast, dtype_name, widen
from automap.errors import TransformError
from automap.steps import BLOCK, Args, DType, Each, Form, Shape, Transform, along, blocks, floats, sized, store, values


class Pad(Each):
    """One value in new positions at the end of an axis, such as the rows of a padded vocabulary.

    ``before`` is the size that goes in, for the inverse, which cuts the new positions off again.
    """

    name = "pad"
    required: ClassVar = {"axis": "axis", "size": "count", "value": "number"}
    optional: ClassVar = {"before": "count"}
    fills = True

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, size = args["axis"], args["size"]
        if axis >= len(shape) or shape[axis] > size:
            raise TransformError(f"pad of axis {axis} to {size} does not fit {list(shape)}")
        if args.get("before", shape[axis]) != shape[axis]:
            raise TransformError(f"pad of axis {axis} is from {args['before']}, not from {shape[axis]}")
        return sized(shape, axis, size)

    def form(self, args: Args, form: Form) -> Form:
        return form.cut(args["axis"], 1, [args["size"]])

    def fill(self, args: Args, array: Array, out: Array) -> None:
        axis, size = args["axis"], array.shape[args["axis"]]
        value, loss = cast(np.array(args["value"]), dtype_name(out))
        if loss.overflow or loss.inexact:
            raise TransformError(f"pad: {dtype_name(out)} cannot hold {args['value']}")
        out[along(axis, slice(size))] = array
        out[along(axis, slice(size, None))] = value

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        axis, size = args["axis"], args["size"]
        before = {args["before"]} if "before" in args else {f.at(axis)[0] for f in forms}
        stop = before.pop() if len(before) == 1 else None
        if stop is None:
            raise TransformError('pad has no inverse without the size "before"')
        return Transform("slice", {"axis": axis, "start": 0, "stop": stop, "size": size, "value": args["value"]})


class Slice(Each):
    """The positions from ``start`` up to ``stop`` along an axis; the others are lost.

    ``size``, of the whole axis, and ``value`` are for the inverse: what the positions after ``stop`` are filled with.
    """

    name = "slice"
    required: ClassVar = {"axis": "axis", "start": "axis", "stop": "axis"}
    optional: ClassVar = {"size": "count", "value": "number"}

    def checked(self, args: Args) -> Args:
        args = super().checked(args)
        if args["start"] >= args["stop"]:
            raise TransformError(f"slice: stop must be greater than start, not {args['stop']}")
        return args

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, start, stop = args["axis"], args["start"], args["stop"]
        if axis >= len(shape) or shape[axis] < stop:
            raise TransformError(f"slice of axis {axis} from {start} to {stop} does not fit {list(shape)}")
        if args.get("size", shape[axis]) != shape[axis]:
            raise TransformError(f"slice of axis {axis} is of size {args['size']}, not of {shape[axis]}")
        return sized(shape, axis, stop - start)

    def form(self, args: Args, form: Form) -> Form:
        return form.cut(args["axis"], 1, [args["stop"] - args["start"]])

    def view(self, args: Args, array: Array) -> Array:
        return array[along(args["axis"], slice(args["start"], args["stop"]))]

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        if args["start"] or "size" not in args or "value" not in args:
            raise TransformError(
                'slice has no inverse: what it cuts off is lost, unless it starts at 0 and has a "size" and a "value"'
            )
        told = {"size": args["size"], "value": args["value"], "before": args["stop"]}
        return Transform("pad", {"axis": args["axis"], **told})


class Expand(Each):
    """The one position of an axis, repeated: a single slope as one for each channel."""

    name = "expand"
    required: ClassVar = {"axis": "axis", "size": "count"}
    fills = True

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis = args["axis"]
        if axis >= len(shape) or shape[axis] != 1:
            raise TransformError(f"expand of axis {axis} to {args['size']} does not fit {list(shape)}")
        return sized(shape, axis, args["size"])

    def form(self, args: Args, form: Form) -> Form:
        return form.cut(args["axis"], 1, [args["size"]])

    def fill(self, args: Args, array: Array, out: Array) -> None:
        out[...] = array

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("collapse", args)


class Collapse(Each):
    """One position for all of an axis, which must be equal."""

    name = "collapse"
    required: ClassVar = {"axis": "axis", "size": "count"}

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, size = args["axis"], args["size"]
        if axis >= len(shape) or shape[axis] != size:
            raise TransformError(f"collapse of axis {axis} of {size} does not fit {list(shape)}")
        return sized(shape, axis, 1)

    def form(self, args: Args, form: Form) -> Form:
        return form.cut(args["axis"], 1, [1])

    def view(self, args: Args, array: Array) -> Array:
        axis = args["axis"]
        first = array[along(axis, slice(0, 1))]
        one = widen(first)
        for i in range(1, array.shape[axis]):
            if not np.array_equal(widen(array[along(axis, slice(i, i + 1))]), one):
                raise TransformError(f"collapse of axis {axis}: its {args['size']} values are not all equal")
        return first

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        return Transform("expand", args)


class Resize(Each):
    """A table of positions for another number of positions, by interpolation between neighbours.

    Along ``axis`` are ``prefix`` positions that stay as they are (a class token), and then those of a grid of the sizes
    ``grid`` (one size for a sequence), in row-major order; ``to`` are its new sizes. ``mode`` is ``linear`` (in every
    direction of the grid) or ``cubic``. As ``torch.nn.functional.interpolate`` has it with ``align_corners=False`` and
    without antialiasing; ``cubic`` is the cubic convolution of Keys (1981) with a = -0.75.
    """

    name = "resize"
    required: ClassVar = {"axis": "axis", "grid": "pieces", "to": "pieces", "mode": "linear|cubic"}
    optional: ClassVar = {"prefix": "axis"}
    fills = True

    def checked(self, args: Args) -> Args:
        args = super().checked(args)
        if len(args["grid"]) != len(args["to"]):
            raise TransformError(f"resize: grid and to must have as many sizes, not {args['grid']} and {args['to']}")
        if 0 in args["grid"] or 0 in args["to"]:
            raise TransformError(f"resize: a grid has no size 0: {args['grid']} to {args['to']}")
        return args

    def shape(self, args: Args, shape: Shape) -> Shape:
        axis, prefix = args["axis"], args.get("prefix", 0)
        if axis >= len(shape) or shape[axis] != prefix + prod(args["grid"]):
            grid = "x".join(map(str, args["grid"]))
            raise TransformError(f"resize of axis {axis} of {prefix} + {grid} positions does not fit {list(shape)}")
        return sized(shape, axis, prefix + prod(args["to"]))

    def form(self, args: Args, form: Form) -> Form:
        return form.cut(args["axis"], 1, [args.get("prefix", 0) + prod(args["to"])])

    def dtypes(self, args: Args, dtypes: Sequence[DType]) -> tuple[DType, ...]:
        floats(self.name, dtypes)
        return tuple(dtypes)

    def fill(self, args: Args, array: Array, out: Array) -> None:
        axis, prefix = args["axis"], args.get("prefix", 0)
        out[along(axis, slice(prefix))] = array[along(axis, slice(prefix))]
        # The positions in front, and what belongs to each in blocks.
        old, new = (np.moveaxis(a[along(axis, slice(prefix, None))], axis, 0) for a in (array, out))
        taps = [_taps(n, m, args["mode"]) for n, m in zip(args["grid"], args["to"], strict=True)]
        for block in blocks(old.shape[1:], max(1, BLOCK // max(len(old), len(new)))):
            index = (slice(None), *block)
            part = values(old[index])
            now = part.reshape(*args["grid"], -1)
            for i, (places, weights) in enumerate(taps):
                now = sum(
                    np.take(now, p, i) * w.reshape(-1, *(1,) * (now.ndim - 1 - i))
                    for p, w in zip(places, weights, strict=True)
                )
            store(self.name, now.reshape(len(new), *part.shape[1:]), new[index])

    def inverse(self, args: Args, forms: Sequence[Form]) -> Transform:
        raise TransformError("resize has no inverse: interpolation does not keep the old values")


def _taps(old: int, new: int, mode: str) -> tuple[list[Array], list[Array]]:
    """For every new position: the old ones that count (one array for each neighbour), and their weights."""
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    if mode == "linear":
        at = np.maximum(at, 0.0)
    low = np.floor(at).astype(np.int64)
    t = at - low
    if mode == "linear":
        shifts, weights = [0, 1], [1 - t, t]
    else:
        a = -0.75

        def near(x: Array) -> Array:
            return ((a + 2) * x - (a + 3)) * x * x + 1

        def far(x: Array) -> Array:
            return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

        shifts, weights = [-1, 0, 1, 2], [far(t + 1), near(t), near(1 - t), far(2 - t)]
    return [np.clip(low + s, 0, old - 1) for s in shifts], weights
