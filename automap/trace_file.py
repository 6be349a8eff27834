"""Trace files: what a PyTorch network testifies, carried to where PyTorch is not installed.

A trace file is a zip. ``trace.json`` holds the listing, the inputs in words, fingerprints of what every module saw and
gave, and which parameters matter; arrays (outputs, inputs that were given as such, what no seed can make again) are
``.npy`` members beside it. Seeded weights are a function of the seed and the names, so they are not in it.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from automap import outline
from automap.activations import Activations
from automap.comparison import TOLERANCE, allowance, pair, scale_of
from automap.dtypes import BFLOAT16, Array, cast, dtype_name, is_float, widen
from automap.errors import AutomapError, SourceError
from automap.files import nature, replacing
from automap.graph import Framework, Listing
from automap.listing_files import listing_from_json, listing_to_json
from automap.outline import Step
from automap.power import Weight
from automap.precision import LOW, ran_as
from automap.probing import InputSpec, Probe, parse_input
from automap.running import MIXED, Module
from automap.seeding import seeded_weights
from automap.stored import Held, Stored
from automap.tracing import Call, Fingerprint, Trace
from automap.weights import fingerprint, some
from automap.witness import Account, Feed, Port, Testimony

if TYPE_CHECKING:
    from automap.consultation import Opinion

FORMAT = "automap-trace/1"

#: Zip's own first day: the time of writing is nobody's business, and would make the same run another file.
_TIME = (1980, 1, 1, 0, 0, 0)

#: Fingerprints are kept to so many digits; they are compared to five.
_DIGITS = 9


@dataclass(frozen=True)
class Record:
    """What is in a trace file.

    Attributes:
        listing: of the PyTorch network.
        dtype: see :class:`automap.running.Runner`.
        seeds: of the runs.
        probe: their inputs.
        weights: fingerprint of the weights of the first run, before any statistics were scaled.
        given: whether these were the user's; else they are made from the seed.
        settled: for each run, by what the running statistics were multiplied.
        own: values that are in no weights, such as tables that the network computes.
        account: of the first run.
        outputs: of each run.
        spreads: of each run, how far rounding and the error of kernels move each output.
        weight: what matters for the outputs, by the element type whose tolerance they were judged by.
        activations: what every call saw and gave, as members of the zip, or None.
        steps: the outline of the first run, empty in a file of an older automap.
        noise: which errors of MindSpore's kernels the tolerances allow for, by the operation's name in ATen and the
            size of its argument: typical ones, for they were not measured.
        versions: of automap, PyTorch and NumPy.
    """

    listing: Listing
    dtype: str
    seeds: tuple[int, ...]
    probe: Probe
    weights: str
    given: bool
    settled: tuple[dict[str, float], ...]
    own: dict[str, Array]
    account: Account
    outputs: tuple[Any, ...]
    spreads: tuple[dict[str, float], ...]
    weight: dict[str, Weight]
    activations: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] | None = None
    steps: tuple[Step, ...] = ()
    noise: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class TraceSource:
    """A trace file as a source: its listing stands for the network's, and it testifies where the network cannot."""

    framework: Framework = "torch"
    notes: tuple[str, ...] = ()

    def __init__(self, path: str | Path, text: str = "") -> None:
        self.path, self.text = Path(path), text or str(path)
        self.record = read(path, self.text)

    def listing(self) -> Listing:
        return self.record.listing

    @property
    def narrow(self) -> str:
        """The coarsest element type of the network's parameters, if it is a low one, or ``""``."""
        own = {p.dtype for p in self.record.listing}
        return next((low for low in LOW if low in own), "")

    @property
    def mixed(self) -> str:
        """What autocast casts to is not recorded as such."""
        return ""

    def tensors(self) -> dict[str, Stored]:
        return {name: Held(array) for name, array in self.read().items()}

    def read(self) -> dict[str, Array]:
        raise SourceError(f"{self.text} is a trace and holds no tensors: give a checkpoint or a model", self.text)

    def model(self) -> None:
        return None

    def describe(self) -> str:
        """What is in it, in a few lines."""
        record, last = self.record, self.record.weight[next(iter(self.record.weight))]
        on = "a checkpoint" if record.given else "seeded weights"
        seeds = " and ".join(map(str, record.seeds))
        lines = [
            f"{len(record.listing)} PyTorch parameters; {len(record.account.trace.calls)} calls on {on}, seeds {seeds}",
            f"inputs {', '.join(record.probe.describe())}",
        ]
        names = [p.name for p in record.listing if p.name in last.idle and is_float(p.dtype or "float32")]
        if names:
            lines.append(f"not exercised {len(names)}: {some(names)}")
        return "\n".join(lines)

    def witness(self, weights: Mapping[str, Array] | None, coarsest: Sequence[str]) -> Recorded:
        """The witness in it.

        Args:
            weights: the checkpoint that it was recorded on, if it was recorded on one.
            coarsest: element types of the other network, which fingerprints have to bear with.

        Raises:
            SourceError: these weights are not those that it was recorded on.
        """
        given, hint = self.record.given, "automap trace writes it anew"
        if given and weights is None:
            raise SourceError(f"{self.text} was recorded on a checkpoint: give it with --weights", self.text)
        if weights is not None and not given:
            raise SourceError(f"{self.text} was recorded on seeded weights: leave the weights out; {hint}", self.text)
        listing = ran_as(self.record.listing, self.record.dtype)
        first = weights if weights is not None else seeded_weights(listing, self.record.seeds[0])
        if fingerprint(first) != self.record.weights:
            what = "the weights" if given else "what this NumPy draws"
            raise SourceError(f"{what} are not the weights that {self.text} was recorded on; {hint}", self.text)
        return Recorded(self.record, self.path, weights, coarsest)


class Recorded:
    """A PyTorch network that ran elsewhere; see :class:`automap.witness.Witness`."""

    def __init__(
        self, record: Record, path: Path, weights: Mapping[str, Array] | None, coarsest: Sequence[str] = ()
    ) -> None:
        self.record, self.path, self._weights = record, path, weights
        self.listing = ran_as(record.listing, record.dtype)
        self.dtype, self.seeds = record.dtype, record.seeds
        self.described = record.probe.describe()
        self._run = 0
        self._least = max((5 * TOLERANCE.get(d, 0.0) for d in coarsest), default=0.0)

    @contextmanager
    def testimony(self, run: int) -> Iterator[Testimony]:
        seed, record, self._run = self.seeds[run], self.record, run
        values = dict(record.own)
        values |= self._weights if self._weights is not None else seeded_weights(self.listing, seed)
        for name, factor in record.settled[run].items():
            values[name] = scaled(values[name], factor)
        yield Testimony(record.probe.draw(seed, run), record.outputs[run], values.__getitem__)

    def account(self) -> Account:
        account = self.record.account
        return Account(account.trace, tuple(max(t, self._least) for t in account.tolerance), account.spread)

    def spread(self, testimony: Testimony) -> dict[str, float]:
        return self.record.spreads[self._run]

    def remarks(self) -> tuple[str, ...]:
        own = {p.dtype for p in self.listing}
        how = "by torch.autocast, or as its forward casts to it"
        return (MIXED.format(self.dtype, how),) if self.dtype in LOW and self.dtype not in own else ()

    def feed(self, activations: Activations) -> Feed | None:
        members = self.record.activations
        if members is None:
            return None

        def feed(call: int) -> tuple[list[Array], list[Array]]:
            with zipfile.ZipFile(self.path) as file:
                before, after = ([_read_array(file, m) for m in names] for names in members[call])
            return before, after

        return feed

    def weight(self, testimony: Testimony, allowed: Callable[[str, Array], float]) -> Weight:
        """As it was recorded, for the finest element type whose tolerance is at least what is allowed now."""
        pairs = pair(testimony.outputs, testimony.outputs).pairs
        floats = [(where, a) for where, a, _ in pairs if a.dtype.kind in "fc"]
        kinds = sorted(self.record.weight, key=lambda kind: TOLERANCE[kind])
        spread = greatest(self.record.spreads)
        for kind in kinds:
            if all(allowed(w, a) <= 1.001 * tolerated(kind, spread, w, a) for w, a in floats):
                return self.record.weight[kind]
        return self.record.weight[kinds[-1]]

    def outline(self) -> tuple[Step, ...]:
        return self.record.steps

    def examine(self, testimony: Testimony, port: Port) -> Opinion | None:
        if not self.record.steps:
            return None
        from automap import outline_doctor

        account = self.account()
        same = max(account.tolerance, default=0.0) if self._run == 0 else None
        recording = outline_doctor.Recording(self.record.steps, self.listing, account.trace.modules, testimony, same)
        return outline_doctor.examine(recording, port)


def tolerated(dtype: str, spread: Mapping[str, float], where: str, output: Array) -> float:
    """What outputs may differ by if the coarsest element type on the way is this one."""
    return allowance((dtype, output.dtype.name), scale_of(output), spread.get(where, 0.0))


def greatest(spreads: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The greatest spread of each output in any run."""
    return {where: max(s.get(where, 0.0) for s in spreads) for where in dict.fromkeys(w for s in spreads for w in s)}


def scaled(array: Array, factor: float) -> Array:
    """An array times a number, rounded as PyTorch rounds it."""
    wide = widen(array)
    if wide.dtype == np.float16:
        wide = wide.astype(np.float32)
    return cast(wide * wide.dtype.type(factor), dtype_name(array))[0]


# -- writing -----------------------------------------------------------------------------------------------------------


def write(record: Record, path: str | Path, activations: Mapping[str, Callable[[], Array]] | None = None) -> None:
    """Write a trace file, whole or not at all.

    Args:
        record: what is in it.
        path: the file; ``.trace`` is its ending.
        activations: the arrays behind ``record.activations``, by the names of their members.

    Raises:
        SourceError: the file cannot be written.
    """
    arrays: dict[str, Array] = {}

    def kept(name: str, array: Array) -> dict[str, Any]:
        arrays[name] = array
        return {"array": name} | ({"dtype": "bfloat16"} if array.dtype == BFLOAT16 else {})

    def nested(value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            return kept(f"{name}.npy", value)
        if isinstance(value, tuple):
            return {"tuple": [nested(v, f"{name}.{i}") for i, v in enumerate(value)]}
        if isinstance(value, Mapping):
            return {"dict": {k: nested(v, f"{name}.{i}") for i, (k, v) in enumerate(value.items())}}
        return value

    probe, account = record.probe, record.account
    items = [str(x) if isinstance(x, InputSpec) else kept(f"inputs/{i}.npy", x) for i, x in enumerate(probe.items)]
    content = {
        "format": FORMAT,
        "versions": record.versions,
        "source": record.listing.source,
        "dtype": record.dtype,
        "seeds": record.seeds,
        "inputs": {"items": items, "names": probe.names},
        "weights": {"fingerprint": record.weights, "given": record.given, "settled": record.settled},
        "own": {name: _own(name, a, i, kept) for i, (name, a) in enumerate(record.own.items())},
        "noise": record.noise,
        "spreads": record.spreads,
        "weight": {k: {"idle": sorted(w.idle), "alike": w.alike} for k, w in record.weight.items()},
        "outputs": [nested(out, f"outputs/{run}") for run, out in enumerate(record.outputs)],
        "trace": _trace_to_json(account.trace),
        "tolerance": [_short(t) for t in account.tolerance],
        "activations": record.activations,
        "steps": outline.to_json(record.steps, _print),
        "listing": json.loads(listing_to_json(record.listing)),
    }
    with replacing(path) as part, zipfile.ZipFile(part, "w") as file:
        text = ",\n".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in content.items())
        file.writestr(_info("trace.json"), f"{{\n{text}\n}}\n".encode())
        for name, array in arrays.items():
            _add_array(file, name, array)
        for name, read_activation in (activations or {}).items():
            _add_array(file, name, read_activation(), zipfile.ZIP_STORED)


def _own(name: str, array: Array, i: int, kept: Callable[[str, Array], dict[str, Any]]) -> Any:
    """A single number is kept in place: there is a counter for every norm."""
    if array.ndim == 0 and array.dtype.kind in "iu":
        return {"number": int(array), "dtype": dtype_name(array)}
    return kept(f"own/{i}.npy", array)


def _info(name: str, way: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type, info.external_attr = way, 0o644 << 16
    return info


def _add_array(file: zipfile.ZipFile, name: str, array: Array, way: int = zipfile.ZIP_DEFLATED) -> None:
    plain = array.view(np.uint16) if array.dtype == BFLOAT16 else array
    with file.open(_info(name, way), "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.asarray(plain, order="C"), allow_pickle=False)  # type: ignore[no-untyped-call]


def _trace_to_json(trace: Trace) -> dict[str, Any]:
    return {
        "names": trace.names,
        "modules": [[m.path, m.kind, m.own] for m in trace.modules.values()],
        "calls": [
            [c.path, [_print(f) for f in c.inputs], [_print(f) for f in c.outputs], f"{c.seen:x}", f"{c.given:x}"]
            for c in trace.calls
        ],
        "outputs": [_print(f) for f in trace.outputs],
        "given": f"{trace.given:x}",
        "numbers": trace.numbers,
    }


def _print(f: Fingerprint) -> list[Any]:
    axes = [[n, _short(place), _short(spread)] for n, place, spread in f.axes]
    return [f.size, *map(_short, f.stats), int(f.whole), *axes]


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


# -- reading -----------------------------------------------------------------------------------------------------------


def read(path: str | Path, text: str = "") -> Record:
    """Read a trace file.

    Args:
        path: the file.
        text: what to call it in an error, its path by default.

    Raises:
        SourceError: it is no trace file of a version known here, or it is damaged.
    """
    text = text or str(path)
    again = "write it anew with automap trace"
    try:
        with zipfile.ZipFile(path) as file:
            content = json.loads(file.read("trace.json"))
            version = content.get("format") if isinstance(content, dict) else None
            if version != FORMAT:
                found = f"its format is {version!r}, this automap reads {FORMAT!r}"
                raise SourceError(f"{text} is no trace known here: {found}; {again}", text)
            return _record(content, file, text)
    except OSError as error:
        raise SourceError(f"{text} cannot be read: {error.strerror or error}", text) from error
    except (zipfile.BadZipFile, KeyError) as error:
        words = nature(path)
        what = words.partition(";")[0] if words and "zip" not in words else _words(error)
        raise SourceError(f"{text} is no trace, or a damaged one: {what}; {again}", text) from error
    except (AutomapError, ArithmeticError, EOFError, TypeError, ValueError, LookupError, zlib.error) as error:
        if isinstance(error, SourceError) and error.path == text:
            raise
        raise SourceError(f"{text} is damaged: {_words(error)}; {again}", text) from error


def _words(error: Exception) -> str:
    words = " ".join(str(error.args[0] if error.args else error).split()) or type(error).__name__
    return f"it lacks {words!r}" if isinstance(error, KeyError) and " " not in words else words


def _record(d: dict[str, Any], file: zipfile.ZipFile, text: str) -> Record:
    def array(entry: dict[str, Any]) -> Array:
        if "number" in entry:
            return np.asarray(entry["number"], entry["dtype"])
        found = _read_array(file, entry["array"])
        return found.view(BFLOAT16) if entry.get("dtype") == "bfloat16" else found

    def nested(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return array(value)
        if "tuple" in value:
            return tuple(map(nested, value["tuple"]))
        return {k: nested(v) for k, v in value["dict"].items()}

    listing = listing_from_json(json.dumps(d["listing"]), "torch", text)
    items = [parse_input(x) if isinstance(x, str) else array(x) for x in d["inputs"]["items"]]
    names = d["inputs"]["names"]
    trace = _trace_from_json(d["trace"])
    tolerance = tuple(map(float, d["tolerance"]))
    if len(tolerance) != len(trace.calls):
        raise ValueError(f"{len(trace.calls)} calls have {len(tolerance)} tolerances")
    activations = d["activations"]
    spreads = tuple({k: float(v) for k, v in s.items()} for s in d["spreads"])
    return Record(
        listing=listing,
        dtype=str(d["dtype"]),
        seeds=tuple(map(int, d["seeds"])),
        probe=Probe(tuple(items), None if names is None else tuple(names)),
        weights=str(d["weights"]["fingerprint"]),
        given=bool(d["weights"]["given"]),
        settled=tuple(dict(s) for s in d["weights"]["settled"]),
        own={name: array(entry) for name, entry in d["own"].items()},
        account=Account(trace, tolerance, spreads[0]),
        outputs=tuple(map(nested, d["outputs"])),
        spreads=spreads,
        weight={
            kind: Weight(frozenset(w["idle"]), tuple((a, b) for a, b in w["alike"])) for kind, w in d["weight"].items()
        },
        activations=None if activations is None else tuple((tuple(a), tuple(b)) for a, b in activations),
        steps=outline.from_json(d.get("steps", ()), _unprint),
        noise=dict(d["noise"]),
        versions=dict(d["versions"]),
    )


def _read_array(file: zipfile.ZipFile, name: str) -> Array:
    with file.open(name) as member:
        array: Array = np.lib.format.read_array(member, allow_pickle=False)  # type: ignore[no-untyped-call]
    return array


def _trace_from_json(d: dict[str, Any]) -> Trace:
    modules = [Module(path, kind, tuple((a, n) for a, n in own)) for path, kind, own in d["modules"]]
    calls = [
        Call(path, tuple(map(_unprint, before)), tuple(map(_unprint, after)), int(seen, 16), int(given, 16))
        for path, before, after, seen, given in d["calls"]
    ]
    return Trace(
        tuple(d["names"]),
        {m.path: m for m in modules},
        tuple(calls),
        tuple(map(_unprint, d["outputs"])),
        int(d["given"], 16),
        {path: {str(k): int(n) for k, n in own.items()} for path, own in d.get("numbers", {}).items()},
    )


def _unprint(row: list[Any]) -> Fingerprint:
    size, a, b, c, d, e, f, whole, *axes = row
    stats = (float(a), float(b), float(c), float(d), float(e), float(f))
    if any(map(math.isnan, stats)):
        raise ValueError("a fingerprint has no numbers")
    return Fingerprint(int(size), stats, bool(whole), tuple((int(n), float(x), float(y)) for n, x, y in axes))
