"""`difftest run -n N`: the shards of a campaign on processes of this machine, which share its devices.

Each process runs one shard after the other, its candidates warm, and begins the next before the last one is over. The
devices are leased by the workers in them (`difftest.isolation.lease`); a process that dies is replaced, and its shards
begin anew.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pebble
import torch

from difftest import campaign
from difftest.campaign import BegunShard
from difftest.findings import Summary
from difftest.isolation import environment
from difftest.isolation.environment import Environment, EnvironmentNotFound, WorkerFailed
from difftest.isolation.executors import Executors
from difftest.isolation.spawning import Context, Process
from difftest.isolation.worker import how_it_ended
from difftest.ledger import cases
from difftest.ledger.claims import Claims
from difftest.line import Line
from difftest.options import Options, shards_of
from difftest.output.events import Event, FindingFound, Handler, ShardLost
from difftest.scale.part import words
from oracles import base

TRIES = 3
"""Of a shard, before the run ends without it."""

_LEAVE_SECONDS = 10.0
"""For a process to end its workers. It is stopped then, whatever they are doing."""

_CORES = 8
"""Of a machine with devices, for one process of `-n auto` with its workers."""


def on_a_gpu(options: Options) -> bool:
    """Whether a candidate runs on a GPU, as far as this process, on a machine that may have none, can tell."""
    return options.device == "cuda" or any(map(_runs_on_gpu, options.candidates))


def _runs_on_gpu(spec: str) -> bool:
    try:
        return base.runs_on(base.find(environment.split(spec)[0])) == "cuda"
    except base.OracleNotFound:  # it may be in its own environment
        return False


def most_useful(options: Options) -> int:
    """How many processes `-n auto` means: one for each core, or where a candidate runs on a device one or two for each.

    One that draws for the workers of a device (`Isolation.of`) keeps up with about ten of them.
    """
    cores, devices = len(os.sched_getaffinity(0)), torch.cuda.device_count() if on_a_gpu(options) else 0
    return max(devices, min(2 * devices, cores // _CORES)) or cores


def run(options: Options, emit: Handler, count: int) -> Summary:
    """Run a campaign as `campaign.run` does: the ledger in this process, then the shards in `count` others.

    A bucket is shrunk by the first shard that finds it. Events of a shard come when it is over: one that is lost and
    runs again counts once. Raises as `campaign.run` does, and `WorkerFailed` when a shard's process died `TRIES` times.
    """
    known = cases.known(options.cases, options.candidates)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="difftest-")))
        job = _Job(
            options=options,
            known=known,
            folder=folder,
            lost=folder / "devices",
            journals=folder / "journals",
            processes=count,
        )
        drivers = [_Driver(job) for _ in range(min(count, shards_of(options.examples)))]
        stack.callback(_close, drivers)
        for driver in drivers:
            driver.start()
        alone = replace(options, workers=1)  # the ledger's cases come one after the other
        executors = stack.enter_context(campaign.executors_for(alone, count, job.lost))

        def elsewhere(add: Callable[[Summary], None]) -> None:
            executors.close()  # what it had of the devices is theirs now
            announced = set()
            for _, summary, events in _shards(job, drivers, emit):
                for event in events:
                    if isinstance(event, FindingFound):
                        first = (event.outcome.bucket, event.known)
                        if first in announced:
                            continue
                        announced.add(first)
                    emit(event)
                add(summary)

        return campaign.run(options, emit, known=known, executors=executors, elsewhere=elsewhere)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What a process needs to know. folder: of claims. journals: of this run alone: when the user ends it, processes
    end in the middle of a case, which the next run must not take for a crash."""

    options: Options
    known: Sequence[Path]
    folder: Path
    lost: Path
    journals: Path
    processes: int


_Over = tuple[int, Summary, list[Event]]
"""A shard that is over, what came of it, and its events."""


class _Driver:
    """A process that draws, and hands cases over to workers of its own.

    begun: the shards that it was given and that are not over. What it is doing is a future; one at a time.
    """

    def __init__(self, job: _Job) -> None:
        here = Environment(name="", python=sys.executable, path=tuple(sys.path))
        context: Any = Context(here, _Parent)
        self._pool = pebble.ProcessPool(1, initializer=_enter, initargs=(job,), context=context)
        self.begun: set[int] = set()

    def start(self) -> None:
        """Have it import what it needs and start its workers, while the ledger is replayed."""
        self._pool.schedule(_start)

    def begin(self, shard: int, *, again: bool) -> concurrent.futures.Future[list[_Over]]:
        self.begun.add(shard)
        return self._pool.schedule(_begin, args=(shard, again))

    def end(self) -> concurrent.futures.Future[list[_Over]]:
        return self._pool.schedule(_end)

    def leave(self) -> concurrent.futures.Future[None]:
        return self._pool.schedule(_leave)

    @property
    def is_alive(self) -> bool:
        return bool(self._pool.active)

    def stop(self) -> None:
        """End the process, whatever it is doing; `join` waits for that."""
        self._pool.stop()  # type: ignore[no-untyped-call]

    def join(self) -> None:
        self._pool.join()


def _close(drivers: Sequence[_Driver]) -> None:
    for driver in drivers:
        driver.stop()
    for driver in drivers:
        driver.join()


def _shards(job: _Job, drivers: Sequence[_Driver], emit: Handler) -> Iterator[_Over]:
    """Each shard as it is over."""
    waiting = deque(range(shards_of(job.options.examples)))
    tries: Counter[int] = Counter()
    running: dict[concurrent.futures.Future[list[_Over]], _Driver] = {}
    while True:
        for driver in [free for free in drivers if free not in running.values()]:
            if waiting:
                shard = waiting.popleft()
                running[driver.begin(shard, again=tries[shard] > 0)] = driver
            elif driver.begun:
                running[driver.end()] = driver
        if not running:
            break
        done, _ = concurrent.futures.wait(running, timeout=1, return_when=concurrent.futures.FIRST_COMPLETED)
        if not done and not all(driver.is_alive for driver in running.values()):
            raise WorkerFailed("the processes of -n do not start")
        for future in done:
            driver = running.pop(future)
            try:
                over = future.result()
            except (pebble.ProcessExpired, BrokenProcessPool) as death:
                status = getattr(death, "exitcode", None)
                ended = f"its process ended ({'at its start' if status is None else how_it_ended(status)})"
                lost = sorted(driver.begun)
                driver.begun.clear()
                for shard in lost:
                    tries[shard] += 1
                    again = tries[shard] < TRIES
                    emit(ShardLost(shard=shard, error=ended, again=again))
                    if not again:
                        raise WorkerFailed(f"shard {words([shard])}: {ended}, {TRIES} times") from None
                waiting.extendleft(reversed(lost))
            else:
                driver.begun.difference_update(shard for shard, _, _ in over)
                yield from over
    # Workers first: one that is stopped while it has any takes seconds to end.
    concurrent.futures.wait([driver.leave() for driver in drivers], timeout=_LEAVE_SECONDS)


class _Parent(Process):
    """A process that has children of its own, which `multiprocessing` allows to none that is a daemon."""

    @property
    def daemon(self) -> bool:
        return False

    @daemon.setter
    def daemon(self, wanted: bool) -> None:
        """A pool wants it; it ends its processes itself."""


@dataclass(frozen=True)
class _Here:
    """What stays in a process from shard to shard. begun: with their events, the oldest first."""

    job: _Job
    executors: Executors
    line: Line
    begun: dict[int, tuple[BegunShard, list[Event]]]


_here: _Here


def _enter(job: _Job) -> None:
    global _here  # what a pool's initializer can leave for its tasks
    torch.set_num_threads(1)
    _here = _Here(job, campaign.executors_for(job.options, job.processes, job.lost), Line(), {})


def _start() -> None:
    """Start the workers. One that cannot start is told of when it is to run something."""
    options = _here.job.options
    for spec in options.candidates:
        with contextlib.suppress(EnvironmentNotFound, WorkerFailed):
            _here.executors.of(spec, options.reference)


def _begin(shard: int, again: bool) -> list[_Over]:
    """Begin a shard. Returns what is over meanwhile.

    again: whoever ran it before died of it, so that the candidates run in processes of their own.
    """
    job, executors = _here.job, _here.executors
    if again:
        executors.isolate(job.options.candidates)
    events: list[Event] = []
    claims = Claims(job.folder, str(shard))
    begun = campaign.begin_shard(
        job.options, shard, events.append, claims, job.known, executors, _here.line, job.journals
    )
    _here.begun[shard] = (begun, events)
    return [_ended(number) for number, (other, _) in list(_here.begun.items()) if other.is_over]


def _end() -> list[_Over]:
    """Wait for the oldest shard."""
    return [_ended(next(iter(_here.begun)))]


def _leave() -> None:
    """End the workers."""
    _here.executors.close()


def _ended(shard: int) -> _Over:
    begun, events = _here.begun.pop(shard)
    return shard, begun.end(), events
