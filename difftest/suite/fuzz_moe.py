"""The suite's property as one Hypothesis test, for a fuzzer that chooses what to draw: see docs/scale.md.

`pytest difftest` does not collect this file: its shards draw the same scenarios.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from difftest.plugin import fuzzing
from difftest.plugin.session import session_of

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A fuzzer collects with pytest, and calls the test without it: what the user gave is kept for then."""
    session = session_of(metafunc.config)
    if session is None:
        raise pytest.UsageError("the suite of difftest is run with its plugin loaded")
    fuzzing.begin(session.options, session.known)


@settings(deadline=None, suppress_health_check=SLOW)
@given(st.deferred(fuzzing.strategy))
def test_moe(scenario):  # type: ignore[no-untyped-def]  # Hypothesis would evaluate the annotation
    fuzzing.judge(scenario)
