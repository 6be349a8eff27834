"""The benchmarks count what they say they count."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import automap

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


peers, scale, faults, cost = load("peers"), load("scale"), load("faults"), load("cost")
transforms = load("transforms")
sys.path.insert(0, str(BENCHMARKS))  # kills.py takes the checkpoint of convert.py
convert, kills = load("convert"), load("kills")

PAIR: dict[str, Any] = {
    "mapping": {"a.weight": "x.weight", "emb.weight": "e.embedding_table"},
    "composite": [{"torch": ["qkv"], "mindspore": ["q", "k", "v"]}],
    "tied": [["emb.weight", "head.weight"]],
    "either": [["position_ids", "ids"]],
}
RIGHT = {
    (("a.weight",), ("x.weight",)): False,
    (("head.weight",), ("e.embedding_table",)): False,  # the other name of a tied tensor
    (("qkv",), ("q", "k", "v")): False,
    (("position_ids",), ("ids",)): False,  # may be mapped
}


def test_everything_right_is_exact() -> None:
    assert peers.score(PAIR, RIGHT) == peers.Score(right=3, wrong=0, marked=0, missing=0, exact=True)


def test_an_entry_too_many_is_wrong() -> None:
    entries = {**RIGHT, (("b",), ("y",)): True}
    assert peers.score(PAIR, entries) == peers.Score(right=3, wrong=1, marked=1, missing=0, exact=False)


def test_another_partner_is_wrong_and_the_true_one_missing() -> None:
    entries = {k: v for k, v in RIGHT.items() if k[0] != ("a.weight",)}
    entries[("a.weight",), ("z.weight",)] = False
    assert peers.score(PAIR, entries) == peers.Score(right=2, wrong=1, marked=0, missing=1, exact=False)


def test_no_answer_is_all_missing() -> None:
    assert peers.score(PAIR, {}) == peers.Score(right=0, wrong=0, marked=0, missing=3, exact=False)


@pytest.mark.parametrize("size", [300, 1000])
def test_the_synthetic_port_has_every_parameter_once(size: int) -> None:
    listing = list(scale.network(size))
    port = list(scale.port(listing))
    truth = {name: scale.mindspore_name(name) for name, _ in listing}
    shapes = dict(port)
    assert len(shapes) == len(port)
    assert len({name for name, _ in listing}) == len(listing)
    assert sorted(m for m in truth.values() if m is not None) == sorted(shapes)
    assert all(shapes[truth[name]] == shape for name, shape in listing if truth[name] is not None)
    assert abs(len(port) - size) < 0.05 * size
    assert truth["encoder.layers.3.self_attn.q_proj.weight"] == "transformer.cells.3.mix.wq.weight"
    assert truth["backbone.stages.0.1.bn1.running_mean"] == "cnn.groups.0.1.first.scale.moving_mean"


def test_exponent_of_known_growth() -> None:
    sizes = [1000, 2000, 10000]
    assert scale.exponent(sizes, [0.001 * s for s in sizes]) == pytest.approx(1)
    assert scale.exponent(sizes, [1e-6 * s * s for s in sizes]) == pytest.approx(2)


def test_measure_reports_status_and_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "x = bytearray(80 << 20); raise SystemExit(3)"]
    seconds, megabytes, status = scale.measure(command, tmp_path)
    assert status == 3
    assert megabytes > 80
    assert seconds > 0


# ------------------------------------------------------------------------------------------------------------- faults


@dataclass(frozen=True)
class Finding:
    setting: str
    torch: tuple[str, ...] = ()
    mindspore: tuple[str, ...] = ()
    words: str = ""
    cause: str = ""


class Net:
    """Layers by name only."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def named_modules(self) -> list[tuple[str, None]]:
        return [(path, None) for path in ("", *self.paths)]


TWICE = faults.Pair(Net("a.0", "a.1", "b"), Net("x.0", "x.1", "y", "z"), None, [])


def fault(cause: str, torch: str, mindspore: str) -> Any:
    where = [tuple(tuple(group.split("|")) for group in side.split("&")) for side in (torch, mindspore)]
    return faults.Fault("none", cause, where[0], where[1], ())


@pytest.mark.parametrize(
    ("planted", "findings", "answer"),
    [
        (("eps", "a.*", "x.*"), [Finding("epsilon", (), ("x.0", "x.1"))], (True, 0)),
        (("eps", "a.*", "x.*"), [Finding("eps", (), ("x.0",)), Finding("eps", (), ("x.1",))], (True, 0)),
        (("eps", "a.*", "x.*"), [Finding("eps", (), ("x.0",))], (False, 0)),  # not everywhere
        (("eps", "a.*", "x.*"), [Finding("eps", ("a.0", "a.1"), ())], (True, 0)),
        (("eps", "a.*", "x.*"), [Finding("bias", (), ("x.0", "x.1"))], (False, 1)),  # another cause
        (("eps", "b", "y"), [Finding("eps", ("a.0",), ("x.0",))], (False, 1)),  # another layer
        (("eps", "b", "y"), [Finding("eps", (), ("y", "z"))], (False, 1)),  # one layer too many
        (("eps", "b", "y"), [Finding("eps", (), ("y",)), Finding("eps", (), ("z",))], (True, 1)),
        (("order", "b", "y"), [Finding("order", (), ("y", "z"))], (True, 0)),  # between them
        (("order", "b", "y|z"), [Finding("order", (), ("z",))], (True, 0)),
        (("order", "b", "y&z"), [Finding("order", (), ("z",))], (False, 0)),
        (("eps", "c", "w"), [Finding("eps", (), ("y",))], (False, 1)),  # a pattern for no layer is no free pass
        (("eps", "b", "y"), [], (False, 0)),
    ],
)
def test_a_fault_is_named_by_its_cause_at_all_of_its_layers(planted: Any, findings: Any, answer: Any) -> None:
    assert faults.judge(fault(*planted), TWICE, findings) == answer


@pytest.mark.parametrize("network", faults.networks())
def test_every_fault_is_an_edit_of_its_port_that_still_is_a_program(network: str) -> None:
    texts = {faults.planted(f) for f in faults.faults_of(network)}
    assert len(texts) == len(faults.faults_of(network)) >= 5
    for text in texts:
        compile(text, network, "exec")


def test_the_faults_are_of_many_kinds() -> None:
    planted = [f for network in faults.networks() for f in faults.faults_of(network)]
    assert len(faults.networks()) >= 10
    assert len({f.cause for f in planted}) >= 12


@pytest.mark.frameworks
def test_a_correct_port_agrees_and_faults_show() -> None:
    mapping = faults.true_mapping("convnet")
    assert faults.numbers(faults.pair("convnet", mapping), None)[0]
    chosen = {f.cause: f for f in faults.faults_of("convnet")}
    for cause in ("eps", "momentum"):
        both = faults.pair("convnet", mapping, chosen[cause])
        assert not faults.unknown(chosen[cause], both)
        shows, words = faults.numbers(both, chosen[cause])
        assert shows, words


@pytest.mark.frameworks
@pytest.mark.parametrize(("mindspore", "named"), [("head", 1), ("stem.0", 0)])
def test_the_driver_counts(
    mindspore: str, named: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def validate(mapping: Any, torch: Any, port: Any, **_: Any) -> SimpleNamespace:
        correct = port.head.has_bias
        found = () if correct else (Finding("has_bias", (), (mindspore,)), Finding("eps", (), ("stem.1",)))
        return SimpleNamespace(findings=found, passed=correct, verdict="")

    monkeypatch.setattr(faults.automap, "validate", validate)
    assert faults.main(["--only", "resnet: bias"]) == 1 - named
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{named} of 1 faults named at the right layer with the right cause; 0 false alarms")
    assert f"; {2 - named} findings of something else" in last


@pytest.mark.frameworks
@pytest.mark.parametrize("network", faults.networks())
def test_the_layers_of_every_fault_are_there(network: str) -> None:
    both = faults.pair(network, faults.true_mapping(network))
    assert {f.where: faults.unknown(f, both) for f in faults.faults_of(network)} == {
        f.where: [] for f in faults.faults_of(network)
    }


@pytest.mark.frameworks
@pytest.mark.parametrize("network", ["convolutions", "attention"])
def test_the_cost_of_a_proof_is_measured(network: str) -> None:
    found = cost.measure(network, 0.05, infer=True, repeat=1)
    assert found["infer"] > 0
    assert found["parameters"] > 1e4


def test_no_transform_costs_more_than_a_copy() -> None:
    for what, _, _, copies in transforms.measured(4):
        assert copies < 1.4, what  # of 4 megabytes, to which the blocks come
        if what in ("transposed", "a dimension more", "contiguous q, k, v", "heads interleaved, apart"):
            assert copies < 0.01


def test_the_checkpoint_of_the_conversion_benchmark_is_one_that_its_mapping_fits(tmp_path: Path) -> None:
    rows = convert.rows_of(400_000, 32, 64)
    size = convert.write_checkpoint(tmp_path / "hf", rows, 100_000)
    assert abs(size - 400_000) < 40_000
    (tmp_path / "mapping.json").write_text(json.dumps(convert.mapping_of(rows)))
    report = automap.convert(tmp_path / "mapping.json", tmp_path / "hf", tmp_path / "ms")
    assert len(report.files) > 2
    assert report.tensors == report.verified == sum(3 if "qkv" in name else 1 for name, _ in rows)
    seconds, memory = convert.run([sys.executable, "-c", "import time; x = b'1' * 30_000_000; time.sleep(0.2)"])
    assert 0.2 < seconds < 20
    assert memory > 30_000_000


def test_what_a_kill_leaves_is_compared(tmp_path: Path) -> None:
    whole = {"a": b"1", "b": b"2"}
    out, staged = tmp_path / "out", tmp_path / "out.automap-partial" / "whole"
    assert kills.wrong_files(out, whole) == []
    for folder in (out, staged):
        folder.mkdir(parents=True)
    (staged / "a").write_bytes(b"1")
    assert kills.wrong_files(out, whole) == []
    (out / "a").write_bytes(b"1")
    assert kills.wrong_files(out, whole) == ["out: some of its files only"]
    (out / "b").write_bytes(b"")
    (staged / "b").write_bytes(b"3")
    assert kills.wrong_files(out, whole) == ["out: b", "complete: b"]
