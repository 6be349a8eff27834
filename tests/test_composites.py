"""Layers that do not map one to one, told by running: every order and arrangement, with names and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composite_pairs import COMPUTED, HEADS, PAIRS, SITUATIONS, Composite, exchangeable, misleading, untellable
from hypothesis import given
from hypothesis import strategies as st

import automap
from automap import transforms
from automap.arrangements import Way
from automap.fusions import Layout, rearranged
from automap.graph import Param
from automap.inference import infer
from automap.mapping import Mapping

pytestmark = pytest.mark.frameworks


def inferred(pair: Composite, **words: Any) -> Mapping:
    inputs = None if words.get("static") else [pair.inputs]
    return infer(pair.torch, pair.mindspore, inputs=inputs, **words)


def off(pair: Composite, mapping: Mapping, seed: int = 7) -> float:
    """How far apart the outputs are under another checkpoint that the mapping converts, relative to their scale."""
    import mindspore as ms
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for p in pair.torch.state_dict(keep_vars=True).values():
            if p.is_floating_point():
                p.copy_(torch.tensor(np.asarray(p) + 0.3 * rng.standard_normal(tuple(p.shape)).astype(np.float32)))
    state = {name: np.asarray(t.detach()) for name, t in pair.torch.state_dict(keep_vars=True).items()}
    made = automap.apply(mapping, state, framework="numpy")
    parameters = {p.name: p for p in pair.mindspore.get_parameters()}
    assert made.keys() <= parameters.keys()
    for name, array in made.items():
        parameters[name].set_data(ms.Tensor(np.ascontiguousarray(array)))
    pair.torch.eval()
    pair.mindspore.set_train(False)
    with torch.no_grad():
        ours = np.asarray(pair.torch(torch.tensor(pair.inputs)))
    theirs = pair.mindspore(ms.Tensor(pair.inputs)).asnumpy()
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("name", PAIRS)
def test_proven(name: str, ignore_names: bool) -> None:
    pair = PAIRS[name]()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("proven", 0), mapping.proof
    assert off(pair, mapping) <= 1e-5
    assert sum(max(len(e.torch), len(e.mindspore)) > 1 for e in mapping.entries) == pair.several
    mapped = [name for e in mapping.entries for name in e.torch]
    assert set(mapped) == {name for name, _ in pair.torch.named_parameters()} - pair.left
    assert len(mapped) == len(set(mapped))


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_situations_of_real_ports(name: str, ignore_names: bool) -> None:
    pair = SITUATIONS[name]()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("proven", 0), mapping.proof
    assert off(pair, mapping) <= 1e-5
    assert sum(max(len(e.torch), len(e.mindspore)) > 1 for e in mapping.entries) == pair.several
    assert [e.torch for e in mapping.entries if e.review] == []
    assert {name for e in mapping.entries for name in e.torch} == {n for n, _ in pair.torch.named_parameters()}


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize("name", COMPUTED)
def test_weights_that_are_computed_are_not_taken_for_plain_ones(name: str, ignore_names: bool) -> None:
    pair = COMPUTED[name]()
    mapping = inferred(pair, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert (mapping.proof.status, mapping.proof.exit_code) == ("proven", 0), mapping.proof
    assert [e.torch for e in mapping.entries if e.review or e.evidence["proven"] is None] == []
    assert sum(len(e.torch) > 1 for e in mapping.entries) == pair.several


@pytest.mark.parametrize(("groups", "order"), [(HEADS, (0, 1, 2)), (1, (2, 1, 0)), (HEADS, (1, 2, 0))])
def test_names_that_mislead(groups: int, order: tuple[int, ...]) -> None:
    """What runs decides, and the mapping says what it found."""
    pair = misleading(groups, order)
    mapping = inferred(pair)
    static = inferred(misleading(groups, order), static=True)
    assert mapping.proof is not None
    assert mapping.proof.status == "proven"
    assert off(pair, mapping) <= 1e-5
    fused = {e.mindspore[0]: e for e in mapping.entries if len(e.torch) > 1}
    before = {e.mindspore[0]: e for e in static.entries if len(e.torch) > 1}
    for name, e in fused.items():
        assert (e.torch, e.transform) != (before[name].torch, before[name].transform)
        assert not e.review
        assert [t.op for t in e.transform] == (["concat"] if groups == 1 else ["unflatten", "concat", "flatten"])


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
def test_what_has_no_effect_stays_marked(ignore_names: bool) -> None:
    mapping = inferred(untellable(), ignore_names=ignore_names)
    several = [e for e in mapping.entries if len(e.torch) > 1]
    assert several
    assert all(e.review and e.evidence["proven"] is None for e in several)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_equally_right_orders_the_plain_one_is_taken(order: tuple[int, ...]) -> None:
    pair = exchangeable(order)
    mapping = inferred(pair)
    assert off(pair, mapping) <= 1e-5
    several = [e for e in mapping.entries if len(e.torch) > 1]
    assert [[name.split(".")[-2] for name in e.torch] for e in several] == [["gate", "up"]] * 2


@pytest.mark.parametrize("ignore_names", [False, True], ids=["names", "no names"])
@pytest.mark.parametrize(
    "name",
    ["kvq by heads to apart", "qkv to vqk by heads", "apart to kvq", "attention of one container to four layers"],
)
def test_against_a_trace(name: str, ignore_names: bool, tmp_path: Path) -> None:
    """Where PyTorch is not installed: the numbers of heads are in the file."""
    pair = PAIRS[name]()
    automap.write_trace(tmp_path / "net.trace", pair.torch, inputs=[pair.inputs])
    mapping = infer(tmp_path / "net.trace", pair.mindspore, ignore_names=ignore_names)
    assert mapping.proof is not None
    assert mapping.proof.status == "proven", mapping.proof
    assert off(pair, mapping) <= 1e-5


def test_a_piece_without_an_effect_is_not_proven() -> None:
    """A bias of keys shifts all scores of a query alike. The weights beside it tell which layers it is of."""
    for name in ("qkv to apart", "apart to qkv"):
        mapping = inferred(PAIRS[name]())
        biases = [e for e in mapping.entries if max(len(e.torch), len(e.mindspore)) > 1 and "bias" in e.torch[0]]
        assert [(e.evidence["proven"], e.review) for e in biases] == [(None, False)]
        weights = [e for e in mapping.entries if max(len(e.torch), len(e.mindspore)) > 1 and "weight" in e.torch[0]]
        assert [(e.evidence["proven"], e.review) for e in weights] == [("forward", False)]


# ------------------------------------------------------------------------------------------------- parts of it


@st.composite
def fusion(draw: st.DrawFn) -> tuple[list[int], Layout, int, list[int]]:
    """Sizes of pieces that have a number of groups in common, a layout, columns, and whether there are biases."""
    groups = draw(st.integers(1, 4))
    sizes = [groups * draw(st.integers(1, 4)) for _ in range(draw(st.integers(2, 4)))]
    order = tuple(draw(st.permutations(range(len(sizes)))))
    return sizes, Layout(order, groups), draw(st.integers(2, 5)), order


@given(fusion(), st.sampled_from([0, 1]))
def test_layouts_are_undone(found: Any, axis: int) -> None:
    sizes, layout, columns, order = found
    shapes = [(n, columns) if axis == 0 else (columns, n) for n in sizes]
    pieces = [np.random.default_rng(i).standard_normal(s) for i, s in enumerate(shapes)]
    standing = [pieces[i] for i in order]
    (whole,) = transforms.apply(layout.join(sizes, axis), standing)
    rows = np.moveaxis(whole, axis, 0)
    n = sum(sizes) // layout.groups
    # Slowly, the obvious way: group after group, piece after piece.
    expected = [
        np.moveaxis(p, axis, 0)[g * (len(np.moveaxis(p, axis, 0)) // layout.groups) :][
            : len(np.moveaxis(p, axis, 0)) // layout.groups
        ]
        for g in range(layout.groups)
        for p in standing
    ]
    assert np.array_equal(rows, np.concatenate(expected))
    assert len(rows) == n * layout.groups
    again = transforms.apply(layout.split(sizes, axis), [whole])
    assert all(np.array_equal(a, b) for a, b in zip(again, standing, strict=True))
    assert transforms.inverse(layout.join(sizes, axis), [p.shape for p in standing])


@given(fusion(), st.randoms(use_true_random=False))
def test_rows_from_one_layout_into_another(found: Any, random: Any) -> None:
    sizes, ours, columns, order = found
    other = list(order)
    random.shuffle(other)
    theirs = Layout(tuple(other), random.choice([1, ours.groups]))
    pieces = [np.random.default_rng(i).standard_normal((n, columns)) for i, n in enumerate(sizes)]
    (whole,) = transforms.apply(ours.join(sizes), [pieces[i] for i in ours.order])
    (goal,) = transforms.apply(theirs.join(sizes), [pieces[i] for i in theirs.order])
    p = Param("a.weight", whole.shape)
    way = rearranged(Way((p,), (p,)), 0, sizes, ours, theirs)
    assert np.array_equal(way.values(lambda name: whole)["a.weight"], goal)
