"""grouped-mm: the MoE layer in bfloat16 on `torch.nn.functional.grouped_mm`, on a CPU or a GPU.

Independent of the reference and of `oracles.formats`: it dequantises, permutes and finalizes with its own few lines.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.nn import functional

from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import ActivationParams, Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

# CPU: torch runs one `mm` for each expert. With few rows that is its own dot product (float32, four interleaved lanes,
# subnormals kept), else oneDNN: AMX adds even and odd products of 32 columns apart (two lanes), and like AVX512_BF16 it
# reads a subnormal operand as 0 and flushes a subnormal sum; more threads may split K.
_GEMM = Accumulator(lanes=(1, 2, 4), splits=(1, 2, 4), flush_to_zero=True)

_CHUNK = 1 << 18
"""Packed bytes that are dequantised together: their temporaries take some 8 times this."""


@dataclass(frozen=True)
class Prepared:
    """The problem, and its weights in bfloat16: w13 [E_local, 2I, H], w2 [E_local, H, I]."""

    problem: Problem
    w13: torch.Tensor
    w2: torch.Tensor


class GroupedMM:
    """Sort the (token, slot) pairs by expert, two grouped GEMMs round the activation, weighted sum over the slots.

    Rounded to bfloat16: weights, the result of each GEMM, and the activation's result. Biases, activation, router
    weights and the final sum are in float32. Bits depend on the batch, since the GEMM's path does.
    """

    name = "grouped-mm"
    reproduction = "reproductions/grouped_mm.py:grouped_mm"
    capability = Capability(output_dtypes=frozenset({"bfloat16", "float16"}), stray_ids=True)
    numerics = Numerics(
        weights="bfloat16",
        gemm1=_GEMM,
        bias_before_rounding=False,
        activation=Transcendental(exp_ulps=1.0, tanh_ulps=1.0),
        gemm2=_GEMM,
    )

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> Prepared:
        """Dequantise the weights to bfloat16."""
        return Prepared(
            problem=problem,
            w13=_dequantize(problem.w13, problem.w13_scale),
            w2=_dequantize(problem.w2, problem.w2_scale),
        )

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        """[M, H] in the output dtype. A masked or foreign slot adds exactly 0: it takes part in nothing."""
        problem = prepared.problem
        tokens, top_k = problem.topk_ids.shape
        experts_local = len(prepared.w13)
        local = (problem.topk_ids - problem.ep_rank * experts_local).flatten()
        pairs = ((local >= 0) & (local < experts_local)).nonzero().squeeze(1)
        expert, order = local[pairs].sort(stable=True)
        pairs = pairs[order]
        ends = torch.searchsorted(expert, torch.arange(experts_local, device=local.device), right=True, out_int32=True)

        h = _grouped_mm(problem.hidden_states[pairs // top_k], prepared.w13, problem.w13_bias, ends, expert)
        gate, up = h.chunk(2, dim=-1)
        a = _activate(problem.activation, expert, gate, up).to(torch.bfloat16)
        y = _grouped_mm(a, prepared.w2, problem.w2_bias, ends, expert)

        weight = (problem.topk_weights * problem.routed_scaling_factor).flatten()[pairs]
        slots = y.new_zeros(tokens * top_k, y.shape[1])
        slots[pairs] = y * weight.unsqueeze(1)
        total = y.new_zeros(tokens, y.shape[1])
        for slot in slots.view(tokens, top_k, y.shape[1]).unbind(1):
            total += slot
        return total.to(problem.output_dtype)


def _grouped_mm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ends: torch.Tensor, expert: torch.Tensor
) -> torch.Tensor:
    """float32 [T, N]: rows of x [T, K] times their expert's weight [N, K], rounded to bfloat16, plus its bias."""
    out = functional.grouped_mm(x, weight.mT, offs=ends).float()
    return out if bias is None else out + bias[expert].float()


def _activate(params: ActivationParams, expert: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """float32 [T, I]. clamp and minimum keep a NaN."""

    def of(parameter: torch.Tensor | None) -> torch.Tensor:
        if parameter is None:
            raise ValueError(f"activation {params.kind!r} lacks a parameter: see ActivationParams")
        return parameter[expert].unsqueeze(1)

    match params.kind:
        case "swiglu":
            return gate * torch.sigmoid(gate) * up
        case "swiglu_oai":
            limit = of(params.limit)
            gate, up = torch.minimum(gate, limit), torch.clamp(up, -limit, limit)
            return gate * torch.sigmoid(of(params.alpha) * gate) * (up + of(params.beta))
        case "situ":
            beta, linear_beta = of(params.beta), of(params.linear_beta)
            return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * torch.tanh(up / linear_beta))
    raise ValueError(f"activation {params.kind!r}: must be one of swiglu, swiglu_oai, situ")


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@functools.cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(pairs, scales) by byte. int32 [256]: two bfloat16, the low nibble's first; bfloat16 [256]: 2**(byte - 127)."""
    pairs = torch.tensor([(_E2M1[byte & 15], _E2M1[byte >> 4]) for byte in range(256)], dtype=torch.bfloat16)
    # A bfloat16 with exponent field b and no mantissa is 2**(b - 127); field 0 is the subnormal 2**-127, 255 the NaN.
    bits = torch.tensor([0x0040, *(byte << 7 for byte in range(1, 255)), 0x7FC0], dtype=torch.int16)
    return pairs.view(torch.int32).squeeze(1).to(device), bits.view(torch.bfloat16).to(device)


def _dequantize(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """bfloat16 [E, N, K] of uint8 codes [E, N, K/2] and E8M0 bytes [E, N, K/32]; exact up to overflow."""
    pairs, scales = _tables(packed.device)
    experts, rows, half = packed.shape
    out = torch.empty(experts, rows, 2 * half, dtype=torch.bfloat16, device=packed.device)
    step = max(1, _CHUNK // (rows * half))
    for first in range(0, experts, step):
        part = slice(first, first + step)
        codes = pairs.index_select(0, packed[part].flatten().int()).view(torch.bfloat16).view(-1, 32)
        factor = scales.index_select(0, scale[part].flatten().int()).unsqueeze(1)
        torch.mul(codes, factor, out=out[part].view(-1, 32))
    return out
