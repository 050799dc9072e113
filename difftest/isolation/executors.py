"""Where the cases of a run happen, by candidate: in this process, or in workers."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from difftest.engine import Executor
from difftest.isolation import environment
from difftest.isolation.inside import Setup
from difftest.isolation.lease import taken_out
from difftest.isolation.worker import Workers
from difftest.judging.trial import InProcess
from difftest.options import SHARD_MINIMUM, TIMEOUT, Options
from oracles import base

MOST_WORKERS = 16
"""Processes of a candidate for each device, or without one, that are started unless the user asks for more."""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How candidates are isolated.

    all: every one of them is. device: where tensors are made and the reference computes, "cpu" or "cuda"; None for
    where the candidate runs, but for small scenarios. timeout: seconds for a case. workers: processes for each
    candidate. drivers: processes like this one in the run, which share the devices. lost: a folder in which they note
    the devices that no longer work; None for one of this process alone.
    """

    all: bool = False
    device: str | None = None
    timeout: float = TIMEOUT
    workers: int = 1
    drivers: int = 1
    lost: Path | None = None

    @classmethod
    def of(cls, options: Options, drivers: int | None = None, lost: Path | None = None) -> Self:
        """As the user asks for it. drivers: by default pytest-xdist's.

        A worker takes a core for the reference of small scenarios, and its kernel leaves the device mostly idle; a
        driver takes one to draw them. A few scenarios are not worth a worker's start.
        """
        drivers = drivers or int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        cores, devices = os.cpu_count() or 1, max(1, torch.cuda.device_count())
        most = min(MOST_WORKERS * devices, cores - drivers, options.examples // SHARD_MINIMUM)
        return cls(
            all=options.isolate,
            device=options.device,
            timeout=options.timeout,
            workers=options.workers or max(1, most // drivers),
            drivers=drivers,
            lost=lost,
        )


def needs_gpu(candidate: str, device: str | None = None) -> bool:
    """Whether the candidate, of this process's own environment, runs on a GPU of this machine.

    Loads the oracle's own module, and asks it nothing. Devices are counted without a context on any of them.
    Raises `OracleNotFound`.
    """
    wanted = device == "cuda" or base.runs_on(base.find(candidate)) == "cuda"
    return wanted and torch.cuda.device_count() > 0


def _own_folder() -> Path:
    """A name that nobody else has; there is no folder before a device is lost."""
    return Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / "lost" / f"{os.getpid()}-{time.time_ns()}"


class Executors:
    """The executors of a process: each made when it is first asked for, warm until `close`.

    A candidate is isolated when it runs on a GPU, which a kernel's mistake can take from the whole process; when it is
    in another environment; when it is known to end its process; and when the user asks for that.
    """

    def __init__(self, candidates: Iterable[str] = (), isolation: Isolation | None = None) -> None:
        """candidates: all that are going to be asked for, which may have to share devices."""
        self._candidates = tuple(candidates)
        self._isolation = isolation or Isolation()
        self._lost = self._isolation.lost or _own_folder()
        self._crashing: set[str] = set()
        self._made: dict[tuple[str, str], Executor] = {}

    def of(self, candidate: str, reference: str) -> Executor:
        """The candidate's executor.

        Raises `OracleNotFound`, `EnvironmentNotFound`, or `WorkerFailed` when its process does not start.
        """
        key = (candidate, reference)
        if key not in self._made:
            self._made[key] = self._make(candidate, reference)
        return self._made[key]

    def _make(self, candidate: str, reference: str) -> Executor:
        how = self._isolation
        if not self.isolates(candidate):
            return InProcess(candidate, reference, device=how.device or "cpu")
        oracle, place = environment.of(candidate)
        isolated = sum(self.isolates(other) for other in {*self._candidates, candidate})
        setup = Setup(
            candidate=oracle,
            name=candidate,
            reference=reference,
            device=how.device,
            sharers=isolated * how.workers * how.drivers,
            lost=self._lost,
            variables=dict(place.variables),
            build=dict(place.build),
        )
        return Workers(setup, place, timeout=how.timeout, count=how.workers)

    def isolates(self, candidate: str) -> bool:
        """Whether the candidate runs in processes of its own. Raises `OracleNotFound`."""
        elsewhere = environment.split(candidate)[1]
        return bool(
            self._isolation.all
            or candidate in self._crashing
            or elsewhere
            or needs_gpu(candidate, self._isolation.device)
        )

    def isolate(self, candidates: Collection[str]) -> None:
        """From now on run these in processes of their own."""
        new = {candidate for candidate in candidates if not self.isolates(candidate)}
        self._crashing |= new
        for key in [key for key in self._made if key[0] in new]:
            self._made.pop(key).close()

    def lost_devices(self) -> dict[str, str]:
        """Why each device that the run has taken out does not work, by its UUID."""
        return taken_out(self._lost)

    def close(self) -> None:
        """End all processes."""
        for executor in self._made.values():
            executor.close()
        self._made.clear()
        if self._isolation.lost is None:
            shutil.rmtree(self._lost, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
