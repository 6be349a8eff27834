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


def in_order(*order: int, **words: Any) -> Form:
    return fused(W, W, W, order=order, **words)


#: Pairs by name: each makes one.
PAIRS: dict[str, Callable[[], Composite]] = {}


def add(name: str, ours: Form, theirs: Form, several: int = 0, few: int = HEADS, count: int = 1, **words: Any) -> None:
    PAIRS[name] = lambda: of_attention(ours, theirs, few, several, count, **words)


for order in ORDERS:
    one, many = in_order(*order), in_order(*order, groups=HEADS)
    add(f"apart to {shown(order)}", apart(W, W, W), one, 2)
    add(f"{shown(order)} to apart", one, apart(W, W, W), 2)
    add(f"qkv to {shown(order)}", in_order(0, 1, 2), one)
    add(f"apart to {shown(order)} by heads", apart(W, W, W), many, 2)
    add(f"{shown(order)} by heads to apart", many, apart(W, W, W), 2)
    add(f"{shown(order)} by heads to qkv", many, in_order(0, 1, 2))
    add(f"qkv to {shown(order)} by heads", in_order(0, 1, 2), many)
    add(f"turned {shown(order)} to apart", in_order(*order, layer="turned"), apart(W, W, W), 2)

# Both fused, neither in the usual order.
add("vkq to kvq", in_order(2, 1, 0), in_order(1, 2, 0))
add("vkq by heads to kqv", in_order(2, 1, 0, groups=HEADS), in_order(1, 0, 2))
add("vkq by heads to kqv by heads", in_order(2, 1, 0, groups=HEADS), in_order(1, 0, 2, groups=HEADS))

# What is told in one block goes first in the next ones.
add("three blocks by heads", in_order(2, 0, 1, groups=HEADS), apart(W, W, W), 2, count=3)
add("three blocks of another order", in_order(0, 1, 2), in_order(2, 0, 1, groups=HEADS), count=3)

# Keys and values beside queries.
QUERIES = apart(W, names=("query",))
for order in ((0, 1), (1, 0)):
    for groups in (1, HEADS):
        kv = beside(QUERIES, fused(W, W, order=order, groups=groups, name="kv"))
        name = f"{'kv' if order == (0, 1) else 'vk'}{' by heads' if groups > 1 else ''}"
        add(f"apart to q and {name}", apart(W, W, W), kv, 2)
        add(f"q and {name} to apart", kv, apart(W, W, W), 2)
        add(f"q and kv to q and {name}", beside(QUERIES, fused(W, W, order=(0, 1), name="kv")), kv)

# Fewer heads for keys and values.
FEW = {"heads": HEADS, "groups": 2}
GROUPED = apart(W, KV, KV)
for name, words in {"in a row": {}, "by groups": {"groups": 2}, "k, v and q": {"order": (1, 2, 0)}}.items():
    whole = fused(W, KV, KV, **words)
    add(f"grouped queries apart to {name}", GROUPED, whole, 2, few=2, names=FEW)
    add(f"grouped queries {name} to apart", whole, GROUPED, 2, few=2, names=FEW)
    add(f"grouped queries in a row to {name}", fused(W, KV, KV), whole, few=2, names=FEW)
    add(f"grouped queries {name} to in a row", whole, fused(W, KV, KV), few=2, names=FEW)

# Without biases, and transposed on the other side.
add("without biases", apart(W, W, W, bias=False), in_order(0, 1, 2, bias=False), 1)
add("without biases, to apart", in_order(0, 2, 1, bias=False), apart(W, W, W, bias=False), 1)
add("turned pieces to one", apart(W, W, W, layer="turned"), in_order(0, 1, 2), 2)
add("pieces to one turned", apart(W, W, W), in_order(1, 0, 2, layer="turned"), 2)
add("one to turned pieces", in_order(0, 1, 2), apart(W, W, W, layer="turned"), 2)
add("a turned one by heads", in_order(0, 1, 2, groups=HEADS, layer="turned"), in_order(0, 1, 2))


def gated(side: Any, form: Form) -> Any:
    """A gated feed-forward layer."""
    parts, project = form(side)

    def forward(n: Any, x: Any) -> Any:
        gate, up = project(n, x)
        return n.down(gate * side.sigmoid(gate) * up)

    return side.net(forward, **parts, down=side.linear(H, WIDTH))


H = 24
TWO = apart(H, H, names=("gate", "up"))


def of_gated(ours: Form, theirs: Form, several: int) -> Composite:
    pair = stacked(lambda s: gated(s, ours), lambda s: gated(s, theirs))
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), 2 * several)


for order in ((0, 1), (1, 0)):
    one = fused(H, H, order=order)
    which = "gate and up" if order == (0, 1) else "up and gate"
    PAIRS[f"apart to {which}"] = lambda one=one: of_gated(TWO, one, 2)
    PAIRS[f"{which} to apart"] = lambda one=one: of_gated(one, TWO, 2)
    PAIRS[f"gate and up to {which}"] = lambda one=one: of_gated(fused(H, H, order=(0, 1)), one, 0)


# Convolutions: two in one, and a list of them on parts of the input.


def two_convolutions(side: Any, form: str, order: Sequence[int]) -> Any:
    """Two on one input, of different widths, joined and convolved again."""
    sizes = (4, 6)
    parts = {"a": side.conv(3, 4), "b": side.conv(3, 6)} if form == "apart" else {"both": side.conv(3, 10)}

    def forward(n: Any, x: Any) -> Any:
        if form == "apart":
            a, b = n.a(x), n.b(x)
        else:
            y = n.both(x)
            first = y[:, : sizes[order[0]]], y[:, sizes[order[0]] :]
            a, b = first if order[0] == 0 else first[::-1]
        return n.last(side.cat([side.tanh(a), b], 1))

    return side.net(forward, **parts, last=side.conv(10, 2, 3))


def of_convolutions(ours: str, theirs: str, order: Sequence[int]) -> Composite:
    pair = [two_convolutions(s, f, order) for s, f in zip(SIDES, (ours, theirs), strict=True)]
    return Composite(*pair, values(2, 3, 4, 5), 2)


for order in ((0, 1), (1, 0)):
    PAIRS[f"two convolutions in one {order}"] = lambda order=order: of_convolutions("apart", "one", order)
    PAIRS[f"one convolution for two {order}"] = lambda order=order: of_convolutions("one", "apart", order)


def parts_of_the_input(side: Any, form: str) -> Any:
    """A grouped convolution, or a list of convolutions that see a part of the input each."""
    if form == "grouped":
        parts: dict[str, Any] = {"grouped": side.conv(6, 12, 3, groups=3)}
    else:
        parts = {"each": [side.conv(2, 4, 3) for _ in range(3)]}

    def forward(n: Any, x: Any) -> Any:
        x = side.tanh(n.first(x))
        y = n.grouped(x) if form == "grouped" else side.cat([n.each[i](x[:, 2 * i : 2 * i + 2]) for i in range(3)], 1)
        return n.last(side.tanh(y))

    return side.net(forward, first=side.conv(3, 6), **parts, last=side.conv(12, 2))


def of_parts(ours: str, theirs: str) -> Composite:
    pair = [parts_of_the_input(s, f) for s, f in zip(SIDES, (ours, theirs), strict=True)]
    return Composite(*pair, values(2, 3, 4, 5), 2)


PAIRS["a list of convolutions in a grouped one"] = lambda: of_parts("list", "grouped")
PAIRS["a grouped convolution for a list"] = lambda: of_parts("grouped", "list")


# PyTorch's own attention, whose output layer is never called.


def own_attention(side: Any, form: str) -> Any:
    if form == "own":
        if side is Torch:
            import torch

            inner = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            return side.net(lambda n, x: n.attention(x, x, x, need_weights=False)[0], attention=inner)
        from mindspore import nn

        inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        return side.net(lambda n, x: n.attention(x, x, x)[0], attention=inner)
    return attention_scaled(side, apart(W, W, W))


def attention_scaled(side: Any, form: Form) -> Any:
    """As PyTorch's own layer computes it."""
    parts, project = form(side)

    def forward(n: Any, x: Any) -> Any:
        q, k, v = (y.reshape((BATCH, LENGTH, -1, SIZE)).swapaxes(1, 2) for y in project(n, x))
        y = side.softmax(q @ k.swapaxes(2, 3) * SIZE**-0.5) @ v
        return n.out(y.swapaxes(1, 2).reshape((BATCH, LENGTH, WIDTH)))

    return side.net(forward, heads=HEADS, **parts, out=side.linear(WIDTH, WIDTH))


def of_own(ours: str, theirs: str) -> Composite:
    pair = stacked(lambda s: own_attention(s, ours), lambda s: own_attention(s, theirs))
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), 4)


PAIRS["attention of one container to four layers"] = lambda: of_own("own", "apart")
PAIRS["four layers to attention of one container"] = lambda: of_own("apart", "own")


# Experts in a list, or in one tensor.

EXPERTS, INNER = 3, 8


def one_expert(side: Any) -> Any:
    def forward(n: Any, x: Any) -> Any:
        gate = n.gate(x)
        return n.down(gate * side.sigmoid(gate) * n.up(x))

    layers = {"gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
    return side.net(forward, **{name: side.linear(*sizes, bias=False) for name, sizes in layers.items()})


def mixture(side: Any, form: str, order: Sequence[int], turned: bool) -> Any:
    """Experts, weighed by a router."""

    def several(n: Any, x: Any, shares: Any) -> Any:
        if form == "list":
            return sum(shares[..., i : i + 1] * n.each[i](x) for i in range(EXPERTS))
        total = 0
        for i in range(EXPERTS):
            both, down = n.both[i], n.down[i]
            y = x @ (both.swapaxes(0, 1) if turned else both)
            first = y[..., :INNER], y[..., INNER:]
            gate, up = first if order[0] == 0 else first[::-1]
            y = gate * side.sigmoid(gate) * up
            total = total + shares[..., i : i + 1] * (y @ (down.swapaxes(0, 1) if turned else down))
        return total

    if form == "list":
        experts = side.net(several, each=[one_expert(side) for _ in range(EXPERTS)])
    else:
        both, down = values(EXPERTS, WIDTH, 2 * INNER) / 4, values(EXPERTS, INNER, WIDTH) / 3
        if turned:
            both, down = both.swapaxes(1, 2).copy(), down.swapaxes(1, 2).copy()
        experts = side.net(several, both=both, down=down)
    return side.net(
        lambda n, x: n.experts(x, side.softmax(n.router(x))), router=side.linear(WIDTH, EXPERTS), experts=experts
    )


def of_experts(ours: str, theirs: str, order: Sequence[int], turned: bool, count: int = 2) -> Composite:
    pair = stacked(lambda s: mixture(s, ours, order, turned), lambda s: mixture(s, theirs, order, turned), count)
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), 2 * count)


for order in ((0, 1), (1, 0)):
    for turned in (False, True):
        name = f"{'gate, up' if order == (0, 1) else 'up, gate'}{', turned' if turned else ''}"
        PAIRS[f"a list of experts in one tensor: {name}"] = lambda o=order, t=turned: of_experts("list", "one", o, t)
        PAIRS[f"experts in one tensor as a list: {name}"] = lambda o=order, t=turned: of_experts("one", "list", o, t)


def dispatched() -> Composite:
    """PyTorch's experts see the tokens that are routed to them; the port computes all of them for every token."""
    import torch

    def some(n: Any, x: Any, shares: Any) -> Any:
        flat, shares = x.reshape(-1, WIDTH), shares.reshape(-1, EXPERTS)
        best, out = shares.argmax(-1), torch.zeros_like(flat)
        for i in range(EXPERTS):
            (at,) = torch.nonzero(best == i, as_tuple=True)
            if len(at):
                out[at] = shares[at, i : i + 1] * n.each[i](flat[at])
        return out.reshape(x.shape)

    def every(n: Any, x: Any, shares: Any) -> Any:
        shares = shares * (shares == shares.max(-1, keepdims=True)).astype(shares.dtype)
        total = 0
        for i in range(EXPERTS):
            y = x @ n.both[i]
            up, gate = y[..., :INNER], y[..., INNER:]
            total = total + shares[..., i : i + 1] * ((gate * MindSpore.sigmoid(gate) * up) @ n.down[i])
        return total

    def routed(side: Any, experts: Any) -> Any:
        router = side.linear(WIDTH, EXPERTS)
        return side.net(lambda n, x: n.experts(x, side.softmax(n.router(x))), router=router, experts=experts)

    both, down = values(EXPERTS, WIDTH, 2 * INNER) / 4, values(EXPERTS, INNER, WIDTH) / 3
    pair = stacked(
        lambda s: routed(s, s.net(some, each=[one_expert(s) for _ in range(EXPERTS)])),
        lambda s: routed(s, s.net(every, both=both, down=down)),
    )
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), 4)


PAIRS["experts that see some of the tokens in one tensor"] = dispatched


# Gates of a recurrent layer.

GATES = "ifgo"


def gates_apart(side: Any, owned: bool) -> Any:
    """A layer of long short-term memory whose gates are layers, or parameters, of their own."""
    parts: dict[str, Any] = {}
    for gate in GATES:
        if owned:
            parts |= {f"w_x{gate}": values(8, WIDTH) / 4, f"w_h{gate}": values(8, 8) / 3, f"b_{gate}": values(8)}
        else:
            parts |= {f"x{gate}": side.linear(WIDTH, 8), f"h{gate}": side.linear(8, 8)}

    def gate(n: Any, name: str, x: Any, h: Any) -> Any:
        if owned:
            a, b = getattr(n, f"w_x{name}"), getattr(n, f"w_h{name}")
            return x @ a.swapaxes(0, 1) + h @ b.swapaxes(0, 1) + getattr(n, f"b_{name}")
        return getattr(n, f"x{name}")(x) + getattr(n, f"h{name}")(h)

    def forward(n: Any, x: Any) -> Any:
        h = c = x[:, 0, :8] * 0
        found = []
        for t in range(LENGTH):
            i, f, g, o = (gate(n, name, x[:, t], h) for name in GATES)
            c = side.sigmoid(f) * c + side.sigmoid(i) * side.tanh(g)
            h = side.sigmoid(o) * side.tanh(c)
            found.append(h[:, None])
        return side.cat(found, 1)

    return side.net(forward, **parts)


def recurrent(side: Any, form: str) -> Any:
    if form != "own":
        inner = gates_apart(side, form == "owned")
        return side.net(lambda n, x: n.last(n.rnn(x)), rnn=inner, last=side.linear(8, WIDTH))
    if side is Torch:
        import torch

        inner = torch.nn.LSTM(WIDTH, 8, batch_first=True)
    else:
        from mindspore import nn

        inner = nn.LSTM(WIDTH, 8, batch_first=True)
    return side.net(lambda n, x: n.last(n.rnn(x)[0]), rnn=inner, last=side.linear(8, WIDTH))


def of_gates(ours: str, theirs: str, several: int) -> Composite:
    pair = stacked(lambda s: recurrent(s, ours), lambda s: recurrent(s, theirs), 1)
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), several)


PAIRS["a recurrent layer for four gates each"] = lambda: of_gates("own", "apart", 4)
PAIRS["four gates each in a recurrent layer"] = lambda: of_gates("apart", "own", 4)


# Situations met in real ports, written from scratch: whole encoders with tokens, positions and feed-forward layers.


def encoder_block(side: Any, names: dict[str, str], form: Form, turned: bool, reduced: bool) -> Any:
    """Attention and a feed-forward layer, each after a norm; parts by the names that the author gave them."""
    parts, project = form(side)
    make = side.turned if turned else side.linear

    def attend(n: Any, x: Any) -> Any:
        source = x
        if reduced:  # keys and values of a shorter sequence
            source = n.short_norm(n.short(x.swapaxes(1, 2)[..., None])[..., 0].swapaxes(1, 2))
        q, k, v = project(n, x, source) if reduced else project(n, x)
        q, k, v = (y.reshape((BATCH, y.shape[1], -1, SIZE)).swapaxes(1, 2) for y in (q, k, v))
        y = side.softmax(q @ k.swapaxes(2, 3) * 0.6) @ v
        return getattr(n, names["out"])(y.swapaxes(1, 2).reshape((BATCH, x.shape[1], WIDTH)))

    def forward(n: Any, x: Any) -> Any:
        x = x + n.inner(getattr(n, names["norm1"])(x))
        y = getattr(n, names["up"])(getattr(n, names["norm2"])(x))
        return x + getattr(n, names["down"])(y * side.sigmoid(y))

    if reduced:
        parts |= {"short": side.conv(WIDTH, WIDTH), "short_norm": side.norm(WIDTH)}
    inner = side.net(attend, num_heads=HEADS, **parts, **{names["out"]: make(WIDTH, WIDTH)})
    own = {names["norm1"]: side.norm(WIDTH), names["norm2"]: side.norm(WIDTH)}
    dense = {names["up"]: make(WIDTH, 2 * WIDTH), names["down"]: make(2 * WIDTH, WIDTH)}
    return side.net(forward, **own, inner=inner, **dense)


def queries_and_fused(order: Sequence[int] = (0, 1)) -> Form:
    """Queries of one value, keys and values of another one, in one layer."""

    def form(side: Any) -> Any:
        parts = {"q": side.linear(WIDTH, WIDTH), "kv": side.linear(WIDTH, 2 * WIDTH)}
        return parts, lambda n, x, s: [n.q(x), *taken_apart(n.kv(s), (WIDTH, WIDTH), order)]

    return form


def queries_and_others() -> Form:
    def form(side: Any) -> Any:
        parts = {name: side.linear(WIDTH, WIDTH) for name in ("query", "key", "value")}
        return parts, lambda n, x, s: [n.query(x), n.key(s), n.value(s)]

    return form


TORCH_NAMES = {"norm1": "ln_1", "norm2": "ln_2", "out": "c_proj", "up": "c_fc", "down": "c_out"}
PORT_NAMES = {"norm1": "layernorm1", "norm2": "layernorm2", "out": "projection", "up": "mapping", "down": "back"}


def encoders(
    ours: Form, theirs: Form, turned: tuple[bool, bool], several: int, reduced: bool = False, count: int = 2
) -> Composite:
    def forward(n: Any, x: Any) -> Any:
        x = x + n.positions
        for layer in n.layers:
            x = layer(x)
        return n.head(n.last(x))

    nets = []
    sides = zip(SIDES, (TORCH_NAMES, PORT_NAMES), (ours, theirs), turned, strict=True)
    for side, names, form, t in sides:
        layers = [encoder_block(side, names, form, t, reduced) for _ in range(count)]
        own = {"positions": values(1, LENGTH, WIDTH), "layers": layers}
        nets.append(side.net(forward, **own, last=side.norm(WIDTH), head=side.linear(WIDTH, 3)))
    return Composite(*nets, values(BATCH, LENGTH, WIDTH), several * count)


THREE = apart(W, W, W, names=("dense1", "dense2", "dense3"))
SITUATIONS: dict[str, Callable[[], Composite]] = {
    "a turned fused projection against three layers": lambda: encoders(
        in_order(0, 1, 2, layer="turned", name="c_attn"), THREE, (True, False), 2
    ),
    "keys and values of a reduced sequence in one": lambda: encoders(
        queries_and_others(), queries_and_fused(), (False, False), 2, reduced=True
    ),
    "queries, keys and values in one": lambda: encoders(
        apart(W, W, W), in_order(0, 1, 2, name="qkv"), (False, False), 2
    ),
    "projections kept transposed, also square ones": lambda: encoders(
        apart(W, W, W), apart(W, W, W, names=("dense1", "dense2", "dense3"), layer="turned"), (False, True), 0
    ),
    "some projections kept transposed": lambda: encoders(
        apart(W, W, W), apart(W, W, W, names=("q", "k", "v")), (False, True), 0
    ),
}


# Names that mislead, and what cannot be told.


def misleading(groups: int, order: Sequence[int]) -> Composite:
    """The port calls it ``qkv``, and keeps it otherwise."""
    return of_attention(apart(W, W, W), in_order(*order, name="qkv", groups=groups), several=2)


def unheard(side: Any, form: Form) -> Any:
    """Attention whose values count for nothing."""
    return side.net(lambda n, x: 0 * n.real(x), real=attention(side, form))


def untellable() -> Composite:
    pair = stacked(lambda s: unheard(s, apart(W, W, W)), lambda s: unheard(s, in_order(0, 1, 2, name="fused")), 1)
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), 2)


def exchangeable(order: Sequence[int]) -> Composite:
    """Two layers whose values are multiplied with each other: either order of them is right."""

    def product(side: Any, form: Form) -> Any:
        parts, project = form(side)

        def forward(n: Any, x: Any) -> Any:
            a, b = project(n, x)
            return n.down(a * b)

        return side.net(forward, **parts, down=side.linear(H, WIDTH))

    one = fused(H, H, order=order)
    pair = stacked(lambda s: product(s, TWO), lambda s: product(s, one), 1)
    return Composite(*pair, values(BATCH, LENGTH, WIDTH), 2)


# Weights that are computed from several parameters on PyTorch's side.


def folded() -> Composite:
    """A batch norm that the port has folded into the convolution before it, twice."""
    import torch

    def forward(n: Any, x: Any) -> Any:
        return n.last(Torch.tanh(n.norm2(n.conv2(Torch.tanh(n.norm1(n.conv1(x)))))))

    ours = Torch.net(
        forward,
        conv1=torch.nn.Conv2d(3, 4, 3, padding=1, bias=False),
        norm1=torch.nn.BatchNorm2d(4),
        conv2=torch.nn.Conv2d(4, 4, 3, padding=1, bias=False),
        norm2=torch.nn.BatchNorm2d(4),
        last=Torch.conv(4, 2),
    )
    theirs = MindSpore.net(
        lambda n, x: n.last(MindSpore.tanh(n.conv2(MindSpore.tanh(n.conv1(x))))),
        conv1=MindSpore.conv(3, 4, 3),
        conv2=MindSpore.conv(4, 4, 3),
        last=MindSpore.conv(4, 2),
    )
    return Composite(ours, theirs, values(2, 3, 5, 4), 2)


def weight_norms(bias: bool) -> Composite:
    import torch
    from torch.nn.utils.parametrizations import weight_norm

    def forward(n: Any, x: Any) -> Any:
        return n.c(n.b(n.a(x)) * n.a(x))

    dense = {name: weight_norm(torch.nn.Linear(6, 6, bias=bias)) for name in "ab"}
    ours = Torch.net(forward, **dense, c=Torch.linear(6, 2))
    theirs = MindSpore.net(
        forward, **{name: MindSpore.linear(6, 6, bias=bias) for name in "ab"}, c=MindSpore.linear(6, 2)
    )
    return Composite(ours, theirs, values(3, 6), 2)


COMPUTED: dict[str, Callable[[], Composite]] = {
    "batch norms folded": folded,
    "weight norms": lambda: weight_norms(True),
    "weight norms without biases": lambda: weight_norms(False),
}
