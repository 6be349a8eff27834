"""Draws the losses of two runs: ``python docs/plot_training.py pytorch.csv mindspore.csv losses.svg``.

A file has a step and a loss in each line. With ``--only-say`` it only says how far the runs are apart, and needs no
matplotlib.
"""

from __future__ import annotations

import sys

import numpy as np


def main(args: list[str]) -> None:
    ours, theirs = (dict(np.loadtxt(path, delimiter=",")) for path in args[-2:] if path.endswith(".csv"))
    steps = sorted(ours.keys() & theirs.keys())
    apart = [abs(ours[s] - theirs[s]) for s in steps]
    sys.stdout.write(
        f"steps {steps[0]:.0f} to {steps[-1]:.0f}: the losses differ by {np.max(apart):.1e} at most, "
        f"{np.median(apart):.1e} in the middle\n"
    )


def draw(pytorch: str, mindspore: str, output: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "training"
    from matplotlib import pyplot

    ours, theirs = (np.loadtxt(path, delimiter=",") for path in (pytorch, mindspore))
    figure, (whole, near, apart) = pyplot.subplots(
        1, 3, figsize=(11, 3.2), width_ratios=(1.1, 1.3, 1), layout="constrained"
    )
    start = theirs[0, 0] - 1
    later = ours[ours[:, 0] > start]
    for axes, run in ((whole, ours), (near, later)):
        axes.plot(run[:, 0], run[:, 1], color="#e4572e", lw=2.6, label="PyTorch")
        axes.plot(theirs[:, 0], theirs[:, 1], color="#17324d", lw=1.1, ls=(0, (3, 2)), label="MindSpore")
        axes.set(xlabel="step", ylabel="training loss")
    whole.set(yscale="log", title="the whole run")
    whole.axvline(start, color="0.6", lw=0.8)
    small = {"textcoords": "offset points", "ha": "right", "color": "0.4", "fontsize": 8}
    whole.annotate("checkpoint", (start, 1.0), (-4, 0), **small)
    near.set(title="from the checkpoint on", ylim=(0, 1.25 * later[:, 1].max()))
    near.legend(frameon=False, loc="upper right", ncols=2)
    apart.semilogy(theirs[:, 0], np.maximum(np.abs(later[:, 1] - theirs[:, 1]), 1e-10), color="0.3", lw=1.2)
    apart.axhline(1e-3, color="0.6", lw=0.8)
    apart.annotate(
        "1e-3", (theirs[-1, 0], 1e-3), (0, 2), textcoords="offset points", ha="right", color="0.4", fontsize=8
    )
    apart.set(title="difference of the losses", xlabel="step", ylim=(1e-9, 1e-2))
    for axes in (whole, near, apart):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    if "--only-say" in sys.argv:
        main(sys.argv[1:])
    else:
        draw(*sys.argv[1:])
