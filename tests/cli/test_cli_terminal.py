"""The view of a run while it goes: plain lines where nobody watches, a live view on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from difftest.judging.outcome import Outcome, Verdict
from difftest.options import Options
from difftest.output.events import FindingFound, RunStarted, ScenarioFinished, ShrinkProgressed, ShrinkStarted
from difftest.output.terminal import PLAIN_INTERVAL, Terminal
from strategies.scenario import Scenario, Shape

OPTIONS = Options(candidates=("kernel",), examples=200, seed=7)
UNSUPPORTED = Outcome(
    verdict=Verdict.UNSUPPORTED, scenario=Scenario(), candidate="kernel", reference="reference", reason="biases [none]"
)
HUNG = Outcome(
    verdict=Verdict.HUNG,
    scenario=Scenario(shape=Shape(tokens=9)),
    candidate="kernel",
    reference="reference",
    check="call",
    kind="30 s",
    detail="no answer in 30 s",
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def started():
    return RunStarted(
        options=OPTIONS, candidates=("kernel",), missing={"other": "not installed"}, shards=25, scenarios=200
    )


def finished(*outcomes):
    return ScenarioFinished(shard=0, scenario=outcomes[0].scenario, outcomes=outcomes, seconds=0.1)


def console(**kwargs):
    return Console(file=io.StringIO(), width=100, **kwargs)


def test_plain_progress_is_one_line_in_ten_seconds(clock, snapshot):
    where = console()
    with Terminal(OPTIONS, where, clock) as terminal:
        terminal(started())
        for _ in range(100):
            clock.now += PLAIN_INTERVAL / 40
            terminal(finished(UNSUPPORTED))
    assert where.file.getvalue() == snapshot


def test_plain_tells_a_finding_at_once(clock, snapshot):
    where = console()
    with Terminal(OPTIONS, where, clock) as terminal:
        terminal(started())
        terminal(finished(HUNG))
        terminal(FindingFound(shard=0, outcome=HUNG, known=None))
    assert where.file.getvalue() == snapshot


def test_live_view(clock, snapshot):
    where = console(force_terminal=True, color_system=None, legacy_windows=False)
    with Terminal(OPTIONS, where, clock) as terminal:
        terminal(started())
        clock.now += 4
        for outcome in (UNSUPPORTED, UNSUPPORTED, HUNG):
            terminal(finished(outcome))
        terminal(FindingFound(shard=0, outcome=HUNG, known=None))
        terminal(ShrinkStarted(bucket=HUNG.bucket, outcome=HUNG))
        terminal(ShrinkProgressed(bucket=HUNG.bucket, stage="reducer", runs=12, smallest=HUNG))
        view = console()
        view.print(terminal)
    assert view.file.getvalue() == snapshot


def test_the_live_view_leaves_nothing_behind(clock):
    where = console(force_terminal=True, color_system=None, legacy_windows=False)
    terminal = Terminal(OPTIONS, where, clock)

    def interrupted():
        with terminal:
            terminal(started())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert where.file.getvalue().count("\x1b[?25l") == where.file.getvalue().count("\x1b[?25h") == 1  # the cursor


def test_brackets_in_a_reason_are_text_not_markup(clock):
    where = console()
    with Terminal(OPTIONS, where, clock) as terminal:
        terminal(started())
        terminal(finished(UNSUPPORTED))
        view = console()
        view.print(terminal)
    assert "biases [none]" in view.file.getvalue()
