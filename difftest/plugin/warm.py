"""The executors of a pytest process: workers stay warm from one test to the next."""

from __future__ import annotations

import pytest

from difftest.campaign import executors_for
from difftest.isolation.executors import Executors
from difftest.plugin.session import session_of

_KEY = pytest.StashKey[Executors]()


def executors_of(item: pytest.Item) -> Executors:
    """Those of this process, made when they are first needed and closed with the run."""
    config = item.config
    if _KEY not in config.stash:
        session = session_of(config)
        assert session is not None  # nothing of difftest runs without one
        executors = config.stash[_KEY] = executors_for(session.options, lost=session.claims / "devices")
        config.add_cleanup(executors.close)
    return config.stash[_KEY]
