"""Explains a finding: tries every hypothesis on it, tells those that fit apart, and describes what is wrong."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping

from difftest.explain.answers import Answers, NotAsked, ask, ask_alone
from difftest.explain.badset import Wrong, describe, is_range_of_columns
from difftest.explain.explanation import Explanation
from difftest.explain.further import drawn, near
from difftest.explain.hypotheses import Standing, differ, hypotheses, likeliest
from difftest.explain.needs import Need, needs
from difftest.explain.probes import POISON, with_ordinary_padding, with_ordinary_values, with_poison
from difftest.explain.relation import Relation, relation
from difftest.explain.suspicion import BY_CHECK, CONFUSED, Clues, suspect
from difftest.judging import variants
from difftest.judging.compare import wrong
from difftest.judging.outcome import Outcome, Verdict
from oracles.base import AnyOracle, Oracle
from oracles.faults import FAULTS, SM120_FAULTS, Fault, Twin
from strategies.capability import Capability
from strategies.scenario import Scenario

NEAR, DRAWN = 40, 200
"""Scenarios near the case that the candidate is asked at most, and others that hypotheses are asked, as long as several
are left."""

ENOUGH, FEW = 10, 4
"""Of these, so many that show something wrong are enough: to trust what is left, and to describe what is wrong."""

ORDINARY = 20
"""Scenarios near the case that are asked with ordinary values."""

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
    return Explanation(needs=tuple(need.words for need in needed), suspected=suspect(smallest, Clues(needed=needed)))


_OVERFLOWS = 253
"""The first scale byte under which the largest code is no float32, and no bfloat16."""


def faults_of(candidate: Oracle) -> Mapping[str, Fault]:
    """The faults that `candidate` may have: those of the MXFP8 x MXFP4 path only where it quantises to MXFP8 between
    the GEMMs, as that path does."""
    of_that_path = candidate.numerics.intermediate_quantizer.startswith("mxfp8")
    return {**FAULTS, **SM120_FAULTS} if of_that_path else FAULTS


class Explainer:
    """Explains findings of one candidate. faults: those that are tried, by default those that it may have."""

    def __init__(self, candidate: Oracle, *, device: str = "cpu", faults: Mapping[str, Fault] | None = None) -> None:
        self._candidate = candidate
        self._capability: Capability = getattr(candidate, "capability", None) or Capability()
        self._device = device
        self._faults = faults_of(candidate) if faults is None else faults

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """Explain the finding, whose simplest form is `smallest`; `worst` is the one with the largest error."""
        needed = needs(_layer(smallest), self._capability)
        words = tuple(need.words for need in needed)
        mine = self._ask(_layer(smallest), smallest)
        if mine is None or not mine.shows(smallest.bucket):
            return Explanation(needs=words, suspected="execution", reproduced=False)
        bucket = dataclasses.replace(smallest.bucket, check=_check(smallest))
        guesses = hypotheses(mine, bucket, self._faults, self._device)
        fits = ((guess, guess.fit(mine, bucket)) for guess in guesses)
        standings = [Standing(guess, fit) for guess, fit in fits if fit is not None]
        seen, asked = self._try(standings, smallest, worst)
        standings.sort(key=lambda standing: standing.rank)
        kept = likeliest(standings)
        matches = tuple(standing.match() for standing in kept)
        clues = self._clues(needed, mine, smallest)
        return Explanation(
            matches=matches,
            bad_set=self._bad_set([mine, *seen], clues),
            needs=words,
            suspected=matches[0].kind if matches else suspect(smallest, self._plainer(clues, smallest)),
            refuted=tuple(str(standing.match()) for standing in standings if standing not in kept),
            asked=asked,
        )

    def _try(self, standings: list[Standing], smallest: Outcome, worst: Outcome) -> tuple[list[Answers], int]:
        """Ask elsewhere, until it is clear which of `standings` hold, or something is known of where it is wrong.

        Returns what of it was wrong, and how often the candidate was asked.
        """
        seen: list[Answers] = []
        asked = 0
        for scenario in self._elsewhere(standings, smallest, worst):
            if len(seen) >= (ENOUGH if standings else FEW) and len(likeliest(standings)) < 2:
                break
            other = self._ask(scenario, smallest)
            if other is None:
                continue
            asked += 1
            for standing in standings:
                says = standing.hypothesis.says(other, _check(smallest))
                standing.confirmed += other.is_wrong and says
                standing.contradicted += not says
            seen += [other] if other.is_wrong else []
        return seen, asked

    def _ask(self, scenario: Scenario, finding: Outcome) -> Answers | None:
        """None where the candidate does not promise to answer."""
        if finding.verdict is Verdict.NONDETERMINISTIC:
            repeats = max(scenario.execution.repeats, RACE_REPEATS)
            scenario = dataclasses.replace(scenario, execution=dataclasses.replace(scenario.execution, repeats=repeats))
        try:
            return ask(self._candidate, scenario, _check(finding), device=self._device)
        except NotAsked:
            return None

    def _elsewhere(self, standings: list[Standing], smallest: Outcome, worst: Outcome) -> Iterator[Scenario]:
        """The worst scenario, some near the smallest, and then any to which those that still hold answer unlike."""
        if worst.scenario != smallest.scenario:
            yield _layer(worst)
        yield from filter(self._is_fair, near(_layer(smallest), self._capability, NEAR))
        for scenario in filter(self._is_fair, drawn(_layer(smallest), self._capability, DRAWN)):
            if differ(likeliest(standings), scenario):
                yield scenario

    def _is_fair(self, scenario: Scenario) -> bool:
        """Whether the faults, which hold every weight, can speak for the candidate: one that rounds weights may make
        infinities of the largest."""
        values = scenario.values
        top = max([values.scale_high, *(edit.value for edit in values.edits if isinstance(edit.value, int))])
        return self._candidate.numerics.weights == Twin.numerics.weights or top < _OVERFLOWS

    def _clues(self, needed: list[Need], mine: Answers, finding: Outcome) -> Clues:
        if not mine.exchanges or not bool(mine.wrong(0).any()):
            return self._clues_of_a_check(needed, mine, finding)
        related = _relation(mine)
        if related is None or related.words == "0":
            for scenario in with_poison(mine.scenario):
                related = _memory(self._ask(scenario, finding)) or related
        nan_padding = False
        for scenario in with_ordinary_padding(mine.scenario):
            plain = self._ask(scenario, finding)
            nan_padding = plain is not None and not plain.is_wrong
        some = _some_columns(mine)
        return Clues(needed=needed, mine=mine, related=related, nan_padding=nan_padding, some_columns=some)

    def _clues_of_a_check(self, needed: list[Need], mine: Answers, finding: Outcome) -> Clues:
        """Of a finding whose first answer is right: is a later one wrong for what it asks, or for what went before?"""
        for position, exchange in enumerate(mine.exchanges[:LOOKED_AT]):
            if position == 0 or not (bool(mine.wrong(position).any()) or mine.fills_lonely_rows(position)):
                continue
            try:
                alone = ask_alone(self._candidate, exchange.problem)
            except NotAsked:
                continue
            its_own = needs(alone.scenario, self._capability)
            if alone.exchanges and bool(alone.wrong(0).any()):
                related, some = _relation(alone), _some_columns(alone)
                if not exchange.problem.scenario.execution.poison:
                    related = (
                        _memory(ask_alone(self._candidate, variants.with_poison(exchange.problem, POISON))) or related
                    )
                return Clues(needed=its_own, mine=alone, related=related, some_columns=some, alone=True)
            if alone.exchanges and alone.fills_lonely_rows(0):
                return Clues(needed=its_own, mine=alone, alone=True)
        changes = finding.check == "guard" and self._changes(mine.scenario)
        return Clues(needed=needed, mine=mine, changes=changes)

    def _plainer(self, clues: Clues, finding: Outcome) -> Clues:
        """Of a finding that seems to be about what is not finite: is it wrong with ordinary values alone too, where no
        mistake about others can show?"""
        in_memory = clues.related is not None and clues.related.kind == "memory"
        by_check = BY_CHECK.get(finding.check, "")
        seems = (
            finding.kind in CONFUSED or by_check == "non-finite" or any(n.kind == "non-finite" for n in clues.needed)
        )
        if in_memory or not seems or (by_check not in ("", "non-finite") and not clues.alone):
            return clues
        case = clues.mine.scenario if clues.mine is not None else _layer(finding)
        for scenario in near(case, self._capability, ORDINARY):
            for plain in with_ordinary_values(scenario):
                try:
                    answers = ask(self._candidate, plain, "reference", device=self._device)
                except NotAsked:
                    continue
                if answers.exchanges and bool(answers.wrong(0).any()):
                    needed = [
                        need for plainer in with_ordinary_values(case) for need in needs(plainer, self._capability)
                    ]
                    related, some = _relation(answers), _some_columns(answers)
                    return Clues(
                        needed=needed,
                        mine=answers,
                        related=related,
                        some_columns=some,
                        alone=clues.alone,
                        ordinary=True,
                    )
        return clues

    def _changes(self, scenario: Scenario) -> bool:
        """Whether the candidate answers otherwise when it is asked again."""
        try:
            return ask(self._candidate, scenario, "determinism", device=self._device).is_race
        except NotAsked:
            return False

    def _bad_set(self, seen: list[Answers], clues: Clues) -> str:
        """Where the breach is, in the words that hold in most of what the candidate was asked, and what it is like."""
        looked = [found for answers in seen if (found := _first_wrong(answers)) is not None]
        parts = [describe(looked)]
        if clues.related is not None:
            parts.append(f"the wrong values are {clues.related.words}")
        if clues.nan_padding:
            parts.append("only where the rows that pad the batch hold NaN")
        return "; ".join(part for part in parts if part)


LOOKED_AT = 8
"""Answers of one check in which something wrong is looked for."""


def _first_wrong(answers: Answers) -> Wrong | None:
    """The first answer that is wrong; a check may ask several, and compare a right one with it."""
    for position, exchange in enumerate(answers.exchanges[:LOOKED_AT]):
        right = answers.enclosed(position)
        bad = wrong(exchange.output, right)
        if bool(bad.any()):
            return bad, right, exchange.problem
    return None


def _relation(mine: Answers) -> Relation | None:
    exchange = mine.exchanges[0]
    return relation(exchange.output, mine.wrong(0), mine.enclosed(0), exchange.problem)


def _memory(filled: Answers | None) -> Relation | None:
    """That the wrong values are what memory was filled with, when they are."""
    if filled is None or not filled.exchanges or not bool(filled.wrong(0).any()):
        return None
    related = _relation(filled)
    return related if related is not None and related.kind == "memory" else None


def _some_columns(mine: Answers) -> bool:
    return is_range_of_columns(mine.wrong(0), mine.enclosed(0), mine.exchanges[0].problem)


def _check(finding: Outcome) -> str:
    """The check that shows it. Answers that change are seen by comparing them with each other."""
    race = finding.verdict is Verdict.NONDETERMINISTIC
    return "determinism" if race and finding.check == "reference" else finding.check


def _layer(outcome: Outcome) -> Scenario:
    assert isinstance(outcome.scenario, Scenario)  # routers are not explained
    return outcome.scenario
