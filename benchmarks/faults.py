"""Plants one fault at a time in correct MindSpore ports, and counts which of them automap names.

    python benchmarks/faults.py [--only TEXT] [--numbers]

``ports/NAME`` has a network in PyTorch (``torch_net.py``), its correct port (``port.py``), and faults (``faults.txt``):
for each its cause, the layers where it is on both sides, and the edit of the port's text that makes it.

    eps  features.1  norm1            cause, PyTorch layer, MindSpore layer (two spaces between); ``training`` after
    - nn.BatchNorm2d(16, eps=1e-3)    them if only training shows it. ``a|b``: either tells where it is, as the layers
    + nn.BatchNorm2d(16)              before and after a missing one do. ``a&b``: in both. ``*``: in all of them.

A fault counts as named when the findings of ``validate`` have its cause at its layers. What a forward in inference mode
cannot show (a momentum, how much a dropout drops) is to be found by comparing the layers' settings. ``--numbers`` asks
for no findings: it shows that the correct ports agree and that every fault changes what the port does: its outputs, or
in training its running statistics and how much it drops.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import automap
from automap.errors import AutomapError
from automap.mapping import Mapping, Unmatched

PORTS = Path(__file__).parent / "ports"

#: A correct port agrees to this, relative to the scale of the outputs; a fault is a fault above the other.
AGREES, SHOWS = 1e-5, 2e-5

#: What a finding may call a cause, beside the cause's own word.
SETTINGS = {
    "missing activation": {"activation"},
    "eps": {"epsilon", "variance_epsilon"},
    "padding": {"pad_mode", "pad"},
    "stride": {"strides"},
    "alpha": {"negative_slope"},
    "bias": {"has_bias", "missing bias"},
    "gelu": {"approximate"},
    "axis": {"dim"},
    "dropout": {"p", "keep_prob", "training"},
}


#: Causes that may be between layers: a finding may name the layers before and after.
BETWEEN = {"missing activation", "order", "axis", "dropout"}


@dataclass(frozen=True)
class Fault:
    """One fault of a port.

    Attributes:
        network: the name of its folder.
        cause: in a word or two, such as ``eps``.
        torch: the PyTorch layers where it is: all of these groups, of each any one of these patterns.
        mindspore: the MindSpore layers.
        edits: what to replace in the port's text, and by what.
        training: only training shows it.
    """

    network: str
    cause: str
    torch: tuple[tuple[str, ...], ...]
    mindspore: tuple[tuple[str, ...], ...]
    edits: tuple[tuple[str, str], ...]
    training: bool = False

    @property
    def where(self) -> str:
        """The MindSpore layers as ``faults.txt`` has them."""
        return "&".join("|".join(group) for group in self.mindspore)


@dataclass(frozen=True)
class Pair:
    """Both networks and the true mapping between them (without the parameters that a fault takes away)."""

    torch: Any
    mindspore: Any
    mapping: Mapping
    inputs: list[str]


def networks() -> list[str]:
    """The names of all networks."""
    return sorted(folder.name for folder in PORTS.iterdir() if (folder / "faults.txt").exists())


def faults_of(network: str) -> list[Fault]:
    """The faults that are planted in one network.

    Raises:
        ValueError: a fault is not written as it has to be.
    """
    found = []
    for text in (PORTS / network / "faults.txt").read_text().strip().split("\n\n"):
        head, *edits = text.splitlines()
        cause, torch, mindspore, *flags = re.split(r" {2,}", head)
        old, new = edits[::2], edits[1::2]
        if flags not in ([], ["training"]) or len(old) != len(new) or not all(e[:1] == "-" for e in old):
            raise ValueError(f"{network}: this is no fault: {text}")
        where = [tuple(tuple(group.split("|")) for group in side.split("&")) for side in (torch, mindspore)]
        changes = tuple((o[1:].strip(), n[1:].strip()) for o, n in zip(old, new, strict=True))
        found.append(Fault(network, cause, where[0], where[1], changes, bool(flags)))
    return found


def planted(fault: Fault) -> str:
    """The text of the port with the fault.

    Raises:
        ValueError: what the fault replaces is not there exactly once.
    """
    text = (PORTS / fault.network / "port.py").read_text()
    for old, new in fault.edits:
        if text.count(old) != 1:
            raise ValueError(f"{fault.network}: {text.count(old)} times in the port: {old}")
        text = text.replace(old, new)
    return text


def module(network: str, file: str, text: str | None = None) -> ModuleType:
    """One of a network's files as a module that nothing else imports."""
    path = PORTS / network / file
    made = ModuleType(f"{network}_{path.stem}")
    exec(compile(path.read_text() if text is None else text, str(path), "exec"), made.__dict__)
    return made


def true_mapping(network: str) -> Mapping:
    """The mapping to the correct port, inferred; that the outputs agree shows that it is true."""
    return automap.infer(module(network, "torch_net.py").build(), module(network, "port.py").build(), static=True)


def pair(network: str, mapping: Mapping, fault: Fault | None = None) -> Pair:
    """Both networks, with a fault in the port if one is given."""
    torch, mindspore = module(network, "torch_net.py"), module(network, "port.py", fault and planted(fault))
    port = mindspore.build()
    there = {p.name for p in port.get_parameters()}
    lost = [e for e in mapping.entries if not there.issuperset(e.mindspore)]
    mapping = replace(
        mapping,
        entries=tuple(e for e in mapping.entries if e not in lost),
        unmatched_torch=(*mapping.unmatched_torch, *(Unmatched(n, "the port has none") for e in lost for n in e.torch)),
    )
    return Pair(torch.build(), port, mapping, torch.INPUTS)


# ------------------------------------------------------------------------------------------------------- what is found


def cause_of(finding: Any, fault: Fault) -> bool:
    """Whether a finding has the cause of a fault."""
    said = {str(word).lower().replace("_", " ") for word in (finding.cause, finding.setting)}
    words = {fault.cause, *SETTINGS.get(fault.cause, ())}
    return not said.isdisjoint(w.replace("_", " ") for w in words)


def paths(finding: Any, side: str) -> set[str]:
    """The layers that a finding names on one side."""
    named = getattr(finding, side)
    return {named} if isinstance(named, str) else set(named or ())


def covered(groups: Iterable[Sequence[str]], named: set[str], known: Sequence[str]) -> bool:
    """Whether these layers are all of the fault's: of each group, all that any one of its patterns stands for.

    A pattern's ``*`` stands for one part of a path, ``**`` for several.
    """
    return all(any((found := matching(p, known)) and found <= named for p in group) for group in groups)


def matching(pattern: str, known: Iterable[str]) -> set[str]:
    """The paths that a pattern stands for."""
    parts = {"**": ".+", "*": "[^.]*"}
    expression = re.compile("".join(parts.get(p, re.escape(p)) for p in re.split(r"(\*\*|\*)", pattern)))
    return {path for path in known if expression.fullmatch(path)}


def layers(net: Any) -> list[str]:
    """The paths of all layers of a network of either framework."""
    named = net.named_modules() if hasattr(net, "named_modules") else net.cells_and_names()
    return [path for path, _ in named]


def unknown(fault: Fault, both: Pair) -> list[str]:
    """The patterns of a fault that stand for no layer."""
    sides = (fault.torch, layers(both.torch)), (fault.mindspore, layers(both.mindspore))
    return [p for groups, known in sides for group in groups for p in group if not matching(p, known)]


def judge(fault: Fault, both: Pair, findings: Sequence[Any]) -> tuple[bool, int]:
    """Whether a fault is named with its cause at all of its layers, and how many findings are of something else."""
    sides = []
    for side, groups in (("torch", fault.torch), ("mindspore", fault.mindspore)):
        known = layers(getattr(both, side))
        sides.append((side, groups, known, set().union(*(matching(p, known) for group in groups for p in group))))

    def is_it(finding: Any) -> bool:
        named = [(paths(finding, side), there) for side, _, _, there in sides]
        if fault.cause in BETWEEN:
            return cause_of(finding, fault) and any(ours & there for ours, there in named)
        return cause_of(finding, fault) and any(ours and ours <= there for ours, there in named)

    right = [f for f in findings if is_it(f)]
    whole = any(covered(groups, {p for f in right for p in paths(f, side)}, known) for side, groups, known, _ in sides)
    return whole, len(findings) - len(right)


# ------------------------------------------------------------------------------------------------------ plain numbers


def difference(both: Pair) -> float:
    """How far the outputs are apart in inference mode, relative to their scale; infinite if their shapes differ."""
    result = automap.validate(both.mapping, both.torch, both.mindspore, inputs=both.inputs)
    if result.exit_code == 4 or result.greatest is None:
        raise RuntimeError(result.verdict)
    return result.greatest


def training_difference(both: Pair) -> float:
    """How far the networks are apart in training: in running statistics after one step, and in how much they drop."""
    import mindspore as ms
    import torch

    from automap import mindspore_runner, torch_runner
    from automap.probing import open_inputs

    torch.manual_seed(0)
    ms.set_seed(0)
    drawn = open_inputs(both.inputs).draw(0, 0)
    t, m = torch_runner.Runner(both.torch), mindspore_runner.Runner(both.mindspore)
    kept = {n for e in both.mapping.entries for n in e.torch}
    made = automap.apply(both.mapping, {n: a for n, a in t.state().items() if n in kept}, framework="numpy")
    with m.holding(made):
        both.torch.train()(*map(torch.tensor, drawn))
        both.mindspore.set_train()(*map(ms.Tensor, drawn))
        after = automap.apply(both.mapping, {n: a for n, a in t.state().items() if n in kept}, framework="numpy")
        apart = []
        for kind in ("moving_mean", "moving_variance"):
            ours = [(after[name], array) for name, array in m.state().items() if name.endswith(kind)]
            if ours:
                # To the scale of all of them: the mean of a layer that follows a norm is zero but for rounding.
                apart.append(max(np.abs(a - b).max() for a, b in ours) / max(np.abs(a).max() for a, _ in ours))
    many = np.ones((1000, 1000), np.float32)
    dropped = [
        [(drop(tensor(many)).numpy() == 0).mean() for drop in drops]
        for tensor, drops in (
            (torch.tensor, [x for x in both.torch.modules() if isinstance(x, torch.nn.Dropout)]),
            (ms.Tensor, [x for _, x in both.mindspore.cells_and_names() if isinstance(x, ms.nn.Dropout)]),
        )
    ]
    acting = [[rate for rate in rates if rate] for rates in dropped]  # recurrent cells have dropouts that drop nothing
    rates = [abs(a - b) for a, b in zip(*acting, strict=True)]
    # A sample: rates that differ by less are equal.
    return float(max([*apart, *(r for r in rates if r > 0.01)], default=0.0))


# ---------------------------------------------------------------------------------------------------------- the driver


def numbers(both: Pair, fault: Fault | None) -> tuple[bool, str]:
    """Whether a correct port agrees, or a fault shows, and how far the two networks are apart."""
    if fault is None:
        apart, training = difference(both), training_difference(both)
        return max(apart, training) < AGREES, f"off by {apart:.1e}, in training by {training:.1e}"
    apart = (training_difference if fault.training else difference)(both)
    return apart > SHOWS, f"off by {apart:.1e}" + (" in training" if fault.training else "")


def diagnosis(both: Pair, fault: Fault | None) -> tuple[bool, int, str]:
    """Whether a fault is named, or a correct port is given no finding; how many other findings; and their words."""
    try:
        result = automap.validate(both.mapping, both.torch, both.mindspore, inputs=both.inputs, per_layer=True)
    except AutomapError as error:
        return False, 0, f"{type(error).__name__}: {error}"
    words = "; ".join(f.words for f in result.findings) or f"nothing is found: {result.verdict}"
    fine, others = judge(fault, both, result.findings) if fault else (result.passed and not result.findings, 0)
    return fine, others, words


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the networks and causes that have this text in 'NETWORK: CAUSE'")
    parser.add_argument("--numbers", action="store_true", help="look at the outputs only, not at findings")
    args = parser.parse_args(arguments)
    start, cases, good, false_alarms, others = time.perf_counter(), 0, 0, 0, 0
    for network in networks():
        chosen = [f for f in faults_of(network) if args.only in f"{network}: {f.cause}"]
        if not chosen:
            continue
        mapping = true_mapping(network)
        for fault in (None, *chosen):
            both = pair(network, mapping, fault)
            if args.numbers:
                fine, words = numbers(both, fault)
            else:
                fine, more, words = diagnosis(both, fault)
                others += more
            if fault is None:
                false_alarms += not fine
            else:
                cases, good = cases + 1, good + fine
            what = "correct port" if fault is None else f"{fault.cause} at {fault.where}"
            print(f"{'ok  ' if fine else 'MISS'}  {network}: {what}: {words}", flush=True)
    seconds = time.perf_counter() - start
    if args.numbers:
        said = f"{cases} faults show; {false_alarms} correct ports do not agree"
    else:
        said = f"{cases} faults named at the right layer with the right cause; {false_alarms} false alarms on "
        said += f"correct ports; {others} findings of something else in ports with a fault"
    print(f"{good} of {said} ({seconds:.0f} s)")
    return 0 if good >= 0.95 * cases and not false_alarms else 1


if __name__ == "__main__":
    sys.exit(main())
