"""Processes that start warm. How they end, and what becomes of their cases, is that of others; what starts them in an
environment is not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing import forkserver, popen_forkserver, spawn
from typing import Any
from unittest import mock

from difftest.isolation.spawning import Process

IMPORTED = ["difftest.isolation.inside", "difftest.judging.trial", "oracles.grouped_mm"]


@contextlib.contextmanager
def processes() -> Iterator[None]:
    """Inside, the processes of a pool are forked from one that has imported what they all import, which is most of what
    a start costs. They see the environment variables of this process as they are when the first of them starts."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(IMPORTED)

    def start(process: Any) -> Any:
        prepared = spawn.get_preparation_data

        def preparation(name: str) -> dict[str, object]:  # nor does a spawned process import the main module
            return {key: value for key, value in prepared(name).items() if not key.startswith("init_main_from")}

        with (
            mock.patch.object(spawn, "get_preparation_data", preparation),
            mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process),
        ):
            return popen_forkserver.Popen(process)

    with mock.patch.object(Process, "_Popen", staticmethod(start)):
        yield
    server._stop()  # type: ignore[attr-defined]
