"""A multiprocessing context that starts its processes in an `Environment`. No torch.

A pool takes any context. Those of this interpreter are forked from a server that has imported what they all import,
which is most of what a start costs; it has touched no device. Another interpreter's are spawned.

`multiprocessing` keeps the server, the interpreter to start and what a child is prepared with in variables of its
modules; here these belong to the process.
"""

from __future__ import annotations

import functools
import multiprocessing.context
import os
import sys
import threading
from multiprocessing import forkserver, popen_forkserver, popen_spawn_posix, spawn
from typing import Any
from unittest import mock

from difftest.isolation.environment import Environment

CLEAN_EXIT = 256
"""Stands for exit status 0, which says to a pool that its process meant to end."""

IMPORTED = ["difftest.isolation.inside", "difftest.judging.trial"]

_STARTING = threading.Lock()


@functools.cache
def _server() -> forkserver.ForkServer:
    """Of this process. It starts with the first that is forked, and ends when all that hold on to it have."""
    made = forkserver.ForkServer()
    made.set_forkserver_preload(IMPORTED)
    return made


class Process(multiprocessing.context.SpawnProcess):
    """A process in an environment. The parent's main module is not imported in it."""

    def __init__(self, environment: Environment, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._environment = environment
        self._variables = dict(os.environ)

    @property
    def exitcode(self) -> int | None:
        """As in the base class, but that an oracle that exits with 0 has not done what it was asked either."""
        code = super().exitcode
        return CLEAN_EXIT if code == 0 else code

    def run(self) -> None:
        """As in the base class. The server's environment variables are those of the time when it was started."""
        os.environ.clear()
        os.environ.update(self._variables)
        super().run()

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802  # the hook's name
        environment = process._environment
        prepared = spawn.get_preparation_data

        def preparation(name: str) -> dict[str, object]:
            data = {key: value for key, value in prepared(name).items() if not key.startswith("init_main_from")}
            return data | {"sys_path": list(environment.path)}

        with _STARTING:
            if environment.python == sys.executable:
                server = _server()
                server.ensure_running()  # with this process's own `sys.path`
                start: Any = popen_forkserver.Popen
                where = mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process)
            else:
                start = popen_spawn_posix.Popen
                where = mock.patch.object(spawn, "_python_exe", os.fsencode(environment.python))
            with where, mock.patch.object(spawn, "get_preparation_data", preparation):
                return start(process)


class Context(multiprocessing.context.SpawnContext):
    """`multiprocessing.get_context("spawn")`, whose processes run in `environment`. kind: of them."""

    def __init__(self, environment: Environment, kind: type[Process] = Process) -> None:
        super().__init__()
        self.Process = functools.partial(kind, environment)  # type: ignore[assignment,misc]
