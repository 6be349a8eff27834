"""What is done with arrays whose shapes differ from the target's, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from automap import transforms
from automap.errors import ConversionError
from automap.fitting import Fitter, MisfitError, Wishes


def fit(shape: tuple[int, ...], goal: tuple[int, ...], name: str = "a.weight", **wishes: object) -> tuple[str, str]:
    """The steps that are found, which lead to the goal, and what is said of them."""
    found = Fitter(Wishes.of(**wishes)).fit(shape, goal, [name])
    assert transforms.shape_after(found.steps, [shape]) == (goal,)
    return transforms.to_text(found.steps), found.said


def misfit(shape: tuple[int, ...], goal: tuple[int, ...], name: str = "a.weight", **wishes: object) -> str:
    with pytest.raises(MisfitError) as e:
        Fitter(Wishes.of(**wishes)).fit(shape, goal, [name])
    return str(e.value)


def test_the_same_numbers_in_another_form() -> None:
    assert fit((8, 3, 5), (8, 3, 1, 5)) == ("reshape(shape=[8, 3, 1, 5], before=[8, 3, 5])", "")
    assert fit((1, 8), (8,)) == ("reshape(shape=[8], before=[1, 8])", "")
    assert fit((8, 1, 4, 4), (8, 16)) == ("reshape(shape=[8, 16], before=[8, 1, 4, 4])", "8x1x4x4 laid out as 8x16")
    assert fit((8, 16), (8, 1, 4, 4))[1] == "8x16 laid out as 8x1x4x4"
    assert fit((1,), (8,)) == ("expand(axis=0, size=8)", "one value repeated 8 times")
    assert fit((8,), (1,)) == ("collapse(axis=0, size=8)", "8 equal values as one")
    assert fit((1,), (1, 8, 1))[0] == "expand(axis=0, size=8) | reshape(shape=[1, 8, 1], before=[8])"
    assert fit((1, 8, 1), (1,))[0] == "reshape(shape=[8], before=[1, 8, 1]) | collapse(axis=0, size=8)"


def is_refused(shape: tuple[int, ...], goal: tuple[int, ...], name: str = "a.weight", **wishes: object) -> bool:
    """Whether it is another length that nobody allowed to change."""
    with pytest.raises(MisfitError) as e:
        Fitter(Wishes.of(**wishes)).fit(shape, goal, [name])
    assert str(e.value) == ""
    return e.value.length


def test_other_lengths_are_refused() -> None:
    assert is_refused((50, 8), (64, 8))
    assert is_refused((64, 8), (50, 8))
    assert is_refused((1, 8, 14, 14), (1, 8, 24, 24))
    for name in ("pos_embed", "model.embed_positions.weight", "positional_embedding", "x.relative_position_bias_table"):
        assert is_refused((1, 197, 8), (1, 577, 8), name, pad_vocab=0, cut_vocab=True)
    assert not is_refused((3,), (4,))


def test_resize_alone_is_for_tables_of_positions() -> None:
    for name in ("embed.weight", "post_norm.weight", "composer.weight"):
        assert is_refused((50, 8), (64, 8), name, resize=True)
    assert fit((50, 8), (64, 8), "place.weight", resize=["place.*"])[0] == (
        'resize(axis=0, grid=[50], to=[64], mode="linear")'
    )


def test_how_a_table_is_read() -> None:
    assert fit((1, 197, 8), (1, 577, 8), "pos_embed", resize=True) == (
        'resize(axis=1, grid=[14, 14], to=[24, 24], mode="cubic", prefix=1)',
        "interpolated from 1 + 14x14 to 1 + 24x24 (cubic)",
    )
    assert fit((512, 8), (1024, 8), "positions", resize=True)[1] == "interpolated from 512 to 1024 (linear)"
    assert fit((1, 8, 14, 14), (1, 8, 24, 20), "pos_embed", resize=True) == (
        'flatten(axis=2, count=2, before=[14, 14]) | resize(axis=2, grid=[14, 14], to=[24, 20], mode="cubic")'
        " | unflatten(axis=2, sizes=[24, 20])",
        "interpolated from 14x14 to 24x20 (cubic)",
    )
    assert misfit((256, 8), (1024, 8), "pos", resize=True) == (
        "256 positions become 1024, which can be read as 16x16:32x32 or 256:1024: say which, with resize PATTERN=…"
    )
    # A grid behind two tokens, or a sequence behind two positions of another kind.
    assert "2+32x32:64x64 or 2+1024:4096" in misfit((1026, 8), (4098, 8), "pos", resize=True)
    assert fit((1026, 8), (4098, 8), "pos", resize="pos=2+1024:4096") == (
        'resize(axis=0, grid=[1024], to=[4096], mode="linear", prefix=2)',
        "interpolated from 2 + 1024 to 2 + 4096 (linear)",
    )
    assert fit((13, 8), (25, 8), "pos", resize="p*=1+4x3:6x4,linear")[0] == (
        'resize(axis=0, grid=[4, 3], to=[6, 4], mode="linear", prefix=1)'
    )
    assert misfit((13, 8), (25, 8), "pos", resize="pos=4x3:6x4") == (
        "13 positions become 25, which is not what 4x3:6x4 says"
    )


def test_a_few_positions_more_are_no_other_length() -> None:
    offset = (
        "2 more may be an offset, positions in front of the others: "
        "the entry then needs slice(axis=0, start=2, stop=2050)"
    )
    assert misfit((2050, 8), (2048, 8), "pos") == offset
    assert misfit((2050, 8), (2048, 8), "pos", resize=True) == (
        f"{offset}; to interpolate all the same: resize PATTERN=2050:2048"
    )
    assert misfit((2048, 8), (2050, 8), "pos") == "2 more may be an offset, positions in front of the others"
    assert fit((2050, 8), (2048, 8), "pos", resize="pos=2050:2048")[1] == "interpolated from 2050 to 2048 (linear)"
    assert fit((2050, 8), (2060, 8), "pos", resize=True)[1] == "interpolated from 2050 to 2060 (linear)"
    assert misfit((2050, 8), (2048, 8), "table") == ""


def test_a_vocabulary() -> None:
    assert fit((50, 8), (64, 8), pad_vocab=0) == (
        "pad(axis=0, size=64, value=0.0, before=50)",
        "axis 0 filled up with 0 from 50 to 64",
    )
    assert fit((64, 8), (50, 8), cut_vocab=True) == (
        "slice(axis=0, start=0, stop=50)",
        "axis 0 cut from 64 to 50, the rest lost",
    )
    assert fit((8, 50), (8, 64), "head.bias", pad_vocab={"emb*": 0, "head.*": -1e9})[1] == (
        "axis 1 filled up with -1e+09 from 50 to 64"
    )
    assert is_refused((64, 8), (50, 8), pad_vocab=0)


def test_one_vocabulary_at_a_time() -> None:
    fitter = Fitter(Wishes.of(pad_vocab=0))
    fitter.fit((50, 8), (64, 8), ["embed"])
    fitter.fit((50,), (64,), ["head.bias"])
    with pytest.raises(MisfitError, match="axis 0 has 10 and needs 12, but in embed it is 50 and 64: which is the voc"):
        fitter.fit((10, 8), (12, 8), ["classes"])


@pytest.mark.parametrize(
    ("shape", "goal", "advice"),
    [
        ((8, 4), (4, 8), "the entry needs transpose(axes=[1, 0])"),
        ((8, 3, 7, 7), (8, 7, 7, 3), "the entry needs a transpose"),
        ((8, 4), (2, 16), "the entry needs a reshape"),
        ((8, 4), (8, 5, 2), ""),
        ((8, 4), (9, 5), ""),
        ((0, 4), (9, 4), ""),
        (
            (8, 3, 2, 2),
            (8, 12),
            "the entry needs reshape(shape=[8, 12]) if channels come first in the dense weight, or "
            "transpose(axes=[0, 2, 3, 1]) | reshape(shape=[8, 12]) if last",
        ),
        (
            (8, 12),
            (8, 3, 2, 2),
            "the entry needs reshape(shape=[8, 3, 2, 2]) if channels come first in the dense weight, or "
            "reshape(shape=[8, 2, 2, 3]) | transpose(axes=[0, 3, 1, 2]) if last",
        ),
    ],
)
def test_what_needs_a_transform(shape: tuple[int, ...], goal: tuple[int, ...], advice: str) -> None:
    assert misfit(shape, goal) == advice


def test_the_advice_is_right() -> None:
    kernel = np.arange(96).reshape(8, 3, 2, 2)
    dense = kernel.transpose(0, 2, 3, 1).reshape(8, 12)
    last = misfit((8, 3, 2, 2), (8, 12)).partition(", or ")[2].removesuffix(" if last")
    back = misfit((8, 12), (8, 3, 2, 2)).partition(", or ")[2].removesuffix(" if last")
    assert np.array_equal(transforms.apply(transforms.from_text(last), [kernel])[0], dense)
    assert np.array_equal(transforms.apply(transforms.from_text(back), [dense])[0], kernel)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"resize": "pos=14:3x3"}, "resize: pos=14:3x3: both grids need as many sizes"),
        (
            {"resize": ["pos=big"]},
            "resize: pos=big is not understood: write it like pos=1+14x14:24x24, the positions in front, "
            "the grid there is, and the grid that is wanted",
        ),
        ({"resize": 3}, "resize must be true, or patterns of names, not 3"),
        ({"cut_vocab": [1]}, "cut_vocab must be true, or patterns of names, not [1]"),
        ({"pad_vocab": "0"}, "pad_vocab must be a number, or patterns of names with one each, not '0'"),
        ({"pad_vocab": True}, "pad_vocab must be a number, or patterns of names with one each, not True"),
    ],
)
def test_wishes_that_are_none(wishes: dict[str, object], message: str) -> None:
    with pytest.raises(ConversionError) as e:
        Wishes.of(**wishes)
    assert str(e.value) == message
