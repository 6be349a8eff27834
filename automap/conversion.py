"""Conversion: a mapping carried out on tensors. Every check comes before the first tensor is handed out or written.

``apply`` turns a state dict into another, ``load`` puts it into a network and looks whether it arrived, ``convert``
does it with files.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from automap import places, sources
from automap.conversion_report import ConversionReport, ConvertReport, LoadReport
from automap.dtypes import Array, is_exact, is_float, is_same, widen
from automap.errors import ConversionError
from automap.executing import in_memory
from automap.fitting import Wishes
from automap.graph import Framework, Listing
from automap.lora import Merge
from automap.mapping import Mapping as ParameterMapping
from automap.planning import MAX_LOST, TITLES, AnyMapping, Planner, as_mapping, open_state
from automap.prefixes import prefix_change, renamed
from automap.specs import framework_of, is_model
from automap.streaming import Options, Progress, checked_name, parse_size, write

#: Which parameters something is done to: True for those that it is meant for, or patterns of names.
Names = bool | str | Sequence[str]

__all__ = [
    "AnyMapping",
    "ConversionReport",
    "ConvertReport",
    "LoadReport",
    "apply",
    "convert",
    "load",
    "prefix_change",
    "renamed",
]


def apply(
    mapping: AnyMapping,
    state_dict: Any,
    *,
    reverse: bool = False,
    framework: str | None = None,
    target: Any = None,
    dtype: object = None,
    allow_nan: bool = False,
    allow_overflow: bool = False,
    max_lost: float = MAX_LOST,
    resize: Names = False,
    pad_vocab: float | Dict[str, float] | None = None,
    cut_vocab: Names = False,
    merge_lora: Any = None,
    report: ConversionReport | None = None,
) -> dict[str, Any]:
    """Convert a state dict.

    Args:
        mapping: a mapping, its file, or a dict of PyTorch names to MindSpore names (None: left out on purpose).
        state_dict: tensors by name, of either framework or NumPy; or a model or checkpoint that has them. A prefix
            that all its names carry, such as ``module.``, and the mapping's do not (or the other way) is no matter.
        reverse: go against the direction of the mapping: for one as ``infer`` makes it, from MindSpore to PyTorch.
        framework: whose tensors to make: ``"mindspore"`` (each a ``Parameter``), ``"torch"``, or ``"numpy"``; by
            default those of the framework whose names come out. NumPy has no bfloat16: it comes as float32, which is
            exact. NumPy arrays are views of the state dict's memory where nothing had to change.
        target: what the result has to fit, checked before anything is made: a ``Listing``, a model, a checkpoint, or
            a dict of names to ``(shape, dtype)``, either of them None where it does not matter. A tensor is cast to
            its dtype there. The target's names may all carry a prefix, too.
        dtype: the dtype of every floating-point tensor made, whatever the target's.
        allow_nan: let tensors pass that hold NaN.
        allow_overflow: let finite values pass that are out of the range of their new dtype.
        max_lost: which part of a tensor's values may turn to zero, or change by more than 1 %, because the new dtype is
            coarse so near to zero. A tensor of which it is more is an error, by name with the numbers.
        resize: interpolate tables of positions whose length differs from the target's: True for those whose names say
            that they are some, or patterns of names, such as ``"*.wpe.weight"``, with the grid where the sizes leave
            it open: ``"pos=1+16x16:32x32"``. Without it, another length is an error.
        pad_vocab: the value to fill new rows with where the target's vocabulary is longer, or patterns of names with a
            value each. Without it, another length is an error.
        cut_vocab: True, or patterns of names: drop the last rows where the target's vocabulary is shorter.
        merge_lora: merge the low-rank adaptations in the state dict into their weights: their alpha, or a dict with
            ``alpha``, ``adapter`` (its name, where there are several) and ``rooted`` (alpha is over the square root of
            the rank). The mapping is then that of the network without them.
        report: filled in with what was changed. Without one, a loss that nobody asked for is warned about.

    Returns:
        The new tensors by name, in the order of the mapping; PyTorch's also under the other names of tied weights.

    Raises:
        ConversionError: at least one tensor is absent, unknown to the mapping, without a counterpart, of a shape that
            cannot be reached, not a number, or out of range; every one of them is named.
        MappingError: the mapping cannot be read, or cannot be reversed.
    """
    filled = ConversionReport() if report is None else report
    wishes = Wishes.of(resize, pad_vocab, cut_vocab)
    planner = Planner(as_mapping(mapping), reverse, target, dtype, allow_nan, allow_overflow, wishes, filled, max_lost)
    if framework not in (None, "numpy", *TITLES):
        raise ConversionError(f"there is no framework {framework!r}: there are mindspore, torch and numpy")
    arrays = in_memory(planner.plan(open_state(state_dict, planner.mapping, Merge.of(merge_lora))))
    out: dict[str, Any] = {}
    framework = framework or planner.mapping.made
    if framework == "numpy":
        for name, array in arrays.items():
            out[name] = widen(array)
            if out[name] is not array:
                filled.casts.setdefault(name, ("bfloat16", "float32"))
    else:
        parameter = _edge("torch" if framework == "torch" else "mindspore").parameter
        out = {name: parameter(array, name) for name, array in arrays.items()}
    rounded = (old for old, new in filled.casts.values() if not is_exact(old, new))
    unasked = dtype is None and any(map(is_float, rounded))
    if report is None and (unasked or filled.overflow or filled.coarse or filled.underflow):
        warnings.warn(f"apply: {filled} (give report=ConversionReport() to have this as a value)", stacklevel=2)
    return out


def for_a_run(mapping: ParameterMapping, state: Dict[str, Array], target: Listing) -> dict[str, Array]:
    """What a mapping makes of weights that a network is run with: what casts lose, its outputs show.

    Args:
        mapping: its entries have their weights in ``state``.
        state: PyTorch's weights by name.
        target: the MindSpore network's listing.

    Raises:
        ConversionError: as :func:`apply` does, but for what a cast loses.
    """
    report = ConversionReport()  # so that a cast is no warning
    made: dict[str, Array] = apply(
        mapping,
        state,
        framework="numpy",
        target=target,
        report=report,
        allow_nan=True,
        allow_overflow=True,
        max_lost=1.0,
    )
    return made


def load(
    mapping: AnyMapping,
    state_dict: Any,
    net: Any,
    *,
    allow_nan: bool = False,
    allow_overflow: bool = False,
    max_lost: float = MAX_LOST,
    resize: Names = False,
    pad_vocab: float | Dict[str, float] | None = None,
    cut_vocab: Names = False,
    merge_lora: Any = None,
) -> LoadReport:
    """Convert a state dict, load it into a network, and look whether every parameter arrived.

    Args:
        mapping: as for ``apply``; its direction does not matter, the network's framework decides.
        state_dict: as for ``apply``.
        net: a MindSpore ``Cell``, or a PyTorch ``Module`` to go back.
        allow_nan: as for ``apply``.
        allow_overflow: as for ``apply``; a tensor is cast to the dtype it has in the network.
        max_lost: as for ``apply``.
        resize: as for ``apply``; so are the next two.
        pad_vocab: how to fill a longer vocabulary.
        cut_vocab: what may be cut.
        merge_lora: as for ``apply``.

    Raises:
        ConversionError: as for ``apply``, or a parameter did not arrive; in the former case the network is untouched.
        MappingError: the mapping cannot be read, or not be reversed.
    """
    framework = framework_of(net)
    if framework is None or not is_model(net):
        raise ConversionError(f"the network is a {type(net).__name__}: give a mindspore.nn.Cell or a torch.nn.Module")
    mapping, filled = as_mapping(mapping), ConversionReport()
    wishes = Wishes.of(resize, pad_vocab, cut_vocab)
    planner = Planner(
        mapping, mapping.made != framework, net, None, allow_nan, allow_overflow, wishes, filled, max_lost
    )
    arrays = in_memory(planner.plan(open_state(state_dict, planner.mapping, Merge.of(merge_lora))))
    edge = _edge(framework)
    edge.load_state(net, arrays)
    # What the frameworks return is not proof: MindSpore only logs what it did not load.
    held = edge.state_of(net)
    failed = [name for name, array in arrays.items() if not _arrived(array, held.get(name))]
    if failed:
        raise ConversionError(
            f"{len(failed)} of {len(arrays)} parameters did not arrive in the network: {', '.join(failed)}: "
            "load before the network is wrapped, compiled or run, which can rename its parameters",
            [f"{name}: did not arrive in the network" for name in failed],
        )
    return LoadReport(tuple(arrays), filled.not_made, filled)


def convert(
    mapping: AnyMapping,
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    reverse: bool = False,
    dtype: object = None,
    target: Any = None,
    allow_nan: bool = False,
    allow_overflow: bool = False,
    max_lost: float = MAX_LOST,
    resize: Names = False,
    pad_vocab: float | Dict[str, float] | None = None,
    cut_vocab: Names = False,
    merge_lora: Any = None,
    shard_size: str | int | None = None,
    format: str = "safetensors",
    resume: bool = False,
    verify: bool = True,
    scheduler: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    optimizer: str | None = None,
    optimizer_args: Dict[str, Any] | None = None,
    optimizer_names: Sequence[str] | None = None,
    step: int | None = None,
    from_optimizer: str | None = None,
    from_optimizer_args: Dict[str, Any] | None = None,
) -> ConvertReport:
    """Convert a checkpoint, tensor by tensor. The output is made beside its place and appears there when it is whole.

    Everything that names, shapes and types tell is checked before anything is written; what the values tell (NaN, a
    cast out of range) is found on the way, and then there is no output. Memory is needed for the greatest entry, not
    for the checkpoint. A run that was killed leaves a folder ``OUTPUT.automap-partial``.

    Args:
        mapping: as for ``apply``.
        checkpoint: the file to convert, a folder of shards, or their index; or an address that fsspec knows.
        output: the file to write, whose ending says in which format; or a folder for files of a chosen size and their
            index, as Hugging Face and MindSpore read them; or an address of either.
        reverse: as for ``apply``.
        dtype: as for ``apply``.
        target: as for ``apply``.
        allow_nan: as for ``apply``.
        allow_overflow: as for ``apply``.
        max_lost: as for ``apply``.
        resize: as for ``apply``; so are the next two.
        pad_vocab: how to fill a longer vocabulary.
        cut_vocab: what may be cut.
        merge_lora: as for ``apply``.
        shard_size: how many bytes of tensors a file of the folder has at most (``"4GB"``). Without it, there are as
            many files as the checkpoint has.
        format: ``"safetensors"`` or ``"ckpt"``, for the files of the folder.
        resume: go on where a run that was killed has stopped; its files that are complete are checked.
        verify: read every tensor back and compare it before the output appears.
        scheduler: the address of the scheduler of a Dask cluster, whose workers write the files.
        threads: how many threads read and write here; by default one for each processor, four at most.
        progress: called with what is done (``"writing"``, ``"reading back"``), how many bytes of it, and of how many.
        optimizer: take the state of the optimizer over, too, which the checkpoint holds beside the network's: a factory
            of the optimizer that goes on (``./train.py:make``), or its class: MindSpore's ``"Momentum"``, PyTorch's
            ``"SGD"``. A PyTorch checkpoint has ``optimizer.state_dict()`` under ``optimizer`` then, and the network's
            state dict under ``model``. On the way to MindSpore a loss scale in the checkpoint is taken over with it.
        optimizer_args: keyword arguments for that factory, or for PyTorch's class.
        optimizer_names: as ``names`` of ``apply_optimizer``.
        step: as for ``apply_optimizer``.
        from_optimizer: on the way to PyTorch: the MindSpore optimizer that the state is of, as a factory, which tells
            its groups and settings, or as the name of its class; without it, the names of the states tell its class.
        from_optimizer_args: keyword arguments for that factory.

    Raises:
        ConversionError: as for ``apply`` and ``apply_optimizer``, or the output is not what was written. There is no
            output then.
        MappingError: the mapping cannot be read, or cannot be reversed.
        SourceError: the checkpoint cannot be read, or the output not be written.
    """
    source_path, where = os.fspath(checkpoint), os.fspath(output)
    if _is_one(source_path, where):
        raise ConversionError(f"{output}: the output is the checkpoint itself: give it another name")
    if format not in ("safetensors", "ckpt"):
        raise ConversionError(f"there is no format {format!r} for files in a folder: there are safetensors and ckpt")
    wishes = Wishes.of(resize, pad_vocab, cut_vocab)
    planner = Planner(as_mapping(mapping), reverse, target, dtype, allow_nan, allow_overflow, wishes, max_lost=max_lost)
    options = Options(
        None if shard_size is None else parse_size(shard_size),
        f".{format}",
        resume,
        verify,
        scheduler,
        threads or min(4, os.cpu_count() or 1),
        progress,
    )
    checked_name(where, options.suffix, planner.mapping.made)
    plan = planner.plan(open_state(source_path, planner.mapping, Merge.of(merge_lora)))
    if optimizer is None:
        return write(plan, source_path, where, planner.mapping.needs_review, options)
    from automap.loss_scale_files import with_loss_scale
    from automap.optimizer_files import Wanted, with_optimizer

    plan.faults.check()
    wanted = Wanted(optimizer, optimizer_args or {}, optimizer_names, step, from_optimizer, from_optimizer_args or {})
    plan, carried = with_optimizer(plan, planner.mapping, source_path, where, wanted, target)
    plan, scale = with_loss_scale(plan, source_path)
    review = planner.mapping.needs_review or carried.needs_review or (scale is not None and scale.needs_review)
    return replace(write(plan, source_path, where, review, options), optimizer=carried, loss_scale=scale)


def _is_one(checkpoint: str, output: str) -> bool:
    if places.is_address(checkpoint) or places.is_address(output):
        return checkpoint.rstrip("/") == output.rstrip("/")
    if not os.path.exists(output) or not os.path.exists(checkpoint):
        return False
    here = os.path.realpath(checkpoint)
    return os.path.samefile(output, checkpoint) or os.path.realpath(output) == os.path.dirname(here)


def _edge(framework: Framework) -> Any:
    return sources._edge(framework, "the conversion")


def _arrived(array: Array, held: Array | None) -> bool:
    return held is not None and is_same(array, held)
