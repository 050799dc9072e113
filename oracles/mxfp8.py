"""MXFP8 between the GEMMs, on balls: FlashInfer's `cvt_warp_fp16_to_mxfp8`.

Per 32 values along I: q = amax * rcp.approx(448), the scale s is the power of two at or above q (E8M0, saturating at
2**127), and a value's code is E4M3, nearest even, of x / s clamped to +-448 by fminf and fmaxf. Sources:
quantization_utils.cuh of flashinfer-python 0.6.18, 0.7.0 and 0.7.4; the CUDA guide on rcp.approx (1 ulp).

- rcp.approx(448) may be off to either side: where amax is 448 times a power of two, the scale may be one step up.
- The maximum ignores NaN, and a NaN's code is +448: fminf(NaN, 448). Only a block of nothing but NaN is NaN: byte 0xFF.
- An infinity makes the scale 2**127, whose inverse is 0: finite values of its block become 0, and its own code is +448
  whatever its sign, which dequantises to 448 * 2**127. That is finite here; the GEMM overflows, or not, from there.
- A scale of byte 0 has the inverse 0: the block becomes 0. Compiled with subnormals flushed (0.6.18, 0.7.0), that is so
  for every q below 2**-126, and a subnormal value becomes 0; later versions keep subnormals.
"""

from __future__ import annotations

import torch

from oracles import formats
from oracles.ball import BIAS, SHARP, Ball, is_set, settle
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF

_SLACK = 2.0**-22
"""Relative error of amax * rcp.approx(448), both roundings."""
_SATURATED = 254
"""The E8M0 byte of an infinity."""
_TINY = formats.MIN_NORMAL["float32"]


def apply(x: Ball, *, flush_to_zero: bool) -> Ball:
    """The dequantised values of x [C, T, K]. flush_to_zero: compiled so, see above."""
    center, radius = formats.grouped(x.center, formats.GROUP), formats.grouped(x.radius, formats.GROUP)
    kinds = None if x.kinds is None else formats.grouped(x.kinds, formats.GROUP)
    if kinds is not None:
        center = torch.where(kinds == FINITE, center, 0.0)
    value = _value(center, _byte(_largest(center.abs(), kinds), flush_to_zero), kinds, flush_to_zero)
    low, high = center - radius[:BIAS], center + radius[:BIAS]
    least = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    most = torch.maximum(low.abs(), high.abs())
    first = _byte(_largest(least, kinds) * (1 - _SLACK), flush_to_zero, -1)
    last = _byte(_largest(most, kinds, possible=True) * (1 + _SLACK), flush_to_zero, 1)
    corners = torch.stack([_value(end, byte, kinds, flush_to_zero) for end in (low, high) for byte in (first, last)])
    lowest, highest = corners.amin(0), corners.amax(0)
    # Scales further apart: a code times its scale is never beyond twice the value, whatever the scale.
    far = (last - first) > 1
    if flush_to_zero:
        far = far | (most < _TINY)
    lowest = torch.where(far, torch.minimum(lowest, (2 * low).clamp(max=0.0)), lowest)
    highest = torch.where(far, torch.maximum(highest, (2 * high).clamp(min=0.0)), highest)
    out = None
    if kinds is not None:
        wild = is_set(kinds)  # anything: a code under any scale that the block may have
        top = formats.E4M3_MAX * formats.exp2(last - 127)
        lowest, highest = torch.where(wild, -top, lowest), torch.where(wild, top, highest)
        may_be_nan = ((kinds & NAN) != 0).all(-1, keepdim=True)
        is_nan = (kinds == NAN).all(-1, keepdim=True)
        out = torch.where(is_nan, NAN, torch.where(may_be_nan, ANY, FINITE)).expand(kinds.shape).to(torch.uint8)
    spread = torch.maximum(highest - value, value - lowest).clamp(min=0.0)
    # What is flushed, or not, goes to one side for all alike.
    bias = radius[BIAS] + torch.where(far[SHARP], spread[SHARP], 0.0)
    out_radius = torch.cat((spread, bias[None])).flatten(-2)
    return settle(value.flatten(-2), out_radius, None if out is None else out.flatten(-2))


def _largest(size: torch.Tensor, kinds: torch.Tensor | None, *, possible: bool = False) -> torch.Tensor:
    """[..., 1]: the block's amax, for finite sizes [..., 32]. possible: with every infinity that there may be."""
    if kinds is not None:
        infinite = (kinds & ~(POS_INF | NEG_INF)) == 0
        size = torch.where(kinds == FINITE, size, torch.where(infinite, torch.inf, 0.0))
        if possible:
            size = torch.where(is_set(kinds), torch.inf, size)
    return size.amax(-1, keepdim=True)


def _byte(amax: torch.Tensor, flush_to_zero: bool, toward: int = 0) -> torch.Tensor:
    """int64: the E8M0 byte of a block's scale. toward: -1 or 1 when `amax` is a bound from that side."""
    quotient = amax / formats.E4M3_MAX
    byte = formats.e8m0_encode_ceil(quotient).to(torch.int64)
    if flush_to_zero:
        byte = torch.where(quotient < _TINY * (1 - toward * _SLACK), 0, byte)
    return byte


def _value(x: torch.Tensor, byte: torch.Tensor, kinds: torch.Tensor | None, flush_to_zero: bool) -> torch.Tensor:
    """The dequantised value of finite x [..., 32] under the block's scale byte [..., 1]."""
    scale = formats.exp2(byte - 127)
    value = formats.e4m3_round(x / scale) * scale
    value = torch.where((byte == 0) | (byte == _SATURATED), 0.0, value)
    if flush_to_zero:
        value = torch.where(x.abs() < _TINY, 0.0, value)
    return value if kinds is None else torch.where(kinds == FINITE, value, formats.E4M3_MAX * scale)
