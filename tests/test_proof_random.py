"""Inference by running random networks: what is wrong is marked, and nothing wrong is called proven."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_networks import FAULTS, Names, Order, Program, build, complaints, programs
from random_steps import Step

from automap.inference import infer

pytestmark = pytest.mark.frameworks


def examples(number: int) -> settings:
    """The same examples in every run, however slow the machine is."""
    phases = [Phase.explicit, Phase.generate]  # to shrink takes minutes
    quiet = list(HealthCheck)
    return settings(derandomize=True, max_examples=number, deadline=None, suppress_health_check=quiet, phases=phases)


@pytest.fixture(scope="module", autouse=True)
def _frameworks() -> None:
    """Imported before any example: MindSpore changes the recursion limit, which Hypothesis watches."""
    import random_mindspore
    import random_torch

    assert random_mindspore
    assert random_torch


orders = st.sampled_from(["shuffled", "same"])
seeds = st.integers(0, 99)
small = programs(depth=1, most=2)


@examples(10)
@given(small, orders, seeds)
def test_without_names(program: Program, order: Order, seed: int) -> None:
    pair = build(program, "random", order, seed=seed)
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs, ignore_names=True)
    assert complaints(pair, mapping) == []


@examples(6)
@given(small, st.sampled_from(["renamed", "same"]), orders, seeds)
def test_with_names(program: Program, names: Names, order: Order, seed: int) -> None:
    pair = build(program, names, order, seed=seed)
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs)
    assert complaints(pair, mapping) == []


@examples(6)
@given(small, st.sampled_from(FAULTS), st.booleans(), seeds)
def test_of_a_port_with_a_fault(program: Program, fault: str, ignore_names: bool, seed: int) -> None:
    pair = build(program, "renamed", fault=fault, seed=seed)
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs, ignore_names=ignore_names)
    assert complaints(pair, mapping) == []


TWO_CONVOLUTIONS = Program(
    "image",
    (Step("concat", ((Step("act", act="silu"),), *((Step("functional_conv"), Step("position")),) * 2)),),
    order=2,
)
CALLED_TWICE = Program(
    "sequence",
    (Step("linear"), Step("repeat", ((Step("scale"), Step("norm"), Step("rms")),), n=2)),
    outputs="dict",
    order=3,
)
TWO_SLOPES = Program(
    "patches",
    (
        Step("concat", ((Step("borrowed"), Step("prelu")),) * 2),
        Step("residual", ((Step("borrowed"), Step("gru")),)),
    ),
    unused=2,
    keywords=True,
    order=3,
)


@pytest.mark.parametrize(
    ("program", "names", "nesting", "seed", "ignore_names"),
    [
        pytest.param(TWO_CONVOLUTIONS, "renamed", True, 0, True, id="direct parameters in branches"),
        pytest.param(CALLED_TWICE, "random", True, 20915, False, id="a block called twice"),
        pytest.param(TWO_SLOPES, "renamed", False, 779, False, id="slopes behind weights used without their layer"),
    ],
)
def test_wrong_entries_are_marked(program: Program, names: Names, nesting: bool, seed: int, ignore_names: bool) -> None:
    pair = build(program, names, nesting=nesting, seed=seed)
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs, ignore_names=ignore_names)
    assert complaints(pair, mapping) == []


@pytest.mark.parametrize(
    ("program", "names", "seed"),
    [
        pytest.param(
            Program("sequence", (Step("borrowed"),), unused=1, order=1), "random", 1356, id="beside an unused layer"
        ),
        pytest.param(Program("sequence", (Step("functional", n=1, bias=False),)), "same", 0, id="a matrix turned"),
    ],
)
def test_a_weight_used_without_its_layer(program: Program, names: Names, seed: int) -> None:
    pair = build(program, names, nesting=False, seed=seed)
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs, ignore_names=True)
    assert complaints(pair, mapping) == []
    assert mapping.proof is not None
    assert mapping.proof.status == "proven"


EXPERTS = Step("experts", n=3, act="gelu", bias=False)
TWO_BRANCHES = Step(
    "residual",
    (
        (
            Step("act", act="leaky"),
            Step("offset"),
            Step("concat", ((Step("conv", bias=False),), (Step("conv", bias=False),))),
        ),
    ),
)
AGAIN = Step("add", ((Step("again", n=1),), (Step("linear", bias=False),)))


@pytest.mark.parametrize(
    ("body", "seed"),
    [
        # What is left for an expert when others have chosen says no more than their choices, which nothing confirms.
        pytest.param((EXPERTS,), 10, id="the last one"),
        # The gate's rows in another order make up for experts that were fed with what other ones saw.
        pytest.param((AGAIN, EXPERTS), 12, id="fed"),
    ],
)
def test_experts_of_a_faulty_port(body: tuple[Step, ...], seed: int) -> None:
    pair = build(Program("patches", body, token=True), "random", "shuffled", seed=seed, fault="act")
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs)
    assert complaints(pair, mapping) == []


def test_branches_after_a_fault() -> None:
    # The first branch is expected to be the one that the second turns out to be.
    pair = build(Program("image", (TWO_BRANCHES,), outputs="tuple"), "renamed", "shuffled", fault="act")
    mapping = infer(pair.torch, pair.mindspore, inputs=pair.inputs)
    assert complaints(pair, mapping) == []
    assert len(mapping.entries) == len(pair.truth)
