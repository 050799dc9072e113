"""The page of `difftest run --html`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from difftest.judging.outcome import Outcome, Verdict, Worst
from difftest.output import page
from strategies import MaskSlot, Parallel, Routing, Scenario, Shape
from strategies.scenario import AssignExpert, Execution


def diverges(scenario: Scenario, heat: tuple[str, ...]) -> Outcome:
    worst = Worst(token=0, column=0, got=1.0, center=0.0, hard=(0.0, 0.0), sharp=(0.0, 0.0), radius=0.0)
    return Outcome(
        verdict=Verdict.DIVERGES,
        scenario=scenario,
        candidate="kernel",
        reference="reference",
        check="reference",
        kind="impossible",
        detail="off",
        worst=worst,
        heat=heat,
    )


class Checked(HTMLParser):
    """Text by tag; every tag that is opened is closed."""

    _ALONE = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self._ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(path: Path) -> tuple[str, Checked]:
    text = path.read_text()
    checked = Checked()
    checked.feed(text)
    assert checked.open == []
    assert checked.addresses == ["#words"]  # no network
    assert text.count('id="words"') == 1
    assert "http" not in text
    return text, checked


def test_findings_are_shown_with_their_heat_map(run):
    result = run("Off", "--html", "page.html")
    assert result.code == 1
    text, checked = page_of(Path("page.html"))
    assert "1 finding" in text
    assert "kernels.py:Off diverges (impossible) in check &#39;reference&#39;" in text
    assert "M=1 H=32 I=32 E=1 K=1, swiglu" in text
    assert checked.seen.count("rect") == 32
    assert "row 0: expert 0." in text
    assert re.search(r"<code>difftest replay cases/\S+\.case\.json</code>", text)


def test_what_a_row_went_to_and_where_tiles_begin():
    shape = Shape(tokens=2, hidden=96, experts=4, top_k=2)
    scenario = Scenario(
        shape=shape,
        parallel=Parallel(ep_size=2, ep_rank=1),
        routing=Routing(edits=(MaskSlot(token=0, slot=1), AssignExpert(token=0, slot=0, expert=1))),
        execution=Execution(padding=1),
    )
    heat = ("9" * 96, "." * 96, "." * 95 + "#")
    marks = page._row_marks(diverges(scenario, heat=heat))
    assert marks == ["row 0: experts 1 (not of this rank), masked", "row 2: padding, experts masked, masked"]
    assert page._column_marks(diverges(scenario, heat=heat)) == [64]
    assert page._row_marks(diverges(scenario, heat=heat[:2])) == []  # in blocks


def test_a_run_without_findings_shows_how_close_it_came(run):
    assert run("Right", "--html", "page.html", examples=12).code == 0
    text, _ = page_of(Path("page.html"))
    assert "all agree" in text
    assert re.search(r"\d+ scenarios, median [\d.e-]+, largest [\d.e-]+; \d+ all exact", text)
    assert "by activation" in text


def test_an_interrupted_run_has_its_page(run):
    assert run("Interrupted", "--html", "page.html", examples=9).code == 130
    assert "Interrupted: " in page_of(Path("page.html"))[0]


@pytest.mark.parametrize("path", ["nowhere/page.html", "."])
def test_a_page_that_cannot_be_written_is_said_before_the_run(run, path, snapshot):
    assert str(run("Right", "--html", path)) == snapshot


def test_a_page_that_fails_at_the_end_is_said_after_it(run, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("difftest.output.page.write_whole", full)
    result = run("Right", "--html", "page.html")
    assert result.code == 3
    assert "--html page.html: No space left on device; the page is not written" in result.err
    assert not Path("page.html").exists()
