"""A multiprocessing context that starts its processes in an `Environment`. No torch.

A pool takes any context. `multiprocessing` keeps the interpreter to start in a variable of its module, and hands the
parent's `sys.path` and main module on to the child; here these three belong to the context.
"""

from __future__ import annotations

import functools
import multiprocessing.context
import os
import threading
from multiprocessing import spawn
from typing import Any
from unittest import mock

from difftest.isolation.environment import Environment

CLEAN_EXIT = 256
"""Stands for exit status 0, which says to a pool that its process meant to end."""

_STARTING = threading.Lock()


class Process(multiprocessing.context.SpawnProcess):
    """A spawned process in an environment. The parent's main module is not imported in it."""

    def __init__(self, environment: Environment, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._environment = environment

    @property
    def exitcode(self) -> int | None:
        """As in the base class, but that an oracle that exits with 0 has not done what it was asked either."""
        code = super().exitcode
        return CLEAN_EXIT if code == 0 else code

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802  # the hook's name
        environment = process._environment
        prepared = spawn.get_preparation_data

        def preparation(name: str) -> dict[str, object]:
            data = prepared(name)
            kept = {key: value for key, value in data.items() if not key.startswith("init_main_from")}
            return kept | {"sys_path": list(environment.path)}

        with (
            _STARTING,
            mock.patch.object(spawn, "_python_exe", os.fsencode(environment.python)),
            mock.patch.object(spawn, "get_preparation_data", preparation),
        ):
            return multiprocessing.context.SpawnProcess._Popen(process)


class Context(multiprocessing.context.SpawnContext):
    """`multiprocessing.get_context("spawn")`, whose processes run in `environment`. kind: of them."""

    def __init__(self, environment: Environment, kind: type[Process] = Process) -> None:
        super().__init__()
        self.Process = functools.partial(kind, environment)  # type: ignore[assignment,misc]
