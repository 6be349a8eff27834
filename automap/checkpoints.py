"""What is in a checkpoint: the state dict somewhere inside, a wrapper's prefix, the states of optimizers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from automap.errors import SourceError
from automap.graph import Param
from automap.specs import article, framework_of
from automap.stored import Sliced

#: Under which keys training scripts keep the state dict. Among dicts with as many tensors, the first of these wins.
_STATE_KEYS = (
    "state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "params", "weights",
    "generator", "params_ema", "ema_state_dict", "state_dict_ema", "model_ema", "ema_model", "ema",
)  # fmt: skip


def find_state_dict(loaded: Any, text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The state dict inside what a checkpoint holds: the dict with the most tensors, however deep.

    Args:
        loaded: what was loaded, usually a dict of tensors or a dict with one under ``state_dict``, ``model`` ….
        text: what to call it in messages.

    Returns:
        The tensors by name, and notes on where they were and what else was there.

    Raises:
        SourceError: there are no named tensors.
    """
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    _collect(loaded, (), found)
    if not found:
        what = article(type(loaded).__name__)
        if isinstance(loaded, Mapping):
            what = f"a dict with {', '.join(map(str, list(loaded)[:5]))}" if loaded else "an empty dict"
        raise SourceError(f"{text} holds no named tensors, but {what}: save the state dict, model.state_dict()", text)

    def preference(item: tuple[tuple[str, ...], dict[str, Any]]) -> tuple[int, int, int]:
        where, tensors = item
        rank = min((_STATE_KEYS.index(k) for k in where if k in _STATE_KEYS), default=len(_STATE_KEYS))
        return (-len(tensors), len(where) if rank == len(_STATE_KEYS) else 0, rank)

    (where, tensors), *others = sorted(found, key=preference)
    notes = []
    if where:
        notes.append(f"{text}: the state dict is the one under {'.'.join(where)} ({len(tensors)} tensors)")
    others = [(w, t) for w, t in others if 2 * len(t) >= len(tensors)]
    if others:
        also = ", ".join(f"{'.'.join(w) or 'the top level'} ({len(t)} tensors)" for w, t in others[:3])
        notes.append(f"{text}: not taken, though it could be a network too: {also}")
    for key in optimizers_in(loaded):
        notes.append(f"{text}: the state of an optimizer, under {key}, is beside it; convert takes it with --optimizer")
    for key in _loss_scales(loaded):
        notes.append(f"{text}: a loss scale, under {key}, is beside it; convert takes it with --optimizer")
    return tensors, tuple(notes)


def dicts_in(loaded: Any, wanted: Callable[[Mapping[Any, Any]], bool]) -> dict[str, Mapping[Any, Any]]:
    """The dicts of some kind in a checkpoint, at most four deep, by where they are: ``trainer.optimizer``."""
    found: dict[str, Mapping[Any, Any]] = {}

    def look(value: Any, where: str, depth: int) -> None:
        if not isinstance(value, Mapping) or depth > 4:
            return
        if wanted(value):
            found[where] = value
            return
        for key, inner in value.items():
            look(inner, f"{where}.{key}".strip("."), depth + 1)

    look(loaded, "", 0)
    return found


def optimizers_in(loaded: Any) -> list[str]:
    """Where a checkpoint keeps what ``optimizer.state_dict()`` gives."""
    if not isinstance(loaded, Mapping):
        return []
    return [str(k) for k, v in loaded.items() if isinstance(v, Mapping) and {"state", "param_groups"} <= v.keys()]


def _loss_scales(loaded: Any) -> list[str]:
    """Where a checkpoint keeps what ``GradScaler.state_dict()`` gives."""
    if not isinstance(loaded, Mapping):
        return []
    return [str(k) for k, v in loaded.items() if isinstance(v, Mapping) and "_growth_tracker" in v]


def _collect(value: Any, where: tuple[str, ...], found: list[tuple[tuple[str, ...], dict[str, Any]]]) -> None:
    if not isinstance(value, Mapping) or len(where) > 4:
        return
    tensors = {
        k: v
        for k, v in value.items()
        if isinstance(k, str)
        and (isinstance(v, np.ndarray | Sliced) or (framework_of(v) is not None and hasattr(v, "dtype")))
    }
    if tensors:
        found.append((where, tensors))
    for key, inner in value.items():
        if isinstance(key, str):
            _collect(inner, (*where, key), found)


#: What PyTorch's own wrappers put before every name: data parallel, torch.compile, FSDP.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


def wrapper_prefix(names: Iterable[str]) -> str:
    """The prefix of PyTorch's wrappers that every name carries (``module.``, ``module._orig_mod.``), or ``""``."""
    names = list(names)
    prefix = ""
    while names:
        longer = next((prefix + w for w in _WRAPPERS if all(n.startswith(prefix + w) for n in names)), None)
        if longer is None:
            break
        prefix = longer
    return prefix


#: What MindSpore's optimizers put before a parameter's name for a state of it. The second kind are ordinary words,
#: and count only where the number of steps or the learning rate is listed as well.
_STATES = re.compile(
    r"(?:moments1?|moment[12]|adam_[mv]|lamb_[mv]|exp_avg|exp_avg_sq|max_exp_avg_sq|exp_inf|vhat|mean_grad|mean_square"
    r"|accum_update|momentum_buf)\.|exp_avg_sq_(?:row_|col_)?"
)
_LIKELY_STATES = re.compile(r"(?:moment|momentum|accum|stat|linear|prev|step_size|ax_?)\.|mu_product_|mu_|eta_")
#: Two of those words beside one name say as much.
_PAIRS = (("accum.", "stat."), ("moment.", "mean_square."))
_PATTERNS = (_STATES, _LIKELY_STATES)
_STEPS = re.compile(r"global_step|learning_rate(_group_\d+)?|state_step|step_t")
_SCALARS = re.compile(
    _STEPS.pattern + r"|beta[12]_power|momentum|afactor_step|scale_sense|current_iterator_step"
    r"|last_overflow_iterator_step|weight_decay|fake_lr|epoch_num|step_num|loss_scale"
)


def mark_optimizer_states(params: Iterable[Param]) -> list[Param]:
    """The same parameters of a MindSpore listing, with the states of optimizers called ``optimizer``.

    A state is known by MindSpore's own prefix before a name that is listed too (``moments.fc.weight`` beside
    ``fc.weight``), also below a wrapper (``optimizer.moments.fc.weight`` beside ``network.fc.weight``); a scalar such
    as ``global_step`` by its name, beside such states.
    """
    params = list(params)
    names = {p.name for p in params}
    stepped = any(_STEPS.fullmatch(p.leaf) for p in params) or any(
        name.startswith(first) and {rest := name.removeprefix(first), second + rest} <= names
        for name in names
        for first, second in _PAIRS
    )
    patterns = _PATTERNS if stepped else (_STATES,)
    # (outer, rest) of every name that has a state's prefix at its start or after a dot.
    cuts = {
        name: [
            (name[:at], name[match.end() :])
            for at in (0, *(i + 1 for i, c in enumerate(name) if c == "."))
            for pattern in patterns
            if (match := pattern.match(name, at))
        ]
        for name in names
    }
    # What the other names end in, for optimizers and networks below different wrappers.
    tails = {n[i + 1 :] for n in names if stepped and not cuts[n] for i, c in enumerate(n) if c == "."}
    states = {p.name for p in params if p.kind == "optimizer"}
    states |= {n for n in names if any(outer + rest in names for outer, rest in cuts[n])}
    # Below another wrapper only a name's end can be compared, and `linear.weight` ends like any other layer: what
    # shows an optimizer there is that it has a state for a good part of the network. An optimizer that was made before
    # the network was wrapped has the names of then: it needs more than the last word.
    below: dict[str, set[str]] = defaultdict(set)
    for n in names:
        for outer, rest in cuts[n]:
            if rest in tails and (outer or "." in rest):
                below[n[: len(n) - len(rest)]].add(n)
    plain = sum(1 for n in names if not cuts[n])
    states |= {n for found in below.values() if 4 * len(found) >= plain for n in found}
    if states:
        states |= {p.name for p in params if _SCALARS.fullmatch(p.leaf) and len(p.shape or ()) < 2}
    return [replace(p, kind="optimizer") if p.name in states else p for p in params]


def why_apart(name: str) -> str:
    """Why a parameter that is listed as ``optimizer`` is no part of the network."""
    starts = (0, *(i + 1 for i, c in enumerate(name) if c == "."))
    if _SCALARS.fullmatch(name.rpartition(".")[2]) or any(p.match(name, i) for i in starts for p in _PATTERNS):
        return "the state of an optimizer"
    return "kept by a cell around the network, not trained"


def without_state(params: Iterable[Param]) -> set[str]:
    """The parameters of a listing for which its optimizer has no state, so that nothing trains them.

    Nothing where no optimizer is listed. Wrappers before either name do not matter.
    """
    params = list(params)
    ends = set()
    for p in params:
        if p.kind == "optimizer":
            starts = (0, *(i + 1 for i, c in enumerate(p.name) if c == "."))
            ends |= {p.name[m.end() :] for i in starts for pattern in _PATTERNS if (m := pattern.match(p.name, i))}
    ends.discard("")
    if not ends:
        return set()
    return {
        p.name
        for p in params
        if p.kind != "optimizer"
        and not any(p.name[i:] in ends for i in (0, *(k + 1 for k, c in enumerate(p.name) if c == ".")))
    }
