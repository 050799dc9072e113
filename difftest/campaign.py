"""The campaign: draw to the end of the budget, collect what diverges by bucket, then shrink each new bucket."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import os
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

import oracles
from difftest.coverage import Coverage, Tally
from difftest.engine import Pending
from difftest.findings import Summary
from difftest.fingerprint import Fingerprint
from difftest.harvest import Harvest
from difftest.isolation.environment import EnvironmentNotFound, WorkerFailed
from difftest.isolation.executors import Executors, Isolation
from difftest.isolation.introduction import Introduction
from difftest.journal import Journal, JournalError, leftovers
from difftest.judging.ballots import Poll
from difftest.judging.judges import Judge
from difftest.judging.outcome import Bucket, Outcome, Verdict
from difftest.ledger import cases
from difftest.ledger.claims import Claims
from difftest.ledger.ledger import Attribution, Ledger, crashing
from difftest.line import Line
from difftest.options import PROFILES, InvalidOption, Options, shards_of, share_of
from difftest.output import events
from difftest.output.events import Handler
from difftest.stream import Stream
from oracles.base import AnyCapability, missing_of
from oracles.reference import Reference
from strategies import recordings, router_scenarios, scenarios
from strategies.capability import Capability
from strategies.plain import AnyScenario
from strategies.router_capability import RouterCapability
from strategies.scenario import Scenario

Elsewhere = Callable[[Callable[[Summary], None]], None]
"""Runs all shards in other processes, and hands the summary of each over as it comes."""


def run(
    options: Options,
    emit: Handler,
    *,
    known: Sequence[Path] | None = None,
    executors: Executors | None = None,
    elsewhere: Elsewhere | None = None,
) -> Summary:
    """Run a campaign: replay the ledger, draw and judge every scenario, then shrink new buckets.

    known, executors: see `run_shard`. elsewhere: runs the shards instead of this process, after the ledger. Each event
    goes to `emit` as it happens.
    Raises `OracleNotFound` for a spec that names none, before anything runs. A KeyboardInterrupt, and a `WorkerFailed`,
    go on to the caller after the event `RunInterrupted`.
    """
    with _campaign(options, emit, Claims(), known, executors) as campaign:
        shards = range(shards_of(options.examples))

        def work() -> None:
            campaign.replay_ledger()
            campaign.recover()
            if elsewhere is None:
                for shard in shards:
                    campaign.generate(shard)
            campaign.shrink()
            if elsewhere is not None:
                elsewhere(campaign.add)

        return campaign.report(work, shards=shards)


def judge(options: Options, scenario: AnyScenario, emit: Handler) -> Summary:
    """Judge a scenario that was not drawn, and shrink what it shows. The ledger is not asked: a user who imports a call
    wants to know of this one. Raises as `run` does."""
    with _campaign(options, emit, Claims(), known=()) as campaign:

        def work() -> None:
            campaign.recover()
            campaign.judge(scenario)
            campaign.shrink()

        return campaign.report(work)


def run_shard(
    options: Options,
    shard: int,
    emit: Handler,
    claims: Claims | None = None,
    known: Sequence[Path] | None = None,
    executors: Executors | None = None,
) -> Summary:
    """Run one shard, as a part of a campaign that several processes share; the summaries of all shards add up.

    claims: on a folder of this campaign that the processes share, so that a bucket is shrunk by one of them.
    known: the ledger's case files; by default all in its folder, those that other shards have just saved included.
    executors: that stay warm for the next shard; by default new ones. Raises `OracleNotFound` for a spec that names
    none.
    """
    with _campaign(options, emit, claims or Claims(), known, executors) as campaign:
        campaign.recover()
        campaign.generate(shard)
        campaign.shrink()
        return campaign.summary()


class BegunShard:
    """A shard whose cases are handed over, see `begin_shard`."""

    def __init__(self, campaign: _Campaign, stack: contextlib.ExitStack) -> None:
        self._campaign = campaign
        self._stack = stack

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return not self._campaign.waiting

    def end(self) -> Summary:
        """Wait for what is left, and shrink the new buckets."""
        with self._stack:
            self._campaign.shrink()
            return self._campaign.summary()


def begin_shard(
    options: Options,
    shard: int,
    emit: Handler,
    claims: Claims,
    known: Sequence[Path],
    executors: Executors,
    line: Line,
    journals: Path,
) -> BegunShard:
    """Begin what `run_shard` does, so that the process's workers have the cases of the next shard when those of this
    one come to an end. A case that an earlier process did not survive is not taken in: whoever ran it runs its whole
    shard again.

    line: the one of all shards of the process. journals: a folder that the processes of the run share. Raises as
    `run_shard` does.
    """
    with contextlib.ExitStack() as stack:
        campaign = stack.enter_context(_campaign(options, emit, claims, known, executors, line, journals))
        campaign.beware()
        campaign.generate(shard)
        return BegunShard(campaign, stack.pop_all())


@dataclass(frozen=True, kw_only=True)
class Part:
    """What some shards of a campaign came to. cases: of the summary's findings, in their order. fingerprints: of the
    candidates that could run, where they ran."""

    summary: Summary
    cases: tuple[cases.Case, ...]
    fingerprints: Mapping[str, Fingerprint]


def run_part(
    options: Options, shards: Sequence[int], emit: Handler, known: Sequence[Path], executors: Executors
) -> Part:
    """Run these shards as a campaign of their own, which others join with the rest. That of shard 0 replays the ledger.

    known, executors: see `run_shard`. Raises as `run` does.
    """
    with _campaign(options, emit, Claims(), known, executors) as campaign:

        def work() -> None:
            campaign.beware()
            if 0 in shards:
                campaign.replay_ledger()
            for shard in shards:
                campaign.generate(shard)
            campaign.shrink()

        summary = campaign.report(work, shards=shards)
        return Part(summary=summary, cases=tuple(campaign.harvest.cases), fingerprints=campaign.fingerprints)


class Questions:
    """A campaign whose scenarios somebody else draws, one at a time, for as long as this process lives."""

    def __init__(self, options: Options, known: Sequence[Path], claims: Claims) -> None:
        """claims: on a folder that the processes of one fuzzer share. Raises as `run` does."""
        stack = contextlib.ExitStack()
        atexit.register(stack.close)
        self._campaign = stack.enter_context(_campaign(options, lambda _: None, claims, known))
        self._campaign.recover()
        self._campaign.shrink()

    @property
    def strategy(self) -> SearchStrategy[Any]:
        """Of the scenarios for the candidates that can run."""
        return self._campaign.strategy

    def new_findings(self, scenario: AnyScenario) -> list[Outcome]:
        """What of the scenario's findings no known case explains, the same for equal scenarios.

        The first of each bucket is shrunk, explained and saved.
        """
        return self._campaign.new_findings(scenario)


def journal_folder(options: Options) -> Path:
    """Where the processes of campaigns with these oracles and this ledger keep their journals, for the next to find."""
    about = (str(options.cases.absolute()), options.reference, *options.candidates)
    if options.imported is not None:  # which its cases are made of
        about = (*about, recordings.digest_of(options.imported))
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / digest


def executors_for(options: Options, drivers: int | None = None, lost: Path | None = None) -> Executors:
    """Where the cases of a campaign run. drivers: processes like this one, which share the machine's devices. lost: see
    `Isolation`."""
    return Executors(options.candidates, Isolation.of(options, drivers, lost))


@contextlib.contextmanager
def _campaign(
    options: Options,
    emit: Handler,
    claims: Claims,
    known: Sequence[Path] | None = None,
    executors: Executors | None = None,
    line: Line | None = None,
    journals: Path | None = None,
) -> Iterator[_Campaign]:
    """A campaign with a journal, or without one where that cannot be written. journals: by default `journal_folder`."""
    journals = journals or journal_folder(options)
    with contextlib.ExitStack() as stack:
        try:
            journal = stack.enter_context(Journal(journals))
        except JournalError as error:
            emit(events.JournalLost(error=str(error)))
            journal = None
        if known is None:
            known = cases.known(options.cases, options.candidates)
        if executors is None:
            executors = stack.enter_context(executors_for(options))
        yield _Campaign(options, emit, claims, known, journal, executors, line or Line(), journals)


class _NotYet(Exception):
    """What was asked is not answered."""


class _Answers:
    """What is asked about one finding, each question in its turn (see `Line`)."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._asked: dict[AnyScenario, Pending] = {}

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome:
        """See `Engine.check`. Raises `_NotYet` when it is asked for the first time."""
        if scenario not in self._asked:
            self._asked[scenario] = self._judge.submit(scenario, checks=checks)
            raise _NotYet
        return self._asked[scenario].result()


@dataclass
class _Found:
    """A finding. after: scenarios that were over then, its own included. due_to: None until it is known."""

    finding: Outcome
    shard: int | None
    after: int
    answers: _Answers
    due_to: Attribution | None = None


class _Campaign:
    def __init__(
        self,
        options: Options,
        emit: Handler,
        claims: Claims,
        known: Sequence[Path],
        journal: Journal | None,
        executors: Executors,
        line: Line,
        journals: Path,
    ) -> None:
        self._options = options
        self._emit = emit
        self._journals = journals
        self._started = time.monotonic()
        self._executors = executors
        executors.isolate(crashing(options.cases) & set(options.candidates))  # also what another shard has just found
        absent = missing_of(oracles.find(options.reference))
        self.missing: dict[str, str] = {}
        self.judges: dict[str, Judge] = {}
        introductions: dict[str, Introduction] = {}
        for spec in options.candidates:
            try:
                judge = Judge(executors.of(spec, options.reference), journal, self._lost_journal)
            except (EnvironmentNotFound, WorkerFailed) as error:
                self.missing[spec] = str(error)
                continue
            introductions[spec] = judge.introduction
            reason = judge.introduction.missing or absent
            if reason is None:
                self.judges[spec] = judge
            else:
                self.missing[spec] = reason

        def environment(spec: str) -> Fingerprint | None:
            return introductions[spec].fingerprint if spec in introductions else None

        self._ledger = Ledger(known, options.candidates, options.reference, environment)
        self.harvest = Harvest(
            options,
            emit,
            claims,
            self._ledger,
            lambda spec: introductions[spec].fingerprint,
            lambda found: self._poll.votes(found),
        )
        # Radii are those of the recipe: with another oracle as the reference, nothing follows from its agreement.
        by_recipe = isinstance(oracles.find(options.reference), Reference)
        self._poll = Poll({spec: judge.ballot for spec, judge in self.judges.items()} if by_recipe else {})
        # Drawn for those that can run: what only a missing one could do would be unsupported by all others.
        able = [judge.introduction.capability for judge in self.judges.values()]
        promised = functools.reduce(_union, able) if able else Capability()
        self._capability = _narrowed(promised, options.activations)
        self._tally = Tally(self._capability) if isinstance(self._capability, Capability) else None
        self._ahead = max((judge.ahead for judge in self.judges.values()), default=0)
        self._line = line
        self.waiting = 0
        """Of the line, what is this campaign's."""
        self._found: deque[_Found] = deque()
        self._scenarios = 0
        self._of_shard: Counter[int | None] = Counter()
        self._verdicts: dict[str, Counter[Verdict]] = {spec: Counter() for spec in self.judges}
        self._unsupported: dict[str, Counter[str]] = {spec: Counter() for spec in self.judges}
        self._one_offs = 0
        self._parts = Summary()
        self._saved: set[Bucket] = set()
        self._replays: Counter[str] = Counter()
        self._ledger_failures: list[str] = []

    @property
    def fingerprints(self) -> dict[str, Fingerprint]:
        """By candidate that can run, of the process that it runs in."""
        return {spec: judge.introduction.fingerprint for spec, judge in self.judges.items()}

    def _lost_journal(self, error: JournalError) -> None:
        self._emit(events.JournalLost(error=str(error)))

    def replay_ledger(self) -> None:
        """Run the ledger's cases about our candidates."""
        for done in self._ledger.replay(self._executors):
            self._replays[str(done.status)] += 1
            if not done.expected:
                self._ledger_failures.append(f"{done.path}: {done.message}")
            self._emit(events.CaseReplayed(replay=done))

    def recover(self) -> None:
        """Take in the case that an earlier process of these campaigns did not survive."""
        try:
            left = list(leftovers(self._journals))
        except JournalError as error:
            self._lost_journal(error)
            return
        for case in left:
            if case.candidate not in self.judges:
                continue
            self._isolate(case.candidate)
            judge = self.judges[case.candidate]
            findings = judge.check(case.scenario, checks=case.checks).findings
            # A case that took its own process along did not take the one that kept the journal.
            if not findings and not case.isolated:
                self._emit(events.CaseSurvived(candidate=case.candidate, scenario=case.scenario))
            for finding in findings:
                self.harvest.collect(finding, self._ledger.explain(finding, judge), None, self._scenarios)

    def beware(self) -> None:
        """Isolate the candidates that were running when an earlier process of these campaigns ended, and no more: what
        it ran is drawn again, and it may have been ended from outside."""
        try:
            running = {case.candidate for case in leftovers(self._journals)}
        except JournalError as error:
            self._lost_journal(error)
            return
        for spec in running & self.judges.keys():
            self._isolate(spec)

    def _isolate(self, spec: str) -> None:
        if not self._executors.isolates(spec):
            self._executors.isolate({spec})
            self.judges[spec].move(self._executors.of(spec, self._options.reference))
            self._ahead = max(self._ahead, self.judges[spec].ahead)

    @property
    def strategy(self) -> SearchStrategy[Any]:
        return _strategy(self._capability, PROFILES[self._options.profile].shapes)

    def new_findings(self, scenario: AnyScenario) -> list[Outcome]:
        """See `Questions`."""
        new: list[Outcome] = []
        for judge in self.judges.values():
            for finding in judge.check(scenario).findings:
                due_to = self._ledger.explain(finding, judge)
                new += due_to.instead or (() if due_to.known else (finding,))
        for finding in new:
            if finding.bucket not in self._saved:
                self._saved.add(finding.bucket)
                self.harvest.collect(finding, self._ledger.explain(finding, self.judges[finding.candidate]), None, 0)
                # In another thread than the test that asks: Hypothesis lets none draw inside another.
                with ThreadPoolExecutor(1) as outside:
                    outside.submit(self.shrink).result()
        return new

    def _stream(self, shard: int) -> Stream:
        count = share_of(self._options.examples, shard)
        return Stream(self.strategy, base_seed=self._options.seed, shard=shard, count=count)

    def generate(self, shard: int) -> None:
        """Draw the shard's scenarios and hand them over. `shrink` waits for the last of them."""
        if self.judges:
            self._stream(shard).each(lambda scenario: self._begin(shard, scenario))
        self._hand_over(lambda: self._emit(events.ShardFinished(shard=shard, scenarios=self._of_shard[shard])))

    def judge(self, scenario: AnyScenario) -> None:
        """Hand a scenario over that was not drawn. `shrink` waits for it."""
        self._begin(None, scenario)

    def report(self, work: Callable[[], None], *, shards: Sequence[int] | None = None) -> Summary:
        """Do the work of a run, and tell of its start and its end. shards: that it draws; None for one scenario."""
        shares = [1] if shards is None else [share_of(self._options.examples, shard) for shard in shards]
        self._emit(
            events.RunStarted(
                options=self._options,
                candidates=tuple(self.judges),
                missing=self.missing,
                shards=len(shards or ()),
                scenarios=sum(shares),
            )
        )
        try:
            work()
        except (KeyboardInterrupt, WorkerFailed):  # the user's, or no process can run a candidate any more
            # What still has to be asked may be known: the next run sees it again.
            self._found = deque(found for found in self._found if found.due_to is not None)
            self._collect()
            self.harvest.end_unshrunk()
            self._emit(events.RunInterrupted(summary=self.summary()))
            raise
        summary = self.summary()
        self._emit(events.RunFinished(summary=summary))
        return summary

    def _begin(self, shard: int | None, scenario: AnyScenario) -> None:
        """Hand the scenario over to every candidate, and wait for those that were handed over long ago.

        They end in the order in which they began, so that a seed finds the same first sightings however fast they are.
        """
        started = time.monotonic()
        pending = tuple(judge.submit(scenario) for judge in self.judges.values())
        self._hand_over(lambda: self._finish(shard, scenario, started, pending))

    def _hand_over(self, end: Callable[[], None]) -> None:
        self._append(end)
        self._line.keep(self._ahead)

    def _append(self, end: Callable[[], None]) -> None:
        def ended() -> None:
            self.waiting -= 1
            end()

        self.waiting += 1
        self._line.append(ended)

    def _finish(self, shard: int | None, scenario: AnyScenario, started: float, pending: tuple[Pending, ...]) -> None:
        """shard: None for a scenario that was not drawn. started: on the monotonic clock. pending: by candidate, in
        their order."""
        outcomes = tuple(one.result() for one in pending)
        seconds = time.monotonic() - started
        self._scenarios += 1
        self._of_shard[shard] += 1
        if self._tally is not None and shard is not None and isinstance(scenario, Scenario):
            self._tally.take(scenario)
        for spec, outcome in zip(self.judges, outcomes, strict=True):
            self._verdicts[spec][outcome.verdict] += 1
            if outcome.reason is not None:
                self._unsupported[spec][outcome.reason] += 1
            if outcome.stats is not None:
                self._one_offs += outcome.stats.one_offs
        self._poll.count(outcomes)
        self._emit(events.ScenarioFinished(shard=shard, scenario=scenario, outcomes=outcomes, seconds=seconds))
        for judge, outcome in zip(self.judges.values(), outcomes, strict=True):
            for finding in outcome.findings:
                found = _Found(finding, shard, self._scenarios, _Answers(judge))
                self._found.append(found)
                self._explain(found)

    def _explain(self, found: _Found) -> None:
        try:
            found.due_to = self._ledger.explain(found.finding, found.answers)
        except _NotYet:
            self._append(lambda: self._explain(found))
        self._collect()

    def _collect(self) -> None:
        """Take in what is explained, in the order of the scenarios, whatever had to be asked about each."""
        while self._found and (due_to := self._found[0].due_to) is not None:
            found = self._found.popleft()
            self.harvest.collect(found.finding, due_to, found.shard, found.after)

    def shrink(self) -> None:
        """Wait until all that was handed over is over, and every finding of it known or new. Shrink the new buckets."""
        while self.waiting:
            self._line.end_oldest()
        self.harvest.shrink(self.judges, self._stream)

    def add(self, part: Summary) -> None:
        """Take in what came of shards that others ran."""
        self._parts += part

    def summary(self) -> Summary:
        """What came of it so far."""
        own = self._own_summary()
        return dataclasses.replace((own + self._parts).folded(), seconds=own.seconds)

    def _own_summary(self) -> Summary:
        return Summary(
            scenarios=self._scenarios,
            verdicts=self._verdicts,
            unsupported=self._unsupported,
            one_offs=self._one_offs,
            pairs=self._poll.pairs,
            known=self.harvest.known,
            elsewhere=self.harvest.elsewhere,
            findings=tuple(self.harvest.findings),
            replays=self._replays,
            ledger_failures=tuple(self._ledger_failures),
            coverage=Coverage() if self._tally is None else self._tally.coverage,
            missing=self.missing,
            required=tuple(spec for spec in self._options.require if spec in self.missing),
            lost_devices=self._executors.lost_devices(),
            seconds=time.monotonic() - self._started,
        )


def _union(first: AnyCapability, second: AnyCapability) -> AnyCapability:
    """What either promises. All candidates of a campaign are of one kind (`preflight.check`)."""
    if isinstance(first, RouterCapability):
        assert isinstance(second, RouterCapability)
        return first.union(second)
    assert isinstance(second, Capability)
    return first.union(second)


def _narrowed(capability: AnyCapability, activations: Collection[str]) -> AnyCapability:
    """`capability` with only these activations; all for none."""
    if not activations or isinstance(capability, RouterCapability):
        return capability
    kinds = capability.activations & set(activations)
    if not kinds:
        raise InvalidOption(f"--activation {' '.join(activations)}: none of the candidates computes it")
    return dataclasses.replace(capability, activations=kinds)


def _strategy(capability: AnyCapability, profile: str) -> SearchStrategy[Any]:
    if isinstance(capability, RouterCapability):
        return router_scenarios(capability, profile=profile)
    return scenarios(capability, profile=profile)
