"""Scenarios and findings in words."""

from __future__ import annotations

import math

import hypothesis
import pytest

from difftest.judging.outcome import Worst
from difftest.output import describe
from oracles.numerics import Accumulator, Numerics
from strategies import (
    Capability,
    Execution,
    Layer,
    MaskSlot,
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


def test_the_simplest_scenario():
    assert describe.scenario_line(Scenario()) == "M=1 H=32 I=32 E=1 K=1, swiglu"


def test_whatever_is_not_at_its_default_is_told():
    scenario = Scenario(
        shape=Shape(tokens=5, hidden=64, intermediate=64, experts=4, top_k=2),
        parallel=Parallel(ep_size=2, ep_rank=1),
        activation=Situ(beta=2.0, per_expert=True),
        output_dtype="float16",
        layer=Layer(biases="per_expert", moe_tp_size=2),
        routing=Routing(rule="skewed", edits=(MaskSlot(token=3, slot=1), SetWeight(token=0, slot=0, weight=math.nan))),
        values=Values(seed=9, edits=(ValueEdit(tensor="hidden_states", index=(0, 5), value="-inf"),)),
        execution=Execution(padding=3),
    )
    assert describe.scenario_line(scenario) == (
        "M=5 H=64 I=64 E=4 K=2, EP rank 1 of 2, situ(beta=2.0, per_expert=True), float16, "
        "layer(biases=per_expert, moe_tp_size=2), routing(rule=skewed), values(seed=9), execution(padding=3), "
        "edits: mask_slot(token=3, slot=1), set_weight(token=0, slot=0, weight=nan), hidden_states[0, 5]=-inf"
    )


def test_many_edits_are_cut_short():
    edits = tuple(MaskSlot(token=token, slot=0) for token in range(9))
    line = describe.scenario_line(Scenario(shape=Shape(tokens=9), routing=Routing(edits=edits)))
    assert line.endswith("mask_slot(token=5, slot=0) and 3 more")


@hypothesis.given(scenarios(Capability()))
@hypothesis.settings(max_examples=100, deadline=None, database=None)
def test_any_scenario_is_one_line(scenario):
    assert len(describe.scenario_line(scenario).splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "worst", "line"),
    [
        (
            "impossible",
            {"got": 2.0, "hard": (0.5, 1.5), "sharp": (0.75, 1.25), "radius": 0.25},
            "token 3, column 1: expected [0.5, 1.5], got 2 (error is 4 radii)",
        ),
        (
            "implausible",
            {"got": 1.375, "hard": (0.5, 1.5), "sharp": (0.75, 1.25), "radius": 0.25},
            "token 3, column 1: expected [0.75, 1.25], got 1.375 (error is 1.5 radii)",
        ),
        (
            "impossible",
            {"got": 1.5, "hard": (1.0, 1.0), "sharp": (1.0, 1.0), "radius": 0.0},
            "token 3, column 1: expected exactly 1, got 1.5",
        ),
        (
            "impossible",
            {"got": 1.5, "hard": (1 - 1e-12, 1 + 1e-12), "sharp": (1.0, 1.0), "radius": 1e-12},
            "token 3, column 1: expected 1 +- 1e-12, got 1.5 (error is 5e+11 radii)",
        ),
        (
            "must_be_finite",
            {"got": math.nan, "hard": (0.5, 1.5), "sharp": (0.75, 1.25), "radius": 0.25},
            "token 3, column 1: expected a finite value near 1, got nan",
        ),
        (
            "must_be_nonfinite",
            {"got": 0.0, "hard": (0.5, 1.5), "sharp": (0.75, 1.25), "radius": 0.25},
            "token 3, column 1: expected NaN or infinity, got 0",
        ),
        (
            "must_be_nonfinite",
            {"got": math.inf, "center": math.nan, "hard": (0.5, 1.5), "sharp": (0.75, 1.25), "radius": 0.25},
            "token 3, column 1: expected nan, got inf",
        ),
    ],
)
def test_element(kind, worst, line):
    assert describe.element_line(Worst(**({"token": 3, "column": 1, "center": 1.0} | worst)), kind) == line


def test_numerics():
    assert describe.numerics_line(Numerics()) == "the recipe, nothing else"
    declared = Numerics(gemm1=Accumulator(lanes=(1, 4)), gemm1_output="float32")
    assert describe.numerics_line(declared) == "gemm1(lanes=(1, 4)), gemm1_output=float32"
