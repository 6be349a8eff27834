"""Operations without a kernel here: what stands in for them gives what PyTorch gives, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap
from automap.errors import NotRunnableError

pytestmark = pytest.mark.frameworks

A, B, C = (2, 4, 9), (2, 4, 9, 10), (2, 4, 6, 7, 8)

#: The layer's name in both ``torch.nn`` and ``mint.nn``, its arguments, the shape of its input.
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1}, A),
    ("Conv1d", (4, 6, 4), {"padding": "same", "dilation": 2, "groups": 2}, A),
    ("Conv1d", (4, 6, 3), {"padding": "valid", "bias": False}, (4, 9)),
    ("Conv2d", (4, 6, 3), {}, B),
    ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}, B),
    ("Conv2d", (4, 8, (4, 3)), {"padding": "same", "groups": 4, "bias": False}, B),
    ("Conv2d", (4, 6, 3), {"padding": "valid", "stride": 3}, (4, 9, 10)),
    ("Conv2d", (4, 4, 3), {"padding": 1, "padding_mode": "reflect"}, B),
    ("Conv3d", (4, 6, 3), {"padding": 1, "stride": (1, 2, 2)}, C),
    ("Conv3d", (4, 6, (2, 3, 1)), {"padding": "same", "groups": 2, "dilation": (1, 2, 1)}, C),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, B),
    ("ConvTranspose2d", (4, 6, (2, 4)), {"stride": (3, 1), "output_padding": (2, 0), "groups": 2, "bias": False}, B),
    ("ConvTranspose2d", (4, 6, 3), {"dilation": 2, "padding": 5}, B),
    ("BatchNorm1d", (4,), {"eps": 1e-3}, A),
    ("BatchNorm1d", (9,), {}, (5, 9)),
    ("BatchNorm2d", (4,), {}, B),
    ("BatchNorm2d", (4,), {"affine": False}, B),
    ("BatchNorm2d", (4,), {"track_running_stats": False}, B),
    ("BatchNorm3d", (4,), {"momentum": 0.3}, C),
    ("LayerNorm", (9,), {}, A),
    ("LayerNorm", ((9, 10),), {"eps": 1e-2}, B),
    ("LayerNorm", (9,), {"elementwise_affine": False}, A),
    ("LayerNorm", (9,), {"bias": False}, A),
    ("GroupNorm", (2, 4), {}, B),
    ("MaxPool2d", (3,), {"stride": 2, "padding": 1}, B),
    ("MaxPool2d", ((2, 3),), {"ceil_mode": True}, B),
    ("MaxPool2d", (3,), {"dilation": 2, "stride": (1, 2), "ceil_mode": True, "padding": 1}, B),
    ("MaxPool2d", (2,), {"return_indices": True, "padding": 1}, B),
    ("AvgPool1d", (3,), {"padding": 1, "ceil_mode": True}, A),
    ("AvgPool1d", (2,), {"stride": 1, "padding": 1, "count_include_pad": False}, A),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1}, B),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, B),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False}, B),
    ("AvgPool2d", ((2, 3),), {"divisor_override": 5}, B),
    ("AvgPool3d", (2,), {"padding": 1, "ceil_mode": True}, C),
    ("AvgPool3d", ((2, 3, 1),), {"divisor_override": 3, "count_include_pad": False}, C),
    ("AdaptiveAvgPool1d", (4,), {}, A),
    ("AdaptiveAvgPool2d", ((3, 4),), {}, B),
    ("AdaptiveAvgPool2d", ((None, 1),), {}, B),
    ("AdaptiveAvgPool2d", (1,), {}, (4, 9, 10)),
    ("AdaptiveAvgPool3d", ((2, 3, 5),), {}, C),
    ("AdaptiveMaxPool1d", (4,), {}, A),
    ("GELU", (), {}, A),
    ("GELU", (), {"approximate": "tanh"}, A),
    ("ReLU6", (), {}, A),
    ("Hardtanh", (-0.5, 0.25), {}, A),
    ("LogSigmoid", (), {}, A),
    ("ELU", (), {"alpha": 0.7}, A),
    ("SELU", (), {}, A),
    ("Mish", (), {}, A),
    ("Threshold", (0.3, 7.0), {}, A),
    ("LogSoftmax", (-1,), {}, A),
    ("Unfold", ((2, 3),), {"dilation": (2, 1), "padding": 1, "stride": (1, 2)}, B),
    ("Fold", ((5, 6), (2, 3)), {"dilation": (2, 1), "padding": 1, "stride": (1, 2)}, (2, 12, 15)),
    ("ConstantPad1d", ((1, 2), 0.5), {}, A),
    ("ConstantPad2d", ((1, 2, -1, 3), 0.5), {}, B),
    ("ZeroPad2d", (1,), {}, B),
    ("ReflectionPad1d", ((2, 1),), {}, A),
    ("ReflectionPad2d", ((2, 1, 0, 3),), {}, B),
    ("ReflectionPad3d", (1,), {}, C),
    ("ReplicationPad1d", (2,), {}, A),
    ("ReplicationPad2d", ((2, 1, 0, 3),), {}, B),
    ("ReplicationPad3d", ((2, 1, 0, 3, 1, 1),), {}, C),
    ("Upsample", (), {"scale_factor": 1.7, "mode": "linear"}, A),
    ("Upsample", (), {"scale_factor": 2.0, "mode": "bilinear"}, B),
    ("Upsample", (), {"size": (5, 13), "mode": "bilinear", "align_corners": True}, B),
    ("Upsample", (), {"scale_factor": 1.5, "mode": "bicubic"}, B),
    ("Upsample", (), {"size": (4, 17), "mode": "bicubic", "align_corners": True}, B),
]


def ms_runner(model: Any) -> Any:
    from automap import mindspore_runner

    return mindspore_runner.Runner(model)


def torch_runner(model: Any) -> Any:
    from automap import torch_runner

    return torch_runner.Runner(model)


def draw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def holding(runner: Any, seed: int) -> dict[str, Any]:
    """Values for every parameter, none of them its default."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            rng.random(array.shape) + 0.5 if name.endswith(("var", "variance")) else rng.standard_normal(array.shape)
        ).astype(array.dtype)
        for name, array in runner.state().items()
        if not name.endswith("num_batches_tracked")
    }


def agree(ours: Any, theirs: Any, off: float = 2e-6) -> None:
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (ours, theirs))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= off * max(1.0, np.abs(b).max())


@pytest.mark.parametrize("case", LAYERS, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}-{len(c[3])}d".replace(" ", ""))
def test_layer_equals_that_of_pytorch(case: Any) -> None:
    import torch
    from mindspore import mint

    name, args, kwargs, shape = case
    ours, theirs = (
        ms_runner(getattr(mint.nn, name)(*args, **kwargs)),
        torch_runner(getattr(torch.nn, name)(*args, **kwargs)),
    )
    values = holding(theirs, 1)
    x = [draw(shape)]
    with theirs.holding(values), ours.holding(values):
        agree(ours.run(x), theirs.run(x), 5e-6)


def test_embedding() -> None:
    import torch
    from mindspore import mint

    ours, theirs = ms_runner(mint.nn.Embedding(7, 4, padding_idx=2)), torch_runner(torch.nn.Embedding(7, 4, 2))
    values = holding(theirs, 1)
    ids = [np.array([[0, 2, 6], [5, 2, 1]])]
    with theirs.holding(values), ours.holding(values):
        agree(ours.run(ids), theirs.run(ids), 0)
    assert ours.remarks() == ("mint.nn.Embedding (1 layer): computed by ops.gather, it has no kernel on CPU",)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_instance_norm(n: int) -> None:
    import torch
    from mindspore import nn

    ours = ms_runner(getattr(nn, f"InstanceNorm{n}d")(4, eps=1e-3))
    theirs = torch_runner(getattr(torch.nn, f"InstanceNorm{n}d")(4, eps=1e-3, affine=True))
    values = holding(theirs, 1)
    x = [draw((A, B, C)[n - 1])]
    with theirs.holding(values), ours.holding({"gamma": values["weight"], "beta": values["bias"]}):
        agree(ours.run(x), theirs.run(x))
    assert ours.remarks() == (f"nn.InstanceNorm{n}d (1 layer): computed by plain operations, it has no kernel on CPU",)


def test_rms_norm_and_other_functions_by_whatever_name() -> None:
    """A function imported by name before the run is reached as well as one looked up in its module."""
    import mindspore as ms
    import torch
    from mindspore import mint, nn, ops
    from mindspore.mint.nn.functional import conv2d, gelu

    weight, scale = draw((6, 4, 3, 3), 1), draw((10,), 2)

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = ms.Parameter(ms.Tensor(weight)), ms.Parameter(ms.Tensor(scale))

        def construct(self, x: Any) -> Any:
            x, _ = ops.rms_norm(x, self.scale, 1e-5)
            x = gelu(conv2d(x, self.weight, padding=1))
            return mint.nn.functional.gelu(x, approximate="tanh"), mint.nn.functional.layer_norm(x, (10,))

    x = draw(B)
    f = torch.nn.functional
    y = f.rms_norm(torch.from_numpy(x), (10,), torch.from_numpy(scale), 1e-5)
    y = f.gelu(f.conv2d(y, torch.from_numpy(weight), padding=1))
    runner = ms_runner(Net())
    agree(runner.run([x]), tuple(t.numpy() for t in (f.gelu(y, approximate="tanh"), f.layer_norm(y, (10,)))), 5e-6)
    assert runner.remarks() == (
        "mint.nn.functional.conv2d: computed by nn.Conv2d, it has no kernel on CPU",
        "mint.nn.functional.gelu: computed by plain operations, it has no kernel on CPU",
        "mint.nn.functional.layer_norm: computed by plain operations, it has no kernel on CPU",
        "ops.rms_norm: computed by plain operations, it has no kernel on CPU",
    )


def test_swiglu_and_the_norm_of_a_sum() -> None:
    import mindspore as ms
    import torch
    from mindspore import nn, ops

    x, scale = draw(B), draw((10,), 2)

    def forward(net: Any, x: Any) -> Any:
        return ops.swiglu(x, -1), ops.add_rms_norm(x, x, ms.Tensor(scale), 1e-5)[0]

    t, f = torch.from_numpy(x), torch.nn.functional
    expected = f.silu(t[..., :5]) * t[..., 5:], f.rms_norm(t + t, (10,), torch.from_numpy(scale), 1e-5)
    agree(ms_runner(nn.Dense(1, 1)).run([x], forward), tuple(e.numpy() for e in expected), 5e-6)


@pytest.mark.parametrize("layout", ["BSH", "BNSD", "BSND", "SBH"])
@pytest.mark.parametrize("mask", ["none", "given", "causal"])
def test_flash_attention(layout: str, mask: str) -> None:
    import mindspore as ms
    import torch
    from mindspore import nn, ops

    q, k, v = draw((2, 4, 5, 8), 1), draw((2, 2, 5, 8), 2), draw((2, 2, 5, 8), 3)
    left_out = np.random.default_rng(4).random((2, 1, 5, 5)) < 0.3
    left_out[..., 0] = False
    causal = np.triu(np.ones((5, 5), bool), 1)

    def arrange(x: np.ndarray) -> np.ndarray:
        if layout == "BNSD":
            return x
        x = x.transpose(0, 2, 1, 3)
        return x if layout == "BSND" else x.reshape(2, 5, -1).transpose((1, 0, 2) if layout == "SBH" else (0, 1, 2))

    def attend(net: Any, *qkv: Any) -> Any:
        extra = {
            "given": {"attn_mask": ms.Tensor(left_out)},
            "causal": {"attn_mask": ms.Tensor(causal), "sparse_mode": 2},
        }
        return ops.flash_attention_score(*qkv, 4, input_layout=layout, scalar_value=0.3, **extra.get(mask, {}))

    keep = {"none": None, "given": torch.from_numpy(~left_out), "causal": torch.from_numpy(~causal)}[mask]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k.repeat(2, 1), v.repeat(2, 1))), attn_mask=keep, scale=0.3
    )
    found = ms_runner(nn.Dense(1, 1)).run([arrange(x) for x in (q, k, v)], attend)
    agree(found, arrange(expected.numpy()))


def torch_cnn() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def mint_cnn() -> Any:
    from mindspore import mint, nn

    return nn.SequentialCell(
        mint.nn.Conv2d(3, 8, 3, padding=1),
        mint.nn.BatchNorm2d(8),
        nn.ReLU(),
        mint.nn.MaxPool2d(2),
        mint.nn.Conv2d(8, 8, 3, groups=2),
        mint.nn.BatchNorm2d(8),
        mint.nn.GELU(),
        mint.nn.AdaptiveAvgPool2d(1),
        mint.nn.Flatten(),
        mint.nn.Linear(8, 5),
    )


def torch_transformer() -> Any:
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(11, 12)
            self.norm1, self.norm2 = torch.nn.LayerNorm(12), torch.nn.LayerNorm(12)
            self.qkv, self.proj = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)
            self.fc1, self.act, self.fc2 = torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 12)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            q, k, v = self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
            y = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
            x = x + self.proj(y.permute(0, 2, 1, 3).reshape(x.shape))
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    return Block()


def mint_transformer(dtype: Any = None) -> Any:
    from mindspore import mint, nn

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embed = mint.nn.Embedding(11, 12)
            self.norm1, self.norm2 = mint.nn.LayerNorm(12), mint.nn.LayerNorm(12)
            self.qkv, self.proj = mint.nn.Linear(12, 36), mint.nn.Linear(12, 12)
            self.fc1, self.act, self.fc2 = mint.nn.Linear(12, 24), mint.nn.GELU(), mint.nn.Linear(24, 12)

        def construct(self, ids: Any) -> Any:
            x = self.embed(ids)
            q, k, v = mint.unbind(self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4), 0)
            y = mint.matmul(mint.nn.functional.softmax(mint.matmul(q, k.transpose(-1, -2)) / 2, -1), v)
            x = x + self.proj(y.permute(0, 2, 1, 3).reshape(x.shape))
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    net = Block()
    for p in net.get_parameters() if dtype is not None else ():
        p.set_dtype(dtype)
    return net


def test_a_convolutional_network_of_mint() -> None:
    theirs, ours = torch_cnn(), mint_cnn()
    mapping = automap.infer(theirs, ours)
    assert [e.torch for e in mapping.entries] == [e.mindspore for e in mapping.entries]
    assert len(mapping.entries) == 16
    found = automap.validate(mapping, theirs, ours, inputs=["float32[2,3,12,12]"])
    assert found.passed, found.verdict
    assert (found.greatest or 0) < 5e-6
    assert found.assumptions == (
        "mint.nn.AdaptiveAvgPool2d (1 layer): computed by plain operations, it has no kernel on CPU",
        "mint.nn.BatchNorm2d (2 layers): computed by plain operations, it has no kernel on CPU",
        "mint.nn.Conv2d (2 layers): computed by nn.Conv2d, it has no kernel on CPU",
        "mint.nn.GELU (1 layer): computed by plain operations, it has no kernel on CPU",
        "mint.nn.MaxPool2d (1 layer): computed by plain operations, it has no kernel on CPU",
    )


def test_a_wrong_mapping_is_seen_through_the_stand_ins() -> None:
    theirs, ours = torch_cnn(), mint_cnn()
    names = {p: p for p, _ in theirs.named_parameters()} | {
        f"{i}.running_{s}": f"{i}.running_{s}" for i in "15" for s in ("mean", "var")
    }
    assert automap.validate(names, theirs, ours, inputs=["float32[2,3,12,12]"]).passed
    names["1.weight"], names["5.weight"] = names["5.weight"], names["1.weight"]
    assert automap.validate(names, theirs, ours, inputs=["float32[2,3,12,12]"]).exit_code == 1


def test_a_transformer_of_mint() -> None:
    theirs, ours = torch_transformer(), mint_transformer()
    mapping = automap.infer(theirs, ours)
    assert all(e.torch == e.mindspore for e in mapping.entries)
    found = automap.validate(mapping, theirs, ours, inputs=["int64[2,7]<11"])
    assert found.passed, found.verdict
    assert (found.greatest or 0) < 5e-6
    assert "mint.nn.LayerNorm (2 layers): computed by plain operations, it has no kernel on CPU" in found.assumptions


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_network_in_low_precision(dtype: str) -> None:
    """Each operation is rounded to the type, as on a device; the outputs are off by what that type loses."""
    import mindspore as ms

    theirs, ours = torch_transformer(), mint_transformer(getattr(ms, dtype))
    found = automap.validate({n: n for n, _ in theirs.named_parameters()}, theirs, ours, inputs=["int64[2,7]<11"])
    assert found.passed, found.verdict
    assert (found.greatest or 0) < 5e-6  # in float32; the networks themselves are off by more
    text = "\n".join(found.assumptions)
    off = re.search(f"in {dtype} itself the outputs are off by at most (.*) of their scale", text)
    assert off is not None, text
    assert 1e-5 < float(off[1]) < 1.6e-2
    assert "mint.nn.LayerNorm (2 layers): computed by plain operations, it has no kernel on CPU" in text
    if dtype == "bfloat16":
        assert "(4 layers): computed in float32 and rounded, it has no kernel for bfloat16 on CPU" in text
        assert "2 operation(s) in bfloat16 (" in text


def test_rounding_in_low_precision_is_that_of_a_device() -> None:
    """The product is exact in float32 and then rounded once."""
    import mindspore as ms
    import torch
    from mindspore import nn

    x, w = draw((4, 6)), draw((3, 6), 1)
    expected = torch.nn.functional.linear(torch.from_numpy(x).bfloat16(), torch.from_numpy(w).bfloat16())
    for cell in (
        nn.Dense(6, 3, has_bias=False, dtype=ms.bfloat16),
        nn.Dense(6, 3, has_bias=False).to_float(ms.bfloat16),
    ):
        runner = ms_runner(cell)
        from automap import mindspore_edge

        cell.weight.set_data(mindspore_edge.parameter(w).astype(cell.weight.dtype))
        out = runner.run([x])
        agree(out, expected.float().numpy(), 1e-8)
        assert runner.remarks() == (
            "nn.Dense in bfloat16 (1 layer): computed in float32 and rounded, it has no kernel for bfloat16 on CPU",
        )


def test_a_low_precision_that_parameters_do_not_show() -> None:
    import mindspore as ms
    from mindspore import nn, ops

    runner = ms_runner(nn.Dense(6, 3))
    out = runner.run([draw((4, 6))], lambda net, x: ops.softmax(net(x).astype(ms.bfloat16), -1).astype(ms.float32))
    assert np.allclose(out.sum(-1), 1, atol=0.02)
    assert runner.remarks() == (
        "1 operation(s) in bfloat16 (Softmax): computed in float32 and rounded, no kernel for bfloat16 on CPU",
    )


def test_everything_is_put_back() -> None:
    """Functions, methods, classes, parameters and their types: also after a failure, and one run in another."""
    import mindspore as ms
    from mindspore import mint
    from mindspore.ops import functional_overload
    from mindspore.ops.auto_generate import gen_ops_def, gen_ops_prim, pyboost_inner_prim

    owners = (functional_overload, gen_ops_def, gen_ops_prim, ms.Tensor, ms.ops.primitive, mint.nn.functional)
    inner = [v for v in vars(pyboost_inner_prim).values() if isinstance(v, type)]
    before = [dict(vars(o)) for o in (*owners, *inner)]
    net = mint_transformer(ms.bfloat16)
    state = {n: (p.dtype, p.asnumpy().copy(), p) for n, p in net.parameters_dict().items()}
    runner = ms_runner(net)

    def nested(net: Any, ids: Any) -> Any:
        ms_runner(mint_cnn()).run([draw((1, 3, 12, 12))])
        return net(ids)

    ids = [np.array([[1, 2, 3]])]
    assert np.array_equal(runner.run(ids), runner.run(ids, nested))
    with pytest.raises(NotRunnableError):
        runner.run(ids, lambda net, ids: mint.linalg.qr(net(ids).astype(ms.float32)))
    assert [dict(vars(o)) for o in (*owners, *inner)] == before
    for name, p in net.parameters_dict().items():
        dtype, value, same = state[name]
        assert (p is same, p.dtype) == (True, dtype)
        assert np.array_equal(p.asnumpy(), value)
    with pytest.raises(RuntimeError, match="Conv2DExt unregistered"):
        mint.nn.Conv2d(3, 4, 3)(ms.Tensor(draw((1, 3, 8, 8)))).asnumpy()
    with contextlib.suppress(RuntimeError):
        ms.runtime.synchronize()  # it is raised once more


def test_nothing_is_touched_where_nothing_is_lacking() -> None:
    from mindspore import nn

    runner = ms_runner(nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()))
    runner.run([draw((1, 3, 8, 8))])
    assert runner.remarks() == ()


def test_stand_ins_have_gradients() -> None:
    theirs, ours = torch_cnn(), mint_cnn()
    names = {n: n for n in theirs.state_dict() if not n.endswith("num_batches_tracked")}
    found = automap.validate(names, theirs, ours, inputs=["float32[2,3,12,12]"], grad=True)
    assert found.passed, found.verdict
    assert found.gradients is not None
    assert found.gradients.passed
    assert len(found.gradients.of("agrees")) == len(list(theirs.parameters()))


def test_the_command_says_what_stood_in(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "from mindspore import mint, nn\n"
        "def a():\n    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())\n"
        "def b():\n    return nn.SequentialCell(nn.Dense(4, 3), mint.nn.GELU())\n"
    )
    automap.Mapping.from_dict({"0.weight": "0.weight", "0.bias": "0.bias"}).write(tmp_path / "map.json")
    code = "import sys; from automap.__main__ import main; sys.exit(main())"
    done = run_python(code, "validate", "map.json", "nets.py:a", "nets.py:b", "--input", "float32[2,4]")
    words = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, words
    assert "mint.nn.GELU (1 layer): computed by plain operations, it has no kernel on CPU" in words
