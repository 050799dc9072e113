"""What a campaign found: one `Finding` a bucket, and the `Summary` of a run or of a part of it. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from difftest.coverage import Coverage
from difftest.explain.explanation import Explanation, Match
from difftest.judging.outcome import Bucket, Outcome, Verdict
from difftest.judging.votes import Pairs, Votes

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A new bucket, shrunk.

    smallest: the simplest scenario that still shows it. worst: the largest error/radius seen.
    seen: scenarios of the campaign that showed it. scenarios_before: scenarios judged up to and with the first one.
    shrink_runs_hypothesis, shrink_runs_reducer: real runs (memoised ones are free) that each stage took.
    fixed_point: no single step of the reducer makes `smallest` simpler (else the budget ended first).
    case_path: where it was saved; None when that failed, and the event `CaseNotSaved` then held the case.
    explanation: None where the candidate could not be asked any more.
    votes: the other candidates on `smallest`; None without any, or when it is not about an answer.
    """

    bucket: Bucket
    smallest: Outcome
    worst: Outcome
    seen: int
    scenarios_before: int
    shrink_runs_hypothesis: int
    shrink_runs_reducer: int
    fixed_point: bool
    case_path: Path | None
    explanation: Explanation | None = None
    votes: Votes | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "smallest": self.smallest.to_json(),
            "worst": self.worst.to_json(),
            "seen": self.seen,
            "scenarios_before": self.scenarios_before,
            "shrink_runs_hypothesis": self.shrink_runs_hypothesis,
            "shrink_runs_reducer": self.shrink_runs_reducer,
            "fixed_point": self.fixed_point,
            "case_path": None if self.case_path is None else str(self.case_path),
            "explanation": None if self.explanation is None else self.explanation.to_json(),
            "votes": None if self.votes is None else self.votes.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        smallest, path = Outcome.from_json(data["smallest"]), data["case_path"]
        explanation = data["explanation"]
        votes = data["votes"]
        converted = {
            "smallest": smallest,
            "worst": Outcome.from_json(data["worst"]),
            "case_path": None if path is None else Path(path),
            "explanation": None if explanation is None else Explanation.from_json(explanation),
            "votes": None if votes is None else Votes.from_json(votes),
        }
        return cls(**{**data, **converted}, bucket=smallest.bucket)


@dataclass(frozen=True)
class Mistake:
    """Findings that one explanation covers, in the order in which they came. match: None where nothing matches."""

    match: Match | None
    findings: tuple[Finding, ...]


def mistakes(findings: Iterable[Finding]) -> list[Mistake]:
    """The findings by what explains them: the match that covers the most first, then the most of the rest.

    A finding that nothing matches is a mistake of its own.
    """
    left, found = list(findings), []
    while left:
        first = left[0]
        covered: dict[tuple[str, str], list[Finding]] = defaultdict(list)
        matches: dict[tuple[str, str], Match] = {}
        for finding in left:
            for match in finding.explanation.matches if finding.explanation else ():
                covered[finding.bucket.oracle, str(match)].append(finding)
                matches.setdefault((finding.bucket.oracle, str(match)), match)
        best = max(covered, key=lambda key: len(covered[key]), default=None)
        if best is None:
            found.append(Mistake(None, (first,)))
        else:
            found.append(Mistake(matches[best], tuple(covered[best])))
        left = [finding for finding in left if finding not in found[-1].findings]
    return found


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run, or a shard of it; `+` joins parts.

    scenarios: distinct ones drawn. verdicts: by candidate, how many scenarios had each. unsupported: by candidate,
    scenarios by the oracle's reason. one_offs: elements outside the sharp radius once, which redraws did not repeat.
    pairs: how often each two candidates agreed. coverage: what of the space of scenarios was drawn. known: scenarios
    by open case of the ledger that explains them (its file name). elsewhere: scenarios by bucket (its slug) that
    another shard reports. replays: cases by their replay's status. ledger_failures: one line for each replayed case
    that is not as the ledger says. missing: candidates that cannot run here and why. required: those of them that
    --require names. lost_devices: those that were taken out on the way, by UUID, and why.
    """

    scenarios: int = 0
    verdicts: Mapping[str, Counter[Verdict]] = field(default_factory=dict)
    unsupported: Mapping[str, Counter[str]] = field(default_factory=dict)
    one_offs: int = 0
    pairs: Pairs = field(default_factory=Pairs)
    known: Counter[str] = field(default_factory=Counter)
    elsewhere: Counter[str] = field(default_factory=Counter)
    findings: tuple[Finding, ...] = ()
    replays: Counter[str] = field(default_factory=Counter)
    ledger_failures: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    missing: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    lost_devices: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __add__(self, other: Summary) -> Summary:
        return Summary(
            scenarios=self.scenarios + other.scenarios,
            verdicts=_joined(self.verdicts, other.verdicts),
            unsupported=_joined(self.unsupported, other.unsupported),
            one_offs=self.one_offs + other.one_offs,
            pairs=self.pairs + other.pairs,
            known=self.known + other.known,
            elsewhere=self.elsewhere + other.elsewhere,
            findings=self.findings + other.findings,
            replays=self.replays + other.replays,
            ledger_failures=self.ledger_failures + other.ledger_failures,
            coverage=self.coverage + other.coverage,
            missing={**self.missing, **other.missing},
            required=tuple(dict.fromkeys(self.required + other.required)),
            lost_devices={**self.lost_devices, **other.lost_devices},
            seconds=self.seconds + other.seconds,
        )

    def folded(self) -> Summary:
        """With the scenarios that another shard reports (`elsewhere`) counted at that finding, where it is here too."""
        rest = Counter(self.elsewhere)
        findings = [replace(one, seen=one.seen + rest.pop(str(one.bucket), 0)) for one in self.findings]
        return replace(self, findings=tuple(findings), elsewhere=rest)

    @property
    def exit_code(self) -> int:
        """0 all agree, 1 findings, 3 something needed is missing (a required candidate, or every one)."""
        if self.findings or self.ledger_failures:
            return 1
        return 3 if self.required or not self.verdicts else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "scenarios": self.scenarios,
            "verdicts": {name: {str(v): n for v, n in counts.items()} for name, counts in self.verdicts.items()},
            "unsupported": {name: dict(counts) for name, counts in self.unsupported.items()},
            "one_offs": self.one_offs,
            "pairs": self.pairs.to_json(),
            "known": dict(self.known),
            "elsewhere": dict(self.elsewhere),
            "findings": [finding.to_json() for finding in self.findings],
            "replays": dict(self.replays),
            "ledger_failures": list(self.ledger_failures),
            "coverage": self.coverage.to_json(),
            "missing": dict(self.missing),
            "required": list(self.required),
            "lost_devices": dict(self.lost_devices),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        verdicts = {n: Counter({Verdict(v): c for v, c in counts.items()}) for n, counts in data["verdicts"].items()}
        return cls(
            scenarios=data["scenarios"],
            verdicts=verdicts,
            unsupported={name: Counter(counts) for name, counts in data["unsupported"].items()},
            one_offs=data["one_offs"],
            pairs=Pairs.from_json(data["pairs"]),
            known=Counter(data["known"]),
            elsewhere=Counter(data["elsewhere"]),
            findings=tuple(Finding.from_json(finding) for finding in data["findings"]),
            replays=Counter(data["replays"]),
            ledger_failures=tuple(data["ledger_failures"]),
            coverage=Coverage.from_json(data["coverage"]),
            missing=data["missing"],
            required=tuple(data["required"]),
            lost_devices=data["lost_devices"],
            seconds=data["seconds"],
        )


def _joined(left: Mapping[str, Counter[_T]], right: Mapping[str, Counter[_T]]) -> dict[str, Counter[_T]]:
    return {name: left.get(name, Counter()) + right.get(name, Counter()) for name in {**left, **right}}
