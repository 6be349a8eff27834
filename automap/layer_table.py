"""What PyTorch's layers and their counterparts in MindSpore call their parameters: the table's form, and looking up.

The facts themselves are in :mod:`automap.layer_rows`, as data. They are true of the frameworks' layers, whatever
network these stand in, and every line is tested against the frameworks: the names and their order, the shapes, the
defaults, and that weights brought over with the table give the same outputs.

Neither framework is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from automap.errors import InputError

Proven = Literal["running", "stand-in", "built"]

#: What a counterpart's facts stand on.
PROVEN: dict[str, str] = {
    "running": "both layers run with the same weights: the outputs agree",
    "stand-in": "both layers run, something equal in place of a kernel that the CPU lacks: the outputs agree",
    "built": "names, order and shapes of the built layer; nothing was run",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter or a stored buffer of a PyTorch layer.

    Attributes:
        name: inside the layer. ``{l}`` stands for the number of a layer or block, ``{d}`` for nothing and ``_reverse``.
        shape: symbols separated by commas; ``*x`` stands for several dimensions, ``""`` for none.
        when: the condition on PyTorch's hyper-parameters under which it is there, in Python; ``""``: always.
    """

    name: str
    shape: str
    when: str = ""


@dataclass(frozen=True)
class Other:
    """A parameter of MindSpore's layer.

    Attributes:
        name: inside the cell, where that is a part of a network.
        torch: PyTorch's name of it.
        shape: as there, where it differs from PyTorch's: the same elements in the same order; else None.
        alone: ``Parameter.name`` where the cell is the network itself, if it is another one; else ``""``.
        always: it is there also where PyTorch's is not.
    """

    name: str
    torch: str
    shape: str | None = None
    alone: str = ""
    always: bool = False

    @property
    def transform(self) -> str:
        """What happens to the array on its way, ``""`` for nothing; the shape in the table's symbols."""
        return "" if self.shape is None else f"reshape(shape=[{self.shape}])"


@dataclass(frozen=True)
class Default:
    """A hyper-parameter that the two frameworks set otherwise.

    Attributes:
        torch: PyTorch's, with its default value.
        mindspore: MindSpore's, with its default value.
        write: what to write in MindSpore to have what PyTorch does by default.
        effect: what happens otherwise.
    """

    torch: str
    mindspore: str
    write: str
    effect: str = ""


@dataclass(frozen=True)
class Counterpart:
    """MindSpore's layer for one of PyTorch's, or that there is none.

    Attributes:
        place: ``nn`` or ``mint.nn``.
        name: the class's name; ``""`` where the place has none.
        instead: what to use where there is none.
        parameters: in definition order.
        by_kind: those with numbers come kind by kind, not layer by layer: all first weights, then all second ones.
        called: hyper-parameters with another name: PyTorch's, then MindSpore's.
        defaults: hyper-parameters with another default value.
        lacks: PyTorch's hyper-parameters that MindSpore's layer has not.
        proven: what all this stands on, a key of ``PROVEN``.
        remarks: what else to know.
    """

    place: Literal["nn", "mint.nn"]
    name: str = ""
    instead: str = ""
    parameters: tuple[Other, ...] = ()
    by_kind: bool = False
    called: tuple[tuple[str, str], ...] = ()
    defaults: tuple[Default, ...] = ()
    lacks: tuple[str, ...] = ()
    proven: Proven | None = None
    remarks: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Such as ``mint.nn.Conv2d``; ``""`` where there is none."""
        return f"{self.place}.{self.name}" if self.name else ""


@dataclass(frozen=True)
class Row:
    """A layer of PyTorch with parameters, and its counterparts.

    Attributes:
        torch: the class in ``torch.nn``.
        parameters: in definition order, buffers that are stored after the parameters.
        counterparts: those in ``nn`` first; each place has at least one, if only to say that it lacks the layer.
        also: classes that are the same layer to a checkpoint.
        remarks: what else to know of PyTorch's layer.
    """

    torch: str
    parameters: tuple[Parameter, ...]
    counterparts: tuple[Counterpart, ...]
    also: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def pairs(self, counterpart: Counterpart) -> Iterator[tuple[Parameter, Other | None]]:
        """Each parameter of PyTorch's layer with MindSpore's, None where that has none."""
        by_torch = {other.torch: other for other in counterpart.parameters}
        for parameter in self.parameters:
            yield parameter, by_torch.get(parameter.name)


@dataclass(frozen=True)
class Reparametrization:
    """What PyTorch makes of a layer's parameter to compute it from others; MindSpore keeps the plain parameter.

    Attributes:
        torch: the function in ``torch.nn.utils``.
        parameters: what is stored in place of ``weight``, in order.
        weight: how ``weight`` is computed from them, in NumPy's words.
        remarks: what else to know.
    """

    torch: str
    parameters: tuple[Parameter, ...]
    weight: str
    remarks: tuple[str, ...] = ()


#: What MindSpore's ``nn`` calls the switch of a bias.
BIAS = ("bias", "has_bias")


def same(parameters: tuple[Parameter, ...]) -> tuple[Other, ...]:
    """The same names in the same order."""
    return tuple(Other(p.name, p.name) for p in parameters)


def lacking(place: Literal["nn", "mint.nn"], instead: str) -> Counterpart:
    return Counterpart(place, instead=instead)


@cache
def rows() -> tuple[Row, ...]:
    """The table."""
    from automap.layer_rows import ROWS

    return ROWS


@cache
def reparametrizations() -> tuple[Reparametrization, ...]:
    """What PyTorch makes of weights to compute them from others."""
    from automap.layer_rows import REPARAMETRIZATIONS

    return REPARAMETRIZATIONS


def names_of(row: Row) -> Iterator[str]:
    """Every name under which a row is found."""
    yield from (row.torch, *row.also)
    for counterpart in row.counterparts:
        if counterpart.name:
            yield counterpart.name


def find(name: str) -> tuple[Row, ...]:
    """The rows for a layer's name in either framework; case does not matter, nor does ``nn.`` before it.

    Raises:
        InputError: no layer with parameters has this name; the nearest ones are named.
    """
    word = name.strip().lower()
    for prefix in ("torch.", "mindspore.", "ms.", "mint.", "nn."):
        word = word.removeprefix(prefix)
    found = tuple(row for row in rows() if word in map(str.lower, names_of(row)))
    if found:
        return found
    near = _near(word)
    hint = f"did you mean {' or '.join(near)}?" if near else "automap layers shows all there are"
    raise InputError(f"no layer with parameters is called {name!r}: {hint}")


def _near(word: str) -> list[str]:
    from rapidfuzz import fuzz, process

    known = {n.lower(): n for row in rows() for n in names_of(row)}
    return [known[n] for n, _, _ in process.extract(word, list(known), scorer=fuzz.WRatio, limit=3, score_cutoff=75)]
