"""What stands in the place of FlashInfer on SM120: it answers from the arguments of the call, and from nothing else."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from oracles import emulated_flashinfer as flashinfer
from oracles import flashinfer_package, formats
from oracles.cutlass import Cutlass
from oracles.cutlass_layouts import swizzle_scale
from oracles.emulated_sm120 import EmulatedSm120
from oracles.problem import Problem, build
from strategies import Layer, MaskSlot, Parallel, Routing, Scenario, Shape, Situ, Swiglu, SwigluOai

SCENARIO = Scenario(
    shape=Shape(tokens=5, hidden=256, intermediate=128, experts=4, top_k=2),
    precision="mxfp8xmxfp4",
    activation=SwigluOai(alpha=1.25, limit=5.0),
)


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The call that the oracle `cutlass` makes on a card of SM120, whose layouts are written apart from these."""
    monkeypatch.setattr(flashinfer_package, "compute_capability", lambda: (12, 0))
    monkeypatch.setattr(flashinfer_package, "version", lambda: (0, 7, 4))
    monkeypatch.setattr(flashinfer_package, "module", {"fused_moe": flashinfer}.__getitem__)

    def call(problem: Problem) -> dict[str, Any]:
        found = Cutlass().arguments(problem)
        return found | {"enable_pdl": None}

    return call


@pytest.mark.parametrize(
    "scenario",
    [
        SCENARIO,
        replace(SCENARIO, activation=Swiglu()),
        replace(SCENARIO, activation=Situ(beta=3.0, linear_beta=20.0)),
        replace(SCENARIO, parallel=Parallel(ep_size=2, ep_rank=1), routing=Routing(edits=(MaskSlot(token=1, slot=0),))),
        replace(SCENARIO, layer=Layer(biases="per_expert", routed_scaling_factor=2.5), output_dtype="float16"),
        replace(SCENARIO, shape=replace(SCENARIO.shape, intermediate=256), layer=Layer(moe_tp_size=2, moe_tp_rank=1)),
    ],
    ids=["SwiGLU-OAI", "SwiGLU", "SiTU", "EP", "biases", "moe_tp"],
)
def test_the_call_of_the_oracle_cutlass_is_answered_as_its_scenario(scenario: Scenario, arguments: Any) -> None:
    problem, oracle = build(scenario), EmulatedSm120()
    output = torch.empty_like(problem.hidden_states, dtype=problem.output_dtype)
    (answer,) = flashinfer.cutlass_fused_moe(**arguments(problem), output=output)
    assert answer is output
    assert torch.equal(answer, oracle(oracle.prepare(problem)))


def test_any_parameter_makes_swiglu_bias_of_swiglu(arguments: Any) -> None:
    """With the others at the package's defaults: alpha 1, beta 0, no limit."""
    call = arguments(build(replace(SCENARIO, activation=Swiglu())))
    limit = torch.full((4,), 0.25)
    (answer,) = flashinfer.cutlass_fused_moe(**call, swiglu_limit=limit)
    oracle = EmulatedSm120()
    same = build(replace(SCENARIO, activation=SwigluOai(alpha=1.0, beta=0.0, limit=0.25)))
    assert torch.equal(answer, oracle(oracle.prepare(same)))
    assert not torch.equal(answer, flashinfer.cutlass_fused_moe(**call)[0])


def test_situ_without_parameters_has_those_of_kimi_k3(arguments: Any) -> None:
    call = arguments(build(replace(SCENARIO, activation=Situ(beta=4.0, linear_beta=25.0))))
    (answer,) = flashinfer.cutlass_fused_moe(**call)
    (plain,) = flashinfer.cutlass_fused_moe(**{name: value for name, value in call.items() if "situ" not in name})
    assert torch.equal(answer, plain)


def test_input_scales_may_lie_row_by_row(arguments: Any) -> None:
    problem = build(SCENARIO)
    call = arguments(problem)
    (answer,) = flashinfer.cutlass_fused_moe(**call)
    rows = {"input_sf": problem.hidden_scale, "swizzled_input_sf": False}
    assert torch.equal(answer, flashinfer.cutlass_fused_moe(**call | rows)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_mxfp8_act_scaling": False}, "only use_mxfp8_act_scaling is emulated"),
        ({"use_w4_group_scaling": True}, "only use_mxfp8_act_scaling is emulated"),
        ({"input": torch.zeros(5, 256, dtype=torch.bfloat16)}, "must be .torch.float8_e4m3fn, torch.int64"),
        ({"fc2_expert_weights": torch.zeros(4, 256, 6, dtype=torch.int64)}, "I = 96: must be multiples of 128"),
        ({"fc2_expert_weights": torch.zeros(4, 256, 16, dtype=torch.int64)}, "must have .4, 512, 128. by those"),
        ({"activation_type": flashinfer.ActivationType.SwigluStep}, "emulated are Swiglu, SwigluBias and Situ"),
    ],
)
def test_what_the_kernel_refuses_is_refused(change: dict[str, Any], message: str, arguments: Any) -> None:
    with pytest.raises(ValueError, match=f"^cutlass_fused_moe: .*{message}"):
        flashinfer.cutlass_fused_moe(**arguments(build(SCENARIO)) | change)


def test_a_scale_that_is_not_padded_is_refused(arguments: Any) -> None:
    call = arguments(build(SCENARIO))
    call["quant_scales"][2] = call["quant_scales"][2][:, :-1].contiguous()
    with pytest.raises(ValueError, match=r"quant_scales\[2\] has 4080 bytes, must be 4096"):
        flashinfer.cutlass_fused_moe(**call)


def test_scales_are_tiled_matrix_by_matrix() -> None:
    scale = torch.randint(0, 256, (3, 130, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(flashinfer.block_scale_interleave(scale), swizzle_scale(scale).flatten())
    assert torch.equal(flashinfer.block_scale_interleave(scale[1]), swizzle_scale(scale[1]))


def test_the_quantiser_pads_and_gives_the_formats_codes() -> None:
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    codes, scale = flashinfer.mxfp8_quantize(x, is_sf_swizzled_layout=False, alignment=64)
    payload, byte = formats.mxfp8_quantize(torch.nn.functional.pad(x, (0, 32)).double())
    assert torch.equal(codes.view(torch.uint8) & 0x7F, payload & 0x7F)
    assert torch.equal(scale, byte.flatten())
    assert torch.equal(flashinfer.mxfp8_quantize(x, alignment=64)[1], swizzle_scale(byte))


def test_it_is_imported_in_the_place_of_the_package_and_gone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("flashinfer", "flashinfer.fused_moe", "flashinfer.fused_moe.core")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    own = object()
    monkeypatch.setitem(sys.modules, names[1], own)  # type: ignore[arg-type]  # any object will do
    with flashinfer.imported():
        brought = [importlib.import_module(name) for name in names]
        assert brought[0].mxfp8_quantize is flashinfer.mxfp8_quantize
        assert brought[1].cutlass_fused_moe is flashinfer.cutlass_fused_moe
        assert brought[2].ActivationType is flashinfer.ActivationType
    assert [sys.modules.get(name) for name in names] == [None, own, None]
