"""Steps of training in both networks: those that agree, and planted causes, each of which has to be named rightly."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from automap.descent import Rule, rule_of
from automap.descent_alternatives import Seen, alternative, off
from automap.errors import InputError
from automap.training import Noise, Record, differences
from automap.training_batches import Wish
from automap.training_causes import amplified

# -- the rule of an optimizer, and what differs from it ----------------------------------------------------------------

ADAM = Rule("adam", 1e-2)
ADAMW = Rule("adam", 1e-2, 0.1, decoupled=True)
MOMENTUM = Rule("sgd", 1e-2, momentum=0.9)


def seen(rule: Rule, steps: int = 5, small: bool = False, seed: int = 0) -> Seen:
    """What is seen of a weight that a rule trains on gradients that are drawn."""
    rng = np.random.default_rng(seed)
    scale = np.float32(10.0) ** rng.uniform(-8, -3, 50) if small else 1
    weights, gradients, memory = [rng.standard_normal(50).astype(np.float32) / (100 if small else 1)], [], {}
    for number in range(1, steps + 1):
        gradients.append((rng.standard_normal(50) * scale).astype(np.float32))
        change = rule.change(number, weights[-1], gradients[-1], memory, np.sqrt)
        weights.append((weights[-1] + change).astype(np.float32))
    return Seen(weights, gradients)


@pytest.mark.parametrize(
    ("rule", "changes", "what", "small"),
    [
        (ADAMW, {"decoupled": False}, ["coupled weight decay"], False),
        (ADAMW, {"weight_decay": 0.0}, ["weight decay"], False),
        (ADAMW, {"weight_decay": 0.03}, ["weight decay"], False),
        (MOMENTUM, {"weight_decay": 0.01}, ["weight decay"], False),
        (ADAM, {"corrected": False}, ["bias correction"], False),
        (ADAM, {"eps_where": "inside"}, ["place of epsilon"], True),
        (ADAM, {"eps_where": "uncorrected", "eps": 1e-6}, ["epsilon", "place of epsilon"], True),
        (ADAM, {"eps": 1e-6}, ["epsilon"], True),
        (ADAM, {"beta2": 0.99}, ["beta2"], False),
        (MOMENTUM, {"nesterov": True}, ["Nesterov"], False),
        (MOMENTUM, {"momentum": 0.8}, ["momentum"], False),
        (MOMENTUM, {"lr": 0.02}, ["learning rate"], False),
        (Rule("rmsprop", 1e-2, beta2=0.99), {"eps_where": "inside"}, ["place of epsilon"], True),
        (Rule("adagrad", 1e-2, eps=1e-10), {"start": 0.1}, ["start"], False),
        (ADAMW, {"corrected": False, "decoupled": False}, ["bias correction", "coupled weight decay"], False),
    ],
)
def test_what_a_rule_does_otherwise_is_found_by_trying(rule: Rule, changes: dict, what: list[str], small: bool):
    from dataclasses import replace

    found = alternative(rule, seen(rule, small=small), seen(replace(rule, **changes), small=small, seed=1))
    assert found is not None
    assert sorted(w for w, _ in found) == what


def test_nothing_is_claimed_of_an_equal_rule_or_of_one_that_is_not_pytorch_s():
    assert alternative(ADAM, seen(ADAM), seen(ADAM, seed=1)) is None
    assert alternative(ADAM, seen(MOMENTUM), seen(MOMENTUM, seed=1)) is None
    strange = seen(ADAM, seed=1)
    strange.weights[2] = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    assert alternative(ADAM, seen(ADAM), strange) is None


def test_a_rule_goes_on_from_what_it_remembers_and_with_rates_that_change():
    from dataclasses import replace

    whole = seen(ADAM, steps=6)
    memory: dict[str, Any] = {}
    for number in range(1, 4):
        ADAM.change(number, whole.weights[number - 1], whole.gradients[number - 1], memory, np.sqrt)
    rest = Seen(whole.weights[3:], whole.gradients[3:], memory, 3)
    assert off(ADAM, rest) <= 1 < off(ADAM, Seen(rest.weights, rest.gradients))
    (found,) = alternative(replace(ADAM, beta2=0.9), Seen(*ruled(replace(ADAM, beta2=0.9), rest)), rest) or [("", "")]
    assert found[0] == "beta2"
    rates = (1.0, 0.5, 0.25)
    slower = Seen(*ruled(MOMENTUM, Seen(whole.weights, whole.gradients[:3], factors=rates)), factors=rates)
    assert off(MOMENTUM, slower) <= 1 < off(MOMENTUM, replace(slower, factors=()))


def ruled(rule: Rule, like: Seen) -> tuple[Any, ...]:
    """The weights that a rule makes of gradients, these, and what it began with."""
    weights, memory = [like.weights[0]], {k: np.array(a) for k, a in like.memory.items()}
    for k, gradient in enumerate(like.gradients):
        scaled = Rule(**{**vars(rule), "lr": rule.lr * (like.factors[k] if like.factors else 1)})
        change = scaled.change(like.done + k + 1, weights[-1], gradient, memory, np.sqrt)
        weights.append((weights[-1] + change).astype(np.float32))
    return weights, like.gradients, like.memory, like.done


def test_rounding_that_a_kink_makes_large_is_no_difference():
    key = (("w",), ("v",))
    ours = Record([1.0, 0.9], [{key: np.ones(3)}] * 3, [{key: np.ones(3)}, {key: np.full(3, 1.0)}], [{}] * 3)
    theirs = Record([1.0, 0.9], [{key: np.ones(3)}] * 3, [{key: np.ones(3)}, {key: np.full(3, 1.2)}], [{}] * 3)
    (found,) = differences(ours, theirs, Noise(ours), ["float32"])
    assert (found[0].step, found[0].kind, found[0].name) == (2, "gradient", "w -> v")

    def course(gradient: float, loss: float = 0.9) -> Any:
        again = Record([loss], [{}], [{key: np.full(3, gradient)}], [{}])
        return SimpleNamespace(from_mindspore=lambda step: {1: again}[step])

    # From MindSpore's weights, PyTorch gives what MindSpore gives, or it does not.
    assert amplified(course(1.2), ours, theirs, found, ["float32"])
    assert not amplified(course(1.1), ours, theirs, found, ["float32"])
    assert not amplified(course(1.2, 0.8), ours, theirs, found, ["float32"])


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"optimizer": "adma"}, "the optimizer 'adma' is not known"),
        ({"loss": "mse"}, "the loss 'mse' is not known"),
        ({"loss": len}, "must be one of squares"),
        ({"optimizer": (len, len), "weight_decay": 0.1}, "set it where yours are made"),
        ({"optimizer": "adam", "go_on": True}, "an optimizer known by name begins anew: leave it out"),
        ({"go_on": True, "lr": 0.1}, "the state of the optimizer has its learning rate"),
        ({"every": 0}, "after at least one step"),
        ({"batches": {"arr_0": np.zeros((2, 3)), "target": np.zeros((3, 3))}}, "equally long"),
    ],
)
def test_a_wish_that_is_not_understood_is_refused(wish: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        Wish.of(3, **wish)


# -- both frameworks ---------------------------------------------------------------------------------------------------

pytestmark: list[Any] = []
frameworks = pytest.mark.frameworks

MAPPING = {
    "0.weight": "0.weight",
    "0.bias": "0.bias",
    "1.weight": "1.gamma",
    "1.bias": "1.beta",
    "1.running_mean": "1.moving_mean",
    "1.running_var": "1.moving_variance",
    "1.num_batches_tracked": None,
    "3.weight": "3.weight",
    "3.bias": "3.bias",
}


def torch_net(p: float | None = None) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh() if p is None else nn.Dropout(p), nn.Linear(8, 4))


def ms_net(momentum: float = 0.9, third: Callable[[], Any] | None = None, freeze: str = "") -> Any:
    from automap import mindspore_edge  # noqa: F401  # isort: skip
    from mindspore import nn

    net = nn.SequentialCell(
        [nn.Dense(6, 8), nn.BatchNorm1d(8, momentum=momentum), (third or nn.Tanh)(), nn.Dense(8, 4)]
    )
    for p in net.get_parameters():
        if p.name == freeze:
            p.requires_grad = False
    return net


def validated(torch: Any = None, mindspore: Any = None, **wish: Any) -> Any:
    import automap

    ours, theirs = torch or torch_net(), mindspore or ms_net()
    return automap.validate(MAPPING, ours, theirs, inputs=["float32[8,6]"], **({"steps": 3} | wish))


@frameworks
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_equal_networks_train_alike(optimizer: str):
    result = validated(optimizer=optimizer, lr=0.01)
    assert result.passed, str(result)
    assert result.exit_code == 0
    training = result.training
    assert training.greatest < 1e-5
    assert training.telling == training.steps == 3
    assert training.compared == 8
    assert training.torch[0] != training.torch[2]
    assert "3 step(s) of training" in result.verdict


@frameworks
def test_a_training_leaves_both_networks_as_they_were():
    import numpy as np
    import torch

    ours, theirs = torch_net(0.5), ms_net(third=__import__("mindspore").nn.Dropout)
    ours[0].weight.grad = torch.ones(8, 6)
    theirs.set_train(True)
    before = {n: t.clone() for n, t in ours.state_dict().items()}
    ms_before = {p.name: p.asnumpy().copy() for p in theirs.get_parameters()}
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert validated(ours, theirs, optimizer="adam").passed
    assert torch.rand(1) == expected
    assert all(torch.equal(t, before[n]) for n, t in ours.state_dict().items())
    assert torch.equal(ours[0].weight.grad, torch.ones(8, 6))
    assert ours[1].weight.grad is None
    assert ours.training
    assert ours[2].training
    assert all(np.array_equal(p.asnumpy(), ms_before[p.name]) for p in theirs.get_parameters())
    assert theirs.training
    assert theirs[2].training


@frameworks
def test_batchnorm_s_momentum_the_other_way_round_is_named():
    result = validated(mindspore=ms_net(momentum=0.1))
    assert result.exit_code == 3
    first = result.training.differences[0]
    assert (first.step, first.kind) == (1, "statistic")
    (cause,) = result.training.causes
    assert cause.what == "momentum of BatchNorm"
    assert "a new batch counts 0.9 in MindSpore, 0.1 in PyTorch: it is read the other way round" in cause.words
    assert set(cause.names) == {"1.running_mean", "1.running_var"}
    assert "the training differs from step 1 on: the running statistic" in str(result)


@frameworks
def test_a_sum_in_the_loss_is_named():
    from torch.nn import functional as F

    def ms_loss(out: Any, target: Any) -> Any:
        from mindspore import ops

        return ops.cross_entropy(out, target, reduction="sum")

    result = validated(loss=(F.cross_entropy, ms_loss))
    assert result.exit_code == 3
    assert result.training.differences[0].kind == "loss"
    (cause,) = result.training.causes
    assert cause.what == "mean or sum"
    assert "8 times PyTorch's" in cause.words
    assert "the size of the batch: a sum in MindSpore" in cause.words


def with_optimizers(torch: Callable[..., Any], mindspore: Callable[..., Any]) -> tuple[Any, Any]:
    return lambda net: torch(net.parameters()), lambda net: mindspore(net.trainable_params())


@frameworks
def test_decoupled_weight_decay_against_coupled_is_named():
    import torch
    from mindspore import nn

    pair = with_optimizers(
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        lambda p: nn.Adam(p, learning_rate=0.01, weight_decay=0.1, eps=1e-8),
    )
    result = validated(optimizer=pair)
    assert result.exit_code == 3
    causes = {c.what: c for c in result.training.causes}
    assert "beside the gradient (decoupled) in PyTorch" in causes["coupled weight decay"].words, str(result)
    # MindSpore's optimizers leave gamma and beta alone, and its Adam has epsilon in another place.
    assert set(causes["weight decay"].names) == {"1.weight -> 1.gamma", "1.bias -> 1.beta"}
    assert causes.keys() <= {"coupled weight decay", "weight decay", "place of epsilon"}
    assert result.training.differences[0].kind == "weight"


@frameworks
def test_an_adam_that_does_not_correct_its_moments_is_named():
    import torch
    from mindspore import nn

    pair = with_optimizers(
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0, eps=1e-6),
        lambda p: nn.AdamWeightDecay(p, learning_rate=0.01),
    )
    result = validated(optimizer=pair)
    assert result.exit_code == 3
    assert [c.what for c in result.training.causes] == ["bias correction"], str(result)


@frameworks
def test_epsilon_inside_the_root_is_named():
    import torch
    from mindspore import nn, ops

    class RMSProp(nn.Optimizer):
        """A user's own."""

        def __init__(self, params: Any) -> None:
            super().__init__(0.01, params)
            self.squares = self._parameters.clone("squares", "zeros")

        def construct(self, gradients: Any) -> None:
            for p, v, g in zip(self._parameters, self.squares, gradients, strict=True):
                v.set_data(0.9 * v + 0.1 * g * g)
                p.set_data(p - 0.01 * g / ops.sqrt(v + 1e-2))

    pair = with_optimizers(lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-2), RMSProp)
    result = validated(optimizer=pair)
    assert result.exit_code == 3
    (cause,) = result.training.causes
    assert cause.what == "place of epsilon"
    assert "outside the root in PyTorch, inside the root in MindSpore" in cause.words
    assert len(cause.names) == 5


@frameworks
def test_a_parameter_that_only_pytorch_trains_is_named():
    result = validated(mindspore=ms_net(freeze="3.bias"))
    assert result.exit_code == 3
    (cause,) = result.training.causes
    assert cause.what == "frozen"
    assert "3.bias is not trained in MindSpore" in cause.words


@frameworks
def test_dropout_is_switched_off_and_its_rates_are_compared():
    from mindspore import nn

    result = validated(torch_net(0.1), ms_net(third=lambda: nn.Dropout(p=0.1)))
    assert result.passed, str(result)
    assert "dropout is random, and was switched off" in str(result)
    result = validated(torch_net(0.1), ms_net(third=lambda: nn.Dropout(p=0.9)))
    assert result.exit_code == 3
    (cause,) = result.training.causes
    assert cause.what == "dropout"
    assert "2 in MindSpore keeps 10%, which is the other way round" in cause.words


@frameworks
def test_other_randomness_proves_nothing_and_is_said():
    import torch

    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x) if self.training else x

    net = torch_net()
    net[2] = torch.nn.Sequential(torch.nn.Tanh(), Noisy())
    result = validated(net)
    assert result.exit_code == 1
    assert "random in training beyond the dropout" in result.verdict
    assert "PyTorch's loss is" in result.verdict


@frameworks
def test_batches_and_a_target_of_the_user_s_own(tmp_path: Any):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "batches.npz",
        arr_0=rng.standard_normal((2, 5, 6)).astype(np.float32),
        target=rng.standard_normal((2, 5, 4)).astype(np.float32),
    )
    result = validated(batches=tmp_path / "batches.npz", loss="squares", optimizer="momentum")
    assert result.passed, str(result)
    assert result.training.loss == "mean of squares"


@frameworks
def test_mixed_precision_is_trained_in_float32_and_has_the_tolerance_of_its_type():
    import torch
    from mindspore import bfloat16, nn

    import automap

    class Autocast(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    ours = Autocast(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    theirs = nn.SequentialCell([nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4)]).to_float(bfloat16)
    names = [f"{i}.{leaf}" for i in (0, 2) for leaf in ("weight", "bias")]
    result = automap.validate(dict(zip(names, names, strict=True)), ours, theirs, inputs=["float32[8,6]"], steps=3)
    assert result.passed, str(result)
    assert result.greatest < 1e-5  # and the training is in float32 as well
    assert max(result.training.allowed) < 1e-2 * result.training.torch[0]
    own = re.search("in bfloat16 itself the outputs are off by at most (.*) of their scale, allowed (.*)", str(result))
    assert own is not None, str(result)
    assert 1e-4 < float(own[1]) < 1.6e-2 <= float(own[2])


@frameworks
def test_no_training_is_compared_where_the_outputs_differ():
    from mindspore import nn

    result = validated(mindspore=ms_net(third=nn.ReLU))
    assert result.exit_code == 3
    assert result.training is None
    assert "no training was compared" in str(result)


def test_the_usual_settings():
    assert rule_of("adamw", weight_decay=0.2) == Rule("adam", 1e-3, 0.2, decoupled=True)
    assert rule_of("momentum", 0.5).lr == 0.5


# -- schedules, and the state that a training goes on from -------------------------------------------------------------


def halved(every: int = 2) -> Callable[..., Any]:
    """PyTorch's SGD, whose learning rate is halved again and again."""
    import torch

    def make(net: Any) -> Any:
        optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, every, 0.5)

    return make


def stepped(rates: list[float]) -> Callable[..., Any]:
    def make(net: Any) -> Any:
        from mindspore import nn

        return nn.SGD(net.trainable_params(), rates, 0.9)

    return make


@frameworks
def test_schedules_of_the_learning_rate_run_along():
    result = validated(optimizer=(halved(), stepped([0.05, 0.05, 0.025, 0.025, 0.0125])), steps=5)
    assert result.passed, str(result)


@frameworks
def test_schedulers_of_both_make_a_step_after_several():
    from mindspore.experimental import optim as ex

    def make(net: Any) -> Any:
        optimizer = ex.SGD(net.trainable_params(), 0.05, 0.9)
        return optimizer, ex.lr_scheduler.StepLR(optimizer, 1, 0.5)

    result = validated(optimizer=(halved(1), make), steps=4, schedule_every=2)
    assert result.passed, str(result)
    assert [c.what for c in validated(optimizer=(halved(2), make), steps=3).training.causes] == ["learning rate"]


@frameworks
def test_a_schedule_that_differs_is_named_with_its_step():
    result = validated(optimizer=(halved(), stepped([0.05, 0.05, 0.05, 0.025, 0.0125])), steps=5)
    assert result.exit_code == 3
    (cause,) = result.training.causes
    assert cause.words.startswith("learning rate of step 3: 0.025 in PyTorch, 0.05 in MindSpore (")
    assert len(cause.names) == 5
    assert result.training.differences[0].step == 3


@frameworks
def test_a_schedule_and_another_cause_are_both_named():
    from mindspore import nn

    def make(net: Any) -> Any:
        return nn.SGD(
            [{"params": net.trainable_params(), "weight_decay": 0.1}], [0.05, 0.025, 0.025, 0.0125, 0.0125], 0.9
        )

    result = validated(optimizer=(halved(), make), steps=5)
    assert {c.what for c in result.training.causes} >= {"weight decay"}, str(result)
    assert "learning rate of step 2: 0.05 in PyTorch, 0.025 in MindSpore" in str(result)


def trained(make: Callable[..., Any], path: Any, steps: int = 4) -> str:
    """A checkpoint in mid-training, of network, optimizer and scheduler."""
    import torch

    torch.manual_seed(0)
    net = torch_net()
    optimizer, scheduler = made if isinstance(made := make(net), tuple) else (made, None)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()
        _ = scheduler and scheduler.step()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | ({} if scheduler is None else {"scheduler": scheduler.state_dict(), "step": steps}), path)
    return str(path)


@frameworks
@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "Adagrad"])
def test_both_go_on_with_the_optimizer_that_the_state_is_of(name: str, tmp_path: Any):
    import torch

    more = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    weights = trained(lambda net: getattr(torch.optim, name)(net.parameters(), lr=0.01, **more), tmp_path / "c.pth")
    result = validated(weights=weights, go_on=True)
    assert result.passed, str(result)
    assert "the optimizer of the checkpoint, from its state on" in result.verdict


@frameworks
def test_the_state_goes_by_way_of_apply_optimizer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    from mindspore import nn

    from automap import mindspore_training

    weights = trained(halved(3), tmp_path / "c.pth")
    schedule = [0.05] * 3 + [0.025] * 3 + [0.0125] * 3
    pair = halved(3), stepped(schedule)
    result = validated(weights=weights, go_on=True, optimizer=pair)
    assert result.passed, str(result)
    # The settings differ, and so does what comes of them.
    other = halved(3), lambda net: nn.SGD(net.trainable_params(), schedule, 0.9, weight_decay=0.1)
    result = validated(weights=weights, go_on=True, optimizer=other)
    assert [c.what for c in result.training.causes] == ["weight decay"], str(result)
    assert "the optimizer's state: differs: weight_decay: 0 in PyTorch, 0.1 in MindSpore" in str(result)
    # Without the state, nothing would agree.
    monkeypatch.setattr(mindspore_training, "apply_optimizer", lambda *_, **__: None)
    result = validated(weights=weights, go_on=True, optimizer=pair)
    assert not result.passed
    assert result.training.differences[0].step == 1


@frameworks
def test_what_a_checkpoint_does_not_tell_is_said(tmp_path: Any):
    import torch

    plain = trained(lambda net: torch.optim.SGD(net.parameters(), 0.05, 0.9), tmp_path / "plain.pth")
    result = validated(weights=plain, go_on=True, optimizer=(halved(), stepped([0.05, 0.05, 0.025])))
    assert "plain.pth has no state of a scheduler: PyTorch's begins anew" in str(result)
    assert "how many steps made the state is not told: a schedule in MindSpore begins anew (--from-step)" in str(result)
    scheduled = trained(halved(), tmp_path / "scheduled.pth")
    assert "the state of an optimizer, under optimizer, was not used: both begin anew" in str(validated(weights=plain))
    result = validated(weights=scheduled, go_on=True)
    assert "has the state of a scheduler, and none was run" in str(result)
    with pytest.raises(InputError, match="takes the checkpoint that has it"):
        validated(go_on=True)
    with pytest.raises(InputError, match=r"PyTorch's optimizer does not take the state in .*plain\.pth: .* groups"):
        validated(weights=plain, go_on=True, optimizer=(
            lambda net: torch.optim.SGD([{"params": [p]} for p in net.parameters()], 0.1), stepped([0.1]))
        )  # fmt: skip
