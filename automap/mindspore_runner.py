"""Runs a MindSpore network for validation: inference mode, NumPy in and out, everything put back afterwards.

It imports MindSpore, and is itself imported only where a MindSpore network has to run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from scipy import special

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as edge, precision, running  # isort: skip
import mindspore as ms
from mindspore.common import seed as _ms_seed

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _pynative_executor

from automap.dtypes import Array, dtype_name, widen
from automap.errors import AutomapError, NotRunnableError
from automap.graph import Framework
from automap.mindspore_equals import NoEqualError
from automap.mindspore_standins import LACKS, LACKS_TYPE, StandIns
from automap.mindspore_wrapping import network_inside
from automap.running import NOISE_BINS, NOISE_RANGE, Forward, Inputs, Loss, Module, Watch

#: Messages about an operation whose backward MindSpore does not have; the group names it.
_LACKS_BACKWARD = (re.compile(r"primitive (\w+)'s bprop not defined"),)


#: Element types by the names that a cell has for what it casts to.
_MIXED = {"BF16": "bfloat16", "FP16": "float16"}


class Runner:
    """Runs one MindSpore network; see :class:`automap.running.Runner`."""

    framework: Framework = "mindspore"

    def __init__(self, model: ms.nn.Cell) -> None:
        # What wraps a network for training would train it.
        model = network_inside(model)
        self.model = model
        # The names as they are before any forward: slicing a CellList renames the parameters in it.
        self._parameters = {p.name: p for _, p in model.parameters_and_names()}
        floats = {str(p.dtype).lower() for p in self._parameters.values() if "float" in str(p.dtype).lower()}
        self._float = getattr(ms, next(iter(floats))) if len(floats) == 1 else None
        # What cells are cast to (to_float, amp) is as coarse as parameters of that type are.
        types = (getattr(cell, "mixed_precision_type", None) for _, cell in model.cells_and_names())
        cast_to = {_MIXED[name] for t in types if (name := getattr(t, "name", "")) in _MIXED}
        coarse = floats | cast_to
        self.dtype = next((d for d in ("bfloat16", "float16", "float32", "float64") if d in coarse), "float32")
        self.narrow, self.mixed = precision.coarsest(floats), precision.coarsest(cast_to)
        self._low: set[str] | None = None  # what is seen of low precision, where that is looked for
        self._looked = False
        self._held = 0
        cast = any(getattr(cell, "mixed_precision_type", None) is not None for _, cell in model.cells_and_names())
        self._stand_ins = StandIns(every=cast or bool(floats & {"bfloat16", "float16"}))
        self._objects = {path: cell for path, cell in model.cells_and_names() if cell is not None}
        self.modules = {
            path: Module(
                path, type(cell).__name__, tuple((a, p.name) for a, p in cell._params.items() if p is not None)
            )
            for path, cell in self._objects.items()
        }
        self.numbers = running.numbers_of(self._objects, ms.nn.Cell())

    def object(self, path: str) -> ms.nn.Cell:
        return self._objects[path]

    def array(self, tensor: ms.Tensor) -> Array:
        array: Array = tensor.asnumpy()
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array

    def tensor(self, array: Array) -> ms.Tensor:
        return edge.parameter(array).value() if dtype_name(array) == "bfloat16" else ms.Tensor(np.asarray(array))

    def tensors(self, nested: Any) -> list[ms.Tensor]:
        return list(running.nested_tensors(nested, ms.Tensor))

    def put(self, values: Mapping[str, Array]) -> None:
        for name, array in values.items():
            parameter, tensor = self._parameters[name], self.tensor(array)
            parameter.set_data(tensor if tensor.dtype == parameter.dtype else tensor.astype(parameter.dtype))

    def value(self, name: str) -> Array:
        return edge.array_of(self._parameters[name], name)

    def remarks(self) -> tuple[str, ...]:
        return self._stand_ins.remarks()

    def expect(self, dtype: str) -> None:
        self._stand_ins.every |= dtype in precision.LOW

    def state(self) -> dict[str, Array]:
        return {name: edge.array_of(p, name) for name, p in self._parameters.items()}

    @contextmanager
    def holding(self, state: Mapping[str, Array], lend: bool = False) -> Iterator[None]:
        running.check_fit(state, {name: tuple(p.shape) for name, p in self._parameters.items()}, "mindspore")
        with _weights_kept(self.model, replaced=state.keys()):
            lent = [name for name, array in state.items() if lend and self._can_have(name, array)]
            for name in lent:
                self._parameters[name].set_data(ms.Tensor.from_numpy(state[name]))
            self.put({name: array for name, array in state.items() if name not in lent} if lent else state)
            del state  # whoever made it for this call needs it no longer
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1

    def _can_have(self, name: str, array: Array) -> bool:
        """Whether a parameter can have the memory of an array: what is not trained a forward may write to."""
        parameter = self._parameters[name]
        whole = array.flags.c_contiguous and array.flags.writeable and array.flags.aligned and array.ndim > 0
        return bool(whole and parameter.requires_grad and str(parameter.dtype).lower() == array.dtype.name)

    def run(self, inputs: Inputs, forward: Forward | None = None, watch: Watch | None = None) -> Any:
        try:
            return self._run(inputs, forward, watch)
        except NotRunnableError:
            # A network can use a low precision that its parameters do not show. Who watches would see it run twice.
            if self._stand_ins.every or watch is not None:
                raise
            self._stand_ins.every = True
            return self._run(inputs, forward, watch)

    def _run(self, inputs: Inputs, forward: Forward | None, watch: Watch | None) -> Any:
        # What holds other values puts back all of them; until then, no run has to keep them, too.
        with (
            _unchanged(self.model, not self._held) as precision,
            self._stand_ins.active(precision.pushed if precision.taken_over(self._stand_ins.every) else ()),
            self._watched(watch, precision),
        ):
            self.model.set_train(False)
            try:
                out = self._called(inputs, forward)
                # Kernels run later than they are called: what fails in one is only known now.
                _pynative_executor.sync()
                return running.nested_to_numpy(out, _output)
            except Exception as error:
                raise _translated(error, inputs) from error

    def _called(self, inputs: Inputs, forward: Forward | None) -> Any:
        if self._low is None or self._looked:
            return running.called(self.model, inputs, forward, self._tensor)
        known = {id(cell): self.modules[path] for path, cell in self._objects.items()}
        with running.watched(ms.nn.Cell, known, self._look):
            out = running.called(self.model, inputs, forward, self._tensor)
        self._looked = True
        return out

    def _look(self, visit: running.Visit, proceed: Callable[..., Any]) -> Any:
        """Note what a cell gives in low precision."""
        out = proceed(*visit.args, **visit.kwargs)
        self._low = {*(self._low or ()), *(str(t.dtype).lower() for t in self.tensors(out))} & {*precision.LOW}
        return out

    @property
    def low(self) -> frozenset[str]:
        return frozenset(self._low or ())

    @contextmanager
    def wide(self) -> Iterator[Runner]:
        low = [p for _, p in self.model.parameters_and_names() if str(p.dtype).lower() in precision.LOW]
        kept = [(p, p.dtype, p.asnumpy().copy()) for p in {id(p): p for p in low}.values()]
        cells = [(cell, getattr(cell, "mixed_precision_type", None)) for _, cell in self.model.cells_and_names()]
        cells = [(cell, kind) for cell, kind in cells if getattr(kind, "name", "") in _MIXED]
        try:
            try:
                for parameter, _, _ in kept:
                    parameter.set_dtype(ms.float32)
            except (RuntimeError, TypeError, ValueError) as error:
                raise precision.not_cast("mindspore", error) from error
            for cell, _ in cells:
                cell.mixed_precision_type = None
            runner = Runner(self.model)
            runner._low = set()
            yield runner
        finally:
            for cell, kind in cells:
                cell.mixed_precision_type = kind
            for parameter, dtype, values in kept:
                parameter.set_dtype(dtype)
                parameter.set_data(ms.Tensor(values))

    def trained(self) -> frozenset[str]:
        return frozenset(n for n, p in self._parameters.items() if p.requires_grad and "float" in str(p.dtype).lower())

    def gradients(
        self, inputs: Inputs, loss: Loss, names: Collection[str], forward: Forward | None = None
    ) -> dict[str, Array]:
        wanted = {name: self._parameters[name] for name in names}
        if not wanted:
            return {}
        ran = False

        def total() -> ms.Tensor:
            nonlocal ran
            outputs = running.nested_to_numpy(self._called(inputs, forward), _tensor_or_none)
            ran = True
            value = ms.Tensor(0.0, ms.float32)
            for y, w in loss.terms(outputs):
                wide = y if y.dtype == ms.float64 else y.astype(ms.float32)
                head = ms.Tensor(w).astype(wide.dtype)
                value = value + (head * wide).sum()
                if loss.bend:
                    value = value + loss.bend / 2 * (head.abs() * wide * wide).sum()
            return value

        with (
            _unchanged(self.model, recording=True) as precision,
            self._stand_ins.active(precision.pushed if precision.taken_over(self._stand_ins.every) else ()),
            _asked_for_gradients(wanted.values()),
        ):
            self.model.set_train(False)
            try:
                found = ms.grad(total, None, list(wanted.values()))()
                _pynative_executor.sync()
                return {name: widen(edge.array_of(g, name)) for name, g in zip(wanted, found, strict=True)}
            except Exception as error:
                _pynative_executor.clear_res()  # what was recorded until then would spoil the next gradient
                raise (_no_backward(error) if ran else _translated(error, inputs)) from error

    def _watched(self, watch: Watch | None, precision: _Precision) -> AbstractContextManager[None]:
        known = {id(cell): self.modules[path] for path, cell in self._objects.items()}
        return running.watched(ms.nn.Cell, known, watch, precision.guarded)

    def _tensor(self, array: Array) -> ms.Tensor:
        tensor = ms.Tensor(np.ascontiguousarray(array))
        return tensor.astype(self._float) if self._float is not None and array.dtype.kind == "f" else tensor


@contextmanager
def _unchanged(model: ms.nn.Cell, values: bool = True, recording: bool = False) -> Iterator[_Precision]:
    """Weights (if their ``values`` count), their names, flags, mode, jit switch and random state as they were.

    With ``recording`` the cells' own flags say what is recorded for a gradient; without it, nothing is.
    """
    cells = [(cell, cell.training, cell.phase, cell.requires_grad) for _, cell in model.cells_and_names()]
    mode, jit = ms.get_context("mode"), os.environ.get("MS_JIT")
    generator, kernel_seeds = ms.get_rng_state(), dict(getattr(_ms_seed, "_KERNEL_SEED", {}))
    with running.python_randomness_kept(), _weights_kept(model, values), _Precision() as precision:
        try:
            if mode != ms.PYNATIVE_MODE:
                ms.set_context(mode=ms.PYNATIVE_MODE)
            os.environ["MS_JIT"] = "0"  # read at every call: a construct under @ms.jit runs as plain Python
            for cell, *_ in cells if not recording else ():
                cell.requires_grad = False  # no graph for gradients
            yield precision
        finally:
            # Kernels that are still under way may fail too, which would come to light in the user's next call.
            with contextlib.suppress(Exception):
                _pynative_executor.sync()
            if jit is None:
                del os.environ["MS_JIT"]
            else:
                os.environ["MS_JIT"] = jit
            if mode != ms.PYNATIVE_MODE:
                ms.set_context(mode=mode)
            for cell, training, phase, requires_grad in cells:
                cell.add_flags(training=training)
                cell.phase, cell.requires_grad = phase, requires_grad
            ms.set_rng_state(generator)
            if kernel_seeds:
                _ms_seed._KERNEL_SEED.clear()
                _ms_seed._KERNEL_SEED.update(kernel_seeds)


class _Precision:
    """Keeps the precision that operations are cast to as it was.

    A cell under ``to_float`` pushes its precision before its construct and pops it after; when the construct raises,
    MindSpore forgets to pop it, and everything that the process runs from then on would be cast.
    """

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self._taken_over = False
        self._outer: Any = None
        self._change = _pynative_executor.set_mixed_precision_type

    def __enter__(self) -> _Precision:
        self._outer = vars(_pynative_executor).get("set_mixed_precision_type")  # of a run that this one is within
        _pynative_executor.set_mixed_precision_type = self._watched
        return self

    def __exit__(self, *_: object) -> None:
        if self._outer is None:
            del _pynative_executor.set_mixed_precision_type
        else:
            _pynative_executor.set_mixed_precision_type = self._outer
        self.back_to(0)

    def _watched(self, precision: Any, is_push: bool = True) -> None:
        if is_push:
            self.pushed.append(precision)
        elif self.pushed:
            self.pushed.pop()
        if not self._taken_over:
            self._change(precision, is_push)

    def taken_over(self, whether: bool) -> bool:
        """Let MindSpore know nothing of what is pushed from now on, because another casts."""
        self._taken_over = whether
        return whether

    def guarded(self, proceed: Callable[..., Any]) -> Callable[..., Any]:
        """A call that leaves the precision as it was also when it raises: who watches may catch it, and call again."""

        def call(*args: Any, **kwargs: Any) -> Any:
            level = len(self.pushed)
            try:
                return proceed(*args, **kwargs)
            except BaseException:
                self.back_to(level)
                raise

        return call

    def back_to(self, level: int) -> None:
        """Pop what was pushed above a level."""
        while len(self.pushed) > level:
            precision = self.pushed.pop()
            if not self._taken_over:
                self._change(precision, False)


@contextmanager
def _weights_kept(model: ms.nn.Cell, values: bool = True, replaced: Collection[str] = ()) -> Iterator[None]:
    """The names of all parameters, and the ``values`` of these and of all buffers as they were, afterwards.

    Parameters that are about to be ``replaced`` get memory of their own meanwhile: theirs needs no copy.
    """
    parameters = [
        (p, p.name, _kept(p, p.name in replaced) if values else None) for _, p in model.parameters_and_names()
    ]
    buffers = [(b, b.asnumpy().copy()) for b in (model.buffers() if hasattr(model, "buffers") else ())]
    checked = [(cell, cell._is_check_and_refresh) for _, cell in model.cells_and_names()]
    try:
        yield
    finally:
        for parameter, name, value in parameters:
            if value is not None:
                parameter.set_data(value)
            parameter.name = name
        for buffer, value in buffers:
            buffer.assign_value(ms.Tensor(value))
        # Names that MindSpore repairs at the first call are repaired again at the user's own first call.
        for cell, flag in checked:
            cell._is_check_and_refresh = flag


def _kept(parameter: ms.Parameter, as_it_is: bool) -> ms.Tensor:
    """What a parameter has now: in its own memory ``as_it_is``, or a copy."""
    array = parameter.asnumpy()
    if as_it_is and array.dtype.kind in "fiub" and array.dtype.name != "bfloat16":
        return ms.Tensor.from_numpy(array)
    return ms.Tensor(array.copy())


@functools.lru_cache(maxsize=1)
def kernel_noise() -> dict[str, Array]:
    """How far the kernels of this machine are off, by the operation's name in ATen.

    For each operation: its greatest error in each of ``NOISE_BINS`` equal intervals of its argument from -6 to 6,
    relative to the value where that exceeds one. Operations that are as good as their element type are left out:
    rounding covers them.
    """
    x = np.linspace(-NOISE_RANGE, NOISE_RANGE, NOISE_BINS * 100, dtype=np.float32)
    wide = x.astype(np.float64)
    sigmoid = special.expit(wide)
    table: dict[str, tuple[Callable[[ms.Tensor], ms.Tensor], Array]] = {
        "tanh": (ms.ops.tanh, np.tanh(wide)),
        "exp": (ms.ops.exp, np.exp(wide)),
        "erf": (ms.ops.erf, special.erf(wide)),
        "sigmoid": (ms.ops.sigmoid, sigmoid),
        "silu": (ms.ops.silu, wide * sigmoid),
        "gelu": (ms.ops.gelu, wide * special.ndtr(wide)),
        "elu": (ms.ops.elu, np.where(wide > 0, wide, np.expm1(wide))),
        "softplus": (ms.ops.softplus, np.log1p(np.exp(wide))),
        "sin": (ms.ops.sin, np.sin(wide)),
        "cos": (ms.ops.cos, np.cos(wide)),
    }
    found = {}
    for name, (operation, expected) in table.items():
        try:
            error = np.abs(operation(ms.Tensor(x)).asnumpy() - expected) / np.maximum(1, np.abs(expected))
        except (RuntimeError, TypeError, ValueError):
            continue  # no kernel here: then no network that can run uses it
        if error.max() > 4 * np.finfo(np.float32).eps:
            found[name] = error.reshape(NOISE_BINS, -1).max(axis=1)
    return found


@contextmanager
def _asked_for_gradients(parameters: Collection[ms.Parameter]) -> Iterator[None]:
    """These parameters, and all that did before, ask for a gradient; afterwards they are as they were."""
    flags = [(p, p.requires_grad) for p in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad = True
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad = flag


def _tensor_or_none(value: Any) -> Any:
    return value if isinstance(value, ms.Tensor) else None


def _output(value: Any) -> Array | None:
    return widen(edge.array_of(value, "an output")) if isinstance(value, ms.Tensor) else None


def _translated(error: Exception, inputs: Inputs) -> AutomapError:
    """A framework's error as one of automap's: an operation without a kernel, or inputs that do not fit."""
    if isinstance(error, NoEqualError):
        return _not_runnable(error.args[0], error.args[-1])
    text = str(error)
    for pattern in LACKS:
        if found := pattern.search(text):
            return _not_runnable(found[1], found[1])
    for pattern in LACKS_TYPE:
        if found := pattern.search(text):
            return _not_runnable(found[1], f"{found[1]} in {found[2].lower()}")
    return running.refused(error, inputs, "mindspore")


def _no_backward(error: Exception) -> AutomapError:
    """The error for a backward that does not run though the forward did."""
    text = str(error)
    if found := next((f for pattern in (*LACKS, *_LACKS_BACKWARD, *LACKS_TYPE) if (f := pattern.search(text))), None):
        return _not_runnable(found[1], f"the backward of {found[1]}")
    return NotRunnableError(f"the MindSpore network has no backward here: {running.one_line(error)}", "backward")


def _not_runnable(operation: str, what: str) -> NotRunnableError:
    device = ms.get_context("device_target")
    return NotRunnableError(
        f"the MindSpore network cannot run here: {what} has no kernel on {device}, and nothing stands in for it; "
        "record a run where it can: automap trace SOURCE -o net.trace, on the device",
        operation,
    )
