"""Layers that do not map one to one, told by running: every order and arrangement, with names and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from composite_pairs import PAIRS, Composite

import automap
from automap.inference import infer
from automap.mapping import Mapping

pytestmark = pytest.mark.frameworks


def inferred(pair: Composite, **words: Any) -> Mapping:
    inputs = pair.inputs if isinstance(pair.inputs, dict) else [pair.inputs]
    return infer(pair.torch, pair.mindspore, inputs=inputs, **words)


def off(pair: Composite, mapping: Mapping, seed: int = 7) -> float:
    """How far apart the outputs are under another checkpoint that the mapping converts, relative to their scale."""
    import mindspore as ms
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for p in pair.torch.state_dict(keep_vars=True).values():
            if p.is_floating_point():
                p.copy_(torch.tensor(np.asarray(p) + 0.3 * rng.standard_normal(tuple(p.shape)).astype(np.float32)))
    state = {name: np.asarray(t.detach()) for name, t in pair.torch.state_dict(keep_vars=True).items()}
    made = automap.apply(mapping, state, framework="numpy")
    parameters = {p.name: p for p in pair.mindspore.get_parameters()}
    assert made.keys() <= parameters.keys()
    for name, array in made.items():
        parameters[name].set_data(ms.Tensor(np.ascontiguousarray(array)))
    pair.torch.eval()
    pair.mindspore.set_train(False)
    with torch.no_grad():
        ours = np.asarray(pair.torch(torch.tensor(pair.inputs)))
    theirs = pair.mindspore(ms.Tensor(pair.inputs)).asnumpy()
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("name", PAIRS)
def test_proven(name: str, ignore_names: bool) -> None:
    pair = PAIRS[name]()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("proven", 0), mapping.proof
    assert off(pair, mapping) <= 1e-5
    assert sum(max(len(e.torch), len(e.mindspore)) > 1 for e in mapping.entries) == pair.several
    mapped = [name for e in mapping.entries for name in e.torch]
    assert set(mapped) == {name for name, _ in pair.torch.named_parameters()} - pair.left
    assert len(mapped) == len(set(mapped))
