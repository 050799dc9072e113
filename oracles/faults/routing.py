"""Faults of routing and expert parallelism: the wrong expert, the wrong weight, or none."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Twin

Tensor = torch.Tensor


def _repeated(local: Tensor) -> Tensor:
    """bool [M, K]: slots whose expert an earlier slot of the row has."""
    return (local[:, :, None] == local[:, None, :]).tril(-1).any(-1) & (local >= 0)


@fault("routing", "sglang#8630: ids mapped to local ones where the other side expects global ones")
class EpOffsetIgnored(Twin):
    """Global ids are taken for local ones."""

    def local_ids(self, call: Call) -> Tensor:
        ids = call.problem.topk_ids.long()
        return torch.where(ids < call.problem.experts_local, ids, -1)


@fault("routing", "flashinfer#3547: the rank's offset is subtracted twice")
class EpOffsetTwice(Twin):
    """The first expert's id is subtracted twice."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call) - call.problem.first_expert
        return torch.where(local >= 0, local, -1)


@fault("routing", "vllm#48371, sglang#28170: expert_map[-1] is the last entry")
class MaskedSlotWraps(Twin):
    """A masked slot is the rank's last expert."""

    def local_ids(self, call: Call) -> Tensor:
        return torch.where(call.problem.topk_ids == -1, call.problem.experts_local - 1, super().local_ids(call))


@fault("routing", "expert_map of a rank holds the other ranks' experts as -1")
class ForeignExpertContributes(Twin):
    """Another rank's expert is taken modulo the rank's own."""

    def local_ids(self, call: Call) -> Tensor:
        ids = call.problem.topk_ids.long()
        return torch.where(ids < 0, -1, ids % call.problem.experts_local)


@fault("routing", "vllm#50845: ids are checked for their sign, not for an upper bound")
class NextRanksExpertIsLast(Twin):
    """The first expert of the next rank is taken for the last one of this rank."""

    def local_ids(self, call: Call) -> Tensor:
        problem = call.problem
        end = problem.first_expert + problem.experts_local
        next_one = (problem.topk_ids == end) & (end < problem.num_experts)
        return torch.where(next_one, problem.experts_local - 1, super().local_ids(call))


@fault("routing", "vllm#50845: stale ids in topk_ids are checked for their sign alone")
class StrayIdIsClamped(Twin):
    """An id that no expert has is the last one."""

    def local_ids(self, call: Call) -> Tensor:
        last = call.problem.num_experts - 1 - call.problem.first_expert
        stray = (call.problem.topk_ids >= call.problem.num_experts) & (last < call.problem.experts_local)
        return torch.where(stray, last, super().local_ids(call))


@fault("routing", "a rank holds the experts [r * E / ep_size, (r + 1) * E / ep_size), its end excluded")
class LastExpertMissing(Twin):
    """The last of a rank's experts contributes nothing."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call)
        return torch.where(local == call.problem.experts_local - 1, -1, local)


@fault("routing", "flashinfer#3011: the sort keeps the first match of an expert in a token")
class DuplicateLost(Twin):
    """The second slot of one expert in a row is dropped."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call)
        return torch.where(_repeated(local), -1, local)


@fault("routing", "flashinfer#3011: the stale map entry of a repeated expert is 0")
class DuplicateReadsRowZero(Twin):
    """The second slot of one expert in a row takes the first row of the permuted buffer."""

    def scatter(self, call: Call, y: Tensor) -> Tensor:
        slots = super().scatter(call, y)
        slots[_repeated(call.local)] = y[:1]
        return slots


@fault("routing", "FlashInfer's one-block sort takes K in {1, 2, 4, 6, 8}", meets=("one expert twice", "K = 16"))
class DuplicateLostByThreeKernelSort(Twin):
    """With 16 slots the second one of an expert is dropped."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call)
        return torch.where(_repeated(local), -1, local) if local.shape[1] == 16 else local


@fault("routing", "Marlin's single-token align assumes distinct ids", meets=("M = 1", "one expert twice"))
class DuplicateLostInDecode(Twin):
    """For a single row the second slot of an expert is dropped."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call)
        return torch.where(_repeated(local), -1, local) if len(local) == 1 else local


@fault("routing", "Marlin's single-token align has no bucket for -1", meets=("M = 1", "a masked slot"))
class MaskedSlotCountsInDecode(Twin):
    """For a single row a masked slot is the rank's first expert."""

    def local_ids(self, call: Call) -> Tensor:
        masked = (call.problem.topk_ids == -1) & (call.problem.tokens == 1)
        return torch.where(masked, 0, super().local_ids(call))


@fault("routing", "Marlin's single-token align: one warp, K <= 32", meets=("M = 1", "K > 4"))
class DecodeHasFourSlots(Twin):
    """For a single row the slots from the fifth on are dropped."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call).clone()
        if len(local) == 1:
            local[:, 4:] = -1
        return local


@fault("routing", "sglang#28170: no expert_map on one path", meets=("M = 1", "the last of several ranks"))
class DecodeIgnoresOffsetOnLastRank(Twin):
    """On the last of several ranks, a single row's ids are taken modulo the rank's experts."""

    def local_ids(self, call: Call) -> Tensor:
        problem = call.problem
        if problem.tokens != 1 or problem.ep_size == 1 or problem.ep_rank != problem.ep_size - 1:
            return super().local_ids(call)
        return torch.where(problem.topk_ids < 0, -1, problem.topk_ids.long() % problem.experts_local)


@fault("routing", "the kernels that group by expert have lists of a fixed length")
class TopKCutAtEight(Twin):
    """Slots from the ninth on are dropped."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call).clone()
        local[:, 8:] = -1
        return local


@fault("routing", "TransformerEngine#2907: -1 ids sort to the head of the row map")
class RowMapShiftedByMasked(Twin):
    """The row map is shifted by the number of masked slots."""

    def gather(self, call: Call, states: Tensor) -> Tensor:
        masked = int((call.problem.topk_ids == -1).sum())
        return states[call.token.roll(masked)]


@fault("routing", "offsets of a grouped GEMM are one for each expert, the idle ones included")
class IdleExpertsSkipped(Twin):
    """The offsets leave out experts without rows: those after one use the weights of an earlier one."""

    def dot(self, call: Call, x: Tensor, weight: Tensor) -> Tensor:
        used = torch.unique(call.expert)
        read = weight.clone()
        read[used] = weight[: len(used)]
        return super().dot(call, x, read)


@fault("routing", "vllm#41935 and its kin: the router weight is applied to the input or to the output, once")
class WeightTwice(Twin):
    """The router weight is applied twice."""

    def router_weights(self, call: Call) -> Tensor:
        weights = super().router_weights(call)
        return weights * weights


@fault("routing", "vllm#48895: rows are multiplied by other rows' router weights")
class WeightOfNextSlot(Twin):
    """A slot takes the router weight of the next one."""

    def router_weights(self, call: Call) -> Tensor:
        return super().router_weights(call).roll(-1, dims=1)


@fault("routing", "vllm#48895: rows are multiplied by other rows' router weights")
class WeightOfNextRowInLastTile(Twin):
    """In a tile that is not full, rows take the router weight of the next row."""

    def router_weights(self, call: Call) -> Tensor:
        weights = super().router_weights(call)
        full = len(weights) // 16 * 16
        return torch.cat((weights[:full], weights[full:].roll(-1, dims=0)))


@fault("routing", "router weights are the model's, on every rank")
class WeightsNormalizedByRank(Twin):
    """Each rank divides a row's weights by the sum over its own experts."""

    def router_weights(self, call: Call) -> Tensor:
        weights = super().router_weights(call)
        mine = torch.where(call.local >= 0, weights, 0.0).sum(1, keepdim=True)
        return torch.where(mine > 0, weights / mine, weights) if call.problem.ep_size > 1 else weights


@fault("routing", "SGLang 0.5.23: neither 4-bit path multiplies by routed_scaling_factor")
class ScalingFactorDropped(Twin):
    """routed_scaling_factor is left out."""

    def router_weights(self, call: Call) -> Tensor:
        return call.problem.topk_weights


@fault("routing", "graph padding: rows at the end of the batch are masked")
class MaskedFirstRowEndsBatch(Twin):
    """A captured graph takes a masked first row for an empty batch."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call)
        empty = call.graph and bool((call.problem.topk_ids[:1] == -1).all())
        return torch.full_like(local, -1) if empty else local


@fault("routing", "FlashInfer adds FC2's bias for each active slot, times its weight")
class BiasOncePerToken(Twin):
    """FC2's bias is added to a slot's result after its weight was applied."""

    def gemm2(self, call: Call, a: Tensor) -> Tensor:
        return self.rounded(self.dot(call, a, call.prepared.w2))

    def combine(self, call: Call, slots: Tensor, weights: Tensor) -> Tensor:
        total, bias = super().combine(call, slots, weights), call.problem.w2_bias
        if bias is None:
            return total
        each = torch.where(call.local[:, :, None] >= 0, bias.float()[call.local.clamp(min=0)], 0.0)
        return total + each.sum(1)


@fault("routing", "FlashInfer adds FC2's bias for active slots alone")
class BiasForMaskedSlots(Twin):
    """A masked slot adds the bias of the rank's first expert."""

    def combine(self, call: Call, slots: Tensor, weights: Tensor) -> Tensor:
        total, bias = super().combine(call, slots, weights), call.problem.w2_bias
        if bias is None:
            return total
        masked = torch.where(call.problem.topk_ids == -1, weights, 0.0).sum(1, keepdim=True)
        return total + masked * bias[0].float()


@fault(
    "routing",
    "a decode path for a single row is a second implementation; SGLang drops the factor",
    meets=("M = 1", "a scaling factor"),
)
class DecodeForgetsScalingFactor(Twin):
    """For a single row routed_scaling_factor is left out."""

    def router_weights(self, call: Call) -> Tensor:
        return call.problem.topk_weights if call.problem.tokens == 1 else super().router_weights(call)
