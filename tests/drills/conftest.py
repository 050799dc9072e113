from __future__ import annotations

from multiprocessing import forkserver, popen_forkserver, spawn
from unittest import mock

import pytest

from difftest.isolation.spawning import Process


@pytest.fixture
def warm(monkeypatch):
    """Processes of a pool are forked from one that has imported what they all import, which is most of what a start
    costs. How they end, and what becomes of their cases, is the same; what starts them in an environment is not.

    One such server for each test: its processes see the environment variables of this one as they are at the first.
    """
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["difftest.isolation.inside", "difftest.judging.trial", "oracles.grouped_mm"])

    def start(process):
        prepared = spawn.get_preparation_data

        def preparation(name):  # nor does a spawned process import the main module
            return {key: value for key, value in prepared(name).items() if not key.startswith("init_main_from")}

        with (
            mock.patch.object(spawn, "get_preparation_data", preparation),
            mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process),
        ):
            return popen_forkserver.Popen(process)

    monkeypatch.setattr(Process, "_Popen", staticmethod(start))
    yield
    server._stop()
