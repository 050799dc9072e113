"""A planted mistake is found soon, and shrunk to its known minimum in few runs, whatever the seed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection

import pytest
import torch

from difftest import campaign
from difftest.judging.outcome import Agreement, Outcome, Verdict, Worst
from difftest.options import Options, shards_of, share_of
from difftest.shrinking.shrink import Shrinker
from difftest.stream import Enough, Stream
from oracles.routing import route
from strategies import (
    Capability,
    DuplicateSlot,
    Execution,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Situ,
    ValueEdit,
    Values,
    scenarios,
)

EXAMPLES = 300
RUNS = 200
STATS = Agreement(
    elements=1,
    compared=1,
    exact=1,
    mismatches=0,
    median_ratio=None,
    max_ratio=None,
    rms=1.0,
    mean_radius=0.0,
    radius_model=1,
    lam=9.0,
    unit_roundoffs=(2.0**-24, 2.0**-24),
)
WORST = Worst(token=0, column=0, got=1.0, center=0.0, hard=(0.0, 0.0), sharp=(0.0, 0.0), radius=0.0)

Mistake = Callable[[Scenario], bool]


class Simulated:
    """An engine whose candidate has one mistake. It knows the routing table, and no tensor else."""

    def __init__(self, mistake: Mistake, capability: Capability) -> None:
        self._mistake = mistake
        self._capability = capability
        self._memo: dict[Scenario, Outcome] = {}
        self.runs = 0

    def check(self, scenario: Scenario, *, checks: Collection[str] | None = None) -> Outcome:  # noqa: ARG002
        if scenario not in self._memo:
            self.runs += 1
            self._memo[scenario] = self._run(scenario)
        return self._memo[scenario]

    def _run(self, scenario: Scenario) -> Outcome:
        names = {"scenario": scenario, "candidate": "simulated", "reference": "reference"}
        reason = self._capability.objection(scenario)
        if reason is not None:
            return Outcome(verdict=Verdict.UNSUPPORTED, reason=reason, **names)
        if not self._mistake(scenario):
            return Outcome(verdict=Verdict.AGREES, stats=STATS, **names)
        found = {"check": "reference", "kind": "impossible", "detail": "wrong", "worst": WORST}
        return Outcome(verdict=Verdict.DIVERGES, **found, **names)


def experts(scenario: Scenario) -> torch.Tensor:
    """int64 [M, K]: the rank's own index of the expert, -1 where there is none."""
    local = route(scenario, torch.device("cpu"))[0].long() - scenario.first_expert
    return torch.where((local >= 0) & (local < scenario.experts_local), local, -1)


def slot_dropped(scenario: Scenario) -> bool:
    rows = scenario.shape.tokens + scenario.execution.padding
    few = rows <= 4 or scenario.parallel.ep_rank == 0 or scenario.shape.top_k < 2
    return not few and bool((experts(scenario)[:, 1] >= 0).any())


def last_rank_reads_masked(scenario: Scenario) -> bool:
    last = scenario.parallel.ep_rank == scenario.parallel.ep_size - 1 > 0
    return last and any(isinstance(edit, MaskSlot) for edit in scenario.routing.edits)


def nan_leaks(scenario: Scenario) -> bool:
    edits = scenario.values.edits
    return scenario.shape.tokens > 1 and any(e.tensor == "hidden_states" and e.value == "nan" for e in edits)


def duplicate_lost(scenario: Scenario) -> bool:
    edits = scenario.routing.edits
    return any(isinstance(edit, DuplicateSlot) and edit.slot != edit.source for edit in edits)


def second_tile_stale(scenario: Scenario) -> bool:
    rows = experts(scenario)
    return any(int((rows == expert).sum()) > 16 for expert in range(scenario.experts_local))


def situ_bias_sharded(scenario: Scenario) -> bool:
    layer, sharded = scenario.layer, scenario.layer.moe_tp_size > 1
    return scenario.shape.tokens > 0 and sharded and layer.biases != "none" and scenario.activation.kind == "situ"


def third_rank_offset(scenario: Scenario) -> bool:
    return scenario.parallel.ep_rank > 2 and scenario.shape.tokens > 8 and scenario.shape.top_k > 2


def padded_tail(scenario: Scenario) -> bool:
    return scenario.execution.padding > 0 and scenario.shape.tokens % 8 == 1 and scenario.shape.tokens > 8


def found(engine: Simulated, seed: int) -> tuple[int, Stream, Outcome]:
    """As a campaign does: scenarios until the first finding, its shard, and the finding."""
    count, first = 0, None

    def visit(scenario: Scenario) -> None:
        nonlocal count, first
        count += 1
        outcome = engine.check(scenario)
        if outcome.is_finding:
            first = outcome
            raise Enough

    strategy = scenarios(engine._capability, profile="quick")
    for shard in range(shards_of(EXAMPLES)):
        stream = Stream(strategy, base_seed=seed, shard=shard, count=share_of(EXAMPLES, shard))
        stream.each(visit)
        if first is not None:
            return count, stream, first
    pytest.fail(f"not found in {count} scenarios")


def ignore(*_: object) -> None:
    """What a shrinker's progress is here."""


SLOT_DROPPED = Scenario(
    shape=Shape(tokens=5, hidden=128, intermediate=128, experts=2, top_k=2),
    parallel=Parallel(ep_size=2, ep_rank=1),
)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 20))])
def test_the_planted_bug_on_twenty_seeds(seed):
    engine = Simulated(slot_dropped, Capability(hidden_multiple=128, intermediate_multiple=128))
    count, stream, first = found(engine, seed)
    before = engine.runs
    shrunk = Shrinker(engine, first, ignore).shrink(stream)
    assert shrunk.smallest.scenario == SLOT_DROPPED
    assert count <= EXAMPLES
    assert engine.runs - before <= RUNS
    assert shrunk.fixed_point


MINIMA = {
    last_rank_reads_masked: Scenario(
        shape=Shape(experts=2),
        parallel=Parallel(ep_size=2, ep_rank=1),
        routing=Routing(edits=(MaskSlot(token=0, slot=0),)),
    ),
    nan_leaks: Scenario(
        shape=Shape(tokens=2),
        values=Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="nan"),)),
    ),
    duplicate_lost: Scenario(
        shape=Shape(experts=2, top_k=2), routing=Routing(edits=(DuplicateSlot(token=0, slot=0, source=1),))
    ),
    second_tile_stale: Scenario(shape=Shape(tokens=17)),
    situ_bias_sharded: Scenario(
        shape=Shape(intermediate=64), activation=Situ(), layer=Layer(biases="per_expert", moe_tp_size=2)
    ),
    third_rank_offset: Scenario(shape=Shape(tokens=9, experts=4, top_k=3), parallel=Parallel(ep_size=4, ep_rank=3)),
    padded_tail: Scenario(shape=Shape(tokens=9), execution=Execution(padding=1)),
}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(("mistake", "smallest"), MINIMA.items(), ids=[mistake.__name__ for mistake in MINIMA])
def test_other_mistakes_reach_their_minimum(mistake, smallest, seed):
    engine = Simulated(mistake, Capability())
    _, stream, first = found(engine, seed)
    before = engine.runs
    assert Shrinker(engine, first, ignore).shrink(stream).smallest.scenario == smallest
    assert engine.runs - before <= RUNS
    assert Shrinker(engine, first, ignore).shrink(None).smallest.scenario == smallest  # as for a saved case


PLANTED = """
from dataclasses import replace

from oracles.grouped_mm import GroupedMM


class Planted(GroupedMM):
    capability = replace(GroupedMM.capability, hidden_multiple=128, intermediate_multiple=128)

    def prepare(self, problem):
        if problem.tokens > 4 and problem.ep_rank > 0:
            ids = problem.topk_ids.clone()
            ids[:, 1:2] = -1
            problem = replace(problem, topk_ids=ids)
        return super().prepare(problem)
"""


@pytest.mark.usefixtures("unexplained")
@pytest.mark.parametrize("seed", [100, pytest.param(101, marks=pytest.mark.long)])
def test_the_planted_bug_in_an_oracle_file(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    oracle = tmp_path / "planted.py"
    oracle.write_text(PLANTED)
    options = Options(candidates=(f"{oracle}:Planted",), profile="quick", examples=16, seed=seed, cases=tmp_path)
    summary = campaign.run(options, ignore)
    finding = next(f for f in summary.findings if (f.bucket.check, f.bucket.kind) == ("reference", "impossible"))
    assert finding.smallest.scenario == SLOT_DROPPED
    assert finding.shrink_runs_hypothesis + finding.shrink_runs_reducer <= RUNS
    assert finding.fixed_point
