"""The pytest plugin: ``pytest --automap-lock automap.lock`` makes a test of each lock file.

pytest loads it at every start, so it imports the rest of automap only when a lock is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class LockDrift(Exception):
    """What drifted, in words: shown without a traceback."""


class LockFile(pytest.File):
    """Collects the one test of a lock file."""

    def collect(self) -> Iterator[pytest.Item]:
        yield LockItem.from_parent(self, name="check")


class LockItem(pytest.Item):
    """The check of one lock file."""

    def runtest(self) -> None:
        _check(self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from automap.errors import AutomapError

        if isinstance(excinfo.value, (LockDrift, AutomapError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"automap lock {self.path.name}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("automap").addoption(
        "--automap-lock",
        action="append",
        default=[],
        metavar="F",
        help="check this automap lock file as a test (may be given several times)",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in config.getoption("--automap-lock"):
        path = config.invocation_params.dir / name
        items.extend(session.genitems(LockFile.from_parent(session, path=path)))


@pytest.fixture(scope="session")
def automap_check(pytestconfig: pytest.Config) -> Callable[[str | Path], None]:
    """Checks a lock file from within a test: ``automap_check("automap.lock")``, relative to the root folder."""
    return lambda path: _check(pytestconfig.rootpath / path)


def _check(path: Path) -> None:
    from automap.regression import check

    report = check(path)
    if not report.passed:
        raise LockDrift(str(report))
