"""Where everything stands in a file that is to be written, known before the first tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from automap.graph import Shape


class Described(Protocol):
    """What a layout needs to know of a tensor."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class Named:
    """A tensor's place in a frame, by its name."""

    name: str


@dataclass(frozen=True)
class Frame:
    """What a file holds around its tensors, where it is no dict of them alone.

    Attributes:
        under: the key of a dict with all tensors that ``beside`` does not name.
        beside: further keys with dicts, lists, tuples, texts, numbers, None, and tensors as ``Named``.
    """

    under: str
    beside: Mapping[str, Any]

    @property
    def named(self) -> set[str]:
        """The names of the tensors that ``beside`` has."""
        found: set[str] = set()
        left: list[Any] = [self.beside]
        while left:
            value = left.pop()
            if isinstance(value, Named):
                found.add(value.name)
            elif isinstance(value, Mapping):
                left += value.values()
            elif isinstance(value, list | tuple):
                left += value
        return found


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
