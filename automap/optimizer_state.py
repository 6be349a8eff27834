"""The states of optimizers as values: of PyTorch's, read from ``state_dict()`` or a checkpoint, and of MindSpore's."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from automap import sources
from automap.checkpoints import dicts_in, find_state_dict
from automap.errors import ConversionError, SourceError
from automap.graph import Shape
from automap.listing_files import dtype_name
from automap.optimizer_kinds import TORCH_SLOTS, Kind
from automap.stored import Deferred, Held, Sliced, Stored

#: A network's parameters in order: names, shapes and element types, so far as they are known.
Listed = list[tuple[str, Shape | None, str | None]]


@dataclass(frozen=True)
class TorchState:
    """What ``optimizer.state_dict()`` holds, in NumPy.

    Attributes:
        groups: the settings of each group.
        members: the positions in each group.
        slots: for each position its states, not read yet, by PyTorch's names.
        shapes: the shapes of the states.
        steps: how often each was stepped, where that is counted.
        names: the names of all positions in order, where they are kept.
    """

    groups: tuple[Mapping[str, Any], ...]
    members: tuple[tuple[int, ...], ...]
    slots: Mapping[int, Mapping[str, Stored]]
    shapes: Mapping[int, Mapping[str, Shape]]
    steps: Mapping[int, int]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MindSporeOptimizer:
    """What is known of a MindSpore optimizer, a live one or one to come.

    Attributes:
        kind: its class.
        names: the network's parameters that it trains, as they are called there.
        shapes: their shapes.
        states: for each of them, the name of the parameter that holds each state (by PyTorch's word, or its own).
        rates: for each, the name of the parameter with its learning rate; None where it is no parameter.
        settings: for each, its settings in PyTorch's words, so far as they are known.
        scalars: further parameters: the counter, the powers, the momentum.
        dtypes: of states and scalars, where they are known.
        schedule: the learning rate of each parameter after so many steps, where it is no constant.
        defects: settings that have no effect where it runs, in PyTorch's words, with what to do.
    """

    kind: Kind
    names: tuple[str, ...]
    shapes: Mapping[str, Shape]
    states: Mapping[str, Mapping[str, str]]
    rates: Mapping[str, str | None]
    settings: Mapping[str, Mapping[str, Any]]
    scalars: frozenset[str]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    schedule: Callable[[int], Mapping[str, float]] | None = None
    defects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerReport:
    """What was carried over from one optimizer to another, and what was not.

    Attributes:
        torch: PyTorch's kind, as far as its state tells.
        mindspore: MindSpore's kind.
        carried: of how many parameters each state was carried over, by its name in PyTorch.
        told: how the parameters at PyTorch's positions were told.
        step: how many steps were made, or None where that is not known.
        rates: the learning rates.
        lost: what the one side has and the other lacks, with what it is.
        differs: settings under which the next steps of the two differ, with the values.
        notes: what else is worth knowing.
        back: whether it went from MindSpore to PyTorch.
    """

    torch: str
    mindspore: str
    carried: Mapping[str, int]
    told: str
    step: int | None
    rates: tuple[float, ...]
    lost: Mapping[str, str]
    differs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    back: bool = False

    @property
    def needs_review(self) -> bool:
        """Whether training will not go on as it did, so that a person has to look at it."""
        return bool(self.lost or self.differs)

    def __str__(self) -> str:
        states = ", ".join(f"{name} of {n}" for name, n in self.carried.items())
        carried = f"{states} parameters" if states else "no state"
        rates = ", ".join(f"{r:g}" for r in self.rates)
        step = "" if self.step is None else f"; step {self.step}"
        way = f"{self.mindspore} -> {self.torch}" if self.back else f"{self.torch} -> {self.mindspore}"
        lines = [f"{way}: {carried} ({self.told}); learning rate {rates}{step}"]
        lines += [f"  not carried over: {name} ({why})" for name, why in self.lost.items()]
        lines += [f"  differs: {what}" for what in self.differs]
        lines += [f"  note: {what}" for what in self.notes]
        return "\n".join(lines)


def read_state(value: Any) -> TorchState:
    """The state of a PyTorch optimizer, from its ``state_dict()`` or what a file holds of it.

    Raises:
        ConversionError: it is none.
    """
    if not isinstance(value, Mapping) or not {"state", "param_groups"} <= set(value):
        raise ConversionError("the optimizer's state is none: give what optimizer.state_dict() gives, or its file")
    groups, members, names = [], [], []
    for group in value["param_groups"]:
        members.append(tuple(int(i) for i in group["params"]))
        names += list(group.get("param_names", ()))
        groups.append({k: _number(v) for k, v in group.items() if k not in ("params", "param_names")})
    order = [i for m in members for i in m]
    slots: dict[int, dict[str, Stored]] = {i: {} for i in order}
    shapes: dict[int, dict[str, Shape]] = {i: {} for i in order}
    steps: dict[int, int] = {}
    odd: Counter[str] = Counter()
    for i, held in value["state"].items():
        for key, tensor in held.items():
            if key == "step":
                steps[int(i)] = round(float(_number(tensor)))
            elif tensor is None or not hasattr(tensor, "shape"):
                continue
            elif key in TORCH_SLOTS:
                slots[int(i)][key] = _stored(tensor, key)
                shapes[int(i)][key] = tuple(tensor.shape)
            else:
                odd[key] += 1
    if odd:
        key, n = odd.most_common(1)[0]
        raise ConversionError(
            f"the optimizer has a state {key!r} ({n} parameters), which automap does not know: it knows "
            f"{', '.join(TORCH_SLOTS)}"
        )
    # LARS and LAMB of other packages count in the group.
    counted = {i: int(g["step"]) for g, m in zip(groups, members, strict=True) if isinstance(g.get("step"), int | float)
               for i in m if slots[i]}  # fmt: skip
    return TorchState(
        tuple(groups),
        tuple(members),
        slots,
        shapes,
        steps or counted,
        tuple(names) if names and len(names) == len(order) else None,
    )


def read_with_network(value: Any, network: Any) -> tuple[TorchState, Listed | None]:
    """PyTorch's state and the order of the network's parameters, from whatever the user gives."""
    listing = None
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        value = sources.read_torch_file(path, path)
        network = path if network is None and _has_network(value) else network
    elif hasattr(value, "state_dict") and hasattr(value, "param_groups"):
        value = value.state_dict()
    if isinstance(value, Mapping) and not {"state", "param_groups"} <= set(value):
        network = value if network is None and _has_network(value) else network
        value = find_state(value)
    if network is not None:
        listing = [(p.name, p.shape, p.dtype) for p in sources.open_source(network, "torch").listing()]
    return read_state(value), listing


def find_state(loaded: Any, text: str = "the checkpoint") -> Mapping[str, Any]:
    """The state of an optimizer in what a checkpoint holds, however deep.

    Raises:
        ConversionError: there is none, or more than one.
    """
    found = dicts_in(loaded, lambda value: {"state", "param_groups"} <= set(value))
    if not found:
        keys = ", ".join(map(str, list(loaded)[:5])) if isinstance(loaded, Mapping) else type(loaded).__name__
        raise ConversionError(f"{text} holds no state of an optimizer, but {keys}: save optimizer.state_dict() in it")
    if len(found) > 1:
        raise ConversionError(
            f"{text} holds the states of {len(found)} optimizers ({', '.join(found)}): give the one meant, as a dict"
        )
    return next(iter(found.values()))


def _has_network(value: Any) -> bool:
    without = {k: v for k, v in value.items() if not (isinstance(v, Mapping) and "param_groups" in v)}
    try:
        find_state_dict(without, "")
    except SourceError:
        return False
    return True


def torch_kind(state: TorchState) -> str:
    """What PyTorch's optimizer is called, from its settings."""
    keys = set(state.groups[0]) if state.groups else set()
    if "trust_coeff" in keys or "trust_coefficient" in keys:
        return "LARS"
    if "betas" in keys:
        if {"trust_clip", "always_adapt", "clamp_value", "adam"} & keys:
            return "LAMB"
        decoupled = state.groups[0].get("decoupled_weight_decay")
        return "Adam or AdamW" if decoupled is None else "AdamW" if decoupled else "Adam"
    if "alpha" in keys:
        return "RMSprop"
    if "lr_decay" in keys:
        return "Adagrad"
    return "SGD"


def _number(value: Any) -> Any:
    """A setting as Python's own number, where it is a tensor of one element."""
    if isinstance(value, Sliced):
        value = value.read()
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return tuple(map(_number, value)) if isinstance(value, list | tuple) else value


def _stored(tensor: Any, name: str) -> Stored:
    if isinstance(tensor, Sliced):
        return tensor
    if isinstance(tensor, np.ndarray):
        return Held(tensor)
    edge: Any = sources._edge("torch", "the optimizer")
    return Deferred(tuple(tensor.shape), dtype_name(tensor.dtype), partial(edge.array_of, tensor, name))
