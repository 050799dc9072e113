"""FlashInfer's cutlass_fused_moe, bfloat16 x MXFP4 on SM90 or MXFP8 x MXFP4 on SM120, eager or in a CUDA graph."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from flashinfer import fused_moe


def up_gate(rows: torch.Tensor) -> torch.Tensor:
    """[gate; up], as checkpoints have it -> [up; gate]."""
    return torch.cat(tuple(reversed(rows.cuda().chunk(2, dim=1))), dim=1)


def sm90(p: SimpleNamespace) -> dict[str, Any]:
    """x, weights and scales for bfloat16 x MXFP4 on SM90, and what chooses it."""

    def weight(packed: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed.cuda().contiguous(), "fp4")
        return out

    def scale(scales: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scales.cuda().contiguous())
        return out.view(torch.int32)

    return {
        "input": p.hidden_states.cuda(),
        "fc1_expert_weights": weight(up_gate(p.w13)),
        "fc2_expert_weights": weight(p.w2),
        "quant_scales": [scale(up_gate(p.w13_scale)), scale(p.w2_scale)],
        "use_w4_group_scaling": True,
    }


def sm120(p: SimpleNamespace) -> dict[str, Any]:
    """The same for MXFP8 x MXFP4 on SM120: codes as they are, scales in tiles of 128 rows by 4 groups."""

    def tiled(scale: torch.Tensor) -> torch.Tensor:
        """[..., N, G], padded: tiles side by side, each of 32 lines with rows r, r + 32, r + 64, r + 96."""
        *batch, rows, groups = scale.shape
        padded = torch.nn.functional.pad(scale.cuda(), (0, -groups % 4, 0, -rows % 128))
        tiles = padded.view(*batch, -(-rows // 128), 4, 32, -(-groups // 4), 4)
        out: torch.Tensor = tiles.movedim(-2, -4).transpose(-2, -3).contiguous()
        return out

    def expert_scale(scale: torch.Tensor) -> torch.Tensor:
        experts, rows, groups = scale.shape
        return tiled(scale).view(torch.int32).view(experts, -(-rows // 128) * 128, -(-groups // 4))

    ones = torch.ones(len(p.w2), dtype=torch.float32).cuda()  # the kernel reads none
    return {
        "input": p.hidden_q.cuda(),
        "input_sf": tiled(p.hidden_scale).flatten(),
        "fc1_expert_weights": up_gate(p.w13).view(torch.int64),
        "fc2_expert_weights": p.w2.cuda().view(torch.int64),
        "quant_scales": [expert_scale(up_gate(p.w13_scale)), ones, expert_scale(p.w2_scale), ones.clone()],
        "swizzled_input_sf": True,
        "use_mxfp8_act_scaling": True,
    }


def chosen_tactics(p: SimpleNamespace) -> list[int]:
    """[GEMM1's, GEMM2's] place in the package's list for SM90: p.tactic, counted round among what fits the shape."""
    from flashinfer.fused_moe import core

    off = (
        "enable_alltoall",
        "use_deepseek_fp8_block_scale",
        "use_mxfp8_act_scaling",
        "min_latency_mode",
        "enable_pdl",
        "use_packed_weights",
        "use_wfp4afp8_humming",
    )
    runner = (
        core.get_cutlass_fused_moe_module("90")
        .MoERunner(
            x_dtype=torch.bfloat16,
            weight_dtype=torch.uint8,
            output_dtype=torch.bfloat16,
            top_k=1,
            tp_size=1,
            tp_rank=0,
            ep_size=1,
            ep_rank=0,
            cluster_size=1,
            cluster_rank=0,
            use_w4_group_scaling=True,
            use_fused_finalize=True,
            activation_type=fused_moe.ActivationType.Swiglu,
            **dict.fromkeys(off, False),
        )
        .fused_moe_runner
    )
    hidden, inner = p.hidden_states.shape[1], 2 * p.w2.shape[2]
    fit = (
        runner.get_valid_tactics_for_shape(1, 2 * inner, hidden),
        runner.get_valid_tactics_for_shape(2, hidden, inner),
    )
    return [int(places[p.tactic % len(places)]) for places in fit]


def arguments(p: SimpleNamespace) -> dict[str, Any]:
    """The keywords of one call, on the GPU."""
    kind, names = {
        "swiglu": ("Swiglu", {}),
        "swiglu_oai": ("SwigluBias", {"alpha": "swiglu_alpha", "beta": "swiglu_beta", "limit": "swiglu_limit"}),
        "situ": ("Situ", {"beta": "situ_beta", "linear_beta": "situ_linear_beta"}),
    }[p.activation]
    weights = p.topk_weights * torch.tensor(p.routed_scaling_factor, dtype=torch.float32)
    found: dict[str, Any] = {
        **(sm90(p) if p.hidden_q is None else sm120(p)),
        "token_selected_experts": p.topk_ids.cuda(),
        "token_final_scales": weights.cuda(),
        "output_dtype": p.output_dtype,
        "tp_size": p.moe_tp_size,
        "tp_rank": p.moe_tp_rank,
        "ep_size": p.ep_size,
        "ep_rank": p.ep_rank,
        "enable_pdl": p.pdl,
        "use_fused_finalize": p.fused_finalize is not False,
        "activation_type": getattr(fused_moe.ActivationType, kind),
    }
    if p.tactic is not None:
        found["profile_ids"] = chosen_tactics(p)
    if p.w13_bias is not None:
        w2_bias = p.w13_bias.new_zeros(len(p.w2), p.w2.shape[1]) if p.w2_bias is None else p.w2_bias
        found["fc1_expert_biases"] = up_gate(p.w13_bias).to(p.output_dtype)
        found["fc2_expert_biases"] = w2_bias.cuda().to(p.output_dtype)
    # 0.6.18 has the enumerator Situ and no keywords for its parameters.
    accepted = inspect.signature(fused_moe.cutlass_fused_moe).parameters
    return found | {name: p.parameters[own].cuda() for own, name in names.items() if name in accepted}


def filled(p: SimpleNamespace, call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(output [M, H], workspace), full of the byte that memory of a caller may hold."""
    kept = ("output_dtype", "activation_type", "tp_size", "tp_rank", "ep_size", "ep_rank", "use_fused_finalize")
    chosen = {name: call[name] for name in ("use_w4_group_scaling", "use_mxfp8_act_scaling") if name in call}
    (tokens, hidden), slots, inner = p.hidden_states.shape, p.topk_ids.shape[1], 2 * p.w2.shape[2]
    size = fused_moe.cutlass_fused_moe_workspace_size(
        max(1, tokens),
        hidden,
        inner,
        p.num_experts,
        slots,
        x_dtype=call["input"].dtype,
        weight_dtype=call["fc2_expert_weights"].dtype,
        device=call["input"].device,
        **chosen,
        **{name: call[name] for name in kept},
    )
    output = torch.empty(p.hidden_states.shape, dtype=p.output_dtype, device="cuda")
    output.view(torch.uint8).fill_(p.poison)
    return output, torch.full((size,), p.poison, dtype=torch.uint8, device="cuda")


def eager_into(p: SimpleNamespace, output: torch.Tensor) -> None:
    call = arguments(p)
    fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=filled(p, call)[1])


def eager(p: SimpleNamespace) -> torch.Tensor:
    call = arguments(p)
    output, workspace = filled(p, call)
    fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=workspace)
    return output


def graph_replays(questions: list[SimpleNamespace]) -> list[torch.Tensor]:
    """Captured after a warm-up on a side stream, on x = 0 and masked slots; then replayed with what each question has
    in x, ids and router weights."""
    call = arguments(questions[0])
    changed = ["input", "input_sf", "token_selected_experts", "token_final_scales"]
    changed = [name for name in changed if name in call]
    contents = [{name: arguments(p)[name].clone() for name in changed} for p in questions]
    call |= {name: torch.full_like(call[name], -1 if name == "token_selected_experts" else 0) for name in changed}
    output, workspace = filled(questions[0], call)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=workspace)
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=workspace)
    answers = []
    for p, content in zip(questions, contents, strict=True):
        for name, tensor in content.items():
            call[name].copy_(tensor)
        output.view(torch.uint8).fill_(p.poison)
        workspace.fill_(p.poison)
        captured.replay()
        answers.append(output.cpu())
    return answers


def graph(p: SimpleNamespace) -> torch.Tensor:
    return graph_replays([p])[0]
