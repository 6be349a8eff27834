"""The settings of a live PyTorch module under their common names. It imports PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from automap.settings import Layer, kind_by_name, settings_by_attribute, sides, symmetric

_CONV, _TRANSPOSE = nn.modules.conv._ConvNd, nn.modules.conv._ConvTransposeNd
_POOLS: tuple[tuple[tuple[type, ...], str, int], ...] = (
    ((nn.MaxPool1d,), "max_pool", 1),
    ((nn.MaxPool2d,), "max_pool", 2),
    ((nn.MaxPool3d,), "max_pool", 3),
    ((nn.AvgPool1d,), "avg_pool", 1),
    ((nn.AvgPool2d,), "avg_pool", 2),
    ((nn.AvgPool3d,), "avg_pool", 3),
)
#: Layers without a shape of their own: class, kind, and setting -> attribute.
_SIMPLE: tuple[tuple[type | tuple[type, ...], str, dict[str, str]], ...] = (
    (nn.ReLU6, "relu6", {}),
    (nn.ReLU, "relu", {}),
    (nn.LeakyReLU, "leaky_relu", {"alpha": "negative_slope"}),
    (nn.GELU, "gelu", {"approximate": "approximate"}),
    (nn.ELU, "elu", {"alpha": "alpha"}),
    (nn.CELU, "celu", {"alpha": "alpha"}),
    (nn.SELU, "selu", {}),
    (nn.SiLU, "silu", {}),
    (nn.Mish, "mish", {}),
    (nn.Hardsigmoid, "hard_sigmoid", {}),
    (nn.Hardswish, "hard_swish", {}),
    (nn.Hardtanh, "hard_tanh", {"low": "min_val", "high": "max_val"}),
    (nn.Softplus, "softplus", {"beta": "beta", "threshold": "threshold"}),
    (nn.Softsign, "softsign", {}),
    (nn.LogSigmoid, "log_sigmoid", {}),
    (nn.Sigmoid, "sigmoid", {}),
    (nn.Tanh, "tanh", {}),
    (nn.PReLU, "prelu", {}),
    (nn.Softmax, "softmax", {"axis": "dim"}),
    (nn.LogSoftmax, "log_softmax", {"axis": "dim"}),
    (nn.modules.dropout._DropoutNd, "dropout", {"p": "p"}),
    (nn.Identity, "identity", {}),
    (nn.Flatten, "flatten", {}),
    (nn.PixelShuffle, "pixel_shuffle", {"scale": "upscale_factor"}),
)


def read(module: nn.Module) -> Layer:
    """What a module is, and its settings; see :class:`automap.settings.Layer`."""
    kind, settings = _read(module)
    return Layer(kind, settings, _own(module))


def _own(module: nn.Module) -> bool:
    return bool(type(module).forward.__module__.startswith("torch.nn."))


def _read(module: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(module, _CONV):
        return _convolution(module)
    if isinstance(module, nn.Linear):
        return "linear", {"bias": module.bias is not None}
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        batch = module.running_mean is None
        return "batch_norm", {"eps": module.eps, "momentum": module.momentum, "batch_statistics": batch}
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return "instance_norm", {"eps": module.eps, "batch_statistics": module.running_mean is None}
    if isinstance(module, nn.LayerNorm):
        axis = -len(module.normalized_shape)
        return "layer_norm", {"eps": module.eps, "norm_axis": axis, "bias": module.bias is not None}
    if isinstance(module, nn.GroupNorm):
        return "group_norm", {"eps": module.eps, "groups": module.num_groups}
    rms_norm: Any = getattr(nn, "RMSNorm", ())  # since PyTorch 2.4
    if isinstance(module, rms_norm):
        return "rms_norm", {"eps": module.eps if module.eps is not None else torch.finfo(torch.float32).eps}
    for classes, kind, dims in _POOLS:
        if isinstance(module, classes):
            return kind, _pool(module, dims)
    if isinstance(module, (nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd)):
        kind = "adaptive_avg_pool" if isinstance(module, nn.modules.pooling._AdaptiveAvgPoolNd) else "adaptive_max_pool"
        return kind, {}
    if isinstance(module, nn.Upsample):
        return "upsample", _upsample(module)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding", {}
    if isinstance(module, nn.MultiheadAttention):
        return "attention", {"heads": module.num_heads, "batch_first": module.batch_first, "p": module.dropout}
    if isinstance(module, nn.RNNBase):
        return module.mode.lower().split("_")[0], {
            "layers": module.num_layers,
            "bidirectional": module.bidirectional,
            "batch_first": module.batch_first,
            "bias": module.bias,
            "hidden": module.hidden_size,
        }
    for simple, kind, attributes in _SIMPLE:
        if isinstance(module, simple):
            settings = {setting: getattr(module, name) for setting, name in attributes.items()}
            if kind == "dropout":
                settings["training"] = False  # what the runner sets
            return kind, settings
    kind = kind_by_name(type(module).__name__) if not any(True for _ in module.children()) else ""
    return kind, settings_by_attribute(module, kind)


def _convolution(module: Any) -> tuple[str, dict[str, Any]]:
    dims = len(module.kernel_size)
    settings = {
        "kernel": tuple(module.kernel_size),
        "stride": tuple(module.stride),
        "dilation": tuple(module.dilation),
        "groups": module.groups,
        "bias": module.bias is not None,
        "padding_mode": module.padding_mode,
    }
    if isinstance(module.padding, str):
        settings["padding"] = "same" if module.padding == "same" else symmetric(0, dims)
    else:
        settings["padding"] = symmetric(module.padding, dims)
    if isinstance(module, _TRANSPOSE):
        return "conv_transpose", {**settings, "output_padding": tuple(module.output_padding)}
    return "conv", settings


def _pool(module: Any, dims: int) -> dict[str, Any]:
    settings = {
        "kernel": sides(module.kernel_size, dims),
        "stride": sides(module.kernel_size if module.stride is None else module.stride, dims),
        "padding": symmetric(module.padding, dims),
        "ceil_mode": bool(module.ceil_mode),
    }
    if hasattr(module, "dilation"):
        settings["dilation"] = sides(module.dilation, dims)
    if hasattr(module, "count_include_pad"):
        settings["count_include_pad"] = bool(module.count_include_pad)
    if getattr(module, "divisor_override", None):
        settings["divisor"] = module.divisor_override
    return settings


def _upsample(module: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"mode": module.mode, "align_corners": bool(module.align_corners)}
    if module.size is not None:
        settings["size"] = module.size
    if module.scale_factor is not None:
        settings["scale"] = module.scale_factor
    return settings
