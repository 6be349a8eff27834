"""The loss scale in the checkpoint that ``convert`` writes, beside network and optimizer."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from automap import loss_scale
from automap.loss_scale import LossScaleReport
from automap.planning import Output, Plan, Task
from automap.stored import Held


def with_loss_scale(plan: Plan, checkpoint: str) -> tuple[Plan, LossScaleReport | None]:
    """A plan that also makes the parameters of MindSpore's loss scale, where the PyTorch checkpoint has one.

    To PyTorch, the state of a ``GradScaler`` is written under ``scaler``. A MindSpore checkpoint does not say how its
    scale develops, which that has to know: it gets PyTorch's defaults, and the report says so.

    Raises:
        ConversionError: it has more than one.
    """
    if plan.framework == "torch":
        return _to_torch(plan, checkpoint)
    loaded = import_module("automap.torch_optimizers").read_file(checkpoint)
    found = loss_scale.find(loaded, checkpoint)
    if found is None:
        return plan, None
    given = found[1]
    to = "DynamicLossScaleUpdateCell"
    made = loss_scale.parameters(given)
    taken = {key for task in plan.tasks for o in task.made for key in (o.key, *o.copies)}
    if twice := [name for name in made if name in taken]:
        why = f"the network has parameters of that name ({', '.join(twice)}): carry it over with apply_loss_scale"
        return plan, LossScaleReport(given.kind, "nothing", given.scale, None, (f"not written, as {why}",))
    tasks = []
    for name, array in made.items():
        held = Held(array)
        output = Output(name, name, held.shape, held.dtype, held.dtype)
        tasks.append(Task((f"{name} (of the loss scale)",), (held,), (), (output,)))
    read = {**plan.read, **{task.names[0]: task.given[0] for task in tasks}}
    whole = f"{given.growth:g}, {given.interval}" if given.growth is not None else "its factor and window"
    notes = (f"make the cell with the settings of PyTorch's: nn.{to}({given.scale:g}, {whole})",)
    report = LossScaleReport(given.kind, to, given.scale, given.steps, loss_scale.differences_in_file(given), notes)
    return replace(plan, tasks=(*plan.tasks, *tasks), read=read), report


def _to_torch(plan: Plan, checkpoint: str) -> tuple[Plan, LossScaleReport | None]:
    """The state of a ``GradScaler`` beside that of the optimizer."""
    held = [n for n in plan.report.left_out if loss_scale.leaf(n) == loss_scale.SENSE]
    if not held:
        return plan, None
    given = loss_scale.read(checkpoint)
    state = loss_scale.torch_state(given)
    if plan.frame is None:
        why = f"{held[0]} is not written: automap.apply_loss_scale(checkpoint, scaler) carries it over to a GradScaler"
        return plan, LossScaleReport(given.kind, "nothing", given.scale, given.steps, (why,))
    for name in list(plan.report.left_out):
        if loss_scale.leaf(name) in (loss_scale.SENSE, loss_scale.STEP, loss_scale.LAST):
            del plan.report.left_out[name]
    if given.dynamic:
        what = "the checkpoint does not say by how much the scale changes, and when"
    else:
        what = "the checkpoint has a scale without counters, which may not change in MindSpore"
    settings = {key: value for key, value in state.items() if key not in ("scale", "_growth_tracker")}
    shown = ", ".join(f"{key}={value:g}" for key, value in settings.items())
    report = LossScaleReport(
        given.kind, "GradScaler (under scaler)", given.scale, given.steps, (f"{what}: written is {shown}",)
    )
    return replace(plan, frame=replace(plan.frame, beside={**plan.frame.beside, "scaler": state})), report
