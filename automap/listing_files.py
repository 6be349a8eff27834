"""Listings as files: JSON and CSV, written by automap or by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any, get_args

from automap.errors import ListingError, SourceError
from automap.graph import Framework, Kind, Listing, Param, Shape

#: The frameworks as people write them.
FRAMEWORK_NAMES: dict[Framework, str] = {"torch": "PyTorch", "mindspore": "MindSpore"}

_KINDS = ", ".join(get_args(Kind))
_OPTIONAL = ("kind", "owner", "path", "aliases")
_SHAPE = re.compile(r"(?:torch\.Size)?\s*[(\[]*\s*(\d+(?:\s*[x×*,;\s]\s*\d+)*)?\s*,?\s*[)\]]*")
_UNKNOWN = ("", "?", "none", "null", "nan")
_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "bool_": "bool"}


def dtype_name(dtype: object) -> str:
    """An element type as both frameworks write it: ``torch.float32``, MindSpore's ``Float32`` and ``float32`` agree."""
    name = str(dtype).strip().rpartition(".")[2].lower()
    name = re.sub(r"^(float8)(e\d)", r"\1_\2", name)
    return _DTYPES.get(name, name)


def listing_to_json(listing: Listing) -> str:
    """A listing as JSON, one parameter a line; what is unknown or ordinary is left out."""
    lines = []
    for p in listing:
        entry: dict[str, Any] = {"name": p.name}
        if p.shape is not None:
            entry["shape"] = list(p.shape)
        if p.dtype is not None:
            entry["dtype"] = p.dtype
        if p.kind != "parameter":
            entry["kind"] = p.kind
        entry |= {key: value for key in ("owner", "path", "eps") if (value := getattr(p, key)) is not None}
        if p.aliases:
            entry["aliases"] = list(p.aliases)
        lines.append("  " + json.dumps(entry, ensure_ascii=False))
    return f'{{"framework": "{listing.framework}",\n "parameters": [\n' + ",\n".join(lines) + "\n ]}\n"


def listing_to_csv(listing: Listing) -> str:
    """A listing as CSV: ``name``, ``shape`` (``64x3x7x7``, ``()`` for a scalar), ``dtype``, and what else is known.

    The framework is not in it: a CSV belongs to the side that it is given on.
    """
    columns = ["name", "shape", "dtype"]
    ordinary = {"kind": "parameter", "owner": None, "path": None, "aliases": ()}
    columns += [c for c in _OPTIONAL if any(getattr(p, c) != ordinary[c] for p in listing)]
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(columns)
    for p in listing:
        row = {
            "name": p.name,
            "shape": "" if p.shape is None else "x".join(map(str, p.shape)) or "()",
            "dtype": p.dtype or "",
            "kind": p.kind,
            "owner": p.owner or "",
            "path": p.path or "",
            "aliases": " ".join(p.aliases),
        }
        write([row[c] for c in columns])
    return out.getvalue()


def read_listing(path: str | Path, framework: Framework | None) -> Listing:
    """A listing from a ``.json`` or ``.csv`` file.

    Args:
        path: the file. A CSV needs a column ``name`` or ``keys`` (or the ``0`` that pandas writes over names alone);
            ``shape`` and ``dtype`` may be missing.
        framework: the side that the listing is given on. None takes the one that a JSON file names.

    Raises:
        SourceError: the file cannot be read, or belongs to the other framework.
        ListingError: it is not a listing: no name column, a line that is not understood, a name twice, nothing in it.
    """
    text = str(path)
    try:
        # utf-8-sig: spreadsheets put a byte order mark first.
        content = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ListingError(f"{text} is not a text file in UTF-8: save the listing as UTF-8", text) from error
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error.strerror}", text) from error
    if Path(path).suffix.lower() == ".json":
        return listing_from_json(content, framework, text)
    if framework is None:
        raise ListingError(f"{text} is a CSV, which does not say its framework: name it (torch or mindspore)", text)
    return Listing(framework, tuple(_from_csv(content, text)), text)


def check_side(found: Framework, asked: Framework | None, what: str, text: str) -> None:
    """Refuse a source of the other framework.

    Raises:
        SourceError: ``found`` is not what was asked for.
    """
    if asked is not None and found != asked:
        raise SourceError(
            f"{text} is {what} of {FRAMEWORK_NAMES[found]}, given where {FRAMEWORK_NAMES[asked]} is expected:"
            f" both sides cannot be {FRAMEWORK_NAMES[found]}; give the PyTorch source first, then the MindSpore one",
            text,
        )


def listing_from_json(content: str, framework: Framework | None, text: str) -> Listing:
    """The opposite of :func:`listing_to_json`; for the rest as :func:`read_listing`. ``text`` is the source."""
    try:
        data = json.loads(content)
    except json.JSONDecodeError as error:
        raise ListingError(
            f"{text} is not JSON: {error.msg} in line {error.lineno}; write it with `automap params`", text
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("parameters"), list):
        if isinstance(data, dict) and str(data.get("format", "")).startswith("automap/"):
            raise ListingError(f"{text} is a mapping, not a listing of one model's parameters", text)
        raise ListingError(
            f'{text} is not a listing: expected {{"framework": …, "parameters": [{{"name": …, "shape": …}}, …]}}', text
        )
    found: Framework | None = data.get("framework", framework)
    if found is None or found not in get_args(Framework):
        raise ListingError(f'{text} does not say its framework: "framework" must be "torch" or "mindspore"', text)
    check_side(found, framework, "a listing", text)
    params = (_param(p, f"{text}, parameter {i}", text) for i, p in enumerate(data["parameters"], 1))
    return Listing(found, tuple(params), text)


def _param(entry: object, where: str, text: str) -> Param:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ListingError(f'{where}: expected an object with a "name", such as {{"name": "conv.weight"}}', text)
    where = f"{text}, {entry['name']}"
    shape, kind, aliases = entry.get("shape"), entry.get("kind", "parameter"), entry.get("aliases", [])
    if shape is not None and not (isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape)):
        raise ListingError(f"{where}: the shape must be a list of whole numbers, not {json.dumps(shape)}", text)
    if kind not in get_args(Kind):
        raise ListingError(f"{where}: the kind must be one of {_KINDS}, not {json.dumps(kind)}", text)
    if not (isinstance(aliases, list) and all(isinstance(a, str) for a in aliases)):
        raise ListingError(f"{where}: the aliases must be a list of names, not {json.dumps(aliases)}", text)
    words = {key: entry.get(key) for key in ("dtype", "owner", "path")}
    for key, value in words.items():
        if not isinstance(value, str | None):
            raise ListingError(f"{where}: the {key} must be a text, not {json.dumps(value)}", text)
    dtype, eps = words["dtype"], entry.get("eps")
    if not (eps is None or (isinstance(eps, int | float) and not isinstance(eps, bool))):
        raise ListingError(f"{where}: the eps must be a number, not {json.dumps(eps)}", text)
    return Param(
        name=entry["name"],
        shape=None if shape is None else tuple(shape),
        dtype=dtype_name(dtype) if dtype else None,
        kind=kind,
        owner=words["owner"],
        path=words["path"],
        aliases=tuple(aliases),
        eps=eps,
    )


def _from_csv(content: str, text: str) -> list[Param]:
    first = content.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    rows = csv.reader(io.StringIO(content), delimiter=delimiter)
    try:
        header = [h.strip().lower() for h in next(rows, [])]
        names: list[str] = [h for h in ("name", "names", "keys", "key") if h in header]
        # pandas writes the header 0 over a column without a name, and nothing over the index.
        if not names and header in (["", "0"], ["0"]):
            names = ["0"]
        if not names:
            shown = ", ".join(h or "(empty)" for h in header[:6]) or "nothing"
            raise ListingError(
                f"{text} has no column name or keys: its first line is {shown}; begin with a line name,shape,dtype",
                text,
            )
        column = header.index(names[0])
        params = []
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{text}, line {rows.line_num}"
            cells = {h: cell.strip() for h, cell in zip(header, row, strict=False)}
            if len(row) <= column or not row[column].strip():
                raise ListingError(f"{where}: no name", text)
            kind: Any = cells.get("kind") or "parameter"
            if kind not in get_args(Kind):
                raise ListingError(f"{where}: the kind must be one of {_KINDS}, not {kind!r}", text)
            dtype = cells.get("dtype", "")
            params.append(
                Param(
                    name=row[column].strip(),
                    shape=_shape(cells.get("shape", ""), where, text),
                    dtype=None if dtype.lower() in _UNKNOWN else dtype_name(dtype),
                    kind=kind,
                    owner=cells.get("owner") or None,
                    path=cells.get("path") or None,
                    aliases=tuple(cells.get("aliases", "").split()),
                )
            )
    except csv.Error as error:
        raise ListingError(f"{text}, line {rows.line_num} is not CSV: {error}", text) from error
    return params


def _shape(cell: str, where: str, text: str) -> Shape | None:
    """A shape as people write it: ``64x3x7x7``, ``(64, 3, 7, 7)``, ``[64,3,7,7]``, ``torch.Size([64])``, ``()``."""
    if cell.lower() in _UNKNOWN:
        return None
    match = _SHAPE.fullmatch(cell)
    if match is None:
        raise ListingError(f"{where}: the shape {cell!r} is not understood; write it as 64x3x7x7", text)
    return tuple(int(d) for d in re.findall(r"\d+", match[1] or ""))
