"""What a campaign does with its findings: those that are new are saved at once, and shrunk at the end."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from difftest.explain.explanation import Explanation
from difftest.findings import Finding
from difftest.fingerprint import Fingerprint
from difftest.isolation.sequence import Step
from difftest.judging.judges import Judge
from difftest.judging.outcome import Bucket, Outcome
from difftest.judging.votes import Votes
from difftest.ledger import cases
from difftest.ledger.cases import AppliesTo, Case, Found
from difftest.ledger.causes import Cause, explained_by
from difftest.ledger.claims import Claims
from difftest.ledger.ledger import Attribution, Ledger
from difftest.options import Options
from difftest.output import describe, events
from difftest.output.events import Handler, Stage
from difftest.shrinking.moves import SEEDS
from difftest.shrinking.refit import changed
from difftest.shrinking.shrink import Shrinker, Shrunk, magnitude
from difftest.stream import Stream
from oracles import captures
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

FORMS = 3
"""Findings of one bucket that a campaign shrinks: each lacks something that the simplest form of those before has."""


@dataclass(frozen=True, kw_only=True)
class _Sighting:
    """A finding that nothing explains. shard: None when it was not drawn by this run. scenarios_before: judged up to
    and with its own."""

    finding: Outcome
    shard: int | None
    scenarios_before: int


@dataclass(kw_only=True)
class _Draft:
    """A case on its way. sightings: see `Case`. path: where it is saved, None as long as that failed."""

    first: _Sighting
    smallest: Outcome
    worst: Outcome
    explanation: Explanation | None = None
    sequence: tuple[Step, ...] = ()
    sightings: tuple[str, ...] = ()
    path: Path | None = None


class Harvest:
    """The findings of a campaign.

    known: sightings by the open case that explains them. elsewhere: sightings by bucket that another process shrinks.
    findings: what was new, once it is shrunk. cases: theirs, saved or not.
    """

    def __init__(
        self,
        options: Options,
        emit: Handler,
        claims: Claims,
        ledger: Ledger,
        environment: Callable[[str], Fingerprint],
        votes: Callable[[Outcome], Votes | None] = lambda _: None,
    ) -> None:
        """environment: of the process that a candidate runs in. votes: what the other candidates say."""
        self._options = options
        self._emit = emit
        self._claims = claims
        self._ledger = ledger
        self._environment = environment
        self._votes = votes
        self._sightings: dict[Bucket, list[_Sighting]] = defaultdict(list)
        self._drafts: dict[Bucket, _Draft] = {}
        self._announced: set[tuple[Bucket, Path | None]] = set()
        self.known: Counter[str] = Counter()
        self.elsewhere: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.cases: list[Case] = []

    def collect(self, finding: Outcome, due_to: Attribution, shard: int | None, scenarios_before: int) -> None:
        """Take a finding in: count it if it is known, else save it, as the process may end before it is shrunk.

        Where it is known in part, what is left of it without the known part is taken in instead.
        """
        for other in due_to.instead:
            self._take(other, None, None, scenarios_before)
        if not due_to.instead:
            self._take(finding, due_to.known, shard, scenarios_before)

    def _take(self, finding: Outcome, known: Path | None, shard: int | None, scenarios_before: int) -> None:
        bucket = finding.bucket
        if (bucket, known) not in self._announced:
            self._announced.add((bucket, known))
            self._emit(events.FindingFound(shard=shard, outcome=finding, known=known))
        if known is not None:
            self.known[known.name] += 1
        elif not self._claims.take(bucket):
            self.elsewhere[str(bucket)] += 1
        else:
            sighting = _Sighting(finding=finding, shard=shard, scenarios_before=scenarios_before)
            self._sightings[bucket].append(sighting)
            if bucket not in self._drafts:
                self._drafts[bucket] = self._draft(sighting)

    def shrink(self, judges: Mapping[str, Judge], stream: Callable[[int], Stream]) -> None:
        """Shrink each new bucket on its own, the comparison with the reference first, and save it as it gets simpler.

        A sighting that the simplest forms do not explain is shrunk on its own too: it may be another mistake.
        judges: by candidate. stream: the scenarios of a shard.
        """
        order = sorted(self._sightings, key=lambda bucket: (bucket.check != "reference", -len(self._sightings[bucket])))
        for bucket in order:
            forms: list[Cause] = []
            while self._sightings[bucket]:
                sightings = self._sightings[bucket]
                draft = self._drafts.get(bucket) or self._draft(sightings[0])
                self._drafts[bucket] = draft
                shrunk = self._shrink(draft, judges[bucket.oracle], stream, forms)
                forms.append(Cause(shrunk.smallest.scenario))
                judge = judges[bucket.oracle]
                explained = [s for s in sightings if explained_by(forms, s.finding, judge)]
                last = len(forms) == FORMS
                same = [s for s in sightings if last or s is draft.first or s in explained]
                draft.sightings = _digests(s for s in same if s not in explained)
                self._finish(draft, shrunk, same, judge)

    def end_unshrunk(self) -> None:
        """Finish what is left as it is: the user wants no more runs."""
        for bucket, sightings in list(self._sightings.items()):
            if sightings:
                draft = self._drafts[bucket]
                draft.sightings = _digests(sightings)
                self._finish(draft, _as_it_is(draft.smallest, draft.worst), sightings)

    def _shrink(self, draft: _Draft, judge: Judge, stream: Callable[[int], Stream], forms: list[Cause]) -> Shrunk:
        first, shard = draft.first.finding, draft.first.shard
        bucket = first.bucket
        self._emit(events.ShrinkStarted(bucket=bucket, outcome=first))
        before = judge.runs
        sequence = judge.sequence(first)
        if sequence is None:
            return _as_it_is(_noted(first, "not seen again in a new process"), first, judge.runs - before)
        if sequence:
            draft.sequence = sequence
            needs = f"needs {describe.count(len(sequence), 'earlier case')} in the same process"
            return _as_it_is(_noted(first, needs), first, judge.runs - before)

        def progressed(finding: Outcome, stage: Stage, runs: int) -> None:
            self._emit(events.ShrinkProgressed(bucket=bucket, stage=stage, runs=runs, smallest=finding))
            draft.smallest = finding
            self._save(draft)

        def is_known(scenario: AnyScenario) -> bool:
            return self._ledger.has_cause(bucket, scenario) or any(form.is_in(scenario) for form in forms)

        shrinker = Shrinker(judge, first, progressed, is_known)
        hints = [finding.smallest.scenario for finding in self.findings if finding.bucket.oracle == bucket.oracle]
        if isinstance(first.scenario, Scenario) and first.scenario.capture:
            # What is peculiar in a recording may be all that it takes, in whatever table has a row for it.
            plain = captures.described(first.scenario)
            hints += [other for seed in SEEDS for other in changed(plain, routing={"seed": seed})]
        shrunk = shrinker.shrink(None if shard is None else stream(shard), hints=hints)
        if shrunk.smallest.scenario == first.scenario or judge.stands(shrunk.smallest):
            return shrunk
        # What ran in the process while it was shrunk had a part in it. The first form has been seen alone.
        return dataclasses.replace(shrunk, smallest=first, worst=first, fixed_point=False)

    def _finish(self, draft: _Draft, shrunk: Shrunk, same: list[_Sighting], judge: Judge | None = None) -> None:
        """End with the case as it is, explained where there is a judge to ask."""
        bucket, votes = draft.smallest.bucket, None
        draft.smallest = shrunk.smallest
        draft.worst = max(shrunk.worst, *(sighting.finding for sighting in same), key=magnitude)
        if judge is not None:
            draft.explanation = judge.explain(draft.smallest, draft.worst)
            votes = self._votes(draft.smallest)
        self._sightings[bucket] = [sighting for sighting in self._sightings[bucket] if sighting not in same]
        del self._drafts[bucket]
        self.cases.append(self._save(draft, last=True))
        finding = Finding(
            bucket=bucket,
            smallest=draft.smallest,
            worst=draft.worst,
            seen=len(same),
            scenarios_before=draft.first.scenarios_before,
            shrink_runs_hypothesis=shrunk.runs_hypothesis,
            shrink_runs_reducer=shrunk.runs_reducer,
            fixed_point=shrunk.fixed_point,
            explanation=draft.explanation,
            case_path=draft.path,
            votes=votes,
        )
        self.findings.append(finding)
        self._emit(events.ShrinkFinished(finding=finding))

    def _draft(self, sighting: _Sighting) -> _Draft:
        draft = _Draft(first=sighting, smallest=sighting.finding, worst=sighting.finding)
        self._save(draft)
        return draft

    def _save(self, draft: _Draft, *, last: bool = False) -> Case:
        """Save the case in its best form so far. An error is reported with the first and the last form alone."""
        here, shard = self._environment(draft.smallest.candidate), draft.first.shard
        found = None if shard is None else Found(self._options.seed, shard, self._options.command())
        case = Case(
            outcome=draft.smallest,
            worst=draft.worst,
            environment=here,
            applies_to=AppliesTo(arch=(here.arch,)),
            explanation=None if draft.explanation is None else str(draft.explanation),
            found=found,
            sequence=draft.sequence,
            sightings=draft.sightings,
            seen=cases.today(),
        )
        path = draft.path or cases.new_path(self._options.cases, case)
        try:
            cases.save(case, path)
        except cases.CaseNotWritten as error:
            if last or draft.smallest is draft.first.finding:
                self._emit(events.CaseNotSaved(bucket=case.bucket, error=str(error), case=case))
            return case
        if draft.path is None or last:
            self._emit(events.CaseSaved(bucket=case.bucket, path=path))
        draft.path = path
        return case


def _as_it_is(smallest: Outcome, worst: Outcome, runs: int = 0) -> Shrunk:
    return Shrunk(smallest=smallest, worst=worst, runs_hypothesis=0, runs_reducer=runs, fixed_point=False)


def _digests(sightings: Iterable[_Sighting]) -> tuple[str, ...]:
    return tuple(sorted({sighting.finding.scenario.digest for sighting in sightings}))


def _noted(finding: Outcome, note: str) -> Outcome:
    return dataclasses.replace(finding, detail=f"{finding.detail} ({note})")
