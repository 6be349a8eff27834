"""The settings of layers in words that both frameworks share, as data: what they are, and where two layers differ.

Nothing here imports a framework; :mod:`automap.torch_settings` and :mod:`automap.mindspore_settings` read live layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Padding at both ends of each spatial dimension.
Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Setting:
    """One setting of a kind of layer.

    Attributes:
        cause: the short key of a fault in it.
        words: what it is called in a report.
        training: inference is blind to it.
    """

    cause: str
    words: str
    training: bool = False


#: Every setting that is compared, by its common name.
SETTINGS: dict[str, Setting] = {
    "eps": Setting("eps", "epsilon"),
    "momentum": Setting("momentum", "momentum (share of the new value)", training=True),
    "batch_statistics": Setting("mode", "statistics of the batch instead of the running ones"),
    "norm_axis": Setting("axis", "first normalised axis"),
    "groups": Setting("groups", "groups"),
    "kernel": Setting("kernel", "kernel"),
    "stride": Setting("stride", "stride"),
    "padding": Setting("padding", "padding"),
    "padding_mode": Setting("padding", "what the padding holds"),
    "dilation": Setting("dilation", "dilation"),
    "output_padding": Setting("output_padding", "output padding"),
    "bias": Setting("bias", "bias"),
    "activation": Setting("activation", "activation inside"),
    "ceil_mode": Setting("ceil_mode", "ceil mode"),
    "count_include_pad": Setting("count_include_pad", "padding counted in the average"),
    "divisor": Setting("divisor", "divisor"),
    "approximate": Setting("gelu", "form"),
    "alpha": Setting("alpha", "slope"),
    "beta": Setting("beta", "beta"),
    "threshold": Setting("threshold", "threshold"),
    "low": Setting("bounds", "lower bound"),
    "high": Setting("bounds", "upper bound"),
    "axis": Setting("axis", "axis"),
    "p": Setting("dropout", "share that is dropped", training=True),
    "training": Setting("mode", "training mode in inference", training=True),
    "size": Setting("size", "output size"),
    "scale": Setting("scale", "scale factor"),
    "mode": Setting("mode", "interpolation"),
    "align_corners": Setting("align_corners", "corners aligned"),
    "heads": Setting("heads", "heads"),
    "layers": Setting("layers", "layers"),
    "bidirectional": Setting("bidirectional", "both directions"),
    "batch_first": Setting("batch_first", "batch first"),
    "hidden": Setting("hidden", "hidden size"),
}

#: What does a similar thing: modules of one family may be counterparts although their kinds differ.
_FAMILIES: dict[str, str] = {
    **dict.fromkeys(
        ("relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "celu", "selu", "gelu", "quick_gelu", "silu", "mish"),
        "activation",
    ),
    **dict.fromkeys(
        ("sigmoid", "tanh", "hard_sigmoid", "hard_swish", "hard_tanh", "softplus", "softsign", "log_sigmoid"),
        "activation",
    ),
    **dict.fromkeys(("softmax", "log_softmax", "softmin"), "softmax"),
    **dict.fromkeys(("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"), "pool"),
    **dict.fromkeys(("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "norm"), "norm"),
    **dict.fromkeys(("conv", "conv_transpose"), "conv"),
    **dict.fromkeys(("lstm", "gru", "rnn"), "recurrent"),
    **dict.fromkeys(("dropout", "drop_path"), "dropout"),
}

#: A layer's kind by a part of its class's name, for classes that belong to neither framework; the first that fits.
_BY_NAME: tuple[tuple[str, str], ...] = (
    ("quickgelu", "quick_gelu"),
    ("rmsnorm", "rms_norm"),
    ("layernorm", "layer_norm"),
    ("batchnorm", "batch_norm"),
    ("groupnorm", "group_norm"),
    ("instancenorm", "instance_norm"),
    ("norm", "norm"),
    ("droppath", "drop_path"),
    ("stochasticdepth", "drop_path"),
    ("dropout", "dropout"),
    ("gelu", "gelu"),
    ("hardswish", "hard_swish"),
    ("hswish", "hard_swish"),
    ("hardsigmoid", "hard_sigmoid"),
    ("hsigmoid", "hard_sigmoid"),
    ("hardtanh", "hard_tanh"),
    ("leakyrelu", "leaky_relu"),
    ("relu6", "relu6"),
    ("prelu", "prelu"),
    ("relu", "relu"),
    ("swish", "silu"),
    ("silu", "silu"),
    ("mish", "mish"),
    ("softplus", "softplus"),
    ("logsoftmax", "log_softmax"),
    ("softmax", "softmax"),
    ("sigmoid", "sigmoid"),
    ("tanh", "tanh"),
    ("adaptiveavgpool", "adaptive_avg_pool"),
    ("globalavgpool", "adaptive_avg_pool"),
    ("maxpool", "max_pool"),
    ("avgpool", "avg_pool"),
    ("upsample", "upsample"),
    ("interpolate", "upsample"),
    ("flatten", "flatten"),
    ("identity", "identity"),
)

#: What classes of neither framework call a setting, in the order of preference.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "eps": ("eps", "epsilon", "variance_epsilon", "norm_eps"),
    "alpha": ("negative_slope", "alpha"),
    "p": ("p", "drop_prob"),
    "axis": ("dim", "axis"),
}

_PREFERRED: dict[str, tuple[str, ...]] = {
    "norm": ("eps",),
    "activation": ("alpha",),
    "dropout": ("p",),
    "softmax": ("axis",),
}


@dataclass(frozen=True)
class Layer:
    """One layer: what it is, and its settings under their common names.

    Attributes:
        kind: such as ``"conv"`` or ``"layer_norm"``; ``""`` if it is neither framework's and its name tells nothing.
        settings: by common name. Numbers of spatial layers are tuples, one for each dimension; padding is
            ``((low, high), …)`` or ``"same"``; momentum is PyTorch's, the share of the new value.
        own: the class is the framework's own, so that its settings say all that it does.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: bool = True

    @property
    def family(self) -> str:
        """What does a similar thing has the same family."""
        return family(self.kind)


@dataclass(frozen=True)
class Difference:
    """A setting that two layers do not share; ``setting`` is ``"kind"`` if they are different kinds."""

    setting: str
    cause: str
    torch: Any
    mindspore: Any
    training: bool = False


def family(kind: str) -> str:
    """The family of a kind: the kind itself where nothing else does a similar thing."""
    return _FAMILIES.get(kind, kind)


def kind_by_name(name: str) -> str:
    """The kind that the name of a class of neither framework tells, or ``""``."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _BY_NAME if part in plain), "")


def settings_by_attribute(layer: object, kind: str) -> dict[str, Any]:
    """The settings of a layer of neither framework, as far as its plain attributes tell."""
    found: dict[str, Any] = {}
    for setting in _PREFERRED.get(family(kind), ("eps",)):
        for attribute in ATTRIBUTES[setting]:
            value = getattr(layer, attribute, None)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[setting] = value
                break
    return found


def differences(torch: Layer, mindspore: Layer, shape: Sequence[int] = ()) -> list[Difference]:
    """Where two layers differ, for an input of a shape (batch and channels first).

    Padding that comes to the same for this shape is no difference, and a setting that either side does not have is not
    compared.
    """
    if torch.kind != mindspore.kind:
        if not torch.kind or not mindspore.kind:
            pass  # what both have is compared all the same
        elif torch.family != mindspore.family:
            return []
        elif alike := _alike(torch, mindspore):
            torch, mindspore = alike
        else:
            cause = {"activation": "activation", "pool": "pooling", "norm": "norm"}.get(torch.family, "operation")
            return [Difference("kind", cause, torch.kind, mindspore.kind)]
    found = []
    for name, about in SETTINGS.items():
        a, b = torch.settings.get(name), mindspore.settings.get(name)
        if a is None or b is None or _equal(a, b):
            continue
        if name == "padding" and effective_padding(torch, shape) == effective_padding(mindspore, shape):
            continue
        if name == "count_include_pad" and not any(map(any, effective_padding(torch, shape) or ((1, 1),))):
            continue
        if name == "momentum" and torch.family != "norm":
            continue
        found.append(Difference(name, about.cause, a, b, about.training))
    return found


def changes(found: Sequence[Difference], torch: Layer) -> dict[str, Any]:
    """What a MindSpore layer needs to be as PyTorch's in these settings.

    How the padding is counted goes together with how it is given.
    """
    wanted = {d.setting: d.torch for d in found}
    if wanted.keys() & {"kind"}:
        return {**torch.settings, **wanted}
    if "count_include_pad" in wanted or ("padding" in wanted and torch.kind == "avg_pool"):
        wanted |= {name: torch.settings[name] for name in ("padding", "count_include_pad") if name in torch.settings}
    return wanted


def _alike(torch: Layer, mindspore: Layer) -> tuple[Layer, Layer] | None:
    """Two layers of different kinds as layers of one kind, where the one is a case of the other."""
    cases = {"relu": ("leaky_relu", {"alpha": 0.0}), "relu6": ("hard_tanh", {"low": 0.0, "high": 6.0})}
    pair = [torch, mindspore]
    for i, layer in enumerate(pair):
        other = pair[1 - i]
        if layer.kind in cases and cases[layer.kind][0] == other.kind:
            pair[i] = Layer(other.kind, cases[layer.kind][1], layer.own)
            # A slope of zero against another slope is another function, and is better called so.
            return None if layer.kind == "relu" and other.settings.get("alpha") else (pair[0], pair[1])
    if {"norm"} & {torch.kind, mindspore.kind}:
        return Layer("norm", torch.settings, torch.own), Layer("norm", mindspore.settings, mindspore.own)
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        try:
            return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-12)
        except TypeError:
            return False
    return bool(a == b)


def effective_padding(layer: Layer, shape: Sequence[int]) -> Pads | None:
    """The padding of a spatial layer in numbers for an input of a shape (batch and channels first).

    ``"same"`` gives as many outputs as the stride leaves of the inputs, and what is odd of it is added at the end.
    """
    padding, kernel = layer.settings.get("padding"), layer.settings.get("kernel")
    if padding != "same" or kernel is None:
        return None if padding == "same" else padding
    stride = layer.settings.get("stride") or (1,) * len(kernel)
    dilation = layer.settings.get("dilation") or (1,) * len(kernel)
    sides = shape[-len(kernel) :] if len(shape) >= len(kernel) else (0,) * len(kernel)
    pads = []
    for side, k, s, d in zip(sides, kernel, stride, dilation, strict=True):
        reach = d * (k - 1) + 1
        total = max(0, (-(-side // s) - 1) * s + reach - side)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def sides(value: Any, dims: int) -> tuple[int, ...]:
    """A number for each spatial dimension, from one number or a sequence."""
    return (int(value),) * dims if isinstance(value, (int, float)) else tuple(int(v) for v in value)[-dims:]


def symmetric(value: Any, dims: int) -> Pads:
    """The same padding at both ends, from one number or one for each dimension."""
    return tuple((v, v) for v in sides(value, dims))


def show(setting: str, value: Any) -> str:
    """A value in words."""
    if setting == "padding" and isinstance(value, tuple):
        ends = {end for pair in value for end in pair}
        if len(ends) == 1:
            return str(ends.pop())
        if all(low == high for low, high in value):
            return str(tuple(low for low, _ in value))
    if setting == "approximate":
        return {"none": "exact (erf)", "tanh": "tanh"}.get(value, str(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple) and value and len(set(value)) == 1:
        return str(value[0])
    return str(value)
