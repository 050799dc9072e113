"""A problem has the same bits on a CUDA device as on the CPU, and grouped-mm keeps its promises there."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from oracles.grouped_mm import GroupedMM
from oracles.problem import Problem, build
from strategies.scenario import (
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPE = Shape(tokens=37, hidden=288, intermediate=128, experts=24, top_k=5)
EDITS = tuple(
    ValueEdit(tensor="hidden_states", index=(row, 3), value=value)
    for row, value in enumerate(("nan", "inf", "-inf", "0", "-0", "max", "-max", "min_subnormal"))
)
ROUTING_EDITS = (
    MaskRow(token=9),
    DuplicateSlot(token=10, slot=1, source=0),
    SetWeight(token=11, slot=2, weight=float("nan")),
)
VALUE_RULES = ("normal", "integer", "index", "one_hot", "wide")
ROUTING_RULES = ("uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties")
ACTIVATIONS = (Swiglu(), SwigluOai(per_expert=True), Situ(per_expert=True))


def tensors(problem: Problem) -> dict[str, torch.Tensor]:
    both = vars(problem) | {f"activation.{name}": value for name, value in vars(problem.activation).items()}
    return {name: value for name, value in both.items() if isinstance(value, torch.Tensor)}


def assert_same_bits(scenario: Scenario) -> None:
    on_cpu, on_gpu = tensors(build(scenario)), tensors(build(scenario, "cuda"))
    assert on_cpu.keys() == on_gpu.keys()
    for name, want in on_cpu.items():
        got = on_gpu[name]
        assert got.is_cuda, name
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        assert torch.equal(got.cpu().contiguous().view(torch.uint8), want.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("precision", ["bf16xmxfp4", "mxfp8xmxfp4"])
@pytest.mark.parametrize("rule", VALUE_RULES)
def test_values_have_the_same_bits(rule: str, precision: str) -> None:
    assert_same_bits(
        Scenario(
            shape=SHAPE,
            parallel=Parallel(ep_size=3, ep_rank=1),
            precision=precision,
            activation=Situ(per_expert=True),
            layer=Layer(biases="per_expert", moe_tp_size=2),
            values=Values(rule=rule, seed=3, x_exponent=-7, scale_low=0, scale_high=255, edits=EDITS),
            execution=Execution(padding=3),
        )
    )


@pytest.mark.parametrize("rule", ROUTING_RULES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_routing_has_the_same_bits(rule: str, seed: int) -> None:
    for shape in (SHAPE, Shape(tokens=128, hidden=32, intermediate=32, experts=896, top_k=16)):
        routing = Routing(rule=rule, seed=seed, edits=ROUTING_EDITS)
        assert_same_bits(Scenario(shape=shape, parallel=Parallel(ep_size=8, ep_rank=5), routing=routing))


def test_a_real_rank_has_the_same_bits() -> None:
    shape = Shape(tokens=128, hidden=3584, intermediate=3072, experts=896, top_k=16)
    assert_same_bits(Scenario(shape=shape, parallel=Parallel(ep_size=224, ep_rank=7)))


@pytest.mark.parametrize("tokens", [0, 1, 37])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_grouped_mm_on_the_device_agrees_with_the_cpu(tokens: int, activation: Swiglu | SwigluOai | Situ) -> None:
    oracle = GroupedMM()
    for rule, ep_size in itertools.product(ROUTING_RULES, (1, 4)):
        scenario = Scenario(
            shape=dataclasses.replace(SHAPE, tokens=tokens),
            parallel=Parallel(ep_size=ep_size, ep_rank=ep_size - 1),
            activation=activation,
            layer=Layer(biases="per_expert", routed_scaling_factor=2.5),
            routing=Routing(rule=rule),
            execution=Execution(padding=2),
        )
        want = oracle(oracle.prepare(build(scenario))).double()
        got = oracle(oracle.prepare(build(scenario, "cuda")))
        assert got.is_cuda
        assert got.dtype == torch.bfloat16
        assert (got[tokens:] == 0).all()
        error = (got.cpu().double() - want).abs()
        assert not error.numel() or error.max() <= 0.01 * want.abs().max()


def test_special_values_stay_in_their_rows_on_the_device() -> None:
    oracle = GroupedMM()
    base = Scenario(shape=SHAPE)
    want = oracle(oracle.prepare(build(base, "cuda")))
    for value in ("nan", "inf", "-inf"):
        edit = ValueEdit(tensor="hidden_states", index=(4, 11), value=value)
        got = oracle(oracle.prepare(build(dataclasses.replace(base, values=Values(edits=(edit,))), "cuda")))
        others = torch.arange(37, device="cuda") != 4
        assert torch.equal(got[others], want[others])
        assert not got[4].isfinite().all()
