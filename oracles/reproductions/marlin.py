"""SGLang's fused_marlin_moe with MXFP4 weights (W4A16 Marlin), which repacks them by its own kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.quantization.gptq_marlin_repack import gptq_marlin_repack
from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe


def marlin(p: SimpleNamespace) -> torch.Tensor:
    inner = 2 * p.w2.shape[2]
    padded = -(-inner // 64) * 64
    local = p.topk_ids - p.first_expert
    ids = torch.where((p.topk_ids >= 0) & (local >= 0) & (local < len(p.w13)), local, -1)
    placement: dict[str, Any] = {}
    if p.ep_size > 1:
        mapping = torch.full((p.num_experts,), -1, dtype=torch.int32, device=ids.device)
        mapping[p.first_expert : p.first_expert + len(p.w13)] = torch.arange(len(p.w13), dtype=torch.int32)
        placement = {"expert_map": mapping, "global_num_experts": p.num_experts}
    biases: dict[str, torch.Tensor] = {}
    if p.w13_bias is not None:
        biases["w1_bias"] = permuted_bias(padded_halves(p.w13_bias, padded))
    if p.w2_bias is not None and p.moe_tp_rank == 0:
        biases["w2_bias"] = permuted_bias(p.w2_bias)
    output: torch.Tensor = fused_marlin_moe(
        p.hidden_states,
        repacked(padded_halves(p.w13, padded)),
        repacked(padded_columns(p.w2, padded // 2)),
        permuted_scale(padded_halves(p.w13_scale, padded)),
        permuted_scale(padded_columns(p.w2_scale, padded // 32)),
        torch.zeros(len(ids), p.num_experts, device=ids.device),
        p.topk_weights * torch.tensor(p.routed_scaling_factor, dtype=torch.float32),
        ids,
        num_bits=4,
        **placement,
        **biases,
        **activation(p),
    )
    return output


def activation(p: SimpleNamespace) -> dict[str, Any]:
    value = {name: float(vector[0]) for name, vector in p.parameters.items()}
    if p.activation == "swiglu":
        return {"activation": "silu"}
    if p.activation == "situ":
        return {"activation": "situ", "gemm1_alpha": value["beta"], "clamp_limit": value["linear_beta"]}
    if value["beta"] != 1:
        raise ValueError(f"swiglu_oai with beta = {value['beta']}: fused_marlin_moe has 1")
    return {"activation": "silu", "gemm1_alpha": value["alpha"], "clamp_limit": value["limit"]}


def repacked(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [E, N, K/2] -> int32 [E, K/16, 2N]."""
    rows, columns = packed.shape[1], 2 * packed.shape[2]
    no_order = torch.empty(0, dtype=torch.int32, device=packed.device)
    # K comes first, eight codes of it a word.
    words = [expert.view(torch.int32).T.contiguous() for expert in packed.contiguous()]
    return torch.stack([gptq_marlin_repack(word, no_order, columns, rows, 4) for word in words])


def permuted_scale(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 [E, N, K/32] -> [E, K/32, N], in the order in which a warp's threads read them."""
    experts, rows, groups = scale.shape
    split = scale.mT.reshape(experts, groups, rows // 64, 2, 2, 2, 8).permute(0, 1, 2, 6, 3, 5, 4)
    return split.reshape(experts, groups, rows).contiguous().view(torch.float8_e8m0fnu)


def permuted_bias(bias: torch.Tensor) -> torch.Tensor:
    return bias.bfloat16().view(len(bias), -1, 4, 4, 2).transpose(2, 3).reshape(bias.shape).contiguous()


def padded_halves(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[E, 2I, ...], each half padded by zeros to `width` rows."""
    halves = rows.view(rows.shape[0], 2, -1, *rows.shape[2:])
    whole = halves.new_zeros(rows.shape[0], 2, width, *rows.shape[2:])
    whole[:, :, : halves.shape[2]] = halves
    return whole.flatten(1, 2)


def padded_columns(columns: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(columns, (0, width - columns.shape[-1]))
