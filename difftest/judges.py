"""The engine of one candidate in a campaign, which goes on where the journal or the candidate's process does not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from difftest.apart import Apart
from difftest.engine import Engine
from difftest.explain.explainer import explain
from difftest.explain.explanation import Explanation
from difftest.journal import Journal, JournalError
from difftest.outcome import Outcome
from oracles import base
from strategies.plain import AnyScenario


class Judge:
    """Judges scenarios for one candidate: in this process with a journal, or apart once it is known to crash.

    runs: scenarios that were really run.
    """

    def __init__(
        self, candidate: str, reference: str, journal: Journal | None, lost_journal: Callable[[JournalError], None]
    ) -> None:
        """lost_journal: called when the journal fails, as on a full disk; the candidate then runs without one."""
        self._candidate = candidate
        self._reference = reference
        self._lost_journal = lost_journal
        self._apart: Apart | None = None
        self._engine = Engine(candidate, reference, journal=journal)
        self._runs_before = 0

    @property
    def runs(self) -> int:
        return self._runs_before + self._engine.runs

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome:
        """See `Engine.check`."""
        try:
            return self._engine.check(scenario, checks=checks)
        except JournalError as error:
            self._lost_journal(error)
            self._renew(Engine(self._candidate, self._reference))
            return self._engine.check(scenario, checks=checks)

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """What the finding is due to, asking the candidate where that can be done in this process."""
        return explain(base.find(self._candidate), smallest, worst, asks=self._apart is None)

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """See `Executor.ballot`."""
        return self._engine.executor.ballot(scenario, path)

    def isolate(self) -> None:
        """From now on run the candidate in a process apart."""
        if self._apart is None:
            self._apart = Apart(self._candidate, self._reference)
            self._renew(Engine(self._candidate, self._reference, executor=self._apart))

    def close(self) -> None:
        """End the process apart, if there is one."""
        if self._apart is not None:
            self._apart.close()

    def _renew(self, engine: Engine) -> None:
        self._runs_before = self.runs
        self._engine = engine
