"""MindSpore's cells for training: the network inside them."""

from __future__ import annotations

from collections.abc import Iterator

from automap.quiet import quiet_mindspore

quiet_mindspore()

from mindspore import nn  # noqa: E402
from mindspore.experimental import optim as experimental  # noqa: E402

#: Cells whose parameters are states of the training, with all that is below them.
OPTIMIZERS = (nn.Optimizer, experimental.Optimizer)

#: Cells that own a few such beside the network.
TRAINING = (nn.TrainOneStepCell, nn.DynamicLossScaleUpdateCell, nn.FixedLossScaleUpdateCell)


def network_inside(cell: nn.Cell) -> nn.Cell:
    """The network that a cell for training trains, or the cell itself where it is none.

    A cell for training has an optimizer, or is a ``TrainOneStepCell``, and what it trains gives a loss: then that is a
    network and its loss in one, unless it owns trained parameters itself. A cell with one of MindSpore's losses beside
    one network is such as well.
    """
    gives_loss = False
    while True:
        networks = list(_networks(cell))
        trains = isinstance(cell, TRAINING) or any(isinstance(c, OPTIMIZERS) for c in cell.cells())
        joins = gives_loss or isinstance(cell, nn.WithLossCell) or any(isinstance(c, nn.LossBase) for c in cell.cells())
        if len(networks) != 1 or not (trains or joins or _is_shell(cell, networks[0])):
            return cell
        gives_loss = trains
        cell = networks[0]


def _networks(cell: nn.Cell) -> Iterator[nn.Cell]:
    """The children that own parameters of a network; nothing where the cell trains parameters of its own."""
    optimizers = [c for c in cell.cells() if isinstance(c, OPTIMIZERS)]
    states = {id(p) for o in optimizers for p in o.get_parameters()}
    trained = {id(p) for child in cell.cells() for p in child.get_parameters()}
    own = () if isinstance(cell, TRAINING) else cell._params.values()
    if any(p is not None and p.requires_grad and id(p) not in states | trained for p in own):
        return
    seen: set[int] = set()
    for child in cell.cells():
        if child is None or isinstance(child, (*OPTIMIZERS, *TRAINING[1:])) or id(child) in seen:
            continue
        seen.add(id(child))
        if next(iter(child.get_parameters()), None) is not None:
            yield child


def _is_shell(cell: nn.Cell, child: nn.Cell) -> bool:
    """Whether a cell only holds one that trains, and so is a cell for training itself."""
    return isinstance(child, TRAINING) or any(isinstance(c, OPTIMIZERS) for c in child.cells())
