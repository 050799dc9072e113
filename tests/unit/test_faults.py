"""The twin is right, and every fault of it is a candidate that says what it models."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from difftest.engine import Engine, check
from difftest.judging.outcome import Verdict
from difftest.stream import Stream
from oracles import base
from oracles.faults import FAULTS, KINDS, Twin
from oracles.faults.fault import fault
from oracles.faults.twin import Call
from oracles.problem import build
from strategies import Execution, Scenario, Shape, Values, scenarios


def test_the_twin_agrees_with_its_enclosure_and_passes_every_check():
    engine, drawn = Engine(Twin()), []
    Stream(scenarios(Twin.capability, profile="quick"), base_seed=3, shard=0, count=30).each(drawn.append)
    for scenario in drawn:
        outcome = engine.run(scenario, engine.enabled)
        assert not outcome.is_finding, (outcome.detail, scenario.to_json())


def test_each_tactic_adds_in_an_order_of_its_own_and_stays_enclosed():
    shape = Shape(tokens=9, hidden=256, intermediate=256)
    answers = []
    for tactic in (None, 0, 1, 2):
        scenario = Scenario(shape=shape, values=Values(rule="wide"), execution=Execution(tactic=tactic))
        assert check(scenario, Twin()).verdict is Verdict.AGREES
        blocks = torch.randn(8, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        answers.append(Twin().accumulated(Call(Twin().prepare(build(scenario)), build(scenario)), blocks))
    default, first, second, third = answers
    assert torch.equal(default, first)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_a_replay_reads_the_contents_that_were_written_since():
    twin = Twin()
    scenario = Scenario(shape=Shape(tokens=5, experts=4, top_k=2), execution=Execution(mode="graph"))
    problem = build(scenario)
    other = dataclasses.replace(
        problem,
        hidden_states=problem.hidden_states.flip(0),
        topk_ids=problem.topk_ids.flip(0),
        topk_weights=problem.topk_weights * 2,
    )
    prepared = twin.prepare(problem)
    first = twin(prepared)
    assert torch.equal(twin.replay(prepared, other), twin(twin.prepare(other)))
    assert torch.equal(twin.replay(prepared, problem), first)


def test_a_fault_is_a_candidate_by_its_name():
    oracle = base.get("fault:gate-up-swapped")
    assert oracle.name == "fault:gate-up-swapped"
    assert oracle.numerics == Twin.numerics
    assert base.capability_of(oracle) == Twin.capability
    assert check(Scenario(), oracle).verdict is Verdict.DIVERGES


def test_an_unknown_fault_is_named_with_its_neighbours():
    with pytest.raises(base.OracleNotFound, match=r"fault:gate-up-swap.*no fault of this name.*gate-up-swapped"):
        base.get("fault:gate-up-swap")


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_says_what_it_does_and_what_it_models(name):
    found = FAULTS[name]
    assert found.name == name
    assert found.kind in KINDS
    assert found.summary.endswith(".")
    assert "\n" not in found.summary
    assert found.models
    assert found.meets == () or len(found.meets) >= 2
    assert found.oracle().name == f"fault:{name}"


def test_a_fault_needs_a_new_name_and_a_summary():
    with pytest.raises(ValueError, match="its docstring own"):

        @fault("layout", "nothing")
        class Nameless(Twin):
            pass

    with pytest.raises(ValueError, match="is there already"):

        @fault("layout", "nothing")
        class GateUpSwapped(Twin):
            """Again."""
