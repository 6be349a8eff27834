"""Tensors that are not read yet: what they are is known, their values come when they are asked for."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from automap import places
from automap.dtypes import HELD, Array, cast, dtype_name, is_packed, widen
from automap.errors import SourceError
from automap.graph import Shape

#: How many bytes are read at a time where a tensor is copied as it is.
CHUNK = 1 << 22

#: Of an array in memory with so many bytes at most, the values are part of what it is.
_SMALL = 1 << 16


class Stored(Protocol):
    """A tensor that can be read.

    Attributes:
        shape: its shape.
        dtype: its element type's name, such as ``bfloat16``.
    """

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> str: ...

    def read(self) -> Array:
        """Its values. Raises SourceError where they cannot be read."""


@dataclass(frozen=True, eq=False)
class Held:
    """An array that is in memory."""

    array: Array

    @property
    def shape(self) -> Shape:
        return self.array.shape

    @property
    def dtype(self) -> str:
        return dtype_name(self.array)

    def read(self) -> Array:
        """The array itself, in the byte order of this machine, which is the only one that the frameworks take."""
        array = self.array
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


@dataclass(frozen=True)
class Filled:
    """A tensor of one number throughout, which takes no memory until it is read.

    Attributes:
        shape: its shape.
        dtype: its element type's name, such as ``float32``.
        value: the number.
    """

    shape: Shape
    dtype: str
    value: float = 0.0

    def read(self) -> Array:
        return cast(np.full(self.shape, self.value, np.float32), self.dtype)[0]


@dataclass(frozen=True, eq=False)
class Scaled:
    """A tensor times a number, or divided by it, in float32."""

    parts: tuple[Stored]
    factor: float
    divided: bool = False

    @property
    def shape(self) -> Shape:
        return self.parts[0].shape

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def chain(self) -> tuple[float, bool]:
        """What tells this one from the tensor itself; see ``identity``."""
        return self.factor, self.divided

    def read(self) -> Array:
        wide, factor = widen(self.parts[0].read()).astype(np.float32), np.float32(self.factor)
        made: Array = wide / factor if self.divided else wide * factor
        return made


@dataclass(frozen=True, eq=False)
class Deferred:
    """A tensor that somebody else gives, when it is called."""

    shape: Shape
    dtype: str
    give: Callable[[], Array]

    def read(self) -> Array:
        return self.give()


@dataclass(frozen=True)
class Sliced:
    """A tensor in a file, as little-endian bytes. Equal ones are one in the file.

    Attributes:
        file: a path or an address.
        dtype: its element type's name.
        shape: its shape.
        pieces: where its bytes are, from and to, in order.
        strides: for each axis by how many elements its values are apart, where they do not simply follow each other.
    """

    file: str
    dtype: str
    shape: Shape
    pieces: tuple[tuple[int, int], ...]
    strides: Shape | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes of the file it takes."""
        return sum(stop - start for start, stop in self.pieces)

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def read(self) -> Array:
        if is_packed(self.dtype):
            raise SourceError(
                f"{self.file}: {self.dtype} has several elements in a byte: such a tensor can be renamed and copied "
                "from file to file, and nothing else",
                self.file,
            )
        dtype = HELD[self.dtype]
        flat = np.empty(self.nbytes // dtype.itemsize, dtype)
        bytes_ = flat.view(np.uint8).data
        at = 0
        for start, stop in self.pieces:
            self._fill(start, bytes_[at : at + stop - start])
            at += stop - start
        if self.strides is None:
            return flat.reshape(self.shape)
        strides = [n * dtype.itemsize for n in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)

    @property
    def is_plain(self) -> bool:
        """Whether its bytes follow each other in order, whole elements in every piece."""
        unit = 1 if is_packed(self.dtype) else HELD[self.dtype].itemsize
        return self.strides is None and not any((stop - start) % unit for start, stop in self.pieces)

    def chunks(self) -> Iterator[memoryview]:
        """Its bytes as they are in the file, a few at a time, in one buffer: use each before the next comes.

        A chunk holds whole elements. Only for a plain tensor.
        """
        step = CHUNK * 8 if places.is_address(self.file) else CHUNK
        buffer = np.empty(min(step, max(self.nbytes, 1)), np.uint8)
        for start, stop in self.pieces:
            for at in range(start, stop, step):
                view = buffer.data[: min(step, stop - at)]
                self._fill(at, view)
                yield view

    def bytes_at(self, at: int, count: int) -> Array:
        """So many of its bytes, from a place among them on. Only for a plain tensor."""
        buffer = np.empty(count, np.uint8)
        view = buffer.data
        before = 0
        for start, stop in self.pieces:
            here, end = max(at, before), min(at + count, before + stop - start)
            if here < end:
                self._fill(start + here - before, view[here - at : end - at])
            before += stop - start
        return buffer

    def _fill(self, start: int, buffer: memoryview) -> None:
        if not len(buffer):
            return
        try:
            places.read_into(self.file, start, buffer)
        except OSError as error:
            raise SourceError(f"{self.file} cannot be read: {error.strerror or error}", self.file) from error


def origins(tensor: Stored) -> list[Sliced] | None:
    """The tensors in files that a tensor is made of when it is read; None where something else is needed for it."""
    if isinstance(tensor, Sliced):
        return [tensor]
    found: list[Sliced] = []
    parts: tuple[Stored, ...] = getattr(tensor, "parts", ())
    for part in parts:
        inner = origins(part)
        if inner is None:
            return None
        found += inner
    return found or None


def travels(tensor: Stored) -> bool:
    """Whether another machine can read it, from the same files or from the few bytes that are sent along."""
    parts: tuple[Stored, ...] = getattr(tensor, "parts", ())
    small = isinstance(tensor, Held) and tensor.array.nbytes <= _SMALL
    return small or isinstance(tensor, Sliced | Filled) or (bool(parts) and all(map(travels, parts)))


def identity(tensor: Stored) -> str:
    """A text that is equal for tensors with the same values, if the files that they come from are the same."""
    parts: tuple[Stored, ...] = getattr(tensor, "parts", ())
    if isinstance(tensor, Sliced):
        more = f"{tensor.pieces} {tensor.strides}"
    elif isinstance(tensor, Filled):
        more = f"{tensor.value!r}"
    elif isinstance(tensor, Held) and tensor.array.nbytes <= _SMALL:  # a number that an option may have told
        more = f"{zlib.crc32(np.ascontiguousarray(tensor.array).tobytes())}"
    else:
        more = f"{[identity(part) for part in parts]} {list(map(str, getattr(tensor, 'chain', ())))}"
    return f"{tensor.dtype} {tensor.shape} {more}"


def pieces_of(array: Array) -> Iterator[Array]:
    """An array of any layout as contiguous parts of bounded size, in order."""
    if array.nbytes <= CHUNK or not array.ndim:
        yield np.ascontiguousarray(array)
        return
    row = array.nbytes // array.shape[0]
    if row >= CHUNK:
        for part in array:
            yield from pieces_of(part)
        return
    step = CHUNK // row
    for at in range(0, array.shape[0], step):
        yield np.ascontiguousarray(array[at : at + step])
