"""Traces: fingerprints of what the modules of a PyTorch network see and give, and what that depends on."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from automap import tracing
from automap.dtypes import Array
from automap.errors import InputError
from automap.tracing import Call, Fingerprint, Trace, apart, distance, fingerprint

frameworks = pytest.mark.frameworks

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def examples(number: int) -> settings:
    """The same examples in every run, however slow the machine is."""
    return settings(derandomize=True, max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --------------------------------------------------------------------------------------------------------- fingerprints


def plain(array: Array) -> Fingerprint:
    """The same, one number after the other."""
    numbers = []
    for x in array.reshape(-1).tolist():
        numbers += [x.real, x.imag] if isinstance(x, complex) else [float(x)]
    finite = [x for x in numbers if math.isfinite(x)]
    n, whole = len(numbers), array.dtype.kind in "iub"
    if not finite:
        return Fingerprint(n, (0.0,) * 6, whole)
    sums = [math.fsum(f(x) for x in finite) / n for f in (float, abs, lambda x: x * x, lambda x: x**3)]
    return Fingerprint(n, (sums[0], sums[1], math.sqrt(sums[2]), sums[3], min(finite), max(finite)), whole)


DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64")


@st.composite
def arrays(draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES) -> Array:
    """Arrays of few dimensions: normal, far from zero, tiny or large; some with elements that are not finite."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    made = rng(draw(st.integers(0, 2**32 - 1)))
    x = made.standard_normal(shape) * draw(st.sampled_from([1e-3, 1.0, 30.0])) + draw(st.sampled_from([0.0, 0.0, 5.0]))
    if dtype.kind == "b":
        return np.asarray(x > 0)
    if dtype.kind == "c":
        return np.asarray(x + 1j * made.standard_normal(shape)).astype(dtype)
    if dtype.kind in "iu":
        return np.asarray(np.abs(x)).astype(dtype)
    out = np.array(x).astype(dtype)
    if draw(st.integers(0, 4)) == 0 and out.size:
        out.reshape(-1)[made.integers(0, out.size, 2)] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return out


@examples(150)
@given(arrays())
def test_a_fingerprint_is_what_one_would_compute_by_hand(array: Array) -> None:
    found, expected = fingerprint(array), plain(array)
    assert (found.size, found.whole) == (expected.size, expected.whole)
    assert distance(found, expected) < 1e-5
    assert found.stats[4:] == pytest.approx(expected.stats[4:], rel=1e-6)


@examples(150)
@given(arrays(), st.randoms(use_true_random=False))
def test_the_layout_does_not_matter(array: Array, order: random.Random) -> None:
    axes = list(range(array.ndim))
    order.shuffle(axes)
    turned = array.transpose(axes)
    base = fingerprint(array)
    for other in (turned, turned.copy(), np.asfortranarray(array), np.flip(array), array.reshape(-1)):
        found = fingerprint(other)
        assert distance(base, found) < 1e-5
        assert (found.size, found.whole, found.flat) == (base.size, base.whole, base.flat)


@examples(100)
@given(arrays(("float32", "float64")), st.integers(0, 2**32 - 1))
def test_rounding_hardly_moves_it(array: Array, seed: int) -> None:
    assume(np.isfinite(array).all())
    noise = 1 + 1e-6 * rng(seed).uniform(-1, 1, array.shape)
    assert distance(fingerprint(array), fingerprint((array * noise).astype(np.float32))) < 1e-5


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(16, 400))
def test_other_values_are_another_fingerprint(seed: int, size: int) -> None:
    a, b = rng(seed).standard_normal((2, size))
    assert distance(fingerprint(a), fingerprint(b)) > 1e-3


@pytest.mark.parametrize(
    "change",
    [lambda x: -x, lambda x: x + 0.01, lambda x: 1.01 * x, np.abs, lambda x: np.maximum(x, 0), np.sort],
    ids=["negated", "moved", "scaled", "absolute", "clipped", "sorted"],
)
def test_which_changes_show(change: Callable[[Array], Array]) -> None:
    x = rng().standard_normal(1000)
    found = distance(fingerprint(x), fingerprint(change(x)))
    assert found < 1e-12 if change is np.sort else found > 1e-3


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 35])
def test_pieces_are_put_together(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = rng(size).standard_normal(size) + 1
    x[5:8] = np.nan
    whole = fingerprint(x)
    monkeypatch.setattr(tracing, "_CHUNK", 10)
    found = fingerprint(x)
    assert found.stats == pytest.approx(whole.stats, rel=1e-12)
    assert found.size == whole.size == size


def test_what_is_not_finite_is_left_out_of_the_sums() -> None:
    x = np.array([1.0, np.nan, -3.0, np.inf, -np.inf])
    assert fingerprint(x).stats == pytest.approx((-2 / 5, 4 / 5, math.sqrt(2), -26 / 5, -3.0, 1.0))
    nothing = fingerprint(np.array([np.nan, np.inf]))
    assert (nothing.size, nothing.stats, nothing.flat) == (2, (0.0,) * 6, True)
    # Powers that do not fit into the element type are not infinite.
    large = fingerprint(np.array([1e30, -1e30, 2.0], np.float32))
    assert large.stats[4:] == pytest.approx((-1e30, 1e30))
    assert large.stats[2] == pytest.approx(1e30 * math.sqrt(2 / 3))
    assert fingerprint(np.full(2, -1e15, np.float32)).stats[3] == pytest.approx(-1e45)
    lowest = np.finfo(np.float32).min
    assert distance(*[fingerprint(np.array([0, lowest, n], np.float32)) for n in (0, lowest)]) > 0.1


def test_whole_numbers() -> None:
    ids = np.array([[3, 1], [2, 2]])
    found = fingerprint(ids)
    assert (found.whole, found.flat, found.stats[4:]) == (True, False, (1.0, 3.0))
    assert fingerprint(ids.astype(np.int32)) == found
    assert not fingerprint(ids.astype(np.float32)).whole
    assert fingerprint(np.array([True, False])).stats[0] == 0.5
    # The sums are exact, however large the numbers are for their type.
    assert fingerprint(np.full(300, 255, np.uint8)).stats[2] == 255
    assert fingerprint(np.full(3, 2**31 - 1, np.int32)).stats[0] == 2**31 - 1


@pytest.mark.parametrize("value", [np.zeros((0, 3)), np.zeros(5), np.full((2, 2), -1e9), np.float32(3.5), np.ones(1)])
def test_what_says_nothing(value: Array) -> None:
    assert fingerprint(np.asarray(value)).flat


def test_distance() -> None:
    a, b, c = (fingerprint(x) for x in (np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0002])))
    assert distance(a, b) == math.inf
    assert distance(a, a) == distance(fingerprint(np.zeros(4)), fingerprint(np.zeros(4))) == 0
    assert 0 < distance(a, c) < 2e-4
    assert distance(a, c) == distance(c, a)
    tiny = [fingerprint(1e-12 * np.array(x)) for x in ([1.0, 2.0], [1.0, 2.0002])]
    assert distance(*tiny) == pytest.approx(distance(a, c), rel=1e-3)


# ------------------------------------------------------------------------------------------------- arguments of a call

A, B, C = (fingerprint(rng(k).standard_normal((2, 5))) for k in range(3))
IDS, MASK = fingerprint(np.array([1, 2, 5])), fingerprint(np.array([True, False, True]))
NOTHING, SCALAR = fingerprint(np.zeros((2, 5))), fingerprint(np.array(7))


@pytest.mark.parametrize(
    ("few", "many"),
    [
        ([A], [A]),
        ([A], [B, A]),
        ([A, B], [B, C, A]),
        ([A, IDS], [B, A]),
        ([A, NOTHING], [A]),
        ([A, IDS], [A, MASK]),
        ([A, SCALAR], [SCALAR, A, MASK]),
        ([IDS], [MASK, IDS]),
        ([IDS, A], [A]),
    ],
)
def test_the_same_arguments(few: list[Fingerprint], many: list[Fingerprint]) -> None:
    assert apart(few, many) == apart(many, few) == 0


@pytest.mark.parametrize(
    ("few", "many"),
    [([A], [B]), ([A, B], [A, C]), ([A, C], [B, C, C]), ([IDS], [MASK]), ([A, B], [B, B]), ([A, A], [B, A])],
)
def test_other_arguments(few: list[Fingerprint], many: list[Fingerprint]) -> None:
    assert apart(few, many) > 1e-3
    assert apart(many, few) > 1e-3


@pytest.mark.parametrize(("a", "b"), [([], []), ([A], []), ([NOTHING], [NOTHING]), ([A], [SCALAR]), ([], [SCALAR])])
def test_nothing_to_compare(a: list[Fingerprint], b: list[Fingerprint]) -> None:
    assert apart(a, b) == apart(b, a) == math.inf


def test_parameters_as_bits() -> None:
    trace = Trace(("w", "b", "scale"), {}, (Call("fc", (), ()), Call("", (), ()), Call("fc", (), ())))
    assert trace.bits(["scale", "w", "w", "unknown"]) == 0b101
    assert list(trace.of_bits(0b110)) == ["b", "scale"]
    assert trace.calls_of == {"fc": [0, 2], "": [1]}


# ---------------------------------------------------------------------------------------------------- traces of PyTorch


def traced(
    net: Any, *inputs: Array, way: str = "run", forward: Callable[..., Any] | None = None, **named: Array
) -> Trace:
    from automap import torch_runner, torch_tracing

    runner = torch_runner.Runner(net)
    with runner.holding({}):  # a run that settles statistics leaves it to this to put them back
        _, trace = torch_tracing.trace(runner, named or list(inputs), forward, getattr(runner, way))
    return trace


def seen_and_given(trace: Trace) -> list[tuple[str, str, str]]:
    """Of each call its path, and what it sees and gives depends on, in words."""
    return [(c.path, " ".join(trace.of_bits(c.seen)), " ".join(trace.of_bits(c.given))) for c in trace.calls]


def network(forward: Callable[..., Any], **parts: Any) -> Any:
    """A PyTorch network: modules, parameters (tensors) and buffers (pairs), and its forward."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, torch.nn.Module):
                    setattr(self, name, part)
                elif isinstance(part, tuple):
                    self.register_buffer(name, *part)
                else:
                    setattr(self, name, torch.nn.Parameter(part))

    Net.forward = forward
    torch.manual_seed(0)
    return Net()


def linear(bias: bool = False) -> Any:
    import torch

    return torch.nn.Linear(4, 4, bias=bias)


def vector(n: int = 4) -> Any:
    import torch

    return torch.arange(1.0, n + 1)


@frameworks
def test_order_signature_and_values() -> None:
    import torch

    net = network(
        lambda net, x: net.act(net.bn(net.fc(x) * net.scale)),
        bn=torch.nn.BatchNorm1d(4),
        fc=linear(bias=True),
        act=torch.nn.ReLU(),
        scale=vector(),
        table=(vector(), True),
        scratch=(vector(), False),
    )
    trace = traced(net, X)
    bn = ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked")
    assert trace.names == ("scale", "table", *bn, "fc.weight", "fc.bias")
    assert {path: (m.kind, m.own) for path, m in trace.modules.items()} == {
        "": ("Net", (("scale", "scale"), ("table", "table"))),
        "bn": ("BatchNorm1d", tuple((n.split(".")[1], n) for n in bn)),
        "fc": ("Linear", (("weight", "fc.weight"), ("bias", "fc.bias"))),
    }
    # In the order in which they are entered: the network itself first.
    assert [c.path for c in trace.calls] == ["", "fc", "bn"]
    whole, fc, bn_call = trace.calls
    with torch.no_grad():
        y = net.fc(torch.tensor(X))
        z = net.eval().bn(y * net.scale)
    assert whole.inputs == fc.inputs == (fingerprint(X),)
    assert distance(fc.outputs[0], fingerprint(y.numpy())) < 1e-6
    assert distance(bn_call.inputs[0], fingerprint((y * net.scale).detach().numpy())) < 1e-6
    assert distance(bn_call.outputs[0], fingerprint(z.numpy())) < 1e-6
    assert whole.outputs == trace.outputs == (fingerprint(z.relu().numpy()),)


@frameworks
def test_nested_and_named_arguments_and_what_is_no_tensor() -> None:
    import torch

    @dataclasses.dataclass
    class State:
        hidden: Any
        steps: int

    def block(net: Any, x: Any, mode: str, *, pair: Any, state: Any) -> Any:
        return {"y": net.fc(x) + pair[1][0], "none": None, "state": State(state.hidden * 2, 3)}

    inner = network(block, fc=linear(), scale=vector())

    def forward(net: Any, x: Any, mask: Any = None) -> Any:
        out = net.inner(x, "mode", pair=(1.5, [x * 2, None]), state=State(x * 3, 2))
        return [out["y"], (out["state"], mask)]

    trace = traced(network(forward, inner=inner), x=X, mask=np.array([[True], [False]]))
    call, fc = trace.calls
    assert [c.path for c in trace.calls] == ["inner", "inner.fc"]
    assert call.inputs == tuple(fingerprint(k * X) for k in (1, 2, 3))
    assert [f.whole for f in trace.outputs] == [False, False, True]
    assert call.outputs == trace.outputs[:2]
    assert call.outputs[1] == fingerprint(6 * X)
    with torch.no_grad():
        expected = inner.fc(torch.tensor(X))
    assert distance(fc.outputs[0], fingerprint(expected.numpy())) < 1e-6


@frameworks
def test_modules_that_are_shared_or_called_in_a_loop() -> None:
    import torch

    shared = linear()

    def forward(net: Any, x: Any) -> Any:
        h = torch.zeros(len(x), 4)
        for _ in range(3):
            h = net.cell(x, h)
        return net.second(net.first(h))

    trace = traced(network(forward, first=shared, cell=torch.nn.GRUCell(4, 4), second=shared), X)
    cell = "cell.weight_ih cell.weight_hh cell.bias_ih cell.bias_hh"
    assert [c.path for c in trace.calls] == ["cell"] * 3 + ["first"] * 2
    assert "second.weight" not in trace.names
    assert seen_and_given(trace) == [
        ("cell", "", cell),
        ("cell", cell, cell),
        ("cell", cell, cell),
        ("first", cell, f"first.weight {cell}"),
        ("first", f"first.weight {cell}", f"first.weight {cell}"),
    ]
    states = [c.inputs[1] for c in trace.calls[:3]] + [trace.calls[2].outputs[0]]
    assert states[0].flat
    assert all(distance(a, b) > 1e-3 for a, b in itertools.pairwise(states[1:]))
    assert trace.calls[0].outputs == (states[1],)


@frameworks
def test_a_tied_weight_goes_by_its_first_name() -> None:
    import torch

    net = network(lambda net, x: net.head(net.emb(x)), emb=torch.nn.Embedding(7, 4), head=torch.nn.Linear(4, 7))
    net.head.weight = net.emb.weight
    trace = traced(net, np.array([[1, 2, 3]]))
    assert trace.names == ("emb.weight", "head.bias")
    assert seen_and_given(trace) == [
        ("emb", "", "emb.weight"),
        ("head", "emb.weight", "emb.weight head.bias"),
    ]
    assert trace.bits(["head.weight"]) in (0, trace.bits(["emb.weight"]))


@frameworks
def test_residuals_and_branches() -> None:
    def forward(net: Any, x: Any) -> Any:
        a, b = net.a(x), net.b(x)
        y = net.c(x + a)
        return net.d(y * b) + x

    trace = traced(network(forward, a=linear(), b=linear(), c=linear(), d=linear()), X)
    assert seen_and_given(trace) == [
        ("a", "", "a.weight"),
        ("b", "", "b.weight"),
        ("c", "a.weight", "a.weight c.weight"),
        ("d", "a.weight b.weight c.weight", "a.weight b.weight c.weight d.weight"),
    ]
    assert set(trace.of_bits(trace.given)) == {"a.weight", "b.weight", "c.weight", "d.weight"}


@frameworks
def test_changes_in_place() -> None:
    import torch

    def forward(net: Any, x: Any) -> Any:
        y = net.a(x)
        y.mul_(net.scale)
        y += net.b(x)
        out = torch.zeros_like(y)
        out[:, :2] = net.c(y)[:, :2]
        torch.add(y, net.late, out=y)
        return net.d(out)

    net = network(forward, a=linear(), b=linear(), c=linear(), d=linear(), scale=vector(), late=vector())
    trace = traced(net, X)
    assert seen_and_given(trace)[3:] == [
        ("c", "scale a.weight b.weight", "scale a.weight b.weight c.weight"),
        ("d", "scale a.weight b.weight c.weight", "scale a.weight b.weight c.weight d.weight"),
    ]
    # What is written over the value later has come too late for what was computed of it.
    assert "late" not in trace.of_bits(trace.given)


@frameworks
def test_views_share_what_is_written_to_them() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.a(x)
        left, right = y.chunk(2, dim=-1)
        right.copy_(net.b(x)[:, :2])
        z = net.c(y.view(2, 2, 2).permute(2, 0, 1).reshape(2, 4))
        return z + net.d(left.contiguous().repeat(1, 2))

    trace = traced(network(forward, a=linear(), b=linear(), c=linear(), d=linear()), X)
    assert seen_and_given(trace)[2:] == [
        ("c", "a.weight b.weight", "a.weight b.weight c.weight"),
        # One memory, one set: that the left half has nothing of b is not known.
        ("d", "a.weight b.weight", "a.weight b.weight d.weight"),
    ]


@frameworks
def test_parameters_that_are_used_without_their_module() -> None:
    import torch
    from torch.nn import functional

    def forward(net: Any, x: Any) -> Any:
        y = functional.linear(x, net.a.weight, net.a.bias)
        y = y @ net.square.T + net.table[: len(y)]
        return net.b(y)

    net = network(
        forward, a=linear(bias=True), b=linear(), square=torch.eye(4), table=torch.ones(9, 4), idle=linear(bias=True)
    )
    trace = traced(net, X)
    used = "square table a.weight a.bias"
    assert seen_and_given(trace) == [("", "", f"{used} b.weight"), ("b", used, f"{used} b.weight")]
    assert set(trace.modules) == {"", "a", "b", "idle"}


@frameworks
def test_a_head_that_is_not_among_the_outputs() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.body(x)
        net.auxiliary(y)
        return net.head(y)

    trace = traced(network(forward, auxiliary=linear(True), body=linear(), head=linear(), never=linear()), X)
    assert [c.path for c in trace.calls] == ["body", "auxiliary", "head"]
    assert list(trace.of_bits(trace.given)) == ["body.weight", "head.weight"]


@frameworks
def test_lists_of_tensors_hand_on_what_is_in_them() -> None:
    import torch

    def forward(net: Any, x: Any) -> Any:
        parts = torch.cat([x, net.a(x), torch.stack([net.b(x), x])[0]], dim=1)
        first, _, _ = parts.split(4, dim=1)
        return net.c(first), torch.einsum("ij,ij->i", net.d(x), x)

    trace = traced(network(forward, a=linear(), b=linear(), c=linear(), d=linear()), X)
    assert seen_and_given(trace)[2][:2] == ("c", "a.weight b.weight")
    assert len(list(trace.of_bits(trace.given))) == 4


@frameworks
def test_a_forward_of_the_users() -> None:
    net = network(lambda net, x: net.a(x), a=linear(), b=linear())
    trace = traced(net, X, forward=lambda model, x: {"y": model.b(model(x)), "x": x})
    assert [c.path for c in trace.calls] == ["a", "b"]
    assert list(trace.of_bits(trace.given)) == ["a.weight", "b.weight"]
    assert len(trace.outputs) == 2


@frameworks
def test_statistics_settle_before_what_follows_sees_them() -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        net[1].weight.mul_(1e3)
    plain, settled = traced(net, 100 * X), traced(net, 100 * X, way="settle")
    assert [c.path for c in settled.calls] == ["0", "1", "2"]
    assert plain.calls[0].inputs == settled.calls[0].inputs
    assert plain.outputs[0].stats[2] > 1e3
    assert settled.calls[1].inputs[0].stats[2] < 5
    assert settled.outputs[0].stats[2] < 5
    assert settled.calls[1].inputs == settled.calls[0].outputs
    assert all(float(m.running_var.mean()) == 1 for m in (net[0], net[2]))


def state_of_everything(net: Any) -> Any:
    import torch

    return (
        {n: (id(t), t.detach().clone().tolist(), t.requires_grad) for n, t in net.state_dict(keep_vars=True).items()},
        [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()],
        torch.nn.Module.__call__,
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.is_grad_enabled(),
    )


@frameworks
@pytest.mark.parametrize("way", ["run", "settle"])
@pytest.mark.parametrize("broken", [False, True], ids=["", "raises"])
def test_everything_is_put_back(way: str, broken: bool) -> None:
    import torch

    def forward(net: Any, x: Any) -> Any:
        y = net.bn(net.fc(x)) + torch.rand(4) * random.random() * np.random.rand()
        net.fc.weight.add_(1)
        net.count.add_(1)
        net.cache = y
        if broken:
            raise ValueError("not today")
        return net.drop(y)

    net = network(
        forward,
        fc=linear(),
        bn=torch.nn.BatchNorm1d(4),
        drop=torch.nn.Dropout(0.5),
        count=(torch.zeros(1), True),
        cache=(torch.zeros(2, 4), False),
    )
    net.bn.eval()
    net.fc.weight.requires_grad_(False)
    before = state_of_everything(net)
    if broken:
        with pytest.raises(InputError, match="not today"):
            traced(net, 3 * X, way=way)
    else:
        assert len(traced(net, 3 * X, way=way).calls) == 3
    assert state_of_everything(net) == before
    assert net.cache.tolist() == torch.zeros(2, 4).tolist()


@frameworks
def test_what_each_parameter_does_to_the_outputs() -> None:
    import torch

    from automap import torch_runner, torch_tracing

    def forward(net: Any, x: Any) -> Any:
        y = net.bn(net.fc(x) + net.added) * net.one * net.two
        net.idle(y)
        return {"y": y.clamp(max=1e9), "ids": y.argmax(-1), "x": x}

    net = network(
        forward,
        fc=linear(bias=True),
        bn=torch.nn.BatchNorm1d(4),
        idle=linear(),
        added=vector() / 3,
        one=vector() / 2,
        two=4 / vector(),
    )
    net.fc.weight.requires_grad_(False)
    for tensor in (net.bn.running_mean, net.bn.bias):
        torch.nn.init.uniform_(tensor)
    before = state_of_everything(net)
    found, root = torch_tracing.effects(torch_runner.Runner(net), [X], None, 0)
    assert state_of_everything(net) == before
    assert root == math.sqrt(8)
    bn = {f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var")}
    assert set(found) == {"fc.weight", "fc.bias", "added", "one", "two", *bn}
    assert all(e.size > 1e-3 for e in found.values())
    # What is added has one gradient, what is multiplied has one product of gradient and value.
    assert distance(found["added"].slope, found["fc.bias"].slope) < 1e-5
    assert distance(found["one"].product, found["two"].product) < 1e-5
    assert distance(found["one"].slope, found["two"].slope) > 1e-2
    # A statistic counts as what it is subtracted from, turned round.
    assert distance(found["bn.running_mean"].slope, found["added"].slope) > 1e-2
    assert found["bn.running_mean"].slope.stats[2] == pytest.approx(found["added"].slope.stats[2], rel=1e-4)


@frameworks
@pytest.mark.parametrize("words", [{}, {"bias": False}, {"affine": False}, {"track_running_stats": False}])
def test_effects_of_norms_of_every_form(words: dict[str, bool]) -> None:
    import inspect

    import torch

    from automap import torch_runner, torch_tracing

    if not words.keys() <= inspect.signature(torch.nn.BatchNorm1d).parameters.keys():
        pytest.skip("this PyTorch has no such norm")
    net = network(lambda net, x: net.bn(net.fc(x)), fc=linear(), bn=torch.nn.BatchNorm1d(4, **words))
    found, _ = torch_tracing.effects(torch_runner.Runner(net), [X], None, 0)
    assert set(found) == {n for n in net.state_dict() if not n.endswith("num_batches_tracked")}


@frameworks
def test_no_gradient_at_all() -> None:
    from automap import torch_runner, torch_tracing

    net = network(lambda net, x: net.fc(x).argmax(-1), fc=linear())
    found, root = torch_tracing.effects(torch_runner.Runner(net), [X], None, 0)
    assert (found, root) == ({}, 0.0)
