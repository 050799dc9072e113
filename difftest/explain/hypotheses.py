"""What may explain a finding: the recipes that a candidate does not declare, and the faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from difftest.explain.answers import Answers, NotAsked, ask
from difftest.explain.explanation import Match, Source
from difftest.explain.fit import Fit, alike, fault_fit, recipe_allows, recipe_fit
from difftest.explain.recipes import Recipe, recipes
from difftest.judging.compare import not_equal
from difftest.judging.outcome import Bucket, Verdict
from oracles.faults import Fault
from strategies.scenario import Scenario


class Hypothesis(Protocol):
    """One guess at what the candidate does.

    fit: how it fits the finding of `bucket` in what the candidate answered; None when it does not. says: whether it
    gives the candidate's answers to any other scenario. answer: its own [M, H]; None where it gives none.
    """

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Source: ...
    @property
    def kind(self) -> str: ...
    @property
    def summary(self) -> str: ...

    def fit(self, mine: Answers, bucket: Bucket) -> Fit | None: ...

    def says(self, mine: Answers, check: str) -> bool: ...

    def answer(self, scenario: Scenario) -> torch.Tensor | None: ...


@dataclass(frozen=True)
class _OfRecipe:
    recipe: Recipe
    source: Source = "recipe"

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def kind(self) -> str:
        return self.recipe.kind

    @property
    def summary(self) -> str:
        return self.recipe.summary

    def fit(self, mine: Answers, bucket: Bucket) -> Fit | None:  # noqa: ARG002
        return recipe_fit(mine, self.recipe)

    def says(self, mine: Answers, check: str) -> bool:  # noqa: ARG002
        return recipe_allows(mine, self.recipe)

    def answer(self, scenario: Scenario) -> torch.Tensor | None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class _OfFault:
    fault: Fault
    device: str
    source: Source = "fault"

    @property
    def name(self) -> str:
        return self.fault.name

    @property
    def kind(self) -> str:
        return self.fault.kind

    @property
    def summary(self) -> str:
        return self.fault.summary

    def fit(self, mine: Answers, bucket: Bucket) -> Fit | None:
        theirs = self._ask(mine, bucket.check)
        return None if theirs is None else fault_fit(mine, theirs, bucket)

    def says(self, mine: Answers, check: str) -> bool:
        theirs = self._ask(mine, check)
        return theirs is None or alike(mine, theirs)

    def answer(self, scenario: Scenario) -> torch.Tensor | None:
        try:
            theirs = ask(self.fault.oracle(), scenario, "reference", device=self.device)
        except NotAsked:
            return None
        return theirs.exchanges[0].output if theirs.exchanges else None

    def _ask(self, mine: Answers, check: str) -> Answers | None:
        """None where the twin cannot do what the candidate does."""
        try:
            return ask(self.fault.oracle(), mine.scenario, check, device=self.device, like=mine)
        except NotAsked:
            return None


def hypotheses(mine: Answers, bucket: Bucket, faults: Mapping[str, Fault], device: str) -> Iterable[Hypothesis]:
    """All that may be tried on the finding of `bucket`, recipes first: those are about numbers alone."""
    if bucket.check == "reference" and bucket.verdict is Verdict.DIVERGES and mine.exchanges:
        for recipe in recipes(mine.exchanges[0].problem, mine.numerics):
            yield _OfRecipe(recipe)
    for fault in faults.values():
        yield _OfFault(fault, device)


SECOND_MISTAKE = 6
"""An explanation is confirmed so many times as often as it is contradicted."""


@dataclass
class Standing:
    """A hypothesis that fits the case, and how it does elsewhere."""

    hypothesis: Hypothesis
    fit: Fit
    confirmed: int = 0
    contradicted: int = 0

    @property
    def holds(self) -> bool:
        """A candidate may have a second mistake, which contradicts the right explanation now and then. What merely
        allows the errors must never be contradicted."""
        return SECOND_MISTAKE * self.contradicted <= (self.confirmed if self.fit.predicts else 0)

    @property
    def rank(self) -> tuple[bool, int, bool, int, str]:
        """Sort key, the likeliest first: what predicts, least contradicted, recipes before faults, changes least."""
        about = self.hypothesis
        return not self.fit.predicts, self.contradicted, about.source == "fault", self.fit.changed, about.name

    def match(self) -> Match:
        about = self.hypothesis
        return Match(
            name=about.name,
            source=about.source,
            kind=about.kind,
            summary=about.summary,
            predicts=self.fit.predicts,
            changed=self.fit.changed,
            confirmed=self.confirmed,
            contradicted=self.contradicted,
        )


def likeliest(standings: Iterable[Standing]) -> list[Standing]:
    """Those that hold and that nothing tells apart: all predict or none does, and they are contradicted as often."""
    holding = sorted((standing for standing in standings if standing.holds), key=lambda standing: standing.rank)
    return [standing for standing in holding if standing.rank[:2] == holding[0].rank[:2]]


def differ(standings: Iterable[Standing], scenario: Scenario) -> bool:
    """Whether those of them that answer themselves give different answers to the scenario."""
    asked = (standing.hypothesis.answer(scenario) for standing in standings)
    answers = [answer for answer in asked if answer is not None]
    return any(not_equal(answer, answers[0]) is not None for answer in answers[1:])
