"""The archives of ``torch.save`` that ``convert`` writes itself, against PyTorch."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from automap import zipped_file
from automap.conversion import convert
from automap.dtypes import HELD
from automap.errors import ConversionError
from automap.graph import Listing, Param, Shape
from automap.inference import match
from automap.layout import Frame, Layout, Named
from automap.sources import open_source
from automap.stored import Deferred, Sliced


def described(shape: Shape, dtype: str) -> Deferred:
    return Deferred(shape, dtype, lambda: np.empty(0))


def written(path: Path, form: Layout, contents: dict[str, bytes]) -> Path:
    """A file of this form, with holes where there is nothing; its checksums are left out."""
    with path.open("wb") as file:
        for at, data in [*form.fixed, *((form.tensors[name][0][0], data) for name, data in contents.items())]:
            file.seek(at)
            file.write(data)
        file.truncate(form.size)
    return path


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.reshape(-1).view(torch.uint8).tolist()


def tensors() -> dict[str, torch.Tensor]:
    """A tensor of each element type that a .safetensors file can have, too, and some of odd shapes."""
    made = {}
    for name, dtype in HELD.items():
        if name != "complex128":
            values = torch.arange(24 * dtype.itemsize).remainder(2 if name == "bool" else 60).to(torch.uint8)
            made[f"kinds.{name}"] = values.view(getattr(torch, name)).reshape(4, 6)
    return made | {"empty": torch.zeros(0, 5), "scalar": torch.tensor(3.5), "gr\u00f6\u00dfe": torch.ones(2)}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    given = tensors()
    torch.save(given, folder / "in.pth")
    names = {name: name for name in given}
    convert(names, folder / "in.pth", folder / "ms.safetensors", allow_nan=True)
    done = convert(names, folder / "ms.safetensors", folder / "out.pth", reverse=True, allow_nan=True)
    assert done.verified == len(given)
    return folder / "out.pth"


@pytest.mark.parametrize("mmap", [False, True])
def test_pytorch_reads_what_is_written(converted: Path, mmap: bool) -> None:
    loaded = torch.load(converted, weights_only=True, mmap=mmap)
    assert list(loaded) == list(tensors())
    for name, tensor in tensors().items():
        there = loaded[name]
        assert (there.dtype, there.shape, there.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert bits(there) == bits(tensor)
        assert there.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()


def test_any_reader_of_archives_finds_it_whole(converted: Path) -> None:
    with zipfile.ZipFile(converted) as archive:
        assert archive.testzip() is None
        assert all(info.CRC for info in archive.infolist() if info.file_size)
        assert archive.read("archive/version") == b"3\n"


def test_every_record_begins_where_memory_can_be_mapped(converted: Path) -> None:
    held = zipped_file.read_archive(str(converted))
    assert {tensor.pieces[0][0] % 64 for tensor in held.values()} == {0}


def test_tied_weights_are_there_under_each_name(tmp_path: Path) -> None:
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 4), "b": torch.nn.Linear(3, 4)})
    net["b"].weight = net["a"].weight
    ours = open_source(net, "torch").listing()
    torch.save(net.state_dict(), tmp_path / "in.pth")
    theirs = [("a.weight", (4, 3)), ("a.bias", (4,)), ("b.bias", (4,))]
    port = Listing("mindspore", tuple(Param(name, shape, "float32") for name, shape in theirs))
    found = match(ours, port)
    convert(found, tmp_path / "in.pth", tmp_path / "ms.safetensors")
    convert(found, tmp_path / "ms.safetensors", tmp_path / "out.pth", reverse=True)
    loaded = torch.load(tmp_path / "out.pth", weights_only=True)
    assert {name: t.tolist() for name, t in loaded.items()} == {n: t.tolist() for n, t in net.state_dict().items()}


def test_tensors_with_other_things_around_them(tmp_path: Path) -> None:
    groups = [
        {"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "nesterov": True, "params": [0, 1], "name": "é", "n": -3}
    ]
    beside = {"optimizer": {"state": {0: {"step": Named("s")}}, "param_groups": groups}, "step": 1 << 40}
    frame = Frame("model", beside)
    assert frame.named == {"s"}
    form = zipped_file.layout({"w": described((2,), "float32"), "s": described((), "float32")}, frame)
    numbers = {"w": np.array([1, 2], np.float32).tobytes(), "s": np.float32(7).tobytes()}
    path = written(tmp_path / "whole.pth", form, numbers)
    loaded = torch.load(path, weights_only=True)
    assert loaded["model"]["w"].tolist() == [1, 2]
    state = loaded["optimizer"]["state"].pop(0)
    assert state["step"] == 7
    assert loaded["optimizer"] == {"state": {}, "param_groups": groups}
    assert loaded["step"] == 1 << 40
    found = zipped_file.tensors_around(str(path), frame)
    assert {name: tensor.read().tolist() for name, tensor in found.items()} == {"w": [1, 2], "s": 7}
    assert open_source(path, "torch").tensors().keys() == {"w"}
    for other in (Frame("net", beside), Frame("model", {**beside, "step": 2}), Frame("model", {**beside, "more": 1})):
        with pytest.raises(zipped_file.UnknownFormError, match="what is beside the tensors is something else"):
            zipped_file.tensors_around(str(path), other)
    # A learning rate may be a tensor, in a list of groups.
    rate = torch.tensor(0.25)
    torch.save({"optimizer": {"param_groups": [{"lr": rate, "params": [0]}], "state": {}}}, tmp_path / "rate.pth")
    assert zipped_file.read_archive(str(tmp_path / "rate.pth"))["optimizer"]["param_groups"][0]["lr"].read() == 0.25
    torch.save({"pair": (rate, rate)}, tmp_path / "pair.pth")
    with pytest.raises(zipped_file.UnknownFormError):
        zipped_file.read_archive(str(tmp_path / "pair.pth"))


def test_tensors_and_files_of_more_than_four_gigabytes(tmp_path: Path) -> None:
    big, marks = 2_200_000_000, {"first": b"\1\0", "last": b"\3\0"}
    form = zipped_file.layout({n: described((big if n == "big" else 1,), "int16") for n in ("first", "big", "last")})
    path = written(tmp_path / "big.pth", form, marks)
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert loaded["big"].shape == (big,)
    assert (loaded["first"].item(), loaded["last"].item()) == (1, 3)
    held: dict[str, Any] = zipped_file.read_archive(str(path))
    assert all(isinstance(held[name], Sliced) and held[name].pieces == form.tensors[name] for name in form.tensors)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("archive/data/1").file_size == 2 * big


def test_more_records_than_the_older_fields_can_count(tmp_path: Path) -> None:
    names = [f"layers.{i}.weight" for i in range(70_000)]
    form = zipped_file.layout({name: described((1,), "int16") for name in names})
    path = written(tmp_path / "many.pth", form, {names[-1]: b"\5\0"})
    # What torch.load itself opens a file with; loading so many tensors takes long.
    archive = torch._C.PyTorchFileReader(str(path))
    assert len(archive.get_all_records()) == len(names) + 3
    assert archive.get_record("data/69999") == b"\5\0"
    assert list(zipped_file.read_archive(str(path))) == names


def test_types_of_less_than_a_byte_are_refused() -> None:
    with pytest.raises(ConversionError, match="cannot hold these element types here: w: float4_e2m1fn_x2"):
        zipped_file.layout({"w": described((2,), "float4_e2m1fn_x2")})
