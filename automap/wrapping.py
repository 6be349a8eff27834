"""Networks inside cells for training: what of a MindSpore listing is the network, and what it is called without them.

A cell that joins a network and its loss puts its own name for the network before every parameter, and an outer cell
another. One that has the optimizer as an attribute calls the trained parameters ``optimizer.…``, and the running
statistics of the same layers something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from automap.prefixes import common_prefix

if TYPE_CHECKING:
    from automap.graph import Listing
    from automap.mapping import Entry, Mapping, Unmatched

_Named = TypeVar("_Named", "Entry", "Unmatched")

#: What norms call the statistics that nothing trains.
STATISTICS = frozenset({"moving_mean", "moving_variance", "running_mean", "running_var"})

#: Of so many parameters one is told to be outside the network by its name, and so many of all must be inside.
_FEW, _MOST = 4, 3


def rejoined(names: Iterable[str]) -> dict[str, str]:
    """Running statistics that are called after another cell than their layer's weights: by name, what to call them.

    Such are ``optimizer.network.bn.gamma`` and ``network.network.bn.moving_mean``. Every statistic that is alone in
    its module has to find such a module of weights, behind one prefix, or nothing is said.
    """
    return _rejoined(names)[0]


def _rejoined(names: Iterable[str]) -> tuple[dict[str, str], str]:
    """The same, and the prefix that they get."""
    leaves: dict[str, set[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        leaves.setdefault(module, set()).add(leaf)
    alone = [m for m, found in leaves.items() if found <= STATISTICS]
    bare = {m for m, found in leaves.items() if m and len(found) > 1 and not found & STATISTICS}
    if not alone or not bare:
        return {}, ""
    for strip, put in _prefixes_between(alone[0], bare):
        if all(m.startswith(strip) and put + m[len(strip) :] in bare for m in alone):
            moved = {f"{m}.{leaf}": f"{put}{m[len(strip) :]}.{leaf}" for m in alone for leaf in leaves[m]}
            return moved, put
    return {}, ""


def _prefixes_between(one: str, others: Collection[str]) -> Iterator[tuple[str, str]]:
    """What could stand before a module and before its counterpart among others; the longest common end first."""
    for start in (0, *(i + 1 for i, c in enumerate(one) if c == ".")):
        rest = one[start:]
        yield from ((one[:start], o[: -len(rest)]) for o in others if o == rest or o.endswith("." + rest))


def inner_names(names: Collection[str]) -> dict[str, str]:
    """What the parameters of a network are called inside the cells around it, by the names that they have."""
    moved = rejoined(names)
    called = {name: moved.get(name, name) for name in names}
    cut = len(common_prefix(list(called.values())))
    return {name: inner[cut:] for name, inner in called.items()}


def changes(have: Collection[str], want: Collection[str]) -> dict[str, str]:
    """Other names for parameters, such that they are those wanted, whatever cells for training are around either.

    Args:
        have: the names of MindSpore parameters, without states of optimizers.
        want: the same of another listing of the network.

    Returns:
        The name in ``want`` for each name that has one there.
    """
    ours, theirs = (inner_names(set(names) - outside(names)) for names in (have, want))
    wanted = {inner: name for name, inner in theirs.items()}
    return {name: wanted[inner] for name, inner in ours.items() if inner in wanted}


def outside(names: Collection[str]) -> set[str]:
    """Parameters that a cell around the network keeps for itself, such as its last output, by their names alone.

    They stand beside one cell that has all others: ``output`` where all other names begin with ``network.``.
    """
    moved, before = _rejoined(names)
    inside = {moved.get(name, name): name for name in names}
    found: set[str] = set()
    while len(inside) > _FEW:
        prefix = common_prefix(list(inside))
        own = {name for name in inside if "." not in name[len(prefix) :]}
        below = {name[len(prefix) :].partition(".")[0] for name in inside.keys() - own}
        if not own or len(below) != 1 or _MOST * len(own) > len(inside):
            break
        found |= {inside.pop(name) for name in own}
    # What is called like the statistics, and not like the layers: `network.output` beside `optimizer.network.…`.
    found |= {real for name, real in inside.items() if not name.startswith(before)}
    return {name for name in found if name.rpartition(".")[2] not in STATISTICS}


def beside(network: Iterable[str], names: Iterable[str], bare: str, idle: Collection[str]) -> set[str]:
    """What of a MindSpore listing is a cell's own that is around a network that is known.

    Args:
        network: the names of the network's parameters.
        names: those to be told.
        bare: the prefix of the same network's names in PyTorch; where MindSpore's is no deeper, there are none.
        idle: the names of parameters that nothing trains.
    """
    network = list(network)
    moved = rejoined(network)
    prefix = common_prefix([moved.get(name, name) for name in network])
    if prefix.count(".") <= bare.count("."):
        return set()
    above = (prefix, common_prefix(list(moved)))  # the cells above the network, by either way that they are called
    known = set(network)
    return {
        name
        for name in names
        if name not in known
        and (not name.startswith(prefix) or name in idle)
        and any(path.startswith(name[: name.rfind(".") + 1]) for path in above)
    }


def renamed(listing: Listing, names: dict[str, str]) -> Listing:
    """The same listing under other names."""
    params = tuple(replace(p, name=names.get(p.name, p.name)) for p in listing)
    return replace(listing, parameters=params)


def restored(mapping: Mapping, names: dict[str, str], listing: Listing) -> Mapping:
    """A mapping to a listing that was renamed, with the listing's own names.

    Args:
        mapping: with the new names.
        names: the new name of each parameter that has one.
        listing: as it was before.
    """
    from automap.mapping import Side

    back = {new: old for old, new in names.items()}

    def words(text: str) -> str:
        return " ".join(back.get(w, w) for w in text.split(" ")) if text else text

    def entry(e: Entry) -> Entry:
        other = e.runner_up
        if other is not None:
            other = replace(other, mindspore=tuple(back.get(n, n) for n in other.mindspore))
        return replace(e, mindspore=tuple(back.get(n, n) for n in e.mindspore), why=words(e.why), runner_up=other)

    return replace(
        mapping,
        mindspore=Side.of(listing),
        entries=tuple(map(entry, mapping.entries)),
        unmatched_torch=tuple(replace(u, why=words(u.why)) for u in mapping.unmatched_torch),
        unmatched_mindspore=tuple(
            replace(u, name=back.get(u.name, u.name), why=words(u.why)) for u in mapping.unmatched_mindspore
        ),
    )
