"""A rank that dies, hangs or loses who asks it: a typed outcome, no wait without end, and no process that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dying
import pytest

from difftest.engine import check
from difftest.isolation.executors import Executors, Isolation
from difftest.judging.outcome import Verdict
from oracles.expert_parallel import ExpertParallel
from strategies.scenario import Scenario, Shape

DYING = f"{dying.FILE}:Dying"


def of(death=None):
    tokens = 1 if death is None else dying.FIRST + dying.DEATHS.index(death)
    return Scenario(shape=Shape(tokens=tokens, experts=2))


def gone(pid: int) -> bool:
    """Whether the process ends within a time in which it surely has heard that it should."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.usefixtures("warm")
def test_a_rank_that_dies_is_a_crash_and_the_next_case_has_new_ones():
    """In a worker, whose processes are not allowed children of multiprocessing."""
    with Executors(isolation=Isolation(all=True, timeout=100, workers=1)) as executors:
        executor = executors.of(f"ep2:{DYING}", "reference")
        outcomes = [executor.submit(of(death), ()).result() for death in (None, dying.killed, None)]
    agrees, crash, again = outcomes
    assert (agrees.verdict, again.verdict) == (Verdict.AGREES, Verdict.AGREES)
    assert (crash.verdict, crash.check, crash.kind) == (Verdict.CRASHED, "process", "SIGKILL")
    assert crash.detail in {f"rank {rank} of 2: its process ended: SIGKILL" for rank in (0, 1)}


def test_a_rank_that_does_not_answer_hangs_and_is_ended():
    oracle = ExpertParallel(DYING, 2, seconds=3)
    outcome = check(of(dying.sleeps), oracle, checks=())
    assert (outcome.verdict, outcome.check, outcome.kind) == (Verdict.HUNG, "process", "timeout")
    assert outcome.detail.endswith("of 2: no answer within 3 s")
    assert oracle._ranks is not None
    assert all(gone(one.process.pid) for one in oracle._ranks._processes)


_ASKS = f"""
from oracles.expert_parallel import ExpertParallel
from oracles.problem import build
from strategies.scenario import Scenario
oracle = ExpertParallel({DYING!r}, 2)
prepared = oracle.prepare(build(Scenario.from_json({of(dying.spins).to_json()!r})))
print(*(one.process.pid for one in prepared.ranks._processes), flush=True)
oracle(prepared)
"""


def test_ranks_end_with_who_asks_them_whatever_they_are_doing():
    with subprocess.Popen([sys.executable, "-c", _ASKS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ranks = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(0.5)  # until they spin
        os.kill(process.pid, signal.SIGKILL)
    assert len(ranks) == 2
    assert all(gone(pid) for pid in ranks)
