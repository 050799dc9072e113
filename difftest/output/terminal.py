"""What `difftest run` and `difftest replay` show: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from difftest.findings import Summary, mistakes
from difftest.judging.outcome import Verdict
from difftest.ledger.replay import Replay, ReplayStatus
from difftest.options import Options
from difftest.output import describe
from difftest.output.events import (
    CaseNotSaved,
    CaseReplayed,
    CaseSaved,
    CaseSurvived,
    Event,
    FindingFound,
    JournalLost,
    ResultCame,
    RunFinished,
    RunInterrupted,
    RunStarted,
    ScenarioFinished,
    ShardLost,
    ShrinkFinished,
    ShrinkProgressed,
    ShrinkStarted,
)

PLAIN_INTERVAL = 10.0
"""Seconds between two progress lines when the output is not a terminal."""

REASONS = 5
"""The live view shows this many reasons for "unsupported"; the summary shows all."""

STATUS_STYLES = {
    ReplayStatus.STILL_DIVERGES: "yellow",
    ReplayStatus.FIXED: "green",
    ReplayStatus.ERRORED: "red",
    ReplayStatus.NOT_APPLICABLE: "dim",
}


class Terminal:
    """A handler that tells a person how the run goes, and at its end what was found."""

    def __init__(self, options: Options, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._console = console
        self._clock = clock
        self._started = self._last_line = clock()
        self._scenarios = 0
        self._expected: int | None = options.examples
        self._drawing = 0.0
        self._findings = 0
        self._unsupported: Counter[str] = Counter()
        self._activity = ""
        self._saved: set[Path] = set()
        self._replaying = False
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._print(describe.header_lines(self._options))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_live()

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted(candidates=candidates, missing=missing, scenarios=scenarios):
                self._expected = scenarios
                self._print([f"candidates: {', '.join(candidates) or 'none'}", *describe.missing_lines(missing)])
                self._start_live()
            case CaseReplayed(replay=replay):
                if not self._replaying:
                    self._replaying = True
                    self._print(["the ledger first, its open cases are expected to diverge still:"])
                self._print([replay_line(replay)], STATUS_STYLES[replay.status])
            case ScenarioFinished(outcomes=outcomes):
                self._scenarios += 1
                self._drawing = self._clock() - self._started
                for outcome in outcomes:
                    if outcome.verdict is Verdict.UNSUPPORTED:
                        self._unsupported[f"{outcome.candidate}: {outcome.reason}"] += 1
                self._tick()
            case FindingFound(outcome=outcome, known=None):
                self._findings += 1
                self._print([f"found: {describe.outcome_line(outcome)}"], "red")
            case FindingFound(outcome=outcome, known=known):
                self._print([f"known: {describe.outcome_title(outcome)}: {known}"], "yellow")
            case ShrinkStarted(bucket=bucket):
                self._activity = f"shrinking {bucket}"
                self._tick()
            case ShrinkProgressed(bucket=bucket, stage=stage, runs=runs):
                self._activity = f"shrinking {bucket} ({stage}, {runs} runs)"
                self._tick()
            case ShrinkFinished(finding=finding):
                self._activity = ""
                self._print([f"shrunk: {finding.bucket}: {describe.scenario_line(finding.smallest.scenario)}"])
            case CaseSaved(path=path):
                if path not in self._saved:  # else it is the same case in a simpler form
                    self._saved.add(path)
                    self._print([f"saved: {path}"])
            case CaseNotSaved():
                self._print(describe.unsaved_lines(event), "red")
            case ResultCame(scenarios=scenarios, findings=findings):
                self._scenarios += scenarios
                self._drawing = self._clock() - self._started
                self._findings += findings
                self._tick()
            case ShardLost():
                self._print([describe.lost_shard_line(event)], "red")
            case JournalLost():
                self._print([describe.lost_journal_line(event)], "red")
            case CaseSurvived():
                self._print([describe.survived_line(event)])
            case RunFinished(summary=summary) | RunInterrupted(summary=summary):
                self._stop_live()
                self._finish(summary)
            case _:
                pass

    # --- progress --------------------------------------------------------------------------------------------------

    def progress_line(self) -> str:
        """Scenarios, rate, findings and the unsupported, in one line."""
        rate = f"{self._scenarios / self._drawing:.1f}/s" if self._drawing > 0 else "-/s"
        of = "" if self._expected is None else f" of {self._expected}"
        parts = [f"{self._scenarios}{of} scenarios", rate]
        parts += [describe.count(self._findings, "finding"), f"{self._unsupported.total()} unsupported"]
        return ", ".join(parts + ([self._activity] if self._activity else []))

    def __rich__(self) -> Group:
        """The live view, drawn anew several times a second."""
        bar = ProgressBar(total=self._expected, completed=self._scenarios, width=30)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, Text(self.progress_line()))
        reasons = self._unsupported.most_common(REASONS)
        return Group(row, *(Text(f"  {count:6} {reason}", style="dim") for reason, count in reasons))

    def _tick(self) -> None:
        """A plain progress line, not more often than `PLAIN_INTERVAL`; the live view draws itself."""
        if self._live is None and self._clock() - self._last_line >= PLAIN_INTERVAL:
            self._last_line = self._clock()
            self._print([self.progress_line()])

    def _start_live(self) -> None:
        self._started = self._last_line = self._clock()
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.__rich__, console=self._console, transient=True)
            self._live.start()

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # --- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, summary: Summary) -> None:
        number = 0
        for mistake in mistakes(summary.findings):
            if len(mistake.findings) > 1:
                self._print(["", f"MISTAKE: {describe.mistake_title(mistake)}"], "bold red")
            for finding in mistake.findings:
                number += 1
                self._print(["", f"FINDING {number} of {len(summary.findings)}"], "bold red")
                self._print(describe.finding_lines(finding, self._options))
        self._print(["", "SUMMARY"], "bold")
        self._print(describe.summary_lines(summary, self._options))

    def _print(self, lines: Iterable[str], style: str | None = None) -> None:
        print_lines(self._console, lines, style)


def print_lines(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines as they are: no markup is read, nothing is wrapped, so that paths can be copied."""
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


def replay_line(replay: Replay) -> str:
    """One row of the replay's table."""
    who = "" if replay.case is None else f"  {replay.case.candidate}"
    return f"{replay.status.upper():<15} {replay.path}{who}: {replay.message}"
