"""What all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from automap.quiet import quiet_mindspore

# Before any test imports MindSpore: it reads its log level once. And with MindSpore's layouts, oneDNN's kernels for
# AVX-512 fall back to its reference for most convolutions, which takes forty times as long as its kernels for AVX2.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
quiet_mindspore()

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Runs code in a Python of its own, in the test's folder (or ``cwd``), and gives what it printed and its status."""

    def run(code: str, *args: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *args]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)

    return run
