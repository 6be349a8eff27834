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

    A MindSpore checkpoint does not say how its scale develops, which a ``GradScaler`` has to know: it stays there.

    Raises:
        ConversionError: it has more than one.
    """
    if plan.framework == "torch":
        return plan, _left_behind(plan, checkpoint)
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


def _left_behind(plan: Plan, checkpoint: str) -> LossScaleReport | None:
    """What is said of a loss scale in a MindSpore checkpoint."""
    held = next((n for n in plan.report.left_out if n.rpartition(".")[2] == loss_scale.SENSE), None)
    if held is None:
        return None
    why = f"{held} is not written: automap.apply_loss_scale(checkpoint, scaler) carries it over to a GradScaler"
    given = loss_scale.read(checkpoint)
    return LossScaleReport(given.kind, "nothing", given.scale, given.steps, (why,))
