"""Identification: which PyTorch module each MindSpore cell is, told by what it sees while the network runs.

PyTorch has run, and left a trace. MindSpore runs now, and before each cell that owns parameters is computed, the
PyTorch modules that can be its counterpart are those of a compatible signature that saw the same input. The cell gets
the weights of one of them and is computed, so that the next cell sees what PyTorch's next module saw.

Several modules may have seen the same input (queries, keys and values; parallel branches; experts). Then one is
chosen, and what follows confirms the choice or takes it back: where a later cell sees what no PyTorch module saw, the
innermost cell that encloses the last open choice is computed again with the next alternative. A choice is closed as
soon as a cell sees a value that depends on all the modules among which was chosen.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from automap import comparison
from automap.arrangements import Option, Way, choices, shape_key, turned
from automap.dtypes import Array
from automap.graph import Listing
from automap.layouts import adapted, replaced
from automap.reaching import can_reach, reaching
from automap.running import Forward, Inputs, Module, Runner, Visit
from automap.tracing import Call, Fingerprint, Trace, apart, distance, fingerprint, in_order

#: A cell whose input is further than this from every module's sees something that PyTorch does not have.
LOOSE = 0.05
#: Alternatives that are tried before the first one stands.
MOST_TRIES = 60


@dataclass
class Seen:
    """What was found out about one cell.

    Attributes:
        option: what it got its weights from.
        call: the call of PyTorch's module that it was compared to, or -1.
        before, after: how far its input and its output are from that module's; infinite where they cannot be compared.
        fed: whether it was given PyTorch's input in place of its own.
        soft: whether nothing that it saw has told, so that another cell may take its weights.
    """

    option: Option
    call: int = -1
    before: float = math.inf
    after: float = math.inf
    fed: bool = False
    soft: bool = False


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
        held: the way by which each MindSpore parameter had its values in the end: also those that no cell told.
        outputs: what the network gave, as the runner returns it.
    """

    seen: dict[str, Seen] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()
    sound: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()
    tries: int = 0
    held: dict[str, Way] = field(default_factory=dict)
    outputs: Any = None


class _Disagreement(BaseException):
    """A cell sees what no PyTorch module saw, and a choice made before it can still be taken back.

    No Exception: neither the network's own code nor a runner is to take it for an error.
    """


@dataclass
class _Choice:
    cell: str
    options: list[Option]
    trail: int  # how many cells had their weights before
    among: int  # the parameters of all modules among which was chosen, as bits
    at: int = 0
    closed: bool = False  # not asked again
    confirmed: bool = False  # by a value that depends on all of them

    @property
    def open(self) -> bool:
        return not self.closed and self.at + 1 < len(self.options)


@dataclass
class _Best:
    """The furthest that any alternative got."""

    score: tuple[int, float]
    options: dict[str, Option]
    where: tuple[str, int]


class Identifier:
    """One search: it stands around every call of every cell (a :data:`automap.running.Watch`), and changes weights.

    Args:
        trace: of the PyTorch network.
        tolerance: for each call of the trace, how far apart fingerprints may be that are the same.
        runner: of the MindSpore network, which is about to run.
        listings: of both networks.
        outputs: what the PyTorch network gave, as its runner returns it.
        value: the present values of a PyTorch parameter.
        rank: how much speaks for a module and a cell without running them, 0 to 1.
        feed: PyTorch's own inputs and outputs of a call. With it, a cell that sees what PyTorch does not have is given
            what its counterpart saw, so that what follows can be told again.
        pins: PyTorch names to MindSpore names that are settled.
        held: what each MindSpore parameter has before its cell is told.
    """

    def __init__(
        self,
        trace: Trace,
        tolerance: Sequence[float],
        runner: Runner,
        listings: tuple[Listing, Listing],
        outputs: Any,
        value: Callable[[str], Array],
        rank: Callable[[Module, Module], float],
        feed: Callable[[int], tuple[list[Array], list[Array]]] | None = None,
        pins: dict[str, str] | None = None,
        held: Sequence[Way] = (),
    ) -> None:
        self.trace, self.tolerance, self.runner, self.outputs, self.value, self.rank, self.feed = (
            trace, tolerance, runner, outputs, value, rank, feed,
        )  # fmt: skip
        self.torch, self.mindspore = listings
        self._pins = pins or {}
        self._pinned = {m: t for t, m in self._pins.items()}
        self.found = Identified()
        self._by_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for k, call in enumerate(trace.calls):
            for size in {f.size for f in call.inputs if not f.flat} or {0}:
                self._by_size[size,].append(k)
        self._values: dict[int, list[tuple[Fingerprint, float]]] = defaultdict(list)
        for call, allowed in zip(trace.calls, tolerance, strict=True):
            for f in (*call.inputs, *call.outputs):
                self._values[f.size].append((f, allowed))
        own = [path for path, m in runner.modules.items() if m.own]
        self._inner = {path for path in own if any(o.startswith(f"{path}.") if path else o for o in own if o != path)}
        self._options: dict[tuple[str, str], list[Option]] = {}
        self._held: dict[str, Way] = {}
        self._holder: dict[str, Way] = {}
        for way in held:
            self._hold(way)
        self._has = dict(self._held)  # what is in the network at present
        self._undo: list[list[tuple[str, Way | None]]] = []
        self._used: Counter[str] = Counter()
        self._trail: list[str] = []
        self._stack: list[_Choice] = []
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
        self._instead: list[tuple[Fingerprint, Array]] = []

    # ----------------------------------------------------------------------------------------------------- the search

    def __call__(self, visit: Visit, proceed: Callable[..., Any]) -> Any:
        frame, mark = len(self._stack), len(self._log)
        while True:
            try:
                return self._cell(visit, proceed) if visit.module.own else proceed(*visit.args, **visit.kwargs)
            except _Disagreement:
                if not self._next(frame):
                    raise
                for path, _ in self._log[mark:]:
                    self._count[path] -= 1
                del self._log[mark:]

    def run(self, inputs: Inputs, forward: Forward | None = None) -> Identified:
        """Run the network and search; every parameter is put back afterwards.

        Raises:
            InputError, NotRunnableError: as :meth:`automap.running.Runner.run` does.
        """
        while True:
            try:
                self.found.outputs = self.runner.run(inputs, forward, watch=self)
                self._end(self.found.outputs)
                break
            except _Disagreement:  # of the outputs, or in a forward of the user's that calls parts of the network
                self._next(0)
                self._count.clear()
                self._log.clear()
        self.found.confirmed = frozenset(self.trace.of_bits(self._confirmed))
        self.found.apart, self.found.held = tuple(self._apart), self._held
        self.found.unsure = frozenset(c.cell for c in self._stack if len(c.options) > 1 and not c.confirmed)
        self.found.sound = frozenset(cell for cell, seen in self.found.seen.items() if self._is_sound(cell, seen))
        return self.found

    def _is_sound(self, cell: str, seen: Seen) -> bool:
        if seen.call < 0 or max(seen.before, seen.after) > self.tolerance[seen.call]:
            return False
        bits = self.trace.calls[seen.call].seen
        return not self._loose(bits) and not any(
            c.cell == cell or c.among & bits for c in self._stack if not c.confirmed
        )

    def _next(self, frame: int) -> bool:
        """Take back the last open choice made inside the present call, and take its next alternative."""
        while len(self._stack) > frame:
            choice = self._stack[-1]
            self._forget(choice.trail)
            if choice.open and self._tried < MOST_TRIES:
                self._tried += 1
                self.found.tries += 1
                choice.at += 1
                self._give(choice.cell, choice.options[choice.at])
                return True
            self._stack.pop()
        if self._tried < MOST_TRIES and any(c.open for c in self._stack):
            return False
        # Nothing helped: the furthest one stands, and from here on nothing that was chosen is asked again.
        best, self._best = self._best, None
        self._tried = 0
        for choice in self._stack:
            choice.closed = True
        if best is not None:
            self._replay.update(best.options)
            self._accepted.add(best.where)
        return True

    def _disagree(self, cell: str, d: float) -> None:
        """What a cell sees agrees with nothing. Returns where that has to be lived with."""
        where = (cell, self._count[cell])
        if where in self._accepted:
            return
        if not any(c.open for c in self._stack):
            self._accepted.add(where)
            return
        score = (sum(agreed for _, agreed in self._log), -min(d, 1e9))
        if self._best is None or score > self._best.score:
            self._best = _Best(score, {c.cell: c.options[c.at] for c in self._stack}, where)
        raise _Disagreement

    def _give(self, cell: str, option: Option, call: int = -1, soft: bool = False) -> None:
        self._put(option)
        self._displace(option)
        self._trail.append(cell)
        self._used[option.path] += not soft
        self.found.seen[cell] = Seen(option, call, soft=soft)

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
            seen = self.found.seen.pop(cell)
            self._used[seen.option.path] -= not seen.soft
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
        bits &= ~self._forced
        pending = [c for c in self._stack if not c.confirmed and c.among & bits]
        if any(c.among & ~bits for c in pending):
            return
        if not self._loose(bits):
            self._confirmed |= bits
        for choice in pending:
            choice.closed = choice.confirmed = True
            chosen = choice.options[choice.at]
            self._patterns[_pattern(chosen.path), _pattern(choice.cell)] += 1

    def _loose(self, bits: int) -> bool:
        """Whether some of these parameters were told by no cell, and others of their shape are as loose."""
        told = self.trace.bits([name for s in self.found.seen.values() if not s.soft for name in s.option.torch])
        mine, others = bits & ~told, self.trace.given & ~bits & ~told
        if not mine or not others:
            return False
        shapes = {shape_key(self.torch.by_name[name]) for name in self.trace.of_bits(mine)}
        return any(shape_key(self.torch.by_name[name]) in shapes for name in self.trace.of_bits(others))

    # -------------------------------------------------------------------------------------------------------- one cell

    def _cell(self, visit: Visit, proceed: Callable[..., Any]) -> Any:
        cell = visit.module.path
        args, kwargs = visit.args, visit.kwargs
        tensors = self.runner.tensors((args, kwargs))
        prints = [fingerprint(self.runner.array(t)) for t in tensors]
        if self._instead and (known := self._known_replacements(tensors, prints)):
            args, kwargs = replaced(args, known, self.runner), replaced(kwargs, known, self.runner)
            tensors = self.runner.tensors((args, kwargs))
            prints = [fingerprint(self.runner.array(t)) for t in tensors]
        new = cell not in self.found.seen
        call, d = self._settled(cell, prints) if not new else self._chosen(visit.module, prints)
        agreed = call >= 0 and d <= self.tolerance[call]
        self._log.append((cell, agreed))
        self._count[cell] += 1
        seen = self.found.seen.get(cell)
        if seen is None:  # nothing in PyTorch is like it
            return proceed(*args, **kwargs)
        fed = False
        if agreed and self._ordered(cell, prints, call, d):
            self._confirm(self.trace.calls[call].seen)
        elif call >= 0 and self.feed is not None and d > self.tolerance[call]:
            args, kwargs, fed = self._fed(call, args, kwargs, tensors, prints)
        if new or call >= 0:
            seen.call, seen.before, seen.fed = call, d, seen.fed or fed
        out = proceed(*args, **kwargs)
        if call < 0 or cell in self._inner:
            return out
        return self._computed(visit, cell, seen, out, new and (agreed or fed), proceed, args, kwargs)

    def _ordered(self, cell: str, prints: list[Fingerprint], call: int, d: float) -> bool:
        """Whether a cell sees PyTorch's values also in PyTorch's order."""
        if in_order(prints, self.trace.calls[call].inputs):
            return True
        self._disagree(cell, d)
        return False

    def _settled(self, cell: str, prints: list[Fingerprint]) -> tuple[int, float]:
        """The call of its counterpart that a cell with weights is in, and how far its input is from that call's."""
        path = self.found.seen[cell].option.path
        calls = self.trace.calls_of.get(path, [])
        call, d = min(((k, apart(prints, self.trace.calls[k].inputs)) for k in calls), key=_second, default=(-1, 0.0))
        if call >= 0 and self.tolerance[call] < d < math.inf:
            self._apart[cell] = None
            self._disagree(cell, d)
        return call, d

    def _chosen(self, module: Module, prints: list[Fingerprint]) -> tuple[int, float]:
        """Give a cell the weights of the module that saw the same, and say which call that was in, and how near."""
        cell = module.path
        near = self._near(module, prints)
        same = [(k, d) for k, d in near if d <= self.tolerance[k]]
        calls: dict[str, tuple[int, float]] = {}
        among = same
        if not same:
            lone = not any(not f.flat for f in prints)
            if not lone and not self._is_known(prints):
                self._apart[cell] = None
                self._disagree(cell, near[0][1] if near else math.inf)
            among = [(k, d) for k, d in near if d <= min(LOOSE, 3 * near[0][1])]
            calls = {} if among else self._expected(module, lone)
        calls |= {self.trace.calls[k].path: (k, d) for k, d in reversed(among)}
        if not calls:
            return -1, math.inf
        options = [o for path in self._ranked(module, calls) for o in self._ways(path, module)]
        if cell in self._replay and self._replay[cell] in options:
            options.remove(self._replay[cell])
            options.insert(0, self._replay[cell])
        chosen = options[0]
        call, d = calls[chosen.path]
        trail = len(self._trail)
        self._give(cell, chosen, call, soft=d == math.inf)
        if not same:
            # Nothing it saw told that it is this one: that is for what follows to say, of all its weights at once.
            calls, options = {chosen.path: calls[chosen.path]}, [chosen]
        if len(options) > 1 or not same:
            bits = 0
            for path in calls:
                bits |= self.trace.bits([name for _, name in self.trace.modules[path].own])
            # What was given up before is not asked again.
            given_up = cell in self._replay or not same
            # Only what has an effect at all can be waited for.
            self._stack.append(_Choice(cell, options, trail, bits & self.trace.given, closed=given_up))
        return call, d

    def _near(self, module: Module, prints: list[Fingerprint]) -> list[tuple[int, float]]:
        """The calls of free modules that a cell can be, whose input is comparable to its own, the nearest first.

        Of those that are too far to be its own only the first one.
        """
        sizes = {f.size for f in prints if not f.flat}
        calls = sorted({k for size in sizes for k in self._by_size[size,] if not self._used[self.trace.calls[k].path]})
        found: list[tuple[int, float]] = []
        for k, d in sorted(((k, apart(prints, self.trace.calls[k].inputs)) for k in calls), key=_second):
            if d == math.inf or (found and d > LOOSE):
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
            same = self._patterns[_pattern(path), _pattern(module.path)]
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

    # ------------------------------------------------------------------------------------------- outputs, and feeding

    def _computed(
        self,
        visit: Visit,
        cell: str,
        seen: Seen,
        out: Any,
        told: bool,
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compare what a cell gives; where its input is right and its output is not, try other weights for it."""
        call = self.trace.calls[seen.call]
        allowed = self.tolerance[seen.call]
        seen.after = d = self._given(out, call)
        if not told or d <= allowed or (d == math.inf and not call.outputs):
            return out
        for option in self._others(cell, seen.option):
            self._put(option)
            again = proceed(*args, **kwargs)
            other = min(self.trace.calls_of[option.path], key=lambda k: abs(k - seen.call))
            after = self._given(again, self.trace.calls[other])
            if after <= self.tolerance[other]:
                self._used[seen.option.path] -= 1
                self._used[option.path] += 1
                self.found.seen[cell] = Seen(option, other, seen.before, after, seen.fed)
                for way in option.ways:
                    self._hold(way)
                self._taken(cell, option)
                return again
        self._put(seen.option)
        if self.feed is not None:
            results = self.runner.tensors(out)
            arrays = self.feed(seen.call)[1]
            if len(results) == len(arrays) == 1:
                made = adapted(arrays[0], self.runner.array(results[0]))
                if made is not None:
                    self._force(call.given)
                    return replaced(out, {id(results[0]): made}, self.runner)
        return out

    def _given(self, out: Any, call: Call) -> float:
        return apart([fingerprint(self.runner.array(t)) for t in self.runner.tensors(out)], call.outputs)

    def _others(self, cell: str, option: Option) -> Iterator[Option]:
        """Other weights that a cell can have: square matrices turned round, then the modules that saw the same."""
        other_way = turned(option)
        if other_way != option:
            yield other_way
        choice = self._stack[-1] if self._stack and self._stack[-1].cell == cell else None
        for other in choice.options[choice.at + 1 :] if choice is not None else ():
            if not self._used[other.path]:
                yield other

    def _taken(self, cell: str, option: Option) -> None:
        """Another alternative of the last choice was taken: it goes first, what was tried before it is out."""
        if self._stack and self._stack[-1].cell == cell:
            choice = self._stack[-1]
            rest = [o for o in choice.options[choice.at + 1 :] if o != option]
            choice.options, choice.at = [option, *rest], 0

    def _fed(
        self,
        call: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Any],
        prints: list[Fingerprint],
    ) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
        """A cell's arguments with PyTorch's values in place of its own, where there are some of its shape."""
        assert self.feed is not None
        arrays = [(a, fingerprint(a)) for a in self.feed(call)[0]]
        instead: dict[int, Array] = {}
        for tensor, mine in zip(tensors, prints, strict=True):
            if mine.flat or mine.whole:
                continue
            fitting = [(distance(mine, f), i) for i, (_, f) in enumerate(arrays) if f.size == mine.size and not f.whole]
            if not fitting:
                continue
            d, i = min(fitting)
            made = adapted(arrays[i][0], self.runner.array(tensor))
            if made is not None and d > 0:
                instead[id(tensor)] = made
                self._instead.append((mine, arrays[i][0]))
        if not instead:
            return args, kwargs, False
        self._force(self.trace.calls[call].seen)
        return replaced(args, instead, self.runner), replaced(kwargs, instead, self.runner), True

    def _force(self, bits: int) -> None:
        self._forced |= bits & ~self._confirmed
        for choice in self._stack:
            if choice.among & bits:
                choice.closed = True

    def _known_replacements(self, tensors: list[Any], prints: list[Fingerprint]) -> dict[int, Array]:
        """What PyTorch has for values that were replaced before, and that another cell sees, too."""
        found = {}
        for tensor, mine in zip(tensors, prints, strict=True):
            for theirs, array in self._instead:
                if not mine.flat and not mine.whole and distance(mine, theirs) <= 1e-6:
                    made = adapted(array, self.runner.array(tensor))
                    if made is not None:
                        found[id(tensor)] = made
                        break
        return found

    def _end(self, outputs: Any) -> None:
        """The network's own outputs are the last ones to agree."""
        pairing = comparison.pair(self.outputs, outputs)
        prints = [(fingerprint(a), fingerprint(b)) for _, a, b in pairing.pairs]
        distances = [distance(f, g) for f, g in prints if not f.flat]
        if not distances:
            return
        if max(distances) > max(self.tolerance, default=0.0):
            self._disagree("", max(distances))
        elif not pairing.problems:
            self._confirm(self.trace.given)


def _pattern(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _second(item: tuple[int, float]) -> float:
    return item[1]
