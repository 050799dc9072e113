"""Faults of weight layout: the right numbers, read in the wrong order."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Twin, in_groups
from oracles.problem import Problem
from strategies.scenario import GROUP


def _column_major(scale: torch.Tensor) -> torch.Tensor:
    """[..., N, G] read as if it were [..., G, N]."""
    return scale.reshape(*scale.shape[:-2], scale.shape[-1], scale.shape[-2]).mT


@fault("layout", "Megatron-LM#6045: FC1 expects [up; gate]")
class GateUpSwapped(Twin):
    """The halves of w13 are read as [up; gate]."""

    def halves(self, call: Call, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = super().halves(call, h)
        return up, gate


@fault("layout", "SGLang's SM120 weight processor takes even rows for gate and odd rows for up, always")
class RowsInterleaved(Twin):
    """Rows of w13 are read as gate and up in turn."""

    def halves(self, call: Call, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return h[:, 0::2], h[:, 1::2]


@fault("layout", "FlashInfer's [up; gate]: a bias has to change its halves with the weights")
class BiasHalvesSwapped(Twin):
    """The halves of w13's bias are read as [up; gate]."""

    def gemm1(self, call: Call, x: torch.Tensor) -> torch.Tensor:
        bias = call.problem.w13_bias
        swapped = None if bias is None else bias.roll(bias.shape[1] // 2, 1)
        return self.biased(call, self.rounded(self.dot(call, x, call.prepared.w13)), swapped)


@fault("layout", "E2M1 packing: the low nibble is the even column")
class NibblesSwapped(Twin):
    """The high nibble is read as the even column."""

    def unpacked(self, name: str, packed: torch.Tensor) -> torch.Tensor:
        return in_groups(super().unpacked(name, packed), 2).flip(-1).flatten(-2)


@fault("layout", "ggml's block_mxfp4: low nibbles hold elements 0 to 15 of 32, high nibbles 16 to 31")
class NibblesByHalfGroup(Twin):
    """The low nibbles of a group are read as its first 16 columns, the high nibbles as its last 16."""

    def unpacked(self, name: str, packed: torch.Tensor) -> torch.Tensor:
        values = in_groups(super().unpacked(name, packed))
        return in_groups(values, 2).mT.flatten(-3)


@fault("layout", "flashinfer#3334, vllm#46585: weights not passed through the kernel's interleave helper")
class W2NotInterleaved(Twin):
    """The two groups of each 64 columns of w2 are read in the other order."""

    def unpacked(self, name: str, packed: torch.Tensor) -> torch.Tensor:
        values = super().unpacked(name, packed)
        whole = values.shape[-1] // (2 * GROUP) * 2 * GROUP
        if name == "w2":
            swapped = in_groups(in_groups(values[..., :whole], 2 * GROUP)).flip(-2).flatten(-3)
            values = torch.cat((swapped, values[..., whole:]), dim=-1)
        return values


@fault("layout", "flashinfer#3334: scales not passed through the kernel's interleave helper")
class W13ScalesColumnMajor(Twin):
    """The scale bytes of w13 are read as groups by rows."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        return _column_major(scale) if name == "w13" else scale


@fault("layout", "flashinfer#3334: scales not passed through the kernel's interleave helper")
class W2ScalesColumnMajor(Twin):
    """The scale bytes of w2 are read as groups by rows."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        return _column_major(scale) if name == "w2" else scale


@fault("layout", "vllm#42089, vllm#42118: activation scales row-major where swizzled ones are expected")
class HiddenScalesColumnMajor(Twin):
    """The scale bytes of an MXFP8 x are read as groups by tokens."""

    def hidden_scales(self, call: Call, scale: torch.Tensor) -> torch.Tensor:
        return super().hidden_scales(call, _column_major(scale))


@fault("layout", "E8M0 scales belong to 32 columns each; an index that is one ahead")
class NextGroupScale(Twin):
    """A group of columns takes the scale of the next one."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        return super().scale_bytes(name, scale).roll(-1, dims=-1)


@fault("layout", "flashinfer#5438: the tail K block uses the next expert's scales")
class NextExpertTailScale(Twin):
    """The last group of columns takes the scales of the next expert."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        return torch.cat((scale[..., :-1], scale.roll(-1, dims=0)[..., -1:]), dim=-1)


@fault("layout", "FlashInfer's MXFP4 scales: an expert's rows are padded to 128")
class ExpertScaleStride(Twin):
    """The scales of an expert are looked for at a stride of its rows, padded to 128, where they are not padded."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        experts, rows, groups = scale.shape
        first = torch.arange(experts, device=scale.device)[:, None] * (-(-rows // 128) * 128)
        place = (first + torch.arange(rows, device=scale.device)) % (experts * rows)
        return scale.reshape(-1, groups)[place]


@fault("layout", "triton#10772: the tail of an odd number of scale groups", meets=("scale byte 0xFF", "odd K / 32"))
class TailScaleTakenForPadding(Twin):
    """A scale 0xFF in the last of an odd number of groups is taken for padding and read as 0."""

    def dequantized(self, problem: Problem, name: str) -> torch.Tensor:
        weight = super().dequantized(problem, name)
        if weight.shape[-1] // GROUP % 2:
            tail = weight[..., -GROUP:]
            tail[tail.isnan()] = 0.0
        return weight


@fault(
    "layout",
    "a decode path for a single row is a second implementation (Marlin's single-token align)",
    meets=("M = 1", "mxfp8xmxfp4"),
)
class DecodeReadsFirstHiddenScale(Twin):
    """For a single row the first scale of an MXFP8 x is that of the whole row."""

    def hidden_scales(self, call: Call, scale: torch.Tensor) -> torch.Tensor:
        one = scale[:, :1].expand_as(scale) if len(scale) == 1 else scale
        return super().hidden_scales(call, one)
