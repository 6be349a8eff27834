"""Traces a PyTorch network: fingerprints of what its modules see and give, and which parameters that depends on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from automap import running
from automap.running import Forward, Inputs, Visit
from automap.torch_runner import Runner
from automap.tracing import Call, Fingerprint, Trace, fingerprint


def trace(runner: Runner, inputs: Inputs, forward: Forward | None = None, settle: bool = False) -> tuple[Any, Trace]:
    """Run the network once.

    Args:
        settle: scale the running statistics of norms to this run on the way, and keep them scaled; see
            :meth:`automap.torch_runner.Runner.settle`.

    Returns:
        The outputs as :meth:`automap.running.Runner.run` gives them, and the trace.
    """
    flow = _Flow(runner.first_names())
    prints = Prints(runner.array)
    calls: list[Call | None] = []
    ends: list[tuple[tuple[Fingerprint, ...], int]] = []

    def watch(visit: Visit, proceed: Callable[..., Any]) -> Any:
        if not visit.module.own:
            return proceed(*visit.args, **visit.kwargs)
        place = len(calls)
        calls.append(None)
        arguments = runner.tensors((visit.args, visit.kwargs))
        seen, before = flow.of(arguments), prints.of(arguments)
        out = proceed(*visit.args, **visit.kwargs)
        results = runner.tensors(out)
        calls[place] = Call(visit.module.path, before, prints.of(results), seen, flow.of(results))
        return out

    def whole(*args: Any, **kwargs: Any) -> Any:
        with flow:
            out = (forward or running.call)(*args, **kwargs)
        results = runner.tensors(out)
        ends.append((prints.of(results), flow.of(results)))
        return out

    outputs = (runner.settle if settle else runner.run)(inputs, whole, watch)
    modules = {path: m for path, m in runner.modules.items() if m.own}
    done = tuple(c for c in calls if c is not None)
    return outputs, Trace(tuple(flow.names), modules, done, *ends[-1])


class Prints:
    """Fingerprints of tensors; one that is passed on as it is is looked at once."""

    def __init__(self, array: Callable[[Any], Any]) -> None:
        self._array = array
        self._known: dict[int, tuple[weakref.ref[Any], Any, Fingerprint]] = {}

    def of(self, tensors: list[Any]) -> tuple[Fingerprint, ...]:
        """The fingerprints of some tensors, in order."""
        return tuple(self._one(t) for t in tensors)

    def _one(self, tensor: Any) -> Fingerprint:
        version = getattr(tensor, "_version", None)
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2]
        if len(self._known) > 64:
            self._known.clear()
        found = fingerprint(self._array(tensor))
        if version is not None:
            self._known[id(tensor)] = weakref.ref(tensor), version, found
        return found


class _Flow(TorchDispatchMode):  # type: ignore[misc]  # untyped in torch
    """Follows which parameters the values in memory depend on, from operation to operation.

    Each storage has a set of parameters, as bits. An operation hands the sets of its arguments on to its results:
    storages of its own start anew, those of its arguments (views, changes in place) collect.
    """

    def __init__(self, names: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.names = names
        self._bits: dict[int, int] = {}
        for i, tensor in enumerate(names.values()):
            key = _storage(tensor)
            self._bits[key] = self._bits.get(key, 0) | 1 << i

    def of(self, tensors: list[torch.Tensor]) -> int:
        bits = 0
        for tensor in tensors:
            bits |= self._bits.get(_storage(tensor), 0)
        return bits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        bits, places = 0, set()
        for tensor in _flat(args):
            key = _storage(tensor)
            places.add(key)
            bits |= self._bits.get(key, 0)
        if kwargs:
            for tensor in _flat(kwargs.values()):
                bits |= self._bits.get(_storage(tensor), 0)
        for tensor in _flat((out,)):
            key = _storage(tensor)
            self._bits[key] = bits | (self._bits.get(key, 0) if key in places else 0)
        return out


def _storage(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided:
        return -id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _flat(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found.extend(_flat(value))
    return found
