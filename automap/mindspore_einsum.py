"""Einstein's sum by products of matrices, for devices that have no kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as _edge  # noqa: F401  # isort: skip
import mindspore as ms
from mindspore import ops

from automap.mindspore_equal_layers import Tensor


def einsum(prim: Any, equation: str, operands: Sequence[Tensor]) -> Tensor:
    """Two operands at a time, from left to right."""
    parts = equation.replace(" ", "").split("->")
    inputs = parts[0].split(",")
    pairs = zip(inputs, operands, strict=True)
    dims = max((t.ndim - len(s.replace("...", "")) for s, t in pairs if "..." in s), default=0)
    letters = [chr(ord("α") + i) for i in range(dims)]  # none that an equation may have

    def spelled(s: str, t: Tensor | None) -> str:
        count = dims if t is None else t.ndim - len(s.replace("...", ""))
        return s.replace("...", "".join(letters[dims - count :]))

    inputs = [spelled(s, t) for s, t in zip(inputs, operands, strict=True)]
    if len(parts) > 1:
        out = spelled(parts[1], None)
    else:
        every = "".join(inputs)
        out = "".join(letters) + "".join(sorted({c for c in every if every.count(c) == 1 and c not in letters}))
    names, total = inputs[0], operands[0]
    names, total = _diagonal(names, total)
    for i, (s, t) in enumerate(zip(inputs[1:], operands[1:], strict=True), 2):
        s, t = _diagonal(s, t)
        wanted = set(out).union(*inputs[i:])
        names, total = _contracted((names, total), (s, t), wanted)
    gone = tuple(i for i, c in enumerate(names) if c not in out)
    if gone:
        total, names = ops.sum(total, gone), "".join(c for c in names if c in out)
    return ops.transpose(total, tuple(names.index(c) for c in out)) if names != out else total


def _diagonal(names: str, x: Tensor) -> tuple[str, Tensor]:
    """Letters that stand twice in one operand: what is off the diagonal is left out."""
    for c in dict.fromkeys(names):
        while names.count(c) > 1:
            i, j = names.index(c), names.rindex(c)
            n = x.shape[i]
            shape = [n if k in (i, j) else 1 for k in range(x.ndim)]
            x, names = ops.sum(x * ms.Tensor(np.eye(n).reshape(shape)).astype(x.dtype), j), names[:j] + names[j + 1 :]
    return names, x


def _contracted(one: tuple[str, Tensor], other: tuple[str, Tensor], wanted: set[str]) -> tuple[str, Tensor]:
    """Two operands become one by a product of matrices: letters that both have and nobody wants are summed over."""
    (s, a), (t, b) = one, other
    batch = [c for c in s if c in t and c in wanted]
    summed = [c for c in s if c in t and c not in wanted]
    left, right = [c for c in s if c not in t], [c for c in t if c not in s]
    size: dict[str, int] = {}
    for names, x in (one, other):
        for c, n in zip(names, x.shape, strict=True):
            size[c] = max(n, size.get(c, 1))

    def laid(names: str, x: Tensor, groups: Sequence[Sequence[str]]) -> Tensor:
        order = [c for group in groups for c in group]
        x = ops.transpose(x, tuple(names.index(c) for c in order)) if "".join(order) != names else x
        x = ops.broadcast_to(x, tuple(size[c] for c in order)) if order else x
        return x.reshape(tuple(math.prod(size[c] for c in group) for group in groups))

    product = ops.matmul(laid(s, a, (batch, left, summed)), laid(t, b, (batch, summed, right)))
    names = "".join((*batch, *left, *right))
    return names, product.reshape(tuple(size[c] for c in names))
