"""What running both networks proved, in words: for the summary, for one entry, for the page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from automap.grouping import Group, group_lines, grouped, grouped_names

if TYPE_CHECKING:
    from automap.evidence import Proof
    from automap.mapping import Entry, Mapping

_IDLE = "without an effect on the outputs of these runs"
_ALIKE = "exchanging the two has no effect on the outputs"


def proven(mapping: Mapping) -> int:
    """How many entries are proven."""
    return sum(bool(e.evidence.get("proven")) for e in mapping.entries)


def lines(mapping: Mapping, shown: int | None) -> list[str]:
    """What a summary says of the proof: the verdict with its figures, and what it could not tell."""
    proof = mapping.proof
    if proof is None:
        return []
    out = [verdict(mapping, proof), *(f"        {line}" for line in (*proof.findings, *proof.notes))]
    if proof.not_exercised:
        out += [f"not exercised {len(proof.not_exercised)}, {_IDLE}:", *group_lines(idle(mapping), shown)]
    if proof.alike:
        out += [f"alike {len(proof.alike)}, {_ALIKE}:", *group_lines(alike(mapping), shown)]
    return out


def verdict(mapping: Mapping, proof: Proof) -> str:
    """The verdict in one line."""
    if proof.status == "proven":
        words = str(proof).removeprefix("proven by running both networks: ")
        return f"proven {proven(mapping)} of {len(mapping)}: {words}"
    n = proven(mapping)
    return f"{proof}; proven {n} of {len(mapping)} with that repaired" if n else str(proof)


def idle(mapping: Mapping) -> list[Group]:
    """The parameters that the runs did not exercise, grouped."""
    names = () if mapping.proof is None else mapping.proof.not_exercised
    return grouped_names(((name, "") for name in names), mapping.names("torch"))


def alike(mapping: Mapping) -> list[Group]:
    """The pairs that can be exchanged, grouped."""
    pairs = () if mapping.proof is None else mapping.proof.alike
    return grouped((f"{a} and {b}", "") for a, b in pairs)


def of_entry(mapping: Mapping, entry: Entry) -> list[str]:
    """What running both networks said about one entry."""
    proof = mapping.proof
    if entry.evidence.get("proven") == "gradient":
        return ["proven: the gradients of both networks agree"]
    if proof is None:
        ran = entry.evidence.get("proven")
        return ["proven by running both networks"] if ran else ["not proven: the networks were not run"]
    if entry.evidence.get("proven"):
        once = "" if proof.status == "proven" else " once what differs is repaired"
        words = f"proven: the outputs of both networks agree{once}, and move if this parameter does"
        return [words, *_twins(proof, entry.torch)]
    if still := [name for name in entry.torch if name in proof.not_exercised]:
        what = "it" if len(still) == len(entry.torch) else f"a part of it, {', '.join(still)},"
        return [f"not proven: {what} is not exercised, {_IDLE}"]
    if twins := _twins(proof, entry.torch):
        return [f"not proven: {twins[0]}", *twins[1:]]
    return [str(proof)] if proof.status != "proven" else ["not proven: what came of the runs says nothing about it"]


def _twins(proof: Proof, names: Iterable[str]) -> list[str]:
    others = {a: b for pair in proof.alike for a, b in (pair, pair[::-1])}
    return [f"it is alike with {others[n]}: {_ALIKE}" for n in names if n in others]


def html(mapping: Mapping, table: object) -> list[str]:
    """A section of the page; ``table`` draws groups."""
    proof = mapping.proof
    if proof is None:
        return []
    assert callable(table)
    figures = {
        "inputs": ", ".join(proof.inputs),
        "seeds": ", ".join(map(str, proof.seeds)),
        "greatest difference": _below(proof.error),
        "by rounding alone": _below(proof.floor),
        "allowed": "" if proof.allowed is None else f"{proof.allowed:.0e} of the outputs' scale",
        "once repaired": _below(proof.repaired),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in figures.items() if value)
    mark = "" if proof.status == "proven" else ' class="mark"'
    body = ["<h2>Proof by execution</h2>", f"<p{mark}>{escape(verdict(mapping, proof))}</p>", f"<dl>{rows}</dl>"]
    if proof.findings:
        body += ["<ul>", *(f"<li>{escape(finding)}</li>" for finding in proof.findings), "</ul>"]
    if proof.notes:
        body += ["<p>Note:</p><ul>", *(f"<li>{escape(note)}</li>" for note in proof.notes), "</ul>"]
    if proof.not_exercised:
        body += [f"<h2>Not exercised <small>{len(proof.not_exercised)}, {_IDLE}</small></h2>", table(idle(mapping))]
    if proof.alike:
        body += [f"<h2>Alike <small>{len(proof.alike)}, {_ALIKE}</small></h2>", table(alike(mapping))]
    return body


def _below(number: float | None) -> str:
    return "" if number is None else f"less than {number:.0e} of the outputs' scale"
