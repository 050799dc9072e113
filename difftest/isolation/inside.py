"""What a worker's process does. Nothing here imports torch before the process is in its environment.

A pool calls `enter` once, and then the other functions as its tasks. They raise nothing that has to do with the oracle.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from difftest.isolation.environment import WorkerFailed
from difftest.judging.outcome import Outcome, Verdict
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

if TYPE_CHECKING:
    import torch

    from difftest.calibration import Calibration
    from difftest.explain.explanation import Explanation
    from difftest.isolation.introduction import Introduction
    from difftest.isolation.lease import Lease
    from difftest.judging.timing import Timing
    from difftest.judging.trial import InProcess

RETIRED = 75
"""Exit status of a process that was asked for another case and does not trust itself any more: it ran no part of it."""

_ACKNOWLEDGED = 0.05
"""Seconds in which the pool hears that its task has begun: it takes a death before that for its own."""

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a process needs to know. candidate: in the process's environment. name: as the user gave it.

    device: "cpu" or "cuda", None for where the candidate itself runs. sharers: processes of this run that share the
    machine's devices, at most. lost: where the run notes devices that were taken out. variables, build: of the
    environment.
    """

    candidate: str
    name: str
    reference: str
    device: str | None = None
    sharers: int = 1
    lost: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An outcome, and what it took. pid: of the process. seconds: by phase, see `Spans`. tally: see `InProcess`."""

    outcome: Outcome
    pid: int
    seconds: Mapping[str, float]
    tally: Mapping[tuple[str, str], int]


class _DeviceLost(Exception):
    """The device that the process was to use does not work: the next process finds another one."""


class _Inside:
    """The oracles of this process, made once. sick: it must not be asked again. used: it has been asked something."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from difftest.judging.trial import InProcess
        from oracles import base

        oracle = base.find(setup.candidate)
        kind = setup.device or base.runs_on(oracle)
        self._lease: Lease | None = None
        if "cuda" in (kind, base.runs_on(oracle)) and torch.cuda.is_available():
            self._lease = self._share_of_a_device(setup)
        index = "" if self._lease is None else f":{self._lease.index}"
        self.device: torch.device = torch.device(f"cuda{index}" if kind == "cuda" else "cpu")
        self.oracle = oracle
        self.build = setup.build
        by_size = setup.device is None and base.runs_on(oracle) == "cuda"
        self.process: InProcess = InProcess(
            oracle, setup.reference, device=str(self.device), by_size=by_size, name=setup.name
        )
        self.sick = self.used = False

    def _share_of_a_device(self, setup: Setup) -> Lease:
        """Raises `_DeviceLost` when the device does not work; no process of the run takes it again then. What a case
        broke is gone with its process, so that this is the device's own failure."""
        import torch

        from difftest.isolation import health, lease

        taken = lease.take(lost=setup.lost)
        reason = health.unusable(taken.index) if setup.lost is not None else None
        if setup.lost is not None and reason is not None:
            lease.take_out(setup.lost, taken.device, reason)
            raise _DeviceLost(reason)
        torch.cuda.set_device(taken.index)
        total = torch.cuda.get_device_properties(taken.index).total_memory
        per_device = -(-setup.sharers // (torch.cuda.device_count() - len(lease.taken_out(setup.lost))))
        torch.cuda.set_per_process_memory_fraction(lease.memory_fraction(total, per_device), taken.index)
        return taken

    def run(self, scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """The outcome of the scenario, once all that it started on the device is over.

        What a kernel breaks may show anywhere after it, in whoever uses the device next. So an error that is not the
        candidate's own exception is no error of difftest before the device was seen to work.
        """
        import torch

        raised: Exception | None = None
        outcome: Outcome | None = None
        try:
            outcome = self.process.run(scenario, checks)
            self._wait_for_device()
        except Exception as error:
            raised = error
        if raised is None and outcome is not None and not outcome.is_finding:
            return outcome
        broken = self._broken()
        if broken is not None:
            self.sick = True
            detail = f"the process can no longer use its device: {broken}"
            return self._outcome(scenario, Verdict.CRASHED, check="process", kind=broken, detail=detail)
        if raised is None:
            assert outcome is not None
            self.sick = any(finding.kind == OUT_OF_MEMORY for finding in outcome.findings)
            return outcome
        if isinstance(raised, torch.OutOfMemoryError):
            self.sick = True
            return self._outcome(scenario, Verdict.UNSUPPORTED, reason="the reference needs more device memory")
        if isinstance(raised, torch.AcceleratorError):
            # Left by a launch that the candidate did not look at, and told to the next who did.
            detail = f"left an error on the device: {str(raised).splitlines()[0]}"
            return self._outcome(scenario, Verdict.REJECTED, check="process", kind="device error", detail=detail)
        raise raised

    def _wait_for_device(self) -> None:
        import torch

        if self._lease is not None:
            torch.cuda.synchronize(self._lease.index)

    def _broken(self) -> str | None:
        from difftest.isolation import health

        return None if self._lease is None else health.sticky_error(self._lease.index)

    def _outcome(self, scenario: AnyScenario, verdict: Verdict, **fields: str) -> Outcome:
        process = self.process
        return Outcome(
            verdict=verdict,
            scenario=scenario,
            candidate=process.candidate,
            reference=process.reference,
            **fields,  # type: ignore[arg-type]  # the texts among the fields
        )


_inside: _Inside | Exception
"""Of this process; what to tell when it could not be made."""


_taken_back: ctypes.c_int64
"""Cases up to this number were handed to others meanwhile."""


def enter(setup: Setup, taken_back: ctypes.c_int64) -> None:
    """Make what the process needs. A failure is kept for `hello` to tell: a pool would say nothing of it.

    taken_back: memory that is shared with the process that hands cases over.
    """
    global _inside, _taken_back  # what a pool's initializer can leave for its tasks
    _taken_back = taken_back
    os.environ.update(setup.variables)
    try:
        _inside = _Inside(setup)
    except _DeviceLost as error:
        _inside = error
    except BaseException as error:
        _inside = _sendable(error)


def _sendable(error: BaseException) -> Exception:
    """`error`, or one line that tells of it where only its own packages could read it."""
    from oracles.base import OracleNotFound

    if isinstance(error, WorkerFailed):
        return WorkerFailed(str(error))
    line = " ".join(str(error).split())
    return (
        OracleNotFound(line) if isinstance(error, OracleNotFound) else RuntimeError(f"{type(error).__name__}: {line}")
    )


def start() -> None:
    """Nothing: `enter` was called before."""


def hello() -> Introduction:
    """What the candidate says of itself here. Raises `OracleNotFound`, `WorkerFailed` when no device is left, or
    RuntimeError when its code fails."""
    ready = _ready()
    from difftest.isolation.introduction import introduce

    try:
        return introduce(ready.oracle, ready.process.candidate, str(ready.device), ready.build)
    except BaseException as error:
        raise _sendable(error) from None


def run(number: int, scenario: AnyScenario, checks: Collection[str], first: bool) -> Answer | None:
    """Run one case; None: it was taken back. The process ends instead, before it has begun, when the one before it
    broke something, or when there was one and this has to be the first."""
    if number <= _taken_back.value:
        return None
    ready = _ready()
    if first:
        retire_if_used()
    ready.used = True
    outcome = ready.run(scenario, checks)
    process = ready.process
    answer = Answer(outcome=outcome, pid=os.getpid(), seconds=dict(process.spans.seconds), tally=dict(process.tally))
    process.spans.clear()
    process.tally.clear()
    return answer


def ballot(scenario: AnyScenario, path: Path) -> bool:
    """See `InProcess.ballot`."""
    return _process().ballot(scenario, path)


def explain(smallest: Outcome, worst: Outcome) -> Explanation:
    """See `InProcess.explain`."""
    return _process().explain(smallest, worst)


def calibrate() -> Calibration:
    """See `Executor.calibrate`."""
    return _process().calibrate()


def libraries() -> Mapping[str, str]:
    """See `Executor.libraries`."""
    return _process().libraries()


def time_call(scenario: Scenario) -> Timing:
    """See `Executor.time`."""
    return _process().time(scenario)


def _process() -> InProcess:
    ready = _ready()
    ready.used = True
    return ready.process


def _ready() -> _Inside:
    if isinstance(_inside, _DeviceLost):
        retire()
    if isinstance(_inside, Exception):
        raise _inside
    if _inside.sick:
        retire()
    return _inside


def retire_if_used() -> None:
    """End the process, unless nothing has run in it."""
    if _ready().used:
        retire()


def retire() -> NoReturn:
    """End the process, so that the next task finds a new one."""
    time.sleep(_ACKNOWLEDGED)
    os._exit(RETIRED)
