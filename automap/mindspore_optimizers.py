"""MindSpore's optimizers: what is in them, and their states put into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as edge  # isort: skip
import mindspore as ms
from mindspore import nn
from mindspore.experimental import optim as experimental

from automap.dtypes import Array, is_same
from automap.errors import ConversionError
from automap.listing_files import dtype_name
from automap.optimizer_kinds import KINDS, Kind
from automap.optimizer_state import MindSporeOptimizer

#: PyTorch's words for settings that MindSpore's classes keep as attributes.
_ATTRIBUTES = {
    "use_nesterov": "nesterov",
    "nesterov": "nesterov",
    "dampening": "dampening",
    "momentum": "momentum",
    "use_amsgrad": "amsgrad",
    "centered": "centered",
    "decay": "alpha",
}

#: PyTorch's words for what groups of experimental.optim and mint.optim hold; others are the same.
_GROUP_KEYS = (
    "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "alpha", "centered", "amsgrad", "lr_decay",
    "maximize",
)  # fmt: skip


def kind_of(optimizer: Any) -> Kind:
    """The kind of an optimizer. Raises ConversionError where it is none of those known."""
    cls = next((c for c in type(optimizer).__mro__ if c.__module__.startswith("mindspore.")), type(optimizer))
    family = next((f for f in ("experimental", "mint") if f".{f}." in f".{cls.__module__}."), "")
    name = f"{family}.{cls.__name__}" if family else cls.__name__
    if name not in KINDS:
        raise ConversionError(f"the optimizer is {cls.__module__}.{cls.__name__}: automap knows {', '.join(KINDS)}")
    return KINDS[name]


def described(optimizer: Any) -> MindSporeOptimizer:
    """What is known of an optimizer. Raises ConversionError where its kind is not known."""
    kind = kind_of(optimizer)
    if isinstance(optimizer, nn.LARS):
        inner = described(optimizer.opt)
        if "momentum_buffer" not in inner.kind.slots:
            raise ConversionError(f"LARS around {inner.kind.name} is not known: give Momentum or SGD")
        lars = replace(inner.kind, name="LARS", unproven=kind.unproven, by_norm=kind.by_norm)
        settings = _settings_of_lars(optimizer, inner)
        return MindSporeOptimizer(
            lars,
            inner.names,
            inner.shapes,
            inner.states,
            inner.rates,
            settings,
            inner.scalars,
            inner.dtypes,
            inner.schedule,
        )
    params = list(optimizer.parameters)
    names = tuple(p.name for p in params)
    states: dict[str, dict[str, str]] = {name: {} for name in names}
    dtypes: dict[str, str] = {}
    for slot, (_, attribute) in {**kind.slots, **kind.own}.items():
        for p, held in zip(params, _held(optimizer, attribute), strict=False):
            states[p.name][slot] = held.name
            dtypes[held.name] = dtype_name(held.dtype)
    scalars = {p.name for p in _scalars(optimizer)}
    dtypes |= {p.name: dtype_name(p.dtype) for p in _scalars(optimizer)}
    grouped = hasattr(optimizer, "param_groups")
    settings = _grouped_settings(optimizer) if grouped else _settings(optimizer)
    return MindSporeOptimizer(
        kind,
        names,
        {p.name: tuple(p.shape) for p in params},
        states,
        _rates(optimizer),
        settings,
        frozenset(scalars),
        dtypes,
        None if grouped or not optimizer.dynamic_lr else _schedule(optimizer),
        _defects(optimizer),
    )


def assign(optimizer: Any, arrays: Mapping[str, Array]) -> None:
    """Put values into an optimizer's parameters, by their names, and look whether they arrived.

    Raises:
        ConversionError: a parameter is not there, has another shape, or did not take its value.
    """
    optimizer = optimizer.opt if isinstance(optimizer, nn.LARS) else optimizer
    known = {p.name: p for p in _all(optimizer)}
    missing = [name for name in arrays if name not in known]
    if missing:
        raise ConversionError(f"the optimizer has no parameter {', '.join(missing)}", missing)
    wrong = [
        f"{name}: {list(a.shape)} for {list(known[name].shape)}"
        for name, a in arrays.items()
        if a.shape != tuple(known[name].shape)
    ]
    if wrong:
        raise ConversionError(f"{len(wrong)} states do not fit the MindSpore optimizer: {'; '.join(wrong)}", wrong)
    for name, array in arrays.items():
        parameter = known[name]
        parameter.set_data(edge.parameter(array).value().astype(parameter.dtype))
        if not is_same(array, edge.array_of(parameter, name)):
            raise ConversionError(f"{name} did not take its value", [name])
    for group in getattr(optimizer, "param_groups", ()):
        if "lr_float" in group:  # mint's SGD reads this, and not the parameter
            group["lr_float"] = float(group["lr"])


def rates_of(optimizer: Any) -> dict[str, float]:
    """The learning rate with which each parameter is stepped next; nothing where an optimizer keeps it otherwise."""
    optimizer = optimizer.opt if isinstance(optimizer, nn.LARS) else optimizer
    if hasattr(optimizer, "param_groups"):
        return {
            p.name: float(edge.array_of(rate, "lr").reshape(())) if isinstance(rate, ms.Parameter) else float(rate)
            for group in optimizer.param_groups
            for rate in (group["lr"],)
            for p in group["params"]
        }
    if not isinstance(optimizer, nn.Optimizer):
        return {}
    each = list(optimizer.learning_rate) if optimizer.is_group_lr else [optimizer.learning_rate]
    each = each if optimizer.is_group_lr else each * len(optimizer.parameters)
    found = {
        p.name: float(edge.array_of(rate, p.name).reshape(()))
        for p, rate in zip(optimizer.parameters, each, strict=True)
        if isinstance(rate, ms.Parameter)
    }
    if optimizer.dynamic_lr:
        found |= _schedule(optimizer)(int(optimizer.global_step.asnumpy().reshape(())))
    return found


def values_of(optimizer: Any) -> dict[str, Array]:
    """Copies of the parameters that hold an optimizer's state, by name."""
    optimizer = optimizer.opt if isinstance(optimizer, nn.LARS) else optimizer
    own = {id(p) for p in optimizer.parameters}
    return {p.name: edge.array_of(p, p.name) for p in _all(optimizer) if id(p) not in own}


def from_spec(text: str, args: Mapping[str, Any]) -> Any:
    """An optimizer of a factory, ``./train.py:make_optimizer``. Raises SourceError or ConversionError."""
    from automap import specs

    built = specs.call(specs.load_object(text), args, text)
    if not isinstance(built, (nn.Optimizer, experimental.Optimizer)):
        raise ConversionError(f"{text} gives {specs.article(type(built).__name__)}, and no optimizer of MindSpore")
    return built


def _held(optimizer: Any, attribute: str) -> list[ms.Parameter]:
    """The states of one sort, for the parameters in order."""
    held = getattr(optimizer, attribute, None)
    if held is None and any(attribute in group for group in getattr(optimizer, "param_groups", ())):
        return [p for group in optimizer.param_groups for p in group.get(attribute, ())]
    return list(held) if held is not None else []


def _all(optimizer: Any) -> list[ms.Parameter]:
    """Every parameter in an optimizer; the learning rates of groups are in no list of MindSpore's."""
    found = {id(p): p for p in optimizer.get_parameters()}
    for p in _scalars(optimizer):
        found.setdefault(id(p), p)
    for attribute in {a for k in KINDS.values() for _, a in [*k.slots.values(), *k.own.values()]}:
        held = getattr(optimizer, attribute, None)
        if isinstance(held, tuple | list):
            found |= {id(p): p for p in held if isinstance(p, ms.Parameter)}
    for group in getattr(optimizer, "param_groups", ()):
        found |= {id(p): p for p in group.get("max_exp_avg_sq", ())}
    return list(found.values())


def _scalars(optimizer: Any) -> list[ms.Parameter]:
    names = ("global_step", "state_step", "step_t", "beta1_power", "beta2_power", "momentum", "learning_rate")
    found = [getattr(optimizer, name, None) for name in names]
    found += list(getattr(optimizer, "lrs", ()))
    rates = getattr(optimizer, "learning_rate", None)
    found += list(rates) if isinstance(rates, tuple | list) else []
    return [p for p in found if isinstance(p, ms.Parameter)]


def _rates(optimizer: Any) -> dict[str, str | None]:
    """The name of the parameter with each parameter's learning rate, or None."""
    if hasattr(optimizer, "param_groups"):
        return {
            p.name: group["lr"].name if isinstance(group["lr"], ms.Parameter) else None
            for group in optimizer.param_groups
            for p in group["params"]
        }
    rate = optimizer.learning_rate
    each = list(rate) if optimizer.is_group_lr else [rate] * len(optimizer.parameters)
    return {
        p.name: r.name if isinstance(r, ms.Parameter) else None for p, r in zip(optimizer.parameters, each, strict=True)
    }


def _schedule(optimizer: Any) -> Callable[[int], dict[str, float]]:
    def at(step: int) -> dict[str, float]:
        given = ms.Tensor([step], ms.int32)
        rates = optimizer.learning_rate
        each = list(rates) if optimizer.is_group_lr else [rates] * len(optimizer.parameters)
        return {
            p.name: float(rate(given).asnumpy().reshape(()))
            for p, rate in zip(optimizer.parameters, each, strict=True)
            if not isinstance(rate, ms.Parameter)
        }

    return at


def _defects(optimizer: Any) -> dict[str, str]:
    """Settings that have no effect here, and what to do. What is said of a version was measured with it."""
    if isinstance(optimizer, nn.Momentum) and optimizer.use_nesterov and optimizer.target == "CPU":
        return {
            "nesterov": "use_nesterov has no effect on mindspore's Momentum on a CPU (seen in 2.10): "
            "mindspore.nn.SGD(nesterov=True) does what PyTorch does"
        }
    return {}


def _settings(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The settings of an optimizer of ``mindspore.nn``, for each parameter."""
    shared: dict[str, Any] = {}
    for attribute, word in _ATTRIBUTES.items():
        value = getattr(optimizer, attribute, None)
        if isinstance(value, bool | int | float):
            shared[word] = value
    for word, names in (("betas", ("beta1", "beta2")), ("eps", ("eps",))):
        values = [v for name in names if (v := getattr(optimizer, name, None)) is not None]
        if len(values) == len(names):
            numbers = tuple(float(v.asnumpy().reshape(())) if isinstance(v, ms.Tensor) else float(v) for v in values)
            shared[word] = numbers if len(names) > 1 else numbers[0]
    if isinstance(optimizer, nn.RMSProp):
        shared["eps_inside"] = optimizer.epsilon
    decays = _decays(optimizer)
    found = {}
    for i, p in enumerate(optimizer.parameters):
        found[p.name] = dict(shared)
        if decays is not None:
            found[p.name]["weight_decay"] = decays[i]
    return found


def _decays(optimizer: Any) -> list[float] | None:
    """The weight decay of each parameter; None where it changes with the steps."""
    if optimizer.dynamic_weight_decay:
        return None
    flags = optimizer.decay_flags
    each = optimizer.weight_decay if optimizer.is_group else [optimizer.weight_decay] * len(flags)
    return [float(w.asnumpy()) / optimizer.loss_scale if flag else 0.0 for w, flag in zip(each, flags, strict=True)]


def _settings_of_lars(optimizer: Any, inner: MindSporeOptimizer) -> dict[str, dict[str, Any]]:
    """LARS takes the decay over from the optimizer inside."""
    each = optimizer.weight_decay if optimizer.is_group else [optimizer.weight_decay] * len(inner.names)
    found = {}
    for name, w, flag in zip(inner.names, each, optimizer.decay_flags, strict=True):
        decay = float(w.asnumpy()) / optimizer.loss_scale if flag and isinstance(w, ms.Tensor) else 0.0
        found[name] = {**inner.settings[name], "weight_decay": decay}
    return found


def _grouped_settings(optimizer: Any) -> dict[str, dict[str, Any]]:
    return {
        p.name: {key: group[key] for key in _GROUP_KEYS if key in group}
        for group in optimizer.param_groups
        for p in group["params"]
    }
