"""Checkpoints converted from file to file: shards, memory, interruptions, faults on the way, every element type."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from automap import cli, safetensors_file, staging, stored, streaming, transforms, writing
from automap.conversion import apply, convert
from automap.dtypes import HELD, PACKED, Array, is_same, size_of
from automap.errors import ConversionError, SourceError
from automap.mapping import Entry, Mapping, Side, Unmatched
from automap.sources import open_source

frameworks = pytest.mark.frameworks

SIDE = Side("", 1, "")


def mapping(*entries: tuple[str, str, str], torch: tuple[Unmatched, ...] = ()) -> Mapping:
    made = (Entry(tuple(t.split()), tuple(m.split()), transforms.from_text(chain)) for t, m, chain in entries)
    return Mapping(SIDE, SIDE, tuple(made), torch)


LAYERS = 6

#: A model of several layers, each with a rename, a reshape, a fused matrix and two that are joined.
MODEL = mapping(
    *(
        entry
        for i in range(LAYERS)
        for entry in (
            (f"l.{i}.norm.weight", f"l.{i}.norm.gamma", ""),
            (f"l.{i}.conv", f"l.{i}.conv", "reshape(shape=[4, 2, 1, 3], before=[4, 2, 3])"),
            (f"l.{i}.qkv", f"l.{i}.q l.{i}.k l.{i}.v", "split(axis=0, sizes=[4, 2, 2])"),
            (f"l.{i}.up l.{i}.gate", f"l.{i}.both", "concat(axis=1, sizes=[3, 5]) | transpose(axes=[1, 0])"),
        )
    )
)


def weights(seed: int = 0) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    shapes = {"norm.weight": (7,), "conv": (4, 2, 3), "qkv": (8, 5), "up": (6, 3), "gate": (6, 5)}
    return {
        f"l.{i}.{name}": draw.normal(size=shape).astype(np.float32)
        for i in range(LAYERS)
        for name, shape in shapes.items()
    }


def sharded_folder(folder: Path, tensors: dict[str, Array], count: int) -> Path:
    """A folder as Hugging Face writes it."""
    folder.mkdir()
    names, homes = list(tensors), {}
    for i in range(count):
        file = f"model-{i + 1:05}-of-{count:05}.safetensors"
        part = names[i * len(names) // count : (i + 1) * len(names) // count]
        save_file({n: tensors[n] for n in part}, folder / file, {"format": "pt"})
        homes |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sharded_folder(tmp_path / "hf", weights(), 3)


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def expected(**options: Any) -> dict[str, Array]:
    made: dict[str, Array] = apply(MODEL, weights(), framework="numpy", **options)
    return made


def assert_holds(path: Path, arrays: dict[str, Array]) -> None:
    held = open_source(path, "mindspore").read()
    assert held.keys() == arrays.keys()
    assert [n for n, a in arrays.items() if not is_same(a, held[n])] == []


# -- shards ----------------------------------------------------------------------------------------------------------


def test_a_folder_becomes_a_folder_of_as_many_files(folder: Path, tmp_path: Path) -> None:
    report = convert(MODEL, folder, tmp_path / "ms")
    files = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(bytes_in(tmp_path / "ms")) == [*files, "model.safetensors.index.json", "param_name_map.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "ms"]
    assert report.files == tuple(files)
    assert (report.tensors, report.verified, report.resumed) == (6 * LAYERS, 6 * LAYERS, 0)
    assert report.bytes == sum((tmp_path / "ms" / f).stat().st_size for f in files)
    assert str(report).startswith(f"{tmp_path / 'ms'}: 36 tensors, 3 files, ")
    assert str(report).endswith(" bytes, 36 read back and equal; nothing but what the mapping says")
    assert_holds(tmp_path / "ms", expected())
    index = json.loads((tmp_path / "ms" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in safetensors_file.read_header(tmp_path / "ms" / file).tensors
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in weights().values())
    for place in ("model.safetensors.index.json", "param_name_map.json"):
        assert open_source(tmp_path / "ms" / place, None).listing() == open_source(tmp_path / "ms", None).listing()


def test_shards_of_a_chosen_size(folder: Path, tmp_path: Path) -> None:
    convert(MODEL, folder, tmp_path / "ms", shard_size=1000)
    assert_holds(tmp_path / "ms", expected())
    for file in (tmp_path / "ms").glob("*.safetensors"):
        header = safetensors_file.read_header(file)
        # An entry stays in one file, and one that is larger than the size has its own.
        assert sum(t.stop - t.start for t in header.tensors.values()) <= 1000
        assert header.metadata == {"format": "ms"}
    convert(MODEL, folder, tmp_path / "one", shard_size="1GB")
    assert sorted(bytes_in(tmp_path / "one")) == ["model.safetensors"]
    assert_holds(tmp_path / "one", expected())


def test_a_folder_into_one_file_and_back_into_a_folder_that_transformers_knows(folder: Path, tmp_path: Path) -> None:
    convert(MODEL, folder, tmp_path / "ms.safetensors")
    assert_holds(tmp_path / "ms.safetensors", expected())
    convert(MODEL, tmp_path / "ms.safetensors", tmp_path / "back", reverse=True, shard_size=1500)
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert set(index) == {"metadata", "weight_map"}
    assert not (tmp_path / "back" / "param_name_map.json").exists()
    held: dict[str, Array] = {}
    from safetensors import safe_open

    for file in sorted(set(index["weight_map"].values())):
        with safe_open(tmp_path / "back" / file, "np") as opened:
            assert opened.metadata() == {"format": "pt"}
            held |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert held.keys() == weights().keys() == index["weight_map"].keys()
    assert all(is_same(held[n], a) for n, a in weights().items())


def test_the_order_of_the_threads_is_no_matter(folder: Path, tmp_path: Path) -> None:
    for threads in (1, 2, 4):
        convert(MODEL, folder, tmp_path / f"ms{threads}", shard_size=900, threads=threads)
    assert bytes_in(tmp_path / "ms1") == bytes_in(tmp_path / "ms2") == bytes_in(tmp_path / "ms4")


def test_an_old_folder_is_replaced_if_nothing_else_is_in_it(folder: Path, tmp_path: Path) -> None:
    convert(MODEL, folder, tmp_path / "ms", shard_size=500)
    convert(MODEL, folder, tmp_path / "ms")
    assert len(bytes_in(tmp_path / "ms")) == 5
    (tmp_path / "ms" / "tokenizer.json").write_text("")
    with pytest.raises(ConversionError, match=r"has other files in it \(tokenizer.json\): name a new folder"):
        convert(MODEL, folder, tmp_path / "ms")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "ms"]
    assert len(bytes_in(tmp_path / "ms")) == 6
    (tmp_path / "empty").mkdir()
    convert(MODEL, folder, tmp_path / "empty")
    assert bytes_in(tmp_path / "empty").keys() < bytes_in(tmp_path / "ms").keys()


def test_what_an_output_may_be_called(folder: Path, tmp_path: Path) -> None:
    for name in ("ms", "ms/", "model-7.5b", "qwen2.5-7b"):
        assert streaming.is_folder(name), name
    for name in ("ms.ckpt", "ms.safetensors", "ms.docx"):
        assert not streaming.is_folder(name), name
    with pytest.raises(ConversionError, match="shards go into a folder: name one as the output"):
        convert(MODEL, folder, tmp_path / "ms.safetensors", shard_size="4GB")
    with pytest.raises(ConversionError, match="the output is the checkpoint itself"):
        convert(MODEL, folder, folder)
    with pytest.raises(ConversionError, match="the output is the checkpoint itself"):
        convert(MODEL, folder / "model.safetensors.index.json", folder)
    with pytest.raises(SourceError, match=r"is not a name for a PyTorch checkpoint: use \.safetensors or \.pth"):
        convert(MODEL, folder, tmp_path / "out", reverse=True, format="ckpt")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4_000_000_000), ("500MB", 500_000_000), ("1.5GiB", 3 << 29), ("64", 64), (64, 64), ("2k", 2000)],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    assert streaming.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "4 giga", "0", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConversionError, match="is no size: write it as 4GB, 500MB or 4GiB"):
        streaming.parse_size(text)


BROKEN: dict[str, Callable[[Path], object]] = {
    "is no index of a checkpoint": lambda f: (f / "model.safetensors.index.json").write_text("{}"),
    "names 1 file(s) that are not there: model-00002-of-00003.safetensors": lambda f: (
        f / "model-00002-of-00003.safetensors"
    ).unlink(),
    "1 tensor(s) of its index are not in their files: x (model-00001-of-00003.safetensors)": lambda f: (
        f / "model.safetensors.index.json"
    ).write_text((f / "model.safetensors.index.json").read_text().replace(
        '"weight_map": {', '"weight_map": {"x": "model-00001-of-00003.safetensors", '
    )),
    "is a folder without a checkpoint": lambda f: [p.unlink() for p in f.iterdir() if "model" in p.name],
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN)
def test_folders_that_are_not_whole(folder: Path, tmp_path: Path, message: str) -> None:
    BROKEN[message](folder)
    with pytest.raises(SourceError) as e:
        convert(MODEL, folder, tmp_path / "ms")
    assert message in str(e.value)
    assert [p.name for p in tmp_path.iterdir()] == ["hf"]


def test_a_folder_without_an_index(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    convert(MODEL, folder, tmp_path / "ms")
    assert_holds(tmp_path / "ms", expected())
    save_file({"l.0.conv": weights()["l.0.conv"]}, folder / "more.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match=r"has l\.0\.conv in two of its files and no index: keep one of them"):
        convert(MODEL, folder, tmp_path / "ms2")


# -- values ------------------------------------------------------------------------------------------------------------

CHAINS = st.sampled_from(
    [
        ("a", "x", (4, 6), ""),
        ("a", "x", (4, 6), "transpose(axes=[1, 0])"),
        ("a", "x", (4, 6), "reshape(shape=[2, 12])"),
        ("a", "x y z", (6, 4), "split(axis=0, sizes=[1, 2, 3])"),
        ("a", "x y", (4, 6), "split(axis=1, sizes=[2, 4])"),
        ("a b", "x", (4, 3), "concat(axis=1)"),
        ("a b c", "x", (2, 3), "stack(axis=0) | transpose(axes=[2, 0, 1])"),
        ("a", "x y", (2, 5, 3), "unstack(axis=0, count=2)"),
        ("a", "x", (), ""),
        ("a", "x", (0, 3), ""),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHAINS, min_size=1, max_size=5), st.data())
def test_from_file_to_file_as_in_memory(tmp_path_factory: Any, entries: Any, data: st.DataObject) -> None:
    """Whatever the entries, types, sizes of files and of parts are: the files hold what ``apply`` gives."""
    tmp_path = tmp_path_factory.mktemp("s")
    rows, tensors = [], {}
    for i, (given_, made, shape, chain) in enumerate(entries):
        dtype = data.draw(st.sampled_from(["float32", "float16", "int64", "uint8"]))
        for name in given_.split():
            tensors[f"{i}.{name}"] = np.asarray(np.arange(np.prod(shape)).reshape(shape) % 100, dtype)
        rows.append((" ".join(f"{i}.{n}" for n in given_.split()), " ".join(f"{i}.{n}" for n in made.split()), chain))
    options = {"dtype": data.draw(st.sampled_from([None, "float64", "float16"]))}
    save_file(tensors, tmp_path / "in.safetensors")
    arrays = apply(mapping(*rows), tensors, framework="numpy", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "CHUNK", data.draw(st.sampled_from([8, 24, 1 << 22])))
        out = tmp_path / "out"
        convert(mapping(*rows), tmp_path / "in.safetensors", out, shard_size=data.draw(st.integers(1, 500)), **options)
    assert_holds(out, arrays)


CODES = sorted(safetensors_file._NAMES)


def raw_file(path: Path, codes: list[str], seed: int = 0) -> dict[str, bytes]:
    """A .safetensors file with a tensor of random bits of each type."""
    draw, header, contents, at = np.random.default_rng(seed), {}, {}, 0
    for code in codes:
        size = size_of(safetensors_file._NAMES[code], 8)
        contents[code] = draw.bytes(size) if code != "BOOL" else b"\0\1" * 4
        header[code] = {"dtype": code, "shape": [2, 4], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(contents.values()))
    return contents


def test_every_element_type_travels_bit_for_bit(tmp_path: Path) -> None:
    contents = raw_file(tmp_path / "in.safetensors", CODES)
    m = mapping(*((code, f"new.{code}", "") for code in CODES))
    convert(m, tmp_path / "in.safetensors", tmp_path / "out.safetensors", allow_nan=True, dtype=None)
    header = safetensors_file.read_header(tmp_path / "out.safetensors")
    data = (tmp_path / "out.safetensors").read_bytes()
    for code in CODES:
        tensor = header.tensors[f"new.{code}"]
        assert data[tensor.start : tensor.stop] == contents[code], code
        assert tensor.dtype == safetensors_file._NAMES[code]


@pytest.mark.parametrize("code", [c for c in CODES if safetensors_file._NAMES[c] in HELD])
def test_every_element_type_can_be_rearranged(tmp_path: Path, code: str) -> None:
    contents = raw_file(tmp_path / "in.safetensors", [code])
    m = mapping((code, "a b", "transpose(axes=[1, 0]) | split(axis=0, sizes=[1, 3])"))
    convert(m, tmp_path / "in.safetensors", tmp_path / "out.safetensors", allow_nan=True)
    dtype = HELD[safetensors_file._NAMES[code]]
    whole = np.frombuffer(contents[code], dtype).reshape(2, 4).T
    found = open_source(tmp_path / "out.safetensors", "mindspore").tensors()
    assert is_same(found["a"].read(), whole[:1])
    assert is_same(found["b"].read(), whole[1:])


def test_types_of_less_than_a_byte_are_renamed_only(tmp_path: Path) -> None:
    raw_file(tmp_path / "in.safetensors", ["F4", "F6_E2M3"])
    m = mapping(("F4", "a b", "split(axis=0, sizes=[1, 1])"), ("F6_E2M3", "c", ""))
    with pytest.raises(ConversionError, match=r"1 of a dtype that does not fit: F4 \(float4_e2m1fn_x2 can be renamed"):
        convert(m, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert set(PACKED) >= {"float4_e2m1fn_x2"}


@pytest.mark.parametrize(
    ("code", "bits", "count"),
    [
        ("F8_E4M3", [0x7F, 0xFF, 0x7E, 0x80], 2),
        ("F8_E5M2", [0x7D, 0xFF, 0x7C, 0xFC], 2),
        ("F8_E4M3FNUZ", [0x80, 0x7F, 0xFF, 0x00], 1),
        ("F8_E8M0", [0xFF, 0xFE, 0x00, 0x7F], 1),
        ("BF16", [0x80, 0x7F, 0x80, 0xFF, 0x81, 0x7F, 0x01, 0xFF], 1),
        ("F16", [0x00, 0x7C, 0x00, 0xFC, 0x01, 0xFC, 0x00, 0x00], 1),
        ("F32", [0, 0, 0x80, 0x7F, 0, 0, 0x80, 0xFF, 1, 0, 0x80, 0xFF, 0, 0, 0xC0, 0x7F], 2),
        ("I8", [0xFF, 0x80, 0x7F, 0], 0),
    ],
)
def test_nan_in_any_type(tmp_path: Path, code: str, bits: list[int], count: int) -> None:
    entry = {"dtype": code, "shape": [4], "data_offsets": [0, len(bits)]}
    text = json.dumps({"w": entry}).encode()
    (tmp_path / "in.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(bits))
    if not count:
        convert({"w": "v"}, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
        return
    with pytest.raises(ConversionError, match=rf"1 with NaN: w \({count} of 4\)"):
        convert({"w": "v"}, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    convert({"w": "v"}, tmp_path / "in.safetensors", tmp_path / "out.safetensors", allow_nan=True)


def test_a_float8_is_not_cast_without_its_scales(tmp_path: Path) -> None:
    raw_file(tmp_path / "in.safetensors", ["F8_E4M3", "F32"], seed=3)
    out, m = tmp_path / "out.safetensors", {"F8_E4M3": "w", "F32": "scale"}
    convert(m, tmp_path / "in.safetensors", out, dtype="bfloat16", allow_nan=True, allow_overflow=True)
    assert [p.dtype for p in open_source(out, "mindspore").listing()] == ["bfloat16", "float8_e4m3fn"]
    target = {"w": (None, "float32"), "scale": (None, None)}
    with pytest.raises(ConversionError, match=r"w \(no way from float8_e4m3fn to float32\)"):
        convert(m, tmp_path / "in.safetensors", out, target=target, allow_nan=True)


def test_what_the_values_tell_is_told_of_all_of_them_and_nothing_appears(tmp_path: Path) -> None:
    tensors = weights()
    for i in (0, LAYERS - 1):
        tensors[f"l.{i}.qkv"][0, 0] = 1e9
        tensors[f"l.{i}.up"][0, 0] = np.nan
    folder = sharded_folder(tmp_path / "hf", tensors, 3)
    with pytest.raises(ConversionError) as e:
        convert(MODEL, folder, tmp_path / "ms", dtype="float16", shard_size=700)
    assert e.value.offenders == (
        "l.0.up (1 of 18): with NaN",
        "l.5.up (1 of 18): with NaN",
        "l.0.q (1 in float16): out of the range of the new dtype",
        "l.5.q (1 in float16): out of the range of the new dtype",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["hf"]
    report = convert(MODEL, folder, tmp_path / "ms", dtype="float16", allow_nan=True, allow_overflow=True)
    assert report.conversion.overflow == {"l.0.q": 1, "l.5.q": 1}
    assert report.conversion.casts["l.3.both"] == ("float32", "float16")


def test_what_is_left_out_is_looked_at(tmp_path: Path) -> None:
    m = mapping(
        ("a", "x", ""),
        torch=(Unmatched("head", "tied", alias_of="a"), Unmatched("bias", "the port has none", review=True)),
    )
    a = np.ones(3, np.float32)
    save_file({"a": a, "head": a, "bias": 0 * a}, tmp_path / "in.safetensors")
    convert(m, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    save_file({"a": a, "head": 2 * a, "bias": a}, tmp_path / "in.safetensors")
    with pytest.raises(ConversionError) as e:
        convert(m, tmp_path / "in.safetensors", tmp_path / "no.safetensors")
    assert e.value.offenders == (
        "bias (the port has none): not zero and without a counterpart",
        "head (of a): another name of a tied weight with other values",
    )
    assert not (tmp_path / "no.safetensors").exists()


def test_shapes_and_types_are_checked_before_a_tensor_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(stored.Sliced, "_fill", read)
    target = {name: (a.shape, None) for name, a in expected().items()} | {"l.5.k": ((9, 9), None)}
    with pytest.raises(ConversionError, match=r"l\.5\.qkv \(becomes \[2, 5\], but l\.5\.k is \[9, 9\]\)"):
        convert(MODEL, folder, tmp_path / "ms", target=target)
    assert [p.name for p in tmp_path.iterdir()] == ["hf"]


# -- interruptions -----------------------------------------------------------------------------------------------------


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException) -> None:
    """Let the writing of files end with an error after so many of them."""
    real, begun = streaming.write_file, []

    def write(job: writing.Job, *rest: Any) -> Any:
        begun.append(job)
        if len(begun) > after:
            raise error
        return real(job, *rest)

    monkeypatch.setattr(streaming, "write_file", write)


def test_an_interrupted_run_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(MODEL, folder, tmp_path / "whole", shard_size=800)
    count = len(list((tmp_path / "whole").glob("*.safetensors")))
    out = tmp_path / "ms"
    with monkeypatch.context() as patch:
        interrupted(patch, 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(MODEL, folder, out, shard_size=800)
    assert not out.exists()
    left = tmp_path / "ms.automap-partial"
    complete = sorted(p.name for p in (left / "whole").iterdir())
    assert len(complete) == 3 < count
    # What an interrupted write leaves, and a file that was damaged since.
    (left / "parts" / "rubbish").write_bytes(b"123")
    damaged = left / "whole" / complete[1]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    report = convert(MODEL, folder, out, shard_size=800, resume=True)
    assert report.resumed == 2
    assert f"{count} files (2 by an earlier run)" in str(report)
    assert bytes_in(out) == bytes_in(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "ms", "whole"]


def test_a_run_is_not_gone_on_with_for_something_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupted(patch, 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(MODEL, folder, tmp_path / "ms")
    other = mapping(*((" ".join(e.torch), " ".join(f"new.{n}" for n in e.mindspore), "") for e in MODEL.entries[:1]))
    assert other
    for options in ({"dtype": "float16"}, {"shard_size": 500}, {"allow_nan": True}):
        with pytest.raises(ConversionError, match=r"ms\.automap-partial is of another conversion"):
            convert(MODEL, folder, tmp_path / "ms", resume=True, **options)  # type: ignore[arg-type]
    file = folder / "model-00002-of-00003.safetensors"
    os.utime(file, ns=(1, 1))
    with pytest.raises(ConversionError, match="another mapping, checkpoint or option"):
        convert(MODEL, folder, tmp_path / "ms", resume=True)
    assert convert(MODEL, folder, tmp_path / "ms").resumed == 0
    assert convert(MODEL, folder, tmp_path / "ms", resume=True).resumed == 0  # nothing to go on with


@pytest.mark.parametrize("alpha", [4, 8])
def test_a_merged_adaptation_is_resumed_with_its_own_alpha(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alpha: int
) -> None:
    draw = np.random.default_rng(0)
    shapes = {"a.weight": (4, 3), "a.lora_A.weight": (2, 3), "a.lora_B.weight": (4, 2), "b.weight": (5,)}
    tensors = {n: draw.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    save_file(tensors, tmp_path / "in.safetensors", {"format": "pt"})
    names = {"a.weight": "x", "b.weight": "y"}
    with monkeypatch.context() as patch:
        interrupted(patch, 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(names, tmp_path / "in.safetensors", tmp_path / "ms", shard_size=1, merge_lora=4)
    if alpha != 4:
        with pytest.raises(ConversionError, match="is of another conversion"):
            convert(names, tmp_path / "in.safetensors", tmp_path / "ms", shard_size=1, merge_lora=alpha, resume=True)
        return
    report = convert(names, tmp_path / "in.safetensors", tmp_path / "ms", shard_size=1, merge_lora=4, resume=True)
    assert report.resumed == 1
    assert_holds(tmp_path / "ms", apply(names, tensors, framework="numpy", merge_lora=4))


def test_the_overflow_of_an_earlier_run_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = weights() | {"l.0.qkv": np.full((8, 5), 1e9, np.float32)}
    folder = sharded_folder(tmp_path / "hf", tensors, 3)
    with monkeypatch.context() as patch:
        interrupted(patch, 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(MODEL, folder, tmp_path / "ms", dtype="float16", allow_overflow=True)
    report = convert(MODEL, folder, tmp_path / "ms", dtype="float16", allow_overflow=True, resume=True)
    assert report.resumed == 1
    assert report.conversion.overflow == {"l.0.q": 20, "l.0.k": 10, "l.0.v": 10}


def test_a_run_that_died_between_the_two_renames(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(MODEL, folder, tmp_path / "ms", shard_size=800)
    old = bytes_in(tmp_path / "ms")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(staging.os, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            convert(MODEL, folder, tmp_path / "ms")
    assert bytes_in(tmp_path / "ms") == old
    assert convert(MODEL, folder, tmp_path / "ms", resume=True).resumed == 3
    assert_holds(tmp_path / "ms", expected())


@pytest.mark.parametrize("output", ["ms", "ms.safetensors"])
def test_a_run_that_died_after_the_output_appeared(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    convert(MODEL, folder, tmp_path / output)
    whole = bytes_in(tmp_path / output) if output == "ms" else {output: (tmp_path / output).read_bytes()}

    def die(_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(staging.Staging, "discard", die)
            with pytest.raises(KeyboardInterrupt):
                convert(MODEL, folder, tmp_path / output, resume=True)
    convert(MODEL, folder, tmp_path / output, resume=True)
    assert whole == (bytes_in(tmp_path / output) if output == "ms" else {output: (tmp_path / output).read_bytes()})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", output]


@frameworks
def test_the_weights_of_a_live_model_are_converted_and_never_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n")
    names, spec = {"weight": "w", "bias": "b"}, f"{tmp_path / 'net.py'}:build"
    convert(names, spec, tmp_path / "out.ckpt")
    with monkeypatch.context() as patch:
        interrupted(patch, 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(names, spec, tmp_path / "ms", shard_size=1)
    with pytest.raises(ConversionError, match="is of another conversion"):
        convert(names, spec, tmp_path / "ms", shard_size=1, resume=True)
    assert convert(names, spec, tmp_path / "ms", shard_size=1).resumed == 0


def test_two_runs_at_once(folder: Path, tmp_path: Path) -> None:
    other = staging.Staging(str(tmp_path / "ms"), True, "")
    other.open(False)
    with pytest.raises(ConversionError, match="is being written by another run: wait for it"):
        convert(MODEL, folder, tmp_path / "ms")
    assert (tmp_path / "ms.automap-partial" / "whole").is_dir()
    other.discard()
    convert(MODEL, folder, tmp_path / "ms")


KILLED = """
import os, signal, sys
from automap import streaming, writing
from automap.conversion import convert
real, count = writing.os.pwrite, [0]
def pwrite(*args):
    count[0] += 1
    if count[0] > int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
writing.os.pwrite = pwrite
convert(*sys.argv[1:4], shard_size=800, threads=1)
"""


def test_killed_for_good(folder: Path, tmp_path: Path, run_python: Any) -> None:
    MODEL.write(tmp_path / "m.json")
    convert(MODEL, folder, tmp_path / "whole", shard_size=800)
    out = tmp_path / "ms"
    for writes in (0, 34):  # of 40
        done = run_python(KILLED, str(tmp_path / "m.json"), str(folder), str(out), str(writes))
        assert done.returncode < 0
        assert not out.exists()
        for file in (tmp_path / "ms.automap-partial" / "whole").iterdir():
            assert file.read_bytes() == (tmp_path / "whole" / file.name).read_bytes()
    assert convert(MODEL, folder, out, shard_size=800, resume=True).resumed >= 1
    assert bytes_in(out) == bytes_in(tmp_path / "whole")


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["ms", "ms.safetensors", "ms.ckpt"])
def test_no_space_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    real, left = writing.os.pwrite, [2000]

    def pwrite(handle: int, data: Any, at: int) -> int:
        if left[0] < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return real(handle, data, at)

    monkeypatch.setattr(writing.os, "pwrite", pwrite)
    MODEL.write(tmp_path / "m.json")
    status = cli.main(["convert", str(tmp_path / "m.json"), str(folder), "-o", str(tmp_path / output)])
    err = capsys.readouterr().err
    assert (status, err.count("\n")) == (2, 1)
    assert err == f"automap: error: {tmp_path / output} cannot be written: No space left on device\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "m.json"]


def test_the_free_space_is_looked_at_first(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = streaming.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(streaming.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr(streaming, "write_file", None)
    with pytest.raises(SourceError) as e:
        convert(MODEL, folder, tmp_path / "ms")
    assert f"needs 5,312 bytes, and {tmp_path} has 1,000 free: make room, or name another place" in str(
        e.value
    ).replace(str(sum(a.nbytes for a in weights().values())), "").replace(
        str(e.value)[str(e.value).index("needs ") + 6 : str(e.value).index(" bytes,")], "5,312"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


def test_a_checkpoint_that_breaks_off_while_it_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stored.places.read_into

    def read_into(path: str, *rest: Any) -> None:
        if "model-00003" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(stored.places, "read_into", read_into)
        with pytest.raises(SourceError, match="cannot be read: Input/output error; what is complete is kept: --resume"):
            convert(MODEL, folder, tmp_path / "ms", threads=1)
    assert convert(MODEL, folder, tmp_path / "ms", resume=True).resumed >= 1
    assert_holds(tmp_path / "ms", expected())


def test_reading_back_can_be_left_out(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "read_back", None)
    report = convert(MODEL, folder, tmp_path / "ms", verify=False)
    assert report.verified == 0
    assert "not read back" in str(report)


def test_a_tensor_that_is_not_what_was_written_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writing.os.pwrite
    qkv = weights()["l.3.qkv"].tobytes()[-40:]

    def pwrite(handle: int, data: Any, at: int) -> int:
        data = bytes(data)
        return real(handle, data.replace(qkv, qkv[::-1]), at)

    monkeypatch.setattr(writing.os, "pwrite", pwrite)
    with pytest.raises(ConversionError, match=r"1 tensor\(s\) read back are not what was written: l\.3\.v: check"):
        convert(MODEL, folder, tmp_path / "ms")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


def test_progress_is_told_in_bytes(folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    convert(MODEL, folder, tmp_path / "ms", progress=lambda *now: told.append(now))
    size = sum(a.nbytes for a in weights().values())
    for what in ("writing", "reading back"):
        steps = [done for w, done, total in told if w == what and total == size]
        assert steps[0] == 0
        assert steps[-1] == size
        assert steps == sorted(steps)


def test_a_bar_on_a_terminal_and_nothing_in_a_pipe(folder: Path, tmp_path: Path) -> None:
    import pty

    MODEL.write(tmp_path / "m.json")
    command = [sys.executable, "-m", "automap", "convert", "m.json", "hf", "-o", "ms"]
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=follower, env=environment)
    os.close(follower)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(leader, 4096):
            seen += data
    os.close(leader)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    assert b"Converting hf: reading back" in seen
    assert re.search(rb"\d/[\d.]+ kB", seen)
    assert b"36 read back and equal" in seen
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr.count("\n")) == ("", 1)


MEMORY = """
import resource, sys
from automap.conversion import convert
from automap.mapping import Mapping
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(*sys.argv[1:4], dtype=sys.argv[4] or None, threads=2)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_memory_is_needed_for_a_tensor_and_not_for_the_checkpoint(tmp_path: Path, run_python: Any, dtype: str) -> None:
    big = np.ones((4096, 2048), np.float32)  # 32 MiB
    save_file({f"{i}": big for i in range(12)}, tmp_path / "in.safetensors")
    chains = ["", "transpose(axes=[1, 0])", "reshape(shape=[2048, 4096])"]
    m = mapping(*((f"{i}", f"new.{i}", chains[i % 3]) for i in range(12)))
    m.write(tmp_path / "m.json")
    done = run_python(MEMORY, *(str(tmp_path / n) for n in ("m.json", "in.safetensors", "out.safetensors")), dtype)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * 32 + 80


def test_a_file_of_torch_needs_no_more_memory(tmp_path: Path, run_python: Any) -> None:
    big = np.ones((4096, 2048), np.float32)  # 32 MiB
    save_file({f"new.{i}": big for i in range(12)}, tmp_path / "in.safetensors", {"format": "ms"})
    mapping(*((f"{i}", f"new.{i}", "") for i in range(12))).invert().write(tmp_path / "m.json")
    done = run_python(MEMORY, *(str(tmp_path / n) for n in ("m.json", "in.safetensors", "out.pth")), "")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80


# -- without frameworks ------------------------------------------------------------------------------------------------

BLOCKED = """
import sys
for m in ('torch', 'mindspore', 'fsspec', 'distributed'): sys.modules[m] = None
from automap import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@frameworks
@pytest.mark.parametrize("given_as", ["hf", "net.pth"])
@pytest.mark.parametrize("written_as", ["ms", "ms.ckpt", "ms.safetensors"])
def test_neither_framework_is_needed(
    folder: Path, tmp_path: Path, run_python: Any, given_as: str, written_as: str
) -> None:
    import torch

    if given_as == "net.pth":
        torch.save({n: torch.tensor(a) for n, a in weights().items()}, tmp_path / given_as)
    MODEL.write(tmp_path / "m.json")
    done = run_python(BLOCKED, "convert", "m.json", given_as, "-o", written_as)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "36 read back and equal" in done.stderr
    assert_holds(tmp_path / written_as, expected())
