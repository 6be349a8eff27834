"""automap: the mapping between the parameters of a PyTorch network and its MindSpore port, inferred and proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from automap.conversion import ConversionReport, apply, convert, load
    from automap.errors import AutomapError
    from automap.graph import Listing, Param
    from automap.inference import infer
    from automap.loss_scale import LossScaleReport, apply_loss_scale
    from automap.mapping import Entry, Mapping, Unmatched
    from automap.optimizer_state import OptimizerReport
    from automap.optimizers import apply_optimizer
    from automap.regression import check, write_lock
    from automap.sources import open_source
    from automap.trace_writer import write_trace
    from automap.validation import Validation, validate

__version__ = "0.1.0"

__all__ = [
    "AutomapError",
    "ConversionReport",
    "Entry",
    "Listing",
    "LossScaleReport",
    "Mapping",
    "OptimizerReport",
    "Param",
    "Unmatched",
    "Validation",
    "apply",
    "apply_loss_scale",
    "apply_optimizer",
    "check",
    "convert",
    "infer",
    "load",
    "open_source",
    "validate",
    "write_lock",
    "write_trace",
]

#: Where each public name is defined; its module is imported when the name is first used.
_HOMES = {
    "conversion": ("ConversionReport", "apply", "convert", "load"),
    "errors": ("AutomapError",),
    "graph": ("Listing", "Param"),
    "inference": ("infer",),
    "loss_scale": ("LossScaleReport", "apply_loss_scale"),
    "mapping": ("Entry", "Mapping", "Unmatched"),
    "optimizer_state": ("OptimizerReport",),
    "optimizers": ("apply_optimizer",),
    "regression": ("check", "write_lock"),
    "sources": ("open_source",),
    "trace_writer": ("write_trace",),
    "validation": ("Validation", "validate"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"automap.{module}"), name)
            return value
    raise AttributeError(f"module 'automap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
