"""What counting tells: numbers and letters in names, the same layers in another arrangement, what is missing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from automap import Mapping
from automap.graph import Listing, Param
from automap.inference import match
from automap.layers import layers_of, number_ranks
from automap.outliers import Names, out_of_step
from automap.scoring import Features
from automap.straightening import partners, turned

Rows = Iterable[tuple[str, tuple[int, ...]]]


def matched(torch: Rows, mindspore: Rows) -> Mapping:
    sides = (("torch", torch), ("mindspore", mindspore))
    left, right = (Listing(f, tuple(Param(n, s, "float32") for n, s in rows)) for f, rows in sides)
    return match(left, right)


def pairs(mapping: Mapping) -> dict[str, str]:
    return {e.torch[0]: e.mindspore[0] for e in mapping.entries}


def silent(mapping: Mapping, truth: dict[str, str]) -> list[str]:
    """Wrong entries that are not marked."""
    return [e.torch[0] for e in mapping.entries if not e.review and truth.get(e.torch[0]) != e.mindspore[0]]


def shuffled(rows: Iterable[tuple[str, tuple[int, ...]]], seed: int = 0) -> list[tuple[str, tuple[int, ...]]]:
    """The rows with the children of every module in another order."""
    rnd = random.Random(seed)

    def walk(some: list[tuple[Sequence[str], tuple[str, tuple[int, ...]]]]) -> list[tuple[str, tuple[int, ...]]]:
        below: dict[str, list[tuple[Sequence[str], tuple[str, tuple[int, ...]]]]] = {}
        for path, row in some:
            below.setdefault(path[0], []).append((path[1:], row))
        keys = list(below)
        rnd.shuffle(keys)
        return [x for k in keys for x in (walk(below[k]) if below[k][0][0] else [row for _, row in below[k]])]

    return walk([(name.split("."), (name, shape)) for name, shape in rows])


def test_every_number_in_a_name_counts_among_those_after_the_same_words() -> None:
    names = [("branch1x1",), ("branch7x7_1",), ("branch7x7_2",), ("branch7x7dbl_1",), ("branch7x7dbl_2",)]
    ranks = number_ranks(names)
    found = [[r for r in ranks[(), name] if r >= 0] for (name,) in names]
    assert found == [[0, 0], [1, 0, 0], [1, 0, 1], [1, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("letters", "numbered"), [("ab", True), ("abc", True), ("a", False), ("ac", False), ("qk", False), ("xy", False)]
)
def test_letters_count_where_they_are_a_row_from_the_first_on(letters: str, numbered: bool) -> None:
    ranks = number_ranks([(f"conv_{x}",) for x in letters])
    assert ranks == ({((), f"conv_{x}"): (-1, k) for k, x in enumerate(letters)} if numbered else {})


def test_branches_that_are_told_apart_by_their_last_numbers() -> None:
    """Branches of kernels in their names go over to lists of branches, though nothing is in its order."""
    branches = {
        ("1x1", "0"): [(16, 24, 1, 1)],
        ("7x7", "1"): [(8, 24, 1, 1), (8, 8, 1, 7), (16, 8, 7, 1)],
        ("7x7dbl", "2"): [(8, 24, 1, 1), (8, 8, 7, 1), (8, 8, 1, 7), (8, 8, 7, 1), (16, 8, 1, 7)],
        ("_pool", "_pool"): [(16, 24, 1, 1)],
    }
    words = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    torch, port = [], []
    for block in ("6b", "6c", "6d"):
        for (name, goal), shapes in branches.items():
            for k, shape in enumerate(shapes):
                ours = f"Mixed_{block}.branch{name}" + (f"_{k + 1}" if len(shapes) > 1 else "")
                theirs = f"inception{block}.branch{goal}" + (f".{k}" if len(shapes) > 1 else "")
                torch += [(f"{ours}.conv.weight", shape), *((f"{ours}.bn.{w}", shape[:1]) for w in words)]
                port += [(f"{theirs}.conv.weight", shape), *((f"{theirs}.bn.{w}", shape[:1]) for w in words.values())]
    truth = {t: m for (t, _), (m, _) in zip(torch, port, strict=True)}
    found = matched(torch, shuffled(port))
    assert pairs(found) == truth
    assert not silent(found, truth)


def test_letters_in_the_port_for_numbers_in_pytorch() -> None:
    torch = [(f"up.{i}.block{b}.{k}.weight", (8, 8)) for i in range(4) for b in (2, 3) for k in range(2)]
    port = [(f"{i}.block{b}_{x}.weight", (8, 8)) for i in range(4) for b in (2, 3) for x in "ab"]
    truth = {t: m for (t, _), (m, _) in zip(torch, port, strict=True)}
    found = matched(torch, shuffled(port))
    assert pairs(found) == truth
    assert not silent(found, truth)


@pytest.mark.parametrize("seed", range(3))
def test_the_third_of_a_row_is_the_third_of_nested_lists(seed: int) -> None:
    """One row of convolutions, norms and activations, defined in no order, against blocks of two layers each."""
    torch: list[tuple[str, tuple[int, ...]]] = []
    port: list[tuple[str, tuple[int, ...]]] = []
    for side in ("encoder", "postnet"):
        for i in range(4):
            torch += [(f"{side}.convs.{i}.0.conv.weight", (8, 8, 5)), (f"{side}.convs.{i}.1.weight", (8,))]
            port += [(f"{side}.convs.{3 * i}.conv.weight", (8, 8, 5)), (f"{side}.convs.{3 * i + 1}.gamma", (8,))]
    truth = {t: m for (t, _), (m, _) in zip(torch, port, strict=True)}
    found = matched(torch, shuffled(port, seed))
    assert pairs(found) == truth
    assert not silent(found, truth)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_which_scale_is_a_blocks_own_does_not_depend_on_the_order(order: tuple[int, ...]) -> None:
    names = ["b.gamma_attn", "b.gamma", "b.weight", "b.bias"]
    layers = layers_of([Param(names[k], (8,)) for k in order], "torch")
    found = {layer.path: {slot: p.name for slot, p in layer.slots.items()} for layer in layers}
    assert found == {
        "b": {"weight": "b.weight", "bias": "b.bias"},
        "b.gamma": {"weight": "b.gamma"},
        "b.gamma_attn": {"weight": "b.gamma_attn"},
    }


def test_two_scales_of_a_block_that_are_defined_in_another_order() -> None:
    torch = [(f"blocks.{i}.{x}", (8,)) for i in range(3) for x in ("gamma_xca", "gamma")]
    port = [(f"0.{i}.{x}", (8,)) for i in range(3) for x in ("gamma", "gamma_xca")]
    truth = {t: t.replace("blocks", "0") for t, _ in torch}
    found = matched(torch, port)
    assert pairs(found) == truth
    assert not silent(found, truth)


def test_blocks_that_hold_much_more_do_not_turn_a_list_round() -> None:
    """A block of which layers are missing is not read backwards because big blocks hold all it has, either way."""
    ours = []
    for i in range(6):
        n = 16 if i else 12
        inside = ((n, 8, 1, 1), (n,), (n, 1, 3, 3), (n,), (2, n), (8, n, 1, 1), (8,))
        ours += [Param(f"blocks.{i}.{k}.weight", shape) for k, shape in enumerate(inside)]
    rest = {1: (16,), 3: (16, 1, 3, 3), 4: (16,), 6: (2, 16), 7: (8, 16, 1, 1), 8: (8,)}
    theirs = [Param(f"blocks.3.rows.{k}.weight", shape) for k, shape in rest.items()]
    assert turned(layers_of(ours, "torch"), layers_of(theirs, "mindspore")).at == list(range(6))


def test_what_is_joined_uses_up_what_is_too_much() -> None:
    """Of joining three for attention and four for a wider layer, the one that leaves nothing over is meant."""
    torch, port, truth = [], [], {}
    for i in range(3):
        for k in range(3):
            torch += [(f"b.{i}.att{k}.qkv.weight", (24, 8)), (f"b.{i}.att{k}.proj.weight", (8, 8))]
            port += [(f"z.{i}.{'uvw'[k]}oda.{x}.weight", (8, 8)) for x in ("foga", "mile", "suta", "reki")]
        torch += [(f"b.{i}.mlp{k}.fc1.weight", (32, 8)) for k in range(3)]
        port += [(f"z.{i}.bahi.kolo.weight", (32, 8))]
        truth |= {f"b.{i}.mlp0.fc1.weight": f"z.{i}.bahi.kolo.weight"}
    found = matched(torch, port)
    fused = {e.torch[0]: len(e.mindspore) for e in found.entries if len(e.mindspore) > 1}
    assert fused == {f"b.{i}.att{k}.qkv.weight": 3 for i in range(3) for k in range(3)}
    # Which of three equal layers the port has is not told.
    assert all(e.review for e in found.entries if "mlp" in e.torch[0])


def test_a_module_that_could_as_well_be_its_twin_is_marked() -> None:
    """Two equal modules in PyTorch, one in the port: all layers of a module go over or none."""
    torch, port = [("stem.weight", (8, 3))], [("kara.weight", (8, 3))]
    for i in range(4):
        torch += [(f"b.{i}.{m}.{x}.weight", s) for m in ("m1", "m2") for x, s in (("up", (32, 8)), ("down", (8, 32)))]
        port += [(f"z.{i}.soli.{x}.weight", s) for x, s in (("fuga", (32, 8)), ("teno", (8, 32)))]
    found = matched(torch, port)
    assert all(e.review for e in found.entries if e.torch[0].startswith("b."))


def test_entries_that_are_out_of_step_with_their_like() -> None:
    entries = [Names((f"b.{i}.proj.weight",), (f"z.{i}.out.weight",)) for i in range(4)]
    entries += [Names((f"b.{i}.qkv.weight",), (f"z.{i}.v.weight",)) for i in range(4)]
    listed = [f"b.{i}.{x}.weight" for i in (*range(4), 9) for x in ("qkv", "proj")]
    odd = Names(("b.9.proj.weight",), ("z.9.v.weight",))
    assert list(out_of_step([*entries, odd], listed)) == [(odd, entries[0])]
    # It is of another kind, in a block that holds something else, or nothing else takes this place.
    assert list(out_of_step([*entries, Names(("b.9.proj.weight",), ("z.9.v.weight",), kind=4)], listed)) == []
    assert list(out_of_step([*entries, odd], [*listed, "b.9.more.weight"])) == []
    assert list(out_of_step([*entries, Names(("b.9.proj.weight",), ("z.9.last.weight",))], listed)) == []
    # A number in a name, or of a layer itself, is no repetition: the first branch goes elsewhere than the fourth.
    branches = [
        Names((f"b.{i}.branch{k}.weight",), (f"z.{i}.{w}.weight",))
        for i in range(4)
        for k, w in ((1, "a"), (4, "c"), (5, "c"))
    ]
    assert list(out_of_step(branches, [name for e in branches for name in e.torch])) == []
    rows = [
        Names((f"b.{k}.weight",), (f"z.{w}.weight",)) for k, w in ((0, "a"), (1, "a"), (2, "c"), (3, "c"), (4, "c"))
    ]
    assert list(out_of_step(rows, [name for e in rows for name in e.torch])) == []


def test_what_is_left_of_a_block_is_not_given_away_without_a_word() -> None:
    """The port has the values alone of one block's attention: they are no output projection."""
    torch, port = [], []
    for i in range(6):
        torch += [
            (f"b.{i}.attn.qkv.weight", (24, 8)),
            (f"b.{i}.attn.proj.weight", (8, 8)),
            (f"b.{i}.fc.weight", (8, 16)),
        ]
        words = ("v",) if i == 4 else ("q", "k", "v", "proj")
        port += [(f"b.{i}.attn.{x}.weight", (8, 8)) for x in words] + [(f"b.{i}.fc.weight", (8, 16))]
    found = matched(torch, port)
    assert not [e for e in found.entries if e.torch[0] == "b.4.attn.proj.weight" and not e.review]


def test_a_layer_of_a_block_is_not_given_to_another_list_without_a_word() -> None:
    ours = layers_of(
        [Param(f"{b}.{i}.{x}.weight", (8, 8)) for b in ("p", "q") for i in range(2) for x in "uvw"], "torch"
    )
    same = partners(ours, ours, [(k, k) for k in range(12)])
    assert [same.astray(0, v) for v in (0, 3, 6)] == [False, False, True]


@pytest.mark.parametrize("seed", range(3))
def test_a_number_says_nothing_of_another_module_of_that_number(seed: int) -> None:
    """The second norm of an encoder's block and of a decoder's are of one name in PyTorch, and of two in the port."""
    torch: list[tuple[str, tuple[int, ...]]] = []
    port: list[tuple[str, tuple[int, ...]]] = []
    kinds = {
        "SelfAttention": ("attention", "layernorm1"),
        "EncDecAttention": ("cross_attention", "cross_attention_layernorm"),
        "Dense": ("output", "layernorm2"),
    }
    inside = {
        "Dense": [("wi", "mapping", (16, 8)), ("wo", "projection", (8, 16))],
        "": [(x, y, (8, 8)) for x, y in zip("qkvo", ("dense1", "dense2", "dense3", "projection"), strict=True)],
    }
    for side, words in (("encoder", ("SelfAttention", "Dense")), ("decoder", tuple(kinds))):
        for i in range(2):
            for k, word in enumerate(words):
                goal, norm = kinds[word]
                for x, y, shape in inside.get(word, inside[""]):
                    torch.append((f"{side}.block.{i}.layer.{k}.{word}.{x}.weight", shape))
                    port.append((f"{side[:3]}.blocks.{i}.{goal}.{y}.weight", shape))
                torch.append((f"{side}.block.{i}.layer.{k}.layer_norm.weight", (8,)))
                port.append((f"{side[:3]}.blocks.{i}.{norm}.gamma", (8,)))
    truth = {t: m for (t, _), (m, _) in zip(torch, port, strict=True)}
    assert silent(matched(torch, shuffled(port, seed)), truth) == []


def test_a_number_is_the_same_name_where_it_stands_for_a_module_that_holds_the_same() -> None:
    ours = [
        f"{m}.{k}.{w}" for m, k, w in (("a", 0, "fc"), ("a", 1, "fc"), ("a", 1, "mix"), ("b", 0, "fc"), ("b", 1, "fc"))
    ]
    f = Features(layers_of([Param(f"{path}.weight", (8, 8)) for path in ours], "torch"))
    shared = f.usages.member @ f.usages.member.T
    # By the last part alone, and by the number as well: a's second module holds more than b's second one.
    assert [int(shared[0, 3]), int(shared[1, 4])] == [2, 1]


def test_letters_are_no_places_in_a_list() -> None:
    # The second layer of a list is not the one called ``b``, which is the second of its kind.
    torch, mindspore, truth = [], [], {}
    widths = {"inc": (3, 8), "down1": (8, 16), "down2": (16, 32)}
    for k, (name, (i, o)) in enumerate(widths.items()):
        for place, ours, shape in (
            (0, "conv_a", (o, i, 3, 3)), (1, "gn_a", (o,)), (3, "conv_b", (o, o, 3, 3)), (4, "gn_b", (o,)),
        ):  # fmt: skip
            leaves = ("gamma", "beta") if "gn" in ours else ("weight", "bias")
            for leaf, there, size in zip(("weight", "bias"), leaves, (shape, (o,)), strict=True):
                torch.append((f"{name}.{place}.{leaf}", size))
                mindspore.append((f"encoder.{k}.{ours}.{there}", size))
                truth[torch[-1][0]] = mindspore[-1][0]
    assert pairs(matched(torch, mindspore)) == truth
