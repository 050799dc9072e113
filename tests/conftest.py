"""One thread a process: the tests run side by side, and busy threads of one process slow the others down."""

import pytest
import torch
import warm as warm_start

torch.set_num_threads(1)


@pytest.fixture
def warm():
    with warm_start.processes():
        yield
