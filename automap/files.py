"""Files that are not what they seem, and files that appear whole or not at all."""

from __future__ import annotations

import codecs
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from automap.errors import SourceError


def head(path: str | Path) -> bytes:
    """The first 1024 bytes of a file; nothing where it cannot be read, which whoever reads it in earnest will tell."""
    try:
        with open(path, "rb") as file:
            return file.read(1024)
    except OSError:
        return b""


def nature(path: str | Path) -> str:
    """What a file that should be binary is instead, and what to do about it; ``""`` where nothing strikes the eye."""
    return nature_of(head(path))


def nature_of(start: bytes) -> str:
    """The same, of a file that begins with these bytes."""
    if not start:
        return "it is empty; get the file again"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
    if start.lstrip()[:15].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, perhaps of a failed download; get the file again"
    if start.startswith(b"PK\x03\x04"):
        return "it is a zip archive, as torch.save writes it"
    try:
        # The last character may be cut in two.
        words = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return ""
    if all(c.isprintable() or c in "\r\n\t\f" for c in words):
        return "it is a text file; check the name and the extension"
    return ""


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to; what was written there takes the place of ``path`` when the block ends without an error.

    Raises:
        SourceError: the file cannot be written (no such folder, no permission, no space).
    """
    target = Path(path)
    folder = None
    try:
        # A folder beside it: MindSpore insists on the name's extension, and a rename must not cross file systems.
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=".automap-"))
        yield folder / target.name
        # MindSpore makes its files read-only; this one is to be like any other file of the user's.
        (folder / "ordinary").touch()
        os.chmod(folder / target.name, (folder / "ordinary").stat().st_mode)
        os.replace(folder / target.name, target)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror or error}", str(path)) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
