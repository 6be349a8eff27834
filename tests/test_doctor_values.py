"""What the doctor knows of settings, and what it makes of values: without a framework."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from automap.activations import Activations, may_be
from automap.dtypes import Array
from automap.experiments import ACTIVATIONS, explain
from automap.findings import Finding, effect, places
from automap.operations import layer_of
from automap.recording import distance, fit
from automap.settings import Layer, changes, differences, effective_padding, kind_by_name, show

RNG = np.random.default_rng(0)


def conv(padding: object, kernel: tuple[int, ...] = (3, 3), stride: tuple[int, ...] = (1, 1)) -> Layer:
    return Layer("conv", {"kernel": kernel, "stride": stride, "dilation": (1, 1), "padding": padding})


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "stride", "pads"),
    [(8, 1, (1, 1)), (8, 2, (0, 1)), (7, 2, (1, 1)), (9, 3, (0, 0)), (3, 5, (0, 0))],
)
def test_same_padding_in_numbers(side, stride, pads):
    assert effective_padding(conv("same", stride=(stride,) * 2), (2, 3, side, side)) == (pads, pads)


def test_padding_differs_only_where_it_comes_to_something_else():
    torch = conv(((1, 1), (1, 1)))
    assert differences(torch, conv("same"), (2, 3, 8, 8)) == []
    strided = conv(((1, 1), (1, 1)), stride=(2, 2))
    (found,) = differences(strided, conv("same", stride=(2, 2)), (2, 3, 8, 8))
    assert (found.setting, found.torch, found.mindspore) == ("padding", ((1, 1), (1, 1)), "same")
    assert (show("padding", found.torch), show("padding", found.mindspore)) == ("1", "same")


def test_settings_of_each_sort():
    def causes(torch: Layer, mindspore: Layer) -> list[tuple[str, bool]]:
        return [(d.cause, d.training) for d in differences(torch, mindspore)]

    norm = Layer("batch_norm", {"eps": 1e-5, "momentum": 0.1})
    assert causes(norm, Layer("batch_norm", {"eps": 1e-5, "momentum": 0.1 + 1e-9})) == []
    assert causes(norm, Layer("batch_norm", {"eps": 1e-3, "momentum": 0.9})) == [("eps", False), ("momentum", True)]
    # What one side does not tell is not compared, and a class of neither framework may tell its epsilon.
    assert causes(norm, Layer("", {"eps": 1e-6}, own=False)) == [("eps", False)]
    assert causes(Layer("relu"), Layer("gelu", {"approximate": "tanh"})) == [("activation", False)]
    assert causes(Layer("relu"), Layer("max_pool")) == []
    assert causes(Layer("relu6"), Layer("hard_tanh", {"low": 0.0, "high": 6.0})) == []
    assert causes(Layer("dropout", {"p": 0.1}), Layer("dropout", {"p": 0.9})) == [("dropout", True)]


def test_what_a_pool_counts_is_changed_together_with_its_padding():
    pool = {"kernel": (3, 3), "stride": (1, 1)}
    torch = Layer("avg_pool", {**pool, "padding": ((1, 1), (1, 1)), "count_include_pad": True})
    found = differences(torch, Layer("avg_pool", {**pool, "padding": "same", "count_include_pad": False}), (1, 1, 8, 8))
    assert [d.setting for d in found] == ["count_include_pad"]
    assert changes(found, torch) == {"padding": ((1, 1), (1, 1)), "count_include_pad": True}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("RootMeanSquareNorm", "norm"), ("LlamaRMSNorm", "rms_norm"), ("QuickGELU", "quick_gelu"), ("Swish", "silu")],
)
def test_kinds_by_name(name, kind):
    assert kind_by_name(name) == kind


def test_functions_have_their_own_defaults():
    assert layer_of("torch", "leaky_relu", (0,), {}).settings == {"alpha": 0.01}
    assert layer_of("mindspore", "leaky_relu", (0,), {}).settings == {"alpha": 0.2}
    assert layer_of("torch", "softmax", (0, 1), {}).settings == {"axis": 1}
    assert layer_of("torch", "avg_pool2d", (0, 3), {}).settings["stride"] == (3, 3)
    assert layer_of("mindspore", "avg_pool2d", (0, 3), {}).settings["stride"] == (1, 1)
    assert layer_of("mindspore", "dropout", (0, 0.5), {"training": False}).settings["training"] is False


# -- values in other layouts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.transpose(0, 2, 3, 1),
        lambda a: a.transpose(1, 0, 2, 3),
        lambda a: a.reshape(2, 3, 20),
        lambda a: a.reshape(6, 4, 5),
        lambda a: a.transpose(0, 2, 3, 1).reshape(2, 20, 3),
        lambda a: a[:, :, None],
    ],
)
def test_a_value_is_known_in_another_layout(change):
    a = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    found = fit(a, change(a))
    assert found is not None
    assert np.array_equal(found[0], change(a))
    assert found[1] == 0


def test_exchanged_axes_of_one_length_are_another_value():
    a = RNG.standard_normal((2, 4, 4)).astype(np.float32)
    found = fit(a, a.swapaxes(1, 2))
    assert found is not None
    assert found[1] > 0.1
    assert fit(a, a.swapaxes(1, 2), any_order=True)[1] == 0  # type: ignore[index]
    assert fit(a, a[:1]) is None


def test_a_distance_is_relative_and_no_number_is_far():
    a = np.array([1.0, -4.0], np.float32)
    assert distance(a, a + np.float32(0.4)) == pytest.approx(0.1)
    assert distance(a, np.array([1.0, np.nan], np.float32)) == float("inf")
    assert distance(a, a[None]) == float("inf")


def test_values_are_kept_once_and_known_by_their_statistics():
    a = RNG.standard_normal((5, 7)).astype(np.float32)
    with Activations() as store:
        kept, again, other = store.keep(a), store.keep(a.copy()), store.keep(a.T)
        assert kept == again != other
        assert may_be(kept, other)
        assert not may_be(kept, store.keep(2 * a))
        assert np.array_equal(store.read(other), a.T)


# -- experiments -------------------------------------------------------------------------------------------------------


U = RNG.standard_normal((4, 6, 10))
V = RNG.standard_normal((4, 6, 10))


WIDE = 4 * U  # so that even a bound of six shows


@given(st.sampled_from(ACTIVATIONS), st.booleans())
def test_a_missing_activation_is_found(activation, extra):
    layer, function = activation
    expected, natural = (WIDE, function(WIDE)) if extra else (function(WIDE), WIDE)
    found = explain(expected.astype(np.float32), natural.astype(np.float32))
    assert found is not None
    told = found.mindspore if extra else found.torch
    assert told is not None
    assert (found.cause, told) == ("activation", layer)


def _gelu(form: str) -> Array:
    return next(f for layer, f in ACTIVATIONS if layer == Layer("gelu", {"approximate": form}))(U)


GELU, TANH = _gelu("none"), _gelu("tanh")
DROPPED = np.where(RNG.random(U.shape) < 0.3, 0, U / 0.7)


@pytest.mark.parametrize(
    ("expected", "natural", "cause", "words"),
    [
        (GELU, TANH, "gelu", "gelu (tanh) here, gelu (exact) in PyTorch"),
        (V + GELU, V + TANH, "gelu", "gelu (tanh) here, gelu (exact) in PyTorch"),
        (V + np.maximum(U, 0), V + U, "activation", "relu is missing here"),
        (special.softmax(U, -1), special.softmax(U, 1), "axis", "softmax over axis 1 here, softmax over axis 2 in"),
        (V * special.expit(U), V * U, "activation", "sigmoid is missing here"),
        (U * np.maximum(V, 0), np.maximum(U, 0) * V, "order", "relu acts on the other factor here"),
        (U + V, U, "residual", "a sum is missing here"),
        (U, U + V, "residual", "an earlier value is added here"),
        (U, U / 3, "scale", "a factor of 3 is missing here"),
        (U + RNG.standard_normal((6, 1)), U, "bias", "a number for each channel (axis 1) is not added here"),
        (U, DROPPED, "dropout", "a dropout acts in inference here: 0.3 of the values are gone"),
        (V + U, V + DROPPED, "dropout", "a dropout acts in inference here: 0.3 of the values are gone"),
        (U, np.concatenate((U[:, 2:], U[:, :2]), 1), "order", "what is joined along axis 1 is in another order"),
        (U[:, :, ::-1].copy(), U, "axis", "what lies along axis 2 is in another order here"),
        (U[:, :, :6], U[:, :, :6].swapaxes(1, 2), "axis", "axes are exchanged"),
    ],
)
def test_what_lies_between_two_values(expected, natural, cause, words):
    values = [U.astype(np.float32), V.astype(np.float32)]
    found = explain(expected.astype(np.float32), natural.astype(np.float32), values)
    assert found is not None
    assert (found.cause, words in found.words) == (cause, True), found


@pytest.mark.parametrize("other", [V, U**3, U @ RNG.standard_normal((10, 10))])
def test_what_nothing_explains_is_not_explained(other):
    assert explain(U.astype(np.float32), other.astype(np.float32), [RNG.standard_normal(U.shape)]) is None
    assert explain(U.astype(np.float32), np.full(U.shape, np.nan, np.float32)) is None


# -- words -------------------------------------------------------------------------------------------------------------


def test_findings_in_words():
    assert places(["a.b"]) == "a.b"
    assert places(["", "c"]) == "the network and c"
    assert places(["a", "b", "c"]) == "a and 2 more"
    assert effect(6.2e-4, 2.2e-4) == ": 6.2e-04 -> 2.2e-04"
    assert effect(float("inf"), 1e-7) == ": another form -> 1.0e-07"
    assert effect(None, None) == ""
    assert str(Finding("setting", "eps", ("a",), ("b",), words="as it is")) == "as it is"
