"""Proof by running: what its verdict is, in words and numbers, and what it says of each entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hard_pairs import Pair, dense, linear, mindspore_net, torch_net, values

from automap.errors import InputError, MappingError
from automap.evidence import STATUSES, Proof
from automap.inference import infer
from automap.mapping import Entry, Mapping, Side

frameworks = pytest.mark.frameworks


def inferred(pair: Pair, **words: Any) -> Mapping:
    return infer(pair.torch, pair.mindspore, **{"inputs": [pair.inputs], **words})


def two_layers(construct: Callable[..., Any] | None = None) -> Pair:
    """A pair without a fault, if the port is not given another construct."""

    def plain(n: Any, x: Any) -> Any:
        return n.b(n.a(x).tanh())

    torch = torch_net(lambda n, x: n.b(n.a(x).tanh()), a=linear(), b=linear())
    return Pair(torch, mindspore_net(construct or plain, a=dense(), b=dense()), {}, values(3, 6))


# ------------------------------------------------------------------------------------------------------------ the value

FULL = Proof(
    "proven",
    "as far as can be told",
    (3, 4),
    ("float32[2,6]",),
    3.2e-7,
    1e-7,
    1e-5,
    ("a.bias",),
    (("b.bias", "c.bias"),),
    ("one thing", "another"),
    2e-6,
)


def mapping_with(proof: Proof | None) -> Mapping:
    entry = Entry(("a.bias",), ("x.bias",), evidence={"names": 1.0, "proven": "forward"})
    return Mapping(Side("t", 1, "0"), Side("m", 1, "0"), (entry,), proof=proof)


@pytest.mark.parametrize(
    "proof", [FULL, None, *(Proof(s) for s in STATUSES), Proof("open", error=math.inf, floor=math.nan)]
)
def test_a_mapping_keeps_its_proof(proof: Proof | None) -> None:
    mapping = mapping_with(proof)
    again = Mapping.from_json(mapping.to_json())
    assert again.proof == proof
    assert again.to_json() == mapping.to_json()
    assert again.entries[0].evidence["proven"] == "forward"


def test_what_is_empty_is_not_written() -> None:
    assert Proof("proven").to_json() == {"status": "proven"}
    assert FULL.to_json() == {
        "status": "proven",
        "reason": "as far as can be told",
        "seeds": [3, 4],
        "inputs": ["float32[2,6]"],
        "error": 1e-6,
        "floor": 1e-7,
        "allowed": 1e-5,
        "repaired": 1e-5,
        "not_exercised": ["a.bias"],
        "findings": ["one thing", "another"],
        "alike": [["b.bias", "c.bias"]],
    }


@pytest.mark.parametrize(
    "text",
    [
        '"proof": 3',
        '"proof": {}',
        '"proof": {"status": "good"}',
        '"proof": {"status": "proven", "error": "small"}',
        '"proof": {"status": "proven", "seeds": 3}',
        '"proof": {"status": "proven", "alike": [["a"]]}',
        '"proof": {"status": "proven", "seed": [3]}',
    ],
)
def test_a_proof_that_is_none(text: str) -> None:
    good = mapping_with(Proof("proven")).to_json()
    assert '"proof": {"status": "proven"}' in good
    with pytest.raises(MappingError, match="proof"):
        Mapping.from_json(good.replace('"proof": {"status": "proven"}', text))


@pytest.mark.parametrize(
    ("value", "bound"),
    [(0.0, 0.0), (1e-6, 1e-6), (1.0001e-6, 1e-5), (9.99e-7, 1e-6), (1.0, 1.0), (3, 10.0)],
)
def test_numbers_are_told_by_their_power_of_ten(value: float, bound: float) -> None:
    assert Proof("open", error=value).error == bound
    assert Proof("open", floor=value, allowed=value, repaired=value).repaired == bound


def test_exit_codes() -> None:
    assert {s: Proof(s).exit_code for s in STATUSES} == {
        "proven": 0, "differs": 3, "open": 1, "not run": 4, "no input": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (
            Proof("proven", seeds=(0, 1), error=3e-7, floor=1e-7, allowed=1e-5),
            "proven by running both networks: the outputs agree under 2 seeds: off by less than 1e-06 of their scale "
            "(rounding alone: 1e-07, allowed: 1e-05)",
        ),
        (Proof("proven", seeds=(0,)), "proven by running both networks: the outputs agree under 1 seed"),
        (
            Proof("differs", error=0.2, repaired=2e-6),
            "the mapping holds, but the networks differ: off by less than 1e+00 of their scale; "
            "with all of it repaired: less than 1e-05",
        ),
        (
            Proof("open", "the first cell is a", error=0.2),
            "not proven: the outputs differ: off by less than 1e+00 of their scale; the first cell is a",
        ),
        (Proof("not run", "no kernel"), "not proven; no kernel"),
        (Proof("no input", "no input is known"), "not proven; no input is known"),
    ],
)
def test_in_words(proof: Proof, words: str) -> None:
    assert str(proof) == words


# ----------------------------------------------------------------------------------------------------------- verdicts


@frameworks
def test_proven() -> None:
    mapping = inferred(two_layers(), seed=5)
    proof = mapping.proof
    assert proof is not None
    assert (proof.status, proof.exit_code, proof.reason) == ("proven", 0, "")
    assert (proof.seeds, proof.inputs) == ((5, 6), ("float32[3,6]",))
    assert proof.error is not None
    assert proof.floor is not None
    assert proof.allowed is not None
    assert proof.error <= proof.allowed <= 1e-4
    assert 0 < proof.floor <= proof.allowed
    assert (proof.not_exercised, proof.alike, proof.findings, proof.repaired) == ((), (), (), None)
    assert {e.evidence["proven"] for e in mapping.entries} == {"forward"}
    assert min(e.confidence for e in mapping.entries) >= 0.9999


@frameworks
def test_the_same_bytes_every_time() -> None:
    pair = two_layers()
    assert inferred(pair).to_json() == inferred(pair).to_json() == inferred(two_layers()).to_json()


@frameworks
def test_an_activation_that_differs_a_little() -> None:
    """A fault between the cells: what follows sees something else, and nothing is called proven."""
    import mindspore as ms

    mapping = inferred(two_layers(lambda n, x: n.b(ms.ops.tanh(n.a(x)) * 1.001)))
    proof = mapping.proof
    assert proof is not None
    assert proof.status in ("open", "differs")
    assert proof.exit_code in (1, 3)
    assert proof.error is not None
    assert proof.allowed is not None
    assert 1e-4 <= proof.error <= 1e-2
    assert proof.error > proof.allowed
    assert {e.evidence["proven"] for e in mapping.entries} == {None}
    assert {e.torch[0]: e.mindspore[0] for e in mapping.entries} == {
        n: n for n in ("a.weight", "a.bias", "b.weight", "b.bias")
    }


@frameworks
def test_a_difference_in_the_outputs_only() -> None:
    """After the last cell: every cell agrees, the outputs do not."""
    mapping = inferred(two_layers(lambda n, x: n.b(n.a(x).tanh()) + 0.01))
    assert mapping.proof is not None
    assert mapping.proof.status in ("open", "differs")
    assert {e.evidence["proven"] for e in mapping.entries} == {None}


@frameworks
def test_only_under_the_second_seed() -> None:
    """A port that agrees in one run and not in the next one."""
    runs: list[Any] = []

    def construct(n: Any, x: Any) -> Any:
        first = float(x.sum().asnumpy())
        if first not in runs:
            runs.append(first)
        return n.b(n.a(x).tanh()) * (1 if len(runs) == 1 else 1.5)

    mapping = inferred(two_layers(construct), inputs="float32[3,6]")
    assert len(runs) == 2
    assert mapping.proof is not None
    assert mapping.proof.status in ("open", "differs")
    assert {e.evidence["proven"] for e in mapping.entries} == {None}


@frameworks
@pytest.mark.parametrize(
    ("construct", "words"),
    [
        (lambda n, x: n.b(n.a(x).tanh())[:2], "shape"),
        (lambda n, x: (n.b(n.a(x).tanh()), x), "2 in MindSpore"),
        (lambda n, x: n.b(n.a(x).tanh()) * float("nan"), "not a number"),
        (lambda n, x: n.a(x) * 0 + x, ""),
        (lambda n, x: None, ""),
    ],
    ids=["another shape", "one more", "not a number", "no effect", "nothing"],
)
def test_outputs_of_another_form(construct: Callable[..., Any], words: str) -> None:
    mapping = inferred(two_layers(construct))
    assert mapping.proof is not None
    assert mapping.proof.status in ("open", "differs")
    assert mapping.proof.exit_code != 0
    assert words in mapping.proof.reason
    assert Mapping.from_json(mapping.to_json()).proof == mapping.proof
    assert {e.evidence["proven"] for e in mapping.entries} == {None}


@frameworks
def test_an_operation_without_a_kernel() -> None:
    def construct(n: Any, x: Any) -> Any:
        n.a(x)
        raise RuntimeError("Unsupported op [SomeOp] on CPU, please confirm whether the device is right.")

    pair = two_layers(construct)
    static = inferred(pair, static=True)
    mapping = inferred(pair)
    assert static.proof is None
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("not run", 4)
    assert "SomeOp has no kernel on CPU" in mapping.proof.reason
    assert mapping.entries == static.entries


@frameworks
def test_no_input_is_known() -> None:
    torch = torch_net(lambda n, x: x * n.scale, scale=values(6))
    port = mindspore_net(lambda n, x: x * n.scale, scale=values(6))
    mapping = infer(torch, port)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("no input", 0)
    assert mapping.proof.reason == "no input is known that both networks take"
    assert mapping.entries == infer(torch, port, static=True).entries
    assert infer(torch, port, inputs="float32[2,6]").proof.status == "proven"  # type: ignore[union-attr]


@frameworks
def test_no_guess_fits() -> None:
    """What the first layer tells is not what the network takes."""
    torch = torch_net(lambda n, x: n.a(x["deep"]), a=linear())
    mapping = infer(torch, mindspore_net(lambda n, x: n.a(x), a=dense()))
    assert mapping.proof is not None
    assert mapping.proof.status == "no input"
    assert "the PyTorch network does not run on float32[2,6]" in mapping.proof.reason


@frameworks
def test_inputs_are_guessed() -> None:
    pair = two_layers()
    proof = inferred(pair, inputs=None).proof
    assert proof is not None
    assert (proof.status, proof.inputs) == ("proven", ("float32[2,6]",))


@frameworks
@pytest.mark.parametrize("inputs", ["float32[3,7]", {"y": values(3, 6)}, "no input", ["float32[3,6]", "float32[1]"]])
def test_inputs_that_do_not_fit(inputs: Any) -> None:
    with pytest.raises(InputError):
        inferred(two_layers(), inputs=inputs)


@frameworks
def test_one_side_is_no_network() -> None:
    pair = two_layers()
    state = {name: t.detach().numpy() for name, t in pair.torch.state_dict().items()}
    assert infer(state, pair.mindspore).proof is None


@frameworks
def test_fixed_arrays_and_names() -> None:
    pair = two_layers()
    proof = inferred(pair, inputs={"x": values(3, 6)}).proof
    assert proof is not None
    assert (proof.status, proof.inputs) == ("proven", ("x=float32[3,6]",))


@frameworks
def test_what_is_told_of_a_port_that_differs() -> None:
    """What comes before the fault is confirmed as far as something agrees that depends on it; the rest is marked."""
    import mindspore as ms

    def construct(n: Any, x: Any) -> Any:
        y = n.b(n.a(x).tanh()).tanh()
        return n.d(n.c(y + 0.3 * ms.ops.sin(9 * y) * y.mean()).tanh())

    torch = torch_net(
        lambda n, x: n.d(n.c(n.b(n.a(x).tanh()).tanh()).tanh()), a=linear(), b=linear(), c=linear(), d=linear()
    )
    port = mindspore_net(construct, a=dense(), b=dense(), c=dense(), d=dense())
    mapping = infer(torch, port, inputs="float32[3,6]", ignore_names=True)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.seeds) == ("open", (0, 1))
    sure = {e.torch[0]: e for e in mapping.entries}
    assert sure["a.weight"].evidence["execution"] == 1
    assert not sure["a.weight"].review
    for e in mapping.entries:
        assert e.evidence["proven"] is None
        if e.evidence["execution"] == 1:
            assert e.confidence >= 0.999
        else:
            assert e.review, e
            assert e.why


@frameworks
def test_a_dead_output() -> None:
    """Where everything is the same whatever the weights are, nothing is proven."""
    torch = torch_net(lambda n, x: n.b(n.a(x)) * 0, a=linear(), b=linear())
    port = mindspore_net(lambda n, x: n.b(n.a(x)) * 0, a=dense(), b=dense())
    mapping = infer(torch, port, inputs="float32[3,6]")
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("open", 1)
    assert "nothing in the mapping has an effect" in mapping.proof.reason
    assert set(mapping.proof.not_exercised) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert {e.evidence["proven"] for e in mapping.entries} == {None}


@frameworks
def test_whole_numbers_that_nothing_uses() -> None:
    """Two tables, of which the networks use one."""
    import mindspore as ms
    import torch as pt

    class Net(pt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("used", pt.tensor([2, 0, 1]))
            self.register_buffer("idle", pt.tensor([0, 1, 2]))
            self.fc = linear()

        def forward(self, x: Any) -> Any:
            return self.fc(x)[self.used]

    port = mindspore_net(lambda n, x: n.fc(x)[n.used], fc=dense())
    for name in ("used", "idle"):
        setattr(port, name, ms.Parameter(ms.Tensor(np.arange(3)), name=name, requires_grad=False))
    mapping = infer(Net(), port, inputs="float32[3,6]")
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert mapping.proof.not_exercised == ("idle",)
    assert {e.torch[0] for e in mapping.entries if e.evidence["proven"] is None} == {"idle"}


@frameworks
def test_a_float16_network() -> None:
    """It is proven in float32, whose rounding is what is allowed."""
    import mindspore as ms

    pair = two_layers()
    pair.torch.half()
    pair.mindspore.to_float(ms.float16)
    for p in pair.mindspore.get_parameters():
        p.set_dtype(ms.float16)
    mapping = inferred(pair)
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert mapping.proof.allowed is not None
    assert mapping.proof.allowed < 1e-4
    assert mapping.proof.notes[0].startswith("computed in float32: the networks are float16; in float16 itself the ")


@frameworks
def test_values_far_beyond_the_layers_of_a_mask() -> None:
    """The lowest number of the type, as masks have it, hides nothing and warns of nothing."""
    import torch as pt
    from mindspore import ops

    lowest = float(np.finfo(np.float32).min)

    def forward(n: Any, x: Any) -> Any:
        hidden = n.b(pt.where(x > 0, n.a(x), lowest).softmax(-1))
        return n.c(hidden, lowest * (x > 1))

    def construct(n: Any, x: Any) -> Any:
        hidden = n.b(ops.softmax(ops.where(x > 0, n.a(x), lowest), -1))
        return n.c(hidden, lowest * (x > 1).astype(hidden.dtype))

    add = torch_net(lambda n, x, mask: n.fc(x) + mask.clamp(min=-1), fc=linear())
    twin = mindspore_net(lambda n, x, mask: n.fc(x) + ops.clamp(mask, min=-1), fc=dense())
    torch = torch_net(forward, a=linear(), b=linear(), c=add)
    port = mindspore_net(construct, a=dense(), b=dense(), c=twin)
    mapping = infer(torch, port, inputs="float32[3,6]")
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof


@frameworks
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_network() -> None:
    """Its modules are called where nobody sees it; the outputs prove the mapping all the same."""
    import torch as pt
    from mindspore import nn

    net = pt.jit.script(pt.nn.Sequential(linear(), pt.nn.BatchNorm1d(6), linear()))
    state = {name: t.clone() for name, t in net.state_dict().items()}
    port = nn.SequentialCell(dense(), nn.BatchNorm1d(6), dense())
    mapping = infer(net, port, inputs="float32[3,6]")
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert {e.evidence["proven"] for e in mapping.entries} == {"forward"}
    assert net.training
    assert all(pt.equal(t, state[name]) for name, t in net.state_dict().items())


@frameworks
def test_networks_inside_wrappers() -> None:
    """What wraps a network changes the names, and what is compiled is watched as it is."""
    import torch as pt

    pair = two_layers()
    for wrapped in (torch_net(lambda n, x: n.module(x), module=pair.torch), pt.compile(pair.torch, backend="eager")):
        proof = infer(wrapped, pair.mindspore, inputs="float32[3,6]").proof
        assert proof is not None
        assert proof.status == "proven"


@frameworks
def test_three_that_are_added() -> None:
    torch = torch_net(
        lambda n, x: n.d(n.a(x) + n.b(x * x) + n.c(x.abs())), a=linear(), b=linear(), c=linear(), d=linear()
    )
    port = mindspore_net(
        lambda n, x: n.d(n.c(x.abs()) + n.a(x) + n.b(x * x)), a=dense(), b=dense(), c=dense(), d=dense()
    )
    mapping = infer(torch, port, inputs="float32[3,6]")
    assert mapping.proof is not None
    assert mapping.proof.status == "proven"
    assert {n for pair in mapping.proof.alike for n in pair} == {"a.bias", "b.bias", "c.bias"}
    assert {e.torch[0] for e in mapping.entries if e.evidence["proven"] is None} == {"a.bias", "b.bias", "c.bias"}


@frameworks
def test_a_table_of_another_length_is_no_obstacle() -> None:
    """It cannot be converted without being told how; the rest of the network is run all the same."""
    import mindspore
    import torch

    ours = torch_net(lambda n, x: n.b(n.places(x)), places=torch.nn.Embedding(7, 6), b=linear())
    theirs = mindspore_net(lambda n, x: n.b(n.places(x)), places=mindspore.nn.Embedding(9, 6), b=dense())
    mapping = inferred(Pair(ours, theirs, {}, np.array([[0, 3, 6]])))
    places = next(e for e in mapping.entries if e.torch == ("places.weight",))
    assert places.review
    assert "its length is 7 in PyTorch and 9 in MindSpore" in places.why
    assert mapping.proof is not None
    assert mapping.proof.status not in ("proven", "not run")
    assert not any(e.evidence.get("proven") for e in mapping.entries)
