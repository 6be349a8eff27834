"""MindSpore's .ckpt format, read and laid out without MindSpore.

The file is a protobuf message: one ``value`` (field 1) after another, each with a name (``tag``, 1) and a tensor (2) of
``dims`` (1), ``tensor_type`` (2) and ``tensor_content`` (3). A long tensor is cut: its slices follow each other under
one name. There may be a checksum behind it all: the word ``crc_num`` and ten bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import BinaryIO

from automap import places
from automap.dtypes import size_of
from automap.errors import ConversionError
from automap.graph import Shape
from automap.layout import Described, Layout
from automap.stored import Sliced

#: What the format calls the element types.
_NAMES = {
    "Int8": "int8", "UInt8": "uint8", "Int16": "int16", "UInt16": "uint16", "Int32": "int32", "UInt32": "uint32",
    "Int64": "int64", "UInt64": "uint64", "Float16": "float16", "Float32": "float32", "Float64": "float64",
    "Bool": "bool", "BFloat16": "bfloat16",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}

#: Of how many bytes a slice is at most; MindSpore cuts there, too.
_SLICE = 512 * 1024 * 1024

_VALUE, _TAG, _TENSOR = 0x0A, 0x0A, 0x12
_DIMS, _DIMS_PACKED, _TYPE, _CONTENT = 0x08, 0x0A, 0x12, 0x1A
_CHECKSUM = b"crc_num"


class UnknownFormError(Exception):
    """A file that this reader does not understand; MindSpore may, or can say what is wrong with it."""


def read_header(path: str) -> dict[str, Sliced]:
    """Where the tensors of a file are, in its order; none is loaded. Texts, which it can also hold, are left out.

    Raises:
        UnknownFormError: it is damaged, encrypted, or has something else in it.
        OSError: it cannot be read.
    """
    found: dict[str, Sliced] = {}
    last = ""
    with places.opened(path) as file:
        end = _end(file)
        file.seek(0)
        while file.tell() < end:
            if _byte(file) != _VALUE:
                raise UnknownFormError("no value where one should be")
            stop = _stop(file, end)
            tag, dtype, dims, piece = _value(file, stop)
            if dtype == "str":
                continue
            if tag in found:
                before = found[tag]
                if tag != last or (before.dtype, before.shape) != (dtype, dims):
                    raise UnknownFormError(f"{tag} is there twice")
                piece = (*before.pieces, *piece)
            found[tag] = Sliced(path, dtype, dims, piece)
            last = tag
    if not found or any(t.nbytes != size_of(t.dtype, t.elements) for t in found.values()):
        raise UnknownFormError("its tensors do not have the bytes that their shapes need")
    return found


def layout(tensors: Mapping[str, Described]) -> Layout:
    """The form of a file.

    Raises:
        ConversionError: an element type or a shape that the format cannot hold.
    """
    odd = [f"{name}: {t.dtype}" for name, t in tensors.items() if t.dtype not in _CODES]
    if odd:
        raise ConversionError(f"a .ckpt file cannot hold these element types: {'; '.join(odd)}", odd)
    empty = [f"{name}: {list(t.shape)}" for name, t in tensors.items() if not math.prod(t.shape)]
    if empty:
        raise ConversionError(f"a .ckpt file cannot hold tensors without elements: {'; '.join(empty)}", empty)
    at = 0
    fixed: list[tuple[int, bytes]] = []
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for name, t in tensors.items():
        size = size_of(t.dtype, math.prod(t.shape))
        pieces = []
        for start in range(0, size, _SLICE):
            length = min(_SLICE, size - start)
            head = _head(name, t, length)
            fixed.append((at, head))
            at += len(head)
            pieces.append((at, at + length))
            at += length
        found[name] = tuple(pieces)
    return Layout(at, tuple(fixed), found)


def _head(name: str, tensor: Described, length: int) -> bytes:
    """The bytes before a slice's content."""
    dims = b"".join(bytes([_DIMS]) + _number(d) for d in tensor.shape)
    inner = dims + _field(_TYPE, _CODES[tensor.dtype].encode()) + bytes([_CONTENT]) + _number(length)
    middle = _field(_TAG, name.encode()) + bytes([_TENSOR]) + _number(len(inner) + length)
    return bytes([_VALUE]) + _number(len(middle) + len(inner) + length) + middle + inner


def _field(key: int, data: bytes) -> bytes:
    return bytes([key]) + _number(len(data)) + data


def _number(n: int) -> bytes:
    """A whole number as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _end(file: BinaryIO) -> int:
    """Where the values end: before the checksum, where there is one."""
    size = file.seek(0, io.SEEK_END)
    behind = len(_CHECKSUM) + 10
    if size <= behind:
        return size
    file.seek(size - behind)
    return size - behind if file.read(len(_CHECKSUM)) == _CHECKSUM else size


def _value(file: BinaryIO, stop: int) -> tuple[str, str, Shape, tuple[tuple[int, int], ...]]:
    """Name, element type, shape and place of the value up to ``stop``."""
    tag = None
    while file.tell() < stop:
        key = _byte(file)
        inner = _stop(file, stop)
        if key == _TAG:
            tag = _text(file, inner)
        elif key == _TENSOR and tag is not None:
            found = _tensor(file, inner)
            if file.tell() == stop:
                return (tag, *found)
            raise UnknownFormError(f"{tag} has more than a tensor")
        else:
            raise UnknownFormError("a value is no tensor")
    raise UnknownFormError("a value has no tensor")


def _tensor(file: BinaryIO, stop: int) -> tuple[str, Shape, tuple[tuple[int, int], ...]]:
    dims: list[int] = []
    dtype, place = None, None
    while file.tell() < stop:
        key = _byte(file)
        if key == _DIMS:
            dims.append(_varint(file))
            continue
        inner = _stop(file, stop)
        if key == _DIMS_PACKED:
            while file.tell() < inner:
                dims.append(_varint(file))
        elif key == _TYPE:
            dtype = _text(file, inner)
        elif key == _CONTENT:
            place = (file.tell(), inner)
            file.seek(inner)
        else:
            raise UnknownFormError("a tensor has something unknown in it")
    if dtype is None or place is None or (dtype != "str" and dtype not in _NAMES):
        raise UnknownFormError(f"a tensor of the type {dtype}")
    return _NAMES.get(dtype, dtype), () if dims == [0] else tuple(dims), (place,)


def _text(file: BinaryIO, stop: int) -> str:
    try:
        return file.read(stop - file.tell()).decode()
    except UnicodeDecodeError:
        raise UnknownFormError("a name is no text") from None


def _stop(file: BinaryIO, end: int) -> int:
    """Where what begins here ends, by the length that stands before it."""
    length = _varint(file)
    stop = file.tell() + length
    if stop > end:
        raise UnknownFormError("it ends before its last value")
    return stop


def _varint(file: BinaryIO) -> int:
    n = 0
    for shift in range(0, 63, 7):
        byte = _byte(file)
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n
    raise UnknownFormError("a number has no end")


def _byte(file: BinaryIO) -> int:
    byte = file.read(1)
    if not byte:
        raise UnknownFormError("it ends too early")
    return byte[0]
