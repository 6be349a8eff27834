"""Values of one framework in the places of the other: another layout, and other tensors in a call's arguments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from automap.dtypes import Array
from automap.running import Runner


def adapted(values: Array, like: Array) -> Array | None:
    """Values in the layout of another array that holds nearly the same: axes moved, joined or of length one.

    Returns:
        An array of ``like``'s shape and type, or None where no layout leads there.
    """
    if values.size != like.size:
        return None
    if values.shape == like.shape and len(set(values.shape)) == len(values.shape):
        return values.astype(like.dtype, copy=False)
    slim = values.reshape([d for d in values.shape if d != 1])
    goal = [d for d in like.shape if d != 1]
    made = []
    if slim.ndim <= 5:
        for axes in itertools.permutations(range(slim.ndim)):
            turned = slim.transpose(axes)
            if list(turned.shape) == goal or turned.ndim != len(goal):
                made.append(turned.reshape(like.shape))
    if not made:
        return None
    if len(made) > 1:
        made.sort(key=lambda m: float(np.abs(m.astype(np.float64) - like).mean()))
    return np.ascontiguousarray(made[0]).astype(like.dtype, copy=False)


def replaced(value: Any, instead: dict[int, Array], runner: Runner) -> Any:
    """Arguments of any form with some tensors exchanged."""
    if id(value) in instead:
        array = instead[id(value)]
        made = runner.tensor(array)
        return made.astype(value.dtype) if hasattr(made, "astype") and made.dtype != value.dtype else made
    if isinstance(value, dict):
        return {k: replaced(v, instead, runner) for k, v in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(replaced(v, instead, runner) for v in value)
    if isinstance(value, list):
        return [replaced(v, instead, runner) for v in value]
    return value
