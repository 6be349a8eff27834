"""Runs what README.md and docs/*.md quote, and writes the real output back: ``python docs/refresh.py``.

In a page, a code block whose first line is three backquotes, a language and a file name is a file of that name. A
``console`` block holds commands, each after ``$ ``, and what they print. The blocks of a page are used in order, in one
folder that holds a copy of fixtures/. docs/layers.md is written as a whole, from the layer table. `tests/test_docs.py`
checks that nothing would change.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ROOT / "docs" / "layers.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"^```(?P<language>\w+)(?: (?P<file>\S+))?\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.MULTILINE)

#: `automap` and `python` are those that run this.
_SHELL = 'python() { command "$PYTHON" "$@"; }; automap() { python -m automap "$@"; }\n'


def refreshed(text: str, folder: Path) -> str:
    """A page with the output of its commands as they print it now; ``folder`` is where they run."""
    shutil.copytree(ROOT / "fixtures", folder / "fixtures", ignore=shutil.ignore_patterns("__pycache__"))
    return _BLOCK.sub(lambda block: _block(block, folder), text)


def stable(text: str) -> str:
    """A page without the numbers that another processor may give: differences by rounding."""
    return re.sub(r"\d(\.\d+)?e-\d\d", "1e-07", text)


def _block(block: re.Match[str], folder: Path) -> str:
    if block["file"]:
        (folder / block["file"]).write_text(block["body"], encoding="utf-8")
    if block["language"] != "console":
        return block[0]
    status, out = 0, ""
    for command in _COMMAND.findall(block["body"]):
        done = _run(command, folder, status)
        status, out = done.returncode, f"{out}{command}{done.stdout}"
    return f"```console\n{out}```"


def _run(command: str, folder: Path, status: int) -> subprocess.CompletedProcess[str]:
    """One command; the status of the one before it is its ``$?``."""
    env = os.environ | {"PYTHON": sys.executable, "COLUMNS": "80", "NO_COLOR": "1", "GLOG_v": "3"}
    return subprocess.run(
        ["bash", "-c", f"{_SHELL}(exit {status})\n{command.removeprefix('$ ')}"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def main() -> None:
    from automap.layer_report import page as page_of_layers

    if not LAYERS.exists() or LAYERS.read_text(encoding="utf-8") != page_of_layers():
        _write(LAYERS, page_of_layers())
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new = refreshed(old, Path(folder))
        if stable(new) != stable(old):
            _write(page, new)


def _write(page: Path, text: str) -> None:
    page.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{page.relative_to(ROOT)}: written anew\n")


if __name__ == "__main__":
    main()
