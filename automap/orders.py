"""Cells that run in another order than in PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from automap.diagnosis import Diagnosis, Patient, likeness, words_of
from automap.experiments import Explanation, name_of
from automap.sightings import Fault, Run, Seen

#: Cells that may be exchanged are among so many before a fault; so many exchanges are tried.
_NEAR, _TRIES = 8, 12


def swaps(patient: Patient, run: Run) -> list[Diagnosis]:
    """Cells that get what another module gets in PyTorch, exchanged with that module's cell for what follows."""
    found: list[Diagnosis] = []
    moved: set[str] = set()
    holder = {paths[0]: cell for cell, paths in patient.pairs.items() if len(paths) == 1}
    for fault in run.faults:
        if fault.at is None or fault.call is None or fault.inside or fault.place != "input" or fault.at[1]:
            continue
        cell = fault.at[0]
        other = patient.elsewhere(fault)
        if other is None or cell in moved or len(patient.pairs.get(cell, ())) != 1:
            continue
        partner = holder.get(other.path)
        if partner is None or partner == cell or partner in moved:
            continue
        seen = run.at(fault.at)
        if seen is None or not seen.outputs or seen.outputs[0].size != other.outputs[0].size:
            continue
        moved |= {cell, partner}
        found.append(_swap(patient, fault, cell, partner, seen.name))
    return found


def _swap(patient: Patient, fault: Fault, cell: str, partner: str, kind: str) -> Diagnosis:
    """Exchange two cells, their values and their counterparts, and say so."""
    mine, other = patient.pairs[cell][0], patient.pairs[partner][0]
    values = patient.exchange(cell, partner)
    patient.put(values)
    if not values:
        patient.moved |= {cell, partner}
    patient.pairs[cell], patient.pairs[partner] = [other], [mine]
    by_names = _by_names(cell, mine, partner, other) > 0
    words = "the mapping has them exchanged" if by_names else "they run in another order here"
    return Diagnosis(
        fault.seen, "mapping" if by_names else "between", "order", (other, mine), (cell, partner),
        kind, kind, note=words, values=values, same=("order", kind, bool(values), by_names),
        local=(fault.distance, 0.0), found=Explanation("order", words),
    )  # fmt: skip


def _by_names(cell: str, mine: str, partner: str, other: str) -> float:
    """How much more the names of two cells speak for the exchange than for what the mapping says."""
    now = likeness(cell, mine) + likeness(partner, other)
    return likeness(cell, other) + likeness(partner, mine) - now


def exchanges(patient: Patient, faults: Sequence[Fault], again: Callable[[], list[Fault]]) -> list[Diagnosis]:
    """Cells that get the same and look the same may be exchanged without a trace in themselves: what follows tells.

    Args:
        patient: both networks; exchanges that help stay.
        faults: what is not explained otherwise.
        again: every fault of another run.
    """
    found: list[Diagnosis] = []
    tries = 0
    for fault in faults:
        cells = [s for s in patient.run.seen[: fault.seen] if s.owns and s.call is not None and s.inputs][-_NEAR:]
        pairs = [
            (a, b)
            for a, b in itertools.combinations(cells, 2)
            if a.inputs[0] == b.inputs[0]
            and a.name == b.name
            and [k.size for k in a.outputs] == [k.size for k in b.outputs]
        ]
        pairs.sort(key=lambda p: -_by_names(p[0].key[0], _of(patient, p[0]), p[1].key[0], _of(patient, p[1])))
        for a, b in pairs:
            cell, partner = a.key[0], b.key[0]
            if cell == partner or tries >= _TRIES or not patient.exchange(cell, partner):
                continue
            tries += 1
            diagnosis = _swap(patient, fault, cell, partner, a.name)
            left = {(f.at, f.place): f.distance for f in again()}
            if left.get((fault.at, fault.place), 0.0) <= patient.enough(fault):
                found.append(diagnosis)
                break
            _swap(patient, fault, cell, partner, a.name)  # back again
    return found


def _of(patient: Patient, seen: Seen) -> str:
    return patient.pairs[seen.key[0]][0]


def join(diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """Something missing here and too much a little later (or the other way round) is another order."""
    diagnoses.sort(key=lambda d: d.rank)
    between = [d for d in diagnoses if d.kind == "between"]
    gone: set[int] = set()
    known: set[tuple[Any, ...]] = set()  # what turned out to be an order, and where
    for i, a in enumerate(between):
        if id(a) in gone or a.found is None:
            continue
        inverse = next((b for b in between[i + 1 : i + 4] if id(b) not in gone and _inverse(a, b)), None)
        if inverse is not None and a.cause != "order":
            known.add((a.found.words, words_of(_cell(a))))
        elif a.cause != "order" and (a.found.words, words_of(_cell(a))) not in known:
            continue
        a.note, a.cause = (a.note, a.cause) if a.cause == "order" else (_order_words(a), "order")
        for b in between[i + 1 : i + 5]:
            if b.found is not None and b.found.words == a.found.words and a.found.cause != "order":
                break  # the same in the next block
            if id(b) in gone or not (_inverse(a, b) or (b.fault is not None and _follows(a, b))):
                continue
            _merge(a, b)
            gone.add(id(b))
        if a.fault is not None and a.fault.at is not None and not a.fault.at[1]:
            a.same = ("order", a.note, words_of(a.fault.at[0]))
    # The same cells in another order may show at several of them.
    orders = [d for d in between if d.cause == "order" and id(d) not in gone and d.fault is not None]
    for i, a in enumerate(orders):
        for b in orders[i + 1 : i + 6]:
            if id(a) not in gone and id(b) not in gone and set(a.mindspore) & set(b.mindspore):
                _merge(a, b)
                gone.add(id(b))
                a.same = ("order", a.note, words_of(a.fault.at[0]) if a.fault and a.fault.at else ())
    return [d for d in diagnoses if id(d) not in gone]


def _merge(a: Diagnosis, b: Diagnosis) -> None:
    a.torch = tuple(dict.fromkeys((*a.torch, *b.torch)))
    a.mindspore = tuple(dict.fromkeys((*a.mindspore, *b.mindspore)))
    a.edits = {**a.edits, **b.edits}


def _inverse(a: Diagnosis, b: Diagnosis) -> bool:
    if a.found is None or b.found is None:
        return False
    x, y = a.found, b.found
    one, other = x.torch or x.mindspore, y.torch or y.mindspore
    if one is not None and other is not None and one.kind == other.kind:
        return (x.torch is None) != (y.torch is None) and (x.mindspore is None) != (y.mindspore is None)
    return x.cause == y.cause == "residual" and x.words != y.words


def _order_words(a: Diagnosis) -> str:
    layer = None if a.found is None else a.found.torch or a.found.mindspore
    what = name_of(layer) if layer is not None else "a sum"
    return f"{what} comes {'later' if a.found and a.found.torch else 'earlier'} here"


def _follows(a: Diagnosis, b: Diagnosis) -> bool:
    """Whether a fault may be what an earlier one, of another order, brings about."""
    assert b.fault is not None
    near = b.fault.last is not None and b.fault.last[0] in a.mindspore
    return near and (b.found is None or b.cause in ("order", "residual"))


def _cell(d: Diagnosis) -> str:
    """The cell where a fault was noticed."""
    return d.fault.at[0] if d.fault is not None and d.fault.at is not None else ""
