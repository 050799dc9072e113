"""Candidates for the drills: grouped-mm that does something terrible, by the number of rows in the batch."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch

from oracles.grouped_mm import GroupedMM

FILE = Path(__file__)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def exits():
    os._exit(3)


def exits_well():
    os._exit(0)


def segfaults():
    ctypes.string_at(0)


def sleeps():
    time.sleep(3600)


def spins():
    """Does not even listen to the request to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def sys_exits():
    sys.exit("no kernel")


def raises():
    raise ValueError("no kernel")


def devours():
    """Asks for more memory than there is."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
    torch.ones(1 << 40, dtype=torch.uint8)


DEATHS = (killed, os.abort, exits, exits_well, segfaults, sleeps, spins, sys_exits, raises, devours)
FIRST = 4
"""Rows of the batch that the first death is for."""


class Dying(GroupedMM):
    """Dies in its own way of each number of rows from `FIRST` on."""

    def __call__(self, prepared):
        number = prepared.problem.tokens - FIRST
        if 0 <= number < len(DEATHS):
            DEATHS[number]()
        return super().__call__(prepared)


class Remembers(GroupedMM):
    """Is wrong for a batch of five rows once it has answered one of three rows and then one of seven."""

    seen = 0

    def __call__(self, prepared):
        tokens = prepared.problem.tokens
        if self.seen < 2 and tokens == (3, 7)[self.seen]:
            self.seen += 1
        output = super().__call__(prepared)
        return output + 1 if tokens == 5 and self.seen == 2 else output


class Once(GroupedMM):
    """Dies in the first process that asks about five rows, and in no other."""

    def __call__(self, prepared):
        mark = Path(os.environ["DIFFTEST_DRILL"])
        if prepared.problem.tokens == 5 and not mark.exists():
            mark.touch()
            os._exit(9)
        return super().__call__(prepared)


class First(GroupedMM):
    """Dies of the first case of all, and of no other."""

    def __call__(self, prepared):
        mark = Path(os.environ["DIFFTEST_DRILL"])
        if not mark.exists():
            mark.touch()
            killed()
        return super().__call__(prepared)


class Orphan(GroupedMM):
    """Kills the process that its cases come from, once, when that has had the time to hand over all that it wants."""

    calls = 0

    def __call__(self, prepared):
        self.calls += 1
        mark = Path(os.environ["DIFFTEST_DRILL"])
        if self.calls == 3 and not mark.exists():
            time.sleep(3)
            mark.touch()
            os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
        return super().__call__(prepared)


class DiesAtStart(GroupedMM):
    def __init__(self):
        os._exit(4)


class FailsAtStart(GroupedMM):
    def __init__(self):
        raise OSError("no device\nat all")


class DiesAtSecondStart(GroupedMM):
    """Starts once, dies of the first case, and then does not start any more."""

    def __init__(self):
        mark = Path(os.environ["DIFFTEST_DRILL"])
        if mark.exists():
            os._exit(4)
        mark.touch()

    def __call__(self, _prepared):
        os._exit(5)


class Killing(GroupedMM):
    """Is killed for every batch of more than eight rows."""

    def __call__(self, prepared):
        if prepared.problem.tokens > 8:
            killed()
        return super().__call__(prepared)


class SlowToReturn(GroupedMM):
    """Ends its process for a batch of five rows. The next takes long to start, and notes when it has."""

    def __init__(self):
        mark = Path(os.environ["DIFFTEST_DRILL"])
        _note("starts")
        if mark.exists():
            time.sleep(15)
            _note("is back")

    def __call__(self, prepared):
        if prepared.problem.tokens == 5:
            Path(os.environ["DIFFTEST_DRILL"]).touch()
            os._exit(6)
        _note(f"answers {prepared.problem.tokens}")
        return super().__call__(prepared)


class Counts(GroupedMM):
    """Notes each process that starts, and ends it for a batch of five rows."""

    def __init__(self):
        _note("starts")

    def __call__(self, prepared):
        if prepared.problem.tokens == 5:
            os._exit(6)
        return super().__call__(prepared)


class Signs(GroupedMM):
    """Notes the process of each case, and has no memory left for a batch of five rows."""

    def __call__(self, prepared):
        _note(f"{prepared.problem.tokens} {os.getpid()}")
        if prepared.problem.tokens == 5:
            raise torch.OutOfMemoryError("no memory left")
        return super().__call__(prepared)


def _note(line):
    with Path(os.environ["DIFFTEST_DRILL"] + ".notes").open("a") as file:
        file.write(line + "\n")
