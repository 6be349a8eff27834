"""What a PyTorch network computes in low precision though its parameters do not show it: a run does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: The types that autocast computes in, as they are named here.
_LOW = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

#: Operations that sum up products, by their names in ATen: where these are of low precision, so is what follows.
_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution", "mkldnn_linear", "mkldnn_convolution",
    "mkldnn_rnn_layer", "scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_flash_attention",
    "scaled_dot_product_efficient_attention", "scaled_dot_product_attention_math",
}  # fmt: skip


class Autocast:
    """Watches runs of a network for what autocast, or a cast in its forward, lets it compute in low precision.

    Args:
        off: autocast is of no effect in these runs.

    Attributes:
        seen: the types of low precision that an operation under autocast gave something in.
        low: where autocast is off, those that the first forward gave something in all the same.
        thorough: whether products of low precision are looked for everywhere, which a compiled network may not bear.
        products: the types that these were seen in.
    """

    def __init__(self, off: bool = False) -> None:
        self.off = off
        self.seen: set[str] = set()
        self.low: set[str] = set()
        self.thorough = False
        self.products: set[str] = set()
        self._ran = False

    @contextmanager
    def watched(self, device: str) -> Iterator[None]:
        """Around a forward. What is looked at are results, not what was asked for: autocast leaves much as it is.

        The class is changed for that, not the network: so the decorator, and contexts in a forward that is not the
        network's own, are seen as well.
        """
        way = torch.amp.autocast_mode.autocast
        enter, leave = way.__enter__, way.__exit__
        looking: list[tuple[Any, _Seeing | None]] = []

        def entered(context: Any) -> Any:
            out = enter(context)
            if self.off:
                torch.set_autocast_enabled(context.device, False)
            looking.append((context, self._looks(context.device)))
            return out

        def left(context: Any, *error: Any) -> Any:
            _, seeing = looking.pop() if looking and looking[-1][0] is context else (None, None)
            if seeing is not None:
                seeing.__exit__(*error)
            return leave(context, *error)

        ambient = torch.is_autocast_enabled(device)
        # What autocast keeps of weights would be that of other weights.
        torch.clear_autocast_cache()
        way.__enter__, way.__exit__ = entered, left
        try:
            with torch.autocast(device, enabled=False) if ambient and self.off else nullcontext():
                seeing = self._looks(device, first=self.off and not self._ran)
                products = _Seeing(self.products, _PRODUCTS) if self.thorough and not self.products else nullcontext()
                try:
                    with products:
                        yield
                    self._ran = True
                finally:
                    if seeing is not None:
                        seeing.__exit__(None, None, None)
        finally:
            way.__enter__, way.__exit__ = enter, leave

    def _looks(self, device: str, first: bool = False) -> _Seeing | None:
        """A look at the results from now on, where there may be something new to see."""
        enabled = torch.is_autocast_enabled(device)
        if not first and (not enabled or _LOW.get(torch.get_autocast_dtype(device)) in {None, *self.seen}):
            return None
        seeing = _Seeing(self.low if first else self.seen)
        seeing.__enter__()
        return seeing


class _Seeing(TorchDispatchMode):  # type: ignore[misc]  # untyped in torch
    """Notes the types of low precision that operations give, or only some operations."""

    def __init__(self, seen: set[str], some: Collection[str] | None = None) -> None:
        super().__init__()
        self.seen, self.some = seen, some

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch loads its compiler first, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.some is not None and func.overloadpacket.__name__.strip("_") not in self.some:
            return out
        self.seen |= {_LOW[t.dtype] for t in _pytree.tree_leaves(out) if getattr(t, "dtype", None) in _LOW}
        return out
