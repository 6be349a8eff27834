"""Candidates: what a MindSpore cell can be given, among PyTorch's modules that saw what it sees, the likeliest first.

Where no module saw the same, several modules may have (a fused projection), or the weights may be used inside another
module's call; where nothing that is seen tells at all, shapes and the order of execution do.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from automap.arrangements import Option, Way, choices, turned
from automap.composites import Composites
from automap.dtypes import Array
from automap.graph import Listing
from automap.running import Module, Runner
from automap.search import Search, around, pattern_of
from automap.tracing import Fingerprint, Trace, apart, distance

#: A cell whose input is further than this from every module's sees something that PyTorch does not have.
LOOSE = 0.05
#: What speaks for a module and a cell without running them is no more than this where it leaves a doubt.
UNSURE = 0.75
#: Options that only shapes allow.
MOST_BLIND = 60


@dataclass(frozen=True)
class Known:
    """What is known before the MindSpore network runs.

    Attributes:
        trace: of the PyTorch network.
        tolerance: for each call of the trace, how far apart fingerprints may be that are the same.
        runner: of the MindSpore network, which is about to run.
        listings: of both networks.
        value: the present values of a PyTorch parameter.
        rank: how much speaks for a module and a cell without running them, 0 to 1.
        pins: PyTorch names to MindSpore names that are settled.
        held: what each MindSpore parameter has before its cell is told.
    """

    trace: Trace
    tolerance: Sequence[float]
    runner: Runner
    listings: tuple[Listing, Listing]
    value: Callable[[str], Array]
    rank: Callable[[Module, Module], float]
    pins: Mapping[str, str] = field(default_factory=dict)
    held: Sequence[Way] = ()


class Candidates(Search):
    """What each cell can be given in a search."""

    def __init__(self, known: Known) -> None:
        trace, runner = known.trace, known.runner
        super().__init__(trace, runner, known.listings[0], known.value, known.held)
        self.tolerance, self.rank = known.tolerance, known.rank
        self.mindspore = known.listings[1]
        self._pins = known.pins
        self._pinned = {m: t for t, m in self._pins.items()}
        self._by_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for k, call in enumerate(trace.calls):
            for size in {f.size for f in call.inputs if not f.flat} or {0}:
                self._by_size[size,].append(k)
        self._values: dict[int, list[tuple[Fingerprint, float]]] = defaultdict(list)
        for call, allowed in zip(trace.calls, known.tolerance, strict=True):
            for f in (*call.inputs, *call.outputs):
                self._values[f.size].append((f, allowed))
        self._owners = {name: path for path, m in trace.modules.items() for _, name in m.own}
        self._options: dict[tuple[str, str], list[Option]] = {}
        self._composites = Composites(trace.modules, runner.modules, known.listings, (trace.numbers, runner.numbers))

    def _composed(self, module: Module, seeing: dict[str, tuple[int, float]]) -> list[Option]:
        """The options of several modules, or several cells, where these modules saw what the cell sees."""
        cell = module.path

        def free(path: str) -> bool:
            return path not in self.found.seen

        found = list(self._composites.joins(cell, seeing))
        for path in seeing:
            found += self._composites.parts(cell, path, free)
        return self._sorted([o for o in found if self._allows(o.ways)])

    def _sorted(self, found: list[Option]) -> list[Option]:
        """What was right in other repetitions first, then what the cells have already."""

        def key(option: Option) -> tuple[int, int]:
            learnt = self._learnt.get((around(option.paths), around(option.cells)))
            return -(learnt[option.form] if learnt is not None else 0), -self._is_held(option)

        return sorted(found, key=key)

    def _computed_option(self, module: Module) -> Option | None:
        """What a cell has already, where it was computed from parameters of several modules, or made several."""
        ways = [way for _, name in module.own if (way := self._held.get(name)) is not None]
        if not any(way.computed for way in ways):
            return None
        ways = [way for i, way in enumerate(ways) if way not in ways[:i]]
        paths = tuple(dict.fromkeys(self._owners[t.name] for way in ways for t in way.torch if t.name in self._owners))
        if not paths or any(self._used[path] for path in paths):
            return None
        return Option(paths[0], tuple(ways), paths, (module.path,), ("held",))

    def _blind(self, module: Module) -> list[Option]:
        """The options that shapes allow where no input tells."""
        found = self._composites.blind(
            module.path,
            lambda path: not self._used[path],
            lambda path: path not in self.found.seen,
        )
        return self._sorted([o for o in itertools.islice(found, MOST_BLIND) if self._allows(o.ways)])

    def _is_held(self, option: Option) -> int:
        """How far an option is what the cells have already: all of it, the same parameters in their order, or not."""
        held = [(way, self._held.get(m.name)) for way in option.ways for m in way.mindspore]
        if all(way == other for way, other in held):
            return 2
        return int(all(other is not None and way.names == other.names for way, other in held))

    def _reserve(self, module: Module, plain: list[Option], seeing: dict[str, tuple[int, float]]) -> list[Option]:
        """What else a cell may have: the same with its rows in another order, or pieces of several modules."""
        found = [o for option in plain[:3] for o in self._composites.rearrangements(option, module.path)]
        return [*found, *self._composed(module, seeing)]

    def _within(self, module: Module) -> list[Option]:
        """Modules that are never called, whose weights are used inside a call of one that was told already."""
        found = []
        for path in self.trace.modules:
            if path in self.trace.calls_of or self._used[path] or not self._ways(path, module):
                continue
            bits = self.trace.bits([name for _, name in self.trace.modules[path].own]) & self.trace.given
            outer = [p for p in self._used if self._used[p] and path.startswith(f"{p}." if p else "")]
            calls = (self.trace.calls[k] for p in outer for k in self.trace.calls_of.get(p, ()))
            if bits and any(bits & c.given & ~c.seen for c in calls):
                found.append(path)
        ranked = sorted(found, key=lambda path: -self.rank(self.trace.modules[path], module))
        return [o for path in ranked for o in self._ways(path, module)]

    def _look(self, cell: str, prints: list[Fingerprint]) -> None:
        """Note that a cell sees what a module saw that other cells have been chosen for."""
        for choice in self._stack:
            option = choice.options[choice.at]
            if choice.closed or len(option.cells) < 2:
                continue
            calls = self.trace.calls_of.get(option.path, ())
            if any(apart(prints, self.trace.calls[k].inputs) <= self.tolerance[k] for k in calls):
                self._sights[cell, option.path] = True

    def _comparable(self, prints: list[Fingerprint]) -> list[tuple[int, float]]:
        """The calls of free modules whose input is comparable to a cell's, the nearest first."""
        sizes = {f.size for f in prints if not f.flat}
        calls = sorted({k for size in sizes for k in self._by_size[size,] if not self._used[self.trace.calls[k].path]})
        found = ((k, apart(prints, self.trace.calls[k].inputs)) for k in calls)
        return sorted(((k, d) for k, d in found if d < math.inf), key=second)

    def _near(self, module: Module, comparable: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Of these calls, those of modules that a cell can be; of those that are too far only the first one."""
        found: list[tuple[int, float]] = []
        for k, d in comparable:
            if found and d > LOOSE:
                break
            if self._ways(self.trace.calls[k].path, module):
                found.append((k, d))
        return found

    def _is_known(self, prints: list[Fingerprint]) -> bool:
        """Whether PyTorch's modules see or give the same value somewhere, if not at a module that the cell can be."""
        signals = [f for f in prints if not f.flat and not f.whole] or [f for f in prints if not f.flat]
        return any(distance(f, g) <= allowed for f in signals for g, allowed in self._values[f.size])

    def _expected(self, module: Module, lone: bool) -> dict[str, tuple[int, float]]:
        """Where nothing is seen that tells: what speaks most for without running, else the next one in execution."""
        last = max((s.call for s in self.found.seen.values()), default=-1)
        best: tuple[tuple[float, bool, float], str] | None = None
        for path in self.trace.modules:
            if self._used[path] or not self._ways(path, module):
                continue
            calls = self.trace.calls_of.get(path, ())
            if lone and (not calls or any(not f.flat for f in self.trace.calls[calls[0]].inputs)):
                continue
            place = calls[0] if calls else self._place(path)
            if place is not None:
                score = (self.rank(self.trace.modules[path], module), place > last, -abs(place - last))
                if best is None or score > best[0]:
                    best = score, path
        if best is None:
            return {}
        path = best[1]
        return {path: (self.trace.calls_of.get(path, (-1,))[0], 0.0 if lone else math.inf)}

    def _place(self, path: str) -> float | None:
        """Where a module is used that is never called: before the first call that depends on its parameters."""
        bits = self.trace.bits([name for _, name in self.trace.modules[path].own])
        if not bits & self.trace.given:
            return None
        seen = (k for k, call in enumerate(self.trace.calls) if call.seen & bits)
        return next(seen, len(self.trace.calls)) - 0.5

    def _ranked(self, module: Module, calls: dict[str, tuple[int, float]]) -> list[str]:
        """Modules that saw the same, the likeliest first: as in other repetitions, as without running, in order."""

        def key(path: str) -> tuple[float, ...]:
            same = self._patterns[pattern_of(path), pattern_of(module.path)]
            exact = len(self._ways(path, module)[0].ways) / max(1, len(self.trace.modules[path].own), len(module.own))
            return (-same, -self.rank(self.trace.modules[path], module), -exact, calls[path][0])

        return sorted(calls, key=key)

    def _ways(self, path: str, module: Module) -> list[Option]:
        key = (path, module.path)
        if key not in self._options:
            ours = [(attribute, self.torch.by_name[name]) for attribute, name in self.trace.modules[path].own]
            theirs = [
                (attribute, self.mindspore.by_name[name])
                for attribute, name in module.own
                if name in self.mindspore.by_name
            ]
            self._options[key] = [o for o in choices(path, ours, theirs) if self._allows(o.ways)]
        return self._options[key]

    def _allows(self, ways: tuple[Way, ...]) -> bool:
        """Whether no pin is against it."""
        return all(
            self._pins.get(t.name, m.name) == m.name and self._pinned.get(m.name, t.name) == t.name
            for way in ways
            for t in way.torch
            for m in way.mindspore
        )

    def _rivals(self, path: str, module: Module) -> int:
        """The parameters, as bits, of the modules that a cell could as well be that was only guessed to be one.

        They see nothing that depends on that one, and nothing has confirmed yet where they are: they compute beside it,
        or before it. What is sure without running is no guess.
        """
        if self.rank(self.trace.modules[path], module) > UNSURE:
            return 0
        mine, found = self._bits_of((path,)), 0
        for other in self.trace.calls_of:
            bits = self._bits_of((other,)) & self.trace.given & ~self._confirmed
            if other != path and bits and self._ways(other, module):
                found |= bits if not self._seen_by(other) & mine else 0
        return found

    def _seen_by(self, path: str) -> int:
        """All that the inputs of a module depend on, in any of its calls, as bits."""
        bits = 0
        for k in self.trace.calls_of.get(path, ()):
            bits |= self.trace.calls[k].seen
        return bits

    def _nearest(self, path: str, call: int) -> int:
        """The call of a module that is nearest to a call in the order of execution."""
        return min(self.trace.calls_of[path], key=lambda k: abs(k - call))

    def _others(self, cell: str, option: Option) -> Iterator[Option]:
        """Other weights that a cell can have: square matrices turned round, then the modules that saw the same."""
        other_way = turned(option)
        if other_way != option:
            yield other_way
        choice = self._stack[-1] if self._stack and self._stack[-1].cell == cell else None
        for other in choice.options[choice.at + 1 :] if choice is not None else ():
            if not self._used[other.path]:
                yield other


def second(item: tuple[int, float]) -> float:
    """Of a call and how near it is, the latter."""
    return item[1]
