"""The mapping's file: values to JSON, one line for each entry, and back with a word for everything that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from automap.errors import MappingError, TransformError
from automap.evidence import STATUSES, Proof
from automap.mapping import FORMAT, Entry, Mapping, RunnerUp, Side, Unmatched
from automap.transforms import from_json, to_json


def to_text(mapping: Mapping) -> str:
    """The text of a mapping's file; see :meth:`automap.mapping.Mapping.to_json`."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "torch": side_out(mapping.torch),
        "mindspore": side_out(mapping.mindspore),
    }
    if mapping.reverse:
        head["reverse"] = True
    lines = [f'"{k}": {dumps(v)}' for k, v in head.items()]
    lines.append(f'"entries": {lines_of([entry_out(e) for e in mapping.entries], 1)}')
    unmatched = [f'"{k}": {lines_of([unmatched_out(u) for u in v], 2)}' for k, v in mapping.unmatched.items()]
    lines.append('"unmatched": {\n  ' + ",\n  ".join(unmatched) + "\n }")
    lines.append(f'"pins": {lines_of(mapping.pins, 1)}')
    if mapping.proof is not None:
        lines.append(f'"proof": {dumps(mapping.proof.to_json())}')
    return "{" + ",\n ".join(lines) + "\n}\n"


def dumps(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise MappingError(f"the mapping holds a value that JSON cannot: {e}") from None


def lines_of(items: Iterable[object], indent: int) -> str:
    lines = [dumps(item) for item in items]
    if not lines:
        return "[]"
    pad = "\n" + " " * (indent + 1)
    return "[" + pad + ("," + pad).join(lines) + "\n" + " " * indent + "]"


def side_out(side: Side) -> dict[str, Any]:
    return {"source": side.source, "parameters": side.parameters, "fingerprint": side.fingerprint}


def entry_out(e: Entry) -> dict[str, Any]:
    out: dict[str, Any] = {"torch": list(e.torch), "mindspore": list(e.mindspore)}
    if e.transform:
        out["transform"] = to_json(e.transform)
    out |= {"confidence": e.confidence, "review": e.review}
    if e.review:
        out["why"] = e.why
    out["evidence"] = e.evidence
    if e.runner_up is not None:
        r = e.runner_up
        out["runner_up"] = {"torch": list(r.torch), "mindspore": list(r.mindspore), "margin": r.margin}
    if e.path is not None:
        out["mindspore_path"] = e.path
    if e.tied:
        out["tied"] = list(e.tied)
    return out


def unmatched_out(u: Unmatched) -> dict[str, Any]:
    out: dict[str, Any] = {"name": u.name, "why": u.why}
    if u.review:
        out["review"] = True
    if u.alias_of is not None:
        out["alias_of"] = u.alias_of
    return out


class Reader:
    """JSON values to a mapping; every error says where in the file the wrong value is and what belongs there."""

    def mapping(self, data: dict[str, Any]) -> Mapping:
        self.keys(data, "it", ("format", "torch", "mindspore", "entries", "unmatched"), ("pins", "reverse", "proof"))
        unmatched = self.get(data, "it", "unmatched", dict, "an object")
        self.keys(unmatched, '"unmatched"', ("torch", "mindspore"))
        return Mapping(
            torch=self.side(data, "torch"),
            mindspore=self.side(data, "mindspore"),
            entries=tuple(self.entry(e, f"entry {i}") for i, e in enumerate(self.items(data, "it", "entries"), 1)),
            unmatched_torch=self.unmatched(unmatched, "torch"),
            unmatched_mindspore=self.unmatched(unmatched, "mindspore"),
            pins=self.names(data, "it", "pins") if "pins" in data else (),
            reverse=self.get(data, "it", "reverse", bool, "true or false") if "reverse" in data else False,
            proof=self.proof(data["proof"]) if "proof" in data else None,
        )

    def proof(self, value: object) -> Proof:
        at = '"proof"'
        data = self.object(value, at)
        numbers = ("error", "floor", "allowed", "repaired")
        names = ("inputs", "not_exercised", "findings", "notes")
        self.keys(data, at, ("status",), ("reason", "seeds", *numbers, *names, "alike"))
        status = self.get(data, at, "status", str, "a string")
        if status not in STATUSES:
            raise MappingError(f'{at}: "status" must be one of {", ".join(STATUSES)}, not {status!r}')
        seeds = self.items(data, at, "seeds") if "seeds" in data else []
        alike = self.items(data, at, "alike") if "alike" in data else []
        if not all(isinstance(p, list) and len(p) == 2 and all(isinstance(n, str) for n in p) for p in alike):
            raise MappingError(f'{at}: "alike" must be a list of pairs of names, not {alike!r}')
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in seeds):
            raise MappingError(f'{at}: "seeds" must be a list of whole numbers, not {seeds!r}')
        figures: dict[str, Any] = {k: float(self.get(data, at, k, float, "a number")) for k in numbers if k in data}
        lists: dict[str, Any] = {k: self.names(data, at, k) for k in names if k in data}
        return Proof(
            status,
            self.get(data, at, "reason", str, "a string") if "reason" in data else "",
            seeds=tuple(seeds),
            alike=tuple((a, b) for a, b in alike),
            **lists,
            **figures,
        )

    def side(self, data: dict[str, Any], key: str) -> Side:
        value = self.get(data, "it", key, dict, "an object")
        self.keys(value, f'"{key}"', ("source", "parameters", "fingerprint"))
        return Side(
            self.get(value, f'"{key}"', "source", str, "a string"),
            self.get(value, f'"{key}"', "parameters", int, "a whole number"),
            self.get(value, f'"{key}"', "fingerprint", str, "a string"),
        )

    def entry(self, value: object, at: str) -> Entry:
        data = self.object(value, at)
        if isinstance(data.get("torch"), list):
            at += f" ({', '.join(map(str, data['torch']))})"
        optional = ("transform", "why", "evidence", "runner_up", "mindspore_path", "tied")
        self.keys(data, at, ("torch", "mindspore", "confidence", "review"), optional)
        confidence = self.get(data, at, "confidence", float, "a number from 0 to 1")
        if not 0 <= confidence <= 1:
            raise MappingError(f'{at}: "confidence" must be a number from 0 to 1, not {confidence}')
        try:
            transform = from_json(data.get("transform", []))
        except TransformError as e:
            raise MappingError(f"{at}: {e}") from None
        return Entry(
            torch=self.names(data, at, "torch"),
            mindspore=self.names(data, at, "mindspore"),
            transform=transform,
            confidence=confidence,
            review=self.get(data, at, "review", bool, "true or false"),
            why=self.get(data, at, "why", str, "a string") if "why" in data else "",
            evidence=self.get(data, at, "evidence", dict, "an object") if "evidence" in data else {},
            runner_up=self.runner_up(data["runner_up"], f'{at}, "runner_up"') if "runner_up" in data else None,
            path=self.get(data, at, "mindspore_path", str, "a string") if "mindspore_path" in data else None,
            tied=self.names(data, at, "tied") if "tied" in data else (),
        )

    def runner_up(self, value: object, at: str) -> RunnerUp:
        data = self.object(value, at)
        self.keys(data, at, ("torch", "mindspore", "margin"))
        margin = self.get(data, at, "margin", float, "a number")
        return RunnerUp(self.names(data, at, "torch"), self.names(data, at, "mindspore"), margin)

    def unmatched(self, data: dict[str, Any], key: str) -> tuple[Unmatched, ...]:
        found = []
        for i, value in enumerate(self.items(data, '"unmatched"', key), 1):
            at = f"unmatched {key} name {i}"
            item = self.object(value, at)
            self.keys(item, at, ("name", "why"), ("review", "alias_of"))
            found.append(
                Unmatched(
                    self.get(item, at, "name", str, "a string"),
                    self.get(item, at, "why", str, "a string"),
                    self.get(item, at, "review", bool, "true or false") if "review" in item else False,
                    self.get(item, at, "alias_of", str, "a string") if "alias_of" in item else None,
                )
            )
        return tuple(found)

    @staticmethod
    def object(value: object, at: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MappingError(f"{at} must be an object, not {value!r}")
        return value

    @staticmethod
    def keys(data: dict[str, Any], at: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
        for key in required:
            if key not in data:
                raise MappingError(f'{at} lacks "{key}": add it, or run automap infer again')
        for key in data:
            if key not in (*required, *optional):
                raise MappingError(f'{at} has an unknown key "{key}": known are {", ".join((*required, *optional))}')

    @staticmethod
    def get(data: dict[str, Any], at: str, key: str, kind: type, called: str) -> Any:
        value = data[key]
        fits = isinstance(value, int | float if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise MappingError(f'{at}: "{key}" must be {called}, not {value!r}')
        return value

    @classmethod
    def items(cls, data: dict[str, Any], at: str, key: str) -> list[Any]:
        items: list[Any] = cls.get(data, at, key, list, "a list")
        return items

    @classmethod
    def names(cls, data: dict[str, Any], at: str, key: str) -> tuple[str, ...]:
        names = cls.items(data, at, key)
        if not all(isinstance(name, str) for name in names):
            raise MappingError(f'{at}: "{key}" must be a list of names, not {names!r}')
        return tuple(names)
