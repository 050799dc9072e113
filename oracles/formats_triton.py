"""What `oracles.formats` does to large tensors, in one pass by kernels of Triton, and what other kernels need of it."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from oracles import formats
from oracles.numerics import Float

_BLOCK = 1024
_ROW_BLOCK = 512
"""Of a row of weights: the usual widths are multiples of it."""


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


def mxfp4_with_runs(packed: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, float32 [..., K], the largest magnitude of each run, float64 [..., K/16]) of uint8 codes [..., K/2] and
    E8M0 bytes [..., K/32] below 253."""
    *rows, half = packed.shape
    value = torch.empty((*rows, 2 * half), dtype=torch.float32, device=packed.device)
    runs = value.new_empty((*rows, 2 * half // formats.RUN), dtype=torch.float64)
    _dequantize[(math.prod(rows),)](
        packed.contiguous(),
        scale.contiguous(),
        value,
        runs,
        2 * half,
        group=formats.GROUP,
        run=formats.RUN,
        block=_ROW_BLOCK,
    )
    return value, runs


@triton.jit
def _dequantize(
    packed: tl.tensor,
    scale: tl.tensor,
    value: tl.tensor,
    runs: tl.tensor,
    columns: tl.tensor,
    group: tl.constexpr,
    run: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    packed += row * (columns // 2)
    scale += row * (columns // group)
    value += row * columns
    runs += row * (columns // run)
    for first in range(0, columns, block):
        at = first + tl.arange(0, block)
        inside = at < columns
        code = tl.load(packed + at // 2, mask=inside, other=0).to(tl.int64) >> at % 2 * 4
        byte = tl.load(scale + at // group, mask=inside, other=0).to(tl.int64)
        halves = code & 7
        halves = tl.where(halves < 2, halves, (2 | halves & 1) << (halves >> 1) >> 1)
        size = halves.to(tl.float64) * (byte + (1023 - 127 - 1) << 52).to(tl.float64, bitcast=True)
        signed = (size.to(tl.int64, bitcast=True) | (code >> 3 & 1) << 63).to(tl.float64, bitcast=True)
        tl.store(value + at, signed.to(tl.float32), mask=inside)
        ran = first // run + tl.arange(0, block // run)
        tl.store(runs + ran, tl.max(tl.reshape(size, (block // run, run)), 1), mask=ran * run < columns)
