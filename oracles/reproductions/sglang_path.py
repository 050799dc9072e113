"""SGLang's MXFP4 layer for a backend: its weight processor on the checkpoint's tensors, then its runner, configured as
Kimi-K3's and GPT-OSS's model code configures them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.quantization.mxfp4 import Mxfp4MoEMethod

from oracles.reproductions.sglang_serving import served, there


def flashinfer(p: SimpleNamespace) -> torch.Tensor:
    """As with --moe-runner-backend flashinfer_mxfp4."""
    with served("flashinfer_mxfp4"):
        return run(there(p), 256)


def marlin(p: SimpleNamespace) -> torch.Tensor:
    """As with --moe-runner-backend marlin."""
    with served("marlin"):
        return run(there(p), 1)


def run(p: SimpleNamespace, hidden_unit: int, *, interleaved: bool = False) -> torch.Tensor:
    """hidden_unit: of what H is padded to a multiple. interleaved: w13 has the rows of gate and up in turn."""
    hidden, inner, local = p.hidden_states.shape[1], 2 * p.w2.shape[2], len(p.w13)
    padded = -(-hidden // hidden_unit) * hidden_unit
    sizes: dict[str, Any] = {
        "num_experts": p.num_experts,
        "num_local_experts": local,
        "hidden_size": padded,
        "intermediate_size_per_partition": inner,
        "params_dtype": torch.bfloat16,
    }
    layer: Any = torch.nn.Module()
    for name, value in sizes.items():
        setattr(layer, name, value)
    layer.hidden_size_unpadded, layer.orig_dtype = hidden, torch.bfloat16
    layer.moe_ep_size, layer.moe_ep_rank = p.ep_size, p.ep_rank
    layer.moe_tp_size, layer.moe_tp_rank = p.moe_tp_size, p.moe_tp_rank
    layer.moe_runner_config = MoeRunnerConfig(
        **sizes,
        layer_id=0,
        top_k=p.topk_ids.shape[1],
        inplace=False,
        routed_scaling_factor=p.routed_scaling_factor,
        gate_up_interleaved=interleaved,
        layer=layer,
        **activation(p),
    )
    method = Mxfp4MoEMethod(prefix="experts")
    with torch.device(p.hidden_states.device):
        method.create_weights(
            layer=layer,
            num_experts=local,
            hidden_size=padded,
            intermediate_size_per_partition=inner,
            params_dtype=torch.bfloat16,
            with_bias=p.w13_bias is not None,
        )
    load(layer, p)
    method.create_moe_runner(layer, layer.moe_runner_config)
    method.process_weights_after_loading(layer)
    output: torch.Tensor = method.apply(layer, dispatched(layer, p)).hidden_states
    return output[:, :hidden].contiguous()


def activation(p: SimpleNamespace) -> dict[str, Any]:
    value = {name: float(vector[0]) for name, vector in p.parameters.items()}
    if p.activation == "situ":
        return {"activation": "situ", "gemm1_alpha": value["beta"], "gemm1_clamp_limit": value["linear_beta"]}
    if p.activation == "swiglu_oai":
        return {"activation": "silu", "gemm1_alpha": value["alpha"], "gemm1_clamp_limit": value["limit"]}
    return {"activation": "silu"}


def load(layer: Any, p: SimpleNamespace) -> None:
    """The checkpoint's tensors, as the loader leaves them: each half of w13 at the start of its own."""
    pairs = [(layer.w13_weight, p.w13), (layer.w13_weight_scale, p.w13_scale)]
    if p.w13_bias is not None:
        pairs.append((layer.w13_weight_bias, p.w13_bias))
    for parameter, source in pairs:
        half, rows = parameter.shape[1] // 2, source.shape[1] // 2
        for into, start in ((0, 0), (half, rows)):
            place = parameter.data[:, into : into + rows]
            (place if source.ndim == 2 else place[:, :, : source.shape[2]]).copy_(source[:, start : start + rows])
    for parameter, source in ((layer.w2_weight, p.w2), (layer.w2_weight_scale, p.w2_scale)):
        parameter.data[:, : source.shape[1], : source.shape[2]] = source
    if p.w2_bias is not None and p.moe_tp_rank == 0:
        layer.w2_weight_bias.data[:, : p.w2_bias.shape[1]] = p.w2_bias


def dispatched(layer: Any, p: SimpleNamespace) -> Any:
    """What the dispatcher hands to the layer: ids stay global for FlashInfer, and become the rank's own for Marlin."""
    from sglang.srt.layers.moe.token_dispatcher import standard
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    ids, mapping, device = p.topk_ids.clone(), None, p.topk_ids.device
    if p.ep_size > 1 and not standard._keeps_global_expert_ids(get_moe_runner_backend()):
        mapping = torch.full((p.num_experts,), -1, dtype=torch.int32, device=device)
        mine = torch.arange(len(p.w13), dtype=torch.int32, device=device)
        mapping[p.first_expert : p.first_expert + len(p.w13)] = mine
        ids = standard._map_topk_ids_to_local_experts(ids, mapping)
    vars(layer)["dispatcher"] = SimpleNamespace(local_expert_mapping=mapping, num_experts=p.num_experts)
    logits = torch.zeros(len(ids), p.num_experts, device=device)
    return StandardDispatchOutput(
        hidden_states=p.hidden_states.clone(),
        hidden_states_scale=None,
        topk_output=StandardTopKOutput(p.topk_weights.clone(), ids, logits),
    )
