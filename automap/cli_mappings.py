"""The commands that take a mapping or a lock: ``convert``, ``validate``, ``explain``, ``diff``, ``check``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from automap.cli_options import (
    STATUS,
    counting,
    device_given,
    factory_arguments,
    file_to_write,
    fitting_given,
    given_inputs,
    inputs_given,
    lines_of_file,
    merge_lora_given,
    say,
    seed_given,
    show,
    training_given,
    verbose,
    working,
    write,
)

_CHECKPOINTS = (".ckpt", ".safetensors", ".pth", ".pt", ".bin")


def _file_or_folder(context: click.Context, option: click.Parameter, path: str) -> str:
    """A check of the output, made before the work."""
    from automap.places import is_address
    from automap.streaming import is_folder

    if is_address(path):
        return path
    if not is_folder(path):
        file_to_write(*_CHECKPOINTS, dash=False)(context, option, path)
    elif not Path(path).absolute().parent.is_dir():
        raise click.BadParameter(f"{path} cannot be written: there is no folder {Path(path).parent}")
    return path


@contextlib.contextmanager
def resumable(output: str) -> Iterator[None]:
    """Say what is left where the user interrupts a conversion."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            f"interrupted: what is complete is in {output.rstrip('/')}.automap-partial, and --resume goes on from there"
        )
        raise


@click.command(epilog=STATUS)
@click.argument("mapping")
@click.argument("checkpoint")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    callback=_file_or_folder,
    help="The file to write, whose ending says in which format; or, without an ending, a folder for several.",
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
@click.option(
    "--max-lost",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    metavar="PART",
    help="Which part of a tensor's values may turn to zero, or change by more than 1 %, in its new type.",
)
@fitting_given
@merge_lora_given
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="How much a file of the folder holds at most (4GB, 500MB); without it, the files are those of CHECKPOINT.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["safetensors", "ckpt"]),
    default="safetensors",
    show_default=True,
    help="Of the files in the folder.",
)
@click.option(
    "--optimizer",
    metavar="NEW",
    help="Take the state of the optimizer over, too. NEW is the one that goes on: a factory (./train.py:make), or its "
    "class (Momentum, Adam, experimental.AdamW; with --reverse SGD, AdamW).",
)
@click.option(
    "--optimizer-names",
    metavar="F",
    help="PyTorch's parameter names in the order in which its optimizer has them, one a line, where they are not told.",
)
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="How many steps were made; SGD does not count.")
@click.option(
    "--from-optimizer",
    metavar="MS",
    help="With --reverse: the MindSpore optimizer that the state is of: a factory, for its groups and settings, or its "
    "class. Without it, the names of the states tell the class.",
)
@factory_arguments
@click.option("--resume", is_flag=True, help="Go on where a run that was interrupted has stopped.")
@click.option("--no-verify", is_flag=True, help="Do not read back and compare what was written.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Let the workers of a Dask cluster write the files, such as tcp://host:8786."
)
@verbose
def convert(
    mapping: str,
    checkpoint: str,
    output: str,
    reverse: bool,
    dtype: str | None,
    target: str | None,
    allow_nan: bool,
    allow_overflow: bool,
    max_lost: float,
    resize: bool,
    resize_as: tuple[str, ...],
    pad_vocab: dict[str, float] | None,
    cut_vocab: bool,
    merge_lora: str | None,
    shard_size: str | None,
    file_format: str,
    optimizer: str | None,
    optimizer_names: str | None,
    step: int | None,
    from_optimizer: str | None,
    torch_args: dict[str, Any],
    ms_args: dict[str, Any],
    resume: bool,
    no_verify: bool,
    scheduler: str | None,
) -> int:
    """Convert a checkpoint with a mapping.

    Every tensor written is read back and compared. MAPPING is what automap infer wrote. CHECKPOINT is .pth
    .pt .bin or .safetensors; with --reverse .ckpt or .safetensors; or a folder of such files, or its index.
    It is read tensor by tensor and may be larger than memory. Both may be addresses (s3://…).

    \b
    Example:
      automap convert mapping.json resnet50.pth -o resnet50.ckpt
      automap convert mapping.json tuned.ckpt -o tuned.pth --reverse
      automap convert mapping.json resnet50.pth -o resnet50.ckpt --optimizer ./train.py:make_optimizer
      automap convert mapping.json tuned.ckpt -o tuned.pth --reverse --optimizer SGD --torch-arg momentum=0.9
      automap convert mapping.json hf-folder/ -o ms-folder/ --shard-size 4GB
      automap convert mapping.json hf-folder/ -o ms-folder/ --shard-size 4GB --resume
      automap convert mapping.json s3://bucket/model/ -o s3://bucket/ms/ --scheduler tcp://host:8786
    """
    from automap.conversion import convert as convert_file
    from automap.mapping import Mapping
    from automap.report import lines_of_names

    if optimizer is None and (optimizer_names or step is not None or ms_args or torch_args or from_optimizer):
        flags = "--optimizer-names, --step, --from-optimizer, --torch-arg and --ms-arg"
        raise click.UsageError(f"{flags} are of use with --optimizer only")
    if from_optimizer is not None and not reverse:
        raise click.UsageError("--from-optimizer is of use with --reverse only")
    if (ms_args and reverse and from_optimizer is None) or (torch_args and not reverse):
        raise click.UsageError("--torch-arg is for PyTorch's optimizer (--reverse), --ms-arg for MindSpore's factory")
    read = Mapping.read(mapping)
    names = None if optimizer_names is None else lines_of_file(optimizer_names)
    with counting(f"Converting {checkpoint}") as progress, resumable(output):
        report = convert_file(
            read,
            checkpoint,
            output,
            reverse=reverse,
            dtype=dtype,
            target=target,
            allow_nan=allow_nan,
            allow_overflow=allow_overflow,
            max_lost=max_lost,
            resize=[*resize_as, ""] if resize else resize_as,
            pad_vocab=pad_vocab,
            cut_vocab=cut_vocab,
            merge_lora=merge_lora,
            shard_size=shard_size,
            format=file_format,
            resume=resume,
            verify=not no_verify,
            scheduler=scheduler,
            progress=progress,
            optimizer=optimizer,
            optimizer_args=torch_args if reverse else ms_args,
            optimizer_names=names,
            step=step,
            from_optimizer=from_optimizer,
            from_optimizer_args=ms_args if reverse else {},
        )
    say(str(report))
    given, made = (read.made, read.given) if reverse else (read.given, read.made)
    for what, reasons, side in (
        ("left out", report.conversion.left_out, given),
        ("not made", report.conversion.not_made, made),
    ):
        if reasons:
            say("\n".join([f"{what} {len(reasons)}:", *lines_of_names(reasons, read.names(side))]))
    if report.optimizer is not None:
        say(f"optimizer {report.optimizer}")
        if report.loss_scale is not None:
            say(f"loss scale {report.loss_scale}")
    else:
        for note in report.conversion.notes:
            if "--optimizer" in note:
                say(note)
    if read.needs_review:
        say(f"something in {mapping} is marked for review: automap explain {mapping} NAME says why")
    return 1 if report.needs_review else 0


@click.command(epilog=STATUS)
@click.argument("mapping")
@click.argument("torch")
@click.argument("mindspore")
@click.option(
    "--weights",
    metavar="F",
    help="A PyTorch checkpoint; without it, seeded weights under which every parameter matters.",
)
@inputs_given
@seed_given
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
@training_given
@factory_arguments
@device_given
@verbose
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
    steps: int | None,
    optimizer: str | None,
    loss: str | None,
    lr: float | None,
    weight_decay: float | None,
    batches: str | None,
    target: str | None,
    go_on: bool,
    from_step: int | None,
    schedule_every: int | None,
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
      automap validate mapping.json net.py:build port.py:build --steps 50 --optimizer momentum --lr 0.02
      automap validate mapping.json net.py:build port.py:build --steps 5 --optimizer net.py:adam,port.py:adam
      automap validate mapping.json net.py:build port.py:build --steps 5 --weights resume.pth --go-on
    """
    from automap.validation import validate as run_both

    training = {
        "--optimizer": optimizer, "--loss": loss, "--lr": lr, "--weight-decay": weight_decay, "--batches": batches,
        "--target": target, "--go-on": go_on or None, "--from-step": from_step, "--schedule-every": schedule_every,
    }  # fmt: skip
    for name, value in training.items():
        if value is not None and steps is None:
            raise click.BadParameter("it is of use with --steps only", param_hint=f"'{name}'")

    if go_on and weights is None:
        raise click.BadParameter("it is of use with --weights only", param_hint="'--go-on'")
    if from_step is not None and not go_on:
        raise click.BadParameter("it is of use with --go-on only", param_hint="'--from-step'")
    if directions is not None and not curvature:
        raise click.BadParameter("it is of use with --curvature only", param_hint="'--directions'")
    given = given_inputs(inputs, inputs_file)
    with working("Running both networks"):
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
            steps=steps or 0,
            loss=loss,
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            batches=batches,
            target=target,
            go_on=go_on,
            step=from_step,
            schedule_every=schedule_every or 1,
        )
    show(result)
    return result.exit_code


@click.command()
@click.argument("mapping")
@click.argument("name")
@verbose
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


@click.command(epilog="Exit status: 0 no difference; 1 they differ; 2 bad usage or input.")
@click.argument("a")
@click.argument("b")
@verbose
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


@click.command(epilog="Exit status: 0 no drift, or accepted; 1 drift; 2 bad usage or input.")
@click.argument("lock")
@click.option("--update", is_flag=True, help="Accept what drifted: the lock is written anew.")
@click.option(
    "--junit", metavar="F.xml", callback=file_to_write(".xml", dash=False), help="Write the result as JUnit's XML."
)
@device_given
@verbose
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

    with working(f"Checking {lock}"):
        report = check_lock(lock, update)
    if junit is not None:
        write(junit_xml([report]), junit)
    show(report)
    return report.exit_code
