"""The campaign: draw to the end of the budget, collect what diverges by bucket, then shrink each new bucket."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

import oracles
from difftest import cases, events, fingerprint
from difftest.ballots import Poll
from difftest.claims import Claims
from difftest.coverage import Coverage, Tally
from difftest.events import Handler
from difftest.findings import Summary
from difftest.harvest import Harvest
from difftest.journal import Journal, JournalError, leftovers
from difftest.judges import Judge
from difftest.ledger import Ledger, crashing
from difftest.options import PROFILES, Options, shards_of, share_of
from difftest.outcome import Verdict
from difftest.stream import Stream
from oracles.base import AnyCapability, AnyOracle, capability_of, missing_of
from oracles.reference import Reference
from strategies import router_scenarios, scenarios
from strategies.capability import Capability
from strategies.plain import AnyScenario
from strategies.router_capability import RouterCapability
from strategies.scenario import Scenario


def run(options: Options, emit: Handler, shards: Iterable[int] | None = None) -> Summary:
    """Run a campaign in this process: replay the ledger, draw and judge every scenario, then shrink new buckets.

    shards: those to run, by default all that have work. Each event goes to `emit` as it happens.
    Raises `OracleNotFound` for a spec that names none, before anything runs. A KeyboardInterrupt goes on to the caller
    after the event `RunInterrupted`.
    """
    with _campaign(options, emit, Claims()) as campaign:
        chosen = list(range(shards_of(options.examples)) if shards is None else shards)
        emit(
            events.RunStarted(
                options=options, candidates=tuple(campaign.judges), missing=campaign.missing, shards=len(chosen)
            )
        )
        try:
            campaign.replay_ledger()
            campaign.recover()
            for shard in chosen:
                campaign.generate(shard)
            campaign.shrink()
        except KeyboardInterrupt:
            campaign.harvest.end_unshrunk()
            emit(events.RunInterrupted(summary=campaign.summary()))
            raise
        summary = campaign.summary()
        emit(events.RunFinished(summary=summary))
        return summary


def run_shard(
    options: Options,
    shard: int,
    emit: Handler,
    claims: Claims | None = None,
    known: Sequence[Path] | None = None,
) -> Summary:
    """Run one shard, as a part of a campaign that several processes share; the summaries of all shards add up.

    claims: on a folder of this campaign that the processes share, so that a bucket is shrunk by one of them.
    known: the ledger's case files; by default all in its folder, those that other shards have just saved included.
    Raises `OracleNotFound` for a spec that names none.
    """
    with _campaign(options, emit, claims or Claims(), known) as campaign:
        campaign.recover()
        campaign.generate(shard)
        campaign.shrink()
        return campaign.summary()


def journal_folder(options: Options) -> Path:
    """Where the processes of campaigns with these oracles and this ledger keep their journals, for the next to find."""
    about = (str(options.cases.absolute()), options.reference, *options.candidates)
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / digest


@contextlib.contextmanager
def _campaign(
    options: Options, emit: Handler, claims: Claims, known: Sequence[Path] | None = None
) -> Iterator[_Campaign]:
    """A campaign with a journal, or without one where that cannot be written."""
    with contextlib.ExitStack() as stack:
        try:
            journal = stack.enter_context(Journal(journal_folder(options)))
        except JournalError as error:
            emit(events.JournalLost(error=str(error)))
            journal = None
        if known is None:
            known = cases.known(options.cases, options.candidates)
        campaign = _Campaign(options, emit, claims, known, journal)
        for judge in campaign.judges.values():
            stack.callback(judge.close)
        yield campaign


class _Campaign:
    def __init__(
        self, options: Options, emit: Handler, claims: Claims, known: Sequence[Path], journal: Journal | None
    ) -> None:
        self._options = options
        self._emit = emit
        self._started = time.monotonic()
        self._oracles: Mapping[str, AnyOracle] = {spec: oracles.find(spec) for spec in options.candidates}
        absent = missing_of(oracles.find(options.reference))
        lacking = {spec: missing_of(oracle) or absent for spec, oracle in self._oracles.items()}
        self.missing = {spec: reason for spec, reason in lacking.items() if reason is not None}
        environment = functools.cache(lambda spec: fingerprint.take(self._oracles[spec]))
        self._ledger = Ledger(known, self._oracles, options.reference, environment)
        self.harvest = Harvest(options, emit, claims, self._ledger, environment, lambda found: self._poll.votes(found))
        self.judges = {
            spec: Judge(spec, options.reference, journal, self._lost_journal)
            for spec in self._oracles
            if spec not in self.missing
        }
        for spec in crashing(options.cases) & self.judges.keys():  # also what another shard has just found
            self.judges[spec].isolate()
        # Radii are those of the recipe: with another oracle as the reference, nothing follows from its agreement.
        by_recipe = isinstance(oracles.find(options.reference), Reference)
        self._poll = Poll({spec: judge.ballot for spec, judge in self.judges.items()} if by_recipe else {})
        # Drawn for those that can run: what only a missing one could do would be unsupported by all others.
        able = [capability_of(self._oracles[spec]) for spec in self.judges]
        self._capability = functools.reduce(_union, able) if able else Capability()
        self._tally = Tally(self._capability) if isinstance(self._capability, Capability) else None
        self._scenarios = 0
        self._verdicts: dict[str, Counter[Verdict]] = {spec: Counter() for spec in self.judges}
        self._unsupported: dict[str, Counter[str]] = {spec: Counter() for spec in self.judges}
        self._one_offs = 0
        self._replays: Counter[str] = Counter()
        self._ledger_failures: list[str] = []

    def _lost_journal(self, error: JournalError) -> None:
        self._emit(events.JournalLost(error=str(error)))

    def replay_ledger(self) -> None:
        """Run the ledger's cases about our candidates."""
        for done in self._ledger.replay():
            self._replays[str(done.status)] += 1
            if not done.expected:
                self._ledger_failures.append(f"{done.path}: {done.message}")
            self._emit(events.CaseReplayed(replay=done))

    def recover(self) -> None:
        """Take in the case that an earlier process of these campaigns did not survive."""
        try:
            crashes = [case.crashed() for case in leftovers(journal_folder(self._options))]
        except JournalError as error:
            self._lost_journal(error)
            return
        for crash in crashes:
            if crash.candidate in self.judges:
                self.judges[crash.candidate].isolate()
                self.harvest.collect(crash, None, self._scenarios)

    def _stream(self, shard: int) -> Stream:
        strategy = _strategy(self._capability, PROFILES[self._options.profile].shapes)
        count = share_of(self._options.examples, shard)
        return Stream(strategy, base_seed=self._options.seed, shard=shard, count=count)

    def generate(self, shard: int) -> None:
        """Draw and judge the shard's scenarios."""
        before = self._scenarios
        if self.judges and share_of(self._options.examples, shard):
            self._stream(shard).each(lambda scenario: self._judge(shard, scenario))
        self._emit(events.ShardFinished(shard=shard, scenarios=self._scenarios - before))

    def _judge(self, shard: int, scenario: AnyScenario) -> None:
        started = time.monotonic()
        outcomes = tuple(judge.check(scenario) for judge in self.judges.values())
        seconds = time.monotonic() - started
        self._scenarios += 1
        if self._tally is not None and isinstance(scenario, Scenario):
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
                self.harvest.collect(finding, shard, self._scenarios, judge)

    def shrink(self) -> None:
        """Shrink the new buckets."""
        self.harvest.shrink(self.judges, self._stream)

    def summary(self) -> Summary:
        """What came of it so far."""
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
            seconds=time.monotonic() - self._started,
        )


def _union(first: AnyCapability, second: AnyCapability) -> AnyCapability:
    """What either promises. All candidates of a campaign are of one kind (`preflight.check`)."""
    if isinstance(first, RouterCapability):
        assert isinstance(second, RouterCapability)
        return first.union(second)
    assert isinstance(second, Capability)
    return first.union(second)


def _strategy(capability: AnyCapability, profile: str) -> SearchStrategy[Any]:
    if isinstance(capability, RouterCapability):
        return router_scenarios(capability, profile=profile)
    return scenarios(capability, profile=profile)
