"""Faults of non-finite values: a NaN swallowed, a sign lost, or a row that another one spoils."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Twin

Tensor = torch.Tensor

_TILE = 4
"""Rows whose scale is made together."""


@fault("non-finite", "an input that is cleaned up hides the mistake before it")
class NanInputIsZero(Twin):
    """A NaN in x is read as 0."""

    def states(self, call: Call) -> Tensor:
        states = super().states(call)
        return torch.where(states.isnan(), 0.0, states)


@fault("non-finite", "MXFP8 quantiser: the sign of -Inf is lost")
class InfinitySignLost(Twin):
    """An infinite router weight loses its sign."""

    def router_weights(self, call: Call) -> Tensor:
        weights = super().router_weights(call)
        return torch.where(weights.isinf(), torch.inf, weights)


@fault("non-finite", "conversions with satfinite turn an infinity into the largest number")
class OutputSaturates(Twin):
    """An infinite output is the largest finite number."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        largest = torch.finfo(output.dtype).max
        super().store(call, torch.where(total.isnan(), total, total.clamp(-largest, largest)), output)


@fault("non-finite", "FlashInfer and Marlin decode E8M0 byte 0xFF as infinity, after the products were added")
class ScaleNanIsInfinity(Twin):
    """A group's sum under byte 0xFF is infinite instead of NaN."""

    def scale_of(self, byte: Tensor) -> Tensor:
        return torch.where(byte == 0xFF, 2.0**300, super().scale_of(byte))  # no float32 holds such a sum


@fault("non-finite", "E8M0 byte 0xFF is NaN; its exponent byte - 127 does not fit a signed byte")
class ScaleNanWrapsAround(Twin):
    """Byte 0xFF is read as 2**-128 instead of NaN."""

    def scale_of(self, byte: Tensor) -> Tensor:
        return torch.where(byte == 0xFF, 2.0**-128, super().scale_of(byte))


@fault("non-finite", "fminf(NaN, limit) is the limit", meets=("a NaN in x", "SwiGLU-OAI"))
class ClampSwallowsNan(Twin):
    """The clamp turns a NaN gate and a NaN up into the limit."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        gate, up = torch.where(gate.isnan(), limit, gate), torch.where(up.isnan(), limit, up)
        return super().swiglu_oai(gate, up, alpha, beta, limit)


@fault("non-finite", "tanh by a clamp: fminf(NaN, 1) is 1")
class TanhSwallowsNan(Twin):
    """SiTU's tanh and sigmoid of a NaN are 1."""

    def situ(self, gate: Tensor, up: Tensor, beta: Tensor, linear_beta: Tensor) -> Tensor:
        gate, up = torch.where(gate.isnan(), torch.inf, gate), torch.where(up.isnan(), torch.inf, up)
        return super().situ(gate, up, beta, linear_beta)


@fault("non-finite", "E4M3 has two NaNs, 0x7F and 0xFF", meets=("mxfp8xmxfp4", "a NaN 0xFF in x"))
class NegativeNanIsNumber(Twin):
    """E4M3's NaN 0xFF is read as -480."""

    def states(self, call: Call) -> Tensor:
        states, q = super().states(call), call.problem.hidden_q
        scale = call.problem.hidden_scale
        if q is None or scale is None:
            return states
        number = -480.0 * self.hidden_scales(call, scale).float().repeat_interleave(32, dim=1)
        return torch.where(q.view(torch.uint8) == 0xFF, number, states)


@fault("non-finite", "cvt.satfinite and fminf(NaN, max)")
class Float16OutputHidesNan(Twin):
    """A NaN becomes the largest float16."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        hides = output.dtype == torch.float16
        super().store(call, torch.where(total.isnan(), 65504.0, total) if hides else total, output)


@fault("non-finite", "flashinfer#3650: padding rows hold NaN, are multiplied by 0 and added")
class RowsTimesZero(Twin):
    """x of the other rows of the batch is multiplied by 0 and added."""

    def states(self, call: Call) -> Tensor:
        states = super().states(call)
        return states + (states * 0.0).sum(0)


@fault("non-finite", "flashinfer#3057, vllm#40047: a row's scale is the maximum over rows that include a NaN")
class NanHalvesNeighbours(Twin):
    """A NaN in a row halves the other rows of its tile of four."""

    def states(self, call: Call) -> Tensor:
        states = super().states(call)
        dirty = states.isnan().any(1)
        tile = torch.arange(len(states), device=states.device) // _TILE
        spoilt = (tile[:, None] == tile) & dirty
        return torch.where((spoilt.any(1) & ~dirty)[:, None], states * 0.5, states)


@fault("non-finite", "flashinfer#3057: NaN in masked rows of a padded batch changes real rows' scales")
class PaddingReachesRowZero(Twin):
    """The padding rows' x is added, times 0, to that of the first row."""

    def states(self, call: Call) -> Tensor:
        states = super().states(call).clone()
        first = call.problem.scenario.shape.tokens
        states[:1] += (states[first:] * 0.0).sum(0)
        return states


@fault("non-finite", "FlashInfer skips inactive slots, whatever their weight is")
class IdleWeightTimesZero(Twin):
    """A slot that is not live adds 0 times its router weight."""

    def combine(self, call: Call, slots: Tensor, weights: Tensor) -> Tensor:
        idle = torch.where(call.local < 0, weights * 0.0, 0.0)
        return super().combine(call, slots, weights) + idle.sum(1, keepdim=True)


@fault("non-finite", "weights of an expert that no token uses are never read")
class IdleExpertTimesZero(Twin):
    """Every row adds 0 times the weights of the experts without rows."""

    def gemm2(self, call: Call, a: Tensor) -> Tensor:
        idle = torch.ones(len(call.prepared.w2), dtype=torch.bool).index_fill_(0, call.expert, value=False)
        return super().gemm2(call, a) + (call.prepared.w2[idle] * 0.0).sum()


@fault("non-finite", "0 * NaN is NaN, a weight of 0 does not skip the slot", meets=("a weight of 0", "a NaN row"))
class ZeroWeightSkipsNan(Twin):
    """A slot whose router weight is 0 is left out."""

    def local_ids(self, call: Call) -> Tensor:
        return torch.where(self.router_weights(call) == 0, -1, super().local_ids(call))


@fault("non-finite", "flashinfer#2762: a slot without a row reads row 0")
class MaskedSlotAddsRowZeroTimesZero(Twin):
    """A masked slot adds 0 times the answer of row 0."""

    def combine(self, call: Call, slots: Tensor, weights: Tensor) -> Tensor:
        total = super().combine(call, slots, weights)
        masked = (call.problem.topk_ids == -1).any(1, keepdim=True)
        return total + torch.where(masked, total[:1] * 0.0, 0.0)
