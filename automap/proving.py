"""Which networks a proof runs, on what and in which precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from automap import precision
from automap.arrangements import Way
from automap.errors import AutomapError, InputError, NotRunnableError
from automap.evidence import Proof
from automap.graph import Listing, Param
from automap.mapping import Mapping
from automap.precision import Narrow
from automap.probing import Probe, open_inputs
from automap.proof import Prover, Request, Settle
from automap.seeding import seeded_weights
from automap.trace_file import TraceSource
from automap.witness import Live, guesses

if TYPE_CHECKING:
    from automap.sources import Source


def prove(torch: Source, mindspore: Source, static: Mapping, settle: Settle, request: Request) -> Mapping:
    """The mapping as running both networks settles and proves it.

    Networks of low precision are run in float32, unless they compute in low precision all the same and do not agree.

    Raises:
        InputError: inputs that are not understood, or that a network does not take.
    """
    # The listings first: running a network may rename its parameters.
    listing, target = torch.listing(), mindspore.listing()
    # Imported only now that they are needed anyway; a trace needs one framework only.
    from automap import mindspore_runner

    try:
        port = mindspore_runner.Runner(mindspore.model())
        if isinstance(torch, TraceSource):
            ours: Any = torch
        else:
            from automap import torch_runner

            ours = torch_runner.Runner(torch.model())
        known = listing.by_name, target.by_name
        sides = _Sides(
            ours, port, listing, target, static, lambda ways: settle(_listed(ways, *known)), request,
            mindspore_runner.kernel_noise,
        )  # fmt: skip
        return sides.proven()
    except NotRunnableError as error:
        return replace(static, proof=Proof("not run", str(error)))


@dataclass(frozen=True)
class _Sides:
    """Both networks of a proof; ``torch`` is a runner, or a trace."""

    torch: Any
    port: Any
    listing: Listing
    target: Listing
    static: Mapping
    settle: Settle
    request: Request
    kernel_noise: Callable[[], Any]

    def proven(self) -> Mapping:
        """The mapping, by a run in float32 where that tells more.

        Raises:
            InputError: inputs that are not understood, or that a network does not take.
            NotRunnableError: a network cannot run here.
        """
        narrow = Narrow.of(self.torch, self.port)
        # A run in low precision that was recorded says nothing of one in float32.
        recorded = isinstance(self.torch, TraceSource) and bool(precision.low(self.torch.record.dtype))
        if narrow and not recorded and (mapping := self.in_float32()) is not None:
            return mapping
        mapping = self.prove()[0]
        # What autocast does is known only now.
        more = not narrow and not recorded and bool(Narrow.of(self.torch, self.port))
        return (self.in_float32() if more else None) or mapping

    def prove(self) -> tuple[Mapping, Probe | None]:
        """The mapping, and the inputs that both networks took.

        Raises:
            InputError: inputs that are not understood, or that a network does not take.
            NotRunnableError: a network cannot run here.
        """
        request, port = self.request, self.port
        given = open_inputs(request.inputs)
        way = self.target, self.static, self.settle, request
        if isinstance(self.torch, TraceSource):
            return Prover(self.torch.witness(request.weights, (port.dtype,)), port, *way).mapping(), None
        refused = ""
        for probe in [given] if given is not None else guesses(self.listing, self.torch, request.torch_forward):
            live = Live(
                self.torch,
                self.listing,
                probe,
                request.seed,
                request.weights,
                request.torch_forward,
                self.kernel_noise,
                (port.dtype,),
            )
            try:
                return Prover(live, port, *way).mapping(), probe
            except InputError as error:
                if given is not None:
                    raise
                refused = refused or f": {error}"
        why = f"no input is known that both networks take{refused}"
        return replace(self.static, proof=Proof("no input", why)), None

    def in_float32(self) -> Mapping | None:
        """The same with all parameters cast up; None where that is not possible, or is not float32 all the same."""
        recorded = isinstance(self.torch, TraceSource)
        runners = [self.port] if recorded else [self.port, self.torch]
        try:
            with precision.in_float32(*runners) as (port, *others):
                wide = replace(
                    self,
                    torch=others[0] if others else self.torch,
                    port=port,
                    listing=precision.widened(self.listing),
                    target=precision.widened(self.target),
                )
                mapping, probe = wide.prove()
                low = precision.still_low(port, *others)
        except (InputError, NotRunnableError):
            return None
        proven = mapping.proof is not None and mapping.proof.status == "proven"
        if not proven and ((probe is None and not recorded) or low):
            return None
        assert mapping.proof is not None, "a proof was made"
        notes = list(mapping.proof.notes)
        own = None
        if probe is not None and proven:
            self.request.progress("Running both networks in their own precision")
            own = self._own(mapping, probe)
            notes += [r for r in own.remarks if r not in notes]
        words = Narrow.of(self.torch, self.port).words + ("" if own is None else f"; {own.words}")
        notes.insert(0, words)
        return replace(mapping, proof=replace(mapping.proof, notes=tuple(notes)))

    def _own(self, mapping: Mapping, probe: Probe) -> precision.Own:
        request = self.request
        weights = seeded_weights(self.listing, request.seed) if request.weights is None else request.weights
        forwards = request.torch_forward, request.ms_forward
        drawn = probe.draw(request.seed, 0)
        settles = request.weights is None
        sides = self.torch, self.port, self.target
        try:
            return precision.own_run(
                *sides, mapping, drawn, weights, settles, forwards, self.kernel_noise, request.seed
            )
        except AutomapError as error:
            return precision.Own(f"in their own precision nothing was compared ({error})")


def _listed(ways: Sequence[Way], ours: dict[str, Param], theirs: dict[str, Param]) -> list[Way]:
    """What running has settled, of the parameters as they are listed, and not as they were cast to run."""
    return [
        way._replace(
            torch=tuple(ours.get(p.name, p) for p in way.torch),
            mindspore=tuple(theirs.get(p.name, p) for p in way.mindspore),
        )
        for way in ways
    ]
