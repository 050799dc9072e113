"""The final sum of `oracles.reference` in one pass over the experts' answers, by a kernel of Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from oracles import formats
from oracles.accumulation import SMALLEST_NORMAL

_BLOCK = 256


def in_order(
    center: torch.Tensor,
    radius: torch.Tensor,
    weights: torch.Tensor,
    place: torch.Tensor,
    fused: bool,
    slots: int,
    smallest: float,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(center [T, H], radius [3, T, H]) of `reference._in_order`, float64, of what `reference._weighted` makes of
    weights [P] and balls [P, H]; None where something may not be finite.

    place: int64 [T, S]. The center has the same bits. The radii are added in another order than torch's: 4 u of them
    for each slot is what they get on top, and a sum of float64 errs by less than a millionth of that.
    """
    center, radius, place = center.contiguous(), radius.contiguous(), place.contiguous()
    (rows, hidden), (tokens, places) = center.shape, place.shape
    out, out_radius = center.new_empty(tokens, hidden), center.new_empty(3, tokens, hidden)
    over = torch.zeros(1, dtype=torch.int32, device=center.device)
    _in_order[(tokens, triton.cdiv(hidden, _BLOCK))](
        center,
        radius,
        weights.contiguous(),
        place,
        out,
        out_radius,
        over,
        rows,
        hidden,
        tokens,
        places,
        slots,
        fused=fused,
        smallest=smallest,
        flush_to_zero=smallest == SMALLEST_NORMAL,
        u=formats.UNIT_ROUNDOFF["float32"],
        largest=formats.MAX_FINITE["float32"],
        block=_BLOCK,
        enable_fp_fusion=False,  # a product that is not rounded before it is added changes the sum's bits
    )
    return None if bool(over) else (out, out_radius)


@triton.jit
def _in_order(
    center: tl.tensor,
    radius: tl.tensor,
    weights: tl.tensor,
    place: tl.tensor,
    out: tl.tensor,
    out_radius: tl.tensor,
    over: tl.tensor,
    rows: tl.tensor,
    hidden: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    slots: tl.tensor,
    fused: tl.constexpr,
    smallest: tl.constexpr,
    flush_to_zero: tl.constexpr,
    u: tl.constexpr,
    largest: tl.constexpr,
    block: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < hidden
    plane = tl.cast(rows, tl.int64) * hidden
    total = tl.zeros((block,), tl.float64)
    size, hard, sharp, passed = total, total, total, total
    is_exact = inside | True
    for slot in range(places):
        row = tl.load(place + token * places + slot)
        if row < rows:
            at = row * hidden + column
            weight = tl.load(weights + row)
            product = weight * tl.load(center + at, mask=inside, other=0.0)
            of_hard = tl.abs(weight) * tl.load(radius + at, mask=inside, other=0.0)
            of_sharp = tl.abs(weight) * tl.load(radius + plane + at, mask=inside, other=0.0)
            if flush_to_zero:
                flushed = tl.where(tl.abs(weight) < smallest, tl.abs(product), 0.0)
                of_hard, of_sharp = tl.maximum(of_hard, flushed), tl.maximum(of_sharp, flushed)
            total += product  # begins with 0: never -0
            size += tl.abs(product)
            hard += of_hard
            sharp += of_sharp
            is_exact &= _is_float32(product, smallest) & _is_float32(total, smallest) & (of_hard == 0)
            if slot > 0:
                passed += tl.abs(total)
    grows = 1 + tl.cast(slots, tl.float64) * (4 * u)
    lost = tl.cast(slots, tl.float64) * (2 * smallest)
    fits = (size + hard) * grows <= largest
    if tl.min(fits.to(tl.int32)) == 0:
        tl.store(over, 1)
    rounding = u * (size + passed if fused else passed)
    at = token * hidden + column
    plane = tl.cast(tokens, tl.int64) * hidden
    tl.store(out + at, total, mask=inside)
    tl.store(out_radius + at, tl.where(is_exact, 0.0, hard * grows + 2 * rounding + lost), mask=inside)
    tl.store(out_radius + plane + at, tl.where(is_exact, 0.0, sharp * grows + 2 * rounding + lost), mask=inside)
    tl.store(out_radius + 2 * plane + at, tl.zeros((block,), tl.float64), mask=inside)


@triton.jit
def _is_float32(value: tl.tensor, smallest: tl.constexpr) -> tl.tensor:
    """`reference._is_float32`."""
    return (value.to(tl.float32).to(tl.float64) == value) & ((tl.abs(value) >= smallest) | (value == 0))
