"""Training parity: both networks take the same steps, and their losses, weights and running statistics are compared.

The same batches, the same loss and the same optimizer in both, from the same weights by way of the mapping. What
rounding does to a training is measured: PyTorch takes the steps again with every parameter off by a few units in its
last place, and with this machine's kernel errors. Of each weight a sample of elements is kept from every step, so that
the memory does not grow with the network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from automap import comparison
from automap.comparison import TOLERANCE
from automap.descent import Rule
from automap.dtypes import Array, widen
from automap.gradients import EPS
from automap.relabeling import Key, Links
from automap.running import Forward, Inputs
from automap.seeding import generator
from automap.training_batches import Batches, Wish
from automap.training_beginning import Beginning
from automap.training_result import KINDS, LOSS, Difference, Kind, Training

#: At most so many elements of a weight are compared at every step.
SAMPLE = 2048

#: Two right trainings may differ by ten times what two right outputs may; see ``gradients``.
ROOM = 10.0
#: The disturbance under which noise is measured, in units of the last place, and how much larger it may be.
UNITS, SPREAD = 8.0, 3.0
#: How often noise is measured before a difference is called one.
DRAWS, MORE = 1, 3
#: Where rounding moves the loss by more than this part of it, agreement says little.
NOISY = 1e-2


class Session(Protocol):
    """A training under way.

    Attributes:
        optimized: the parameters that the optimizer has.
        rules: what it does to each of them, as far as that is known.
        rates: the learning rate of each at the last step, as far as that is known.
        memory: what PyTorch's optimizer had before the first step, by the rule's words and the parameters' names.
        done: how many steps it had made then.
    """

    optimized: frozenset[str]
    rules: Mapping[str, Rule]
    rates: Mapping[str, float]
    memory: Mapping[str, Mapping[str, Array]]
    done: int

    def step(self, inputs: Inputs, target: Any) -> tuple[float, Any]:
        """The loss before the step, and the outputs (arrays, nested)."""

    def gradients(self) -> dict[str, Array]:
        """Those of the last step, by name; of parameters without one, none."""


def with_scheduler(made: Any) -> tuple[Any, Any]:
    """An optimizer and its scheduler, of what a function gives: either alone, or both in a tuple."""
    if isinstance(made, tuple | list) and len(made) == 2:
        return made[0], made[1]
    return made, None


class Trainer(ABC):
    """Trains a network, which is as it was afterwards.

    Attributes:
        runner: of the network.
        loss: a name, a function of outputs and target, or a class that makes one.
        optimizer: a name, a function of the network, or a class of optimizers.
        lr: the learning rate.
        weight_decay: of an optimizer that is known by name.
        forward: instead of the network's own.
        every: after how many steps a scheduler makes one.
        beginning: the state that PyTorch's optimizer begins with, if it has any.
    """

    def __init__(
        self, runner: Any, loss: Any, optimizer: Any, lr: float | None = None, weight_decay: float | None = None,
        forward: Forward | None = None, every: int = 1, beginning: Beginning | None = None,
    ) -> None:  # fmt: skip
        self.runner, self.forward = runner, forward
        self.every, self.beginning = every, beginning
        self.loss = loss() if isinstance(loss, type) else loss
        self.optimizer, self.lr, self.weight_decay = optimizer, lr, weight_decay

    @abstractmethod
    def session(self, seed: int) -> AbstractContextManager[Session]:
        """A training from the weights that the runner holds, in training mode, with dropout off."""

    def notes(self) -> list[str]:
        """What there is to know of how it was trained."""
        return []

    @abstractmethod
    def kept(self) -> list[tuple[str, float]]:
        """Every dropout layer, and which part of a signal it keeps, by experiment."""


@dataclass
class Record:
    """What was seen of a training: a sample of every weight, gradient and statistic, step by step.

    Attributes:
        losses: before each step.
        weights: before the first step, and after each.
        gradients: of each step.
        statistics: before the first step, and after each.
        outputs: of the first step.
        optimized: the parameters that the optimizer has.
        rules: what PyTorch's does to each of them.
        rates: the learning rates of each step, by the parameters' names.
        memory: what PyTorch's optimizer had before the first step, by the rule's words.
        done: how many steps it had made then.
    """

    losses: list[float] = field(default_factory=list)
    weights: list[dict[Key, Array]] = field(default_factory=list)
    gradients: list[dict[Key, Array]] = field(default_factory=list)
    statistics: list[dict[Key, Array]] = field(default_factory=list)
    outputs: Any = None
    optimized: frozenset[str] = frozenset()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    rates: list[Mapping[str, float]] = field(default_factory=list)
    memory: dict[str, dict[Key, Array]] = field(default_factory=dict)
    done: int = 0

    def at(self, kind: Kind, step: int) -> dict[Key, Array]:
        """What was seen at a step, from 0: the loss and gradients of it, weights and statistics after it."""
        if kind == "loss":
            return {LOSS: np.array([self.losses[step]])}
        return getattr(self, f"{kind}s")[step + (kind != "gradient")]  # type: ignore[no-any-return]

    def moved(self, kind: Kind, step: int, key: Key) -> float:
        """How much there is of it that could differ: a loss or gradient itself, the way of a weight or statistic."""
        now = self.at(kind, step)[key]
        if kind in ("loss", "gradient"):
            return comparison.scale_of(now)
        return comparison.scale_of(now - getattr(self, f"{kind}s")[0][key])


@dataclass
class Course:
    """How both networks are trained; takes the steps as often as needed.

    Attributes:
        torch: trains PyTorch.
        mindspore: trains MindSpore.
        links: the weights.
        statistics: the running statistics.
        state: PyTorch's parameters and buffers at the start.
        made: what the mapping makes of them.
        batches: what they are trained on.
        disturbed: a context in which PyTorch rounds otherwise, by a seed.
        seed: of what is drawn.
    """

    torch: Trainer
    mindspore: Trainer
    links: Links
    statistics: Links
    state: Mapping[str, Array]
    made: Mapping[str, Array]
    batches: Batches
    disturbed: Callable[[int], AbstractContextManager[None]]
    seed: int = 0

    def from_mindspore(self, step: int) -> Record:
        """PyTorch's step (from 0) from the weights and statistics that MindSpore has before it."""
        with self.mindspore.runner.holding(self.made), self.mindspore.session(0) as session:
            for k in range(step):
                session.step(self.batches.inputs(k), self.batches.targets(k)[1])
            start: dict[str, Array] = {}
            for links in (self.links, self.statistics):
                values = {n: widen(self.mindspore.runner.value(n)).copy() for n in links.mindspore}
                for link in links.links:
                    start |= link.to_torch(values)
        return self.run("torch", 1, start=start, offset=step)

    def run(
        self,
        side: Literal["torch", "mindspore"],
        steps: int,
        *,
        seed: int = 0,
        noise: int | None = None,
        start: Mapping[str, Array] | None = None,
        offset: int = 0,
    ) -> Record:
        """Take the steps on one side.

        Args:
            side: which network.
            steps: how many.
            seed: of what is random in the network.
            noise: as another machine might have taken them, by this seed.
            start: other values than the course's own to start from.
            offset: the number of the first batch.
        """
        trainer: Trainer = getattr(self, side)
        ours = side == "torch"
        record = Record()

        def keep(into: list[dict[Key, Array]], links: Links, values: Mapping[str, Array]) -> None:
            pieces = links.torch_pieces(values) if ours else links.mindspore_pieces(values)
            into.append({key: sampled(array, self.seed) for key, array in pieces.items()})

        def values(links: Links) -> dict[str, Array]:
            return {n: widen(trainer.runner.value(n)) for n in (links.torch if ours else links.mindspore)}

        def see() -> None:
            keep(record.weights, self.links, values(self.links))
            keep(record.statistics, self.statistics, values(self.statistics))

        state = self.state if ours else self.made
        with trainer.runner.holding(state), _maybe(self.disturbed, noise), trainer.session(seed) as session:
            record.optimized, record.rules, record.done = session.optimized, session.rules, session.done
            for word, held in session.memory.items():
                rows: list[dict[Key, Array]] = []
                keep(rows, self.links, {n: held.get(n, np.zeros_like(a)) for n, a in values(self.links).items()})
                record.memory[word] = rows[0]
            trainer.runner.put(start or {})
            see()
            for step in range(offset, offset + steps):
                loss, outputs = session.step(self.batches.inputs(step), self.batches.targets(step)[0 if ours else 1])
                record.losses.append(loss)
                record.rates.append(dict(session.rates))
                if step == offset:
                    record.outputs = outputs
                found = session.gradients()
                # Weights that the optimizer does not have, or that the loss does not depend on, have none.
                keep(
                    record.gradients,
                    self.links,
                    {n: found.get(n, np.zeros(np.shape(trainer.runner.value(n)), np.float32)) for n in
                     (self.links.torch if ours else self.links.mindspore)},
                )  # fmt: skip
                see()
        return record


class _maybe:
    """A disturbance, or none."""

    def __init__(self, disturbed: Callable[[int], AbstractContextManager[None]], noise: int | None) -> None:
        self.inner = None if noise is None else disturbed(noise)

    def __enter__(self) -> None:
        if self.inner is not None:
            self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*error)


def sampled(array: Array, seed: int) -> Array:
    """At most ``SAMPLE`` elements: the same of every array of a size."""
    flat = np.array(array, np.float32 if array.dtype != np.float64 else np.float64).reshape(-1)
    if flat.size <= SAMPLE:
        return flat
    return flat[np.sort(generator(seed, f"sample of {flat.size}").choice(flat.size, SAMPLE, replace=False))]


@dataclass
class Noise:
    """How far rounding was seen to move everything; what moved once may move as far at every later step."""

    exact: Record
    found: dict[tuple[Kind, Key], list[float]] = field(default_factory=dict)

    def add(self, other: Record) -> None:
        for kind in KINDS:
            for step in range(len(other.losses)):
                for key, array in other.at(kind, step).items():
                    with np.errstate(invalid="ignore"):
                        moved = comparison.scale_of(array - self.exact.at(kind, step)[key])
                    so_far = self.found.setdefault((kind, key), [0.0] * len(self.exact.losses))
                    for later in range(step, len(so_far)):
                        so_far[later] = max(so_far[later], moved)

    def of(self, kind: Kind, step: int, key: Key) -> float:
        row = self.found.get((kind, key))
        return 0.0 if row is None else row[step]


def differences(
    ours: Record, theirs: Record, noise: Noise, dtypes: Collection[str], rtol: float | None = None
) -> Iterator[list[Difference]]:
    """What differs at each step and kind, in the order of a training; nothing where all agrees."""
    share = ROOM * max(TOLERANCE.get(d, 0.0) for d in dtypes) if rtol is None else rtol
    eps = max(EPS.get(d, 0.0) for d in dtypes)
    for step in range(min(len(ours.losses), len(theirs.losses))):
        for kind in KINDS:
            made, ones = [], ours.at(kind, step)
            # Beside no gradient, there may still be the rounding of the greatest one.
            floor = (
                max(map(comparison.scale_of, ones.values()), default=0.0) * ROOM * eps if kind == "gradient" else 0.0
            )
            for key, a in ones.items():
                b = theirs.at(kind, step)[key]
                with np.errstate(invalid="ignore", over="ignore"):
                    distance = np.abs(a.astype(np.float64) - b)
                absolute = math.inf if np.isnan(distance).any() else float(distance.max(initial=0.0))
                scale = ours.moved(kind, step, key)
                rounding = UNITS * eps * comparison.scale_of(a) if kind in ("statistic", "weight") else floor
                allowed = max(share * scale, SPREAD * noise.of(kind, step, key), rounding)
                if absolute > allowed:
                    made.append(Difference(step + 1, kind, key, absolute, scale, allowed))
            if made:
                yield sorted(made, key=lambda d: -d.gravity)


def losses_allowed(ours: Record, noise: Noise, dtypes: Collection[str], rtol: float | None = None) -> list[float]:
    """The difference of losses allowed at each step."""
    share = ROOM * max(TOLERANCE.get(d, 0.0) for d in dtypes) if rtol is None else rtol
    return [max(share * abs(x), SPREAD * noise.of("loss", k, LOSS)) for k, x in enumerate(ours.losses)]


def examine(course: Course, wish: Wish, dtypes: Collection[str], rtol: float | None = None) -> Training:
    """Train both networks, compare, and look for the cause of a difference.

    Raises:
        NotRunnableError: the training of one of the networks cannot run here.
    """
    from automap import training_causes as causes
    from automap import training_schedules as schedules

    ours = course.run("torch", wish.steps)
    theirs = course.run("mindspore", wish.steps)
    notes = [*course.torch.notes(), *course.mindspore.notes()]
    found = causes.of_dropout(course, notes)
    random = causes.randomness(course, ours, theirs)
    noise = Noise(ours)
    for k in range(DRAWS):
        noise.add(course.run("torch", wish.steps, noise=course.seed + 1 + k))
    first: list[Difference] = []
    cut: int | None = None
    drawn, rounding = 0, set[int]()
    while not random:
        found_so_far = differences(ours, theirs, noise, dtypes, rtol)
        first = next((ds for ds in found_so_far if ds[0].kind != "weight" or ds[0].step not in rounding), [])
        if not first:
            break
        if first[0].step > drawn:
            drawn = wish.steps if drawn else first[0].step
            for k in range(MORE):
                noise.add(course.run("torch", drawn, noise=course.seed + 100 + k))
        elif not causes.amplified(course, ours, theirs, first, dtypes):
            break
        elif first[0].kind == "weight":
            # What its rule makes of the gradients is what the optimizer did: rounding alone, and the losses go on.
            rounding.add(first[0].step)
        else:
            cut, first = first[0].step - 1, []
            break
    allowed = losses_allowed(ours, noise, dtypes, rtol)
    # What an element type allows in itself is no noise.
    bound = max(NOISY, 1.01 * ROOM * max(TOLERANCE.get(d, 0.0) for d in dtypes), rtol or 0.0)
    telling = next((k for k, (x, a) in enumerate(zip(ours.losses, allowed, strict=True)) if a > bound * abs(x)), None)
    telling = min(len(allowed) if telling is None else telling, len(allowed) if cut is None else cut)
    made = Training(
        wish.steps, course.batches.words, wish.words, tuple(ours.losses), tuple(theirs.losses), tuple(allowed), telling,
        len(ours.weights[0]) + len(ours.statistics[0]), () if random else tuple(first), tuple(found),
        _greatest(ours, theirs, telling), tuple(notes), nothing=random or _nothing(ours, telling),
    )  # fmt: skip
    if first and not random:
        explained = causes.explain(course, ours, theirs, first)
        made = replace(
            made, causes=(*explained.causes, *found), mapping_is_wrong=explained.mapping_is_wrong, nothing="",
            notes=(*made.notes, *explained.notes),
        )  # fmt: skip
    return replace(made, notes=(*made.notes, *schedules.of_schedules(ours, theirs, made)))


def _greatest(ours: Record, theirs: Record, telling: int) -> float:
    pairs = zip(ours.losses[: telling or None], theirs.losses[: telling or None], strict=True)
    found = [abs(a - b) / abs(a) if a else abs(b) for a, b in pairs]
    return math.inf if any(map(math.isnan, found)) else max(found, default=0.0)


def _nothing(ours: Record, telling: int) -> str:
    if not all(map(math.isfinite, ours.losses)):
        return "PyTorch's loss is not finite: take a smaller learning rate"
    if not any(ours.moved("weight", len(ours.losses) - 1, key) for key in ours.weights[0]):
        return "no weight moves in PyTorch"
    if telling < min(2, len(ours.losses)):
        return "rounding alone moves the loss too far: take a smaller learning rate, or trained weights (--weights)"
    return ""
