"""Records a PyTorch network in a trace file. Only PyTorch is needed, and only while it runs."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from automap import __version__, precision, sources, trace_file
from automap.activations import Activations
from automap.comparison import TOLERANCE
from automap.dtypes import Array
from automap.errors import InputError, NotRunnableError, SourceError
from automap.graph import Listing
from automap.outline import Step
from automap.power import Weight
from automap.probing import InputsLike, Probe, open_inputs
from automap.running import NOISE_BINS, Forward
from automap.seeding import seeded_weights
from automap.trace_file import Record, TraceSource, greatest, tolerated
from automap.weights import fingerprint, fitting
from automap.witness import RUNS, Feed, Live, guesses

if TYPE_CHECKING:
    from automap.torch_runner import Runner

#: How far MindSpore's kernels are typically off, relative to the value where that exceeds one: by names in ATen, for
#: arguments from 0 to 1, from 1 to 2 and so on, whatever their sign. The kernels cannot be asked here, where MindSpore
#: need not be installed. Other operations are as good as rounding.
TYPICAL_NOISE = {
    "tanh": (1.2e-7, 2e-7, 1e-6, 1.2e-5, 1e-4, 1e-4),
    "exp": (3e-6,) * 6,
    "elu": (2.3e-6,) * 6,
    "softplus": (2e-6,) * 6,
}

#: Element types that the port may have; what matters is recorded for the tolerance of each that is coarser.
_KINDS = ("float32", "bfloat16")


def write_trace(
    path: str | Path,
    torch: Any,
    *,
    inputs: InputsLike = None,
    weights: Any = None,
    seed: int = 0,
    activations: bool = False,
    torch_forward: Forward | None = None,
    torch_args: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> TraceSource:
    """Run a PyTorch network, and write down what its counterpart in MindSpore has to see.

    Where only MindSpore is installed, ``automap.infer("net.trace", port)`` then identifies the port's parameters and
    proves the mapping. The network is left as it was.

    Args:
        path: the file to write, ending in ``.trace``.
        torch: the network, or what gives one, as for :func:`automap.infer`.
        inputs: what it is run on, as for :func:`automap.infer`; guessed from the first layer without it.
        weights: a checkpoint or state dict to run it on. It has to be given again beside the trace. Without it, the
            weights are a function of the seed and the names.
        seed: of the weights and inputs of the first run; the next number is that of the second one.
        activations: keep what every module saw and gave, too. The file is much larger then; it shows more where the
            networks differ.
        torch_forward: called as ``forward(model, *inputs)`` instead of the network.
        torch_args: keyword arguments for a factory.
        progress: is told in words what is being done.

    Returns:
        The trace, read back.

    Raises:
        SourceError: there is no network that can run, or the file cannot be written.
        InputError: inputs that are not understood, that the network does not take, or that cannot be guessed.
        ConversionError: weights that lack a parameter.
        NotRunnableError: the network cannot run here.
    """
    if Path(path).suffix.lower() != ".trace":
        raise SourceError(f"{path} is no name for a trace: end it in .trace", str(path))
    source = sources.open_source(torch, "torch", torch_args)
    listing = source.listing()
    model = source.model()
    if model is None:
        raise SourceError(f"{source.text} is no PyTorch network that can run: give a class or factory", source.text)
    from automap import torch_runner

    given = None if weights is None else fitting(weights, listing)[0]
    runner = torch_runner.Runner(model)
    say = progress or (lambda words: None)
    probe = open_inputs(inputs)
    refused: InputError | None = None
    for attempt in [probe] if probe is not None else guesses(listing, runner, torch_forward):

        def record(runner: Runner, attempt: Probe = attempt) -> None:
            ran = precision.ran_as(listing, runner.dtype)
            live = Live(runner, ran, attempt, seed, given, torch_forward, typical_noise, ())
            _Recording(live, runner, listing, attempt, given, say).write(path, activations)

        try:
            if not _in_float32(runner, record):
                record(runner)
            return TraceSource(path)
        except InputError as error:
            if probe is not None:
                raise
            refused = refused or error
    why = "no layer of the network tells what it takes" if refused is None else f"no guess fits ({refused})"
    raise InputError(f"no input is given, and {why}: give them, as in --input 'float32[2,3,224,224]'")


def _in_float32(runner: Runner, record: Callable[[Runner], None]) -> bool:
    """Record a network of low precision in float32; whether that was possible."""
    if not runner.narrow:
        return False
    with runner.wide() as wide:
        try:
            record(wide)
        except (InputError, NotRunnableError):
            return False
        return not wide.low


def typical_noise() -> dict[str, Array]:
    """:data:`TYPICAL_NOISE` in the form of :func:`automap.mindspore_runner.kernel_noise`."""
    half = NOISE_BINS // 2
    upper = {name: np.repeat(sizes, half // len(sizes)).astype(np.float32) for name, sizes in TYPICAL_NOISE.items()}
    return {name: np.concatenate([sizes[::-1], sizes]) for name, sizes in upper.items()}


class _Recording:
    """One network's runs."""

    def __init__(
        self,
        live: Live,
        runner: Runner,
        listing: Listing,
        probe: Probe,
        given: dict[str, Array] | None,
        say: Callable[[str], None],
    ) -> None:
        self.live, self.runner, self.listing, self.probe, self.given, self.say = (
            live, runner, listing, probe, given, say,
        )  # fmt: skip

    def write(self, path: str | Path, activations: bool) -> None:
        outputs: list[Any] = []
        settled: list[dict[str, float]] = []
        spreads: list[dict[str, float]] = []
        own: dict[str, Array] = {}
        weight: dict[str, Weight] = {}
        ran = precision.ran_as(self.listing, self.runner.dtype)
        first = seeded_weights(ran, self.live.seeds[0]) if self.given is None else self.given
        kept: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] | None = None
        steps: tuple[Step, ...] = ()
        with Activations() as file:
            members: dict[str, Callable[[], Array]] = {}
            for run in range(RUNS):
                self.say(f"Running the network, {run + 1} of {RUNS}")
                with self.live.testimony(run) as testimony:
                    outputs.append(testimony.outputs)
                    settled.append(dict(self.runner.settled))
                    spreads.append(self.live.account().spread if run == 0 else self.live.spread(testimony))
                    if run == 0:
                        own = {p.name: self.runner.value(p.name).copy() for p in self.listing if p.name not in first}
                        steps = self.live.outline()
                        feed = self.live.feed(file) if activations else None
                        if feed is not None:
                            self.say("Keeping what every module saw")
                            kept = _members(feed, len(self.live.account().trace.calls), members)
                    if run == RUNS - 1:
                        self.say("Looking for parameters without an effect")
                        spread = greatest(spreads)
                        weight = {
                            kind: self.live.weight(testimony, functools.partial(tolerated, kind, spread))
                            for kind in _kinds(self.live.dtype)
                        }
            record = Record(
                listing=self.listing,
                dtype=self.live.dtype,
                seeds=self.live.seeds,
                probe=self.probe,
                weights=fingerprint(first),
                given=self.given is not None,
                settled=tuple(settled),
                own=own,
                account=self.live.account(),
                outputs=tuple(outputs),
                spreads=tuple(spreads),
                weight=weight,
                activations=kept,
                steps=steps,
                noise={name: list(sizes) for name, sizes in TYPICAL_NOISE.items()},
                versions={"automap": __version__, "torch": _version("torch"), "numpy": np.__version__},
            )
            self.say("Writing the trace")
            trace_file.write(record, path, members)


def _members(
    feed: Feed, calls: int, members: dict[str, Callable[[], Array]]
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Names for the arrays of every call; equal ones (an output that is another's input) get one."""
    known: dict[str, str] = {}

    def name(call: int, side: int, i: int, array: Array) -> str:
        digest = fingerprint({"": array})
        if digest not in known:
            known[digest] = f"activations/{len(known)}.npy"
            members[known[digest]] = lambda: feed(call)[side][i]
        return known[digest]

    found = []
    for call in range(calls):
        before, after = ([name(call, side, i, a) for i, a in enumerate(x)] for side, x in enumerate(feed(call)))
        found.append((tuple(before), tuple(after)))
    return tuple(found)


def _kinds(dtype: str) -> list[str]:
    """The network's own element type, and those that are coarser."""
    own = dtype if dtype in TOLERANCE else "float32"
    return [own, *(kind for kind in _KINDS if TOLERANCE[kind] > TOLERANCE[own])]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
