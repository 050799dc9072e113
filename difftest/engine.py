"""The engine: asks a candidate about scenarios, remembers the answers, and never loses the case that was running."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from difftest.checks import CHECKS
from difftest.guard import Spans
from difftest.journal import Journal
from difftest.outcome import Outcome
from difftest.subjects import checks_of
from difftest.trial import STEPS, InProcess
from oracles.base import Oracle
from strategies.plain import AnyScenario

MEMO_SIZE = 1 << 16
"""Outcomes that are remembered; the oldest is forgotten first."""


class Executor(Protocol):
    """Where a scenario runs: in this process (`InProcess`), or in a worker that outlives a crash of the kernel.

    candidate, reference: names that go into the outcome. spans: where the time went. tally: by (check, what
    happened), the latter "ran" or why it did not apply.
    """

    candidate: str
    reference: str
    spans: Spans
    tally: Counter[tuple[str, str]]

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """Write the candidate's ballot on `scenario` (`difftest.ballots`); False when it does not answer it."""

    def run(self, scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """Compare the candidate with the reference, and run those of the reference-free `checks` that apply."""


def check(
    scenario: AnyScenario,
    candidate: Oracle | str,
    reference: Oracle | str = "reference",
    *,
    checks: Collection[str] | None = None,
    device: str = "cpu",
) -> Outcome:
    """Run one differential test: does `candidate` agree with `reference` on `scenario`?

    candidate, reference: an oracle, or what `oracles.get` takes (raises `OracleNotFound`). checks: names of the
    reference-free checks to run; all by default. Raises ValueError for an unknown one.
    """
    return Engine(candidate, reference, device=device).check(scenario, checks=CHECKS if checks is None else checks)


class Engine:
    """One candidate against one reference.

    runs: scenarios that were really run (not remembered). spans: seconds by phase, see `Spans`.
    """

    def __init__(
        self,
        candidate: Oracle | str,
        reference: Oracle | str = "reference",
        *,
        device: str = "cpu",
        journal: Journal | None = None,
        checks: Collection[str] = CHECKS,
        executor: Executor | None = None,
    ) -> None:
        """checks: the reference-free checks that `check` chooses from. executor: `InProcess` by default."""
        self.executor = executor or InProcess(candidate, reference, device=device)
        self.enabled = _known(checks)
        self.runs = 0
        self._journal = journal
        self._memo: dict[tuple[AnyScenario, frozenset[str]], Outcome] = {}

    @property
    def spans(self) -> Spans:
        return self.executor.spans

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome:
        """The outcome of `scenario`, remembered.

        checks: names of the reference-free checks to run where they apply. By default a sample by a hash of the
        scenario, so that a campaign pays for each check about once in `Check.every` scenarios. To shrink or replay a
        finding pass {bucket.check}: any `bucket.check` is accepted, also that of a step that always runs
        ("reference", "prepare", ...).
        """
        chosen = self._sample(scenario) if checks is None else _known(checks)
        key = (scenario, chosen)
        if key not in self._memo:
            if len(self._memo) >= MEMO_SIZE:
                del self._memo[next(iter(self._memo))]
            self._memo[key] = self.run(scenario, chosen)
        return self._memo[key]

    def _sample(self, scenario: AnyScenario) -> frozenset[str]:
        def drawn(name: str) -> bool:
            hashed = hashlib.sha256(f"{scenario.digest}/{name}".encode()).digest()
            return int.from_bytes(hashed[:4], "little") % checks[name].every == 0

        checks = checks_of(scenario)
        enabled = self.enabled & checks.keys()
        return frozenset(name for name in enabled if checks[name].wanted(scenario) or drawn(name))

    def run(self, scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """Run `scenario` with these `checks` once more, whatever is remembered: for what does not fail every time."""
        checks = _known(checks)
        self.runs += 1
        if self._journal is None:
            return self.executor.run(scenario, checks)
        with self._journal.case(scenario, self.executor.candidate, self.executor.reference, checks):
            return self.executor.run(scenario, checks)


def _known(checks: Collection[str]) -> frozenset[str]:
    for name in checks:
        if name not in CHECKS and name not in STEPS:
            raise ValueError(f"checks: {name!r} is not a check: use some of {', '.join(CHECKS)}")
    return frozenset(name for name in checks if name in CHECKS)
