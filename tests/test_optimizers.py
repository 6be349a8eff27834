"""The state of an optimizer is carried over: the next steps of both frameworks give equal parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import automap
from automap.errors import ConversionError
from automap.graph import Shape
from automap.mapping import Entry, Mapping, Side
from automap.optimizer_kinds import KINDS, kind_called
from automap.optimizer_names import positions
from automap.optimizer_state import find_state, read_state
from automap.transforms import Transform, apply, inverse

# --- a network without a framework: parameters, and a mapping that joins, transposes and reshapes them ---------------

TORCH: dict[str, Shape] = {
    "conv.weight": (4, 3, 2),
    "bn.weight": (4,),
    "bn.bias": (4,),
    "q.weight": (4, 4),
    "q.bias": (4,),
    "k.weight": (4, 4),
    "k.bias": (4,),
    "fc.weight": (5, 4),
    "fc.bias": (5,),
}
ENTRIES = (
    Entry(("conv.weight",), ("stem.weight",), (Transform("reshape", {"shape": [4, 3, 1, 2], "before": [4, 3, 2]}),)),
    Entry(("bn.weight",), ("norm.gamma",)),
    Entry(("bn.bias",), ("norm.beta",)),
    Entry(("bn.running_mean",), ("norm.moving_mean",)),
    Entry(("q.weight", "k.weight"), ("qk.weight",), (Transform("concat", {"axis": 0, "sizes": [4, 4]}),)),
    Entry(("q.bias", "k.bias"), ("qk.bias",), (Transform("concat", {"axis": 0, "sizes": [4, 4]}),)),
    Entry(("fc.weight",), ("head.weight",), (Transform("transpose", {"axes": [1, 0]}),)),
    Entry(("fc.bias",), ("head.bias",)),
)
MAPPING = Mapping(Side("", 10, ""), Side("", 8, ""), ENTRIES)
TRAINED = [e for e in ENTRIES if e.mindspore[0] != "norm.moving_mean"]
NETWORK = {name: np.zeros(shape, np.float32) for name, shape in TORCH.items()}


def to_mindspore(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The test's own way through the mapping."""
    out = {}
    for entry in TRAINED:
        made = apply(entry.transform, [values[n] for n in entry.torch])
        out |= dict(zip(entry.mindspore, made, strict=True))
    return out


def random_values(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, shape in TORCH.items()}


class TorchSide:
    """PyTorch's parameters, and an optimizer over them that gets its gradients from the test."""

    def __init__(self, make: Callable[[list[Any]], Any], groups: Callable[[dict[str, Any]], Any] | None = None) -> None:
        import torch

        self.params = {n: torch.nn.Parameter(torch.tensor(v)) for n, v in random_values(0).items()}
        self.optimizer = make(list(self.params.values()) if groups is None else groups(self.params))

    def step(self, seed: int) -> None:
        import torch

        for name, gradient in random_values(seed, 0.3).items():
            self.params[name].grad = torch.tensor(gradient)
        self.optimizer.step()

    def values(self) -> dict[str, np.ndarray]:
        return {n: p.detach().numpy().copy() for n, p in self.params.items()}


class MindSporeSide:
    def __init__(self, make: Callable[[list[Any]], Any], values: dict[str, np.ndarray], groups: Any = None) -> None:
        import mindspore as ms

        self.params = {n: ms.Parameter(ms.Tensor(v), name=n) for n, v in to_mindspore(values).items()}
        self.optimizer = make(list(self.params.values()) if groups is None else groups(self.params))

    def step(self, seed: int) -> None:
        import mindspore as ms

        gradients = to_mindspore(random_values(seed, 0.3))
        self.optimizer(tuple(ms.Tensor(gradients[p.name]) for p in self.optimizer.parameters))

    def values(self) -> dict[str, np.ndarray]:
        return {n: p.asnumpy().copy() for n, p in self.params.items()}


def equal(theirs: MindSporeSide, ours: TorchSide, rtol: float = 1e-5) -> None:
    expected = to_mindspore(ours.values())
    for name, value in theirs.values().items():
        np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=rtol * float(np.abs(expected[name]).max()))


def _cases() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    import torch
    from mindspore import nn
    from mindspore.experimental import optim as ex

    o = torch.optim
    decayed = {"weight_decay": 0.1}

    def grouped(make: Callable[..., Any], **kw: Any) -> Callable[..., Any]:
        # MindSpore's own groups: without them, what is called gamma or beta does not decay.
        return lambda ps: make([{"params": ps, **decayed}], **kw)

    momentum = {"lr": 0.05, "momentum": 0.9}
    damped = {**momentum, "dampening": 0.3}
    r = {"lr": 0.02, "alpha": 0.9, "momentum": 0.8}
    return {
        "SGD -> Momentum": (lambda p: o.SGD(p, **momentum), lambda p: nn.Momentum(p, 0.05, 0.9)),
        "SGD, decay -> Momentum": (
            lambda p: o.SGD(p, **momentum, **decayed),
            grouped(nn.Momentum, learning_rate=0.05, momentum=0.9),
        ),
        "SGD, dampening -> SGD": (lambda p: o.SGD(p, **damped), lambda p: nn.SGD(p, 0.05, 0.9, 0.3)),
        "SGD, Nesterov -> SGD": (
            lambda p: o.SGD(p, **momentum, **decayed, nesterov=True),
            grouped(nn.SGD, learning_rate=0.05, momentum=0.9, nesterov=True),
        ),
        "SGD without momentum -> SGD": (lambda p: o.SGD(p, lr=0.05), lambda p: nn.SGD(p, 0.05)),
        "SGD, dampening -> experimental.SGD": (
            lambda p: o.SGD(p, **damped, **decayed),
            lambda p: ex.SGD(p, **damped, **decayed),
        ),
        "Adam -> Adam": (lambda p: o.Adam(p, lr=0.01), lambda p: nn.Adam(p, 0.01)),
        "Adam, decay and other betas -> Adam": (
            lambda p: o.Adam(p, lr=0.01, betas=(0.8, 0.95), **decayed),
            grouped(nn.Adam, learning_rate=0.01, beta1=0.8, beta2=0.95),
        ),
        "Adam, amsgrad -> Adam": (
            lambda p: o.Adam(p, lr=0.01, amsgrad=True),
            lambda p: nn.Adam(p, 0.01, use_amsgrad=True),
        ),
        "Adam -> experimental.Adam": (
            lambda p: o.Adam(p, lr=0.01, **decayed),
            lambda p: ex.Adam(p, lr=0.01, **decayed),
        ),
        "AdamW -> experimental.AdamW": (
            lambda p: o.AdamW(p, lr=0.01, **decayed),
            lambda p: ex.AdamW(p, lr=0.01, **decayed),
        ),
        "AdamW, amsgrad -> experimental.AdamW": (
            lambda p: o.AdamW(p, lr=0.01, amsgrad=True, **decayed),
            lambda p: ex.AdamW(p, lr=0.01, amsgrad=True, **decayed),
        ),
        "RMSprop -> RMSProp": (
            lambda p: o.RMSprop(p, **r),
            lambda p: nn.RMSProp(p, 0.02, decay=0.9, momentum=0.8, epsilon=1e-16),
        ),
        "RMSprop, centered -> RMSProp": (
            lambda p: o.RMSprop(p, **r, centered=True),
            lambda p: nn.RMSProp(p, 0.02, decay=0.9, momentum=0.8, epsilon=1e-16, centered=True),
        ),
        "RMSprop -> experimental.RMSprop": (
            lambda p: o.RMSprop(p, **r, centered=True, **decayed),
            lambda p: ex.RMSprop(p, **r, centered=True, **decayed),
        ),
        "Adagrad -> Adagrad": (lambda p: o.Adagrad(p, lr=0.05), lambda p: nn.Adagrad(p, learning_rate=0.05)),
        "Adagrad, lr_decay -> experimental.Adagrad": (
            lambda p: o.Adagrad(p, lr=0.05, lr_decay=0.1, **decayed),
            lambda p: ex.Adagrad(p, lr=0.05, lr_decay=0.1, **decayed),
        ),
    }


CASES = [
    "SGD -> Momentum",
    "SGD, decay -> Momentum",
    "SGD, dampening -> SGD",
    "SGD, Nesterov -> SGD",
    "SGD without momentum -> SGD",
    "SGD, dampening -> experimental.SGD",
    "Adam -> Adam",
    "Adam, decay and other betas -> Adam",
    "Adam, amsgrad -> Adam",
    "Adam -> experimental.Adam",
    "AdamW -> experimental.AdamW",
    "AdamW, amsgrad -> experimental.AdamW",
    "RMSprop -> RMSProp",
    "RMSprop, centered -> RMSProp",
    "RMSprop -> experimental.RMSprop",
    "Adagrad -> Adagrad",
    "Adagrad, lr_decay -> experimental.Adagrad",
]


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    found = _cases()
    assert list(found) == CASES
    return found


@pytest.mark.frameworks
@pytest.mark.parametrize("name", CASES)
def test_three_more_steps_are_equal(name: str, cases: dict[str, Any]) -> None:
    make_torch, make_mindspore = cases[name]
    ours = TorchSide(make_torch)
    for seed in range(1, 6):
        ours.step(seed)
    theirs = MindSporeSide(make_mindspore, ours.values())
    report = automap.apply_optimizer(MAPPING, ours.optimizer, theirs.optimizer, network=NETWORK)
    assert not report.needs_review, report
    for seed in range(6, 9):
        ours.step(seed)
        theirs.step(seed)
    equal(theirs, ours)

    # And back, into a new optimizer of PyTorch's.
    again = TorchSide(make_torch)
    for parameter, value in zip(again.params.values(), ours.values().values(), strict=True):
        parameter.data.copy_(__import__("torch").tensor(value))
    automap.apply_optimizer(MAPPING, theirs.optimizer, again.optimizer, network=NETWORK)
    for seed in range(9, 12):
        ours.step(seed)
        again.step(seed)
    for parameter, expected in zip(again.values().values(), ours.values().values(), strict=True):
        np.testing.assert_allclose(parameter, expected, rtol=2e-5, atol=2e-5 * float(np.abs(expected).max()))


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["SGD -> Momentum", "SGD, dampening -> SGD", "Adam -> Adam"])
def test_from_the_first_step_on(name: str, cases: dict[str, Any]) -> None:
    """Before any step PyTorch has no states, and SGD's first buffer is the gradient itself, whatever the dampening."""
    make_torch, make_mindspore = cases[name]
    ours = TorchSide(make_torch)
    theirs = MindSporeSide(make_mindspore, ours.values())
    automap.apply_optimizer(MAPPING, ours.optimizer, theirs.optimizer, network=NETWORK)
    for seed in range(3):
        ours.step(seed)
        theirs.step(seed)
    equal(theirs, ours)


@pytest.mark.frameworks
def test_the_test_would_notice_a_state_that_is_not_carried(cases: dict[str, Any]) -> None:
    make_torch, make_mindspore = cases["SGD -> Momentum"]
    ours = TorchSide(make_torch)
    for seed in range(1, 6):
        ours.step(seed)
    theirs = MindSporeSide(make_mindspore, ours.values())
    ours.step(6)
    theirs.step(6)
    with pytest.raises(AssertionError):
        equal(theirs, ours)


@pytest.mark.frameworks
def test_groups_with_their_own_rates_and_decays() -> None:
    """In another order in MindSpore, and with the learning rates of the file, not those of the new optimizer."""
    import torch
    from mindspore import nn

    def split(params: dict[str, Any], rates: tuple[float, float]) -> list[dict[str, Any]]:
        kernels = [p for p in params.values() if p.ndim > 1]
        others = [p for p in params.values() if p.ndim == 1]
        return [{"params": kernels, "weight_decay": 0.1, "lr": rates[0]}, {"params": others, "lr": rates[1]}]

    ours = TorchSide(lambda g: torch.optim.SGD(g, lr=1.0, momentum=0.9), lambda ps: split(ps, (0.05, 0.1)))
    for seed in range(1, 4):
        ours.step(seed)
    theirs = MindSporeSide(
        lambda g: nn.Momentum(g, 1.0, 0.5), ours.values(), lambda ps: [*reversed(split(ps, (7.0, 8.0)))]
    )
    report = automap.apply_optimizer(MAPPING, ours.optimizer.state_dict(), theirs.optimizer, network=NETWORK)
    assert not report.needs_review, report
    assert report.rates == (0.1, 0.05)
    assert "2 groups" in report.told
    for seed in range(4, 7):
        ours.step(seed)
        theirs.step(seed)
    equal(theirs, ours)


@pytest.mark.frameworks
def test_what_differs_is_told() -> None:
    import torch
    from mindspore import nn
    from mindspore.experimental import optim as ex

    def carried(make_torch: Any, make_mindspore: Any) -> automap.OptimizerReport:
        ours = TorchSide(make_torch)
        ours.step(1)
        theirs = MindSporeSide(make_mindspore, ours.values())
        report = automap.apply_optimizer(MAPPING, ours.optimizer, theirs.optimizer, network=NETWORK)
        assert report.needs_review == bool(report.differs or report.lost)
        return report

    o = torch.optim
    found = carried(lambda p: o.SGD(p, 0.1, 0.9, weight_decay=0.01), lambda p: nn.Momentum(p, 0.1, 0.9, 0.01))
    assert found.differs == ("weight_decay: 0.01 in PyTorch, 0 in MindSpore, for norm.gamma and 1 more",)
    found = carried(lambda p: o.Adam(p, 0.1, amsgrad=True), lambda p: nn.Adam(p, 0.1))
    assert list(found.lost) == ["max_exp_avg_sq"]
    assert found.differs == ("amsgrad: True in PyTorch, False in MindSpore, for stem.weight and 6 more",)
    found = carried(lambda p: o.AdamW(p, 0.1), lambda p: nn.AdamWeightDecay(p, 0.1, eps=1e-8, weight_decay=0.01))
    assert any("does not correct the bias" in d and "experimental.optim.AdamW" in d for d in found.differs)
    found = carried(
        lambda p: o.AdamW(p, 0.1, weight_decay=0.1), lambda p: nn.Adam([{"params": p, "weight_decay": 0.1}])
    )
    assert [d.partition(":")[0] for d in found.differs] == ["decoupled_weight_decay"]
    found = carried(lambda p: o.RMSprop(p, 0.1), lambda p: nn.RMSProp(p, 0.1, decay=0.99))
    assert "epsilon=1e-16 is as much" in found.differs[0]
    found = carried(lambda p: o.SGD(p, 0.1, 0.9, nesterov=True), lambda p: ex.SGD(p, 0.1, 0.9))
    assert found.differs == ("nesterov: True in PyTorch, False in MindSpore, for stem.weight and 6 more",)
    found = carried(lambda p: o.SGD(p, 0.1, 0.9, nesterov=True), lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True))
    assert "use_nesterov has no effect" in found.differs[0]
    found = carried(lambda p: o.Adam(p, 0.1, amsgrad=True), lambda p: ex.Adam(p, 0.1, amsgrad=True))
    assert found.differs == ("amsgrad: True in PyTorch, False in MindSpore, for stem.weight and 6 more",)
    found = carried(lambda p: o.Adam(p, 0.1), lambda p: nn.Momentum(p, 0.1, 0.9))
    assert set(found.lost) == {"exp_avg", "exp_avg_sq"}
    found = carried(lambda p: o.SGD(p, 0.1, 0.9), lambda p: nn.Momentum(p, [0.3, 0.2, 0.1], 0.9))
    assert found.differs[0].startswith("lr: 0.1 in PyTorch, 0.3 in MindSpore")
    found = carried(lambda p: o.SGD(p, 0.1, 0.9), lambda p: nn.Momentum(p[:-1], 0.1, 0.9))
    assert found.differs == ("fc.bias is trained in PyTorch only",)


@pytest.mark.frameworks
def test_inside_cells_for_training() -> None:
    """The optimizer was made before the network was wrapped, so that its states have other names than the weights."""
    import mindspore as ms
    import torch
    from mindspore import nn

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    class Outer(nn.Cell):
        def __init__(self, network: nn.Cell) -> None:
            super().__init__()
            self.network = network

    port = nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))
    mapping = automap.infer(net, port, static=True)
    theirs = nn.Momentum(port.trainable_params(), 0.5, 0.9)
    Outer(Outer(port))
    assert theirs.parameters[0].name == "network.network.0.weight"
    report = automap.apply_optimizer(mapping, optimizer, theirs)
    assert report.carried == {"momentum_buffer": 4}
    expected = optimizer.state[net[1].weight]["momentum_buffer"].numpy()
    assert np.array_equal(theirs.moments[2].asnumpy(), expected)
    assert float(theirs.learning_rate) == pytest.approx(0.1)
    assert isinstance(theirs.moments[0], ms.Parameter)


@pytest.mark.frameworks
def test_what_is_no_optimizer_is_refused() -> None:
    import torch
    from mindspore import nn

    net = torch.nn.Linear(2, 2)
    with pytest.raises(ConversionError, match=r"the optimizer is a Linear: give one of mindspore\.nn"):
        automap.apply_optimizer(MAPPING, {}, net)
    theirs = nn.Adadelta(nn.Dense(2, 2).trainable_params())
    with pytest.raises(ConversionError, match=r"Adadelta: automap knows Momentum, SGD, Adam,"):
        automap.apply_optimizer(MAPPING, torch.optim.SGD(net.parameters(), 0.1), theirs)


@pytest.mark.frameworks
def test_an_entry_that_computes_is_refused() -> None:
    import torch
    from mindspore import nn

    ours = torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(ours.parameters(), 0.1, 0.9)
    ours(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scaled = Entry(("weight",), ("weight",), (Transform("scale", {"factor": 2.0}),))
    mapping = Mapping(Side("", 1, ""), Side("", 1, ""), (scaled,))
    theirs = nn.Momentum(nn.Dense(2, 2, has_bias=False).trainable_params(), 0.1, 0.9)
    with pytest.raises(
        ConversionError, match=r"^weight -> weight \[scale\(factor=2\.0\)\]: scale computes with the values"
    ):
        automap.apply_optimizer(mapping, optimizer, theirs)


# --- kinds and files ------------------------------------------------------------------------------------------------


@pytest.mark.frameworks
def test_every_kind_is_a_class_with_these_states() -> None:
    import mindspore as ms
    from mindspore import mint, nn
    from mindspore.experimental import optim as ex

    from automap.mindspore_optimizers import described, kind_of

    params = [ms.Parameter(ms.Tensor(np.ones((2, 2), np.float32)), name="w")]
    more: dict[str, dict[str, Any]] = {
        "Momentum": {"learning_rate": 0.1, "momentum": 0.9},
        "Lamb": {"learning_rate": 0.1},
        "Adam": {"use_amsgrad": True},
        "RMSProp": {"centered": True},
        "experimental.SGD": {"lr": 0.1},
        "mint.SGD": {"lr": 0.1},
        "mint.Adam": {"amsgrad": True},
        "mint.AdamW": {"amsgrad": True},
    }
    for name, kind in KINDS.items():
        family, _, cls = name.rpartition(".")
        if name == "LARS":
            optimizer = nn.LARS(nn.Momentum(params, 0.1, 0.9))
        else:
            home = {"": nn, "experimental": ex, "mint": mint.optim}[family]
            optimizer = getattr(home, cls)(params, **more.get(name, {}))
        assert kind_of(optimizer).name == name
        found = described(optimizer)
        prefixes = {slot: prefix for slot, (prefix, _) in [*kind.slots.items(), *kind.own.items()]}
        assert found.states["w"] == {slot: f"{prefix}.w" for slot, prefix in prefixes.items()}
        scalars = (
            {p.name: p for p in optimizer.get_parameters()} | {"learning_rate": None} * 0
            if False
            else {p.name: p for p in optimizer.get_parameters()}
        )
        counter = kind.counter
        if counter is not None:
            assert tuple(scalars[counter.name].shape) == counter.shape
            assert str(scalars[counter.name].dtype).lower() == counter.dtype
            assert int(scalars[counter.name].asnumpy().reshape(-1)[0]) == counter.start
        assert ("momentum" in scalars) == kind.momentum
        assert ("beta1_power" in scalars) == kind.powers
        assert ("learning_rate" in scalars) == kind.rate or name == "LARS"


def test_kinds_are_found_by_several_names() -> None:
    for name in ("Momentum", "nn.Momentum", "mindspore.nn.Momentum"):
        assert kind_called(name).name == "Momentum"
    assert kind_called("mindspore.mint.optim.AdamW").name == kind_called("mint.AdamW").name == "mint.AdamW"
    with pytest.raises(ConversionError, match=r"no optimizer 'Nadam' is known: there are Momentum, SGD"):
        kind_called("Nadam")


def test_the_state_in_a_checkpoint() -> None:
    state = {"state": {}, "param_groups": [{"params": [0]}]}
    assert find_state({"epoch": 3, "nested": {"optimizer": state}}) is state
    with pytest.raises(ConversionError, match=r"holds no state of an optimizer, but epoch: save"):
        find_state({"epoch": 3})
    with pytest.raises(ConversionError, match=r"the states of 2 optimizers \(g, d\)"):
        find_state({"g": state, "d": state})
    with pytest.raises(ConversionError, match=r"a state 'prev' \(1 parameters\), which automap does not know"):
        read_state({"state": {0: {"prev": np.zeros(2)}}, "param_groups": [{"params": [0]}]})
    found = read_state({"state": {0: {"exp_avg": np.ones(2), "step": 4}}, "param_groups": [{"params": [0], "lr": 0.1}]})
    assert found.steps == {0: 4}
    assert np.array_equal(found.slots[0]["exp_avg"].read(), np.ones(2))


# --- which position is which ------------------------------------------------------------------------------------------

LISTED = [(name, shape) for name, shape in TORCH.items()]


def shapes_at(order: list[str]) -> dict[int, Shape | None]:
    return {i: TORCH[name] for i, name in enumerate(order)}


def test_one_group_is_in_the_network_s_order() -> None:
    order = list(TORCH)
    found, told = positions([range(9)], shapes_at(order), LISTED)
    assert list(found.values()) == order
    assert told == "by the network's order"
    found, _ = positions([range(9)], dict.fromkeys(range(9)), LISTED)
    assert list(found.values()) == order


def test_groups_are_told_apart_by_their_shapes() -> None:
    order = [n for n in TORCH if len(TORCH[n]) > 1] + [n for n in TORCH if len(TORCH[n]) == 1]
    found, told = positions([range(4), range(4, 9)], shapes_at(order), LISTED)
    assert [found[i] for i in range(9)] == order
    assert told == "by order and shapes, in 2 groups"


def test_groups_that_could_be_drawn_in_two_ways_are_refused() -> None:
    order = ["q.weight", "q.bias", "k.weight", "k.bias"]
    listed = [(n, TORCH[n]) for n in order]
    with pytest.raises(
        ConversionError, match=r"in more than one way \(position \d may be .* or .*\): give their names"
    ):
        positions([[0, 1], [2, 3]], shapes_at(order), listed)
    found, told = positions([[0, 1], [2, 3]], shapes_at(order), listed, ["k.weight", "k.bias", "q.weight", "q.bias"])
    assert found[0] == "k.weight"
    assert told == "by their names"


def test_frozen_parameters_are_left_over_if_it_is_clear_which() -> None:
    order = ["fc.weight", "fc.bias"]
    found, _ = positions([range(2)], shapes_at(order), LISTED)
    assert list(found.values()) == order
    with pytest.raises(ConversionError, match="more than one way"):
        positions([range(1)], {0: (4, 4)}, LISTED)


@pytest.mark.parametrize(
    ("groups", "shapes", "names", "message"),
    [
        ([range(10)], dict.fromkeys(range(10)), None, r"has 10 parameters, the network 9: is it the optimizer of"),
        ([range(9)], {**shapes_at(list(TORCH)), 2: (7,)}, None, r"position 2 has shape \[7\], bn\.bias has \[4\]"),
        ([range(9)], shapes_at(list(TORCH)), ["a"], r"has 9 parameters, and there are 1 names"),
        ([range(1)], {0: None}, ["x"], r"parameter x is not in the (network|mapping)"),
        ([range(1)], {0: (3,)}, ["fc.bias"], r"a state of shape \[3\] for fc\.bias, which is \[5\]"),
    ],
)
def test_positions_that_do_not_fit(groups: Any, shapes: Any, names: Any, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        positions(groups, shapes, LISTED, names)


def test_a_moment_goes_back_as_it_came() -> None:
    values = random_values(3)
    for entry in TRAINED:
        given = [values[n] for n in entry.torch]
        back = apply(inverse(entry.transform, [v.shape for v in given]), apply(entry.transform, given))
        assert all(map(np.array_equal, back, given))
