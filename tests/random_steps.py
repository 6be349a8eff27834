"""The steps of random networks: what each is made of, and what it computes with the operations of either framework."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Channels everywhere, so that shapes tell little.
WIDTH = 8
#: Tokens of a sequence, rows and columns of an image, words of a vocabulary, classes, samples.
LENGTH, SIDE, WORDS, CLASSES, BATCH = 5, 4, 11, 3, 2

Array = np.ndarray
#: Where a part of a network is: the positions of steps and the words of parts on the way down.
Key = tuple[int | str, ...]
#: A parameter: the key of its layer and PyTorch's word for it (``""`` for a parameter that no layer owns).
Id = tuple[Key, str]
Shape = tuple[int, ...]


class Short:
    """A repr without the fields that have their default."""

    def __repr__(self) -> str:
        shown = []
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={value!r}" if shown or f.name != "kind" else repr(value))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Step(Short):
    """One step of a network.

    Attributes:
        kind: what it does, a key of :data:`KINDS`.
        bodies: networks within it; blocks of a stack have one for all.
        n: how many blocks, calls or experts; for ``again``, which earlier step of this block.
        act: the activation, where it has one.
        bias: whether its layers have one.
    """

    kind: str
    bodies: tuple[tuple[Step, ...], ...] = ()
    n: int = 0
    act: str = ""
    bias: bool = True


def uses_context(steps: Iterable[Step]) -> bool:
    """Whether a step attends to the second input."""
    return any(s.kind == "cross" or any(map(uses_context, s.bodies)) for s in steps)


# ------------------------------------------------------------------------------------------------------ parts of a step


@dataclass(frozen=True)
class Layer:
    """A layer of the frameworks; ``sizes`` are in, out, kernel and groups as far as it has them."""

    kind: str
    sizes: Shape = (WIDTH, WIDTH)
    bias: bool = True


@dataclass(frozen=True)
class Direct:
    """A parameter that its container uses itself; in MindSpore it may be kept ``turned`` (transposed)."""

    shape: Shape
    turned: bool = False


@dataclass(frozen=True)
class Inner:
    """A block of steps."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Many:
    """A list of blocks."""

    blocks: tuple[Inner, ...]


Part = Layer | Direct | Inner | Many
Get = Callable[[Key], Any]


@dataclass(frozen=True)
class Kind:
    """What a kind of step is made of, and what it does with the operations of either framework.

    Attributes:
        parts: by word, for a step and the shape that flows.
        call: ``call(step, ops, get, x, context, key)`` gives what flows on; ``get`` takes the word of a part.
    """

    parts: Callable[[Step, Shape], dict[str, Part]]
    call: Callable[..., Any]


KINDS: dict[str, Kind] = {}
#: The kinds that keep a shape: of all values, of sequences, of images, and those that have blocks within.
BOTH = ("act", "scale", "offset", "position", "norm", "prelu", "again")
SEQUENCE = (
    *("linear", "mlp", "rms", "functional", "borrowed", "lstm", "bilstm", "gru"),
    *("attention", "cross", "experts", "conv1d"),
)
IMAGE = ("conv", "pointwise", "depthwise", "batchnorm", "functional_conv", "excite")
NESTED = ("residual", "add", "concat", "stack", "repeat")
REPEATABLE = {*BOTH, *SEQUENCE, *IMAGE, *NESTED} - {"again", "act"}
Call = Callable[..., Any]


def _kind(name: str, parts: Callable[[Step, Shape], dict[str, Part]] | None = None) -> Callable[[Call], Call]:
    def add(call: Call) -> Call:
        KINDS[name] = Kind(parts or (lambda step, shape: {}), call)
        return call

    return add


def dense(a: int = WIDTH, b: int = WIDTH, bias: bool = True) -> Layer:
    return Layer("dense", (a, b), bias)


@_kind("embed", lambda s, _: {"embed": Layer("embedding", (WORDS, WIDTH))})
def _embed(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("embed")(x)


@_kind("widen", lambda s, _: {"proj": dense(6)})
def _widen(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("proj")(x)


@_kind("stem", lambda s, _: {"stem": Layer("conv", (3, WIDTH, 3, 1))})
def _stem(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("stem")(x)


@_kind("patch", lambda s, _: {"patch": Layer("patch", (3, WIDTH, 2))})
def _patch(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    y = get("patch")(x)
    return ops.swap(ops.reshape(y, (BATCH, WIDTH, -1)), 1, 2)


@_kind("token", lambda s, _: {"cls_token": Direct((1, 1, WIDTH))})
def _token(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return ops.cat([ops.repeat(get("cls_token"), BATCH), x], 1)


@_kind("classify", lambda s, _: {"head": dense(WIDTH, CLASSES)})
def _classify(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("head")(_pooled(ops, x))


def _pooled(ops: Any, x: Any) -> Any:
    return ops.mean(x, (2, 3)) if len(x.shape) == 4 else ops.mean(x, (1,))


@_kind("tied")
def _tied(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return ops.linear(_pooled(ops, x), ops.weight(get("/embed")), None)


@_kind("unused", lambda s, _: {"aux": dense(), "aux_norm": Layer("layernorm")})
def _unused(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return x


@_kind("act")
def _act(s: Step, ops: Any, get: Get, x: Any, context: Any, key: Key) -> Any:
    return ops.act(s.act, x, key)


@_kind("linear", lambda s, _: {"fc": dense(bias=s.bias)})
def _linear(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("fc")(x)


@_kind("mlp", lambda s, _: {"fc1": dense(WIDTH, 2 * WIDTH, s.bias), "fc2": dense(2 * WIDTH, WIDTH, s.bias)})
def _mlp(s: Step, ops: Any, get: Get, x: Any, context: Any, key: Key) -> Any:
    return get("fc2")(ops.act(s.act, get("fc1")(x), key))


@_kind("norm", lambda s, shape: {"norm": Layer("layernorm" if len(shape) == 2 else "groupnorm")})
def _norm(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("norm")(x)


@_kind("rms", lambda s, _: {"rms_weight": Direct((WIDTH,))})
def _rms(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return x * ops.rsqrt(ops.mean(x * x, (2,), True) + 1e-6) * get("rms_weight")


@_kind("scale", lambda s, shape: {"gamma": Direct((WIDTH,) if len(shape) == 2 else (WIDTH, 1, 1))})
def _scale(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return x * get("gamma")


@_kind("offset", lambda s, shape: {"bias": Direct((WIDTH,) if len(shape) == 2 else (WIDTH, 1, 1))})
def _offset(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return x + get("bias")


@_kind("position", lambda s, shape: {"pos_embed": Direct((1, *shape))})
def _position(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return x + get("pos_embed")


def _functional_parts(s: Step, _: Shape) -> dict[str, Part]:
    weight: dict[str, Part] = {"weight": Direct((WIDTH, WIDTH), turned=s.n == 1)}
    return weight | {"bias": Direct((WIDTH,))} if s.bias else weight


@_kind("functional", _functional_parts)
def _functional(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    bias = get("bias") if s.bias else None
    return ops.linear(x, get("weight"), bias, turned=s.n == 1)


@_kind("borrowed", lambda s, _: {"fc": dense(bias=False)})
def _borrowed(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return ops.linear(x, ops.weight(get("fc")), None)


@_kind("lstm", lambda s, _: {"rnn": Layer("lstm", (1,))})
def _lstm(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("rnn")(x)[0]


@_kind("gru", lambda s, _: {"rnn": Layer("gru", (1,))})
def _gru(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("rnn")(x)[0]


@_kind("bilstm", lambda s, _: {"rnn": Layer("lstm", (2,)), "fc": dense(2 * WIDTH)})
def _bilstm(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("fc")(get("rnn")(x)[0])


@_kind("attention", lambda s, _: {word: dense(bias=s.bias) for word in "qkvo"})
def _attention(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("o")(_attend(ops, get("q")(x), get("k")(x), get("v")(x)))


@_kind("cross", lambda s, _: {word: dense(bias=s.bias) for word in "qkvo"})
def _cross(s: Step, ops: Any, get: Get, x: Any, context: Any, *_: Any) -> Any:
    return get("o")(_attend(ops, get("q")(x), get("k")(context), get("v")(context)))


def _attend(ops: Any, q: Any, k: Any, v: Any, heads: int = 2) -> Any:
    q, k, v = (ops.swap(ops.reshape(t, (BATCH, -1, heads, WIDTH // heads)), 1, 2) for t in (q, k, v))
    scores = ops.softmax(ops.matmul(q, ops.swap(k, 2, 3)) * (WIDTH // heads) ** -0.5)
    return ops.reshape(ops.swap(ops.matmul(scores, v), 1, 2), (BATCH, -1, WIDTH))


def experts_of(s: Step) -> Many:
    return Many((Inner((Step("mlp", act=s.act, bias=s.bias),)),) * max(2, s.n))


@_kind("experts", lambda s, _: {"gate": dense(WIDTH, max(2, s.n)), "experts": experts_of(s)})
def _experts(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    gates = ops.softmax(get("gate")(x))
    return sum(gates[..., i : i + 1] * expert(x) for i, expert in enumerate(get("experts")))


@_kind("conv1d", lambda s, _: {"conv": Layer("conv1d", (WIDTH, WIDTH, 3), s.bias)})
def _conv1d(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return ops.swap(get("conv")(ops.swap(x, 1, 2)), 1, 2)


@_kind("prelu", lambda s, _: {"prelu": Layer("prelu")})
def _prelu(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("prelu")(x - 0.5)  # or after a ReLU nothing is below zero, and the slope has no effect


@_kind("conv", lambda s, _: {"conv": Layer("conv", (WIDTH, WIDTH, 3, 1), s.bias)})
def _conv(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("conv")(x)


@_kind("pointwise", lambda s, _: {"conv": Layer("conv", (WIDTH, WIDTH, 1, 1), s.bias)})
def _pointwise(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("conv")(x)


@_kind("depthwise", lambda s, _: {"conv": Layer("conv", (WIDTH, WIDTH, 3, WIDTH), s.bias)})
def _depthwise(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("conv")(x)


@_kind("batchnorm", lambda s, _: {"bn": Layer("batchnorm")})
def _batchnorm(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return get("bn")(x)


@_kind("functional_conv", lambda s, _: {"weight": Direct((WIDTH, WIDTH, 3, 3))})
def _functional_conv(s: Step, ops: Any, get: Get, x: Any, *_: Any) -> Any:
    return ops.conv(x, get("weight"))


@_kind("excite", lambda s, _: {"squeeze": dense(WIDTH, 4), "excite": dense(4, WIDTH)})
def _excite(s: Step, ops: Any, get: Get, x: Any, context: Any, key: Key) -> Any:
    gate = ops.sigmoid(get("excite")(ops.act("silu", get("squeeze")(ops.mean(x, (2, 3))), key)))
    return x * ops.reshape(gate, (BATCH, WIDTH, 1, 1))


@_kind("residual", lambda s, _: {"body": Inner(s.bodies[0])})
def _residual(s: Step, ops: Any, get: Get, x: Any, context: Any, *_: Any) -> Any:
    return x + get("body")(x, context)


@_kind("add", lambda s, _: {f"branch{i}": Inner(b) for i, b in enumerate(s.bodies)})
def _add(s: Step, ops: Any, get: Get, x: Any, context: Any, *_: Any) -> Any:
    return sum((get(f"branch{i}")(x, context) for i in range(1, len(s.bodies))), get("branch0")(x, context))


def _concat_parts(s: Step, shape: Shape) -> dict[str, Part]:
    wide = len(s.bodies) * WIDTH
    join = dense(wide) if len(shape) == 2 else Layer("conv", (wide, WIDTH, 1, 1))
    return {**{f"branch{i}": Inner(b) for i, b in enumerate(s.bodies)}, "join": join}


@_kind("concat", _concat_parts)
def _concat(s: Step, ops: Any, get: Get, x: Any, context: Any, *_: Any) -> Any:
    branches = [get(f"branch{i}")(x, context) for i in range(len(s.bodies))]
    return get("join")(ops.cat(branches, 1 if len(x.shape) == 4 else 2))


@_kind("stack", lambda s, _: {"blocks": Many((Inner(s.bodies[0]),) * max(2, s.n))})
def _stack(s: Step, ops: Any, get: Get, x: Any, context: Any, *_: Any) -> Any:
    for block in get("blocks"):
        x = block(x, context)
    return x


@_kind("repeat", lambda s, _: {"shared": Inner(s.bodies[0])})
def _repeat(s: Step, ops: Any, get: Get, x: Any, context: Any, *_: Any) -> Any:
    for _i in range(max(2, s.n)):
        x = get("shared")(x, context)
    return x


#: An earlier step of the same block, once more, with the same parameters; see :func:`run`.
KINDS["again"] = Kind(lambda step, shape: {}, lambda *args: args[3])


def reused(steps: Sequence[Step], i: int) -> int | None:
    """Which step of the block step ``i`` repeats, or None."""
    if steps[i].kind != "again":
        return None
    before = [j for j in range(i) if KINDS[steps[j].kind].parts(steps[j], (1, WIDTH)) and steps[j].kind in REPEATABLE]
    return before[steps[i].n % len(before)] if before else None


def run(
    steps: Sequence[Step],
    ops: Any,
    get: Callable[[Key], Any],
    x: Any,
    context: Any = None,
    prefix: Key = (),
    taps: Sequence[int] = (),
) -> tuple[Any, list[Any]]:
    """What the steps make of ``x``, and the values at the taps (before the step at each)."""
    tapped = []
    for i in range(len(steps)):
        if i in taps:
            tapped.append(x)
        at = reused(steps, i)
        at = i if at is None else at

        def part(word: str, at: int = at) -> Any:
            return get((0, word[1:])) if word.startswith("/") else get((*prefix, at, word))

        x = KINDS[steps[at].kind].call(steps[at], ops, part, x, context, (*prefix, at, "act"))
    return x, tapped + ([x] if len(steps) in taps else [])


def parts_of(step: Step, shape: Shape) -> dict[str, Part]:
    """The parts of a step by their words."""
    return KINDS[step.kind].parts(step, shape)


def leaves(steps: Sequence[Step], shape: Shape, prefix: Key = ()) -> Iterator[tuple[Key, Layer | Direct]]:
    """All layers and direct parameters below, in the order of the steps."""

    def below(key: Key, part: Part) -> Iterator[tuple[Key, Layer | Direct]]:
        if isinstance(part, Inner):
            yield from leaves(part.steps, shape, key)
        elif isinstance(part, Many):
            for b, block in enumerate(part.blocks):
                yield from below((*key, b), block)
        else:
            yield key, part

    for i, step in enumerate(steps):
        for word, part in parts_of(step, shape).items():
            yield from below((*prefix, i, word), part)


#: For each layer PyTorch's words for its parameters and MindSpore's.
_ROLES: dict[str, tuple[tuple[str, str], ...]] = {
    "layernorm": (("weight", "gamma"), ("bias", "beta")),
    "groupnorm": (("weight", "gamma"), ("bias", "beta")),
    "batchnorm": (
        ("weight", "gamma"),
        ("bias", "beta"),
        ("running_mean", "moving_mean"),
        ("running_var", "moving_variance"),
    ),
    "embedding": (("weight", "embedding_table"),),
    "prelu": (("weight", "w"),),
}
_GATES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def roles(part: Layer | Direct) -> tuple[tuple[str, str], ...]:
    """PyTorch's and MindSpore's word for each parameter of a layer."""
    if isinstance(part, Direct):
        return (("", ""),)
    if part.kind in _ROLES:
        return _ROLES[part.kind]
    if part.kind in ("lstm", "gru"):
        words = [w + end for end in ("", "_reverse")[: part.sizes[0]] for w in _GATES]
        return tuple((w, w) for w in words)
    return (("weight", "weight"), ("bias", "bias")) if part.bias else (("weight", "weight"),)


def rng_of(*what: Any) -> random.Random:
    """Random numbers that depend on these values only."""
    return random.Random(repr(what))
