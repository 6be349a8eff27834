"""The power of a run: which parameters it exercises, and which exchanges of two of them it would not notice."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from automap import comparison
from automap.dtypes import Array, cast, dtype_name, widen
from automap.errors import NotRunnableError
from automap.graph import Listing
from automap.running import Forward, Inputs
from automap.seeding import generator
from automap.tracing import distance
from automap.weights import some

if TYPE_CHECKING:
    from automap.torch_runner import Runner
    from automap.torch_tracing import Effect

#: A parameter counts as exercised if moving it by its scale moves the outputs by so many times what is allowed.
EXERCISED = 2.0
#: Runs to tell which of the parameters that no gradient reaches have an effect; the others are said to have none.
MOST_TRIED = 64
#: Random exchanges that show what a wrong mapping would do.
EXCHANGES = 5

#: What an output, of which place and values are given, may be off by.
Allowed = Callable[[str, Array], float]


@dataclass(frozen=True)
class Weight:
    """What matters for the outputs.

    Attributes:
        idle: parameters without an effect on them.
        alike: pairs of equally shaped parameters that can be exchanged without an effect on them.
    """

    idle: frozenset[str] = frozenset()
    alike: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Exchanges:
    """What random exchanges of two equally shaped parameters did.

    Attributes:
        tried: how many.
        least: the smallest movement of the outputs, relative to their scale, of those that were noticed.
        unnoticed: the pairs that moved no output by more than is allowed.
    """

    tried: int = 0
    least: float = 0.0
    unnoticed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Strength:
    """What a run would notice.

    Attributes:
        not_exercised: mapped parameters without an effect on its outputs.
        alike: pairs that can be exchanged without an effect.
        exchanges: what random ones of equally shaped parameters do.
    """

    not_exercised: tuple[str, ...] = ()
    alike: tuple[tuple[str, str], ...] = ()
    exchanges: Exchanges = Exchanges()

    def lines(self) -> tuple[str, ...]:
        """In words, one sentence each."""
        out = []
        noticed = self.exchanges.tried - len(self.exchanges.unnoticed)
        if noticed:
            out.append(
                f"power: {noticed} of {self.exchanges.tried} random exchanges of two equally shaped parameters move "
                f"the outputs by {self.exchanges.least:.2g} of their scale or more"
            )
        if self.not_exercised:
            out.append(f"not exercised, so not proven: {some(self.not_exercised)}")
        if self.alike:
            out.append(f"nothing tells these apart: {some([f'{a} and {b}' for a, b in self.alike])}")
        return tuple(out)


class Power:
    """Looks at one run of a PyTorch network; call it while the network holds the weights of that run.

    Args:
        runner: of the network.
        listing: of its parameters.
        inputs, outputs: of the run.
        forward: instead of the network's own.
        seed: of what is drawn.
    """

    def __init__(
        self, runner: Runner, listing: Listing, inputs: Inputs, outputs: Any, forward: Forward | None, seed: int
    ) -> None:
        self.runner, self.listing, self.seed = runner, listing, seed
        self.inputs, self.outputs, self.forward = inputs, outputs, forward

    def weight(self, allowed: Allowed, reached: Collection[str] | None = None) -> Weight:
        """What matters: by one gradient, and where that tells nothing, by trying.

        A parameter matters if moving it by its own scale moves the outputs beyond what is allowed. Two of one shape
        may be exchangeable where they have the same gradient (they are added) or the same product of gradient and
        value (they are multiplied): such pairs are exchanged to see.

        Args:
            allowed: what an output may be off by.
            reached: the parameters that the outputs depend on at all, where that is known.
        """
        from automap import torch_tracing

        pairs = comparison.pair(self.outputs, self.outputs).pairs
        bound = max((allowed(w, a) for w, a, _ in pairs if a.dtype.kind in "fc"), default=0.0)
        try:
            found, root = torch_tracing.effects(self.runner, self.inputs, self.forward, self.seed)
        except NotRunnableError:
            found, root = {}, 1.0
        every = list(self.runner.first_names())
        names = [n for n in every if self._is_float(n)]
        idle, unsure = {n for n in every if reached is not None and n not in reached}, []
        for name in names:
            effect = found.get(name)
            # No more than nothing is nothing, where the outputs are the same whatever the weights are.
            if name not in idle and (effect is None or effect.size <= EXERCISED * bound * root):
                unsure.append(name)
        idle |= self._without_effect(unsure, allowed)
        loud = [n for n in names if n not in idle and n in found]
        suspects = _suspects(loud, found, lambda n: self.listing.by_name[n].shape)
        alike = tuple((a, b) for a, b in suspects if not self._moved(self._exchanged(a, b), allowed)[0])
        return Weight(frozenset(idle), alike)

    def strength(self, allowed: Allowed, mapped: Collection[str]) -> Strength:
        """What this run would notice of the parameters that are ``mapped``."""
        weight = self.weight(allowed)
        exchanges = self.exchanges(allowed, [n for n in mapped if n not in weight.idle])
        alike = dict.fromkeys([*weight.alike, *exchanges.unnoticed])
        return Strength(
            tuple(n for n in self.runner.first_names() if n in weight.idle and n in mapped),
            tuple((a, b) for a, b in alike if a in mapped and b in mapped),
            exchanges,
        )

    def _without_effect(self, names: list[str], allowed: Allowed) -> set[str]:
        """Those that move no output if they are changed: tried all at once, then by halves where something moves."""
        idle: set[str] = set()
        groups, runs = [names] if names else [], 0
        while groups:
            group = groups.pop()
            runs += 1
            if runs > MOST_TRIED or not self._moved({name: self._other(name) for name in group}, allowed)[0]:
                idle.update(group)
            elif len(group) > 1:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        return idle

    def exchanges(self, allowed: Allowed, names: Collection[str], count: int = EXCHANGES) -> Exchanges:
        """Exchange random pairs of equally shaped parameters of these ``names``, one pair at a time."""
        groups: dict[Any, list[str]] = defaultdict(list)
        for name in self.runner.first_names():
            if name in names and self._is_float(name):
                groups[self.listing.by_name[name].shape].append(name)
        pairs = [pair for group in groups.values() for pair in itertools.combinations(group, 2)]
        rng = generator(self.seed, "exchanges")
        chosen = [pairs[i] for i in rng.permutation(len(pairs))[:count]]
        least, unnoticed = float("inf"), []
        for a, b in chosen:
            seen, size = self._moved(self._exchanged(a, b), allowed)
            if seen:
                least = min(least, size)
            else:
                unnoticed.append((a, b))
        return Exchanges(len(chosen), 0.0 if least == float("inf") else least, tuple(unnoticed))

    def _is_float(self, name: str) -> bool:
        dtype = self.listing.by_name[name].dtype or ""
        return "float" in dtype or "complex" in dtype

    def _other(self, name: str) -> Array:
        """Other values of the same scale for one parameter."""
        value = self.runner.value(name)
        wide = widen(value)
        rng = generator(self.seed, f"another {name}")
        if name.endswith("running_var"):
            other = wide * rng.uniform(0.5, 2.0, wide.shape)
        else:
            scale = float(np.sqrt(np.mean(np.square(np.abs(wide), dtype=np.float64)))) or 1.0
            other = wide + rng.standard_normal(wide.shape) * scale
        return cast(np.asarray(other), dtype_name(value))[0]

    def _exchanged(self, a: str, b: str) -> dict[str, Array]:
        return {a: self.runner.value(b).copy(), b: self.runner.value(a).copy()}

    def _moved(self, values: dict[str, Array], allowed: Allowed) -> tuple[bool, float]:
        """Whether an output moves by more than is allowed with other values, and how far relative to its scale."""
        with self.runner.holding(values):
            other = self.runner.run(self.inputs, self.forward)
        found = [
            comparison.compare(w, 0, a, b, allowed(w, a)) for w, a, b in comparison.pair(self.outputs, other).pairs
        ]
        return any(not c.passed for c in found), max((c.to_scale for c in found), default=0.0)


def _suspects(
    names: list[str], effects: Mapping[str, Effect], shape: Callable[[str], tuple[int, ...] | None]
) -> Iterator[tuple[str, str]]:
    """Pairs of equally shaped parameters that may be added to each other, or multiplied with each other."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        groups[shape(name)].append(name)
    for group in groups.values():
        for measure in ("slope", "product"):
            prints = {n: getattr(effects[n], measure) for n in group}
            ranked = sorted(group, key=lambda n: prints[n].stats[2])
            for a, b in itertools.pairwise(ranked):
                if distance(prints[a], prints[b]) < 1e-4:
                    yield a, b
