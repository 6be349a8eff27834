"""Where everything stands in a file that is to be written, known before the first tensor is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from automap.graph import Shape


class Described(Protocol):
    """What a layout needs to know of a tensor."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class Layout:
    """A file's form.

    Attributes:
        size: how many bytes the file has.
        fixed: bytes that are no tensor's, by their places.
        tensors: for each tensor, the places of its bytes: from and to, in order.
        checksums: for tensors whose CRC-32 is in the file, too: the places of it, four little-endian bytes each.
    """

    size: int
    fixed: tuple[tuple[int, bytes], ...]
    tensors: dict[str, tuple[tuple[int, int], ...]]
    checksums: dict[str, tuple[int, ...]] = field(default_factory=dict)
