"""The header, the summary and the files of a pytest run, in the process that prints."""

from __future__ import annotations

import dataclasses
import json

import pytest

from difftest.findings import Summary
from difftest.options import InvalidOption
from difftest.output import describe
from difftest.output.events import RunFinished
from difftest.output.jsonl import JsonLines
from difftest.output.step import StepSummary, path_of
from difftest.plugin.session import SUFFIX, session_of


class Reporter:
    """Joins the results of all items, whichever process ran them."""

    def __init__(self, config: pytest.Config) -> None:
        """Raises UsageError when a file that is asked for cannot be written."""
        session = session_of(config)
        assert session is not None  # the plugin registers this only where there is one
        self._options = session.options
        self._parts: list[Summary] = []
        wanted = path_of(self._options.summary)
        try:
            self._lines = None if self._options.json is None else JsonLines(self._options.json)
            self._step = None if wanted is None else StepSummary(wanted, self._options)
        except InvalidOption as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        """Nothing where only case files are named: none of the options is about those."""
        only_cases = bool(config.args) and all(str(arg).endswith(SUFFIX) for arg in config.args)
        return [] if only_cases else describe.header_lines(self._options)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = getattr(report, "difftest", None)
        if text is None:
            return
        result = json.loads(text)
        self._parts.append(Summary.from_json(result["summary"]))
        if self._lines is not None:
            for event in result["events"]:
                self._lines.write(event)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._lines is not None:
            with self._lines as lines:
                lines(RunFinished(summary=self._summary))
        if self._step is not None and self._parts:
            with self._step as step:
                step(RunFinished(summary=self._summary))
        if self._idle and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._parts:
            return
        terminalreporter.section("difftest")
        summary, options = self._summary, self._options
        lines = [line for finding in summary.findings for line in describe.short_finding_lines(finding, options)]
        drawn = summary.scenarios or summary.missing
        lines += describe.summary_lines(summary, options) if drawn else describe.ledger_lines(summary)
        wrong = list(self._idle)
        written = (self._lines, self._step)
        wrong += [report.error for report in written if report is not None and report.error is not None]
        for line in lines:
            terminalreporter.line(line)
        for line in wrong:
            terminalreporter.line(line, red=True)

    @property
    def _summary(self) -> Summary:
        """All parts joined. seconds: 0, since they ran beside each other."""
        return dataclasses.replace(sum(self._parts, Summary()), seconds=0.0)

    @property
    def _idle(self) -> list[str]:
        """A run whose required oracles answered nothing is no success; not a word when nothing ran at all."""
        return describe.idle_lines(self._summary, self._options.require) if self._summary.scenarios else []
