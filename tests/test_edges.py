"""The two edges: the same public names, and what each makes of models, tensors and files."""

from __future__ import annotations

import inspect
import os
import warnings
from argparse import Namespace
from types import ModuleType

import numpy as np
import pytest

from automap import listing_files
from automap.dtypes import BFLOAT16, dtype_name
from automap.errors import ConversionError, ListingError, SourceError
from automap.files import replacing

pytestmark = pytest.mark.frameworks

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "bfloat16"]


@pytest.fixture(scope="module")
def torch():
    import torch

    return torch


@pytest.fixture(scope="module")
def ms():
    import mindspore

    return mindspore


@pytest.fixture(scope="module", params=["torch", "mindspore"])
def edge(request, torch, ms) -> ModuleType:
    return __import__(f"automap.{request.param}_edge", fromlist=["_"])


def public(module: ModuleType) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(f)
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and not name.startswith("_")
    }


def test_both_edges_have_the_same_public_names_and_arguments():
    from automap import mindspore_edge, torch_edge

    ours, theirs = public(torch_edge), public(mindspore_edge)
    assert set(ours) == set(theirs)
    assert {n: list(s.parameters) for n, s in ours.items()} == {n: list(s.parameters) for n, s in theirs.items()}
    assert {"is_model", "listing_of", "state_of", "load_state", "read_checkpoint", "write_checkpoint", "parameter",
            "array_of", "tied"} <= set(ours)  # fmt: skip


def sample(dtype: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    if dtype == "bfloat16":
        return np.resize(np.array([0x3F80, 0xBF80, 0x7F80, 0], "<u2"), shape).view(BFLOAT16)
    return np.resize(np.array([1, 0, 1, 2]), shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (1,)], ids=str)
def test_array_to_parameter_and_back(edge, dtype, shape):
    array = sample(dtype, shape)
    tensor = edge.parameter(array)
    assert (tuple(tensor.shape), listing_files.dtype_name(tensor.dtype)) == (shape, dtype)
    back = edge.array_of(tensor)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, shape, array.tobytes())


def test_every_bfloat16_survives(edge):
    values = np.arange(2**16, dtype="<u2")
    # MindSpore's CPU kernel makes zero of subnormal numbers, and one NaN of all.
    ordinary = values[((values & 0x7F80) != 0) & ((values & 0x7F80) != 0x7F80)]
    back = edge.array_of(edge.parameter(ordinary.view(BFLOAT16)))
    assert np.array_equal(back.view("<u2"), ordinary)


def test_parameter_shares_no_memory(edge):
    array = np.ones(3, np.float32)
    tensor = edge.parameter(array)
    array[:] = 2
    out = edge.array_of(tensor)
    assert out.tolist() == [1, 1, 1]
    out[:] = 3
    assert edge.array_of(tensor).tolist() == [1, 1, 1]


def test_parameters_are_what_the_frameworks_take(torch, ms):
    from automap import mindspore_edge, torch_edge

    array = np.full((4, 3), 2, np.float32)
    linear = torch.nn.Linear(3, 4, bias=False)
    linear.load_state_dict({"weight": torch_edge.parameter(array)})
    assert torch.equal(linear.weight, torch.full((4, 3), 2.0))
    dense = ms.nn.Dense(3, 4, has_bias=False)
    assert ms.load_param_into_net(dense, {"weight": mindspore_edge.parameter(array, "weight")}) == ([], [])
    assert np.array_equal(dense.weight.asnumpy(), array)
    assert mindspore_edge.parameter(array, "fc.weight").name == "fc.weight"


# --- torch ------------------------------------------------------------------------------------------------------------


def tied_torch_net(torch):
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(3))
            self.register_buffer("scratch", torch.arange(3), persistent=False)
            self.emb = nn.Embedding(5, 4)
            self.blocks = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(), nn.BatchNorm1d(4))
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.emb.weight
            self.scale = nn.Parameter(torch.ones((), dtype=torch.bfloat16))

        def get_extra_state(self):
            return {"version": 1}

        def set_extra_state(self, state):
            pass

    return Net()


def test_torch_listing(torch):
    from automap import torch_edge

    net = tied_torch_net(torch)
    listing = torch_edge.listing_of(net, "net:Net")
    assert [p.name for p in listing] == [k for k in net.state_dict() if k != "_extra_state"]
    assert [(p.name, p.shape, p.dtype, p.kind, p.owner, p.aliases) for p in listing] == [
        ("scale", (), "bfloat16", "parameter", "Net", ()),
        ("table", (3,), "int64", "buffer", "Net", ()),
        ("emb.weight", (5, 4), "float32", "parameter", "Embedding", ("head.weight",)),
        ("blocks.0.weight", (4, 4, 3), "float32", "parameter", "Conv1d", ()),
        ("blocks.0.bias", (4,), "float32", "parameter", "Conv1d", ()),
        ("blocks.2.weight", (4,), "float32", "parameter", "BatchNorm1d", ()),
        ("blocks.2.bias", (4,), "float32", "parameter", "BatchNorm1d", ()),
        ("blocks.2.running_mean", (4,), "float32", "buffer", "BatchNorm1d", ()),
        ("blocks.2.running_var", (4,), "float32", "buffer", "BatchNorm1d", ()),
        ("blocks.2.num_batches_tracked", (), "int64", "buffer", "BatchNorm1d", ()),
        ("head.weight", (5, 4), "float32", "parameter", "Linear", ("emb.weight",)),
    ]
    assert (listing.framework, listing.source) == ("torch", "net:Net")


def test_torch_shared_module_and_views(torch):
    from automap import torch_edge

    layer = torch.nn.Linear(2, 2)
    shared = torch_edge.listing_of(torch.nn.Sequential(layer, torch.nn.ReLU(), layer))
    assert [(p.name, p.aliases) for p in shared] == [
        ("0.weight", ("2.weight",)),
        ("0.bias", ("2.bias",)),
        ("2.weight", ("0.weight",)),
        ("2.bias", ("0.bias",)),
    ]
    whole = torch.ones(4, 2)
    assert torch_edge.tied({"whole": whole, "half": whole[:2], "same": whole.detach()}) == {
        "whole": ("same",),
        "same": ("whole",),
    }
    square = torch.ones(2, 2)
    assert torch_edge.tied({"square": square, "turned": square.t(), "none": square[:0], "nothing": square[2:]}) == {}
    assert torch_edge.array_of(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_torch_without_values(torch):
    from automap import torch_edge

    lazy = torch_edge.listing_of(torch.nn.LazyLinear(3))
    assert [(p.name, p.shape) for p in lazy] == [("weight", None), ("bias", None)]
    with torch.device("meta"):
        meta = torch.nn.Linear(3, 2)
    assert [p.shape for p in torch_edge.listing_of(meta)] == [(2, 3), (2,)]
    with pytest.raises(SourceError, match=r"^weight has no values that NumPy can hold \(torch.float32\): "):
        torch_edge.state_of(meta)


def test_empty_torch_model(torch):
    from automap import torch_edge

    with pytest.raises(ListingError, match=r"^net:relu lists no parameter: is it the right model or file\?$"):
        torch_edge.listing_of(torch.nn.ReLU(), "net:relu")


def test_torch_state_and_load(torch):
    from automap import torch_edge

    net, other = tied_torch_net(torch), tied_torch_net(torch)
    state = torch_edge.state_of(net)
    assert dtype_name(state["scale"]) == "bfloat16"
    del state["table"]
    missing, unexpected = torch_edge.load_state(other, {**state, "new": np.ones(1)})
    assert (missing, unexpected) == (["table"], ["new"])
    assert other.head.weight is other.emb.weight
    assert torch.equal(other.emb.weight, net.emb.weight)
    before = other.emb.weight.clone()
    wrong = {**state, "emb.weight": state["emb.weight"] + 1, "blocks.0.bias": np.ones(3), "blocks.2.bias": np.ones(1)}
    with pytest.raises(ConversionError, match=r"2 array\(s\) do not fit the PyTorch model") as caught:
        torch_edge.load_state(other, wrong)
    assert caught.value.offenders == ("blocks.0.bias: [3] for [4]", "blocks.2.bias: [1] for [4]")
    assert torch.equal(other.emb.weight, before)


def save(torch, path, value, **options):
    torch.save(value, path, **options)
    return path


def test_torch_checkpoints_of_all_ages(torch, tmp_path):
    from automap import torch_edge

    weights = {"a": torch.ones(2, 3), "b": torch.zeros(1)}
    new = save(torch, tmp_path / "new.pth", weights)
    old = save(torch, tmp_path / "old.pth", weights, _use_new_zipfile_serialization=False)
    for path in (new, old):
        read = torch_edge.read_checkpoint(path)
        assert list(read) == ["a", "b"]
        assert torch.equal(read["a"], weights["a"])


def test_torch_checkpoint_with_data_beside_the_weights(torch, tmp_path):
    from automap import torch_edge

    beside = {"best": np.float64(0.5), "curve": np.ones(3, np.float32), "args": Namespace(lr=0.1, name="r50")}
    path = save(torch, tmp_path / "data.pth", {"state_dict": {"w": torch.ones(1)}, **beside})
    read = torch_edge.read_checkpoint(path)
    assert (read["best"], read["args"].name, read["curve"].tolist()) == (0.5, "r50", [1, 1, 1])
    # The other name that NumPy has had for the same functions.
    raw = path.read_bytes()
    legacy = save(torch, tmp_path / "legacy.pth", {"best": np.float64(0.5)}, _use_new_zipfile_serialization=False)
    other = legacy.read_bytes().replace(b"numpy.core.multiarray", b"numpy._core.multiarray")
    assert other != legacy.read_bytes()
    legacy.write_bytes(other)
    assert torch_edge.read_checkpoint(legacy)["best"] == 0.5
    assert raw


class Trap:
    """A pickle of it calls os.mkdir."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_code_in_a_checkpoint_is_refused_and_not_run(torch, tmp_path):
    from automap import torch_edge

    path = save(torch, tmp_path / "evil.pth", {"w": torch.ones(1), "x": Trap(tmp_path / "made")})
    with pytest.raises(SourceError) as caught:
        torch_edge.read_checkpoint(path)
    assert str(caught.value) == (
        f"{path} holds code or objects of Python (posix.mkdir) beside tensors, and opening it could run anything,"
        " so it is refused: where it was made, save the weights alone: torch.save(model.state_dict(), file)"
    )
    assert not (tmp_path / "made").exists()


def test_a_whole_model_is_refused(torch, tmp_path):
    from automap import torch_edge

    path = save(torch, tmp_path / "model.pth", torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(SourceError) as caught:
        torch_edge.read_checkpoint(path)
    assert str(caught.value) == (
        f"{path} holds a whole model (torch.nn.modules.container.Sequential), and opening it would run code, so it is"
        " refused: where it was made, save the weights alone: torch.save(model.state_dict(), file)"
    )


def zipped(torch, tmp_path) -> bytes:
    return save(torch, tmp_path / "whole.pth", {"w": torch.ones(100)}).read_bytes()


def pickled(torch, tmp_path) -> bytes:
    return save(
        torch, tmp_path / "whole.pth", {"w": torch.ones(100)}, _use_new_zipfile_serialization=False
    ).read_bytes()


DAMAGED = {
    "text": (
        lambda *_: b"epoch 1\nepoch 2\n",
        "is not a PyTorch checkpoint: it is a text file; check the name and the extension",
    ),
    "lfs": (
        lambda *_: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "is not a PyTorch checkpoint: it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
    ),
    "page": (
        lambda *_: b"<!DOCTYPE html><html></html>",
        "is not a PyTorch checkpoint: it is a web page, perhaps of a failed download; get the file again",
    ),
    "empty": (lambda *_: b"", "is not a PyTorch checkpoint: it is empty; get the file again"),
    "noise": (lambda *_: b"\xff\x00\x01" * 99, "is not a PyTorch checkpoint, or damaged: get the file again"),
    "cut zip": (lambda *a: zipped(*a)[:700], "is truncated or damaged: get the file again"),
    "cut pickle": (lambda *a: pickled(*a)[:-9], "is truncated or damaged: get the file again"),
    "plain pickle": (
        lambda *_: __import__("pickle").dumps({"w": np.ones(3)}, protocol=4),
        "is a pickle that torch.save did not write; opening it could run anything, so it is refused: save the weights"
        " alone with torch.save(state_dict, file)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_torch_file(torch, tmp_path, case):
    from automap import torch_edge

    content, expected = DAMAGED[case]
    path = tmp_path / "net.pth"
    path.write_bytes(content(torch, tmp_path))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(SourceError) as caught:
            torch_edge.read_checkpoint(path)
    assert warned == []
    assert str(caught.value) == f"{path} {expected}"
    assert caught.value.path == str(path)
    assert caught.value.__cause__ is not None


def test_torchscript_is_refused(torch, tmp_path):
    from automap import torch_edge

    path = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(path)
    with pytest.raises(
        SourceError, match="is a TorchScript archive, which is code, so it is refused: save the weights"
    ):
        torch_edge.read_checkpoint(path)


# --- MindSpore --------------------------------------------------------------------------------------------------------


def cell(ms, tie: bool = True):
    nn = ms.nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 4)
            self.conv = nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
            self.head = nn.Dense(4, 5, has_bias=False)
            if tie:
                self.head.weight = self.emb.embedding_table
            self.table = ms.Parameter(ms.Tensor(np.arange(3)), requires_grad=False)
            self.register_buffer("scratch", ms.Tensor(np.ones(3, np.float32)))

        def construct(self, x):
            return self.head(self.emb(x))

    return Net()


NET = [
    ("table", (3,), "int64", "parameter", "Net", None, ()),
    ("emb.embedding_table", (5, 4), "float32", "parameter", "Embedding", None, ("head.weight",)),
    ("conv.0.weight", (4, 3, 3, 3), "float32", "parameter", "Conv2d", None, ()),
    ("conv.2.moving_mean", (4,), "float32", "buffer", "BatchNorm2d", None, ()),
    ("conv.2.moving_variance", (4,), "float32", "buffer", "BatchNorm2d", None, ()),
    ("conv.2.gamma", (4,), "float32", "parameter", "BatchNorm2d", None, ()),
    ("conv.2.beta", (4,), "float32", "parameter", "BatchNorm2d", None, ()),
]


def rows(listing):
    return [(p.name, p.shape, p.dtype, p.kind, p.owner, p.path, p.aliases) for p in listing]


def test_mindspore_listing(ms):
    from automap import mindspore_edge

    assert rows(mindspore_edge.listing_of(cell(ms))) == NET


@pytest.mark.parametrize("optimizer", ["Adam", "Momentum", "SGD", "AdamWeightDecay", "RMSProp", "AdaFactor", "mint"])
def test_wrapped_for_training(ms, optimizer):
    from automap import mindspore_edge

    net = cell(ms)
    weights = net.trainable_params()
    if optimizer == "mint":
        made = ms.mint.optim.AdamW(weights)
    elif optimizer == "Momentum":
        made = ms.nn.Momentum(weights, [0.1, 0.2], 0.9)
    else:
        made = getattr(ms.nn, optimizer)(weights)
    step = ms.nn.TrainOneStepCell(ms.nn.WithLossCell(net, ms.nn.MSELoss()), made)
    listing = mindspore_edge.listing_of(step)
    network = [p for p in listing if p.kind != "optimizer"]
    # In the network's own order, though MindSpore lists the trainable ones first; the states follow.
    assert [(*row[:5], row[6]) for row in rows(network)] == [(*row[:5], row[6]) for row in NET]
    assert [p.path for p in network] == [f"network._backbone.{row[0]}" for row in NET]
    states = list(listing)[len(network) :]
    assert len(states) >= len(weights)
    assert {p.name for p in states} == {p.name for p in step.get_parameters()} - {row[0] for row in NET}


def test_loss_scale_and_optimizer_beside_the_network(ms):
    from automap import mindspore_edge

    nn = ms.nn
    net = cell(ms)
    scale = nn.DynamicLossScaleUpdateCell(2**10, 2, 100)
    step = nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params()), scale)
    listed = mindspore_edge.listing_of(step).by_name
    assert listed["scale_sense"].kind == listed["current_iterator_step"].kind == "optimizer"

    class Trainer(nn.Cell):
        def __init__(self, network):
            super().__init__()
            self.optimizer = nn.Adam(network.trainable_params())
            self.network = network

    listing = mindspore_edge.listing_of(Trainer(cell(ms, tie=False)))
    kept = [(p.name, p.path) for p in listing if p.kind != "optimizer"]
    expected = [(f"network.{row[0]}", None) for row in NET]
    assert kept == [*expected, ("network.head.weight", None)]

    # Weights are weights, though nothing but the optimizer holds them here.
    alone = mindspore_edge.listing_of(nn.SGD(cell(ms).trainable_params()))
    assert {p.name for p in alone if p.kind != "optimizer"} == {p.name for p in cell(ms).trainable_params()}


def test_mindspore_names_and_paths(ms):
    from automap import mindspore_edge

    nn = ms.nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.ones(2, np.float32)), name="custom")
            self.first = nn.Dense(2, 2)
            self.second = self.first
            self.pair = ms.ParameterTuple([ms.Parameter(ms.Tensor(np.ones(1, np.float32)), name="pair.0")])

    assert rows(mindspore_edge.listing_of(Net())) == [
        ("custom", (2,), "float32", "parameter", "Net", "w", ()),
        ("pair.0", (1,), "float32", "parameter", "Net", None, ()),
        ("second.weight", (2, 2), "float32", "parameter", "Dense", None, ("first.weight",)),
        ("second.bias", (2,), "float32", "parameter", "Dense", None, ("first.bias",)),
    ]
    norm = rows(mindspore_edge.listing_of(nn.BatchNorm2d(3)))
    assert norm[0] == ("mean", (3,), "float32", "buffer", "BatchNorm2d", "moving_mean", ())


def test_running_statistics_are_known_by_their_names(ms):
    """The words for statistics, proven on every norm that keeps some."""
    from automap import mindspore_edge

    nn, mint = ms.nn, ms.mint.nn
    norms = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
             nn.InstanceNorm3d, mint.BatchNorm1d, mint.BatchNorm2d, mint.BatchNorm3d]  # fmt: skip
    for norm in norms:
        made = norm(3)
        # A frozen network has no trainable parameter, and its weights are none the less parameters.
        frozen = {p.name for p in made.get_parameters() if not p.requires_grad}
        for p in made.get_parameters():
            p.requires_grad = False
        assert {p.name for p in mindspore_edge.listing_of(made) if p.kind == "buffer"} == frozen
        assert len(frozen) >= 2

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.running_mean = ms.Parameter(ms.Tensor(np.ones(2, np.float32)))

    assert mindspore_edge.listing_of(Net()).parameters[0].kind == "parameter"  # it is trained


def test_two_parameters_of_one_name(ms):
    from automap import mindspore_edge

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.a = ms.nn.Dense(2, 2)
            self.b = ms.nn.Dense(2, 2)

    with pytest.raises(ListingError) as caught:
        mindspore_edge.listing_of(Net(), "net:Net")
    assert str(caught.value) == (
        "net:Net has 2 parameters of the one name 'weight' (and 1 more such names), and MindSpore saves only one: they"
        " are at a.weight, b.weight; give each its own name (auto_prefix=True, or name=)"
    )


def test_cells_that_refer_to_each_other(ms):
    """Neither a cycle nor a thicket of references keeps the listing from ending."""
    from automap import mindspore_edge

    layers = [ms.nn.Dense(2, 2) for _ in range(14)]
    for layer in layers:
        for i, other in enumerate(layers):
            layer._cells[f"to{i}"] = other
    assert len(mindspore_edge.listing_of(ms.nn.CellList(layers))) == 28

    parent, child = ms.nn.SequentialCell(ms.nn.Dense(2, 2)), ms.nn.Dense(2, 2)
    parent.append(child)
    child._cells["parent"] = parent
    assert [(p.name, p.aliases) for p in mindspore_edge.listing_of(parent)] == [
        (name, ()) for name in ("0.weight", "0.bias", "1.weight", "1.bias")
    ]


def test_empty_cell(ms):
    from automap import mindspore_edge

    with pytest.raises(ListingError, match=r"^net:relu lists no parameter: is it the right model or file\?$"):
        mindspore_edge.listing_of(ms.nn.ReLU(), "net:relu")


def test_mindspore_state_and_load(ms):
    from automap import mindspore_edge

    net, other = cell(ms), cell(ms)
    half = ms.nn.Dense(1, 2).to_float(ms.float16)
    half.weight.set_dtype(ms.float16)
    mindspore_edge.load_state(half, {"weight": np.array([[1], [2]]), "bias": np.array([1, 2], np.int64)})
    assert (half.weight.dtype, half.weight.asnumpy().tolist()) == (ms.float16, [[1], [2]])
    assert (half.bias.dtype, half.bias.asnumpy().tolist()) == (ms.float32, [1, 2])
    state = mindspore_edge.state_of(net)
    assert list(state) == [row[0] for row in NET]
    del state["table"]
    state["conv.2.gamma"] = np.full(4, 7, np.float64)
    assert mindspore_edge.load_state(other, {**state, "new": np.ones(1)}) == (["table"], ["new"])
    assert other.conv[2].gamma.asnumpy().tolist() == [7, 7, 7, 7]
    assert other.conv[2].gamma.dtype == ms.float32
    assert np.array_equal(other.head.weight.asnumpy(), state["emb.embedding_table"])
    with pytest.raises(
        ConversionError, match=r"1 array\(s\) do not fit the MindSpore model: conv.2.beta: \[3\] for \[4\]"
    ):
        mindspore_edge.load_state(other, {"conv.2.gamma": np.zeros(4), "conv.2.beta": np.ones(3)})
    assert other.conv[2].gamma.asnumpy().tolist() == [7, 7, 7, 7]


def test_mindspore_checkpoint(ms, tmp_path):
    from automap import mindspore_edge

    arrays = {d: sample(d) for d in DTYPES if d != "complex64"} | {"scalar": np.array(2, np.float32)}
    path = tmp_path / "net.ckpt"
    mindspore_edge.write_checkpoint(path, arrays)
    read = mindspore_edge.read_checkpoint(path)
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        back = mindspore_edge.array_of(read[name])
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "is truncated or not a MindSpore checkpoint: get the file again"),
        (b"", "is not a MindSpore checkpoint: it is empty; get the file again"),
        (b"hello\n", "is not a MindSpore checkpoint: it is a text file; check the name and the extension"),
        (b"PK\x03\x04", "is a checkpoint of PyTorch, not of MindSpore: give it as the PyTorch side"),
        (b"\xff\x00\x01" * 99, "is truncated or not a MindSpore checkpoint: get the file again"),
    ],
    ids=["truncated", "empty", "text", "torch", "noise"],
)
def test_damaged_mindspore_file(ms, tmp_path, capfd, content, expected):
    from automap import mindspore_edge

    path = tmp_path / "net.ckpt"
    mindspore_edge.write_checkpoint(path, {"w": np.ones(1000, np.float32)})
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:2000] if content is None else content)
    with pytest.raises(SourceError) as caught:
        mindspore_edge.read_checkpoint(path)
    assert str(caught.value) == f"{path} {expected}"
    assert capfd.readouterr() == ("", "")


# --- a quiet MindSpore ------------------------------------------------------------------------------------------------

#: A cell in a module that outlives the ones that Cell.__del__ needs, as a registry or a reference from C++ may hold it.
HELD = """
import ctypes, sys
sys.path.insert(0, "")
import early
early.build()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(early))
"""
EARLY = """
def build():
    global NET
    from mindspore import nn
    NET = nn.Dense(2, 3)
"""


def test_no_cell_complains_at_exit(run_python, tmp_path):
    (tmp_path / "early.py").write_text(EARLY)
    plain = run_python("import sys; sys.path.insert(0, ''); " + HELD.strip().replace("\n", ";"))
    quiet = run_python(
        "import sys; sys.path.insert(0, ''); " + HELD.strip().replace("\n", ";") + "; import automap.mindspore_edge"
    )
    assert "Exception ignored in: <function Cell.__del__" in plain.stderr  # else the test tests nothing
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


#: A graph that does not compile, for which MindSpore writes down what it has.
NETWORK = """
import mindspore as ms
class Net(ms.nn.Cell):
    def construct(self, x):
        return x + x.no_such_thing
"""
COMPILE = """
import sys; sys.path.insert(0, "..")
import numpy as np, mindspore as ms, network
ms.set_context(mode=ms.GRAPH_MODE)
try:
    network.Net()(ms.Tensor(np.ones(2, np.float32)))
except AttributeError:
    print("failed as it should")
"""


def test_nothing_is_left_in_the_working_folder(run_python, tmp_path):
    work, temp = tmp_path / "work", tmp_path / "temp"
    work.mkdir()
    temp.mkdir()
    (tmp_path / "network.py").write_text(NETWORK)
    setup = f"import os, tempfile; os.environ.pop('MS_OM_PATH', None); tempfile.tempdir = {str(temp)!r}\n"
    done = run_python(setup + "import automap.mindspore_edge\n" + COMPILE, cwd=work)
    assert done.stdout == "failed as it should\n"
    assert (list(work.iterdir()), list(temp.iterdir())) == ([], [])
    run_python(setup + COMPILE, cwd=work)
    assert [p.name for p in work.iterdir()] == ["rank_0"]  # what it would have left


def environment(run_python, **values: str) -> str:
    """What three variables are after quiet_mindspore(), where these were set before."""
    code = (
        "import os, sys\n"
        "names = 'GLOG_v', 'MS_OM_PATH', 'MS_COMPILER_CACHE_PATH'\n"
        "for n in names: os.environ.pop(n, None)\n"
        f"os.environ.update({values})\n"
        "from automap.quiet import quiet_mindspore; quiet_mindspore()\n"
        "print(*(os.environ.get(n, '-').partition('automap-')[1] or os.environ.get(n) for n in names))"
    )
    return run_python(code).stdout.strip()


def test_what_the_user_has_set_stays(run_python):
    assert environment(run_python) == "3 automap- automap-"
    assert environment(run_python, GLOG_v="1", MS_OM_PATH="x") == "1 x automap-"
    assert environment(run_python, MS_COMPILER_CACHE_ENABLE="1") == "3 automap- None"
    code = (
        "import os, sys; os.environ.pop('GLOG_v', None); sys.modules['mindspore'] = sys\n"
        "from automap.quiet import quiet_mindspore; quiet_mindspore(); print(os.environ.get('GLOG_v'))"
    )
    assert run_python(code).stdout == "None\n"  # it has read its level, and the user imported it


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "out.ckpt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_text("half") and 1 / 0
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    with replacing(path) as part:
        part.write_text("new")
        part.chmod(0o400)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])
    assert path.stat().st_mode & 0o600 == 0o600
    with pytest.raises(SourceError, match=r"missing/out cannot be written: No such file or directory$"):  # noqa: SIM117
        with replacing(tmp_path / "missing" / "out"):
            pass
