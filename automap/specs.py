"""The user's objects: named as ``module:attr`` or ``file.py:attr``, and recognised without importing a framework."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from automap.errors import SourceError
from automap.graph import Framework

_SPEC = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*|.+\.py):(?P<attr>[^\W\d]\w*(\.[^\W\d]\w*)*)")

_MODELS = {("torch.nn.modules.module", "Module"), ("mindspore.nn.cell", "Cell")}

#: The folders of the files loaded so far: the modules beside one file must not pass for those beside another.
_folders: list[Path] = []


def is_spec(text: str) -> bool:
    """Whether a text has the form ``module:attr`` or ``file.py:attr``."""
    return _SPEC.fullmatch(text) is not None


def load_object(spec: str) -> Any:
    """The object that a spec names, such as ``torchvision.models:resnet50`` or ``./net.py:build``.

    Modules are looked for in the working folder first, as ``python -m`` does it, and the modules beside a file can be
    imported by it, as ``python file.py`` does it: both folders stay on ``sys.path``. A file is run anew every time.

    Raises:
        SourceError: there is no such file, module or attribute, or importing it raises (the error is its cause).
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise SourceError(f"{spec!r} does not name an object: write module:attr or file.py:attr", spec)
    name, attr = match["module"], match["attr"]
    importlib.invalidate_caches()
    module = _run_file(name, spec) if name.endswith(".py") else _import(name, spec)
    here: Any = module
    for i, part in enumerate(parts := attr.split(".")):
        try:
            here = getattr(here, part)
        except AttributeError as error:
            owner = ".".join([name, *parts[:i]])
            raise SourceError(f"{owner} has no {part!r}, which {spec} names{_nearest(part, here)}", spec) from error
    return here


def call(factory: Callable[..., Any], args: Mapping[str, Any], spec: str) -> Any:
    """What a factory or class gives for keyword arguments.

    Raises:
        SourceError: it raises; its own error is shown in the message and is the cause.
    """
    try:
        return factory(**args)
    except (Exception, SystemExit) as error:
        advice = ""
        # One frame: the call itself did not fit, nothing inside was reached.
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            advice = ": give its arguments as name=value (--torch-arg, --ms-arg; args= in Python)"
        raise SourceError(f"{spec} raised {one_line(error)}{advice}", spec) from error


def one_line(error: BaseException) -> str:
    """An error in one line: its type and the first paragraph of its message, at most 300 characters of it."""
    text = str(error).strip()
    # MindSpore adds paragraphs for its own developers, after a rule of dashes.
    text = " ".join(re.split(r"\n\s*\n|\n-{5,}", text, maxsplit=1)[0].split())
    text = text if len(text) <= 300 else text[:299] + "…"
    return type(error).__name__ + (f": {text}" if text else "")


def framework_of(obj: object) -> Framework | None:
    """The framework that an object (or class) belongs to by inheritance, found without importing any."""
    for cls in (obj if isinstance(obj, type) else type(obj)).__mro__:
        root = cls.__module__.partition(".")[0]
        if root in ("torch", "mindspore"):
            return root  # type: ignore[return-value]
    return None


def is_model(obj: object) -> bool:
    """Whether it is an ``nn.Module`` or ``nn.Cell``, found without importing either."""
    return any((c.__module__, c.__qualname__) in _MODELS for c in type(obj).__mro__)


def no_file(path: str) -> SourceError:
    """The error for a file that is not there."""
    return SourceError(f"there is no file {path}: check the path (the working folder is {Path.cwd()})", path)


def article(word: str) -> str:
    """A word with its indefinite article."""
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _import(name: str, spec: str) -> ModuleType:
    _look_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise SourceError(
                f"there is no module {error.name!r} for {spec}: run automap in the folder that holds it, install it,"
                " or give its file as path/to/file.py:attr",
                spec,
            ) from error
        raise SourceError(f"importing {name} raised {one_line(error)}", spec) from error
    except (Exception, SystemExit) as error:
        raise SourceError(f"importing {name} raised {one_line(error)}", spec) from error


def _run_file(name: str, spec: str) -> ModuleType:
    path = Path(name)
    if not path.is_file():
        raise no_file(name)
    path = path.resolve()
    _look_in(Path.cwd())
    _look_in(path.parent)
    _forget_neighbours(path.parent)
    # Two files may have one name, and neither may hide a module that is installed.
    unique = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    found = importlib.util.spec_from_file_location(unique, path)
    if found is None or found.loader is None:
        raise SourceError(f"{name} is not a Python file", spec)
    module = importlib.util.module_from_spec(found)
    sys.modules[unique] = module
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[unique]
        advice = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            advice = ": it belongs to a package, so give it as package.module:attr"
        raise SourceError(f"importing {name} raised {one_line(error)}{advice}", spec) from error
    return module


def _look_in(folder: Path) -> None:
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))


def _forget_neighbours(folder: Path) -> None:
    """Drop modules that were imported from beside another file and that this folder has under the same name."""
    others = [f for f in _folders if f != folder]
    for name, module in list(sys.modules.items()) if others else ():
        top = name.partition(".")[0]
        if not (folder / f"{top}.py").is_file() and not (folder / top).is_dir():
            continue
        origin = getattr(module, "__file__", None) or ""
        if any(origin == str(f / f"{top}.py") or origin.startswith(str(f / top) + os.sep) for f in others):
            del sys.modules[name]
    if folder not in _folders:
        _folders.append(folder)


def _nearest(name: str, owner: object) -> str:
    """The advice after a name that is not there: the nearest ones that are."""
    near = difflib.get_close_matches(name, [n for n in dir(owner) if not n.startswith("_")])
    return f"; did you mean {' or '.join(near)}?" if near else ""
