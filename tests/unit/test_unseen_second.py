"""Each of the second unseen faults: wrong on a scenario where its features meet, and right where one is missing.

The scenarios are made by hand; what is drawn plays no part.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from oracles import base
from oracles.faults import KINDS, UNSEEN_FAULTS, unseen_second
from oracles.faults.twin import Twin
from oracles.problem import build
from strategies.scenario import (
    AssignExpert,
    Execution,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    RoutingEdit,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    StrayId,
    SwigluOai,
    ValueEdit,
    Values,
)


def scaled(tokens: int, **sizes: int) -> Scenario:
    return Scenario(shape=Shape(tokens=tokens, **sizes))


def with_scale(byte: int, zeros: int = 0) -> Scenario:
    """The first scale of w13 is `byte`, and so many of the first token's first elements are 0."""
    edits = (
        ValueEdit(tensor="w13_scale", index=(0, 0, 0), value=byte),
        *(ValueEdit(tensor="hidden_states", index=(0, column), value="0") for column in range(zeros)),
    )
    return Scenario(shape=Shape(tokens=2, hidden=64), values=Values(edits=edits))


def with_routing(tokens: int, *edits: RoutingEdit, experts: int = 4, poison: int = 0) -> Scenario:
    return Scenario(
        shape=Shape(tokens=tokens, experts=experts, top_k=2),
        routing=Routing(rule="round_robin", edits=edits),
        execution=Execution(poison=poison),
    )


def answer(faulty: bool, name: str, scenario: Scenario) -> torch.Tensor:
    """The output of the fault or of the twin; in a graph, that of a second replay, all of whose slots name expert 1."""
    oracle = base.get(f"fault:{name}") if faulty else Twin()
    assert isinstance(oracle, Twin)
    problem = build(scenario)
    prepared = oracle.prepare(problem)
    output = oracle(prepared)
    if scenario.execution.mode == "eager":
        return output
    return oracle.replay(prepared, replace(problem, topk_ids=torch.ones_like(problem.topk_ids)))


OAI = SwigluOai(per_expert=True)
SITU = Situ(beta=2.0)
HALF = replace(scaled(2), output_dtype="float16", values=Values(x_exponent=-8))
GRAPH = Execution(mode="graph")
SPLIT = Execution(tactic=1)
MASKED = MaskSlot(token=0, slot=0)
BEHIND = tuple(AssignExpert(token=token, slot=slot, expert=2 + slot) for token in range(2) for slot in range(2))

MEETINGS: dict[str, tuple[Scenario, Scenario]] = {
    "swizzle-tiles-rounded-down": (
        scaled(3, hidden=160, intermediate=96),
        scaled(3, hidden=128, intermediate=128),
    ),
    "halves-padded-together": (scaled(3, intermediate=96), scaled(3, intermediate=64)),
    "parameters-by-unsorted-row": (
        replace(with_routing(12), activation=OAI),
        replace(with_routing(12), activation=SwigluOai(alpha=2.0)),
    ),
    "four-experts-per-load": (
        replace(with_routing(12, experts=6), activation=SITU),
        replace(with_routing(12, experts=4), activation=SITU),
    ),
    "compacted-slots-keep-weights": (
        replace(with_routing(12, MASKED), parallel=Parallel(ep_size=2)),
        with_routing(12, MASKED),
    ),
    "filtered-slots-not-padded": (with_routing(3, MaskRow(token=2)), with_routing(3)),
    "ids-in-sixteen-bits": (
        with_routing(2, StrayId(token=0, slot=0, expert_id=-(2**31))),
        with_routing(2, StrayId(token=0, slot=0, expert_id=-2)),
    ),
    "exponent-add-wraps": (with_scale(0), with_scale(140)),
    "half-subnormals-flushed": (HALF, replace(HALF, output_dtype="bfloat16")),
    "compensated-sum-of-infinities": (
        with_routing(1, SetWeight(token=0, slot=0, weight=math.inf), poison=1),
        with_routing(1, SetWeight(token=0, slot=1, weight=math.inf), poison=1),
    ),
    "zero-group-skips-scale": (with_scale(255, zeros=32), with_scale(255, zeros=31)),
    "gemm-buffers-overlap": (scaled(130, hidden=64, intermediate=32), scaled(130, hidden=64, intermediate=64)),
    "trailing-offsets-unwritten": (with_routing(1), with_routing(1, poison=1)),
    "fix-up-of-first-tile-only": (
        replace(scaled(20, hidden=64), execution=SPLIT),
        replace(scaled(16, hidden=64), execution=SPLIT),
    ),
    "empty-expert-keeps-its-count": (
        replace(with_routing(12), execution=GRAPH),
        replace(with_routing(2, *BEHIND), execution=GRAPH),
    ),
}
"""Of each fault, a scenario where what it needs meets, and one where a part of it is missing."""


def test_every_fault_has_a_meeting() -> None:
    mine = {name for name, found in UNSEEN_FAULTS.items() if found.twin.__module__ == unseen_second.__name__}

    assert mine == set(MEETINGS)
    assert len(mine) == 15
    assert {UNSEEN_FAULTS[name].kind for name in mine} == set(KINDS)


@pytest.mark.parametrize("name", MEETINGS)
def test_it_is_wrong_where_its_features_meet(name: str) -> None:
    scenario, _ = MEETINGS[name]

    assert not torch.equal(answer(True, name, scenario), answer(False, name, scenario))


@pytest.mark.parametrize("name", MEETINGS)
def test_it_is_right_where_one_is_missing(name: str) -> None:
    _, scenario = MEETINGS[name]

    torch.testing.assert_close(
        answer(True, name, scenario), answer(False, name, scenario), rtol=0, atol=0, equal_nan=True
    )
