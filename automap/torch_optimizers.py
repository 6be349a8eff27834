"""PyTorch's optimizers: their states in files, and put back into them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from automap import torch_edge
from automap.dtypes import Array


def read_file(path: str | Path) -> Any:
    """What a checkpoint holds, tensors and numbers, read with ``weights_only=True``."""
    return torch_edge.read_checkpoint(path)


def shapes_of(optimizer: torch.optim.Optimizer) -> list[tuple[int, ...]]:
    """The shapes of an optimizer's parameters in order."""
    return [tuple(p.shape) for group in optimizer.param_groups for p in group["params"]]


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
    counts = not isinstance(optimizer, torch.optim.SGD)
    state: dict[int, dict[str, Any]] = {}
    for i, held in slots.items():
        state[i] = {slot: torch_edge.parameter(array) for slot, array in held.items()}
        if counts and held:
            state[i]["step"] = torch.tensor(float(step or 0))
    for g, rate in rates.items():
        own["param_groups"][g]["lr"] = rate
    optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})
