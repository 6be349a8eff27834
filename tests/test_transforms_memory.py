"""What applying a transform costs in memory: at most one copy of the tensor, and none where views will do."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from automap import transforms
from automap.dtypes import Array, cast

SIZE = (1024, 1024)  # float32: 4 MiB

#: Chains that only look at the elements in another way.
VIEWS = [
    "reshape(shape=[1048576])",
    "transpose(axes=[1, 0])",
    "split(axis=1, sizes=[256, 512, 256])",
    "unflatten(axis=0, sizes=[16, 3, -1]) | split(axis=1, sizes=[1, 1, 1]) | reverse(axis=0)",
    "unstack(axis=0, count=1024)",
    "slice(axis=0, start=0, stop=1000) | transpose(axes=[1, 0])",
    "unflatten(axis=0, sizes=[4, 256]) | transpose(axes=[1, 0, 2])",
    'cast(dtype="float32") | concat(axis=0)',
    "split(axis=0, sizes=[512, 512]) | flatten(axis=0, count=2) | unflatten(axis=0, sizes=[512, 1024])",
]

#: Chains that have to move the elements, and those that compute.
COPIES = [
    "transpose(axes=[1, 0]) | reshape(shape=[1048576])",
    "transpose(axes=[1, 0]) | reshape(shape=[2048, 512]) | transpose(axes=[1, 0]) | unflatten(axis=0, sizes=[2, -1])",
    "unflatten(axis=0, sizes=[4, 4, 64]) | split(axis=1, sizes=[2, 1, 1]) | flatten(axis=0, count=3)",
    "unflatten(axis=0, sizes=[4, -1]) | take(axis=0, indices=[0, 1, 3, 2]) | flatten(axis=0, count=2)",
    "split(axis=0, sizes=[512, 512]) | concat(axis=1) | transpose(axes=[1, 0]) | flatten(axis=0, count=2)",
    "unflatten(axis=0, sizes=[2, 512]) | unstack(axis=0, count=2) | reorder(places=[1, 0])"
    " | unflatten(axis=0, sizes=[8, -1]) | concat(axis=1) | flatten(axis=0, count=2)",
    "split(axis=0, sizes=[256, 256, 256, 256]) | stack(axis=2) | transpose(axes=[2, 1, 0]) | flatten(axis=1, count=2)",
    "scale(factor=0.5)",
    "transpose(axes=[1, 0]) | scale(factor=0.5) | reshape(shape=[1048576])",
    'transpose(axes=[1, 0]) | flatten(axis=0, count=2) | cast(dtype="float16")',
    'split(axis=0, sizes=[512, 512]) | concat(axis=1) | cast(dtype="bfloat16") | transpose(axes=[1, 0])',
    "transpose(axes=[1, 0]) | split_norm(axis=0)",
]


def peak(chain: str, *arrays: Array) -> tuple[float, int]:
    """The memory that applying a chain takes at its height and the bytes that come out."""
    steps = transforms.from_text(chain)
    transforms.apply(steps, arrays)  # so that what Python keeps from a first run does not count
    tracemalloc.start()
    made = transforms.apply(steps, arrays)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most, sum(a.nbytes for a in made)


@pytest.mark.parametrize("chain", VIEWS)
def test_no_copy_where_views_will_do(chain: str) -> None:
    tensor = np.ones(SIZE, np.float32)
    if chain.startswith("unflatten(axis=0, sizes=[16, 3"):
        tensor = np.ones((1008, 1024), np.float32)
    most, _ = peak(chain, tensor)
    # 1024 views of rows are objects, too.
    assert most < 0.2 * tensor.nbytes if "unstack" in chain else most < 50_000


@pytest.mark.parametrize("chain", COPIES)
def test_one_copy_at_most(chain: str) -> None:
    tensor = np.random.default_rng(0).random(SIZE, np.float32)
    most, _ = peak(chain, tensor)
    assert most < 1.3 * tensor.nbytes  # what is computed is so in blocks


@pytest.mark.parametrize(
    ("chain", "shapes"),
    [
        ("unflatten(axis=0, sizes=[16, -1, 32]) | concat(axis=1) | flatten(axis=0, count=3)", [(512, 1024)] * 3),
        ("concat(axis=0) | transpose(axes=[1, 0]) | reshape(shape=[512, 3072])", [(512, 1024)] * 3),
        ("stack(axis=0) | transpose(axes=[0, 2, 1]) | flatten(axis=0, count=2)", [(256, 1024)] * 4),
        ("lora(alpha=8) | transpose(axes=[1, 0]) | flatten(axis=0, count=2)", [(1024, 1024), (8, 1024), (1024, 8)]),
        ("weight_norm(axis=0) | unflatten(axis=0, sizes=[4, -1])", [(1024, 1), (1024, 1024)]),
        ("spectral_norm(axis=1)", [(1024, 1024), (1024,), (1024,)]),
        ("fold_norm(eps=0.001)", [(1024, 1024), *[(1024,)] * 4]),
        ("pad(axis=0, size=1100, value=0)", [(1024, 1024)]),
        ('resize(axis=0, grid=[31, 33], to=[32, 33], mode="cubic", prefix=1)', [(1024, 1024)]),
        ('resize(axis=1, grid=[1024], to=[1056], mode="linear")', [(1024, 1024)]),
        ("add()", [(1024, 1024)] * 3),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_arrays_are_copied_once(chain: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    arrays = [cast(1 + np.random.default_rng(0).random(s), dtype)[0] for s in shapes]
    most, size = peak(chain, *arrays)
    assert most < size + 1_500_000  # a few blocks, and the small arrays in float64
