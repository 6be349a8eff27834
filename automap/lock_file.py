"""The lock file: a pair of networks and what is held about them, as a value and as text that git can diff."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automap.errors import AutomapError, LockError
from automap.files import replacing
from automap.graph import Framework, Param
from automap.mapping import Mapping as ParameterMapping
from automap.mapping import Side

FORMAT = "automap-lock/1"


@dataclass(frozen=True)
class Model:
    """One side of a lock.

    Attributes:
        source: what names the model, as ``open_source`` takes it; a file relative to the lock's folder.
        args: the keyword arguments of its factory.
        parameters: its listing when it was locked.
    """

    source: str
    args: dict[str, Any]
    parameters: tuple[Param, ...] = ()


NOTHING = ParameterMapping(Side("", 0, ""), Side("", 0, ""), ())


@dataclass(frozen=True)
class Lock:
    """What a lock file holds.

    Attributes:
        torch: the PyTorch model.
        mindspore: the MindSpore model.
        mapping: the mapping inferred when it was locked.
        pins: what it was inferred with.
        static: whether it was inferred from the listings alone.
        ignore_names: whether names counted as evidence.
        seed: of the weights and inputs.
        inputs: the inputs in words; empty if nothing was run.
        rtol: the tolerance asked for, or None for the one that validation finds.
        atol: the same.
        error: the greatest difference of the outputs, relative to their scale, or None if nothing was compared.
        tolerance: what was allowed of it, or None.
        exit_code: of the validation, or None if there are no networks to run.
        verdict: of the validation, in words.
        versions: of automap, NumPy and the frameworks.
    """

    torch: Model
    mindspore: Model
    mapping: ParameterMapping = NOTHING
    pins: tuple[str, ...] = ()
    static: bool = False
    ignore_names: bool = False
    seed: int = 0
    inputs: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    error: float | None = None
    tolerance: float | None = None
    exit_code: int | None = None
    verdict: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """Read a lock file.

    Raises:
        LockError: there is no such file, or it is no lock of a version known here.
    """
    where = os.fspath(path)
    try:
        data = json.loads(Path(where).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LockError(f"no such lock file: {where}; automap infer --lock writes one", where) from None
    except OSError as error:
        raise LockError(f"{where} cannot be read: {error.strerror}", where) from None
    except ValueError:
        raise LockError(f"{where} is no lock file: it is not JSON", where) from None
    version = data.get("format") if isinstance(data, dict) else None
    if version != FORMAT:
        found = f"its format is {version!r}, this automap reads {FORMAT!r}"
        raise LockError(f"{where} is no lock file known here: {found}; write it anew with automap infer --lock", where)
    try:
        return _from_json(data, where)
    except (AutomapError, KeyError, TypeError, ValueError, AttributeError) as error:
        words = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise LockError(f"{where} is damaged: {words}; write it anew with automap infer --lock", where) from error


def write(lock: Lock, path: str | os.PathLike[str]) -> None:
    with replacing(os.fspath(path)) as part:
        part.write_text(to_json(lock), encoding="utf-8")


def to_json(lock: Lock) -> str:
    """One line for each parameter and entry, so that a lock is reviewed and diffed in git."""
    fields: dict[str, str] = {"format": _dumps(FORMAT)}
    for framework, model in models(lock):
        rows = ",\n  ".join(_dumps([p.name, p.shape, p.dtype, p.kind]) for p in model.parameters)
        head = f'"source": {_dumps(model.source)}, "args": {_dumps(model.args)}'
        fields[framework] = f'{{{head}, "parameters": [\n  {rows}\n ]}}'
    for name in ("versions", "pins", "static", "ignore_names", "seed", "inputs"):
        fields[name] = _dumps(getattr(lock, name))
    fields["tolerance"] = _dumps({"rtol": lock.rtol, "atol": lock.atol, "allowed": _rounded(lock.tolerance)})
    fields["error"] = _dumps(_rounded(lock.error))
    fields["exit_code"], fields["verdict"] = _dumps(lock.exit_code), _dumps(lock.verdict)
    fields["mapping"] = lock.mapping.to_json().strip().replace("\n", "\n ")
    return "{" + ",\n ".join(f'"{name}": {text}' for name, text in fields.items()) + "\n}\n"


def _from_json(data: dict[str, Any], where: str) -> Lock:
    def model(framework: Framework) -> Model:
        d = data[framework]
        parameters = tuple(
            Param(name, None if shape is None else tuple(shape), dtype, kind)
            for name, shape, dtype, kind in d["parameters"]
        )
        return Model(str(d["source"]), dict(d["args"]), parameters)

    tolerance = data["tolerance"]
    return Lock(
        torch=model("torch"),
        mindspore=model("mindspore"),
        mapping=ParameterMapping.from_json(json.dumps(data["mapping"]), where),
        pins=tuple(data["pins"]),
        static=bool(data["static"]),
        ignore_names=bool(data["ignore_names"]),
        seed=int(data["seed"]),
        inputs=tuple(data["inputs"]),
        rtol=tolerance["rtol"],
        atol=tolerance["atol"],
        error=_number(data["error"]),
        tolerance=_number(tolerance["allowed"]),
        exit_code=data["exit_code"],
        verdict=str(data["verdict"]),
        versions=dict(data["versions"]),
    )


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rounded(number: float | None) -> float | str | None:
    """Two digits are what a difference is worth; JSON has no word for infinity."""
    if number is None:
        return None
    return float(f"{number:.1e}") if math.isfinite(number) else str(number)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def models(lock: Lock) -> tuple[tuple[Framework, Model], tuple[Framework, Model]]:
    return ("torch", lock.torch), ("mindspore", lock.mindspore)
