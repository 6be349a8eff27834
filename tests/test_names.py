"""Names as evidence: levels, slots, words, and how alike words are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap.names import abbreviates, likeness, slot_of, split_leaf, tokens

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
