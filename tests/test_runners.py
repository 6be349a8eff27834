"""The runners: inference, NumPy in and out, and nothing changed afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from automap.dtypes import dtype_name
from automap.errors import ConversionError, InputError, NotRunnableError
from automap.running import Loss, Runner

pytestmark = pytest.mark.frameworks

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8


@dataclasses.dataclass
class Outputs:
    logits: Any
    ids: Any


def torch_runner(model: Any) -> Runner:
    from automap import torch_runner

    return torch_runner.Runner(model)


def ms_runner(model: Any) -> Runner:
    from automap import mindspore_runner

    return mindspore_runner.Runner(model)


def torch_net() -> Any:
    """A network whose forward changes all that a forward can change."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)
            self.drop = torch.nn.Dropout(0.5)
            self.bn = torch.nn.BatchNorm1d(3)
            self.register_buffer("cache", torch.zeros(2, 3))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any, ids: Any = None) -> Any:
            y = self.bn(self.drop(self.fc(x)))
            self.cache.add_(y)
            self.calls = self.calls + 1
            with torch.no_grad():
                self.fc.bias.add_(1)
            torch.rand(1), np.random.rand(), random.random()
            return Outputs(y + self.cache, ids)

    return Net()


def ms_net() -> Any:
    import mindspore as ms
    from mindspore import nn, ops

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(4, 3)
            self.layers = nn.CellList([nn.Dense(3, 3) for _ in range(3)])
            self.drop = nn.Dropout(p=0.5)
            self.bn = nn.BatchNorm1d(3)
            self.cache = ms.Parameter(ms.Tensor(np.zeros((2, 3), np.float32)), name="cache")
            self.register_buffer("calls", ms.Tensor(np.zeros(1, np.float32)))
            self.seen: list[str] = []

        @ms.jit
        def construct(self, x: Any, ids: Any = None) -> Any:
            self.seen.append(str(x.dtype))  # plain Python: a compiled construct would not get here
            y = self.bn(self.drop(self.fc(x)))
            for layer in self.layers[1:]:
                y = layer(y)
            ops.assign(self.cache, y)
            self.calls.add_(1)
            np.random.rand(), random.random(), ops.randn(1)
            return {"logits": (y, [ids])}

    return Net()


def test_torch_runs_in_inference_mode_and_is_left_as_it_was():
    import torch

    net = torch_net()
    net.fc.eval()
    state = {name: t.clone() for name, t in net.state_dict().items()}
    buffers = {name: id(b) for name, b in net.named_buffers()}
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)

    runner = torch_runner(net)
    first = runner.run([X, np.array([[1, 2], [3, 4]])])
    again = runner.run({"x": X.astype(np.float64), "ids": np.array([True])})

    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    assert {name: id(b) for name, b in net.named_buffers()} == buffers
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())
    assert (net.training, net.fc.training, net.bn.training) == (True, False, True)
    # Dropout and batch norm were at rest, or the two runs would differ; and the cache was empty in both.
    assert np.array_equal(first["logits"], again["logits"])
    assert not first["logits"].flags.writeable or first["logits"].base is None
    assert (first["ids"].dtype, again["ids"].dtype) == (np.int64, np.bool_)


def test_mindspore_runs_in_inference_mode_and_is_left_as_it_was(monkeypatch):
    import mindspore as ms

    monkeypatch.setenv("MS_JIT", "1")
    net = ms_net()
    net.set_train(True)
    net.fc.set_train(False)
    names = [p.name for p in net.get_parameters()]
    values = [p.asnumpy().copy() for p in net.get_parameters()]
    np.random.seed(3), random.seed(3)
    expected = np.random.rand(), random.random()
    ms.set_seed(3), random.seed(3)
    generator = ms.get_rng_state().asnumpy().copy()

    runner = ms_runner(net)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        first = runner.run([X, np.array([[1, 2], [3, 4]])])
        again = runner.run({"x": X.astype(np.float64), "ids": np.array([True])})
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)

    assert os.environ["MS_JIT"] == "1"
    assert (np.random.rand(), random.random()) == expected
    assert np.array_equal(ms.get_rng_state().asnumpy(), generator)
    assert [p.name for p in net.get_parameters()] == names
    assert all(np.array_equal(p.asnumpy(), v) for p, v in zip(net.get_parameters(), values, strict=True))
    assert net.calls.asnumpy().item() == 0
    assert (net.training, net.fc.training, net.bn.training) == (True, False, True)
    assert net.seen == ["Float32", "Float32"]
    (y, (ids,)), (z, (flags,)) = first["logits"], again["logits"]
    assert np.array_equal(y, z)
    assert (ids.dtype, flags.dtype) == (np.int64, np.bool_)


def test_an_unset_jit_switch_stays_unset(monkeypatch):
    monkeypatch.delenv("MS_JIT", raising=False)
    ms_runner(ms_net()).run([X])
    assert "MS_JIT" not in os.environ


def test_other_values_are_held_and_given_back():
    import torch

    t, m = torch_net(), ms_net()
    for runner, name, net in ((torch_runner(t), "fc.weight", t), (ms_runner(m), "fc.weight", m)):
        own = runner.state()
        assert own[name].shape == (3, 4)
        held = {name: np.full((3, 4), 7.0, np.float32)}
        with runner.holding(held):
            assert (runner.state()[name] == 7).all()
            bias = own["fc.bias"]
            out = runner.run([X], lambda net, x: net.fc(x))
            np.testing.assert_allclose(out - bias, np.repeat(7 * X.sum(1, keepdims=True), 3, 1), rtol=1e-5)
        assert all(np.array_equal(runner.state()[n], v) for n, v in own.items())
        with contextlib.suppress(KeyError), runner.holding(held):
            raise KeyError
        assert all(np.array_equal(runner.state()[n], v) for n, v in own.items())
        with pytest.raises(ConversionError, match=r"fc.weight: shape \(2,\), \(3, 4\) in the .* nope: the .* no such"):
            runner.holding({name: np.ones(2), "nope": np.ones(1)}).__enter__()
    tied = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    tied["b"].weight = tied["a"].weight
    with torch_runner(tied).holding({"a.weight": np.full((2, 2), 5, np.float32)}):
        assert (tied["b"].weight == 5).all()
    assert tied["b"].weight is tied["a"].weight


def test_a_network_wrapped_for_training_is_not_trained():
    from mindspore import nn

    net = nn.Dense(4, 3)
    net.set_grad()
    wrapped = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params()))
    weight = net.weight.asnumpy().copy()
    assert ms_runner(wrapped).run([X]).shape == (2, 3)
    assert np.array_equal(net.weight.asnumpy(), weight)
    assert net.requires_grad


def test_bfloat16_comes_out_as_float32():
    import torch

    net = torch.nn.Linear(4, 3).to(torch.bfloat16)
    runner = torch_runner(net)
    assert runner.dtype == "bfloat16"
    out = runner.run([X])
    assert out.dtype == np.float32
    assert np.array_equal(out, net(torch.from_numpy(X).bfloat16()).float().detach().numpy())
    assert dtype_name(runner.state()["weight"]) == "bfloat16"


def test_an_operation_without_a_kernel_is_named():
    import mindspore as ms
    import torch
    from mindspore import mint, nn, ops

    image, ids = np.ones((2, 3, 8, 8), np.float32), ms.Tensor([0, 1])
    patches, norm = ("ExtractImagePatches", "ExtractImagePatches"), "embedding with max_norm"
    for forward, inputs, operation, words in (
        (lambda net, x: mint.linalg.qr(x), X, "LinalgQr", "LinalgQr"),
        (lambda net, x: ops.ExtractImagePatches([1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1])(x), image, *patches),
        (lambda net, x: mint.nn.functional.embedding(ids, net.weight, max_norm=1.0), X, "Embedding", norm),
    ):
        with pytest.raises(NotRunnableError) as e:
            ms_runner(nn.Dense(4, 3)).run([inputs], forward)
        assert e.value.operation == operation
        assert str(e.value) == (
            f"the MindSpore network cannot run here: {words} has no kernel on CPU, and nothing stands in for it; "
            "record a run where it can: automap trace SOURCE -o net.trace, on the device"
        )
    cuda = SimpleNamespace(forward=lambda net, x: x.to("cuda"))
    if not torch.cuda.is_available():
        with pytest.raises(NotRunnableError) as e:
            torch_runner(torch.nn.Linear(4, 3)).run([X], cuda.forward)
        assert e.value.operation in ("CUDA", "NVIDIA driver")


def test_a_failed_run_leaves_no_trace_in_mindspore():
    """A failing cell under to_float would have MindSpore cast whatever runs next; a late failure would hit it."""
    import mindspore as ms
    from mindspore import nn, ops

    with pytest.raises(InputError):
        ms_runner(nn.Dense(4, 3).to_float(ms.bfloat16)).run([X[:, :3]])
    assert str(nn.Dense(4, 3)(ms.Tensor(X)).dtype) == "Float32"
    with pytest.raises(InputError, match="'input_indices' should be in the range"):
        ms_runner(nn.Embedding(4, 3)).run([np.array([1, 9])])
    assert ops.relu(ms.Tensor(X)).asnumpy().shape == (2, 4)


def test_inputs_that_do_not_fit_are_refused_in_the_framework_s_words():
    import torch
    from mindspore import nn

    x, t, m = np.ones((2, 5), np.float32), torch.nn.Linear(4, 3), nn.Dense(4, 3)
    for runner, inputs, words in (
        (torch_runner(t), [x], r"PyTorch network does not run on float32\[2,5\]: RuntimeError: mat1 and mat2 shapes"),
        (
            torch_runner(t),
            [x.astype(int)],
            r"PyTorch network does not run on int64\[2,5\]: RuntimeError: mat1 and mat2",
        ),
        (
            torch_runner(t),
            {"z": X},
            r"PyTorch network does not run on z=float32\[2,4\]: TypeError: .*unexpected keyword",
        ),
        (
            ms_runner(m),
            [x],
            r"MindSpore network does not run on float32\[2,5\]: ValueError: For 'MatMul' the input dim",
        ),
        (ms_runner(m), [], r"MindSpore network does not run on no input: TypeError: .*missing 1 required"),
        (ms_runner(nn.Embedding(4, 3)), [X], r"MindSpore .* on float32\[2,4\]: TypeError: .*Gather.* but get input"),
    ):
        with pytest.raises(InputError, match=words) as e:
            runner.run(inputs)
        assert "\n" not in str(e.value)
        assert e.value.__cause__ is not None


def test_running_statistics_are_scaled_to_what_arrives():
    import torch

    from automap import torch_runner as module
    from automap.seeding import seeded_weights
    from automap.torch_edge import listing_of

    class Block(torch.nn.Module):
        """A residual block twice as large at its end as at its start, were it not for the norm."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 32)

        def forward(self, x: Any) -> Any:
            return x + 2 * self.fc(self.norm(x))

    net = torch.nn.Sequential(torch.nn.Linear(4, 32), *[Block() for _ in range(40)])
    own = {name: t.clone() for name, t in net.state_dict().items()}
    runner = module.Runner(net)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    seeded = seeded_weights(listing_of(net))
    with runner.holding(seeded):
        explodes = np.abs(runner.run([x])).max()
        runner.settle([x])
        settled, y = runner.state(), runner.run([x])
    assert explodes > 1e6
    assert np.abs(y).max() < 100
    # One factor for a layer, and its square for the variance: the channels keep their differences.
    ratio = settled["20.norm.running_var"] / seeded["20.norm.running_var"]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    mean = settled["20.norm.running_mean"] / seeded["20.norm.running_mean"]
    np.testing.assert_allclose(mean**2, ratio, rtol=1e-4)
    assert ratio[0] > 2
    assert all(np.array_equal(settled[n], v) for n, v in seeded.items() if not n.endswith(("mean", "var")))
    assert all(torch.equal(t, own[name]) for name, t in net.state_dict().items())
    module.Runner(torch.nn.Linear(4, 3)).settle([x])  # nothing to do


def test_noise_moves_outputs_by_rounding_and_by_the_kernels_error():
    import torch

    from automap import torch_runner as module
    from automap.running import NOISE_BINS

    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    runner = module.Runner(net)

    def moved(table: dict[str, np.ndarray[Any, Any]]) -> float:
        return float(np.abs(runner.run_with_noise([X], 0, table) - exact).max())

    exact = runner.run([X])
    everywhere = np.full(NOISE_BINS, 1e-4)
    far_out = everywhere * (np.arange(NOISE_BINS) >= NOISE_BINS - 8)  # arguments above 4, which there are none of
    assert 0 < moved({}) < 1e-6
    assert 1e-6 < moved({"tanh": everywhere}) < 1e-4 * 16
    assert moved({"tanh": far_out}) == moved({})
    with runner.holding({"0.bias": np.full(16, 5, np.float32)}):
        exact = runner.run([X])
        assert moved({"tanh": far_out}) > 10 * moved({})
    assert not np.array_equal(runner.run([X]), exact)


def test_the_error_of_kernels_is_measured_where_it_is():
    import mindspore as ms

    from automap.mindspore_runner import kernel_noise
    from automap.running import NOISE_BINS, NOISE_RANGE

    measured = kernel_noise()
    eps = np.finfo(np.float32).eps
    assert all(e.shape == (NOISE_BINS,) and 4 * eps < e.max() < 1e-2 for e in measured.values())
    x = np.random.default_rng(0).uniform(-NOISE_RANGE, NOISE_RANGE, 1000).astype(np.float32)
    error = np.abs(ms.ops.tanh(ms.Tensor(x)).asnumpy() - np.tanh(x.astype(np.float64)))
    bins = ((x / NOISE_RANGE + 1) / 2 * NOISE_BINS).astype(int)
    assert (error <= 1.5 * measured.get("tanh", np.zeros(NOISE_BINS))[bins] + 4 * eps).all()


# ------------------------------------------------------------------------------------------------------------ watching


def _watching_pair() -> tuple[Any, Any]:
    import mindspore as ms
    import torch

    class T(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)
            self.act = torch.nn.ReLU()
            self.token = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x: Any, *, scale: float = 1.0) -> Any:
            return self.fc(self.act(self.fc(x))) * scale + self.token

    class M(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = ms.nn.Dense(3, 3)
            self.act = ms.nn.ReLU()
            self.token = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="token")

        @ms.jit
        def construct(self, x: Any, *, scale: float = 1.0) -> Any:
            return self.fc(self.act(self.fc(x))) * scale + self.token

    return T(), M()


@pytest.mark.parametrize("side", [0, 1])
def test_a_watch_sees_every_call_of_every_module_and_may_change_what_it_gets(side: int) -> None:
    runner = (torch_runner, ms_runner)[side](_watching_pair()[side])
    x = np.ones((2, 3), np.float32)
    seen = []

    def watch(visit: Any, proceed: Any) -> Any:
        seen.append((visit.module.path, visit.module.kind, sorted(visit.kwargs)))
        out = proceed(*visit.args, **visit.kwargs)
        return runner.tensor(np.full((2, 3), 7, np.float32)) if visit.module.path == "" else out

    out = runner.run({"x": x}, watch=watch)
    kind = runner.modules["fc"].kind
    assert [s[:2] for s in seen] == [("", type(runner.model).__name__), ("fc", kind), ("act", "ReLU"), ("fc", kind)]
    assert seen[0][2] == ["x"]
    assert (out == 7).all()
    assert runner.modules[""].own == (("token", "token"),)
    assert [name for _, name in runner.modules["fc"].own] == ["fc.weight", "fc.bias"]
    seen.clear()
    runner.run([x])
    assert not seen  # nothing is left behind


@pytest.mark.parametrize("side", [0, 1])
def test_a_watch_may_run_a_module_again_with_other_weights_which_are_put_back(side: int) -> None:
    runner = (torch_runner, ms_runner)[side](_watching_pair()[side])
    before = runner.state()
    outs = []

    def watch(visit: Any, proceed: Any) -> Any:
        if visit.module.path != "fc":
            return proceed(*visit.args, **visit.kwargs)
        for k in range(3):
            runner.put({"fc.weight": np.full((3, 3), k, np.float32), "fc.bias": np.zeros(3, np.float32)})
            outs.append(runner.array(proceed(*visit.args, **visit.kwargs)).copy())
        assert (runner.value("fc.weight") == 2).all()
        return visit.args[0]

    runner.run([np.ones((1, 3), np.float32)], watch=watch)
    assert [float(o[0, 0]) for o in outs[:3]] == [0, 3, 6]
    assert all((before[name] == array).all() for name, array in runner.state().items())


# -- gradients ---------------------------------------------------------------------------------------------------------


def gradient_loss(outputs: Any, bend: float = 0.0) -> Loss:
    """Weights for every output of floating-point numbers in a dict; the others have no part."""
    weights = {k: np.full(a.shape, 0.5, np.float32) if a.dtype.kind == "f" else None for k, a in outputs.items()}
    return Loss(weights, bend)


def dense_pair() -> tuple[Any, Any]:
    import torch
    from mindspore import nn

    class Torch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)
            self.idle = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return {"y": self.fc(x), "n": torch.arange(3)}

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(4, 3)
            self.idle = nn.Dense(2, 2)

        def construct(self, x: Any) -> Any:
            return {"y": self.fc(x), "n": x.astype("int32")}

    return Torch(), Port()


@pytest.mark.parametrize("bend", [0.0, 2.0])
def test_gradients_are_those_of_the_loss(bend):
    for runner in (torch_runner(dense_pair()[0]), ms_runner(dense_pair()[1])):
        y = runner.run([X])
        assert runner.trained() == {"fc.weight", "fc.bias", "idle.weight", "idle.bias"}
        found = runner.gradients([X], gradient_loss(y, bend), ["fc.weight", "fc.bias", "idle.bias"])
        head = 0.5 + bend * 0.5 * y["y"]
        assert np.allclose(found["fc.weight"], head.T @ X, rtol=1e-5)
        assert np.allclose(found["fc.bias"], head.sum(0), rtol=1e-5)
        assert np.array_equal(found["idle.bias"], np.zeros(2))
        assert runner.gradients([X], gradient_loss(y), []) == {}
        assert not runner.gradients([X], Loss({"y": None, "n": None}), ["fc.bias"])["fc.bias"].any()


def test_a_frozen_parameter_has_a_gradient_and_stays_frozen():
    t, m = dense_pair()
    t.fc.bias.requires_grad_(False)
    m.fc.bias.requires_grad = False
    for runner, bias in ((torch_runner(t), t.fc.bias), (ms_runner(m), m.fc.bias)):
        assert "fc.bias" not in runner.trained()
        assert runner.gradients([X], gradient_loss(runner.run([X])), ["fc.bias"])["fc.bias"].any()
        assert not bias.requires_grad


def test_gradients_leave_a_torch_network_as_it_was():
    import torch

    net = torch_net()
    state = {name: t.clone() for name, t in net.state_dict().items()}
    runner = torch_runner(net)
    loss = Loss({"logits": np.ones((2, 3), np.float32), "ids": None})
    torch.manual_seed(3), np.random.seed(3)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(3), np.random.seed(3)
    # Its forward changes a parameter that asks for a gradient, and only under no_grad: that is its own affair.
    with contextlib.suppress(NotRunnableError):
        assert runner.gradients([X], loss, ["fc.weight"])["fc.weight"].any()
    assert (torch.rand(1), np.random.rand()) == expected
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())
    assert net.training
    assert all(p.grad is None for p in net.parameters())


def test_gradients_leave_a_mindspore_network_as_it_was(monkeypatch):
    import mindspore as ms

    monkeypatch.setenv("MS_JIT", "1")
    net = ms_net()
    net.set_train(True)
    names = [p.name for p in net.get_parameters()]
    values = [p.asnumpy().copy() for p in net.get_parameters()]
    flags = [p.requires_grad for p in net.get_parameters()]
    cells = [c.requires_grad for _, c in net.cells_and_names()]
    runner = ms_runner(net)
    loss = Loss({"logits": (np.ones((2, 3), np.float32), (None,))})
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        found = runner.gradients([X, np.array([1])], loss, ["layers.0.weight", "layers.1.weight", "bn.gamma"])
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert [found[name].any() for name in found] == [False, True, True]  # the first of the layers is not called
    assert [p.name for p in net.get_parameters()] == names
    assert all(np.array_equal(p.asnumpy(), v) for p, v in zip(net.get_parameters(), values, strict=True))
    assert [p.requires_grad for p in net.get_parameters()] == flags
    assert [c.requires_grad for _, c in net.cells_and_names()] == cells
    assert net.training
    assert os.environ["MS_JIT"] == "1"


def test_what_fails_while_gradients_are_computed_is_told_apart():
    import torch
    from mindspore import nn, ops

    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

    class Torch(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return Gate.apply(super().forward(x))

    class Port(nn.Dense):
        def construct(self, x: Any) -> Any:
            return ops.heaviside(super().construct(x), x[:, :3])

    loss = Loss(np.ones((2, 3), np.float32))
    with pytest.raises(NotRunnableError, match="the PyTorch network has no backward here: ") as e:
        torch_runner(Torch(4, 3)).gradients([X], loss, ["weight"])
    assert e.value.operation == "backward"
    runner = ms_runner(Port(4, 3))
    with pytest.raises(NotRunnableError, match="the backward of Heaviside has no kernel on CPU") as e:
        runner.gradients([X], loss, ["weight"])
    assert e.value.operation == "Heaviside"
    with pytest.raises(InputError, match="does not run on"):
        runner.gradients([X[:, :2]], loss, ["weight"])


def test_a_copy_in_float64_and_gradients_under_noise():
    import torch

    net = torch.nn.Linear(4, 3)
    runner: Any = torch_runner(net)
    loss = Loss(np.ones((2, 3), np.float32), 1.0)
    plain = runner.gradients([X], loss, ["weight"])["weight"]
    exact = runner.double().gradients([X], loss, ["weight"])["weight"]
    noisy = runner.gradients_with_noise([X], loss, ["weight"], 0, {}, units=100.0)["weight"]
    assert (plain.dtype, exact.dtype, net.weight.dtype) == (np.float32, np.float64, torch.float32)
    assert 0 < np.abs(plain - exact).max() < 1e-6 * np.abs(exact).max()
    assert 1e-6 < np.abs(noisy - exact).max() / np.abs(exact).max() < 1e-4
    assert np.array_equal(runner.gradients([X], loss, ["weight"])["weight"], plain)
    net.lock = __import__("threading").Lock()  # what cannot be copied
    assert runner.double() is None


def test_noise_flips_last_bits_and_takes_them_back() -> None:
    import torch

    from automap.torch_noise import noisy

    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, torch.finfo(torch.float32).max, 1.0, -3.0]
    tensors = [
        torch.cat([torch.tensor(special), torch.linspace(-2, 2, 50_000)]).to(dtype)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    ]
    tensors.append(torch.linspace(-1, 1, 12).reshape(3, 4).T)  # not in its order in memory
    before = [t.clone() for t in tensors]
    with noisy(tensors, 3, {}, 1):
        for now, then in zip(tensors, before, strict=True):
            finite = then.isfinite()
            moved = (now[finite] - then[finite]).double().abs()
            assert (moved <= torch.finfo(then.dtype).eps * then[finite].double().abs() * 2).all()
            assert (moved > 0).double().mean() > 0.2
            assert torch.equal(now.isnan(), then.isnan())
    for now, then in zip(tensors, before, strict=True):
        assert torch.equal(now.nan_to_num(7.0), then.nan_to_num(7.0))


def test_lent_arrays_are_used_where_they_are() -> None:
    import torch

    from automap.torch_runner import Runner

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight  # tied
    before = {n: t.clone() for n, t in model.state_dict().items()}
    state = {n: np.random.default_rng(0).random(t.shape, dtype=np.float32) for n, t in before.items()}
    state["2.weight"] = state["0.weight"]
    wanted = {n: a.copy() for n, a in state.items()}
    runner = Runner(model)
    with runner.holding(state, lend=True):
        for name, array in wanted.items():
            np.testing.assert_array_equal(runner.value(name), array)
        np.testing.assert_array_equal(state["1.weight"], before["1.weight"].numpy())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
