"""Names as evidence: levels, slots, words, and how alike words are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap.names import SLOTS, abbreviates, likeness, slot_of, split_leaf, tokens

TEXT = st.text("abcdeilnor", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("name", "module", "leaf"),
    [
        ("weight", "", "weight"),
        ("a.conv.weight", "a.conv", "weight"),
        ("a.bn.running_mean", "a.bn", "running_mean"),
        ("a.bn.num_batches_tracked", "a.bn", "num_batches_tracked"),
        ("a.words.embedding_table", "a.words", "embedding_table"),
        ("a.lstm.weight_ih_l0_reverse", "a.lstm", "weight_ih_l0_reverse"),
        ("lstm.bias_hh_l1", "lstm", "bias_hh_l1"),
        ("a.in_proj_weight", "a.in_proj", "weight"),  # a word cut apart by an underscore is a level
        ("layer1_bn1_moving_variance", "layer1_bn1", "moving_variance"),
        ("h_emb_embedding_table", "h_emb", "embedding_table"),
        ("conv.weight_g", "conv", "weight"),
        ("a.gamma_", "a.gamma_", ""),
        ("a.cls_token", "a.cls_token", ""),  # a name of its own is a layer of its own
        ("a.position_ids", "a.position_ids", ""),
    ],
)
def test_split_leaf(name: str, module: str, leaf: str) -> None:
    assert split_leaf(name) == (module, leaf)


@pytest.mark.parametrize(
    ("leaf", "slot"),
    [
        ("gamma", "weight"),
        ("beta", "bias"),
        ("moving_variance", "variance"),
        ("weight_ih_l0", "weight_ih_l0"),
        ("", "weight"),
    ],
)
def test_slot_of(leaf: str, slot: str) -> None:
    assert slot_of(leaf) == slot


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("layerNorm1", ("layer", "norm", "1")),
        ("layer_norm_1", ("layer", "norm", "1")),
        ("conv2d_3x3", ("conv", "2", "d", "3", "x", "3")),
        ("MLPHead", ("mlp", "head")),
        ("BN", ("bn",)),
        ("_bn0", ("bn", "0")),
        ("12", ("12",)),
        ("", ()),
    ],
)
def test_tokens(part: str, expected: tuple[str, ...]) -> None:
    assert tokens(part) == expected


def test_likeness_of_words_of_a_kind() -> None:
    rest = ["attention", "attn", "attenton", "dense", "conv", "embeddings"]
    row = dict(zip(rest, likeness(["attention"], rest)[0], strict=True))
    assert row["attention"] == 1
    assert 0.5 < row["attn"] < 1, "an abbreviation"
    assert 0.5 < row["attenton"] < 1, "a misprint"
    assert row["dense"] == row["conv"] == row["embeddings"] == 0, "another word"
    assert likeness(["key"], ["k"])[0, 0] < likeness(["query"], ["qry"])[0, 0], "one letter says little"
    assert 0 < likeness(["norm"], ["layernorm"])[0, 0] < 1, "a part of a word"


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(TEXT, max_size=5), st.lists(TEXT, max_size=5))
def test_likeness_is_symmetric_and_between_0_and_1(left: list[str], right: list[str]) -> None:
    table = likeness(left, right)
    assert table.shape == (len(left), len(right))
    assert ((table >= 0) & (table <= 1)).all()
    assert abs(table - likeness(right, left).T).max(initial=0) < 1e-12
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            assert (table[i, j] == 1) == (a == b)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.data(), TEXT)
def test_what_is_left_of_a_word_abbreviates_it(data: st.DataObject, word: str) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(word), max_size=len(word)))
    short = "".join(c for c, k in zip(word, kept, strict=True) if k)
    assert abbreviates(short, word)
    assert abbreviates(word, short)
    assert not abbreviates(word + "x", word + "y")


# ------------------------------------------------------------------------------- the vocabulary is a fact about layers

#: PyTorch's layer, MindSpore's, and the shape of an input.
LAYERS = {
    "dense": ("Linear(4, 3)", "Dense(4, 3)", (2, 4)),
    "convolution": ("Conv2d(3, 4, 3)", "Conv2d(3, 4, 3, pad_mode='valid', has_bias=True)", (2, 3, 8, 8)),
    "transposed convolution": (
        "ConvTranspose2d(3, 4, 3)",
        "Conv2dTranspose(3, 4, 3, pad_mode='valid', has_bias=True)",
        (2, 3, 8, 8),
    ),
    "BatchNorm": ("BatchNorm2d(3)", "BatchNorm2d(3)", (2, 3, 4, 4)),
    "LayerNorm": ("LayerNorm(4)", "LayerNorm((4,), epsilon=1e-5)", (2, 4)),
    "GroupNorm": ("GroupNorm(2, 4)", "GroupNorm(2, 4)", (2, 4, 3, 3)),
    "embedding": ("Embedding(5, 3)", "Embedding(5, 3)", None),
    "recurrent": ("LSTM(4, 3, 2, bidirectional=True)", "LSTM(4, 3, 2, bidirectional=True)", (5, 2, 4)),
}


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", LAYERS)
def test_one_slot_is_one_thing_in_both_frameworks(kind: str) -> None:
    """Weights brought over by slot alone give the same output."""
    import mindspore as ms
    import numpy as np
    import torch

    of_torch, of_mindspore, shape = LAYERS[kind]
    net = torch.nn.Sequential(eval(f"torch.nn.{of_torch}", {"torch": torch})).eval()
    port = ms.nn.SequentialCell(eval(f"ms.nn.{of_mindspore}", {"ms": ms})).set_train(False)
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    for name, value in net.state_dict().items():
        slot = slot_of(split_leaf(name)[1])
        if slot != "counter":
            weights[slot] = rng.uniform(0.5, 1.5, tuple(value.shape)).astype(np.float32)
            value.copy_(torch.from_numpy(weights[slot]))
    ours = {p.name: slot_of(split_leaf(p.name)[1]) for p in port.get_parameters()}
    assert sorted(ours.values()) == sorted(weights)
    for p in port.get_parameters():
        p.set_data(ms.Tensor(weights[ours[p.name]]))
    x = rng.integers(5, size=(2, 3)) if shape is None else rng.standard_normal(shape).astype(np.float32)
    with torch.no_grad():
        expected, got = net(torch.from_numpy(x)), port(ms.Tensor(x))
    expected, got = (y[0] if isinstance(y, tuple) else y for y in (expected, got))
    np.testing.assert_allclose(got.asnumpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_every_word_of_the_vocabulary_is_proven() -> None:
    """The layers above have every word in the table; a new word needs its layer."""
    shown = {"weight", "bias", "gamma", "beta", "embedding_table", "num_batches_tracked"}
    shown |= {"running_mean", "running_var", "moving_mean", "moving_variance"}
    assert shown == SLOTS.keys()
