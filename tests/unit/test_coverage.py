"""What a campaign drew of the space of scenarios, and what it says of the rest."""

from __future__ import annotations

import dataclasses
import json

import pytest

from difftest.coverage import AXES, Coverage, Tally
from difftest.output.describe import coverage_lines
from difftest.stream import Stream
from oracles.faults import Twin
from strategies import Capability, Execution, MaskSlot, Parallel, Routing, Scenario, Shape, Situ, scenarios


def drawn(capability, count, profile="quick"):
    tally = Tally(capability)
    Stream(scenarios(capability, profile=profile), base_seed=1, shard=0, count=count).each(tally.take)
    return tally.coverage


@pytest.fixture(scope="module")
def campaign():
    return drawn(Twin.capability, 1000)


def test_a_scenario_counts_for_a_value_of_each_axis_and_for_their_pairs():
    tally = Tally(Capability())
    edits = (MaskSlot(token=0, slot=0), MaskSlot(token=1, slot=0))
    tally.take(Scenario(shape=Shape(tokens=2, experts=4), routing=Routing(edits=edits), parallel=Parallel(ep_size=2)))
    tally.take(Scenario(activation=Situ(per_expert=True)))
    coverage = tally.coverage
    assert coverage.values["slots", "masked"] == 1
    assert coverage.values["rank", "first"] == 1
    assert coverage.values["activation", "situ per expert"] == 1
    assert coverage.values["mode", "eager"] == 2
    assert (("tokens", "2-8"), ("slots", "masked")) in coverage.pairs
    assert (("tokens", "1"), ("slots", "masked")) not in coverage.pairs
    for axis in AXES:
        assert sum(n for (name, _), n in coverage.values.items() if name == axis.name) == 2


def test_every_value_that_is_drawn_is_one_of_its_axis_and_within_the_capability(campaign):
    capability = Capability(hidden_multiple=128, non_finite=False, expert_parallel=False)
    for coverage, known in ((campaign, Tally(Twin.capability)), (drawn(capability, 200), Tally(capability))):
        assert set(coverage.values) == set(known.coverage.values)
        assert coverage.pairs <= coverage.possible_pairs


def test_a_campaign_of_the_twin_reaches_every_value(campaign):
    assert campaign.missing_values == []


def test_parts_add_up_and_come_back_from_json():
    first, second = drawn(Twin.capability, 20), drawn(Capability(), 30)
    both = first + second
    assert both.values["precision", "bf16xmxfp4"] == sum(c.values["precision", "bf16xmxfp4"] for c in (first, second))
    assert both.pairs == first.pairs | second.pairs
    assert both + Coverage() == both
    assert Coverage.from_json(json.loads(json.dumps(both.to_json()))) == both


@pytest.mark.parametrize(
    ("capability", "value"),
    [
        (Capability(hidden_multiple=128), ("H", "one group")),
        (Capability(expert_parallel=False), ("rank", "last")),
        (Capability(experts_multiple=2), ("experts", "1")),
        (Capability(), ("tactic", "given")),
        (Capability(), ("mode", "replayed")),
        (Capability(empty_batch=False), ("tokens", "0")),
    ],
)
def test_what_a_kernel_never_gets_is_not_counted_as_a_gap(capability, value):
    assert value not in Tally(capability).coverage.values
    assert value in Tally(Twin.capability).coverage.values


def test_the_lines_name_what_was_not_drawn():
    tally = Tally(Twin.capability)
    for tokens in range(3):
        tally.take(Scenario(shape=Shape(tokens=tokens), execution=Execution(poison=tokens)))
    first, absent = coverage_lines(tally.coverage)
    total = len(tally.coverage.values)
    assert first.startswith(f"coverage: {total - len(tally.coverage.missing_values)} of {total} axis values, ")
    assert absent.startswith("  never drawn: tokens 9-32, tokens 33+, H odd groups, ")
    assert absent.endswith("more")
    assert coverage_lines(Coverage()) == []


def test_with_every_value_drawn_the_lines_name_the_pairs_of_axes_with_most_gaps(campaign):
    coverage = campaign
    first, gaps = coverage_lines(coverage)
    assert first.count("of") == 3
    assert gaps.startswith("  most gaps: ")
    whole = dataclasses.replace(coverage, pairs=coverage.possible_pairs)
    assert coverage_lines(whole) == [first.split(", ")[0] + f", {len(whole.pairs)} of {len(whole.pairs)} pairs of them"]
