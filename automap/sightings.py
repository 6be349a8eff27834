"""What an examination of a port sees, as values: calls, faults, and what may be done to a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from automap.activations import Kept
from automap.recording import Call
from automap.settings import Layer

#: The path of a cell, the name of the function that it calls (``""``: the cell itself), and how often before.
Key = tuple[str, str, int]

#: Stands around one call: ``edit(proceed, args, kwargs)`` returns what the caller gets.
Edit = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]

#: Edits by path and function, for every call or for one.
Edits = Mapping[tuple[str, str, int | None], Edit]


@dataclass(frozen=True)
class Seen:
    """One call in MindSpore.

    Attributes:
        index: its rank.
        key: which call it is.
        name: the cell's class, or the function.
        layer: what it is.
        inputs: what came to it by itself.
        outputs: what its caller got.
        call: its counterpart in PyTorch.
        owns: it is a cell with parameters.
    """

    index: int
    key: Key
    name: str
    layer: Layer
    inputs: tuple[Kept, ...]
    outputs: tuple[Kept, ...]
    call: Call | None
    owns: bool


@dataclass(frozen=True)
class Fault:
    """A place where MindSpore's value is not PyTorch's although everything before was.

    Attributes:
        at: which call, None for the outputs of the network.
        place: what came to the call (``"input"``) or what it gave (``"output"``).
        call: its counterpart.
        distance: between the two values, relative to PyTorch's.
        expected: PyTorch's value in MindSpore's layout.
        natural: MindSpore's value.
        tensor: which of the call's inputs or outputs.
        last: the call before whose output agreed (None: the inputs of the network).
        seen: how many calls had been seen.
        inside: the fault is in one cell or function that got the right inputs.
        order: for joined inputs: which of PyTorch's each one is.
        unknown: PyTorch has no such value anywhere as came here.
    """

    at: Key | None
    place: Literal["input", "output"]
    call: Call | None
    distance: float
    expected: Kept
    natural: Kept
    tensor: int
    last: Key | None
    seen: int
    inside: bool
    order: tuple[int, ...] = ()
    unknown: bool = False


#: Looks at a cell or function while it can be run again: its fault (None if it agrees), the cell (None for a
#: function), what it is, what runs it, its arguments, its key, its counterpart, and its rank.
Inspect = Callable[..., None]


@dataclass
class Run:
    """What one examination found: every call in order, every fault in order, and the outputs."""

    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    outputs: Any = None

    def at(self, key: Key | None) -> Seen | None:
        """The call with a key."""
        return next((s for s in self.seen if s.key == key), None)


def replaced(nested: Any, swap: Mapping[int, Any]) -> Any:
    """Arguments or outputs of any form with other tensors in the place of some, found by their identity."""
    if id(nested) in swap:
        return swap[id(nested)]
    if isinstance(nested, tuple) and hasattr(nested, "_fields"):
        return type(nested)(*(replaced(v, swap) for v in nested))
    if isinstance(nested, (tuple, list)):
        return type(nested)(replaced(v, swap) for v in nested)
    if isinstance(nested, dict):
        return {k: replaced(v, swap) for k, v in nested.items()}
    if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
        changes = {f.name: replaced(getattr(nested, f.name), swap) for f in dataclasses.fields(nested) if f.init}
        return dataclasses.replace(nested, **changes)
    return nested
