"""Mistakes that only the MXFP8 x MXFP4 path can have are caught on the emulation."""

from __future__ import annotations

import pytest

import oracles
from difftest.engine import Engine
from difftest.judging.outcome import Outcome
from difftest.stream import Enough, Stream
from oracles.emulated_sm120 import EmulatedSm120
from oracles.faults import FAULTS, SM120_FAULTS
from strategies import Scenario, scenarios

RARE = {"sm120-duplicate-lost", "sm120-nan-taints-its-block", "sm120-byte-ff-is-finite"}
"""Those that need an edit of one kind: benchmarks/detection.py has the budget for them."""


@pytest.mark.parametrize("name", sorted(SM120_FAULTS.keys() - RARE))
def test_a_fault_is_caught(name: str) -> None:
    engine = Engine(f"fault:{name}")
    found: list[Outcome] = []

    def visit(scenario: Scenario) -> None:
        outcome = engine.check(scenario, checks=())
        if outcome.is_finding:
            found.append(outcome)
            raise Enough

    strategy = scenarios(EmulatedSm120.capability, profile="quick")
    Stream(strategy, base_seed=1, shard=0, count=60).each(visit)
    assert found, SM120_FAULTS[name].summary


def test_names_are_apart_from_the_other_faults() -> None:
    assert len(SM120_FAULTS) >= 20
    assert not SM120_FAULTS.keys() & FAULTS.keys()
    assert all(oracles.get(f"fault:{name}").name == f"fault:{name}" for name in SM120_FAULTS)
