"""What an optimizer does to one element of a weight, as a rule that works on the tensors of any framework.

The rules are elementwise, so a sample of a weight's elements tells as much as the whole. Sources: the documentation of
``torch.optim`` (SGD, Adam, AdamW, RMSprop, Adagrad), and for the variants that of MindSpore's optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from automap.dtypes import Array

Kind = Literal["sgd", "adam", "rmsprop", "adagrad"]

#: The optimizers that are known by name, as PyTorch has them.
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")

#: What a rule calls the states of PyTorch's optimizers.
MEMORY = {"momentum_buffer": "buffer", "exp_avg": "m", "exp_avg_sq": "v", "square_avg": "v", "sum": "v"}


@dataclass(frozen=True)
class Rule:
    """How an optimizer changes a weight, by a step's number, the weight, its gradient, and what it remembers.

    Attributes:
        kind: the family.
        lr: the learning rate.
        weight_decay: how much of the weight is taken off, with the gradient or beside it.
        decoupled: whether it is beside the gradient (AdamW), and so passes by the moments.
        momentum: of SGD and RMSprop.
        dampening: of SGD.
        nesterov: of SGD.
        beta1: of Adam's first moment.
        beta2: of the second one; RMSprop's alpha.
        eps: what keeps the denominator from zero.
        eps_where: added to the root of the corrected moment (``"outside"``, PyTorch), to the root of the moment that
            is not corrected, with the correction in the learning rate (``"uncorrected"``, MindSpore's ``Adam``), or
            under the root (``"inside"``).
        corrected: whether Adam's moments are corrected for having started at zero.
        start: what Adagrad's sum starts with.
    """

    kind: Kind = "sgd"
    lr: float = 0.01
    weight_decay: float = 0.0
    decoupled: bool = False
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    eps_where: Literal["outside", "uncorrected", "inside"] = "outside"
    corrected: bool = True
    start: float = 0.0

    def change(self, number: int, weight: Any, gradient: Any, memory: dict[str, Any], sqrt: Callable[..., Any]) -> Any:
        """What a step adds to the weight.

        Args:
            number: of the step, from 1.
            weight: before the step.
            gradient: of the loss.
            memory: empty before the first step; filled here.
            sqrt: the root of a tensor.
        """
        decay = self.weight_decay * weight if self.weight_decay else 0.0
        beside = -self.lr * decay if self.decoupled else 0.0
        g = gradient if self.decoupled else gradient + decay
        return beside - getattr(self, f"_{self.kind}")(number, g, memory, sqrt)

    def _sgd(self, number: int, g: Any, memory: dict[str, Any], sqrt: Callable[..., Any]) -> Any:
        if not self.momentum:
            return self.lr * g
        first = "buffer" not in memory
        memory["buffer"] = g * 1.0 if first else self.momentum * memory["buffer"] + (1 - self.dampening) * g
        return self.lr * (g + self.momentum * memory["buffer"] if self.nesterov else memory["buffer"])

    def _adam(self, number: int, g: Any, memory: dict[str, Any], sqrt: Callable[..., Any]) -> Any:
        m = memory["m"] = self.beta1 * memory.get("m", 0.0) + (1 - self.beta1) * g
        v = memory["v"] = self.beta2 * memory.get("v", 0.0) + (1 - self.beta2) * g * g
        first, second = 1 - self.beta1**number, 1 - self.beta2**number
        if not self.corrected:
            first = second = 1.0
        if self.eps_where == "inside":
            return self.lr * (m / first) / sqrt(v / second + self.eps)
        if self.eps_where == "uncorrected":
            return self.lr * second**0.5 / first * m / (sqrt(v) + self.eps)
        return self.lr * (m / first) / (sqrt(v) / second**0.5 + self.eps)

    def _rmsprop(self, number: int, g: Any, memory: dict[str, Any], sqrt: Callable[..., Any]) -> Any:
        v = memory["v"] = self.beta2 * memory.get("v", self.start) + (1 - self.beta2) * g * g
        change = g / (sqrt(v + self.eps) if self.eps_where == "inside" else sqrt(v) + self.eps)
        if self.momentum:
            change = memory["buffer"] = self.momentum * memory.get("buffer", 0.0) + change
        return self.lr * change

    def _adagrad(self, number: int, g: Any, memory: dict[str, Any], sqrt: Callable[..., Any]) -> Any:
        v = memory["v"] = memory.get("v", self.start) + g * g
        return self.lr * g / (sqrt(v + self.eps) if self.eps_where == "inside" else sqrt(v) + self.eps)

    def changes(
        self,
        weights: Sequence[Array],
        gradients: Sequence[Array],
        memory: Mapping[str, Array] | None = None,
        done: int = 0,
        factors: Sequence[float] = (),
    ) -> Iterator[Array]:
        """What each of several steps adds, from the weights and gradients that were seen at them.

        Args:
            weights: before each step.
            gradients: at each step.
            memory: what was there before the first of them.
            done: how many steps were made before.
            factors: of the learning rate at each step; none: 1.
        """
        held: dict[str, Any] = {key: array.astype(np.float64) for key, array in (memory or {}).items()}
        with np.errstate(all="ignore"):
            for k, (weight, gradient) in enumerate(zip(weights, gradients, strict=False)):
                w, g = weight.astype(np.float64), gradient.astype(np.float64)
                rule = replace(self, lr=self.lr * factors[k]) if factors else self
                yield np.asarray(rule.change(done + k + 1, w, g, held, np.sqrt), np.float64)


def rule_of(name: str, lr: float | None = None, weight_decay: float | None = None) -> Rule:
    """The rule of an optimizer known by name, with the usual settings."""
    made = {
        "sgd": Rule("sgd", 0.01),
        "momentum": Rule("sgd", 0.01, momentum=0.9),
        "adam": Rule("adam", 0.001),
        "adamw": Rule("adam", 0.001, 0.01, decoupled=True),
    }[name]
    made = made if lr is None else replace(made, lr=lr)
    return made if weight_decay is None else replace(made, weight_decay=weight_decay)
