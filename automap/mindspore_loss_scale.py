"""MindSpore's loss scales: what keeps one, and a scale put into it."""

from __future__ import annotations

from typing import Any

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as edge  # isort: skip
import mindspore as ms
import numpy as np
from mindspore import amp, nn

from automap.errors import ConversionError
from automap.loss_scale import LossScale, counters
from automap.specs import article

#: A longer interval does not fit MindSpore's type, and is never reached.
_LONGEST = 2**31 - 1


def described(scaler: Any) -> LossScale:
    """The loss scale in a cell, a scaler or a manager.

    Raises:
        ConversionError: it has none, or several.
    """
    scaler = _found(scaler)
    kind = type(scaler).__name__
    if isinstance(scaler, amp.DynamicLossScaler):
        return _dynamic(kind, scaler.scale_value, int(scaler.counter.asnumpy()), scaler)
    if isinstance(scaler, amp.StaticLossScaler):
        return LossScale(kind, _number(scaler.scale_value), False)
    if isinstance(scaler, amp.DynamicLossScaleManager):
        steps = (scaler.cur_iter - scaler.last_overflow_iter - 1) % scaler.scale_window
        return _dynamic(kind, scaler.loss_scale, steps, scaler)
    if isinstance(scaler, amp.FixedLossScaleManager):
        return LossScale(kind, float(scaler.get_loss_scale()), False)
    if isinstance(scaler, nn.TrainOneStepWithLossScaleCell):
        manager = scaler.loss_scaling_manager
        if isinstance(manager, nn.DynamicLossScaleUpdateCell):
            return _dynamic(type(manager).__name__, scaler.scale_sense, _steps(manager), manager)
        if manager is not None and not isinstance(manager, nn.FixedLossScaleUpdateCell):
            raise ConversionError(
                f"the loss scale is updated by {article(type(manager).__name__)}: automap knows "
                "DynamicLossScaleUpdateCell and FixedLossScaleUpdateCell"
            )
        return LossScale(kind if manager is None else type(manager).__name__, _number(scaler.scale_sense), False)
    if isinstance(scaler, nn.DynamicLossScaleUpdateCell):
        return _dynamic(kind, scaler.loss_scale_value, _steps(scaler), scaler)
    return LossScale(kind, float(scaler.loss_scale_value), False)


def assign(scaler: Any, scale: LossScale) -> None:
    """Put a loss scale where it belongs, and look whether it arrived.

    Raises:
        ConversionError: as for :func:`described`, or it did not arrive.
    """
    scaler = _found(scaler)
    if isinstance(scaler, amp.LossScaler):
        _put(scaler.scale_value, scale.scale)
        if isinstance(scaler, amp.DynamicLossScaler):
            _put(scaler.counter, scale.steps or 0)
            _settle(scaler, scale)
    elif isinstance(scaler, amp.DynamicLossScaleManager):
        scaler.loss_scale = scale.scale
        scaler.cur_iter, scaler.last_overflow_iter = counters(scale.steps or 0)
        _settle(scaler, scale)
        scaler.increase_ratio, scaler.decrease_ratio = scaler.scale_factor, 1 / scaler.scale_factor
    elif isinstance(scaler, amp.FixedLossScaleManager):
        scaler._loss_scale = scale.scale
    else:
        manager = scaler
        if isinstance(scaler, nn.TrainOneStepWithLossScaleCell):
            _put(scaler.scale_sense, scale.scale)
            manager = scaler.loss_scaling_manager
        if manager is not None:
            manager.loss_scale_value = scale.scale
        if isinstance(manager, nn.DynamicLossScaleUpdateCell):
            step, last = counters(scale.steps or 0)
            _put(manager.cur_iter, step)
            _put(manager.last_overflow_iter, last)
            if scale.growth is not None and scale.interval is not None:
                manager.scale_factor = ms.Tensor(scale.growth, ms.float32)
                manager.scale_window = ms.Tensor(min(scale.interval, _LONGEST), ms.int32)
    arrived = described(scaler)
    if arrived.scale != scale.scale or (scale.dynamic and arrived.steps != scale.steps):
        raise ConversionError(f"{scale.kind} did not take its scale: it has {arrived.scale:g}, and {arrived.steps}")


def notes(scaler: Any, scale: LossScale) -> list[str]:
    """What to know about a scale that was put there."""
    found = _found(scaler)
    if isinstance(found, amp.DynamicLossScaleManager) and scale.steps:
        return [
            f"the cell of get_update_cell() begins to count anew, and not at {scale.steps}: give the training cell "
            "(Model.train_network) instead of the manager"
        ]
    if isinstance(found, (nn.DynamicLossScaleUpdateCell, nn.FixedLossScaleUpdateCell)):
        return ["a training cell that was made with it before keeps its own scale_sense: give that cell instead"]
    if isinstance(found, nn.Cell) and getattr(found, "compile_cache", None):
        return ["the cell was compiled before: its scale_window and scale_factor are those of then"]
    return []


def _found(scaler: Any) -> Any:
    """What keeps the scale: itself, or the one cell with a loss scale in it."""
    known = (
        amp.DynamicLossScaler, amp.StaticLossScaler, amp.DynamicLossScaleManager, amp.FixedLossScaleManager,
        nn.TrainOneStepWithLossScaleCell, nn.DynamicLossScaleUpdateCell, nn.FixedLossScaleUpdateCell,
    )  # fmt: skip
    if isinstance(scaler, ms.Model):
        scaler = scaler.train_network
    if isinstance(scaler, known):
        return scaler
    inside: list[Any] = []
    if isinstance(scaler, nn.Cell):
        inside = [c for _, c in scaler.cells_and_names() if isinstance(c, nn.TrainOneStepWithLossScaleCell)]
        inside += [v for v in vars(scaler).values() if isinstance(v, known) and not isinstance(v, nn.Cell)]
    if len(inside) != 1:
        count = "no loss scale" if not inside else f"{len(inside)} loss scales"
        raise ConversionError(
            f"{article(type(scaler).__name__)} has {count}: give the cell or the scaler that keeps it"
        )
    return inside[0]


def _dynamic(kind: str, scale: Any, steps: int, settings: Any) -> LossScale:
    factor, window = _number(settings.scale_factor), int(_number(settings.scale_window))
    return LossScale(kind, _number(scale), True, steps, factor, 1 / factor, window, 1.0)


def _settle(scaler: Any, scale: LossScale) -> None:
    """The settings of a scaler that keeps them as numbers of Python's."""
    if scale.growth is not None and scale.interval is not None:
        scaler.scale_factor = int(scale.growth) if float(scale.growth).is_integer() else scale.growth
        scaler.scale_window = min(scale.interval, _LONGEST)


def _steps(manager: Any) -> int:
    return int(_number(manager.cur_iter)) - int(_number(manager.last_overflow_iter)) - 1


def _number(value: Any) -> float:
    return float(value.asnumpy().reshape(-1)[0]) if isinstance(value, ms.Tensor) else float(value)


def _put(parameter: ms.Parameter, value: float) -> None:
    array = np.full(tuple(parameter.shape), value, parameter.asnumpy().dtype)
    parameter.set_data(edge.parameter(array).value())
