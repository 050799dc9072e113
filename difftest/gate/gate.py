"""Runs a gate: the named scenarios, then drawn ones, with nothing skipped, unsupported or left unrun."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from difftest import campaign
from difftest.calibration import Calibration
from difftest.engine import Executor
from difftest.gate.target import Kernel, Target
from difftest.gate.verdict import AGREES, KNOWN, Part, Verdict
from difftest.isolation.environment import EnvironmentNotFound, WorkerFailed
from difftest.isolation.executors import Executors, Isolation
from difftest.judging.checks import CHECKS
from difftest.judging.judges import Judge
from difftest.judging.outcome import Outcome
from difftest.judging.outcome import Verdict as OutcomeVerdict
from difftest.ledger import cases
from difftest.ledger.ledger import Ledger
from difftest.options import Options
from difftest.output.events import Event
from difftest.probe import Unmeasurable
from oracles.base import OracleNotFound
from oracles.numerics import Numerics
from strategies.capability import Capability
from strategies.gate import TARGET_ACTIVATION, group_of, matrix
from strategies.scenario import Scenario

NAMED = frozenset(CHECKS) - {"empty"}
"""Checks of a named scenario. The empty batch is one of them, not a question beside each."""
AT_REAL_SIZE = frozenset({"determinism", "replay", "replay_eager"})
"""Those of a real model's layer. What asks again and again would take hours on a CPU."""


class Refused(Exception):
    """The gate cannot be held here. The message is one line that says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the gate is asked to do. options: of the drawn scenarios, and of isolation; its candidates are not read.

    environments: builds or interpreters in which the kernels are tested, none for this one. control: instead of the
    target's own, as where it is in another interpreter. require_situ: no case about SiTU is an expected gap. emulate:
    the target's emulation instead of a card.
    """

    target: Target
    options: Options
    environments: tuple[str, ...] = ()
    control: str | None = None
    require_situ: bool = False
    emulate: bool = False

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that are held to it, the control included."""
        return (self.target.emulated(),) if self.emulate else self.target.held(self.environments, self.control)

    def options_of(self, kernel: Kernel) -> Options:
        """For one kernel at a time, which has all devices and cores to itself: at least one process a device."""
        options = replace(self.options, candidates=(kernel.spec,))
        devices = 0 if self.emulate else torch.cuda.device_count()
        return replace(options, workers=options.workers or max(Isolation.of(options).workers, devices))

    def known(self, kernel: Kernel) -> list[Path]:
        """The ledger's cases that are expected gaps: all, but those about SiTU where that is required."""
        paths = cases.known(self.options.cases, (kernel.spec,))
        return [path for path in paths if not (self.require_situ and _about_target(path))]


def _about_target(path: Path) -> bool:
    """Whether the case needs SiTU: its scenario was shrunk, and would have SwiGLU if that did."""
    try:
        scenario = cases.load(path).scenario
    except cases.InvalidCase:
        return False  # the ledger's own replay tells of it
    return isinstance(scenario, Scenario) and scenario.activation.kind == TARGET_ACTIVATION


@dataclass(kw_only=True)
class _Account:
    """What was seen so far."""

    parts: list[Part] = field(default_factory=list)
    drawn: dict[str, dict[str, int]] = field(default_factory=dict)
    gaps: Counter[Path] = field(default_factory=Counter)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def unrun(self, kernels: Sequence[Kernel]) -> Iterator[str]:
        """What was to run and did not."""
        ran = {(part.kernel, part.name) for part in self.parts}
        for kernel in kernels:
            left = (name for name in kernel.plan() if (kernel.spec, name) not in ran)
            yield from (f"{kernel.spec}: {name}: left unrun" for name in left)
            if kernel.spec not in self.drawn:
                yield f"{kernel.spec}: drawn: left unrun"


def hold(asked: Asked, tell: Callable[[str], None], emit: Callable[[Event], None]) -> Verdict:
    """Hold the gate. tell: takes a line of progress. emit: takes the events of the drawn scenarios.

    Raises `Refused` when a kernel, its build or the card is not there; then nothing has run. What an interrupt leaves
    unrun fails the gate.
    """
    started = time.monotonic()
    account = _Account()
    with contextlib.ExitStack() as stack:
        lanes = [_Lane(asked, kernel, account, stack) for kernel in asked.kernels]
        try:
            for lane in lanes:
                lane.run(tell, emit)
        except KeyboardInterrupt:
            account.failures.append("interrupted")
    not_emulable: tuple[str, ...] = ()
    if asked.emulate:
        emulable = {name for kernel in asked.kernels for name in kernel.plan()}
        not_emulable = tuple(name for name in matrix(asked.target.precision) if name not in emulable)
    return Verdict(
        target=asked.target.name,
        emulated=asked.emulate,
        require_situ=asked.require_situ,
        seed=asked.options.seed,
        parts=tuple(account.parts),
        drawn=account.drawn,
        gaps={
            path.name: {"deviation": cases.load(path).deviation, "sightings": number}
            for path, number in account.gaps.items()
        },
        not_emulable=not_emulable,
        kernels=account.kernels,
        failures=(*account.failures, *account.unrun(asked.kernels)),
        seconds=time.monotonic() - started,
    )


def executor_of(kernel: Kernel, executors: Executors, reference: str) -> Executor:
    """The kernel's executor. Raises `Refused`."""
    try:
        executor = executors.of(kernel.spec, reference)
    except (OracleNotFound, EnvironmentNotFound, WorkerFailed) as error:
        raise Refused(f"{kernel.spec}: {error}") from None
    if executor.introduction.missing is not None:
        raise Refused(f"{kernel.spec}: {executor.introduction.missing}")
    return executor


class _Lane:
    """One kernel on its way through the gate."""

    def __init__(self, asked: Asked, kernel: Kernel, account: _Account, stack: contextlib.ExitStack) -> None:
        """stack: closes the kernel's processes, if `run` does not come to it. Raises `Refused`."""
        self._asked = asked
        self._kernel = kernel
        self._account = account
        self._options = asked.options_of(kernel)
        self._executors = stack.enter_context(campaign.executors_for(self._options))
        self._executor = executor_of(kernel, self._executors, self._options.reference)
        here = self._executor.introduction.fingerprint
        if not isinstance(self._executor.introduction.capability, Capability):
            raise Refused(f"{kernel.spec}: is a router; a gate is about layers")
        if not (asked.emulate or kernel.control) and here.arch != asked.target.arch:
            raise Refused(f"{kernel.spec}: needs a device of {asked.target.arch}, and this one is {here.arch}")
        self._judge = Judge(self._executor, None, lambda _: None)
        self._known = asked.known(kernel)
        self._ledger = Ledger(self._known, (kernel.spec,), self._options.reference, lambda _: here)

    def run(self, tell: Callable[[str], None], emit: Callable[[Event], None]) -> None:
        """Calibrate on the card, run the matrix, then the drawn scenarios."""
        facts = self._account.kernels[self._kernel.spec] = self._facts()
        with self._executors:
            if not self._asked.emulate:
                facts["calibration"] = self._calibrated(tell)
            self._matrix(tell)
            self._drawn(emit)
            facts["libraries"] = dict(self._executor.libraries())

    def _facts(self) -> dict[str, Any]:
        here = self._executor.introduction.fingerprint
        return {
            "packages": dict(here.packages),
            "device": here.device,
            "arch": here.arch,
            "build": dict(here.build),
            "torch": here.torch,
            "difftest": here.difftest,
            "radius_model": here.radius_model,
        }

    def _fails(self, line: str) -> None:
        self._account.failures.append(f"{self._kernel.spec}: {line}")

    def _calibrated(self, tell: Callable[[str], None]) -> list[str]:
        """What was measured of the accumulators. A kernel that adds more coarsely than it declares fails, and one of
        which so little is known that no bound would see a mistake."""
        try:
            found: Calibration = self._executor.calibrate()
        except (Unmeasurable, OSError) as error:
            self._fails(f"not calibrated: {error}")
            return []
        numerics = cast(Numerics, self._executor.introduction.numerics)  # of a layer, as its capability is
        for line in found.contradictions(numerics):
            self._fails(f"not as declared: {line}")
        for line in found.blind(numerics):
            self._fails(f"no bound to hold it to: {line}")
        tell(f"{self._kernel.spec}  calibrated")
        return found.lines()

    def _matrix(self, tell: Callable[[str], None]) -> None:
        running: deque[tuple[str, Any]] = deque()
        for name, scenario in self._kernel.plan().items():
            checks = AT_REAL_SIZE if group_of(name) == "kimi-k3" else NAMED
            running.append((name, self._judge.submit(scenario, checks=checks)))
            while len(running) > self._judge.ahead:
                self._part(*running.popleft(), tell)
        while running:
            self._part(*running.popleft(), tell)

    def _part(self, name: str, pending: Any, tell: Callable[[str], None]) -> None:
        outcome: Outcome = pending.result()
        answer = self._answer(outcome)
        stats = outcome.stats
        part = Part(
            kernel=self._kernel.spec,
            name=name,
            answer=answer,
            ratio=None if stats is None else stats.max_ratio,
            exact=0 if stats is None else stats.exact - stats.mismatches,
        )
        tell(f"{self._kernel.spec}  {name}: {answer}")
        self._account.parts.append(part)
        if not part.passed:
            self._fails(f"{name}: {answer}")

    def _answer(self, outcome: Outcome) -> str:
        if outcome.verdict is OutcomeVerdict.AGREES:
            return AGREES
        if outcome.verdict is OutcomeVerdict.UNSUPPORTED:
            return f"unsupported: {outcome.reason}"
        gaps = []
        for finding in outcome.findings:
            known = self._ledger.explain(finding, self._judge).known
            if known is None:
                return f"{finding.verdict} in {finding.check}: {finding.detail}"
            gaps.append(known)
        self._account.gaps.update(gaps)
        return KNOWN

    def _drawn(self, emit: Callable[[Event], None]) -> None:
        """By what the kernel promises: nothing that is drawn may be unsupported."""
        options = self._options
        summary = campaign.run(options, emit, known=self._known, executors=self._executors)
        counts = summary.verdicts.get(self._kernel.spec, Counter())
        self._account.drawn[self._kernel.spec] = {str(verdict): number for verdict, number in counts.items()} | {
            "known": summary.known.total()
        }
        by_name = {path.name: path for path in self._known}
        self._account.gaps.update({by_name[name]: number for name, number in summary.known.items()})
        for finding in summary.findings:
            self._fails(f"drawn: {finding.smallest.detail}")
        for line in summary.ledger_failures:
            self._fails(f"ledger: {line}")
        unsupported: Mapping[str, int] = summary.unsupported.get(self._kernel.spec, Counter())
        for reason, number in unsupported.items():
            self._fails(f"drawn: unsupported: {reason}: {number}")
        if counts.total() != options.examples:
            self._fails(f"drawn: {counts.total()} of {options.examples} scenarios ran")
