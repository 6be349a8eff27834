"""What is taken of a value along its axes, in one network only or in another way."""

from __future__ import annotations

import numpy as np
import pytest

from automap.reductions import reduced, ways_to_reduce

X = np.random.default_rng(0).standard_normal((2, 6, 5, 4)).astype(np.float32)


@pytest.mark.parametrize("number", range(len(list(ways_to_reduce(4)))))
def test_each_is_told(number: int) -> None:
    way = list(ways_to_reduce(4))[number]
    told = reduced(way.function(X), X)
    assert told is not None
    explanation, repair = told
    assert explanation.words == f"{way.words} is not taken here"
    assert repair is not None
    np.testing.assert_allclose(repair.function(X), way.function(X), rtol=1e-5)


def test_the_other_way_round() -> None:
    told = reduced(X, X.mean(1))
    assert told is not None
    assert told[0].words == "the mean over axis 1 is taken here, not in PyTorch"
    assert told[1] is None


def test_two_ways_of_one_value() -> None:
    told = reduced(X.mean((2, 3)), X[:, :, 0].max(2), [X[:1], X])
    assert told is None
    told = reduced(X[:, 0], X.mean(1), [X[:1], X])
    assert told is not None
    assert told[0].words == "the mean over axis 1 is taken here, the first of axis 1 in PyTorch"


@pytest.mark.parametrize("expected", [X[:, :3], X[:1, 0], np.zeros((0, 3), np.float32), X.mean(1) + 0.01, X > 0])
def test_nothing_tells(expected: np.ndarray) -> None:
    assert reduced(expected, X) is None
