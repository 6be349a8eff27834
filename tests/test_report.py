"""Mappings in words: groups, the summary, explanations, differences, the page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from automap.errors import MappingError
from automap.evidence import Proof
from automap.graph import Listing, Param
from automap.mapping import Entry, Mapping, RunnerUp, Side, Unmatched
from automap.report import (
    Group,
    counts,
    differences,
    explain,
    grouped,
    left_over,
    lines_of_names,
    summary,
    table,
    to_html,
    to_review,
)
from automap.transforms import Transform

COUNTER = "a counter that MindSpore does not keep"
EVIDENCE = {"names": 0.71, "order": 1.0, "structure": 0.4, "proven": None}


def example() -> Mapping:
    """Two blocks, a kernel that is reshaped, an entry in doubt in each block, counters, a head, a lost bias."""
    entries = [Entry(("stem.weight",), ("stem.weight",), (Transform("reshape", {"shape": [4, 1, 3]}),), 0.98)]
    unmatched = []
    for i in range(2):
        entries += [
            Entry((f"layers.{i}.norm1.weight",), (f"cells.{i}.n1.gamma",), (), 0.99, evidence=EVIDENCE),
            Entry(
                (f"layers.{i}.q.weight",),
                (f"cells.{i}.k.weight",),
                (Transform("transpose", {"axes": [1, 0]}),),
                0.5,
                True,
                f"cells.{i}.q.weight fits as well",
                EVIDENCE,
                RunnerUp((f"layers.{i}.q.weight",), (f"cells.{i}.q.weight",), 0.0),
            ),
        ]
        unmatched.append(Unmatched(f"layers.{i}.norm1.num_batches_tracked", COUNTER))
    unmatched += [
        Unmatched("norm.num_batches_tracked", COUNTER),
        Unmatched("aux.conv.weight", "nothing in MindSpore is like it"),
        Unmatched("aux.conv.bias", "nothing in MindSpore is like it"),
        Unmatched("lost.bias", "it has no home", True),
        Unmatched("tied.weight", "another name of stem.weight", alias_of="stem.weight"),
    ]
    return Mapping(
        Side("net.py:build", 13, "sha256:" + "1" * 64),
        Side("port.py:build", 6, "sha256:" + "2" * 64),
        tuple(entries),
        tuple(unmatched),
        (Unmatched("extra.weight", "nothing in PyTorch is like it"),),
        ("stem.*=stem.*",),
    )


# -- groups ------------------------------------------------------------------------------------------------------------


def test_texts_that_differ_in_numbers_are_one_group():
    items = [(f"layers.{i}.conv1.weight", f"cells.{i}.c is as good") for i in (0, 11, 2)]
    assert grouped(items) == [
        Group("layers.*.conv1.weight", "cells.*.c is as good", tuple(what for what, _ in items)),
    ]


def test_numbers_that_are_the_same_throughout_stay():
    (group,) = grouped([("a.1.conv2.weight", "by 0.5"), ("a.3.conv2.weight", "by 0.5")])
    assert (group.what, group.why, len(group)) == ("a.*.conv2.weight", "by 0.5", 2)


def test_other_reasons_and_other_words_are_other_groups_the_largest_first():
    items = [("a.0", "x"), ("b.0", "y"), ("b.1", "y"), ("b.2", "z")]
    assert [(g.what, g.why) for g in grouped(items)] == [("b.*", "y"), ("a.0", "x"), ("b.2", "z")]


def test_what_is_left_over_is_called_by_what_it_is_all_of():
    found = [(g.what, len(g), g.why) for g in left_over(example(), "torch")]
    assert found == [
        ("num_batches_tracked", 3, COUNTER),
        ("aux.*", 2, "nothing in MindSpore is like it"),
        ("tied.weight", 1, "another name of stem.weight"),
    ]


def test_a_word_that_others_have_too_is_no_label():
    entries = (Entry(("a.bias",), ("a.bias",)),)
    side = Side("", 3, "")
    mapping = Mapping(side, side, entries, (Unmatched("b.bias", "why"), Unmatched("c.bias", "why")))
    assert [g.what for g in left_over(mapping, "torch")] == ["b.bias", "c.bias"]


def test_left_over_and_to_review_share_nothing_and_miss_nothing():
    mapping = example()
    reviewed = [m for g in to_review(mapping) for m in g.members]
    assert reviewed == ["lost.bias (PyTorch, unmatched)", *(str(e) for e in mapping.reviewed)]
    left = [m for f in ("torch", "mindspore") for g in left_over(mapping, f) for m in g.members]
    assert len(left) + 1 == len(mapping.unmatched_torch) + len(mapping.unmatched_mindspore)


def test_names_with_reasons_in_lines():
    assert lines_of_names({"a.0.t": "old", "a.1.t": "old", "b": "new"}) == ["     2  a.*.t: old", "     1  b: new"]
    every = ("a.0.t", "a.1.t", "b", "b.w")
    assert lines_of_names({"a.0.t": "old", "a.1.t": "old", "b": "new"}, every)[0] == "     2  t: old"


# -- the summary -------------------------------------------------------------------------------------------------------


def test_counts():
    assert counts(example()) == {"same name": 1, "renamed": 4, "reshaped": 1, "transposed": 2}
    joined = Entry(("a", "b"), ("c",), (Transform("concat", {"axis": 0}),))
    assert counts(Mapping(Side("", 2, ""), Side("", 1, ""), (joined,))) == {"renamed": 1, "joined": 1}


def test_summary():
    assert summary(example()) == (
        "PyTorch    net.py:build   13 parameters\n"
        "MindSpore  port.py:build  6 parameters\n"
        "\n"
        "matched 5: 1 same name, 4 renamed, 1 reshaped, 2 transposed\n"
        "to review 3:\n"
        "     1  lost.bias (PyTorch, unmatched): it has no home\n"
        "     2  layers.*.q.weight -> cells.*.k.weight [transpose(axes=[1, 0])]\n"
        "        cells.*.q.weight fits as well\n"
        "unmatched in PyTorch 7 (1 of them above):\n"
        "     3  num_batches_tracked: a counter that MindSpore does not keep\n"
        "     2  aux.*: nothing in MindSpore is like it\n"
        "     1  tied.weight: another name of stem.weight\n"
        "unmatched in MindSpore 1:\n"
        "     1  extra.weight: nothing in PyTorch is like it\n"
        "pinned: stem.*=stem.*"
    )


def test_a_summary_shows_a_handful_and_says_how_many_more():
    entries = [Entry((c,), (c,), review=True, why=f"{c} is in doubt") for c in "abcdefghij"]
    side = Side("s", 10, "")
    mapping = Mapping(side, side, tuple(entries))
    lines = summary(mapping).split("\n")
    assert lines[4:12] == [
        "to review 10:",
        *(f"     1  {c} -> {c}: {c} is in doubt" for c in "abcdef"),
        "        … and 4 more in 4 other kinds",
    ]
    assert "j -> j: j is in doubt" in summary(mapping, shown=None)


def test_doubtful_entries_do_not_hide_lost_parameters():
    entries = [Entry((f"a.{c}",), (f"b.{c}",), review=True, why=c) for c in "abcdefghij"]
    side = Side("s", 11, "")
    mapping = Mapping(side, side, tuple(entries), (Unmatched("lost.bias", "no home", True),))
    assert "\nto review 11:\n     1  lost.bias (PyTorch, unmatched): no home\n     1  a.a -> b.a: a\n" in summary(
        mapping
    )


def test_a_summary_of_nothing_wrong_has_no_lists():
    side = Side("s", 1, "")
    assert summary(Mapping(side, side, (Entry(("a",), ("a",)),))).split("\n")[3:] == [
        "matched 1: 1 same name",
        "to review 0",
        "unmatched in PyTorch 0",
        "unmatched in MindSpore 0",
    ]


def test_table_of_a_listing():
    listing = Listing(
        "torch", (Param("a.weight", (3, 2), "float32", owner="Linear"), Param("n", (), "int64", "buffer"))
    )
    assert table(listing) == (
        "name      shape  dtype    kind       owner\n"
        "a.weight  3×2    float32  parameter  Linear\n"
        "n         ()     int64    buffer"
    )
    assert table(Listing("torch", (Param("a"), Param("b")))) == "name\na\nb"


# -- explanations ------------------------------------------------------------------------------------------------------


def test_explain_by_either_name():
    words = (
        "layers.1.q.weight -> cells.1.k.weight\n"
        "  on the way: transpose(axes=[1, 0])\n"
        "  confidence 0.5\n"
        "  marked for review: cells.1.q.weight fits as well\n"
        "  names: good, 0.71 (how alike the words of both names are)\n"
        "  order: strong, 1.00 (the place in definition order)\n"
        "  structure: some, 0.40 (the layer's other parameters, the modules around it, the repeated blocks)\n"
        "  not proven: the networks were not run\n"
        "  the best other choice is cells.1.q.weight, level with it: nothing tells the two apart"
    )
    assert explain(example(), "layers.1.q.weight") == words
    assert explain(example(), "cells.1.k.weight") == words


def test_explain_what_else_there_is_to_say():
    entry = Entry(
        ("stem.weight",),
        ("stem.w",),
        evidence={"new": 0.01, "proven": "forward", "kernel": "same"},
        runner_up=RunnerUp(("other.weight",), ("stem.w",), 0.25),
        path="stem.weight",
    )
    mapping = replace(example(), entries=(entry,))
    assert explain(mapping, "stem.w").split("\n") == [
        "stem.weight -> stem.w",
        "  in the MindSpore network it is the attribute stem.weight",
        "  confidence 1",
        "  pinned by stem.*=stem.*",
        "  kernel: same",
        "  new: none, 0.01",
        "  proven by running both networks",
        "  the best other choice is other.weight, 0.25 behind",
    ]
    swapped = replace(entry, runner_up=RunnerUp(("a",), ("b",), 0.1), evidence={"proven": "gradient"})
    last = explain(replace(mapping, entries=(swapped,)), "stem.w").split("\n")[-2:]
    assert last == [
        "  proven: the gradients of both networks agree",
        "  the best other choice is a -> b, 0.1 behind",
    ]
    alone = replace(entry, runner_up=RunnerUp(("stem.weight",), (), 0.9))
    assert "is no counterpart at all, 0.9 behind" in explain(replace(mapping, entries=(alone,)), "stem.w")


def test_explain_no_other_choice():
    assert explain(example(), "layers.0.norm1.weight").endswith("\n  there is no other choice")
    assert "no other choice" not in explain(example(), "stem.weight")  # it is pinned


def test_explain_unmatched():
    assert explain(example(), "norm.num_batches_tracked") == (
        f"norm.num_batches_tracked (PyTorch) has no counterpart in MindSpore: {COUNTER}"
    )
    assert explain(example(), "extra.weight").startswith("extra.weight (MindSpore) has no counterpart in PyTorch: ")
    assert explain(example(), "lost.bias").split("\n")[1] == (
        "  marked for review: a person has to decide where it belongs"
    )
    assert explain(example(), "tied.weight").split("\n")[1] == (
        "  it is another name of stem.weight, and goes where that goes"
    )


def test_explain_a_name_that_both_sides_have_for_different_things():
    side = Side("", 2, "")
    mapping = Mapping(side, side, (Entry(("a",), ("b",)), Entry(("c",), ("a",))))
    assert [p.split("\n")[0] for p in explain(mapping, "a").split("\n\n")] == ["a -> b", "c -> a"]


def test_explain_a_pattern():
    words = explain(example(), "layers.*.q.weight").split("\n\n")
    assert [w.split("\n")[0] for w in words] == [f"layers.{i}.q.weight -> cells.{i}.k.weight" for i in (0, 1)]
    assert explain(example(), "*num_batches_tracked").count("has no counterpart") == 3
    many = replace(example(), entries=tuple(Entry((f"a.{i}",), (f"b.{i}",)) for i in range(13)))
    assert explain(many, "a.*").endswith("\n\n… and 3 more like a.*")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layers.0.q.wieght", "did you mean layers.0.q.weight or layers.1.q.weight or cells.0.q.weight?"),
        ("norm1", "did you mean layers.0.norm1.weight or layers.1.norm1.weight"),
        ("§", "the names are in the file"),
        ("[*", "the names are in the file"),
    ],
)
def test_explain_an_unknown_name(name, hint):
    with pytest.raises(MappingError) as caught:
        explain(example(), name, "m.json")
    words = str(caught.value)
    assert words.startswith(f"m.json has no name {name!r} on either side; {hint[:28]}")
    assert caught.value.path == "m.json"


# -- differences -------------------------------------------------------------------------------------------------------


def changed(**changes: object) -> str:
    return str(differences(example(), replace(example(), **changes), ("a.json", "b.json")))


def with_entry(i: int, **changes: object) -> dict[str, object]:
    entries = list(example().entries)
    entries[i] = replace(entries[i], **changes)
    return {"entries": tuple(entries)}


def test_no_difference():
    found = differences(example(), example())
    assert (found.changes, found.notes, str(found)) == ((), (), "no difference")


def test_another_home():
    assert changed(**with_entry(2, mindspore=("extra.weight",)), unmatched_mindspore=()) == (
        "1 difference(s):\n"
        "     1  layers.0.q.weight\n"
        "        -> cells.0.k.weight by transpose(axes=[1, 0]) in a.json, "
        "-> extra.weight by transpose(axes=[1, 0]) in b.json"
    )


def test_the_same_difference_in_every_block_is_one_line():
    entries = [replace(e, transform=()) for e in example().entries]
    assert changed(entries=tuple(entries)).split("\n") == [
        "3 difference(s):",
        "     2  layers.*.q.weight",
        "        -> cells.*.k.weight by transpose(axes=[1, 0]) in a.json, -> cells.*.k.weight in b.json",
        "     1  stem.weight: -> stem.weight by reshape(shape=[4, 1, 3]) in a.json, -> stem.weight in b.json",
    ]


def test_a_home_lost_or_gained():
    lost = {
        "entries": example().entries[1:],
        "unmatched_torch": (*example().unmatched_torch, Unmatched("stem.weight", "x")),
    }
    assert changed(**lost).split("\n")[1:] == [
        "     1  stem.weight: -> stem.weight by reshape(shape=[4, 1, 3]) in a.json, unmatched in b.json",
        # and what it left behind is in no entry of b.json, and not among its unmatched names
    ]


def test_marks():
    assert changed(**with_entry(2, review=False)).split("\n")[1:] == [
        "     1  layers.0.q.weight: marked for review in a.json only: cells.0.q.weight fits as well",
    ]
    unmatched = (*example().unmatched_torch[:-1], Unmatched("tied.weight", "it is lost", True))
    assert changed(unmatched_torch=unmatched).split("\n")[1:] == [
        "     1  tied.weight: marked for review in b.json only: it is lost",
    ]


def test_names_that_only_one_knows():
    assert changed(unmatched_mindspore=()).split("\n")[1:] == [
        "     1  extra.weight: unmatched in a.json, absent in b.json",
    ]


def test_other_models_and_another_direction():
    words = changed(torch=Side("x", 14, "sha256:" + "3" * 64))
    assert (
        "the PyTorch model\n        its names, shapes or types are others: 13 parameters in a.json, 14 in b.json"
        in words
    )
    assert changed(torch=replace(example().torch, source="elsewhere")) == "no difference"
    inverted = example().invert({"stem.weight": (4, 3)})
    found = differences(example(), inverted, ("a", "b"))
    assert str(found.changes[0]) == "direction: from PyTorch in a, from MindSpore in b"


def test_another_confidence_is_a_note():
    found = differences(example(), replace(example(), **with_entry(1, confidence=0.9)), ("a", "b"))
    assert found.changes == ()
    assert found.notes == ("1 entries have another confidence, most so layers.0.norm1.weight: 0.99 in a, 0.9 in b",)


def test_a_table_is_compared_by_its_entries():
    read = Mapping.from_csv(example().to_csv())
    found = differences(example(), read, ("a.json", "b.csv"))
    assert found.changes == ()
    assert found.notes == ("b.csv is a table of entries: unmatched names and review marks are not compared",)
    shorter = Mapping.from_csv("".join(example().to_csv().splitlines(True)[:-1]))
    (group,) = differences(example(), shorter, ("a.json", "b.csv")).changes
    assert group.members == ("layers.1.q.weight",)


# -- the page ----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The text of a page by the heading above it; fails where a tag is not closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.section, self.texts = "", {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "h2":
            self.section = ""
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.section = data.strip()
        else:
            self.texts[self.section] = self.texts.get(self.section, "") + data


def test_the_page_says_everything():
    page = Page(to_html(example()))
    assert list(page.texts)[1:] == ["To review", "Unmatched in PyTorch", "Unmatched in MindSpore", "Entries"]
    for text in ("net.py:build", "port.py:build", "13 parameters", "3to review", "5matched", "stem.*=stem.*"):
        assert text in page.texts[""]
    assert "lost.bias (PyTorch, unmatched)" in page.texts["To review"]
    assert "cells.0.q.weight" not in page.texts["To review"]  # the reason of two, said once
    assert "cells.*.q.weight fits as well" in page.texts["To review"]
    for name in ("layers.1.norm1.num_batches_tracked", "aux.conv.bias", COUNTER):
        assert name in page.texts["Unmatched in PyTorch"]
    for e in example().entries:
        assert e.torch[0] in page.texts["Entries"]
        assert e.mindspore[0] in page.texts["Entries"]
    for text in ("0.9900", "transpose(axes=[1, 0])", "level with it", "structure", "0.71"):
        assert (text in page.texts["Entries"]) == (text != "0.9900")
    assert sum(tag == "tr" and attrs.get("class") == "mark" for tag, attrs in page.tags) == 2


def test_the_page_needs_nothing_beside_it():
    text = to_html(example())
    assert text.startswith("<!DOCTYPE html>\n")
    assert not re.search(r"<script|<link|<img|@import|url\(|https?:", text)
    assert text == to_html(example())


def test_the_page_escapes():
    bad = "<b>&\"'"
    entry = Entry((bad,), (bad + "2",), review=True, why=bad, evidence={bad: bad, "proven": bad}, confidence=0.4)
    entry = replace(entry, runner_up=RunnerUp((bad + "3",), (bad + "4",), 0.1), path=bad)
    side = Side(bad, 1, bad)
    mapping = Mapping(side, side, (entry,), (Unmatched(bad + "5", bad),), (), (bad,))
    text = to_html(mapping)
    assert "<b>&" not in text
    assert bad + "4" in Page(text).texts["Entries"]


def test_the_page_leaves_empty_columns_and_sections_out():
    side = Side("s", 1, "")
    text = to_html(Mapping(side, side, (Entry(("a",), ("a",)),)))
    assert re.findall(r"<th[^>]*>([^<]*)</th>", text) == ["PyTorch", "MindSpore", "confidence"]
    assert "To review" not in text
    assert "Unmatched" not in text


# -- the proof ---------------------------------------------------------------------------------------------------------


def proven(**changes: object) -> Mapping:
    """The example after a run that could not tell two entries apart and did not exercise a third."""
    mapping = example()
    evidence = {"names": 0.0, "usage": 0.0, "execution": 1.0, "proven": "forward"}
    entries = [replace(e, review=False, evidence=evidence) for e in mapping.entries]
    entries[0] = replace(entries[0], evidence={"execution": 0.0, "proven": None})
    for i in (2, 4):
        entries[i] = replace(entries[i], evidence={"execution": 0.5, "proven": None})
    figures = {"error": 3e-7, "floor": 2e-7, "allowed": 1e-5, "seeds": (0, 1), "inputs": ("float32[2,3]",)}
    told = {"not_exercised": ("stem.weight",), "alike": (("layers.0.q.weight", "layers.1.q.weight"),)}
    return replace(mapping, entries=tuple(entries), proof=Proof(**{"status": "proven", **figures, **told, **changes}))


def test_a_summary_tells_the_proof():
    lines = summary(proven()).split("\n")
    assert lines[4:9] == [
        "proven 2 of 5: the outputs agree under 2 seeds: off by less than 1e-06 of their scale "
        "(rounding alone: 1e-06, allowed: 1e-05)",
        "not exercised 1, without an effect on the outputs of these runs:",
        "     1  stem.weight",
        "alike 1, exchanging the two has no effect on the outputs:",
        "     1  layers.0.q.weight and layers.1.q.weight",
    ]
    assert proven().summary.endswith(", 2 proven")


def test_a_summary_tells_what_differs():
    finding = "LayerNorm epsilon 1e-7 here, 1e-6 in torch, 24 layers"
    mapping = proven(status="differs", findings=(finding,), not_exercised=(), alike=(), repaired=1e-7)
    lines = summary(mapping).split("\n")
    assert lines[4].startswith("the mapping holds, but the networks differ: off by less than 1e-06")
    assert lines[4].endswith("; with all of it repaired: less than 1e-07; proven 2 of 5 with that repaired")
    assert "agree once what differs is repaired, and move" in explain(mapping, "layers.0.norm1.weight")
    assert lines[5].strip() == finding
    assert "to review" in lines[6]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("stem.weight", "not proven: it is not exercised, without an effect on the outputs of these runs"),
        ("layers.0.norm1.weight", "proven: the outputs of both networks agree, and move if this parameter does"),
        (
            "layers.0.q.weight",
            "not proven: it is alike with layers.1.q.weight: exchanging the two has no effect on the outputs",
        ),
    ],
)
def test_explain_tells_what_running_said_of_an_entry(name, last):
    assert f"  {last}" in explain(proven(), name).split("\n")


def test_explain_names_the_part_of_a_fused_entry_that_no_run_exercised():
    mapping = proven(not_exercised=("k.bias",))
    parts = ("q.bias", "k.bias", "v.bias")
    fused = Entry(parts, ("qkv.bias",), (Transform("concat", {"axis": 0, "sizes": [8, 8, 8]}),), evidence={"fit": 1.0})
    lines = explain(replace(mapping, entries=(fused, *mapping.entries)), "qkv.bias").split("\n")
    words = "not proven: a part of it, k.bias, is not exercised, without an effect on the outputs of these runs"
    assert f"  {words}" in lines


def test_explain_tells_why_nothing_is_proven():
    words = "not proven: the outputs differ: off by less than 1e-06"
    nothing = {"floor": None, "not_exercised": (), "alike": ()}
    assert words in explain(proven(status="open", **nothing), "layers.0.q.weight")
    ran_not = proven(status="not run", reason="no kernel", error=None, **nothing)
    assert "not proven; no kernel" in explain(ran_not, "stem.weight")


def test_explain_speaks_of_what_is_nothing():
    lines = explain(proven(), "layers.0.norm1.weight").split("\n")
    assert "  names: no word is alike, which speaks neither for nor against it" in lines
    assert "  execution: strong, 1.00 (how far running both networks confirms it)" in lines


def test_a_reason_is_not_said_twice():
    mapping = replace(example(), unmatched_torch=(Unmatched("n", "no counterpart in MindSpore"),))
    assert explain(mapping, "n") == "n (PyTorch) has no counterpart in MindSpore"


def test_the_page_has_the_proof():
    page = to_html(proven(findings=("an epsilon",)))
    assert "<h2>Proof by execution</h2>" in page
    assert "<dt>allowed</dt><dd>1e-05 of the outputs&#x27; scale</dd>" in page
    assert "<li>an epsilon</li>" in page
    assert "<h2>Not exercised <small>1, without an effect on the outputs of these runs</small></h2>" in page
    assert "Proof by execution" not in to_html(example())
