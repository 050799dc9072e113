"""Runs a gate: the named scenarios, then drawn ones, with nothing skipped, unsupported or left unrun."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from difftest import campaign
from difftest.gate.target import Target
from difftest.gate.verdict import Part, Verdict
from difftest.isolation.environment import EnvironmentNotFound, WorkerFailed
from difftest.isolation.executors import Executors
from difftest.judging.checks import CHECKS
from difftest.judging.judges import Judge
from difftest.judging.outcome import Outcome
from difftest.judging.outcome import Verdict as OutcomeVerdict
from difftest.ledger import cases
from difftest.ledger.ledger import Ledger
from difftest.options import Options
from difftest.output.events import Event
from oracles.base import OracleNotFound
from strategies.capability import Capability
from strategies.gate import TARGET_ACTIVATION, group_of, matrix
from strategies.scenario import Scenario


class Refused(Exception):
    """The gate cannot be held here. The message is one line that says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the gate is asked to do. options: of the drawn scenarios, and of isolation; its candidates are not read.

    environments: builds or interpreters in which the kernels are tested, none for this one. control: instead of the
    target's own, as where it is in another interpreter. require_situ: a gap that the ledger
    knows is a failure where it is about SiTU. emulate: the target's emulation instead of a card.
    """

    target: Target
    options: Options
    environments: tuple[str, ...] = ()
    control: str | None = None
    require_situ: bool = False
    emulate: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """The candidates, the control included."""
        if self.emulate:
            assert self.target.emulation is not None  # the command line sees to it
            return (self.target.emulation,)
        return (*self.target.specs(self.environments), self.control or self.target.control)


def hold(asked: Asked, tell: Callable[[str], None], emit: Callable[[Event], None]) -> Verdict:
    """Hold the gate. tell: takes a line of progress. emit: takes the events of the drawn scenarios.

    Raises `Refused` when a kernel, its build or the card is not there; then nothing has run.
    """
    started = time.monotonic()
    options = replace(asked.options, candidates=asked.kernels)
    with campaign.executors_for(options) as executors:
        judges = {spec: _judge(executors, spec, options) for spec in options.candidates}
        kernels = {spec: _facts(judge) for spec, judge in judges.items()}
        ledger = Ledger(
            cases.known(options.cases, options.candidates),
            options.candidates,
            options.reference,
            lambda spec: judges[spec].introduction.fingerprint,
        )
        parts = tuple(part for spec, judge in judges.items() for part in _parts(asked, spec, judge, ledger, tell))
    failures = [f"{part.kernel}: {part.name}: {part.answer}" for part in parts if not part.passed]
    drawn: dict[str, dict[str, int]] = {}
    for spec in options.candidates:  # each by what it promises: nothing that is drawn may be unsupported
        summary = campaign.run(replace(options, candidates=(spec,)), emit)
        counts = summary.verdicts.get(spec, Counter())
        drawn[spec] = {str(verdict): number for verdict, number in counts.items()} | {"known": summary.known.total()}
        failures += [f"{spec}: drawn: {finding.smallest.detail}" for finding in summary.findings]
        failures += [f"{spec}: ledger: {line}" for line in summary.ledger_failures]
        unsupported = summary.unsupported.get(spec, Counter())
        failures += [f"{spec}: drawn: unsupported: {reason}: {number}" for reason, number in unsupported.items()]
        if counts.total() != options.examples:
            failures.append(f"{spec}: drawn: {counts.total()} of {options.examples} scenarios ran")
    return Verdict(
        target=asked.target.name,
        emulated=asked.emulate,
        require_situ=asked.require_situ,
        seed=options.seed,
        parts=parts,
        drawn=drawn,
        kernels=kernels,
        failures=tuple(failures),
        seconds=time.monotonic() - started,
    )


def _judge(executors: Executors, spec: str, options: Options) -> Judge:
    try:
        judge = Judge(executors.of(spec, options.reference), None, lambda _: None)
    except (OracleNotFound, EnvironmentNotFound, WorkerFailed) as error:
        raise Refused(f"{spec}: {error}") from None
    if judge.introduction.missing is not None:
        raise Refused(f"{spec}: {judge.introduction.missing}")
    return judge


def _facts(judge: Judge) -> Mapping[str, Any]:
    here = judge.introduction.fingerprint
    return {
        "packages": dict(here.packages),
        "device": here.device,
        "arch": here.arch,
        "build": dict(here.build),
        "torch": here.torch,
        "difftest": here.difftest,
        "radius_model": here.radius_model,
    }


def _parts(asked: Asked, spec: str, judge: Judge, ledger: Ledger, tell: Callable[[str], None]) -> list[Part]:
    """The named scenarios of one kernel. A kernel for one mode has those of that mode; an emulation has no graphs."""
    capability = judge.introduction.capability
    if not isinstance(capability, Capability):
        raise Refused(f"{spec}: is a router; a gate is about layers")
    precise = asked.target.precision in capability.precisions
    found = []
    for name, scenario in matrix(asked.target.precision if precise else "bf16xmxfp4").items():
        if scenario.execution.mode not in capability.modes:
            continue
        # At a real model's size the checks that ask again and again would take hours on a CPU: two calls are enough.
        outcome = judge.check(scenario, checks={"determinism"} if group_of(name) == "kimi-k3" else frozenset(CHECKS))
        answer = _answer(asked, outcome, ledger, judge)
        stats = outcome.stats
        part = Part(
            kernel=spec,
            name=name,
            answer=answer,
            ratio=None if stats is None else stats.max_ratio,
            exact=0 if stats is None else stats.exact - stats.mismatches,
        )
        tell(f"{spec}  {name}: {answer}")
        found.append(part)
    return found


def _answer(asked: Asked, outcome: Outcome, ledger: Ledger, judge: Judge) -> str:
    if outcome.verdict is OutcomeVerdict.AGREES:
        return "agrees"
    if outcome.verdict is OutcomeVerdict.UNSUPPORTED:
        return f"unsupported: {outcome.reason}"
    excused = not (asked.require_situ and _is_target(outcome.scenario))
    if excused and all(ledger.explain(finding, judge).known is not None for finding in outcome.findings):
        return "known"
    return f"{outcome.verdict} in {outcome.check}: {outcome.detail}"


def _is_target(scenario: object) -> bool:
    return isinstance(scenario, Scenario) and scenario.activation.kind == TARGET_ACTIVATION
