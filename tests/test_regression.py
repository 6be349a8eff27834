from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from automap import inference, lock_file, regression
from automap.errors import LockError, PinError, SourceError
from automap.evidence import Proof
from automap.mapping import Entry, Mapping, Side, Unmatched
from automap.regression import CheckReport, check, junit_xml, read_lock, write_lock
from automap.sources import Source
from automap.transforms import from_text

Rows = list[tuple[str, list[int]]]

TORCH: Rows = [("fc.weight", [3, 4]), ("fc.bias", [3]), ("norm.weight", [3]), ("norm.bias", [3])]
MINDSPORE: Rows = [("fc.weight", [3, 4]), ("fc.bias", [3]), ("norm.gamma", [3]), ("norm.beta", [3])]


def write_listing(path: Path, framework: str, rows: Rows, dtype: str = "float32") -> None:
    parameters = [{"name": name, "shape": shape, "dtype": dtype} for name, shape in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"framework": framework, "parameters": parameters}))


class Infer:
    """Stands in for inference, so that a test decides what it finds: by position, but for what it is told."""

    def __init__(self) -> None:
        self.swapped: tuple[str, str] | None = None
        self.review: dict[str, str] = {}
        self.unmatched: dict[str, str] = {}
        self.transforms: dict[str, str] = {}
        self.options: dict[str, Any] = {}

    def __call__(self, left: Source, right: Source, **options: Any) -> Mapping:
        self.options = options
        torch, mindspore = left.listing(), right.listing()
        homes = {p.name: q.name for p, q in zip(torch, mindspore, strict=False)}
        if self.swapped is not None:
            a, b = self.swapped
            homes[a], homes[b] = homes[b], homes[a]
        rest = [p.name for p in torch if p.name not in homes]
        lost = [homes.pop(name) for name in self.unmatched]
        return Mapping(
            Side.of(torch),
            Side.of(mindspore),
            tuple(
                Entry(
                    (a,),
                    (b,),
                    from_text(self.transforms.get(a, "")),
                    review=a in self.review,
                    why=self.review.get(a, ""),
                )
                for a, b in homes.items()
            ),
            tuple(Unmatched(name, self.unmatched.get(name, "left over")) for name in [*self.unmatched, *rest]),
            tuple(
                Unmatched(q.name, "left over", q.name in self.review)
                for q in mindspore
                if q.name in lost or q.name not in homes.values()
            ),
        )


@pytest.fixture
def infer(monkeypatch: pytest.MonkeyPatch) -> Infer:
    stand_in = Infer()
    monkeypatch.setattr(inference, "infer", stand_in, raising=False)
    return stand_in


@pytest.fixture
def lock(tmp_path: Path, infer: Infer) -> Path:
    """A lock of two listings, in a folder of its own; the listings are beside that folder."""
    write_listing(tmp_path / "lists" / "t.json", "torch", TORCH)
    write_listing(tmp_path / "lists" / "m.json", "mindspore", MINDSPORE)
    path = tmp_path / "locks" / "automap.lock"
    path.parent.mkdir()
    write_lock(path, str(tmp_path / "lists" / "t.json"), tmp_path / "lists" / "m.json", seed=3)
    return path


def drift(lock: Path) -> list[str]:
    report = check(lock)
    assert report.passed == (not report.drift)
    assert report.exit_code == (1 if report.drift else 0)
    assert str(report).startswith(f"{lock}: ")
    assert all(words in str(report) for words in report.drift)
    return list(report.drift)


def test_a_lock_of_listings_holds_the_mapping(lock: Path):
    data = json.loads(lock.read_text())
    assert data["format"] == "automap-lock/1"
    assert data["torch"]["source"] == "../lists/t.json"
    assert data["mindspore"]["source"] == "../lists/m.json"
    assert data["torch"]["parameters"][0] == ["fc.weight", [3, 4], "float32", "parameter"]
    assert data["mapping"]["format"] == "automap/1"
    assert data["mapping"]["torch"]["source"] == "../lists/t.json"
    assert (data["seed"], data["error"], data["exit_code"]) == (3, None, None)
    assert set(data["versions"]) == {"automap", "torch", "mindspore", "numpy"}
    held = read_lock(lock)
    assert held.mapping.torch_2_ms["norm.bias"] == "norm.beta"
    assert lock_file.to_json(held) == lock.read_text()


def test_a_lock_is_the_same_bytes_again(lock: Path):
    before = lock.read_bytes()
    assert check(lock, update=True).updated
    assert lock.read_bytes() == before
    # A line for each parameter and each entry: a change shows as a change of that line.
    assert sum(b"norm.beta" in line for line in before.splitlines()) == 2


def test_nothing_drifts_wherever_the_check_runs(lock: Path, infer: Infer, tmp_path: Path, monkeypatch):
    assert drift(lock) == []
    assert infer.options["seed"] == 3
    monkeypatch.chdir(lock.parent)
    assert drift(Path("automap.lock")) == []
    monkeypatch.chdir("/")
    moved = tmp_path / "moved"
    tmp_path.joinpath("locks").rename(moved)
    assert drift(moved / "automap.lock") == []


def test_what_inference_was_told_is_kept(tmp_path: Path, infer: Infer):
    write_listing(tmp_path / "t.json", "torch", TORCH)
    write_listing(tmp_path / "m.json", "mindspore", MINDSPORE)
    path = tmp_path / "automap.lock"
    written = write_lock(
        path, tmp_path / "t.json", tmp_path / "m.json", pins=["a=b"], static=True, ignore_names=True, seed=7
    )
    assert read_lock(path) == written
    infer.options = {}
    check(path)
    assert infer.options == {"inputs": None, "pins": ("a=b",), "static": True, "ignore_names": True, "seed": 7}


def test_a_mapping_at_hand_is_not_inferred_again(tmp_path: Path, infer: Infer):
    write_listing(tmp_path / "t.json", "torch", TORCH)
    write_listing(tmp_path / "m.json", "mindspore", MINDSPORE)
    mapping = Mapping.from_dict({a: b for (a, _), (b, _) in zip(TORCH, MINDSPORE, strict=True)})
    write_lock(tmp_path / "automap.lock", tmp_path / "t.json", tmp_path / "m.json", mapping=mapping)
    assert infer.options == {}
    assert read_lock(tmp_path / "automap.lock").mapping.torch_2_ms == mapping.torch_2_ms


def relisted(lock: Path, framework: str, change: Callable[[Rows], Rows], dtype: str = "float32") -> list[str]:
    """What drifts when a listing changes."""
    rows = TORCH if framework == "torch" else MINDSPORE
    write_listing(lock.parent.parent / "lists" / f"{framework[0]}.json", framework, change(list(rows)), dtype)
    return drift(lock)


def test_a_parameter_that_appears_or_disappears(lock: Path):
    assert relisted(lock, "torch", lambda rows: [*rows, ("head.weight", [5])]) == [
        "PyTorch parameter head.weight appeared: float32[5]"
    ]
    assert relisted(lock, "torch", lambda rows: rows[:3]) == ["PyTorch parameter norm.bias disappeared"]
    relisted(lock, "torch", lambda rows: rows)
    assert relisted(lock, "mindspore", lambda rows: rows[:3]) == [
        "MindSpore parameter norm.beta disappeared",
        "norm.bias: was norm.beta, now without a counterpart (left over)",
    ]


def test_a_parameter_of_another_shape_or_type(lock: Path):
    assert relisted(lock, "mindspore", lambda rows: [("fc.weight", [3, 4, 1]), *rows[1:]]) == [
        "MindSpore parameter fc.weight changed its shape: was float32[3, 4], now float32[3, 4, 1]"
    ]
    assert relisted(lock, "mindspore", lambda rows: rows[:3] + rows[3:], "float16")[0] == (
        "MindSpore parameter fc.weight changed its element type: was float32, now float16"
    )


def test_another_order_is_told_but_is_no_drift(lock: Path, infer: Infer):
    infer.swapped = ("fc.bias", "norm.weight")  # so that the mapping stays what it was
    names = lock.parent.parent / "lists" / "t.json"
    write_listing(names, "torch", [TORCH[0], TORCH[2], TORCH[1], TORCH[3]])
    report = check(lock)
    assert report.drift == ()
    assert report.notes == ("the PyTorch parameters are listed in another order",)


def test_an_entry_that_flips(lock: Path, infer: Infer):
    infer.swapped = ("norm.weight", "norm.bias")
    assert drift(lock) == [
        "norm.weight: was norm.gamma, now norm.beta",
        "norm.bias: was norm.beta, now norm.gamma",
    ]


def test_an_entry_that_is_lost_or_found(lock: Path, infer: Infer):
    infer.unmatched = {"norm.bias": "no home"}
    assert drift(lock) == ["norm.bias: was norm.beta, now without a counterpart (no home)"]
    check(lock, update=True)
    infer.unmatched = {}
    assert drift(lock) == ["norm.bias: was without a counterpart (no home), now norm.beta"]


def test_a_review_mark_that_changes(lock: Path, infer: Infer):
    infer.review = {"fc.bias": "another is as near"}
    assert drift(lock) == ["fc.bias is now marked for review: another is as near"]
    check(lock, update=True)
    infer.review = {}
    assert drift(lock) == ["fc.bias is no longer marked for review"]
    infer.unmatched, infer.review = {"norm.bias": "no home"}, {}
    check(lock, update=True)
    infer.review = {"norm.beta": ""}
    assert drift(lock) == ["norm.beta is now marked for review: left over"]


def test_a_transform_that_changes(lock: Path, infer: Infer):
    infer.transforms = {"fc.weight": "transpose(axes=[1, 0])"}
    assert drift(lock) == ["fc.weight -> fc.weight: its transform was none, now transpose(axes=[1, 0])"]


def test_other_versions_are_a_note(lock: Path):
    data = json.loads(lock.read_text())
    data["versions"] |= {"automap": "0.0.1", "torch": None}
    lock.write_text(json.dumps(data))
    report = check(lock)
    assert report.drift == ()
    assert report.notes[0].startswith("automap was 0.0.1, now ")
    assert report.notes[1].startswith("torch was absent, now ")
    assert "note: automap was 0.0.1" in str(report)


def test_inference_that_fails_is_drift(lock: Path, infer: Infer, monkeypatch):
    def fails(*args: Any, **options: Any) -> Mapping:
        raise PinError("the pin a=b names nothing", "a=b")

    monkeypatch.setattr(inference, "infer", fails)
    assert drift(lock) == ["what was locked can no longer be done: the pin a=b names nothing"]
    with pytest.raises(PinError):
        check(lock, update=True)


def test_update_accepts_the_drift(lock: Path, infer: Infer):
    infer.swapped = ("norm.weight", "norm.bias")
    report = check(lock, update=True)
    assert (report.passed, report.exit_code, report.updated, len(report.drift)) == (True, 0, True, 2)
    assert "2 thing(s) drifted, accepted" in str(report)
    assert drift(lock) == []


def damaged(lock: Path, change: Callable[[dict[str, Any]], None]) -> str:
    data = json.loads(lock.read_text())
    change(data)
    lock.write_text(json.dumps(data))
    with pytest.raises(LockError) as e:
        read_lock(lock)
    assert str(lock) in str(e.value)
    assert e.value.path == str(lock)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_a_file_that_is_no_lock(lock: Path, tmp_path: Path):
    assert "its format is 'automap-lock/9'" in damaged(lock, lambda d: d.update(format="automap-lock/9"))
    lock.write_text("[]")
    with pytest.raises(LockError, match=r"its format is None, this automap reads 'automap-lock/1'; write it anew"):
        check(lock)
    lock.write_text("{")
    with pytest.raises(LockError, match="is no lock file: it is not JSON"):
        check(lock)
    with pytest.raises(LockError, match=r"no such lock file: .*; automap infer --lock writes one"):
        check(tmp_path / "none.lock")


def test_a_damaged_lock(lock: Path):
    assert "is damaged: it lacks 'mapping'; write it anew" in damaged(lock, lambda d: d.pop("mapping"))


def test_a_damaged_mapping_in_a_lock(lock: Path):
    assert "is damaged: " in damaged(lock, lambda d: d["mapping"].update(entries=3))


def test_a_source_that_is_gone(lock: Path, tmp_path: Path):
    (tmp_path / "lists" / "t.json").unlink()
    with pytest.raises(SourceError, match=r"there is no file .*t\.json"):
        check(lock)


def test_a_lock_needs_sources_in_words(tmp_path: Path, infer: Infer):
    with pytest.raises(SourceError, match=r"a lock needs the PyTorch model as text, .*, not as a dict"):
        write_lock(tmp_path / "automap.lock", {}, "x")  # type: ignore[arg-type]


def test_a_lock_that_cannot_be_written(tmp_path: Path, infer: Infer):
    write_listing(tmp_path / "t.json", "torch", TORCH)
    write_listing(tmp_path / "m.json", "mindspore", MINDSPORE)
    with pytest.raises(SourceError, match=r"cannot be written"):
        write_lock(tmp_path / "none" / "automap.lock", tmp_path / "t.json", tmp_path / "m.json")


def test_junit():
    reports = [
        CheckReport("a.lock", seconds=0.5, notes=("numpy was 1, now 2",)),
        CheckReport("b.lock", ("x: was <y>, now z", "control \x00 sign"), seconds=0.25),
        CheckReport("c.lock", ("accepted",), updated=True),
    ]
    text = junit_xml(reports)
    assert text.startswith('<?xml version="1.0" encoding="utf-8"?>\n')
    suite = ElementTree.fromstring(text)[0]
    assert {k: suite.get(k) for k in ("name", "tests", "failures", "time")} == {
        "name": "automap",
        "tests": "3",
        "failures": "1",
        "time": "0.750",
    }
    a, b, c = suite.findall("testcase")
    assert (a.get("classname"), a.get("name"), a.get("time")) == ("automap.check", "a.lock", "0.500")
    assert a.findtext("system-out") == "numpy was 1, now 2"
    failure = b.find("failure")
    assert failure is not None
    assert failure.get("message") == "x: was <y>, now z"
    assert failure.text == "x: was <y>, now z\ncontrol � sign"
    assert c.find("failure") is None


# -- networks ----------------------------------------------------------------------------------------------------------

NETWORKS = """
import mindspore as ms, torch
from mindspore import mint

class Port(ms.nn.Cell):
    def __init__(self, eps, shift):
        super().__init__()
        self.fc = ms.nn.Dense(4, 3)
        self.norm = ms.nn.LayerNorm((3,), epsilon=eps)
        self.shift = shift
    def construct(self, x):
        y = self.norm(self.fc(x)) + self.shift
        return mint.linalg.qr(y)[0] if self.shift == "kernel" else y

def build_torch(classes=3):
    return torch.nn.Sequential(*[torch.nn.Linear(4, classes), torch.nn.LayerNorm(classes)])

def build_ms():
    return Port(1e-5, 0.0)
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of two networks beside their file, checked from another folder."""

    def by_position(torch: Any, mindspore: Any, **options: Any) -> Mapping:
        from automap.sources import open_source

        return Infer()(open_source(torch, "torch"), open_source(mindspore, "mindspore"))

    monkeypatch.setattr(inference, "infer", by_position, raising=False)
    (tmp_path / "net.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    write_lock("automap.lock", "./net.py:build_torch", "net.py:build_ms", torch_args={"classes": 3})
    monkeypatch.chdir("/")
    return tmp_path / "automap.lock"


def edited(lock: Path, old: str, new: str) -> CheckReport:
    net = lock.parent / "net.py"
    net.write_text(NETWORKS.replace(old, new))
    return check(lock)


@pytest.mark.frameworks
def test_a_lock_of_networks_holds_the_error(networks: Path):
    data = json.loads(networks.read_text())
    assert (data["torch"]["source"], data["torch"]["args"]) == ("net.py:build_torch", {"classes": 3})
    assert data["inputs"] == ["float32[2,4]"]
    assert (data["exit_code"], data["tolerance"]["rtol"]) == (0, None)
    assert 0 <= data["error"] < 1e-5 <= data["tolerance"]["allowed"]
    report = check(networks)
    assert (report.drift, report.notes) == ((), ())
    assert report.seconds > 0


@pytest.mark.frameworks
def test_an_error_that_grows(networks: Path):
    (words,) = edited(networks, "Port(1e-5, 0.0)", "Port(1e-2, 0.0)").drift
    assert words.startswith("the error grew from ")
    assert ", allowed 1e-05: The mapping holds, the networks differ (error " in words
    # Once accepted, it may be what it is, and not more.
    assert check(networks, update=True).updated
    assert edited(networks, "Port(1e-5, 0.0)", "Port(1e-2, 0.0)").drift == ()
    (words,) = edited(networks, "Port(1e-5, 0.0)", "Port(1e-2, 3.0)").drift
    assert words.startswith("the error grew from ")
    report = edited(networks, "", "")
    assert report.drift == ()
    assert report.notes[0].startswith("the outputs agree now and did not when this was locked; accept it with --update")


@pytest.mark.frameworks
def test_a_network_that_no_longer_runs(networks: Path):
    (words,) = edited(networks, "self.shift = shift", "self.shift = 'kernel'").drift
    assert words.startswith("what was locked can no longer be done: the MindSpore network does not run on float32[2,4]")
    (words,) = edited(networks, "+ self.shift\n", "\n        self.shift = 'kernel'\n").drift
    assert words.startswith(
        "a network no longer runs here: Nothing was proven: the MindSpore network cannot run here: "
    )


@pytest.mark.frameworks
def test_a_network_whose_parameters_change(networks: Path):
    report = edited(networks, "classes=3", "classes=3, **_")
    assert report.drift == ()
    report = edited(networks, "self.fc = ms.nn.Dense(4, 3)", "self.fc = ms.nn.Dense(4, 3, has_bias=False)")
    assert report.drift[0] == "MindSpore parameter fc.bias disappeared"


# -- the proof ---------------------------------------------------------------------------------------------------------


def held(status: str, proven: str) -> regression.Lock:
    """A lock of two entries, with what running the networks said."""
    entries = [Entry((n,), (n,), evidence={"proven": "forward" if n in proven else None}) for n in "ab"]
    mapping = Mapping(Side("t", 2, ""), Side("m", 2, ""), tuple(entries), proof=Proof(status, seeds=(0, 1)))
    return regression.Lock(regression.Model("t", {}), regression.Model("m", {}), mapping)


def test_a_proof_that_is_lost_is_drift():
    told = regression._drift_of_proofs(held("proven", "ab"), held("open", ""))
    assert told == ["the mapping is no longer proven: not proven: the outputs differ"]
    assert regression._drift_of_proofs(held("open", ""), held("proven", "ab")) == []
    assert regression._drift_of_proofs(regression.Lock(*[regression.Model("x", {})] * 2), held("open", "")) == []


def test_an_entry_that_is_no_longer_proven_is_a_note():
    notes = regression._notes(held("proven", "ab"), held("proven", "b"))
    assert notes == ["1 entry or entries are no longer proven by a run: a"]
    assert regression._drift_of_proofs(held("proven", "ab"), held("proven", "b")) == []
