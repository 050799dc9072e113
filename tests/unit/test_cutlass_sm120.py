"""The SM120 path where there is no card: layouts, and the call's arguments read back as the kernel reads them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from oracles import cutlass_sm120 as sm120
from oracles import emulated_sm120 as emulated
from oracles.cutlass_layouts import swap_halves, swizzle_scale, unswizzle_scale
from oracles.problem import build
from strategies import Parallel, Scenario, Shape, Situ

SCENARIO = Scenario(
    shape=Shape(tokens=5, hidden=256, intermediate=128, experts=6, top_k=2),
    parallel=Parallel(ep_size=2, ep_rank=1),
    activation=Situ(),
    precision="mxfp8xmxfp4",
)


@pytest.mark.parametrize("shape", [(1, 4), (128, 4), (130, 8), (384, 112), (5, 3), (2, 256, 7), (3, 1, 12)])
def test_the_128x4_layout(shape: tuple[int, ...]) -> None:
    """Against the kernel's index formula, and back."""
    scale = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    swizzled = swizzle_scale(scale)
    for own, line in zip(scale.view(-1, *shape[-2:]), swizzled.view(-1, swizzled.shape[-1]), strict=True):
        assert torch.equal(line, emulated.swizzle(own))
    assert torch.equal(unswizzle_scale(swizzled, *shape[-2:]), scale)


@pytest.mark.parametrize("swizzled", [True, False])
def test_the_arguments_hold_the_problem(swizzled: bool) -> None:
    problem = build(SCENARIO)
    given = sm120.arguments(problem, torch.Tensor.contiguous, swizzled_input=swizzled)
    w13, w2 = given["fc1_expert_weights"], given["fc2_expert_weights"]
    assert (w13.dtype, w13.shape) == (torch.int64, (3, 256, 256 // 16))
    assert (w2.dtype, w2.shape) == (torch.int64, (3, 256, 128 // 16))
    assert torch.equal(swap_halves(w13.view(torch.uint8)), problem.w13)
    assert torch.equal(w2.view(torch.uint8), problem.w2)
    fc1, first, fc2, second = given["quant_scales"]
    assert (fc1.dtype, fc1.shape) == (torch.int32, (3, 256, 256 // 128))
    assert (fc2.dtype, fc2.shape) == (torch.int32, (3, 256, 128 // 128))
    back = unswizzle_scale(fc1.view(torch.uint8).flatten(1), 256, 8)
    assert torch.equal(swap_halves(back), problem.w13_scale)
    assert torch.equal(unswizzle_scale(fc2.view(torch.uint8).flatten(1), 256, 4), problem.w2_scale)
    assert [tensor.tolist() for tensor in (first, second)] == [[1.0] * 3] * 2
    assert problem.hidden_q is not None
    assert torch.equal(given["input"].view(torch.uint8), problem.hidden_q.view(torch.uint8))
    assert given["swizzled_input_sf"] is swizzled
    scale = unswizzle_scale(given["input_sf"], 5, 8) if swizzled else given["input_sf"]
    assert problem.hidden_scale is not None
    assert torch.equal(scale, problem.hidden_scale)


def test_rows_beyond_the_tokens_are_zero() -> None:
    problem = build(dataclasses.replace(SCENARIO, shape=dataclasses.replace(SCENARIO.shape, tokens=130)))
    input_sf = sm120.arguments(problem, torch.Tensor.contiguous)["input_sf"]
    assert input_sf.numel() == 256 * 8
    assert not unswizzle_scale(input_sf, 256, 8)[130:].any()


def test_the_quantiser_is_the_version_s() -> None:
    assert sm120.numerics((0, 6, 18)).intermediate_quantizer == "mxfp8_flushed"
    assert sm120.numerics((0, 7, 0)).intermediate_quantizer == "mxfp8_flushed"
    assert sm120.numerics((0, 7, 4)).intermediate_quantizer == "mxfp8"
