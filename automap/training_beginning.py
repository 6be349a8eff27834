"""Where a training goes on from: the state of PyTorch's optimizer, and of the schedule of its learning rate."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from automap.checkpoints import dicts_in, optimizers_in
from automap.errors import InputError
from automap.optimizer_kinds import TORCH_NAMES
from automap.optimizer_names import positions
from automap.optimizer_state import find_state, read_state, torch_kind
from automap.sources import TORCH_FILES, read_torch_file

#: The optimizer of PyTorch that its state tells, and its rule in MindSpore.
OF_STATE = "that of the state"


@dataclass(frozen=True)
class Beginning:
    """The state that both optimizers begin with.

    Attributes:
        state: what PyTorch's ``optimizer.state_dict()`` gives, in its tensors.
        schedule: what its scheduler's gives, or None.
        step: how many steps were made, where the state does not count them and somebody has told.
        text: where it is from.
    """

    state: Mapping[str, Any]
    schedule: Mapping[str, Any] | None = None
    step: int | None = None
    text: str = ""

    @classmethod
    def of(cls, weights: Any, step: int | None = None) -> Beginning:
        """What a training checkpoint holds beside the network.

        Args:
            weights: the checkpoint or its path.
            step: how many steps were made; the state of an optimizer or a ``step`` in the checkpoint tells otherwise.

        Raises:
            InputError: there is no checkpoint.
            ConversionError: it holds no state of an optimizer, or several.
        """
        if weights is None:
            raise InputError("to go on from the state of an optimizer takes the checkpoint that has it (--weights)")
        text = os.fspath(weights) if isinstance(weights, str | os.PathLike) else "the checkpoint"
        if isinstance(weights, str | os.PathLike):
            weights = import_module("automap.torch_optimizers").read_file(text)
        told = weights.get("step") if isinstance(weights, Mapping) else None
        if step is None and isinstance(told, int) and not isinstance(told, bool):
            step = told
        return cls(find_state(weights, text), _schedule(weights, text), step, text)

    @staticmethod
    def unused(weights: Any) -> list[str]:
        """A sentence on the state of an optimizer that is beside weights, where nobody asked for it."""
        if isinstance(weights, str | os.PathLike):
            path = os.fspath(weights)
            if not path.lower().endswith(TORCH_FILES):
                return []
            loaded = read_torch_file(path, path)
        else:
            path, loaded = "the checkpoint", weights
        keys = optimizers_in(loaded)
        return [f"{path}: the state of an optimizer, under {k}, was not used: both begin anew (--go-on)" for k in keys]

    def fresh(self) -> dict[str, Any]:
        """A copy of the state, which an optimizer may change, for this machine's CPU."""
        made = copy.deepcopy(dict(self.state))
        for group in made["param_groups"]:
            group.update({key: value for key, value in _PLAIN.items() if key in group})
        return made

    def kind(self) -> str:
        """The class of PyTorch's optimizer. Raises InputError where the state does not tell it."""
        found = torch_kind(read_state(self.state))
        if found not in TORCH_NAMES:
            raise InputError(
                f"{self.text}: the state of the optimizer ({found}) does not tell how it steps: give both optimizers "
                "(--optimizer torch_opt,ms_opt)"
            )
        return found

    def positions(self, named: Mapping[str, tuple[int, ...]]) -> dict[int, str]:
        """The name of each position, of these parameters in order with their shapes."""
        state = read_state(self.state)
        shapes = {i: next(iter(state.shapes[i].values()), None) for members in state.members for i in members}
        return positions(state.members, shapes, list(named.items()), state.names)[0]


#: Settings of speed alone, which a checkpoint of another device may have.
_PLAIN = {"capturable": False, "fused": None, "foreach": None}


def _schedule(loaded: Any, text: str) -> Mapping[str, Any] | None:
    """The state of a scheduler in a checkpoint, however deep; None without one.

    Raises:
        InputError: there are several.
    """
    found = dicts_in(loaded, lambda value: {"last_epoch", "_last_lr"} <= value.keys())
    if len(found) > 1:
        raise InputError(f"{text} holds the states of {len(found)} schedulers ({', '.join(found)}): give it with one")
    return next(iter(found.values()), None)
