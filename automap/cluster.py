"""The files of a conversion as tasks on a Dask cluster: each worker reads what a file needs, and writes it.

``distributed`` is imported here and nowhere else, and only when a scheduler is named. What the workers write must be
where this machine finds it: on a file system that all share, or at an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from automap import places
from automap.errors import AutomapError, ConversionError, SourceError
from automap.staging import Staging
from automap.stored import travels
from automap.streaming import Engine
from automap.writing import Job, Workers, Written, read_back, write_file

#: How often a file is tried again when its worker dies or cannot reach the storage.
_RETRIES = 3


@contextmanager
def connected(scheduler: str, staging: Staging) -> Iterator[Engine]:
    """The workers of a cluster as what writes the files.

    Args:
        scheduler: the address of the scheduler, such as ``tcp://host:8786``.
        staging: where the files are made.

    Raises:
        SourceError: ``distributed`` is not installed, or there is no scheduler.
    """
    try:
        from distributed import Client
    except ImportError:
        raise SourceError(
            f"{scheduler} is a cluster of Dask, which is not installed: pip install 'torch2ms-automap[dask]'", scheduler
        ) from None
    try:
        client = Client(scheduler, set_as_default=False, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise SourceError(f"no scheduler answers at {scheduler}: start one with `dask scheduler`", scheduler) from error
    try:
        yield _Cluster(client, staging)
    finally:
        client.close()


class _Cluster(Engine):
    def __init__(self, client: Any, staging: Staging) -> None:
        self._client, self._staging = client, staging

    def write(self, jobs: Sequence[Job], counter: Callable[[int], None]) -> dict[str, Written]:
        memory = [name for job in jobs for task in job.tasks for name in _in_memory(task.names, task.given)]
        if memory:
            raise ConversionError(
                f"{jobs[0].output}: {len(memory)} tensor(s) can be read by their framework alone, and not by the "
                f"workers of a cluster: {', '.join(memory[:3])}: convert without --scheduler"
            )
        # The record is written by the worker: a file that another one has finished is not made again.
        staging = Staging(self._staging.output, self._staging.is_folder, self._staging.fingerprint)
        done = self._run(_write, [(job, staging) for job in jobs], jobs, counter)
        lost = [job.path for job in jobs if _sound(done[_name(job)], job) and not places.exists(job.path)]
        if lost:
            raise SourceError(
                f"{self._staging.output} cannot be written: the workers' files are not seen on this machine: name a "
                "folder that all machines share, or an address",
                self._staging.output,
            )
        return done

    def read_back(self, jobs: Sequence[Job], counter: Callable[[int], None]) -> list[str]:
        found = self._run(_read_back, [(job, None) for job in jobs], jobs, counter)
        return [name for names in found.values() for name in names]

    def _run(
        self, function: Callable[..., Any], items: Sequence[Any], jobs: Sequence[Job], counter: Callable[[int], None]
    ) -> dict[str, Any]:
        from distributed import as_completed

        if not jobs:
            return {}
        futures = self._client.map(function, items, pure=False, retries=_RETRIES)
        homes = dict(zip(futures, jobs, strict=True))
        done = {}
        try:
            for future in as_completed(futures, loop=self._client.loop):
                outcome = future.result()
                if isinstance(outcome, AutomapError):
                    raise outcome
                done[_name(homes[future])] = outcome
                counter(homes[future].size)
        except AutomapError:
            raise
        except Exception as error:
            raise SourceError(
                f"{self._staging.output} cannot be written: a worker of the cluster failed {_RETRIES + 1} times "
                f"({type(error).__name__}: {' '.join(str(error).split())})",
                self._staging.output,
            ) from error
        finally:
            self._client.cancel(list(futures))
        return done


def _write(item: tuple[Job, Staging]) -> Written | AutomapError:
    """Runs on a worker."""
    job, staging = item
    if (written := staging.complete(_name(job), job.framework, job.frame)) is not None:
        return written
    try:
        written = write_file(job, Workers(), _nobody)
        if _sound(written, job):
            staging.record(_name(job), written)
        return written
    except ConversionError as error:
        return error


def _read_back(item: tuple[Job, None]) -> list[str]:
    """Runs on a worker."""
    return read_back(item[0], Workers(), _nobody)


def _sound(written: Written, job: Job) -> bool:
    return not written.findings.is_fatal(job.allow_overflow)


def _name(job: Job) -> str:
    return places.split(job.path)[1]


def _in_memory(names: Sequence[str], given: Sequence[Any]) -> list[str]:
    return [name for name, tensor in zip(names, given, strict=True) if not travels(tensor)]


def _nobody(_: int) -> None:
    """Nobody watches a worker."""
