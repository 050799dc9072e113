"""The call of FlashInfer in a report's script is the oracle's, argument by argument."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from oracles import cutlass_sm90, cutlass_sm120, reproductions
from oracles import flashinfer_package as package
from oracles.cutlass_path import Path as CallPath
from oracles.problem import Problem, build
from strategies import Scenario, Shape
from strategies.scenario import Precision

SHAPE = Shape(tokens=3, hidden=256, intermediate=128, experts=2, top_k=2)


def cutlass_fused_moe(*, situ_beta: Any = None) -> None:
    del situ_beta


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a script, where a GPU is the CPU and the package's own conversions are plain marks."""
    fused_moe = SimpleNamespace(
        ActivationType=SimpleNamespace(Swiglu=3),
        cutlass_fused_moe=cutlass_fused_moe,
        interleave_moe_weights_for_sm90_mixed_gemm=lambda packed, kind: packed ^ len(kind),
        interleave_moe_scales_for_sm90_mixed_gemm=lambda scales: scales.repeat_interleave(4, -1),
    )
    flashinfer = ModuleType("flashinfer")
    flashinfer.fused_moe = fused_moe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setattr(package, "module", lambda _: fused_moe)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    spec = importlib.util.spec_from_file_location("script", Path(reproductions.__path__[0]) / "cutlass.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def namespace(problem: Problem) -> SimpleNamespace:
    names = "hidden_states hidden_q hidden_scale topk_ids topk_weights w13 w13_scale w2 w2_scale w13_bias w2_bias"
    names += " num_experts ep_size ep_rank routed_scaling_factor output_dtype"
    found = {name: getattr(problem, name) for name in names.split()}
    return SimpleNamespace(
        **found, activation="swiglu", moe_tp_size=1, moe_tp_rank=0, pdl=None, fused_finalize=None, poison=0
    )


@pytest.mark.parametrize(
    ("precision", "path"), [("bf16xmxfp4", cutlass_sm90.PATH), ("mxfp8xmxfp4", cutlass_sm120.path((0, 7, 0)))]
)
def test_weights_scales_and_states_are_the_oracles(script: Any, precision: Precision, path: CallPath) -> None:
    problem = build(Scenario(shape=SHAPE, precision=precision))
    expected = {**path.states(problem, torch.clone), **path.layer(problem, torch.clone), **path.flags}
    call = script.arguments(namespace(problem))
    own = {"token_selected_experts", "token_final_scales", "output_dtype", "tp_size", "tp_rank", "ep_size", "ep_rank"}
    assert set(call) - own - {"enable_pdl", "use_fused_finalize", "activation_type"} == set(expected)
    for name, value in expected.items():
        pairs = zip(value, call[name], strict=True) if isinstance(value, list) else [(value, call[name])]
        for mine, its in pairs:
            if isinstance(mine, bool):
                assert its is mine, name
            else:
                assert (its.dtype, its.shape) == (mine.dtype, mine.shape), name
                assert torch.equal(its.view(torch.uint8), mine.view(torch.uint8)), name
    assert (call["input"].dtype, call["fc2_expert_weights"].dtype) == (path.x_dtype, path.weight_dtype)
