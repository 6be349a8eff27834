"""The state of an optimizer, carried from MindSpore back to PyTorch."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from automap import sources, transforms
from automap.dtypes import Array, widen
from automap.errors import ConversionError, TransformError
from automap.mapping import Mapping as ParameterMapping
from automap.optimizer_kinds import Kind, kind_called
from automap.optimizer_links import moment_chain, positions_of, theirs_of
from automap.optimizer_state import OptimizerReport, read_state
from automap.optimizers import _edge
from automap.specs import framework_of


def to_torch(
    mapping: ParameterMapping,
    given: Any,
    optimizer: Any,
    names: Sequence[str] | None,
    network: Any,
    kind: str | None,
) -> OptimizerReport:
    """Carry the state of a MindSpore optimizer over to a PyTorch one. See ``apply_optimizer``."""
    mapping = mapping.invert() if mapping.reverse else mapping
    edge = _edge("torch")
    found, parts, values = _given(mapping, given, kind)
    state = read_state(optimizer.state_dict())
    order = [i for group in state.members for i in group]
    shapes = dict(zip(order, edge.shapes_of(optimizer), strict=True))
    state = replace(state, shapes={i: {"": shape} for i, shape in shapes.items()})
    listing = None
    if network is not None:
        listing = [(p.name, p.shape, p.dtype) for p in sources.open_source(network, "torch").listing()]
    trained = {n for e in mapping.entries if all(m in parts for m in e.mindspore) for n in e.torch}
    where, told = positions_of(mapping, state, listing, names, trained)
    slots: dict[int, dict[str, Array]] = {}
    carried: Counter[str] = Counter()
    rates: dict[int, float] = {}
    group_of = {i: g for g, members in enumerate(state.members) for i in members}
    differs: list[str] = []
    for entry in mapping.entries:
        if not all(n in where for n in entry.torch) or not all(n in parts for n in entry.mindspore):
            continue
        held = [parts[n] for n in entry.mindspore]
        at = [where[n] for n in entry.torch]
        rate = next((float(values[h["lr"]]) for h in held if h.get("lr") in values), None)
        if rate is not None:
            g = group_of[at[0]]
            if not math.isclose(rates.setdefault(g, rate), rate, rel_tol=1e-6):
                differs.append(f"lr: {rates[g]:g} and {rate:g} in MindSpore in one of PyTorch's groups")
        started = not all("stat" in h and bool(np.all(values[h["stat"]])) for h in held)
        for slot in found.slots if started else ():
            arrays = [values[h[slot]] for h in held if h.get(slot) in values]
            if len(arrays) < len(held):
                continue
            if slot == "momentum_buffer" and found.scaled and rate:
                arrays = [widen(a) / np.float32(rate) for a in arrays]
            chain = moment_chain(entry)
            try:
                undone = transforms.inverse(chain, [shapes[i] for i in at])
                made = transforms.apply(undone, arrays)
            except TransformError as e:
                raise ConversionError(
                    f"{slot} of {', '.join(entry.mindspore)} cannot go back: {e}", [str(entry)]
                ) from None
            for i, array in zip(at, made, strict=True):
                slots.setdefault(i, {})[slot] = array.reshape(shapes[i])
                carried[slot] += 1
    step = _step(found, values)
    edge.load(optimizer, _only_those_it_has(optimizer, slots), step, rates)
    return OptimizerReport(
        type(optimizer).__name__,
        found.name,
        dict(carried),
        told,
        step,
        tuple(sorted(set(rates.values()), reverse=True)),
        {},
        tuple(dict.fromkeys(differs)),
    )


def _given(
    mapping: ParameterMapping, given: Any, kind: str | None
) -> tuple[Kind, dict[str, dict[str, str]], dict[str, Array]]:
    """The optimizer's kind; for each MindSpore name of the mapping, where its states are; the values by name."""
    mapped = [name for entry in mapping.entries for name in entry.mindspore]
    if framework_of(given) == "mindspore" and not isinstance(given, Mapping):
        edge = _edge("mindspore")
        target = edge.described(given)
        called = theirs_of(mapped, target.names)
        parts = {
            m: {**target.states[n], **({"lr": rate} if (rate := target.rates[n]) is not None else {})}
            for m, n in called.items()
        }
        return target.kind, parts, edge.values_of(given)
    source = sources.open_source(os.fspath(given) if isinstance(given, os.PathLike) else given, "mindspore")
    if kind is None:
        raise ConversionError(
            "a checkpoint does not tell which optimizer its states are of: name it (kind=, --optimizer)"
        )
    found = kind_called(kind)
    values = source.read()
    words = {slot: prefix for slot, (prefix, _) in [*found.slots.items(), *found.own.items()]}
    states: dict[str, dict[str, str]] = {}
    for name in values:
        for slot, word in words.items():
            _, found_word, rest = f".{name}".partition(f".{word}.")
            if found_word:
                states.setdefault(rest, {})[slot] = name
    called = theirs_of(mapped, list(states))
    lr = [name for name in values if name.rpartition(".")[2] == "learning_rate" and values[name].ndim == 0]
    more = {"lr": lr[0]} if len(lr) == 1 else {}
    return found, {m: {**states[n], **more} for m, n in called.items()}, values


def _step(kind: Kind, values: Mapping[str, Array]) -> int | None:
    if kind.counter is None:
        return None
    found = [a for name, a in values.items() if name.rpartition(".")[2] == kind.counter.name]
    return int(np.asarray(found[0]).reshape(-1)[0]) - kind.counter.start if found else None


def _only_those_it_has(optimizer: Any, slots: Mapping[int, Mapping[str, Array]]) -> dict[int, dict[str, Array]]:
    """The states that PyTorch's optimizer keeps with the settings of its groups."""
    group_of = {}
    i = 0
    for group in optimizer.param_groups:
        for _ in group["params"]:
            group_of[i] = group
            i += 1

    def kept(slot: str, group: Mapping[str, Any]) -> bool:
        if slot == "max_exp_avg_sq":
            return bool(group.get("amsgrad"))
        if slot == "grad_avg":
            return bool(group.get("centered"))
        return slot != "momentum_buffer" or bool(group.get("momentum"))

    return {i: {s: a for s, a in held.items() if kept(s, group_of[i])} for i, held in slots.items()}
