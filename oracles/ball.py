"""Values that are known up to a radius: what the reference computes with.

A `Ball` is a float64 center with three radii, stacked in one tensor. Accumulation and transcendentals add radius; a
rounding is applied to both ends, so that the radius becomes 0 unless a boundary lies inside. Non-finite values travel
beside, as bit sets of what may come out (`oracles.kinds`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from oracles import formats, kernels
from oracles.enclosure import FINITE, NAN, NEG_INF, POS_INF
from oracles.numerics import Float

F64 = 2.0**-53
"""Unit roundoff of the reference's own arithmetic."""

HARD, SHARP, BIAS = 0, 1, 2
"""Index into `Ball.radius`."""


@dataclass(frozen=True, kw_only=True)
class Ball:
    """center: float64 [...]. radius: float64 [3, ...]. kinds: uint8 [...], None when all are FINITE.

    radius[HARD]: the value is never further from the center. radius[SHARP]: nor, but for an implausible coincidence.
    radius[BIAS]: how far the mean of the error may be from 0, over elements that are alike (truncation and a library
    function err to one side). Many elements average out the rest of the sharp radius, but not this.

    Where `kinds` is a single non-finite bit the center is that value, so that IEEE arithmetic on centers gives what
    follows from it (tanh(inf) = 1). Where it is a set, center and radius mean nothing.
    """

    center: torch.Tensor
    radius: torch.Tensor
    kinds: torch.Tensor | None = None

    @property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(lowest, highest), each [3, ...]."""
        return self.center - self.radius, self.center + self.radius

    def to(self, device: torch.device) -> Ball:
        """The ball on `device`, for which another is waited once, or twice where there are kinds."""
        both = torch.cat((self.center.unsqueeze(0), self.radius)).to(device)
        return Ball(center=both[0], radius=both[1:], kinds=None if self.kinds is None else self.kinds.to(device))


def exact(center: torch.Tensor, *, finite: bool | None = None) -> Ball:
    """Float64 values that are known exactly; NaN and infinities become kinds. finite: whether there are none, where
    that is known."""
    radius = center.new_zeros((3, *center.shape))
    if formats.within(center, sys.float_info.max) if finite is None else finite:
        return Ball(center=center, radius=radius)
    return Ball(center=center, radius=radius, kinds=kinds_of(center))


def kinds_of(value: torch.Tensor) -> torch.Tensor:
    """uint8: the one bit that each value is."""
    infinite = torch.where(value > 0, POS_INF, NEG_INF)
    return torch.where(value.isnan(), NAN, torch.where(value.isinf(), infinite, FINITE)).to(torch.uint8)


def finite_kinds(like: torch.Tensor) -> torch.Tensor:
    """uint8, FINITE everywhere."""
    return torch.full_like(like, FINITE, dtype=torch.uint8)


def is_set(kinds: torch.Tensor) -> torch.Tensor:
    """bool: more than one bit is possible."""
    return (kinds & (kinds - 1)) != 0


def settle(center: torch.Tensor, radius: torch.Tensor, kinds: torch.Tensor | None) -> Ball:
    """The ball, with the center and radius that its kinds demand."""
    if kinds is None:
        return Ball(center=center, radius=radius)
    for bit, value in ((POS_INF, torch.inf), (NEG_INF, -torch.inf), (NAN, torch.nan)):
        center = torch.where(kinds == bit, value, center)
    center = torch.where(is_set(kinds), 0.0, center)
    return Ball(center=center, radius=torch.where(kinds == FINITE, radius, 0.0), kinds=kinds)


def rounded(ball: Ball, dtype: Float, *, flush_to_zero: bool = False) -> Ball:
    """Round to nearest even in `dtype`. An end that overflows makes infinity possible, or certain when both do.

    flush_to_zero: a subnormal result may also be 0. The bias stays: an element that the bias moves by a fraction of a
    step is moved by a whole step in that fraction of the cases, wherever its center lies in the step.
    """
    if ball.kinds is None and kernels.worth(ball.center):
        from oracles import ball_triton  # of a package that comes with torch for CUDA alone

        made = ball_triton.rounded(ball.center, ball.radius, dtype, flush_to_zero=flush_to_zero)
        if made is not None:
            return Ball(center=made[0], radius=made[1])
    bias, kinds = ball.radius[BIAS], ball.kinds
    center, low, high = ends = _rounded_ends(ball.center, ball.radius[HARD], dtype)
    tiny = formats.MIN_NORMAL[dtype]
    if flush_to_zero and formats.smallest(ends) < tiny:
        low, high = _with_zero(low, high, tiny)
        bias = bias + torch.where((center != 0) & (center.abs() < tiny), tiny, 0.0)
    if not formats.within(ends, formats.MAX_FINITE[dtype]):
        over = low.isinf() | high.isinf()
        if kinds is not None:
            over &= kinds == FINITE
        certain = low == high  # both ends, and so the center, are the same infinity
        possible = torch.where(high == torch.inf, POS_INF, 0) | torch.where(low == -torch.inf, NEG_INF, 0)
        possible |= torch.where(certain, 0, FINITE)
        kinds = torch.where(over, possible, FINITE if kinds is None else kinds).to(torch.uint8)
    radius = torch.empty_like(ball.radius)
    radius[BIAS] = bias
    torch.maximum(high - center, center - low, out=radius[HARD])

    def sharp(center: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
        exactly, low, high = _rounded_ends(center, radius, dtype)
        if flush_to_zero:
            low, high = _with_zero(low, high, tiny)
        return torch.maximum(high - exactly, exactly - low)

    # Where the value is decided within the hard radius it is within the sharp one: mostly.
    if kernels.look_first(radius):
        radius[SHARP] = 0.0
        open_ = radius[HARD].nonzero(as_tuple=True)
        if len(open_[0]):
            radius[SHARP][open_] = sharp(ball.center[open_], ball.radius[SHARP][open_])
    else:
        radius[SHARP] = torch.where(radius[HARD] != 0, sharp(ball.center, ball.radius[SHARP]), 0.0)
    return settle(center, radius, kinds)


def _rounded_ends(center: torch.Tensor, radius: torch.Tensor, dtype: Float) -> torch.Tensor:
    """[3, ...]: center, lowest and highest, rounded."""
    return formats.round_to(torch.stack((center, center - radius, center + radius)), dtype)


def splits(center: torch.Tensor, radius: torch.Tensor, dtype: Float) -> torch.Tensor:
    """bool: rounding to `dtype` may give several values within this radius, both float64 [...]."""
    if kernels.worth(center):
        from oracles import ball_triton  # of a package that comes with torch for CUDA alone

        return ball_triton.splits(center, radius, dtype)
    ends = formats.round_to(torch.stack((center - radius, center + radius)), dtype)
    return ends[0] != ends[1]


def _with_zero(low: torch.Tensor, high: torch.Tensor, tiny: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends, where a number below `tiny` may also be 0."""
    low = torch.where((low > 0) & (low < tiny), 0.0, low)
    return low, torch.where((high < 0) & (high > -tiny), 0.0, high)


def lsb(value: torch.Tensor) -> torch.Tensor:
    """float64: the largest power of two that divides each value; inf for 0. Others must be at least 2**-900."""
    raw = value.view(torch.int64)
    mantissa = (raw & ((1 << 52) - 1)) | (1 << 52)
    exponent = (raw >> 52) & 0x7FF
    unit = (mantissa & -mantissa).to(torch.float64) * formats.exp2((exponent - 1075).clamp(min=-1022))
    return torch.where(value == 0, torch.inf, unit)


def exponent_of(value: torch.Tensor) -> torch.Tensor:
    """int64: floor(log2 |value|) of finite float64; -1023 for 0."""
    return ((value.view(torch.int64) >> 52) & 0x7FF) - 1023
