"""MindSpore: its cells, parameters and checkpoints. The only core file, with the runner, that imports it."""

from __future__ import annotations

import atexit
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from automap.quiet import quiet_mindspore

quiet_mindspore()

import mindspore as ms  # noqa: E402
from mindspore import nn  # noqa: E402

from automap.dtypes import BFLOAT16, Array, dtype_name  # noqa: E402
from automap.errors import ConversionError, ListingError, SourceError  # noqa: E402
from automap.files import nature  # noqa: E402
from automap.graph import Kind, Listing, Param  # noqa: E402
from automap.listing_files import dtype_name as type_name  # noqa: E402
from automap.mindspore_wrapping import OPTIMIZERS, TRAINING, network_inside  # noqa: E402

#: What MindSpore's norms call the statistics that they keep, as attributes.
_STATISTICS = {"moving_mean", "moving_variance", "running_mean", "running_var", "num_batches_tracked"}


#: How often one cell is followed when several others refer to it.
_MOST_NAMES = 64


class _Place(NamedTuple):
    """One place of a parameter in the tree of cells.

    Attributes:
        order: its rank in definition order.
        path: the attribute path.
        attribute: the last part of the path.
        cell: the cell there.
        reference: it is there by way of a ``ParameterTuple``, which may refer to another cell's parameter.
        state: it is a state of an optimizer, or kept by a wrapper for training and not trained.
    """

    order: int
    path: str
    attribute: str
    cell: nn.Cell
    reference: bool
    state: bool


def is_model(obj: object) -> bool:
    """Whether it is an ``nn.Cell``."""
    return isinstance(obj, nn.Cell)


def listing_of(model: nn.Cell, source: str = "") -> Listing:
    """The parameters of a cell in definition order, under the names that checkpoints have (``Parameter.name``).

    ``path`` is the attribute path where it differs. A parameter with several paths has the others as aliases. States
    of optimizers and training wrappers come last, as such. Tensors that are no Parameter (``register_buffer``) are not
    listed: neither ``save_checkpoint`` nor ``load_param_into_net`` knows them. Take the listing before any forward:
    slicing a ``CellList`` in it renames parameters.

    Raises:
        ListingError: there are none, or two have the same name.
    """
    network: list[Param] = []
    training: list[Param] = []
    for parameter, places in _parameters(model):
        param = _param(parameter, places)
        (training if param.kind == "optimizer" else network).append(param)
    _check_names([*network, *training], source or type(model).__name__)
    return Listing("mindspore", (*network, *training), source)


def state_of(model: nn.Cell) -> dict[str, Array]:
    """Copies of a cell's parameters, by ``Parameter.name``."""
    return {p.name: array_of(p, p.name) for p, _ in _parameters(model)}


def load_state(model: nn.Cell, arrays: Mapping[str, Array]) -> tuple[list[str], list[str]]:
    """Put arrays into a cell's parameters, in place and cast to their types.

    Returns:
        The names of the cell that ``arrays`` lacks, and the names in ``arrays`` that the cell lacks.

    Raises:
        ConversionError: a shape differs (all such names are listed); nothing is changed then.
    """
    own = {p.name: p for p, _ in _parameters(model)}
    wrong = [
        f"{name}: {list(arrays[name].shape)} for {list(p.shape)}"
        for name, p in own.items()
        if name in arrays and tuple(arrays[name].shape) != tuple(p.shape)
    ]
    if wrong:
        raise ConversionError(f"{len(wrong)} array(s) do not fit the MindSpore model: {'; '.join(wrong)}", wrong)
    for name, p in own.items():
        if name in arrays:
            p.set_data(_tensor(arrays[name]).astype(p.dtype))
    return [n for n in own if n not in arrays], [n for n in arrays if n not in own]


def read_checkpoint(path: str | Path) -> dict[str, ms.Parameter]:
    """What a ``.ckpt`` file holds.

    Raises:
        SourceError: the file cannot be read, is truncated, or is not a MindSpore checkpoint.
    """
    text = str(path)
    try:
        found: dict[str, ms.Parameter] = ms.load_checkpoint(text)
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error.strerror or error}", text) from error
    except Exception as error:
        what = nature(path)
        if what.startswith("it is a zip"):
            message = f"{text} is a checkpoint of PyTorch, not of MindSpore: give it as the PyTorch side"
        elif what:
            message = f"{text} is not a MindSpore checkpoint: {what}"
        else:
            message = f"{text} is truncated or not a MindSpore checkpoint: get the file again"
        raise SourceError(message, text) from error
    return found


def write_checkpoint(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays with ``mindspore.save_checkpoint``; the path must end in ``.ckpt``."""
    ms.save_checkpoint([{"name": name, "data": _tensor(array)} for name, array in arrays.items()], str(path))


def parameter(array: Array, name: str = "") -> ms.Parameter:
    """A Parameter with the array's values, shape and type, as ``load_param_into_net`` takes it; its memory is its own.

    Args:
        array: bfloat16 as ``automap.dtypes.BFLOAT16``.
        name: the parameter's name.
    """
    return ms.Parameter(_tensor(array), name=name or None)


def array_of(tensor: ms.Tensor, name: str = "a tensor") -> Array:
    """A copy of a tensor's values. bfloat16 becomes ``automap.dtypes.BFLOAT16``.

    Raises:
        SourceError: it holds no numbers that NumPy can hold; the message names it.
    """
    try:
        array: Array = tensor.asnumpy()
    except (RuntimeError, TypeError, ValueError) as error:
        what = " ".join(str(error).strip().split("\n")[0].split())
        raise SourceError(f"{name} has no values that NumPy can hold ({tensor.dtype}): {what}", name) from error
    # MindSpore has a NumPy type of its own for bfloat16, which computes; the bits are the same.
    return (array.view(BFLOAT16) if array.dtype.name == "bfloat16" else array).copy()


def tied(tensors: Mapping[str, ms.Tensor]) -> dict[str, tuple[str, ...]]:
    """For each name whose tensor has further names: those names."""
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(id(tensor), []).append(name)
    return {n: tuple(o for o in group if o != n) for group in groups.values() if len(group) > 1 for n in group}


def _tensor(array: Array) -> ms.Tensor:
    if dtype_name(array) == "bfloat16":
        # asarray: NumPy turns an array without dimensions into a scalar as soon as it computes with it.
        bits = np.asarray(array["bfloat16"].astype(np.uint32) * np.uint32(2**16))
        return ms.Tensor(bits.view(np.float32)).astype(ms.bfloat16)
    return ms.Tensor(array)


def _param(parameter: ms.Parameter, places: list[_Place]) -> Param:
    name, first = parameter.name, places[0]
    paths = [place.path for place in places]
    path = name if name in paths else first.path
    # Inside a wrapper the paths have its prefix, which the name has not.
    prefix = path.removesuffix(name) if path.endswith("." + name) else ""
    kind: Kind = "parameter"
    if first.state:
        kind = "optimizer"
    elif first.attribute in _STATISTICS and not parameter.requires_grad:
        kind = "buffer"
    return Param(
        name=name,
        shape=tuple(parameter.shape),
        dtype=type_name(parameter.dtype),
        kind=kind,
        owner=type(first.cell).__name__,
        path=None if path == name else path,
        aliases=tuple(p.removeprefix(prefix) for p in paths if p != path),
    )


def _parameters(model: nn.Cell) -> list[tuple[ms.Parameter, list[_Place]]]:
    """The parameters of a cell in definition order, each with its places in the tree of cells, the defining one first.

    ``Cell.parameters_and_names`` is not enough: a wrapper for training keeps a tuple of the trainable parameters, and
    would list them before the rest of the network and under the wrapper's name.
    """
    found: dict[int, tuple[ms.Parameter, list[_Place]]] = {}
    for parameter, place in _walk(model):
        found.setdefault(id(parameter), (parameter, []))[1].append(place)
    listed = [(p, [place for place in places if not place.reference] or places) for p, places in found.values()]
    return sorted(listed, key=lambda item: item[1][0].order)


def _walk(model: nn.Cell) -> Iterator[tuple[ms.Parameter, _Place]]:
    """Every place of every parameter, in definition order: a cell's own parameters, then its children's."""
    orders = itertools.count()
    visits: Counter[int] = Counter()
    shells = _cells_around(model, network_inside(model))

    def places(cell: nn.Cell, path: str, above: tuple[int, ...], state: bool) -> Iterator[tuple[ms.Parameter, _Place]]:
        # A shared cell gives further names, up to a point: cells that all refer to each other have no end of them.
        visits[id(cell)] += 1
        if id(cell) in above or visits[id(cell)] > _MOST_NAMES:
            return
        state = state or isinstance(cell, OPTIMIZERS)
        weights = {id(p) for p in getattr(cell, "parameters", ())} if isinstance(cell, OPTIMIZERS) else set()
        tuples = {id(p) for held in vars(cell).values() if isinstance(held, ms.ParameterTuple) for p in held}
        for attribute, p in cell._params.items():
            if p is not None:
                around = isinstance(cell, TRAINING) or (id(cell) in shells and not p.requires_grad)
                own_state = (state or around) and id(p) not in weights
                yield p, _Place(next(orders), path + attribute, attribute, cell, id(p) in tuples, own_state)
        for name, child in cell._cells.items():
            if child is not None:
                yield from places(child, f"{path}{name}.", (*above, id(cell)), state)

    return places(model, "", (), False)


def _cells_around(model: nn.Cell, network: nn.Cell) -> set[int]:
    """The cells that are not in a network, by their identities."""
    if network is model:
        return set()
    inside = {id(cell) for _, cell in network.cells_and_names()}
    return {id(cell) for _, cell in model.cells_and_names()} - inside


def _check_names(params: list[Param], source: str) -> None:
    """Refuse two parameters of one name, of which a checkpoint would keep the last."""
    paths: dict[str, list[str]] = {}
    for p in params:
        paths.setdefault(p.name, []).append(p.path or p.name)
    twice = {name: found for name, found in paths.items() if len(found) > 1}
    if twice:
        name, found = next(iter(twice.items()))
        more = f" (and {len(twice) - 1} more such names)" if len(twice) > 1 else ""
        raise ListingError(
            f"{source} has {len(found)} parameters of the one name {name!r}{more}, and MindSpore saves only one:"
            f" they are at {', '.join(found[:3])}; give each its own name (auto_prefix=True, or name=)",
            source,
        )


def _quiet_exit() -> None:
    """Let no ``Cell.__del__`` complain while the interpreter shuts down.

    A cell that outlives the module ``weakref`` (a registry of PyTorch or a reference from C++ may hold it) is deleted
    when the functions that its ``__del__`` calls are gone already, and Python prints a traceback for each such cell.
    """
    original: Callable[[nn.Cell], None] = nn.Cell.__del__

    def __del__(cell: nn.Cell) -> None:
        try:  # noqa: SIM105 (contextlib is gone by then, too)
            original(cell)
        except (AttributeError, TypeError):
            pass

    nn.Cell.__del__ = __del__


# At exit, not before: what goes wrong in a __del__ until then is worth seeing.
atexit.register(_quiet_exit)
