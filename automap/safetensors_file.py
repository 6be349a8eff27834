"""The .safetensors format: a listing from the header alone, arrays in and out.

The format is a header length (8 bytes, little-endian), a JSON header, and the tensors' bytes. It is read and written
here, and not by the safetensors package, because that package's NumPy side knows no bfloat16 and sorts the tensors by
name, which loses their order.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automap import places
from automap.dtypes import Array, size_of
from automap.errors import ConversionError, SourceError
from automap.files import nature_of
from automap.graph import Framework, Shape
from automap.layout import Described, Layout
from automap.stored import Held, Sliced, Stored

#: The element types of the format, and what both frameworks call them.
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}

#: What the metadata's ``format`` says of the framework. ``np`` and others say nothing.
FORMATS: dict[str, Framework] = {"pt": "torch", "ms": "mindspore"}

#: The reference reader takes no longer header either.
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Tensor:
    """Where one tensor is: its element type (``bfloat16``), shape, and the bytes' place in the file."""

    dtype: str
    shape: Shape
    start: int
    stop: int

    def stored(self, path: str | Path) -> Sliced:
        """The tensor itself, in the file of this path."""
        return Sliced(str(path), self.dtype, self.shape, ((self.start, self.stop),))


@dataclass(frozen=True)
class Header:
    """What a file holds, in the file's order, and its metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    @property
    def framework(self) -> Framework | None:
        """The framework that the metadata names, or None."""
        return FORMATS.get(self.metadata.get("format", ""))


def read_header(path: str | Path) -> Header:
    """Read and check a file's header; no tensor is loaded.

    Raises:
        SourceError: the file cannot be read, is truncated, or is no safetensors file.
    """
    text = str(path)
    try:
        with places.opened(text) as file:
            first = file.read(1024)
            length = int.from_bytes(first[:8], "little")
            if first[8:9] != b"{" or not 2 <= length <= _MAX_HEADER:
                what = nature_of(first) or "it has no such header; check the extension"
                raise SourceError(f"{text} is not a safetensors file: {what}", text)
            size = file.seek(0, io.SEEK_END)
            if 8 + length > size:
                raise SourceError(_truncated(text, size, 8 + length), text)
            file.seek(8)
            raw = file.read(length)
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error.strerror or error}", text) from error
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
        metadata = data.pop("__metadata__", None) or {}
        if not all(isinstance(v, str) for v in metadata.values()):
            raise ValueError("its metadata is not text")
        tensors = {name: _tensor(name, entry, 8 + length) for name, entry in data.items()}
        end = 8 + length
        for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
            if tensor.start != end:
                raise ValueError(f"the bytes of {name} do not follow on those before it")
            end = tensor.stop
    except (ValueError, AttributeError) as error:
        raise SourceError(f"{text} has a damaged safetensors header ({error}): get the file again", text) from error
    if end > size:
        raise SourceError(_truncated(text, size, end), text)
    if end < size:
        raise SourceError(f"{text} has {size - end} bytes after its last tensor: it is damaged, get it again", text)
    return Header(tensors, metadata)


def layout(tensors: Mapping[str, Described], metadata: Mapping[str, str]) -> Layout:
    """The form of a file. The header keeps the tensors' order within one element size; wider elements come first.

    So all are aligned.

    Raises:
        ConversionError: an element type that the format does not know.
    """
    odd = [f"{name}: {t.dtype}" for name, t in tensors.items() if t.dtype not in _CODES]
    if odd:
        raise ConversionError(f"a safetensors file cannot hold these element types: {'; '.join(odd)}", odd)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, t in sorted(tensors.items(), key=lambda item: -size_of(item[1].dtype, 1)):
        end = at + size_of(t.dtype, math.prod(t.shape))
        header[name] = {"dtype": _CODES[t.dtype], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    start = 8 + len(raw)
    del header["__metadata__"]
    found = {name: tuple(start + n for n in entry["data_offsets"]) for name, entry in header.items()}
    fixed = ((0, len(raw).to_bytes(8, "little") + raw),)
    return Layout(start + at, fixed, {name: ((a, b),) for name, (a, b) in found.items()})


def write_tensors(path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write arrays, laid out as ``layout`` has it.

    Raises:
        ConversionError: an element type that the format does not know; nothing is written.
        OSError: the file cannot be written.
    """
    form = layout({name: Held(array) for name, array in arrays.items()}, metadata)
    with open(path, "wb") as file:
        for at, data in form.fixed:
            file.seek(at)
            file.write(data)
        for name in form.tensors:
            array = arrays[name]
            # From now on the order of the bytes is the format's.
            file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _tensor(name: str, entry: Any, offset: int) -> Tensor:
    if not isinstance(entry, dict):
        raise ValueError(f"{name} is not described")
    code, shape, place = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if code not in _NAMES:
        raise ValueError(f"{name} has the unknown element type {code!r}")
    if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
        raise ValueError(f"{name} has no proper shape")
    if not isinstance(place, list) or len(place) != 2 or not all(type(p) is int and p >= 0 for p in place):
        raise ValueError(f"{name} has no proper place")
    if place[1] - place[0] != size_of(_NAMES[code], math.prod(shape)):
        raise ValueError(f"{name} has a shape that does not fit its bytes")
    return Tensor(_NAMES[code], tuple(shape), offset + place[0], offset + place[1])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _truncated(text: str, size: int, expected: int) -> str:
    return f"{text} is truncated: it has {size} bytes and its header promises {expected}; get the file again"


def in_order(tensors: Mapping[str, Stored]) -> list[str]:
    """The names of .safetensors files in the best order there is.

    Most writers sort the tensors by element type and name, so that ``layers.10`` comes before ``layers.2`` and
    definition order is lost. Then numbers are compared as numbers. Any other order was meant, and stays.
    """
    previous: dict[str, str] = {}
    for name, tensor in tensors.items():
        if name < previous.get(tensor.dtype, ""):
            return list(tensors)
        previous[tensor.dtype] = name
    return sorted(tensors, key=lambda n: [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in n.split(".")])
