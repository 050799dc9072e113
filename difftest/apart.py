"""Scenarios run in a process apart, for a candidate that is known to take its process with it."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Self

from difftest.guard import Spans
from difftest.journal import Case
from difftest.outcome import Outcome
from difftest.trial import InProcess
from strategies.plain import AnyScenario

_process: InProcess
"""Of the process apart: made once, by `_enter`."""


def _enter(candidate: str, reference: str) -> None:
    global _process  # what a pool's initializer can leave for its tasks
    _process = InProcess(candidate, reference)


def _ready() -> None:
    """A process that cannot even do this did not start."""


def _run(scenario: AnyScenario, checks: Collection[str]) -> Outcome:
    return _process.run(scenario, checks)


def _ballot(scenario: AnyScenario, path: Path) -> bool:
    return _process.ballot(scenario, path)


class Apart:
    """An executor whose process is started anew after each scenario that ends it; that one's outcome is CRASHED.

    candidate, reference: what `oracles.get` takes. spans, tally: empty, all happens elsewhere.
    """

    def __init__(self, candidate: str, reference: str) -> None:
        self.candidate = candidate
        self.reference = reference
        self.spans = Spans()
        self.tally: Counter[tuple[str, str]] = Counter()
        self._pool: ProcessPoolExecutor | None = None

    def run(self, scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """The outcome of `scenario`. What `InProcess` would raise, this raises; RuntimeError when no process starts."""
        if self._pool is None:
            self._pool = self._started()
        try:
            return self._pool.submit(_run, scenario, checks).result()
        except BrokenProcessPool:
            self.close()
            chosen = tuple(sorted(checks))
            case = Case(scenario=scenario, candidate=self.candidate, reference=self.reference, checks=chosen)
            return case.crashed()

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        arguments = (self.candidate, self.reference)
        pool = ProcessPoolExecutor(1, mp_context=context, initializer=_enter, initargs=arguments)
        try:
            pool.submit(_ready).result()
        except BrokenProcessPool:
            raise RuntimeError(f"{self.candidate}: the process to run it apart ends before it runs anything") from None
        return pool

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """See `InProcess.ballot`. A process that ends over it has no vote."""
        if self._pool is None:
            self._pool = self._started()
        try:
            return self._pool.submit(_ballot, scenario, path).result()
        except BrokenProcessPool:
            self.close()
            return False

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
