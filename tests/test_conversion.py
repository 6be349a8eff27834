from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap import transforms
from automap.conversion import ConversionReport, apply, convert, load
from automap.dtypes import BFLOAT16, Array, cast, is_same, widen
from automap.errors import AutomapError, ConversionError, MappingError
from automap.graph import Listing, Param
from automap.mapping import Entry, Mapping, Side, Unmatched
from automap.sources import open_source

SIDE = Side("", 1, "")


def array(*shape: int, dtype: str = "float32", start: int = 1) -> Array:
    return cast(np.arange(start, start + int(np.prod(shape))).reshape(shape), dtype)[0]


def entry(torch: str, mindspore: str, chain: str = "") -> Entry:
    return Entry(tuple(torch.split()), tuple(mindspore.split()), transforms.from_text(chain))


def mapping(*entries: Entry, torch: tuple[Unmatched, ...] = (), mindspore: tuple[Unmatched, ...] = ()) -> Mapping:
    return Mapping(SIDE, SIDE, entries, torch, mindspore)


NORM = mapping(
    entry("bn.weight", "bn.gamma"),
    entry("bn.bias", "bn.beta"),
    torch=(Unmatched("bn.num_batches_tracked", "no counterpart in MindSpore"),),
)


def norm(dtype: str = "float32") -> dict[str, Array]:
    return {"bn.weight": array(3, dtype=dtype), "bn.bias": array(3, start=10), "bn.num_batches_tracked": np.array(7)}


def to_numpy(mapping: Any, tensors: Any, **options: Any) -> dict[str, Array]:
    out: dict[str, Array] = apply(mapping, tensors, framework="numpy", **options)
    return out


def offence(call: Callable[[], object]) -> str:
    """The message of the ConversionError that a call raises."""
    with pytest.raises(ConversionError) as e:
        call()
    assert "\n" not in str(e.value)
    return str(e.value)


# Names. -------------------------------------------------------------------------------------------------------------


def test_renames_in_the_order_of_the_mapping() -> None:
    out = to_numpy(NORM, dict(reversed(norm().items())))
    assert list(out) == ["bn.gamma", "bn.beta"]
    assert out["bn.gamma"].tolist() == [1, 2, 3]
    assert out["bn.beta"].tolist() == [10, 11, 12]


def test_a_report_of_nothing() -> None:
    report = ConversionReport()
    to_numpy({"a": "b"}, {"a": array(1)}, report=report)
    assert str(report) == "nothing but what the mapping says"


def test_mapping_as_file_and_as_dict(tmp_path: Path) -> None:
    for name in ("m.json", "m.csv"):
        NORM.write(tmp_path / name)
        assert list(to_numpy(tmp_path / name, norm())) == ["bn.gamma", "bn.beta"]
        assert list(to_numpy(str(tmp_path / name), norm())) == ["bn.gamma", "bn.beta"]
    assert list(to_numpy({"bn.bias": "x", "bn.weight": None}, norm())) == ["x"]


def test_every_offender_is_named() -> None:
    tensors = norm() | {
        "head.weight": array(2, 2),
        "bn.bias": np.array([1, np.nan, np.nan], np.float32),
        "attn.w": array(5),
        "conv.w": array(3),
    }
    del tensors["bn.weight"]
    m = replace(
        NORM,
        entries=(*NORM.entries, entry("attn.w", "q k", "split(axis=0, sizes=[2, 2])"), entry("fc.w", "fc.w")),
        unmatched_torch=(*NORM.unmatched_torch, Unmatched("conv.w", "the port has no bias", review=True)),
    )
    with pytest.raises(ConversionError) as e:
        to_numpy(m, tensors)
    assert e.value.offenders == (
        "bn.weight: absent from it",
        "fc.w: absent from it",
        "head.weight [2, 2]: in it but not in the mapping",
        "conv.w (the port has no bias): not zero and without a counterpart",
        "bn.bias (2 of 3): with NaN",
        "attn.w (split into [2, 2] along axis 0 does not fit [5]): of a shape that does not fit",
    )
    assert str(e.value) == (
        "the state dict cannot be converted: "
        "2 absent from it: bn.weight, fc.w (is it a checkpoint of this model?); "
        "1 in it but not in the mapping: head.weight [2, 2] "
        '(match each in the mapping, or list it under "unmatched" with the reason); '
        "1 not zero and without a counterpart: conv.w (the port has no bias) "
        '(match each, or remove its "review" from the mapping if it can be dropped); '
        "1 with NaN: bn.bias (2 of 3) (allow_nan=True lets them pass); "
        "1 of a shape that does not fit: attn.w (split into [2, 2] along axis 0 does not fit [5]) "
        "(is it a checkpoint of this model, and the mapping made for it?)"
    )
    assert e.value.exit_code == 2


def test_a_checkpoint_with_more_than_tensors() -> None:
    assert list(to_numpy(NORM, {"epoch": 3, "state_dict": norm()})) == ["bn.gamma", "bn.beta"]
    assert "absent from it: bn.bias" in offence(lambda: to_numpy(NORM, norm() | {"bn.bias": "text"}))


def test_optimizer_states_are_left_out() -> None:
    report = ConversionReport()
    tensors = {"bn.gamma": array(3), "bn.beta": array(3), "moment1.bn.gamma": array(3), "global_step": array(1)}
    assert list(to_numpy(NORM, tensors, reverse=True, report=report)) == ["bn.weight", "bn.bias"]
    assert report.left_out == {n: "the state of an optimizer" for n in ("moment1.bn.gamma", "global_step")}


def test_leftovers_with_a_reason() -> None:
    m = replace(
        NORM,
        unmatched_torch=(
            Unmatched("mask", "computed"),
            Unmatched("zero.bias", "the port has no bias", review=True),
            Unmatched("not.there", "computed"),
        ),
    )
    report = ConversionReport()
    to_numpy(m, norm() | {"mask": array(4), "zero.bias": np.zeros(3)}, report=report)
    assert report.left_out == {
        "bn.num_batches_tracked": "a counter that MindSpore does not keep",
        "mask": "computed",
        "zero.bias": "the port has no bias",
    }


def test_a_zero_bias_of_bfloat16_is_zero_and_minus_zero_too() -> None:
    m = replace(NORM, unmatched_torch=(Unmatched("b", "the port has no bias", review=True),))
    to_numpy(m, norm() | {"b": cast(np.array([0.0, -0.0]), "bfloat16")[0]})
    assert "not zero" in offence(lambda: to_numpy(m, norm() | {"b": cast(np.array([0.0, 1e-30]), "bfloat16")[0]}))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "net.backbone."])
def test_a_prefix_on_every_name(prefix: str) -> None:
    report = ConversionReport()
    out = to_numpy(NORM, {prefix + name: a for name, a in norm().items()}, report=report)
    assert list(out) == ["bn.gamma", "bn.beta"]
    assert report.prefix == (prefix, "")
    assert list(report.left_out) == ["bn.num_batches_tracked"]


def test_a_prefix_that_the_mapping_has() -> None:
    m = mapping(entry("model.a.w", "x"), entry("model.b.w", "y"))
    report = ConversionReport()
    assert list(to_numpy(m, {"a.w": array(1), "b.w": array(1)}, report=report)) == ["x", "y"]
    assert report.prefix == ("", "model.")
    assert "prefix '' read as 'model.'" in str(report)
    assert list(to_numpy(m, {"module.a.w": array(1), "module.b.w": array(1)})) == ["x", "y"]


def test_a_prefix_on_some_names_is_no_prefix() -> None:
    tensors = norm()
    tensors["module.bn.bias"] = tensors.pop("bn.bias")
    message = offence(lambda: to_numpy(NORM, tensors))
    assert "1 absent from it: bn.bias" in message
    assert "1 in it but not in the mapping: module.bn.bias" in message


def test_a_prefix_that_does_not_help_stays() -> None:
    m = mapping(entry("a.a.w", "x"), entry("a.b.w", "y"))
    assert list(to_numpy(m, {"a.a.w": array(1), "a.b.w": array(1)})) == ["x", "y"]


def test_the_other_direction_is_recognised() -> None:
    message = offence(lambda: to_numpy(NORM, {"bn.gamma": array(3), "bn.beta": array(3)}))
    assert message == (
        "the state dict has the names of MindSpore, but the conversion starts from PyTorch: "
        "turn it round (reverse=True, --reverse)"
    )


def test_an_unknown_framework() -> None:
    assert "there is no framework 'jax'" in offence(lambda: apply(NORM, norm(), framework="jax"))


# Tied weights. ------------------------------------------------------------------------------------------------------

TIED = mapping(entry("emb.weight", "emb.table"), torch=(Unmatched("head.weight", "tied", alias_of="emb.weight"),))


def test_a_tied_weight_under_any_of_its_names() -> None:
    for names in (["emb.weight"], ["head.weight"], ["emb.weight", "head.weight"]):
        assert to_numpy(TIED, {n: array(3) for n in names})["emb.table"].tolist() == [1, 2, 3]
    assert "absent from it: emb.weight" in offence(lambda: to_numpy(TIED, {"other": array(3)}))


def test_a_tied_weight_with_other_values_is_not_dropped() -> None:
    message = offence(lambda: to_numpy(TIED, {"emb.weight": array(3), "head.weight": array(3, start=5)}))
    assert "1 another name of a tied weight with other values: head.weight (of emb.weight)" in message


@pytest.mark.frameworks
def test_a_tied_weight_that_the_mapping_does_not_know() -> None:
    import torch

    shared = torch.arange(6.0).reshape(2, 3)
    report = ConversionReport()
    to_numpy({"module.emb.weight": "emb.table"}, {"emb.weight": shared, "head.weight": shared}, report=report)
    assert report.left_out == {"module.head.weight": "another name of module.emb.weight"}
    for other in (shared.clone(), shared.T, shared[:1]):
        tensors = {"emb.weight": shared, "head.weight": other}
        assert "head.weight" in offence(lambda t=tensors: to_numpy({"emb.weight": "x"}, t))  # type: ignore[misc]


def test_a_tied_weight_whose_other_name_is_in_the_metadata(tmp_path: Path) -> None:
    """As safetensors' ``save_model`` writes it: of two names it keeps one, which may not be the mapping's."""
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({"head.weight": array(3)}, path, {"format": "pt", "emb.weight": "head.weight"})
    assert to_numpy({"emb.weight": "x"}, path)["x"].tolist() == [1, 2, 3]


def test_back_to_all_names_of_a_tied_weight() -> None:
    report = ConversionReport()
    out = to_numpy(TIED, {"emb.table": array(3)}, reverse=True, report=report)
    assert list(out) == ["emb.weight", "head.weight"]
    assert out["head.weight"].tolist() == [1, 2, 3]
    assert report.not_made == {}
    # A MindSpore checkpoint has it once.
    once = mapping(entry("a", "x"), mindspore=(Unmatched("y", "tied", alias_of="x"),))
    assert list(to_numpy(once, {"a": array(3)})) == ["x"]
    only = Listing("torch", (Param("emb.weight", (3,)),))
    assert list(to_numpy(TIED, {"emb.table": array(3)}, reverse=True, target=only)) == ["emb.weight"]


# Shapes. ------------------------------------------------------------------------------------------------------------

ATTENTION = mapping(
    entry("attn.in", "attn.q attn.k attn.v", "split(axis=0, sizes=[2, 2, 2])"),
    entry("conv.w", "conv.w", "reshape(shape=[2, 3, 1, 4], before=[2, 3, 4])"),
    entry("dense.w", "dense.w", "transpose(axes=[1, 0])"),
)


def attention() -> dict[str, Array]:
    return {"attn.in": array(6, 3), "conv.w": array(2, 3, 4), "dense.w": array(2, 5)}


def test_transforms_are_carried_out() -> None:
    out = to_numpy(ATTENTION, attention())
    assert {name: a.shape for name, a in out.items()} == {
        "attn.q": (2, 3), "attn.k": (2, 3), "attn.v": (2, 3), "conv.w": (2, 3, 1, 4), "dense.w": (5, 2),
    }  # fmt: skip
    assert out["attn.k"].tolist() == [[7, 8, 9], [10, 11, 12]]
    assert out["dense.w"].tolist() == attention()["dense.w"].T.tolist()


def test_there_and_back_again() -> None:
    there = to_numpy(ATTENTION, attention())
    for back in (to_numpy(ATTENTION, there, reverse=True), to_numpy(ATTENTION.invert(), there)):
        assert list(back) == list(attention())
        assert all(is_same(back[name], a) for name, a in attention().items())
    again = to_numpy(ATTENTION.invert(), attention(), reverse=True)
    assert all(is_same(again[name], a) for name, a in there.items())


def test_back_needs_the_shapes_where_the_mapping_lacks_them() -> None:
    m = mapping(entry("conv.w", "conv.w", "reshape(shape=[2, 3, 1, 4])"))
    there = to_numpy(m, {"conv.w": array(2, 3, 4)})
    with pytest.raises(MappingError, match="give the model or checkpoint to fit as the target"):
        to_numpy(m, there, reverse=True)
    for name in ("conv.w", "net.conv.w"):
        back = to_numpy(m, there, reverse=True, target={name: ((2, 3, 4), None)})
        assert is_same(back[name], array(2, 3, 4))


def test_no_copy_where_nothing_changes() -> None:
    tensors = attention()
    out = to_numpy(ATTENTION, tensors)
    assert np.shares_memory(out["attn.v"], tensors["attn.in"])
    assert np.shares_memory(out["dense.w"], tensors["dense.w"])
    assert np.shares_memory(out["conv.w"], tensors["conv.w"])


# The target. --------------------------------------------------------------------------------------------------------


def listing(*names: str, shape: tuple[int, ...] | None = (3,), dtype: str | None = "float32") -> Listing:
    return Listing("mindspore", tuple(Param(name, shape, dtype) for name in names))


def test_target_names_and_shapes_are_checked_before_anything_is_made() -> None:
    message = offence(lambda: to_numpy(NORM, norm(), target=listing("bn.gamma", shape=(4,))))
    assert "1 not in the target: bn.beta (is it the model that the mapping was made for?)" in message
    assert "1 of a shape that does not fit: bn.weight (becomes [3], but bn.gamma is [4])" in message
    message = offence(
        lambda: to_numpy(
            ATTENTION,
            attention(),
            target={
                **{f"attn.{x}": ((2, 3), None) for x in "qkv"},
                "conv.w": ((2, 3, 4), None),
                "dense.w": (None, None),
            },
        )
    )
    assert "of a shape that does not fit: conv.w (becomes [2, 3, 1, 4], but conv.w is [2, 3, 4])" in message
    assert "attn" not in message


def test_a_rename_takes_on_dimensions_of_size_one() -> None:
    report = ConversionReport()
    target = {"conv.w": ((2, 3, 1, 4), None)}
    out = to_numpy({"conv.w": "conv.w"}, {"conv.w": array(2, 3, 4)}, target=target, report=report)
    assert out["conv.w"].shape == (2, 3, 1, 4)
    assert report.reshaped == ["conv.w"]
    assert str(report) == "1 reshaped by dimensions of size 1"
    # Equal sizes in another order are another matter.
    assert "does not fit" in offence(lambda: to_numpy({"w": "w"}, {"w": array(2, 3)}, target={"w": ((3, 2), None)}))
    assert "does not fit" in offence(lambda: to_numpy({"w": "w"}, {"w": array(6)}, target={"w": ((2, 3), None)}))


def test_one_value_for_many_equal_ones() -> None:
    m, report = {"act.weight": "act.w", "fc.weight": "fc.w"}, ConversionReport()
    target = {"act.w": ((4,), None), "fc.w": ((2, 1, 3, 3), None)}
    out = to_numpy(m, {"act.weight": array(1), "fc.weight": array(2, 9)}, target=target, report=report)
    assert out["act.w"].tolist() == [1, 1, 1, 1]
    assert out["fc.w"].tolist() == array(2, 1, 3, 3).tolist()
    assert str(report) == ("2 fitted to the target: act.w (one value repeated 4 times), fc.w (2x9 laid out as 2x1x3x3)")
    back = {"act.weight": ((1,), None), "fc.weight": ((2, 9), None)}
    again = to_numpy(m, out, target=back, reverse=True)
    assert again["act.weight"].tolist() == [1]
    assert again["fc.weight"].tolist() == array(2, 9).tolist()
    out["act.w"][2] = 5
    message = offence(lambda: to_numpy(m, out, target=back, reverse=True))
    assert "1 with values that do not fit: act.w (collapse of axis 0: its 4 values are not all equal)" in message


VOCABULARY = {"embed.weight": "embed.table", "head.bias": "head.b", "pos": "pos_table"}


def test_another_length_is_an_error_with_the_numbers() -> None:
    tensors = {"embed.weight": array(5, 2), "head.bias": array(5), "pos": array(4, 2)}
    target = {"embed.table": ((8, 2), None), "head.b": ((8,), None), "pos_table": ((6, 2), None)}
    message = offence(lambda: to_numpy(VOCABULARY, tensors, target=target))
    assert (
        "2 of another length: embed.weight (becomes [5, 2], but embed.table is [8, 2]), "
        "pos (becomes [4, 2], but pos_table is [6, 2]) (is it a checkpoint of this model? resize=True (--resize) "
        "interpolates tables of positions; pad_vocab=VALUE (--pad-vocab VALUE) and cut_vocab=True (--cut-vocab) change"
    ) in message
    for wishes, left in (({"resize": True}, "embed.weight"), ({"pad_vocab": 0}, "pos")):
        message = offence(lambda w=wishes: to_numpy(VOCABULARY, tensors, target=target, **w))  # type: ignore[misc]
        assert f"1 of another length: {left} (" in message


def test_another_length_on_request(tmp_path: Path) -> None:
    tensors = {"embed.weight": array(5, 2), "head.bias": array(5), "pos": array(3, 2)}
    target = {"embed.table": ((8, 2), None), "head.b": ((8,), None), "pos_table": ((6, 2), None)}
    report = ConversionReport()
    out = to_numpy(VOCABULARY, tensors, target=target, resize=True, pad_vocab=-1, report=report)
    assert out["embed.table"].tolist() == array(5, 2).tolist() + [[-1, -1]] * 3
    assert out["head.b"].tolist() == [1, 2, 3, 4, 5, -1, -1, -1]
    assert out["pos_table"][:, 0].tolist() == [1, 1.5, 2.5, 3.5, 4.5, 5]
    assert report.fitted == {
        "embed.table": "axis 0 filled up with -1 from 5 to 8",
        "head.b": "axis 0 filled up with -1 from 5 to 8",
        "pos_table": "interpolated from 3 to 6 (linear)",
    }
    # The same from file to file, and back to the shorter vocabulary.
    given = write_safetensors(tmp_path / "a.safetensors", tensors)
    convert(VOCABULARY, given, tmp_path / "b.safetensors", target=target, resize="pos*", pad_vocab=-1)
    assert all(is_same(open_source(tmp_path / "b.safetensors", "mindspore").read()[n], a) for n, a in out.items())
    assert offence(lambda: to_numpy(VOCABULARY, tensors, resize=True)) == (
        "resize, pad_vocab and cut_vocab fit tensors to a target, but there is none: give the model, checkpoint "
        "or listing to fit (target=, --target)"
    )
    shapes = {n: (a.shape, None) for n, a in tensors.items()} | {"pos": ((6, 2), None)}
    assert "1 of another length: embed.table" in offence(lambda: to_numpy(VOCABULARY, out, target=shapes, reverse=True))
    back = to_numpy(VOCABULARY, out, target=shapes, reverse=True, cut_vocab=True)
    assert is_same(back["embed.weight"], tensors["embed.weight"])


def test_what_the_mapping_says_is_carried_out_before() -> None:
    m = mapping(entry("w", "w", "transpose(axes=[1, 0])"), entry("qkv", "q k", "split(axis=0, sizes=[1, 2])"))
    tensors = {"w": array(2, 5), "qkv": array(3, 2)}
    target = {"w": ((8, 2), None), "q": ((1, 2), None), "k": ((2, 2), None)}
    out = to_numpy(m, tensors, target=target, pad_vocab={"w": 0})
    assert out["w"].tolist() == array(2, 5).T.tolist() + [[0, 0]] * 3
    message = offence(lambda: to_numpy(m, tensors, target=target | {"k": ((3, 2), None)}, pad_vocab=0))
    assert "1 of a shape that does not fit: qkv (becomes [2, 2], but k is [3, 2])" in message


def test_target_names_with_a_prefix() -> None:
    report = ConversionReport()
    target = listing("backbone.bn.gamma", "backbone.bn.beta", "backbone.head", dtype="float16")
    out = to_numpy(NORM, norm(), target=target, report=report)
    assert list(out) == ["backbone.bn.gamma", "backbone.bn.beta"]
    assert report.not_made == {"backbone.head": "not in the mapping"}
    assert report.casts["backbone.bn.gamma"] == ("float32", "float16")


def test_what_of_the_target_is_not_made() -> None:
    m = replace(NORM, unmatched_mindspore=(Unmatched("rel.index", "computed"),))
    report = ConversionReport()
    to_numpy(m, norm(), report=report)
    assert report.not_made == {"rel.index": "computed"}
    optimizer = Listing(
        "mindspore", (*listing("bn.gamma", "bn.beta", "rel.index", "new"), Param("m", kind="optimizer"))
    )
    report = ConversionReport()
    to_numpy(m, norm(), target=optimizer, report=report)
    assert report.not_made == {"rel.index": "computed", "new": "not in the mapping"}


def test_target_as_tensors_and_as_a_file(tmp_path: Path) -> None:
    tensors = {"bn.gamma": array(4), "bn.beta": array(3)}
    for target in (tensors, write_safetensors(tmp_path / "ms.safetensors", tensors)):
        message = offence(lambda t=target: to_numpy(NORM, norm(), target=t))  # type: ignore[misc]
        assert "1 of a shape that does not fit: bn.weight (becomes [3], but bn.gamma is [4])" in message


def test_target_of_the_other_side() -> None:
    message = offence(lambda: to_numpy(NORM, norm(), target=Listing("torch", (Param("bn.weight"),))))
    assert message.startswith("the target is PyTorch's, but the conversion leads to MindSpore")


# Dtypes. ------------------------------------------------------------------------------------------------------------


def test_dtype_of_the_target_and_of_the_caller() -> None:
    report = ConversionReport()
    out = to_numpy(NORM, norm(), target=listing("bn.gamma", "bn.beta", dtype="float16"), report=report)
    assert {str(a.dtype) for a in out.values()} == {"float16"}
    assert report.casts == {"bn.gamma": ("float32", "float16"), "bn.beta": ("float32", "float16")}
    assert str(report) == "2 cast float32 -> float16; 1 left out"
    for dtype in ("float64", np.float64, "fp64"):
        out = to_numpy(NORM, norm(), dtype=dtype, target=listing("bn.gamma", "bn.beta", dtype="float16"))
        assert {str(a.dtype) for a in out.values()} == {"float64"}
    assert "no element type 'float9'; there are float16" in offence(lambda: to_numpy(NORM, norm(), dtype="float9"))
    assert "no element type 'x'" in offence(lambda: to_numpy(NORM, norm(), target={"bn.gamma": (None, "x")}))


def test_dtype_is_for_floats_only() -> None:
    out = to_numpy(
        {"i": "i", "f": "f", "b": "b"}, {"i": np.arange(3), "f": array(2), "b": np.ones(2, bool)}, dtype="fp16"
    )
    assert [str(a.dtype) for a in out.values()] == ["int64", "float16", "bool"]


def test_overflow_and_too_much_underflow_are_errors() -> None:
    tensors = norm() | {"bn.weight": np.array([1e6, -1e5, 1e-12], np.float32), "bn.bias": array(3)}
    message = offence(lambda: to_numpy(NORM, tensors, dtype="float16"))
    assert message == (
        "the state dict cannot be converted: 1 out of the range of the new dtype: bn.gamma (2 in float16) "
        "(take a wider one, such as bfloat16; allow_overflow=True lets them pass); "
        "1 too small for the new dtype: bn.gamma (1 of 3 in float16, 1 of them turn to zero) "
        "(take a wider one, such as bfloat16; max_lost=PART (--max-lost) lets a greater part of a tensor's values pass "
        "that turn to zero or change by more than 1 %)"
    )
    message = offence(lambda: to_numpy(NORM, tensors, dtype="float16", allow_overflow=True))
    assert "1 too small for the new dtype: bn.gamma (1 of 3 in float16, 1 of them turn to zero) (take a" in message
    report = ConversionReport()
    out = to_numpy(NORM, tensors, dtype="float16", allow_overflow=True, max_lost=0.5, report=report)
    assert out["bn.gamma"].tolist() == [np.inf, -np.inf, 0]
    assert report.overflow == {"bn.gamma": 2}
    assert report.underflow == {"bn.gamma": 1}
    assert str(report) == (
        "2 cast float32 -> float16; 2 value(s) out of the range of the new dtype: bn.gamma (2); "
        "1 value(s) turned to zero in the new dtype: bn.gamma (1); 1 left out"
    )
    assert to_numpy(NORM, tensors, dtype="bfloat16")["bn.gamma"][0] > 9e5


def test_values_that_the_new_dtype_is_too_coarse_for_are_counted(tmp_path: Path) -> None:
    weights = np.full(1000, 0.1, np.float32)
    weights[:6], weights[6:10] = 1e-9, 1.7e-7  # to zero, and to a multiple of 6e-8
    report = ConversionReport()
    to_numpy({"w": "x"}, {"w": weights}, dtype="float16", report=report)  # ten of a thousand is not more than allowed
    assert (report.underflow, report.coarse) == ({"x": 6}, {"x": 10})
    assert "10 value(s) changed by more than 1 %, or turned to zero, in the new dtype: x (10)" in str(report)
    weights[10] = 1e-9
    message = offence(lambda: to_numpy({"w": "x"}, {"w": weights}, dtype="float16"))
    assert "1 too small for the new dtype: x (11 of 1000 in float16, 7 of them turn to zero)" in message
    assert offence(lambda: to_numpy({"w": "x"}, {"w": weights}, dtype="bfloat16", max_lost=2.0)).startswith("max_lost")
    assert to_numpy({"w": "x"}, {"w": weights}, dtype="bfloat16")["x"][0] > 9.9e-10
    # A file is not written either, though this is only known once the values have been seen.
    given = write_safetensors(tmp_path / "a.safetensors", {"w": weights})
    with pytest.raises(ConversionError, match="too small for the new dtype: x"):
        convert({"w": "x"}, given, tmp_path / "b.safetensors", dtype="float16")
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    done = convert({"w": "x"}, given, tmp_path / "b.safetensors", dtype="float16", max_lost=0.02)
    assert done.conversion.coarse == {"x": 11}


def test_what_is_inf_already_does_not_overflow() -> None:
    tensors = norm() | {"bn.weight": np.array([np.inf, -np.inf, 1], np.float32)}
    assert to_numpy(NORM, tensors, dtype="float16")["bn.gamma"].tolist() == [np.inf, -np.inf, 1]


def test_whole_numbers_stay_exact() -> None:
    for values, dtype, fault in (
        (np.array([2**40]), "int32", "out of the range of the new dtype: x (1 in int32)"),
        (np.array([1.5]), "int32", "not exact in the new dtype: x (1 in int32)"),
        (np.array([2**24 + 1]), "float32", "not exact in the new dtype: x (1 in float32)"),
        (np.array([1j]), "float32", "of a dtype that does not fit: x (no way from complex128 to float32)"),
    ):
        assert fault in offence(lambda v=values, d=dtype: to_numpy({"x": "x"}, {"x": v}, target={"x": (None, d)}))  # type: ignore[misc]
    assert to_numpy({"x": "x"}, {"x": np.array([5])}, target={"x": (None, "int32")})["x"].dtype == np.int32


def test_a_cast_in_the_mapping_is_reported_and_checked() -> None:
    m = mapping(entry("w", "x y", 'split(axis=0, sizes=[1, 2]) | cast(dtype="float16", before="float32")'))
    report = ConversionReport()
    out = to_numpy(m, {"w": np.array([1, 1e-12, 2], np.float32)}, report=report)
    assert [a.tolist() for a in out.values()] == [[1], [0, 2]]
    assert report.casts == {"x": ("float32", "float16"), "y": ("float32", "float16")}
    assert report.underflow == {"x": 1}  # counted for the entry, under its first name
    message = offence(lambda: to_numpy(m, {"w": np.array([1, 1e12, 2], np.float32)}))
    assert "1 of a dtype that does not fit: w (cast to float16 cannot hold 1 value(s))" in message
    message = offence(lambda: to_numpy(m, {"w": np.array([1.0, 2.0, 3.0])}))
    assert "w (cast is from float32, not from float64)" in message


def test_nan_can_be_allowed() -> None:
    tensors = norm() | {"bn.weight": np.array([np.nan, 1, 2], np.float32)}
    assert "1 with NaN: bn.weight (1 of 3)" in offence(lambda: to_numpy(NORM, tensors))
    assert np.isnan(to_numpy(NORM, tensors, allow_nan=True)["bn.gamma"][0])
    tensors["bn.weight"] = cast(tensors["bn.weight"], "bfloat16")[0]
    assert "1 with NaN: bn.weight (1 of 3)" in offence(lambda: to_numpy(NORM, tensors))


def test_bfloat16_comes_as_exact_float32() -> None:
    report = ConversionReport()
    out = to_numpy(NORM, norm("bfloat16"), report=report)
    assert is_same(out["bn.gamma"], array(3))
    assert report.casts == {"bn.gamma": ("bfloat16", "float32")}


def test_a_loss_that_nobody_asked_for_is_not_silent() -> None:
    half = listing("bn.gamma", "bn.beta", dtype="float16")
    with pytest.warns(UserWarning, match="apply: 2 cast float32 -> float16; 1 left out"):
        to_numpy(NORM, norm(), target=half)
    tiny = norm() | {"bn.weight": np.full(3, 1e-12, np.float32)}
    with pytest.warns(UserWarning, match="3 value\\(s\\) turned to zero"):
        to_numpy(NORM, tiny, dtype="float16", max_lost=1.0)
    huge = norm() | {"bn.weight": np.full(3, 1e12, np.float32)}
    with pytest.warns(UserWarning, match="3 value\\(s\\) out of the range"):
        to_numpy(NORM, huge, dtype="float16", allow_overflow=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_numpy(NORM, norm(), dtype="float16")
        to_numpy(NORM, norm("float16"), target=listing("bn.gamma", "bn.beta"))
        to_numpy(NORM, norm("bfloat16"))
        to_numpy(NORM, norm(), target=half, report=ConversionReport())


def test_byte_order_is_no_matter() -> None:
    out = to_numpy(NORM, norm() | {"bn.weight": array(3).astype(">f4")})
    assert is_same(out["bn.gamma"], array(3))


def test_the_state_dict_is_not_touched() -> None:
    tensors = norm()
    to_numpy(NORM, tensors, dtype="float16")
    assert list(tensors) == list(norm())
    assert all(is_same(tensors[name], a) for name, a in norm().items())


NAMES = st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=5, unique=True)


@given(NAMES, st.data())
def test_nothing_is_lost(names: list[str], data: st.DataObject) -> None:
    """Whatever the names are: each tensor arrives, or stands in the report, or is an offender."""
    matched = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    dropped = [n for n in names if n not in matched and data.draw(st.booleans())]
    given_ = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    m = mapping(*(entry(n, f"ms.{n}") for n in matched), torch=tuple(Unmatched(n, "why") for n in dropped))
    tensors = {n: np.full(1, i + 1.0) for i, n in enumerate(given_)}
    report = ConversionReport()
    try:
        out = to_numpy(m, tensors, report=report)
    except ConversionError:
        assert not set(matched) <= set(given_) <= {*matched, *dropped}
        return
    assert len(out) == len(matched)
    kept = [float(a[0]) for a in out.values()]
    assert len(kept) + len(report.left_out) == len(tensors)
    if set(matched) <= set(given_):
        assert kept == [float(tensors[n][0]) for n in matched]


# Real frameworks. ---------------------------------------------------------------------------------------------------


def test_apply_to_numpy_needs_no_framework(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    NORM.write(path)
    code = (
        "import sys\n"
        "for m in ('torch', 'mindspore'): sys.modules[m] = None\n"
        "import numpy as np\n"
        "from automap.conversion import apply\n"
        "out = apply(sys.argv[1], {'bn.weight': np.ones(3), 'bn.bias': np.ones(3)}, framework='numpy')\n"
        "print(*out)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout == "bn.gamma bn.beta\n"
    run = subprocess.run(
        [sys.executable, "-c", code.replace("'numpy'", "'mindspore'"), path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "SourceError: the conversion needs MindSpore, which" in run.stderr


def torch_net() -> Any:
    """Conv1d, BatchNorm, Linear, an embedding tied to a head."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 3, 5)
            self.bn = nn.BatchNorm1d(3)
            self.emb = nn.Embedding(4, 3)
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.emb.weight

    torch.manual_seed(0)
    net = Net()
    for p in net.state_dict().values():
        if p.is_floating_point():
            p.copy_(torch.randn_like(p))
    return net


def ms_net(dtype: str = "float32") -> Any:
    import mindspore as ms
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self, channels: int = 3) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 3, 5, has_bias=True, dtype=getattr(ms, dtype))
            self.norm = nn.BatchNorm1d(channels)
            self.emb = nn.Embedding(4, 3)
            self.extra = nn.Dense(3, 2)

    return Net()


NET = mapping(
    entry("conv.weight", "conv.weight", "reshape(shape=[3, 2, 1, 5], before=[3, 2, 5])"),
    entry("conv.bias", "conv.bias"),
    entry("bn.weight", "norm.gamma"),
    entry("bn.bias", "norm.beta"),
    entry("bn.running_mean", "norm.moving_mean"),
    entry("bn.running_var", "norm.moving_variance"),
    entry("emb.weight", "emb.embedding_table"),
    torch=(
        Unmatched("bn.num_batches_tracked", "no counterpart in MindSpore"),
        Unmatched("head.weight", "tied", alias_of="emb.weight"),
    ),
    mindspore=(Unmatched("extra.weight", "only in the port"), Unmatched("extra.bias", "only in the port")),
)


@pytest.mark.frameworks
def test_parameters_that_mindspore_loads_as_they_are() -> None:
    import mindspore as ms

    source, net = torch_net(), ms_net()
    made = apply(NET, source.state_dict())
    assert all(isinstance(p, ms.Parameter) and p.name == name for name, p in made.items())
    missing, unused = ms.load_param_into_net(net, made)
    assert (sorted(missing), unused) == (["extra.bias", "extra.weight"], [])
    got = {p.name: p.asnumpy() for p in net.get_parameters()}
    assert np.array_equal(got["conv.weight"], source.conv.weight.detach().numpy()[:, :, None])
    assert np.array_equal(got["norm.moving_variance"], source.bn.running_var.numpy())
    assert np.array_equal(got["emb.embedding_table"], source.head.weight.detach().numpy())


@pytest.mark.frameworks
def test_their_memory_is_their_own() -> None:
    """Training in MindSpore must not change the PyTorch model."""
    import mindspore as ms

    source = torch_net()
    made = apply(NET, source.state_dict())
    before = source.conv.bias.detach().numpy().copy()
    made["conv.bias"].set_data(ms.Tensor(np.zeros(3, np.float32)))
    assert np.array_equal(source.conv.bias.detach().numpy(), before)


@pytest.mark.frameworks
def test_load() -> None:
    source, net = torch_net(), ms_net()
    report = load(NET, source.state_dict(), net)
    assert len(report.loaded) == 7
    assert report.left == {"extra.weight": "only in the port", "extra.bias": "only in the port"}
    assert report.casts == {}
    assert str(report) == (
        "loaded 7 of 9 parameters; 2 left out; "
        "left at their initial values: extra.weight (only in the port), extra.bias (only in the port)"
    )
    assert np.array_equal(net.norm.gamma.asnumpy(), source.bn.weight.detach().numpy())


@pytest.mark.frameworks
def test_load_casts_and_says_so() -> None:
    import torch

    source, net = torch_net(), ms_net("float16")
    report = load(NET, source.state_dict(), net)
    assert report.casts == {name: ("float32", "float16") for name in ("conv.weight", "conv.bias")}
    with torch.no_grad():
        source.conv.bias[0] = 1e6
    before = net.conv.bias.asnumpy()
    with pytest.raises(ConversionError, match=r"out of the range of the new dtype: conv\.bias \(1 in float16\)"):
        load(NET, source.state_dict(), net)
    assert np.array_equal(net.conv.bias.asnumpy(), before)
    load(NET, source.state_dict(), net, allow_overflow=True)


@pytest.mark.frameworks
def test_load_into_a_wrapped_network() -> None:
    from mindspore import nn

    class Wrap(nn.Cell):  # type: ignore[misc,unused-ignore]
        def __init__(self, backbone: Any) -> None:
            super().__init__()
            self.backbone = backbone

    net = Wrap(ms_net())
    report = load(NET, torch_net().state_dict(), net)
    assert "backbone.norm.gamma" in report.loaded
    assert list(report.left) == ["backbone.extra.weight", "backbone.extra.bias"]


@pytest.mark.frameworks
def test_load_a_plain_dict_finds_the_shape() -> None:
    source, net = torch_net(), ms_net()
    with pytest.raises(ConversionError, match="has the names of MindSpore, but the conversion starts from PyTorch"):
        apply(NET, {p.name: p for p in net.get_parameters()})
    with pytest.raises(
        ConversionError, match=r"values that do not fit: bn\.weight \(collapse of axis 0: its 3 values are not all eq"
    ):
        apply(NET, source.state_dict(), target=type(net)(1))
    report = load(NET.torch_2_ms, source.state_dict(), net)
    assert report.conversion.reshaped == ["conv.weight"]
    assert report.left["extra.bias"] == "not in the mapping"


@pytest.mark.frameworks
def test_load_what_differs_in_form() -> None:
    """One slope for all channels, another vocabulary, and a table of positions for a larger grid."""
    import mindspore as ms
    import torch

    class Port(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.act = ms.nn.PReLU(channel=4)
            self.embed = ms.nn.Embedding(9, 4)
            self.pos = ms.Parameter(ms.Tensor(np.zeros((1, 10, 4), np.float32)), name="pos")

    net = torch.nn.ParameterDict({"pos": torch.randn(1, 5, 4)})
    state = {"act.weight": torch.tensor([0.3]), "embed.weight": torch.randn(7, 4), "pos": net["pos"]}
    names = {"act.weight": "act.w", "embed.weight": "embed.embedding_table", "pos": "pos"}
    port = Port()
    message = offence(lambda: load(names, state, port))
    assert "2 of another length: embed.weight (becomes [7, 4], but embed.embedding_table is [9, 4]), pos (" in message
    assert not port.pos.asnumpy().any()  # untouched
    report = load(names, state, port, resize=True, pad_vocab=0)
    assert report.conversion.fitted == {
        "act.w": "one value repeated 4 times",
        "embed.embedding_table": "axis 0 filled up with 0 from 7 to 9",
        "pos": "interpolated from 1 + 2x2 to 1 + 3x3 (cubic)",
    }
    grid = net["pos"][:, 1:].reshape(1, 2, 2, 4).movedim(-1, 1)
    wanted = torch.nn.functional.interpolate(grid, size=(3, 3), mode="bicubic").movedim(1, -1).reshape(1, 9, 4)
    np.testing.assert_allclose(port.pos.asnumpy()[:, 1:], wanted.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(port.act.w.asnumpy(), 0.3)
    assert not port.embed.embedding_table.asnumpy()[7:].any()


@pytest.mark.frameworks
def test_a_parameter_that_does_not_arrive_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from automap import mindspore_edge

    real = mindspore_edge.load_state

    def forgetful(model: Any, arrays: dict[str, Array]) -> Any:
        return real(model, {n: a for n, a in arrays.items() if n not in ("norm.gamma", "conv.bias")})

    monkeypatch.setattr(mindspore_edge, "load_state", forgetful)
    with pytest.raises(ConversionError, match=r"2 of 7 parameters did not arrive .*: conv\.bias, norm\.gamma"):
        load(NET, torch_net().state_dict(), ms_net())


@pytest.mark.frameworks
def test_back_into_pytorch() -> None:
    import torch

    source, net = torch_net(), ms_net()
    load(NET, source, net)
    fresh = torch_net()
    with torch.no_grad():
        for p in fresh.state_dict().values():
            p.zero_()
    message = r"not zero and without a counterpart|in it but not in the mapping"
    report = load(NET, {p.name: p for p in net.get_parameters()}, fresh)
    assert str(report) == (
        "loaded 8 of 9 parameters; 2 left out; "
        "left at their initial values: bn.num_batches_tracked (no counterpart in MindSpore)"
    )
    assert "head.weight" in report.loaded
    assert report.left == {"bn.num_batches_tracked": "no counterpart in MindSpore"}
    for name, tensor in source.state_dict().items():
        assert name == "bn.num_batches_tracked" or torch.equal(tensor, fresh.state_dict()[name]), name
    assert fresh.head.weight is fresh.emb.weight
    back = apply(NET, net, reverse=True)
    assert all(isinstance(t, torch.Tensor) for t in back.values())
    fresh.load_state_dict(back)  # strict: a counter that is missing is no error of PyTorch's
    strict = replace(NET, unmatched_mindspore=tuple(replace(u, review=True) for u in NET.unmatched_mindspore))
    with pytest.raises(ConversionError, match=message):
        load(strict, net, fresh)


@pytest.mark.frameworks
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_precision_there_and_back(half: str) -> None:
    import mindspore as ms
    import torch

    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(getattr(torch, half))
    made = apply({"w": "w"}, {"w": values})
    assert made["w"].dtype == getattr(ms, half)
    back = apply({"w": "w"}, made, reverse=True)
    assert back["w"].dtype == values.dtype
    assert torch.equal(back["w"], values)
    wide = to_numpy({"w": "w"}, {"w": values})
    assert np.array_equal(wide["w"].astype(np.float32), values.float().numpy())
    narrow = apply({"w": "w"}, {"w": values.float()}, dtype=getattr(ms, half))
    assert np.array_equal(narrow["w"].astype(ms.float32).asnumpy(), values.float().numpy())
    assert apply({"w": "w"}, {"w": values}, dtype=torch.float32)["w"].dtype == ms.float32


@pytest.mark.frameworks
def test_mindspores_own_numpy_bfloat16() -> None:
    import mindspore as ms

    values = ms.Tensor([1.5, -2.0], ms.bfloat16).asnumpy()
    assert to_numpy({"w": "w"}, {"w": values})["w"].tolist() == [1.5, -2.0]


@pytest.mark.frameworks
def test_torch_ties_are_seen_without_the_mapping() -> None:
    source = torch_net()
    report = ConversionReport()
    known = replace(NET, unmatched_torch=())
    apply(known, source.state_dict(), report=report)
    assert report.left_out["head.weight"] == "another name of emb.weight"


@pytest.mark.frameworks
def test_load_into_something_else() -> None:
    with pytest.raises(ConversionError, match=r"the network is a dict: give a mindspore\.nn\.Cell or a torch"):
        load(NET, {}, {})


# Files. -------------------------------------------------------------------------------------------------------------


@pytest.mark.frameworks
@pytest.mark.parametrize("given_as", ["net.pth", "net.safetensors"])
@pytest.mark.parametrize("written_as", ["net.ckpt", "out.safetensors"])
def test_convert_files_there_and_back(tmp_path: Path, given_as: str, written_as: str) -> None:
    import mindspore as ms
    import torch
    from safetensors.torch import save_file

    state = torch_net().state_dict()
    del state["head.weight"]  # which safetensors refuses to save
    state["conv.bias"] = state["conv.bias"].bfloat16()
    given_, out = tmp_path / given_as, tmp_path / written_as
    if given_as.endswith("pth"):
        torch.save({"state_dict": {f"module.{n}": t for n, t in state.items()}, "epoch": 3}, given_)
    else:
        save_file(state, given_)
    NET.write(tmp_path / "mapping.json")
    before = sorted(p.name for p in tmp_path.iterdir())

    report = convert(tmp_path / "mapping.json", given_, out)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*before, written_as])
    assert (report.tensors, report.bytes, report.needs_review) == (7, out.stat().st_size, False)
    assert str(report).startswith(f"{out}: 7 tensors, ")
    found = ms.load_checkpoint(str(out), format=out.suffix[1:])
    assert found["conv.bias"].dtype == ms.bfloat16
    assert np.array_equal(found["conv.weight"].asnumpy(), state["conv.weight"].numpy()[:, :, None])
    missing, unused = ms.load_param_into_net(ms_net(), found)
    assert (len(missing), unused) == (2, [])

    back = tmp_path / "back.pth"
    convert(NET, out, str(back), reverse=True)
    again = torch.load(back, weights_only=True)
    assert list(again) == [n for n in torch_net().state_dict() if "num_batches" not in n]
    assert all(torch.equal(again[n], t) for n, t in state.items() if "num_batches" not in n)
    assert torch.equal(again["head.weight"], state["emb.weight"])


def write_safetensors(path: Path, tensors: dict[str, Array]) -> Path:
    from safetensors.numpy import save_file

    save_file(tensors, path)
    return path


def test_convert_needs_no_framework_for_safetensors(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "in.safetensors", norm())
    NORM.write(tmp_path / "m.json")
    code = (
        "import sys\n"
        "for m in ('torch', 'mindspore'): sys.modules[m] = None\n"
        "from automap.conversion import convert\n"
        "print(convert(*sys.argv[1:], dtype='bf16').conversion.casts)\n"
    )
    out = tmp_path / "out.safetensors"
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.json", path, out], capture_output=True, text=True, check=True
    )
    assert "'bn.gamma': ('float32', 'bfloat16')" in run.stdout
    held = open_source(out, "mindspore").read()
    assert held["bn.gamma"].dtype == BFLOAT16
    assert is_same(widen(held["bn.gamma"]), array(3))


def test_nothing_is_written_before_all_checks_pass(tmp_path: Path) -> None:
    bad = norm() | {"bn.weight": np.array([np.nan], np.float32), "odd": array(1)}
    path = write_safetensors(tmp_path / "in.safetensors", bad)
    out = tmp_path / "out.safetensors"
    message = offence(lambda: convert(NORM, path, out))
    assert message.startswith(f"{path} cannot be converted: 1 in it but not in the mapping: odd [1]")
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]
    path = write_safetensors(path, {name: a for name, a in bad.items() if name != "odd"})
    message = offence(lambda: convert(NORM, path, out))
    assert "1 with NaN: bn.weight (1 of 1)" in message
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


def test_the_output_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from automap import sources, streaming

    real = streaming.write_file
    path = write_safetensors(tmp_path / "in.safetensors", norm())
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"what was there")

    for change in (
        {"bn.gamma": array(3, start=2)},
        {"bn.gamma": array(3, dtype="float64")},
        {"bn.gamma": array(3, 1)},
        {"more": array(1)},
    ):

        def meddle(job: Any, *rest: Any, c: dict[str, Array] = change) -> Any:
            written = real(job, *rest)
            arrays = sources.open_source(job.path, job.framework).read()
            sources.write_tensors(job.path, arrays | c, job.framework)
            return written

        monkeypatch.setattr(streaming, "write_file", meddle)
        message = offence(lambda: convert(NORM, path, out))
        assert "1 tensor(s) read back are not what was written" in message
        assert next(iter(change)) in message
        assert out.read_bytes() == b"what was there"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in.safetensors", "out.safetensors"]


def test_the_output_is_not_the_input(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "in.safetensors", norm())
    assert "the output is the checkpoint itself" in offence(lambda: convert(NORM, path, tmp_path / "." / path.name))


def test_an_old_output_is_replaced(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "in.safetensors", norm())
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"old")
    convert(NORM, str(path), str(out))
    assert list(open_source(out, "mindspore").read()) == ["bn.gamma", "bn.beta"]
    with pytest.raises(AutomapError, match="there is no file"):
        convert(NORM, tmp_path / "none.safetensors", out)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "in.safetensors", norm())
    for given_, out in (
        (tmp_path / "none.safetensors", tmp_path / "out.safetensors"),
        (path, tmp_path / "none" / "out.safetensors"),
        (path, tmp_path / "out.docx"),
    ):
        with pytest.raises(AutomapError) as e:
            convert(NORM, given_, out)
        assert "\n" not in str(e.value)
        assert e.value.exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]
