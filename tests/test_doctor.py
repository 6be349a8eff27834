"""The doctor on small networks: every fault of a port is named, where it is, and repaired in memory."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap.cli import main
from automap.mapping import Mapping
from automap.validation import Validation, validate

pytestmark = pytest.mark.frameworks

IMAGE = "float32[2,3,16,16]"


def torch_net() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(i, o, 3, stride=2, padding=1)
            self.bn = nn.BatchNorm2d(o, eps=1e-3)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.act(self.bn(self.conv(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(Block(3, 8), Block(8, 8))
            self.pool = nn.MaxPool2d(3, 2, padding=1)
            self.norm = nn.LayerNorm(8, eps=1e-6)
            self.up = nn.Linear(8, 8)
            self.gelu = nn.GELU()
            self.drop = nn.Dropout(0.1)
            self.down = nn.Linear(8, 8)
            self.head = nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            x = self.pool(self.stem(x)).flatten(2).transpose(1, 2)
            x = x + self.down(self.drop(self.gelu(self.up(self.norm(x)))))
            return self.head(F.silu(x).mean(1))

    torch.manual_seed(0)
    return Net()


#: What a port may do otherwise, by the name of the argument of :func:`ms_net`.
RIGHT = {
    "pad": {"pad_mode": "pad", "padding": 1},
    "bn_eps": 1e-3,
    "momentum": 0.9,
    "act": "relu",
    "pool": {"pad_mode": "pad", "padding": 1},
    "eps": 1e-6,
    "exact": True,
    "p": 0.1,
    "silu": True,
    "bias": True,
    "late_norm": False,
    "drop": False,
}


def ms_net(**wrong: Any) -> Any:
    from mindspore import nn, ops

    how = RIGHT | wrong

    class Block(nn.Cell):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(i, o, 3, stride=2, has_bias=True, **how["pad"])
            self.bn = nn.BatchNorm2d(o, eps=how["bn_eps"], momentum=how["momentum"])
            self.act = nn.ReLU()

        def construct(self, x: Any) -> Any:
            x = self.bn(self.conv(x))
            return self.act(x) if how["act"] == "relu" else x

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.SequentialCell(Block(3, 8), Block(8, 8))
            self.pool = nn.MaxPool2d(3, 2, **how["pool"])
            self.ln = nn.LayerNorm((8,), epsilon=how["eps"])
            self.widen = nn.Dense(8, 8)
            self.drop = nn.Dropout(p=how["p"])
            self.narrow = nn.Dense(8, 8, has_bias=how["bias"])
            self.head = nn.Dense(8, 5)

        def construct(self, x: Any) -> Any:
            x = self.pool(self.stem(x))
            x = x.reshape(x.shape[0], x.shape[1], -1).swapaxes(1, 2)
            y = self.widen(x if how["late_norm"] else self.ln(x))
            y = ops.gelu(y, approximate="none" if how["exact"] else "tanh")
            y = ops.dropout(y, 0.3) if how["drop"] else self.drop(y)
            y = self.narrow(y)
            x = x + (self.ln(y) if how["late_norm"] else y)
            return self.head((ops.silu(x) if how["silu"] else x).mean(1))

    return Net()


def names(**wrong: Any) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for i in range(2):
        found |= {f"stem.{i}.conv.{p}": f"stem.{i}.conv.{p}" for p in ("weight", "bias")}
        words = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
        found |= {f"stem.{i}.bn.{t}": f"stem.{i}.bn.{m}" for t, m in words.items()}
        found[f"stem.{i}.bn.num_batches_tracked"] = None
    found |= {"norm.weight": "ln.gamma", "norm.bias": "ln.beta"}
    for t, m in (("up", "widen"), ("down", "narrow"), ("head", "head")):
        found |= {f"{t}.{p}": f"{m}.{p}" for p in ("weight", "bias")}
    if not wrong.get("bias", True):
        found["down.bias"] = None
    return found


def examined(**wrong: Any) -> Validation:
    return validate(names(**wrong), torch_net(), ms_net(**wrong), inputs=[IMAGE], per_layer=True)


def test_a_correct_port_has_no_finding():
    found = examined()
    assert (found.passed, found.exit_code, found.findings) == (True, 0, ())


@pytest.mark.parametrize(
    ("wrong", "kind", "cause", "torch", "mindspore"),
    [
        ({"pad": {"pad_mode": "same"}}, "setting", "padding", "stem.0.conv", "stem.0.conv"),
        ({"bn_eps": 1e-5}, "setting", "eps", "stem.1.bn", "stem.1.bn"),
        ({"pool": {"pad_mode": "same"}}, "setting", "padding", "pool", "pool"),
        ({"eps": 1e-3}, "setting", "eps", "norm", "ln"),
        ({"exact": False}, "setting", "gelu", "gelu", "widen"),
        ({"act": "none"}, "between", "activation", "stem.0.act", "stem.0.bn"),
        ({"silu": False}, "between", "activation", "", "head"),
        ({"bias": False}, "setting", "bias", "down", "narrow"),
        ({"late_norm": True}, "between", "order", "norm", "ln"),
        ({"drop": True}, "operation", "dropout", "drop", "narrow"),
    ],
    ids=lambda v: "" if not isinstance(v, dict) else next(iter(v)),
)
def test_one_fault_is_named_at_its_place_and_repaired(wrong, kind, cause, torch, mindspore):
    found = examined(**wrong)
    # Layers in another order look like layers that the mapping exchanges.
    code, words = (
        (1, "The networks differ (error ") if cause == "order" else (3, "The mapping holds, the networks differ")
    )
    assert (found.passed, found.exit_code) == (False, code)
    (only,) = found.findings
    assert (only.kind, only.cause) == (kind, cause)
    assert torch in only.torch
    assert mindspore in only.mindspore
    assert only.before is not None
    assert only.after is not None
    assert cause == "dropout" or only.before == pytest.approx(found.outputs[0].to_scale, rel=0.05)
    assert only.after < 2e-6 < only.before
    assert found.verdict.startswith(words)


def test_several_faults_are_told_apart_in_one_run_and_in_the_order_of_execution():
    wrong = {"bn_eps": 1e-5, "pool": {"pad_mode": "same"}, "exact": False, "bias": False, "silu": False}
    found = examined(**wrong)
    assert [f.cause for f in found.findings] == ["eps", "padding", "gelu", "bias", "activation"]
    assert found.findings[0].places == 2
    # The repairs are made one after another: what one leaves is what the next one begins with.
    before, after = ({f.before for f in found.findings}, {f.after for f in found.findings})
    (first,), (last,) = before - after, after - before
    assert first == pytest.approx(found.outputs[0].to_scale, rel=0.05)
    assert last < 2e-6
    assert "5 causes; with them repaired the error is" in found.verdict


def test_what_only_training_shows_is_told_but_is_no_failure():
    found = examined(momentum=0.99, p=0.9)
    assert (found.passed, found.exit_code) == (True, 0)
    assert [(f.kind, f.cause, f.torch_value, f.ms_value) for f in found.findings] == [
        ("training", "momentum", "0.1", "0.01"),
        ("training", "dropout", "0.1", "0.9"),
    ]
    assert found.verdict.endswith("but 2 setting(s) that only training shows differ.")


def test_both_networks_stay_as_they_were():
    from mindspore import ops

    wrong = {"pad": {"pad_mode": "same"}, "exact": False, "eps": 1e-3}
    t, m = torch_net(), ms_net(**wrong)
    functions = {name: vars(ops)[name] for name in ("gelu", "relu", "cat", "softmax")}
    before = [v.numpy().copy() for v in t.state_dict().values()], [p.asnumpy().copy() for p in m.get_parameters()]
    settings = [(c.stem[0].conv.pad_mode, c.ln.epsilon, c.ln.layer_norm) for c in (m,)]
    validate(names(), t, m, inputs=[IMAGE])
    after = [v.numpy() for v in t.state_dict().values()], [p.asnumpy() for p in m.get_parameters()]
    for one, other in zip(before, after, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert settings == [(c.stem[0].conv.pad_mode, c.ln.epsilon, c.ln.layer_norm) for c in (m,)]
    assert functions == {name: vars(ops)[name] for name in functions}


@pytest.mark.parametrize(
    ("one", "other"), [("stem.0.bn.gamma", "stem.0.bn.moving_variance"), ("widen.weight", "narrow.weight")]
)
def test_a_wrong_mapping_is_told_from_a_fault(one, other):
    mapping = {t: {one: other, other: one}.get(m, m) if m else m for t, m in names().items()}
    found = validate(mapping, torch_net(), ms_net(), inputs=[IMAGE])
    assert (found.exit_code, {f.kind for f in found.findings}) == (1, {"mapping"})
    assert found.verdict.startswith("The mapping is wrong: ")
    assert any(one in f.words and other in f.words for f in found.findings) or len(found.findings) == 2
    assert found.findings[-1].after < 2e-6 or found.findings[0].after < 2e-6


def test_layers_that_the_mapping_exchanges_as_a_whole():
    exchanged = {"widen": "narrow", "narrow": "widen"}
    mapping = {
        t: ".".join((exchanged.get(m.split(".")[0], m.split(".")[0]), *m.split(".")[1:])) if m else m
        for t, m in names().items()
    }
    found = validate(mapping, torch_net(), ms_net(), inputs=[IMAGE])
    (only,) = found.findings
    assert only.cause == "order"
    assert {*only.torch} == {"up", "down"}
    assert {*only.mindspore} == {"widen", "narrow"}
    assert only.after < 2e-6


def attention(framework: str, axis: int = -1, swapped: bool = False) -> Any:
    """One attention head; ``swapped`` uses the key as the query."""
    if framework == "torch":
        import torch

        class TorchHead(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.query, self.key, self.value, self.out = (torch.nn.Linear(8, 8) for _ in range(4))

            def forward(self, x: Any) -> Any:
                q, k, v = self.query(x), self.key(x), self.value(x)
                return self.out(torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v)

        return TorchHead()
    from mindspore import nn, ops

    class Head(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Dense(8, 8) for _ in range(4))

        def construct(self, x: Any) -> Any:
            q, k, v = self.query(x), self.key(x), self.value(x)
            q, k = (k, q) if swapped else (q, k)
            return self.out(ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) / 8**0.5, axis), v))

    return Head()


HEAD = {f"{layer}.{p}": f"{layer}.{p}" for layer in ("query", "key", "value", "out") for p in ("weight", "bias")}


def test_a_softmax_over_another_axis_in_a_construct():
    found = validate(HEAD, attention("torch"), attention("mindspore", -2), inputs=["float32[2,8,8]"])
    (only,) = found.findings
    assert (only.cause, only.torch_value, only.ms_value, only.torch_class) == ("axis", "-1", "-2", "softmax")
    assert only.after < 2e-6


def test_exchanged_factors():
    found = validate(HEAD, attention("torch"), attention("mindspore", swapped=True), inputs=["float32[2,8,8]"])
    assert found.exit_code == 1
    assert "A wrong mapping would look the same as this, so whether the mapping holds there is not" in found.verdict
    (only,) = found.findings
    assert only.cause == "order"
    assert {"query", "key"} <= {*only.mindspore}


@pytest.mark.parametrize("pair", [("query", "key"), ("key", "value")])
def test_a_mapping_that_exchanges_two_projections_of_one_input(pair):
    one, other = pair
    mapping = dict(HEAD)
    for p in ("weight", "bias"):
        mapping |= {f"{one}.{p}": f"{other}.{p}", f"{other}.{p}": f"{one}.{p}"}
    found = validate(mapping, attention("torch"), attention("mindspore"), inputs=["float32[2,8,8]"])
    assert found.exit_code == 1
    (only,) = found.findings
    assert (only.kind, only.cause, {*only.mindspore}) == ("mapping", "order", {one, other})
    assert only.after < 2e-6


def test_a_transposed_square_matrix():
    import mindspore as ms
    import torch
    from mindspore import nn, ops

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = Turned()

        def construct(self, x: Any) -> Any:
            return self.fc(x)

    class Turned(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = ms.Parameter(ms.Tensor(np.zeros((6, 6), np.float32)))

        def construct(self, x: Any) -> Any:
            return ops.matmul(x, self.weight)

    net = torch.nn.Sequential()
    net.add_module("fc", torch.nn.Linear(6, 6, bias=False))
    found = validate({"fc.weight": "fc.weight"}, net, Port(), inputs=["float32[4,6]"])
    assert found.exit_code == 1
    (only,) = found.findings
    assert (only.cause, only.torch, only.mindspore) == ("transpose", ("fc",), ("fc",))
    assert only.after < 2e-6


def test_what_mindspore_does_with_output_padding_is_named_as_its_own_way():
    import torch
    from mindspore import nn

    net = torch.nn.Sequential(torch.nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1))
    cell = nn.Conv2dTranspose(3, 4, 3, stride=2, pad_mode="pad", padding=1, output_padding=1, has_bias=True)
    mapping = {"0.weight": "0.weight", "0.bias": "0.bias"}
    found = validate(mapping, net, nn.SequentialCell(cell), inputs=["float32[2,3,5,5]"])
    assert found.exit_code == 3
    (only,) = found.findings
    assert (only.kind, only.cause, only.mindspore) == ("operation", "output_padding", ("0",))
    assert "fills what output_padding adds with zeros" in only.words


def test_the_findings_in_words_and_in_json():
    found = examined(pool={"pad_mode": "same"}, momentum=0.99)
    text = str(found)
    assert "padding: MaxPool2d padding same here, 1 in torch (pool)" in text
    assert "momentum: BatchNorm2d momentum (share of the new value) 0.01 here, 0.1 in torch, 2 layers" in text
    data = json.loads(found.to_json())["findings"]
    assert [d["cause"] for d in data] == ["momentum", "padding"]
    assert (data[1]["torch"], data[1]["torch_value"], data[1]["ms_value"]) == (["pool"], "1", "same")
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(found)
    assert "MaxPool2d padding same here, 1 in torch (pool)" in console.export_text()


def test_the_command_examines_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "nets.py").write_text(
        "import torch\nfrom mindspore import nn\n"
        "def t(): return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2))\n"
        "def m(): return nn.SequentialCell(nn.Dense(4, 4), nn.Dropout(p=0.9), nn.Dense(4, 2))\n"
    )
    mapping = Mapping.from_dict({f"{i}.{p}": f"{i}.{p}" for i in (0, 2) for p in ("weight", "bias")})
    mapping.write(tmp_path / "mapping.json")
    nets = tmp_path / "nets.py"
    command = ["validate", str(tmp_path / "mapping.json"), f"{nets}:t", f"{nets}:m", "--input", "float32[3,4]"]
    assert main(command) == 0
    assert "dropped" not in capsys.readouterr().out
    assert main([*command, "--per-layer"]) == 0
    assert "share that is dropped 0.9 here, 0.1 in torch" in " ".join(capsys.readouterr().out.split())


def test_the_public_function_takes_the_flag():
    net = attention("torch")
    assert automap.validate(HEAD, net, attention("mindspore"), inputs=["float32[2,8,8]"], per_layer=True).passed


def test_strides_in_another_order():
    """The second convolution of two has the stride of the first: what it gives is a part of what PyTorch has there."""
    import torch
    from mindspore import nn

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 1, stride=2, bias=False), torch.nn.Conv2d(8, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
    ).eval()  # fmt: skip
    port = nn.SequentialCell(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, stride=2, pad_mode="pad", padding=1), nn.BatchNorm2d(8)
    )
    found = validate(automap.infer(net, port, static=True), net, port, inputs=[IMAGE])
    assert found.exit_code == 3
    assert [(f.cause, f.mindspore, f.proven) for f in found.findings] == [
        ("stride", ("0",), True),
        ("stride", ("1",), True),
    ]


def test_a_cell_that_does_a_piece_of_a_module():
    """A table has a cell of its own here, and a scale has a module of its own there: only what is whole is compared."""
    import mindspore
    import torch
    from mindspore import nn

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = torch.nn.Parameter(torch.rand(6))

        def forward(self, x: Any) -> Any:
            return x * self.size

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.rand(4, 6))
            self.fc, self.act, self.scale = torch.nn.Linear(6, 6), torch.nn.GELU(), Scale()

        def forward(self, x: Any) -> Any:
            return x + self.scale(self.act(self.fc(x + self.table)))

    class Table(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table = mindspore.Parameter(np.zeros((4, 6), np.float32))

        def construct(self) -> Any:
            return self.table * 1

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.fc, self.act = Table(), nn.Dense(6, 6), nn.GELU(approximate=True)
            self.size = mindspore.Parameter(np.ones(6, np.float32))

        def construct(self, x: Any) -> Any:
            return x + self.size * self.act(self.fc(x + self.places()))

    net, port = torch.nn.Sequential(Block(), Block()), nn.SequentialCell(Port(), Port())
    names = {"table": "places.table", "fc.weight": "fc.weight", "fc.bias": "fc.bias", "scale.size": "size"}
    mapping = Mapping.from_dict({f"{i}.{t}": f"{i}.{m}" for i in (0, 1) for t, m in names.items()})
    found = validate(mapping, net, port, inputs=["float32[2,4,6]"])
    assert found.exit_code == 3
    assert [(f.cause, f.mindspore, f.proven) for f in found.findings] == [("gelu", ("0.act", "1.act"), True)]


@pytest.mark.parametrize(
    ("pooled", "words", "proven"),
    [
        pytest.param(lambda x: x, "the mean over axis 1 is not taken here", True, id="missing"),
        pytest.param(
            lambda x: x[:, 0], "the first of axis 1 is taken here, the mean over axis 1 in PyTorch", False, id="other"
        ),
    ],
)
def test_what_is_taken_along_an_axis(pooled, words, proven):
    import torch
    from mindspore import nn

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.head = torch.nn.Linear(8, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.fc(x)).mean(1))

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.head = nn.Dense(8, 6), nn.LayerNorm((6,), epsilon=1e-5), nn.Dense(6, 4)

        def construct(self, x: Any) -> Any:
            return self.head(pooled(self.norm(self.fc(x))))

    same = [f"{a}.{b}" for a in ("fc", "head") for b in ("weight", "bias")]
    mapping = Mapping.from_dict({**{n: n for n in same}, "norm.weight": "norm.gamma", "norm.bias": "norm.beta"})
    found = validate(mapping, Net(), Port(), inputs=["float32[2,5,8]"])
    assert found.exit_code == 3
    assert [(f.cause, f.torch, f.mindspore, f.proven) for f in found.findings] == [
        ("pooling", ("norm", "head"), ("norm", "head"), proven)
    ]
    assert words in found.findings[0].words
