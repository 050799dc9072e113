"""Expert parallelism over processes, on a CPU: gloo adds what the ranks answer."""

from __future__ import annotations

import dataclasses
import signal

import pytest
import torch

from difftest.engine import check
from difftest.judging.outcome import Verdict
from difftest.stream import Stream
from oracles import base
from oracles.base import OracleNotFound
from oracles.expert_parallel import ExpertParallel, Prepared, shared
from oracles.faults import collective
from oracles.problem import build
from oracles.ranks import Raised
from strategies import Scenario, scenarios
from strategies.scenario import Layer, Parallel, Shape, Situ

LAYER = Scenario(
    shape=Shape(tokens=5, hidden=64, intermediate=64, experts=6, top_k=3),
    activation=Situ(per_expert=True),
    layer=Layer(biases="per_expert"),
)


@pytest.fixture(scope="module")
def two() -> ExpertParallel:
    oracle = base.get("ep2:oracles.faults.twin:Twin")  # which takes every precision
    assert isinstance(oracle, ExpertParallel)
    return oracle


def drawn(oracle: base.Oracle, count: int) -> list[Scenario]:
    capability = oracle.capability  # type: ignore[attr-defined]
    found: list[Scenario] = []
    Stream(scenarios(capability, profile="quick"), base_seed=4, shard=0, count=count).each(found.append)
    return found


def test_whole_layers_agree_with_the_unsharded_reference(two: ExpertParallel) -> None:
    asked = drawn(two, 30)
    outcomes = [check(scenario, two) for scenario in asked]
    assert {scenario.precision for scenario in asked} == {"bf16xmxfp4", "mxfp8xmxfp4"}
    assert {outcome.verdict for outcome in outcomes} == {Verdict.AGREES}


def test_what_is_drawn_is_a_whole_layer_whose_experts_split(two: ExpertParallel) -> None:
    asked = drawn(two, 100)
    assert all(scenario.parallel == Parallel() and scenario.shape.experts % 2 == 0 for scenario in asked)
    assert [two.unsupported(scenario) for scenario in asked] == [None] * 100
    odd = Scenario(shape=Shape(experts=3))
    rank = Scenario(shape=Shape(experts=4), parallel=Parallel(ep_size=2))
    assert two.unsupported(odd) == "E of a rank is not a multiple of 2"
    assert two.unsupported(rank) == "expert parallelism"


def test_a_problem_is_kept_by_its_number_while_others_come_and_go(two: ExpertParallel) -> None:
    first = two.prepare(build(LAYER))
    other = dataclasses.replace(LAYER, values=dataclasses.replace(LAYER.values, seed=1))
    answers = [two(first), two(two.prepare(build(other))), two(first)]
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], answers[1])


def test_what_an_oracle_raises_on_a_rank_is_raised_as_it_is(two: ExpertParallel) -> None:
    """And the ranks go on."""
    problem = build(LAYER)
    unknown = dataclasses.replace(problem, activation=dataclasses.replace(problem.activation, kind="relu"))
    prepared = two.prepare(unknown)
    with pytest.raises(ValueError, match="activation 'relu'") as raised:
        two(prepared)
    assert raised.value.__notes__[0].startswith("on rank 0 of 2:\nTraceback")
    assert two.prepare(problem).ranks is prepared.ranks


@pytest.mark.parametrize("fault", ["fault:ep-offset-ignored", "fault:ep-offset-twice"])
def test_a_wrong_offset_on_a_rank_is_caught(fault: str) -> None:
    oracle = base.get(f"ep2:{fault}")
    assert {"reference"} <= caught(oracle) <= {"reference", "no_local_expert"}


def test_a_partial_sum_that_is_missing_is_caught() -> None:
    """And no process stays when the oracle is gone."""
    oracle = collective.partial_sum_missing()
    assert caught(oracle) == {"reference"}
    assert oracle._ranks is not None
    ranks = [one.process for one in oracle._ranks._processes]
    assert [process.poll() for process in ranks] == [None, None]
    del oracle
    assert [process.poll() for process in ranks] == [-signal.SIGKILL, -signal.SIGKILL]


def test_ranks_that_end_with_other_sums_are_caught() -> None:
    class Apart:
        """Ranks of which the second did not get the sum."""

        alive = True

        def answer(self, _number: int) -> list[torch.Tensor]:
            return [torch.ones(1, 32, dtype=torch.bfloat16), torch.zeros(1, 32, dtype=torch.bfloat16)]

    prepared = Prepared(build(Scenario()), Apart(), 0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="after the all-reduce rank 1 and rank 0 hold different sums"):
        ExpertParallel("grouped-mm", 2)(prepared)


def caught(oracle: base.Oracle) -> set[str]:
    """The checks that see something in the first six scenarios."""
    return {check(scenario, oracle, checks=()).check for scenario in drawn(oracle, 6)} - {""}


def test_shares_are_the_layer() -> None:
    whole = build(LAYER)
    shares = [shared(whole, 3, rank) for rank in range(3)]
    for name in ("w13", "w13_scale", "w2", "w2_scale", "w13_bias", "w2_bias"):
        assert torch.equal(torch.cat([getattr(share, name) for share in shares]), getattr(whole, name))
    for rank, share in enumerate(shares):
        built = build(dataclasses.replace(LAYER, parallel=Parallel(ep_size=3, ep_rank=rank)))
        assert share.scenario == built.scenario
        assert (share.ep_size, share.ep_rank, share.first_expert) == (3, rank, 2 * rank)
        assert torch.equal(share.w13, built.w13)
        assert torch.equal(share.activation.linear_beta, built.activation.linear_beta)
        assert torch.equal(share.topk_ids, whole.topk_ids)


def test_a_share_does_not_bring_the_whole_layer() -> None:
    share = shared(build(LAYER), 3, 1)
    assert share.w13.untyped_storage().nbytes() == share.w13.nbytes


def test_more_ranks_promise_less() -> None:
    """Nobody promises the order in which three are added."""
    two, three = ExpertParallel("grouped-mm", 2), ExpertParallel("grouped-mm", 3)
    assert (two.deterministic, three.deterministic) == (True, False)
    assert (two.numerics.ranks, three.numerics.ranks) == (2, 3)
    assert three.capability.experts_multiple == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ep1:grouped-mm", "oracle 'ep1:grouped-mm': ep1 must be ep2 or more, the number of ranks"),
        ("ep2:ep2:grouped-mm", "oracle 'ep2:ep2:grouped-mm': ep2:grouped-mm promises no eager calls with expert "),
        ("ep2:cutlass-graph", "oracle 'ep2:cutlass-graph': cutlass-graph promises no eager calls with expert "),
        ("ep2:router-torch", "oracle 'router-torch': is a router, and an oracle of a layer is wanted"),
        ("ep2:nothing", "oracle 'nothing' is not known"),
    ],
)
def test_what_cannot_be_shared_out(spec: str, message: str) -> None:
    with pytest.raises(OracleNotFound) as raised:
        base.find(spec)
    assert str(raised.value).startswith(message)


def test_devices_that_are_not_there_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = ExpertParallel("cutlass", 2)
    monkeypatch.setattr(base, "missing_of", lambda _oracle: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert oracle.missing() == "2 ranks need 2 CUDA devices, and there are 1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert oracle.missing() is None


class Odd(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def test_an_error_that_does_not_survive_the_way_becomes_a_line() -> None:
    from oracles import rank

    def raises() -> None:
        raise Odd(1, 2)

    reply = rank.caught(raises)
    assert isinstance(reply, Raised)
    assert str(reply.error) == "Odd: 1 and 2"
    assert "raise Odd(1, 2)" in reply.traceback
