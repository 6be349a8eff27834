"""What a device has no kernel for is computed by something equal, for the time of a run.

Every operation of a network passes here. It is tried as it is; only when the device lacks a kernel for it (which is
found by trying, and remembered) something else computes the same: an equal made of other operations
(:mod:`automap.mindspore_equals`), or, where the element type is what is lacking, the operation itself in float32, its
result rounded to that type. What neither can do raises what MindSpore raised.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

# The edge comes first: it prepares the environment for MindSpore.
from automap import mindspore_edge as _edge  # noqa: F401  # isort: skip
import mindspore as ms
from mindspore import nn

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _pynative_executor

from automap.mindspore_equals import TABLE, Equal, NoEqualError

Native = Callable[[Sequence[Any], dict[str, Any]], Any]

#: Messages about an operation without a kernel on this device; the group names it.
LACKS = (
    re.compile(r"Unsupported op \[(\w+)\] on"),
    re.compile(r"The kernel (\w+) unregistered"),
    re.compile(r"Not found op (\w+) on device"),
    re.compile(r"Create kernelmod for op (\w+) failed"),
    re.compile(r"KernelMod Init Failed: (\w+)"),
    re.compile(r"^(\w+) only supports Ascend"),
    re.compile(r"'(\w+)' is not supported on this device"),
)
#: Messages about an operation without a kernel for an element type. A type that ordinary inputs have is the input's
#: fault, one that only a network in low precision has is this machine's.
LACKS_TYPE = (
    re.compile(r"Select \w+ operator\[(\w+)\] fail.*but get input.*?(BFloat16|Float16|Float8\w*)", re.S),
    re.compile(
        r"For primitive\[(\w+)\].*must be a type of.*but got (?:Ref\[)?(?:Tensor\[)?"
        r"(BFloat16|Float16|Float8\w*|Float64)\]?",
        re.S,
    ),
)

_LOW = (ms.bfloat16, ms.float16)
_HIGH = (ms.float32, ms.float64)

#: Operations whose operands are not cast to the precision of their cell (``to_float``).
_KEEP_TYPE = {"Cast", "Assign", "InplaceCopy", "Tensor.__setitem__"}
_WORD = {ms.bfloat16: "bfloat16", ms.float16: "float16", ms.float32: "float32", ms.float64: "float64"}

#: Whether an operation runs as it is, by device, name and element types; filled as networks run. For one that does
#: not, also the element type that its result would have had, where MindSpore told.
_runs: dict[tuple[Any, ...], tuple[bool, Any]] = {}

#: What MindSpore says of the result of an operation that it has no kernel for.
_RESULT = re.compile(r"output\[\[const vector\]\{(BFloat16|Float16|Float32)\b")

#: Methods of tensors that compute nothing.
_NO_OPERATIONS = re.compile(
    r"_(?!_)|set_|__(new|init|repr|str|getstate|setstate|doc|module|metaclass|getitem)__|asnumpy|data_sync|from_|to_dlpack|"
    r"pin_memory|is_|setitem_|getitem_|get_bytes|convert_|dim$|assign_value|offload|move_to|wait_pipeline|stride|"
    r"storage|register_|remove_|hooks|untyped|requires_grad|clone$|to$|type_as|view|reshape|permute|transpose|t$|"
    r"squeeze|unsqueeze|expand|new_|copy_$"
)


class StandIns:
    """The stand-ins for one network, and what they stood in for.

    Args:
        every: try every operation, also those that all devices have for float32. It costs some time at each, so a
            network without low precision can do without.
    """

    def __init__(self, every: bool = False) -> None:
        self.every = every
        self._precision: Sequence[Any] = ()
        self._inside = False
        self._device = ""
        self._equal: dict[tuple[str, str, bool], set[int]] = defaultdict(set)  # (what, by whom, a layer): places
        self._wider: dict[tuple[str, str, bool], set[int]] = defaultdict(set)  # (what, type, a layer): places

    @contextmanager
    def active(self, precision: Sequence[Any] = ()) -> Iterator[None]:
        """Every operation goes through here until the end; then all functions are what they were.

        Args:
            precision: what operands of every operation are to be cast to (``to_float``), the innermost last, read at
                each operation. MindSpore must not do it, or it would cast those of the stand-ins, too.
        """
        self._precision, self._device = precision, ms.get_context("device_target")
        places = _places(self.every, len(sys.modules))
        own = [vars(owner).get(name) for owner, name, _ in places]
        try:
            for owner, name, wrap in places:
                setattr(owner, name, wrap(getattr(owner, name), self._run))
            yield
        finally:
            for (owner, name, _), value in zip(places, own, strict=True):
                if value is None:
                    delattr(owner, name)  # a method that tensors inherit
                else:
                    setattr(owner, name, value)

    def remarks(self) -> tuple[str, ...]:
        """What was computed otherwise, one sentence for each kind."""
        made = []
        for (what, by, layer), places in sorted(self._equal.items()):
            made.append(f"{what}{_count(places, layer)}: computed by {by}, it has no kernel on {self._device}")
        bare: dict[str, list[str]] = defaultdict(list)
        for (what, dtype, layer), places in sorted(self._wider.items()):
            if layer:
                made.append(
                    f"{what} in {dtype}{_count(places, layer)}: computed in float32 and rounded, "
                    f"it has no kernel for {dtype} on {self._device}"
                )
            else:
                bare[dtype].append(what)
        for dtype, names in bare.items():
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            made.append(
                f"{len(names)} operation(s) in {dtype} ({shown}): computed in float32 and rounded, "
                f"no kernel for {dtype} on {self._device}"
            )
        return tuple(made)

    def _run(self, name: str, prim: Any, native: Native, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One operation, as it is or by what stands in for it."""
        if not self.every and name not in TABLE:
            return native(args, kwargs)
        if (wanted := _pushed(self._precision)) is not None and name not in _KEEP_TYPE:
            args, kwargs = [_cast(a, wanted) for a in args], {k: _cast(v, wanted) for k, v in kwargs.items()}
        # Asking for a type waits until the operation before has got one.
        types = (*_types(args), *_types(kwargs.values())) if self.every else ()
        key = (self._device, name, types)
        runs, result_type = _runs.get(key, (None, None))
        if runs:
            return native(args, kwargs)
        if runs is not None:
            return self._instead(name, prim, native, args, kwargs, result_type)
        _pynative_executor.sync()  # what an earlier operation raises is no word on this one
        try:
            result = native(args, kwargs)
            _pynative_executor.sync()
            _runs[key] = True, None
        except (RuntimeError, TypeError, ValueError) as error:
            if not _lacking(error, {*_types(args), *_types(kwargs.values())}):
                raise
            said = _RESULT.search(str(error))
            result_type = getattr(ms, said[1].lower()) if said else None
            try:
                result = self._instead(name, prim, native, args, kwargs, result_type)
                _pynative_executor.sync()
            except NoEqualError as other:
                raise NoEqualError(name, *other.args) from error
            except Exception as other:
                raise error from other
            _runs[key] = False, result_type
        return result

    def _instead(
        self,
        name: str,
        prim: Any,
        native: Native,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result_type: Any,
    ) -> Any:
        """The operation by its equal, or in float32.

        Raises:
            LookupError: there is no other way.
            NoEqualError: nor is there one for such arguments.
        """
        types = {t for t in (*_types(args), *_types(kwargs.values())) if t is not None}
        low = next((t for t in _LOW if t in types), None)
        equal = TABLE.get(name)
        if equal is None and low is None:
            raise LookupError(name)
        wide = [_cast(a, ms.float32) for a in args] if low is not None else list(args)
        wide_kwargs = {k: _cast(v, ms.float32) for k, v in kwargs.items()} if low is not None else kwargs
        outermost, self._inside = not self._inside, True
        try:
            if equal is not None:
                result = equal.compute(prim, *wide, **wide_kwargs)
            else:
                result = native(wide, wide_kwargs)
        finally:
            self._inside = not outermost
        if outermost:
            self._note(name, equal, None if low is None else _WORD[low])
        if low is None:
            return result
        if _in_place(name):
            _write_back(args[0], wide[0])
            return result if result is None else args[0]
        if result_type is None:
            wider = types & set(_HIGH) or _wants_type(prim, args, kwargs)
            result_type = None if wider else low
        return _narrowed(result, result_type) if result_type in _LOW else result

    def _note(self, name: str, equal: Equal | None, dtype: str | None) -> None:
        """Remember the layer, or the operation by itself, that was computed otherwise."""
        cell = _cell_at_work(sys._getframe(2))
        layer = cell is not None and type(cell).__module__.startswith("mindspore.")
        if layer:
            cls: Any = type(cell)
            what = _public_name(cls)
        else:
            what = equal.called if equal is not None else name
        if equal is not None:
            self._equal[what, equal.by, layer].add(id(cell))
        else:
            self._wider[what, dtype or "", layer].add(id(cell))


# -- the places where MindSpore's operations can be met ---------------------------------------------------------------

Run = Callable[[str, Any, Native, Sequence[Any], dict[str, Any]], Any]


def _of_primitive(own: Any, run: Run) -> Callable[..., Any]:
    """``pyboost_xxx(primitive, [arguments])``, behind every primitive and what calls it."""

    def native(prim: Any) -> Native:
        return lambda args, kwargs: own(prim, list(args))

    def wrapped(prim: Any, args: Sequence[Any]) -> Any:
        return run(prim.name, prim, native(prim), args, {})

    return wrapped


def _of_old_primitive(own: Any, run: Run) -> Callable[..., Any]:
    """``_run_op(primitive, name, arguments)``, behind the primitives of older make."""

    def native(prim: Any, name: str) -> Native:
        return lambda args, kwargs: own(prim, name, tuple(args))

    def wrapped(prim: Any, name: str, args: Sequence[Any]) -> Any:
        return run(name, prim, native(prim, name), args, {})

    return wrapped


def _of_inner(own: Any, run: Run) -> Callable[..., Any]:
    """The call of a class of primitives that are C++ throughout."""

    def wrapped(prim: Any, *args: Any) -> Any:
        return run(_inner_name(type(prim)), prim, lambda a, kwargs: own(prim, *a), args, {})

    return wrapped


def _of_function(name: str) -> Callable[[Any, Run], Callable[..., Any]]:
    """A function, or a method of tensors, with several primitives behind it."""

    def wrap(own: Any, run: Run) -> Callable[..., Any]:
        def native(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            return own(*args, **kwargs)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return run(name, None, native, args, kwargs)

        return wrapped

    return wrap


Place = tuple[Any, str, Callable[[Any, Run], Callable[..., Any]]]


@functools.lru_cache(maxsize=2)
def _places(every: bool, modules: int) -> tuple[Place, ...]:
    """Where to put the stand-ins: the owner, the attribute, and how what is there is wrapped.

    Args:
        every: all operations, not only those in the table.
        modules: how many are imported; with another one there may be more places.
    """
    known = {name.lower().removesuffix("ext") for name in TABLE}

    def wanted(name: str) -> bool:  # ``Mm`` is behind ``pyboost_mm_ext``, and ``SortExt`` behind ``pyboost_sort_ext``
        return every or name.replace("_", "").lower().removesuffix("ext") in known

    found: list[Place] = []
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("mindspore.") or module is None or module_name == "mindspore._c_expression":
            continue
        for name, value in list(vars(module).items()):
            if name.startswith("pyboost_") and wanted(name.removeprefix("pyboost_")):
                found.append((module, name, _of_primitive))
            elif name == "_run_op" and callable(value):
                found.append((module, name, _of_old_primitive))
            elif name.endswith("_instance") and type(value).__name__.endswith("Functional_"):
                public = name.removesuffix("_instance")[1:]
                if wanted(public):
                    found.append((module, name, _of_function(public)))
            elif name.startswith("_Pyboost") and isinstance(value, type) and "__call__" in vars(value):
                at_home = value.__module__ == module_name  # the class is met again wherever it is imported
                if at_home and wanted(_inner_name(value)):
                    found.append((value, "__call__", _of_inner))
    for name in _tensor_methods():
        if every or f"Tensor.{name}" in TABLE:
            found.append((ms.Tensor, name, _of_function(f"Tensor.{name}")))
    return tuple(found)


def _inner_name(cls: type) -> str:
    return cls.__name__.removeprefix("_Pyboost").removesuffix("Prim")


@functools.lru_cache(maxsize=1)
def _tensor_methods() -> tuple[str, ...]:
    """The methods of tensors that are C++ and compute something."""
    base = ms.Tensor.__mro__[1]
    return tuple(
        name
        for name, value in vars(base).items()
        if callable(value) and name not in vars(ms.Tensor) and not _NO_OPERATIONS.match(name)
    )


# -- element types ----------------------------------------------------------------------------------------------------


def _types(values: Any) -> Iterator[Any]:
    """The element type of each value that is a tensor, else None; those in a list one by one."""
    for value in values:
        if isinstance(value, ms.Tensor):
            yield value.dtype
        elif isinstance(value, (tuple, list)):
            yield from _types(value)
        else:
            yield None


def _pushed(precision: Sequence[Any]) -> Any:
    """The type that operands are cast to at present, or None."""
    name = getattr(precision[-1], "name", "") if precision else ""
    return {"BF16": ms.bfloat16, "FP16": ms.float16, "FP32": ms.float32}.get(name)


def _cast(value: Any, dtype: Any) -> Any:
    """A tensor of a floating-point type in another one; those in a list one by one."""
    if isinstance(value, ms.Tensor):
        return value.astype(dtype) if value.dtype in _WORD and value.dtype != dtype else value
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(v, dtype) for v in value)
    return value


def _narrowed(result: Any, low: Any) -> Any:
    if isinstance(result, ms.Tensor):
        return result.astype(low) if result.dtype == ms.float32 else result
    return tuple(_narrowed(r, low) for r in result) if isinstance(result, (tuple, list)) else result


def _lacking(error: Exception, types: set[Any]) -> bool:
    """Whether the error says that the device cannot do it (and not that nobody should)."""
    text = str(error)
    if any(p.search(text) for p in (*LACKS, *LACKS_TYPE)):
        return True
    # Kernels have many words for a type that they do not know. Where types are mixed, that itself may be the fault.
    return bool(types & set(_LOW)) and not types & set(_HIGH)


def _in_place(name: str) -> bool:
    name = name.removeprefix("Tensor.")
    if name.startswith("__"):
        return name == "__setitem__" or name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__")
    return name.startswith("Inplace") or name.endswith("_")


def _write_back(target: ms.Tensor, value: ms.Tensor) -> None:
    target.copy_(value.astype(target.dtype))


def _wants_type(prim: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the caller asked for an element type of the result."""
    if kwargs.get("dtype") is not None or any(isinstance(a, type(ms.float32)) for a in args):
        return True
    cls: Any = type(prim)
    place = None if prim is None else _dtype_place(cls)
    return place is not None and place < len(args) and args[place] is not None


@functools.cache
def _dtype_place(cls: Any) -> int | None:
    """Which argument of a primitive is the type of its result."""
    try:
        names = [n for n in inspect.signature(cls.__call__).parameters if n != "self"]
    except (TypeError, ValueError):
        return None
    return names.index("dtype") if "dtype" in names else None


# -- words ------------------------------------------------------------------------------------------------------------


def _count(places: set[int], layer: bool) -> str:
    if not layer:
        return ""
    return " (1 layer)" if len(places) == 1 else f" ({len(places)} layers)"


def _cell_at_work(frame: FrameType | None) -> nn.Cell | None:
    """The innermost cell whose code is running."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self" and code.co_name != "__call__":
            cell = frame.f_locals.get("self")
            if isinstance(cell, nn.Cell):
                return cell
        frame = frame.f_back
    return None


@functools.cache
def _public_name(cls: Any) -> str:
    """What users call a class of MindSpore: ``mint.nn.Conv2d``, ``nn.Dense``."""
    for prefix, module in (("nn", nn), ("mint.nn", getattr(getattr(ms, "mint", None), "nn", None))):
        for name, value in vars(module).items() if module is not None else ():
            if value is cls and not name.endswith("Ext"):
                return f"{prefix}.{name}"
    return str(cls.__name__)
