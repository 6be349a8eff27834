"""Listings as values, and the parameter graph of one."""

from __future__ import annotations

import dataclasses
import hashlib

import networkx as nx
import numpy as np
import pytest

from automap.errors import ListingError
from automap.graph import Listing, Param, ancestors

NET = Listing(
    "torch",
    (
        Param("stem.conv.weight", (8, 3, 3, 3), "float32"),
        Param("stem.bn.weight", (8,), "float32"),
        Param("stem.bn.num_batches_tracked", (), "int64", "buffer"),
        Param("cls_token", (1, 8), "float32"),
    ),
    "net.pth",
)


def test_param_in_parts() -> None:
    p = Param("a.b.weight", (2, 3, 4))
    assert (p.module, p.leaf, p.size) == ("a.b", "weight", 24)
    assert (Param("cls").module, Param("cls").leaf) == ("", "cls")
    assert Param("a").size is None
    assert Param("a", ()).size == 1
    assert Param("a", (0, 3)).size == 0


def test_ancestors() -> None:
    assert list(ancestors("a.b.c")) == ["a", "a.b"]
    assert list(ancestors("a")) == []


def test_values_are_frozen_and_comparable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NET.parameters[0].name = "x"
    same = Listing("torch", tuple(dataclasses.replace(p) for p in NET), "elsewhere.pth")
    assert same == NET, "the source is no part of the value"
    assert same != Listing("mindspore", NET.parameters)
    assert [p.name for p in NET] == list(NET.by_name)
    assert len(NET) == 4


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"name": "stem.conv.w"}, True),
        ({"shape": (8, 3, 3, 1)}, True),
        ({"shape": None}, True),
        ({"dtype": "float16"}, True),
        ({"kind": "buffer"}, False),
        ({"owner": "Conv2d"}, False),
    ],
)
def test_fingerprint_changes_with_name_shape_and_dtype(change: dict[str, object], differs: bool) -> None:
    first, *rest = NET.parameters
    other = Listing("torch", (dataclasses.replace(first, **change), *rest))
    assert (other.fingerprint != NET.fingerprint) == differs
    assert NET.fingerprint.startswith("sha256:")


def test_fingerprint_is_pinned_and_knows_the_order() -> None:
    two = Param("a", (2, 3), "float32"), Param("b")
    expected = hashlib.sha256(b"a\t[2, 3]\tfloat32\nb\t?\t?\n").hexdigest()
    assert Listing("torch", two).fingerprint == f"sha256:{expected}"
    assert Listing("torch", two).fingerprint != Listing("torch", two[::-1]).fingerprint


def test_empty_and_doubled_listings_are_refused() -> None:
    with pytest.raises(ListingError, match=r"net\.csv lists no parameter: is it the right model or file\?"):
        Listing("torch", (), "net.csv")
    with pytest.raises(ListingError, match="the mindspore listing lists no parameter"):
        Listing("mindspore", ())
    with pytest.raises(ListingError, match=r"lists 2 name\(s\) twice \(a, b\): names must be unique"):
        Listing("torch", tuple(Param(n) for n in "abcab"))
    with pytest.raises(ListingError, match=r"lists 4 name\(s\) twice \(a, b, c …\)"):
        Listing("torch", tuple(Param(n) for n in "abcdabcd"))


def test_graph() -> None:
    g = NET.graph()
    assert g.graph == {"framework": "torch", "source": "net.pth"}
    modules = {n for n, d in g.nodes(data=True) if d["kind"] == "module"}
    assert modules == {"", ("module", "stem"), ("module", "stem.conv"), ("module", "stem.bn")}
    assert g.nodes["stem.conv.weight"] == {"kind": "parameter", "shape": (8, 3, 3, 3), "dtype": "float32"}
    assert g.nodes["stem.bn.num_batches_tracked"]["kind"] == "buffer"
    edges = {kind: [(a, b) for a, b, k in g.edges(data="kind") if k == kind] for kind in ("contains", "next")}
    assert edges["next"] == [(a.name, b.name) for a, b in zip(NET.parameters, NET.parameters[1:], strict=False)]
    tree = g.edge_subgraph(edges["contains"])
    assert nx.is_arborescence(tree)
    assert set(tree) == set(g), "everything hangs on the root"
    assert list(g.successors("")) == [("module", "stem"), "cls_token"]
    assert g.has_edge(("module", "stem"), ("module", "stem.bn"))
    assert g.has_edge(("module", "stem.bn"), "stem.bn.weight")


def test_a_parameter_and_a_module_may_have_the_same_name() -> None:
    g = Listing("torch", (Param("a", (1,)), Param("a.weight", (2,)))).graph()
    assert g.nodes["a"]["kind"] == "parameter"
    assert g.nodes[("module", "a")]["kind"] == "module"
    assert g.has_edge(("module", "a"), "a.weight")


def test_a_trace_adds_the_order_of_execution_and_the_flow_of_data():
    import torch

    from automap.torch_edge import listing_of
    from automap.torch_runner import Runner
    from automap.torch_tracing import trace

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first, self.aside = (torch.nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            x = self.first(x)
            return self.last(x) + self.aside(torch.tanh(x))

    net = Net()
    _, found = trace(Runner(net), [np.ones((2, 3), np.float32)])
    graph = listing_of(net).graph(found)
    edges = {(a[1], b[1]): d["kind"] for a, b, d in graph.edges(data=True) if isinstance(a, tuple) and b[0] == "module"}
    assert edges == {("first", "last"): "feeds", ("last", "aside"): "then"}
