"""torch.nn.functional.grouped_mm, with the steps of a MoE layer round it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.nn import functional

from oracles.reproductions.expected import activate, dequantize


def grouped_mm(p: SimpleNamespace) -> torch.Tensor:
    top_k, experts = p.topk_ids.shape[1], len(p.w13)
    local = (p.topk_ids - p.first_expert).flatten().long()
    pairs = ((p.topk_ids.flatten() >= 0) & (local >= 0) & (local < experts)).nonzero().squeeze(1)
    pairs = pairs[local[pairs].sort(stable=True)[1]]
    expert = local[pairs]
    ends = torch.searchsorted(expert, torch.arange(experts), right=True, out_int32=True)

    def gemm(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = dequantize(packed, scale).to(torch.bfloat16)
        out = functional.grouped_mm(x, weight.mT, offs=ends).float()
        return out if bias is None else out + bias[expert].float()

    gate, up = gemm(p.hidden_states[pairs // top_k], p.w13, p.w13_scale, p.w13_bias).chunk(2, -1)
    rows = [activate(p, int(e), g, u) for e, g, u in zip(expert, gate, up, strict=True)]
    a = torch.stack(rows).to(torch.bfloat16) if rows else gate.to(torch.bfloat16)
    y = gemm(a, p.w2, p.w2_scale, p.w2_bias)
    weight = (p.topk_weights * p.routed_scaling_factor)[pairs // top_k, pairs % top_k]
    out = torch.zeros(p.hidden_states.shape)
    for row in pairs.argsort().tolist():  # a token's slots in order
        pair = pairs[row]
        out[pair // top_k] += weight[row] * y[row]
    return out.to(p.output_dtype)
