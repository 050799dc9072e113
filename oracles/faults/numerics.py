"""Faults of numerics: a sum that is not all of it, or a rounding that the recipe does not have."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import SCALES, Call, Twin
from strategies.scenario import GROUP

Tensor = torch.Tensor


def _summed_in_bfloat16(blocks: Tensor) -> Tensor:
    """float32 [..., N]: the sum of float64 [B, ..., N], rounded to bfloat16 at each addition."""
    total = torch.zeros(blocks.shape[1:], device=blocks.device)
    for block in blocks:
        total = (total.double() + block).to(torch.bfloat16).float()
    return total


@fault("numerics", "vllm#47769: K that is not a multiple of 64")
class OddTailDropped(Twin):
    """Of an odd number of groups of columns the last is left out."""

    def accumulated(self, call: Call, blocks: Tensor) -> Tensor:
        count = len(blocks)
        return super().accumulated(call, blocks[: count - count % 2] if count > 1 else blocks)


@fault("numerics", "flashinfer#3068: wrong for H >= 512, tests had H = 128")
class ColumnsBeyond128Dropped(Twin):
    """Columns from the 129th on are left out of the first GEMM."""

    def gemm1(self, call: Call, x: Tensor) -> Tensor:
        return super().gemm1(call, x.clone().index_fill_(1, torch.arange(128, max(128, x.shape[1])), 0.0))


@fault("numerics", "accumulators are float32 in every contract")
class AccumulatorInBfloat16(Twin):
    """The running sum is rounded to bfloat16 after each group of columns."""

    def summed(self, blocks: Tensor) -> Tensor:
        return _summed_in_bfloat16(blocks)


@fault("numerics", "FlashInfer rounds FC1's result to bfloat16 before the activation")
class FirstResultNotRounded(Twin):
    """The result of the first GEMM enters the activation in float32."""

    def gemm1(self, call: Call, x: Tensor) -> Tensor:
        return self.biased(call, self.dot(call, x, call.prepared.w13), call.problem.w13_bias)


@fault("numerics", "FlashInfer rounds FC1's result to bfloat16, then adds the bias in float32")
class BiasBeforeRounding(Twin):
    """FC1's bias is added before the result is rounded."""

    def gemm1(self, call: Call, x: Tensor) -> Tensor:
        return self.rounded(self.biased(call, self.dot(call, x, call.prepared.w13), call.problem.w13_bias))


@fault("numerics", "FlashInfer rounds the activation's result to bfloat16")
class IntermediateNotRounded(Twin):
    """The activation's result enters the second GEMM in float32."""

    def intermediate(self, call: Call, a: Tensor) -> Tensor:
        return a


@fault("numerics", "one rounding of the activation's result, not two")
class IntermediateRoundedTwice(Twin):
    """The activation's result is rounded to float16 and then to bfloat16."""

    def intermediate(self, call: Call, a: Tensor) -> Tensor:
        return super().intermediate(call, a.to(torch.float16).float())


@fault("numerics", "bfloat16 conversion is to nearest, ties to even (cvt.rn)")
class IntermediateTruncated(Twin):
    """The activation's result is cut to bfloat16."""

    def intermediate(self, call: Call, a: Tensor) -> Tensor:
        return (a.contiguous().view(torch.int32) & -0x10000).view(torch.float32)


@fault("numerics", "bfloat16 conversion is to nearest, ties to even (cvt.rn)")
class TiesAwayFromZero(Twin):
    """The result of a GEMM is rounded with ties away from zero."""

    def rounded(self, value: Tensor) -> Tensor:
        return ((value.contiguous().view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)


@fault("numerics", "Marlin applies the router weight in bfloat16, FlashInfer in float32")
class WeightInBfloat16(Twin):
    """The router weight is rounded to bfloat16."""

    def router_weights(self, call: Call) -> Tensor:
        return self.rounded(super().router_weights(call))


@fault("numerics", "flashinfer#5221: the sum over the slots in bfloat16")
class SlotsSummedInBfloat16(Twin):
    """The sum over the slots is rounded to bfloat16 after each slot."""

    def combine(self, call: Call, slots: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros(slots.shape[0], slots.shape[2], device=slots.device)
        for slot in range(slots.shape[1]):
            live = call.local[:, slot, None] >= 0
            total = self.rounded(total + torch.where(live, slots[:, slot] * weights[:, slot, None], 0.0))
        return total


@fault("numerics", "the output is rounded once, from float32")
class OutputRoundedTwice(Twin):
    """The sum is rounded to bfloat16 before it becomes float16."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        super().store(call, self.rounded(total), output)


@fault("numerics", "E8M0: a scale is 2**(byte - 127) up to byte 254")
class TopScaleByteHalved(Twin):
    """Byte 254 is read as 2**126."""

    def scale_of(self, byte: Tensor) -> Tensor:
        return torch.where(byte == 254, SCALES[253], super().scale_of(byte))


@fault("numerics", "FlashInfer and Marlin decode E8M0 byte 0x00 as 0")
class ScaleByteZeroIsZero(Twin):
    """Byte 0 is read as 0 instead of 2**-127."""

    def scale_of(self, byte: Tensor) -> Tensor:
        return torch.where(byte == 0, 0.0, super().scale_of(byte))


@fault("numerics", "flashinfer#4841: rounding that differs by tactic")
class TacticAccumulatesInBfloat16(Twin):
    """Tactics 9 to 11 round the running sum to bfloat16."""

    def accumulated(self, call: Call, blocks: Tensor) -> Tensor:
        return _summed_in_bfloat16(blocks) if call.tactic in (9, 10, 11) else super().accumulated(call, blocks)


@fault("numerics", "GEMM1 over a single group of columns", meets=("M = 1", "odd K / 32"))
class DecodeDropsOddTail(Twin):
    """For a single row, of an odd number of groups of columns of the first GEMM the last is left out."""

    def gemm1(self, call: Call, x: Tensor) -> Tensor:
        if call.problem.tokens == 1 and x.shape[1] > GROUP and x.shape[1] // GROUP % 2:
            x = torch.cat((x[:, :-GROUP], torch.zeros_like(x[:, -GROUP:])), dim=1)
        return super().gemm1(call, x)


@fault("numerics", "a decode path for a single row is a second implementation", meets=("M = 1", "biases"))
class DecodeDropsBias(Twin):
    """For a single row FC1's bias is left out."""

    def gemm1(self, call: Call, x: Tensor) -> Tensor:
        if call.problem.tokens == 1:
            return self.rounded(self.dot(call, x, call.prepared.w13))
        return super().gemm1(call, x)


@fault("numerics", "a decode path for a single row is a second implementation", meets=("M = 1", "float16 output"))
class DecodeRoundsOutputTwice(Twin):
    """For a single row the sum is rounded to bfloat16 before it becomes float16."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        super().store(call, self.rounded(total) if call.problem.tokens == 1 else total, output)


@fault(
    "numerics", "a decode path for a single row is a second implementation; vllm#47769", meets=("M = 1", "odd I / 32")
)
class DecodeDropsOddTailOfIntermediate(Twin):
    """For a single row, of an odd number of groups of columns of the second GEMM the last is left out."""

    def intermediate(self, call: Call, a: Tensor) -> Tensor:
        a = super().intermediate(call, a)
        if call.problem.tokens == 1 and a.shape[1] > GROUP and a.shape[1] // GROUP % 2:
            a = torch.cat((a[:, :-GROUP], torch.zeros_like(a[:, -GROUP:])), dim=1)
        return a
