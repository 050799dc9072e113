"""The open cases of a run, and which of them explains a finding."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

from difftest import cases
from difftest.cases import Status
from difftest.complexity import covers
from difftest.fingerprint import Fingerprint
from difftest.outcome import Bucket, Outcome, Verdict
from difftest.replay import Replay, replay
from strategies.plain import AnyScenario


def crashing(folder: Path) -> set[str]:
    """Candidates of which an open case in `folder` says that they take their process with them."""
    found = set()
    for path in cases.paths(folder):
        with contextlib.suppress(cases.InvalidCase):
            case = cases.load(path)
            if case.status is Status.OPEN and case.bucket.verdict is Verdict.CRASHED:
                found.add(case.candidate)
    return found


class Ledger:
    """The cases about some candidates. An open one explains what has its bucket and all that its scenario has.

    The bucket alone is not enough: most wrong numbers share one, and a second mistake would hide behind the first.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        candidates: Container[str],
        reference: str,
        environment: Callable[[str], Fingerprint],
    ) -> None:
        """environment: the fingerprint of this process, by candidate. An unreadable file is left to `replay`."""
        self._paths = paths
        self._candidates = candidates
        self._open: dict[Bucket, dict[Path, AnyScenario]] = defaultdict(dict)
        for path in paths:
            try:
                case = cases.load(path)
            except cases.InvalidCase:
                continue
            ours = case.candidate in candidates and case.outcome.reference == reference
            if ours and case.status is Status.OPEN and not case.applies_to.objection(environment(case.candidate)):
                self._open[case.bucket][path] = case.scenario

    def explains(self, finding: Outcome) -> Path | None:
        """The open case that the finding is another sighting of; None when it is new."""
        known = self._open.get(finding.bucket, {})
        return next((path for path, scenario in known.items() if covers(scenario, finding.scenario)), None)

    def open_scenarios(self, bucket: Bucket) -> list[AnyScenario]:
        """The scenarios of the bucket's open cases."""
        return list(self._open.get(bucket, {}).values())

    def replay(self) -> Iterator[Replay]:
        """Run the cases about our candidates again, and the unreadable ones. One that is fixed explains no more."""
        for path in self._paths:
            done = replay(path)
            if done.case is None or done.case.candidate in self._candidates:
                if done.case is not None and not done.expected:
                    self._open[done.case.bucket].pop(path, None)
                yield done
