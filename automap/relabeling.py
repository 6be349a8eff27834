"""A mapping as a change of places: gradients and directions go through it as the parameters do, both ways.

An entry that does more to its arrays than to put elements in other places is left out: through a scaling, say, a
gradient goes by another rule than the values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap import conversion, transforms
from automap.dtypes import Array
from automap.errors import TransformError
from automap.graph import Listing
from automap.mapping import Entry
from automap.mapping import Mapping as ParameterMapping
from automap.transforms import Transform

#: The names of a compared piece: PyTorch's and MindSpore's.
Key = tuple[tuple[str, ...], tuple[str, ...]]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Link:
    """One entry of a mapping that puts elements in other places, and does nothing else.

    Attributes:
        torch: PyTorch's names; a tied parameter has the same one in all links.
        mindspore: MindSpore's names.
        there: the transforms from PyTorch to MindSpore.
        back: those from MindSpore to PyTorch.
    """

    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    there: tuple[Transform, ...] = ()
    back: tuple[Transform, ...] = ()

    def to_mindspore(self, values: Arrays) -> dict[str, Array]:
        """PyTorch's values at MindSpore's names."""
        made = transforms.apply(self.there, [values[name] for name in self.torch])
        return dict(zip(self.mindspore, made, strict=True))

    def to_torch(self, values: Arrays) -> dict[str, Array]:
        """MindSpore's values at PyTorch's names."""
        made = transforms.apply(self.back, [values[name] for name in self.mindspore])
        return dict(zip(self.torch, made, strict=True))


@dataclass(frozen=True)
class Links:
    """The trained part of a mapping.

    Attributes:
        links: one for each entry that can be compared.
        left_out: parameters of the other entries that PyTorch trains, each with the reason.
        frozen: MindSpore parameters that ask for no gradient though PyTorch's do.
    """

    links: tuple[Link, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    frozen: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        mapping: ParameterMapping,
        listing: Listing,
        target: Listing,
        trained: Collection[str],
        ms_trained: Collection[str],
    ) -> Links:
        """Find them.

        Args:
            mapping: from PyTorch to MindSpore; it fits both listings.
            listing: PyTorch's parameters.
            target: MindSpore's.
            trained: the names of those that ask for a gradient in PyTorch.
            ms_trained: the same in MindSpore.
        """
        params = {name: p for p in listing for name in (p.name, *p.aliases)}
        goals = target.by_name
        change = conversion.prefix_change(set(mapping.names("torch")), params.keys())
        ms_change = conversion.prefix_change(set(mapping.names("mindspore")), goals.keys())
        links, left_out, frozen = [], [], []
        called: dict[str, str] = {}  # a tied parameter by the name that the mapping has first
        for entry in mapping.entries:
            names = [conversion.renamed(name, *change) for name in entry.torch]
            if not all(name in params and params[name].kind == "parameter" for name in names):
                continue  # a buffer: nothing trains it
            ms_names = tuple(conversion.renamed(name, *ms_change) for name in entry.mindspore)
            if not all(name in goals for name in ms_names):
                continue
            if not any(name in trained for name in names):
                floats = "float" in (params[names[0]].dtype or "float")
                left_out += [(name, "frozen in PyTorch") for name in names if floats]
                continue
            made = _link(
                tuple(called.setdefault(params[name].name, name) for name in names),
                ms_names,
                entry,
                [params[name].shape or () for name in names],
                [goals[name].shape or () for name in ms_names],
            )
            if isinstance(made, Link):
                links.append(made)
                frozen += [name for name in ms_names if name not in ms_trained]
            else:
                left_out += [(name, made) for name in names]
        return cls(tuple(links), tuple(left_out), tuple(frozen))

    @property
    def torch(self) -> tuple[str, ...]:
        """PyTorch's names, each once."""
        return tuple(dict.fromkeys(name for link in self.links for name in link.torch))

    @property
    def mindspore(self) -> tuple[str, ...]:
        """MindSpore's names."""
        return tuple(name for link in self.links for name in link.mindspore)

    def to_mindspore(self, values: Arrays) -> dict[str, Array]:
        """Values of PyTorch's parameters (or a direction in their space) at MindSpore's names."""
        return {name: array for link in self.links for name, array in link.to_mindspore(values).items()}

    def to_torch(self, gradients: Arrays) -> dict[str, Array]:
        """MindSpore's gradients at PyTorch's names: summed where one parameter is several in MindSpore."""
        out: dict[str, Array] = {}
        for link in self.links:
            for name, array in link.to_torch(gradients).items():
                out[name] = out[name] + array if name in out else array
        return out

    def torch_pieces(self, gradients: Arrays) -> dict[Key, Array]:
        """PyTorch's gradients in the pieces in which they are compared: the finer parts of the two sides."""
        pieces: dict[Key, Array] = {}
        for link, shared in self._each():
            if shared or len(link.mindspore) < len(link.torch):
                pieces |= {self._key(name, link, shared): gradients[name] for name in link.torch}
            else:
                pieces |= {(link.torch, (name,)): a for name, a in link.to_mindspore(gradients).items()}
        return pieces

    def mindspore_pieces(self, gradients: Arrays) -> dict[Key, Array]:
        """The same of MindSpore's gradients."""
        pieces: dict[Key, Array] = {}
        for link, shared in self._each():
            if shared or len(link.mindspore) < len(link.torch):
                for name, array in link.to_torch(gradients).items():
                    key = self._key(name, link, shared)
                    pieces[key] = pieces[key] + array if key in pieces else array
            else:
                pieces |= {(link.torch, (name,)): gradients[name] for name in link.mindspore}
        return pieces

    def shared(self) -> dict[str, tuple[str, ...]]:
        """Tied weights that the port parts: PyTorch's name, and all names that the parameter has in MindSpore."""
        uses: dict[str, list[Link]] = {}
        for link in self.links:
            for name in dict.fromkeys(link.torch):
                uses.setdefault(name, []).append(link)
        return {n: tuple(m for u in used for m in u.mindspore) for n, used in uses.items() if len(used) > 1}

    def _each(self) -> Iterator[tuple[Link, Mapping[str, tuple[str, ...]]]]:
        every = self.shared()
        for link in self.links:
            yield link, {name: every[name] for name in link.torch if name in every}

    @staticmethod
    def _key(name: str, link: Link, shared: Mapping[str, tuple[str, ...]]) -> Key:
        return (name,), shared.get(name, link.mindspore)


def _link(
    torch: tuple[str, ...],
    mindspore: tuple[str, ...],
    entry: Entry,
    shapes: Sequence[tuple[int, ...]],
    goals: Sequence[tuple[int, ...]],
) -> Link | str:
    """An entry as a link, or why it is none.

    It is tried out: numbered elements go through the transforms, and have to come out, each once.
    """
    chain = tuple(t for t in entry.transform if t.op != "cast")  # a gradient keeps its own precision
    if not chain and list(shapes) != list(goals) and len(shapes) == len(goals) == 1:
        chain = (Transform("reshape", {"shape": goals[0]}),)  # as the conversion does it
    if not chain:
        return Link(torch, mindspore)
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    numbered = [np.arange(a, b).reshape(s) for a, b, s in zip(ends, ends[1:], shapes, strict=False)]
    words = f"{transforms.to_text(chain)} is no change of places"
    try:
        out = np.concatenate([a.reshape(-1) for a in transforms.apply(chain, numbered)])
        back = transforms.inverse(chain, shapes)
    except (TransformError, TypeError, ValueError):
        return words
    if out.dtype.kind not in "iu" or out.size != ends[-1]:
        return words
    seen = np.zeros(out.size, bool)
    seen[out[(out >= 0) & (out < out.size)]] = True
    return Link(torch, mindspore, chain, back) if seen.all() else words
