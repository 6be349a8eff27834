"""Low-rank adaptations merged into their weights, against modules that are built as the usual package builds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from automap.conversion import ConversionReport, apply, convert
from automap.dtypes import Array
from automap.errors import ConversionError, MappingError
from automap.graph import Listing, Param
from automap.inference import infer
from automap.lora import Merge, pairs, plain
from automap.sources import open_source
from automap.transforms import to_text
from automap.validation import validate


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors(prefix: str = "") -> dict[str, Array]:
    """A dense layer with an adapter of rank 2, one without, and their biases."""
    found = {
        "a.base_layer.weight": numbers(3, 4),
        "a.base_layer.bias": numbers(3),
        "a.lora_A.default.weight": numbers(2, 4, seed=1),
        "a.lora_B.default.weight": numbers(3, 2, seed=2),
        "b.weight": numbers(2, 3, seed=3),
    }
    return {prefix + name: array for name, array in found.items()}


PLAIN = {"a.weight": "a.w", "a.bias": "a.b", "b.weight": "b.w"}


def merged(state: dict[str, Array], alpha: float = 6, at: str = "a.") -> Array:
    a, b = state[f"{at}lora_A.default.weight"], state[f"{at}lora_B.default.weight"]
    return state[f"{at}base_layer.weight"] + alpha / 2 * b @ a


def to_numpy(mapping: Any, state: Any, **options: Any) -> dict[str, Array]:
    out: dict[str, Array] = apply(mapping, state, framework="numpy", **options)
    return out


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_merged_on_request(prefix: str) -> None:
    state, report = tensors(prefix), ConversionReport()
    out = to_numpy(PLAIN, state, merge_lora=6, report=report)
    assert list(out) == ["a.w", "a.b", "b.w"]
    np.testing.assert_allclose(out["a.w"], merged(tensors()), rtol=1e-6)
    np.testing.assert_array_equal(out["b.w"], state[f"{prefix}b.weight"])
    assert report.merged == [f"{prefix}a.weight"]
    assert "LoRA merged into 1 weight(s)" in str(report)
    assert not report.left_out


def test_not_without_the_request() -> None:
    with pytest.raises(ConversionError) as e:
        to_numpy(PLAIN, tensors())
    assert (
        "2 of LoRA: a.lora_A.default.weight, a.lora_B.default.weight "
        "(merge_lora=ALPHA (--merge-lora alpha=ALPHA) merges it into the weight beside it)"
    ) in str(e.value)


def test_a_mapping_may_have_the_adapted_networks_names() -> None:
    names = {n.replace("a.", "a.base_layer.") if n[0] == "a" else n: m for n, m in PLAIN.items()}
    out = to_numpy(names, tensors("model."), merge_lora=6)
    np.testing.assert_allclose(out["a.w"], merged(tensors()), rtol=1e-6)


def test_alpha_counts() -> None:
    state = tensors()
    np.testing.assert_allclose(
        to_numpy(PLAIN, state, merge_lora="alpha=1")["a.w"], merged(state, alpha=1), rtol=1e-6, atol=1e-7
    )
    rooted = to_numpy(PLAIN, state, merge_lora={"alpha": 1, "rooted": True})["a.w"]
    np.testing.assert_allclose(rooted, merged(state, alpha=2**0.5), rtol=1e-6, atol=1e-7)


def test_one_of_several_adapters() -> None:
    state = tensors()
    state |= {n.replace("default", "other"): 2 * a for n, a in state.items() if "lora" in n}
    with pytest.raises(
        ConversionError, match="has several LoRA adapters: say which to merge, adapter=default or adapter"
    ):
        to_numpy(PLAIN, state, merge_lora=6)
    report = ConversionReport()
    out = to_numpy(PLAIN, state, merge_lora="alpha=6,adapter=default", report=report)
    np.testing.assert_allclose(out["a.w"], merged(state), rtol=1e-6)
    assert report.left_out == {f"a.lora_{x}.other.weight": "of a LoRA adapter that is not merged" for x in "AB"}
    with pytest.raises(ConversionError, match="no LoRA pair to merge: its adapters are default, other"):
        to_numpy(PLAIN, state, merge_lora="alpha=6,adapter=third")


@pytest.mark.parametrize(
    ("names", "transposed"),
    [
        (["a.weight", "a.lora_A.weight", "a.lora_B.weight"], False),
        (["a.weight", "a.lora_A", "a.lora_B"], False),
        (["a.weight", "a.lora_down.weight", "a.lora_up.weight"], False),
        (["x.a.base_layer.weight", "x.a.lora_embedding_A.default", "x.a.lora_embedding_B.default"], True),
    ],
)
def test_what_pairs_are_called(names: list[str], transposed: bool) -> None:
    (pair,) = pairs([*names, "lora.weight", "explora_A.weight"])
    assert [pair.base, pair.a, pair.b] == names
    assert pair.transposed is transposed


def test_half_a_pair_is_none() -> None:
    assert pairs(["a.weight", "a.lora_A.weight"]) == []
    assert pairs(["a.lora_B.weight", "a.lora_A.weight"]) == []
    assert plain("m.a.base_layer.bias") == "m.a.bias"
    assert plain("base_layer.bias") == "bias"
    assert plain("my_base_layer.bias") == "my_base_layer.bias"
    assert plain("a.base_layer.bias", ["a.bias"]) == "a.base_layer.bias"


def test_what_cannot_be_merged() -> None:
    plain = {"a.weight": numbers(3, 4), "a.bias": numbers(3), "b.weight": numbers(2, 3)}
    with pytest.raises(ConversionError, match="no LoRA pair to merge: it has no lora_A and lora_B beside a weight"):
        to_numpy(PLAIN, plain, merge_lora=6)
    with pytest.raises(ConversionError, match=r"a\.lora_magnitude_vector.*: only plain LoRA pairs can be merged"):
        to_numpy(PLAIN, tensors() | {"a.lora_magnitude_vector.default.weight": numbers(3)}, merge_lora=6)
    with pytest.raises(
        ConversionError, match=r"a\.base_layer\.weight and its LoRA pair cannot be merged \(lora\(alpha=6"
    ):
        to_numpy(PLAIN, tensors() | {"a.lora_B.default.weight": numbers(4, 2)}, merge_lora=6)
    whole = tensors() | {"a.base_layer.weight": np.ones((3, 4), np.int8)}
    with pytest.raises(ConversionError, match=r"a\.base_layer\.weight .* cannot be merged \(they are int8, float32\)"):
        to_numpy(PLAIN, whole, merge_lora=6)
    made = to_numpy(PLAIN, tensors(), merge_lora=6)
    with pytest.raises(ConversionError, match="LoRA is merged on the way from PyTorch, not back"):
        to_numpy(PLAIN, made, merge_lora=6, reverse=True)


@pytest.mark.parametrize(
    "value", ["16", "alpha", "alpha=x", "alpha=1,rank=2", {"rank": 2}, True, "alpha=1,rooted=yes", []]
)
def test_wishes_that_are_none(value: object) -> None:
    with pytest.raises(ConversionError, match="merge_lora is not understood: "):
        Merge.of(value)


def test_from_file_to_file(tmp_path: Path) -> None:
    state = tensors("model.")
    save_file(state, tmp_path / "t.safetensors", {"format": "pt"})
    report = convert(
        PLAIN, tmp_path / "t.safetensors", tmp_path / "m.safetensors", merge_lora="alpha=6", dtype="float16"
    )
    assert report.conversion.merged == ["model.a.weight"]
    held = open_source(tmp_path / "m.safetensors", "mindspore").read()
    np.testing.assert_allclose(held["a.w"], merged(tensors()), rtol=2e-3)


# In a mapping. -------------------------------------------------------------------------------------------------------


def torch_listing(prefix: str = "") -> Listing:
    found = [Param(n, a.shape, "float32") for n, a in tensors(prefix).items()]
    return Listing("torch", (*found, Param(f"{prefix}norm.weight", (9,), "float32")))


PORT = Listing(
    "mindspore",
    (
        Param("a.weight", (3, 4), "float32"),
        Param("a.bias", (3,), "float32"),
        Param("b.weight", (2, 3), "float32"),
        Param("norm.gamma", (9,), "float32"),
    ),
)


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_a_mapping_that_merges(prefix: str) -> None:
    mapping = infer(torch_listing(prefix), PORT, merge_lora=6)
    names = [prefix + n for n in ("a.base_layer.weight", "a.lora_A.default.weight", "a.lora_B.default.weight")]
    entry = next(e for e in mapping.entries if e.mindspore == ("a.weight",))
    assert entry.torch == tuple(names)
    assert to_text(entry.transform) == "lora(alpha=6.0)"
    assert {e.torch: e.mindspore for e in mapping.entries if e is not entry} == {
        (f"{prefix}a.base_layer.bias",): ("a.bias",),
        (f"{prefix}b.weight",): ("b.weight",),
        (f"{prefix}norm.weight",): ("norm.gamma",),
    }
    assert not mapping.needs_review
    assert not mapping.unmatched_torch
    out = to_numpy(mapping, tensors(prefix) | {f"{prefix}norm.weight": numbers(9)})
    np.testing.assert_allclose(out["a.weight"], merged(tensors()), rtol=1e-6)
    with pytest.raises(MappingError, match=r"lora has no inverse: a merged weight does not tell its parts\)$"):
        to_numpy(mapping, out, reverse=True)


def test_a_mapping_that_does_not_merge_says_how() -> None:
    mapping = infer(torch_listing(), PORT)
    reasons = {u.name: u.why for u in mapping.unmatched_torch}
    assert reasons == {f"a.lora_{x}.default.weight": "of LoRA, which --merge-lora alpha=… merges" for x in "AB"}
    assert mapping.needs_review
    rows = [replace(p, shape=(5, 2)) if "lora_B" in p.name else p for p in torch_listing()]
    with pytest.raises(ConversionError, match=r"a\.base_layer\.weight and its LoRA pair cannot be merged"):
        infer(Listing("torch", tuple(rows)), PORT, merge_lora=6)
    with pytest.raises(ConversionError, match="no LoRA pair to merge"):
        infer(replace(PORT, framework="torch"), PORT, merge_lora=6)


@pytest.mark.frameworks
def test_a_merging_mapping_is_proven() -> None:
    """The adapted network runs beside a port that has plain weights."""
    import mindspore as ms
    import torch
    from torch import nn

    import automap.mindspore_edge  # noqa: F401  # before MindSpore

    class Adapted(nn.Module):
        def __init__(self, inputs: int, outputs: int, rank: int, alpha: float) -> None:
            super().__init__()
            self.base_layer, self.scale = nn.Linear(inputs, outputs), alpha / rank
            self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})

        def forward(self, x: Any) -> Any:
            return self.base_layer(x) + self.scale * self.lora_B["default"](self.lora_A["default"](x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Adapted(6, 8, 2, 4.0), Adapted(8, 5, 2, 4.0)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Any) -> Any:
            return self.last(self.norm(torch.relu(self.first(x))))

    class Port(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = ms.nn.Dense(6, 8), ms.nn.Dense(8, 5)
            self.ln = ms.nn.LayerNorm((8,), epsilon=1e-5)

        def construct(self, x: Any) -> Any:
            return self.fc2(self.ln(ms.ops.relu(self.fc1(x))))

    mapping = infer(Net(), Port(), inputs=["float32[3,6]"], merge_lora=4)
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert len(mapping) == 6
    assert all(e.evidence["proven"] == "forward" for e in mapping.entries)
    assert validate(mapping, Net(), Port(), inputs=["float32[3,6]"]).passed
    wrong = infer(Net(), Port(), inputs=["float32[3,6]"], merge_lora=8)
    assert wrong.proof is not None
    assert wrong.proof.status != "proven"


# Against modules. ----------------------------------------------------------------------------------------------------


@pytest.mark.frameworks
def test_modules_with_adapters() -> None:
    """Dense, convolution and embedding, whose forward adds the adapter, do the same once it is merged."""
    import torch
    from torch import nn

    class Adapted(nn.Module):
        def __init__(self, base: nn.Module, a: nn.Module, b: nn.Module, scale: float) -> None:
            super().__init__()
            self.base_layer, self.scale = base, scale
            self.lora_A, self.lora_B = nn.ModuleDict({"default": a}), nn.ModuleDict({"default": b})

        def forward(self, x: Any) -> Any:
            return self.base_layer(x) + self.scale * self.lora_B["default"](self.lora_A["default"](x))

    class AdaptedTable(nn.Module):
        def __init__(self, base: nn.Embedding, rank: int, scale: float) -> None:
            super().__init__()
            self.base_layer, self.scale = base, scale
            a, b = torch.randn(rank, base.num_embeddings), torch.randn(base.embedding_dim, rank)
            self.lora_embedding_A = nn.ParameterDict({"default": nn.Parameter(a)})
            self.lora_embedding_B = nn.ParameterDict({"default": nn.Parameter(b)})

        def forward(self, x: Any) -> Any:
            after = nn.functional.embedding(x, self.lora_embedding_A["default"].T)
            return self.base_layer(x) + self.scale * after @ self.lora_embedding_B["default"].T

    torch.manual_seed(0)
    rank, alpha = 2, 5.0

    def plain() -> nn.ModuleDict:
        return nn.ModuleDict({"table": nn.Embedding(7, 4), "dense": nn.Linear(4, 6), "conv": nn.Conv2d(3, 5, 3)})

    base = plain()
    net = nn.ModuleDict(
        {
            "table": AdaptedTable(base["table"], rank, alpha / rank),
            "dense": Adapted(
                base["dense"], nn.Linear(4, rank, bias=False), nn.Linear(rank, 6, bias=False), alpha / rank
            ),
            "conv": Adapted(
                base["conv"], nn.Conv2d(3, rank, 3, bias=False), nn.Conv2d(rank, 5, 1, bias=False), alpha / rank
            ),
        }
    )
    other = plain()
    names = {n: n for n in other.state_dict()}
    other.load_state_dict(apply(names, net, framework="torch", merge_lora=alpha))
    inputs = {"table": torch.tensor([[1, 6]]), "dense": torch.randn(2, 4), "conv": torch.randn(1, 3, 5, 5)}
    for name, x in inputs.items():
        torch.testing.assert_close(other[name](x), net[name](x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(base[name](x), net[name](x), rtol=1e-2, atol=1e-2)
