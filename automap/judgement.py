"""Judgement: what running both networks has proven about each entry of a mapping, and about the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from automap import exercise
from automap.arrangements import shape_key
from automap.comparison import Comparison
from automap.evidence import Proof
from automap.graph import Listing
from automap.mapping import Entry, Mapping
from automap.names import is_framework_word
from automap.power import Weight
from automap.running import Runner
from automap.search import Identified
from automap.weights import some
from automap.witness import Witness

if TYPE_CHECKING:
    from automap.consultation import Opinion


def agree(comparisons: Sequence[Comparison]) -> bool:
    """Whether there are outputs, and all of them agree."""
    return bool(comparisons) and all(c.passed for c in comparisons)


def port_differs(opinions: Sequence[Opinion | None]) -> bool:
    """Whether every cause is one of the port, and none could as well be a wrong mapping."""
    return all(f.ports_own for o in opinions if o is not None for f in o.findings)


@dataclass(frozen=True)
class Judge:
    """Judges a mapping by what was found out.

    Attributes:
        witness: PyTorch's side.
        runner: of the MindSpore network.
        target: its listing, taken before any run.
        known: the entries that names, shapes and structure made; none where these count for nothing.
        ignore_names: whether they count for nothing.
        comparisons: of all outputs in all runs.
        opinions: the doctor's, of the runs whose outputs differ.
        floor: how far rounding alone moves the outputs, relative to their scale.
        idle_pieces: MindSpore names, of what the port keeps apart, that have no effect on its outputs.
    """

    witness: Witness
    runner: Runner
    target: Listing
    known: Sequence[Entry]
    ignore_names: bool
    comparisons: Sequence[Comparison]
    opinions: Sequence[Opinion | None]
    floor: float
    idle_pieces: frozenset[str]

    def judged(self, mapping: Mapping, found: Identified, weight: Weight | None) -> Mapping:
        """The mapping with what was proven about each entry.

        Args:
            found: what the cells of the MindSpore network saw.
            weight: what matters for the outputs; None where they differ, and nothing explains it.
        """
        ran = {name for s in found.seen.values() if s.call >= 0 for name in s.option.torch}
        sound = {name for cell in found.sound for name in found.seen[cell].option.torch}
        entries = []
        sure_before = {(e.torch, e.mindspore) for e in self.known if not e.review}
        lone = self._lone(mapping)
        if weight is not None:
            twins = {a: b for a, b in weight.alike} | {b: a for a, b in weight.alike}
            by_layer = self._by_layer(found, weight.idle | twins.keys())
        trace = self.witness.account().trace
        reached = set(trace.of_bits(trace.given))
        for e in mapping.entries:
            names = {self.witness.listing.first(n) for n in e.torch}
            told = names <= found.confirmed
            if weight is None:
                alone = names <= sound and (e.torch, e.mindspore) in sure_before | lone
                # What is left for it when others have been told is no better than these.
                asked = bool(names & reached) or (e.torch, e.mindspore) not in sure_before
                entries.append(self._traced(e, (told and names <= ran) or alone, asked))
                continue
            idle = [n for n in e.torch if self.witness.listing.first(n) in weight.idle]
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

    def _traced(self, e: Entry, told: bool, asked: bool) -> Entry:
        """An entry where the outputs differ: what follows the parameter may have confirmed it all the same."""
        evidence = {**e.evidence, "execution": 1.0 if told else 0.0}
        if told:
            return replace(e, evidence=evidence, review=False, why="", confidence=max(e.confidence, 0.999))
        if asked and not e.review:
            why = "the networks differ, and nothing that follows confirms it"
            return replace(e, evidence=evidence, review=True, why=why, confidence=min(e.confidence, 0.75))
        return replace(e, evidence=evidence)

    def _by_layer(self, found: Identified, unproven: frozenset[str] | set[str]) -> set[str]:
        """Parameters that the frameworks' own words pair, in layers of which another parameter is proven."""
        out = set()
        for seen in found.seen.values():
            ways = seen.option.ways
            if any(self.witness.listing.first(name) not in unproven for name in seen.option.torch):
                single = (
                    way for way in ways if way.single and is_framework_word(way.torch[0].leaf, way.mindspore[0].leaf)
                )
                out |= {self.witness.listing.first(way.torch[0].name) for way in single}
        return out

    def _proof(self, mapping: Mapping, found: Identified, weight: Weight | None) -> Proof:
        numbers = [c for c in self.comparisons if c.problem in ("", "values", "not a number")]
        opinion = next((o for o in self.opinions if o is not None), None)
        known = [o.exit_code for o in self.opinions if o is not None]
        differs = bool(known) and len(known) == len(self.opinions) and set(known) == {3} and port_differs(self.opinions)
        reason = ""
        if not agree(self.comparisons) and not differs:
            form = next((c for c in self.comparisons if c.problem in ("shape", "structure", "not a number")), None)
            reason = form.words if form is not None else ""
            if not reason and found.apart:
                reason = f"the first cell that sees what PyTorch does not have is {found.apart[0] or 'the network'}"
        mapped = {self.witness.listing.first(name) for e in mapping.entries for name in e.torch}
        if found.stopped and not agree(self.comparisons) and not differs:
            words = f"the search for other choices was stopped after {found.cells} computed cells"
            reason = f"{reason}; {words}" if reason else words
        idle = weight is not None and mapped and mapped <= weight.idle
        if idle:
            reason = "nothing in the mapping has an effect on the outputs"
        weight = weight or Weight()
        return Proof(
            "proven" if agree(self.comparisons) and not idle else "differs" if differs else "open",
            reason,
            self.witness.seeds,
            self.witness.described,
            max((c.to_scale for c in numbers), default=None),
            self.floor,
            min((c.allowed / c.scale for c in numbers if c.scale), default=None),
            tuple(p.name for p in self.witness.listing if p.name in weight.idle and p.name in mapped),
            tuple(pair for pair in weight.alike if mapped.issuperset(pair)),
            () if opinion is None else tuple(f.words for f in opinion.findings),
            max((o.repaired for o in self.opinions if o is not None and o.repaired is not None), default=None),
            (*self.witness.remarks(), *self.runner.remarks()),
        )
