"""The settings of optimizers: which decide about the steps, when two are the same, and how they are told."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
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


def differing(
    rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any], str]], kind: str, without: Collection[str] = ()
) -> list[str]:
    """Settings that lead to other steps, in words.

    Args:
        rows: for each MindSpore parameter: the settings of PyTorch's group, MindSpore's in PyTorch's words, its name.
        kind: of MindSpore's optimizer.
        without: settings that are not compared.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for group, theirs, name in rows:
        for key in COMPARED:
            if key in without or key not in group or key not in theirs or is_moot(key, group, theirs):
                continue
            a, b = group[key], theirs[key]
            if not same(a, b):
                found.setdefault((key, shown(a), shown(b)), []).append(name)
        decays = any(float(x.get("weight_decay", 0) or 0) for x in (group, theirs))
        untold = "decoupled_weight_decay" in theirs and "decoupled_weight_decay" not in group
        if untold and decays and "betas" in group:
            said = ("decoupled_weight_decay", "not said", shown(theirs["decoupled_weight_decay"]))
            found.setdefault(said, []).append(name)
        if kind == "RMSProp" and "eps" in group and "eps_inside" in theirs:
            inside = float(theirs["eps_inside"]) ** 0.5
            if not same(inside, float(group["eps"])):
                wanted = float(group["eps"]) ** 2
                key = f"eps (MindSpore's is below the root: epsilon={wanted:g} is as much)"
                found.setdefault((key, shown(group["eps"]), shown(theirs["eps_inside"])), []).append(name)
    out = []
    for (key, a, b), names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        out.append(f"{key}: {a} in PyTorch, {b} in MindSpore, for {names[0]}{more}")
    return out


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
