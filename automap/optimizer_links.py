"""What a mapping between networks says of their optimizers: which parameter is where, and which way its moments go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from automap import transforms
from automap.errors import ConversionError, TransformError
from automap.graph import Shape
from automap.mapping import Entry
from automap.mapping import Mapping as ParameterMapping
from automap.optimizer_names import positions, trainable
from automap.optimizer_state import Listed, TorchState
from automap.prefixes import prefix_change, renamed
from automap.transforms import Transform
from automap.wrapping import changes

#: Transforms that only move elements, so that a moment can go the same way; a cast is for the weights alone.
_MOVES = {"reshape", "unflatten", "flatten", "transpose", "reverse", "take", "concat", "split", "stack", "unstack",
          "reorder", "slice", "cast"}  # fmt: skip


def positions_of(
    mapping: ParameterMapping,
    state: TorchState,
    listing: Listed | None,
    names: Sequence[str] | None,
    trained: set[str] | None,
    known: Mapping[str, Shape] | None = None,
) -> tuple[dict[str, int], str]:
    """The position of each PyTorch name in the state of an optimizer, and how they were told.

    Args:
        mapping: from PyTorch to MindSpore.
        state: the state.
        listing: PyTorch's parameters in order, or None: in the mapping's order.
        names: of all positions, where they are given.
        trained: the names whose counterparts MindSpore trains; PyTorch's are the same if they are as many.
        known: shapes of parameters, where the listing has none.

    Raises:
        ConversionError: they cannot be told.
    """
    ours = [name for entry in mapping.entries for name in entry.torch]
    names = names if names is not None else state.names
    if listing is None:
        several = next((e for e in mapping.entries if len(e.torch) > 1), None)
        if several is not None and names is None:
            raise ConversionError(
                f"the mapping joins {', '.join(several.torch)}, so that the order of PyTorch's parameters cannot be "
                "told from it: give the network, its state dict, or the names (network=, names=; --target, "
                "--optimizer-names)"
            )
        listing = [(name, (known or {}).get(name), None) for name in ours]
    change = prefix_change([name for name, *_ in listing], set(ours))
    aliases = {u.name for u in mapping.unmatched_torch if u.alias_of}
    params = trainable([(renamed(name, *change), shape, dtype) for name, shape, dtype in listing], aliases)
    if names is not None:
        names = [renamed(name, *prefix_change(names, set(ours))) for name in names]
    count = sum(map(len, state.members))
    same = [p for p in params if trained is not None and p[0] in trained]
    shapes = {i: next(iter(state.shapes[i].values()), None) for group in state.members for i in group}
    found, how = positions(state.members, shapes, same if names is None and len(same) == count else params, names)
    return {name: i for i, name in found.items()}, how


def moment_chain(entry: Entry) -> tuple[Transform, ...]:
    """What happens to a moment of an entry's parameters: what happens to the weights, if that only moves elements.

    Raises:
        ConversionError: a step computes with the values, which is not the same for a gradient.
    """
    bad = [t.op for t in entry.transform if t.op not in _MOVES]
    if bad:
        raise ConversionError(
            f"{entry}: {', '.join(dict.fromkeys(bad))} computes with the values, and the optimizer's moments cannot go "
            "the same way: convert the network alone, and let the optimizer begin anew",
            [str(entry)],
        )
    return tuple(t for t in entry.transform if t.op != "cast")


def joined(entries: Iterable[Entry], kind: str) -> list[str]:
    """A sentence on the first entry of several parameters, where an optimizer looks at the norm of each one."""
    several = [entry for entry in entries if len(entry.torch) != len(entry.mindspore)]
    if not several:
        return []
    more = f" and {len(several) - 1} more entries" if len(several) > 1 else ""
    first = f"{', '.join(several[0].torch)} -> {', '.join(several[0].mindspore)}"
    return [
        f"{kind} scales a step by the norms of the whole parameter, which is not the same one in both: {first}{more}"
    ]


def theirs_of(mapped: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """The optimizer's name of each MindSpore parameter that the mapping has and the optimizer trains."""
    mapped, known = list(mapped), set(names)
    direct = {m: m for m in mapped if m in known}
    if len(direct) == len(known):
        return direct
    # What is trained is a part of the mapping: the names of the statistics are not among the optimizer's.
    change = prefix_change(names, set(mapped))
    shifted = {renamed(n, *change): n for n in names if renamed(n, *change) in set(mapped)}
    other = {m: n for n, m in changes(names, mapped).items()}
    return max((direct, shifted, other), key=len)


def torch_shapes(mapping: ParameterMapping, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes of PyTorch's parameters, so far as those of MindSpore's and the transforms tell them."""
    found: dict[str, Shape] = {}
    for entry in mapping.entries:
        if all(name in shapes for name in entry.mindspore):
            with suppress(TransformError):
                undone = transforms.inverse(entry.transform, [None] * len(entry.torch))
                made = transforms.shape_after(undone, [shapes[name] for name in entry.mindspore])
                found |= dict(zip(entry.torch, made, strict=True))
    return found


def shapes_before(chain: Sequence[Transform], shapes: Sequence[Shape], entry: Entry) -> list[Shape]:
    try:
        undone = transforms.inverse(chain, [None] * len(entry.torch))
        return list(transforms.shape_after(undone, shapes))
    except TransformError as e:
        raise ConversionError(f"{entry}: only some of its parameters have a state, and {e}", [str(entry)]) from None
