"""`difftest run -n`: a process that dies costs its shard a second try, and nothing is lost or counted twice."""

from __future__ import annotations

import dying
import pytest

from difftest import campaign
from difftest.journal import leftovers
from difftest.options import Options
from difftest.output.events import ScenarioFinished, ShardFinished, ShardLost
from difftest.scale import processes


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFTEST_DRILL", str(tmp_path / "mark"))

    def make(name: str, **changes) -> Options:
        given = {"profile": "quick", "examples": 16, "seed": 1, "cases": tmp_path / "cases"} | changes
        return Options(candidates=(f"{dying.FILE}:{name}",), **given)

    return make


@pytest.mark.usefixtures("warm")
def test_a_process_that_is_killed_is_replaced(options):
    seen = []
    summary = processes.run(options("First"), seen.append, 2)
    assert (summary.scenarios, summary.findings, summary.exit_code) == (16, (), 0)
    (lost,) = (event for event in seen if isinstance(event, ShardLost))
    assert (lost.again, lost.error) == (True, "its process ended (SIGKILL)")
    drawn = [event.scenario for event in seen if isinstance(event, ScenarioFinished)]
    assert len(drawn) == len(set(drawn)) == 16


@pytest.mark.usefixtures("warm")
def test_so_is_one_that_has_begun_several_shards(options):
    seen = []
    summary = processes.run(options("Orphan", examples=40, isolate=True, workers=1), seen.append, 1)
    assert (summary.scenarios, summary.findings, summary.exit_code) == (40, (), 0)
    lost = [event for event in seen if isinstance(event, ShardLost)]
    assert len(lost) >= 2
    assert {(event.again, event.error) for event in lost} == {(True, "its process ended (SIGKILL)")}
    drawn = [event.scenario for event in seen if isinstance(event, ScenarioFinished)]
    assert len(drawn) == len(set(drawn)) == 40
    over = [event.shard for event in seen if isinstance(event, ShardFinished)]
    assert sorted(over) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("warm")
def test_what_ran_when_the_user_ended_it_is_no_crash_to_the_next_run(options):
    given = options("First")

    def ended(event) -> None:
        if isinstance(event, ShardLost):  # its process left a case that was begun and not finished
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.run(given, ended, 2)
    assert list(leftovers(campaign.journal_folder(given))) == []
