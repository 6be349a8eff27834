"""What inference with proof costs, in time and memory, on networks of about 50 million parameters.

    python benchmarks/cost.py [--network convolutions|attention] [--millions N]

Each network is measured in a process of its own. Time is for ``infer`` with proof, less the static inference, in
forwards: one plain forward of each network together are one. Memory is the peak of the process, less that of a process
that has built both networks and run each once.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import click


def convolutions(millions: float) -> tuple[Any, Any, str]:
    """Residual blocks of convolutions on images of 32 by 32: on large ones MindSpore's kernel takes minutes here."""
    import mindspore as ms
    import torch

    width = max(16, int((millions * 1e6 / 1247) ** 0.5) // 8 * 8)
    sizes = [width, 2 * width, 4 * width, 8 * width]

    class TorchBlock(torch.nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False)
            self.bn1 = torch.nn.BatchNorm2d(b)
            self.conv2 = torch.nn.Conv2d(b, b, 3, padding=1, bias=False)
            self.bn2 = torch.nn.BatchNorm2d(b)
            self.short = torch.nn.Conv2d(a, b, 1, stride=2, bias=False)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + self.short(x))

    class PortBlock(ms.nn.Cell):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.shortcut = ms.nn.Conv2d(a, b, 1, stride=2, pad_mode="valid")
            self.first = ms.nn.Conv2d(a, b, 3, stride=2, pad_mode="pad", padding=1)
            self.norm_first = ms.nn.BatchNorm2d(b)
            self.second = ms.nn.Conv2d(b, b, 3, pad_mode="pad", padding=1)
            self.norm_second = ms.nn.BatchNorm2d(b)

        def construct(self, x: Any) -> Any:
            y = ms.ops.relu(self.norm_first(self.first(x)))
            return ms.ops.relu(self.norm_second(self.second(y)) + self.shortcut(x))

    class Port(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.stages = ms.nn.SequentialCell(*(PortBlock(a, b) for a, b in zip([3, *sizes], sizes, strict=False)))
            self.classifier = ms.nn.Dense(sizes[-1], 1000)

        def construct(self, x: Any) -> Any:
            return self.classifier(self.stages(x).mean((2, 3)))

    class Torch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.Sequential(*(TorchBlock(a, b) for a, b in zip([3, *sizes], sizes, strict=False)))
            self.head = torch.nn.Linear(sizes[-1], 1000)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(x).mean((2, 3)))

    return Torch(), Port(), "float32[2,3,32,32]"


def attention(millions: float) -> tuple[Any, Any, str]:
    """Blocks of attention and a feed-forward network on 128 vectors."""
    import mindspore as ms
    import torch

    width = max(8, int((millions * 1e6 / 144) ** 0.5) // 8 * 8)

    class TorchBlock(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.q, self.k, self.v = (torch.nn.Linear(width, width) for _ in range(3))
            self.o = torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            weights = torch.softmax(self.q(y) @ self.k(y).transpose(1, 2) / width**0.5, -1)
            x = x + self.o(weights @ self.v(y))
            return x + self.down(torch.relu(self.up(self.norm2(x))))

    class Torch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(TorchBlock() for _ in range(12))
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    class PortBlock(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.ln_a, self.ln_b = (ms.nn.LayerNorm((width,), epsilon=1e-5) for _ in range(2))
            self.value, self.key, self.query = (ms.nn.Dense(width, width) for _ in range(3))
            self.project = ms.nn.Dense(width, width)
            self.fc1, self.fc2 = ms.nn.Dense(width, 4 * width), ms.nn.Dense(4 * width, width)

        def construct(self, x: Any) -> Any:
            y = self.ln_a(x)
            scores = ms.ops.matmul(self.query(y), self.key(y).swapaxes(1, 2)) / width**0.5
            x = x + self.project(ms.ops.matmul(ms.ops.softmax(scores, -1), self.value(y)))
            return x + self.fc2(ms.ops.relu(self.fc1(self.ln_b(x))))

    class Port(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = ms.nn.CellList([PortBlock() for _ in range(12)])
            self.last = ms.nn.LayerNorm((width,), epsilon=1e-5)

        def construct(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.last(x)

    return Torch(), Port(), f"float32[2,128,{width}]"


NETWORKS = {"convolutions": convolutions, "attention": attention}


def peak() -> float:
    """The greatest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(network: str, millions: float, infer: bool, repeat: int) -> dict[str, float]:
    """Times of forwards and of inference in turn, so that what else the machine does falls on both; medians of each."""
    import automap
    from automap.probing import open_inputs
    from automap.running import Runner

    torch_model, ms_model, spec = NETWORKS[network](millions)
    probe = open_inputs(spec)
    assert probe is not None
    inputs = probe.draw(0)
    from automap import mindspore_runner, torch_runner

    runners: tuple[Runner, Runner] = torch_runner.Runner(torch_model), mindspore_runner.Runner(ms_model)
    times: dict[str, list[float]] = defaultdict(list)

    def timed(what: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        times[what].append(time.perf_counter() - start)
        return result

    for turn in range(repeat):
        for side, runner in zip(("torch", "mindspore"), runners, strict=True):
            with runner.holding({}):  # a plain forward, without copies of the weights
                if not turn:
                    runner.run(inputs)
                for _ in range(3):
                    timed(side, lambda runner=runner: runner.run(inputs))
        if infer:
            timed("static", lambda: automap.infer(torch_model, ms_model, static=True))
            mapping = timed("infer", lambda: automap.infer(torch_model, ms_model, inputs=spec))
            assert mapping.proof is not None
            if mapping.proof.status != "proven":
                raise SystemExit(f"not proven: {mapping.proof}")
    out = {what: statistics.median(found) for what, found in times.items()}
    out["parameters"] = float(sum(p.numel() for p in torch_model.parameters()))
    out["peak"] = peak()
    return out


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--network", type=click.Choice(list(NETWORKS)), help="One of them; both without it.")
@click.option("--millions", default=50.0, show_default=True, help="Parameters, in millions.")
@click.option("--repeat", default=3, show_default=True, help="How often each is measured; medians are told.")
@click.option("--child", type=click.Choice(["run", "infer"]), hidden=True)
def main(network: str | None, millions: float, repeat: int, child: str | None) -> None:
    if child is not None:
        assert network is not None
        print(json.dumps(measure(network, millions, child == "infer", repeat)))
        return
    for name in [network] if network else list(NETWORKS):
        found = {}
        for kind in ("run", "infer"):
            command = [sys.executable, __file__, "--network", name, "--millions", str(millions)]
            command += ["--repeat", str(repeat), "--child", kind]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[kind] = json.loads(done.stdout.strip().split("\n")[-1])
        run = found["infer"]
        forward = run["torch"] + run["mindspore"]
        click.echo(
            f"{name}: {run['parameters'] / 1e6:.1f} M parameters; a forward takes {run['torch']:.2f} s in PyTorch and "
            f"{run['mindspore']:.2f} s in MindSpore; static inference {run['static']:.2f} s, with proof "
            f"{run['infer']:.2f} s: {(run['infer'] - run['static']) / forward:.1f} forwards; peak memory "
            f"{run['peak']:.0f} MB, {run['peak'] - found['run']['peak']:.0f} MB above two plain runs"
        )


if __name__ == "__main__":
    main()
