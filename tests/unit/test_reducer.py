from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from difftest.shrinking.complexity import complexity, covers
from difftest.shrinking.reducer import reduce
from difftest.shrinking.refit import changed
from difftest.shrinking.search import smaller, smaller_widths
from difftest.stream import Stream
from strategies import (
    AssignExpert,
    Capability,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    SwigluOai,
    ValueEdit,
    Values,
    scenarios,
)

LARGE = Scenario(
    shape=Shape(tokens=33, hidden=384, intermediate=512, experts=12, top_k=4),
    parallel=Parallel(ep_size=4, ep_rank=3),
    activation=SwigluOai(alpha=0.5, limit=math.inf, per_expert=True),
    output_dtype="float16",
    layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=1, routed_scaling_factor=2.5),
    routing=Routing(
        rule="skewed",
        seed=77,
        edits=(
            MaskRow(token=3),
            MaskSlot(token=31, slot=3),
            AssignExpert(token=4, slot=2, expert=11),
            DuplicateSlot(token=32, slot=1, source=3),
            SetWeight(token=0, slot=0, weight=math.nan),
        ),
    ),
    values=Values(
        rule="wide",
        seed=5,
        x_exponent=-9,
        scale_low=100,
        scale_high=140,
        edits=(
            ValueEdit(tensor="hidden_states", index=(32, 383), value="inf"),
            ValueEdit(tensor="w13_scale", index=(11, 300, 11), value=254),
            ValueEdit(tensor="w2_scale", index=(0, 383, 7), value=0),
        ),
    ),
    execution=Execution(mode="graph", replays=("all", "x", "same"), padding=5, tactic=2, repeats=3, poison=255),
)


def drawn(count: int) -> list[Scenario]:
    found: list[Scenario] = []
    everything = Capability(modes=frozenset({"eager", "graph"}), precisions=frozenset({"bf16xmxfp4", "mxfp8xmxfp4"}))
    Stream(scenarios(everything, profile="quick"), base_seed=1, shard=0, count=count).each(found.append)
    return found


def reduced(fails, start: Scenario = LARGE) -> Scenario:
    assert fails(start)
    result = reduce(start, fails, max_runs=1000)
    assert fails(result.scenario)
    assert result.fixed_point
    return result.scenario


def test_what_always_fails_ends_at_nothing():
    assert reduced(lambda _: True) == Scenario(shape=Shape(tokens=0))


@pytest.mark.parametrize("start", drawn(40), ids=lambda scenario: scenario.digest)
def test_any_scenario_ends_at_nothing(start):
    assert reduced(lambda _: True, start) == Scenario(shape=Shape(tokens=0))


SMALLEST = [
    (lambda s: s.shape.tokens >= 5, Scenario(shape=Shape(tokens=5))),
    (lambda s: s.shape.tokens % 8 == 1 and s.shape.tokens > 8, Scenario(shape=Shape(tokens=9))),
    (lambda s: s.shape.tokens + s.execution.padding > 36, Scenario(shape=Shape(tokens=37))),
    (lambda s: s.shape.tokens > 0 and s.shape.hidden % 128 == 0, Scenario(shape=Shape(tokens=1, hidden=128))),
    (
        lambda s: s.shape.hidden % 128 == 0 and s.intermediate_local % 64 == 0,
        Scenario(shape=Shape(tokens=0, hidden=128, intermediate=64)),
    ),
    (lambda s: s.shape.hidden > 200, Scenario(shape=Shape(tokens=0, hidden=224))),
    (
        lambda s: s.parallel.ep_rank > 0 and s.shape.top_k > 1,
        Scenario(shape=Shape(tokens=0, experts=2, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1)),
    ),
    (
        lambda s: s.experts_local > 2 and s.parallel.ep_size > 1,
        Scenario(shape=Shape(tokens=0, experts=6), parallel=Parallel(ep_size=2)),
    ),
    (
        lambda s: s.layer.moe_tp_rank > 0,
        Scenario(shape=Shape(tokens=0, intermediate=64), layer=Layer(moe_tp_size=2, moe_tp_rank=1)),
    ),
    (
        lambda s: getattr(s.activation, "per_expert", False),
        Scenario(shape=Shape(tokens=0), activation=SwigluOai(per_expert=True)),
    ),
    (
        lambda s: s.activation.kind == "swiglu_oai" and s.activation.limit == math.inf,
        Scenario(shape=Shape(tokens=0), activation=SwigluOai(limit=math.inf)),
    ),
    (
        lambda s: s.values.x_exponent < -5,
        Scenario(shape=Shape(tokens=0), values=Values(x_exponent=-6)),
    ),
    (
        lambda s: s.execution.mode == "graph" and len(s.execution.replays) > 1,
        Scenario(shape=Shape(tokens=0), execution=Execution(mode="graph", replays=("same", "same"))),
    ),
    (
        lambda s: "x" in s.execution.replays,
        Scenario(shape=Shape(tokens=0), execution=Execution(mode="graph", replays=("x",))),
    ),
    (
        lambda s: any(isinstance(edit, MaskRow) for edit in s.routing.edits),
        Scenario(routing=Routing(edits=(MaskRow(token=0),))),
    ),
    (
        lambda s: any(isinstance(edit, DuplicateSlot) and edit.slot != edit.source for edit in s.routing.edits),
        Scenario(shape=Shape(experts=2, top_k=2), routing=Routing(edits=(DuplicateSlot(token=0, slot=0, source=1),))),
    ),
    (
        lambda s: any(edit.tensor == "w13_scale" and edit.value > 200 for edit in s.values.edits),
        Scenario(
            shape=Shape(tokens=0),
            values=Values(edits=(ValueEdit(tensor="w13_scale", index=(0, 0, 0), value=201),)),
        ),
    ),
    (
        lambda s: s.shape.tokens > 1 and any(edit.tensor == "hidden_states" for edit in s.values.edits),
        Scenario(
            shape=Shape(tokens=2),
            values=Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="nan"),)),
        ),
    ),
    (lambda s: s.values.rule == "wide", Scenario(shape=Shape(tokens=0), values=Values(rule="wide"))),
    (lambda s: s.output_dtype == "float16", Scenario(shape=Shape(tokens=0), output_dtype="float16")),
    (lambda s: s.routing.seed % 4 == 1, Scenario(shape=Shape(tokens=0), routing=Routing(seed=1))),
]


@pytest.mark.parametrize(("fails", "smallest"), SMALLEST, ids=range(len(SMALLEST)))
def test_a_known_minimum_is_reached(fails, smallest):
    assert reduced(fails) == smallest


def test_the_result_does_not_depend_on_anything_else():
    def fails(scenario: Scenario) -> bool:
        return scenario.shape.tokens * scenario.shape.top_k > 40

    assert reduce(LARGE, fails, max_runs=1000) == reduce(LARGE, fails, max_runs=1000)


def test_no_scenario_is_tried_twice():
    tried = []

    def fails(scenario: Scenario) -> bool:
        tried.append(scenario)
        return scenario.shape.tokens > 4

    result = reduce(LARGE, fails, max_runs=1000)
    assert len(tried) == len(set(tried)) == result.runs
    assert LARGE not in tried


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_the_budget_ends_it_and_says_so(limit):
    result = reduce(LARGE, lambda s: s.shape.tokens > 4, max_runs=limit)
    assert (result.runs, result.fixed_point) == (limit, False)
    assert complexity(result.scenario) <= complexity(LARGE)


def test_a_fixed_point_needs_no_budget():
    smallest = Scenario(shape=Shape(tokens=0))
    assert reduce(smallest, lambda _: True, max_runs=0).fixed_point


# --- the order ---------------------------------------------------------------------------------------------------


def test_complexity_is_a_total_order():
    found = [*drawn(150), LARGE, Scenario()]
    keys = [complexity(scenario) for scenario in found]
    assert len(set(keys)) == len(set(found))
    assert sorted(keys)  # every two compare


def test_nothing_is_simpler_than_nothing():
    nothing = Scenario(shape=Shape(tokens=0))
    assert all(complexity(nothing) < complexity(scenario) for scenario in drawn(100))


def test_a_scenario_covers_itself_and_what_it_grew_from():
    assert covers(LARGE, LARGE)
    assert covers(Scenario(shape=Shape(tokens=0)), LARGE)
    grown = [smallest for _, smallest in SMALLEST if not smallest.routing.edits]
    assert all(covers(smallest, LARGE) for smallest in grown if "'nan'" not in str(smallest.to_json()))


@pytest.mark.parametrize(
    "lacking",
    [
        dataclasses.replace(LARGE, parallel=Parallel(ep_size=4)),
        dataclasses.replace(LARGE, activation=SwigluOai()),
        dataclasses.replace(LARGE, output_dtype="bfloat16"),
        dataclasses.replace(LARGE, execution=Execution()),
        dataclasses.replace(LARGE, values=dataclasses.replace(LARGE.values, edits=LARGE.values.edits[1:])),
        dataclasses.replace(LARGE, routing=dataclasses.replace(LARGE.routing, edits=LARGE.routing.edits[1:2])),
    ],
)
def test_a_scenario_does_not_cover_what_lacks_something(lacking):
    assert not covers(LARGE, lacking)


def test_experts_that_only_k_needs_are_no_size_of_their_own():
    pair = Scenario(shape=Shape(experts=2, top_k=2))
    ranked = Scenario(shape=Shape(experts=2, top_k=2), parallel=Parallel(ep_size=2))
    assert covers(pair, ranked)
    assert not covers(Scenario(shape=Shape(experts=2)), ranked)


def test_another_choice_is_not_covered_but_another_number_is():
    situ = Scenario(activation=Situ())
    assert covers(situ, dataclasses.replace(LARGE, activation=Situ(beta=2.0)))
    assert not covers(situ, Scenario())
    assert not covers(situ, LARGE)
    assert covers(Scenario(values=Values(x_exponent=3)), LARGE)


# --- the steps ---------------------------------------------------------------------------------------------------


def test_smaller_numbers_end_one_below():
    for value, least in itertools.product(range(1, 70), (0, 1)):
        steps = smaller(value, least)
        assert steps == sorted(set(steps))
        assert all(least <= step < value for step in steps)
        assert value <= least or (steps[0], steps[-1]) == (least, value - 1)


@pytest.mark.parametrize("unit", [32, 64, 128, 256])
def test_every_width_leads_to_its_unit(unit):
    for width in range(unit, 4096, unit):
        current = width
        while current > unit:
            current = next(smaller for smaller in smaller_widths(current) if smaller % unit == 0)
        assert current == unit


def test_edits_are_fitted_when_the_shape_shrinks():
    (small,) = changed(LARGE, shape={"tokens": 2, "top_k": 1, "hidden": 64})
    assert small.routing.edits == (
        MaskRow(token=1),
        MaskSlot(token=1, slot=0),
        AssignExpert(token=1, slot=0, expert=11),
        SetWeight(token=0, slot=0, weight=small.routing.edits[-1].weight),  # a NaN
    )
    assert [edit.index for edit in small.values.edits] == [(1, 63), (11, 300, 1), (0, 63, 7)]
    (empty,) = changed(LARGE, shape={"tokens": 0})
    assert empty.routing.edits == ()
    assert [edit.tensor for edit in empty.values.edits] == ["w13_scale", "w2_scale"]


def test_what_is_not_a_valid_scenario_is_not_yielded():
    assert list(changed(LARGE, shape={"experts": 13})) == []
    assert list(changed(LARGE, values={"scale_low": 141})) == []


def test_a_scale_byte_that_is_nan_is_one_departure_wherever_it_is() -> None:
    def edited(tensor: str, byte: int) -> Scenario:
        return Scenario(values=Values(edits=(ValueEdit(tensor=tensor, index=(0, 0, 0), value=byte),)))  # type: ignore[arg-type]

    small = edited("w2_scale", 255)
    assert covers(small, edited("w13_scale", 255))
    assert covers(small, Scenario(values=Values(scale_low=100, scale_high=255)))
    assert not covers(small, edited("w2_scale", 254))
    assert not covers(edited("w2_scale", 254), edited("w13_scale", 254))
