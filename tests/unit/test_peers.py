"""The benchmark against peers: the cases that they try, what they accept, and that a right implementation passes."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from oracles.faults import FAULTS, Twin
from oracles.problem import build
from strategies.scenario import SwigluOai

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import peers as peers_benchmark
import recreations
from peers import PHASES, RIGHT, Clock, campaign_speed, found_by_campaign, found_by_peer, judged, peer_speed, report
from recreations import REAL, SMALL, Sizes, expected, peers

FUZZ, GRID, TWELVE = range(3)


def problem(peer: int, case: int):
    chosen = peers(0)[peer]
    return chosen.contents(build(next(islice(chosen.cases(0, SMALL), case, None))))


def answering(*outputs):
    """An `Ask` that gives these, one after the other."""
    left = list(outputs)
    return lambda _problem, calls: [left.pop(0) for _ in range(calls)]


def test_the_fuzzers_cases_are_upstreams():
    cases = list(recreations.flashinfer_cases(0, REAL))
    assert len(cases) == 160
    assert cases == list(recreations.flashinfer_cases(0, REAL)) != list(recreations.flashinfer_cases(1, REAL))
    assert {case.shape.hidden for case in cases} == {256, 512, 1024, 1536, 2048, 3072}
    weights = [3 * case.shape.hidden * case.shape.intermediate * case.experts_local for case in cases]
    assert max(weights) <= 500_000_000
    ranks = [case for case in cases if case.parallel.ep_size > 1]
    assert 0 < len(ranks) < 0.3 * len(cases)
    assert any(case.parallel.ep_rank > 0 for case in ranks)


def test_the_grid_is_eight_cases_of_cutlass_and_96_of_marlin():
    cases = list(recreations.vllm_cases(0, REAL))
    cutlass, marlin = cases[:8], cases[8:]
    assert len(marlin) == 96
    assert {case.shape.hidden for case in cutlass} == {3072}
    assert all(isinstance(case.activation, SwigluOai) and case.layer.biases == "per_expert" for case in cutlass)
    assert {case.shape.tokens for case in marlin} == {1, 123, 666}
    assert {case.parallel.ep_size for case in marlin} == {1, 4}


@pytest.mark.parametrize("peer", [FUZZ, GRID, TWELVE])
def test_what_a_cpu_is_given_is_smaller_and_no_fewer(peer):
    real, small = (list(peers(0)[peer].cases(0, sizes)) for sizes in (REAL, SMALL))
    assert len(real) == len(small)
    assert max(case.shape.tokens for case in small) <= 129
    assert max(case.experts_local for case in small) <= 16
    assert max(case.shape.hidden for case in small) <= 448


def test_sparse_contents_are_routed_to_the_ranks_own_experts():
    cases = (case for case in recreations.flashinfer_cases(0, SMALL) if case.parallel.ep_rank > 0)
    made = recreations.sparse(build(next(cases)))
    assert bool((made.local_ids >= 0).all())
    assert 0.6 < float((made.hidden_states == 0).double().mean()) < 0.9
    assert 0.6 < float(((made.w13 & 15) % 8 == 0).double().mean()) < 0.9


@pytest.mark.parametrize("peer", [FUZZ, GRID, TWELVE])
def test_expected_values_are_those_of_a_right_implementation(peer):
    made = problem(peer, 0)
    twin = Twin()
    answer = twin(twin.prepare(made)).float()
    right = expected(made)
    assert float((answer - right).abs().max()) <= 0.02 * float(right.abs().max())


def test_the_fuzzers_rule():
    made, found = problem(FUZZ, 0), peers(0)[FUZZ].found
    right = torch.tensor([[1.0, 0.0, 10.0]])
    off = right + torch.tensor([[0.79, 0.5, 0.0]])  # 5 % of the largest, and 30 % of its own
    assert not found(answering(off, off, off), made, right)
    assert found(answering(*[off + 0.02] * 3), made, right)
    assert found(answering(right, off), made, right)  # other bits
    assert found(answering(right, right, off + 1), made, right)  # from a dirty buffer
    assert found(answering(*[torch.full((1, 3), torch.nan)] * 3), made, right)
    with_tactic = peers(1)[FUZZ].found
    assert with_tactic(answering(right, right, right, off + 1), made, right)


def test_the_grids_rules():
    found = peers(0)[GRID].found
    right = torch.ones(1, 10)
    off = right.clone()
    off[0, :2] = 5.0
    assert not found(answering(off), problem(GRID, 0), right)
    off[0, 2] = 5.0
    assert found(answering(off), problem(GRID, 0), right)
    marlin = problem(GRID, 8)
    assert not found(answering(right + 0.03), marlin, right)
    assert not found(answering(off, off, right), marlin, right)  # twice more
    assert found(answering(off, off, off), marlin, right)


def test_the_scripts_rule():
    found = peers(0)[TWELVE].found
    right = torch.ones(1, 2)
    assert not found(answering(right + 0.39), problem(TWELVE, 0), right)
    assert found(answering(right + 0.41), problem(TWELVE, 0), right)


def test_an_exception_is_a_failure_unless_upstream_skips_it():
    class Refuses(Twin):
        def prepare(self, _problem):
            raise ValueError("hidden: must be a multiple of 512")

    made = problem(TWELVE, 0)
    verdicts = [judged(peer, Refuses(), made, expected(made), Clock()) for peer in peers(0)]
    assert verdicts == [False, True, True]


def test_faults_are_found_where_their_feature_is(monkeypatch):
    monkeypatch.setattr(recreations, "_FUZZED", 3)
    monkeypatch.setattr(peers_benchmark, "SMALL", Sizes(divide=16, tokens=33, experts=16))
    names = [RIGHT, "gate-up-swapped", "graph-replays-routing"]
    for number in (FUZZ, TWELVE):
        found = found_by_peer(number, names)
        assert found["gate-up-swapped"][0] == 1
        assert found["gate-up-swapped"][1] > 0
        assert found[RIGHT] is None
        assert found["graph-replays-routing"] is None
    campaign = found_by_campaign(0, ["gate-up-swapped"])
    assert campaign["gate-up-swapped"][0] == 1


class Known:
    """Results that are known."""

    def __init__(self, alarm=None):
        self.parts = {
            "difftest 0": {RIGHT: None, "gate-up-swapped": (1, 0.5), "ep-offset-twice": (4, 2.0)},
            "difftest 1": {RIGHT: None, "gate-up-swapped": (3, 1.5), "ep-offset-twice": (6, 3.0)},
            "flashinfer-fuzz": {RIGHT: alarm, "gate-up-swapped": (1, 0.1), "ep-offset-twice": (9, 9.0)},
            "vllm-grid": {RIGHT: None, "gate-up-swapped": (1, 0.1), "ep-offset-twice": None},
            "twelve-shapes": {RIGHT: None, "gate-up-swapped": None, "ep-offset-twice": None},
        }

    def of(self, part):
        return self.parts[part]


def test_the_table(capsys):
    assert report(["gate-up-swapped", "ep-offset-twice"], Known(), 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| **all 2** | 2 (100%) | 2 (100%) | 1 (50%) | 0 (0%) |" in lines
    assert "| scenarios to the first finding, median | 3.5 | 5 | 1 | - |" in lines
    assert "| routing, 1 faults | 1 | 1 | 0 | 0 |" in lines
    assert lines[-2:] == [
        "a right implementation fails: nowhere",
        "found by one alone: difftest 0, flashinfer-fuzz 0, vllm-grid 0, twelve-shapes 0",
    ]
    assert report(["gate-up-swapped", "ep-offset-twice"], Known(alarm=(7, 1.0)), 2) == 1
    assert "a right implementation fails: flashinfer-fuzz" in capsys.readouterr().out


def test_time_is_told_by_phase():
    count, seconds = campaign_speed(Twin(), Twin.capability, 0.1, "cpu")
    assert count >= 1
    assert seconds.keys() == set(PHASES)
    count, seconds = peer_speed(peers(0)[GRID], Twin(), SMALL, 0.05, "cpu")
    assert count >= 1
    assert seconds.keys() == set(PHASES) - {"other"}
    assert all(value >= 0 for value in seconds.values())


def test_named_faults_are_two_of_each_class():
    from collections import Counter

    from peers import NAMED

    assert set(Counter(FAULTS[name].kind for name in NAMED).values()) == {2}
