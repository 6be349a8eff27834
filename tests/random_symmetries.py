"""What the computation of a random network does not tell: parameters without an effect, and interchangeable ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from random_steps import WIDTH, Direct, Id, Key, Shape, Step, experts_of, leaves, parts_of, reused, roles

if TYPE_CHECKING:
    from random_networks import Program


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
        for b, expert in enumerate(experts_of(step).blocks):
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
