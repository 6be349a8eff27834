"""Low-rank adaptations (Hu et al., 2021) beside the weights that they belong to, and merged into them on request.

They are found by what the usual packages call them: a pair ``lora_A`` and ``lora_B`` (or ``lora_down`` and
``lora_up``) beside the weight of one layer, each a layer of its own or a parameter, perhaps with the name of the
adapter after it; and a level ``base_layer`` in the path of the layer's own parameters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from automap import transforms
from automap.dtypes import Array, is_float
from automap.errors import ConversionError, TransformError
from automap.graph import Framework, Listing, Shape
from automap.transforms import Transform

if TYPE_CHECKING:
    from automap.sources import Source
    from automap.stored import Stored

_FACTOR = re.compile(
    r"(?P<layer>.+)\.lora_(?P<table>embedding_)?(?P<half>A|B|down|up)(?:\.(?!weight$)(?P<adapter>[^.]+))?(?:\.weight)?"
)
_OTHER = re.compile(r"(?:^|\.)lora_[A-Za-z]")
_BASE = re.compile(r"(^|\.)base_layer\.")


@dataclass(frozen=True)
class Pair:
    """An adaptation of a weight.

    Attributes:
        base: the name of the weight.
        a, b: the names of its factors.
        adapter: what the adapter is called, or "".
        transposed: whether the product of the factors has the weight's axes the other way round.
    """

    base: str
    a: str
    b: str
    adapter: str
    transposed: bool


@dataclass(frozen=True)
class Merge:
    """What is needed to merge.

    Attributes:
        alpha: the product of the factors counts alpha over their rank.
        rooted: alpha over the square root of the rank.
        adapter: which adapter is merged, where there are several.
    """

    alpha: float
    rooted: bool = False
    adapter: str = ""

    @classmethod
    def of(cls, value: object) -> Merge | None:
        """From what a caller gives: alpha, a dict of these attributes, or a text like ``alpha=16,adapter=default``.

        Raises:
            ConversionError: it is none of these.
        """
        if value is None or isinstance(value, Merge):
            return value
        given: Dict[str, Any] = {"alpha": value}
        if isinstance(value, str):
            words = (word.partition("=") for word in value.split(","))
            given = {name.strip(): text if sign else True for name, sign, text in words}
        elif isinstance(value, Dict):
            given = value
        try:
            alpha, rooted = float(given["alpha"]), given.get("rooted", False)
            if isinstance(given["alpha"], bool) or not isinstance(rooted, bool) or given.keys() - _WORDS:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ConversionError(
                f"merge_lora is not understood: {value!r}; write it like alpha=16, with ,adapter=NAME where there are "
                "several, and ,rooted where alpha is over the square root of the rank"
            ) from None
        return cls(alpha, rooted, str(given.get("adapter", "")))

    def chain(self, pair: Pair) -> tuple[Transform, ...]:
        """What makes the merged weight of the weight and its two factors."""
        flags = {"transposed": pair.transposed, "rooted": self.rooted}
        return (Transform("lora", {"alpha": self.alpha, **{k: v for k, v in flags.items() if v}}),)

    @staticmethod
    def check(
        name: str, chain: tuple[Transform, ...], shapes: Sequence[Shape | None], dtypes: Sequence[str] = ()
    ) -> None:
        """Raise a ConversionError where a weight and its factors, as far as they are known, do not fit each other."""
        known = [s for s in shapes if s is not None]
        try:
            if len(known) == len(shapes):
                transforms.shape_after(chain, known)
            if dtypes and not all(map(is_float, dtypes)):
                raise TransformError(f"they are {', '.join(dict.fromkeys(dtypes))}")
        except TransformError as e:
            raise ConversionError(f"{name} and its LoRA pair cannot be merged ({e})") from None

    def pairs(self, names: Collection[str]) -> list[Pair]:
        """The adaptations that are merged, one for each weight.

        Raises:
            ConversionError: there are none; a weight has several, and which is not said; or there is more to an
                adaptation than two factors.
        """
        found = [p for p in pairs(names) if self.adapter in ("", p.adapter)]
        used = {n for p in found for n in (p.a, p.b)}
        adapters = sorted({p.adapter for p in pairs(names)})
        if not found:
            there = (
                f"its adapters are {', '.join(adapters)}" if adapters else "it has no lora_A and lora_B beside a weight"
            )
            raise ConversionError(f"there is no LoRA pair to merge: {there}")
        seen: dict[str, Pair] = {}
        for p in found:
            if p.base in seen:
                raise ConversionError(
                    f"{p.base} has several LoRA adapters: say which to merge, adapter={' or adapter='.join(adapters)}"
                )
            seen[p.base] = p
        layers = {p.a.partition(".lora_")[0] for p in found}
        for name in names:
            layer, _, rest = name.partition(".lora_")
            if rest and layer in layers and name not in used and not _FACTOR.fullmatch(name):
                raise ConversionError(
                    f"{name}: only plain LoRA pairs can be merged, not what has more to it than two factors"
                )
        return found


_WORDS = {"alpha", "rooted", "adapter"}


def is_part(name: str) -> bool:
    """Whether a name is that of something that adapts a weight."""
    return _OTHER.search(name) is not None


def plain(name: str, names: Collection[str] = ()) -> str:
    """A name as the layer's parameter has it without adaptations, unless that is among the names already."""
    without = _BASE.sub(r"\1", name)
    return name if without in names else without


def pairs(names: Iterable[str]) -> list[Pair]:
    """The factors that belong to a weight among these names."""
    there = dict.fromkeys(names)
    halves: dict[tuple[str, str, bool], dict[str, str]] = {}
    for name in there:
        m = _FACTOR.fullmatch(name)
        if m:
            half = {"down": "A", "up": "B"}.get(m["half"], m["half"])
            halves.setdefault((m["layer"], m["adapter"] or "", bool(m["table"])), {})[half] = name
    found = []
    for (layer, adapter, transposed), both in halves.items():
        base = next((b for b in (f"{layer}.base_layer.weight", f"{layer}.weight") if b in there), None)
        if len(both) == 2 and base is not None:
            found.append(Pair(base, both["A"], both["B"], adapter, transposed))
    return found


@dataclass(frozen=True, eq=False)
class _Merged:
    """A weight with its adaptation, merged when it is read."""

    parts: tuple[Stored, Stored, Stored]
    chain: tuple[Transform, ...]

    @property
    def shape(self) -> Shape:
        return self.parts[0].shape

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    def read(self) -> Array:
        return transforms.apply(self.chain, [p.read() for p in self.parts])[0]


class MergedSource:
    """A PyTorch source with its adaptations merged: the names are those of the network without them.

    ``known``, what a mapping calls its parameters, may have the level ``base_layer`` itself: then it stays.

    Attributes:
        merged: the names of the weights that something was merged into.

    Raises:
        ConversionError: there is nothing to merge, or it cannot be merged.
        SourceError: the source has no tensors.
    """

    framework: Framework = "torch"

    def __init__(self, source: Source, merge: Merge, known: Iterable[str] = ()) -> None:
        if source.framework != "torch":
            raise ConversionError(f"{source.text}: LoRA is merged on the way from PyTorch, not back")
        self.text, self.notes = source.text, source.notes
        tensors = source.tensors()
        found = {p.base: p for p in merge.pairs(tensors)}
        away = {n for p in found.values() for n in (p.a, p.b)}
        bare = not any(plain(name) != name for name in known)
        names = {name: plain(name, tensors) if bare else name for name in tensors}
        self._tensors: dict[str, Stored] = {}
        for name, tensor in tensors.items():
            if name in away:
                continue
            pair = found.get(name)
            if pair is not None:
                parts = (tensor, tensors[pair.a], tensors[pair.b])
                merge.check(name, merge.chain(pair), [t.shape for t in parts], [t.dtype for t in parts])
                tensor = _Merged(parts, merge.chain(pair))
            self._tensors[names[name]] = tensor
        listing = source.listing()
        self._listing = Listing(
            "torch",
            tuple(
                replace(p, name=names[p.name], aliases=tuple(names.get(a, a) for a in p.aliases))
                for p in listing
                if p.name not in away
            ),
            listing.source,
        )
        self.merged = tuple(names[name] for name in found)

    def listing(self) -> Listing:
        return self._listing

    def tensors(self) -> dict[str, Stored]:
        return dict(self._tensors)

    def read(self) -> dict[str, Array]:
        return {name: tensor.read() for name, tensor in self._tensors.items()}

    def model(self) -> None:
        return None
