"""`difftest campaign`: the shards of a campaign as tasks of Ray, their results in a store.

A task is what `difftest run --shard` does by hand, and writes its result into the store itself. So whoever dies, what
was finished is there; a shard that has no whole result runs again, from its beginning, and only whole results count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from difftest.findings import Summary
from difftest.isolation.environment import WorkerFailed
from difftest.options import Options, shards_of
from difftest.output.events import Handler, ResultCame, RunFinished, RunInterrupted, RunStarted, ShardLost
from difftest.preflight import Missing, one_line
from difftest.scale import merge, task
from difftest.scale.identity import shared
from difftest.scale.part import words
from difftest.scale.result import InvalidResult, Result
from difftest.scale.store import Store
from difftest.scale.stored import Stored, result_name

TRIES = 4
"""Of a shard, before the campaign ends without it."""

GPUS = 1 / 8
"""Of a device for each shard of a candidate that runs on one: its kernel leaves the device mostly idle."""

_POLL = 2.0
"""Seconds after which it is looked whether nodes came or went."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """until: on the clock of `time.monotonic`, after which no shard begins; None to run the campaign's own shards, each
    once. gpus: of a device for each shard."""

    until: float | None = None
    gpus: float = 0.0


def connect(address: str | None) -> None:
    """To the cluster at `address`, that of the variable RAY_ADDRESS, or one of this machine alone. Raises `Missing`."""
    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    _reach(address or "")
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise Missing(f"--address {address}: {one_line(error)}") from None
    signal.signal(signal.SIGTERM, on_term)  # Ray's own aborts the process


def _reach(address: str) -> None:
    """Raises `Missing` where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise Missing(
            f"--address {address}: nothing answers there ({one_line(error)}); give HOST:PORT of a cluster's head, auto "
            "on one of its nodes, or leave it out for this machine alone"
        ) from None


def run(stored: Stored, options: Options, budget: Budget, emit: Handler) -> Summary:
    """Run the shards that have no result yet, and join all that there are. Cases are saved in the options' folder, and
    in the store.

    Raises `WorkerFailed` when a shard was lost too often (what the others found is told before), `NotOneCampaign` when
    machines differ, `CaseNotWritten`, and KeyboardInterrupt after the event `RunInterrupted`.
    """
    whole = budget.until is None
    shards = shards_of(options.examples) if whole else None
    emit(
        RunStarted(
            options=options,
            candidates=options.candidates,
            missing={},
            shards=shards,
            scenarios=options.examples if whole else None,
        )
    )
    drive = _Drive(stored, options, budget, emit)
    try:
        drive.run()
    except KeyboardInterrupt:
        drive.cancel()
        emit(RunInterrupted(summary=drive.joined()))
        raise
    summary = drive.joined()
    emit(RunFinished(summary=summary))
    if drive.failed:
        raise WorkerFailed(
            f"shard {words(drive.failed)} was lost {TRIES} times; {len(drive.results)} are done, and the same command "
            "runs what is missing"
        )
    return summary


class _Drive:
    """results: by shard. failed: shards that were lost too often."""

    def __init__(self, stored: Stored, options: Options, budget: Budget, emit: Handler) -> None:
        self._stored = stored
        self._options = options
        self._budget = budget
        self._emit = emit
        self._lost: Counter[int] = Counter()
        self._running: dict[Any, int] = {}
        self._job = _Job(
            url=_everywhere(stored.store.url), options=options.to_json(), folder=os.getcwd(), gpus=budget.gpus
        )
        self.results: dict[int, Result] = {}
        self.failed: list[int] = []

    def run(self) -> None:
        for shard in self._stored.shards():
            self._take(shard)
        waiting = self._waiting()
        again: list[int] = []
        if not self._slots():
            needs = f"{self._budget.gpus:g} of a GPU and a core" if self._budget.gpus else "a core"
            raise Missing(f"no node of the cluster has {needs}: add nodes, or give another --gpus")
        while True:
            while len(self._running) < max(1, self._slots()):
                if again:
                    self._submit(again.pop())
                    continue
                following = None if self._is_over() else next(waiting, None)
                if following is None:
                    break
                self._submit(following)
            if not self._running:
                return
            done, _ = ray.wait(list(self._running), timeout=_POLL)
            for reference in done:
                shard = self._running.pop(reference)
                if not self._finished(reference, shard):
                    again.append(shard)

    def _waiting(self) -> Iterator[int]:
        wanted = range(shards_of(self._options.examples)) if self._budget.until is None else itertools.count()
        return (shard for shard in wanted if shard not in self.results)

    def _is_over(self) -> bool:
        """Whether no new shard begins: the time is up, or one does not come to its end anywhere."""
        late = self._budget.until is not None and time.monotonic() >= self._budget.until
        return late or bool(self.failed)

    def _slots(self) -> int:
        """Shards that the nodes can run at a time."""
        has = ray.cluster_resources()
        cores = int(has.get("CPU", 0))
        return cores if not self._budget.gpus else min(cores, int(has.get("GPU", 0) / self._budget.gpus))

    def _submit(self, shard: int) -> None:
        """A shard whose process died runs its candidates in processes of their own, so that a death has a name."""
        remote = ray.remote(num_cpus=1, num_gpus=self._budget.gpus, max_retries=0)(_shard)
        self._running[remote.remote(self._job, shard, self._lost[shard] > 0)] = shard

    def _finished(self, reference: Any, shard: int) -> bool:
        """Whether nothing is left to do of the shard."""
        error = "its result is not in the store"
        try:
            ray.get(reference)
        except ray.exceptions.RayTaskError as raised:
            error = one_line(raised.cause or raised)
        except ray.exceptions.RayError as raised:
            error = one_line(raised).partition(". ")[0].partition(" If you")[0]
        if self._take(shard):  # also of one that died after it had written it
            return True
        self._lost[shard] += 1
        again = self._lost[shard] < TRIES
        self._emit(ShardLost(shard=shard, error=error, again=again))
        if not again:
            self.failed.append(shard)
        return not again

    def _take(self, shard: int) -> bool:
        """Whether the store has the shard's result, whole; it counts from here on."""
        try:
            result = self._stored.result(shard)
        except InvalidResult as error:
            self._emit(ShardLost(shard=shard, error=f"its result {error}", again=True))
            return False
        if result is None:
            return False
        first = next(iter(self.results.values()), result).identity
        difference = dataclasses.replace(first, options=shared(self._options)).difference(result.identity)
        if difference is not None:
            raise merge.NotOneCampaign(
                f"{result_name(shard)}: is of another campaign: {difference}; take it out of the store, and the same "
                "command runs the shard again, which needs the same versions on all nodes"
            )
        self.results[shard] = result
        summary = result.summary
        self._emit(ResultCame(shard=shard, scenarios=summary.scenarios, findings=len(summary.findings)))
        return True

    def joined(self) -> Summary:
        """What the results so far come to, its cases saved."""
        summary, found = merge.join([self.results[shard] for shard in sorted(self.results)])
        self._stored.write_cases(found)
        return merge.save(summary, found, self._options.cases, self._emit)

    def cancel(self) -> None:
        """End the tasks that run."""
        for reference in self._running:
            ray.cancel(reference, force=True)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What a task needs to know. folder: that the driver ran in, where a relative path of a candidate begins."""

    url: str
    options: Mapping[str, Any]
    folder: str
    gpus: float


def _everywhere(url: str) -> str:
    """A path that means the same in another process; a URL as it is."""
    return url if "://" in url else str(Path(url).absolute())


def _shard(job: _Job, shard: int, alone: bool) -> None:
    """Run a shard, and write its result. alone: its candidates in processes of their own."""
    stored = Stored(Store(job.url))
    scratch = Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / "campaigns" / stored.key()
    options = Options.from_json(job.options)
    options = dataclasses.replace(
        options,
        cases=scratch / "ledger",
        isolate=options.isolate or alone,
        workers=options.workers or 1,
    )
    known = stored.ledger(scratch / "ledger")
    folder = scratch / f"shard-{shard:05}"
    with contextlib.chdir(job.folder) if Path(job.folder).is_dir() else contextlib.nullcontext():
        result = task.run(
            options,
            [shard],
            lambda _: None,
            known=known,
            folder=folder,
            drivers=max(1, int(1 / job.gpus)) if job.gpus else 1,
        )
    stored.write_result(shard, result)
    shutil.rmtree(folder, ignore_errors=True)  # its cases are in the result
