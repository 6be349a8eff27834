"""Pins: pairs of names that the user has settled, `T=M` each, exact or with `*` on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from automap.errors import PinError
from automap.graph import Listing, Param
from automap.reaching import can_reach


def resolve(pins: Sequence[str], torch: Listing, mindspore: Listing) -> dict[str, str]:
    """The PyTorch names that are pinned, with the MindSpore name of each.

    A `*` stands for any text, the same on both sides: ``encoder.*.wq=blocks.*.q`` pins ``encoder.3.wq`` to
    ``blocks.3.q``.

    Raises:
        PinError: a pin that is no pin, names nothing, contradicts another, or joins shapes that cannot reach each
            other.
    """
    out: dict[str, str] = {}
    back: dict[str, str] = {}
    for pin in pins:
        for t, m in _pairs(pin, torch, mindspore):
            for name, other, taken in ((t, m, out), (m, t, back)):
                if taken.get(name, other) != other:
                    raise PinError(f"pin {pin!r} gives {name} to {other}, another pin to {taken[name]}: keep one", pin)
            _check(pin, torch.by_name[t], mindspore.by_name[m])
            out[t], back[m] = m, t
    return out


def _pairs(pin: str, torch: Listing, mindspore: Listing) -> Iterable[tuple[str, str]]:
    left, equals, right = (part.strip() for part in pin.partition("="))
    if not (left and equals and right):
        raise PinError(f"pin {pin!r} is not of the form PYTORCH_NAME=MINDSPORE_NAME", pin)
    if left.count("*") != right.count("*"):
        raise PinError(f"pin {pin!r} has {left.count('*')} '*' on the left and {right.count('*')} on the right", pin)
    if "*" not in left:
        for name, listing in ((left, torch), (right, mindspore)):
            if name not in listing.by_name:
                raise PinError(f"pin {pin!r}: {_unknown(name, listing)}", pin)
        return [(left, right)]
    pattern = re.compile("(.*)".join(map(re.escape, left.split("*"))))
    pairs = []
    for p in torch:
        found = pattern.fullmatch(p.name)
        if found:
            texts = right.split("*")
            name = "".join(a + b for a, b in zip(texts, (*found.groups(), ""), strict=True))
            if name not in mindspore.by_name:
                raise PinError(f"pin {pin!r} would give {p.name} to {name}, but {_unknown(name, mindspore)}", pin)
            pairs.append((p.name, name))
    if not pairs:
        raise PinError(f"pin {pin!r} is not used: no name of the torch side matches {left}", pin)
    return pairs


def _unknown(name: str, listing: Listing) -> str:
    from rapidfuzz import process

    near = process.extractOne(name, [p.name for p in listing], score_cutoff=70)
    hint = f": did you mean {near[0]}?" if near else "; `automap params` lists them"
    return f"the {listing.framework} side has no {name}{hint}"


def _check(pin: str, p: Param, q: Param) -> None:
    if not can_reach(p, q):
        raise PinError(f"pin {pin!r} is impossible: {p.name} has shape {p.shape}, {q.name} {q.shape}", pin)
