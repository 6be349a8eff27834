"""Runs the commands that docs/training.md quotes, writes their output back, and keeps the losses for the picture.

    python docs/training.py FOLDER

FOLDER is where it all runs; it takes some minutes. The picture is drawn by ``docs/plot_training.py`` of
``docs/training/pytorch.csv`` and ``mindspore.csv``, which needs matplotlib (the dependency group ``docs``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "training.md"
_BLOCK = re.compile(r"^```text\n(?P<body>\$ .*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.MULTILINE)
_SHELL = 'python() { command "$PYTHON" "$@"; }; automap() { python -m automap "$@"; }\n'


def run(block: re.Match[str]) -> str:
    out = ""
    for command in _COMMAND.findall(block["body"]):
        env = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "GLOG_v": "3"}
        shell = ["bash", "-c", _SHELL + command.removeprefix("$ ")]
        done = subprocess.run(shell, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        sys.stdout.write(f"{command}{done.stdout}")
        sys.stdout.flush()
        out += command + done.stdout
    return f"```text\n{out}```"


def main(folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    for name in ("fixtures", "docs"):
        shutil.copytree(ROOT / name, name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in Path().glob("*.csv"):
        file.unlink()
    PAGE.write_text(_BLOCK.sub(run, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for file in ("pytorch.csv", "mindspore.csv"):
        shutil.copy(file, ROOT / "docs" / "training" / file)


if __name__ == "__main__":
    main(sys.argv[1])
