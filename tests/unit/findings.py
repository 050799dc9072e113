"""Findings for the tests of what happens to them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from difftest.explain.explanation import Explanation
from difftest.fingerprint import Fingerprint
from difftest.isolation.sequence import Step
from difftest.judging.outcome import Agreement, Outcome, Rate, Verdict, Worst
from difftest.ledger.cases import Case, Found
from strategies import Parallel, Scenario, Shape

SCENARIO = Scenario(shape=Shape(tokens=5, experts=2, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1))
STATS = Agreement(
    elements=32,
    compared=32,
    exact=32,
    mismatches=0,
    median_ratio=None,
    max_ratio=None,
    rms=1.0,
    mean_radius=0.0,
    radius_model=1,
    lam=9.0,
    unit_roundoffs=(2.0**-24, 2.0**-24),
)
HERE = Fingerprint(
    difftest="0.1.0",
    python="3.11.7",
    torch="2.11.0",
    platform="Linux",
    arch="x86_64",
    cpu="a CPU",
    isa="AVX2",
    packages={"kernels": "1.2.0"},
    radius_model=1,
    lam=9.0,
)


def diverges(
    scenario: Scenario = SCENARIO, *, error: float = 1.0, radius: float = 0.0, kind: str = "impossible", **changes: Any
) -> Outcome:
    """A finding whose worst element is off by `error`."""
    worst = Worst(
        token=0, column=0, got=error, center=0.0, hard=(-radius, radius), sharp=(-radius, radius), radius=radius
    )
    fields: dict[str, Any] = {
        "candidate": "fake",
        "reference": "reference",
        "check": "reference",
        "detail": f"off by {error}",
    }
    return Outcome(verdict=Verdict.DIVERGES, scenario=scenario, kind=kind, worst=worst, **(fields | changes))


def agrees(scenario: Scenario = SCENARIO) -> Outcome:
    return Outcome(verdict=Verdict.AGREES, scenario=scenario, candidate="fake", reference="reference", stats=STATS)


def races(scenario: Scenario, failures: int, runs: int) -> Outcome:
    return Outcome(
        verdict=Verdict.NONDETERMINISTIC,
        scenario=scenario,
        candidate="fake",
        reference="reference",
        check="determinism",
        kind="not_bit_equal",
        detail="differs from call to call",
        rate=Rate(failures=failures, runs=runs),
    )


def case(outcome: Outcome | None = None, **changes: Any) -> Case:
    outcome = outcome or diverges()
    found = Found(seed=7, shard=3, command="difftest run --seed 7")
    return Case(**({"outcome": outcome, "worst": outcome, "environment": HERE, "found": found} | changes))


class FakeEngine:
    """An engine that answers by a function, remembers, and counts."""

    def __init__(self, answer: Callable[[Scenario], Outcome]) -> None:
        self._answer = answer
        self._memo: dict[tuple[Scenario, frozenset[str]], Outcome] = {}
        self.runs = 0

    def check(self, scenario: Scenario, *, checks: Collection[str] | None = None) -> Outcome:
        key = (scenario, frozenset(checks or ()))
        if key not in self._memo:
            self.runs += 1
            self._memo[key] = self._answer(scenario)
        return self._memo[key]

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:  # noqa: ARG002
        return Explanation(suspected="layout", bad_set=f"{smallest.scenario.shape.tokens} rows")

    def sequence(self, _finding: Outcome) -> tuple[Step, ...] | None:
        return ()

    def stands(self, _finding: Outcome) -> bool:
        return True
