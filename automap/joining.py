"""Parameters that one side keeps apart and the other side in one tensor, put together before layers are matched.

A fused projection has no counterpart of its shape on the other side, and its pieces have none either. So the shapes
are counted: where joining siblings of one kind, wherever they stand, takes away a surplus here and fills a want on
the other side, they are joined to a *compound*, a virtual parameter in the place of its parts. Matching then goes on
one to one, with all of its evidence, and an entry with a compound becomes one of several names.

Which siblings belong together is seen from counting; among equal choices, from their names. In which order their rows
stand in the fused tensor, and whether they are interleaved, no listing tells: see ``Compound.doubts``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from collections.abc import Mapping as Dict
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from automap.compounds import Compound, Joined, Told, are_alike, compound, flattened
from automap.errors import TransformError
from automap.graph import Listing, Param, Shape
from automap.layers import Layer, gates_apart, layers_of
from automap.names import PROJECTIONS
from automap.reparametrised import Computed, computed, decided
from automap.siblings import FEW, Form, Place, choices, cohesion, forms_of, likeliest, rows_of
from automap.spelling import distinguishing, ordered

#: How much of the greatest possible gain a join must bring: joining k layers takes away k here and fills one there.
GAIN = 0.75
#: How much it counts that the sequence of shapes is the other side's then, that what is joined are plain siblings and
#: no members of a list, that what is stacked has the wanted shape as it is, that matrices are joined by their outputs.
SEQUENCE, SIBLINGS, EXACT, OUTPUTS = 0.4, 0.5, 0.2, 0.05
#: And that joining such siblings wherever this shape is wanted would use up just what is too much here.
COUNTED = 0.3
#: Other siblings are as likely as these where less than this is between them.
CLEAR = 0.3
#: Layers of a sequence that are compared.
LOOKED_AT = 400
#: Joins at most; what was joined can be joined again (gate and up of each expert, then the experts).
ROUNDS = 12


@dataclass
class _Join:
    """Siblings of one kind to be joined, in all the places where they stand.

    Attributes:
        side: 0 for PyTorch's, 1 for MindSpore's.
        unit: what is before and after the names in which they differ, the names, and how they are joined.
        gain: the share of the greatest possible gain that it brings.
        local: the fused layer's own name on the other side.
        frameworks: whether that is the framework's own attention.
        likely: how much names speak for it.
        wanted: the fused layers.
        rivals: whether other siblings could be joined as well.
        only: the numbers in the paths of the places where it is meant, if it is not meant in all.
    """

    side: int
    unit: tuple[Any, ...]
    places: list[Place]
    gain: float
    local: str
    frameworks: bool
    likely: float
    wanted: list[Layer]
    rivals: bool = False
    only: frozenset[tuple[int, ...]] | None = None

    def paths(self) -> set[str]:
        return {layer.path for place in self.places for layer in place.members}


def join(
    torch: Listing,
    mindspore: Listing,
    settled: Dict[str, str] | None = None,
    apart: Collection[str] = (),
    told: Sequence[Told] = (),
    ignore_names: bool = False,
) -> tuple[Joined, Joined]:
    """Both listings with compounds where the other side keeps in one tensor what this one keeps apart.

    Args:
        settled: PyTorch names to MindSpore names that are each other's.
        apart: MindSpore names that take no part in matching (the states of an optimizer).
        told: what is known already; several parameters in it become a compound without a transform of its own.
        ignore_names: names do not tell which siblings belong together.
    """
    settled = settled or {}
    ours = {*settled, *(p.name for ts, _, _ in told for p in ts)}
    theirs = {*settled.values(), *apart, *(p.name for _, ms, _ in told for p in ms)}
    gates = gates_apart(torch.parameters, mindspore.parameters)
    sides = [_Side(torch, ours, gates), _Side(mindspore, theirs, gates)]
    sides[0].bundle([(ts, ms) for ts, ms, _ in told if len(ts) > 1])
    sides[1].bundle([(ms, ts) for ts, ms, _ in told if len(ms) > 1])
    for side, kept in zip(sides, decided(torch, mindspore, (ours, theirs)), strict=True):
        side.compute(kept.one)
        side.rename(kept.apart)
        side.computing = kept.unknown
    for _ in range(ROUNDS if all(side.known for side in sides) else 0):
        found = _best(sides, ignore_names)
        if found is None:
            break
        sides[found.side].apply(found)
    return sides[0].joined(()), sides[1].joined(apart)


class _Side:
    """One side: its layers, how many there are of each shape, and what was joined."""

    def __init__(self, listing: Listing, gone: set[str], gates: bool) -> None:
        self.given, self.framework, self.gone, self.gates = listing, listing.framework, gone, gates
        self.compounds: dict[str, Compound] = {}
        self.disputed: set[str] = set()
        self.computing: dict[str, str] = {}
        self.computed: set[str] = set()  # names of compounds that are no pieces of others
        self.listing = listing

    @cached_property
    def layers(self) -> list[Layer]:
        """The layers of what can be joined."""
        return layers_of([p for p in self.listing if p.name not in self.gone], self.framework, self.gates)

    @cached_property
    def have(self) -> Counter[Hashable]:
        """How many layers there are of each shape."""
        return Counter(map(_key, self.layers))

    @cached_property
    def siblings(self) -> dict[Hashable, list[Layer]]:
        """The layers of one shape in one module."""
        found: dict[Hashable, list[Layer]] = defaultdict(list)
        for layer in self.layers:
            found[layer.parts[:-1], _key(layer)].append(layer)
        return found

    def beside(self, layer: Layer) -> list[Layer]:
        """The layers of the same shape in the same module, itself included."""
        return self.siblings[layer.parts[:-1], _key(layer)]

    @property
    def known(self) -> bool:
        """Whether all shapes are known."""
        return all(layer.main[1].shape is not None for layer in self.layers)

    def _changed(self) -> None:
        for name in ("layers", "have", "siblings"):
            self.__dict__.pop(name, None)

    def rows(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], list[Layer]]]:
        """Layers that may be joined; see :func:`rows_of`."""
        return rows_of([x for x in self.layers if x.main[1].name not in self.computed])

    def joined(self, apart: Collection[str]) -> Joined:
        """The listing with its compounds; ``apart``: names that are no layers."""
        layers = self.layers
        if self.gone - set(apart):
            layers = layers_of([p for p in self.listing if p.name not in apart], self.framework, self.gates)
        return Joined(self.listing, layers, self.compounds, frozenset(self.disputed - self._hidden()), self.computing)

    def _hidden(self) -> set[str]:
        return {p.name for c in self.compounds.values() for p in c.parts}

    def alike(self, found: _Join) -> Iterator[Place]:
        """The places of a join, and those of the same names where nothing was wanted: a repeated block is one kind."""
        for prefix, suffix, row in self.rows():
            if (_pattern(prefix), _pattern(suffix)) != found.unit[:2]:
                continue
            if found.only is not None and _numbers(prefix) not in found.only:
                continue
            at = {layer.parts[len(prefix)]: layer for layer in row}
            if all(name in at for name in found.unit[2]):
                members = tuple(at[name] for name in found.unit[2])
                for form in self.forms(members):
                    if (form.op, form.axis) == found.unit[3:]:
                        yield Place(members, form)

    def forms(self, members: Sequence[Layer]) -> Iterator[Form]:
        """The ways in which layers can make one; of what is joined already, only those that have a transform."""
        inner = [self.compounds.get(layer.main[1].name) for layer in members]
        for form in forms_of(members):
            if not any(inner) or (form.op == "stack" and are_alike(inner)):
                yield form

    def apply(self, found: _Join) -> None:
        """Put compounds in the place of their parts."""
        made = self._renamed([c for place in self.alike(found) for c in _compounds(place, found)])
        self._put(made)
        # What was joined of compounds has the parts of those.
        for c in made:
            inner = [x for p in c.parts if (x := self.compounds.pop(p.name, None)) is not None]
            self.compounds[c.param.name] = flattened(c, inner) if inner else c
        self._changed()

    def compute(self, weights: Sequence[Computed]) -> None:
        """Let one parameter stand for the parts of each weight that is computed from them."""
        self._stand([Compound(w.param(), w.parts, w.chain, "told", doubt=w.doubt) for w in weights])

    def rename(self, weights: Sequence[Computed]) -> None:
        """Give the parts of such weights the same names, whatever each framework and its version calls them."""
        every = ((w, p, q) for w in weights for p, q in zip(w.parts, w.named_apart(), strict=True))
        made = (Compound(q, (p,), (), "told", doubt=w.doubt) for w, p, q in every)
        self._stand([c for c in made if c.param.name not in self.listing.by_name])

    def _stand(self, made: Sequence[Compound]) -> None:
        if not made:
            return
        self._put(made)
        self.compounds |= {c.param.name: c for c in made}
        self.computed |= {c.param.name for c in made}
        self._changed()

    def bundle(self, known: Sequence[tuple[tuple[Param, ...], tuple[Param, ...]]]) -> None:
        """Let one parameter stand for each of some tuples, of the shape of what is on the other side."""
        made: list[Compound] = []
        weights = {w.parts: w for w in computed(self.given).weights} if known else {}
        for parts, others in known:
            if parts in weights:
                made.append(Compound(weights[parts].param(), parts, (), "told"))
                continue
            name = "+".join([parts[0].name.rpartition(".")[0], *(p.name.rpartition(".")[2] for p in parts)])
            shape = others[0].shape if len(others) == 1 else parts[0].shape
            param = replace(parts[0], name=f"{name}.weight", shape=shape, aliases=(), path=None)
            made.append(Compound(param, parts, (), "told"))
        made = self._renamed(made)
        self.gone = self.gone | {c.param.name for c in made}
        self._stand(made)

    def _renamed(self, made: Sequence[Compound]) -> list[Compound]:
        """The same compounds under names that nothing else has."""
        seen = set(self.listing.by_name)
        out = []
        for c in made:
            name = c.param.name
            while name in seen:
                name = name.replace("+", "++", 1)
            seen.add(name)
            out.append(replace(c, param=replace(c.param, name=name)))
        return out

    def _put(self, made: Sequence[Compound]) -> None:
        into = {c.parts[0].name: c.param for c in made}
        away = {p.name for c in made for p in c.parts} - into.keys()
        rows = tuple(into.get(p.name, p) for p in self.listing if p.name not in away)
        self.listing = replace(self.listing, parameters=rows)


def _key(layer: Layer) -> Hashable:
    return _sorted(layer.main[1].shape or ())


# ------------------------------------------------------------------------------------------------------ what to join


def _best(sides: list[_Side], ignore_names: bool) -> _Join | None:
    """The join that fits best, by what it gains and by names."""
    for unstacked in (False, True):
        every: list[_Join] = []
        for s, (here, there) in enumerate((sides, sides[::-1])):
            every += _joins(s, here, there, unstacked)
        found = [j for j in every if j.gain >= GAIN]
        if found:
            break
    else:
        return None
    if ignore_names:
        for j in found:
            j.likely = 0.0
    found.sort(key=lambda j: (-round(j.gain + j.likely, 3), -len(j.places)))
    best, mine = found[0], found[0].paths()
    best.only = _only(best, every)
    for j in found[1:]:
        near = j.gain + j.likely >= best.gain + best.likely - CLEAR
        if j.side == best.side and near and _cross(mine, j.paths()):
            best.rivals = True
            sides[j.side].disputed |= {
                p.name for place in j.places for layer in place.members for p in layer.slots.values()
            }
    return best


def _only(join: _Join, every: Sequence[_Join]) -> frozenset[tuple[int, ...]] | None:
    """Where a join is meant, if others of these siblings are wanted as well: q and k in these blocks, q, k, v in those.

    The numbers in the fused layers' paths say where; None if they do not tell, or if it is meant in all places.
    """
    mine, shape = set(join.unit[2]), _sorted(join.places[0].form.shape)
    where = frozenset(_numbers(layer.parts[:-1]) for layer in join.wanted)
    if not len(where) == len(join.wanted) < len(join.places):
        return None
    others = (j for j in every if j.side == join.side and j.unit[:2] == join.unit[:2])
    if any(mine & set(j.unit[2]) and _sorted(j.places[0].form.shape) != shape for j in others):
        return where
    return None


def _numbers(parts: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(p) for p in parts if p.isdigit())


def _cross(a: set[str], b: set[str]) -> bool:
    return a != b and not a.isdisjoint(b)


def _joins(s: int, here: _Side, there: _Side, unstacked: bool) -> Iterator[_Join]:
    """Every join of siblings on one side that makes a shape of which the other side has more.

    ``unstacked``: what the other side wants stacked along a first axis counts as what it is a stack of, so that what
    is joined now can be stacked next.
    """
    wanted_layers: dict[Hashable, list[Layer]] = defaultdict(list)
    have = there.have
    for layer in there.layers:
        if have[_key(layer)] > here.have[_key(layer)]:
            wanted_layers[_key(layer)].append(layer)
    if unstacked:
        have, wanted_layers = _unstacked(have, wanted_layers)
    spare = {k for k, n in here.have.items() if n > have[k]}
    if not wanted_layers or not spare:
        return
    sizes = {_product(k) for k in wanted_layers}
    units: dict[tuple[Any, ...], list[Place]] = defaultdict(list)
    first: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for prefix, suffix, row in here.rows():
        for members in choices([layer for layer in row if _key(layer) in spare]):
            if sum(_product(_key(layer)) for layer in members) not in sizes:
                continue
            for form in here.forms(members):
                if _sorted(form.shape) in wanted_layers:
                    at = {layer.parts[len(prefix)]: layer for layer in members}
                    # A listing may define the same siblings in another order elsewhere: that is one kind all the same.
                    kind = (_pattern(prefix), _pattern(suffix), frozenset(at), form.op, form.axis)
                    names = first.setdefault(kind, tuple(at))
                    unit = (*kind[:2], names, *kind[3:])
                    units[unit].append(Place(tuple(at[name] for name in names), form))
    for unit, places in units.items():
        change: Counter[Hashable] = Counter()
        for place in places:
            change.subtract(_key(layer) for layer in place.members)
            change[_sorted(place.form.shape)] += 1
        gain = sum(abs(here.have[x] - have[x]) - abs(here.have[x] + n - have[x]) for x, n in change.items())
        most = sum(len(place.members) + 1 for place in places)
        members, form = places[0].members, places[0].form
        named, local = likeliest(members, wanted_layers[_sorted(form.shape)])
        likely = named + max(cohesion(p, here.beside(p.members[0])) for p in places[:FEW]) + OUTPUTS * (form.axis == 0)
        if members[0].parts[:-1] == members[-1].parts[:-1] or form.op == "stack":
            likely += SIBLINGS
        exact = {layer.main[1].shape for layer in wanted_layers[_sorted(form.shape)]}
        likely += EXACT * (form.op == "stack" and form.shape in exact)
        fused = [layer.main[1] for layer in wanted_layers[_sorted(form.shape)] if layer.parts[-1:] == (local,)]
        own = bool(fused) and all(p.leaf in PROJECTIONS for p in fused)
        want = have[_sorted(form.shape)] - here.have[_sorted(form.shape)]
        likely += COUNTED * _uses_up(members, here.have - have, want)
        likely += SEQUENCE * _in_sequence(places, here, there)
        yield _Join(s, unit, places, gain / most, local, own, likely, wanted_layers[_sorted(form.shape)])


def _uses_up(members: Sequence[Layer], spare: Counter[Hashable], wanted: int) -> bool:
    """Whether filling all that is wanted with such members takes just what is too much here, of every shape."""
    each = Counter(map(_key, members))
    return all(spare[key] == n * wanted for key, n in each.items())


def _in_sequence(places: list[Place], here: _Side, there: _Side) -> float:
    """How far the layers of these shapes come in the same sequence on both sides once the places are joined."""
    first = {place.members[0].path: _sorted(place.form.shape) for place in places}
    away = {layer.path for place in places for layer in place.members}
    shapes = {*first.values(), *(_key(layer) for place in places for layer in place.members)}
    mine = [first.get(x.path, _key(x)) for x in here.layers if x.path in first or x.path not in away]
    theirs = [_key(layer) for layer in there.layers]
    mine, theirs = ([k for k in keys if k in shapes][:LOOKED_AT] for keys in (mine, theirs))
    return SequenceMatcher(None, mine, theirs, autojunk=False).ratio()


def _unstacked(
    have: Counter[Hashable], wanted: dict[Hashable, list[Layer]]
) -> tuple[Counter[Hashable], dict[Hashable, list[Layer]]]:
    more, apart = have.copy(), defaultdict(list)
    for layers in wanted.values():
        for layer in layers:
            shape = layer.main[1].shape or ()
            if len(shape) > 2 and shape[0] > 1:
                more[_sorted(shape[1:])] += shape[0]
                apart[_sorted(shape[1:])].append(layer)
    return more, apart


def _sorted(shape: Shape) -> Hashable:
    return tuple(sorted(d for d in shape if d != 1))


def _product(key: Hashable) -> int:
    n = 1
    for d in key:  # type: ignore[attr-defined]
        n *= d
    return n


def _pattern(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "#", p) for p in parts)


def _compounds(place: Place, found: _Join) -> Iterator[Compound]:
    """The compounds of some sibling layers, one for each slot."""
    members = list(place.members)
    order, sure = ordered([layer.parts for layer in members], found.local, found.frameworks)
    members = [members[i] for i in order]
    if place.form.op == "stack" and all(w.isdigit() for w in distinguishing([x.parts for x in members])):
        sure = "told"
    for slot in members[0].slots:
        if not all(slot in layer.slots for layer in members):
            continue
        parts = tuple(layer.slots[slot] for layer in members)
        form = place.form
        if slot != members[0].main[0] and form.op == "concat" and len(parts[0].shape or ()) == 1:
            form = replace(form, axis=0)  # a bias beside matrices whose columns are joined
        chain = form.chain([p.shape or () for p in parts])
        with suppress(TransformError):
            yield compound(parts, chain, found.local, sure, found.rivals)
