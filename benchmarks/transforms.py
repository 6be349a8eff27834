"""What applying a transform costs: time, and memory as a multiple of the tensor.

    python benchmarks/transforms.py [--megabytes N]

Each chain is applied to float32 tensors of so many megabytes in all. Memory is what NumPy allocates at the height, as
tracemalloc counts it; the tensors given are not in it. 0 are views, 1 is one copy.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import click
import numpy as np

from automap import transforms

#: What a chain is for, the chain, and the shapes that it takes; n is the side of a square weight, a multiple of 256.
CASES: list[tuple[str, str, list[str]]] = [
    ("transposed", "transpose(axes=[1, 0])", ["n,n"]),
    ("a dimension more", "reshape(shape=[{n}, 1, {n}])", ["n,n"]),
    ("contiguous q, k, v", "split(axis=0, sizes=[{h}, {q}, {q}])", ["n,n"]),
    ("heads interleaved, apart", "unflatten(axis=0, sizes=[-1, 4, 32]) | split(axis=1, sizes=[2, 1, 1])", ["n,n"]),
    (
        "grouped-query -> q, k, v",
        "unflatten(axis=0, sizes=[-1, 4, 32]) | split(axis=1, sizes=[2, 1, 1]) | flatten(axis=0, count=3)",
        ["n,n"],
    ),
    (
        "q, k, v -> grouped-query",
        "unflatten(axis=0, sizes=[{g}, -1, 32]) | concat(axis=1) | flatten(axis=0, count=3)",
        ["h,n", "q,n", "q,n"],
    ),
    ("joined, transposed, flat", "concat(axis=0) | transpose(axes=[1, 0]) | reshape(shape=[{nn}])", ["h,n", "h,n"]),
    ("experts stacked", "stack(axis=0) | transpose(axes=[0, 2, 1]) | flatten(axis=0, count=2)", ["q,n"] * 4),
    ("transposed, flat", "transpose(axes=[1, 0]) | reshape(shape=[{nn}])", ["n,n"]),
    (
        "gates in another order",
        "unflatten(axis=0, sizes=[4, -1]) | take(axis=0, indices=[0, 1, 3, 2]) | flatten(axis=0, count=2)",
        ["n,n"],
    ),
    ("padded vocabulary", "pad(axis=0, size={more}, value=0)", ["n,n"]),
    ("cut vocabulary", "slice(axis=0, start=0, stop={h})", ["n,n"]),
    ("positions, a line", 'resize(axis=0, grid=[{n}], to=[{n}], mode="linear")', ["n,n"]),
    ("positions, a grid", 'resize(axis=0, grid=[{q}, 4], to=[{q}, 4], mode="cubic")', ["n,n"]),
    ("float16", 'cast(dtype="float16")', ["n,n"]),
    ("joined, float16", 'concat(axis=0) | cast(dtype="float16")', ["h,n", "h,n"]),
    ("scaled", "scale(factor=0.125)", ["n,n"]),
    ("weight norm", "weight_norm(axis=0)", ["n,1", "n,n"]),
    ("weight -> norm", "split_norm(axis=0)", ["n,n"]),
    ("spectral norm", "spectral_norm(axis=0)", ["n,n", "n", "n"]),
    ("LoRA of rank 8", "lora(alpha=16)", ["n,n", "8,n", "n,8"]),
    ("folded norm", "fold_norm(eps=0.001)", ["n,n", "n", "n", "n", "n"]),
]


def measured(megabytes: float) -> Iterator[tuple[str, str, float, float]]:
    """What each chain is for, the chain, its milliseconds, and its memory in tensors."""
    n = max(1, round((megabytes * 2**20 / 4) ** 0.5 / 256)) * 256
    sizes = {"n": n, "h": n // 2, "q": n // 4, "g": n // 4 // 32, "nn": n * n, "more": n + n // 64}
    random = np.random.default_rng(0)
    for what, text, shapes in CASES:
        chain = transforms.from_text(text.format(**sizes))
        numbers = [[sizes.get(s) or int(s) for s in shape.split(",")] for shape in shapes]
        arrays = [1 + random.random(s, np.float32) for s in numbers]
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            transforms.apply(chain, arrays)
            seconds.append(time.perf_counter() - start)
        tracemalloc.start()
        made = transforms.apply(chain, arrays)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        yield what, text, 1000 * min(seconds), most / sum(a.nbytes for a in arrays)
        del made


@click.command()
@click.option("--megabytes", default=64.0, show_default=True)
def main(megabytes: float) -> None:
    print(f"{'':26}{'ms':>8}{'copies':>8}")
    for what, _, milliseconds, copies in measured(megabytes):
        print(f"{what:26}{milliseconds:8.1f}{copies:8.2f}", flush=True)


if __name__ == "__main__":
    main()
