"""Weights that the user gives for a PyTorch network, checked against the network."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from automap.checkpoints import wrapper_prefix
from automap.dtypes import Array, dtype_name
from automap.errors import ConversionError
from automap.graph import Listing


def fitting(weights: Any, listing: Listing, further: Collection[str] = ()) -> tuple[dict[str, Array], str]:
    """The tensors of a checkpoint or state dict that a network has.

    Args:
        weights: whatever :func:`automap.sources.open_source` takes.
        listing: of the PyTorch network.
        further: names that the network has beside those of the listing.

    Returns:
        The tensors by the network's own names, and a sentence about those that it has not (or ``""``).

    Raises:
        SourceError: there are no tensors.
        ConversionError: a parameter is absent; all of them are named.
    """
    from automap.sources import open_source

    read = open_source(weights, "torch").read()
    ours, theirs = (wrapper_prefix(names) for names in ((p.name for p in listing), read))
    read = {ours + name.removeprefix(theirs): array for name, array in read.items()}
    known = {name for p in listing for name in (p.name, *p.aliases)}.union(further)
    absent = [
        p.name for p in listing if p.kind == "parameter" and not any(name in read for name in (p.name, *p.aliases))
    ]
    if absent:
        offenders = [f"{name}: absent" for name in absent]
        raise ConversionError(f"the weights lack {len(absent)} parameter(s): {some(absent)}", offenders)
    unused = [name for name in read if name not in known]
    note = f"the weights have {some(unused)} beside the network; not used" if unused else ""
    return {name: array for name, array in read.items() if name in known}, note


def fingerprint(values: Mapping[str, Array]) -> str:
    """A SHA-256 over names, element types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = values[name]
        digest.update(f"{name}\0{dtype_name(array)}\0{array.shape}\0".encode())
        digest.update(memoryview(array.tobytes()))
    return f"sha256:{digest.hexdigest()}"


def some(names: Collection[str], shown: int = 3) -> str:
    """The first names of many."""
    first = list(names)[:shown]
    return ", ".join(first) + (f" and {len(names) - shown} more" if len(names) > shown else "")
