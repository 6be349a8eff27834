"""The zip archives of ``torch.save``, read without PyTorch: where each tensor's bytes are in the file.

The archive holds a pickle, and one stored (not compressed) record for each storage. Opening a pickle can run anything:
here it can name nothing but the few functions that describe tensors, each of which is replaced by one of this file. Any
other name, and anything else that is not known here, is left to PyTorch and its own safe reader.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any, BinaryIO, NamedTuple

from automap import places
from automap.dtypes import HELD, size_of
from automap.stored import Sliced

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
}  # fmt: skip


class UnknownFormError(Exception):
    """A file that this reader does not understand; PyTorch may, or can say what is wrong with it."""


def read_archive(path: str) -> Any:
    """What ``torch.save`` put into a file, each tensor as a ``Sliced``.

    Raises:
        UnknownFormError: it is no such archive, is damaged, or holds something else than tensors and plain values.
        OSError: it cannot be read.
    """
    with places.opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _load(path, file, archive)
        except (zipfile.BadZipFile, pickle.UnpicklingError, struct.error) as error:
            raise UnknownFormError(str(error)) from error
        except (EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError, ImportError) as error:
            raise UnknownFormError(f"{type(error).__name__}: {error}") from error


class _Found(NamedTuple):
    """A tensor as the pickle describes it. A pickle can change most objects that it has made, but no named tuple."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    strides: tuple[int, ...] | None

    def stored(self, path: str) -> Sliced:
        return Sliced(path, self.dtype, self.shape, ((self.start, self.stop),), self.strides)


class _Storage(NamedTuple):
    """A storage's element type ("" where each tensor says its own) and its place in the file."""

    dtype: str
    start: int
    stop: int


def _load(path: str, file: BinaryIO, archive: zipfile.ZipFile) -> Any:
    records = {info.filename: info for info in archive.infolist()}
    pickled = [name for name in records if name.rpartition("/")[2] == "data.pkl"]
    if len(pickled) != 1 or any(name.rpartition("/")[2] == "constants.pkl" for name in records):
        raise UnknownFormError("it is no archive of one state dict")
    folder = pickled[0][: -len("data.pkl")]
    order = records.get(folder + "byteorder")
    if order is not None and archive.read(order) != b"little":
        raise UnknownFormError("its bytes have another order")

    starts = [*sorted(info.header_offset for info in records.values()), archive.start_dir]
    ends = dict(itertools.pairwise(starts))

    def storage(key: Any) -> _Storage:
        kind, dtype, name, _, count = key
        record = records[f"{folder}data/{name}"]
        if kind != "storage" or not isinstance(dtype, _Dtype) or record.compress_type != zipfile.ZIP_STORED:
            raise UnknownFormError("a storage of another kind")
        file.seek(record.header_offset)
        header = file.read(30)
        lengths = struct.unpack("<HH", header[26:30])
        start = record.header_offset + 30 + sum(lengths)
        size = size_of(dtype.name, count) if dtype.name else count
        if (
            header[:4] != b"PK\x03\x04"
            or size > record.file_size
            or start + record.file_size > ends[record.header_offset]
        ):
            raise UnknownFormError("a storage that is not whole")
        return _Storage(dtype.name, start, start + size)

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return _known(module, name)

        def persistent_load(self, key: Any) -> Any:
            return storage(key)

    return _with_places(Reader(io.BytesIO(archive.read(pickled[0]))).load(), path)


def _with_places(value: Any, path: str) -> Any:
    """The same dicts, with the tensors in them as ``Sliced``."""
    if isinstance(value, _Found):
        return value.stored(path)
    seen: set[int] = set()
    dicts = [value]
    while dicts:
        here = dicts.pop()
        if not isinstance(here, dict) or id(here) in seen:
            continue
        seen.add(id(here))
        for key, inner in here.items():
            if isinstance(inner, _Found):
                here[key] = inner.stored(path)
        dicts += here.values()
    return value


class _Dtype(NamedTuple):
    name: str


def _known(module: str, name: str) -> Any:
    if (module, name) == ("collections", "OrderedDict"):
        return OrderedDict
    if (module, name) == ("torch", "Size"):
        return tuple
    if module in ("torch", "torch.storage") and name in _STORAGES:
        return _Dtype(_STORAGES[name])
    if module == "torch" and name in HELD:
        return _Dtype(name)
    if module == "torch._utils":
        if name == "_rebuild_tensor_v2":
            return lambda storage, offset, shape, strides, *_: _found(storage, offset, shape, strides)
        if name == "_rebuild_tensor_v3":
            return lambda storage, offset, shape, strides, _grad, _hooks, dtype, metadata=None: _found(
                storage._replace(dtype=dtype.name), offset, shape, strides, metadata
            )
        if name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
    raise UnknownFormError(f"{module}.{name}")


def _found(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], metadata: Any = None
) -> _Found:
    """A tensor's place. Raises UnknownFormError where it leaves its storage."""
    whole = [n for n in (offset, *shape, *strides) if type(n) is not int or n < 0]
    if (
        not isinstance(storage, _Storage)
        or whole
        or len(shape) != len(strides)
        or storage.dtype not in HELD
        or metadata
    ):
        raise UnknownFormError("a tensor of another kind")
    empty = not math.prod(shape)
    last = -1 if empty else sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    start = storage.start + size_of(storage.dtype, offset)
    stop = start + size_of(storage.dtype, last + 1)
    if stop > storage.stop:
        raise UnknownFormError("a tensor leaves its storage")
    plain = empty or all(
        n == 1 or step == math.prod(shape[axis + 1 :])
        for axis, (n, step) in enumerate(zip(shape, strides, strict=True))
    )
    return _Found(storage.dtype, tuple(shape), start, stop, None if plain else tuple(strides))
