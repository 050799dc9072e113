"""What a campaign reports while it runs: one small frozen class for each event, named by what happened. No torch.

A handler is any callable that takes an `Event`; a new report touches no code of the campaign. `to_json` gives the
stable form that `--json` writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from difftest.explain.explanation import Explanation
from difftest.findings import Finding, Summary
from difftest.judging.outcome import Bucket, Outcome
from difftest.ledger.cases import Case
from difftest.ledger.replay import Replay
from difftest.options import Options
from strategies.plain import AnyScenario

FORMAT_VERSION = 1
"""Version of the JSON form. It grows when a field changes its meaning or goes; new fields and events may come."""

Stage = Literal["hypothesis", "reducer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """candidates: those that run. missing: those that cannot run here, and why. shards: how many have work. scenarios:
    how many they draw. Both are None where time is what ends it."""

    options: Options
    candidates: tuple[str, ...]
    missing: Mapping[str, str]
    shards: int | None
    scenarios: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReplayed:
    """A case of the ledger was run again."""

    replay: Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseExplained:
    """It was looked into what the case at `path` is due to."""

    path: Path
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFinished:
    """One scenario was judged for every candidate, in `seconds` in all. outcomes: in the order of the candidates.

    shard: None when it was imported.
    """

    shard: int | None
    scenario: AnyScenario
    outcomes: tuple[Outcome, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFound:
    """A bucket was seen for the first time. known: the open case of the ledger that it is, which then only counts.

    shard: None when an earlier process did not survive it, or when it was imported.
    """

    shard: int | None
    outcome: Outcome
    known: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkStarted:
    """A new bucket is shrunk, starting from `outcome`."""

    bucket: Bucket
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkProgressed:
    """A simpler scenario shows the bucket, after `runs` real runs of this stage."""

    bucket: Bucket
    stage: Stage
    runs: int
    smallest: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSaved:
    """The ledger holds the case, or a simpler form of it, at `path`."""

    bucket: Bucket
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseNotSaved:
    """The case could not be written, for the reason in `error`; `case` is all of it, so that nothing is lost."""

    bucket: Bucket
    error: str
    case: Case


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkFinished:
    """The bucket is as small as it gets, or its budget is used up."""

    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFinished:
    """All scenarios of the shard were judged; its new buckets are shrunk later."""

    shard: int
    scenarios: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCame:
    """Another process has run the shard, or had run it before this one began; its findings are joined at the end."""

    shard: int
    scenarios: int
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLost:
    """Who ran the shard did not bring it to its end, for the reason in `error`; nothing of it is counted. It runs again
    elsewhere, unless it was lost too often (`again`)."""

    shard: int
    error: str
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLost:
    """There is no journal from here on, for the reason in `error`: a case that ends this process will have no name."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSurvived:
    """An earlier run ended while this case ran in its process, and now it ends nothing and agrees: no finding."""

    candidate: str
    scenario: AnyScenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInterrupted:
    """The user ended the run. The summary holds what was found, not shrunk any further; it is saved."""

    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The end of the run, or of the part of it that this process did."""

    summary: Summary


Event = (
    RunStarted
    | CaseReplayed
    | CaseExplained
    | ScenarioFinished
    | FindingFound
    | ShrinkStarted
    | ShrinkProgressed
    | CaseSaved
    | CaseNotSaved
    | ShrinkFinished
    | ShardFinished
    | ResultCame
    | ShardLost
    | JournalLost
    | CaseSurvived
    | RunInterrupted
    | RunFinished
)

Handler = Callable[[Event], None]


def to_json(event: Event) -> dict[str, Any]:
    """{"version": 1, "event": the class's name, and its fields}; JSON-able."""
    content = {spec.name: _encode(getattr(event, spec.name)) for spec in fields(event)}
    return {"version": FORMAT_VERSION, "event": type(event).__name__} | content


def _encode(value: Any) -> Any:
    match value:
        case tuple():
            return [_encode(item) for item in value]
        case Bucket() | Path():
            return str(value)
        case Counter() | Mapping():
            return {str(key): _encode(item) for key, item in value.items()}
        case None | str() | int() | float():
            return value
    return value.to_json()
