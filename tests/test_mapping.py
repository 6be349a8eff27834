from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap.errors import AutomapError, MappingError
from automap.graph import Listing, Param
from automap.mapping import Entry, Mapping, RunnerUp, Side, Unmatched
from automap.transforms import Transform

MAPPING = Mapping(
    torch=Side("net:Torch", 6, "sha256:0a"),
    mindspore=Side("net:Größe", 4, "sha256:0b"),
    entries=(
        Entry(
            ("_bn0.weight",),
            ("_bn0.gamma",),
            confidence=0.99984999,
            evidence={"proven": "forward", "structure": 1.0, "names": 0.7149999, "order": 1},
        ),
        Entry(
            ("conv.weight",),
            ("conv.weight",),
            (Transform("reshape", {"shape": [6, 4, 1, 3], "before": [6, 4, 3]}),),
            confidence=0.5,
            review=True,
            why='as likely "dconv.weight"',
            evidence={"names": 0.5, "proven": None},
            runner_up=RunnerUp(("conv.weight",), ("dconv.weight",), 0.01234567),
            path="net.conv.weight",
        ),
        Entry(
            ("attn.in_proj_weight",),
            ("attn.q.weight", "attn.k.weight"),
            (Transform("split", {"axis": 0, "sizes": [64, 64]}),),
        ),
    ),
    unmatched_torch=(
        Unmatched("_bn0.num_batches_tracked", "no counterpart in MindSpore"),
        Unmatched("fc.bias", "the port has no bias", review=True),
        Unmatched("head.weight", "tied", alias_of="conv.weight"),
    ),
    pins=("_bn0.*=_bn0.*",),
)

# The file, to the byte. A change here is a change of the format that users keep in git.
FILE = """\
{"format": "automap/1",
 "torch": {"source": "net:Torch", "parameters": 6, "fingerprint": "sha256:0a"},
 "mindspore": {"source": "net:Größe", "parameters": 4, "fingerprint": "sha256:0b"},
 "entries": [
  {"torch": ["_bn0.weight"], "mindspore": ["_bn0.gamma"], "confidence": 0.9998, "review": false, \
"evidence": {"names": 0.715, "order": 1, "structure": 1.0, "proven": "forward"}},
  {"torch": ["conv.weight"], "mindspore": ["conv.weight"], \
"transform": [{"op": "reshape", "shape": [6, 4, 1, 3], "before": [6, 4, 3]}], \
"confidence": 0.5, "review": true, "why": "as likely \\"dconv.weight\\"", \
"evidence": {"names": 0.5, "proven": null}, \
"runner_up": {"torch": ["conv.weight"], "mindspore": ["dconv.weight"], "margin": 0.0123}, \
"mindspore_path": "net.conv.weight"},
  {"torch": ["attn.in_proj_weight"], "mindspore": ["attn.q.weight", "attn.k.weight"], \
"transform": [{"op": "split", "axis": 0, "sizes": [64, 64]}], "confidence": 1.0, "review": false, "evidence": {}}
 ],
 "unmatched": {
  "torch": [
   {"name": "_bn0.num_batches_tracked", "why": "no counterpart in MindSpore"},
   {"name": "fc.bias", "why": "the port has no bias", "review": true},
   {"name": "head.weight", "why": "tied", "alias_of": "conv.weight"}
  ],
  "mindspore": []
 },
 "pins": [
  "_bn0.*=_bn0.*"
 ]
}
"""


def renames(**names: str) -> Mapping:
    return Mapping.from_dict(names)


# The file. ----------------------------------------------------------------------------------------------------------


def test_the_file_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "mapping.json"
    MAPPING.write(path)
    assert path.read_bytes() == FILE.encode()
    assert Mapping.read(path) == MAPPING
    path.write_bytes(FILE.encode())
    Mapping.read(str(path)).write(path)
    assert path.read_bytes() == FILE.encode()
    assert [p.name for p in tmp_path.iterdir()] == ["mapping.json"]


def test_the_example_of_the_format() -> None:
    """The shortest spelling: no evidence, no pins; and keys in another order."""
    text = """{"format": "automap/1",
      "mindspore": {"parameters": 1, "source": "", "fingerprint": ""},
      "torch": {"source": "", "parameters": 1, "fingerprint": ""},
      "entries": [{"review": false, "torch": ["a"], "mindspore": ["b"], "confidence": 1}],
      "unmatched": {"torch": [], "mindspore": []}}"""
    assert Mapping.from_json(text).torch_2_ms == {"a": "b"}


NAMES = st.text(max_size=6)
NUMBERS = st.floats(0, 1)
EVIDENCE = st.dictionaries(
    st.sampled_from(["names", "order", "structure", "proven", "dataflow", "Zzz"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-1e6, 1e6)
    | st.text(max_size=3)
    | st.lists(NUMBERS, max_size=2),
)


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    torch = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    mindspore = draw(st.lists(NAMES, min_size=len(torch), max_size=8, unique=True))
    matched = draw(st.integers(0, len(torch)))
    step = st.sampled_from([Transform("transpose", {"axes": [1, 0]}), Transform("reshape", {"shape": []})])
    runner_up = st.builds(RunnerUp, st.tuples(NAMES), st.tuples(NAMES), NUMBERS)
    entries = [
        Entry(
            (t,),
            (m,),
            tuple(draw(st.lists(step, max_size=2))),
            confidence=draw(NUMBERS),
            review=draw(st.booleans()),
            why=draw(NAMES),
            evidence=draw(EVIDENCE),
            runner_up=draw(st.none() | runner_up),
            path=draw(st.none() | NAMES),
        )
        for t, m in zip(torch[:matched], mindspore[:matched], strict=True)
    ]

    def unmatched(names: list[str]) -> tuple[Unmatched, ...]:
        return tuple(Unmatched(n, draw(NAMES), draw(st.booleans()), draw(st.none() | NAMES)) for n in names)

    side = st.builds(Side, NAMES, st.integers(0, 2**40), NAMES)
    return Mapping(
        draw(side),
        draw(side),
        tuple(entries),
        unmatched(torch[matched:]),
        unmatched(mindspore[matched:]),
        tuple(draw(st.lists(NAMES, max_size=2))),
        draw(st.booleans()),
    )


@given(mappings())
def test_round_trip(mapping: Mapping) -> None:
    text = mapping.to_json()
    assert Mapping.from_json(text) == mapping
    assert Mapping.from_json(text).to_json() == text
    json.loads(text)
    lines = text.split("\n")
    assert sum(line.startswith('  {"torch"') for line in lines) == len(mapping)
    assert sum(line.startswith('   {"name"') for line in lines) == sum(map(len, mapping.unmatched.values()))


@given(st.text(st.characters(codec=None), min_size=1, max_size=3))
def test_any_name_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Also a lone surrogate, which Python makes of a file name that is no UTF-8."""
    path = tmp_path_factory.mktemp("m") / "m.json"
    mapping = Mapping.from_dict({name: name})
    mapping.write(path)
    assert Mapping.read(path) == mapping


def test_equal_mappings_have_equal_bytes() -> None:
    def entry(evidence: dict[str, object]) -> Mapping:
        return replace(renames(a="b"), entries=(Entry(("a",), ("b",), evidence=evidence),))

    one = entry({"names": 1.0, "z": 0.25, "b": np.float32(0.1), "proven": None})
    two = entry({"proven": None, "b": 0.1, "z": 0.25, "names": 1.0})
    assert one == two
    assert one.to_json() == two.to_json()


def test_numbers_are_plain_and_short() -> None:
    e = Entry(("a",), ("b",), confidence=np.float32(1 / 3), evidence={"names": np.float64(-0.00001), "n": np.int64(3)})
    assert (e.confidence, str(e.evidence)) == (0.3333, "{'names': 0.0, 'n': 3}")


def test_lists_are_taken_for_tuples() -> None:
    step = Transform("split", {"axis": 0, "sizes": [1, 1]})
    e = Entry(["a"], ["b", "c"], [step], runner_up=RunnerUp(["a"], ["d"], 0.5))  # type: ignore[arg-type]
    assert e == Entry(("a",), ("b", "c"), (step,), runner_up=RunnerUp(("a",), ("d",), 0.5))
    side = Side("", 1, "")
    assert Mapping(side, side, [e], [], [], ["p"]) == Mapping(side, side, (e,), pins=("p",))  # type: ignore[arg-type]


def test_evidence_may_be_nested() -> None:
    e = Entry(("a",), ("b",), evidence={"votes": {"x": np.float32(0.1), "y": (1, 0.123456)}})
    assert e.evidence == {"votes": {"x": 0.1, "y": [1, 0.1235]}}
    mapping = replace(renames(a="b"), entries=(e,))
    assert Mapping.from_json(mapping.to_json()) == mapping


def test_why_belongs_to_a_review() -> None:
    assert Entry(("a",), ("b",), why="because").why == ""
    assert Entry(("a",), ("b",), review=True, why="because").why == "because"


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b"\xef\xbb\xbf" + FILE.encode())
    assert Mapping.read(path) == MAPPING


def test_write_replaces_the_file_behind_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text("old")
    link = tmp_path / "m.json"
    link.symlink_to(real)
    MAPPING.write(link)
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == FILE


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.json"
    path.write_text("old")

    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as f:
            f.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MappingError, match=r"m\.json cannot be written: No space left on device"):
        MAPPING.write(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["m.json"]


def edited(**changes: object) -> str:
    """The file's text with one place of its JSON changed: ``entries__0__review=5``, or ``…=KeyError`` to remove it."""
    data = json.loads(FILE)
    for place, value in changes.items():
        *outer, last = (int(part) if part.isdigit() else part for part in place.split("__"))
        inside = data
        for part in outer:
            inside = inside[part]
        if value is KeyError:
            del inside[last]
        else:
            inside[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "F: not JSON or damaged (line 1: Expecting value); restore it or run automap infer again"),
        (
            FILE[: FILE.index('"order"')],
            "F: not JSON or damaged (line 5: Expecting property name enclosed in double quotes); "
            "restore it or run automap infer again",
        ),
        ("[" * 100_000, "F: not JSON or damaged; restore it or run automap infer again"),
        ("[]", 'F: not a mapping: it lacks "format"; write one with automap infer'),
        ('{"entries": []}', 'F: not a mapping: it lacks "format"; write one with automap infer'),
        (
            edited(format="automap/2"),
            "F: format 'automap/2' is unknown here, this automap reads 'automap/1'; "
            "upgrade automap, or run automap infer again",
        ),
        (edited(entries=KeyError), 'F: it lacks "entries": add it, or run automap infer again'),
        (
            edited(entires=[]),
            'F: it has an unknown key "entires": known are format, torch, mindspore, entries, unmatched, pins, '
            "reverse, proof",
        ),
        (edited(entries={}), 'F: it: "entries" must be a list, not {}'),
        (edited(torch=[]), 'F: it: "torch" must be an object, not []'),
        (edited(torch__source=KeyError), 'F: "torch" lacks "source": add it, or run automap infer again'),
        (edited(torch__parameters=True), 'F: "torch": "parameters" must be a whole number, not True'),
        (edited(unmatched__ms=[]), 'F: "unmatched" has an unknown key "ms": known are torch, mindspore'),
        (
            edited(entries__0__torch="a"),
            "F: entry 1: \"torch\" must be a list, not 'a'",
        ),
        (
            edited(entries__1__runner_up__margin=KeyError),
            'F: entry 2 (conv.weight), "runner_up" lacks "margin": add it, or run automap infer again',
        ),
        (
            edited(entries__0__mindspore=[]),
            "F: entry _bn0.weight ->  lacks a name on one side: move the other to unmatched",
        ),
        (edited(entries__0=1), "F: entry 1 must be an object, not 1"),
        (
            edited(entries__0__mindspore=KeyError),
            'F: entry 1 (_bn0.weight) lacks "mindspore": add it, or run automap infer again',
        ),
        (edited(entries__0__review="no"), "F: entry 1 (_bn0.weight): \"review\" must be true or false, not 'no'"),
        (edited(entries__0__torch=[1]), 'F: entry 1 (1): "torch" must be a list of names, not [1]'),
        (
            edited(entries__0__confidence=1.5),
            'F: entry 1 (_bn0.weight): "confidence" must be a number from 0 to 1, not 1.5',
        ),
        (
            edited(entries__0__confidence=float("nan")),
            'F: entry 1 (_bn0.weight): "confidence" must be a number from 0 to 1, not nan',
        ),
        (
            edited(entries__2__transform__0__axis=-1),
            "F: entry 3 (attn.in_proj_weight): split: axis must be a whole number from 0 on, not -1",
        ),
        (
            edited(entries__2__mindspore=["q"]),
            "F: entry attn.in_proj_weight -> q [split(axis=0, sizes=[64, 64])]: "
            "its transform makes 2 array(s) of 1, but it names 1: correct its transform or its names",
        ),
        (
            edited(entries__2__torch=["a", "b"]),
            "F: entry a, b -> attn.q.weight, attn.k.weight [split(axis=0, sizes=[64, 64])]: "
            "split takes one array, not 2",
        ),
        (
            edited(entries__0__torch=[]),
            "F: entry  -> _bn0.gamma lacks a name on one side: move the other to unmatched",
        ),
        (
            edited(entries__0__torch=["fc.bias"]),
            "F: torch name 'fc.bias' appears twice: keep one of its entries",
        ),
        (
            edited(entries__0__mindspore=["conv.weight"]),
            "F: mindspore name 'conv.weight' appears twice: keep one of its entries",
        ),
        (
            edited(unmatched__torch__0__why=KeyError),
            'F: unmatched torch name 1 lacks "why": add it, or run automap infer again',
        ),
        (
            edited(entries__1__runner_up__margin="x"),
            'F: entry 2 (conv.weight), "runner_up": "margin" must be a number, not \'x\'',
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MappingError) as e:
        Mapping.read(path)
    assert str(e.value) == message.replace("F", str(path), 1)
    assert e.value.path == str(path)
    assert e.value.exit_code == 2
    assert "\n" not in str(e.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match=r"none\.json: no such file; write it with automap infer"):
        Mapping.read(tmp_path / "none.json")
    with pytest.raises(MappingError, match=r"cannot be read \(Is a directory\)"):
        Mapping.read(tmp_path)
    (tmp_path / "m.json").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(MappingError, match=r"m\.json: not a text file; a mapping is JSON or CSV in UTF-8"):
        Mapping.read(tmp_path / "m.json")
    with pytest.raises(MappingError, match=r"m\.json cannot be written: No such file or directory"):
        MAPPING.write(tmp_path / "none" / "m.json")


def test_a_value_that_json_cannot_hold() -> None:
    bad = replace(renames(a="b"), entries=(Entry(("a",), ("b",), evidence={"names": float("inf")}),))
    with pytest.raises(MappingError, match="the mapping holds a value that JSON cannot"):
        bad.to_json()


# The table. ---------------------------------------------------------------------------------------------------------


def test_the_table_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    renames(**{"_bn0.weight": "_bn0.gamma", 'odd,"name"': "b"}).write(path)
    assert path.read_bytes() == b'Pytorch,mindspore\n_bn0.weight,_bn0.gamma\n"odd,""name""",b\n'
    assert Mapping.read(path).torch_2_ms == {"_bn0.weight": "_bn0.gamma", 'odd,"name"': "b"}


def test_the_table_keeps_transforms(tmp_path: Path) -> None:
    path = tmp_path / "t.CSV"
    MAPPING.write(path)
    assert path.read_text() == (
        "Pytorch,mindspore,transform\n"
        "_bn0.weight,_bn0.gamma,\n"
        'conv.weight,conv.weight,"reshape(shape=[6, 4, 1, 3], before=[6, 4, 3])"\n'
        'attn.in_proj_weight,attn.q.weight;attn.k.weight,"split(axis=0, sizes=[64, 64])"\n'
    )
    read = Mapping.read(path)
    assert [(e.torch, e.mindspore, e.transform) for e in read.entries] == [
        (e.torch, e.mindspore, e.transform) for e in MAPPING.entries
    ]


@given(st.dictionaries(NAMES.map(lambda s: f"t{s}t"), NAMES.map(lambda s: f"m{s}m"), min_size=1, max_size=4))
def test_table_round_trip(names: dict[str, str]) -> None:
    if len(set(names.values())) < len(names):
        return
    mapping = Mapping.from_dict(names)
    if any("\r" in name for name in (*names, *names.values())):
        with pytest.raises(MappingError, match="the table cannot hold this name"):
            mapping.to_csv()
    else:
        assert Mapping.from_csv(mapping.to_csv()).torch_2_ms == names


def test_a_table_as_pandas_and_excel_write_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeff,PyTorch,MindSpore,note\r\n0,a, b ,x\r\n\r\n1,n,,dropped\r\n".encode())
    mapping = Mapping.read(path)
    assert mapping.torch_2_ms == {"a": "b"}
    assert mapping.unmatched["torch"] == [Unmatched("n", "left out on purpose")]
    assert not mapping.needs_review
    assert (mapping.torch.parameters, mapping.mindspore.parameters) == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "F: the first line must name the columns Pytorch,mindspore"),
        ("a,b\n", "F: the first line must name the columns Pytorch,mindspore"),
        ("Pytorch,mindspore\n", "F: the mapping has no entry: give it PyTorch names and their MindSpore names"),
        ("Pytorch,mindspore\na,b\n,c\n", "F: line 3 has no PyTorch name: fill it in or remove the line"),
        ("Pytorch,mindspore\na,b\na,c\n", "F: torch name 'a' appears twice: keep one of its entries"),
        (
            "Pytorch,mindspore,transform\na,b,turn\n",
            "F: line 2: 'turn' is no transform; one looks like transpose(axes=[1, 0])",
        ),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(MappingError) as e:
        Mapping.read(path)
    assert str(e.value) == message.replace("F", str(path), 1)
    assert e.value.path == str(path)


def test_what_a_table_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match="a table leads from PyTorch to MindSpore"):
        renames(a="b").invert().to_csv()
    odd = replace(renames(a="b"), entries=(Entry(("a;b",), ("c",), (Transform("transpose", {"axes": [0]}),)),))
    with pytest.raises(MappingError, match=r"entry a;b -> c .*: the table cannot hold this name: write \.json"):
        odd.to_csv()
    assert renames(**{"a;b": "c"}).to_csv() == "Pytorch,mindspore\na;b,c\n"
    for name in (" a", "a ", "", "a\rb"):
        with pytest.raises(MappingError, match="the table cannot hold this name"):
            renames(**{name: "c"}).to_csv()
    with pytest.raises(MappingError, match="a name in it has no UTF-8 form"):
        renames(a="\udc80").write(tmp_path / "t.csv")


def test_from_dict() -> None:
    mapping = Mapping.from_dict({"a": "b", "head.bias": None})
    assert mapping.torch_2_ms == {"a": "b"}
    assert [u.name for u in mapping.unmatched_torch] == ["head.bias"]
    with pytest.raises(MappingError, match="mindspore name 'x' appears twice"):
        Mapping.from_dict({"a": "x", "b": "x"})
    with pytest.raises(MappingError, match="a dict of names to names, not of 'a' to 3"):
        Mapping.from_dict({"a": 3})  # type: ignore[dict-item]
    with pytest.raises(MappingError, match="a dict of names to names, not of 3 to 'a'"):
        Mapping.from_dict({3: "a"})  # type: ignore[dict-item]
    with pytest.raises(MappingError, match="the mapping has no entry"):
        Mapping.from_dict({})


def test_text_without_a_file() -> None:
    with pytest.raises(MappingError, match=r"^the mapping: not JSON or damaged"):
        Mapping.from_json("")
    with pytest.raises(MappingError, match=r"^the table: the first line must name"):
        Mapping.from_csv("")


# The value. ---------------------------------------------------------------------------------------------------------


def test_every_name_appears_once() -> None:
    side = Side("", 1, "")
    with pytest.raises(MappingError, match="torch name 'a' appears twice"):
        Mapping(side, side, (Entry(("a",), ("b",)),), unmatched_torch=(Unmatched("a", "?"),))
    with pytest.raises(MappingError, match="mindspore name 'b' appears twice"):
        Mapping(side, side, (Entry(("a",), ("b",)), Entry(("c",), ("b",))))
    Mapping(side, side, (Entry(("a",), ("a",)),))  # once on each side


def test_views_of_it() -> None:
    assert len(MAPPING) == 3
    assert MAPPING.torch_2_ms == {"_bn0.weight": "_bn0.gamma", "conv.weight": "conv.weight"}
    assert MAPPING.needs_review
    assert MAPPING.reviewed == (MAPPING.entries[1],)
    assert MAPPING.unmatched == {"torch": list(MAPPING.unmatched_torch), "mindspore": []}
    assert MAPPING.find("attn.k.weight") == (MAPPING.entries[2],)
    assert MAPPING.find("conv.weight") == (MAPPING.entries[1],)
    assert MAPPING.find("fc.bias") == (MAPPING.unmatched_torch[1],)
    assert MAPPING.find("none") == ()
    assert list(MAPPING.names("mindspore")) == ["_bn0.gamma", "conv.weight", "attn.q.weight", "attn.k.weight"]
    assert not replace(MAPPING, entries=MAPPING.entries[:1], unmatched_torch=()).needs_review
    assert replace(MAPPING, entries=MAPPING.entries[:1]).needs_review  # for the bias without a home


def test_side_of_a_listing() -> None:
    listing = Listing("torch", (Param("a"),), "net:Net")
    assert Side.of(listing) == Side("net:Net", 1, listing.fingerprint)


def test_invert() -> None:
    back = MAPPING.invert()
    assert (MAPPING.given, MAPPING.made) == ("torch", "mindspore")
    assert (back.given, back.made) == ("mindspore", "torch")
    assert back.entries[1].transform == (Transform("reshape", {"shape": [6, 4, 3], "before": [6, 4, 1, 3]}),)
    assert back.entries[2].transform == (Transform("concat", {"axis": 0, "sizes": [64, 64]}),)
    assert back.torch_2_ms == MAPPING.torch_2_ms
    assert back != MAPPING
    assert Mapping.from_json(back.to_json()) == back
    assert back.invert() == MAPPING


def test_what_cannot_be_inverted_is_named() -> None:
    step = (Transform("reshape", {"shape": [6]}),)
    side = Side("", 2, "")
    mapping = Mapping(side, side, (Entry(("a",), ("x",), step), Entry(("b",), ("y",), step), Entry(("c",), ("z",))))
    with pytest.raises(MappingError) as e:
        mapping.invert()
    assert str(e.value) == (
        '2 of 3 entries cannot be inverted: a (reshape to [6] has no inverse without the shape "before"); '
        'b (reshape to [6] has no inverse without the shape "before")'
    )
    back = mapping.invert({"a": [2, 3], "b": (3, 2)})
    assert [e.transform[0].args["shape"] for e in back.entries[:2]] == [[2, 3], [3, 2]]


# For people. --------------------------------------------------------------------------------------------------------


def printed(mapping: Mapping) -> str:
    from rich.console import Console

    console = Console(width=200, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        console.print(mapping)
        return console.export_text()


def test_rich() -> None:
    text = printed(MAPPING)
    assert text.index("conv.weight") < text.index("_bn0.weight"), "what needs review comes first"
    assert 'as likely "dconv.weight"' in text
    assert "3 matched, 3 unmatched in PyTorch, 0 unmatched in MindSpore, 2 to review" in text
    assert "[bold]" in printed(renames(**{"[bold]": "x"})), "a name is no markup"
    long = printed(Mapping.from_dict({f"t{i}": f"m{i}" for i in range(300)}))
    assert len(long.splitlines()) < 20
    assert "… and 288 more; 300 matched" in long
    assert "more" not in text
    assert "MindSpore -> PyTorch" in printed(MAPPING.invert())


def test_html() -> None:
    evil = '<script>alert("x")</script>'
    html = Mapping(Side("", 1, ""), Side("", 1, ""), (Entry((evil,), (evil,), review=True, why=evil),))._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3
    assert "1 matched, 0 unmatched in PyTorch" in html
    assert re.findall("<th>(.*?)</th>", html)[:2] == ["PyTorch", "MindSpore"]


def test_html_needs_no_rich(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    MAPPING.write(path)
    code = (
        "import sys\n"
        "for m in ('rich', 'torch', 'mindspore'): sys.modules[m] = None\n"
        "from automap.mapping import Mapping\n"
        "print(len(Mapping.read(sys.argv[1])._repr_html_()))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(run.stdout) == len(MAPPING._repr_html_())


def test_its_errors_are_automaps() -> None:
    assert issubclass(MappingError, AutomapError)
