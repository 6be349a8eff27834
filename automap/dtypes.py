"""Element types: their names in both frameworks, bfloat16 in NumPy, and casts that say what they lose.

NumPy has no bfloat16. Here such an array has the dtype ``BFLOAT16``, a field of 16 bits with a telling name: it can be
reshaped, transposed, cut and joined like any other array, and nobody computes with it by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from automap.errors import TransformError

Array = npt.NDArray[Any]

#: How an array of bfloat16 is held in NumPy.
BFLOAT16: np.dtype[Any] = np.dtype([("bfloat16", "<u2")])

#: The element types that a parameter can have here, by the names that both frameworks use.
DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("float16"),
    "bfloat16": BFLOAT16,
    "float32": np.dtype("float32"),
    "float64": np.dtype("float64"),
    "int8": np.dtype("int8"),
    "int16": np.dtype("int16"),
    "int32": np.dtype("int32"),
    "int64": np.dtype("int64"),
    "uint8": np.dtype("uint8"),
    "uint16": np.dtype("uint16"),
    "uint32": np.dtype("uint32"),
    "uint64": np.dtype("uint64"),
    "bool": np.dtype("bool"),
    "complex64": np.dtype("complex64"),
    "complex128": np.dtype("complex128"),
}

_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Loss:
    """What a cast changed beyond rounding, as numbers of elements.

    Attributes:
        overflow: finite values that the new type cannot reach (inf in a float, out of range in an integer).
        underflow: values that were not zero and became zero.
        inexact: values that a whole-number type could not hold as they were (a fraction cut off), or whole numbers
            that a float could not.
    """

    overflow: int = 0
    underflow: int = 0
    inexact: int = 0


def dtype_name(array: Array) -> str:
    """The name of an array's element type as both frameworks write it, such as ``bfloat16``."""
    if array.dtype.names == BFLOAT16.names:
        return "bfloat16"
    return array.dtype.name


def parse_dtype(value: object) -> str:
    """The name of an element type, given as a name, a short name (``bf16``), or a dtype of NumPy or either framework.

    Raises:
        TransformError: there is no such type.
    """
    try:
        name = dtype_name(np.empty(0, value))  # type: ignore[call-overload]
    except TypeError:
        # torch.float16 and mindspore.float16 print as "torch.float16" and "Float16".
        name = str(value).rpartition(".")[2].lower()
    name = _SHORT.get(name, name)
    if name not in DTYPES:
        raise TransformError(f"no element type {value!r}; there are {', '.join(DTYPES)}")
    return name


def is_float(name: str) -> bool:
    """Whether a type of this name holds real floating-point numbers."""
    return name in _FLOATS


def cast(array: Array, dtype: str) -> tuple[Array, Loss]:
    """An array in another element type, rounded to the nearest value, and what was lost on the way.

    The array itself comes back when it already has this type.

    Raises:
        TransformError: there is no such type, or no way from the one to the other (complex to real).
    """
    if dtype not in DTYPES:
        raise TransformError(f"no element type {dtype!r}; there are {', '.join(DTYPES)}")
    old = dtype_name(array)
    if old == dtype:
        return array, Loss()
    if old not in DTYPES or (old.startswith("complex") and not dtype.startswith("complex")):
        raise TransformError(f"no way from {old} to {dtype}")
    values = widen(array)
    with np.errstate(all="ignore"):
        new = _to_bfloat16(values) if dtype == "bfloat16" else values.astype(DTYPES[dtype])
        return new, _loss(values, new, dtype)


def is_exact(old: str, new: str) -> bool:
    """Whether a cast from one type to the other keeps every value."""
    if old == "bfloat16":
        return new in ("bfloat16", "float32", "float64")
    return new != "bfloat16" and np.can_cast(DTYPES[old], DTYPES[new])


def nans(array: Array) -> int:
    """How many elements are not a number."""
    if array.dtype.kind not in "fc" and dtype_name(array) != "bfloat16":
        return 0
    return int(np.count_nonzero(np.isnan(widen(array))))


def is_zero(array: Array) -> bool:
    """Whether all elements are zero (of either sign)."""
    return not widen(array).any()


def is_same(a: Array, b: Array) -> bool:
    """Whether two arrays have one type and shape and the same bits, NaN and signed zeros included."""
    if a.shape != b.shape or dtype_name(a) != dtype_name(b):
        return False
    ours, theirs = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return np.array_equal(ours, theirs)


def widen(array: Array) -> Array:
    """An array that NumPy can compute with: bfloat16 becomes float32, exactly; any other array comes back as it is."""
    if dtype_name(array) != "bfloat16":
        return array
    bits = np.asarray(array["bfloat16"]).astype(np.uint32)
    np.left_shift(bits, np.uint32(16), out=bits)
    return bits.view(np.float32)


def _to_bfloat16(values: Array) -> Array:
    """The nearest bfloat16 values, ties to even. A float64 goes by way of float32, as PyTorch and MindSpore do it."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nan = np.isnan(bits.view(np.float32))
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype("<u2")
    rounded[nan] = 0x7FC0
    return rounded.view(BFLOAT16).reshape(values.shape)


def _loss(old: Array, new: Array, dtype: str) -> Loss:
    """Count what a cast lost. ``old`` and ``new`` hold the same elements; ``new`` has the type called ``dtype``."""
    wide = widen(new)
    if wide.dtype.kind in "fc":
        infinite = ~np.isfinite(wide)
        # A whole number that a float rounds is no longer the index or count that it was.
        changed = (wide.astype(old.dtype) != old) & ~infinite if old.dtype.kind in "iu" else np.False_
        return Loss(
            overflow=int(np.count_nonzero(infinite & np.isfinite(old))),
            underflow=int(np.count_nonzero((old != 0) & (wide == 0))),
            inexact=int(np.count_nonzero(changed)),
        )
    if wide.dtype.kind == "b":
        return Loss(inexact=int(np.count_nonzero((old != 0) & (old != 1))))
    if old.dtype.kind == "b":
        return Loss()
    if old.dtype.kind in "iu":
        # There and back again: exact where a comparison of two integer types would round.
        changed = (new.astype(old.dtype) != old) | ((old < 0) != (new < 0))
        return Loss(overflow=int(np.count_nonzero(changed)))
    limits = np.iinfo(new.dtype)
    # The upper limit as a power of two: 2**63 - 1 is no float64.
    inside = (old > limits.min - 1.0) & (old < 2.0 ** (limits.bits - (limits.min < 0)))
    return Loss(overflow=int(np.count_nonzero(~inside)), inexact=int(np.count_nonzero(inside & (np.trunc(old) != old))))
