from __future__ import annotations

import pytest
import warm as warm_start


@pytest.fixture
def warm():
    with warm_start.processes():
        yield
