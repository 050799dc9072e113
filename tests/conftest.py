"""One thread a process: the tests run side by side, and busy threads of one process slow the others down."""

import pytest
import torch
import warm as warm_start

from difftest.explain.explainer import unasked
from difftest.judging.trial import InProcess

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def unexplained():
    """What explains a finding is not asked for, which takes longer than to find and to shrink it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "explain", lambda _executor, smallest, _worst: unasked(smallest))
        yield


@pytest.fixture(scope="session")
def warm_server():
    with warm_start.server() as server:
        yield server


@pytest.fixture
def warm(warm_server):
    with warm_start.processes(warm_server):
        yield
