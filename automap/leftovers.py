"""What is left over once layers are matched, and still belongs together: in pieces, in another form or size.

Parameters that no layer of the other side can have as they are, in the same place of both networks: pieces that add up
to one, one array whose axes are joined (a convolution against a dense layer), one value against one for each channel,
and tables of another length. What is found here is for a person to look at: a listing does not prove it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from automap.graph import Param, Shape
from automap.layers import bare_names, core
from automap.mapping import Entry
from automap.names import slot_of, split_leaf
from automap.reach import can_reach, reaching
from automap.spelling import ordered
from automap.transforms import Transform, inverse

#: How alike the names of two tables of different length must be, in percent.
ALIKE = 75.0
#: Confidence in what is found here.
CONFIDENCE = 0.5

Chain = tuple[Transform, ...]
#: For a parameter: the module of the other side that its nearest matched neighbours are in, "" where that is unknown.
Around = Callable[[Param], str]


@dataclass(frozen=True)
class Free:
    """The parameters of one side that have no counterpart, and where their neighbours are."""

    params: list[Param]
    around: Around

    def without(self, names: set[str]) -> Free:
        return Free([p for p in self.params if p.name not in names], self.around)


def adding_up(whole: Param, pieces: Sequence[Param]) -> list[Param]:
    """Consecutive pieces whose shapes add up to the whole along one axis (at least two), or nothing."""
    a = whole.shape or ()
    for start in range(len(pieces)):
        for axis in range(len(a)):
            total, parts = 0, []
            for p in pieces[start:]:
                b = p.shape or ()
                if len(b) != len(a) or any(x != y for d, (x, y) in enumerate(zip(a, b, strict=True)) if d != axis):
                    continue
                if p.leaf != pieces[start].leaf:
                    continue
                parts.append(p)
                total += b[axis]
                if total >= a[axis]:
                    break
            if total == a[axis] and len(parts) > 1:
                return parts
    return []


def joined(whole: Param, parts: Sequence[Param], turned: bool) -> Entry:
    """The entry of pieces that add up to one parameter; ``turned`` where the pieces are MindSpore's."""
    paths = [tuple(split_leaf(p.name)[0].split(".")) for p in parts]
    local = split_leaf(whole.name)[0].rpartition(".")[2]
    order, _ = ordered(paths, local)
    parts = [parts[i] for i in order]
    shapes = [p.shape or () for p in parts]
    axis = next(i for i, n in enumerate(whole.shape or ()) if n != shapes[0][i])
    chain: Chain = (Transform("concat", {"axis": axis, "sizes": [s[axis] for s in shapes]}),)
    names = tuple(p.name for p in parts)
    why = f"{', '.join(names)} add up to {whole.name}: a listing cannot tell in which order, nor whether interleaved"
    if turned:
        return _entry((whole.name,), names, inverse(chain, shapes), why)
    return _entry(names, (whole.name,), chain, why, whole.path)


def _entry(torch: Sequence[str], mindspore: Sequence[str], chain: Chain, why: str, path: str | None = None) -> Entry:
    return Entry(tuple(torch), tuple(mindspore), chain, CONFIDENCE, True, why, {"proven": None}, None, path)


def other_forms(torch: Free, mindspore: Free) -> Iterator[Entry]:
    """Entries of one parameter each, for what is left over on both sides and can only be each other's."""
    for fitting in (_flattened, _one_value, _another_length):
        pairs = list(_only(torch, mindspore, fitting))
        for t, m, (chain, why) in pairs:
            yield _entry((t.name,), (m.name,), chain, why, m.path)
            yield from _beside(t, m, torch, mindspore)
        taken = {p.name for t, m, _ in pairs for p in (t, m)}
        torch, mindspore = torch.without(taken), mindspore.without(taken)


Fit = Callable[[Param, Param], "tuple[Chain, str] | None"]


def _only(torch: Free, mindspore: Free, fitting: Fit) -> Iterator[tuple[Param, Param, tuple[Chain, str]]]:
    """The pairs that fit, where neither has another choice in the same place."""
    found: dict[tuple[str, str], tuple[Param, Param, tuple[Chain, str]]] = {}
    for t in torch.params:
        near = torch.around(t)
        for m in mindspore.params:
            how = fitting(t, m)
            if how is not None and _in(m, near) and _in(t, mindspore.around(m)):
                found[t.name, m.name] = t, m, how
    of_t, of_m = defaultdict(list), defaultdict(list)
    for t_name, m_name in found:
        of_t[t_name].append(m_name)
        of_m[m_name].append(t_name)
    names = _bare([t for t, _, _ in found.values()]), _bare([m for _, m, _ in found.values()])
    for (t_name, m_name), pair in found.items():
        alone = len(of_t[t_name]) == len(of_m[m_name]) == 1
        same = names[0][t_name] == names[1][m_name]
        if alone or same:
            yield pair


def _bare(params: Sequence[Param]) -> dict[str, tuple[str, ...]]:
    return bare_names(list(dict.fromkeys(p.name for p in params))) if params else {}


def _in(p: Param, module: str) -> bool:
    return not module or p.name.startswith(f"{module}.")


def _beside(t: Param, m: Param, torch: Free, mindspore: Free) -> Iterator[Entry]:
    """The other parameters of two layers whose main ones are each other's."""
    theirs = {slot_of(q.leaf): q for q in mindspore.params if q.module == m.module and q.name != m.name}
    for p in torch.params:
        q = theirs.get(slot_of(p.leaf))
        if p.module == t.module and p.name != t.name and q is not None and can_reach(p, q):
            yield _entry((p.name,), (q.name,), reaching(p, q), f"it stands beside {m.name}", q.path)


def _flattened(t: Param, m: Param) -> tuple[Chain, str] | None:
    """A kernel here whose axes are joined there: a convolution against a dense layer."""
    if t.shape is None or m.shape is None or t.size != m.size or can_reach(t, m):
        return None
    chain = flattening(t.shape, m.shape)
    if chain is None:
        return None
    return chain, "the axes of one are joined in the other: a listing cannot tell in which order"


def flattening(a: Shape, b: Shape) -> Chain | None:
    """How an array whose first axis stays and whose others are joined (or the other way round) changes its shape."""
    slim_a, slim_b = core(a) or (), core(b) or ()
    chain: list[Transform] = []
    if len(slim_b) == 2 < len(slim_a):
        if slim_a[0] == slim_b[0]:
            chain = [_reshape(a, b)]
        elif slim_a[0] == slim_b[1]:
            matrix = (slim_a[0], slim_b[0])
            chain = [_reshape(a, matrix), Transform("transpose", {"axes": [1, 0]}), _reshape(matrix[::-1], b)]
    elif len(slim_a) == 2 < len(slim_b):
        if slim_a[0] == slim_b[0]:
            chain = [_reshape(a, b)]
        elif slim_a[1] == slim_b[0]:
            chain = [_reshape(a, slim_a), Transform("transpose", {"axes": [1, 0]}), _reshape(slim_a[::-1], b)]
    return tuple(t for t in chain if t.op != "reshape" or t.args["shape"] != t.args["before"]) if chain else None


def _reshape(before: Shape, after: Shape) -> Transform:
    return Transform("reshape", {"shape": list(after), "before": list(before)})


def _one_value(t: Param, m: Param) -> tuple[Chain, str] | None:
    """One value for all channels here, one for each there (as a PReLU can have)."""
    if t.shape is None or m.shape is None or t.size == m.size or len(m.shape) != 1 or len(t.shape) > 1:
        return None
    if t.size == 1:
        chain = () if t.shape == (1,) else (_reshape(t.shape, (1,)),)
        return (*chain, Transform("expand", {"axis": 0, "size": m.size})), f"one value for {m.size}: it is repeated"
    if m.size == 1 and len(t.shape) == 1:
        return (Transform("collapse", {"axis": 0, "size": t.size}),), f"{t.size} values for one: they must be equal"
    return None


def _another_length(t: Param, m: Param) -> tuple[Chain, str] | None:
    """Tables that differ in one length: of positions, of words."""
    if t.shape is None or m.shape is None or len(t.shape) != len(m.shape) or len(core(t.shape) or ()) < 2:
        return None
    differ = [i for i, (x, y) in enumerate(zip(t.shape, m.shape, strict=True)) if x != y]
    if len(differ) != 1 or not _alike(t, m):
        return None
    x, y = t.shape[differ[0]], m.shape[differ[0]]
    return (), f"its length is {x} in PyTorch and {y} in MindSpore: convert it with --resize or --pad-vocab"


def _alike(t: Param, m: Param) -> bool:
    from rapidfuzz import fuzz

    a, b = (" ".join(split_leaf(p.name)[0].replace(".", " ").replace("_", " ").split()) for p in (t, m))
    return fuzz.token_set_ratio(a, b) >= ALIKE
