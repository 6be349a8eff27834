"""The assignment against a search through all choices."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from automap.assignment import assign

#: (left, right, score) of some pairs, no pair twice.
PAIRS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-4, 4) | st.just(None)),
    max_size=9,
    unique_by=lambda p: p[:2],
)


def arrays(pairs: list[tuple[int, int, int | None]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    left, right = (np.array([p[i] for p in pairs], dtype=np.int64) for i in (0, 1))
    score = np.array([-np.inf if p[2] is None else p[2] for p in pairs], dtype=np.float64)
    return left, right, np.zeros(len(pairs), dtype=np.int64), score


def best(pairs: list[tuple[int, int, int | None]]) -> tuple[int, float]:
    """The slow obvious twin: how many pairs can be chosen at most, and the greatest total score of so many."""
    allowed = [p for p in pairs if p[2] is not None]
    for n in range(len(allowed), 0, -1):
        totals = [
            sum(p[2] for p in some)
            for some in combinations(allowed, n)
            if len({p[0] for p in some}) == len({p[1] for p in some}) == n
        ]
        if totals:
            return n, float(max(totals))
    return 0, 0.0


@settings(derandomize=True, max_examples=200, deadline=None)
@given(PAIRS)
def test_as_good_as_the_best_of_all_choices(pairs: list[tuple[int, int, int | None]]) -> None:
    left, right, block, score = arrays(pairs)
    chosen = assign(left, right, block, score)
    assert len(set(left[chosen])) == len(set(right[chosen])) == len(chosen)
    assert (len(chosen), float(score[chosen].sum())) == best(pairs)
    assert chosen.tolist() == sorted(chosen.tolist())


@settings(derandomize=True, max_examples=100, deadline=None)
@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(pairs: list[tuple[int, int, int | None]], random: object) -> None:
    """Ties are resolved by the ends, not by where a pair stands in the list."""
    other = list(pairs)
    random.shuffle(other)
    answers = []
    for some in (pairs, other):
        left, right, block, score = arrays(some)
        answers.append({(int(left[k]), int(right[k])) for k in assign(left, right, block, score)})
    assert answers[0] == answers[1]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(PAIRS, PAIRS)
def test_blocks_are_solved_by_themselves(
    one: list[tuple[int, int, int | None]], two: list[tuple[int, int, int | None]]
) -> None:
    a, b = arrays(one), arrays(two)
    together = [np.concatenate([x, y + shift]) for x, y, shift in zip(a, b, (10, 10, 1, 0), strict=True)]
    # Rows of the two blocks may stand in any order.
    mixed = np.random.default_rng(0).permutation(len(one) + len(two))
    chosen = {int(mixed[k]) for k in assign(*(x[mixed] for x in together))}
    assert chosen == {*assign(*a).tolist(), *(assign(*b) + len(one)).tolist()}


def test_more_pairs_come_before_a_better_one() -> None:
    pairs = [(0, 0, 1), (0, 1, 100), (1, 1, 1)]
    assert assign(*arrays(pairs)).tolist() == [0, 2]


def test_forbidden_is_never_chosen_however_little_is_left() -> None:
    assert assign(*arrays([(0, 0, None), (1, 1, -1000), (1, 0, None)])).tolist() == [1]
    assert assign(*arrays([(0, 0, None)])).tolist() == []
    assert assign(*arrays([])).tolist() == []


def test_ties_are_resolved_the_same_way_every_time() -> None:
    square = [(i, j, 1) for i in range(4) for j in range(4)]
    assert [assign(*arrays(square)).tolist() for _ in range(3)] == [[0, 5, 10, 15]] * 3
