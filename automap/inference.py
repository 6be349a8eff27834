"""Inference: the one place where scoring, assignment and mapping meet."""

from __future__ import annotations

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Dict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from automap import pins as pinned
from automap import scoring
from automap.checkpoints import mark_optimizer_states
from automap.compounds import Told
from automap.drafting import Draft, Found
from automap.errors import InputError, SourceError
from automap.graph import Listing
from automap.joining import join
from automap.layers import Layer, bare_paths
from automap.listing_files import FRAMEWORK_NAMES
from automap.lora import Merge
from automap.mapping import Mapping, Side
from automap.matching import Doubt, Matcher
from automap.reparametrised import merged
from automap.repeats import Folded, Unfolded, fold, unfold
from automap.straightening import turned
from automap.trace_file import TraceSource
from automap.unclaimed import Unclaimed
from automap.weights import fitting
from automap.wrapping import rejoined, renamed, restored

if TYPE_CHECKING:
    from automap.sources import Source

#: Fewer layers than this are matched as they are; of more, repeated blocks are folded first.
LARGE = 400
#: From here on, layers that have the same path on both sides are settled by it, if nearly all have.
VERY_LARGE = 1500
NEARLY_ALL = 0.8
#: What it is counted as losing that the first block of a run lacks a counterpart, and not the last one.
UNCERTAIN = 0.5


def infer(
    torch: Any,
    mindspore: Any,
    *,
    inputs: Any = None,
    pins: Sequence[str] = (),
    static: bool = False,
    trace: bool = False,
    ignore_names: bool = False,
    seed: int = 0,
    weights: Any = None,
    merge_lora: Any = None,
    torch_forward: Any = None,
    ms_forward: Any = None,
    progress: Callable[[str], None] | None = None,
    torch_args: Dict[str, Any] | None = None,
    ms_args: Dict[str, Any] | None = None,
) -> Mapping:
    """The mapping from a PyTorch network's parameters to those of its MindSpore port.

    Where both are live networks, they are run, which settles what names and shapes leave open, and proves the rest:
    see :mod:`automap.proving`. Both are left as they were.

    Args:
        torch, mindspore: the two networks, each a live model, a class or factory, a state dict, a checkpoint, a
            listing, or a text that names one of these (see :func:`automap.sources.open_source`). The trace of a
            PyTorch network (:func:`automap.write_trace`) stands for the network itself.
        inputs: what the networks are run on: arrays or descriptions (``"int64[2,16]<100"``) by position or keyword,
            or the path of an ``.npz`` file; guessed from PyTorch's first layer without it.
        static: do not run the networks.
        trace: running them is demanded: it is an error if there is nothing to run, or nothing to run it on.
        seed: of the weights and inputs of the runs; the next number is the second seed.
        pins: pairs that are settled, ``"T=M"`` each; ``*`` stands for any text, the same on both sides.
        ignore_names: names and definition order count as no evidence.
        weights: a PyTorch checkpoint or state dict to run the networks on, instead of seeded weights.
        merge_lora: map the weights with low-rank adaptations in the PyTorch network as what they are once merged: their
            alpha, or a dict, as for :func:`automap.apply`.
        torch_forward, ms_forward: called as ``forward(model, *inputs)`` instead of the networks.
        progress: is told in words what is being done.
        torch_args, ms_args: keyword arguments for factories.

    Raises:
        SourceError: a source that cannot be read, belongs to the other framework, or cannot run though it has to.
        PinError: a pin that cannot be used.
        InputError: inputs that are not understood, that a network does not take, or that nothing is run on.
        ConversionError: weights that lack a parameter.
    """
    from automap.sources import open_source

    if trace and static:
        raise SourceError("trace demands that the networks are run, and static that they are not: give one of them")
    left = open_source(torch, "torch", torch_args)
    right = open_source(mindspore, "mindspore", ms_args)
    listings = replace(left.listing(), merge=Merge.of(merge_lora)), right.listing()
    found = match(*listings, pins, ignore_names)
    if static:
        return found
    if isinstance(left, TraceSource):
        _need_nothing_else(left, inputs, torch_forward, seed)
    files = [s for s in (left, right) if s.model() is None and not isinstance(s, TraceSource)]
    if files:
        _need_no_run(files[0], trace, inputs, weights)
        return found
    # Imported only where there are networks to run.
    from automap.proof import Request
    from automap.proving import prove

    given = None if weights is None else fitting(weights, listings[0])[0]
    settled = pinned.resolve(pins, *listings)
    told = progress or (lambda words: None)
    request = Request(inputs, seed, ignore_names, given, torch_forward, ms_forward, settled, told)
    result = prove(left, right, found, lambda ways: match(*listings, pins, ignore_names, ways), request)
    if trace and result.proof is not None and result.proof.status == "no input":
        raise InputError(
            f"the networks cannot be run: {result.proof.reason}; give inputs, such as float32[2,3,224,224]"
        )
    return result


def _need_nothing_else(trace: TraceSource, inputs: Any, forward: Any, seed: int) -> None:
    """Refuse to run a trace on anything but what it was recorded on."""
    what = "inputs are" if inputs is not None else "a forward is" if forward is not None else ""
    if seed not in (0, trace.record.seeds[0]):
        what = "a seed is"
    if what:
        raise SourceError(
            f"{what} given, but {trace.text} holds one run, with its own: give that to automap trace instead",
            trace.text,
        )


def _need_no_run(source: Source, trace: bool, inputs: Any, weights: Any) -> None:
    """Refuse what asks for a run, where one side is nothing that can run."""
    asked = {"inputs": inputs is not None, "weights": weights is not None, "trace": trace}
    for what, given in asked.items():
        if given:
            side = FRAMEWORK_NAMES[source.framework]
            verb = "demands" if what == "trace" else "are given for"
            raise SourceError(
                f"{source.text} is no {side} network that can run, but {what} {verb} a run: give a class or factory, "
                f"such as package.module:name or ./net.py:build{', or a .trace' * (source.framework == 'torch')}",
                source.text,
            )


def match(
    torch: Listing,
    mindspore: Listing,
    pins: Sequence[str] = (),
    ignore_names: bool = False,
    ways: Sequence[Told] = (),
) -> Mapping:
    """The mapping between two listings: what :func:`infer` does once it has them.

    Args:
        torch, mindspore, pins, ignore_names: as there.
        ways: PyTorch's parameters, MindSpore's that they become, and the transform between them, as running the
            networks told.

    Raises:
        PinError: a pin that cannot be used.
    """
    with _collection_paused(len(torch) + len(mindspore)):
        return _matched(torch, mindspore, pins, ignore_names, ways)


def _matched(
    torch: Listing, mindspore: Listing, pins: Sequence[str], ignore_names: bool, ways: Sequence[Told]
) -> Mapping:
    settled = pinned.resolve(pins, torch, mindspore)
    joined = pinned.several(pins, torch, mindspore)
    moved = rejoined([p.name for p in mindspore if p.kind != "optimizer"])
    if moved:  # a cell with an optimizer calls some parameters of a layer otherwise than the rest of it
        inside = renamed(mindspore, moved)
        given: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((t,), (m,)) for t, m in settled.items()]
        given += [(tuple(t.name for t in ts), tuple(m.name for m in ms)) for ts, ms, _ in joined]
        pairs = [f"{','.join(ts)}={','.join(moved.get(m, m) for m in ms)}" for ts, ms in given]
        ways = [(ts, tuple(inside.by_name[moved.get(m.name, m.name)] for m in ms), way) for ts, ms, way in ways]
        return replace(restored(match(torch, inside, pairs, ignore_names, ways), moved, mindspore), pins=tuple(pins))
    ways = _besides(joined, settled, merged(torch, ways))
    states = [p for p in mark_optimizer_states(mindspore.parameters) if p.kind == "optimizer"]
    apart = {p.name for p in states}
    ours, theirs = join(torch, mindspore, settled, apart, ways, ignore_names)
    told = [(ours.standing_for(ts), theirs.standing_for(ms), chain) for ts, ms, chain in ways]
    left, right = ours.layers, theirs.layers
    found = _match_layers(
        left, right, _forced({t.name: m.name for t, m, _ in told} | settled, left, right), ignore_names
    )
    draft = Draft(ours, theirs, settled, apart)
    draft.add_pins()
    draft.add_told(told[: len(joined)], left, right, found, pinned=True)
    draft.add_told(told[len(joined) :], left, right, found)
    draft.add_layers(left, right, found)
    draft.fold_norms(left, right)
    draft.add_leftovers()
    draft.judge()
    left_over = Unclaimed(draft)
    return Mapping(
        Side.of(torch),
        Side.of(mindspore),
        tuple(draft.finished()),
        tuple(left_over.torch()),
        tuple(left_over.mindspore()),
        tuple(pins),
    )


@contextmanager
def _collection_paused(size: int) -> Iterator[None]:
    """No search for garbage while the many values of a large problem are made: they are all kept."""
    pause = size > VERY_LARGE and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def _besides(pinned: list[Told], settled: Dict[str, str], ways: Sequence[Told]) -> list[Told]:
    """What pins of several names say, and of what running the networks told that which no pin is about."""
    ours = {*settled, *(t.name for ts, _, _ in pinned for t in ts)}
    theirs = {*settled.values(), *(m.name for _, ms, _ in pinned for m in ms)}
    free = (w for w in ways if ours.isdisjoint(t.name for t in w[0]) and theirs.isdisjoint(m.name for m in w[1]))
    return [*pinned, *free]


# ----------------------------------------------------------------------------------------------------- layers to layers


def _match_layers(
    left: list[Layer], right: list[Layer], forced: dict[int, int], ignore_names: bool
) -> dict[tuple[int, int], Found]:
    """Pairs of positions of layers, with what is known about each; lists that run backwards are turned round."""
    if ignore_names:
        return _match_straight(left, right, forced, ignore_names)
    new = turned(left, right)
    where = {j: k for k, j in enumerate(new.at)}
    found = _match_straight(left, new.layers, {i: where[j] for i, j in forced.items()}, ignore_names)
    out: dict[tuple[int, int], Found] = {}
    for (i, k), f in found.items():
        doubt = f.doubt
        if doubt is not None and doubt.instead >= 0:
            doubt = replace(doubt, instead=new.at[doubt.instead])
        if new.at[k] in new.unsure and (doubt is None or doubt.loss > UNCERTAIN):
            doubt = Doubt(UNCERTAIN, -1)
        out[i, new.at[k]] = replace(f, doubt=doubt)
    return out


def _match_straight(
    left: list[Layer], right: list[Layer], forced: dict[int, int], ignore_names: bool
) -> dict[tuple[int, int], Found]:
    out: dict[tuple[int, int], Found] = {}
    if max(len(left), len(right)) > VERY_LARGE and not ignore_names:
        out = _by_path(left, right, forced)
    rest_l = _without(len(left), {i for i, _ in out})
    rest_r = _without(len(right), {j for _, j in out})
    if not rest_l or not rest_r:
        return out
    at_l, at_r = {i: k for k, i in enumerate(rest_l)}, {j: k for k, j in enumerate(rest_r)}
    held = {at_l[i]: at_r[j] for i, j in forced.items() if i in at_l and j in at_r}
    some = _match_some([left[i] for i in rest_l], [right[j] for j in rest_r], held, ignore_names)
    for (i, j), f in some.items():
        if f.doubt is not None and f.doubt.instead >= 0:
            f.doubt = Doubt(f.doubt.loss, rest_r[f.doubt.instead])
        out[rest_l[i], rest_r[j]] = f
    return out


def _without(n: int, gone: set[int]) -> list[int]:
    return [i for i in range(n) if i not in gone]


def _by_path(left: list[Layer], right: list[Layer], forced: dict[int, int]) -> dict[tuple[int, int], Found]:
    """In a very large network: the layers with the same path and form on both sides, if these are nearly all."""
    paths_l, paths_r = bare_paths(left), bare_paths(right)
    where = {p: j for j, p in enumerate(paths_r)}
    pinned_r = set(forced.values())
    pairs = [
        (i, where[p])
        for i, p in enumerate(paths_l)
        if p in where and i not in forced and where[p] not in pinned_r and scoring.fit(left[i], right[where[p]]) == 1
    ]
    if len(pairs) < NEARLY_ALL * min(len(left), len(right)):
        return {}
    parts = {"words": 1.0, "order": 0.0, "structure": 1.0, "usage": 1.0}
    return {pair: Found(parts, math.inf, None) for pair in pairs}


def _match_some(
    left: list[Layer], right: list[Layer], forced: dict[int, int], ignore_names: bool
) -> dict[tuple[int, int], Found]:
    if max(len(left), len(right)) > LARGE and not forced:
        a, b = fold(left), fold(right)
        if len(a.kept) + len(b.kept) < 0.8 * (len(left) + len(right)):
            small = _solve([left[i] for i in a.kept], [right[j] for j in b.kept], {}, ignore_names)
            whole = unfold(a, b, {a.kept[i]: b.kept[j] for i, j in small})
            if whole is not None:
                return _unfolded(a, b, small, whole)
    return _solve(left, right, forced, ignore_names)


def _unfolded(
    a: Folded, b: Folded, small: dict[tuple[int, int], Found], whole: Unfolded
) -> dict[tuple[int, int], Found]:
    """What was found out about the children that stood for a run holds for those between them."""
    known = {a.kept[i]: f for (i, _), f in small.items()}
    first = {a.first[i]: f for i, f in known.items()}
    out = {}
    for i, j in whole.pairs.items():
        f = known.get(i, first[a.first[i]])
        doubt = f.doubt
        if i in whole.uncertain and (doubt is None or doubt.loss > UNCERTAIN):
            doubt = Doubt(UNCERTAIN, -1)
        if doubt is not None and doubt.instead >= 0:
            v = b.kept[doubt.instead]
            same = b.at.get((b.first[v], tuple(k for k, _ in b.place[j])))
            doubt = Doubt(doubt.loss, v if same is None else same)
        out[i, j] = Found(f.parts, f.score, doubt)
    return out


def _solve(
    left: list[Layer], right: list[Layer], forced: dict[int, int], ignore_names: bool
) -> dict[tuple[int, int], Found]:
    matcher = Matcher(left, right, forced, ignore_names)
    if not len(matcher.c):
        return {}
    solution = matcher.solve()
    doubts = matcher.doubts(solution.chosen)
    out = {}
    for k in solution.chosen.tolist():
        i, j = int(matcher.c.left[k]), int(matcher.c.right[k])
        parts = {name: float(x[k]) for name, x in solution.parts.items()}
        out[i, j] = Found(parts, float(solution.score[k]), doubts.get(i) if forced.get(i) != j else None)
    return out


def _forced(settled: dict[str, str], left: list[Layer], right: list[Layer]) -> dict[int, int]:
    """Pinned parameters pin their layers, where the layers can be each other's and all pins of a layer agree."""
    of_l = {p.name: (i, slot) for i, layer in enumerate(left) for slot, p in layer.slots.items()}
    of_r = {p.name: (j, slot) for j, layer in enumerate(right) for slot, p in layer.slots.items()}
    to: dict[int, set[int]] = defaultdict(set)
    back: dict[int, set[int]] = defaultdict(set)
    for t, m in settled.items():
        if t in of_l and m in of_r:
            (i, _), (j, _) = of_l[t], of_r[m]
            to[i].add(j)
            back[j].add(i)
    return {
        i: j
        for i, (j, *more) in ((i, sorted(js)) for i, js in to.items())
        if not more and len(back[j]) == 1 and scoring.fit(left[i], right[j], spare=True) > 0
    }


# --------------------------------------------------------------------------------------------- parameters to parameters
