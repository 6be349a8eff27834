"""PyTorch networks of random programs; see ``random_networks``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from random_networks import Program
from random_steps import (
    WIDTH,
    Array,
    Direct,
    Id,
    Inner,
    Key,
    Layer,
    Many,
    Part,
    Shape,
    Step,
    leaves,
    parts_of,
    rng_of,
    roles,
    run,
)
from torch import nn
from torch.nn import functional as F

_ACTS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "leaky": lambda x: F.leaky_relu(x, 0.1)}


class Ops:
    """The operations that steps use."""

    matmul, cat, sigmoid, rsqrt = map(staticmethod, (torch.matmul, torch.cat, torch.sigmoid, torch.rsqrt))

    @staticmethod
    def act(kind: str, x: Any, key: Key) -> Any:
        return _ACTS[kind](x)

    @staticmethod
    def swap(x: Any, a: int, b: int) -> Any:
        return x.transpose(a, b)

    @staticmethod
    def reshape(x: Any, shape: Shape) -> Any:
        return x.reshape(shape)

    @staticmethod
    def repeat(x: Any, n: int) -> Any:
        return x.expand(n, -1, -1)

    @staticmethod
    def mean(x: Any, axes: Shape, keep: bool = False) -> Any:
        return x.mean(axes, keepdim=keep)

    @staticmethod
    def softmax(x: Any) -> Any:
        return x.softmax(-1)

    @staticmethod
    def linear(x: Any, weight: Any, bias: Any, turned: bool = False) -> Any:
        return F.linear(x, weight, bias)

    @staticmethod
    def conv(x: Any, weight: Any) -> Any:
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def weight(layer: Any) -> Any:
        return layer.weight


def _layer(part: Layer) -> nn.Module:
    s, kind = part.sizes, part.kind
    if kind == "dense":
        return nn.Linear(*s, bias=part.bias)
    if kind == "conv":
        return nn.Conv2d(s[0], s[1], s[2], padding=s[2] // 2, groups=s[3], bias=part.bias)
    if kind == "patch":
        return nn.Conv2d(s[0], s[1], s[2], stride=s[2])
    if kind == "conv1d":
        return nn.Conv1d(*s, padding=s[2] // 2, bias=part.bias)
    if kind == "embedding":
        return nn.Embedding(*s)
    if kind in ("lstm", "gru"):
        return {"lstm": nn.LSTM, "gru": nn.GRU}[kind](WIDTH, WIDTH, batch_first=True, bidirectional=s[0] == 2)
    simple = {
        "layernorm": lambda: nn.LayerNorm(WIDTH),
        "groupnorm": lambda: nn.GroupNorm(2, WIDTH),
        "batchnorm": lambda: nn.BatchNorm2d(WIDTH),
        "prelu": nn.PReLU,
    }
    return simple[kind]()


class Block(nn.Module):
    """A block of steps: its parts are attributes called after their word and the number of their step."""

    def __init__(self, steps: Sequence[Step], program: Program) -> None:
        super().__init__()
        self.steps, self.keywords = steps, program.keywords
        wanted = [
            (f"{word}{i}", part) for i, s in enumerate(steps) for word, part in parts_of(s, program.shape).items()
        ]
        if program.order:
            rng_of(program.order, len(wanted)).shuffle(wanted)
        for name, part in wanted:
            setattr(self, name, _made(part, program))

    def part(self, key: Key) -> Any:
        """A part as steps use it."""
        found = getattr(self, f"{key[1]}{key[0]}")
        if isinstance(found, nn.ModuleList):
            return [self.block(b) for b in found]
        return self.block(found) if isinstance(found, Block) else found

    def block(self, block: Block) -> Any:
        if self.keywords:
            return lambda x, context=None: block(x=x, context=context)
        return block

    def forward(self, x: Any, context: Any = None) -> Any:
        return run(self.steps, Ops, self.part, x, context)[0]


class Network(Block):
    """The whole network."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.whole, program)
        self.program = program

    def forward(self, x: Any, context: Any = None) -> Any:
        y, taps = run(self.steps, Ops, self.part, x, context, taps=self.program.taps)
        if self.program.outputs == "dict":
            return {"out": y} | {f"tap{i}": t for i, t in enumerate(taps)}
        return (y, *taps) if self.program.outputs == "tuple" else y


def _made(part: Part, program: Program) -> Any:
    if isinstance(part, Inner):
        return Block(part.steps, program)
    if isinstance(part, Many):
        return nn.ModuleList([Block(block.steps, program) for block in part.blocks])
    if isinstance(part, Direct):
        return nn.Parameter(torch.rand(part.shape) + 0.5)
    return _layer(part)


def network(program: Program) -> Network:
    """The network in inference mode; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(program).eval()


def names(model: Network) -> dict[Id, str]:
    """The name of every parameter by its place in the program."""
    out: dict[Id, str] = {}
    for key, part in leaves(model.program.whole, model.program.shape):
        # Steps and words alternate, but for the number of a block in a list: 2, "blocks", 1, 0, "fc".
        path, at = [], 0
        while at < len(key):
            path.append(f"{key[at + 1]}{key[at]}")
            at += 2
            if at < len(key) and not (at + 1 < len(key) and isinstance(key[at + 1], str)):
                path.append(str(key[at]))
                at += 1
        for word, _ in roles(part):
            out[key, word] = ".".join([*path, *([word] if word else [])])
    return out


def wide(model: Network) -> Network:
    """A copy of the network in float64."""
    return copy.deepcopy(model).double()


def outputs(model: Network, values: dict[str, Array], inputs: dict[str, Array]) -> list[Array]:
    """What a network in float64 gives, one array for each of its outputs; it holds the values afterwards."""
    with torch.no_grad():
        model.load_state_dict({n: torch.from_numpy(np.array(a, np.float64)) for n, a in values.items()}, strict=False)
        given = {n: torch.from_numpy(a) for n, a in inputs.items()}
        out = model(**{n: t.double() if t.is_floating_point() else t for n, t in given.items()})
    flat = [out] if isinstance(out, torch.Tensor) else list(out.values() if isinstance(out, dict) else out)
    return [t.numpy() for t in flat]
