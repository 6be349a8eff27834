"""Blocks that belong together, lists that run backwards, and what names put together among siblings of one shape."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from automap import Mapping
from automap.graph import Listing, Param
from automap.inference import match
from automap.layers import layers_of, number_ranks
from automap.straightening import counted, partners, turned

Rows = Iterable[tuple[str, tuple[int, ...]]]


def listing(framework: str, rows: Rows) -> Listing:
    return Listing(framework, tuple(Param(name, shape, "float32") for name, shape in rows))


def matched(torch: Rows, mindspore: Rows) -> Mapping:
    return match(listing("torch", torch), listing("mindspore", mindspore))


def pairs(mapping: Mapping) -> dict[str, str]:
    return {e.torch[0]: e.mindspore[0] for e in mapping.entries}


def coupling(sizes: list[int]) -> tuple[Rows, Rows, dict[str, str]]:
    """Blocks of which some are alike, which the port defines and numbers from the last to the first."""
    torch, port, truth = [], [], {}
    for k, n in enumerate(sizes):
        rows = [("start", (16, n)), ("inner.0", (16, 16)), ("inner.1", (16, 16)), ("end", (n, 16))]
        torch += [(f"flows.{k}.{name}.weight", shape) for name, shape in rows]
    for j, n in enumerate(sizes[::-1]):
        rows = [("start", (16, n)), ("inner.0", (16, 16)), ("inner.1", (16, 16)), ("end", (n, 16)), ("mix", (n, n, 3))]
        port += [(f"cells.{j}.net.{name}.weight", shape) for name, shape in rows]
    for name, _ in torch:
        _, k, rest = name.split(".", 2)
        truth[name] = f"cells.{len(sizes) - 1 - int(k)}.net.{rest}"
    return torch, port, truth


def test_a_list_that_runs_backwards_is_read_backwards() -> None:
    torch, port, truth = coupling([8, 8, 8, 6, 6, 6, 4, 4])
    found = matched(torch, port)
    assert pairs(found) == truth
    assert not any(e.review for e in found.entries)


def test_two_forms_alone_do_not_say_which_way_a_list_runs() -> None:
    torch, port, truth = coupling([8, 8, 4])
    found = matched(torch, port)
    assert pairs(found) == truth
    alike = [e for e in found.entries if not e.torch[0].startswith("flows.2")]
    assert alike
    assert all(e.review for e in alike)


@pytest.mark.parametrize("sizes", [[8, 8, 8], [8, 6, 8], [8, 8, 6, 6]])
def test_a_list_that_reads_the_same_or_runs_forwards_stays(sizes: list[int]) -> None:
    torch, port, _ = coupling(sizes)
    if sizes != sizes[::-1]:
        port = [(name.replace("flows", "cells"), shape) for name, shape in torch]
    right = layers_of(listing("mindspore", port).parameters, "mindspore")
    assert turned(layers_of(listing("torch", torch).parameters, "torch"), right).layers == right


def test_a_layer_belongs_to_the_counterpart_of_its_block() -> None:
    names = [f"h.{i}.{x}.weight" for i in range(2) for x in ("a", "b", "c")]
    left = layers_of([Param(n, (4, 4), "float32") for n in names], "torch")
    right = layers_of([Param(n, (4, 4), "float32") for n in names], "mindspore")
    straight = partners(left, right, [(i, i) for i in range(6)])
    crossed = partners(left, right, [(0, 0), (1, 1), (2, 5), (3, 3), (4, 4), (5, 2)])
    assert straight.of == crossed.of == {("h", "0"): ("h", "0"), ("h", "1"): ("h", "1")}
    assert not straight.crossed(0, 1)
    assert crossed.crossed(2, 5)


def attention(order: str) -> tuple[Rows, Rows, dict[str, str]]:
    """Four matrices of one shape, of which the port numbers three, and has the other one in front."""
    to = {"q": "dense1", "k": "dense2", "v": "dense3", "o": "projection"}
    torch, port, truth = [], [], {}
    for i in range(3):
        for x in "qkvo":
            torch.append((f"block.{i}.att.{x}.weight", (32, 32)))
            truth[torch[-1][0]] = f"cells.{i}.core.{to[x]}.weight"
        port += [(f"cells.{i}.core.{to[x]}.weight", (32, 32)) for x in order]
    return torch, port, truth


@pytest.mark.parametrize("order", ["oqkv", "qkvo"])
def test_queries_keys_and_values_are_a_family_as_what_is_numbered_is(order: str) -> None:
    torch, port, truth = attention(order)
    assert pairs(matched(torch, port)) == truth


def test_matrices_that_are_turned_or_else_defined_the_other_way_round_are_in_doubt() -> None:
    torch, port = [], []
    for side in ("encoder", "decoder"):
        for i in range(2):
            torch += [(f"{side}.{i}.ff.wi.weight", (64, 32)), (f"{side}.{i}.ff.wo.weight", (32, 64))]
            torch.append((f"{side}.{i}.ff.norm.weight", (32,)))
            port.append((f"tfm_{side}.{i}.ln.gamma", (32,)))
            port += [(f"tfm_{side}.{i}.out.map.weight", (32, 64)), (f"tfm_{side}.{i}.out.pro.weight", (64, 32))]
    found = matched(torch, port)
    assert all(e.review for e in found.entries if "norm" not in e.torch[0])


def test_a_matrix_is_no_norm_whatever_its_parameters_are_called() -> None:
    torch = [("h.fc.weight", (8, 24)), ("h.fc.bias", (24,)), ("h.ln.weight", (8,)), ("h.ln.bias", (8,))]
    port = [("h.fc.gamma", (8, 24)), ("h.fc.beta", (24,)), ("h.ln.gamma", (8,)), ("h.ln.beta", (8,))]
    found = matched(torch, port)
    assert pairs(found) == {t: m for (t, _), (m, _) in zip(torch, port, strict=True)}
    assert not any(e.review for e in found.entries)


def test_the_order_of_parameters_does_not_say_which_of_them_stands_for_a_recurrent_layer() -> None:
    words = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    shapes = {"weight_ih_l0": (32, 8), "weight_hh_l0": (32, 8), "bias_ih_l0": (32,), "bias_hh_l0": (32,)}
    torch = [(f"rnns.{i}.{w}", shapes[w]) for i in range(3) for w in words]
    port = [(f"lstms.{i}.{w}", shapes[w]) for i in range(3) for w in (words if i % 2 else words[::-1])]
    assert pairs(matched(torch, port)) == {t: t.replace("rnns", "lstms") for t, _ in torch}


def test_some_recurrent_cells_have_their_gates_as_layers_and_another_layer_has_not() -> None:
    ends = {"ih": (40, 24), "hh": (40, 10)}
    torch = [(f"encoder.lstm.weight_{e}_l0", (32, 8)) for e in ends] + [
        (f"encoder.lstm.bias_{e}_l0", (32,)) for e in ends
    ]
    port = list(torch)
    truth = {t: t for t, _ in torch}
    for cell in ("attention", "decoder"):
        torch += [(f"{cell}.weight_{e}", shape) for e, shape in ends.items()]
        torch += [(f"{cell}.bias_{e}", shape[:1]) for e, shape in ends.items()]
        for k, (e, shape) in enumerate(ends.items(), 1):
            port += [(f"steps.{cell}.linear{k}.weight", shape), (f"steps.{cell}.linear{k}.bias", shape[:1])]
            truth |= {f"{cell}.{w}_{e}": f"steps.{cell}.linear{k}.{w}" for w in ("weight", "bias")}
    assert pairs(matched(torch, port)) == truth


def test_a_number_counts_among_those_after_the_same_words() -> None:
    parts = [("block1",), ("block2_a",), ("block2_b",), ("block3_a",), ("conv7",), ("conv7+",)]
    ranks = number_ranks(parts)
    assert [max(ranks[(), part]) for (part,) in parts] == [0, 1, 1, 2, 0, 1]


def test_blocks_are_counted_by_letters_too() -> None:
    paths = [f"mixed5{letter}.conv" for letter in "bcd"]
    ours = layers_of([Param(f"units.{i}.c.weight", (8, 8, 3, 3)) for i in range(3)], "torch")
    theirs = layers_of([Param(f"{p}.weight", (8, 8, 3, 3)) for p in paths], "mindspore")
    blocks = counted(ours, theirs, {0: 2, 1: 1, 2: 0})
    assert [[v for v in range(3) if not blocks.apart(u, v)] for u in range(3)] == [[0], [1], [2]]


def test_what_most_blocks_say_holds_in_every_one() -> None:
    """Two layers of one shape in each of five blocks, exchanged in one of them."""
    ours = layers_of([Param(f"b.{i}.{x}.weight", (8, 8)) for i in range(5) for x in ("p", "q")], "torch")
    theirs = layers_of([Param(f"z.{i}.{x}.weight", (8, 8)) for i in range(5) for x in ("u", "v")], "mindspore")
    pairs = {k: k for k in range(10)} | {4: 5, 5: 4}
    inside = counted(ours, theirs, pairs).inside
    assert {u: v for u, (v, _) in inside.items()} == {k: k for k in range(10)}
    assert inside[4][1] == [0, 2, 4, 6, 8]
