"""Functions of the frameworks that a forward may call itself, as data: what they are, and what their arguments mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from automap.graph import Framework
from automap.settings import Layer, sides, symmetric


class Observer(Protocol):
    """What stands around a call: it returns what the caller gets."""

    def __call__(
        self, name: str, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]
    ) -> Any: ...


#: Name -> kind, and for each setting its place among the arguments, its keywords, and its default.
OPERATIONS: dict[str, tuple[str, dict[str, tuple[int, tuple[str, ...], Any]]]] = {
    **{
        name: (kind, {})
        for name, kind in {
            "relu": "relu",
            "relu6": "relu6",
            "silu": "silu",
            "mish": "mish",
            "selu": "selu",
            "sigmoid": "sigmoid",
            "tanh": "tanh",
            "hardswish": "hard_swish",
            "hardsigmoid": "hard_sigmoid",
            "softsign": "softsign",
            "logsigmoid": "log_sigmoid",
            "matmul": "matmul",
            "bmm": "matmul",
            "adaptive_avg_pool1d": "adaptive_avg_pool",
            "adaptive_avg_pool2d": "adaptive_avg_pool",
            "adaptive_max_pool2d": "adaptive_max_pool",
        }.items()
    },
    "gelu": ("gelu", {"approximate": (1, ("approximate",), "none")}),
    "leaky_relu": ("leaky_relu", {"alpha": (1, ("negative_slope", "alpha"), None)}),
    "elu": ("elu", {"alpha": (1, ("alpha",), 1.0)}),
    "softplus": ("softplus", {"beta": (1, ("beta",), 1.0), "threshold": (2, ("threshold",), 20.0)}),
    "softmax": ("softmax", {"axis": (1, ("dim", "axis"), -1)}),
    "log_softmax": ("log_softmax", {"axis": (1, ("dim", "axis"), -1)}),
    "dropout": ("dropout", {"p": (1, ("p",), 0.5)}),
    "cat": ("concat", {"axis": (1, ("dim", "axis"), 0)}),
    "concat": ("concat", {"axis": (1, ("dim", "axis"), 0)}),
    "max_pool2d": ("max_pool", {}),
    "avg_pool2d": ("avg_pool", {}),
}

_POOL = ("kernel", "stride", "padding")
_POOL_WORDS = {"kernel": ("kernel_size",), "stride": ("stride",), "padding": ("padding",)}


#: Defaults that the frameworks do not share.
_SLOPE = {"torch": 0.01, "mindspore": 0.2}


def layer_of(framework: Framework, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Layer:
    """What a call of a function does, as a layer."""
    kind, places = OPERATIONS[name]
    if kind in ("max_pool", "avg_pool"):
        return Layer(kind, _pool(framework, kind, args, kwargs))
    settings = {s: v for s, place in places.items() if (v := _argument(args, kwargs, *place)) is not None}
    if kind == "leaky_relu":
        settings.setdefault("alpha", _SLOPE[framework])
    if kind == "dropout":
        active = _argument(args, kwargs, 2, ("training",), True) and settings.get("p")
        settings["training"] = bool(active)
    return Layer(kind, settings)


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, names: tuple[str, ...], default: Any) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[place] if len(args) > place else default


def _pool(framework: Framework, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pool; both frameworks have the same arguments in the same places, but another default."""
    read = {n: _argument(args, kwargs, i + 1, _POOL_WORDS[n], None) for i, n in enumerate(_POOL)}
    if read["kernel"] is None:
        return {}
    if read["stride"] is None and framework == "mindspore" and kind == "avg_pool":
        read["stride"] = 1
    kernel = sides(read["kernel"], 2)
    rest = ("ceil_mode", "count_include_pad") if kind == "avg_pool" else ("dilation", "ceil_mode")
    more = {n: _argument(args, kwargs, i + 4, (n,), None) for i, n in enumerate(rest)}
    settings: dict[str, Any] = {
        "kernel": kernel,
        "stride": kernel if read["stride"] is None else sides(read["stride"], 2),
        "padding": symmetric(read["padding"] or 0, 2),
        "ceil_mode": bool(more["ceil_mode"]),
    }
    if kind == "avg_pool":
        settings["count_include_pad"] = more["count_include_pad"] is not False
    return settings
