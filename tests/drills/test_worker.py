"""A candidate may die, hang or rot in its worker: its case gets a typed outcome, and no other case is lost."""

from __future__ import annotations

import tempfile
from collections import Counter

import dying
import pytest

from difftest.campaign import run
from difftest.findings import Summary
from difftest.isolation.environment import WorkerFailed
from difftest.isolation.executors import Executors, Isolation
from difftest.isolation.sequence import Step
from difftest.judging.outcome import Verdict
from difftest.judging.timing import Untimed
from difftest.ledger import cases
from difftest.ledger.replay import ReplayStatus, replay
from difftest.options import Options
from oracles import OracleNotFound
from strategies.scenario import Scenario, Shape

TIMEOUT = 5


def of(tokens: int) -> Scenario:
    return Scenario(shape=Shape(tokens=tokens))


def spec(name: str) -> str:
    return f"{dying.FILE}:{name}"


pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(autouse=True)
def _own_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DIFFTEST_DRILL", str(tmp_path / "mark"))


@pytest.fixture
def workers():
    with Executors(isolation=Isolation(all=True, timeout=TIMEOUT, workers=1)) as executors:
        yield lambda name: executors.of(spec(name), "reference")


ENDS = {
    dying.killed: (Verdict.CRASHED, "SIGKILL"),
    dying.os.abort: (Verdict.CRASHED, "SIGABRT"),
    dying.exits: (Verdict.CRASHED, "exit 3"),
    dying.exits_well: (Verdict.CRASHED, "exit 0"),
    dying.segfaults: (Verdict.CRASHED, "SIGSEGV"),
    dying.sleeps: (Verdict.HUNG, "timeout"),
    dying.spins: (Verdict.HUNG, "timeout"),
    dying.sys_exits: (Verdict.REJECTED, "SystemExit: no kernel"),
    dying.raises: (Verdict.REJECTED, "ValueError: no kernel"),
    dying.devours: (Verdict.REJECTED, "RuntimeError: [enforce fail at alloc_cpu.cpp"),
}


def test_whatever_ends_a_case_is_its_outcome_and_the_others_do_not_notice(workers):
    """All cases are handed over at once, so that the others wait in the process that dies."""
    executor = workers("Dying")
    deadly = [of(dying.FIRST + number) for number in range(len(dying.DEATHS))]
    asked = [scenario for death in deadly for scenario in (death, of(1))]
    outcomes = [pending.result() for pending in [executor.submit(scenario, ()) for scenario in asked]]
    assert [outcome.scenario for outcome in outcomes] == asked
    assert {outcome.candidate for outcome in outcomes} == {spec("Dying")}
    assert [outcome.verdict for outcome in outcomes[1::2]] == [Verdict.AGREES] * len(deadly)
    assert [outcome.verdict for outcome in outcomes[::2]] == [ENDS[death][0] for death in dying.DEATHS]
    # What ran in the process before it died, and nothing of the one before.
    assert [len(executor.before(outcome)) for outcome in outcomes[::2]] == [0, 1, 1, 1, 1, 1, 1, 1, 3, 5]
    assert executor.before(outcomes[2]) == (Step(of(1)),)
    for outcome, death in zip(outcomes[::2], dying.DEATHS, strict=True):
        assert outcome.kind.startswith(ENDS[death][1])


def test_a_process_that_does_not_start_is_one_line_and_not_tried_for_ever(workers):
    with pytest.raises(WorkerFailed) as raised:
        workers("DiesAtStart")
    assert str(raised.value) == f"{spec('DiesAtStart')}: its process ends at its start"
    with pytest.raises(OracleNotFound, match=r"FailsAtStart\(\) fails: OSError: no device at all$"):
        workers("FailsAtStart")


def test_nor_is_one_that_does_not_start_again(workers):
    executor = workers("DiesAtSecondStart")
    assert executor.submit(of(1), ()).result().kind == "exit 5"
    with pytest.raises(WorkerFailed, match="ends at its start"):
        executor.submit(of(2), ()).result()


# --- while a process starts ---------------------------------------------------------------------------------------


@pytest.fixture
def notes(tmp_path):
    return lambda: Counter((tmp_path / "mark.notes").read_text().splitlines())


def test_what_waits_for_a_process_that_died_is_run_by_another(notes):
    """Two processes have ten cases each when one of them dies."""
    with Executors(isolation=Isolation(all=True, timeout=TIMEOUT, workers=2)) as executors:
        executor = executors.of(spec("SlowToReturn"), "reference")
        asked = [of(5), *(of(tokens) for tokens in range(6, 25))]
        outcomes = [pending.result() for pending in [executor.submit(scenario, ()) for scenario in asked]]
        assert [outcome.verdict for outcome in outcomes] == [Verdict.CRASHED] + [Verdict.AGREES] * 19
        assert "is back" not in notes()
        again = [executor.submit(of(tokens), ()).result().verdict for tokens in (30, 31)]
        assert again == [Verdict.AGREES] * 2
        answers = {note: times for note, times in notes().items() if note.startswith("answers")}
    assert answers == {f"answers {tokens}": 1 for tokens in (*range(6, 25), 30, 31)}


def test_a_process_is_as_good_as_new_after_the_one_before_it_died(workers, notes):
    executor = workers("Counts")
    assert executor.submit(of(5), ()).result().verdict is Verdict.CRASHED
    assert executor.run_afresh((), of(5), ()).verdict is Verdict.CRASHED
    assert executor.run_afresh((Step(of(4)),), of(3), ()).verdict is Verdict.AGREES
    assert executor.submit(of(1), ()).result().verdict is Verdict.AGREES
    assert notes() == {"starts": 4}


@pytest.mark.parametrize("count", [1, 2])
def test_a_sequence_has_a_process_of_its_own(notes, count):
    """Also where a process has ended before that, and is asked something besides."""
    with Executors(isolation=Isolation(all=True, timeout=TIMEOUT, workers=count)) as executors:
        executor = executors.of(spec("Signs"), "reference")
        waiting = [executor.submit(of(tokens), ()) for tokens in (6, 5, 7, 8)]
        assert executor.run_afresh((Step(of(2)), Step(of(3))), of(9), ()).verdict is Verdict.AGREES
        assert executor.run_afresh((), of(5), ()).verdict is Verdict.REJECTED
        waiting.append(executor.submit(of(10), ()))
        assert executor.run_afresh((Step(of(11)),), of(12), ()).verdict is Verdict.AGREES
        assert [pending.result().scenario for pending in waiting] == [of(tokens) for tokens in (6, 5, 7, 8, 10)]
    ran: dict[str, list[int]] = {}
    for note in notes():
        tokens, process = note.split()
        ran.setdefault(process, []).append(int(tokens))
    assert {(2, 3, 9), (5,), (11, 12)} <= {tuple(tokens) for tokens in ran.values()}
    assert sorted(notes().values()) == [1] * 11


# --- sequences ---------------------------------------------------------------------------------------------------


def test_a_worker_is_calibrated_and_says_why_it_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFTEST_CALIBRATIONS", str(tmp_path / "calibrations"))
    with Executors(isolation=Isolation(all=True, timeout=TIMEOUT, workers=1)) as executors:
        executor = executors.of("grouped-mm", "reference")
        found = executor.calibrate()
        assert found.contradictions(executor.introduction.numerics) == []
        assert [path.name for path in (tmp_path / "calibrations").iterdir()] == [found.name]
        assert executor.libraries() == {}
        with pytest.raises(Untimed, match="grouped-mm: runs on the cpu"):
            executor.time(of(1))
        assert executor.submit(of(1), ()).result().verdict is Verdict.AGREES


@pytest.fixture
def harvested(tmp_path, monkeypatch):
    """A campaign over batches of so many rows, whose findings go to the reducer alone."""

    def campaign(name: str, *rows: int) -> Summary:
        monkeypatch.setattr("difftest.stream.Stream.each", lambda _, visit: [visit(of(tokens)) for tokens in rows])
        monkeypatch.setattr("difftest.stream.Stream.shrink", lambda _, __: None)
        options = Options(
            candidates=(spec(name),),
            examples=8,
            seed=1,
            profile="quick",
            cases=tmp_path / "cases",
            isolate=True,
            workers=1,
        )
        return run(options, lambda _: None)

    return campaign


def test_a_failure_that_needs_earlier_cases_is_kept_with_them(harvested):
    (finding,) = harvested("Remembers", 1, 3, 7, 5, 6, 5).findings
    assert (finding.smallest.scenario, finding.smallest.kind) == (of(5), "impossible")
    assert finding.smallest.detail.endswith("(needs 2 earlier cases in the same process)")
    case = cases.load(finding.case_path)
    assert [step.scenario for step in case.sequence] == [of(3), of(7)]
    assert replay(finding.case_path).status is ReplayStatus.STILL_DIVERGES
    cut = cases.Case(**{**vars(case), "sequence": (Step(of(3)),)})
    cases.save(cut, finding.case_path)
    assert replay(finding.case_path).status is ReplayStatus.FIXED


def test_a_crash_that_is_not_seen_again_is_reported_all_the_same(harvested):
    (finding,) = harvested("Once", 1, 5, 2).findings
    assert (finding.smallest.verdict, finding.smallest.scenario) == (Verdict.CRASHED, of(5))
    assert finding.smallest.detail.endswith("(not seen again in a new process)")
    assert not finding.fixed_point


# --- campaigns ---------------------------------------------------------------------------------------------------


def test_a_campaign_goes_on_and_shrinks_what_ends_processes(harvested):
    """Every crash of the shrink ends another process."""
    summary = harvested("Killing", 1, 20, 2, 9, 3)
    (finding,) = summary.findings
    assert summary.verdicts[spec("Killing")] == Counter({Verdict.AGREES: 3, Verdict.CRASHED: 2})
    assert (finding.smallest.verdict, finding.smallest.kind) == (Verdict.CRASHED, "SIGKILL")
    assert finding.smallest.scenario == of(9)
    assert (finding.seen, finding.fixed_point) == (2, True)
    assert cases.load(finding.case_path).sequence == ()
