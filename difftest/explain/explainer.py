"""Explains a finding: tries every hypothesis on it, tells those that fit apart, and describes what is wrong."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping

from difftest.compare import wrong
from difftest.explain.answers import Answers, NotAsked, ask
from difftest.explain.badset import describe
from difftest.explain.explanation import Explanation
from difftest.explain.further import further
from difftest.explain.hypotheses import Standing, hypotheses, likeliest
from difftest.explain.needs import needs
from difftest.explain.suspicion import suspect
from difftest.outcome import Outcome, Verdict
from oracles.base import AnyOracle, Oracle
from oracles.faults import FAULTS, Fault
from strategies.capability import Capability
from strategies.scenario import Scenario

FURTHER = 40
"""Scenarios near the case that the candidate is asked."""

ENOUGH, FEW = 10, 4
"""Of these, so many that show something wrong are enough: to tell hypotheses apart, and to describe what is wrong."""

RACE_REPEATS = 64
"""Calls that a race is looked for in."""


FATAL = frozenset({Verdict.CRASHED, Verdict.HUNG})
"""Verdicts of candidates that are not asked again: they would take this process with them."""


def explain(candidate: AnyOracle, smallest: Outcome, worst: Outcome, *, device: str = "cpu") -> Explanation:
    """What a finding is due to, whose simplest form is `smallest`; `worst` is the one with the largest error.

    device: where tensors are made. Of a router, and of what ends the process, only what the smallest scenario says is
    told.
    """
    layer = isinstance(smallest.scenario, Scenario) and isinstance(worst.scenario, Scenario)
    if not layer or smallest.verdict in FATAL:
        return unasked(smallest)
    return Explainer(typing.cast(Oracle, candidate), device=device).explain(smallest, worst)


def unasked(smallest: Outcome) -> Explanation:
    """What the smallest scenario alone tells of a finding."""
    if not isinstance(smallest.scenario, Scenario):
        return Explanation(suspected="routing")
    needed = needs(smallest.scenario, Capability())
    return Explanation(needs=tuple(need.words for need in needed), suspected=suspect(smallest, None, needed))


class Explainer:
    """Explains findings of one candidate. faults: those that are tried."""

    def __init__(self, candidate: Oracle, *, device: str = "cpu", faults: Mapping[str, Fault] = FAULTS) -> None:
        self._candidate = candidate
        self._capability: Capability = getattr(candidate, "capability", None) or Capability()
        self._device = device
        self._faults = faults

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """Explain the finding, whose simplest form is `smallest`; `worst` is the one with the largest error."""
        case, bucket = _layer(smallest), smallest.bucket
        needed = needs(case, self._capability)
        words = tuple(need.words for need in needed)
        mine = self._ask(case, smallest)
        if mine is None or not mine.shows(bucket):
            return Explanation(needs=words, suspected="execution", reproduced=False)
        fits = ((guess, guess.fit(mine, bucket)) for guess in hypotheses(mine, bucket, self._faults, self._device))
        standings = [Standing(guess, fit) for guess, fit in fits if fit is not None]
        seen, asked = [mine], 0
        for scenario in self._elsewhere(smallest, worst):
            if len(seen) > (ENOUGH if standings else FEW):
                break
            other = self._ask(scenario, smallest)
            if other is None:
                continue
            asked += 1
            told = other.is_wrong
            for standing in standings:
                says = standing.hypothesis.says(other, bucket.check)
                standing.confirmed += told and says
                standing.contradicted += not says
            seen += [other] if told else []
        standings.sort(key=lambda standing: standing.rank)
        kept = likeliest(standings)
        matches = tuple(standing.match() for standing in kept)
        return Explanation(
            matches=matches,
            bad_set=self._bad_set(seen),
            needs=words,
            suspected=matches[0].kind if matches else suspect(smallest, mine, needed),
            refuted=tuple(str(standing.match()) for standing in standings if standing not in kept),
            asked=asked,
        )

    def _ask(self, scenario: Scenario, finding: Outcome) -> Answers | None:
        """None where the candidate does not promise to answer."""
        if finding.verdict is Verdict.NONDETERMINISTIC:
            repeats = max(scenario.execution.repeats, RACE_REPEATS)
            scenario = dataclasses.replace(scenario, execution=dataclasses.replace(scenario.execution, repeats=repeats))
        try:
            return ask(self._candidate, scenario, finding.check, device=self._device)
        except NotAsked:
            return None

    def _elsewhere(self, smallest: Outcome, worst: Outcome) -> Iterator[Scenario]:
        """The worst scenario, and some near the smallest."""
        if worst.scenario != smallest.scenario:
            yield _layer(worst)
        yield from further(_layer(smallest), self._capability, FURTHER)

    def _bad_set(self, seen: list[Answers]) -> str:
        """Where the breach is, in the words that hold in most of what the candidate was asked."""
        first = [(answers.exchanges[0], answers.enclosed(0)) for answers in seen if answers.exchanges]
        looked = [(wrong(exchange.output, right), right, exchange.problem) for exchange, right in first]
        return describe([one for one in looked if bool(one[0].any())])


def _layer(outcome: Outcome) -> Scenario:
    assert isinstance(outcome.scenario, Scenario)  # routers are not explained
    return outcome.scenario
