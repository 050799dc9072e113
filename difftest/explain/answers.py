"""What an oracle answers while one check looks at it: every question, and the answer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from difftest.judging import variants
from difftest.judging.compare import wrong
from difftest.judging.guard import Declined, Guarded, Malformed, Rejected, Spans
from difftest.judging.outcome import VALUE_KINDS, Bucket, Verdict
from difftest.judging.trial import InProcess
from oracles.base import Oracle
from oracles.enclosure import Enclosure
from oracles.numerics import Numerics
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies.scenario import Scenario

Breach = tuple[Verdict, str, str]
"""(verdict, check, kind); the kind only of what diverges."""


@dataclass(frozen=True)
class Exchange:
    """A question, and the answer [M, H] to it."""

    problem: Problem
    output: torch.Tensor

    @property
    def judged(self) -> torch.Tensor:
        """The answer, with rows that have no local expert set right: `no_local_expert` is about these."""
        return torch.where(self.lonely[:, None], 0.0, self.output)

    @property
    def lonely(self) -> torch.Tensor:
        """bool [M]: rows without a local expert."""
        return ~(self.problem.local_ids >= 0).any(1)


@dataclass(frozen=True)
class Answers:
    """What came of one scenario under one check.

    exchanges: in the order in which the check asked; the first is the scenario's own problem. Empty when the oracle
    rejects that. breaches: findings that are not about values. diverges: checks in which a value was wrong.
    numerics: what the oracle declares.
    """

    scenario: Scenario
    numerics: Numerics
    exchanges: tuple[Exchange, ...]
    breaches: frozenset[Breach]
    diverges: frozenset[str]
    _enclosures: dict[tuple[int, Numerics], Enclosure] = field(default_factory=dict, repr=False)

    def enclosed(self, position: int, numerics: Numerics | None = None) -> Enclosure:
        """What a right implementation, by default one with the oracle's own numerics, may answer to the question at
        `position`. Remembered."""
        key = position, numerics or self.numerics
        if key not in self._enclosures:
            self._enclosures[key] = enclose(self.exchanges[position].problem, key[1])
        return self._enclosures[key]

    def wrong(self, position: int) -> torch.Tensor:
        """bool [M, H]: elements of the answer at `position` that are wrong."""
        return wrong(self.exchanges[position].judged, self.enclosed(position))

    def fills_lonely_rows(self, position: int) -> bool:
        """Whether rows without a local expert are not 0 in the answer at `position`."""
        exchange = self.exchanges[position]
        return bool((exchange.output[exchange.lonely] != 0).any())

    @property
    def is_race(self) -> bool:
        return any(verdict is Verdict.NONDETERMINISTIC for verdict, _, _ in self.breaches)

    def shows(self, bucket: Bucket) -> bool:
        """Whether the finding of the bucket is there; the oracle and, of values and of what was raised, the kind may
        be others."""
        if bucket.verdict is Verdict.NONDETERMINISTIC:
            return self.is_race
        if bucket.verdict is Verdict.DIVERGES and bucket.kind in VALUE_KINDS:
            return bucket.check in self.diverges
        kind = bucket.kind if bucket.verdict is Verdict.DIVERGES else ""
        return (bucket.verdict, bucket.check, kind) in self.breaches

    @property
    def is_wrong(self) -> bool:
        """Whether anything is."""
        return bool(self.breaches or self.diverges)


class NotAsked(Exception):
    """The oracle does not promise to answer the scenario."""


def ask(oracle: Oracle, scenario: Scenario, check: str, *, device: str = "cpu", like: Answers | None = None) -> Answers:
    """Run `check` of `difftest.judging.checks` (or a step, which always runs) on `scenario`, against the recipe.

    like: another oracle's answers to the same, whose problem and enclosures can be shared. Raises `NotAsked`.
    """
    if check == "reference":
        if like is None or not like.exchanges:
            return _ask_once(oracle, scenario, lambda: build(scenario, device), {})
        return _ask_once(oracle, scenario, lambda: like.exchanges[0].problem, like._enclosures)
    recorder = _Recorder(oracle)
    outcome = InProcess(recorder, Reference(), device=device).run(scenario, {check})
    if outcome.verdict is Verdict.UNSUPPORTED:
        raise NotAsked
    values = [f for f in outcome.findings if f.verdict is Verdict.DIVERGES and f.kind in VALUE_KINDS]
    others = [f for f in outcome.findings if f not in values]
    return Answers(
        scenario,
        oracle.numerics,
        tuple(recorder.exchanges),
        frozenset((f.verdict, f.check, f.kind if f.verdict is Verdict.DIVERGES else "") for f in others),
        frozenset(f.check for f in values),
    )


def ask_alone(oracle: Oracle, problem: Problem) -> Answers:
    """One call on `problem`, with nothing before it and no capture. Raises `NotAsked`."""
    plain = variants.eager(problem)
    return _ask_once(oracle, plain.scenario, lambda: plain, {})


def _ask_once(
    oracle: Oracle,
    scenario: Scenario,
    problem_of: Callable[[], Problem],
    enclosures: dict[tuple[int, Numerics], Enclosure],
) -> Answers:
    """One call, which is all that the comparison with the recipe takes."""
    guarded = Guarded(oracle, oracle.name, Spans())
    exchanges: tuple[Exchange, ...] = ()
    breaches: frozenset[Breach] = frozenset()
    try:
        guarded.require(scenario)
        problem = problem_of()
        own = variants.with_tensors(problem, variants.clone_tensors(problem))  # which the oracle may write to
        exchanges = (Exchange(problem, guarded.call(guarded.prepare(own), own)),)
    except Declined:
        raise NotAsked from None
    except Rejected as rejected:
        breaches = frozenset({(Verdict.REJECTED, rejected.step, "")})
    except Malformed as malformed:
        breaches = frozenset({(Verdict.DIVERGES, "reference", malformed.breach.kind)})
    answers = Answers(scenario, oracle.numerics, exchanges, breaches, frozenset(), enclosures)
    if exchanges and bool(answers.wrong(0).any()):
        return replace(answers, diverges=frozenset({"reference"}))
    return answers


class _Recorder:
    """The oracle, with its answers kept. Optional attributes are the oracle's own."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.name = oracle.name
        self.numerics = oracle.numerics
        self.exchanges: list[Exchange] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._oracle, name)
        if name == "run_into":
            return lambda prepared, output: value(prepared[1], output)
        if name == "replay":
            return lambda prepared, problem: self._kept(problem, value(prepared[1], problem))
        return value

    def unsupported(self, scenario: Scenario) -> str | None:
        return self._oracle.unsupported(scenario)

    def prepare(self, problem: Problem) -> tuple[Problem, Any]:
        return problem, self._oracle.prepare(problem)

    def __call__(self, prepared: tuple[Problem, Any]) -> torch.Tensor:
        problem, inner = prepared
        return self._kept(problem, self._oracle(inner))

    def _kept(self, problem: Problem, output: torch.Tensor) -> torch.Tensor:
        if isinstance(output, torch.Tensor):
            self.exchanges.append(Exchange(problem, output.clone()))
        return output
