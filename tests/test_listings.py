"""Inference on the fixtures' listings: every entry is right, or marked for review."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest
from networks import Pair, silent

from automap.graph import Listing
from automap.inference import infer, match
from automap.listing_files import read_listing
from automap.mapping import Mapping
from automap.sources import open_source

FIXTURES = Path(__file__).parent.parent / "fixtures"

#: Name of the fixture -> how many of its right entries may be marked, of a hundred.
MARKED = {"efficientnet": 0, "resnet_cifar10": 10, "transformer": 60, "recurrent": 10}


def truth(name: str) -> dict[str, str]:
    with (FIXTURES / name / "truth.csv").open(newline="") as f:
        return dict(list(csv.reader(f))[1:])


def assert_right(pair: Pair, mapping: Mapping, marked: int) -> None:
    """Nothing is silently wrong, nothing is left out, and not more is marked than ``marked`` in a hundred."""
    assert silent(pair, mapping) == []
    right = [e for e in mapping.entries if pair.truth.get(e.torch[0]) == e.mindspore[0]]
    assert len(mapping.entries) == len(pair.truth)
    assert 100 * sum(e.review for e in mapping.entries) <= marked * len(right)
    if not marked:
        assert {e.torch[0]: e.mindspore[0] for e in mapping.entries} == pair.truth
    assert {u.name for u in mapping.unmatched_torch} == {p.name for p in pair.torch} - pair.truth.keys()
    assert all(u.why and not u.review for u in (*mapping.unmatched_torch, *mapping.unmatched_mindspore))


def names_of(name: str) -> tuple[Listing, Listing]:
    folder = FIXTURES / name
    return read_listing(folder / "param_torch.csv", "torch"), read_listing(folder / "prams_ms.csv", "mindspore")


def test_efficientnet_from_names_alone() -> None:
    torch, mindspore = names_of("efficientnet")
    assert all(p.shape is None for p in (*torch, *mindspore))
    assert_right(Pair(torch, mindspore, truth("efficientnet")), match(torch, mindspore), marked=10)


def test_efficientnet_from_the_files(tmp_path: Path) -> None:
    """The same through the front door, and the table is the one in the fixture."""
    folder = FIXTURES / "efficientnet"
    mapping = infer(folder / "param_torch.csv", str(folder / "prams_ms.csv"), static=True)
    mapping.write(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_bytes() == (folder / "truth.csv").read_bytes()


@pytest.mark.frameworks
@pytest.mark.parametrize("name", MARKED)
def test_from_the_listings_of_the_networks(name: str) -> None:
    folder = FIXTURES / name
    torch_file, ms_file = ("build_torch.py", "port.py") if name == "efficientnet" else ("torch_net.py", "ms_net.py")
    net, port = (runpy.run_path(str(folder / f))["build"]() for f in (torch_file, ms_file))
    torch, mindspore = open_source(net, "torch").listing(), open_source(port, "mindspore").listing()
    assert_right(Pair(torch, mindspore, truth(name)), match(torch, mindspore), MARKED[name])


def test_every_fixture_is_tried() -> None:
    assert sorted(MARKED) == sorted(p.parent.name for p in FIXTURES.glob("*/truth.csv"))
