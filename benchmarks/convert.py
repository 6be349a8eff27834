"""How long the conversion of a large sharded checkpoint takes beside `cp` of the same files, and how much memory.

    python benchmarks/convert.py [--size 8GB] [--shard-size 1GB] [--runs 3] [--folder /tmp]

Makes a checkpoint of a decoder in bfloat16 in shards: fused q, k, v, which are split, and all else renamed. Then, in
turns: `cp -r`, `cp -r` with `sync` of what it wrote, and `automap convert --no-verify` into as many shards. Before each
the files are written out and dropped from the page cache, and the output of the one before is removed. `automap` starts
a process, checks NaN, computes checksums and waits until all is on the disk, as `cp` with `sync` does. Prints the best
time of each, the ratios, and the peak resident memory; at last the time with reading back. Needs three times the room.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

WIDTH, INNER = 4096, 11008
BYTES = 2
TARGET_RATIO = 0.7
#: Beside twice the greatest tensor, in bytes.
TARGET_REST = 300 * 10**6

Row = tuple[str, tuple[int, ...]]


def layer(i: int, width: int, inner: int) -> Iterator[Row]:
    """The parameters of a block."""
    yield f"layers.{i}.norm1.weight", (width,)
    yield f"layers.{i}.mix.qkv.weight", (3 * width, width)
    yield f"layers.{i}.mix.out.weight", (width, width)
    yield f"layers.{i}.norm2.weight", (width,)
    yield f"layers.{i}.mlp.gate.weight", (inner, width)
    yield f"layers.{i}.mlp.up.weight", (inner, width)
    yield f"layers.{i}.mlp.down.weight", (width, inner)


def rows_of(size: int, width: int = WIDTH, inner: int = INNER) -> list[Row]:
    """The parameters of as many blocks as have about so many bytes."""
    block = sum(BYTES * int(np.prod(shape)) for _, shape in layer(0, width, inner))
    return [row for i in range(max(1, round(size / block))) for row in layer(i, width, inner)]


def mapping_of(rows: list[Row]) -> dict[str, object]:
    """The mapping's file as a value: q, k, v are split, norms have another name, the rest another module's."""
    entries = []
    for name, shape in rows:
        entry: dict[str, object] = {"torch": [name], "confidence": 1, "review": False}
        new = "model." + name.replace("norm1.weight", "before.gamma").replace("norm2.weight", "between.gamma")
        if "qkv" in name:
            entry["mindspore"] = [new.replace("qkv", part) for part in "qkv"]
            entry["transform"] = [{"op": "split", "axis": 0, "sizes": [shape[0] // 3] * 3}]
        else:
            entry["mindspore"] = [new]
        entries.append(entry)
    counts = [sum(len(e[side]) for e in entries) for side in ("torch", "mindspore")]  # type: ignore[arg-type]
    sides = [{"source": "", "parameters": n, "fingerprint": ""} for n in counts]
    nothing: dict[str, list[str]] = {"torch": [], "mindspore": []}
    return {"format": "automap/1", "torch": sides[0], "mindspore": sides[1], "entries": entries, "unmatched": nothing}


def write_checkpoint(folder: Path, rows: list[Row], shard_size: int) -> int:
    """Write a checkpoint as Hugging Face does; gives the bytes of all files."""
    folder.mkdir()
    groups: list[list[Row]] = [[]]
    for row in rows:
        if sum(BYTES * int(np.prod(s)) for _, s in [*groups[-1], row]) > shard_size and groups[-1]:
            groups.append([])
        groups[-1].append(row)
    # Random bits of bfloat16 between 2^-63 and 2^65: none is no number. Two tensors do not begin alike.
    bits = np.random.default_rng(0).integers(0x2000, 0x6000, 2**24 + 2**16, np.uint16)
    homes = {}
    for n, group in enumerate(groups):
        file = f"model-{n + 1:05}-of-{len(groups):05}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name, shape in group:
            end = at + BYTES * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
            at = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for i, (name, shape) in enumerate(group):
                left = int(np.prod(shape))
                start = (7919 * (n + 1) + i) % 2**16
                while left:
                    part = bits[start : start + min(left, 2**24)]
                    out.write(part.data)
                    left -= len(part)
                homes[name] = file
    index = {"metadata": {"total_size": sum(BYTES * int(np.prod(s)) for _, s in rows)}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(f.stat().st_size for f in folder.iterdir())


def forget(folder: Path) -> None:
    """Write a folder's files out and drop them from the page cache."""
    for file in folder.iterdir():
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def run(command: list[str]) -> tuple[float, int]:
    """The seconds that a command takes, and the bytes that it held in memory at most."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {said.decode()}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="8GB")
    parser.add_argument("--shard-size", default="1GB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    args = parser.parse_args()
    from automap.streaming import parse_size

    rows = rows_of(parse_size(args.size))
    free = shutil.disk_usage(args.folder).free
    if free < 3 * parse_size(args.size):
        raise SystemExit(f"{args.folder} has {free:,} bytes free, and three times {args.size} are needed")
    greatest = max(BYTES * int(np.prod(shape)) for _, shape in rows)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        here = Path(folder)
        size = write_checkpoint(here / "hf", rows, parse_size(args.shard_size))
        (here / "mapping.json").write_text(json.dumps(mapping_of(rows)))
        convert = [sys.executable, "-m", "automap", "convert", str(here / "mapping.json"), str(here / "hf"), "-o"]
        ways = {
            "cp": ["cp", "-r", str(here / "hf"), str(here / "out")],
            "cp, on the disk": ["sh", "-c", f"cp -r '{here}/hf' '{here}/out' && sync '{here}/out/'*"],
            "automap convert --no-verify": [*convert, str(here / "out"), "--no-verify"],
        }
        best: dict[str, float] = {}
        peak = 0
        for _ in range(args.runs):
            for way, command in ways.items():
                forget(here / "hf")
                seconds, memory = run(command)
                best[way] = min(seconds, best.get(way, seconds))
                if "automap" in way:
                    peak = max(peak, memory)
                shutil.rmtree(here / "out")
                os.sync()
        forget(here / "hf")
        verified, memory = run([*convert, str(here / "out")])
        peak = max(peak, memory)
    print(f"{size / 1e9:.2f} GB in {len(rows)} tensors, the greatest {greatest / 1e6:.0f} MB; best of {args.runs} runs")
    for way, seconds in best.items():
        print(f"{way:28} {seconds:6.2f} s  {size / 1e9 / seconds:5.2f} GB/s")
    print(f"{'with reading back (once)':28} {verified:6.2f} s")
    ours = best["automap convert --no-verify"]
    ratios = [best[way] / ours for way in ("cp", "cp, on the disk")]
    limit = 2 * greatest + TARGET_REST
    print(f"ratio to cp {ratios[0]:.2f}, to cp and sync {ratios[1]:.2f} (wanted: {TARGET_RATIO})")
    print(f"peak memory {peak / 1e6:.0f} MB (wanted: at most {limit / 1e6:.0f})")
    return 0 if ratios[1] >= TARGET_RATIO and peak <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
