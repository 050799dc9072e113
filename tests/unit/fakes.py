"""Oracles for the tests of the engine: grouped-mm, right or with one mistake."""

from __future__ import annotations

from collections.abc import Callable

import torch

from oracles.grouped_mm import GroupedMM, Prepared
from oracles.problem import Problem

Change = Callable[[torch.Tensor, Problem], torch.Tensor]


class Fake(GroupedMM):
    """grouped-mm whose answer goes through `change(output, problem)`. calls: how often it was called."""

    name = "fake"

    def __init__(self, change: Change | None = None) -> None:
        self._change = change
        self.calls = 0

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        self.calls += 1
        output = super().__call__(prepared)
        return output if self._change is None else self._change(output, prepared.problem)
