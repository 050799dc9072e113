from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import candidates
import pytest
from findings import diverges

import oracles
from difftest import campaign
from difftest.campaign import begin_shard, executors_for, run, run_shard
from difftest.findings import Summary
from difftest.journal import Journal, JournalError
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.trial import Done, InProcess
from difftest.ledger import cases
from difftest.ledger.cases import Status
from difftest.ledger.claims import Claims
from difftest.ledger.replay import ReplayStatus, replay
from difftest.line import Line
from difftest.options import InvalidOption, Options
from difftest.output import describe, events
from strategies import Scenario, Shape

pytestmark = pytest.mark.usefixtures("unexplained")


def spec(name: str) -> str:
    return f"{candidates.FILE}:{name}"


@pytest.fixture(autouse=True)
def _own_journals(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Recorder:
    """A handler that keeps every event."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def digests(self) -> list[str]:
        return [event.scenario.digest for event in self.of(events.ScenarioFinished)]


@pytest.fixture
def options(tmp_path):
    def make(*names: str, examples: int = 24, **changes) -> Options:
        given = {"profile": "quick", "seed": 1, "cases": tmp_path / "cases"} | changes
        return Options(candidates=tuple(map(spec, names)), examples=examples, **given)

    return make


def test_a_right_candidate_agrees(options):
    seen = Recorder()
    summary = run(options("Right"), seen)
    assert summary.exit_code == 0
    assert summary.scenarios == len(set(seen.digests())) == 24
    assert summary.verdicts[spec("Right")] == Counter({Verdict.AGREES: 24})
    assert [type(event).__name__ for event in seen.events if not isinstance(event, events.ScenarioFinished)] == [
        "RunStarted",
        *["ShardFinished"] * 3,
        "RunFinished",
    ]


def test_shards_are_parts_of_the_run(options):
    whole, parts = Recorder(), Recorder()
    summary = run(options("Right"), whole)
    total = sum((run_shard(options("Right"), shard, parts) for shard in (2, 0, 1)), Summary())
    assert sorted(parts.digests()) == sorted(whole.digests())
    assert total.scenarios == summary.scenarios
    assert total.verdicts == summary.verdicts


def test_every_scenario_is_judged_for_every_candidate(options):
    seen = Recorder()
    run(options("Right", "Narrow", examples=8), seen)
    for event in seen.of(events.ScenarioFinished):
        assert [outcome.candidate for outcome in event.outcomes] == [spec("Right"), spec("Narrow")]


def test_what_a_candidate_declines_is_counted_by_reason(options):
    summary = run(options("Narrow"), Recorder())
    counts = summary.verdicts[spec("Narrow")]
    assert summary.unsupported[spec("Narrow")] == Counter({"more than one row": counts[Verdict.UNSUPPORTED]})
    assert counts.total() == 24
    assert summary.exit_code == 0


def test_a_candidate_that_is_absent_leaves_the_scenarios_alone(options):
    with_it, without = Recorder(), Recorder()
    summary = run(options("Right", "Absent", examples=8), with_it)
    run(options("Right", examples=8), without)
    assert with_it.digests() == without.digests()
    assert summary.missing == {spec("Absent"): "not installed: pip install kernels"}
    assert summary.exit_code == 0
    assert run(options("Right", "Absent", examples=8, require=(spec("Absent"),)), Recorder()).exit_code == 3
    assert run(options("Absent", examples=8), Recorder()).exit_code == 3


def test_an_unknown_oracle_ends_it_before_anything_runs(options):
    seen = Recorder()
    with pytest.raises(oracles.OracleNotFound):
        run(options("Unheard"), seen)
    assert seen.events == []


# --- findings ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_rejected(tmp_path_factory) -> tuple[Summary, Recorder, Path]:
    seen, folder = Recorder(), tmp_path_factory.mktemp("rejected") / "cases"
    options = Options(candidates=(spec("Rejects"),), profile="quick", examples=24, seed=1, cases=folder)
    return run(options, seen), seen, folder


@pytest.fixture
def rejected(first_rejected, tmp_path) -> tuple[Summary, Recorder, Path]:
    """A campaign with one finding, its events, and a copy of its case that a further run takes for the ledger."""
    summary, seen, folder = first_rejected
    copied = shutil.copytree(folder, tmp_path / "cases")
    return summary, seen, copied / summary.findings[0].case_path.name


def test_generation_runs_to_its_end_and_then_each_bucket_is_shrunk(rejected):
    summary, seen, _ = rejected
    assert summary.scenarios == 24
    (finding,) = summary.findings
    assert finding.seen == summary.verdicts[spec("Rejects")][Verdict.REJECTED] > 1
    assert finding.smallest.scenario == Scenario(shape=Shape(tokens=0, hidden=96))
    assert finding.fixed_point
    order = [type(event) for event in seen.events]
    assert order.index(events.ShrinkStarted) > len(order) - order[::-1].index(events.ScenarioFinished) - 1
    assert summary.exit_code == 1


def test_the_case_is_saved_when_found_and_as_it_gets_smaller(rejected):
    summary, seen, _ = rejected
    (finding,) = summary.findings
    first, last = seen.of(events.CaseSaved)
    assert first.path == last.path == finding.case_path
    order = [type(event) for event in seen.events]
    assert order.index(events.CaseSaved) < order.index(events.ShrinkStarted)
    case = cases.load(finding.case_path)
    assert (case.outcome, case.worst) == (finding.smallest, finding.worst)
    assert case.found.seed == 1
    assert replay(finding.case_path).status is ReplayStatus.STILL_DIVERGES


def test_a_known_case_is_counted_and_not_raised(rejected, options):
    path = rejected[2]
    seen = Recorder()
    again = run(options("Rejects"), seen)
    assert (again.findings, again.exit_code) == ((), 0)
    assert again.known == Counter({path.name: rejected[0].findings[0].seen})
    assert again.replays == Counter({"still diverges": 1})
    (found,) = seen.of(events.FindingFound)
    assert found.known == path


def test_a_fixed_case_fails_the_run_and_hides_nothing(rejected, options):
    path = rejected[2]
    cases.save(dataclasses.replace(cases.load(path), status=Status.FIXED), path)
    again = run(options("Rejects"), Recorder())
    assert [failure.partition(": ")[0] for failure in again.ledger_failures] == [str(path)]
    assert len(again.findings) == 1
    assert again.findings[0].case_path != path


def test_an_unreadable_case_fails_the_run(options, tmp_path):
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "a.case.json").write_text("{")
    summary = run(options("Right", examples=8), Recorder())
    assert summary.exit_code == 1
    assert "a.case.json: is not JSON" in summary.ledger_failures[0]


def test_a_bucket_is_shrunk_by_the_process_that_claims_it(options, tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    parts = [run_shard(options("Rejects", seed=3), shard, Recorder(), Claims(folder), known=()) for shard in range(3)]
    finders = [part for part in parts if part.findings]
    assert len(finders) == 1
    assert sum(part.elsewhere.total() for part in parts) + finders[0].findings[0].seen == sum(
        part.verdicts[spec("Rejects")][Verdict.REJECTED] for part in parts
    )


def test_who_comes_again_has_its_claims(tmp_path):
    """A shard whose process died is run by another one."""
    bucket = diverges().bucket
    assert Claims(tmp_path, "3").take(bucket)
    assert not Claims(tmp_path, "4").take(bucket)
    assert not Claims(tmp_path).take(bucket)
    assert Claims(tmp_path, "3").take(bucket)


def test_a_folder_that_cannot_be_written_loses_nothing(options, tmp_path):
    (tmp_path / "file").write_text("")
    seen = Recorder()
    summary = run(options("Rejects", examples=16, cases=tmp_path / "file" / "cases"), seen)
    (finding,) = summary.findings
    assert finding.case_path is None
    first, last = seen.of(events.CaseNotSaved)
    assert "cannot be written: Not a directory" in last.error
    assert last.case.outcome == finding.smallest
    assert first.case.scenario != last.case.scenario


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_interrupted_run_shows_what_it_found(options, monkeypatch, ahead):
    monkeypatch.setattr(InProcess, "ahead", ahead)
    seen = Recorder()
    with pytest.raises(KeyboardInterrupt):
        run(options("Interrupted", examples=40, seed=4), seen)
    (interrupted,) = seen.of(events.RunInterrupted)
    assert seen.events[-1] == interrupted
    assert interrupted.summary.findings
    for finding in interrupted.summary.findings:
        assert not finding.fixed_point
        assert finding.case_path.exists()


def test_what_is_handed_over_ahead_changes_nothing(options, monkeypatch, tmp_path):
    """Not what is found, what is shrunk, nor what is known the next time."""
    told = []
    for ahead in (0, 7):
        monkeypatch.setattr(InProcess, "ahead", ahead)
        for _ in range(2):
            summary = run(options("Rejects", examples=12, cases=tmp_path / str(ahead)), Recorder())
            findings = [(finding.smallest.scenario, finding.bucket, finding.seen) for finding in summary.findings]
            told.append((findings, sum(summary.known.values()), summary.verdicts))
    assert told[:2] == told[2:]
    assert told[0][0]
    assert told[1][1] > 1  # the ledger's


def test_each_outcome_is_waited_for_in_its_turn(options, monkeypatch):
    """What is asked about known findings too: whoever waited for it earlier would hand over nothing meanwhile."""
    run(options("Rejects", examples=12), Recorder())
    handed_over, waited_for = [], []

    @dataclasses.dataclass
    class Later:
        done: Done

        def result(self) -> Outcome:
            if self.done not in waited_for:
                waited_for.append(self.done)
            return self.done.result()

    def submit(self, scenario, checks):
        handed_over.append(Done(self.run(scenario, checks)))
        return Later(handed_over[-1])

    monkeypatch.setattr(InProcess, "ahead", 5)
    monkeypatch.setattr(campaign._Campaign, "replay_ledger", lambda _: None)
    monkeypatch.setattr(InProcess, "submit", submit)
    summary = run(options("Rejects", examples=30), Recorder())
    assert sum(summary.known.values()) > 1
    assert len(handed_over) > summary.scenarios == 30
    assert waited_for == handed_over


def test_a_shard_that_is_begun_before_the_last_is_over_ends_as_it_does_alone(options, monkeypatch, tmp_path):
    shards, told = (1, 0, 2), []
    for ahead in (0, 20):
        monkeypatch.setattr(InProcess, "ahead", ahead)
        line, seen = Line(), Recorder()
        given = options("Rejects", seed=2, cases=tmp_path / str(ahead))
        with executors_for(given) as executors:
            begun = [begin_shard(given, shard, seen, Claims(), (), executors, line, tmp_path) for shard in shards]
            assert [one.is_over for one in begun] == [ahead == 0] * 3
            summaries = [one.end() for one in begun]
        assert all(one.is_over for one in begun)
        assert [event.shard for event in seen.of(events.ShardFinished)] == [*shards]
        told.append([
            (one.verdicts, [(finding.smallest.scenario, finding.seen) for finding in one.findings])
            for one in summaries
        ])  # fmt: skip
    assert told[0] == told[1]
    assert any(findings for _, findings in told[0])


def test_a_race_is_found_and_reduced(options):
    summary = run(options("Racing", examples=16), Recorder())
    races = [finding for finding in summary.findings if finding.bucket.verdict is Verdict.NONDETERMINISTIC]
    assert races
    assert all(finding.shrink_runs_hypothesis == 0 for finding in races)
    assert replay(races[0].case_path).status is ReplayStatus.STILL_DIVERGES


# --- crashes and journals ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm")
def test_a_crash_is_found_by_the_next_run(options):
    given = options("Crashes", examples=8)
    first = multiprocessing.get_context("fork").Process(target=run, args=(given, print))
    first.start()
    first.join()
    assert first.exitcode == 3
    seen = Recorder()
    with campaign._campaign(given, seen, Claims()) as next_run:
        next_run.recover()
        crash = seen.of(events.FindingFound)[0].outcome
        assert crash.verdict is Verdict.CRASHED
        assert crash.scenario.shape.tokens + crash.scenario.execution.padding > 8
        assert cases.load(seen.of(events.CaseSaved)[0].path).scenario == crash.scenario
        assert next_run.judges[spec("Crashes")].check(crash.scenario).verdict is Verdict.CRASHED
        next_run.recover()
        assert len(seen.of(events.FindingFound)) == 1
    with campaign._campaign(given, seen, Claims(), known=()) as another_shard:
        assert another_shard.judges[spec("Crashes")].check(crash.scenario).verdict is Verdict.CRASHED


@pytest.mark.usefixtures("warm")
def test_a_run_that_was_killed_is_no_finding_of_the_next(options):
    """SIGKILL, and a machine that goes down, leave what a crash leaves. Only the next run can tell."""
    given = options("Right", examples=8)
    journal = Journal(campaign.journal_folder(given))
    journal.begin(Scenario(shape=Shape(tokens=3)), spec("Right"), "reference", ("split",))
    os.close(journal._file)  # as the end of the process does
    seen = Recorder()
    summary = run(given, seen)
    assert (summary.findings, summary.exit_code) == ((), 0)
    (survived,) = seen.of(events.CaseSurvived)
    assert (survived.candidate, survived.scenario.shape.tokens) == (spec("Right"), 3)
    assert f"no finding: an earlier run ended while {spec('Right')} ran M=3" in describe.survived_line(survived)
    again = Recorder()
    run(given, again)
    assert not again.of(events.CaseSurvived)


def test_a_full_disk_under_the_journal_does_not_end_the_run(options, monkeypatch):
    def full(*_: object) -> None:
        raise JournalError("journal: cannot be written to (No space left on device): make room")

    monkeypatch.setattr(Journal, "_write", full)
    seen = Recorder()
    summary = run(options("Right", examples=8), seen)
    assert (summary.scenarios, summary.exit_code) == (8, 0)
    assert len(seen.of(events.JournalLost)) == 1


def test_a_journal_that_cannot_be_made_does_not_end_the_run(options, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    seen = Recorder()
    assert run(options("Right", examples=8), seen).scenarios == 8
    assert seen.of(events.JournalLost)


# --- events and summaries ----------------------------------------------------------------------------------------


def test_events_have_a_json_form(rejected):
    summary, seen, _ = rejected
    lines = [json.loads(json.dumps(events.to_json(event), allow_nan=False)) for event in seen.events]
    assert {line["version"] for line in lines} == {events.FORMAT_VERSION}
    assert [line["event"] for line in lines] == [type(event).__name__ for event in seen.events]
    assert Summary.from_json(lines[-1]["summary"]) == summary


def test_summaries_add_up():
    one = Summary(scenarios=2, verdicts={"a": Counter({Verdict.AGREES: 2})}, known=Counter(x=1), seconds=1.5)
    two = Summary(scenarios=3, verdicts={"b": Counter({Verdict.HUNG: 3})}, missing={"c": "no"}, required=("c",))
    both = one + two
    assert both == dataclasses.replace(two + one)
    assert (both.scenarios, both.verdicts.keys(), both.exit_code) == (5, {"a", "b"}, 3)


def test_the_ledger_takes_only_what_applies(rejected, options):
    path = rejected[2]
    case = cases.load(path)
    cases.save(dataclasses.replace(case, applies_to=cases.AppliesTo(arch=("sm120",))), path)
    again = run(options("Rejects"), Recorder())
    assert again.replays == Counter({"not applicable": 1})
    assert len(again.findings) == 1


def test_only_layers_of_an_activation_are_drawn(options):
    recorder = Recorder()
    run(options("Right", examples=16, activations=("situ",)), recorder)
    drawn = [event.scenario.activation.kind for event in recorder.of(events.ScenarioFinished)]
    assert drawn == ["situ"] * 16


def test_an_activation_that_no_candidate_computes_is_named(options):
    with pytest.raises(InvalidOption, match="--activation situ: none of the candidates computes it"):
        run(options("Plain", activations=("situ",)), Recorder())
