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
from collections.abc import Callable
from typing import Any

from automap import comparison
from automap.arrangements import Option
from automap.candidates import LOOSE, Candidates, Known, second
from automap.dtypes import Array
from automap.layouts import adapted, replaced
from automap.running import Forward, Inputs, Module, Visit
from automap.search import Choice, Disagreement, Identified, Seen, around
from automap.tracing import Call, Fingerprint, apart, distance, fingerprint, in_order, merged

__all__ = ["Identified", "Identifier", "Seen"]


class Identifier(Candidates):
    """One search: it stands around every call of every cell (a :data:`automap.running.Watch`), and changes weights.

    Args:
        known: what is known before.
        outputs: what the PyTorch network gave, as its runner returns it.
        feed: PyTorch's own inputs and outputs of a call. With it, a cell that sees what PyTorch does not have is given
            what its counterpart saw, so that what follows can be told again.
    """

    def __init__(
        self,
        known: Known,
        outputs: Any,
        feed: Callable[[int], tuple[list[Array], list[Array]]] | None = None,
    ) -> None:
        super().__init__(known)
        self.outputs, self.feed = outputs, feed
        own = [path for path, m in known.runner.modules.items() if m.own]
        self._inner = {path for path in own if any(o.startswith(f"{path}.") if path else o for o in own if o != path)}
        self._instead: list[tuple[Fingerprint, Array]] = []
        self._guesses: dict[str, int] = {}  # what else a cell may be that was fed as if it were a certain module
        self._given_by: dict[tuple[str, int], dict[str, Fingerprint]] = {}  # what the cells of one module gave

    # ----------------------------------------------------------------------------------------------------- the search

    def __call__(self, visit: Visit, proceed: Callable[..., Any]) -> Any:
        frame, mark = len(self._stack), len(self._log)
        while True:
            try:
                return self._cell(visit, proceed) if visit.module.own else proceed(*visit.args, **visit.kwargs)
            except Disagreement:
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
            except Disagreement:  # of the outputs, or in a forward of the user's that calls parts of the network
                self._next(0)
                self._count.clear()
                self._log.clear()
        self.found.confirmed = frozenset(self.trace.of_bits(self._confirmed))
        self.found.apart, self.found.held = tuple(self._apart), self._held
        self.found.unsure = frozenset(
            c.cell for c in self._stack if (len(c.options) > 1 or c.guessed) and not c.confirmed
        )
        self.found.sound = frozenset(cell for cell, seen in self.found.seen.items() if self._is_sound(cell, seen))
        return self.found

    def _is_sound(self, cell: str, seen: Seen) -> bool:
        if seen.call < 0 or max(seen.before, seen.after) > self.tolerance[seen.call]:
            return False
        bits = self.trace.calls[seen.call].seen
        # Its own parameters, too: what is left when others have chosen is told no better than what they chose.
        mine = bits | self._bits_of(seen.option.paths)
        return not self._loose(bits) and not any(
            c.cell == cell or c.among & mine for c in self._stack if not c.confirmed and not c.silent
        )

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
        self.found.cells += 1
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
        if seen.option.several:
            self._several_computed(cell, seen, out)
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
        option = self.found.seen[cell].option
        calls = [k for path in option.paths for k in self.trace.calls_of.get(path, [])]
        call, d = min(((k, apart(prints, self.trace.calls[k].inputs)) for k in calls), key=second, default=(-1, 0.0))
        if option.form[:1] == ("blind",):
            return (call, d) if call >= 0 and d <= self.tolerance[call] else (-1, math.inf)
        if len(option.cells) > 1 and any(not f.flat for f in prints):
            self._sights[cell, option.path] = call >= 0 and d <= self.tolerance[call]
            d = min(d, 1e9)  # what it shares a module with, and sees nothing of the kind, is none of it
        if call >= 0 and self.tolerance[call] < d < math.inf:
            self._apart[cell] = None
            self._disagree(cell, d)
        return call, d

    def _chosen(self, module: Module, prints: list[Fingerprint]) -> tuple[int, float]:
        """Give a cell the weights of the module that saw the same, and say which call that was in, and how near."""
        cell = module.path
        comparable = self._comparable(prints)
        near = self._near(module, comparable)
        same = [(k, d) for k, d in near if d <= self.tolerance[k]]
        seeing = {self.trace.calls[k].path: (k, d) for k, d in reversed(comparable) if d <= self.tolerance[k]}
        calls: dict[str, tuple[int, float]] = {}
        among, composed = same, []
        if (computed := self._computed_option(module)) is not None:
            plain = [o for path in {self.trace.calls[k].path for k, _ in same} for o in self._ways(path, module)]
            return self._take(cell, [computed, *plain], seeing)
        if not same:
            if composed := self._composed(module, seeing):
                return self._take(cell, composed, seeing)
            if not near and (blind := self._blind(module)):
                return self._take(cell, blind, {})
            lone = not any(not f.flat for f in prints)
            if not lone and not self._is_known(prints):
                if within := self._within(module):
                    return self._take(cell, within, {})
                self._apart[cell] = None
                self._disagree(cell, near[0][1] if near else math.inf)
            among = [(k, d) for k, d in near if d <= min(LOOSE, 3 * near[0][1])]
            calls = {} if among else self._expected(module, lone)
            self._look(cell, prints)
        calls |= {self.trace.calls[k].path: (k, d) for k, d in reversed(among)}
        if not calls:
            return -1, math.inf
        options = [o for path in self._ranked(module, calls) for o in self._ways(path, module)]
        if same:
            return self._take(cell, options, calls, lambda: self._reserve(module, options, seeing))
        # Nothing it saw told that it is this one: that is for what follows to say, of all its weights at once.
        chosen = self._replay.get(cell, options[0])
        chosen = chosen if chosen in options else options[0]
        call, d = calls[chosen.path]
        trail = len(self._trail)
        self._give(cell, chosen, call, soft=d == math.inf)
        rivals = self._rivals(chosen.path, module)
        self._guesses[cell] = rivals
        bits = self._bits_of(chosen.paths) & self.trace.given
        self._stack.append(Choice(cell, [chosen], trail, bits | rivals, closed=True, guessed=bool(rivals)))
        return call, d

    def _take(
        self,
        cell: str,
        options: list[Option],
        calls: dict[str, tuple[int, float]],
        reserve: Callable[[], list[Option]] | None = None,
    ) -> tuple[int, float]:
        """Give a cell the first of some options; the others are for where what follows disagrees.

        Args:
            calls: what is known of the calls of their modules, and how near the cell's input is to theirs.
            reserve: further options, for where nothing else helps.
        """
        own = around((options[0].path,)), around(options[0].cells or (cell,))
        if reserve is not None and own in self._learnt:
            options = [*(o for o in reserve() if o.form in self._learnt[own]), *options]
            options = [o for i, o in enumerate(options) if o not in options[:i]]
        if cell in self._replay:
            options = [self._replay[cell], *(o for o in options if o != self._replay[cell])]
        chosen, trail = options[0], len(self._trail)
        call, d = min((calls[path] for path in chosen.paths if path in calls), key=second, default=(-1, math.inf))
        self._give(cell, chosen, call)
        if len(options) > 1 or reserve is not None or not calls:
            bits = self._bits_of({path for o in options for path in o.paths})
            # What was given up before is not asked again; only what has an effect at all can be waited for.
            # Where it was guessed what the cell is, it was fed with what that module saw: now it sees just that.
            rivals = self._guesses.get(cell, 0)
            choice = Choice(
                cell,
                options,
                trail,
                bits & self.trace.given | rivals,
                reserve,
                closed=cell in self._replay,
                guessed=bool(rivals),
            )
            self._stack.append(choice)
        return call, d

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
            other = self._nearest(option.path, seen.call)
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

    def _several_computed(self, cell: str, seen: Seen, out: Any) -> None:
        """Compare what several modules gave with what a cell gives, or what several cells give with what a module gave.

        It tells whether the weights are right, whatever their order.
        """
        option, allowed = seen.option, self.tolerance[seen.call]
        if option.form == ("held",):  # what it gives is what some function after them gives
            return
        results = self.runner.tensors(out)
        if len(results) != 1:
            return
        mine = fingerprint(self.runner.array(results[0]))
        if len(option.modules) > 1:
            inputs = self.trace.calls[seen.call].inputs
            calls = [self.trace.calls[self._nearest(path, seen.call)] for path in option.modules]
            if any(len(c.outputs) != 1 or apart(c.inputs, inputs) > allowed for c in calls):
                return
            theirs = merged([c.outputs[0] for c in calls])
        else:
            given = self._given_by.setdefault((option.path, seen.call), {})
            if cell == option.cells[0]:
                given.clear()  # of an earlier try
            given[cell] = mine
            outputs = self.trace.calls[seen.call].outputs
            if set(given) != set(option.cells) or len(outputs) != 1:
                return
            mine, theirs = merged(list(given.values())), outputs[0]
        d = distance(mine, theirs)
        seen.after = d
        if allowed < d < math.inf:
            self._disagree(cell, d)

    def _given(self, out: Any, call: Call) -> float:
        return apart([fingerprint(self.runner.array(t)) for t in self.runner.tensors(out)], call.outputs)

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
