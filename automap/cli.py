"""The command ``automap``. Each command parses, calls the library, prints, and returns the exit status.

Frameworks, and whatever else takes time to import, are loaded by the command that needs them: ``--help`` loads none.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import click

from automap import __version__, cli_layers, cli_mappings, cli_models
from automap.cli_options import STATUS, say, verbose
from automap.errors import AutomapError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own by default) and give its exit status. It never raises."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names may have characters that this terminal has not
            stream.reconfigure(errors="backslashreplace")
    args = list(sys.argv[1:] if argv is None else argv)
    wordy = "--verbose" in args
    if argv is None:
        gc.set_threshold(100_000, 50, 50)  # a command makes many values at once and ends: garbage is sought less often
    if argv is None and not wordy:
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
            if wordy:
                traceback.print_exc()
            # Where the user's own code raised, its traceback is what helps.
            raised = error.__cause__ is not None and f" raised {type(error.__cause__).__name__}" in str(error)
            hint = " (--verbose shows the traceback)" if raised and not wordy else ""
            return _fail(f"{error}{hint}", error.exit_code)
        except Exception as error:
            if wordy:
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


@click.group(
    cls=_Group,
    epilog=STATUS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="automap", message="%(prog)s %(version)s")
@verbose
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
        say(context.get_help())
    return 2  # the status of a command counts, where there is one


for _command in (
    cli_models.params,
    cli_models.trace,
    cli_models.infer,
    cli_mappings.convert,
    cli_mappings.validate,
    cli_mappings.explain,
    cli_mappings.diff,
    cli_mappings.check,
    cli_layers.layers,
):
    cli.add_command(_command)
