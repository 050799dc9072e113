"""The radius of a GEMM whose groups a tensor core adds, against a simulation of that tensor core."""

from __future__ import annotations

import dataclasses

import pytest
import simulate
import torch
from simulate import Choices

from oracles import formats, tensor_core
from oracles.accumulation import Weight
from oracles.ball import HARD, SHARP, Ball, exact
from oracles.enclosure import ANY
from oracles.matmul import matmul
from oracles.numerics import Accumulator, TensorCore

F64 = torch.float64
ACC = Accumulator(group=32, inside=TensorCore(), flush_to_zero=True)
ORDER = simulate.in_order


def weight_of(codes: torch.Tensor, byte: torch.Tensor) -> Weight:
    """Of E2M1 values [N, K] and scale bytes [N, K/32], for one expert."""
    scale = formats.exp2(byte.to(torch.int64) - 127)
    return Weight(
        value=(codes * scale.repeat_interleave(32, 1))[None],
        unit=formats.exp2(byte.to(torch.int64).amin(1) - 128)[None],
        spread=True,
        subnormal=bool((byte < 2).any()),
        scale=scale[None],
    )


def row(kind: str, columns: int, generator: torch.Generator) -> torch.Tensor:
    x = torch.randn(4, columns, generator=generator).to(torch.bfloat16).double()
    column = torch.arange(columns)
    match kind:
        case "positive":
            return x.abs()
        case "wide":
            return x * torch.exp2(torch.randint(-12, 13, x.shape, generator=generator).double())
        case "cancelling":
            return x.abs() * torch.where(column % 2 == 0, 1.0, -1.0) * torch.exp2((column // 2 % 20).double())
        case "constant":
            return torch.full_like(x, 1.0078125)
        case "below an ulp":  # 15 products that are each under what is cut, of one sign
            return torch.where(column % 16 == 0, 1.0, 1.9921875 * 2.0**-25).expand(4, -1).double()
    return x


@pytest.mark.parametrize("alignment", [2.0**-13, 2.0**-23, 2.0**-25])
@pytest.mark.parametrize("columns", [64, 512])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide", "cancelling", "constant", "below an ulp"])
def test_the_simulation_is_enclosed(kind: str, columns: int, alignment: float) -> None:
    generator = torch.Generator().manual_seed(columns)
    acc = dataclasses.replace(ACC, inside=TensorCore(alignment=alignment))
    x = row(kind, columns, generator)
    codes = formats.e2m1_decode(torch.randint(0, 16, (48, columns), generator=generator).to(torch.uint8))
    if kind in ("positive", "below an ulp"):
        codes = codes.abs()
    byte = torch.randint(110, 124, (48, columns // 32), generator=generator)
    weight = weight_of(codes, byte)
    ball = matmul(exact(x[None]), weight, acc)
    for seed in (0, 1):
        y = simulate.multiply(x, weight.value[0], acc, Choices(order=ORDER, seed=seed), byte)
        error = (y - ball.center[0]).abs()
        assert bool((error <= ball.radius[SHARP, 0]).all())
        assert bool((error <= ball.radius[HARD, 0]).all())


def test_what_is_cut_is_no_rounding_error() -> None:
    """15 of 16 products are lost in every instruction: one that rounds to nearest keeps most of them."""
    x = row("below an ulp", 64, torch.Generator())
    codes, byte = torch.ones(4, 64, dtype=F64), torch.full((4, 2), 127)
    weight = weight_of(codes, byte)
    y = simulate.multiply(x, weight.value[0], ACC, Choices(order=ORDER, seed=1), byte)
    lost = (x @ codes.mT - y).abs()
    rounds = matmul(exact(x[None]), weight, dataclasses.replace(ACC, inside=None)).radius[HARD, 0]
    cuts = matmul(exact(x[None]), weight, ACC).radius[HARD, 0]
    assert bool((lost > rounds).all())
    assert bool((lost <= cuts).all())


def test_a_finer_alignment_cuts_less() -> None:
    generator = torch.Generator().manual_seed(0)
    x = row("wide", 512, generator)[None]
    weight = weight_of(
        formats.e2m1_decode(torch.randint(0, 16, (48, 512), generator=generator).to(torch.uint8)),
        torch.full((48, 16), 120),
    )
    radii = [
        matmul(exact(x), weight, dataclasses.replace(ACC, inside=TensorCore(alignment=alignment))).radius[SHARP].mean()
        for alignment in (2.0**-13, 2.0**-18, 2.0**-23, 2.0**-25)
    ]
    assert radii == sorted(radii, reverse=True)
    assert radii[0] > 100 * radii[2] > 100 * radii[3]


@pytest.mark.parametrize("kind", ["integers", "one product"])
def test_nothing_is_cut_of_few_bits(kind: str) -> None:
    x = torch.zeros(1, 2, 128, dtype=F64)
    if kind == "integers":
        x[:] = torch.arange(128) % 7 - 3
    else:
        x[..., 5] = 1.9921875 * 2.0**90
    weight = weight_of(torch.full((16, 128), 1.5, dtype=F64), torch.full((16, 4), 120))
    assert not bool(matmul(exact(x), weight, ACC).radius.any())


def test_a_group_may_overflow_before_its_small_scale() -> None:
    """Only the rows of w whose codes are large enough for it."""
    codes = torch.full((2, 128), 2.0, dtype=F64)
    codes[1] = 0.5
    weight = weight_of(codes, torch.full((2, 4), 1))
    x = torch.zeros(1, 1, 128, dtype=F64)
    x[..., 32:64] = 2.0**122  # 32 times 2 times that is 2**128
    ball = matmul(exact(x), weight, ACC)
    assert ball.kinds is not None
    assert ball.kinds.tolist() == [[[ANY, 1]]]
    assert matmul(exact(x / 2), weight, ACC).kinds is None
    radius = torch.zeros(3, 1, 1, 128, dtype=F64)
    radius[..., 40] = 2.0**127
    uncertain = matmul(Ball(center=x / 2, radius=radius), weight, ACC)
    assert uncertain.kinds is not None
    assert uncertain.kinds.tolist() == [[[ANY, 1]]]


def test_a_subnormal_sum_under_a_large_scale_may_be_flushed() -> None:
    """2**-126 - 2**-127 is flushed before 2**100 makes it 2**-27."""
    x = torch.zeros(1, 64, dtype=F64)
    x[0, 0], x[0, 1] = 2.0**-126, -(2.0**-127)
    byte = torch.full((1, 2), 227)
    weight = weight_of(torch.ones(1, 64, dtype=F64), byte)
    ball = matmul(exact(x[None]), weight, ACC)
    for flush in (True, False):
        y = simulate.multiply(x, weight.value[0], ACC, Choices(order=ORDER, flush=flush), byte)
        assert bool(((y - ball.center[0]).abs() <= ball.radius[SHARP, 0]).all())
    assert (
        tensor_core.cut(x[None], weight, torch.zeros(1, 1, 1, dtype=F64), _grid(x[None], weight), ACC)[0].max()
        < 2.0**-50
    )


def _grid(x: torch.Tensor, weight: Weight) -> tensor_core.Grid:
    return tensor_core.Grid(x, torch.zeros_like(x, dtype=torch.bool), weight, ACC)
