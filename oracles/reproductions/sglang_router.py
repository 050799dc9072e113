"""SGLang's select_experts, configured as its models configure it."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.moe import topk
from sglang.srt.layers.moe.topk import TopKConfig, select_experts

from oracles.reproductions.sglang_serving import served, there


def selected(p: SimpleNamespace, *, torch_native: bool) -> tuple[torch.Tensor, torch.Tensor]:
    # DeepSeek-V3 and Kimi-K3 have groups, if only one, and a bias.
    grouped = p.groups > 1 or (p.scoring == "sigmoid" and p.bias is not None)
    config = TopKConfig(
        top_k=p.top_k,
        use_grouped_topk=grouped,
        num_expert_group=p.groups if grouped else None,
        topk_group=p.topk_groups if grouped else None,
        renormalize=p.renormalise,
        correction_bias=p.bias,
        torch_native=torch_native,
        routed_scaling_factor=p.routed_scaling_factor,
        apply_routed_scaling_factor_on_output=True,
        scoring_func=p.scoring,
    )
    states = p.logits.new_zeros(len(p.logits), 8)  # of which only the number of rows is looked at
    with served("auto" if torch_native else "flashinfer_mxfp4"), torch.compiler.set_stance("force_eager"):
        output = select_experts(states, p.logits, config)
    return output.topk_ids.int(), output.topk_weights.float()


def cuda(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    return selected(there(p), torch_native=False)


def native(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """In plain torch, as on a CPU."""
    return selected(p, torch_native=True)


def interpreted(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """The Triton kernels of a CUDA device: there, or by Triton's interpreter with TRITON_INTERPRET=1."""
    if torch.cuda.is_available():
        return cuda(p)
    from sglang.kernels.ops.moe import moe_fused_gate

    with (
        mock.patch.multiple(topk, _is_cuda=True, _is_cpu=False),
        mock.patch.object(topk, "fused_topk_deepseek", None, create=True),
        mock.patch.object(moe_fused_gate, "is_arch_support_pdl", return_value=False),
        mock.patch.object(moe_fused_gate.moe_route_radix, "covered", return_value=False),
    ):
        return cuda(p)
