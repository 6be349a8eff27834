"""Networks inside cells for training: what is the network there, by its cells and by names alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap.checkpoints import mark_optimizer_states, without_state
from automap.errors import ConversionError
from automap.graph import Param
from automap.prefixes import common_prefix
from automap.wrapping import beside, changes, inner_names, outside, rejoined

# --- by names -------------------------------------------------------------------------------------------------------

NETWORK = ["stem.weight", "bn.moving_mean", "bn.moving_variance", "bn.gamma", "bn.beta", "head.weight", "head.bias"]


def called(trained: str, statistics: str) -> list[str]:
    return [(statistics if "moving" in name else trained) + name for name in NETWORK]


def test_statistics_find_their_layers() -> None:
    names = called("optimizer.network.", "network.network.")
    assert rejoined(names) == {
        "network.network.bn.moving_mean": "optimizer.network.bn.moving_mean",
        "network.network.bn.moving_variance": "optimizer.network.bn.moving_variance",
    }
    assert rejoined(called("network.", "network.")) == {}
    assert rejoined(called("", "network.")) == {
        f"network.bn.{s}": f"bn.{s}" for s in ("moving_mean", "moving_variance")
    }


def test_statistics_without_weights_stay() -> None:
    """A norm that has no weights, beside one that has: nothing says that they belong together."""
    assert rejoined(["a.gamma", "a.beta", "b.moving_mean", "b.moving_variance"]) == {}
    assert rejoined(["moving_mean", "moving_variance"]) == {}


@pytest.mark.parametrize("prefixes", [("", ""), ("network.", "network."), ("optimizer.", "network._backbone.")])
def test_inner_names_and_changes(prefixes: tuple[str, str]) -> None:
    names = called(*prefixes)
    assert list(inner_names(names).values()) == NETWORK
    assert changes([*names, "output"], NETWORK) == dict(zip(names, NETWORK, strict=True))
    assert changes(NETWORK, [*names, "output"]) == dict(zip(NETWORK, names, strict=True))


def test_common_prefix() -> None:
    assert common_prefix(["a.b.c", "a.b.d"]) == "a.b."
    assert common_prefix(["a.b.c", "a.bc.d"]) == "a."
    assert common_prefix(["a.b", "a.b.c"]) == "a."
    assert common_prefix(["ab", "ac"]) == common_prefix([]) == ""


def test_outside() -> None:
    assert outside([*called("network.", "network."), "output"]) == {"output"}
    assert outside([*called("optimizer.network.", "network.network."), "network.output"]) == {"network.output"}
    assert outside(NETWORK) == outside(["fc.weight", "output"]) == set()


def test_beside_needs_a_prefix_that_pytorch_has_not() -> None:
    names = called("network.", "network.")
    assert beside(names, ["output", "other.weight"], "", ()) == {"output"}
    split = called("optimizer.network.", "network.network.")
    assert beside(split, ["network.output", "network.head.x"], "", ()) == {"network.output"}
    assert beside(["encoder.a", "encoder.b.c"], ["token"], "encoder.", ()) == set()
    assert beside(names, ["network.token"], "", ()) == set()
    assert beside(names, ["network.token"], "", ["network.token"]) == {"network.token"}


def test_what_has_no_state_is_not_trained() -> None:
    states = [f"moments.{n}" for n in NETWORK if "moving" not in n]  # made before the network was wrapped
    params = mark_optimizer_states(
        [Param(n) for n in [*called("network.", "network."), "output", "global_step", *states]]
    )
    assert {p.name for p in params if p.kind == "optimizer"} == {"global_step", *states}
    assert without_state(params) == {"output", "network.bn.moving_mean", "network.bn.moving_variance"}
    assert without_state([Param(n) for n in NETWORK]) == set()


# --- live cells and their checkpoints -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_net() -> Any:
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    parts = [nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4)]
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 5))
    for tensor in [*net.parameters(), *net.buffers()]:
        if tensor.is_floating_point():
            tensor.data += 0.1
    return net


def _nestings() -> dict[str, Callable[[], Any]]:
    import mindspore as ms
    from mindspore import Parameter, nn, ops
    from mindspore.experimental import optim

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            conv = {"pad_mode": "pad", "padding": 1, "has_bias": True}
            self.stem = nn.SequentialCell(nn.Conv2d(3, 4, 3, **conv), nn.BatchNorm2d(4), nn.ReLU())
            self.body = nn.SequentialCell(nn.Conv2d(4, 4, 3, **conv), nn.BatchNorm2d(4))
            self.head = nn.Dense(64, 5)

        def construct(self, x: ms.Tensor) -> ms.Tensor:
            return self.head(self.body(self.stem(x)).reshape(x.shape[0], -1))

    class NetWithLoss(nn.Cell):
        def __init__(self, network: nn.Cell, attribute: str = "network") -> None:
            super().__init__()
            setattr(self, attribute, network)
            self.attribute = attribute
            self.loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
            self.output = Parameter(ops.zeros((2, 5), ms.float32), requires_grad=False)

        def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
            out = getattr(self, self.attribute)(x)
            return ops.depend(self.loss_fn(out, y), ops.assign(self.output, out))

    class Step(nn.TrainOneStepCell):
        pass

    class Trainer(nn.Cell):
        def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
            super().__init__()
            self.network, self.optimizer = network, optimizer

        def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
            return self.network(x, y)

    class Outer(nn.Cell):
        def __init__(self, network: nn.Cell) -> None:
            super().__init__()
            self.network = network

        def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
            return self.network(x, y)

    def momentum(cell: nn.Cell) -> nn.Cell:
        return nn.Momentum(cell.trainable_params(), 0.1, 0.9)

    def before() -> nn.Cell:
        net = Net()
        optimizer = momentum(net)
        return Step(NetWithLoss(net), optimizer)

    def after(make: Callable[[nn.Cell], nn.Cell], outer: Callable[..., nn.Cell], attribute: str = "network") -> nn.Cell:
        joined = NetWithLoss(Net(), attribute)
        return outer(joined, make(joined))

    def plain() -> nn.Cell:
        net = Net()
        return nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.AdamWeightDecay(net.trainable_params(), 0.1))

    def adam(cell: nn.Cell) -> nn.Cell:
        return nn.Adam(cell.trainable_params(), 0.1)

    def scaled() -> nn.Cell:
        joined = NetWithLoss(Net())
        optimizer = nn.RMSProp(joined.trainable_params(), 0.1, momentum=0.9, centered=True)
        manager = nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)
        return nn.TrainOneStepWithLossScaleCell(joined, optimizer, scale_sense=manager)

    return {
        "alone": Net,
        "with its loss": lambda: NetWithLoss(Net()),
        "optimizer made before": before,
        "optimizer made after": lambda: after(adam, Step),
        "backbone": lambda: after(momentum, Step, "_backbone"),
        "MindSpore's own": plain,
        "optimizer as an attribute": lambda: after(lambda c: nn.SGD(c.trainable_params(), 0.1, 0.9), Trainer),
        "twice": lambda: Outer(after(adam, Step)),
        "experimental": lambda: after(lambda c: optim.AdamW(c.trainable_params()), Step),
        "loss scale": scaled,
    }


NAMES = ["alone", "with its loss", "optimizer made before", "optimizer made after", "backbone", "MindSpore's own",
         "optimizer as an attribute", "twice", "experimental", "loss scale"]  # fmt: skip


@pytest.fixture(scope="module")
def nestings() -> dict[str, Callable[[], Any]]:
    found = _nestings()
    assert list(found) == NAMES
    return found


def pairs(mapping: automap.Mapping) -> list[tuple[str, str]]:
    """PyTorch's names with the ends of MindSpore's, which no wrapper changes."""
    return [(t, ".".join(m.split(".")[m.split(".").index("head") if "head" in m else -3 :])) for t, m in
            mapping.torch_2_ms.items()]  # fmt: skip


@pytest.mark.frameworks
@pytest.mark.parametrize("name", NAMES)
def test_the_mapping_reaches_the_network(
    name: str, torch_net: Any, nestings: dict[str, Callable[[], Any]], tmp_path: Path
) -> None:
    import mindspore as ms
    import torch

    plain = automap.infer(torch_net, nestings["alone"](), static=True)
    cell = nestings[name]()
    path = str(tmp_path / "wrapped.ckpt")
    ms.save_checkpoint(cell, path)
    for source in (cell, path):
        mapping = automap.infer(torch_net, source, static=True)
        assert not mapping.needs_review
        assert len(mapping) == len(plain) == 14
        assert pairs(mapping) == pairs(plain)
        whys = {u.name.rpartition(".")[2]: u.why for u in mapping.unmatched_mindspore}
        assert ("output" in whys) == (name not in ("alone", "MindSpore's own"))
        assert whys.get("learning_rate", "the state of an optimizer") == "the state of an optimizer"

    # The mapping of the bare network loads the wrapped one, and reads its checkpoints.
    state = torch_net.state_dict()
    assert len(automap.load(plain, state, cell).loaded) == 14
    ms.save_checkpoint(cell, path)
    back = automap.apply(plain, path, reverse=True)
    assert {n: bool(torch.equal(v, state[n])) for n, v in back.items()} == dict.fromkeys(plain.torch_2_ms, True)
    # And a checkpoint that fits the wrapped one is made from its names.
    made = automap.apply(plain, state, target=path)
    assert set(made) <= {p.name for p in cell.get_parameters()}


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["optimizer made before", "optimizer as an attribute", "twice", "loss scale"])
def test_the_network_inside_is_run(name: str, torch_net: Any, nestings: dict[str, Callable[[], Any]]) -> None:
    images = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    mapping = automap.infer(torch_net, nestings[name](), inputs=[images])
    assert mapping.proof is not None
    assert mapping.proof.status == "proven"
    assert not mapping.needs_review


@pytest.mark.frameworks
def test_a_trained_parameter_beside_is_not_dropped(torch_net: Any, nestings: dict[str, Callable[[], Any]]) -> None:
    """A cell that trains something itself is a network."""
    import mindspore as ms

    from automap.mindspore_wrapping import network_inside

    class Scaled(ms.nn.Cell):
        def __init__(self, network: ms.nn.Cell) -> None:
            super().__init__()
            self.network = network
            self.loss_fn = ms.nn.MSELoss()
            self.scale = ms.Parameter(ms.Tensor([1.0]))

        def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
            return self.loss_fn(self.network(x) * self.scale, y)

    cell = Scaled(nestings["alone"]())
    assert network_inside(cell) is cell
    mapping = automap.infer(torch_net, cell, static=True)
    assert [u.name for u in mapping.unmatched_mindspore if u.review] == ["scale"]

    with pytest.raises(ConversionError, match=r"1 not zero and without a counterpart: scale "):
        automap.apply(mapping, cell, reverse=True)


@pytest.mark.frameworks
def test_another_network_beside_is_not_dropped(torch_net: Any, nestings: dict[str, Callable[[], Any]]) -> None:
    import mindspore as ms

    mapping = automap.infer(torch_net, nestings["alone"](), static=True)
    state = {p.name: p for p in nestings["with its loss"]().get_parameters()}
    assert len(automap.apply(mapping, state, reverse=True)) == len(mapping)
    state["neck.weight"] = ms.Parameter(ms.Tensor([1.0]))
    with pytest.raises(ConversionError, match=r"in it but not in the mapping: .*neck\.weight"):
        automap.apply(mapping, state, reverse=True)
