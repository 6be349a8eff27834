"""Asks the doctor about two networks that were just compared, and says what follows for the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from automap import sources
from automap.comparison import TOLERANCE, Comparison
from automap.diagnosis import Patient
from automap.doctor import Doctor
from automap.dtypes import Array
from automap.errors import AutomapError, InputError
from automap.findings import Finding
from automap.graph import Listing
from automap.mapping import Mapping as ParameterMapping
from automap.running import Forward, Inputs, Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType


@dataclass(frozen=True)
class Opinion:
    """What the doctor says.

    Attributes:
        findings: every cause, in the order of execution.
        verdict: one sentence instead of the one on the outputs, ``""`` to keep that.
        exit_code: instead of the one of the outputs.
        notes: what could not be examined.
        repaired: the error of the outputs with everything repaired that was found, relative to their scale, or None.
    """

    findings: tuple[Finding, ...]
    verdict: str
    exit_code: int
    notes: tuple[str, ...] = ()
    repaired: float | None = None


@dataclass(frozen=True)
class Case:
    """Two networks, what they hold, and how their outputs compare.

    Attributes:
        torch: the PyTorch runner.
        mindspore: the MindSpore runner.
        mapping: between their parameters.
        listing: PyTorch's parameters.
        state: what PyTorch holds.
        made: what MindSpore holds.
        inputs: of one run.
        forwards: what stands in for the networks' own forwards.
        kernel_noise: see :func:`automap.mindspore_runner.kernel_noise`.
        spread: how far rounding moves each output, absolutely.
    """

    torch: Runner
    mindspore: Runner
    mapping: ParameterMapping
    listing: Listing
    state: Mapping[str, Array]
    made: Mapping[str, Array]
    inputs: Inputs
    forwards: tuple[Forward | None, Forward | None]
    kernel_noise: Callable[[], Mapping[str, Array]]
    spread: Mapping[str, float]


def ask(case: Case, outputs: Sequence[Comparison], passed: bool, verdict: str, code: int) -> Opinion:
    """Have the port examined, layer by layer."""
    tolerance = max(TOLERANCE.get(d, TOLERANCE["float32"]) for d in (case.torch.dtype, case.mindspore.dtype))
    noise = max((float(sizes.max()) for sizes in case.kernel_noise().values()), default=0.0)
    doctor = _doctor(case, tolerance, noise)
    try:
        with case.torch.holding(case.state), case.mindspore.holding(case.made):
            findings = doctor.examine(case.inputs, *case.forwards)
    except AutomapError as error:
        return Opinion((), "", code, (f"the layers could not be examined: {error}",))
    if passed:
        return Opinion(findings, _passed(findings, verdict), code)
    words, status = _failed(doctor, findings, outputs, case.spread, verdict, code)
    return Opinion(findings, words, status, repaired=doctor.repaired_error if findings else None)


def of_a_refusal(case: Case, expected: Any, error: InputError) -> Opinion:
    """Why MindSpore raises an error on what PyTorch takes.

    Args:
        expected: what PyTorch gave.
        error: MindSpore's.

    Raises:
        InputError: it cannot be told; the cell that raises the error is named.
    """
    from automap import outline_doctor, torch_operations, torch_settings
    from automap.outline import outlined
    from automap.witness import Port, Testimony

    ours, theirs = case.forwards
    with case.torch.holding(case.state):
        steps = outlined(case.torch, torch_settings.read, torch_operations.observed, case.inputs, ours)
    testimony = Testimony(case.inputs, expected, case.state.__getitem__)
    recording = outline_doctor.Recording(steps, case.listing, case.torch.modules, testimony, None)
    port = Port(case.mindspore, case.mapping, case.made, theirs, (), case.spread)
    opinion = outline_doctor.examine(recording, port)
    if opinion.exit_code != 3 or opinion.repaired is None:
        raise outline_doctor.refused(error, opinion) from error
    causes = [f for f in opinion.findings if f.kind != "training"]
    words = f"The mapping holds, the networks differ ({error}): {_counted(causes, opinion.repaired)}."
    return replace(opinion, verdict=words)


def _counted(causes: Sequence[Finding], repaired: float) -> str:
    """How many causes there are, and what is left once they are repaired."""
    several = len(causes) > 1
    named = f"{len(causes)} cause{'s' if several else ''}"
    return f"{named}; with {'them' if several else 'it'} repaired the error is {repaired:.1e}"


def _doctor(case: Case, tolerance: float, noise: float) -> Doctor:
    # Both frameworks are loaded already.
    from automap import mindspore_operations, mindspore_settings, torch_operations, torch_settings

    cells = [case.mindspore.object(path) for path in case.mindspore.modules]
    patient = Patient(
        case.torch,
        case.mindspore,
        homes(case.mapping, case.listing),
        torch_settings.read,
        mindspore_settings,
        torch_operations.observed,
        lambda observe: mindspore_operations.observed(observe, cells),
        tolerance,
        noise,
    )
    return Doctor(patient)


def homes(mapping: ParameterMapping, listing: Listing) -> dict[tuple[str, ...], tuple[str, ...]]:
    """For each mapped PyTorch parameter, under all of its names: the MindSpore parameters that hold it."""
    names = {p.name: (p.name, *p.aliases) for p in listing}
    by_any = {alias: all_names for all_names in names.values() for alias in all_names}
    mapped = [name for e in mapping.entries for name in e.torch]
    ours, theirs = sources.wrapper_prefix(names), sources.wrapper_prefix(mapped)
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for entry in mapping.entries:
        for name in entry.torch:
            full = ours + name.removeprefix(theirs)
            key = by_any.get(full, (full,))
            found[key] = (*found.get(key, ()), *entry.mindspore)
    return found


def _passed(findings: Sequence[Finding], verdict: str) -> str:
    if not findings:
        return ""
    training = sum(f.kind == "training" for f in findings)
    others = len(findings) - training
    words = [f"{others} setting(s) or operation(s) differ"] * bool(others)
    words += [f"{training} setting(s) that only training shows differ"] * bool(training)
    return f"{verdict.removesuffix('.')}; but {' and '.join(words)}."


def _failed(
    doctor: Doctor,
    findings: Sequence[Finding],
    outputs: Sequence[Comparison],
    spread: Mapping[str, float],
    verdict: str,
    code: int,
) -> tuple[str, int]:
    """The verdict on networks that differ, and the exit code."""
    causes = [f for f in findings if f.kind != "training"]
    if not causes:
        return "", code
    worst = max((c for c in outputs if not c.passed), key=lambda c: c.to_scale, default=None)
    figures = ""
    if worst is not None and worst.problem == "values" and worst.scale:
        figures = (
            f" (error {worst.to_scale:.2g} of the scale of {worst.where}, allowed {worst.allowed / worst.scale:.2g}"
        )
        if worst.where in spread:
            figures += f", rounding alone {spread[worst.where] / worst.scale:.2g}"
        figures += ")"
    elif worst is not None:
        figures = f" ({worst.words})"
    named = f"{len(causes)} cause{'s' if len(causes) > 1 else ''}"
    after = f"with {'them' if len(causes) > 1 else 'it'} repaired the error is {doctor.repaired_error:.1e}"
    wrong = [f for f in causes if f.kind == "mapping"]
    if wrong:
        return f"The mapping is wrong: {wrong[0].words}{figures}; {named} in all, {after}.", 1
    if doctor.unclear:
        words = f"The networks differ{figures}; {named}, but not clear in all: {doctor.unclear[0]}; {after}"
        return f"{words}. Whether the mapping holds there is not proven.", 1
    if doubtful := [f for f in causes if not f.ports_own]:
        words = (
            f"The networks differ{figures}: {named}; {after}. A wrong mapping would look the same as this, so whether"
        )
        return f"{words} the mapping holds there is not proven: {doubtful[0].words}.", 1
    return f"The mapping holds, the networks differ{figures}: {_counted(causes, doctor.repaired_error)}.", 3


def lines(findings: Sequence[Finding]) -> list[str]:
    """The findings in words, a line each."""
    return [f.words if f.words.startswith(f"{f.cause} ") else f"{f.cause}: {f.words}" for f in findings]


def table(findings: Sequence[Finding]) -> list[RenderableType]:
    """The findings as a table, if there are any."""
    if not findings:
        return []
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("cause")
    shown.add_column("what, where, and the error before and after its repair")
    for f in findings:
        shown.add_row(Text(f.cause, style="dim" if f.kind == "training" else "red"), Text(f.words))
    return [shown]
