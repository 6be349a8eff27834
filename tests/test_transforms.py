from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap import transforms
from automap.dtypes import Array, cast, widen
from automap.errors import TransformError
from automap.transforms import OPERATIONS, Transform

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int64", "bool"])
FLOATS = st.sampled_from(["float32", "float16", "bfloat16", "float64"])


def filled(shape: tuple[int, ...], dtype: str = "float32", start: int = 0) -> Array:
    """Distinct values (as far as the type has them), so that a wrong place shows."""
    return cast(np.arange(start, start + int(np.prod(shape))).reshape(shape), dtype)[0]


def same(a: Array, b: Array) -> bool:
    """The slow, obvious twin of ``is_same``."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# One strategy for every operation: a transform, and arrays that it takes. -------------------------------------------


@st.composite
def reshape(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(SHAPES)
    parts = [1, *shape] if draw(st.booleans()) else [int(np.prod(shape))]
    args = {"shape": draw(st.permutations(parts)), **({"before": shape} if draw(st.booleans()) else {})}
    return Transform("reshape", args), [filled(shape, draw(DTYPES), i) for i in range(draw(st.integers(1, 2)))]


@st.composite
def unflatten(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape, parts = draw(SHAPES), draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = list(parts)
    hole = draw(st.none() | st.integers(0, len(parts) - 1))
    if hole is not None and 0 not in parts[:hole] + parts[hole + 1 :]:
        sizes[hole] = -1
    made = [parts]
    if -1 in sizes and draw(st.booleans()):  # arrays that differ there
        made.append([draw(st.integers(0, 3)) if n == -1 else n for n in sizes])
    arrays = [filled((*shape[:axis], int(np.prod(n)), *shape[axis + 1 :]), draw(DTYPES)) for n in made]
    return Transform("unflatten", {"axis": axis, "sizes": sizes}), arrays


@st.composite
def flatten(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    apart, arrays = draw(unflatten())
    axis, sizes = apart.args["axis"], apart.args["sizes"]
    arrays = list(transforms.apply([apart], arrays))
    args = {"axis": axis, "count": len(sizes), **({"before": sizes} if draw(st.booleans()) else {})}
    return Transform("flatten", args), arrays


@st.composite
def reverse(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(SHAPES)
    return Transform("reverse", {"axis": draw(st.integers(0, len(shape) - 1))}), [filled(shape, draw(DTYPES))]


@st.composite
def take(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(SHAPES)
    axis = draw(st.integers(0, len(shape) - 1))
    args = {"axis": axis, "indices": draw(st.permutations(range(shape[axis])))}
    return Transform("take", args), [filled(shape, draw(DTYPES), i) for i in range(draw(st.integers(1, 2)))]


@st.composite
def pad(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(SHAPES)
    axis = draw(st.integers(0, len(shape) - 1))
    args = {"axis": axis, "size": max(1, shape[axis] + draw(st.integers(0, 2))), "value": draw(st.integers(0, 1))}
    if shape[axis] and draw(st.booleans()):
        args["before"] = shape[axis]
    if not shape[axis]:  # whose inverse would be a slice of nothing
        shape, args["size"] = (*shape[:axis], 1, *shape[axis + 1 :]), args["size"] + 1
    return Transform("pad", args), [filled(shape, draw(DTYPES))]


@st.composite
def slice_(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    padded, arrays = draw(pad())
    args = transforms.inverse([padded], [a.shape for a in arrays])[0].args
    return Transform("slice", args), list(transforms.apply([padded], arrays))


@st.composite
def expand(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = list(draw(SHAPES))
    axis = draw(st.integers(0, len(shape) - 1))
    shape[axis] = 1
    return Transform("expand", {"axis": axis, "size": draw(st.integers(1, 3))}), [filled(tuple(shape), draw(DTYPES))]


@st.composite
def collapse(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    one, arrays = draw(expand())
    return Transform("collapse", one.args), list(transforms.apply([one], arrays))


@st.composite
def resize(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    grid = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    args = {
        "axis": draw(st.integers(0, 1)),
        "grid": grid,
        "to": [draw(st.integers(1, 4)) for _ in grid],
        "mode": draw(st.sampled_from(["linear", "cubic"])),
        "prefix": draw(st.integers(0, 2)),
    }
    shape = [2, 3]
    shape[args["axis"]] = args["prefix"] + int(np.prod(grid))
    return Transform("resize", args), [filled(tuple(shape), draw(FLOATS))]


@st.composite
def scale(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    factor = draw(st.sampled_from([-3.0, 0.5, 0.1, 7.0]))
    return Transform("scale", {"factor": factor}), [filled(draw(SHAPES), draw(FLOATS))]


@st.composite
def add(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape, dtype = draw(SHAPES), draw(FLOATS)
    return Transform("add"), [filled(shape, dtype, i) for i in range(draw(st.integers(1, 3)))]


@st.composite
def split_norm(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple))
    axis = draw(st.none() | st.integers(0, len(shape) - 1))
    args: dict[str, Any] = {} if axis is None else {"axis": axis}
    if draw(st.booleans()):
        args["lengths"] = [1] if axis is None else [1, shape[axis]]
    return Transform("split_norm", args), [filled(shape, draw(FLOATS), 1) for _ in range(draw(st.integers(1, 2)))]


@st.composite
def weight_norm(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    apart, arrays = draw(split_norm())
    parts = transforms.apply([apart], arrays)
    args = {k: v for k, v in apart.args.items() if k == "axis" or draw(st.booleans())}
    return Transform("weight_norm", args), [
        part if i % 2 else filled(part.shape, draw(FLOATS), 2) for i, part in enumerate(parts)
    ]


@st.composite
def spectral_norm(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4).map(tuple))
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = ((shape[axis],), (int(np.prod(shape)) // shape[axis],))
    return Transform("spectral_norm", {"axis": axis}), [filled(s, draw(FLOATS), 1) for s in (shape, *sizes)]


@st.composite
def lora(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4).map(tuple))
    rank, args = draw(st.integers(1, 2)), {"alpha": draw(st.sampled_from([1, 0.5])), "rooted": draw(st.booleans())}
    a, b = (rank, *shape[1:]), (shape[0], rank, *(1 for _ in shape[2:]))
    if len(shape) == 2 and draw(st.booleans()):
        args["transposed"], shape = True, shape[::-1]
    return Transform("lora", args), [filled(s, draw(FLOATS)) for s in (shape, a, b)]


@st.composite
def fold_norm(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4).map(tuple))
    axis = draw(st.integers(0, 1))
    args = {"eps": 1e-5, **({"axis": axis} if axis or draw(st.booleans()) else {})}
    if draw(st.booleans()):
        args["shape"] = [1, *shape]
    rest = draw(st.integers(4, 5))
    return Transform("fold_norm", args), [filled(shape, draw(FLOATS))] + [filled((shape[axis],))] * rest


@st.composite
def transpose(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape = draw(SHAPES)
    axes = draw(st.permutations(range(len(shape))))
    return Transform("transpose", {"axes": axes}), [filled(shape, draw(DTYPES))]


@st.composite
def concat(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape, dtype = draw(SHAPES), draw(DTYPES)
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    args = {"axis": axis, **({"sizes": sizes} if draw(st.booleans()) else {})}
    return Transform("concat", args), [
        filled((*shape[:axis], n, *shape[axis + 1 :]), dtype, 10 * i) for i, n in enumerate(sizes)
    ]


@st.composite
def split(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    joined, arrays = draw(concat())
    axis = joined.args["axis"]
    return Transform("split", {"axis": axis, "sizes": [a.shape[axis] for a in arrays]}), [np.concatenate(arrays, axis)]


@st.composite
def stack(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    shape, dtype = draw(SHAPES), draw(DTYPES)
    arrays = [filled(shape, dtype, 10 * i) for i in range(draw(st.integers(1, 3)))]
    return Transform("stack", {"axis": draw(st.integers(0, len(shape)))}), arrays


@st.composite
def unstack(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    joined, arrays = draw(stack())
    return Transform("unstack", joined.args | {"count": len(arrays)}), [np.stack(arrays, joined.args["axis"])]


@st.composite
def reorder(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    arrays = [filled(draw(SHAPES), draw(DTYPES), 10 * i) for i in range(draw(st.integers(1, 4)))]
    return Transform("reorder", {"places": draw(st.permutations(range(len(arrays))))}), arrays


@st.composite
def cast_(draw: st.DrawFn) -> tuple[Transform, list[Array]]:
    # Small whole numbers are exact in every one of these, so that the way back gives the same.
    before, dtype = draw(st.permutations(["float32", "float16", "bfloat16", "int64", "float64"]))[:2]
    return Transform("cast", {"dtype": dtype, "before": before}), [filled(draw(SHAPES), before)]


CASES = {
    "reshape": reshape(),
    "unflatten": unflatten(),
    "flatten": flatten(),
    "transpose": transpose(),
    "reverse": reverse(),
    "take": take(),
    "concat": concat(),
    "split": split(),
    "stack": stack(),
    "unstack": unstack(),
    "reorder": reorder(),
    "pad": pad(),
    "slice": slice_(),
    "expand": expand(),
    "collapse": collapse(),
    "resize": resize(),
    "cast": cast_(),
    "scale": scale(),
    "add": add(),
    "weight_norm": weight_norm(),
    "split_norm": split_norm(),
    "spectral_norm": spectral_norm(),
    "lora": lora(),
    "fold_norm": fold_norm(),
}

#: Those that cannot be undone, and those that rounding keeps from being undone to the last bit. (Of many lengths and
#: directions that make the same weight, the way back from the weight gives one: the weight is the same again.)
WITHOUT_INVERSE = {"resize", "add", "spectral_norm", "lora", "fold_norm"}
ROUNDED = {"scale", "weight_norm", "split_norm"}


def near(a: Array, b: Array) -> bool:
    """Equal but for what the element type cannot hold."""
    digits = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}.get(a.dtype.name, 2e-2)
    return a.dtype == b.dtype and a.shape == b.shape and np.allclose(widen(a), widen(b), rtol=digits, atol=0)


def test_every_operation_has_a_case() -> None:
    assert CASES.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_operation(op: str, data: st.DataObject) -> None:
    t, arrays = data.draw(CASES[op])
    shapes = [a.shape for a in arrays]
    before = [a.copy() for a in arrays]
    made = transforms.apply([t], arrays)
    assert transforms.shape_after([t], shapes) == tuple(a.shape for a in made)
    assert transforms.count_after([t], len(arrays)) == len(made)
    assert all(map(same, arrays, before))
    assert transforms.from_json(json.loads(json.dumps(transforms.to_json([t])))) == (t,)
    assert transforms.from_text(transforms.to_text([t, t])) == (t, t)


@pytest.mark.parametrize("op", [op for op in CASES if op not in WITHOUT_INVERSE])
@given(data=st.data())
def test_inverse(op: str, data: st.DataObject) -> None:
    t, arrays = data.draw(CASES[op])
    shapes = [a.shape for a in arrays]
    made = transforms.apply([t], arrays)
    undone = transforms.inverse([t], shapes)
    back = transforms.apply(undone, made)
    assert [a.shape for a in back] == shapes
    if op != "weight_norm":
        assert all(map(near if op in ROUNDED else same, arrays, back))
    try:  # what is said without the shapes is right, too
        assert op == "weight_norm" or transforms.inverse([t], [None] * len(shapes)) == undone
    except TransformError:
        assert op in ("reshape", "flatten", "concat", "pad")
    again = transforms.apply([t], back)
    assert all(map(near if op in ROUNDED else same, made, again))
    # The inverse says all that its own inverse needs.
    full = transforms.inverse(undone, [None] * len(made))
    assert all(map(near if op in ROUNDED else same, made, transforms.apply(full, back)))


@pytest.mark.parametrize("op", sorted(WITHOUT_INVERSE))
@given(data=st.data())
def test_no_way_back(op: str, data: st.DataObject) -> None:
    t, arrays = data.draw(CASES[op])
    with pytest.raises(TransformError, match=f"{op} has no inverse: "):
        transforms.inverse([t], [a.shape for a in arrays])


@given(data=st.data())
def test_chain(data: st.DataObject) -> None:
    """A chain is undone as a whole, from the shapes that go into it."""
    cut, arrays = data.draw(split())
    chain, shapes = [cut], transforms.shape_after([cut], [a.shape for a in arrays])
    if len(set(shapes)) == 1:
        chain.append(Transform("reshape", {"shape": [int(np.prod(shapes[0])), 1]}))
        chain.append(Transform("transpose", {"axes": [1, 0]}))
        chain.append(Transform("stack", {"axis": 1}))
    before = [a.shape for a in arrays]
    made = transforms.apply(chain, arrays)
    assert transforms.shape_after(chain, before) == tuple(a.shape for a in made)
    assert all(map(same, arrays, transforms.apply(transforms.inverse(chain, before), made)))


@st.composite
def following(draw: st.DrawFn, shapes: list[tuple[int, ...]]) -> Transform | None:
    """A step that takes arrays of these shapes."""
    first = shapes[0]
    axis = draw(st.integers(0, len(first) - 1)) if first else 0
    size = first[axis] if first else 1
    candidates = [
        Transform("reshape", {"shape": draw(st.permutations(first))}),
        Transform("transpose", {"axes": draw(st.permutations(range(len(first))))}),
        Transform("flatten", {"axis": axis, "count": draw(st.integers(1, 2))}),
        Transform("unflatten", {"axis": axis, "sizes": draw(st.sampled_from([[1, -1], [2, -1], [-1, 3]]))}),
        Transform("reverse", {"axis": axis}),
        Transform("take", {"axis": axis, "indices": draw(st.permutations(range(size)))}),
        Transform("concat", {"axis": axis}),
        Transform("stack", {"axis": axis}),
        Transform("split", {"axis": axis, "sizes": [1, size - 1] if size else [0]}),
        Transform("reorder", {"places": draw(st.permutations(range(len(shapes))))}),
        Transform("pad", {"axis": axis, "size": size + 1, "value": 7}),
        Transform("slice", {"axis": axis, "start": 0, "stop": max(1, size - 1)}),
        Transform("cast", {"dtype": draw(st.sampled_from(["float64", "float32"]))}),
        Transform("scale", {"factor": 2}),
    ]
    return draw(st.sampled_from([t for t in candidates if _fits(t, shapes)]))


def _fits(t: Transform, shapes: list[tuple[int, ...]]) -> bool:
    try:
        return bool(transforms.shape_after([t], shapes))
    except TransformError:
        return False


@settings(max_examples=200)
@given(data=st.data())
def test_long_chains(data: st.DataObject) -> None:
    """A chain as a whole, which copies once, makes what its steps make one after the other."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple))
    arrays = [filled(shape, "float64", 100 * i) for i in range(data.draw(st.integers(1, 3)))]
    if data.draw(st.booleans()):  # not contiguous, and read-only, as arrays of files can be
        arrays = [np.repeat(a, 2, axis=-1)[..., ::2].T.copy().T for a in arrays]
        for a in arrays:
            a.setflags(write=False)
    chain, shapes = [], [a.shape for a in arrays]
    for _ in range(data.draw(st.integers(1, 7))):
        chain.append(data.draw(following(shapes)))
        shapes = list(transforms.shape_after(chain[-1:], shapes))
    slow = arrays
    for t in chain:
        slow = [a.copy() for a in transforms.apply([t], slow)]
    made = transforms.apply(chain, arrays)
    assert [a.shape for a in made] == shapes
    assert [a.dtype for a in made] == list(transforms.dtypes_after(chain, [a.dtype for a in arrays]))
    assert all(map(same, made, slow))


# What each one does, spelled out: an inverse pair that is wrong twice would pass the properties. --------------------


def test_meaning() -> None:
    x = np.arange(6).reshape(2, 3)

    def run(op: str, *arrays: Array, **args: object) -> list[list[object]]:
        return [a.tolist() for a in transforms.apply([Transform(op, args)], arrays)]

    assert run("reshape", x, shape=[3, 1, 2]) == [[[[0, 1]], [[2, 3]], [[4, 5]]]]
    assert run("unflatten", x, axis=1, sizes=[3, -1]) == [[[[0], [1], [2]], [[3], [4], [5]]]]
    assert run("flatten", x, x[:1], axis=0, count=2) == [[0, 1, 2, 3, 4, 5], [0, 1, 2]]
    assert run("transpose", x, axes=[1, 0]) == [[[0, 3], [1, 4], [2, 5]]]
    assert run("concat", x, x[:1], axis=0) == [[[0, 1, 2], [3, 4, 5], [0, 1, 2]]]
    assert run("split", x, axis=1, sizes=[1, 2]) == [[[0], [3]], [[1, 2], [4, 5]]]
    assert run("stack", x[0], x[1], axis=1) == [[[0, 3], [1, 4], [2, 5]]]
    assert run("unstack", x, axis=1, count=3) == [[0, 3], [1, 4], [2, 5]]
    assert run("cast", x / 3, dtype="float16") == [(x / 3).astype(np.float16).tolist()]


@pytest.mark.parametrize("rest", [(), (5,)], ids=["bias", "weight"])
@pytest.mark.parametrize("queries", [1, 3])
def test_fused_by_heads(queries: int, rest: tuple[int, ...]) -> None:
    """Groups of some queries, one key and one value, fused row by row, against a loop over the heads; and back."""
    groups, size = 2, 4
    fused = filled((groups * (queries + 2) * size, *rest))
    parts: list[list[Array]] = [[], [], []]
    for head, rows in enumerate(np.split(fused, groups * (queries + 2))):
        parts[max(0, head % (queries + 2) - queries + 1)].append(rows)
    wanted = [np.concatenate(part) for part in parts]

    chain = transforms.from_text(
        f"unflatten(axis=0, sizes=[{groups}, {queries + 2}, {size}]) | split(axis=1, sizes=[{queries}, 1, 1])"
        " | flatten(axis=0, count=3)"
    )
    assert all(map(same, wanted, transforms.apply(chain, [fused])))
    undone = transforms.inverse(chain, [fused.shape])
    assert transforms.to_text(undone) == (
        f"unflatten(axis=0, sizes=[{groups}, {-1 if queries > 1 else 1}, {size}])"
        f" | concat(axis=1, sizes=[{queries}, 1, 1])"
        f" | flatten(axis=0, count=3, before=[{groups}, {queries + 2}, {size}])"
    )
    assert same(transforms.apply(undone, wanted)[0], fused)
    again = transforms.inverse(undone, [None] * 3)  # which says all that is needed
    assert all(map(same, wanted, transforms.apply(again, [fused])))

    assert transforms.inverse(chain, [None]) == undone  # the chain alone says what it makes of the rows

    # The chain that fuses, as one writes it.
    chain = transforms.from_text(
        f"unflatten(axis=0, sizes=[{groups}, -1, {size}]) | concat(axis=1) | flatten(axis=0, count=3)"
    )
    assert same(transforms.apply(chain, wanted)[0], fused)
    undone = transforms.inverse(chain, [a.shape for a in wanted])
    assert all(map(same, wanted, transforms.apply(undone, [fused])))


@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_transpose_is_numpys(axes: tuple[int, ...]) -> None:
    x = filled((2, 3, 4))
    assert same(transforms.apply([Transform("transpose", {"axes": axes})], [x])[0], x.transpose(axes))


@pytest.mark.parametrize(
    "chain",
    [
        "reshape(shape=[6])",
        "flatten(axis=0, count=2)",
        "unflatten(axis=1, sizes=[1, 3])",
        "transpose(axes=[1, 0])",
        "split(axis=0, sizes=[1, 1])",
        "unstack(axis=1, count=3)",
    ],
)
def test_views_where_possible(chain: str) -> None:
    x = filled((2, 3))
    assert all(np.shares_memory(x, a) for a in transforms.apply(transforms.from_text(chain), [x]))


def test_text_form() -> None:
    chain = (Transform("split", {"axis": np.int64(0), "sizes": (64, 64)}), Transform("cast", {"dtype": "float16"}))
    assert transforms.to_text(chain) == 'split(axis=0, sizes=[64, 64]) | cast(dtype="float16")'
    assert transforms.from_text("") == ()
    assert transforms.to_json(chain)[0] == {"op": "split", "axis": 0, "sizes": [64, 64]}


def test_text_takes_no_dict_apart() -> None:
    with pytest.raises(TransformError, match="stack takes axis, not"):
        transforms.from_text("stack(**{'axis': 0})")


def test_argument_order_does_not_matter() -> None:
    a = Transform("split", {"sizes": [1], "axis": 0})
    assert a == Transform("split", {"axis": 0, "sizes": (1,)})
    assert list(a.args) == ["axis", "sizes"]


def test_inverse_without_shapes() -> None:
    """The arguments alone are enough where they are complete, so that a mapping file can be inverted."""
    chain = transforms.from_text("reshape(shape=[2, 1, 3], before=[2, 3]) | split(axis=0, sizes=[1, 1])")
    undone = transforms.inverse(chain, [None])
    assert transforms.to_text(undone) == "concat(axis=0, sizes=[1, 1]) | reshape(shape=[2, 3], before=[2, 1, 3])"
    assert transforms.inverse(undone, [None, None]) == chain
    assert transforms.inverse([Transform("stack", {"axis": 0})], [None, None, None]) == (
        Transform("unstack", {"axis": 0, "count": 3}),
    )
    # What one step leaves is known to the next: all of the shape behind a reshape, the sizes of some axes else.
    for text, back in (
        ("split(axis=1, sizes=[4, 2]) | concat(axis=1)", "split(axis=1, sizes=[4, 2]) | concat(axis=1, sizes=[4, 2])"),
        (
            "unflatten(axis=1, sizes=[2, 3]) | transpose(axes=[1, 0, 2]) | unstack(axis=0, count=2)",
            "stack(axis=0) | transpose(axes=[1, 0, 2]) | flatten(axis=1, count=2, before=[2, 3])",
        ),
        (
            "unflatten(axis=0, sizes=[2, 3]) | take(axis=0, indices=[1, 0]) | flatten(axis=0, count=2)",
            "unflatten(axis=0, sizes=[2, 3]) | take(axis=0, indices=[1, 0]) | flatten(axis=0, count=2, before=[2, 3])",
        ),
        (
            "slice(axis=2, start=0, stop=3, size=5, value=0) | pad(axis=2, size=4, value=1)",
            "slice(axis=2, start=0, stop=3, size=4, value=1.0) | pad(axis=2, size=5, value=0.0, before=3)",
        ),
    ):
        assert transforms.to_text(transforms.inverse(transforms.from_text(text), [None])) == back
    known = transforms.from_text("reshape(shape=[6], before=[2, 3]) | reshape(shape=[3, 2])")
    assert transforms.apply(transforms.inverse(known, [None]), [filled((3, 2))])[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("chain", "shapes", "message"),
    [
        ("reshape(shape=[6])", [None], 'reshape to [6] has no inverse without the shape "before"'),
        ("flatten(axis=0, count=2)", [None], 'flatten has no inverse without the sizes "before"'),
        (
            "flatten(axis=0, count=2)",
            [(2, 3), (3, 2)],
            "flatten of axes of the sizes [2, 3], [3, 2] has no inverse that is the same for all",
        ),
        (
            "flatten(axis=0, count=2)",
            [(0, 3), (0, 2)],
            "flatten of axes of the sizes [0, 2], [0, 3] has no inverse that is the same for all",
        ),
        ("concat(axis=0)", [None, None], 'concat has no inverse without its "sizes"'),
        ('cast(dtype="int8")', [(2,)], 'cast to int8 has no inverse without the type "before"'),
        ("reshape(shape=[6])", [(2, 3), (3, 2)], 'reshape to [6] has no inverse without the shape "before"'),
    ],
)
def test_no_inverse(chain: str, shapes: list[tuple[int, ...] | None], message: str) -> None:
    with pytest.raises(TransformError) as e:
        transforms.inverse(transforms.from_text(chain), shapes)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("chain", "shapes", "message"),
    [
        ("reshape(shape=[5])", [(2, 3)], "reshape to [5] does not fit [2, 3]"),
        ("reshape(shape=[6], before=[6, 1])", [(2, 3)], "reshape is from [6, 1], not from [2, 3]"),
        ("unflatten(axis=1, sizes=[2, -1])", [(2, 3)], "unflatten of axis 1 into [2, -1] does not fit [2, 3]"),
        ("unflatten(axis=2, sizes=[1])", [(2, 3)], "unflatten of axis 2 into [1] does not fit [2, 3]"),
        ("flatten(axis=1, count=2)", [(2, 3)], "flatten of 2 axes from 1 on does not fit [2, 3]"),
        (
            "flatten(axis=0, count=2, before=[-1, 2])",
            [(2, 3)],
            "flatten from axis 0 on is of [-1, 2], not of [2, 3]",
        ),
        ("transpose(axes=[1, 0])", [(2, 3, 1)], "transpose by [1, 0] does not fit [2, 3, 1]"),
        ("concat(axis=0)", [(2, 3), (2, 4)], "concat along axis 0 does not fit [2, 3], [2, 4]"),
        ("concat(axis=1)", [(2,), (3,)], "concat along axis 1 does not fit [2], [3]"),
        ("concat(axis=1)", [(2,), (2, 4)], "concat along axis 1 does not fit [2], [2, 4]"),
        ("concat(axis=0)", [], "concat of 1 array(s) is given 0"),
        ("split(axis=1, sizes=[2])", [(2,)], "split into [2] along axis 1 does not fit [2]"),
        ("stack(axis=0)", [], "stack takes at least one array"),
        ("unstack(axis=1, count=2)", [(2,)], "unstack of 2 along axis 1 does not fit [2]"),
        ("concat(axis=0)", [(2,), (2, 2)], "concat along axis 0 does not fit [2], [2, 2]"),
        ("concat(axis=0, sizes=[2, 2])", [(2,), (3,)], "concat of sizes [2, 2] along axis 0 is given [2, 3]"),
        ("concat(axis=0, sizes=[2, 2])", [(2,)], "concat of 2 array(s) is given 1"),
        ("split(axis=0, sizes=[1, 2])", [(2, 3)], "split into [1, 2] along axis 0 does not fit [2, 3]"),
        ("split(axis=0, sizes=[1, 1])", [(2,), (2,)], "split takes one array, not 2"),
        ("stack(axis=0)", [(2,), (3,)], "stack along axis 0 does not fit [2], [3]"),
        ("stack(axis=2)", [(2,), (2,)], "stack along axis 2 does not fit [2], [2]"),
        ("reorder(places=[1, 0])", [(2,)], "reorder to [1, 0] takes 2 arrays, not 1"),
        ("unstack(axis=0, count=3)", [(2, 3)], "unstack of 3 along axis 0 does not fit [2, 3]"),
        ("unstack(axis=0, count=2)", [(2,), (2,)], "unstack takes one array, not 2"),
    ],
)
def test_shapes_that_do_not_fit(chain: str, shapes: list[tuple[int, ...]], message: str) -> None:
    steps = transforms.from_text(chain)
    with pytest.raises(TransformError) as e:
        transforms.shape_after(steps, shapes)
    assert str(e.value) == message
    with pytest.raises(TransformError) as e:  # the same word with arrays, before NumPy says anything
        transforms.apply(steps, [filled(s) for s in shapes])
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"op": "flip"}], f"no transform 'flip'; there are {', '.join(OPERATIONS)}"),
        ([{"op": "split", "axis": 0}], "split needs 'sizes'"),
        ([{"op": "split", "axis": 0, "sizes": []}], "split: sizes must be a list of whole numbers from 0 on, not []"),
        ([{"op": "stack", "dim": 0}], "stack takes axis, not 'dim'"),
        ([{"op": "stack", "axis": -1}], "stack: axis must be a whole number from 0 on, not -1"),
        ([{"op": "stack", "axis": True}], "stack: axis must be a whole number from 0 on, not True"),
        ([{"op": "unstack", "axis": 0, "count": 0}], "unstack: count must be a whole number from 1 on, not 0"),
        ([{"op": "reshape", "shape": [-1]}], "reshape: shape must be a list of whole numbers from 0 on, not [-1]"),
        (
            [{"op": "transpose", "axes": [0, 2]}],
            "transpose: axes must name every axis once, such as [1, 0], not [0, 2]",
        ),
        (
            [{"op": "unflatten", "axis": 0, "sizes": [-1, 2, -1]}],
            "unflatten: sizes must be a list of whole numbers, one of them -1 at most, not [-1, 2, -1]",
        ),
        (
            [{"op": "unflatten", "axis": 0, "sizes": [0, -1]}],
            "unflatten: sizes has a 0 beside the -1, which could then be anything: [0, -1]",
        ),
        (
            [{"op": "flatten", "axis": 0, "count": 2, "before": [6]}],
            "flatten: before must have 2 sizes, not [6]",
        ),
        ([{"op": "stack", "axis": 1.0}], "stack: axis must be a whole number from 0 on, not 1.0"),
        ([{"op": "reshape", "shape": "12"}], "reshape: shape must be a list of whole numbers from 0 on, not '12'"),
        ([{"op": ["stack"]}], "a step of a transform is {\"op\": name, …}, not {'op': ['stack']}"),
        ([["reshape"]], "a step of a transform is {\"op\": name, …}, not ['reshape']"),
        ({"op": "stack"}, "a transform is a list of {\"op\": …}, not {'op': 'stack'}"),
    ],
)
def test_what_is_no_transform(value: object, message: str) -> None:
    with pytest.raises(TransformError) as e:
        transforms.from_json(value)
    assert str(e.value) == message


def test_a_cast_loses_nothing_but_precision() -> None:
    for before, dtype in (([1e6], "float16"), ([1.5], "int8"), ([300.0], "int8")):
        with pytest.raises(TransformError, match=rf"cast to {dtype} cannot hold 1 value\(s\)"):
            transforms.apply([Transform("cast", {"dtype": dtype})], [np.array(before)])
    with pytest.raises(TransformError, match="cast is from float32, not from float64"):
        transforms.apply([Transform("cast", {"dtype": "int8", "before": "float32"})], [np.ones(1)])
    with pytest.raises(TransformError, match="cast: dtype must be one of"):
        Transform("cast", {"dtype": ["int8"]})


def test_unknown_dtype() -> None:
    with pytest.raises(TransformError, match=r"cast: dtype must be one of float16, bfloat16, .* not 'float8'"):
        Transform("cast", {"dtype": "float8"})


@pytest.mark.parametrize(
    "text",
    ["reshape", "reshape([6])", "reshape(shape=[6]) + stack(axis=0)", "stack(axis=x)", "(("],
)
def test_what_is_no_text(text: str) -> None:
    with pytest.raises(TransformError, match="is no transform; one looks like transpose"):
        transforms.from_text(text)
