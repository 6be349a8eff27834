"""What a PyTorch run leaves for the doctor: every call of every module and function, with its inputs and outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from automap.activations import Kept
from automap.dtypes import Array
from automap.running import Forward, Inputs, Runner, Visit
from automap.settings import Layer

#: Values are the same, as far as the choice of a counterpart goes; a fault may hide below it, never above.
SAME = 2e-4


@dataclass(frozen=True)
class Call:
    """One call in a run.

    Attributes:
        index: its rank by the beginning.
        end: the rank of the next call that began after it ended.
        path: of the module; of a function's call, the path of the module that calls it.
        name: the class of the module, or the name of the function.
        function: it is a function that a forward calls itself.
        layer: what it is.
        turn: how many calls of this module (or of this function by this module) there were before.
        inputs: the tensors that it got.
        outputs: the tensors that it gave.
        leaf: it called no other module.
        owns: it has parameters of its own.
        failed: it raised an error; it gave nothing then.
    """

    index: int
    end: int
    path: str
    name: str
    function: bool
    layer: Layer
    turn: int
    inputs: tuple[Kept, ...]
    outputs: tuple[Kept, ...]
    leaf: bool
    owns: bool
    failed: bool = False

    @property
    def stateless(self) -> bool:
        """It has no parameters and calls nothing that is recorded by itself."""
        return self.function or (self.leaf and not self.owns)


class Keeper(Protocol):
    """Keeps values: :class:`automap.activations.Activations`, or what keeps less of them."""

    def keep(self, array: Array) -> Any: ...


#: Makes the context in which an observer sees the functions that forwards call.
Observed = Callable[[Any], AbstractContextManager[None]]


def record(
    runner: Runner,
    read: Callable[[Any], Layer],
    observed: Observed | None,
    inputs: Inputs,
    forward: Forward | None,
    store: Keeper,
    calls: list[Call] | None = None,
) -> tuple[list[Call], Any]:
    """Run a network once and record it.

    Args:
        runner: of the network, which holds the weights.
        read: the settings of a module.
        observed: the context in which functions are seen, None for modules only.
        inputs: of the run.
        forward: instead of the network's own.
        store: where the values go.
        calls: where the calls go, so that they are there, too, if the run raises an error.

    Returns:
        The calls in the order of their beginning, and the outputs.
    """
    found: list[Call | None] = []
    inner = with_children(runner)
    turns: dict[tuple[str, str], int] = {}
    inside: list[list[Any]] = []  # path, whether it is the framework's own leaf, whether it called modules

    def keep(nested: Any) -> tuple[Kept, ...]:
        return tuple(store.keep(runner.array(t)) for t in runner.tensors(nested))

    def turn(path: str, name: str) -> int:
        turns[path, name] = turns.get((path, name), -1) + 1
        return turns[path, name]

    def watch(visit: Visit, proceed: Callable[..., Any]) -> Any:
        module, index = visit.module, len(found)
        found.append(None)
        layer = read(visit.obj)
        given = keep((visit.args, visit.kwargs))
        nth = turn(module.path, "")
        if inside:
            inside[-1][2] = True
        closed = (layer.own and bool(layer.kind)) or (bool(module.own) and module.path not in inner)
        inside.append([module.path, closed, False])
        gave: tuple[Kept, ...] | None = None
        try:
            out = proceed(*visit.args, **visit.kwargs)
            gave = keep(out)
        finally:
            _, _, parent = inside.pop()
            found[index] = Call(
                index, len(found), module.path, module.kind, False, layer, nth, given, gave or (), not parent,
                bool(module.own), gave is None,
            )  # fmt: skip
        return out

    def observe(name: str, layer: Layer, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        if not inside or inside[-1][1]:
            return call(*args, **kwargs)
        path, index = inside[-1][0], len(found)
        found.append(None)
        given = keep((args, kwargs))
        nth = turn(path, name)
        gave: tuple[Kept, ...] | None = None
        try:
            out = call(*args, **kwargs)
            gave = keep(out)
        finally:
            found[index] = Call(
                index, len(found), path, name, True, layer, nth, given, gave or (), True, False, gave is None
            )  # fmt: skip
        return out

    try:
        with observed(observe) if observed is not None else nullcontext():
            outputs = runner.run(inputs, forward, watch)
    finally:
        made = [c for c in found if c is not None]
        if calls is not None:
            calls += made
    return made, outputs


def with_children(runner: Runner) -> set[str]:
    """The paths of the modules that have further modules in them."""
    return {path.rpartition(".")[0] for path in runner.modules if path}


# -- one value in two layouts ------------------------------------------------------------------------------------------


def distance(a: Array, b: Array) -> float:
    """How far ``b`` is from ``a``, relative to the greatest value of ``a``; infinite if the shapes differ."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    if a.dtype.kind not in "fc" and b.dtype.kind not in "fc":
        return 0.0 if np.array_equal(a, b) else float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        apart = float(np.abs(a.astype(np.float64) - b).max())
        scale = float(np.abs(a).max())
    if not np.isfinite(apart):
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    return apart / scale if scale > 0 else (0.0 if apart == 0 else float("inf"))


def fit(array: Array, like: Array, loose: bool = False, any_order: bool = False) -> tuple[Array, float] | None:
    """PyTorch's value in the layout of MindSpore's: the same shape, channels last, axes joined or of one.

    Where the shape is the same, so must be the order of the axes: a port that exchanges two of one length is wrong.

    Args:
        array: PyTorch's value.
        like: MindSpore's.
        loose: any order of the axes will do where the shapes differ.
        any_order: it will do where they are the same, too.

    Returns:
        The array in the shape of ``like`` and its distance, of all layouts the nearest; None if the sizes differ.
    """
    if array.size != like.size:
        return None
    best: tuple[Array, float] | None = None
    hopeless = not _alike(array, like)
    for candidate in _layouts(array, like.shape, loose or any_order, any_order):
        apart = distance(candidate, like)
        if apart < SAME:
            return candidate, apart
        if best is None:
            best = candidate, apart  # the most natural layout, whatever the values are
        if hopeless:
            break
    return best


def _alike(a: Array, b: Array) -> bool:
    """Whether two arrays may be the same values in another order."""
    if a.dtype.kind not in "fc":
        return True
    x, y = a.ravel(), b.ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        one, other = float(np.dot(x, x)), float(np.dot(y, y))
    return abs(one - other) <= 1e-3 * max(one, other)


def _layouts(array: Array, shape: tuple[int, ...], loose: bool, any_order: bool) -> Iterator[Array]:
    """An array in every layout that has a shape, the most natural first."""
    if array.shape == shape:
        yield array
        if any_order:
            for order in itertools.permutations(range(array.ndim)):
                if tuple(array.shape[i] for i in order) == shape:
                    yield array.transpose(order)
        return
    flat = array.reshape(shape)
    if tuple(s for s in array.shape if s != 1) == tuple(s for s in shape if s != 1):
        yield flat
        return
    n = array.ndim
    orders = list(itertools.permutations(range(n)))[1:] if loose and n <= 4 else _usual_orders(n)
    late = []
    for order in orders:
        if tuple(array.shape[i] for i in order) == shape:
            yield array.transpose(order)
        else:
            late.append(order)
    yield flat
    for order in late:
        yield array.transpose(order).reshape(shape)


def _usual_orders(n: int) -> list[tuple[int, ...]]:
    """Channels last, channels first, sequence first."""
    if n < 2:
        return []
    axes = tuple(range(n))
    last, first = (0, *axes[2:], 1), (0, n - 1, *axes[1:-1])
    swapped = (1, 0, *axes[2:])
    return [o for o in dict.fromkeys((last, first, swapped)) if o != axes]
