"""What cannot be measured here is told in a line: no figures of nothing, and no wait without end."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import measuring
import scaling

ABSENT = f"{Path(__file__).with_name('candidates.py')}:Absent"
TOLD = "not installed: pip install kernels"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("speed", "--candidate", ABSENT), TOLD),
        (("speed", "--candidate", "nosuch"), "oracle 'nosuch' is not known"),
        (("scaling", "--candidate", ABSENT), TOLD),
        (("whole", "--candidate", ABSENT), TOLD),
        (("whole", "--candidate", "nosuch"), "oracle 'nosuch' is not known"),
        (("size", "--candidate", ABSENT), TOLD),
        (("peers", "speed", "--candidate", ABSENT), TOLD),
        (("sharpness", "--oracle", ABSENT), TOLD),
    ],
    ids=" ".join,
)
def test_a_candidate_that_cannot_run_is_not_measured(command, told, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(command))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # of this process
    with pytest.raises(SystemExit, match=f"--candidate .*: {told}"):
        importlib.import_module(command[0]).main()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("speed", "--examples", "0"), "--examples 0: must be at least 1"),
        (("scaling", "--drivers", "0"), "--drivers 0: must be at least 1"),
        (("scaling", "--cores", "100000"), "--cores 100000: must be from 1 to "),
        (("reuse", "--fault", "nosuch"), "invalid choice: 'nosuch'"),
        (("suspects", "--only", "nosuch"), "invalid choice: 'nosuch'"),
        (
            ("crashes", "--candidate", "nosuch"),
            "--candidate nosuch: must be one of grouped-mm, cutlass, or of its builds",
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_an_option_that_makes_no_sense_is_named(command, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", list(command))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(command[0]).main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_driver_that_cannot_start_is_not_waited_for():
    plan = scaling.Plan(
        candidate=ABSENT, workers=1, shards=1, examples=1, profile="quick", seed=0, cores=None, per_device=1
    )
    with pytest.raises(SystemExit, match="a process ended before it had done its part"):
        scaling.measure(plan, 2)


def _last(number, begin):
    """More than a pipe holds; of three, the last one dies before it is where the others wait for it."""
    if begin.parties == 3 and number == 2:
        os._exit(3)
    begin.wait()
    return number, "x" * (1 << 20)


def test_nor_is_one_that_dies():
    assert [number for number, _ in measuring.side_by_side(_last, 2)] == [0, 1]
    with pytest.raises(SystemExit, match="a process ended before it had done its part"):
        measuring.side_by_side(_last, 3)


def test_a_driver_shares_no_core_with_another(monkeypatch):
    """Of 4 cores with two threads each, half of the list is two cores."""

    def siblings(path):
        core = int(path.parts[5].removeprefix("cpu")) % 4
        return f"{core},{core + 4}\n"

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(Path, "read_text", siblings)
    assert scaling.by_core() == [0, 4, 1, 5, 2, 6, 3, 7]
