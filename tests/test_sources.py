"""Every form that a source can have, and one line for everything that can be wrong with it."""

# ruff: noqa: E501 (a message under test stands in one line, as the user sees it)

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap import safetensors_file
from automap.checkpoints import find_state_dict
from automap.dtypes import BFLOAT16, DTYPES
from automap.errors import AutomapError, ConversionError, ListingError, SourceError
from automap.graph import Listing, Param
from automap.sources import (
    framework_of,
    listing_to_csv,
    listing_to_json,
    mark_optimizer_states,
    open_source,
    read_listing,
    wrapper_prefix,
    write_tensors,
)
from automap.specs import one_line

frameworks = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path, monkeypatch):
    """Specs put folders on sys.path and modules in sys.modules: they go when the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def file(path: str, content: str | bytes) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(source, framework="torch", args=None, error=SourceError) -> str:
    """The message of the error that a source ends in."""
    with pytest.raises(error) as caught:
        open_source(source, framework, args)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# --- listings ---------------------------------------------------------------------------------------------------------

RICH = Listing(
    "mindspore",
    (
        Param("conv.weight", (64, 3, 7, 7), "float32", owner="Conv2d"),
        Param("bn.moving_mean", (64,), "float32", kind="buffer", owner="BatchNorm2d", path="net.bn.moving_mean"),
        Param("scale", (), "bfloat16"),
        Param("emb.table", (0, 4), "float16", aliases=("head.weight", "tail.weight")),
        Param('odd, "name"', None, None),
        Param("größe", None, "int64"),
        Param("moments.conv.weight", (64, 3, 7, 7), "float32", kind="optimizer"),
    ),
)


def test_json_bytes():
    listing = Listing(
        "torch", (Param("a.weight", (2, 3), "float32"), Param("b", None, None, "buffer", "B", "p", ("c",)))
    )
    assert listing_to_json(listing) == (
        '{"framework": "torch",\n "parameters": [\n'
        '  {"name": "a.weight", "shape": [2, 3], "dtype": "float32"},\n'
        '  {"name": "b", "kind": "buffer", "owner": "B", "path": "p", "aliases": ["c"]}\n'
        " ]}\n"
    )


def test_csv_bytes():
    listing = Listing("torch", (Param("a.weight", (2, 3), "float32"), Param("b", ()), Param("c", (5,), "int64")))
    assert listing_to_csv(listing) == "name,shape,dtype\na.weight,2x3,float32\nb,(),\nc,5,int64\n"
    assert listing_to_csv(RICH).split("\n")[:3] == [
        "name,shape,dtype,kind,owner,path,aliases",
        "conv.weight,64x3x7x7,float32,parameter,Conv2d,,",
        "bn.moving_mean,64,float32,buffer,BatchNorm2d,net.bn.moving_mean,",
    ]


words = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=9)
params = st.builds(
    Param,
    name=words,
    shape=st.none() | st.lists(st.integers(0, 9999), max_size=5).map(tuple),
    dtype=st.none() | st.sampled_from(sorted(DTYPES)),
    kind=st.sampled_from(["parameter", "buffer", "optimizer"]),
    owner=st.none() | words,
    path=st.none() | words,
    aliases=st.lists(words, max_size=2).map(tuple),
)
listings = st.builds(
    Listing,
    st.sampled_from(["torch", "mindspore"]),
    st.lists(params, min_size=1, max_size=5, unique_by=lambda p: p.name).map(tuple),
)


@pytest.mark.parametrize("suffix", ["json", "csv"])
@given(listing=listings)
def test_listings_round_trip(tmp_path_factory, suffix, listing):
    path = tmp_path_factory.mktemp("l") / f"listing.{suffix}"
    path.write_text((listing_to_json if suffix == "json" else listing_to_csv)(listing), encoding="utf-8")
    assert read_listing(path, listing.framework) == listing


def test_a_json_listing_names_its_framework():
    file("l.json", listing_to_json(RICH))
    source = open_source("l.json", None)
    assert (source.framework, source.text, source.model(), source.listing()) == ("mindspore", "l.json", None, RICH)
    with pytest.raises(SourceError, match=r"^l.json is a listing and holds no tensors: give a checkpoint or a model$"):
        source.read()


@pytest.mark.parametrize(
    "content",
    [
        ",0\n0,conv.weight\n1,conv.bias\n",  # pandas.DataFrame(state_dict.keys()).to_csv
        ",keys\n0,conv.weight\n1,conv.bias\n",
        "keys\r\nconv.weight\r\nconv.bias\r\n",
        "\ufeffname\nconv.weight\nconv.bias",
        "0\nconv.weight\nconv.bias\n",
        " Name ,other\n conv.weight ,x\n\nconv.bias,y\n",
        "shape;name\n;conv.weight\n;conv.bias\n",
        '"name"\n"conv.weight"\n"conv.bias"\n',
        "index\tkeys\n0\tconv.weight\n1\tconv.bias\n",
    ],
)
def test_csv_with_names_only(content):
    file("l.csv", content)
    listing = open_source("l.csv", "torch").listing()
    assert listing == Listing("torch", (Param("conv.weight"), Param("conv.bias")))
    assert listing.source == "l.csv"


def test_csv_as_pandas_writes_it_from_a_series_and_a_frame():
    # The bytes that pandas 2.2 writes; pandas itself is not needed.
    file("l.csv", ',name,shape\n0,a,"torch.Size([2, 3])"\n1,b,"(4,)"\n')
    assert [p.shape for p in read_listing("l.csv", "torch")] == [(2, 3), (4,)]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("64x3x7x7", (64, 3, 7, 7)),
        ("(64, 3, 7, 7)", (64, 3, 7, 7)),
        ("[64,3,7,7]", (64, 3, 7, 7)),
        ("torch.Size([64, 3])", (64, 3)),
        ("torch.Size([])", ()),
        ("64 3 7", (64, 3, 7)),
        ("64×3", (64, 3)),
        ("(64,)", (64,)),
        ("64", (64,)),
        ("()", ()),
        ("[]", ()),
        ("", None),
        ("None", None),
        ("nan", None),
    ],
)
def test_shapes_as_people_write_them(text, shape):
    file("l.csv", f'name,shape\na,"{text}"\n')
    assert read_listing("l.csv", "torch").parameters[0].shape == shape


@pytest.mark.parametrize("dtype", ["torch.float32", "Float32", "float32", "float", "mindspore.float32"])
def test_dtypes_as_people_write_them(dtype):
    file("l.csv", f"name,dtype\na,{dtype}\n")
    file("l.json", json.dumps({"parameters": [{"name": "a", "dtype": dtype}]}))
    for path in ("l.csv", "l.json"):
        assert read_listing(path, "torch").parameters[0].dtype == "float32"


BAD_LISTINGS = {
    "no column": (
        "l.csv",
        "parameter,size\na,3\n",
        "l.csv has no column name or keys: its first line is parameter, size; begin with a line name,shape,dtype",
    ),
    "nothing": ("l.csv", "", "l.csv has no column name or keys: its first line is nothing; begin with a line name,shape,dtype"),
    "no header": (
        "l.csv",
        "conv.weight\nconv.bias\n",
        "l.csv has no column name or keys: its first line is conv.weight; begin with a line name,shape,dtype",
    ),
    "no name": ("l.csv", "name,shape\na,3\n,4\n", "l.csv, line 3: no name"),
    "shape": ("l.csv", "name,shape\na,3by4\n", "l.csv, line 2: the shape '3by4' is not understood; write it as 64x3x7x7"),
    "kind": ("l.csv", "name,kind\na,weight\n", "l.csv, line 2: the kind must be one of parameter, buffer, optimizer, not 'weight'"),
    "only a header": ("l.csv", "name,shape\n", "l.csv lists no parameter: is it the right model or file?"),
    "twice": ("l.csv", "name\na\nb\na\n", "l.csv lists 1 name(s) twice (a): names must be unique"),
    "encoding": ("l.csv", b"name\n\xff\xfe\n", "l.csv is not a text file in UTF-8: save the listing as UTF-8"),
    "not json": ("l.json", '{"a": 1,\n oops}', "l.json is not JSON: Expecting property name enclosed in double quotes in line 2; write it with `automap params`"),
    "other json": ("l.json", "[1]", 'l.json is not a listing: expected {"framework": …, "parameters": [{"name": …, "shape": …}, …]}'),
    "a mapping": ("l.json", '{"format": "automap/1", "entries": []}', "l.json is a mapping, not a listing of one model's parameters"),
    "framework": ("l.json", '{"framework": "jax", "parameters": []}', 'l.json does not say its framework: "framework" must be "torch" or "mindspore"'),
    "empty json": ("l.json", '{"framework": "torch", "parameters": []}', "l.json lists no parameter: is it the right model or file?"),
    "json name": ("l.json", '{"parameters": ["a"]}', 'l.json, parameter 1: expected an object with a "name", such as {"name": "conv.weight"}'),
    "json shape": ("l.json", '{"parameters": [{"name": "a", "shape": [1, -2]}]}', "l.json, a: the shape must be a list of whole numbers, not [1, -2]"),
    "json kind": ("l.json", '{"parameters": [{"name": "a", "kind": 3}]}', "l.json, a: the kind must be one of parameter, buffer, optimizer, not 3"),
    "json dtype": ("l.json", '{"parameters": [{"name": "a", "dtype": 3}]}', "l.json, a: the dtype must be a text, not 3"),
    "json aliases": ("l.json", '{"parameters": [{"name": "a", "aliases": "b"}]}', 'l.json, a: the aliases must be a list of names, not "b"'),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_LISTINGS)
def test_bad_listing(case):
    path, content, message = BAD_LISTINGS[case]
    assert refusal(file(path, content), error=ListingError) == message


def test_a_listing_of_the_other_framework():
    file("l.json", listing_to_json(RICH))
    assert refusal("l.json", "torch") == (
        "l.json is a listing of MindSpore, given where PyTorch is expected: both sides cannot be MindSpore; give the"
        " PyTorch source first, then the MindSpore one"
    )


def test_a_csv_without_a_side():
    message = refusal(file("l.csv", "name\na\n"), None)
    assert message == "l.csv is a CSV, which does not say its framework: name it (torch or mindspore)"


def test_listing_as_a_source():
    listing = Listing("torch", (Param("a"),), "my net")
    source = open_source(listing, "torch")
    assert (source.listing(), source.text, source.model()) == (listing, "my net", None)
    assert refusal(listing, "mindspore").startswith("my net is a listing of PyTorch, given where MindSpore is expected")
    assert open_source(Listing("torch", (Param("a"),)), None).text == "the listing"


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("net.pth", "there is no file net.pth: check the path (the working folder is {here})"),
        ("a/net.csv", "there is no file a/net.csv: check the path (the working folder is {here})"),
        ("net.trace", "there is no file net.trace: check the path (the working folder is {here})"),
        ("resnet50", "'resnet50' is no source: give a file (.pth .pt .bin .safetensors .ckpt .json .csv .trace), module:attr or file.py:attr"),
        ("", "'' is no source: give a file (.pth .pt .bin .safetensors .ckpt .json .csv .trace), module:attr or file.py:attr"),
        ("x" * 5000, f"'{'x' * 5000}' is no source: give a file (.pth .pt .bin .safetensors .ckpt .json .csv .trace), module:attr or file.py:attr"),
    ],
    ids=["pth", "csv", "trace", "word", "empty", "long"],
)  # fmt: skip
def test_no_such_file(tmp_path, source, message):
    assert refusal(source) == message.replace("{here}", str(tmp_path))


def test_folders_and_traces_without_anything_in_them():
    Path("shards").mkdir()
    nothing = "is a folder without a checkpoint (.safetensors .bin .pth .pt .ckpt) in it"
    assert refusal("shards") == f"shards {nothing}"
    nothing = "is no index of a checkpoint: it has no weight_map of names to files"
    assert refusal(file("model.safetensors.index.json", "{}")) == f"./model.safetensors.index.json {nothing}"
    damaged = "t.trace is no trace, or a damaged one: it is a text file; write it anew with automap trace"
    assert refusal(file("t.trace", "x")) == damaged


def test_files_that_are_no_source():
    assert refusal(file("net.py", "")) == "net.py is a Python file: name the class or factory in it, as net.py:build"
    assert refusal(file("net.onnx", "x")) == (
        "net.onnx has no extension that automap reads (.pth .pt .bin .safetensors .ckpt .json .csv .trace)"
    )
    assert refusal(file("l.csv", "name\na\n"), args={"depth": 3}) == "l.csv is a file and takes no arguments (depth)"


# --- safetensors ------------------------------------------------------------------------------------------------------

ARRAYS = {
    "layers.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layers.0.bias": np.array([1, 2, 3], np.float16),
    "b16": np.array([[0x3F80, 0x7FC0], [0x0001, 0xFF80]], "<u2").view(BFLOAT16),
    "scalar": np.array(7, np.int64),
    "flags": np.array([True, False, True]),
    "none": np.zeros((0, 4), np.uint8),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].shape, a[n].tobytes()) == (b[n].dtype, b[n].shape, b[n].tobytes()) for n in a
    )


@pytest.mark.parametrize(("framework", "tag"), [("torch", "pt"), ("mindspore", "ms")])
def test_safetensors_round_trip(framework, tag):
    write_tensors("net.safetensors", ARRAYS, framework)
    assert safetensors_file.read_header("net.safetensors").metadata == {"format": tag}
    source = open_source("net.safetensors", None)
    assert (source.framework, source.model()) == (framework, None)
    assert same(source.read(), ARRAYS)
    listed = source.listing().by_name
    assert (listed["b16"].shape, listed["b16"].dtype, listed["scalar"].shape) == ((2, 2), "bfloat16", ())


def test_safetensors_are_aligned_and_little_endian():
    arrays = {
        "c": np.ones(3, np.uint8),
        "d": np.array([1, 2], ">f8"),
        "h": np.ones(1, np.float16),
        "f": np.ones(1, ">f4"),
    }
    write_tensors("net.safetensors", arrays, "torch")
    places = safetensors_file.read_header("net.safetensors").tensors
    assert all(places[n].start % a.itemsize == 0 for n, a in arrays.items())
    assert {n: a.tolist() for n, a in open_source("net.safetensors", "torch").read().items()} == {
        n: a.tolist() for n, a in arrays.items()
    }


def test_safetensors_whose_header_has_another_order():
    data = np.array([1, 2], "<f4").tobytes()
    file("net.safetensors", header({"w": entry(start=4, stop=8), "v": entry(start=0, stop=4)}, data))
    read = open_source("net.safetensors", "torch").read()
    assert {n: a.tolist() for n, a in read.items()} == {"w": [2], "v": [1]}
    assert list(read) == ["w", "v"]


def test_safetensors_agrees_with_the_package():
    from safetensors.numpy import load_file, save_file

    ordinary = {n: np.ascontiguousarray(a) for n, a in ARRAYS.items() if n not in ("b16", "scalar")}
    save_file(ordinary, "theirs.safetensors", metadata={"format": "np"})
    assert same(open_source("theirs.safetensors", "torch").read(), ordinary)
    write_tensors("ours.safetensors", ordinary, "torch")
    assert same(load_file("ours.safetensors"), ordinary)


@frameworks
def test_safetensors_agrees_with_both_frameworks():
    import mindspore as ms
    import torch
    from safetensors.torch import load_file, save_file

    arrays = {n: a for n, a in ARRAYS.items() if n != "none"}  # MindSpore knows no empty tensor
    tensors = {"w": torch.arange(3, dtype=torch.bfloat16), "i": torch.ones((), dtype=torch.int32)}
    save_file(tensors, "torch.safetensors", metadata={"format": "pt"})
    read = open_source("torch.safetensors", None).read()
    assert read["w"].view("<u2").tolist() == [0, 0x3F80, 0x4000]
    assert read["i"].shape == ()
    write_tensors("ours.safetensors", arrays, "torch")
    theirs = load_file("ours.safetensors")
    assert theirs["b16"].dtype == torch.bfloat16
    assert np.array_equal(theirs["turned"].numpy(), arrays["turned"])

    write_tensors("ms.safetensors", arrays, "mindspore")
    loaded = ms.load_checkpoint("ms.safetensors", format="safetensors")
    assert set(loaded) == set(arrays)
    assert np.array_equal(loaded["turned"].asnumpy(), arrays["turned"])
    ms.save_checkpoint(ms.nn.Dense(2, 3), "dense.safetensors", format="safetensors")
    source = open_source("dense.safetensors", None)
    assert (source.framework, {p.name: p.shape for p in source.listing()}) == (
        "mindspore",
        {"weight": (3, 2), "bias": (3,)},
    )


def test_safetensors_of_the_other_framework():
    write_tensors("net.safetensors", {"w": np.ones(1)}, "torch")
    assert refusal("net.safetensors", "mindspore") == (
        "net.safetensors is a checkpoint (by its metadata, format=pt) of PyTorch, given where MindSpore is expected:"
        " both sides cannot be PyTorch; give the PyTorch source first, then the MindSpore one"
    )


def header(entries: dict, data: bytes = b"", metadata: dict | None = None) -> bytes:
    raw = json.dumps(({} if metadata is None else {"__metadata__": metadata}) | entries).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(1,), start=0, stop=4) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def test_safetensors_without_metadata_belongs_to_its_side():
    file("net.safetensors", header({"w": entry()}, b"\0" * 4))
    assert open_source("net.safetensors", "mindspore").framework == "mindspore"
    assert (
        refusal("net.safetensors", None) == "net.safetensors does not say its framework: name it (torch or mindspore)"
    )


def test_safetensors_names_of_tied_weights():
    # What safetensors.torch.save_model writes for a tied head.
    file("net.safetensors", header({"emb.weight": entry()}, b"\0" * 4, {"head.weight": "emb.weight", "format": "pt"}))
    assert open_source("net.safetensors", "torch").listing().parameters[0].aliases == ("head.weight",)
    file("net.safetensors", header({"a": entry(), "b": entry(start=4, stop=8)}, b"\0" * 8, {"a": "b"}))
    assert [p.aliases for p in open_source("net.safetensors", "torch").listing()] == [(), ()]


def test_order_of_safetensors():
    def order(*names: str) -> list[str]:
        entries = {n: entry(start=4 * i, stop=4 * i + 4) for i, n in enumerate(names)}
        file("net.safetensors", header(entries, b"\0" * 4 * len(names)))
        source = open_source("net.safetensors", "torch")
        assert list(source.read()) == [p.name for p in source.listing()]
        return [p.name for p in source.listing()]

    # Sorted by name, so that definition order is lost: numbers count as numbers.
    assert order("l.1.w", "l.10.w", "l.2.w", "norm") == ["l.1.w", "l.2.w", "l.10.w", "norm"]
    # Not sorted, so that the order was meant.
    assert order("stem", "l.1.w", "l.10.w", "l.2.w") == ["stem", "l.1.w", "l.10.w", "l.2.w"]
    # Written by automap: definition order.
    write_tensors("ours.safetensors", {n: np.ones(1) for n in ("z", "a", "m")}, "torch")
    assert [p.name for p in open_source("ours.safetensors", "torch").listing()] == ["z", "a", "m"]


GOOD = header({"w": entry(), "v": entry(start=4, stop=8)}, b"\0" * 8)
BAD_SAFETENSORS = {
    "empty": (b"", "is not a safetensors file: it is empty; get the file again"),
    "text": (b"hello world, hello\n", "is not a safetensors file: it is a text file; check the name and the extension"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "is not a safetensors file: it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    "torch": (b"PK\x03\x04" + b"\0" * 60, "is not a safetensors file: it is a zip archive, as torch.save writes it"),
    "noise": (b"\xff\x00\x01" * 99, "is not a safetensors file: it has no such header; check the extension"),
    "cut in the data": (GOOD[:-3], f"is truncated: it has {len(GOOD) - 3} bytes and its header promises {len(GOOD)}; get the file again"),
    "cut in the header": (GOOD[:50], f"is truncated: it has 50 bytes and its header promises {len(GOOD) - 8}; get the file again"),
    "too long": (GOOD + b"\0", "has 1 bytes after its last tensor: it is damaged, get it again"),
    "not json": (b"\x05\0\0\0\0\0\0\0{oops", "has a damaged safetensors header (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)): get the file again"),
    "twice": (len(b'{"w":1,"w":2}').to_bytes(8, "little") + b'{"w":1,"w":2}', "has a damaged safetensors header (a key is there twice): get the file again"),
    "type": (header({"w": entry("F5")}, b"\0" * 4), "has a damaged safetensors header (w has the unknown element type 'F5'): get the file again"),
    "shape": (header({"w": entry(shape=[-1])}, b"\0" * 4), "has a damaged safetensors header (w has no proper shape): get the file again"),
    "place": (header({"w": entry(start=-4)}, b"\0" * 4), "has a damaged safetensors header (w has no proper place): get the file again"),
    "size": (header({"w": entry(shape=[2])}, b"\0" * 4), "has a damaged safetensors header (w has a shape that does not fit its bytes): get the file again"),
    "overlap": (header({"w": entry(), "v": entry(start=2, stop=6)}, b"\0" * 6), "has a damaged safetensors header (the bytes of v do not follow on those before it): get the file again"),
    "metadata": (header({"w": entry()}, b"\0" * 4, {"format": 3}), "has a damaged safetensors header (its metadata is not text): get the file again"),
    "no tensor": (header({}), "lists no parameter: is it the right model or file?"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SAFETENSORS)
def test_bad_safetensors(case):
    content, message = BAD_SAFETENSORS[case]
    assert refusal(file("net.safetensors", content)) == f"net.safetensors {message}"


@given(st.data())
def test_no_damage_to_a_safetensors_file_escapes(tmp_path_factory, data):
    """Whatever one byte becomes, the file is read or refused, never more."""
    path = tmp_path_factory.mktemp("s") / "net.safetensors"
    at, byte = data.draw(st.integers(0, len(GOOD) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])
    try:
        source = open_source(path, "torch")
        assert source.read().keys() == source.listing().by_name.keys()
    except AutomapError:
        pass


def test_float8_is_listed_but_not_read():
    file("net.safetensors", header({"w": entry("F8_E4M3", (4,)), "v": entry("F8_E5M2", (4,), 4, 8)}, b"\0" * 8))
    source = open_source("net.safetensors", "torch")
    assert [p.dtype for p in source.listing()] == ["float8_e5m2", "float8_e4m3fn"]
    with pytest.raises(SourceError) as caught:
        source.read()
    assert str(caught.value) == (
        "net.safetensors: v (float8_e5m2) and others cannot be read as numbers without scales: convert them to bfloat16"
        " first"
    )


# --- writing ----------------------------------------------------------------------------------------------------------


@frameworks
@pytest.mark.parametrize(("path", "framework"), [("net.pth", "torch"), ("net.bin", "torch"), ("net.ckpt", "mindspore")])
def test_write_and_read(path, framework):
    arrays = {n: a for n, a in ARRAYS.items() if n != "none"}
    for _ in range(2):  # the second time over the first
        write_tensors(path, arrays, framework)
    source = open_source(path, None)
    assert source.framework == framework
    assert same(source.read(), arrays)
    assert [p.name for p in source.listing()] == list(arrays)
    assert source.listing().by_name["b16"].dtype == "bfloat16"
    assert [p.name for p in Path.cwd().iterdir()] == [path]
    assert Path(path).stat().st_mode & 0o200  # MindSpore's own files are read-only


@pytest.mark.parametrize(
    ("path", "framework", "message"),
    [
        (
            "net.ckpt",
            "torch",
            "net.ckpt is not a name for a PyTorch checkpoint: use .safetensors or .pth or .pt or .bin",
        ),
        ("net.pth", "mindspore", "net.pth is not a name for a MindSpore checkpoint: use .safetensors or .ckpt"),
        ("net", "mindspore", "net is not a name for a MindSpore checkpoint: use .safetensors or .ckpt"),
        ("no/net.safetensors", "torch", "no/net.safetensors cannot be written: No such file or directory"),
    ],
)
def test_names_that_cannot_be_written(path, framework, message):
    with pytest.raises(SourceError) as caught:
        write_tensors(path, {"w": np.ones(1)}, framework)
    assert str(caught.value) == message


def test_types_that_cannot_be_written():
    Path("net.safetensors").write_text("old")
    with pytest.raises(ConversionError, match=r"cannot hold these element types: w: complex128$") as caught:
        write_tensors("net.safetensors", {"v": np.ones(1), "w": np.ones(1, complex)}, "torch")
    assert caught.value.offenders == ("w: complex128",)
    assert Path("net.safetensors").read_text() == "old"


# --- state dicts and checkpoints --------------------------------------------------------------------------------------

W = np.ones(2, np.float32)
SMALL, BIG = {"a": W}, {"a": W, "b": W, "c": W}


@pytest.mark.parametrize(
    ("loaded", "names", "notes"),
    [
        (BIG, "abc", []),
        ({"epoch": 3, "state_dict": BIG}, "abc", ["x: the state dict is the one under state_dict (3 tensors)"]),
        ({"model": {"module": BIG}}, "abc", ["x: the state dict is the one under model.module (3 tensors)"]),
        ({"mean": W, "network": BIG}, "abc", ["x: the state dict is the one under network (3 tensors)"]),
        ({"ema": SMALL, "anything": BIG}, "abc", ["x: the state dict is the one under anything (3 tensors)"]),
        (
            {"ema": BIG, "other": BIG, "model": BIG},
            "abc",
            [
                "x: the state dict is the one under model (3 tensors)",
                "x: not taken, though it could be a network too: ema (3 tensors), other (3 tensors)",
            ],
        ),
        (
            {"model": BIG, "optimizer": {"state": {0: BIG}, "param_groups": []}},
            "abc",
            [
                "x: the state dict is the one under model (3 tensors)",
                "x: the state of an optimizer, under optimizer, is beside it; convert takes it with --optimizer",
            ],
        ),
        ({"a": W, "step": 3, "extra": None}, "a", []),
    ],
)  # fmt: skip
def test_the_state_dict_inside(loaded, names, notes):
    tensors, said = find_state_dict(loaded, "x")
    assert list(tensors) == list(names)
    assert list(said) == notes


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        ({}, "x holds no named tensors, but an empty dict: save the state dict, model.state_dict()"),
        ([1], "x holds no named tensors, but a list: save the state dict, model.state_dict()"),
        (W, "x holds no named tensors, but a ndarray: save the state dict, model.state_dict()"),
        ({"epoch": 3, "lr": 0.1}, "x holds no named tensors, but a dict with epoch, lr: save the state dict, model.state_dict()"),
        ({0: W}, "x holds no named tensors, but a dict with 0: save the state dict, model.state_dict()"),
    ],
)  # fmt: skip
def test_no_state_dict_inside(loaded, message):
    with pytest.raises(SourceError) as caught:
        find_state_dict(loaded, "x")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["module.a", "module.b.c"], "module."),
        (["module._orig_mod.a", "module._orig_mod.b"], "module._orig_mod."),
        (["_orig_mod.a"], "_orig_mod."),
        (["module.a", "b"], ""),
        (["modules.a"], ""),
        (["model.a", "model.b"], ""),
        ([], ""),
    ],
)
def test_wrapper_prefix(names, prefix):
    assert wrapper_prefix(names) == prefix


def test_arrays_as_a_state_dict():
    state = {"w": W, "b16": ARRAYS["b16"]}
    source = open_source(state, "mindspore")
    assert (source.framework, source.text, source.model()) == ("mindspore", "the state dict", None)
    assert [(p.name, p.shape, p.dtype) for p in source.listing()] == [
        ("w", (2,), "float32"),
        ("b16", (2, 2), "bfloat16"),
    ]
    assert same(source.read(), state)
    assert (
        refusal(state, None)
        == "the state dict holds arrays, which do not tell their framework: name it (torch or mindspore)"
    )
    assert (
        refusal({})
        == "the state dict holds no named tensors, but an empty dict: save the state dict, model.state_dict()"
    )
    assert refusal(state, args={"a": 1}) == "the state dict is no class or factory and takes no arguments (a)"
    with pytest.raises(SourceError, match=r"^the state dict: w holds no numbers \(object\)$"):
        open_source({"w": np.array([None])}, "torch").read()


@frameworks
def test_tensors_as_a_state_dict():
    import mindspore as ms
    import torch

    linear, dense = torch.nn.Linear(2, 3), ms.nn.Dense(2, 3)
    ours = open_source(linear.state_dict(), "torch")
    assert np.array_equal(ours.read()["weight"], linear.weight.detach().numpy())
    theirs = open_source(dense.parameters_dict(), None)
    assert theirs.framework == "mindspore"
    assert np.array_equal(theirs.read()["bias"], dense.bias.asnumpy())
    assert refusal(linear.state_dict(), "mindspore").startswith(
        "the state dict is a state dict of PyTorch, given where"
    )
    both = {"a": linear.weight, "b": dense.weight}
    assert refusal(both, None) == "the state dict has tensors of both frameworks: give those of one"
    bf16 = ms.Tensor([1.0]).astype(ms.bfloat16).asnumpy()  # in MindSpore's own NumPy type
    assert same(open_source({"w": bf16}, "mindspore").read(), {"w": np.array([0x3F80], "<u2").view(BFLOAT16)})
    tied = open_source({"a": linear.weight, "b": linear.weight, "c": linear.bias}, "torch").listing()
    assert [p.aliases for p in tied] == [("b",), ("a",), ()]


@frameworks
def test_torch_checkpoint():
    import torch

    emb = torch.ones(3, 2, dtype=torch.bfloat16)
    state = {"module.emb.weight": emb, "module.head.weight": emb, "module.fc.bias": torch.zeros(2)}
    torch.save({"epoch": 1, "state_dict": state}, "net.pth")
    source = open_source("net.pth", None)
    assert (source.framework, source.text, source.model()) == ("torch", "net.pth", None)
    assert [(p.name, p.shape, p.dtype, p.aliases) for p in source.listing()] == [
        ("module.emb.weight", (3, 2), "bfloat16", ("module.head.weight",)),
        ("module.head.weight", (3, 2), "bfloat16", ("module.emb.weight",)),
        ("module.fc.bias", (2,), "float32", ()),
    ]
    assert source.notes == (
        "net.pth: the state dict is the one under state_dict (3 tensors)",
        "net.pth: every name begins with 'module.', from a wrapper of PyTorch",
    )
    assert source.read()["module.emb.weight"].view("<u2").tolist() == [[0x3F80, 0x3F80]] * 3
    assert refusal("net.pth", "mindspore") == (
        "net.pth is a checkpoint of PyTorch, given where MindSpore is expected: both sides cannot be PyTorch; give the"
        " PyTorch source first, then the MindSpore one"
    )
    torch.save({"epoch": 1}, "no.pth")
    assert (
        refusal("no.pth")
        == "no.pth holds no named tensors, but a dict with epoch: save the state dict, model.state_dict()"
    )


@frameworks
def test_ckpt_belongs_to_whoever_wrote_it():
    import mindspore as ms
    import torch

    ms.save_checkpoint(ms.nn.Dense(2, 3), "ms.ckpt")
    torch.save({"state_dict": {"w": torch.ones(1)}}, "lightning.ckpt")
    torch.save({"w": torch.ones(1)}, "old.ckpt", _use_new_zipfile_serialization=False)
    assert open_source("ms.ckpt", None).framework == open_source("ms.ckpt", "mindspore").framework == "mindspore"
    assert open_source("lightning.ckpt", None).framework == open_source("lightning.ckpt", "torch").framework == "torch"
    assert open_source("old.ckpt", "torch").framework == "torch"
    assert refusal("ms.ckpt", "torch").startswith(
        "ms.ckpt is a checkpoint of MindSpore, given where PyTorch is expected"
    )
    assert refusal("lightning.ckpt", "mindspore").startswith(
        "lightning.ckpt is a checkpoint of PyTorch, given where Mind"
    )
    assert refusal(file("t.ckpt", "text\n"), "torch").startswith(
        "t.ckpt is not a PyTorch checkpoint: it is a text file"
    )


@frameworks
def test_checkpoint_of_a_training_cell():
    import mindspore as ms

    nn = ms.nn
    net = nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params()))
    ms.save_checkpoint(step, "step.ckpt")
    listing = open_source("step.ckpt", "mindspore").listing()
    assert {p.name for p in listing if p.kind != "optimizer"} == {p.name for p in net.get_parameters()}
    assert len([p for p in listing if p.kind == "optimizer"]) == 4 + 2 * len(net.trainable_params())


# --- the states of optimizers -----------------------------------------------------------------------------------------


def marked(*names: str) -> list[str]:
    return [p.name for p in mark_optimizer_states([Param(n) for n in names]) if p.kind == "optimizer"]


@pytest.mark.parametrize(
    "states",
    [
        ["moments.fc.weight", "momentum", "learning_rate", "global_step"],
        ["moment1.fc.weight", "moment2.fc.weight", "beta1_power", "beta2_power", "global_step"],
        ["adam_m.fc.weight", "adam_v.fc.weight"],
        ["accum.fc.weight", "stat.fc.weight", "global_step", "learning_rate_group_0"],
        ["exp_avg.fc.weight", "exp_avg_sq.fc.weight", "state_step"],
        ["exp_avg_sq_row_fc.weight", "exp_avg_sq_col_fc.weight", "afactor_step"],
        ["moment1.fc.weight", "scale_sense", "current_iterator_step", "last_overflow_iterator_step"],
    ],
)
def test_optimizer_states(states):
    assert marked("fc.weight", "fc.bias", *states) == states


def test_optimizer_states_below_wrappers():
    network = ["network._backbone.conv.weight", "network._backbone.bn.moving_mean"]
    assert marked(*network, "moments.network._backbone.conv.weight", "global_step") == [
        "moments.network._backbone.conv.weight",
        "global_step",
    ]
    # An optimizer that is an attribute of a training cell, before and after the network.
    states = ["optimizer.moment1.fc.weight", "optimizer.global_step"]
    assert marked("network.fc.weight", *states) == states
    assert marked("optimizer.fc.weight", *states) == states


@pytest.mark.parametrize(
    "names",
    [
        ["moments.weight", "moments.bias"],  # a layer of that name
        ["fc.weight", "moments.other.weight"],
        ["fc.weight", "mu_fc.weight", "linear.fc.weight"],  # a variational autoencoder, no step is counted
        ["fc.weight", "accum.fc.weight"],
        ["encoder.fc.weight", "encoder.moments.weight"],
        ["encoder.moments.fc.weight", "opt.global_step"],
        ["head.learning_rate", "global_step", "momentum"],  # scalars alone prove nothing
    ],
)
def test_names_that_only_look_like_states(names):
    assert marked(*names) == []


def test_optimizer_states_in_listings():
    file("l.csv", "keys\nfc.weight\nmoments.fc.weight\nglobal_step\n")
    kinds = [p.kind for p in open_source("l.csv", "mindspore").listing()]
    assert kinds == ["parameter", "optimizer", "optimizer"]
    assert {p.kind for p in open_source("l.csv", "torch").listing()} == {"parameter"}
    scalars = mark_optimizer_states([Param("w", (3,)), Param("moments.w", (3,)), Param("momentum", (3, 3))])
    assert [p.kind for p in scalars] == ["parameter", "optimizer", "parameter"]


# --- specs ------------------------------------------------------------------------------------------------------------

NET = """
import numpy as np
from automap.graph import Listing, Param
calls = []
def build(width=2, **more):
    calls.append(width)
    return {"w": np.ones(width, np.float32)}
class Models:
    @staticmethod
    def small():
        return build(1)
instance = {"w": np.ones(5)}
listing = Listing("torch", (Param("a"),))
number = 3
def broken():
    raise ValueError("no\\n   weights")
def picky(depth):
    return {}
def gives_number():
    return 3
def leaves():
    raise SystemExit("bye")
"""


def shape_of(spec: str, **args: object) -> tuple[int, ...] | None:
    return open_source(spec, "torch", args).listing().parameters[0].shape


@pytest.mark.parametrize("module", ["anet", "./anet.py", "anet.py", "sub/anet.py"])
def test_specs(module):
    file("anet.py", NET)
    file("sub/anet.py", NET)
    assert shape_of(f"{module}:build") == (2,)
    assert shape_of(f"{module}:build", width=7) == (7,)
    assert shape_of(f"{module}:Models.small") == (1,)
    assert shape_of(f"{module}:instance") == (5,)
    assert open_source(f"{module}:listing", "torch").listing() == Listing("torch", (Param("a"),))
    assert open_source(f"{module}:build", "torch").text == f"{module}:build"


def test_a_factory_is_called_once():
    file("bnet.py", NET)
    source = open_source("bnet:build", "torch", {"width": 4})
    source.listing(), source.read(), source.model()
    assert sys.modules["bnet"].calls == [4]


def test_live_factory():
    def factory(n):
        return {"w": np.ones(n)}

    source = open_source(factory, "torch", {"n": 3})
    assert source.listing().parameters[0].shape == (3,)
    assert source.text.endswith(":test_live_factory.<locals>.factory")


BAD_SPECS = {
    "no module": ("nomodule:build", "there is no module 'nomodule' for nomodule:build: run automap in the folder that holds it, install it, or give its file as path/to/file.py:attr"),
    "no submodule": ("json.nothing:build", "there is no module 'json.nothing' for json.nothing:build: run automap in the folder that holds it, install it, or give its file as path/to/file.py:attr"),
    "no file": ("sub/none.py:build", "there is no file sub/none.py: check the path (the working folder is {here})"),
    "no attribute": ("cnet:biuld", "cnet has no 'biuld', which cnet:biuld names; did you mean build?"),
    "nothing like it": ("cnet:xyzzy", "cnet has no 'xyzzy', which cnet:xyzzy names"),
    "no inner attribute": ("cnet:Models.smal", "cnet.Models has no 'smal', which cnet:Models.smal names; did you mean small?"),
    "raises": ("cnet:broken", "cnet:broken raised ValueError: no weights"),
    "exits": ("cnet:leaves", "cnet:leaves raised SystemExit: bye"),
    "arguments": ("cnet:picky", "cnet:picky raised TypeError: picky() missing 1 required positional argument: 'depth': give its arguments as name=value (--torch-arg, --ms-arg; args= in Python)"),
    "number": ("cnet:number", "cnet:number is an int: give a model, a class or factory of one, or a state dict"),
    "gives a number": ("cnet:gives_number", "cnet:gives_number gives an int, and not an nn.Module or nn.Cell: name what builds one"),
    "import raises": ("raising:build", "importing raising raised RuntimeError: at import"),
    "import exits": ("exiting:build", "importing exiting raised SystemExit: 2"),
    "import of another": ("needy:build", "importing needy raised ModuleNotFoundError: No module named 'not_here'"),
    "syntax": ("bad.py:build", "importing bad.py raised SyntaxError: invalid syntax (bad.py, line 1)"),
    "relative": ("rel.py:build", "importing rel.py raised ImportError: attempted relative import with no known parent package: it belongs to a package, so give it as package.module:attr"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SPECS)
def test_bad_spec(tmp_path, case):
    file("cnet.py", NET)
    file("raising.py", "raise RuntimeError('at import')")
    file("exiting.py", "import sys; sys.exit(2)")
    file("needy.py", "import not_here")
    file("bad.py", "def")
    file("rel.py", "from . import cnet")
    spec, message = BAD_SPECS[case]
    assert refusal(spec) == message.replace("{here}", str(tmp_path))


def test_the_cause_is_kept():
    file("dnet.py", NET)
    with pytest.raises(SourceError) as caught:
        open_source("dnet:broken", "torch")
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__cause__.__traceback__ is not None


def test_a_type_error_from_within_gets_no_advice_on_arguments():
    file("hnet.py", "def build(): return len(3)\n")
    assert refusal("hnet.py:build").startswith("hnet.py:build raised TypeError: object of type 'int' has no len()")
    file("hnet.py", "def inner(a): pass\ndef build(): return inner()\n")
    message = refusal("hnet.py:build")
    assert message == "hnet.py:build raised TypeError: inner() missing 1 required positional argument: 'a'"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a  b\n c"), "ValueError: a b c"),
        (ValueError("the matter\n\nmore of it"), "ValueError: the matter"),
        (ValueError("For 'MatMul' 5 and 3.\n----------\n- C++ Call Stack:"), "ValueError: For 'MatMul' 5 and 3."),
        (ValueError("x" * 301), f"ValueError: {'x' * 299}…"),
        (ValueError("x" * 300), f"ValueError: {'x' * 300}"),
        (KeyError(), "KeyError"),
    ],
)
def test_one_line(error, line):
    assert one_line(error) == line


def test_arguments_that_nothing_takes():
    file("enet.py", NET)
    assert refusal("enet:instance", args={"a": 1}) == "enet:instance is no class or factory and takes no arguments (a)"
    assert "unexpected keyword argument 'dept'" in refusal("enet:picky", args={"dept": 1})


def test_two_files_of_one_name_with_neighbours_of_one_name():
    for folder, width in (("one", 3), ("two", 4)):
        file(f"{folder}/layers.py", f"width = {width}")
        file(f"{folder}/net.py", "import numpy as np, layers\ndef build(): return {'w': np.ones(layers.width)}")
    assert [shape_of(f"{f}/net.py:build") for f in ("one", "two", "one")] == [(3,), (4,), (3,)]


def test_a_file_finds_its_neighbours_and_the_working_folder():
    file("here.py", "three = 3")
    file("sub/beside.py", "four = 4")
    file("sub/gnet.py", "import numpy as np, here, beside\nstate = {'w': np.ones((here.three, beside.four))}")
    assert shape_of("sub/gnet.py:state") == (3, 4)


def test_a_file_is_run_anew():
    file("fnet.py", "import numpy as np\nstate = {'w': np.ones(1)}")
    assert shape_of("fnet.py:state") == (1,)
    file(
        "fnet.py",
        "import numpy as np, sys\nstate = {'w': np.ones((2, 2))}\nmine = sys.modules[__name__].state is state\nassert mine",
    )
    assert shape_of("fnet.py:state") == (2, 2)


# --- live models ------------------------------------------------------------------------------------------------------

TORCH_NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(3, width)
instance = Net()
def build(width=4): return Net(width)
def empty(): return nn.ReLU()
"""
MS_NET = TORCH_NET.replace("torch", "mindspore").replace("nn.Module", "nn.Cell").replace("nn.Linear", "nn.Dense")


@frameworks
@pytest.mark.parametrize(("framework", "code"), [("torch", TORCH_NET), ("mindspore", MS_NET)])
@pytest.mark.parametrize("attr", ["Net", "build", "instance"])
def test_models_from_specs(framework, code, attr):
    name = f"live_{framework}"
    file(f"{name}.py", code)
    args = None if attr == "instance" else {"width": 6}
    for side in (framework, None):
        source = open_source(f"{name}.py:{attr}", side, args)
        width = 6 if args else 4
        assert source.framework == framework
        assert [(p.name, p.shape) for p in source.listing()] == [("fc.weight", (width, 3)), ("fc.bias", (width,))]
        assert source.model() is source.model()
        assert type(source.model()).__name__ == "Net"
        assert {n: a.shape for n, a in source.read().items()} == {"fc.weight": (width, 3), "fc.bias": (width,)}
    other = {"torch": "mindspore", "mindspore": "torch"}[framework]
    name_of = {"torch": "PyTorch", "mindspore": "MindSpore"}
    message = refusal(f"{name}.py:{attr}", other, args)
    what = "class" if attr == "Net" else "model"
    assert message == (
        f"{name}.py:{attr} is a {what} of {name_of[framework]}, given where {name_of[other]} is expected: both sides"
        f" cannot be {name_of[framework]}; give the PyTorch source first, then the MindSpore one"
    )
    assert refusal(f"{name}.py:empty", framework, error=ListingError) == (
        f"{name}.py:empty lists no parameter: is it the right model or file?"
    )


@frameworks
def test_live_models():
    import mindspore as ms
    import torch

    linear, dense = torch.nn.Linear(3, 2), ms.nn.Dense(3, 2)
    ours, theirs = open_source(linear, None), open_source(dense, None)
    assert (ours.framework, ours.text) == ("torch", "torch.nn.modules.linear:Linear")
    assert (theirs.framework, theirs.text) == ("mindspore", "mindspore.nn.layer.basic:Dense")
    assert ours.model() is linear
    assert theirs.model() is dense
    assert refusal(linear, "torch", {"bias": False}).endswith("is no class or factory and takes no arguments (bias)")
    assert open_source(torch.nn.Linear, "torch", {"in_features": 5, "out_features": 1}).listing().by_name[
        "weight"
    ].shape == (1, 5)
    assert wrapper_prefix(p.name for p in open_source(torch.nn.DataParallel(linear), "torch").listing()) == "module."


@frameworks
def test_the_listing_is_taken_before_a_forward_can_rename():
    import mindspore as ms

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = ms.nn.CellList([ms.nn.Dense(2, 2), ms.nn.Dense(2, 2)])

        def construct(self, x):
            for layer in self.layers[:1]:
                x = layer(x)
            return x

    net = Net()
    source = open_source(net, "mindspore")
    # A slice of a CellList renames the parameters in it.
    net(ms.Tensor(np.ones((1, 2), np.float32)))
    assert "0.weight" in {p.name for p in net.get_parameters()}  # else the test tests nothing
    assert [p.name for p in source.listing()] == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
    ]


@frameworks
def test_framework_of():
    import mindspore as ms
    import torch

    class Mine(torch.nn.Module):
        pass

    assert [framework_of(x) for x in (Mine, Mine(), torch.ones(1), ms.nn.Cell, ms.nn.ReLU(), ms.Tensor(1))] == [
        *["torch"] * 3,
        *["mindspore"] * 3,
    ]
    assert framework_of(ms.Parameter(ms.Tensor(1))) == "mindspore"
    assert [framework_of(x) for x in (3, np.ones(1), {}, dict, None)] == [None] * 5


# --- without the frameworks -------------------------------------------------------------------------------------------

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "mindspore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from automap.errors import SourceError
from automap.sources import open_source
for path, framework in (("net.pth", "torch"), ("net.ckpt", "mindspore"), ("net.safetensors", None), ("l.csv", "torch")):
    try:
        print(path, len(open_source(path, framework).listing()))
    except SourceError as error:
        print(error)
"""


def test_a_framework_that_is_not_there(run_python):
    file("net.pth", b"PK\x03\x04")
    file("net.ckpt", b"\n\x00")
    file("l.csv", "name\na\n")
    write_tensors("net.safetensors", {"w": W}, "torch")
    assert run_python(BLOCKED).stdout.splitlines() == [
        "net.pth needs PyTorch, which is not installed: pip install 'torch2ms-automap[torch]'",
        "net.ckpt needs MindSpore, which is not installed: pip install 'torch2ms-automap[mindspore]'",
        "net.safetensors 1",
        "l.csv 1",
    ]


def test_mindspore_is_quiet_before_a_spec_imports_it(run_python):
    file("inet.py", "import os\nlevel = {'level': os.environ.get('GLOG_v')}\n")
    code = (
        "import os; os.environ.pop('GLOG_v', None)\nfrom automap.sources import open_source\n"
        "from automap.specs import load_object\n"
        "try: open_source('inet.py:level', {side!r})\n"
        "except Exception: pass\n"
        "print(load_object('inet.py:level'))"
    )
    assert run_python(code.format(side="mindspore")).stdout == "{'level': '3'}\n"
    assert run_python(code.format(side="torch")).stdout == "{'level': None}\n"


def test_a_framework_that_is_broken(monkeypatch):
    def broken(name):
        raise AttributeError("`np.float_` was removed\nin NumPy 2.0")

    monkeypatch.setattr("automap.sources.importlib.import_module", broken)
    monkeypatch.setattr(np, "__version__", "2.1.0")
    assert refusal(file("net.ckpt", b"\n\x00"), "mindspore") == (
        "net.ckpt needs MindSpore, which cannot be imported: AttributeError: `np.float_` was removed in NumPy 2.0; it"
        " needs NumPy 1: pip install 'numpy<2'"
    )
