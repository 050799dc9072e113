"""Candidates for the tests of the command line; copied beside the run, and named `kernels.py:Class`."""

import dataclasses
from pathlib import Path

import torch

from oracles.grouped_mm import GroupedMM
from oracles.numerics import Numerics


class Right(GroupedMM):
    """Has no mistake."""


class Off(GroupedMM):
    """Half as much again. One EP rank alone: the sum over ranks would be a second finding."""

    capability = dataclasses.replace(GroupedMM.capability, expert_parallel=False)

    def __call__(self, prepared):
        return super().__call__(prepared) * 1.5


class Rejects(GroupedMM):
    """Raises on what it promised to compute."""

    def __call__(self, _prepared):
        raise RuntimeError("no kernel image is available")


class Declines(GroupedMM):
    """Promises nothing."""

    def unsupported(self, _scenario):
        return "a bad day"


class Absent(GroupedMM):
    """Is not installed here."""

    def missing(self):
        return "not installed: pip install 'kernels[absent]'"


class DoesNotKnow(GroupedMM):
    """Cannot even say whether it is installed."""

    def missing(self):
        raise OSError("no driver")


class Interrupted(Off):
    """The user presses Ctrl-C while the sixth scenario runs."""

    prepared = 0

    def prepare(self, problem):
        self.prepared += 1
        if self.prepared == 6:
            raise KeyboardInterrupt
        return super().prepare(problem)


class TakesTheFolder(Rejects):
    """Puts a file where the folder of cases was to be made."""

    def __call__(self, prepared):
        Path("cases").write_text("in the way")
        return super().__call__(prepared)


class NeedsArguments(GroupedMM):
    """Cannot be made without arguments."""

    def __init__(self, device):
        self.device = device


class NoOracle:
    """Lacks what an oracle has."""

    name = "no-oracle"


class Loose(GroupedMM):
    """Declares other roundings."""

    numerics = dataclasses.replace(Numerics(), gemm1_output="float32")


class Swapped(Right):
    """Reads the halves of w13 as [up; gate]."""

    capability = dataclasses.replace(GroupedMM.capability, expert_parallel=False, biases=False)

    def prepare(self, problem):
        halves = {name: getattr(problem, name).chunk(2, dim=1) for name in ("w13", "w13_scale")}
        return super().prepare(
            dataclasses.replace(problem, **{name: torch.cat((up, gate), dim=1) for name, (gate, up) in halves.items()})
        )


class Marked(GroupedMM):
    """Doubles the rows of x that hold 77, which no rule draws."""

    def __call__(self, prepared):
        rows = (prepared.problem.hidden_states == 77).any(1)
        output = super().__call__(prepared)
        return torch.where(rows[:, None], output * 2, output)
