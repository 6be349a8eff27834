"""Both networks as running them shows them: each weight that a layer computes from several parameters as the one it is.

While cells are told by what they see, a layer has its weight, whatever it keeps: lengths and directions, or a weight
and its singular vectors; and a norm that the port has folded into the layer before it is a part of that layer. What was
told of such weights is then said of the parameters that are really there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from automap import transforms
from automap.arrangements import Way
from automap.dtypes import Array
from automap.folding import AXES
from automap.graph import Listing, Param
from automap.mapping import Mapping
from automap.reparametrised import computed
from automap.running import Forward, Inputs, Module, Runner, Visit, Watch
from automap.search import Identified
from automap.tracing import Call, Trace
from automap.transforms import Transform, inverse

Chain = tuple[Transform, ...]
#: PyTorch's own inputs and outputs of a call of the trace.
Feed = Callable[[int], tuple[list[Array], list[Array]]]


@dataclass(frozen=True)
class Group:
    """Parameters that make others: those that a layer keeps, and those that it computes with.

    Attributes:
        parts: what is really there.
        made: what the layer computes with, the greatest first.
        chain: makes it.
        main: the part of the shape of the first that is made.
        norm: the paths of the layer and of the norm after it that takes part in it, if there is one.
    """

    parts: tuple[Param, ...]
    made: tuple[Param, ...]
    chain: Chain
    main: Param
    norm: tuple[str, str] | None = None


class Effective:
    """Both sides of a proof.

    Args:
        listings: of both networks.
        mapping: tells what is one weight, and what was folded.
        trace: of the PyTorch network.
        runner: of the MindSpore network.
    """

    def __init__(self, listings: tuple[Listing, Listing], mapping: Mapping, trace: Trace, runner: Runner) -> None:
        self._ours = [*_weights(listings[0], [e.torch for e in mapping.entries])]
        self._ours += _folds(listings[0], mapping, trace)
        self._theirs = [*_weights(listings[1], [e.mindspore for e in mapping.entries])]
        self._group_of = {p.name: g for g in self._ours for p in g.made}
        self._port_group_of = {p.name: g for g in self._theirs for p in g.made}
        self.listings = _merged(listings[0], self._ours), _merged(listings[1], self._theirs)
        self._outputs_of: dict[int, int] = {}
        self.trace = _seen(trace, self._ours, self._outputs_of) if self._ours else trace
        self.runner: Any = _Whole(runner, self._theirs) if self._theirs else runner

    def parts(self, name: str) -> Iterator[str]:
        """The names of the parameters behind one on either side."""
        group = self._group_of.get(name) or self._port_group_of.get(name)
        yield from (name,) if group is None else (p.name for p in group.parts)

    def value(self, value: Callable[[str], Array]) -> Callable[[str], Array]:
        """The values of PyTorch's parameters as its layers compute with them."""

        def made(name: str) -> Array:
            group = self._group_of.get(name)
            if group is None:
                return value(name)
            arrays = transforms.apply(group.chain, [value(p.name) for p in group.parts])
            return arrays[[p.name for p in group.made].index(name)]

        return made

    def feed(self, feed: Feed | None) -> Feed | None:
        """What a layer gives is what comes out of the norm that was folded into it."""
        if feed is None or not self._outputs_of:
            return feed
        return lambda call: (feed(call)[0], feed(self._outputs_of.get(call, call))[1])

    # ------------------------------------------------------------------------------------------------------ in and out

    def within(self, ways: Iterable[Way]) -> Iterator[Way]:
        """Ways between the parameters that are there, as ways between those that the layers compute with."""
        of_parts = {g.parts: g for g in self._ours}
        port = {g.parts: g for g in self._theirs}
        for way in ways:
            ours, theirs, chain = of_parts.get(way.torch), port.get(way.mindspore), way.chain
            if theirs is not None:
                undone = _undone(theirs)
                if chain[len(chain) - len(undone) :] != undone:
                    continue
                way = Way(way.torch, theirs.made, chain[: len(chain) - len(undone)])
            if ours is None:
                if not any(p.name in self._hidden for p in way.torch):
                    yield way
            elif ours.norm is not None:
                shape = way.chain[0].args.get("shape")
                turn = () if shape is None else (Transform("reshape", {"shape": shape, "before": ours.main.shape}),)
                for made, m, steps in zip(ours.made, way.mindspore, (turn, ()), strict=True):
                    yield Way((made,), (m,), steps)
            elif way.chain[: len(ours.chain)] == ours.chain:
                yield Way(ours.made, way.mindspore, way.chain[len(ours.chain) :])

    @cached_property
    def _hidden(self) -> frozenset[str]:
        return frozenset(p.name for g in self._ours for p in g.parts)

    def without(self, ways: Iterable[Way]) -> list[Way]:
        """The other way round. What cannot be said of the parameters that are there is left out."""
        out: list[Way] = []
        folded: dict[int, list[Way]] = {}
        for way in ways:
            port = self._port_group_of.get(way.mindspore[0].name) if len(way.mindspore) == 1 else None
            if port is not None:
                way = Way(way.torch, port.parts, (*way.chain, *_undone(port)))
            elif any(m.name in self._port_group_of for m in way.mindspore):
                continue
            groups = [g for t in way.torch if (g := self._group_of.get(t.name)) is not None]
            if not groups:
                out.append(way)
            elif any(g.norm is not None for g in groups):
                folded.setdefault(self._ours.index(groups[0]), []).append(way)
            elif len(groups) == len(way.torch) and (chain := _common_chain(groups)) is not None:
                parts = tuple(p for g in groups for p in g.parts)
                out.append(Way(parts, way.mindspore, (*chain, *way.chain)))
        for at, some in folded.items():
            out += _folded_way(self._ours[at], some)
        return out

    def told(self, found: Identified) -> Identified:
        """What was found out, said of the parameters that are there."""
        if not self._ours and not self._theirs:
            return found
        ways = {id(s.option): tuple(self.without(s.option.ways)) for s in found.seen.values()}
        for seen in found.seen.values():
            seen.option = replace(seen.option, ways=ways[id(seen.option)])
        held = list(dict.fromkeys(_hashable(way) for way in found.held.values()))
        by_key = {_hashable(way): way for way in found.held.values()}
        real = self.without(by_key[key] for key in held)
        found.held = {m.name: way for way in real for m in way.mindspore}
        found.confirmed = frozenset(part for name in found.confirmed for part in self.parts(name))
        return found


def _hashable(way: Way) -> tuple[Any, ...]:
    return way.names, str(way.chain)


def _undone(group: Group) -> Chain:
    return inverse(group.chain, [p.shape for p in group.parts])


def _common_chain(groups: Sequence[Group]) -> Chain | None:
    """What makes the weights of several groups at once of all of their parts."""
    first = groups[0].chain
    if len(groups) == 1:
        return first
    together = all(g.chain == first for g in groups) and [t.op for t in first] == ["weight_norm"]
    return first if together else None


def _folded_way(group: Group, ways: Sequence[Way]) -> Iterator[Way]:
    """The way of a layer and the norm that was folded into it, from those of the weight and the bias they make."""
    by_name = {way.torch[0].name: way for way in ways if way.single}
    weight, bias = (by_name.get(p.name) for p in group.made)
    if weight is None or bias is None:
        return
    if any(t.op != "reshape" for t in (*weight.chain, *bias.chain)):
        return
    shape = weight.mindspore[0].shape
    args = dict(group.chain[0].args)
    if shape is not None and shape != group.main.shape:
        args["shape"] = list(shape)
    yield Way(group.parts, (*weight.mindspore, *bias.mindspore), (Transform("fold_norm", args),))


# ----------------------------------------------------------------------------------------------------- what is computed


def _weights(listing: Listing, entries: Sequence[tuple[str, ...]]) -> Iterator[Group]:
    """The weights whose parts no entry has apart."""
    entry_of = {name: names for names in entries for name in names}
    for w in computed(listing).weights:
        names = tuple(p.name for p in w.parts)
        if all(entry_of.get(n, names) == names for n in names):
            yield Group(w.parts, (w.param(),), w.chain, w.main)


def _folds(listing: Listing, mapping: Mapping, trace: Trace) -> Iterator[Group]:
    """Norms that the mapping has folded into a layer: of the layer that feeds them, as the trace shows."""
    owners = {name: path for path, m in trace.modules.items() for _, name in m.own}
    for e in mapping.entries:
        if [t.op for t in e.transform] != ["fold_norm"]:
            continue
        norm = owners.get(e.torch[-1])
        givers = {trace.calls[i].path for i, j in trace.edges if trace.calls[j].path == norm}
        layers = [path for path in givers if any(a == "weight" for a, _ in trace.modules[path].own)]
        if norm is None or len(layers) != 1:
            continue
        own = dict(trace.modules[layers[0]].own)
        weight, args = listing.by_name[own["weight"]], e.transform[0].args
        args = {"eps": args["eps"], "axis": AXES.get(trace.modules[layers[0]].kind, args.get("axis", 0))}
        if (weight.shape or ())[args["axis"] :][:1] != listing.by_name[e.torch[-1]].shape:
            continue
        bias = listing.by_name.get(own.get("bias", ""))
        parts = (weight, *((bias,) if bias is not None else ()), *(listing.by_name[n] for n in e.torch[-4:]))
        name = f"{layers[0]}.bias" if layers[0] else "bias"
        made = replace(parts[-1], name=name if bias is None else bias.name, kind="parameter", eps=None, aliases=())
        args = {k: v for k, v in args.items() if k != "axis" or v}
        yield Group(parts, (weight, made), (Transform("fold_norm", args),), weight, (layers[0], norm))


def _merged(listing: Listing, groups: Sequence[Group]) -> Listing:
    if not groups:
        return listing
    at = {g.main.name: g.made for g in groups}
    away = {p.name for g in groups for p in g.parts}
    rows: list[Param] = []
    for p in listing:
        if p.name in at:
            rows += at[p.name]
        elif p.name not in away:
            rows.append(p)
    return replace(listing, parameters=tuple(rows))


def _modules(modules: Dict[str, Module], groups: Sequence[Group]) -> dict[str, Module]:
    """The same, with what they compute with as their own."""
    at = {g.main.name: g.made for g in groups}
    away = {p.name for g in groups for p in g.parts}
    out = {}
    for path, m in modules.items():
        own: list[tuple[str, str]] = []
        for attribute, name in m.own:
            if name in at:
                own += [(p.leaf, p.name) for p in at[name]]
            elif name not in away:
                own.append((attribute, name))
        out[path] = replace(m, own=tuple(own))
    return out


def _seen(trace: Trace, groups: Sequence[Group], outputs_of: dict[int, int]) -> Trace:
    """The trace of a network that has what it computes with.

    Args:
        outputs_of: is filled with the calls of norms that give what the calls of layers gave.
    """
    renamed = {g.main.name: g.made[0].name for g in groups}
    hidden = trace.bits([p.name for g in groups for p in g.parts if p is not g.main and p not in g.made])
    norms = {g.norm for g in groups if g.norm is not None}
    for i, j in trace.edges:
        if (trace.calls[i].path, trace.calls[j].path) in norms:
            outputs_of[i] = j
    calls = []
    for k, c in enumerate(trace.calls):
        end: Call = trace.calls[outputs_of.get(k, k)]
        calls.append(replace(c, outputs=end.outputs, seen=c.seen & ~hidden, given=end.given & ~hidden))
    names = tuple(renamed.get(n, n) for n in trace.names)
    modules = _modules(trace.modules, groups)
    return replace(trace, names=names, modules=modules, calls=tuple(calls), given=trace.given & ~hidden)


class _Whole:
    """A MindSpore network whose cells have what they compute with; for the rest as its runner."""

    def __init__(self, runner: Runner, groups: Sequence[Group]) -> None:
        self._runner, self._groups = runner, {g.made[0].name: g for g in groups}
        self.modules = _modules(runner.modules, groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def put(self, values: Dict[str, Array]) -> None:
        real: dict[str, Array] = {}
        for name, array in values.items():
            group = self._groups.get(name)
            if group is None:
                real[name] = array
                continue
            arrays = transforms.apply(_undone(group), [array])
            real |= {p.name: a for p, a in zip(group.parts, arrays, strict=True)}
        self._runner.put(real)

    def run(self, inputs: Inputs, forward: Forward | None = None, watch: Watch | None = None) -> Any:
        def whole(visit: Visit, proceed: Callable[..., Any]) -> Any:
            assert watch is not None
            return watch(replace(visit, module=self.modules[visit.module.path]), proceed)

        return self._runner.run(inputs, forward, whole if watch is not None else None)
