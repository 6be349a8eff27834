"""The loss scale of mixed precision, from PyTorch's ``GradScaler`` to MindSpore and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap import cli
from automap.errors import ConversionError
from automap.loss_scale import find, parameters, read

STATE = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 2}

#: Whether the gradients of each step overflow.
OVERFLOWS = [0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]

frameworks = pytest.mark.frameworks


def grad_scaler(**state: Any) -> Any:
    import torch

    made = torch.amp.GradScaler("cpu")
    made.load_state_dict({**STATE, **state})
    return made


class TorchSteps:
    """Steps of a real optimizer under a scaler; an overflow is a gradient that is infinite."""

    def __init__(self, scaler: Any) -> None:
        import torch

        self.scaler = scaler
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([self.weight], 0.1)

    def step(self, overflow: int) -> float:
        self.optimizer.zero_grad()
        self.scaler.scale(self.weight * (float("inf") if overflow else 1.0)).sum().backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return float(self.scaler.get_scale())


def training_cell(manager: Any) -> Any:
    from mindspore import nn

    network = nn.Dense(2, 1)
    return nn.TrainOneStepWithLossScaleCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), manager)


def scalers() -> dict[str, tuple[Any, Any]]:
    """What keeps a scale in MindSpore, with other values than the state, and how it takes a step."""
    import mindspore as ms
    from mindspore import amp, nn

    cell = training_cell(nn.DynamicLossScaleUpdateCell(8.0, 4, 100))
    scaler = amp.DynamicLossScaler(8.0, 4, 100)
    manager = amp.DynamicLossScaleManager(8, 4, 100)

    def of_cell(overflow: int) -> float:
        cell.loss_scaling_manager(cell.scale_sense, ms.Tensor(bool(overflow)))
        return float(cell.scale_sense.asnumpy())

    def of_scaler(overflow: int) -> float:
        scaler.adjust(ms.Tensor(not overflow))
        return float(scaler.scale_value.asnumpy())

    def of_manager(overflow: int) -> float:
        manager.update_loss_scale(bool(overflow))
        return float(manager.get_loss_scale())

    return {"cell": (cell, of_cell), "amp": (scaler, of_scaler), "manager": (manager, of_manager)}


@frameworks
@pytest.mark.parametrize("tracker", [0, 2])
def test_the_scale_develops_equally_there_and_back(tracker: int) -> None:
    import torch

    for kind, (scaler, step) in scalers().items():
        ours = TorchSteps(grad_scaler(_growth_tracker=tracker))
        report = automap.apply_loss_scale(ours.scaler, scaler)
        assert not report.needs_review, report
        assert (report.scale, report.steps) == (1024.0, tracker), kind
        expected = [ours.step(o) for o in OVERFLOWS]
        assert [step(o) for o in OVERFLOWS] == expected, kind
        assert len(set(expected)) > 2  # it grew and shrank
        step(0)
        back = TorchSteps(torch.amp.GradScaler("cpu"))
        report = automap.apply_loss_scale(scaler, back.scaler)
        assert not report.needs_review, report
        ours.step(0)
        assert back.scaler.state_dict() == ours.scaler.state_dict(), kind
        assert [back.step(o) for o in OVERFLOWS] == [step(o) for o in OVERFLOWS], kind


@frameworks
def test_what_one_side_lacks_is_said() -> None:
    from mindspore import amp, nn

    cell = training_cell(nn.DynamicLossScaleUpdateCell(8.0, 4, 100))
    said = str(automap.apply_loss_scale({**STATE, "growth_factor": 1.5}, cell))
    assert "differs: factor at an overflow: 0.5 in GradScaler, 0.666667 in DynamicLossScaleUpdateCell" in said
    assert "does not fall below 1; GradScaler becomes 0.5" in str(automap.apply_loss_scale({**STATE, "scale": 1}, cell))
    assert "2 steps since" in str(automap.apply_loss_scale({**STATE, "growth_interval": 2}, cell))
    for fixed in (amp.StaticLossScaler(8.0), training_cell(nn.FixedLossScaleUpdateCell(8.0)),
                  training_cell(ms_tensor(8.0)), amp.FixedLossScaleManager(8.0)):  # fmt: skip
        report = automap.apply_loss_scale(STATE, fixed)
        assert report.scale == 1024.0
        assert "is multiplied by 2 after 3 steps, by 0.5 at an overflow" in str(report)
        assert "stays at 1024" in str(report)
    said = str(automap.apply_loss_scale(STATE, amp.DynamicLossScaleManager()))
    assert "note: the cell of get_update_cell() begins to count anew, and not at 2" in said
    back = automap.apply_loss_scale(amp.StaticLossScaler(8.0), scaler := grad_scaler())
    assert back.needs_review
    assert scaler.get_scale() == 8.0


def ms_tensor(value: float) -> Any:
    import mindspore as ms

    return ms.Tensor(value, ms.float32)


@frameworks
def test_a_cell_somewhere_inside() -> None:
    from mindspore import nn

    cell = training_cell(nn.DynamicLossScaleUpdateCell(8.0, 4, 100))
    automap.apply_loss_scale(STATE, nn.SequentialCell(nn.ReLU(), cell))
    assert float(cell.scale_sense.asnumpy()) == 1024.0
    with pytest.raises(ConversionError, match="a ReLU has no loss scale"):
        automap.apply_loss_scale(STATE, nn.ReLU())
    two = nn.SequentialCell(cell, training_cell(nn.DynamicLossScaleUpdateCell(8.0, 4, 100)))
    with pytest.raises(ConversionError, match="has 2 loss scales"):
        automap.apply_loss_scale(STATE, two)


@frameworks
def test_a_scaler_that_is_not_enabled() -> None:
    import torch

    idle = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(ConversionError, match="not enabled, and has no scale"):
        automap.apply_loss_scale(idle, grad_scaler())
    with pytest.raises(ConversionError, match="not enabled, and takes no scale"):
        automap.apply_loss_scale(STATE, idle)


@pytest.mark.parametrize("where", ["scaler", "grad_scaler", "amp"])
def test_found_in_a_checkpoint(where: str) -> None:
    found = find({"model": {"w": np.zeros(2)}, "epoch": 3, "more": {where: STATE}}, "c.pth")
    assert found is not None
    assert found[0] == f"more.{where}"
    assert (found[1].scale, found[1].steps, found[1].interval) == (1024.0, 2, 3)
    assert find({"model": {"scale": np.zeros(2)}}, "c.pth") is None


def test_apex_and_what_is_not_there() -> None:
    scale = read({"amp": {"loss_scaler0": {"loss_scale": 4096.0, "unskipped": 17}}})
    assert (scale.scale, scale.steps, scale.growth, scale.backoff, scale.interval) == (4096.0, 17, 2.0, 0.5, 2000)
    with pytest.raises(ConversionError, match=r"the state holds 2 loss scales \(a, b\)"):
        read({"a": STATE, "b": STATE})
    with pytest.raises(ConversionError, match="the state holds no loss scale"):
        read({"w": np.zeros(2)})
    with pytest.raises(ConversionError, match="a list has no loss scale"):
        read([1024.0])


def test_the_parameters_of_a_checkpoint_and_back() -> None:
    made = parameters(read({"scaler": STATE}))
    assert {name: (a.dtype.name, a.shape) for name, a in made.items()} == {
        "scale_sense": ("float32", ()), "current_iterator_step": ("int32", ()), "last_overflow_iterator_step":
        ("int32", ())}  # fmt: skip
    scale = read({f"train.{name}": array for name, array in made.items()})
    assert (scale.scale, scale.steps, scale.dynamic) == (1024.0, 2, True)


@frameworks
def test_convert_takes_it_with_the_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mindspore as ms
    import torch
    from mindspore import amp, nn

    monkeypatch.chdir(tmp_path)
    net = torch.nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    (optimizer := torch.optim.SGD(net.parameters(), 0.1, 0.9)).step()
    ours = TorchSteps(grad_scaler())
    saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": ours.scaler.state_dict()}
    torch.save(saved, "c.pth")
    automap.infer(net, nn.Dense(2, 1), static=True).write("mapping.json")
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "bare.ckpt"]) == 0
    assert "c.pth: a loss scale, under scaler, is beside it; convert takes it" in capsys.readouterr().err
    assert "scale_sense" not in ms.load_checkpoint("bare.ckpt")
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "Momentum"]) == 0
    said = capsys.readouterr().err
    assert "loss scale GradScaler -> DynamicLossScaleUpdateCell: 1024, 2 step(s) since it changed" in said
    assert "nn.DynamicLossScaleUpdateCell(1024, 2, 3)" in said
    cell = training_cell(nn.DynamicLossScaleUpdateCell(1024, 2, 3))
    absent, _ = ms.load_param_into_net(cell, ms.load_checkpoint("c.ckpt"))
    assert absent == ["global_step"]  # which SGD does not count
    scaler = amp.DynamicLossScaler(8.0, 2, 3)
    automap.apply_loss_scale("c.ckpt", scaler)
    for overflow in OVERFLOWS:
        expected = ours.step(overflow)
        cell.loss_scaling_manager(cell.scale_sense, ms.Tensor(bool(overflow)))
        scaler.adjust(ms.Tensor(not overflow))
        assert float(cell.scale_sense.asnumpy()) == float(scaler.scale_value.asnumpy()) == expected
    # And back: the settings are not in the checkpoint, which is said.
    ms.save_checkpoint(cell, "trained.ckpt")
    args = ["convert", "mapping.json", "trained.ckpt", "-o", "back.pth", "--reverse", "--optimizer", "SGD"]
    assert cli.main(args) == 1
    said = capsys.readouterr().err
    assert "-> GradScaler (under scaler): 2048, " in said
    assert "by how much the scale changes, and when: written is growth_factor=2, backoff_factor=0.5, gr" in said
    state = torch.load("back.pth", weights_only=True)["scaler"]
    assert state == {**ours.scaler.state_dict(), "growth_interval": 2000}
    grad_scaler().load_state_dict(state)
    # A factor that MindSpore cannot have ends with status 1.
    torch.save({**saved, "scaler": {**STATE, "backoff_factor": 0.25}}, "c.pth")
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "Momentum"]) == 1
    assert "factor at an overflow: 0.25 in GradScaler, 0.5 in" in capsys.readouterr().err
