"""The faults that were written unseen: apart from the library's, and each of them a mistake that can be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from difftest.judging.compare import not_equal
from oracles import base
from oracles.faults import FAULTS, KINDS, SM120_FAULTS, UNSEEN_FAULTS, Twin, unseen
from oracles.problem import build
from strategies import (
    DuplicateSlot,
    Execution,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    SwigluOai,
    Values,
)

PLAIN = Scenario(shape=Shape(tokens=5, hidden=64, intermediate=64, experts=4, top_k=2))
SHOWN = {
    "marlin-scale-tail": replace(PLAIN, shape=Shape(tokens=2, hidden=96)),
    "tp-scale-shift": replace(
        PLAIN, shape=Shape(tokens=2, intermediate=192), layer=Layer(moe_tp_size=2, moe_tp_rank=1)
    ),
    "silu-of-scaled-gate": replace(PLAIN, activation=SwigluOai()),
    "block-reads-first-experts-parameters": replace(PLAIN, activation=SwigluOai(limit=1.0, per_expert=True)),
    "radix-sort-bit-short": replace(PLAIN, shape=Shape(tokens=5, experts=3, top_k=2)),
    "slots-past-eight": replace(PLAIN, shape=Shape(tokens=1, experts=16, top_k=12)),
    "masked-ids-shift-rows": replace(PLAIN, routing=Routing(edits=(MaskSlot(token=0, slot=0),))),
    "weight-on-intermediate": PLAIN,
    "half-staging": replace(PLAIN, values=Values(x_exponent=20)),
    "sigmoid-overflow": replace(PLAIN, values=Values(x_exponent=12)),
    "half-output-saturates": replace(PLAIN, output_dtype="float16", values=Values(x_exponent=20)),
    "fused-finalize-uncleared": replace(PLAIN, execution=Execution(fused_finalize=True, poison=0x40)),
    "workspace-for-distinct-ids": Scenario(
        shape=Shape(experts=2, top_k=2),
        parallel=Parallel(ep_size=2),
        routing=Routing(rule="round_robin", edits=(DuplicateSlot(token=0, slot=1, source=0),)),
    ),
    "locks-not-restored": replace(PLAIN, execution=Execution(mode="graph", tactic=1)),
    "graph-keeps-first-scales": replace(PLAIN, precision="mxfp8xmxfp4", execution=Execution(mode="graph")),
}


def test_there_are_twice_fifteen_of_every_kind_and_none_is_a_hypothesis():
    assert len(UNSEEN_FAULTS) == 30
    assert SHOWN.keys() == {name for name, fault in UNSEEN_FAULTS.items() if fault.twin.__module__ == unseen.__name__}
    assert {fault.kind for fault in UNSEEN_FAULTS.values()} == set(KINDS)
    assert not UNSEEN_FAULTS.keys() & (FAULTS.keys() | SM120_FAULTS.keys())


@pytest.mark.parametrize("name", SHOWN)
def test_a_candidate_by_its_name_whose_answer_is_another(name):
    scenario = SHOWN[name]
    assert base.get(f"fault:{name}").name == f"fault:{name}"
    problem = build(scenario)
    # Other contents after the first call: what a second launch reads.
    second = build(
        replace(scenario, values=replace(scenario.values, seed=1, x_exponent=scenario.values.x_exponent + 3))
    )
    second = replace(
        problem, hidden_states=second.hidden_states, hidden_q=second.hidden_q, hidden_scale=second.hidden_scale
    )
    answers = []
    for oracle in (Twin(), UNSEEN_FAULTS[name].oracle()):
        prepared = oracle.prepare(problem)
        answers.append(torch.cat([oracle(prepared), oracle.replay(prepared, second)]))
    assert not_equal(*answers) is not None
