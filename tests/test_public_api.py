"""The names that ``import automap`` offers: these and no others, each loaded when it is first used."""

from __future__ import annotations

import inspect
import pkgutil

import pytest

import automap

PUBLIC = [
    "AutomapError",
    "ConversionReport",
    "Entry",
    "Listing",
    "LossScaleReport",
    "Mapping",
    "OptimizerReport",
    "Param",
    "Unmatched",
    "Validation",
    "apply",
    "apply_loss_scale",
    "apply_optimizer",
    "check",
    "convert",
    "infer",
    "load",
    "open_source",
    "validate",
    "write_lock",
    "write_trace",
]


def test_the_list():
    assert automap.__all__ == PUBLIC
    assert dir(automap) == sorted([*PUBLIC, "__version__"])


@pytest.mark.parametrize("name", PUBLIC)
def test_each_is_what_its_own_module_calls_so(name):
    value = getattr(automap, name)
    assert value.__name__ == name
    assert value.__module__.startswith("automap.")
    assert value.__doc__


def test_another_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'automap' has no attribute 'nope'$"):
        automap.nope  # noqa: B018
    assert not hasattr(automap, "map")


def test_no_public_function_has_its_modules_name():
    modules = {m.name for m in pkgutil.iter_modules(automap.__path__)}
    assert "cli" in modules
    assert modules.isdisjoint(PUBLIC)
    for module in modules - {"__main__"}:
        if not module.endswith(("_edge", "_runner")):
            found = vars(__import__(f"automap.{module}", fromlist=["_"])).get(module)
            assert not inspect.isfunction(found), module


def test_import_loads_nothing_that_takes_time(run_python):
    code = "import sys, automap; print([m for m in ('numpy', 'scipy', 'rich', 'click', 'torch') if m in sys.modules])"
    assert run_python(code).stdout == "[]\n"


def test_names_are_there_by_every_way_of_importing(run_python):
    code = (
        "from automap import *\n"
        "import automap\n"
        "assert Mapping is automap.Mapping and apply is automap.apply and 'infer' in dir()\n"
        "assert automap.Mapping is automap.mapping.Mapping\n"
        "print(automap.__version__)"
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == (f"{automap.__version__}\n", "")
