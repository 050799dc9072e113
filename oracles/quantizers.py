"""Block quantisers that a kernel applies to the input of a GEMM, on balls."""

from __future__ import annotations

import torch

from oracles import formats, mxfp8
from oracles.ball import BIAS, HARD, Ball, settle
from oracles.enclosure import ANY, FINITE
from oracles.numerics import Quantizer


def apply(x: Ball, quantizer: Quantizer) -> Ball:
    """The dequantised values that the GEMM sees, for x [C, T, K]."""
    match quantizer:
        case "none":
            return x
        case "q8_0":
            return _q8_0(x, slack=0.0)
        case "q8_0_portable":
            # 1 / (amax / 127) is within 1.5 ulp of 127 / amax. More than that also takes both sides of a tie.
            return _q8_0(x, slack=2.0**-21)
        case "mxfp8":
            return mxfp8.apply(x, flush_to_zero=False)
        case "mxfp8_flushed":
            return mxfp8.apply(x, flush_to_zero=True)


def _q8_0(x: Ball, *, slack: float) -> Ball:
    """ggml's Q8_0: per 32 values amax, d = fp16(float32(amax / 127)), q = nearest even(float32(x * id)), value q * d.

    On x86 with AVX id = float32(127 / amax); elsewhere 1 / float32(amax / 127), and scalar code rounds ties away:
    `slack`, the relative width of id, covers both. Everything is monotone in x and amax, so the ends of an interval
    follow the recipe itself. Sources: ggml, quantize_row_q8_0 in arch/x86/quants.c, arch/arm/quants.c, ggml-quants.c.
    d overflows at amax = 65520 * 127: no output that uses the block is then finite. Non-finite x is not defined.
    """
    center, radius = formats.grouped(x.center, formats.GROUP), formats.grouped(x.radius, formats.GROUP)
    kinds = None if x.kinds is None else formats.grouped(x.kinds, formats.GROUP)
    if kinds is not None:
        center = torch.where(kinds == FINITE, center, 0.0)
    amax = center.abs().amax(-1, keepdim=True)
    value = _code(center, _inverse(amax)) * _scale(amax)
    if slack == 0 and not bool(x.radius.any()):
        spread = torch.zeros_like(radius)
        overflows = certain = _scale(amax).isinf()
    else:
        # Hard, sharp, and one without the uncertainty of x for what `slack` alone does, which is a bias.
        around = torch.cat((radius[:BIAS], torch.zeros_like(radius[:1])))
        low, high = center - around, center + around
        d_low, d_high, out_low, out_high = _range(low, high, slack)
        spread = torch.maximum(out_high - value, value - out_low).clamp(min=0.0)
        spread[BIAS] += _shift(center.abs(), amax, radius[BIAS], slack)
        overflows, certain = d_high[HARD].isinf(), d_low[HARD].isinf()
    out_kinds = None
    if kinds is not None or bool(overflows.any()):
        out_kinds = torch.where(overflows, torch.where(certain, ANY & ~FINITE, ANY), FINITE)
        if kinds is not None:  # a block that holds one is undefined as a whole
            out_kinds = torch.where((kinds != FINITE).any(-1, keepdim=True), ANY, out_kinds)
        out_kinds = out_kinds.expand(center.shape).to(torch.uint8).flatten(-2)
    return settle(value.flatten(-2), spread.flatten(-2), out_kinds)


def _range(
    low: torch.Tensor, high: torch.Tensor, slack: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(smallest d, largest d, smallest value, largest value) for x in [low, high]."""
    size = torch.maximum(low.abs(), high.abs())
    least = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    amax_low, amax_high = least.amax(-1, keepdim=True), size.amax(-1, keepdim=True)
    d_low, d_high = _scale(amax_low), _scale(amax_high)
    inverse_low, inverse_high = _inverse(amax_high) * (1 - slack), _inverse(amax_low) * (1 + slack)
    codes = (_code(low, inverse_low), _code(low, inverse_high), _code(high, inverse_low), _code(high, inverse_high))
    corners = torch.stack([code * d for code in codes for d in (d_low, d_high)])
    return d_low, d_high, corners.amin(0), corners.amax(0)


def _shift(size: torch.Tensor, amax: torch.Tensor, bias: torch.Tensor, slack: float) -> torch.Tensor:
    """How far a bias of x moves the mean of the value: its own, and that of amax through d and through id."""
    of_amax = bias.amax(-1, keepdim=True) / torch.where(amax > 0, amax, torch.inf)
    return bias + size * (2 * of_amax + slack)


def _scale(amax: torch.Tensor) -> torch.Tensor:
    return formats.round_to(formats.round_to(amax / 127.0, "float32"), "float16")


def _inverse(amax: torch.Tensor) -> torch.Tensor:
    # d is 0 below 3.8e-6, whatever the inverse is: it only has to be finite, and no smaller than those in use.
    amax = amax.clamp(min=2.0**-40)
    return formats.round_to(torch.full_like(amax, 127.0) / amax, "float32")  # a number over a tensor rounds twice


def _code(x: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return torch.round(formats.round_to(x * inverse, "float32")).clamp(-127, 127)
