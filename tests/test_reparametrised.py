"""Weights that one side keeps as several parameters, and norms that the port has folded into the layer before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations as new
from torch.nn.utils import spectral_norm, weight_norm

import automap
from automap.errors import MappingError
from automap.graph import Listing, Param
from automap.inference import match
from automap.mapping import Entry, Mapping
from automap.torch_edge import listing_of, state_of
from automap.transforms import to_text

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")


def listing(framework: str, text: str) -> Listing:
    """``name shape`` each, with ``;`` between them; a shape of ``-`` has no axis, one of ``?`` is unknown."""
    params = []
    for row in filter(None, (r.strip() for r in text.replace("\n", ";").split(";"))):
        name, shape = row.split()
        sizes = None if shape == "?" else () if shape == "-" else tuple(map(int, shape.split("x")))
        params.append(Param(name, sizes, "float32"))
    return Listing(framework, tuple(params))


def mapped(torch_text: str, mindspore_text: str) -> Mapping:
    return match(listing("torch", torch_text), listing("mindspore", mindspore_text))


def entry(mapping: Mapping, name: str) -> Entry:
    (found,) = mapping.find(name)
    assert isinstance(found, Entry), found
    return found


def names(mapping: Mapping) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {e.torch: e.mindspore for e in mapping.entries}


def network(wrap: Any = lambda layer: layer) -> nn.Sequential:
    """Layers of several kinds, each of them wrapped."""
    torch.manual_seed(0)
    layers = [
        nn.Conv1d(3, 6, 5),
        nn.ConvTranspose1d(6, 8, 3, bias=False),
        nn.Conv2d(3, 6, 3),
        nn.ConvTranspose2d(6, 4, 3),
        nn.Linear(5, 7),
        nn.Linear(7, 7, bias=False),
    ]
    return nn.Sequential(*(wrap(layer) for layer in layers)).eval()


WRAPS = {
    "weight_norm": weight_norm,
    "weight_norm of all": lambda layer: weight_norm(layer, dim=None),
    "weight_norm along the second axis": lambda layer: weight_norm(layer, dim=1),
    "new weight_norm": new.weight_norm,
    "new weight_norm of all": lambda layer: new.weight_norm(layer, dim=None),
    "spectral_norm": spectral_norm,
    "new spectral_norm": new.spectral_norm,
}


def port_of(model: nn.Module) -> Listing:
    """What a MindSpore port of a plain network has."""
    params = []
    for p in listing_of(model):
        shape = p.shape or ()
        # A one-dimensional convolution has an axis more there.
        params.append(Param(p.name, (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape, p.dtype))
    return Listing("mindspore", tuple(params))


def effective(model: nn.Sequential) -> dict[str, np.ndarray]:
    """The weights as PyTorch itself computes them."""
    for layer in model:
        for hook in layer._forward_pre_hooks.values():
            hook(layer, ())
    with torch.no_grad():
        return {
            f"{i}.{leaf}": getattr(layer, leaf).detach().numpy()
            for i, layer in enumerate(model)
            for leaf in ("weight", "bias")
            if getattr(layer, leaf) is not None
        }


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_weights_are_those_that_pytorch_computes(wrap: Any) -> None:
    model, port = network(wrap), port_of(network())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))  # lengths are no longer those of the directions
    mapping = match(listing_of(model), port)
    assert not mapping.needs_review, [e.why for e in mapping.reviewed]
    assert not mapping.unmatched_torch
    assert not mapping.unmatched_mindspore
    made = automap.apply(mapping, state_of(model), framework="numpy", target=port)
    for name, expected in effective(model).items():
        np.testing.assert_allclose(made[name].reshape(expected.shape), expected, rtol=1e-6, atol=1e-7, err_msg=name)


OLD = "a.bias 4; a.weight_g 4x1x1; a.weight_v 4x3x5; b.weight_g 6x1; b.weight_v 6x4"
NEW = """a.bias 4; a.parametrizations.weight.original0 4x1x1; a.parametrizations.weight.original1 4x3x5
b.parametrizations.weight.original0 6x1; b.parametrizations.weight.original1 6x4"""
PLAIN = "a.weight 4x3x1x5; a.bias 4; b.weight 6x4"
KEPT = "a.weight_g 4x1x1x1; a.weight_v 4x3x1x5; a.bias 4; b.weight_g 6x1; b.weight_v 6x4"


@pytest.mark.parametrize("torch_text", [OLD, NEW])
def test_one_weight_for_both_parts(torch_text: str) -> None:
    mapping = mapped(torch_text, PLAIN)
    assert not mapping.needs_review
    e = entry(mapping, "a.weight")
    assert len(e.torch) == 2
    assert to_text(e.transform) == "weight_norm(axis=0) | reshape(shape=[4, 3, 1, 5], before=[4, 3, 5])"
    assert to_text(entry(mapping, "b.weight").transform) == "weight_norm(axis=0)"
    assert names(mapping)["a.bias",] == ("a.bias",)


@pytest.mark.parametrize("torch_text", [OLD, NEW])
@pytest.mark.parametrize(
    "words",
    [
        {},
        {"weight_g": "param_g", "weight_v": "param_v"},
        {"weight_g": "g", "weight_v": "v"},
        {"weight_g": "lengths", "weight_v": "directions"},
    ],
    ids=str,
)
def test_a_port_that_keeps_the_parts(torch_text: str, words: dict[str, str]) -> None:
    kept = KEPT
    for old, word in words.items():
        kept = kept.replace(old, word)
    mapping = mapped(torch_text, kept)
    g, v = words.get("weight_g", "weight_g"), words.get("weight_v", "weight_v")
    parts = [p.name for p in listing("torch", torch_text)]
    assert names(mapping) == {
        ("a.bias",): ("a.bias",),
        (parts[1],): (f"a.{g}",),
        (parts[2],): (f"a.{v}",),
        (parts[3],): (f"b.{g}",),
        (parts[4],): (f"b.{v}",),
    }
    assert not mapping.needs_review


@pytest.mark.parametrize("g", ["4x1x1x1", "4"])
def test_a_port_that_keeps_parts_of_a_plain_weight(g: str) -> None:
    """The lengths are there in the form that the port has."""
    plain = "a.weight 4x3x5; a.bias 4; b.weight 6x4"
    port = listing("mindspore", KEPT.replace("4x1x1x1", g))
    torch_side = listing("torch", plain)
    mapping = match(torch_side, port)
    assert not mapping.needs_review
    assert entry(mapping, "b.weight").mindspore == ("b.weight_g", "b.weight_v")
    rng = np.random.default_rng(0)
    state = {p.name: rng.normal(size=p.shape).astype(np.float32) for p in torch_side}
    made = automap.apply(mapping, state, framework="numpy", target=port)
    assert {n: a.shape for n, a in made.items()} == {p.name: p.shape for p in port}
    back = automap.apply(mapping, made, framework="numpy", target=torch_side, reverse=True)
    for name, array in state.items():
        np.testing.assert_allclose(back[name], array, rtol=1e-6)


def test_the_lengths_of_recurrent_weights() -> None:
    model = weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    mapping = match(listing_of(model), Listing("mindspore", tuple(listing_of(nn.LSTM(3, 4)))))
    assert entry(mapping, "weight_hh_l0").torch == ("weight_hh_l0_g", "weight_hh_l0_v")
    assert not mapping.needs_review


def test_the_rows_of_a_square_transposed_convolution() -> None:
    """Its outputs are the second axis; where nothing says that it is one, that is left open."""
    port = listing("mindspore", "up.weight 4x4x3x3; up.bias 4")
    for wrap in (spectral_norm, new.spectral_norm):
        for layer, axis in ((nn.ConvTranspose2d(4, 4, 3), 1), (nn.Conv2d(4, 4, 3), 0)):
            model = nn.Sequential()
            model.up = wrap(layer)
            mapping = match(listing_of(model), port)
            assert to_text(entry(mapping, "up.weight").transform) == f"spectral_norm(axis={axis})"
            assert not mapping.needs_review
    bare = mapped("up.weight_orig 4x4x3x3; up.weight_u 4; up.weight_v 36; up.bias 4", "up.weight 4x4x3x3; up.bias 4")
    assert "transposed convolution" in entry(bare, "up.weight").why


def test_singular_vectors_that_the_port_keeps_too() -> None:
    old = "a.weight_orig 6x4; a.weight_u 6; a.weight_v 4; b.weight_orig 3x6; b.weight_u 3; b.weight_v 6"
    for port in (old, old.replace("weight_orig", "weight").replace("weight_", "spectral.")):
        mapping = mapped(old, port)
        assert [e.mindspore for e in mapping.entries] == [(p.name,) for p in listing("mindspore", port)]
        assert not any(e.transform for e in mapping.entries)
    # A port that has the first vector alone computes the other one, and divides by itself.
    mapping = mapped(old, "a.weight 6x4; a.u 6; b.weight 3x6; b.u 3")
    assert all(len(e.torch) == 1 and not e.transform for e in mapping.entries)


def test_a_weight_that_is_computed_in_a_way_of_its_own_is_marked() -> None:
    plain = "a.weight 4x4; a.bias 4"
    for parts in (
        "a.parametrizations.weight.original 4x4",
        "a.parametrizations.weight.original 4x4; a.parametrizations.weight.0.base 4x4",
        "a.weight_orig 4x4; a.weight_mask 4x4",
    ):
        mapping = mapped(f"a.bias 4; {parts}", plain)
        e = entry(mapping, "a.weight")
        assert "in a way that automap does not know" in e.why
        assert len(e.torch) == 1
        same = mapped(f"a.bias 4; {parts}", f"a.bias 4; {parts}")
        assert not same.reviewed
    # The port divides by what a plain weight has been divided by already.
    mapping = mapped(plain, "a.bias 4; a.weight_orig 4x4; a.weight_u 4; a.weight_v 4")
    assert "spectral norm" in entry(mapping, "a.weight").why


def test_what_only_looks_like_parts_stays_as_it_is() -> None:
    text = "attn.proj_g 4x4; attn.proj_v 4x4; attn.bias_g 4; attn.bias_v 4; mlp.w_g 4x8; mlp.w_v 8x4"
    mapping = mapped(text, text)
    assert all(e.torch == e.mindspore for e in mapping.entries)
    assert len(mapping) == 6


def test_names_alone_tell_the_parts_but_not_the_axis() -> None:
    mapping = mapped("a.weight_g ?; a.weight_v ?; a.bias ?", "a.weight ?; a.bias ?")
    e = entry(mapping, "a.weight")
    assert e.torch == ("a.weight_g", "a.weight_v")
    assert "no shape tells" in e.why
    kept = mapped("a.weight_g ?; a.weight_v ?; a.bias ?", "a.weight_g ?; a.weight_v ?; a.bias ?")
    assert all(e.torch == e.mindspore for e in kept.entries)
    assert len(kept) == 3


def test_a_bias_more_in_the_port_is_no_length() -> None:
    """As many vectors as PyTorch has lengths, but they are biases."""
    mapping = mapped(
        "a.weight_g 4x1; a.weight_v 4x3; b.weight_g 5x1; b.weight_v 5x4",
        "a.weight 4x3; a.bias 4; b.weight 5x4; b.bias 5",
    )
    assert entry(mapping, "a.weight").torch == ("a.weight_g", "a.weight_v")
    assert {u.name for u in mapping.unmatched_mindspore if u.review} == {"a.bias", "b.bias"}


def test_some_of_the_weights_are_kept_as_parts() -> None:
    torch_text = "; ".join(f"l.{i}.weight_g 4x1; l.{i}.weight_v 4x4" for i in range(3))
    mapping = mapped(torch_text, "l.0.weight 4x4; l.1.weight_g 4x1; l.1.weight_v 4x4; l.2.weight 4x4")
    assert mapping.needs_review
    assert all(e.review for e in mapping.entries if len(e.torch) > 1)


@pytest.mark.parametrize("wrap", [weight_norm, new.weight_norm])
def test_a_tied_weight_of_several_parts(wrap: Any) -> None:
    model = nn.Sequential()
    model.first = wrap(nn.Linear(4, 4))
    model.middle = nn.Linear(4, 5)
    model.other = model.first
    torch_side = listing_of(model)
    mapping = match(
        torch_side, listing("mindspore", "first.weight 4x4; first.bias 4; middle.weight 5x4; middle.bias 5")
    )
    assert not mapping.needs_review
    assert len(entry(mapping, "first.weight").torch) == 2
    assert {u.alias_of: u.name for u in mapping.unmatched_torch} == {
        p.name: p.name.replace("first", "other") for p in torch_side if p.name.startswith("first")
    }


def test_a_pin_settles_a_part() -> None:
    mapping = match(listing("torch", OLD), listing("mindspore", PLAIN), pins=["b.weight_v=b.weight"])
    assert entry(mapping, "b.weight").torch == ("b.weight_v",)
    assert entry(mapping, "a.weight").torch == ("a.weight_g", "a.weight_v")


def test_what_running_has_told_stands_for_the_weight() -> None:
    torch_side, port = listing("torch", OLD), listing("mindspore", PLAIN.replace("b.weight", "c.matrix"))
    chain = entry(match(torch_side, listing("mindspore", PLAIN)), "b.weight").transform
    way = ((torch_side.by_name["b.weight_g"], torch_side.by_name["b.weight_v"]), (port.by_name["c.matrix"],), chain)
    mapping = match(torch_side, port, ways=[way])
    assert entry(mapping, "c.matrix").torch == ("b.weight_g", "b.weight_v")
    assert not mapping.needs_review


# ------------------------------------------------------------------------------------------------------- folded norms

BLOCK = "conv1.weight 4x4x3x3; {bn1}; conv2.weight 6x4x3x3; {bn2}"
NORM = "{0}.weight {1}; {0}.bias {1}; {0}.running_mean {1}; {0}.running_var {1}; {0}.num_batches_tracked -"


def blocks(text: str, count: int = 2) -> str:
    norms = {"bn1": NORM.format("bn1", 4), "bn2": NORM.format("bn2", 6)}
    rows = [r.strip() for r in text.format(**norms).split(";")]
    return "; ".join(f"layers.{i}.{row}" for i in range(count) for row in rows) + "; head.weight 5x6; head.bias 5"


FOLDED = "conv1.weight 4x4x3x3; conv1.bias 4; conv2.weight 6x4x3x3; conv2.bias 6"


def folding(layer: nn.Module, norm: nn.Module) -> nn.Sequential:
    model = nn.Sequential(layer, norm, nn.Linear(3, 2)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in (*model.parameters(), norm.running_mean):
            p.copy_(torch.randn_like(p))
        norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.5)
    return model


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), (1, 3, 5, 5)),
        (nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4, eps=0.01), (1, 4, 5, 5)),
        (nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4), (1, 4, 5, 5)),
        (nn.ConvTranspose2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), (1, 4, 5, 5)),
        (nn.ConvTranspose2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), (1, 3, 5, 5)),
        (nn.Conv1d(3, 4, 3, bias=False), nn.BatchNorm1d(4), (1, 3, 5)),
        (nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), (2, 3)),
    ],
    ids=str,
)
def test_a_norm_that_the_port_has_folded(layer: Any, norm: Any, shape: tuple[int, ...]) -> None:
    model = folding(layer, norm)
    weight = tuple(layer.weight.shape)
    kernel = (*weight[:2], 1, weight[2]) if len(weight) == 3 else weight
    port = Listing(
        "mindspore",
        (
            Param("0.weight", kernel, "float32"),
            Param("0.bias", (4,), "float32"),
            Param("2.weight", (2, 3), "float32"),
            Param("2.bias", (2,), "float32"),
        ),
    )
    mapping = match(listing_of(model), port)
    assert not mapping.needs_review, [e.why for e in mapping.reviewed]
    e = entry(mapping, "0.bias")
    assert e.mindspore == ("0.weight", "0.bias")
    assert e.torch == ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    made = automap.apply(mapping, state_of(model), framework="numpy", target=port)
    with torch.no_grad():
        x = torch.randn(shape)
        expected = norm(layer(x))
        layer.weight.copy_(torch.from_numpy(made["0.weight"].reshape(weight)))
        bias = torch.from_numpy(made["0.bias"]).reshape(-1, *(1,) * (len(shape) - 2))
        np.testing.assert_allclose(layer(x) + bias, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(MappingError, match="fold_norm has no inverse"):
        mapping.invert()


def test_a_checkpoint_does_not_tell_the_epsilon() -> None:
    mapping = mapped(blocks(BLOCK), blocks(FOLDED))
    assert not [u for u in mapping.unmatched_torch if u.review]
    assert not mapping.unmatched_mindspore
    for i in range(2):
        e = entry(mapping, f"layers.{i}.conv2.bias")
        assert e.torch[0] == f"layers.{i}.conv2.weight"
        assert len(e.torch) == 5
        assert to_text(e.transform) == "fold_norm(eps=1e-05)"
        assert "does not tell the epsilon of" in e.why
    assert "transposed convolution" in entry(mapping, "layers.0.conv1.weight").why


def test_a_layer_that_has_a_bias_of_its_own() -> None:
    text = BLOCK.replace("3x3; {", "3x3; conv1.bias 4; {", 1)
    mapping = mapped(blocks(text), blocks(FOLDED))
    e = entry(mapping, "layers.0.conv1.weight")
    assert e.torch[:2] == ("layers.0.conv1.weight", "layers.0.conv1.bias")
    assert len(e.torch) == 6
    assert "or the port lacks it" in e.why


def test_norms_that_are_defined_apart() -> None:
    torch_text = "conv1.weight 4x4x3x3; conv2.weight 4x4x3x3; {bn1}; {bn2}"
    port = "conv1.weight 4x4x3x3; conv1.bias 4; conv2.weight 4x4x3x3; conv2.bias 4"
    mapping = mapped(blocks(torch_text).replace(" 6", " 4").replace("5x6", "5x4"), blocks(port).replace("5x6", "5x4"))
    for k in (1, 2):
        e = entry(mapping, f"layers.0.conv{k}.weight")
        assert e.torch[1] == f"layers.0.bn{k}.weight"
        assert "defined apart" in e.why


def test_a_port_that_has_its_norms() -> None:
    own = BLOCK.replace("3x3; {bn1}", "3x3; conv1.bias 4; {bn1}")
    port = own
    for old, word in (("running_mean", "moving_mean"), ("running_var", "moving_variance")):
        port = port.replace(old, word)
    mapping = mapped(
        blocks(BLOCK), blocks(port).replace("running_mean", "moving_mean").replace("running_var", "moving_variance")
    )
    assert all(len(e.torch) == 1 for e in mapping.entries)
    # The port has a bias more than it needs: that is said.
    assert {u.name for u in mapping.unmatched_mindspore if u.review} == {f"layers.{i}.conv1.bias" for i in range(2)}


def test_only_some_norms_are_folded() -> None:
    port = BLOCK.replace("3x3; {bn1}", "3x3; conv1.bias 4")
    mapping = mapped(
        blocks(BLOCK), blocks(port).replace("running_mean", "moving_mean").replace("running_var", "moving_variance")
    )
    assert len(entry(mapping, "layers.1.conv1.bias").torch) == 5
    assert len(entry(mapping, "layers.1.conv2.weight").torch) == 1
    assert not [u for u in (*mapping.unmatched_torch, *mapping.unmatched_mindspore) if u.review]


def test_statistics_are_never_left_out_in_silence() -> None:
    """A norm without weights, which nothing can be folded into: its statistics have no home."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    mapping = match(listing_of(model), listing("mindspore", "0.weight 4x3; 0.bias 4; 2.weight 2x4; 2.bias 2"))
    assert {u.name for u in mapping.unmatched_torch if u.review} == {"1.running_mean", "1.running_var"}


def test_a_parameter_of_the_ports_own_is_no_length() -> None:
    """It has the shape of one weight's lengths; the port keeps none of the others."""
    torch_text = "; ".join(f"l.{i}.weight_g {i + 3}x1; l.{i}.weight_v {i + 3}x9" for i in range(4))
    port = "mean 1x3; " + "; ".join(f"l.{i}.weight {i + 3}x9" for i in range(4))
    mapping = mapped(torch_text, port)
    assert all(len(e.torch) == 2 for e in mapping.entries)
    assert [e.mindspore for e in mapping.reviewed] == [("l.0.weight",)]
    assert [u.name for u in mapping.unmatched_mindspore] == ["mean"]


def test_a_norm_beside_the_one_that_is_folded() -> None:
    """Two norms in a row, of which the first follows the convolution; the other has nothing to be folded into."""
    mapping = mapped(
        "conv.weight 4x3x3x3; {bn}; {other}; head.weight 5x4".format(
            bn=NORM.format("bn", 4), other=NORM.format("other", 4)
        ),
        "conv.weight 4x3x3x3; conv.bias 4; head.weight 5x4",
    )
    assert entry(mapping, "conv.weight").torch[1] == "bn.weight"
    assert entry(mapping, "conv.weight").review
    assert {u.name.partition(".")[0] for u in mapping.unmatched_torch if u.review} == {"other"}
