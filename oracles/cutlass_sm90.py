"""What `cutlass_fused_moe` takes for bfloat16 activations and MXFP4 weights on SM90 (`use_w4_group_scaling`).

Weights and scales go through the package's own interleave helpers; `oracles.cutlass_layouts` says what they must do.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles import flashinfer_package as package
from oracles.cutlass_layouts import swap_halves
from oracles.cutlass_path import Path, There
from oracles.numerics import Accumulator, Numerics, TensorCore, Transcendental
from oracles.problem import Problem

# bfloat16 times E2M1 is exact. The scale of a group of 32 is applied to its sum, by a fused multiply-add to nearest.
_GEMM = Accumulator(group=32, inside=TensorCore(), flush_to_zero=True)

_NUMERICS = Numerics(
    weights="exact",
    gemm1=_GEMM,
    bias_before_rounding=False,
    # Built with -use_fast_math: ex2.approx, rcp.approx, subnormals flushed. Clamps are fminf and fmaxf.
    activation=Transcendental(
        exp="fast", divide="fast", reciprocal_ulps=1.0, tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True
    ),
    gemm2=_GEMM,
)
"""GEMM1 -> bfloat16 (+ bias in float32) -> activation in float32 -> bfloat16 -> GEMM2 -> bfloat16 (+ bias) -> sum over
the slots in float32."""


def _layer(problem: Problem, there: There) -> dict[str, Any]:
    fused_moe = package.module("fused_moe")

    def weight(packed: torch.Tensor) -> torch.Tensor:
        interleaved: torch.Tensor = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed, "fp4")
        return interleaved

    def scale(scales: torch.Tensor) -> torch.Tensor:
        folded: torch.Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scales)
        return folded.view(torch.int32)

    return {
        "fc1_expert_weights": weight(swap_halves(there(problem.w13))),
        "fc2_expert_weights": weight(there(problem.w2)),
        "quant_scales": [scale(swap_halves(there(problem.w13_scale))), scale(there(problem.w2_scale))],
    }


def _states(problem: Problem, there: There) -> dict[str, torch.Tensor]:
    return {"input": there(problem.hidden_states)}


PATH = Path(
    precision="bf16xmxfp4",
    output_dtypes=frozenset({"bfloat16"}),
    numerics=_NUMERICS,
    x_dtype=torch.bfloat16,
    weight_dtype=torch.uint8,
    flags={"use_w4_group_scaling": True},
    layer=_layer,
    states=_states,
)
