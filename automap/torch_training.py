"""Trains a PyTorch network for a few steps and leaves it as it was. Imported only where one has to be trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from automap import running, torch_edge, training
from automap.descent import MEMORY, Rule, rule_of
from automap.dtypes import Array, widen
from automap.errors import InputError
from automap.running import Inputs
from automap.torch_runner import Runner, _no_backward, _output, _tensor_or_none, _translated, _unchanged
from automap.training_beginning import OF_STATE


class Trainer(training.Trainer):
    """Trains one PyTorch network."""

    runner: Runner

    @contextmanager
    def session(self, seed: int) -> Iterator[Session]:
        model = self.runner.model
        before = [(p, p.grad) for p in model.parameters()]
        with _unchanged(model, []), torch.enable_grad(), _Certain():
            torch.manual_seed(seed)
            model.train()
            for p, _ in before:
                p.grad = None
            try:
                yield Session(self, *self._begun())
            finally:
                for p, grad in before:
                    p.grad = grad

    def notes(self) -> list[str]:
        if self.beginning is None:
            return []
        scheduler, there = self._optimizer()[1], self.beginning.schedule
        if scheduler is not None and there is None:
            return [f"{self.beginning.text} has no state of a scheduler: PyTorch's begins anew"]
        if scheduler is None and there is not None:
            text = f"{self.beginning.text} has the state of a scheduler, and none was run"
            return [f"{text}: let the functions for --optimizer return optimizer, scheduler"]
        return []

    def names(self) -> dict[int, list[str]]:
        """All names of each tensor, by its identity."""
        found: dict[int, list[str]] = {}
        for name, tensor in self.runner._tensors.items():
            found.setdefault(id(tensor), []).append(name)
        return found

    def positions(self) -> list[str]:
        """The names of the optimizer's parameters in its order."""
        names = self.names()
        return [names[id(p)][0] for p in _members(self._optimizer()[0])]

    def rules(self) -> dict[str, Rule | None]:
        """What the optimizer does to each of its parameters, where that is known."""
        optimizer, names = self._begun()[0], self.names()
        return {
            name: _rule(optimizer, group)
            for group in optimizer.param_groups
            for p in group["params"]
            for name in names.get(id(p), [])
        }

    def memory(self, optimizer: torch.optim.Optimizer | None = None) -> tuple[dict[str, dict[str, Array]], int]:
        """What the optimizer begins with for each parameter, by its rule's words, and how many steps it has made."""
        optimizer, names = optimizer or self._begun()[0], self.names()
        held: dict[str, dict[str, Array]] = {}
        done = 0 if self.beginning is None else self.beginning.step or 0
        for p in _members(optimizer):
            state = optimizer.state.get(p, {})
            done = round(float(state["step"])) if "step" in state else done
            kept = {MEMORY[key]: tensor for key, tensor in state.items() if key in MEMORY and tensor is not None}
            arrays = {word: widen(torch_edge.array_of(tensor)) for word, tensor in kept.items()}
            held |= dict.fromkeys(names.get(id(p), []), arrays)
        return held, done

    def _begun(self) -> tuple[torch.optim.Optimizer, Any]:
        """The optimizer and its scheduler, if there is one, with the state that they begin with."""
        optimizer, scheduler = self._optimizer()
        if self.beginning is None:
            return optimizer, scheduler
        try:
            optimizer.load_state_dict(self.beginning.fresh())
        except ValueError as error:
            what = f"PyTorch's optimizer does not take the state in {self.beginning.text}"
            raise InputError(f"{what}: {' '.join(str(error).split())}") from error
        if scheduler is not None and self.beginning.schedule is not None:
            scheduler.load_state_dict(dict(self.beginning.schedule))
        return optimizer, scheduler

    def _optimizer(self) -> tuple[torch.optim.Optimizer, Any]:
        parameters = [p for p in self.runner.model.parameters() if p.requires_grad]
        if self.optimizer == OF_STATE:
            return self._of_state(), None
        if not isinstance(self.optimizer, str):
            if isinstance(self.optimizer, type):
                return self.optimizer(parameters, lr=1e-3 if self.lr is None else self.lr), None
            made, scheduler = training.with_scheduler(self.optimizer(self.runner.model))
            if not isinstance(made, torch.optim.Optimizer):
                raise InputError(f"PyTorch's optimizer is a {type(made).__name__}: give what makes one of the network")
            return made, scheduler
        rule = rule_of(self.optimizer, self.lr, self.weight_decay)
        if rule.kind == "sgd":
            return torch.optim.SGD(parameters, rule.lr, rule.momentum, weight_decay=rule.weight_decay), None
        way = torch.optim.AdamW if rule.decoupled else torch.optim.Adam
        return way(parameters, rule.lr, (rule.beta1, rule.beta2), rule.eps, rule.weight_decay), None

    def _of_state(self) -> torch.optim.Optimizer:
        """An optimizer of the class and the groups that the state is of."""
        assert self.beginning is not None, "there is a state"
        named = {n: p for n, p in self.runner.model.named_parameters() if p.requires_grad}
        where = self.beginning.positions({n: tuple(p.shape) for n, p in named.items()})
        groups = []
        for group in self.beginning.fresh()["param_groups"]:
            settings = {key: value for key, value in group.items() if key != "param_names"}
            groups.append({**settings, "params": [named[where[i]] for i in group["params"]]})
        made: torch.optim.Optimizer = getattr(torch.optim, self.beginning.kind())(groups)
        return made

    def kept(self) -> list[tuple[str, float]]:
        found = []
        for path, module in self.runner.model.named_modules():
            if isinstance(module, torch.nn.Dropout):
                training = module.training
                with torch.random.fork_rng(devices=[]), torch.no_grad():
                    torch.manual_seed(0)
                    out = module.train()(torch.ones(20_000))
                module.training = training
                found.append((path, float((out != 0).float().mean())))
            elif isinstance(module, _DropoutNd):
                found.append((path, 1 - module.p))
        return found


class Session:
    """A training under way; see :class:`automap.training.Session`."""

    def __init__(self, trainer: Trainer, optimizer: torch.optim.Optimizer, scheduler: Any = None) -> None:
        self.trainer, self.optimizer, self.scheduler, self.made = trainer, optimizer, scheduler, 0
        names = trainer.names()
        rules: dict[str, Rule] = {}
        optimized = []
        for group in optimizer.param_groups:
            rule = _rule(optimizer, group)
            for p in group["params"]:
                optimized += names.get(id(p), [])
                rules |= dict.fromkeys(names.get(id(p), []), rule) if rule is not None else {}
        self.optimized = frozenset(optimized)
        self.rules: Mapping[str, Rule] = rules
        self.rates: Mapping[str, float] = {}
        self._names = names
        held, self.done = trainer.memory(optimizer)
        memory: dict[str, dict[str, Array]] = {}
        for name, states in held.items():
            for word, array in states.items():
                memory.setdefault(word, {})[name] = array
        self.memory: Mapping[str, Mapping[str, Array]] = memory

    def step(self, inputs: Inputs, target: Any) -> tuple[float, Any]:
        runner = self.trainer.runner
        self.optimizer.zero_grad(set_to_none=True)
        try:
            out = runner._called(inputs, self.trainer.forward)
            loss = self._loss(out, target)
        except Exception as error:
            raise _translated(error, inputs) from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise InputError("PyTorch's loss is not one number: give a function that returns one")
        try:
            loss.backward()
        except Exception as error:
            raise _no_backward(error) from error
        outputs = running.nested_to_numpy(out, _output)
        self.rates = {
            name: float(group["lr"])
            for group in self.optimizer.param_groups
            for p in group["params"]
            for name in self._names.get(id(p), [])
        }
        self.optimizer.step()
        value = float(loss.detach())
        self.made += 1
        if self.scheduler is not None and self.made % self.trainer.every == 0:
            measured = isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            self.scheduler.step(*[value] * measured)
        return value, outputs

    def _loss(self, out: Any, target: Any) -> torch.Tensor:
        way = self.trainer.loss
        if not isinstance(way, str):
            made: torch.Tensor = way(out, self.trainer.runner.tensor(target))
            return made
        total = torch.zeros((), dtype=torch.float32)
        for y, t in running.Loss(target).terms(running.nested_to_numpy(out, _tensor_or_none)):
            wide, goal = (y if y.dtype == torch.float64 else y.float()), torch.from_numpy(t).to(y.device)
            part = (
                torch.nn.functional.cross_entropy(wide, goal)
                if way == "cross_entropy"
                else (wide - goal).square().mean()
            )
            total = total.to(part) + part
        return total

    def gradients(self) -> dict[str, Array]:
        every = self.trainer.runner._tensors.items()
        return {n: widen(torch_edge.array_of(t.grad, n)) for n, t in every if t.grad is not None}


def _members(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class _Certain(TorchDispatchMode):  # type: ignore[misc]  # untyped in torch
    """Dropout keeps everything, whichever way it is called: the noise that it draws becomes what it is divided by."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch loads its compiler first, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "bernoulli_" and func._overloadname == "float":
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)  # a default does not arrive here
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


def _rule(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Rule | None:
    """What an optimizer does to a group of parameters, or None for what is not known."""
    if group.get("maximize") or group.get("amsgrad") or group.get("centered") or group.get("lr_decay"):
        return None
    lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    optim, kind = torch.optim, type(optimizer)
    if kind is optim.SGD:
        return Rule("sgd", lr, decay, False, group["momentum"], group["dampening"], group["nesterov"])
    if kind in (optim.Adam, optim.AdamW):
        decoupled = kind is optim.AdamW or bool(group.get("decoupled_weight_decay"))
        beta1, beta2 = map(float, group["betas"])
        return Rule("adam", lr, decay, decoupled, beta1=beta1, beta2=beta2, eps=group["eps"])
    if kind is optim.RMSprop:
        return Rule("rmsprop", lr, decay, momentum=group["momentum"], beta2=group["alpha"], eps=group["eps"])
    if kind is optim.Adagrad:
        return Rule("adagrad", lr, decay, eps=group["eps"], start=group["initial_accumulator_value"])
    return None
