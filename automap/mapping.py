"""The mapping: which PyTorch parameters become which MindSpore parameters, as a value and as a versioned file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from automap.transforms import Transform


@dataclass(frozen=True)
class RunnerUp:
    """The best different choice for an entry: what it would have been, and how far behind it was (0 to 1)."""

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    margin: float


@dataclass(frozen=True)
class Entry:
    """PyTorch name(s) to MindSpore name(s).

    Attributes:
        torch: PyTorch names; several where they are joined.
        mindspore: MindSpore names (``Parameter.name``); several where one array is split.
        transform: what happens to the arrays on the way, in order; empty for a plain rename.
        confidence: 0 to 1.
        review: whether a person has to look at it.
        why: the reason for the review, or ``""``.
        evidence: the parts of the score, 0 to 1 each (``names``, ``order``, ``structure``) and ``proven``
            (``"forward"``, ``"gradient"`` or None).
        runner_up: the best different choice, or None.
        path: the attribute path of the MindSpore parameter where it differs from its name, else None.
    """

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    transform: tuple[Transform, ...] = ()
    confidence: float = 1.0
    review: bool = False
    why: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    runner_up: RunnerUp | None = None
    path: str | None = None


@dataclass(frozen=True)
class Unmatched:
    """A name without a counterpart, and why. ``review`` says that a person has to look at it."""

    name: str
    why: str
    review: bool = False


@dataclass(frozen=True)
class Side:
    """What a mapping knows of one of its two models: source, number of parameters, fingerprint of the listing."""

    source: str
    parameters: int
    fingerprint: str
