"""Pins: pairs of names that the user has settled, `T=M` each, exact or with `*` on both sides.

Several names with commas between them are joined in that order, or are the pieces of what is on the other side:
``q.weight,k.weight,v.weight=qkv.weight``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from automap.compounds import Told
from automap.errors import PinError, TransformError
from automap.graph import Listing, Param
from automap.reach import can_reach, reaching
from automap.transforms import Transform, inverse, shape_after


def resolve(pins: Sequence[str], torch: Listing, mindspore: Listing) -> dict[str, str]:
    """The PyTorch names that are pinned, with the MindSpore name of each.

    A `*` stands for any text, the same on both sides: ``encoder.*.wq=blocks.*.q`` pins ``encoder.3.wq`` to
    ``blocks.3.q``.

    Raises:
        PinError: a pin that is no pin, names nothing, contradicts another, or joins shapes that cannot reach each
            other.
    """
    return {t[0].name: m[0].name for t, m, _ in _settled(pins, torch, mindspore) if len(t) == len(m) == 1}


def several(pins: Sequence[str], torch: Listing, mindspore: Listing) -> list[Told]:
    """What pins with several names on a side have settled: parameters of both sides, and the transform between them.

    Raises:
        PinError: as :func:`resolve` does; or the shapes do not add up.
    """
    return [way for way in _settled(pins, torch, mindspore) if len(way[0]) + len(way[1]) > 2]


def _settled(pins: Sequence[str], torch: Listing, mindspore: Listing) -> Iterator[Told]:
    out: dict[str, str] = {}
    back: dict[str, str] = {}
    for pin in pins:
        for ts, ms in _pairs(pin, torch, mindspore):
            for names, other, taken in ((ts, ms, out), (ms, ts, back)):
                for name in names:
                    whole = ", ".join(other)
                    if taken.get(name, whole) != whole:
                        other_pin = f"another pin to {taken[name]}"
                        raise PinError(f"pin {pin!r} gives {name} to {whole}, {other_pin}: keep one", pin)
                    taken[name] = whole
            left, right = tuple(torch.by_name[t] for t in ts), tuple(mindspore.by_name[m] for m in ms)
            yield left, right, _way(pin, left, right)


def _pairs(pin: str, torch: Listing, mindspore: Listing) -> Iterable[tuple[tuple[str, ...], tuple[str, ...]]]:
    left, equals, right = (part.strip() for part in pin.partition("="))
    ours, theirs = (tuple(name.strip() for name in side.split(",")) for side in (left, right))
    if not (equals and all(ours) and all(theirs)):
        raise PinError(f"pin {pin!r} is not of the form PYTORCH_NAME=MINDSPORE_NAME", pin)
    if len(ours) > 1 and len(theirs) > 1:
        raise PinError(f"pin {pin!r} has several names on both sides: one of them has to be a single name", pin)
    counts = {name.count("*") for name in (*ours, *theirs)}
    if len(counts) > 1:
        raise PinError(f"pin {pin!r} has {left.count('*')} '*' on the left and {right.count('*')} on the right", pin)
    if counts == {0}:
        for names, listing in ((ours, torch), (theirs, mindspore)):
            for name in names:
                if name not in listing.by_name:
                    raise PinError(f"pin {pin!r}: {_unknown(name, listing)}", pin)
        return [(ours, theirs)]
    pattern = re.compile("(.*)".join(map(re.escape, ours[0].split("*"))))
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for p in torch:
        found = pattern.fullmatch(p.name)
        if found:
            texts = found.groups()
            sides = tuple(_filled(t, texts) for t in ours), tuple(_filled(m, texts) for m in theirs)
            for names, listing in zip(sides, (torch, mindspore), strict=True):
                for name in names:
                    if name not in listing.by_name:
                        whole = ", ".join(sides[1])
                        raise PinError(
                            f"pin {pin!r} would give {p.name} to {whole}, but {_unknown(name, listing)}", pin
                        )
            pairs.append(sides)
    if not pairs:
        raise PinError(f"pin {pin!r} is not used: no name of the torch side matches {left}", pin)
    return pairs


def _filled(pattern: str, texts: Sequence[str]) -> str:
    return "".join(a + b for a, b in zip(pattern.split("*"), (*texts, ""), strict=True))


def _unknown(name: str, listing: Listing) -> str:
    from rapidfuzz import process

    near = process.extractOne(name, [p.name for p in listing], score_cutoff=70)
    hint = f": did you mean {near[0]}?" if near else "; `automap params` lists them"
    return f"the {listing.framework} side has no {name}{hint}"


def _way(pin: str, left: tuple[Param, ...], right: tuple[Param, ...]) -> tuple[Transform, ...]:
    """The transform between pinned parameters: of one each what inference says, of several what makes them add up."""
    whole, parts = (right[0], left) if len(left) > 1 else (left[0], right)
    if len(parts) == 1:
        p, q = left[0], right[0]
        if not can_reach(p, q):
            raise PinError(f"pin {pin!r} is impossible: {p.name} has shape {p.shape}, {q.name} {q.shape}", pin)
        return ()
    shapes = [p.shape for p in parts if p.shape is not None]
    if whole.shape is None or len(shapes) < len(parts):
        raise PinError(f"pin {pin!r} joins several names: give listings with shapes", pin)
    for axis in range(len(whole.shape)):
        if any(axis >= len(s) for s in shapes):
            break
        chain = (Transform("concat", {"axis": axis, "sizes": [s[axis] for s in shapes]}),)
        with suppress(TransformError):
            (made,) = shape_after(chain, shapes)
            joined = Param("", made)
            if len(left) > 1 and can_reach(joined, whole):
                return chain + reaching(joined, whole)
            if len(left) == 1 and can_reach(whole, joined):
                return reaching(whole, joined) + inverse(chain, shapes)
    sizes = ", ".join(f"{p.name} {list(p.shape or ())}" for p in parts)
    raise PinError(f"pin {pin!r} is impossible: {sizes} do not add up to {whole.name} {list(whole.shape)}", pin)
