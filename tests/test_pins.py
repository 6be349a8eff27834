"""Pins: what a user has settled is kept, and what cannot be kept is an error that says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import faults, pair, shuffled

from automap.errors import AutomapError, PinError
from automap.inference import match
from automap.pins import resolve

NET = pair(
    "linear:8x4 enc.0.up blocks.0.a; linear:4x8 enc.0.down blocks.0.b;"
    "linear:8x4 enc.1.up blocks.1.a; linear:4x8 enc.1.down blocks.1.b; ln:4 norm; conv:4x4x3 tail"
)


def pins(*texts: str) -> dict[str, str]:
    return resolve(texts, NET.torch, NET.mindspore)


def test_exact() -> None:
    assert pins(" enc.0.up.weight = blocks.0.a.weight ") == {"enc.0.up.weight": "blocks.0.a.weight"}
    assert pins() == {}


def test_a_star_stands_for_the_same_text_on_both_sides() -> None:
    assert pins("enc.*.up.weight=blocks.*.a.weight") == {
        "enc.0.up.weight": "blocks.0.a.weight",
        "enc.1.up.weight": "blocks.1.a.weight",
    }
    assert pins("enc.*.up.*=blocks.*.a.*")["enc.1.up.bias"] == "blocks.1.a.bias"
    assert len(pins("enc.*.up.*=blocks.*.a.*")) == 4


def test_a_dot_is_a_dot() -> None:
    net = pair("linear:8x4 a.b; linear:8x4 a_b; linear:3x8 c")
    assert resolve(["a.b.*=a.b.*"], net.torch, net.mindspore) == {"a.b.weight": "a.b.weight", "a.b.bias": "a.b.bias"}
    with pytest.raises(PinError, match="not used"):
        pins("enc.0.u[p].*=blocks.0.a.*")


def test_the_same_pin_twice_is_no_contradiction() -> None:
    assert len(pins("norm.weight=norm.gamma", "norm.weight=norm.gamma")) == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["norm.weight"], "pin 'norm.weight' is not of the form PYTORCH_NAME=MINDSPORE_NAME"),
        (["=norm.gamma"], "is not of the form"),
        (["norm.weight="], "is not of the form"),
        (["enc.*.up.weight=blocks.0.a.weight"], "has 1 '*' on the left and 0 on the right"),
        (["norm.wieght=norm.gamma"], "the torch side has no norm.wieght: did you mean norm.weight?"),
        (["norm.weight=norm.gama"], "the mindspore side has no norm.gama: did you mean norm.gamma?"),
        (["xyz=norm.gamma"], "the torch side has no xyz; `automap params` lists them"),
        (["dec.*.up.weight=blocks.*.a.weight"], "is not used: no name of the torch side matches dec.*.up.weight"),
        (["enc.*.up.weight=block.*.a.weight"], "would give enc.0.up.weight to block.0.a.weight, but the"),
        (["enc.0.up.weight=tail.weight"], "is impossible: enc.0.up.weight has shape (8, 4), tail.weight (4, 4, 3, 3)"),
        (["norm.weight=norm.gamma", "norm.weight=norm.beta"], "norm.weight to norm.beta, another pin to norm.gamma"),
        (["norm.weight=norm.gamma", "norm.bias=norm.gamma"], "norm.gamma to norm.bias, another pin to norm.weight"),
    ],
)  # fmt: skip
def test_a_pin_that_cannot_be_kept_says_why(texts: list[str], message: str) -> None:
    with pytest.raises(PinError) as caught:
        match(NET.torch, NET.mindspore, texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.pin == texts[-1]
    assert isinstance(caught.value, AutomapError)


def test_a_transposed_shape_and_ones_can_be_pinned() -> None:
    net = pair("linear:8x4 a T; linear:8x4 b 1x1; linear:3x8 c")
    assert len(resolve(["a.weight=a.weight", "b.weight=b.weight"], net.torch, net.mindspore)) == 2


def test_unknown_shapes_can_be_pinned() -> None:
    net = pair("linear:8x4 a; conv:4x4x3 b", shapes=False)
    assert resolve(["a.weight=b.weight"], net.torch, net.mindspore) == {"a.weight": "b.weight"}


# ----------------------------------------------------------------------------------------------- pins in the inference


def test_a_pin_wins_over_all_evidence() -> None:
    mapping = match(NET.torch, NET.mindspore, ["enc.0.up.weight=blocks.1.a.weight"])
    entries = {e.torch[0]: e for e in mapping.entries}
    assert entries["enc.0.up.weight"].mindspore == ("blocks.1.a.weight",)
    assert entries["enc.0.up.weight"].confidence == 1
    assert not entries["enc.0.up.weight"].review
    assert entries["enc.0.up.bias"].mindspore == ("blocks.1.a.bias",), "the layer goes with its weight"
    assert entries["enc.1.up.weight"].mindspore == ("blocks.0.a.weight",)
    assert mapping.pins == ("enc.0.up.weight=blocks.1.a.weight",)


def test_a_pin_that_tears_a_layer_apart_is_kept() -> None:
    mapping = match(NET.torch, NET.mindspore, ["enc.0.up.weight=blocks.1.a.weight", "enc.1.up.bias=blocks.1.a.bias"])
    entries = {e.torch[0]: e.mindspore[0] for e in mapping.entries}
    assert entries["enc.0.up.weight"] == "blocks.1.a.weight"
    assert entries["enc.1.up.bias"] == "blocks.1.a.bias"
    assert len(set(entries.values())) == len(entries)


def test_a_pin_of_different_slots_is_kept() -> None:
    mapping = match(NET.torch, NET.mindspore, ["norm.weight=norm.beta"])
    entries = {e.torch[0]: e.mindspore[0] for e in mapping.entries}
    assert entries["norm.weight"] == "norm.beta"
    assert entries.get("norm.bias") in (None, "norm.gamma")


def test_pins_that_are_true_settle_what_was_in_doubt() -> None:
    """q, k and v under names that say nothing: marked without pins, right and clear with three."""
    table = "".join(
        f"ln:8 h.{i}.norm; linear:8x8 h.{i}.q h.{i}.zu marked; linear:8x8 h.{i}.k h.{i}.pa marked;"
        f"linear:8x8 h.{i}.v h.{i}.mi marked; linear:32x8 h.{i}.up; linear:8x32 h.{i}.down;"
        for i in range(3)
    )
    doubtful = pair(table, order=shuffled(1))
    assert faults(doubtful, match(doubtful.torch, doubtful.mindspore)) == []
    clear = pair(table.replace("marked", ""), order=shuffled(1))
    mapping = match(clear.torch, clear.mindspore, ["h.*.q.*=h.*.zu.*", "h.*.k.*=h.*.pa.*", "h.*.v.*=h.*.mi.*"])
    assert faults(clear, mapping) == []


def test_a_pin_takes_a_tied_weight_or_a_buffer() -> None:
    net = pair("ids:1x12 position_ids table; linear:8x4 a")
    mapping = match(net.torch, net.mindspore, ["position_ids=table"])
    assert faults(net, mapping) == []


def test_a_pinned_transpose_is_one() -> None:
    net = pair("linear:8x4 a T; linear:3x8 c")
    mapping = match(net.torch, net.mindspore, ["a.weight=a.weight"])
    assert faults(net, mapping) == []


# -------------------------------------------------------------------------------------------------------- several names

FUSED = pair(
    "\n".join(
        f"linear:8x8 enc.{i}.{w} -; " if w else f"linear:24x8 - blocks.{i}.qkv; linear:8x8 enc.{i}.out blocks.{i}.out"
        for i in range(2)
        for w in ("q", "k", "v", "")
    )
)


def test_several_names_are_joined_in_the_order_of_the_pin() -> None:
    pin = "enc.*.k.weight, enc.*.q.weight, enc.*.v.weight = blocks.*.qkv.weight"
    mapping = match(FUSED.torch, FUSED.mindspore, [pin])
    for i in range(2):
        (entry,) = mapping.find(f"blocks.{i}.qkv.weight")
        assert entry.torch == tuple(f"enc.{i}.{w}.weight" for w in "kqv")
        assert [str(t) for t in entry.transform] == ["concat(axis=0, sizes=[8, 8, 8])"]
        assert (entry.review, entry.confidence) == (False, 1.0)
        (bias,) = mapping.find(f"blocks.{i}.qkv.bias")
        assert bias.review
    assert mapping.pins == (pin,)


def test_one_name_is_taken_apart_in_the_order_of_the_pin() -> None:
    torch = replace(FUSED.mindspore, framework="torch")
    mindspore = replace(FUSED.torch, framework="mindspore")
    mapping = match(torch, mindspore, ["blocks.0.qkv.weight=enc.0.v.weight,enc.0.k.weight,enc.0.q.weight"])
    (entry,) = mapping.find("blocks.0.qkv.weight")
    assert entry.mindspore == tuple(f"enc.0.{w}.weight" for w in "vkq")
    assert [t.op for t in entry.transform] == ["split"]
    assert not entry.review


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("enc.0.q.weight,enc.0.k.weight=blocks.0.qkv.weight", r"impossible: enc.0.q.weight \[8, 8\], .* do not add up"),
        ("enc.0.q.weight,enc.0.k.weight=blocks.0.qkv.weight,blocks.0.out.weight", "several names on both sides"),
        ("enc.0.q.weight,enc.*.k.weight=blocks.*.qkv.weight", r"has 1 '\*' on the left"),
        ("enc.0.q.weight,,enc.0.k.weight=blocks.0.qkv.weight", "not of the form"),
        ("enc.0.x.weight,enc.0.k.weight=blocks.0.qkv.weight", "has no enc.0.x.weight"),
    ],
)
def test_a_pin_of_several_names_that_cannot_be_used(pin: str, words: str) -> None:
    with pytest.raises(PinError, match=words):
        match(FUSED.torch, FUSED.mindspore, [pin])
