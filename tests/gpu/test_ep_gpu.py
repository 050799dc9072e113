"""Expert parallelism over two devices: NCCL adds what the ranks answer, and the sum is the layer's.

FlashInfer's kernel is given what it computes right: no expert twice in a row, no scale byte 0x00 or 0xFF, no batch of
0 tokens (`test_cutlass_gpu.py` has those). Run with -s to see the counts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from difftest.engine import Engine
from difftest.isolation.executors import Executors, Isolation
from difftest.judging.outcome import Outcome, Verdict
from difftest.stream import Stream
from oracles import base
from oracles.expert_parallel import ExpertParallel
from strategies import scenarios
from strategies.capability import Capability

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

SCENARIOS = 500


def judged(spec: str, capability: Capability, count: int) -> list[Outcome]:
    """The outcomes of the first scenarios of a campaign, in a worker, the sampled checks included."""
    with Executors([spec], Isolation(device="cuda", workers=1)) as executors:
        engine = Engine(spec, executor=executors.of(spec, "reference"))
        pending = []
        Stream(scenarios(capability, profile="quick"), base_seed=8, shard=0, count=count).each(
            lambda scenario: pending.append(engine.submit(scenario))
        )
        return [one.result() for one in pending]


def promised(inner: str) -> Capability:
    oracle = ExpertParallel(inner, 2)
    lacking = oracle.missing()
    if lacking is not None:
        pytest.skip(lacking)
    return oracle.capability


def told(outcomes: list[Outcome]) -> str:
    counts = Counter((str(outcome.verdict), outcome.check, outcome.kind) for outcome in outcomes)
    findings = [outcome.detail for outcome in outcomes if outcome.is_finding][:3]
    return "\n".join([f"{count:4} {' '.join(key)}" for key, count in counts.most_common()] + findings)


@pytest.mark.parametrize("inner", ["oracles.faults.twin:Twin", "cutlass"])
def test_no_false_alarm(inner: str) -> None:
    capability = promised(inner)
    if inner == "cutlass":
        capability = dataclasses.replace(
            capability, duplicate_experts=False, special_scale_bytes=False, empty_batch=False
        )
    outcomes = judged(f"ep2:{inner}", capability, SCENARIOS)
    print(f"\nep2:{inner}\n{told(outcomes)}")
    assert {outcome.verdict for outcome in outcomes} == {Verdict.AGREES}, told(outcomes)


@pytest.mark.parametrize(
    "spec",
    [
        "ep2:fault:ep-offset-ignored",
        "ep2:fault:ep-offset-twice",
        "oracles.faults.collective:partial_sum_missing",
        "oracles.faults.collective:sum_not_received",
    ],
)
def test_faults_are_caught(spec: str) -> None:
    outcomes = judged(spec, promised("grouped-mm"), 20)
    first = next((number for number, outcome in enumerate(outcomes, 1) if outcome.is_finding), None)
    print(f"\n{spec}: caught after {first} scenarios\n{told(outcomes)}")
    assert first is not None
    assert not any(outcome.check == "process" for outcome in outcomes), told(outcomes)


def test_each_rank_computes_on_its_own_device() -> None:
    from oracles.problem import build
    from strategies.scenario import Scenario, Shape

    oracle = base.get("ep2:grouped-mm")
    problem = build(Scenario(shape=Shape(tokens=3, experts=4, top_k=2)), "cuda")
    assert oracle(oracle.prepare(problem)).device == problem.hidden_states.device
    used = [int(torch.cuda.device_memory_used(index)) for index in range(2)]
    assert min(used) > 100 << 20  # a context, and NCCL's buffers
