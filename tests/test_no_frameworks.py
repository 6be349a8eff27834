"""The core needs neither framework: shown in a Python where importing one fails."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import pytest

import automap

PACKAGE = Path(automap.__file__).parent
FRAMEWORKS = ("torch", "mindspore")
#: Files that stand on one framework say so first in their names.
EDGES = tuple(f"{framework}_" for framework in FRAMEWORKS)
CORE = sorted(
    m.name for m in pkgutil.iter_modules([str(PACKAGE)]) if not m.name.startswith(EDGES) and m.name != "__main__"
)

#: Imports the modules named on its command line where both frameworks are blocked, and prints those that fail.
PROBE = f"""
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FRAMEWORKS}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, "")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error)
"""


def test_core_imports_without_frameworks(run_python):
    done = run_python(PROBE, "automap", *(f"automap.{name}" for name in CORE))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_probe_can_fail(run_python, tmp_path, framework):
    (tmp_path / "culprit.py").write_text(f"import {framework}.nn\n")
    done = run_python(PROBE, "culprit")
    assert done.stdout == f"culprit {framework} is blocked\n"


def test_the_edges_need_their_frameworks(run_python):
    done = run_python(PROBE, "automap.torch_edge", "automap.mindspore_edge")
    assert done.stdout == "automap.torch_edge torch is blocked\nautomap.mindspore_edge mindspore is blocked\n"


def test_import_is_fast_and_loads_no_framework(run_python):
    code = (
        "import sys, time; start = time.perf_counter(); import automap; print(time.perf_counter() - start);"
        f"print([f for f in {FRAMEWORKS} if f in sys.modules])"
    )
    seconds = []
    for _ in range(3):
        took, loaded = run_python(code).stdout.split("\n")[:2]
        assert loaded == "[]"
        seconds.append(float(took))
    assert min(seconds) < 0.5


def framework_imports(path: Path) -> list[str]:
    """The imports of a framework in a file, wherever they stand in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append(node.module or "")
    return [name for name in found if name.partition(".")[0] in FRAMEWORKS]


def test_only_files_named_after_a_framework_import_it():
    guilty = {p.stem for p in PACKAGE.rglob("*.py") if framework_imports(p)}
    assert {"torch_edge", "mindspore_edge"} <= guilty
    assert [name for name in guilty if not name.startswith(EDGES)] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_edge_imports_its_own_framework_only(framework):
    other = FRAMEWORKS[1 - FRAMEWORKS.index(framework)]
    for path in PACKAGE.glob(f"{framework}_*.py"):
        assert not [name for name in framework_imports(path) if name.partition(".")[0] == other]
