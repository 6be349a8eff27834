"""Proof by execution: both networks run, cells are identified by what they see, and the mapping is proven by outputs.

Names, shapes and structure have made a mapping already. PyTorch runs on seeded, distinguishing weights and leaves a
trace; MindSpore runs and is identified against it; the mapping is made anew with what that settled. Then both run
under two seeds: where the outputs agree, every parameter that has an effect on them is proven.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from automap import comparison, conversion, exercise, outline_doctor
from automap.activations import Activations
from automap.arrangements import Way
from automap.candidates import UNSURE, Known
from automap.comparison import Comparison
from automap.dtypes import Array
from automap.effective import Effective
from automap.errors import InputError, TransformError
from automap.graph import Listing
from automap.identification import Identified, Identifier, Seen
from automap.judgement import Judge, agree, port_differs
from automap.mapping import Entry, Mapping
from automap.probing import InputsLike
from automap.running import Forward, Module, Runner
from automap.transforms import Transform, shape_after
from automap.witness import Account, Port, Testimony, Witness

if TYPE_CHECKING:
    from automap.consultation import Opinion

#: Exchanges that are tried of parameters that no cell tells, and how many times as many cells as PyTorch's modules
#: were called may be computed for them: each exchange is a search of its own.
MOST_EXCHANGES, MOST_EXCHANGED = 12, 25

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
        progress: is told in words what is being done.
    """

    inputs: InputsLike = None
    seed: int = 0
    ignore_names: bool = False
    weights: dict[str, Array] | None = None
    torch_forward: Forward | None = None
    ms_forward: Forward | None = None
    pins: dict[str, str] | None = None
    progress: Callable[[str], None] = lambda words: None


class Prover:
    """One proof.

    Args:
        witness: PyTorch's side.
        runner: of the MindSpore network.
        target: its listing, taken before any run.
        static: the mapping that names, shapes and structure made.
        settle: makes it anew with what running has settled.
        request: what else was asked for.
    """

    def __init__(
        self, witness: Witness, runner: Runner, target: Listing, static: Mapping, settle: Settle, request: Request
    ) -> None:
        self.witness, self.runner, self.target, self.request = witness, runner, target, request
        self.static, self.settle = static, settle
        self.start = static  # what MindSpore has before a cell is told
        self.spread: dict[str, float] = {}
        self.floor = 0.0
        self.comparisons: list[Comparison] = []
        self.opinions: list[Opinion | None] = []
        self.idle_pieces: frozenset[str] = frozenset()

    def mapping(self) -> Mapping:
        """The mapping, with what was proven about each entry.

        Raises:
            InputError: a network does not take the inputs.
            NotRunnableError: a network cannot run here.
        """
        say = self.request.progress
        say("Running the PyTorch network")
        refused: InputError | None = None
        with self.witness.testimony(0) as first:
            account = self.witness.account()
            self.runner.expect(self.witness.dtype)
            self.spread = dict(account.spread)
            say("Identifying the cells of the MindSpore network")
            try:
                found = self._identify(first, account)
            except InputError as error:
                refused, found, mapping = error, Identified(), self.static
                self._examine_refusal(mapping, first, error)
            else:
                ways = self._settled(found, account)
                mapping = self.start if self._is_known(ways) else self.settle(ways)
                say("Comparing the outputs")
                if self._ran_as(found, mapping):
                    self.comparisons += self._compared(0, first.outputs, found.outputs)
                else:
                    self._compare(mapping, first)
                self._examine(mapping, first)
        weight = None
        for run in range(1, len(self.witness.seeds)):
            with self.witness.testimony(run) as further:
                if refused is None:
                    self._compare(mapping, further)
                    self._examine(mapping, further)
                else:
                    self._examine_refusal(mapping, further, refused)
                if run == len(self.witness.seeds) - 1 and (agree(self.comparisons) or self._explained()):
                    say("Looking for parameters without an effect")
                    weight = self.witness.weight(further, lambda where, a: self._allowed(where, a, a))
                    self.idle_pieces = self._idle_pieces(mapping, further)
        known = () if self.request.ignore_names else self.static.entries
        return Judge(
            self.witness,
            self.runner,
            self.target,
            known,
            self.request.ignore_names,
            self.comparisons,
            self.opinions,
            self.floor,
            self.idle_pieces,
        ).judged(mapping, found, weight)

    def _idle_pieces(self, mapping: Mapping, testimony: Testimony) -> frozenset[str]:
        """Of what the port keeps apart, the pieces that have no effect on its outputs."""
        pieces = [name for e in mapping.entries if len(e.mindspore) > 1 for name in e.mindspore]
        if not pieces or any(c.where == comparison.REFUSED for c in self.comparisons):
            return frozenset(pieces)  # a port that does not run shows nothing of them
        forward, seed = self.request.ms_forward, self.witness.seeds[-1]
        with self.runner.holding(self._made(mapping, testimony)):
            outputs = self.runner.run(testimony.inputs, forward)
            return exercise.idle_pieces(
                self.runner,
                pieces,
                testimony.inputs,
                outputs,
                forward,
                seed,
                lambda where, a: self._allowed(where, a, a),
            )

    def _examine_refusal(self, mapping: Mapping, testimony: Testimony, error: InputError) -> None:
        """MindSpore raises an error on what PyTorch takes: where, and what differs there.

        Raises:
            InputError: what differs does not explain it, or the mapping does not hold once it is repaired.
        """
        self.request.progress("Examining where the MindSpore network raises an error")
        port = Port(self.runner, mapping, self._made(mapping, testimony), self.request.ms_forward, (), self.spread)
        run = len(self.opinions)
        opinion = outline_doctor.of_a_refusal(self.witness, testimony, port)
        if opinion is None or opinion.exit_code != 3:
            raise outline_doctor.refused(error, opinion) from error
        self.opinions.append(opinion)
        self.comparisons.append(Comparison(comparison.REFUSED, run, "structure", str(error)))

    def _examine(self, mapping: Mapping, testimony: Testimony) -> None:
        """Where the outputs of a run differ: why. Once something stays unexplained, further runs are not asked."""
        run = max((c.run for c in self.comparisons), default=0)
        mine = [c for c in self.comparisons if c.run == run]
        if all(c.passed for c in mine) or not all(o is not None and o.exit_code == 3 for o in self.opinions):
            return
        self.request.progress("Examining the MindSpore network layer by layer")
        port = Port(
            self.runner, mapping, self._made(mapping, testimony), self.request.ms_forward, mine, self.spread
        )  # fmt: skip
        self.opinions.append(self.witness.examine(testimony, port))

    def _explained(self) -> bool:
        """Whether all that differs was found, and is the port's, and the outputs agree once it is repaired."""
        least = max(comparison.TOLERANCE.get(d, 0.0) for d in (self.witness.dtype, self.runner.dtype))
        allowed = min((c.allowed / c.scale for c in self.comparisons if c.scale), default=least)
        return port_differs(self.opinions) and all(
            o is not None and o.exit_code == 3 and o.repaired is not None and o.repaired <= allowed
            for o in self.opinions
        )

    # --------------------------------------------------------------------------------------------------- identification

    def _identify(self, first: Testimony, account: Account) -> Identified:
        """Identified as it runs; where something differs, once more with PyTorch's values fed where it does."""
        found = self._run(first, account, None)
        if self._fits(first, found):
            return found
        found = self._exchange(first, account, found)
        strange = found.apart or any(
            s.call >= 0 and account.tolerance[s.call] < s.after < math.inf for s in found.seen.values()
        )
        if not strange or self._fits(first, found):
            return found
        with Activations() as activations:
            feed = self.witness.feed(activations)
            return found if feed is None else self._run(first, account, feed)

    def _run(self, first: Testimony, account: Account, feed: Any) -> Identified:
        listings = (self.witness.listing, self.target)
        both = Effective(listings, self.start, account.trace, self.runner)
        with self.runner.holding(self._made(self.start, first), lend=True):
            return both.told(self._search(both, first, account, feed).run(first.inputs, self.request.ms_forward))

    def _fits(self, first: Testimony, found: Identified) -> bool:
        return all(c.passed for c in self._compared(0, first.outputs, found.outputs))

    def _exchange(self, first: Testimony, account: Account, found: Identified) -> Identified:
        """Where no call of a cell tells (tokens and tables that a container uses), equally shaped ones are exchanged.

        An exchange is kept if more cells see what PyTorch's see after it.
        """

        def agrees(seen: Seen) -> bool:
            return seen.call >= 0 and seen.before <= account.tolerance[seen.call]

        def agreeing(found: Identified) -> int:
            return sum(map(agrees, found.seen.values()))

        told = {name for s in found.seen.values() if agrees(s) for name in s.option.mindspore}
        reached = set(account.trace.of_bits(account.trace.given))
        left = MOST_EXCHANGED * len(account.trace.calls)
        for a, b in itertools.islice(self._loose(told, reached), MOST_EXCHANGES):
            if left < found.cells:  # what one search more would take
                return replace(found, stopped=True)
            before = self.start
            self.start = _turned(before, a) if a == b else _exchanged(before, a, b)
            other = self._run(first, account, None)
            left -= other.cells
            if agreeing(other) > agreeing(found) or self._fits(first, other):
                found = other
            else:
                self.start = before
            if self._fits(first, found):
                break
        return found

    def _loose(self, told: set[str], reached: set[str]) -> Iterator[tuple[int, int]]:
        """Pairs of entries, by position, of the same shapes on both sides, that no cell has told.

        A square matrix stands beside itself, too: it may be turned round.
        """
        shapes = defaultdict(list)
        for i, e in enumerate(self.start.entries):
            if len(e.torch) == len(e.mindspore) == 1 and e.mindspore[0] not in told:
                t, m = self.witness.listing.by_name[e.torch[0]], self.target.by_name[e.mindspore[0]]
                if e.torch[0] not in (self.request.pins or {}) and self.witness.listing.first(t.name) in reached:
                    shapes[t.shape, m.shape].append(i)
        for group in shapes.values():
            yield from itertools.combinations(group, 2)
        for (shape, _), group in shapes.items():
            if shape is not None and len(shape) == 2 and shape[0] == shape[1] > 1:
                yield from ((i, i) for i in group)

    def _search(self, both: Effective, first: Testimony, account: Account, feed: Any) -> Identifier:
        known = Known(
            both.trace,
            account.tolerance,
            both.runner,
            both.listings,
            both.value(first.value),
            self._rank(both),
            self.request.pins or {},
            list(both.within(self._ways(self.start))),
        )
        return Identifier(known, first.outputs, both.feed(feed))

    def _ways(self, mapping: Mapping) -> Iterator[Way]:
        """The entries as ways."""
        ours, theirs = self.witness.listing.by_name, self.target.by_name
        for e in mapping.entries:
            yield Way(tuple(ours[t] for t in e.torch), tuple(theirs[m] for m in e.mindspore), e.transform)

    def _rank(self, both: Effective) -> Callable[[Module, Module], float]:
        """How sure the static mapping is that a module and a cell are each other's."""
        if self.request.ignore_names:
            return lambda u, v: 0.0
        sure = {
            (t, m): min(e.confidence, UNSURE) if e.review else e.confidence
            for e in self.static.entries
            for t in e.torch
            for m in e.mindspore
        }

        def rank(u: Module, v: Module) -> float:
            ours, theirs = ([part for _, name in x.own for part in both.parts(name)] for x in (u, v))
            return max((sure.get(pair, 0.0) for pair in itertools.product(ours, theirs)), default=0.0)

        return rank

    def _settled(self, found: Identified, account: Account) -> list[Way]:
        """What the run has settled: cells whose input agreed; then what it has changed, or without names all it had."""
        ways: list[Way] = []
        unsure = set() if self.request.ignore_names else found.unsure
        for cell, seen in found.seen.items():
            together = [found.seen[c] for c in seen.option.cells or (cell,)]
            agreed = all(s.call >= 0 and s.before <= account.tolerance[s.call] for s in together)
            if agreed and cell not in unsure and not seen.led:
                ways += seen.option.ways
        told = {t.name for way in ways for t in way.torch}
        guessed = {name for cell in unsure for name in found.seen[cell].option.mindspore}
        before = {way.names: way.chain for way in self._ways(self.static)}
        for name, way in found.held.items():
            changed = self.request.ignore_names or before.get(way.names) != way.chain
            held = all(found.held.get(m.name) == way for m in way.mindspore)  # not only a part of it
            if held and changed and name not in guessed and told.isdisjoint(way.names[0]):
                told.update(way.names[0])
                ways.append(way)
        return ways

    def _is_known(self, ways: Sequence[Way]) -> bool:
        """Whether the static mapping says all of this already."""
        known = {(e.torch, e.mindspore): e.transform for e in self.start.entries}
        return all(known.get(way.names) == way.chain for way in ways)

    def _made(self, mapping: Mapping, testimony: Testimony) -> dict[str, Array]:
        """What the mapping makes of PyTorch's weights; a table of another length keeps the port's values."""
        mapping = replace(mapping, entries=tuple(e for e in mapping.entries if self._as_long(e)))
        if not mapping.entries:
            return {}
        state = {name: testimony.value(name) for e in mapping.entries for name in e.torch}
        return conversion.for_a_run(mapping, state, self.target)

    def _as_long(self, entry: Entry) -> bool:
        """Whether what an entry makes has as many numbers as the parameters that it is for."""
        ours, theirs = self.witness.listing.by_name, self.target.by_name
        given = [ours[name].shape for name in entry.torch]
        goals = [theirs[name].shape for name in entry.mindspore]
        if None in given or None in goals:
            return True
        try:
            made = shape_after(entry.transform, [s for s in given if s is not None])
        except TransformError:
            return False
        return [math.prod(s) for s in made] == [math.prod(s) for s in goals if s is not None]

    def _ran_as(self, found: Identified, mapping: Mapping) -> bool:
        """Whether the run that identified the cells has held just what the mapping makes."""
        if any(s.fed for s in found.seen.values()):
            return False
        held = {m: (e.torch, e.transform) for e in self.start.entries for m in e.mindspore}
        held |= {m: (way.names[0], way.chain) for m, way in found.held.items()}
        return held == {m: (e.torch, e.transform) for e in mapping.entries for m in e.mindspore}

    # ------------------------------------------------------------------------------------------------------- comparison

    def _compare(self, mapping: Mapping, testimony: Testimony) -> None:
        with self.runner.holding(self._made(mapping, testimony), lend=True):
            answer = self.runner.run(testimony.inputs, self.request.ms_forward)
        run = 1 + max((c.run for c in self.comparisons), default=-1)
        found = self._compared(run, testimony.outputs, answer)
        if any(c.problem == "values" for c in found):
            # The kernels err more for the arguments of this run, perhaps, than for those of the first one.
            for where, size in self.witness.spread(testimony).items():
                self.spread[where] = max(size, self.spread.get(where, 0.0))
            found = self._compared(run, testimony.outputs, answer)
        self.comparisons += found

    def _compared(self, run: int, outputs: Any, answer: Any) -> list[Comparison]:
        pairing = comparison.pair(outputs, answer)
        found = [Comparison(where, run, "structure", words) for where, words in pairing.problems]
        for where, a, b in pairing.pairs:
            scale = comparison.scale_of(a)
            if scale:
                self.floor = max(self.floor, self.spread.get(where, 0.0) / scale)
            found.append(comparison.compare(where, run, a, b, self._allowed(where, a, b)))
        return found

    def _allowed(self, where: str, a: Array, b: Array) -> float:
        dtypes = (self.witness.dtype, self.runner.dtype, a.dtype.name, b.dtype.name)
        return comparison.allowance(dtypes, comparison.scale_of(a), self.spread.get(where, 0.0))


def _exchanged(mapping: Mapping, a: int, b: int) -> Mapping:
    """The mapping with the PyTorch names of two entries exchanged."""
    entries = list(mapping.entries)
    entries[a], entries[b] = replace(entries[a], torch=entries[b].torch), replace(entries[b], torch=entries[a].torch)
    return replace(mapping, entries=tuple(entries))


def _turned(mapping: Mapping, a: int) -> Mapping:
    """The mapping with a square matrix transposed, or no longer."""
    entries = list(mapping.entries)
    turn = Transform("transpose", {"axes": [1, 0]})
    chain = entries[a].transform
    entries[a] = replace(entries[a], transform=chain[1:] if chain[:1] == (turn,) else (turn, *chain))
    return replace(mapping, entries=tuple(entries))
