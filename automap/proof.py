"""Proof by execution: both networks run, cells are identified by what they see, and the mapping is proven by outputs.

Names, shapes and structure have made a mapping already. PyTorch runs on seeded, distinguishing weights and leaves a
trace; MindSpore runs and is identified against it; the mapping is made anew with what that settled. Then both run
under two seeds: where the outputs agree, every parameter that has an effect on them is proven.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from automap import comparison, conversion
from automap.activations import Activations, Kept
from automap.comparison import TOLERANCE, Comparison
from automap.dtypes import Array
from automap.errors import AutomapError, InputError, NotRunnableError
from automap.evidence import Proof
from automap.identification import LOOSE, Identified, Identifier, Way
from automap.mapping import Entry, Mapping
from automap.names import is_framework_word
from automap.probing import InputsLike, Probe, guess_inputs, open_inputs
from automap.running import Forward, Inputs, Module, Runner, Visit
from automap.seeding import generator, seeded_weights
from automap.tracing import Trace, apart, distance
from automap.validation import demanded

if TYPE_CHECKING:
    from automap.sources import Source
    from automap.torch_tracing import Effect

#: Fingerprints of equal values in both frameworks may differ by this much, whatever rounding does to the network.
LEAST_TOLERANCE = 5e-5
#: The spread of values under rounding is a sample; the greatest difference may be a few times larger.
SPREAD = 8.0
#: A parameter counts as exercised if moving it by its scale moves the outputs by so many times what is allowed.
EXERCISED = 2.0
#: Parameters that no gradient reaches are tried one by one up to this many.
MOST_TRIED = 64

#: Makes the mapping anew: it is given what running the networks has settled.
Settle = Callable[[Sequence[Way]], Mapping]


@dataclass(frozen=True)
class Request:
    """What to run the networks on, and how.

    Attributes:
        inputs: as for :func:`automap.validate`; None: guessed.
        seed: of weights and inputs.
        ignore_names: the static mapping counts for nothing.
        weights: PyTorch tensors by name instead of seeded ones.
        torch_forward, ms_forward: instead of the networks' own.
        pins: PyTorch names to MindSpore names that are settled.
    """

    inputs: InputsLike = None
    seed: int = 0
    ignore_names: bool = False
    weights: dict[str, Array] | None = None
    torch_forward: Forward | None = None
    ms_forward: Forward | None = None
    pins: dict[str, str] | None = None


def prove(torch: Source, mindspore: Source, static: Mapping, settle: Settle, request: Request) -> Mapping:
    """The mapping as running both networks settles and proves it.

    Raises:
        InputError: inputs that are not understood, or that a network does not take.
    """
    bench = _Bench(torch, mindspore, request)
    try:
        for probe in bench.probes():
            try:
                return _Attempt(bench, probe, static, settle).mapping()
            except InputError:
                if not bench.guessing:
                    raise
    except NotRunnableError as error:
        return replace(static, proof=Proof("not run", str(error)))
    return replace(static, proof=Proof("not run", "no input is known that both networks take: give one with --input"))


class _Bench:
    """Both networks, ready to run."""

    def __init__(self, torch: Source, mindspore: Source, request: Request) -> None:
        # The listings first: running a network may rename its parameters.
        self.listings = torch.listing(), mindspore.listing()
        self.request = request
        # Imported only now that both frameworks are needed anyway.
        from automap import mindspore_runner, torch_runner

        self.torch = torch_runner.Runner(torch.model())
        self.mindspore: Runner = mindspore_runner.Runner(mindspore.model())
        self.kernel_noise = mindspore_runner.kernel_noise
        self.given = open_inputs(request.inputs)
        self.guessing = self.given is None

    def probes(self) -> Iterator[Probe]:
        """The inputs given, or guesses."""
        if self.given is not None:
            yield self.given
            return
        forward = self.request.torch_forward
        wanted = demanded(self.torch.model.forward if forward is None else forward) - (forward is not None)
        for guess in guess_inputs(self.listings[0], wanted):
            yield Probe(guess.specs)


class _Attempt:
    """One proof on certain inputs."""

    def __init__(self, bench: _Bench, probe: Probe, static: Mapping, settle: Settle) -> None:
        self.bench, self.probe, self.static, self.settle = bench, probe, static, settle
        self.request = bench.request
        self.torch, self.mindspore = bench.torch, bench.mindspore
        self.listing, self.target = bench.listings
        table = max(TOLERANCE.get(d, 0.0) for d in (self.torch.dtype, self.mindspore.dtype))
        self.table = table
        self.places = {p.name: i for i, p in enumerate(self.listing)}
        self.floor = 0.0
        self.comparisons: list[Comparison] = []

    def mapping(self) -> Mapping:
        seed = self.request.seed
        first = self.probe.draw(seed, 0)
        with self._holding(seed):
            outputs, trace = self._traced(first, settle=self.request.weights is None)
            tolerance, spread = self._noise(first, outputs, trace)
            found = self._identify(first, outputs, trace, tolerance, spread)
            ways = self._settled(found, tolerance)
            mapping = self.settle(ways)
            self._compare(mapping, first, outputs, spread)
        with self._holding(seed + 1):
            second = self.probe.draw(seed + 1, 1)
            run = self.torch.run if self.request.weights is not None else self.torch.settle
            outputs = run(second, self.request.torch_forward)
            self._compare(mapping, second, outputs, spread)
            agree = all(c.passed for c in self.comparisons)
            effects = self._effects(second, outputs, mapping, trace, spread) if agree else None
        return self._judged(mapping, found, effects)

    @contextmanager
    def _holding(self, seed: int) -> Iterator[None]:
        weights = self.request.weights
        with self.torch.holding(seeded_weights(self.listing, seed) if weights is None else weights):
            yield

    # ---------------------------------------------------------------------------------------------------------- PyTorch

    def _traced(self, inputs: Inputs, settle: bool) -> tuple[Any, Trace]:
        from automap import torch_tracing

        run = self.torch.settle if settle else None
        return torch_tracing.trace(self.torch, inputs, self.request.torch_forward, run)

    def _noise(self, inputs: Inputs, outputs: Any, trace: Trace) -> tuple[list[float], dict[str, float]]:
        """How far rounding and the error of kernels move what each module sees, and each output."""
        from automap import torch_tracing

        least = max(LEAST_TOLERANCE, 5 * self.table)
        noisy = functools.partial(self._run_with_noise, self.request.seed)
        try:
            moved, other = torch_tracing.trace(self.torch, inputs, self.request.torch_forward, noisy)
        except AutomapError:  # a network that cannot be watched so (a compiled one): the table stands
            return [10 * least] * len(trace.calls), {}
        tolerance = [least] * len(trace.calls)
        if [c.path for c in trace.calls] == [c.path for c in other.calls]:
            for k, (a, b) in enumerate(zip(trace.calls, other.calls, strict=True)):
                ways = [d for d in (apart(a.inputs, b.inputs), apart(a.outputs, b.outputs)) if d < math.inf]
                tolerance[k] = min(max([least, *(SPREAD * d for d in ways)]), max(least, LOOSE / 5))
        spread: dict[str, float] = {}
        for where, x, y in comparison.pair(outputs, moved).pairs:
            if x.shape == y.shape and x.dtype.kind in "fc":
                with np.errstate(invalid="ignore"):
                    spread[where] = comparison.scale_of(np.abs(x - y))
        return tolerance, spread

    def _run_with_noise(self, seed: int, inputs: Inputs, forward: Forward | None, watch: Any) -> Any:
        return self.torch.run_with_noise(inputs, seed, self.bench.kernel_noise(), forward, watch)

    # -------------------------------------------------------------------------------------------------------- MindSpore

    def _identify(
        self, inputs: Inputs, outputs: Any, trace: Trace, tolerance: list[float], spread: dict[str, float]
    ) -> Identified:
        """Identified as it runs; where something differs, once more with PyTorch's values fed where it does."""
        with self.mindspore.holding(self._made(self.static)):
            found = self._search(trace, tolerance, None).run(inputs, self.request.ms_forward)
        strange = found.apart or any(
            s.call >= 0 and tolerance[s.call] < s.after < math.inf for s in found.seen.values()
        )
        if not strange or all(c.passed for c in self._compared(0, outputs, found.outputs, spread)):
            return found
        with Activations() as activations:
            feed = self._fed(activations, inputs, trace)
            with self.mindspore.holding(self._made(self.static)):
                return self._search(trace, tolerance, feed).run(inputs, self.request.ms_forward)

    def _search(self, trace: Trace, tolerance: list[float], feed: Any) -> Identifier:
        return Identifier(
            trace,
            tolerance,
            self.mindspore,
            self.bench.listings,
            self.torch.value,
            self._rank(),
            feed,
            self.request.pins or {},
        )

    def _rank(self) -> Callable[[Module, Module], float]:
        """How sure the static mapping is that a module and a cell are each other's."""
        if self.request.ignore_names:
            return lambda u, v: 0.0
        sure = {(t, m): e.confidence for e in self.static.entries for t in e.torch for m in e.mindspore}

        def rank(u: Module, v: Module) -> float:
            pairs = ((t, m) for _, t in u.own for _, m in v.own)
            return max((sure.get(pair, 0.0) for pair in pairs), default=0.0)

        return rank

    def _fed(
        self, activations: Activations, inputs: Inputs, trace: Trace
    ) -> Callable[[int], tuple[list[Array], list[Array]]]:
        """PyTorch once more, with what its modules see and give written to a file."""
        kept: list[tuple[list[Kept], list[Kept]]] = []

        def watch(visit: Visit, proceed: Callable[..., Any]) -> Any:
            if not visit.module.own:
                return proceed(*visit.args, **visit.kwargs)
            arguments = self.torch.tensors((visit.args, visit.kwargs))
            mine: tuple[list[Kept], list[Kept]] = ([activations.keep(self.torch.array(t)) for t in arguments], [])
            kept.append(mine)
            out = proceed(*visit.args, **visit.kwargs)
            mine[1].extend(activations.keep(self.torch.array(t)) for t in self.torch.tensors(out))
            return out

        self.torch.run(inputs, self.request.torch_forward, watch)

        def feed(call: int) -> tuple[list[Array], list[Array]]:
            before, after = kept[call]
            return [activations.read(k) for k in before], [activations.read(k) for k in after]

        return feed

    def _made(self, mapping: Mapping) -> dict[str, Array]:
        """What the mapping makes of PyTorch's present weights."""
        names = set(mapping.names("torch")) - {u.name for u in mapping.unmatched_torch}
        state = {name: array for name, array in self.torch.state().items() if name in names}
        report = conversion.ConversionReport()  # so that a cast is no warning: the outputs show what it loses
        made: dict[str, Array] = conversion.apply(
            mapping, state, framework="numpy", target=self.target, report=report, allow_nan=True, allow_overflow=True
        )
        return made

    def _settled(self, found: Identified, tolerance: list[float]) -> list[Way]:
        """What the run has settled: cells whose input agreed; without names, what execution order says of others."""
        ways: list[Way] = []
        for seen in found.seen.values():
            agreed = seen.call >= 0 and seen.before <= tolerance[seen.call]
            if agreed or self.request.ignore_names:
                ways += seen.option.ways
        return ways

    # ------------------------------------------------------------------------------------------------------------ proof

    def _compare(self, mapping: Mapping, inputs: Inputs, outputs: Any, spread: dict[str, float]) -> None:
        with self.mindspore.holding(self._made(mapping)):
            answer = self.mindspore.run(inputs, self.request.ms_forward)
        run = 1 + max((c.run for c in self.comparisons), default=-1)
        self.comparisons += self._compared(run, outputs, answer, spread)

    def _compared(self, run: int, outputs: Any, answer: Any, spread: dict[str, float]) -> list[Comparison]:
        pairing = comparison.pair(outputs, answer)
        found = [Comparison(where, run, "structure", words) for where, words in pairing.problems]
        for where, a, b in pairing.pairs:
            scale = comparison.scale_of(a)
            if scale:
                self.floor = max(self.floor, spread.get(where, 0.0) / scale)
            allowed = self._allowed(where, a, b, spread)
            found.append(comparison.compare(where, run, a, b, allowed))
        return found

    def _allowed(self, where: str, a: Array, b: Array, spread: dict[str, float]) -> float:
        table = max(self.table, *(TOLERANCE.get(x.dtype.name, 0.0) for x in (a, b)))
        return max(table * comparison.scale_of(a), SPREAD * spread.get(where, 0.0))

    def _effects(
        self, inputs: Inputs, outputs: Any, mapping: Mapping, trace: Trace, spread: dict[str, float]
    ) -> tuple[set[str], list[tuple[str, str]]]:
        """The mapped PyTorch parameters without an effect on the outputs, and the pairs that can be exchanged."""
        from automap import torch_tracing

        pairs = [(w, a) for w, a, _ in comparison.pair(outputs, outputs).pairs if a.dtype.kind in "fc"]
        allowed = max((self._allowed(w, a, a, spread) for w, a in pairs), default=0.0)
        try:
            found, root = torch_tracing.effects(self.torch, inputs, self.request.torch_forward, self.request.seed)
        except NotRunnableError:
            found, root = {}, 1.0
        reached = set(trace.of_bits(trace.given))
        mapped_names = {self._first(n) for e in mapping.entries for n in e.torch}
        mapped = [n for n in trace.names if n in mapped_names]
        idle, unsure = set(), []
        for name in mapped:
            effect = found.get(name)
            if name not in reached:
                idle.add(name)
            elif effect is None or effect.size < EXERCISED * allowed * root:
                unsure.append(name)
        for i, name in enumerate(unsure):
            if i >= MOST_TRIED or not self._moves(inputs, outputs, {name: self._other(name)}, spread):
                idle.add(name)
        alike = [
            (a, b)
            for a, b in _suspects([n for n in mapped if n not in idle and n in found], found, self._shape)
            if not self._moves(inputs, outputs, {a: self.torch.value(b).copy(), b: self.torch.value(a).copy()}, spread)
        ]
        return idle, alike

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self.listing.by_name[name].shape

    def _other(self, name: str) -> Array:
        """Other values of the same scale for one parameter."""
        value = self.torch.value(name)
        rng = generator(self.request.seed + 2, name)
        if name.endswith("running_var"):
            return np.asarray(value * rng.uniform(0.5, 2.0, value.shape), dtype=value.dtype)
        scale = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) or 1.0
        return np.asarray(value + rng.standard_normal(value.shape) * scale, dtype=value.dtype)

    def _moves(self, inputs: Inputs, outputs: Any, values: dict[str, Array], spread: dict[str, float]) -> bool:
        """Whether PyTorch's outputs differ by more than is allowed with other values."""
        with self.torch.holding(values):
            other = self.torch.run(inputs, self.request.torch_forward)
        return not all(
            comparison.compare(w, 0, a, b, self._allowed(w, a, b, spread)).passed
            for w, a, b in comparison.pair(outputs, other).pairs
        )

    # -------------------------------------------------------------------------------------------------------- judgement

    def _judged(
        self,
        mapping: Mapping,
        found: Identified,
        effects: tuple[set[str], list[tuple[str, str]]] | None,
    ) -> Mapping:
        """The mapping with what was proven about each entry."""
        agree = effects is not None
        idle, alike = effects if effects is not None else (set(), [])
        twins = {a: b for a, b in alike} | {b: a for a, b in alike}
        ran = {t.name for s in found.seen.values() for t, _, _ in s.option.ways if s.call >= 0}
        confirmed = set(found.confirmed)
        by_layer = self._by_layer(found, idle | twins.keys())
        entries = []
        for e in mapping.entries:
            names = {self._first(n) for n in e.torch}
            if agree:
                sure = not names & idle and not any(twins.get(n) for n in names)
                entries.append(self._entry(e, names, sure, idle, twins, by_layer, 1.0 if names <= confirmed else 0.5))
            else:
                told = names <= confirmed and names <= ran
                entries.append(self._traced_entry(e, told))
        return replace(mapping, entries=tuple(entries), proof=self._proof(found, agree, idle, alike))

    def _by_layer(self, found: Identified, unproven: set[str]) -> set[str]:
        """Parameters that the frameworks' own words pair, in layers of which another parameter is proven."""
        out = set()
        for seen in found.seen.values():
            ways = seen.option.ways
            if any(self._first(t.name) not in unproven for t, _, _ in ways):
                out |= {self._first(t.name) for t, m, _ in ways if is_framework_word(t.leaf, m.leaf)}
        return out

    def _first(self, name: str) -> str:
        """The first name of a tied parameter."""
        param = self.listing.by_name[name]
        return min((name, *param.aliases), key=self.places.__getitem__) if param.aliases else name

    def _entry(
        self,
        e: Entry,
        names: set[str],
        sure: bool,
        idle: set[str],
        twins: dict[str, str],
        by_layer: set[str],
        execution: float,
    ) -> Entry:
        evidence = {**e.evidence, "execution": execution if not names & idle else 0.0}
        if sure:
            evidence["proven"] = "forward"
            return replace(e, evidence=evidence, review=False, why="", confidence=max(e.confidence, 0.9999))
        if not self.request.ignore_names or names & by_layer:
            return replace(e, evidence=evidence)
        twin = next((twins[n] for n in names if n in twins), None)
        if twin is not None:
            why = f"{twin} can be exchanged with it without an effect on the outputs"
        else:
            why = "without an effect on the outputs of these runs, so nothing proves it"
        return replace(e, evidence=evidence, review=True, why=why, confidence=min(e.confidence, 0.75))

    def _traced_entry(self, e: Entry, told: bool) -> Entry:
        evidence = {**e.evidence, "execution": 1.0 if told else 0.0}
        if told:
            return replace(e, evidence=evidence, review=False, why="", confidence=max(e.confidence, 0.999))
        if self.request.ignore_names and not e.review:
            why = "the networks differ before what would confirm it"
            return replace(e, evidence=evidence, review=True, why=why, confidence=min(e.confidence, 0.75))
        return replace(e, evidence=evidence)

    def _proof(self, found: Identified, agree: bool, idle: set[str], alike: list[tuple[str, str]]) -> Proof:
        numbers = [c for c in self.comparisons if c.problem in ("", "values", "not a number")]
        error = max((c.to_scale for c in numbers), default=None)
        allowed = min((c.allowed / c.scale for c in numbers if c.scale), default=None)
        seed = self.request.seed
        reason = ""
        if not agree:
            form = next((c for c in self.comparisons if c.problem in ("shape", "structure")), None)
            reason = form.words if form is not None else ""
            if not reason and found.apart:
                reason = f"the first cell that sees what PyTorch does not have is {found.apart[0] or 'the network'}"
        return Proof(
            "proven" if agree else "open",
            reason,
            (seed, seed + 1),
            self.probe.describe(),
            error,
            self.floor,
            allowed,
            tuple(n for n in self.places if n in idle),
            tuple(alike),
        )


def _suspects(
    names: list[str], effects: dict[str, Effect], shape: Callable[[str], tuple[int, ...] | None]
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
