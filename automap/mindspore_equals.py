"""Operations that not every device has a kernel for, computed by others that all have.

Each function takes the arguments of MindSpore's primitive, in float32, after the primitive itself (whose attributes
some need), and returns what it returns. All of them are differentiable, as what they are made of is. ``TABLE`` says
which primitive is computed how; :mod:`automap.mindspore_standins` puts them in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as _edge  # noqa: F401  # isort: skip
import mindspore as ms
from mindspore import ops

from automap.dtypes import Array
from automap.mindspore_equal_functions import FUNCTIONS
from automap.mindspore_equal_layers import (
    Ints,
    Tensor,
    Windows,
    adaptive_avg_of,
    adaptive_max_pool1d,
    add_rms_norm,
    avg_pool1d,
    avg_pool_of,
    batch_norm,
    conv,
    conv_padding,
    conv_transpose,
    convolution,
    instance_norm,
    ints,
    layer_norm,
    matrix_along,
    max_pool2d,
    padded,
    rms_norm,
    spread,
    windows_of,
)


class NoEqualError(Exception):
    """An operation is used in a way that none of these computes; the message names it in words."""


class Equal(NamedTuple):
    """How an operation is computed instead.

    Attributes:
        compute: takes the primitive and its arguments.
        called: what a network calls it.
        by: what computes it, in the report's words.
    """

    compute: Callable[..., Any]
    called: str
    by: str


# -- activations ------------------------------------------------------------------------------------------------------


def gelu(prim: Any, x: Tensor, approximate: int | str = 0) -> Tensor:
    if approximate in (0, "none"):
        return x * 0.5 * (1 + ops.erf(x * math.sqrt(0.5)))
    # By the sigmoid, whose kernel is better than that of tanh: (1 + tanh(u)) / 2 = sigmoid(2u).
    return x * ops.sigmoid(x * (1 + 0.044715 * x * x) * (2 * math.sqrt(2 / math.pi)))


def hardtanh(prim: Any, x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    return ops.minimum(ops.maximum(x, float(low)), float(high))


def log_sigmoid(prim: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return ops.minimum(x, 0.0) + ops.log(ops.sigmoid(ops.abs(x))), x


def elu(prim: Any, x: Tensor, alpha: float = 1.0) -> Tensor:
    return ops.relu(x) + float(alpha) * ops.elu(ops.minimum(x, 0.0))


def selu(prim: Any, x: Tensor) -> Tensor:
    return 1.0507009873554805 * elu(prim, x, 1.6732632423543772)


def mish(prim: Any, x: Tensor) -> Tensor:
    return ops.mish(x)


def threshold(prim: Any, x: Tensor, bound: float, value: float) -> Tensor:
    return ops.where(x > float(bound), x, ops.full_like(x, float(value)))


def log_softmax(prim: Any, x: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    axis = (0 if x.ndim in (0, 1, 3) else 1) if dim is None else dim
    return ops.log_softmax(x, axis)


def swiglu(prim: Any, x: Tensor, dim: int = -1) -> Tensor:
    a, b = ops.chunk(x, 2, dim)
    return ops.silu(a) * b


# -- tables, pads and resizing ----------------------------------------------------------------------------------------


def embedding(
    prim: Any,
    ids: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    if max_norm is not None:
        raise NoEqualError("embedding with max_norm")
    return ops.gather(weight, ids, 0)


def constant_pad(prim: Any, x: Tensor, padding: Sequence[int], value: float = 0.0) -> Tensor:
    for i in range(len(padding) // 2):
        x = padded(x, x.ndim - 1 - i, int(padding[2 * i]), int(padding[2 * i + 1]), float(value))
    return x


def _pad_by_index(mode: str) -> Callable[..., Tensor]:
    def pad(prim: Any, x: Tensor, padding: Sequence[int]) -> Tensor:
        for i in range(len(padding) // 2):
            axis = x.ndim - 1 - i
            before, after = int(padding[2 * i]), int(padding[2 * i + 1])
            places = np.arange(x.shape[axis])
            places = np.pad(
                places[max(0, -before) : len(places) - max(0, -after)], (max(0, before), max(0, after)), mode
            )  # type: ignore[call-overload]
            x = ops.gather(x, ms.Tensor(places.astype(np.int32)), axis)
        return x

    return pad


def im2col(prim: Any, x: Tensor, kernel: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Tensor:
    single = x.ndim == 3
    x = x.expand_dims(0) if single else x
    rows, columns = windows_of(x, kernel, stride, padding, 2, dilation)
    parts = [part for row in rows.slices(x, 2, 0.0) for part in columns.slices(row, 3, 0.0)]
    out = ops.stack(parts, 2).reshape((x.shape[0], x.shape[1] * len(parts), -1))
    return out.squeeze(0) if single else out


def col2im(
    prim: Any,
    x: Tensor,
    output_size: Ints,
    kernel: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> Tensor:
    single = x.ndim == 2
    x = x.expand_dims(0) if single else x
    size, kernels = ints(output_size, 2), ints(kernel, 2)
    settings = zip(size, kernels, ints(stride, 2), ints(padding, 2), ints(dilation, 2), strict=True)
    rows, columns = (Windows.of(*s, False) for s in settings)
    cut = x.reshape((x.shape[0], -1, kernels[0] * kernels[1], rows.places, columns.places))
    total: Any = 0
    for k in range(kernels[0] * kernels[1]):
        part = cut[:, :, k]
        for axis, windows, place, whole in (
            (2, rows, k // kernels[1], size[0]),
            (3, columns, k % kernels[1], size[1]),
        ):
            start = place * windows.dilation - windows.padding
            part = spread(part, axis, windows.stride)
            part = padded(part, axis, start, whole - start - part.shape[axis])
        total = total + part
    return total.squeeze(0) if single else total


def _cubic(t: Array) -> list[Array]:
    """The weights of the four neighbours at a distance of ``t`` behind the second one."""
    a = -0.75

    def near(d: Array) -> Array:
        made: Array = ((a + 2) * d - (a + 3)) * d * d + 1
        return made

    def far(d: Array) -> Array:
        made: Array = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return made

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def resize_matrix(size: int, new: int, scale: float | None, align: bool, mode: str) -> Array:
    """The matrix (new size, old size) that resizes one axis; ``scale`` is new by old, if it was given as such."""
    matrix = np.zeros((new, size))
    out = np.arange(new, dtype=np.float64)
    step = 1 / scale if scale else size / new
    if mode == "nearest":
        matrix[out.astype(int), np.minimum(np.floor(out * step), size - 1).astype(int)] = 1
        return matrix
    place = out * ((size - 1) / (new - 1) if new > 1 else 0.0) if align else (out + 0.5) * step - 0.5
    if mode == "linear":
        place = np.maximum(place, 0)
    base = np.floor(place).astype(int)
    t = place - base
    neighbours = list(enumerate(_cubic(t), -1)) if mode == "cubic" else [(0, 1 - t), (1, t)]
    for offset, share in neighbours:
        np.add.at(matrix, (out.astype(int), np.clip(base + offset, 0, size - 1)), share)
    return matrix


def _upsample(n: int, mode: str) -> Callable[..., Tensor]:
    def upsample(
        prim: Any, x: Tensor, output_size: Any = None, scales: Any = None, align_corners: bool = False
    ) -> Tensor:
        factors: Sequence[float | None] = (None,) * n if scales is None else tuple(float(s) for s in scales)
        for i in range(n):
            axis = x.ndim - n + i
            size, factor = x.shape[axis], factors[i]
            new = int(output_size[i]) if output_size is not None else math.floor(size * (factor or 1.0))
            x = matrix_along(x, axis, resize_matrix(size, new, factor, align_corners, mode))
        return x

    return upsample


# -- attention --------------------------------------------------------------------------------------------------------


def flash_attention(
    prim: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real_shift: Tensor | None = None,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    head_num: int = 1,
    keep_prob: float = 1.0,
    scale_value: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    inner_precise: int = 0,
    input_layout: int | str = "BSH",
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention by its definition, with a mask whose ones are left out; grouped keys and values are repeated."""
    layouts = {0: "BSH", 1: "BNSD", 2: "SBH", 3: "BSND", 4: "TND"}
    layout = layouts.get(input_layout, "?") if isinstance(input_layout, int) else input_layout
    unlike = {
        "drop_mask": drop_mask is not None or keep_prob != 1.0,
        "padding_mask": padding_mask is not None,
        "prefix": prefix is not None,
        f"input_layout {layout}": layout not in ("BSH", "BNSD", "SBH", "BSND"),
        f"sparse_mode {sparse_mode}": sparse_mode not in (0, 1, 2, 3),
    }
    if any(unlike.values()):
        raise NoEqualError(f"flash attention with {', '.join(k for k, v in unlike.items() if v)}")

    def heads(x: Tensor, count: int | None) -> Tensor:
        """Batch, heads, sequence, width."""
        if layout == "BNSD":
            return x
        if layout == "BSND":
            return ops.transpose(x, (0, 2, 1, 3))
        if layout == "SBH":
            x = ops.transpose(x, (1, 0, 2))
        batch, length, width = x.shape
        each = width // count if count else query.shape[-1] // head_num
        return ops.transpose(x.reshape((batch, length, width // each, each)), (0, 2, 1, 3))

    q, k, v = heads(query, head_num), heads(key, None), heads(value, None)
    if k.shape[1] != q.shape[1]:
        k, v = (ops.repeat_interleave(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = ops.matmul(q, ops.swapaxes(k, -1, -2))
    scores = (scores + real_shift) * scale_value if real_shift is not None else scores * scale_value
    rows, columns = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
    left_out: Any = None
    if sparse_mode in (2, 3):  # no place after the own one, counted from the start or from the end
        shift = columns.shape[1] - rows.shape[0] if sparse_mode == 3 else 0
        left_out = ms.Tensor(columns > rows + shift)
    elif attn_mask is not None:
        left_out = attn_mask.astype(ms.bool_)
    if sparse_mode == 0 and attn_mask is not None:  # the band is of no account without a mask
        shift = columns.shape[1] - rows.shape[0]
        outside = (columns < rows + shift - pre_tokens) | (columns > rows + shift + next_tokens)
        left_out = ops.logical_or(left_out, ms.Tensor(outside)) if outside.any() else left_out
    if left_out is not None:
        scores = ops.where(left_out, ops.full_like(scores, -1e30), scores)
    top = ops.amax(scores, -1, True)
    parts = ops.softmax(scores, -1)
    out = ops.matmul(parts, v)
    if layout == "BSND":
        out = ops.transpose(out, (0, 2, 1, 3))
    elif layout != "BNSD":
        out = ops.transpose(out, (0, 2, 1, 3)).reshape((out.shape[0], out.shape[2], -1))
        out = ops.transpose(out, (1, 0, 2)) if layout == "SBH" else out
    return top, ops.sum(ops.exp(scores - top), -1, keepdim=True), parts, out


_PLAIN = "plain operations"

#: By the primitive's name. The keys with a small letter are the functions that have several primitives behind them.
TABLE: dict[str, Equal] = {
    **{f"Conv{n}DExt": Equal(conv, f"mint.nn.functional.conv{n}d", f"nn.Conv{n}d") for n in (1, 2, 3)},
    **{f"Conv{n}DPadding": Equal(conv_padding, f"mint.nn.functional.conv{n}d", f"nn.Conv{n}d") for n in (1, 2, 3)},
    **{f"conv{n}d": Equal(conv, f"mint.nn.functional.conv{n}d", f"nn.Conv{n}d") for n in (1, 2, 3)},
    "ConvTranspose2D": Equal(conv_transpose, "mint.nn.functional.conv_transpose2d", "nn.Conv2d on the spread input"),
    "Convolution": Equal(convolution, "ops.Convolution", "nn.Conv2d"),
    "BatchNormExt": Equal(batch_norm, "mint.nn.functional.batch_norm", _PLAIN),
    "LayerNormExt": Equal(layer_norm, "mint.nn.functional.layer_norm", _PLAIN),
    "InstanceNorm": Equal(instance_norm, "ops.InstanceNorm", _PLAIN),
    "RmsNorm": Equal(rms_norm, "ops.rms_norm", _PLAIN),
    "AddRmsNorm": Equal(add_rms_norm, "ops.add_rms_norm", _PLAIN),
    "FuncMaxPool2D": Equal(max_pool2d, "mint.nn.functional.max_pool2d", _PLAIN),
    "AvgPool1D": Equal(avg_pool1d, "mint.nn.functional.avg_pool1d", _PLAIN),
    "AvgPool2D": Equal(avg_pool_of(2), "mint.nn.functional.avg_pool2d", _PLAIN),
    "AvgPool3DExt": Equal(avg_pool_of(3), "mint.nn.functional.avg_pool3d", _PLAIN),
    "AdaptiveAvgPool1D": Equal(adaptive_avg_of(1), "mint.nn.functional.adaptive_avg_pool1d", _PLAIN),
    "AdaptiveAvgPool2DExt": Equal(adaptive_avg_of(2), "mint.nn.functional.adaptive_avg_pool2d", _PLAIN),
    "AdaptiveAvgPool3DExt": Equal(adaptive_avg_of(3), "mint.nn.functional.adaptive_avg_pool3d", _PLAIN),
    "AdaptiveMaxPool1D": Equal(adaptive_max_pool1d, "mint.nn.functional.adaptive_max_pool1d", _PLAIN),
    "GeluExt": Equal(gelu, "mint.nn.functional.gelu", _PLAIN),
    "gelu": Equal(gelu, "mint.nn.functional.gelu", _PLAIN),
    "Hardtanh": Equal(hardtanh, "mint.nn.functional.hardtanh", _PLAIN),
    "LogSigmoid": Equal(log_sigmoid, "mint.nn.functional.logsigmoid", _PLAIN),
    "EluExt": Equal(elu, "mint.nn.functional.elu", _PLAIN),
    "SeLUExt": Equal(selu, "mint.nn.functional.selu", _PLAIN),
    "MishExt": Equal(mish, "mint.nn.functional.mish", "ops.mish"),
    "Threshold": Equal(threshold, "mint.nn.functional.threshold", _PLAIN),
    "LogSoftmaxExt": Equal(log_softmax, "mint.nn.functional.log_softmax", "ops.log_softmax"),
    "Swiglu": Equal(swiglu, "ops.swiglu", _PLAIN),
    "Embedding": Equal(embedding, "mint.nn.functional.embedding", "ops.gather"),
    "ConstantPadND": Equal(constant_pad, "mint.nn.functional.pad", _PLAIN),
    **{f"ReflectionPad{n}D": Equal(_pad_by_index("reflect"), "mint.nn.functional.pad", _PLAIN) for n in (1, 2, 3)},
    **{f"ReplicationPad{n}D": Equal(_pad_by_index("edge"), "mint.nn.functional.pad", _PLAIN) for n in (1, 2, 3)},
    "Im2ColExt": Equal(im2col, "mint.nn.functional.unfold", _PLAIN),
    "Col2ImExt": Equal(col2im, "mint.nn.functional.fold", _PLAIN),
    "UpsampleNearest1D": Equal(_upsample(1, "nearest"), "mint.nn.functional.interpolate", _PLAIN),
    "UpsampleLinear1D": Equal(_upsample(1, "linear"), "mint.nn.functional.interpolate", _PLAIN),
    "UpsampleBilinear2D": Equal(_upsample(2, "linear"), "mint.nn.functional.interpolate", _PLAIN),
    "UpsampleBicubic2D": Equal(_upsample(2, "cubic"), "mint.nn.functional.interpolate", _PLAIN),
    "FlashAttentionScore": Equal(flash_attention, "ops.flash_attention_score", _PLAIN),
    **{
        name: Equal(compute, called if called.startswith("Tensor.") else f"mint.{called}", by or _PLAIN)
        for name, (compute, called, by) in FUNCTIONS.items()
    },
}
