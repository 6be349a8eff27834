"""Stands around PyTorch's functions that a forward calls itself: activations, pools, softmax, concatenation, products.

What a layer of the framework calls inside is the layer's own business and is let pass. It imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from automap.operations import OPERATIONS, Observer, layer_of


class _Functions(TorchFunctionMode):  # type: ignore[misc]  # untyped in torch
    def __init__(self, observe: Observer) -> None:
        super().__init__()
        self.observe = observe

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        name = name.removesuffix("_") if name.removesuffix("_") in OPERATIONS else name
        if name not in OPERATIONS:
            return func(*args, **kwargs)
        return self.observe(name, layer_of("torch", name, args, kwargs), args, kwargs, func)


@contextmanager
def observed(observe: Observer) -> Iterator[None]:
    """Every call of such a function goes through ``observe``, which returns what the caller gets."""
    with _Functions(observe):
        yield
