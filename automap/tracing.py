"""Traces: what each module of a network saw and gave in one run, as fingerprints, with no tensor kept."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from automap.dtypes import Array
from automap.running import Module
from automap.seeding import generator

#: Elements of one product of vectors or matrices: so few that OpenBLAS starts no threads for it, which would wait for
#: those of the frameworks longer than they compute.
_CHUNK = 1 << 13
#: Elements that are read several times while they are in the cache.
_CACHED = 1 << 17
#: How far the projections of two axes may be apart, relative to their spread, that are in the same order.
_SAME_ORDER = 0.1
#: An axis whose slices hardly differ, relative to the scale of the elements, has no order to be told.
_EVEN = 1e-4


@dataclass(frozen=True)
class Fingerprint:
    """Statistics of a tensor's values that do not depend on their order: another layout has the same ones.

    Attributes:
        size: how many elements there are.
        stats: mean, mean absolute value, root mean square, mean cube, least and greatest value; of finite elements.
        whole: whether these are whole numbers or truth values.
        axes: for each axis its length, the means of its slices projected on a random vector, and the spread of these
            means: another layout has the same ones, another order of channels or positions has not.
    """

    size: int
    stats: tuple[float, float, float, float, float, float]
    whole: bool = False
    axes: tuple[tuple[int, float, float], ...] = field(default=(), compare=False)

    @property
    def flat(self) -> bool:
        """Whether it says nothing: no element, or the same value throughout."""
        return self.size < 2 or self.stats[4] == self.stats[5]


def fingerprint(array: Array) -> Fingerprint:
    """The fingerprint of an array of numbers of any shape; complex numbers count as pairs."""
    whole = array.dtype.kind in "iub"
    if array.dtype.kind == "c":
        array = np.stack((array.real, array.imag), axis=-1)
    # The order of elements is of no consequence, so the one in memory will do.
    flat = array.ravel(order="K")
    size = flat.size
    sums, low, high = _plain_sums(flat, whole) or _finite_sums(flat, whole)
    if low > high:  # nothing in it
        return Fingerprint(size, (0.0,) * 6, whole)
    mean, absolute, square_mean, cube = (s / size for s in sums)
    axes = () if whole else tuple(_axes(array))
    return Fingerprint(size, (mean, absolute, math.sqrt(square_mean), cube, low, high), whole, axes)


def _kind(flat: Array, whole: bool) -> np.dtype[Any]:
    return np.dtype(np.float64) if whole else np.result_type(flat.dtype, np.float32)


#: The sums of some elements, of their absolute values, their squares and their cubes; the least and the greatest.
_Sums = tuple[tuple[float, float, float, float], float, float]


def _plain_sums(flat: Array, whole: bool) -> _Sums | None:
    """The sums of all elements, or None if they are not finite: the short way, for it is taken for every tensor."""
    kind = _kind(flat, whole)
    total, room = np.zeros(4), _room(kind.char)
    low, high = math.inf, -math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, _CACHED):
            x = flat[start : start + _CACHED].astype(kind, copy=False)
            low, high = min(low, float(x.min())), max(high, float(x.max()))
            full = x.size // _CHUNK * _CHUNK
            for part in (x[:full].reshape(-1, _CHUNK), x[full:].reshape(1, -1)):
                if part.size:
                    other = room[: part.size].reshape(part.shape)
                    ones = _ones(part.shape[1], kind.char)
                    total[0] += _products(part, ones)
                    total[1] += _products(np.abs(part, out=other), ones)
                    total[2] += _products(part, part)
                    total[3] += _products(np.multiply(part, part, out=other), part)
    if not flat.size or not np.isfinite(total).all():
        return None
    first, second, third, fourth = total.tolist()
    return (first, second, third, fourth), low, high


def _products(a: Array, b: Array) -> float:
    """The sum of the products of elements, row by row: products of vectors are many times as fast as sums are."""
    return float(np.matmul(a[:, None, :], b[..., None]).sum(dtype=np.float64))


def _finite_sums(flat: Array, whole: bool) -> _Sums:
    """The same of the finite elements: those of masks are infinite, or as large as their type allows."""
    total, low, high = np.zeros(4), math.inf, -math.inf
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        x = part[np.isfinite(part)].astype(np.float64)
        if x.size:
            with np.errstate(over="ignore", invalid="ignore"):
                total += x.sum(), np.abs(x).sum(), (x**2).sum(), (x**3).sum()
            low, high = min(low, float(x.min())), max(high, float(x.max()))
    return (*map(float, total),), low, high  # type: ignore[return-value]


def _axes(array: Array) -> Iterator[tuple[int, float, float]]:
    """The axes longer than one: what :attr:`Fingerprint.axes` holds."""
    rest = np.asarray(array, dtype=np.result_type(array.dtype, np.float32))
    # In the order in memory, too: then nothing has to be copied.
    rest = rest.transpose(sorted(range(rest.ndim), key=lambda axis: -abs(rest.strides[axis])))
    while rest.ndim:
        n = rest.shape[-1]
        rows = rest.reshape(-1, n)
        with np.errstate(over="ignore", invalid="ignore"):
            columns, sums = _sums_of(rows)
            if n > 1:
                means = columns / (array.size / n)
                means -= means.mean()
                found = n, float(means @ _projection(n)), float(np.linalg.norm(means))
                if math.isfinite(found[1]) and math.isfinite(found[2]):
                    yield found
            rest = sums.reshape(rest.shape[:-1])


def _sums_of(rows: Array) -> tuple[Array, Array]:
    """The sums of columns and of rows, of a few rows at a time, so that little is lost to rounding."""
    count, n = rows.shape
    char = rows.dtype.char
    few = max(1, min(count, _CHUNK // n))
    full = count // few * few
    columns = np.matmul(_ones(few, char), rows[:full].reshape(-1, few, n)).sum(0, dtype=np.float64)
    if full < count:
        columns += _ones(count - full, char) @ rows[full:]
    return columns, np.matmul(rows[:, None, :], _ones(n, char)[:, None])[:, 0, 0]


_rooms = threading.local()


def _room(dtype: str) -> Array:
    """Memory for what is computed from the elements; taken once, for new memory takes longer than all the rest."""
    room: Array | None = getattr(_rooms, dtype, None)
    if room is None:
        room = np.empty(_CACHED, dtype)
        setattr(_rooms, dtype, room)
    return room


@lru_cache(maxsize=64)
def _ones(n: int, dtype: str) -> Array:
    return np.ones(n, dtype)


@lru_cache(maxsize=256)
def _projection(n: int) -> Array:
    """A random vector of this many places, without a mean."""
    vector: Array = generator(0, f"an axis of {n}").standard_normal(n)
    vector -= vector.mean()
    return vector


def distance(a: Fingerprint, b: Fingerprint) -> float:
    """How far apart two tensors are at least, relative to their scale; infinite for tensors of other sizes."""
    if a.size != b.size:
        return math.inf
    scale = max(a.stats[2], b.stats[2])
    if scale == 0 or a.stats == b.stats:
        return 0.0
    units = (scale, scale, scale, 3 * scale**3, scale, scale)
    return max(abs(x - y) / u for x, y, u in zip(a.stats, b.stats, units, strict=True))


def merged(parts: Sequence[Fingerprint]) -> Fingerprint:
    """The fingerprint of several tensors joined to one, of which no axis is known."""
    size = sum(f.size for f in parts)
    shares = [f.size / size for f in parts]

    def mean(i: int) -> float:
        return sum(share * f.stats[i] for share, f in zip(shares, parts, strict=True))

    square = sum(share * f.stats[2] ** 2 for share, f in zip(shares, parts, strict=True))
    low, high = min(f.stats[4] for f in parts), max(f.stats[5] for f in parts)
    return Fingerprint(size, (mean(0), mean(1), math.sqrt(square), mean(3), low, high), all(f.whole for f in parts))


def in_order(a: Sequence[Fingerprint], b: Sequence[Fingerprint]) -> bool:
    """Whether tensors that hold the same values have them in the same order along every axis that both have.

    Parallel branches that are joined the other way round give the same values in another order.
    """
    a, b = ([f for f in x if not f.flat] for x in (a, b))
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    if not few:
        return True
    pairs = [(f, min(many, key=lambda g: distance(f, g))) for f in few]
    return all(_in_order(f, g) for f, g in pairs if not f.whole)


def _in_order(f: Fingerprint, g: Fingerprint) -> bool:
    least = _EVEN * max(f.stats[2], g.stats[2])
    for n, projection, spread in f.axes:
        same = [(p, s) for length, p, s in g.axes if length == n]
        if same and spread > least * math.sqrt(n):
            off = min(abs(projection - p) / max(spread, s) for p, s in same)
            if off > _SAME_ORDER:
                return False
    return True


def apart(a: Sequence[Fingerprint], b: Sequence[Fingerprint]) -> float:
    """How far apart the arguments of two calls are: the greatest distance of one to its nearest on the other side.

    The side with fewer tensors decides what is compared, or both if they have as many: ports pass further masks and
    states around. What is the same number throughout (a mask that masks nothing) says nothing. Infinite where nothing
    can be compared.
    """
    a, b = ([f for f in x if not f.flat] for x in (a, b))
    if not a or not b:
        return math.inf
    # Whole numbers are positions and masks more often than signals; signals decide where a side has some.
    telling_a, telling_b = ([f for f in x if not f.whole] or x for x in (a, b))
    there, back = _furthest(telling_a, b), _furthest(telling_b, a)
    if telling_a[0].whole != telling_b[0].whole:
        return there if len(a) <= len(b) else back
    if len(telling_a) == len(telling_b):
        return max(there, back)
    return there if len(telling_a) < len(telling_b) else back


def _furthest(some: Sequence[Fingerprint], others: Sequence[Fingerprint]) -> float:
    return max(min(distance(f, g) for g in others) for f in some)


@dataclass(frozen=True)
class Call:
    """One call of a module that owns parameters.

    Attributes:
        path: the module's.
        inputs, outputs: of every tensor in its arguments and in what it gave.
        seen: the parameters that its arguments depend on, as bits by position in ``Trace.names``.
        given: the same for what it gave.
    """

    path: str
    inputs: tuple[Fingerprint, ...]
    outputs: tuple[Fingerprint, ...]
    seen: int = 0
    given: int = 0


@dataclass(frozen=True)
class Trace:
    """One run of a PyTorch network on certain weights and inputs.

    Attributes:
        names: the parameters and persistent buffers; of tied ones the first name.
        modules: those that own some of them, by path.
        calls: of these modules, in the order in which they were entered.
        outputs: fingerprints of what the network gave.
        given: the parameters that this depends on, as bits by position in ``names``.
        numbers: the whole numbers that modules hold as attributes; see :class:`automap.running.Runner`.
    """

    names: tuple[str, ...]
    modules: dict[str, Module]
    calls: tuple[Call, ...]
    outputs: tuple[Fingerprint, ...] = ()
    given: int = 0
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)

    @cached_property
    def calls_of(self) -> dict[str, list[int]]:
        """The positions of each module's calls."""
        found: dict[str, list[int]] = {}
        for k, call in enumerate(self.calls):
            found.setdefault(call.path, []).append(k)
        return found

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Data flow: the positions of two calls where what the first gave is what the second got.

        What a function between them has changed has no edge; ``Call.seen`` knows of that, too.
        """
        found = []
        givers: dict[Fingerprint, list[int]] = {}
        for k, call in enumerate(self.calls):
            for f in dict.fromkeys(call.inputs):
                found += [(giver, k) for giver in givers.get(f, ())]
            for f in dict.fromkeys(call.outputs):
                if not f.flat:
                    givers.setdefault(f, []).append(k)
        return tuple(found)

    def bits(self, names: Sequence[str]) -> int:
        """Parameters as bits."""
        return sum(1 << self._places[name] for name in set(names) if name in self._places)

    def of_bits(self, bits: int) -> Iterator[str]:
        """The parameters whose bits are set, in order."""
        return (name for i, name in enumerate(self.names) if bits >> i & 1)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}
