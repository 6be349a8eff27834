"""``automap convert --optimizer``: network and optimizer in one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap import cli
from automap.errors import ConversionError

pytestmark = pytest.mark.frameworks

FACTORY = """
from mindspore import nn

def net():
    return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))

def make(rate=0.5):
    return nn.Momentum(net().trainable_params(), rate, 0.9)

def adam():
    return nn.Adam(net().trainable_params(), 0.1)

def in_groups(network=None):
    params = (network or net()).trainable_params()
    others = {"params": [p for p in params if p.ndim == 1], "lr": 0.3}
    kernels = {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1}
    return nn.Momentum([others, kernels], 0.2, 0.9)
"""

TORCH = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))

def in_groups():
    params = list(net().parameters())
    kernels = {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1}
    return torch.optim.SGD([kernels, {"params": [p for p in params if p.ndim == 1]}], 7.0, 0.9)
"""


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import torch

    monkeypatch.chdir(tmp_path)
    Path("factory.py").write_text(FACTORY)
    Path("ours.py").write_text(TORCH)
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


# -- and back ----------------------------------------------------------------------------------------------------------

BACK = ["convert", "mapping.json", "c.ckpt", "-o", "again.pth", "--reverse"]


def loaded(file: str) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def test_a_torch_checkpoint_comes_back_as_it_was(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    net, _ = case
    optimizer = torch.optim.AdamW(net.parameters(), 0.1, weight_decay=0.02)
    for _ in range(3):
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    given = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(given, "c.pth")
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "experimental.AdamW"]) == 0
    more = ["--torch-arg", "lr=0.1", "--torch-arg", "weight_decay=0.02"]
    assert cli.main([*BACK, "--optimizer", "AdamW", *more]) == 0
    said = capsys.readouterr().err
    assert "optimizer experimental.Adam or experimental.AdamW -> AdamW: exp_avg of 4, exp_avg_sq of 4" in said
    assert "left out" not in said
    made = loaded("again.pth")
    assert made["step"] == 3
    assert made["optimizer"]["param_groups"] == given["optimizer"]["param_groups"]
    for i, held in given["optimizer"]["state"].items():
        assert made["optimizer"]["state"][i].keys() == held.keys()
        for slot, tensor in held.items():
            assert torch.equal(made["optimizer"]["state"][i][slot], tensor)
    for name, tensor in given["model"].items():
        assert torch.equal(made["model"][name], tensor)
    again = torch.optim.AdamW(net.parameters())
    again.load_state_dict(made["optimizer"])
    assert again.state[net[1].bias]["step"] == 3


def test_a_mindspore_run_goes_on_in_pytorch(case: Any) -> None:
    """Trained in MindSpore in two groups; in PyTorch the groups are the other way round. The next step is the same."""
    import mindspore as ms
    import torch
    from mindspore import ops

    from automap.specs import load_object

    port = load_object("factory.py:net")()
    theirs = load_object("factory.py:in_groups")(port)

    def step() -> None:
        grads = ms.grad(lambda: port(ops.ones((1, 3))).sum(), None, theirs.parameters)()
        theirs(grads)

    step()
    step()
    ms.save_checkpoint([{"name": p.name, "data": p} for p in {*port.get_parameters(), *theirs.get_parameters()}]
                       + [{"name": p.name, "data": p} for p in theirs.learning_rate], "c.ckpt")  # fmt: skip
    args = ["--optimizer", "ours.py:in_groups", "--from-optimizer", "factory.py:in_groups"]
    assert cli.main([*BACK, *args]) == 0
    made = loaded("again.pth")
    assert [group["lr"] for group in made["optimizer"]["param_groups"]] == [0.2, 0.3]
    assert made["step"] == 2
    net = load_object("ours.py:net")()
    net.load_state_dict(made["model"])
    kernels = [p for p in net.parameters() if p.ndim > 1]
    groups = [{"params": kernels}, {"params": [p for p in net.parameters() if p.ndim == 1]}]
    ours = torch.optim.SGD(groups, 1.0)
    ours.load_state_dict(made["optimizer"])
    net(torch.ones(1, 3)).sum().backward()
    ours.step()
    step()
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(parameter.detach(), port.parameters_dict()[name].asnumpy(), rtol=1e-5, atol=1e-6)


def test_what_the_way_back_cannot_tell_is_said(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "factory.py:in_groups", "--step", "2"]
    assert cli.main(args) == 1  # PyTorch's weight decay is 0
    capsys.readouterr()
    assert cli.main([*BACK, "--optimizer", "SGD"]) == 1
    said = capsys.readouterr().err
    assert "not carried over: momentum_buffer (of 4 parameters; PyTorch's SGD was made with momentum 0" in said
    assert "differs: momentum: 0 in PyTorch, 0.9 in MindSpore, for 0.weight and 3 more" in said
    assert cli.main([*BACK, "--optimizer", "ours.py:in_groups", "--from-optimizer", "factory.py:make"]) == 1
    assert "differs: weight_decay: 0.1 in PyTorch, 0 in MindSpore, for 0.weight and 1 more" in capsys.readouterr().err
    assert cli.main([*BACK, "--optimizer", "Adam"]) == 1
    assert "PyTorch keeps exp_avg, and MindSpore's Momentum or LARS does not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-o", "a.safetensors"], "a.safetensors would hold tensors alone, and optimizer.state_dict() is more"),
        (["-o", "a/"], "a/ would hold tensors alone"),
        (["--optimizer", "NAdam"], "PyTorch's NAdam is not known: automap knows SGD, Adam, AdamW, RMSprop, Adagrad"),
        (["--optimizer", "Nix"], "PyTorch has no optimizer 'Nix': name a factory"),
        (["--optimizer", "ours.py:net"], "ours.py:net gives a Sequential, and no optimizer of PyTorch"),
        (["--from-optimizer", "Adam", "--ms-arg", "rate=1"], "the name of a class and takes no arguments (rate)"),
        (["--ms-arg", "rate=1"], "--ms-arg for MindSpore's factory"),
    ],
)
def test_bad_use_of_the_way_back_is_one_line(
    case: Any, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "Momentum", "--step", "2"]) == 0
    capsys.readouterr()
    given = [*BACK, *([] if "--optimizer" in args else ["--optimizer", "SGD"]), *args]
    assert cli.main(given) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_the_kind_is_told_by_the_names_or_asked_for() -> None:
    from automap.optimizer_kinds import kind_in
    from automap.stored import Filled

    def of(*names: str, **scalars: str) -> dict[str, Filled]:
        found = {f"{name}.w": Filled((2, 2), "float32") for name in names}
        return found | {name: Filled((1,) if dtype != "" else (), dtype or "int32") for name, dtype in scalars.items()}

    assert kind_in(of("opt.moment1", "opt.moment2", global_step="int32")).name == "Adam"
    assert kind_in(of("accum", "stat", global_step="int32")).name == "SGD"
    assert kind_in(of("accum", global_step="int32")).name == "Adagrad"
    assert kind_in(of("accum", step_t="")).name == "experimental.Adagrad"
    assert kind_in(of("mean_square", "moment", global_step="int32")).name == "RMSProp"
    # Without any count, what it would be called is no matter.
    assert kind_in(of("moments")).name == "Momentum or LARS"
    assert kind_in(of("accum", "stat")).name == "SGD or experimental.SGD"
    assert kind_in(of("accum", "stat", momentum="float32")).name == "SGD"
    with pytest.raises(ConversionError, match=r"may be of RMSProp or experimental\.RMSprop"):
        kind_in(of("mean_square", "moment"))
    with pytest.raises(ConversionError, match=r"may be of mint\.Adam or mint\.AdamW: name it \(kind=, --from-opt"):
        kind_in(of("exp_avg", "exp_avg_sq", state_step="float32"))
    with pytest.raises(ConversionError, match=r"no states of an optimizer that is known here"):
        kind_in(of("w"))


@pytest.mark.parametrize("kind", ["Momentum", "SGD", "experimental.SGD"])
def test_a_momentum_comes_back_though_nobody_counted_the_steps(case: Any, kind: str) -> None:
    _, ours = case
    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", kind]) == 0
    assert cli.main([*BACK, "--optimizer", "SGD", "--torch-arg", "momentum=0.9"]) == 0
    made = loaded("again.pth")
    assert "step" not in made
    for held, i in zip(ours.state.values(), range(4), strict=True):
        assert np.array_equal(made["optimizer"]["state"][i]["momentum_buffer"], held["momentum_buffer"])


def test_adam_without_its_steps_is_refused(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import mindspore as ms

    net = {"0.weight": (4, 3), "0.bias": (4,), "1.weight": (2, 4), "1.bias": (2,)}
    held = {f"{slot}.{name}": shape for slot in ("moment1", "moment2") for name, shape in net.items()}
    arrays = {name: ms.Tensor(np.ones(shape, np.float32)) for name, shape in {**held, **net}.items()}
    ms.save_checkpoint([{"name": name, "data": tensor} for name, tensor in arrays.items()], "c.ckpt")
    args = [*BACK, "--optimizer", "Adam", "--from-optimizer", "Adam"]
    assert cli.main(args) == 2
    assert "how many steps were made is not told, and PyTorch's Adam needs it" in capsys.readouterr().err
    assert cli.main([*args, "--step", "5"]) in (0, 1)
    assert loaded("again.pth")["optimizer"]["state"][0]["step"] == 5


def test_an_interrupted_way_back_is_resumed(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from automap.staging import Staging

    def interrupt(self: Staging, names: Any) -> None:
        raise KeyboardInterrupt

    assert cli.main(["convert", "mapping.json", "c.pth", "-o", "c.ckpt", "--optimizer", "Momentum", "--step", "2"]) == 0
    given: dict[str, Any] = {"reverse": True, "optimizer": "SGD", "optimizer_args": {"momentum": 0.9}}
    with monkeypatch.context() as patched:
        patched.setattr(Staging, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            automap.convert("mapping.json", "c.ckpt", "again.pth", **given)
    # Another setting is another conversion, though no tensor differs.
    with pytest.raises(ConversionError, match="is of another conversion"):
        automap.convert("mapping.json", "c.ckpt", "again.pth", **(given | {"optimizer_args": {"nesterov": False}}),
                        resume=True)  # fmt: skip
    done = automap.convert("mapping.json", "c.ckpt", "again.pth", **given, resume=True)
    assert (done.resumed, done.verified) == (1, 8)
    assert loaded("again.pth")["optimizer"]["param_groups"][0]["momentum"] == 0.9


def test_joined_weights_take_the_order_of_the_network(tmp_path: Path) -> None:
    """PyTorch's optimizer knows positions alone, and a mapping that joins weights does not tell their order."""
    import torch

    from automap.mapping import Entry, Mapping, Side
    from automap.sources import write_tensors
    from automap.transforms import Transform

    join = (Transform("concat", {"axis": 0, "sizes": [2, 2]}),)
    entries = (Entry(("q.weight", "k.weight"), ("qk.weight",), join), Entry(("o.weight",), ("o.weight",)))
    mapping = Mapping(Side("", 3, ""), Side("", 2, ""), entries)
    rng = np.random.default_rng(0)
    names = {"qk.weight": (4, 3), "o.weight": (2, 3), "moments.qk.weight": (4, 3), "moments.o.weight": (2, 3)}
    held = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in names.items()}
    numbers = {"global_step": np.array([4], np.int32), "learning_rate": np.array(0.1, np.float32)}
    write_tensors(tmp_path / "c.safetensors", held | numbers, "mindspore")
    given: dict[str, Any] = {"reverse": True, "optimizer": "SGD", "optimizer_args": {"momentum": 0.9}}
    with pytest.raises(ConversionError, match=r"the order of PyTorch's parameters cannot be told.*--target"):
        automap.convert(mapping, tmp_path / "c.safetensors", tmp_path / "c.pth", **given)
    net = torch.nn.ModuleDict({name: torch.nn.Linear(3, 2, bias=False) for name in ("q", "o", "k")})
    automap.convert(mapping, tmp_path / "c.safetensors", tmp_path / "c.pth", **given, target=net)
    made = loaded(str(tmp_path / "c.pth"))
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    optimizer.load_state_dict(made["optimizer"])
    moments = held["moments.qk.weight"]
    for name, expected in (("q", moments[:2]), ("k", moments[2:]), ("o", held["moments.o.weight"])):
        assert np.array_equal(optimizer.state[net[name].weight]["momentum_buffer"].numpy(), expected)
    assert optimizer.param_groups[0]["lr"] == 0.1
