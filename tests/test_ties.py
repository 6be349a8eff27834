"""Tied weights of either side, and parameters that one side alone has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import automap
from automap.errors import ConversionError
from automap.graph import Listing, Param
from automap.inference import match
from automap.mapping import Entry, Mapping, Unmatched
from automap.torch_edge import listing_of


def network(tied: bool) -> nn.Sequential:
    """An embedding, a layer, and a head of the embedding's shape."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.emb, model.fc, model.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10)
    if tied:
        model.head.weight = model.emb.weight
    return model


def port(tied: bool) -> Listing:
    head = () if tied else (Param("head.weight", (10, 4), "float32"),)
    return Listing(
        "mindspore",
        (
            Param("emb.embedding_table", (10, 4), "float32", aliases=("head.weight",) if tied else ()),
            Param("fc.weight", (4, 4), "float32"),
            Param("fc.bias", (4,), "float32"),
            *head,
            Param("head.bias", (10,), "float32"),
        ),
    )


def arrays(listing: Listing) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {p.name: rng.normal(size=p.shape).astype(np.float32) for p in listing}


def state(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.detach().numpy().copy() for name, t in model.state_dict().items()}


def unmatched(mapping: Mapping, name: str) -> Unmatched:
    (found,) = (u for u in (*mapping.unmatched_torch, *mapping.unmatched_mindspore) if u.name == name)
    return found


@pytest.mark.parametrize("ours", [True, False], ids=["tied", "apart"])
@pytest.mark.parametrize("theirs", [True, False], ids=["tied in the port", "apart in the port"])
def test_all_names_come_out_in_both_directions(ours: bool, theirs: bool, tmp_path: Path) -> None:
    model, there = network(ours), port(theirs)
    mapping = match(listing_of(model), there)
    assert not mapping.needs_review
    mapping.write(tmp_path / "mapping.json")
    assert Mapping.read(tmp_path / "mapping.json") == mapping
    given = state(model)
    if theirs and not ours:
        with pytest.raises(ConversionError, match=r"other values: head\.weight"):
            automap.apply(mapping, given, framework="numpy")
        given["head.weight"] = given["emb.weight"].copy()  # as a checkpoint of a tied network has them
    made = automap.apply(mapping, given, framework="numpy", target=there)
    assert list(made) == [p.name for p in there]
    back = automap.apply(mapping, made, framework="numpy", reverse=True, target=model)
    assert back.keys() == given.keys()
    assert all(np.array_equal(back[n], a) for n, a in given.items())


@pytest.mark.parametrize("theirs", [True, False], ids=["tied in the port", "apart in the port"])
@pytest.mark.parametrize("gone", ["head.weight", "emb.weight"])
def test_a_checkpoint_that_has_one_name_of_a_tied_weight(theirs: bool, gone: str, tmp_path: Path) -> None:
    mapping = match(listing_of(network(True)), port(theirs))
    given = state(network(True))
    full = automap.apply(mapping, dict(given), framework="numpy")
    del given[gone]
    short = automap.apply(mapping, given, framework="numpy")
    assert short.keys() == full.keys()
    assert all(np.array_equal(short[n], a) for n, a in full.items())
    torch.save({n: torch.from_numpy(a) for n, a in given.items()}, tmp_path / "short.pth")
    automap.convert(mapping, tmp_path / "short.pth", tmp_path / "out.safetensors")


def test_what_is_tied_in_pytorch_has_to_be_equal_on_the_way_back() -> None:
    """Trained apart in the port, it is no longer one weight."""
    mapping, there = match(listing_of(network(True)), port(False)), arrays(port(False))
    entries = {e.mindspore[0]: e.tied for e in mapping.entries if e.tied}
    assert entries == {"emb.embedding_table": ("head.weight",), "head.weight": ("emb.weight",)}
    with pytest.raises(ConversionError, match=r"other values: head\.weight \(of emb\.embedding_table\)"):
        automap.apply(mapping, there, framework="numpy", reverse=True)
    with pytest.raises(ConversionError, match="other values"):
        automap.load(mapping, there, network(True))


def test_the_place_of_a_head_without_a_bias() -> None:
    """Words tell that it is the same place, or that there is but one."""
    for name in ("head", "output_layer"):
        model = nn.Sequential()
        model.emb, model.fc, model.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10, bias=False)
        there = port(True)
        table = Param("emb.embedding_table", (10, 4), "float32", aliases=(f"{name}.weight",))
        mapping = match(listing_of(model), Listing("mindspore", (table, *there.parameters[1:-1])))
        assert unmatched(mapping, "head.weight").alias_of == "emb.weight"


def test_two_heads_of_one_shape_are_not_guessed() -> None:
    model = nn.Sequential()
    model.emb, model.fc = nn.Embedding(10, 4), nn.Linear(4, 4)
    model.one, model.two = nn.Linear(4, 10, bias=False), nn.Linear(4, 10, bias=False)
    there = port(True)
    table = Param("emb.embedding_table", (10, 4), "float32", aliases=("head.weight",))
    mapping = match(listing_of(model), Listing("mindspore", (table, *there.parameters[1:-1])))
    assert mapping.needs_review
    assert not any(u.alias_of for u in mapping.unmatched_torch)


def norm_port(*more: Param) -> Listing:
    rows = (
        Param("fc.weight", (4, 3), "float32"),
        Param("fc.bias", (4,), "float32"),
        Param("norm.moving_mean", (4,), "float32"),
        Param("norm.moving_variance", (4,), "float32"),
        Param("norm.gamma", (4,), "float32"),
        Param("norm.beta", (4,), "float32"),
    )
    return Listing("mindspore", (*rows, *more))


def test_a_norm_that_has_weights_in_mindspore_alone() -> None:
    """MindSpore's norms have them even where they are not trained."""
    model = nn.Sequential()
    model.fc, model.norm = nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)
    mapping = match(listing_of(model), norm_port())
    assert not mapping.needs_review
    assert {u.name: u.why for u in mapping.unmatched_mindspore} == dict.fromkeys(
        ("norm.gamma", "norm.beta"), "PyTorch's norm has none: it stays what MindSpore sets"
    )
    model.norm = nn.BatchNorm1d(4)
    assert not match(listing_of(model), norm_port()).unmatched_mindspore


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (Param("moment1.fc.weight", (4, 3), "float32"), "the state of an optimizer"),
        (Param("causal_mask", (8, 8), "float32", kind="buffer"), "a table or mask that PyTorch computes"),
        (Param("position_ids", (1, 8), "int32"), "a table or mask that PyTorch computes"),
        (Param("extra.scale", (7,), "float32"), "no PyTorch parameter has its shape [7]"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_what_mindspore_alone_has_is_left_and_said(extra: Param, words: str) -> None:
    model: Any = nn.Sequential()
    model.fc, model.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
    there = norm_port(extra)
    mapping = match(listing_of(model), there)
    item = unmatched(mapping, extra.name)
    assert words in item.why
    assert item.review == (extra.name == "extra.scale")
    report = automap.ConversionReport()
    made = automap.apply(mapping, model.state_dict(), framework="numpy", target=there, report=report)
    assert extra.name not in made
    assert all(isinstance(e, Entry) for e in mapping.entries)


def test_buffers_that_mindspore_computes() -> None:
    model: Any = nn.Sequential()
    model.fc = nn.Linear(3, 4)
    model.register_buffer("mask", torch.ones(5, 5))
    model.register_buffer("ids", torch.arange(5))
    mapping = match(listing_of(model), Listing("mindspore", norm_port().parameters[:2]))
    assert not mapping.needs_review
    assert {u.name for u in mapping.unmatched_torch} == {"mask", "ids"}
    made = automap.apply(mapping, model.state_dict(), framework="numpy")
    assert list(made) == ["fc.weight", "fc.bias"]
