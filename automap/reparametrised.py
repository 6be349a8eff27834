"""Weights that a network keeps as several parameters, from which it computes them: lengths and directions, and others.

PyTorch's ``weight_norm`` and ``spectral_norm``, in the words of both of its implementations, and what a port calls
lengths and directions of its own. Names say what may belong together, shapes whether it does. Where the other side has
the parts as well, they stay apart and are matched one to one; else they are one weight, under its plain name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from automap.graph import Listing, Param, Shape
from automap.layers import core
from automap.lora import Merge, plain
from automap.names import RECURRENT, slot_of, split_leaf
from automap.transforms import Transform

#: A word of PyTorch's parametrizations: the weight's own word, and that of the part.
_NEW = re.compile(r"((?:.*\.)?)parametrizations\.(\w+)\.(.+)$")
#: A word of those before them, and of ports: the weight's own word (none: ``g`` and ``v`` alone), and the part's.
_OLD = re.compile(r"((?:.*\.)?)(?:(\w+)_)?(g|v|u|orig|mask)$")
_ENDS = ("g", "v", "u", "mask")

#: What the parts are called, in the order in which the transform takes them, by what makes a weight of them.
_PARTS = {
    "weight_norm": (("original0", "original1"), ("g", "v")),
    "spectral_norm": (("original", "0._u", "0._v"), ("orig", "u", "v")),
}
#: Slots in which no part is ever found.
_OTHER_SLOTS = frozenset({"bias", "mean", "variance", "counter"})


@dataclass(frozen=True)
class Computed:
    """A weight that is computed from several parameters.

    Attributes:
        name: its plain name.
        parts: what it is computed from; the one of its own shape is the last with ``weight_norm``, else the first.
        chain: the transform that computes it.
        doubt: what the shapes leave open, in words, or ``""``.
        aliases: the plain names of weights that are tied to it.
    """

    name: str
    parts: tuple[Param, ...]
    chain: tuple[Transform, ...]
    doubt: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The transform that computes it, or "" where it only has another name."""
        return self.chain[0].op if self.chain else ""

    @property
    def main(self) -> Param:
        """The part of the weight's own shape."""
        return self.parts[1] if self.kind == "weight_norm" else self.parts[0]

    @property
    def others(self) -> tuple[Param, ...]:
        return tuple(p for p in self.parts if p is not self.main)

    def param(self) -> Param:
        """The weight as a parameter."""
        return replace(self.main, name=self.name, aliases=self.aliases, path=None, kind="parameter")

    def named_apart(self) -> Iterator[Param]:
        """Its parts, each a layer by itself, under names that do not depend on the framework or its version."""
        words = _PARTS[self.kind][1]
        for p, word in zip(self.parts, words, strict=True):
            yield replace(p, name=f"{self.name}.{word}", aliases=())


@dataclass(frozen=True)
class Found:
    """What one side computes its weights from.

    Attributes:
        weights: what is understood.
        unknown: names of parameters that a weight is computed from in a way that is not, with the reason.
    """

    weights: tuple[Computed, ...]
    unknown: dict[str, str]


def computed(listing: Listing) -> Found:
    """The weights of a listing that are kept as several parameters."""
    groups: dict[tuple[str, str, bool], dict[str, Param]] = defaultdict(dict)
    for p in listing:
        new = "parametrizations." in p.name
        if not (new or p.name.endswith(_ENDS)):
            continue
        if found := (_NEW if new else _OLD).match(p.name):
            groups[found[1], found[2] or "", new][found[3]] = p
    weights, unknown = [], {}
    for (module, word, new), parts in groups.items():
        made = _made(listing, module, word, new, parts)
        if made is not None:
            weights.append(made)
        elif new or {"orig", "mask"} <= parts.keys() or (word == "weight" and "orig" in parts):
            plain = f"{module}{word}"
            for p in parts.values():
                unknown[p.name] = f"{plain} is computed from it, in a way that automap does not know"
    if listing.merge is not None:
        weights += _adapted(listing, listing.merge)
    return Found(tuple(_tied(weights)), unknown)


def _adapted(listing: Listing, merge: Merge) -> Iterator[Computed]:
    """The weights with low-rank adaptations, and what stands beside such a weight, under their plain names.

    Raises:
        ConversionError: there is nothing to merge, or it cannot be merged.
    """
    found = {p.base: p for p in merge.pairs(list(listing.by_name))}
    for p in listing:
        name = plain(p.name, listing.by_name)
        if p.name in found:
            parts = (p, listing.by_name[found[p.name].a], listing.by_name[found[p.name].b])
            chain = merge.chain(found[p.name])
            merge.check(p.name, chain, [q.shape for q in parts])
            yield Computed(name, parts, chain)
        elif name != p.name:
            yield Computed(name, (p,), ())


Told = tuple[tuple[Param, ...], tuple[Param, ...], tuple[Transform, ...]]


def merged(torch: Listing, ways: Sequence[Told]) -> list[Told]:
    """Ways from PyTorch's parameters to MindSpore's, those from a weight with an adaptation going from all its parts.

    A layer that runs beside its adaptation looks like the port's layer, which gets the same.
    """
    if torch.merge is None:
        return list(ways)
    parts = {w.main.name: w for w in computed(torch).weights if w.kind == "lora"}
    away = {p.name for w in parts.values() for p in w.others}
    out: list[Told] = []
    for ts, ms, chain in ways:
        weight = parts.get(ts[0].name)
        if weight is not None and len(ts) == 1:
            out.append((weight.parts, ms, (*weight.chain, *chain)))
        elif (weight is not None and ts == weight.parts) or away.isdisjoint(t.name for t in ts):
            out.append((ts, ms, chain))
    return out


def _made(listing: Listing, module: str, word: str, new: bool, parts: dict[str, Param]) -> Computed | None:
    for kind, styles in _PARTS.items():
        names = styles[not new]
        if set(parts) != set(names):
            continue
        plain = _plain(listing, module, word)
        if plain is None:
            return None
        held = tuple(parts[n] for n in names)
        fit = _weight_norm if kind == "weight_norm" else _spectral_norm
        own = new or slot_of(word) == "weight" or RECURRENT.match(word) is not None
        found = fit(held, own)
        if found is None:
            return None
        args, doubt = found
        return Computed(plain, held, (Transform(kind, args),), doubt)
    return None


def _plain(listing: Listing, module: str, word: str) -> str | None:
    """The weight's name without its parts; None where something else has it."""
    names = {p.leaf for p in listing if p.module == module.removesuffix(".")} if word in ("", "param") else set()
    if word in ("", "param") and "weight" not in names:
        word = "weight"
    name = f"{module}{word}"
    return None if name in listing.by_name or not word else name


Fit = tuple[dict[str, int], str]


def _weight_norm(parts: Sequence[Param], own: bool) -> Fit | None:
    """The axis whose lengths are kept, from the shapes. ``own``: by its words it is a weight, whatever the shapes."""
    g, v = (p.shape for p in parts)
    if g is None or v is None:
        return ({"axis": 0}, "no shape tells along which axis the lengths are taken") if own else None
    if len(v) < 2:
        return None
    if g == () and own:
        return {}, ""
    if len(g) == len(v):
        axes = [i for i in range(len(v)) if g[i] == v[i] and prod(g) == g[i]]
        # Of several, all have but one position, or one value for all; then the axis is of no consequence.
        return ({"axis": axes[0]}, "") if axes else None
    axes = [i for i, n in enumerate(v) if g == (n,)] if own else []
    doubt = "" if len(axes) < 2 or len(v) == 2 else "its shape does not tell along which axis the lengths are taken"
    return ({"axis": axes[0]}, doubt) if axes else None


def _spectral_norm(parts: Sequence[Param], own: bool) -> Fit | None:
    """The axis that is the rows, from the shapes; transposed convolutions have their outputs along the second."""
    shape, u, v = (p.shape for p in parts)
    if shape is None or u is None or v is None:
        return {"axis": 0}, "no shape tells which axis of the weight is the rows"
    axes = [i for i, n in enumerate(shape) if u == (n,) and v == (prod(shape) // max(n, 1),)]
    if len(axes) > 1 and len(shape) > 2 and axes[:2] == [0, 1]:
        owner = (parts[0].owner or "").lower()
        if "transpose" in owner:
            return {"axis": 1}, ""
        if not owner:
            return {"axis": 0}, "no shape tells whether it is a transposed convolution, whose rows are the second axis"
    return ({"axis": axes[0]}, "") if axes else None


def _tied(weights: Sequence[Computed]) -> Iterator[Computed]:
    """The same, each with the names of those whose parts are tied to its own."""
    by_main = {w.main.name: w.name for w in weights}
    for w in weights:
        yield replace(w, aliases=tuple(by_main[a] for a in w.main.aliases if a in by_main))


# ------------------------------------------------------------------------------------------------------- kept or not


@dataclass(frozen=True)
class Side:
    """What to do with the weights of one side.

    Attributes:
        one: those that are one parameter for matching.
        apart: those whose parts are matched one by one.
        unknown: see :class:`Found`.
    """

    one: tuple[Computed, ...]
    apart: tuple[Computed, ...]
    unknown: dict[str, str]


def decided(torch: Listing, mindspore: Listing, gone: tuple[Collection[str], Collection[str]]) -> tuple[Side, Side]:
    """Which weights are one parameter for matching, because the other side has no parts for theirs.

    That is counted: the parts beside the main one have shapes of their own, and the other side has as many parameters
    of these shapes as this one with the parts, or without.

    Args:
        gone: on each side, the names of parameters that are settled, and take no part in this.
    """
    listings = (torch, mindspore)
    found = tuple(computed(x) for x in listings)
    counts = tuple(_counted([p for p in x if p.name not in names]) for x, names in zip(listings, gone, strict=True))
    out = []
    for i, (mine, theirs) in enumerate((found, found[::-1])):
        weights = [w for w in mine.weights if not any(p.name in gone[i] for p in w.parts)]
        merged = [w for w in weights if w.kind not in _PARTS]
        weights = [w for w in weights if w.kind in _PARTS]
        one, apart = _by_kind(weights, theirs.weights, counts[i], counts[1 - i])
        one += merged
        unknown = {n: why for n, why in mine.unknown.items() if n not in gone[i]}
        if i == 1:
            # What is divided by its own singular value cannot be made of what is divided already.
            lost = [w for w in one if w.kind == "spectral_norm"]
            one = [w for w in one if w not in lost]
            unknown |= {p.name: f"MindSpore computes {w.name} from it, as spectral norm" for w in lost for p in w.parts}
        out.append(Side(tuple(one), tuple(apart), unknown))
    return out[0], out[1]


Counted = Counter[Shape | None] | None


def _by_kind(
    weights: list[Computed], others: Sequence[Computed], mine: Counted, theirs: Counted
) -> tuple[list[Computed], list[Computed]]:
    """Those that are one, and those that stay apart."""
    one: list[Computed] = []
    apart: list[Computed] = []
    parts = Counter(core(p.shape) for w in weights for p in w.others)
    # How many parameters of each shape the other side has beyond those that stand for no part here.
    spare = None if mine is None or theirs is None else {s: max(0, theirs[s] - mine[s] + n) for s, n in parts.items()}
    for kind in _PARTS:
        group = [w for w in weights if w.kind == kind]
        if not group:
            continue
        if spare is None or None in parts:
            kept = [min(1.0, sum(w.kind == kind for w in others) / len(group))] * len(group)
        else:
            # Whatever keeps one part of each has the others in some other form: the vector v follows from u.
            places = range(len(group[0].others))
            shapes = [[core(w.others[i].shape) for w in group] for i in places]
            whole = max(sum(min(spare[s], n) for s, n in Counter(row).items()) / len(row) for row in shapes)
            each = [max(min(1.0, spare[row[k]] / parts[row[k]]) for row in shapes) for k in range(len(group))]
            kept = each if 0 < whole < 1 else [whole] * len(group)
            # Where only some could be kept, those are whose parts the port has by name; else what most are.
            named = {(w.kind, core(w.main.shape)) for w in others}
            kept = [
                share if share in (0, whole) or (kind, core(w.main.shape)) in named else min(max(whole, 0.01), 0.99)
                for w, share in zip(group, kept, strict=True)
            ]
        for w, share in zip(group, kept, strict=True):
            doubt = "" if share in (0, 1) else "the port may keep some of these weights as their parts, too"
            (apart if share > 0.5 else one).append(replace(w, doubt=w.doubt or doubt))
    return one, apart


def _counted(listing: Sequence[Param]) -> Counted:
    """How many parameters there are of each shape, without ones; None where shapes are unknown."""
    every = [p for p in listing if slot_of(split_leaf(p.name)[1]) not in _OTHER_SLOTS]
    return None if any(p.shape is None for p in every) else Counter(core(p.shape) for p in every)
