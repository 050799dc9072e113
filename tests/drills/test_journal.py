"""A process that dies in a case leaves a journal that names the case."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import difftest.journal
from difftest.journal import Case, Journal, JournalError, leftovers
from strategies.scenario import Routing, Scenario, SetWeight, Shape

SCENARIO = Scenario(shape=Shape(tokens=3), routing=Routing(edits=(SetWeight(token=0, slot=0, weight=float("nan")),)))
OTHER = Scenario(shape=Shape(tokens=9))

DIES = """
import os, signal, sys
from pathlib import Path
from difftest.journal import Journal
from strategies.scenario import Scenario, Shape

journal = Journal(Path(sys.argv[1]))
with journal.case(Scenario(), "right", "reference", ()):
    pass
with journal.case(Scenario(shape=Shape(tokens=9)), "deadly", "reference", {"split", "pad"}):
    exec(sys.argv[2])
"""


def dies(folder: Path, how: str) -> int:
    return subprocess.run([sys.executable, "-c", DIES, str(folder), how], check=False).returncode


@pytest.mark.parametrize(
    ("how", "status"),
    [("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("os.abort()", -signal.SIGABRT)],
)
def test_a_process_that_dies_names_its_case(tmp_path: Path, how: str, status: int) -> None:
    assert dies(tmp_path, how) == status
    expected = Case(scenario=OTHER, candidate="deadly", reference="reference", checks=("pad", "split"))
    assert list(leftovers(tmp_path)) == [expected]
    assert list(leftovers(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_ends_the_process_names_its_scenario(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from difftest.engine import Engine
from difftest.journal import Journal
from oracles.grouped_mm import GroupedMM
from strategies.scenario import Scenario, Shape

class Deadly(GroupedMM):
    name = "deadly"
    def __call__(self, prepared):
        if prepared.problem.tokens == 9:
            os._exit(7)
        return super().__call__(prepared)

engine = Engine(Deadly(), journal=Journal(Path(sys.argv[1])))
for tokens in range(1, 20):
    assert engine.check(Scenario(shape=Shape(tokens=tokens)), checks=()).verdict == "agrees"
"""
    status = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode
    assert status == 7
    (case,) = leftovers(tmp_path)
    assert (case.candidate, case.scenario) == ("deadly", OTHER)


def test_what_ended_well_leaves_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, journal.case(SCENARIO, "a", "reference", ()):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_exception_or_an_interrupt_is_no_crash(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), journal.case(SCENARIO, "a", "reference", ()):
            raise error
    os.close(journal._file)  # as when the process ends before `close`
    assert list(leftovers(tmp_path)) == []


def test_a_living_process_keeps_its_journal(tmp_path: Path) -> None:
    with Journal(tmp_path) as mine, Journal(tmp_path) as another, mine.case(SCENARIO, "a", "reference", ()):
        assert mine.path != another.path
        assert list(leftovers(tmp_path)) == []
        assert mine.path.exists()


def test_a_leftover_stays_until_its_cases_are_taken(tmp_path: Path) -> None:
    dies(tmp_path, "os._exit(1)")
    taken = leftovers(tmp_path)
    next(taken)
    del taken  # whoever was told did not come back for more
    assert len(list(leftovers(tmp_path))) == 1


def dead_journal(folder: Path, content: bytes) -> None:
    (folder / "1-1.journal.jsonl").write_bytes(content)


def line(begun: int, scenario: Scenario = SCENARIO) -> bytes:
    entry = {
        "version": 1,
        "begun": begun,
        "candidate": "a",
        "reference": "reference",
        "checks": [],
        "scenario": scenario.to_json(),
    }
    return json.dumps(entry).encode() + b"\n"


FINISHED = json.dumps({"version": 1, "finished": 1}).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "scenarios"),
    [
        (b"", []),
        (line(1), [SCENARIO]),
        (line(1) + FINISHED, []),
        (line(1) + FINISHED[:9], [SCENARIO]),
        (line(1) + FINISHED + line(2, OTHER)[:40], []),  # torn: it had not begun
        (line(1) + FINISHED + line(2, OTHER), [OTHER]),
        (b"\xff\xfe garbage\n" + line(1), [SCENARIO]),
        (b"[]\n3\nnull\n{}\n" + line(1), [SCENARIO]),
        (line(1).replace(b'"version": 1, "begun"', b'"version": 2, "begun"'), []),
        (line(1).replace(b'"tokens": 3', b'"tokens": -3'), []),
        (FINISHED, []),
    ],
)
def test_a_damaged_journal_tells_what_it_can(tmp_path: Path, content: bytes, scenarios: list[Scenario]) -> None:
    dead_journal(tmp_path, content)
    assert [case.scenario for case in leftovers(tmp_path)] == scenarios
    assert list(tmp_path.iterdir()) == []


def test_no_folder_has_no_leftovers(tmp_path: Path) -> None:
    assert list(leftovers(tmp_path / "none")) == []


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"journal folder .*file.* cannot be written to \(.*\): choose another one"):
        Journal(tmp_path / "file" / "journal")


def test_a_folder_that_cannot_be_written_to_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("difftest.journal.os.open", refuse)  # permissions do not hold back the superuser
    with pytest.raises(JournalError, match=r"cannot be written to \(Permission denied\): choose another one"):
        Journal(tmp_path)


@pytest.mark.parametrize("full", ["error", "short"])
def test_a_case_that_cannot_be_recorded_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def write(*_: object) -> int:
        if full == "error":
            raise OSError(errno.ENOSPC, "No space left on device")
        return 3

    journal = Journal(tmp_path)
    ran = False
    with monkeypatch.context() as patch:
        patch.setattr("difftest.journal.os.write", write)
        with pytest.raises(JournalError, match="make room"), journal.case(SCENARIO, "a", "reference", ()):
            ran = True
    assert not ran
    journal.close()


def test_a_long_campaign_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difftest.journal, "_ROOM", 2000)
    with Journal(tmp_path) as journal:
        for _ in range(50):
            with journal.case(SCENARIO, "a", "reference", ()):
                assert journal.path.stat().st_size < 3000
