"""`formats.round_to` in one pass, by a kernel of Triton, and what other kernels need of number formats."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from oracles import formats
from oracles.numerics import Float

_BLOCK = 1024


def round_to(value: torch.Tensor, dtype: Float) -> torch.Tensor:
    """float64 of any shape, rounded as `formats.round_to` does."""
    value = value.contiguous()
    out = torch.empty_like(value)
    _round[(triton.cdiv(value.numel(), _BLOCK),)](value, out, value.numel(), dtype=dtype, block=_BLOCK)
    return out


@triton.jit
def _round(value: tl.tensor, out: tl.tensor, count: tl.tensor, dtype: tl.constexpr, block: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    given = tl.load(value + at, mask=at < count, other=0.0)
    tl.store(out + at, rounded(given, dtype), mask=at < count)


@triton.jit
def rounded(given: tl.tensor, dtype: tl.constexpr) -> Any:
    """float64, rounded to nearest even in the format of that name; overflow is infinity."""
    bits = given.to(tl.int64, bitcast=True)
    binade = ((bits >> 52 & 0x7FF) << 52).to(tl.float64, bitcast=True)
    magic = tl.minimum(tl.maximum(binade, _least(dtype)), 2.0**900) * _factor(dtype)
    size = tl.abs((given + magic) - magic)
    size = tl.where(size > _largest(dtype), float("inf"), size)
    return ((bits >> 63 << 63) | size.to(tl.int64, bitcast=True)).to(tl.float64, bitcast=True)


@triton.constexpr_function
def _least(dtype: str) -> float:
    return formats.MIN_NORMAL[dtype]


@triton.constexpr_function
def _factor(dtype: str) -> float:
    """What makes of a binade the number whose addition leaves no bit under its last place (`formats.round_to`)."""
    return 1.5 * 2.0**53 * formats.UNIT_ROUNDOFF[dtype]


@triton.constexpr_function
def _largest(dtype: str) -> float:
    return formats.MAX_FINITE[dtype]
