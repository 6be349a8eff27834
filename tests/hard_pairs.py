"""Small pairs of networks in both frameworks of which names, shapes and order tell little, or mislead.

Each function makes one :class:`Pair`. The networks are written with :func:`torch_net` and :func:`mindspore_net`: their
parts by name, and what they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray

#: MindSpore's words for what PyTorch calls otherwise.
WORDS = {
    "weight": ("gamma", "embedding_table"),
    "bias": ("beta",),
    "running_mean": ("moving_mean",),
    "running_var": ("moving_variance",),
}


@dataclass
class Pair:
    """Two networks, and what is true of them.

    Attributes:
        torch, mindspore: the networks.
        layers: paths of PyTorch's layers, or names of its parameters, to MindSpore's; where both are the same it may be
            left out.
        inputs: of the first run.
        idle: PyTorch's parameters without an effect on the outputs.
        turned: PyTorch's matrices that the port keeps transposed.
        words: further arguments for inference.
    """

    torch: Any
    mindspore: Any
    layers: dict[str, str]
    inputs: Any
    idle: frozenset[str] = frozenset()
    turned: frozenset[str] = frozenset()
    words: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # By paths: what MindSpore calls its parameters may not be what it will call them.
        self.names = {p.name for p in self.mindspore.get_parameters()}

    @property
    def truth(self) -> dict[str, str]:
        """PyTorch's parameters that have a home, to MindSpore's."""
        found = {}
        for name, _ in [*self.torch.named_parameters(), *self.torch.named_buffers()]:
            path, _, leaf = f".{name}".rpartition(".")
            path = path[1:]
            if name in self.layers:
                found[name] = self.layers[name]
                continue
            home = self.layers.get(path, path)
            for word in (leaf, *WORDS.get(leaf, ())):
                if f"{home}.{word}".lstrip(".") in self.names:
                    found[name] = f"{home}.{word}".lstrip(".")
        return found


def torch_net(forward: Callable[..., Any], **parts: Any) -> Any:
    """A PyTorch network: modules, lists of modules, parameters (arrays), and its forward."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, list):
                    part = torch.nn.ModuleList(part)
                setattr(self, name, torch.nn.Parameter(torch.tensor(part)) if isinstance(part, Array) else part)

    Net.forward = forward
    return Net()


def mindspore_net(construct: Callable[..., Any], **parts: Any) -> Any:
    """The same in MindSpore."""
    import mindspore as ms

    class Net(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, list):
                    part = ms.nn.CellList(part)
                setattr(self, name, ms.Parameter(ms.Tensor(part), name=name) if isinstance(part, Array) else part)

    Net.construct = construct
    return Net()


def values(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def linear(*sizes: int, bias: bool = True) -> Any:
    """PyTorch's dense layer."""
    import torch

    return torch.nn.Linear(*(sizes or (6, 6)), bias=bias)


def dense(*sizes: int, bias: bool = True) -> Any:
    """MindSpore's dense layer."""
    from mindspore import nn

    return nn.Dense(*(sizes or (6, 6)), has_bias=bias)


def convs(cin: int, cout: int, k: int = 1, stride: int = 1, bias: bool = True) -> tuple[Any, Any]:
    """One convolution in both frameworks."""
    import torch
    from mindspore import nn

    return (
        torch.nn.Conv2d(cin, cout, k, stride, padding=k // 2, bias=bias),
        nn.Conv2d(cin, cout, k, stride, pad_mode="pad", padding=k // 2, has_bias=bias),
    )


def _attention(q: Any, k: Any, v: Any, softmax: Callable[[Any], Any]) -> Any:
    return softmax(q @ k.swapaxes(-1, -2) / 2) @ v


def _ops() -> Any:
    from mindspore import ops

    return ops


# ------------------------------------------------------------------------------------------ which of several is which


def queries_keys_and_values() -> Pair:
    """Named by each other's names, and called in another order."""

    def construct(n: Any, x: Any) -> Any:
        values, keys = n.k(x), n.q(x)
        return n.out(_attention(n.v(x), keys, values, lambda s: _ops().softmax(s, -1)))

    torch = torch_net(
        lambda n, x: n.out(_attention(n.q(x), n.k(x), n.v(x), lambda s: s.softmax(-1))),
        **{name: linear(bias=False) for name in ("q", "k", "v", "out")},
    )
    port = mindspore_net(construct, **{name: dense(bias=False) for name in ("q", "k", "v", "out")})
    return Pair(torch, port, {"q": "v", "k": "q", "v": "k"}, values(2, 5, 6))


def parallel_convolutions() -> Pair:
    """Two on one input, their names exchanged, and the norms that follow named rightly."""
    import torch as pt
    from mindspore import nn

    (a, a2), (b, b2) = convs(3, 4), convs(3, 4)
    torch = torch_net(
        lambda n, x: pt.cat([n.n1(n.c1(x)).relu(), n.n2(n.c2(x))], 1),
        c1=a,
        c2=b,
        n1=pt.nn.BatchNorm2d(4),
        n2=pt.nn.BatchNorm2d(4),
    )
    port = mindspore_net(
        lambda n, x: _ops().cat([n.n2(n.c1(x)), _ops().relu(n.n1(n.c2(x)))][::-1], 1),
        c1=a2,
        c2=b2,
        n1=nn.BatchNorm2d(4),
        n2=nn.BatchNorm2d(4),
    )
    return Pair(torch, port, {"c1": "c2", "c2": "c1"}, values(2, 3, 4, 4))


def whole_branches() -> Pair:
    """Two branches of two layers, each named as the other one."""
    torch = torch_net(
        lambda n, x: n.a2(n.a1(x).tanh()) - n.b2(n.b1(x).tanh()), **{k: linear() for k in ("a1", "a2", "b1", "b2")}
    )
    port = mindspore_net(
        lambda n, x: -n.a2(_ops().tanh(n.a1(x))) + n.b2(_ops().tanh(n.b1(x))),
        **{k: dense() for k in ("a1", "a2", "b1", "b2")},
    )
    return Pair(torch, port, {"a1": "b1", "a2": "b2", "b1": "a1", "b2": "a2"}, values(3, 6))


def experts() -> Pair:
    """Four of them behind a gate, listed and called in other orders."""

    def construct(n: Any, x: Any) -> Any:
        gates = _ops().unbind(_ops().softmax(n.g(x), -1), -1)
        return sum(gates[i].expand_dims(-1) * n.d[3 - i](_ops().relu(n.u[3 - i](x))) for i in (2, 0, 3, 1))

    torch = torch_net(
        lambda n, x: sum(
            g.unsqueeze(-1) * n.down[i](n.up[i](x).relu()) for i, g in enumerate(n.gate(x).softmax(-1).unbind(-1))
        ),
        gate=linear(6, 4),
        up=[linear(6, 8) for _ in range(4)],
        down=[linear(8, 6) for _ in range(4)],
    )
    port = mindspore_net(
        construct,
        u=[dense(6, 8) for _ in range(4)],
        d=[dense(8, 6) for _ in range(4)],
        g=dense(6, 4),
    )
    layers = {"gate": "g"} | {f"{t}.{i}": f"{m}.{3 - i}" for t, m in (("up", "u"), ("down", "d")) for i in range(4)}
    return Pair(torch, port, layers, values(3, 6))


def experts_that_are_chosen() -> Pair:
    """Each row goes to one of them; what each sees is a part of the rows."""
    import mindspore as ms

    def forward(n: Any, x: Any) -> Any:
        import torch as pt

        best, out = n.gate(x).argmax(-1), pt.zeros_like(x)
        for i, expert in enumerate(n.experts):
            out[best == i] = expert(x[best == i])
        return n.head(x + out)

    def construct(n: Any, x: Any) -> Any:
        best, out = n.gate(x).argmax(-1).asnumpy(), [None] * len(x)
        for i, j in enumerate((2, 0, 1)):
            rows = np.flatnonzero(best == i)
            if len(rows):
                y = n.experts[j](x[ms.Tensor(rows)])
                for k, row in enumerate(rows):
                    out[row] = y[k]
        return n.head(x + _ops().stack(out))

    torch = torch_net(forward, gate=linear(6, 3), experts=[linear() for _ in range(3)], head=linear())
    port = mindspore_net(construct, experts=[dense() for _ in range(3)], gate=dense(6, 3), head=dense())
    return Pair(
        torch, port, {"experts.0": "experts.2", "experts.1": "experts.0", "experts.2": "experts.1"}, values(24, 6)
    )


def blocks_with_each_others_names() -> Pair:
    """The names of two whole blocks of a sequence are exchanged."""
    import torch as pt
    from mindspore import nn

    torch = pt.nn.Sequential(*(pt.nn.Sequential(linear(), pt.nn.LayerNorm(6), pt.nn.ReLU()) for _ in range(4)))
    port = mindspore_net(
        lambda n, x: n.d(n.b(n.c(n.a(x)))),
        **{k: nn.SequentialCell(dense(), nn.LayerNorm((6,), epsilon=1e-5), nn.ReLU()) for k in "abcd"},
    )
    order = dict(zip("0123", "acbd", strict=True))
    return Pair(torch, port, {f"{t}.{i}": f"{m}.{i}" for t, m in order.items() for i in "01"}, values(5, 6))


# ------------------------------------------------------------------------- parameters that no call of a module tells


def weights_used_without_their_layer() -> Pair:
    """MindSpore multiplies by the weight of a layer that it does not call."""
    torch = torch_net(lambda n, x: n.c(n.b(n.a(x).relu()).relu()), a=linear(), b=linear(), c=linear())
    port = mindspore_net(
        lambda n, x: n.z(_ops().relu(_ops().relu(n.y(x)) @ n.x.weight.T + n.x.bias)), x=dense(), y=dense(), z=dense()
    )
    return Pair(torch, port, {"a": "y", "b": "x", "c": "z"}, values(3, 6))


def weights_used_without_their_module() -> Pair:
    """PyTorch does so, and the port calls the layer."""
    from torch.nn import functional

    torch = torch_net(
        lambda n, x: n.c(functional.linear(n.a(x).relu(), n.b.weight, n.b.bias).relu()),
        a=linear(),
        b=linear(),
        c=linear(),
    )
    port = mindspore_net(lambda n, x: n.z(_ops().relu(n.x(_ops().relu(n.y(x))))), x=dense(), y=dense(), z=dense())
    return Pair(torch, port, {"a": "y", "b": "x", "c": "z"}, values(3, 6))


def a_tied_head() -> Pair:
    """The embedding's weight is the head's on both sides, used without the layer."""
    import torch as pt
    from mindspore import nn

    torch = torch_net(lambda n, ids: n.fc(n.emb(ids)) @ n.emb.weight.T, emb=pt.nn.Embedding(9, 6), fc=linear())
    port = mindspore_net(
        lambda n, ids: _ops().matmul(n.m(n.w(ids)), n.w.embedding_table.T), m=dense(), w=nn.Embedding(9, 6)
    )
    return Pair(torch, port, {"emb": "w", "fc": "m"}, "int64[2,5]<9")


def tokens_with_each_others_names() -> Pair:
    """Two tokens in front of the sequence, and a table of positions; the tokens are called by each other's names."""
    import torch as pt
    from mindspore import nn

    def forward(n: Any, x: Any) -> Any:
        tokens = pt.cat([n.cls_token, n.dist_token], 1).expand(len(x), -1, -1)
        y = n.norm(pt.cat([tokens, n.embed(x)], 1) + n.pos_embed)
        return n.head(y[:, 0]) - n.head_dist(y[:, 1] * y.mean(1))

    def construct(n: Any, x: Any) -> Any:
        ops = _ops()
        tokens = ops.tile(ops.cat([n.dist_token, n.cls_token], 1), (x.shape[0], 1, 1))
        y = n.norm(ops.cat([tokens, n.embed(x)], 1) + n.pos_embed)
        return n.head(y[:, 0]) - n.head_dist(y[:, 1] * y.mean(1))

    tables = {"cls_token": (1, 1, 6), "dist_token": (1, 1, 6), "pos_embed": (1, 6, 6)}
    parts = {name: np.zeros(shape, np.float32) for name, shape in tables.items()}
    torch = torch_net(
        forward, **parts, embed=linear(), norm=pt.nn.LayerNorm(6), head=linear(6, 3), head_dist=linear(6, 3)
    )
    port = mindspore_net(
        construct,
        **parts,
        embed=dense(),
        norm=nn.LayerNorm((6,), epsilon=1e-5),
        head=dense(6, 3),
        head_dist=dense(6, 3),
    )
    return Pair(torch, port, {"cls_token": "dist_token", "dist_token": "cls_token"}, values(2, 4, 6))


def layer_scales() -> Pair:
    """Two in a block, named by each other's names; in PyTorch they begin at 1e-6."""
    import torch as pt
    from mindspore import nn

    def forward(n: Any, x: Any) -> Any:
        x = x + n.gamma_1 * n.mix(n.norm1(x)).relu()
        return n.head(x + n.gamma_2 * n.mlp(n.norm2(x)).relu())

    def construct(n: Any, x: Any) -> Any:
        x = x + n.gamma_2 * _ops().relu(n.mix(n.norm1(x)))
        return n.head(x + n.gamma_1 * _ops().relu(n.mlp(n.norm2(x))))

    scale = np.full(6, 1e-6, np.float32)
    torch = torch_net(
        forward,
        gamma_1=scale,
        gamma_2=scale,
        norm1=pt.nn.LayerNorm(6),
        norm2=pt.nn.LayerNorm(6),
        mix=linear(),
        mlp=linear(),
        head=linear(),
    )
    port = mindspore_net(
        construct,
        gamma_1=scale,
        gamma_2=scale,
        norm1=nn.LayerNorm((6,), epsilon=1e-5),
        norm2=nn.LayerNorm((6,), epsilon=1e-5),
        mix=dense(),
        mlp=dense(),
        head=dense(),
    )
    return Pair(torch, port, {"gamma_1": "gamma_2", "gamma_2": "gamma_1"}, values(4, 6))


# ------------------------------------------------------------------------------------------------------ another layout


def a_square_matrix_turned() -> Pair:
    """A container multiplies by it as it is where PyTorch multiplies by its transpose."""
    from torch.nn import functional

    torch = torch_net(lambda n, x: n.head(functional.linear(x, n.kernel).relu()), kernel=values(6, 6), head=linear())
    port = mindspore_net(lambda n, x: n.head(_ops().relu(x @ n.kernel)), kernel=values(6, 6), head=dense())
    return Pair(torch, port, {}, values(3, 6), turned=frozenset({"kernel"}))


def square_layers_turned() -> Pair:
    """Layers of the port's own that keep their weights the other way round."""

    def turned() -> Any:
        return mindspore_net(lambda n, x: x @ n.weight + n.bias, weight=values(6, 6), bias=values(6))

    torch = torch_net(lambda n, x: n.c(n.b(n.a(x).relu()).relu()), a=linear(), b=linear(), c=linear())
    port = mindspore_net(lambda n, x: n.c(_ops().relu(n.b(_ops().relu(n.a(x))))), a=turned(), b=turned(), c=dense())
    return Pair(torch, port, {}, values(3, 6), turned=frozenset({"a.weight", "b.weight"}))


def channels_last() -> Pair:
    """The port moves the channels to the end, and has dense layers for convolutions of size one."""
    import torch as pt
    from mindspore import nn

    a, _ = convs(3, 6)
    b, _ = convs(6, 6)
    c, c2 = convs(6, 4, 3)
    torch = torch_net(lambda n, x: n.c(n.n(n.b(n.a(x))).relu()), a=a, b=b, c=c, n=pt.nn.BatchNorm2d(6))

    def construct(n: Any, x: Any) -> Any:
        y = n.two(n.one(x.permute(0, 2, 3, 1)))
        y = _ops().relu(n.norm(y.reshape(-1, 6, 1, 1)).reshape(y.shape))
        return n.last(y.permute(0, 3, 1, 2))

    port = mindspore_net(construct, two=dense(6, 6), one=dense(3, 6), norm=nn.BatchNorm2d(6), last=c2)
    return Pair(torch, port, {"a": "one", "b": "two", "c": "last", "n": "norm"}, values(2, 3, 4, 5))


def a_flattened_batch() -> Pair:
    """(batch, length, channels) as (batch * length, channels)."""
    torch = torch_net(lambda n, x: n.b(n.a(x).relu()) * n.c(x), a=linear(), b=linear(), c=linear())
    port = mindspore_net(
        lambda n, x: (n.p(_ops().relu(n.q(x.reshape(-1, 6)))) * n.r(x.reshape(-1, 6))).reshape(x.shape),
        p=dense(), q=dense(), r=dense(),
    )  # fmt: skip
    return Pair(torch, port, {"a": "q", "b": "p", "c": "r"}, values(2, 5, 6))


def sequence_first() -> Pair:
    """A recurrent layer that takes the sequence first, among dense ones."""
    import torch as pt
    from mindspore import nn

    torch = torch_net(lambda n, x: n.b(n.rnn(n.a(x))[0]), a=linear(), b=linear(), rnn=pt.nn.GRU(6, 6, batch_first=True))

    def construct(n: Any, x: Any) -> Any:
        y = n.p(x).swapaxes(0, 1)
        return n.q(n.r(y, _ops().zeros((1, y.shape[1], 6)))[0].swapaxes(0, 1))

    port = mindspore_net(construct, q=dense(), p=dense(), r=nn.GRU(6, 6))
    return Pair(torch, port, {"a": "p", "b": "q", "rnn": "r"}, values(2, 5, 6))


def norms_of_volumes() -> Pair:
    """MindSpore's norm of volumes holds its parameters one level further down."""
    import torch as pt
    from mindspore import nn

    torch = torch_net(lambda n, x: n.b(n.a(x).relu()), a=pt.nn.BatchNorm3d(4), b=pt.nn.BatchNorm3d(4))
    port = mindspore_net(lambda n, x: n.a(_ops().relu(n.b(x))), a=nn.BatchNorm3d(4), b=nn.BatchNorm3d(4))
    return Pair(torch, port, {"a": "b.bn2d", "b": "a.bn2d"}, values(2, 4, 2, 3, 3))


# ----------------------------------------------------------------------------------------- how modules are called


def shared_modules() -> Pair:
    """One layer under two names, one called three times."""

    def forward(n: Any, x: Any) -> Any:
        y = n.second(n.first(x).tanh())
        for _ in range(3):
            y = n.loop(y).tanh()
        return n.last(y)

    def construct(n: Any, x: Any) -> Any:
        y = n.s(_ops().tanh(n.s(x)))
        for _ in range(3):
            y = _ops().tanh(n.r(y))
        return n.q(y)

    one = linear()
    torch = torch_net(forward, last=linear(), first=one, loop=linear(), second=one)
    port = mindspore_net(construct, q=dense(), r=dense(), s=dense())
    return Pair(torch, port, {"first": "s", "loop": "r", "last": "q"}, values(3, 6))


def outputs_in_another_form() -> Pair:
    """A dict of a tensor and a tuple, here and there."""
    torch = torch_net(
        lambda n, x: {"y": n.a(x), "more": (n.b(x).relu(), n.c(x).tanh())}, a=linear(), b=linear(), c=linear()
    )
    port = mindspore_net(
        lambda n, x: {"more": (_ops().relu(n.a(x)), _ops().tanh(n.b(x))), "y": n.c(x)}, a=dense(), b=dense(), c=dense()
    )
    return Pair(torch, port, {"a": "c", "b": "a", "c": "b"}, values(3, 6))


def several_outputs() -> Pair:
    """Two tensors of one shape."""
    torch = torch_net(lambda n, x: (n.a(n.trunk(x)), n.b(n.trunk(x))), a=linear(), b=linear(), trunk=linear())
    port = mindspore_net(lambda n, x: (n.a(n.t(x)), n.b(n.t(x)))[::-1], a=dense(), b=dense(), t=dense())
    return Pair(torch, port, {"a": "b", "b": "a", "trunk": "t"}, values(3, 6))


def heads_of_a_network_with_a_parameter() -> Pair:
    """The network has a parameter of its own, and three heads that are told by the outputs only."""
    torch = torch_net(
        lambda n, x: (n.a(x * n.scale), n.b(x * n.scale), n.c(x * n.scale)),
        scale=values(6),
        a=linear(),
        b=linear(),
        c=linear(),
    )
    port = mindspore_net(
        lambda n, x: (n.a(x * n.scale), n.b(x * n.scale), n.c(x * n.scale))[::-1],
        scale=values(6),
        a=dense(),
        b=dense(),
        c=dense(),
    )
    return Pair(torch, port, {"a": "c", "c": "a"}, values(3, 6))


def heads_in_a_forward_of_the_users() -> Pair:
    """The same without it, where the forward calls the heads and not the network."""
    torch = torch_net(lambda n, x: x, a=linear(), b=linear(), c=linear())
    port = mindspore_net(lambda n, x: x, a=dense(), b=dense(), c=dense())
    words = {
        "torch_forward": lambda n, x: (n.a(x), n.b(x), n.c(x)),
        "ms_forward": lambda n, x: (n.c(x), n.a(x), n.b(x))[::-1],
    }
    return Pair(torch, port, {"a": "b", "b": "a"}, values(3, 6), words=words)


def keywords() -> Pair:
    """Arguments by keyword in another order, nested, and some that are no tensors."""
    inner = torch_net(lambda n, x, *, other, mode: n.b(n.a(x) * other["y"][0]), a=linear(), b=linear())
    torch = torch_net(lambda n, x, y: n.inner(x, other={"y": [y, None]}, mode="fast"), inner=inner)
    deep = mindspore_net(lambda n, mode, other, x: n.a(n.b(x) * other[0]), a=dense(), b=dense())
    port = mindspore_net(lambda n, x, y: n.inner(None, other=(y, 1), x=x), inner=deep)
    pair = {"inner.a": "inner.b", "inner.b": "inner.a"}
    return Pair(torch, port, pair, {"y": values(2, 6), "x": values(3, 6)[:2]})


def compiled_construct() -> Pair:
    """Under ``ms.jit``."""
    import mindspore as ms
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = dense(), dense()

        @ms.jit
        def construct(self, x: Any) -> Any:
            return self.a(self.b(x).tanh())

    torch = torch_net(lambda n, x: n.b(n.a(x).tanh()), a=linear(), b=linear())
    return Pair(torch, Net(), {"a": "b", "b": "a"}, values(3, 6))


def a_slice_that_renames() -> Pair:
    """A slice of a list of cells renames the parameters in it when it is run."""

    def construct(n: Any, x: Any) -> Any:
        for layer in n.layers[1:]:
            x = _ops().tanh(layer(x))
        return n.layers[0](x)

    def forward(n: Any, x: Any) -> Any:
        for layer in n.layers:
            x = layer(x).tanh()
        return n.head(x)

    torch = torch_net(forward, layers=[linear() for _ in range(3)], head=linear())
    port = mindspore_net(construct, layers=[dense() for _ in range(4)])
    layers = {f"layers.{i}": f"layers.{i + 1}" for i in range(3)}
    return Pair(torch, port, layers | {"head": "layers.0"}, values(3, 6))


def forwards_of_the_users() -> Pair:
    """The networks' own forwards do not run."""

    def fails(n: Any, x: Any) -> Any:
        raise RuntimeError("not this way")

    torch = torch_net(fails, a=linear(), b=linear())
    port = mindspore_net(fails, a=dense(), b=dense())
    words = {
        "torch_forward": lambda net, x: net.b(net.a(x).tanh()),
        "ms_forward": lambda net, x: net.a(_ops().tanh(net.b(x))),
    }
    return Pair(torch, port, {"a": "b", "b": "a"}, values(3, 6), words=words)


PROVABLE = (
    queries_keys_and_values,
    parallel_convolutions,
    whole_branches,
    experts,
    experts_that_are_chosen,
    blocks_with_each_others_names,
    weights_used_without_their_layer,
    weights_used_without_their_module,
    a_tied_head,
    tokens_with_each_others_names,
    layer_scales,
    a_square_matrix_turned,
    square_layers_turned,
    channels_last,
    a_flattened_batch,
    sequence_first,
    norms_of_volumes,
    shared_modules,
    outputs_in_another_form,
    several_outputs,
    heads_of_a_network_with_a_parameter,
    heads_in_a_forward_of_the_users,
    keywords,
    compiled_construct,
    a_slice_that_renames,
    forwards_of_the_users,
)


# ------------------------------------------------------------------------------------ what nothing tells, or less does


def an_auxiliary_head() -> Pair:
    """Computed, and not given."""

    def forward(n: Any, x: Any) -> Any:
        y = n.body(x).relu()
        n.auxiliary(y)
        return n.head(y)

    def construct(n: Any, x: Any) -> Any:
        y = _ops().relu(n.b(x))
        n.a(y)
        return n.h(y)

    torch = torch_net(forward, body=linear(), auxiliary=linear(6, 3), head=linear())
    port = mindspore_net(construct, b=dense(), a=dense(6, 3), h=dense())
    idle = frozenset({"auxiliary.weight", "auxiliary.bias"})
    return Pair(torch, port, {"body": "b", "auxiliary": "a", "head": "h"}, values(3, 6), idle)


def a_bias_under_softmax() -> Pair:
    """That of the keys moves no attention."""

    def construct(n: Any, x: Any) -> Any:
        return n.d(_attention(n.a(x), n.b(x), n.c(x), lambda s: _ops().softmax(s, -1)))

    torch = torch_net(
        lambda n, x: n.out(_attention(n.q(x), n.k(x), n.v(x), lambda s: s.softmax(-1))),
        **{name: linear() for name in ("q", "k", "v", "out")},
    )
    port = mindspore_net(construct, **{name: dense() for name in "abcd"})
    layers = {"q": "a", "k": "b", "v": "c", "out": "d"}
    return Pair(torch, port, layers, values(2, 5, 6), frozenset({"k.bias"}))


def a_mask_token() -> Pair:
    """Used in training only."""
    parts = {"mask_token": values(1, 1, 6)}
    torch = torch_net(lambda n, x: n.b(n.a(x).relu()), a=linear(), b=linear(), **parts)
    port = mindspore_net(lambda n, x: n.q(_ops().relu(n.p(x))), p=dense(), q=dense(), **parts)
    return Pair(torch, port, {"a": "p", "b": "q"}, values(2, 4, 6), frozenset({"mask_token"}))


UNPROVEN = (an_auxiliary_head, a_bias_under_softmax, a_mask_token)


def biases_that_are_added() -> Pair:
    """Of two layers whose outputs are added up."""
    torch = torch_net(lambda n, x: n.c(n.a(x) + n.b(x * x)), a=linear(), b=linear(), c=linear())
    port = mindspore_net(lambda n, x: n.r(n.p(x) + n.q(x * x)), p=dense(), q=dense(), r=dense())
    return Pair(torch, port, {"a": "p", "b": "q", "c": "r"}, values(3, 6), frozenset({"a.bias", "b.bias"}))


def scales_that_are_multiplied() -> Pair:
    """Two in a row."""
    parts = {"one": values(6), "two": values(6)}
    torch = torch_net(lambda n, x: n.a(x) * n.one * n.two, a=linear(), **parts)
    port = mindspore_net(lambda n, x: n.a(x) * n.two * n.one, a=dense(), **parts)
    return Pair(torch, port, {}, values(3, 6), frozenset({"one", "two"}))


def biases_of_a_recurrent_layer() -> Pair:
    """Its layer adds up the two that it has."""
    import torch as pt
    from mindspore import nn

    def construct(n: Any, x: Any) -> Any:
        zeros = _ops().zeros((1, x.shape[0], 6))
        return n.h(n.r(x, (zeros, zeros))[0])

    torch = torch_net(lambda n, x: n.fc(n.rnn(x)[0]), rnn=pt.nn.LSTM(6, 6, batch_first=True), fc=linear())
    port = mindspore_net(construct, r=nn.LSTM(6, 6, batch_first=True), h=dense())
    alike = frozenset({"rnn.bias_ih_l0", "rnn.bias_hh_l0"})
    return Pair(torch, port, {"rnn": "r", "fc": "h"}, values(2, 5, 6), alike)


ALIKE = (biases_that_are_added, scales_that_are_multiplied, biases_of_a_recurrent_layer)


# -------------------------------------------------------------------------------------------------- ports with a fault


def _stages(names: str, same: bool = False, bias: bool = True) -> Pair:
    """Two stages of convolution and norm with a pool between them; the port may pad it, or begin, another way."""
    import torch as pt
    from mindspore import nn

    (a, _), (b, b2), (c, c2) = convs(3, 4, 3), convs(4, 4, 3, bias=False), convs(4, 4, 3, bias=False)
    torch = torch_net(
        lambda n, x: n.fc(n.n3(n.c3(n.n2(n.c2(n.pool(n.n1(n.c1(x)).relu()))).relu())).relu().mean((2, 3))),
        c1=a, c2=b, c3=c, n1=pt.nn.BatchNorm2d(4), n2=pt.nn.BatchNorm2d(4), n3=pt.nn.BatchNorm2d(4), fc=linear(4, 3),
        pool=pt.nn.MaxPool2d(3, 2, 1),
    )  # fmt: skip
    pool = nn.MaxPool2d(3, 2, pad_mode="same") if same else nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
    k1, k2, k3, m1, m2, m3, last = names.split()

    def construct(n: Any, x: Any) -> Any:
        relu = _ops().relu
        y = n.pool(relu(getattr(n, m1)(getattr(n, k1)(x))))
        y = relu(getattr(n, m3)(getattr(n, k3)(relu(getattr(n, m2)(getattr(n, k2)(y))))))
        return getattr(n, last)(y.mean((2, 3)))

    parts = {
        k3: c2,
        k2: b2,
        m3: nn.BatchNorm2d(4),
        m2: nn.BatchNorm2d(4),
        m1: nn.BatchNorm2d(4),
        last: dense(4, 3),
        k1: nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=bias),
        "pool": pool,
    }
    layers = dict(zip(("c1", "c2", "c3", "n1", "n2", "n3", "fc"), names.split(), strict=True))
    return Pair(torch, mindspore_net(construct, **parts), layers, values(2, 3, 16, 16))


def a_fault_in_the_middle() -> Pair:
    """The pool pads at the other end, so that all that follows sees other values."""
    return _stages("u w v x z y t", same=True)


def a_fault_at_the_start() -> Pair:
    """The first layer has a bias in PyTorch only."""
    return _stages("u w v x z y t", bias=False)


def an_activation_after_rows_that_could_be_in_any_order() -> Pair:
    """The port approximates GELU; the rows of the layer before it come in as many groups as its sizes allow."""
    import torch as pt
    from mindspore import nn

    def torch(n: Any, x: Any) -> Any:
        for norm, wide, narrow in zip(n.norms, n.wide, n.narrow, strict=True):
            x = x + narrow(n.act(wide(norm(x))))
        return x

    def port(n: Any, x: Any) -> Any:
        for norm, up, down in zip(n.a, n.b, n.c, strict=True):
            x = x + down(n.act(up(norm(x))))
        return x

    theirs = mindspore_net(
        port,
        a=[nn.LayerNorm((6,), epsilon=1e-5) for _ in range(3)],
        b=[dense(6, 24) for _ in range(3)],
        c=[dense(24, 6) for _ in range(3)],
        act=nn.GELU(approximate=True),
    )
    ours = torch_net(
        torch,
        norms=[pt.nn.LayerNorm(6) for _ in range(3)],
        wide=[linear(6, 24) for _ in range(3)],
        narrow=[linear(24, 6) for _ in range(3)],
        act=pt.nn.GELU(),
    )
    layers = {f"{t}.{i}": f"{m}.{i}" for t, m in (("norms", "a"), ("wide", "b"), ("narrow", "c")) for i in range(3)}
    # With these weights, rows in a wrong order come nearer to what follows by chance.
    return Pair(ours, theirs, layers, values(2, 5, 6), words={"seed": 4})


FAULTY = (a_fault_in_the_middle, a_fault_at_the_start, an_activation_after_rows_that_could_be_in_any_order)


def a_layer_more() -> Pair:
    """The port's own layer stands between two others; the last one has no counterpart then."""
    t = torch_net(lambda n, x: n.b(n.a(x)), a=linear(), b=linear())
    m = mindspore_net(lambda n, x: n.b(n.x(n.a(x))), a=dense(), x=dense(), b=dense())
    return Pair(t, m, {}, values(3, 6))


def a_layer_less() -> Pair:
    t = torch_net(lambda n, x: n.b(n.x(n.a(x))), a=linear(), x=linear(), b=linear())
    m = mindspore_net(lambda n, x: n.b(n.a(x)), a=dense(), b=dense())
    return Pair(t, m, {"x": "-"}, values(3, 6))


UNEQUAL = (a_layer_more, a_layer_less)
