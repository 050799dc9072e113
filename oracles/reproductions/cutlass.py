"""FlashInfer's cutlass_fused_moe, bfloat16 x MXFP4 on SM90, eager or captured in a CUDA graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from flashinfer import fused_moe


def arguments(p: SimpleNamespace) -> dict[str, Any]:
    """The keywords of one call, on the GPU."""

    def up_gate(rows: torch.Tensor) -> torch.Tensor:
        """[gate; up], as checkpoints have it -> [up; gate]."""
        return torch.cat(tuple(reversed(rows.cuda().chunk(2, dim=1))), dim=1)

    def weight(packed: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed.cuda().contiguous(), "fp4")
        return out

    def scale(scales: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scales.cuda().contiguous())
        return out.view(torch.int32)

    kind, names = {
        "swiglu": ("Swiglu", {}),
        "swiglu_oai": ("SwigluBias", {"alpha": "swiglu_alpha", "beta": "swiglu_beta", "limit": "swiglu_limit"}),
        "situ": ("Situ", {"beta": "situ_beta", "linear_beta": "situ_linear_beta"}),
    }[p.activation]
    weights = p.topk_weights * torch.tensor(p.routed_scaling_factor, dtype=torch.float32)
    found: dict[str, Any] = {
        "input": p.hidden_states.cuda(),
        "token_selected_experts": p.topk_ids.cuda(),
        "token_final_scales": weights.cuda(),
        "fc1_expert_weights": weight(up_gate(p.w13)),
        "fc2_expert_weights": weight(p.w2),
        "output_dtype": p.output_dtype,
        "quant_scales": [scale(up_gate(p.w13_scale)), scale(p.w2_scale)],
        "tp_size": p.moe_tp_size,
        "tp_rank": p.moe_tp_rank,
        "ep_size": p.ep_size,
        "ep_rank": p.ep_rank,
        "use_w4_group_scaling": True,
        "activation_type": getattr(fused_moe.ActivationType, kind),
    }
    if p.w13_bias is not None:
        w2_bias = p.w13_bias.new_zeros(len(p.w2), p.w2.shape[1]) if p.w2_bias is None else p.w2_bias
        found["fc1_expert_biases"] = up_gate(p.w13_bias).to(p.output_dtype)
        found["fc2_expert_biases"] = w2_bias.cuda().to(p.output_dtype)
    # 0.6.18 has the enumerator Situ and no keywords for its parameters.
    accepted = fused_moe.cutlass_fused_moe.__code__.co_varnames
    return found | {name: p.parameters[own].cuda() for own, name in names.items() if name in accepted}


def eager(p: SimpleNamespace) -> torch.Tensor:
    output = torch.zeros(p.hidden_states.shape, dtype=p.output_dtype, device="cuda")
    fused_moe.cutlass_fused_moe(**arguments(p), output=output)
    return output


def graph(p: SimpleNamespace) -> torch.Tensor:
    """Captured after a warm-up on a side stream, then replayed once."""
    output = torch.zeros(p.hidden_states.shape, dtype=p.output_dtype, device="cuda")
    call = arguments(p)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        fused_moe.cutlass_fused_moe(**call, output=output)
    stream.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        fused_moe.cutlass_fused_moe(**call, output=output)
    output.zero_()
    captured.replay()
    return output
