"""The state of an optimizer in the checkpoint that ``convert`` writes, beside the network's parameters."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from automap import places, specs, transforms
from automap.errors import ConversionError, TransformError
from automap.graph import Shape
from automap.layout import Frame, Named
from automap.mapping import Mapping as ParameterMapping
from automap.optimizer_kinds import Kind, kind_called
from automap.optimizer_links import positions_of
from automap.optimizer_state import Listed, MindSporeOptimizer, OptimizerReport, TorchState, read_with_network
from automap.optimizers import to_mindspore
from automap.optimizers_back import Back, Given, given_of, key_of, state_of
from automap.planning import Output, Plan, Task
from automap.prefixes import prefix_change, renamed
from automap.sources import open_source
from automap.stored import Held
from automap.streaming import is_folder


@dataclass(frozen=True)
class Wanted:
    """An optimizer whose state is to be taken over.

    Attributes:
        optimizer: the one that goes on: a factory (``./train.py:make``), or its class alone: MindSpore's by its name
            (``Momentum``), which gives its states the names that they have for the bare network; PyTorch's by its
            name (``SGD``) or where it is (``torch.optim:SGD``), with every parameter in one group.
        args: keyword arguments for it.
        names, step: as for ``apply_optimizer``.
        given: on the way to PyTorch, MindSpore's: a factory, for its groups and settings, or the name of its class;
            None where the names of the states tell.
        given_args: keyword arguments for that factory.
    """

    optimizer: str
    args: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] | None = None
    step: int | None = None
    given: str | None = None
    given_args: Mapping[str, Any] = field(default_factory=dict)


def with_optimizer(
    plan: Plan, mapping: ParameterMapping, checkpoint: str, output: str, wanted: Wanted, network: Any = None
) -> tuple[Plan, OptimizerReport]:
    """A plan that also makes the state of an optimizer, of the one in the checkpoint.

    Args:
        plan: of the network's parameters.
        mapping: what it was made with.
        checkpoint: what has the state of the optimizer beside the network's.
        output: what is to be written.
        wanted: the optimizer.
        network: what the plan has to fit, if anything: on the way to PyTorch it tells the order of the parameters.

    Raises:
        ConversionError: as for ``apply_optimizer``, or the output cannot hold the state.
        SourceError: the checkpoint or a factory cannot be used.
    """
    if plan.framework == "mindspore":
        if wanted.given is not None:
            raise ConversionError("the optimizer that the state is of is named on the way to PyTorch only")
        return _to_mindspore(plan, mapping, checkpoint, wanted)
    return _to_torch(plan, mapping, checkpoint, output, wanted, network)


def _to_mindspore(
    plan: Plan, mapping: ParameterMapping, checkpoint: str, wanted: Wanted
) -> tuple[Plan, OptimizerReport]:
    state, listing = read_with_network(checkpoint, None)
    target = _described(wanted.optimizer, wanted.args)
    if isinstance(target, Kind):
        target = _planned(target, mapping, state, listing, wanted.names)
    tasks, report = to_mindspore(mapping, state, target, listing, wanted.names, wanted.step)
    return _joined(plan, tasks), report


def _described(optimizer: str, args: Mapping[str, Any]) -> MindSporeOptimizer | Kind:
    """MindSpore's optimizer by a factory, or its kind by a name."""
    if specs.is_spec(optimizer):
        edge = importlib.import_module("automap.mindspore_optimizers")
        found: MindSporeOptimizer = edge.described(edge.from_spec(optimizer, args))
        return found
    if args:
        raise ConversionError(f"{optimizer} is the name of a class and takes no arguments ({', '.join(args)})")
    return kind_called(optimizer)


def _joined(plan: Plan, tasks: Sequence[Task]) -> Plan:
    """A plan with more tasks. Raises ConversionError where a name would be there twice."""
    taken = {key for task in plan.tasks for o in task.made for key in (o.key, *o.copies)}
    twice = [o.key for task in tasks for o in task.made if o.key in taken]
    if twice:
        raise ConversionError(f"{', '.join(twice)} would be in the checkpoint twice: of the network, and the optimizer")
    read = {name: tensor for task in tasks for name, tensor in zip(task.names, task.given, strict=True)}
    return replace(plan, tasks=(*plan.tasks, *tasks), read={**plan.read, **read})


def _to_torch(
    plan: Plan, mapping: ParameterMapping, checkpoint: str, output: str, wanted: Wanted, network: Any
) -> tuple[Plan, OptimizerReport]:
    """The state as ``optimizer.state_dict()`` gives it, under ``optimizer``, the network's under ``model``."""
    if is_folder(output) or places.suffix(output) == ".safetensors":
        raise ConversionError(
            f"{output} would hold tensors alone, and optimizer.state_dict() is more than that: name a file that "
            "torch.save can write, such as one.pth"
        )
    mapping = mapping.invert() if mapping.reverse else mapping
    listing: Listed | None = None
    if network is not None:
        listing = [(p.name, p.shape, p.dtype) for p in open_source(network, "torch").listing()]
    made = None if wanted.given is None else _described(wanted.given, wanted.given_args)
    if isinstance(made, Kind):
        given = given_of(mapping, checkpoint, made.name)
    else:
        given = given_of(mapping, checkpoint, None, made)
    edge = importlib.import_module("automap.torch_optimizers")
    order = _in_order(plan, mapping, given, listing)
    optimizer = edge.from_spec(wanted.optimizer, wanted.args, order)
    state = state_of(optimizer)
    carried = Back(mapping, given, state, listing, wanted.names, wanted.step).carried()
    tasks, state_dict = list(carried.tasks), dict[int, dict[str, Any]]()
    for i, slots in sorted(carried.slots.items()):
        state_dict[i] = {slot: Named(key_of(i, slot)) for slot in slots}
        if edge.counts(optimizer):
            key = key_of(i, "step")
            number = Held(np.array(carried.step or 0, np.float32))
            step = Output(key, key, (), "float32", "float32")
            tasks.append(Task((f"{key} (of the optimizer)",), (number,), (), (step,)))
            state_dict[i]["step"] = Named(key)
    groups = []
    for g, (group, members) in enumerate(zip(state.groups, state.members, strict=True)):
        plain = {key: value for key, value in group.items() if _is_plain(value)}
        counted = {"step": carried.step} if edge.counts_in_group(group) and carried.step is not None else {}
        groups.append({**plain, **counted, "lr": carried.rates.get(g, group.get("lr")), "params": list(members)})
    beside: dict[str, Any] = {"optimizer": {"state": state_dict, "param_groups": groups}}
    if carried.step is not None:
        beside["step"] = carried.step
    taken = {name for held in given.parts.values() for name in held.values()}
    for name in list(plan.report.left_out):
        if name in taken or name.rpartition(".")[2] in given.scalars:
            del plan.report.left_out[name]
    plan = _joined(plan, tasks)
    return replace(plan, frame=Frame("model", beside)), replace(carried.report, torch=type(optimizer).__name__)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _in_order(plan: Plan, mapping: ParameterMapping, given: Given, listing: Listed | None) -> Listed:
    """PyTorch's parameters whose counterparts MindSpore trains, in the order of the network."""
    trained = {n for e in mapping.entries if all(m in given.parts for m in e.mindspore) for n in e.torch}
    shapes = {o.name: o.shape for task in plan.tasks for o in task.made}
    order = [name for e in mapping.entries for name in e.torch]
    if listing is not None:
        change = prefix_change([name for name, *_ in listing], set(order))
        order = [renamed(name, *change) for name, *_ in listing]
    return [(name, shapes[name], None) for name in order if name in trained and name in shapes]


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
    return "float32" if held is None else held.dtype
