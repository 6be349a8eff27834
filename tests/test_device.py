"""``--device``: MindSpore runs where it is told to, or says in one line where it could."""

from __future__ import annotations

import pytest

from automap import cli
from automap.errors import SourceError

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("command", [["infer", "a", "b"], ["validate", "m.json", "a", "b"], ["check", "a.lock"]])
def test_an_absent_device_is_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from automap import mindspore_device

    absent = next(d for d in ("Ascend", "GPU") if d not in mindspore_device.present())
    assert cli.main([*command, "--device", absent]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"automap: error: MindSpore finds no {absent} here: there is "
        f"{' and '.join(mindspore_device.present())}; give one of these\n"
    )


def test_a_device_that_is_there_is_set() -> None:
    import mindspore as ms

    from automap import mindspore_device

    assert "CPU" in mindspore_device.present()
    mindspore_device.use(ms.get_context("device_target"))
    with pytest.raises(SourceError, match=r"there is .*CPU"):
        mindspore_device.use("NPU")


def test_another_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "a.lock", "--device", "TPU"]) == 2
    said = capsys.readouterr().err
    assert "TPU" in said
    assert "Ascend" in said
