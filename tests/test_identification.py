"""Identification by running: each hard case as a small pair of networks whose names tell nothing, or mislead."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hard_pairs import PROVABLE, Pair

from automap.inference import infer
from automap.mapping import Mapping

pytestmark = pytest.mark.frameworks


def inferred(pair: Pair, **words: Any) -> Mapping:
    inputs = pair.inputs if isinstance(pair.inputs, dict) else [pair.inputs]
    return infer(pair.torch, pair.mindspore, inputs=inputs, **pair.words, **words)


def wrong(pair: Pair, mapping: Mapping) -> dict[str, str]:
    """The entries that are wrong."""
    return {e.torch[0]: e.mindspore[0] for e in mapping.entries if pair.truth.get(e.torch[0]) != e.mindspore[0]}


def proven(mapping: Mapping) -> set[str]:
    return {e.torch[0] for e in mapping.entries if e.evidence.get("proven")}


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("make", PROVABLE, ids=lambda make: re.sub("_", " ", make.__name__))
def test_proven(make: Any, ignore_names: bool) -> None:
    pair = make()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert {e.torch[0]: e.mindspore[0] for e in mapping.entries} == pair.truth, mapping.proof
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert mapping.proof.exit_code == 0
    assert set(mapping.proof.not_exercised) == pair.idle
    assert mapping.proof.alike == ()
    assert proven(mapping) == pair.truth.keys() - pair.idle
    assert [e.torch for e in mapping.entries if e.review] == []
    turned = {e.torch[0] for e in mapping.entries if any(t.op == "transpose" for t in e.transform)}
    assert turned == pair.turned
