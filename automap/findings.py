"""What the doctor found, as values: each cause once, with the layers where it is and what its repair does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: A setting of a layer; something between layers; another operation; what only training shows; a wrong mapping.
Kind = Literal["setting", "between", "operation", "training", "mapping"]


#: Causes between layers or inside them that no wrong mapping looks like.
_PORTS_OWN = frozenset({"activation", "alpha", "dropout", "gelu", "output_padding", "pooling", "residual"})


@dataclass(frozen=True)
class Finding:
    """One cause, with every place where it is.

    Attributes:
        kind: what sort of cause.
        cause: a short key, such as ``eps``, ``padding``, ``activation`` or ``order``.
        torch: the PyTorch modules concerned.
        mindspore: the MindSpore cells concerned.
        torch_class: the class of these modules, or the function.
        ms_class: the same for MindSpore.
        setting: the setting that differs, else the cause.
        torch_value: its value in PyTorch.
        ms_value: its value in MindSpore.
        before: the error of the outputs before the repair, relative to their scale; the repairs of all findings are
            made one after another. None where inference is blind to it.
        after: the error after it.
        proven: the repair in memory lowered the error, there or in the outputs.
        places: how many calls it concerns.
        words: one line.
    """

    kind: Kind
    cause: str
    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    torch_class: str = ""
    ms_class: str = ""
    setting: str = ""
    torch_value: str = ""
    ms_value: str = ""
    before: float | None = None
    after: float | None = None
    proven: bool = False
    places: int = 1
    words: str = ""

    def __str__(self) -> str:
        return self.words

    @property
    def ports_own(self) -> bool:
        """Whether the cause is the port's for certain, and could not as well be a wrong mapping.

        Layers that are exchanged in the mapping look like layers that run in another order; and where PyTorch's own
        values took the place of the port's, anything before them would do.
        """
        return self.kind in ("setting", "training") or self.cause in _PORTS_OWN


def places(paths: Sequence[str]) -> str:
    """Paths in words: ``layers.0.norm`` or ``layers.0.norm and 3 more``; ``""`` is the network itself."""
    shown = [p or "the network" for p in paths]
    if len(shown) <= 2:
        return " and ".join(shown)
    return f"{shown[0]} and {len(shown) - 1} more"


def effect(before: float | None, after: float | None) -> str:
    """What a repair does to the error of the outputs, in words; ``""`` where inference is blind to it."""
    if before is None or after is None:
        return ""
    start, end = (f"{e:.1e}" if math.isfinite(e) else "another form" for e in (before, after))
    return f": {start} -> {end}"
