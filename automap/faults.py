"""What stands in the way of a conversion, and what to do about it."""

from __future__ import annotations

from automap.errors import ConversionError

#: What can be wrong with a tensor, and what to do about it.
_FAULTS = {
    "absent from it": "is it a checkpoint of this model?",
    "of LoRA": "merge_lora=ALPHA (--merge-lora alpha=ALPHA) merges it into the weight beside it",
    "in it but not in the mapping": 'match each in the mapping, or list it under "unmatched" with the reason',
    "not zero and without a counterpart": 'match each, or remove its "review" from the mapping if it can be dropped',
    "another name of a tied weight with other values": "match each in the mapping",
    "with NaN": "allow_nan=True lets them pass",
    "of a shape that does not fit": "is it a checkpoint of this model, and the mapping made for it?",
    "of another length": "is it a checkpoint of this model? resize=True (--resize) interpolates tables of positions; "
    "pad_vocab=VALUE (--pad-vocab VALUE) and cut_vocab=True (--cut-vocab) change a vocabulary",
    "with values that do not fit": "correct the transform, or take another checkpoint",
    "not in the target": "is it the model that the mapping was made for?",
    "of a dtype that does not fit": "give another dtype",
    "out of the range of the new dtype": "take a wider one, such as bfloat16; allow_overflow=True lets them pass",
    "too small for the new dtype": "take a wider one, such as bfloat16; max_lost=PART (--max-lost) lets a greater part "
    "of a tensor's values pass that turn to zero or change by more than 1 %",
    "not exact in the new dtype": "keep the dtype of whole numbers",
}


class Faults:
    """The tensors that stand in the way of a conversion, by what is wrong with them."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: dict[str, list[str]] = {}

    def add(self, fault: str, item: str) -> None:
        self.found.setdefault(fault, []).append(item)

    def check(self) -> None:
        """Raise a ConversionError that names them all, if there are any."""
        if not self.found:
            return
        kinds = [f for f in _FAULTS if f in self.found]
        text = "; ".join(f"{len(self.found[f])} {f}: {', '.join(self.found[f])} ({_FAULTS[f]})" for f in kinds)
        offenders = [f"{item}: {fault}" for fault in kinds for item in self.found[fault]]
        raise ConversionError(f"{self.what} cannot be converted: {text}", offenders)
