"""The command ``layers``: what the frameworks' own layers call their parameters."""

from __future__ import annotations

import click

from automap.cli_options import show, verbose, write


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Write JSON to the standard output.")
@verbose
def layers(name: str | None, as_json: bool) -> None:
    """Show how PyTorch's layers and MindSpore's compare.

    The parameters of every torch.nn layer and of its counterparts in mindspore.nn and mindspore.mint.nn: names,
    order, shapes, defaults that differ. NAME is a layer of either framework; with it, every fact is shown.

    \b
    Example:
      automap layers nn.Conv1d
      automap layers --json
    """
    from automap.layer_report import Facts, Overview, to_json
    from automap.layer_table import find, rows

    found = rows() if name is None else find(name)
    if as_json:
        write(to_json(found), "-")
    else:
        show(Overview(found) if name is None else Facts(found))
