"""MXFP8 on balls against the kernel's float32 arithmetic, step by step."""

from __future__ import annotations

import pytest
import torch

from oracles import quantizers
from oracles.ball import BIAS, HARD, SHARP, Ball, exact
from oracles.enclosure import ANY, FINITE, NAN

VERSIONS = ("mxfp8", "mxfp8_flushed")
TINY = 2.0**-126


def flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < TINY, 0.0 * x, x)


def kernel(x: torch.Tensor, version: str, ulp: int = 0) -> torch.Tensor:
    """The dequantised values of float32 x [..., K], as cvt_warp_fp16_to_mxfp8 computes them. ulp: of rcp.approx."""
    blocks = x.float().unflatten(-1, (-1, 32))
    keep = flushed if version == "mxfp8_flushed" else lambda value: value
    known = torch.where(blocks.isnan(), -1.0, blocks.abs()).amax(-1, keepdim=True)  # hmax ignores NaN
    amax = torch.where(known < 0, torch.nan, known)
    reciprocal = torch.tensor(1 / 448, dtype=torch.float32).view(torch.int32) + ulp
    q = keep(amax * reciprocal.view(torch.float32))
    mantissa, exponent = torch.frexp(q.double())
    byte = (torch.where(mantissa == 0.5, exponent - 1, exponent) + 127).clamp(0, 254)
    byte = torch.where(q == 0, 0, torch.where(q.isinf(), 254, torch.where(q.isnan(), 255, byte)))
    inverse = torch.where((byte == 0) | (byte >= 254), 0.0, torch.exp2(127.0 - byte)).float()
    scaled = keep(keep(blocks) * inverse)
    clamped = torch.where(scaled.isnan(), 448.0, scaled.clamp(-448, 448))
    code = clamped.to(torch.float8_e4m3fn).double()
    scale = torch.where(byte == 255, torch.nan, torch.exp2(byte.double() - 127))
    return (code * scale).flatten(-2)


def rows(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 96, generator=generator)
    match name:
        case "normal":
            return x.bfloat16().float()
        case "powers":  # amax is 448 times a power of two: rcp.approx decides
            x = x.bfloat16().float()
            x[:, ::32] = 448.0 * 2.0 ** torch.arange(-32, 32)[:, None]
            return x
        case "small":
            return (x * 2.0**-112).bfloat16().float()
        case "tiny":
            return (x * 2.0**-119).bfloat16().float()
        case "subnormal":
            return (x * 2.0**-125).bfloat16().float()
        case "large":
            return (x * 2.0**120).bfloat16().float()
        case "zero":
            return torch.zeros(64, 96)
    raise ValueError(name)


NAMES = ("normal", "powers", "small", "tiny", "subnormal", "large", "zero")


def ball_of(center: torch.Tensor, radius: torch.Tensor | float = 0.0) -> Ball:
    center = center.double()[None]
    spread = torch.as_tensor(radius, dtype=torch.float64).expand(3, *center.shape).contiguous()
    return Ball(center=center, radius=spread)


@pytest.mark.parametrize("ulp", [-1, 0, 1])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_known_values(name: str, version: str, ulp: int) -> None:
    x = rows(name)
    out = quantizers.apply(ball_of(x), version)
    error = (kernel(x, version, ulp) - out.center[0]).abs()
    assert bool((error <= out.radius[HARD, 0]).all())
    assert bool((error <= out.radius[SHARP, 0]).all())
    if name in ("normal", "large", "zero"):  # nothing is open but where amax sits on a boundary
        assert bool((out.radius == 0).all())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2.0**-9, 2.0**-7, 0.5, 3.0])
def test_whatever_lies_in_the_ball_stays_inside(name: str, version: str, size: float) -> None:
    x = rows(name).double()
    generator = torch.Generator().manual_seed(1)
    radius = (x.abs() * size).clamp(min=2.0**-130)
    ball = ball_of(x, radius)
    out = quantizers.apply(ball, version)
    low, high = out.center[0] - out.radius[HARD, 0], out.center[0] + out.radius[HARD, 0]
    for ulp in (-1, 0, 1):
        for _ in range(8):
            at = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
            ends = torch.where(torch.rand(x.shape, generator=generator) < 0.5, at.sign(), at)
            value = (x + radius * ends).float().double()
            value = torch.minimum(torch.maximum(value, x - radius), x + radius)
            got = kernel(value.float(), version, ulp)
            slack = 2.0**-20 * got.abs()  # value.float() may leave the ball by its last place
            assert bool(((got >= low - slack) & (got <= high + slack)).all())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_a_special_value_among_finite_ones(version: str, special: float) -> None:
    x = rows("normal")[:4]
    x[0, 3], x[1, 40] = special, special
    out = quantizers.apply(exact(x.double()[None]), version)
    assert out.kinds is None or bool((out.kinds == FINITE).all())
    assert torch.equal(out.center[0], kernel(x, version))
    if special == special:  # an infinity
        assert out.center[0, 0, 3] == 448 * 2.0**127
        assert bool((out.center[0, 0, :3] == 0).all())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_block_of_nothing_but_nan(version: str) -> None:
    x = rows("normal")[:2]
    x[0, 32:64] = torch.nan
    out = quantizers.apply(exact(x.double()[None]), version)
    assert out.kinds is not None
    assert torch.equal(out.kinds[0] == NAN, kernel(x, version).isnan())


def test_zeros_beside_a_nan() -> None:
    x = torch.zeros(1, 32)
    x[0, 0] = torch.nan
    out = quantizers.apply(exact(x.double()[None]), "mxfp8")
    assert torch.equal(out.center[0], kernel(x, "mxfp8"))
    assert out.center[0, 0, 0] == 448 * 2.0**-127


@pytest.mark.parametrize("version", VERSIONS)
def test_what_may_or_may_not_be_finite(version: str) -> None:
    x = rows("normal")[:1]
    kinds = torch.full(x.shape, FINITE, dtype=torch.uint8)[None]
    kinds[0, 0, 5] = ANY
    out = quantizers.apply(
        Ball(center=x.double()[None], radius=torch.zeros(3, *x.shape)[:, None].double(), kinds=kinds), version
    )
    low, high = out.center[0] - out.radius[HARD, 0], out.center[0] + out.radius[HARD, 0]
    for value in (0.0, 1.0, -1e30, torch.nan, torch.inf, -torch.inf):
        y = x.clone()
        y[0, 5] = value
        got = kernel(y, version)
        assert bool(((got >= low) & (got <= high)).all())


def test_versions_differ_on_tiny_blocks() -> None:
    x = torch.full((1, 32), 448 * 2.0**-126.5).bfloat16().float()
    kept, lost = (quantizers.apply(ball_of(x), version) for version in VERSIONS)
    assert bool((kept.center != 0).all())
    assert torch.equal(kept.center[0], kernel(x, "mxfp8"))
    assert bool((lost.center == 0).all())


def test_the_bias_is_kept() -> None:
    x = ball_of(rows("normal"))
    x.radius[BIAS] = 2.0**-10
    assert bool((quantizers.apply(x, "mxfp8").radius[BIAS] >= 2.0**-10).all())
