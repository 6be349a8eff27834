"""Weights that are computed from several parameters, and folded norms, proven by running both networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap import mindspore_edge  # noqa: F401  # before MindSpore itself
from automap.mapping import Entry, Mapping

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")

from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations as new  # noqa: E402
from torch.nn.utils import spectral_norm, weight_norm  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
]

INPUTS = ["float32[2,3,6,6]"]


class Net(nn.Module):
    """Convolutions one after the other, each with what follows it, and a dense layer."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]], order: Sequence[str], head: nn.Module) -> None:
        super().__init__()
        for name, layer in layers:
            self.add_module(name, layer)
        self.order, self.head = order, head

    def forward(self, x: Any) -> Any:
        for step in self.order:
            for name in step.split():
                x = getattr(self, name)(x)
            x = torch.relu(x)
        return self.head(x.mean((2, 3)))


class Port(ms.nn.Cell):
    """The plain convolutions of such a network; ``defined`` is the order of definition, of execution without it."""

    def __init__(self, sizes: Sequence[tuple[int, int]], defined: Sequence[int] = (), make: Any = None) -> None:
        super().__init__()
        count = len(sizes)
        for i in defined or range(count):
            cell = make(*sizes[i]) if make else ms.nn.Conv2d(*sizes[i], 3, pad_mode="pad", padding=1, has_bias=True)
            setattr(self, f"c{i}", cell)
        self.classifier = ms.nn.Dense(sizes[-1][1], 5)
        self.count = count

    def construct(self, x: Any) -> Any:
        for i in range(self.count):
            x = ms.ops.relu(getattr(self, f"c{i}")(x))
        return self.classifier(x.mean((2, 3)))


def conv(a: int, b: int, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(a, b, 3, padding=1, bias=bias)


def all_kinds() -> Net:
    torch.manual_seed(0)
    layers = [
        ("a", weight_norm(conv(3, 4))),
        ("b", new.weight_norm(conv(4, 4))),
        ("c", spectral_norm(conv(4, 4))),
        ("d", new.spectral_norm(conv(4, 4))),
        ("e", conv(4, 4, bias=False)),
        ("bn", nn.BatchNorm2d(4, eps=1e-3)),
    ]
    return Net(layers, ["a", "b", "c", "d", "e bn"], weight_norm(nn.Linear(4, 5)))


SIZES = [(3, 4), (4, 4), (4, 4), (4, 4), (4, 4)]


def of(mapping: Mapping, name: str) -> Entry:
    (found,) = mapping.find(name)
    assert isinstance(found, Entry), found
    return found


def proven(mapping: Mapping) -> None:
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert not mapping.needs_review, [(str(e), e.why) for e in mapping.reviewed] + list(mapping.unmatched["torch"])
    assert all(e.evidence["proven"] for e in mapping.entries)


def converted(mapping: Mapping, build: Callable[[], nn.Module], port: Any) -> None:
    """Another checkpoint gives equal forwards."""
    model = build().eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 0.3 * torch.randn_like(p))
        for name, b in model.named_buffers():
            if "running" in name:
                b.copy_(torch.rand_like(b) + 0.5)
    automap.load(mapping, model.state_dict(), port)
    x = np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    port.set_train(False)
    given = port(ms.Tensor(x)).asnumpy()
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("options", [{}, {"ignore_names": True}], ids=["with names", "without names"])
@pytest.mark.parametrize("defined", [(), (3, 0, 4, 2, 1)], ids=["in order", "in another order"])
def test_every_kind_of_one_shape(defined: Sequence[int], options: dict[str, bool]) -> None:
    """Whatever the order of definition is, running tells which weight is whose."""
    port = Port(SIZES, defined)
    mapping = automap.infer(all_kinds(), port, inputs=INPUTS, **options)
    proven(mapping)
    assert of(mapping, "c0.weight").torch == ("a.weight_g", "a.weight_v")
    assert of(mapping, "c3.weight").torch[0] == "d.parametrizations.weight.original"
    e = of(mapping, "c4.weight")
    assert e.torch == ("e.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    assert e.mindspore == ("c4.weight", "c4.bias")
    converted(mapping, all_kinds, port)


def test_a_norm_that_is_defined_apart_is_told_by_what_feeds_it() -> None:
    """In order of definition the norms come the other way round; execution tells."""

    def build() -> Net:
        torch.manual_seed(0)
        layers = [("a", conv(3, 4, False)), ("b", conv(4, 4, False))]
        norms = [("m", nn.BatchNorm2d(4)), ("n", nn.BatchNorm2d(4))]
        return Net([*layers, *norms], ["a n", "b m"], nn.Linear(4, 5))

    port = Port([(3, 4), (4, 4)])
    mapping = automap.infer(build(), port, inputs=INPUTS)
    proven(mapping)
    assert of(mapping, "c0.weight").torch[:2] == ("a.weight", "n.weight")
    assert of(mapping, "c1.weight").torch[:2] == ("b.weight", "m.weight")
    converted(mapping, build, port)


def test_a_layer_with_a_bias_and_a_norm() -> None:
    def build() -> Net:
        torch.manual_seed(0)
        layers = [("a", conv(3, 4)), ("an", nn.BatchNorm2d(4)), ("b", conv(4, 4)), ("bn", nn.BatchNorm2d(4))]
        return Net(layers, ["a an", "b bn"], nn.Linear(4, 5))

    port = Port([(3, 4), (4, 4)])
    mapping = automap.infer(build(), port, inputs=INPUTS)
    proven(mapping)
    assert len(of(mapping, "c1.weight").torch) == 6
    converted(mapping, build, port)


def test_a_port_that_lacks_the_norm_is_not_proven() -> None:
    """Its convolution has a bias, but for the running mean alone: the norm is not folded into it."""

    class Wrong(Port):
        def construct(self, x: Any) -> Any:
            return super().construct(x * 1.5)

    torch.manual_seed(0)
    model = Net([("a", conv(3, 4)), ("an", nn.BatchNorm2d(4))], ["a an"], nn.Linear(4, 5))
    mapping = automap.infer(model, Wrong([(3, 4)]), inputs=INPUTS)
    assert mapping.proof is not None
    assert mapping.proof.status != "proven"


class Lengths(ms.nn.Cell):
    """A convolution of the port's own that keeps lengths and directions."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        rng = np.random.default_rng(a)
        self.weight_g = ms.Parameter(ms.Tensor(np.ones((b, 1, 1, 1), np.float32)))
        self.weight_v = ms.Parameter(ms.Tensor(rng.normal(size=(b, a, 3, 3)).astype(np.float32)))
        self.bias = ms.Parameter(ms.Tensor(np.zeros(b, np.float32)))

    def construct(self, x: Any) -> Any:
        v = self.weight_v
        weight = self.weight_g * v / (v * v).sum((1, 2, 3), keepdims=True).sqrt()
        return ms.ops.conv2d(x, weight, self.bias, pad_mode="pad", padding=1)


@pytest.mark.parametrize("wrap", [lambda x: x, weight_norm, new.weight_norm], ids=["plain", "old", "new"])
def test_a_port_that_keeps_lengths_and_directions(wrap: Any) -> None:
    def build() -> Net:
        torch.manual_seed(0)
        layers = [(name, wrap(conv(4 if name != "a" else 3, 4))) for name in "abc"]
        return Net(layers, "abc", nn.Linear(4, 5))

    port = Port([(3, 4), (4, 4), (4, 4)], (2, 1, 0), Lengths)
    mapping = automap.infer(build(), port, inputs=INPUTS)
    proven(mapping)
    names = {w: of(mapping, f"c1.{w}").torch for w in ("weight_g", "weight_v")}
    if len(mapping.entries) == 8:  # one weight here, two parts there
        assert set(names.values()) == {("b.weight",)}
    else:
        assert all(len(n) == 1 and n[0].startswith("b.") for n in names.values())
        assert names["weight_g"][0].endswith(("weight_g", "original0"))
    converted(mapping, build, port)


def test_a_fused_projection_of_weights_with_lengths() -> None:
    """Queries, keys and values with lengths each, in one matrix of the port's."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k, self.v = (weight_norm(nn.Linear(6, 6, bias=False)) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return torch.softmax(torch.tanh(self.q(x)) @ self.k(x).mT, -1) @ self.v(x)

    class Fused(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = ms.nn.Dense(6, 18, has_bias=False)

        def construct(self, x: Any) -> Any:
            q, k, v = ms.ops.split(self.qkv(x), 6, -1)
            return ms.ops.softmax(ms.ops.tanh(q) @ k.swapaxes(-1, -2), -1) @ v

    mapping = automap.infer(Attention(), Fused(), inputs=["float32[2,4,6]"])
    proven(mapping)
    weight = of(mapping, "qkv.weight")
    assert weight.torch == tuple(f"{w}.weight_{part}" for w in "qkv" for part in "gv")
    assert [t.op for t in weight.transform] == ["weight_norm", "concat"]


def test_a_trace_has_all_that_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "net.trace"
    automap.write_trace(file, all_kinds(), inputs=INPUTS)
    mapping = automap.infer(str(file), Port(SIZES), inputs=None)
    proven(mapping)
    assert "fold_norm(eps=0.001)" in str(of(mapping, "c4.bias"))


def test_the_network_is_left_as_it_was() -> None:
    model = all_kinds()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    automap.infer(model, Port(SIZES), inputs=INPUTS)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_a_folded_norm_is_no_fault_of_the_port() -> None:
    """Layer by layer, the port's convolution gives what PyTorch's norm gives."""
    port = Port(SIZES)
    mapping = automap.infer(all_kinds(), port, inputs=INPUTS)
    found = automap.validate(mapping, all_kinds(), port, inputs=INPUTS, per_layer=True)
    assert found.passed
    assert not found.findings


def test_a_fault_beside_such_weights_is_named() -> None:
    class Wrong(Port):
        def construct(self, x: Any) -> Any:
            for i in range(self.count):
                x = getattr(self, f"c{i}")(x)
                x = ms.ops.leaky_relu(x, 0.2) if i == 2 else ms.ops.relu(x)
            return self.classifier(x.mean((2, 3)))

    mapping = automap.infer(all_kinds(), Wrong(SIZES), inputs=INPUTS)
    assert mapping.proof is not None
    assert mapping.proof.status == "differs"
    assert len(mapping.proof.findings) == 1
    assert "leaky relu here, relu in torch" in mapping.proof.findings[0]
