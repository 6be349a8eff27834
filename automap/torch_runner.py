"""Runs a PyTorch network for validation: inference mode, NumPy in and out, everything put back afterwards.

It imports PyTorch, and is itself imported only where a PyTorch network has to run.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.utils import parametrize

from automap import precision, running, torch_edge
from automap.dtypes import BFLOAT16, Array, widen
from automap.errors import AutomapError, NotRunnableError
from automap.graph import Framework
from automap.running import Forward, Inputs, Loss, Module, Watch
from automap.torch_autocast import Autocast
from automap.torch_noise import noisy

#: Messages about something that this machine lacks; the group names it.
_LACKS = (
    re.compile(r"Could not run '([\w:.]+)' with arguments from the '\w+' backend"),
    re.compile(r"\"(\w+)\" not implemented for '(?:Half|BFloat16|Float8\w*|Complex\w+)'"),
    re.compile(r"Torch not compiled with (CUDA) enabled"),
    re.compile(r"Found no (NVIDIA driver)"),
)

#: Messages about a backward that does not exist; the group names the operation.
_LACKS_BACKWARD = (
    *_LACKS,
    re.compile(r"derivative for '?([\w:.]+)'? is not implemented"),
    re.compile(r"the derivative of '([\w:.]+)' is not"),
)


class Runner:
    """Runs one PyTorch network; see :class:`automap.running.Runner`.

    Attributes:
        settled: by what :meth:`settle` last multiplied the running statistics, by their listed names.
    """

    framework: Framework = "torch"

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        every = model.state_dict(keep_vars=True)
        self._tensors = {name: t for name, t in every.items() if isinstance(t, torch.Tensor)}
        floats = {t.dtype for t in self._tensors.values() if t.is_floating_point()}
        self._float = floats.pop() if len(floats) == 1 else None
        coarsest = self._float or max(floats, key=lambda d: torch.finfo(d).eps, default=torch.float32)
        self.dtype = str(coarsest).removeprefix("torch.")
        self.narrow = precision.low(self.dtype)
        self._autocast = Autocast()
        self._device = next((t.device for t in self._tensors.values()), torch.device("cpu"))
        self._held = 0
        self._objects = dict(model.named_modules())
        self.settled: dict[str, float] = {}
        self.modules = {path: _module(path, m, self._tensors) for path, m in self._objects.items()}
        self.numbers = running.numbers_of(self._objects, torch.nn.Module())

    def object(self, path: str) -> torch.nn.Module:
        return self._objects[path]

    def array(self, tensor: torch.Tensor) -> Array:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        array: Array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        return array

    def tensor(self, array: Array) -> torch.Tensor:
        return torch_edge.parameter(array).to(self._device)

    def tensors(self, nested: Any) -> list[torch.Tensor]:
        return list(running.nested_tensors(nested, torch.Tensor))

    def put(self, values: Mapping[str, Array]) -> None:
        with torch.no_grad():
            # In place, as load_state_dict does it: tensors that share memory go on sharing it.
            for name, array in values.items():
                self._tensors[name].copy_(_shared(array))

    def value(self, name: str) -> Array:
        tensor = self._tensors[name]
        return torch_edge.array_of(tensor, name) if tensor.dtype == torch.bfloat16 else self.array(tensor)

    def remarks(self) -> tuple[str, ...]:
        if self.narrow:
            return ()
        seen, cast = self._autocast.seen, self._autocast.products - self._autocast.seen
        ways = ((seen, "under torch.autocast"), (cast, "which its forward casts to"))
        return tuple(running.MIXED.format(" and ".join(sorted(kinds)), how) for kinds, how in ways if kinds)

    def expect(self, dtype: str) -> None:
        pass

    def state(self) -> dict[str, Array]:
        return torch_edge.state_of(self.model)

    @contextmanager
    def holding(self, state: Mapping[str, Array], lend: bool = False) -> Iterator[None]:
        running.check_fit(state, {name: tuple(t.shape) for name, t in self._tensors.items()}, "torch")
        lent = self._exchangeable(state) if lend else {}
        away = {id(self._tensors[name]) for name in lent}
        every = map(self._tensors.__getitem__, state) if self._held else _tensors_of(self.model)
        kept = [t for t in every if id(t) not in away]
        with _unchanged(self.model, kept), _exchanged([(self._tensors[n], a) for n, a in lent.items()]):
            self.put({name: array for name, array in state.items() if id(self._tensors[name]) not in away})
            del state  # whoever made it for this call needs it no longer
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1

    def _exchangeable(self, state: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """The arrays that can exchange their values with the network's: of tensors that share no memory."""
        users = Counter(t.untyped_storage().data_ptr() for t in _tensors_of(self.model) if t.layout == torch.strided)
        arrays = Counter(map(id, state.values()))
        found = {}
        for name, array in state.items():
            tensor = self._tensors[name]
            if arrays[id(array)] > 1 or tensor.device.type != "cpu" or tensor.layout != torch.strided:
                continue
            if not array.flags.owndata or not array.flags.c_contiguous or not array.flags.writeable or not array.shape:
                continue
            alone = users[tensor.untyped_storage().data_ptr()] == 1 and tensor.is_contiguous()
            if alone and array.dtype != BFLOAT16 and (theirs := torch.from_numpy(array)).dtype == tensor.dtype:
                found[name] = theirs
        return found

    def run(self, inputs: Inputs, forward: Forward | None = None, watch: Watch | None = None) -> Any:
        # What holds other values puts back all of them; until then, no run has to keep them, too.
        with _unchanged(self.model, [] if self._held else None), torch.no_grad(), self._watched(watch):
            self.model.eval()
            try:
                return running.nested_to_numpy(self._called(inputs, forward), _output)
            except Exception as error:
                raise _translated(error, inputs) from error

    def _called(self, inputs: Inputs, forward: Forward | None) -> Any:
        with self._autocast.watched(self._device.type):
            out = running.called(self.model, inputs, forward, self._tensor)
        # What was computed in a type is as coarse as with parameters of that type.
        kinds = [getattr(torch, d) for d in (self.dtype, *self._autocast.seen, *self._autocast.products)]
        self.dtype = str(max(kinds, key=lambda d: torch.finfo(d).eps)).removeprefix("torch.")
        return out

    def trained(self) -> frozenset[str]:
        return frozenset(n for n, t in self._tensors.items() if t.requires_grad and t.is_floating_point())

    def gradients(
        self, inputs: Inputs, loss: Loss, names: Collection[str], forward: Forward | None = None
    ) -> dict[str, Array]:
        wanted = {name: self._tensors[name] for name in names}
        with _unchanged(self.model), _asked_for_gradients(wanted.values()), torch.enable_grad():
            self.model.eval()
            try:
                outputs = running.nested_to_numpy(self._called(inputs, forward), _tensor_or_none)
            except Exception as error:
                raise _translated(error, inputs) from error
            terms = [(y, self._tensor(w).to(y)) for y, w in loss.terms(outputs) if y.requires_grad]
            # The loss is known by its derivatives: its value is not needed, and would only be rounded.
            heads = [w + loss.bend * w.abs() * y.detach() if loss.bend else w for y, w in terms]
            found: Any = [None] * len(wanted)
            try:
                if terms and wanted:
                    found = torch.autograd.grad([y for y, _ in terms], list(wanted.values()), heads, allow_unused=True)
            except Exception as error:
                raise _no_backward(error) from error
        made = {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(wanted.items(), found, strict=True)}
        return {name: widen(torch_edge.array_of(g.detach(), name)) for name, g in made.items()}

    def gradients_with_noise(
        self,
        inputs: Inputs,
        loss: Loss,
        names: Collection[str],
        seed: int,
        kernel_noise: Mapping[str, Array],
        forward: Forward | None = None,
        *,
        units: float = 1.0,
    ) -> dict[str, Array]:
        """Gradients as another machine might have computed them; see :meth:`run_with_noise`.

        Every parameter is off by at most ``units`` units in its last place.
        """
        with self._noisy(seed, kernel_noise, units):
            return self.gradients(inputs, loss, names, forward)

    def double(self) -> Runner | None:
        """The runner of a copy of the network in float64, or None where there can be none."""
        try:
            return Runner(copy.deepcopy(self.model).double())
        except Exception:  # whatever a network's own parts say to being copied
            return None

    @property
    def mixed(self) -> str:
        return precision.coarsest(self._autocast.seen)

    @property
    def low(self) -> frozenset[str]:
        return frozenset(self._autocast.low)

    @contextmanager
    def wide(self) -> Iterator[Runner]:
        low = [t for t in _tensors_of(self.model) if t.dtype in (torch.float16, torch.bfloat16)]
        kept = [(t, t.data, t.grad if t.is_leaf else None) for t in low if not torch.nn.parameter.is_lazy(t)]
        try:
            try:
                for tensor, data, _ in kept:
                    tensor.grad = None  # which has the element type of its parameter
                    tensor.data = data.float()
            except (RuntimeError, TypeError) as error:
                raise precision.not_cast("torch", error) from error
            runner = Runner(self.model)
            runner._autocast = Autocast(off=True)
            yield runner
        finally:
            for tensor, data, grad in kept:
                tensor.data = data
                tensor.grad = grad

    def first_names(self) -> dict[str, torch.Tensor]:
        """Every parameter and persistent buffer; a tied one by the first of its names."""
        seen: set[int] = set()
        return {n: t for n, t in self._tensors.items() if not (id(t) in seen or seen.add(id(t)))}  # type: ignore[func-returns-value]

    def settle(self, inputs: Inputs, forward: Forward | None = None, watch: Watch | None = None) -> Any:
        """Scale the running statistics of each norm to the size of what these inputs bring to it.

        Statistics that do not fit let the signal of a deep network grow or fade, layer by layer, until its output
        hides what most parameters do. One factor for each layer is enough, and keeps the channels as different as
        they are. Fitting mean and variance of every channel would make rounding errors grow instead. Call it inside
        :meth:`holding`, which puts the network's own statistics back. Afterwards :attr:`settled` has the factors.

        Returns:
            The outputs with the scaled statistics.
        """
        self.settled.clear()
        settled: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

        def before(module: Any, args: tuple[Any, ...]) -> None:
            if module not in settled and args:
                # At once: what follows in this very run sees the normalised values.
                energy = args[0].square().mean().clamp_min(1e-4)
                factors = {"running_mean": energy.sqrt(), "running_var": energy}
                mean, variance = (getattr(module, name) * factor for name, factor in factors.items())
                settled[module] = mean, variance
                self.settled.update((listed[module, name], float(factor)) for name, factor in factors.items())
                put(module)

        def put(module: Any) -> None:
            mean, variance = settled[module]
            module.running_mean.copy_(mean)
            module.running_var.copy_(variance)

        listed = {(m, a): n for path, m in self._objects.items() for a, n in self.modules[path].own}
        hooks = [
            module.register_forward_pre_hook(before)
            for module in self.model.modules()
            if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.running_mean is not None
        ]
        try:
            out = self.run(inputs, forward, watch)
        finally:
            for hook in hooks:
                hook.remove()
        for module in settled:
            put(module)  # the end of a run may have put the old ones back
        return out

    def run_with_noise(
        self,
        inputs: Inputs,
        seed: int,
        kernel_noise: Mapping[str, Array],
        forward: Forward | None = None,
        watch: Watch | None = None,
    ) -> Any:
        """One forward as another machine might have computed it; for the rest as :meth:`run`.

        Every parameter is off by at most one unit in its last place, and the result of every operation in
        ``kernel_noise`` by at most what :func:`automap.mindspore_runner.kernel_noise` says of its argument. How far
        the outputs move tells how much two right implementations of this very network can differ.
        """
        with self._noisy(seed, kernel_noise):
            return self.run(inputs, forward, watch)

    @contextmanager
    def _noisy(self, seed: int, kernel_noise: Mapping[str, Array], units: float = 1.0) -> Iterator[None]:
        changed = {id(t): t for t in self._tensors.values()}.values()
        before, self._autocast.thorough = self._autocast.thorough, not self._autocast.off
        try:
            with _unchanged(self.model, []), noisy(changed, seed, kernel_noise, units):
                yield
        finally:
            self._autocast.thorough = before

    def _watched(self, watch: Watch | None) -> AbstractContextManager[None]:
        known = {id(m): self.modules[path] for path, m in self._objects.items()}
        return running.watched(torch.nn.Module, known, watch)

    def _tensor(self, array: Array) -> torch.Tensor:
        tensor = torch_edge.parameter(array).to(self._device)
        return tensor.to(self._float) if self._float is not None and tensor.is_floating_point() else tensor


def _tensors_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Every parameter and buffer once."""
    return list({id(t): t for t in (*model.parameters(), *model.buffers())}.values())


@contextmanager
def _exchanged(pairs: Collection[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Tensors with the values of others, which keep theirs meanwhile; what these had is lost afterwards."""
    done: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        with torch.no_grad():
            for tensor, other in pairs:
                before = tensor.detach().clone()
                tensor.copy_(other)
                other.copy_(before)
                done.append((tensor, other))
        yield
    finally:
        with torch.no_grad():
            for tensor, other in done:
                tensor.copy_(other)


@contextmanager
def _unchanged(model: torch.nn.Module, some: list[torch.Tensor] | None = None) -> Iterator[None]:
    """Weights (or only ``some``), training flags and random state as they were, afterwards."""
    # A scripted module has no places that a run could put other tensors in.
    plain = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    before = [(now, dict(now)) for m in plain for now in (m._parameters, m._buffers)]
    training = [(m, m.training) for m in model.modules()]
    every = _tensors_of(model) if some is None else some
    tensors = {id(t): t for t in every}
    values = [(t, t.detach().clone()) for t in tensors.values() if not torch.nn.parameter.is_lazy(t)]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with running.python_randomness_kept(), torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for module, flag in training:
                module.training = flag
            for now, then in before:
                now.clear()
                now.update(then)
            with torch.no_grad():
                for tensor, value in values:
                    tensor.copy_(value)


def _shared(array: Array) -> torch.Tensor:
    """A tensor to copy from, in the array's own memory where PyTorch can have it."""
    if array.dtype == BFLOAT16 or not array.flags.writeable or not array.flags.c_contiguous or not array.shape:
        return torch_edge.parameter(array)
    return torch.from_numpy(array)


def _own(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _module(path: str, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Module:
    """What a weight is computed from by parametrizations belongs to the layer of the weight."""
    prefix = f"{path}." if path else ""
    names = [n for n, _ in _own(module)]
    if "parametrizations" in path.split("."):
        names = []
    elif parametrize.is_parametrized(module):
        inner: torch.nn.Module = module.parametrizations
        names += [f"parametrizations.{n}" for n, _ in (*inner.named_parameters(), *inner.named_buffers())]
    kind = parametrize.type_before_parametrizations(module).__name__
    return Module(path, kind, tuple((n, prefix + n) for n in names if prefix + n in tensors))


@contextmanager
def _asked_for_gradients(tensors: Collection[torch.Tensor]) -> Iterator[None]:
    """These tensors, and all that did before, ask for a gradient; afterwards they are as they were."""
    flags = [(t, t.requires_grad) for t in tensors]
    try:
        for tensor in tensors:
            tensor.requires_grad_(True)
        yield
    finally:
        for tensor, flag in flags:
            tensor.requires_grad_(flag)


def _tensor_or_none(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else None


def _output(value: Any) -> Array | None:
    return widen(torch_edge.array_of(value, "an output")) if isinstance(value, torch.Tensor) else None


def _translated(error: Exception, inputs: Inputs) -> AutomapError:
    """A framework's error as one of automap's: an operation without a kernel, or inputs that do not fit."""
    for pattern in _LACKS:
        if found := pattern.search(str(error)):
            return NotRunnableError(f"the PyTorch network cannot run here: {running.one_line(error)}", found[1])
    return running.refused(error, inputs, "torch")


def _no_backward(error: Exception) -> AutomapError:
    """The error for a backward that does not run though the forward did."""
    named = next((found for pattern in _LACKS_BACKWARD if (found := pattern.search(str(error)))), None)
    operation = named[1] if named else "backward"
    return NotRunnableError(f"the PyTorch network has no backward here: {running.one_line(error)}", operation)
