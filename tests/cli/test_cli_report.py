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


def test_a_damaged_case_among_others(case, difftest, snapshot):
    case("b", "Off")
    Path("a.case.json").write_text("{")
    result = difftest("cases", ".")
    assert str(result) == snapshot
    assert result.code == 2
