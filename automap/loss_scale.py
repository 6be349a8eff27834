"""The loss scale of mixed precision, carried between PyTorch and MindSpore, so that it goes on as it did.

Both multiply the loss by a scale, skip a step whose gradients overflow and make the scale smaller then, and make it
greater after so many steps in a row without an overflow. PyTorch keeps this in ``GradScaler``; MindSpore in the cell
that trains (``scale_sense``) and its update cell, or in ``mindspore.amp``'s scalers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from automap.checkpoints import dicts_in
from automap.dtypes import Array
from automap.errors import ConversionError
from automap.specs import article, framework_of

#: The entries of ``GradScaler.state_dict()``.
_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}

#: Those of NVIDIA's apex.
_APEX = {"loss_scale", "unskipped"}

#: MindSpore's names: of the scale, the steps so far (from 1), the last one at which the scale changed; in ``amp``, of
#: the scale and the steps since it changed.
SENSE, STEP, LAST = "scale_sense", "current_iterator_step", "last_overflow_iterator_step"
_VALUE, _COUNTER = "scale_value", "counter"
_NAMES = {SENSE, STEP, LAST, _VALUE, _COUNTER}

#: What ``GradScaler`` makes of its settings, where nobody gives others.
_DEFAULTS = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


@dataclass(frozen=True)
class LossScale:
    """A loss scale and how it develops.

    Attributes:
        kind: the class that keeps it.
        scale: what the loss is multiplied by.
        dynamic: whether it changes.
        steps: how many steps in a row had no overflow since it changed; None where that is not known.
        growth: what it is multiplied by then; None where that is not known.
        backoff: what it is multiplied by at an overflow.
        interval: after how many such steps it grows.
        least: what it does not fall below.
    """

    kind: str
    scale: float
    dynamic: bool = True
    steps: int | None = None
    growth: float | None = None
    backoff: float | None = None
    interval: int | None = None
    least: float = 0.0

    @property
    def words(self) -> str:
        """The settings, as far as they are known."""
        if not self.dynamic:
            return f"stays at {self.scale:g}"
        if self.growth is None or self.backoff is None:
            return "develops with settings that are not known"
        return f"is multiplied by {self.growth:g} after {self.interval} steps, by {self.backoff:g} at an overflow"


@dataclass(frozen=True)
class LossScaleReport:
    """What became of a loss scale.

    Attributes:
        given: the class that had it, or what its state tells.
        to: the class that has it now; of a checkpoint, the one that takes it.
        scale: the scale.
        steps: how many steps in a row had no overflow since it changed, where that was carried over.
        differs: in what the scale will develop otherwise, with the values.
        notes: what else is worth knowing.
    """

    given: str
    to: str
    scale: float
    steps: int | None
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def needs_review(self) -> bool:
        """Whether the scale will not develop as it did, so that a person has to look at it."""
        return bool(self.differs)

    def __str__(self) -> str:
        steps = "" if self.steps is None else f", {self.steps} step(s) since it changed"
        lines = [f"{self.given} -> {self.to}: {self.scale:g}{steps}"]
        lines += [f"  differs: {what}" for what in self.differs]
        lines += [f"  note: {what}" for what in self.notes]
        return "\n".join(lines)


def apply_loss_scale(state: Any, scaler: Any) -> LossScaleReport:
    """Carry a loss scale over to what keeps it in the other framework, in either direction.

    The scale, the steps since it changed, and the settings under which it changes.

    Args:
        state: to MindSpore: a ``GradScaler``, its ``state_dict()``, or a PyTorch checkpoint that holds one (apex's
            ``amp.state_dict()`` as well). To PyTorch: what ``scaler`` can be in MindSpore, or a MindSpore checkpoint.
            A converted checkpoint is read for MindSpore, too.
        scaler: PyTorch's ``GradScaler``; or MindSpore's ``TrainOneStepWithLossScaleCell`` or what contains one
            (``Model.train_network``), ``DynamicLossScaleUpdateCell``, ``FixedLossScaleUpdateCell``,
            ``mindspore.amp.DynamicLossScaler``, ``StaticLossScaler``, or a ``LossScaleManager``.

    Raises:
        ConversionError: there is no loss scale in the state, or more than one; or the scaler is none of these.
    """
    given = read(state)
    if is_grad_scaler(scaler):
        return _to_torch(given, scaler)
    if framework_of(scaler) != "mindspore":
        raise ConversionError(
            f"the scaler is {article(type(scaler).__name__)}: give PyTorch's GradScaler, or MindSpore's cell or scaler"
        )
    edge = import_module("automap.mindspore_loss_scale")
    before: LossScale = edge.described(scaler)
    wanted = _told(replace(given, kind=before.kind, dynamic=before.dynamic, least=before.least), before)
    edge.assign(scaler, wanted)
    after: LossScale = edge.described(scaler)
    notes = list(edge.notes(scaler, wanted))
    if given.growth is None and given.dynamic and before.dynamic:
        notes.append(f"{given.kind} does not say how the scale develops: in {after.kind} it {after.words}")
    return LossScaleReport(
        given.kind, after.kind, after.scale, after.steps, tuple(_differences(given, after)), tuple(notes)
    )


def is_grad_scaler(value: Any) -> bool:
    """Whether it is PyTorch's ``GradScaler``, found without importing PyTorch."""
    return any(c.__name__ == "GradScaler" and c.__module__.startswith("torch.") for c in type(value).__mro__)


def read(value: Any) -> LossScale:
    """The loss scale in whatever a user gives; see :func:`apply_loss_scale`.

    Raises:
        ConversionError: there is none, or more than one.
    """
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if path.endswith((".ckpt", ".safetensors")):
            stored = import_module("automap.sources").open_source(path, "mindspore").tensors()
            # The rest of the checkpoint may be larger than memory.
            return _in_mindspore({name: t.read() for name, t in stored.items() if leaf(name) in _NAMES}, path)
        found = find(import_module("automap.torch_optimizers").read_file(path), path)
        if found is None:
            raise ConversionError(f"{path} holds no loss scale: save scaler.state_dict() in it")
        return found[1]
    if is_grad_scaler(value):
        value = value.state_dict()
        if not value:
            raise ConversionError("the GradScaler is not enabled, and has no scale")
    if isinstance(value, Mapping):
        found = find(value, "the state")
        return _in_mindspore(value, "the state") if found is None else found[1]
    if framework_of(value) == "mindspore":
        described: LossScale = import_module("automap.mindspore_loss_scale").described(value)
        return described
    raise ConversionError(f"{article(type(value).__name__)} has no loss scale: give a GradScaler or its state")


def find(loaded: Any, text: str) -> tuple[str, LossScale] | None:
    """Where a PyTorch checkpoint keeps the state of a loss scale, however deep, and the scale; None without one.

    Raises:
        ConversionError: there is more than one.
    """
    found = dicts_in(loaded, lambda value: value.keys() >= _KEYS or value.keys() == _APEX)
    if len(found) > 1:
        raise ConversionError(
            f"{text} holds {len(found)} loss scales ({', '.join(found)}): give the one meant, as a dict"
        )
    where, state = next(iter(found.items()), ("", None))
    return None if state is None else (where, _in_torch(state))


def _in_torch(state: Mapping[Any, Any]) -> LossScale:
    """The scale in a state of PyTorch's or apex's."""
    if state.keys() == _APEX:  # which keeps the defaults of its LossScaler out of the state
        return LossScale(
            "apex's LossScaler", _number(state["loss_scale"]), True, int(state["unskipped"]), 2.0, 0.5, 2000
        )
    return LossScale(
        "GradScaler",
        _number(state["scale"]),
        True,
        int(_number(state["_growth_tracker"])),
        _number(state["growth_factor"]),
        _number(state["backoff_factor"]),
        int(_number(state["growth_interval"])),
    )


def parameters(scale: LossScale) -> dict[str, Array]:
    """What a MindSpore checkpoint holds of a loss scale: the parameters of ``TrainOneStepWithLossScaleCell``."""
    made: dict[str, Array] = {SENSE: np.array(scale.scale, np.float32)}
    if scale.steps is not None:
        made |= {name: np.array(n, np.int32) for name, n in zip((STEP, LAST), counters(scale.steps), strict=True)}
    return made


def leaf(name: str) -> str:
    """The last part of a parameter's name."""
    return name.rpartition(".")[2]


def torch_state(scale: LossScale) -> dict[str, Any]:
    """``GradScaler.state_dict()`` of a scale in a MindSpore checkpoint, whose settings are not known."""
    return {"scale": scale.scale, **_DEFAULTS, "_growth_tracker": scale.steps or 0}


def counters(steps: int) -> tuple[int, int]:
    """MindSpore's number of the next step, from 1, and that of the step at which the scale last changed.

    Only their difference has an effect.
    """
    return steps + 1, 0


def differences_in_file(given: LossScale) -> tuple[str, ...]:
    """In what a MindSpore cell with the same settings will do otherwise."""
    like = _told(replace(given, kind="DynamicLossScaleUpdateCell", least=1.0), None)
    return tuple(_differences(given, like))


def _told(scale: LossScale, own: LossScale | None) -> LossScale:
    """A scale with what MindSpore makes of its settings: one factor, whose inverse is for an overflow."""
    if not scale.dynamic:
        return scale
    growth = scale.growth if scale.growth is not None or own is None else own.growth
    interval = scale.interval if scale.interval is not None or own is None else own.interval
    steps = 0 if scale.steps is None else scale.steps
    return replace(scale, growth=growth, backoff=None if growth is None else 1 / growth, interval=interval, steps=steps)


def _differences(given: LossScale, made: LossScale) -> list[str]:
    """In what a scale will develop otherwise, in words."""
    if given.dynamic != made.dynamic:
        return [f"in {given.kind} the scale {given.words}, in {made.kind} it {made.words}"]
    if not given.dynamic or given.growth is None or made.growth is None:
        return []
    out = []
    for what, a, b in (
        ("growth factor", given.growth, made.growth),
        ("factor at an overflow", given.backoff, made.backoff),
        ("interval", given.interval, made.interval),
    ):
        if a is None or b is None or not math.isclose(a, b, rel_tol=1e-6):
            out.append(f"{what}: {_shown(a)} in {given.kind}, {_shown(b)} in {made.kind}")
    for low, high in ((given, made), (made, given)):
        next_one = low.scale * (low.backoff or 1)
        if low.least <= next_one < high.least:
            out.append(
                f"{high.kind} does not fall below {high.least:g}; {low.kind} becomes {next_one:g} at the next overflow"
            )
    if given.steps is not None and given.interval is not None and given.steps >= given.interval:
        out.append(
            f"{given.steps} steps since the scale changed are not fewer than the interval of {given.interval}: when it "
            "grows next is not the same in all scalers"
        )
    return out


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:g}"


def _to_torch(given: LossScale, scaler: Any) -> LossScaleReport:
    """The way back."""
    own = scaler.state_dict()
    if not own:
        raise ConversionError("the GradScaler is not enabled, and takes no scale")
    notes = []
    settings = {"growth_factor": given.growth, "backoff_factor": given.backoff, "growth_interval": given.interval}
    known = {key: value for key, value in settings.items() if value is not None and given.dynamic}
    if given.dynamic and not known:
        notes.append(f"{given.kind} does not say how the scale develops: the GradScaler's own settings stay")
    state = {**own, **known, "scale": given.scale, "_growth_tracker": given.steps or 0}
    scaler.load_state_dict(state)
    found = find(scaler.state_dict(), "the GradScaler")
    assert found is not None, "an enabled scaler has a state"
    made = found[1]
    if made.scale != given.scale:
        raise ConversionError(f"the GradScaler did not take the scale {given.scale:g}: it has {made.scale:g}")
    return LossScaleReport(
        given.kind, made.kind, made.scale, made.steps, tuple(_differences(given, made)), tuple(notes)
    )


def _in_mindspore(values: Mapping[str, Any], text: str) -> LossScale:
    """The loss scale among the parameters of a MindSpore checkpoint, whatever is before their names."""

    def one(word: str) -> float | None:
        found = [name for name in values if isinstance(name, str) and leaf(name) == word]
        if len(found) > 1:
            raise ConversionError(f"{text} holds {len(found)} loss scales ({', '.join(found)}): give the one meant")
        return _number(values[found[0]]) if found else None

    scale, step, last = one(SENSE), one(STEP), one(LAST)
    if scale is not None:
        steps = None if step is None or last is None else int(step - last) - 1
        return LossScale("TrainOneStepWithLossScaleCell", scale, steps is not None, steps, least=1.0)
    scale, counter = one(_VALUE), one(_COUNTER)
    if scale is None:
        raise ConversionError(f"{text} holds no loss scale: neither a GradScaler's state, nor {SENSE} or {_VALUE}")
    steps = None if counter is None else int(counter)
    return LossScale("mindspore.amp's scaler", scale, steps is not None, steps, least=1.0)


def _number(value: Any) -> float:
    """A number, also where a tensor or a parameter of one element holds it."""
    convert: Callable[[], Any] | None = getattr(value, "asnumpy", None)
    array = np.asarray(value if convert is None else convert(), np.float64).reshape(-1)
    if array.size != 1:
        raise ConversionError(f"a loss scale is one number, and this has {array.size}")
    return float(array[0])
