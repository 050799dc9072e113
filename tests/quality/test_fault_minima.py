"""A fault of the twin is found and ends in the minimum that was worked out by hand, whatever the seed."""

from __future__ import annotations

import pytest
from minima import MINIMA, hunt

from difftest.engine import check
from oracles.faults import FAULTS

SEEDS = range(20)
SOON = (
    "bias-halves-swapped",
    "next-expert-tail-scale",
    "zero-beta-is-unset",
    "foreign-expert-contributes",
    "masked-slot-wraps",
    "weights-normalized-by-rank",
    "scaling-factor-dropped",
    "bias-once-per-token",
    "clamp-swallows-nan",
    "weight-of-next-row-in-last-tile",
    "odd-tail-dropped",
    "row-after-tile-unwritten",
    "ids-modified",
    "tail-scale-out-of-bounds",
    "tactic-doubles-half",
    "padding-is-routed",
    "infinity-sign-lost",
)
"""Found in a few scenarios, and of all classes."""


@pytest.mark.parametrize("name", MINIMA)
def test_the_minimum_shows_the_fault(name):
    minimum = MINIMA[name]
    outcome = check(minimum.scenario, FAULTS[name].oracle(), checks={minimum.check})
    assert (minimum.check, minimum.kind) in {(found.check, found.kind) for found in outcome.findings}


@pytest.mark.parametrize("name", SOON)
def test_a_seed_ends_in_the_minimum(name):
    _ends_in_its_minimum(name, SEEDS[SOON.index(name)])


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MINIMA)
def test_every_seed_ends_in_the_minimum(name, seed):
    _ends_in_its_minimum(name, seed)


def _ends_in_its_minimum(name, seed):
    _, shrunk, runs = hunt(name, seed)
    assert shrunk.smallest.scenario == MINIMA[name].scenario
    assert shrunk.fixed_point
    assert runs <= 300
