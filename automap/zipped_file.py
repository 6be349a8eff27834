"""The zip archives of ``torch.save``, read and laid out without PyTorch: where each tensor's bytes are in the file.

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
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from automap import places
from automap.dtypes import HELD, size_of
from automap.errors import ConversionError
from automap.layout import Described, Frame, Layout, Named
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
    left = [value]
    while left:
        here = left.pop()
        if isinstance(here, tuple) and any(isinstance(inner, _Found) for inner in here):
            raise UnknownFormError("a tuple of tensors")
        if not isinstance(here, dict | list) or id(here) in seen:
            continue
        seen.add(id(here))
        for key, inner in here.items() if isinstance(here, dict) else enumerate(here):
            if isinstance(inner, _Found):
                here[key] = inner.stored(path)
        left += here.values() if isinstance(here, dict) else here
    return value


def tensors_around(path: str, frame: Frame) -> dict[str, Sliced]:
    """The tensors in a file with a frame, by name.

    Raises:
        UnknownFormError: there is something else in it.
        OSError: it cannot be read.
    """
    loaded = read_archive(path)
    found: dict[str, Sliced] = {}

    def look(value: Any, expected: Any) -> bool:
        if isinstance(expected, Named):
            found[expected.name] = value
            return isinstance(value, Sliced)
        if isinstance(expected, Mapping):
            return (
                isinstance(value, dict)
                and list(value) == list(expected)
                and all(look(value[key], inner) for key, inner in expected.items())
            )
        if isinstance(expected, list | tuple):
            alike = type(value) is type(expected) and len(value) == len(expected)
            return alike and all(map(look, value, expected))
        return type(value) is type(expected) and bool(value == expected)

    rest = loaded.pop(frame.under, None) if isinstance(loaded, dict) else None
    if not isinstance(rest, dict) or not look(loaded, frame.beside):
        raise UnknownFormError("what is beside the tensors is something else")
    return {**rest, **found}


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


# -- laid out ----------------------------------------------------------------------------------------------------------

#: What a storage is called by the type of its elements; PyTorch has no such name for newer types.
_STORAGE_OF = {dtype: name for name, dtype in _STORAGES.items() if dtype}

#: Where the bytes of each record begin is a multiple of this many bytes, as PyTorch has it.
_ALIGNMENT = 64
_FOLDER = "archive/"
#: From here on, a size, a place or a number of records does not fit into the older fields of the format.
_LONG, _MANY = 0xFFFFFFFF, 0xFFFF


def layout(tensors: Mapping[str, Described], frame: Frame | None = None) -> Layout:
    """The form of a file: a dict of tensors by name, each in a storage of its own, as ``torch.save`` writes it.

    Args:
        tensors: by name, in order.
        frame: what else is in the file, if anything is.

    Raises:
        ConversionError: an element type that PyTorch cannot hold, or that has several elements in a byte.
    """
    odd = [f"{name}: {t.dtype}" for name, t in tensors.items() if t.dtype not in HELD]
    if odd:
        raise ConversionError(f"a file of torch.save cannot hold these element types here: {'; '.join(odd)}", odd)
    archive = _Archive()
    archive.add("data.pkl", _pickled(tensors, frame))
    archive.add("byteorder", b"little")
    for i, (name, t) in enumerate(tensors.items()):
        archive.add_tensor(f"data/{i}", name, size_of(t.dtype, math.prod(t.shape)))
    archive.add("version", b"3\n")
    return archive.finished()


class _Archive:
    """A zip archive in the making: the places of its records, and the bytes between them."""

    def __init__(self) -> None:
        self._at = 0
        self._fixed: list[tuple[int, bytes]] = []
        self._tensors: dict[str, tuple[tuple[int, int], ...]] = {}
        # For each record: its header's place, name, size and checksum; and whose checksum is known only later.
        self._records: list[tuple[int, bytes, int, int, str | None]] = []
        self._checksums: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, data: bytes) -> None:
        self._fixed.append((self._begin(name, len(data), zlib.crc32(data), None), data))

    def add_tensor(self, name: str, tensor: str, size: int) -> None:
        start = self._begin(name, size, 0, tensor)
        self._tensors[tensor] = ((start, start + size),)

    def _begin(self, name: str, size: int, checksum: int, tensor: str | None) -> int:
        """Write a record's header; gives where its bytes begin."""
        called = (_FOLDER + name).encode()
        wide = _extra(0x0001, struct.pack("<QQ", size, size)) if size >= _LONG else b""
        behind = self._at + 30 + len(called) + len(wide) + 4
        padding = _extra(0x4246, b"Z" * (-behind % _ALIGNMENT))
        short = min(size, _LONG)
        head = struct.pack(
            "<4sHHHIIIIHH", b"PK\3\4", 45 if wide else 20, 0, 0, 0, checksum, short, short, len(called),
            len(wide) + len(padding),
        )  # fmt: skip
        data = head + called + wide + padding
        self._fixed.append((self._at, data))
        self._records.append((self._at, called, size, checksum, tensor))
        start = self._at + len(data)
        self._at = start + size
        return start

    def finished(self) -> Layout:
        """The form, with the directory behind the records."""
        first, directory = self._at, bytearray()
        for at, name, size, checksum, tensor in self._records:
            wide = struct.pack("<QQ", size, size) if size >= _LONG else b""
            wide += struct.pack("<Q", at) if at >= _LONG else b""
            extra = _extra(0x0001, wide) if wide else b""
            if tensor is not None:
                self._checksums[tensor] = (at + 14, first + len(directory) + 16)
            short = min(size, _LONG)
            directory += struct.pack(
                "<4sHHHHIIIIHHHHHII", b"PK\1\2", 0, 45 if extra else 20, 0, 0, 0, checksum, short, short, len(name),
                len(extra), 0, 0, 0, 0, min(at, _LONG),
            )  # fmt: skip
            directory += name + extra
        size, count = len(directory), len(self._records)
        if max(first, size) >= _LONG or count >= _MANY:
            directory += struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, first)
            directory += struct.pack("<4sIQI", b"PK\6\7", 0, first + size, 1)
        short = min(count, _MANY)
        directory += struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, short, short, min(size, _LONG), min(first, _LONG), 0)
        fixed = (*self._fixed, (first, bytes(directory)))
        return Layout(first + len(directory), fixed, self._tensors, self._checksums)


def _extra(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


def _pickled(tensors: Mapping[str, Described], frame: Frame | None) -> bytes:
    """The pickle of a dict of tensors, in the few words of pickle's protocol 2 that PyTorch's safe reader knows."""
    memo: dict[str, int] = {}
    numbers = {name: i for i, name in enumerate(tensors)}

    def named(module: str, name: str) -> bytes:
        key = f"{module} {name}"
        if key in memo:
            return pickle.BINGET + bytes([memo[key]])
        memo[key] = len(memo)  # there are fewer than 256 such names
        return pickle.GLOBAL + f"{module}\n{name}\n".encode() + pickle.BINPUT + bytes([memo[key]])

    def tensor(name: str) -> bytes:
        t = tensors[name]
        elements = math.prod(t.shape)
        kind = _STORAGE_OF.get(t.dtype)
        strides = [math.prod(max(n, 1) for n in t.shape[axis + 1 :]) for axis in range(len(t.shape))]
        out = named("torch._utils", "_rebuild_tensor_v2" if kind else "_rebuild_tensor_v3") + pickle.MARK
        out += pickle.MARK + _text("storage")
        out += named("torch", kind) if kind else named("torch.storage", "UntypedStorage")
        out += _text(str(numbers[name])) + _text("cpu")
        out += _whole(elements if kind else size_of(t.dtype, elements)) + pickle.TUPLE
        out += pickle.BINPERSID + _whole(0) + _tuple(t.shape) + _tuple(strides) + pickle.NEWFALSE
        out += named("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
        out += b"" if kind else named("torch", t.dtype)
        return out + pickle.TUPLE + pickle.REDUCE

    def value(of: Any) -> bytes:
        if isinstance(of, Named):
            return tensor(of.name)
        if isinstance(of, Mapping):
            return pickle.EMPTY_DICT + b"".join(value(k) + value(v) + pickle.SETITEM for k, v in of.items())
        if isinstance(of, list):
            return pickle.EMPTY_LIST + b"".join(value(v) + pickle.APPEND for v in of)
        if isinstance(of, tuple):
            return pickle.MARK + b"".join(map(value, of)) + pickle.TUPLE
        if of is None or isinstance(of, bool):
            return pickle.NONE if of is None else pickle.NEWTRUE if of else pickle.NEWFALSE
        if isinstance(of, float):
            return pickle.BINFLOAT + struct.pack(">d", of)
        return _text(of) if isinstance(of, str) else _whole(of)

    apart = frame.named if frame is not None else set()
    rest = {name: Named(name) for name in tensors if name not in apart}
    whole = rest if frame is None else {frame.under: rest, **frame.beside}
    return pickle.PROTO + b"\2" + value(whole) + pickle.STOP


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _whole(n: int) -> bytes:
    if n < 1 << 31:
        return pickle.BININT + struct.pack("<i", n)
    data = pickle.encode_long(n)
    return pickle.LONG1 + bytes([len(data)]) + data


def _tuple(numbers: Sequence[int]) -> bytes:
    return pickle.MARK + b"".join(map(_whole, numbers)) + pickle.TUPLE
