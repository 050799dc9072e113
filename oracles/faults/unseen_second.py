"""Fifteen more faults, written without sight of the library (but for its names, to leave out what it has), of the first
unseen ones, and of what is drawn.

What of them is caught measures the tool and not how well it was fitted to them, so none of them may be changed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import pad

from oracles.faults.twin import Call, Twin, in_groups
from oracles.faults.unseen import unseen
from oracles.problem import ActivationParams, Problem
from strategies.scenario import GROUP

USUAL: dict[str, dict[str, float]] = {
    "swiglu": {},
    "swiglu_oai": {"alpha": 1.702, "beta": 1.0, "limit": 7.0},
    "situ": {"beta": 4.0, "linear_beta": 25.0},
}

# --- layout -----------------------------------------------------------------------------------------------------------


@unseen(
    "layout", "the 128x4 scale swizzle of SM100 and SM120, whose K is padded to 128 (FlashInfer block_scale_interleave)"
)
class SwizzleTilesRoundedDown(Twin):
    """The stride between the 128-row tiles of swizzled scales counts the 4-group tiles of K rounded down, so that the
    next row tile overwrites the last groups of the one before."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        experts, rows, groups = scale.shape
        padded = pad(scale, (0, -groups % 4, 0, -rows % 128))
        tiles = padded.view(experts, padded.shape[1] // 128, 128, padded.shape[2] // 4, 4)
        places = [(m, k, m * (groups // 4) + k) for m in range(tiles.shape[1]) for k in range(tiles.shape[3])]
        memory = {}
        for m, k, place in places:
            memory[place] = tiles[:, m, :, k].clone()
        for m, k, place in places:
            tiles[:, m, :, k] = memory[place]
        return padded[:, :rows, :groups]


@unseen("layout", "Marlin: I is padded to 64, each half of w13 for itself (SGLang marlin_utils_fp4)")
class HalvesPaddedTogether(Twin):
    """w13 is padded to 64 columns of the intermediate below both halves instead of below each, so that the up half
    begins 32 rows late."""

    def dequantized(self, problem: Problem, name: str) -> torch.Tensor:
        weight = super().dequantized(problem, name)
        padding = -problem.intermediate % 64
        if name == "w2" or not padding:
            return weight
        gate, up = weight.chunk(2, dim=1)
        return torch.cat((gate, up[:, padding:], torch.zeros_like(up[:, :padding])), dim=1)


# --- activation -------------------------------------------------------------------------------------------------------


@unseen(
    "activation", "none known; FlashInfer's CUTLASS path keeps the intermediate by expert, SGLang's Marlin by token"
)
class ParametersByUnsortedRow(Twin):
    """The activation takes its parameters by the row of topk_ids, as where the intermediate is kept by token, though
    its rows are sorted by expert."""

    def parameter(self, call: Call, vector: torch.Tensor | None) -> torch.Tensor:
        assert vector is not None
        return vector[call.local[call.local >= 0]].unsqueeze(1)


@unseen("activation", "none known")
class FourExpertsPerLoad(Twin):
    """Activation parameters come to shared memory four experts at a time, and the experts behind the last whole four
    keep the usual values that it was filled with."""

    def activate(self, call: Call, params: ActivationParams, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        loaded = {}
        for name, value in USUAL[params.kind].items():
            loaded[name] = getattr(params, name).clone()
            loaded[name][len(loaded[name]) // 4 * 4 :] = value
        return super().activate(call, replace(params, **loaded), gate, up)


# --- routing ----------------------------------------------------------------------------------------------------------


@unseen("routing", "none known")
class CompactedSlotsKeepWeights(Twin):
    """Expert-parallel dispatch sends the rank the slots that it owns side by side, and the router weights as they were:
    the n-th own slot takes the n-th weight of the row."""

    def router_weights(self, call: Call) -> torch.Tensor:
        weights = super().router_weights(call)
        if call.problem.ep_size == 1:
            return weights
        return weights.gather(1, ((call.local >= 0).cumsum(1) - 1).clamp(min=0))


@unseen(
    "routing",
    "moe_align_block_size of SGLang and vLLM: slots of other ranks have blocks of their own",
    meets=("a slot that is masked or another rank's", "few rows for each expert of the rank, and none without"),
)
class FilteredSlotsNotPadded(Twin):
    """The grid has room for every expert's last block of 16 rows, but none for the first bucket's, which takes the
    slots without an expert of the rank: the last block is not computed."""

    def pairs(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        token, slot, expert = super().pairs(call)
        slots, experts, block = call.local.numel(), call.problem.experts_local, 16
        count = torch.bincount(expert + 1, minlength=experts + 1)
        count[0] = slots - len(expert)
        end = (-(-count // block)).cumsum(0)
        row = torch.arange(len(expert), device=expert.device) - torch.searchsorted(expert, expert)
        computed = end[expert] + row // block < (slots + experts * (block - 1)) // block
        return token[computed], slot[computed], expert[computed]


@unseen("routing", "none known", meets=("a stray id whose low 16 bits are those of an expert of the rank",))
class IdsInSixteenBits(Twin):
    """The sort keeps ids in 16 bits, so that one which names no expert, -2**31 say, becomes an expert's."""

    def local_ids(self, call: Call) -> torch.Tensor:
        problem = call.problem
        call.problem = replace(problem, topk_ids=problem.topk_ids.to(torch.int16))
        local = super().local_ids(call)
        call.problem = problem
        return local


# --- numerics ---------------------------------------------------------------------------------------------------------


@unseen("numerics", "none known", meets=("a scale byte of 0, 253 or 254",))
class ExponentAddWraps(Twin):
    """A weight is made in bfloat16 by an integer addition of its scale to its exponent field, which runs over into the
    sign for the largest scales and below zero for the smallest."""

    def dequantized(self, problem: Problem, name: str) -> torch.Tensor:
        values = self.unpacked(name, getattr(problem, name))
        scale = getattr(problem, f"{name}_scale").int().repeat_interleave(GROUP, dim=-1)
        bits = values.to(torch.bfloat16).view(torch.int16).int() + ((scale - 127) << 7)
        weight = bits.to(torch.int16).view(torch.bfloat16).double()
        return torch.where(scale == 255, torch.nan, torch.where(values == 0, values, weight))


@unseen("numerics", "none known; ROCm flushes float16 subnormals where the mode bits of a kernel say so")
class HalfSubnormalsFlushed(Twin):
    """The store of a float16 output flushes subnormals: what is below 2**-14 becomes 0."""

    def store(self, call: Call, total: torch.Tensor, output: torch.Tensor) -> None:
        small = (total.abs() < 2**-14) & (output.dtype == torch.float16)
        super().store(call, total.masked_fill(small, 0.0), output)


# --- non-finite -------------------------------------------------------------------------------------------------------


@unseen("non-finite", "none known", meets=("an infinite slot", "a slot behind it in the same row"))
class CompensatedSumOfInfinities(Twin):
    """The sum over the slots is compensated (Kahan), and an infinite slot makes the compensation, and with the next
    slot the sum, NaN."""

    def combine(self, call: Call, slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(slots.shape[0], slots.shape[2], device=slots.device)
        lost = torch.zeros_like(total)
        for slot in range(slots.shape[1]):
            live = call.local[:, slot, None] >= 0
            term = torch.where(live, slots[:, slot] * weights[:, slot, None], 0.0) - lost
            lost = (total + term - total) - term
            total = total + term
        return total


@unseen(
    "non-finite",
    "none known; kernels for sparse activations skip what is zero",
    meets=("a NaN scale", "a group of 32 zeros in x or in the intermediate"),
)
class ZeroGroupSkipsScale(Twin):
    """A GEMM skips the groups of 32 in which a row is zero, together with a NaN scale of the weight's."""

    def dot(self, call: Call, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        lost = in_groups(weight).isnan().any(-1)
        if not lost.any():
            return super().dot(call, x, weight)
        used = (in_groups(x) != 0).any(-1)
        out = super().dot(call, x, weight.nan_to_num())
        return out.masked_fill((lost[call.expert] & used.unsqueeze(1)).any(-1), torch.nan)


# --- memory -----------------------------------------------------------------------------------------------------------


@unseen(
    "memory", "vllm-project/vllm pull request 29219: in review, the second GEMM's output was the buffer of its input"
)
class GemmBuffersOverlap(Twin):
    """The second GEMM writes its rows of H where it reads its rows of I, 128 rows at a time: with H above I a tile
    overwrites what the next one reads."""

    def gemm2(self, call: Call, a: torch.Tensor) -> torch.Tensor:
        (rows, width), hidden = a.shape, call.problem.hidden
        memory = self.allocate(call.problem, (rows * max(width, hidden),), torch.float32)
        memory[: a.numel()] = a.flatten()
        expert = call.expert
        for start in range(0, rows, 128):
            end = min(start + 128, rows)
            call.expert = expert[start:end]
            tile = super().gemm2(call, memory[start * width : end * width].view(-1, width).clone())
            memory[start * hidden : end * hidden] = tile.flatten()
        call.expert = expert
        return memory[: rows * hidden].view(rows, hidden)


@unseen("memory", "none known")
class TrailingOffsetsUnwritten(Twin):
    """Where an expert's rows begin is written by the row that begins them, so behind the last expert that has rows it
    is what the workspace held, and that expert's end is read there."""

    def pairs(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        token, slot, expert = super().pairs(call)
        if not len(expert) or expert[-1] == call.problem.experts_local - 1:
            return token, slot, expert
        end = self.allocate(call.problem, (1,), torch.int32)
        computed = (expert < expert[-1]) | (torch.arange(len(expert), device=expert.device) < end)
        return token[computed], slot[computed], expert[computed]


# --- execution --------------------------------------------------------------------------------------------------------


@unseen("execution", "none known; stream-K leaves a tile's last range to a fix-up")
class FixUpOfFirstTileOnly(Twin):
    """A tactic that splits K adds the last range to an expert's first tile of rows only."""

    def accumulated(self, call: Call, blocks: torch.Tensor) -> torch.Tensor:
        total = super().accumulated(call, blocks)
        if call.splits > 1 and len(blocks) % call.splits == 0:
            first = blocks[: -(len(blocks) // call.splits), ..., call.tile :, :]
            total[..., call.tile :, :] = self.summed(first)
        return total


@unseen("execution", "none known")
class EmptyExpertKeepsItsCount(Twin):
    """The number of an expert's rows is written only where it has one, so that an expert which an earlier replay had
    used and this one does not takes rows of the experts behind it."""

    def pairs(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        token, slot, expert = super().pairs(call)
        count = torch.bincount(expert, minlength=call.problem.experts_local)
        count = torch.where(count > 0, count, call.prepared.kept.get("count", count))
        call.prepared.kept["count"] = count
        place = torch.arange(len(expert), device=expert.device)
        return token, slot, torch.searchsorted(count.cumsum(0), place, right=True)
