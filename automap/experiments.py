"""What could make one value of another: the experiments on values that tell what lies between two layers.

Nothing here imports a framework: activations are tried in NumPy, on a sample first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from automap.dtypes import Array
from automap.recording import distance
from automap.settings import Layer

#: An experiment has to leave at most the first part of a difference, or what kernels may be off by if that is less
#: than the second part of it.
_LEFT, _NOISE, _MOST = 5e-3, 1e-4, 0.3

#: So many elements are enough to refuse an experiment.
_SAMPLE = 2048


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _leaky(alpha: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > 0, x, alpha * x)


#: Activations that are tried, with what they are called and how they are set.
ACTIVATIONS: tuple[tuple[Layer, Callable[[Array], Array]], ...] = (
    (Layer("relu"), lambda x: np.maximum(x, 0)),
    (Layer("gelu", {"approximate": "none"}), lambda x: x * special.ndtr(x)),
    (Layer("gelu", {"approximate": "tanh"}), _gelu_tanh),
    (Layer("quick_gelu"), lambda x: x * special.expit(1.702 * x)),
    (Layer("silu"), lambda x: x * special.expit(x)),
    (Layer("sigmoid"), special.expit),
    (Layer("tanh"), np.tanh),
    (Layer("relu6"), lambda x: np.clip(x, 0, 6)),
    (Layer("hard_swish"), lambda x: x * np.clip(x + 3, 0, 6) / 6),
    (Layer("hard_sigmoid"), lambda x: np.clip(x + 3, 0, 6) / 6),
    (Layer("leaky_relu", {"alpha": 0.01}), _leaky(0.01)),
    (Layer("leaky_relu", {"alpha": 0.2}), _leaky(0.2)),
    (Layer("leaky_relu", {"alpha": 0.1}), _leaky(0.1)),
    (Layer("elu", {"alpha": 1.0}), lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    (Layer("softplus"), lambda x: np.logaddexp(0, x)),
    (Layer("mish"), lambda x: x * np.tanh(np.logaddexp(0, x))),
)
_IDENTITY = Layer("identity")


@dataclass(frozen=True)
class Explanation:
    """What makes MindSpore's value PyTorch's.

    Attributes:
        cause: the short key.
        words: what is the matter, without the place.
        torch: what PyTorch does to the value, None for nothing.
        mindspore: what MindSpore does, None for nothing.
        value: which of the values it is done to; None for the value itself.
        how: ``"instead"`` (the value is what the operation gives), ``"added"`` or ``"times"``.
    """

    cause: str
    words: str
    torch: Layer | None = None
    mindspore: Layer | None = None
    value: int | None = None
    how: str = "instead"


def name_of(layer: Layer) -> str:
    """A layer in words: ``gelu (tanh)``, ``softmax over axis 1``."""
    words = layer.kind.replace("_", " ")
    if layer.kind == "gelu":
        return f"{words} ({'tanh' if layer.settings.get('approximate') == 'tanh' else 'exact'})"
    if layer.kind == "leaky_relu":
        return f"{words} (slope {layer.settings.get('alpha')})"
    if "axis" in layer.settings:
        return f"{words} over axis {layer.settings['axis']}"
    return words


def _functions(dims: int) -> Iterator[tuple[Layer, Callable[[Array], Array], bool]]:
    """What is tried: the layer, what it does, and whether it does it element by element."""
    yield _IDENTITY, lambda x: x, True
    for layer, function in ACTIVATIONS:
        yield layer, function, True
    for axis in range(dims):
        layer = Layer("softmax", {"axis": axis})
        yield layer, lambda x, axis=axis: special.softmax(x, axis=axis), False  # type: ignore[misc]


def explain(expected: Array, natural: Array, values: Sequence[Array] = ()) -> Explanation | None:
    """What makes MindSpore's value PyTorch's, if a simple thing does.

    Args:
        expected: PyTorch's value.
        natural: MindSpore's, of the same shape.
        values: what was there before, in either network, the nearest first.
    """
    before = distance(expected, natural)
    if expected.shape != natural.shape or expected.dtype.kind not in "fc" or not np.isfinite(before):
        return None
    a, b = expected.astype(np.float64), natural.astype(np.float64)
    enough = min(_MOST * before, max(_LEFT * before, _NOISE))
    tries = (_function_of_itself, _other_function, _sum, _constant, _dropped, _permuted, _product)
    for attempt in tries:
        if found := attempt(a, b, values, enough):
            return found
    return None


def _function_of_itself(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    found: list[tuple[float, int, Explanation]] = []
    for i, (layer, function, plain) in enumerate(_functions(a.ndim)):
        if layer is _IDENTITY:
            continue
        if (apart := _from(a, function, b, plain, enough)) is not None:
            found.append((apart, i, Explanation("activation", f"{name_of(layer)} is missing here", torch=layer)))
        if (apart := _from(b, function, a, plain, enough)) is not None:
            words = f"there is {name_of(layer)} here, which PyTorch has not"
            found.append((apart, i, Explanation("activation", words, mindspore=layer)))
    return min(found, key=lambda f: f[:2])[2] if found else None


def _other_function(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    """Two functions of one earlier value: instead of each other, or inside a sum."""
    for i, value in enumerate(values):
        if value.size != a.size or value.dtype.kind != "f":
            continue
        u = value.astype(np.float64).reshape(a.shape)
        table = list(_functions(a.ndim))
        one, other = (_nearest(target, u, table, enough) for target in (a, b))
        if one is not None and other is not None and one != other:
            return _exchanged(one, other, i, "instead")
        pick = _picked(a.size)
        flat_u, difference = u.ravel()[pick], (a - b).ravel()[pick]
        plain_ones = [(layer, f, f(flat_u)) for layer, f, plain in table if plain]
        scale = float(np.abs(a).max()) or 1.0
        near = [
            (distance(a, b + f(u) - g(u)), k, this, that)
            for k, ((this, f, x), (that, g, y)) in enumerate(itertools.permutations(plain_ones, 2))
            if np.abs(x - y - difference).max() <= enough * scale
        ]
        if near and min(near, key=lambda n: n[:2])[0] <= enough:
            return _exchanged(*min(near, key=lambda n: n[:2])[2:], i, "added")
    return None


def _exchanged(torch: Layer, mindspore: Layer, value: int, how: str) -> Explanation:
    if mindspore is _IDENTITY:
        return Explanation("activation", f"{name_of(torch)} is missing here", torch, None, value, how)
    if torch is _IDENTITY:
        words = f"there is {name_of(mindspore)} here, which PyTorch has not"
        return Explanation("activation", words, None, mindspore, value, how)
    causes = {"gelu": "gelu", "leaky_relu": "alpha", "softmax": "axis"}
    cause = causes.get(torch.kind, "activation") if torch.kind == mindspore.kind else "activation"
    return Explanation(cause, f"{name_of(mindspore)} here, {name_of(torch)} in PyTorch", torch, mindspore, value, how)


def _sum(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    """Something that was there before is added on one side only."""
    difference, scale = a - b, float(np.abs(a).max()) or 1.0
    for i, value in enumerate(values):
        if value.size != a.size or value.dtype.kind != "f" or not np.any(value):
            continue
        u = value.astype(np.float64).reshape(a.shape)
        if np.abs(difference - u).max() <= enough * scale:
            return Explanation("residual", "a sum is missing here: an earlier value is not added", value=i, how="sum")
        if np.abs(difference + u).max() <= enough * scale:
            return Explanation("residual", "an earlier value is added here, which PyTorch does not", value=i, how="sum")
    return None


def _constant(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    """A factor, or one number for each channel."""
    scale = float(np.abs(a).max()) or 1.0
    enough = min(enough, max(1e-3 * distance(a, b), 1e-5))
    norm = float((b * b).sum())
    factor = float((a * b).sum()) / norm if norm else 0.0
    if factor and abs(factor - 1) > 1e-6 and np.abs(a - factor * b).max() <= enough * scale:
        return Explanation(
            "scale", f"a factor of {factor:.6g} is missing here", torch=Layer("scale", {"factor": factor})
        )
    if a.ndim < 2:
        return None
    difference = a - b
    for axis in {1, a.ndim - 1}:
        others = tuple(i for i in range(a.ndim) if i != axis)
        mean = difference.mean(axis=others, keepdims=True)
        if a.size > a.shape[axis] and np.abs(difference - mean).max() <= enough * scale:
            return Explanation("bias", f"a number for each channel (axis {axis}) is not added here", how="bias")
    mean = difference.mean(axis=0, keepdims=True)
    if a.shape[0] > 1 and np.abs(difference - mean).max() <= enough * scale:
        return Explanation("added", "a value that is the same for every sample is not added here", how="bias")
    return None


def _dropped(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    """Dropout that acts: every element is either gone or larger by one factor; of the value, or of what is added."""
    for whole in (a, *(v for v in values if v.size == a.size and v.dtype.kind == "f")):
        u = whole.astype(np.float64).reshape(a.shape)
        got = b - (a - u)
        scale = float(np.abs(u).max()) or 1.0
        some = np.abs(u) > 1e-3 * scale
        gone = np.abs(got) <= 1e-5 * scale
        share = float(gone[some].mean()) if some.any() else 0.0
        if not 0.005 < share < 0.995:
            continue
        ratio = got[some & ~gone] / u[some & ~gone]
        factor = float(np.median(ratio))
        if factor > 1.0001 and np.quantile(np.abs(ratio - factor), 0.98) <= 1e-2 * factor:
            p = 1 - 1 / factor
            words = f"a dropout acts in inference here: {p:.2g} of the values are gone"
            return Explanation("dropout", words, mindspore=Layer("dropout", {"p": p, "training": True}))
    return None


def _permuted(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    """The same values in another order."""
    scale = float(np.abs(a).max()) or 1.0
    tolerance = 2e-5 * scale
    if a.ndim < 2 or np.abs(np.sort(a, axis=None) - np.sort(b, axis=None)).max() > tolerance:
        return None
    for axis in range(1, a.ndim):
        # Slices along one axis as a whole: a concatenation in another order.
        x, y = (np.moveaxis(v, axis, 0).reshape(v.shape[axis], -1) for v in (a, b))
        order = _same_rows(x, y, tolerance)
        if order is not None and x.shape[1] > 1:
            if _blocks(order) <= 4 and len(order) > 2:
                return Explanation("order", f"what is joined along axis {axis} is in another order here")
            words = f"what lies along axis {axis} is in another order here"
            return Explanation("axis", words)
    return Explanation("axis", "the same values are in another order here: axes are exchanged")


def _same_rows(x: Array, y: Array, tolerance: float) -> list[int] | None:
    """For each row of ``y`` which row of ``x`` it is, or None if one is none or another's."""
    if len(x) > 4096:
        return None
    by_sum = np.argsort(x.sum(axis=1))
    sums = x.sum(axis=1)[by_sum]
    order: list[int] = []
    for row in y:
        total = row.sum()
        slack = tolerance * len(row)
        low, high = np.searchsorted(sums, total - slack), np.searchsorted(sums, total + slack, side="right")
        found = next((int(i) for i in by_sum[low:high] if np.abs(x[i] - row).max() <= tolerance), None)
        if found is None:
            return None
        order.append(found)
    return order if len(set(order)) == len(order) else None


def _blocks(order: Sequence[int]) -> int:
    """How many runs of consecutive numbers there are."""
    return 1 + sum(b != a + 1 for a, b in itertools.pairwise(order))


def _product(a: Array, b: Array, values: Sequence[Array], enough: float) -> Explanation | None:
    """A function inside a product: of a gate, which may have fewer elements."""
    scale = float(np.abs(a).max()) or 1.0
    floats = [(i, v.astype(np.float64)) for i, v in enumerate(values) if v.dtype.kind == "f"]
    whole = [(i, v.reshape(a.shape)) for i, v in floats if v.size == a.size]
    table = [(layer, f) for layer, f, plain in _functions(0) if plain]
    for i, gate in floats:
        u = _broadcast(gate, a.shape)
        if u is None:
            continue
        results = [(layer, f(u)) for layer, f in table]
        for j, v in whole:
            if i == j:
                continue
            if v.shape == u.shape:
                for layer, f in table[1:]:
                    if _near(a, v, f(u), enough * scale) and _near(b, u, f(v), enough * scale):
                        return Explanation("order", f"{name_of(layer)} acts on the other factor here", layer, layer, i)
            gives_b = [layer for layer, fu in results if _near(b, v, fu, enough * scale)]
            gives_a = [layer for layer, fu in results if _near(a, v, fu, enough * scale)]
            if gives_a and gives_b:
                return _exchanged(gives_a[0], gives_b[0], i, "times")
    return None


def _near(target: Array, v: Array, fu: Array, tolerance: float) -> bool:
    full = np.broadcast_to(fu, target.shape)
    pick = _picked(target.size)
    sampled = np.abs(target.ravel()[pick] - v.ravel()[pick] * full.ravel()[pick]).max()
    return bool(sampled <= tolerance and np.abs(target - v * full).max() <= tolerance)


def _broadcast(gate: Array, shape: tuple[int, ...]) -> Array | None:
    if gate.size == int(np.prod(shape)):
        return gate.reshape(shape)
    if gate.size < 2:
        return None
    candidate = gate.reshape(gate.shape + (1,) * (len(shape) - gate.ndim)) if gate.ndim < len(shape) else gate
    try:
        np.broadcast_shapes(candidate.shape, shape)
    except ValueError:
        return None
    return candidate if np.broadcast_shapes(candidate.shape, shape) == shape else None


def _picked(size: int) -> Any:
    if size <= _SAMPLE:
        return slice(None)
    return np.random.Generator(np.random.PCG64(size)).integers(0, size, _SAMPLE)


def _nearest(target: Array, of: Array, table: Sequence[Any], enough: float) -> Layer | None:
    """The function that gives a value of another, the nearest if several are near enough."""
    found = [(apart, layer) for layer, f, plain in table if (apart := _from(target, f, of, plain, enough)) is not None]
    return min(found, key=lambda f: f[0])[1] if found else None


def _from(target: Array, function: Callable[[Array], Array], of: Array, plain: bool, enough: float) -> float | None:
    """How far a function of one value is from another, None if it is too far."""
    scale = float(np.abs(target).max()) or 1.0
    if plain:
        pick = _picked(of.size)
        if np.abs(function(of.ravel()[pick]) - target.ravel()[pick]).max() > enough * scale:
            return None
    apart = distance(target, function(of))
    return apart if apart <= enough else None
