"""What `difftest report` and `difftest cases` show, and how they end."""

from __future__ import annotations

import re
from pathlib import Path

from difftest.ledger import cases


def test_a_report_whose_script_shows_the_finding(difftest, snapshot):
    (path,) = cases.SHIPPED.glob("ggml-repacked.reference.diverges.impossible*")
    result = difftest("report", str(path), "--out", "upstream")
    assert str(result) == snapshot
    assert result.code == 0
    text = Path("upstream/issue.md").read_text()
    environment = re.search(r"## Environment\n\n(.*?)\n\n##", text, re.DOTALL)
    assert environment is not None
    for part in (environment[1], *re.findall(r"python \d.*", text)):
        text = text.replace(part, "HERE")
    text = re.sub(r"(row \d+ column \d+: got) \S+,", r"\1 STALE MEMORY,", text)
    assert text == snapshot(name="issue")


def test_a_report_whose_script_shows_nothing(case, difftest, snapshot):
    """The script calls what the class was made from, which is right."""
    result = difftest("report", case("a", "Off"), "--out", "upstream")
    assert str(result) == snapshot
    assert result.code == 1


def test_a_report_of_no_case(difftest, snapshot):
    Path("a.case.json").write_text("{")
    assert str(difftest("report", "a.case.json")) == snapshot
    assert not list(Path().glob("report-*"))


def test_cases_are_listed(case, difftest, snapshot):
    case("a", "Off")
    case("b", "Rejects", {"status": "fixed", "upstream": "https://example.org/1"})
    result = difftest("cases", ".")
    assert str(result) == snapshot
    assert result.code == 0


def test_cases_are_marked(case, difftest, snapshot):
    path = case("a", "Off")
    assert str(difftest("cases", path, "--mark", "fixed", "--upstream", "https://example.org/2")) == snapshot
    marked = cases.load(Path(path))
    assert (str(marked.status), marked.upstream) == ("fixed", "https://example.org/2")


def test_a_replay_notes_the_day(case, difftest):
    path = case("a", "Off", {"seen": "2001-02-03"})
    assert "last seen: 2001-02-03, with " in difftest("cases", path).out
    assert difftest("replay", path).code == 0
    assert cases.load(Path(path)).seen == cases.today()
    path = case("b", "Off", {"seen": "2001-02-03", "status": "fixed"})
    assert difftest("replay", path).code == 1
    assert cases.load(Path(path)).seen == "2001-02-03"


def test_a_case_that_cannot_be_written_can_be_replayed(case, difftest, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    path = case("a", "Off", {"seen": "2001-02-03"})
    monkeypatch.setattr("difftest.ledger.cases.write_whole", full)
    assert difftest("replay", path).code == 0
    assert cases.load(Path(path)).seen == "2001-02-03"


def test_a_damaged_case_among_others(case, difftest, snapshot):
    case("b", "Off")
    Path("a.case.json").write_text("{")
    result = difftest("cases", ".")
    assert str(result) == snapshot
    assert result.code == 2
