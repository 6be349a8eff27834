"""What running a network means, whatever its framework: the runner's protocol, and what both runners share."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from automap.dtypes import Array, dtype_name
from automap.errors import AutomapError, ConversionError, InputError
from automap.graph import Framework

#: Arrays for a forward, by position or by keyword.
Inputs = list[Array] | dict[str, Array]

#: What can stand in for a network's own forward: it is called as ``forward(model, *inputs)`` (or ``**inputs``).
Forward = Callable[..., Any]

#: Errors of kernels are kept for so many equal intervals of the argument, from minus this number to this number.
NOISE_BINS, NOISE_RANGE = 48, 6.0

#: What is said of a network whose parameters do not show in what type it computes.
MIXED = "the PyTorch network computes in {}, {}: what that type rounds may differ"

FRAMEWORK_NAMES: dict[Framework, str] = {"torch": "PyTorch", "mindspore": "MindSpore"}


@dataclass(frozen=True)
class Module:
    """One module of a network, without the object itself.

    Attributes:
        path: its first attribute path; ``""`` is the network.
        kind: its class name, such as ``Conv2d``.
        own: attribute and listed name of each parameter and persistent buffer that it owns directly.
    """

    path: str
    kind: str
    own: tuple[tuple[str, str], ...] = ()


@dataclass
class Visit:
    """One call of a module in a run; ``args`` and ``kwargs`` are the framework's, as the caller gave them."""

    module: Module
    obj: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Loss:
    """One number made of a network's outputs: ``sum(w * y) + bend / 2 * sum(|w| * y**2)``.

    Attributes:
        weights: the outputs of :meth:`Runner.run` with each array replaced by its weights, of the same shape, or by
            None where it has no part in the loss.
        bend: how much the quadratic part counts. Without it the loss is linear in the outputs.
    """

    weights: Any
    bend: float = 0.0

    def terms(self, outputs: Any) -> Iterator[tuple[Any, Array]]:
        """Each output that has a part in the loss, and its weights; ``outputs`` as :func:`nested_to_numpy` has them."""
        yield from _side_by_side(outputs, self.weights)


def _side_by_side(outputs: Any, weights: Any) -> Iterator[tuple[Any, Array]]:
    if isinstance(weights, np.ndarray):
        yield outputs, weights
    elif isinstance(weights, Mapping):
        for key, value in weights.items():
            yield from _side_by_side(outputs[key], value)
    elif isinstance(weights, tuple):
        for output, value in zip(outputs, weights, strict=True):
            yield from _side_by_side(output, value)


#: What can stand around every call of every module of a network: ``watch(visit, proceed)`` returns what the caller
#: gets. ``proceed(*args, **kwargs)`` runs the module; it may be called with other arguments, several times, or never.
Watch = Callable[[Visit, Callable[..., Any]], Any]


class Runner(Protocol):
    """Runs one network as often as needed and leaves it as it was.

    Attributes:
        framework: ``"torch"`` or ``"mindspore"``.
        dtype: the element type of the network's floating-point parameters, the coarsest of several; or what it is seen
            to compute in, where that is coarser.
        narrow: the coarsest element type of its parameters, if it is a low one (float16, bfloat16), or ``""``.
        modules: every module by its first path, in definition order.
        numbers: the whole numbers that modules hold as attributes, such as how many heads they have, by path and name.
    """

    framework: Framework
    dtype: str
    narrow: str
    modules: dict[str, Module]
    numbers: dict[str, dict[str, int]]

    def object(self, path: str) -> Any:
        """The module at a path of :attr:`modules`."""

    def array(self, tensor: Any) -> Array:
        """A tensor's values, bfloat16 as float32. The memory may be the tensor's own: copy what is kept."""

    def tensor(self, array: Array) -> Any:
        """A tensor on the network's device, of the array's own element type."""

    def tensors(self, nested: Any) -> list[Any]:
        """Every tensor in arguments or outputs of any form, in order."""

    def put(self, values: Mapping[str, Array]) -> None:
        """Change parameters while the network runs; what surrounds the run puts them back."""

    def value(self, name: str) -> Array:
        """The present values of one parameter; the memory may be its own."""

    def remarks(self) -> tuple[str, ...]:
        """What was computed in a precision that the parameters do not show, or otherwise than the network says for
        want of a kernel: one sentence for each kind.
        """

    def expect(self, dtype: str) -> None:
        """Be ready for a forward that computes in a type, as the other network does, whatever the parameters are."""

    def state(self) -> dict[str, Array]:
        """A copy of every parameter (and, in PyTorch, persistent buffer), by name."""

    def holding(self, state: Mapping[str, Array], lend: bool = False) -> AbstractContextManager[None]:
        """The network with other values, its own again afterwards. Names that ``state`` lacks keep their values.

        Args:
            state: the values by name.
            lend: the arrays' own memory may be used until then, which saves a copy of all weights. Nobody else may
                change them meanwhile; PyTorch's runner leaves other values in them.

        Raises:
            ConversionError: ``state`` has a name that the network lacks, or another shape; all of them are named.
        """

    def wide(self) -> AbstractContextManager[Runner]:
        """A runner of the same network with everything of low precision cast to float32, and put back afterwards.

        What its modules, or autocast, are set to compute in low precision is computed in float32, too.
        """

    @property
    def mixed(self) -> str:
        """The coarsest low type that its modules, or autocast in the runs so far, are set to cast to, or ``""``."""

    @property
    def low(self) -> frozenset[str]:
        """The low types that a forward of :meth:`wide` gave something in all the same, as its own code says."""

    def run(self, inputs: Inputs, forward: Forward | None = None, watch: Watch | None = None) -> Any:
        """One forward in inference mode; whatever it changes is put back.

        Integer and boolean inputs keep their type; floating-point inputs arrive in the type of the network's own
        parameters, if they have but one. ``watch`` stands around every call of every module.

        Returns:
            The outputs as nested tuples and dicts of arrays (bfloat16 as float32). None, and a thing that is no
            number (its class name in a ``str``), stay in their place.

        Raises:
            InputError: the network does not take these inputs; the framework's own words are in the message.
            NotRunnableError: an operation has no kernel on this machine.
        """

    def trained(self) -> frozenset[str]:
        """The parameters of floating-point numbers that ask for a gradient; a tied one under each of its names."""

    def gradients(
        self, inputs: Inputs, loss: Loss, names: Collection[str], forward: Forward | None = None
    ) -> dict[str, Array]:
        """The gradient of a loss, in inference mode; whatever that changes is put back.

        Args:
            inputs: as for :meth:`run`.
            loss: its weights have the form of what :meth:`run` returns for these inputs.
            names: of parameters, whether they ask for a gradient or not. Each name of a tied parameter gets the
                gradient of the whole parameter.
            forward: as for :meth:`run`.

        Returns:
            An array for each name; zeros where the loss does not depend on the parameter.

        Raises:
            InputError: as :meth:`run` raises it.
            NotRunnableError: the forward or the backward of an operation cannot run on this machine.
        """


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The plain forward of a network."""
    return model(*args, **kwargs)


def called(model: Any, inputs: Inputs, forward: Forward | None, tensor: Callable[[Array], Any]) -> Any:
    """What a network gives for inputs by position or by keyword, made into tensors of its framework."""
    run = forward or call
    if isinstance(inputs, dict):
        return run(model, **{name: tensor(array) for name, array in inputs.items()})
    return run(model, *map(tensor, inputs))


@contextmanager
def watched(
    base: Any,
    known: Mapping[int, Module],
    watch: Watch | None,
    guarded: Callable[[Callable[..., Any]], Any] | None = None,
) -> Iterator[None]:
    """Every call of the known modules goes through ``watch``.

    The framework's class is changed, not the modules: so keyword arguments, shared modules and those without hooks all
    come by, and nothing is left behind on the network.

    Args:
        base: the class of all modules of a framework.
        known: the network's modules by the ``id`` of the object.
        watch: nothing is done without one.
        guarded: what stands around each call of a module itself, if anything.
    """
    if watch is None:
        yield
        return
    original = base.__call__

    def through(module: Any, *args: Any, **kwargs: Any) -> Any:
        found = known.get(id(module))
        if found is None:
            return original(module, *args, **kwargs)
        proceed = functools.partial(original, module)
        return watch(Visit(found, module, args, kwargs), proceed if guarded is None else guarded(proceed))

    base.__call__ = through
    try:
        yield
    finally:
        base.__call__ = original


def numbers_of(modules: Mapping[str, Any], bare: Any) -> dict[str, dict[str, int]]:
    """The whole numbers from 2 on that modules, or the configurations in them, hold as attributes, by path.

    Args:
        modules: by path.
        bare: a module without any of its own.
    """
    known, found = vars(bare).keys(), {}
    for path, module in modules.items():
        own: dict[str, int] = {}
        for name, value in vars(module).items():
            if name in known:
                continue
            if _is_count(value):
                own[name] = value
            elif re.search("config|cfg", name.lower()):
                inner = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
                own |= {str(k): v for k, v in inner.items() if _is_count(v) and str(k) not in own}
        if own:
            found[path] = own
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 < value < 1 << 16


def check_fit(state: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], framework: Framework) -> None:
    """Refuse values that a network cannot hold.

    Raises:
        ConversionError: a name that the network lacks, or another shape; all of them are named.
    """
    side = FRAMEWORK_NAMES[framework]
    offenders = []
    for name, array in state.items():
        if name not in shapes:
            offenders.append(f"{name}: the {side} network has no such parameter")
        elif shapes[name] != array.shape:
            offenders.append(f"{name}: shape {array.shape}, {shapes[name]} in the {side} network")
    if offenders:
        raise ConversionError(f"the weights do not fit the {side} network: {'; '.join(offenders)}", offenders)


def nested_tensors(value: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """Every instance of ``kind`` in tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from nested_tensors(v, kind)
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from nested_tensors(v, kind)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from nested_tensors(getattr(value, f.name, None), kind)


@contextmanager
def python_randomness_kept() -> Iterator[None]:
    """Python's and NumPy's global random state as it was, afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def nested_to_numpy(value: Any, leaf: Callable[[Any], Array | None]) -> Any:
    """Outputs of any form as nested tuples and dicts of arrays.

    Args:
        value: what a network returned: a tensor, a number, None, or tuples, lists, dicts and dataclasses of these.
        leaf: a tensor of the framework to an array, or None for anything else.
    """
    array = leaf(value)
    if array is not None:
        return array
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, Mapping):
        return {str(k): nested_to_numpy(v, leaf) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(nested_to_numpy(v, leaf) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: nested_to_numpy(getattr(value, f.name), leaf) for f in dataclasses.fields(value)}
    return type(value).__name__


def describe_inputs(inputs: Inputs) -> str:
    """Inputs in words: ``float32[2,3,8,8], mask=bool[2,8]``."""

    def one(array: Array) -> str:
        return f"{dtype_name(array)}[{','.join(map(str, array.shape))}]"

    if isinstance(inputs, dict):
        return ", ".join(f"{name}={one(array)}" for name, array in inputs.items())
    return ", ".join(map(one, inputs)) or "no input"


def one_line(error: BaseException, limit: int = 300) -> str:
    """What a framework said, in one line: without its rulers, its call stack, and what exceeds ``limit`` characters."""
    text, _, _ = str(error).partition("C++ Call Stack")
    # MindSpore lists every combination of types that a kernel takes; what it got says enough.
    text = re.sub(r"The supported data types are .*?(?=but get)", "", text, flags=re.DOTALL)
    words = " ".join(w for w in text.split() if w.strip("-"))
    words = words or type(error).__name__
    return words if len(words) <= limit else words[: limit - 2].rstrip() + " …"


def refused(error: Exception, inputs: Inputs, framework: Framework) -> AutomapError:
    """The error for inputs that a network does not take, in the framework's own words."""
    shown = describe_inputs(inputs)
    kind = type(error).__name__
    return InputError(
        f"the {FRAMEWORK_NAMES[framework]} network does not run on {shown}: {kind}: {one_line(error)}", shown
    )
