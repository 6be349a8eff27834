"""Changes of arrays on their way from one framework to the other, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Transform:
    """One named operation with its arguments, such as ``Transform("transpose", {"axes": [1, 0]})``."""

    op: str
    args: dict[str, Any] = field(default_factory=dict)
