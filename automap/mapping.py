"""The mapping: which PyTorch parameters become which MindSpore parameters, as a value and as a versioned file."""

from __future__ import annotations

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
from automap.evidence import Proof
from automap.files import replacing
from automap.graph import Framework, Listing
from automap.transforms import Transform, count_after, inverse, to_text

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


class Evidence(dict[str, Any]):
    """The evidence of an entry in its one form: known parts first, ``proven`` last, numbers to four digits."""

    @classmethod
    def of(cls, parts: Dict[str, Any]) -> Evidence:
        """The evidence in this form; the same object where it is in it."""
        if isinstance(parts, cls):
            return parts
        last = len(_EVIDENCE) + 1
        rank = {k: i for i, k in enumerate(_EVIDENCE)} | {"proven": last}
        keys = sorted(parts, key=lambda k: (rank.get(k, last - 1), k))
        return cls({k: _plain(parts[k]) for k in keys})


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
        tied: further PyTorch names of its tensor, where the port has a parameter of its own for each.
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
    tied: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "torch", tuple(self.torch))
        object.__setattr__(self, "mindspore", tuple(self.mindspore))
        object.__setattr__(self, "tied", tuple(self.tied))
        object.__setattr__(self, "transform", tuple(self.transform))
        object.__setattr__(self, "confidence", _plain(float(self.confidence)))
        object.__setattr__(self, "why", self.why if self.review else "")
        object.__setattr__(self, "evidence", Evidence.of(self.evidence))

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

    def name_map(self, keys: Framework = "torch") -> dict[str, str]:
        """The mapping as the ``name_map`` of MindSpore's own loaders, which know renames and nothing else.

        Args:
            keys: whose names are the keys. ``"torch"`` is for ``ckpt_to_safetensors`` and ``safetensors_to_ckpt``, on
                files with PyTorch's names; ``"mindspore"`` for ``load_distributed_checkpoint``.

        Raises:
            MappingError: an entry is more than a rename; every such entry is named.
        """
        more = [str(e) for e in self.entries if e.transform or len(e.torch) != 1 or len(e.mindspore) != 1]
        if more:
            raise MappingError(
                f"{len(more)} of {len(self)} entries are no plain renames: {'; '.join(more)}: convert the checkpoint "
                "with automap convert, whose output needs no name_map"
            )
        pairs = ((e.torch[0], e.mindspore[0]) for e in self.entries)
        return {t: m for t, m in pairs} if keys == "torch" else {m: t for t, m in pairs}

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
        return cls.of_entries(entries, dropped)

    @classmethod
    def of_entries(cls, entries: list[Entry], dropped: list[Unmatched]) -> Mapping:
        """A mapping of these entries alone, for models of which nothing else is known.

        Raises:
            MappingError: there is no entry, or a name appears twice.
        """
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
        from automap import mapping_file

        return mapping_file.to_text(self)

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
            from automap.mapping_file import Reader

            return Reader().mapping(data)
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
        from automap import mapping_table

        return mapping_table.to_text(self)

    @classmethod
    def from_csv(cls, text: str, path: str = "") -> Mapping:
        """The mapping of a table with the columns ``Pytorch`` and ``mindspore``, and ``transform`` where it is there.

        Other columns are ignored. A PyTorch name with an empty cell beside it is left out on purpose. An error calls
        the table ``path``.

        Raises:
            MappingError: a column is missing, a name appears twice, or a transform is not one.
        """
        from automap import mapping_table

        return mapping_table.read(text, path)

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
