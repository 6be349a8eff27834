"""The layer table in words: all layers in a table, one with every fact, as JSON, and as a page of the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from automap.layer_table import PROVEN, Counterpart, Other, Reparametrization, Row, reparametrizations, rows

if TYPE_CHECKING:
    from rich.console import RenderableType

_TITLES = ("PyTorch", "MindSpore", "proven by", "other defaults", "what changes")
#: The same in a few letters.
_SHORT = {"running": "running", "stand-in": "running, with a stand-in", "built": "names, order and shapes"}


# -- all layers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overview:
    """All layers, one line for each counterpart."""

    rows: tuple[Row, ...]

    def lines(self) -> Iterator[tuple[str, ...]]:
        """The cells of each line."""
        for row in self.rows:
            for c in row.counterparts:
                if not c.name:
                    yield row.torch, f"no {c.place}", "", "", f"use {c.instead}"
                    continue
                defaults = ", ".join(d.mindspore for d in c.defaults)
                yield row.torch, c.full_name, _SHORT[c.proven or "built"], defaults, changes(row, c)

    def __str__(self) -> str:
        cells = [_TITLES, *self.lines()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)

    def __rich__(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(*_TITLES)
        last = ""
        for name, *cells in self.lines():
            if name != last and last:
                table.add_section()
            style = "dim" if cells[0].startswith("no ") else ""
            table.add_row(Text("" if name == last else name, style="bold"), *(Text(c, style=style) for c in cells))
            last = name
        return table


def changes(row: Row, counterpart: Counterpart) -> str:
    """What is other about the parameters, in short."""
    renamed: dict[str, None] = {}
    lost: list[str] = []
    reshaped: list[str] = []
    for parameter, other in row.pairs(counterpart):
        if other is None:
            lost.append(parameter.name)
            continue
        renamed |= dict.fromkeys(_renamed(parameter.name, other.name))
        if other.shape is not None:
            reshaped.append(f"{parameter.name} [{parameter.shape}] -> [{other.shape}]")
    found = [*reshaped, *renamed]
    found += [f"no {name}" for name in lost]
    if counterpart.by_kind or _reordered(row, counterpart):
        found.append("another order")
    return ", ".join(found) or "nothing"


def _reordered(row: Row, counterpart: Counterpart) -> bool:
    """Whether the parameters that both have come in another order."""
    ours = [other.torch for other in counterpart.parameters]
    return ours != [p.name for p in row.parameters if p.name in ours]


def _renamed(theirs: str, ours: str) -> Iterator[str]:
    """The parts of two paths that differ."""
    a, b = theirs.split("."), ours.split(".")
    if len(a) != len(b):
        yield f"{theirs} -> {ours}"
        return
    yield from (f"{x} -> {y}" for x, y in zip(a, b, strict=True) if x != y)


# -- one layer ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """Everything about some layers."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return "\n\n".join("\n".join(_facts(row)) for row in self.rows)

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        text = Text(str(self))
        text.highlight_regex(r"(?m)^\S.*$", "bold")
        text.highlight_regex(r"(?m)^  (other default|proven by .*|called otherwise|lacks)", "cyan")
        return text


def _facts(row: Row) -> Iterator[str]:
    yield f"torch.nn.{row.torch}" + (f", also {', '.join(row.also)}" if row.also else "")
    yield from _columns((p.name, _shape(p.shape), f"if {p.when}" if p.when else "") for p in row.parameters)
    names = "".join(p.name for p in row.parameters)
    if "{l}" in names:
        both = "; {d}: nothing, or _reverse for the other direction" if "{d}" in names else ""
        yield f"  {{l}}: a number from 0 on{both}"
    yield from (f"  {remark}" for remark in row.remarks)
    for c in row.counterparts:
        yield ""
        if not c.name:
            yield f"mindspore.{c.place} has none"
            yield f"  use {c.instead}"
            continue
        yield f"mindspore.{c.full_name}"
        yield from _columns(_parameter(row, o) for o in c.parameters)
        yield from (f"  {p.name} has no counterpart" for p, o in row.pairs(c) if o is None and c.parameters)
        if c.called:
            yield f"  called otherwise: {', '.join(f'{a} is {b}' for a, b in c.called)}"
        for d in c.defaults:
            yield f"  other default: {d.torch} in PyTorch, {d.mindspore} here: write {d.write}" + (
                f" (else: {d.effect})" if d.effect else ""
            )
        if c.lacks:
            yield f"  lacks {', '.join(c.lacks)}"
        yield from (f"  {remark}" for remark in c.remarks)
        yield f"  proven by {_SHORT[c.proven or 'built']}: {PROVEN[c.proven or 'built']}"


def _parameter(row: Row, other: Other) -> tuple[str, ...]:
    """The cells of one of MindSpore's parameters."""
    theirs = next(p for p in row.parameters if p.name == other.torch)
    shape = theirs.shape if other.shape is None else other.shape
    notes = [f"as {other.transform}"] if other.transform else []
    if other.alone:
        notes.append(f"called {other.alone} where the cell is the whole network")
    if other.always and theirs.when:
        notes.append("always there")
    return other.name, _shape(shape), f"from {other.torch}", "; ".join(notes)


def _shape(shape: str) -> str:
    return f"[{shape}]"


def _columns(lines: Any) -> list[str]:
    cells = list(lines)
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [f"  {'  '.join(map(str.ljust, line, widths))}".rstrip() for line in cells]


# -- as data -----------------------------------------------------------------------------------------------------------


def to_json(found: Sequence[Row]) -> str:
    """Rows as JSON: a list, one object for each layer of PyTorch."""
    return json.dumps([_plain(row) for row in found], indent=1, ensure_ascii=False) + "\n"


def _plain(row: Row) -> dict[str, Any]:
    data = asdict(row)
    for c, of_c in zip(row.counterparts, data["counterparts"], strict=True):
        of_c["changes"] = changes(row, c) if c.name else ""
        for other, of_other in zip(c.parameters, of_c["parameters"], strict=True):
            of_other["transform"] = other.transform
    return data


# -- as a page ---------------------------------------------------------------------------------------------------------

_INTRODUCTION = """\
# Layers of PyTorch and MindSpore

Every layer of `torch.nn` that has parameters, and what stands for it in `mindspore.nn` and `mindspore.mint.nn`.
`automap layers` prints this table, `automap layers NAME` one layer. The page is made from the same table by
`python docs/refresh.py`. The tests hold every line of it against both frameworks: names, order and shapes of the built
layers, every hyper-parameter and its default, and the outputs.

The third column says what a line stands on:

"""

_REPARAMETRIZATIONS = """\

## Weights that PyTorch computes from others

MindSpore's layers keep the plain weight. What `torch.nn.utils` stores in place of it, and how it is computed from that
(`automap infer` finds these, and `automap convert` computes the weight):

"""


def page() -> str:
    """The page of the documentation, in Markdown."""
    lines = [_INTRODUCTION.rstrip("\n"), ""]
    lines += [f"- *{_SHORT[key]}*: {words}." for key, words in PROVEN.items() if _used(key)]
    lines += ["", *_markdown(_TITLES, Overview(rows()).lines())]
    for row in rows():
        lines += ["", f"## {row.torch}", "", "```text", *_facts(row), "```"]
    lines += [_REPARAMETRIZATIONS.rstrip("\n"), ""]
    lines += _markdown(("torch.nn.utils", "stored", "weight", "to know"), map(_cells, reparametrizations()))
    return "\n".join(lines) + "\n"


def _used(proven: str) -> bool:
    return any(c.proven == proven for row in rows() for c in row.counterparts)


def _cells(made: Reparametrization) -> tuple[str, ...]:
    stored = ", ".join(f"`{p.name}` [{p.shape}]" for p in made.parameters)
    return f"`{made.torch}`", stored, f"`{made.weight}`", "; ".join(made.remarks)


def _markdown(titles: Sequence[str], lines: Any) -> list[str]:
    escaped = (tuple(cell.replace("|", "\\|").replace("*", "\\*") for cell in line) for line in lines)
    return [f"| {' | '.join(line)} |" for line in (titles, ["---"] * len(titles), *escaped)]
