"""Further scenarios: those near a case, which is crossed with drawn ones part by part, and the drawn ones themselves.

They tell hypotheses apart, and say what a breach depends on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from difftest.shrinking.refit import replaced
from difftest.stream import ROUND, Stream
from strategies import scenarios
from strategies.capability import Capability
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

_PARTS = (
    ("shape", "parallel", "capture"),
    ("activation",),
    ("precision",),
    ("output_dtype",),
    ("layer",),
    ("routing",),
    ("values",),
    ("execution",),
)
"""What is taken from one of the two scenarios, together."""

SHARES = (0.85, 0.6, 0.85, 0.3)
"""Chances of a part to be the case's, in turn: most scenarios are much like the case, which shows the mistake."""

MOST_ROWS, MOST_WORK = 64, 1 << 22
"""Limits of a scenario: rows, and rows times elements of the weights."""


def drawn(case: Scenario, capability: Capability, count: int) -> Iterator[Scenario]:
    """Up to `count` scenarios that a campaign may draw, the same ones for the same case."""
    strategy = scenarios(capability, profile="quick")
    for shard in range(-(-count // ROUND)):
        found: list[AnyScenario] = []
        Stream(strategy, base_seed=int(case.digest, 16), shard=shard, count=ROUND).each(found.append)
        for scenario in found:
            assert isinstance(scenario, Scenario)  # the strategy gives no other
            yield scenario


def near(case: Scenario, capability: Capability, count: int) -> Iterator[Scenario]:
    """Up to `count` distinct scenarios, the same ones for the same case."""
    source, seen = random.Random(int(case.digest, 16)), {case}
    for number, other in enumerate(drawn(case, capability, 2 * count)):
        for crossed in _crossed(case, other, SHARES[number % len(SHARES)], source):
            if crossed not in seen and len(seen) <= count and _is_small(crossed):
                seen.add(crossed)
                yield crossed


def _crossed(case: Scenario, other: Scenario, share: float, source: random.Random) -> Iterator[Scenario]:
    """A scenario with parts of both, and the edits of one; seeds are the other's, so that contents differ."""
    holder, giver = (case, other) if source.random() < share else (other, case)
    parts: dict[str, Any] = {}
    for names in _PARTS:
        origin = case if source.random() < share else other
        if origin is giver:
            parts |= {name: getattr(giver, name) for name in names}
    for crossed in replaced(holder, **parts):
        values = dataclasses.replace(crossed.values, seed=other.values.seed)
        routing = dataclasses.replace(crossed.routing, seed=other.routing.seed)
        yield dataclasses.replace(crossed, values=values, routing=routing)


def _is_small(scenario: Scenario) -> bool:
    shape, rows = scenario.shape, scenario.shape.tokens + scenario.execution.padding
    work = max(rows, 1) * shape.hidden * scenario.intermediate_local * scenario.experts_local
    return rows <= MOST_ROWS and work <= MOST_WORK
