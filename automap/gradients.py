"""Gradient parity: one loss in both networks, and the gradient of every mapped parameter compared.

The loss is a sum of the outputs with seeded weights, so that every output counts and none cancels another. Its gradient
by each parameter is carried from PyTorch to MindSpore as the mapping carries the parameter itself, which is right as
long as the mapping only puts elements in other places. What it does otherwise is left out, with a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from automap import comparison
from automap.comparison import TOLERANCE
from automap.dtypes import Array
from automap.errors import AutomapError
from automap.relabeling import Arrays, Key, Links
from automap.running import Forward, Inputs, Loss, Module, Runner, Visit
from automap.seeding import generator

#: Two right backward passes may differ by ten times what two right outputs may, relative to the gradient: a gradient
#: goes through the network twice, and is a sum over everything that a parameter touches, whose parts partly cancel.
_ROOM = 10.0

#: The noise of a gradient is measured with parameters that are off by so many units in the last place. Where an
#: activation has a kink, rounding moves some of what is near it to the other side, and the gradient jumps; a stronger
#: disturbance finds such jumps in fewer runs.
_UNITS = 8.0

#: How often the noise is measured for each input, and how often more before a difference is called one.
_DRAWS, _MORE = 2, 6

#: The measured noise is a sample; the greatest difference may be a few times larger.
_SPREAD_FACTOR = 3.0

#: Each differing gradient is looked for among the others, to find swapped ones, if there are no more than these.
_LOOKED_FOR = 400

#: The distance from 1 to the next number, by element type.
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

State = Literal["agrees", "differs", "not exercised"]


@dataclass(frozen=True)
class GradientComparison:
    """The gradient by one parameter in both networks, from the run where it is the furthest off.

    Attributes:
        torch: its names in PyTorch; several where they are one parameter in MindSpore, or the other way round.
        mindspore: its names in MindSpore.
        state: whether the gradients agree or differ; *not exercised* where there is none in either network, or nothing
            but rounding: then nothing is known.
        words: one sentence on it.
        run: which of the runs, from 0.
        shape: of what is compared.
        scale: the greatest absolute value of PyTorch's gradient.
        absolute: the greatest absolute difference.
        to_scale: ``absolute`` relative to ``scale``.
        noise: what rounding alone was seen to do to PyTorch's gradient, absolute.
        allowed: what was allowed of ``absolute``.
        same_as: MindSpore's gradient is that of this other PyTorch parameter (or of this one, transposed), or ``""``.
    """

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    state: State
    words: str
    run: int
    shape: tuple[int, ...]
    scale: float
    absolute: float
    to_scale: float
    noise: float
    allowed: float
    same_as: str = ""

    @property
    def name(self) -> str:
        """Both names, as a mapping prints them."""
        return _name((self.torch, self.mindspore))


@dataclass(frozen=True)
class Gradients:
    """What came of comparing the gradients.

    Attributes:
        comparisons: one for each parameter, in the order of the mapping.
        place: where in the MindSpore network the backward goes wrong, in a sentence, as far as the gradients tell.
        left_out: parameters that were not compared, each with the reason.
        notes: what else there is to know, a sentence each.
    """

    comparisons: tuple[GradientComparison, ...]
    place: str = ""
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, state: State) -> tuple[GradientComparison, ...]:
        """Those that agree, differ, or are not exercised."""
        return tuple(c for c in self.comparisons if c.state == state)

    @property
    def passed(self) -> bool:
        """Whether none differs, and at least one is known to agree."""
        return not self.of("differs") and bool(self.of("agrees"))

    @property
    def greatest(self) -> float | None:
        """The greatest difference relative to the gradient's scale, of those that are exercised."""
        return max((c.to_scale for c in self.comparisons if c.state != "not exercised"), default=None)

    @property
    def mapping_is_wrong(self) -> bool:
        """Whether every difference is one parameter's gradient at the place of another."""
        return bool(differing := self.of("differs")) and all(c.same_as for c in differing)

    @property
    def words(self) -> str:
        """A sentence without its full stop."""
        differing, agreeing, idle = self.of("differs"), self.of("agrees"), self.of("not exercised")
        silent = f"; {len(idle)} not exercised: {_some([c.name for c in idle])}" if idle else ""
        if differing:
            worst = max(differing, key=lambda c: (c.to_scale, c.absolute))
            many = len(differing) + len(agreeing)
            blame = ". The mapping is wrong there" if self.mapping_is_wrong else ""
            place = f". {self.place}" if self.place else ""
            return f"{len(differing)} of {many} gradient(s) differ, most {worst.words}{place}{blame}{silent}"
        if not agreeing:
            reason = "no output depends on a mapped parameter" if idle else "PyTorch trains no mapped parameter"
            return f"the gradients prove nothing: {reason}"
        return f"{len(agreeing)} gradient(s) agree: off by at most {self.greatest:.2g} of their scale{silent}"


@dataclass
class Point:
    """Both networks at one point of the space of their parameters.

    Attributes:
        torch: runs PyTorch.
        mindspore: runs MindSpore.
        links: the trained part of the mapping.
        state: PyTorch's parameters and buffers.
        made: what the mapping makes of them.
        kernel_noise: how far this machine's kernels are off; see the MindSpore runner.
        seed: of everything that is drawn.
        torch_forward: in place of PyTorch's own forward.
        ms_forward: in place of MindSpore's.
    """

    torch: Any
    mindspore: Runner
    links: Links
    state: Arrays
    made: Arrays
    kernel_noise: Callable[[], dict[str, Array]]
    seed: int = 0
    torch_forward: Forward | None = None
    ms_forward: Forward | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """One forward of both networks: the inputs, and what each made of them."""

    inputs: Inputs
    torch: Any
    mindspore: Any

    def losses(self, seed: int, number: int, bend: float = 0.0) -> tuple[Loss, Loss] | None:
        """The same loss for PyTorch and for MindSpore, or None where no output has floating-point numbers in both."""
        weights: dict[int, Array] = {}
        for where, a, b in comparison.pair(self.torch, self.mindspore).pairs:
            if a.shape == b.shape and a.size and a.dtype.kind == b.dtype.kind == "f":
                drawn = generator(seed, f"loss weights of {where} in run {number}").standard_normal(a.shape)
                weights[id(a)] = weights[id(b)] = (drawn / math.sqrt(a.size)).astype(np.float32)
        if not weights:
            return None
        return Loss(_weights(self.torch, weights), bend), Loss(_weights(self.mindspore, weights), bend)


def compare_gradients(point: Point, cases: Sequence[Case], located: bool = True) -> Gradients:
    """Compare the gradients of both networks by every parameter of the mapping that PyTorch trains.

    What is allowed is the greater of a share of the gradient's own scale, by the element type, and of what rounding
    does to this gradient in this network: PyTorch computes it again with every parameter off by a few units in its
    last place, and with this machine's kernel errors. Before a gradient is said to differ, the noise is measured
    several times more.

    Args:
        point: both networks.
        cases: on which inputs.
        located: whether to say where the backward goes wrong, which makes sense where the outputs agree.

    Raises:
        NotRunnableError: the backward of one of the networks cannot run here.
    """
    links = point.links
    found: dict[Key, GradientComparison] = {}
    nothing = True
    for number, case in enumerate(cases):
        losses = case.losses(point.seed, number)
        if losses is None or not links.links:
            continue
        nothing = False
        for now in _one_run(point, case.inputs, number, *losses):
            key = (now.torch, now.mindspore)
            found[key] = now if key not in found else max(found[key], now, key=_gravity)
    notes = []
    if nothing and links.links:
        notes.append("no output has floating-point numbers in both networks: there is no loss to differentiate")
    if links.frozen:
        notes.append(f"{len(links.frozen)} parameter(s) are frozen in MindSpore only: {_some(links.frozen)}")
    for name, several in links.shared().items():
        notes.append(f"{name} is one parameter in PyTorch, in MindSpore {', '.join(several)}: training will part them")
    comparisons = tuple(found.values())
    made = Gradients(comparisons, left_out=links.left_out, notes=tuple(notes))
    if located and made.of("differs") and not made.mapping_is_wrong:
        made = replace(made, place=_place(point, cases[0].inputs, comparisons))
    return made


def _one_run(point: Point, inputs: Inputs, number: int, loss: Loss, ms_loss: Loss) -> list[GradientComparison]:
    links = point.links
    with point.torch.holding(point.state):
        exact = point.torch.gradients(inputs, loss, links.torch, point.torch_forward)
        spread = _Spread(point, inputs, loss, number, links.torch_pieces(exact))
        spread.measure(_DRAWS)
    with point.mindspore.holding(point.made):
        answer = point.mindspore.gradients(inputs, ms_loss, links.mindspore, point.ms_forward)
    ours, theirs = links.torch_pieces(exact), links.mindspore_pieces(answer)
    dtypes = (point.torch.dtype, point.mindspore.dtype)

    def judged() -> list[GradientComparison]:
        return _judged(
            ours, theirs, spread.found, number, _ROOM * max(TOLERANCE[d] for d in dtypes), max(EPS[d] for d in dtypes)
        )

    made = judged()
    if any(c.state == "differs" for c in made):
        with point.torch.holding(point.state):
            spread.measure(_MORE)
        made = judged()
    return _recognised(made, ours, theirs)


class _Spread:
    """How far rounding moves each gradient, as far as it was measured."""

    def __init__(self, point: Point, inputs: Inputs, loss: Loss, number: int, exact: dict[Key, Array]) -> None:
        self.point, self.inputs, self.loss, self.exact = point, inputs, loss, exact
        self.seed = point.seed + 1000 * number
        self.found = dict.fromkeys(exact, 0.0)

    def measure(self, times: int) -> None:
        point, links = self.point, self.point.links
        for _ in range(times):
            self.seed += 1
            try:
                noisy = point.torch.gradients_with_noise(
                    self.inputs,
                    self.loss,
                    links.torch,
                    self.seed,
                    point.kernel_noise(),
                    point.torch_forward,
                    units=_UNITS,
                )
            except AutomapError:
                return  # a network that cannot be watched (a compiled one): the table stands
            for key, array in links.torch_pieces(noisy).items():
                with np.errstate(invalid="ignore"):
                    moved = comparison.scale_of(array - self.exact[key])
                self.found[key] = max(self.found[key], moved)


def _judged(
    ours: dict[Key, Array], theirs: dict[Key, Array], spread: Mapping[Key, float], run: int, share: float, eps: float
) -> list[GradientComparison]:
    """Each pair of gradients judged; ``share`` of its own scale is allowed where rounding does less."""
    greatest = max(map(comparison.scale_of, ours.values()), default=0.0)
    out = []
    for key, a in ours.items():
        b = theirs[key]
        scale, noise = comparison.scale_of(a), _SPREAD_FACTOR * spread[key]
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(a.astype(np.float64) - b)
        absolute = math.inf if np.isnan(distance).any() else float(distance.max(initial=0.0))
        silent = scale <= noise  # nothing, or nothing but rounding (a bias before a softmax, say)
        # Beside nothing, a network may still have the rounding of its own greatest gradient.
        allowed = max(noise, _ROOM * eps * greatest) if silent else max(noise, share * scale)
        to_scale = absolute / scale if scale else (0.0 if absolute == 0 else math.inf)
        state: State = "differs" if absolute > allowed else "not exercised" if silent else "agrees"
        if math.isinf(absolute):
            words = f"by {_name(key)}: it is not a number everywhere"
        elif not scale and absolute:
            words = f"by {_name(key)}: none in PyTorch, {absolute:.2g} at most in MindSpore"
        elif not silent and not b.any():
            words = f"by {_name(key)}: none in MindSpore, {scale:.2g} at most in PyTorch"
        elif silent:
            words = f"by {_name(key)}: {scale:.2g} at most in PyTorch, off by {absolute:.2g}; allowed {allowed:.2g}"
        else:
            words = f"by {_name(key)}: off by {to_scale:.2g} of its scale; allowed {allowed / scale:.2g}"
        out.append(
            GradientComparison(*key, state, words, run, a.shape, scale, absolute, to_scale, spread[key], allowed)
        )
    return out


def _recognised(
    made: list[GradientComparison], ours: dict[Key, Array], theirs: dict[Key, Array]
) -> list[GradientComparison]:
    """Differing gradients that are another's, or their own transposed: this is what a wrong entry looks like.

    It shows where the wrong entry leaves the outputs as they are: two parameters of equal values swapped, such as the
    norms of a network that is not yet trained, or a symmetric matrix transposed.
    """
    differing = [c for c in made if c.state == "differs"]
    if len(differing) > _LOOKED_FOR:
        return made

    def same_as(c: GradientComparison) -> str:
        b = theirs[c.torch, c.mindspore]
        if b.ndim == 2 and b.shape[0] == b.shape[1] and _near(ours[c.torch, c.mindspore].T, b, c.allowed):
            return f"{', '.join(c.torch)} transposed"
        others = (o for o in differing if o is not c and o.shape == c.shape)
        found = (o for o in others if _near(ours[o.torch, o.mindspore], b, max(o.allowed, c.allowed)))
        return next((", ".join(o.torch) for o in found), "")

    named = {id(c): same_as(c) for c in differing}
    return [
        replace(c, same_as=other, words=f"{c.words}; it is that of {other}") if (other := named.get(id(c), "")) else c
        for c in made
    ]


def _place(point: Point, inputs: Inputs, comparisons: Sequence[GradientComparison]) -> str:
    """Between which cells the backward goes wrong: gradients before the fault differ, those after it agree."""
    if not any(c.scale for c in comparisons):
        return "PyTorch's outputs depend on no parameter by a gradient (no_grad, or detached)"
    calls: list[str] = []
    first: dict[str, int] = {}

    def watch(visit: Visit, proceed: Callable[..., Any]) -> Any:
        for _, name in visit.module.own:
            first.setdefault(name, len(calls))
        calls.append(visit.module.path)
        return proceed(*visit.args, **visit.kwargs)

    try:
        with point.mindspore.holding(point.made):
            point.mindspore.run(inputs, point.ms_forward, watch=watch)
    except AutomapError:
        return ""

    def places(state: State) -> set[int]:
        return {first[name] for c in comparisons if c.state == state for name in c.mindspore if name in first}

    wrong, right = places("differs"), places("agrees")
    modules = point.mindspore.modules
    after = min((k for k in right if k > max(wrong, default=0)), default=None)
    if not wrong:
        return ""
    last = max(wrong)
    if len(wrong) == 1 and any(k < last for k in right):
        return f"Only in {_called(modules[calls[last]])} it goes wrong: the gradients before and after it agree"
    inner = {path.rpartition(".")[0] for path in calls}  # a container is no place
    until = len(calls) if after is None else after + 1
    between = [_called(modules[path]) for path in dict.fromkeys(calls[last:until]) if path not in inner]
    bound = "the last" if after is None else f"{calls[last]} and agree from {calls[after]} on"
    return f"They differ up to {bound}: look at {_some(between, 5)}"


def _called(module: Module) -> str:
    return f"{module.path or 'the network'} ({module.kind})"


def _gravity(c: GradientComparison) -> tuple[int, float]:
    rank = {"not exercised": 0, "agrees": 1, "differs": 2}[c.state]
    return rank, c.absolute / c.allowed if c.allowed else c.absolute


def _near(a: Array, b: Array, allowed: float) -> bool:
    return a.shape == b.shape and bool((np.abs(a.astype(np.float64) - b) <= allowed).all())


def _weights(outputs: Any, weights: Mapping[int, Array]) -> Any:
    """Outputs of a runner with each array replaced by its weights, and everything else by None."""
    if isinstance(outputs, Mapping):
        return {key: _weights(value, weights) for key, value in outputs.items()}
    if isinstance(outputs, tuple):
        return tuple(_weights(value, weights) for value in outputs)
    return weights.get(id(outputs))


def _name(key: Key) -> str:
    torch, mindspore = (", ".join(names) for names in key)
    return torch if torch == mindspore else f"{torch} -> {mindspore}"


def _some(names: Sequence[str], shown: int = 3) -> str:
    """The first names of many."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
