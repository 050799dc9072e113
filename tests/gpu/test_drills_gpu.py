"""What a kernel can do to its process and to its device: a typed outcome each, and no other case is lost."""

from __future__ import annotations

import subprocess
import sys

import breaking
import pytest
import torch

from difftest.isolation.executors import Executors, Isolation
from difftest.judging.outcome import Verdict
from strategies.scenario import Scenario, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TIMEOUT = 15.0


def of(tokens: int) -> Scenario:
    return Scenario(shape=Shape(tokens=tokens))


def spec(name: str) -> str:
    return f"{breaking.FILE}:{name}"


EXPECTED = {
    breaking.killed: (Verdict.CRASHED, "SIGKILL"),
    breaking.device_assert: (Verdict.CRASHED, "device assert"),
    breaking.illegal_address: (Verdict.CRASHED, "illegal address"),
    breaking.spins: (Verdict.HUNG, "timeout"),
    breaking.out_of_memory: (Verdict.REJECTED, "out of memory"),
}


def test_whatever_breaks_is_an_outcome_and_the_others_do_not_notice():
    """All cases are handed over at once, so that the others wait in the process that breaks."""
    with Executors(isolation=Isolation(timeout=TIMEOUT)) as executors:
        executor = executors.of(spec("Breaking"), "reference")
        assert executor.isolated
        usual = executor.submit(of(1), ()).result()
        broken = [of(breaking.FIRST + number) for number in range(len(breaking.ENDS))]
        asked = [scenario for one in broken for scenario in (one, of(1))]
        outcomes = [pending.result() for pending in [executor.submit(scenario, ()) for scenario in asked]]
    assert outcomes[1::2] == [usual] * len(broken)
    assert usual.verdict is not Verdict.REJECTED
    got = {end: (outcome.verdict, outcome.kind) for end, outcome in zip(breaking.ENDS, outcomes[::2], strict=True)}
    assert got == EXPECTED


def test_a_card_is_shared_with_a_cap_of_memory_each():
    """0.6 of the device is there for one process alone, and is not for one of two."""
    for workers, verdict in ((1, None), (2, Verdict.REJECTED)):
        with Executors(isolation=Isolation(workers=workers, timeout=120)) as executors:
            executor = executors.of(spec("Hungry"), "reference")
            usual, hungry = (executor.submit(of(tokens), ()).result() for tokens in (1, 4))
        assert hungry.verdict is (verdict or usual.verdict)
        assert not verdict or hungry.kind == "out of memory"


PROGRAM = """
import sys
import torch
from difftest.isolation.executors import Executors
from strategies.scenario import Scenario

with Executors() as executors:
    executor = executors.of(sys.argv[1], "reference")
    assert executor.introduction.fingerprint.arch.startswith("sm")
    executor.submit(Scenario(), ()).result()
assert not torch.cuda.is_initialized()
"""


def test_who_hands_cases_over_does_not_touch_the_device():
    subprocess.run([sys.executable, "-c", PROGRAM, spec("Breaking")], check=True)
