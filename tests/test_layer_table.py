"""The layer table is true: each of its lines is compared with the layers of both frameworks, built and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_cases import ALONE, CASES, Case, signature

import automap
from automap.graph import Listing, Param
from automap.layer_table import Counterpart, Reparametrization, Row, reparametrizations, rows
from automap.mapping import Entry, Mapping, Side, Unmatched
from automap.transforms import Transform, apply

pytestmark = pytest.mark.frameworks

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def of_table(case: Case, prefix: str = "") -> Mapping:
    """The mapping of a pair of layers, as the table has it."""
    shapes = dict(case.theirs())
    entries, left = [], []
    for other, name, torch, shape in case.ours():
        ours = f"{prefix}{name}" if prefix else other.alone or name
        if torch not in shapes:
            left.append(Unmatched(ours, "PyTorch has none"))
            continue
        change = (Transform("reshape", {"shape": shape}),) if shape != shapes[torch] else ()
        assert bool(change) == bool(other.transform)
        entries.append(Entry((f"{prefix}{torch}",), (ours,), change))
    named = {name for e in entries for name in e.torch}
    alone = [Unmatched(f"{prefix}{n}", "MindSpore has none") for n in shapes if f"{prefix}{n}" not in named]
    side = Side("the table", 0, "")
    return Mapping(side, side, tuple(entries), tuple(alone), tuple(left))


@every_case
def test_names_order_and_shapes(case: Case) -> None:
    from automap import mindspore_edge  # noqa: F401  # isort: skip
    from mindspore import nn

    state = [(n, tuple(t.shape)) for n, t in case.build_torch().state_dict().items()]
    assert case.theirs() == state
    ours = case.ours()
    alone = [(p.name, tuple(p.shape)) for p in case.build_mindspore().get_parameters()]
    assert [(o.alone or n, shape) for o, n, _, shape in ours] == alone
    inside = [(p.name, tuple(p.shape)) for p in nn.SequentialCell(case.build_mindspore()).get_parameters()]
    assert [(f"0.{n}", shape) for _, n, _, shape in ours] == inside


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_names_order_and_shapes_of_what_is_lacking(case: Case) -> None:
    assert case.theirs() == [(n, tuple(t.shape)) for n, t in case.build_torch().state_dict().items()]


def shown(out: Any) -> list[np.ndarray]:
    """The arrays of an output of any form, those that are None left out."""
    if isinstance(out, (tuple, list)):
        return [a for x in out for a in shown(x)]
    return [] if out is None else [np.asarray(out)]


@every_case
def test_weights_brought_over_give_the_same(case: Case) -> None:
    """And the column that says what this stands on is true."""
    import torch

    from automap import mindspore_runner, torch_runner

    theirs, ours = case.build_torch(), case.build_mindspore()
    table = of_table(case)
    if len(table):
        state = case.values(dict(case.theirs()))
        theirs.load_state_dict({n: torch.from_numpy(v) for n, v in state.items()})
        assert len(automap.load(table, theirs.state_dict(), ours).loaded) == len(table)
    runner = mindspore_runner.Runner(ours)
    x = case.arrays()
    found, expected = shown(runner.run(x, case.forward)), shown(torch_runner.Runner(theirs).run(x, case.forward))
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
    assert case.counterpart.proven == ("stand-in" if runner.remarks() else "running")


# ----------------------------------------------------------------------------------------------------- hyper-parameters

#: What says nothing about a layer, or is gone from PyTorch.
NO_SETTINGS = {"device", "dtype", "_weight", "_freeze", "size_average", "reduce"}

COUNTERPARTS = [(row, c) for row in rows() for c in row.counterparts if c.name]
every_counterpart = pytest.mark.parametrize(
    ("row", "counterpart"), COUNTERPARTS, ids=lambda x: getattr(x, "full_name", None)
)


def classes(row: Row, counterpart: Counterpart) -> tuple[Any, Any]:
    import torch

    from automap import mindspore_edge  # noqa: F401  # isort: skip
    from mindspore import mint, nn

    return getattr(torch.nn, row.torch), getattr({"nn": nn, "mint.nn": mint.nn}[counterpart.place], counterpart.name)


@every_counterpart
def test_every_hyper_parameter_is_accounted_for(row: Row, counterpart: Counterpart) -> None:
    """Those of PyTorch's layer: one of the same default, one of another that is listed, or listed as lacking."""
    theirs, ours = (signature(cls).parameters for cls in classes(row, counterpart))
    called, other = dict(counterpart.called), {d.torch.partition("=")[0]: d for d in counterpart.defaults}
    for name in set(theirs) - NO_SETTINGS:
        if name in counterpart.lacks:
            assert called.get(name, name) not in ours
        elif called.get(name, name) in ours and name not in other:
            a, b = theirs[name].default, ours[called.get(name, name)].default
            assert getattr(a, "__name__", a) == getattr(b, "__name__", b), name
        else:
            assert name in other, f"{name} is not accounted for"
    for name in [*called, *other, *counterpart.lacks]:
        assert name in theirs, name
    assert [b for a, b in counterpart.called if b not in ours or a in ours] == []


@every_counterpart
def test_listed_defaults_are_those_of_the_frameworks(row: Row, counterpart: Counterpart) -> None:
    for default in counterpart.defaults:
        for cls, text in zip(classes(row, counterpart), (default.torch, default.mindspore), strict=True):
            name, _, value = text.partition("=")
            assert signature(cls).parameters[name].default == eval(value), text


def test_what_a_place_lacks_is_not_there() -> None:
    for row in rows():
        assert {c.place for c in row.counterparts} == {"nn", "mint.nn"}
        for c in row.counterparts:
            assert bool(c.name) != bool(c.instead)
            assert bool(c.name) == bool(c.proven)
            if not c.name:
                _, module = classes(row, Counterpart("nn", "Cell")), c.place
                from mindspore import mint, nn

                place = {"nn": nn, "mint.nn": mint.nn}[module]
                assert not hasattr(place, row.torch), f"{module} has {row.torch}"


def test_every_counterpart_is_built_and_run() -> None:
    tried = {(case.row.torch, case.counterpart.full_name) for case in CASES}
    assert tried == {(row.torch, c.full_name) for row, c in COUNTERPARTS}


# ----------------------------------------------------------------------------------------------------- all of torch.nn

#: What to build a class with: the first that it takes.
TRIES: tuple[tuple[Any, ...], ...] = ((), (2,), (2, 2), (2, 2, 2), (4, 2), (4, 8, [2, 5]), (1, (2, 1)))
#: Classes that hold what they are given.
HOLDERS = {"Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"} | {
    "RNNBase",
    "RNNCellBase",
    "Sequential",
}


def built(cls: Any) -> Any:
    """A layer of a class, with everything that it can keep in its state."""
    import torch
    from torch import nn

    known = signature(cls).parameters
    given: dict[str, Any] = {n: torch.ones(2) for n in ("weight", "pos_weight") if n in known}
    given |= {n: True for n in ("batch_first", "affine", "track_running_stats", "bias", "head_bias") if n in known}
    layers = {"TransformerEncoder": nn.TransformerEncoderLayer, "TransformerDecoder": nn.TransformerDecoderLayer}
    if cls.__name__ in layers:
        return cls(layers[cls.__name__](4, 2, batch_first=True), 1)
    for args in TRIES:
        try:
            return cls(*args, **given)
        except (TypeError, ValueError, AssertionError):
            continue
    raise AssertionError(f"{cls.__name__} takes none of these")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_layer_of_pytorch_with_parameters_is_in_the_table() -> None:
    import torch

    found = {}
    for name, cls in vars(torch.nn).items():
        if isinstance(cls, type) and issubclass(cls, torch.nn.Module) and name not in HOLDERS:
            found[name] = bool(built(cls).state_dict())
    listed = {name for row in rows() for name in (row.torch, *row.also)}
    assert {name for name, has in found.items() if has} == listed & found.keys()
    assert found["Linear"]
    assert not found["ReLU"]
    assert listed <= found.keys() or torch.__version__ < "2.13", "a layer that this version has not"


# ------------------------------------------------------------------------------------------ inference finds the same

WITH_ENTRIES = [case for case in CASES if of_table(case).entries]


def agree(found: Mapping, table: Mapping, shapes: dict[str, tuple[int, ...]]) -> None:
    """Whether two mappings take the same to the same."""

    def made(entry: Entry) -> list[Any]:
        arrays = [np.arange(np.prod(shapes[n], dtype=int)).reshape(shapes[n]) for n in entry.torch]
        return [a.tolist() for a in apply(entry.transform, arrays)]

    ours, theirs = ({e.torch: (e.mindspore, made(e)) for e in m.entries} for m in (found, table))
    assert {t: m for t, (m, _) in ours.items()} == {t: m for t, (m, _) in theirs.items()}
    assert ours == theirs


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("case", WITH_ENTRIES, ids=str)
def test_inference_from_listings_gives_what_the_table_says(case: Case, inside: bool) -> None:
    prefix = "0." if inside else ""
    table = of_table(case, prefix)
    torch = {f"{prefix}{n}": shape for n, shape in case.theirs()}
    ours = {f"{prefix}{n}" if inside else o.alone or n: shape for o, n, _, shape in case.ours()}
    sides = [
        Listing(framework, tuple(Param(n, s, "float32") for n, s in shapes.items()))
        for framework, shapes in (("torch", torch), ("mindspore", ours))
    ]
    found = automap.infer(*sides)
    agree(found, table, torch)
    assert not found.reviewed
    # From listings nobody knows whether PyTorch has no running statistics, or they were left out.
    alone = {u.name for u in table.unmatched_mindspore if u.name.endswith(("mean", "variance"))}
    assert {u.name for side in found.unmatched.values() for u in side if u.review} == alone


@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "names alone"])
@pytest.mark.parametrize("case", WITH_ENTRIES, ids=str)
def test_inference_of_three_layers_of_a_kind(case: Case, shapes: bool) -> None:
    """Under other words, in the same order: from listings, with shapes and without."""
    torch: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for i in range(3):
        torch |= {f"net.{i}.{n}": shape for n, shape in case.theirs()}
        ours |= {f"cells.{i}.core.{n}": shape for _, n, _, shape in case.ours()}
    sides = [
        Listing(framework, tuple(Param(n, s if shapes else None) for n, s in side.items()))
        for framework, side in (("torch", torch), ("mindspore", ours))
    ]
    expected = {e.torch[0]: e.mindspore[0] for e in of_table(case, ".").entries}
    found = automap.infer(*sides).torch_2_ms
    assert found == {f"net.{i}{t}": f"cells.{i}.core{m}" for i in range(3) for t, m in expected.items()}


@pytest.mark.parametrize("case", WITH_ENTRIES, ids=str)
def test_inference_from_live_layers_gives_what_the_table_says(case: Case) -> None:
    inputs = case.arrays()
    found = automap.infer(
        case.build_torch(), case.build_mindspore(), inputs=inputs, torch_forward=case.forward, ms_forward=case.forward
    )
    agree(found, of_table(case), dict(case.theirs()))
    assert not found.needs_review


# ------------------------------------------------------------------------------------------------- what the remarks say


def out_of(layer: Any, *x: np.ndarray) -> np.ndarray:
    from automap import mindspore_runner, torch_runner

    runner = (torch_runner if type(layer).__module__.startswith("torch") else mindspore_runner).Runner(layer)
    return shown(runner.run(list(x)))[0]


def test_what_to_use_where_rms_norm_is_lacking() -> None:
    import mindspore as ms
    import torch
    from mindspore import nn, ops

    class Norm(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = ms.Parameter(ms.Tensor(weight))

        def construct(self, x: Any) -> Any:
            return ops.rms_norm(x, self.weight, torch.finfo(torch.float32).eps)[0]

    x, weight = np.random.default_rng(0).standard_normal((2, 4, 9)).astype(np.float32) * 1e-3, np.ones(9, np.float32)
    assert abs(torch.finfo(torch.float32).eps - 1.19e-7) < 1e-9
    np.testing.assert_allclose(out_of(Norm(), x), out_of(torch.nn.RMSNorm(9), x), rtol=1e-5)
    assert signature_default(ops.rms_norm, "epsilon") == 1e-6


def signature_default(function: Any, name: str) -> Any:
    import inspect

    return inspect.signature(function).parameters[name].default


def test_what_to_use_where_an_instance_norm_is_lacking() -> None:
    import torch
    from mindspore import mint

    x = np.random.default_rng(0).standard_normal((2, 4, 9)).astype(np.float32)
    expected = out_of(torch.nn.InstanceNorm1d(4), x)
    np.testing.assert_allclose(out_of(mint.nn.GroupNorm(4, 4), x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_what_to_use_where_an_embedding_bag_is_lacking(mode: str) -> None:
    import mindspore as ms
    import torch
    from mindspore import nn

    class Bag(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4, embedding_table=ms.Tensor(bag.weight.detach().numpy()))

        def construct(self, ids: Any) -> Any:
            return getattr(self.table(ids), mode)(1)

    bag = torch.nn.EmbeddingBag(7, 4, mode=mode)
    ids = np.array([[0, 2, 6], [5, 2, 1]])
    np.testing.assert_allclose(out_of(Bag(), ids), out_of(bag, ids), rtol=1e-5, atol=1e-6)


def test_an_instance_norm_of_mindspore_never_uses_its_running_statistics() -> None:
    import torch
    from mindspore import nn

    x = 3 + np.random.default_rng(0).standard_normal((2, 4, 9)).astype(np.float32)
    by_instance = out_of(torch.nn.InstanceNorm1d(4), x)
    np.testing.assert_allclose(out_of(nn.InstanceNorm1d(4), x), by_instance, rtol=1e-4, atol=1e-5)
    assert np.abs(out_of(torch.nn.InstanceNorm1d(4, track_running_stats=True), x) - by_instance).max() > 1


def test_output_padding_is_zeros_in_mindspore() -> None:
    import torch
    from mindspore import nn

    x = np.ones((1, 1, 3, 3), np.float32)
    conv = torch.nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1, output_padding=1)
    port = nn.Conv2dTranspose(1, 1, 3, stride=2, pad_mode="pad", padding=1, output_padding=1, has_bias=True)
    automap.load({"weight": "weight", "bias": "bias"}, conv.state_dict(), port)
    theirs, ours = out_of(conv, x)[0, 0], out_of(port, x)[0, 0]
    np.testing.assert_allclose(ours[:-1, :-1], theirs[:-1, :-1], rtol=1e-5, atol=1e-6)
    assert not ours[-1].any()
    assert not ours[:, -1].any()
    assert theirs[-1].all()


def test_the_momentum_of_a_batch_norm_is_the_other_share() -> None:
    import mindspore as ms
    import torch
    from mindspore import nn

    x = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    theirs, ours = torch.nn.BatchNorm2d(4, momentum=0.3).train(), nn.BatchNorm2d(4, momentum=1 - 0.3).set_train()
    theirs(torch.from_numpy(x))
    ours(ms.Tensor(x))
    np.testing.assert_allclose(ours.moving_mean.asnumpy(), theirs.running_mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.moving_variance.asnumpy(), theirs.running_var.numpy(), rtol=1e-5)


# ----------------------------------------------------------------------------------------- weights computed from others


@pytest.mark.parametrize("layer", ["Linear(3, 4)", "Conv2d(3, 4, (3, 2))", "ConvTranspose1d(3, 4, 2)"])
@pytest.mark.parametrize("made", reparametrizations(), ids=lambda m: m.torch)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_reparametrizations(made: Reparametrization, layer: str) -> None:
    import torch

    utils: Any = torch.nn.utils
    module = eval(f"torch.nn.{layer}")
    shape = tuple(module.weight.shape)
    for name in made.torch.split("."):
        utils = getattr(utils, name)
    utils(module)
    state = {n: t.detach().numpy() for n, t in module.eval().state_dict().items()}
    assert list(state) == ["bias", *(p.name for p in made.parameters)]
    module(torch.zeros(2, *([3] if len(shape) == 2 else [3, 8, 8][: len(shape) - 1])))
    given = [state[p.name] for p in made.parameters]
    if "weight_norm" in made.torch:
        g, v = given
        assert (g.shape, v.shape) == ((shape[0], *[1] * (len(shape) - 1)), shape)
        weight = g * v / np.linalg.norm(v.reshape(len(v), -1), axis=1).reshape(g.shape)
    else:
        original, u, v = given
        first = int(layer.startswith("ConvTranspose"))
        matrix = np.moveaxis(original, first, 0).reshape(shape[first], -1)
        assert (original.shape, u.shape, v.shape) == (shape, matrix.shape[:1], matrix.shape[1:])
        weight = original / (u @ matrix @ v)
    np.testing.assert_allclose(weight, module.weight.detach().numpy(), rtol=1e-5)
