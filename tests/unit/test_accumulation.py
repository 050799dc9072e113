"""The error of float additions: the theorem of the grid on small accumulators, and the cases that broke bounds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from fractions import Fraction

import pytest
import torch

from oracles import accumulation, formats
from oracles.accumulation import Grid
from oracles.numerics import Accumulator
from oracles.weight import Weight

F64 = torch.float64
FLUSHES = Accumulator(flush_to_zero=True)


def weight_of(value: torch.Tensor) -> Weight:
    """A weight [N, K] of one expert, with the facts that a dequantised one has."""
    value = value.double()
    size = value.abs()
    least = torch.where(size > 0, size, torch.inf).amin(-1)
    unit = torch.exp2(torch.floor(torch.log2(least)) - 8)
    spread = bool((size.amax(-1) > least * 2.0**16).any())
    return Weight(held=value[None], unit=unit[None], spread=spread, subnormal=bool((least < 2.0**-126).any()))


def grid_of(x: torch.Tensor, value: torch.Tensor, acc: Accumulator, uncertain: torch.Tensor | None = None) -> Grid:
    x = x[None].double()
    unsure = torch.zeros_like(x, dtype=torch.bool) if uncertain is None else uncertain[None]
    return Grid(x, unsure, weight_of(value), acc)


# --- the theorem of the grid -----------------------------------------------------------------------------------------


def _rounded(value: Fraction, bits: int, truncates: bool) -> tuple[Fraction, Fraction]:
    """(a float of `bits` bits, its last place)."""
    if value == 0:
        return Fraction(0), Fraction(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    ulp = Fraction(2) ** (exponent - bits + 1)
    count = value / ulp
    whole = int(count) if truncates else round(count)
    return whole * ulp, ulp


def _random_tree(products: list[Fraction], bits: int, truncates: bool, rng: random.Random) -> tuple[Fraction, Fraction]:
    """(sum of the roundings' magnitudes, of their squares) when the products are added in a random tree."""
    sums, linear, square = list(products), Fraction(0), Fraction(0)
    while len(sums) > 1:
        first = sums.pop(rng.randrange(len(sums)))
        second = sums.pop(rng.randrange(len(sums)))
        total, _ = _rounded(first + second, bits, truncates)
        linear += abs(total - first - second)
        square += (total - first - second) ** 2
        sums.append(total)
    return linear, square


@pytest.mark.parametrize("truncates", [False, True])
def test_small_products_bound_the_roundings_of_any_tree(truncates: bool) -> None:
    """Exact arithmetic, accumulators of 3 to 6 bits: count times ulp(S), and its square over 3 to nearest."""
    rng = random.Random(0)
    acc = Accumulator(rounding="truncate" if truncates else "nearest")
    for _ in range(1500):
        bits = rng.randint(3, 6)
        x = [
            rng.choice((-1, 1)) * rng.randint(0, 2**bits - 1) * 2.0 ** rng.randint(-6, 0)
            for _ in range(rng.choice((2, 5, 12)))
        ]
        x = [*x, *[0.0] * (32 - len(x))]
        grid = grid_of(torch.tensor([x]), torch.ones(1, 32), dataclasses.replace(acc, exact_bits=bits))
        products = [_rounded(Fraction(value), bits, truncates)[0] for value in x if value]
        linear, square = _random_tree(products, bits, truncates, rng) if products else (Fraction(0), Fraction(0))
        largest = float(sum(map(abs, products)) * 2)  # no partial sum is larger, with its errors
        count, ulp = (value.item() for value in grid.small(torch.tensor([[[largest]]], dtype=F64), bits))
        assert linear <= count * ulp * (2 if truncates else 1)
        if not truncates:
            assert square <= count * Fraction(ulp) ** 2 / 3


def test_no_small_product_no_rounding() -> None:
    grid = grid_of(torch.full((1, 32), 3.0), torch.ones(1, 32), Accumulator())
    assert (
        grid.small(torch.tensor([[[2.0**15]]], dtype=F64), 24)[0].item() == 0
    )  # the unit of the weights here is 2**-8
    assert grid.small(torch.tensor([[[2.0**16]]], dtype=F64), 24)[0].item() == 32


def test_uncertain_elements_are_always_small_and_others_stay_as_they_are() -> None:
    x = torch.tensor([[0.0, 1.0, 1.0, *[0.0] * 29]])
    uncertain = torch.zeros(1, 32, dtype=torch.bool)
    uncertain[0, :2] = True  # the first is 0, but not for sure
    grid = grid_of(x, torch.ones(1, 32), Accumulator(), uncertain)
    assert grid.small(torch.tensor([[[1.0]]], dtype=F64), 24)[0].item() == 2
    assert not bool(grid.fits)


def test_last_places_further_apart_than_the_grid_has_room() -> None:
    """2**-100, 1 and 2**100: each is small for sums that are large enough, none is ever missed."""
    x = torch.tensor([[2.0**-100, 1.0, 2.0**100, *[0.0] * 29]], dtype=F64)
    grid = grid_of(x, torch.full((1, 32), 256.0), Accumulator())  # the unit is 1
    for largest, least in ((2.0**-80, 0), (2.0**10, 1), (2.0**30, 2), (2.0**120, 2), (2.0**130, 3)):
        assert grid.small(torch.tensor([[[largest]]], dtype=F64), 24)[0].item() >= least


@pytest.mark.parametrize(("flush", "fits"), [(False, True), (True, False)])
def test_what_the_format_is_too_small_for(flush: bool, fits: bool) -> None:
    acc = Accumulator(flush_to_zero=flush)
    assert bool(grid_of(torch.full((1, 32), 2.0**-120), torch.ones(1, 32), acc).fits) == fits
    assert not bool(grid_of(torch.full((1, 32), 2.0**-145), torch.ones(1, 32), acc).fits)


# --- hard ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [32, 8192, 1 << 16])
def test_growth_stays_a_bound_where_gamma_has_a_pole(columns: int) -> None:
    """n u / (1 - n u) is negative for 8192 truncations of 2**-13."""
    acc = Accumulator(rounding="truncate", unit_roundoff=2.0**-14, exact_bits=14)
    assert accumulation.growth(columns, acc) >= columns * 2.0**-13


def test_a_flushed_operand_may_be_any_value_of_its_interval() -> None:
    """2**-126 is no subnormal, but 2**-126 - 2**-133 is, and the whole of its product is lost."""
    x, radius = torch.full((1, 1, 32), 2.0**-126, dtype=F64), torch.full((1, 1, 32), 2.0**-133, dtype=F64)
    weight = weight_of(torch.full((1, 32), 2.0**100))
    assert accumulation.flushed(x, radius, weight, FLUSHES).item() >= 32 * 2.0**-26
    assert accumulation.flushed(2 * x, radius, weight, FLUSHES).item() == 0


def test_a_flushed_weight_loses_its_product() -> None:
    x = torch.full((1, 1, 32), 2.0**100, dtype=F64)
    weight = weight_of(torch.full((1, 32), 2.0**-127))
    assert accumulation.flushed(x, torch.zeros_like(x), weight, FLUSHES).item() == 2.0**-22


# --- sharp -----------------------------------------------------------------------------------------------------------


def sharp_of(x: torch.Tensor, value: torch.Tensor, acc: Accumulator) -> tuple[float, float, float]:
    """(hard, sharp, bias) of the one output of x [K] times value [K]."""
    x, weight = x[None, None].double(), weight_of(value[None])
    grown = x.abs() @ weight.magnitude.mT
    grid = Grid(x, torch.zeros_like(x, dtype=torch.bool), weight, acc)
    hard = accumulation.hard(grown, x.shape[-1], grid, acc)
    asked = torch.ones_like(hard, dtype=torch.bool)
    sharp, bias = accumulation.sharp(x, weight, grown, hard, torch.zeros_like(hard), asked, acc, grid)
    return hard.item(), sharp.item(), bias.item()


def _added(products: torch.Tensor) -> float:
    total = torch.zeros((), dtype=torch.float32)
    for product in products.float():
        total = total + product
    return total.item()


def test_products_that_are_lost_one_and_all_are_a_bias() -> None:
    """Neither x nor the weights span 2**16, but the products do: 992 of them are under half an ulp of the first."""
    generator = torch.Generator().manual_seed(0)
    x = ((1 + torch.rand(1024, generator=generator)).bfloat16() * 2.0**-15).double()
    w = torch.full((1024,), 2.0**-8, dtype=F64)
    x[0], w[0], w[1:32] = 1, 4, 0
    error = abs(_added(x * w) - (x * w).sum().item())
    hard, sharp, bias = sharp_of(x, w, Accumulator())
    assert error > 9 * 2.0**-24 * 4 * 1024**0.5  # more than lambda u sqrt(sum of squares)
    assert error <= bias <= sharp <= hard


def test_a_row_without_independence_gets_the_hard_radius() -> None:
    w = torch.rand(512, generator=torch.Generator().manual_seed(0))
    hard, sharp, bias = sharp_of(torch.full((512,), 1.1), w, Accumulator())
    assert sharp == bias == hard > 0


def test_truncation_is_all_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(512, generator=generator).bfloat16(), torch.randn(512, generator=generator)
    hard, sharp, bias = sharp_of(x, w, Accumulator(rounding="truncate"))
    assert 0 < sharp == bias < hard


def test_truncation_leaves_its_operands_alone() -> None:
    """With K = 32 all columns are one step."""
    x, w = -torch.rand(32) - 1, torch.rand(32) - 0.5
    copy = w.clone()
    sharp_of(x, w, Accumulator(rounding="truncate"))
    assert torch.equal(w, copy)


@pytest.mark.parametrize("rows", [(), (3,), (0, 5, 6), range(9)])
def test_a_product_of_few_rows(rows: Iterable[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.zeros(1, 9, 32, dtype=F64), weight_of(torch.randint(-9, 9, (5, 32), generator=generator))
    for row in rows:
        x[0, row] = torch.randint(0, 9, (32,), generator=generator).double()
    product = weight.magnitudes_of_few(x)
    assert product is None if not x.any() else torch.equal(product, x @ weight.value.abs().mT)


@pytest.mark.parametrize("group", [1, 32])
@pytest.mark.parametrize(
    ("name", "independent"),
    [("normal", True), ("constant", False), ("periodic", False), ("one hot", False), ("signs", False), ("zero", True)],
)
def test_independence(name: str, independent: bool, group: int) -> None:
    normal = torch.randn(512, generator=torch.Generator().manual_seed(0)).bfloat16().double()
    rows = {
        "normal": normal,
        "constant": torch.full((512,), 1.5, dtype=F64),
        "periodic": normal[:32].repeat(16),
        "one hot": torch.eye(512, dtype=F64)[3] * 0,
        "signs": torch.where(normal > 0, 1.25, -1.25),
        "zero": torch.zeros(512, dtype=F64),
    }
    rows["one hot"][:4] = 1.0  # four of them: 2 * 1 distinct < 4
    assert _independent(rows[name], group) == independent


def _independent(row: torch.Tensor, group: int) -> bool:
    row = row[None, None]
    return bool(accumulation.is_independent(row, row.abs().sort(-1).values, group))


def test_few_values_are_enough_where_groups_are_added() -> None:
    """E4M3 has some hundred values near 1. Every second group like the one before is the most that may be."""
    row = torch.randn(4096, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn).double()
    assert not _independent(row, 1)
    assert _independent(row, 32)
    groups = row.view(-1, 32)
    assert _independent(groups[:64].repeat_interleave(2, 0).flatten(), 32)
    assert not _independent(groups[:63].repeat_interleave(3, 0).flatten(), 32)
    flipped = groups[:1] * torch.where(groups > 0, 1.0, -1.0)  # equal but for signs
    assert not _independent(flipped.flatten(), 32)


# --- underflow -------------------------------------------------------------------------------------------------------


def test_underflow_counts_every_addition_that_may_flush() -> None:
    """AMX starts each tile of 32 from 0 in two lanes: 34 additions, more than products."""
    tile = 34 * formats.MIN_NORMAL["float32"]
    assert accumulation.underflow(32, Accumulator(flush_to_zero=True)) >= tile
    assert accumulation.underflow(32, Accumulator()) == 32 * 2.0**-149
