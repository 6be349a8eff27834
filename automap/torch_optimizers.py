"""PyTorch's optimizers: their states in files, and put back into them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from automap import specs, torch_edge
from automap.dtypes import Array
from automap.errors import ConversionError
from automap.optimizer_kinds import TORCH_KEEPS, TORCH_NAMES
from automap.optimizer_state import Listed


def read_file(path: str) -> Any:
    """What a checkpoint holds, tensors and numbers, read with ``weights_only=True``."""
    return torch_edge.read_checkpoint(path)


def from_spec(text: str, args: Mapping[str, Any], listing: Listed) -> torch.optim.Optimizer:
    """An optimizer, by a factory (``./train.py:make``), its class (``torch.optim:SGD``), or the name of one (``SGD``).

    Args:
        text: what names it.
        args: keyword arguments for it.
        listing: the parameters that a class gets, in one group.

    Raises:
        SourceError: there is no such thing, or it raises.
        ConversionError: it is or gives no optimizer of PyTorch, or one whose states are not known.
    """
    found = specs.load_object(text) if specs.is_spec(text) else getattr(torch.optim, text, None)
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer):
        made = [(name, torch.nn.Parameter(torch.empty(shape or (), device="meta"))) for name, shape, _ in listing]
        built = specs.call(partial(found, [p for _, p in made]), args, text)
    elif found is None:
        raise ConversionError(f"PyTorch has no optimizer {text!r}: name a factory (./train.py:make) or a class (SGD)")
    else:
        built = specs.call(found, args, text)
    return checked(built, text)


def checked(optimizer: Any, text: str) -> torch.optim.Optimizer:
    """An optimizer whose states are known. Raises ConversionError where it is none."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConversionError(f"{text} gives {specs.article(type(optimizer).__name__)}, and no optimizer of PyTorch")
    own = next(c for c in type(optimizer).__mro__ if c.__module__.startswith("torch.optim."))
    if own is not torch.optim.Optimizer and own.__name__ not in TORCH_KEEPS:
        raise ConversionError(f"PyTorch's {own.__name__} is not known: automap knows {', '.join(TORCH_NAMES)}")
    return optimizer


def shapes_of(optimizer: torch.optim.Optimizer) -> list[tuple[int, ...]]:
    """The shapes of an optimizer's parameters in order."""
    return [tuple(p.shape) for group in optimizer.param_groups for p in group["params"]]


def counts_in_group(group: Mapping[str, Any]) -> bool:
    """Whether a group belongs to an optimizer that counts its steps there, as LAMB of other packages does."""
    return bool({"trust_clip", "always_adapt", "clamp_value", "adam"} & group.keys())


def counts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it counts its steps, for each parameter."""
    return not isinstance(optimizer, torch.optim.SGD)


def load(
    optimizer: torch.optim.Optimizer,
    slots: Mapping[int, Mapping[str, Array]],
    step: int | None,
    rates: Mapping[int, float],
) -> None:
    """Put states into an optimizer, by position; learning rates by group. Its other settings stay as they are.

    Args:
        optimizer: the optimizer.
        slots: the states by PyTorch's names.
        step: how many steps were made, for an optimizer that counts them, or None where nobody did.
        rates: the learning rate of each group.
    """
    own = optimizer.state_dict()
    count = counts(optimizer)
    state: dict[int, dict[str, Any]] = {}
    for i, held in slots.items():
        state[i] = {slot: torch_edge.parameter(array) for slot, array in held.items()}
        if count and held:
            state[i]["step"] = torch.tensor(float(step or 0))
    for g, rate in rates.items():
        own["param_groups"][g]["lr"] = rate
    for group in own["param_groups"]:
        if step is not None and counts_in_group(group):
            group["step"] = step
    optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})
