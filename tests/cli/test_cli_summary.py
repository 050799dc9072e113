"""The Markdown of a step, as GitHub Actions shows it."""

from __future__ import annotations

import re
from pathlib import Path


def shown(path: str) -> str:
    text = re.sub(r"-[0-9a-f]{8}\.case\.json", "-DIGEST.case.json", Path(path).read_text())
    return re.sub(r"\| \d+ \| \d+ \|", "| N | N |", text)


def test_a_run_with_a_finding(run, snapshot):
    result = run("Off", "--summary", "step.md")
    assert result.code == 1
    assert shown("step.md") == snapshot


def test_a_run_without_one_and_what_was_there_stays(run, snapshot):
    Path("step.md").write_text("before\n")
    assert run("Right", "--summary", "step.md").code == 0
    assert shown("step.md") == snapshot


def test_the_file_that_github_names(run, case, difftest, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    assert run("Right").code == 0
    assert difftest("replay", case("a", "Off")).code == 0
    heads = [line for line in Path("step.md").read_text().splitlines() if line.startswith("## ")]
    assert heads == ["## difftest: all agree", "## difftest replay: 1 case: 1 STILL DIVERGES"]


def test_an_interrupted_run(run):
    assert run("Interrupted", "--summary", "step.md", examples=9).code == 130
    assert Path("step.md").read_text().startswith("## difftest: interrupted: ")


def test_replayed_cases(case, difftest, snapshot):
    case("cases/a", "Off")
    case("cases/b", "Rejects", {"status": "fixed"})
    Path("cases/c.case.json").write_text("{")
    assert difftest("replay", "cases", "--summary", "step.md").code == 2
    assert shown("step.md") == snapshot


def test_a_file_in_no_folder_is_said_before_the_run(run):
    result = run("Right", "--summary", "nowhere/step.md")
    assert result.code == 2
    assert "--summary nowhere/step.md: cannot be written; name a file in a folder that exists" in result.err


def test_a_full_disk_is_said_after_it(run, monkeypatch):
    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("difftest.output.step.os.open", full)
    result = run("Right", "--summary", "step.md")
    assert result.code == 3
    assert "--summary step.md: No space left on device; the summary is not written" in result.err
