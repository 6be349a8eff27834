"""Where models come from: live objects, specs, checkpoints, listings; and where converted tensors go.

Nothing here imports a framework. A live object is recognised by its class's module; what only a framework can do is
left to its edge, imported when a source needs it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from automap import ckpt_file, places, safetensors_file, sharded, specs, zipped_file
from automap.checkpoints import find_state_dict, mark_optimizer_states, wrapper_prefix
from automap.dtypes import HELD, OPAQUE, PACKED, Array
from automap.dtypes import dtype_name as array_dtype
from automap.errors import SourceError
from automap.files import nature_of, replacing
from automap.graph import Framework, Listing, Param
from automap.listing_files import (
    FRAMEWORK_NAMES,
    check_side,
    dtype_name,
    listing_to_csv,
    listing_to_json,
    read_listing,
)
from automap.quiet import quiet_mindspore
from automap.specs import article, framework_of, is_model
from automap.stored import Deferred, Held, Sliced, Stored

__all__ = [
    "Sink",
    "Source",
    "find_state_dict",
    "framework_of",
    "listing_to_csv",
    "listing_to_json",
    "mark_optimizer_states",
    "open_source",
    "read_listing",
    "wrapper_prefix",
    "write_tensors",
]

TORCH_FILES = (".pth", ".pt", ".bin")
_KNOWN_FILES = (*TORCH_FILES, ".safetensors", ".ckpt", ".json", ".csv", ".trace")


class Source(Protocol):
    """One side of a mapping.

    Attributes:
        framework: ``"torch"`` or ``"mindspore"``.
        text: the source in the user's words.
        notes: sentences that the user should hear about what was read (where the state dict was, a wrapper's prefix).
    """

    framework: Framework
    text: str
    notes: tuple[str, ...]

    def listing(self) -> Listing:
        """Its parameters in order."""

    def tensors(self) -> dict[str, Stored]:
        """Its tensors by name, in the listing's order, none of them read.

        Raises:
            SourceError: it has none (a listing).
        """

    def read(self) -> dict[str, Array]:
        """Its tensors by name, in the listing's order; bfloat16 as ``automap.dtypes.BFLOAT16``.

        Raises:
            SourceError: it has none (a listing), or one that NumPy cannot hold.
        """

    def model(self) -> Any | None:
        """The live ``nn.Module`` or ``nn.Cell``, always the same one, or None where there is only a file."""


class Sink(Protocol):
    """Where tensors go."""

    def write(self, tensors: Mapping[str, Array], path: str | Path) -> None:
        """Write tensors to a file, whole or not at all."""


def open_source(source: Any, framework: Framework | None, args: Mapping[str, Any] | None = None) -> Source:
    """Open one side of a mapping.

    Args:
        source: one that is open already; a live ``nn.Module`` or ``nn.Cell``; a class or factory of one; a state
            dict (a dict of tensors, parameters or arrays); a ``Listing``; or a text or path: ``module:attr``,
            ``file.py:attr``, a checkpoint (``.pth .pt .bin .safetensors .ckpt``), a listing (``.json .csv``), or
            a PyTorch network's ``.trace``.
        framework: the side that it is given on. None takes the source's own, where it has one: a CSV has not.
        args: keyword arguments for a class or factory.

    Raises:
        SourceError: it cannot be opened, or belongs to the other framework.
        ListingError: it has no parameters, or two of the same name.
    """
    args = dict(args or {})
    if _is_open(source):
        check_side(source.framework, framework, "a source", source.text)
        if args:
            raise SourceError(f"{source.text} is open already and takes no arguments ({', '.join(args)})", source.text)
        opened: Source = source
        return opened
    if isinstance(source, str | Path):
        text = str(source)
        path = Path(source)
        if (
            places.is_address(text)
            or path.suffix.lower() in _KNOWN_FILES
            or os.path.exists(text)
            or not specs.is_spec(text)
        ):
            opened = _open_file(path, text, framework)
            if args:
                raise SourceError(f"{text} is a file and takes no arguments ({', '.join(args)})", text)
            return opened
        if framework != "torch":
            quiet_mindspore()
        return _open_object(specs.load_object(text), framework, args, text)
    return _open_object(source, framework, args, "")


def write_tensors(path: str | Path, tensors: Mapping[str, Array], framework: Framework) -> None:
    """Write arrays as a checkpoint of a framework; an old file there is replaced only by a whole new one.

    Args:
        path: ``.safetensors`` for either framework, ``.pth``, ``.pt`` or ``.bin`` for PyTorch, ``.ckpt`` for MindSpore.
        tensors: by name, in order; bfloat16 as ``automap.dtypes.BFLOAT16``.
        framework: the framework that will read it.

    Raises:
        SourceError: the extension is not one of the framework's, or the file cannot be written.
        ConversionError: the format cannot hold an element type.
    """
    suffix = Path(path).suffix.lower()
    check_suffix(str(path), suffix, framework)
    with replacing(path) as temporary:
        if suffix == ".safetensors":
            tag = next(tag for tag, f in safetensors_file.FORMATS.items() if f == framework)
            safetensors_file.write_tensors(temporary, tensors, {"format": tag})
        else:
            _edge(framework, str(path)).write_checkpoint(temporary, tensors)


def check_suffix(path: str, suffix: str, framework: Framework) -> None:
    """Raise a SourceError where a framework has no checkpoints of this ending."""
    allowed = (".safetensors", *TORCH_FILES) if framework == "torch" else (".safetensors", ".ckpt")
    if suffix not in allowed:
        raise SourceError(
            f"{path} is not a name for a {FRAMEWORK_NAMES[framework]} checkpoint: use {' or '.join(allowed)}", path
        )


@dataclass
class _ListingSource:
    framework: Framework
    text: str
    _listing: Listing
    notes: tuple[str, ...] = ()

    def listing(self) -> Listing:
        return self._listing

    def tensors(self) -> dict[str, Stored]:
        raise SourceError(f"{self.text} is a listing and holds no tensors: give a checkpoint or a model", self.text)

    def read(self) -> dict[str, Array]:
        return _values(self.tensors())

    def model(self) -> None:
        return None


class _ModelSource:
    """A live model. The listing is taken at once: a forward may rename MindSpore's parameters."""

    def __init__(self, model: Any, framework: Framework, text: str) -> None:
        self.framework, self.text = framework, text
        self._model, self._edge = model, _edge(framework, text)
        self._listing: Listing = self._edge.listing_of(model, text)
        self.notes = _prefix_note(self._listing)

    def listing(self) -> Listing:
        return self._listing

    def tensors(self) -> dict[str, Stored]:
        return {name: Held(array) for name, array in self.read().items()}

    def read(self) -> dict[str, Array]:
        state: dict[str, Array] = self._edge.state_of(self._model)
        return state

    def model(self) -> Any:
        return self._model


class _TensorSource:
    """Tensors by name: of a state dict in memory, or of a checkpoint, where they are read when they are asked for.

    Args:
        tensors: arrays, tensors of the framework, or ``Stored`` ones.
        aliases: further names of tensors, beside those that are seen to be one.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        framework: Framework,
        text: str,
        notes: tuple[str, ...] = (),
        aliases: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.framework, self.text = framework, text
        foreign = {name: t for name, t in tensors.items() if not isinstance(t, np.ndarray | Sliced)}
        edge: Any = _edge(framework, text) if foreign else None
        self._tensors: dict[str, Stored] = {name: _stored(t, name, text, edge) for name, t in tensors.items()}
        ties = dict(aliases or {})
        ties |= _one_in_the_file(tensors) if edge is None else edge.tied(foreign)
        params = [Param(name, t.shape, t.dtype, aliases=ties.get(name, ())) for name, t in self._tensors.items()]
        if framework == "mindspore":
            params = mark_optimizer_states(params)
        self._listing = Listing(framework, tuple(params), text)
        self.notes = (*notes, *_prefix_note(self._listing))

    def listing(self) -> Listing:
        return self._listing

    def tensors(self) -> dict[str, Stored]:
        return dict(self._tensors)

    def read(self) -> dict[str, Array]:
        odd = [f"{name} ({t.dtype})" for name, t in self._tensors.items() if t.dtype in OPAQUE or t.dtype in PACKED]
        if odd:
            more = " and others" if len(odd) > 1 else ""
            raise SourceError(
                f"{self.text}: {odd[0]}{more} cannot be read as numbers without scales: convert them to bfloat16 first",
                self.text,
            )
        return _values(self._tensors)

    def model(self) -> None:
        return None


def _stored(tensor: Any, name: str, text: str, edge: Any) -> Stored:
    if isinstance(tensor, Sliced):
        return tensor
    if isinstance(tensor, np.ndarray):
        return Held(_array(tensor, name, text))
    return Deferred(tuple(tensor.shape), dtype_name(tensor.dtype), partial(edge.array_of, tensor, name))


def _values(tensors: Mapping[str, Stored]) -> dict[str, Array]:
    return {name: tensor.read() for name, tensor in tensors.items()}


def _one_in_the_file(tensors: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """For each name whose tensor has further names: those names."""
    groups: dict[Sliced, list[str]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Sliced) and tensor.nbytes:
            groups.setdefault(tensor, []).append(name)
    return {n: tuple(o for o in group if o != n) for group in groups.values() if len(group) > 1 for n in group}


def _is_open(source: Any) -> bool:
    """Whether it is what ``open_source`` gives."""
    traces = sys.modules.get("automap.trace_file")  # without which there is no source of that kind either
    return isinstance(source, _ListingSource | _ModelSource | _TensorSource) or (
        traces is not None and isinstance(source, traces.TraceSource)
    )


def _open_object(obj: Any, framework: Framework | None, args: Mapping[str, Any], text: str) -> Source:
    """A live object, or what a spec names. ``text`` is empty where there is no spec."""
    name = text or _describe(obj)
    found = framework_of(obj)
    if args and (is_model(obj) or isinstance(obj, Mapping) or not callable(obj)):
        raise SourceError(f"{name} is no class or factory and takes no arguments ({', '.join(args)})", name)
    if found is not None and is_model(obj):
        check_side(found, framework, "a model", name)
        return _ModelSource(obj, found, name)
    if isinstance(obj, Listing):
        check_side(obj.framework, framework, "a listing", obj.source or name)
        return _ListingSource(obj.framework, obj.source or name, _marked(obj))
    if isinstance(obj, Mapping):
        return _open_state(obj, framework, name)
    if not callable(obj):
        raise SourceError(
            f"{name} is {article(type(obj).__name__)}: give a model, a class or factory of one, or a state dict", name
        )
    if isinstance(obj, type) and found is not None:
        check_side(found, framework, "a class", name)
    built = specs.call(obj, args, name)
    if isinstance(built, Mapping):
        return _open_state(built, framework, name)
    if framework_of(built) is None or not is_model(built):
        raise SourceError(
            f"{name} gives {article(type(built).__name__)}, and not an nn.Module or nn.Cell: name what builds one",
            name,
        )
    return _open_object(built, framework, {}, name)


def _open_state(state: Mapping[Any, Any], framework: Framework | None, text: str) -> Source:
    tensors, notes = find_state_dict(state, text)
    kinds = {framework_of(t) for t in tensors.values()} - {None}
    if len(kinds) > 1:
        raise SourceError(f"{text} has tensors of both frameworks: give those of one", text)
    found = kinds.pop() if kinds else framework
    if found is None:
        raise SourceError(f"{text} holds arrays, which do not tell their framework: name it (torch or mindspore)", text)
    check_side(found, framework, "a state dict", text)
    return _TensorSource(tensors, found, text, notes)


def _open_file(path: Path, text: str, framework: Framework | None) -> Source:
    suffix = path.suffix.lower()
    if not _there(text):
        if places.is_address(text):
            raise SourceError(f"there is nothing at {text}: check the address", text)
        if suffix in (*_KNOWN_FILES, ".py"):
            raise specs.no_file(text)
        raise SourceError(
            f"{text!r} is no source: give a file ({' '.join(_KNOWN_FILES)}), module:attr or file.py:attr", text
        )
    if sharded.is_sharded(text):
        shards = sharded.read(text)
        opened = [_open_checkpoint(file, file, framework) for file in shards.files]
        return _merged(opened, shards, text)
    if places.is_address(text) and suffix in (".json", ".csv", ".py", ".trace"):
        raise SourceError(f"{text}: only checkpoints are read from there: copy the file to this machine", text)
    if suffix == ".trace":
        check_side("torch", framework, "a trace", text)
        from automap.trace_file import TraceSource  # which takes time to import

        return TraceSource(path, text)
    if suffix == ".py":
        raise SourceError(f"{text} is a Python file: name the class or factory in it, as {text}:build", text)
    if suffix in (".json", ".csv"):
        listing = _marked(read_listing(path, framework))
        return _ListingSource(listing.framework, text, listing)
    return _open_checkpoint(text, text, framework)


def _there(text: str) -> bool:
    try:
        return places.exists(text)
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error.strerror or error}", text) from error


def _open_checkpoint(path: str, text: str, framework: Framework | None) -> _TensorSource:
    """A single checkpoint file."""
    suffix = places.suffix(path)
    if suffix == ".safetensors":
        header = safetensors_file.read_header(path)
        found = header.framework or framework
        if found is None:
            raise SourceError(f"{text} does not say its framework: name it (torch or mindspore)", text)
        check_side(found, framework, f"a checkpoint (by its metadata, format={header.metadata.get('format')})", text)
        aliases: dict[str, tuple[str, ...]] = {}
        # safetensors' save_model() leaves tied weights out, and says in the metadata which name stands for which.
        for name, kept in header.metadata.items():
            if kept in header.tensors and name not in header.tensors:
                aliases[kept] = (*aliases.get(kept, ()), name)
        tensors = {name: tensor.stored(path) for name, tensor in header.tensors.items()}
        ordered = {name: tensors[name] for name in safetensors_file.in_order(tensors)}
        return _TensorSource(ordered, found, text, aliases=aliases)
    start = _head(path)
    if suffix == ".ckpt" and framework != "torch" and not nature_of(start).startswith("it is a zip"):
        try:
            return _TensorSource(ckpt_file.read_header(path), "mindspore", text)
        except (ckpt_file.UnknownFormError, OSError):
            # Whatever else it holds, or what is wrong with it, MindSpore knows.
            _on_this_machine(path, text)
            return _TensorSource(_edge("mindspore", text).read_checkpoint(path), "mindspore", text)
    if suffix in (*TORCH_FILES, ".ckpt"):
        check_side("torch", framework, "a checkpoint", text)
        if suffix == ".ckpt" and not nature_of(start) and not start.startswith(b"\x80"):
            check_side("mindspore", framework, "a checkpoint", text)
        tensors, notes = find_state_dict(read_torch_file(path, text), text)
        return _TensorSource(tensors, "torch", text, notes)
    raise SourceError(f"{text} has no extension that automap reads ({' '.join(_KNOWN_FILES)})", text)


def read_torch_file(path: str, text: str) -> Any:
    """What a file of ``torch.save`` holds, its tensors not read yet: as ``Sliced``, or PyTorch's own."""
    try:
        return zipped_file.read_archive(path)
    except (zipped_file.UnknownFormError, OSError):
        _on_this_machine(path, text)
        return _edge("torch", text).read_checkpoint(path)


def _head(path: str) -> bytes:
    """The first bytes of a file; nothing where it cannot be read, which whoever reads it in earnest will tell."""
    try:
        with places.opened(path) as file:
            return file.read(1024)
    except OSError:
        return b""


def _on_this_machine(path: str, text: str) -> None:
    if places.is_address(path):
        raise SourceError(f"{text} cannot be read from there: copy the file to this machine and convert that", text)


def _merged(opened: Sequence[_TensorSource], shards: sharded.Shards, text: str) -> _TensorSource:
    """The files of a sharded checkpoint as one source."""
    frameworks = {source.framework for source in opened}
    if len(frameworks) > 1:
        raise SourceError(f"{text} has shards of both frameworks: give those of one", text)
    tensors: dict[str, Any] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    for source in opened:
        held = source.tensors()
        for param in source.listing():
            if param.name in tensors and shards.home(param.name) is None:
                raise SourceError(f"{text} has {param.name} in two of its files and no index: keep one of them", text)
            if shards.home(param.name) in (None, source.text):
                tensors[param.name] = held[param.name]
                aliases[param.name] = param.aliases
    shards.check(tensors)
    notes = shards.notes(opened)
    ordered = {name: tensors[name] for name in safetensors_file.in_order(tensors)}
    return _TensorSource(ordered, frameworks.pop(), text, notes, aliases)


def _edge(framework: Framework, text: str) -> Any:
    """The framework's edge, imported now.

    Raises:
        SourceError: the framework is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(f"automap.{framework}_edge")
    except Exception as error:
        name = FRAMEWORK_NAMES[framework]
        if isinstance(error, ModuleNotFoundError) and error.name == framework:
            message = f"{text} needs {name}, which is not installed: pip install 'torch2ms-automap[{framework}]'"
        else:
            message = f"{text} needs {name}, which cannot be imported: {specs.one_line(error)}"
            if framework == "mindspore" and int(np.__version__.partition(".")[0]) > 1:
                message += "; it needs NumPy 1: pip install 'numpy<2'"
        raise SourceError(message, text) from error


def _array(array: Array, name: str, text: str) -> Array:
    dtype = array_dtype(array)
    if dtype not in HELD:
        raise SourceError(f"{text}: {name} holds no numbers ({dtype})", text)
    # ml_dtypes and MindSpore each have NumPy types of these names; the bits are the same.
    return array.view(HELD[dtype]) if HELD[dtype].names else array


def _describe(obj: object) -> str:
    """A live object in a few words: its class, or its own name where it is a class or function."""
    if isinstance(obj, Mapping):
        return "the state dict"
    if isinstance(obj, Listing):
        return "the listing"
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    return f"{named.__module__}:{named.__qualname__}"


def _marked(listing: Listing) -> Listing:
    if listing.framework != "mindspore":
        return listing
    return replace(listing, parameters=tuple(mark_optimizer_states(listing.parameters)))


def _prefix_note(listing: Listing) -> tuple[str, ...]:
    prefix = wrapper_prefix(p.name for p in listing) if listing.framework == "torch" else ""
    return (f"{listing.source}: every name begins with {prefix!r}, from a wrapper of PyTorch",) if prefix else ()
