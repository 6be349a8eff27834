"""Arrays of a run, kept in a temporary file instead of memory."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from automap.dtypes import Array


@dataclass(frozen=True)
class Kept:
    """Where one array is in the file.

    Attributes:
        offset: its first byte.
        shape: its shape.
        dtype: NumPy's word for its element type.
        sketch: sum, sum of squares and greatest absolute value: the same for every layout of the same values.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    sketch: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))


class Activations:
    """A temporary file of arrays, gone when it is closed. Equal arrays are kept once."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="automap-activations-")  # noqa: SIM115 (closed by close)
        self._end = 0
        self._known: dict[tuple[bytes, tuple[int, ...], str], Kept] = {}

    def __enter__(self) -> Activations:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    @property
    def bytes(self) -> int:
        """How long the file is."""
        return self._end

    def keep(self, array: Array) -> Kept:
        """Write an array, unless an equal one is there already."""
        plain = np.ascontiguousarray(array)
        digest = hashlib.blake2b(plain.tobytes() if plain.size else b"", digest_size=16).digest()
        key = (digest, tuple(array.shape), plain.dtype.str)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Kept(self._end, tuple(array.shape), plain.dtype.str, sketch(plain))
            self._file.seek(self._end)
            self._file.write(plain.tobytes() if plain.size else b"")
            self._end += plain.nbytes
        return found

    def read(self, kept: Kept) -> Array:
        """The array again; its memory is its own."""
        dtype = np.dtype(kept.dtype)
        self._file.seek(kept.offset)
        data = bytearray(self._file.read(kept.size * dtype.itemsize))
        return np.frombuffer(data, dtype=dtype).reshape(kept.shape)


def sketch(array: Array) -> tuple[float, float, float]:
    """Sum, sum of squares and greatest absolute value of an array."""
    if not array.size or array.dtype.kind not in "fiub":
        return (0.0, 0.0, 0.0)
    wide = array.astype(np.float64).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        return (float(wide.sum()), float(wide @ wide), float(np.abs(wide).max()))


def may_be(a: Kept, b: Kept, tolerance: float = 1e-3) -> bool:
    """Whether two arrays may hold the same values in any layout, as far as their sketches tell."""
    if a.size != b.size:
        return False
    (sum_a, square_a, top_a), (sum_b, square_b, top_b) = a.sketch, b.sketch
    return (
        abs(square_a - square_b) <= tolerance * max(square_a, square_b)
        and abs(top_a - top_b) <= tolerance * max(top_a, top_b)
        and abs(sum_a - sum_b) <= tolerance * (a.size * max(square_a, square_b)) ** 0.5
    )
