"""What `cutlass_fused_moe` takes for MXFP8 activations and MXFP4 weights on SM120 (`use_mxfp8_act_scaling`).

flashinfer-python 0.6.18 and later. Codes keep their place, seen as int64 of 16; rows become [up; gate]; every scale
goes into the 128x4 layout (`oracles.cutlass_layouts.swizzle_scale`). Read from the sources, and its arguments are read
back in the tests; no card of this kind has run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracles.cutlass_layouts import swap_halves, swizzle_scale
from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import Problem

# The width of this tensor core's accumulator is not documented. Hopper's FP8 keeps 14 bits: that is assumed until
# `difftest calibrate` has measured the card. Products of E4M3 and E2M1 are exact, and so are their powers of two.
_GEMM = Accumulator(unit_roundoff=2.0**-13, rounding="truncate", exact_bits=14, flush_to_zero=True)
KEEPS_SUBNORMALS = (0, 7, 4)
"""From this version on, the quantiser between the GEMMs does."""


def numerics(version: tuple[int, ...]) -> Numerics:
    """GEMM1 -> output dtype (+ bias in float32) -> activation in float32 -> output dtype -> MXFP8 -> GEMM2 -> output
    dtype (+ bias) -> sum over the slots in float32: the finalize that is not fused, which is the default tactic's."""
    return Numerics(
        weights="exact",
        gemm1=_GEMM,
        gemm1_output="output",
        bias_before_rounding=False,
        activation=Transcendental(exp="fast", divide="fast", tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True),
        intermediate="output",
        intermediate_quantizer="mxfp8" if version >= KEEPS_SUBNORMALS else "mxfp8_flushed",
        gemm2=_GEMM,
        gemm2_output="output",
    )


def arguments(
    problem: Problem, there: Callable[[torch.Tensor], torch.Tensor], *, swizzled_input: bool = True
) -> dict[str, Any]:
    """The keywords that this path has for weights, scales and input.

    there: moves a tensor to the device. swizzled_input: the form of `input_sf`, 128x4 over the whole [M, H/32] or
    row-major. Global scales are ones: the kernel reads none.
    """
    assert problem.hidden_q is not None  # of this precision
    assert problem.hidden_scale is not None
    input_scale = there(problem.hidden_scale)
    ones = torch.ones(problem.experts_local, dtype=torch.float32, device=input_scale.device)

    def scale(scales: torch.Tensor) -> torch.Tensor:
        """int32 [E, N, K/128]: four bytes each."""
        experts, rows, groups = scales.shape
        return swizzle_scale(there(scales)).view(torch.int32).view(experts, -(-rows // 128) * 128, groups // 4)

    return {
        "input": there(problem.hidden_q),
        "input_sf": swizzle_scale(input_scale).flatten() if swizzled_input else input_scale,
        "swizzled_input_sf": swizzled_input,
        "fc1_expert_weights": there(swap_halves(problem.w13)).view(torch.int64),
        "fc2_expert_weights": there(problem.w2).view(torch.int64),
        "quant_scales": [scale(swap_halves(problem.w13_scale)), ones, scale(problem.w2_scale), ones],
        "use_mxfp8_act_scaling": True,
    }
