"""What names say about pieces of a fused layer: the words that tell them apart, and the order that a name spells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from automap.names import is_attention_word, tokens


def distinguishing(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """For each of several paths, the words that it does not share with all of the others, as one word."""
    if len({len(path) for path in paths}) == 1:
        differ = [i for i in range(len(paths[0])) if len({path[i] for path in paths}) > 1]
        paths = [tuple(path[i] for i in differ) for path in paths]
    said = [[t for part in path for t in tokens(part)] for path in paths]
    common = set.intersection(*map(set, said)) if said else set()
    return ["".join(t for t in words if t not in common) for words in said]


def spelled(words: Sequence[str], name: str) -> list[int] | None:
    """The order in which a fused name spells its pieces (``qkv``, ``gate_up_proj``), as positions, or None.

    The pieces stand in it by their words (``query_key_value``), or by their initials, without anything between them.
    """
    low = "".join(tokens(name))
    if not all(words) or len(set(words)) < len(words):
        return None
    for forms in (list(words), [_initial(w) for w in words]):
        if len(set(forms)) < len(forms):
            continue
        at = [low.find(f) for f in forms]
        order = sorted(range(len(forms)), key=lambda i: at[i])
        if min(at) < 0:
            continue
        if max(map(len, forms)) == 1 and "".join(forms[i] for i in order) not in low:
            continue  # letters by chance
        return order
    return None


def _initial(word: str) -> str:
    """The letter that stands for a piece: of ``query`` and ``wq`` alike the ``q``."""
    return word[1] if len(word) == 2 and word[0] == "w" else word[0]


_QKV = "qkv"


def ordered(members: Sequence[tuple[str, ...]], fused: str, frameworks: bool = False) -> tuple[list[int], str]:
    """The order in which pieces stand in a fused tensor, as positions, and how sure that is.

    Args:
        members: the paths of the pieces, in order of definition.
        fused: the fused layer's own name.
        frameworks: whether it is the framework's own attention that keeps them fused: queries, keys, values.
    """
    words = distinguishing(members)
    initials = [_initial(w) if w else "" for w in words]
    attention = all(is_attention_word(w) for w in words) and len(set(initials)) == len(initials)
    in_order = sorted(range(len(words)), key=lambda i: _QKV.index(initials[i])) if attention else []
    if attention and frameworks:
        return in_order, "told"
    order = spelled(words, fused)
    if order is not None:
        return order, "named"
    if attention:
        return in_order, "named"
    numbers = [re.sub(r"\D", "", w) for w in words]
    if all(numbers) and len({re.sub(r"\d", "", w) for w in words}) == 1:
        by_number = sorted(range(len(words)), key=lambda i: int(numbers[i]))
        return by_number, "assumed"
    return list(range(len(words))), "assumed"
