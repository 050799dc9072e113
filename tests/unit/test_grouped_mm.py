"""grouped-mm against a loop over tokens and slots in float64, written from the layer's definition alone."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest
import torch

from oracles.grouped_mm import GroupedMM
from oracles.problem import Problem, build
from strategies.scenario import (
    Activation,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    MaskSlot,
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

SHAPE = Shape(tokens=7, hidden=128, intermediate=96, experts=8, top_k=3)
ACTIVATIONS: tuple[Activation, ...] = (
    Swiglu(),
    SwigluOai(limit=1.5),
    SwigluOai(per_expert=True),
    Situ(beta=1.0, linear_beta=2.0),
    Situ(per_expert=True),
)


def run(problem: Problem) -> torch.Tensor:
    oracle = GroupedMM()
    assert oracle.unsupported(problem.scenario) is None
    return oracle(oracle.prepare(problem))


def answer(scenario: Scenario) -> torch.Tensor:
    return run(build(scenario))


E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)

# --- the loop ------------------------------------------------------------------------------------------------------


def bfloat16(value: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return value.astype(ml_dtypes.bfloat16).astype(np.float64)


def dequantized(packed: torch.Tensor, scale: torch.Tensor) -> np.ndarray:
    codes = np.stack((packed.numpy() & 15, packed.numpy() >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
    factors = scale.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    return bfloat16(E2M1[codes] * np.repeat(factors, 32, axis=-1))


def activated(problem: Problem, expert: int, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    def of(parameter: torch.Tensor | None) -> float:
        return parameter[expert].item()

    def sigmoid(z: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-z))

    params = problem.activation
    match params.kind:
        case "swiglu":
            return gate * sigmoid(gate) * up
        case "swiglu_oai":
            limit = of(params.limit)
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            return gate * sigmoid(of(params.alpha) * gate) * (up + of(params.beta))
        case "situ":
            beta, linear = of(params.beta), of(params.linear_beta)
            return beta * np.tanh(gate / beta) * sigmoid(gate) * linear * np.tanh(up / linear)
    raise AssertionError(params.kind)


def loop(problem: Problem) -> np.ndarray:
    """float64 [M, H], rounded to bfloat16 where the recipe rounds."""
    x = problem.hidden_states.double().numpy()
    weights = (problem.topk_weights * problem.routed_scaling_factor).double().numpy()
    local = problem.w13.shape[0]
    out = np.zeros((len(x), problem.w2.shape[1]))
    for token in range(len(x)):
        for slot, expert in enumerate(problem.topk_ids[token].tolist()):
            mine = expert - problem.ep_rank * local
            if not 0 <= mine < local:
                continue
            h = bfloat16(dequantized(problem.w13[mine], problem.w13_scale[mine]) @ x[token])
            if problem.w13_bias is not None:
                h = h + problem.w13_bias[mine].double().numpy()
            a = bfloat16(activated(problem, mine, *np.split(h, 2)))
            y = bfloat16(dequantized(problem.w2[mine], problem.w2_scale[mine]) @ a)
            if problem.w2_bias is not None:
                y = y + problem.w2_bias[mine].double().numpy()
            out[token] += weights[token, slot] * y
    return out


def agrees(problem: Problem, *, exact_share: float = 0.7) -> None:
    """Most outputs are the loop's, rounded; the others are off by what a flipped rounding of the intermediate does."""
    got, exact = run(problem).double().numpy(), loop(problem)
    want = bfloat16(exact)
    scale = np.sqrt(np.mean(want**2))
    assert scale > 0
    assert np.abs(got - want).max() <= 0.01 * np.abs(want).max()
    assert np.sqrt(np.mean((got - want) ** 2)) <= 1e-3 * scale
    assert (got == want).mean() >= exact_share


# --- the layer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("biases", ["none", "per_expert"])
def test_agrees_with_the_loop(activation: Activation, biases: str) -> None:
    agrees(
        build(
            Scenario(
                shape=SHAPE,
                activation=activation,
                layer=Layer(biases=biases, routed_scaling_factor=2.5),
                values=Values(scale_low=121, scale_high=124),
            )
        )
    )


@pytest.mark.parametrize("rule", ["integer", "index", "one_hot", "wide"])
def test_agrees_under_every_value_rule(rule: str) -> None:
    agrees(build(Scenario(shape=SHAPE, values=Values(rule=rule))))


@pytest.mark.parametrize("rule", ["uniform", "skewed", "all_to_one", "round_robin", "empty_experts", "ties"])
@pytest.mark.parametrize("ep_rank", [0, 1])
def test_agrees_under_every_routing_rule(rule: str, ep_rank: int) -> None:
    seed = 2 * ep_rank  # even: all_to_one takes an expert of this rank
    problem = build(
        Scenario(shape=SHAPE, parallel=Parallel(ep_size=2, ep_rank=ep_rank), routing=Routing(rule=rule, seed=seed))
    )
    if (problem.local_ids >= 0).any():
        agrees(problem)
    else:
        assert (run(problem) == 0).all()


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(tokens=1, hidden=64, experts=16, top_k=16),
        Shape(tokens=130, hidden=32, intermediate=32, experts=2, top_k=1),
        Shape(tokens=3, hidden=1024, intermediate=512, experts=2, top_k=2),
        Shape(tokens=33, hidden=96, intermediate=160, experts=3, top_k=2),
    ],
)
def test_agrees_at_corner_shapes(shape: Shape) -> None:
    agrees(build(Scenario(shape=shape)), exact_share=0.5)


def test_weights_that_are_dequantised_in_several_parts() -> None:
    agrees(build(Scenario(shape=Shape(tokens=4, hidden=512, intermediate=512, experts=6, top_k=2))))


def test_integers_are_bit_exact() -> None:
    """Integer data leaves the activation alone to err; with a large gate its sigmoid is 1 but for the last bits."""
    problem = build(Scenario(shape=SHAPE, values=Values(rule="integer"), layer=Layer(biases="per_expert")))
    assert torch.equal(run(problem).double(), torch.from_numpy(bfloat16(loop(problem))))


def test_ranks_of_expert_parallelism_add_up() -> None:
    whole = loop(build(Scenario(shape=SHAPE, layer=Layer(biases="per_expert"), routing=Routing(rule="round_robin"))))
    total = np.zeros_like(whole)
    for rank in range(4):
        scenario = Scenario(
            shape=SHAPE,
            parallel=Parallel(ep_size=4, ep_rank=rank),
            layer=Layer(biases="per_expert"),
            routing=Routing(rule="round_robin"),
        )
        total += answer(scenario).double().numpy()
    assert np.abs(total - whole).max() <= 0.02 * np.abs(whole).max()


def test_ranks_of_moe_tp_add_up() -> None:
    shape = dataclasses.replace(SHAPE, intermediate=128)
    layers = [Layer(biases="per_expert", moe_tp_size=4, moe_tp_rank=rank) for rank in range(4)]
    problems = [build(Scenario(shape=shape, layer=layer)) for layer in layers]
    for problem in problems:
        agrees(problem, exact_share=0.5)
    total = sum(run(problem).double().numpy() for problem in problems)
    whole = loop(build(Scenario(shape=shape, layer=Layer(biases="per_expert"))))
    assert np.abs(total - whole).max() <= 0.02 * np.abs(whole).max()


def test_output_is_float16_when_asked() -> None:
    scenario = Scenario(shape=SHAPE, output_dtype="float16")
    problem = build(scenario)
    got = run(problem)
    assert got.dtype == torch.float16
    assert np.abs(got.double().numpy() - loop(problem)).max() <= 2e-3 * np.abs(loop(problem)).max()


def test_sums_the_slots_in_order_in_float32() -> None:
    """Slot weights 2**40, 1, -2**40 on one expert: the 1 is lost before the third slot cancels the first."""
    edits = (
        DuplicateSlot(token=0, slot=1, source=0),
        DuplicateSlot(token=0, slot=2, source=0),
        SetWeight(token=0, slot=0, weight=2.0**40),
        SetWeight(token=0, slot=1, weight=1.0),
        SetWeight(token=0, slot=2, weight=-(2.0**40)),
    )
    assert (answer(Scenario(shape=SHAPE, routing=Routing(edits=edits)))[0] == 0).all()


# --- what a user replaces in a problem -----------------------------------------------------------------------------


def test_the_tensors_of_the_problem_are_what_counts() -> None:
    problem = build(
        Scenario(
            shape=SHAPE,
            parallel=Parallel(ep_size=2, ep_rank=1),
            activation=Situ(per_expert=True),
            layer=Layer(biases="per_expert"),
        )
    )
    other = build(
        Scenario(
            shape=SHAPE,
            parallel=Parallel(ep_size=2, ep_rank=0),
            activation=SwigluOai(per_expert=True),
            layer=Layer(biases="per_expert", routed_scaling_factor=3.0),
            routing=Routing(seed=5),
            values=Values(seed=5, scale_low=120, scale_high=124),
        )
    )
    before = run(problem)
    for name in (
        "hidden_states",
        "topk_ids",
        "topk_weights",
        "w13",
        "w13_scale",
        "w2",
        "w2_scale",
        "w13_bias",
        "w2_bias",
        "activation",
        "ep_rank",
        "routed_scaling_factor",
    ):
        changed = dataclasses.replace(problem, **{name: getattr(other, name)})
        assert not torch.equal(run(changed), before), name
        agrees(changed, exact_share=0.5)
    for name in ("w13_bias", "w2_bias"):
        agrees(dataclasses.replace(problem, **{name: None}), exact_share=0.5)


def test_inputs_are_left_alone_and_calls_repeat() -> None:
    problem = build(Scenario(shape=SHAPE, activation=SwigluOai(), layer=Layer(biases="per_expert")))
    kept = {name: value.clone() for name, value in vars(problem).items() if isinstance(value, torch.Tensor)}
    oracle = GroupedMM()
    prepared = oracle.prepare(problem)
    first, second = oracle(prepared), oracle(prepared)
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()
    for name, value in kept.items():
        assert torch.equal(getattr(problem, name), value), name


# --- slots that take no part ---------------------------------------------------------------------------------------


def test_a_duplicate_expert_counts_twice() -> None:
    edits = (DuplicateSlot(token=0, slot=1, source=0), DuplicateSlot(token=0, slot=2, source=0))
    agrees(build(Scenario(shape=SHAPE, routing=Routing(edits=edits))))


def test_masked_and_foreign_slots_add_exactly_nothing() -> None:
    base = Scenario(
        shape=SHAPE,
        parallel=Parallel(ep_size=4, ep_rank=2),
        routing=Routing(edits=(MaskSlot(token=0, slot=0), MaskRow(token=1))),
    )
    problem = build(base)
    dead = problem.local_ids == -1
    assert dead.any()
    assert not dead.all()
    before = run(problem)
    poisoned = dataclasses.replace(problem, topk_weights=torch.where(dead, math.nan, problem.topk_weights))
    assert torch.equal(run(poisoned), before)
    gone = dataclasses.replace(problem, topk_ids=torch.where(dead, -1, problem.topk_ids))
    assert torch.equal(run(gone), before)
    silent = dead.all(dim=1)
    assert silent.any()
    assert (before[silent].view(torch.int16) == 0).all(), "a row of no local expert is +0"


def test_no_local_slot_at_all() -> None:
    scenario = Scenario(
        shape=SHAPE,
        parallel=Parallel(ep_size=2, ep_rank=1),
        layer=Layer(biases="per_expert"),
        routing=Routing(rule="remote_only"),
    )
    assert (answer(scenario).view(torch.int16) == 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_tokens(activation: Activation) -> None:
    scenario = Scenario(
        shape=dataclasses.replace(SHAPE, tokens=0), activation=activation, layer=Layer(biases="per_expert")
    )
    got = answer(scenario)
    assert (got.shape, got.dtype) == ((0, 128), torch.bfloat16)


def test_padding_rows_are_zero_and_change_nothing() -> None:
    plain = Scenario(shape=SHAPE)
    got = answer(dataclasses.replace(plain, execution=Execution(padding=5)))
    assert torch.equal(got[:7], answer(plain))
    assert (got[7:].view(torch.int16) == 0).all()


def test_weights_of_absent_experts_may_be_anything() -> None:
    problem = build(Scenario(shape=SHAPE, routing=Routing(rule="all_to_one")))
    absent = ~torch.isin(torch.arange(8), problem.topk_ids)
    broken = dataclasses.replace(problem, w13_scale=problem.w13_scale.clone(), w2_scale=problem.w2_scale.clone())
    broken.w13_scale[absent] = 255
    broken.w2_scale[absent] = 255
    assert torch.equal(run(broken), run(problem))


# --- special values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("special", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("activation", [Swiglu(), SwigluOai()])
def test_a_special_value_in_x_stays_in_its_row(special: str, activation: Activation) -> None:
    base = Scenario(shape=SHAPE, activation=activation)
    edit = ValueEdit(tensor="hidden_states", index=(2, 9), value=special)
    got, want = answer(dataclasses.replace(base, values=Values(edits=(edit,)))), answer(base)
    others = torch.arange(7) != 2
    assert torch.equal(got[others], want[others])
    if special == "nan":
        assert got[2].isnan().all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_is_kept_by_every_activation(activation: Activation) -> None:
    edit = ValueEdit(tensor="hidden_states", index=(2, 9), value="nan")
    got = answer(Scenario(shape=SHAPE, activation=activation, values=Values(edits=(edit,))))
    assert got[2].isnan().all()


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf])
def test_a_special_router_weight_stays_in_its_row(weight: float) -> None:
    base = Scenario(shape=SHAPE)
    edit = SetWeight(token=2, slot=1, weight=weight)
    got, want = answer(dataclasses.replace(base, routing=Routing(edits=(edit,)))), answer(base)
    others = torch.arange(7) != 2
    assert torch.equal(got[others], want[others])
    assert not got[2].isfinite().any()


def test_scale_byte_255_is_nan_in_the_rows_of_its_expert() -> None:
    expert = build(Scenario(shape=SHAPE)).topk_ids[0, 0].item()
    for tensor, column in (("w13_scale", slice(None)), ("w2_scale", 5)):
        edit = ValueEdit(tensor=tensor, index=(expert, 5, 0), value=255)
        problem = build(Scenario(shape=SHAPE, values=Values(edits=(edit,))))
        got = run(problem)
        routed = (problem.topk_ids == expert).any(dim=1)
        assert 0 < routed.sum() < 7
        assert got[routed][:, column].isnan().all()
        assert got[~routed].isfinite().all()


def test_weights_dequantise_exactly_for_every_code_and_scale_byte() -> None:
    """Byte 0 is 2**-127 (a subnormal bfloat16), 255 is NaN; from byte 253 on the largest codes are infinite."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    packed = (codes[0::2] | codes[1::2] << 4).expand(1, 256, 16).contiguous()
    scale = torch.arange(256, dtype=torch.uint8).view(1, 256, 1)
    problem = dataclasses.replace(build(Scenario()), w13=packed, w13_scale=scale)
    got = GroupedMM().prepare(problem).w13.double().numpy()
    want = dequantized(packed, scale)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[:, :255]), np.signbit(want[:, :255]))
    assert np.abs(E2M1[np.isfinite(want[0, 254, :16])]).max() == 1.5
    assert np.abs(E2M1[np.isfinite(want[0, 253, :16])]).max() == 3.0
    assert np.isfinite(want[0, 252]).all()


@pytest.mark.parametrize("tokens", [1, 64])
def test_scale_byte_zero_counts_or_is_flushed_as_declared(tokens: int) -> None:
    """Times 2**-127 a code is a subnormal operand, which a GEMM may read as 0; x = 2**100 makes it visible."""
    values = Values(rule="one_hot", x_exponent=100, scale_low=0, scale_high=0)
    problem = build(Scenario(shape=Shape(tokens=tokens), values=values))
    problem = dataclasses.replace(problem, w2_scale=torch.full_like(problem.w2_scale, 200))
    assert GroupedMM.numerics.gemm1.flush_to_zero
    want = loop(problem)
    low, high = problem.w13 & 0x0F, problem.w13 & 0xF0  # codes of 2 and more are not subnormal
    kept = torch.where(low & 0x04 != 0, low, 0) | torch.where(high & 0x40 != 0, high, 0)
    flushed = dataclasses.replace(problem, w13=kept.to(torch.uint8))
    assert not np.array_equal(loop(flushed), want)
    got = run(problem)
    assert torch.equal(got, run(problem))
    assert any(
        np.abs(got.double().numpy() - wanted).max() <= 0.01 * np.abs(want).max() for wanted in (want, loop(flushed))
    )


# --- the promise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        (Scenario(precision="mxfp8xmxfp4"), "precision mxfp8xmxfp4"),
        (Scenario(execution=Execution(mode="graph")), "execution mode graph"),
        (Scenario(execution=Execution(tactic=0)), "a tactic beyond its 0"),
    ],
)
def test_what_is_not_promised_is_said(scenario: Scenario, reason: str) -> None:
    assert GroupedMM().unsupported(scenario) == reason


def test_unknown_activation_is_an_error() -> None:
    problem = build(Scenario())
    unknown = dataclasses.replace(problem, activation=dataclasses.replace(problem.activation, kind="relu2"))
    with pytest.raises(ValueError, match="activation 'relu2': must be one of swiglu, swiglu_oai, situ"):
        run(unknown)
    lacking = dataclasses.replace(problem, activation=dataclasses.replace(problem.activation, kind="situ"))
    with pytest.raises(ValueError, match="activation 'situ' lacks a parameter"):
        run(lacking)


# --- the declared accumulator --------------------------------------------------------------------------------------


def ratio_to_declared_radius(products: torch.Tensor, error: torch.Tensor) -> float:
    """Largest error / (u sqrt(sum of s_k^2)), the partial sums s_k being the largest over the declared lanes."""
    best = torch.zeros_like(error)
    for lanes in GroupedMM.numerics.gemm1.lanes:
        prefix = products.view(len(products), -1, lanes).cumsum(1)
        joined = prefix[:, -1].cumsum(1)
        best = torch.maximum(best, prefix.square().sum((1, 2)) + joined.square().sum(1))
    return (error / (GroupedMM.numerics.gemm1.unit_roundoff * best.sqrt())).max().item()


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("columns", [32, 512, 4096])
@pytest.mark.parametrize("kind", ["normal", "positive", "alternating", "wide"])
def test_accumulation_is_as_declared(kind: str, columns: int, rows: int) -> None:
    """Three further columns subtract all but the last bits of the exact sum, so that bfloat16 shows the error.

    Signs that alternate from column to column are the case that needs lanes: a sum of the even and of the odd columns
    apart grows where the sum in order stays small.
    """
    generator = torch.Generator().manual_seed(columns + rows)
    shape = (256, columns)
    x = torch.randn(1, columns, generator=generator)
    w = torch.randn(shape, generator=generator)
    if kind in ("positive", "alternating"):
        x, w = x.abs(), w.abs()
    if kind == "alternating":
        x[:, 1::2] *= -1
    if kind == "wide":
        x = x * 2.0 ** torch.randint(-12, 13, x.shape, generator=generator)
    x, w = x.bfloat16(), w.bfloat16()
    left = (x.double() * w.double()).sum(1)
    tail = torch.zeros(256, 32, dtype=torch.bfloat16)
    for column in range(3):
        tail[:, column] = left.float().bfloat16()
        left = left - tail[:, column].double()
    minus = torch.zeros(1, 32, dtype=torch.bfloat16)
    minus[:, :3] = -1
    x, w = torch.cat((x, minus), 1), torch.cat((w, tail), 1)
    products = x.double() * w.double()
    got = torch.nn.functional.grouped_mm(
        x.repeat(rows, 1), w.unsqueeze(0).mT, offs=torch.tensor([rows], dtype=torch.int32)
    )
    for row in got.double():
        assert ratio_to_declared_radius(products, (row - products.sum(1)).abs()) < 9
