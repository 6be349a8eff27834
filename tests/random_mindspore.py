"""MindSpore ports of random programs: other names, another order of definition, other nesting; see
``random_networks``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from automap import mindspore_edge  # isort: skip  # it prepares the environment for MindSpore
import mindspore as ms
from mindspore import nn, ops
from random_networks import Port, Program
from random_steps import (
    WIDTH,
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
    uses_context,
)

assert mindspore_edge

_ACTS = {"relu": ops.relu, "silu": ops.silu, "leaky": lambda x: ops.leaky_relu(x, 0.1)}

#: Other words for what PyTorch's network calls by the first.
_SYNONYMS = {
    "embed": ("tokens", "word_embeddings"),
    "proj": ("input_dense", "adapter"),
    "stem": ("first_conv", "conv_in"),
    "patch": ("to_patches", "patch_conv"),
    "cls_token": ("class_embedding", "first_token"),
    "pos_embed": ("positions", "position_table"),
    "head": ("classifier", "output_dense"),
    "fc": ("dense", "lin"),
    "fc1": ("dense_in", "up"),
    "fc2": ("dense_out", "down"),
    "norm": ("ln", "normalization"),
    "bn": ("batch_norm", "bn2d"),
    "rms_weight": ("rms_scale", "rms_gain"),
    "gamma": ("layer_scale", "scales"),
    "q": ("query", "wq"),
    "k": ("key", "wk"),
    "v": ("value", "wv"),
    "o": ("out_proj", "wo"),
    "body": ("inner", "sub"),
    "branch0": ("left", "path_a"),
    "branch1": ("right", "path_b"),
    "branch2": ("middle", "path_c"),
    "join": ("merge", "fuse"),
    "blocks": ("layers", "stages"),
    "shared": ("common", "reused"),
    "gate": ("router", "switch"),
    "experts": ("moe", "parallel"),
    "conv": ("convolution", "filter"),
    "squeeze": ("reduce", "se_in"),
    "excite": ("expand", "se_out"),
    "rnn": ("recurrent", "memory"),
    "aux": ("second_head", "extra"),
    "aux_norm": ("second_norm", "extra_norm"),
}
_SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "nu", "pa", "ro", "su", "ti", "vo", "xa", "ze")


class Ops:
    """The operations that steps use; one of them may be at fault."""

    def __init__(self, fault: tuple[str, Key] | None) -> None:
        self.fault = fault

    def act(self, kind: str, x: Any, key: Key) -> Any:
        faulty = self.fault is not None and self.fault[1] == key
        if faulty and self.fault[0] == "act":  # type: ignore[index]
            return x
        if kind == "gelu":
            return ops.gelu(x, approximate="tanh" if faulty else "none")
        return _ACTS[kind](x)

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        return ops.matmul(x, y)

    @staticmethod
    def cat(x: Sequence[Any], axis: int) -> Any:
        return ops.cat(tuple(x), axis)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return ops.sigmoid(x)

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return 1 / ops.sqrt(x)

    @staticmethod
    def swap(x: Any, a: int, b: int) -> Any:
        return x.swapaxes(a, b)

    @staticmethod
    def reshape(x: Any, shape: Shape) -> Any:
        return x.reshape(shape)

    @staticmethod
    def repeat(x: Any, n: int) -> Any:
        return ops.tile(x, (n, 1, 1))

    @staticmethod
    def mean(x: Any, axes: Shape, keep: bool = False) -> Any:
        return ops.mean(x, axes, keep)

    @staticmethod
    def softmax(x: Any) -> Any:
        return ops.softmax(x, axis=-1)

    @staticmethod
    def linear(x: Any, weight: Any, bias: Any, turned: bool = False) -> Any:
        y = ops.matmul(x, weight if turned else weight.swapaxes(0, 1))
        return y if bias is None else y + bias

    @staticmethod
    def conv(x: Any, weight: Any) -> Any:
        return ops.conv2d(x, weight, pad_mode="pad", padding=1)

    @staticmethod
    def weight(layer: Any) -> Any:
        while isinstance(layer, nn.SequentialCell):
            layer = layer[0]
        return layer.embedding_table if isinstance(layer, nn.Embedding) else layer.weight


def _layer(part: Layer, eps: float | None) -> nn.Cell:
    s, kind = part.sizes, part.kind
    if kind == "dense":
        return nn.Dense(*s, has_bias=part.bias)
    if kind == "conv":
        pad = {"pad_mode": "pad", "padding": s[2] // 2}
        return nn.Conv2d(s[0], s[1], s[2], **pad, group=s[3], has_bias=part.bias)
    if kind == "patch":
        return nn.Conv2d(s[0], s[1], s[2], stride=s[2], pad_mode="valid", has_bias=True)
    if kind == "conv1d":
        return nn.Conv1d(*s, pad_mode="pad", padding=s[2] // 2, has_bias=part.bias)
    if kind == "embedding":
        return nn.Embedding(*s)
    if kind in ("lstm", "gru"):
        return {"lstm": nn.LSTM, "gru": nn.GRU}[kind](WIDTH, WIDTH, batch_first=True, bidirectional=s[0] == 2)
    simple = {
        "layernorm": lambda: nn.LayerNorm((WIDTH,), epsilon=eps or 1e-5),
        "groupnorm": lambda: nn.GroupNorm(2, WIDTH, eps=eps or 1e-5),
        "batchnorm": lambda: nn.BatchNorm2d(WIDTH, eps=eps or 1e-5),
        "prelu": nn.PReLU,
    }
    return simple[kind]()


class _Maker:
    """Draws what the port is like, and makes its parts."""

    def __init__(self, program: Program, port: Port) -> None:
        self.program, self.port = program, port
        self.ops = Ops(port.fault)
        self.rng = rng_of(port.seed, port.names, port.order)
        self.words = {word: self.rng.choice(others) for word, others in _SYNONYMS.items()}

    def chance(self, p: float) -> bool:
        """A decision about the nesting."""
        return self.port.nesting and self.rng.random() < p

    def name(self, cell: nn.Cell, path: Sequence[tuple[int, str]]) -> str:
        """A name for a part that is reached from this cell by these steps and words."""
        if self.port.names == "random":
            while True:
                name = "".join(self.rng.choices(_SYLLABLES, k=self.rng.randint(1, 3)))
                if not hasattr(cell, name):
                    return name
        word = self.words.get if self.port.names == "renamed" else lambda w, same: same
        return "_".join(f"{word(w, w)}{i}" for i, w in path)

    def part(self, part: Part, key: Key, name: str) -> Any:
        """A cell or a parameter."""
        if isinstance(part, Inner):
            block = Block(part.steps, self, key)
            return nn.SequentialCell([block]) if self.chance(0.15) and not uses_context(part.steps) else block
        if isinstance(part, Direct):
            shape = part.shape[::-1] if part.turned else part.shape
            return ms.Parameter(ms.Tensor(np.ones(shape, np.float32)), name=name)
        assert isinstance(part, Layer)
        fault = self.port.fault
        layer = _layer(part, 0.05 if fault is not None and fault == ("eps", key) else None)
        layer.key = key  # type: ignore[attr-defined]
        return nn.SequentialCell([layer]) if self.chance(0.2) else layer


class Block(nn.Cell):
    """A block of steps; blocks within it may be cells of their own, or have their parts here."""

    def __init__(self, steps: Sequence[Step], maker: _Maker, key: Key = ()) -> None:
        super().__init__()
        self.steps, self.key, self.shared_ops = steps, key, maker.ops
        self.keywords = maker.program.keywords
        self.flat: dict[Key, Sequence[Step]] = {}
        self.where: dict[Key, Any] = {}
        wanted: list[tuple[str, Key, Part]] = []
        self.plan(steps, key, [], maker, wanted)
        if maker.port.order == "shuffled":
            maker.rng.shuffle(wanted)
        for name, at, part in wanted:
            made = self.many(part, at, maker) if isinstance(part, Many) else maker.part(part, at, name)
            setattr(self, name, made)
            self.where.setdefault(at, name)

    def plan(
        self, steps: Sequence[Step], key: Key, path: list[tuple[int, str]], maker: _Maker, wanted: list[Any]
    ) -> None:
        """Name what becomes an attribute of this cell."""
        for i, step in enumerate(steps):
            for word, part in parts_of(step, maker.program.shape).items():
                at, here = (*key, i, word), [*path, (i, word)]
                if isinstance(part, Inner) and maker.chance(0.3):
                    self.flat[at] = part.steps
                    self.plan(part.steps, at, here, maker, wanted)
                elif isinstance(part, Many) and maker.chance(0.3):
                    names = [f"{maker.name(self, here)}_{b}" for b in range(len(part.blocks))]
                    self.where[at] = names
                    wanted += [(n, (*at, b), x) for b, (n, x) in enumerate(zip(names, part.blocks, strict=True))]
                else:
                    name = maker.name(self, here)
                    while any(name == other for other, *_ in wanted):
                        name = maker.name(self, here)
                    wanted.append((name, at, part))

    def many(self, part: Many, key: Key, maker: _Maker) -> nn.Cell:
        """A list of blocks; where names mean nothing, its order means nothing either."""
        order = list(range(len(part.blocks)))
        if maker.port.names == "random" and maker.port.order == "shuffled":
            maker.rng.shuffle(order)
        made = [Block(part.blocks[b].steps, maker, (*key, b)) for b in order]
        cells = nn.CellList(made)
        self.where[(*key, "order")] = [order.index(b) for b in range(len(order))]
        return cells

    def part(self, key: Key) -> Any:
        """A part as steps use it."""
        if key in self.flat:
            steps = self.flat[key]
            return lambda x, context=None: run(steps, self.shared_ops, self.part, x, context, key)[0]
        if not key[:-2] and self.key:
            raise AssertionError(f"{key} is not below {self.key}")
        name = self.where[key]
        if isinstance(name, list):
            return [self.block(getattr(self, n)) for n in name]
        found = getattr(self, name)
        if isinstance(found, nn.CellList):
            return [self.block(found[i]) for i in self.where[(*key, "order")]]
        return self.block(found)

    def block(self, found: Any) -> Callable[..., Any]:
        if isinstance(found, nn.SequentialCell) and isinstance(found[0], Block):
            return lambda x, context=None: found(x)
        if isinstance(found, Block):
            return (lambda x, context=None: found(x=x, context=context)) if self.keywords else found
        return found

    def construct(self, x: Any, context: Any = None) -> Any:
        return run(self.steps, self.shared_ops, self.part, x, context, self.key)[0]


class Network(Block):
    """The whole network."""

    def __init__(self, maker: _Maker) -> None:
        super().__init__(maker.program.whole, maker)
        self.program = maker.program

    def construct(self, x: Any, context: Any = None) -> Any:
        y, taps = run(self.steps, self.shared_ops, self.part, x, context, taps=self.program.taps)
        if self.program.outputs == "dict":
            return {"out": y} | {f"tap{i}": t for i, t in enumerate(taps)}
        return (y, *taps) if self.program.outputs == "tuple" else y


class Wrapper(nn.Cell):
    """A network within a cell."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__()
        setattr(self, name, network)
        self.program, self.word = network.program, name

    def construct(self, x: Any, context: Any = None) -> Any:
        network = getattr(self, self.word)
        return network(x, context) if context is not None else network(x)


def network(program: Program, port: Port) -> Network | Wrapper:
    """The port in inference mode."""
    maker = _Maker(program, port)
    made: Network | Wrapper = Network(maker)
    if maker.chance(0.15):
        made = Wrapper(made, maker.name(made, [(0, "net")]))
    made.set_train(False)
    return made


def names(model: Network | Wrapper) -> dict[Id, str]:
    """The ``Parameter.name`` of every parameter by its place in the program."""
    out: dict[Id, str] = {}
    wanted = dict(leaves(model.program.whole, model.program.shape))
    for _, cell in model.cells_and_names():
        if isinstance(cell, Block):
            for key, name in cell.where.items():
                if isinstance(name, str) and isinstance(wanted.get(key), Direct):
                    out[key, ""] = cell._params[name].name
        elif getattr(cell, "key", None) in wanted:
            key = cell.key
            for _, word in roles(wanted[key]):
                out[key, word] = cell._params[word].name
    return out
