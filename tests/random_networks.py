"""Random small networks in both frameworks with the same computation, and the true mapping known by construction.

A :class:`Program` is a small frozen value: it prints as the code that makes it again, and Hypothesis shrinks it. Its
steps keep the shape of what flows through them, so that they can follow each other in any order. :func:`build` makes
the two networks of it: PyTorch with natural names, MindSpore with other names, another order of definition and other
nesting (a ``SequentialCell`` more, a wrapper less), all drawn from one seed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from automap.conversion import apply
from automap.errors import AutomapError
from automap.mapping import Mapping

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


# ---------------------------------------------------------------------------------------------------------- the program


class _Short:
    """A repr without the fields that have their default."""

    def __repr__(self) -> str:
        shown = []
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={value!r}" if shown or f.name != "kind" else repr(value))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Step(_Short):
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


@dataclass(frozen=True, repr=False)
class Program(_Short):
    """A network.

    Attributes:
        domain: what comes in: ``ids``, a ``sequence``, an ``image``, or an image cut into ``patches``.
        steps: what happens to it between the first layer and the head.
        head: ``classify``, ``tied`` (the embedding's own weight; ids only) or none.
        token: whether a class token is put in front of the sequence.
        unused: further layers that no call reaches.
        outputs: one tensor, or a tuple or dict with what came before the first step and before the head as well.
        keywords: whether arguments are given by keyword, to the network and to its blocks.
        order: PyTorch's order of definition, 0 for that of the calls.
    """

    domain: str
    steps: tuple[Step, ...]
    head: str = "classify"
    token: bool = False
    unused: int = 0
    outputs: str = "one"
    keywords: bool = False
    order: int = 0

    @property
    def whole(self) -> tuple[Step, ...]:
        """All steps, with the first layer, the class token, the head, and what is never called."""
        first = (Step({"ids": "embed", "sequence": "widen", "image": "stem", "patches": "patch"}[self.domain]),)
        token = (Step("token"),) if self.token and self.domain != "image" else ()
        head = Step(self.head if self.head != "tied" or self.domain == "ids" else "classify")
        last = (head,) if self.head else ()
        return (*first, *token, *self.steps, *last, *(Step("unused") for _ in range(self.unused)))

    @property
    def taps(self) -> tuple[int, ...]:
        """After which of the whole's steps the value is an output, too."""
        end = len(self.whole) - self.unused - (1 if self.head else 0)
        return () if self.outputs == "one" else tuple(sorted({1, end}))

    @property
    def shape(self) -> Shape:
        """What flows, without the batch."""
        if self.domain == "image":
            return (WIDTH, SIDE, SIDE)
        length = (SIDE // 2) ** 2 if self.domain == "patches" else LENGTH
        return (length + (1 if self.token else 0), WIDTH)

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """Arrays by keyword; with ``keywords`` off they can be given in this order."""
        rng = np.random.default_rng(seed)
        if self.domain == "ids":
            x = rng.integers(0, WORDS, (BATCH, LENGTH))
        elif self.domain == "sequence":
            x = rng.standard_normal((BATCH, LENGTH, 6)).astype(np.float32)
        else:
            x = rng.standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
        out = {"x": x}
        if uses_context(self.whole):
            out["context"] = rng.standard_normal((BATCH, 4, WIDTH)).astype(np.float32)
        return out


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


def _experts_of(s: Step) -> Many:
    return Many((Inner((Step("mlp", act=s.act, bias=s.bias),)),) * max(2, s.n))


@_kind("experts", lambda s, _: {"gate": dense(WIDTH, max(2, s.n)), "experts": _experts_of(s)})
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
    before = [j for j in range(i) if KINDS[steps[j].kind].parts(steps[j], (1, WIDTH)) and steps[j].kind in _REPEATABLE]
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


# ------------------------------------------------------------------------------------------- what cannot be told apart


@dataclass
class Facts:
    """What the computation itself does not tell.

    Attributes:
        unexercised: parameters that no output depends on.
        swaps: exchanges that change no output, each a set of pairs of parameters that change places together.
    """

    unexercised: set[Id] = field(default_factory=set)
    swaps: list[tuple[tuple[Id, Id], ...]] = field(default_factory=list)

    def close(self, *ends: list[tuple[Id, Shape]]) -> None:
        """Parameters that are added to one value, or that multiply one value, can change places."""
        for end in ends:
            self.swaps += [((a, b),) for (a, s), (b, t) in itertools.combinations(end, 2) if s == t]


@dataclass(frozen=True)
class _End:
    """How a value was made last: ``x * product(factors) + sum(terms)``; only one of the two is not empty."""

    terms: tuple[tuple[Id, Shape], ...] = ()
    factors: tuple[tuple[Id, Shape], ...] = ()


def facts_of(program: Program) -> Facts:
    """What cannot be told by construction; careful: it may not know every symmetry, but what it says is true."""
    facts = Facts()
    end = _follow(program.whole, program.shape, (), _End(), facts, program.taps)
    _finish(end, facts)
    return facts


def _finish(end: _End, facts: Facts) -> _End:
    facts.close(list(end.terms), list(end.factors))
    return _End()


def _follow(
    steps: Sequence[Step], shape: Shape, prefix: Key, end: _End, facts: Facts, taps: Sequence[int] = ()
) -> _End:
    repeated = {reused(steps, i) for i in range(len(steps))}
    for i, step in enumerate(steps):
        if i in taps or i in repeated or step.kind == "again":
            end = _finish(end, facts)
        if step.kind != "again":
            end = _after(step, shape, (*prefix, i), end, facts)
        if i in repeated:
            end = _finish(end, facts)
    return _finish(end, facts) if len(steps) in taps else end


def _after(step: Step, shape: Shape, key: Key, end: _End, facts: Facts) -> _End:
    """How the value was made after one step, given how it was made before."""

    def direct(word: str) -> tuple[Id, Shape]:
        part = parts_of(step, shape)[word]
        assert isinstance(part, Direct)
        return ((*key, word), ""), part.shape

    def bias(word: str) -> _End:
        return _End(((((*key, word), "bias"), (WIDTH,)),)) if step.bias else _End()

    kind = step.kind
    if kind in ("offset", "position"):
        facts.close(list(end.factors))
        return _End((*end.terms, direct("bias" if kind == "offset" else "pos_embed")))
    if kind == "scale":
        facts.close(list(end.terms))
        return _End((), (*end.factors, direct("gamma")))
    if kind == "stack":
        for b in range(max(2, step.n)):
            end = _follow(step.bodies[0], shape, (*key, "blocks", b), end, facts)
        return end
    _finish(end, facts)
    if kind == "unused":
        facts.unexercised |= {((*key, "aux"), "weight"), ((*key, "aux"), "bias")}
        facts.unexercised |= {((*key, "aux_norm"), "weight"), ((*key, "aux_norm"), "bias")}
        return _End()
    if kind == "rms":
        return _End((), (direct("rms_weight"),))
    if kind == "norm":
        return _End(((((*key, "norm"), "bias"), (WIDTH,)),))
    if kind == "batchnorm":
        return _End(((((*key, "bn"), "bias"), (WIDTH,)),))
    if kind in ("linear", "widen", "conv", "pointwise", "depthwise", "conv1d", "stem"):
        return bias({"linear": "fc", "widen": "proj", "stem": "stem"}.get(kind, "conv"))
    if kind == "patch":
        return bias("patch")
    if kind == "mlp":
        return bias("fc2")
    if kind == "functional":
        return _End((direct("bias"),)) if step.bias else _End()
    if kind in ("attention", "cross"):
        if step.bias:  # it adds the same number to all scores of a query, which softmax does not see
            facts.unexercised.add(((*key, "k"), "bias"))
        return bias("o")
    if kind in ("lstm", "bilstm"):
        for way in ("", "_reverse")[: 2 if kind == "bilstm" else 1]:
            facts.swaps.append(((((*key, "rnn"), f"bias_ih_l0{way}"), ((*key, "rnn"), f"bias_hh_l0{way}")),))
        return bias("fc") if kind == "bilstm" else _End()
    if kind == "experts":
        for b, expert in enumerate(_experts_of(step).blocks):
            _finish(_follow(expert.steps, shape, (*key, "experts", b), _End(), facts), facts)
        return _End()
    if kind == "residual":
        return _End(_open(step.bodies[0], shape, (*key, "body"), facts))
    if kind == "repeat":
        _finish(_follow(step.bodies[0], shape, (*key, "shared"), _End(), facts), facts)
        return _End()
    if kind in ("add", "concat"):
        ends = [_open(body, shape, (*key, f"branch{i}"), facts) for i, body in enumerate(step.bodies)]
        if kind == "concat":
            for terms in ends:
                facts.close(list(terms))
            return _End(((((*key, "join"), "bias"), (WIDTH,)),))
        for (i, a), (j, b) in itertools.combinations(enumerate(step.bodies), 2):
            if a == b and (pairs := _same(a, shape, (*key, f"branch{i}"), (*key, f"branch{j}"))):
                facts.swaps.append(pairs)
        return _End(tuple(t for terms in ends for t in terms))
    return _End()


def _open(steps: Sequence[Step], shape: Shape, key: Key, facts: Facts) -> tuple[tuple[Id, Shape], ...]:
    """What is added last in a block whose result is added to something."""
    end = _follow(steps, shape, key, _End(), facts)
    facts.close(list(end.factors))
    return end.terms


def _same(steps: Sequence[Step], shape: Shape, a: Key, b: Key) -> tuple[tuple[Id, Id], ...]:
    """The parameters of two equal blocks, pair by pair."""
    return tuple(
        (((*a, *key), role), ((*b, *key), role)) for key, part in leaves(steps, shape) for role, _ in roles(part)
    )


# -------------------------------------------------------------------------------------------------------- both networks


@dataclass
class Pair:
    """The two networks of a program, and what is true of them.

    Attributes:
        torch, mindspore: the networks.
        inputs: for both, by position or by keyword.
        truth: PyTorch name -> MindSpore name (``Parameter.name``).
        turned: PyTorch names of matrices that the port keeps transposed.
        unexercised: PyTorch names of parameters that no output depends on.
        swaps: exchanges of PyTorch parameters that change no output, each as a table of names both ways.
        fault: where the port computes something else (the step's key), or None.
        wide: a copy of PyTorch's network in float64, once it is needed.
    """

    program: Program
    torch: Any
    mindspore: Any
    inputs: list[Array] | dict[str, Array]
    truth: dict[str, str]
    turned: frozenset[str]
    unexercised: frozenset[str]
    swaps: tuple[dict[str, str], ...]
    fault: Key | None = None
    wide: Any = None


Names = Literal["same", "renamed", "random"]
Order = Literal["same", "shuffled"]
FAULTS = ("gelu", "act", "eps")


@dataclass(frozen=True)
class Port:
    """How MindSpore's network differs from PyTorch's in its form.

    Attributes:
        names: the same words, other words for the same things, or words without a meaning.
        order: of definition.
        nesting: whether some layers are in a ``SequentialCell`` more, and some blocks are not a cell of their own.
        seed: of all that is random.
        fault: the step where it computes something else, with the fault's name.
    """

    names: Names = "random"
    order: Order = "shuffled"
    nesting: bool = True
    seed: int = 0
    fault: tuple[str, Key] | None = None


def fault_places(program: Program, fault: str) -> list[Key]:
    """The keys of the steps where a fault can be: ``gelu`` (tanh for erf), ``act`` (left out), ``eps`` (of a norm)."""

    def walk(steps: Sequence[Step], prefix: Key) -> Iterator[Key]:
        for i, step in enumerate(steps):
            if step.kind != "unused":
                if step.act and (fault == "act" or (fault, step.act) == ("gelu", "gelu")) and step.kind != "experts":
                    yield (*prefix, i, "act")
                for word, part in parts_of(step, program.shape).items():
                    key = (*prefix, i, word)
                    if isinstance(part, Layer) and fault == "eps" and part.kind.endswith("norm"):
                        yield key
                    blocks = part.blocks if isinstance(part, Many) else ()
                    for b, block in enumerate(blocks):
                        yield from walk(block.steps, (*key, b))
                    if isinstance(part, Inner):
                        yield from walk(part.steps, key)

    return list(walk(program.whole, ()))


def build(
    program: Program,
    names: Names = "random",
    order: Order = "shuffled",
    nesting: bool = True,
    fault: str | None = None,
    seed: int = 0,
) -> Pair:
    """The two networks of a program.

    Args:
        fault: one of :data:`FAULTS`, planted at one place of the port; where there is none for it,
            ``Pair.fault`` stays None.
        seed: of names, order, nesting and the place of the fault.
    """
    import random_mindspore
    import random_torch

    places = fault_places(program, fault) if fault else []
    place = places[seed % len(places)] if places else None
    port = Port(names, order, nesting, seed, (fault, place) if fault and place else None)
    torch = random_torch.network(program)
    mindspore = random_mindspore.network(program, port)
    named, ported = random_torch.names(torch), random_mindspore.names(mindspore)
    truth: dict[str, str] = {}
    turned = set()
    to: dict[Id, str] = {}
    for key, part in leaves(program.whole, program.shape):
        for word, other in roles(part):
            to[key, word] = name = named[key, word]
            truth[name] = ported[key, other]
            if isinstance(part, Direct) and part.turned:
                turned.add(name)
    facts = facts_of(program)
    swaps = tuple({to[x]: to[y] for a, b in swap for x, y in ((a, b), (b, a))} for swap in facts.swaps)
    given = program.inputs()
    return Pair(
        program,
        torch,
        mindspore,
        given if program.keywords else list(given.values()),
        truth,
        frozenset(turned),
        frozenset(to[i] for i in facts.unexercised),
        swaps,
        place,
    )


def weights(pair: Pair, seed: int = 0) -> dict[str, Array]:
    """Values for PyTorch's parameters with nothing at its default, and with both signs wherever that is possible."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, tensor in pair.torch.state_dict().items():
        shape = tuple(tensor.shape)
        if name not in pair.truth:
            continue
        if name.endswith("running_var"):
            out[name] = rng.uniform(0.5, 1.5, shape)
        elif len(shape) in (2, 4) and min(shape[:2]) > 1:
            out[name] = rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
        else:
            out[name] = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
    return {name: array.astype(np.float32) for name, array in out.items()}


def ported(pair: Pair, values: dict[str, Array]) -> dict[str, Array]:
    """The same values for MindSpore's parameters, by the truth."""
    shapes = {p.name: tuple(p.shape) for p in pair.mindspore.get_parameters()}
    out = {}
    for name, other in pair.truth.items():
        array = values[name].T if name in pair.turned else values[name]
        out[other] = np.ascontiguousarray(array).reshape(shapes[other])
    return out


def back(pair: Pair, values: dict[str, Array]) -> dict[str, Array]:
    """MindSpore's values for PyTorch's parameters, by the truth."""
    shapes = {name: tuple(t.shape) for name, t in pair.torch.state_dict().items()}
    out = {}
    for name, other in pair.truth.items():
        array = values[other].T if name in pair.turned else values[other].reshape(shapes[name])
        out[name] = np.ascontiguousarray(array)
    return out


def wide_outputs(pair: Pair, values: dict[str, Array], seed: int = 0) -> list[Array]:
    """What PyTorch's network gives in float64, one array for each of its outputs."""
    import random_torch

    if pair.wide is None:
        pair.wide = random_torch.wide(pair.torch)
    return random_torch.outputs(pair.wide, values, pair.program.inputs(seed))


def apart(a: list[Array], b: list[Array]) -> float:
    """The greatest difference of two lists of outputs, relative to their scale."""
    return max(float(np.abs(x - y).max() / max(1e-30, np.abs(x).max())) for x, y in zip(a, b, strict=True))


# ------------------------------------------------------------------------------------------------------------ judgement


def same_function(pair: Pair, mapping: Mapping) -> bool:
    """Whether the mapping, right or not, gives a port that computes the same for any weights.

    PyTorch's own network runs in float64, so that nothing but the mapping makes a difference.
    """
    for seed in (1, 2):
        values = weights(pair, seed)
        try:
            moved = ported(pair, values) | apply(mapping, values, framework="numpy")
        except AutomapError:
            return False
        if apart(wide_outputs(pair, values, seed), wide_outputs(pair, back(pair, moved), seed)) > 1e-7:
            return False
    return True


def wrong_entries(pair: Pair, mapping: Mapping) -> set[str]:
    """PyTorch names of entries that are not as the truth has them, nor as an equivalent of it.

    Exchanges that change no output are made as long as they bring the truth nearer to the mapping. Where something
    is wrong still, and yet the whole mapping gives the same function, only what no output depends on can be wrong.
    """
    chosen = {t: e.mindspore[0] for e in mapping.entries if len(e.torch) == len(e.mindspore) == 1 for t in e.torch}
    turned = {t for e in mapping.entries for t in e.torch if any(x.op == "transpose" for x in e.transform)}

    def wrong(truth: dict[str, str]) -> set[str]:
        return {t for t, m in chosen.items() if truth.get(t) != m or (t in turned) != (t in pair.turned)}

    truth = dict(pair.truth)
    found = wrong(truth)
    better = True
    while found and better:
        better = False
        for swap in pair.swaps:
            other = truth | {a: truth[b] for a, b in swap.items()}
            if len(wrong(other)) < len(found):
                truth, found, better = other, wrong(other), True
    odd = {t for e in mapping.entries for t in e.torch if len(e.torch) != 1 or len(e.mindspore) != 1}
    if found and not odd and same_function(pair, mapping):
        found &= pair.unexercised
    return found | odd


def complaints(pair: Pair, mapping: Mapping) -> list[str]:
    """Every promise that the mapping breaks, in words."""
    wrong = wrong_entries(pair, mapping)
    out = []
    for e in mapping.entries:
        is_wrong = any(t in wrong for t in e.torch)
        true = ", ".join(str(pair.truth.get(t)) for t in e.torch)
        proven = e.evidence.get("proven")
        if is_wrong and proven:
            out.append(f"wrong and proven: {e} (true: {true})")
        elif is_wrong and not e.review:
            out.append(f"wrong and not marked: {e} (true: {true})")
        elif proven and any(t in pair.unexercised for t in e.torch):
            out.append(f"no output depends on it, and yet proven: {e}")
    unmatched = {u.name: u for u in mapping.unmatched_torch}
    out += [f"no entry and not marked: {t}" for t in pair.truth if t in unmatched and not unmatched[t].review]
    return out


# ----------------------------------------------------------------------------------------------------------- strategies

ACTS = ("relu", "gelu", "silu", "leaky")
_BOTH = ("act", "scale", "offset", "position", "norm", "prelu", "again")
_SEQUENCE = (
    *("linear", "mlp", "rms", "functional", "borrowed", "lstm", "bilstm", "gru"),
    *("attention", "cross", "experts", "conv1d"),
)
_IMAGE = ("conv", "pointwise", "depthwise", "batchnorm", "functional_conv", "excite")
_NESTED = ("residual", "add", "concat", "stack", "repeat")
_REPEATABLE = {*_BOTH, *_SEQUENCE, *_IMAGE, *_NESTED} - {"again", "act"}


def _flat_steps(image: bool) -> st.SearchStrategy[Step]:
    acts, biases = st.sampled_from(ACTS), st.booleans()

    def one(kind: str) -> st.SearchStrategy[Step]:
        if kind in ("act", "mlp"):
            return st.builds(Step, st.just(kind), act=acts, bias=biases if kind == "mlp" else st.just(True))
        if kind == "experts":
            return st.builds(Step, st.just(kind), n=st.integers(2, 3), act=acts, bias=biases)
        if kind in ("functional", "again"):
            bias = biases if kind == "functional" else st.just(True)
            return st.builds(Step, st.just(kind), n=st.integers(0, 1), bias=bias)
        if kind in ("linear", "attention", "cross", "conv1d", "conv", "pointwise", "depthwise"):
            return st.builds(Step, st.just(kind), bias=biases)
        return st.just(Step(kind))

    return st.sampled_from((*(_IMAGE if image else _SEQUENCE), *_BOTH)).flatmap(one)


def _steps(image: bool, depth: int, most: int) -> st.SearchStrategy[tuple[Step, ...]]:
    step = _flat_steps(image)
    if depth:
        body = _steps(image, depth - 1, 3)
        bodies = st.one_of(
            st.lists(body, min_size=2, max_size=3).map(tuple), st.builds(lambda b, n: (b,) * n, body, st.integers(2, 3))
        )
        nested = st.one_of(
            st.builds(lambda b: Step("residual", (b,)), body),
            st.builds(lambda kind, n, b: Step(kind, (b,), n), st.sampled_from(["stack", "repeat"]), st.just(2), body),
            st.builds(lambda b: Step("stack", (b,), 3), body),
            st.builds(lambda kind, b: Step(kind, b), st.sampled_from(["add", "concat"]), bodies),
        )
        step = st.one_of(step, nested)
    return st.lists(step, min_size=1, max_size=most).map(tuple)


@st.composite
def programs(draw: Callable[..., Any], depth: int = 2, most: int = 5) -> Program:
    """Programs of up to ``most`` steps with blocks nested ``depth`` deep; no more than some hundred parameters."""
    domain = draw(st.sampled_from(["sequence", "image", "ids", "patches"]))
    steps = draw(_steps(domain == "image", depth, most).filter(lambda s: _size(s) <= 40))
    return Program(
        domain,
        steps,
        head=draw(st.sampled_from(["classify", "tied", ""] if domain == "ids" else ["classify", ""])),
        token=draw(st.booleans()) if domain != "image" else False,
        unused=draw(st.integers(0, 2)),
        outputs=draw(st.sampled_from(["one", "tuple", "dict"])),
        keywords=draw(st.booleans()),
        order=draw(st.integers(0, 3)),
    )


def _size(steps: Sequence[Step]) -> int:
    """How many layers and direct parameters the steps have."""
    return sum(1 for _ in leaves(steps, (LENGTH, WIDTH)))


def rng_of(*what: Any) -> random.Random:
    """Random numbers that depend on these values only."""
    return random.Random(repr(what))
