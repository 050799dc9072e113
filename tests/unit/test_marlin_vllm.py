"""vLLM as the backend of `marlin`: its arguments, with a stand-in for the package that computes the layer plainly."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib.machinery
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from difftest import fingerprint
from difftest.judging.compare import judge
from oracles import base, formats, marlin, marlin_vllm, sglang_package
from oracles.marlin import VLLM_NUMERICS, Marlin
from oracles.problem import build
from oracles.reference import enclose
from strategies.scenario import (
    Execution,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Situ,
    SwigluOai,
)

E2M1 = 562949953487106
BASE = Scenario(shape=Shape(tokens=5, hidden=128, intermediate=64, experts=4, top_k=2))


class MoEActivation(enum.Enum):
    SILU = "silu"
    SITU = "situ"
    SWIGLUOAI = "swigluoai"  # rows in turn: the wrong one
    SWIGLUOAI_UNINTERLEAVE = "swigluoai_uninterleave"


@dataclass(frozen=True)
class ApplyMoEActivationConfig:
    clamp_limit: float | None = None
    alpha: float = 1.0
    beta: float = 0.0
    activation_situ_beta: float | None = None
    activation_situ_linear_beta: float | None = None


class StandIn:
    """What the oracle calls. seen: arguments of each call."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def prepare(
        self,
        layer: torch.nn.Module,
        w13: Tensor,
        w2: Tensor,
        w13_scale: Tensor,
        w2_scale: Tensor,
        w13_bias: Tensor | None,
        w2_bias: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        assert layer.params_dtype == torch.bfloat16
        experts, rows, half = w13.shape
        assert rows % 128 == 0  # whole tiles of each half
        assert (w13_scale.shape, w13_scale.dtype) == ((experts, rows, half // 16), torch.uint8)
        assert (w2.shape[2], w2_scale.shape[2]) == (rows // 4, rows // 64)
        assert w2.is_contiguous()
        assert w2_scale.is_contiguous()
        return w13, w2, w13_scale, w2_scale, w13_bias, w2_bias

    def fused_marlin_moe(
        self,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        bias1: Tensor | None,
        bias2: Tensor | None,
        w1_scale: Tensor,
        w2_scale: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        quant_type_id: int,
        global_num_experts: int = -1,
        activation: MoEActivation = MoEActivation.SILU,
        expert_map: Tensor | None = None,
        intermediate_cache13: Tensor | None = None,
        intermediate_cache2: Tensor | None = None,
        output: Tensor | None = None,
        activation_config: ApplyMoEActivationConfig | None = None,
    ) -> Tensor:
        self.seen.append(dict(locals()))
        assert quant_type_id == E2M1
        assert topk_weights.dtype == torch.float32
        assert topk_ids.dtype == torch.int32
        assert output is not None
        assert activation_config is not None
        tokens, slots = topk_ids.shape
        inner = w2.shape[2] * 2
        assert intermediate_cache13 is not None
        assert intermediate_cache13.numel() == tokens * slots * max(2 * inner, hidden_states.shape[1])
        assert intermediate_cache2 is not None
        assert intermediate_cache2.shape == (tokens * slots, inner)
        total = torch.zeros(output.shape)
        if expert_map is None:
            total[(topk_ids < 0).any(1)] = torch.nan  # its sum takes rows that nothing wrote
        for token in range(tokens):
            for slot in range(slots):
                expert = int(topk_ids[token, slot])
                if expert_map is not None and expert >= 0:
                    expert = int(expert_map[expert])
                if expert < 0:
                    continue
                h = (hidden_states[token].float() @ _dequantised(w1[expert], w1_scale[expert]).T).bfloat16()
                h = h if bias1 is None else h + bias1[expert]
                a = _activated(h.float(), activation, activation_config).bfloat16()
                y = (a.float() @ _dequantised(w2[expert], w2_scale[expert]).T).bfloat16()
                y = y if bias2 is None else y + bias2[expert]
                total[token] += (y * topk_weights[token, slot].bfloat16()).float()
        output.copy_(total)
        return output


def _dequantised(packed: Tensor, scale: Tensor) -> Tensor:
    codes = formats.unpack(packed)
    return (formats.e2m1_decode(codes) * formats.e8m0_decode(scale).repeat_interleave(32, -1)).float()


def _activated(h: Tensor, activation: MoEActivation, config: ApplyMoEActivationConfig) -> Tensor:
    gate, up = h.chunk(2, dim=-1)
    match activation:
        case MoEActivation.SILU:
            return (gate * torch.sigmoid(gate)).bfloat16().float() * up
        case MoEActivation.SWIGLUOAI_UNINTERLEAVE:
            assert config.clamp_limit is not None
            gate, up = gate.clamp(max=config.clamp_limit), up.clamp(-config.clamp_limit, config.clamp_limit)
            return (gate * torch.sigmoid(config.alpha * gate)).bfloat16().float() * (up + config.beta)
        case MoEActivation.SITU:
            beta, linear = config.activation_situ_beta, config.activation_situ_linear_beta
            assert beta is not None
            assert linear is not None
            half = torch.tanh(gate / 2) + 1
            return beta / 2 * torch.tanh(gate * (1 / beta)) * half * (linear * torch.tanh(up * (1 / linear)))
    raise AssertionError(activation)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The package, without sglang beside it, and this processor for a device."""
    made = StandIn()
    layers = "vllm.model_executor.layers"
    content: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.model_executor": {},
        layers: {},
        f"{layers}.fused_moe": {},
        f"{layers}.fused_moe.experts": {},
        f"{layers}.fused_moe.experts.marlin_moe": {"fused_marlin_moe": made.fused_marlin_moe},
        f"{layers}.fused_moe.activation": {
            "MoEActivation": MoEActivation,
            "ApplyMoEActivationConfig": ApplyMoEActivationConfig,
        },
        f"{layers}.quantization": {},
        f"{layers}.quantization.utils": {},
        f"{layers}.quantization.utils.marlin_utils_fp4": {"prepare_moe_mxfp4_layer_for_marlin": made.prepare},
        "vllm.scalar_type": {"scalar_types": SimpleNamespace(float4_e2m1f=SimpleNamespace(id=E2M1))},
    }
    for name, attributes in content.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sglang_package, "version", lambda: None)
    monkeypatch.setattr(marlin, "_device", lambda tensor: tensor.device)
    monkeypatch.setattr(marlin, "_current", lambda _: contextlib.nullcontext())
    return made


SCENARIOS = {
    "plain": BASE,
    "SiTU": dataclasses.replace(BASE, activation=Situ(beta=3.0, linear_beta=20.0)),
    "SwiGLU-OAI, biases": dataclasses.replace(
        BASE, activation=SwigluOai(alpha=1.25, beta=0.5, limit=5.0), layer=Layer(biases="per_expert")
    ),
    "rank 1 of 2, masked": dataclasses.replace(
        BASE, parallel=Parallel(ep_size=2, ep_rank=1), routing=Routing(edits=(MaskSlot(token=1, slot=0),))
    ),
    "masked": dataclasses.replace(BASE, routing=Routing(edits=(MaskSlot(token=1, slot=0),))),
    "I is padded": dataclasses.replace(BASE, shape=dataclasses.replace(BASE.shape, intermediate=96)),
    "a factor": dataclasses.replace(BASE, layer=Layer(routed_scaling_factor=2.5)),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_layer_is_inside_its_enclosure(name: str, stand_in: StandIn) -> None:
    oracle, scenario = Marlin(), SCENARIOS[name]
    assert oracle.backend == "vllm"
    assert oracle.unsupported(scenario) is None
    problem = build(scenario)
    output = oracle(oracle.prepare(problem))
    assert judge(output, enclose(problem, VLLM_NUMERICS), VLLM_NUMERICS).breaches == ()
    (call,) = stand_in.seen
    assert torch.equal(call["topk_ids"], problem.topk_ids)  # global
    assert call["global_num_experts"] == 4
    mapped = call["expert_map"]
    maps = {"rank 1 of 2, masked": [-1, -1, 0, 1], "masked": [0, 1, 2, 3]}
    assert (None if mapped is None else mapped.tolist()) == maps.get(name)


def test_the_rounding_of_the_activated_gate_is_its_own(stand_in: StandIn) -> None:
    problem = build(BASE)
    oracle = Marlin()
    output = oracle(oracle.prepare(problem))
    assert judge(output, enclose(problem, marlin.NUMERICS), marlin.NUMERICS).breaches
    assert stand_in.seen


def test_poison_fills_what_a_call_works_in(stand_in: StandIn) -> None:
    oracle = Marlin()
    prepared = oracle.prepare(build(dataclasses.replace(BASE, execution=Execution(poison=0x7F))))
    prepared.poison()
    oracle.launch(prepared)
    assert stand_in.seen[0]["output"] is prepared.output
    caches = (stand_in.seen[0][name] for name in ("intermediate_cache13", "intermediate_cache2"))
    assert all(bool((cache.view(torch.uint8) == 0x7F).all()) for cache in caches)


def test_the_fingerprint_says_which_was_used(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    versions = {"vllm": "0.99", "sglang": "0.5.23"}
    monkeypatch.setattr(fingerprint.importlib.metadata, "version", versions.__getitem__)
    assert fingerprint.packages_of(Marlin()) == {"vllm": "0.99"}
    assert fingerprint.packages_of(base.get("oracles.marlin:vllm")) == {"vllm": "0.99"}
    monkeypatch.setattr(sglang_package, "version", lambda: (0, 5, 23))
    assert Marlin().backend == "sglang"  # where both are there


def test_an_empty_batch_is_not_promised(stand_in: StandIn) -> None:
    empty = dataclasses.replace(BASE, shape=dataclasses.replace(BASE.shape, tokens=0))
    assert Marlin().unsupported(empty) == "M = 0"
    assert Marlin(backend="sglang").unsupported(empty) is None
    assert stand_in.seen == []


def test_what_is_missing_is_said(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert marlin_vllm.missing() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert marlin_vllm.missing() == "Marlin needs a device of SM80 or later, and this one is SM75"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert str(marlin_vllm.missing()).startswith("vllm's kernels cannot be loaded")
    monkeypatch.setattr(marlin_vllm, "_has_kernels", lambda: True)
    assert marlin_vllm.missing() is None
    module = sys.modules["vllm.model_executor.layers.fused_moe.experts.marlin_moe"]
    monkeypatch.setattr(module, "fused_marlin_moe", lambda hidden_states: hidden_states)
    assert str(marlin_vllm.missing()).startswith("vllm's fused_marlin_moe takes no activation_config yet")
    monkeypatch.delattr(module, "fused_marlin_moe")
    assert str(marlin_vllm.missing()).startswith("vllm cannot be imported")
    monkeypatch.delitem(sys.modules, "vllm")
    assert marlin_vllm.missing() == "not installed: pip install vllm"
    assert Marlin().backend == "sglang"
    assert stand_in.seen == []
