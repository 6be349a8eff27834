"""One file of a converted checkpoint: written tensor by tensor, and read back. It can happen on any machine."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as Dict
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np

from automap import ckpt_file, places, safetensors_file, sources, zipped_file
from automap.dtypes import HELD, Array, is_packed, size_of
from automap.errors import SourceError
from automap.executing import Findings, change, finish, look
from automap.graph import Framework
from automap.layout import Frame, Layout
from automap.planning import Output, Task
from automap.stored import Sliced, Stored, pieces_of

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Bytes that are read or written, as they come.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """A file to write.

    Attributes:
        path: where it is to be, on this machine or at an address.
        parts: the folder on the same file system where it is made.
        output: what the user calls the output.
        tasks: what makes its tensors.
        framework: the framework that will read it.
        allow_nan: let tensors pass that hold NaN.
        allow_overflow: let finite values pass that are out of the range of their new type.
        frame: what else is in the file, if anything is.
    """

    path: str
    parts: str
    output: str
    tasks: tuple[Task, ...]
    framework: Framework
    allow_nan: bool = False
    allow_overflow: bool = False
    frame: Frame | None = None

    @property
    def suffix(self) -> str:
        return places.suffix(self.path)

    @property
    def outputs(self) -> Iterator[tuple[str, Output]]:
        """Its tensors by name, in order."""
        for task in self.tasks:
            for output in task.made:
                yield output.key, output
        for task in self.tasks:
            for output in task.made:
                for copy in output.copies:
                    yield copy, output

    @property
    def size(self) -> int:
        """How many bytes its tensors have."""
        return sum(nbytes(output) for _, output in self.outputs)

    def layout(self) -> Layout:
        """The file's form.

        Raises:
            ConversionError: its format cannot hold something.
        """
        if self.suffix == ".safetensors":
            tag = next(tag for tag, f in safetensors_file.FORMATS.items() if f == self.framework)
            return safetensors_file.layout(dict(self.outputs), {"format": tag})
        if self.suffix == ".ckpt":
            return ckpt_file.layout(dict(self.outputs))
        return zipped_file.layout(dict(self.outputs), self.frame)


@dataclass
class Written:
    """What became of a file.

    Attributes:
        size: how many bytes it has.
        checksums: the CRC-32 of each tensor's bytes.
        findings: what the values told.
    """

    size: int = 0
    checksums: dict[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)


class Stopped(Exception):
    """Somebody has asked for an end."""


class Workers:
    """Threads that share a limit on what they hold in memory, and that can be told to stop.

    Args:
        pool: the threads; None for the calling one alone.
        limit: how many bytes the tensors in memory may have together; one that has more is alone.
    """

    def __init__(self, pool: Executor | None = None, limit: int = 0) -> None:
        self._pool, self._limit, self._held = pool, limit, 0
        self._free = threading.Condition()
        self.stopped = threading.Event()

    def map(self, function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """The results of a function, in order. After an error nothing more is begun."""
        if self._pool is None:
            return [function(item) for item in items]
        futures = [self._pool.submit(self._unless_stopped, function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            self.stopped.set()
            for future in futures:
                future.cancel()
            for future in futures:
                with contextlib.suppress(BaseException):
                    future.result()
            raise

    def _unless_stopped(self, function: Callable[[_T], _R], item: _T) -> _R:
        self.check()
        return function(item)

    def check(self) -> None:
        """Raise Stopped when somebody has asked for an end."""
        if self.stopped.is_set():
            raise Stopped

    @contextlib.contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """While so many bytes are in memory; waits until there is room for them."""
        if not count:
            yield
            return
        with self._free:
            self._free.wait_for(lambda: not self._held or self._held + count <= self._limit)
            self._held += count
        try:
            yield
        finally:
            with self._free:
                self._held -= count
                self._free.notify_all()


def nbytes(output: Output) -> int:
    """How many bytes a tensor that is made takes."""
    return size_of(output.dtype, prod(output.shape))


def weight(task: Task) -> int:
    """How many bytes a task holds in memory at most, beside buffers of fixed size."""
    if task.is_copy and isinstance(task.given[0], Sliced) and task.given[0].is_plain:
        return 0
    given = sum(size_of(t.dtype, prod(t.shape)) for t in task.given)
    made = sum(size_of(o.changed, prod(o.shape)) for o in task.made)
    return given + made if task.chain else given


def write_file(job: Job, workers: Workers, advance: Advance, harmless: Callable[[], bool] = lambda: True) -> Written:
    """Make a file and put it in its place, whole.

    Args:
        job: the file.
        workers: what it is made with.
        advance: told how many bytes were written.
        harmless: whether nothing is wrong elsewhere; otherwise the values are looked at, but not written.

    Raises:
        SourceError: a tensor cannot be read, or the file cannot be written.
    """
    written = Written()
    lock = threading.Lock()
    remote = places.is_address(job.path)
    folder = tempfile.gettempdir() if remote else job.parts
    name = places.split(job.path)[1]
    part = os.path.join(folder, f"{uuid.uuid4().hex}-{name}")

    def sound() -> bool:
        return harmless() and not written.findings.is_fatal(job.allow_overflow)

    def run(task: Task, sink: _Sink) -> None:
        workers.check()
        findings = Findings()
        with workers.holding(weight(task)):
            checksums = _carry_out(task, job, sink, findings, workers, advance)
        with lock:
            written.findings.add(findings)
            written.checksums.update(checksums)

    try:
        sink = _Sink(part, job.layout(), sound)
        try:
            workers.map(lambda task: run(task, sink), job.tasks)
            if sound():
                sink.close(written.checksums)
        finally:
            sink.release()
        if sound():
            written.size = os.path.getsize(part)
            if remote:
                places.upload(part, job.path)
            else:
                os.replace(part, job.path)
                places.settle(os.path.dirname(job.path))
        return written
    except OSError as error:
        raise unwritable(job.output, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)


def unwritable(output: str, error: OSError) -> SourceError:
    """The error where an output cannot be written."""
    return SourceError(f"{output} cannot be written: {error.strerror or error}", output)


def _carry_out(
    task: Task, job: Job, sink: _Sink, findings: Findings, workers: Workers, advance: Advance
) -> dict[str, int]:
    """Read, change and write the tensors of a task; gives their checksums."""
    checksums: dict[str, int] = {}
    for output, parts in _parts(task, job.allow_nan, findings):
        names = (output.key, *output.copies)
        at = checksum = 0
        for data in parts:
            workers.check()
            checksum = zlib.crc32(data, checksum)
            for name in names:
                sink.write(name, at, data)
                advance(data.nbytes)
            at += data.nbytes
        checksums.update(dict.fromkeys(names, checksum))
    return checksums


def _parts(task: Task, allow_nan: bool, findings: Findings) -> Iterator[tuple[Output, Iterator[memoryview]]]:
    """For each tensor that a task makes: its bytes, a few at a time. Use each before the next comes."""
    first = task.given[0]
    if task.is_copy and isinstance(first, Sliced) and first.is_plain:
        yield task.made[0], _copied(task.names[0], first, allow_nan, findings)
        return
    given = [tensor.read() for tensor in task.given]
    if not allow_nan:
        for name, array in zip(task.names, given, strict=True):
            look(name, array, array.size, findings)
    changed = change(task, given, findings)
    del given
    for output in task.made if changed else ():
        array = changed.pop(0)
        yield output, _finished(output, array, findings)


def _copied(name: str, tensor: Sliced, allow_nan: bool, findings: Findings) -> Iterator[memoryview]:
    counted = not allow_nan and not is_packed(tensor.dtype)
    for chunk in tensor.chunks():
        if counted:
            look(name, np.frombuffer(chunk, HELD[tensor.dtype]), tensor.elements, findings)
        yield chunk


def _finished(output: Output, array: Array, findings: Findings) -> Iterator[memoryview]:
    for piece in pieces_of(array):
        yield finish(output, piece, findings).reshape(-1).view(np.uint8).data


# -- where the bytes go --------------------------------------------------------------------------------------------


class _Sink:
    """A file in the making, whose form is known: every byte has its place, whatever comes first."""

    def __init__(self, path: str, form: Layout, sound: Callable[[], bool]) -> None:
        self._form, self._sound = form, sound
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        for at, data in form.fixed:
            self._put(at, memoryview(data))

    def write(self, name: str, at: int, data: memoryview) -> None:
        """Some bytes of a tensor, from a place among its bytes on."""
        if not self._sound():
            return
        before = 0
        for start, stop in self._form.tensors[name]:
            here, end = max(at, before), min(at + len(data), before + stop - start)
            if here < end:
                self._put(start + here - before, data[here - at : end - at])
            before += stop - start

    def close(self, checksums: Dict[str, int]) -> None:
        """All tensors are written: put their checksums where the format wants them; wait until all is on the disk."""
        for name, everywhere in self._form.checksums.items():
            for at in everywhere:
                self._put(at, memoryview(checksums[name].to_bytes(4, "little")))
        if os.fstat(self._handle).st_size != self._form.size:
            raise OSError("its size is not what it should be")
        os.fsync(self._handle)
        if hasattr(os, "posix_fadvise"):
            # So that reading back is reading the disk.
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def release(self) -> None:
        os.close(self._handle)

    def _put(self, at: int, data: memoryview) -> None:
        while len(data):
            n = _pwrite(self._handle, data, at)
            at, data = at + n, data[n:]


_seek = threading.Lock()


def _pwrite(handle: int, data: memoryview, at: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, at)
    with _seek:  # Windows has no such call
        os.lseek(handle, at, os.SEEK_SET)
        return os.write(handle, data)


# -- read back -----------------------------------------------------------------------------------------------------


def read_back(job: Job, workers: Workers, advance: Advance) -> list[str]:
    """The names of the tensors that are not in the file as they should be: all others are there, bit for bit.

    The file is opened as anybody opens it, and the tensors are made once more from what they were made of.
    """
    held = _tensors_in(job.path, job.framework, job.frame)
    expected = dict(job.outputs)
    wrong = set(held.keys() ^ expected.keys())

    def compare(task: Task) -> list[str]:
        with workers.holding(weight(task)):
            return [
                name
                for output, parts in _parts(task, True, Findings())
                for name in _differing(output, parts, held, workers, advance)
            ]

    for names in workers.map(compare, job.tasks):
        wrong.update(names)
    return sorted(wrong)


def _differing(
    output: Output, parts: Iterable[memoryview], held: Dict[str, Any], workers: Workers, advance: Advance
) -> list[str]:
    names = [name for name in (output.key, *output.copies) if name in held]
    wrong = [n for n in names if (held[n].dtype, tuple(held[n].shape)) != (output.dtype, output.shape)]
    there = {name: _Reread(held[name]) for name in names if name not in wrong}
    at = 0
    for data in parts:
        workers.check()
        for name, tensor in there.items():
            if name not in wrong and not np.array_equal(
                tensor.bytes_at(at, data.nbytes), np.frombuffer(data, np.uint8)
            ):
                wrong.append(name)
            advance(data.nbytes)
        at += data.nbytes
    return wrong


class _Reread:
    """A tensor's bytes, from the file where they follow each other there, and from memory otherwise."""

    def __init__(self, tensor: Any) -> None:
        self._file = tensor if isinstance(tensor, Sliced) and tensor.is_plain else None
        self._array = None if self._file is not None else np.ascontiguousarray(tensor.read()).reshape(-1).view(np.uint8)

    def bytes_at(self, at: int, count: int) -> Array:
        if self._file is not None:
            return self._file.bytes_at(at, count)
        assert self._array is not None
        return self._array[at : at + count]


def _tensors_in(path: str, framework: Framework, frame: Frame | None) -> Dict[str, Stored]:
    """Every tensor in a file that was written. Raises SourceError where it is something else."""
    if frame is None:
        return sources.open_source(path, framework).tensors()
    try:
        return zipped_file.tensors_around(path, frame)
    except zipped_file.UnknownFormError as error:
        raise SourceError(f"{path} is not what was written: {error}", path) from error


def checksums(path: str, framework: Framework, frame: Frame | None = None) -> dict[str, int]:
    """The CRC-32 of each tensor in a file."""
    found = {}
    for name, tensor in _tensors_in(path, framework, frame).items():
        if isinstance(tensor, Sliced) and tensor.is_plain:
            chunks: Iterable[Any] = tensor.chunks()
        else:
            chunks = (piece.reshape(-1).view(np.uint8) for piece in pieces_of(tensor.read()))
        checksum = 0
        for chunk in chunks:
            checksum = zlib.crc32(chunk, checksum)
        found[name] = checksum
    return found
