"""What two networks are trained on, and how: batches, loss and optimizer, the same in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from automap import comparison
from automap.descent import OPTIMIZERS
from automap.dtypes import Array
from automap.errors import InputError
from automap.gradients import _weights
from automap.probing import InputSpec, Probe, parse_input, read_inputs
from automap.running import Inputs
from automap.seeding import generator
from automap.specs import is_spec, load_object
from automap.training_beginning import OF_STATE

#: The losses that are known by name.
LOSSES = ("squares", "cross_entropy")


@dataclass(frozen=True)
class Wish:
    """What is asked for of a training; without steps, none.

    Attributes:
        steps: how many.
        loss: ``"squares"`` (the mean of squares to a seeded target), ``"cross_entropy"``, or PyTorch's and MindSpore's
            own, called with outputs and target; None takes cross entropy for one output of two dimensions.
        optimizer: ``"sgd"``, ``"momentum"``, ``"adam"``, ``"adamw"``, or PyTorch's and MindSpore's own: each is called
            with the network, and a class with the parameters and the learning rate. A function may give a scheduler of
            the learning rate as well, in a tuple.
        lr: the learning rate.
        weight_decay: of an optimizer that is known by name.
        batches: arrays whose first axis counts batches, by name; ``target`` goes to the loss.
        target: what the loss is given beside the outputs, where it is not drawn to fit them.
        go_on: whether both optimizers begin with the state in the checkpoint of the weights.
        step: how many steps were made before, where that state does not count them.
        every: after how many steps a scheduler makes one.
    """

    steps: int = 0
    loss: str | tuple[Any, Any] | None = None
    optimizer: str | tuple[Any, Any] = "sgd"
    lr: float | None = None
    weight_decay: float | None = None
    batches: Mapping[str, Array] | None = None
    target: InputSpec | None = None
    go_on: bool = False
    step: int | None = None
    every: int = 1

    @classmethod
    def of(
        cls,
        steps: int,
        loss: Any = None,
        optimizer: Any = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        batches: Any = None,
        target: Any = None,
        go_on: bool = False,
        step: int | None = None,
        every: int = 1,
    ) -> Wish:
        """A wish as a caller gives it.

        Raises:
            InputError: something is not understood.
        """
        loss = _pair(loss, LOSSES, "loss", "torch_loss,ms_loss")
        usual = OF_STATE if go_on else "sgd"
        optimizer = usual if optimizer is None else _pair(optimizer, OPTIMIZERS, "optimizer", "torch_opt,ms_opt")
        if go_on and optimizer in OPTIMIZERS:
            raise InputError(
                "an optimizer known by name begins anew: leave it out to go on with that of the state, or give a pair "
                "(torch_opt,ms_opt)"
            )
        if go_on and not isinstance(optimizer, tuple) and (lr is not None or weight_decay is not None):
            raise InputError("the state of the optimizer has its learning rate and weight decay")
        if every < 1:
            raise InputError("schedulers make a step after at least one step of training")
        if not isinstance(optimizer, str) and weight_decay is not None:
            raise InputError("a weight decay is for an optimizer known by name: set it where yours are made")
        if isinstance(batches, (str, Path)):
            read = read_inputs(batches)
            batches = read if isinstance(read, dict) else {f"arr_{i}": a for i, a in enumerate(read)}
        if batches is not None and len({len(a) if a.ndim else 0 for a in batches.values()} - {0}) != 1:
            raise InputError("batches: the first axis of every array counts the batches, and has to be equally long")
        return cls(
            steps,
            loss,
            optimizer,
            lr,
            weight_decay,
            batches,
            parse_input(target) if isinstance(target, str) else target,
            go_on,
            step,
            every,
        )

    def __bool__(self) -> bool:
        return self.steps > 0

    @property
    def words(self) -> str:
        """The optimizer in words."""
        made = self.optimizer if isinstance(self.optimizer, str) else "the optimizers given"
        if self.go_on:
            made = (
                "the optimizer of the checkpoint, from its state on"
                if made == OF_STATE
                else f"{made}, from its state on"
            )
        return made + ("" if self.lr is None else f", learning rate {self.lr:g}")


def _pair(value: Any, known: Sequence[str], what: str, form: str) -> Any:
    if value is None or value in known:
        return value
    if isinstance(value, str):
        names = [text.strip() for text in value.split(",")]
        if len(names) != 2 or not all(map(is_spec, names)):
            raise InputError(
                f"the {what} {value!r} is not known: there are {', '.join(known)}, or a pair {form}", value
            )
        return tuple(map(load_object, names))
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(map(callable, value)):
        return tuple(value)
    raise InputError(f"the {what} must be one of {', '.join(known)}, or PyTorch's and MindSpore's own as a pair")


class Batches:
    """What the networks are trained on: inputs and target of each step, the same every time."""

    def __init__(self, wish: Wish, probe: Probe, seed: int, torch: Any, mindspore: Any) -> None:
        """``torch`` and ``mindspore`` are outputs of one run of each, from which the target's form is taken."""
        self.wish, self.probe, self.seed = wish, probe, seed
        pairs = [
            (where, a, b) for where, a, b in comparison.pair(torch, mindspore).pairs
            if a.shape == b.shape and a.dtype.kind == b.dtype.kind == "f" and a.size
        ]  # fmt: skip
        if not pairs:
            raise InputError("no output has floating-point numbers in both networks: there is no loss to train for")
        self.places = pairs
        one_table = len(pairs) == 1 and pairs[0][1].ndim == 2 and pairs[0][1].shape[1] > 1
        labels = one_table and wish.loss in (None, "cross_entropy")
        if wish.loss == "cross_entropy" and not one_table:
            raise InputError("the cross entropy is for networks with one output of two dimensions")
        self.loss: Any = ("cross_entropy" if labels else "squares") if wish.loss is None else wish.loss
        self.labels = labels or (one_table and not isinstance(wish.loss, str))
        self.outputs = torch, mindspore

    @property
    def words(self) -> str:
        """The loss in words."""
        return {"squares": "mean of squares", "cross_entropy": "cross entropy"}.get(str(self.loss), "the losses given")

    def inputs(self, step: int) -> Inputs:
        """Of a step, from 0."""
        given = self.wish.batches
        if given is None:
            return self.probe.draw(self.seed, step)
        found = {n: a[step % len(a)] for n, a in given.items() if n != "target"}
        positional = [f"arr_{i}" for i in range(len(found))]
        return [found[n] for n in positional] if set(found) == set(positional) else found

    def targets(self, step: int) -> tuple[Any, Any]:
        """PyTorch's and MindSpore's: nested like the outputs for a loss known by name, else one array."""
        arrays = {where: self._target(step, where, a) for where, a, _ in self.places}
        if not isinstance(self.loss, str):
            one = next(iter(arrays.values()))
            return one, one
        ours = {id(a): arrays[where] for where, a, _ in self.places}
        theirs = {id(b): arrays[where] for where, _, b in self.places}
        return _weights(self.outputs[0], ours), _weights(self.outputs[1], theirs)

    def _target(self, step: int, where: str, like: Array) -> Array:
        if self.wish.batches is not None and "target" in self.wish.batches:
            every = self.wish.batches["target"]
            return np.asarray(every[step % len(every)])
        rng = generator(self.seed, f"target of {where} in step {step}")
        if self.wish.target is not None:
            return self.wish.target.draw(rng)
        if self.labels:
            return rng.integers(0, like.shape[1], like.shape[0]).astype(np.int64)
        return rng.standard_normal(like.shape).astype(np.float32)
