"""The search: its objective, its belief, what it keeps fixed, and how it tells doubt."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import pair, shuffled

from automap.exchanges import moves
from automap.graph import Param
from automap.layers import layers_of
from automap.matching import Matcher
from automap.objective import increasing, longest_increasing

FIXED = settings(derandomize=True, max_examples=150, deadline=None)

BLOCKS = ";".join(
    f"linear:8x8 h.{i}.q b.{i}.q; linear:8x8 h.{i}.k b.{i}.k; ln:8 h.{i}.n b.{i}.n; linear:32x8 h.{i}.up b.{i}.up"
    for i in range(3)
)


def matcher(table: str, **options: object) -> Matcher:
    p = pair(table, order=options.pop("order", None))
    left, right = layers_of(p.torch.parameters, "torch"), layers_of(p.mindspore.parameters, "mindspore")
    return Matcher(left, right, **options)


def paths(m: Matcher, chosen: np.ndarray) -> dict[str, str]:
    return {m.left[m.c.left[k]].path: m.right[m.c.right[k]].path for k in chosen}


def brute(values: list[int]) -> int:
    """The slow obvious twin."""
    for n in range(len(values), 0, -1):
        if any(list(some) == sorted(set(some)) for some in combinations(values, n)):
            return n
    return 0


@FIXED
@given(st.lists(st.integers(0, 9), max_size=9, unique=True))
def test_increasing_against_all_subsequences(values: list[int]) -> None:
    at = increasing(values)
    assert at == sorted(set(at))
    assert [values[i] for i in at] == sorted(values[i] for i in at)
    assert len(at) == brute(values)


@FIXED
@given(st.permutations(range(8)), st.permutations(range(8)))
def test_longest_increasing_of_a_matching(left: list[int], right: list[int]) -> None:
    expected = brute([r for _, r in sorted(zip(left, right, strict=True))])
    assert longest_increasing(np.array(left), np.array(right)) == expected


def test_longest_increasing_of_nothing() -> None:
    none = np.array([], dtype=np.int64)
    assert longest_increasing(none, none) == 0
    assert increasing([]) == []


def test_belief_is_scaled_to_one_on_both_sides() -> None:
    m = matcher(BLOCKS)
    belief = m.belief(np.random.default_rng(0).normal(size=len(m.c)))
    assert (belief >= 0).all()
    for ends, n in ((m.c.left, m.n), (m.c.right, m.m)):
        assert np.bincount(ends, belief, n) == pytest.approx(1, abs=0.02)
    sharp = m.belief(50.0 * (m.c.left == m.c.right))
    assert sharp[m.c.left == m.c.right] == pytest.approx(1, abs=1e-6)
    assert m.narrowed(np.array([], dtype=np.int64)).belief(np.array([])).tolist() == []


@FIXED
@given(st.randoms(use_true_random=False))
def test_the_objective_is_the_same_with_and_without_the_rest(random: object) -> None:
    m = matcher(BLOCKS)
    order = list(range(len(m.c)))
    random.shuffle(order)
    used: set[int] = set()
    chosen = []
    for k in order:
        ends = {int(m.c.left[k]), -1 - int(m.c.right[k])}
        if used.isdisjoint(ends):
            used |= ends
            chosen.append(k)
    chosen = np.array(sorted(chosen))
    assert m.objective(chosen) == pytest.approx(m.evaluate(chosen).objective)


def test_the_truth_has_the_greatest_objective_and_is_found() -> None:
    m = matcher(BLOCKS)
    found = m.solve()
    assert all(right == left.replace("h.", "b.") for left, right in paths(m, found.chosen).items())
    assert len(found.chosen) == m.n
    truth = np.flatnonzero(m.c.left == m.c.right)
    assert np.array_equal(found.chosen, truth)
    swapped = m.settle(truth, rounds=0)
    assert found.objective == pytest.approx(swapped.objective)
    for move in moves(m, found):
        alt = m.after(found, move)
        assert alt is None or alt.objective < found.objective


def test_what_is_forced_is_chosen_and_nothing_beside_it() -> None:
    m = matcher(BLOCKS, forced={0: 5})
    assert m.c.right[m.c.left == 0].tolist() == [5]
    assert m.c.left[m.c.right == 5].tolist() == [0]
    assert paths(m, m.solve().chosen)["h.0.q"] == "b.1.k"


def test_numbers_go_over_as_they_are_or_by_rank_whichever_agrees() -> None:
    def weight(line: Callable[[int], str], gone: int = 0) -> float:
        m = matcher(";".join(map(line, range(6))))
        return m.value_weight((m.c.left == m.c.right + gone).astype(float))

    assert weight(lambda i: f"linear:8x8 h.{i + 4}.a h.{i}.a") < 0.1
    assert weight(lambda i: f"linear:8x8 h.{i}.a {'' if i > 2 else '-'}", gone=3) > 0.9
    assert weight(lambda i: f"linear:8x8 h.{i}.a") == pytest.approx(0.5)


def test_names_that_are_ignored_count_for_nothing() -> None:
    m = matcher(BLOCKS, ignore_names=True)
    assert not m.words.any()
    assert not m.same(0.5).any()


def test_trust_in_order_comes_from_what_is_told_apart_without_it() -> None:
    """Every layer has a shape of its own: then it shows whether the port keeps the order."""
    table = ";".join(f"linear:{9 + i}x8 {x}.up {x}{x}.a; ln:{9 + i} {x}.n {x}{x}.n" for i, x in enumerate("abcdefghij"))
    kept, lost = matcher(table), matcher(table, order=shuffled(3))
    kept.solve()
    lost.solve()
    assert kept.trust == 1
    assert lost.trust < 0.6


def test_doubt_names_the_other_choice() -> None:
    """Two layers that nothing tells apart but a shuffled order."""
    m = matcher("linear:9x8 stem; linear:8x8 left x; linear:8x8 right y; linear:7x8 out", order=shuffled(1))
    found = m.solve()
    doubts = m.doubts(found.chosen)
    at = {layer.path: i for i, layer in enumerate(m.left)}
    to = paths(m, found.chosen)
    assert {at["left"], at["right"]} <= doubts.keys()
    assert m.right[doubts[at["left"]].instead].path == to["right"]
    assert at["stem"] not in doubts


def test_a_scale_beside_a_weight_makes_no_norm_of_it() -> None:
    """A port that lost its prefixes can call a convolution and a block the same."""
    listed = [
        Param("1.weight", (8, 4, 2, 2)),
        Param("1.bias", (8,)),
        Param("1.gamma", (8,)),
        Param("1.fc.weight", (8, 8)),
    ]
    conv, scale, _ = layers_of(listed, "mindspore")
    assert (list(conv.slots), conv.norm) == (["weight", "bias"], False)
    assert (list(scale.slots), scale.norm, scale.path) == (["weight"], False, "1.gamma")
