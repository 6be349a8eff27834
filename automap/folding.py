"""Norms that a port has folded into the layer before them: its layer has a bias, and PyTorch has the norm.

Such a norm has running statistics that nothing in the port could hold, and follows, in order of definition, a layer
with as many outputs whose counterpart has a bias of its own. What a listing leaves open beyond that is said.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from automap.graph import Param
from automap.layers import Layer
from automap.reach import reaching, ways
from automap.transforms import Transform

#: PyTorch's default, where no listing tells.
EPS = 1e-5
#: What a norm has, in the order in which the transform takes it.
SLOTS = ("weight", "bias", "mean", "variance")
#: Parameters of a layer with a bias of its own and its norm.
WITH_BIAS = 6
#: Share of the norms that a port lacks which folds them.
MOST = 0.5
#: PyTorch's own layers, by the axis of their outputs.
AXES = {"Linear": 0, **{f"Conv{n}d": 0 for n in (1, 2, 3)}, **{f"ConvTranspose{n}d": 1 for n in (1, 2, 3)}}


@dataclass(frozen=True)
class Folded:
    """A layer and a norm of PyTorch's that are one layer in the port.

    Attributes:
        torch: weight, bias if there is one, and the norm's gamma, beta, mean and variance.
        mindspore: weight and bias.
        chain: the transform between them.
        doubts: what a listing cannot tell, in words.
    """

    torch: tuple[Param, ...]
    mindspore: tuple[Param, Param]
    chain: tuple[Transform, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """A norm, the layer before it, and whether other layers stand between them."""

    norm: Layer
    layer: Layer
    apart: bool


def folded(
    left: Sequence[Layer],
    right: Sequence[Layer],
    partner: Callable[[Param], Param | None],
    taken: Callable[[Param], bool],
) -> Iterator[Folded]:
    """The norms without a counterpart that can be in the layer before them.

    Args:
        left, right: the layers of both sides in order of definition.
        partner: the MindSpore parameter of one of PyTorch's, if it is matched to one as it is.
        taken: whether a MindSpore parameter is matched.
    """
    norms = [x for x in left if x.statistics]
    free = {id(x) for x in norms if set(SLOTS) <= x.slots.keys() and not any(map(partner, x.slots.values()))}
    # Where the port has such a norm that nothing is matched to, that is its counterpart.
    own = {_channels(x) for x in right if x.statistics and not any(map(taken, x.slots.values()))}
    layer_of = {p.name: x for x in right for p in x.slots.values()}
    found: dict[tuple[str, str], list[Folded]] = defaultdict(list)
    for place in _places(left):
        if id(place.norm) in free and _channels(place.norm) not in own:
            made = _folded(place, layer_of, partner, taken)
            # A bias that PyTorch has, too, shows nothing: then the port has to lack its norms, and not only this one.
            if made is not None and (len(made.torch) < WITH_BIAS or len(free) > MOST * len(norms)):
                found[_pattern(place.layer.path), _pattern(place.norm.path)].append(made)
    kept = {_pattern(x.path) for x in norms if id(x) not in free}
    for (_, norm), group in found.items():
        for made in group:
            doubt = ("the port has this norm in other repetitions of the block",) if norm in kept else ()
            yield replace(made, doubts=(*made.doubts, *doubt))


def _places(left: Sequence[Layer]) -> Iterator[_Place]:
    """Every norm and the layer before it; of several layers before as many norms, the one in the same place."""
    run: list[Layer] = []
    at = 0
    while at < len(left):
        if not _is_norm(left[at]):
            run = [*run, left[at]] if _is_kernel(left[at]) else []
            at += 1
            continue
        end = at
        while end < len(left) and _is_norm(left[end]):
            end += 1
        norms, before = left[at:end], run[-(end - at) :]
        yield from (_Place(n, x, len(norms) > 1) for n, x in zip(norms, before, strict=False))
        run, at = [], end


def _is_norm(layer: Layer) -> bool:
    return layer.statistics


def _is_kernel(layer: Layer) -> bool:
    return not layer.norm and len(layer.main[1].shape or ()) > 1


def _pattern(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _channels(norm: Layer) -> object:
    return norm.main[1].shape


def _folded(
    place: _Place,
    layer_of: dict[str, Layer],
    partner: Callable[[Param], Param | None],
    taken: Callable[[Param], bool],
) -> Folded | None:
    (slot, weight), own_bias = place.layer.main, place.layer.slots.get("bias")
    other = partner(weight)
    if slot != "weight" or other is None or len(place.layer.slots) > 2:
        return None
    bias = layer_of[other.name].slots.get("bias")
    gamma, beta, mean, variance = (place.norm.slots[s] for s in SLOTS)
    shape, channels = weight.shape or (), gamma.shape
    if bias is None or bias.shape != channels or {beta.shape, mean.shape, variance.shape} != {channels}:
        return None
    if taken(bias) if own_bias is None else partner(own_bias) is not bias or own_bias.shape != channels:
        return None
    axes = [i for i in (0, 1) if shape[i : i + 1] == channels]
    if not axes or len(ways(weight, other)) == 0 or any(t.op != "reshape" for t in reaching(weight, other)):
        return None
    doubts = []
    axis = AXES.get(weight.owner or "", axes[0])
    if weight.owner not in AXES and len(axes) > 1 and len(shape) > 2:
        doubts.append("a listing does not tell whether it is a transposed convolution")
    if axis not in axes:
        return None
    eps = variance.eps
    if eps is None:
        doubts.append(f"a listing does not tell the epsilon of {place.norm.path}, which is taken as {EPS}")
    if own_bias is not None:
        doubts.append(f"{place.norm.path} seems to be folded into it, or the port lacks it")
    if place.apart:
        doubts.append(f"{place.norm.path} is folded into it by its place: it is defined apart")
    args: dict[str, Any] = {"eps": EPS if eps is None else eps}
    if axis:
        args["axis"] = axis
    if other.shape is not None and other.shape != shape:
        args["shape"] = list(other.shape)
    parts = (weight, *((own_bias,) if own_bias is not None else ()), gamma, beta, mean, variance)
    return Folded(parts, (other, bias), (Transform("fold_norm", args),), tuple(doubts))
