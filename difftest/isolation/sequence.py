"""A failure that needs earlier cases in its process, and the shortest list of these that still brings it about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategies.plain import AnyScenario

TRIES = 60
"""Runs that `shorten` may take: each of them in a process of its own."""


@dataclass(frozen=True)
class Step:
    """A case that ran earlier in the same process. checks: those that ran with it, sorted."""

    scenario: AnyScenario
    checks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"scenario": self.scenario.to_json(), "checks": list(self.checks)}


def shorten(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool], tries: int = TRIES) -> tuple[Step, ...]:
    """A part of `steps`, in their order, that still `fails`, by delta debugging (Zeller and Hildebrandt, ddmin).

    `steps` themselves fail. No single step of the result can be left out, unless `tries` ended first.
    """
    kept = tuple(steps)
    parts = 2
    while len(kept) >= 1 and tries > 0:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            if not tries:
                break
            tries -= 1
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept
