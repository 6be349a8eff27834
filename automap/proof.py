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
from automap.arrangements import Way, shape_key
from automap.comparison import Comparison
from automap.dtypes import Array
from automap.effective import Effective
from automap.errors import InputError, TransformError
from automap.evidence import Proof
from automap.graph import Listing
from automap.identification import Identified, Identifier, Seen
from automap.mapping import Entry, Mapping
from automap.names import is_framework_word
from automap.power import Weight
from automap.probing import InputsLike
from automap.running import Forward, Module, Runner
from automap.transforms import Transform, shape_after
from automap.weights import some
from automap.witness import Account, Port, Testimony, Witness

if TYPE_CHECKING:
    from automap.consultation import Opinion

#: Exchanges that are tried of parameters that no cell tells, and how many times as many cells as PyTorch's modules
#: were called may be computed for them: each exchange is a search of its own.
MOST_EXCHANGES, MOST_EXCHANGED = 12, 25

#: In the place of an output, where there is none because the port raises an error.
_REFUSED = "the run"

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
        self.places = {p.name: i for i, p in enumerate(witness.listing)}
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
                if run == len(self.witness.seeds) - 1 and (self._agree() or self._explained()):
                    say("Looking for parameters without an effect")
                    weight = self.witness.weight(further, lambda where, a: self._allowed(where, a, a))
                    self.idle_pieces = self._idle_pieces(mapping, further)
        return self._judged(mapping, found, weight)

    def _idle_pieces(self, mapping: Mapping, testimony: Testimony) -> frozenset[str]:
        """Of what the port keeps apart, the pieces that have no effect on its outputs."""
        pieces = [name for e in mapping.entries if len(e.mindspore) > 1 for name in e.mindspore]
        if not pieces or any(c.where == _REFUSED for c in self.comparisons):
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
        self.comparisons.append(Comparison(_REFUSED, run, "structure", str(error)))

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
        return self._port_differs() and all(
            o is not None and o.exit_code == 3 and o.repaired is not None and o.repaired <= allowed
            for o in self.opinions
        )

    def _port_differs(self) -> bool:
        """Whether every cause is one of the port, and none could as well be a wrong mapping."""
        return all(f.ports_own for o in self.opinions if o is not None for f in o.findings)

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
                if e.torch[0] not in (self.request.pins or {}) and self._first(t.name) in reached:
                    shapes[t.shape, m.shape].append(i)
        for group in shapes.values():
            yield from itertools.combinations(group, 2)
        for (shape, _), group in shapes.items():
            if shape is not None and len(shape) == 2 and shape[0] == shape[1] > 1:
                yield from ((i, i) for i in group)

    def _search(self, both: Effective, first: Testimony, account: Account, feed: Any) -> Identifier:
        return Identifier(
            both.trace,
            account.tolerance,
            both.runner,
            both.listings,
            first.outputs,
            both.value(first.value),
            self._rank(both),
            both.feed(feed),
            self.request.pins,
            list(both.within(self._ways(self.start))),
        )

    def _ways(self, mapping: Mapping) -> Iterator[Way]:
        """The entries as ways."""
        ours, theirs = self.witness.listing.by_name, self.target.by_name
        for e in mapping.entries:
            yield Way(tuple(ours[t] for t in e.torch), tuple(theirs[m] for m in e.mindspore), e.transform)

    def _rank(self, both: Effective) -> Callable[[Module, Module], float]:
        """How sure the static mapping is that a module and a cell are each other's."""
        if self.request.ignore_names:
            return lambda u, v: 0.0
        sure = {(t, m): e.confidence for e in self.static.entries for t in e.torch for m in e.mindspore}

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
        report = conversion.ConversionReport()  # so that a cast is no warning: the outputs show what it loses
        made: dict[str, Array] = conversion.apply(
            mapping,
            state,
            framework="numpy",
            target=self.target,
            report=report,
            allow_nan=True,
            allow_overflow=True,
            max_lost=1.0,
        )
        return made

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

    def _agree(self) -> bool:
        return bool(self.comparisons) and all(c.passed for c in self.comparisons)

    # -------------------------------------------------------------------------------------------------------- judgement

    def _judged(self, mapping: Mapping, found: Identified, weight: Weight | None) -> Mapping:
        """The mapping with what was proven about each entry."""
        ran = {name for s in found.seen.values() if s.call >= 0 for name in s.option.torch}
        sound = {name for cell in found.sound for name in found.seen[cell].option.torch}
        entries = []
        known = () if self.request.ignore_names else self.static.entries
        sure_before = {(e.torch, e.mindspore) for e in known if not e.review}
        lone = self._lone(mapping)
        if weight is not None:
            twins = {a: b for a, b in weight.alike} | {b: a for a, b in weight.alike}
            by_layer = self._by_layer(found, weight.idle | twins.keys())
        trace = self.witness.account().trace
        reached = set(trace.of_bits(trace.given))
        for e in mapping.entries:
            names = {self._first(n) for n in e.torch}
            told = names <= found.confirmed
            if weight is None:
                alone = names <= sound and (e.torch, e.mindspore) in sure_before | lone
                entries.append(self._traced(e, (told and names <= ran) or alone, bool(names & reached)))
                continue
            idle = [n for n in e.torch if self._first(n) in weight.idle]
            idle += [n for n in e.mindspore if n in self.idle_pieces]
            partly = bool(idle) and not names <= weight.idle
            shown = (0.5 if partly else 0.0) if idle else 1.0 if told else 0.5
            evidence = {**e.evidence, "execution": shown}
            if not idle and names.isdisjoint(twins):
                evidence["proven"] = "forward"
                sure = max(e.confidence, 0.9999)
                entries.append(replace(e, evidence=evidence, review=False, why="", confidence=sure))
            elif names & by_layer or (e.torch, e.mindspore) in sure_before:
                entries.append(replace(e, evidence=evidence))
            else:
                why = e.why or "without an effect on the outputs of these runs, so nothing proves it"
                if partly and not e.why:
                    why = f"{some(idle)} without an effect on the outputs of these runs, so nothing proves this part"
                if twin := next((twins[n] for n in names if n in twins), None):
                    why = f"{twin} can be exchanged with it without an effect on the outputs"
                doubt = min(e.confidence, 0.75)
                entries.append(replace(e, evidence=evidence, review=True, why=why, confidence=doubt))
        if weight is not None:
            self._spare(entries, mapping)
        return replace(mapping, entries=tuple(entries), proof=self._proof(mapping, found, weight))

    def _spare(self, entries: list[Entry], before: Mapping) -> None:
        """No review of what several layers have beside weights that are proven: these told which layers they are."""
        own = {
            name: a
            for modules in (self.witness.account().trace.modules, self.runner.modules)
            for m in modules.values()
            for a, name in m.own
        }
        told = exercise.beside_proven(entries, lambda name: own.get(name, name.rpartition(".")[2]))
        for i, (e, old) in enumerate(zip(entries, before.entries, strict=True)):
            if (e.torch, e.mindspore) in told:
                entries[i] = replace(e, review=False, why="", confidence=max(old.confidence, 0.99))

    def _lone(self, mapping: Mapping) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The entries of whose shapes nothing is left over: a layer more, or less, in the port is none of these.

        Beside one of the same shape that has no counterpart, a cell that sees and gives what a module does can still
        be another one: the layer before it or after it is then the one too many.
        """
        free = {shape_key(self.witness.listing.by_name[u.name]) for u in mapping.unmatched_torch if u.alias_of is None}
        free |= {shape_key(self.target.by_name[u.name]) for u in mapping.unmatched_mindspore}
        return {
            (e.torch, e.mindspore)
            for e in mapping.entries
            if free.isdisjoint(shape_key(self.witness.listing.by_name[name]) for name in e.torch)
        }

    def _traced(self, e: Entry, told: bool, reached: bool) -> Entry:
        """An entry where the outputs differ: what follows the parameter may have confirmed it all the same."""
        evidence = {**e.evidence, "execution": 1.0 if told else 0.0}
        if told:
            return replace(e, evidence=evidence, review=False, why="", confidence=max(e.confidence, 0.999))
        if (reached or self.request.ignore_names) and not e.review:
            why = "the networks differ, and nothing that follows confirms it"
            return replace(e, evidence=evidence, review=True, why=why, confidence=min(e.confidence, 0.75))
        return replace(e, evidence=evidence)

    def _by_layer(self, found: Identified, unproven: frozenset[str] | set[str]) -> set[str]:
        """Parameters that the frameworks' own words pair, in layers of which another parameter is proven."""
        out = set()
        for seen in found.seen.values():
            ways = seen.option.ways
            if any(self._first(name) not in unproven for name in seen.option.torch):
                single = (
                    way for way in ways if way.single and is_framework_word(way.torch[0].leaf, way.mindspore[0].leaf)
                )
                out |= {self._first(way.torch[0].name) for way in single}
        return out

    def _first(self, name: str) -> str:
        """The first name of a tied parameter."""
        aliases = self.witness.listing.by_name[name].aliases
        return min((name, *aliases), key=self.places.__getitem__) if aliases else name

    def _proof(self, mapping: Mapping, found: Identified, weight: Weight | None) -> Proof:
        numbers = [c for c in self.comparisons if c.problem in ("", "values", "not a number")]
        opinion = next((o for o in self.opinions if o is not None), None)
        known = [o.exit_code for o in self.opinions if o is not None]
        differs = bool(known) and len(known) == len(self.opinions) and set(known) == {3} and self._port_differs()
        reason = ""
        if not self._agree() and not differs:
            form = next((c for c in self.comparisons if c.problem in ("shape", "structure", "not a number")), None)
            reason = form.words if form is not None else ""
            if not reason and found.apart:
                reason = f"the first cell that sees what PyTorch does not have is {found.apart[0] or 'the network'}"
        mapped = {self._first(name) for e in mapping.entries for name in e.torch}
        if found.stopped and not self._agree() and not differs:
            words = f"the search for other choices was stopped after {found.cells} computed cells"
            reason = f"{reason}; {words}" if reason else words
        idle = weight is not None and mapped and mapped <= weight.idle
        if idle:
            reason = "nothing in the mapping has an effect on the outputs"
        weight = weight or Weight()
        return Proof(
            "proven" if self._agree() and not idle else "differs" if differs else "open",
            reason,
            self.witness.seeds,
            self.witness.described,
            max((c.to_scale for c in numbers), default=None),
            self.floor,
            min((c.allowed / c.scale for c in numbers if c.scale), default=None),
            tuple(n for n in self.places if n in weight.idle and n in mapped),
            tuple(pair for pair in weight.alike if mapped.issuperset(pair)),
            () if opinion is None else tuple(f.words for f in opinion.findings),
            max((o.repaired for o in self.opinions if o is not None and o.repaired is not None), default=None),
            (*self.witness.remarks(), *self.runner.remarks()),
        )


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
