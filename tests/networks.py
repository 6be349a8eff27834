"""Small pairs of networks as listings, with the truth beside them: a table with one layer a line (or between ``;``).

    conv:16x3x3   features.0      stem.conv
    bn:16         features.1      stem.norm
    linear:10x16  classifier      -            (the port has none)
    linear:16x16  encoder.key     enc.k        marked

A line has the kind of the layer with its sizes, its path in PyTorch, its path in MindSpore (left out where it is the
same, ``-`` where the layer is on the other side only, ``.`` for the top of the network), and flags:

* ``marked``  a listing cannot tell: the entries must be marked for review, whichever they are;
* ``maybe``   it can hardly tell: the entries may be marked;
* ``T``       the port keeps the matrix transposed (with ``marked``, it is this that a listing cannot tell);
* ``1x1``     the port has a 1x1 convolution instead of a dense layer;
* ``mint``    the port's layer uses PyTorch's words;
* ``plain``   without a bias;
* ``+torch``, ``+ms``  only this side has the bias;
* ``swapped``  MindSpore lists the layer's parameters the other way round.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from automap.graph import Kind, Listing, Param, Shape
from automap.mapping import Mapping
from automap.transforms import shape_after

#: Of one parameter: the word in PyTorch, the word in MindSpore (None: it has none there), the two shapes.
Slot = tuple[str | None, str | None, Shape, Shape]
FLAGS = {"marked", "maybe", "T", "1x1", "mint", "plain", "+torch", "+ms", "swapped"}
#: Element type and kind, where they are not those of a trained parameter.
TYPES: dict[str, tuple[str, Kind]] = {"ids": ("int64", "buffer"), "mask": ("float32", "buffer")}


@dataclass(frozen=True)
class Row:
    """One layer of the table; a path is None where the side does not have the layer."""

    kind: str
    sizes: Shape
    torch: str | None
    mindspore: str | None
    flags: frozenset[str] = frozenset()

    def slots(self) -> list[Slot]:
        """Its parameters in PyTorch's order."""
        s, kind = self.sizes, self.kind
        if kind == "linear":
            shape = s[::-1] if "T" in self.flags else (*s, 1, 1) if "1x1" in self.flags else s
            return self._biased((s, shape))
        if kind == "conv":
            shape = (*s, 3, 3) if len(s) == 2 else (s[0], s[1], s[2], s[2])
            return [("weight", "weight", shape, shape)] if "bias" not in self.flags else self._biased((shape, shape))
        if kind == "conv1d":
            return self._biased((s, (*s[:2], 1, s[2])))
        if kind == "bn":
            words = [("weight", "gamma"), ("bias", "beta"), ("running_mean", "moving_mean")]
            words += [("running_var", "moving_variance"), ("num_batches_tracked", None)]
            return [(t, m, s if m else (), s) for t, m in words]
        if kind == "ln":
            return [("weight", "gamma", s, s), ("bias", "beta", s, s)]
        if kind == "rms":
            return [("weight", "weight", s, s)]
        if kind == "emb":
            return [("weight", "embedding_table", s, s)]
        if kind in ("lstm", "bilstm"):
            return self._recurrent(kind == "bilstm")
        if kind in ("param", "ids", "mask"):
            return [("", "", s, (s[0], 1, *s[1:]) if "1x1" in self.flags else s)]
        raise ValueError(f"no such kind of layer: {kind}")

    def _biased(self, shapes: tuple[Shape, Shape]) -> list[Slot]:
        slots: list[Slot] = [("weight", "weight", *shapes)]
        if "plain" not in self.flags:
            out = (self.sizes[0],)
            t, m = "+ms" not in self.flags, "+torch" not in self.flags
            slots.append(("bias" if t else None, "bias" if m else None, out, out))
        return slots

    def _recurrent(self, both: bool) -> list[Slot]:
        hidden, size, layers = self.sizes
        slots: list[Slot] = []
        for layer in range(layers):
            for end in ("", "_reverse") if both else ("",):
                width = size if layer == 0 else hidden * (2 if both else 1)
                for word, shape in (
                    ("weight_ih", (4 * hidden, width)),
                    ("weight_hh", (4 * hidden, hidden)),
                    ("bias_ih", (4 * hidden,)),
                    ("bias_hh", (4 * hidden,)),
                ):
                    name = f"{word}_l{layer}{end}"
                    slots.append((name, name, shape, shape))
        return slots

    def mindspore_order(self, slots: list[Slot]) -> list[Slot]:
        """The parameters in MindSpore's order."""
        if "swapped" in self.flags:
            return slots[::-1]
        if self.kind == "bn":
            return [*slots[2:], *slots[:2]]
        if self.kind in ("lstm", "bilstm"):
            ranks = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            return sorted(slots, key=lambda s: next(i for i, w in enumerate(ranks) if (s[1] or "").startswith(w)))
        return slots


@dataclass(frozen=True)
class Pair:
    """Two listings and what is true of them.

    Attributes:
        truth: PyTorch name -> MindSpore name.
        marked: PyTorch names of entries that must be marked for review.
        maybe: PyTorch names of entries that may be.
        transposed: PyTorch names of matrices that the port keeps transposed.
        homeless: names on either side that have no home, and need a person.
        leftover: names on either side that are expected to have no home.
    """

    torch: Listing
    mindspore: Listing
    truth: dict[str, str]
    marked: frozenset[str] = frozenset()
    maybe: frozenset[str] = frozenset()
    transposed: frozenset[str] = frozenset()
    homeless: frozenset[str] = frozenset()
    leftover: frozenset[str] = frozenset()


Order = Callable[[list[Row]], list[Row]]


def rows(table: str, renames: Sequence[tuple[str, str]] = ()) -> list[Row]:
    """The layers of a table; where a line has one path, MindSpore's comes from it by the regular expressions."""
    out = []
    for line in re.split("[\n;]", table):
        words = line.split("#")[0].split()
        if not words:
            continue
        kind, _, sizes = words[0].partition(":")
        paths = [w for w in words[1:] if w not in FLAGS and w != "bias"]
        torch = paths[0]
        if len(paths) > 1:
            mindspore = paths[1]
        else:
            mindspore = torch
            for pattern, to in renames:
                mindspore = re.sub(pattern, to, mindspore)
        flags = frozenset(w for w in words[1:] if w in FLAGS or w == "bias")
        shape = tuple(int(d) for d in sizes.split("x")) if sizes else ()
        ends = [None if p == "-" else "" if p == "." else p for p in (torch, mindspore)]
        out.append(Row(kind, shape, ends[0], ends[1], flags))
    return out


def pair(table: str, *renames: tuple[str, str], order: Order | None = None, shapes: bool = True) -> Pair:
    """The two listings of a table and their truth.

    Args:
        renames: what turns a PyTorch path into a MindSpore one, where the line gives only one.
        order: puts the layers into MindSpore's order of definition.
        shapes: whether the listings know shapes and dtypes.
    """
    return built(rows(table, renames), order, shapes)


def built(layers: list[Row], order: Order | None = None, shapes: bool = True) -> Pair:
    """The same for layers that are no text any more."""
    torch: list[Param] = []
    mindspore: list[Param] = []
    truth: dict[str, str] = {}
    marked, maybe, transposed, homeless, leftover = (set() for _ in range(5))
    for row in layers:
        dtype, kind = TYPES.get(row.kind, ("float32", "parameter"))
        for t, m, shape, _ in row.slots():
            name_t = _name(row.torch, t)
            name_m = _name(row.mindspore, _own(row, t, m))
            counter = t == "num_batches_tracked"
            if name_t is not None:
                torch.append(Param(name_t, shape, "int64" if counter else dtype, "buffer" if counter else kind))
            if name_t is not None and name_m is not None:
                truth[name_t] = name_m
                marked |= {name_t} if "marked" in row.flags and ("T" not in row.flags or len(shape) == 2) else set()
                maybe |= {name_t} if "maybe" in row.flags else set()
                transposed |= {name_t} if "T" in row.flags and len(shape) == 2 else set()
            else:
                lonely = {n for n in (name_t, name_m) if n is not None}
                (leftover if kind == "buffer" or counter else homeless).update(lonely)
    for row in (order or by_module)(layers):
        dtype, kind = TYPES.get(row.kind, ("float32", "parameter"))
        for t, m, _, shape in row.mindspore_order(row.slots()):
            name = _name(row.mindspore, _own(row, t, m))
            if name is not None:
                mindspore.append(Param(name, shape, dtype, kind))
    if not shapes:
        torch, mindspore = (
            [replace(p, shape=None, dtype=None, kind="parameter") for p in x] for x in (torch, mindspore)
        )
    return Pair(
        Listing("torch", tuple(torch), "t.json"),
        Listing("mindspore", tuple(mindspore), "m.json"),
        truth,
        *(frozenset(x) for x in (marked, maybe, transposed, homeless, leftover)),
    )


def _own(row: Row, torch_word: str | None, mindspore_word: str | None) -> str | None:
    if row.mindspore == "" and row.kind == "bn":  # a norm that is the network itself
        return {"moving_mean": "mean", "moving_variance": "variance"}.get(mindspore_word or "", mindspore_word)
    return torch_word if "mint" in row.flags and torch_word != "num_batches_tracked" else mindspore_word


def _name(path: str | None, word: str | None) -> str | None:
    if path is None or word is None:
        return None
    return f"{path}.{word}" if path and word else path or word


# ------------------------------------------------------------------------------------------------ orders of definition


def reordered(*paths: str) -> Order:
    """Siblings in the given order: layers whose path ends in, or goes through, the earlier of these come first.

    Only layers of the same parent change places.
    """

    def order(layers: list[Row]) -> list[Row]:
        def key(row: Row) -> list[tuple[int, int]]:
            out, at = [], ""
            for part in (row.mindspore or "").split("."):
                at = f"{at}.{part}"
                first = paths.index(part) - len(paths) if part in paths else 0
                out.append((first, place.setdefault(at, len(place))))
            return out

        place: dict[str, int] = {}
        for row in layers:
            key(row)
        return sorted(layers, key=key)

    return order


def by_module(layers: list[Row]) -> list[Row]:
    """As they come, with all that a MindSpore module holds in one place."""
    return reordered()(layers)


def shuffled(seed: int) -> Order:
    """The children of every MindSpore module in another order."""
    return lambda layers: shuffle(layers, random.Random(seed))


def shuffle(layers: list[Row], rnd: random.Random) -> list[Row]:
    """The children of every MindSpore module in another order."""
    tree: dict[str, object] = {}
    for row in layers:
        node = tree
        for part in (row.mindspore or "").split("."):
            node = node.setdefault(part, {})  # type: ignore[assignment]
        node["="] = row

    def walk(node: dict[str, object]) -> Iterable[Row]:
        keys = list(node)
        rnd.shuffle(keys)
        for key in keys:
            below = node[key]
            if isinstance(below, Row):
                yield below
            else:
                yield from walk(below)  # type: ignore[arg-type]

    return list(walk(tree))


def by_letters(layers: list[Row]) -> list[Row]:
    """In the order of the alphabet, as a file that was sorted."""
    return sorted(layers, key=lambda row: row.mindspore or "")


# ----------------------------------------------------------------------------------------------------------- judgement


def silent(pair: Pair, mapping: Mapping) -> list[str]:
    """Every entry that is wrong and not marked for review: the promise that is never broken."""
    return [
        f"{t} -> {m}, not {pair.truth.get(t)}"
        for e in mapping.entries
        for t, m in [(e.torch[0], e.mindspore[0])]
        if pair.truth.get(t) != m and not e.review
    ]


def faults(pair: Pair, mapping: Mapping) -> list[str]:
    """Everything that is not as it should be, in words."""
    out = [f"silently wrong: {s}" for s in silent(pair, mapping)]

    def check(ok: bool, what: str) -> None:
        if not ok:
            out.append(what)

    entries = {e.torch[0]: e for e in mapping.entries}
    for t, m in pair.truth.items():
        e = entries.get(t)
        if e is None:
            check(False, f"no entry: {t} -> {m}")
            continue
        if t in pair.marked:
            check(e.review and bool(e.why), f"not marked: {t} -> {e.mindspore[0]} (true: {m})")
            continue
        check(e.mindspore == (m,) or t in pair.maybe, f"wrong: {t} -> {e.mindspore[0]}, not {m} ({e.why})")
        check(not e.review or t in pair.maybe, f"marked without need: {t} -> {e.mindspore[0]} ({e.why})")
        if not e.review:
            turned = any(x.op == "transpose" for x in e.transform)
            check(turned == (t in pair.transposed), f"transposed or not: {e}")
    for e in mapping.entries:
        shape, want = (x.by_name[n[0]].shape for x, n in ((pair.torch, e.torch), (pair.mindspore, e.mindspore)))
        if shape is not None and want is not None:
            check(shape_after(e.transform, [shape]) == (want,), f"does not give {want}: {e} of {shape}")
    for listing, unmatched, mine in (
        (pair.torch, mapping.unmatched_torch, [n for e in mapping.entries for n in e.torch]),
        (pair.mindspore, mapping.unmatched_mindspore, [n for e in mapping.entries for n in e.mindspore]),
    ):
        names = mine + [u.name for u in unmatched]
        check(sorted(names) == sorted(p.name for p in listing), f"{listing.framework}: not every name exactly once")
        for u in unmatched:
            check(bool(u.why), f"no reason: {u.name}")
            if u.name in pair.leftover:
                check(not u.review, f"an expected leftover is marked: {u.name} ({u.why})")
            if u.name in pair.homeless:
                check(u.review, f"without a home and not marked: {u.name} ({u.why})")
    for name in pair.homeless | pair.leftover:
        check(name in {u.name for u in (*mapping.unmatched_torch, *mapping.unmatched_mindspore)}, f"mapped: {name}")
    return out
