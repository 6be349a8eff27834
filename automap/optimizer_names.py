"""Which parameter is which in the state of a PyTorch optimizer, which knows them by their positions alone.

The position is that in the parameter groups, one after the other. Newer versions keep the names beside them if they got
them (``torch.optim.SGD(model.named_parameters())``). Otherwise: a group has its parameters in the network's order, as
``model.parameters()`` and all that is filtered from it gives them, and every shape has to fit. Where groups could have
been drawn from the network in two ways, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from automap.errors import ConversionError
from automap.graph import Shape

#: Of so many states of the search at a time, at most.
_MOST = 20_000

_HELP = (
    "give their names in the order of the groups (names=, --optimizer-names), or save the state of an optimizer that "
    "was made of model.named_parameters()"
)


def positions(
    groups: Sequence[Sequence[int]],
    shapes: Mapping[int, Shape | None],
    listing: Sequence[tuple[str, Shape | None]],
    names: Sequence[str] | None = None,
) -> tuple[dict[int, str], str]:
    """The name of each position, and how it was told.

    Args:
        groups: the positions in each group.
        shapes: of the parameters at the positions, or None where no state tells.
        listing: the network's parameters in order, with their shapes where they are known, without buffers and without
            further names of tied ones.
        names: of all positions in order, if they are known.

    Raises:
        ConversionError: they do not fit, or there is more than one way.
    """
    order = [i for group in groups for i in group]
    if names is not None:
        return _by_names(order, shapes, dict(listing), names), "by their names"
    found = _ways(groups, shapes, listing)
    if not found:
        raise ConversionError(_misfit(order, shapes, listing))
    if len(found) > 1:
        raise ConversionError(
            f"the optimizer's {len(groups)} groups can be drawn from the network in more than one way (position "
            f"{_first_difference(*found)}): {_HELP}"
        )
    how = "by the network's order" if len(groups) == 1 else f"by order and shapes, in {len(groups)} groups"
    return found[0], how


def _by_names(
    order: Sequence[int], shapes: Mapping[int, Shape | None], known: Mapping[str, Shape | None], names: Sequence[str]
) -> dict[int, str]:
    if len(names) != len(order):
        raise ConversionError(f"the optimizer has {len(order)} parameters, and there are {len(names)} names for them")
    for i, name in zip(order, names, strict=True):
        if name not in known:
            raise ConversionError(
                f"the optimizer's parameter {name} is not in the mapping: was it made for this network?"
            )
        if not _fits(shapes[i], known[name]):
            ours, theirs = list(shapes[i] or ()), list(known[name] or ())
            raise ConversionError(f"the optimizer has a state of shape {ours} for {name}, which is {theirs}")
    return dict(zip(order, names, strict=True))


def _ways(
    groups: Sequence[Sequence[int]], shapes: Mapping[int, Shape | None], listing: Sequence[tuple[str, Shape | None]]
) -> list[dict[int, str]]:
    """Two ways at most to give each position a name, each group in the order of the listing.

    Where there are as many names as positions, none is left over. A state of the search is how far each group is; it
    keeps the first two ways that lead there.
    """
    spare = len(listing) - sum(map(len, groups))
    if spare < 0:
        return []
    here: dict[tuple[int, ...], list[tuple[tuple[int, str], ...]]] = {(0,) * len(groups): [()]}
    for done, (name, shape) in enumerate(listing):
        after: dict[tuple[int, ...], list[tuple[tuple[int, str], ...]]] = {}
        for state, ways in here.items():
            if done - sum(state) < spare:
                after.setdefault(state, []).extend(ways)
            for g, group in enumerate(groups):
                if state[g] < len(group) and _fits(shapes[group[state[g]]], shape):
                    further = (*state[:g], state[g] + 1, *state[g + 1 :])
                    after.setdefault(further, []).extend((*way, (group[state[g]], name)) for way in ways)
        if len(after) > _MOST:
            raise ConversionError(f"the optimizer's {len(groups)} groups are too many to be told by shapes: {_HELP}")
        here = {state: ways[:2] for state, ways in after.items()}
    return [dict(way) for way in here.get(tuple(map(len, groups)), [])]


def _fits(a: Shape | None, b: Shape | None) -> bool:
    return a is None or b is None or tuple(a) == tuple(b)


def _first_difference(a: Mapping[int, str], b: Mapping[int, str]) -> str:
    i = next(i for i in a if a[i] != b.get(i))
    return f"{i} may be {a[i]} or {b[i]}"


def _misfit(
    order: Sequence[int], shapes: Mapping[int, Shape | None], listing: Sequence[tuple[str, Shape | None]]
) -> str:
    counts = f"the optimizer has {len(order)} parameters, the network {len(listing)}"
    if len(order) > len(listing):
        return f"{counts}: is it the optimizer of this network, and the mapping made for it?"
    for i, (name, shape) in zip(order, listing, strict=False):
        if not _fits(shapes[i], shape):
            return (
                f"{counts}, and they do not fit in order: the state at position {i} has shape "
                f"{list(shapes[i] or ())}, {name} has {list(shape or ())}: {_HELP}"
            )
    return f"{counts}, and they do not fit in order: {_HELP}"


def trainable(
    listing: Sequence[tuple[str, Shape | None, str | None]], buffers: Collection[str]
) -> list[tuple[str, Shape | None]]:
    """What of a state dict can be trained: no statistic of a norm, no whole numbers.

    Args:
        listing: names, shapes and element types in order.
        buffers: names that are known to be none.
    """
    leaves = ("running_mean", "running_var", "num_batches_tracked")
    whole = ("int", "uint", "bool")
    return [
        (name, shape)
        for name, shape, dtype in listing
        if name not in buffers and name.rpartition(".")[2] not in leaves and not (dtype or "").startswith(whole)
    ]
