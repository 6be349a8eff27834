"""What users get wrong: exit status 2 and one line that names the place and says what to do, never a traceback."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from automap import cli

TORCH = {"conv.weight": (4, 3, 3, 3), "fc.weight": (2, 4), "fc.bias": (2,)}
MINDSPORE = {"conv.weight": (4, 3, 3, 3), "fc.weight": (2, 4), "fc.bias": (2,)}

NETWORKS = {
    "tnet.py": """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self, classes=2):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3, bias=False)
                self.fc = nn.Linear(4, classes)
            def forward(self, x):
                return self.fc(self.conv(x).mean((2, 3)))
        class Empty(nn.Module):
            pass
        def build():
            return Net()
        def broken():
            raise ValueError("no weights\\nhere")
        number = 3
        """,
    "mnet.py": """
        from mindspore import nn
        class Net(nn.Cell):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3, pad_mode="valid")
                self.fc = nn.Dense(4, 2)
            def construct(self, x):
                return self.fc(self.conv(x).mean((2, 3)))
        class Empty(nn.Cell):
            pass
        class Broken(nn.Cell):
            def __init__(self):
                raise RuntimeError("before the cell is one")
        """,
}

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd) -> Refused:
    """Runs a command line that has to be refused in one line, and gives the line."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> str:
        capfd.readouterr()
        status = cli.main([str(a) for a in args])
        out, err = capfd.readouterr()
        assert (status, out) == (2, "")
        assert err.startswith("automap: error: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in err
        return err.removeprefix("automap: error: ").rstrip("\n")

    return run


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """Two listings, a mapping and a checkpoint in which nothing is wrong, and the networks they belong to."""
    for framework, shapes in (("torch", TORCH), ("mindspore", MINDSPORE)):
        parameters = [{"name": n, "shape": s} for n, s in shapes.items()]
        write(tmp_path / f"{framework[0]}.json", {"framework": framework, "parameters": parameters})
    write(tmp_path / "mapping.json", mapping())
    save_file(weights(), tmp_path / "t.safetensors", {"format": "pt"})
    for name, code in NETWORKS.items():
        (tmp_path / name).write_text("\n".join(line[8:] for line in code.split("\n")))


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def mapping() -> dict[str, object]:
    side = {"source": "", "parameters": 3, "fingerprint": ""}
    entries = [{"torch": [n], "mindspore": [n], "confidence": 1, "review": False} for n in TORCH]
    unmatched = {"torch": [], "mindspore": []}
    return {"format": "automap/1", "torch": side, "mindspore": side, "entries": entries, "unmatched": unmatched}


def weights() -> dict[str, np.ndarray]:
    return {n: np.full(s, 0.5, np.float32) for n, s in TORCH.items()}


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["none.json", "none.csv", "none.pth", "none.safetensors", "none.ckpt", "none.py:build"]
)
def test_no_such_file(refused, name):
    line = refused("infer", name, "m.json")
    assert line.startswith(f"there is no file {name.partition(':')[0]}: check the path (the working folder is ")


def test_no_such_mapping_lock_or_inputs(refused):
    assert refused("explain", "none.json", "x") == "none.json: no such file; write it with automap infer"
    assert refused("diff", "mapping.json", "none.csv") == "none.csv: no such file; write it with automap infer"
    assert refused("check", "none.lock") == "no such lock file: none.lock; automap infer --lock writes one"
    line = refused("validate", "mapping.json", "a:b", "c:d", "--inputs", "none.npz")
    assert line == "no such file of inputs: none.npz"


def test_something_that_is_no_source(refused):
    assert refused("infer", "resnet50", "m.json").startswith("'resnet50' is no source: give a file (.pth ")
    assert refused("infer", "tnet.py", "m.json") == (
        "tnet.py is a Python file: name the class or factory in it, as tnet.py:build"
    )


def test_no_such_module(refused):
    assert refused("infer", "nowhere.models:net", "m.json") == (
        "there is no module 'nowhere' for nowhere.models:net: run automap in the folder that holds it, install it, "
        "or give its file as path/to/file.py:attr"
    )


@pytest.mark.frameworks
def test_no_such_attribute(refused):
    assert refused("infer", "tnet.py:bild", "m.json") == (
        "tnet.py has no 'bild', which tnet.py:bild names; did you mean build?"
    )


@pytest.mark.frameworks
def test_a_factory_that_raises(refused, tmp_path, monkeypatch, capfd):
    line = refused("infer", "tnet.py:broken", "m.json")
    assert line == "tnet.py:broken raised ValueError: no weights here (--verbose shows the traceback)"
    assert cli.main(["infer", "tnet.py:broken", "m.json", "--verbose"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert f'File "{tmp_path}/tnet.py", line ' in err
    assert err.endswith("automap: error: tnet.py:broken raised ValueError: no weights here\n")


@pytest.mark.frameworks
def test_a_cell_that_raises_before_it_is_one(refused):
    line = refused("infer", "t.json", "mnet.py:Broken")
    assert line.startswith("mnet.py:Broken raised RuntimeError: before the cell is one")


@pytest.mark.frameworks
def test_arguments_that_do_not_fit(refused):
    line = refused("params", "tnet.py:Net", "--torch-arg", "clases=3")
    assert line.startswith("tnet.py:Net raised TypeError: ")
    assert "give its arguments as name=value (--torch-arg, --ms-arg" in line
    line = refused("infer", "t.json", "m.json", "--ms-arg", "n=3")
    assert line == "m.json is a file and takes no arguments (n)"


@pytest.mark.frameworks
def test_what_is_no_model(refused):
    assert refused("params", "tnet.py:number").startswith("tnet.py:number is an int: give a model, a class or factory")


@pytest.mark.frameworks
def test_an_empty_model(refused):
    assert refused("infer", "tnet.py:Empty", "m.json") == (
        "tnet.py:Empty lists no parameter: is it the right model or file?"
    )
    assert refused("infer", "t.json", "mnet.py:Empty").startswith("mnet.py:Empty lists no parameter: ")


@pytest.mark.frameworks
def test_a_text_file_called_pth(refused, tmp_path):
    (tmp_path / "t.pth").write_text("these are no weights\n")
    assert refused("infer", "t.pth", "m.json") == (
        "t.pth is not a PyTorch checkpoint: it is a text file; check the name and the extension"
    )
    assert refused("convert", "mapping.json", "t.pth", "-o", "m.safetensors").startswith("t.pth is not a PyTorch check")


class Evil:
    def __reduce__(self):
        return print, ("this code must not run",)


@pytest.mark.frameworks
def test_a_pickle_with_code_in_it(refused, tmp_path):
    import torch

    torch.save({"weight": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Evil()))
    line = refused("infer", "evil.pth", "m.json")
    assert line.startswith("evil.pth holds code or objects of Python (")
    assert "so it is refused: where it was made, save the weights alone: torch.save(model.state_dict(), file)" in line
    assert refused("infer", "plain.pth", "m.json").startswith("plain.pth ")


def test_a_truncated_safetensors(refused, tmp_path):
    whole = (tmp_path / "t.safetensors").read_bytes()
    for size in (40, len(whole) - 8):
        (tmp_path / "cut.safetensors").write_bytes(whole[:size])
        line = refused("convert", "mapping.json", "cut.safetensors", "-o", "m.safetensors")
        assert line.startswith("cut.safetensors ")
        assert "truncated" in line
        assert "get the file again" in line


@pytest.mark.frameworks
def test_a_truncated_ckpt(refused, tmp_path):
    import mindspore as ms

    ms.save_checkpoint([{"name": "a", "data": ms.Tensor(np.ones((90, 90), np.float32))}], str(tmp_path / "m.ckpt"))
    (tmp_path / "cut.ckpt").write_bytes((tmp_path / "m.ckpt").read_bytes()[:20000])
    assert refused("infer", "t.json", "cut.ckpt") == (
        "cut.ckpt is truncated or not a MindSpore checkpoint: get the file again"
    )


# -- listings ----------------------------------------------------------------------------------------------------------


def test_a_csv_without_a_name_column(refused, tmp_path):
    (tmp_path / "t.csv").write_text("layer,size\nconv.weight,3\n")
    assert refused("infer", "t.csv", "m.json") == (
        "t.csv has no column name or keys: its first line is layer, size; begin with a line name,shape,dtype"
    )


def test_a_csv_alone_does_not_tell_its_framework(refused, tmp_path):
    (tmp_path / "t.csv").write_text("name\nconv.weight\n")
    line = refused("params", "t.csv")
    assert line == "t.csv is a CSV, which does not say its framework: name it (torch or mindspore)"


def test_duplicate_names(refused, tmp_path):
    (tmp_path / "t.csv").write_text("name\na.weight\nb.weight\na.weight\n")
    assert refused("infer", "t.csv", "m.json") == "t.csv lists 1 name(s) twice (a.weight): names must be unique"


def test_an_empty_listing(refused, tmp_path):
    (tmp_path / "t.csv").write_text("name,shape\n")
    write(tmp_path / "empty.json", {"framework": "mindspore", "parameters": []})
    assert refused("infer", "t.csv", "m.json") == "t.csv lists no parameter: is it the right model or file?"
    assert refused("infer", "t.json", "empty.json").startswith("empty.json lists no parameter")


def test_both_sides_of_one_framework(refused):
    line = refused("infer", "t.json", "t.json")
    assert line.startswith("t.json is a listing of PyTorch, given where MindSpore is expected: both sides cannot be")
    assert "give the PyTorch source first, then the MindSpore one" in line
    assert refused("infer", "m.json", "t.json").startswith("m.json is a listing of MindSpore, given where PyTorch is")


def test_pins_that_cannot_be(refused):
    for pin in ("nope.weight=fc.weight", "fc.weight=nope", "fc.weight", "fc.bias=conv.weight"):
        line = refused("infer", "t.json", "m.json", "--pin", pin)
        assert pin.partition("=")[0] in line


# -- mappings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("convert", "new.json", "t.safetensors", "-o", "m.safetensors"),
        ("explain", "new.json", "fc.bias"),
        ("diff", "mapping.json", "new.json"),
        ("validate", "new.json", "t.json", "m.json"),
    ],
    ids=lambda args: args[0],
)
def test_a_mapping_of_another_version(refused, tmp_path, args):
    write(tmp_path / "new.json", mapping() | {"format": "automap/9"})
    assert refused(*args) == (
        "new.json: format 'automap/9' is unknown here, this automap reads 'automap/1'; "
        "upgrade automap, or run automap infer again"
    )


def test_what_is_no_mapping(refused, tmp_path):
    (tmp_path / "broken.json").write_text('{"format": "automap/1",')
    assert refused("explain", "broken.json", "x").startswith("broken.json: not JSON or damaged (line 1: ")
    assert refused("explain", "t.json", "x").startswith('t.json: not a mapping: it lacks "format"')
    assert refused("explain", "t.safetensors", "x").startswith("t.safetensors: not ")


def test_what_is_no_lock(refused):
    assert refused("check", "mapping.json").startswith(
        "mapping.json is no lock file known here: its format is 'automap/1'"
    )


def test_a_name_that_the_mapping_lacks(refused):
    assert refused("explain", "mapping.json", "fc.biass") == (
        "mapping.json has no name 'fc.biass' on either side; did you mean fc.bias?"
    )


# -- tensors -----------------------------------------------------------------------------------------------------------


def converted(refused: Refused, tmp_path: Path, arrays: dict[str, np.ndarray], *options: str) -> str:
    """The error of converting these arrays; nothing is written."""
    save_file(arrays, tmp_path / "bad.safetensors", {"format": "pt"})
    line = refused("convert", "mapping.json", "bad.safetensors", "-o", "m.safetensors", *options)
    assert not (tmp_path / "m.safetensors").exists()
    assert line.startswith("bad.safetensors cannot be converted: ")
    return line


def test_every_missing_and_unknown_parameter_is_named(refused, tmp_path):
    arrays = weights()
    del arrays["fc.weight"], arrays["fc.bias"]
    line = converted(refused, tmp_path, arrays | {"new.weight": np.ones(3, np.float32)})
    assert "2 absent from it: fc.weight, fc.bias (is it a checkpoint of this model?)" in line
    assert "1 in it but not in the mapping: new.weight [3] (" in line


def test_every_misshapen_parameter_is_named(refused, tmp_path):
    arrays = weights() | {"fc.weight": np.ones((5, 4), np.float32), "fc.bias": np.ones(5, np.float32)}
    line = converted(refused, tmp_path, arrays, "--target", "m.json")
    assert "1 of a shape that does not fit: fc.bias (becomes [5], but fc.bias is [2])" in line
    assert "1 of another length: fc.weight (becomes [5, 4], but fc.weight is [2, 4])" in line


def test_nan_weights(refused, tmp_path):
    arrays = weights()
    arrays["fc.bias"][1] = np.nan
    assert "1 with NaN: fc.bias (1 of 2) (" in converted(refused, tmp_path, arrays)


def test_values_out_of_range(refused, tmp_path):
    arrays = weights()
    arrays["fc.bias"][1] = 1e6
    line = converted(refused, tmp_path, arrays, "--dtype", "float16")
    assert "1 out of the range of the new dtype: fc.bias (1 in float16) (" in line


def test_an_unknown_dtype(refused):
    line = refused("convert", "mapping.json", "t.safetensors", "-o", "m.safetensors", "--dtype", "float17")
    assert "float17" in line
    assert "bfloat16" in line


def test_outputs_that_are_no_checkpoint(refused):
    line = refused("convert", "mapping.json", "t.safetensors", "-o", "m.pth")
    assert line.endswith("m.pth is not a name for a MindSpore checkpoint: use .safetensors or .ckpt")
    line = refused("convert", "mapping.json", "t.safetensors", "-o", "m.txt")
    assert "m.txt must end in .ckpt or .safetensors or .pth or .pt or .bin" in line
    line = refused("convert", "mapping.json", "t.safetensors", "-o", "no/m.ckpt")
    assert "no/m.ckpt cannot be written: there is no folder no" in line


def test_the_wrong_direction(refused):
    line = refused("convert", "mapping.json", "t.safetensors", "-o", "t2.safetensors", "--reverse")
    assert line.startswith("t.safetensors has the names of PyTorch, but the conversion starts from MindSpore: ")
    assert line.endswith("turn it round (reverse=True, --reverse)")


# -- inputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (["float32(2)"], "the input 'float32(2)' is not understood: write it as float32[2,3,224,224] or "),
        (["real[2]"], "the input 'real[2]' has an unknown element type 'real'; there are float16, "),
        (["int64[2]"], "the input 'int64[2]' needs a limit for its whole numbers, such as int64[2]<100"),
        (["a=float32[2]", "float32[2]"], "some inputs have a name and some have none: name all of them, or none"),
    ],
)
def test_inputs_that_are_not_understood(refused, inputs, words):
    options = [word for text in inputs for word in ("--input", text)]
    for command in (("validate", "mapping.json"), ("infer",)):
        assert refused(*command, "t.json", "m.json", *options).startswith(words)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_file_that_holds_no_inputs(refused, tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    assert refused("validate", "mapping.json", "a:b", "c:d", "--inputs", "x.npz") == (
        "x.npz is no .npz file of plain arrays; write it with numpy.savez"
    )


def test_networks_that_cannot_run(refused):
    line = refused("validate", "mapping.json", "t.json", "m.json", "--input", "float32[2,3,8,8]")
    assert line.startswith("t.json is no PyTorch network that can run: give a factory, a class or an instance")


@pytest.mark.frameworks
def test_an_input_of_the_wrong_shape(refused):
    line = refused("validate", "mapping.json", "tnet.py:build", "mnet.py:Net", "--input", "float32[2,5,8,8]")
    assert line.startswith("the PyTorch network does not run on float32[2,5,8,8]: RuntimeError: ")
    assert "expected input[2, 5, 8, 8] to have 3 channels" in line


@pytest.mark.frameworks
def test_nothing_was_wrong_with_the_rest(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    networks = ["tnet.py:build", "mnet.py:Net"]
    assert cli.main(["infer", *networks]) == 0
    assert cli.main(["convert", "mapping.json", "t.safetensors", "-o", "m.ckpt"]) == 0
    capfd.readouterr()
    assert cli.main(["validate", "mapping.json", *networks, "--weights", "t.safetensors"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("The outputs agree in 2 runs on different inputs: off by at most ")
    assert err == ""
    assert cli.main(["validate", "mapping.json", *networks, "--input", "float32[2,3,8,8]", "--rtol", "0"]) in (0, 1)
