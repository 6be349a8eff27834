"""A search among alternatives while a network runs: what was chosen, what is taken back, and what is confirmed.

Where a cell sees what no PyTorch module saw, the innermost cell that encloses the last open choice is computed again
with the next alternative. Where none is left, further arrangements of what was chosen without an alternative are
tried (its rows in another order, say); then the furthest one stands. The number of tries is bounded.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from automap.arrangements import Option, Way, shape_key
from automap.dtypes import Array
from automap.graph import Listing
from automap.layers import common_module
from automap.reach import can_reach, reaching
from automap.running import Runner
from automap.tracing import Trace

#: Alternatives that are tried before the first one stands.
MOST_TRIES = 60
#: Cells that are computed in a whole search: so many, and so many times as many as PyTorch's modules were called.
MOST_CELLS, MOST_TIMES = 1000, 20


@dataclass
class Seen:
    """What was found out about one cell.

    Attributes:
        option: what it got its weights from.
        call: the call of PyTorch's module that it was compared to, or -1.
        before, after: how far its input and its output are from that module's; infinite where they cannot be compared.
        fed: whether it was given PyTorch's input in place of its own.
        soft: whether nothing that it saw has told, so that another cell may take its weights.
        led: whether another cell was chosen for, and this one got its weights along with it.
    """

    option: Option
    call: int = -1
    before: float = math.inf
    after: float = math.inf
    fed: bool = False
    soft: bool = False
    led: bool = False


@dataclass
class Identified:
    """What came of it.

    Attributes:
        seen: by the path of the cell.
        confirmed: PyTorch's parameters that a value depends on which some later cell saw as PyTorch's module did.
        sound: the cells whose input and output agree, where no choice that is still open comes before them.
        unsure: the cells that were chosen for among several, with nothing after them that confirms it.
        apart: the cells, in order, whose input agrees with no module's.
        tries: how many alternatives were run.
        cells: how many cells with parameters were computed for it.
        stopped: whether these were too many, so that what was not settled by then was left as it was.
        held: the way by which each MindSpore parameter had its values in the end: also those that no cell told.
        outputs: what the network gave, as the runner returns it.
    """

    seen: dict[str, Seen] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()
    sound: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()
    tries: int = 0
    cells: int = 0
    stopped: bool = False
    held: dict[str, Way] = field(default_factory=dict)
    outputs: Any = None


class Disagreement(BaseException):
    """A cell sees what no PyTorch module saw, and a choice made before it can still be taken back.

    No Exception: neither the network's own code nor a runner is to take it for an error.
    """


@dataclass
class Choice:
    """What a cell was given, and what else it can be given.

    Attributes:
        cell: its path.
        options: the likeliest first.
        trail: how many cells had their weights before.
        among: the parameters of all modules among which was chosen, as bits.
        reserve: further options, for where nothing else helps.
        at: the one that it has.
        further: those of the options that came from the reserve.
        closed: not asked again.
        confirmed: by a value that depends on all of them.
        guessed: whether nothing that the cell saw told that it is this module and not one that computes beside it.
    """

    cell: str
    options: list[Option]
    trail: int
    among: int
    reserve: Callable[[], list[Option]] | None = None
    at: int = 0
    further: list[Option] = field(default_factory=list)
    closed: bool = False
    confirmed: bool = False
    guessed: bool = False

    @property
    def far_fetched(self) -> bool:
        """Whether it has a further option that nothing confirms."""
        return not self.confirmed and any(self.options[self.at] is o for o in self.further)

    @property
    def open(self) -> bool:
        return not self.closed and self.at + 1 < len(self.options)

    @property
    def silent(self) -> bool:
        """Whether there was nothing to choose, so that it is only asked where nothing else helps."""
        return self.reserve is not None and len(self.options) == 1 and not self.guessed

    @property
    def pending(self) -> bool:
        return not self.closed and len(self.options) > 1


@dataclass
class _Best:
    """The furthest that any alternative got."""

    score: tuple[int, float]
    options: dict[str, Option]
    where: tuple[str, int]


class Search:
    """The state of a search, and how it goes back and forth.

    Args:
        trace: of the PyTorch network.
        runner: of the MindSpore network.
        torch: the listing of PyTorch's parameters.
        value: the present values of a PyTorch parameter.
        held: what each MindSpore parameter has before its cell is told.
    """

    def __init__(self, trace: Trace, runner: Runner, torch: Listing, value: Callable[[str], Array], held: Any) -> None:
        self.trace, self.runner, self.torch, self.value = trace, runner, torch, value
        self.found = Identified()
        self._held: dict[str, Way] = {}
        self._holder: dict[str, Way] = {}
        for way in held:
            self._hold(way)
        self._has = dict(self._held)  # what is in the network at present
        self._undo: list[list[tuple[str, Way | None]]] = []
        self._used: Counter[str] = Counter()
        self._trail: list[str] = []
        self._stack: list[Choice] = []
        self._log: list[tuple[str, bool]] = []
        self._count: Counter[str] = Counter()
        self._accepted: set[tuple[str, int]] = set()
        self._replay: dict[str, Option] = {}
        self._best: _Best | None = None
        self._tried = 0
        self._confirmed = 0
        self._forced = 0  # parameters whose effect was replaced by what PyTorch computed
        self._apart: dict[str, None] = {}
        self._patterns: Counter[tuple[str, str]] = Counter()
        self._learnt: dict[tuple[str, str], Counter[tuple[object, ...]]] = defaultdict(Counter)
        self._deepened: set[str] = set()
        self._shallow: set[str] = set()  # where further arrangements have not helped
        self._sights: dict[tuple[str, str], bool] = {}  # whether a cell sees what a module with several cells saw

    def _next(self, frame: int) -> bool:
        """Take back the last open choice made inside the present call, and take its next alternative."""
        while len(self._stack) > frame:
            choice = self._stack[-1]
            self._forget(choice.trail)
            self._sift(choice)
            if choice.open and self._tried < MOST_TRIES and not self._is_spent():
                self._tried += 1
                self.found.tries += 1
                choice.at += 1
                self._give(choice.cell, choice.options[choice.at])
                return True
            self._stack.pop()
        if any(c.pending for c in self._stack):
            return False
        # Nothing helped: the furthest one stands, and from here on nothing that was chosen is asked again.
        best, self._best = self._best, None
        self._tried = 0
        self._shallow |= self._deepened
        self._deepened.clear()
        for choice in self._stack:
            choice.closed = True
        if best is not None:
            self._replay.update(best.options)
            self._accepted.add(best.where)
        return True

    def _is_spent(self) -> bool:
        """Whether as much was computed as one search may."""
        return self.found.cells > MOST_CELLS + MOST_TIMES * len(self.trace.calls)

    def _sift(self, choice: Choice) -> None:
        """Of what is left to try, what fits what the cells were seen to see: first what fits best."""
        rest = choice.options[choice.at + 1 :]
        if not any(len(o.cells) > 1 for o in rest):
            return
        known = [[self._sights.get((c, o.path)) for c in o.cells if c != choice.cell] for o in rest]
        ranked = sorted(zip(known, rest, strict=True), key=lambda item: -item[0].count(True))
        choice.options[choice.at + 1 :] = [o for seen, o in ranked if False not in seen]

    def _disagree(self, cell: str, d: float) -> None:
        """What a cell sees agrees with nothing. Returns where that has to be lived with."""
        where = (cell, self._count[cell])
        if where in self._accepted:
            return
        if self._is_spent():
            self.found.stopped = True
            self._accepted.add(where)
            return
        if not any(c.open for c in self._stack) and not self._deepen() and not any(c.pending for c in self._stack):
            self._accepted.add(where)
            return
        score = (sum(agreed for _, agreed in self._log), -min(d, 1e9))
        # Other rows stand only where something agrees with them: a fault that follows speaks for none.
        stands = not any(c.far_fetched for c in self._stack)
        if stands and (self._best is None or score > self._best.score):
            self._best = _Best(score, {c.cell: c.options[c.at] for c in self._stack}, where)
        raise Disagreement

    def _deepen(self) -> bool:
        """Ask for further options of what was chosen, and is not confirmed."""
        more = False
        for choice in self._stack:
            pattern = pattern_of(choice.cell)
            if choice.closed or choice.reserve is None or pattern in self._shallow:
                continue
            new = [o for o in choice.reserve() if o not in choice.options]
            choice.reserve = None
            if new:
                choice.options += new
                choice.further += new
                paths = {path for o in new for path in o.paths}
                choice.among |= self._bits_of(paths) & self.trace.given
                self._deepened.add(pattern)
                self._tried, more = 0, True
        return more

    def _bits_of(self, paths: Any) -> int:
        """The parameters of some modules, as bits."""
        return self.trace.bits([name for path in paths for _, name in self.trace.modules[path].own])

    def _give(self, cell: str, option: Option, call: int = -1, soft: bool = False) -> None:
        self._put(option)
        self._displace(option)
        if not soft:  # what was only expected elsewhere is not there
            for other in [c for c, s in self.found.seen.items() if s.soft and option.torch & s.option.torch]:
                del self.found.seen[other]
        self._trail.append(cell)
        for path in option.paths:
            self._used[path] += not soft
        self.found.seen[cell] = Seen(option, call, soft=soft)
        for mate in option.cells:
            if mate != cell:
                self.found.seen[mate] = Seen(option, led=True)

    def _put(self, option: Option) -> None:
        for way in option.ways:
            self._let(way)

    def _let(self, way: Way, name: str | None = None) -> None:
        """Give parameters (of those of a way, or one of them) their values, where they do not have them already."""
        names = [m.name for m in way.mindspore if name in (None, m.name) and self._has.get(m.name) != way]
        if names:
            values = way.values(self.value)
            self.runner.put({name: values[name] for name in names})
            self._has |= dict.fromkeys(names, way)

    def _displace(self, option: Option) -> None:
        """What had these weights without having been told so gets those that the cell had instead.

        A parameter that is used without a call of its cell is never told: it is left with what the others leave.
        """
        told = {name for s in self.found.seen.values() if not s.soft for name in s.option.mindspore} | option.mindspore
        changes: list[tuple[str, Way | None]] = []
        for way in option.ways:
            if way.single:
                other, before = self._holder.get(way.torch[0].name), self._held.get(way.mindspore[0].name)
                if other is not None and before is not None and other.single and before.single:
                    (left,), (place,) = before.torch, other.mindspore
                    if place.name not in told and can_reach(left, place):
                        changes.append((place.name, self._held[place.name]))
                        instead = Way((left,), (place,), reaching(left, place))
                        self._hold(instead)
                        self._let(instead)
            changes += [(m.name, self._held.get(m.name)) for m in way.mindspore]
            self._hold(way)
        self._undo.append(changes)

    def _hold(self, way: Way) -> None:
        self._held |= {m.name: way for m in way.mindspore}
        self._holder |= {t.name: way for t in way.torch}

    def _forget(self, trail: int) -> None:
        while len(self._trail) > trail:
            cell = self._trail.pop()
            seen = self.found.seen.pop(cell, None)
            if seen is not None:
                for path in seen.option.paths:
                    self._used[path] -= not seen.soft
                for mate in seen.option.cells:
                    self.found.seen.pop(mate, None)
                    self._apart.pop(mate, None)
            self._apart.pop(cell, None)
            for name, way in reversed(self._undo.pop()):
                if way is None:
                    self._held.pop(name, None)
                    continue
                self._held[name] = way
                self._holder |= {t.name: way for t in way.torch}
                self._let(way, name)

    def _confirm(self, bits: int) -> None:
        """A value agrees that depends on these parameters.

        Where it depends on some of the modules among which was chosen and not on all of them, nothing follows: in
        two parallel branches that were taken for each other, every cell agrees with its counterpart's, up to where
        the branches meet.
        """
        fed, bits = bits & self._forced, bits & ~self._forced
        pending = [c for c in self._stack if not c.confirmed and c.among & bits]
        if fed and any(c.far_fetched for c in pending):
            return  # what was fed was fed in some order, and other rows made up for it
        if any(c.among & ~bits and not c.silent for c in pending):
            return
        if not self._loose(bits):
            self._confirmed |= bits
        for choice in pending:
            if choice.among & ~bits:
                continue
            choice.closed = choice.confirmed = True
            if choice.silent:
                continue
            chosen = choice.options[choice.at]
            self._best, self._tried = None, 0
            self._patterns[pattern_of(chosen.path), pattern_of(choice.cell)] += 1
            self._deepened.discard(pattern_of(choice.cell))
            if chosen.form:
                self._learnt[around(chosen.paths), around(chosen.cells or (choice.cell,))][chosen.form] += 1

    def _loose(self, bits: int) -> bool:
        """Whether some of these parameters were told by no cell, and others of their shape are as loose."""
        told = self.trace.bits([name for s in self.found.seen.values() if not s.soft for name in s.option.torch])
        mine, others = bits & ~told, self.trace.given & ~bits & ~told
        if not mine or not others:
            return False
        shapes = {shape_key(self.torch.by_name[name]) for name in self.trace.of_bits(mine)}
        return any(shape_key(self.torch.by_name[name]) in shapes for name in self.trace.of_bits(others))


def pattern_of(path: str) -> str:
    """A path with every number replaced: the same in all repetitions."""
    return re.sub(r"\d+", "#", path)


def around(paths: tuple[str, ...]) -> str:
    """The pattern of the module around some others."""
    return pattern_of(common_module([f"{p}." for p in paths]) if len(paths) > 1 else paths[0])
