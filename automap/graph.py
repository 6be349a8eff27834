"""Parameters in their order, and the module tree above them: what a model is to the rest of automap.

Values are frozen, comparable, and hold no tensor.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from automap.errors import ListingError

if TYPE_CHECKING:
    import networkx as nx

    from automap.lora import Merge
    from automap.tracing import Trace

Framework = Literal["torch", "mindspore"]
Shape = tuple[int, ...]

#: What a listed tensor is: a trained parameter, a persistent buffer, or a state of an optimizer beside the network.
Kind = Literal["parameter", "buffer", "optimizer"]


@dataclass(frozen=True)
class Param:
    """One parameter or persistent buffer of a model.

    Attributes:
        name: its name in checkpoints (for MindSpore ``Parameter.name``).
        shape: its shape, or None where the listing does not tell.
        dtype: its element type as both frameworks write it (``float32``), or None.
        kind: parameter, buffer or optimizer state; a bare listing calls everything a parameter.
        owner: the class name of the module that owns it (``Conv2d``), or None.
        path: the attribute path, where it differs from the name (MindSpore), else None.
        aliases: further names of the same tensor (tied weights).
        eps: what the norm that owns it adds to its running variance, where a live network tells; of no other parameter.
    """

    name: str
    shape: Shape | None = None
    dtype: str | None = None
    kind: Kind = "parameter"
    owner: str | None = None
    path: str | None = None
    aliases: tuple[str, ...] = ()
    eps: float | None = field(default=None, compare=False)

    @property
    def module(self) -> str:
        """The name of the module that owns it: all but the last part of its name."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """The last part of its name, such as ``weight``."""
        return self.name.rpartition(".")[2]

    @property
    def size(self) -> int | None:
        """How many elements it has, or None where the shape is unknown."""
        if self.shape is None:
            return None
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True)
class Listing:
    """The parameters of one model in definition order.

    Attributes:
        framework: ``"torch"`` or ``"mindspore"``.
        parameters: in definition order; names are unique.
        source: where it came from, in the user's words.
        merge: how low-rank adaptations in it are merged into their weights; None: they are parameters like others.

    Raises:
        ListingError: nothing is listed, or a name is listed twice.
    """

    framework: Framework
    parameters: tuple[Param, ...]
    source: str = field(default="", compare=False)
    merge: Merge | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        where = self.source or f"the {self.framework} listing"
        if not self.parameters:
            raise ListingError(f"{where} lists no parameter: is it the right model or file?", self.source)
        seen: set[str] = set()
        twice = []
        for p in self.parameters:
            if p.name in seen:
                twice.append(p.name)
            seen.add(p.name)
        if twice:
            names = ", ".join(dict.fromkeys(twice[:3])) + (" …" if len(twice) > 3 else "")
            raise ListingError(f"{where} lists {len(twice)} name(s) twice ({names}): names must be unique", self.source)

    def __len__(self) -> int:
        return len(self.parameters)

    def __iter__(self) -> Iterator[Param]:
        return iter(self.parameters)

    @cached_property
    def by_name(self) -> dict[str, Param]:
        """The parameters by their names."""
        return {p.name: p for p in self.parameters}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {p.name: i for i, p in enumerate(self.parameters)}

    def first(self, name: str) -> str:
        """The first name, in definition order, of the parameter that has this one: tied ones have several."""
        aliases = self.by_name[name].aliases
        return min((name, *aliases), key=self._places.__getitem__) if aliases else name

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:…`` over names, shapes and dtypes in order: it changes whenever the model's listing does."""
        h = hashlib.sha256()
        for p in self.parameters:
            h.update(f"{p.name}\t{'?' if p.shape is None else list(p.shape)}\t{p.dtype or '?'}\n".encode())
        return "sha256:" + h.hexdigest()

    def graph(self, trace: Trace | None = None) -> nx.DiGraph:
        """The parameter graph: modules and parameters as nodes, containment and definition order as edges.

        With a trace also the order of execution and the flow of data between the modules that own parameters.

        Nodes have ``kind`` (``"module"`` or a parameter's kind); parameters also ``shape`` and ``dtype``. Edges have
        ``kind``: ``"contains"`` from a module to its children, ``"next"`` from a parameter to the next one defined,
        ``"then"`` from a module to the one called next, ``"feeds"`` from a module to one that gets its output (which
        stands where both hold). The root module is ``""``.
        """
        import networkx as nx

        g = nx.DiGraph(framework=self.framework, source=self.source)
        g.add_node("", kind="module")
        previous = None
        for p in self.parameters:
            parent = ""
            for part in ancestors(p.name):
                if ("module", part) not in g:
                    g.add_node(("module", part), kind="module")
                    g.add_edge(parent if parent == "" else ("module", parent), ("module", part), kind="contains")
                parent = part
            g.add_node(p.name, kind=p.kind, shape=p.shape, dtype=p.dtype)
            g.add_edge(parent if parent == "" else ("module", parent), p.name, kind="contains")
            if previous is not None:
                g.add_edge(previous, p.name, kind="next")
            previous = p.name
        if trace is not None:
            nodes = [("module", c.path) if c.path else "" for c in trace.calls]
            for a, b in itertools.pairwise(nodes):
                if a != b and not g.has_edge(a, b):
                    g.add_edge(a, b, kind="then")
            for i, j in trace.edges:
                a, b = nodes[i], nodes[j]
                if a != b and g.edges.get((a, b), {}).get("kind") != "contains":
                    g.add_edge(a, b, kind="feeds")
        return g


def ancestors(name: str) -> Iterable[str]:
    """The modules above a dotted name, outermost first: ``a.b.c`` gives ``a`` and ``a.b``."""
    at = name.find(".")
    while at >= 0:
        yield name[:at]
        at = name.find(".", at + 1)
