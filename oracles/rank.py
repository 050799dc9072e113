"""One rank of expert parallelism: `python -m oracles.rank FD`, a process that `oracles.ranks` starts and asks."""

from __future__ import annotations

import datetime
import os
import pickle
import select
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # which it exports

from oracles import base
from oracles.problem import Problem
from oracles.ranks import Raised, Role, packed, unpacked

_FRAMES = 20


class Rank:
    """The oracle of this process, and what it has prepared, by number."""

    def __init__(self, role: Role) -> None:
        """Make the oracle, and meet the other ranks."""
        torch.set_num_threads(role.threads)
        torch.set_grad_enabled(False)
        self._role = role
        self._device = torch.device(role.device, role.rank) if role.device == "cuda" else torch.device("cpu")
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._oracle = base.get(role.inner)
        self._held: dict[int, tuple[Problem, Any]] = {}
        self._outputs: dict[int, torch.Tensor] = {}
        distributed.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            store=TCPStore("127.0.0.1", role.port, is_master=False),
            rank=role.rank,
            world_size=role.ranks,
            timeout=datetime.timedelta(seconds=role.seconds),
            device_id=self._device if self._device.type == "cuda" else None,
        )

    def prepare(self, number: int, problem: Problem, forgotten: list[int]) -> None:
        for old in forgotten:
            self._held.pop(old, None)
        problem = problem.to(self._device)
        self._held[number] = problem, self._oracle.prepare(problem)

    def call(self, number: int) -> None:
        """The rank's own partial output."""
        problem, prepared = self._held[number]
        output = self._oracle(prepared)
        expected = (problem.tokens, problem.hidden)
        if tuple(output.shape) != expected or output.dtype != problem.output_dtype:
            got = f"{output.dtype} {list(output.shape)}"
            raise TypeError(f"a rank answered {got}, must be {problem.output_dtype} {list(expected)}")
        self._outputs[number] = output.to(self._device, copy=True).contiguous()
        self.wait()

    def reduce(self, number: int) -> torch.Tensor:
        """The sum of all partial outputs."""
        output = self._outputs.pop(number)
        self._role.reduce(output)
        return output.cpu()

    def wait(self) -> None:
        """Until all that was begun on the device is over. Raises what went wrong there."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def main(pipe: connection.Connection) -> None:
    """Answer until the pipe is closed."""
    rank: Rank | None = None

    def start(role: Role) -> None:
        nonlocal rank
        rank = Rank(role)

    while True:
        try:
            message = unpacked(pipe.recv_bytes())
        except EOFError:
            return
        if isinstance(message, Role):
            reply = caught(start, message)
        else:
            assert rank is not None  # its role comes first
            name, *arguments = message
            reply = caught(getattr(rank, name), *arguments)
            if isinstance(reply, Raised):
                rank.wait()  # ends a process that can no longer use its device
        pipe.send_bytes(packed(reply))


def caught(function: Callable[..., object], *arguments: object) -> object:
    """What the function returns, or `Raised`."""
    try:
        return function(*arguments)
    except BaseException as error:
        told = "".join(traceback.format_exception(error, limit=-_FRAMES))
        return Raised(sendable(error), told)


def sendable(error: BaseException) -> BaseException:
    """`error`, or one line that tells of it where it does not survive the way."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def end_with(pipe: connection.Connection) -> None:
    """End this process as soon as nobody holds the other end of `pipe`, whatever it is doing."""
    hung_up = select.poll()
    hung_up.register(pipe, 0)
    hung_up.poll()
    os._exit(1)


if __name__ == "__main__":
    given = connection.Connection(int(sys.argv[1]))
    threading.Thread(target=end_with, args=(given,), daemon=True).start()
    main(given)
