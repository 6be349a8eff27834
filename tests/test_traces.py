"""Trace files: what is in them is what the network testifies itself, and one framework is enough on either side."""

from __future__ import annotations

import contextlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import automap
from automap import trace_file, witness
from automap.activations import Activations
from automap.dtypes import BFLOAT16, cast
from automap.errors import ConversionError, InputError, SourceError
from automap.graph import Listing, Param
from automap.inference import infer
from automap.mapping import Mapping
from automap.power import Weight
from automap.probing import InputSpec, Probe
from automap.running import Module
from automap.sources import open_source
from automap.trace_file import Record, Recorded, TraceSource
from automap.tracing import Call, Fingerprint, Trace
from automap.witness import Account

#: A network whose parts a trace has to bring along: a norm that is settled, a table of its own, a tied weight, a head
#: that is not used.
NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, wide=8):
        super().__init__()
        self.first = nn.Linear(5, wide)
        self.norm = nn.BatchNorm1d(wide)
        self.register_buffer("table", torch.linspace(1, 2, wide))
        self.second, self.third = nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.third.weight = self.second.weight
        self.head, self.spare = nn.Linear(wide, 3), nn.Linear(wide, 3)
    def forward(self, x):
        x = torch.relu(self.norm(self.first(x))) * self.table
        return {"scores": self.head(self.third(torch.tanh(self.second(x)))), "seen": (x,)}
build = Net
"""

PORT = """
import mindspore as ms
from mindspore import nn, ops
class Port(nn.Cell):
    def __init__(self, wide=8):
        super().__init__()
        self.entry, self.scaled = nn.Dense(5, wide), nn.BatchNorm1d(wide)
        self.steps = ms.Parameter(ms.ops.ones(wide), name="steps", requires_grad=False)
        self.left, self.right = nn.Dense(wide, wide), nn.Dense(wide, wide)
        self.right.weight = self.left.weight
        self.answer, self.other = nn.Dense(wide, 3), nn.Dense(wide, 3)
    def construct(self, x):
        x = ops.relu(self.scaled(self.entry(x))) * self.steps
        return {"scores": self.answer(self.right(ops.tanh(self.left(x)))), "seen": (x,)}
build = Port
"""

#: A command line where one framework is blocked; it prints the status and what is loaded.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name + " is blocked", name=sys.argv[1])
sys.meta_path.insert(0, Blocked())
from automap.cli import main
print(main(sys.argv[2:]), *(m for m in ("torch", "mindspore") if m in sys.modules))
"""

SPECS = ["float32[4,5]"]


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "port.py").write_text(PORT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(**changes: object) -> Record:
    """A record of all that a file has to hold, of no real network."""
    parameters = (Param("a.weight", (2, 3), "bfloat16", owner="Linear"), Param("a.table", (2,), "bfloat16", "buffer"))
    print_ = Fingerprint(6, (0.1, 0.25, 0.5, 0.125, -1.0, 1.0), axes=((2, 0.5, 0.25), (3, -1.0, 2.0)))
    trace = Trace(
        ("a.weight", "a.table"),
        {"a": Module("a", "Linear", (("weight", "a.weight"), ("table", "a.table")))},
        (Call("a", (print_, replace(print_, whole=True)), (), 0, 3), Call("a", (), (print_,), 3, 1)),
        (print_,),
        2,
    )
    made = {
        "listing": Listing("torch", parameters, "net.py:build"),
        "dtype": "bfloat16",
        "seeds": (7, 8),
        "probe": Probe((InputSpec("int64", (2, 3), 9), np.arange(6.0).reshape(2, 3)), ("ids", "x")),
        "weights": "sha256:0",
        "given": False,
        "settled": ({"a.weight": 0.1}, {}),
        "own": {"a.table": cast(np.float32([0.5, 3]), "bfloat16")[0], "n": np.asarray(2**40, "int64")},
        "account": Account(trace, (1e-3, 2e-3), {"output": 1e-7}),
        "spreads": ({"output": 1e-7}, {"output": 2e-7}),
        "outputs": ({"b": np.float32([1, np.inf]), "a": (None, "a word")}, (np.zeros((0, 2)),)),
        "weight": {"bfloat16": Weight(frozenset({"a.table"}), (("a.weight", "b"),))},
        "noise": {"tanh": [1e-4]},
        "versions": {"automap": "0"},
    }
    return Record(**(made | changes))


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b


# -- the file ----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    path, before = tmp_path / "a.trace", record()
    trace_file.write(before, path)
    after = trace_file.read(path)
    for name in ("listing", "probe", "own", "outputs"):
        values = [getattr(r, name) for r in (before, after)]
        if name == "listing":
            values = [x.parameters for x in values]
        elif name == "probe":
            values = [(x.items, x.names) for x in values]
        assert same(*values), name
    assert [f.axes for c in after.account.trace.calls for f in c.outputs] == [((2, 0.5, 0.25), (3, -1.0, 2.0))]
    rest = {"own": {}, "outputs": (), "probe": None, "listing": None}
    assert replace(before, **rest) == replace(after, **rest)
    assert after.listing.source == str(path)
    assert after.own["a.table"].dtype == BFLOAT16


def test_the_same_record_is_the_same_bytes(tmp_path):
    trace_file.write(record(), tmp_path / "a.trace")
    trace_file.write(record(), tmp_path / "b.trace")
    assert (tmp_path / "a.trace").read_bytes() == (tmp_path / "b.trace").read_bytes()


def rewritten(path: Path, **changes: object) -> None:
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    content = json.loads(members.pop("trace.json"))
    for key, value in changes.items():
        if value is None:
            del content[key]
        else:
            content[key] = value
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("trace.json", json.dumps(content))
        for name, data in members.items():
            if "outputs" not in changes:
                file.writestr(name, data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "automap-trace/2"}, "its format is 'automap-trace/2', this automap reads 'automap-trace/1'"),
        ({"format": None}, "its format is None"),
        ({"spreads": None}, "it lacks 'spreads'"),
        ({"tolerance": [1e-3]}, "2 calls have 1 tolerances"),
        ({"trace": []}, "is damaged"),
        ({"seeds": ["x"]}, "is damaged"),
        ({"outputs": [{"array": "outputs/0.npy"}]}, "There is no item named 'inputs/1.npy' in the archive"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path, changes, words):
    trace_file.write(record(), tmp_path / "a.trace")
    rewritten(tmp_path / "a.trace", **changes)
    with pytest.raises(SourceError) as error:
        open_source(str(tmp_path / "a.trace"), None)
    assert words in str(error.value)
    assert str(error.value).endswith("write it anew with automap trace")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda data: data[: len(data) // 2], "not a zip file"),
        (lambda data: b"", "it is empty"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (lambda data: data[:40] + bytes(40) + data[80:], "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, cut, words):
    path = tmp_path / "a.trace"
    trace_file.write(record(), path)
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(SourceError, match=words) as error:
        open_source(str(path), "torch")
    assert "write it anew with automap trace" in str(error.value)


def test_a_trace_stands_where_a_listing_does(tmp_path):
    path = tmp_path / "a.trace"
    trace_file.write(record(), path)
    source = open_source(path, None)
    assert (source.framework, source.model()) == ("torch", None)
    assert [p.name for p in source.listing()] == ["a.weight", "a.table"]
    with pytest.raises(SourceError, match="holds no tensors"):
        source.read()
    with pytest.raises(SourceError, match=r"a\.trace is a trace of PyTorch, given where MindSpore is expected"):
        open_source(path, "mindspore")
    with pytest.raises(SourceError, match="takes no arguments"):
        open_source(path, "torch", {"n": 1})
    port = Listing("mindspore", (Param("b.weight", (2, 3)), Param("b.table", (2,))))
    assert infer(path, port).torch_2_ms["a.weight"] == "b.weight"
    with pytest.raises(SourceError, match="no MindSpore network that can run, but trace demands a run"):
        infer(path, port, trace=True)


def test_what_matters_is_told_by_the_tolerance():
    output = np.float32([0.0, 1.0])
    sets = {"float32": Weight(frozenset({"a"})), "bfloat16": Weight(frozenset({"a", "b"}))}
    recorded = Recorded(record(weight=sets), Path("x"), None)
    testimony = witness.Testimony([], output, lambda name: output)
    assert recorded.weight(testimony, lambda where, a: 1e-5).idle == {"a"}
    assert recorded.weight(testimony, lambda where, a: 2e-3).idle == {"a", "b"}


def test_fingerprints_bear_with_the_coarser_type():
    assert Recorded(record(), Path("x"), None).account().tolerance == (1e-3, 2e-3)
    assert Recorded(record(), Path("x"), None, ("bfloat16",)).account().tolerance == (0.08, 0.08)


# -- the network -------------------------------------------------------------------------------------------------------


@pytest.mark.frameworks
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_trace_testifies_what_the_network_does(files, dtype):
    from automap import torch_runner
    from automap.trace_writer import typical_noise
    from automap.witness import Live

    net = open_source("net.py:build", "torch").model()
    net = net.to(getattr(__import__("torch"), dtype))
    listing = open_source(net, "torch").listing()
    source = automap.write_trace("a.trace", net, inputs=SPECS, seed=3, activations=True)
    recorded = source.witness(None, ())
    probe = Probe((InputSpec("float32", (4, 5)),))
    # Low precision is recorded in float32.
    runner = torch_runner.Runner(net)
    ran = {"float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)
    with runner.wide() if ran != dtype else contextlib.nullcontext(runner) as runner:
        _testifies(Live(runner, recorded.listing, probe, 3, None, None, typical_noise, ()), recorded, ran, listing)
    assert source.record.settled[0].keys() == {"norm.running_mean", "norm.running_var"}
    assert {"spare.weight", "spare.bias"} <= source.record.weight[ran].idle


def _testifies(live, recorded, dtype, listing):
    assert (recorded.seeds, recorded.dtype, recorded.described) == (live.seeds, dtype, live.described)
    for run in range(2):
        with live.testimony(run) as expected, recorded.testimony(run) as got:
            assert same(tuple(expected.inputs), tuple(got.inputs))
            assert same(expected.outputs, got.outputs)
            for p in listing:
                assert same(expected.value(p.name), got.value(p.name)), p.name
            if run == 0:
                ours, theirs = live.account(), recorded.account()
                assert [c.path for c in theirs.trace.calls] == [c.path for c in ours.trace.calls]
                assert [(c.seen, c.given) for c in theirs.trace.calls] == [(c.seen, c.given) for c in ours.trace.calls]
                assert np.allclose(theirs.tolerance, ours.tolerance)
                with Activations() as one, Activations() as two:
                    live_feed, recorded_feed = live.feed(one), recorded.feed(two)
                    for k in range(len(ours.trace.calls)):
                        before, after = live_feed(k)
                        assert same((tuple(before), tuple(after)), tuple(map(tuple, recorded_feed(k)))), k


@pytest.mark.frameworks
def test_one_framework_is_enough_on_either_side(files, run_python):
    line = ("trace", "net.py:build", "-o", "net.trace", "--input", *SPECS)
    done = run_python(BLOCKED, "mindspore", *line)
    assert done.stdout == "0 torch\n", done.stderr
    assert "not exercised 2: spare.weight, spare.bias" in done.stderr
    (files / "net.py").unlink()
    done = run_python(BLOCKED, "torch", "infer", "net.trace", "port.py:build", "--ignore-names", "-o", "blind.json")
    assert done.stdout == "1 mindspore\n", done.stderr  # the spare head is all that is left to names
    done = run_python(BLOCKED, "torch", "infer", "net.trace", "port.py:build", "--report", "r.html")
    assert done.stdout == "0 mindspore\n", done.stderr
    assert "proven 12 of 14: the outputs agree under 2 seeds" in done.stderr
    (files / "net.py").write_text(NET)
    live = infer("net.py:build", "port.py:build", inputs=SPECS)
    found = Mapping.read("mapping.json")
    assert found.torch_2_ms == live.torch_2_ms
    assert [e.evidence.get("proven") for e in found.entries] == [e.evidence.get("proven") for e in live.entries]
    assert found.torch.fingerprint == live.torch.fingerprint
    assert found.proof.not_exercised == live.proof.not_exercised == ("spare.weight", "spare.bias")


@pytest.mark.frameworks
def test_a_port_that_differs_is_not_proven(files):
    automap.write_trace("net.trace", "net.py:build", inputs=SPECS)
    (files / "bad.py").write_text(PORT.replace("ops.tanh", "ops.sigmoid"))
    for activations in (False, True):
        automap.write_trace("net.trace", "net.py:build", inputs=SPECS, activations=activations)
        mapping = infer("net.trace", "bad.py:build")
        assert mapping.proof.status != "proven"
        assert not any(e.evidence.get("proven") for e in mapping.entries)


@pytest.mark.frameworks
def test_a_run_on_a_checkpoint(files):
    import torch

    net = open_source("net.py:build", "torch").model()
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, "net.pth")
    automap.write_trace("net.trace", "net.py:build", inputs=SPECS, weights="net.pth")
    proof = infer("net.trace", "port.py:build", weights="net.pth").proof
    assert proof.status == "proven"
    live = infer("net.py:build", "port.py:build", inputs=SPECS, weights="net.pth").proof
    # The error of kernels is typical in a trace, and measured where MindSpore is.
    assert replace(proof, floor=None, allowed=None) == replace(live, floor=None, allowed=None)
    with pytest.raises(SourceError, match=r"net\.trace was recorded on a checkpoint: give it with --weights"):
        infer("net.trace", "port.py:build")
    with pytest.raises(SourceError, match=r"the weights are not the weights that net\.trace was recorded on"):
        infer("net.trace", "port.py:build", weights={k: v + 1 for k, v in net.state_dict().items()})
    with pytest.raises(ConversionError, match=r"the weights lack 2 parameter\(s\): head\.weight, head\.bias"):
        infer("net.trace", "port.py:build", weights={k: v for k, v in net.state_dict().items() if "head" not in k})
    automap.write_trace("net.trace", "net.py:build", inputs=SPECS)
    with pytest.raises(SourceError, match="recorded on seeded weights: leave the weights out"):
        infer("net.trace", "port.py:build", weights="net.pth")


@pytest.mark.frameworks
def test_a_trace_is_run_on_nothing_else(files):
    source = automap.write_trace("net.trace", "net.py:build", inputs=[np.ones((2, 5), np.float32)], seed=4)
    assert source.record.probe.fixed
    for option in ({"inputs": SPECS}, {"torch_forward": lambda net, x: net(x)}, {"seed": 5}):
        with pytest.raises(SourceError, match=r"given, but net\.trace holds one run, with its own"):
            infer("net.trace", "port.py:build", **option)
    assert infer("net.trace", "port.py:build", seed=4).proof.seeds == (4, 5)
    assert infer(source, "port.py:build").proof.seeds == (4, 5)


@pytest.mark.frameworks
def test_nothing_is_written_where_nothing_ran(files):
    (files / "odd.py").write_text(NET.replace("def forward(self, x):", "def forward(self, x):\n        x = x[:, :, 0]"))
    for call, error, words in (
        (
            lambda: automap.write_trace("n.trace", "net.py:build", inputs=["float32[4,6]"]),
            InputError,
            "does not run on",
        ),
        (lambda: automap.write_trace("n.trace", "odd.py:build"), InputError, "no input is given, and no guess fits"),
        (lambda: automap.write_trace("n.txt", "net.py:build"), SourceError, r"end it in \.trace"),
        (lambda: automap.write_trace("n.trace", {"a": np.zeros(2)}), SourceError, "no PyTorch network that can run"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert sorted(p.name for p in files.iterdir() if p.name != "__pycache__") == ["net.py", "odd.py", "port.py"]


@pytest.mark.frameworks
def test_a_lock_of_a_trace(files):
    automap.write_trace("net.trace", "net.py:build", inputs=SPECS)
    lock = automap.write_lock("a.lock", "net.trace", "port.py:build")
    assert (lock.exit_code, lock.mapping.proof.status) == (0, "proven")
    assert lock.verdict.startswith("proven by running both networks")
    assert automap.check("a.lock").drift == ()
    (files / "port.py").write_text(PORT.replace("ops.tanh", "ops.sigmoid"))
    assert any("no longer" in words or "grew" in words for words in automap.check("a.lock").drift)


def test_the_kinds_a_trace_is_judged_by():
    from automap.trace_writer import _kinds

    assert [_kinds(d) for d in ("float64", "float32", "float16", "bfloat16", "int8")] == [
        ["float64", "float32", "bfloat16"],
        ["float32", "bfloat16"],
        ["float16", "bfloat16"],
        ["bfloat16"],
        ["float32", "bfloat16"],
    ]


def test_a_trace_source_is_told_in_words(tmp_path):
    trace_file.write(record(), tmp_path / "a.trace")
    assert TraceSource(tmp_path / "a.trace").describe() == (
        "2 PyTorch parameters; 2 calls on seeded weights, seeds 7 and 8\n"
        "inputs ids=int64[2,3]<9, x=float64[2,3]\n"
        "not exercised 1: a.table"
    )
