"""How a cell or a function of the port gets PyTorch's settings for the time of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from automap.dtypes import Array
from automap.settings import Difference, Layer, changes
from automap.sightings import Edit


class Tools(Protocol):
    """What the doctor needs of MindSpore beside its runner: :mod:`automap.mindspore_settings`."""

    def read(self, cell: Any) -> Layer: ...

    def can_change(self, cell: Any, changes: Mapping[str, Any]) -> bool: ...

    def run_with(
        self,
        cell: Any,
        changes: Mapping[str, Any],
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any: ...

    def function_of(self, layer: Layer) -> Callable[..., Any]: ...

    def overwrite(self, tensor: Any, array: Array) -> None: ...


def with_settings(
    tools: Tools,
    cell: Any,
    theirs: Layer,
    layer: Layer,
    found: Sequence[Difference],
    bias: Callable[[bool], Array | None],
) -> Edit | None:
    """The edit that gives a cell or a function PyTorch's settings, or None if there is no way.

    Args:
        tools: for cells.
        cell: None for a function.
        theirs: what it is in PyTorch.
        layer: what it is here.
        found: the settings that are to be changed.
        bias: what is to be added to what a cell gives, if it is to have a bias (or to have none), None if unknown.
    """
    wanted = changes(found, theirs)
    if cell is None:
        try:
            function = tools.function_of(Layer(wanted.get("kind", layer.kind), {**layer.settings, **wanted}))
        except (LookupError, TypeError, ValueError):
            return None
        return lambda proceed, args, kwargs: function(args[0])
    if "bias" in wanted:
        added = bias(wanted["bias"])
        if added is None:
            return None
        wanted["bias"] = added
    if not tools.can_change(cell, wanted):
        return None
    return lambda proceed, args, kwargs: tools.run_with(cell, wanted, proceed, args, kwargs)
