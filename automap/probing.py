"""What two networks are run on: inputs from a description, from a file, or guessed from the first layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from automap.dtypes import Array, dtype_name
from automap.errors import InputError
from automap.graph import Listing, Param
from automap.running import Inputs
from automap.seeding import generator

_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_SPEC = re.compile(r"(?:(?P<name>\w+)\s*=\s*)?(?P<dtype>\w+)\s*\[(?P<shape>[\d\s,]*)\]\s*(?:<\s*(?P<below>\d+))?")


@dataclass(frozen=True)
class InputSpec:
    """One input in words, such as ``int64[2,16]<100``.

    Attributes:
        dtype: the element type.
        shape: the shape; ``()`` is a scalar.
        below: whole numbers are drawn from 0 up to, but not including, this one.
        name: the keyword of the input, or ``""`` for one given by position.
    """

    dtype: str
    shape: tuple[int, ...]
    below: int | None = None
    name: str = ""

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        below = "" if self.below is None else f"<{self.below}"
        return f"{name}{self.dtype}[{','.join(map(str, self.shape))}]{below}"

    def draw(self, rng: np.random.Generator) -> Array:
        """Values: standard normal, or whole numbers below the limit, or both truth values."""
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if self.dtype in _INTEGERS:
            return rng.integers(0, self.below or 2, self.shape).astype(self.dtype)
        return np.asarray(rng.standard_normal(self.shape)).astype(self.dtype)


#: What callers may give as inputs; descriptions are drawn anew for every run, arrays are taken as they are.
InputsLike = str | Path | InputSpec | Sequence[Any] | Mapping[str, Any] | None


def parse_input(text: str) -> InputSpec:
    """Read the description of one input.

    Args:
        text: ``float32[2,3,224,224]``; ``int64[2,16]<100`` for whole numbers below 100; ``ids=int64[2,16]<100`` for a
            keyword argument.

    Raises:
        InputError: it is not understood.
    """
    found = _SPEC.fullmatch(text.strip())
    if not found:
        raise InputError(
            f"the input {text!r} is not understood: write it as float32[2,3,224,224] or ids=int64[2,16]<100", text
        )
    dtype, below = found["dtype"], found["below"]
    if dtype == "bfloat16":
        raise InputError(f"the input {text!r}: write float32, a network in bfloat16 gets it in its own type", text)
    if dtype not in (*_FLOATS, *_INTEGERS, "bool"):
        known = ", ".join((*_FLOATS, *_INTEGERS, "bool"))
        raise InputError(f"the input {text!r} has an unknown element type {dtype!r}; there are {known}", text)
    if below is not None and (dtype not in _INTEGERS or int(below) < 1):
        raise InputError(f"the input {text!r}: '<' takes a limit above 0 for whole numbers", text)
    if dtype in _INTEGERS and below is None:
        raise InputError(f"the input {text!r} needs a limit for its whole numbers, such as {text.strip()}<100", text)
    try:
        shape = tuple(int(d) for d in found["shape"].split(",")) if found["shape"].strip() else ()
    except ValueError:
        raise InputError(f"the input {text!r} has a broken shape: write it as [2,3,224,224]", text) from None
    return InputSpec(dtype, shape, None if below is None else int(below), found["name"] or "")


def read_inputs(path: str | Path) -> Inputs:
    """Inputs from an ``.npz`` file: by position if its names are those of ``numpy.savez(file, a, b)``, else by keyword.

    Raises:
        InputError: there is no such file, or it is no ``.npz`` file of plain arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"no such file of inputs: {path}", str(path)) from None
    except Exception as error:  # zip, header and pickle errors have no common parent
        raise InputError(f"{path} is no .npz file of plain arrays; write it with numpy.savez", str(path)) from error
    if not arrays:
        raise InputError(f"{path} has no array in it", str(path))
    positional = [f"arr_{i}" for i in range(len(arrays))]
    return [arrays[name] for name in positional] if set(arrays) == set(positional) else arrays


@dataclass(frozen=True)
class Probe:
    """Inputs that can be drawn as often as needed.

    Attributes:
        items: a description or an array for each input.
        names: their keywords, or None if they are given by position.
    """

    items: tuple[InputSpec | Array, ...]
    names: tuple[str, ...] | None = None

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to draw: every input is an array."""
        return not any(isinstance(item, InputSpec) for item in self.items)

    def draw(self, seed: int, run: int = 0) -> Inputs:
        """The inputs of one run: a pure function of the seed, the run and the places of the inputs."""
        arrays = [
            item.draw(generator(seed, f"input {i} of run {run}")) if isinstance(item, InputSpec) else item
            for i, item in enumerate(self.items)
        ]
        return arrays if self.names is None else dict(zip(self.names, arrays, strict=True))

    def describe(self) -> tuple[str, ...]:
        """The inputs in words that :func:`parse_input` reads; of an array only the type, shape and range are told."""
        names = self.names or ("",) * len(self.items)
        return tuple(str(_spec_of(item, name)) for item, name in zip(self.items, names, strict=True))


def open_inputs(inputs: InputsLike) -> Probe | None:
    """Make a :class:`Probe` of what a caller gave: descriptions, arrays, both mixed, or the path of an ``.npz`` file.

    Raises:
        InputError: something in it is not understood, or inputs by position and by keyword are mixed.
    """
    if inputs is None or (isinstance(inputs, (Sequence, Mapping)) and not inputs):
        return None
    if isinstance(inputs, Path) or (isinstance(inputs, str) and inputs.endswith(".npz")):
        return open_inputs(read_inputs(inputs))
    if isinstance(inputs, Mapping):
        return Probe(tuple(_item(v) for v in inputs.values()), tuple(map(str, inputs)))
    if isinstance(inputs, (str, InputSpec, np.ndarray)):
        inputs = [inputs]
    items = tuple(_item(v) for v in inputs)
    names = tuple(item.name if isinstance(item, InputSpec) else "" for item in items)
    if not any(names):
        return Probe(items)
    if not all(names):
        raise InputError("some inputs have a name and some have none: name all of them, or none", ", ".join(names))
    return Probe(items, names)


def _item(value: Any) -> InputSpec | Array:
    if isinstance(value, InputSpec):
        return value
    if isinstance(value, str):
        return parse_input(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return value
    what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise InputError(f"an input is {what}: give NumPy arrays of numbers, or words such as 'float32[2,3,224,224]'")


def _spec_of(item: InputSpec | Array, name: str) -> InputSpec:
    if isinstance(item, InputSpec):
        return InputSpec(item.dtype, item.shape, item.below, name)
    dtype = dtype_name(item)
    below = int(item.max(initial=0)) + 1 if dtype in _INTEGERS else None
    return InputSpec(dtype, item.shape, below, name)


@dataclass(frozen=True)
class Guess:
    """Inputs that the network may take, and the layer that they were read off."""

    specs: tuple[InputSpec, ...]
    reason: str


#: Sides of sequences, images and volumes to try, by the dimensions of the first kernel: a quick one, then the usual
#: ones, for a network that flattens takes only its own.
_SIDES = {3: (64, 1024, 128, 16000), 4: (64, 224, 32, 28, 96, 128, 256, 299, 384), 5: (16, 32, 64)}


def guess_inputs(listing: Listing, arguments: int = 1) -> Iterator[Guess]:
    """Inputs that a PyTorch network may take, the likeliest first, read off the first layer that tells.

    Args:
        listing: of the network, with the classes of the owning modules.
        arguments: how many arguments its forward demands; each gets an input of the same kind.
    """
    n = max(1, arguments)
    for param in listing:
        guesses = _guesses(listing, param)
        for spec, *further in guesses:
            where = f"the first layer that tells, {param.module or param.name} ({param.owner})"
            yield Guess((spec, *further, *(further or [spec]) * (n - 1 - len(further))), where)
        if guesses:
            return


def _guesses(listing: Listing, param: Param) -> list[list[InputSpec]]:
    """What the owner of a parameter takes: the first input, and where it differs the second one."""
    owner, shape = (param.owner or "").lower(), param.shape or ()
    if param.kind != "parameter":
        return []
    if "conv" in owner and len(shape) in _SIDES and param.leaf.endswith(("weight", "weight_v", "original1")):
        channels = shape[0] if "transpose" in owner else shape[1]
        dims = len(shape) - 2
        return [[InputSpec("float32", (2, channels, *[side] * dims))] for side in _SIDES[len(shape)]]
    if "embedding" in owner and len(shape) == 2:
        rows = [p.shape[0] for p in listing if p.shape and len(p.shape) == 2 and "embedding" in (p.owner or "").lower()]
        smallest = InputSpec("int64", (2, 16), min(rows))
        ids = [InputSpec("int64", (2, 16), shape[0]), InputSpec("int64", (16,), shape[0])]
        return [[ids[0]], [ids[0], smallest], [ids[1]]]
    recurrent = owner.startswith(("lstm", "gru", "rnn"))
    if recurrent and not param.leaf.startswith("weight_ih"):
        return []
    if recurrent or owner in ("multiheadattention", "layernorm", "rmsnorm") or ("linear" in owner and len(shape) == 2):
        flat, sequence = InputSpec("float32", (2, shape[-1])), InputSpec("float32", (2, 16, shape[-1]))
        return [[sequence], [flat]] if recurrent or owner == "multiheadattention" else [[flat], [sequence]]
    return []
