"""A router's answer to one problem, and the checks that need no reference."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from difftest.judging.checks import RATE_RUNS, Check, Skip
from difftest.judging.compare import Breach, Judgement, not_equal
from difftest.judging.guard import Guarded, Spans
from difftest.judging.outcome import Rate
from difftest.router.judge import judge_table
from oracles.router_problem import RouterProblem, RoutingTable
from oracles.router_reference import RoutingEnclosure, enclose
from strategies.router import SetLogit, SetRow
from strategies.router_capability import has_non_finite


class RouterSubject:
    """See `difftest.judging.checks.Subject`. output: the routing table."""

    def __init__(
        self, candidate: Guarded, problem: RouterProblem, prepared: Any, output: RoutingTable, spans: Spans
    ) -> None:
        self.candidate = candidate
        self.problem = problem
        self.prepared = prepared
        self.output = output
        self.spans = spans

    @cached_property
    def enclosure(self) -> RoutingEnclosure:
        """What a right candidate may answer."""
        with self.spans.measure("reference"):
            return enclose(self.problem, self.candidate.oracle.numerics)

    def judge(self) -> Judgement:
        enclosure = self.enclosure
        with self.spans.measure("compare"):
            return judge_table(self.output, enclosure)

    def at_once(self) -> dict[str, Breach | None]:
        """Breaches that need no further answer, by check: there are none."""
        return {}

    def again(self) -> RoutingTable:
        """The answer of another call on what was prepared."""
        answer: RoutingTable = self.candidate.call(self.prepared, self.problem)
        return answer

    def ask(self, problem: RouterProblem) -> RoutingTable:
        """The answer to another problem."""
        self.candidate.require(problem.scenario)
        answer: RoutingTable = self.candidate.call(self.candidate.prepare(problem), problem)
        return answer

    def with_output(self, output: RoutingTable) -> RouterSubject:
        """This subject with another answer to the same question."""
        twin = RouterSubject(self.candidate, self.problem, self.prepared, output, self.spans)
        if "enclosure" in vars(self):
            twin.enclosure = self.enclosure
        return twin

    def redrawn(self, number: int) -> RouterSubject:
        """Never asked for: nothing of a routing table is implausible only."""
        raise AssertionError(f"a routing table has one radius, redraw {number} is not needed")

    def differs(self, output: RoutingTable) -> Breach | None:
        """What of another answer to the same question is not the same, to the bit."""
        for name, got, expected in zip(RoutingTable._fields, output, self.output, strict=True):
            breach = not_equal(got, expected, signed_zero=True)
            if breach is not None:
                return replace(breach, detail=f"{name}: {breach.detail}")
        return None


def _determinism(subject: RouterSubject) -> Breach | None:
    """The same call gives the same bits, `calls` times and at least twice: there is nothing that may change."""
    first, seen, done = None, 0, 0
    repeats = max(2, subject.problem.scenario.calls)
    while done < (repeats - 1 if first is None else max(repeats - 1, RATE_RUNS)):
        done += 1
        breach = subject.differs(subject.again())
        if breach is not None:
            first, seen = first or breach, seen + 1
    return None if first is None else replace(first, rate=Rate(failures=seen, runs=done))


def _dirty_rows(subject: RouterSubject) -> torch.Tensor:
    """bool [M]: tokens with a logit that is not finite."""
    return ~subject.problem.logits.isfinite().all(1)


def _skip_isolation(subject: RouterSubject) -> Skip | None:
    dirty = _dirty_rows(subject)
    if not bool(dirty.any()):
        return Skip("logits are finite")
    return Skip("no other token", precondition=True) if bool(dirty.all()) else None


def _isolation(subject: RouterSubject) -> Breach | None:
    """NaN and infinities of a token stay in it: made 0, they leave all other tokens as they were, to the bit."""
    dirty = _dirty_rows(subject)
    problem = subject.problem
    logits = torch.where(dirty[:, None], 0.0, problem.logits).to(problem.logits.dtype)
    edits = tuple(
        edit
        for edit in problem.scenario.logits.edits
        if not isinstance(edit, SetLogit | SetRow) or not bool(dirty[edit.token])
    )
    scenario = replace(problem.scenario, logits=replace(problem.scenario.logits, edits=edits))
    answer = subject.ask(replace(problem, logits=logits, scenario=scenario))
    kept = RoutingTable(
        *(torch.where(dirty[:, None], old, new) for old, new in zip(subject.output, answer, strict=True))
    )
    return subject.differs(kept)


def _skip_rows(subject: RouterSubject) -> Skip | None:
    return Skip("fewer than two tokens") if subject.problem.tokens < 2 else None


def _split(subject: RouterSubject) -> Breach | None:
    """The first token alone is routed as in the batch, as far as the enclosure fixes it.

    Another batch size may mean another kernel, which may break a tie in another way.
    """
    problem = subject.problem
    edits = tuple(edit for edit in problem.scenario.logits.edits if getattr(edit, "token", 0) == 0)
    scenario = replace(
        problem.scenario,
        shape=replace(problem.scenario.shape, tokens=1),
        logits=replace(problem.scenario.logits, edits=edits),
    )
    alone = replace(problem, logits=problem.logits[:1].contiguous(), scenario=scenario)
    answer = subject.ask(alone)
    with subject.spans.measure("reference"):
        enclosure = enclose(alone, subject.candidate.oracle.numerics)
    breaches = judge_table(answer, enclosure).breaches
    return breaches[0] if breaches else None


def _always(subject: RouterSubject) -> Skip | None:  # noqa: ARG001
    return None


ROUTER_CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            name="determinism",
            every=4,
            skip=_always,
            run=_determinism,
            wanted=lambda scenario: scenario.repeats > 1,
            uses_first=False,
        ),
        Check(name="split", every=4, skip=_skip_rows, run=_split, by_radii=True),
        Check(name="isolation", every=8, skip=_skip_isolation, run=_isolation, wanted=has_non_finite),
    )
}
"""The reference-free checks by name, in the order in which they run."""
