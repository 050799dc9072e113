"""Faults of routing and expert parallelism: the wrong expert, the wrong weight, or none."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Twin


@fault("routing", "sglang#8630: ids mapped to local ones where the other side expects global ones")
class EpOffsetIgnored(Twin):
    """Global ids are taken for local ones."""

    def local_ids(self, call: Call) -> torch.Tensor:
        ids = call.problem.topk_ids.long()
        return torch.where(ids < call.problem.experts_local, ids, -1)


@fault("routing", "flashinfer#3547: the rank's offset is subtracted twice")
class EpOffsetTwice(Twin):
    """The first expert's id is subtracted twice."""

    def local_ids(self, call: Call) -> torch.Tensor:
        problem = call.problem
        local = problem.topk_ids.long() - 2 * problem.first_expert
        mine = (problem.topk_ids >= 0) & (local >= 0) & (local < problem.experts_local)
        return torch.where(mine, local, -1)


@fault("routing", "vllm#48371, sglang#28170: expert_map[-1] is the last entry")
class MaskedSlotWraps(Twin):
    """A masked slot is the rank's last expert."""

    def local_ids(self, call: Call) -> torch.Tensor:
        return torch.where(call.problem.topk_ids == -1, call.problem.experts_local - 1, super().local_ids(call))


@fault("routing", "flashinfer#3011: the sort keeps the first match of an expert in a token")
class DuplicateLost(Twin):
    """The second slot of one expert in a row is dropped."""

    def local_ids(self, call: Call) -> torch.Tensor:
        local = super().local_ids(call)
        same = (local[:, :, None] == local[:, None, :]).tril(-1).any(-1)
        return torch.where(same, -1, local)
