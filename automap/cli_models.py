"""The commands that take models: ``params``, ``trace``, ``infer``."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from automap.cli_options import (
    STATUS,
    device_given,
    factory_arguments,
    file_to_write,
    given_inputs,
    inputs_given,
    merge_lora_given,
    opened,
    say,
    seed_given,
    torch_arguments,
    verbose,
    working,
    write,
)

if TYPE_CHECKING:
    from automap.graph import Framework
    from automap.mapping import Mapping


@click.command()
@click.argument("source")
@click.option(
    "-o",
    "--output",
    metavar="F.csv|F.json|-",
    callback=file_to_write(".csv", ".json"),
    help="Write the listing here; - writes JSON to the standard output. Without it, a table is shown.",
)
@click.option(
    "--framework",
    type=click.Choice(["torch", "mindspore"]),
    help="Where the source does not tell: a .csv, or .safetensors without metadata.",
)
@factory_arguments
@verbose
def params(
    source: str,
    output: str | None,
    framework: Framework | None,
    torch_args: dict[str, Any],
    ms_args: dict[str, Any],
) -> None:
    """List the parameters of one model, in order.

    SOURCE is a class or factory (package.module:name, ./net.py:build), a checkpoint, a listing or a trace.

    \b
    Example:
      automap params torchvision.models:resnet50 --torch-arg num_classes=3 -o torch.json
    """
    from automap.listing_files import FRAMEWORK_NAMES, listing_to_csv, listing_to_json
    from automap.report import table

    with working(f"Reading {source}"):
        listing = opened(source, framework, torch_args | ms_args).listing()
    if output is None:
        click.echo(table(listing))
    else:
        write(listing_to_csv(listing) if output.lower().endswith(".csv") else listing_to_json(listing), output)
    written = "" if output in (None, "-") else f", written to {output}"
    say(f"{len(listing)} {FRAMEWORK_NAMES[listing.framework]} parameter{'s' * (len(listing) != 1)}{written}")


@click.command(epilog=STATUS)
@click.argument("source")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="F.trace",
    callback=file_to_write(".trace", dash=False),
    help="The file to write.",
)
@inputs_given
@click.option("--weights", metavar="F", help="Run it on this checkpoint, not on seeded weights.")
@click.option(
    "--activations",
    is_flag=True,
    help="Keep what every module saw and gave, too: a large file, which tells more where the networks differ.",
)
@seed_given
@torch_arguments
@verbose
def trace(
    source: str,
    output: str,
    inputs: tuple[str, ...],
    inputs_file: str | None,
    weights: str | None,
    activations: bool,
    seed: int,
    torch_args: dict[str, Any],
) -> None:
    """Run a PyTorch network, and record what its port has to see.

    Only PyTorch is needed. Take the file to where MindSpore is, and give it to automap infer in place of the network.
    SOURCE is a class or factory (package.module:name, ./net.py:build).

    \b
    Example:
      automap trace torchvision.models:resnet50 -o resnet50.trace
      automap infer resnet50.trace ./resnet_ms.py:build
    """
    from automap.trace_writer import write_trace

    given = given_inputs(inputs, inputs_file)
    with working(f"Reading {source}") as progress:
        made = write_trace(
            output,
            opened(source, "torch", torch_args),
            inputs=given,
            weights=weights,
            seed=seed,
            activations=activations,
            progress=progress,
        )
    say(made.describe())
    if given is None:
        say("the inputs are a guess from the first layer that tells; give your own with --input")
    say(f"wrote {output}, {math.ceil(os.path.getsize(output) / 1000):,} kB")


@click.command(epilog=STATUS)
@click.argument("torch")
@click.argument("mindspore")
@click.option(
    "-o",
    "--output",
    default="mapping.json",
    show_default=True,
    metavar="F.json|F.csv|-",
    callback=file_to_write(".json", ".csv"),
    help="Where the mapping goes; - writes JSON to the standard output.",
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="T=M",
    help="A PyTorch name and its MindSpore name, or patterns with *, that must be matched; several names with commas "
    "between them are joined in that order. Repeatable.",
)
@factory_arguments
@inputs_given
@click.option("--weights", metavar="F", help="Run both networks on this PyTorch checkpoint, not on seeded weights.")
@click.option("--static", is_flag=True, help="Do not run the networks: listings decide alone.")
@click.option("--trace", is_flag=True, help="Demand that the networks are run; without it, they are if they can.")
@click.option("--ignore-names", is_flag=True, help="Names are no evidence.")
@merge_lora_given
@seed_given
@click.option(
    "--report", metavar="F.html", callback=file_to_write(".html", ".htm", dash=False), help="Write a page about it."
)
@click.option(
    "--lock",
    metavar="F",
    callback=file_to_write(dash=False),
    help="Run both networks too, and write a lock for automap check.",
)
@device_given
@verbose
def infer(
    torch: str,
    mindspore: str,
    output: str,
    pins: tuple[str, ...],
    torch_args: dict[str, Any],
    ms_args: dict[str, Any],
    inputs: tuple[str, ...],
    inputs_file: str | None,
    weights: str | None,
    static: bool,
    trace: bool,
    ignore_names: bool,
    merge_lora: str | None,
    seed: int,
    report: str | None,
    lock: str | None,
) -> int:
    """Infer which parameter becomes which.

    TORCH and MINDSPORE are each a class or factory (package.module:name, ./net.py:build), a checkpoint (.pth .pt .bin
    .safetensors; .ckpt .safetensors) or a listing (.json .csv). Two networks are run, too, which settles what names
    and shapes leave open and proves the rest. The .trace of a PyTorch network will do in place of it.

    \b
    Example:
      automap infer torchvision.models:resnet50 ./resnet_ms.py:build --report report.html
      automap infer torch.csv ms.csv -o mapping.csv --pin 'head.*=classifier.*'
    """
    from automap.inference import infer as infer_mapping
    from automap.report import summary, to_html

    given = given_inputs(inputs, inputs_file)
    if static and (trace or weights is not None or (given is not None and lock is None)):
        useless = "--trace" if trace else "--weights" if weights is not None else "--input"
        raise click.UsageError(f"--static runs nothing, so {useless} is of no use with it")
    if weights is not None and lock is not None:
        raise click.UsageError("a lock is checked with seeded weights, so --weights is of no use with --lock")
    if merge_lora is not None and lock is not None:
        raise click.UsageError("a lock holds both networks as they are, so --merge-lora is of no use with --lock")
    _check_apart(output, torch, mindspore)
    with working(f"Reading {torch}"):
        left = opened(torch, "torch", torch_args)
    with working(f"Reading {mindspore}"):
        right = opened(mindspore, "mindspore", ms_args)
    counts = f"{len(left.listing())} PyTorch and {len(right.listing())} MindSpore parameters"
    with working(f"Matching {counts}") as progress:
        mapping = infer_mapping(
            left,
            right,
            inputs=given,
            pins=pins,
            static=static,
            trace=trace,
            ignore_names=ignore_names,
            seed=seed,
            weights=weights,
            merge_lora=merge_lora,
            progress=progress,
        )
    if output == "-":
        write(mapping.to_json(), output)
    else:
        mapping.write(output)
    say(_highlighted(summary(mapping), mapping))
    say("")
    if output != "-":
        say(f"wrote {output}")
    if report is not None:
        write(to_html(mapping), report)
        say(f"wrote {report}")
    status = None if mapping.proof is None else mapping.proof.exit_code
    if lock is not None:
        from automap.regression import write_lock

        with working("Running both networks for the lock"):
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
        status = locked.exit_code if status is None else status
        say(f"wrote {lock}" + (f": {locked.verdict}" if locked.verdict else ""))
    for line in _next_steps(mapping, output, torch, mindspore, proven=status == 0):
        say(line)
    return 1 if mapping.needs_review else status or 0


def _highlighted(words: str, mapping: Mapping) -> str:
    """The counts stand out on a terminal; click takes the colours away elsewhere."""
    color = {
        "matched": "green",
        "proven": "green",
        "not proven": "yellow",
        "the networks differ": "yellow",
        "to review": "yellow" if mapping.needs_review else "green",
        "unmatched": "cyan",
    }
    lines = []
    for line in words.split("\n"):
        found = next((c for start, c in color.items() if line.startswith((f"{start} ", f"{start}:"))), None)
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
    if doubtful := _first_to_review(mapping):
        name, pin = doubtful
        steps.append(("why something needs review", f"automap explain {file} {shlex.quote(name)}"))
        steps.append(("settle it", f"automap infer … --pin {shlex.quote(pin)}"))
    both = f"{shlex.quote(torch)} {shlex.quote(mindspore)}"
    status = "" if mapping.proof is None else mapping.proof.status
    if doubtful and not status:  # what listings cannot tell, a run of both networks mostly does
        places = (torch, "PACKAGE.MODULE:NETWORK"), (mindspore, "./PORT.py:NETWORK")
        live = [shlex.quote(s) if ":" in s and "://" not in s else words for s, words in places]
        steps.append(("let running both tell", f"automap infer {' '.join(live)}"))
    if not proven and status != "differs" and all(":" in source for source in (torch, mindspore)):
        what, flag = ("find out what differs", " --per-layer") if status == "open" else ("run both networks", "")
        steps.append((what, f"automap validate {file} {both}{flag}"))
    if status == "open" and torch.endswith(".trace"):
        steps.append(("see past what differs", f"automap trace … -o {shlex.quote(torch)} --activations"))
    if not mapping.needs_review:
        checkpoint = torch if torch.endswith((".pth", ".pt", ".bin", ".safetensors")) else "CHECKPOINT.pth"
        target = shlex.quote(f"{Path(checkpoint).stem}.ckpt")
        steps.append(("convert", f"automap convert {file} {shlex.quote(checkpoint)} -o {target}"))
    width = max(len(what) for what, _ in steps)
    return ["", "next:", *(f"  {what:<{width}}  {command}" for what, command in steps)]


#: Names of a joined entry that are still offered as a pin.
SHORT = 6


def _first_to_review(mapping: Mapping) -> tuple[str, str] | None:
    """The first name that a person has to look at, and a pin that would settle it."""
    for entry in mapping.reviewed:
        several = 2 < len(entry.torch) + len(entry.mindspore) <= SHORT
        pin = f"{','.join(entry.torch)}={','.join(entry.mindspore)}" if several else f"{entry.torch[0]}=NAME"
        return entry.torch[0], pin
    for item in mapping.unmatched_torch:
        if item.review:
            return item.name, f"{item.name}=NAME"
    for item in mapping.unmatched_mindspore:
        if item.review:
            return item.name, f"NAME={item.name}"
    return None
