"""A drawn scenario shrinks to the least that still fails."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from draws import WHOLE, routed
from hypothesis import HealthCheck, Phase, find, settings

from strategies import (
    PROFILES,
    Capability,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    ValueEdit,
    Values,
    scenarios,
)

SEEDS = range(3)


def shrunk(
    fails: Callable[[Scenario], bool], number: int, capability: Capability = WHOLE, profile: str = "quick"
) -> tuple[Scenario, int]:
    """(the least failing scenario that Hypothesis finds, distinct scenarios tried after the first failing one)."""
    verdicts: dict[Scenario, bool] = {}

    def remembered(scenario: Scenario) -> bool:
        if scenario not in verdicts:
            verdicts[scenario] = fails(scenario)
        return verdicts[scenario]

    found = find(
        scenarios(capability, profile=profile),
        remembered,
        random=random.Random(number),
        settings=settings(
            max_examples=5000,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],  # not explain, which tries hundreds more
            suppress_health_check=list(HealthCheck),
        ),
    )
    return found, len(verdicts) - list(verdicts.values()).index(True)


def has(edits: tuple[object, ...], kind: type) -> bool:
    return any(isinstance(edit, kind) for edit in edits)


def loses_slot_1(scenario: Scenario) -> bool:
    """A kernel that drops slot 1 of the rows from the fifth on, on ranks above 0."""
    if scenario.shape.tokens <= 4 or scenario.parallel.ep_rank == 0 or scenario.shape.top_k < 2:
        return False
    return bool((routed(scenario).local_ids[4:, 1] >= 0).any())


# (what fails, the least scenario that does)
LEAST: dict[str, tuple[Callable[[Scenario], bool], Scenario]] = {
    "slot 1 lost on ranks above 0": (
        loses_slot_1,
        Scenario(shape=Shape(tokens=5, experts=2, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1)),
    ),
    "a second tile of tokens": (lambda s: s.shape.tokens > 16, Scenario(shape=Shape(tokens=17))),
    "an empty batch": (lambda s: s.shape.tokens == 0, Scenario(shape=Shape(tokens=0))),
    "one expert twice": (
        lambda s: has(s.routing.edits, DuplicateSlot),
        Scenario(shape=Shape(experts=2, top_k=2), routing=Routing(edits=(DuplicateSlot(token=0, slot=1, source=0),))),
    ),
    "a masked row and biases": (
        lambda s: has(s.routing.edits, MaskRow) and s.layer.biases != "none",
        Scenario(layer=Layer(biases="per_expert"), routing=Routing(edits=(MaskRow(token=0),))),
    ),
    "a NaN weight": (
        lambda s: any(isinstance(edit, SetWeight) and math.isnan(edit.weight) for edit in s.routing.edits),
        Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=math.nan),))),
    ),
    "an infinity in x beside another row": (
        lambda s: s.shape.tokens > 1 and any(edit.value == "inf" for edit in s.values.edits),
        Scenario(
            shape=Shape(tokens=2),
            values=Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="inf"),)),
        ),
    ),
    "a shard of I": (
        lambda s: s.layer.moe_tp_rank > 0,
        Scenario(shape=Shape(intermediate=64), layer=Layer(moe_tp_size=2, moe_tp_rank=1)),
    ),
    "more than one K block": (
        lambda s: s.shape.hidden > 128 and s.intermediate_local > 64,
        Scenario(shape=Shape(hidden=160, intermediate=96)),
    ),
    "a replayed graph": (
        lambda s: len(s.execution.replays) >= 2,
        Scenario(execution=Execution(mode="graph", replays=("masks", "same"))),
    ),
    "SiTU": (lambda s: isinstance(s.activation, Situ), Scenario(activation=Situ())),
    "a second rule of content": (lambda s: s.values.rule == "integer", Scenario(values=Values(rule="integer"))),
}


@pytest.mark.parametrize("name", LEAST)
def test_the_least_scenario_is_found(name: str) -> None:
    fails, least = LEAST[name]
    results = [shrunk(fails, number) for number in SEEDS]
    assert all(fails(found) for found, _ in results)
    assert all(found == least for found, _ in results)
    assert max(tries for _, tries in results) < 150


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_without_a_reason_the_plainest_scenario_is_the_least(profile: str) -> None:
    assert shrunk(lambda _: True, 0, profile=profile)[0] == Scenario()


def test_the_least_scenario_has_the_units_of_the_kernel() -> None:
    capability = Capability(
        hidden_multiple=128,
        intermediate_multiple=64,
        activations=frozenset({"situ"}),
        precisions=frozenset({"mxfp8xmxfp4"}),
        modes=frozenset({"graph"}),
    )
    assert shrunk(lambda _: True, 0, capability)[0] == Scenario(
        shape=Shape(hidden=128, intermediate=64),
        activation=Situ(),
        precision="mxfp8xmxfp4",
        execution=Execution(mode="graph"),
    )


def test_a_real_shape_shrinks_to_a_free_one() -> None:
    found = [shrunk(lambda s: s.shape.tokens > 2, number, profile="real")[0] for number in SEEDS]
    assert found.count(Scenario(shape=Shape(tokens=3))) > len(SEEDS) // 2
