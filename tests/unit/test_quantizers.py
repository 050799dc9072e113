"""Q8_0 on balls against ggml's float32 arithmetic."""

from __future__ import annotations

import pytest
import simulate
import torch

from oracles import quantizers
from oracles.ball import BIAS, HARD, Ball, exact
from oracles.enclosure import ANY, FINITE

F64 = torch.float64


def ball_of(center: torch.Tensor, radius: torch.Tensor | float = 0.0) -> Ball:
    """[1, T, K]."""
    center = center.double()[None]
    return Ball(center=center, radius=torch.as_tensor(radius, dtype=F64).expand(3, *center.shape).contiguous())


def rows(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 96, generator=generator)
    match name:
        case "normal":
            return x
        case "bfloat16":
            return x.bfloat16().float()
        case "small":
            return x * 2.0**-19  # d is subnormal in fp16
        case "vanishing":
            return x * 1e-6
        case "subnormal":
            return x * 1e-39
        case "large":
            return x * 1e6
        case "halves":  # exact ties of nearest even and away, under an amax of 127
            x = torch.randint(-126, 126, (64, 96), generator=generator) + 0.5
            x[:, ::32] = 127.0
            return x
        case "zero":
            return torch.zeros(64, 96)
    raise ValueError(name)


@pytest.mark.parametrize("name", ["normal", "bfloat16", "small", "vanishing", "subnormal", "large", "halves", "zero"])
def test_known_values_are_quantised_to_the_bit(name: str) -> None:
    x = rows(name)
    out = quantizers.apply(ball_of(x), "q8_0")
    assert torch.equal(out.center[0], simulate.quantized(x.double(), "q8_0", away=False))
    assert bool((out.radius == 0).all())


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("name", ["normal", "bfloat16", "small", "vanishing", "large", "halves", "zero"])
def test_portable_code_stays_inside(name: str, away: bool) -> None:
    x = rows(name)
    out = quantizers.apply(ball_of(x), "q8_0_portable")
    error = (simulate.quantized(x.double(), "q8_0_portable", away=away) - out.center[0]).abs()
    assert bool((error <= out.radius[HARD, 0]).all())
    if name == "normal":
        assert (out.radius[HARD] > 0).double().mean() < 0.01


@pytest.mark.parametrize("quantizer", ["q8_0", "q8_0_portable"])
@pytest.mark.parametrize("relative", [2.0**-20, 2.0**-10, 0.1, 2.0])
@pytest.mark.parametrize("name", ["normal", "small", "vanishing", "large", "halves"])
def test_values_inside_their_radius(name: str, relative: float, quantizer: str) -> None:
    """Ends, and in between: blocks whose largest element changes, and those that may be all zero."""
    x = rows(name)
    generator = torch.Generator().manual_seed(1)
    radius = x.abs().double() * relative * torch.rand(x.shape, generator=generator, dtype=F64)
    out = quantizers.apply(ball_of(x, radius), quantizer)  # type: ignore[arg-type]
    finite = torch.ones(x.shape, dtype=torch.bool) if out.kinds is None else out.kinds[0] == FINITE
    for turn in range(12):
        place = torch.rand(x.shape, generator=generator, dtype=F64) * 2 - 1
        inside = (x.double() + radius * (place.sign() if turn % 2 else place)).float().double()
        inside = torch.where((inside - x.double()).abs() <= radius, inside, x.double())
        error = (simulate.quantized(inside, quantizer, away=turn % 3 == 0) - out.center[0]).abs()
        assert bool((error <= out.radius[HARD, 0] * (1 + 2.0**-40))[finite].all())


def test_a_block_that_may_be_all_zero() -> None:
    """x0 in [0, 0.0982] beside x1 in [0, 1]: if x1 is 0, x0 is the largest, and its own code 127."""
    center, radius = torch.zeros(1, 32, dtype=F64), torch.zeros(1, 32, dtype=F64)
    center[0, :2] = radius[0, :2] = torch.tensor([0.0491, 0.5])
    out = quantizers.apply(ball_of(center, radius), "q8_0")
    alone = torch.zeros(1, 32, dtype=F64)
    alone[0, 0] = float(torch.tensor(0.0982))
    assert bool(((simulate.quantized(alone, "q8_0", away=False) - out.center[0]).abs() <= out.radius[HARD, 0]).all())


def test_an_infinite_scale() -> None:
    """amax = 65520 * 127 is the first whose fp16 scale overflows."""
    x = torch.zeros(3, 64)
    x[0, 0], x[1, 0], x[2, 32] = 65520.0 * 127, 65519.0 * 127, 9e6
    out = quantizers.apply(ball_of(x), "q8_0")
    assert out.kinds is not None
    blocks = out.kinds[0].view(3, 2, 32)[..., 5].tolist()
    assert blocks == [[ANY & ~FINITE, FINITE], [FINITE, FINITE], [FINITE, ANY & ~FINITE]]


def test_a_scale_that_may_be_infinite() -> None:
    x = torch.full((1, 32), 65519.0 * 127)
    out = quantizers.apply(ball_of(x, 1000.0), "q8_0")
    assert out.kinds is not None
    assert out.kinds.unique().tolist() == [ANY]


def test_a_special_value_spoils_its_block_only() -> None:
    x = torch.ones(1, 64, dtype=F64)
    x[0, 40] = torch.nan
    out = quantizers.apply(exact(x[None]), "q8_0")
    assert out.kinds is not None
    assert out.kinds[0, 0, :32].unique().tolist() == [FINITE]
    assert out.kinds[0, 0, 32:].unique().tolist() == [ANY]


def test_a_bias_moves_the_scale_and_all_codes() -> None:
    """The mean of many blocks, each off by the same relative amount, moves no further than the bias."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4000, 32, generator=generator).double()
    relative = 2.0**-12
    near = ball_of(x)
    radius = torch.stack([x.abs() * relative] * 3)[:, None]
    out = quantizers.apply(Ball(center=near.center, radius=radius), "q8_0")
    moved = simulate.quantized(simulate.f32(x * (1 + relative)), "q8_0", away=False)
    shift = (moved - out.center[0]) * x.sign()
    assert abs(shift.mean().item()) <= out.radius[BIAS].mean().item()


def test_none_is_the_identity() -> None:
    x = ball_of(torch.ones(1, 32))
    assert quantizers.apply(x, "none") is x
