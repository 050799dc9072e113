"""`difftest run -n N`: the same end as in one process."""

from __future__ import annotations

import os
import re

import pytest
import torch

from difftest.isolation.executors import Isolation
from difftest.options import Options
from difftest.scale import processes


def end(out: str) -> list[str]:
    """From the first finding on, without what takes another way: runs of the shrinking, seconds."""
    lines = out[out.index("FINDING 1") :].splitlines()
    return [re.sub(r"; shrunk in .*| in [\d.]+ s, .*", "", line) for line in lines if "case" not in line]


@pytest.mark.usefixtures("warm")
def test_two_processes_say_what_one_says(run):
    alone = run("Off", "--cases", "alone", examples=24)
    shared = run("Off", "--cases", "shared", "-n", "2", examples=24)
    assert (alone.code, shared.code) == (1, 1)
    assert end(shared.out) == end(alone.out)
    assert shared.out.count("found: ") == shared.out.count("saved: ") == shared.out.count("shrunk: ") == 1


@pytest.mark.usefixtures("warm")
def test_known_cases_are_replayed_once_and_known_to_every_process(run):
    run("Off", examples=4)
    again = run("Off", "-n", "2", examples=16)
    assert again.code == 0
    assert "cases: 1 still diverges\n" in again.out
    (diverged,), (known,) = (
        re.findall(told, again.out) for told in (r"diverges (\d+) ", r"known: .*: (\d+) scenarios")
    )
    assert diverged == known


@pytest.mark.parametrize(
    ("cores", "devices", "useful"), [(6, 0, 6), (4, 1, 1), (16, 1, 2), (24, 2, 3), (32, 2, 4), (8, 8, 8), (128, 8, 16)]
)
def test_auto_is_as_many_as_keep_the_devices_busy(cores, devices, useful, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert processes.most_useful(Options(candidates=("cutlass",), examples=1, seed=1)) == useful


@pytest.mark.parametrize(
    ("cores", "devices", "drivers", "examples", "workers"),
    [
        (16, 1, 1, 3000, 15),
        (16, 1, 2, 3000, 7),
        (32, 2, 4, 3000, 7),
        (2, 0, 1, 3000, 1),
        (2, 0, 4, 3000, 1),
        (16, 1, 1, 40, 5),
        (16, 1, 2, 40, 2),
        (16, 1, 1, 4, 1),
    ],
)
def test_workers_are_as_many_as_there_are_cores_and_cases_for(cores, devices, drivers, examples, workers, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    options = Options(candidates=("cutlass",), examples=examples, seed=1)
    assert Isolation.of(options, drivers).workers == workers


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("-n", "0"), id="none"),
        pytest.param(("-n", "many"), id="no-number"),
        pytest.param(("-n", "2", "--shard", "1/2"), id="a-part"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, run, snapshot):
    result = run("Right", *args)
    assert str(result) == snapshot
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
