"""Layers of both frameworks that are built, run and compared to prove the layer table."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from automap.layer_table import Counterpart, Other, Parameter, Row, find

#: The shape of a floating-point input; the shape of one of whole numbers, and how many there are; or the input itself.
Input = tuple[int, ...] | tuple[tuple[int, ...], int] | np.ndarray


@dataclass(frozen=True)
class Case:
    """A layer of PyTorch and its counterpart, as they are built.

    Attributes:
        torch: its construction, in terms of ``torch.nn``.
        mindspore: the same in terms of ``nn`` and ``mint``; ``""`` where there is none.
        inputs: what both are run on.
        sizes: what the symbols of the table are here; a list: by the number of the layer.
        layers: how many numbered layers or blocks there are.
        directions: what ``{d}`` stands for.
        forward: how a layer is called, if not simply on the inputs.
    """

    torch: str
    mindspore: str
    inputs: tuple[Input, ...] = ()
    sizes: dict[str, Any] = field(default_factory=dict)
    layers: int = 0
    directions: tuple[str, ...] = ("",)
    forward: Callable[..., Any] | None = None

    def __str__(self) -> str:
        return f"{self.torch}~{self.mindspore}".replace(" ", "")

    @property
    def row(self) -> Row:
        """The row of the table."""
        name = self.torch.partition("(")[0]
        return next(row for row in find(name) if row.torch == name)

    @property
    def counterpart(self) -> Counterpart:
        """The counterpart in the table."""
        name = self.mindspore.partition("(")[0]
        return next(c for c in self.row.counterparts if c.full_name == name)

    def build_torch(self) -> Any:
        from torch import nn

        return eval(f"nn.{self.torch}", _space(nn))

    def build_mindspore(self) -> Any:
        import mindspore as ms
        from mindspore import mint, nn

        return eval(self.mindspore, {"nn": nn, "mint": mint, "ms": ms, "np": np})

    def arguments(self) -> dict[str, Any]:
        """PyTorch's hyper-parameters, with their defaults."""
        from torch import nn

        call = ast.parse(self.torch, mode="eval").body
        assert isinstance(call, ast.Call)

        def value(node: ast.expr) -> Any:
            return eval(compile(ast.Expression(node), "", "eval"), _space(nn))

        bound = signature(getattr(nn, ast.unparse(call.func))).bind(
            *map(value, call.args), **{k.arg: value(k.value) for k in call.keywords if k.arg}
        )
        bound.apply_defaults()
        return {"bias": True} | bound.arguments

    def there(self, parameter: Parameter) -> bool:
        """Whether a parameter of the table is there in this case."""
        return not parameter.when or bool(eval(parameter.when, {}, self.arguments()))

    def theirs(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of PyTorch's parameters, as the table has them."""
        there = [p for p in self.row.parameters if self.there(p)]
        return [(n, self.size(p.shape, i)) for p, n, i in self._expanded(there, False)]

    def ours(self) -> list[tuple[Other, str, str, tuple[int, ...]]]:
        """Each of MindSpore's parameters: what the table says, name, PyTorch's name, shape."""
        known = {p.name: p for p in self.row.parameters}
        there = [o for o in self.counterpart.parameters if o.always or self.there(known[o.torch])]
        found = []
        for other, name, i in self._expanded(there, self.counterpart.by_kind):
            torch = other.torch.format(l=i, d="_reverse" if name.endswith("_reverse") else "")
            shape = known[other.torch].shape if other.shape is None else other.shape
            found.append((other, name, torch, self.size(shape, i)))
        return found

    def _expanded(self, parameters: Sequence[Any], by_kind: bool) -> Iterator[tuple[Any, str, int]]:
        """Parameters with their numbers: those that follow each other layer by layer, or kind by kind."""
        groups: list[list[Any]] = []
        for p in parameters:
            numbered = "{l}" in p.name
            if groups and numbered and not by_kind and "{l}" in groups[-1][0].name:
                groups[-1].append(p)
            else:
                groups.append([p])
        for group in groups:
            if "{l}" not in group[0].name:
                yield group[0], group[0].name, 0
                continue
            for i in range(self.layers):
                for d in self.directions:
                    for p in group:
                        yield p, p.name.format(l=i, d=d), i

    def size(self, shape: str, number: int = 0) -> tuple[int, ...]:
        """A shape of the table in numbers."""
        found: list[int] = []
        for part in filter(None, (p.strip() for p in shape.split(","))):
            if part.startswith("*"):
                found += self.sizes[part[1:]]
                continue
            symbols = re.sub(r"[a-z_]\w*", lambda m: f"s[{m[0]!r}]", part).replace("/", "//")
            s = {k: v[number] if isinstance(v, list) else v for k, v in self.sizes.items()}
            found.append(eval(symbols, {"s": s}))
        return tuple(found)

    def values(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Values for PyTorch's parameters, none of them its default."""
        rng = np.random.default_rng(1)
        found = {}
        for name, shape in shapes.items():
            if name.endswith("num_batches_tracked"):
                found[name] = np.array(7)
            elif name.endswith("var"):
                found[name] = (rng.random(shape) + 0.5).astype(np.float32)
            else:
                # Small enough for the hyperbolic tangent to be exact: MindSpore's is off by 5e-5 for large arguments.
                found[name] = (0.4 * rng.standard_normal(shape)).astype(np.float32)
        return found

    def arrays(self) -> list[np.ndarray]:
        """The inputs."""
        rng = np.random.default_rng(0)
        found = []
        for given in self.inputs:
            if isinstance(given, np.ndarray):
                found.append(given)
            elif given and isinstance(given[0], tuple):
                found.append(rng.integers(given[1], size=given[0]))
            else:
                found.append(rng.standard_normal(given).astype(np.float32))
        return found


def _space(nn: Any) -> dict[str, Any]:
    import torch

    return {**vars(nn), "nn": nn, "torch": torch}


def signature(cls: Any) -> inspect.Signature:
    """The signature of a layer's class, without what says nothing about the layer."""
    found = inspect.signature(cls.__init__)
    if set(found.parameters) == {"self", "args", "kwargs"}:  # the recurrent ones
        base = next((c for c in cls.__mro__ if "mode" in inspect.signature(c.__init__).parameters), cls)
        found = inspect.signature(base.__init__)
        more = [inspect.Parameter("nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh")]
        gone = {"mode"} if cls.__name__ == "LSTM" else {"mode", "proj_size"}
        kept = [p for n, p in found.parameters.items() if n not in gone]
        found = found.replace(parameters=kept + (more if cls.__name__ == "RNN" else []))
    return found.replace(parameters=[p for n, p in found.parameters.items() if n != "self"])


def _linear() -> Iterator[Case]:
    sizes = {"out": 3, "in": 4}
    for bias in (True, False):
        yield Case(f"Linear(4, 3, bias={bias})", f"nn.Dense(4, 3, has_bias={bias})", ((2, 4),), sizes)
        yield Case(f"Linear(4, 3, bias={bias})", f"mint.nn.Linear(4, 3, bias={bias})", ((2, 4),), sizes)
    yield Case("Linear(4, 4)", "nn.Dense(4, 4)", ((2, 4),), {"out": 4, "in": 4})
    sizes = {"out": 3, "in1": 4, "in2": 5}
    yield Case("Bilinear(4, 5, 3)", "nn.BiDense(4, 5, 3)", ((2, 4), (2, 5)), sizes)


#: Inputs with one, two, three dimensions after the channels.
_SPACE = {1: (2, 4, 9), 2: (2, 4, 9, 10), 3: (2, 4, 6, 7, 8)}


def _convolutions() -> Iterator[Case]:
    names = {1: ["k"], 2: ["kh", "kw"], 3: ["kd", "kh", "kw"]}
    for n, x in _SPACE.items():
        for groups, bias in ((1, True), (2, False)):
            kernel = (3, 2, 1)[:n]
            k = 3 if n == 1 else kernel
            sizes = {"out": 6, "in": 4, "groups": groups, **dict(zip(names[n], kernel, strict=True))}
            theirs = f"(4, 6, {k}, groups={groups}, bias={bias})"
            ours = f"(4, 6, {k}, group={groups}, has_bias={bias}, pad_mode='valid')"
            yield Case(f"Conv{n}d{theirs}", f"nn.Conv{n}d{ours}", (x,), sizes)
            yield Case(f"Conv{n}d{theirs}", f"mint.nn.Conv{n}d{theirs}", (x,), sizes)
            yield Case(f"ConvTranspose{n}d{theirs}", f"nn.Conv{n}dTranspose{ours}", (x,), sizes)
            if n == 2:
                yield Case(f"ConvTranspose{n}d{theirs}", f"mint.nn.ConvTranspose{n}d{theirs}", (x,), sizes)
    sizes = {"out": 6, "in": 4, "groups": 1, "kh": 3, "kw": 3}
    yield Case(
        "Conv2d(4, 6, 3, padding=1)",
        "nn.Conv2d(4, 6, 3, pad_mode='pad', padding=1, has_bias=True)",
        (_SPACE[2],),
        sizes,
    )


def _norms() -> Iterator[Case]:
    for name, x in [*((f"BatchNorm{n}d", x) for n, x in _SPACE.items()), ("SyncBatchNorm", _SPACE[2])]:
        for rest in ("", ", affine=False") if name == "BatchNorm2d" else ("",):
            yield Case(f"{name}(4{rest})", f"nn.{name}(4{rest})", (x,), {"n": 4})
            yield Case(f"{name}(4{rest})", f"mint.nn.{name}(4{rest})", (x,), {"n": 4})
    tracked = "BatchNorm2d(4, track_running_stats=False)"
    yield Case(tracked, "nn.BatchNorm2d(4, use_batch_statistics=True)", (_SPACE[2],), {"n": 4})
    yield Case(tracked, f"mint.nn.{tracked}", (_SPACE[2],), {"n": 4})
    for n, x in _SPACE.items():
        yield Case(f"InstanceNorm{n}d(4, affine=True)", f"nn.InstanceNorm{n}d(4)", (x,), {"n": 4})
    yield Case("InstanceNorm2d(4)", "nn.InstanceNorm2d(4, affine=False)", (_SPACE[2],), {"n": 4})
    last, two = {"normalized_shape": (9,)}, {"normalized_shape": (4, 9)}
    x = _SPACE[1]
    yield Case("LayerNorm(9)", "nn.LayerNorm((9,), epsilon=1e-5)", (x,), last)
    yield Case("LayerNorm(9, bias=False)", "nn.LayerNorm((9,), epsilon=1e-5)", (x,), last)
    both = "nn.LayerNorm((4, 9), begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5)"
    yield Case("LayerNorm((4, 9))", both, (x,), two)
    for text, sizes in (
        ("LayerNorm(9)", last),
        ("LayerNorm(9, bias=False)", last),
        ("LayerNorm(9, elementwise_affine=False)", last),
        ("LayerNorm((4, 9))", two),
    ):
        yield Case(text, f"mint.nn.{text}", (x,), sizes)
    for text in ("GroupNorm(2, 4)", "GroupNorm(2, 4, affine=False)"):
        yield Case(text, f"nn.{text}", (_SPACE[2],), {"n": 4})
        yield Case(text, f"mint.nn.{text}", (_SPACE[2],), {"n": 4})


def _tables_and_activations() -> Iterator[Case]:
    ids: Input = ((2, 3), 7)
    sizes = {"num": 7, "dim": 4}
    yield Case("Embedding(7, 4)", "nn.Embedding(7, 4)", (ids,), sizes)
    yield Case("Embedding(7, 4)", "nn.EmbeddingLookup(7, 4)", (ids,), sizes)
    yield Case("Embedding(7, 4)", "mint.nn.Embedding(7, 4)", (ids,), sizes)
    for n in (1, 4):
        yield Case(f"PReLU({n})", f"nn.PReLU({n})", (_SPACE[2],), {"n": n})
        yield Case(f"PReLU({n})", f"mint.nn.PReLU({n})", (_SPACE[2],), {"n": n})


def _recurrent() -> Iterator[Case]:
    for kind in ("RNN", "LSTM", "GRU"):
        for layers, both, bias in ((1, False, True), (2, True, True), (3, False, False)):
            n = 2 if both else 1
            rest = f"4, 3, {layers}, bidirectional={both}"
            sizes = {"hidden": 3, "out": 3, "in_l": [4, *[3 * n] * (layers - 1)]}
            yield Case(
                f"{kind}({rest}, bias={bias})",
                f"nn.{kind}({rest}, has_bias={bias})",
                ((5, 2, 4),),
                sizes,
                layers,
                ("", "_reverse")[:n],
            )
        for bias in (True, False):
            inputs: tuple[Input, ...] = ((2, 4), (2, 3), *([(2, 3)] if kind == "LSTM" else []))
            sizes = {"hidden": 3, "in": 4}
            forward = _cell_with_two_states if kind == "LSTM" else None
            ours = f"nn.{kind}Cell(4, 3, has_bias={bias})"
            yield Case(f"{kind}Cell(4, 3, bias={bias})", ours, inputs, sizes, forward=forward)


def _cell_with_two_states(cell: Any, x: Any, h: Any, c: Any) -> Any:
    return cell(x, (h, c))


def _attention() -> Iterator[Case]:
    sizes = {"embed": 8, "kdim": 6, "vdim": 5}
    for theirs, ours, k, v in (
        ("8, 2", "8, 2", 8, 8),
        ("8, 2, bias=False", "8, 2, has_bias=False", 8, 8),
        ("8, 2, add_bias_kv=True", "8, 2, add_bias_kv=True", 8, 8),
        ("8, 2, kdim=6, vdim=5", "8, 2, kdim=6, vdim=5", 6, 5),
    ):
        qkv = ((3, 2, 8), (4, 2, k), (4, 2, v))
        yield Case(f"MultiheadAttention({theirs})", f"nn.MultiheadAttention({ours})", qkv, sizes)
    sizes = {"d_model": 8, "dim_feedforward": 16}
    x, y = (3, 2, 8), (4, 2, 8)
    for first in (False, True):
        layer = f"TransformerEncoderLayer(8, 2, 16, norm_first={first})"
        yield Case(layer, f"nn.{layer}", (x,), sizes)
        layer = f"TransformerDecoderLayer(8, 2, 16, norm_first={first})"
        yield Case(layer, f"nn.{layer}", (x, y), sizes)
    for kind, inputs in (("Encoder", (x,)), ("Decoder", (x, y))):
        for theirs, ours in (("", ""), (", LayerNorm(8)", ", nn.LayerNorm((8,), epsilon=1e-5)")):
            inner = f"Transformer{kind}Layer(8, 2, 16)"
            yield Case(
                f"Transformer{kind}({inner}, 2{theirs})", f"nn.Transformer{kind}(nn.{inner}, 2{ours})", inputs, sizes, 2
            )
    yield Case("Transformer(8, 2, 1, 1, 16)", "nn.Transformer(8, 2, 1, 1, 16)", (y, x), sizes, 1)


def _losses() -> Iterator[Case]:
    """What PyTorch keeps in the state of a loss is given to MindSpore's."""
    three = "[0.5, 1.5, 2.0]"
    theirs, ours = f"weight=torch.tensor({three})", f"weight=ms.Tensor({three}, ms.float32)"
    more = theirs.replace("weight", "pos_weight"), ours.replace("weight", "pos_weight")
    rng = np.random.default_rng(0)
    share, yes = rng.random((5, 3)).astype(np.float32), rng.integers(2, size=(5, 3)).astype(np.float32)
    classes: Input = ((5,), 3)
    for name, inputs in (
        ("CrossEntropyLoss", ((5, 3), classes)),
        ("NLLLoss", ((5, 3), classes)),
        ("BCEWithLogitsLoss", ((5, 3), yes)),
        ("MultiMarginLoss", ((5, 3), classes)),
        ("MultiLabelSoftMarginLoss", ((5, 3), yes)),
    ):
        a, b = (f", {x}" if name == "BCEWithLogitsLoss" else "" for x in more)
        for place in ("nn", "mint.nn")[: 1 if name.startswith("Multi") else 2]:
            sizes = {"weight": (3,), "pos_weight": (3,)}
            forward = _with_short_labels if (name, place) == ("CrossEntropyLoss", "nn") else None
            yield Case(f"{name}({theirs}{a})", f"{place}.{name}({ours}{b})", inputs, sizes, forward=forward)
    for place in ("nn", "mint.nn"):
        ours = f"{place}.BCELoss(weight=ms.Tensor(np.full((5, 3), 0.5), ms.float32))"
        yield Case("BCELoss(weight=torch.full((5, 3), 0.5))", ours, (share, yes), {"weight": (5, 3)})


def _with_short_labels(loss: Any, x: Any, labels: Any) -> Any:
    return loss(x, labels if type(loss).__module__.startswith("torch") else labels.int())


CASES = (*_linear(), *_convolutions(), *_norms(), *_tables_and_activations(), *_recurrent(), *_attention(), *_losses())

#: What MindSpore lacks: PyTorch's side alone.
ALONE = (
    Case("LSTM(4, 5, 2, proj_size=3)", "", sizes={"hidden": 5, "out": 3, "proj": 3, "in_l": [4, 3]}, layers=2),
    Case("RMSNorm((4, 9))", "", sizes={"normalized_shape": (4, 9)}),
    Case("RMSNorm(9, elementwise_affine=False)", ""),
    Case("EmbeddingBag(7, 4)", "", sizes={"num": 7, "dim": 4}),
    Case(
        "AdaptiveLogSoftmaxWithLoss(16, 10, [3, 6], div_value=2.0, head_bias=True)",
        "",
        sizes={"shortlist": 3, "clusters": 2, "in": 16, "in_l": [8, 4], "size_l": [3, 4]},
        layers=2,
    ),
    Case("LinearCrossEntropyLoss(8, 5)", "", sizes={"classes": 5, "in": 8}),
    Case("LinearCrossEntropyLoss(8, 5, bias=True)", "", sizes={"classes": 5, "in": 8}),
    Case("InstanceNorm2d(4, track_running_stats=True)", "", sizes={"n": 4}),
    Case("BatchNorm2d(4, bias=False)", "", sizes={"n": 4}),
    Case("TransformerEncoderLayer(8, 2, 16, bias=False)", "", sizes={"d_model": 8, "dim_feedforward": 16}),
    Case("TransformerDecoderLayer(8, 2, 16, bias=False)", "", sizes={"d_model": 8, "dim_feedforward": 16}),
    Case("Transformer(8, 2, 2, 2, 16, bias=False)", "", sizes={"d_model": 8, "dim_feedforward": 16}, layers=2),
)
