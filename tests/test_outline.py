"""What differs in a port of a network of which only a trace is at hand, told by settings and fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_doctor import IMAGE, ms_net, torch_net

import automap
from automap import trace_file
from automap.cli import main
from automap.errors import InputError
from automap.outline import Step, from_json, side_by_side, to_json
from automap.settings import Layer
from automap.tracing import fingerprint


def step(path: str, kind: str = "", owns: bool = False) -> Step:
    some = (fingerprint(np.arange(4.0)),)
    return Step(path, kind, False, Layer(kind, {"kernel": (3, 3), "eps": 1e-5}), 0, (2, 2), some, some, not owns, owns)


def paths(pairs: Any) -> list[tuple[str | None, str | None]]:
    return [(p.torch and p.torch.path, p.mindspore and p.mindspore.path) for p in pairs]


def test_cells_belong_to_what_the_mapping_says_and_the_rest_to_what_stands_between_them():
    torch = [step("a", owns=True), step("act", "relu"), step("pool", "max_pool"), step("b", owns=True)]
    port = [step("x", owns=True), step("gelu", "gelu"), step("y", owns=True)]
    pairs = side_by_side(torch, port, {"x": ["a"], "y": ["b"]})
    assert paths(pairs) == [("a", "x"), ("act", "gelu"), ("pool", None), ("b", "y")]
    assert [s and s.path for s in (*pairs[2].before, *pairs[2].after)] == ["act", "gelu", "b", "y"]


def test_what_the_port_has_too_much():
    pairs = side_by_side([step("a", owns=True)], [step("act", "relu"), step("x", owns=True)], {"x": ["a"]})
    assert paths(pairs) == [(None, "act"), ("a", "x")]


def test_an_outline_is_the_same_after_reading_it():
    steps = (step("a", "conv", owns=True), step("act", "relu"))
    rows = to_json(steps, lambda f: [f.size, *f.stats])
    assert from_json(rows, lambda row: trace_file._unprint([*row, 0])) == steps


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("traces") / "net.trace")
    automap.write_trace(path, torch_net(), inputs=IMAGE)
    return path


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"pad": {"pad_mode": "same"}}, "Conv2d padding same here, 1 in torch, 2 layers (stem.0.conv and stem.1.conv)"),
        ({"bn_eps": 1e-5}, "BatchNorm2d epsilon 1e-05 here, 0.001 in torch, 2 layers (stem.0.bn and stem.1.bn)"),
        ({"pool": {"pad_mode": "same"}}, "MaxPool2d padding same here, 1 in torch (pool)"),
        ({"eps": 1e-3}, "LayerNorm epsilon 0.001 here, 1e-06 in torch (ln)"),
        ({"exact": False}, "gelu form tanh here, exact (erf) in torch (the network and widen)"),
        ({"act": "none"}, "between stem.0.bn and stem.1.conv: relu is missing here, 2 layers"),
        ({"bias": False}, "Dense bias no here, yes in torch (narrow)"),
        ({"drop": True}, "the network and widen (dropout; Dropout in torch): it drops in inference here"),
    ],
    ids=lambda v: "" if not isinstance(v, dict) else next(iter(v)),
)
def test_one_fault_of_a_port_is_named_and_repaired(trace: str, wrong: dict[str, Any], words: str) -> None:
    mapping = automap.infer(trace, ms_net(**wrong))
    assert mapping.proof is not None
    assert mapping.proof.status == "differs"
    assert mapping.proof.exit_code == 3
    (only,) = mapping.proof.findings
    assert only.startswith(f"{words}: ")
    assert mapping.proof.repaired is not None
    assert mapping.proof.repaired < 1e-5
    assert all(e.evidence["proven"] == "forward" for e in mapping.entries if e.torch[0] != "narrow.bias")


@pytest.mark.frameworks
def test_several_faults_at_once_are_told_apart(trace: str) -> None:
    port = ms_net(eps=1e-3, exact=False, pad={"pad_mode": "same"})
    proof = automap.infer(trace, port).proof
    assert proof is not None
    assert [f.split(" here")[0] for f in proof.findings] == [
        "Conv2d padding same", "LayerNorm epsilon 0.001", "gelu form tanh",
    ]  # fmt: skip
    assert proof.status == "differs"


@pytest.mark.frameworks
def test_a_right_port_has_no_finding(trace: str) -> None:
    proof = automap.infer(trace, ms_net()).proof
    assert proof is not None
    assert (proof.status, proof.findings) == ("proven", ())


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"late_norm": True}, "between pool and widen: something differs"),
        ({"silu": False}, "between narrow and head: silu is missing here"),
    ],
    ids=["late_norm", "silu"],
)
def test_what_no_repair_proves_stays_open_but_is_named(trace: str, wrong: dict[str, Any], words: str) -> None:
    proof = automap.infer(trace, ms_net(**wrong)).proof
    assert proof is not None
    assert proof.status == "open"
    assert proof.findings[0].startswith(words)


@pytest.mark.frameworks
def test_the_command_says_so(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "port.py").write_text(
        "from tests.test_doctor import ms_net\n\n\ndef build():\n    return ms_net(eps=1e-3)\n"
    )
    code = main(["infer", trace, f"{tmp_path}/port.py:build", "-o", str(tmp_path / "mapping.json")])
    assert code == 3
    assert "LayerNorm epsilon 0.001 here, 1e-06 in torch (ln)" in capsys.readouterr().err


# -- ports that raise an error -----------------------------------------------------------------------------------------


def small_torch() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)
    )


def small_port(flat: bool = True, **wrong: Any) -> Any:
    from mindspore import nn

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 8, 3, pad_mode="valid", has_bias=True)
            how = {"pad_mode": "pad", "padding": 1, "stride": 2} | wrong
            self.b = nn.Conv2d(8, 8, 3, has_bias=True, **how)
            self.relu, self.flat, self.head = nn.ReLU(), nn.Flatten(), nn.Dense(128, 5)

        def construct(self, x: Any) -> Any:
            x = self.relu(self.b(self.relu(self.a(x))))
            return self.head(self.flat(x) if flat else x)

    return Port()


SMALL = ["float32[2,3,10,10]"]
HOMES = {f"{t}.{p}": f"{m}.{p}" for t, m in (("0", "a"), ("2", "b"), ("5", "head")) for p in ("weight", "bias")}


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("traces") / "small.trace")
    automap.write_trace(path, small_torch(), inputs=SMALL)
    return path


@pytest.mark.frameworks
@pytest.mark.parametrize("live", [True, False], ids=["live", "recorded"])
def test_a_setting_that_makes_a_later_cell_raise_is_named_and_repaired(small_trace: str, live: bool) -> None:
    port = small_port(stride=1)
    before = {p.name: p.asnumpy().copy() for p in port.get_parameters()}
    mapping = automap.infer(small_torch(), port, inputs=SMALL) if live else automap.infer(small_trace, port)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("differs", 3)
    (only,) = mapping.proof.findings
    assert only.startswith("Conv2d stride 1 here, 2 in torch (b): another form -> ")
    assert all(e.evidence["proven"] == "forward" and not e.review for e in mapping.entries)
    assert all(np.array_equal(p.asnumpy(), before[p.name]) for p in port.get_parameters())


@pytest.mark.frameworks
def test_validate_names_it_too() -> None:
    found = automap.validate(HOMES, small_torch(), small_port(stride=1), inputs=SMALL)
    assert (found.passed, found.exit_code) == (False, 3)
    assert found.verdict.startswith("The mapping holds, the networks differ (the MindSpore network does not run on ")
    assert [(f.setting, f.mindspore, f.torch) for f in found.findings] == [("stride", ("b",), ("2",))]


@pytest.mark.frameworks
def test_a_wrong_mapping_is_not_proven_by_what_makes_the_port_run() -> None:
    port = small_port(stride=1)
    wrong = HOMES | {"0.bias": "b.bias", "2.bias": "a.bias"}
    with pytest.raises(InputError, match=r"\(PyTorch takes them\)"):
        automap.validate(wrong, small_torch(), port, inputs=SMALL)


@pytest.mark.frameworks
def test_where_settings_do_not_explain_the_error_the_cell_is_named() -> None:
    words = r"\(PyTorch takes them\); head \(Dense; Linear in torch\): it raises an error here$"
    with pytest.raises(InputError, match=words):
        automap.infer(small_torch(), small_port(flat=False), inputs=SMALL)
    with pytest.raises(InputError, match=words):
        automap.validate(HOMES, small_torch(), small_port(flat=False), inputs=SMALL)
