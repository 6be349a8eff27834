"""Checkpoints at addresses, and their files written by the workers of a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from automap import cli, places
from automap.conversion import apply, convert
from automap.dtypes import Array, is_same
from automap.errors import ConversionError, SourceError
from automap.mapping import Entry, Mapping, Side
from automap.sources import open_source
from automap.transforms import from_text

SIDE = Side("", 1, "")
MODEL = Mapping(
    SIDE,
    SIDE,
    tuple(
        entry
        for i in range(5)
        for entry in (
            Entry((f"{i}.norm",), (f"{i}.gamma",)),
            Entry((f"{i}.qkv",), (f"{i}.q", f"{i}.k", f"{i}.v"), from_text("split(axis=0, sizes=[2, 2, 2])")),
        )
    ),
)


def weights() -> dict[str, Array]:
    draw = np.random.default_rng(0)
    shapes = {"norm": (7,), "qkv": (6, 5)}
    return {f"{i}.{n}": draw.normal(size=s).astype(np.float32) for i in range(5) for n, s in shapes.items()}


def write_folder(folder: Path) -> Path:
    folder.mkdir()
    homes = {}
    for i in range(5):
        file = f"model-{i + 1:05}-of-00005.safetensors"
        part = {n: a for n, a in weights().items() if n.startswith(f"{i}.")}
        save_file(part, folder / file, {"format": "pt"})
        homes |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return folder


def bytes_in(folder: str) -> dict[str, bytes]:
    return {name: places.read(places.joined(folder, name)) for name in places.names(folder)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "hf")


@pytest.fixture
def storage() -> str:
    """An address that nothing else uses."""
    pytest.importorskip("fsspec")
    return f"memory://bucket-{uuid.uuid4().hex}/models"


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_words_for_paths() -> None:
    for path in ("s3://bucket/a", "memory://x", "gs://b/c.safetensors"):
        assert places.is_address(path)
    for path in ("a/b", "C:\\a", "c:/a", "a:b", "./net.py:build", "/a//b"):
        assert not places.is_address(path)
    assert places.split("s3://bucket/a/b.ckpt") == ("s3://bucket/a", "b.ckpt")
    assert places.split("a/b.ckpt") == ("a", "b.ckpt")
    assert places.split("b.ckpt") == (".", "b.ckpt")
    assert places.joined("s3://bucket/a/", "b") == "s3://bucket/a/b"
    assert places.suffix("s3://bucket/a.x/b.CKPT") == ".ckpt"


def test_from_here_to_an_address_and_back(folder: Path, tmp_path: Path, storage: str) -> None:
    convert(MODEL, folder, tmp_path / "here")
    report = convert(MODEL, folder, f"{storage}/ms")
    assert report.verified == 20
    assert places.names(storage) == ["ms"]
    assert bytes_in(f"{storage}/ms") == bytes_in(str(tmp_path / "here"))
    convert(MODEL, f"{storage}/ms", tmp_path / "back", reverse=True)
    back = open_source(tmp_path / "back", "torch").read()
    assert all(is_same(back[n], a) for n, a in weights().items())


@pytest.mark.parametrize("name", ["net.safetensors", "net.ckpt"])
def test_single_files_at_addresses(folder: Path, tmp_path: Path, storage: str, name: str) -> None:
    convert(MODEL, folder, tmp_path / name)
    convert(MODEL, folder, f"{storage}/{name}")
    assert places.read(f"{storage}/{name}") == (tmp_path / name).read_bytes()
    assert places.names(storage) == [name]
    convert(MODEL, f"{storage}/{name}", f"{storage}/back.safetensors", reverse=True)
    read = open_source(f"{storage}/back.safetensors", "torch").read()
    assert all(is_same(read[n], a) for n, a in weights().items())
    arrays = apply(MODEL, f"{storage}/back.safetensors", framework="numpy")
    assert arrays["0.k"].tolist() == weights()["0.qkv"][2:4].tolist()


@pytest.mark.frameworks
def test_a_pth_at_an_address(tmp_path: Path, storage: str) -> None:
    import torch

    state = {n: torch.tensor(a) for n, a in weights().items()}
    torch.save(state, tmp_path / "net.pth")
    places.upload(str(tmp_path / "net.pth"), f"{storage}/net.pth")
    convert(MODEL, f"{storage}/net.pth", f"{storage}/ms.safetensors")
    read = open_source(f"{storage}/ms.safetensors", "mindspore").read()
    assert is_same(read["3.gamma"], weights()["3.norm"])
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    places.upload(str(tmp_path / "old.pth"), f"{storage}/old.pth")
    with pytest.raises(SourceError, match="cannot be read from there: copy the file to this machine"):
        convert(MODEL, f"{storage}/old.pth", f"{storage}/no.safetensors")


def test_an_interrupted_run_at_an_address_goes_on(folder: Path, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from automap import streaming

    convert(MODEL, folder, f"{storage}/whole")
    real, begun = streaming.write_file, []

    def write(job: Any, *rest: Any) -> Any:
        begun.append(job)
        if len(begun) > 2:
            raise KeyboardInterrupt
        return real(job, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "write_file", write)
        with pytest.raises(KeyboardInterrupt):
            convert(MODEL, folder, f"{storage}/ms")
    assert places.names(storage) == ["ms.automap-partial", "whole"]
    assert convert(MODEL, folder, f"{storage}/ms", resume=True).resumed == 2
    assert bytes_in(f"{storage}/ms") == bytes_in(f"{storage}/whole")
    assert places.names(storage) == ["ms", "whole"]


def test_nothing_appears_at_an_address_where_a_value_forbids_it(tmp_path: Path, storage: str) -> None:
    save_file(weights() | {"4.qkv": np.full((6, 5), 1e9, np.float32)}, tmp_path / "in.safetensors")
    with pytest.raises(ConversionError, match=r"4\.q \(10 in float16\), 4\.k \(10 in float16\)"):
        convert(MODEL, tmp_path / "in.safetensors", f"{storage}/ms", shard_size=300, dtype="float16")
    assert places.names(storage) == []


def test_addresses_that_cannot_be(
    folder: Path, storage: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    MODEL.write(tmp_path / "m.json")
    for given, message in (
        (f"{storage}/none.safetensors", f"there is nothing at {storage}/none.safetensors: check the address"),
        ("nowhere://a/b.safetensors", "nowhere://a/b.safetensors cannot be reached: Protocol not known: nowhere"),
        (f"{storage}-none/", "there is nothing at"),
    ):
        assert cli.main(["convert", str(tmp_path / "m.json"), given, "-o", f"{storage}/ms"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert message in err


def test_fsspec_is_named_where_it_is_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SourceError, match="fsspec, which reads it, is not installed: pip install"):
        convert(MODEL, folder, "s3://bucket/ms")


# -- clusters ----------------------------------------------------------------------------------------------------------


def test_distributed_is_named_where_it_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SourceError, match="is a cluster of Dask, which is not installed: pip install"):
        convert(MODEL, folder, tmp_path / "ms", scheduler="tcp://127.0.0.1:1")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, each a process of its own."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options, silence_logs=50) as found:
        yield found


def test_a_cluster_writes_the_same_bytes(folder: Path, tmp_path: Path, cluster: Any) -> None:
    told: dict[str, tuple[int, int]] = {}
    for options in ({}, {"shard_size": 300}, {"shard_size": 300, "format": "ckpt"}, {"dtype": "bfloat16"}):
        for at in (tmp_path / "here", tmp_path / "there"):
            subprocess.run(["rm", "-rf", at], check=True)
        here = convert(MODEL, folder, tmp_path / "here", **options)  # type: ignore[arg-type]
        there = convert(
            MODEL,
            folder,
            tmp_path / "there",
            scheduler=cluster.scheduler_address,
            progress=lambda what, done, total: told.update({what: (done, total)}),
            **options,  # type: ignore[arg-type]
        )
        assert bytes_in(str(tmp_path / "there")) == bytes_in(str(tmp_path / "here"))
        assert (there.tensors, there.verified, there.conversion) == (here.tensors, here.verified, here.conversion)
        assert [done == total for done, total in told.values()] == [True, True]


def test_a_cluster_writes_the_state_of_an_optimizer_too(tmp_path: Path, cluster: Any) -> None:
    torch = pytest.importorskip("torch")
    held = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in weights().items()}
    optimizer = torch.optim.SGD(held.items(), lr=0.1, momentum=0.9)
    for tensor in held.values():
        tensor.grad = tensor.detach() + 1
    optimizer.step()
    torch.save({"net": dict(held), "optimizer": optimizer.state_dict()}, tmp_path / "in.pth")
    for there in (True, False):
        where: dict[str, Any] = {"scheduler": cluster.scheduler_address} if there else {}
        out, back = (tmp_path / f"{there}{ending}" for ending in (".ckpt", ".pth"))
        made = convert(MODEL, tmp_path / "in.pth", out, optimizer="Momentum", step=1, **where)
        assert made.optimizer is not None
        assert not made.optimizer.needs_review
        assert made.optimizer.carried == {"momentum_buffer": 10}
        made = convert(MODEL, out, back, reverse=True, optimizer="SGD", optimizer_args={"momentum": 0.9}, **where)
        loaded = torch.load(back, weights_only=True)["optimizer"]
        for i, tensor in enumerate(held.values()):
            assert torch.equal(loaded["state"][i]["momentum_buffer"], optimizer.state[tensor]["momentum_buffer"])
    assert (tmp_path / "True.ckpt").read_bytes() == (tmp_path / "False.ckpt").read_bytes()
    assert (tmp_path / "True.pth").read_bytes() == (tmp_path / "False.pth").read_bytes()


def test_faults_found_by_workers_are_told(tmp_path: Path, cluster: Any) -> None:
    save_file(weights() | {"4.qkv": np.full((6, 5), 1e9, np.float32)}, tmp_path / "in.safetensors")
    with pytest.raises(ConversionError, match=r"4\.q \(10 in float16\), 4\.k \(10 in float16\)"):
        convert(MODEL, tmp_path / "in.safetensors", tmp_path / "ms", shard_size=300, dtype="float16",
                scheduler=cluster.scheduler_address)  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


SLOW = """
import time
from automap import stored
def slow(real=stored.Sliced._fill):
    def fill(self, *rest):
        time.sleep({seconds})
        real(self, *rest)
    stored.Sliced._fill = fill
slow()
"""


def test_a_worker_that_dies_is_replaced(folder: Path, tmp_path: Path, cluster: Any) -> None:
    distributed = pytest.importorskip("distributed")
    convert(MODEL, folder, tmp_path / "here")
    failed: list[BaseException] = []

    def go() -> None:
        try:
            convert(MODEL, folder, tmp_path / "there", scheduler=cluster.scheduler_address, resume=True)
        except BaseException as error:
            failed.append(error)

    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        client.run(exec, SLOW.format(seconds=0.3), {})
        victims = client.run(os.getpid)
        thread = threading.Thread(target=go)
        thread.start()
        journal = tmp_path / "there.automap-partial" / "journal"
        end = time.monotonic() + 60
        while not (journal.is_dir() and list(journal.iterdir())) and time.monotonic() < end:
            time.sleep(0.01)
        # One file is complete, and each worker is at another.
        os.kill(next(iter(victims.values())), signal.SIGKILL)
        thread.join(120)
        assert not thread.is_alive()
    assert failed == []
    assert bytes_in(str(tmp_path / "there")) == bytes_in(str(tmp_path / "here"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "hf", "there"]


def test_no_scheduler_answers(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(SourceError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9: start one with `dask sched"):
        convert(MODEL, folder, tmp_path / "ms", scheduler="tcp://127.0.0.1:9")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]
