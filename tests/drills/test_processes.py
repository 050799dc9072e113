"""`difftest run -n`: a process that dies costs its shard a second try, and nothing is lost or counted twice."""

from __future__ import annotations

import dying
import pytest

from difftest.options import Options
from difftest.output.events import ScenarioFinished, ShardLost
from difftest.scale import processes


@pytest.fixture
def options(tmp_path, monkeypatch) -> Options:
    monkeypatch.setenv("DIFFTEST_DRILL", str(tmp_path / "mark"))
    return Options(candidates=(f"{dying.FILE}:First",), profile="quick", examples=16, seed=1, cases=tmp_path / "cases")


@pytest.mark.usefixtures("warm")
def test_a_process_that_is_killed_is_replaced(options):
    seen = []
    summary = processes.run(options, seen.append, 2)
    assert (summary.scenarios, summary.findings, summary.exit_code) == (16, (), 0)
    (lost,) = (event for event in seen if isinstance(event, ShardLost))
    assert (lost.again, lost.error) == (True, "its process ended (SIGKILL)")
    drawn = [event.scenario for event in seen if isinstance(event, ScenarioFinished)]
    assert len(drawn) == len(set(drawn)) == 16
