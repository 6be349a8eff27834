"""The regression check: a lock file that holds a pair of networks to its mapping and to the error of its outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap import __version__
from automap.errors import AutomapError, SourceError
from automap.graph import Framework, Listing, Param
from automap.lock_file import Lock, Model, models, read_lock, write
from automap.mapping import Mapping as ParameterMapping
from automap.running import FRAMEWORK_NAMES
from automap.transforms import to_text
from automap.weights import some

if TYPE_CHECKING:
    from rich.console import RenderableType

#: A comparison that failed when it was locked may fail again, by as much as this times the locked error.
_GROWTH = 2.0

#: A file in a source's text: all of it, or what stands before the attribute.
_FILE = re.compile(r"(?P<path>.+\.py)(?P<attr>:.+)|(?P<whole>.+\.(?:csv|json|pth|pt|bin|safetensors|ckpt|trace))")


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    Attributes:
        path: the lock file.
        drift: one sentence for everything that changed and must not.
        notes: one sentence for everything else that is worth knowing, such as other versions.
        updated: whether the lock was written anew, so that the drift is accepted.
        seconds: how long the check took.
    """

    path: str
    drift: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    updated: bool = False
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing drifted, or the drift was accepted."""
        return self.updated or not self.drift

    @property
    def exit_code(self) -> int:
        """0 if it passed, else 1."""
        return 0 if self.passed else 1

    def __str__(self) -> str:
        if not self.drift:
            head = f"{self.path}: no drift"
        else:
            head = f"{self.path}: {len(self.drift)} thing(s) drifted" + (", accepted" if self.updated else "")
        return "\n".join([head, *(f"  {s}" for s in self.drift), *(f"  note: {s}" for s in self.notes)])

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        style = "bold green" if self.passed else "bold red"
        head, *rest = str(self).splitlines()
        return Text("\n").join([Text(head, style=style), *map(Text, rest)])


def write_lock(
    path: str | os.PathLike[str],
    torch: str | os.PathLike[str],
    mindspore: str | os.PathLike[str],
    *,
    mapping: ParameterMapping | None = None,
    inputs: Any = None,
    pins: Sequence[str] = (),
    static: bool = False,
    ignore_names: bool = False,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    torch_args: Mapping[str, Any] | None = None,
    ms_args: Mapping[str, Any] | None = None,
) -> Lock:
    """Hold two models to what is true of them now.

    The mapping is inferred, and where both sides are networks they are run and compared. The file names other files
    relative to its own folder, so that it can be checked from anywhere.

    Args:
        path: the lock file to write.
        torch: what names the PyTorch model: text or a path, for a check has to open it again.
        mindspore: the same for MindSpore.
        mapping: the mapping that ``infer`` gave for just these arguments, if it is at hand.
        inputs: as for ``validate``. Only their types, shapes and ranges are kept: the values are drawn from the seed.
        pins: as for ``infer``; so are ``static``, ``ignore_names`` and ``seed``.
        rtol: as for ``validate``; so is ``atol``.
        torch_args: keyword arguments for a PyTorch factory.
        ms_args: keyword arguments for a MindSpore factory.

    Returns:
        What was written.

    Raises:
        SourceError: a side is not given as text, or the file cannot be written.
        AutomapError: whatever ``infer`` and ``validate`` raise.
    """
    from automap.probing import open_inputs

    for framework, source in (("PyTorch", torch), ("MindSpore", mindspore)):
        if not isinstance(source, (str, os.PathLike)):
            raise SourceError(
                f"a lock needs the {framework} model as text, such as module:attr, file.py:attr or a file, "
                f"not as a {type(source).__name__}: a check has to open it again"
            )
    folder = Path(path).absolute().parent
    probe = open_inputs(inputs)
    asked = Lock(
        torch=Model(_relative(os.fspath(torch), folder), dict(torch_args or {})),
        mindspore=Model(_relative(os.fspath(mindspore), folder), dict(ms_args or {})),
        pins=tuple(pins),
        static=static,
        ignore_names=ignore_names,
        seed=seed,
        inputs=() if probe is None else probe.describe(),
        rtol=rtol,
        atol=atol,
    )
    with _modules_beside(folder):
        sides = _open(asked, folder)
        lock = _listed(asked, sides)
        lock = _inferred(lock, sides) if mapping is None else _with_mapping(lock, mapping)
        lock = _validated(lock, sides)
    write(lock, path)
    return lock


def check(path: str | os.PathLike[str], update: bool = False) -> CheckReport:
    """Infer and validate again what a lock holds, and tell what drifted.

    Args:
        path: the lock file.
        update: accept what drifted: the lock is written anew.

    Raises:
        LockError: the file is no lock.
        SourceError: a model cannot be opened, or the file cannot be written.
        AutomapError: with ``update``, whatever ``infer`` and ``validate`` raise.
    """
    start = time.monotonic()
    old = read_lock(path)
    folder = Path(path).absolute().parent
    with _modules_beside(folder):
        sides = _open(old, folder)
        now = _listed(old, sides)
        drift = _drift_of_listings(old, now)
        try:
            now = _inferred(now, sides)
            drift += _drift_of_mappings(old.mapping, now.mapping)
            now = _validated(now, sides)
            drift += _drift_of_outputs(old, now) or _drift_of_proofs(old, now)
        except AutomapError as error:
            if update:
                raise
            drift.append(f"what was locked can no longer be done: {error}")
    if update:
        write(now, path)
    return CheckReport(os.fspath(path), tuple(drift), tuple(_notes(old, now)), update, time.monotonic() - start)


def junit_xml(reports: Iterable[CheckReport]) -> str:
    """The reports as JUnit's XML, a test case for each lock."""
    from xml.etree import ElementTree as ET

    reports = tuple(reports)
    suite = ET.Element(
        "testsuite",
        name="automap",
        tests=str(len(reports)),
        failures=str(sum(not r.passed for r in reports)),
        errors="0",
        skipped="0",
        time=f"{sum(r.seconds for r in reports):.3f}",
    )
    for report in reports:
        case = ET.SubElement(
            suite, "testcase", classname="automap.check", name=_printable(report.path), time=f"{report.seconds:.3f}"
        )
        if not report.passed:
            words = "\n".join(report.drift)
            ET.SubElement(case, "failure", message=_printable(report.drift[0])).text = _printable(words)
        if report.notes:
            ET.SubElement(case, "system-out").text = _printable("\n".join(report.notes))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


# -- what holds now ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sides:
    """Both models as opened sources, each built once."""

    torch: Any
    mindspore: Any
    listings: dict[Framework, Listing]
    runnable: bool


def _open(lock: Lock, folder: Path) -> _Sides:
    from automap.sources import open_source

    opened: dict[Framework, Any] = {}
    listings: dict[Framework, Listing] = {}
    runnable = True
    for framework, model in models(lock):
        source = open_source(_absolute(model.source, folder), framework, model.args)
        # The listing first: running a network may rename its parameters.
        listings[framework] = source.listing()
        opened[framework] = source
        runnable &= source.model() is not None
    return _Sides(opened["torch"], opened["mindspore"], listings, runnable)


def _listed(lock: Lock, sides: _Sides) -> Lock:
    listings = sides.listings
    return dataclasses.replace(
        lock,
        torch=dataclasses.replace(lock.torch, parameters=listings["torch"].parameters),
        mindspore=dataclasses.replace(lock.mindspore, parameters=listings["mindspore"].parameters),
        versions=_versions(),
    )


def _inferred(lock: Lock, sides: _Sides) -> Lock:
    from automap.inference import infer

    mapping = infer(
        sides.torch,
        sides.mindspore,
        inputs=(list(lock.inputs) or None) if sides.runnable and not lock.static else None,
        pins=lock.pins,
        static=lock.static,
        ignore_names=lock.ignore_names,
        seed=lock.seed,
    )
    return _with_mapping(lock, mapping)


def _with_mapping(lock: Lock, mapping: ParameterMapping) -> Lock:
    # A mapping's own words for its sources may be absolute paths, which are another's elsewhere.
    torch = dataclasses.replace(mapping.torch, source=lock.torch.source)
    mindspore = dataclasses.replace(mapping.mindspore, source=lock.mindspore.source)
    return dataclasses.replace(lock, mapping=dataclasses.replace(mapping, torch=torch, mindspore=mindspore))


def _validated(lock: Lock, sides: _Sides) -> Lock:
    """The lock with what validation says now; without networks it holds the mapping alone, and what proved it."""
    proof = lock.mapping.proof
    if not sides.runnable and proof is not None:  # a trace stands for one of them
        return dataclasses.replace(
            lock,
            inputs=proof.inputs,
            error=proof.error,
            tolerance=proof.allowed,
            exit_code=proof.exit_code,
            verdict=str(proof),
        )
    if not sides.runnable:
        return dataclasses.replace(lock, error=None, tolerance=None, exit_code=None, verdict="")
    from automap.validation import validate

    result = validate(
        lock.mapping,
        sides.torch,
        sides.mindspore,
        inputs=list(lock.inputs) or None,
        seed=lock.seed,
        rtol=lock.rtol,
        atol=lock.atol,
    )
    return dataclasses.replace(
        lock,
        inputs=result.inputs or lock.inputs,
        error=result.greatest,
        tolerance=result.allowed,
        exit_code=result.exit_code,
        verdict=result.verdict,
    )


# -- what changed ------------------------------------------------------------------------------------------------------


def _drift_of_listings(old: Lock, now: Lock) -> list[str]:
    drift = []
    for (framework, before), (_, after) in zip(models(old), models(now), strict=True):
        side = FRAMEWORK_NAMES[framework]
        was, new = ({p.name: p for p in model.parameters} for model in (before, after))
        drift += [f"{side} parameter {name} disappeared" for name in was if name not in new]
        drift += [f"{side} parameter {name} appeared: {_shape(p)}" for name, p in new.items() if name not in was]
        for name in (n for n in was if n in new):
            p, q = was[name], new[name]
            if p.shape != q.shape:
                drift.append(f"{side} parameter {name} changed its shape: was {_shape(p)}, now {_shape(q)}")
            if p.dtype != q.dtype:
                drift.append(f"{side} parameter {name} changed its element type: was {p.dtype}, now {q.dtype}")
    return drift


def _drift_of_mappings(old: ParameterMapping, new: ParameterMapping) -> list[str]:
    """What became of the names that both mappings know."""
    drift = []
    before, after = _fates(old), _fates(new)
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            continue  # the listings tell that it disappeared
        if was.home != now.home:
            drift.append(f"{name}: was {was}, now {now}")
            continue  # a review mark that comes with another home is no drift of its own
        if was.transform != now.transform:
            drift.append(f"{name} -> {now}: its transform was {was.transform}, now {now.transform}")
        drift += _drift_of_mark(name, was.review, now.review, now.why)
    marks = {u.name: u for u in new.unmatched_mindspore}
    for u in old.unmatched_mindspore:
        if u.name in marks:
            drift += _drift_of_mark(u.name, u.review, marks[u.name].review, marks[u.name].why)
    return drift


def _drift_of_mark(name: str, was: bool, now: bool, why: str) -> list[str]:
    if was == now:
        return []
    return [f"{name} is now marked for review: {why}" if now else f"{name} is no longer marked for review"]


def _drift_of_outputs(old: Lock, now: Lock) -> list[str]:
    if old.exit_code == now.exit_code and not _grew(old, now):
        return []
    if now.exit_code is None:
        return ["the networks can no longer be run: only their listings are left"]
    if now.exit_code == 4:
        return [f"a network no longer runs here: {now.verdict}"]
    if now.exit_code == 0 or old.exit_code is None:
        return []
    if old.error is None or now.error is None:
        return [f"the outputs no longer agree: {now.verdict}"]
    allowed = "" if now.tolerance is None else f", allowed {now.tolerance:.2g}"
    return [f"the error grew from {old.error:.2g} to {now.error:.2g} of the scale{allowed}: {now.verdict}"]


def _drift_of_proofs(old: Lock, now: Lock) -> list[str]:
    """A proof that was there and is not any more."""
    was, proof = old.mapping.proof, now.mapping.proof
    if was is None or was.status != "proven" or (proof is not None and proof.status == "proven"):
        return []
    return [f"the mapping is no longer proven: {'the networks were not run' if proof is None else proof}"]


def _proven(mapping: ParameterMapping) -> list[str]:
    return [", ".join(e.torch) for e in mapping.entries if e.evidence.get("proven")]


def _grew(old: Lock, now: Lock) -> bool:
    """Whether a comparison that was locked as failed fails by more than it did."""
    return bool(now.exit_code) and (now.error or 0.0) > _GROWTH * (old.error or 0.0)


def _notes(old: Lock, now: Lock) -> list[str]:
    """What is worth knowing, but no drift."""
    notes = [
        f"{package} was {version or 'absent'}, now {now.versions.get(package) or 'absent'}"
        for package, version in old.versions.items()
        if version != now.versions.get(package)
    ]
    for (framework, before), (_, after) in zip(models(old), models(now), strict=True):
        names = [p.name for p in before.parameters], [p.name for p in after.parameters]
        if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
            notes.append(f"the {FRAMEWORK_NAMES[framework]} parameters are listed in another order")
    proven = set(_proven(now.mapping))
    lost = [name for name in _proven(old.mapping) if name not in proven]
    if lost and proven:
        notes.append(f"{len(lost)} entry or entries are no longer proven by a run: {some(lost)}")
    if now.exit_code == 0 and old.exit_code not in (0, None):
        notes.append(f"the outputs agree now and did not when this was locked; accept it with --update: {now.verdict}")
    elif now.exit_code == 0 and (now.error or 0.0) > 10 * (old.error or 0.0) > 0:
        notes.append(f"the error went from {old.error:.2g} to {now.error:.2g} of the scale, which is still allowed")
    return notes


@dataclass(frozen=True)
class _Fate:
    """What a mapping makes of one PyTorch parameter."""

    home: tuple[str, ...]
    transform: str
    review: bool
    why: str

    def __str__(self) -> str:
        return ", ".join(self.home) or f"without a counterpart ({self.why})"


def _fates(mapping: ParameterMapping) -> dict[str, _Fate]:
    fates = {
        name: _Fate(e.mindspore, to_text(e.transform) or "none", e.review, e.why)
        for e in mapping.entries
        for name in e.torch
    }
    return fates | {u.name: _Fate((), "none", u.review, u.why) for u in mapping.unmatched_torch}


def _shape(p: Param) -> str:
    return "of unknown shape" if p.shape is None else f"{p.dtype or 'shape '}{list(p.shape)}"


# -- the file ----------------------------------------------------------------------------------------------------------


# -- small things ------------------------------------------------------------------------------------------------------


def _relative(source: str, folder: Path) -> str:
    """A source's text with its file, if it names one, relative to a folder."""
    found = _FILE.fullmatch(source)
    if not found:
        return source  # module:attr
    path, attr = (found["path"], found["attr"]) if found["path"] else (source, "")
    try:
        return Path(os.path.relpath(path, folder)).as_posix() + attr
    except ValueError:  # another drive
        return Path(path).absolute().as_posix() + attr


def _absolute(source: str, folder: Path) -> str:
    """The opposite of :func:`_relative`."""
    found = _FILE.fullmatch(source)
    if not found:
        return source
    path, attr = (found["path"], found["attr"]) if found["path"] else (source, "")
    return os.path.normpath(folder / path) + attr


@contextlib.contextmanager
def _modules_beside(folder: Path) -> Iterator[None]:
    """Modules in the lock's folder can be imported too, wherever the check runs."""
    before = list(sys.path)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"automap": __version__}
    for package in ("torch", "mindspore", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _printable(text: str) -> str:
    """Text without the control characters that XML has no way to write."""
    return "".join(c if c in "\t\n" or c >= " " else "�" for c in text)
