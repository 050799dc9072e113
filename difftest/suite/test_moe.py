"""Does every candidate agree with the reference? Known cases first, then new scenarios, a shard of them a test.

A shard judges each of its scenarios for all candidates. Shards, not candidates, are the tests: their ids are the same
in every process and on every machine, and they need no torch to be collected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from difftest.options import shards_of
from difftest.plugin.items import replay_case, run_shard
from difftest.plugin.session import session_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    session = session_of(metafunc.config)
    if session is None:
        raise pytest.UsageError("the suite of difftest is run as `pytest --pyargs difftest`, with its plugin loaded")
    known = [pytest.param(partial(replay_case, path=path), id=path.name) for path in session.known]
    shards = range(shards_of(session.options.examples))
    new = [pytest.param(partial(run_shard, shard=shard), id=f"shard-{shard:02}") for shard in shards]
    metafunc.parametrize("run", known + new)


def test_moe(run: Callable[[pytest.Item], None], request: pytest.FixtureRequest) -> None:
    run(request.node)
