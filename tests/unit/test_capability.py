"""Each promise has its objection; two capabilities have a union."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from draws import DEFAULT, WHOLE, draws

from strategies import (
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
    StrayId,
    SwigluOai,
    ValueEdit,
    Values,
)
from strategies.scenario import Replay

TWO_SLOTS = Shape(experts=2, top_k=2)


def weight(value: float) -> Scenario:
    return Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=value),)))


def element(value: str) -> Scenario:
    return Scenario(values=Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value=value),)))  # type: ignore[arg-type]


def scale_byte(value: int) -> Scenario:
    return Scenario(values=Values(edits=(ValueEdit(tensor="w2_scale", index=(0, 0, 0), value=value),)))


GRAPH = frozenset({"graph"})


def replays(*changes: Replay) -> Scenario:
    return Scenario(execution=Execution(mode="graph", replays=changes))


# (the promise that is not made, a scenario that needs it, the objection)
OBJECTIONS: list[tuple[dict[str, Any], Scenario, str]] = [
    ({"hidden_multiple": 64}, Scenario(shape=Shape(hidden=96)), "H is not a multiple of 64"),
    ({"intermediate_multiple": 64}, Scenario(), "I of a rank is not a multiple of 64"),
    ({"experts_multiple": 2}, Scenario(shape=Shape(experts=3)), "E of a rank is not a multiple of 2"),
    (
        {"experts_multiple": 2},
        Scenario(shape=Shape(experts=6), parallel=Parallel(ep_size=2)),
        "E of a rank is not a multiple of 2",
    ),
    (
        {"intermediate_multiple": 64},
        Scenario(shape=Shape(intermediate=64), layer=Layer(moe_tp_size=2)),
        "I of a rank is not a multiple of 64",
    ),
    ({"activations": frozenset({"swiglu"})}, Scenario(activation=Situ()), "activation situ"),
    ({"activations": frozenset({"situ"})}, Scenario(), "activation swiglu"),
    (
        {"per_expert_activation": False},
        Scenario(activation=SwigluOai(per_expert=True)),
        "activation parameters per expert",
    ),
    ({}, Scenario(precision="mxfp8xmxfp4"), "precision mxfp8xmxfp4"),
    ({}, Scenario(output_dtype="float16"), "output dtype float16"),
    ({}, Scenario(execution=Execution(mode="graph")), "execution mode graph"),
    ({"modes": frozenset({"graph"})}, Scenario(), "execution mode eager"),
    (
        {"expert_parallel": False},
        Scenario(shape=Shape(experts=2), parallel=Parallel(ep_size=2)),
        "expert parallelism",
    ),
    (
        {"moe_tp": False},
        Scenario(shape=Shape(intermediate=64), layer=Layer(moe_tp_size=2)),
        "I sharded over ranks (moe_tp)",
    ),
    ({"biases": False}, Scenario(layer=Layer(biases="per_expert")), "biases"),
    ({"masked_slots": False}, Scenario(routing=Routing(edits=(MaskSlot(token=0, slot=0),))), "masked slots"),
    ({"masked_slots": False}, Scenario(routing=Routing(edits=(MaskRow(token=0),))), "masked slots"),
    (
        {"duplicate_experts": False},
        Scenario(shape=TWO_SLOTS, routing=Routing(edits=(DuplicateSlot(token=0, slot=1, source=0),))),
        "one expert twice in a row",
    ),
    *(
        ({"non_finite": False}, scenario, "NaN or infinity in x or in a router weight")
        for scenario in (element("nan"), element("inf"), element("-inf"), weight(math.nan), weight(-math.inf))
    ),
    *(
        ({"special_scale_bytes": False}, scenario, "E8M0 byte 0x00 or 0xFF")
        for scenario in (
            scale_byte(0),
            scale_byte(255),
            Scenario(values=Values(scale_low=0)),
            Scenario(values=Values(scale_high=255)),
        )
    ),
    ({"empty_batch": False}, Scenario(shape=Shape(tokens=0)), "M = 0"),
    ({"padding": False}, Scenario(execution=Execution(padding=1)), "padded batch"),
    ({"padding": False, "modes": GRAPH}, replays("fewer_tokens"), "padded batch"),
    ({"masked_slots": False, "modes": GRAPH}, replays("x", "masks"), "masked slots"),
    ({"masked_slots": False, "modes": GRAPH}, replays("empty_expert"), "masked slots"),
    (
        {"non_finite": False},
        Scenario(execution=Execution(padding=1, padding_rows="routed")),
        "NaN or infinity in x or in a router weight",
    ),
    (
        {"stray_ids": False},
        Scenario(routing=Routing(edits=(StrayId(token=0, slot=0, expert_id=1),))),
        "an id that names no expert",
    ),
    ({"pdl": False}, Scenario(execution=Execution(pdl=True)), "a choice of PDL"),
    ({"fused_finalize": False}, Scenario(execution=Execution(fused_finalize=False)), "a choice of finalize"),
    ({"busy": False}, Scenario(execution=Execution(busy=True)), "a busy stream beside the call"),
    ({"tactics": 2}, Scenario(execution=Execution(tactic=2)), "a tactic beyond its 2"),
]


@pytest.mark.parametrize(("fields", "scenario", "objection"), OBJECTIONS)
def test_what_is_not_promised_is_objected_to(fields: dict[str, Any], scenario: Scenario, objection: str) -> None:
    assert Capability(**fields).objection(scenario) == objection


@pytest.mark.parametrize("scenario", [scenario for _, scenario, _ in OBJECTIONS])
def test_what_is_promised_is_not(scenario: Scenario) -> None:
    assert WHOLE.objection(scenario) is None


def test_every_field_has_an_objection() -> None:
    limits = {"precisions", "output_dtypes"}  # the default already leaves something out
    assert {name for fields, _, _ in OBJECTIONS for name in fields} | limits == {
        field.name for field in dataclasses.fields(Capability)
    }


@pytest.mark.parametrize(
    "scenario", [element("max"), element("-0"), weight(0.0), weight(-1.0), scale_byte(1), scale_byte(254)]
)
def test_finite_extremes_are_not_special(scenario: Scenario) -> None:
    assert Capability(non_finite=False, special_scale_bytes=False).objection(scenario) is None


def test_the_default_has_no_objection_to_the_plainest_scenario() -> None:
    assert DEFAULT.objection(Scenario()) is None


UNIONS = [
    (Capability(), WHOLE),
    (Capability(hidden_multiple=64, biases=False), Capability(hidden_multiple=96, padding=False)),
    (Capability(experts_multiple=4), Capability(experts_multiple=6, expert_parallel=False)),
    (Capability(activations=frozenset({"situ"}), modes=frozenset({"graph"})), Capability(tactics=3)),
]


@pytest.mark.parametrize(("one", "other"), UNIONS)
def test_a_union_holds_what_either_promises(one: Capability, other: Capability) -> None:
    both = one.union(other)
    assert both == other.union(one)
    for part in (one, other):
        for scenario in draws("quick", 100, part):
            assert both.objection(scenario) is None


def test_a_union_with_itself_is_itself() -> None:
    assert WHOLE.union(WHOLE) == WHOLE


def test_a_union_promises_no_more_than_its_parts() -> None:
    one = Capability(biases=False, moe_tp=False, tactics=1)
    assert one.union(Capability(biases=False)) == dataclasses.replace(Capability(biases=False), tactics=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_multiple": 48}, "hidden_multiple = 48: must be a positive multiple of 32"),
        ({"hidden_multiple": 0}, "hidden_multiple = 0: must be a positive multiple of 32"),
        ({"intermediate_multiple": 64.0}, "intermediate_multiple = 64.0: must be a positive multiple of 32"),
        ({"activations": frozenset()}, "activations = frozenset(): must be a frozenset of one or more of situ, swiglu"),
        ({"activations": frozenset({"gelu"})}, "activations = frozenset({'gelu'}): must be a frozenset of one or more"),
        ({"precisions": {"bf16xmxfp4"}}, "precisions = {'bf16xmxfp4'}: must be a frozenset of one or more of bf16x"),
        ({"output_dtypes": frozenset({"float32"})}, "output_dtypes = frozenset({'float32'}): must be a frozenset"),
        ({"modes": "eager"}, "modes = 'eager': must be a frozenset of one or more of eager, graph"),
        ({"tactics": -1}, "tactics = -1: must be the number of tactics, 0 or more"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        Capability(**fields)
    assert str(caught.value).startswith(message)
