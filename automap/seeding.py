"""Seeded weights under which every parameter of a network matters: a pure function of the seed and the names."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from automap.dtypes import Array, cast, is_float, widen
from automap.graph import Listing, Param
from automap.reparametrised import Computed, computed

#: Parts of a leaf's name that tell a vector added to the signal (a token, a position) from a matrix of weights.
_ADDED = ("emb", "latent", "pos", "prompt", "table", "token")


def generator(seed: int, name: str) -> np.random.Generator:
    """NumPy's generator for one name: the same numbers wherever the seed and the name are the same."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def seeded_weights(listing: Listing, seed: int = 0) -> dict[str, Array]:
    """Values for a PyTorch network under which a wrong mapping shows in its outputs.

    Nothing is at its default. Weights of norms and layer scales spread around one, of either sign, biases and running
    means around zero; running variances are positive; embeddings have unit scale; weights of linear and convolutional
    layers are scaled by their fan-in, so that the signal of a deep network neither explodes nor dies out.

    Args:
        listing: of a PyTorch network whose shapes are known.
        seed: any whole number.

    Returns:
        An array in the parameter's own element type for every floating-point parameter and running statistic. What
        the network fills in itself (whole-number buffers, tables of positions, masks) is left out.
    """
    first: dict[str, Param] = {}
    for param in listing:
        if param.shape is not None and is_float(param.dtype or "float32"):
            tied = next((first[name] for name in param.aliases if name in first), param)
            first[param.name] = tied

    def drawn(param: Param) -> Array | None:
        assert param.shape is not None
        array = _values(param, param.shape, generator(seed, param.name))
        return None if array is None else cast(array, param.dtype or "float32")[0]

    own = [param for name, param in first.items() if param.name == name]
    with ThreadPoolExecutor(2) as threads:  # NumPy draws without Python's lock
        values = dict(zip((p.name for p in own), threads.map(drawn, own), strict=True))
    made = {name: array for name, param in first.items() if (array := values[param.name]) is not None}
    for weight in computed(listing).weights:
        if weight.kind == "spectral_norm" and weight.main.name in made:
            made |= _spectral(weight, made[weight.main.name], seed)
    return made


def _spectral(weight: Computed, main: Array, seed: int) -> dict[str, Array]:
    """Two vectors for a weight that is divided by what it makes of them, and the weight, which makes about one of them.

    Of vectors that have nothing to do with the weight it makes next to nothing, and what is divided by that explodes.
    Nothing is summed up here: sums could differ from one machine to the next.
    """
    first = min([weight.main.name, *weight.main.aliases])
    axis, shape = weight.chain[0].args["axis"], main.shape
    vectors = []
    for p in weight.others:
        n = math.prod(p.shape or ())
        signs = generator(seed, f"{first} {p.leaf}").integers(0, 2, n) * 2 - 1
        vectors.append((signs / math.sqrt(n)).astype(np.float32))
    u, v = vectors
    along = (u[:, None] * v).reshape((len(u), *shape[:axis], *shape[axis + 1 :]))
    arrays = (widen(main).astype(np.float32) + np.moveaxis(along, 0, axis), *vectors)
    parts = zip((weight.main, *weight.others), arrays, strict=True)
    return {p.name: cast(array, p.dtype or "float32")[0] for p, array in parts}


def _values(param: Param, shape: tuple[int, ...], rng: np.random.Generator) -> Array | None:
    """The values in float32, or None for a buffer that the network fills in itself."""
    leaf, owner = param.leaf.lower(), (param.owner or "").lower()
    long = sum(d > 1 for d in shape)  # a vector, whatever its shape, has one dimension that is longer than 1
    if leaf == "running_var":
        return _positive(rng, shape)
    if leaf == "running_mean":
        return _around_zero(rng, shape, 0.3)
    if param.kind != "parameter":
        return None
    if ("bias" in leaf and "table" not in leaf) or (leaf == "beta" and long <= 1):
        return _around_zero(rng, shape, 0.3)
    if "embedding" in owner or any(word in leaf for word in _ADDED):
        return _around_zero(rng, shape, 1.0)
    if len(shape) <= 1 or (long <= 1 and (leaf != "weight" or "norm" in owner)):
        return _around_one(rng, shape)
    return _around_zero(rng, shape, 1 / math.sqrt(_fan_in(shape, leaf, owner)))


def _fan_in(shape: tuple[int, ...], leaf: str, owner: str) -> float:
    """How many products make up one value that a weight of this shape computes."""
    if "convtranspose" in owner:
        # A stride of two is the usual one; every output then sees a part of the kernel.
        return max(1.0, float(shape[0] * math.prod(shape[2:])) / 2.0 ** len(shape[2:]))
    if len(shape) == 3 and leaf != "weight":
        return float(max(shape[1:]))  # a stack of matrices, such as the weights of experts
    return float(math.prod(shape[1:]))


def _around_zero(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    # Uniform, of this standard deviation: drawn five times as fast as from a normal distribution, and as telling.
    array: Array = rng.random(shape, dtype=np.float32)
    array -= np.float32(0.5)
    array *= np.float32(scale * math.sqrt(12))
    return array


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    array: Array = rng.random(shape, dtype=np.float32) + np.float32(0.5)
    return array


def _around_one(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Of both signs: two scales of one sign could be exchanged across a ReLU. A number by itself is positive."""
    array = _positive(rng, shape)
    return np.where(rng.random(shape) < 0.5, -array, array) if array.size > 1 else array
