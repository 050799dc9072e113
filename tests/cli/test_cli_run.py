"""What `difftest run` shows and how it ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest


def test_all_agree(run, snapshot):
    result = run("Right")
    assert str(result) == snapshot
    assert result.code == 0
    assert not Path("cases").exists()


def test_a_divergence_is_shown_shrunk_and_saved(run, snapshot):
    result = run("Off")
    assert str(result) == snapshot
    assert result.code == 1
    assert len(list(Path("cases").glob("*.case.json"))) == 1


def test_a_rejection_is_a_finding(run, snapshot):
    result = run("Rejects")
    assert str(result) == snapshot
    assert result.code == 1


def test_the_same_seed_shows_the_same(run):
    first, second = run("Off", "--cases", "a"), run("Off", "--cases", "b")
    assert str(first).replace(" a/", " b/") == str(second)


def test_two_candidates_are_told_apart(run, snapshot):
    result = run("Right", "--candidate", "kernels.py:Rejects")
    assert str(result) == snapshot
    assert result.code == 1


def test_reproduce_command_works(run, difftest):
    shown = run("Rejects").out
    (command,) = [line for line in shown.splitlines() if "Reproduce with:" in line]
    result = difftest(*shlex.split(command)[3:])
    assert result.code == 0
    assert result.out.startswith("STILL DIVERGES")


def test_a_case_that_is_known_is_counted_not_found_again(run, snapshot):
    run("Off")
    result = run("Off")
    assert str(result) == snapshot
    assert result.code == 0


def test_a_case_that_is_fixed_ends_the_run_with_1(run, snapshot):
    run("Off")
    path = Path("kernels.py")
    path.write_text(path.read_text().replace("(prepared) * 1.5", "(prepared)"))
    result = run("Off")
    assert str(result) == snapshot
    assert result.code == 1


def test_a_damaged_case_in_the_folder_is_told_and_the_run_goes_on(run, snapshot):
    Path("cases").mkdir()
    Path("cases/cut.case.json").write_text('{"version": 1, "bucket"')
    result = run("Right")
    assert str(result) == snapshot
    assert result.code == 1
    assert "scenarios: 4" in result.out


def test_everything_unsupported_is_no_success(run, snapshot):
    result = run("Declines")
    assert str(result) == snapshot
    assert result.code == 3


def test_required_but_idle_beside_another_candidate(run):
    result = run("Right", "--candidate", "kernels.py:Declines", "--require", "kernels.py:Declines")
    assert result.code == 3
    assert "exit 3: required, but it supports no scenario that was drawn: kernels.py:Declines" in result.out


def test_a_candidate_that_is_not_installed_is_left_out(run, snapshot):
    result = run("Right", "--candidate", "kernels.py:Absent")
    assert str(result) == snapshot
    assert result.code == 0


def test_every_candidate_missing(run, snapshot):
    result = run("Absent")
    assert str(result) == snapshot
    assert result.code == 3


def test_a_required_candidate_is_missing(run, snapshot):
    result = run("Right", "--candidate", "kernels.py:Absent", "--require", "kernels.py:Absent")
    assert str(result) == snapshot
    assert result.code == 3


def test_cpu_oracles_alone_satisfy_require(run):
    assert run("Right", "--require", "kernels.py:Right").code == 0


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("--examples", "0"), id="examples-0"),
        pytest.param(("--examples", "-3"), id="examples-negative"),
        pytest.param(("--examples", "many"), id="examples-no-number"),
        pytest.param(("--examples", "1.5"), id="examples-fraction"),
        pytest.param(("--seed", "-1"), id="seed-negative"),
        pytest.param(("--seed", "99999999999"), id="seed-too-large"),
        pytest.param(("--seed",), id="seed-without-value"),
        pytest.param(("--profile", "huge"), id="profile-unknown"),
        pytest.param(("--candidate", "cutlas"), id="oracle-unknown"),
        pytest.param(("--candidate", "kernel.py:Right"), id="oracle-file-absent"),
        pytest.param(("--candidate", "kernels.py:Wrong"), id="oracle-attribute-absent"),
        pytest.param(("--candidate", "kernels.py:NeedsArguments"), id="oracle-cannot-be-made"),
        pytest.param(("--candidate", "kernels.py:NoOracle"), id="oracle-incomplete"),
        pytest.param(("--candidate", "kernels.py:DoesNotKnow"), id="oracle-cannot-be-asked"),
        pytest.param(("--candidate", "no.such.module:Right"), id="oracle-module-absent"),
        pytest.param(("--candidate", "reference"), id="candidate-is-reference"),
        pytest.param(("--reference", "truth"), id="reference-unknown"),
        pytest.param(("--require", "grouped-mm"), id="required-is-no-candidate"),
        pytest.param(("--cases", "kernels.py"), id="cases-is-a-file"),
        pytest.param(("--cases", "kernels.py/cases"), id="cases-below-a-file"),
        pytest.param(("--json", "nowhere/out.jsonl"), id="json-folder-absent"),
        pytest.param(("--json", "."), id="json-is-a-folder"),
        pytest.param(("--shrink",), id="option-unknown"),
        pytest.param(("more",), id="argument-unexpected"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, run, snapshot):
    result = run("Right", *args)
    assert str(result) == snapshot
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert not Path("cases").exists()


@pytest.mark.parametrize("content", ["def Right(:", "import no_such_package", "1 / 0", "raise SystemExit(0)"])
def test_oracle_file_that_fails_to_load(content, difftest, snapshot):
    Path("broken.py").write_text(content)
    result = difftest("run", "--candidate", "broken.py:Right")
    assert str(result) == snapshot
    assert (result.code, len(result.err.splitlines())) == (2, 1)


def test_read_only_cases_folder_is_refused_before_the_run(run, monkeypatch, snapshot):
    monkeypatch.setattr("os.access", lambda *_: False)  # the tests may run as root, for whom all can be written
    result = run("Off")
    assert str(result) == snapshot
    assert (result.code, result.out) == (2, "")


def test_a_case_that_cannot_be_saved_is_printed_whole(run):
    result = run("TakesTheFolder")
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[lines.index("the case:") - 1].startswith("not saved: ")
    case = json.loads(lines[lines.index("the case:") + 1])
    assert case["outcome"]["verdict"] == "rejected"
    assert "Reproduce with: difftest run" in result.out


def test_interrupted(run):
    result = run("Interrupted", examples=40)
    assert result.code == 130
    for words in (
        "FINDING 1 of 1",
        "the run ended before",
        "Reproduce with: difftest replay cases/",
        "SUMMARY",
        "seed: 7",
    ):
        assert words in result.out
    assert result.out.splitlines()[-1] == "exit 130: interrupted; findings so far are saved and shown above"
    assert len(list(Path("cases").glob("*.case.json"))) == 1


def test_json_has_one_event_a_line(run):
    result = run("Off", "--json", "out.jsonl")
    assert result.code == 1
    events = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    assert (names[0], names[-1], names.count("ScenarioFinished")) == ("RunStarted", "RunFinished", 4)
    assert events[0]["options"]["seed"] == 7
    assert {"FindingFound", "CaseSaved", "ShrinkStarted", "ShrinkFinished"} <= set(names)


def test_json_on_a_full_disk_does_not_end_the_run(run, snapshot):
    result = run("Right", "--json", "/dev/full")
    assert str(result) == snapshot
    assert result.code == 3
    assert "scenarios: 4" in result.out
