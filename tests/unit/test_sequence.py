from __future__ import annotations

import random

import pytest

from difftest.isolation.sequence import Step, shorten
from strategies.scenario import Scenario, Shape

STEPS = [Step(Scenario(shape=Shape(tokens=tokens))) for tokens in range(1, 41)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_what_it_takes(seed):
    needed = sorted(random.Random(seed).sample(range(40), seed % 4))
    seen = []

    def fails(steps):
        seen.append(steps)
        return set(steps) >= {STEPS[number] for number in needed}

    assert shorten(STEPS, fails) == tuple(STEPS[number] for number in needed)
    assert len(seen) <= 60


def test_the_order_counts():
    """One before another: any two would do, and two are left, in their order."""

    def fails(steps):
        return len(steps) >= 2

    first, second = shorten(STEPS, fails)
    assert STEPS.index(first) < STEPS.index(second)


def test_it_ends_with_the_tries():
    calls = []
    kept = shorten(STEPS, lambda steps: bool(calls.append(steps)), tries=5)
    assert len(calls) == 5
    assert kept == tuple(STEPS)
