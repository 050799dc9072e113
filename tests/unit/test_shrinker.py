from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
from findings import SCENARIO, FakeEngine, agrees, diverges, races

from difftest.judging.outcome import Outcome, Rate
from difftest.shrinking.complexity import covers
from difftest.shrinking.shrink import HYPOTHESIS_RUNS, POWER, RATE_RUNS, Shrinker, magnitude, repeats_for
from difftest.stream import Stream
from strategies import Capability, Scenario, Shape, scenarios

QUICK = scenarios(Capability(), profile="quick")


def stream() -> Stream:
    return Stream(QUICK, base_seed=3, shard=0, count=60)


def first_of(engine: FakeEngine, of=lambda outcome: outcome.is_finding) -> Outcome:
    """As a campaign finds it: all is drawn, the first finding is kept."""
    found = []
    stream().each(lambda scenario: found.append(engine.check(scenario)))
    return next(finding for outcome in found for finding in outcome.findings if of(finding))


def shrink(engine: FakeEngine, first: Outcome, **given):
    seen = []
    shrinker = Shrinker(engine, first, lambda finding, stage, runs: seen.append((finding, stage, runs)), **given)
    return shrinker, seen


def test_both_stages_lead_to_the_minimum():
    engine = FakeEngine(lambda s: diverges(s) if s.shape.tokens > 4 and s.parallel.ep_rank > 0 else agrees(s))
    first = first_of(engine)
    runs_before = engine.runs
    shrinker, seen = shrink(engine, first)
    shrunk = shrinker.shrink(stream())
    assert shrunk.smallest.scenario.shape.tokens == 5
    assert shrunk.smallest.scenario.parallel.ep_size == 2
    assert shrunk.fixed_point
    assert shrunk.runs_hypothesis + shrunk.runs_reducer == engine.runs - runs_before
    assert 0 < shrunk.runs_hypothesis <= HYPOTHESIS_RUNS
    assert [finding for finding, _, _ in seen][-1] == shrunk.smallest


def test_drawing_the_campaigns_scenarios_again_is_free():
    engine = FakeEngine(lambda s: diverges(s) if s.shape.tokens == 17 else agrees(s))
    first = first_of(engine)
    checked = []
    check = engine.check
    engine.check = lambda scenario, **given: checked.append(scenario) or check(scenario, **given)
    runs_before = engine.runs
    shrink(engine, first)[0].shrink(stream())
    position = checked.index(first.scenario)
    assert position >= 0
    assert engine.runs - runs_before <= len(set(checked[position:]))


def test_a_saved_case_goes_to_the_reducer_alone():
    engine = FakeEngine(lambda s: diverges(s) if s.shape.tokens > 2 else agrees(s))
    shrunk = shrink(engine, diverges(SCENARIO))[0].shrink(None)
    assert shrunk.smallest.scenario == Scenario(shape=Shape(tokens=3))
    assert (shrunk.runs_hypothesis, shrunk.fixed_point) == (0, True)


def test_a_budget_of_hypothesis_is_kept(monkeypatch):
    monkeypatch.setattr("difftest.shrinking.shrink.HYPOTHESIS_RUNS", 5)
    engine = FakeEngine(lambda s: diverges(s) if s.shape.tokens > 4 else agrees(s))
    shrunk = shrink(engine, first_of(engine))[0].shrink(stream())
    assert shrunk.runs_hypothesis == 5
    assert shrunk.smallest.scenario == Scenario(shape=Shape(tokens=5))


def test_the_budget_of_the_reducer_is_kept(monkeypatch):
    monkeypatch.setattr("difftest.shrinking.shrink.REDUCER_RUNS", 3)
    engine = FakeEngine(lambda s: diverges(s) if s.shape.tokens > 2 else agrees(s))
    shrunk = shrink(engine, diverges(SCENARIO))[0].shrink(None)
    assert (shrunk.runs_reducer, shrunk.fixed_point) == (3, False)


# --- what counts as the same finding -----------------------------------------------------------------------------


def by_tokens(kinds: dict[int, dict]):
    """A finding whose worst element depends on M, the largest key that is not above it."""

    def answer(scenario: Scenario) -> Outcome:
        keys = [least for least in kinds if scenario.shape.tokens >= least]
        return diverges(scenario, **kinds[max(keys)]) if keys else agrees(scenario)

    return answer


def test_a_gross_error_does_not_shrink_into_a_borderline_one():
    engine = FakeEngine(by_tokens({2: {"error": 1.5, "radius": 1.0}, 9: {"error": 50.0, "radius": 1.0}}))
    first = first_of(engine, lambda finding: finding.scenario.shape.tokens > 8)
    assert shrink(engine, first)[0].shrink(stream()).smallest.scenario.shape.tokens == 9
    slight = first_of(engine, lambda finding: finding.scenario.shape.tokens < 9)
    assert shrink(engine, slight)[0].shrink(stream()).smallest.scenario.shape.tokens == 2


def test_a_wrong_exact_value_is_gross():
    engine = FakeEngine(by_tokens({2: {"error": 3.9, "radius": 1.0}, 9: {"error": 0.001, "radius": 0.0}}))
    shrunk = shrink(engine, diverges(Scenario(shape=Shape(tokens=32)), error=0.001))[0].shrink(None)
    assert shrunk.smallest.scenario.shape.tokens == 9


def test_another_bucket_is_another_finding():
    engine = FakeEngine(by_tokens({2: {"kind": "implausible"}, 9: {"kind": "impossible"}}))
    shrunk = shrink(engine, diverges(Scenario(shape=Shape(tokens=32))))[0].shrink(None)
    assert shrunk.smallest.scenario.shape.tokens == 9


def test_a_finding_beside_another_is_shrunk_as_well():
    def answer(scenario: Scenario) -> Outcome:
        if scenario.shape.tokens < 9:
            return agrees(scenario)
        return dataclasses.replace(diverges(scenario), other_findings=(diverges(scenario, check="pad"),))

    engine = FakeEngine(answer)
    first = first_of(engine, lambda finding: finding.check == "pad")
    smallest = shrink(engine, first)[0].shrink(stream()).smallest
    assert (smallest.check, smallest.other_findings, smallest.scenario.shape.tokens) == ("pad", (), 9)


def test_what_a_known_form_covers_does_not_count():
    def answer(scenario: Scenario) -> Outcome:
        return diverges(scenario) if scenario.shape.tokens > 8 or scenario.shape.hidden > 64 else agrees(scenario)

    engine = FakeEngine(answer)
    known = Scenario(shape=Shape(tokens=9))
    first = diverges(Scenario(shape=Shape(tokens=3, hidden=256)))
    smallest = shrink(engine, first, is_known=partial(covers, known))[0].shrink(None).smallest.scenario
    assert smallest == Scenario(shape=Shape(tokens=0, hidden=96))


def test_a_smaller_scenario_of_another_bucket_is_the_better_start():
    engine = FakeEngine(lambda s: diverges(s) if s.shape.tokens > 4 else agrees(s))
    first = first_of(engine)
    hint = Scenario(shape=Shape(tokens=6, experts=2))
    shrunk = shrink(engine, first)[0].shrink(stream(), hints=[Scenario(), hint])
    assert shrunk.smallest.scenario == Scenario(shape=Shape(tokens=5))
    assert shrunk.runs_hypothesis == 0


def test_the_worst_is_kept_beside_the_smallest():
    engine = FakeEngine(lambda s: diverges(s, error=float(s.shape.tokens), radius=0.1) if s.shape.tokens else agrees(s))
    shrunk = shrink(engine, diverges(Scenario(shape=Shape(tokens=30)), error=30.0, radius=0.1))[0].shrink(None)
    assert shrunk.smallest.scenario.shape.tokens == 1
    assert shrunk.worst.scenario.shape.tokens == 30


@pytest.mark.parametrize(
    ("finding", "size"),
    [
        (diverges(error=6.0, radius=2.0), (3.0, 6.0)),
        (diverges(error=6.0, radius=0.0), (math.inf, 6.0)),
        (diverges(error=math.nan, radius=2.0), (math.inf, math.inf)),
        (races(SCENARIO, 1, 8), (0.0, 0.0)),
    ],
)
def test_magnitude(finding, size):
    assert magnitude(finding) == size


# --- races -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [Rate(failures=n, runs=64) for n in (1, 2, 5, 20, 60, 63, 64)], ids=str)
def test_repeats_see_a_race_often_enough(rate):
    tries = repeats_for(rate) - 1
    assert 1 - (1 - float(rate)) ** tries >= POWER
    assert tries == 1 or 1 - (1 - float(rate)) ** (tries - 1) < POWER


def test_a_race_goes_to_the_reducer_with_repeats():
    def answer(scenario: Scenario) -> Outcome:
        runs = scenario.execution.repeats
        if scenario.shape.tokens < 7 or runs < 11:  # seen with a chance of about 1 in 4 a run
            return agrees(scenario)
        return races(scenario, runs // 4, runs)

    engine = FakeEngine(answer)
    first = races(dataclasses.replace(SCENARIO, shape=Shape(tokens=40, experts=2)), 1, 8)
    shrunk = shrink(engine, first)[0].shrink(stream())
    assert shrunk.runs_hypothesis == 0
    assert shrunk.smallest.scenario.shape == Shape(tokens=7)
    assert shrunk.smallest.scenario.execution.repeats == repeats_for(Rate(failures=RATE_RUNS // 4, runs=RATE_RUNS))
    assert shrunk.fixed_point


def test_an_answer_that_changes_never_makes_hypothesis_fail():
    calls = 0

    def answer(scenario: Scenario) -> Outcome:
        nonlocal calls
        calls += 1
        return diverges(scenario) if calls % 3 else agrees(scenario)

    engine = FakeEngine(answer)
    first = first_of(engine)
    shrunk = shrink(engine, first)[0].shrink(stream())
    assert shrunk.smallest.is_finding
