"""A GEMM on balls: exactness, what is inherited, and what is no number."""

from __future__ import annotations

import dataclasses

import pytest
import simulate
import torch

from oracles import epilogue, one_pass
from oracles.ball import BIAS, HARD, SHARP, Ball, exact
from oracles.enclosure import ANY, FINITE, NAN, POS_INF
from oracles.inherited import Correlation
from oracles.matmul import matmul
from oracles.numerics import Accumulator, TensorCore
from oracles.one_pass import Sums
from oracles.weight import Weight

F64 = torch.float64


def weight_of(value: torch.Tensor, *, unit: float = 2.0**-20, **rest: object) -> Weight:
    """A weight [N, K] of one expert."""
    value = value.double()[None]
    units = torch.full(value.shape[:-1], unit, dtype=F64)
    return Weight(held=value, unit=units, **{"spread": False, "subnormal": False, **rest})  # type: ignore[arg-type]


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


def _sums(x: torch.Tensor, w: torch.Tensor, _: Accumulator) -> Sums:
    """In groups of 32, of instructions of 16: written out."""
    steps = torch.stack([x[..., k : k + 16] @ w[..., k : k + 16].mT for k in range(0, x.shape[-1], 16)])
    first, second = steps[::2], steps[::2] + steps[1::2]
    after = second.cumsum(0)
    return Sums(
        result=after[-1],
        inner=first.abs().sum(0),
        last=second.abs().sum(0),
        top=torch.maximum(first.abs(), second.abs()).amax(0),
        square=after.square().sum(0),
        largest=after.abs().amax(0),
    )


def test_sums_that_are_known_are_looked_at_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = exact(torch.randn(1, 5, 512, generator=generator).bfloat16().double())
    w = weight_of(torch.randint(-12, 13, (40, 512), generator=generator) * 2.0**-3, unit=2.0**-3)
    acc = Accumulator(group=32, inside=TensorCore())
    everywhere = matmul(x, w, acc)
    nowhere = matmul(x, w, acc, undecided=lambda center, _: torch.zeros_like(center, dtype=torch.bool))
    monkeypatch.setattr(one_pass, "look", _sums)
    monkeypatch.setattr(epilogue, "applies", lambda _: False)  # that one is for a GPU
    known = matmul(x, w, acc, undecided=lambda center, _: torch.zeros_like(center, dtype=torch.bool))
    torch.testing.assert_close(known.radius, everywhere.radius, rtol=1e-12, atol=0)
    assert bool((known.radius[SHARP] < nowhere.radius[SHARP]).all())
    assert bool((known.radius[BIAS] <= nowhere.radius[BIAS]).all())


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


# --- sums in float arithmetic, unrounded -----------------------------------------------------------------------------


def rows(name: str, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [6, K] and weights [24, K] whose sums are hard on a bound."""
    generator = torch.Generator().manual_seed(columns)
    uniform = torch.rand(6, columns, generator=generator, dtype=F64)
    x = torch.randn(6, columns, generator=generator, dtype=F64)
    w = torch.randint(-12, 13, (24, columns), generator=generator).double() / 2
    match name:
        case "positive":
            x, w = x.abs(), w.abs()
        case "narrow":
            x, w = 1 + uniform / 4, torch.ones_like(w)
        case "constant":
            x = torch.full_like(x, 1.1)
        case "one large, then small":
            x, w = (1 + uniform) * 2.0**-19, w.abs()
            x[:, 0], w[:, 0] = 8, 4
        case "one large pair":
            x, w = (1 + uniform) * 2.0**-19, w.abs()
            x[:, 0], x[:, -1], w[:, 0], w[:, -1] = 8, -8, 4, 4
        case "alternating":
            x, w = x.abs() * (1 - 2 * (torch.arange(columns) % 2)), w.abs()
        case "decreasing":
            x, w = x.abs().sort(1, descending=True).values ** 4, w.abs()
        case "wide":
            x = x * torch.exp2(torch.randint(-12, 13, x.shape, generator=generator).double())
        case "sparse":
            x = x * (uniform < 0.1)
        case "float32":
            return x.float().double(), w
        case "constant float32":
            return x[:, :1].abs().float().double().expand(-1, columns).contiguous(), w.abs()
    return x.bfloat16().double(), w


ROWS = (
    "normal", "positive", "narrow", "constant", "one large, then small", "one large pair", "alternating", "decreasing",
    "wide", "sparse", "float32", "constant float32",
)  # fmt: skip
_DECLARED = Accumulator(lanes=(1, 2, 4), splits=(1, 2, 4))
_ORDERS = (simulate.in_order, simulate.lanes(2), simulate.lanes(4), simulate.splits(4), simulate.tiles(32, 2))
_ALIGNED = (simulate.in_order, simulate.aligned(4), simulate.aligned(16), simulate.aligned(32))
_TRUNCATE = Accumulator(rounding="truncate")
_ANY_ORDER = (simulate.backwards, simulate.shuffled, simulate.pairwise, simulate.lanes(16))
ADDS: dict[str, tuple[Accumulator, tuple[simulate.Order, ...]]] = {
    "float32": (_DECLARED, _ORDERS),
    "flushes": (dataclasses.replace(_DECLARED, flush_to_zero=True), _ORDERS),
    "14 bits": (dataclasses.replace(_DECLARED, unit_roundoff=2.0**-14, exact_bits=14), _ORDERS),
    "rounded products": (dataclasses.replace(_DECLARED, product_roundings=1), _ORDERS),
    "truncates": (_TRUNCATE, _ALIGNED),
    "truncates to 14 bits": (dataclasses.replace(_TRUNCATE, unit_roundoff=2.0**-14, exact_bits=14), _ALIGNED),
}
USED: dict[str, float] = {"float32": 0.3, "truncates": 0.35}
"""Share of the sharp radius that some sum is known to use: the bound is no larger than it has to be."""


@pytest.mark.parametrize("columns", [96, 256])
@pytest.mark.parametrize("adds", ADDS)
def test_sums_stay_inside(adds: str, columns: int) -> None:
    acc, orders = ADDS[adds]
    most = 0.0
    for name in ROWS:
        x, w = rows(name, columns)
        out = matmul(exact(x[None]), weight_of(w, unit=0.5), acc)
        for order in (*orders, *_ANY_ORDER):
            y = simulate.multiply(x, w, acc, simulate.Choices(order=order, fused=not acc.product_roundings))
            error = (y - out.center[0]).abs()
            assert bool((error <= out.radius[HARD, 0]).all()), name
            if order in orders:
                assert bool((error <= out.radius[SHARP, 0]).all()), name
                most = max(most, float(torch.where(error > 0, error / out.radius[SHARP, 0], 0.0).max()))
    assert most >= USED.get(adds, 0.0)


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


@pytest.mark.parametrize("flush", [False, True])
def test_a_flushed_operand_loses_its_product(flush: bool) -> None:
    """Certain or not, subnormal or only perhaps so."""
    acc, w = Accumulator(flush_to_zero=flush), weight_of(torch.full((1, 32), 2.0**100), unit=2.0**100)
    certain = matmul(ball_of(torch.full((1, 32), 2.0**-130)), w, acc)
    perhaps = matmul(ball_of(torch.full((1, 32), 2.0**-126), 2.0**-133), w, acc)
    assert (certain.radius[SHARP].item() >= 32 * 2.0**-30) == flush
    assert (perhaps.radius[SHARP].item() >= 32 * 2.0**-26) == flush


def test_flushing_widens_only_what_is_subnormal() -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2, 64, generator=generator).bfloat16()
    w = weight_of(torch.randint(-12, 13, (4, 64), generator=generator), unit=1.0)
    keeps = matmul(ball_of(x), w, Accumulator())
    flushes = matmul(ball_of(x), w, dataclasses.replace(Accumulator(), flush_to_zero=True))
    assert torch.allclose(keeps.radius, flushes.radius, atol=2.0**-110)
