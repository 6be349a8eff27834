"""Images per second of MindSpore's low-level and high-level training API, on the same network in one run.

    python benchmarks/training.py [--width 16] [--batch_size 32] [--steps 20] [--rounds 3] [--device_target CPU]

The network, the cells of the low-level API and the data are those of ``fixtures/resnet_cifar10``. Both train on the
same batches, in turns; compiling and the first steps do not count. The best of all rounds of each is compared: other
work on the machine only makes a round slower. The data is read beforehand, so that what is measured is the training.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings about itself
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # see ms_train.py
os.environ.setdefault("MS_OM_PATH", tempfile.gettempdir())  # no rank_0/ in the working folder
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures" / "resnet_cifar10"))

import data
import mindspore as ms
import ms_net
import ms_train
from mindspore.train import Model


class Batches:
    """Batches in memory, as ``Model.train`` takes a data set."""

    def __init__(self, batches: list[tuple[ms.Tensor, ms.Tensor]]) -> None:
        self.batches = batches

    def __getitem__(self, i: int) -> tuple:
        return tuple(t.asnumpy() for t in self.batches[i])

    def __len__(self) -> int:
        return len(self.batches)


def low(batches: list[tuple[ms.Tensor, ms.Tensor]], width: int, size: int):
    """The low-level API: a function that trains on all batches and gives the seconds."""
    net = ms_net.build(width=width)
    step = ms_train.train_step(net, ms_train.make_optimizer(net), size)

    def run() -> float:
        start = time.perf_counter()
        for images, labels in batches:
            loss, _ = step(images, labels)
        loss.asnumpy()  # what runs behind has ended
        return time.perf_counter() - start

    return run


def high(batches: list[tuple[ms.Tensor, ms.Tensor]], width: int, size: int):
    """The high-level API: the same."""
    net = ms_net.build(width=width)
    model = Model(net, ms_train.loss_function(), ms_train.make_optimizer(net))
    images = ms.dataset.GeneratorDataset(Batches(batches), ["image", "label"], shuffle=False)

    def run() -> float:
        start = time.perf_counter()
        model.train(1, images, dataset_sink_mode=False)
        net.head.bias.asnumpy()
        return time.perf_counter() - start

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data_path", help="a folder with CIFAR-10's binary files; made of digits without it")
    parser.add_argument("--mode", choices=["graph", "pynative"], default="graph")
    parser.add_argument("--device_target", choices=["CPU", "GPU", "Ascend"], default="CPU")
    args = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE if args.mode == "graph" else ms.PYNATIVE_MODE, device_target=args.device_target)
    with tempfile.TemporaryDirectory() as folder:
        found = ms_train.batches(
            str(data.write_digits(folder)) if args.data_path is None else args.data_path, args.batch_size
        )
        batches = list(itertools.islice(found, args.steps))
    runs = {
        "low-level": low(batches, args.width, args.batch_size),
        "high-level": high(batches, args.width, args.batch_size),
    }
    for run in runs.values():
        run()  # compiles
    images = args.steps * args.batch_size
    best = dict.fromkeys(runs, 0.0)
    for _ in range(args.rounds):
        for name, run in runs.items():
            best[name] = max(best[name], images / run())
    print(f"ResNet-18, width {args.width}, batches of {args.batch_size}, {args.mode} mode, {args.device_target}:")
    for name, rate in best.items():
        print(f"  {name:10} {rate:8.1f} images/s")
    print(f"  low/high   {best['low-level'] / best['high-level']:8.2f}")


if __name__ == "__main__":
    main()
