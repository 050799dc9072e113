"""The reducer of our own: a failing scenario to a simplest one that still fails. It needs no Hypothesis choices, so it
serves saved cases, imported ones and races as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from difftest.shrinking.complexity import complexity
from difftest.shrinking.moves import moves
from strategies.plain import AnyScenario


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """scenario: the simplest that failed. runs: calls of the predicate. fixed_point: no move makes it simpler, else
    `max_runs` ended it."""

    scenario: AnyScenario
    runs: int
    fixed_point: bool


class _Spent(Exception):
    """`max_runs` calls of the predicate are used up."""


class _Reducer:
    def __init__(self, start: AnyScenario, still_fails: Callable[[AnyScenario], bool], max_runs: int) -> None:
        self.best = start
        self.runs = 0
        self._still_fails = still_fails
        self._max_runs = max_runs
        self._tried = {start}

    def step(self) -> bool:
        """Make the first move that leads to a simpler failing scenario; False when there is none."""
        limit = complexity(self.best)
        for move in moves(self.best):
            for scenario in move:
                if scenario in self._tried or complexity(scenario) >= limit:
                    continue
                if self.runs >= self._max_runs:
                    raise _Spent
                self._tried.add(scenario)
                self.runs += 1
                if self._still_fails(scenario):
                    self.best = scenario
                    return True
        return False


def reduce(start: AnyScenario, still_fails: Callable[[AnyScenario], bool], *, max_runs: int) -> Reduced:
    """Reduce `start`, which is known to fail, as far as single moves lead; no scenario is tried twice.

    Each accepted move goes down in `complexity`, so that the reduction ends, and the result depends on `start` and the
    answers alone. still_fails: False for a scenario that is unsupported. max_runs: limit on calls of it.
    """
    reducer = _Reducer(start, still_fails, max_runs)
    fixed_point = True
    try:
        while reducer.step():
            pass
    except _Spent:
        fixed_point = False
    return Reduced(scenario=reducer.best, runs=reducer.runs, fixed_point=fixed_point)
