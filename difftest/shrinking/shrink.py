"""One bucket made small: Hypothesis first, then the reducer to its fixed point."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from difftest.judging.outcome import Bucket, Outcome, Rate, Verdict
from difftest.output.events import Stage
from difftest.shrinking.complexity import complexity
from difftest.shrinking.reducer import reduce
from difftest.stream import Enough, Stream
from strategies.plain import AnyScenario

HYPOTHESIS_RUNS = 100
REDUCER_RUNS = 400
"""Real runs that each stage may take."""

GROSS = 4.0
"""An error of this many radii, or any where the value had to be exact, does not shrink into a smaller one."""

RATE_RUNS = 64
"""Runs by which the rate of a race is measured before it is reduced."""

POWER = 0.95
"""Chance that a try of a race sees it, at the measured rate."""


class Checker(Protocol):
    """What shrinking needs of an `Engine`. Outcomes are remembered by scenario and checks; `runs` counts the others."""

    @property
    def runs(self) -> int: ...

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """smallest, worst: single findings of the bucket, the simplest and the one with the largest error seen.

    runs_hypothesis, runs_reducer: real runs. fixed_point: no move of the reducer makes `smallest` simpler.
    """

    smallest: Outcome
    worst: Outcome
    runs_hypothesis: int
    runs_reducer: int
    fixed_point: bool


def magnitude(finding: Outcome) -> tuple[float, float]:
    """How bad it is, to find the worst: (error / radius, error), both infinite where one is not finite."""
    worst = finding.worst
    if worst is None:
        return (0.0, 0.0)
    error = worst.error if math.isfinite(worst.error) else math.inf
    return (error / worst.radius if worst.radius > 0 else math.inf, error)


def is_gross(finding: Outcome) -> bool:
    return magnitude(finding)[0] >= GROSS


def finding_of(outcome: Outcome, bucket: Bucket) -> Outcome | None:
    """The finding of `bucket` in the outcome, whether it is the first or one of the others."""
    return next((finding for finding in outcome.findings if finding.bucket == bucket), None)


def repeats_for(rate: Rate) -> int:
    """Runs that see a race of this rate at least once with a chance of `POWER`; one more than that, to compare with."""
    share = float(rate)
    return 2 if share >= POWER else 1 + math.ceil(math.log(1 - POWER) / math.log1p(-share))


class Shrinker:
    """Shrinks one bucket from `first`, the finding that a campaign saw first.

    A simpler scenario counts as the same finding when it has the bucket (oracle, check, verdict, kind) and, where the
    first error was gross, a gross error: it must not end as one that is a little over its bound.
    progressed: called with each simpler finding, the stage and its real runs, so that the best so far is never lost.
    is_known: whether another finding of the bucket is in a scenario; such a one does not count as this one.
    """

    def __init__(
        self,
        engine: Checker,
        first: Outcome,
        progressed: Callable[[Outcome, Stage, int], None],
        is_known: Callable[[AnyScenario], bool] = lambda _: False,
    ) -> None:
        self._engine = engine
        self._bucket = first.bucket
        self._gross = first.verdict is Verdict.DIVERGES and is_gross(first)
        self._is_known = is_known
        self._progressed = progressed
        self._stage: Stage = "reducer"
        self._runs_before = engine.runs
        self._repeats = 0
        self.smallest = first
        self.worst = first

    @property
    def _runs(self) -> int:
        return self._engine.runs - self._runs_before

    def shrink(self, stream: Stream | None, hints: Iterable[AnyScenario] = ()) -> Shrunk:
        """Shrink.

        stream: the one that drew the first finding; None for a saved or imported case. hints: small scenarios that
        show other buckets. One mistake often has several: where a hint shows this one too, it is the better start.
        Hypothesis can start from neither, so these go to the reducer alone. So does a race: a flaky answer must not
        reach Hypothesis.
        """
        race = self._bucket.verdict is Verdict.NONDETERMINISTIC
        if race:
            self._measure_rate()
        start = complexity(self.smallest.scenario)
        hinted = any(complexity(hint) < start and self._fails(hint) for hint in hints)
        runs_hypothesis = 0
        if stream is not None and not race and not hinted:
            runs_hypothesis = self._shrink_by_hypothesis(stream)
        reduced = reduce(self.smallest.scenario, self._fails, max_runs=REDUCER_RUNS)
        return Shrunk(
            smallest=self.smallest,
            worst=self.worst,
            runs_hypothesis=runs_hypothesis,
            runs_reducer=self._runs - runs_hypothesis,
            fixed_point=reduced.fixed_point,
        )

    def _shrink_by_hypothesis(self, stream: Stream) -> int:
        """Shrink by Hypothesis within its budget; returns the real runs."""
        before, self._stage = self._runs, "hypothesis"
        stream.shrink(self._fails_as_drawn(before + HYPOTHESIS_RUNS))
        self._stage = "reducer"
        return self._runs - before

    def _fails_as_drawn(self, limit: int) -> Callable[[AnyScenario], bool]:
        """The predicate for Hypothesis. It draws the campaign's scenarios again, whose outcomes the engine remembers.
        From the first that fails on only the bucket's own check is run, which the engine has not seen: the first
        keeps its answer, so that Hypothesis never gets two for one scenario."""
        found: AnyScenario | None = None

        def fails(scenario: AnyScenario) -> bool:
            nonlocal found
            if found is None:
                if not self._is_same(self._engine.check(scenario)):
                    return False
                found = scenario
            if scenario == found:
                return True
            if self._runs >= limit:
                raise Enough
            return self._fails(scenario)

        return fails

    def _fails(self, scenario: AnyScenario) -> bool:
        if self._is_known(scenario):
            return False
        return self._is_same(self._engine.check(self._repeated(scenario), checks={self._bucket.check}))

    def _is_same(self, outcome: Outcome) -> bool:
        finding = finding_of(outcome, self._bucket)
        if finding is None or self._is_known(finding.scenario) or (self._gross and not is_gross(finding)):
            return False
        self.worst = max(self.worst, finding, key=magnitude)
        if complexity(finding.scenario) < complexity(self.smallest.scenario):
            self.smallest = finding
            self._progressed(finding, self._stage, self._runs)
        return True

    def _repeated(self, scenario: AnyScenario) -> AnyScenario:
        if not self._repeats:
            return scenario
        return scenario.repeated(self._repeats)

    def _measure_rate(self) -> None:
        """Run the race often enough to know its rate, and from then on each try often enough to see it."""
        self._repeats = RATE_RUNS
        outcome = self._engine.check(self._repeated(self.smallest.scenario), checks={self._bucket.check})
        finding = finding_of(outcome, self._bucket) or self.smallest
        assert finding.rate is not None  # every nondeterministic outcome has one
        self._repeats = repeats_for(finding.rate)
