"""The state of an optimizer in the checkpoint that ``convert`` writes, beside the network's parameters."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from automap import specs, transforms
from automap.dtypes import dtype_name
from automap.errors import ConversionError, TransformError
from automap.graph import Shape
from automap.mapping import Mapping as ParameterMapping
from automap.optimizer_kinds import Kind, kind_called
from automap.optimizer_links import positions_of
from automap.optimizer_state import Listed, MindSporeOptimizer, OptimizerReport, TorchState, read_with_network
from automap.optimizers import to_mindspore
from automap.planning import Output, Plan, Task
from automap.stored import Deferred, Held, Stored


def with_optimizer(
    plan: Plan,
    mapping: ParameterMapping,
    checkpoint: str,
    optimizer: str,
    args: Mapping[str, Any],
    names: Sequence[str] | None = None,
    step: int | None = None,
) -> tuple[Plan, OptimizerReport]:
    """A plan that also makes the parameters of a MindSpore optimizer, of the state in the checkpoint.

    Args:
        plan: of the network's parameters.
        mapping: what it was made with.
        checkpoint: the PyTorch checkpoint, which has the state of the optimizer beside the network's.
        optimizer: a factory of the MindSpore optimizer (``./train.py:make``), or its class alone (``Momentum``), which
            gives its states the names that they have for the bare network.
        args: keyword arguments for a factory.
        names, step: as for ``apply_optimizer``.

    Raises:
        ConversionError: as for ``apply_optimizer``, or the plan leads to PyTorch.
        SourceError: the checkpoint or the factory cannot be used.
    """
    if plan.framework != "mindspore":
        raise ConversionError(
            "an optimizer goes back to PyTorch in Python: automap.apply_optimizer(mapping, ms, torch)"
        )
    state, listing = read_with_network(checkpoint, None)
    if specs.is_spec(optimizer):
        edge = importlib.import_module("automap.mindspore_optimizers")
        target = edge.described(edge.from_spec(optimizer, args))
    elif args:
        raise ConversionError(f"{optimizer} is the name of a class and takes no arguments ({', '.join(args)})")
    else:
        target = _planned(kind_called(optimizer), mapping, state, listing, names)
    values, report = to_mindspore(mapping, state, target, listing, names, step)
    shapes = {held: target.shapes[name] for name, states in target.states.items() for held in states.values()}
    tasks = []
    for name, make in values.items():
        given: Stored
        if name in shapes:
            given = Deferred(shapes[name], target.dtypes[name], make)
        else:
            given = Held(make())
        made = Output(name, name, given.shape, given.dtype, given.dtype)
        tasks.append(Task((f"{name} (of the optimizer)",), (given,), (), (made,)))
    taken = {key for task in plan.tasks for o in task.made for key in (o.key, *o.copies)}
    twice = [task.made[0].key for task in tasks if task.made[0].key in taken]
    if twice:
        raise ConversionError(f"{', '.join(twice)} would be in the checkpoint twice: of the network, and the optimizer")
    read = {**plan.read, **{task.names[0]: task.given[0] for task in tasks}}
    return replace(plan, tasks=(*plan.tasks, *tasks), read=read), report


def _planned(
    kind: Kind, mapping: ParameterMapping, state: TorchState, listing: Listed | None, names: Sequence[str] | None
) -> MindSporeOptimizer:
    """An optimizer that is not there yet: of all that PyTorch's trains, with the names that MindSpore gives."""
    where, _ = positions_of(mapping, state, listing, names, None)
    group_of = {i: g for g, members in enumerate(state.members) for i in members}
    known: dict[str, Shape | None] = {name: shape for name, shape, _ in listing or []}
    shapes: dict[str, Shape] = {}
    groups: dict[str, int] = {}
    for entry in mapping.entries:
        if not all(name in where for name in entry.torch):
            continue
        given = [known.get(n) or next(iter(state.shapes[where[n]].values()), None) for n in entry.torch]
        if any(shape is None for shape in given):
            continue
        try:
            made = transforms.shape_after(entry.transform, [s for s in given if s is not None])
        except TransformError as e:
            raise ConversionError(f"{', '.join(entry.torch)} does not fit: {e}", [str(entry)]) from None
        shapes |= dict(zip(entry.mindspore, made, strict=True))
        groups |= dict.fromkeys(entry.mindspore, group_of[where[entry.torch[0]]])
    words = {slot: prefix for slot, (prefix, _) in kind.slots.items() if _is_kept(slot, kind, state)}
    words |= {own: prefix for own, (prefix, _) in kind.own.items()}
    states = {name: {slot: f"{prefix}.{name}" for slot, prefix in words.items()} for name in shapes}
    same = len({float(g["lr"]) for g in state.groups if "lr" in g}) <= 1
    rate = {name: "learning_rate" if same else f"learning_rate_group_{g}" for name, g in groups.items()}
    scalars = [kind.counter.name] * (kind.counter is not None) if kind.counter is not None else []
    scalars += ["momentum"] * kind.momentum + ["beta1_power", "beta2_power"] * kind.powers
    return MindSporeOptimizer(
        kind,
        tuple(shapes),
        shapes,
        states,
        {name: rate[name] if kind.rate else None for name in shapes},
        {},
        frozenset(scalars),
        {held: _dtype(slot, state) for of in states.values() for slot, held in of.items()},
    )


def _is_kept(slot: str, kind: Kind, state: TorchState) -> bool:
    """Whether an optimizer that does the same as PyTorch's would have a state."""
    return slot not in kind.optional or any(slot in held for held in state.slots.values())


def _dtype(slot: str, state: TorchState) -> str:
    held = next((h[slot] for h in state.slots.values() if slot in h), None)
    return "float32" if held is None else dtype_name(held())
