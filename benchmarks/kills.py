"""A conversion that is killed at random moments: what stands under a final name is whole, and a resumed run ends alike.

    python benchmarks/kills.py [--kills 50] [--size 150MB] [--seed 0] [--folder /tmp]

Converts a sharded checkpoint in a process that gets SIGKILL at a moment drawn between its first byte and the end of a
whole run; into a folder, into one .safetensors and into one .ckpt in turns. After each kill, every file under a
final name, and every file that counts as complete, is compared with that of a run that nobody has killed. Every third
time the resumed run is killed, too. Then a run with --resume has to end with the same bytes. At last, where that is
allowed, the disk is full: a small tmpfs, once from the beginning and once while it is written.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from convert import mapping_of, rows_of, write_checkpoint

OUTPUTS = ("out", "out.safetensors", "out.ckpt")

Contents = dict[str, bytes]


def contents(path: Path) -> Contents:
    """The bytes of a file, or of the files of a folder, by name."""
    if path.is_dir():
        return {p.name: p.read_bytes() for p in sorted(path.iterdir())}
    return {path.name: path.read_bytes()} if path.exists() else {}


def wrong_files(output: Path, whole: Contents) -> list[str]:
    """The files under a final name, or that count as complete, that are not as they should be."""
    found = contents(output)
    wrong = [f"{output.name}: {n}" for n, data in found.items() if data != whole.get(n)]
    if found and found.keys() != whole.keys():
        wrong.append(f"{output.name}: some of its files only")
    staged = contents(output.with_name(output.name + ".automap-partial") / "whole")
    return wrong + [f"complete: {n}" for n, data in staged.items() if data != whole.get(n)]


def convert(here: Path, output: Path, *options: str, kill_after: float | None = None) -> tuple[int, str]:
    """Run a conversion, and kill it so many seconds after it began to write; its status and what it said."""
    command = [sys.executable, "-m", "automap", "convert", str(here / "mapping.json"), str(here / "hf")]
    command += ["-o", str(output), *options]
    if output.suffix == "":
        command += ["--shard-size", "5MB"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    parts = output.with_name(output.name + ".automap-partial") / "parts"
    while kill_after is not None and process.poll() is None and not list(parts.glob("*")):
        time.sleep(0.001)
    try:
        _, said = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
    return process.returncode, said


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_kills(here: Path, kills: int, seed: int) -> tuple[int, int, list[str]]:
    """How many runs were killed, how many of those went on from complete files, and what went wrong."""
    draw, wrong, killed, resumed = random.Random(seed), [], 0, 0
    whole, seconds = {}, {}
    for name in OUTPUTS:
        start = time.perf_counter()
        convert(here, here / name, kill_after=0)
        begun = time.perf_counter()
        status, said = convert(here, here / name)
        seconds[name] = max(0.1, time.perf_counter() - begun - (begun - start))
        if status:
            raise SystemExit(said)
        whole[name] = contents(here / name)
        remove(here / name)
    turn = 0
    while killed < kills:
        name = OUTPUTS[turn % len(OUTPUTS)]
        output, options = here / name, []
        for _ in range(2 if turn % 3 == 0 else 1):
            status, _ = convert(here, output, *options, kill_after=draw.uniform(0, seconds[name]))
            killed += status == -signal.SIGKILL
            wrong += wrong_files(output, whole[name])
            options = ["--resume"]
        status, said = convert(here, output, "--resume")
        resumed += "by an earlier run" in said
        if status or contents(output) != whole[name]:
            wrong.append(f"{name}: the resumed run ended with {status}: {said}")
        wrong += [f"left behind: {p.name}" for p in here.iterdir() if "partial" in p.name]
        remove(output)
        turn += 1
        print(f"\r{killed} kills", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return killed, resumed, wrong


def run_full_disk(here: Path, size: int) -> list[str]:
    """What went wrong on a disk that is full; nothing where no small disk can be made."""
    disk, wrong = here / "disk", []
    disk.mkdir()
    for room, filled in ((size // 2, False), (size * 3 // 2, True)):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(disk)], check=False).returncode:
            return ["no tmpfs can be mounted here: the full disk was not tried"]
        try:
            command = [sys.executable, "-m", "automap", "convert", str(here / "mapping.json"), str(here / "hf")]
            command += ["-o", str(disk / "out"), "--shard-size", "5MB"]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            if filled:  # somebody else takes the room as soon as the first file is in the making
                while process.poll() is None and not list(disk.glob("out.automap-partial/parts/*")):
                    time.sleep(0.001)
                subprocess.run(
                    ["dd", "if=/dev/zero", f"of={disk}/rubbish", "bs=1M"], stderr=subprocess.DEVNULL, check=False
                )
            _, said = process.communicate()
            (disk / "rubbish").unlink(missing_ok=True)
            left = [p.name for p in disk.iterdir()]
            print(f"full disk: exit status {process.returncode}: {said.strip()}")
            if process.returncode != 2 or said.count("\n") != 1 or left:
                wrong.append(f"full disk: exit status {process.returncode}, left behind {left}: {said}")
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--size", default="150MB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    args = parser.parse_args()
    from automap.streaming import parse_size

    rows = rows_of(parse_size(args.size), 512, 1376)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        here = Path(folder)
        size = write_checkpoint(here / "hf", rows, 20 * 10**6)
        (here / "mapping.json").write_text(json.dumps(mapping_of(rows)))
        killed, resumed, wrong = run_kills(here, args.kills, args.seed)
        wrong += run_full_disk(here, size)
    print(f"{size / 1e6:.0f} MB; {killed} kills, {resumed} runs went on from complete files, {len(wrong)} wrong")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
