"""The kinds of steps that compute or change sizes, against what PyTorch makes of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap import transforms
from automap.dtypes import Array, cast, dtype_name, widen
from automap.errors import TransformError
from automap.steps import blocks
from automap.transforms import Transform


def run(text: str, *arrays: Array) -> list[Array]:
    return list(transforms.apply(transforms.from_text(text), arrays))


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple), st.integers(1, 30))
def test_blocks_cover_an_array_once(shape: tuple[int, ...], limit: int) -> None:
    seen = np.zeros(shape, int)
    for block in blocks(shape, limit):
        assert seen[block].ndim == len(shape)
        assert seen[block].size <= limit
        seen[block] += 1
    assert (seen == 1).all()


# Sizes. --------------------------------------------------------------------------------------------------------------


def test_a_padded_vocabulary() -> None:
    table = numbers(5, 3)
    (padded,) = run("pad(axis=0, size=8, value=-1.5)", table)
    assert padded.tolist() == table.tolist() + [[-1.5] * 3] * 3
    undone = transforms.inverse(transforms.from_text("pad(axis=0, size=8, value=0)"), [(5, 3)])
    assert transforms.to_text(undone) == "slice(axis=0, start=0, stop=5, size=8, value=0.0)"
    assert transforms.apply(undone, [padded])[0].tolist() == table.tolist()
    bias = cast(numbers(5), "bfloat16")[0]
    assert widen(run("pad(axis=0, size=6, value=-1e9)", bias)[0])[5] == pytest.approx(-1e9, rel=1e-2)


def test_a_slice_is_a_view() -> None:
    table = numbers(5, 3)
    (part,) = run("slice(axis=0, start=2, stop=5)", table)
    assert np.shares_memory(part, table)
    assert part.tolist() == table[2:].tolist()


@pytest.mark.parametrize(
    ("chain", "shapes", "message"),
    [
        ("pad(axis=0, size=4, value=0)", [(5, 3)], "pad of axis 0 to 4 does not fit [5, 3]"),
        ("pad(axis=0, size=6, value=0, before=4)", [(5, 3)], "pad of axis 0 is from 4, not from 5"),
        ("slice(axis=0, start=2, stop=6)", [(5, 3)], "slice of axis 0 from 2 to 6 does not fit [5, 3]"),
        ("slice(axis=0, start=0, stop=4, size=6)", [(5, 3)], "slice of axis 0 is of size 6, not of 5"),
        ("expand(axis=0, size=4)", [(2,)], "expand of axis 0 to 4 does not fit [2]"),
        ("collapse(axis=0, size=4)", [(2,)], "collapse of axis 0 of 4 does not fit [2]"),
        ("reverse(axis=1)", [(2,)], "reverse of axis 1 does not fit [2]"),
        ("take(axis=0, indices=[1, 0])", [(3,)], "take of 2 positions along axis 0 does not fit [3]"),
        (
            'resize(axis=0, grid=[2, 2], to=[3, 3], mode="cubic", prefix=1)',
            [(4, 8)],
            "resize of axis 0 of 1 + 2x2 positions does not fit [4, 8]",
        ),
        ("add()", [(2,), (3,)], "add does not fit [2], [3]"),
        ("add()", [], "add takes at least one array"),
        ("weight_norm(axis=0)", [(3, 1), (2, 4)], "weight_norm(axis=0) does not fit [3, 1], [2, 4]"),
        ("weight_norm(axis=2)", [(1, 1), (2, 4)], "weight_norm(axis=2) does not fit [1, 1], [2, 4]"),
        ("weight_norm(axis=0)", [(2, 4)], "weight_norm takes 2 array(s) for each weight, not 1"),
        ("split_norm(axis=2)", [(2, 4)], "split_norm(axis=2) does not fit [2, 4]"),
        ("spectral_norm(axis=0)", [(2, 4), (2,), (3,)], "spectral_norm(axis=0) does not fit [2, 4], [2], [3]"),
        ("lora(alpha=1)", [(2, 4), (3, 4), (2, 2)], "lora(alpha=1.0) does not fit [2, 4], [3, 4], [2, 2]"),
        ("fold_norm(eps=0.1)", [(2, 4), (2,)], "fold_norm takes 5 or 6 array(s), not 2"),
        (
            "fold_norm(eps=0.1)",
            [(2, 4), (2,), (2,), (2,), (4,)],
            "fold_norm(eps=0.1) does not fit [2, 4], [2], [2], [2], [4]",
        ),
    ],
)
def test_shapes_that_do_not_fit(chain: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(TransformError) as e:
        run(chain, *(np.ones(s, np.float32) for s in shapes))
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("chain", "array", "message"),
    [
        ("pad(axis=0, size=4, value=0.5)", np.ones(2, np.int64), "pad: int64 cannot hold 0.5"),
        ("pad(axis=0, size=4, value=1e6)", np.ones(2, np.float16), "pad: float16 cannot hold 1000000.0"),
        ("scale(factor=1e6)", np.ones(2, np.float16), "scale: 2 value(s) are out of the range of float16"),
        ("scale(factor=2)", np.ones(2, np.int64), "scale takes floating-point numbers, not int64"),
        ("add()", np.ones(2, np.complex64), "add takes floating-point numbers, not complex64"),
        (
            'resize(axis=0, grid=[2], to=[3], mode="linear")',
            np.ones(2, np.int8),
            "resize takes floating-point numbers, not int8",
        ),
        (
            "collapse(axis=0, size=3)",
            np.float32([1, 1, 2]),
            "collapse of axis 0: its 3 values are not all equal",
        ),
        ("split_norm(axis=0)", np.eye(3, 2), "split_norm: 1 part(s) of the weight are all zero and have no direction"),
    ],
)
def test_numbers_that_do_not_fit(chain: str, array: Array, message: str) -> None:
    with pytest.raises(TransformError) as e:
        run(chain, array)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("chain", "arrays", "message"),
    [
        ("weight_norm(axis=0)", [np.ones(2), np.zeros((2, 3))], "weight_norm: 2 direction(s) are all zero"),
        ("spectral_norm(axis=0)", [np.ones((2, 3)), np.zeros(2), np.ones(3)], "spectral_norm: u @ weight @ v is zero"),
        ("fold_norm(eps=0.1)", [np.ones((1, 3))] + [-np.ones(1)] * 4, "fold_norm: a variance is not positive"),
    ],
)
def test_numbers_that_do_not_fit_each_other(chain: str, arrays: list[Array], message: str) -> None:
    with pytest.raises(TransformError) as e:
        run(chain, *arrays)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slice(axis=0, start=2, stop=2)", "slice: stop must be greater than start, not 2"),
        ("pad(axis=0, size=4, value='zero')", "pad: value must be a number, not 'zero'"),
        ("pad(axis=0, size=4, value=1e999)", "pad: value must be a number, not inf"),
        ("take(axis=0, indices=[0, 0])", "take: indices must name every position once, such as [1, 0], not [0, 0]"),
        ("lora(alpha=1, transposed=1)", "lora: transposed must be true or false, not 1"),
        (
            "resize(axis=0, grid=[2], to=[2, 2], mode='cubic')",
            "resize: grid and to must have as many sizes, not [2] and [2, 2]",
        ),
        ("resize(axis=0, grid=[0], to=[2], mode='cubic')", "resize: a grid has no size 0: [0] to [2]"),
        ("resize(axis=0, grid=[2], to=[2], mode='area')", "resize: mode must be one of linear, cubic, not 'area'"),
    ],
)
def test_arguments_that_are_none(text: str, message: str) -> None:
    with pytest.raises(TransformError) as e:
        transforms.from_text(text)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("chain", "shapes", "message"),
    [
        ("pad(axis=0, size=4, value=0)", [None], 'pad has no inverse without the size "before"'),
        (
            "slice(axis=0, start=1, stop=4, size=4, value=0)",
            [(4,)],
            'slice has no inverse: what it cuts off is lost, unless it starts at 0 and has a "size" and a "value"',
        ),
        ("scale(factor=0)", [(4,)], "scale by 0 has no inverse"),
    ],
)
def test_no_inverse(chain: str, shapes: list[tuple[int, ...] | None], message: str) -> None:
    with pytest.raises(TransformError) as e:
        transforms.inverse(transforms.from_text(chain), shapes)
    assert str(e.value) == message


def test_gates_in_another_order() -> None:
    """Four gates of two rows each, of which the last two change places, for the weight and the bias."""
    chain = "unflatten(axis=0, sizes=[4, -1]) | take(axis=0, indices=[0, 1, 3, 2]) | flatten(axis=0, count=2)"
    for x in (numbers(8, 3), numbers(8)):
        (made,) = run(chain, x)
        assert made.tolist() == np.concatenate([x[:4], x[6:], x[4:6]]).tolist()
        undone = transforms.inverse(transforms.from_text(chain), [x.shape])
        assert transforms.apply(undone, [made])[0].tolist() == x.tolist()


def test_words_in_arguments() -> None:
    chain = (Transform("lora", {"alpha": 8, "transposed": True, "rooted": False}),)
    assert transforms.to_text(chain) == "lora(alpha=8.0, transposed=true, rooted=false)"
    assert transforms.from_text("lora(alpha=8, transposed=true, rooted=False)") == chain


# Numbers, against PyTorch. -------------------------------------------------------------------------------------------


def parts(*tensors) -> list[Array]:
    return [t.detach().numpy() for t in tensors]


GRIDS = [((14,), (24,)), ((9,), (4,)), ((5,), (5,)), ((4, 5), (7, 3)), ((14, 14), (24, 24)), ((3, 2), (3, 5))]


@pytest.mark.frameworks
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(
    ("old", "new", "mode"),
    [(*g, "linear") for g in [*GRIDS, ((2, 3, 4), (3, 3, 2))]] + [(*g, "cubic") for g in GRIDS if len(g[0]) == 2],
)
def test_resize_is_interpolate(old: tuple[int, ...], new: tuple[int, ...], mode: str, prefix: int) -> None:
    import torch

    table = numbers(2, prefix + int(np.prod(old)), 6)
    grid = torch.from_numpy(table[:, prefix:]).reshape(2, *old, 6).movedim(-1, 1)
    name = {"linear": ["linear", "bilinear", "trilinear"][len(old) - 1], "cubic": "bicubic"}[mode]
    other = torch.nn.functional.interpolate(grid, size=new, mode=name, align_corners=False)
    wanted = np.concatenate([table[:, :prefix], other.movedim(1, -1).reshape(2, -1, 6).numpy()], 1)
    step = f'resize(axis=1, grid={list(old)}, to={list(new)}, mode="{mode}", prefix={prefix})'
    (made,) = run(step, table)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5)
    half = cast(table, "bfloat16")[0]
    np.testing.assert_allclose(widen(run(step, half)[0]), wanted, rtol=0, atol=0.05)
    # Along the first axis, and in blocks.
    wide = np.tile(table[0], (1, 20_000 // len(table[0])))
    np.testing.assert_array_equal(run(step.replace("axis=1", "axis=0"), wide)[0][:, :6], made[0])


@pytest.mark.frameworks
@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("style", ["old", "parametrizations"])
def test_weight_norm(style: str, dim: int | None) -> None:
    import torch

    net = torch.nn.Conv1d(4, 6, 3)
    if style == "old":
        with pytest.warns(FutureWarning):
            net = torch.nn.utils.weight_norm(net, dim=dim)
        net.weight_g.data.mul_(1.5)
        net(torch.zeros(1, 4, 3))
        given, wanted = parts(net.weight_g, net.weight_v), net.weight
    else:
        net = torch.nn.utils.parametrizations.weight_norm(net, dim=dim)
        net.parametrizations.weight.original0.data.mul_(1.5)
        state = net.state_dict()
        given = parts(state["parametrizations.weight.original0"], state["parametrizations.weight.original1"])
        wanted = net.weight
    step = "weight_norm()" if dim is None else f"weight_norm(axis={dim})"
    (made,) = run(step, *given)
    np.testing.assert_allclose(made, wanted.detach().numpy(), rtol=1e-6)
    back = transforms.apply(transforms.inverse(transforms.from_text(step), [a.shape for a in given]), [made])
    assert [a.shape for a in back] == [a.shape for a in given]
    np.testing.assert_allclose(back[0], given[0], rtol=1e-6)
    np.testing.assert_array_equal(back[1], made)


@pytest.mark.frameworks
@pytest.mark.parametrize("style", ["old", "parametrizations"])
@pytest.mark.parametrize("kind", ["Linear", "Conv2d", "ConvTranspose2d"])
def test_spectral_norm(kind: str, style: str) -> None:
    import torch

    net = getattr(torch.nn, kind)(4, 6, *([] if kind == "Linear" else [3]))
    make = torch.nn.utils.spectral_norm if style == "old" else torch.nn.utils.parametrizations.spectral_norm
    net = make(net)
    x = torch.randn(2, 4) if kind == "Linear" else torch.randn(1, 4, 5, 5)
    net(x)
    net.eval()
    net(x)
    state, at = net.state_dict(), "parametrizations.weight."
    names = ["weight_orig", "weight_u", "weight_v"] if style == "old" else [f"{at}original", f"{at}0._u", f"{at}0._v"]
    (made,) = run(f"spectral_norm(axis={int(kind == 'ConvTranspose2d')})", *parts(*(state[n] for n in names)))
    np.testing.assert_allclose(made, net.weight.detach().numpy(), rtol=1e-5)


@pytest.mark.frameworks
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d", "Linear"])
def test_fold_norm(kind: str, bias: bool) -> None:
    import torch

    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(4, 6, *([] if kind == "Linear" else [3]), bias=bias)
    norm = torch.nn.BatchNorm1d(6, eps=1e-3) if kind == "Linear" else torch.nn.BatchNorm2d(6, eps=1e-3)
    for p in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        p.data.uniform_(0.5, 2)
    x = torch.randn(2, 4) if kind == "Linear" else torch.randn(2, 4, 5, 5)
    wanted = norm.eval()(layer(x))
    given = [layer.weight, *([layer.bias] if bias else []), norm.weight, norm.bias, norm.running_mean, norm.running_var]
    axis = 1 if kind == "ConvTranspose2d" else 0
    weight, offset = run(f"fold_norm(eps=0.001, axis={axis})", *parts(*given))
    folded = getattr(torch.nn, kind)(4, 6, *([] if kind == "Linear" else [3]))
    folded.weight.data, folded.bias.data = torch.from_numpy(weight), torch.from_numpy(offset)
    np.testing.assert_allclose(folded(x).detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.frameworks
def test_lora_of_dense_layers_and_convolutions() -> None:
    import torch

    x, weight, a, b = torch.randn(2, 4), torch.randn(6, 4), torch.randn(3, 4), torch.randn(6, 3)
    (made,) = run("lora(alpha=2)", *parts(weight, a, b))
    wanted = x @ weight.T + 2 / 3 * (x @ a.T) @ b.T
    np.testing.assert_allclose((x @ torch.from_numpy(made).T).numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)
    rooted = run("lora(alpha=2, rooted=true)", *parts(weight, a, b))[0]
    np.testing.assert_allclose(rooted, (weight + 2 / 3**0.5 * b @ a).numpy(), rtol=1e-5, atol=1e-6)
    (turned,) = run("lora(alpha=2, transposed=true)", *parts(weight.T.contiguous(), a, b))
    np.testing.assert_allclose(turned, made.T, rtol=1e-5, atol=1e-6)

    conv = torch.nn.functional.conv2d
    x, weight = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)
    a, b = torch.randn(2, 4, 3, 3), torch.randn(6, 2, 1, 1)
    (made,) = run("lora(alpha=1)", *parts(weight, a, b))
    wanted = conv(x, weight) + 1 / 2 * conv(conv(x, a), b)
    np.testing.assert_allclose(conv(x, torch.from_numpy(made)).numpy(), wanted.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.frameworks
def test_one_slope_for_all_channels() -> None:
    import torch

    x, one = torch.randn(2, 5, 3), torch.nn.PReLU()
    many = torch.nn.PReLU(5)
    many.weight.data = torch.from_numpy(run("expand(axis=0, size=5)", one.weight.detach().numpy())[0])
    assert torch.equal(one(x), many(x))
    assert run("collapse(axis=0, size=5)", many.weight.detach().numpy())[0].tolist() == one.weight.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_the_element_type_stays(dtype: str) -> None:
    given = [cast(numbers(*s), dtype)[0] for s in ((6, 4), (3, 4), (6, 3))]
    wide = [widen(a).astype(np.float64) for a in given]
    (made,) = run("lora(alpha=3)", *given)
    assert dtype_name(made) == dtype
    exact = cast(wide[0] + wide[2] @ wide[1], dtype)[0]
    np.testing.assert_array_equal(widen(made), widen(exact))  # rounded once, not at every step
    mixed = run("lora(alpha=3)", given[0], *(a.astype(np.float32) for a in wide[1:]))[0]
    assert dtype_name(mixed) == dtype
