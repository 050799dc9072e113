"""What `oracles.ball` does to large balls, in one pass over memory: kernels of Triton.

Nothing is multiplied here but by powers of two (`formats_triton.rounded`), so that no fused addition changes a bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from oracles import formats, formats_triton
from oracles.numerics import Float

_BLOCK = 512


def rounded(
    center: torch.Tensor, radius: torch.Tensor, dtype: Float, *, flush_to_zero: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(center [...], radius [3, ...]) of `ball.rounded`, float64; None where an end is no number of `dtype`."""
    center, radius = center.contiguous(), radius.contiguous()
    out, out_radius = torch.empty_like(center), torch.empty_like(radius)
    over = torch.zeros(1, dtype=torch.int32, device=center.device)
    _rounded[(triton.cdiv(center.numel(), _BLOCK),)](
        center,
        radius,
        out,
        out_radius,
        over,
        center.numel(),
        dtype=dtype,
        flush_to_zero=flush_to_zero,
        tiny=formats.MIN_NORMAL[dtype],
        largest=formats.MAX_FINITE[dtype],
        block=_BLOCK,
    )
    return None if bool(over) else (out, out_radius)


def splits(center: torch.Tensor, radius: torch.Tensor, dtype: Float) -> torch.Tensor:
    """`ball.splits`: bool [...], of float64 [...]."""
    center, radius = center.contiguous(), radius.contiguous()
    out = torch.empty_like(center, dtype=torch.bool)
    _splits[(triton.cdiv(center.numel(), _BLOCK),)](center, radius, out, center.numel(), dtype=dtype, block=_BLOCK)
    return out


@triton.jit
def _rounded(
    center: tl.tensor,
    radius: tl.tensor,
    out: tl.tensor,
    out_radius: tl.tensor,
    over: tl.tensor,
    count: tl.tensor,
    dtype: tl.constexpr,
    flush_to_zero: tl.constexpr,
    tiny: tl.constexpr,
    largest: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    plane = tl.cast(count, tl.int64)
    given = tl.load(center + at, mask=inside, other=0.0)
    hard = tl.load(radius + at, mask=inside, other=0.0)
    near = formats_triton.rounded(given, dtype)
    low, high = formats_triton.rounded(given - hard, dtype), formats_triton.rounded(given + hard, dtype)
    fits = (tl.abs(near) <= largest) & (tl.abs(low) <= largest) & (tl.abs(high) <= largest)
    if tl.min(fits.to(tl.int32)) == 0:
        tl.store(over, 1)
    hard = _reach(near, low, high, tiny, flush_to_zero)
    # Where the value is decided within the hard radius it is within the sharp one: mostly, and then it is not read.
    is_open = inside & (hard != 0)
    sharp = tl.load(radius + plane + at, mask=is_open, other=0.0)
    low, high = formats_triton.rounded(given - sharp, dtype), formats_triton.rounded(given + sharp, dtype)
    sharp = tl.where(is_open, _reach(near, low, high, tiny, flush_to_zero), 0.0)
    bias = tl.load(radius + 2 * plane + at, mask=inside, other=0.0)
    if flush_to_zero:
        bias += tl.where((near != 0) & (tl.abs(near) < tiny), tiny, 0.0)
    tl.store(out + at, near, mask=inside)
    tl.store(out_radius + at, hard, mask=inside)
    tl.store(out_radius + plane + at, sharp, mask=inside)
    tl.store(out_radius + 2 * plane + at, bias, mask=inside)


@triton.jit
def _reach(
    near: tl.tensor, low: tl.tensor, high: tl.tensor, tiny: tl.constexpr, flush_to_zero: tl.constexpr
) -> tl.tensor:
    """How far the ends are from `near`, where a number below `tiny` may also be 0."""
    if flush_to_zero:
        low = tl.where((low > 0) & (low < tiny), 0.0, low)
        high = tl.where((high < 0) & (high > -tiny), 0.0, high)
    return tl.maximum(high - near, near - low)


@triton.jit
def _splits(
    center: tl.tensor, radius: tl.tensor, out: tl.tensor, count: tl.tensor, dtype: tl.constexpr, block: tl.constexpr
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    given = tl.load(center + at, mask=inside, other=0.0)
    hard = tl.load(radius + at, mask=inside, other=0.0)
    differ = formats_triton.rounded(given - hard, dtype) != formats_triton.rounded(given + hard, dtype)
    tl.store(out + at, differ, mask=inside)
