"""Identification by running: each hard case as a small pair of networks whose names tell nothing, or mislead."""

from __future__ import annotations

import os
import random
from random import Random
from typing import Any

import numpy as np
import pytest
from hard_pairs import ALIKE, FAULTY, PROVABLE, UNEQUAL, UNPROVEN, Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from automap.arrangements import MOST_ARRANGEMENTS, pairings
from automap.errors import InputError
from automap.graph import Param
from automap.inference import infer
from automap.layouts import adapted
from automap.mapping import Mapping

pytestmark = pytest.mark.frameworks


def words(make: Any) -> str:
    return str(make.__name__.replace("_", " "))


def inferred(pair: Pair, **words: Any) -> Mapping:
    inputs = pair.inputs if isinstance(pair.inputs, dict) else [pair.inputs]
    return infer(pair.torch, pair.mindspore, inputs=inputs, **pair.words, **words)


def wrong(pair: Pair, mapping: Mapping) -> dict[str, str]:
    """The entries that are wrong."""
    return {e.torch[0]: e.mindspore[0] for e in mapping.entries if pair.truth.get(e.torch[0]) != e.mindspore[0]}


def proven(mapping: Mapping) -> set[str]:
    return {e.torch[0] for e in mapping.entries if e.evidence.get("proven")}


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("make", PROVABLE, ids=words)
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


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("make", FAULTY, ids=words)
def test_what_follows_a_fault_is_identified_all_the_same(make: Any, ignore_names: bool) -> None:
    pair = make()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert {e.torch[0]: e.mindspore[0] for e in mapping.entries} == pair.truth, mapping.proof
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("differs", 3)
    assert len(mapping.proof.findings) == 1
    # With the fault repaired the outputs agree, which proves the mapping.
    assert mapping.proof.repaired is not None
    assert mapping.proof.repaired <= 1e-5
    assert proven(mapping) == pair.truth.keys()
    assert [e.torch for e in mapping.entries if e.review] == []


@pytest.mark.parametrize(("make", "words"), [*zip(FAULTY, ("MaxPool2d", "bias", "GELU"), strict=True)])
def test_the_fault_is_named(make: Any, words: str) -> None:
    mapping = inferred(make())
    assert mapping.proof is not None
    assert words in mapping.proof.findings[0]


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("make", UNPROVEN, ids=words)
def test_not_exercised(make: Any, ignore_names: bool) -> None:
    pair = make()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert mapping.proof.status == "proven"
    assert wrong(pair, mapping) == {}
    assert set(mapping.proof.not_exercised) == pair.idle
    assert proven(mapping) == pair.truth.keys() - pair.idle
    assert {e.torch[0]: e.evidence["execution"] for e in mapping.entries if e.torch[0] in pair.idle} == dict.fromkeys(
        pair.idle, 0.0
    )


def test_what_no_layer_tells_and_no_name_is_left_open() -> None:
    by_name, without = (inferred(UNPROVEN[0](), ignore_names=flag) for flag in (False, True))
    assert [e.torch[0] for e in without.entries if e.review] == ["auxiliary.weight", "auxiliary.bias"]
    assert all("nothing proves it" in e.why for e in without.entries if e.review)
    assert all(e.confidence <= 0.75 for e in without.entries if e.review)
    assert [e.torch[0] for e in by_name.entries if e.review] == []
    # The frameworks' own words pair it with its like, beside a weight that is proven.
    keys = inferred(UNPROVEN[1](), ignore_names=True)
    assert [e.torch[0] for e in keys.entries if e.review] == []


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("make", ALIKE, ids=words)
def test_exchangeable(make: Any, ignore_names: bool) -> None:
    pair = make()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert mapping.proof.status == "proven"
    assert mapping.proof.not_exercised == ()
    (alike,) = mapping.proof.alike
    assert set(alike) == pair.idle
    assert proven(mapping) == pair.truth.keys() - pair.idle
    assert wrong(pair, mapping).keys() <= ({e.torch[0] for e in mapping.entries if e.review} & pair.idle)


@pytest.mark.parametrize("make", [*PROVABLE[:3], *UNPROVEN], ids=words)
def test_nothing_wrong_is_proven_under_a_wrong_pin(make: Any) -> None:
    """Two parameters of one shape are pinned to each other's counterparts."""
    pair = make()
    layers = [e.rpartition(".")[0] for e in pair.truth if e.endswith("weight") and e not in pair.idle]
    a, b = layers[:2]
    truth = pair.truth
    pins = [f"{x}.weight={truth[f'{y}.weight']}" for x, y in ((a, b), (b, a))]
    mapping = inferred(pair, pins=pins)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("open", 1)
    assert wrong(pair, mapping).keys() >= {f"{a}.weight", f"{b}.weight"}
    assert proven(mapping) == set()


def test_a_right_pin_holds_where_names_say_otherwise() -> None:
    pair = PROVABLE[0]()
    mapping = inferred(pair, pins=["q.weight=v.weight"])
    assert wrong(pair, mapping) == {}
    assert proven(mapping) == pair.truth.keys()


def test_graph_mode_is_left_for_the_run() -> None:
    import mindspore as ms

    pair = PROVABLE[2]()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        mapping = inferred(pair)
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert proven(mapping) == pair.truth.keys()


# ------------------------------------------------------------------------------------------------------- put back


def state_of_everything(torch: Any, port: Any) -> Any:
    import mindspore as ms

    return (
        {n: (id(t), t.detach().clone().tolist(), t.requires_grad) for n, t in torch.state_dict(keep_vars=True).items()},
        [m.training for m in torch.modules()],
        {p.name: (id(p), p.asnumpy().tolist(), p.requires_grad) for p in port.get_parameters()},
        [(c.training, c.requires_grad, c.phase) for _, c in port.cells_and_names()],
        (ms.nn.Cell.__call__, ms.get_context("mode"), os.environ.get("MS_JIT"), random.getstate()),
        np.random.get_state()[1].tolist(),
    )


@pytest.mark.parametrize("make", [PROVABLE[0], FAULTY[0], UNPROVEN[0]], ids=words)
def test_both_networks_are_left_as_they_were(make: Any) -> None:
    pair = make()
    pair.torch.eval()
    pair.mindspore.set_train(True)
    next(pair.mindspore.get_parameters()).requires_grad = False
    before = state_of_everything(pair.torch, pair.mindspore)
    inferred(pair, ignore_names=True)
    assert state_of_everything(pair.torch, pair.mindspore) == before


def test_slices_keep_their_names() -> None:
    pair = next(make for make in PROVABLE if "slice" in make.__name__)()
    inferred(pair)
    assert {p.name for p in pair.mindspore.get_parameters()} == pair.names


@pytest.mark.parametrize("times", [0, 1])
def test_a_port_that_raises_in_the_middle(times: int) -> None:
    """Whichever run it is: of the identification, of the second seed."""
    pair = PROVABLE[0]()
    construct, calls = type(pair.mindspore).construct, []

    def failing(n: Any, x: Any) -> Any:
        out = construct(n, x)
        calls.append(0)
        if len(calls) > times:
            raise ValueError("no more")
        return out

    type(pair.mindspore).construct = failing
    before = state_of_everything(pair.torch, pair.mindspore)
    with pytest.raises(InputError, match="no more"):
        inferred(pair)
    assert state_of_everything(pair.torch, pair.mindspore) == before


# ------------------------------------------------------------------------------------------------- parts of it


def param(attribute: str, *shape: int) -> tuple[str, Param]:
    return attribute, Param(f"layer.{attribute}", shape, "float32")


def ways(ours: list[tuple[str, Param]], theirs: list[tuple[str, Param]]) -> list[dict[str, str]]:
    return [{t.leaf: m.leaf for (t,), (m,), _ in found} for found in pairings(ours, theirs)]


def test_how_a_cell_can_get_its_weights() -> None:
    weight, bias = param("weight", 4, 6), param("bias", 4)
    assert ways([weight, bias], [weight, bias]) == [{"weight": "weight", "bias": "bias"}]
    # Only the greatest parameter has to have a counterpart.
    assert ways([weight, bias], [weight]) == ways([weight], [bias, weight]) == [{"weight": "weight"}]
    assert ways([weight, bias], [bias]) == []
    assert ways([weight], [param("weight", 4, 7)]) == []
    norm = [param("weight", 4), param("bias", 4)]
    statistics = [param("running_mean", 4), param("running_var", 4), param("num_batches_tracked")]
    port = [param("gamma", 4), param("beta", 4)]
    assert ways(norm, port) == [{"weight": "gamma", "bias": "beta"}]
    # Statistics are on both sides, or on none.
    assert ways([*norm, *statistics], port) == []
    assert ways([*norm, *statistics], [param("moving_mean", 4), param("moving_variance", 4), *port]) == [
        {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    ]
    assert ways([], []) == ways([weight], []) == []


def test_parameters_with_names_of_an_author_go_by_shape() -> None:
    a, b, c = param("cls", 1, 1, 4), param("dist", 1, 1, 4), param("pos", 1, 6, 4)
    x, y, z = param("u", 1, 1, 4), param("v", 1, 1, 4), param("w", 1, 6, 4)
    assert ways([a, b, c], [z, x, y]) == [
        {"pos": "w", "cls": "u", "dist": "v"},
        {"pos": "w", "cls": "v", "dist": "u"},
    ]
    assert len(ways([param(f"a{i}", 4) for i in range(5)], [param(f"b{i}", 4) for i in range(5)])) == MOST_ARRANGEMENTS


@settings(derandomize=True, max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_values_in_another_layout(shape: list[int], order: Random) -> None:
    """Axes moved, joined, or of length one: where the values are nearly the same, each gets to its place."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    axes = list(range(len(shape)))
    order.shuffle(axes)
    like = values.transpose(axes)
    sizes = list(like.shape)
    for _ in range(order.randrange(2)):
        sizes.insert(order.randrange(len(sizes) + 1), 1)
    if len(sizes) > 1 and order.random() < 0.5:
        k = order.randrange(len(sizes) - 1)
        sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
    like = like.reshape(sizes)
    made = adapted(values, (like + 1e-4).astype(np.float32))
    assert made is not None
    assert made.dtype == np.float32
    assert made.shape == like.shape
    assert np.allclose(made, like, atol=1e-6)


def test_values_that_fit_nowhere() -> None:
    assert adapted(np.ones((2, 3)), np.ones((2, 4))) is None
    assert adapted(np.ones((2, 6)), np.ones((3, 4))) is None


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("make", UNEQUAL, ids=words)
def test_beside_a_layer_more_or_less_nothing_is_settled_by_its_own_values(make: Any, ignore_names: bool) -> None:
    """A cell that sees and gives what a module does may be the layer too many."""
    pair = make()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert mapping.proof.status == "open"
    assert wrong(pair, mapping).keys() <= {e.torch[0] for e in mapping.entries if e.review}
    assert proven(mapping) == set()
    assert [e.torch[0] for e in mapping.entries if not e.review] == ["a.weight", "a.bias"]
