"""Networks that compute in low precision: mixed, by their parameters, or under ``torch.autocast``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap

pytestmark = pytest.mark.frameworks

NAMES = {f"{i}.{leaf}": f"{i}.{leaf}" for i in (0, 2) for leaf in ("weight", "bias")}


def torch_net(wrapped: Any = None, dtype: Any = None) -> Any:
    """Two layers; ``wrapped`` makes its forward of the plain one."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    if wrapped is not None:
        net.forward = wrapped(net.forward)
    return net if dtype is None else net.to(getattr(torch, dtype))


def ms_net(dtype: str = "float32", mixed: str = "") -> Any:
    import mindspore as ms
    from mindspore import nn

    kind = getattr(ms, dtype)
    net = nn.SequentialCell([nn.Dense(6, 8, dtype=kind), nn.ReLU(), nn.Dense(8, 4, dtype=kind)])
    return net.to_float(getattr(ms, mixed)) if mixed else net


def autocast(dtype: str, enabled: bool = True) -> Any:
    import torch

    return torch.autocast("cpu", dtype=getattr(torch, dtype), enabled=enabled)


OWN = re.compile("in (b?float16) itself the outputs are off by at most (.*) of their scale, allowed ([^ ]*)$", re.M)


def assert_own_precision(text: str, kind: str) -> None:
    """What was computed in float32 is said to be off by what the type explains in that type itself."""
    found = OWN.search(text)
    assert found is not None, text
    assert found[1] == kind
    # float32 alone would be off by 1e-5 at most.
    assert 1e-5 < float(found[2]) < {"bfloat16": 1.6e-2, "float16": 2e-3}[kind]
    assert float(found[3]) >= {"bfloat16": 1.6e-2, "float16": 2e-3}[kind]


@pytest.mark.parametrize(
    ("mixed", "words"),
    [("bfloat16", "the networks are cast to bfloat16"), ("", "the PyTorch network is cast to bfloat16")],
)
def test_autocast_sets_what_may_differ(mixed: str, words: str) -> None:
    """As a decorator of the forward; the port computes in that type too, or in float32."""
    result = automap.validate(NAMES, torch_net(autocast("bfloat16")), ms_net(mixed=mixed), inputs=["float32[8,6]"])
    assert result.passed, str(result)
    assert result.greatest < 1e-5
    assert f"computed in float32: {words}; in bfloat16 itself" in str(result)
    assert_own_precision(str(result), "bfloat16")


def test_a_port_alone_is_cast() -> None:
    result = automap.validate(NAMES, torch_net(), ms_net(mixed="float16"), inputs=["float32[8,6]"], steps=2)
    assert result.passed, str(result)
    assert "computed in float32: the MindSpore network is cast to float16; in float16 itself" in str(result)
    assert_own_precision(str(result), "float16")


def test_autocast_in_a_proof_and_in_a_trace(tmp_path: Path) -> None:
    import torch

    ours = torch_net(autocast("bfloat16"))
    for port in (ms_net(mixed="bfloat16"), ms_net()):
        proof = automap.infer(ours, port, inputs="float32[8,6]").proof
        assert proof is not None
        assert proof.status == "proven", proof
        assert proof.allowed is not None
        assert proof.allowed < 1e-4
        assert_own_precision(proof.notes[0], "bfloat16")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.amp.autocast_mode.autocast.__enter__.__name__ == "__enter__"
    # A trace is recorded as the network computes.
    trace = automap.write_trace(tmp_path / "n.trace", ours, inputs="float32[8,6]")
    proof = automap.infer(trace, ms_net(mixed="bfloat16")).proof
    assert proof is not None
    assert proof.status == "proven", proof
    assert proof.allowed is not None
    assert proof.allowed > 1e-2
    assert any("torch.autocast" in remark for remark in proof.notes)


def test_autocast_around_the_command_and_in_a_forward_of_the_users() -> None:
    import torch

    ours = torch_net()

    def forward(model: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    result = automap.validate(NAMES, ours, ms_net(), inputs=["float32[8,6]"], torch_forward=forward)
    assert_own_precision(str(result), "bfloat16")
    with autocast("bfloat16"):
        result = automap.validate(NAMES, ours, ms_net(), inputs=["float32[8,6]"])
    assert_own_precision(str(result), "bfloat16")


def test_autocast_that_casts_nothing_allows_nothing_more() -> None:
    """What was asked for does not count: off, or around operations that it leaves alone."""
    import torch

    class Net(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = x.clamp(-2, 2)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                return super().forward(x)

    from mindspore import nn, ops

    class Port(nn.SequentialCell):
        def construct(self, x: Any) -> Any:
            return super().construct(ops.clamp(x, -2, 2))

    plain = torch_net()
    result = automap.validate(
        NAMES, Net(*plain), Port([nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4)]), inputs=["float32[8,6]"]
    )
    assert result.passed, str(result)
    assert "autocast" not in str(result)
    assert max(c.allowed / c.scale for c in result.outputs) < 1e-4


def test_training_under_autocast() -> None:
    result = automap.validate(NAMES, torch_net(autocast("bfloat16")), ms_net(mixed="bfloat16"),
                              inputs=["float32[8,6]"], steps=3)  # fmt: skip
    assert result.passed, str(result)
    assert max(np.divide(result.training.allowed, result.training.torch)) < 1e-2
    assert_own_precision(str(result), "bfloat16")


def own_words(kind: str) -> str:
    return rf"computed in float32: the networks are {kind}; in {kind} itself the outputs are off by at most "


def values_of(net: Any) -> list[Any]:
    """What a network of either framework has, to be compared with what it has afterwards."""
    if hasattr(net, "named_parameters"):
        return [(n, t.dtype, t.detach().float().numpy().copy(), t.requires_grad) for n, t in net.named_parameters()]
    found = [(p.name, p.dtype, p.asnumpy().astype(np.float32), p.requires_grad) for p in net.get_parameters()]
    return [*found, *((n, c.mixed_precision_type, np.zeros(1), c.training) for n, c in net.cells_and_names())]


def assert_as_before(net: Any, before: list[Any]) -> None:
    for (*a, x, flag), (*b, y, other) in zip(before, values_of(net), strict=True):
        assert (a, flag) == (b, other)
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_network_of_low_precision_is_proven_in_float32(kind: str) -> None:
    ours, theirs = torch_net(dtype=kind), ms_net(kind)
    before = values_of(ours), values_of(theirs)
    mapping = automap.infer(ours, theirs, inputs="float32[8,6]")
    proof = mapping.proof
    assert proof is not None
    assert proof.status == "proven", proof
    assert all(e.evidence["proven"] == "forward" for e in mapping.entries)
    assert proof.allowed is not None
    assert proof.allowed < 1e-4  # of float32, and not of the networks' own type
    assert re.match(own_words(kind), proof.notes[0])
    assert all("bfloat16" in note for note in proof.notes[1:])  # what has no kernel in that run
    for net, state in zip((ours, theirs), before, strict=True):
        assert_as_before(net, state)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_validation_with_gradients_and_steps(kind: str) -> None:
    ours, theirs = torch_net(dtype=kind), ms_net(kind)
    ours(ours[0].weight[0, :6].detach().new_ones(1, 6)).sum().backward()
    grads = [p.grad for p in ours.parameters()]
    before = values_of(ours), values_of(theirs)
    result = automap.validate(NAMES, ours, theirs, inputs=["float32[8,6]"], steps=4, optimizer="momentum", grad=True)
    assert result.passed, str(result)
    assert re.match(own_words(kind), result.assumptions[0])
    assert max(c.allowed / c.scale for c in result.outputs) < 1e-4
    assert max(np.divide(result.training.allowed, result.training.torch)) < 1e-2
    for net, state in zip((ours, theirs), before, strict=True):
        assert_as_before(net, state)
    assert all(p.grad is grad for p, grad in zip(ours.parameters(), grads, strict=True))


def test_a_small_fault_that_low_precision_hides() -> None:
    """An epsilon that is ten times too large is beyond what float32 allows, and not what bfloat16 does."""
    import mindspore as ms
    import torch
    from mindspore import nn

    ours = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8, eps=1e-3)).bfloat16()
    norm = nn.LayerNorm((8,), epsilon=1e-2, dtype=ms.bfloat16)
    theirs = nn.SequentialCell([nn.Dense(6, 8, dtype=ms.bfloat16), norm])
    names = {"0.weight": "0.weight", "0.bias": "0.bias", "1.weight": "1.gamma", "1.bias": "1.beta"}
    result = automap.validate(names, ours, theirs, inputs=["float32[8,6]"])
    assert result.exit_code == 3, str(result)
    assert "epsilon" in str(result) or "eps" in str(result)
    assert "computed in float32: the networks are bfloat16" in str(result)


def test_one_side_alone_is_of_low_precision() -> None:
    result = automap.validate(NAMES, torch_net(dtype="float16"), ms_net(mixed="float16"), inputs=["float32[8,6]"])
    assert result.passed, str(result)
    assert "the PyTorch network is float16, the MindSpore network is cast to float16; in float16 itself" in str(result)
    result = automap.validate(NAMES, torch_net(), ms_net("bfloat16"), inputs=["float32[8,6]"])
    assert result.passed, str(result)
    assert "the MindSpore network is bfloat16; in bfloat16 itself the outputs are off by" in str(result)


def test_a_port_that_overflows_in_its_own_precision() -> None:
    """It agrees in float32, and gives no numbers in float16: the mapping holds, the networks differ."""
    from mindspore import nn

    class Port(nn.SequentialCell):
        def construct(self, x: Any) -> Any:
            return super().construct(x * 30000.0 * 30000.0 / 30000.0 / 30000.0)

    import mindspore as ms

    port = Port([nn.Dense(6, 8, dtype=ms.float16), nn.ReLU(), nn.Dense(8, 4, dtype=ms.float16)])
    result = automap.validate(NAMES, torch_net(dtype="float16"), port, inputs=["float32[8,6]"])
    assert result.exit_code == 3, str(result)
    assert "but in float16 itself they differ: " in result.verdict
    proof = automap.infer(torch_net(dtype="float16"), port, inputs="float32[8,6]").proof
    assert proof is not None
    assert proof.status == "proven", proof
    assert "in float16 itself they differ" in proof.notes[0]


def test_a_forward_that_casts_by_itself_runs_in_its_own_precision() -> None:
    """What its code casts to is not float32, whatever its parameters are; nothing is said of float32 then."""
    import torch
    from mindspore import nn

    class Net(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            return super().forward(x.to(torch.float16))

    class Port(nn.SequentialCell):
        def construct(self, x: Any) -> Any:
            return super().construct(x.astype(ms.float16))

    import mindspore as ms

    port = Port([nn.Dense(6, 8, dtype=ms.float16), nn.ReLU(), nn.Dense(8, 4, dtype=ms.float16)])
    ours = Net(*torch_net(dtype="float16"))
    result = automap.validate(NAMES, ours, port, inputs=["float32[8,6]"])
    assert result.passed, str(result)
    assert "computed in float32" not in str(result)
    assert min(c.allowed / c.scale for c in result.outputs) >= 2e-3
    proof = automap.infer(ours, port, inputs="float32[8,6]").proof
    assert proof is not None
    assert proof.status == "proven", proof
    assert proof.notes == ()
    assert next(ours.parameters()).dtype == torch.float16


def test_a_trace_of_a_network_of_low_precision(tmp_path: Path) -> None:
    trace = automap.write_trace(tmp_path / "n.trace", torch_net(dtype="bfloat16"), inputs="float32[8,6]")
    assert {p.dtype for p in trace.listing()} == {"bfloat16"}
    for port in (ms_net("bfloat16"), ms_net()):
        proof = automap.infer(trace, port).proof
        assert proof is not None
        assert proof.status == "proven", proof
        assert proof.allowed is not None
        assert proof.allowed < 1e-4
        assert proof.notes[0].startswith("computed in float32: the ")


def test_a_running_statistic_and_a_checkpoint(tmp_path: Path) -> None:
    """Weights that are given are cast up as they are; buffers of low precision, too."""
    import mindspore as ms
    import torch
    from mindspore import nn

    torch.manual_seed(1)
    ours = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).half()
    torch.save(ours.state_dict(), tmp_path / "c.pth")
    conv = nn.Conv2d(3, 4, 3, pad_mode="valid", has_bias=True, dtype=ms.float16)
    theirs = nn.SequentialCell([conv, nn.BatchNorm2d(4, momentum=0.9, dtype=ms.float16)])
    mapping = automap.infer(ours, theirs, inputs="float32[2,3,8,8]", weights=tmp_path / "c.pth")
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert mapping.proof.notes[0].startswith("computed in float32: the networks are float16; in float16 itself ")
    assert mapping.proof.allowed is not None
    assert mapping.proof.allowed < 1e-4
    result = automap.validate(mapping, ours, theirs, inputs=["float32[2,3,8,8]"], weights=tmp_path / "c.pth", steps=2)
    assert result.passed, str(result)
    assert ours[1].running_mean.dtype == torch.float16


@pytest.mark.parametrize("cast", ["bfloat16", "float16"])
def test_products_of_low_precision_that_the_forward_casts_to(cast: str) -> None:
    """Of float32 parameters, and without autocast, on both sides."""
    import mindspore as ms
    import torch
    from mindspore import nn, ops

    low, ms_low = getattr(torch, cast), getattr(ms, cast)

    class Net(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            for layer in (self[0], self[2]):
                weight, bias = layer.weight.to(low), layer.bias.to(low)
                x = torch.nn.functional.linear(x.to(low), weight, bias).float().relu()
            return x

    class Port(nn.SequentialCell):
        def construct(self, x: Any) -> Any:
            for layer in (self[0], self[2]):
                product = ops.matmul(x.astype(ms_low), layer.weight.astype(ms_low).T)
                x = ops.relu((product + layer.bias.astype(ms_low)).astype(ms.float32))
            return x

    port = Port([nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4)])
    steps = 2 * (cast == "float16")  # a backward in bfloat16 lacks a kernel
    result = automap.validate(NAMES, Net(*torch_net()), port, inputs=["float32[64,6]"], steps=steps)
    assert result.passed, str(result)
    assert f"the PyTorch network computes in {cast}, which its forward casts to" in str(result)
    assert result.greatest > 1e-4
    proof = automap.infer(Net(*torch_net()), port, inputs="float32[64,6]").proof
    assert proof is not None
    assert proof.status == "proven", proof


def test_parameters_that_cannot_be_cast_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cast fails half way, everything is put back, and the networks are compared as they are."""
    import mindspore as ms

    ours, theirs = torch_net(dtype="float16"), ms_net("float16")
    before = values_of(ours), values_of(theirs)
    cast, last = ms.Parameter.set_dtype, theirs[2].bias

    def failing(parameter: Any, dtype: Any) -> Any:
        if parameter is last and dtype == ms.float32:
            raise RuntimeError("no memory")
        return cast(parameter, dtype)

    monkeypatch.setattr(ms.Parameter, "set_dtype", failing)
    result = automap.validate(NAMES, ours, theirs, inputs=["float32[8,6]"])
    assert result.passed, str(result)
    assert "computed in float32" not in str(result)
    proof = automap.infer(ours, theirs, inputs="float32[8,6]").proof
    assert proof is not None
    assert proof.status == "proven", proof
    assert proof.notes == ()
    for net, state in zip((ours, theirs), before, strict=True):
        assert_as_before(net, state)


def test_tied_weights_and_constants_of_low_precision() -> None:
    """A tied table stays one tensor; what is no parameter keeps its type and is not in the way."""
    import mindspore as ms
    import torch
    from mindspore import nn, ops

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = torch.nn.Embedding(20, 8), torch.nn.LayerNorm(8)
            self.head = torch.nn.Linear(8, 20, bias=False)
            self.head.weight = self.table.weight
            self.scale = torch.full((8,), 0.3).half()

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.table(x) * self.scale))

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8, dtype=ms.float16)
            self.norm = nn.LayerNorm((8,), epsilon=1e-5, dtype=ms.float16)
            self.scale = ms.Tensor([0.3] * 8, ms.float16)

        def construct(self, x: Any) -> Any:
            return ops.matmul(self.norm(self.table(x) * self.scale), self.table.embedding_table.T)

    ours, theirs = Net().half(), Port()
    mapping = automap.infer(ours, theirs, inputs="int64[2,5]<20")
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert mapping.proof.notes[0].startswith("computed in float32: the networks are float16; in float16 itself ")
    assert ours.head.weight is ours.table.weight
    assert ours.head.weight.dtype == torch.float16
