"""Convolutions, norms and pools that not every device has a kernel for, computed by operations that all have.

See :mod:`automap.mindspore_equals`, which has the rest and says which stands in for what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as _edge  # noqa: F401  # isort: skip
import mindspore as ms
from mindspore import ops

from automap.dtypes import Array

Tensor = Any  # MindSpore has no types for type checkers
Ints = int | Sequence[int]


def ints(value: Ints, n: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * n
    values = tuple(int(v) for v in value)
    return values * n if len(values) == 1 else values


def along(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """A slice of one axis."""
    if step != 1:  # the gradient of such a slice is out of bounds in MindSpore 2.10 on the CPU
        return ops.gather(x, ms.Tensor(np.arange(start, stop, step, dtype=np.int32)), axis)
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def padded(x: Tensor, axis: int, before: int, after: int, fill: float = 0.0) -> Tensor:
    """One axis grown by ``fill``, or cropped where a number is negative."""
    if before < 0 or after < 0:
        x = along(x, axis, max(0, -before), x.shape[axis] - max(0, -after))
    parts = [x]
    for amount, place in ((before, 0), (after, len(parts))):
        if amount > 0:
            shape = (*x.shape[:axis], amount, *x.shape[axis + 1 :])
            parts.insert(place and len(parts), ops.full(shape, fill, dtype=x.dtype))
    return ops.cat(parts, axis) if len(parts) > 1 else x


def matrix_along(x: Tensor, axis: int, matrix: Array) -> Tensor:
    """One axis multiplied by a constant matrix (new size, old size)."""
    axis %= x.ndim
    order = [a for a in range(x.ndim) if a != axis] + [axis]
    moved = ops.transpose(x, tuple(order))
    out = ops.matmul(moved, ms.Tensor(np.ascontiguousarray(matrix.T.astype(np.float32))))
    back = tuple(int(i) for i in np.argsort(order))
    return ops.transpose(out, back)


# -- convolutions -----------------------------------------------------------------------------------------------------


def _convolution(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Tensor:
    """A convolution of 1 to 3 spatial dimensions without padding."""
    n = weight.ndim - 2
    if n == 1:
        return _convolution(x.expand_dims(2), weight.expand_dims(2), (1, *stride), (1, *dilation), groups).squeeze(2)
    kernel = tuple(weight.shape[2:])
    if n == 2:
        native = ops.Conv2D(
            weight.shape[0], kernel, pad_mode="valid", stride=tuple(stride), dilation=tuple(dilation), group=groups
        )
        return native(x, weight)
    for axis, d in enumerate(dilation, 2):
        weight = spread(weight, axis, d)
    native = ops.Conv3D(weight.shape[0] // groups, tuple(weight.shape[2:]), pad_mode="valid", stride=tuple(stride))
    parts = zip(ops.split(x, x.shape[1] // groups, 1), ops.split(weight, weight.shape[0] // groups, 0), strict=True)
    made = [native(a, b) for a, b in parts]
    return made[0] if groups == 1 else ops.cat(made, 1)


def spread(x: Tensor, axis: int, step: int) -> Tensor:
    """The elements of one axis ``step`` apart, with zeros between them."""
    if step == 1:
        return x
    size = x.shape[axis]
    wide = padded(x.expand_dims(axis + 1), axis + 1, 0, step - 1)
    wide = wide.reshape((*x.shape[:axis], size * step, *x.shape[axis + 1 :]))
    return along(wide, axis, 0, (size - 1) * step + 1)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.reshape((1, -1) + (1,) * (x.ndim - 2))


def _batched(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Lets a convolution take one sample without the batch dimension."""

    @functools.wraps(function)
    def batched(prim: Any, x: Tensor, weight: Tensor, *args: Any) -> Tensor:
        if x.ndim == weight.ndim:
            return function(prim, x, weight, *args)
        return function(prim, x.expand_dims(0), weight, *args).squeeze(0)

    return batched


@_batched
def conv(
    prim: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    n = weight.ndim - 2
    steps, dilations = ints(stride, n), ints(dilation, n)
    if isinstance(padding, str):
        return conv_padding(prim, x, weight, bias, stride, 1 if padding == "same" else 2, dilation, groups)
    for axis, p in enumerate(ints(padding, n), 2):
        x = padded(x, axis, p, p)
    return _with_bias(_convolution(x, weight, steps, dilations, groups), bias)


@_batched
def conv_padding(
    prim: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: int = 2,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``padding``: 1 for the same size, where an odd rest goes to the end; 2 for none."""
    n = weight.ndim - 2
    steps, dilations = ints(stride, n), ints(dilation, n)
    if padding == 1:
        for axis, (k, d) in enumerate(zip(weight.shape[2:], dilations, strict=True), 2):
            total = d * (k - 1)
            x = padded(x, axis, total // 2, total - total // 2)
    return _with_bias(_convolution(x, weight, steps, dilations, groups), bias)


@_batched
def conv_transpose(
    prim: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """A convolution, with the kernel flipped, of the input with zeros between its elements."""
    n = weight.ndim - 2
    dilations = ints(dilation, n)
    settings = zip(weight.shape[2:], ints(stride, n), ints(padding, n), ints(output_padding, n), dilations, strict=True)
    for axis, (k, s, p, extra, d) in enumerate(settings, 2):
        around = d * (k - 1) - p
        x = padded(spread(x, axis, s), axis, around, around + extra)
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    flipped = ops.flip(weight, tuple(range(2, n + 2))).reshape((groups, rows, columns, *weight.shape[2:]))
    flipped = ops.swapaxes(flipped, 1, 2).reshape((groups * columns, rows, *weight.shape[2:]))
    return _with_bias(_convolution(x, flipped, (1,) * n, dilations, groups), bias)


def convolution(
    prim: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    transposed: bool = False,
    output_padding: Ints = 0,
    groups: int = 1,
) -> Tensor:
    made: Tensor
    if transposed:
        made = conv_transpose(prim, x, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        made = conv(prim, x, weight, bias, stride, padding, dilation, groups)
    return made


# -- norms ------------------------------------------------------------------------------------------------------------


def _normed(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean 0 and variance 1 over some axes; also the mean, and one over the deviation."""
    mean = ops.mean(x, axes, True)
    centred = x - mean
    rstd = 1 / ops.sqrt(ops.mean(centred * centred, axes, True) + eps)
    return centred * rstd, mean, rstd


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...] | None = None) -> Tensor:
    if weight is not None:
        x = x * (weight if shape is None else weight.reshape(shape))
    return x if bias is None else x + (bias if shape is None else bias.reshape(shape))


def batch_norm(
    prim: Any,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (1, -1) + (1,) * (x.ndim - 2)
    if not training and mean is not None and var is not None:
        rstd = 1 / ops.sqrt(var + eps)
        return _scaled((x - mean.reshape(shape)) * rstd.reshape(shape), weight, bias, shape), mean, rstd
    axes = (0, *range(2, x.ndim))
    normed, batch_mean, rstd = _normed(x, axes, eps)
    batch_mean, rstd = batch_mean.reshape(-1), rstd.reshape(-1)
    if training and mean is not None and var is not None:
        count = x.size // x.shape[1]
        batch_var = (1 / (rstd * rstd) - eps) * (count / max(1, count - 1))
        for running, fresh in ((mean, batch_mean), (var, batch_var)):
            running.assign_value(ops.stop_gradient(running * (1 - momentum) + fresh * momentum).astype(running.dtype))
    return _scaled(normed, weight, bias, shape), batch_mean, rstd


def layer_norm(
    prim: Any,
    x: Tensor,
    normalized_shape: Ints,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    size = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    normed, mean, rstd = _normed(x, tuple(range(x.ndim - size, x.ndim)), eps)
    return _scaled(normed, weight, bias), mean, rstd


def instance_norm(
    prim: Any, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The statistics are always those of the sample, as on a device; the kept ones stay as they are."""
    normed, *statistics = _normed(x, tuple(range(2, x.ndim)), prim.epsilon)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return _scaled(normed, gamma, beta, shape), statistics[0], statistics[1]


def rms_norm(prim: Any, x: Tensor, gamma: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    rstd = 1 / ops.sqrt(ops.mean(x * x, axes, True) + eps)
    return x * rstd * gamma, rstd


def add_rms_norm(prim: Any, a: Tensor, b: Tensor, gamma: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    both = a + b
    normed, rstd = rms_norm(prim, both, gamma, eps)
    return normed, rstd, both


# -- pools ------------------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """The windows of a pool along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    places: int  # how many there are
    grown: int  # the size of the axis with all that the windows cover

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Windows:
        room = size + 2 * padding - dilation * (kernel - 1) - 1
        places = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (places - 1) * stride >= size + padding:
            places -= 1  # it would start behind the input
        reach = (places - 1) * stride + dilation * (kernel - 1) + 1
        return cls(kernel, stride, padding, dilation, places, max(reach, size + padding))

    def slices(self, x: Tensor, axis: int, fill: float) -> list[Tensor]:
        """One tensor for each element of a window."""
        x = padded(x, axis, self.padding, self.grown - self.padding - x.shape[axis], fill)
        last = (self.places - 1) * self.stride + 1
        starts = (i * self.dilation for i in range(self.kernel))
        return [along(x, axis, i, i + last, self.stride) for i in starts]


def windows_of(
    x: Tensor, kernel: Ints, stride: Ints | None, padding: Ints, n: int, dilation: Ints = 1, ceil_mode: bool = False
) -> list[Windows]:
    """The windows along each of the last ``n`` axes. Without a stride they do not overlap."""
    kernels = ints(kernel, n)
    strides = kernels if stride is None or stride == () or stride == [] else ints(stride, n)
    settings = zip(x.shape[-n:], kernels, strides, ints(padding, n), ints(dilation, n), strict=True)
    return [Windows.of(*s, ceil_mode) for s in settings]


def max_pool2d(
    prim: Any,
    x: Tensor,
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    height, width = x.shape[-2:]
    rows, columns = windows_of(x, kernel, stride, padding, 2, dilation, ceil_mode)
    lowest = float(np.finfo(np.float32).min)
    if not return_indices:
        for axis, windows in ((x.ndim - 2, rows), (x.ndim - 1, columns)):
            x = functools.reduce(ops.maximum, windows.slices(x, axis, lowest))
        return x, ops.zeros(x.shape, ms.int64)
    places = ms.Tensor(np.arange(height * width, dtype=np.float32).reshape((1,) * (x.ndim - 2) + (height, width)))
    best: Tensor | None = None
    where = places
    for xs, ps in zip(rows.slices(x, x.ndim - 2, lowest), rows.slices(places, x.ndim - 2, 0), strict=True):
        inner = zip(columns.slices(xs, x.ndim - 1, lowest), columns.slices(ps, x.ndim - 1, 0), strict=True)
        for value, place in inner:
            if best is None:
                best, where = value, ops.broadcast_to(place, value.shape)
                continue
            more = value > best
            best, where = ops.where(more, value, best), ops.where(more, ops.broadcast_to(place, value.shape), where)
    return best, where.astype(ms.int64)


def _avg_pool(
    x: Tensor,
    kernel: Ints,
    stride: Ints | None,
    padding: Ints,
    ceil_mode: bool,
    include: bool,
    divisor: int | None,
    n: int,
) -> Tensor:
    sizes: Array = np.ones((1,) * n, np.float32)
    for i, windows in enumerate(windows_of(x, kernel, stride, padding, n, 1, ceil_mode)):
        axis = x.ndim - n + i
        size = x.shape[axis]
        first = np.arange(windows.places) * windows.stride - windows.padding
        last = np.minimum(first + windows.kernel, size + windows.padding)
        if not include:
            first, last = np.maximum(first, 0), np.minimum(last, size)
        sizes = sizes * (last - first).astype(np.float32).reshape((-1,) + (1,) * (n - i - 1))
        x = functools.reduce(ops.add, windows.slices(x, axis, 0.0))
    return x / (ms.Tensor(sizes) if divisor is None else float(divisor))


def avg_pool1d(
    prim: Any,
    x: Tensor,
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    include: bool = True,
) -> Tensor:
    return _avg_pool(x, kernel, stride, padding, ceil_mode, include, None, 1)


def avg_pool_of(n: int) -> Callable[..., Tensor]:
    def pool(
        prim: Any,
        x: Tensor,
        kernel: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        include: bool = True,
        divisor: int | None = None,
    ) -> Tensor:
        return _avg_pool(x, kernel, stride, padding, ceil_mode, include, divisor, n)

    return pool


def _bins(size: int, wanted: int) -> list[tuple[int, int]]:
    """The parts of an axis that an adaptive pool makes one of; they may overlap."""
    return [(i * size // wanted, -(-(i + 1) * size // wanted)) for i in range(wanted)]


def _adaptive_sizes(x: Tensor, wanted: Any, n: int) -> list[tuple[int, int]]:
    """Axis and new size; an axis whose size is to stay is left out."""
    sizes = (wanted,) * n if wanted is None or isinstance(wanted, int) else tuple(wanted)
    sizes = sizes * n if len(sizes) == 1 else sizes
    axes = range(x.ndim - n, x.ndim)
    return [(a, int(s)) for a, s in zip(axes, sizes, strict=True) if s is not None and int(s) != -1]


def adaptive_avg_of(n: int) -> Callable[..., Tensor]:
    def pool(prim: Any, x: Tensor, wanted: Any) -> Tensor:
        for axis, new in _adaptive_sizes(x, wanted, n):
            matrix = np.zeros((new, x.shape[axis]))
            for row, (start, stop) in zip(matrix, _bins(x.shape[axis], new), strict=True):
                row[start:stop] = 1 / (stop - start)
            x = matrix_along(x, axis, matrix)
        return x

    return pool


def adaptive_max_pool1d(prim: Any, x: Tensor, wanted: Any) -> tuple[Tensor, Tensor]:
    size = x.shape[-1]
    parts = [(start, along(x, x.ndim - 1, start, stop)) for start, stop in _bins(size, ints(wanted, 1)[0])]
    values = ops.cat([ops.amax(p, -1, True) for _, p in parts], -1)
    return values, ops.cat([ops.argmax(p, -1, True) + start for start, p in parts], -1)
