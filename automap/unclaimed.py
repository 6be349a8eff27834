"""What has no counterpart in a mapping in the making, each name with its reason, and whether a person has to look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from automap.checkpoints import why_apart, without_state
from automap.graph import Param
from automap.layers import bare_names, core
from automap.lora import is_part
from automap.mapping import Unmatched
from automap.names import slot_of, split_leaf
from automap.prefixes import common_prefix
from automap.wrapping import STATISTICS, beside

if TYPE_CHECKING:
    from automap.drafting import Draft

#: A tensor of a shape that more share is not said to be tied to one of them.
FEW = 3


class Unclaimed:
    """The names on either side that no entry of a draft has."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def torch(self) -> Iterator[Unmatched]:
        homes = {pair.t.name: pair.m.name for pair in self.draft.entries.values()}
        late = {name for e in self.draft.late for name in e.torch}
        in_port = self._tied_in_the_port()
        shapes: dict[Any, list[str]] = defaultdict(list)
        for t in homes:
            shapes[self.draft.torch.by_name[t].shape].append(t)
        for p in self.draft.torch:
            if p.name in self.draft.entries or p.name in self.draft.within or p.name in late:
                continue
            compound = self.draft.sides[0].compounds.get(p.name)
            home = next((a for a in p.aliases if a in homes), None)
            if compound is not None:
                others = self.draft.sides[0].parts(self.draft.torch.by_name[home]) if home is not None else ()
                for q in compound.parts:
                    tied = next((o.name for o in others if o.name in q.aliases), None)
                    if tied is not None:
                        yield Unmatched(q.name, f"the same tensor as {tied}", alias_of=tied)
                    else:
                        yield Unmatched(q.name, "no MindSpore parameter is left for it", review=True)
            elif home is not None:
                yield Unmatched(p.name, f"the same tensor as {home}", alias_of=home)
            elif p.leaf == "num_batches_tracked":
                yield Unmatched(p.name, "no counterpart in MindSpore")
            elif (home := in_port.get(p.name)) is not None:
                yield Unmatched(
                    p.name, f"the port has it in one tensor with {home}: they have to be equal", False, home
                )
            elif is_part(p.name):
                merged = bool(self.draft.torch.merge)
                why = "of another LoRA adapter" if merged else "of LoRA, which --merge-lora alpha=… merges"
                yield Unmatched(p.name, why, review=not merged)
            elif is_computed(p):
                yield Unmatched(p.name, "a table or mask that MindSpore computes")
            else:
                alike = shapes[p.shape] if p.shape and len(p.shape) > 1 and len(shapes[p.shape]) <= FEW else []
                twins = [t for t in alike if not _are_siblings(t, p.name)][:2]
                hint = f"; it may be tied to {twins[0]}" if len(twins) == 1 else ""
                yield Unmatched(p.name, f"no MindSpore parameter is left for it{hint}", review=True)

    def _tied_in_the_port(self) -> dict[str, str]:
        """PyTorch parameters whose place in the port has another's tensor, with the name of that one.

        The place is that of the module whose other parameters are matched there, or the one with the same words; or
        there is one such place, and one such parameter.
        """
        tied = [pair for pair in self.draft.entries.values() if pair.m.aliases and not self.draft.is_compound(pair)]
        if not tied:
            return {}
        modules = {(pair.t.module, pair.m.path or pair.m.name) for pair in self.draft.entries.values()}
        same = {(t, m.rpartition(".")[0]) for t, m in modules}
        gone = self.draft.entries.keys() | self.draft.within
        free = [p for p in self.draft.torch if p.name not in gone and not p.aliases]
        words = bare_names([p.name for p in self.draft.torch])
        theirs = [a for p in self.draft.mindspore for a in (p.path or p.name, *p.aliases)]
        port = bare_names(theirs)
        out: dict[str, str] = {}
        for pair in tied:
            like = [p for p in free if p.shape == pair.t.shape and p.shape and len(p.shape) > 1]
            for alias in pair.m.aliases:
                module = alias.rpartition(".")[0]
                found = [p for p in like if (p.module, module) in same or words[p.name] == port[alias]]
                if not found and len(like) == len(pair.m.aliases) == 1:
                    found = like
                if len(found) == 1:
                    out.setdefault(found[0].name, pair.t.name)
        return out

    def _of_norms_without_weights(self) -> set[str]:
        """Weights and biases of norms whose statistics are matched to a PyTorch norm that has neither.

        MindSpore has them for every norm, and they do nothing unless they are trained.
        """
        plain = {x.path for x in self.draft.sides[0].layers if x.statistics and "weight" not in x.slots}
        to = {pair.m.name: split_leaf(pair.t.name)[0] for pair in self.draft.entries.values()}
        out = set()
        for x in self.draft.sides[1].layers:
            if x.statistics and any(to.get(p.name) in plain for p in x.slots.values()):
                out |= {x.slots[s].name for s in ("weight", "bias") if s in x.slots}
        return out

    def _beside_the_network(self) -> dict[str, str]:
        """MindSpore parameters of cells around the network, with the reason; PyTorch's have all found their homes."""
        gone = self.draft.taken | self.draft.states | {name for e in self.draft.late for name in e.mindspore}
        # A live cell's are known to the edge, and not told by their names.
        free = [p for p in self.draft.mindspore if p.name not in gone and p.owner is None]
        if not free or not self.draft.taken or any(u.review for u in self.torch()):
            return {}
        marked = (replace(p, kind="optimizer") if p.name in self.draft.states else p for p in self.draft.mindspore)
        idle = {name for name in without_state(marked) if name.rpartition(".")[2] not in STATISTICS}
        found = {
            p.name: "no optimizer has a state of it, and nothing of PyTorch is left" for p in free if p.name in idle
        }
        prefix = common_prefix([p.name for p in self.draft.torch])
        around = beside(self.draft.taken, [p.name for p in free], prefix, idle)
        return found | dict.fromkeys(around, "kept by a cell around the network, and nothing of PyTorch is left")

    def mindspore(self) -> Iterator[Unmatched]:
        around = self._beside_the_network()
        plain = self._of_norms_without_weights()
        free = {p.shape for p in self.draft.torch if p.name not in self.draft.entries}
        shapes = {core(p.shape) for p in self.draft.torch}
        late = {name for e in self.draft.late for name in e.mindspore}
        for p in self.draft.mindspore:
            if p.name in self.draft.taken or p.name in late:
                continue
            compound = self.draft.sides[1].compounds.get(p.name)
            if compound is not None:
                yield from (
                    Unmatched(q.name, "no PyTorch parameter is left for it", review=True) for q in compound.parts
                )
            elif p.name in self.draft.states:
                yield Unmatched(p.name, why_apart(p.name))
            elif p.name in around:
                yield Unmatched(p.name, around[p.name])
            elif p.name in plain:
                yield Unmatched(p.name, "PyTorch's norm has none: it stays what MindSpore sets")
            elif is_computed(p):
                yield Unmatched(p.name, "a table or mask that PyTorch computes")
            elif p.name in self.draft.kept and p.shape not in free:
                yield Unmatched(p.name, f"PyTorch's norm has none: it stays {self.draft.kept[p.name]}, as it is built")
            elif p.shape is not None and core(p.shape) not in shapes:
                yield Unmatched(p.name, f"no PyTorch parameter has its shape {list(p.shape)}", review=True)
            else:
                yield Unmatched(p.name, "no PyTorch parameter is left for it", review=True)


def is_computed(p: Param) -> bool:
    """Whole numbers and truth values are not trained: index tables, masks, counters. Statistics of a norm are."""
    statistic = slot_of(split_leaf(p.name)[1]) in ("mean", "variance")
    return (p.kind == "buffer" and not statistic) or (p.dtype or "").startswith(("int", "uint", "bool"))


def _are_siblings(a: str, b: str) -> bool:
    """Whether two parameters' layers stand in one module."""
    x, y = split_leaf(a)[0], split_leaf(b)[0]
    return x.rpartition(".")[0] == y.rpartition(".")[0] and x.rpartition(".")[0] != ""
