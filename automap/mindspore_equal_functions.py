"""Functions of ``mint`` on tensors that not every device has a kernel for, computed by others that all have.

As in :mod:`automap.mindspore_equals`, each takes the primitive and its arguments. What computes with floating-point
values is differentiable; what counts, sorts or makes indices is made by NumPy where nothing else does it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as _edge  # noqa: F401  # isort: skip
import mindspore as ms
from mindspore import ops

from automap.mindspore_einsum import einsum
from automap.mindspore_equal_layers import Tensor

Axes = int | Sequence[int] | None


@functools.cache
def _types() -> dict[int, Any]:
    """MindSpore's element types by the numbers that primitives get."""
    from mindspore.ops._utils.arg_handler import dtype_to_type_id

    whole = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    names = ["bool_", *whole, "float16", "bfloat16", "float32", "float64"]
    return {dtype_to_type_id("", "", getattr(ms, name)): getattr(ms, name) for name in names}


def _dtype(given: Any, default: Any) -> Any:
    if given is None:
        return default
    return _types()[int(given)] if isinstance(given, int) else given


def _as(x: Tensor, given: Any) -> Tensor:
    dtype = _dtype(given, x.dtype)
    return x if x.dtype == dtype else x.astype(dtype)


def _floats(x: Tensor) -> Tensor:
    return x if x.dtype in (ms.float16, ms.bfloat16, ms.float32, ms.float64) else x.astype(ms.float32)


def _axes(x: Tensor, dim: Axes) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim))


def _made(values: Any, dtype: Any) -> Tensor:
    made: Tensor = ms.Tensor(np.asarray(values)).astype(dtype)
    return made


# -- element by element -----------------------------------------------------------------------------------------------


def _by(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda prim, x, *others: function(_floats(x), *others)


def frac(prim: Any, x: Tensor) -> Tensor:
    return x - ops.trunc(x)


def logaddexp(prim: Any, x: Tensor, other: Tensor) -> Tensor:
    return ops.maximum(x, other) + ops.log1p(ops.exp(-ops.abs(x - other)))


def addcmul(prim: Any, x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    return x + value * a * b


def addcdiv(prim: Any, x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    return x + value * (a / b)


def leaky_relu(prim: Any, x: Tensor, slope: float = 0.01) -> Tensor:
    return ops.where(x > 0, x, x * float(slope))


# -- reductions -------------------------------------------------------------------------------------------------------


def variance(prim: Any, x: Tensor, dim: Axes = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    axes = _axes(x, dim)
    apart = x - ops.mean(x, axes, True)
    count = math.prod(x.shape[a] for a in axes)
    return ops.sum(apart * apart, axes, keepdim=keepdim) / float(max(0, count - correction))


def deviation(prim: Any, x: Tensor, dim: Axes = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    return ops.sqrt(variance(prim, x, dim, correction, keepdim))


def _with_mean(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(
        prim: Any, x: Tensor, dim: Axes = None, correction: float = 1, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        return function(prim, x, dim, correction, keepdim), ops.mean(x, _axes(x, dim), keepdim)

    return both


def vector_norm(
    prim: Any, x: Tensor, order: float = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    x, axes = _as(x, dtype), _axes(x, dim)
    size = ops.abs(x)
    if order == math.inf:
        return ops.amax(size, axes, keepdim)
    if order == -math.inf:
        return ops.amin(size, axes, keepdim)
    if order == 0:
        return ops.sum((size != 0).astype(x.dtype), axes, keepdim=keepdim)
    if order == 1:
        return ops.sum(size, axes, keepdim=keepdim)
    if order == 2:
        return ops.sqrt(ops.sum(x * x, axes, keepdim=keepdim))
    return ops.pow(ops.sum(ops.pow(size, float(order)), axes, keepdim=keepdim), 1 / float(order))


def lp_norm(
    prim: Any, x: Tensor, p: float = 2.0, dim: Axes = None, keepdim: bool = False, epsilon: float = 1e-12
) -> Tensor:
    return vector_norm(prim, x, p, dim, keepdim)


def logsumexp(prim: Any, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    axes = _axes(x, dim)
    top = ops.amax(x, axes, True)
    whole = ops.log(ops.sum(ops.exp(x - top), axes, keepdim=True)) + top
    kept = tuple(1 if i in axes and keepdim else n for i, n in enumerate(x.shape) if i not in axes or keepdim)
    return whole.reshape(kept)


def _place_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def place(prim: Any, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            return function(x.reshape(-1), 0).astype(ms.int64)
        return function(x, dim, keepdim).astype(ms.int64)

    return place


def count_nonzero(prim: Any, x: Tensor, dim: Axes = None) -> Tensor:
    return ops.sum((x != 0).astype(ms.int32), _axes(x, dim)).astype(ms.int64)


def equal(prim: Any, x: Tensor, other: Tensor) -> Tensor:
    same = x.shape == other.shape and bool((x == other).all())
    return ms.Tensor(same)


def trace(prim: Any, x: Tensor) -> Tensor:
    n = min(x.shape)
    return ops.sum(x[:n, :n] * _made(np.eye(n), x.dtype))


def median(prim: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    return sort(prim, flat)[0][(flat.shape[0] - 1) // 2]


def median_along(prim: Any, x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = sort(prim, x, dim)
    at = (x.shape[dim] - 1) // 2
    picked = [ops.gather(t, _made([at], ms.int32), dim) for t in (values, places)]
    one, other = picked if keepdim else [t.squeeze(dim) for t in picked]
    return one, other


# -- products ---------------------------------------------------------------------------------------------------------


def matmul(prim: Any, a: Tensor, b: Tensor) -> Tensor:
    return ops.matmul(a, b)


def outer(prim: Any, a: Tensor, b: Tensor) -> Tensor:
    return a.reshape((-1, 1)) * b.reshape((1, -1))


def _added(prim: Any, x: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * x + alpha * ops.matmul(a, b)


# -- order and places -------------------------------------------------------------------------------------------------


def sort(prim: Any, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> tuple[Tensor, Tensor]:
    given = x.asnumpy()
    places = np.argsort(given, axis=dim, kind="stable")
    if descending:  # the first of equals stays the first one
        back = np.argsort(np.flip(given, dim), axis=dim, kind="stable")
        places = given.shape[dim] - 1 - np.flip(back, dim)
    at = _made(places, ms.int64)
    return ops.gather_elements(x, dim % max(1, x.ndim), at), at


def topk(
    prim: Any, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = sort(prim, x, dim, descending=largest)
    first = _made(np.arange(int(k)), ms.int32)
    return ops.gather(values, first, dim), ops.gather(places, first, dim)


def argsort(prim: Any, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return sort(prim, x, dim, descending)[1]


def cumsum(prim: Any, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return ops.cumsum(_as(x, dtype), dim)


def cummin(prim: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, places = ops.cummax(-x, dim)
    return -values, places.astype(ms.int64)


def unique(
    prim: Any, x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    given = x.asnumpy()
    values, inverse, counts = np.unique(given, return_inverse=True, return_counts=True)
    return _made(values, x.dtype), _made(inverse.reshape(given.shape), ms.int64), _made(counts, ms.int64)


def bincount(prim: Any, x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if weights is None:
        return _made(np.bincount(x.asnumpy(), None, int(minlength)), ms.int64)
    return _made(np.bincount(x.asnumpy(), weights.asnumpy(), int(minlength)), weights.dtype)


def stack(prim: Any, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return ops.stack(tuple(tensors), dim)


def roll(prim: Any, x: Tensor, shifts: int | Sequence[int], dims: Axes = None) -> Tensor:
    shape = x.shape
    if dims is None or dims == ():
        x, dims = x.reshape(-1), 0
    moves, axes = ((v,) if isinstance(v, int) else tuple(v) for v in (shifts, dims))
    for move, axis in zip(moves, axes, strict=True):
        places = np.roll(np.arange(x.shape[axis]), move)
        x = ops.gather(x, _made(places, ms.int32), axis)
    return x.reshape(shape)


def repeat_interleave(
    prim: Any, x: Tensor, repeats: int | Tensor, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    if dim is None:
        x, dim = x.reshape(-1), 0
    count = repeats.asnumpy() if isinstance(repeats, ms.Tensor) else int(repeats)
    return ops.gather(x, _made(np.repeat(np.arange(x.shape[dim]), count), ms.int32), dim)


def index_select(prim: Any, x: Tensor, dim: int, index: Tensor) -> Tensor:
    return ops.gather(x, index, dim)


def repeat(prim: Any, x: Tensor, *counts: Any) -> Tensor:
    times = tuple(counts[0]) if len(counts) == 1 and isinstance(counts[0], (tuple, list)) else counts
    return ops.tile(x, tuple(map(int, times)))


def index_add(prim: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    return ops.index_add(x, index.astype(ms.int32), source * alpha, dim)


def diagonal(prim: Any, x: Tensor, offset: int = 0) -> Tensor:
    if x.ndim == 1:
        return _placed(x, x.shape[0] + abs(offset), offset)
    rows, columns = x.shape
    count = max(0, min(rows - max(0, -offset), columns - max(0, offset)))
    at = np.arange(count)
    return ops.gather(x.reshape(-1), _made((at + max(0, -offset)) * columns + at + max(0, offset), ms.int32), 0)


def _placed(x: Tensor, n: int, offset: int) -> Tensor:
    """A vector on a diagonal of a square matrix."""
    onto = np.zeros((n * n, x.shape[0]))
    at = np.arange(x.shape[0])
    onto[(at + max(0, -offset)) * n + at + max(0, offset), at] = 1
    return ops.matmul(_made(onto, x.dtype), x).reshape((n, n))


def take(prim: Any, x: Tensor, index: Tensor) -> Tensor:
    return ops.gather(x.reshape(-1), index, 0)


def scatter_add(prim: Any, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    part = source[tuple(slice(0, n) for n in index.shape)]
    return ops.tensor_scatter_elements(x, index, part, dim, "add")


def tril(prim: Any, x: Tensor, diagonal: int = 0) -> Tensor:
    kept = np.tri(x.shape[-2], x.shape[-1], int(diagonal), dtype=bool)
    return ops.where(ms.Tensor(kept), x, ops.zeros_like(x))


def one_hot(prim: Any, x: Tensor, count: int, on: Tensor, off: Tensor, axis: int = -1) -> Tensor:
    count = int(x.asnumpy().max()) + 1 if int(count) == -1 else int(count)
    axis = axis % (x.ndim + 1)
    classes = np.arange(count).reshape([count if i == axis else 1 for i in range(x.ndim + 1)])
    return ops.where(x.expand_dims(axis) == _made(classes, x.dtype), on, off)


# -- tensors made anew ------------------------------------------------------------------------------------------------


def _like(value: float) -> Callable[..., Tensor]:
    return lambda prim, x, dtype=None, *rest: _made(np.full(x.shape, value), _dtype(dtype, x.dtype))


def full_like(prim: Any, x: Tensor, value: Any, dtype: Any = None) -> Tensor:
    return _made(np.full(x.shape, _number(value)), _dtype(dtype, x.dtype))


def full(prim: Any, size: Sequence[int], value: Any, dtype: Any = None) -> Tensor:
    number = _number(value)
    usual = {bool: ms.bool_, int: ms.int64}.get(type(number), ms.float32)
    return _made(np.full(tuple(size), number), _dtype(dtype, usual))


def arange(prim: Any, start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Tensor:
    numbers = [_number(v) for v in (start, end, step)]
    usual = ms.int64 if all(isinstance(v, int) for v in numbers) else ms.float32
    return _made(np.arange(*numbers), _dtype(dtype, usual))


def linspace(prim: Any, start: Any, end: Any, steps: int, dtype: Any = None) -> Tensor:
    return _made(np.linspace(_number(start), _number(end), int(steps)), _dtype(dtype, ms.float32))


def _number(value: Any) -> Any:
    return value.asnumpy().item() if isinstance(value, ms.Tensor) else value


# -- in place ---------------------------------------------------------------------------------------------------------


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def write(prim: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        x.copy_(function(x, *args, **kwargs).astype(x.dtype))
        return x

    return write


def _filled(x: Tensor, value: Any = 0) -> Tensor:
    return _made(np.full(x.shape, _number(value)), x.dtype)


def _clamped(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    x = x if min is None else ops.maximum(x, min if isinstance(min, ms.Tensor) else float(min))
    return x if max is None else ops.minimum(x, max if isinstance(max, ms.Tensor) else float(max))


def _masked(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return ops.where(mask, _made(_number(value), x.dtype), x)


fill_, clamp_, masked_fill_ = _in_place(_filled), _in_place(_clamped), _in_place(_masked)


# -- losses -----------------------------------------------------------------------------------------------------------


def _reduced(loss: Tensor, reduction: Any) -> Tensor:
    kind = {0: "sum", 1: "mean", 2: "none"}.get(reduction, reduction)
    return {"none": lambda x: x, "mean": ops.mean, "sum": ops.sum}[str(kind)](loss)


def kl_div(prim: Any, x: Tensor, target: Tensor, reduction: Any = "mean", log_target: bool = False) -> Tensor:
    if log_target:
        return _reduced(ops.exp(target) * (target - x), reduction)
    return _reduced(ops.xlogy(target, target) - target * x, reduction)


def mse_loss(prim: Any, x: Tensor, target: Tensor, reduction: Any = "mean") -> Tensor:
    return _reduced((x - target) * (x - target), reduction)


def l1_loss(prim: Any, x: Tensor, target: Tensor, reduction: Any = "mean") -> Tensor:
    return _reduced(ops.abs(x - target), reduction)


#: By the primitive's name: what computes it, what it is called in ``mint``, and what that is made of, if it has a name.
FUNCTIONS: dict[str, tuple[Callable[..., Any], str, str]] = {
    **{
        f"{name.title()}Ext": (_by(getattr(ops, name)), name, f"ops.{name}")
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2")
    },
    "Exp2": (_by(lambda x: ops.exp(x * math.log(2))), "exp2", ""),
    "Log2": (_by(lambda x: ops.log(x) / math.log(2)), "log2", ""),
    "Log10": (_by(lambda x: ops.log(x) / math.log(10)), "log10", ""),
    "Frac": (frac, "frac", ""),
    "LogAddExp": (logaddexp, "logaddexp", ""),
    "AddcmulExt": (addcmul, "addcmul", ""),
    "AddcdivExt": (addcdiv, "addcdiv", ""),
    "LeakyReLUExt": (leaky_relu, "nn.functional.leaky_relu", ""),
    "Var": (variance, "var", ""),
    "Std": (deviation, "std", ""),
    "VarMean": (_with_mean(variance), "var_mean", ""),
    "StdMean": (_with_mean(deviation), "std_mean", ""),
    "LinalgVectorNorm": (vector_norm, "linalg.vector_norm", ""),
    "LpNormV2": (lp_norm, "norm", ""),
    "LogSumExp": (logsumexp, "logsumexp", ""),
    "ArgMaxExt": (_place_of(ops.argmax), "argmax", "ops.argmax"),
    "ArgMinExt": (_place_of(ops.argmin), "argmin", "ops.argmin"),
    "CountNonZero": (count_nonzero, "count_nonzero", ""),
    "EqualExt": (equal, "equal", ""),
    "TraceExt": (trace, "trace", ""),
    "MedianExt": (median, "median", ""),
    "MedianDim": (median_along, "median", ""),
    "Mm": (matmul, "mm", "ops.matmul"),
    "Mv": (matmul, "mv", "ops.matmul"),
    "Dot": (matmul, "dot", "ops.matmul"),
    "Outer": (outer, "outer", ""),
    "Addmm": (_added, "addmm", "ops.matmul"),
    "Addmv": (_added, "addmv", "ops.matmul"),
    "Baddbmm": (_added, "baddbmm", "ops.matmul"),
    "einsum": (einsum, "einsum", "ops.matmul"),
    "MatrixInverseExt": (_by(ops.inverse), "inverse", "ops.inverse"),
    "SortExt": (sort, "sort", "NumPy"),
    "TopkExt": (topk, "topk", "NumPy"),
    "Unique2": (unique, "unique", "NumPy"),
    "BincountExt": (bincount, "bincount", "NumPy"),
    "CumsumExt": (cumsum, "cumsum", "ops.cumsum"),
    "CumminExt": (cummin, "cummin", "ops.cummax"),
    "StackExt": (stack, "stack", "ops.stack"),
    "Roll": (roll, "roll", "ops.gather"),
    "RepeatInterleaveInt": (repeat_interleave, "repeat_interleave", "ops.gather"),
    "RepeatInterleaveTensor": (repeat_interleave, "repeat_interleave", "ops.gather"),
    "IndexSelect": (index_select, "index_select", "ops.gather"),
    "Take": (take, "take", "ops.gather"),
    "ScatterAddExt": (scatter_add, "scatter_add", "ops.tensor_scatter_elements"),
    "ArgSort": (argsort, "argsort", "NumPy"),
    "DiagExt": (diagonal, "diag", "ops.gather"),
    "KLDiv": (kl_div, "nn.functional.kl_div", ""),
    "addcdiv": (addcdiv, "addcdiv", ""),
    "index_add": (index_add, "index_add", "ops.index_add"),
    "Tensor.addcdiv": (addcdiv, "Tensor.addcdiv", ""),
    "Tensor.scatter_add": (scatter_add, "Tensor.scatter_add", "ops.tensor_scatter_elements"),
    "Tensor.repeat": (repeat, "Tensor.repeat", "ops.tile"),
    "Tensor.fill_": (fill_, "Tensor.fill_", "NumPy"),
    "Tensor.masked_fill_": (masked_fill_, "Tensor.masked_fill_", "ops.where"),
    "TrilExt": (tril, "tril", ""),
    "OneHotExt": (one_hot, "nn.functional.one_hot", ""),
    "ZerosLikeExt": (_like(0), "zeros_like", "NumPy"),
    "OnesLikeExt": (_like(1), "ones_like", "NumPy"),
    "FullLike": (full_like, "full_like", "NumPy"),
    "FillScalar": (full, "full", "NumPy"),
    "FillTensor": (full, "full", "NumPy"),
    "Arange": (arange, "arange", "NumPy"),
    "LinSpaceExt": (linspace, "linspace", "NumPy"),
    "InplaceZero": (fill_, "Tensor.zero_", "NumPy"),
    "InplaceFillScalar": (fill_, "Tensor.fill_", "NumPy"),
    "InplaceFillTensor": (fill_, "Tensor.fill_", "NumPy"),
    "InplaceClampScalar": (clamp_, "Tensor.clamp_", ""),
    "InplaceClampTensor": (clamp_, "Tensor.clamp_", ""),
    "InplaceMaskedFillScalar": (masked_fill_, "Tensor.masked_fill_", "ops.where"),
    "InplaceMaskedFillTensor": (masked_fill_, "Tensor.masked_fill_", "ops.where"),
    "MSELossExt": (mse_loss, "nn.functional.mse_loss", ""),
    "L1LossExt": (l1_loss, "nn.functional.l1_loss", ""),
}
