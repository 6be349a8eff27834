"""Networks that are float16 or bfloat16, or cast to it: compared in float32, where rounding hides nothing.

What two right implementations of a bfloat16 network may differ by is more than most faults make. So both networks run
with their parameters cast up in memory and their own casts off, which is put back afterwards; then once in their own
precision, whose difference is reported with what that type allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from automap import comparison, conversion
from automap.dtypes import Array
from automap.errors import AutomapError, ConversionError, NotRunnableError
from automap.graph import Framework, Listing
from automap.mapping import Mapping as ParameterMapping
from automap.running import FRAMEWORK_NAMES, Forward, Inputs, Runner, one_line

#: Element types that are cast up.
LOW = ("bfloat16", "float16")


@dataclass(frozen=True)
class Narrow:
    """The low precision of two networks.

    Attributes:
        torch: the coarsest type of the PyTorch network's parameters, if it is a low one; or of what it is cast to
            (``"cast to bfloat16"``); or ``""``.
        mindspore: that of the MindSpore network's.
    """

    torch: str = ""
    mindspore: str = ""

    @staticmethod
    def of(torch: Any, mindspore: Any) -> Narrow:
        """What is known by now of the networks of two runners."""
        return Narrow(*(r.narrow or (f"cast to {r.mixed}" if r.mixed else "") for r in (torch, mindspore)))

    def __bool__(self) -> bool:
        return bool(self.torch or self.mindspore)

    @property
    def kind(self) -> str:
        """The coarsest type of both."""
        return coarsest(side.split()[-1] for side in (self.torch, self.mindspore) if side)

    @property
    def words(self) -> str:
        """What is computed otherwise than the networks would, and why."""
        if self.torch == self.mindspore:
            return f"computed in float32: the networks are {self.torch}"
        sides = ((self.torch, "PyTorch"), (self.mindspore, "MindSpore"))
        return f"computed in float32: {', '.join(f'the {side} network is {kind}' for kind, side in sides if kind)}"


@dataclass(frozen=True)
class Own:
    """What came of one run in the networks' own precision.

    Attributes:
        words: part of a sentence.
        differs: whether the outputs differ by more than that precision explains.
        remarks: what was computed otherwise than the networks say, a sentence each.
    """

    words: str
    differs: bool = False
    remarks: tuple[str, ...] = ()


def coarsest(types: Iterable[str]) -> str:
    """The coarsest low type of several, or ``""``."""
    found = set(types)
    return next((low for low in LOW if low in found), "")


def low(dtype: str) -> str:
    """The type, if it is cast up."""
    return dtype if dtype in LOW else ""


def widened(listing: Listing) -> Listing:
    """A listing of the network with its parameters cast up."""
    if not any(low(p.dtype or "") for p in listing):
        return listing
    up = tuple(replace(p, dtype="float32") if low(p.dtype or "") else p for p in listing)
    return replace(listing, parameters=up)


def ran_as(listing: Listing, dtype: str) -> Listing:
    """A listing as a network ran that computed in a type: with its parameters cast up where that is no low one."""
    return listing if low(dtype) else widened(listing)


def uncast(mapping: ParameterMapping) -> ParameterMapping:
    """A mapping without casts to a low type."""
    entries = []
    for e in mapping.entries:
        chain = tuple(t for t in e.transform if t.op != "cast" or not low(str(t.args.get("dtype", ""))))
        entries.append(e if len(chain) == len(e.transform) else replace(e, transform=chain))
    return replace(mapping, entries=tuple(entries))


@contextmanager
def in_float32(*runners: Any) -> Iterator[list[Any]]:
    """Runners of the same networks with their parameters cast up; all is put back afterwards."""
    if not runners:
        yield []
        return
    with runners[0].wide() as first, in_float32(*runners[1:]) as others:
        yield [first, *others]


def not_cast(framework: Framework, error: Exception) -> NotRunnableError:
    """The error for a network whose parameters cannot be cast."""
    side = FRAMEWORK_NAMES[framework]
    return NotRunnableError(
        f"the parameters of the {side} network cannot be cast to float32: {one_line(error)}", "cast"
    )


def still_low(*runners: Any) -> bool:
    """Whether a forward computed in low precision all the same, because it says so itself."""
    return any(runner.low for runner in runners)


def own_run(
    torch: Any,
    mindspore: Runner,
    target: Listing,
    mapping: ParameterMapping,
    inputs: Inputs,
    weights: Mapping[str, Array],
    settles: bool,
    forwards: tuple[Forward | None, Forward | None],
    kernel_noise: Callable[[], dict[str, Array]],
    seed: int,
) -> Own:
    """One run of both networks in their own precision.

    Args:
        torch, mindspore: the networks' own runners.
        target: the MindSpore network's own listing.
        mapping: what makes its weights.
        inputs: of the run.
        weights: PyTorch's.
        settles: whether running statistics are scaled to what the inputs bring, as it is with seeded weights.
        forwards: instead of the networks' own.
        kernel_noise: see :meth:`automap.torch_runner.Runner.run_with_noise`.
        seed: of the disturbance that tells what rounding does.
    """

    def where() -> str:
        return f"in {Narrow.of(torch, mindspore).kind} itself"

    try:
        with torch.holding(weights):
            if settles:
                torch.settle(inputs, forwards[0])
            state = torch.state()
            expected = torch.run(inputs, forwards[0])
            spread = _spread(torch, inputs, expected, forwards[0], kernel_noise, seed)
        with mindspore.holding(_made(mapping, state, target)):
            answer = mindspore.run(inputs, forwards[1])
    except (NotRunnableError, ConversionError) as error:
        return Own(f"{where()} nothing was compared ({error})")
    except AutomapError as error:
        return Own(f"{where()} they do not run ({error})", True)
    dtypes = (torch.dtype, mindspore.dtype)
    found = comparison.pair(expected, answer)
    if not all(np.isfinite(a).all() for _, a, _ in found.pairs if a.dtype.kind in "fc"):
        return Own(f"{where()} the outputs of PyTorch are not finite for these weights")
    made = [
        comparison.compare(w, 0, a, b, comparison.allowance(dtypes, comparison.scale_of(a), spread.get(w, 0.0)))
        for w, a, b in found.pairs
    ]
    if found.problems:
        return Own(f"{where()} they differ: {found.problems[0][1]}", True)
    return replace(_judged(where(), made), remarks=(*torch.remarks(), *mindspore.remarks()))


def _judged(where: str, made: Sequence[comparison.Comparison]) -> Own:
    failed = [c for c in made if not c.passed]
    numbers = [c for c in made if c.scale]
    if failed:
        worst = max(failed, key=lambda c: c.to_scale)
        return Own(f"{where} they differ: {worst.words}", True)
    if not numbers:
        return Own(f"{where} there is nothing to compare")
    off = max(c.to_scale for c in numbers)
    allowed = min(c.allowed / c.scale for c in numbers)
    return Own(f"{where} the outputs are off by at most {off:.2g} of their scale, allowed {allowed:.2g}")


def _spread(
    torch: Any, inputs: Inputs, expected: Any, forward: Forward | None, noise: Callable[[], dict[str, Array]], seed: int
) -> dict[str, float]:
    try:
        return comparison.moved(expected, torch.run_with_noise(inputs, seed, noise(), forward))
    except AutomapError:
        return {}  # a network that cannot be watched (a compiled one): the table stands


def _made(mapping: ParameterMapping, state: Mapping[str, Array], target: Listing) -> dict[str, Array]:
    kept = {name: state[name] for e in mapping.entries for name in e.torch if name in state}
    mapping = replace(mapping, entries=tuple(e for e in mapping.entries if all(n in kept for n in e.torch)))
    return conversion.for_a_run(mapping, kept, target)
