"""Trains a PyTorch network for a few steps and leaves it as it was. Imported only where one has to be trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from automap import running, torch_edge, training
from automap.descent import Rule, rule_of
from automap.dtypes import Array, widen
from automap.errors import InputError
from automap.running import Inputs
from automap.torch_runner import Runner, _no_backward, _output, _tensor_or_none, _translated, _unchanged


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
                yield Session(self, self._optimizer())
            finally:
                for p, grad in before:
                    p.grad = grad

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters = [p for p in self.runner.model.parameters() if p.requires_grad]
        if not isinstance(self.optimizer, str):
            if isinstance(self.optimizer, type):
                return self.optimizer(parameters, lr=1e-3 if self.lr is None else self.lr)
            made = self.optimizer(self.runner.model)
            if not isinstance(made, torch.optim.Optimizer):
                raise InputError(f"PyTorch's optimizer is a {type(made).__name__}: give what makes one of the network")
            return made
        rule = rule_of(self.optimizer, self.lr, self.weight_decay)
        if rule.kind == "sgd":
            return torch.optim.SGD(parameters, rule.lr, rule.momentum, weight_decay=rule.weight_decay)
        way = torch.optim.AdamW if rule.decoupled else torch.optim.Adam
        return way(parameters, rule.lr, (rule.beta1, rule.beta2), rule.eps, rule.weight_decay)

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

    def __init__(self, trainer: Trainer, optimizer: torch.optim.Optimizer) -> None:
        self.trainer, self.optimizer = trainer, optimizer
        names: dict[int, list[str]] = {}
        for name, tensor in trainer.runner._tensors.items():
            names.setdefault(id(tensor), []).append(name)
        rules: dict[str, Rule] = {}
        optimized = []
        for group in optimizer.param_groups:
            rule = _rule(optimizer, group)
            for p in group["params"]:
                optimized += names.get(id(p), [])
                rules |= dict.fromkeys(names.get(id(p), []), rule) if rule is not None else {}
        self.optimized = frozenset(optimized)
        self.rules: Mapping[str, Rule] = rules

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
        self.optimizer.step()
        return float(loss.detach()), outputs

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
