"""Processes that start warm. How they end, and what becomes of their cases, is that of others; what starts them in an
environment is not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, popen_forkserver, spawn
from typing import Any
from unittest import mock

from difftest.isolation.spawning import Process

IMPORTED = ["difftest.isolation.inside", "difftest.judging.trial", "oracles.grouped_mm"]


class _Variables:
    """This process's environment variables, set where they are unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return exec, (f"import os; os.environ.clear(); os.environ.update({dict(os.environ)!r})",)


@contextlib.contextmanager
def server() -> Iterator[forkserver.ForkServer]:
    """Forks processes from one that has imported what they all import, which is most of what a start costs."""
    made = forkserver.ForkServer()
    made.set_forkserver_preload(IMPORTED)
    yield made
    made._stop()


@contextlib.contextmanager
def processes(server: forkserver.ForkServer) -> Iterator[None]:
    """Inside, the processes of a pool are forked by the server."""

    def start(process: Any) -> Any:
        prepared = spawn.get_preparation_data

        def preparation(name: str) -> dict[str, object]:  # nor does a spawned process import the main module
            data = {key: value for key, value in prepared(name).items() if not key.startswith("init_main_from")}
            return {"variables": _Variables(), **data}

        with (
            mock.patch.object(spawn, "get_preparation_data", preparation),
            mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process),
        ):
            return popen_forkserver.Popen(process)

    with mock.patch.object(Process, "_Popen", staticmethod(start)):
        yield
