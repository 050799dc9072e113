"""What `cutlass_fused_moe` takes for MXFP8 activations and MXFP4 weights on SM120 (`use_mxfp8_act_scaling`).

flashinfer-python 0.6.18 and later. Codes keep their place, seen as int64 of 16; rows become [up; gate]; every scale
goes into the 128x4 layout (`oracles.cutlass_layouts.swizzle_scale`). Read from the sources, and its arguments are read
back in the tests; no card of this kind has run it.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.cutlass_layouts import swap_halves, swizzle_scale
from oracles.cutlass_path import Path, There
from oracles.numerics import Accumulator, Numerics, TensorCore, Transcendental
from oracles.problem import Problem

# One instruction takes 32 columns, with their scales (mma m16n8k32, block_scale), and they follow in order. Products of
# E4M3 and E2M1 are exact, and so are their powers of two. How an instruction adds is not documented. Hopper's FP8 keeps
# 13 bits below the largest addend: nothing finer is assumed until `difftest calibrate` has measured the card.
_GEMM = Accumulator(
    unit_roundoff=2.0**-13,
    rounding="truncate",
    exact_bits=14,
    chain=TensorCore(columns=32, alignment=2.0**-13, result=2.0**-13),
    flush_to_zero=True,
)
KEEPS_SUBNORMALS = (0, 7, 4)
"""From this version on, the quantiser between the GEMMs does."""


def _numerics(version: tuple[int, ...]) -> Numerics:
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


def _layer(problem: Problem, there: There) -> dict[str, Any]:
    """Global scales are ones: the kernel reads none."""

    def scale(scales: torch.Tensor) -> torch.Tensor:
        """int32 [E, N, K/128]: four bytes each."""
        experts, rows, groups = scales.shape
        return swizzle_scale(there(scales)).view(torch.int32).view(experts, -(-rows // 128) * 128, groups // 4)

    fc1, fc2 = scale(swap_halves(problem.w13_scale)), scale(problem.w2_scale)
    ones = torch.ones(problem.experts_local, dtype=torch.float32, device=fc1.device)
    return {
        "fc1_expert_weights": there(swap_halves(problem.w13)).view(torch.int64),
        "fc2_expert_weights": there(problem.w2).view(torch.int64),
        "quant_scales": [fc1, ones, fc2, ones.clone()],
        "swizzled_input_sf": True,
    }


def _states(problem: Problem, there: There) -> dict[str, torch.Tensor]:
    """input_sf: 128x4 over the whole [M, H/32]."""
    assert problem.hidden_q is not None  # of this precision
    assert problem.hidden_scale is not None
    return {"input": there(problem.hidden_q), "input_sf": swizzle_scale(there(problem.hidden_scale)).flatten()}


def path(version: tuple[int, ...]) -> Path:
    """The path as this version of the package has it."""
    return Path(
        precision="mxfp8xmxfp4",
        output_dtypes=frozenset({"bfloat16", "float16"}),
        numerics=_numerics(version),
        x_dtype=torch.float8_e4m3fn,
        weight_dtype=torch.int64,
        flags={"use_mxfp8_act_scaling": True},
        layer=_layer,
        states=_states,
    )
