"""Names as evidence: path tokens, the slots that framework layers call by other words, and the likeness of words.

What is data here (``SLOTS``) is a fact about the layers of the two frameworks, not about any model: `BatchNorm2d`
calls its scale ``weight`` in PyTorch and ``gamma`` in MindSpore whatever network it stands in. It has the words of the
layer table (:mod:`automap.layer_table`), which is proven by running the layers of both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: The slot of a parameter inside its layer, by the last word of its name. Both frameworks' words for the same thing
#: share a slot; a word that is not here is a name of the author's own.
SLOTS: dict[str, str] = {
    "weight": "weight",
    "gamma": "weight",
    "embedding_table": "weight",
    "bias": "bias",
    "beta": "bias",
    "running_mean": "mean",
    "moving_mean": "mean",
    "running_var": "variance",
    "moving_variance": "variance",
    "num_batches_tracked": "counter",
}

#: The word that stands beside another one in the same layer.
MATES = {"weight": "bias", "bias": "weight", "gamma": "beta", "beta": "gamma"}

#: Words that only a norm's parameters are called (in MindSpore's layers; elsewhere they can be an author's own).
NORM_WORDS = frozenset({"gamma", "beta"})

#: What the norm layers of both frameworks are called for short, beside every word that has "norm" in it.
NORM_TOKENS = frozenset({"ln", "bn", "gn", "rms"})

#: Slots that only a layer with running statistics has.
STATISTICS = frozenset({"mean", "variance", "counter"})

#: Slots of a top-level MindSpore norm, whose statistics lose their prefix; only beside ``gamma`` and ``beta``.
TOP_LEVEL_SLOTS = {"mean": "mean", "variance": "variance"}

#: What recurrent layers call their parameters, the same in both frameworks: one slot each.
RECURRENT = re.compile(r"(weight|bias)_(ih|hh|hr)(_l\d+)?(_reverse)?$")

#: What attention layers call the parameters that they own directly, the same in both frameworks.
PROJECTIONS = frozenset({*(f"{x}_proj_weight" for x in "qkv"), "in_proj_weight", "in_proj_bias", "bias_k", "bias_v"})

#: And what they call queries, keys and values in words, alone or beside ``w``.
_ATTENTION = frozenset({"q", "k", "v", "query", "key", "value", "queries", "keys", "values", "wq", "wk", "wv"})

_SPLIT_LEAF = re.compile(
    r"(.+)_(weight|bias|gamma|beta|moving_mean|moving_variance|running_mean|running_var|embedding_table)$"
)
_OWN_LEAF = re.compile(r"(weight|bias|gamma|beta)_[a-z]+$")
_TOKEN = re.compile(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")


def split_leaf(name: str) -> tuple[str, str]:
    """The layer a parameter belongs to, and its own word: ``a.conv.weight`` gives ``("a.conv", "weight")``.

    A word cut apart with an underscore counts as a level: ``a.in_proj_weight`` gives ``("a.in_proj", "weight")``;
    a parameter with a name of its own is a layer by itself: ``a.cls_token`` gives ``("a.cls_token", "")``.
    """
    module, _, leaf = name.rpartition(".")
    if leaf in SLOTS or RECURRENT.match(leaf):
        return module, leaf
    cut = _SPLIT_LEAF.match(leaf)
    if cut:
        return (f"{module}.{cut[1]}" if module else cut[1]), cut[2]
    own = _OWN_LEAF.match(leaf)
    if own:
        return module, own[1]
    return name, ""


def slot_of(leaf: str) -> str:
    """The slot inside the layer for a leaf word of :func:`split_leaf`: ``gamma`` gives ``weight``."""
    return SLOTS.get(leaf, leaf or "weight")


def is_framework_word(torch: str, mindspore: str) -> bool:
    """Whether the two frameworks' layers call one slot by these two leaf words."""
    if RECURRENT.match(torch):
        return torch == mindspore
    return torch in SLOTS and SLOTS[torch] == SLOTS.get(mindspore)


def is_attention_word(word: str) -> bool:
    """Whether a word stands for the queries, keys or values of attention."""
    return word in _ATTENTION


@lru_cache(maxsize=1 << 16)
def tokens(part: str) -> tuple[str, ...]:
    """The words and numbers in one part of a path, lower case: ``layerNorm1`` gives ``("layer", "norm", "1")``."""
    return tuple(t.lower() for t in _TOKEN.findall(part))


def likeness(left: Sequence[str], right: Sequence[str]) -> NDArray[np.float64]:
    """How alike two sets of words are, pair by pair: an array of shape (len(left), len(right)), 0 to 1.

    Equal words give 1. An abbreviation (the shorter word's letters stand in the longer one in order, beginning with
    the same letter: ``attn`` and ``attention``) and a near miss (a misprint) give less; what is only distantly alike
    gives 0, so that random words count as unlike.
    """
    from rapidfuzz import process
    from rapidfuzz.distance import JaroWinkler

    out = np.zeros((len(left), len(right)))
    if not left or not right:
        return out
    near = process.cdist(list(left), list(right), scorer=JaroWinkler.similarity, dtype=np.float64)
    long_enough = np.array([[min(len(a), len(b)) >= 4 for b in right] for a in left])
    out = np.where(long_enough & (near >= 0.88), 0.9 * near, 0.0)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            if a == b:
                out[i, j] = 1.0
            elif a[0] == b[0] and abbreviates(a, b):
                out[i, j] = max(out[i, j], 0.75 if min(len(a), len(b)) >= 2 else 0.4)
            elif one_letter_more(a, b):
                out[i, j] = max(out[i, j], 0.8)
            elif min(len(a), len(b)) >= 3 and (a in b or b in a):
                out[i, j] = max(out[i, j], 0.6)
    return out


def abbreviates(a: str, b: str) -> bool:
    """Whether the letters of the shorter word stand in the longer one in the same order."""
    if len(a) > len(b):
        a, b = b, a
    at = iter(b)
    return all(c in at for c in a)


def one_letter_more(a: str, b: str) -> bool:
    """Whether one of two words is the other with a letter before or after it (``q`` and ``wq``)."""
    if len(a) > len(b):
        a, b = b, a
    return len(b) == len(a) + 1 and (b.startswith(a) or b.endswith(a))
