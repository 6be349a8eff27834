"""The files of both frameworks, read and laid out without them, beside the frameworks themselves."""

from __future__ import annotations

import collections
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap import ckpt_file, sources, transforms, writing, zipped_file
from automap.conversion import apply, convert
from automap.dtypes import BFLOAT16, HELD, Array, is_same
from automap.errors import ConversionError, MappingError, SourceError
from automap.mapping import Entry, Mapping, Side
from automap.planning import Output, Task
from automap.sources import open_source, write_tensors
from automap.stored import Held, Sliced

pytestmark = pytest.mark.frameworks

SIDE = Side("", 1, "")


def renames(**names: str) -> Mapping:
    return Mapping(SIDE, SIDE, tuple(Entry((t,), (m,)) for t, m in names.items()))


# -- torch.save --------------------------------------------------------------------------------------------------------


def read_zip(path: Path) -> Any:
    return zipped_file.read_archive(str(path))


def state() -> dict[str, Any]:
    import torch

    base = torch.arange(24.0).reshape(4, 6)
    half = torch.arange(5).to(torch.bfloat16)
    return {
        "base": base,
        "turned": base.T,
        "column": base[:, 2],
        "rows": base[1:3],
        "block": base[1:3, 2:5],
        "steps": base[::2, ::3],
        "wide": torch.ones(1).expand(3, 4),
        "parameter": torch.nn.Parameter(torch.full((2, 2), 3.0)),
        "bf16": half,
        "f16": half.to(torch.float16),
        "f64": half.to(torch.float64),
        "i8": torch.tensor([-1, 2], dtype=torch.int8),
        "u8": torch.tensor([1, 2], dtype=torch.uint8),
        "u16": torch.tensor([1, 65535], dtype=torch.uint16),
        "i16": torch.tensor([-3], dtype=torch.int16),
        "i64": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "c64": torch.tensor([1 + 2j]),
        "f8": torch.tensor([0x12, 0xFE], dtype=torch.uint8).view(torch.float8_e4m3fn),
        "f8b": torch.tensor([0x12, 0x7B], dtype=torch.uint8).view(torch.float8_e5m2),
        "none": torch.empty(0, 3),
    }


def test_all_that_torch_saves_in_a_state_dict(tmp_path: Path) -> None:
    import torch

    from automap import torch_edge

    torch.save(collections.OrderedDict(state()), tmp_path / "net.pth")
    read = read_zip(tmp_path / "net.pth")
    assert list(read) == list(state())
    for name, tensor in state().items():
        assert isinstance(read[name], Sliced), name
        assert is_same(read[name].read(), torch_edge.array_of(tensor.detach())), name
        assert read[name].shape == tuple(tensor.shape)
    assert read["rows"].is_plain
    assert not read["turned"].is_plain
    source = open_source(tmp_path / "net.pth", "torch")
    assert source.listing().by_name["f8"].dtype == "float8_e4m3fn"


def test_a_module_with_metadata_ties_and_training_state(tmp_path: Path) -> None:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Embedding(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 3, bias=False))
    net[2].weight = net[0].weight
    optimizer = torch.optim.Adam(net.parameters())
    saved = {"epoch": 3, "model": net.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.5, "args": None}
    torch.save(saved, tmp_path / "net.pth")
    source = open_source(tmp_path / "net.pth", "torch")
    assert [p.name for p in source.listing()] == list(net.state_dict())
    assert source.listing().by_name["0.weight"].aliases == ("2.weight",)
    assert "the state dict is the one under model" in source.notes[0]
    assert all(isinstance(t, Sliced) for t in source.tensors().values())


def test_what_is_not_understood_is_left_to_torch(tmp_path: Path) -> None:
    import argparse

    import torch

    weights = {"w": torch.ones(2)}
    for extra in (argparse.Namespace(lr=0.1), np.float32(1), torch.ones(2, 2).to_sparse()):
        torch.save({"model": weights, "extra": extra}, tmp_path / "net.pth")
        with pytest.raises(zipped_file.UnknownFormError):
            read_zip(tmp_path / "net.pth")
        read = open_source(tmp_path / "net.pth", "torch").read()
        assert read["w"].tolist() == [1, 1]
    torch.save(weights, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(zipped_file.UnknownFormError):
        read_zip(tmp_path / "old.pth")
    assert open_source(tmp_path / "old.pth", "torch").read()["w"].tolist() == [1, 1]
    convert({"w": "v"}, tmp_path / "old.pth", tmp_path / "new.safetensors")


def archive(path: Path, pickled: bytes, storages: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", pickled)
        for name, data in storages.items():
            file.writestr(f"a/data/{name}", data)
    return path


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K%cK%c\x85K%c\x85\x89}tR"


def tensor(offset: int = 0, size: int = 4, step: int = 1) -> bytes:
    return TENSOR % (bytes([offset]), bytes([size]), bytes([step]))


def test_the_smallest_archive(tmp_path: Path) -> None:
    content = np.arange(4, dtype="<f4").tobytes()
    path = archive(tmp_path / "a.pth", b"\x80\x02}X\x01\x00\x00\x00w" + tensor() + b"s.", {"0": content})
    assert read_zip(path)["w"].read().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "damaged",
    [
        tensor(offset=1),
        tensor(size=5),
        tensor(step=2),
        tensor(offset=255),
        TENSOR % (b"\x00", b"\x04", b"\x01") + b"}b",
    ],
)
def test_no_tensor_leaves_its_storage(tmp_path: Path, damaged: bytes) -> None:
    content = np.arange(4, dtype="<f4").tobytes()
    # What follows in the file must not be taken for the tensor's.
    path = archive(tmp_path / "a.pth", b"\x80\x02}X\x01\x00\x00\x00w" + damaged + b"s.", {"0": content, "1": b"1" * 99})
    with pytest.raises(zipped_file.UnknownFormError):
        read_zip(path)


ATTACKS = {
    "a function": b"cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    "an attribute": b"cbuiltins\ngetattr\n.",
    "another file": tensor() + b"}X\x04\x00\x00\x00fileX\x0b\x00\x00\x00/etc/passwdsb.",
    "a place": tensor() + b"}X\x05\x00\x00\x00startK\x00sb.",
    "slots": tensor() + b"(N}X\x05\x00\x00\x00startK\x00st\x86b.",
    "an own storage": b"ctorch._utils\n_rebuild_tensor_v2\n"
    b"((X\x07\x00\x00\x00float32K\x00K\x09tK\x00)K\x04\x85K\x01\x85\x89}tR.",
    "itself": b"}q\x00X\x01\x00\x00\x00ah\x00sX\x01\x00\x00\x00bh\x00s0" + b"h\x00.",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_pickle_cannot_reach_beyond_its_archive(tmp_path: Path, attack: str) -> None:
    content = np.arange(4, dtype="<f4").tobytes()
    path = archive(tmp_path / "a.pth", b"\x80\x02" + ATTACKS[attack], {"0": content})
    try:
        read = read_zip(path)
    except zipped_file.UnknownFormError:
        return
    assert attack == "itself"
    assert read["a"] is read


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_an_archive_escapes(tmp_path_factory: Any, data: st.DataObject) -> None:
    content = np.arange(4, dtype="<f4").tobytes()
    path = tmp_path_factory.mktemp("z") / "a.pth"
    whole = archive(path, b"\x80\x02}X\x01\x00\x00\x00w" + tensor() + b"s.", {"0": content}).read_bytes()
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    try:
        read = read_zip(path)
    except (zipped_file.UnknownFormError, OSError, NotImplementedError, RuntimeError):
        return
    for found in read.values() if isinstance(read, dict) else ():
        if isinstance(found, Sliced):
            assert found.read().nbytes <= 16
            assert all(0 <= start <= stop <= len(whole) for start, stop in found.pieces)


# -- .ckpt -------------------------------------------------------------------------------------------------------------

ARRAYS: dict[str, Array] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(7, np.int64),
    "b16": np.array([[0x3F80, 0x7FC0], [0x0001, 0xFF80]], "<u2").view(BFLOAT16),
    "flags": np.array([True, False, True]),
    **{d: np.ones((2, 1), d) for d in ("float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32")},
    "long": np.arange(1000, dtype=np.float32).reshape(100, 10),
}  # fmt: skip


def write_ckpt(path: Path, arrays: dict[str, Array]) -> None:
    """By this package's own layout."""
    tasks = tuple(
        Task((n,), (Held(a),), (), (Output(n, n, a.shape, Held(a).dtype, Held(a).dtype),)) for n, a in arrays.items()
    )
    job = writing.Job(str(path), str(path.parent), str(path), tasks, "mindspore", allow_nan=True)
    writing.write_file(job, writing.Workers(), lambda _: None)


def test_the_bytes_are_those_that_mindspore_writes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "theirs.ckpt", ARRAYS, "mindspore")
    write_ckpt(tmp_path / "ours.ckpt", ARRAYS)
    assert (tmp_path / "ours.ckpt").read_bytes() == (tmp_path / "theirs.ckpt").read_bytes()


def test_mindspore_reads_ours_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mindspore as ms

    from automap import mindspore_edge

    monkeypatch.setattr(ckpt_file, "_SLICE", 48)
    write_ckpt(tmp_path / "ours.ckpt", ARRAYS)
    loaded = ms.load_checkpoint(str(tmp_path / "ours.ckpt"))
    assert list(loaded) == list(ARRAYS)
    assert all(is_same(mindspore_edge.array_of(loaded[n]), a) for n, a in ARRAYS.items())
    read = ckpt_file.read_header(str(tmp_path / "ours.ckpt"))
    assert len(read["long"].pieces) == 84
    assert all(is_same(read[n].read(), a) for n, a in ARRAYS.items())


def test_we_read_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mindspore as ms
    from mindspore.train import serialization

    monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # KiB
    tensors = [{"name": n, "data": ms.Tensor(a)} for n, a in ARRAYS.items() if n != "b16"]
    for options in ({}, {"crc_check": True}, {"append_dict": {"epoch": 3, "lr": 0.1, "note": "a text", "done": True}}):
        ms.save_checkpoint(tensors, str(tmp_path / "theirs.ckpt"), **options)
        read = ckpt_file.read_header(str(tmp_path / "theirs.ckpt"))
        assert [n for n in ARRAYS if n != "b16"] == list(read)[: len(ARRAYS) - 1]
        assert all(is_same(read[n].read(), a) for n, a in ARRAYS.items() if n != "b16")
        assert set(read) - set(ARRAYS) == set(options.get("append_dict", {})) - {"note"}
        assert len(read["long"].pieces) > 1


def test_what_is_encrypted_or_of_another_kind_is_left_to_mindspore(tmp_path: Path) -> None:
    import mindspore as ms

    ms.save_checkpoint([{"name": "w", "data": ms.Tensor([1.0])}], str(tmp_path / "e.ckpt"), enc_key=b"0123456789abcdef")
    with pytest.raises(ckpt_file.UnknownFormError):
        ckpt_file.read_header(str(tmp_path / "e.ckpt"))
    with pytest.raises(SourceError, match="is truncated or not a MindSpore checkpoint"):
        open_source(tmp_path / "e.ckpt", "mindspore")


def test_what_a_ckpt_cannot_hold(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"c": np.ones(2, np.complex64), "e": np.ones((0, 2), np.float32)}, tmp_path / "in.safetensors")
    with pytest.raises(ConversionError, match=r"a \.ckpt file cannot hold these element types: c: complex64$"):
        convert({"c": "c", "e": "e"}, tmp_path / "in.safetensors", tmp_path / "out.ckpt")
    with pytest.raises(ConversionError, match=r"cannot hold tensors without elements: e: \[0, 2\]$"):
        convert({"c": None, "e": "e"}, tmp_path / "in.safetensors", tmp_path / "out.ckpt")
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_a_ckpt_escapes(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("c") / "a.ckpt"
    write_ckpt(path, {"w": ARRAYS["w"], "scalar": ARRAYS["scalar"]})
    whole = path.read_bytes()
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(whole)))
    path.write_bytes((whole[:at] + bytes([byte]) + whole[at + 1 :])[:cut])
    try:
        read = ckpt_file.read_header(str(path))
    except ckpt_file.UnknownFormError:
        return
    for found in read.values():
        assert found.read().nbytes == found.nbytes
        assert all(0 <= start <= stop <= cut for start, stop in found.pieces)


# -- the loaders of MindSpore ------------------------------------------------------------------------------------------


def test_a_folder_that_load_distributed_checkpoint_takes(tmp_path: Path) -> None:
    import mindspore as ms
    from mindspore import nn
    from mindspore.parallel import load_distributed_checkpoint
    from safetensors.numpy import save_file

    class Net(nn.Cell):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Dense(3, 4)
            self.second = nn.Dense(4, 2)

    weights = {f"{layer}.{leaf}": np.random.default_rng(0).normal(size=shape).astype(np.float32)
               for layer, out, into in (("a", 4, 3), ("b", 2, 4))
               for leaf, shape in (("weight", (out, into)), ("bias", (out,)))}  # fmt: skip
    save_file(weights, tmp_path / "in.safetensors")
    layers = {"a": "first", "b": "second"}
    m = renames(**{f"{t}.{leaf}": f"{c}.{leaf}" for t, c in layers.items() for leaf in ("weight", "bias")})
    for size in (40, "1GB"):
        convert(m, tmp_path / "in.safetensors", tmp_path / f"ms{size}", shard_size=size)
        net = Net()
        missing, unused = load_distributed_checkpoint(
            net, format="safetensors", unified_safetensors_dir=str(tmp_path / f"ms{size}")
        )
        assert (missing, unused) == ([], [])
        for name, made in apply(m, weights, framework="numpy").items():
            assert np.array_equal({p.name: p for p in net.get_parameters()}[name].asnumpy(), made)
    # PyTorch's own file, renamed on the way.
    (tmp_path / "theirs").mkdir()
    save_file(weights, tmp_path / "theirs" / "in.safetensors")
    net = Net()
    found = load_distributed_checkpoint(
        net, format="safetensors", unified_safetensors_dir=str(tmp_path / "theirs"), name_map=m.name_map("mindspore")
    )
    assert found == ([], [])
    assert np.array_equal(net.first.weight.asnumpy(), weights["a.weight"])
    ms.safetensors_to_ckpt(str(tmp_path / "in.safetensors"), str(tmp_path), name_map=m.name_map())
    loaded = ms.load_checkpoint(str(tmp_path / "in.ckpt"))
    assert loaded.keys() == m.name_map("mindspore").keys()
    assert np.array_equal(loaded["second.bias"].asnumpy(), weights["b.bias"])
    ms.ckpt_to_safetensors(str(tmp_path / "in.ckpt"), str(tmp_path / "again"), name_map=m.name_map("mindspore"))
    back = open_source(next((tmp_path / "again").rglob("*.safetensors")), None).read()
    assert all(is_same(back[n], a) for n, a in weights.items())


def test_a_name_map_is_of_renames_only() -> None:
    entries = (
        Entry(("a",), ("x",)),
        Entry(("qkv",), ("q", "k"), transforms.from_text("split(axis=0, sizes=[1, 1])")),
        Entry(("w",), ("v",), transforms.from_text("transpose(axes=[1, 0])")),
    )
    with pytest.raises(MappingError) as e:
        Mapping(SIDE, SIDE, entries).name_map()
    assert str(e.value) == (
        "2 of 3 entries are no plain renames: qkv -> q, k [split(axis=0, sizes=[1, 1])]; "
        "w -> v [transpose(axes=[1, 0])]: convert the checkpoint with automap convert, whose output needs no name_map"
    )
    assert renames(a="x").name_map() == {"a": "x"}
    assert renames(a="x").name_map("mindspore") == {"x": "a"}


# -- float8 in memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_float8_in_memory_and_in_pth(tmp_path: Path, dtype: str) -> None:
    import torch

    bits = torch.tensor([[0x12, 0x45], [0x71, 0x01]], dtype=torch.uint8)
    tensor = bits.view(getattr(torch, dtype))
    arrays = apply({"w": "v"}, {"w": tensor}, framework="numpy")
    assert arrays["v"].dtype == HELD[dtype]
    back = apply({"w": "v"}, {"v": arrays["v"]}, reverse=True)
    assert back["w"].dtype == tensor.dtype
    assert torch.equal(back["w"].view(torch.uint8), bits)
    torch.save({"w": tensor}, tmp_path / "in.pth")
    convert({"w": "v"}, tmp_path / "in.pth", tmp_path / "ms.safetensors")
    convert({"w": "v"}, tmp_path / "ms.safetensors", tmp_path / "out.pth", reverse=True)
    assert torch.equal(torch.load(tmp_path / "out.pth")["w"].view(torch.uint8), bits)
    with pytest.raises(SourceError, match="cannot be read as numbers without scales"):
        sources.open_source(tmp_path / "out.pth", "torch").read()
