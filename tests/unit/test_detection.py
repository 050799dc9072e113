"""The benchmark of detection measures what it says: on one fault, and on answers that are known."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import pytest
import torch

from oracles.enclosure import FINITE, NAN, Enclosure
from oracles.faults import Twin
from oracles.problem import build
from strategies import Scenario

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from detection import detect_seed, evenly, fixed_faults
from measuring import Results, Shared
from tolerances import TOLERANCES, passed


def enclosure(kinds: int = FINITE) -> Enclosure:
    center = torch.tensor([[1.0, 2.0, 4.0, 100.0]], dtype=torch.float64)
    zero = torch.zeros_like(center)
    return Enclosure(center=center, hard=zero, sharp=zero, kinds=torch.full(center.shape, kinds, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("off", "accepted"),
    [
        ((0.0, 0.0, 0.0, 0.0), set(TOLERANCES)),
        ((0.15, 0.0, 0.0, 0.0), {"0.1", "0.2", "0.15max", "cosine"}),  # within atol + rtol of 0.1
        ((0.3, 0.0, 0.0, 0.0), {"0.2", "0.15max", "cosine"}),
        ((10.0, 0.0, 0.0, 0.0), {"0.15max", "cosine"}),  # lost beside a large neighbour
        ((0.0, 0.0, 0.0, -200.0), set()),
        ((float("nan"), 0.0, 0.0, 0.0), set()),
    ],
)
def test_a_tolerance_accepts_what_it_does_elsewhere(off, accepted):
    assert passed((enclosure().center + torch.tensor([off])).float(), enclosure()) == accepted


def test_a_number_in_the_place_of_a_nan_fails_all():
    assert passed(torch.ones(1, 4), enclosure(NAN)) == set()
    assert passed(torch.full((1, 4), torch.nan), enclosure(NAN)) == set(TOLERANCES)


def test_a_fault_is_caught_where_a_campaign_catches_it_and_not_before():
    found = detect_seed(0, ["gate-up-swapped", "large-batch-rejected"], 40, 2)
    assert found["gate-up-swapped"]["caught"] == 1
    assert found["gate-up-swapped"]["check"] == "reference impossible"
    assert found["gate-up-swapped"]["tolerances"]["95%"] <= 2
    assert found["large-batch-rejected"]["caught"] > 1
    assert found["large-batch-rejected"]["tolerances"] == {}


def test_the_twelve_shapes_show_a_swap_and_no_bias():
    assert fixed_faults(["gate-up-swapped", "bias-halves-swapped"]) == {
        "gate-up-swapped": sorted([*TOLERANCES, "enclosure"]),
        "bias-halves-swapped": [],
    }


def test_an_even_draw_is_a_scenario_that_the_twin_promises():
    source = random.Random(0)
    assert {Twin().unsupported(evenly(source)) for _ in range(300)} == {None}


def test_results_are_kept_and_never_mixed(tmp_path):
    path = tmp_path / "results.json"
    Results(path, {"budget": 1}).add("seed 0", {"a": 1})
    again = Results(path, {"budget": 1})
    again.add("seed 0", {"b": 2})
    assert Results(path, {"budget": 1}).of("seed 0") == {"a": 1, "b": 2}
    with pytest.raises(SystemExit, match="holds results of"):
        Results(path, {"budget": 2})


def test_enclosures_are_shared_of_tensors_with_any_stride():
    problem = build(Scenario())
    ids = problem.topk_ids.as_strided((1, 1), (1, 0))  # contiguous, and not to be viewed as bytes
    shared = Shared()
    first = shared.enclose(problem, Twin.numerics)
    assert shared.enclose(dataclasses.replace(problem, topk_ids=ids), Twin.numerics) is first
