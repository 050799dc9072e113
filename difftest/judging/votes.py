"""What several candidates say of each other: who stands alone in a finding, and which pairs agree. No torch.

Two candidates agree on a scenario when they differ by no more than both radii and the distance of their recipes
(`compare.pair`). Where both are inside their own enclosures that is so by the triangle inequality, and nothing is
computed: only where one is outside, all are asked again and their ballots compared (`difftest.judging.ballots`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import Any, Self

from difftest.judging.outcome import Outcome
from strategies.scenario import Scenario

AGREE, DIFFER, UNASKED = "agree", "differ", "unasked"
"""What becomes of a pair that answered the same scenario. UNASKED: one was outside, and this was not looked into."""


@dataclass(frozen=True, kw_only=True)
class Votes:
    """The other candidates on a finding, each in one place.

    against: agrees with the reference and not with the candidate. beside: with the candidate and not with the
    reference. undecided: with both, its radius is too wide to tell. apart: with neither. silent: it did not answer.
    """

    against: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether the candidate stands alone against others and the reference."""
        return bool(self.against) and not self.beside

    def to_json(self) -> dict[str, Any]:
        return {spec.name: list(getattr(self, spec.name)) for spec in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: tuple(names) for name, names in data.items()})


@dataclass(kw_only=True)
class Pairs:
    """How often each two candidates agreed, by (first, second) in the candidates' order."""

    counts: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def add(self, first: str, second: str, result: str, number: int = 1) -> None:
        self.counts.setdefault((first, second), Counter())[result] += number

    def __add__(self, other: Pairs) -> Pairs:
        joined = Pairs()
        for pairs in (self, other):
            for (first, second), counts in pairs.counts.items():
                for result, number in counts.items():
                    joined.add(first, second, result, number)
        return joined

    def to_json(self) -> list[dict[str, Any]]:
        return [{"first": a, "second": b, **counts} for (a, b), counts in self.counts.items()]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Any]]) -> Self:
        counts = {}
        for row in data:
            results = {name: number for name, number in row.items() if name not in ("first", "second")}
            counts[row["first"], row["second"]] = Counter(results)
        return cls(counts=counts)


def answered(outcomes: Iterable[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Each two that have an answer of the layer which was compared with the reference."""
    compared = (outcome for outcome in outcomes if isinstance(outcome.scenario, Scenario))
    yield from combinations([outcome for outcome in compared if outcome.stats is not None], 2)


def outside(outcome: Outcome) -> Outcome | None:
    """The finding that the answer is not inside its enclosure; None when it is."""
    return next((finding for finding in outcome.findings if finding.check == "reference"), None)
