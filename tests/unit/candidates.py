"""Candidates for the tests of replay and campaign: grouped-mm with a mistake each. Named `candidates.py:Class`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from oracles.grouped_mm import GroupedMM

FILE = Path(__file__)


class Right(GroupedMM):
    """Has no mistake."""


class SlotDropped(GroupedMM):
    """Drops slot 1 when M > 4 and ep_rank > 0."""

    def prepare(self, problem):
        if problem.tokens > 4 and problem.ep_rank > 0:
            ids = problem.topk_ids.clone()
            ids[:, 1:2] = -1
            problem = replace(problem, topk_ids=ids)
        return super().prepare(problem)


class Rejects(GroupedMM):
    """Raises when H > 64."""

    def __call__(self, prepared):
        if prepared.problem.hidden > 64:
            raise ValueError("no kernel for this width")
        return super().__call__(prepared)


class Narrow(GroupedMM):
    """Promises little."""

    def unsupported(self, scenario):
        return "more than one row" if scenario.shape.tokens > 1 else None


class Plain(GroupedMM):
    """Computes SwiGLU alone."""

    capability = replace(GroupedMM.capability, activations=frozenset({"swiglu"}))


class Absent(GroupedMM):
    """Is not installed here."""

    def missing(self):
        return "not installed: pip install kernels"


class Racing(GroupedMM):
    """Every second answer to one question is another one."""

    prepared, calls = None, 0

    def __call__(self, prepared):
        self.calls = self.calls + 1 if prepared is self.prepared else 0
        self.prepared = prepared
        output = super().__call__(prepared)
        return output + 1 if self.calls % 2 else output


class Interrupted(Rejects):
    """The user presses Ctrl-C in the fortieth question."""

    prepared = 0

    def prepare(self, problem):
        self.prepared += 1
        if self.prepared == 40:
            raise KeyboardInterrupt
        return super().prepare(problem)


class Crashes(GroupedMM):
    """Takes its process with it when M > 8."""

    def __call__(self, prepared):
        if prepared.problem.tokens > 8:
            os._exit(3)
        return super().__call__(prepared)
