"""The settings of a live MindSpore cell under their common names, and how to run it with others.

It imports MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as edge  # isort: skip
import mindspore as ms
from mindspore import nn, ops
from mindspore.mint import nn as mint

from automap.dtypes import Array
from automap.settings import Layer, family, kind_by_name, settings_by_attribute, sides, symmetric

__all__ = ["can_change", "edge", "function_of", "overwrite", "read", "run_with"]


def _classes(*names: str) -> Any:
    """Classes of ``nn`` and ``mint.nn`` that this version of MindSpore has."""
    found = (getattr(module, name, None) for name in names for module in (nn, mint))
    return tuple(dict.fromkeys(c for c in found if isinstance(c, type)))


#: Layers without parameters: classes, kind, and setting -> attribute.
_SIMPLE: tuple[tuple[tuple[type, ...], str, dict[str, str]], ...] = (
    (_classes("ReLU6"), "relu6", {}),
    (_classes("LeakyReLU"), "leaky_relu", {"alpha": "alpha"}),
    (_classes("ReLU"), "relu", {}),
    (_classes("GELU"), "gelu", {"approximate": "approximate"}),
    (_classes("FastGelu"), "quick_gelu", {}),
    (_classes("ELU"), "elu", {"alpha": "elu.alpha"}),
    (_classes("CELU"), "celu", {}),
    (_classes("SeLU", "SELU"), "selu", {}),
    (_classes("SiLU"), "silu", {}),
    (_classes("Mish"), "mish", {}),
    (_classes("HSigmoid", "Hardsigmoid"), "hard_sigmoid", {}),
    (_classes("HSwish", "Hardswish"), "hard_swish", {}),
    (_classes("Hardtanh"), "hard_tanh", {"low": "min_val", "high": "max_val"}),
    (_classes("Softsign"), "softsign", {}),
    (_classes("LogSigmoid"), "log_sigmoid", {}),
    (_classes("Sigmoid"), "sigmoid", {}),
    (_classes("Tanh"), "tanh", {}),
    (_classes("PReLU"), "prelu", {}),
    (_classes("Softmax"), "softmax", {"axis": "softmax.axis"}),
    (_classes("LogSoftmax"), "log_softmax", {"axis": "log_softmax.axis"}),
    (_classes("Identity"), "identity", {}),
    (_classes("Flatten"), "flatten", {}),
    (_classes("PixelShuffle"), "pixel_shuffle", {"scale": "upscale_factor"}),
)
_POOLS: tuple[tuple[tuple[type, ...], str, int], ...] = (
    (_classes("MaxPool1d"), "max_pool", 1),
    (_classes("MaxPool2d", "MaxPool2dExt"), "max_pool", 2),
    (_classes("MaxPool3d"), "max_pool", 3),
    (_classes("AvgPool1d", "AvgPool1dExt"), "avg_pool", 1),
    (_classes("AvgPool2d", "AvgPool2dExt"), "avg_pool", 2),
    (_classes("AvgPool3d", "AvgPool3dExt"), "avg_pool", 3),
)
_CONVOLUTIONS: tuple[tuple[tuple[type, ...], str, int], ...] = (
    (_classes("Conv1d"), "conv", 1),
    (_classes("Conv2d"), "conv", 2),
    (_classes("Conv3d"), "conv", 3),
    (_classes("Conv1dTranspose"), "conv_transpose", 1),
    (_classes("Conv2dTranspose", "ConvTranspose2d"), "conv_transpose", 2),
    (_classes("Conv3dTranspose"), "conv_transpose", 3),
)
_BATCH_NORMS = _classes("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_ADAPTIVE_AVG = _classes("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d")
_ADAPTIVE_MAX = _classes("AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d")


def read(cell: nn.Cell) -> Layer:
    """What a cell is, and its settings; see :class:`automap.settings.Layer`."""
    kind, settings = _read(cell)
    return Layer(kind, settings, type(cell).construct.__module__.startswith("mindspore."))


def _read(cell: Any) -> tuple[str, dict[str, Any]]:
    for classes, kind, dims in _CONVOLUTIONS:
        if isinstance(cell, classes):
            return kind, _convolution(cell, dims)
    if isinstance(cell, _classes("Dense", "Linear")):
        return "linear", {"bias": getattr(cell, "bias", None) is not None}
    if isinstance(cell, _BATCH_NORMS):
        return "batch_norm", _batch_norm(cell)
    if isinstance(cell, _classes("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")):
        return "instance_norm", {"eps": float(cell.eps)}
    if isinstance(cell, _classes("LayerNorm")):
        own = not hasattr(cell, "epsilon")  # mint's normalises what its shape says
        axis = -len(cell.normalized_shape) if own else cell.begin_norm_axis
        return "layer_norm", {"eps": float(cell.eps if own else cell.epsilon), "norm_axis": axis}
    if isinstance(cell, _classes("GroupNorm")):
        return "group_norm", {"eps": float(cell.eps), "groups": cell.num_groups}
    for classes, kind, dims in _POOLS:
        if isinstance(cell, classes):
            return kind, _pool(cell, kind, dims)
    if isinstance(cell, _ADAPTIVE_AVG + _ADAPTIVE_MAX):
        return "adaptive_avg_pool" if isinstance(cell, _ADAPTIVE_AVG) else "adaptive_max_pool", {}
    if isinstance(cell, _classes("Dropout", "Dropout2d", "DropoutExt")):
        dropped = cell.p if cell.p is not None else 1 - cell.keep_prob
        return "dropout", {"p": float(dropped), "training": False}
    if isinstance(cell, _classes("Upsample")):
        return "upsample", _upsample(cell)
    if isinstance(cell, _classes("Embedding", "EmbeddingLookup")):
        return "embedding", {}
    if isinstance(cell, _classes("MultiheadAttention")):
        return "attention", {"heads": cell.num_heads, "batch_first": cell.batch_first, "p": cell.dropout}
    if isinstance(cell, _classes("LSTM", "GRU", "RNN")):
        return type(cell).__name__.lower(), {
            "layers": cell.num_layers,
            "bidirectional": cell.bidirectional,
            "batch_first": cell.batch_first,
            "bias": cell.has_bias,
            "hidden": cell.hidden_size,
        }
    for classes, kind, attributes in _SIMPLE:
        if isinstance(cell, classes):
            return kind, {s: v for s, path in attributes.items() if (v := _plain(_get(cell, path))) is not None}
    kind = kind_by_name(type(cell).__name__) if not cell._cells else ""
    return kind, settings_by_attribute(cell, kind)


def _get(cell: Any, path: str) -> Any:
    for name in path.split("."):
        cell = getattr(cell, name, None)
    return cell


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def _pads(pad_mode: str, padding: Any, dims: int) -> Any:
    """Padding under its common name: MindSpore gives one number, one for each end, or one for each dimension."""
    if pad_mode.lower() == "same":
        return "same"
    if pad_mode.lower() == "valid":
        return symmetric(0, dims)
    values = (padding,) * 2 * dims if isinstance(padding, int) else tuple(padding)
    if len(values) >= 2 * dims:
        values = values[-2 * dims :]
        return tuple((values[2 * i], values[2 * i + 1]) for i in range(dims))
    return symmetric(values, dims)


def _convolution(cell: Any, dims: int) -> dict[str, Any]:
    mint_like = not hasattr(cell, "pad_mode")
    settings = {
        "kernel": sides(cell.kernel_size, dims),
        "stride": sides(cell.stride, dims),
        "dilation": sides(cell.dilation, dims),
        "groups": cell.groups if mint_like else cell.group,
        "bias": getattr(cell, "bias", None) is not None,
        "padding_mode": getattr(cell, "padding_mode", "zeros"),
    }
    if mint_like:
        settings["padding"] = "same" if cell.padding == "same" else symmetric(cell.padding, dims)
        if cell.padding == "valid":
            settings["padding"] = symmetric(0, dims)
    else:
        settings["padding"] = _pads(cell.pad_mode, cell.padding, dims)
    if isinstance(cell, _classes("Conv2dTranspose", "ConvTranspose2d")):
        settings["output_padding"] = sides(cell.output_padding, dims)
    return settings


def _batch_norm(cell: Any) -> dict[str, Any]:
    cell = getattr(cell, "bn2d", cell)
    # nn keeps 1 - momentum, which is PyTorch's meaning already; mint takes PyTorch's as it is.
    batch = getattr(cell, "use_batch_statistics", None)
    tracked = getattr(cell, "track_running_stats", True)
    return {"eps": float(cell.eps), "momentum": cell.momentum, "batch_statistics": bool(batch) or not tracked}


def _pool(cell: Any, kind: str, dims: int) -> dict[str, Any]:
    if not hasattr(cell, "pad_mode"):  # mint's
        stride = cell.kernel_size if cell.stride is None else cell.stride
        settings = {
            "kernel": sides(cell.kernel_size, dims),
            "stride": sides(stride, dims),
            "padding": symmetric(cell.padding, dims),
            "ceil_mode": bool(cell.ceil_mode),
        }
        names = {"dilation": "dilation", "count_include_pad": "count_include_pad"}
        return settings | {s: getattr(cell, a) for s, a in names.items() if isinstance(getattr(cell, a, None), bool)}
    primitive: Any = getattr(cell, kind, None)
    padding = getattr(primitive, "pads", getattr(primitive, "pad_list", 0))
    if isinstance(padding, (tuple, list)) and kind == "max_pool":
        padding = tuple(padding)[-dims:]  # one for each dimension, those without extent first
    settings = {
        "kernel": sides(cell.kernel_size, dims),
        "stride": sides(cell.stride, dims),
        "padding": _pads(cell.pad_mode, padding, dims),
        "ceil_mode": bool(getattr(primitive, "ceil_mode", False)),
    }
    if kind == "avg_pool":
        # The plain operation leaves the padding out of the mean; the other says what it does.
        settings["count_include_pad"] = bool(getattr(primitive, "count_include_pad", False))
        if getattr(primitive, "divisor_override", 0):
            settings["divisor"] = primitive.divisor_override
    elif hasattr(primitive, "dilation"):
        settings["dilation"] = sides(primitive.dilation, dims)
    return settings


def _upsample(cell: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"mode": cell.mode, "align_corners": bool(cell.align_corners)}
    if cell.size is not None:
        settings["size"] = cell.size
    if cell.scale_factor is not None:
        settings["scale"] = cell.scale_factor
    return settings


# -- running a cell with other settings --------------------------------------------------------------------------------

#: What runs a cell as the caller would have: its own call.
Proceed = Callable[..., Any]


def can_change(cell: nn.Cell, changes: Mapping[str, Any]) -> bool:
    """Whether :func:`run_with` knows how to give a cell these settings."""
    try:
        layer = read(cell)
        if not cell._params and family(layer.kind) in ("activation", "softmax", "pool", "dropout", "upsample"):
            function_of(Layer(layer.kind, {**layer.settings, **changes}))
        else:
            _edits(cell, layer, {k: v for k, v in changes.items() if k != "bias"})
    except (LookupError, ValueError, TypeError):
        return False
    return True


def run_with(
    cell: nn.Cell, changes: Mapping[str, Any], proceed: Proceed, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """One call of a cell under other settings, which afterwards is as it was.

    A cell without parameters is replaced by an equal one; another gets other attributes for the time of the call. An
    array as ``bias`` is added to what the cell returns.

    Raises:
        LookupError: it is not known how to give this cell these settings.
    """
    layer = read(cell)
    if not cell._params and family(layer.kind) in ("activation", "softmax", "pool", "dropout", "upsample"):
        kind = changes.get("kind", layer.kind)
        settings = {**layer.settings, **{k: v for k, v in changes.items() if k != "kind"}}
        return function_of(Layer(kind, settings))(*args, **kwargs)
    edits = _edits(cell, layer, {k: v for k, v in changes.items() if k != "bias"})
    with _edited(cell, edits):
        out = proceed(*args, **kwargs)
    bias = changes.get("bias")
    if bias is None or isinstance(bias, bool):
        return out
    shape = [1] * out.ndim
    shape[-1 if layer.kind == "linear" or out.ndim == 2 else 1] = -1
    return out + ms.Tensor(bias).astype(out.dtype).reshape(shape)


def overwrite(tensor: ms.Tensor, array: Array) -> None:
    """Give a tensor other values where it is, so that whoever holds it goes on with them."""
    tensor.assign_value(ms.Tensor(array).astype(tensor.dtype))


@contextmanager
def _edited(cell: nn.Cell, edits: Mapping[str, Any]) -> Iterator[None]:
    own = {name: vars(cell)[name] for name in edits if name in vars(cell)}
    primitives = dict(cell._primitives)
    try:
        for name, value in edits.items():
            setattr(cell, name, value)
        yield
    finally:
        for name in edits:
            if name in own:
                object.__setattr__(cell, name, own[name])
            else:
                vars(cell).pop(name, None)
        cell._primitives.clear()
        cell._primitives.update(primitives)


def _edits(cell: Any, layer: Layer, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that give a cell other settings.

    Raises:
        LookupError: it is not known how.
    """
    if not changes:
        return {}
    if layer.kind == "conv" and hasattr(cell, "pad_mode"):
        return _convolution_edits(cell, layer, changes)
    if set(changes) == {"eps"}:
        return _eps_edits(cell, layer, changes["eps"])
    if layer.kind == "layer_norm" and hasattr(cell, "layer_norm") and set(changes) <= {"eps", "norm_axis"}:
        axis, eps = changes.get("norm_axis", cell.begin_norm_axis), changes.get("eps", cell.epsilon)
        primitive = ops.LayerNorm(begin_norm_axis=axis, begin_params_axis=axis, epsilon=eps)
        return {"layer_norm": primitive, "epsilon": eps, "begin_norm_axis": axis, "begin_params_axis": axis}
    if layer.kind == "batch_norm" and set(changes) <= {"eps", "batch_statistics"}:
        edits = _eps_edits(cell, layer, changes["eps"]) if "eps" in changes else {}
        if hasattr(cell, "use_batch_statistics") and "batch_statistics" in changes:
            return {**edits, "use_batch_statistics": bool(changes["batch_statistics"])}
    if layer.kind == "group_norm" and set(changes) <= {"eps", "groups"}:
        return {{"groups": "num_groups"}.get(k, k): v for k, v in changes.items()}
    if layer.kind == "attention" and set(changes) == {"heads"}:
        return {"num_heads": changes["heads"], "head_dim": cell.embed_dim // changes["heads"]}
    if layer.kind == "prelu" or set(changes) - {"alpha", "axis"}:
        raise LookupError(f"no way to change {', '.join(changes)} of {type(cell).__name__}")
    edits = {}
    for setting, value in changes.items():
        names = {"alpha": ("negative_slope", "alpha"), "axis": ("axis", "dim")}[setting]
        edits.update({name: value for name in names if isinstance(vars(cell).get(name), (int, float))})
    if not edits:
        raise LookupError(f"no way to change {', '.join(changes)} of {type(cell).__name__}")
    return edits


def _eps_edits(cell: Any, layer: Layer, eps: float) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    for name in ("eps", "epsilon", "variance_epsilon", "norm_eps"):
        if isinstance(vars(cell).get(name), float):
            edits[name] = eps
    for name, primitive in cell._primitives.items():
        attributes = getattr(primitive, "init_attrs", {})
        if "epsilon" in attributes:
            # The same operation again, with another epsilon.
            edits[name] = type(primitive)(**{**attributes, "epsilon": eps})
    if not edits:
        raise LookupError(f"no way to change epsilon of {type(cell).__name__} ({layer.kind or 'unknown'})")
    return edits


def _convolution_edits(cell: Any, layer: Layer, changes: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {**layer.settings, **changes}
    dims = len(wanted["kernel"])
    if dims == 3 or set(changes) - {"padding", "stride", "dilation", "groups"} or wanted["groups"] != cell.group:
        raise LookupError(f"no way to change {', '.join(changes)} of {type(cell).__name__}")
    padding = wanted["padding"]
    ends = (0,) * 4 if padding == "same" else (0, 0) * (2 - dims) + tuple(e for pair in padding for e in pair)
    one = (1,) * (2 - dims)
    primitive = ops.Conv2D(
        out_channel=cell.out_channels,
        kernel_size=cell.kernel_size,
        mode=1,
        pad_mode="same" if padding == "same" else "pad",
        pad=ends,
        stride=(*one, *wanted["stride"]),
        dilation=(*one, *wanted["dilation"]),
        group=cell.group,
    )
    return {"conv2d": primitive}


def function_of(layer: Layer) -> Callable[..., Any]:
    """A function without parameters that does what a layer of this kind and these settings does.

    Raises:
        LookupError: there is none for this kind.
    """
    s = layer.settings
    if layer.family == "activation":
        return _activation(layer.kind, s)
    if layer.kind == "softmax":
        return lambda x: ops.softmax(x, axis=s["axis"])
    if layer.kind == "log_softmax":
        return lambda x: ops.log_softmax(x, axis=s["axis"])
    if layer.kind in ("max_pool", "avg_pool"):
        return _pool_function(layer.kind, s)
    if layer.kind in ("dropout", "identity"):
        return lambda x, *_: x
    if layer.kind == "upsample":
        corners = None if "linear" not in s["mode"] and "cubic" not in s["mode"] else s["align_corners"]
        factor, scale = s.get("size"), s.get("scale")
        if factor is not None:
            return lambda x: ops.interpolate(x, size=factor, mode=s["mode"], align_corners=corners)
        return lambda x: ops.interpolate(x, size=_scaled(x.shape, scale), mode=s["mode"], align_corners=corners)
    raise LookupError(f"no function for {layer.kind}")


def _scaled(shape: tuple[int, ...], scale: Any) -> tuple[int, ...]:
    factors = scale if isinstance(scale, (tuple, list)) else (scale,) * (len(shape) - 2)
    return tuple(int(side * f) for side, f in zip(shape[2:], factors, strict=True))


def _activation(kind: str, s: Mapping[str, Any]) -> Callable[..., Any]:
    table: dict[str, Callable[..., Any]] = {
        "relu": ops.relu,
        "relu6": ops.relu6,
        "leaky_relu": lambda x: ops.leaky_relu(x, s.get("alpha", 0.01)),
        "gelu": lambda x: ops.gelu(x, approximate=s.get("approximate", "none")),
        "quick_gelu": lambda x: x * ops.sigmoid(1.702 * x),
        "elu": lambda x: ops.where(x > 0, x, s.get("alpha", 1.0) * (ops.exp(x.clip(None, 0.0)) - 1)),
        "selu": ops.selu,
        "silu": ops.silu,
        "mish": ops.mish,
        "hard_sigmoid": lambda x: ops.relu6(x + 3) / 6,
        "hard_swish": lambda x: x * ops.relu6(x + 3) / 6,
        "hard_tanh": lambda x: x.clip(s.get("low", -1.0), s.get("high", 1.0)),
        "softsign": ops.softsign,
        "log_sigmoid": lambda x: -ops.softplus(-x),
        "sigmoid": ops.sigmoid,
        "tanh": ops.tanh,
        "softplus": lambda x: ops.softplus(x, s.get("beta", 1.0), s.get("threshold", 20.0)),
    }
    return table[kind]


def _pool_function(kind: str, s: Mapping[str, Any]) -> Callable[..., Any]:
    kernel, stride, padding = s["kernel"], s["stride"], s["padding"]
    dims = len(kernel)
    if dims == 3 or s.get("divisor"):
        raise LookupError(f"no function for {kind} of {dims} dimensions with a divisor")
    if dims == 1:
        flat = _pool_function(
            kind,
            {
                **s,
                "kernel": (1, *kernel),
                "stride": (1, *stride),
                "padding": padding if padding == "same" else ((0, 0), *padding),
                "dilation": (1, *s.get("dilation", (1,))),
            },
        )
        return lambda x: flat(x.expand_dims(2)).squeeze(2)
    if padding == "same":
        cell: Any = nn.MaxPool2d if kind == "max_pool" else nn.AvgPool2d
        found: Callable[..., Any] = cell(kernel, stride, pad_mode="same")
        return found
    if any(low != high for low, high in padding):
        raise LookupError(f"no function for {kind} with padding that differs at both ends")
    ends = tuple(low for low, _ in padding)
    if kind == "max_pool":
        dilation = s.get("dilation", (1, 1))
        if s.get("ceil_mode") or set(dilation) != {1}:
            pool: Callable[..., Any] = nn.MaxPool2d(
                kernel, stride, pad_mode="pad", padding=ends, dilation=dilation, ceil_mode=s.get("ceil_mode", False)
            )
            return pool
        plain = nn.MaxPool2d(kernel, stride, pad_mode="valid")
        low = -3.0e38
        pads = (ends[1], ends[1], ends[0], ends[0])
        return lambda x: plain(ops.pad(x, pads, value=low) if any(pads) else x)
    average: Callable[..., Any] = nn.AvgPool2d(
        kernel,
        stride,
        pad_mode="pad",
        padding=ends,
        ceil_mode=s.get("ceil_mode", False),
        count_include_pad=s.get("count_include_pad", True),
    )
    return average
