"""The command ``automap``. Each command parses, calls the library, prints, and returns the exit status.

Frameworks, and whatever else takes time to import, are loaded by the command that needs them: ``--help`` loads none.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from automap import __version__
from automap.errors import AutomapError

if TYPE_CHECKING:
    from automap.graph import Framework, Listing
    from automap.mapping import Mapping

_F = TypeVar("_F", bound=Callable[..., Any])

_STATUS = (
    "Exit status: 0 done; 1 something needs a person; 2 bad usage or input; 3 the mapping holds, but the networks "
    "differ; 4 a network cannot run here."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own by default) and give its exit status. It never raises."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names may have characters that this terminal has not
            stream.reconfigure(errors="backslashreplace")
    args = list(sys.argv[1:] if argv is None else argv)
    verbose = "--verbose" in args
    if argv is None and not verbose:
        # A network that failed while it was built complains again when it dies, if only at exit.
        sys.unraisablehook = lambda _: None
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # the frameworks' own, about themselves
        try:
            status = cli.main(args, prog_name="automap", standalone_mode=False)
            return int(status or 0)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "automap"
            return _fail(f"{error.format_message().rstrip('.')}; see {where} --help", 2)
        except click.ClickException as error:
            return _fail(error.format_message(), 2)
        except (click.Abort, KeyboardInterrupt):
            return 130
        except AutomapError as error:
            if verbose:
                traceback.print_exc()
            # Where the user's own code raised, its traceback is what helps.
            raised = error.__cause__ is not None and f" raised {type(error.__cause__).__name__}" in str(error)
            hint = " (--verbose shows the traceback)" if raised and not verbose else ""
            return _fail(f"{error}{hint}", error.exit_code)
        except Exception as error:
            if verbose:
                traceback.print_exc()
            advice = "this is a fault in automap: please report it with what --verbose prints"
            return _fail(f"unexpected {type(error).__name__}: {error}; {advice}", 2)


def _fail(message: str, status: int) -> int:
    click.echo(f"automap: error: {' '.join(message.split())}", err=True)
    return status


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are used

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            # Whoever read has enough. What is left in the buffer must not fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141


# -- what options mean -------------------------------------------------------------------------------------------------


def _arguments(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
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


def _file(*endings: str, dash: bool = True) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
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


def _given_inputs(inputs: Sequence[str], file: str | None) -> list[str] | Path | None:
    """The inputs as the library takes them; they are read once before the work, so that a slip costs no time."""
    from automap.probing import open_inputs

    if inputs and file is not None:
        raise click.UsageError("--input and --inputs exclude each other")
    given = Path(file) if file is not None else list(inputs) or None
    open_inputs(given)
    return given


def _options(*options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


# Taken from the command line by main(), before anything is parsed, so that it works wherever it stands.
_verbose = click.option("--verbose", is_flag=True, expose_value=False, help="Show the traceback of an error.")

_factory_arguments = _options(
    click.option(
        "--torch-arg",
        "torch_args",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_arguments,
        help="A keyword argument of the PyTorch factory; the value is JSON or a text. Repeatable.",
    ),
    click.option(
        "--ms-arg",
        "ms_args",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_arguments,
        help="The same for the MindSpore factory.",
    ),
)

_inputs = _options(
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="SPEC",
        help="What both networks are run on, such as 'float32[2,3,224,224]', 'int64[2,16]<100', or with a keyword "
        "'ids=int64[2,16]<100'. Repeatable, in order.",
    ),
    click.option("--inputs", "inputs_file", metavar="F.npz", help="The same from a file of arrays."),
)

_seed = click.option("--seed", default=0, show_default=True, help="Of the weights and inputs drawn.")


# -- what is written ---------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    """Words for a person, which never mix with data."""
    click.echo(text, err=True)


def _write(text: str, path: str) -> None:
    """Data into a file, whole or not at all; ``-`` is the standard output."""
    from automap.files import replacing

    data = text.encode("utf-8", "backslashreplace")
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    with replacing(path) as part:
        part.write_bytes(data)


def _show(value: Any) -> None:
    """A result on the standard output: as rich draws it on a terminal, as plain text elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(value)
    else:
        click.echo(str(value))


@contextlib.contextmanager
def _working(words: str) -> Iterator[None]:
    """What is going on, on a terminal; what the user's own code prints meanwhile stays out of the data."""
    with contextlib.ExitStack() as stack:
        if sys.stderr.isatty():
            from rich.console import Console

            stack.enter_context(Console(stderr=True).status(f"{words} …"))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _open(source: str, framework: Framework | None, args: dict[str, Any]) -> Listing:
    """The listing of a source; what the user should know about what was read is said."""
    from automap.sources import open_source

    opened = open_source(source, framework, args)
    for note in opened.notes:
        _say(f"note: {note}")
    return opened.listing()


# -- the commands ------------------------------------------------------------------------------------------------------


@click.group(
    cls=_Group,
    epilog=_STATUS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="automap", message="%(prog)s %(version)s")
@_verbose
@click.pass_context
def cli(context: click.Context) -> int:
    """The mapping between the parameters of a PyTorch network and its MindSpore port.

    \b
    Example:
      automap infer torchvision.models:resnet50 ./resnet_ms.py:build
      automap convert mapping.json resnet50.pth -o resnet50.ckpt
      automap validate mapping.json torchvision.models:resnet50 ./resnet_ms.py:build
    """
    if context.invoked_subcommand is None:
        _say(context.get_help())
    return 2  # the status of a command counts, where there is one


@cli.command()
@click.argument("source")
@click.option(
    "-o",
    "--output",
    metavar="F.csv|F.json|-",
    callback=_file(".csv", ".json"),
    help="Write the listing here; - writes JSON to the standard output. Without it, a table is shown.",
)
@click.option(
    "--framework",
    type=click.Choice(["torch", "mindspore"]),
    help="Where the source does not tell: a .csv, or .safetensors without metadata.",
)
@_factory_arguments
@_verbose
def params(
    source: str,
    output: str | None,
    framework: Framework | None,
    torch_args: dict[str, Any],
    ms_args: dict[str, Any],
) -> None:
    """List the parameters of one model, in order.

    SOURCE is a class or factory (package.module:name, ./net.py:build), a checkpoint or a listing.

    \b
    Example:
      automap params torchvision.models:resnet50 --torch-arg num_classes=3 -o torch.json
    """
    from automap.listing_files import FRAMEWORK_NAMES, listing_to_csv, listing_to_json
    from automap.report import table

    with _working(f"Reading {source}"):
        listing = _open(source, framework, torch_args | ms_args)
    if output is None:
        click.echo(table(listing))
    else:
        _write(listing_to_csv(listing) if output.lower().endswith(".csv") else listing_to_json(listing), output)
    written = "" if output in (None, "-") else f", written to {output}"
    _say(f"{len(listing)} {FRAMEWORK_NAMES[listing.framework]} parameter{'s' * (len(listing) != 1)}{written}")


@cli.command(epilog=_STATUS)
@click.argument("torch")
@click.argument("mindspore")
@click.option(
    "-o",
    "--output",
    default="mapping.json",
    show_default=True,
    metavar="F.json|F.csv|-",
    callback=_file(".json", ".csv"),
    help="Where the mapping goes; - writes JSON to the standard output.",
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="T=M",
    help="A PyTorch name and its MindSpore name, or patterns with *, that must be matched. Repeatable.",
)
@_factory_arguments
@_inputs
@click.option("--static", is_flag=True, help="Do not run the networks, whatever else is given.")
@click.option("--ignore-names", is_flag=True, help="Names are no evidence.")
@_seed
@click.option("--report", metavar="F.html", callback=_file(".html", ".htm", dash=False), help="Write a page about it.")
@click.option(
    "--lock", metavar="F", callback=_file(dash=False), help="Run both networks too, and write a lock for automap check."
)
@_verbose
def infer(
    torch: str,
    mindspore: str,
    output: str,
    pins: tuple[str, ...],
    torch_args: dict[str, Any],
    ms_args: dict[str, Any],
    inputs: tuple[str, ...],
    inputs_file: str | None,
    static: bool,
    ignore_names: bool,
    seed: int,
    report: str | None,
    lock: str | None,
) -> int:
    """Infer which parameter becomes which.

    TORCH and MINDSPORE are each a class or factory (package.module:name, ./net.py:build), a checkpoint (.pth .pt .bin
    .safetensors; .ckpt .safetensors) or a listing (.json .csv).

    \b
    Example:
      automap infer torchvision.models:resnet50 ./resnet_ms.py:build --report report.html
      automap infer torch.csv ms.csv -o mapping.csv --pin 'head.*=classifier.*'
    """
    from automap.inference import infer as infer_mapping
    from automap.report import summary, to_html

    given = _given_inputs(inputs, inputs_file)
    if given is not None and static and lock is None:
        raise click.UsageError("--static runs nothing, so --input is of no use with it")
    _check_apart(output, torch, mindspore)
    with _working(f"Reading {torch}"):
        left = _open(torch, "torch", torch_args)
    with _working(f"Reading {mindspore}"):
        right = _open(mindspore, "mindspore", ms_args)
    with _working(f"Matching {len(left)} PyTorch and {len(right)} MindSpore parameters"):
        mapping = infer_mapping(
            left, right, inputs=given, pins=pins, static=static, ignore_names=ignore_names, seed=seed
        )
    if output == "-":
        _write(mapping.to_json(), output)
    else:
        mapping.write(output)
    _say(_highlighted(summary(mapping), mapping.needs_review))
    _say("")
    if output != "-":
        _say(f"wrote {output}")
    if report is not None:
        _write(to_html(mapping), report)
        _say(f"wrote {report}")
    status: int | None = None
    if lock is not None:
        from automap.regression import write_lock

        with _working("Running both networks"):
            locked = write_lock(
                lock,
                torch,
                mindspore,
                mapping=mapping,
                inputs=given,
                pins=pins,
                static=static,
                ignore_names=ignore_names,
                seed=seed,
                torch_args=torch_args,
                ms_args=ms_args,
            )
        status = locked.exit_code
        _say(f"wrote {lock}" + (f": {locked.verdict}" if locked.verdict else ""))
    elif given is not None:
        from automap.validation import validate

        with _working("Running both networks"):
            result = validate(
                mapping, torch, mindspore, inputs=given, seed=seed, torch_args=torch_args, ms_args=ms_args
            )
        status = result.exit_code
        _say(str(result))
    for line in _next_steps(mapping, output, torch, mindspore, proven=status == 0):
        _say(line)
    return 1 if mapping.needs_review else status or 0


def _highlighted(words: str, needs_review: bool) -> str:
    """The counts stand out on a terminal; click takes the colours away elsewhere."""
    color = {"matched": "green", "to review": "yellow" if needs_review else "green", "unmatched": "cyan"}
    lines = []
    for line in words.split("\n"):
        found = next((c for start, c in color.items() if line.startswith(start + " ")), None)
        lines.append(line if found is None else click.style(line, fg=found, bold=True))
    return "\n".join(lines)


def _check_apart(output: str, *sources: str) -> None:
    """Refuse to write over what is read."""
    for source in sources:
        if os.path.exists(output) and os.path.exists(source) and os.path.samefile(output, source):
            raise click.BadParameter(f"{output} is read as a source: choose another name", param_hint="'--output'")


def _next_steps(mapping: Mapping, output: str, torch: str, mindspore: str, proven: bool) -> list[str]:
    """What a person can do now, with commands to copy."""
    if output == "-" or not len(mapping):
        return []
    file = shlex.quote(output)
    steps = []
    if mapping.reviewed:
        name = shlex.quote(mapping.reviewed[0].torch[0])
        steps.append(("why an entry needs review", f"automap explain {file} {name}"))
        steps.append(("settle it", f"automap infer … --pin {shlex.quote(mapping.reviewed[0].torch[0] + '=NAME')}"))
    both = f"{shlex.quote(torch)} {shlex.quote(mindspore)}"
    if not proven and all(":" in source for source in (torch, mindspore)):
        steps.append(("run both networks", f"automap validate {file} {both}"))
    checkpoint = torch if torch.endswith((".pth", ".pt", ".bin", ".safetensors")) else "CHECKPOINT.pth"
    target = shlex.quote(f"{Path(checkpoint).stem}.ckpt")
    steps.append(("convert", f"automap convert {file} {shlex.quote(checkpoint)} -o {target}"))
    width = max(len(what) for what, _ in steps)
    return ["", "next:", *(f"  {what:<{width}}  {command}" for what, command in steps)]


@cli.command(epilog=_STATUS)
@click.argument("mapping")
@click.argument("checkpoint")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    callback=_file(".ckpt", ".safetensors", ".pth", ".pt", ".bin", dash=False),
    help="The file to write; its ending says in which format.",
)
@click.option("--reverse", is_flag=True, help="From MindSpore to PyTorch.")
@click.option("--dtype", metavar="TYPE", help="The type of every floating-point tensor written, such as bfloat16.")
@click.option(
    "--target",
    metavar="SOURCE",
    help="A model, checkpoint or listing that the result has to fit: names, shapes, types.",
)
@click.option("--allow-nan", is_flag=True, help="Let tensors with NaN pass.")
@click.option("--allow-overflow", is_flag=True, help="Let values pass that are out of the range of their new type.")
@_verbose
def convert(
    mapping: str,
    checkpoint: str,
    output: str,
    reverse: bool,
    dtype: str | None,
    target: str | None,
    allow_nan: bool,
    allow_overflow: bool,
) -> int:
    """Convert a checkpoint with a mapping.

    Every tensor written is read back and compared. MAPPING is what automap infer wrote. CHECKPOINT is .pth
    .pt .bin or .safetensors; with --reverse .ckpt or .safetensors.

    \b
    Example:
      automap convert mapping.json resnet50.pth -o resnet50.ckpt
      automap convert mapping.json tuned.ckpt -o tuned.pth --reverse
    """
    from automap.conversion import convert as convert_file
    from automap.mapping import Mapping
    from automap.report import lines_of_names

    read = Mapping.read(mapping)
    with _working(f"Converting {checkpoint}"):
        report = convert_file(
            read,
            checkpoint,
            output,
            reverse=reverse,
            dtype=dtype,
            target=target,
            allow_nan=allow_nan,
            allow_overflow=allow_overflow,
        )
    _say(str(report))
    given, made = (read.made, read.given) if reverse else (read.given, read.made)
    for what, reasons, side in (
        ("left out", report.conversion.left_out, given),
        ("not made", report.conversion.not_made, made),
    ):
        if reasons:
            _say("\n".join([f"{what} {len(reasons)}:", *lines_of_names(reasons, read.names(side))]))
    if report.needs_review:
        _say(f"something in {mapping} is marked for review: automap explain {mapping} NAME says why")
    return 1 if report.needs_review else 0


@cli.command(epilog=_STATUS)
@click.argument("mapping")
@click.argument("torch")
@click.argument("mindspore")
@click.option(
    "--weights",
    metavar="F",
    help="A PyTorch checkpoint; without it, seeded weights under which every parameter matters.",
)
@_inputs
@_seed
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="The difference allowed, relative to the greatest output; without it, found from the element types and the "
    "networks' own rounding.",
)
@click.option("--atol", type=click.FloatRange(min=0), help="A difference allowed on top of that.")
@click.option("--grad", is_flag=True, help="Compare the gradients by every mapped parameter, too.")
@click.option(
    "--curvature", is_flag=True, help="Compare the second derivative along seeded directions, and the gradients."
)
@click.option(
    "--directions",
    type=click.IntRange(min=1),
    metavar="K",
    help="Along how many directions; with --curvature, 3 without it.",
)
@click.option(
    "--hessian-eigenvalue", is_flag=True, help="Compare the greatest eigenvalue of the Hessian, and the gradients."
)
@click.option(
    "--per-layer", is_flag=True, help="Examine every layer, even if the outputs agree; where they differ, it is done."
)
@_factory_arguments
@_verbose
def validate(
    mapping: str,
    torch: str,
    mindspore: str,
    weights: str | None,
    inputs: tuple[str, ...],
    inputs_file: str | None,
    seed: int,
    rtol: float | None,
    atol: float | None,
    grad: bool,
    curvature: bool,
    directions: int | None,
    hessian_eigenvalue: bool,
    per_layer: bool,
    torch_args: dict[str, Any],
    ms_args: dict[str, Any],
) -> int:
    """Run both networks and compare their outputs.

    Both get the same weights, by way of MAPPING, and the same inputs. TORCH and
    MINDSPORE are each a class or factory (package.module:name, ./net.py:build).

    \b
    Example:
      automap validate mapping.json torchvision.models:resnet50 ./resnet_ms.py:build
      automap validate mapping.json net.py:build port.py:build --input 'int64[2,16]<100'
    """
    from automap.validation import validate as run_both

    if directions is not None and not curvature:
        raise click.BadParameter("it is of use with --curvature only", param_hint="'--directions'")
    given = _given_inputs(inputs, inputs_file)
    with _working("Running both networks"):
        result = run_both(
            mapping,
            torch,
            mindspore,
            inputs=given,
            weights=weights,
            seed=seed,
            rtol=rtol,
            atol=atol,
            torch_args=torch_args,
            ms_args=ms_args,
            grad=grad,
            curvature=(directions or True) if curvature else 0,
            hessian_eigenvalue=hessian_eigenvalue,
            per_layer=per_layer,
        )
    _show(result)
    return result.exit_code


@cli.command()
@click.argument("mapping")
@click.argument("name")
@_verbose
def explain(mapping: str, name: str) -> None:
    """Say why a parameter is matched as it is.

    And what the best other choice was, and how far behind. NAME is a name of either side; a * in it stands for any
    characters.

    \b
    Example:
      automap explain mapping.json layer1.0.conv1.weight
      automap explain mapping.json 'layer1.*.weight'
    """
    from automap.mapping import Mapping
    from automap.report import explain as explain_name

    click.echo(explain_name(Mapping.read(mapping), name, mapping))


@cli.command(epilog="Exit status: 0 no difference; 1 they differ; 2 bad usage or input.")
@click.argument("a")
@click.argument("b")
@_verbose
def diff(a: str, b: str) -> int:
    """Say what differs between two mappings.

    \b
    Example:
      automap diff mapping.old.json mapping.json
    """
    from automap.mapping import Mapping
    from automap.report import differences

    found = differences(Mapping.read(a), Mapping.read(b), (a, b))
    click.echo(str(found))
    return 1 if found.changes else 0


@cli.command(epilog="Exit status: 0 no drift, or accepted; 1 drift; 2 bad usage or input.")
@click.argument("lock")
@click.option("--update", is_flag=True, help="Accept what drifted: the lock is written anew.")
@click.option("--junit", metavar="F.xml", callback=_file(".xml", dash=False), help="Write the result as JUnit's XML.")
@_verbose
def check(lock: str, update: bool, junit: str | None) -> int:
    """Check a lock file: tell what drifted.

    The mapping is inferred and the networks are run again, as the lock file says. automap infer --lock
    writes it.

    \b
    Example:
      automap check automap.lock --junit automap.xml
    """
    from automap.regression import check as check_lock
    from automap.regression import junit_xml

    with _working(f"Checking {lock}"):
        report = check_lock(lock, update)
    if junit is not None:
        _write(junit_xml([report]), junit)
    _show(report)
    return report.exit_code
