"""The command ``layers`` and the table in words."""

from __future__ import annotations

import io
import json
import re

import pytest

from automap.cli import main
from automap.errors import InputError
from automap.layer_report import Facts, Overview, changes, to_json
from automap.layer_table import find, rows
from automap.names import PROJECTIONS, RECURRENT, SLOTS, slot_of, split_leaf


@pytest.mark.parametrize(
    ("name", "torch"),
    [
        ("Conv2d", ["Conv2d"]),
        ("conv2d", ["Conv2d"]),
        ("torch.nn.Conv2d", ["Conv2d"]),
        ("mint.nn.conv2d", ["Conv2d"]),
        ("mindspore.nn.Dense", ["Linear"]),
        ("nn.BiDense", ["Bilinear"]),
        ("LazyConv1d", ["Conv1d"]),
        ("EmbeddingLookup", ["Embedding"]),
    ],
)
def test_a_layer_is_found_by_every_name_it_has(name: str, torch: list[str]) -> None:
    assert [row.torch for row in find(name)] == torch


def test_a_near_miss_is_answered_with_what_is_near() -> None:
    with pytest.raises(InputError, match="'Conv2': did you mean Conv2d or"):
        find("Conv2")
    with pytest.raises(InputError, match="did you mean BatchNorm2d"):
        find("nn.BatchNrom2d")
    with pytest.raises(InputError, match="automap layers shows all there are"):
        find("xyz")


def test_a_near_miss_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", "LayerNrom"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("automap: error: no layer with parameters is called 'LayerNrom': did you mean LayerNorm")


def test_all_layers_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "PyTorch"
    assert len(lines) == 1 + sum(len(row.counterparts) for row in rows())
    (line,) = [x for x in lines if "nn.Conv1d " in x and "mint" not in x]
    cells = ["Conv1d", "nn.Conv1d", "running", "pad_mode='same', has_bias=False"]
    assert re.split("  +", line) == [*cells, "weight [out, in/groups, k] -> [out, in/groups, 1, k]"]


def test_one_layer_with_every_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", "nn.batchnorm1d"]) == 0
    out = capsys.readouterr().out
    for words in (
        "torch.nn.BatchNorm1d, also LazyBatchNorm1d",
        "moving_mean      [n]  from running_mean  called mean where the cell is the whole network; always there",
        "num_batches_tracked has no counterpart",
        "other default: momentum=0.1 in PyTorch, momentum=0.9 here: write momentum=1 - PyTorch's",
        "proven by running: both layers run with the same weights: the outputs agree",
        "mindspore.mint.nn.BatchNorm1d",
    ):
        assert words in out
    main(["layers", "RMSNorm"])
    assert "mindspore.nn has none\n  use a cell of your own with ops.rms_norm" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", "Conv1d", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["torch"] == "Conv1d"
    of_nn, of_mint = row["counterparts"]
    assert of_nn["parameters"][0]["transform"] == "reshape(shape=[out, in/groups, 1, k])"
    assert (of_mint["name"], of_mint["proven"], of_mint["changes"]) == ("Conv1d", "stand-in", "nothing")
    assert len(json.loads(to_json(rows()))) == len(rows())


def test_the_table_is_drawn_on_a_terminal() -> None:
    from rich.console import Console

    for what in (Overview(rows()), Facts(find("LSTM"))):
        console = Console(width=140, record=True, file=io.StringIO())
        console.print(what)
        assert "nn.LSTM" in console.export_text()


def test_what_changes_in_short() -> None:
    found = {f"{row.torch} {c.full_name}": changes(row, c) for row in rows() for c in row.counterparts if c.name}
    assert found["Linear nn.Dense"] == found["GRUCell nn.GRUCell"] == "nothing"
    assert found["GRU nn.GRU"] == "another order"
    assert found["LayerNorm nn.LayerNorm"] == "weight -> gamma, bias -> beta"
    assert found["BatchNorm3d nn.BatchNorm3d"].endswith("no num_batches_tracked, another order")


def test_no_framework_is_loaded(run_python) -> None:
    code = (
        "import sys; from automap.cli import main; main(['layers']); main(['layers', 'LSTM']);"
        "sys.exit(len({'torch', 'mindspore', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    assert run_python(code).returncode == 0


# ------------------------------------------------------------------------------ the vocabulary of inference is the same


def pairs() -> list[tuple[str, str]]:
    """Names of one parameter in both frameworks, without the modules around it."""
    found = [(p.name, o) for row in rows() for c in row.counterparts for p, o in row.pairs(c) if o is not None]
    names = [(theirs, name) for theirs, o in found for name in (o.name, o.alone) if name]
    return [tuple(n.format(l=0, d="").rpartition(".")[2] for n in pair) for pair in names]  # type: ignore[misc]


#: What a layer calls a parameter in MindSpore by a word that means other things elsewhere.
NOT_WORDS = {"w", "a", "mean", "variance"}


def test_one_parameter_has_one_slot() -> None:
    for theirs, ours in pairs():
        if ours not in NOT_WORDS:
            assert slot_of(split_leaf(theirs)[1]) == slot_of(split_leaf(ours)[1]), (theirs, ours)


def test_every_word_of_the_vocabulary_is_in_the_table_and_the_other_way_round() -> None:
    words = {word for pair in pairs() for word in pair} - NOT_WORDS
    assert {w for w in words if not RECURRENT.match(w)} == SLOTS.keys() | PROJECTIONS
    assert {w for w in words if RECURRENT.match(w)} == {
        *(f"{kind}_{which}{end}" for kind in ("weight", "bias") for which in ("ih", "hh") for end in ("", "_l0"))
    }
