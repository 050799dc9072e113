"""Balls: roundings collapse the radius or keep a whole step, and non-finite values travel as sets."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from oracles import ball
from oracles.ball import BIAS, HARD, SHARP, Ball
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF


def of(center: float, *radius: float, kinds: int | None = None) -> Ball:
    """One value with its radii (hard, sharp, bias; the last given fills the rest)."""
    radii = (*radius, *[radius[-1]] * (3 - len(radius)))
    return Ball(
        center=torch.tensor([center], dtype=torch.float64),
        radius=torch.tensor(radii, dtype=torch.float64)[:, None],
        kinds=None if kinds is None else torch.tensor([kinds], dtype=torch.uint8),
    )


def test_rounding_collapses_the_radius() -> None:
    out = ball.rounded(of(1 + 2.0**-10, 2.0**-11), "bfloat16")
    assert out.center.item() == 1
    assert out.radius[:BIAS].abs().sum() == 0


def test_a_straddled_boundary_is_one_step() -> None:
    out = ball.rounded(of(1 + 2.0**-8 - 2.0**-20, 2.0**-19), "bfloat16")  # the tie between 1 and 1 + 2**-7
    assert out.center.item() == 1
    assert out.radius[HARD].item() == out.radius[SHARP].item() == 2.0**-7


def test_hard_and_sharp_are_rounded_each_on_its_own() -> None:
    out = ball.rounded(of(1 + 2.0**-8 - 2.0**-20, 2.0**-19, 2.0**-21), "bfloat16")
    assert out.radius[HARD].item() == 2.0**-7
    assert out.radius[SHARP].item() == 0


def test_an_exact_tie_goes_to_even() -> None:
    assert ball.rounded(of(1 + 2.0**-8, 0.0), "bfloat16").center.item() == 1
    assert ball.rounded(of(1 + 3 * 2.0**-8, 0.0), "bfloat16").center.item() == 1 + 2.0**-6


def test_a_rounding_keeps_the_bias() -> None:
    assert ball.rounded(of(1.0, 2.0**-20), "bfloat16").radius[BIAS].item() == 2.0**-20


@pytest.mark.parametrize(
    ("center", "radius", "kinds"),
    [
        (3.4e38, 0.0, POS_INF),  # above the midpoint of the largest and 2**128
        (-3.4e38, 0.0, NEG_INF),
        (3.39e38, 1e37, POS_INF | FINITE),
        (-3.39e38, 1e37, NEG_INF | FINITE),
        (0.0, 4e38, POS_INF | NEG_INF | FINITE),
    ],
)
def test_an_end_that_overflows_makes_infinity_possible(center: float, radius: float, kinds: int) -> None:
    out = ball.rounded(of(center, radius), "bfloat16")
    assert out.kinds is not None
    assert out.kinds.item() == kinds
    assert out.radius[HARD].item() == 0
    assert out.center.item() == {POS_INF: torch.inf, NEG_INF: -torch.inf}.get(kinds, 0.0)


def test_overflow_leaves_other_kinds_alone() -> None:
    assert ball.rounded(of(0.0, 0.0, kinds=ANY), "float16").kinds.item() == ANY  # type: ignore[union-attr]
    assert ball.rounded(of(torch.nan, 0.0, kinds=NAN), "float16").kinds.item() == NAN  # type: ignore[union-attr]


def test_a_sharp_end_may_be_flushed_where_no_hard_one_is() -> None:
    center, hard, sharp = 2.0**-125, 2.0**-124, 0.625 * 2.0**-125  # ends of -2, 6, 0.75 and 3.25 times 2**-126
    out = ball.rounded(of(center, hard, sharp), "bfloat16", flush_to_zero=True)
    assert out.radius[HARD].item() == hard
    assert out.radius[SHARP].item() == center
    assert ball.rounded(of(center, hard, sharp), "bfloat16").radius[SHARP].item() == sharp


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_flushed_result_holds_zero_and_the_value(sign: float) -> None:
    value = sign * 3 * 2.0**-130
    out = ball.rounded(of(value, 0.0), "bfloat16", flush_to_zero=True)
    assert out.center.item() == value
    assert out.radius[HARD].item() == abs(value)
    assert ball.rounded(of(value, 0.0), "bfloat16").radius[HARD].item() == 0


def test_exact_turns_special_values_into_kinds() -> None:
    values = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    out = ball.exact(values)
    assert out.kinds is not None
    assert out.kinds.tolist() == [FINITE, NAN, POS_INF, NEG_INF]
    assert ball.exact(values[:1]).kinds is None


def test_settle_gives_each_kind_its_center() -> None:
    kinds = torch.tensor([FINITE, NAN, POS_INF, NEG_INF, ANY, FINITE | NAN], dtype=torch.uint8)
    out = ball.settle(torch.ones(6, dtype=torch.float64), torch.ones(3, 6, dtype=torch.float64), kinds)
    assert out.center[0] == 1
    assert out.center[1].isnan()
    assert out.center[2:].tolist() == [torch.inf, -torch.inf, 0, 0]
    assert out.radius.sum(0).tolist() == [3, 0, 0, 0, 0, 0]


def test_lsb_of_random_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(-(2**63), 2**63 - 1, (500,), generator=generator)
    keep = torch.randint(0, 52, (500,), generator=generator)
    values = ((raw >> keep) << keep).view(torch.float64)
    values = values[values.isfinite() & (values.abs() > 2.0**-900)]
    assert len(values) > 400
    for value, unit in zip(values.tolist(), ball.lsb(values).tolist(), strict=True):
        quotient = Fraction(value) / Fraction(unit)
        assert quotient.denominator == 1
        assert quotient.numerator % 2 == 1


def test_lsb_of_zero_is_infinite() -> None:
    assert ball.lsb(torch.tensor([0.0, -0.0], dtype=torch.float64)).tolist() == [torch.inf, torch.inf]
