"""Traces a PyTorch network: fingerprints of what its modules see and give, and which parameters that depends on."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from automap import running
from automap.errors import AutomapError, NotRunnableError
from automap.running import Forward, Inputs, Visit, Watch
from automap.seeding import generator
from automap.torch_runner import Runner
from automap.tracing import Call, Fingerprint, Trace, fingerprint

#: What has at most so many times as many elements as its longest side counts as a vector.
_VECTOR = 4
#: Of so many elements of a gradient, at least, its fingerprint is made.
_SAMPLE = 1 << 14

#: A way to run a network: ``run(inputs, forward, watch)``, as :meth:`automap.torch_runner.Runner.run` is one.
Run = Callable[[Inputs, Forward | None, Watch | None], Any]


def trace(runner: Runner, inputs: Inputs, forward: Forward | None = None, run: Run | None = None) -> tuple[Any, Trace]:
    """Run the network once, and leave fingerprints of what its modules see and give.

    Args:
        run: how, if not plainly: ``runner.settle`` scales the running statistics of norms on the way, and a partial
            ``runner.run_with_noise`` computes as another machine might.

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

    outputs = (run or runner.run)(inputs, whole, watch)
    modules = {path: m for path, m in runner.modules.items() if m.own}
    done = tuple(c for c in calls if c is not None)
    return outputs, Trace(tuple(flow.names), modules, done, *ends[-1], runner.numbers)


@dataclass(frozen=True)
class Effect:
    """What a parameter does to the outputs of one run.

    Attributes:
        size: how far the seeded sum of all outputs moves if the parameter moves by its own scale.
        slope: fingerprint of the gradient, or of a part of a large one: two parameters with one gradient are added to
            each other.
        product: of gradient times value: two with one product are multiplied with each other.
    """

    size: float
    slope: Fingerprint
    product: Fingerprint


def effects(runner: Runner, inputs: Inputs, forward: Forward | None, seed: int) -> tuple[dict[str, Effect], float]:
    """The effect of every floating-point parameter and running statistic, by one gradient of the outputs.

    The outputs are summed with weights that are standard normal, so that nothing cancels out. Statistics of norms,
    of which PyTorch has no derivative, take part as plain arithmetic.

    Returns:
        The effects by the first names of the parameters (those that no gradient reaches are absent), and the root of
        the number of outputs: a difference of one in each of them moves the sum by about this much.

    Raises:
        NotRunnableError: the network has no gradient.
    """
    leaves: dict[str, torch.Tensor] = {}
    tensors = {n: t for n, t in runner.first_names().items() if t.is_floating_point()}
    found: dict[str, Effect] = {}
    count = 0

    def watch(visit: Visit, proceed: Callable[..., Any]) -> Any:
        norm = visit.obj
        if not isinstance(norm, torch.nn.modules.batchnorm._NormBase) or norm.running_mean is None or visit.kwargs:
            return proceed(*visit.args, **visit.kwargs)
        names = dict(visit.module.own)
        (x,) = visit.args
        shape = (1, -1, *(1,) * (x.dim() - 2))
        mean, variance = (
            leaves.setdefault(names[a], getattr(norm, a).detach().clone().requires_grad_()).reshape(shape)
            for a in ("running_mean", "running_var")
        )
        out = (x - mean) / (variance + norm.eps).sqrt()
        out = out if norm.weight is None else out * norm.weight.reshape(shape)
        return out if norm.bias is None else out + norm.bias.reshape(shape)

    def whole(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        required = {n: t.requires_grad for n, t in tensors.items() if isinstance(t, torch.nn.Parameter)}
        try:
            for name in required:
                tensors[name].requires_grad_(True)
            with torch.enable_grad():
                out = (forward or running.call)(*args, **kwargs)
                results = [t for t in runner.tensors(out) if t.is_floating_point() and t.requires_grad]
                if not results:
                    return out
                count = sum(t.numel() for t in results)
                total = torch.zeros((), dtype=torch.float64, device=results[0].device)
                for i, result in enumerate(results):
                    weights = generator(seed, f"output {i}").standard_normal(tuple(result.shape), dtype=np.float32)
                    total = total + (result * runner.tensor(weights).to(result)).sum().double()
            wanted = leaves | {n: tensors[n] for n in required}
            _each_gradient(
                total,
                wanted,
                lambda name, value, grad: found.update({name: _effect(runner, value, grad)}),
            )
            return out
        finally:
            for name, flag in required.items():
                tensors[name].requires_grad_(flag)

    try:
        runner.run(inputs, whole, watch)
    except AutomapError as error:
        raise NotRunnableError(f"the PyTorch network has no gradient: {error}", "backward") from error
    return found, math.sqrt(count)


def _each_gradient(
    total: torch.Tensor, wanted: dict[str, torch.Tensor], use: Callable[[str, torch.Tensor, torch.Tensor], None]
) -> None:
    """Every gradient as soon as it is there, so that they are never all in memory; ``grad`` is left as it was."""
    before = {name: tensor.grad for name, tensor in wanted.items()}

    def taken(name: str) -> Callable[[torch.Tensor], None]:
        def take(tensor: torch.Tensor) -> None:
            if tensor.grad is not None:
                use(name, tensor, tensor.grad)
            tensor.grad = None

        return take

    for tensor in wanted.values():
        tensor.grad = None
    hooks = [tensor.register_post_accumulate_grad_hook(taken(name)) for name, tensor in wanted.items()]
    try:
        total.backward(inputs=list(wanted.values()))
    finally:
        for hook in hooks:
            hook.remove()
        for name, tensor in wanted.items():
            tensor.grad = before[name]


def _effect(runner: Runner, value: torch.Tensor, grad: torch.Tensor) -> Effect:
    wide = torch.promote_types(value.dtype, torch.float32)
    length, steep = (float(torch.linalg.vector_norm(t.detach(), dtype=wide)) for t in (value, grad))
    scale = length / math.sqrt(max(1, value.numel()))
    # Equal gradients are equal in every part of them, so one part of a large one tells as much as all of it.
    step = max(1, grad.numel() // _SAMPLE)
    slope, here = (runner.array(t.flatten()[::step]) for t in (grad, value))
    # Matrices that are multiplied with each other cannot be exchanged; vectors can.
    vector = value.numel() <= _VECTOR * max(value.shape, default=1)
    print_ = fingerprint(slope)
    return Effect(steep * scale, print_, fingerprint(slope * here) if vector else print_)


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

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch loads its compiler first, which takes a second

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
