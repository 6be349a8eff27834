"""The plugin, in a pytest of its own. Listings do: no framework is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automap.regression import write_lock

pytest_plugins = "pytester"

NAMES = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]
SHAPES = [[8, 3, 3, 3], [8], [5, 8], [5]]


def write_listing(path: Path, framework: str, names: list[str]) -> None:
    parameters = [{"name": n, "shape": s, "dtype": "float32"} for n, s in zip(names, SHAPES, strict=False)]
    path.write_text(json.dumps({"framework": framework, "parameters": parameters}))


@pytest.fixture
def lock(pytester: pytest.Pytester) -> Path:
    """A lock of two listings with the same names, in a folder below the one that pytest runs in."""
    folder = pytester.mkdir("models")
    write_listing(folder / "t.json", "torch", NAMES)
    write_listing(folder / "m.json", "mindspore", NAMES)
    write_lock(folder / "automap.lock", folder / "t.json", folder / "m.json")
    return folder / "automap.lock"


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    # In this process; the plugin is there by its entry point, as for any user.
    return pytester.runpytest_inprocess(*args)


def test_a_lock_that_holds_passes(pytester: pytest.Pytester, lock: Path):
    result = run(pytester, "--automap-lock", "models/automap.lock", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["models/automap.lock::check PASSED*"])


def test_a_lock_that_drifts_fails_in_words(pytester: pytest.Pytester, lock: Path):
    write_listing(lock.parent / "m.json", "mindspore", NAMES[:3])
    result = run(pytester, "--automap-lock", str(lock))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*automap lock automap.lock*",
            f"{lock}: 2 thing(s) drifted",
            "  MindSpore parameter fc.bias disappeared",
            "  fc.bias: was fc.bias, now without a counterpart*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "regression.py" not in result.stdout.str()


def test_a_lock_that_is_not_there_fails_in_words(pytester: pytest.Pytester):
    result = run(pytester, "--automap-lock", "none.lock")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no such lock file: *none.lock; automap infer --lock writes one"])


def test_several_locks_beside_other_tests(pytester: pytest.Pytester, lock: Path):
    pytester.makepyfile("def test_other(): pass")
    again = lock.with_name("again.lock")
    again.write_bytes(lock.read_bytes())
    arguments = ["--automap-lock", "models/automap.lock", "--automap-lock", "models/again.lock"]
    run(pytester, *arguments).assert_outcomes(passed=3)
    run(pytester, *arguments, "-k", "again").assert_outcomes(passed=1, deselected=2)
    run(pytester).assert_outcomes(passed=1)


def test_locks_run_in_several_processes(pytester: pytest.Pytester, lock: Path):
    pytest.importorskip("xdist")
    run(pytester, "--automap-lock", "models/automap.lock", "-n", "1").assert_outcomes(passed=1)


def test_a_lock_is_checked_from_within_a_test(pytester: pytest.Pytester, lock: Path):
    pytester.makepyfile("def test_lock(automap_check): automap_check('models/automap.lock')")
    run(pytester).assert_outcomes(passed=1)
    write_listing(lock.parent / "t.json", "torch", NAMES[:3])
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*PyTorch parameter fc.bias disappeared*"])


def test_pytest_starts_without_loading_automap(run_python):
    """Every pytest of a user loads the plugin; none of the library must come with it."""
    done = run_python(
        "import sys, automap.pytest_plugin;"
        "print([m for m in sys.modules if m.startswith('automap.') and m != 'automap.pytest_plugin'])"
    )
    assert done.stdout == "[]\n"
