"""The table ``Pytorch,mindspore``: a mapping as CSV, for people and for plain renames."""

from __future__ import annotations

import csv
import io

from automap.errors import MappingError, TransformError
from automap.mapping import TABLE, Entry, Mapping, Unmatched
from automap.transforms import from_text
from automap.transforms import to_text as transform_text


def to_text(mapping: Mapping) -> str:
    """The table of a mapping; see :meth:`automap.mapping.Mapping.to_csv`."""
    if mapping.reverse:
        raise MappingError("a table leads from PyTorch to MindSpore: write the mapping before it is inverted")
    more = any(e.transform for e in mapping.entries)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow([*TABLE, "transform"] if more else TABLE)
    for e in mapping.entries:
        for name in e.torch + e.mindspore:
            if not name or name != name.strip() or "\r" in name or (e.transform and ";" in name):
                raise MappingError(f"entry {e}: the table cannot hold this name: write .json")
        row = [";".join(e.torch), ";".join(e.mindspore)]
        table.writerow([*row, transform_text(e.transform)] if more else row)
    return out.getvalue()


def read(text: str, path: str = "") -> Mapping:
    """The mapping of a table; see :meth:`automap.mapping.Mapping.from_csv`."""
    at = path or "the table"
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as e:
        raise MappingError(f"{at}: line {reader.line_num} is no CSV: {e}", path) from None
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    if not {"pytorch", "mindspore"} <= set(header):
        raise MappingError(f"{at}: the first line must name the columns Pytorch,mindspore", path)
    entries, dropped = [], []
    for line, row in rows[1:]:
        cells = dict(zip(header, row, strict=False))
        given, made = cells.get("pytorch", ""), cells.get("mindspore", "")
        if not given:
            raise MappingError(f"{at}: line {line} has no PyTorch name: fill it in or remove the line", path)
        try:
            steps = from_text(cells.get("transform", ""))
        except TransformError as e:
            raise MappingError(f"{at}: line {line}: {e}", path) from None
        if not made:
            dropped.append(Unmatched(given, "left out on purpose"))
        elif steps:
            entries.append(Entry(tuple(given.split(";")), tuple(made.split(";")), steps))
        else:
            entries.append(Entry((given,), (made,)))
    try:
        return Mapping.of_entries(entries, dropped)
    except MappingError as e:
        raise MappingError(f"{at}: {e}", path) from None
