"""What `oracles.accumulation` asks of each row of x, in one pass each by kernels of Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from oracles import formats

_BLOCK, _WARPS = 1024, 4
_GROUPS = 4
"""That are compared at a time: each element of one with all others of it."""


def places(x: torch.Tensor, uncertain: torch.Tensor, bins: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(`least`, `lowest`, `below`) of `accumulation.Grid` for float64 x [C, T, K] and bool `uncertain` [C, T, K]."""
    *lines, columns = x.shape
    least = x.new_empty(*lines, 1)
    lowest = torch.empty_like(least, dtype=torch.int64)
    below = x.new_empty(*lines, bins + 1)
    _places[(least.numel(),)](
        x.contiguous(),
        uncertain.contiguous(),
        least,
        lowest,
        below,
        columns,
        bins=bins,
        block=_BLOCK,
        num_warps=_WARPS,
    )
    return least, lowest, below


@triton.jit
def _places(
    x: tl.tensor,
    uncertain: tl.tensor,
    least: tl.tensor,
    lowest: tl.tensor,
    below: tl.tensor,
    columns: tl.tensor,
    bins: tl.constexpr,
    block: tl.constexpr,
) -> None:
    line = tl.program_id(0).to(tl.int64)
    x += line * columns
    uncertain += line * columns
    smallest = tl.full((block,), 1 << 12, tl.int32)
    unknown = tl.zeros((block,), tl.int32)
    for first in range(0, columns, block):
        exponent, other = _exponents(x, uncertain, first, columns, block)
        smallest = tl.minimum(smallest, exponent)
        unknown += other
    low, count = tl.min(smallest), tl.sum(unknown)
    counts = tl.zeros((bins,), tl.int32)
    for first in range(0, columns, block):
        exponent, other = _exponents(x, uncertain, first, columns, block)
        counts += tl.histogram(tl.minimum(exponent - low, bins - 1), bins, mask=exponent < 1 << 12)
    at = below + line * (bins + 1)
    tl.store(at, count.to(tl.float64))
    tl.store(at + 1 + tl.arange(0, bins), (count + tl.cumsum(counts)).to(tl.float64))
    tl.store(lowest + line, low.to(tl.int64))
    unit = (tl.maximum(low + 1023, 0).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    unit = tl.where(low == 1 << 12, float("inf"), unit)
    tl.store(least + line, tl.where(count > 0, 0.0, unit))


@triton.jit
def _exponents(
    x: tl.tensor, uncertain: tl.tensor, first: tl.tensor, columns: tl.tensor, block: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """int32 (exponent of each element's last place, 2**12 where none is known; 1 where it is uncertain, else 0)."""
    at = first + tl.arange(0, block)
    bits = tl.load(x + at, mask=at < columns, other=0.0).to(tl.int64, bitcast=True)
    other = tl.load(uncertain + at, mask=at < columns, other=0) != 0
    mantissa = bits & ((1 << 52) - 1) | (1 << 52)
    last = (mantissa & -mantissa).to(tl.float64).to(tl.int64, bitcast=True) >> 52  # biased
    exponent = (last - 1023 + tl.maximum((bits >> 52 & 0x7FF) - 1075, -1022)).to(tl.int32)
    known = (bits << 1 != 0) & ~other
    return tl.where(known, exponent, 1 << 12), other.to(tl.int32)


def vary(x: torch.Tensor) -> torch.Tensor:
    """bool [C, T]: rows of float64 x [C, T, K] in each of whose groups at least half of the elements that are not 0
    differ in magnitude."""
    *lines, columns = x.shape
    out = torch.empty(lines, dtype=torch.bool, device=x.device)
    _vary[(out.numel(),)](x.contiguous(), out, columns, group=formats.GROUP, groups=_GROUPS, num_warps=_WARPS)
    return out


@triton.jit
def _vary(x: tl.tensor, out: tl.tensor, columns: tl.tensor, group: tl.constexpr, groups: tl.constexpr) -> None:
    line = tl.program_id(0).to(tl.int64)
    x += line * columns
    place = tl.arange(0, group)
    block = tl.arange(0, groups)
    alike = tl.zeros((groups,), tl.int32)  # groups that are too much so
    for first in range(0, columns, group * groups):
        start = first + block * group
        inside = start < columns
        some = tl.abs(tl.load(x + start[:, None, None] + place[None, :, None], mask=inside[:, None, None], other=0.0))
        others = tl.abs(tl.load(x + start[:, None, None] + place[None, None, :], mask=inside[:, None, None], other=0.0))
        before = (some == others) & (place[None, :, None] > place[None, None, :])
        repeats = tl.max(before.to(tl.int32), 2)
        live = (tl.max(some, 2) != 0).to(tl.int32)
        distinct = tl.sum(live * (1 - repeats), 1)
        alike += (2 * distinct < tl.sum(live, 1)).to(tl.int32)
    tl.store(out + line, tl.sum(alike) == 0)
