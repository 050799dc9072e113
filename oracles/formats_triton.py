"""`formats.round_to` in one pass, by a kernel of Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


def round_to(value: torch.Tensor, bits: int, min_exponent: int, largest: float) -> torch.Tensor:
    """float64 of any shape, rounded as `formats.round_to` does to a format with these numbers."""
    value = value.contiguous()
    out = torch.empty_like(value)
    grid = (triton.cdiv(value.numel(), _BLOCK),)
    _round[grid](
        value,
        out,
        value.numel(),
        least=2.0**min_exponent,
        factor=1.5 * 2.0 ** (53 - bits),
        largest=largest,
        block=_BLOCK,
    )
    return out


@triton.jit
def _round(
    value: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    least: tl.constexpr,
    factor: tl.constexpr,
    largest: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    given = tl.load(value + at, mask=at < count, other=0.0)
    bits = given.to(tl.int64, bitcast=True)
    binade = ((bits >> 52 & 0x7FF) << 52).to(tl.float64, bitcast=True)
    magic = tl.minimum(tl.maximum(binade, least), 2.0**900) * factor
    rounded = tl.abs((given + magic) - magic)
    rounded = tl.where(rounded > largest, float("inf"), rounded)
    signed = (bits >> 63 << 63) | rounded.to(tl.int64, bitcast=True)
    tl.store(out + at, signed.to(tl.float64, bitcast=True), mask=at < count)
