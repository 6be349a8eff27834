"""Functions of ``mint`` without a kernel here: their stand-ins give what PyTorch's functions of these names give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.frameworks

Case = Callable[[Any, Callable[..., Any]], Any]

#: What is called, with ``torch`` or ``mint`` and with what makes a tensor of an array.
CASES: list[Case] = [
    lambda m, t: m.acos(t(0.3)),
    lambda m, t: m.acosh(t(1.3)),
    lambda m, t: m.asin(t(0.3)),
    lambda m, t: m.asinh(t("a")),
    lambda m, t: m.atan(t("a")),
    lambda m, t: m.atan2(t("a"), t("b")),
    lambda m, t: m.exp2(t("a")),
    lambda m, t: m.log2(t(0.3)),
    lambda m, t: m.log10(t(0.3)),
    lambda m, t: m.frac(t("a") * 3),
    lambda m, t: m.logaddexp(t("a"), t("b")),
    lambda m, t: m.addcmul(t("a"), t("b"), t("b"), value=0.5),
    lambda m, t: m.addcdiv(t("a"), t("b"), t(0.3), value=0.5),
    lambda m, t: t("a").addcdiv(t("b"), t(0.3)),
    lambda m, t: m.nn.functional.leaky_relu(t("a"), 0.1),
    lambda m, t: m.var(t("a")),
    lambda m, t: m.var(t("x"), (1, 2), correction=0, keepdim=True),
    lambda m, t: m.std(t("a"), 1),
    lambda m, t: m.var_mean(t("a"), 0),
    lambda m, t: m.std_mean(t("a"), -1, keepdim=True),
    lambda m, t: m.norm(t("a")),
    lambda m, t: m.norm(t("a"), 1, 1),
    lambda m, t: m.norm(t("a"), math.inf, 1, keepdim=True),
    lambda m, t: m.norm(t("a"), 3, 1),
    lambda m, t: m.nn.functional.normalize(t("a"), dim=0),
    lambda m, t: m.logsumexp(t("x"), (0, 2)),
    lambda m, t: m.logsumexp(t("x") * 100, (1,), keepdim=True),
    lambda m, t: m.argmax(t("a")),
    lambda m, t: m.argmax(t("a"), 1, keepdim=True),
    lambda m, t: m.argmin(t("a"), 0),
    lambda m, t: m.count_nonzero(t("i"), 1),
    lambda m, t: m.trace(t("s")),
    lambda m, t: m.median(t("a")),
    lambda m, t: m.median(t("a"), 1),
    lambda m, t: m.mm(t("a"), t("s")),
    lambda m, t: m.mv(t("a"), t("v")),
    lambda m, t: m.dot(t("v"), t("v")),
    lambda m, t: m.outer(t("v"), t("v")),
    lambda m, t: m.addmm(t("v"), t("a"), t("s"), beta=0.5, alpha=2),
    lambda m, t: m.addmv(t("a")[:, 0], t("a"), t("v")),
    lambda m, t: m.baddbmm(t("x"), t("x"), t("y"), alpha=0.5),
    lambda m, t: m.einsum("bij,bjk->bik", t("x"), t("y")),
    lambda m, t: m.einsum("bij,bjk,kl->li", t("x"), t("y"), t("s")),
    lambda m, t: m.einsum("...ij,jk", t("x"), t("s")),
    lambda m, t: m.einsum("...i,...i->...", t("x"), t("x")),
    lambda m, t: m.einsum("ii->i", t("s")),
    lambda m, t: m.einsum("ij->", t("s")),
    lambda m, t: m.einsum("i,j->ji", t("v"), t("v")),
    lambda m, t: m.einsum("bij->jb", t("x")),
    lambda m, t: m.inverse(t("s")),
    lambda m, t: m.sort(t("a")),
    lambda m, t: m.sort(t("i"), dim=0, descending=True, stable=True),
    lambda m, t: m.argsort(t("a"), 1),
    lambda m, t: m.topk(t("a"), 2),
    lambda m, t: m.topk(t("a"), 2, dim=0, largest=False),
    lambda m, t: m.unique(t("i"), return_inverse=True, return_counts=True),
    lambda m, t: m.bincount(t("i").reshape(-1), minlength=9),
    lambda m, t: m.cumsum(t("a"), 1),
    lambda m, t: m.cummin(t("a"), 1)[0],
    lambda m, t: m.stack((t("a"), t("b")), 1),
    lambda m, t: m.roll(t("x"), (1, -2), (1, 2)),
    lambda m, t: m.roll(t("a"), 2),
    lambda m, t: m.repeat_interleave(t("a"), 2, 1),
    lambda m, t: m.repeat_interleave(t("a"), 2),
    lambda m, t: m.index_select(t("x"), 2, t("i")[0]),
    lambda m, t: m.take(t("a"), t("i")),
    lambda m, t: m.scatter_add(t("x")[0], 1, t("i"), t("y")[0]),
    lambda m, t: t("x")[0].scatter_add(1, t("i"), t("y")[0]),
    lambda m, t: m.tril(t("x"), -1),
    lambda m, t: m.diag(t("v"), 1),
    lambda m, t: m.diag(t("v"), -2),
    lambda m, t: m.diag(t("a"), 1),
    lambda m, t: m.diag(t("a"), -1),
    lambda m, t: t("a").repeat(2, 1, 3),
    lambda m, t: m.nn.functional.one_hot(t("i"), 7),
    lambda m, t: m.nn.functional.one_hot(t("i")),
    lambda m, t: m.zeros_like(t("a")),
    lambda m, t: m.ones_like(t("a"), dtype=m.int32 if hasattr(m, "int32") else _int32()),
    lambda m, t: m.full_like(t("a"), 2),
    lambda m, t: m.full((2, 3), 1.5),
    lambda m, t: m.full((2, 3), 4),
    lambda m, t: m.arange(5),
    lambda m, t: m.arange(1, 2, 0.25),
    lambda m, t: m.linspace(0, 1, 5),
    lambda m, t: m.meshgrid(m.arange(3), m.arange(2), indexing="ij"),
    lambda m, t: t("a").fill_(2.0),
    lambda m, t: t("a").zero_(),
    lambda m, t: t("a").clamp_(-0.5, 0.5),
    lambda m, t: t("a").masked_fill_(t("b") > 0, -1.0),
    lambda m, t: m.nn.functional.mse_loss(t("a"), t("b")),
    lambda m, t: m.nn.functional.l1_loss(t("a"), t("b"), reduction="sum"),
    lambda m, t: m.nn.functional.kl_div(t("a"), t(0.3), reduction="batchmean"),
    lambda m, t: m.nn.functional.kl_div(t("a"), t("b"), reduction="none", log_target=True),
]

_RNG = np.random.default_rng(3)
ARRAYS = {
    "a": _RNG.standard_normal((5, 4)).astype(np.float32),
    "b": _RNG.standard_normal((5, 4)).astype(np.float32),
    "x": _RNG.standard_normal((3, 4, 4)).astype(np.float32),
    "y": _RNG.standard_normal((3, 4, 4)).astype(np.float32),
    "s": (_RNG.standard_normal((4, 4)) + 3 * np.eye(4)).astype(np.float32),
    "v": _RNG.standard_normal(4).astype(np.float32),
    "i": _RNG.integers(0, 4, (3, 4)),
}
SMALL = (0.05 + 0.9 * _RNG.random((5, 4))).astype(np.float32)


def _int32() -> Any:
    import mindspore

    return mindspore.int32


def _array(key: str | float) -> np.ndarray:
    """An array by its letter, or numbers between 0 and 1 moved up to begin at the whole part of a number."""
    return ARRAYS[key].copy() if isinstance(key, str) else SMALL + math.floor(key)


def _numbers(result: Any) -> list[np.ndarray]:
    results = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(r.asnumpy() if hasattr(r, "asnumpy") else r) for r in results]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_they_give_what_pytorch_gives(number: int) -> None:
    import torch

    from automap.mindspore_standins import StandIns  # first: it prepares the environment for MindSpore

    import mindspore  # isort: skip
    from mindspore import mint  # isort: skip

    expected = _numbers(CASES[number](torch, lambda key: torch.from_numpy(_array(key))))
    with StandIns().active():
        given = _numbers(CASES[number](mint, lambda key: mindspore.Tensor(_array(key))))
    assert [g.shape for g in given] == [e.shape for e in expected]
    for g, e in zip(given, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-6)
        assert (g.dtype.kind == "f") == (e.dtype.kind == "f")


@pytest.mark.parametrize(
    "case",
    [
        lambda m, x, y: m.var(x, 1).sum() + m.norm(y, dim=1).sum(),
        lambda m, x, y: m.logsumexp(x, (1,)).sum() + m.std(y),
        lambda m, x, y: m.einsum("ij,kj->ik", x, y).sum(),
        lambda m, x, y: (m.stack((x, y), 0) * m.roll(x, 1, 0)).sum(),
        lambda m, x, y: m.topk(x * y, 2)[0].sum(),
    ],
)
def test_their_gradients(case: Callable[[Any, Any, Any], Any]) -> None:
    import torch

    from automap.mindspore_standins import StandIns

    import mindspore  # isort: skip
    from mindspore import mint  # isort: skip

    a, b = (torch.from_numpy(ARRAYS[k]).requires_grad_() for k in "ab")
    case(torch, a, b).backward()
    with StandIns().active():
        grads = mindspore.grad(lambda x, y: case(mint, x, y), (0, 1))(*(mindspore.Tensor(ARRAYS[k]) for k in "ab"))
    for theirs, ours in zip((a.grad, b.grad), grads, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs.numpy(), rtol=2e-5, atol=2e-6)
