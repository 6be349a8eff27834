"""Stands around MindSpore's functions that a construct calls itself: activations, pools, softmax, joins, products.

They are reached by many roads: ``ops.relu``, ``mint.nn.functional.relu``, a method of a tensor, a name imported from
``ops``, or a primitive that the cell keeps. It imports MindSpore.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as edge  # isort: skip
import mindspore as ms
from mindspore import mint, nn, ops

from automap.operations import OPERATIONS, Observer, layer_of
from automap.settings import Layer

__all__ = ["edge", "observed"]

#: Primitives that a cell may keep and call: class, kind, and setting -> attribute.
_PRIMITIVES: dict[str, tuple[str, dict[str, str]]] = {
    "ReLU": ("relu", {}),
    "ReLU6": ("relu6", {}),
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
    "HSwish": ("hard_swish", {}),
    "HSigmoid": ("hard_sigmoid", {}),
    "Softmax": ("softmax", {"axis": "axis"}),
    "LogSoftmax": ("log_softmax", {"axis": "axis"}),
    "Concat": ("concat", {"axis": "axis"}),
    "MatMul": ("matmul", {}),
    "BatchMatMul": ("matmul", {}),
}


@contextmanager
def observed(observe: Observer, cells: Iterable[nn.Cell] = ()) -> Iterator[None]:
    """Every call of such a function goes through ``observe``, which returns what the caller gets.

    Args:
        observe: called as ``observe(name, layer, args, kwargs, call)``.
        cells: the network's cells; names that their files imported are found there.
    """
    inside = False

    def around(name: str, original: Callable[..., Any], kind: Callable[..., Layer]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:  # what a function calls itself is its own business
                return original(*args, **kwargs)

            def call(*a: Any, **k: Any) -> Any:
                nonlocal inside
                before, inside = inside, True
                try:
                    return original(*a, **k)
                finally:
                    inside = before

            return observe(name, kind(args, kwargs), args, kwargs, call)

        return watched

    changed: list[tuple[Any, str, Any, bool]] = []
    imported: list[tuple[dict[str, Any], str, Any]] = []

    def put(place: Any, attribute: str, value: Any) -> None:
        own = attribute in vars(place)
        changed.append((place, attribute, vars(place).get(attribute), own))
        setattr(place, attribute, value)

    try:
        replaced: dict[int, Any] = {}
        for name in OPERATIONS:
            kind = functools.partial(layer_of, "mindspore", name)
            for place in (ops, ops.function, mint, mint.nn.functional):
                original = vars(place).get(name)
                if callable(original):
                    if id(original) not in replaced:
                        replaced[id(original)] = around(name, original, kind)
                    put(place, name, replaced[id(original)])
            method = getattr(ms.Tensor, name, None)
            if callable(method):
                put(ms.Tensor, name, around(name, method, kind))
        product = functools.partial(layer_of, "mindspore", "matmul")
        put(ms.Tensor, "__matmul__", around("matmul", ms.Tensor.__matmul__, product))
        for names in _globals(cells):
            for attribute, value in list(names.items()):
                if id(value) in replaced and callable(value):
                    imported.append((names, attribute, value))
                    names[attribute] = replaced[id(value)]
        for primitive, (kind_word, attributes) in _PRIMITIVES.items():
            cls = getattr(ops, primitive, None)
            if isinstance(cls, type):
                put(cls, "__call__", _method(cls.__call__, kind_word, attributes, around))
        yield
    finally:
        for names, attribute, value in imported:
            names[attribute] = value
        for place, attribute, value, own in reversed(changed):
            if own:
                setattr(place, attribute, value)
            else:
                delattr(place, attribute)


def _globals(cells: Iterable[nn.Cell]) -> list[dict[str, Any]]:
    """The global names of the files that define these cells, but for MindSpore's own."""
    found: dict[int, dict[str, Any]] = {}
    for cell in cells:
        names = getattr(type(cell).construct, "__globals__", {})
        if not str(names.get("__name__", "")).startswith("mindspore."):
            found[id(names)] = names
    return list(found.values())


def _method(original: Callable[..., Any], kind: str, attributes: dict[str, str], around: Any) -> Callable[..., Any]:
    def called(primitive: Any, *args: Any, **kwargs: Any) -> Any:
        settings = {}
        for setting, attribute in attributes.items():
            value = getattr(primitive, attribute, None)
            settings[setting] = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        watched = around(
            type(primitive).__name__, functools.partial(original, primitive), lambda *_: Layer(kind, settings)
        )
        return watched(*args, **kwargs)

    return called
