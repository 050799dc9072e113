"""The engine: asks a candidate about scenarios, remembers the answers, and never loses the case that was running."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from difftest.calibration import Calibration
from difftest.explain.explanation import Explanation
from difftest.isolation.introduction import Introduction
from difftest.isolation.sequence import Step
from difftest.journal import Entry, Journal
from difftest.judging.checks import CHECKS
from difftest.judging.guard import Spans
from difftest.judging.outcome import Outcome
from difftest.judging.subjects import checks_of
from difftest.judging.timing import Timing
from difftest.judging.trial import STEPS, InProcess
from oracles.base import Oracle
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

MEMO_SIZE = 1 << 16
"""Outcomes that are remembered; the oldest is forgotten first."""


class Pending(Protocol):
    """A case that was handed over."""

    def result(self) -> Outcome:
        """Wait for its outcome."""


class Executor(Protocol):
    """Runs the cases of one candidate: `InProcess`, or `Workers` in processes that outlive no crash of the kernel.

    candidate, reference: names that go into the outcome. isolated: whether the cases run in processes of their own.
    ahead: cases that are worth handing over before the outcome of the first is needed. introduction: what the
    candidate says of itself where it runs. spans: where the time went. tally: by (check, what happened), the latter
    "ran" or why it did not apply.
    """

    candidate: str
    reference: str
    isolated: bool
    ahead: int

    @property
    def introduction(self) -> Introduction: ...

    @property
    def spans(self) -> Spans: ...

    @property
    def tally(self) -> Counter[tuple[str, str]]: ...

    def submit(self, scenario: AnyScenario, checks: Collection[str]) -> Pending:
        """Begin to compare the candidate with the reference, and to run those reference-free `checks` that apply."""

    def run_afresh(self, steps: Sequence[Step], scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """The outcome of `scenario` in a process that ran `steps` before it and nothing else."""

    def before(self, finding: Outcome) -> tuple[Step, ...]:
        """The cases that ran in the same process before the one that showed `finding`, the latest last."""

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """Write the candidate's ballot on `scenario` (`difftest.judging.ballots`); False when it does not answer it."""

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """What a finding is due to, asking the candidate where it is."""

    def calibrate(self) -> Calibration:
        """Measure the candidate's accumulators, keep that, and judge by it from now on.

        Raises `difftest.probe.Unmeasurable`, or OSError where it cannot be kept.
        """

    def libraries(self) -> Mapping[str, str]:
        """The kernel libraries that its processes have loaded so far: sha256 by path."""

    def time(self, scenario: Scenario) -> Timing:
        """How long the candidate's call takes. Raises `difftest.judging.timing.Untimed`."""

    def close(self) -> None:
        """End what was started."""


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
        self._memo: dict[tuple[AnyScenario, frozenset[str]], Pending] = {}

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
        return self.submit(scenario, checks=checks).result()

    def submit(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Pending:
        """Begin what `check` does; its result is `check`'s. An executor that is this process has it done already."""
        chosen = self._sample(scenario) if checks is None else _known(checks)
        key = (scenario, chosen)
        if key not in self._memo:
            if len(self._memo) >= MEMO_SIZE:
                del self._memo[next(iter(self._memo))]
            self._memo[key] = self._begun(scenario, chosen)
        return self._memo[key]

    def _sample(self, scenario: AnyScenario) -> frozenset[str]:
        digest = scenario.digest

        def drawn(name: str) -> bool:
            hashed = hashlib.sha256(f"{digest}/{name}".encode()).digest()
            return int.from_bytes(hashed[:4], "little") % checks[name].every == 0

        checks = checks_of(scenario)
        enabled = self.enabled & checks.keys()
        return frozenset(name for name in enabled if checks[name].wanted(scenario) or drawn(name))

    def run(self, scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """Run `scenario` with these `checks` once more, whatever is remembered: for what does not fail every time."""
        return self._begun(scenario, _known(checks)).result()

    def run_afresh(self, steps: Sequence[Step], scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """Run `scenario` once more, in a process that ran `steps` before it and nothing else."""
        self.runs += 1
        return self.executor.run_afresh(steps, scenario, _known(checks))

    def _begun(self, scenario: AnyScenario, checks: frozenset[str]) -> Pending:
        self.runs += 1
        executor = self.executor
        if self._journal is None:
            return executor.submit(scenario, checks)
        entry = self._journal.begin(
            scenario, executor.candidate, executor.reference, checks, isolated=executor.isolated
        )
        try:
            pending = executor.submit(scenario, checks)
        except BaseException:
            entry.finish()
            raise
        if not executor.isolated:
            entry.finish()
        return _Journaled(pending, entry)


@dataclass(frozen=True)
class _Journaled:
    """A case that is over in the journal once its outcome is there."""

    pending: Pending
    entry: Entry

    def result(self) -> Outcome:
        try:
            return self.pending.result()
        finally:
            self.entry.finish()


def _known(checks: Collection[str]) -> frozenset[str]:
    for name in checks:
        if name not in CHECKS and name not in STEPS:
            raise ValueError(f"checks: {name!r} is not a check: use some of {', '.join(CHECKS)}")
    # What runs always needs no name, but of the inputs a case is made for it (`trial.SEEN`).
    return frozenset(name for name in checks if name in CHECKS or name == "inputs")
