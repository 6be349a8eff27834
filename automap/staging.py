"""Where an output is made before it appears under its name, and what an interrupted run leaves for the next one.

Beside the output there is a folder of its name with ``.automap-partial`` behind it: ``whole/`` has the files that are
complete, ``parts/`` those in the making, and ``journal/`` a record of each complete one, with the checksums of its
tensors. When everything is there, ``whole/`` becomes the output by a rename, and the folder goes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from automap import places, sharded
from automap.errors import AutomapError, ConversionError
from automap.executing import Findings
from automap.graph import Framework
from automap.layout import Frame
from automap.writing import Written, checksums

ENDING = ".automap-partial"


@dataclass
class Staging:
    """The folder beside an output.

    Attributes:
        output: the file or folder that is to appear.
        is_folder: whether it is a folder.
        fingerprint: what is being made, of what, in which way.
    """

    output: str
    is_folder: bool
    fingerprint: str

    def __post_init__(self) -> None:
        self.folder = self.output.rstrip("/") + ENDING
        self.whole, self.parts, self.journal = (places.joined(self.folder, n) for n in ("whole", "parts", "journal"))
        self._lock: Any = None

    def open(self, resume: bool) -> None:
        """Begin, or go on where an interrupted run has stopped.

        Raises:
            ConversionError: another run is at it, what it left is of something else, or the output folder has
                something else in it.
            OSError: the folder cannot be made.
        """
        others = [n for n in places.names(self.output) if not sharded.is_ours(n)] if self.is_folder else []
        if others:
            some = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
            raise ConversionError(
                f"{self.output} has other files in it ({some}): name a new folder, and put them there afterwards"
            )
        self._take()
        mark = places.joined(self.folder, "fingerprint")
        if resume and places.exists(mark):
            if places.read(mark).decode() != self.fingerprint:
                raise ConversionError(
                    f"{self.folder} is of another conversion (another mapping, checkpoint or option, or another "
                    "version of automap): run without --resume to begin anew"
                )
            places.remove(self.parts)
        else:
            for inner in (self.whole, self.parts, self.journal, mark):
                places.remove(inner)
        for inner in (self.whole, self.parts, self.journal):
            places.make_folder(inner)
        places.write(mark, self.fingerprint.encode())

    def path(self, name: str) -> str:
        """Where a file is until the output appears."""
        return places.joined(self.whole, name)

    def record(self, name: str, written: Written) -> None:
        """Note that a file is complete."""
        data = {"size": written.size, "checksums": written.checksums, "findings": vars(written.findings)}
        places.write(self._page(name), json.dumps(data, separators=(",", ":")).encode())

    def complete(self, name: str, framework: Framework, frame: Frame | None = None) -> Written | None:
        """What is known of a file that is complete: it is there, and every tensor has its checksum."""
        try:
            data = json.loads(places.read(self._page(name)))
            written = Written(data["size"], data["checksums"], Findings(**data["findings"]))
            if places.size(self.path(name)) != written.size:
                return None
            return written if checksums(self.path(name), framework, frame) == written.checksums else None
        except (OSError, ValueError, KeyError, TypeError, AutomapError):
            return None

    def has_complete_files(self) -> bool:
        """Whether another run could go on from here."""
        try:
            return bool(places.names(self.journal))
        except OSError:
            return False

    def commit(self, names: Iterable[str]) -> None:
        """Let the output appear. The files named last come last."""
        if places.is_address(self.output):
            self._commit_one_by_one(list(names))
        elif not self.is_folder:
            (name,) = names
            os.replace(self.path(name), self.output)
        else:
            wanted = set(names)
            for name in places.names(self.whole):
                if name not in wanted:
                    places.remove(self.path(name))
            places.settle(self.whole)
            if places.names(self.output):
                old = places.joined(self.folder, "old")
                places.remove(old)  # where a run was killed after this rename
                os.rename(self.output, old)
            os.rename(self.whole, self.output.rstrip("/"))
        places.settle(places.split(os.path.abspath(self.output.rstrip("/")))[0] if not self._is_remote else self.folder)
        self.discard()

    def _commit_one_by_one(self, names: list[str]) -> None:
        if self.is_folder:
            for old in places.names(self.output):
                if old not in names:
                    places.remove(places.joined(self.output, old))
            places.make_folder(self.output)
        for name in names:
            places.move(self.path(name), places.joined(self.output, name) if self.is_folder else self.output)

    @property
    def _is_remote(self) -> bool:
        return places.is_address(self.output)

    def _page(self, name: str) -> str:
        return places.joined(self.journal, f"{name}.json")

    def _take(self) -> None:
        places.make_folder(self.folder)
        if self._is_remote:
            return
        with contextlib.suppress(ImportError):  # where there are no such locks, nobody is kept out
            import fcntl

            self._lock = open(os.path.join(self.folder, "lock"), "w")  # noqa: SIM115 (held until the end)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                raise ConversionError(f"{self.output} is being written by another run: wait for it") from None
            except OSError:  # a file system without locks
                pass

    def release(self) -> None:
        """Let another run go on."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):
            places.remove(self.folder)
        self.release()
