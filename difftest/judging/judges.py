"""The engine of one candidate in a campaign, which goes on where the journal does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from difftest.engine import Engine, Executor, Pending
from difftest.explain.explanation import Explanation
from difftest.isolation.sequence import Step, shorten
from difftest.journal import Journal, JournalError
from difftest.judging.checks import CHECKS
from difftest.judging.outcome import Outcome, Verdict
from strategies.plain import AnyScenario


class Judge:
    """Judges scenarios for one candidate.

    runs: scenarios that were really run. introduction: what the candidate says of itself. ahead: see `Executor`.
    """

    def __init__(
        self, executor: Executor, journal: Journal | None, lost_journal: Callable[[JournalError], None]
    ) -> None:
        """lost_journal: called when the journal fails, as on a full disk; the candidate then runs without one."""
        self._executor = executor
        self._journal = journal
        self._lost_journal = lost_journal
        self._runs_before = 0
        self._dies_in_checks = False
        self._engine = self._new_engine()
        self.introduction = executor.introduction

    def _new_engine(self) -> Engine:
        executor = self._executor
        return Engine(executor.candidate, executor.reference, journal=self._journal, executor=executor)

    @property
    def runs(self) -> int:
        return self._runs_before + self._engine.runs

    @property
    def ahead(self) -> int:
        return self._executor.ahead

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome:
        """See `Engine.check`."""
        return self.submit(scenario, checks=checks).result()

    def submit(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Pending:
        """See `Engine.submit`."""
        if self._dies_in_checks and checks is not None and "process" in checks:
            checks = CHECKS
        try:
            return _Judged(self, self._engine.submit(scenario, checks=checks), scenario, checks)
        except JournalError as error:
            return self.without_journal(error).submit(scenario, checks=checks)

    def without_journal(self, error: JournalError) -> Engine:
        """The engine from here on."""
        if self._journal is not None:
            self._journal = None
            self._lost_journal(error)
            self._renew()
        return self._engine

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """See `Executor.explain`."""
        return self._executor.explain(smallest, worst)

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """See `Executor.ballot`."""
        return self._executor.ballot(scenario, path)

    def move(self, executor: Executor) -> None:
        """From now on run the candidate there."""
        self._executor = executor
        self._renew()

    def _renew(self) -> None:
        self._runs_before = self.runs
        self._engine = self._new_engine()

    # --- what a finding needs --------------------------------------------------------------------------------------

    def sequence(self, finding: Outcome) -> tuple[Step, ...] | None:
        """Earlier cases of its process that `finding` needs, as few as were found: none when it comes of its own
        scenario alone, which is taken for granted where cases are not isolated. None: it was not seen again."""
        if self.stands(finding):
            return ()
        before = self._executor.before(finding)
        checks = sequence_checks(finding.check)
        if not before or not self._comes_after(before, finding, checks):
            return None
        return shorten(before, lambda steps: self._comes_after(steps, finding, checks))

    def stands(self, finding: Outcome) -> bool:
        """Whether a new process shows the finding too. A race need not, and is measured instead."""
        if finding.verdict is Verdict.NONDETERMINISTIC or not self._executor.isolated:
            return True
        if not self._dies_in_checks and self._comes_after((), finding, {finding.check}):
            return True
        if finding.check != "process":
            return False
        # Which case ended the process is known, not which of its calls: if not the first, then that of a check.
        self._dies_in_checks = self._comes_after((), finding, CHECKS)
        return self._dies_in_checks

    def _comes_after(self, steps: Sequence[Step], finding: Outcome, checks: Collection[str]) -> bool:
        outcome = self._engine.run_afresh(steps, finding.scenario, checks)
        return finding.bucket in {seen.bucket for seen in outcome.findings}


def sequence_checks(check: str) -> Collection[str]:
    """The checks to run so that a finding of this one shows after a sequence: what ends a process may be in any."""
    return CHECKS if check == "process" else {check}


@dataclass(frozen=True)
class _Judged:
    """A case of a judge, which asks again where the journal could not say that it is over."""

    judge: Judge
    pending: Pending
    scenario: AnyScenario
    checks: Collection[str] | None

    def result(self) -> Outcome:
        try:
            return self.pending.result()
        except JournalError as error:
            return self.judge.without_journal(error).check(self.scenario, checks=self.checks)
