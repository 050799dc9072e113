"""Workers: warm processes that run cases for one candidate in its environment, and are replaced when a case ends them.

The pool (pebble) kills what runs too long, tells how a process died, and starts the next one. A worker here is such a
pool of one process with the cases that were handed to it, so that it is known which of them ran in one process, in
which order, and none is lost. Only scenarios and outcomes cross to the process and back, never a tensor.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any, TypeVar

import pebble

from difftest.calibration import Calibration
from difftest.explain.explainer import unasked
from difftest.explain.explanation import Explanation
from difftest.isolation import inside
from difftest.isolation.environment import Environment, WorkerFailed
from difftest.isolation.inside import RETIRED, Answer, Setup
from difftest.isolation.introduction import Introduction
from difftest.isolation.sequence import Step
from difftest.isolation.spawning import CLEAN_EXIT, Context
from difftest.judging.guard import Spans
from difftest.judging.outcome import ENDS_PROCESS, Bucket, Outcome, Verdict
from difftest.judging.timing import Timing, Untimed
from difftest.probe import Unmeasurable
from oracles.base import OracleNotFound
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

_T = TypeVar("_T")

START_SECONDS = 600.0
"""Time for a process to start, import its packages and touch its device."""

REMEMBERED = 512
"""Cases of one process that a sequence may reach back."""

AHEAD = 16
"""Cases for each process that may be handed over before the outcome of the first of them is taken. They are taken in
order: one that is 50 times as long as most must not let the other processes run dry."""

_ASKED = 4
"""Processes that are asked one thing: one that does not trust itself ends, and then those whose devices are lost."""

_SIGHTINGS = 8
"""Findings of one bucket of which the earlier cases are kept."""


@dataclass(kw_only=True, eq=False)
class Job:
    """A case. stays: no other worker may run it. first: nor may a process in which something else ran.

    worker, future: of the process that it was handed to last. outcome, or error where `InProcess` would raise one: once
    it is over. before: of a finding, the cases that ran earlier in the same process.
    """

    scenario: AnyScenario
    checks: frozenset[str]
    stays: bool = False
    first: bool = False
    worker: Worker = field(init=False)
    future: concurrent.futures.Future[Answer | None] = field(init=False)
    restarts: int = 0
    outcome: Outcome | None = None
    error: Exception | None = None
    before: tuple[Step, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.error is not None

    @property
    def has_begun(self) -> bool:
        """As far as is known yet."""
        return self.future.running() or self.future.done()


@dataclass(kw_only=True)
class Work:
    """What the processes of one candidate spent and did; see `InProcess`."""

    spans: Spans = field(default_factory=Spans)
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)


class Worker:
    """One process at a time. Cases are run in the order in which they are handed over."""

    def __init__(self, setup: Setup, environment: Environment, timeout: float, work: Work) -> None:
        """timeout: seconds that a case may take. work: where the time of its cases is added."""
        self._setup = setup
        self._environment = environment
        self._timeout = timeout
        self._work = work
        self._queue: deque[Job] = deque()
        self._pid = 0
        self._record: deque[Step] = deque(maxlen=REMEMBERED)
        self._numbers = itertools.count(1)
        self._taken_back = RawValue(ctypes.c_int64)
        self._next: concurrent.futures.Future[None] | None = None
        self._pool = self._new_pool()

    @property
    def waiting(self) -> int:
        """Cases that were handed over and whose outcome nobody knows yet: the latest ones, as they run in order."""
        return sum(1 for _ in itertools.takewhile(lambda job: not job.future.done(), reversed(self._queue)))

    @property
    def is_starting(self) -> bool:
        """Whether a process has ended and the next, which takes seconds to start, has not yet got to what is new."""
        return self._next is not None and not self._next.done()

    def _new_pool(self) -> pebble.ProcessPool:
        context: Any = Context(self._environment)
        arguments = (self._setup, self._taken_back)
        return pebble.ProcessPool(1, initializer=inside.enter, initargs=arguments, context=context)

    def start(self) -> None:
        """Have the process start, and wait for nothing."""
        self._pool.schedule(inside.start)

    def introduce(self) -> Introduction:
        """What the candidate says of itself in its process.

        Raises `OracleNotFound` when there is no such oracle there, `WorkerFailed` when the process does not start.
        """
        who = f"{self._setup.name}: its process"
        try:
            return self._waited(self._pool.schedule(inside.hello, timeout=START_SECONDS))
        except OracleNotFound:
            raise
        except TimeoutError:
            raise WorkerFailed(f"{who} does not start within {START_SECONDS:g} s") from None
        except pebble.ProcessExpired as death:
            if death.exitcode == RETIRED:  # its device was taken out; the next process looks for another one
                return self.introduce()
            raise WorkerFailed(f"{who} ends at its start ({how_it_ended(death.exitcode)})") from None
        except BrokenProcessPool:
            raise WorkerFailed(f"{who} ends at its start") from None
        except Exception as error:
            raise WorkerFailed(f"{who} cannot start: {' '.join(str(error).split())}") from None

    def _waited(self, future: concurrent.futures.Future[_T]) -> _T:
        """The future's result. A pool that breaks may forget a task that it had not yet looked at."""
        while not concurrent.futures.wait([future], timeout=1).done:
            if not self._pool.active:
                raise BrokenProcessPool
        return future.result()

    def ask(self, function: Callable[..., _T], *arguments: Any) -> _T | None:
        """The answer of a further function of `inside`; None when the process does not survive it."""
        self._prepare()
        for _ in range(_ASKED):
            try:
                return self._waited(self._pool.schedule(function, args=arguments, timeout=START_SECONDS))
            except TimeoutError:
                break
            except pebble.ProcessExpired as death:
                if death.exitcode != RETIRED:
                    break
            except BrokenProcessPool:
                self._replace(list(self._queue))
                break
        self._record = deque(maxlen=REMEMBERED)
        self._starts_again()
        return None

    def take(self, job: Job) -> None:
        """Take a case over."""
        self._prepare()
        self._add(job)

    def _prepare(self) -> None:
        """See to it that there is a process to hand something over to."""
        if not self._pool.active:
            self._replace(list(self._queue))

    def _add(self, job: Job) -> None:
        job.worker = self
        arguments = (next(self._numbers), job.scenario, job.checks, job.first)
        job.future = self._pool.schedule(inside.run, args=arguments, timeout=self._timeout)
        self._queue.append(job)

    def renew(self) -> None:
        """Let what comes next find a process in which nothing has run."""
        if self._pool.active:
            self._pool.schedule(inside.retire_if_used)
            self._starts_again()

    def release(self) -> list[Job]:
        """The cases that wait here, for others to take: none where one has to stay."""
        if any(job.stays for job in self._queue):
            return []
        released = [job for job in self._queue if not job.has_begun]
        self._queue = deque(job for job in self._queue if job not in released)
        # A pool takes nothing back: its process passes over what it was sent so far.
        self._taken_back.value = next(self._numbers)
        return released

    def _starts_again(self) -> None:
        """Its process has ended, or will once it gets so far; the pool starts the next by itself."""
        if self._pool.active:
            self._next = self._pool.schedule(inside.start)

    def settle_next(self) -> None:
        """Wait for the case that was handed over first."""
        job = self._queue.popleft()
        try:
            answer = self._waited(job.future)
        except TimeoutError:
            self._ended(job, Verdict.HUNG, "timeout", f"no answer within {self._timeout:g} s")
        except pebble.ProcessExpired as death:
            if death.exitcode == RETIRED:
                self._starts_again()
                self._add(job)
            else:
                how = how_it_ended(death.exitcode)
                self._ended(job, Verdict.CRASHED, how, f"the process that ran this case ended: {how}")
        except BrokenProcessPool:
            self._broken(job)
        except Exception as error:
            job.error = error
        else:
            if answer is None:
                self._add(job)
            else:
                self._answered(job, answer)

    def _answered(self, job: Job, answer: Answer) -> None:
        if answer.pid != self._pid:
            self._pid, self._record = answer.pid, deque(maxlen=REMEMBERED)
        job.outcome = answer.outcome
        if answer.outcome.is_finding:
            job.before = tuple(self._record)
        self._record.append(Step(job.scenario, tuple(sorted(job.checks))))
        for phase, seconds in answer.seconds.items():
            self._work.spans.seconds[phase] += seconds
        self._work.tally.update(answer.tally)

    def _ended(self, job: Job, verdict: Verdict, kind: str, detail: str) -> None:
        """The process did not survive the job."""
        job.before = tuple(self._record)
        self._record = deque(maxlen=REMEMBERED)
        self._starts_again()
        job.outcome = Outcome(
            verdict=verdict,
            scenario=job.scenario,
            candidate=self._setup.name,
            reference=self._setup.reference,
            check="process",
            kind=kind,
            detail=detail,
        )

    def _broken(self, job: Job) -> None:
        """The pool knows of a death, but not in which case: too soon after it had begun, or between two."""
        job.restarts += 1
        if job.restarts == 1:
            self._replace([job, *self._queue])
        else:
            self._ended(job, Verdict.CRASHED, "process ended", "the process that ran this case ended as it began")
            self._replace(list(self._queue))

    def _replace(self, waiting: Sequence[Job]) -> None:
        """Another pool, for what is waiting. Raises `WorkerFailed` when it does not start: a third would not either."""
        self.close()
        self._record = deque(maxlen=REMEMBERED)
        self._queue.clear()
        self._next = None
        self._pool = self._new_pool()
        self.introduce()
        for job in waiting:
            if job.future.done() and job.future.exception() is None:
                self._queue.append(job)
            else:
                self._add(job)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.stop()
        self._pool.join()

    def stop(self) -> None:
        """Begin to `close` it."""
        self._pool.stop()  # type: ignore[no-untyped-call]


def how_it_ended(status: int) -> str:
    """The signal that ended a process ("SIGKILL"), or its exit status ("exit 3")."""
    if status >= 0:
        return f"exit {0 if status == CLEAN_EXIT else status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


class Workers:
    """An executor (see `Executor`): the processes of one candidate, which take its cases as they get free."""

    isolated = True

    def __init__(self, setup: Setup, environment: Environment, *, timeout: float, count: int = 1) -> None:
        """count: processes, which are all started together: each takes seconds over it.

        Raises `OracleNotFound` or `WorkerFailed`, see `Worker.introduce`.
        """
        self.candidate = setup.name
        self.reference = setup.reference
        self.ahead = AHEAD * count
        self._work = Work()
        self._workers = [Worker(setup, environment, timeout, self._work) for _ in range(count)]
        self._before: dict[Bucket, dict[AnyScenario, tuple[Step, ...]]] = defaultdict(dict)
        try:
            for worker in self._workers:
                worker.start()
            self.introduction = self._workers[0].introduce()
        except BaseException:
            self.close()
            raise

    @property
    def spans(self) -> Spans:
        return self._work.spans

    @property
    def tally(self) -> Counter[tuple[str, str]]:
        return self._work.tally

    def submit(self, scenario: AnyScenario, checks: Collection[str]) -> _Pending:
        """Hand a case over."""
        job = Job(scenario=scenario, checks=frozenset(checks))
        self._hand_over(job)
        return _Pending(self, job)

    def _hand_over(self, job: Job) -> None:
        """To the process with the least to do of those that are there."""
        min(self._workers, key=lambda worker: (worker.is_starting, worker.waiting)).take(job)

    def wait_for(self, job: Job) -> Outcome:
        """Its outcome. What `InProcess` would raise, this raises; `WorkerFailed` when no process starts any more."""
        while not job.is_over:
            worker = job.worker
            worker.settle_next()
            if worker.is_starting and not all(other.is_starting for other in self._workers):
                for waiting in worker.release():
                    try:
                        self._hand_over(waiting)
                    except WorkerFailed as error:
                        waiting.error = error
        if job.error is not None:
            raise job.error
        assert job.outcome is not None  # it is over
        return job.outcome

    def run_afresh(self, steps: Sequence[Step], scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """The outcome of `scenario` in a new process, after `steps` in the same one, which then ends."""
        # One that died has a new process already, or soon.
        worker = min(self._workers, key=lambda worker: (worker.waiting, not worker.is_starting))
        for number, step in enumerate((*steps, Step(scenario, tuple(checks)))):
            job = Job(scenario=step.scenario, checks=frozenset(step.checks), stays=True, first=number == 0)
            worker.take(job)
            outcome = self.wait_for(job)
        worker.renew()
        return outcome

    def before(self, finding: Outcome) -> tuple[Step, ...]:
        """The cases that ran in the same process before the one that showed `finding`, the latest last."""
        return self._before.get(finding.bucket, {}).get(finding.scenario, ())

    def note(self, outcome: Outcome, before: tuple[Step, ...]) -> None:
        """Keep what ran before the first findings of each bucket."""
        for finding in outcome.findings:
            kept = self._before[finding.bucket]
            if len(kept) < _SIGHTINGS:
                kept.setdefault(finding.scenario, before)

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """See `Executor`. A process that ends over it has no vote."""
        return bool(self._workers[0].ask(inside.ballot, scenario, path))

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """See `Executor`."""
        found = None if smallest.verdict in ENDS_PROCESS else self._workers[0].ask(inside.explain, smallest, worst)
        return unasked(smallest) if found is None else found

    def calibrate(self) -> Calibration:
        """See `Executor`. Processes that are started later find what is kept."""
        found = self._workers[0].ask(inside.calibrate)
        if found is None:
            raise Unmeasurable("the process does not survive it")
        return found

    def libraries(self) -> Mapping[str, str]:
        """See `Executor`."""
        seen = [worker.ask(inside.libraries) or {} for worker in self._workers]
        return dict(sorted(item for each in seen for item in each.items()))

    def time(self, scenario: Scenario) -> Timing:
        """See `Executor`."""
        found = self._workers[0].ask(inside.time_call, scenario)
        if found is None:
            raise Untimed("the process does not survive it")
        return found

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.close()


@dataclass(frozen=True)
class _Pending:
    """A job, whose outcome its executor takes note of."""

    workers: Workers
    job: Job

    def result(self) -> Outcome:
        outcome = self.workers.wait_for(self.job)
        self.workers.note(outcome, self.job.before)
        return outcome
