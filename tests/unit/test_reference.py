"""The reference as a whole: routing, the final sum, what is not finite, and how sharp it is."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import contents
import pytest
import simulate
import torch
from draws import WHOLE, draws
from simulate import Choices

from oracles import base, kernels, reference
from oracles.ball import HARD, Ball
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF, Enclosure
from oracles.grouped_mm import GroupedMM
from oracles.kept import same_bytes
from oracles.matmul import matmul
from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies.scenario import (
    FLOAT32_MAX,
    Activation,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    RoutingEdit,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    Special,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

GROUPED = GroupedMM()


def grouped_mm(problem: Problem) -> torch.Tensor:
    return GROUPED(GROUPED.prepare(problem)).double()


def scenario(
    tokens: int = 5, hidden: int = 64, intermediate: int = 96, experts: int = 4, top_k: int = 2, **rest: object
) -> Scenario:
    shape = Shape(tokens=tokens, hidden=hidden, intermediate=intermediate, experts=experts, top_k=top_k)
    return Scenario(shape=shape, **rest)  # type: ignore[arg-type]


def assert_inside(y: torch.Tensor, enclosure: Enclosure) -> None:
    finite, must = y.isfinite(), enclosure.kinds == FINITE
    kinds = torch.where(y.isnan(), NAN, torch.where(y > 3.5e38, POS_INF, torch.where(y < -3.5e38, NEG_INF, FINITE)))
    assert bool(((kinds & enclosure.kinds) != 0).all())
    error = torch.where(must & finite, (y - enclosure.center).abs(), 0.0)
    assert bool((error <= enclosure.sharp).all())
    assert bool((enclosure.sharp <= enclosure.hard).all())


# --- routing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 3])
def test_nothing_to_do_is_exactly_zero(tokens: int) -> None:
    """No token, or none with an expert of this rank."""
    masked = Routing(edits=tuple(MaskRow(token=token) for token in range(tokens)))
    out = enclose(build(scenario(tokens=tokens, routing=masked)), Numerics())
    for tensor in (out.center, out.hard, out.sharp):
        assert tensor.shape == (tokens, 64)
        assert bool((tensor == 0).all())
    assert bool((out.kinds == FINITE).all())


def test_a_masked_slot_and_padding_take_part_in_nothing() -> None:
    edits = (MaskSlot(token=1, slot=0), MaskRow(token=2), SetWeight(token=2, slot=1, weight=torch.nan))
    problem = build(scenario(routing=Routing(edits=edits), execution=Execution(padding=2)))
    out = enclose(problem, GROUPED.numerics)
    assert bool((out.kinds == FINITE).all())
    assert bool((out.center[[2, 5, 6]] == 0).all())
    assert bool((out.hard[[2, 5, 6]] == 0).all())
    assert_inside(grouped_mm(problem), out)


def test_a_duplicate_counts_twice() -> None:
    routing = Routing(
        edits=(
            DuplicateSlot(token=0, slot=1, source=0),
            SetWeight(token=0, slot=0, weight=0.5),
            SetWeight(token=0, slot=1, weight=0.5),
        )
    )
    problem = build(scenario(routing=routing))
    once = dataclasses.replace(problem, topk_weights=torch.tensor([[1.0, 0.0]]).expand(5, 2).contiguous())
    out = enclose(problem, GROUPED.numerics)
    assert torch.equal(out.center[0], enclose(once, GROUPED.numerics).center[0])
    assert_inside(grouped_mm(problem), out)


def test_ranks_add_up() -> None:
    """But for the rounding of each shard to bfloat16, their sum is the whole layer."""
    problem = build(scenario(experts=8))
    whole = enclose(problem, Numerics())
    shards = []
    for rank in range(4):
        shard = build(scenario(experts=8, parallel=Parallel(ep_size=4, ep_rank=rank)))
        routed = dataclasses.replace(shard, topk_ids=problem.topk_ids, topk_weights=problem.topk_weights)
        shards.append(enclose(routed, Numerics()).center)
    step = torch.stack(shards).abs().sum(0) * 2.0**-7
    assert bool(((torch.stack(shards).sum(0) - whole.center).abs() <= step).all())


@pytest.mark.parametrize("chunk", [1, 1 << 14])
def test_how_many_experts_are_held_makes_no_difference(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build(scenario(tokens=17, experts=8, top_k=3))
    together = enclose(problem, GROUPED.numerics)
    monkeypatch.setattr(reference, "_CACHED", chunk)
    apart = enclose(problem, GROUPED.numerics)
    assert torch.equal(together.center, apart.center)
    assert torch.allclose(together.hard, apart.hard, rtol=1e-9, atol=0)
    assert torch.allclose(together.sharp, apart.sharp, rtol=1e-9, atol=0)


def test_the_reference_is_inside_its_own_enclosure() -> None:
    problem = build(scenario(activation=Situ()))
    oracle = Reference()
    y = oracle(oracle.prepare(problem))
    assert y.dtype == torch.bfloat16
    assert_inside(y.double(), enclose(problem, oracle.numerics))


# --- the final sum ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("weight", [1.0, 1e-38])
def test_many_slots(weight: float, fused: bool) -> None:
    """64 slots that cancel to nearly nothing: rounding errors of the sum, and of subnormal products, show."""
    problem = build(scenario(tokens=64, hidden=32, intermediate=32, experts=64, top_k=64))
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 64, generator=generator) * weight
    numerics = Numerics(gemm2_output="float32", intermediate="float32")
    first = simulate.simulate(
        dataclasses.replace(problem, topk_weights=weights), numerics, Choices(order=simulate.in_order)
    )
    weights[:, -1] = weights[:, -2]
    made = dataclasses.replace(problem, topk_weights=weights)
    assert bool(first.isfinite().all())
    y = simulate.simulate(made, numerics, Choices(order=simulate.in_order, fused=fused))
    assert_inside(y, enclose(made, numerics))


@pytest.mark.parametrize("flush", [False, True])
def test_the_final_sum_flushes_where_the_activation_does(flush: bool) -> None:
    problem = build(scenario(tokens=8, top_k=1, values=Values(x_exponent=-2)))
    made = dataclasses.replace(problem, topk_weights=problem.topk_weights * 2.0**-124)
    numerics = Numerics(activation=Transcendental(flush_to_zero=flush))
    out = enclose(made, numerics)
    small = (out.center.abs() < 2.0**-126) & (out.center != 0)
    assert bool(small.any())
    assert bool((out.hard[small] >= out.center[small].abs()).all()) == flush


@pytest.mark.parametrize("flush", [False, True])
def test_a_subnormal_router_weight_may_be_read_as_zero(flush: bool) -> None:
    """Also where its product is a normal number: a kernel built with -use_fast_math answered 0 instead of 3.8e-38."""
    problem = build(scenario(tokens=4, top_k=1, values=Values(x_exponent=13)))
    made = dataclasses.replace(problem, topk_weights=torch.full_like(problem.topk_weights, 2.0**-130))
    out = enclose(made, Numerics(activation=Transcendental(flush_to_zero=flush)))
    normal = out.center.abs() > 2.0**-125
    assert bool(normal.any())
    assert bool((out.hard[normal] >= out.center[normal].abs()).all()) == flush
    assert bool((out.sharp[normal] >= out.center[normal].abs()).all()) == flush


NARROW = Numerics(
    weights="bfloat16", bias_before_rounding=False, biased="bfloat16", router_weight="bfloat16", weighted="bfloat16"
)


@pytest.mark.parametrize("exponent", [0, -8])
def test_narrow_products_and_biases(exponent: int) -> None:
    """Bias, router weight and their results in bfloat16: each is a rounding of its own."""
    layer = Layer(biases="per_expert", routed_scaling_factor=2.5)
    problem = build(scenario(tokens=64, top_k=4, layer=layer, values=Values(x_exponent=exponent)))
    y = simulate.simulate(problem, NARROW, Choices(order=simulate.in_order))
    found = enclose(problem, NARROW)
    assert_inside(y, found)
    wide = dataclasses.replace(NARROW, biased="float32", router_weight="float32", weighted="float32")
    outside = (y - enclose(problem, wide).center).abs() > enclose(problem, wide).hard
    assert float(outside.double().mean()) > 0.25  # without these roundings: many outputs are wrong
    assert float((found.hard == 0).double().mean()) > 0.5  # and leaves little open


def test_a_router_weight_that_a_narrow_dtype_cannot_hold() -> None:
    problem = build(scenario(tokens=2, top_k=1))
    huge = torch.tensor([[3.4e38], [1.0]])  # within float32, but infinite in bfloat16
    made = dataclasses.replace(problem, topk_weights=huge)
    found = enclose(made, NARROW)
    assert bool(((found.kinds[0] & FINITE) == 0).all())
    assert bool((found.kinds[1] == FINITE).all())


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "byte", "kinds"), [("float32", 252, 1), ("float32", 254, 8), ("exact", 254, 1), ("exact", 255, 8)]
)
def test_top_scale_bytes(weights: str, byte: int, kinds: int) -> None:
    """6 overflows in float32 from byte 253 on (here to infinities of both signs), but no weight is held as "exact"."""
    problem = build(
        scenario(tokens=1, hidden=32, intermediate=32, experts=1, top_k=1, values=Values(scale_low=100, scale_high=100))
    )
    w2 = torch.full_like(problem.w2, 0x77)  # all 6
    made = dataclasses.replace(problem, w2=w2, w2_scale=torch.full_like(problem.w2_scale, byte))
    out = enclose(made, Numerics(weights=weights, gemm2_output="float32"))  # type: ignore[arg-type]
    assert out.kinds.unique().tolist() == [kinds]


# --- what is not finite ----------------------------------------------------------------------------------------------

_SPECIAL: tuple[Special, ...] = ("nan", "inf", "-inf", "0", "-0", "max", "-max", "min_subnormal")
_BYTES = (0, 1, 128, 250, 252, 253, 254, 255)
_WEIGHTS = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, -1.0, 3e38, 1e-40, 1e-45)
_ACTIVATIONS: tuple[Activation, ...] = (
    Swiglu(),
    SwigluOai(),
    SwigluOai(limit=torch.inf),
    SwigluOai(alpha=-1.0),
    SwigluOai(alpha=0.0),
    Situ(),
    Situ(beta=1e30, linear_beta=1e-30),
)


def strange(seed: int) -> Scenario:
    """A small scenario full of special values, scale bytes and router weights."""
    rng = random.Random(seed)
    hidden, inner = rng.choice((32, 64, 128)), rng.choice((32, 64))
    tokens, experts = rng.choice((1, 2, 5)), rng.choice((1, 2, 4))
    top_k = rng.randint(1, min(experts, 3))
    values = [
        ValueEdit(
            tensor="hidden_states", index=(rng.randrange(tokens), rng.randrange(hidden)), value=rng.choice(_SPECIAL)
        )
        for _ in range(rng.choice((0, 1, 3)))
    ]
    for _ in range(rng.choice((0, 1, 3))):
        index = rng.randrange(experts), rng.randrange(2 * inner), rng.randrange(hidden // 32)
        values.append(ValueEdit(tensor="w13_scale", index=index, value=rng.choice(_BYTES)))
        index = rng.randrange(experts), rng.randrange(hidden), rng.randrange(inner // 32)
        values.append(ValueEdit(tensor="w2_scale", index=index, value=rng.choice(_BYTES)))
    weights: list[RoutingEdit] = [
        SetWeight(token=rng.randrange(tokens), slot=rng.randrange(top_k), weight=rng.choice(_WEIGHTS))
        for _ in range(rng.choice((0, 1, 2)))
    ]
    low = rng.choice((118, 118, 0, 240, 100))
    return Scenario(
        shape=Shape(tokens=tokens, hidden=hidden, intermediate=inner, experts=experts, top_k=top_k),
        activation=rng.choice(_ACTIVATIONS),
        output_dtype=rng.choice(("bfloat16", "bfloat16", "float16")),
        layer=Layer(biases=rng.choice(("none", "per_expert")), routed_scaling_factor=rng.choice((1.0, 2.5))),
        routing=Routing(seed=seed, edits=tuple(weights)),
        values=Values(
            rule=rng.choice(("normal", "integer", "index", "one_hot", "wide")),
            seed=seed,
            x_exponent=rng.choice((0, 0, -100, 60, 100)),
            scale_low=low,
            scale_high=min(255, low + rng.choice((0, 4, 15))),
            edits=tuple(values),
        ),
    )


_LANES = Accumulator(lanes=(1, 2, 4))
_FLUSHES = dataclasses.replace(_LANES, flush_to_zero=True)
_FAST = Transcendental(exp="fast", divide="fast", tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True)
_RECIPES = {
    "float32": Numerics(gemm1=_LANES, gemm2=_LANES, gemm1_output="float32", gemm2_output="float32"),
    "fast": Numerics(gemm1=_FLUSHES, gemm2=_FLUSHES, activation=_FAST),
    "q8_0": Numerics(
        weights="exact",
        hidden_quantizer="q8_0",
        intermediate_quantizer="q8_0",
        gemm1=Accumulator(group=4),
        gemm2=Accumulator(group=4),
        gemm1_output="float32",
        gemm2_output="float32",
        intermediate="float32",
        bias_before_rounding=False,
    ),
}


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_special_values_against_ieee_arithmetic(start: int) -> None:
    """Must be finite is finite, must not be is not, one bit is that very value: grouped-mm and simulated kernels."""
    orders = itertools.cycle((simulate.in_order, simulate.lanes(2), simulate.lanes(4)))
    for seed in range(start, start + 40):
        problem = build(strange(seed))
        assert_inside(grouped_mm(problem), enclose(problem, GROUPED.numerics))
        for name, numerics in _RECIPES.items():
            order = simulate.in_order if name == "q8_0" else next(orders)
            choices = Choices(order=order, errors=seed % 3 - 1, flush=seed % 2 == 0, divides=seed % 5 < 2)
            assert_inside(simulate.simulate(problem, numerics, choices), enclose(problem, numerics))


def test_most_special_values_are_decided() -> None:
    """ "Either" is the exception: what grouped-mm makes infinite or NaN had to be so in four of five cases."""
    special = decided = 0
    for seed in range(60):
        problem = build(strange(seed))
        out = enclose(problem, GROUPED.numerics)
        not_finite = ~grouped_mm(problem).isfinite()
        special += int(not_finite.sum())
        decided += int((not_finite & ((out.kinds & FINITE) == 0)).sum())
    assert special > 5000
    assert decided > 0.8 * special


def test_a_special_row_leaves_the_others_alone() -> None:
    plain = scenario(tokens=6)
    edits = (ValueEdit(tensor="hidden_states", index=(2, 7), value="inf"),)
    edited = dataclasses.replace(
        plain, values=Values(edits=edits), routing=Routing(edits=(SetWeight(token=4, slot=0, weight=torch.nan),))
    )
    before, after = enclose(build(plain), GROUPED.numerics), enclose(build(edited), GROUPED.numerics)
    others = [0, 1, 3, 5]
    for name in ("center", "hard", "sharp", "kinds"):
        assert torch.equal(getattr(before, name)[others], getattr(after, name)[others])
    assert after.kinds[4].unique().tolist() == [NAN]
    assert bool((after.kinds[2] != ANY).all())


# --- what is not independent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "repeated"), [("normal", False), ("repeated_rows", True), ("repeated_up", True), ("scaled_rows", True)]
)
def test_rows_that_err_alike_are_found(content: str, repeated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identical rows of w13, of one half of it only, and those that differ by a power of two."""
    found = []

    def recorded(x: Ball, *rest: Any, **named: Any) -> Ball:
        if len(rest) > 2:
            found.append((x.radius[HARD] > 0, rest[2].repeated))
        return matmul(x, *rest, **named)

    monkeypatch.setattr(reference, "matmul", recorded)
    narrow = Accumulator(unit_roundoff=2.0**-14, exact_bits=14)
    shape = Shape(tokens=16, hidden=64, intermediate=128)
    enclose(contents.problem(content, shape), Numerics(gemm1=narrow, gemm1_output="bfloat16"))
    ((uncertain, marked),) = found
    assert uncertain.sum() > 100
    if repeated:
        assert torch.equal(marked, uncertain)
    else:  # sums of few bits are now and then equal by chance
        assert marked.double().mean() < 0.01


# --- how sharp -------------------------------------------------------------------------------------------------------


def check_sharp(problem: Problem, *, exact: float, mean: float) -> tuple[float, float]:
    """The share of outputs that must be bit-exact, and the mean sharp radius in units of rms(y). Returns that radius
    and the RMS error of grouped-mm."""
    out, y = enclose(problem, GROUPED.numerics), grouped_mm(problem)
    assert_inside(y, out)
    must = out.sharp == 0
    assert must.double().mean() >= exact
    assert torch.equal(y[must], out.center[must])
    assert out.sharp.mean() <= mean * y.square().mean().sqrt()
    return float(out.sharp.mean()), float((y - out.center).square().mean().sqrt())


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("activation", [Swiglu(), Situ()])
@pytest.mark.parametrize(("hidden", "inner"), [(128, 128), (128, 512), (512, 128)])
def test_most_outputs_must_be_exact(hidden: int, inner: int, activation: Activation, top_k: int) -> None:
    check_sharp(build(scenario(32, hidden, inner, 8, top_k, activation=activation)), exact=0.7, mean=0.001)


def test_the_radius_is_not_much_larger_than_the_errors_that_occur() -> None:
    problem = build(scenario(96, 512, 512, 8, 4, activation=Situ()))
    radius, error = check_sharp(problem, exact=0.7, mean=0.001)
    assert radius <= 30 * error


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("activation", [Swiglu(), SwigluOai(), Situ()])
@pytest.mark.parametrize("size", [32, 128, 512])
def test_integers_must_be_exact(size: int, activation: Activation, top_k: int) -> None:
    problem = build(scenario(32, size, size, 8, top_k, activation=activation, values=Values(rule="integer")))
    check_sharp(problem, exact=1.0, mean=0.0)


def test_a_product_that_overflows_may_meet_a_certain_infinity() -> None:
    """The largest float32 times an answer above 1 is an infinity of its sign, and -inf + inf is NaN."""
    edits = (SetWeight(token=0, slot=0, weight=FLOAT32_MAX), SetWeight(token=0, slot=1, weight=float("inf")))
    problem = build(scenario(tokens=1, routing=Routing(edits=edits), values=Values(scale_low=126, scale_high=127)))
    kinds = enclose(problem, GROUPED.numerics).kinds
    y = grouped_mm(problem)
    assert bool(y.isnan().any())
    assert bool(((kinds & NAN) != 0)[y.isnan()].all())


# --- looking first ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", ["cutlass", "emulated-sm120", "ggml", "grouped-mm"])
def test_what_is_done_without_a_look_makes_no_difference(monkeypatch: pytest.MonkeyPatch, oracle: str) -> None:
    """As on a GPU, which is not waited for."""
    numerics = base.get(oracle).numerics
    for one in draws("quick", 40, WHOLE):
        problem = build(one)
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "look_first", lambda _: False)
            there = enclose(problem, numerics)
        here = enclose(problem, numerics)
        for name in ("center", "hard", "sharp", "kinds"):
            assert same_bytes(getattr(here, name), getattr(there, name)), (name, one)
