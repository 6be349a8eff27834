"""Layers: the unit of matching. What a listing says of them, their order, and their names in tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from automap.graph import Param, Shape, ancestors
from automap.names import MATES, RECURRENT, STATISTICS, TOP_LEVEL_SLOTS, slot_of, split_leaf, tokens


@dataclass(frozen=True)
class Layer:
    """The parameters of one module, by slot (``weight``, ``bias``, ``mean`` …)."""

    path: str
    slots: dict[str, Param]
    norm: bool  # known to be a norm: by its words or its running statistics

    @cached_property
    def main(self) -> tuple[str, Param]:
        """The parameter that stands for the layer: its weight, or the largest one it has, whatever their order is."""
        if "weight" in self.slots:
            return "weight", self.slots["weight"]
        if len(self.slots) == 1 or any(p.shape is None for p in self.slots.values()):
            return next(iter(self.slots.items()))
        return max(self.slots.items(), key=lambda item: (prod(item[1].shape or ()), item[0]))

    @property
    def statistics(self) -> bool:
        """Whether it keeps running statistics."""
        return not {"mean", "variance"}.isdisjoint(self.slots)

    @cached_property
    def form(self) -> Hashable:
        """See :func:`form`."""
        return (self.norm, frozenset((s, p.shape) for s, p in self.slots.items()))

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split(".")) if self.path else ()


def gates_apart(torch: Sequence[Param], mindspore: Sequence[Param]) -> bool:
    """Whether one side has the gates of recurrent layers as layers of their own.

    So it is where the other side alone has recurrent layers, or has more of them, and matrices of the shapes of those
    stand elsewhere.
    """
    apart, rest = zip(*map(_recurrent, (torch, mindspore)), strict=True)
    if bool(apart[0]) != bool(apart[1]):
        return True
    for mine, theirs, plain in ((apart[0], apart[1], rest[1]), (apart[1], apart[0], rest[0])):
        more = mine - theirs
        if more and not more - plain:
            return True
    return False


def _recurrent(side: Sequence[Param]) -> tuple[Counter[Shape | None], Counter[Shape | None]]:
    """The shapes of the weights of recurrent layers, and of other matrices."""
    apart: Counter[Shape | None] = Counter()
    rest: Counter[Shape | None] = Counter()
    for p in side:
        if RECURRENT.match(p.leaf):
            apart[p.shape] += p.leaf.startswith("weight")
        elif p.shape is None or len(p.shape) == 2:
            rest[p.shape] += 1
    return apart, rest


def layers_of(parameters: Sequence[Param], framework: str, gates: bool = False) -> list[Layer]:
    """The layers of a listing in definition order.

    Args:
        gates: what a recurrent layer does to its input and to its state are two layers (of four gates each, in an
            LSTM), as :func:`gates_apart` tells.
    """
    split: list[tuple[Param, str, str]] = []
    for p in parameters:
        path, leaf = split_leaf(p.name)
        if gates and (found := RECURRENT.match(leaf)):
            leaf = found[1]
            path = ".".join(filter(None, (path, p.leaf.removeprefix(f"{leaf}_"))))
        split.append((p, path, leaf))
    grouped: dict[str, dict[str, Param]] = {}
    words: dict[str, set[str]] = defaultdict(set)
    first = _first_claims(split)
    for p, path, leaf in split:
        if first.get((path, slot_of(leaf)), p) is not p:  # of several words for one slot, the others keep their own
            path = p.name
        grouped.setdefault(path, {})[slot_of(leaf)] = p
        words[path].add(leaf)
    if framework == "mindspore":
        _top_level_norm(grouped, words)
    made = []
    for path, slots in grouped.items():
        norm = bool(words[path] & {"gamma", "beta"} and len(slots) > 1) and not _is_matrix(slots)
        norm = norm or bool(STATISTICS & slots.keys())
        made.append(Layer(path, slots, norm))
    return made


def _first_claims(split: Sequence[tuple[Param, str, str]]) -> dict[tuple[str, str], Param]:
    """Where a module has several words for one slot: the parameter that has it, whatever their order is.

    A plain word comes before one that begins with it (``gamma`` before ``gamma_1``), and one that stands beside its
    like (``gamma`` and ``beta``) before a single one.
    """
    claims: dict[tuple[str, str], list[tuple[Param, str]]] = defaultdict(list)
    inside: dict[str, set[str]] = defaultdict(set)
    for p, path, leaf in split:
        claims[path, slot_of(leaf)].append((p, leaf))
        inside[path].add(leaf)
    out = {}
    for (path, slot), found in claims.items():
        if len(found) > 1:

            def rank(claim: tuple[Param, str], path: str = path) -> tuple[bool, bool, str]:
                p, leaf = claim
                return p.leaf != leaf, MATES.get(leaf, leaf) not in inside[path] - {leaf}, p.name

            out[path, slot] = min(found, key=rank)[0]
    return out


def _is_matrix(slots: dict[str, Param]) -> bool:
    """Whether the weight has several dimensions and the bias another shape: in no norm, whatever they are called."""
    weight, bias = (core(slots[slot].shape) if slot in slots else None for slot in ("weight", "bias"))
    return weight is not None and bias is not None and len(weight) > 1 and weight != bias


def _top_level_norm(grouped: dict[str, dict[str, Param]], words: dict[str, set[str]]) -> None:
    """A norm at the top of a MindSpore network lists its statistics as ``mean`` and ``variance``."""
    top = grouped.get("")
    if top and {"gamma", "beta"} <= words[""] and all(w in grouped for w in TOP_LEVEL_SLOTS):
        for word, slot in TOP_LEVEL_SLOTS.items():
            top[slot] = grouped.pop(word)["weight"]


def disorder(layers: Sequence[Layer]) -> float:
    """How often a numbered child is defined before a sibling with a smaller number: 0 for a listing in its own order.

    A listing read from a file that was sorted (by letters, by size) or rebuilt from a dict is out of order: then
    nothing follows from the order of definition.
    """
    last: dict[str, int] = {}
    seen: set[str] = set()
    steps = down = 0
    for layer in layers:
        at = ""
        for part in layer.parts:
            if part.isdigit() and f"{at}.{part}" not in seen:
                seen.add(f"{at}.{part}")
                if at in last:
                    steps += 1
                    down += int(part) < last[at]
                last[at] = int(part)
            at = f"{at}.{part}"
    return down / steps if steps else 0.0


def by_number(layers: list[Layer]) -> list[Layer]:
    """The layers with numbered children in the order of their numbers; other children stay where they first appear."""
    place: dict[str, int] = {}
    for layer in layers:
        at = ""
        for part in layer.parts:
            place.setdefault(f"{at}.#" if part.isdigit() else f"{at}.{part}", len(place))
            at = f"{at}.{part}"

    def key(layer: Layer) -> list[tuple[int, int]]:
        at, out = "", []
        for part in layer.parts:
            group = f"{at}.#" if part.isdigit() else f"{at}.{part}"
            out.append((place[group], int(part) if part.isdigit() else 0))
            at = f"{at}.{part}"
        return out

    return sorted(layers, key=key)


def core(shape: Shape | None) -> Shape | None:
    """A shape without its dimensions of size 1."""
    return None if shape is None else tuple(d for d in shape if d != 1)


Paths = Sequence[tuple[str, ...]]
#: A number or letter, and how many siblings are called exactly the same before this one.
_Number = tuple[str, int]


def number_ranks(paths: Paths) -> dict[tuple[tuple[str, ...], str], tuple[int, ...]]:
    """For each numbered child the ranks of its numbers, each among siblings with the same words and numbers in front.

    They are given for each token, -1 for what is no number. In ``branch7x7_2`` the 7s count among branches, and 2 among
    those that are 7 by 7. Siblings of one number that differ in what follows (``block2_a`` and ``block2_b``) have one
    rank. Letters behind a word number their siblings, too, where they are a row that begins with ``a``.
    """
    children = {(path[:i], part): tokens(part) for path in paths for i, part in enumerate(path)}
    spelt: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for (parent, part), toks in sorted(children.items()):
        spelt[parent, toks].append(part)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], set[_Number]] = defaultdict(set)
    places: dict[tuple[tuple[str, ...], str], list[tuple[int, _Number]]] = {}
    for (parent, part), toks in children.items():
        # Siblings of the same words and numbers (what is joined has a sign in front of its name) come one by one.
        again = spelt[parent, toks].index(part) if len(spelt[parent, toks]) > 1 else 0
        found = [(k, (t, 0)) for k, t in enumerate(toks) if t.isdigit() or (k and len(t) == 1)]
        if again and any(t.isdigit() for t in toks):
            last = max(i for i, (_, (t, _)) in enumerate(found) if t.isdigit())
            found[last] = found[last][0], (found[last][1][0], again)
        places[parent, part] = found
        for k, number in found:
            groups[parent, toks[:k]].add(number)
    ranks = {key: _ranks(numbers) for key, numbers in groups.items()}
    out = {}
    for (parent, part), toks in children.items():
        at = {k: ranks[parent, toks[:k]].get(number, -1) for k, number in places[parent, part]}
        if max(at.values(), default=-1) >= 0:
            out[parent, part] = tuple(at.get(k, -1) for k in range(len(toks)))
    return out


def _ranks(found: set[_Number]) -> dict[_Number, int]:
    """The ranks of numbers, and of letters that count."""
    numbers = sorted((x for x in found if x[0].isdigit()), key=lambda x: (int(x[0]), x[1]))
    place: dict[tuple[int, int], int] = {}
    ranks = {x: place.setdefault((int(x[0]), x[1]), len(place)) for x in numbers}
    letters = sorted(t for t, _ in found if not t.isdigit())
    if len(letters) > 1 and "".join(letters) == "".join(chr(ord("a") + k) for k in range(len(letters))):
        ranks |= {(t, 0): k for k, t in enumerate(letters)}
    return ranks


def form(layer: Layer) -> Hashable:
    """What decides which layers a layer can be: its slots and their shapes, and whether it is known to be a norm."""
    return layer.form


def bare_paths(layers: Sequence[Layer], ranked: bool = False) -> list[tuple[str, ...]]:
    """The words and numbers of each path, without those that every path of the side begins with."""
    ranks = number_ranks([layer.parts for layer in layers]) if ranked else {}
    paths = []
    for layer in layers:
        path: list[str] = []
        for i, part in enumerate(layer.parts):
            toks = tokens(part)
            mine = ranks.get((layer.parts[:i], part), (-1,) * len(toks))
            path.extend(str(r) if r >= 0 else t for t, r in zip(toks, mine, strict=True))
        paths.append(tuple(path))
    return _without_common_start(paths)


def bare_names(params: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The same for names of parameters, with each framework's word for a slot replaced by the slot."""
    split = [split_leaf(name) for name in params]
    paths = [(*(t for part in module.split(".") for t in tokens(part)), slot_of(leaf)) for module, leaf in split]
    return dict(zip(params, _without_common_start(paths), strict=True))


def _without_common_start(paths: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    short, long = min(paths), max(paths)
    n = 0
    while n < min(len(short), len(long)) and short[n] == long[n]:
        n += 1
    return [p[n:] for p in paths]


def modules_above(name: str) -> Iterator[str]:
    """The modules above a parameter, outermost first, the root (``""``) included."""
    yield ""
    yield from ancestors(name)


def common_module(names: Sequence[str]) -> str:
    """The innermost module that holds all of some parameters."""
    short, long = min(names).split(".")[:-1], max(names).split(".")[:-1]
    n = 0
    while n < min(len(short), len(long)) and short[n] == long[n]:
        n += 1
    return ".".join(short[:n])
