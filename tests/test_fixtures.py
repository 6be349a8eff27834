"""The fixtures are what they say: their listings and true mappings are those of the two networks, proven by running."""

from __future__ import annotations

import csv
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = ("efficientnet", "transformer", "recurrent", "resnet_cifar10")


@pytest.fixture(scope="module")
def regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixtures_regenerate", FIXTURES / "regenerate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def rows(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="") as f:
        return [tuple(row) for row in csv.reader(f)]


def test_every_folder_is_covered() -> None:
    assert sorted(NAMES) == sorted(p.parent.name for p in FIXTURES.glob("*/truth.csv"))


def test_the_case_that_started_it() -> None:
    truth = rows(FIXTURES / "efficientnet" / "truth.csv")
    assert truth[0] == ("Pytorch", "mindspore")
    assert ("_blocks.0._bn1.running_mean", "0._bn1.moving_mean") in truth
    assert ("_bn1.weight", "_bn1.gamma") in truth
    assert len(truth) - 1 == 311


def test_listings_look_as_pandas_writes_them() -> None:
    torch_lines = (FIXTURES / "efficientnet" / "param_torch.csv").read_bytes().split(b"\n")
    assert torch_lines[:2] == [b",keys", b"0,_conv_stem.weight"]
    assert torch_lines[-2:] == [b"359,_fc.bias", b""]
    ms_lines = (FIXTURES / "efficientnet" / "prams_ms.csv").read_bytes().split(b"\n")
    assert ms_lines[:3] == [b",keys", b"0,_conv_stem.weight", b"1,_bn0.moving_mean"]
    assert ms_lines[-2:] == [b"310,_fc.bias", b""]


def test_truth_covers_the_efficientnet_listings() -> None:
    folder = FIXTURES / "efficientnet"
    torch_names = [name for _, name in rows(folder / "param_torch.csv")[1:]]
    ms_names = [name for _, name in rows(folder / "prams_ms.csv")[1:]]
    truth = dict(rows(folder / "truth.csv")[1:])
    assert [n for n in torch_names if not n.endswith("num_batches_tracked")] == list(truth)
    assert sorted(ms_names) == sorted(truth.values())


def test_the_transformer_shares_no_word_with_its_port() -> None:
    truth = rows(FIXTURES / "transformer" / "truth.csv")[1:]
    torch_words = {w for t, _ in truth for part in t.split(".")[:-1] for w in part.split("_")}
    ms_words = {w for _, m in truth for part in m.split(".")[:-1] for w in part.split("_")}
    assert torch_words & ms_words == {"0", "1", "2"}


@pytest.mark.frameworks
@pytest.mark.parametrize("name", NAMES)
def test_truth_is_proven_by_running(regenerate: ModuleType, name: str) -> None:
    pair = regenerate.load(name)
    for file, content in pair.files.items():
        assert (FIXTURES / name / file).read_bytes() == content, f"run fixtures/regenerate.py: {file} is stale"
    ms_names = [p.name for p in pair.mindspore.get_parameters()]
    assert sorted(pair.truth.values()) == sorted(ms_names)

    weights = regenerate.seeded_weights(pair.torch)
    expected = regenerate.run_torch(pair, weights)
    assert regenerate.difference(expected, regenerate.run_mindspore(pair, weights)) < 1e-5


@pytest.mark.frameworks
@pytest.mark.parametrize("name", NAMES)
def test_the_proof_notices_a_swap(regenerate: ModuleType, name: str) -> None:
    pair = regenerate.load(name)
    weights = regenerate.seeded_weights(pair.torch)
    expected = regenerate.run_torch(pair, weights)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for t in pair.truth:
        by_shape.setdefault(weights[t].shape, []).append(t)
    neighbours = [two for names in by_shape.values() for two in pairwise(names)]
    for a, b in neighbours[:: 1 + len(neighbours) // 10]:
        if a.replace("_ih_", "_hh_") == b:
            continue  # the two biases of an LSTM are added: swapping them changes nothing
        swapped = {**pair.truth, a: pair.truth[b], b: pair.truth[a]}
        difference = regenerate.difference(expected, regenerate.run_mindspore(pair, weights, swapped))
        assert not difference <= 1e-3, (a, b)  # or NaN, of a negative variance


@pytest.mark.frameworks
def test_check_says_which_file_is_stale(
    regenerate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recurrent"
    folder.mkdir()
    for file in (FIXTURES / "recurrent").glob("*.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(regenerate, "HERE", tmp_path)
    monkeypatch.setattr(regenerate, "FIXTURES", {"recurrent": regenerate.FIXTURES["recurrent"]})
    assert regenerate.main(["--check"]) == 0
    with (folder / "truth.csv").open("a") as f:
        f.write("lstm.weight,rnn.weight\n")
    assert regenerate.main(["--check"]) == 1
    assert "recurrent/truth.csv" in capsys.readouterr().out
    assert regenerate.main([]) == 0
    assert regenerate.main(["--check"]) == 0
