"""A mapping in words for people: a summary, one entry explained, two mappings compared, a page of HTML.

What repeats is said once: names and reasons that differ only in numbers are one line with a count, the numbers
replaced by ``*``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from typing import Any

from automap import __version__, proof_report
from automap.errors import MappingError
from automap.graph import Framework, Listing
from automap.grouping import SHOWN, Group, group_lines, grouped, grouped_names
from automap.mapping import FORMAT, Entry, Mapping, RunnerUp, Side, Unmatched
from automap.transforms import to_text

TITLES: dict[Framework, str] = {"torch": "PyTorch", "mindspore": "MindSpore"}

#: How many matches an explanation shows, how many names a question back.
_EXPLAINED, _SUGGESTED = 10, 3

#: What became of an array, by the name of the operation.
_DONE = {
    "reshape": "reshaped",
    "transpose": "transposed",
    "concat": "joined",
    "split": "split",
    "stack": "stacked",
    "unstack": "unstacked",
    "reorder": "in another order",
    "unflatten": "rearranged",
    "flatten": "rearranged",
    "take": "rearranged",
    "reverse": "rearranged",
    "pad": "filled up",
    "slice": "cut",
    "expand": "expanded",
    "collapse": "collapsed",
    "resize": "interpolated",
    "cast": "cast",
    "scale": "scaled",
    "add": "added up",
    "weight_norm": "merged with a norm",
    "split_norm": "split into norm and direction",
    "spectral_norm": "divided by a norm",
    "lora": "merged with LoRA",
    "fold_norm": "merged with a normalisation",
}

#: What each part of the evidence looks at.
_EVIDENCE = {
    "names": "how alike the words of both names are",
    "numbers": "how well the numbers in both paths agree",
    "order": "the place in definition order",
    "structure": "the layer's other parameters, the modules around it, the repeated blocks",
    "usage": "how regularly these two local names go together in this pair",
    "fit": "how well slots and shapes of both layers agree",
    "execution": "how far running both networks confirms it",
}

#: What a part says when it is nothing.
_NOTHING = {
    "names": "no word is alike, which speaks neither for nor against it",
    "usage": "the local name occurs once, or never with the same partner",
    "execution": "running both networks does not confirm it",
}

#: A part of the evidence in a word, from the number given on.
_DEGREES = ((0.9, "strong"), (0.6, "good"), (0.3, "some"), (0.05, "weak"))

# -- what repeats ------------------------------------------------------------------------------------------------------


def to_review(mapping: Mapping) -> list[Group]:
    """What a person has to look at, with the reasons: names without a home first, then entries in doubt."""
    return [*_homeless(mapping), *_doubtful(mapping)]


def _homeless(mapping: Mapping) -> list[Group]:
    return grouped(
        (f"{u.name} ({title}, unmatched)", u.why)
        for framework, title in TITLES.items()
        for u in mapping.unmatched[framework]
        if u.review
    )


def _doubtful(mapping: Mapping) -> list[Group]:
    return grouped((str(e), e.why or "no reason is given") for e in mapping.reviewed)


def left_over(mapping: Mapping, framework: Framework) -> list[Group]:
    """What has no counterpart and needs no review, with the reasons."""
    items = [(u.name, u.why) for u in mapping.unmatched[framework] if not u.review]
    return grouped_names(items, mapping.names(framework))


def lines_of_names(reasons: Dict[str, str], every: Iterable[str] = ()) -> list[str]:
    """Names with their reasons in a few lines; ``every`` as for :func:`grouped_names`."""
    return group_lines(grouped_names(reasons.items(), every))


def table(listing: Listing) -> str:
    """A listing as lines of columns."""
    rows = [("name", "shape", "dtype", "kind", "owner")]
    for p in listing:
        shape = "?" if p.shape is None else "×".join(map(str, p.shape)) or "()"
        rows.append((p.name, shape, p.dtype or "?", p.kind, p.owner or ""))
    # What is unknown, or ordinary, of all of them is no column.
    columns = [c for c in zip(*rows, strict=True) if set(c[1:]) - {"?", "", "parameter"}]
    widths = [max(map(len, c)) for c in columns]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True))
    return "\n".join(lines)


# -- the summary -------------------------------------------------------------------------------------------------------


def counts(mapping: Mapping) -> dict[str, int]:
    """How many entries keep their name, are renamed, and are reshaped, transposed and so on, in these words."""
    found = Counter("same name" if e.torch == e.mindspore else "renamed" for e in mapping.entries)
    for e in mapping.entries:
        found.update({_DONE.get(t.op, t.op) for t in e.transform})
    order = ("same name", "renamed", *_DONE.values())
    return {k: found[k] for k in sorted(found, key=lambda k: (order.index(k) if k in order else len(order), k))}


def summary(mapping: Mapping, shown: int | None = SHOWN) -> str:
    """What was matched, what needs review and why, what is unmatched and why.

    Args:
        mapping: the mapping.
        shown: how many lines of each kind there are at most, None for all.
    """
    sides = [(title, getattr(mapping, framework)) for framework, title in TITLES.items()]
    width = max(len(side.source) for _, side in sides)
    lines = [f"{title:<9}  {side.source:<{width}}  {side.parameters} parameters" for title, side in sides]
    found = ", ".join(f"{n} {what}" for what, n in counts(mapping).items())
    lines += ["", f"matched {len(mapping)}" + (f": {found}" if found else "")]
    lines += proof_report.lines(mapping, shown)
    homeless, doubtful = _homeless(mapping), _doubtful(mapping)
    n = sum(map(len, homeless + doubtful))
    lines += [f"to review {n}" + (":" if n else ""), *group_lines(homeless, shown), *group_lines(doubtful, shown)]
    for framework, title in TITLES.items():
        names, groups = mapping.unmatched[framework], left_over(mapping, framework)
        above = sum(u.review for u in names)
        told = f" ({above} of them above)" if above else ""
        lines += [f"unmatched in {title} {len(names)}{told}" + (":" if groups else ""), *group_lines(groups, shown)]
    if mapping.pins:
        lines.append(f"pinned: {', '.join(mapping.pins)}")
    return "\n".join(lines)


# -- one entry ---------------------------------------------------------------------------------------------------------


def explain(mapping: Mapping, name: str, path: str = "the mapping") -> str:
    """What the mapping says of a name of either side, and why.

    Args:
        mapping: the mapping.
        name: the name; where there is none of just that form, a ``*`` in it stands for any characters.
        path: what to call the mapping in an error.

    Raises:
        MappingError: there is no such name; the nearest ones are told.
    """
    found = list(mapping.find(name))
    if not found and "*" in name:
        like = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
        found += [e for e in mapping.entries if any(map(like.fullmatch, e.torch + e.mindspore))]
        found += [u for framework in TITLES for u in mapping.unmatched[framework] if like.fullmatch(u.name)]
    if not found:
        near = _nearest(name, [*mapping.names("torch"), *mapping.names("mindspore")])
        hint = f"did you mean {' or '.join(near)}?" if near else "the names are in the file"
        raise MappingError(f"{path} has no name {name!r} on either side; {hint}", path)
    parts = ["\n".join(_explained(mapping, item)) for item in found[:_EXPLAINED]]
    if len(found) > _EXPLAINED:
        parts.append(f"… and {len(found) - _EXPLAINED} more like {name}")
    return "\n\n".join(parts)


def _explained(mapping: Mapping, item: Entry | Unmatched) -> list[str]:
    if isinstance(item, Unmatched):
        side: Framework = "torch" if item in mapping.unmatched_torch else "mindspore"
        other = TITLES["mindspore" if side == "torch" else "torch"]
        said = f"no counterpart in {other}"
        why = "" if item.why in ("", said) else f": {item.why}"
        lines = [f"{item.name} ({TITLES[side]}) has {said}{why}"]
        if item.alias_of is not None:
            lines.append(f"  it is another name of {item.alias_of}, and goes where that goes")
        return lines + ["  marked for review: a person has to decide where it belongs"] * item.review
    lines = [f"{', '.join(item.torch)} -> {', '.join(item.mindspore)}"]
    if item.path is not None:
        lines.append(f"  in the MindSpore network it is the attribute {item.path}")
    if item.transform:
        lines.append(f"  on the way: {to_text(item.transform)}")
    lines.append(f"  confidence {item.confidence:.4g}")
    if item.review:
        lines.append(f"  marked for review: {item.why or 'no reason is given'}")
    pins = [pin for pin in mapping.pins if _is_pinned(item, pin)]
    lines += [f"  pinned by {pin}" for pin in pins]
    lines += [f"  {_spoken(key, value)}" for key, value in item.evidence.items() if key != "proven"]
    lines += [f"  {line}" for line in proof_report.of_entry(mapping, item)]
    if item.runner_up is not None:
        what, behind = _other_choice(item, item.runner_up)
        lines.append(f"  the best other choice is {what}, {behind}")
    elif not pins:
        lines.append("  there is no other choice")
    return lines


def _other_choice(entry: Entry, other: RunnerUp) -> tuple[str, str]:
    """What the runner-up of an entry would have been, and how far behind it was."""
    if other.torch == entry.torch:
        what = ", ".join(other.mindspore) or "no counterpart at all"
    elif other.mindspore == entry.mindspore:
        what = ", ".join(other.torch) or "no counterpart at all"
    else:
        what = f"{', '.join(other.torch)} -> {', '.join(other.mindspore)}"
    return what, f"{other.margin:.2g} behind" if other.margin else "level with it: nothing tells the two apart"


def _is_pinned(entry: Entry, pin: str) -> bool:
    patterns = [text.strip() for text in pin.partition("=")[0].split(",")]
    return any(fnmatchcase(name, pattern) for name in entry.torch for pattern in patterns)


def _spoken(key: str, value: Any) -> str:
    """A part of the evidence in words."""
    about = f" ({_EVIDENCE[key]})" if key in _EVIDENCE else ""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return f"{key}: {value}{about}"
    if not value and key in _NOTHING:
        return f"{key}: {_NOTHING[key]}"
    words = next((words for least, words in _DEGREES if value >= least), "none")
    return f"{key}: {words}, {value:.2f}{about}"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    """The names most like one that is not there."""
    from rapidfuzz import fuzz, process

    inside = [n for n in dict.fromkeys(names) if name in n]
    if inside:
        return sorted(inside, key=len)[:_SUGGESTED]
    found = process.extract(name, dict.fromkeys(names).keys(), scorer=fuzz.ratio, score_cutoff=60, limit=_SUGGESTED)
    return [n for n, *_ in found]


# -- two mappings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Differences:
    """What differs between two mappings.

    Attributes:
        changes: what converts otherwise, or asks something else of a person.
        notes: what is told beside it and changes nothing, such as other confidences.
    """

    changes: tuple[Group, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        n = sum(map(len, self.changes))
        head = f"{n} difference(s):" if n else "no difference"
        return "\n".join([head, *group_lines(self.changes, None), *(f"note: {s}" for s in self.notes)])


def differences(a: Mapping, b: Mapping, names: tuple[str, str] = ("the first", "the second")) -> Differences:
    """What differs between two mappings, in words that call them ``names``."""
    first, second = names
    items: list[tuple[str, str]] = []
    notes = []
    if a.given != b.given:
        items.append(("direction", f"from {TITLES[a.given]} in {first}, from {TITLES[b.given]} in {second}"))
    for framework, title in TITLES.items():
        one, two = getattr(a, framework), getattr(b, framework)
        if one.fingerprint and two.fingerprint and one.fingerprint != two.fingerprint:
            sizes = f"{one.parameters} parameters in {first}, {two.parameters} in {second}"
            items.append((f"the {title} model", f"its names, shapes or types are others: {sizes}"))
    # A table has no unmatched names, which says nothing about them.
    table = next((n for m, n in zip((a, b), names, strict=True) if not m.torch.fingerprint), "")
    if table and any(u for m in (a, b) for u in m.unmatched.values()):
        notes.append(f"{table} is a table of entries: unmatched names and review marks are not compared")
    for framework in TITLES:
        before, after = _fates(a, framework), _fates(b, framework)
        for name in dict.fromkeys([*before, *after]):
            was, now = before.get(name, _ABSENT), after.get(name, _ABSENT)
            if framework == "mindspore" and (was.matched or now.matched):
                continue  # told under its PyTorch name
            if table and not was.matched and not now.matched:
                continue
            if was.words != now.words:
                items.append((name, f"{was.words} in {first}, {now.words} in {second}"))
            elif was.review != now.review and not table:
                why = (was if was.review else now).why
                only = f"marked for review in {first if was.review else second} only"
                items.append((name, f"{only}: {why}" if why else only))
    if len(a) and len(b) and not table:
        notes += _other_confidences(a, b, names)
    return Differences(tuple(grouped(items)), tuple(notes))


@dataclass(frozen=True)
class _Fate:
    """What a mapping makes of one name."""

    words: str
    matched: bool = False
    review: bool = False
    why: str = ""


_ABSENT = _Fate("absent")


def _fates(mapping: Mapping, framework: Framework) -> dict[str, _Fate]:
    fates: dict[str, _Fate] = {}
    for e in mapping.entries:
        change = f" by {to_text(e.transform)}" if e.transform else ""
        home = ", ".join(e.mindspore if framework == "torch" else e.torch)
        fates |= dict.fromkeys(e.names(framework), _Fate(f"-> {home}{change}", True, e.review, e.why))
    return fates | {u.name: _Fate("unmatched", False, u.review, u.why) for u in mapping.unmatched[framework]}


def _other_confidences(a: Mapping, b: Mapping, names: tuple[str, str]) -> list[str]:
    was = {(e.torch, e.mindspore): e.confidence for e in a.entries}
    moved = [(abs(e.confidence - c), c, e) for e in b.entries if (c := was.get((e.torch, e.mindspore))) is not None]
    moved = [row for row in moved if row[0] > 0]
    if not moved:
        return []
    _, before, entry = max(moved, key=lambda row: row[0])
    most = f"{', '.join(entry.torch)}: {before:.4g} in {names[0]}, {entry.confidence:.4g} in {names[1]}"
    return [f"{len(moved)} entries have another confidence, most so {most}"]


# -- a page ------------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5d6778; --line: #d9dee6; --back: #fff; --soft: #f5f7fa;
  --mark: #fff4d6; --edge: #d99a00; --bar: #2f7d5b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --dim: #9aa5b5; --line: #39424f; --back: #14181e;
  --soft: #1c222b; --mark: #3a2f12; --edge: #e0a92e; --bar: #4fb389; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 84rem; color: var(--ink); background: var(--back);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0 0 1rem; font-size: 1.5rem; }
h2 { margin: 2.5rem 0 .6rem; font-size: 1.15rem; }
h2 small { color: var(--dim); font-weight: normal; }
code { font: .84em/1.45 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 0 1.2rem; }
dt { color: var(--dim); }
dd { margin: 0; }
ul.counts { display: flex; flex-wrap: wrap; gap: .6rem; margin: 0; padding: 0; list-style: none; }
ul.counts li { padding: .45rem .9rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--soft);
  color: var(--dim); }
ul.counts b { display: block; color: var(--ink); font-size: 1.35rem; line-height: 1.2; }
ul.counts li.mark { border-color: var(--edge); background: var(--mark); }
table { width: 100%; border-collapse: collapse; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--dim); font-weight: 600; font-size: .84em; background: var(--soft); }
.entries thead th { position: sticky; top: 0; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.groups th:first-child { width: 5rem; } .groups th:last-child { width: 45%; }
.entries td { font-size: .9em; } .entries td, .entries th { padding: .3rem .4rem; }
tr.mark td { background: var(--mark); }
tr.mark td:first-child { box-shadow: inset .25rem 0 var(--edge); }
.bar { display: inline-block; width: 3rem; height: .4rem; margin-right: .45rem; border-radius: .2rem;
  background: linear-gradient(90deg, var(--bar) var(--part), var(--line) var(--part)); }
summary { cursor: pointer; }
details ul { margin: .3rem 0 .5rem; padding-left: 1.3rem; }
footer { margin-top: 3rem; color: var(--dim); font-size: .85em; }
@media print { body { max-width: none; padding: 0; font-size: 9pt; } h2 { break-after: avoid; }
  tr, li { break-inside: avoid; } thead { display: table-header-group; } .entries thead th { position: static; }
  details::details-content { content-visibility: visible; block-size: auto; }
  .bar, tr.mark td, ul.counts li { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def to_html(mapping: Mapping) -> str:
    """A page that needs nothing beside it: counts, what to review, what is unmatched, every entry with its evidence."""
    torch, mindspore = mapping.torch, mapping.mindspore
    title = f"{torch.source or 'PyTorch'} → {mindspore.source or 'MindSpore'}"
    review = to_review(mapping)
    tiles = [(len(mapping), "matched"), *((n, what) for what, n in counts(mapping).items())]
    tiles += [(proof_report.proven(mapping), "proven")] * (mapping.proof is not None)
    tiles += [(len(mapping.unmatched[f]), f"unmatched in {name}") for f, name in TITLES.items()]
    marked = sum(map(len, review))
    body = [
        "<h1>Parameter mapping, PyTorch to MindSpore</h1>",
        "<dl>" + "".join(_side(name, getattr(mapping, f)) for f, name in TITLES.items()),
        f"<dt>pins</dt><dd>{_code(', '.join(mapping.pins))}</dd></dl>" if mapping.pins else "</dl>",
        f'<ul class="counts"><li{_MARK if marked else ""}><b>{marked}</b>to review</li>',
        "".join(f"<li><b>{n}</b>{escape(what)}</li>" for n, what in tiles),
        "</ul>",
    ]
    body += proof_report.html(mapping, _groups_table)
    if review:
        body += [f"<h2>To review <small>{marked}</small></h2>", _groups_table(review)]
    for framework, name in TITLES.items():
        if groups := left_over(mapping, framework):
            n = sum(map(len, groups))
            body += [f"<h2>Unmatched in {name} <small>{n} that need no review</small></h2>", _groups_table(groups)]
    body += [f"<h2>Entries <small>{len(mapping)}</small></h2>", _entries_table(mapping)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>automap: {escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<footer>automap {__version__}, mapping format {FORMAT}</footer>\n</body>\n</html>\n"
    )


_MARK = ' class="mark"'


def _side(title: str, side: Side) -> str:
    fingerprint = f", {_code(side.fingerprint[:19] + '…')}" if side.fingerprint else ""
    return f"<dt>{title}</dt><dd>{_code(side.source or 'a table')}: {side.parameters} parameters{fingerprint}</dd>"


def _groups_table(groups: Sequence[Group]) -> str:
    rows = []
    for g in groups:
        what = _code(g.what)
        if len(g) > 1:
            each = "".join(f"<li>{_code(member)}</li>" for member in g.members)
            what = f"<details><summary>{what}</summary><ul>{each}</ul></details>"
        rows.append(f'<tr><td class="n">{len(g)}</td><td>{what}</td><td>{escape(g.why)}</td></tr>')
    head = '<thead><tr><th class="n">count</th><th>what</th><th>why</th></tr></thead>'
    return f"<table class=groups>{head}<tbody>\n" + "\n".join(rows) + "\n</tbody></table>"


def _entries_table(mapping: Mapping) -> str:
    keys = dict.fromkeys(k for e in mapping.entries for k in e.evidence if k != "proven")
    columns: dict[str, list[str]] = {
        "PyTorch": [_code(", ".join(e.torch)) for e in mapping.entries],
        "MindSpore": [_code(", ".join(e.mindspore)) for e in mapping.entries],
        "on the way": [_code(to_text(e.transform)) for e in mapping.entries],
        "confidence": [
            f'<span class="bar" style="--part:{e.confidence:.0%}"></span>{e.confidence:.4g}' for e in mapping.entries
        ],
        **{k: [_figure(e.evidence.get(k)) for e in mapping.entries] for k in keys},
        "proven": [escape(str(e.evidence.get("proven") or "")) for e in mapping.entries],
        "best other choice": [_runner_up(e) for e in mapping.entries],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}
    kinds = ["<{} class=n>" if title in {"confidence", *keys} else "<{}>" for title in columns]
    head = "".join(f"{kind.format('th')}{escape(title)}</th>" for kind, title in zip(kinds, columns, strict=True))
    rows = []
    for entry, cells in zip(mapping.entries, zip(*columns.values(), strict=True), strict=True):
        row = "".join(f"{kind.format('td')}{cell}</td>" for kind, cell in zip(kinds, cells, strict=True))
        rows.append(f"<tr{_MARK if entry.review else ''}>{row}</tr>")
    return f'<table class="entries"><thead><tr>{head}</tr></thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table>"


def _runner_up(entry: Entry) -> str:
    if entry.runner_up is None:
        return ""
    what, behind = _other_choice(entry, entry.runner_up)
    return f"{_code(what)}, {escape(behind)}"


def _figure(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "" if value is None else f"{value:.2f}" if number else escape(str(value))


def _code(text: str) -> str:
    """A name; it may be broken after a dot or an underscore."""
    breakable = escape(text).replace(".", ".<wbr>").replace("_", "_<wbr>")
    return f"<code>{breakable}</code>" if text else ""
