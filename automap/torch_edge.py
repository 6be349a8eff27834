"""PyTorch: its models, tensors and checkpoints. The only core file, with the runner, that imports it."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parametrize

from automap.dtypes import BFLOAT16, OPAQUE, Array
from automap.dtypes import dtype_name as name_of_array
from automap.errors import ConversionError, SourceError
from automap.files import nature
from automap.graph import Listing, Param
from automap.listing_files import dtype_name

#: What a checkpoint may hold beside tensors and still be data: NumPy's numbers and arrays, the options of a training
#: script. Nothing in them runs; any other class or function is refused.
_DATA = [
    argparse.Namespace,
    np.dtype,
    np.ndarray,
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefdFD"},
    # Both names that NumPy has had for the module.
    *(
        (value.__reduce__()[0], f"numpy.{core}.multiarray.{function}")
        for core in ("core", "_core")
        for function, value in (("scalar", np.float32(0)), ("_reconstruct", np.empty(0)))
    ),
]


def is_model(obj: object) -> bool:
    """Whether it is an ``nn.Module``."""
    return isinstance(obj, torch.nn.Module)


def listing_of(model: torch.nn.Module, source: str = "") -> Listing:
    """The parameters and persistent buffers of a module, as its ``state_dict()`` names and orders them.

    A tied weight is listed under each of its names, with the others as aliases.

    Raises:
        ListingError: there are none.
    """
    tensors = _state(model)
    aliases = tied(tensors)
    modules = dict(model.named_modules(remove_duplicate=False))
    params = []
    for name, tensor in tensors.items():
        # What a parametrization computes a weight from belongs to the layer of the weight.
        parametrized = (
            f".{name}".rpartition(".parametrizations.")[0].removeprefix(".") if "parametrizations." in name else None
        )
        owner = modules.get(name.rpartition(".")[0] if parametrized is None else parametrized)
        params.append(
            Param(
                name=name,
                # A lazy layer has no shape before its first forward.
                shape=None if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape),
                dtype=dtype_name(tensor.dtype),
                kind="parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer",
                owner=None if owner is None else parametrize.type_before_parametrizations(owner).__name__,
                aliases=aliases.get(name, ()),
                eps=getattr(owner, "eps", None) if name.endswith("running_var") else None,
            )
        )
    return Listing("torch", tuple(params), source)


def state_of(model: torch.nn.Module) -> dict[str, Array]:
    """Copies of a module's parameters and persistent buffers, by name.

    Raises:
        SourceError: one of them holds no numbers (a lazy layer, the meta device).
    """
    return {name: array_of(tensor, name) for name, tensor in _state(model).items()}


def load_state(model: torch.nn.Module, arrays: Mapping[str, Array]) -> tuple[list[str], list[str]]:
    """Put arrays into a module's parameters and buffers, in place and cast to their types.

    Returns:
        The names of the module that ``arrays`` lacks, and the names in ``arrays`` that the module lacks.

    Raises:
        ConversionError: a shape differs (all such names are listed); nothing is changed then.
    """
    own = _state(model)
    wrong = [
        f"{name}: {list(arrays[name].shape)} for {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in arrays and tuple(arrays[name].shape) != tuple(tensor.shape)
    ]
    if wrong:
        raise ConversionError(f"{len(wrong)} array(s) do not fit the PyTorch model: {'; '.join(wrong)}", wrong)
    with torch.no_grad():
        for name, tensor in own.items():
            if name in arrays:
                tensor.copy_(parameter(arrays[name]))
    return [n for n in own if n not in arrays], [n for n in arrays if n not in own]


def read_checkpoint(path: str | Path) -> Any:
    """What a ``.pth``, ``.pt`` or ``.bin`` file holds, on the CPU, always read with ``weights_only=True``.

    Raises:
        SourceError: the file holds code, is damaged, or is not one that ``torch.save`` wrote.
    """
    text = str(path)
    try:
        with open(path, "rb") as file:
            # Mapped, a large file is not read before its tensors are.
            zipped = file.read(4) == b"PK\x03\x04"
        with warnings.catch_warnings(), _data_allowed():
            warnings.simplefilter("ignore")
            return torch.load(text, map_location="cpu", weights_only=True, mmap=zipped)
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error.strerror or error}", text) from error
    except Exception as error:
        raise SourceError(_refusal(path, error), text) from error


def write_checkpoint(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as a state dict with ``torch.save``."""
    torch.save({name: parameter(array) for name, array in arrays.items()}, path)


def parameter(array: Array, name: str = "") -> torch.Tensor:
    """A tensor with the array's values, shape and type, as state dicts hold it; its memory is its own.

    Args:
        array: bfloat16 as ``automap.dtypes.BFLOAT16``.
        name: of no use here; MindSpore's parameters know theirs.
    """
    if array.dtype == BFLOAT16:
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    if (kind := name_of_array(array)) in OPAQUE:
        return torch.tensor(array.view(np.uint8)).view(getattr(torch, kind))
    return torch.tensor(array)


def array_of(tensor: torch.Tensor, name: str = "a tensor") -> Array:
    """A copy of a tensor's values. bfloat16 becomes ``automap.dtypes.BFLOAT16``.

    Raises:
        SourceError: it holds no numbers that NumPy can hold; the message names it.
    """
    name_of = dtype_name(tensor.dtype)
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        if plain.dtype == torch.bfloat16 or name_of in OPAQUE:
            plain = plain.contiguous().view(torch.int16 if plain.dtype == torch.bfloat16 else torch.uint8)
        array: Array = plain.numpy().copy()
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        what = " ".join(str(error).split("\n")[0].split())
        raise SourceError(f"{name} has no values that NumPy can hold ({tensor.dtype}): {what}", name) from error
    if name_of in OPAQUE:
        return array.view(OPAQUE[name_of])
    return array.view(BFLOAT16) if tensor.dtype == torch.bfloat16 else array


def tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, ...]]:
    """For each name whose tensor has further names: those names."""
    groups: dict[Hashable, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(_place(tensor), []).append(name)
    return {n: tuple(o for o in group if o != n) for group in groups.values() if len(group) > 1 for n in group}


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    # get_extra_state() may put other things than tensors there.
    return {k: v for k, v in model.state_dict(keep_vars=True).items() if isinstance(v, torch.Tensor)}


def _place(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors that are one in memory: the same object, or the same view of the same storage."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided or tensor.data_ptr() == 0:
        return id(tensor)
    return (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _data_allowed() -> AbstractContextManager[Any]:
    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):  # before PyTorch 2.6
        return nullcontext()
    manager: AbstractContextManager[Any] = torch.serialization.safe_globals(_DATA)
    return manager


def _refusal(path: str | Path, error: Exception) -> str:
    """Why a file was not loaded and what to do, from PyTorch's error."""
    words = str(error)
    refused = re.search(r"GLOBAL (\S+)", words)
    if refused is not None:
        save = "where it was made, save the weights alone: torch.save(model.state_dict(), file)"
        if refused[1].startswith("torch.nn.modules."):
            return f"{path} holds a whole model ({refused[1]}), and opening it would run code, so it is refused: {save}"
        return (
            f"{path} holds code or objects of Python ({refused[1]}) beside tensors, and opening it could run anything,"
            f" so it is refused: {save}"
        )
    if "TorchScript" in words:
        save = "torch.save(torch.jit.load(file).state_dict(), …)"
        return f"{path} is a TorchScript archive, which is code, so it is refused: save the weights alone, {save}"
    what = nature(path)
    if what.startswith("it is a zip"):
        return f"{path} is truncated or damaged: get the file again"
    if what:
        return f"{path} is not a PyTorch checkpoint: {what}"
    with open(path, "rb") as file:
        head = file.read(2)
    if head[:1] == b"\x80" and head[1:] > b"\x02":
        return (
            f"{path} is a pickle that torch.save did not write; opening it could run anything, so it is refused:"
            " save the weights alone with torch.save(state_dict, file)"
        )
    if isinstance(error, pickle.UnpicklingError | KeyError | ValueError | AttributeError):
        return f"{path} is not a PyTorch checkpoint, or damaged: get the file again"
    return f"{path} is truncated or damaged: get the file again"
