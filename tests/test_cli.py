"""The command line: what is printed where, the files, the exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import automap
from automap import cli
from automap.errors import NotRunnableError
from automap.evidence import Proof
from automap.mapping import Entry, Mapping, Side, Unmatched
from automap.validation import Validation

FIXTURES = Path(__file__).parent.parent / "fixtures"
COMMANDS = ["params", "trace", "infer", "convert", "validate", "explain", "diff", "check", "layers"]

#: The same small network on both sides: name, MindSpore's name, shape.
NETWORK = [
    ("conv.weight", "conv.weight", (8, 3, 3, 3)),
    ("bn.weight", "bn.gamma", (8,)),
    ("bn.bias", "bn.beta", (8,)),
    ("bn.running_mean", "bn.moving_mean", (8,)),
    ("bn.running_var", "bn.moving_variance", (8,)),
    ("bn.num_batches_tracked", None, ()),
    ("fc.weight", "fc.weight", (5, 8)),
    ("fc.bias", "fc.bias", (5,)),
]


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """Runs a command line in this process, in the test's own folder."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> Done:
        capsys.readouterr()
        status = cli.main([str(a) for a in args])
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def listings(tmp_path) -> tuple[str, str]:
    """The small network as two listings, ``t.json`` and ``m.json``."""
    sides = {"torch": [(t, s) for t, _, s in NETWORK], "mindspore": [(m, s) for _, m, s in NETWORK if m]}
    for framework, rows in sides.items():
        parameters = [{"name": n, "shape": s, "dtype": "float32"} for n, s in rows]
        (tmp_path / f"{framework[0]}.json").write_text(json.dumps({"framework": framework, "parameters": parameters}))
    return "t.json", "m.json"


@pytest.fixture
def mapping(tmp_path) -> str:
    """The small network's true mapping, ``mapping.json``."""
    write_mapping(tmp_path / "mapping.json")
    return "mapping.json"


def write_mapping(path: Path, review: bool = False) -> None:
    pairs = [(t, m) for t, m, _ in NETWORK if m is not None]
    entries = [Entry((t,), (m,), review=review and t == "fc.bias", why="for a test") for t, m in pairs]
    counter = Unmatched("bn.num_batches_tracked", "a counter that MindSpore does not keep")
    Mapping(Side("t.json", 8, "sha256:1"), Side("m.json", 7, "sha256:2"), tuple(entries), (counter,)).write(path)


def write_checkpoint(path: Path, framework: str = "pt") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        (t if framework == "pt" else m): np.asarray(rng.standard_normal(s), np.float32)
        for t, m, s in NETWORK
        if framework == "pt" or m
    }
    save_file(arrays, path, {"format": framework})
    return arrays


def automap_process(*args: object, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "automap", *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, env=os.environ | changes
    )


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands_in_the_order_of_use(command):
    done = command("--help")
    assert (done.status, done.err) == (0, "")
    listed = [line.split()[0] for line in done.out.partition("Commands:\n")[2].partition("\n\n")[0].split("\n")]
    assert listed == COMMANDS
    assert "..." not in done.out.partition("Commands:\n")[2]  # no help is cut short


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(command, name):
    done = command(name, "--help")
    assert (done.status, done.err) == (0, "")
    assert f"  Example:\n    automap {name} " in done.out
    assert "--verbose" in done.out
    assert done == command(name, "-h")


def test_help_is_fast_and_loads_nothing(tmp_path):
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "automap", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
        assert done.stdout.startswith(b"Usage: automap ")
    assert min(seconds) < 0.5


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["infer", "--help"], ["nonsense"]])
def test_no_work_loads_no_library(run_python, args):
    code = (
        "import sys; from automap.cli import main; main(sys.argv[1:]);"
        "heavy = {'torch', 'mindspore', 'numpy', 'scipy', 'rich', 'networkx', 'rapidfuzz', 'safetensors'};"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    assert run_python(code, *args).stdout.endswith("loaded: []\n")


def test_version(command):
    assert command("--version") == Done(0, f"automap {automap.__version__}\n", "")


def test_the_installed_command_is_this_one():
    from importlib.metadata import entry_points

    (found,) = (e for e in entry_points(group="console_scripts") if e.name == "automap")
    assert found.load() is cli.main


# -- params ------------------------------------------------------------------------------------------------------------


def test_params_shows_a_table(command, listings):
    done = command("params", "t.json")
    assert done.status == 0
    assert done.out.split("\n")[:3] == [
        "name                    shape    dtype",
        "conv.weight             8×3×3×3  float32",
        "bn.weight               8        float32",
    ]
    assert done.err == "8 PyTorch parameters\n"


def test_params_writes_and_reads_its_files(command, listings):
    assert command("params", "m.json", "-o", "m.csv") == Done(0, "", "7 MindSpore parameters, written to m.csv\n")
    assert command("params", "m.csv", "--framework", "mindspore", "-o", "again.json").status == 0
    assert command("params", "again.json", "-o", "-").out == command("params", "m.json", "-o", "-").out
    assert json.loads(Path("again.json").read_text())["parameters"][1] == {
        "name": "bn.gamma",
        "shape": [8],
        "dtype": "float32",
    }


def test_params_takes_the_arguments_of_a_factory(command, tmp_path):
    (tmp_path / "net.py").write_text(
        "import numpy as np\n"
        "def build(n=1, text=''):\n"
        "    print('the user\\'s own words')\n"
        "    return {f'{text}.{i}': np.zeros((2,)) for i in range(n)}\n"
    )
    args = ("--framework", "torch", "--torch-arg", "n=2", "--torch-arg", "text=no json")
    done = command("params", "net.py:build", *args, "-o", "-")
    assert [p["name"] for p in json.loads(done.out)["parameters"]] == ["no json.0", "no json.1"]
    assert "the user's own words" in done.err


# -- infer -------------------------------------------------------------------------------------------------------------


def test_infer_writes_the_mapping_and_says_what_it_found(command, listings, tmp_path):
    done = command("infer", *listings)
    assert (done.status, done.out) == (0, "")
    lines = done.err.split("\n")
    assert lines[:5] == [
        "PyTorch    t.json  8 parameters",
        "MindSpore  m.json  7 parameters",
        "",
        "matched 7: 3 same name, 4 renamed",
        "to review 0",
    ]
    assert lines[5] == "unmatched in PyTorch 1:"
    assert lines[6].startswith("     1  bn.num_batches_tracked: ")
    assert "wrote mapping.json" in lines
    assert "  convert  automap convert mapping.json CHECKPOINT.pth -o CHECKPOINT.ckpt" in lines
    read = Mapping.read(tmp_path / "mapping.json")
    assert read.torch_2_ms == {t: m for t, m, _ in NETWORK if m}
    assert (read.torch.source, read.mindspore.source) == listings
    assert sorted(os.listdir(tmp_path)) == ["m.json", "mapping.json", "t.json"]


def test_infer_to_the_standard_output(command, listings, tmp_path):
    command("infer", *listings)
    done = command("infer", *listings, "-o", "-")
    assert done.out == (tmp_path / "mapping.json").read_text()
    assert "matched 7" in done.err
    assert "wrote" not in done.err


def test_infer_a_table_and_a_page(command, listings, tmp_path):
    done = command("infer", *listings, "-o", "m.csv", "--report", "r.html")
    assert done.status == 0
    assert (tmp_path / "m.csv").read_text().startswith("Pytorch,mindspore\nconv.weight,conv.weight\n")
    assert "<code>bn.<wbr>moving_<wbr>variance</code>" in (tmp_path / "r.html").read_text()
    assert "wrote m.csv\nwrote r.html\n" in done.err


def test_infer_without_shapes(command, tmp_path):
    for side, column in (("t", 0), ("m", 1)):
        names = [row[column] for row in NETWORK if row[column]]
        (tmp_path / f"{side}.csv").write_text("\n".join([",keys", *(f"{i},{n}" for i, n in enumerate(names))]))
    assert "matched 7: " in command("infer", "t.csv", "m.csv").err


def test_infer_hands_on_what_it_is_given(command, listings, monkeypatch):
    seen = {}

    def infer(torch, mindspore, **options):
        seen.update(options, sides=(torch.text, mindspore.text))
        return Mapping.read("given.json")

    write_mapping(Path("given.json"))
    monkeypatch.setattr("automap.inference.infer", infer)
    pins = ("--pin", "a=b", "--pin", "c.*=d.*")
    command("infer", *listings, *pins, "--static", "--ignore-names", "--seed", "7")
    assert seen == {
        "sides": listings,
        "pins": ("a=b", "c.*=d.*"),
        "static": True,
        "ignore_names": True,
        "seed": 7,
        "inputs": None,
        "trace": False,
        "weights": None,
        "merge_lora": None,
        "progress": seen["progress"],
    }
    command("infer", *listings, "--merge-lora", "alpha=8")
    assert seen["merge_lora"] == "alpha=8"
    assert (
        "--merge-lora is of no use with --lock"
        in command("infer", *listings, "--merge-lora", "alpha=8", "--lock", "l").err
    )
    command("infer", *listings, "--trace", "--weights", "w.pth", "--input", "float32[2,3]")
    assert (seen["trace"], seen["weights"], seen["inputs"]) == (True, "w.pth", ["float32[2,3]"])


def test_infer_exits_1_where_a_person_is_needed(command, listings, monkeypatch, tmp_path):
    write_mapping(tmp_path / "doubtful.json", review=True)
    monkeypatch.setattr("automap.inference.infer", lambda *_, **__: Mapping.read("doubtful.json"))
    done = command("infer", *listings)
    assert done.status == 1
    assert "to review 1:\n     1  fc.bias -> fc.bias: for a test\n" in done.err
    assert "automap explain mapping.json fc.bias" in done.err
    assert "--pin fc.bias=NAME" in done.err
    assert (tmp_path / "mapping.json").read_text() == (tmp_path / "doubtful.json").read_text()


def test_infer_tells_what_was_read(command, listings, tmp_path, monkeypatch):
    arrays = {f"module.{t}": np.zeros(s, np.float32) for t, _, s in NETWORK}
    save_file(arrays, tmp_path / "my net.safetensors", {"format": "pt"})
    done = command("infer", "my net.safetensors", "m.json")
    assert done.err.startswith("note: my net.safetensors: every name begins with 'module.', from a wrapper")
    assert "automap convert mapping.json 'my net.safetensors' -o 'my net.ckpt'" in done.err


def test_a_lock_is_written_and_checked(command, listings, tmp_path):
    assert command("infer", *listings, "--lock", "a.lock").err.count("wrote a.lock\n") == 1
    assert command("check", "a.lock") == Done(0, "a.lock: no drift\n", "")
    text = (tmp_path / "m.json").read_text()
    (tmp_path / "m.json").write_text(text.replace("[5, 8]", "[6, 8]").replace("[5]", "[6]"))
    done = command("check", "a.lock", "--junit", "a.xml")
    assert (done.status, done.err) == (1, "")
    assert "MindSpore parameter fc.bias changed its shape: was float32[5], now float32[6]" in done.out
    suite = ElementTree.parse(tmp_path / "a.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert command("check", "a.lock", "--update").status == 0
    assert command("check", "a.lock").out == "a.lock: no drift\n"


def test_check_exits_1_only_on_drift(command, listings, monkeypatch):
    from automap.regression import CheckReport

    monkeypatch.setattr("automap.regression.check", lambda path, update: CheckReport(path, ("it drifted",), (), update))
    assert command("check", "x.lock") == Done(1, "x.lock: 1 thing(s) drifted\n  it drifted\n", "")
    assert command("check", "x.lock", "--update").status == 0


# -- convert -----------------------------------------------------------------------------------------------------------


def test_convert_there_and_back(command, mapping, tmp_path):
    arrays = write_checkpoint(tmp_path / "t.safetensors")
    done = command("convert", mapping, "t.safetensors", "-o", "m.safetensors")
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("m.safetensors: 7 tensors, ")
    assert "left out 1:\n     1  bn.num_batches_tracked: a counter that MindSpore does not keep\n" in done.err
    made = load_file(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(made["bn.gamma"], arrays["bn.weight"])
    done = command("convert", mapping, "m.safetensors", "-o", "back.safetensors", "--reverse", "--dtype", "float16")
    assert "7 cast float32 -> float16" in done.err
    assert "not made 1:\n     1  bn.num_batches_tracked: " in done.err
    back = load_file(tmp_path / "back.safetensors")
    np.testing.assert_array_equal(back["bn.weight"], arrays["bn.weight"].astype(np.float16))


def test_convert_exits_1_where_the_mapping_needs_review(command, tmp_path):
    write_mapping(tmp_path / "m.json", review=True)
    write_checkpoint(tmp_path / "t.safetensors")
    done = command("convert", "m.json", "t.safetensors", "-o", "m.safetensors")
    assert done.status == 1
    assert done.err.endswith("something in m.json is marked for review: automap explain m.json NAME says why\n")
    assert (tmp_path / "m.safetensors").exists()


def test_convert_to_a_target(command, mapping, listings, tmp_path):
    write_checkpoint(tmp_path / "t.safetensors")
    text = (tmp_path / "m.json").read_text()
    (tmp_path / "m.json").write_text(text.replace("[5, 8]", "[5, 1, 8]").replace('"float32"', '"float16"'))
    done = command("convert", mapping, "t.safetensors", "-o", "m.safetensors", "--target", "m.json")
    assert done.status == 0
    assert "1 reshaped by dimensions of size 1" in done.err
    assert load_file(tmp_path / "m.safetensors")["fc.weight"].shape == (5, 1, 8)


def test_convert_to_other_lengths(command, tmp_path):
    tensors = {"embed": np.ones((5, 2), np.float32), "pos": np.ones((1, 17, 2), np.float32)}
    save_file(tensors, tmp_path / "t.safetensors", {"format": "pt"})
    (tmp_path / "m.csv").write_text("Pytorch,mindspore\nembed,embed\npos,pos\n")
    (tmp_path / "target.csv").write_text("name,shape\nembed,8x2\npos,1x37x2\n")
    line = ("convert", "m.csv", "t.safetensors", "-o", "m.safetensors", "--target", "target.csv")
    done = command(*line)
    assert done.status == 2
    assert "2 of another length: embed (becomes [5, 2], but embed is [8, 2]), pos (becomes [1, 17, 2], but" in done.err
    assert "--resize" in done.err
    done = command(*line, "--resize", "--pad-vocab", "0.5")
    assert "pos (interpolated from 1 + 4x4 to 1 + 6x6 (cubic))" in done.err
    done = command(*line, "--resize-as", "pos=1+4x4:6x6,linear", "--pad-vocab", "emb*=0.5")
    assert done.status == 0
    assert "embed (axis 0 filled up with 0.5 from 5 to 8)" in done.err
    assert "pos (interpolated from 1 + 4x4 to 1 + 6x6 (linear))" in done.err
    assert load_file(tmp_path / "m.safetensors")["embed"][5:].tolist() == [[0.5, 0.5]] * 3
    assert "is no number" in command(*line, "--pad-vocab", "zero").err


@pytest.mark.parametrize(("flag", "value"), [("--allow-nan", np.nan), ("--allow-overflow", 1e6)])
def test_convert_lets_pass_what_is_asked_for(command, mapping, tmp_path, flag, value):
    arrays = write_checkpoint(tmp_path / "t.safetensors")
    arrays["fc.bias"][2] = value
    save_file(arrays, tmp_path / "t.safetensors", {"format": "pt"})
    line = ("convert", mapping, "t.safetensors", "-o", "m.safetensors", "--dtype", "float16")
    assert command(*line).status == 2
    assert command(*line, flag).status == 0


# -- validate, explain, diff -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 3, 4])
def test_validate_exits_as_the_validation_says(command, monkeypatch, mapping, status):
    seen = {}

    def validate(*sources, **options):
        seen.update(options, sources=sources)
        return Validation(status == 0, "The verdict.", status, assumptions=("a guess",))

    monkeypatch.setattr("automap.validation.validate", validate)
    args = ("--torch-arg", "n=[1]", "--ms-arg", "m=x", "--weights", "w.pth", "--rtol", "1e-4", "--atol", "1e-6")
    inputs = ("--input", "float32[2,3]", "--input", "int64[2]<9")
    done = command("validate", mapping, "a:b", "c:d", *args, *inputs, "--seed", "3")
    assert done == Done(status, "The verdict.\n  a guess\n", "")
    training = {"steps": 0, **dict.fromkeys(("batches", "loss", "lr", "optimizer", "target", "weight_decay", "step"))}
    training |= {"go_on": False, "schedule_every": 1}
    assert {k: seen.pop(k, "missing") for k in training} == training
    assert seen == {
        "sources": (mapping, "a:b", "c:d"),
        "torch_args": {"n": [1]},
        "ms_args": {"m": "x"},
        "weights": "w.pth",
        "rtol": 1e-4,
        "atol": 1e-6,
        "inputs": ["float32[2,3]", "int64[2]<9"],
        "seed": 3,
        "grad": False,
        "curvature": 0,
        "hessian_eigenvalue": False,
        "per_layer": False,
    }
    command("validate", mapping, "a:b", "c:d", "--per-layer")
    assert seen["per_layer"] is True
    for flags, expected in (
        (["--grad"], (True, 0, False)),
        (["--curvature"], (False, True, False)),
        (["--curvature", "--directions", "5", "--hessian-eigenvalue"], (False, 5, True)),
    ):
        command("validate", mapping, "a:b", "c:d", *flags)
        assert (seen["grad"], seen["curvature"], seen["hessian_eigenvalue"]) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--go-on"], "'--go-on': it is of use with --steps only"),
        (["--steps", "3", "--go-on"], "'--go-on': it is of use with --weights only"),
        (["--steps", "3", "--from-step", "5"], "'--from-step': it is of use with --go-on only"),
        (["--schedule-every", "2"], "'--schedule-every': it is of use with --steps only"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(command, mapping, flags, message):
    done = command("validate", mapping, "a:b", "c:d", *flags)
    assert done.status == 2
    assert message in done.err


@pytest.mark.parametrize(
    ("proof", "status"), [("proven", 0), ("open", 1), ("differs", 3), ("not run", 4), ("no input", 0)]
)
@pytest.mark.parametrize("review", [False, True])
def test_infer_exits_as_the_proof_says(command, listings, monkeypatch, review, proof, status):
    write_mapping(Path("given.json"), review)
    made = replace(Mapping.read("given.json"), proof=Proof(proof, "as it is", (0, 1)))
    monkeypatch.setattr("automap.inference.infer", lambda *_, **__: made)
    done = command("infer", *listings)
    assert done.status == (1 if review else status)
    assert str(made.proof).rpartition("networks: ")[2] in done.err
    assert ("\n  convert " in done.err) is not review


@pytest.mark.parametrize(
    ("status", "torch", "step"),
    [
        ("proven", "a:b", "convert"),
        ("open", "a:b", "find out what differs"),
        ("differs", "a:b", "convert"),
        ("not run", "a:b", "run both networks"),
        ("open", "a.trace", "see past what differs"),
    ],
)
def test_what_to_do_next(mapping, tmp_path, status, torch, step):
    from automap.cli_models import _next_steps

    made = replace(Mapping.read(tmp_path / mapping), proof=Proof(status))
    lines = _next_steps(made, "m.json", torch, "c:d", proven=status == "proven")
    assert lines[2].startswith(f"  {step}")
    assert ("--per-layer" in lines[2]) == (status == "open" and torch == "a:b")


@pytest.mark.parametrize("option", [("--input", "float32[2,3]"), ("--trace",), ("--weights", "w.pth")])
def test_a_run_is_asked_of_listings(command, listings, option):
    done = command("infer", *listings, *option)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("automap: error: t.json is no PyTorch network that can run, but ")
    assert "give a class or factory" in done.err
    assert not Path("mapping.json").exists()


def test_explain(command, mapping):
    done = command("explain", mapping, "bn.moving_mean")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("bn.running_mean -> bn.moving_mean\n  confidence 1\n")


def test_diff(command, mapping, tmp_path):
    write_mapping(tmp_path / "other.json", review=True)
    assert command("diff", mapping, mapping) == Done(0, "no difference\n", "")
    done = command("diff", mapping, "other.json")
    assert done == Done(1, "1 difference(s):\n     1  fc.bias: marked for review in other.json only: for a test\n", "")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nonsense"], "No such command 'nonsense'; see automap --help"),
        (["infer"], "Missing argument 'TORCH'; see automap infer --help"),
        (["infer", "a.json"], "Missing argument 'MINDSPORE'; see automap infer --help"),
        (["infer", "a", "b", "--sed", "1"], "No such option '--sed'"),
        (["infer", "a", "b", "--seed", "x"], "Invalid value for '--seed': 'x' is not a valid integer"),
        (["infer", "a", "b", "-o", "x.ckpt"], "x.ckpt must end in .json or .csv"),
        (["infer", "a", "b", "-o", "no/x.json"], "no/x.json cannot be written: there is no folder no"),
        (["infer", "a", "b", "--report", "."], ". must end in .html or .htm"),
        (["infer", "a", "b", "--lock", "."], ". is a folder: name a file"),
        (["infer", "a", "b", "--torch-arg", "n"], "'n' is no name=value, such as num_classes=3"),
        (["infer", "a", "b", "--input", "float32[2]", "--inputs", "x.npz"], "--input and --inputs exclude each other"),
        (["infer", "a", "b", "--input", "float32[2]", "--static"], "--input is of no use with it"),
        (["infer", "a", "b", "--trace", "--static"], "--trace is of no use with it"),
        (["infer", "a", "b", "--weights", "w.pth", "--static"], "--weights is of no use with it"),
        (["infer", "a", "b", "--weights", "w.pth", "--lock", "a.lock"], "--weights is of no use with --lock"),
        (["trace", "net.py:build"], "Missing option '-o' / '--output'"),
        (["trace", "net.py:build", "-o", "x.json"], "x.json must end in .trace"),
        (["convert", "m.json", "x.pth"], "Missing option '-o' / '--output'"),
        (["params", "x.csv", "--framework", "tf"], "'tf' is not one of 'torch', 'mindspore'"),
        (["validate", "m.json", "a:b", "c:d", "--rtol", "-1"], "-1.0 is not in the range"),
        (["validate", "m.json", "a:b", "c:d", "--directions", "2"], "'--directions': it is of use with --curvature"),
    ],
)
def test_bad_usage_exits_2_in_one_line(command, args, words):
    done = command(*args)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("automap: error: ")
    assert done.err.count("\n") == 1
    assert words in done.err
    assert "--help" in done.err


def test_the_command_alone_shows_its_help(command):
    done = command()
    assert (done.status, done.out) == (2, "")
    assert done.err == command("--help").out


def test_what_is_read_is_not_written_over(command, listings, tmp_path):
    before = (tmp_path / "t.json").read_text()
    done = command("infer", *listings, "-o", "./t.json")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "./t.json is read as a source: choose another name" in done.err
    assert (tmp_path / "t.json").read_text() == before


def test_an_error_knows_its_exit_status(command, mapping, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise NotRunnableError("no kernel for\n  InstanceNorm", "InstanceNorm")

    monkeypatch.setattr("automap.validation.validate", fail)
    assert command("validate", mapping, "a:b", "c:d") == Done(4, "", "automap: error: no kernel for InstanceNorm\n")


def test_a_fault_of_our_own_asks_for_a_report(command, mapping, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("automap.report.explain", fail)
    done = command("explain", mapping, "x")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "automap: error: unexpected RuntimeError: two lines; "
        "this is a fault in automap: please report it with what --verbose prints\n"
    )
    for args in (("--verbose", "explain", mapping, "x"), ("explain", mapping, "x", "--verbose")):
        done = command(*args)
        assert (done.status, done.out) == (2, "")
        assert done.err.startswith("Traceback (most recent call last):\n")
        assert "two lines; this is a fault" in done.err


def test_ctrl_c_exits_130_without_words(command, mapping, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("automap.report.explain", stop)
    done = command("explain", mapping, "x")
    assert (done.status, done.out, done.err.strip()) == (130, "", "")


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    names = "\n".join(f"layer.{i}.weight" for i in range(20_000))
    (tmp_path / "t.csv").write_text(f"name\n{names}\n")
    line = [sys.executable, "-m", "automap", "params", "t.csv", "--framework", "torch"]
    # Python itself drops what an unbuffered stream cannot write.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"name\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_warnings_of_others_are_not_shown(command, mapping, monkeypatch):
    import warnings

    def explain(*_: object) -> str:
        warnings.warn("noise", stacklevel=1)
        return "words"

    monkeypatch.setattr("automap.report.explain", explain)
    monkeypatch.setattr("sys.warnoptions", [])
    assert command("explain", mapping, "x") == Done(0, "words\n", "")


def test_complaints_of_dying_objects_are_not_shown(tmp_path):
    (tmp_path / "net.py").write_text(
        "import numpy as np\n"
        "class Cell:\n"
        "    def __del__(self):\n"
        "        raise AttributeError('half built')\n"
        "alive = Cell()\n"
        "def build():\n"
        "    Cell()\n"
        "    return {'a': np.zeros(2)}\n"
    )
    line = ("params", "net.py:build", "--framework", "torch")
    assert automap_process(*line, cwd=tmp_path).stderr == "1 PyTorch parameter\n"
    assert automap_process(*line, "--verbose", cwd=tmp_path).stderr.count("Exception ignored in") == 2


def test_names_that_the_terminal_cannot_show(tmp_path):
    write_mapping(tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text(encoding="utf-8").replace("fc.bias", "fc.b\u0436as")
    (tmp_path / "m.json").write_text(text, encoding="utf-8")
    done = automap_process("explain", "m.json", "fc.b*", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert done.stdout.startswith("fc.b\\u0436as -> fc.b\\u0436as\n")


# -- on a terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_terminal_gets_colours_and_progress(listings, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")} | {"TERM": "xterm-256color"}
    line = [sys.executable, "-m", "automap", "infer", *listings]
    process = subprocess.Popen(line, cwd=tmp_path, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert "Matching 8 PyTorch and 7 MindSpore parameters …".encode() in seen
    assert b"\x1b[32m\x1b[1mmatched 7: 3 same name, 4 renamed\x1b[0m" in seen


# -- the real thing ----------------------------------------------------------------------------------------------------


@pytest.mark.frameworks
def test_live_networks_leave_no_noise_and_no_litter(tmp_path):
    networks = [FIXTURES / "transformer" / "torch_net.py:build", FIXTURES / "transformer" / "ms_net.py:build"]
    done = automap_process("infer", *networks, "--lock", "a.lock", "-o", "-", cwd=tmp_path)
    assert done.returncode in (0, 1)
    made = Mapping.from_json(done.stdout)
    assert len(made) == 54
    assert made.torch.source == str(networks[0])
    ours = (
        "PyTorch  ",
        "MindSpore  ",
        "matched ",
        "proven 51 of 54: ",
        "not exercised 3",
        "to review ",
        "unmatched in ",
        "     ",
        "wrote ",
    )
    assert [line for line in done.stderr.split("\n") if line and not line.startswith(ours)] == []
    assert "wrote a.lock: The outputs agree in 2 runs on different inputs: off by at most " in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.lock"]
    truth = Mapping.read(FIXTURES / "transformer" / "truth.csv").torch_2_ms
    wrong = [e for e in made.entries if not e.review and truth[e.torch[0]] != e.mindspore[0]]
    assert wrong == []


@pytest.mark.frameworks
def test_checkpoints_of_both_frameworks_leave_no_noise(tmp_path):
    import torch

    state = {"module.head.bias": torch.ones(2), "module.bn.num_batches_tracked": torch.zeros(())}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "a.pth")
    (tmp_path / "m.csv").write_text("Pytorch,mindspore\nhead.bias,out.bias\n")
    done = automap_process("convert", "m.csv", "a.pth", "-o", "a.ckpt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    first, *others = done.stderr.split("\n")
    assert first.startswith("a.ckpt: 1 tensors, ")
    assert others == ["left out 1:", "     1  bn.num_batches_tracked: a counter that MindSpore does not keep", ""]
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "a.pth", "m.csv"]
