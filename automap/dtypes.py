"""Element types: their names in both frameworks, bfloat16 in NumPy, and casts that say what they lose.

NumPy has no bfloat16. Here such an array has the dtype ``BFLOAT16``, a field of 16 bits with a telling name: it can be
reshaped, transposed, cut and joined like any other array, and nobody computes with it by mistake. The types of 8 bits
are held in the same way, and travel bit for bit: what they stand for is known only with the scales beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
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

#: Floating-point types of 8 bits: the sign's bit, and from which bits on a value (without its sign) is no number.
_FLOAT8 = {
    "float8_e4m3fn": (0x80, 0x7F),
    "float8_e5m2": (0x80, 0x7D),
    "float8_e4m3fnuz": (0, 0x80),
    "float8_e5m2fnuz": (0, 0x80),
    "float8_e8m0fnu": (0, 0xFF),
}

#: The element types that travel, but that nothing is computed with here.
OPAQUE: dict[str, np.dtype[Any]] = {name: np.dtype([(name, "u1")]) for name in _FLOAT8}

#: Every element type that an array can have here.
HELD: dict[str, np.dtype[Any]] = DTYPES | OPAQUE

#: Elements that do not fill a byte, with their bits. No array has them: such tensors are only copied.
PACKED = {"float4_e2m1fn_x2": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}

#: How many elements a cast works on at a time, so that what it needs beside its result stays small.
_CHUNK = 1 << 20

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
        coarse: values that changed by more than one in a hundred, because the new type is coarse so near to zero (its
            subnormal numbers); those of ``underflow`` are among them.
    """

    overflow: int = 0
    underflow: int = 0
    inexact: int = 0
    coarse: int = 0

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.overflow + other.overflow,
            self.underflow + other.underflow,
            self.inexact + other.inexact,
            self.coarse + other.coarse,
        )


def dtype_name(array: Array) -> str:
    """The name of an array's element type as both frameworks write it, such as ``bfloat16``."""
    names = array.dtype.names
    if names is not None and len(names) == 1 and names[0] in HELD:
        return names[0]
    return array.dtype.name


def is_packed(name: str) -> bool:
    """Whether a type of this name has elements that do not fill a byte."""
    return name in PACKED


def size_of(name: str, elements: int) -> int:
    """How many bytes so many elements of a type take."""
    return -(-elements * PACKED[name] // 8) if name in PACKED else elements * HELD[name].itemsize


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
    old = dtype_name(array)
    check_cast(old, dtype)
    if old == dtype:
        return array, Loss()
    if array.size <= _CHUNK:
        return _cast(array, dtype)
    flat = np.ascontiguousarray(array).reshape(-1)
    new = np.empty(flat.size, DTYPES[dtype])
    loss = Loss()
    for at in range(0, flat.size, _CHUNK):
        new[at : at + _CHUNK], lost = _cast(flat[at : at + _CHUNK], dtype)
        loss += lost
    return new.reshape(array.shape), loss


def check_cast(old: str, new: str) -> None:
    """Raise a TransformError where there is no type of the new name, or no way to it from the old one."""
    if old == new:
        return
    if new not in DTYPES and new not in OPAQUE:
        raise TransformError(f"no element type {new!r}; there are {', '.join(DTYPES)}")
    if old not in DTYPES or new not in DTYPES or (old.startswith("complex") and not new.startswith("complex")):
        raise TransformError(f"no way from {old} to {new}")


def _cast(array: Array, dtype: str) -> tuple[Array, Loss]:
    values = widen(array)
    with np.errstate(all="ignore"):
        new = _to_bfloat16(values) if dtype == "bfloat16" else values.astype(DTYPES[dtype])
        return new, _loss(values, new, dtype)


def is_exact(old: str, new: str) -> bool:
    """Whether a cast from one type to the other keeps every value."""
    if old == "bfloat16":
        return new in ("bfloat16", "float32", "float64")
    return new != "bfloat16" and np.can_cast(DTYPES[old], DTYPES[new])


#: For floating-point types of 2 and 4 bytes, the bits of infinity: what is above them, without its sign, is no number.
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}


def nans(array: Array) -> int:
    """How many elements are not a number."""
    name = dtype_name(array)
    if name in _FLOAT8:
        sign, least = _FLOAT8[name]
        bits = array.view(np.uint8)
        return int(np.count_nonzero((bits & ~np.uint8(sign)) >= least if sign else bits == least))
    if name in _INFINITY and array.flags.c_contiguous and array.dtype.isnative:
        # The greatest bits tell whether there is one at all: no array is made, and whole numbers are compared quickly.
        bits = array.reshape(-1).view(f"u{array.dtype.itemsize}")
        least, sign = _INFINITY[name], 1 << (8 * array.dtype.itemsize - 1)
        if not bits.size or (bits.view(f"i{array.dtype.itemsize}").max() <= least and bits.max() <= least + sign):
            return 0
    if array.dtype.kind not in "fc" and name != "bfloat16":
        return 0
    return sum(int(np.count_nonzero(np.isnan(widen(part)))) for part in _parts(array))


def is_zero(array: Array) -> bool:
    """Whether all elements are zero (of either sign)."""
    return nonzeros(array) == 0


def nonzeros(array: Array) -> int:
    """How many elements are not zero (of either sign)."""
    name = dtype_name(array)
    if name in _FLOAT8:
        # The exponent alone has no zero.
        return array.size if name == "float8_e8m0fnu" else int(np.count_nonzero(_magnitude(array, name)))
    return sum(int(np.count_nonzero(widen(part))) for part in _parts(array))


def _magnitude(array: Array, name: str) -> Array:
    return array.view(np.uint8) & ~np.uint8(_FLOAT8[name][0])


def _parts(array: Array) -> Iterator[Array]:
    """An array in parts of bounded size."""
    if array.size <= _CHUNK:
        yield array
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    for at in range(0, flat.size, _CHUNK):
        yield flat[at : at + _CHUNK]


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


#: The least number of a type that has all its digits.
_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}

#: By how much of itself a value may change in a cast and still count as rounded: no type rounds by more above _NORMAL.
_COARSE = 0.01


def _coarse(old: Array, wide: Array, dtype: str) -> int:
    if old.dtype.kind != "f" or dtype not in _NORMAL:
        return 0
    small = (np.abs(old) < _NORMAL[dtype]) & (old != 0)
    if not small.any():
        return 0
    before, after = old[small].astype(np.float64), wide[small].astype(np.float64)
    return int(np.count_nonzero(np.abs(after - before) > _COARSE * np.abs(before)))


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
            coarse=_coarse(old, wide, dtype),
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
