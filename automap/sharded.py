"""Checkpoints in several files: folders with an index as Hugging Face and MindSpore write them, read and laid out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from automap import places
from automap.errors import SourceError
from automap.graph import Framework

#: The index that MindSpore's ``load_distributed_checkpoint`` reads.
MINDSPORE_INDEX = "param_name_map.json"

#: Files of one kind in a folder without an index, the preferred kind first.
_KINDS = ((".safetensors",), (".bin", ".pth", ".pt"), (".ckpt",))

#: Files that Trainers leave beside a checkpoint and that are none.
_OTHER = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin", "scaler.pt")


@dataclass(frozen=True)
class Shards:
    """The files of a checkpoint.

    Attributes:
        text: the folder or index in the user's words.
        files: the files, in the order of the index.
        homes: the file of each tensor, by the index; None where there is none.
    """

    text: str
    files: tuple[str, ...]
    homes: dict[str, str] | None = None

    def home(self, name: str) -> str | None:
        """The file that a tensor is read from, or None where any will do."""
        return None if self.homes is None else self.homes.get(name, "")

    def check(self, found: Collection[str]) -> None:
        """Raise a SourceError where a tensor of the index is not in its file."""
        missing = [
            f"{name} ({places.split(file)[1]})" for name, file in (self.homes or {}).items() if name not in found
        ]
        if missing:
            raise SourceError(
                f"{self.text}: {len(missing)} tensor(s) of its index are not in their files: "
                f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}: get the files again",
                self.text,
            )

    def notes(self, opened: Iterable[Any]) -> tuple[str, ...]:
        """What the user should hear: tensors in the files that the index does not have there."""
        if self.homes is None:
            return ()
        extra = [p.name for source in opened for p in source.listing() if self.homes.get(p.name) != source.text]
        if not extra:
            return ()
        names = ", ".join(extra[:5]) + (" …" if len(extra) > 5 else "")
        return (f"{self.text}: {len(extra)} tensor(s) in its files are not in its index, and not taken: {names}",)


def is_sharded(path: str) -> bool:
    """Whether a path, which is there, is a folder or an index."""
    name = places.split(path)[1].lower()
    return name.endswith(".index.json") or name == MINDSPORE_INDEX or places.is_folder(path)


def read(path: str) -> Shards:
    """The files of a folder, or of an index.

    Raises:
        SourceError: there is no checkpoint, an index makes no sense, or a file of it is not there.
    """
    try:
        if not places.is_folder(path):
            return _indexed(path, *places.split(path))
        names = places.names(path)
        indices = [n for n in names if n.lower().endswith(".index.json")] or [n for n in names if n == MINDSPORE_INDEX]
        if indices:
            # Of several, that of the safest format, as transformers prefers it.
            best = min(indices, key=lambda n: (".safetensors." not in n, n))
            return _indexed(path, path, best)
        for kind in _KINDS:
            files = [n for n in names if n.lower().endswith(kind) and n not in _OTHER]
            if files:
                return Shards(path, tuple(places.joined(path, n) for n in files))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}", path) from error
    raise SourceError(f"{path} is a folder without a checkpoint (.safetensors .bin .pth .pt .ckpt) in it", path)


def _indexed(text: str, folder: str, index: str) -> Shards:
    where = places.joined(folder, index)
    try:
        data = json.loads(places.read(where).decode())
        homes = data.get("weight_map", data)
        if not homes or not all(isinstance(v, str) for v in homes.values()):
            raise ValueError
    except (ValueError, AttributeError):
        raise SourceError(
            f"{where} is no index of a checkpoint: it has no weight_map of names to files", text
        ) from None
    files = dict.fromkeys(homes.values())
    missing = sorted(set(files) - set(places.names(folder)))
    missing = [name for name in missing if not places.exists(places.joined(folder, name))]
    if missing:
        some = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        raise SourceError(f"{where} names {len(missing)} file(s) that are not there: {some}: get them, too", text)
    paths = {name: places.joined(folder, name) for name in files}
    return Shards(text, tuple(paths.values()), {tensor: paths[file] for tensor, file in homes.items()})


# -- written -------------------------------------------------------------------------------------------------------


def file_names(count: int, suffix: str) -> list[str]:
    """What the files of a checkpoint are called, as Hugging Face calls them."""
    if count == 1:
        return [f"model{suffix}"]
    return [f"model-{i:05}-of-{count:05}{suffix}" for i in range(1, count + 1)]


def is_ours(name: str) -> bool:
    """Whether a file in an output folder has a name that a conversion gives."""
    stem, dot, rest = name.partition(".")
    part = stem == "model" or (stem.startswith("model-") and len(stem) == len("model-00001-of-00001"))
    endings = ("safetensors", "ckpt", "safetensors.index.json", "ckpt.index.json")
    return name == MINDSPORE_INDEX or (part and bool(dot) and rest in endings)


def indices(homes: Mapping[str, str], total: int, suffix: str, framework: Framework) -> dict[str, bytes]:
    """The index files of a checkpoint by name: none where it has one file.

    Args:
        homes: the file of each tensor.
        total: how many bytes the tensors have.
        suffix: ``.safetensors`` or ``.ckpt``.
        framework: the framework that will read it.
    """
    if len(set(homes.values())) < 2:
        return {}
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(homes)}, indent=2, ensure_ascii=False)
    names = [f"model{suffix}.index.json"]
    if (framework, suffix) == ("mindspore", ".safetensors"):
        names.append(MINDSPORE_INDEX)
    return {name: (text + "\n").encode() for name in names}
