"""The processes of expert parallelism, as the one that asks them sees them. What runs in each is `oracles.rank`."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # which it exports

from oracles.base import ProcessEnded
from oracles.problem import Problem

START_SECONDS = 300.0
"""For the processes to import torch and the oracle's packages, and to find each other."""

LAST_SECONDS = 5.0
"""For a process that has closed its pipe to end."""

Reduce = Callable[[torch.Tensor], None]
"""Puts the sum of the ranks' partial outputs [M, H] into each one's own. A module's function, called on every rank."""


def all_reduce(output: torch.Tensor) -> None:
    """The right one."""
    distributed.all_reduce(output)


@dataclass(frozen=True, kw_only=True)
class Role:
    """What a process is told at its start. device: "cpu" or "cuda". port: of the store where the ranks find each other,
    on this machine. seconds: that the others are waited for."""

    inner: str
    rank: int
    ranks: int
    device: str
    port: int
    reduce: Reduce
    threads: int
    seconds: float


@dataclass(frozen=True)
class Raised:
    """What a rank's oracle raised."""

    error: BaseException
    traceback: str


@dataclass(frozen=True)
class _Process:
    process: subprocess.Popen[bytes]
    pipe: connection.Connection


class Ranks:
    """N warm processes, rank r on device cuda:r or all on the CPU.

    Started in this process's interpreter and `sys.path`: what an oracle's environment is made of goes on to them. They
    end when this object does, and when this process does, whatever they are doing. alive: whether they can be asked.
    """

    def __init__(self, inner: str, count: int, device: str, reduce: Reduce, seconds: float) -> None:
        """inner: spec of the oracle. seconds: that an answer may take. Raises `ProcessEnded`."""
        if device == "cuda" and torch.cuda.device_count() < count:
            raise RuntimeError(f"{count} ranks need {count} CUDA devices, and there are {torch.cuda.device_count()}")
        self.device = device
        self.alive = True
        self._seconds = seconds
        self._next = 0
        self._forgotten: list[int] = []
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._processes = [_started() for _ in range(count)]
        self._end = weakref.finalize(self, _end, self._processes)
        threads = max(1, torch.get_num_threads() // count)
        roles = [
            Role(
                inner=inner,
                rank=rank,
                ranks=count,
                device=device,
                port=self._store.port,
                reduce=reduce,
                threads=threads,
                seconds=seconds,
            )
            for rank in range(count)
        ]
        self._ask(roles, START_SECONDS)

    def prepare(self, shares: Sequence[Problem]) -> int:
        """Give each rank its problem. Returns the number that `answer` takes."""
        number, self._next = self._next, self._next + 1
        forgotten, self._forgotten = self._forgotten, []
        self._ask([("prepare", number, share, forgotten) for share in shares], self._seconds)
        return number

    def answer(self, number: int) -> list[torch.Tensor]:
        """[M, H] of each rank on the CPU, after the all-reduce.

        All of them have called their oracle before any of them waits for the others in the all-reduce.
        """
        self._ask([("call", number)] * len(self._processes), self._seconds)
        return self._ask([("reduce", number)] * len(self._processes), self._seconds)

    def forget(self, number: int) -> None:
        """Let go of a problem, with the next one."""
        self._forgotten.append(number)

    def _ask(self, messages: Sequence[object], seconds: float) -> list[Any]:
        """What each rank replies to its message. Raises what the first one raised; `ProcessEnded` ends all of them."""
        until = time.monotonic() + seconds
        replies: dict[int, Any] = {}
        for rank, (one, message) in enumerate(zip(self._processes, messages, strict=True)):
            with self._ending(rank):
                one.pipe.send_bytes(packed(message))
        waiting = {one.pipe: rank for rank, one in enumerate(self._processes)}
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                late = ", ".join(str(rank) for rank in waiting.values())
                self.close()
                raise ProcessEnded(f"rank {late} of {len(messages)}: no answer within {seconds:g} s", None)
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                rank = waiting.pop(pipe)
                with self._ending(rank):
                    replies[rank] = unpacked(pipe.recv_bytes())
        for rank in range(len(messages)):
            reply = replies[rank]
            if isinstance(reply, Raised):
                reply.error.add_note(f"on rank {rank} of {len(messages)}:\n{reply.traceback}")
                raise reply.error
        return [replies[rank] for rank in range(len(messages))]

    @contextmanager
    def _ending(self, rank: int) -> Iterator[None]:
        """A pipe that breaks is a process that ended, and with it the others."""
        try:
            yield
        except (EOFError, OSError):
            process = self._processes[rank].process
            try:
                status = process.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL  # by us
            self.close()
            how = signal.Signals(-status).name if status < 0 else f"exit {status}"
            raise ProcessEnded(f"rank {rank} of {len(self._processes)}: its process ended: {how}", how) from None

    def close(self) -> None:
        """End all processes."""
        self.alive = False
        self._end()


def packed(message: object) -> bytes:
    """A message as bytes, tensors of any dtype included (not every one can be pickled)."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """What `packed` was given."""
    return torch.load(io.BytesIO(data), weights_only=False)


def _started() -> _Process:
    """A process with one end of a pipe, which waits for its role."""
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(place for place in sys.path if place)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "oracles.rank", str(theirs.fileno())],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return _Process(process, connection.Connection(ours.detach()))


def _end(processes: Sequence[_Process]) -> None:
    for one in processes:
        one.process.kill()
    for one in processes:
        one.process.wait()
        one.pipe.close()
