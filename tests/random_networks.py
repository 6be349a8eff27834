"""Random small networks in both frameworks with the same computation, and the true mapping known by construction.

A :class:`Program` is a small frozen value: it prints as the code that makes it again, and Hypothesis shrinks it. Its
steps keep the shape of what flows through them, so that they can follow each other in any order. :func:`build` makes
the two networks of it: PyTorch with natural names, MindSpore with other names, another order of definition and other
nesting (a ``SequentialCell`` more, a wrapper less), all drawn from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st
from random_steps import (
    BATCH,
    BOTH,
    IMAGE,
    LENGTH,
    SEQUENCE,
    SIDE,
    WIDTH,
    WORDS,
    Array,
    Direct,
    Id,
    Inner,
    Key,
    Layer,
    Many,
    Shape,
    Short,
    Step,
    leaves,
    parts_of,
    roles,
    uses_context,
)
from random_symmetries import facts_of

from automap.conversion import apply
from automap.errors import AutomapError
from automap.mapping import Mapping


@dataclass(frozen=True, repr=False)
class Program(Short):
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
        if apart(wide_outputs(pair, values, seed), wide_outputs(pair, back(pair, moved), seed)) > 1e-10:
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

    return st.sampled_from((*(IMAGE if image else SEQUENCE), *BOTH)).flatmap(one)


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
