"""The training fixture: a network that PyTorch trained, and that MindSpore trains on, with either of its APIs."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "fixtures" / "resnet_cifar10"
WIDTH, BATCH = 4, 16

DOCS = FOLDER.parent.parent / "docs"

pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def case() -> Iterator[SimpleNamespace]:
    """The fixture's modules."""
    names = ("data", "ms_cells", "ms_net", "ms_train", "torch_net", "torch_train", "truth")
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def digits(case: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(case.data.write_digits(tmp_path_factory.mktemp("digits")))


def with_equal_weights(case: SimpleNamespace) -> tuple:
    """Both networks, new, with PyTorch's weights by way of the fixture's own truth."""
    import mindspore as ms
    import torch

    torch.manual_seed(0)
    net, port = case.torch_net.build(width=WIDTH), case.ms_net.build(width=WIDTH)
    parameters = port.parameters_dict()
    for name, tensor in net.state_dict().items():
        if (theirs := case.truth.mindspore_name(name)) is not None:
            parameters[theirs].set_data(ms.Tensor(tensor.numpy().copy()))
    return net, port


def test_the_files_are_as_the_real_set_s(digits: str) -> None:
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = np.fromfile(Path(digits, name), np.uint8).reshape(-1, 3073)
        assert len(records) == 10_000
        assert np.bincount(records[:, 0]).min() > 800
        assert len(np.bincount(records[:, 0])) == 10


def test_both_readers_give_the_same_batches(case: SimpleNamespace, digits: str) -> None:
    theirs = case.ms_train.batches(digits, BATCH)
    for images, labels in itertools.islice(case.torch_train.batches(digits, BATCH), 2):
        same_images, same_labels = next(theirs)
        assert np.array_equal(images.numpy(), same_images.asnumpy())
        assert np.array_equal(labels.numpy(), same_labels.asnumpy())


def test_the_low_level_step_gives_loss_and_output_of_pytorch(case: SimpleNamespace, digits: str) -> None:
    net, port = with_equal_weights(case)
    optimizer = case.torch_train.make_optimizer(net)
    step = case.ms_train.train_step(port, case.ms_train.make_optimizer(port), BATCH)
    count_correct = case.ms_cells.CountCorrect()
    seen = []
    net.register_forward_hook(lambda _, __, out: seen.append(out.detach().numpy()))
    theirs = case.ms_train.batches(digits, BATCH)
    for images, labels in itertools.islice(case.torch_train.batches(digits, BATCH), 3):
        expected = case.torch_train.train_step(net, optimizer, images, labels)
        loss, out = step(*next(theirs))
        assert float(loss) == pytest.approx(expected, abs=1e-5)
        np.testing.assert_allclose(out.asnumpy(), seen[-1], atol=2e-4)
        right = (seen[-1].argmax(1) == labels.numpy()).sum()
        assert int(count_correct(out, case.ms_train.ms.Tensor(labels.numpy()))) == right
    # The running statistics too, which a second forward in a step would have moved.
    mean = port.stem[1].moving_mean.asnumpy()
    np.testing.assert_allclose(mean, net.bn1.running_mean.numpy(), rtol=1e-4, atol=1e-6)


def run(script: str, *args: str | Path, cwd: Path) -> str:
    command = [sys.executable, str(FOLDER / script), *map(str, args), "--width", str(WIDTH), "--every", "1"]
    env = os.environ | {"PYTHONPATH": str(FOLDER.parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_scripts_run_with_either_api_and_leave_nothing_but_checkpoints(digits: str, tmp_path: Path) -> None:
    common = ["--data_path", digits, "--steps", "2", "--batch_size", "8", "--val_samples", "20"]
    low = run("ms_train.py", *common, "--mode", "pynative", cwd=tmp_path)
    assert "step    2  train loss" in low
    high = run("ms_train.py", *common, "--mode", "pynative", "--api", "high", "--out", "high", cwd=tmp_path)
    # The same seed, network, batches and optimizer: both APIs end at the same place.
    assert low.splitlines()[-1] == high.splitlines()[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "high"]


def test_the_page_shows_what_was_run() -> None:
    """The losses that the picture is drawn of, and what the page says of them."""
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    ours, theirs = (dict(np.loadtxt(DOCS / "training" / f"{n}.csv", delimiter=",")) for n in ("pytorch", "mindspore"))
    apart = [abs(ours[step] - loss) for step, loss in theirs.items()]
    assert list(theirs) == list(range(251, 301))
    assert max(apart) < 1e-3
    assert f"the losses differ by {max(apart):.1e} at most" in page
    for run, step in ((ours, 250), (ours, 300), (theirs, 300)):
        assert f"step {step:4}  train loss {run[step]:.4f}" in page
    accuracies = [line.partition("validation")[2] for line in page.splitlines() if "validation loss" in line]
    assert accuracies[0] == accuracies[1] != accuracies[2] == accuracies[3]
    assert accuracies[4] == accuracies[5]
    code = page.partition("## Five lines in MindSpore")[2].partition("```py\n")[2].partition("```")[0]
    assert len(code.splitlines()) == 5


def test_the_page_shows_what_is_asked_of_a_conversion() -> None:
    """Forward, gradients and fifty steps, as automap validate has compared them."""
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    found = re.search(
        r"^The outputs agree in \d+ runs.*off by at most (\S+) of their scale; 62 gradient\(s\) agree: off by at most "
        r"(\S+) of their scale; 50 step\(s\) of training .* agree: losses off by at most (\S+) of their value.*$",
        page,
        re.MULTILINE,
    )
    assert found is not None
    forward, gradients, losses = (float(number.rstrip(".,;")) for number in found.groups())
    assert "nothing to tell" not in found[0]
    assert (forward < 1e-5, gradients < 1e-4, losses < 1e-3) == (True, True, True)
    speed = re.search(r"([\d.]+) for the low-level API, ([\d.]+) for the high-level one, a ratio of\s([\d.]+);", page)
    assert speed is not None
    assert float(speed[1]) / float(speed[2]) == pytest.approx(float(speed[3]), abs=0.005)
