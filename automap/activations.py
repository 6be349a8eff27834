"""Arrays of a run, kept in a temporary file instead of memory."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from automap.dtypes import Array
from automap.tracing import Fingerprint, distance, fingerprint


@dataclass(frozen=True)
class Kept:
    """Where one array is in the file.

    Attributes:
        offset: its first byte.
        shape: its shape.
        dtype: NumPy's word for its element type.
        statistics: the same for every layout of the same values.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    statistics: Fingerprint

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
            found = self._known[key] = Kept(self._end, tuple(array.shape), plain.dtype.str, fingerprint(plain))
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


def may_be(a: Kept, b: Kept, tolerance: float = 1e-3) -> bool:
    """Whether two arrays may hold the same values in any layout, as far as their statistics tell.

    Args:
        tolerance: relative to the greatest value.
    """
    if a.size != b.size:
        return False
    top = max(max(abs(k.statistics.stats[4]), abs(k.statistics.stats[5])) for k in (a, b))
    root = max(k.statistics.stats[2] for k in (a, b))
    return distance(a.statistics, b.statistics) <= tolerance * (top / root if root else 1.0)
