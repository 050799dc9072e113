"""A GEMM on balls: exactness, what is inherited, and what is no number."""

from __future__ import annotations

import dataclasses

import pytest
import simulate
import torch

from oracles.accumulation import Weight
from oracles.ball import BIAS, HARD, SHARP, Ball, exact
from oracles.enclosure import ANY, FINITE, NAN, POS_INF
from oracles.matmul import Correlation, matmul
from oracles.numerics import Accumulator

F64 = torch.float64


def weight_of(value: torch.Tensor, *, unit: float = 2.0**-20, **rest: object) -> Weight:
    """A weight [N, K] of one expert."""
    value = value.double()[None]
    units = torch.full(value.shape[:-1], unit, dtype=F64)
    return Weight(value=value, unit=units, **{"spread": False, "subnormal": False, **rest})  # type: ignore[arg-type]


def ball_of(center: torch.Tensor, radius: float | torch.Tensor = 0.0, bias: float = 0.0) -> Ball:
    """x [T, K] of one expert, its hard and sharp radius alike."""
    center = center.double()[None]
    radii = torch.stack([torch.as_tensor(r, dtype=F64).expand(center.shape) for r in (radius, radius, bias)])
    return Ball(center=center, radius=radii.contiguous())


def test_small_integers_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-8, 9, (3, 512), generator=generator).double()
    w = torch.randint(-12, 13, (5, 512), generator=generator).double()
    out = matmul(exact(x[None]), weight_of(w, unit=1.0), Accumulator())
    assert torch.equal(out.center[0], x @ w.mT)
    assert bool((out.radius == 0).all())


def test_one_bit_too_many_is_not_exact() -> None:
    """2**24 + 1 is the first integer that float32 does not have."""
    x = torch.tensor([[2.0**24, 1.0, *[0.0] * 30]])
    w = weight_of(torch.ones(1, 32), unit=1.0)
    assert matmul(ball_of(x), w, Accumulator()).radius[HARD].item() >= 1
    x[0, 0] = 2.0**24 - 2.0**6  # 2**-20 of the sum are left to the reference's own roundings
    assert matmul(ball_of(x), w, Accumulator()).radius[HARD].item() == 0


def test_a_narrow_accumulator_is_exact_for_fewer_bits() -> None:
    x, w = torch.full((1, 32), 3.0), weight_of(torch.ones(1, 32), unit=1.0)
    assert matmul(ball_of(x), w, Accumulator(exact_bits=7, unit_roundoff=2.0**-7)).radius[HARD].item() == 0
    assert matmul(ball_of(x), w, Accumulator(exact_bits=5, unit_roundoff=2.0**-5)).radius[HARD].item() > 0


def test_elements_that_are_zero_but_uncertain_still_round() -> None:
    """The sum of 32 values in [-1, 1] errs in a 4-bit accumulator, although all centers are 0."""
    x = ball_of(torch.zeros(1, 32), 1.0)
    acc = Accumulator(unit_roundoff=2.0**-4, exact_bits=4)
    assert matmul(x, weight_of(torch.ones(1, 32), unit=1.0), acc).radius[HARD].item() > 40


def test_independent_errors_add_in_squares_and_their_bias_linearly() -> None:
    x = ball_of(torch.randn(1, 1024), 2.0**-8)
    w = weight_of(torch.ones(1, 1024), unit=1.0)
    none = torch.zeros(1, 1, 1024, dtype=torch.bool)
    plain = matmul(x, w, Accumulator(), Correlation(repeated=none)).radius
    assert plain[HARD].item() >= 1024 * 2.0**-8
    assert plain[SHARP].item() == pytest.approx(9 * 32 * 2.0**-8, rel=1e-3)
    biased = matmul(ball_of(x.center[0], 2.0**-8, 2.0**-12), w, Accumulator(), Correlation(repeated=none)).radius
    assert biased[SHARP].item() == pytest.approx(9 * 32 * 2.0**-8 + 1024 * 2.0**-12, rel=1e-3)
    assert biased[BIAS].item() >= 1024 * 2.0**-12


def test_repeated_errors_add_linearly() -> None:
    x = ball_of(torch.randn(1, 1024), 2.0**-8)
    every = torch.ones(1, 1, 1024, dtype=torch.bool)
    out = matmul(x, weight_of(torch.ones(1, 1024), unit=1.0), Accumulator(), Correlation(repeated=every)).radius
    assert out[SHARP].item() == pytest.approx(1024 * 2.0**-8, rel=1e-3)


def test_blocks_move_together() -> None:
    x = ball_of(torch.randn(1, 8192), 2.0**-8)
    none = torch.zeros(1, 1, 8192, dtype=torch.bool)
    out = matmul(
        x, weight_of(torch.ones(1, 8192), unit=1.0), Accumulator(), Correlation(repeated=none, block=32)
    ).radius
    assert out[SHARP].item() == pytest.approx(9 * 256**0.5 * 32 * 2.0**-8, rel=1e-3)


def test_without_correlation_nothing_is_independent() -> None:
    x = ball_of(torch.randn(1, 1024), 2.0**-8)
    out = matmul(x, weight_of(torch.ones(1, 1024), unit=1.0), Accumulator()).radius
    assert out[SHARP].item() == pytest.approx(1024 * 2.0**-8, rel=1e-3)
    assert out[BIAS].item() == pytest.approx(1024 * 2.0**-8, rel=1e-3)


@pytest.mark.parametrize("kind", ["order", "lanes"])
def test_random_values_inside_the_ball_stay_inside(kind: str) -> None:
    """x anywhere in its radius, then float32 additions."""
    generator = torch.Generator().manual_seed(3)
    center = torch.randn(8, 256, generator=generator).bfloat16()
    w = torch.randint(-12, 13, (16, 256), generator=generator).double()
    radius = center.abs().double() * 2.0**-8
    out = matmul(ball_of(center, radius), weight_of(w, unit=1.0), Accumulator(lanes=(1, 4)))
    order = simulate.lanes(4) if kind == "lanes" else simulate.in_order
    for _ in range(10):
        x = center.double() + radius * (2 * torch.rand(center.shape, generator=generator, dtype=F64) - 1)
        y = simulate.multiply(simulate.f32(x), w, Accumulator(), simulate.Choices(order=order))
        error = (y - out.center[0]).abs()
        assert bool((error <= out.radius[HARD, 0] * (1 + 2.0**-20) + 2.0**-24 * w.abs().sum(1) * 4).all())


# --- what is no number -----------------------------------------------------------------------------------------------


def kinds_of(x: torch.Tensor, weight: Weight, acc: Accumulator | None = None) -> list[int]:
    out = matmul(exact(x.double()[None]), weight, acc or Accumulator())
    return [FINITE] * out.center.numel() if out.kinds is None else out.kinds.flatten().tolist()


def test_overflow() -> None:
    """Certainly above, possibly above (a partial sum, in some order), below."""
    w = weight_of(torch.ones(1, 32))
    large = torch.zeros(3, 32)
    large[0, :2] = 2.0**127
    large[1, :3] = torch.tensor([2.0**127, 2.0**127, -(2.0**127)])
    large[2, 0] = 2.0**127
    assert kinds_of(large, w) == [ANY & ~FINITE, ANY, FINITE]


def test_an_overflow_is_certain_only_outside_the_radius() -> None:
    """The sum is above the largest float32 by less than half an ulp, which rounds down."""
    x = torch.zeros(1, 32, dtype=F64)
    x[0, 0], x[0, 1] = 3.4028234663852886e38, 2.0**102
    assert kinds_of(x, weight_of(torch.ones(1, 32))) == [ANY]


def test_truncation_may_stop_at_the_largest() -> None:
    x = torch.full((1, 32), 2.0**127)
    assert kinds_of(x, weight_of(torch.ones(1, 32)), Accumulator(rounding="truncate")) == [ANY]


def test_two_scales_overflow_although_no_element_does() -> None:
    """ggml multiplies the scales of a block first: infinity times a sum of 0 is NaN, where the exact sum is 0."""
    x = torch.zeros(1, 64)
    x[0, :2] = 1024.0
    value = torch.zeros(1, 64)
    value[0, :2] = torch.tensor([1.0, -1.0]) * 2.0**100
    acc = Accumulator(group=32)
    scale = torch.tensor([[[2.0**127, 2.0**100]]], dtype=F64)
    assert kinds_of(x, weight_of(value, scale=scale), acc) == [ANY]
    assert kinds_of(x, weight_of(value, scale=scale / 2.0**20), acc) == [FINITE]


def test_special_operands_reach_their_row_only() -> None:
    x = torch.ones(4, 32)
    x[1, 3], x[2, 3], x[3, 3], x[3, 4] = torch.nan, torch.inf, torch.inf, -torch.inf
    assert kinds_of(x, weight_of(torch.ones(1, 32))) == [FINITE, NAN, POS_INF, NAN]


def test_a_special_weight_times_zero_is_nan() -> None:
    value, special = torch.ones(1, 32), torch.full((1, 1, 32), FINITE, dtype=torch.uint8)
    value[0, 5], special[0, 0, 5] = 0.0, POS_INF
    x = torch.ones(2, 32)
    x[1, 5] = 0.0
    assert kinds_of(x, weight_of(value, kinds=special)) == [POS_INF, NAN]


def test_the_sharp_radius_is_sought_where_it_is_undecided() -> None:
    """Elsewhere it is larger, up to hard."""
    generator = torch.Generator().manual_seed(5)
    x = exact(torch.randn(1, 4, 512, generator=generator).bfloat16().double())
    w = weight_of(torch.randint(-12, 13, (64, 512), generator=generator), unit=1.0)
    acc = Accumulator(lanes=(1, 2, 4), splits=(1, 2))
    asked = torch.zeros(1, 4, 64, dtype=torch.bool)
    asked[0, 2, 7] = True
    full, some = matmul(x, w, acc), matmul(x, w, acc, undecided=lambda center, hard: asked & (hard >= 0 * center))
    assert some.radius[SHARP][asked].item() == pytest.approx(full.radius[SHARP][asked].item(), rel=0.2)
    assert some.radius[SHARP][~asked].mean() > 2 * full.radius[SHARP][~asked].mean()
    assert bool((some.radius[SHARP] <= some.radius[HARD]).all())
    assert bool((some.radius[SHARP] >= full.radius[SHARP] * (1 - 1e-9)).all())
    assert torch.equal(some.radius[HARD], full.radius[HARD])


def test_flushing_widens_only_what_is_subnormal() -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2, 64, generator=generator).bfloat16()
    w = weight_of(torch.randint(-12, 13, (4, 64), generator=generator), unit=1.0)
    keeps = matmul(ball_of(x), w, Accumulator())
    flushes = matmul(ball_of(x), w, dataclasses.replace(Accumulator(), flush_to_zero=True))
    assert torch.allclose(keeps.radius, flushes.radius, atol=2.0**-110)
