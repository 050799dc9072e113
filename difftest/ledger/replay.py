"""A case, run again, and what the ledger says about it. No torch until one runs."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difftest import fingerprint
from difftest.judging.outcome import ENDS_PROCESS, Outcome, Verdict
from difftest.ledger import cases
from difftest.ledger.cases import Case, Status
from strategies.plain import AnyScenario

if TYPE_CHECKING:
    from difftest.isolation.executors import Executors

CLEAN_REPEATS = 7
"""A race of rate p is fixed only after 7 / p clean repeats: a chance of e**-7, 1 in 1,100, to call it so wrongly."""


class ReplayStatus(StrEnum):
    """What a replay saw."""

    STILL_DIVERGES = "still diverges"
    FIXED = "fixed"
    ERRORED = "errored"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The replay of the file at `path`.

    expected: the ledger holds. An open case still diverges, a fixed one does not, or nothing could be asked.
    message: one line for people: what was seen, against what the file says. case, outcome: None when it ended before.
    """

    path: Path
    status: ReplayStatus
    expected: bool
    message: str
    case: Case | None = None
    outcome: Outcome | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "status": str(self.status),
            "expected": self.expected,
            "message": self.message,
            "outcome": None if self.outcome is None else self.outcome.to_json(),
        }


def replay(path: Path, executors: Executors | None = None, candidate: str | None = None) -> Replay:
    """Run the case at `path` again. Raises nothing: what goes wrong is the replay's status.

    executors: where, by default in new ones. candidate: the case's oracle in another environment, by default as it is.
    """
    try:
        case = cases.load(path)
    except cases.InvalidCase as error:
        message = str(error).removeprefix(f"{path}: ")
        return Replay(path=path, status=ReplayStatus.ERRORED, expected=False, message=message)
    try:
        from difftest.isolation import executors as places

        candidate = candidate or case.candidate
        own = places.Executors([candidate]) if executors is None else nullcontext(executors)
        with own as where:
            return _judge(path, case, candidate, where)
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Replay(path=path, case=case, status=ReplayStatus.ERRORED, expected=False, message=message)


def _judge(path: Path, case: Case, candidate: str, executors: Executors) -> Replay:
    import oracles
    from difftest.engine import Engine
    from difftest.isolation.environment import EnvironmentNotFound
    from difftest.judging.checks import CHECKS
    from difftest.judging.judges import sequence_checks
    from oracles.base import missing_of

    reference = case.outcome.reference
    if case.bucket.verdict in ENDS_PROCESS or case.sequence:
        executors.isolate({candidate})
    try:
        executor = executors.of(candidate, reference)
    except EnvironmentNotFound as error:
        return _not_applicable(path, case, str(error))
    here = executor.introduction.fingerprint
    missing = executor.introduction.missing or missing_of(oracles.find(reference))
    objection = missing or case.applies_to.objection(here)
    if objection is not None:
        return _not_applicable(path, case, objection)
    engine = Engine(candidate, reference, executor=executor)
    scenario, check = scenario_to_run(case), case.bucket.check
    if case.sequence:
        outcome = engine.run_afresh(case.sequence, scenario, sequence_checks(check))
    else:
        outcome = engine.check(scenario, checks={check})
        if check == "process" and not outcome.is_finding:
            outcome = engine.check(scenario, checks=CHECKS)  # what ends a process may do so in any of them
    if outcome.verdict is Verdict.UNSUPPORTED:
        return _not_applicable(path, case, f"{candidate} does not support it: {outcome.reason}", outcome)
    bucket = dataclasses.replace(case.bucket, oracle=candidate)
    same = next((finding for finding in outcome.findings if finding.bucket == bucket), None)
    is_open = case.status is Status.OPEN
    if same is not None:
        status, expected = ReplayStatus.STILL_DIVERGES, is_open
        message = f"{same.detail} (was: {case.outcome.detail})" if same.detail != case.outcome.detail else same.detail
        if not is_open:
            message = f"marked as fixed, but it is back: {message}"
    elif outcome.is_finding:
        status, expected = ReplayStatus.STILL_DIVERGES, False
        message = f"another finding, {outcome.bucket}: {outcome.detail} (was {bucket})"
    else:
        status, expected = ReplayStatus.FIXED, not is_open
        message = f"fixed, update the case: set its status to {str(Status.FIXED)!r}" if is_open else "agrees, as marked"
    message += _other_model(case, here)
    return Replay(path=path, case=case, outcome=outcome, status=status, expected=expected, message=message)


def _not_applicable(path: Path, case: Case, reason: str, outcome: Outcome | None = None) -> Replay:
    status = ReplayStatus.NOT_APPLICABLE
    return Replay(path=path, case=case, outcome=outcome, status=status, expected=True, message=reason)


def scenario_to_run(case: Case) -> AnyScenario:
    """The case's scenario; that of a race is repeated often enough to see the race, or to call it fixed."""
    rate, scenario = case.outcome.rate, case.scenario
    if rate is None or not rate.failures:
        return scenario
    repeats = math.ceil(CLEAN_REPEATS / float(rate)) + 1
    return scenario.repeated(max(scenario.repeats, repeats))


def _other_model(case: Case, here: fingerprint.Fingerprint) -> str:
    """Says so when the bound is another one than the case was saved under."""
    saved = case.environment
    if (saved.radius_model, saved.lam) == (here.radius_model, here.lam):
        return ""
    return (
        f" [judged by radius model {here.radius_model}, lambda {here.lam:g}; "
        f"saved under model {saved.radius_model}, lambda {saved.lam:g}]"
    )
