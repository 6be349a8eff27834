"""Small pairs of networks that keep their projections in other forms: fused, apart, by groups, transposed, stacked.

Every network is written for both frameworks at once: a *form* says how a side keeps queries, keys and values, and the
arithmetic is the same. So every form of PyTorch's can meet every form of MindSpore's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hard_pairs import dense, linear, mindspore_net, torch_net, values

Array = np.ndarray

BATCH, LENGTH, HEADS, SIZE = 2, 5, 4, 4
WIDTH = HEADS * SIZE


@dataclass
class Composite:
    """Two networks, and what is true of them.

    Attributes:
        torch, mindspore: the networks.
        inputs: of the first run.
        idle: PyTorch's parameters without an effect on the outputs.
        several: how many entries have several names on a side.
        left: PyTorch's parameters without a counterpart.
    """

    torch: Any
    mindspore: Any
    inputs: Any
    several: int = 0
    idle: frozenset[str] = frozenset()
    left: frozenset[str] = field(default_factory=frozenset)


# ------------------------------------------------------------------------------------------------- both frameworks


class Torch:
    """What the networks need of PyTorch."""

    net = staticmethod(torch_net)
    linear = staticmethod(linear)

    @staticmethod
    def softmax(x: Any) -> Any:
        return x.softmax(-1)

    @staticmethod
    def cat(xs: Sequence[Any], axis: int = -1) -> Any:
        import torch

        return torch.cat(list(xs), axis)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return x.sigmoid()

    @staticmethod
    def tanh(x: Any) -> Any:
        return x.tanh()

    @staticmethod
    def norm(width: int) -> Any:
        import torch

        return torch.nn.LayerNorm(width)

    @staticmethod
    def conv(cin: int, cout: int, k: int = 1, groups: int = 1) -> Any:
        import torch

        return torch.nn.Conv2d(cin, cout, k, padding=k // 2, groups=groups)

    @staticmethod
    def turned(a: int, b: int) -> Any:
        """A dense layer that keeps its weight with the inputs first."""
        return torch_net(lambda n, x: x @ n.weight + n.bias, weight=values(a, b) / a**0.5, bias=values(b))


class MindSpore:
    """What the networks need of MindSpore."""

    net = staticmethod(mindspore_net)
    linear = staticmethod(dense)

    @staticmethod
    def softmax(x: Any) -> Any:
        from mindspore import ops

        return ops.softmax(x, -1)

    @staticmethod
    def cat(xs: Sequence[Any], axis: int = -1) -> Any:
        from mindspore import ops

        return ops.cat(list(xs), axis)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        from mindspore import ops

        return ops.sigmoid(x)

    @staticmethod
    def tanh(x: Any) -> Any:
        from mindspore import ops

        return ops.tanh(x)

    @staticmethod
    def norm(width: int) -> Any:
        from mindspore import nn

        return nn.LayerNorm((width,), epsilon=1e-5)

    @staticmethod
    def conv(cin: int, cout: int, k: int = 1, groups: int = 1) -> Any:
        from mindspore import nn

        return nn.Conv2d(cin, cout, k, pad_mode="pad", padding=k // 2, has_bias=True, group=groups)

    @staticmethod
    def turned(a: int, b: int) -> Any:
        from mindspore import ops

        return mindspore_net(
            lambda n, x: ops.matmul(x, n.weight) + n.bias, weight=values(a, b) / a**0.5, bias=values(b)
        )


SIDES: tuple[Any, Any] = (Torch, MindSpore)

#: Parts of a network, and what gives queries, keys and values.
Form = Callable[[Any], tuple[dict[str, Any], Callable[[Any, Any], list[Any]]]]


# ------------------------------------------------------------------------------------------------------------- forms


def taken_apart(y: Any, sizes: Sequence[int], order: Sequence[int], groups: int = 1) -> list[Any]:
    """The pieces of a fused value: of these sizes, in this order, and so many times one after the other."""
    shares = [sizes[i] // groups for i in order]
    y = y.reshape((*y.shape[:-1], groups, sum(shares)))
    found: dict[int, Any] = {}
    at = 0
    for i, n in zip(order, shares, strict=True):
        piece = y[..., at : at + n]
        found[i] = piece.reshape((*piece.shape[:-2], groups * n))
        at += n
    return [found[i] for i in range(len(sizes))]


def apart(
    *sizes: int, names: Sequence[str] = ("query", "key", "value"), layer: str = "linear", bias: bool = True
) -> Form:
    """A layer for each."""

    def form(side: Any) -> Any:
        def make(n: int) -> Any:
            return side.turned(WIDTH, n) if layer == "turned" else side.linear(WIDTH, n, bias=bias)

        parts = {name: make(n) for name, n in zip(names, sizes, strict=True)}
        return parts, lambda n, x: [getattr(n, name)(x) for name in names]

    return form


def fused(
    *sizes: int,
    order: Sequence[int] = (0, 1, 2),
    groups: int = 1,
    name: str = "fused",
    layer: str = "linear",
    bias: bool = True,
) -> Form:
    """One layer for all."""

    def form(side: Any) -> Any:
        total = sum(sizes)
        one = side.turned(WIDTH, total) if layer == "turned" else side.linear(WIDTH, total, bias=bias)
        return {name: one}, lambda n, x: taken_apart(getattr(n, name)(x), sizes, order, groups)

    return form


def beside(first: Form, rest: Form) -> Form:
    """What two forms give, the first one's first."""

    def form(side: Any) -> Any:
        (a, f), (b, g) = first(side), rest(side)
        return a | b, lambda n, x: [*f(n, x), *g(n, x)]

    return form


def attention(side: Any, form: Form, few: int = HEADS, names: dict[str, int] | None = None, rows: str = "heads") -> Any:
    """Attention of some heads for queries, and of perhaps fewer for keys and values."""
    parts, project = form(side)

    def forward(n: Any, x: Any) -> Any:
        q, k, v = project(n, x)
        q, k, v = (y.reshape((BATCH, LENGTH, -1, SIZE)).swapaxes(1, 2) for y in (q, k, v))
        if few != HEADS:
            k, v = (
                side.cat([y[:, i // (HEADS // few) : i // (HEADS // few) + 1] for i in range(HEADS)], 1) for y in (k, v)
            )
        y = side.softmax(q @ k.swapaxes(2, 3) * 0.7) @ v
        return n.out(y.swapaxes(1, 2).reshape((BATCH, LENGTH, WIDTH)))

    numbers = {rows: HEADS} if names is None else names
    return side.net(forward, **numbers, **parts, out=side.linear(WIDTH, WIDTH))


def block(side: Any, make: Callable[[Any], Any]) -> Any:
    return side.net(
        lambda n, x: x + n.inner(n.norm(x)), norm=side.norm(WIDTH), inner=make(side)
    )  # fmt: skip


def stacked(make_torch: Callable[[Any], Any], make_mindspore: Callable[[Any], Any], count: int = 2) -> tuple[Any, Any]:
    """Blocks in a row, and a layer after them."""

    def forward(n: Any, x: Any) -> Any:
        for layer in n.blocks:
            x = layer(x)
        return n.head(x)

    nets = []
    for side, make in zip(SIDES, (make_torch, make_mindspore), strict=True):
        blocks = [block(side, make) for _ in range(count)]
        nets.append(side.net(forward, blocks=blocks, head=side.linear(WIDTH, 3)))
    return nets[0], nets[1]


def of_attention(
    ours: Form, theirs: Form, few: int = HEADS, several: int = 0, count: int = 2, **words: Any
) -> Composite:
    pair = stacked(lambda s: attention(s, ours, few, **words), lambda s: attention(s, theirs, few, **words), count)
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), several * count)


# ------------------------------------------------------------------------------------------------------------- pairs

W, KV = WIDTH, 2 * SIZE
ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def shown(order: Sequence[int]) -> str:
    return "".join("qkv"[i] for i in order)


#: Pairs by name: each makes one.
PAIRS: dict[str, Callable[[], Composite]] = {}

for order in ORDERS:
    PAIRS[f"apart to {shown(order)}"] = lambda order=order: of_attention(
        apart(W, W, W), fused(W, W, W, order=order), several=2
    )
    PAIRS[f"{shown(order)} to apart"] = lambda order=order: of_attention(
        fused(W, W, W, order=order), apart(W, W, W), several=2
    )
    PAIRS[f"qkv to {shown(order)}"] = lambda order=order: of_attention(fused(W, W, W), fused(W, W, W, order=order))
    PAIRS[f"apart to {shown(order)} by heads"] = lambda order=order: of_attention(
        apart(W, W, W), fused(W, W, W, order=order, groups=HEADS), several=2
    )
    PAIRS[f"{shown(order)} by heads to apart"] = lambda order=order: of_attention(
        fused(W, W, W, order=order, groups=HEADS), apart(W, W, W), several=2
    )
    PAIRS[f"{shown(order)} by heads to qkv"] = lambda order=order: of_attention(
        fused(W, W, W, order=order, groups=HEADS), fused(W, W, W)
    )
    PAIRS[f"qkv to {shown(order)} by heads"] = lambda order=order: of_attention(
        fused(W, W, W), fused(W, W, W, order=order, groups=HEADS)
    )
    PAIRS[f"turned {shown(order)} to apart"] = lambda order=order: of_attention(
        fused(W, W, W, order=order, layer="turned"), apart(W, W, W), several=2
    )
