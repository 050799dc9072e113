"""The open cases of a run, and which of them explains a finding."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from difftest.fingerprint import Fingerprint
from difftest.isolation.executors import Executors
from difftest.judging.outcome import ENDS_PROCESS, Bucket, Outcome
from difftest.ledger import cases
from difftest.ledger.cases import Status
from difftest.ledger.causes import Cause, Checker, alike, stripped
from difftest.ledger.replay import Replay, replay
from difftest.shrinking.complexity import complexity
from strategies.plain import AnyScenario


def crashing(folder: Path) -> set[str]:
    """Candidates of which an open case in `folder` says that they take their process with them."""
    found = set()
    for path in cases.paths(folder):
        with contextlib.suppress(cases.InvalidCase):
            case = cases.load(path)
            if case.status is Status.OPEN and case.bucket.verdict in ENDS_PROCESS:
                found.add(case.candidate)
    return found


@dataclass(frozen=True)
class Attribution:
    """known: the open case that a finding is another sighting of; None when it is new. instead: where it is new, but
    not by itself, the findings of its scenario without what is known about it."""

    known: Path | None
    instead: tuple[Outcome, ...] = ()


class Ledger:
    """The cases about some candidates. An open one explains what goes away with what its scenario has, or with the
    trigger that it names.

    The bucket alone is not enough: most wrong numbers share one, and a second mistake would hide behind the first.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        candidates: Collection[str],
        reference: str,
        environment: Callable[[str], Fingerprint | None],
    ) -> None:
        """environment: the fingerprint of the process that a candidate runs in, None for one that cannot run.

        An unreadable file is left to `replay`.
        """
        self._paths = paths
        self._candidates = candidates
        self._open: dict[Bucket, dict[Path, Cause]] = defaultdict(dict)
        self._sightings: dict[tuple[Bucket, str], Path] = {}
        for path in paths:
            try:
                case = cases.load(path)
            except cases.InvalidCase:
                continue
            if case.outcome.reference != reference or case.status is not Status.OPEN:
                continue
            for spec in cases.about(case, candidates):
                here = environment(spec)
                if here is not None and not case.applies_to.objection(here):
                    bucket = replace(case.bucket, oracle=spec)
                    self._open[bucket][path] = Cause(case.scenario, case.trigger)
                    self._sightings.update({(bucket, digest): path for digest in case.sightings})

    def explain(self, finding: Outcome, checker: Checker | None) -> Attribution:
        """Whether open cases explain the finding: without what they need, its scenario agrees in the finding's check.

        Any case counts that may show as it (see `difftest.ledger.causes.Cause`) and that the scenario has all of;
        together they are taken away, so that two known mistakes in one scenario are two known mistakes. A case so plain
        that nothing can be taken away explains its very own bucket, also what of it is left without the others.
        checker: None where nothing can be asked, as after a crash; then the bucket decides. The very sightings that a
        case was saved for are known as well.
        """
        before = self._sighting(finding)
        if before is not None:
            return Attribution(before)
        causes = {path: cause for path, cause in self._alike(finding.bucket).items() if cause.is_in(finding.scenario)}
        rest = None if checker is None else stripped(finding, causes.values(), checker)
        if rest is None:
            return Attribution(self._own(finding.bucket, causes))
        staying = [path for path, cause in causes.items() if cause.is_in(rest.scenario)]
        left = [other for other in rest.findings if alike(other.bucket, finding.bucket)]
        known = [self._sighting(other) or self._own(other.bucket, staying) for other in left]
        if None in known:
            return Attribution(None, tuple(other for other, path in zip(left, known, strict=True) if path is None))
        if left:
            return Attribution(known[0])
        gone = [path for path in causes if path not in staying]
        return Attribution(self._own(finding.bucket, gone) or gone[0])

    def _own(self, bucket: Bucket, paths: Iterable[Path]) -> Path | None:
        """The first of the open cases that is of this very bucket."""
        return next((path for path in paths if path in self._open.get(bucket, {})), None)

    def _sighting(self, finding: Outcome) -> Path | None:
        """The open case that was saved for this very finding of this very scenario."""
        path = self._sightings.get((finding.bucket, finding.scenario.digest))
        return path if path in self._open.get(finding.bucket, {}) else None

    def has_cause(self, bucket: Bucket, scenario: AnyScenario) -> bool:
        """Whether an open case that may show as the bucket has its cause in the scenario."""
        return any(cause.is_in(scenario) for cause in self._alike(bucket).values())

    def _alike(self, bucket: Bucket) -> dict[Path, Cause]:
        """The most peculiar first: what only has all of a plain one is not all explained by it."""
        found = {
            path: cause
            for other, causes in self._open.items()
            if other.oracle == bucket.oracle
            for path, cause in causes.items()
            if cause.may_show(other, bucket)
        }
        return dict(sorted(found.items(), key=lambda item: complexity(item[1].form), reverse=True))

    def replay(self, executors: Executors) -> Iterator[Replay]:
        """Run the cases about our candidates again, and the unreadable ones. One that is fixed explains no more."""
        for path in self._paths:
            try:
                case = cases.load(path)
            except cases.InvalidCase:
                yield replay(path, executors)
                continue
            for spec in cases.about(case, self._candidates):
                done = replay(path, executors, spec)
                if not done.expected:
                    self._open[replace(case.bucket, oracle=spec)].pop(path, None)
                yield done
