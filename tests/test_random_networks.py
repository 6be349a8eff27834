"""The random networks themselves: both sides compute the same, and what is said of them is true."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_networks import (
    FAULTS,
    Names,
    Order,
    Pair,
    Program,
    apart,
    build,
    complaints,
    ported,
    programs,
    same_function,
    weights,
    wide_outputs,
    wrong_entries,
)
from random_steps import KINDS, Array, Step

from automap.mapping import Entry, Mapping, Side
from automap.transforms import Transform

pytestmark = pytest.mark.frameworks


def examples(number: int) -> settings:
    """The same examples in every run, however slow the machine is."""
    phases = [Phase.explicit, Phase.generate]  # to shrink takes minutes
    quiet = list(HealthCheck)
    return settings(derandomize=True, max_examples=number, deadline=None, suppress_health_check=quiet, phases=phases)


names, orders = st.sampled_from(["same", "renamed", "random"]), st.sampled_from(["same", "shuffled"])

#: Every kind of step at least once, in few networks.
EVERY = (
    Program(
        "ids",
        (
            Step("position"),
            Step("residual", ((Step("norm"), Step("attention")),)),
            Step("residual", ((Step("rms"), Step("experts", n=3, act="gelu")),)),
            Step("cross"),
            Step("functional", n=1),
            Step("functional"),
            Step("stack", ((Step("linear"), Step("act", act="leaky")),), n=3),
            Step("again", n=0),
        ),
        head="tied",
        token=True,
        unused=1,
        outputs="dict",
        keywords=True,
        order=3,
    ),
    Program(
        "sequence",
        (
            Step("lstm"),
            Step("offset"),
            Step("gru"),
            Step("bilstm"),
            Step("conv1d"),
            Step("borrowed"),
            Step("mlp", act="silu"),
            Step("scale"),
            Step("add", ((Step("linear"),), (Step("linear"),), (Step("mlp", act="relu"), Step("scale")))),
        ),
        outputs="tuple",
    ),
    Program(
        "image",
        (
            Step("conv", bias=False),
            Step("batchnorm"),
            Step("act", act="relu"),
            Step("residual", ((Step("depthwise"), Step("prelu"), Step("excite"), Step("pointwise")),)),
            Step("concat", ((Step("conv"),), (Step("norm"), Step("scale")))),
            Step("repeat", ((Step("functional_conv"), Step("act", act="gelu")),), n=2),
            Step("position"),
        ),
    ),
    Program("patches", (Step("position"), Step("linear")), token=True, head=""),
)


@pytest.fixture(scope="module", autouse=True)
def _frameworks() -> None:
    """Imported before any example: MindSpore changes the recursion limit, which Hypothesis watches."""
    import random_mindspore
    import random_torch

    assert random_mindspore
    assert random_torch


def both(pair: Pair, values: dict[str, Array]) -> tuple[list[Array], list[Array]]:
    """What the two networks give, with the weights mapped by the truth."""
    from automap import mindspore_runner, torch_runner

    out = []
    for runner, state in (
        (torch_runner.Runner(pair.torch), values),
        (mindspore_runner.Runner(pair.mindspore), ported(pair, values)),
    ):
        with runner.holding(state):
            found = runner.run(pair.inputs)
        tensors = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else [found]
        out.append([np.asarray(x) for x in tensors])
    return out[0], out[1]


def kinds(steps: Iterable[Step]) -> set[str]:
    """The kinds of these steps and of all within them."""
    return {s.kind for s in steps} | {k for s in steps for body in s.bodies for k in kinds(body)}


def check_truth(pair: Pair) -> None:
    state = {n for n in pair.torch.state_dict() if not n.endswith("num_batches_tracked")}
    assert set(pair.truth) == state
    assert sorted(pair.truth.values()) == sorted(p.name for p in pair.mindspore.get_parameters())
    # MindSpore's GRU is made of a tanh that is off by 5e-5 on the CPU.
    bound = 1e-3 if "gru" in kinds(pair.program.whole) else 1e-5
    assert apart(*both(pair, weights(pair))) < bound


@examples(24)
@given(programs(), names, orders, st.booleans(), st.integers(0, 99))
def test_both_networks_compute_the_same(program: Program, names: Names, order: Order, nesting: bool, seed: int) -> None:
    check_truth(build(program, names, order, nesting, seed=seed))


@pytest.mark.parametrize("program", EVERY, ids=[p.domain for p in EVERY])
@pytest.mark.parametrize("words", ["same", "random"])
def test_every_kind_of_step(program: Program, words: Names) -> None:
    check_truth(build(program, words, seed=1))


def test_every_kind_is_tried() -> None:
    assert set().union(*(kinds(p.whole) for p in EVERY)) == set(KINDS)


def check_facts(pair: Pair) -> None:
    """What is said to have no effect has none, all else has one; what is said to be interchangeable is."""
    values = weights(pair)
    base = wide_outputs(pair, values)
    for name in pair.truth:
        moved = wide_outputs(pair, values | {name: values[name] * np.float32(1.3) + np.float32(0.1)})
        assert (apart(base, moved) < 1e-12) == (name in pair.unexercised), name
    for swap in pair.swaps:
        assert apart(base, wide_outputs(pair, values | {a: values[b] for a, b in swap.items()})) < 1e-9, swap


@examples(12)
@given(programs(most=3))
def test_what_the_computation_does_not_tell(program: Program) -> None:
    check_facts(build(program))


@pytest.mark.parametrize("program", EVERY, ids=[p.domain for p in EVERY])
def test_what_the_computation_does_not_tell_of_every_kind(program: Program) -> None:
    pair = build(program, "same", nesting=False)
    check_facts(pair)
    if program.domain == "ids":
        assert {"aux11.weight", "body3.k1.bias", "k5.bias"} <= pair.unexercised
    if program.domain == "sequence":
        exchanged = {frozenset(swap) for swap in pair.swaps}
        assert frozenset({"rnn1.bias_ih_l0", "rnn1.bias_hh_l0"}) in exchanged
        assert frozenset({"branch09.fc0.bias", "branch19.fc0.bias"}) in exchanged  # added to each other
        equal = {"branch09.fc0.weight", "branch09.fc0.bias", "branch19.fc0.weight", "branch19.fc0.bias"}
        assert frozenset(equal) in exchanged  # equal branches


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_in_the_outputs_only(fault: str) -> None:
    program = Program("sequence", (Step("norm"), Step("mlp", act="gelu"), Step("linear")))
    right, wrong = (build(program, "same", fault=f) for f in (None, fault))
    assert right.fault is None
    assert wrong.fault is not None
    assert wrong.truth == right.truth
    assert apart(*both(wrong, weights(wrong))) > 1e-5


def test_a_fault_without_a_place() -> None:
    assert build(Program("sequence", (Step("linear"),)), fault="gelu").fault is None


@examples(20)
@given(programs())
def test_a_program_prints_as_the_code_that_makes_it(program: Program) -> None:
    assert eval(repr(program), {"Program": Program, "Step": Step}) == program


def test_seeds_make_different_ports_and_the_same_one_again() -> None:
    ports = [build(EVERY[0], seed=seed) for seed in (1, 1, 2)]
    listings = [[p.name for p in pair.mindspore.get_parameters()] for pair in ports]
    assert listings[0] == listings[1] != listings[2]
    assert ports[0].truth == ports[1].truth


# -------------------------------------------------------------------------------------------------------- the judgement


def mapped(pair: Pair, exchange: dict[str, str], **evidence: Any) -> Mapping:
    """A mapping by the truth, but with some PyTorch parameters in each other's place."""
    entries = []
    for t in pair.truth:
        turn = (Transform("transpose", {"axes": [1, 0]}),) if t in pair.turned else ()
        entries.append(Entry((t,), (pair.truth[exchange.get(t, t)],), turn, evidence=dict(evidence)))
    return Mapping(Side("", 0, ""), Side("", 0, ""), tuple(entries))


BRANCHES = Program(
    "sequence",
    (Step("add", ((Step("linear"), Step("norm"), Step("linear")),) * 2), Step("attention"), Step("linear")),
    unused=2,
)


@pytest.mark.parametrize(
    ("exchange", "wrong"),
    [
        ([], set()),
        # Equal branches as a whole, their added biases alone, both at once: all the same function.
        (["branch01.fc0", "branch11.fc0", "branch01.norm1", "branch11.norm1", "branch01.fc2", "branch11.fc2"], set()),
        (["branch01.fc2.bias", "branch11.fc2.bias"], set()),
        (["branch01.fc0", "branch11.fc0", "branch01.norm1", "branch11.norm1", "branch01.fc2.weight",
          "branch11.fc2.weight"], set()),
        # A part of a branch is not.
        (["branch01.norm1", "branch11.norm1"], {"branch01.norm1", "branch11.norm1"}),
        (["q2.weight", "k2.weight"], {"q2.weight", "k2.weight"}),
        # What no output depends on is told by the truth alone.
        (["aux5.weight", "aux6.weight"], {"aux5.weight", "aux6.weight"}),
    ],
)  # fmt: skip
def test_which_entries_are_wrong(exchange: list[str], wrong: set[str]) -> None:
    pair = build(BRANCHES)
    table = {}
    for a, b in zip(exchange[::2], exchange[1::2], strict=True):
        for t in pair.truth:
            if t == a or t.startswith(a + "."):
                table |= {t: b + t[len(a) :], b + t[len(a) :]: t}
    found = wrong_entries(pair, mapped(pair, table))
    assert found == {t for t in pair.truth if any(t == w or t.startswith(w + ".") for w in wrong)}


def test_equal_functions_that_construction_does_not_know() -> None:
    pair = build(BRANCHES)
    pair.swaps = ()
    mapping = mapped(pair, {"branch01.fc2.bias": "branch11.fc2.bias", "branch11.fc2.bias": "branch01.fc2.bias"})
    assert same_function(pair, mapping)
    assert wrong_entries(pair, mapping) == set()


def test_a_matrix_turned_or_not() -> None:
    pair = build(Program("sequence", (Step("functional", n=1), Step("functional"))))
    right = mapped(pair, {})
    assert complaints(pair, right) == []
    entries = [Entry(e.torch, e.mindspore) for e in right.entries]
    assert len(complaints(pair, Mapping(right.torch, right.mindspore, tuple(entries)))) == 1


def test_complaints() -> None:
    pair = build(BRANCHES)
    swapped = {"q2.weight": "k2.weight", "k2.weight": "q2.weight"}
    assert [c.split(":")[0] for c in complaints(pair, mapped(pair, swapped))] == ["wrong and not marked"] * 2
    found = complaints(pair, mapped(pair, swapped, proven="forward"))
    assert sum("wrong and proven" in c for c in found) == 2
    assert sum("no output depends on it" in c for c in found) == len(pair.unexercised)


def test_random_state_is_left_alone() -> None:
    import torch

    before = random.getstate(), torch.get_rng_state().tolist()
    build(EVERY[1])
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
