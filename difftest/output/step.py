"""`--summary`: the end of a run as Markdown, appended to a file, such as the summary of a step of GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from difftest.files import can_be_made
from difftest.findings import Finding, Summary
from difftest.judging.outcome import Verdict
from difftest.ledger.replay import Replay
from difftest.options import InvalidOption, Options
from difftest.output import describe
from difftest.output.events import CaseReplayed, Event, RunFinished, RunInterrupted

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Where GitHub Actions names the file of a step."""
MOST = 1 << 19
"""Bytes that are appended at most: a step's summary is refused whole beyond 1 MiB."""
_SHOWN = 50


def path_of(given: Path | None) -> Path | None:
    """The file that is asked for: by the option, or else by GitHub Actions; None by neither."""
    named = os.environ.get(VARIABLE)
    return given or (Path(named) if named else None)


class StepSummary:
    """A handler that keeps what a run came to, and appends it to `path` on leaving its `with`.

    All of it goes out in one write at the end of the file, so that two runs of one step do not mix. error: why it could
    not be written, None when it was.
    """

    def __init__(self, path: Path, options: Options | None = None) -> None:
        """options: of the run; None where cases are replayed alone. Raises `InvalidOption` where no file can be."""
        if not can_be_made(path):
            raise InvalidOption(f"--summary {path}: cannot be written; name a file in a folder that exists")
        self.error: str | None = None
        self._path = path
        self._options = options
        self._summary: Summary | None = None
        self._interrupted = False
        self._replays: list[Replay] = []

    def __call__(self, event: Event) -> None:
        match event:
            case CaseReplayed(replay=replay):
                self._replays.append(replay)
            case RunFinished(summary=summary):
                self._summary = summary
            case RunInterrupted(summary=summary):
                self._summary, self._interrupted = summary, True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text = "\n".join(self._lines())
        if text:
            self._append(text + "\n")

    def _append(self, text: str) -> None:
        data = text.encode()
        if len(data) > MOST:
            data = data[:MOST].rpartition(b"\n")[0] + b"\n\n(cut here: more does not fit a step)\n"
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if os.write(handle, data) != len(data):
                    self.error = f"--summary {self._path}: the disk took a part; the summary is not complete"
            finally:
                os.close(handle)
        except OSError as error:
            self.error = f"--summary {self._path}: {error.strerror}; the summary is not written"

    def _lines(self) -> Iterator[str]:
        if self._summary is not None:
            yield from self._run(self._summary)
        if self._replays:
            yield from _replays(self._replays, alone=self._summary is None)

    def _run(self, summary: Summary) -> Iterator[str]:
        cut = "interrupted: " if self._interrupted else ""
        yield f"## difftest: {cut}{describe.exit_reason(summary)}"
        yield ""
        if self._options is not None:
            yield f"{describe.count(summary.scenarios, 'scenario')}, again with `{self._options.command()}`"
            yield ""
        verdicts = [v for v in Verdict if v is Verdict.AGREES or any(seen[v] for seen in summary.verdicts.values())]
        if summary.verdicts:
            yield from _table(
                ["candidate", *map(str, verdicts)],
                ([name, *(str(seen[v] or "") for v in verdicts)] for name, seen in summary.verdicts.items()),
            )
        for finding in summary.findings[:_SHOWN]:
            yield from self._finding(finding)
        if len(summary.findings) > _SHOWN:
            yield f"and {describe.count(len(summary.findings) - _SHOWN, 'more finding')}"
            yield ""
        told = [f"known: `{path}`: {describe.count(n, 'scenario')}" for path, n in summary.known.most_common()]
        told += describe.ledger_lines(summary) + describe.missing_lines(summary.missing)
        yield from (f"- {_plain(line)}" for line in told)
        if told:
            yield ""

    def _finding(self, finding: Finding) -> Iterator[str]:
        smallest = finding.smallest
        yield f"### {_plain(describe.outcome_title(smallest))}"
        yield ""
        yield f"- {_plain(smallest.detail)}"
        yield f"- smallest: `{describe.scenario_line(smallest.scenario)}`"
        if smallest.worst is not None:
            yield f"- worst element: {_plain(describe.element_line(smallest.worst, smallest.kind))}"
        if finding.explanation is not None:
            yield f"- explanation: {_plain(finding.explanation.headline)}"
        if finding.case_path is not None:
            yield f"- reproduce: `{describe.replay_command(finding.case_path)}`"
        yield ""


def _replays(replays: list[Replay], *, alone: bool) -> Iterator[str]:
    """alone: they are all that was done; else those that are as the ledger says are only counted."""
    if alone:
        yield f"## difftest replay: {describe.replay_counts(replays)}"
        yield ""
    shown = [replay for replay in replays if alone or not replay.expected]
    rows = ([f"`{replay.path}`", str(replay.status), _plain(replay.message)] for replay in shown[:_SHOWN])
    if shown:
        yield from _table(["case", "status", "what was seen"], rows)


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _plain(text: str) -> str:
    """One line in which Markdown sees no markup."""
    line = " ".join(text.split())
    for sign in "\\`*_[]<":
        line = line.replace(sign, f"\\{sign}")
    return line
