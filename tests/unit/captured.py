"""grouped-mm behind a capture, as a CUDA graph has it: static buffers that are written between replays. Named
`captured.py:Class`, right or with one mistake each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from oracles.grouped_mm import GroupedMM, Prepared
from oracles.problem import Problem

FILE = Path(__file__)


class Capture:
    """What a graph holds: the weights, and buffers of x, ids and router weights. replays: how often it ran."""

    def __init__(self, prepared: Prepared) -> None:
        problem = prepared.problem
        self.weights = prepared
        self.first = problem
        self.buffers = replace(
            problem,
            hidden_states=problem.hidden_states.clone(),
            topk_ids=problem.topk_ids.clone(),
            topk_weights=problem.topk_weights.clone(),
        )
        self.replays = 0

    def write(self, problem: Problem) -> None:
        for name in ("hidden_states", "topk_ids", "topk_weights"):
            getattr(self.buffers, name).copy_(getattr(problem, name))


class Captured(GroupedMM):
    """Has no mistake."""

    name = "captured"
    capability = replace(GroupedMM.capability, modes=frozenset({"graph"}))
    eager = GroupedMM()

    def prepare(self, problem: Problem) -> Capture:
        return Capture(super().prepare(problem))

    def __call__(self, prepared: Capture) -> torch.Tensor:
        return self.replay(prepared, prepared.first)

    def replay(self, prepared: Capture, problem: Problem) -> torch.Tensor:
        prepared.write(problem)
        prepared.replays += 1
        return self.run(prepared)

    def run(self, prepared: Capture) -> torch.Tensor:
        return super().__call__(replace(prepared.weights, problem=prepared.buffers))


class FrozenRouting(Captured):
    """Every replay routes as the capture did."""

    def run(self, prepared: Capture) -> torch.Tensor:
        prepared.buffers.topk_ids.copy_(prepared.first.topk_ids)
        return super().run(prepared)


class FrozenCounts(Captured):
    """An expert has no more rows in a replay than it had in the capture."""

    def run(self, prepared: Capture) -> torch.Tensor:
        now, then = prepared.buffers.local_ids, prepared.first.local_ids
        for expert in range(prepared.first.experts_local):
            pairs = (now == expert).nonzero()
            for token, slot in pairs[int((then == expert).sum()) :].tolist():
                prepared.buffers.topk_ids[token, slot] = -1
        return super().run(prepared)


class SecondReplay(Captured):
    """The second replay after a call is off by one in its first element."""

    def __call__(self, prepared: Capture) -> torch.Tensor:
        prepared.replays = 0
        return super().__call__(prepared)

    def run(self, prepared: Capture) -> torch.Tensor:
        output = super().run(prepared)
        if prepared.replays == 2:
            output[:1, :1] += 1
        return output


class StaleX(Captured):
    """A replay reads the x of the replay before."""

    def replay(self, prepared: Capture, problem: Problem) -> torch.Tensor:
        before = prepared.buffers.hidden_states.clone()
        prepared.write(problem)
        fresh = prepared.buffers.hidden_states.clone()
        prepared.buffers.hidden_states.copy_(before)
        prepared.replays += 1
        output = self.run(prepared)
        prepared.buffers.hidden_states.copy_(fresh)
        return output


class LeakyPadding(GroupedMM):
    """NaN of a padding row is in the scale of row 0."""

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        output = super().__call__(prepared)
        problem = prepared.problem
        if problem.tokens > 1 and bool(problem.hidden_states[-1].isnan().all()):
            output[0] *= 0.5
        return output
