"""Element types: bfloat16 in NumPy, casts and what they lose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap.dtypes import BFLOAT16, Array, Loss, cast, is_exact, is_same, nans, parse_dtype, widen
from automap.errors import TransformError


def same(a: Array, b: Array) -> bool:
    """The slow, obvious twin of ``is_same``."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(st.integers(0, 2**16 - 1))
def test_bfloat16_is_exact_in_float32(bits: int) -> None:
    x = np.array([bits], "<u2").view(BFLOAT16)
    wide = widen(x)
    assert wide.view(np.uint32)[0] == bits << 16
    back, loss = cast(wide, "bfloat16")
    assert loss.overflow == loss.underflow == 0
    if np.isnan(wide[0]):
        assert np.isnan(widen(back)[0])
    else:
        assert same(back, x)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_nearest(value: float) -> None:
    """Against the slow, obvious twin: of the two neighbours the nearer one, of two equally near the even one."""
    x = np.array([value], np.float32)
    down = int(x.view(np.uint32)[0]) >> 16
    near = np.array([down, down + 1], "<u2")
    exact = widen(near.view(BFLOAT16)).astype(np.float64)
    exact[np.isinf(exact)] = np.copysign(2.0**128, value)  # where the next step of the grid would be
    gap = np.abs(exact - float(x[0]))
    best = near[0] if gap[0] < gap[1] or (gap[0] == gap[1] and near[0] % 2 == 0) else near[1]
    assert cast(x, "bfloat16")[0].view("<u2")[0] == best


def test_a_single_value() -> None:
    one = cast(np.array(1.5, np.float32), "bfloat16")[0]
    assert one.shape == widen(one).shape == ()
    assert float(widen(one)) == 1.5


def test_losses_are_counted() -> None:
    _, loss = cast(np.array([1e6, -1e6, np.inf, 1e-9, 0.0, 1.0, np.nan], np.float32), "float16")
    assert (loss.overflow, loss.underflow, loss.inexact) == (2, 1, 0)
    _, loss = cast(np.array([3.4e38, 1e-45], np.float32), "bfloat16")
    assert (loss.overflow, loss.underflow) == (1, 1)
    _, loss = cast(np.array([300, -1, 5]), "uint8")
    assert loss.overflow == 2
    _, loss = cast(np.array([2**63], np.uint64), "int64")
    assert loss.overflow == 1
    _, loss = cast(np.array([1.5, 2.0, 300.0, np.nan, -128.9]), "int8")
    assert (loss.overflow, loss.inexact) == (2, 2)
    _, loss = cast(np.array([0, 1, 2]), "bool")
    assert loss.inexact == 1
    _, loss = cast(np.array([2**24 + 1]), "float32")
    assert (loss.overflow, loss.inexact) == (0, 1)
    same_type = np.ones(3, np.float32)
    assert cast(same_type, "float32")[0] is same_type


def test_what_is_no_loss() -> None:
    for values, dtype in (
        (np.array([2**63 - 1], np.uint64), "int64"),  # which a float64 cannot tell from 2**63
        (np.array([-128, 127]), "int8"),
        (np.array([-128.0, 127.0]), "int8"),
        (np.array([True, False]), "int8"),
        (np.array([True, False]), "bfloat16"),
        (np.array([1 + 2j], np.complex64), "complex128"),
    ):
        assert cast(values, dtype)[1] == Loss()


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001])
def test_nan_stays_nan(bits: int) -> None:
    """Rounding its bits alone would make it infinite, or zero."""
    new, loss = cast(np.array([bits], np.uint32).view(np.float32), "bfloat16")
    assert np.isnan(widen(new)[0])
    assert loss == Loss()
    assert nans(new) == 1


def test_casts_that_there_are_not() -> None:
    for values, dtype, message in (
        (np.ones(2, np.complex64), "float32", "no way from complex64 to float32"),
        (np.array(["a"]), "float32", "no way from str32 to float32"),
        (np.ones(2), "float8", "no element type 'float8'; there are float16, bfloat16"),
    ):
        with pytest.raises(TransformError) as e:
            cast(values, dtype)
        assert str(e.value).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "exact"),
    [
        ("bfloat16", "float32", True),
        ("bfloat16", "float16", False),
        ("float32", "bfloat16", False),
        ("int8", "bfloat16", False),
        ("float16", "float32", True),
        ("float32", "float16", False),
    ],
)
def test_exact_casts(old: str, new: str, exact: bool) -> None:
    assert is_exact(old, new) is exact


def test_sameness_is_of_bits() -> None:
    nan, zero = np.array([np.nan], np.float32), np.zeros(1, np.float32)
    assert is_same(nan, nan.copy())
    assert is_same(np.zeros((2, 3)).T, np.zeros((3, 2)))
    assert not is_same(zero, -zero)
    assert not is_same(zero, np.zeros(1, np.int32))
    assert not is_same(zero, np.zeros((1, 1), np.float32))
    assert is_same(np.float32(1).reshape(()), np.ones((), np.float32))


def test_names_of_dtypes() -> None:
    given_as = ("bf16", "bfloat16", BFLOAT16, np.float16, np.dtype("int8"), "fp32", "bool")
    assert [parse_dtype(d) for d in given_as] == ["bfloat16"] * 3 + ["float16", "int8", "float32", "bool"]
    with pytest.raises(TransformError, match="no element type 'half-ish'"):
        parse_dtype("half-ish")
