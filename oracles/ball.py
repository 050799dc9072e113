"""Arithmetic on values that are known up to a radius: what the reference computes with.

A `Ball` is a float64 center with two radii, stacked in one tensor: [0] hard, [1] sharp. Accumulation and
transcendentals add radius; a rounding is applied to both ends, so that the radius becomes 0 unless a boundary lies
inside. Non-finite values travel beside, as bit sets of what may come out (`oracles.enclosure`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from oracles import formats
from oracles.enclosure import ANY, FINITE, LAMBDA, NAN, NEG_INF, POS_INF
from oracles.numerics import Accumulator, Float

F64 = 2.0**-53
"""Unit roundoff of the reference's own arithmetic."""

_SMALLEST = 2.0**-149  # spacing of float32's subnormals
_SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True, kw_only=True)
class Ball:
    """center: float64 [...]. radius: float64 [2, ...], hard and sharp. kinds: uint8 [...], None when all are FINITE.

    Where `kinds` is a single non-finite bit the center is that value, so that IEEE arithmetic on centers gives what
    follows from it (tanh(inf) = 1). Where it is a set, center and radius mean nothing.
    """

    center: torch.Tensor
    radius: torch.Tensor
    kinds: torch.Tensor | None = None

    @property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(lowest, highest), each [2, ...]."""
        return self.center - self.radius, self.center + self.radius


def exact(center: torch.Tensor) -> Ball:
    """Float64 values that are known exactly; NaN and infinities become kinds."""
    radius = center.new_zeros((2, *center.shape))
    if bool(torch.isfinite(center).all()):
        return Ball(center=center, radius=radius)
    return Ball(center=center, radius=radius, kinds=kinds_of(center))


def kinds_of(value: torch.Tensor) -> torch.Tensor:
    """uint8: the one bit that each value is."""
    infinite = torch.where(value > 0, POS_INF, NEG_INF)
    return torch.where(value.isnan(), NAN, torch.where(value.isinf(), infinite, FINITE)).to(torch.uint8)


def from_ends(center: torch.Tensor, low: torch.Tensor, high: torch.Tensor, kinds: torch.Tensor | None) -> Ball:
    """A ball round `center` that holds [low, high] ([2, ...]), with room for this arithmetic's own rounding."""
    radius = torch.maximum(high - center, center - low)
    if kinds is not None:
        radius = torch.where(kinds == FINITE, radius, 0.0)
    return Ball(center=center, radius=radius.clamp(min=0.0), kinds=kinds)


def rounded(ball: Ball, dtype: Float, *, flush_to_zero: bool = False) -> Ball:
    """Round to nearest even in `dtype`. An end that overflows makes infinity possible, or certain when both do.

    flush_to_zero: a subnormal result may also be 0.
    """
    center = formats.round_to(ball.center, dtype)
    low, high = ball.ends
    low, high = formats.round_to(low, dtype), formats.round_to(high, dtype)
    if flush_to_zero:
        tiny = formats.MIN_NORMAL[dtype]
        low = torch.where((low > 0) & (low < tiny), 0.0, low)
        high = torch.where((high < 0) & (high > -tiny), 0.0, high)
    kinds = ball.kinds
    over = low[0].isinf() | high[0].isinf()
    if kinds is not None:
        over &= kinds == FINITE
    if bool(over.any()):
        kinds = torch.full(center.shape, FINITE, dtype=torch.uint8, device=center.device) if kinds is None else kinds
        certain = low[0] == high[0]  # both ends, and so the center, are the same infinity
        possible = torch.where(high[0] == torch.inf, POS_INF, 0) | torch.where(low[0] == -torch.inf, NEG_INF, 0)
        kinds = torch.where(over, possible | torch.where(certain, 0, FINITE), kinds).to(torch.uint8)
    return settle(from_ends(center, low, high, kinds))


def lsb(value: torch.Tensor) -> torch.Tensor:
    """float64: the largest power of two of which each value is an integer multiple; inf for 0."""
    raw = value.view(torch.int64)
    exponent = (raw >> 52) & 0x7FF
    mantissa = raw & ((1 << 52) - 1)
    mantissa = torch.where(exponent == 0, mantissa, mantissa | (1 << 52))
    trailing = (mantissa & -mantissa).to(torch.float64)
    unit = trailing * torch.where(exponent == 0, 2.0**-1074, formats.exp2((exponent - 1075).clamp(min=-1022)))
    return torch.where(mantissa == 0, torch.inf, unit)


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A dequantised weight of some experts and what does not depend on the tokens.

    value: float64 [C, N, K], finite. unit: float64 [C, N], a power of two of which every element of the row is a
    multiple. special: uint8 [C, N, K] kinds, None when all are FINITE (`value` is 0 elsewhere). spread: magnitudes
    other than 0 may differ by more than 2**16. subnormal: some may be below 2**-126. large_scales: float64
    [C, N, K/32], the block scales, None when all are so small that no product with the scale of a Q8_0 block overflows.
    """

    value: torch.Tensor
    unit: torch.Tensor
    spread: bool
    subnormal: bool
    special: torch.Tensor | None = None
    large_scales: torch.Tensor | None = None

    @functools.cached_property
    def magnitude(self) -> torch.Tensor:
        return self.value.abs()


def matmul(x: Ball, weight: Weight, accumulator: Accumulator, correlated: Correlation | None = None) -> Ball:
    """x [C, T, K] times weight.value^T -> [C, T, N] with the radius of every admissible order of additions."""
    center = x.center if x.kinds is None else torch.where(x.kinds == FINITE, x.center, 0.0)
    w = weight.value.mT
    magnitude = weight.magnitude.mT
    total = center.abs() @ magnitude
    result = center @ w
    inherited = _inherited(x.radius, w, magnitude, correlated)
    grown = total + inherited[0]
    grid = _Grid(center, x.radius[0], weight.unit, accumulator)
    added = _accumulation(center, weight, grown, grid, accumulator)
    terms = center.shape[-1] / accumulator.group + 2 + accumulator.product_roundings
    smallest = _SMALLEST_NORMAL if accumulator.flush_to_zero else _SMALLEST
    # A quantised operand's scale is rounded where it is subnormal, and multiplies integer sums below 2**16.
    quantum = smallest * (2.0**16 if accumulator.group > 1 else 1.0)
    # Twice the terms: lanes and tiles add their sums beside them, and each addition may flush.
    floor = 2 * terms * quantum + center.shape[-1] * F64 * total
    is_exact = (added[0] == 0) & (inherited[0] == 0) & (grid.unit >= smallest)
    radius = torch.where(is_exact, 0.0, inherited + added + floor)
    overflow = grown > formats.MAX_FINITE["float32"]
    if accumulator.group > 1 and weight.large_scales is not None:
        overflow |= _scale_overflows(center, x.radius[0], weight.large_scales)
    kinds = _matmul_kinds(x, weight, result, overflow, accumulator.flush_to_zero)
    return settle(Ball(center=result, radius=radius, kinds=kinds))


def _exponent(value: torch.Tensor) -> torch.Tensor:
    """int64: floor(log2 |value|) of finite float64 (-1023 for 0 and for float64's subnormals)."""
    return ((value.view(torch.int64) >> 52) & 0x7FF) - 1023


class _Grid:
    """Which additions can round at all.

    A partial sum s is a float; adding p rounds only where a bit of p, or of s, lies below the last place of the
    result. Bits that low come from products p_k = x_k w_k that are no multiple of ulp(S), S being the largest partial
    sum: *small* products. bfloat16 times E2M1 has 10 bits and an accumulator 24, so most products are not small. A
    small product's bits may be rounded away more than once while the sums grow, each time at a higher binade: its
    roundings sum to at most ulp(S) (half that, a quarter, ...), their squares to ulp(S)^2 / 3, in any tree of
    additions. No small product: no rounding at all, the case of integers, one-hot and index-coded data.
    """

    _BINS = 64

    def __init__(self, x: torch.Tensor, radius: torch.Tensor, unit: torch.Tensor, acc: Accumulator) -> None:
        places = lsb(x)
        self.bits = acc.exact_bits
        self.unit = places.amin(-1, keepdim=True) * unit.unsqueeze(-2)
        """float64 [C, T, N]: every product is a multiple of it."""
        exponent = _exponent(places)
        exponent = torch.where(radius > 0, -4096, exponent)  # an uncertain element may have any last place
        live = places.isfinite()
        lowest = torch.where(live, exponent, 4096).amin(-1, keepdim=True).clamp(min=-1100, max=0)
        bins = (exponent - lowest).clamp(0, self._BINS - 1)
        counts = torch.zeros((*x.shape[:-1], self._BINS), dtype=torch.float64, device=x.device)
        counts.scatter_add_(-1, bins, live.to(torch.float64))
        # below[b]: elements whose last place is under 2**(lowest + b)
        self._below = torch.nn.functional.pad(counts.cumsum(-1), (1, 0))
        self._lowest = lowest
        self._unit_exponent = _exponent(unit).unsqueeze(-2)

    def small(self, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(number of small products, ulp(S)), [C, T, N], when no partial sum passes `largest` in magnitude."""
        exponent = _exponent(largest * (1 + 2.0**-20)) - (self.bits - 1)
        index = (exponent - self._unit_exponent - self._lowest).clamp(0, self._BINS)
        ulp = torch.where(largest == 0, 0.0, formats.exp2(exponent.clamp(min=-1022)))
        return self._below.gather(-1, index), ulp


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Which errors of x [C, T, K] are one and the same variable.

    repeated: bool [C, T, K], elements whose value occurs more than once in the row: their errors are equal and add
    linearly. block: elements that share a block scale move together (1: none do).
    """

    repeated: torch.Tensor
    block: int = 1


def _inherited(
    radius: torch.Tensor, w: torch.Tensor, magnitude: torch.Tensor, correlated: Correlation | None
) -> torch.Tensor:
    """[2, C, T, N]: what the uncertainty of x makes of the product. Hard: the sum. Sharp: the smaller of the sum and
    lambda times the L2 norm over independent groups (Hoeffding)."""
    if not bool(radius.any()):
        return radius.new_zeros((*radius.shape[:-1], w.shape[-1]))
    linear = radius @ magnitude
    if correlated is None:
        return linear
    sharp = radius[1]
    alone = torch.where(correlated.repeated, 0.0, sharp)
    square = (
        (alone * alone) @ (w * w)
        if correlated.block == 1
        else _block_sums(alone, magnitude.mT, correlated.block).square().sum(-3)
    )
    together = torch.where(correlated.repeated, sharp, 0.0)
    if bool(together.any()):
        square = square + (together @ magnitude).square()
    return torch.stack((linear[0], torch.minimum(linear[1], LAMBDA * square.sqrt())))


def _accumulation(
    x: torch.Tensor, weight: Weight, total: torch.Tensor, grid: _Grid, acc: Accumulator
) -> torch.Tensor:
    """[2, C, T, N]: the error of adding the products in float arithmetic, hard and sharp.

    Hard, any order of additions: every partial sum is at most `total` (the sum of magnitudes, and their errors), and
    there are K / group of them: gamma_n times `total`. Or ulp(total) for each small product (`_Grid`).
    Sharp, nearest: each addition errs by at most u times its partial sum s_k; where the row carries an argument for
    independence these errors are bounded and of either sign, so lambda * u * sqrt(sum of s_k^2). Or, again, with the
    squares of the small products' roundings. Truncation errs to one side and twice as far: a sum, no root.
    """
    truncates = acc.rounding == "truncate"
    terms = x.shape[-1] // acc.group + 2 + acc.product_roundings
    u = acc.unit_roundoff * (2.0 if truncates else 1.0)
    growth = terms * u / (1 - terms * u)
    hard = growth * total
    if not acc.product_roundings:
        count, ulp = grid.small(total * (1 + growth))
        hard = torch.minimum(hard, count * ulp * (2.0 if truncates else 1.0))
    lost = _flushed(x, weight) if acc.flush_to_zero else 0.0
    if not bool(hard.any()):
        return torch.stack((hard, hard)) + lost
    sums = _partial_sums(x, weight, acc)
    count, ulp = grid.small(sums.largest * (1 + growth))
    if truncates:
        linear = sums.total if acc.product_roundings else torch.minimum(sums.total, count * ulp / acc.unit_roundoff)
        sharp = u * linear * (1 + growth)
    else:
        small = count * (ulp / acc.unit_roundoff).square() / 3
        square = sums.total if acc.product_roundings else torch.minimum(sums.total, small)
        sharp = LAMBDA * u * square.sqrt() * (1 + growth) + _stagnating(x, weight, 2 * u * sums.largest)
        sharp = torch.where(_independent(x), sharp, hard)
    return torch.stack((hard, torch.minimum(sharp, hard))) + lost


def _flushed(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Products of subnormal operands, which a unit that treats denormals as zero drops."""
    size, lost = x.abs(), torch.zeros((), dtype=x.dtype, device=x.device)
    tiny = torch.where(size < _SMALLEST_NORMAL, size, 0.0)
    if bool(tiny.any()):
        lost = lost + tiny @ weight.magnitude.mT
    if weight.subnormal:
        lost = lost + size @ torch.where(weight.magnitude < _SMALLEST_NORMAL, weight.magnitude, 0.0).mT
    return lost


_SMALL = 2.0**-16


def _stagnating(x: torch.Tensor, weight: Weight, each: torch.Tensor) -> torch.Tensor:
    """Products that may be smaller than half an ulp of the partial sum are lost one and all to the same side, which
    is no random error. Adding p errs by at most |p|, and by `each`: elements under 2**-16 of their row's largest
    count in full, by the smaller of the two."""
    size, lost = x.abs(), torch.zeros((), dtype=x.dtype, device=x.device)
    small = torch.where(size < _SMALL * size.amax(-1, keepdim=True), size, 0.0)
    if bool(small.any()):
        count = (small != 0).sum(-1, keepdim=True)
        lost = lost + torch.minimum(small @ weight.magnitude.mT, each * count)
    if weight.spread:
        large = weight.magnitude.amax(-1, keepdim=True)
        small = torch.where(weight.magnitude < _SMALL * large, weight.magnitude, 0.0)
        count = (small != 0).sum(-1, keepdim=True)
        lost = lost + torch.minimum(size @ small.mT, each * count.mT)
    return lost


def _independent(x: torch.Tensor) -> torch.Tensor:
    """bool [C, T, 1]: rows whose rounding errors may be taken as independent.

    The error of adding p to s depends on p modulo ulp(s) alone, so equal products err alike. A row passes when, in
    every group of 32 and in the whole row, at least half of the elements that are not 0 differ in magnitude (in the
    whole row: half of 256 at most, since bfloat16 has not many more values near 1). Constant, periodic, one-hot and
    index-coded rows fail and get the hard radius (most are exact anyway).
    """
    size = x.abs()
    groups = size.unflatten(-1, (-1, min(32, size.shape[-1])))
    enough = 2 * _distinct(groups) >= (groups != 0).sum(-1)
    whole = 2 * _distinct(size) >= (size != 0).sum(-1).clamp(max=256)
    return (enough.all(-1) & whole).unsqueeze(-1)


def _distinct(size: torch.Tensor) -> torch.Tensor:
    """Number of different non-zero values along the last axis."""
    ordered = size.sort(-1).values
    first = (ordered[..., :1] != 0).sum(-1)
    return first + (ordered[..., 1:] != ordered[..., :-1]).sum(-1)


_STEP = 16
"""Columns that are added before a partial sum is looked at, at most."""
_PARTIAL_ELEMENTS = 1 << 23
"""Partial sums that are held at a time: 64 MiB."""


@dataclass(frozen=True, slots=True)
class _PartialSums:
    """Over the partial sums s_k of the declared orders, the largest of each, [C, T, N].

    total: the sum of s_k^2, or of |s_k| for an accumulator that truncates. largest: max |s_k|.
    """

    total: torch.Tensor
    largest: torch.Tensor


def _partial_sums(x: torch.Tensor, weight: Weight, acc: Accumulator) -> _PartialSums:
    """Of x [C, T, K] times the weight [C, N, K]. L lanes: lane l adds, in order, the groups l, l + L, l + 2 L ...; the
    lanes then meet in a balanced tree, whose squares are at most 2 (L - 1) times the sum of the lanes'
    (Cauchy-Schwarz on each level). S splits: contiguous parts, added in order."""
    size = x.abs()
    rows = max(1, _PARTIAL_ELEMENTS * _STEP // x.numel())  # of w at a time, to bound the memory
    pieces = [
        _partial_sums_of_rows(x, size, w, size_w, acc)
        for w, size_w in zip(weight.value.split(rows, dim=1), weight.magnitude.split(rows, dim=1), strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return _PartialSums(
        total=torch.cat([piece.total for piece in pieces], -1), largest=torch.cat([piece.largest for piece in pieces], -1)
    )


def _partial_sums_of_rows(
    x: torch.Tensor, size_x: torch.Tensor, w: torch.Tensor, size_w: torch.Tensor, acc: Accumulator
) -> _PartialSums:
    columns = x.shape[-1]
    power = torch.abs if acc.rounding == "truncate" else torch.square
    total = largest = x.new_zeros(())
    for lanes in acc.lanes:
        if columns % (lanes * acc.group):
            continue  # fewer columns than lanes: one group a lane, which the single lane covers
        step = acc.group
        while step < _STEP and columns % (2 * step * lanes) == 0:
            step *= 2
        products = _block_sums(_by_lane(x, lanes, acc.group), _by_lane(w, lanes, acc.group), step)
        inside = None
        if step > acc.group:
            inside = _block_sums(_by_lane(size_x, lanes, acc.group), _by_lane(size_w, lanes, acc.group), step)
        for parts in acc.splits if lanes == 1 else (lanes,):
            if products.shape[1] % parts:
                continue  # a part would be shorter than a step
            ends, bound = _bounds(products, inside, parts)
            own = step // acc.group * power(bound).sum(1)
            top = bound.amax(1)
            if lanes > 1:
                own = own + (lanes if power is torch.abs else 2 * (lanes - 1)) * power(ends).sum(1)
                top = torch.maximum(top, ends.abs().sum(1))
            elif parts > 1:
                joined = ends.cumsum(1).abs()
                own = own + power(joined).sum(1)
                top = torch.maximum(top, joined.amax(1))
            total, largest = torch.maximum(total, own), torch.maximum(largest, top)
    return _PartialSums(total=total, largest=largest)


def _bounds(
    products: torch.Tensor, inside: torch.Tensor | None, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the parts' sums [C, parts, T, N], a bound on |s| in every step [C, steps, T, N]), each part summed from 0.

    products: [C, steps, T, N]. Inside a step |s| <= (|s_start| + |s_end| + inside) / 2, by the triangle inequality,
    `inside` being the sum of |p| there.
    """
    prefix = products.unflatten(1, (parts, -1)).cumsum(2)
    ends = prefix[:, :, -1]
    prefix = prefix.flatten(1, 2)
    bound = prefix.abs()
    if inside is not None:
        bound = torch.maximum(bound, (bound + (prefix - products).abs() + inside) / 2)
    return ends, bound


def _by_lane(value: torch.Tensor, lanes: int, group: int) -> torch.Tensor:
    """The columns of each lane side by side."""
    return value if lanes == 1 else value.unflatten(-1, (-1, lanes, group)).transpose(-2, -3).flatten(-3)


def _partial_sums_of_parts(
    products: torch.Tensor, inside: torch.Tensor | None, parts: int, count: int
) -> tuple[torch.Tensor, _PartialSums]:
    """(the parts' sums [C, parts, T, N], their partial sums), each part summed from 0 in order.

    products: [C, steps, T, N], of `count` groups each. Inside a step |s| <= (|s_start| + |s_end| + inside) / 2, by
    the triangle inequality, `inside` being the sum of |p| there.
    """
    prefix = products.unflatten(1, (parts, -1)).cumsum(2)
    ends = prefix[:, :, -1]
    prefix = prefix.flatten(1, 2)
    bound = prefix.abs()
    if inside is not None:
        bound = torch.maximum(bound, (bound + (prefix - products).abs() + inside) / 2)
    return ends, _PartialSums(
        linear=count * bound.sum(1), square=count * bound.square().sum(1), largest=bound.amax(1)
    )


def _block_sums(x: torch.Tensor, w: torch.Tensor, step: int) -> torch.Tensor:
    """[C, K / step, T, N]: the products summed over each run of `step` columns."""
    return x.unflatten(-1, (-1, step)).transpose(1, 2) @ w.unflatten(-1, (-1, step)).transpose(1, 2).mT


def _scale_overflows(center: torch.Tensor, radius: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bool [C, T, N]: the two scales of a block, multiplied before the integer sum, may give infinity (and NaN with 0).

    The scale of 32 Q8_0 values is at least their largest / 127, and ggml's factor on the weight's side is half of the
    E8M0 scale, since its integers are twice E2M1.
    """
    largest = (center.abs() + radius).unflatten(-1, (-1, 32)).amax(-1) / 127
    return (largest.unsqueeze(-2) * scales.unsqueeze(-3) / 2 > formats.MAX_FINITE["float32"]).any(-1)


def _matmul_kinds(
    x: Ball, weight: Weight, result: torch.Tensor, overflow: torch.Tensor, flush_to_zero: bool
) -> torch.Tensor | None:
    """What may come out where an operand is not finite, or where a partial sum may `overflow`."""
    specials = x.kinds is not None or weight.special is not None
    if not specials and not bool(overflow.any()):
        return None
    kinds = torch.full(result.shape, FINITE, dtype=torch.uint8, device=result.device)
    kinds = torch.where(overflow, torch.where(result.abs() > formats.MAX_FINITE["float32"], ANY & ~FINITE, ANY), kinds)
    if not specials:
        return kinds.to(torch.uint8)

    def indicator(mask: torch.Tensor) -> torch.Tensor:
        return mask.to(torch.float32)

    xk = torch.full_like(x.center, FINITE, dtype=torch.uint8) if x.kinds is None else x.kinds
    wk = torch.full_like(weight.value, FINITE, dtype=torch.uint8) if weight.special is None else weight.special
    low, high = x.ends
    tiny = _SMALLEST_NORMAL if flush_to_zero else 0.0  # an operand below may be read as 0
    x_is = {
        "nan": xk == NAN,
        "+": (xk == POS_INF),
        "-": (xk == NEG_INF),
        "maybe": ((xk & FINITE) != 0) & (xk != FINITE),
        "some": ((xk & FINITE) == 0) & (xk != NAN) & (xk != POS_INF) & (xk != NEG_INF),
        "pos": (xk == FINITE) & (low[0] > tiny),
        "neg": (xk == FINITE) & (high[0] < -tiny),
        "zero": (xk == FINITE) & (low[0] == 0) & (high[0] == 0),
        "spans": (xk == FINITE) & (low[0] <= tiny) & (high[0] >= -tiny) & ((low[0] != 0) | (high[0] != 0)),
    }
    w_is = {
        "nan": wk == NAN,
        "+": wk == POS_INF,
        "-": wk == NEG_INF,
        "pos": (wk == FINITE) & (weight.value > tiny),
        "neg": (wk == FINITE) & (weight.value < -tiny),
        "zero": (wk == FINITE) & (weight.value == 0),
        "tiny": (wk == FINITE) & (weight.value != 0) & (weight.value.abs() <= tiny),
    }

    def count(*pairs: tuple[str, str]) -> torch.Tensor:
        found = torch.zeros(result.shape, dtype=torch.bool, device=result.device)
        for left, right in pairs:
            if bool(x_is[left].any()) and bool(w_is[right].any()):
                found |= indicator(x_is[left]) @ indicator(w_is[right]).mT > 0
        return found

    every = tuple(w_is)
    nan = count(
        *(("nan", right) for right in every),
        *((left, "nan") for left in x_is if left != "nan"),
        ("+", "zero"),
        ("-", "zero"),
        ("zero", "+"),
        ("zero", "-"),
    )
    positive = count(("+", "pos"), ("-", "neg"), ("pos", "+"), ("neg", "-"), ("+", "+"), ("-", "-"))
    negative = count(("+", "neg"), ("-", "pos"), ("neg", "+"), ("pos", "-"), ("+", "-"), ("-", "+"))
    some = count(
        *(("some", right) for right in every),
        *((left, right) for left in ("spans", "maybe") for right in ("+", "-")),
        *((left, "tiny") for left in ("+", "-")),
    )
    maybe = count(*(("maybe", right) for right in ("pos", "neg", "zero", "tiny")))
    out = torch.where(maybe, ANY, kinds)
    doubt = maybe | overflow  # a finite part that may itself be infinite may meet the infinity
    out = torch.where(positive, torch.where(doubt, POS_INF | NAN, POS_INF), out)
    out = torch.where(negative, torch.where(doubt, NEG_INF | NAN, NEG_INF), out)
    out = torch.where(some, ANY & ~FINITE, out)
    return torch.where(nan | (positive & negative), NAN, out).to(torch.uint8)


def settle(ball: Ball) -> Ball:
    """Give every element whose kind is one non-finite bit that value as its center."""
    if ball.kinds is None:
        return ball
    center = ball.center
    for bit, value in ((POS_INF, torch.inf), (NEG_INF, -torch.inf), (NAN, torch.nan)):
        center = torch.where(ball.kinds == bit, value, center)
    center = torch.where(_is_set(ball.kinds), 0.0, center)
    return Ball(center=center, radius=torch.where(ball.kinds == FINITE, ball.radius, 0.0), kinds=ball.kinds)


def _is_set(kinds: torch.Tensor) -> torch.Tensor:
    return (kinds & (kinds - 1)) != 0
