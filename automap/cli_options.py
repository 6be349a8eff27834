"""What the commands share: what their options mean, and how they write and speak.

Nothing here takes time to import; frameworks and the library are loaded by the command that needs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from automap.graph import Framework
    from automap.sources import Source

_F = TypeVar("_F", bound=Callable[..., Any])

STATUS = (
    "Exit status: 0 done; 1 something needs a person; 2 bad usage or input; 3 the mapping holds, but the networks "
    "differ; 4 a network cannot run here."
)


# -- what options mean -------------------------------------------------------------------------------------------------


def arguments(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
    """``name=value`` texts as keyword arguments; a value that is no JSON is a text."""
    found: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is no name=value, such as num_classes=3")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def file_to_write(
    *endings: str, dash: bool = True
) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A check of a file to write, made before the work: its ending, and that its folder exists."""

    def check(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
        if path is None or (dash and path == "-"):
            return path
        if endings and not path.lower().endswith(endings):
            raise click.BadParameter(f"{path} must end in {' or '.join(endings)}")
        if os.path.isdir(path):
            raise click.BadParameter(f"{path} is a folder: name a file")
        if not Path(path).absolute().parent.is_dir():
            raise click.BadParameter(f"{path} cannot be written: there is no folder {Path(path).parent}")
        return path

    return check


def given_inputs(inputs: Sequence[str], file: str | None) -> list[str] | Path | None:
    """The inputs as the library takes them; they are read once before the work, so that a slip costs no time."""
    from automap.probing import open_inputs

    if inputs and file is not None:
        raise click.UsageError("--input and --inputs exclude each other")
    given = Path(file) if file is not None else list(inputs) or None
    open_inputs(given)
    return given


def lines_of_file(path: str) -> list[str]:
    """The lines of a text file that are not empty, without spaces around them."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _use_device(_: click.Context, __: click.Parameter, name: str | None) -> None:
    if name is not None:
        from automap.mindspore_device import use

        use(name)


def options(*options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


# Taken from the command line by main(), before anything is parsed, so that it works wherever it stands.
verbose = click.option("--verbose", is_flag=True, expose_value=False, help="Show the traceback of an error.")

torch_arguments = click.option(
    "--torch-arg",
    "torch_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=arguments,
    help="A keyword argument of the PyTorch factory; the value is JSON or a text. Repeatable.",
)

ms_arguments = click.option(
    "--ms-arg",
    "ms_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=arguments,
    help="A keyword argument of the MindSpore factory; the value is JSON or a text. Repeatable.",
)

factory_arguments = options(torch_arguments, ms_arguments)


def _numbers(context: click.Context, option: click.Parameter, items: Sequence[str]) -> dict[str, float] | None:
    """``[PATTERN=]VALUE`` items as a dict."""
    found = {}
    for item in items:
        pattern, _, value = item.rpartition("=")
        try:
            found[pattern] = float(value)
        except ValueError:
            raise click.BadParameter(f"{item!r} is no number: write it as VALUE or 'PATTERN=VALUE'") from None
    return found or None


fitting_given = options(
    click.option(
        "--resize", is_flag=True, help="Interpolate tables of positions that have another length in --target."
    ),
    click.option(
        "--resize-as",
        multiple=True,
        metavar="PATTERN[=OLD:NEW]",
        help="Interpolate the parameters of these names, such as '*.place.weight'; also with the grid, where the sizes "
        "leave it open, such as 'pos_embed=1+16x16:32x32'. Repeatable.",
    ),
    click.option(
        "--pad-vocab",
        multiple=True,
        callback=_numbers,
        metavar="[PATTERN=]VALUE",
        help="Fill new rows with VALUE where the vocabulary of --target is longer. Repeatable.",
    ),
    click.option("--cut-vocab", is_flag=True, help="Drop the last rows where the vocabulary of --target is shorter."),
)


inputs_given = options(
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="SPEC",
        help="What the networks are run on, such as 'float32[2,3,224,224]', 'int64[2,16]<100', or with a keyword "
        "'ids=int64[2,16]<100'. Repeatable, in order.",
    ),
    click.option("--inputs", "inputs_file", metavar="F.npz", help="The same from a file of arrays."),
)

merge_lora_given = click.option(
    "--merge-lora",
    metavar="alpha=ALPHA",
    help="Merge LoRA adapters into their weights; ',adapter=NAME' names one of several, ',rooted' takes alpha over the "
    "square root of the rank.",
)

training_given = options(
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="Train both networks for N steps, too, and compare losses, weights and running statistics.",
    ),
    click.option(
        "--optimizer",
        metavar="NAME|T,M",
        help="sgd (default), momentum, adam or adamw; or PyTorch's and MindSpore's own, such as "
        "'torch.optim:AdamW,mindspore.nn:AdamWeightDecay' or functions of the network in files.",
    ),
    click.option(
        "--loss",
        metavar="NAME|T,M",
        help="squares or cross_entropy, to seeded targets; or a pair of functions of outputs and target. Default: "
        "cross_entropy where the output has two dimensions.",
    ),
    click.option("--lr", type=click.FloatRange(min=0), help="The learning rate; 0.01, of Adam 0.001 without it."),
    click.option("--weight-decay", type=click.FloatRange(min=0), help="Of an optimizer that is given by name."),
    click.option(
        "--batches",
        metavar="F.npz",
        help="What to train on: arrays whose first axis counts batches; one called target goes to the loss.",
    ),
    click.option("--target", metavar="SPEC", help="What the loss gets beside the outputs, such as 'int64[8]<10'."),
    click.option(
        "--go-on",
        is_flag=True,
        help="Begin with the state of the optimizer (and scheduler) in the checkpoint of --weights; without "
        "--optimizer, it is the one that the state is of.",
    ),
    click.option(
        "--from-step",
        type=click.IntRange(min=0),
        metavar="N",
        help="How many steps made that state; SGD does not count.",
    ),
    click.option(
        "--schedule-every",
        type=click.IntRange(min=1),
        metavar="N",
        help="The schedulers that functions for --optimizer return, (optimizer, scheduler), make a step after every N "
        "steps of training; 1 without it.",
    ),
)

device_given = click.option(
    "--device",
    type=click.Choice(["CPU", "GPU", "Ascend"]),
    expose_value=False,
    callback=_use_device,
    help="What MindSpore runs on; without it, what it takes by itself.",
)

seed_given = click.option("--seed", default=0, show_default=True, help="Of the weights and inputs drawn.")


# -- what is written ---------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Words for a person, which never mix with data."""
    click.echo(text, err=True)


def write(text: str, path: str) -> None:
    """Data into a file, whole or not at all; ``-`` is the standard output."""
    from automap.files import replacing

    data = text.encode("utf-8", "backslashreplace")
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    with replacing(path) as part:
        part.write_bytes(data)


def show(value: Any) -> None:
    """A result on the standard output: as rich draws it on a terminal, as plain text elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(value)
    else:
        click.echo(str(value))


@contextlib.contextmanager
def working(words: str) -> Iterator[Callable[[str], None]]:
    """What is going on, on a terminal; what the user's own code prints meanwhile stays out of the data.

    Yields:
        What takes other words for it, while it goes on.
    """
    with contextlib.ExitStack() as stack:
        further: Callable[[str], None] = _nothing
        if sys.stderr.isatty():
            from rich.console import Console

            status = stack.enter_context(Console(stderr=True).status(f"{words} …"))
            further = lambda now: status.update(f"{now} …")  # noqa: E731
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield further


@contextlib.contextmanager
def counting(words: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """How far it is, in bytes, on a terminal; what the user's own code prints meanwhile stays out of the data.

    Yields:
        What takes what is being done, how many bytes of it, and of how many; None where nobody is watching.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            SpeedColumn(),
            TimeRemainingColumn(),
        )
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = bar.add_task(words, total=None)

        def progress(what: str, done: int, total: int) -> None:
            if done == 0:
                bar.reset(task, description=f"{words}: {what}", total=total)
            bar.update(task, completed=done)

        yield progress


def _nothing(_: str) -> None:
    """Nobody is watching."""


def opened(source: str, framework: Framework | None, args: dict[str, Any]) -> Source:
    """A source; what the user should know about what was read is said."""
    from automap.sources import open_source

    found = open_source(source, framework, args)
    for note in found.notes:
        say(f"note: {note}")
    return found
