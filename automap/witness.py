"""What PyTorch's side testifies: weights, inputs, outputs and traces of runs, and what matters for the outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from automap import comparison
from automap.activations import Activations, Kept
from automap.candidates import LOOSE
from automap.comparison import SPREAD, TOLERANCE, Comparison
from automap.dtypes import Array
from automap.errors import AutomapError
from automap.graph import Listing
from automap.mapping import Mapping as ParameterMapping
from automap.outline import Step, outlined
from automap.power import Allowed, Power, Weight
from automap.probing import Probe, guess_inputs
from automap.running import Forward, Inputs, Visit
from automap.running import Runner as AnyRunner
from automap.seeding import seeded_weights
from automap.tracing import Trace, apart

if TYPE_CHECKING:
    from automap.consultation import Opinion
    from automap.torch_runner import Runner

#: Fingerprints of equal values in both frameworks may differ by this much, whatever rounding does to the network.
LEAST_TOLERANCE = 5e-5
#: Runs of one proof, each under a seed of its own.
RUNS = 2

#: PyTorch's own inputs and outputs of a call of the trace.
Feed = Callable[[int], tuple[list[Array], list[Array]]]


@dataclass(frozen=True)
class Testimony:
    """One run of PyTorch.

    Attributes:
        inputs: what it was run on.
        outputs: what it gave.
        value: the weights that it ran with, by name; the memory may be the network's own.
    """

    inputs: Inputs
    outputs: Any
    value: Callable[[str], Array]


@dataclass(frozen=True)
class Account:
    """How the first run went.

    Attributes:
        trace: what the modules saw and gave.
        tolerance: for each call of the trace, how far apart fingerprints may be that are the same.
        spread: how far rounding, and the error of this machine's kernels, move each output.
    """

    trace: Trace
    tolerance: tuple[float, ...]
    spread: dict[str, float]


@dataclass(frozen=True)
class Port:
    """The MindSpore side of a run whose outputs differ.

    Attributes:
        runner: of the network.
        mapping: that its weights come from.
        made: these weights.
        forward: instead of the network's own.
        comparisons: of the outputs.
        spread: how far rounding moves each output.
    """

    runner: AnyRunner
    mapping: ParameterMapping
    made: Mapping[str, Array]
    forward: Forward | None
    comparisons: Sequence[Comparison]
    spread: Mapping[str, float]


class Witness(Protocol):
    """PyTorch's side of a proof, live or recorded.

    Attributes:
        listing: of the network.
        dtype: the coarsest element type of its parameters.
        seeds: of the runs.
        described: the inputs in words.
    """

    listing: Listing
    dtype: str
    seeds: tuple[int, ...]
    described: tuple[str, ...]

    def testimony(self, run: int) -> AbstractContextManager[Testimony]:
        """The run with the seed at this position; the first one comes first, since it is the one that is traced."""

    def account(self) -> Account:
        """What is known about the first run; inside its testimony."""

    def spread(self, testimony: Testimony) -> dict[str, float]:
        """How far rounding, and the error of kernels, move each output of this run; inside its testimony."""

    def remarks(self) -> tuple[str, ...]:
        """What there is to know of how the runs were computed."""

    def feed(self, activations: Activations) -> Feed | None:
        """What every module saw and gave in the first run, or None where it is not to be had; inside its testimony."""

    def outline(self) -> tuple[Step, ...]:
        """The first run in outline, empty where there is none; inside the testimony of any run."""

    def weight(self, testimony: Testimony, allowed: Allowed) -> Weight:
        """What matters for the outputs of the last run; inside its testimony."""

    def examine(self, testimony: Testimony, port: Port) -> Opinion | None:
        """Why a port differs, or None where PyTorch cannot be run for that; inside the run's testimony."""


def guesses(listing: Listing, runner: Runner, forward: Forward | None) -> Iterator[Probe]:
    """Inputs that a PyTorch network may take, the likeliest first."""
    from automap.validation import demanded

    # A forward of the user's takes the model, too.
    wanted = demanded(runner.model.forward if forward is None else forward) - (forward is not None)
    for guess in guess_inputs(listing, wanted):
        yield Probe(guess.specs)


class Live:
    """A PyTorch network that can run here.

    Args:
        runner: of the network.
        listing: taken before any run.
        probe: the inputs.
        seed: of the first run; the next number is that of the second one.
        weights: tensors by name instead of seeded ones.
        forward: instead of the network's own.
        kernel_noise: see :meth:`automap.torch_runner.Runner.run_with_noise`.
        coarsest: element types of the other network, which fingerprints have to bear with.
    """

    def __init__(
        self,
        runner: Runner,
        listing: Listing,
        probe: Probe,
        seed: int,
        weights: Mapping[str, Array] | None,
        forward: Forward | None,
        kernel_noise: Callable[[], dict[str, Array]],
        coarsest: Sequence[str],
    ) -> None:
        self.runner, self.listing, self.probe = runner, listing, probe
        self.seeds = tuple(seed + k for k in range(RUNS))
        self.dtype, self.described = runner.dtype, probe.describe()
        self._weights, self._forward, self._kernel_noise = weights, forward, kernel_noise
        self._coarsest = tuple(coarsest)
        self._inputs: Inputs = []
        self._account: Account | None = None

    @contextmanager
    def testimony(self, run: int) -> Iterator[Testimony]:
        from automap import torch_tracing

        seed = self.seeds[run]
        inputs = self.probe.draw(seed, run)
        seeded = self._weights is None
        with self.runner.holding(
            seeded_weights(self.listing, seed) if self._weights is None else self._weights, lend=seeded
        ):
            way = self.runner.settle if self._weights is None else self.runner.run
            if self._account is None:
                outputs, trace = torch_tracing.trace(self.runner, inputs, self._forward, way)
                self._inputs = inputs
                self._account = self._noise(inputs, outputs, trace)
            else:
                outputs = way(inputs, self._forward)
            yield Testimony(inputs, outputs, self.runner.value)

    def account(self) -> Account:
        assert self._account is not None, "the first testimony comes first"
        return self._account

    def _noise(self, inputs: Inputs, outputs: Any, trace: Trace) -> Account:
        """How far rounding and the error of kernels move what each module sees, and each output."""
        from automap import torch_tracing

        count = len(trace.calls)
        try:
            noisy = functools.partial(self._run_with_noise, self.seeds[0])
            moved, other = torch_tracing.trace(self.runner, inputs, self._forward, noisy)
        except AutomapError:  # a network that cannot be watched so (a compiled one): the table stands
            moved = other = None
        # What its forward computes in is known only now that the network has run.
        self.dtype = self.runner.dtype
        least = max(LEAST_TOLERANCE, *(5 * TOLERANCE.get(d, 0.0) for d in (self.dtype, *self._coarsest)))
        if other is None:
            return Account(trace, (10 * least,) * count, {})
        tolerance = [least] * count
        if [c.path for c in trace.calls] == [c.path for c in other.calls]:
            for k, (a, b) in enumerate(zip(trace.calls, other.calls, strict=True)):
                moves = [d for d in (apart(a.inputs, b.inputs), apart(a.outputs, b.outputs)) if d < math.inf]
                tolerance[k] = min(max([least, *(SPREAD * d for d in moves)]), max(least, LOOSE / 5))
        return Account(trace, tuple(tolerance), comparison.moved(outputs, moved))

    def _run_with_noise(self, seed: int, inputs: Inputs, forward: Forward | None, watch: Any) -> Any:
        return self.runner.run_with_noise(inputs, seed, self._kernel_noise(), forward, watch)

    def spread(self, testimony: Testimony) -> dict[str, float]:
        try:
            moved = self._run_with_noise(self.seeds[-1], testimony.inputs, self._forward, None)
        except AutomapError:
            return {}
        return comparison.moved(testimony.outputs, moved)

    def remarks(self) -> tuple[str, ...]:
        return self.runner.remarks()

    def feed(self, activations: Activations) -> Feed | None:
        kept: list[tuple[list[Kept], list[Kept]]] = []

        def watch(visit: Visit, proceed: Callable[..., Any]) -> Any:
            if not visit.module.own:
                return proceed(*visit.args, **visit.kwargs)
            arguments = self.runner.tensors((visit.args, visit.kwargs))
            mine: tuple[list[Kept], list[Kept]] = ([activations.keep(self.runner.array(t)) for t in arguments], [])
            kept.append(mine)
            out = proceed(*visit.args, **visit.kwargs)
            mine[1].extend(activations.keep(self.runner.array(t)) for t in self.runner.tensors(out))
            return out

        self.runner.run(self._inputs, self._forward, watch)

        def feed(call: int) -> tuple[list[Array], list[Array]]:
            before, after = kept[call]
            return [activations.read(k) for k in before], [activations.read(k) for k in after]

        return feed

    def outline(self) -> tuple[Step, ...]:
        """The first run in outline."""
        from automap import torch_operations, torch_settings

        return outlined(self.runner, torch_settings.read, torch_operations.observed, self._inputs, self._forward)

    def weight(self, testimony: Testimony, allowed: Allowed) -> Weight:
        trace = self.account().trace
        reached = set(trace.of_bits(trace.given))
        power = Power(self.runner, self.listing, testimony.inputs, testimony.outputs, self._forward, self.seeds[0])
        return power.weight(allowed, reached)

    def examine(self, testimony: Testimony, port: Port) -> Opinion | None:
        from automap import consultation

        case = consultation.Case(
            self.runner,
            port.runner,
            port.mapping,
            self.listing,
            self.runner.state(),
            port.made,
            testimony.inputs,
            (self._forward, port.forward),
            self._kernel_noise,
            port.spread,
        )
        return consultation.ask(case, port.comparisons, False, "", 1)
