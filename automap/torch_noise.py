"""Rounding and the errors of kernels, imitated: PyTorch as another machine might have computed.

Weights are off by one unit in their last place at most, and results of some operations by what is known of their
kernels. A change of the last bits is made where the weights are, and can be undone there: it takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from automap.dtypes import Array
from automap.running import NOISE_BINS, NOISE_RANGE

#: Random numbers that stand for the rounding of all values: a prime, so that no layout falls in with it.
_NOISE = 1_000_003
#: Bits are flipped of so many values at a time: what fits the processor's caches.
_CHUNK = 1 << 15
#: Element types whose last bit can be flipped: whole numbers of their size, and the bits of their exponent.
_BITS = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F800000),
    torch.float64: (torch.int64, 0x7FF0000000000000),
}


@contextmanager
def noisy(
    tensors: Collection[torch.Tensor], seed: int, kernel_noise: Mapping[str, Array], units: float
) -> Iterator[None]:
    """Floating-point ``tensors`` off by at most ``units`` units in their last place, and operations as a table says.

    Args:
        tensors: weights, each one once; they are as they were afterwards.
        seed: of the noise.
        kernel_noise: see :func:`automap.mindspore_runner.kernel_noise`.
        units: for one unit the last bits are flipped in place; for others the weights have other memory meanwhile.
    """
    rng = torch.Generator().manual_seed(seed)
    # Drawn once: a large network would take longer to draw from than to run.
    drawn = 2 * torch.rand(_NOISE, generator=rng) - 1

    def noise(like: torch.Tensor) -> torch.Tensor:
        start, size = int(torch.randint(_NOISE, (), generator=rng)), like.numel()
        enough = drawn if start + size <= _NOISE else drawn.repeat((start + size) // _NOISE + 1)
        return enough[start : start + size].reshape(like.shape).to(like)

    changed = [t for t in tensors if t.is_floating_point()]
    flipped = [t for t in changed if units == 1 and t.dtype in _BITS and t.is_contiguous()]
    others = [t for t in changed if not any(t is f for f in flipped)] if len(flipped) < len(changed) else []
    bits = {kind: (drawn > 0).to(kind) for kind in {_BITS[t.dtype][0] for t in flipped}}
    before = [t.data for t in others]
    done: list[tuple[torch.Tensor, list[bool]]] = []
    try:
        with torch.no_grad():
            for tensor in flipped:
                done.append((tensor, _flip(tensor, bits)))
            for tensor in others:
                size = units * torch.finfo(tensor.dtype).eps
                tensor.data = torch.addcmul(tensor.data, tensor.data, noise(tensor), value=size)
        with _KernelNoise(kernel_noise, noise):  # only now: it takes longer than what it watches
            yield
    finally:
        for tensor, data in zip(others, before, strict=True):
            tensor.data = data
        for tensor, plain in reversed(done):
            _flip(tensor, bits, plain)


def _flip(
    tensor: torch.Tensor, bits: Mapping[torch.dtype, torch.Tensor], plain: Sequence[bool] | None = None
) -> list[bool]:
    """Flip the last bits of some elements; done twice, it is undone, for the exponent is as it was.

    What has no last place to speak of is left alone: zero and what is next to it, infinity, and what is no number.

    Args:
        plain: what the first call returned, to undo it without looking again.

    Returns:
        For each part whether nothing of the kind is in it.
    """
    found: list[bool] = []
    kind, exponent = _BITS[tensor.dtype]
    limits = torch.finfo(tensor.dtype)
    values, some = tensor.detach().view(-1), bits[kind].to(tensor.device)
    for start in range(0, values.numel(), _CHUNK):
        part = values[start : start + _CHUNK]
        if plain is None:
            least, greatest = torch.aminmax(part.abs())
            found.append(bool(least >= limits.smallest_normal and greatest <= limits.max))
        else:
            found.append(plain[len(found)])
        whole, at = part.view(kind), start % (_NOISE - _CHUNK)
        change = some[at : at + part.numel()]
        if not found[-1]:
            size = whole & exponent
            change = change * ((size != 0) & (size != exponent))
        whole ^= change
    return found


class _KernelNoise(TorchDispatchMode):  # type: ignore[misc]  # untyped in torch
    """Adds noise to the results of the operations in a table, by their names in ATen."""

    def __init__(self, table: Mapping[str, Array], noise: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table = {name: torch.from_numpy(sizes) for name, sizes in table.items()}
        self.noise = noise

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch loads its compiler first, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sizes = self.table.get(func.overloadpacket.__name__.strip("_"))
        if sizes is None or not args[0].is_floating_point():
            return func(*args, **(kwargs or {}))
        # Before the call, which may write its result over its argument.
        place = (args[0].double() / NOISE_RANGE + 1) / 2 * NOISE_BINS
        size = sizes.to(place.device)[place.nan_to_num(0).long().clamp(0, NOISE_BINS - 1)]
        out = func(*args, **(kwargs or {}))
        return out.add_((size * out.abs().clamp_min(1)).to(out) * self.noise(out))
