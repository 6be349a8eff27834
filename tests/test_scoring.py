"""Layers, candidates, and each part of the evidence against a slow obvious twin."""

from __future__ import annotations

from itertools import pairwise, permutations, product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import pair

from automap import scoring
from automap.graph import Param
from automap.layers import Layer, bare_names, by_number, common_module, core, disorder, layers_of, modules_above
from automap.scoring import Candidates, Sets, candidates, fit

FIXED = settings(derandomize=True, max_examples=60, deadline=None)


def layers(text: str, framework: str = "torch") -> list[Layer]:
    p = pair(text)
    return layers_of((p.torch if framework == "torch" else p.mindspore).parameters, framework)


def every_pair(n: int, m: int) -> Candidates:
    left, right = (np.array(x, dtype=np.int64) for x in zip(*product(range(n), range(m)), strict=True))
    return Candidates(left, right, np.ones(len(left)), np.zeros(len(left), dtype=np.int64))


# -------------------------------------------------------------------------------------------------------------- layers


def test_layers_of_torch() -> None:
    conv, bn, token = layers("conv:8x3x3 a.0 bias; bn:8 a.1; param:1x8 cls")
    assert (conv.path, list(conv.slots), conv.norm, conv.statistics) == ("a.0", ["weight", "bias"], False, False)
    assert (bn.path, bn.norm, bn.statistics) == ("a.1", True, True)
    assert list(bn.slots) == ["weight", "bias", "mean", "variance", "counter"]
    assert (token.path, list(token.slots), token.parts) == ("cls", ["weight"], ("cls",))


def test_layers_of_mindspore() -> None:
    bn, ln, emb = layers("bn:8 a.1; ln:8 n; emb:5x8 e", "mindspore")
    assert {s: p.name for s, p in bn.slots.items()} == {
        "mean": "a.1.moving_mean",
        "variance": "a.1.moving_variance",
        "weight": "a.1.gamma",
        "bias": "a.1.beta",
    }
    assert bn.main == ("weight", bn.slots["weight"]), "the weight stands for the layer though it comes last"
    assert (ln.norm, ln.statistics) == (True, False)
    assert (emb.norm, emb.main[1].name) == (False, "e.embedding_table")


def test_the_main_parameter_is_the_largest_where_there_is_no_weight() -> None:
    (lstm,) = layers("lstm:8x4x1 rnn")
    name, param = lstm.main
    assert param.size == max(p.size for p in lstm.slots.values() if p.size is not None)
    assert name.startswith("weight_")


def test_a_norm_at_the_top_of_mindspore_has_its_statistics_back() -> None:
    (bn,) = layers("bn:8 . .", "mindspore")
    assert (bn.path, bn.parts, set(bn.slots)) == ("", (), {"weight", "bias", "mean", "variance"})
    apart = layers_of([Param("mean", (8,)), Param("variance", (8,)), Param("w", (8, 8))], "mindspore")
    assert [x.path for x in apart] == ["mean", "variance", "w"], "only beside gamma and beta"
    torch = layers_of([Param(n, (8,)) for n in ("mean", "variance", "gamma", "beta")], "torch")
    assert {"mean", "variance"} <= {x.path for x in torch}, "only in MindSpore"


def test_two_words_for_one_slot_are_two_layers() -> None:
    """A layer scale called gamma in the module that has a weight."""
    made = layers_of([Param("s.weight", (8, 8)), Param("s.bias", (8,)), Param("s.gamma", (8,))], "torch")
    assert [(x.path, list(x.slots)) for x in made] == [("s", ["weight", "bias"]), ("s.gamma", ["weight"])]


def test_gamma_alone_is_no_norm() -> None:
    alone, both = layers_of([Param("a.gamma", (8,)), Param("b.gamma", (8,)), Param("b.beta", (8,))], "torch")
    assert (alone.norm, both.norm) == (False, True)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(None, None), ((), ()), ((1, 1), ()), ((8, 1, 3, 1), (8, 3)), ((8, 3), (8, 3)), ((0, 1), (0,))],
)
def test_core(shape: tuple[int, ...] | None, expected: tuple[int, ...] | None) -> None:
    assert core(shape) == expected


def test_disorder() -> None:
    ordered = [f"linear:2x2 h.{i}.a; linear:2x2 h.{i}.b" for i in range(12)]
    assert disorder(layers(";".join(ordered))) == 0
    assert disorder(layers(";".join(ordered[::-1]))) == 1
    assert disorder(layers("linear:2x2 b; linear:2x2 a")) == 0, "words have no order of their own"
    by_letters = sorted(ordered)  # 0, 1, 10, 11, 2 …
    assert 0 < disorder(layers(";".join(by_letters))) < 0.2
    assert disorder([]) == 0


@FIXED
@given(st.permutations(range(12)))
def test_by_number_undoes_any_order_of_numbered_children(order: list[int]) -> None:
    lines = [f"linear:2x2 h.{i}.b; linear:2x2 h.{i}.a" for i in range(12)]
    mixed = layers("linear:2x2 stem;" + ";".join(lines[i] for i in order) + "; linear:2x2 1.head; linear:2x2 0.head")
    assert [x.path for x in by_number(mixed)] == [
        "stem",
        *(f"h.{i}.{w}" for i in range(12) for w in "ba"),
        "0.head",
        "1.head",
    ]


# ---------------------------------------------------------------------------------------------------------- candidates


@pytest.mark.parametrize(
    ("left", "right", "least", "most"),
    [
        ("linear:8x4 a", "linear:8x4 a", 1, 1),
        ("bn:8 a", "bn:8 a", 1, 1),  # the counter is no difference
        ("linear:8x4 a", "linear:8x4 a 1x1", 0.8, 0.95),
        ("linear:8x4 a", "linear:8x4 a T", 0.5, 0.7),
        ("linear:8x4 a", "linear:8x5 a", 0, 0),
        ("linear:8x4 a", "linear:8x4 a +torch", 0.5, 0.9),
        ("ln:8 a", "bn:8 a", 0, 0),
        ("bn:8 a", "ln:8 a", 0, 0),
        ("conv:8x4x3 a", "conv:4x8x3 a", 0, 0),  # only matrices are transposed
        ("linear:8x4 a", "conv:8x4x3 a", 0, 0),
    ],
)
def test_fit(left: str, right: str, least: float, most: float) -> None:
    (a,), (b,) = layers(left), layers(right, "mindspore")
    assert least <= fit(a, b) <= most


def test_a_norm_without_statistics_is_one_with_them_only_where_there_are_some_to_spare() -> None:
    (a,), (b,) = layers("ln:8 a"), layers("bn:8 a", "mindspore")
    assert 0.4 < fit(a, b, spare=True) < 0.6
    assert fit(b, a, spare=True) == 0
    assert len(candidates([a], [b])) == 1
    left, right = layers("ln:8 a; bn:8 b"), layers("ln:8 a; bn:8 b", "mindspore")
    assert len(candidates(left, right)) == 2


def test_a_norm_over_several_dimensions() -> None:
    norm, dense = (
        Layer("a", {"weight": Param("a.weight", (3, 4)), "bias": Param("a.bias", shape)}, False)
        for shape in ((3, 4), (3,))
    )
    port = Layer("a", {"weight": Param("a.gamma", (3, 4)), "bias": Param("a.beta", (3, 4))}, True)
    assert fit(norm, port) == 1
    assert fit(dense, port) == 0


def test_candidates_are_all_that_fit_and_their_blocks_share_nothing() -> None:
    table = "conv:8x3x3 stem; linear:8x4 a; linear:8x4 b; linear:4x8 c T; ln:8 n; bn:8 m; param:8 scale"
    left, right = layers(table), layers(table, "mindspore")
    c = candidates(left, right)
    found = dict(zip(zip(c.left.tolist(), c.right.tolist(), strict=True), c.fit.tolist(), strict=True))
    assert found == {(i, j): fit(a, b) for i, a in enumerate(left) for j, b in enumerate(right) if fit(a, b) > 0}
    for ends in (c.left, c.right):
        for i in set(ends.tolist()):
            assert len(set(c.block[ends == i].tolist())) == 1


def test_unknown_shapes_leave_all_open_but_the_form() -> None:
    p = pair("conv:8x3x3 stem; bn:8 bn1; ln:8 norm; linear:3x8 fc", shapes=False)
    left, right = layers_of(p.torch.parameters, "torch"), layers_of(p.mindspore.parameters, "mindspore")
    c = candidates(left, right)
    fits = {(left[i].path, right[j].path): f for i, j, f in zip(c.left, c.right, c.fit, strict=True)}
    assert fits["bn1", "bn1"] == fits["norm", "norm"] == fits["stem", "stem"] == 1
    assert ("stem", "fc") in fits
    assert ("bn1", "norm") not in fits, "statistics tell"
    assert fits.get(("stem", "norm"), 0) < 0.5, "what is not called a norm is hardly one"


# ------------------------------------------------------------------------------------------------------------ evidence


def lcs(a: list[int], b: list[int]) -> int:
    if not a or not b:
        return 0
    return max(lcs(a[1:], b), lcs(a, b[1:]), *([1 + lcs(a[1:], b[1:])] if a[0] == b[0] else []))


NUMBERS = st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3)


@FIXED
@given(NUMBERS, NUMBERS)
def test_numbers_against_the_twin(left: list[list[int]], right: list[list[int]]) -> None:
    c = every_pair(len(left), len(right))
    got = scoring.numbers(scoring._padded(left), scoring._padded(right), c)
    for i, j, x in zip(c.left, c.right, got, strict=True):
        longer = max(len(left[i]), len(right[j]))
        assert x == pytest.approx(lcs(left[i], right[j]) / longer if longer else 1)


def features(*paths: str) -> scoring.Features:
    return scoring.Features(layers_of([Param(f"{p}.weight", (2, 2)) for p in paths], "torch"))


def test_same_path_ignores_what_a_whole_side_has_in_front() -> None:
    f = features("module.a.0.b", "module.a.1.b", "module.c")
    g = features("net.body.a.0.b", "net.body.a.1.b", "net.body.c")
    table = scoring.same_path(f, g, every_pair(3, 3), by_rank=False).reshape(3, 3)
    assert np.diag(table).tolist() == [1, 1, 1]
    assert table[0, 1] == pytest.approx(2 / 3)
    assert table[0, 2] == 0


def test_same_path_by_rank_takes_a_number_for_its_place_among_its_siblings() -> None:
    f, g = features("h.0.a", "h.1.a"), features("h.4.a", "h.5.a")
    assert scoring.same_path(f, g, every_pair(2, 2), by_rank=True).reshape(2, 2).tolist() == [[1, 0.5], [0.5, 1]]
    assert scoring.same_path(f, g, every_pair(2, 2), by_rank=False).max() < 1


def test_bare_names_put_the_slot_for_each_frameworks_word() -> None:
    torch = bare_names(["module.bn.weight", "module.bn.running_var", "module.cls_token"])
    mindspore = bare_names(["bn.gamma", "bn.moving_variance", "cls_token"])
    assert list(torch.values()) == list(mindspore.values())


def test_names_weigh_rare_words_more() -> None:
    f = features("blocks.0.attn.query", "blocks.0.attn.key", "blocks.0.attn.value")
    g = features("blocks.0.attn.query", "blocks.0.attn.valu", "other")
    table = scoring.names(f, g, every_pair(3, 3)).reshape(3, 3)
    assert table[0, 0] == 1
    assert table[0, 0] > table[2, 1] > table[1, 1] > table[1, 2] == 0


def test_ranks_of_numbers_count_among_their_like() -> None:
    f = features("a.3.x", "a.7.x", "a.conv5", "a.conv9", "b.2")
    assert [row[row >= 0].tolist() for row in f.numbers] == [[0], [1], [0], [1], [0]]
    assert [row[row >= 0].tolist() for row in f.values] == [[3], [7], [5], [9], [2]]


GAINS = st.integers(1, 4).flatmap(
    lambda n: st.integers(1, 4).flatmap(
        lambda m: st.tuples(
            st.just(n),
            st.just(m),
            st.dictionaries(
                st.tuples(st.integers(0, n - 1), st.integers(0, m - 1)),
                st.sampled_from([0.25, 0.5, 1.0, 2.0]),
                min_size=1,
                max_size=8,
            ),
        )
    )
)


def heaviest(pairs: dict[tuple[int, int], float], through: tuple[int, int] | None = None) -> float:
    """The slow obvious twin: the heaviest set of pairs in strictly increasing order on both sides, by trying all."""
    some = sorted(pairs)
    best = -1.0
    for bits in product((0, 1), repeat=len(some)):
        chosen = [p for p, b in zip(some, bits, strict=True) if b]
        ordered = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(chosen))
        if ordered and (through is None or through in chosen):
            best = max(best, sum(pairs[p] for p in chosen))
    return best


@FIXED
@given(GAINS)
def test_order_against_all_alignments(case: tuple[int, int, dict[tuple[int, int], float]]) -> None:
    n, m, pairs = case
    ends = list(pairs)
    left, right = (np.array([p[i] for p in ends], dtype=np.int64) for i in (0, 1))
    c = Candidates(left, right, np.ones(len(ends)), np.zeros(len(ends), dtype=np.int64))
    got = scoring.order(n, m, c, np.array([pairs[p] for p in ends]))
    whole = heaviest(pairs)
    assert got.tolist() == pytest.approx([whole - heaviest(pairs, through=p) for p in ends])


BELIEFS = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4), min_size=5, max_size=5)
MEMBERS = st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=4, unique=True), min_size=1, max_size=4)


def sets(members: list[list[int]], n: int) -> Sets:
    members = list(dict.fromkeys(tuple(sorted(i for i in m if i < n)) for m in members))
    members = [m for m in members if len(m) > 1]
    matrix = np.zeros((n, max(1, len(members))))
    for s, m in enumerate(members):
        matrix[list(m), s] = 1
    ids = scoring._padded([[s for s, m in enumerate(members) if i in m] for i in range(n)])
    return Sets(sp.csr_matrix(matrix), ids, np.array([len(m) for m in members] or [1], dtype=np.float64))


def dice(a: set[int], b: set[int], i: int, j: int, belief: np.ndarray) -> float:
    """How far two sets go over into each other, the pair (i, j) left out."""
    shared = sum(belief[x, y] for x in a - {i} for y in b - {j})
    return 2 * shared / max(len(a) + len(b) - 2, 1)


@FIXED
@given(MEMBERS, MEMBERS, BELIEFS, st.sampled_from([-0.5, 0.0, 0.3]))
def test_correspondence_against_the_twin(
    left: list[list[int]], right: list[list[int]], rows: list[list[float]], power: float
) -> None:
    belief = np.array(rows)
    belief /= max(1.0, belief.sum(axis=0).max(), belief.sum(axis=1).max())
    n, m = belief.shape
    f, g = sets(left, n), sets(right, m)
    c = every_pair(n, m)
    got = scoring.correspondence(f, g, c, sp.csr_matrix(belief), power)
    of_f = [[set(np.flatnonzero(f.member.toarray()[:, s])) for s in row if s >= 0] for row in f.ids]
    of_g = [[set(np.flatnonzero(g.member.toarray()[:, s])) for s in row if s >= 0] for row in g.ids]
    for i, j, x in zip(c.left, c.right, got, strict=True):
        expected = 0.0
        for mine, theirs, turned in ((of_f[i], of_g[j], False), (of_g[j], of_f[i], True)):
            weights = [len(s) ** power for s in mine]
            bests = [
                max((dice(t, s, i, j, belief) if turned else dice(s, t, i, j, belief) for t in theirs), default=0.0)
                for s in mine
            ]
            if mine:
                expected += 0.5 * np.dot(weights, bests) / sum(weights)
        assert x == pytest.approx(min(expected, 1.0))


def test_correspondence_of_the_same_network_is_complete() -> None:
    f = features("a.0.x", "a.0.y", "a.1.x", "a.1.y", "b.x", "b.y")
    table = scoring.correspondence(f.places, f.places, every_pair(6, 6), sp.identity(6, format="csr"), -0.5)
    table = table.reshape(6, 6)
    assert np.diag(table).tolist() == pytest.approx([1] * 6)
    assert (table <= 1).all()
    assert table[0, 0] > table[0, 2], "the other block has another neighbour"


def test_a_wrapper_around_the_same_layers_is_no_set_of_its_own() -> None:
    plain, wrapped = features("a.x", "a.y", "b"), features("net.core.a.x", "net.core.a.y", "net.core.b")
    assert plain.places.size.tolist() == wrapped.places.size.tolist()


@pytest.mark.parametrize("order", list(permutations(["x", "x.a", "x.a.b"])))
def test_modules(order: tuple[str, ...]) -> None:
    assert list(modules_above("a.b.c")) == ["", "a", "a.b"]
    assert common_module(["a.b.x", "a.b.y.z", "a.b.y.w"]) == "a.b"
    assert common_module(["a.b", "c.d"]) == ""
    assert common_module([f"{o}.w" for o in order]) == "x"
