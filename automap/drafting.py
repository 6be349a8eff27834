"""From matched layers to a mapping: parameters slot by slot, transforms, reasons for a review, and for what is left."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from automap.compounds import Compound, Joined
from automap.folding import folded
from automap.graph import Param
from automap.layers import Layer, bare_names, common_module, modules_above
from automap.leftovers import Free, adding_up, joined, other_forms
from automap.mapping import Entry, Evidence, RunnerUp
from automap.matching import Doubt
from automap.names import slot_of, split_leaf
from automap.outliers import Names, out_of_step
from automap.reach import Axes, can_reach, reaching, ways
from automap.transforms import Transform
from automap.unclaimed import is_computed

#: An alternative that loses less than this (in the weights of `matching.py`, one part of the evidence in full) makes
#: an entry doubtful. Confidence is 0.5 where nothing is lost and 0.9 here.
CLEAR_LOSS = 1.0


#: A module with more parameters than this is no neighbourhood in which layers could have been joined.
BESIDE = 200

#: An entry for which less than this speaks at all is doubtful whatever the alternatives are.
WEAK = 3.2


@dataclass
class Found:
    """A matched pair of layers: the parts of its evidence, its score, and the doubt about it."""

    parts: dict[str, float]
    score: float
    doubt: Doubt | None


#: What the parameters of a norm hold when it is built; MindSpore's norms have them also where PyTorch's have not.
_NEUTRAL = {"weight": "ones", "bias": "zeros"}


@dataclass(frozen=True)
class _Evidences:
    """The evidence of entries, kept by what it was made of: repeated blocks share theirs."""

    known: dict[int, tuple[dict[str, float], Evidence]] = field(default_factory=dict)

    def of(self, found: Found | None) -> Evidence:
        if found is None:
            return Evidence.of({"proven": None})
        kept = self.known.get(id(found.parts))
        if kept is None:
            shown = {"names": found.parts["words"], **{k: found.parts[k] for k in _PARTS if k in found.parts}}
            kept = self.known[id(found.parts)] = found.parts, Evidence.of({**shown, "proven": None})
        return kept[1]


#: The parts of the evidence that are kept under their own names.
_PARTS = ("numbers", "order", "structure", "usage", "fit")


@dataclass
class _Pair:
    """An entry in the making."""

    t: Param
    m: Param
    found: Found | None = None
    pinned: bool = False
    told: bool = False
    transform: tuple[Transform, ...] = ()
    instead: str | None = None
    reasons: list[str] = field(default_factory=list)
    whole: bool = False  # its compounds say all that is done

    def entry(self, torch: Joined, mindspore: Joined, evidences: _Evidences) -> Entry:
        """The entry, with what was joined for matching in its parts again."""
        f = self.found
        left, right = torch.compounds.get(self.t.name), mindspore.compounds.get(self.m.name)
        loss = 5.0 if f is None or f.doubt is None else max(0.0, f.doubt.loss)
        confidence = 1.0 if self.pinned else 1 - 0.5 * math.exp(-math.log(5) * min(loss, 5.0) / CLEAR_LOSS)
        if self.reasons:
            confidence = min(confidence, 0.75)
        runner_up = None
        if self.instead is not None:
            other = tuple(p.name for p in mindspore.parts(mindspore.listing.by_name[self.instead]))
            runner_up = RunnerUp(tuple(p.name for p in torch.parts(self.t)), other, 1 - math.exp(-loss))
        return Entry(
            tuple(p.name for p in torch.parts(self.t)),
            tuple(p.name for p in mindspore.parts(self.m)),
            (*(left.chain if left else ()), *self.transform, *(right.undone() if right else ())),
            confidence,
            bool(self.reasons),
            "; ".join(dict.fromkeys(self.reasons)),
            evidences.of(f),
            runner_up,
            self.m.path,
        )


class Draft:
    """A mapping in the making: which names are taken, and why the others are not."""

    def __init__(self, torch: Joined, mindspore: Joined, settled: dict[str, str], states: set[str]) -> None:
        self.sides = torch, mindspore
        self.torch, self.mindspore, self.settled, self.states = torch.listing, mindspore.listing, settled, states
        self.entries: dict[str, _Pair] = {}
        self.taken: set[str] = set()
        self.late: list[Entry] = []  # of what no layer has as it is
        self.within: set[str] = set()  # parts of an entry that goes by another name
        self.kept: dict[str, str] = {}  # what MindSpore's norms always have, and what it holds to begin with

    def _add(self, pair: _Pair) -> None:
        self.entries[pair.t.name] = pair
        self.taken.add(pair.m.name)

    def _free(self, t: Param, m: Param) -> bool:
        return t.name not in self.entries and m.name not in self.taken

    def add_pins(self) -> None:
        for t, m in self.settled.items():
            self._add(_Pair(self.torch.by_name[t], self.mindspore.by_name[m], pinned=True))

    def add_told(
        self,
        ways: Sequence[tuple[Param, Param, tuple[Transform, ...]]],
        left: list[Layer],
        right: list[Layer],
        found: dict[tuple[int, int], Found],
        pinned: bool = False,
    ) -> None:
        """Pairs that pins or a run have told, with the transform that it took; compounds stand for several."""
        of_t = {p.name: i for i, layer in enumerate(left) for p in layer.slots.values()}
        of_m = {p.name: j for j, layer in enumerate(right) for p in layer.slots.values()}
        for t, m, chain in ways:
            if self._free(t, m):
                pair = _Pair(t, m, found.get((of_t.get(t.name, -1), of_m.get(m.name, -1))), pinned, True, chain)
                self._add(pair)

    def add_layers(self, left: list[Layer], right: list[Layer], found: dict[tuple[int, int], Found]) -> None:
        """The parameters of matched layers, slot by slot."""
        for (i, j), f in found.items():
            other = right[f.doubt.instead] if f.doubt is not None and f.doubt.instead >= 0 else None
            for slot, t, m in _slots(left[i], right[j]):
                if self._free(t, m):
                    instead = other.slots.get(slot, other.main[1]).name if other is not None else None
                    self._add(_Pair(t, m, f, instead=instead if instead != m.name else None))
            if right[j].norm:
                ours = right[j].slots
                self.kept |= {ours[s].name: v for s, v in _NEUTRAL.items() if s in ours and s not in left[i].slots}

    def add_leftovers(self) -> None:
        """Parameters that are left over but are called the same on both sides, and have the same shape."""
        free_t = [p for p in self.torch if p.name not in self.entries and p.name not in self.within]
        free_m = [p for p in self.mindspore if p.name not in self.taken and p.name not in self.states]
        if not free_t or not free_m:
            return
        names_t = bare_names([p.name for p in self.torch])
        names_m = bare_names([p.name for p in self.mindspore if p.name not in self.states])
        by_name = {names_m[p.name]: p for p in free_m}
        for t in free_t:
            m = by_name.get(names_t[t.name])
            if m is not None and t.shape == m.shape and self._free(t, m):
                self._add(_Pair(t, m))

    def fold_norms(self, left: list[Layer], right: list[Layer]) -> None:
        """Norms that the port has folded into the layer before them become a part of that layer's entry."""

        def partner(p: Param) -> Param | None:
            pair = self.entries.get(p.name)
            plain = pair is not None and not (pair.pinned or pair.told) and not self.is_compound(pair)
            return pair.m if pair is not None and plain else None

        for f in list(folded(left, right, partner, lambda p: p.name in self.taken)):
            weight, *rest = f.torch
            self.within.update(p.name for p in rest)
            self.taken.add(f.mindspore[1].name)
            for p in rest:
                self.entries.pop(p.name, None)
            made = Compound(weight, f.torch, f.chain, "told", doubt="; ".join(f.doubts))
            port = Compound(f.mindspore[0], f.mindspore, (), "told")
            for side, compound in zip(self.sides, (made, port), strict=True):
                side.compounds[compound.param.name] = compound
            self.entries[weight.name] = replace(self.entries[weight.name], whole=True)

    def is_compound(self, pair: _Pair) -> bool:
        return pair.t.name in self.sides[0].compounds or pair.m.name in self.sides[1].compounds

    def finished(self) -> Iterator[Entry]:
        """The entries, in the order of PyTorch's listing."""
        late = {e.torch[0]: e for e in self.late}
        evidences = _Evidences()
        for p in self.torch:
            if p.name in self.entries:
                entry = self.entries[p.name].entry(*self.sides, evidences)
                tied = tuple(a for a in p.aliases if a in self.entries)
                yield replace(entry, tied=tied) if tied else entry
            elif p.name in late:
                yield late[p.name]

    # ------------------------------------------------------------------------------------------------------- judgement

    def judge(self) -> None:
        self._transforms()
        for pair in self.entries.values():
            f = pair.found
            if f is None or pair.pinned or pair.told:
                continue
            if f.doubt is not None and f.doubt.loss < CLEAR_LOSS:
                pair.reasons.append(self._doubt_in_words(pair))
            if f.score < WEAK:
                pair.reasons.append("little speaks for it but its shape")
        self.shared: set[str] = set()
        self.joined = dict(self._joined())
        self._pieces_in_doubt()
        self._add_late()
        for pair in self.entries.values():
            for side, p in zip(self.sides, (pair.t, pair.m), strict=True):
                compound = side.compounds.get(p.name)
                if compound is not None and not pair.told:
                    pair.reasons.extend(compound.doubts())
                elif p.name in side.disputed and not (pair.told or pair.pinned):
                    pair.reasons.append("it could be one of those that are joined beside it")
                if p.name in side.computing and pair.t.leaf != pair.m.leaf and not (pair.told or pair.pinned):
                    pair.reasons.append(side.computing[p.name])
        self._compare_with_their_like()

    def _compare_with_their_like(self) -> None:
        """Mark what goes elsewhere than its like in the other repetitions of a block, and takes another's place."""
        names: dict[Names, _Pair | None] = {}
        for pair in self.entries.values():
            ts, ms = (side.parts(p) for side, p in zip(self.sides, (pair.t, pair.m), strict=True))
            kind = len(pair.m.shape or ()), slot_of(split_leaf(pair.t.name)[1])
            names[Names(tuple(p.name for p in ts), tuple(p.name for p in ms), kind)] = pair
        for e in self.late:
            names.setdefault(Names(e.torch, e.mindspore), None)
        listed = [q.name for p in self.torch for q in self.sides[0].parts(p)]
        for entry, like in out_of_step(names, listed):
            found = names[entry]
            if found is not None and not (found.pinned or found.told or found.reasons):
                found.reasons.append(
                    f"its like, {like.torch[0]}, goes to {like.mindspore[0]}: something may be missing here"
                )

    def _doubt_in_words(self, pair: _Pair) -> str:
        if pair.found is not None and pair.found.doubt is not None and pair.found.doubt.alike:
            return "the same choice is in doubt in the other repetitions of this block"
        if pair.instead is None:
            return "it could as well have no counterpart"
        even = pair.found is not None and pair.found.doubt is not None and pair.found.doubt.loss < 0.05
        instead = " and ".join(p.name for p in self.sides[1].parts(self.mindspore.by_name[pair.instead])[:2])
        return f"{instead} would fit {'as' if even else 'nearly as'} well"

    def _transforms(self) -> None:
        """What the shapes say happens to each array; which of several ways it is, from its siblings."""
        open_pairs: list[tuple[_Pair, list[Axes]]] = []
        turned_stacks: list[_Pair] = []
        turned_plain: list[_Pair] = []
        votes: dict[tuple[str, int], set[Axes]] = defaultdict(set)
        for pair in self.entries.values():
            if pair.told or pair.whole:
                continue
            choices = ways(pair.t, pair.m)
            pair.transform = reaching(pair.t, pair.m, choices[0]) if choices else ()
            if choices and choices[0] != tuple(range(len(choices[0]))):
                (turned_stacks if len(choices[0]) > 2 and self.is_compound(pair) else turned_plain).append(pair)
            if len(choices) == 1 and len(choices[0]) > 1:
                votes[_kind(pair.m), len(choices[0])].add(choices[0])
            elif len(choices) > 1:
                open_pairs.append((pair, choices))
        for pair in () if turned_plain else turned_stacks:
            if not pair.pinned:
                pair.reasons.append("its matrices would be the only ones here that are transposed")
        turned = {axes for kinds in votes.values() for axes in kinds if axes != tuple(range(len(axes)))}
        for pair, choices in open_pairs:
            n = len(choices[0])
            if pair.m.leaf == "embedding_table" or not any(len(axes) == n for axes in turned):
                continue
            kind = votes.get((_kind(pair.m), n), set())
            if n > 2 and not kind:  # kernels have one layout in the whole network
                kind = {axes for (_, m), every in votes.items() if m == n for axes in every}
            if len(kind) == 1 and (axes := next(iter(kind))) in choices:
                pair.transform = reaching(pair.t, pair.m, axes)
            elif not pair.pinned:
                what = (
                    "square, and other matrices here are transposed" if n == 2 else "other arrays here are transposed"
                )
                pair.reasons.append(f"{what}: a listing cannot tell")

    def _joined(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Names that look like several of the other side put together, or the pieces of one, with the partners."""
        gone = self.taken | self.states | self.sides[1].compounds.keys()
        gone_t = self.entries.keys() | self.within | self.sides[0].compounds.keys()
        free_t = [p for p in self.torch if p.name not in gone_t and p.shape]
        free_m = [p for p in self.mindspore if p.name not in gone and p.shape]
        if not free_t or not free_m:
            return
        around_t, around_m = self._around()
        for whole, listing, free, around in (
            (free_m, self.torch, free_t, around_m),
            (free_t, self.mindspore, free_m, around_t),
        ):
            below = _by_module([p for p in listing if p.shape and p.name not in self.states])
            loose = {p.name for p in free}
            used: set[str] = set()
            for w in whole:
                near = below.get(around(w), [])
                if len(near) > BESIDE:
                    continue
                parts = adding_up(w, [p for p in near if p.name in loose and p.name not in used])
                if parts:
                    self.late.append(joined(w, parts, turned=listing is self.mindspore))
                    used.update(p.name for p in parts)
                    yield w.name, tuple(p.name for p in parts)
                    for p in parts:
                        yield p.name, (w.name,)
                else:  # pieces that are matched to something else are in doubt
                    self.shared.update(p.name for p in adding_up(w, near))
        # And what is matched although pieces that nobody claims would add up to it.
        for free, around, of in ((free_t, around_t, "m"), (free_m, around_m, "t")):
            claimless: dict[str, list[Param]] = defaultdict(list)
            for p in free:
                claimless[around(p)].append(p)
            for pair in self.entries.values():
                one: Param = getattr(pair, of)
                near = [p for m in modules_above(one.name) if m for p in claimless.get(m, ())]
                if one.shape and len(near) <= BESIDE and adding_up(one, near):
                    self.shared.add(one.name)

    def _add_late(self) -> None:
        """Entries for what is left over and still belongs together."""
        gone_t = {n for e in self.late for n in e.torch} | self.within | self.entries.keys()
        gone_t |= self.sides[0].compounds.keys()
        gone_m = {n for e in self.late for n in e.mindspore} | self.taken | self.states | self.sides[1].compounds.keys()
        free_t = [p for p in self.torch if p.name not in gone_t and p.shape is not None and not is_computed(p)]
        free_m = [p for p in self.mindspore if p.name not in gone_m and p.shape is not None and not is_computed(p)]
        if free_t and free_m:
            around_t, around_m = self._around()
            self.late += other_forms(Free(free_t, around_t), Free(free_m, around_m))

    def _around(self) -> tuple[Any, Any]:
        """For a name of either side: the module of the other side that its nearest matched neighbours are in."""
        to_m = {pair.t.name: pair.m.name for pair in self.entries.values()}
        to_t = {m: t for t, m in to_m.items()}
        sides = []
        for to in (to_m, to_t):
            below: dict[str, list[str]] = defaultdict(list)
            for name in to:
                for module in modules_above(name):
                    below[module].append(name)

            def around(p: Param, to: dict[str, str] = to, below: dict[str, list[str]] = below) -> str:
                for module in reversed(list(modules_above(p.name))):
                    near = below.get(module)
                    if near and module:
                        return common_module([split_leaf(to[n])[0] for n in near])
                return ""

            sides.append(around)
        return sides[0], sides[1]

    def _pieces_in_doubt(self) -> None:
        """Where some layers of one shape are joined on the other side, which of them stayed single is in doubt."""
        by_shape: dict[tuple[str, Any], list[str]] = defaultdict(list)
        for name, partners in self.joined.items():
            p = self.torch.by_name.get(name) or self.mindspore.by_name.get(name)
            if p is not None and len(partners) == 1:
                for module in _blocks_above(name):
                    by_shape[module, p.shape].append(name)
        doubted: dict[int, str] = {}
        for pair in self.entries.values():
            if pair.pinned or pair.told or pair.found is None:
                continue
            before = len(pair.reasons)
            if not self.shared.isdisjoint((pair.t.name, pair.m.name)) and pair.found.parts["words"] < 0.9:
                pair.reasons.append("layers without a counterpart stand beside it, and would add up to its shape")
            for p in (pair.t, pair.m):
                above = _blocks_above(p.name) if by_shape else ()
                hit = next((by_shape[b, p.shape] for b in above if (b, p.shape) in by_shape), None)
                if hit and pair.found.parts["words"] < 0.9:
                    whole = self.joined[hit[0]][0]
                    pair.reasons.append(f"it or another of its shape here may be a part of {whole}")
                    break
            if pair.reasons[before:]:
                doubted.setdefault(id(pair.found), pair.reasons[-1])
        # Where a layer goes is one question for all of its parameters.
        for pair in self.entries.values() if doubted else ():
            if not (pair.pinned or pair.told or pair.reasons) and id(pair.found) in doubted:
                pair.reasons.append(doubted[id(pair.found)])


def _slots(a: Layer, b: Layer) -> Iterator[tuple[str, Param, Param]]:
    """The parameters of two matched layers that belong together."""
    for slot, p in a.slots.items():
        q = b.slots.get(slot)
        if q is None and slot == a.main[0] and b.main[0] not in a.slots:
            q = b.main[1]
        if q is not None and can_reach(p, q):
            yield slot, p, q


def _kind(p: Param) -> str:
    """What a MindSpore author calls this kind of layer: the last word of its module."""
    return p.module.rpartition(".")[2]


def _by_module(params: Sequence[Param]) -> dict[str, list[Param]]:
    """The parameters below each module but the root, in order."""
    below: dict[str, list[Param]] = defaultdict(list)
    for p in params:
        for module in modules_above(p.name):
            if module:
                below[module].append(p)
    return below


def _blocks_above(name: str) -> list[str]:
    """The modules two and one levels above a parameter's layer: where its siblings stand."""
    above = list(modules_above(name))
    return [m for m in above[-3:-1] if m]
