"""Gradients and curvature of both networks: what agrees, what differs and where, and what nobody can tell."""

from __future__ import annotations

import contextlib
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from automap import parity
from automap.curvature import Curvature, compare_curvature
from automap.errors import NotRunnableError
from automap.gradients import Case, Gradients, Point, _judged, compare_gradients
from automap.graph import Listing, Param
from automap.mapping import Entry, Mapping, Side
from automap.parity import Wanted
from automap.relabeling import Link, Links
from automap.running import Loss
from automap.transforms import Transform
from automap.validation import Validation, validate

# -- the mapping as a change of places ---------------------------------------------------------------------------------


def links(entries: list[Entry], torch: list[Param], mindspore: list[Param], frozen: tuple[str, ...] = ()) -> Links:
    trained = {name for p in torch for name in (p.name, *p.aliases)} - set(frozen)
    mapping = mapping_of(entries)
    return Links.of(mapping, Listing("torch", tuple(torch)), Listing("mindspore", tuple(mindspore)), trained, {"q"})


def mapping_of(entries: list[Entry]) -> Mapping:
    return Mapping(Side("", 0, ""), Side("", 0, ""), tuple(entries))


def weight(name: str, *shape: int, **more: Any) -> Param:
    return Param(name, shape, "float32", **more)


def test_values_go_there_and_back():
    split = (Transform("split", {"axis": 0, "sizes": [2, 2, 2]}), Transform("transpose", {"axes": [1, 0]}))
    found = links(
        [
            Entry(("qkv",), ("q", "k", "v"), split),
            Entry(("a", "b"), ("ab",), (Transform("concat", {"axis": 0}), Transform("cast", {"dtype": "float16"}))),
            Entry(("conv",), ("conv1d",)),
        ],
        [weight("qkv", 6, 3), weight("a", 2), weight("b", 3), weight("conv", 4, 3, 5)],
        [weight("q", 3, 2), weight("k", 3, 2), weight("v", 3, 2), weight("ab", 5), weight("conv1d", 4, 3, 1, 5)],
    )
    assert found.left_out == ()
    assert found.frozen == ("k", "v", "ab", "conv1d")
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(s) for n, s in (("qkv", (6, 3)), ("a", 2), ("b", 3), ("conv", (4, 3, 5)))}
    made = found.to_mindspore(values)
    assert {n: a.shape for n, a in made.items()} == {
        "q": (3, 2),
        "k": (3, 2),
        "v": (3, 2),
        "ab": (5,),
        "conv1d": (4, 3, 1, 5),
    }
    assert made["ab"].dtype == np.float64  # no cast
    assert np.array_equal(made["k"], values["qkv"][2:4].T)
    back = found.to_torch(made)
    assert all(np.array_equal(back[name], array) for name, array in values.items())
    # Compared in the finer pieces of the two sides: q, k and v by MindSpore's names, a and b by PyTorch's.
    ours, theirs = found.torch_pieces(values), found.mindspore_pieces(made)
    assert (
        list(ours)
        == list(theirs)
        == [
            (("qkv",), ("q",)),
            (("qkv",), ("k",)),
            (("qkv",), ("v",)),
            (("a",), ("ab",)),
            (("b",), ("ab",)),
            (("conv",), ("conv1d",)),
        ]
    )
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_a_tied_weight_that_the_port_parts_is_summed():
    found = links(
        [Entry(("emb",), ("table",)), Entry(("head",), ("head",), (Transform("transpose", {"axes": [1, 0]}),))],
        [weight("emb", 4, 2, aliases=("head",))],
        [weight("table", 4, 2), weight("head", 2, 4)],
    )
    assert found.shared() == {"emb": ("table", "head")}
    assert found.torch == ("emb",)
    a, b = np.arange(8.0).reshape(4, 2), np.ones((2, 4))
    ((key, theirs),) = found.mindspore_pieces({"table": a, "head": b}).items()
    assert key == (("emb",), ("table", "head"))
    assert np.array_equal(theirs, a + b.T)
    assert list(found.torch_pieces({"emb": a})) == [key]


def test_what_does_more_than_change_places_is_left_out_with_the_reason():
    doubled = Transform("scale", {"factor": 2.0})
    found = links(
        [Entry(("a",), ("x",), (doubled,)), Entry(("b",), ("y",)), Entry(("n",), ("z",))],
        [weight("a", 3), weight("b", 3), weight("n", 3, kind="buffer")],
        [weight("x", 3), weight("y", 3), weight("z", 3)],
        frozen=("b",),
    )
    assert found.links == ()
    assert found.left_out == (("a", f"{doubled} is no change of places"), ("b", "frozen in PyTorch"))


def test_names_may_carry_a_prefix():
    found = links([Entry(("fc.w",), ("fc.w",))], [weight("module.fc.w", 2)], [weight("net.fc.w", 2)])
    assert found.links == (Link(("module.fc.w",), ("net.fc.w",)),)


# -- one gradient judged -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "spread", "state", "words"),
    [
        ([1.0, -2.0], [1.0, -2.0001], 0.0, "agrees", "off by 5e-05 of its scale; allowed 0.0001"),
        ([1.0, -2.0], [1.0, -2.001], 0.0, "differs", "off by 0.0005 of its scale; allowed 0.0001"),
        ([1.0, -2.0], [1.0, -2.001], 1e-3, "agrees", "off by 0.0005 of its scale; allowed 0.0015"),  # rounding
        ([0.0, 0.0], [0.0, 0.0], 0.0, "not exercised", "0 at most in PyTorch, off by 0; allowed 1.2e-06"),
        ([1e-9, 0.0], [-2e-9, 0.0], 1e-9, "not exercised", "1e-09 at most in PyTorch, off by 3e-09; allowed 1.2e-06"),
        ([0.0, 0.0], [0.0, 0.01], 0.0, "differs", "none in PyTorch, 0.01 at most in MindSpore"),
        ([0.0, 0.01], [0.0, 0.0], 0.0, "differs", "none in MindSpore, 0.01 at most in PyTorch"),
        ([1.0, 1.0], [1.0, math.nan], 0.0, "differs", "it is not a number everywhere"),
    ],
)
def test_a_gradient_is_judged_by_its_scale_and_its_noise(ours, theirs, spread, state, words):
    key, other = (("a",), ("b",)), (("c",), ("c",))
    arrays = (
        {k: np.array(v) for k, v in pair.items()} for pair in ({key: ours, other: [1.0]}, {key: theirs, other: [1.0]})
    )
    first, second = _judged(*arrays, {key: spread, other: 0.0}, 0, 1e-4, 2.0**-23)
    assert (first.state, second.state) == (state, "agrees")
    assert first.words == f"by a -> b: {words}"


# -- networks of NumPy, whose derivatives are known --------------------------------------------------------------------

RNG = np.random.default_rng(7)
#: The output is ``M x``; so the loss ``w M x + sum(|w| (M x)**2) / 2`` has the Hessian ``M' |w| M``.
M = RNG.standard_normal((5, 6))


class Fake:
    """A network whose output is a matrix times its parameters; a fault scales its second derivative."""

    dtype = "float64"

    def __init__(self, fault: float = 1.0, wrong: float = 1.0) -> None:
        self.x, self.fault, self.wrong = np.zeros(6), fault, wrong

    @contextlib.contextmanager
    def holding(self, state: Any) -> Any:
        before, self.x = self.x, np.concatenate([state["a"], state["b"]])
        yield
        self.x = before

    def gradients(self, inputs: Any, loss: Loss, names: Any, forward: Any = None) -> dict[str, Any]:
        w = loss.weights.astype(np.float64)
        g = M.T @ w * self.wrong + loss.bend * self.fault * M.T @ (np.abs(w) * (M @ self.x))
        return {"a": g[:2], "b": g[2:]}

    def gradients_with_noise(self, *args: Any, **_: Any) -> dict[str, Any]:
        return {name: g * (1 + 1e-12) for name, g in self.gradients(*args[:3]).items()}

    def double(self) -> Fake:
        return self


def fake_point(**mindspore: float) -> tuple[Point, Case]:
    state = {"a": RNG.standard_normal(2), "b": RNG.standard_normal(4)}
    names = Links((Link(("a",), ("a",)), Link(("b",), ("b",))))
    both = Fake(), Fake(**mindspore)
    return Point(*both, names, state, state, dict), Case([], M @ np.ones(6), M @ np.ones(6))


def hessian(case: Case) -> Any:
    losses = case.losses(0, 0)
    assert losses is not None
    return M.T @ np.diag(np.abs(losses[0].weights.astype(np.float64))) @ M


def test_the_second_derivative_and_the_greatest_eigenvalue_are_those_of_the_hessian():
    point, case = fake_point()
    found = compare_curvature(point, case, 2, eigenvalue=True)
    assert found.passed
    assert (found.parameters, found.reference) == (6, "float64")
    first, second, greatest = found.bends
    eigenvalues = np.linalg.eigvalsh(hessian(case))
    assert greatest.torch == pytest.approx(eigenvalues[-1], rel=1e-3)
    assert greatest.converged
    assert all(eigenvalues[0] - 1e-9 <= b.torch <= eigenvalues[-1] for b in (first, second))
    assert first.torch != second.torch
    assert first.truncation < 1e-6 * first.torch
    assert compare_curvature(point, case, 2, eigenvalue=True) == found


def test_another_second_derivative_is_seen_though_the_gradient_agrees():
    point, case = fake_point(fault=1.01)
    assert compare_gradients(point, [case]).passed
    found = compare_curvature(point, case, 3, eigenvalue=True)
    assert [b.state for b in found.bends] == ["differs"] * 4
    assert [b.to_scale for b in found.bends] == pytest.approx([0.01] * 4, rel=1e-3)
    assert found.words.startswith("the curvature differs in 4 of 4 number(s), most ")


def test_a_curvature_of_nothing_but_rounding_is_not_said_to_agree(monkeypatch):
    point, case = fake_point()
    monkeypatch.setattr(
        Fake, "gradients_with_noise", lambda self, *_, **__: {n: RNG.random(a.shape) for n, a in point.state.items()}
    )
    found = compare_curvature(point, case, 1)
    assert [b.state for b in found.bends] == ["not exercised"]
    assert not found.passed
    assert found.words == "the curvature proves nothing: it cannot be told from rounding"


def test_no_loss_no_gradient():
    point, _ = fake_point()
    case = Case([], np.arange(3), np.arange(3))
    found = compare_gradients(point, [case])
    assert (found.comparisons, found.passed) == ((), False)
    assert "no output has floating-point numbers in both networks" in found.notes[0]
    assert compare_curvature(point, case).bends == ()


@pytest.mark.parametrize(
    ("passed", "exit_code", "mindspore", "expected"),
    [
        (True, 0, {}, (True, 0)),
        (True, 0, {"wrong": 1.1}, (False, 3)),
        (False, 1, {"wrong": 1.1}, (False, 1)),
        (False, 3, {}, (False, 3)),
    ],
)
def test_the_exit_code_follows_the_outputs_first(passed, exit_code, mindspore, expected):
    point, case = fake_point(**mindspore)
    point.mindspore.modules = {}
    point.mindspore.run = lambda *_, **__: None
    found = parity.examine(Wanted(gradients=True), point, [case], passed, "The outputs.", exit_code)
    assert (found.passed, found.exit_code) == expected
    assert found.verdict.startswith("The outputs, but 2 of 2" if passed and mindspore else "The outputs; 2 ")
    assert found.verdict.endswith(".")


def test_a_backward_that_cannot_run_is_told_apart():
    point, case = fake_point()

    def fails(*_: Any) -> Any:
        raise NotRunnableError("the backward of Qr has no kernel", "Qr")

    point.mindspore.gradients = fails
    found = parity.examine(Wanted(gradients=True), point, [case], True, "The outputs agree.", 0)
    assert (found.passed, found.exit_code, found.operation, found.gradients) == (False, 4, "Qr", None)
    assert found.verdict == "The outputs agree; the backward of Qr has no kernel."
    assert parity.examine(Wanted(gradients=True), point, [case], False, "They differ.", 1).exit_code == 1


# -- both frameworks ---------------------------------------------------------------------------------------------------

frameworks = pytest.mark.frameworks
IMAGE = "float32[2,3,6,6]"
LAYERS = ("conv1", "conv2", "fc1", "fc2")
NAMES = {f"{layer}.{kind}": f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")}
NAMES |= {f"n{i}.{t}": f"n{i}.{m}" for i in (1, 2) for t, m in (("weight", "gamma"), ("bias", "beta"))}
NAMES |= {"idle.weight": "idle.weight", "idle.bias": "idle.bias"}


def torch_net(square: Any = None) -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.conv2 = torch.nn.Conv2d(4, 5, 3, padding=1)
            self.n1 = torch.nn.LayerNorm(5)
            self.fc1 = torch.nn.Linear(5, 5)
            self.n2 = torch.nn.LayerNorm(5)
            self.fc2 = torch.nn.Linear(5, 5)
            self.idle = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3))
            return {"logits": self.fc2(torch.tanh(self.n2(self.fc1(self.n1(x))))), "count": torch.tensor(3)}

    return Net()


def ms_net(relu2: Any = None, tail: Any = None) -> Any:
    from mindspore import nn, ops

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True)
            self.conv2 = nn.Conv2d(4, 5, 3, pad_mode="pad", padding=1, has_bias=True)
            self.relu2 = nn.ReLU() if relu2 is None else relu2
            self.n1 = nn.LayerNorm([5], epsilon=1e-5)
            self.fc1 = nn.Dense(5, 5)
            self.n2 = nn.LayerNorm([5], epsilon=1e-5)
            self.fc2 = nn.Dense(5, 5)
            self.idle = nn.Dense(2, 2)
            self.tail = nn.Identity() if tail is None else tail

        def construct(self, x: Any) -> Any:
            x = self.relu2(self.conv2(ops.relu(self.conv1(x)))).mean((2, 3))
            return self.tail(self.fc2(ops.tanh(self.n2(self.fc1(self.n1(x)))))), 3

    return Net()


def states(found: Validation) -> dict[str, str]:
    assert found.gradients is not None
    return {c.torch[0]: c.state for c in found.gradients.comparisons}


@frameworks
def test_a_right_port_agrees_in_gradients_and_curvature_and_is_left_as_it_was(monkeypatch):
    monkeypatch.setattr("automap.curvature._STEPS", 3)
    t, m = torch_net(), ms_net()
    names = [p.name for p in m.get_parameters()]
    found = validate(NAMES, t, m, inputs=[IMAGE], curvature=1, hessian_eigenvalue=True)
    assert (found.passed, found.exit_code) == (True, 0), found
    assert "; 12 gradient(s) agree: off by at most " in found.verdict
    assert "; 2 not exercised: idle.weight, idle.bias; the curvature agrees in 2 number(s): off by " in found.verdict
    assert {n for n, s in states(found).items() if s != "agrees"} == {"idle.weight", "idle.bias"}
    assert found.gradients is not None
    assert found.gradients.greatest is not None
    assert found.gradients.greatest < 1e-4
    assert found.curvature is not None
    assert (found.curvature.reference, len(found.curvature.bends)) == ("float64", 2)
    assert [p.name for p in m.get_parameters()] == names
    assert all(p.grad is None and p.requires_grad for p in t.parameters())
    assert t.training

    content = json.loads(found.to_json())
    assert content["gradients"]["passed"] is content["curvature"]["passed"] is True
    assert content["gradients"]["comparisons"][0]["torch"] == ["conv1.weight"]
    assert content["curvature"]["bends"][0]["what"] == "along direction 1"
    assert "curvature along direction 1: " in str(found)
    assert "along direction 1" in drawn(found)


@frameworks
def test_a_backward_that_differs_is_the_networks_fault_and_named():
    from mindspore import nn, ops

    class Straight(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.relu(x)

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            return (dout,)

    found = validate(NAMES, torch_net(), ms_net(Straight()), inputs=[IMAGE], grad=True)
    assert (found.passed, found.exit_code) == (False, 3)
    assert {n for n, s in states(found).items() if s == "differs"} == {
        "conv1.weight",
        "conv1.bias",
        "conv2.weight",
        "conv2.bias",
    }
    assert found.verdict.startswith("The outputs agree in 2 runs on different inputs: off by ")
    assert ", but 4 of 12 gradient(s) differ, most by conv" in found.verdict
    assert (
        ". They differ up to conv2 and agree from n1 on: look at conv2 (Conv2d), relu2 (Straight), n1 (LayerNorm); 2 "
        "not exercised: "
    ) in found.verdict
    assert found.curvature is None
    assert "gradient by" in drawn(found)


@frameworks
def test_a_backward_that_differs_at_the_end_differs_everywhere():
    from mindspore import nn

    class Grown(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x * 1

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            return (dout * 1.001,)

    found = validate(NAMES, torch_net(), ms_net(tail=Grown()), inputs=[IMAGE], grad=True)
    assert found.exit_code == 3
    assert ", but 12 of 12 gradient(s) differ, most by " in found.verdict
    assert ". They differ up to the last: look at fc2 (Dense), tail (Grown); 2 not exercised: " in found.verdict


@frameworks
def test_a_network_that_records_no_gradient():
    import torch

    t = torch_net()
    found = validate(
        NAMES, t, ms_net(), inputs=[IMAGE], grad=True, torch_forward=torch.no_grad()(lambda net, x: net(x))
    )
    assert found.exit_code == 3
    assert "none in PyTorch, " in found.verdict
    assert ". PyTorch's outputs depend on no parameter by a gradient (no_grad, or detached)" in found.verdict


@frameworks
def test_swapped_entries_show_where_their_values_hide_them():
    t = torch_net()  # as it comes: all norms have ones and zeros
    swapped = NAMES | {"n1.weight": "n2.gamma", "n2.weight": "n1.gamma", "n1.bias": "n2.beta", "n2.bias": "n1.beta"}
    found = validate(swapped, t, ms_net(), inputs=[IMAGE], weights=t, grad=True)
    assert (found.passed, found.exit_code) == (False, 1), found
    assert found.gradients is not None
    assert {c.torch[0]: c.same_as for c in found.gradients.of("differs")} == {
        "n1.weight": "n2.weight",
        "n2.weight": "n1.weight",
        "n1.bias": "n2.bias",
        "n2.bias": "n1.bias",
    }
    assert "The mapping is wrong there" in found.verdict
    assert validate(NAMES, t, ms_net(), inputs=[IMAGE], weights=t, grad=True).exit_code == 0


@frameworks
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_transposed_square_matrix_is_the_mappings_fault(symmetric):
    import torch

    t = torch_net()
    with torch.no_grad():
        t.fc1.weight.copy_(t.fc1.weight + t.fc1.weight.T)
    entries = [Entry((a,), (b,)) for a, b in NAMES.items() if a != "fc1.weight"]
    entries.append(Entry(("fc1.weight",), ("fc1.weight",), (Transform("transpose", {"axes": [1, 0]}),)))
    weights = t if symmetric else None
    found = validate(mapping_of(entries), t, ms_net(), inputs=[IMAGE], weights=weights, grad=True)
    assert (found.passed, found.exit_code) == (False, 1)
    assert found.gradients is not None
    differing = found.gradients.of("differs")
    assert "fc1.weight" in {c.torch[0] for c in differing}
    assert found.gradients.mapping_is_wrong == symmetric
    if symmetric:
        assert [(c.torch, c.same_as) for c in differing] == [(("fc1.weight",), "fc1.weight transposed")]
    else:
        assert f"; {len(differing)} of 12 gradient(s) differ, most by " in found.verdict


@frameworks
def test_frozen_parameters():
    t, m = torch_net(), ms_net()
    t.fc2.bias.requires_grad_(False)
    m.conv1.weight.requires_grad = False
    found = validate(NAMES, t, m, inputs=[IMAGE], grad=True)
    assert found.passed, found
    assert (states(found)["conv1.weight"], "fc2.bias" in states(found)) == ("agrees", False)
    assert found.gradients is not None
    assert found.gradients.left_out == (("fc2.bias", "frozen in PyTorch"),)
    assert "1 parameter(s) are frozen in MindSpore only: conv1.weight" in str(found)
    assert "1 gradient(s) were not compared (frozen in PyTorch): fc2.bias" in str(found)
    assert not m.conv1.weight.requires_grad
    assert not t.fc2.bias.requires_grad
    for p in t.parameters():
        p.requires_grad_(False)
    found = validate(NAMES, t, m, inputs=[IMAGE], grad=True)
    assert (found.passed, found.exit_code) == (False, 1)
    assert "the gradients prove nothing: PyTorch trains no mapped parameter" in found.verdict


@frameworks
@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights(tied):
    import torch
    from mindspore import nn, ops

    class Torch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids: Any) -> Any:
            return self.head(torch.tanh(self.emb(ids)))

    class Port(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(7, 4)
            self.head = nn.Dense(4, 7, has_bias=False)
            if tied:
                self.head.weight = self.emb.embedding_table

        def construct(self, ids: Any) -> Any:
            return self.head(ops.tanh(self.emb(ids)))

    port = Port()
    table = port.emb.embedding_table.name
    names = {"emb.weight": table} if tied else {"emb.weight": table, "head.weight": "head.weight"}
    found = validate(names, Torch(), port, inputs=["int64[3,5]<7"], grad=True, curvature=1)
    assert found.passed, found
    assert found.gradients is not None
    (one,) = found.gradients.comparisons
    assert (one.state, one.torch) == ("agrees", ("emb.weight",))
    assert one.mindspore == ((table,) if tied else (table, "head.weight"))
    assert tied or "is one parameter in PyTorch, in MindSpore emb.embedding_table, head.weight" in str(found)


@frameworks
def test_a_backward_without_a_kernel_gives_status_4():
    from mindspore import nn, ops

    class Gate(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x * ops.heaviside(x, ops.zeros_like(x))

    found = validate(NAMES, torch_net(), ms_net(Gate()), inputs=[IMAGE], grad=True)
    assert (found.passed, found.exit_code, found.operation) == (False, 4, "Heaviside")
    assert found.verdict.startswith("The outputs agree in 2 runs")
    assert "the backward of Heaviside has no kernel on CPU" in found.verdict
    assert found.gradients is None
    assert validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE], grad=True).passed  # nothing is left behind


def drawn(found: Validation) -> str:
    from rich.console import Console

    console = Console(width=160, record=True, file=SimpleNamespace(write=lambda _: None, flush=lambda: None))
    console.print(found)
    return console.export_text()


def test_nothing_is_said_of_what_nobody_asked_for():
    found = Validation(True, "The outputs agree.", 0)
    assert str(found) == "The outputs agree."
    assert json.loads(found.to_json())["gradients"] is None
    assert parity.tables(Gradients(()), Curvature((), 0.1, "float32", 0)) == []
