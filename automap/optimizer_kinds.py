"""MindSpore's optimizers, as data: what their states are called, and what PyTorch calls the same.

Each row is a fact about a class of MindSpore, which a test proves where its kernels run: the states that the row says
are converted, and the next steps of both frameworks give equal parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from automap.errors import ConversionError
from automap.layout import Described

#: What PyTorch's optimizers keep for a parameter, beside the number of steps.
TORCH_SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "grad_avg", "sum")

#: Which of them each of PyTorch's optimizers keeps, and the setting of its group without which it does not.
TORCH_KEEPS: dict[str, dict[str, str]] = {
    "SGD": {"momentum_buffer": "momentum"},
    "Adam": {"exp_avg": "", "exp_avg_sq": "", "max_exp_avg_sq": "amsgrad"},
    "RMSprop": {"square_avg": "", "momentum_buffer": "momentum", "grad_avg": "centered"},
    "Adagrad": {"sum": ""},
    "LARS": {"momentum_buffer": ""},
}
TORCH_KEEPS |= dict.fromkeys(("AdamW", "Adam or AdamW", "LAMB"), TORCH_KEEPS["Adam"])

#: PyTorch's own among them.
TORCH_NAMES = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")


@dataclass(frozen=True)
class Counter:
    """Where a MindSpore optimizer counts its steps.

    Attributes:
        name: the parameter's name.
        dtype: its element type.
        shape: its shape, ``()`` or ``(1,)``.
        start: what it is before the first step.
    """

    name: str = "global_step"
    dtype: str = "int32"
    shape: tuple[int, ...] = (1,)
    start: int = 0


@dataclass(frozen=True)
class Kind:
    """A class of MindSpore's optimizers.

    Attributes:
        name: what it is called here and on the command line; those of ``mindspore.nn`` by their class alone.
        slots: for each of PyTorch's states: what stands before the parameter's name in MindSpore, and the attribute.
        own: MindSpore's states that PyTorch has not, in the same way.
        counter: where the steps are counted.
        fixed: settings that the class cannot have otherwise, in PyTorch's words.
        optional: PyTorch's states that an optimizer of this class has only if it is asked for.
        rate: whether the learning rate is among the parameters that checkpoints hold.
        momentum: whether the momentum is.
        powers: whether powers of both betas are.
        scaled: whether the momentum buffer has the learning rate in it already.
        lacks: what it does otherwise than PyTorch at every step, in words, or ``""``.
        unproven: why no test here runs it, or ``""``.
        by_norm: whether a step depends on the norms of the whole parameter.
    """

    name: str
    slots: Mapping[str, tuple[str, str]]
    own: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    counter: Counter | None = Counter()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    rate: bool = True
    momentum: bool = False
    powers: bool = False
    scaled: bool = False
    lacks: str = ""
    unproven: str = ""
    by_norm: bool = False


_PLAIN = {"maximize": False}
_ADAM = {"exp_avg": ("exp_avg", "exp_avg"), "exp_avg_sq": ("exp_avg_sq", "exp_avg_sq")}
_ADAM_MAX = {**_ADAM, "max_exp_avg_sq": ("max_exp_avg_sq", "max_exp_avg_sq")}
_NO_COUNT = "in MindSpore 2.10 it does not count its steps on a CPU"
_NO_KERNEL = "it has no kernel on a CPU"

KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "Momentum",
            {"momentum_buffer": ("moments", "moments")},
            fixed={**_PLAIN, "dampening": 0.0},
            momentum=True,
        ),
        Kind(
            "SGD", {"momentum_buffer": ("accum", "accum")}, own={"stat": ("stat", "stat")}, fixed=_PLAIN, momentum=True
        ),
        Kind(
            "Adam",
            {
                "exp_avg": ("moment1", "moment1"),
                "exp_avg_sq": ("moment2", "moment2"),
                "max_exp_avg_sq": ("vhat", "vhat"),
            },
            fixed={**_PLAIN, "decoupled_weight_decay": False},
            optional=("max_exp_avg_sq",),
            powers=True,
        ),
        Kind(
            "AdamWeightDecay",
            {"exp_avg": ("adam_m", "moments1"), "exp_avg_sq": ("adam_v", "moments2")},
            fixed={**_PLAIN, "decoupled_weight_decay": True, "amsgrad": False},
            lacks="AdamWeightDecay does not correct the bias of its moments; mindspore.experimental.optim.AdamW does, "
            "and so does mindspore.mint.optim.AdamW",
        ),
        Kind(
            "RMSProp",
            {
                "square_avg": ("mean_square", "ms"),
                "momentum_buffer": ("moment", "moment"),
                "grad_avg": ("mean_grad", "mg"),
            },
            fixed=_PLAIN,
            optional=("grad_avg",),
            scaled=True,
        ),
        Kind("Adagrad", {"sum": ("accum", "accum")}, fixed={**_PLAIN, "lr_decay": 0.0}),
        Kind(
            "Lamb",
            {"exp_avg": ("lamb_m", "moments1"), "exp_avg_sq": ("lamb_v", "moments2")},
            fixed=_PLAIN,
            unproven=_NO_KERNEL,
            by_norm=True,
        ),
        Kind(
            "LARS",
            {"momentum_buffer": ("moments", "moments")},
            fixed={**_PLAIN, "dampening": 0.0},
            momentum=True,
            unproven=_NO_KERNEL,
            by_norm=True,
        ),
        Kind(
            "experimental.SGD",
            {"momentum_buffer": ("accum", "accum")},
            own={"stat": ("stat", "stat")},
            counter=None,
            rate=False,
        ),
        Kind("experimental.Adam", _ADAM_MAX, counter=Counter("state_step", shape=()), rate=False,
             fixed={"decoupled_weight_decay": False, "amsgrad": False}),
        Kind("experimental.AdamW", _ADAM_MAX, counter=Counter("state_step", shape=()), rate=False,
             fixed={"decoupled_weight_decay": True}),
        Kind(
            "experimental.RMSprop",
            {
                "square_avg": ("mean_square", "mean_square"),
                "momentum_buffer": ("moment", "moment"),
                "grad_avg": ("mean_grad", "mean_grad"),
            },
            counter=None,
            rate=False,
        ),
        Kind("experimental.Adagrad", {"sum": ("accum", "accum")}, counter=Counter("step_t", shape=()), rate=False),
        Kind("mint.SGD", {"momentum_buffer": ("momentum_buf", "momentum_buf")}, counter=Counter("step_t", shape=()),
             rate=False, unproven=_NO_COUNT),
        Kind("mint.Adam", _ADAM_MAX, counter=Counter("state_step", "float32"), rate=False, optional=("max_exp_avg_sq",),
             fixed={"decoupled_weight_decay": False}, unproven=_NO_COUNT),
        Kind("mint.AdamW", _ADAM_MAX, counter=Counter("state_step", "float32", start=-1), rate=False,
             optional=("max_exp_avg_sq",), fixed={"decoupled_weight_decay": True}, unproven=_NO_KERNEL),
    )
}  # fmt: skip


def kind_called(name: str) -> Kind:
    """The kind of that name. Raises ConversionError, with those there are, where there is none."""
    plain = name.removeprefix("mindspore.").removeprefix("nn.").replace(".optim.", ".")
    if plain not in KINDS:
        raise ConversionError(f"no optimizer {name!r} is known: there are {', '.join(KINDS)}")
    return KINDS[plain]


def split_state(kind: Kind, name: str) -> tuple[str, str] | None:
    """Which state a name in a checkpoint is, by PyTorch's word or the kind's own, and of which parameter, or None."""
    for slot, (word, _) in [*kind.slots.items(), *kind.own.items()]:
        _, found, rest = f".{name}".partition(f".{word}.")
        if found and rest:
            return slot, rest
    return None


def kind_in(checkpoint: Mapping[str, Described]) -> Kind:
    """The kind of the optimizer whose states are in a checkpoint, by their names, and by how its steps are counted.

    Kinds that keep the same are one here, with what all of them have in common.

    Raises:
        ConversionError: it is none of those known, or may be several that keep their states otherwise.
    """
    leaves = {name.rpartition(".")[2]: tensor for name, tensor in checkpoint.items()}
    explained: dict[str, int] = {}
    counted: set[str] = set()
    for kind in KINDS.values():
        states = [split for name in checkpoint if (split := split_state(kind, name)) is not None]
        wanted = {*kind.slots, *kind.own} - set(kind.optional) - {"max_exp_avg_sq", "grad_avg"}
        if not wanted <= {slot for slot, _ in states}:
            continue
        held = None if kind.counter is None else leaves.get(kind.counter.name)
        if held is not None and kind.counter is not None:
            if (held.dtype, tuple(held.shape)) != (kind.counter.dtype, kind.counter.shape):
                continue
            counted.add(kind.name)
        more = ["learning_rate"] * kind.rate + ["momentum"] * kind.momentum
        explained[kind.name] = len(states) + (held is not None) + sum(leaf in leaves for leaf in more)
    best = [KINDS[name] for name, n in explained.items() if n == max(explained.values())]
    if not best:
        raise ConversionError(
            "the checkpoint has no states of an optimizer that is known here: name the optimizer that they are of "
            f"(kind=, --from-optimizer): {', '.join(KINDS)}"
        )
    names = " or ".join(kind.name for kind in best)
    if len({(str(k.slots), str(k.own), k.counter if k.name in counted else None, k.scaled) for k in best}) > 1:
        raise ConversionError(f"the states in the checkpoint may be of {names}: name it (kind=, --from-optimizer)")
    first = best[0]
    fixed = {key: value for key, value in first.fixed.items() if all(k.fixed.get(key) == value for k in best)}
    unproven = first.unproven if all(k.unproven for k in best) else ""
    return replace(first, name=names, fixed=fixed, unproven=unproven, rate=all(k.rate for k in best))
