"""Networks that compute in low precision: mixed, by their parameters, or under ``torch.autocast``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import automap

pytestmark = pytest.mark.frameworks

NAMES = {f"{i}.{leaf}": f"{i}.{leaf}" for i in (0, 2) for leaf in ("weight", "bias")}


def torch_net(wrapped: Any = None, dtype: Any = None) -> Any:
    """Two layers; ``wrapped`` makes its forward of the plain one."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    if wrapped is not None:
        net.forward = wrapped(net.forward)
    return net if dtype is None else net.to(getattr(torch, dtype))


def ms_net(dtype: str = "float32", mixed: str = "") -> Any:
    import mindspore as ms
    from mindspore import nn

    kind = getattr(ms, dtype)
    net = nn.SequentialCell([nn.Dense(6, 8, dtype=kind), nn.ReLU(), nn.Dense(8, 4, dtype=kind)])
    return net.to_float(getattr(ms, mixed)) if mixed else net


def autocast(dtype: str, enabled: bool = True) -> Any:
    import torch

    return torch.autocast("cpu", dtype=getattr(torch, dtype), enabled=enabled)


@pytest.mark.parametrize("mixed", ["bfloat16", ""])
def test_autocast_sets_what_may_differ(mixed: str) -> None:
    """As a decorator of the forward; the port computes in that type too, or in float32."""
    result = automap.validate(NAMES, torch_net(autocast("bfloat16")), ms_net(mixed=mixed), inputs=["float32[8,6]"])
    assert result.passed, str(result)
    assert 1e-4 < result.greatest < 1.6e-2
    assert "the PyTorch network computes in bfloat16 under torch.autocast" in str(result)


def test_autocast_in_a_proof_and_in_a_trace(tmp_path: Path) -> None:
    import torch

    ours = torch_net(autocast("bfloat16"))
    for source in (ours, automap.write_trace(tmp_path / "n.trace", ours, inputs="float32[8,6]")):
        proof = automap.infer(source, ms_net(mixed="bfloat16"), inputs="float32[8,6]" if source is ours else None).proof
        assert proof is not None
        assert proof.status == "proven", proof
        assert proof.allowed is not None
        assert proof.allowed > 1e-2
        assert any("under torch.autocast" in remark for remark in proof.notes)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.amp.autocast_mode.autocast.__enter__.__name__ == "__enter__"


def test_autocast_around_the_command_and_in_a_forward_of_the_users() -> None:
    import torch

    ours = torch_net()

    def forward(model: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    result = automap.validate(NAMES, ours, ms_net(), inputs=["float32[8,6]"], torch_forward=forward)
    assert "bfloat16 under torch.autocast" in str(result)
    with autocast("bfloat16"):
        result = automap.validate(NAMES, ours, ms_net(), inputs=["float32[8,6]"])
    assert "bfloat16 under torch.autocast" in str(result)
    assert result.greatest > 1e-4


def test_autocast_that_casts_nothing_allows_nothing_more() -> None:
    """What was asked for does not count: off, or around operations that it leaves alone."""
    import torch

    class Net(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = x.clamp(-2, 2)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                return super().forward(x)

    from mindspore import nn, ops

    class Port(nn.SequentialCell):
        def construct(self, x: Any) -> Any:
            return super().construct(ops.clamp(x, -2, 2))

    plain = torch_net()
    result = automap.validate(
        NAMES, Net(*plain), Port([nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4)]), inputs=["float32[8,6]"]
    )
    assert result.passed, str(result)
    assert "autocast" not in str(result)
    assert max(c.allowed / c.scale for c in result.outputs) < 1e-4


def test_training_under_autocast() -> None:
    result = automap.validate(NAMES, torch_net(autocast("bfloat16")), ms_net(mixed="bfloat16"),
                              inputs=["float32[8,6]"], steps=3)  # fmt: skip
    assert result.passed, str(result)
    assert max(np.divide(result.training.allowed, result.training.torch)) > 1e-2
