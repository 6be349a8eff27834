"""What to do with an array so that it fits the parameter that it is meant for, where the two differ in form alone.

Some differences are none of the numbers: dimensions of size 1, one value instead of many equal ones. These are taken
care of, and said. Others change what the network computes (a table of positions of another length, a padded
vocabulary), so they are an error with the sizes and what to do, unless they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isqrt, prod
from typing import TypeVar

from automap.errors import ConversionError
from automap.graph import Shape
from automap.transforms import Transform, to_text

#: Words in a name that say that its parameter is a table of positions.
_POSITIONS = re.compile(r"(?<![a-z])(r?pos(?:emb[a-z]*)?(?![a-z])|positions?(?![a-z])|positional)", re.IGNORECASE)

#: How many positions in front a grid may have that belong to no place of it (tokens of a class, of a distillation).
_PREFIXES = range(1, 9)

#: Positions in front are at least this many times fewer than the others.
_FEW = 16

T = TypeVar("T")

_GRID = re.compile(r"(?:(\d+)\+)?(\d+(?:x\d+){0,2}):(\d+(?:x\d+){0,2})(?:,(linear|cubic))?")


@dataclass(frozen=True)
class Fit:
    """How an array becomes what it is meant for.

    Attributes:
        steps: the transforms.
        said: what they do, in words; "" for dimensions of size 1.
    """

    steps: tuple[Transform, ...]
    said: str = ""


class MisfitError(Exception):
    """An array that cannot become what it is meant for; the message says what to do, if there is something.

    Attributes:
        length: whether it has another length, which can be changed if the user asks for it.
    """

    def __init__(self, message: str = "", length: bool = False) -> None:
        super().__init__(message)
        self.length = length


@dataclass(frozen=True)
class Wishes:
    """What a user allows, beyond what keeps all numbers.

    Attributes:
        resize: interpolate tables of positions: those whose names say so, or the parameters named by patterns (such as
            ``*.place.weight``), each with how it is to be read where its sizes do not tell (``1+14x14:24x24``, after
            which ``,linear`` or ``,cubic`` can stand).
        pad_vocab: the value to fill the end of a longer vocabulary with, by pattern of names.
        cut_vocab: the parameters whose vocabulary may lose its end, as patterns.
    """

    resize: dict[str, str] = field(default_factory=dict)
    pad_vocab: dict[str, float] = field(default_factory=dict)
    cut_vocab: tuple[str, ...] = ()

    @classmethod
    def of(cls, resize: object = False, pad_vocab: object = None, cut_vocab: object = False) -> Wishes:
        """Wishes as a caller gives them.

        Args:
            resize: True, or patterns: each a string ``PATTERN`` or ``PATTERN=GRID:GRID``; "" among them is True.
            pad_vocab: a number, or patterns with a number each.
            cut_vocab: True, or patterns.

        Raises:
            ConversionError: something else is given.
        """
        grids = {"": ""} if resize is True else dict(_pair(text) for text in _texts("resize", resize))
        for pattern, grid in grids.items():
            if not grid:
                continue
            m = _GRID.fullmatch(grid)
            if m is None:
                raise ConversionError(
                    f"resize: {pattern}={grid} is not understood: write it like {pattern}=1+14x14:24x24, "
                    "the positions in front, the grid there is, and the grid that is wanted"
                )
            if m[2].count("x") != m[3].count("x"):
                raise ConversionError(f"resize: {pattern}={grid}: both grids need as many sizes")
        if isinstance(pad_vocab, Dict):
            values = {str(k): v for k, v in pad_vocab.items()}
        else:
            values = {} if pad_vocab is None else {"": pad_vocab}
        for value in values.values():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ConversionError(f"pad_vocab must be a number, or patterns of names with one each, not {value!r}")
        cut = ("",) if cut_vocab is True else tuple(_texts("cut_vocab", cut_vocab))
        return cls(grids, {k: float(v) for k, v in values.items()}, cut)

    def __bool__(self) -> bool:
        return bool(self.resize or self.pad_vocab or self.cut_vocab)


class Fitter:
    """Finds what to do with each array of a conversion, and keeps to what is allowed in it as a whole."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes = wishes
        self._vocabulary: dict[str, tuple[str, str, str]] = {}

    def fit(self, shape: Shape, goal: Shape, names: Sequence[str]) -> Fit:
        """How an array of one shape becomes one of another.

        Args:
            shape: what there is.
            goal: what is wanted.
            names: what the parameter is called on either side.

        Raises:
            MisfitError: it cannot, or it is not allowed.
        """
        if _slim(shape) == _slim(goal) or _is_one_channel(shape, goal) or _is_one_channel(goal, shape):
            said = "" if _slim(shape) == _slim(goal) else f"{_times(shape)} laid out as {_times(goal)}"
            return Fit((Transform("reshape", {"shape": goal, "before": shape}),), said)
        for one, many, op in ((shape, goal, "expand"), (goal, shape, "collapse")):
            if one == (1,) and len(_slim(many)) == 1:
                return _repeated(shape, goal, op)
        axes = [i for i, (a, b) in enumerate(zip(shape, goal, strict=False)) if a != b]
        if len(shape) == len(goal) and axes[-1] - axes[0] < len(axes) and prod(shape) != prod(goal) and 0 not in shape:
            return self._longer(shape, goal, axes, names)
        raise MisfitError(_advice(shape, goal))

    def _longer(self, shape: Shape, goal: Shape, axes: list[int], names: Sequence[str]) -> Fit:
        """Another length along one axis, or along neighbouring ones that are a grid."""
        where = f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes[0]} to {axes[-1]}"
        old, new = (_times([s[i] for i in axes]) for s in (shape, goal))
        is_table = any(_POSITIONS.search(name) for name in names)
        grid = _wish(self.wishes.resize, names, is_table)
        if grid is not None and len(axes) < 4:
            return _resized(shape, goal, axes, grid[1])
        axis, longer = axes[0], goal[axes[0]] > shape[axes[0]]
        allowed = self.wishes.pad_vocab if longer else dict.fromkeys(self.wishes.cut_vocab, 0.0)
        vocabulary = _wish(allowed, names, not is_table) if len(axes) == 1 else None
        if vocabulary is not None:
            pattern, value = vocabulary
            first = self._vocabulary.setdefault(pattern, (old, new, names[0]))
            if first[:2] != (old, new):
                raise MisfitError(
                    f"{where} has {old} and needs {new}, but in {first[2]} it is {first[0]} and {first[1]}: "
                    "which is the vocabulary? name it with a pattern"
                )
            if longer:
                step = Transform("pad", {"axis": axis, "size": goal[axis], "value": value, "before": shape[axis]})
                return Fit((step,), f"{where} filled up with {value:g} from {old} to {new}")
            step = Transform("slice", {"axis": axis, "start": 0, "stop": goal[axis]})
            return Fit((step,), f"{where} cut from {old} to {new}, the rest lost")
        # A vector alone says little: it is a bias beside a matrix that has the same length.
        raise MisfitError(_offset(shape, goal, axes) if is_table else "", length=is_table or len(shape) > 1)


def _slim(shape: Shape) -> list[int]:
    return [n for n in shape if n != 1]


def _repeated(shape: Shape, goal: Shape, op: str) -> Fit:
    """One value for many, or many for one."""
    size = max(prod(shape), prod(goal))
    flat = (1,) if op == "expand" else (size,)
    after = (size,) if op == "expand" else (1,)
    steps = [Transform(op, {"axis": 0, "size": size})]
    if shape != flat:
        steps.insert(0, Transform("reshape", {"shape": flat, "before": shape}))
    if goal != after:
        steps.append(Transform("reshape", {"shape": goal, "before": after}))
    said = f"one value repeated {size} times" if op == "expand" else f"{size} equal values as one"
    return Fit(tuple(steps), said)


def _is_one_channel(kernel: Shape, dense: Shape) -> bool:
    """Whether a kernel over one channel and a dense weight hold the same: there is one order that it can have."""
    return len(kernel) > 2 == len(dense) and kernel[1] == 1 and kernel[0] == dense[0] and prod(kernel) == prod(dense)


# -- other lengths ----------------------------------------------------------------------------------------------------


def _wish(wishes: dict[str, T], names: Sequence[str], default: bool) -> tuple[str, T] | None:
    """What is wished for a parameter, and by which pattern: one that fits its name, or that for all, if it means it."""
    for pattern, value in wishes.items():
        if pattern and any(fnmatchcase(name, pattern) for name in names):
            return pattern, value
    return ("", wishes[""]) if default and "" in wishes else None


def _resized(shape: Shape, goal: Shape, axes: list[int], grid: str) -> Fit:
    """A table of positions interpolated."""
    axis = axes[0]
    old, new = ([s[i] for i in axes] for s in (shape, goal))
    if len(axes) > 1:
        mode = (_GRID.fullmatch(grid) or [None] * 5)[4] or ("cubic" if len(axes) == 2 else "linear")
        n = len(axes)
        steps = (
            Transform("flatten", {"axis": axis, "count": n, "before": old}),
            Transform("resize", {"axis": axis, "grid": old, "to": new, "mode": mode}),
            Transform("unflatten", {"axis": axis, "sizes": new}),
        )
        return Fit(steps, f"interpolated from {_times(old)} to {_times(new)} ({mode})")
    if not grid and (words := _offset(shape, goal, axes)):
        raise MisfitError(f"{words}; to interpolate all the same: resize PATTERN={old[0]}:{new[0]}")
    prefix, old, new, mode = _reading(old[0], new[0], grid)
    args = {"axis": axis, "grid": old, "to": new, "mode": mode, **({"prefix": prefix} if prefix else {})}
    first = f"{prefix} + " if prefix else ""
    return Fit((Transform("resize", args),), f"interpolated from {first}{_times(old)} to {first}{_times(new)} ({mode})")


def _offset(shape: Shape, goal: Shape, axes: list[int]) -> str:
    """What to do where a table of positions is longer by a few, which may stand in front of the others; else ""."""
    old, new = shape[axes[0]], goal[axes[0]]
    more = abs(old - new)
    if len(axes) > 1 or more not in _PREFIXES or more * _FEW > min(old, new):
        return ""
    cut = Transform("slice", {"axis": axes[0], "start": more, "stop": old})
    what = f": the entry then needs {cut}" if old > new else ""
    return f"{more} more may be an offset, positions in front of the others{what}"


def _reading(old: int, new: int, grid: str) -> tuple[int, list[int], list[int], str]:
    """How many positions in front, the grid there is, the grid that is wanted, and how to interpolate."""
    if grid:
        m = _GRID.fullmatch(grid)
        assert m is not None  # it is checked where it is given
        before, after = ([int(n) for n in m[i].split("x")] for i in (2, 3))
        prefix = int(m[1] or 0)
        if (prefix + prod(before), prefix + prod(after)) != (old, new):
            raise MisfitError(f"{old} positions become {new}, which is not what {grid} says")
        return prefix, before, after, m[4] or ("cubic" if len(before) == 2 else "linear")
    squares = [p for p in (0, *_PREFIXES) if _side(old - p) and _side(new - p)]
    # Sequences have lengths that are powers of two, with or without some positions in front of them.
    if len(squares) == 1 and squares[0] and not (_is_power(old - squares[0]) and _is_power(new - squares[0])):
        p = squares[0]
        return p, [_side(old - p)] * 2, [_side(new - p)] * 2, "cubic"
    if squares:
        readings = [
            f"{p}+{_times([_side(old - p)] * 2)}:{_times([_side(new - p)] * 2)}".removeprefix("0+") for p in squares
        ]
        lines = [f"{p}+{old - p}:{new - p}".removeprefix("0+") for p in squares]
        ways = " or ".join([*readings, *lines])
        raise MisfitError(
            f"{old} positions become {new}, which can be read as {ways}: say which, with resize PATTERN=…"
        )
    return 0, [old], [new], "linear"


def _side(n: int) -> int:
    """The side of a square of so many places, 0 if there is none of more than one."""
    return isqrt(n) if n > 1 and isqrt(n) ** 2 == n else 0


def _is_power(n: int) -> bool:
    return n.bit_count() == 1


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


# -- what else there is to say ----------------------------------------------------------------------------------------


def _advice(shape: Shape, goal: Shape) -> str:
    """What a transform in the mapping could do about two shapes, or "" if nothing is known."""
    if len(shape) == len(goal) == 2 and shape == goal[::-1]:
        return "the entry needs transpose(axes=[1, 0])"
    if prod(shape) != prod(goal):
        return ""
    if sorted(shape) == sorted(goal):
        return "the entry needs a transpose"
    for kernel, dense in ((shape, goal), (goal, shape)):
        if len(kernel) > 2 == len(dense) and kernel[0] == dense[0]:
            last = [0, *range(2, len(kernel)), 1]
            turned = [kernel[i] for i in last]
            first_way = Transform("reshape", {"shape": goal})
            if kernel is shape:
                steps = [Transform("transpose", {"axes": last}), first_way]
            else:
                back = sorted(range(len(last)), key=last.__getitem__)
                steps = [Transform("reshape", {"shape": turned}), Transform("transpose", {"axes": back})]
            return (
                f"the entry needs {first_way} if channels come first in the dense weight, or {to_text(steps)} if last"
            )
    return "the entry needs a reshape"


def _texts(name: str, value: object) -> list[str]:
    if value is None or value is False:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence) and all(isinstance(v, str) for v in value):
        return list(value)
    raise ConversionError(f"{name} must be true, or patterns of names, not {value!r}")


def _pair(text: str) -> tuple[str, str]:
    pattern, _, grid = text.partition("=")
    return pattern, grid
