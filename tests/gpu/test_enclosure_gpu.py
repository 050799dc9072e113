"""The reference encloses on a CUDA device what it encloses on the CPU."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest
import torch

from oracles import ball, formats, one_pass, partial_sums, reference, tensor_core
from oracles.accumulation import SMALLEST_NORMAL
from oracles.ball import HARD, Ball
from oracles.enclosure import FINITE
from oracles.grouped_mm import GroupedMM
from oracles.numerics import Accumulator, Numerics, TensorCore, Transcendental
from oracles.partial_sums import PartialSums
from oracles.problem import build
from oracles.reference import enclose
from oracles.weight import Weight
from strategies.scenario import Layer, Routing, Scenario, SetWeight, Shape, Situ, SwigluOai, ValueEdit, Values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

_TRUNCATES = Accumulator(rounding="truncate", flush_to_zero=True)
RECIPES = {
    "grouped-mm": GroupedMM.numerics,
    "tensor core": Numerics(
        weights="exact",
        gemm1=_TRUNCATES,
        gemm2=_TRUNCATES,
        activation=Transcendental(exp="fast", divide="fast", tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True),
    ),
    "q8_0": Numerics(
        weights="exact",
        hidden_quantizer="q8_0",
        intermediate_quantizer="q8_0_portable",
        gemm1=Accumulator(group=4, lanes=(1, 16)),
        gemm2=Accumulator(group=32, product_roundings=1),
        gemm1_output="float32",
        gemm2_output="float32",
        intermediate="float32",
    ),
}
PLAIN = Scenario(shape=Shape(tokens=21, hidden=288, intermediate=160, experts=8, top_k=3))
SCENARIOS = {
    "plain": PLAIN,
    "situ": dataclasses.replace(PLAIN, activation=Situ(per_expert=True), layer=Layer(biases="per_expert")),
    "oai": dataclasses.replace(PLAIN, activation=SwigluOai(), output_dtype="float16"),
    "wide": dataclasses.replace(PLAIN, values=Values(rule="wide", scale_low=0, scale_high=254)),
    "special": dataclasses.replace(
        PLAIN,
        values=Values(
            scale_low=235,
            scale_high=255,
            edits=(
                ValueEdit(tensor="hidden_states", index=(0, 1), value="nan"),
                ValueEdit(tensor="hidden_states", index=(1, 2), value="-inf"),
            ),
        ),
        routing=Routing(edits=(SetWeight(token=3, slot=1, weight=torch.inf),)),
    ),
    "empty": Scenario(shape=Shape(tokens=0, hidden=64, intermediate=64, experts=2, top_k=1)),
}


@pytest.mark.parametrize("made", ["cpu", "cuda"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_enclosures_are_the_same(name: str, recipe: str, made: str) -> None:
    """Additions in float64 have another order there: an end may fall on the other side of a rounding, rarely."""
    here = enclose(build(SCENARIOS[name], "cpu"), RECIPES[recipe])
    there = enclose(build(SCENARIOS[name], made), RECIPES[recipe], device=torch.device("cuda"))
    for value in (there.center, there.hard, there.sharp, there.kinds):
        assert value.device.type == made
    kinds = there.kinds.cpu()
    assert (kinds != here.kinds).double().sum() <= 1e-3 * kinds.numel()
    both = (kinds == FINITE) & (here.kinds == FINITE)
    certain = both & (here.hard == 0) & (there.hard.cpu() == 0)
    assert torch.equal(there.center.cpu()[certain], here.center[certain])
    apart = (there.center.cpu() - here.center).abs()[both]
    assert bool((apart <= (here.hard + there.hard.cpu())[both]).all())
    for name_of in ("hard", "sharp"):
        one, other = getattr(here, name_of)[both], getattr(there, name_of).cpu()[both]
        assert (one != other).double().sum() <= 1e-3 * kinds.numel()


def test_grouped_mm_on_the_device_is_inside() -> None:
    oracle = GroupedMM()
    problem = build(dataclasses.replace(PLAIN, activation=Situ()), "cuda")
    out, y = enclose(problem, oracle.numerics), oracle(oracle.prepare(problem)).double()
    assert bool(((y - out.center).abs() <= out.hard).all())


@pytest.mark.parametrize("tokens", [3, 70])
def test_one_pass_over_a_large_gemm_gives_the_sums_that_are_written_out_otherwise(tokens: int) -> None:
    generator = torch.Generator("cuda").manual_seed(tokens)
    depth = 2048
    rows = (1 << 22) // (tokens * depth) + 33
    x, w = (
        torch.randn(1, count, depth, generator=generator, device="cuda", dtype=torch.float64)
        for count in (tokens, rows)
    )
    acc = Accumulator(group=32, inside=TensorCore())
    looked = one_pass.look(x, w, acc)
    assert looked is not None
    torch.testing.assert_close(looked.result, x @ w.mT, rtol=0, atol=1e-11)
    weight = Weight(held=w, unit=w.new_ones(1, rows), spread=False, subnormal=False)
    *here, top = tensor_core.sums(x, weight, 16, 32, looked)
    *there, known = tensor_core.sums(x, weight, 16, 32, None)
    once, written = PartialSums.of(looked), partial_sums.bound(x, w, acc)
    for one, other in zip((*here, once.total), (*there, written.total), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    for largest, exactly in ((top, known), (once.largest, written.largest)):  # rounded up
        assert bool((largest >= exactly * (1 - 1e-11)).all() and (largest <= exactly * (1 + 2.0**-20 + 1e-11)).all())
    nothing = one_pass.look(torch.zeros_like(x), w, acc)
    assert nothing is not None
    assert not any(value.any() for value in (nothing.top, nothing.largest))


def test_one_pass_is_for_large_gemms_in_one_order() -> None:
    large = torch.zeros(1, 64, 1024, device="cuda", dtype=torch.float64)
    core = Accumulator(group=32, inside=TensorCore())
    assert one_pass.look(large, large, core) is not None
    assert one_pass.look(large[:, :1], large[:, :63], core) is None
    assert one_pass.look(large, large, dataclasses.replace(core, lanes=(1, 2))) is None
    assert one_pass.look(large, large, Accumulator()) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_large_tensor_is_rounded_as_on_a_cpu(dtype: Literal["float32", "bfloat16", "float16"]) -> None:
    generator = torch.Generator().manual_seed(1)
    anything = torch.randint(-(2**63), 2**63 - 1, (1 << 22,), generator=generator).view(torch.float64)
    usual = torch.randn(1 << 20, generator=generator, dtype=torch.float64)
    ties = torch.tensor([1 + 2.0**-9, 1 + 2.0**-8, -65520.0, 2.0**-150, -0.0, math.inf, math.nan], dtype=torch.float64)
    value = torch.cat((anything, usual, ties))
    here, there = formats.round_to(value, dtype), formats.round_to(value.cuda(), dtype).cpu()
    numbers = ~here.isnan()
    assert torch.equal(here.view(torch.int64)[numbers], there.view(torch.int64)[numbers])
    assert torch.equal(here.isnan(), there.isnan())


def test_large_weights_are_dequantised_as_on_a_cpu() -> None:
    """Every code under every scale, and rows that are no multiple of the kernel's block."""
    generator = torch.Generator().manual_seed(2)
    rows, columns = 937, 1120
    packed = torch.randint(0, 256, (2, rows, columns // 2), generator=generator, dtype=torch.uint8)
    scale = torch.randint(0, 253, (2, rows, columns // 32), generator=generator, dtype=torch.uint8)
    value, runs = formats.mxfp4_with_runs(packed.cuda(), scale.cuda())
    assert value.dtype == torch.float32
    assert runs is not None
    here = formats.mxfp4_dequantize(packed, scale)
    assert torch.equal(value.cpu().double().view(torch.int64), here.view(torch.int64))
    assert torch.equal(runs.cpu(), formats.grouped(here.abs(), formats.RUN).amax(-1))


_MANY = (1 << 19) + 5


def _balls(low: int, high: int) -> Ball:
    """So many that a kernel is used, with binades from `low` up to `high`; zeros, exact ones and ties among them."""
    generator = torch.Generator().manual_seed(3)

    def draw() -> torch.Tensor:
        return torch.rand(_MANY, generator=generator, dtype=torch.float64)

    center = (draw() - 0.5) * 2.0 ** torch.randint(low, high, (_MANY,), generator=generator).double()
    center[::7], center[1::7] = 0.0, -0.0
    center[2::5] = formats.round_to(center[2::5], "bfloat16")
    hard = center.abs() * 2.0 ** (-20 * draw())
    hard[::3], hard[::14] = 0.0, 2.0**-128
    return Ball(center=center, radius=torch.stack((hard, hard * draw(), hard * draw())))


def _same_bits(here: torch.Tensor, there: torch.Tensor) -> bool:
    return torch.equal(here.view(torch.int64), there.cpu().view(torch.int64))


@pytest.mark.parametrize("binades", [(-4, 4), (-150, -100), (-30, -8)])
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_large_ball_is_rounded_as_on_a_cpu(
    dtype: Literal["float32", "bfloat16", "float16"], flush: bool, binades: tuple[int, int]
) -> None:
    given = _balls(*binades)
    on_device = Ball(center=given.center.cuda(), radius=given.radius.cuda())
    here = ball.rounded(given, dtype, flush_to_zero=flush)
    there = ball.rounded(on_device, dtype, flush_to_zero=flush)
    assert here.kinds is there.kinds is None
    assert _same_bits(here.center, there.center)
    assert _same_bits(here.radius, there.radius)
    splits = ball.splits(on_device.center, on_device.radius[HARD], dtype)
    assert torch.equal(ball.splits(given.center, given.radius[HARD], dtype), splits.cpu())


@pytest.mark.parametrize(("plane", "value"), [(0, math.inf), (0, math.nan), (0, -3.4e38), (1, math.inf), (1, 3.4e38)])
def test_a_large_ball_that_overflows_gets_kinds(plane: int, value: float) -> None:
    given = _balls(-4, 4)
    (given.center if plane == 0 else given.radius[HARD])[-1] = value
    here = ball.rounded(given, "bfloat16")
    there = ball.rounded(Ball(center=given.center.cuda(), radius=given.radius.cuda()), "bfloat16")
    assert here.kinds is not None
    assert there.kinds is not None
    assert torch.equal(here.kinds, there.kinds.cpu())
    assert _same_bits(here.radius[:, :-1], there.radius[:, :-1])


def _answers() -> tuple[Ball, torch.Tensor, torch.Tensor]:
    """(balls [P, H] with P = 1201, weights [P], place [T, 3] with none to three pairs for a token)."""
    given = _balls(-4, 4)
    pairs, hidden = 1201, _MANY // 1201 + 1
    more = pairs * hidden - len(given.center)
    center = torch.nn.functional.pad(given.center, (0, more)).view(pairs, hidden)
    radius = torch.nn.functional.pad(given.radius, (0, more)).view(3, pairs, hidden)
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(pairs, generator=generator).double()
    weights[::5], weights[1::5] = 0.25, 2.0**-127
    count = torch.randint(0, 4, (pairs,), generator=generator)
    slot = torch.arange(3)
    place = torch.where(slot < count[:, None], count.cumsum(0)[:, None] - count[:, None] + slot, pairs)
    return Ball(center=center, radius=radius), weights, place.clamp(max=pairs)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("smallest", [SMALLEST_NORMAL, 2.0**-149])
@pytest.mark.parametrize("slots", [1, 3])
def test_the_final_sum_of_many_pairs_is_that_of_a_cpu(slots: int, smallest: float, fused: bool) -> None:
    """Radii are added in another order."""
    pairs, weights, place = _answers()
    place = place[:, :slots]
    flush = smallest == SMALLEST_NORMAL
    terms = reference._weighted(pairs, torch.arange(len(weights)), weights[:, None], False, flush_to_zero=flush)
    here = reference._in_order(terms, place, fused, slots, smallest)
    on_device = Ball(center=pairs.center.cuda(), radius=pairs.radius.cuda())
    there = reference._in_one_pass(on_device, weights.cuda(), place.cuda(), fused, slots, smallest)
    assert there is not None
    assert _same_bits(here.center, there.center)
    radius = there.radius.cpu()
    assert torch.equal(radius == 0, here.radius == 0)
    assert bool((here.radius == 0).any() and (here.radius > 0).any())
    torch.testing.assert_close(radius, here.radius, rtol=2.0**-50, atol=0.0)


@pytest.mark.parametrize("value", [math.inf, math.nan, 3.4028234e38])
def test_a_final_sum_that_may_not_be_finite_is_left_to_the_code_for_it(value: float) -> None:
    pairs, weights, place = _answers()
    pairs.center[place[place < len(weights)].max(), -1] = value
    on_device = Ball(center=pairs.center.cuda(), radius=pairs.radius.cuda())
    ones = torch.ones_like(weights).cuda()
    assert reference._in_one_pass(on_device, ones, place.cuda(), True, 3, SMALLEST_NORMAL) is None
    assert reference._in_one_pass(on_device, ones, place.cuda() * 0, True, 3, SMALLEST_NORMAL) is not None
