"""Mistakes in the sum over ranks: `oracles.faults.collective:partial_sum_missing` is a candidate like any other."""

from __future__ import annotations

import torch
from torch import distributed

from oracles.expert_parallel import ExpertParallel


def _without_the_last(output: torch.Tensor) -> None:
    if distributed.get_rank() == distributed.get_world_size() - 1:
        output.zero_()
    distributed.all_reduce(output)


def _kept_by_the_last(output: torch.Tensor) -> None:
    total = output.clone()
    distributed.all_reduce(total)
    if distributed.get_rank() != distributed.get_world_size() - 1:
        output.copy_(total)


def partial_sum_missing() -> ExpertParallel:
    """The last rank adds zeros in the place of its own sum."""
    return ExpertParallel("grouped-mm", 2, reduce=_without_the_last)


def sum_not_received() -> ExpertParallel:
    """The last rank goes on with its own sum."""
    return ExpertParallel("grouped-mm", 2, reduce=_kept_by_the_last)
