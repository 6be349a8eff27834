"""The settings of optimizers: which decide about the steps, when two are the same, and how they are told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from automap.optimizer_state import TorchState

#: Settings of PyTorch's groups that are compared, and that decide about the steps.
COMPARED = (
    "lr", "weight_decay", "decoupled_weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "alpha",
    "centered", "amsgrad", "lr_decay", "maximize",
)  # fmt: skip


def settings(state: TorchState) -> str:
    """The settings of PyTorch's groups that an optimizer has to be made with."""
    said = []
    for key in COMPARED:
        if key in state.groups[0]:
            values = [shown(group.get(key)) for group in state.groups]
            text = values[0] if len(set(values)) == 1 else " / ".join(values)
            if key in ("lr", "weight_decay", "momentum", "betas", "eps", "alpha") or text not in ("0", "False"):
                said.append(f"{key} {text}")
    return ", ".join(said)


def is_moot(key: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether a setting has no effect, beside the others."""
    if key == "decoupled_weight_decay":
        return not any(float(x.get("weight_decay", 0) or 0) for x in (ours, theirs))
    if key in ("dampening", "nesterov"):
        return not float(ours.get("momentum", 0) or 0)
    return False


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list) or isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return math.isclose(float(a), float(b), rel_tol=2e-6, abs_tol=1e-30)


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
