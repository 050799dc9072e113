"""A mistake of a captured call is found among drawn scenarios, and ends in its exact minimum."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from difftest.engine import Engine
from difftest.judging.outcome import Outcome
from difftest.shrinking.shrink import Shrinker
from difftest.stream import Enough, Stream
from strategies import Execution, Scenario, Shape, scenarios

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from captured import Captured, FrozenCounts, FrozenRouting, SecondReplay, StaleX

EXAMPLES = 200
MINIMA = {
    # One expert is enough: the slot that is masked in the replay was not in the capture.
    FrozenRouting: Scenario(execution=Execution(mode="graph", replays=("masks",))),
    FrozenCounts: Scenario(shape=Shape(experts=2), execution=Execution(mode="graph", replays=("ids",))),
    SecondReplay: Scenario(execution=Execution(mode="graph", replays=("same",))),
    StaleX: Scenario(execution=Execution(mode="graph", replays=("x",))),
}


def first_finding(engine: Engine, check: str) -> Outcome:
    found: list[Outcome] = []

    def visit(scenario: Scenario) -> None:
        found.extend(finding for finding in engine.check(scenario, checks={check}).findings if finding.check == check)
        if found:
            raise Enough

    strategy = scenarios(Captured.capability, profile="quick")
    Stream(strategy, base_seed=5, shard=0, count=EXAMPLES).each(visit)
    return found[0]


@pytest.mark.parametrize(("mistake", "smallest"), MINIMA.items(), ids=[mistake.__name__ for mistake in MINIMA])
def test_a_mistake_of_replays_reaches_its_minimum(mistake: type[Captured], smallest: Scenario) -> None:
    engine = Engine(mistake())
    first = first_finding(engine, "replay_eager")
    shrunk = Shrinker(engine, first, lambda *_: None).shrink(None)
    assert shrunk.smallest.scenario == smallest
    assert shrunk.fixed_point
