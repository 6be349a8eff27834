"""Which call of PyTorch a cell or function of MindSpore is the counterpart of.

Cells that own parameters have theirs by the mapping; what has none, by the values that it gets, or by its position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from automap.activations import Activations, Kept, may_be
from automap.dtypes import Array
from automap.recording import SAME, Call, fit
from automap.settings import Layer


class Counterparts:
    """Finds counterparts in a recorded run of PyTorch.

    Args:
        calls: what PyTorch did.
        pairs: for each cell with mapped parameters the paths of the modules that own them in PyTorch, best first.
        store: where the values are.
    """

    def __init__(self, calls: Sequence[Call], pairs: Mapping[str, Sequence[str]], store: Activations) -> None:
        self.calls, self.pairs, self.store = calls, pairs, store
        self._values = list({k: None for c in calls for k in (*c.inputs, *c.outputs)})
        self.by_path: dict[str, list[Call]] = {}
        for call in calls:
            if not call.function:
                self.by_path.setdefault(call.path, []).append(call)
        self._stateless = [c for c in calls if c.stateless and c.inputs and c.outputs]
        # Modules that own parameters are counterparts by the mapping: positions are counted between them.
        paired = {path for paths in pairs.values() for path in paths}
        self._anchors = [c.index for c in calls if c.owns and c.path in paired]

    def of_cell(self, path: str, turn: int, natural: Sequence[Array]) -> Call | None:
        """The counterpart of a cell that owns parameters."""
        several = [p for p in self.pairs[path] if self.by_path.get(p)]
        if len(several) > 1 and natural:
            # Some of its parameters are another's: what comes to it tells whose place it has.
            several.sort(key=lambda p: not any(self._agrees(c, natural) for c in self.by_path[p]))
        for torch_path in several:
            calls = self.by_path[torch_path]
            usual = calls[min(turn, len(calls) - 1)]
            if len(calls) > 1 and natural and not self._agrees(usual, natural):
                return next((c for c in calls if self._agrees(c, natural)), usual)
            return usual
        return None

    def _agrees(self, call: Call, natural: Sequence[Array]) -> bool:
        if not call.inputs or call.inputs[0].size != natural[0].size:
            return False
        fitted = fit(self.store.read(call.inputs[0]), natural[0])
        return fitted is not None and fitted[1] < SAME

    def of_values(
        self, layer: Layer, kept: Sequence[Kept], natural: Sequence[Array], used: set[int], position: int
    ) -> list[tuple[Call, tuple[int, ...]]]:
        """Calls without parameters of the same family that get these values, the likeliest first, and the order."""
        found = []
        for call in self._stateless:
            if call.index in used or not layer.kind or call.layer.family != layer.family:
                continue
            if layer.kind not in ("concat", "matmul") and call.inputs[0].size != kept[0].size:
                continue
            order = self._order(call, kept, natural)
            if order is not None:
                found.append((call, order))
        return sorted(found, key=lambda f: (f[0].layer.kind != layer.kind, f[0].index < position, f[0].index))

    def _order(self, call: Call, kept: Sequence[Kept], natural: Sequence[Array]) -> tuple[int, ...] | None:
        """Which of a call's inputs each of these values is, or None if one is none of them."""
        layer_kind = call.layer.kind
        joined = layer_kind in ("concat", "matmul")
        if len(call.inputs) != len(kept) and joined:
            return None
        free = list(range(len(call.inputs))) if joined else [0]
        order = []
        for value, array in zip(kept if joined else kept[:1], natural, strict=False):
            for i in free:
                if not may_be(call.inputs[i], value):
                    continue
                turned = layer_kind == "matmul"
                fitted = fit(self.store.read(call.inputs[i]), array, loose=True, any_order=turned)
                if fitted is not None and fitted[1] < SAME:
                    break
            else:
                return None
            free.remove(i)
            order.append(i)
        return tuple(order)

    def known(self, kept: Kept, array: Array) -> bool:
        """Whether PyTorch has such a value anywhere."""
        for value in self._values:
            if may_be(value, kept):
                fitted = fit(self.store.read(value), array, loose=True)
                if fitted is not None and fitted[1] < SAME / 10:
                    return True
        return False

    def of_position(self, layer: Layer, kept: Sequence[Kept], used: set[int], last: Call | None) -> Call | None:
        """The next call of the same kind and sizes before the next module that owns mapped parameters."""
        begin = -1 if last is None else last.index
        end = next((i for i in self._anchors if i > begin and (last is None or i >= last.end)), len(self.calls))
        for call in self._stateless:
            if not begin < call.index < end or call.index in used or call.layer.kind != layer.kind or not layer.kind:
                continue
            if [k.size for k in call.inputs] == [k.size for k in kept]:
                return call
        return None
