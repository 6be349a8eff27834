"""Files on this machine and on any storage that fsspec reaches (``s3://``, ``memory://``, …), in the same words.

fsspec is imported when a path is an address, and not before.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from pathlib import Path
from typing import Any, BinaryIO, cast

from automap.errors import SourceError

#: Two letters at least: ``C:`` is a drive.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address of a storage, such as ``s3://bucket/model``."""
    return _ADDRESS.match(os.fspath(path)) is not None


def joined(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_address(folder) else os.path.join(folder, name)


def split(path: str) -> tuple[str, str]:
    """A path's folder and its last part."""
    if not is_address(path):
        folder, name = os.path.split(path)
        return folder or ".", name
    scheme, _, rest = path.rstrip("/").partition("://")
    folder, _, name = rest.rpartition("/")
    return f"{scheme}://{folder}", name


def suffix(path: str) -> str:
    """The ending of a path's last part, in small letters."""
    return Path(split(path)[1]).suffix.lower()


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    return bool(_found(path, "exists")) if is_address(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder."""
    return bool(_found(path, "isdir")) if is_address(path) else os.path.isdir(path)


def names(folder: str) -> list[str]:
    """The names in a folder, sorted; none where there is no such folder."""
    if not is_folder(folder):
        return []
    if is_address(folder):
        return sorted(split(str(f["name"]).rstrip("/"))[1] for f in _found(folder, "ls", detail=True))
    return sorted(os.listdir(folder))


def size(path: str) -> int:
    """How many bytes a file has. Raises OSError where there is none."""
    return int(_found(path, "size")) if is_address(path) else os.path.getsize(path)


def state(path: str) -> str:
    """What changes when a file does: its size, and when it was written."""
    if not is_address(path):
        found = os.stat(path)
        return f"{found.st_size} {found.st_mtime_ns}"
    info = _found(path, "info")
    keys = ("size", "ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime")
    return " ".join(str(info[key]) for key in keys if key in info)


def opened(path: str) -> BinaryIO:
    """A file to read from, from any place in it. Raises OSError where it cannot be."""
    if not is_address(path):
        return open(path, "rb")
    return cast(BinaryIO, _found(path, "open", mode="rb"))


def read(path: str) -> bytes:
    """All of a file."""
    with opened(path) as file:
        return file.read()


def read_into(path: str, start: int, buffer: Any) -> None:
    """Fill a buffer from a place in a file. Raises OSError, also where the file ends before."""
    view = memoryview(buffer).cast("B")
    if is_address(path):
        data = _found(path, "cat_file", start=start, end=start + len(view))
        if len(data) != len(view):
            raise OSError(f"it ends within the {len(view)} bytes from {start} on")
        view[:] = data
        return
    with io.FileIO(path, "rb") as file:
        file.seek(start)
        while len(view):
            n = file.readinto(view)
            if not n:
                raise OSError(f"it ends within the {len(view)} bytes from {start} on")
            view = view[n:]


def write(path: str, data: bytes) -> None:
    """Write a file, whole or not at all where the storage keeps its promises (a file on this machine: for certain)."""
    if is_address(path):
        _found(path, "pipe_file", value=data)
        return
    part = f"{path}.part"
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    settle(split(path)[0])


def upload(path: str, address: str) -> None:
    """Copy a file of this machine to an address."""
    fs, inner = filesystem(address)
    try:
        fs.put_file(path, inner)
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def make_folder(path: str) -> None:
    """Make a folder, with those above it; on most storages there is nothing to make."""
    if is_address(path):
        _found(path, "makedirs", exist_ok=True)
    else:
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Remove a file, or a folder with all in it; nothing where there is none."""
    if is_address(path):
        if exists(path):
            _found(path, "rm", recursive=True)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def move(path: str, new: str) -> None:
    """Give a file, or a folder of this machine, another name; a file there is replaced."""
    if not is_address(path):
        os.replace(path, new)
        return
    fs, inner = filesystem(path)
    try:
        fs.mv(inner, filesystem(new)[1])
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def settle(folder: str) -> None:
    """Wait until the names in a folder are on the disk."""
    if is_address(folder) or os.name == "nt":  # which cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def filesystem(path: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path in it.

    Raises:
        SourceError: fsspec is not installed, or lacks what this kind of address needs.
    """
    try:
        import fsspec
    except ImportError:
        raise SourceError(
            f"{path} is an address, and fsspec, which reads it, is not installed: pip install "
            "'torch2ms-automap[remote]'",
            path,
        ) from None
    try:
        fs, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise SourceError(f"{path} cannot be reached: {' '.join(str(error).split())}", path) from error
    return fs, str(inner)


def _found(path: str, what: str, **options: Any) -> Any:
    """One operation of a file system, its errors as OSError: storages raise many of their own."""
    fs, inner = filesystem(path)
    try:
        if what in ("cat_file", "info", "size", "ls"):
            # What another process has written meanwhile must be seen.
            fs.invalidate_cache()
        return getattr(fs, what)(inner, **options)
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
