"""Trains a MindSpore network for a few steps and leaves it as it was. Imported only where one has to be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as edge, running, training  # isort: skip
import mindspore as ms
from mindspore import mint, nn, ops
from mindspore.experimental.optim.lr_scheduler import ReduceLROnPlateau

from automap.descent import Rule, rule_of
from automap.dtypes import Array, widen
from automap.errors import InputError
from automap.mapping import Mapping as ParameterMapping
from automap.mindspore_optimizers import rates_of
from automap.mindspore_runner import (  # type: ignore[attr-defined]
    Runner,
    _no_backward,
    _output,
    _pynative_executor,
    _tensor_or_none,
    _translated,
    _unchanged,
)
from automap.optimizer_state import OptimizerReport
from automap.optimizers import apply_optimizer
from automap.relabeling import Links
from automap.running import Inputs
from automap.training_beginning import OF_STATE

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout)

#: Functions that networks call, by the modules that they are found in.
_FUNCTIONS = [
    (module, name)
    for module in (ops, mint.nn.functional)
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")
    if hasattr(module, name)
]


class Trainer(training.Trainer):
    """Trains one MindSpore network.

    A class of optimizers gets the learning rate as ``learning_rate``, or as ``lr`` if it is one of ``mint``.
    """

    runner: Runner
    #: Puts the state into an optimizer, and gives what is to be said of it.
    carry: Callable[[Any], OptimizerReport] | None = None
    #: Of an optimizer that is carried out by its rule: the rules, what they remember, how many steps were made.
    plain: tuple[Mapping[str, Rule], Mapping[str, Mapping[str, Array]], int] | None = None
    report: OptimizerReport | None = None

    def goes_on_from(self, ours: Any, mapping: ParameterMapping, links: Links) -> None:
        """Let the optimizer begin with the state that PyTorch's begins with.

        Args:
            ours: trains PyTorch.
            mapping: from PyTorch to MindSpore.
            links: the weights.

        Raises:
            InputError: the optimizer is that of the state, whose rule is not known.
        """
        beginning = ours.beginning
        if self.optimizer != OF_STATE:
            names = ours.positions()
            self.carry = lambda optimizer: apply_optimizer(
                mapping, beginning.state, optimizer, names=names, step=beginning.step
            )
            return
        known, (held, done) = ours.rules(), ours.memory()
        rules: dict[str, Rule] = {}
        memory: dict[str, dict[str, Array]] = {}
        for link in links.links:
            if not all(name in known for name in link.torch):
                continue
            found = {known[name] for name in link.torch}
            rule = found.pop()
            if rule is None or found:
                raise InputError(
                    f"what the optimizer of {beginning.text} does to {', '.join(link.torch)} is not known, or not the "
                    "same for all of them: give both optimizers (--optimizer torch_opt,ms_opt)"
                )
            rules |= dict.fromkeys(link.mindspore, rule)
            for word in held[link.torch[0]]:
                made = link.to_mindspore({name: held[name][word] for name in link.torch})
                for name, array in made.items():
                    memory.setdefault(name, {})[word] = array
        self.plain = rules, memory, done

    def notes(self) -> list[str]:
        report = self.report
        if report is None:
            return []
        lost = [f"not carried over: {name} ({why})" for name, why in report.lost.items()]
        found = [f"the optimizer's state: {what}" for what in (*lost, *(f"differs: {d}" for d in report.differs))]
        if report.step is None:
            found.append("how many steps made the state is not told: a schedule in MindSpore begins anew (--from-step)")
        return found

    @contextmanager
    def session(self, seed: int) -> Iterator[Session]:
        runner = self.runner
        with (
            _unchanged(runner.model, False, recording=True) as precision,
            runner._stand_ins.active(precision.pushed if precision.taken_over(runner._stand_ins.every) else ()),
            _without_dropout(),
        ):
            ms.set_seed(seed)
            runner.model.set_train(True)
            for _, cell in runner.model.cells_and_names():
                if isinstance(cell, _DROPOUTS):
                    cell.set_train(False)
            yield Session(self, *self._optimizer())

    def _optimizer(self) -> tuple[Any, Any]:
        """The optimizer and its scheduler, if there is one."""
        parameters = list(self.runner.model.trainable_params())
        if self.plain is not None:
            rules, memory, done = self.plain
            return _Plain(self.runner, parameters, rules, memory, done), None
        if isinstance(self.optimizer, str):
            return _Plain(self.runner, parameters, rule_of(self.optimizer, self.lr, self.weight_decay)), None
        scheduler = None
        if not isinstance(self.optimizer, type):
            made, scheduler = training.with_scheduler(self.optimizer(self.runner.model))
        else:
            mints = ".mint." in f".{self.optimizer.__module__}."
            rate = {"lr" if mints else "learning_rate": 1e-3 if self.lr is None else self.lr}
            made = self.optimizer(parameters, **rate)
        if not isinstance(made, nn.Cell) or not hasattr(made, "parameters"):
            raise InputError(f"MindSpore's optimizer is a {type(made).__name__}: give what makes one of the network")
        if self.carry is not None:
            self.report = self.carry(made)
        return made, scheduler

    def kept(self) -> list[tuple[str, float]]:
        found = []
        with _unchanged(self.runner.model, False):
            for path, cell in self.runner.model.cells_and_names():
                if type(cell) in (nn.Dropout, mint.nn.Dropout):
                    ms.set_seed(0)
                    cell.set_train(True)
                    found.append((path, float((cell(ms.ops.ones(20_000, ms.float32)).asnumpy() != 0).mean())))
                elif isinstance(cell, _DROPOUTS):
                    found.append((path, 1 - float(getattr(cell, "p", 0.0))))
        return found


class Session:
    """A training under way; see :class:`automap.training.Session`."""

    rules: Mapping[str, Rule] = {}
    memory: Mapping[str, Mapping[str, Array]] = {}
    done = 0

    def __init__(self, trainer: Trainer, optimizer: Any, scheduler: Any = None) -> None:
        self.trainer, self.optimizer, self.scheduler, self.made = trainer, optimizer, scheduler, 0
        self.rates: Mapping[str, float] = {}
        # The names before anything runs, which may rename.
        names = {id(p): name for name, p in trainer.runner._parameters.items()}
        self.weights = list(optimizer.parameters)
        self.names = [names.get(id(p), "") for p in self.weights]
        self.optimized = frozenset(self.names) - {""}
        self._found: dict[str, Array] = {}

    def step(self, inputs: Inputs, target: Any) -> tuple[float, Any]:
        runner = self.trainer.runner
        out: Any = None
        ran = False

        def forward() -> ms.Tensor:
            nonlocal out, ran
            out = runner._called(inputs, self.trainer.forward)
            loss = self._loss(out, target)
            ran = True
            return loss

        try:
            loss, grads = ms.value_and_grad(forward, None, self.weights)()
            _pynative_executor.sync()
            value, outputs = loss.asnumpy(), running.nested_to_numpy(out, _output)
        except Exception as error:
            raise (_no_backward(error) if ran else _translated(error, inputs)) from error
        if value.size != 1:
            raise InputError("MindSpore's loss is not one number: give a function that returns one")
        self._found = {n: widen(edge.array_of(g, n)) for n, g in zip(self.names, grads, strict=True) if n}
        given = self.optimizer.rates() if isinstance(self.optimizer, _Plain) else rates_of(self.optimizer)
        self.rates = {n: given[p.name] for n, p in zip(self.names, self.weights, strict=True) if n and p.name in given}
        try:
            if isinstance(self.optimizer, _Plain):
                self.optimizer.take(self._found)
            else:
                self.optimizer(tuple(grads))
            _pynative_executor.sync()
        except Exception as error:
            raise _no_backward(error) from error
        self.made += 1
        if self.scheduler is not None and self.made % self.trainer.every == 0:
            measured = isinstance(self.scheduler, ReduceLROnPlateau)
            self.scheduler.step(*[float(value)] * measured)
        return float(value), outputs

    def _loss(self, out: Any, target: Any) -> ms.Tensor:
        way = self.trainer.loss
        if not isinstance(way, str):
            made: ms.Tensor = way(out, _narrow(target))
            return made
        total = ms.Tensor(0.0, ms.float32)
        for y, t in running.Loss(target).terms(running.nested_to_numpy(out, _tensor_or_none)):
            wide = y if y.dtype == ms.float64 else y.astype(ms.float32)
            if way == "cross_entropy":
                total = total + ops.cross_entropy(wide, _narrow(t))
            else:
                total = total + ((wide - ms.Tensor(t).astype(wide.dtype)) ** 2).mean()
        return total

    def gradients(self) -> dict[str, Array]:
        return self._found


class _Plain:
    """An optimizer by its rule, as PyTorch has it: MindSpore's own differ from it in small ways.

    NumPy carries it out, in the element type of the weights or in float32: a device needs no kernel for it.
    """

    def __init__(
        self,
        runner: Runner,
        parameters: list[ms.Parameter],
        rule: Rule | Mapping[str, Rule],
        memory: Mapping[str, Mapping[str, Array]] | None = None,
        done: int = 0,
    ) -> None:
        """With rules by name, parameters without one are not trained; ``done`` steps have made the ``memory``."""
        names = {id(p): name for name, p in runner._parameters.items()}
        self.rule = dict.fromkeys(names.values(), rule) if isinstance(rule, Rule) else rule
        self.parameters = [p for p in parameters if names[id(p)] in self.rule]
        self.runner, self.number, self._names = runner, done, names
        self.memory: dict[str, dict[str, Any]] = {name: dict(held) for name, held in (memory or {}).items()}

    def rates(self) -> dict[str, float]:
        """The learning rates, as those of MindSpore's own optimizers are told."""
        return {p.name: self.rule[self._names[id(p)]].lr for p in self.parameters}

    def take(self, gradients: Mapping[str, Array]) -> None:
        """One step, from the gradients by name."""
        self.number += 1
        for name, gradient in gradients.items():
            weight, memory = widen(self.runner.value(name)), self.memory.setdefault(name, {})
            wide = np.promote_types(weight.dtype, np.float32)
            change = self.rule[name].change(self.number, weight.astype(wide), gradient.astype(wide), memory, np.sqrt)
            self.runner.put({name: (weight + change).astype(weight.dtype)})


def _narrow(target: Array) -> ms.Tensor:
    """Labels as 32 bits, which is what MindSpore's losses take."""
    return ms.Tensor(target.astype(np.int32) if target.dtype == np.int64 else target)


@contextmanager
def _without_dropout() -> Iterator[None]:
    """Functions for dropout give back what they get."""
    before = [(module, name, getattr(module, name)) for module, name in _FUNCTIONS]
    try:
        for module, name, _ in before:
            setattr(module, name, _same)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _same(input: Any, *_: Any, **__: Any) -> Any:
    return input
