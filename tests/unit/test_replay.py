from __future__ import annotations

import dataclasses
from pathlib import Path

import candidates
import pytest
from findings import SCENARIO, case, diverges, races

from difftest import check, fingerprint
from difftest.judging.outcome import Outcome, Rate, Verdict
from difftest.ledger import cases
from difftest.ledger.cases import AppliesTo, Status
from difftest.ledger.replay import CLEAN_REPEATS, Replay, ReplayStatus, replay, scenario_to_run
from oracles.grouped_mm import GroupedMM
from strategies import Scenario, Shape

HERE = fingerprint.take(GroupedMM())


def spec(name: str) -> str:
    return f"{candidates.FILE}:{name}"


@pytest.fixture
def replayed(tmp_path: Path):
    """Saves a case and replays it: the finding of `candidate`, replayed against `now`."""

    def run(
        candidate: str = "SlotDropped", now: str | None = None, finding: Outcome | None = None, **changes
    ) -> Replay:
        found = finding or check(SCENARIO, spec(candidate)).findings[0]
        found = dataclasses.replace(found, candidate=spec(now or candidate))
        path = tmp_path / "a.case.json"
        cases.save(case(found, **({"environment": HERE} | changes)), path)
        return replay(path)

    return run


def test_an_open_case_that_still_diverges_is_expected(replayed):
    done = replayed()
    assert (done.status, done.expected) == (ReplayStatus.STILL_DIVERGES, True)
    assert done.message == done.outcome.detail


def test_an_open_case_that_agrees_is_to_be_updated(replayed):
    done = replayed(now="Right")
    assert (done.status, done.expected) == (ReplayStatus.FIXED, False)
    assert done.message == "fixed, update the case: set its status to 'fixed'"


def test_a_fixed_case_that_agrees_is_expected(replayed):
    done = replayed(now="Right", status=Status.FIXED)
    assert (done.status, done.expected) == (ReplayStatus.FIXED, True)


def test_a_fixed_case_that_diverges_again_is_not(replayed):
    done = replayed(status=Status.FIXED)
    assert (done.status, done.expected) == (ReplayStatus.STILL_DIVERGES, False)
    assert done.message.startswith("marked as fixed, but it is back: ")


def test_another_finding_does_not_hide_behind_an_open_case(replayed):
    done = replayed(finding=diverges(check="pad"), now="SlotDropped")
    assert (done.status, done.expected) == (ReplayStatus.STILL_DIVERGES, False)
    assert done.message.startswith("another finding, ")


def test_the_old_detail_is_told_when_it_changed(replayed):
    found = check(SCENARIO, spec("SlotDropped")).findings[0]
    done = replayed(finding=dataclasses.replace(found, detail="off by more"))
    assert done.message.endswith("(was: off by more)")


def test_what_the_candidate_declines_now_is_not_applicable(replayed):
    large = check(Scenario(shape=Shape(tokens=2, hidden=96)), spec("Rejects")).findings[0]
    done = replayed(finding=large, now="Narrow")
    assert (done.status, done.expected) == (ReplayStatus.NOT_APPLICABLE, True)
    assert done.message == f"{spec('Narrow')} does not support it: more than one row"


def test_an_absent_candidate_is_not_applicable(replayed):
    done = replayed(finding=diverges(), now="Absent")
    assert (done.status, done.message) == (ReplayStatus.NOT_APPLICABLE, "not installed: pip install kernels")


def test_another_machine_is_not_applicable(replayed):
    done = replayed(applies_to=AppliesTo(arch=("sm120",)))
    assert (done.status, done.expected, done.outcome) == (ReplayStatus.NOT_APPLICABLE, True, None)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ("Unheard", "OracleNotFound: "),
        ("FILE", "OracleNotFound: "),
    ],
)
def test_a_candidate_that_is_not_there_is_errored(replayed, now, message):
    done = replayed(finding=diverges(), now=now)
    assert (done.status, done.expected) == (ReplayStatus.ERRORED, False)
    assert done.message.startswith(message)


@pytest.mark.parametrize("text", ["", "{", '{"version": 2}', "[]"])
def test_a_damaged_file_is_errored_and_not_a_crash(text, tmp_path):
    path = tmp_path / "a.case.json"
    path.write_text(text)
    done = replay(path)
    assert (done.status, done.expected, done.case) == (ReplayStatus.ERRORED, False, None)
    assert "\n" not in done.message


def test_another_radius_model_is_told(replayed):
    done = replayed(environment=dataclasses.replace(HERE, radius_model=0, lam=6.0))
    assert done.status is ReplayStatus.STILL_DIVERGES
    assert done.message.endswith(
        f"[judged by radius model {HERE.radius_model}, lambda {HERE.lam:g}; saved under model 0, lambda 6]"
    )


@pytest.mark.usefixtures("warm")
def test_a_crash_is_replayed_in_a_process_apart(replayed):
    crash = dataclasses.replace(
        diverges(Scenario(shape=Shape(tokens=9))), verdict=Verdict.CRASHED, check="process", kind="exit 3", worst=None
    )
    assert replayed(finding=crash, now="Crashes").status is ReplayStatus.STILL_DIVERGES
    assert replayed(finding=crash, now="Right").status is ReplayStatus.FIXED


@pytest.mark.parametrize(("failures", "runs"), [(1, 64), (3, 8), (8, 8)])
def test_a_race_is_repeated_until_it_may_be_called_fixed(failures, runs):
    rate = Rate(failures=failures, runs=runs)
    repeats = scenario_to_run(case(races(SCENARIO, failures, runs))).execution.repeats
    assert repeats - 1 >= CLEAN_REPEATS / float(rate) > repeats - 2


def test_what_is_no_race_runs_as_it_is():
    assert scenario_to_run(case()) == SCENARIO


def test_json(replayed):
    data = replayed().to_json()
    assert (data["status"], data["expected"]) == ("still diverges", True)
    assert Outcome.from_json(data["outcome"]).is_finding
