"""What the plugin runs as tests: a case, and a shard of the campaign."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from difftest.findings import Summary
from difftest.judging.outcome import Bucket
from difftest.ledger.cases import SUFFIX
from difftest.ledger.claims import Claims
from difftest.ledger.replay import ReplayStatus, replay
from difftest.output import describe
from difftest.output.events import CaseNotSaved, CaseReplayed, CaseSurvived, Event, JournalLost, to_json
from difftest.plugin.session import session_of

RESULT = pytest.StashKey[str]()
"""JSON of an item's result: its `Summary`, and its events if they are to be written."""


class CaseFile(pytest.File):
    """A `*.case.json`: one test, its replay."""

    def collect(self) -> Iterator[CaseItem]:
        yield CaseItem.from_parent(self, name=self.path.name.removesuffix(SUFFIX))


class CaseItem(pytest.Item):
    """Runs the case again and compares with what the ledger says."""

    def runtest(self) -> None:
        replay_case(self, self.path)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"case {self.path.name}"


def replay_case(item: pytest.Item, path: Path) -> None:
    """Replay the case as a test: xfail where it is open and still diverges, skip where it says nothing here."""
    from difftest.plugin.warm import executors_of  # imports torch

    done = replay(path, executors_of(item))
    failures = () if done.expected else (f"{path}: {done.message}",)
    _attach(
        item, Summary(replays=Counter({str(done.status): 1}), ledger_failures=failures), [CaseReplayed(replay=done)]
    )
    _tell(item, status=done.status, bucket=done.case and done.case.bucket, seen=done.message)
    message = f"{done.status.upper()}: {done.message}"
    if not done.expected:
        pytest.fail(f"{message}\n  Reproduce with: {describe.replay_command(path)}", pytrace=False)
    if done.status is ReplayStatus.NOT_APPLICABLE:
        pytest.skip(message)
    if done.status is ReplayStatus.STILL_DIVERGES:
        _xfail(message)


def run_shard(item: pytest.Item, shard: int) -> None:
    """Run a shard of the campaign as a test: fails with the report of each new bucket that it shrank."""
    from difftest import campaign  # imports torch
    from difftest.plugin.warm import executors_of

    session = session_of(item.config)
    assert session is not None  # the suite is not collected without one
    events: list[Event] = []
    unsaved: dict[Bucket, CaseNotSaved] = {}

    def emit(event: Event) -> None:
        events.append(event)
        match event:
            case CaseNotSaved(bucket=bucket):
                unsaved[bucket] = event
            case JournalLost():
                item.warn(pytest.PytestWarning(describe.lost_journal_line(event)))
            case CaseSurvived():
                item.warn(pytest.PytestWarning(describe.survived_line(event)))

    summary = campaign.run_shard(
        session.options, shard, emit, Claims(session.claims), session.known, executors_of(item)
    )
    _attach(item, summary, events if session.options.json else [])
    _tell(item, seed=session.options.seed, scenarios=summary.scenarios)
    for finding in summary.findings:
        _tell(
            item,
            bucket=finding.bucket,
            smallest=describe.scenario_line(finding.smallest.scenario),
            seen=finding.smallest.detail,
            explanation=finding.explanation and finding.explanation.headline,
            case=finding.case_path,
        )
    if summary.findings:
        reports = [describe.finding_lines(finding, session.options) for finding in summary.findings]
        reports += [describe.unsaved_lines(event) for event in unsaved.values()]
        pytest.fail("\n\n".join(map("\n".join, reports)), pytrace=False)
    if not summary.verdicts:
        pytest.skip("; ".join(describe.missing_lines(summary.missing)))
    if summary.elsewhere:
        _xfail(f"reported by another shard: {', '.join(summary.elsewhere)}")


def _tell(item: pytest.Item, **properties: object) -> None:
    """Properties of the test, which the JUnit XML has; those that are None are left out."""
    item.user_properties += [
        (f"difftest.{name}", str(value)) for name, value in properties.items() if value is not None
    ]


def _xfail(reason: str) -> None:
    pytest.xfail(reason)
    pytest.fail(reason, pytrace=False)  # with --runxfail `pytest.xfail` does nothing


def _attach(item: pytest.Item, summary: Summary, events: Iterable[Event]) -> None:
    result = {"summary": summary.to_json(), "events": [to_json(event) for event in events]}
    item.stash[RESULT] = json.dumps(result)
