"""``automap convert --optimizer``: network and optimizer in one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap import cli

pytestmark = pytest.mark.frameworks

FACTORY = """
from mindspore import nn

def net():
    return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))

def make(rate=0.5):
    return nn.Momentum(net().trainable_params(), rate, 0.9)

def adam():
    return nn.Adam(net().trainable_params(), 0.1)
"""


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import torch

    monkeypatch.chdir(tmp_path)
    Path("factory.py").write_text(FACTORY)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)
    for _ in range(2):
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "c.pth")
    automap.infer(net, "factory.py:net", static=True).write("mapping.json")
    return net, optimizer


@pytest.mark.parametrize("optimizer", ["factory.py:make", "Momentum"])
def test_network_and_optimizer_go_on_from_one_file(case: Any, optimizer: str) -> None:
    import mindspore as ms
    from mindspore import nn

    net, ours = case
    args = ["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", optimizer, "--step", "2"]
    assert cli.main(args) == 0
    checkpoint = ms.load_checkpoint("c.ckpt")
    port = nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))
    theirs = nn.Momentum(port.trainable_params(), 7.0, 0.9)
    ms.load_param_into_net(port, checkpoint)
    absent, _ = ms.load_param_into_net(theirs, checkpoint)
    assert absent == []
    assert float(theirs.learning_rate) == pytest.approx(0.1)
    assert int(theirs.global_step) == 2
    for held, parameter in zip(theirs.moments, net.parameters(), strict=True):
        assert np.array_equal(held.asnumpy(), ours.state[parameter]["momentum_buffer"].numpy())
        assert np.array_equal(port.parameters_dict()[held.name.removeprefix("moments.")].asnumpy(), parameter.detach())


def test_what_is_not_carried_over_ends_with_status_1(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "factory.py:adam"]) == 1
    assert "not carried over: momentum_buffer (of 4 parameters; MindSpore's Adam has nothing" in capsys.readouterr().err


def test_names_from_a_file(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.txt").write_text("0.weight\n0.bias\n\n1.weight\n1.bias\n")
    args = ["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "Momentum"]
    assert cli.main([*args, "--optimizer-names", "names.txt"]) == 0
    assert "by their names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--optimizer", "Nadam"], "no optimizer 'Nadam' is known: there are Momentum"),
        (["--optimizer", "factory.py:net"], "factory.py:net gives a SequentialCell, and no optimizer of MindSpore"),
        (["--optimizer", "Momentum", "--ms-arg", "rate=1"], "the name of a class and takes no arguments (rate)"),
        (["--step", "3"], "of use with --optimizer only"),
        (["--optimizer", "Momentum", "--optimizer-names", "no.txt"], "no.txt cannot be read: No such file"),
    ],
)
def test_bad_use_is_one_line(case: Any, args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", *args]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not Path("c.ckpt").exists()


def test_a_state_that_is_not_taken_is_said(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = "c.pth: the state of an optimizer, under optimizer, is beside it; convert takes it with --optimizer"
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "bare.ckpt"]) == 0
    assert line in capsys.readouterr().err
    assert (
        cli.main(["convert", "mapping.json", "c.pth", "-o", "both.ckpt", "--optimizer", "Momentum", "--step", "2"]) == 0
    )
    assert line not in capsys.readouterr().err
