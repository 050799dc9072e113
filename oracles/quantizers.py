"""Block quantisers that a kernel applies to the input of a GEMM, on balls."""

from __future__ import annotations

import torch

from oracles import formats
from oracles.ball import Ball, settle
from oracles.enclosure import ANY, FINITE
from oracles.numerics import Quantizer


def apply(x: Ball, quantizer: Quantizer) -> Ball:
    """The dequantised values that the GEMM sees, for x [C, T, K]."""
    match quantizer:
        case "none":
            return x
        case "q8_0":
            return _q8_0(x, exact_inverse=True)
        case "q8_0_portable":
            return _q8_0(x, exact_inverse=False)


def _q8_0(x: Ball, *, exact_inverse: bool) -> Ball:
    """ggml's Q8_0: per 32 values amax, d = fp16(float32(amax / 127)), q = nearest even(float32(x * id)), value q * d.

    On x86 with AVX id = float32(127 / amax); elsewhere 1 / float32(amax / 127), and scalar code rounds ties away:
    without `exact_inverse` either. Everything is monotone in x and amax, so the ends of an interval follow the recipe
    itself. Sources: ggml, quantize_row_q8_0 in arch/x86/quants.c, arch/arm/quants.c and ggml-quants.c.
    d overflows at amax = 65520 * 127: no output that uses the block is then finite. Non-finite x is not defined.
    """
    kinds = None if x.kinds is None else x.kinds.unflatten(-1, (-1, formats.GROUP))
    center = x.center.unflatten(-1, (-1, formats.GROUP))
    radius = x.radius.unflatten(-1, (-1, formats.GROUP))
    if kinds is not None:
        center = torch.where(kinds == FINITE, center, 0.0)
    low, high = center - radius, center + radius
    size = torch.maximum(low.abs(), high.abs())
    least = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    amax = center.abs().amax(-1, keepdim=True)
    amax_low, amax_high = least.amax(-1, keepdim=True), size.amax(-1, keepdim=True)
    d, d_low, d_high = _scale(amax), _scale(amax_low), _scale(amax_high)
    inverse = _inverse(amax)
    slack = 0.0 if exact_inverse else 2.0**-21  # of 127 / amax against 1 / (amax / 127), each rounded, and of ties
    inverse_low, inverse_high = _inverse(amax_high) * (1 - slack), _inverse(amax_low) * (1 + slack)
    value = _code(center, inverse) * d
    corners = [
        _code(end, factor) * scale for end in (low, high) for factor in (inverse_low, inverse_high) for scale in (d_low, d_high)
    ]
    stacked = torch.stack(corners)
    out_low, out_high = stacked.amin(0), stacked.amax(0)
    out_kinds = None
    overflows = d_high[0].isinf().expand(center.shape)
    if kinds is not None or bool(overflows.any()):
        certain = d_low[0].isinf().expand(center.shape)
        out_kinds = torch.where(overflows, torch.where(certain, ANY & ~FINITE, ANY), FINITE).to(torch.uint8)
        if kinds is not None:  # a block that holds one is undefined as a whole
            broken = (kinds != FINITE).any(-1, keepdim=True).expand(center.shape)
            out_kinds = torch.where(broken, ANY, out_kinds).to(torch.uint8)
        value, out_low, out_high = (v.nan_to_num(0.0, 0.0, 0.0) for v in (value, out_low, out_high))
    spread = torch.maximum(out_high - value, value - out_low).clamp(min=0.0)
    flat = None if out_kinds is None else out_kinds.flatten(-2)
    return settle(Ball(center=value.flatten(-2), radius=spread.flatten(-2), kinds=flat))


def _scale(amax: torch.Tensor) -> torch.Tensor:
    return formats.round_to(formats.round_to(amax / 127.0, "float32"), "float16")


def _inverse(amax: torch.Tensor) -> torch.Tensor:
    # Below 3.7e-37 the inverse overflows, but d is 0 from 3.8e-6 on.
    safe = torch.where(amax > 2.0**-40, amax, torch.inf)
    return formats.round_to(torch.full_like(safe, 127.0) / safe, "float32")


def _code(x: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return torch.round(formats.round_to(x * inverse, "float32")).clamp(-127, 127)
