"""Which layers are joined to one tensor of the other side, told from listings alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from automap import Mapping
from automap.graph import Listing, Param
from automap.inference import match

Rows = Iterable[tuple[str, tuple[int, ...]]]
SHAPES = {"w1": (24, 16), "w2": (16, 24), "w3": (24, 16)}
EXPERTS = 4


def matched(torch: Rows, mindspore: Rows) -> Mapping:
    sides = (("torch", torch), ("mindspore", mindspore))
    return match(*(Listing(side, tuple(Param(name, shape, "float32") for name, shape in rows)) for side, rows in sides))


def experts(orders: Sequence[Sequence[str]]) -> tuple[Rows, Rows]:
    """Experts that PyTorch stacks, first and last matrix joined; the port keeps them apart, each in some order."""
    torch, port = [], []
    for i in range(2):
        torch += [(f"layers.{i}.mlp.gate.weight", (EXPERTS, 16)), (f"layers.{i}.norm.weight", (16,))]
        torch += [(f"layers.{i}.mlp.up", (EXPERTS, 48, 16)), (f"layers.{i}.mlp.down", (EXPERTS, 16, 24))]
        port += [(f"layers.{i}.moe.gate.weight", (EXPERTS, 16)), (f"layers.{i}.norm.weight", (16,))]
        for e in range(EXPERTS):
            port += [(f"layers.{i}.moe.experts.{e}.{w}.weight", SHAPES[w]) for w in orders[(i + e) % len(orders)]]
    return torch, port


@pytest.mark.parametrize("orders", [["w1 w2 w3"], ["w1 w2 w3", "w3 w2 w1", "w2 w1 w3"]])
def test_what_leads_back_may_stand_between_pieces_in_whatever_order_they_are_defined(orders: list[str]) -> None:
    found = {e.torch[0]: e.mindspore for e in matched(*experts([x.split() for x in orders])).entries}
    for i in range(2):
        parts = f"layers.{i}.moe.experts."
        assert set(found[f"layers.{i}.mlp.up"]) == {f"{parts}{e}.{w}.weight" for e in range(4) for w in ("w1", "w3")}
        assert found[f"layers.{i}.mlp.down"] == tuple(f"{parts}{e}.w2.weight" for e in range(4))


def test_a_stack_of_which_alone_the_matrices_are_transposed_is_marked() -> None:
    torch, port = experts([["w1", "w2", "w3"]])
    port = [(name, shape) for name, shape in port if ".w2." not in name and ".w3." not in name]
    found = matched(torch, port)
    assert all(e.review for e in found.entries if len(e.mindspore) > 1)


def test_pieces_that_stand_apart_are_joined_by_the_word_that_they_share() -> None:
    torch, port = [], []
    for i in range(3):
        torch += [(f"h.{i}.att.qkv.weight", (96, 32)), (f"h.{i}.att.out.weight", (32, 32))]
        port += [(f"b.{i}.att.{x}.weight", (32, 32)) for x in ("dense3", "projection", "dense1", "dense2")]
    joined = {e.torch[0]: e.mindspore for e in matched(torch, port).entries}
    for i in range(3):
        assert joined[f"h.{i}.att.qkv.weight"] == tuple(f"b.{i}.att.dense{k}.weight" for k in (1, 2, 3))
        assert joined[f"h.{i}.att.out.weight"] == (f"b.{i}.att.projection.weight",)
