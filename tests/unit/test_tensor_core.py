"""The radius of a GEMM whose groups a tensor core adds, against a simulation of that tensor core."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import simulate
import torch
from simulate import Choices

from oracles import formats, tensor_core
from oracles.ball import HARD, SHARP, Ball, exact
from oracles.enclosure import ANY
from oracles.matmul import matmul
from oracles.numerics import Accumulator, TensorCore
from oracles.weight import Weight

F64 = torch.float64
ACC = Accumulator(group=32, inside=TensorCore(), flush_to_zero=True)
ORDER = simulate.in_order


def weight_of(codes: torch.Tensor, byte: torch.Tensor) -> Weight:
    """Of E2M1 values [N, K] and scale bytes [N, K/32], for one expert."""
    scale = formats.exp2(byte.to(torch.int64) - 127)
    return Weight(
        held=(codes * scale.repeat_interleave(32, 1))[None],
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
        tensor_core.cut(x[None], weight, torch.zeros(3, 1, 1, 1, dtype=F64), _grid(x[None], weight), ACC)[0].max()
        < 2.0**-50
    )


CHAIN = Accumulator(
    unit_roundoff=2.0**-13,
    rounding="truncate",
    exact_bits=14,
    chain=TensorCore(columns=32, alignment=2.0**-13, result=2.0**-13),
)
EXACTLY = TensorCore(columns=32, alignment=2.0**-13, result=2.0**-13, exactly=True)
KNOWN = {
    "chain": dataclasses.replace(CHAIN, chain=EXACTLY),
    "chain of 16": dataclasses.replace(CHAIN, chain=dataclasses.replace(EXACTLY, columns=16)),
    "wider result": dataclasses.replace(CHAIN, chain=dataclasses.replace(EXACTLY, result=2.0**-23)),
    "wider alignment": dataclasses.replace(CHAIN, chain=dataclasses.replace(EXACTLY, alignment=2.0**-17)),
    "groups": Accumulator(group=32, inside=EXACTLY),
    "groups of two instructions": Accumulator(group=32, inside=dataclasses.replace(EXACTLY, columns=16)),
}
KINDS = ["normal", "positive", "wide", "cancelling", "constant"]


def operands(kind: str, columns: int, rows: int = 48) -> tuple[torch.Tensor, Weight, torch.Tensor]:
    generator = torch.Generator().manual_seed(columns)
    x = row(kind, columns, generator)
    codes = formats.e2m1_decode(torch.randint(0, 16, (rows, columns), generator=generator).to(torch.uint8))
    byte = torch.randint(110, 124, (rows, columns // 32), generator=generator)
    return x, weight_of(codes.abs() if kind == "positive" else codes, byte), byte


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_chain_of_instructions_cuts_is_enclosed(kind: str) -> None:
    """Towards 0 or down, at the quantum that is declared or a finer one, to the sum so far or to 0."""
    x, weight, _ = operands(kind, 512)
    ball = matmul(exact(x[None]), weight, CHAIN)
    for seed, divides, errors in itertools.product((0, 1), (True, False), (0, -1)):
        y = simulate.multiply(
            x, weight.value[0], CHAIN, Choices(order=ORDER, seed=seed, divides=divides, errors=errors)
        )
        assert bool(((y - ball.center[0]).abs() <= ball.radius[SHARP, 0]).all())
        assert bool(((y - ball.center[0]).abs() <= ball.radius[HARD, 0]).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", KNOWN)
def test_a_chain_that_is_known_is_followed_bit_by_bit(known: str, kind: str) -> None:
    x, weight, byte = operands(kind, 512)
    acc = dataclasses.replace(CHAIN, measured=KNOWN[known])
    ball = matmul(exact(x[None]), weight, acc)
    y = simulate.multiply(x, weight.value[0], acc, Choices(order=ORDER, seed=1), byte)
    assert torch.equal(ball.center[0], y)
    assert not bool(ball.radius[SHARP:].any())
    assert bool((ball.radius[HARD] >= (x @ weight.value[0].mT - y).abs()).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("size", [2.0**-40, 2.0**-9, 2.0**-4])
def test_elements_that_are_not_known_change_cuts(size: float, known: str, kind: str) -> None:
    """Three of them, by up to `size` of their own: nothing leaves the radius, which is not that of all cuts."""
    x, weight, byte = operands(kind, 512)
    generator = torch.Generator().manual_seed(7)
    radius = torch.zeros(3, 1, *x.shape, dtype=F64)
    columns = torch.randint(0, 512, (3,), generator=generator)
    radius[..., columns] = x[:, columns].abs() * size
    acc = dataclasses.replace(CHAIN, measured=KNOWN[known])
    ball = matmul(Ball(center=x[None], radius=radius), weight, acc)
    for _ in range(6):
        off = torch.rand(x.shape, generator=generator, dtype=F64) * 2 - 1
        y = simulate.multiply(x + off.sign() * radius[0, 0], weight.value[0], acc, Choices(order=ORDER, seed=1), byte)
        error = (y - ball.center[0]).abs()
        assert bool((error <= ball.radius[SHARP, 0]).all())
        assert bool((error <= ball.radius[HARD, 0]).all())
    if kind == "normal" and size <= 2.0**-9:
        unknown = matmul(Ball(center=x[None], radius=radius), weight, CHAIN)
        assert ball.radius[SHARP].mean() < 0.2 * unknown.radius[SHARP].mean()


def test_a_sum_that_may_pass_a_power_of_two_changes_every_cut_after_it() -> None:
    """Below 1 none of 32 products is cut, from 1 on all of each."""
    x = torch.zeros(1, 64, dtype=F64)
    x[0, 0], x[0, 32:] = 1 - 2.0**-12, 2.0**-14
    weight, byte = weight_of(torch.ones(1, 64, dtype=F64), torch.full((1, 2), 127)), torch.full((1, 2), 127)
    radius = torch.zeros(3, 1, 1, 64, dtype=F64)
    radius[..., 0] = 2.0**-11
    acc = dataclasses.replace(CHAIN, measured=KNOWN["chain"])
    ball = matmul(Ball(center=x[None], radius=radius), weight, acc)
    errors = []
    for sign in (-1, 1):
        y = simulate.multiply(x + sign * radius[0, 0], weight.value[0], acc, Choices(order=ORDER, seed=1), byte)
        errors.append(float((y - ball.center[0]).abs()))
    assert max(errors) > 2.0**-10
    assert max(errors) <= float(ball.radius[SHARP])


def _grid(x: torch.Tensor, weight: Weight) -> tensor_core.Grid:
    return tensor_core.Grid(x, torch.zeros_like(x, dtype=torch.bool), weight, ACC)
