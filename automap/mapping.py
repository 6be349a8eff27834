"""The mapping: which PyTorch parameters become which MindSpore parameters, as a value and as a versioned file."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap.errors import MappingError, SourceError, TransformError
from automap.evidence import STATUSES, Proof
from automap.files import replacing
from automap.graph import Framework, Listing
from automap.transforms import Transform, count_after, from_json, from_text, inverse, to_json, to_text

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = "automap/1"
TABLE = ("Pytorch", "mindspore")

#: The parts of the evidence that come first in the file, in this order; ``proven`` comes last.
_EVIDENCE = ("names", "numbers", "order", "structure", "usage", "fit", "execution")

#: How many entries a short table shows.
_SHOWN = 12


@dataclass(frozen=True)
class RunnerUp:
    """The best different choice for an entry: what it would have been, and how far behind it was (0 to 1)."""

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    margin: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "torch", tuple(self.torch))
        object.__setattr__(self, "mindspore", tuple(self.mindspore))
        object.__setattr__(self, "margin", _plain(float(self.margin)))


@dataclass(frozen=True)
class Entry:
    """PyTorch name(s) to MindSpore name(s).

    Numbers are kept to four digits, as the file has them.

    Attributes:
        torch: PyTorch names; several where they are joined.
        mindspore: MindSpore names (``Parameter.name``); several where one array is split.
        transform: what happens to the arrays on the way, in order; empty for a plain rename.
        confidence: 0 to 1.
        review: whether a person has to look at it.
        why: the reason for the review; always ``""`` where there is none.
        evidence: the parts of the score, 0 to 1 each (``names``, ``numbers``, ``order``, ``structure``, ``usage``,
            ``fit``; ``execution`` where both networks ran: 1 where what follows confirms it) and ``proven``
            (``"forward"``, ``"gradient"`` or None).
        runner_up: the best different choice, or None.
        path: the attribute path of the MindSpore parameter where it differs from its name, else None.
    """

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    transform: tuple[Transform, ...] = ()
    confidence: float = 1.0
    review: bool = False
    why: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    runner_up: RunnerUp | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "torch", tuple(self.torch))
        object.__setattr__(self, "mindspore", tuple(self.mindspore))
        object.__setattr__(self, "transform", tuple(self.transform))
        object.__setattr__(self, "confidence", _plain(float(self.confidence)))
        object.__setattr__(self, "why", self.why if self.review else "")
        last = len(_EVIDENCE) + 1
        rank = {k: i for i, k in enumerate(_EVIDENCE)} | {"proven": last}
        keys = sorted(self.evidence, key=lambda k: (rank.get(k, last - 1), k))
        object.__setattr__(self, "evidence", {k: _plain(self.evidence[k]) for k in keys})

    def names(self, framework: Framework) -> tuple[str, ...]:
        """Its names on one side."""
        return self.torch if framework == "torch" else self.mindspore

    def __str__(self) -> str:
        change = f" [{to_text(self.transform)}]" if self.transform else ""
        return f"{', '.join(self.torch)} -> {', '.join(self.mindspore)}{change}"


@dataclass(frozen=True)
class Unmatched:
    """A name without a counterpart, and why.

    Attributes:
        name: the parameter's name.
        why: the reason, for a person to read.
        review: whether a person has to look at it.
        alias_of: the name, on the same side, of the tied weight that this is another name of, or None.
    """

    name: str
    why: str
    review: bool = False
    alias_of: str | None = None


@dataclass(frozen=True)
class Side:
    """What a mapping knows of one of its two models: source, number of parameters, fingerprint of the listing."""

    source: str
    parameters: int
    fingerprint: str

    @classmethod
    def of(cls, listing: Listing) -> Side:
        """What a mapping keeps of a listing."""
        return cls(listing.source, len(listing), listing.fingerprint)


@dataclass(frozen=True)
class Mapping:
    """Which PyTorch parameters become which MindSpore parameters.

    Every name appears exactly once on its side: in an entry, or unmatched with a reason.

    Attributes:
        torch: what is known of the PyTorch model.
        mindspore: what is known of the MindSpore model.
        entries: the matched parameters, in the order of the PyTorch listing.
        unmatched_torch: PyTorch names without a counterpart.
        unmatched_mindspore: MindSpore names without a counterpart.
        pins: the pins it was made with, ``T=M`` each.
        reverse: whether the transforms lead from MindSpore to PyTorch, as ``invert`` makes them. The names stay on
            the side of their framework either way.
        proof: what running both networks proved, or None where they were not run.

    Raises:
        MappingError: a name appears twice, or an entry's names do not fit its transform.
    """

    torch: Side
    mindspore: Side
    entries: tuple[Entry, ...]
    unmatched_torch: tuple[Unmatched, ...] = ()
    unmatched_mindspore: tuple[Unmatched, ...] = ()
    pins: tuple[str, ...] = ()
    reverse: bool = False
    proof: Proof | None = None

    def __post_init__(self) -> None:
        for name in ("entries", "unmatched_torch", "unmatched_mindspore", "pins"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for framework in ("torch", "mindspore"):
            self._check_names(framework)
        for entry in self.entries:
            given, wanted = len(entry.names(self.given)), len(entry.names(self.made))
            if not given or not wanted:
                raise MappingError(f"entry {entry} lacks a name on one side: move the other to unmatched")
            try:
                made = count_after(entry.transform, given)
            except TransformError as e:
                raise MappingError(f"entry {entry}: {e}") from None
            if made != wanted:
                raise MappingError(
                    f"entry {entry}: its transform makes {made} array(s) of {given}, but it names {wanted}: "
                    "correct its transform or its names"
                )

    def _check_names(self, framework: Framework) -> None:
        seen: set[str] = set()
        for name in self.names(framework):
            if name in seen:
                raise MappingError(f"{framework} name {name!r} appears twice: keep one of its entries")
            seen.add(name)

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.entries)

    @property
    def given(self) -> Framework:
        """The framework whose arrays go into the transforms."""
        return "mindspore" if self.reverse else "torch"

    @property
    def made(self) -> Framework:
        """The framework whose arrays come out of the transforms."""
        return "torch" if self.reverse else "mindspore"

    @property
    def unmatched(self) -> dict[str, list[Unmatched]]:
        """What has no counterpart, by framework: ``{"torch": […], "mindspore": […]}``."""
        return {"torch": list(self.unmatched_torch), "mindspore": list(self.unmatched_mindspore)}

    @property
    def torch_2_ms(self) -> dict[str, str]:
        """PyTorch name to MindSpore name, for every entry of one name each; what happens to the array is left out."""
        return {e.torch[0]: e.mindspore[0] for e in self.entries if len(e.torch) == len(e.mindspore) == 1}

    @property
    def reviewed(self) -> tuple[Entry, ...]:
        """The entries that a person has to look at."""
        return tuple(e for e in self.entries if e.review)

    @property
    def needs_review(self) -> bool:
        """Whether a person has to look at an entry or at something unmatched."""
        return self._to_review > 0

    @property
    def _to_review(self) -> int:
        unmatched = self.unmatched_torch + self.unmatched_mindspore
        return len(self.reviewed) + sum(u.review for u in unmatched)

    def names(self, framework: Framework) -> Iterator[str]:
        """Every name on one side: those of the entries, then the unmatched ones."""
        for entry in self.entries:
            yield from entry.names(framework)
        for item in self.unmatched[framework]:
            yield item.name

    def find(self, name: str) -> tuple[Entry | Unmatched, ...]:
        """What the mapping says of a name on either side (a name may be used on both)."""
        return tuple(self._by_name.get(name, ()))

    @cached_property
    def _by_name(self) -> dict[str, list[Entry | Unmatched]]:
        found: dict[str, list[Entry | Unmatched]] = {}
        for entry in self.entries:
            for name in dict.fromkeys(entry.torch + entry.mindspore):
                found.setdefault(name, []).append(entry)
        for item in (*self.unmatched_torch, *self.unmatched_mindspore):
            found.setdefault(item.name, []).append(item)
        return found

    def invert(self, shapes: Dict[str, Iterable[int] | None] | None = None) -> Mapping:
        """The same mapping in the other direction: applied, it makes PyTorch parameters of MindSpore's, or back.

        Args:
            shapes: the shapes of the parameters that this mapping takes, by name, for transforms that do not say
                themselves how they are undone (a ``reshape`` without ``before``).

        Raises:
            MappingError: a transform that has no inverse; every such entry is named.
        """
        shapes = shapes or {}
        entries, stuck = [], []
        for entry in self.entries:
            given = [shapes.get(name) for name in entry.names(self.given)]
            try:
                undone = inverse(entry.transform, [None if s is None else tuple(s) for s in given])
            except TransformError as e:
                stuck.append(f"{', '.join(entry.torch)} ({e})")
                continue
            entries.append(replace(entry, transform=undone))
        if stuck:
            raise MappingError(f"{len(stuck)} of {len(self)} entries cannot be inverted: {'; '.join(stuck)}")
        return replace(self, entries=tuple(entries), reverse=not self.reverse)

    # -- files ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, names: Dict[str, str | None]) -> Mapping:
        """A mapping of plain renames, PyTorch name to MindSpore name.

        A name with None instead is left out on purpose. Raises MappingError where the dict is no such table.
        """
        entries, dropped = [], []
        for torch, mindspore in names.items():
            if not isinstance(torch, str) or not (mindspore is None or isinstance(mindspore, str)):
                raise MappingError(f"a mapping is a dict of names to names, not of {torch!r} to {mindspore!r}")
            if mindspore:
                entries.append(Entry((torch,), (mindspore,)))
            else:
                dropped.append(Unmatched(torch, "left out on purpose"))
        return cls._of_table(entries, dropped)

    @classmethod
    def _of_table(cls, entries: list[Entry], dropped: list[Unmatched]) -> Mapping:
        if not entries:
            raise MappingError("the mapping has no entry: give it PyTorch names and their MindSpore names")
        torch = sum(len(e.torch) for e in entries) + len(dropped)
        mindspore = sum(len(e.mindspore) for e in entries)
        return cls(Side("", torch, ""), Side("", mindspore, ""), tuple(entries), tuple(dropped))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Mapping:
        """Read a mapping from a ``.json`` file, or plain renames from a ``.csv`` table ``Pytorch,mindspore``.

        Raises:
            MappingError: there is no such file, or it is not a mapping of a version known here.
        """
        where = os.fspath(path)
        try:
            text = Path(where).read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            raise MappingError(f"{where}: no such file; write it with automap infer", where) from None
        except OSError as e:
            raise MappingError(f"{where}: cannot be read ({e.strerror})", where) from None
        except UnicodeDecodeError:
            raise MappingError(f"{where}: not a text file; a mapping is JSON or CSV in UTF-8", where) from None
        if where.lower().endswith(".csv"):
            return cls.from_csv(text, where)
        return cls.from_json(text, where)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the mapping, as CSV where the name ends in ``.csv``, else as JSON; all of it or nothing.

        Raises:
            MappingError: the file cannot be written, or (``.csv``) the table cannot hold the mapping.
        """
        where = os.fspath(path)
        try:
            text = self.to_csv().encode() if where.lower().endswith(".csv") else _encode(self.to_json())
        except UnicodeEncodeError:
            raise MappingError(f"{where}: a name in it has no UTF-8 form: write .json", where) from None
        try:
            # Behind a link, the file that it leads to is replaced, and not the link.
            with replacing(os.path.realpath(where) if os.path.islink(where) else where) as part:
                part.write_bytes(text)
        except SourceError as e:
            raise MappingError(str(e), where) from None

    def to_json(self) -> str:
        """The mapping's file: one line for every entry and unmatched name, so that it is reviewed and diffed in git."""
        head: dict[str, Any] = {
            "format": FORMAT,
            "torch": _side_out(self.torch),
            "mindspore": _side_out(self.mindspore),
        }
        if self.reverse:
            head["reverse"] = True
        lines = [f'"{k}": {_dumps(v)}' for k, v in head.items()]
        lines.append(f'"entries": {_list([_entry_out(e) for e in self.entries], 1)}')
        unmatched = [f'"{k}": {_list([_unmatched_out(u) for u in v], 2)}' for k, v in self.unmatched.items()]
        lines.append('"unmatched": {\n  ' + ",\n  ".join(unmatched) + "\n }")
        lines.append(f'"pins": {_list(self.pins, 1)}')
        if self.proof is not None:
            lines.append(f'"proof": {_dumps(self.proof.to_json())}')
        return "{" + ",\n ".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, path: str = "") -> Mapping:
        """The mapping of a file's text; ``path`` is what an error calls it. Raises MappingError where it is none."""
        at = path or "the mapping"
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as e:
            place = f" (line {e.lineno}: {e.msg})" if isinstance(e, json.JSONDecodeError) else ""
            raise MappingError(
                f"{at}: not JSON or damaged{place}; restore it or run automap infer again", path
            ) from None
        version = data.get("format") if isinstance(data, dict) else None
        if version is None:
            raise MappingError(f'{at}: not a mapping: it lacks "format"; write one with automap infer', path)
        if version != FORMAT:
            raise MappingError(
                f"{at}: format {version!r} is unknown here, this automap reads {FORMAT!r}; "
                "upgrade automap, or run automap infer again",
                path,
            )
        try:
            return _Reader().mapping(data)
        except MappingError as e:
            raise MappingError(f"{at}: {e}", path) from None

    def to_csv(self) -> str:
        """The table ``Pytorch,mindspore`` of the entries.

        A third column ``transform`` is there when an entry needs one; then several names in one cell have ``;``
        between them. Unmatched names, confidence and evidence are not in it.

        Raises:
            MappingError: the direction is MindSpore to PyTorch, or the table cannot hold a name: one with a space at
                an end, a carriage return, or (beside a transform) a ``;``.
        """
        if self.reverse:
            raise MappingError("a table leads from PyTorch to MindSpore: write the mapping before it is inverted")
        more = any(e.transform for e in self.entries)
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        table.writerow([*TABLE, "transform"] if more else TABLE)
        for e in self.entries:
            for name in e.torch + e.mindspore:
                if not name or name != name.strip() or "\r" in name or (e.transform and ";" in name):
                    raise MappingError(f"entry {e}: the table cannot hold this name: write .json")
            row = [";".join(e.torch), ";".join(e.mindspore)]
            table.writerow([*row, to_text(e.transform)] if more else row)
        return out.getvalue()

    @classmethod
    def from_csv(cls, text: str, path: str = "") -> Mapping:
        """The mapping of a table with the columns ``Pytorch`` and ``mindspore``, and ``transform`` where it is there.

        Other columns are ignored. A PyTorch name with an empty cell beside it is left out on purpose. An error calls
        the table ``path``.

        Raises:
            MappingError: a column is missing, a name appears twice, or a transform is not one.
        """
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
            return cls._of_table(entries, dropped)
        except MappingError as e:
            raise MappingError(f"{at}: {e}", path) from None

    # -- for people ----------------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """The counts in one sentence."""
        way = "MindSpore -> PyTorch, " if self.reverse else ""
        ran = "" if self.proof is None else f", {sum(bool(e.evidence.get('proven')) for e in self.entries)} proven"
        return (
            f"{way}{len(self)} matched, {len(self.unmatched_torch)} unmatched in PyTorch, "
            f"{len(self.unmatched_mindspore)} unmatched in MindSpore, {self._to_review} to review{ran}"
        )

    def _shown(self) -> list[Entry]:
        """The entries of a short table: those to review first, then the first ones."""
        return [*self.reviewed, *(e for e in self.entries if not e.review)][:_SHOWN]

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("PyTorch", "MindSpore", "transform", "confidence", "review")
        for e in self._shown():
            cells = (", ".join(e.torch), ", ".join(e.mindspore), to_text(e.transform), f"{e.confidence:.4g}")
            review = (e.why or "yes") if e.review else ""
            table.add_row(*map(Text, (*cells, review)), style="yellow" if e.review else "")
        return Group(table, Text(self._rest() + self.summary))

    def _repr_html_(self) -> str:
        rows = []
        for e in self._shown():
            cells = (", ".join(e.torch), ", ".join(e.mindspore), to_text(e.transform), f"{e.confidence:.4g}")
            review = (e.why or "yes") if e.review else ""
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (*cells, review)) + "</tr>")
        head = "".join(f"<th>{h}</th>" for h in ("PyTorch", "MindSpore", "transform", "confidence", "review"))
        body = "".join(rows)
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(self._rest() + self.summary)}</p>"
        )

    def _rest(self) -> str:
        return f"… and {len(self) - _SHOWN} more; " if len(self) > _SHOWN else ""


def _plain(value: Any) -> Any:
    """A value as JSON has it, with numbers to four digits (and no minus zero, which prints differently)."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str):  # a NumPy scalar
        value = value.item()
    if isinstance(value, float):
        return round(value, 4) + 0.0
    return value


def _encode(text: str) -> bytes:
    # A lone surrogate has no UTF-8; the replacement, \udc80, happens to be its escape in JSON.
    return text.encode("utf-8", "backslashreplace")


def _dumps(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise MappingError(f"the mapping holds a value that JSON cannot: {e}") from None


def _list(items: Iterable[object], indent: int) -> str:
    lines = [_dumps(item) for item in items]
    if not lines:
        return "[]"
    pad = "\n" + " " * (indent + 1)
    return "[" + pad + ("," + pad).join(lines) + "\n" + " " * indent + "]"


def _side_out(side: Side) -> dict[str, Any]:
    return {"source": side.source, "parameters": side.parameters, "fingerprint": side.fingerprint}


def _entry_out(e: Entry) -> dict[str, Any]:
    out: dict[str, Any] = {"torch": list(e.torch), "mindspore": list(e.mindspore)}
    if e.transform:
        out["transform"] = to_json(e.transform)
    out |= {"confidence": e.confidence, "review": e.review}
    if e.review:
        out["why"] = e.why
    out["evidence"] = e.evidence
    if e.runner_up is not None:
        r = e.runner_up
        out["runner_up"] = {"torch": list(r.torch), "mindspore": list(r.mindspore), "margin": r.margin}
    if e.path is not None:
        out["mindspore_path"] = e.path
    return out


def _unmatched_out(u: Unmatched) -> dict[str, Any]:
    out: dict[str, Any] = {"name": u.name, "why": u.why}
    if u.review:
        out["review"] = True
    if u.alias_of is not None:
        out["alias_of"] = u.alias_of
    return out


class _Reader:
    """JSON values to a mapping; every error says where in the file the wrong value is and what belongs there."""

    def mapping(self, data: dict[str, Any]) -> Mapping:
        self.keys(data, "it", ("format", "torch", "mindspore", "entries", "unmatched"), ("pins", "reverse", "proof"))
        unmatched = self.get(data, "it", "unmatched", dict, "an object")
        self.keys(unmatched, '"unmatched"', ("torch", "mindspore"))
        return Mapping(
            torch=self.side(data, "torch"),
            mindspore=self.side(data, "mindspore"),
            entries=tuple(self.entry(e, f"entry {i}") for i, e in enumerate(self.items(data, "it", "entries"), 1)),
            unmatched_torch=self.unmatched(unmatched, "torch"),
            unmatched_mindspore=self.unmatched(unmatched, "mindspore"),
            pins=self.names(data, "it", "pins") if "pins" in data else (),
            reverse=self.get(data, "it", "reverse", bool, "true or false") if "reverse" in data else False,
            proof=self.proof(data["proof"]) if "proof" in data else None,
        )

    def proof(self, value: object) -> Proof:
        at = '"proof"'
        data = self.object(value, at)
        numbers = ("error", "floor", "allowed", "repaired")
        names = ("inputs", "not_exercised", "findings", "notes")
        self.keys(data, at, ("status",), ("reason", "seeds", *numbers, *names, "alike"))
        status = self.get(data, at, "status", str, "a string")
        if status not in STATUSES:
            raise MappingError(f'{at}: "status" must be one of {", ".join(STATUSES)}, not {status!r}')
        seeds = self.items(data, at, "seeds") if "seeds" in data else []
        alike = self.items(data, at, "alike") if "alike" in data else []
        if not all(isinstance(p, list) and len(p) == 2 and all(isinstance(n, str) for n in p) for p in alike):
            raise MappingError(f'{at}: "alike" must be a list of pairs of names, not {alike!r}')
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in seeds):
            raise MappingError(f'{at}: "seeds" must be a list of whole numbers, not {seeds!r}')
        figures: dict[str, Any] = {k: float(self.get(data, at, k, float, "a number")) for k in numbers if k in data}
        lists: dict[str, Any] = {k: self.names(data, at, k) for k in names if k in data}
        return Proof(
            status,
            self.get(data, at, "reason", str, "a string") if "reason" in data else "",
            seeds=tuple(seeds),
            alike=tuple((a, b) for a, b in alike),
            **lists,
            **figures,
        )

    def side(self, data: dict[str, Any], key: str) -> Side:
        value = self.get(data, "it", key, dict, "an object")
        self.keys(value, f'"{key}"', ("source", "parameters", "fingerprint"))
        return Side(
            self.get(value, f'"{key}"', "source", str, "a string"),
            self.get(value, f'"{key}"', "parameters", int, "a whole number"),
            self.get(value, f'"{key}"', "fingerprint", str, "a string"),
        )

    def entry(self, value: object, at: str) -> Entry:
        data = self.object(value, at)
        if isinstance(data.get("torch"), list):
            at += f" ({', '.join(map(str, data['torch']))})"
        optional = ("transform", "why", "evidence", "runner_up", "mindspore_path")
        self.keys(data, at, ("torch", "mindspore", "confidence", "review"), optional)
        confidence = self.get(data, at, "confidence", float, "a number from 0 to 1")
        if not 0 <= confidence <= 1:
            raise MappingError(f'{at}: "confidence" must be a number from 0 to 1, not {confidence}')
        try:
            transform = from_json(data.get("transform", []))
        except TransformError as e:
            raise MappingError(f"{at}: {e}") from None
        return Entry(
            torch=self.names(data, at, "torch"),
            mindspore=self.names(data, at, "mindspore"),
            transform=transform,
            confidence=confidence,
            review=self.get(data, at, "review", bool, "true or false"),
            why=self.get(data, at, "why", str, "a string") if "why" in data else "",
            evidence=self.get(data, at, "evidence", dict, "an object") if "evidence" in data else {},
            runner_up=self.runner_up(data["runner_up"], f'{at}, "runner_up"') if "runner_up" in data else None,
            path=self.get(data, at, "mindspore_path", str, "a string") if "mindspore_path" in data else None,
        )

    def runner_up(self, value: object, at: str) -> RunnerUp:
        data = self.object(value, at)
        self.keys(data, at, ("torch", "mindspore", "margin"))
        margin = self.get(data, at, "margin", float, "a number")
        return RunnerUp(self.names(data, at, "torch"), self.names(data, at, "mindspore"), margin)

    def unmatched(self, data: dict[str, Any], key: str) -> tuple[Unmatched, ...]:
        found = []
        for i, value in enumerate(self.items(data, '"unmatched"', key), 1):
            at = f"unmatched {key} name {i}"
            item = self.object(value, at)
            self.keys(item, at, ("name", "why"), ("review", "alias_of"))
            found.append(
                Unmatched(
                    self.get(item, at, "name", str, "a string"),
                    self.get(item, at, "why", str, "a string"),
                    self.get(item, at, "review", bool, "true or false") if "review" in item else False,
                    self.get(item, at, "alias_of", str, "a string") if "alias_of" in item else None,
                )
            )
        return tuple(found)

    @staticmethod
    def object(value: object, at: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MappingError(f"{at} must be an object, not {value!r}")
        return value

    @staticmethod
    def keys(data: dict[str, Any], at: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
        for key in required:
            if key not in data:
                raise MappingError(f'{at} lacks "{key}": add it, or run automap infer again')
        for key in data:
            if key not in (*required, *optional):
                raise MappingError(f'{at} has an unknown key "{key}": known are {", ".join((*required, *optional))}')

    @staticmethod
    def get(data: dict[str, Any], at: str, key: str, kind: type, called: str) -> Any:
        value = data[key]
        fits = isinstance(value, int | float if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise MappingError(f'{at}: "{key}" must be {called}, not {value!r}')
        return value

    @classmethod
    def items(cls, data: dict[str, Any], at: str, key: str) -> list[Any]:
        items: list[Any] = cls.get(data, at, key, list, "a list")
        return items

    @classmethod
    def names(cls, data: dict[str, Any], at: str, key: str) -> tuple[str, ...]:
        names = cls.items(data, at, key)
        if not all(isinstance(name, str) for name in names):
            raise MappingError(f'{at}: "{key}" must be a list of names, not {names!r}')
        return tuple(names)
