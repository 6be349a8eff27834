"""The documentation: what it quotes is what the commands print, what it names is there."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from automap import cli, layer_report
from automap.errors import AutomapError
from automap.mapping import FORMAT, Entry, Mapping, RunnerUp, Side, Unmatched
from automap.transforms import OPERATIONS, Transform

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_refresh", ROOT / "docs" / "refresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    return re.findall(r"^\$ automap (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda p: p.name)
def test_a_page_quotes_what_is_printed(page: Path, refresh: ModuleType, tmp_path: Path) -> None:
    """If this fails, `python docs/refresh.py` writes the output anew: look at the difference before you keep it."""
    text = read(page)
    assert refresh.stable(refresh.refreshed(text, tmp_path)) == refresh.stable(text)


def test_the_page_of_layers_is_made_from_the_table() -> None:
    """If this fails, `python docs/refresh.py` writes it anew."""
    assert read(ROOT / "docs" / "layers.md") == layer_report.page()


@pytest.mark.frameworks
def test_the_readme_quotes_what_is_printed(refresh: ModuleType, tmp_path: Path) -> None:
    """The Python example is one of the things that are run. For a failure, see above."""
    text = read(README)
    assert "$ python example.py" in text
    assert refresh.stable(refresh.refreshed(text, tmp_path)) == refresh.stable(text)


def test_refreshing_writes_output_files_and_statuses(refresh: ModuleType, tmp_path: Path) -> None:
    page = "\n".join(
        [
            "```csv names.csv", "name", "conv.weight", "```", "",
            "```console", "$ cat \\", "    names.csv", "old", "$ (exit 3)", "$ echo $?", "0", "```", "",
            "```sh", "$ echo not run", "```", "",
        ]
    )  # fmt: skip
    new = refresh.refreshed(page, tmp_path)
    assert new == page.replace("old\n", "name\nconv.weight\n").replace("$?\n0\n", "$?\n3\n")
    assert refresh.stable("off by 1.6e-07") == refresh.stable("off by 2e-06") != refresh.stable("off by 0.1")


def test_every_command_has_its_help_on_the_page() -> None:
    shown = [c for c in commands(read(ROOT / "docs" / "cli.md")) if c.endswith("--help")]
    assert shown == ["--help", *(f"{name} --help" for name in cli.cli.commands)]


def test_every_command_line_quoted_runs_a_command_that_there_is() -> None:
    for page in PAGES:
        for words in re.findall(r"`automap ([a-z]+)[ `]", read(page)):
            assert words in cli.cli.commands, page


def test_the_readme_begins_with_true_pairs() -> None:
    truth = set()
    for path in (ROOT / "fixtures").glob("*/truth.csv"):
        with path.open(newline="") as f:
            truth.update(tuple(row) for row in csv.reader(f))
    picture = read(README).partition("```text\n")[2].partition("```")[0]
    pairs = re.findall(r"^(\S+) +-> +(\S+)", picture, re.MULTILINE)
    assert len(pairs) == picture.count("\n") - 1 > 5
    assert set(pairs) <= truth


def test_the_readme_has_every_exit_status() -> None:
    rows = {int(n) for n in re.findall(r"^\| (\d) \|", read(README), re.MULTILINE)}
    errors = {e.exit_code for e in AutomapError.__subclasses__()}
    assert rows == {0, 1, 2, 3, 4} >= errors


def test_every_key_of_a_mapping_file_is_described() -> None:
    steps = (Transform("reshape", {"shape": [1], "before": [1, 1]}),)
    other = RunnerUp(("a",), ("y",), 0.5)
    entry = Entry(("a",), ("x",), steps, 0.7, True, "why", {"proven": None}, other, "net.x")
    mapping = Mapping(
        Side("t", 2, "sha256:0"),
        Side("m", 1, "sha256:1"),
        (entry,),
        (Unmatched("b", "tied", True, "a"),),
        pins=("a=x",),
        reverse=True,
    )
    text = read(ROOT / "docs" / "mapping-file.md")
    keys = set(re.findall(r'"(\w+)":', mapping.to_json()))
    assert {"alias_of", "mindspore_path", "reverse", "runner_up", "why"} <= keys
    assert {k for k in keys | {"op"} if f"`{k}`" not in text} == set()
    assert f'"{FORMAT}"' in text


def test_every_transform_is_described_with_its_arguments() -> None:
    text = read(ROOT / "docs" / "mapping-file.md")
    rows = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)}
    for name, operation in OPERATIONS.items():
        assert {k for k in operation.required | operation.optional if f"`{k}`" not in rows[name]} == set()


def test_an_entry_written_by_hand_is_read() -> None:
    text = read(ROOT / "docs" / "mapping-file.md")
    written = text.partition("```json\n")[2].partition("```")[0]
    names = json.loads(written)
    file = {
        "format": FORMAT,
        "torch": {"source": "", "parameters": 1, "fingerprint": ""},
        "mindspore": {"source": "", "parameters": 3, "fingerprint": ""},
        "entries": [names],
        "unmatched": {"torch": [], "mindspore": []},
    }
    (entry,) = Mapping.from_json(json.dumps(file)).entries
    assert entry.mindspore == ("q.weight", "k.weight", "v.weight")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", read(page)):
        if link.startswith("https://"):
            continue
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve()
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", read(target), re.MULTILINE)
            assert heading in {t.lower().replace(" ", "-") for t in titles}, link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_path_of_one_machine_is_quoted(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:tmp|home|work|opt|root|usr)/\S*", read(page)) == []
