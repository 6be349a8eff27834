"""Validation: both networks run on the same weights and inputs, and their outputs are compared one by one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap import comparison, consultation, conversion, parity, precision, sources
from automap.comparison import TOLERANCE, Comparison
from automap.curvature import DIRECTIONS
from automap.dtypes import Array
from automap.errors import AutomapError, InputError, NotRunnableError, SourceError
from automap.findings import Finding
from automap.gradients import Case, Point
from automap.mapping import Mapping as ParameterMapping
from automap.outcome import Validation
from automap.parity import Wanted
from automap.power import Power, Strength
from automap.probing import InputsLike, Probe, guess_inputs, open_inputs
from automap.relabeling import Links
from automap.running import FRAMEWORK_NAMES, Forward, Inputs, Runner
from automap.seeding import seeded_weights
from automap.training_batches import Wish
from automap.weights import fitting, some

if TYPE_CHECKING:
    from automap.sources import Source

__all__ = ["Validation", "validate"]

#: How many different inputs are drawn, where they are drawn.
DRAWS = 2

#: Where rounding alone moves an output by more than this part of its scale, agreement says little.
_TOO_NOISY = 1e-2


def validate(
    mapping: ParameterMapping | Mapping[str, str | None] | str | Path,
    torch: Any,
    mindspore: Any,
    *,
    inputs: InputsLike = None,
    weights: Any = None,
    seed: int = 0,
    torch_forward: Forward | None = None,
    ms_forward: Forward | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    torch_args: Mapping[str, Any] | None = None,
    ms_args: Mapping[str, Any] | None = None,
    grad: bool = False,
    curvature: int | bool = 0,
    hessian_eigenvalue: bool = False,
    per_layer: bool = False,
    steps: int = 0,
    loss: Any = None,
    optimizer: Any = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    batches: Any = None,
    target: Any = None,
    go_on: bool = False,
    step: int | None = None,
    schedule_every: int = 1,
) -> Validation:
    """Run both networks in inference mode on the same weights and inputs, and compare what they return.

    PyTorch gets the weights, MindSpore what the mapping makes of them. Afterwards both networks are as they were.

    Args:
        mapping: a mapping, its path, or a plain dict of names.
        torch: the PyTorch network, or what gives one (``module:attr``, ``file.py:attr``, a class, a factory).
        mindspore: the MindSpore network, or what gives one.
        inputs: arrays or descriptions (``"int64[2,16]<100"``) by position or keyword, or the path of an ``.npz``
            file. Descriptions are drawn twice. Without any, they are guessed from PyTorch's first layer, and
            ``Validation.assumptions`` says so.
        weights: a PyTorch checkpoint or state dict; without it, seeded ones under which every parameter matters.
        seed: of the weights and the inputs.
        torch_forward: called as ``torch_forward(model, *inputs)`` instead of the network.
        ms_forward: the same for MindSpore.
        rtol: the difference allowed, relative to the greatest value of an output. Without it, a table by element
            type, or what rounding does to this very network, whichever is more.
        atol: a difference allowed on top of that, 0 without it.
        torch_args: keyword arguments for a PyTorch factory.
        ms_args: keyword arguments for a MindSpore factory.
        grad: compare the gradients by every mapped parameter that PyTorch trains, too, for a loss that is the sum of
            the outputs with seeded weights.
        curvature: along how many seeded directions to compare the loss's second derivative, and the gradients; True
            stands for 3.
        hessian_eigenvalue: compare the greatest eigenvalue of the loss's Hessian, and the gradients.
        per_layer: examine the port layer by layer even if the outputs agree; where they do not, it always is.
        steps: how many steps of training to take in both networks, where the outputs agree, and to compare.
        loss: ``"squares"`` (to a seeded target), ``"cross_entropy"`` (with seeded labels), or a pair of PyTorch's and
            MindSpore's own: functions of outputs and target, classes that make one, or their names with a comma.
            Without it, cross entropy for one output of two dimensions.
        optimizer: ``"sgd"`` (without it), ``"momentum"``, ``"adam"``, ``"adamw"``, or a pair of PyTorch's and
            MindSpore's own: functions of the network, classes of optimizers, or their names with a comma. A function
            may give a scheduler of the learning rate as well: ``optimizer, scheduler``.
        lr: the learning rate; by default 0.01, of Adam 0.001.
        weight_decay: of an optimizer that is known by name.
        batches: what to train on: arrays whose first axis counts batches, by name, or their ``.npz`` file; an array
            called ``target`` goes to the loss. Without them, inputs are drawn as the others are.
        target: what a loss is given beside the outputs (``"int64[8]<10"``), where it is not drawn to fit them.
        go_on: begin with the state of the optimizer (and the scheduler) that ``weights`` has beside the network's:
            PyTorch's optimizer loads it, MindSpore's gets it by ``apply_optimizer``. Without ``optimizer`` it is the
            one that the state is of.
        step: how many steps were made before, where that state does not count them (SGD).
        schedule_every: after how many steps the schedulers that the functions for ``optimizer`` give make one.

    Raises:
        InputError: inputs that are not understood, or that a network does not take.
        SourceError: a source that gives no network.
        ConversionError: weights that the mapping cannot convert.
    """
    probe = open_inputs(inputs)
    run = Run(
        _read_mapping(mapping),
        sources.open_source(torch, "torch", torch_args),
        sources.open_source(mindspore, "mindspore", ms_args),
        seed,
        torch_forward,
        ms_forward,
        rtol,
        atol or 0.0,
        Wanted(
            grad,
            DIRECTIONS if curvature is True else int(curvature),
            hessian_eigenvalue,
            Wish.of(steps, loss, optimizer, lr, weight_decay, batches, target, go_on, step, schedule_every),
        ),
        per_layer,
    )
    try:
        narrow = precision.Narrow.of(run.torch, run.mindspore)
        if narrow and (result := _in_float32(run, probe, weights)) is not None:
            return result
        result = run.validate(probe, weights)
        # What autocast does is known only now.
        more = not narrow and bool(precision.Narrow.of(run.torch, run.mindspore))
        return (_in_float32(run, probe, weights) if more else None) or result
    except NotRunnableError as error:
        verdict = f"Nothing was proven: {error}."
        described = () if probe is None else probe.describe()
        return Validation(
            False, verdict, error.exit_code, inputs=described, seed=seed, operation=error.operation or "unknown"
        )


class Run:
    """One validation: the two runners, and what was assumed on the way."""

    def __init__(
        self,
        mapping: ParameterMapping,
        torch: Source,
        mindspore: Source,
        seed: int,
        torch_forward: Forward | None,
        ms_forward: Forward | None,
        rtol: float | None,
        atol: float,
        wanted: Wanted | None = None,
        per_layer: bool = False,
    ) -> None:
        self.mapping, self.per_layer = mapping, per_layer
        self.wanted = Wanted() if wanted is None else wanted
        # The listings first: running a network may rename its parameters.
        self.listing, self.target = torch.listing(), mindspore.listing()
        self.seed = seed
        self.torch_forward, self.ms_forward = torch_forward, ms_forward
        self.rtol, self.atol = rtol, atol
        self.assumptions: list[str] = []
        self.probe: Probe | None = None  # the inputs of the last attempt
        torch_model, ms_model = _model(torch), _model(mindspore)
        # Imported only now that both frameworks are needed anyway.
        from automap import mindspore_runner, torch_runner

        self.torch = torch_runner.Runner(torch_model)
        self.mindspore: Runner = mindspore_runner.Runner(ms_model)
        self.kernel_noise = mindspore_runner.kernel_noise
        self.demanded = demanded(torch_model.forward if torch_forward is None else torch_forward)
        self.demanded -= torch_forward is not None  # the model itself

    def validate(self, probe: Probe | None, weights: Any) -> Validation:
        self.weights = weights
        given = None if weights is None else self.given_weights(weights)
        if probe is not None:
            return self._attempt(probe, given)
        refused: InputError | None = None
        for guess in guess_inputs(self.listing, self.demanded):
            probe = Probe(guess.specs)
            told = list(self.assumptions)
            words = ", ".join(probe.describe())
            self.assumptions.append(f"the inputs are a guess from {guess.reason}: {words}; give your own with --input")
            try:
                return self._attempt(probe, given)
            except InputError as error:
                refused, self.assumptions = refused or error, told
        hint = "give them, as in --input 'float32[2,3,224,224]'"
        if refused is None:
            raise InputError(f"no input is given, and no layer of the PyTorch network tells what it takes: {hint}")
        raise InputError(f"no input is given, and no guess fits ({refused}): {hint}", refused.text)

    def _attempt(self, probe: Probe, given: dict[str, Array] | None) -> Validation:
        self.probe = probe
        drawn = [probe.draw(self.seed, k) for k in range(1 if probe.fixed else DRAWS)]
        with self.torch.holding(seeded_weights(self.listing, self.seed) if given is None else given):
            if given is None:
                self.torch.settle(drawn[0], self.torch_forward)
            state = self.torch.state()
            expected = [self.torch.run(x, self.torch_forward) for x in drawn]
            spread = self.spread(drawn, expected) if self.rtol is None else {}
        self.mindspore.expect(self.torch.dtype)
        made = self.converted(state)
        try:
            with self.mindspore.holding(made):
                answers = [self.mindspore.run(x, self.ms_forward) for x in drawn]
        except InputError as error:
            opinion = consultation.of_a_refusal(self._case(drawn[0], state, made, spread), expected[0], error)
            nothing = (Comparison(comparison.REFUSED, 0, "structure", str(error)),)
            told = tuple(self.assumptions)
            return Validation(
                False, opinion.verdict, opinion.exit_code, nothing, told, (), probe.describe(), self.seed,
                findings=opinion.findings,
            )  # fmt: skip
        left_out = tuple(p.name for p in self.target if p.kind != "optimizer" and p.name not in made)
        self.assumptions += (*self.torch.remarks(), *self.mindspore.remarks())
        outputs = tuple(self.compared(expected, answers, spread))
        passed, verdict, code = self._verdict(outputs, expected, left_out)
        findings: tuple[Finding, ...] = ()
        if self.per_layer or any(not c.passed for c in outputs):
            case = self._case(drawn[0], state, made, spread)
            opinion = consultation.ask(case, outputs, passed, verdict, code)
            findings, code, verdict = opinion.findings, opinion.exit_code, opinion.verdict or verdict
            self.assumptions += opinion.notes
        result = Validation(
            passed, verdict, code, outputs, tuple(self.assumptions), left_out, probe.describe(), self.seed,
            findings=findings, power=self._power(drawn[-1], expected[-1], state, spread) if passed else None,
        )  # fmt: skip
        runs = [Case(*row) for row in zip(drawn, expected, answers, strict=True)]
        point = self._point(state, made)
        if self.wanted:
            answer = parity.examine(self.wanted, point, runs, passed, verdict, code)
            result = dataclasses.replace(
                result, **{f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)}
            )
        if not self.wanted.training:
            return result
        statistics = parity.statistics_of(self.mapping, self.listing, self.target)
        way = self.wanted.training, point, statistics, probe, runs[0], self.rtol, self.mapping, self.weights
        return parity.with_training(result, lambda: parity.train(*way))

    def _case(
        self, inputs: Inputs, state: dict[str, Array], made: dict[str, Array], spread: dict[str, float]
    ) -> consultation.Case:
        return consultation.Case(
            self.torch, self.mindspore, self.mapping, self.listing, state, made, inputs,
            (self.torch_forward, self.ms_forward), self.kernel_noise, spread,
        )  # fmt: skip

    def _power(self, inputs: Inputs, outputs: Any, state: dict[str, Array], spread: dict[str, float]) -> Strength:
        mapped = {name for e in self.mapping.entries for name in e.torch}
        with self.torch.holding(state):
            power = Power(self.torch, self.listing, inputs, outputs, self.torch_forward, self.seed)
            return power.strength(lambda where, a: self._allowed(where, a, a, spread), mapped)

    def _point(self, state: dict[str, Array], made: dict[str, Array]) -> Point:
        trained = self.torch.trained(), self.mindspore.trained()
        links = Links.of(self.mapping, self.listing, self.target, *trained)
        forwards = self.torch_forward, self.ms_forward
        return Point(self.torch, self.mindspore, links, state, made, self.kernel_noise, self.seed, *forwards)

    def given_weights(self, weights: Any) -> dict[str, Array]:
        """The user's weights, checked against the network: what it lacks is told, what they lack is an error."""
        given, note = fitting(weights, self.listing, self.torch.state().keys())
        self.assumptions += [note] * bool(note)
        return given

    def converted(self, state: dict[str, Array]) -> dict[str, Array]:
        """What MindSpore gets. PyTorch parameters without a home are left out: the outputs tell whether they matter."""
        homeless = {u.name for u in self.mapping.unmatched_torch}
        mapped = set(self.mapping.names("torch")) - homeless
        if mapped & state.keys():  # else the names differ by a prefix, which is for the conversion to find
            homeless = state.keys() - mapped
        told = [
            p.name
            for p in self.listing
            if p.name in homeless
            and p.kind == "parameter"
            and not any(a in state and a not in homeless for a in p.aliases)
        ]
        if told:
            self.assumptions.append(f"{len(told)} PyTorch parameter(s) have no home in MindSpore: {some(told)}")
        kept = {name: array for name, array in state.items() if name not in homeless}
        report = conversion.ConversionReport()  # so that a cast is no warning: the outputs show what it loses
        made: dict[str, Array] = conversion.apply(
            self.mapping, kept, framework="numpy", target=self.target, report=report, max_lost=1.0
        )
        return made

    def spread(self, drawn: list[Inputs], expected: list[Any]) -> dict[str, float]:
        """How far rounding, and the error of this machine's kernels, move each output of this network."""
        spread: dict[str, float] = {}
        for k, (inputs, outputs) in enumerate(zip(drawn, expected, strict=True)):
            try:
                noisy = self.torch.run_with_noise(inputs, self.seed + k, self.kernel_noise(), self.torch_forward)
            except AutomapError:
                return {}  # a network that cannot be watched (a compiled one): the table stands
            for where, size in comparison.moved(outputs, noisy).items():
                spread[where] = max(spread.get(where, 0.0), size)
        return spread

    def compared(self, expected: list[Any], answers: list[Any], spread: dict[str, float]) -> Iterator[Comparison]:
        for k, (outputs, answer) in enumerate(zip(expected, answers, strict=True)):
            pairing = comparison.pair(outputs, answer)
            for where, words in pairing.problems:
                yield Comparison(where, k, "structure", words)
            for where, a, b in pairing.pairs:
                yield comparison.compare(where, k, a, b, self._allowed(where, a, b, spread))
            if k == 0:
                self.assumptions += pairing.ignored

    def _allowed(self, where: str, a: Array, b: Array, spread: dict[str, float]) -> float:
        scale = comparison.scale_of(a)
        if self.rtol is not None:
            return self.rtol * scale + self.atol
        dtypes = (self.torch.dtype, self.mindspore.dtype, a.dtype.name, b.dtype.name)
        return comparison.allowance(dtypes, scale, spread.get(where, 0.0)) + self.atol

    def _verdict(
        self, outputs: tuple[Comparison, ...], expected: list[Any], left_out: tuple[str, ...]
    ) -> tuple[bool, str, int]:
        """Whether it passed, in one sentence, and the exit code."""
        rest = ""
        if left_out:
            rest = f"; {len(left_out)} MindSpore parameter(s) outside the mapping kept their values: {some(left_out)}"
        failed = [c for c in outputs if not c.passed]
        worst = max(failed, key=lambda c: (c.problem in ("shape", "structure"), c.to_scale), default=None)
        if worst is not None and worst.problem in ("shape", "structure"):
            # Loaded weights do not change what a network returns, only its values: this is no fault of the mapping.
            only_form = worst.problem == "shape" or all(c.problem == worst.problem for c in failed)
            words = f"The networks differ: {worst.words}; whether the mapping holds is not proven{rest}."
            return False, words, 3 if only_form else 1
        if worst is not None:
            words = f"{len(failed)} of {len(outputs)} comparison(s) failed: {worst.words}"
            blame = "the mapping is wrong, or the networks differ; the outputs alone do not tell which"
            return False, f"{words}. Either {blame}{rest}.", 1
        if nothing := self.proves_nothing(outputs, expected):
            return False, f"The outputs agree, but that proves nothing: {nothing}{rest}.", 1
        greatest = max(c.to_scale for c in outputs)
        runs = "1 run" if len(expected) == 1 else f"{len(expected)} runs on different inputs"
        return True, f"The outputs agree in {runs}: off by at most {greatest:.2g} of their scale{rest}.", 0

    def proves_nothing(self, outputs: tuple[Comparison, ...], expected: list[Any]) -> str:
        """Why agreement would mean nothing, or ``""``."""
        if not any(c.total for c in outputs):
            return "the networks return no numbers"
        # What an element type allows in itself is no noise: bfloat16 has but 8 bits.
        bound = max(_TOO_NOISY, *(TOLERANCE.get(d, 0.0) for d in (self.torch.dtype, self.mindspore.dtype)))
        noisy = [c for c in outputs if c.allowed > max(bound * c.scale, self.atol)]
        if self.rtol is None and len(noisy) == len(outputs):
            return f"rounding alone moves {noisy[0].where} by {noisy[0].allowed / noisy[0].scale:.2g} of its scale"
        first = comparison.pair(expected[0], expected[0]).pairs
        several = [a for _, a, _ in first if a.size > 1]
        if several and all((a == a.flat[0]).all() for a in several):
            return "every output is one number throughout"
        if len(expected) > 1:
            allowed = {c.where: c.allowed for c in outputs}
            pairs = comparison.pair(expected[0], expected[1]).pairs
            if all(comparison.compare(w, 0, a, b, allowed.get(w, 0.0)).passed for w, a, b in pairs):
                return "the outputs are the same for different inputs"
        return ""


def _in_float32(run: Run, probe: Probe | None, weights: Any) -> Validation | None:
    """The validation of networks of low precision with their parameters cast up, and of their outputs as they are.

    None where they do not run so, or compute in low precision all the same and do not agree.
    """
    wide = copy.copy(run)
    try:
        with precision.in_float32(run.mindspore, run.torch) as (wide.mindspore, wide.torch):
            wide.listing, wide.target = precision.widened(run.listing), precision.widened(run.target)
            wide.mapping, wide.assumptions = precision.uncast(run.mapping), []
            result = wide.validate(probe, weights)
            low = precision.still_low(wide.torch, wide.mindspore)
    except (InputError, NotRunnableError):
        return None
    if not result.passed and (low or any(c.where == comparison.REFUSED for c in result.outputs)):
        return None
    if wide.probe is None or any(not c.passed for c in result.outputs):
        words = precision.Narrow.of(run.torch, run.mindspore).words
        return dataclasses.replace(result, assumptions=(words, *result.assumptions))
    seeded = weights is None
    values = seeded_weights(run.listing, run.seed) if seeded else run.given_weights(weights)
    own = precision.own_run(
        run.torch, run.mindspore, run.target, run.mapping, wide.probe.draw(run.seed, 0), values, seeded,
        (run.torch_forward, run.ms_forward), run.kernel_noise, run.seed,
    )  # fmt: skip
    words = f"{precision.Narrow.of(run.torch, run.mindspore).words}; {own.words}"
    told = (words, *result.assumptions, *(r for r in own.remarks if r not in result.assumptions))
    result = dataclasses.replace(result, assumptions=told)
    if not own.differs or not result.passed:
        return result
    verdict = f"{result.verdict.removesuffix('.')}, but {own.words}."
    return dataclasses.replace(result, passed=False, verdict=verdict, exit_code=3)


def _read_mapping(mapping: ParameterMapping | Mapping[str, str | None] | str | Path) -> ParameterMapping:
    if isinstance(mapping, ParameterMapping):
        return mapping
    return ParameterMapping.from_dict(mapping) if isinstance(mapping, Mapping) else ParameterMapping.read(mapping)


def _model(source: Source) -> Any:
    """The source's network.

    Raises:
        SourceError: it gives none.
    """
    model = source.model()
    if model is None:
        side = FRAMEWORK_NAMES[source.framework]
        raise SourceError(
            f"{source.text} is no {side} network that can run: give a factory, a class or an instance, "
            "such as package.module:name or ./net.py:build",
            source.text,
        )
    return model


def demanded(function: Callable[..., Any]) -> int:
    """How many arguments a forward has to be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)
