"""A plan carried out from file to file: into files of a chosen size, each of them whole or not there.

What happens, in this order: everything is checked that names, shapes and types tell; the files are laid out, and the
free space is looked at; each file is made in a folder beside the output (``staging``) by threads of this machine or by
the workers of a cluster; every file is read back and compared; the output appears.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import automap
from automap import places, sharded, sources
from automap.conversion_report import ConvertReport
from automap.errors import ConversionError, SourceError
from automap.executing import Findings, look_at_leftovers
from automap.graph import Framework
from automap.planning import Plan, Task
from automap.staging import Staging
from automap.stored import identity, origins
from automap.writing import Job, Stopped, Workers, Written, nbytes, read_back, unwritable, weight, write_file

#: Told what is being done, and how many bytes of how many.
Progress = Callable[[str, int, int], None]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?\s*")

#: Tensors in memory may have this many bytes together, whatever the greatest one has.
_ROOM = 64 * 1024 * 1024


@dataclass(frozen=True)
class Options:
    """How files are written.

    Attributes:
        shard_size: of how many bytes a file's tensors are at most, or None: as the checkpoint is sharded.
        suffix: ``.safetensors`` or ``.ckpt``, for the files in a folder.
        resume: go on where an interrupted run has stopped.
        verify: read every tensor back and compare it.
        scheduler: the address of a Dask cluster's scheduler, or None: threads here.
        threads: how many threads.
        progress: told how far it is.
    """

    shard_size: int | None = None
    suffix: str = ".safetensors"
    resume: bool = False
    verify: bool = True
    scheduler: str | None = None
    threads: int = 2
    progress: Progress | None = None


def parse_size(text: str | int) -> int:
    """A number of bytes, given as one or as ``4GB`` (powers of 1000) or ``4GiB`` (of 1024).

    Raises:
        ConversionError: it is none.
    """
    match = _SIZE.fullmatch(str(text))
    base = 1024 if match is not None and match[3] else 1000
    size = 0 if match is None else int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))
    if size < 1:
        raise ConversionError(f"{text!r} is no size: write it as 4GB, 500MB or 4GiB")
    return size


def is_folder(output: str) -> bool:
    """Whether an output is a folder: by its name, which has no ending of a file, or because there is one."""
    if output.endswith(("/", os.sep)) or (not places.is_address(output) and os.path.isdir(output)):
        return True
    return re.fullmatch(r"\.[A-Za-z]\w{0,11}", Path(places.split(output)[1]).suffix) is None


def checked_name(output: str, suffix: str, framework: Framework) -> None:
    """Raise a SourceError where an output cannot be what it is called, or not there."""
    if is_folder(output):
        sources.check_suffix(output, suffix, framework)
    else:
        sources.check_suffix(output, places.suffix(output), framework)
    folder = places.split(output.rstrip("/"))[0]
    if not places.is_address(output) and not os.path.isdir(folder):
        raise SourceError(f"{output} cannot be written: there is no folder {folder}", output)


def write(plan: Plan, checkpoint: str, output: str, needs_review: bool, options: Options) -> ConvertReport:
    """Carry out a plan.

    Args:
        plan: the plan.
        checkpoint: the path of what it converts.
        output: the file or folder to write.
        needs_review: whether the mapping has something that a person has to look at.
        options: how.

    Raises:
        ConversionError: something stands in the way, every offender is named; or what was written is not what should
            have been. There is no output then.
        SourceError: a tensor cannot be read, or the output not be written.
    """
    plan.faults.check()
    folder = is_folder(output)
    groups = _shards(plan, folder, options)
    if folder:
        names = sharded.file_names(len(groups), options.suffix)
    else:
        names = [places.split(output)[1]]
    staging = Staging(output, folder, "")
    jobs = [
        Job(
            staging.path(name),
            staging.parts,
            output,
            group,
            plan.framework,
            plan.allow_nan,
            plan.allow_overflow,
            plan.frame,
        )
        for name, group in zip(names, groups, strict=True)
    ]
    sizes = {job.path: job.layout().size for job in jobs}
    staging.fingerprint = _fingerprint(plan, jobs, checkpoint)
    findings = Findings()
    look_at_leftovers(plan, findings)
    if findings.is_fatal(plan.allow_overflow):
        findings.note(plan)
        plan.faults.check()
    try:
        staging.open(options.resume)
    except OSError as error:
        if not (options.resume and staging.has_complete_files()):
            staging.discard()
        staging.release()
        raise unwritable(output, error) from error
    except ConversionError:
        staging.release()
        raise
    try:
        return _write(plan, jobs, sizes, staging, needs_review, options)
    except SourceError as error:
        # What cannot be read now can perhaps be read later; where nothing can be written, room has to be made.
        kept = staging.has_complete_files() and "cannot be read" in str(error)
        if not kept:
            staging.discard()
            raise
        raise SourceError(f"{error}; what is complete is kept: --resume goes on from there", error.path) from error
    except OSError as error:
        staging.discard()
        raise unwritable(output, error) from error
    except Exception:
        staging.discard()
        raise
    finally:
        staging.release()


def _write(
    plan: Plan, jobs: list[Job], sizes: dict[str, int], staging: Staging, needs_review: bool, options: Options
) -> ConvertReport:
    names = [places.split(job.path)[1] for job in jobs]
    done: dict[str, Written] = {}
    if options.resume:
        for job, name in zip(jobs, names, strict=True):
            if (written := staging.complete(name, job.framework, job.frame)) is not None:
                done[name] = written
    resumed = len(done)
    missing = [job for job, name in zip(jobs, names, strict=True) if name not in done]
    _check_room(staging.output, [sizes[job.path] for job in missing])
    heaviest = max((weight(task) for task in plan.tasks), default=0)
    engine = _engine(staging, options, max(heaviest, _ROOM))
    with engine as run:
        total = sum(job.size for job in missing)
        done |= run.write(missing, _Counter(options.progress, "writing", total))
        findings = Findings()
        for written in done.values():
            findings.add(written.findings)
        findings.note(plan)
        plan.faults.check()
        verified = 0
        if options.verify:
            wrong = run.read_back(jobs, _Counter(options.progress, "reading back", sum(job.size for job in jobs)))
            if wrong:
                raise ConversionError(
                    f"{staging.output}: {len(wrong)} tensor(s) read back are not what was written: "
                    f"{', '.join(sorted(wrong))}: check the disk, or choose another format (.safetensors)",
                    [f"{name}: not what was written" for name in sorted(wrong)],
                )
            verified = sum(1 for job in jobs for _ in job.outputs)
    homes = {key: name for job, name in zip(jobs, names, strict=True) for key, _ in job.outputs}
    total = sum(job.size for job in jobs)
    indices = sharded.indices(homes, total, jobs[0].suffix, plan.framework) if staging.is_folder else {}
    for name, data in indices.items():
        places.write(staging.path(name), data)
    staging.commit([*names, *indices])
    size = sum(written.size for written in done.values())
    return ConvertReport(staging.output, len(homes), size, needs_review, plan.report, verified, tuple(names), resumed)


# -- what goes into which file -----------------------------------------------------------------------------------------


def _shards(plan: Plan, folder: bool, options: Options) -> list[tuple[Task, ...]]:
    """The tasks by the files that they fill. An entry's tensors stay together."""
    if not folder:
        if options.shard_size is not None:
            raise ConversionError("shards go into a folder: name one as the output, without an ending (out/)")
        return [plan.tasks]
    groups: list[list[Task]] = []
    if options.shard_size is None:
        homes: dict[str, list[Task]] = {}
        for task in plan.tasks:
            found = origins(task.given[0])
            homes.setdefault(found[0].file if found else "", []).append(task)
        groups = list(homes.values())
    else:
        size = 0
        for task in plan.tasks:
            more = sum(nbytes(output) * (1 + len(output.copies)) for output in task.made)
            if not groups or size + more > options.shard_size:
                groups.append([])
                size = 0
            groups[-1].append(task)
            size += more
    return [tuple(group) for group in groups]


def _fingerprint(plan: Plan, jobs: Sequence[Job], checkpoint: str) -> str:
    """What is made, of what, in which way: equal for runs that write the same bytes."""
    digest = hashlib.sha256(
        f"{automap.__version__} {plan.framework} {plan.allow_nan} {plan.allow_overflow} {plan.max_lost}".encode()
    )
    if plan.frame is not None:
        digest.update(repr(plan.frame).encode())
    files: dict[str, None] = {}
    if places.exists(checkpoint):
        files[checkpoint] = None
    else:  # a live model, whose weights nothing tells: no other run has the same
        digest.update(os.urandom(16))
    for job in jobs:
        digest.update(f"\n{places.split(job.path)[1]}".encode())
        for task in job.tasks:
            given = [identity(tensor) for tensor in task.given]
            files |= {t.file: None for tensor in task.given for t in origins(tensor) or ()}
            made = [(o.key, o.shape, o.changed, o.dtype, o.copies) for o in task.made]
            digest.update(f"\n{task.names} {given} {[str(t) for t in task.chain]} {made}".encode("utf-8", "replace"))
    for file in files:
        try:
            digest.update(f"\n{'' if places.is_folder(file) else places.state(file)}".encode())
        except OSError as error:
            raise SourceError(f"{file} cannot be read: {error.strerror or error}", file) from error
    return "sha256:" + digest.hexdigest()


def _check_room(output: str, sizes: Sequence[int]) -> None:
    """Raise a SourceError where files of these sizes cannot find room."""
    where, needed = places.split(os.path.abspath(output.rstrip("/")))[0], sum(sizes)
    if places.is_address(output):
        where, needed = tempfile.gettempdir(), max(sizes, default=0)
    free = shutil.disk_usage(where).free
    if needed > free:
        raise SourceError(
            f"{output} cannot be written: it needs {needed:,} bytes, and {where} has {free:,} free: make room, or "
            "name another place",
            output,
        )


# -- who does it -------------------------------------------------------------------------------------------------------


class _Counter:
    """Adds up bytes, from whatever thread they are told, and passes them on."""

    def __init__(self, progress: Progress | None, what: str, total: int) -> None:
        self._progress, self._what, self._total = progress, what, total
        self._done = 0
        self._lock = threading.Lock()
        self(0)

    def __call__(self, count: int) -> None:
        if self._progress is None:
            return
        with self._lock:
            self._done += count
            self._progress(self._what, self._done, self._total)


class Engine:
    """What writes and reads back files: here or elsewhere."""

    def write(self, jobs: Sequence[Job], counter: Callable[[int], None]) -> dict[str, Written]:
        """Make the files, and record each that is complete; gives what became of them by name."""
        raise NotImplementedError

    def read_back(self, jobs: Sequence[Job], counter: Callable[[int], None]) -> list[str]:
        """The names of the tensors that are not as they should be."""
        raise NotImplementedError


class _Here(Engine):
    """The threads of this process: some take files, which wait for the disk, and some take tensors."""

    def __init__(self, staging: Staging, tensors: ThreadPoolExecutor, files: ThreadPoolExecutor, limit: int) -> None:
        self._staging, self._files = staging, files
        self._workers = Workers(tensors, limit)
        self._harmless = True

    def write(self, jobs: Sequence[Job], counter: Callable[[int], None]) -> dict[str, Written]:
        def one(job: Job) -> Written:
            written = write_file(job, self._workers, counter, lambda: self._harmless)
            if written.findings.is_fatal(job.allow_overflow):
                self._harmless = False
            elif self._harmless:
                self._staging.record(places.split(job.path)[1], written)
            return written

        return dict(zip((places.split(job.path)[1] for job in jobs), self._map(one, jobs), strict=True))

    def read_back(self, jobs: Sequence[Job], counter: Callable[[int], None]) -> list[str]:
        found = self._map(lambda job: read_back(job, self._workers, counter), jobs)
        return [name for names in found for name in names]

    def _map(self, function: Callable[[Job], object], jobs: Sequence[Job]) -> list:  # type: ignore[type-arg]
        futures = [self._files.submit(function, job) for job in jobs]
        try:
            for future in futures:
                future.result()
            return [future.result() for future in futures]
        except BaseException as error:
            self._workers.stopped.set()
            for future in futures:
                future.cancel()
            self._files.shutdown(wait=True)
            # The one that failed first is the reason, and not those that were told to stop.
            causes = [e for f in futures if not f.cancelled() and (e := f.exception()) and not isinstance(e, Stopped)]
            raise (causes[0] if isinstance(error, Stopped) and causes else error) from None


@contextmanager
def _engine(staging: Staging, options: Options, limit: int) -> Iterator[Engine]:
    if options.scheduler is not None:
        from automap.cluster import connected

        with connected(options.scheduler, staging) as engine:
            yield engine
        return
    with ThreadPoolExecutor(options.threads) as tensors, ThreadPoolExecutor(2) as files:
        yield _Here(staging, tensors, files, limit)
