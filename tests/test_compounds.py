"""Layers that one side keeps apart and the other in one tensor, found from listings alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

import automap
from automap.compounds import Compound, are_alike, compound, flattened
from automap.graph import Listing, Param
from automap.inference import match
from automap.mapping import Entry, Mapping
from automap.spelling import distinguishing, ordered, spelled
from automap.transforms import Transform, shape_after

#: What stands around the attention of each block, the same on both sides.
AROUND = "norm1.weight 8; {attention}; norm2.weight 8; mlp.up.weight 24x8; mlp.up.bias 24; mlp.down.weight 8x24"


def listing(framework: str, text: str) -> Listing:
    """``name shape`` each, with ``;`` between them: ``head.weight 10x8; head.bias 10``."""
    params = []
    for row in filter(None, (r.strip() for r in text.replace("\n", ";").split(";"))):
        name, shape = row.split()
        params.append(Param(name, tuple(map(int, shape.split("x"))), "float32"))
    return Listing(framework, tuple(params))


def network(framework: str, attention: str, blocks: int = 3) -> Listing:
    """A few blocks with such an attention, and a head."""
    text = "embed.weight 30x8; "
    if framework == "mindspore":
        text = "embed.embedding_table 30x8; "
    for i in range(blocks):
        block = AROUND.format(attention=attention)
        if framework == "mindspore":
            block = block.replace("norm1.weight", "norm1.gamma").replace("norm2.weight", "norm2.gamma")
        text += "; ".join(f"layers.{i}.{row.strip()}" for row in block.split(";")) + "; "
    return listing(framework, text + "head.weight 30x8")


def mapped(torch: str, mindspore: str, **options: bool) -> Mapping:
    return match(network("torch", torch), network("mindspore", mindspore), **options)


def entry(mapping: Mapping, name: str) -> Entry:
    found = mapping.find(name)
    assert len(found) == 1
    assert isinstance(found[0], Entry), found[0]
    return found[0]


def named(mapping: Mapping, name: str) -> tuple[list[str], list[str]]:
    """The names of the first block's entry with this name, without what stands in front of all."""
    e = entry(mapping, f"layers.0.{name}")
    return [t.removeprefix("layers.0.") for t in e.torch], [m.removeprefix("layers.0.") for m in e.mindspore]


def fits(mapping: Mapping, torch: Listing, mindspore: Listing) -> None:
    """Applied to arrays, the mapping gives every MindSpore parameter, in its shape, from values used once."""
    rng = np.random.default_rng(0)
    state = {p.name: rng.normal(size=p.shape).astype(np.float32) for p in torch}
    made = automap.apply(mapping, state, framework="numpy")
    assert {n: a.shape for n, a in made.items()} == {p.name: p.shape for p in mindspore}
    before, after = (np.sort(np.concatenate([a.ravel() for a in x.values()])) for x in (state, made))
    np.testing.assert_array_equal(before, after)
    back = automap.apply(mapping, made, reverse=True, framework="numpy")
    assert all(np.array_equal(back[n], a) for n, a in state.items())


def layers(names: str, form: str = "8x8", bias: bool = True) -> str:
    """Dense layers with their biases: ``attn.q attn.k``."""
    rows = []
    for name in names.split():
        rows.append(f"{name}.weight {form}")
        if bias:
            rows.append(f"{name}.bias {form.split('x')[0]}")
    return "; ".join(rows)


APART = [
    ("attn.q attn.k attn.v attn.out", "attn.qkv"),
    ("self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj", "attn.Wqkv"),
    ("attn.k_proj attn.v_proj attn.q_proj attn.out_proj", "attn.qkv"),
    ("attention.self.query attention.self.key attention.self.value attention.output.dense", "attn.qkv"),
    ("attn.wq attn.wk attn.wv attn.wo", "attn.query_key_value"),
    ("attn.to_q attn.to_k attn.to_v attn.to_out", "attn.in_proj"),
    ("attn.q attn.k attn.v attn.out", "attn.in_proj_"),
    ("attn.dense1 attn.dense2 attn.dense3 attn.projection", "attn.c_attn"),
]


@pytest.mark.parametrize("fused_in", ["torch", "mindspore"])
@pytest.mark.parametrize(("apart", "fused"), APART, ids=[f"{a[0].split()[0]} {a[1]}" for a in APART])
def test_projections_in_one_tensor_and_apart(apart: str, fused: str, fused_in: str) -> None:
    own = fused.endswith("_")  # the framework's own layer
    dot = "" if own else "."
    pieces, whole = layers(apart), f"{layers(fused, '24x8').replace('_.', '_')}; {layers('attn.proj')}"
    torch, mindspore = (whole, pieces) if fused_in == "torch" else (pieces, whole)
    mapping = mapped(torch, mindspore)
    fits(mapping, network("torch", torch), network("mindspore", mindspore))
    three = apart.split()[:3]
    if apart.startswith("attn.k_proj"):
        three = [three[2], three[0], three[1]]  # the names say so
    for leaf in ("weight", "bias"):
        sides = named(mapping, f"{fused}{dot}{leaf}")
        assert sides[fused_in == "torch"] == [f"{name}.{leaf}" for name in three]
        e = entry(mapping, f"layers.1.{fused}{dot}{leaf}")
        assert e.review == (not own)
        assert own or "a listing cannot tell" in e.why


def test_what_stays_single_is_not_joined() -> None:
    mapping = mapped(layers("attn.q attn.k attn.v attn.out"), f"{layers('attn.qkv', '24x8')}; {layers('attn.proj')}")
    assert named(mapping, "attn.out.weight") == (["attn.out.weight"], ["attn.proj.weight"])
    assert not entry(mapping, "layers.0.attn.out.weight").review


def test_keys_and_values_without_queries() -> None:
    torch, mindspore = layers("attn.query attn.key attn.value attn.proj"), layers("attn.q attn.x attn.proj")
    mindspore = mindspore.replace("x.weight 8x8", "x.weight 16x8").replace("x.bias 8", "x.bias 16")
    mapping = mapped(torch, mindspore.replace("attn.x", "attn.kv"))
    assert named(mapping, "attn.kv.weight")[0] == ["attn.key.weight", "attn.value.weight"]
    assert named(mapping, "attn.q.weight")[0] == ["attn.query.weight"]


def test_grouped_queries_are_joined_with_fewer_keys() -> None:
    apart = "attn.q.weight 8x8; attn.k.weight 4x8; attn.v.weight 4x8; attn.o.weight 8x8"
    mapping = mapped("attn.wqkv.weight 16x8; attn.wo.weight 8x8", apart)
    assert named(mapping, "attn.wqkv.weight")[1] == ["attn.q.weight", "attn.k.weight", "attn.v.weight"]
    fits(mapping, network("torch", "attn.wqkv.weight 16x8; attn.wo.weight 8x8"), network("mindspore", apart))


def test_gate_and_up_in_one_tensor() -> None:
    torch = "ffn.gate_proj.weight 32x8; ffn.up_proj.weight 32x8; ffn.down_proj.weight 8x32"
    mindspore = "ffn.gate_up_proj.weight 64x8; ffn.down_proj.weight 8x32"
    mapping = mapped(torch, mindspore)
    assert named(mapping, "ffn.gate_up_proj.weight")[0] == ["ffn.gate_proj.weight", "ffn.up_proj.weight"]
    turned = mapped("ffn.up_proj.weight 32x8; ffn.gate_proj.weight 32x8; ffn.down_proj.weight 8x32", mindspore)
    assert named(turned, "ffn.gate_up_proj.weight")[0] == ["ffn.gate_proj.weight", "ffn.up_proj.weight"]


def experts(n: int, words: str = "w1 w2 w3") -> str:
    up, down, gate = words.split()
    return "; ".join(
        f"moe.experts.{i}.{up}.weight 32x8; moe.experts.{i}.{down}.weight 8x32; moe.experts.{i}.{gate}.weight 32x8"
        for i in range(n)
    )


@pytest.mark.parametrize("n", [2, 6, 20])
@pytest.mark.parametrize("stacked_in", ["torch", "mindspore"])
def test_experts_stacked_in_one_tensor(n: int, stacked_in: str) -> None:
    stacked = f"moe.w1 {n}x32x8; moe.w2 {n}x8x32; moe.w3 {n}x32x8"
    sides = (stacked, experts(n)) if stacked_in == "torch" else (experts(n), stacked)
    mapping = mapped(*sides)
    fits(mapping, network("torch", sides[0]), network("mindspore", sides[1]))
    for word in ("w1", "w2", "w3"):
        pieces = named(mapping, f"moe.{word}")[stacked_in == "torch"]
        assert pieces == [f"moe.experts.{i}.{word}.weight" for i in range(n)]
        assert not entry(mapping, f"layers.0.moe.{word}").review


def test_stacked_experts_that_are_transposed() -> None:
    torch, mindspore = experts(4), "moe.w1 4x8x32; moe.w2 4x32x8; moe.w3 4x8x32"
    mapping = mapped(torch, mindspore)
    fits(mapping, network("torch", torch), network("mindspore", mindspore))
    assert [t.op for t in entry(mapping, "layers.0.moe.w1").transform] == ["stack", "transpose"]


@pytest.mark.parametrize("stacked_in", ["torch", "mindspore"])
def test_gate_and_up_of_all_experts_in_one_tensor(stacked_in: str) -> None:
    apart = experts(3, "gate_proj down_proj up_proj")
    stacked = "moe.experts.gate_up_proj 3x64x8; moe.experts.down_proj 3x8x32"
    sides = (stacked, apart) if stacked_in == "torch" else (apart, stacked)
    mapping = mapped(*sides)
    fits(mapping, network("torch", sides[0]), network("mindspore", sides[1]))
    pieces = named(mapping, "moe.experts.gate_up_proj")[stacked_in == "torch"]
    assert pieces == [f"moe.experts.{i}.{w}_proj.weight" for i in range(3) for w in ("gate", "up")]


def test_a_grouped_convolution_and_a_list_of_convolutions() -> None:
    torch, mindspore = "mix.conv.weight 12x2x3x3", "; ".join(f"mix.convs.{i}.weight 4x2x3x3" for i in range(3))
    mapping = mapped(torch, mindspore)
    assert named(mapping, "mix.conv.weight")[1] == [f"mix.convs.{i}.weight" for i in range(3)]
    fits(mapping, network("torch", torch), network("mindspore", mindspore))


def test_one_1x1_convolution_and_two() -> None:
    torch, mindspore = "mix.left.weight 5x8x1x1; mix.right.weight 5x8x1x1", "mix.both.weight 10x8x1x1"
    mapping = mapped(torch, mindspore)
    assert named(mapping, "mix.both.weight")[0] == ["mix.left.weight", "mix.right.weight"]


def test_a_projection_that_one_block_lacks_is_joined_with_nothing() -> None:
    """The fused layer of the last block is gone: its pieces are left over, and no other layer takes them."""
    torch = network("torch", layers("attn.q attn.k attn.v attn.out"))
    whole = network("mindspore", f"{layers('attn.qkv', '24x8')}; {layers('attn.proj')}")
    mindspore = Listing("mindspore", tuple(p for p in whole if not p.name.startswith("layers.2.attn.qkv")))
    mapping = match(torch, mindspore)
    left = {u.name for u in mapping.unmatched_torch if u.review}
    assert left == {f"layers.2.attn.{w}.{leaf}" for w in "qkv" for leaf in ("weight", "bias")}
    assert named(mapping, "attn.qkv.weight")[0] == [f"attn.{w}.weight" for w in "qkv"]


def test_whatever_could_be_joined_in_its_place_is_marked() -> None:
    mapping = mapped(layers("a.x a.y a.z a.w"), f"{layers('m.fused', '24x8')}; {layers('m.single')}")
    single = entry(mapping, "layers.0.m.single.weight")
    assert single.review
    assert all(e.review for e in mapping.entries if len(e.torch) > 1)
    assert "others that stand beside them" in entry(mapping, "layers.0.m.fused.weight").why


def test_nothing_is_joined_that_has_a_counterpart() -> None:
    both = f"{layers('attn.q attn.k attn.v attn.out')}; {layers('extra.qkv', '24x8')}"
    mapping = mapped(both, both)
    assert all(len(e.torch) == len(e.mindspore) == 1 for e in mapping.entries)
    assert not mapping.needs_review


def test_a_pinned_piece_is_not_joined() -> None:
    torch, mindspore = network("torch", layers("a.q a.k a.v a.o")), network("mindspore", layers("b.qkv", "24x8"))
    mapping = match(torch, mindspore)
    assert len(entry(mapping, "layers.0.b.qkv.weight").torch) == 3
    pinned = match(torch, network("mindspore", layers("b.x b.y")), pins=["layers.0.a.q.weight=layers.0.b.y.weight"])
    assert entry(pinned, "layers.0.a.q.weight").mindspore == ("layers.0.b.y.weight",)


def test_what_running_has_told_of_several_parameters_stands() -> None:
    torch = network("torch", layers("attn.q attn.k attn.v attn.out", bias=False))
    mindspore = network("mindspore", "attn.qkv.weight 24x8; attn.proj.weight 8x8")
    order = ("k", "q", "v")
    chain = match(torch, mindspore).find("layers.0.attn.qkv.weight")[0].transform
    ways = [
        (
            tuple(torch.by_name[f"layers.{i}.attn.{w}.weight"] for w in order),
            (mindspore.by_name[f"layers.{i}.attn.qkv.weight"],),
            chain,
        )
        for i in range(3)
    ]
    mapping = match(torch, mindspore, ways=ways)
    assert named(mapping, "attn.qkv.weight")[0] == [f"attn.{w}.weight" for w in order]
    assert not mapping.needs_review


def test_without_names_counting_is_enough() -> None:
    mapping = mapped(
        layers("attn.q attn.k attn.v attn.out"),
        f"{layers('attn.qkv', '24x8')}; {layers('attn.proj')}",
        ignore_names=True,
    )
    assert len(entry(mapping, "layers.0.attn.qkv.weight").torch) == 3


def strings(*words: str) -> Iterable[tuple[str, ...]]:
    return [tuple(w.split(".")) for w in words]


@pytest.mark.parametrize(
    ("members", "fused", "expected", "sure"),
    [
        ("a.q a.k a.v", "qkv", "q k v", "named"),
        ("a.k a.v a.q", "qkv", "q k v", "named"),
        ("a.k a.v a.q", "kvq", "k v q", "named"),
        ("a.q a.k a.v", "x", "q k v", "named"),
        ("a.value a.key a.query", "c_attn", "query key value", "named"),
        ("a.v_proj a.k_proj a.q_proj", "in_proj", "q_proj k_proj v_proj", "named"),
        ("a.up a.gate", "gate_up_proj", "gate up", "named"),
        ("a.up a.gate", "fc1", "up gate", "assumed"),
        ("a.d3 a.d1 a.d2", "c_attn", "d1 d2 d3", "assumed"),
        ("a.left a.right", "shell", "left right", "assumed"),
    ],
)
def test_the_order_of_pieces(members: str, fused: str, expected: str, sure: str) -> None:
    paths = [tuple(m.split(".")) for m in members.split()]
    order, how = ordered(paths, fused)
    assert [paths[i][-1] for i in order] == expected.split()
    assert how == sure


def test_words_that_tell_pieces_apart() -> None:
    assert distinguishing([("a", "q_proj"), ("a", "k_proj")]) == ["q", "k"]
    assert distinguishing([("e", "0", "w"), ("e", "1", "w")]) == ["0", "1"]
    assert spelled(["query", "key"], "keyquery") == [1, 0]
    assert spelled(["a", "b"], "xaxb") is None
    assert spelled(["q", "q"], "qq") is None


# --------------------------------------------------------------------------------------------------- what is left over


def test_the_biases_of_projections_that_stand_apart() -> None:
    """Where keys and values have widths of their own, the framework's attention joins only the biases."""
    torch = "attn.q_proj_weight 8x8; attn.k_proj_weight 8x5; attn.v_proj_weight 8x6; attn.in_proj_bias 24; "
    torch += layers("attn.out_proj")
    mindspore = "attn.q.weight 8x8; attn.q.bias 8; attn.k.weight 8x5; attn.k.bias 8; attn.v.weight 8x6; attn.v.bias 8; "
    mindspore += layers("attn.out")
    mapping = mapped(torch, mindspore)
    assert named(mapping, "attn.in_proj_bias")[1] == ["attn.q.bias", "attn.k.bias", "attn.v.bias"]
    assert entry(mapping, "layers.0.attn.in_proj_bias").review
    fits(mapping, network("torch", torch), network("mindspore", mindspore))


@pytest.mark.parametrize("turned", [False, True])
def test_the_gates_of_a_recurrent_layer_apart(turned: bool) -> None:
    whole = "rnn.weight_ih_l0 32x5; rnn.weight_hh_l0 32x8; rnn.bias_ih_l0 32; rnn.bias_hh_l0 32"
    apart = "; ".join(f"rnn.{w}{g}.weight 8x{n}; rnn.{w}{g}.bias 8" for w, n in (("x", 5), ("h", 8)) for g in "ifgo")
    sides = (apart, whole) if turned else (whole, apart)
    mapping = mapped(*sides)
    fits(mapping, network("torch", sides[0]), network("mindspore", sides[1]))
    assert named(mapping, "rnn.weight_ih_l0")[not turned] == [f"rnn.x{g}.weight" for g in "ifgo"]
    assert all(e.review for e in mapping.entries if len(e.torch) + len(e.mindspore) > 2)


@pytest.mark.parametrize(
    ("torch", "mindspore", "ops"),
    [
        ("8x3x4x4", "8x48", ["reshape"]),
        ("8x3x4x4", "48x8", ["reshape", "transpose"]),
        ("8x48", "8x3x4x4", ["reshape"]),
        ("48x8", "8x3x4x4", ["transpose", "reshape"]),
    ],
)
def test_a_patch_embedding_as_a_convolution_and_as_a_dense_layer(torch: str, mindspore: str, ops: list[str]) -> None:
    sides = [network(f, layers("attn.q")) for f in ("torch", "mindspore")]
    for k, (framework, form) in enumerate((("torch", torch), ("mindspore", mindspore))):
        patch = listing(framework, f"patch.proj.weight {form}; patch.proj.bias 8")
        sides[k] = Listing(framework, patch.parameters + sides[k].parameters)
    mapping = match(*sides)
    e = entry(mapping, "patch.proj.weight")
    assert [t.op for t in e.transform] == ops
    assert e.review
    assert "in which order" in e.why
    assert entry(mapping, "patch.proj.bias").mindspore == ("patch.proj.bias",)
    fits(mapping, *sides)


@pytest.mark.parametrize("forms", [("1", "8"), ("8", "1")])
def test_a_slope_for_all_channels_and_one_for_each(forms: tuple[str, str]) -> None:
    sides = [
        network(f, f"{layers('attn.q')}; act.{w} {n}")
        for f, w, n in zip(("torch", "mindspore"), ("weight", "w"), forms, strict=True)
    ]
    e = entry(match(*sides), "layers.1.act.weight")
    assert e.mindspore == ("layers.1.act.w",)
    assert [t.op for t in e.transform] == ["expand" if forms[0] == "1" else "collapse"]
    assert e.review


def test_a_padded_vocabulary_and_longer_positions_are_said_with_their_numbers() -> None:
    sides = []
    for framework, words, places in (("torch", 30, 7), ("mindspore", 32, 9)):
        tables = listing(framework, f"tokens.weight {words}x8; positions.weight {places}x8")
        rest = [
            p
            for p in network(framework, layers("attn.q"))
            if not p.name.startswith("embed") and p.name != "head.weight"
        ]
        sides.append(Listing(framework, (*tables, *rest)))
    mapping = match(*sides)
    for name, a, b in (("tokens", 30, 32), ("positions", 7, 9)):
        e = entry(mapping, f"{name}.weight")
        assert e.review
        assert str(a) in e.why
        assert str(b) in e.why
        assert e.transform == ()


def test_kernels_with_channels_last() -> None:
    torch = "; ".join(f"mix.c{i}.weight {o}x{n}x3x3" for i, (o, n) in enumerate(((8, 4), (8, 8), (3, 3))))
    mindspore = "; ".join(f"mix.c{i}.weight 3x3x{n}x{o}" for i, (o, n) in enumerate(((8, 4), (8, 8), (3, 3))))
    mapping = mapped(torch, mindspore)
    for i in range(3):  # the last one has the same shape in any order: as its siblings
        (turn,) = entry(mapping, f"layers.1.mix.c{i}.weight").transform
        assert turn.args["axes"] == [2, 3, 1, 0]


def test_what_is_joined_already_is_joined_again_only_where_one_transform_makes_it() -> None:
    """Gate and up of each expert, and then the experts; but not a joined one beside one that is not."""

    def of(*names: str, axis: int = 0) -> Compound:
        parts = [Param(f"{n}.weight", (4, 4)) for n in names]
        return compound(parts, (Transform("concat", {"axis": axis, "sizes": [4, 4]}),), "fused", "named")

    experts = [of("0.gate", "0.up"), of("1.gate", "1.up")]
    assert are_alike(experts)
    assert not are_alike([experts[0], None])
    assert not are_alike([experts[0], of("1.gate", "1.up", axis=1)])
    stack = compound([e.param for e in experts], (Transform("stack", {"axis": 0}),), "experts", "told")
    one = flattened(stack, experts)
    assert [p.name for p in one.parts] == ["0.gate.weight", "0.up.weight", "1.gate.weight", "1.up.weight"]
    assert shape_after(one.chain, [(4, 4)] * 4) == ((2, 8, 4),)


def test_a_key_without_a_bias_is_joined_all_the_same() -> None:
    """PyTorch has one weight and the two biases that do something; the port's key has none."""
    torch = network(
        "torch", "attn.q_bias 8; attn.v_bias 8; attn.qkv.weight 24x8; attn.proj.weight 8x8; attn.proj.bias 8"
    )
    port = network(
        "mindspore",
        "attn.q.weight 8x8; attn.q.bias 8; attn.k.weight 8x8; attn.v.weight 8x8; attn.v.bias 8; attn.proj.weight 8x8; "
        "attn.proj.bias 8",
    )
    found = {e.torch[0]: e for e in match(torch, port).entries}
    for i in range(3):
        at = f"layers.{i}.attn"
        assert found[f"{at}.qkv.weight"].mindspore == tuple(f"{at}.{x}.weight" for x in "qkv")
        assert found[f"{at}.qkv.weight"].review
        assert found[f"{at}.q_bias"].mindspore == (f"{at}.q.bias",)
        assert found[f"{at}.v_bias"].mindspore == (f"{at}.v.bias",)
        assert found[f"{at}.proj.weight"].mindspore == (f"{at}.proj.weight",)


def test_two_ways_of_joining_in_one_network() -> None:
    """q and k are one in these blocks, q, k and v in those: each is joined where it is meant."""
    early = "a.qk.weight 16x8; a.v.weight 8x8; a.proj.weight 8x8; n.weight 8"
    late = "a.qkv.weight 24x8; a.proj.weight 8x8; n.weight 8"
    port = "a.q.weight 8x8; a.k.weight 8x8; a.v.weight 8x8; a.proj.weight 8x8; n.gamma 8"

    def blocks(*texts: str) -> str:
        return "; ".join(f"b.{i}.{row.strip()}" for i, text in enumerate(texts) for row in text.split(";"))

    mapping = match(
        listing("torch", blocks(early, early, early, early, late)), listing("mindspore", blocks(*[port] * 5))
    )
    found = {e.torch: e for e in mapping.entries}
    for i in range(4):
        assert found[f"b.{i}.a.qk.weight",].mindspore == (f"b.{i}.a.q.weight", f"b.{i}.a.k.weight")
        assert found[f"b.{i}.a.v.weight",].mindspore == (f"b.{i}.a.v.weight",)
    assert found["b.4.a.qkv.weight",].mindspore == tuple(f"b.4.a.{x}.weight" for x in "qkv")
    assert not mapping.unmatched_torch
    assert not mapping.unmatched_mindspore
