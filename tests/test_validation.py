from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from automap import comparison
from automap.comparison import compare, pair
from automap.dtypes import dtype_name
from automap.errors import ConversionError, InputError, NotRunnableError, SourceError
from automap.graph import Listing, Param
from automap.mapping import Mapping
from automap.probing import InputSpec, Probe, guess_inputs, open_inputs, parse_input, read_inputs
from automap.running import NOISE_BINS, check_fit, nested_to_numpy, one_line
from automap.seeding import seeded_weights
from automap.validation import Validation, validate


def listing(*params: Param) -> Listing:
    return Listing("torch", params)


# -- inputs in words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("float32[2,3,8,8]", InputSpec("float32", (2, 3, 8, 8))),
        ("int64[2,16]<100", InputSpec("int64", (2, 16), 100)),
        ("ids=int64[2,16]<100", InputSpec("int64", (2, 16), 100, "ids")),
        (" mask = bool[ 2, 16 ] ", InputSpec("bool", (2, 16), None, "mask")),
        ("float16[]", InputSpec("float16", ())),
    ],
)
def test_an_input_is_read_and_written(text, spec):
    assert parse_input(text) == spec
    assert parse_input(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("float32(2,3)", "'float32(2,3)' is not understood: write it as float32[2,3,224,224] or ids=int64[2,16]<100"),
        ("float32[2,,3]", "'float32[2,,3]' has a broken shape: write it as [2,3,224,224]"),
        ("float[2]", "unknown element type 'float'; there are float16, float32, float64, int8, int16"),
        ("bfloat16[2]", "write float32, a network in bfloat16 gets it in its own type"),
        ("int64[2,3]", "needs a limit for its whole numbers, such as int64[2,3]<100"),
        ("float32[2]<5", "'<' takes a limit above 0 for whole numbers"),
        ("int64[2]<0", "'<' takes a limit above 0 for whole numbers"),
    ],
)
def test_an_input_that_is_not_understood(text, words):
    with pytest.raises(InputError) as e:
        parse_input(text)
    assert words in str(e.value)
    assert "\n" not in str(e.value)
    assert e.value.text == text


def test_inputs_are_drawn_from_the_seed_and_the_run():
    probe = open_inputs(["float32[4,5]", "int64[200]<7", "bool[100]"])
    assert probe is not None
    x, ids, mask = probe.draw(0)
    assert [(a.dtype.name, a.shape) for a in (x, ids, mask)] == [
        ("float32", (4, 5)),
        ("int64", (200,)),
        ("bool", (100,)),
    ]
    assert (ids.min(), ids.max()) == (0, 6)
    assert 0 < mask.sum() < 100
    for again, same in ((probe.draw(0), True), (probe.draw(0, 1), False), (probe.draw(1), False)):
        assert np.array_equal(again[0], x) == same
    x, y = Probe((InputSpec("float32", (9,)),) * 2).draw(0)
    assert not np.array_equal(x, y)


def test_inputs_by_name_and_by_position():
    assert open_inputs(None) is None
    assert open_inputs([]) is None
    named = open_inputs({"x": "float32[2]", "mask": np.ones(2, bool)})
    assert named is not None
    assert not named.fixed
    assert list(named.draw(0)) == ["x", "mask"]
    assert named.describe() == ("x=float32[2]", "mask=bool[2]")
    assert open_inputs(["x=float32[2]", "y=float32[3]"]) == open_inputs({"x": "x=float32[2]", "y": "y=float32[3]"})
    fixed = open_inputs(np.array([[3, 1]]))
    assert fixed is not None
    assert fixed.fixed
    assert fixed.describe() == ("int64[1,2]<4",)
    with pytest.raises(InputError, match="some inputs have a name and some have none: name all of them, or none"):
        open_inputs(["x=float32[2]", "float32[3]"])
    with pytest.raises(InputError, match="an input is a float: give NumPy arrays of numbers, or words such as"):
        open_inputs([1.5])
    with pytest.raises(InputError, match=r"an input is an array of <U1"):
        open_inputs([np.array(["a"])])


def test_inputs_from_a_file(tmp_path: Path):
    x, y = np.ones((2, 3), np.float32), np.arange(4)
    np.savez(tmp_path / "a.npz", x, y)
    np.savez(tmp_path / "b.npz", ids=y, x=x)
    by_position, by_name = read_inputs(tmp_path / "a.npz"), read_inputs(tmp_path / "b.npz")
    assert isinstance(by_position, list)
    assert np.array_equal(by_position[1], y)
    assert isinstance(by_name, dict)
    assert list(by_name) == ["ids", "x"]
    probe = open_inputs(str(tmp_path / "b.npz"))
    assert probe is not None
    assert probe.describe() == ("ids=int64[4]<4", "x=float32[2,3]")
    (tmp_path / "c.npz").write_text("no zip")
    np.savez(tmp_path / "d.npz", x=np.array([{}], object))
    for name, words in (
        ("none.npz", "no such file of inputs"),
        ("c.npz", "no .npz file of plain"),
        ("d.npz", "no .npz file of"),
    ):
        with pytest.raises(InputError, match=words):
            read_inputs(tmp_path / name)


@pytest.mark.parametrize(
    ("params", "first"),
    [
        ([Param("stem.weight", (16, 3, 3, 3), owner="Conv2d")], "float32[2,3,64,64]"),
        ([Param("stem.weight", (16, 3, 5), owner="Conv1d")], "float32[2,3,64]"),
        ([Param("stem.weight", (16, 3, 5, 5, 5), owner="Conv3d")], "float32[2,3,16,16,16]"),
        ([Param("up.weight", (8, 4, 3, 3), owner="ConvTranspose2d")], "float32[2,8,64,64]"),
        ([Param("fc.weight", (5, 7), owner="Linear")], "float32[2,7]"),
        ([Param("words.weight", (100, 8), owner="Embedding")], "int64[2,16]<100"),
        ([Param("rnn.weight_ih_l0", (16, 6), owner="LSTM")], "float32[2,16,6]"),
        (
            [Param("cls_token", (1, 1, 8), owner="Net"), Param("p.weight", (8, 3, 4, 4), owner="Conv2d")],
            "float32[2,3,64,64]",
        ),
    ],
)
def test_inputs_are_guessed_from_the_first_layer(params, first):
    guess = next(guess_inputs(listing(*params)))
    assert [str(s) for s in guess.specs] == [first]
    assert params[-1].module in guess.reason
    assert len(next(guess_inputs(listing(*params), 2)).specs) == 2


def test_nothing_is_guessed_from_layers_that_do_not_tell():
    assert list(guess_inputs(listing(Param("scale", (3,), owner="Net")))) == []


def test_two_vocabularies_are_guessed_for_two_arguments():
    two = listing(Param("a.weight", (100, 8), owner="Embedding"), Param("b.weight", (50, 8), owner="Embedding"))
    guesses = [[str(s) for s in g.specs] for g in guess_inputs(two, 2)]
    assert ["int64[2,16]<100", "int64[2,16]<50"] in guesses


# -- seeded weights ----------------------------------------------------------------------------------------------------

NETWORK = listing(
    Param("stem.weight", (64, 32, 3, 3), "float32", owner="Conv2d"),
    Param("stem.bias", (64,), "float32", owner="Conv2d"),
    Param("bn.weight", (64,), "float32", owner="BatchNorm2d"),
    Param("bn.bias", (64,), "float32", owner="BatchNorm2d"),
    Param("bn.running_mean", (64,), "float32", "buffer", "BatchNorm2d"),
    Param("bn.running_var", (64,), "float32", "buffer", "BatchNorm2d"),
    Param("bn.num_batches_tracked", (), "int64", "buffer", "BatchNorm2d"),
    Param("words.weight", (50, 128), "float32", owner="Embedding"),
    Param("pos_embed", (1, 16, 128), "float32", owner="Net"),
    Param("gamma", (128, 1, 1), "float32", owner="Block"),
    Param("mask", (8, 8), "float32", "buffer", "Block"),
    Param("experts.w1", (4, 256, 128), "float32", owner="Experts"),
    Param("head.weight", (1, 128), "float16", owner="Linear"),
    Param("up.weight", (64, 32, 4, 4), "float32", owner="ConvTranspose2d"),
)


def test_seeded_weights_are_a_function_of_the_seed_and_the_name():
    values = seeded_weights(NETWORK, 3)
    shuffled = list(NETWORK.parameters)
    random.Random(0).shuffle(shuffled)
    again = seeded_weights(listing(*shuffled), 3)
    assert values.keys() == again.keys()
    assert all(np.array_equal(values[name], again[name]) for name in values)
    other = seeded_weights(NETWORK, 4)
    assert not any(np.array_equal(values[name], other[name]) for name in values)


def test_seeded_weights_are_the_same_on_every_machine():
    values = seeded_weights(listing(Param("fc.weight", (2, 2), "float32", owner="Linear")), 0)
    expected = [[0.743325, -0.058783], [1.137906, 0.631811]]
    np.testing.assert_allclose(values["fc.weight"], expected, rtol=1e-5)


def test_seeded_weights_let_every_parameter_matter():
    values = seeded_weights(NETWORK)
    assert {name: a.shape for name, a in values.items()} == {
        p.name: p.shape for p in NETWORK if p.name not in ("bn.num_batches_tracked", "mask")
    }
    assert dtype_name(values["head.weight"]) == "float16"
    for name in ("bn.weight", "bn.running_var", "gamma"):
        sizes = np.abs(values[name])
        assert 0.5 <= sizes.min() < 0.7 < 1.3 < sizes.max() <= 1.5, name
        assert (values[name].min() > 0) == (name == "bn.running_var")
    for name in ("stem.bias", "bn.bias", "bn.running_mean"):
        assert 0.2 < values[name].std() < 0.4, name
        assert abs(values[name].mean()) < 0.15, name
    scales = {"stem.weight": 288, "head.weight": 128, "experts.w1": 256, "words.weight": 1, "pos_embed": 1}
    for name, fan_in in scales.items():
        assert values[name].std() * math.sqrt(fan_in) == pytest.approx(1, rel=0.15), name
    # A kernel of 4 x 4 with a stride of 2 sees 2 x 2 of its 64 channels at every place.
    assert values["up.weight"].std() * math.sqrt(64 * 4) == pytest.approx(1, rel=0.1)


def test_tied_weights_are_seeded_alike():
    tied = listing(
        Param("words.weight", (9, 4), "float32", owner="Embedding", aliases=("head.weight",)),
        Param("head.weight", (9, 4), "float32", owner="Linear", aliases=("words.weight",)),
    )
    values = seeded_weights(tied)
    assert np.array_equal(values["words.weight"], values["head.weight"])


# -- outputs -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    logits: Any
    hidden: Any = None


Point = namedtuple("Point", "x y")


def test_outputs_of_any_form_become_tuples_and_dicts():
    leaf = {"A": np.ones(2)}.get
    assert nested_to_numpy("A", leaf)[0] == 1

    def convert(value: Any) -> Any:
        return nested_to_numpy(value, lambda v: v if isinstance(v, np.ndarray) else None)

    one = np.ones(1)
    assert convert(Output(one)) == {"logits": one, "hidden": None}
    assert convert(Point(one, [one, one])) == (one, (one, one))
    assert convert({1: one}) == {"1": one}
    assert convert((object(), "text")) == ("object", "text")
    assert convert(2.5) == np.asarray(2.5)


def places(torch: Any, mindspore: Any) -> list[str]:
    return [where for where, _, _ in pair(torch, mindspore).pairs]


def test_outputs_are_paired_by_key_or_position():
    a, b = np.zeros(1), np.ones(2)
    assert places(a, b) == ["output"]
    assert places({"x": a, "y": (a, b)}, {"y": (a, b), "x": a}) == ["output['x']", "output['y'][0]", "output['y'][1]"]
    assert pair({"x": a, "y": b}, {"y": b, "x": a}).pairs[1][1:] == (b, b)
    assert places({"x": a, "y": b}, (a, b)) == ["output['x']", "output['y']"]
    assert places(a, (b,)) == ["output"]
    assert places({"x": a}, b) == ["output['x']"]


@pytest.mark.parametrize(
    ("torch", "mindspore", "words"),
    [
        ((1, 2), (1, 2, 3), "output has 2 part(s) in PyTorch, 3 in MindSpore"),
        ({"x": 1}, {"x": 1, "aux": 2}, "only MindSpore gives output['aux']"),
        ({"x": 1, "aux": 2}, {"x": 1}, "only PyTorch gives output['aux']"),
        ((1, (2, 3)), (1, 2), "output[1] has 2 part(s) in PyTorch, 1 in MindSpore"),
        ((1, None), (1, 2), "output[1] is nothing in PyTorch, an array in MindSpore"),
        ((1, "Cache"), (1, 2), "output[1] is Cache in PyTorch, an array in MindSpore"),
    ],
)
def test_another_structure_is_told_in_words(torch, mindspore, words):
    def arrays(value: Any) -> Any:
        return nested_to_numpy(value, lambda v: np.full(3, v) if isinstance(v, int) else None)

    pairing = pair(arrays(torch), arrays(mindspore))
    assert [w for _, w in pairing.problems] == [words]


def test_what_is_no_number_is_left_out_aloud():
    pairing = pair((np.ones(1), "Cache"), (np.ones(1), "tuple"))
    assert pairing.problems == ()
    assert pairing.ignored == ("output[1] (Cache) holds no numbers and was not compared",)


floats = st.floats(-1e3, 1e3, width=32) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(
    hnp.arrays(np.float32, (2, 3), elements=floats),
    hnp.arrays(np.float32, (2, 3), elements=floats),
    st.integers(0, 63),
    st.sampled_from([0.0, 1e-3, 10.0]),
)
def test_comparison_agrees_with_the_obvious_one(a, b, equal, allowed):
    b = np.where(np.array([equal >> i & 1 for i in range(6)]).reshape(2, 3), a, b)
    found = compare("output", 0, a, b, allowed)
    off = {}
    for index in np.ndindex(a.shape):
        x, y = float(a[index]), float(b[index])
        distance = 0.0 if x == y else abs(x - y)
        off[index] = math.inf if math.isnan(distance) else distance
    assert found.passed == all(d <= allowed for d in off.values())
    assert found.differing == sum(d > allowed for d in off.values())
    assert found.absolute == max(off.values()) == off[found.index]
    assert found.total == 6


def test_a_comparison_says_how_many_how_far_and_where():
    a = np.array([[1.0, -4.0], [2.0, 0.5]], np.float32)
    b = a + np.array([[0, 0], [0.5, 0.25]], np.float32)
    found = compare("output", 1, a, b, 0.1)
    assert (found.problem, found.run, found.differing, found.total) == ("values", 1, 2, 4)
    assert (found.index, found.torch, found.mindspore) == ((1, 0), 2.0, 2.5)
    assert (found.absolute, found.relative, found.scale, found.to_scale) == (0.5, 0.5, 4.0, 0.125)
    assert found.words == (
        "output differs in 2 of 4 element(s), most at output[1, 0]: 2 in PyTorch, 2.5 in MindSpore; "
        "off by 0.5, 0.12 of its scale; allowed 0.025 of its scale"
    )


def test_whole_numbers_have_to_be_equal_and_shapes_too():
    a = np.array([1, 2])
    assert compare("output", 0, a, a, 5.0).passed
    assert compare("output", 0, a, a + 1, 5.0).differing == 2
    assert compare("output", 0, a, a.astype(np.int32), 0.0).passed
    found = compare("output", 0, np.ones((2, 3)), np.ones((2, 4)), 5.0)
    assert (found.problem, found.words) == ("shape", "output has the shape [2, 3] in PyTorch, [2, 4] in MindSpore")


def test_nan_never_agrees():
    a = np.array([math.nan, 1.0])
    found = compare("output", 0, a, a, math.inf)
    assert found.problem == "not a number"
    assert "1 of 2 element(s) that are not a number" in found.words


def test_tolerances_are_ordered_by_precision():
    table = comparison.TOLERANCE
    assert table["float64"] < table["float32"] < table["float16"] < table["bfloat16"]
    assert all(table[d] > 8 * np.finfo(d).eps for d in ("float64", "float32"))


def test_framework_errors_become_one_line():
    error = RuntimeError(
        "\n---------\n- Kernel failed:\n---------\nUnsupported\n\n----\n- C++ Call Stack: (For)\nfile.cc:1"
    )
    assert one_line(error) == "Kernel failed: Unsupported"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("word " * 200))) <= 300


def test_weights_that_do_not_fit_are_all_named():
    with pytest.raises(ConversionError) as e:
        check_fit({"a": np.ones(2), "b": np.ones(3), "c": np.ones(1)}, {"a": (2,), "b": (4,)}, "torch")
    assert e.value.offenders == (
        "b: shape (3,), (4,) in the PyTorch network",
        "c: the PyTorch network has no such parameter",
    )


def test_a_validation_shows_itself():
    outputs = (compare("output", 0, np.ones(2), np.array([1.0, 3.0]), 0.1), compare("o", 1, np.ones(2), np.ones(3), 0))
    failed = Validation(False, "They differ.", 1, outputs, ("a guess",), ("x",), ("float32[2]",), 5)
    assert failed.greatest == 2.0
    assert failed.allowed == pytest.approx(0.1)
    text = str(failed)
    assert text.startswith("They differ.\n")
    assert "a guess" in text
    assert outputs[0].words in text
    assert failed._repr_html_() == f"<pre>{text}</pre>"
    data = json.loads(failed.to_json())
    assert (data["passed"], data["exit_code"], data["greatest"], data["seed"]) == (False, 1, 2.0, 5)
    assert data["outputs"][0]["index"] == [1]
    nan = Validation(False, "", 1, (compare("output", 0, np.array([math.nan]), np.ones(1), 0.1),))
    assert json.loads(nan.to_json(), parse_constant=lambda c: pytest.fail(c))["greatest"] == "inf"

    from rich.console import Console

    console = Console(record=True, width=120, file=io.StringIO())
    console.print(failed)
    shown = console.export_text()
    assert re.search(r"output +0 +2 +2 +2 +0.1 +1 of 2", shown)
    assert "note: a guess" in shown


# -- both networks -----------------------------------------------------------------------------------------------------

frameworks = pytest.mark.frameworks

NAMES: dict[str, str | None] = {
    "conv.weight": "conv.weight",
    "conv.bias": "conv.bias",
    "bn.weight": "bn.gamma",
    "bn.bias": "bn.beta",
    "bn.running_mean": "bn.moving_mean",
    "bn.running_var": "bn.moving_variance",
    "bn.num_batches_tracked": None,
    "a.weight": "a.weight",
    "a.bias": "a.bias",
    "b.weight": "b.weight",
    "b.bias": "b.bias",
}
SWAPPED = NAMES | {"a.bias": "b.bias", "b.bias": "a.bias"}
IMAGE = "float32[2,3,8,8]"


def torch_net(end: Any = None) -> Any:
    """A convolution, a batch norm and two linear layers; ``end(net, y)`` makes the outputs of the last values."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
            self.bn = torch.nn.BatchNorm2d(6)
            self.a = torch.nn.Linear(6, 6)
            self.b = torch.nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn(self.conv(x))).mean((2, 3))
            y = self.b(torch.relu(self.a(x)))
            return y if end is None else end(self, y)

    return Net()


def ms_net(end: Any = None, pad: str = "pad", eps: float = 1e-5, extra: bool = False) -> Any:
    import mindspore as ms
    from mindspore import nn, ops

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 3, pad_mode=pad, padding=int(pad == "pad"), has_bias=True)
            self.bn = nn.BatchNorm2d(6, eps=eps)
            self.a = nn.Dense(6, 6)
            self.b = nn.Dense(6, 6)
            if extra:
                self.scale = ms.Parameter(ms.Tensor(np.ones(6, np.float32)), name="scale")

        def construct(self, x: Any) -> Any:
            x = ops.relu(self.bn(self.conv(x))).mean((2, 3))
            y = self.b(ops.relu(self.a(x)))
            if extra:
                y = y * self.scale
            return y if end is None else end(self, y)

    return Net()


@frameworks
def test_a_right_mapping_passes_and_both_networks_stay_as_they_were(tmp_path):
    t, m = torch_net(), ms_net()
    t_state = {name: v.numpy().copy() for name, v in t.state_dict().items()}
    m_state = {p.name: p.asnumpy().copy() for p in m.get_parameters()}
    found = validate(NAMES, t, m, inputs=[IMAGE])
    assert (found.passed, found.exit_code) == (True, 0)
    assert re.fullmatch(
        r"The outputs agree in 2 runs on different inputs: off by at most \S+ of their scale\.", found.verdict
    )
    assert [(c.where, c.run, c.total) for c in found.outputs] == [("output", 0, 12), ("output", 1, 12)]
    assert found.greatest is not None
    assert found.allowed is not None
    assert found.greatest < 1e-5 <= found.allowed < 1e-4
    assert (found.inputs, found.left_out, found.assumptions) == ((IMAGE,), (), ())
    assert all(np.array_equal(v.numpy(), t_state[name]) for name, v in t.state_dict().items())
    assert all(np.array_equal(p.asnumpy(), m_state[p.name]) for p in m.get_parameters())
    assert t.training

    mapping = Mapping.from_dict(NAMES)
    mapping.write(tmp_path / "mapping.json")
    assert validate(mapping, t, m, inputs=[IMAGE]) == found
    assert validate(str(tmp_path / "mapping.json"), t, m, inputs=IMAGE) == found
    other = validate(mapping, t, m, inputs=IMAGE, seed=1)
    assert other.passed
    assert other.outputs != found.outputs


@frameworks
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_wrong_mapping_fails(kind):
    a, b = f"a.{kind}", f"b.{kind}"
    found = validate(NAMES | {a: b, b: a}, torch_net(), ms_net(), inputs=[IMAGE])
    assert (found.passed, found.exit_code) == (False, 1)
    assert found.verdict.startswith(f"The mapping is wrong: a: {a} holds {b}, which is wrong")
    assert [(f.kind, f.mindspore) for f in found.findings] == [("mapping", ("a",)), ("mapping", ("b",))]
    assert found.greatest is not None
    assert found.greatest > 1e-2


@frameworks
@pytest.mark.parametrize(("names", "names_too"), [("bn.weight", "bn.running_var"), ("bn.bias", "bn.running_mean")])
def test_each_of_a_norm_s_parameters_matters(names, names_too):
    swapped = NAMES | {names: NAMES[names_too], names_too: NAMES[names]}
    assert not validate(swapped, torch_net(), ms_net(), inputs=[IMAGE]).passed


@frameworks
def test_another_hyper_parameter_is_seen():
    found = validate(NAMES, torch_net(), ms_net(eps=1e-3), inputs=[IMAGE])
    assert (found.passed, found.exit_code) == (False, 3)
    assert found.verdict.startswith("The mapping holds, the networks differ (error ")
    (only,) = found.findings
    assert (only.cause, only.torch_value, only.ms_value) == ("eps", "1e-05", "0.001")
    assert only.after is not None
    assert only.after < 1e-6


@frameworks
def test_another_shape_or_structure_is_the_networks_difference():
    def keep(net: Any, y: Any) -> Any:
        return y, y.reshape(1, -1)

    found = validate(NAMES, torch_net(keep), ms_net(lambda net, y: (y, y)), inputs=[IMAGE])
    assert (found.passed, found.exit_code) == (False, 3)
    assert found.verdict == (
        "The networks differ: output[1] has the shape [1, 12] in PyTorch, [2, 6] in MindSpore; "
        "whether the mapping holds is not proven."
    )
    found = validate(NAMES, torch_net(keep), ms_net(), inputs=[IMAGE])
    assert found.exit_code == 3
    assert "output has 2 part(s) in PyTorch, 1 in MindSpore" in found.verdict
    # A wrong mapping is not excused by an output more.
    more = ms_net(lambda net, y: {"y": y, "aux": y})
    found = validate(SWAPPED, torch_net(lambda net, y: {"y": y}), more, inputs=[IMAGE])
    assert found.exit_code == 1


@frameworks
def test_nested_outputs_are_compared_one_by_one():
    def both(net: Any, y: Any) -> Any:
        return {"logits": y, "hidden": (y * 2, [y + 1])}

    def both_but_one(net: Any, y: Any) -> Any:
        return {"logits": y, "hidden": (y * 2, [y + 2])}

    found = validate(NAMES, torch_net(both), ms_net(both), inputs=[IMAGE])
    assert found.passed
    assert [c.where for c in found.outputs[:3]] == ["output['logits']", "output['hidden'][0]", "output['hidden'][1][0]"]
    found = validate(NAMES, torch_net(both), ms_net(both_but_one), inputs=[IMAGE])
    assert {c.where for c in found.outputs if not c.passed} == {"output['hidden'][1][0]"}


@frameworks
def test_agreement_that_proves_nothing_fails():
    cases = {
        "every output is one number throughout": lambda net, y: y * 0,
        "the outputs are the same for different inputs": lambda net, y: net.a.weight * 1,
        "the networks return no numbers": lambda net, y: None,
    }
    for words, end in cases.items():
        found = validate(NAMES, torch_net(end), ms_net(end), inputs=[IMAGE])
        assert (found.passed, found.exit_code, words in found.verdict) == (False, 1, True), found.verdict
        assert found.verdict.startswith("The outputs agree, but that proves nothing: ")


@frameworks
def test_nan_fails():
    def nan(net: Any, y: Any) -> Any:
        return (y - y) / (y - y)

    found = validate(NAMES, torch_net(nan), ms_net(nan), inputs=[IMAGE])
    assert (found.passed, found.exit_code) == (False, 1)
    assert "not a number" in found.verdict


@frameworks
def test_a_network_that_cannot_run_here_is_told_apart():
    from mindspore import mint

    found = validate(NAMES, torch_net(), ms_net(lambda net, y: mint.linalg.qr(y)[0]), inputs=[IMAGE])
    assert (found.passed, found.exit_code, found.operation) == (False, 4, "LinalgQr")
    expected = "Nothing was proven: the MindSpore network cannot run here: LinalgQr has no kernel on CPU, and nothing "
    assert found.verdict.startswith(expected)


@frameworks
def test_parameters_outside_the_mapping_are_named():
    found = validate(NAMES, torch_net(), ms_net(extra=True), inputs=[IMAGE])
    assert found.passed
    assert found.left_out == ("scale",)
    assert "1 MindSpore parameter(s) outside the mapping kept their values: scale" in found.verdict
    dropped = {k: v for k, v in NAMES.items() if k != "b.bias"} | {"b.bias": None}
    found = validate(dropped, torch_net(), ms_net(), inputs=[IMAGE])
    assert found.exit_code == 1
    assert found.left_out == ("b.bias",)
    assert "1 PyTorch parameter(s) have no home in MindSpore: b.bias" in found.assumptions


@frameworks
def test_inputs_are_guessed_aloud_until_both_networks_take_them():
    found = validate(NAMES, torch_net(), ms_net(), seed=2)
    assert found.passed
    assert found.assumptions == (
        "the inputs are a guess from the first layer that tells, conv (Conv2d): float32[2,3,64,64]; "
        "give your own with --input",
    )

    def only_32(net: Any, x: Any) -> Any:
        if x.shape[-1] != 32:
            raise ValueError("images of 32 only")
        return net(x)

    found = validate(NAMES, torch_net(), ms_net(), seed=2, ms_forward=only_32)
    assert found.passed
    assert found.inputs == ("float32[2,3,32,32]",)

    def none(net: Any, x: Any) -> Any:
        raise ValueError("never")

    with pytest.raises(InputError, match=r"no input is given, and no guess fits \(.*: ValueError: never\): give them"):
        validate(NAMES, torch_net(), ms_net(), torch_forward=none)


@frameworks
def test_inputs_that_only_mindspore_refuses():
    def refuse(net: Any, x: Any) -> Any:
        raise ValueError("never")

    with pytest.raises(InputError, match=r"the MindSpore network does not run on .* never \(PyTorch takes them\)"):
        validate(NAMES, torch_net(), ms_net(), ms_forward=refuse, inputs=[IMAGE])


@frameworks
def test_given_inputs_are_used_as_they_are():
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    found = validate(NAMES, torch_net(), ms_net(), inputs={"x": x})
    assert found.passed
    assert {c.run for c in found.outputs} == {0}
    assert "in 1 run:" in found.verdict
    assert found.inputs == ("x=float32[2,3,8,8]",)


@frameworks
def test_given_weights_are_used(tmp_path):
    import torch

    weights = torch_net()
    torch.nn.init.constant_(weights.b.weight, 0.0)
    torch.nn.init.constant_(weights.b.bias, 1.0)
    path = tmp_path / "weights.pth"
    torch.save({f"module.{k}": v for k, v in weights.state_dict().items()}, path)
    for given_weights in (weights.state_dict(), path):
        found = validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE], weights=given_weights)
        assert "every output is one number throughout" in found.verdict
    partial = {k: v for k, v in weights.state_dict().items() if k not in ("a.bias", "b.bias", "bn.running_var")}
    with pytest.raises(ConversionError, match=r"the weights lack 2 parameter\(s\): a.bias, b.bias") as e:
        validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE], weights=partial)
    assert e.value.offenders == ("a.bias: absent", "b.bias: absent")
    more = torch_net().state_dict() | {"head.weight": torch.ones(3)}
    found = validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE], weights=more)
    assert found.passed
    assert found.assumptions == ("the weights have head.weight beside the network; not used",)
    nan = torch_net().state_dict() | {"a.bias": torch.full((6,), math.nan)}
    with pytest.raises(ConversionError, match="NaN"):
        validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE], weights=nan)


@frameworks
def test_a_source_without_a_network_is_refused():
    with pytest.raises(SourceError, match="is no PyTorch network that can run: give a factory, a class or an instance"):
        validate(NAMES, torch_net().state_dict(), ms_net(), inputs=[IMAGE])


@frameworks
def test_the_tolerance_follows_the_kernels_of_this_machine(monkeypatch):
    """A right pair may differ by the error of a kernel; what that does to the outputs is allowed, and no more."""
    from automap import mindspore_runner, torch_runner

    def off(net: Any, y: Any) -> Any:
        return y.tanh() + (1e-4 if hasattr(y, "asnumpy") else 0)

    tanh = {"tanh": np.full(NOISE_BINS, 1e-4)}
    monkeypatch.setattr(mindspore_runner, "kernel_noise", lambda: tanh)
    assert validate(NAMES, torch_net(off), ms_net(off), inputs=[IMAGE]).passed
    monkeypatch.setattr(mindspore_runner, "kernel_noise", dict)
    assert not validate(NAMES, torch_net(off), ms_net(off), inputs=[IMAGE]).passed
    # A network that cannot be watched is held to the table.
    monkeypatch.setattr(torch_runner.Runner, "run_with_noise", lambda *a: (_ for _ in ()).throw(NotRunnableError("")))
    assert validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE]).allowed == pytest.approx(1e-5)


@frameworks
def test_a_tolerance_that_is_given_is_kept():
    found = validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE], rtol=0.0, atol=1e-12)
    assert not found.passed
    assert {c.allowed for c in found.outputs} == {1e-12}
    assert validate(NAMES, torch_net(), ms_net(eps=1e-3), inputs=[IMAGE], rtol=1e-2).passed


@frameworks
def test_rounding_that_drowns_the_outputs_proves_nothing(monkeypatch):
    monkeypatch.setattr(comparison, "SPREAD", 1e9)
    found = validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE])
    assert found.exit_code == 1
    assert "rounding alone moves output by" in found.verdict


@frameworks
def test_the_power_of_a_run_is_measured_by_exchanges():
    found = validate(NAMES, torch_net(), ms_net(), inputs=[IMAGE])
    assert found.passed
    assert found.power is not None
    assert found.power.exchanges.tried > 0
    assert found.power.exchanges.unnoticed == ()
    assert found.power.exchanges.least > 1e-3
    assert "random exchanges of two equally shaped parameters move the outputs" in str(found)
    failed = validate(NAMES | {"a.weight": "b.weight", "b.weight": "a.weight"}, torch_net(), ms_net(), inputs=[IMAGE])
    assert failed.power is None
