"""Runs of equal blocks: folded and unfolded again to the same, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import built, faults, pair, rows

from automap.inference import match
from automap.layers import Layer, layers_of
from automap.repeats import SHORTEST, Folded, Unfolded, fold, unfold


def nested(blocks: int, experts: int, at: str = "net.layers", first: int = 0, tail: str = "head") -> str:
    lines = ["emb:50x8 words"]
    for i in range(first, first + blocks):
        lines += [f"ln:8 {at}.{i}.norm", f"linear:8x8 {at}.{i}.attn"]
        lines += [
            f"linear:{w} {at}.{i}.experts.{e}.{n}"
            for e in range(experts)
            for n, w in (("up", "16x8"), ("down", "8x16"))
        ]
    return "\n".join([*lines, f"linear:50x8 {tail}"])


def side(table: str) -> list[Layer]:
    return layers_of(pair(table).torch.parameters, "torch")


def identity(a: Folded, b: Folded) -> dict[int, int]:
    """Pairs of the kept layers, in their order."""
    return dict(zip(a.kept, b.kept, strict=True))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(0, 7), st.integers(0, 3))
def test_folded_and_unfolded_is_the_whole(blocks: int, experts: int, first: int) -> None:
    left, right = side(nested(blocks, experts)), side(nested(blocks, experts, "core.blocks", first))
    a, b = fold(left), fold(right)
    whole = unfold(a, b, identity(a, b))
    assert whole is not None
    assert whole.pairs == {i: i for i in range(len(left))}


@pytest.mark.parametrize("experts", [0, 3, 4, 9])
@pytest.mark.parametrize("blocks", [1, 3, 4, 9])
def test_what_is_kept_is_the_first_and_the_last_of_each_run(blocks: int, experts: int) -> None:
    left = side(nested(blocks, experts))
    kept = {left[i].path for i in fold(left).kept}
    ends_b = {0, blocks - 1} if blocks >= SHORTEST else set(range(blocks))
    ends_e = {0, experts - 1} if experts >= SHORTEST else set(range(experts))
    expected = {"words", "head"}
    for i in ends_b:
        expected |= {f"net.layers.{i}.norm", f"net.layers.{i}.attn"}
        expected |= {f"net.layers.{i}.experts.{e}.{n}" for e in ends_e for n in ("up", "down")}
    assert kept == expected


def test_a_child_that_is_not_alike_ends_the_run() -> None:
    table = nested(9, 0).replace("linear:8x8 net.layers.4.attn", "linear:9x8 net.layers.4.attn")
    left = side(table)
    kept = {left[i].path.split(".")[2] for i in fold(left).kept if left[i].path.startswith("net")}
    assert kept == {"0", "3", "4", "5", "8"}


def test_a_number_left_out_ends_the_run() -> None:
    left = side("\n".join(f"linear:8x8 h.{i}.a" for i in (0, 1, 2, 3, 5, 6, 7, 8)))
    assert [left[i].path for i in fold(left).kept] == ["h.0.a", "h.3.a", "h.5.a", "h.8.a"]


def test_a_short_run_is_not_folded() -> None:
    left = side(nested(SHORTEST - 1, 0))
    assert fold(left).kept == list(range(len(left)))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("blocks", [4, 6, 9])
def test_runs_of_another_length_are_counted_from_the_front(blocks: int, first: int) -> None:
    """Where the numbers do not say the same, the first may be the one without a counterpart as well as the last."""
    a, b = fold(side(nested(5, 4))), fold(side(nested(blocks, 4, first=first)))
    whole = unfold(a, b, identity(a, b))
    assert whole is not None
    at = {layer.path: i for i, layer in enumerate(b.layers)}
    expected = {}
    for i, layer in enumerate(a.layers):
        parts = layer.path.split(".")
        if len(parts) > 1:
            parts[2] = str(int(parts[2]) + first)
        if ".".join(parts) in at:
            expected[i] = at[".".join(parts)]
    assert whole.pairs == expected
    inside = {i for i in expected if a.layers[i].path.startswith("net")}
    assert whole.uncertain == (inside if first else set())


def staged(sizes: list[int], restart: bool, last: str = "") -> str:
    """Blocks in the stages of a pipeline, numbered anew in each of them or not."""
    lines, n = ["emb:50x8 words"], 0
    for s, size in enumerate(sizes):
        for i in range(size):
            at = f"net.stages.{s}.blocks.{i if restart else n}"
            lines += [f"ln:8 {at}.norm", f"linear:8x8 {at}.attn"]
            lines += [
                f"linear:{w} {at}.experts.{e}.{x}" for e in range(4) for x, w in (("up", "16x8"), ("down", "8x16"))
            ]
            n += 1
    return "\n".join([*lines, last.format(len(sizes) - 1), "linear:50x8 head"])


@pytest.mark.parametrize("last", ["", "ln:8 net.stages.{0}.norm"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("sizes", [[4, 4, 4], [3, 3, 4], [1, 5]])
def test_the_stages_of_a_pipeline_are_one_run(sizes: list[int], restart: bool, last: str) -> None:
    plain = (
        nested(sum(sizes), 4)
        if not last
        else nested(sum(sizes), 4).replace("\nlinear:50x8", "\nln:8 norm\nlinear:50x8")
    )
    a, b = fold(side(plain)), fold(side(staged(sizes, restart, last)))
    assert len(a.kept) == len(b.kept)
    whole = unfold(a, b, identity(a, b))
    assert whole == Unfolded({i: i for i in range(len(a.layers))})


def test_first_and_last_that_went_to_different_runs_are_refused() -> None:
    two = "\n".join(f"linear:8x8 {run}.{i}.a" for run in ("x", "y") for i in range(5))
    a, b = fold(side(two)), fold(side(two))
    assert [a.layers[i].path for i in a.kept] == ["x.0.a", "x.4.a", "y.0.a", "y.4.a"]
    x0, x4, y0, y4 = a.kept
    assert unfold(a, b, {x0: x0, x4: x4, y0: y0, y4: y4}) == Unfolded({i: i for i in range(10)})
    assert unfold(a, b, {x0: y0, x4: y4, y0: x0, y4: x4}) == Unfolded({i: (i + 5) % 10 for i in range(10)})
    assert unfold(a, b, {x0: x0, x4: y4, y0: y0, y4: x4}) is None


def test_a_first_child_matched_to_a_last_one_is_refused() -> None:
    a = fold(side(nested(5, 0)))
    pairs = identity(a, a)
    first, last = (next(i for i in a.kept if a.layers[i].path == f"net.layers.{k}.attn") for k in (0, 4))
    assert unfold(a, a, {**pairs, first: last, last: first}) is None


def test_what_is_matched_at_the_ends_alone_is_matched_between() -> None:
    """A layer of the run without a counterpart stays without one in every child."""
    a = fold(side(nested(5, 0)))
    b = fold(side("\n".join(x for x in nested(5, 0).splitlines() if "norm" not in x)))
    where = {layer.path: j for j, layer in enumerate(b.layers)}
    whole = unfold(a, b, {i: where[a.layers[i].path] for i in a.kept if a.layers[i].path in where})
    assert {a.layers[i].path: b.layers[j].path for i, j in whole.pairs.items()} == {p: p for p in where}


def test_a_large_network_is_matched_as_a_small_one_is() -> None:
    layers = [
        replace(r, mindspore=(r.mindspore or "").replace("net.layers", "blocks").replace("attn", "attention"))
        for r in rows(nested(12, 18))
    ]
    large = built(layers)
    assert len(layers) > 400
    assert faults(large, match(large.torch, large.mindspore)) == []
