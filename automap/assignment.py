"""Assignment in pure numbers: sparse scores in, pairs out; small dense blocks, never one matrix over everything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def assign(left: Ints, right: Ints, block: Ints, score: Floats) -> Ints:
    """The best one-to-one choice of pairs.

    Args:
        left, right: the two ends of each allowed pair, shape (pairs,). A pair that is not listed is forbidden.
        block: pairs of different blocks share no end; each block is solved by itself.
        score: of each pair, the greater the better; ``-inf`` forbids.

    Returns:
        The positions of the chosen pairs, ascending. As many pairs as possible are chosen, and among those choices
        one of the greatest total score; ties are resolved the same way every time.
    """
    chosen: list[int] = []
    order = np.argsort(block, kind="stable")
    for k in np.split(order, np.flatnonzero(np.diff(block[order])) + 1):
        if not len(k):
            continue
        us, i = np.unique(left[k], return_inverse=True)
        vs, j = np.unique(right[k], return_inverse=True)
        cost = np.full((len(us), len(vs)), np.inf)
        at = np.full((len(us), len(vs)), -1)
        cost[i, j] = -score[k]
        at[i, j] = k
        # SciPy refuses a matrix in which no complete assignment exists: what is forbidden gets a cost that no sum of
        # allowed ones reaches, and is dropped from the answer.
        finite = cost[np.isfinite(cost)]
        if not len(finite):
            continue
        dear = (finite.max() - finite.min() + 1.0) * (min(cost.shape) + 1)
        r, s = linear_sum_assignment(np.where(np.isfinite(cost), cost - finite.min(), dear))
        chosen.extend(at[a, b] for a, b in zip(r, s, strict=True) if np.isfinite(cost[a, b]))
    return np.array(sorted(chosen), dtype=np.int64)
