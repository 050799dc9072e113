"""The call of sglang's Marlin layer in a report's script, with a repacking kernel in plain torch and no GEMM."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from oracles import marlin_layouts as layouts
from oracles.problem import Problem, build
from strategies import Layer, MaskRow, Parallel, Routing, Scenario, Shape, Situ, Swiglu, SwigluOai

SHAPE = Shape(tokens=3, hidden=128, intermediate=96, experts=4, top_k=2)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answers with the arguments that the script's kernel gets for a problem."""
    names = "sglang", "kernels", "ops", "quantization", "gptq_marlin_repack"
    other = "sglang", "srt", "layers", "moe", "fused_moe_triton", "fused_marlin_moe"
    for parts in (names, other):
        for count in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(parts[count - 1]))
    seen: dict[str, Any] = {}

    def repack(word: torch.Tensor, _: torch.Tensor, columns: int, rows: int, bits: int) -> torch.Tensor:
        assert (word.shape, bits) == ((columns // 8, rows), 4)
        return layouts.repack_weight(word.T.contiguous().view(torch.uint8)[None])[0]

    def fused_marlin_moe(states: torch.Tensor, *operands: torch.Tensor, **keywords: Any) -> torch.Tensor:
        seen.update(keywords)
        seen["operands"] = operands
        return states

    sys.modules[".".join(names)].gptq_marlin_repack = repack  # type: ignore[attr-defined]
    sys.modules[".".join(other)].fused_marlin_moe = fused_marlin_moe  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "oracles.reproductions.marlin", raising=False)
    module = importlib.import_module("oracles.reproductions.marlin")
    monkeypatch.delitem(sys.modules, "oracles.reproductions.marlin")

    def run(problem: Problem) -> dict[str, Any]:
        fields = {name: value for name, value in vars(problem).items() if name != "activation"}
        vectors = vars(problem.activation).items()
        layer = problem.scenario.layer
        module.marlin(
            SimpleNamespace(
                **fields,
                activation=problem.activation.kind,
                parameters={name: value for name, value in vectors if isinstance(value, torch.Tensor)},
                first_expert=problem.first_expert,
                moe_tp_rank=layer.moe_tp_rank,
            )
        )
        return seen

    return run


def test_weights_are_padded_and_permuted_as_the_oracle_does(call: Any) -> None:
    problem = build(Scenario(shape=SHAPE, layer=Layer(biases="per_expert", routed_scaling_factor=2.5)))
    arguments = call(problem)
    w1, w2, w1_scale, w2_scale, gating, weights, ids = arguments["operands"]
    pad, wide = layouts.pad_rows, layouts.pad_columns
    assert torch.equal(w1, layouts.repack_weight(pad(problem.w13, 128)))
    assert torch.equal(w2, layouts.repack_weight(wide(problem.w2, 64)))
    for got, scale in ((w1_scale, pad(problem.w13_scale, 128)), (w2_scale, wide(problem.w2_scale, 4))):
        assert torch.equal(got.view(torch.uint8), layouts.permute_scale(scale))
    assert problem.w13_bias is not None
    assert problem.w2_bias is not None
    assert torch.equal(arguments["w1_bias"], layouts.permute_bias(pad(problem.w13_bias, 128)))
    assert torch.equal(arguments["w2_bias"], layouts.permute_bias(problem.w2_bias))
    assert torch.equal(weights, problem.router_weights)
    assert torch.equal(ids, problem.topk_ids)
    assert gating.shape == (3, 4)
    assert arguments["num_bits"] == 4


def test_a_rank_has_a_map_and_its_own_ids(call: Any) -> None:
    given = Scenario(shape=SHAPE, parallel=Parallel(ep_size=2, ep_rank=1), routing=Routing(edits=(MaskRow(token=1),)))
    problem = build(given)
    arguments = call(problem)
    assert torch.equal(arguments["operands"][-1].long(), problem.local_ids)
    assert arguments["expert_map"].tolist() == [-1, -1, 0, 1]
    assert arguments["global_num_experts"] == 4


@pytest.mark.parametrize(
    ("activation", "told"),
    [
        (Swiglu(), {"activation": "silu"}),
        (SwigluOai(alpha=1.5, limit=5.0), {"activation": "silu", "gemm1_alpha": 1.5, "clamp_limit": 5.0}),
        (Situ(beta=3.0, linear_beta=20.0), {"activation": "situ", "gemm1_alpha": 3.0, "clamp_limit": 20.0}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_activation_is_told(call: Any, activation: Any, told: dict[str, Any]) -> None:
    arguments = call(build(Scenario(shape=SHAPE, activation=activation)))
    assert {name: arguments[name] for name in told} == told


def test_what_the_layer_cannot_say_is_an_error(call: Any) -> None:
    with pytest.raises(ValueError, match="swiglu_oai with beta = 0"):
        call(build(Scenario(shape=SHAPE, activation=SwigluOai(beta=0.0))))
