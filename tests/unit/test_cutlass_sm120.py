"""The SM120 path where there is no card: layouts, and the call's arguments read back as the kernel reads them."""

from __future__ import annotations

import contextlib
import dataclasses
from enum import IntEnum
from typing import Any

import pytest
import torch

from oracles import cutlass_sm120 as sm120
from oracles import emulated_sm120 as emulated
from oracles import flashinfer_package as package
from oracles import formats
from oracles.cutlass import Cutlass
from oracles.cutlass_graph import CutlassGraph
from oracles.cutlass_layouts import swap_halves, swizzle_scale, unswizzle_scale
from oracles.problem import Problem, build
from oracles.reference import Reference
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


def read_back(given: dict[str, Any], problem: Problem) -> Problem:
    """The problem that the kernel's arguments hold."""
    experts, tokens, hidden, inner = problem.experts_local, problem.tokens, problem.hidden, problem.intermediate
    fc1, first, fc2, second = given["quant_scales"]
    assert [tensor.tolist() for tensor in (first, second)] == [[1.0] * experts] * 2
    assert (fc1.dtype, fc1.shape) == (torch.int32, (experts, 2 * inner, hidden // 128))
    assert (fc2.dtype, fc2.shape) == (torch.int32, (experts, hidden, inner // 128))
    w13_scale = unswizzle_scale(fc1.view(torch.uint8).flatten(1), 2 * inner, hidden // 32)
    w2_scale = unswizzle_scale(fc2.view(torch.uint8).flatten(1), hidden, inner // 32)
    hidden_scale = unswizzle_scale(given["input_sf"], tokens, hidden // 32)
    payload = given["input"].view(torch.uint8)
    return dataclasses.replace(
        problem,
        hidden_q=given["input"],
        hidden_scale=hidden_scale,
        hidden_states=formats.mxfp8_dequantize(payload, hidden_scale).bfloat16(),
        topk_ids=given["token_selected_experts"],
        topk_weights=given["token_final_scales"],
        routed_scaling_factor=1.0,
        w13=swap_halves(given["fc1_expert_weights"].view(torch.uint8)),
        w13_scale=swap_halves(w13_scale),
        w2=given["fc2_expert_weights"].view(torch.uint8),
        w2_scale=w2_scale,
    )


class StandIn:
    """In the place of `flashinfer.fused_moe`: reads the arguments as the kernel does, answers with the reference."""

    class ActivationType(IntEnum):
        Swiglu = 3
        SwigluBias = 5
        Situ = 10

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.given: dict[str, Any] = {}

    def cutlass_fused_moe_workspace_size(self, *_: int, **keywords: Any) -> int:
        assert (keywords["x_dtype"], keywords["weight_dtype"]) == (torch.float8_e4m3fn, torch.int64)
        assert keywords["use_mxfp8_act_scaling"]
        return 64

    def cutlass_fused_moe(self, *, situ_beta: torch.Tensor, situ_linear_beta: torch.Tensor, **given: Any) -> None:
        self.given = given | {"situ_beta": situ_beta, "situ_linear_beta": situ_linear_beta}
        given["output"].copy_(Reference()(read_back(given, self.problem)))


@pytest.fixture
def on_sm120(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "compute_capability", lambda: (12, 0))
    monkeypatch.setattr(package, "version", lambda: (0, 7, 0))
    monkeypatch.setattr(package, "device_for", lambda tensor: tensor.device)
    monkeypatch.setattr(package, "current", lambda _: contextlib.nullcontext())


@pytest.mark.usefixtures("on_sm120")
@pytest.mark.parametrize("tokens", [1, 5, 130])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernel_is_asked_the_scenarios_question(monkeypatch: pytest.MonkeyPatch, tokens: int, dtype: Any) -> None:
    shape = dataclasses.replace(SCENARIO.shape, tokens=tokens)
    problem = build(dataclasses.replace(SCENARIO, shape=shape, output_dtype=dtype))
    kernel = StandIn(problem)
    monkeypatch.setattr(package, "module", {"fused_moe": kernel}.__getitem__)
    oracle = Cutlass()
    assert oracle.unsupported(problem.scenario) is None
    assert oracle.capability.precisions == {"mxfp8xmxfp4"}
    answer = oracle(oracle.prepare(problem))
    assert torch.equal(answer, Reference()(problem))
    read = read_back(kernel.given, problem)
    for name in ("w13", "w13_scale", "w2", "w2_scale", "hidden_scale", "topk_ids"):
        assert torch.equal(getattr(read, name), getattr(problem, name)), name
    assert kernel.given["use_mxfp8_act_scaling"]
    assert kernel.given["swizzled_input_sf"]
    assert "use_w4_group_scaling" not in kernel.given
    assert (kernel.given["ep_size"], kernel.given["ep_rank"]) == (2, 1)
    # Rows beyond the tokens in the last tile of scales are 0.
    rows = -(-tokens // 128) * 128
    assert not unswizzle_scale(kernel.given["input_sf"], rows, 8)[tokens:].any()


@pytest.mark.usefixtures("on_sm120")
def test_a_replay_reads_all_that_holds_x() -> None:
    problem = build(SCENARIO)
    states = CutlassGraph().path.states(problem, torch.Tensor.contiguous)
    assert set(states) == {"input", "input_sf"}


@pytest.mark.usefixtures("on_sm120")
def test_what_the_other_path_computes_is_declined() -> None:
    other = dataclasses.replace(SCENARIO, precision="bf16xmxfp4")
    assert Cutlass().unsupported(other) == "precision bf16xmxfp4"


def test_the_quantiser_is_the_version_s() -> None:
    assert sm120.path((0, 6, 18)).numerics.intermediate_quantizer == "mxfp8_flushed"
    assert sm120.path((0, 7, 0)).numerics.intermediate_quantizer == "mxfp8_flushed"
    assert sm120.path((0, 7, 4)).numerics.intermediate_quantizer == "mxfp8"
