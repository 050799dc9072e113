"""The error of adding the products of one dot product in float arithmetic. Derived in docs/enclosures.md."""

from __future__ import annotations

import functools
import math

import torch

from oracles import formats, kernels, partial_sums
from oracles.ball import exponent_of, lsb
from oracles.enclosure import LAMBDA
from oracles.numerics import Accumulator, TensorCore
from oracles.one_pass import Sums
from oracles.partial_sums import PartialSums, Places
from oracles.weight import Weight

SMALLEST_NORMAL = 2.0**-126
_SMALLEST = 2.0**-149


def growth(columns: int, acc: Accumulator, core: TensorCore | None = None) -> float:
    """Any order of additions errs by at most this times the sum of magnitudes: (1 + u)^n - 1, with n roundings on the
    longest path of a product. A unit that truncates cuts each product, and each sum of 4 of them or more; a chain of
    instructions, each of whose addends is cut by no more than the largest one's share. core: another chain's."""
    if acc.chain is not None:
        core = core or acc.chain
        return math.expm1(columns / core.columns * math.log1p((core.columns + 1) * core.alignment + core.result))
    groups = columns // acc.group
    roundings = (groups if acc.rounding == "nearest" else groups + groups // 4) + 2 + acc.product_roundings
    return math.expm1(roundings * math.log1p(_worst(acc)))


def underflow(columns: int, acc: Accumulator) -> float:
    """What results below the smallest normal number may lose in all.

    Nearest: a product is rounded to a multiple of 2**-149, sums of such are exact. A group of quantised products is an
    integer below 2**16 times a scale that is rounded so. Flushing: each addition, of a product to an empty sum too.
    """
    groups = columns // acc.group
    products = groups * (1 + acc.product_roundings)
    quantum = _SMALLEST * (2.0**16 if acc.group > 1 else 1.0)
    return products * quantum + ((products + groups + 2) * SMALLEST_NORMAL if acc.flush_to_zero else 0.0)


def _worst(acc: Accumulator) -> float:
    """Error of one rounding, relative to its result."""
    return acc.unit_roundoff * (1.0 if acc.rounding == "nearest" else 2.0)


class Grid:
    """Which additions can round at all.

    A partial sum is a float; adding p rounds only where a bit of p, or of the sum, lies below the last place of the
    result. Bits that low come from products p = x w that are no multiple of ulp(S), S being the largest partial sum:
    *small* products. bfloat16 times E2M1 has 10 bits and an accumulator 24, so most products are not small. A small
    product's bits may be rounded away more than once while the sums grow, each time at a higher binade: its roundings
    to nearest sum to at most ulp(S) (half that, a quarter, ...), their squares to ulp(S)**2 / 3, in any tree of
    additions. No small product: no rounding at all, the case of integers, one-hot and index-coded data.
    """

    BINS = 64

    def __init__(self, x: torch.Tensor, uncertain: torch.Tensor, weight: Weight, acc: Accumulator) -> None:
        """x [C, T, K]; elements that are `uncertain` may have any last place."""
        self.smallest = SMALLEST_NORMAL if acc.flush_to_zero else _SMALLEST
        self.least, self.lowest, self.below = self._places(x, uncertain)
        """[C, T, 1]: of which all elements of a row of x are multiples. int64 [C, T, 1]: the exponent of the lowest
        last place that is known. [C, T, BINS + 1]: elements whose last place is under 2**(lowest + b), or unknown, for
        b = 0, 1 ..."""
        self._unit = weight.unit

    def _places(self, x: torch.Tensor, uncertain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if kernels.worth(x):
            from oracles import rows_triton  # of a package that comes with torch for CUDA alone

            return rows_triton.places(x, uncertain, self.BINS)
        places = lsb(x)
        live = places.isfinite() & ~uncertain
        exponent = torch.where(live, exponent_of(places), 1 << 12)
        lowest = exponent.amin(-1, keepdim=True)
        counts = torch.zeros((*x.shape[:-1], self.BINS + 1), dtype=torch.float64, device=x.device)
        counts[..., 0] = uncertain.sum(-1)
        counts.scatter_add_(-1, 1 + (exponent - lowest).clamp(max=self.BINS - 1), live.to(torch.float64))
        return torch.where(uncertain, 0.0, places).amin(-1, keepdim=True), lowest, counts.cumsum(-1)

    @functools.cached_property
    def fits(self) -> torch.Tensor:
        """bool [C, T, N]: no product, and no sum of products, is too small for the accumulator's format."""
        return self.least * self._unit.unsqueeze(-2) >= self.smallest

    @functools.cached_property
    def _lowest(self) -> torch.Tensor:
        """int64 [C, T, N]: the biased exponent of a product's."""
        return self.lowest + (exponent_of(self._unit).unsqueeze(-2) + 1023)

    def small(
        self, largest: torch.Tensor, bits: int, places: Places | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(number of small products, ulp(S)), [C, T, N], when no partial sum passes `largest` in magnitude.

        bits: that each partial sum has. places: where `largest` [P] is, None when it is [C, T, N].
        """
        exponent = ((largest * (1 + 2.0**-20)).view(torch.int64) >> 52) - (bits - 1)  # biased; the sign is 0
        ulp = (exponent.clamp(min=1) << 52).view(torch.float64)
        if places is None:
            return self.below.gather(-1, (exponent - self._lowest).clamp_(0, self.BINS)), ulp
        expert, token, _ = places
        return self.below[expert, token, (exponent - self._lowest[places]).clamp_(0, self.BINS)], ulp


def hard(grown: torch.Tensor, columns: int, grid: Grid, acc: Accumulator) -> torch.Tensor:
    """[C, T, N]: the largest error of any order of additions.

    Every partial sum is at most `grown` [C, T, N], the sum of magnitudes with the errors of x: `growth` times that. Or
    two ulp(grown) for each small product, one when rounding to nearest.
    """
    grows = growth(columns, acc)
    if acc.product_roundings:
        return grows * grown
    count, ulp = grid.small(grown * (1 + grows), acc.exact_bits)
    return torch.minimum(grows * grown, count.mul_(ulp).mul_(1.0 if acc.rounding == "nearest" else 2.0))


def sharp(
    x: torch.Tensor,
    weight: Weight,
    grown: torch.Tensor,
    hard: torch.Tensor,
    off: torch.Tensor,
    asked: torch.Tensor | None,
    acc: Accumulator,
    grid: Grid,
    looked: Sums | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sharp radius, bias) of the declared orders, each [C, T, N], for x [C, T, K] times the weight [C, N, K].

    Each addition to nearest errs by at most u times its partial sum s, and where the row carries an argument for
    independence these errors are bounded and of either sign: lambda u sqrt(sum of s^2). Or, again, with the squares of
    the small products' roundings. Truncation errs to one side: a sum, no root.
    Without an argument for independence, and for truncation, all of it is bias.
    off: [C, T, N], how far the partial sums may be from those of x. asked: bool [C, T, N], where a sharp radius makes a
    difference; elsewhere it is `hard` where these places are few. None: everywhere. looked: the sums, where they are
    known, which is everywhere.
    """
    if acc.rounding == "truncate":
        linear = _truncated(x, weight, hard, off, grid, acc)
        return linear, linear
    stagnation = Stagnation(x, weight)
    independent = is_independent(x, stagnation.ordered, acc.group)
    u, grows = acc.unit_roundoff, growth(x.shape[-1], acc)
    # The triangle inequality: of partial sums that are each `off`, the root of the sum of squares.
    roots = partial_sums.additions(x.shape[-1], acc) ** 0.5

    def deviation(sums: PartialSums, off: torch.Tensor, places: Places | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(what errors of either sign sum to, the largest partial sum), where the sums are."""
        square = ((sums.total.sqrt() + roots * off) * (u * (1 + grows))).square()
        largest = sums.largest + off + LAMBDA * square.sqrt()
        if not acc.product_roundings:
            count, ulp = grid.small(largest, acc.exact_bits, places)
            square = torch.minimum(square, count * ulp.square() / 3)
        return LAMBDA * square.sqrt(), largest

    def biased(largest: torch.Tensor) -> torch.Tensor:
        lost = torch.minimum(stagnation.lost(2 * u * largest), hard)
        if kernels.look_first(hard) and bool(independent.all()):
            return lost
        return torch.where(independent, lost, hard)

    places = None if asked is None else partial_sums.few(asked & independent)
    if places is None:
        sums = partial_sums.bound(x, weight.value, acc) if looked is None else PartialSums.of(looked)
        spread, largest = deviation(sums, off, None)
        bias = biased(largest)
        return torch.minimum(spread + bias, hard), bias
    largest = (grown + off) * (1 + LAMBDA * roots * u * (1 + grows))
    sums = partial_sums.bound_at(x, weight.value, acc, places)
    spread, largest[places] = deviation(sums, off[places], places)
    bias = biased(largest)
    radius = hard.clone()
    radius[places] = torch.minimum(spread + bias[places], hard[places])
    return radius, bias


def _truncated(
    x: torch.Tensor, weight: Weight, hard: torch.Tensor, off: torch.Tensor, grid: Grid, acc: Accumulator
) -> torch.Tensor:
    columns = x.shape[-1]
    sums = partial_sums.bound(x, weight.value, acc)
    total = sums.total + partial_sums.additions(columns, acc) * off
    linear = _worst(acc) * total * (1 + growth(columns, acc))
    if not acc.product_roundings:
        count, ulp = grid.small(sums.largest + off + linear, acc.exact_bits)
        linear = torch.minimum(linear, 2 * count * ulp)
    return torch.minimum(linear, hard)


def flushed(x: torch.Tensor, radius: torch.Tensor, weight: Weight, acc: Accumulator) -> torch.Tensor:
    """[C, T, N], or [] where it is 0: what a unit that reads subnormal operands as 0 may lose, for x known up to
    radius [C, T, K]."""
    lost = torch.zeros((), dtype=x.dtype, device=x.device)
    if not acc.flush_to_zero:
        return lost
    size = x.abs()
    low = size - radius
    least = formats.least(low)
    if least < SMALLEST_NORMAL:
        tiny = torch.where(low < SMALLEST_NORMAL, (size + radius).clamp(max=SMALLEST_NORMAL), 0.0)
        product = weight.magnitudes_of_few(tiny)
        lost = lost if product is None else lost + product
    if weight.subnormal:
        below = torch.where(weight.magnitude < SMALLEST_NORMAL, weight.magnitude, 0.0)
        lost = lost + (size + radius) @ below.mT
    if acc.inside is not None and weight.scale is not None and least < 2.0**-100:
        # The sums inside a group are subnormal before its scale, which may be large. x from 2**-100 on is a multiple of
        # 2**-110 in 16 bits, and so are these sums.
        small = (low < 2.0**-100) & ((size > 0) | (radius > 0))
        if not kernels.look_first(small) or bool(small.any()):
            groups = formats.grouped(small, acc.group).any(-1).to(x.dtype)
            lost = lost + SMALLEST_NORMAL * acc.group // acc.inside.columns * (groups @ weight.scale.mT)
    return lost


class Stagnation:
    """Products under one ulp of the largest partial sum.

    These are lost, or round up to an ulp, one and all to the same side: no random error. Adding p errs by at most |p|,
    and by half an ulp. |x w| < ulp implies that |x| < ulp / threshold or |w| < threshold, for any threshold: for rows
    of weights that span little, one that none is below.
    """

    def __init__(self, x: torch.Tensor, weight: Weight) -> None:
        self.ordered = _sorted(x.abs())
        """[C, T, K]: the magnitudes of x, sorted."""
        self.before = torch.nn.functional.pad(self.ordered.cumsum(-1), (1, 0))
        """[C, T, K + 1]: the sum of the 0, 1 ... smallest of them."""
        self.zeros = (self.ordered == 0).sum(-1, keepdim=True)
        """int64 [C, T, 1]"""
        self.top = weight.top
        self.threshold = self.top * 2.0**-11 if weight.spread else weight.unit  # with 2**-12 of x: 2**-23, one ulp
        """Both [C, N]."""
        self.under: tuple[torch.Tensor, torch.Tensor] | None = None
        """The sum and the number of the weights below the threshold, [C, N], where there may be any."""
        if weight.spread:
            size = weight.held.abs()
            small = torch.where(size < self.threshold.unsqueeze(-1), size, 0.0)
            self.under = small.sum(-1, dtype=torch.float64), (small != 0).sum(-1)

    def lost(self, ulp: torch.Tensor) -> torch.Tensor:
        """[C, T, N]: a bound on the errors, for one `ulp` [C, T, N] of the largest partial sum."""
        top = self.top.unsqueeze(-2)
        index = torch.searchsorted(self.ordered, torch.where(top > 0, ulp / self.threshold.unsqueeze(-2), 0.0))
        count = (index - self.zeros).clamp(min=0)
        lost = torch.minimum(self.before.gather(-1, index) * top, ulp / 2 * count)
        if self.under is not None:
            small, number = (value.unsqueeze(-2) for value in self.under)
            lost = lost + torch.minimum(self.ordered[..., -1:] * small, ulp / 2 * number)
        return lost


def _sorted(value: torch.Tensor) -> torch.Tensor:
    """Along the last axis. A GPU sorts digit by digit: numbers that fit 16 bits in a quarter of the time."""
    if value.is_cuda and kernels.look_first(value):
        short = value.bfloat16()
        if torch.equal(short.double(), value):
            return short.sort(-1).values.double()
    return value.sort(-1).values


def is_independent(x: torch.Tensor, ordered: torch.Tensor, group: int) -> torch.Tensor:
    """bool [C, T, 1]: rows whose rounding errors may be taken as independent.

    The error of adding p to s depends on p modulo ulp(s) alone, so equal products err alike. A row passes when, in
    every group of 32 and in the whole row, at least half of the elements that are not 0 differ in magnitude (in the
    whole row: half of 256 at most, since bfloat16 has not many more values near 1). Where sums of a `group` of products
    are what is added, it is these that must differ: in the whole row at least half of the groups, by the sizes of their
    elements. E4M3 has too few values for more than that. Constant, periodic, one-hot and index-coded rows fail and get
    the hard radius (most are exact anyway). ordered: the magnitudes of x, sorted.
    """
    if group > 1:
        sizes = formats.grouped(x.abs(), group) @ _places(group, x)
        some = sizes.sort(-1).values
        whole = 2 * _distinct(some) >= (some != 0).sum(-1)
    else:
        whole = 2 * _distinct(ordered) >= (ordered != 0).sum(-1).clamp(max=256)
    return torch.logical_and(_vary(x), whole).unsqueeze(-1)


def _vary(x: torch.Tensor) -> torch.Tensor:
    """bool [C, T]: rows in each of whose groups of 32 at least half of what is not 0 differs in magnitude."""
    if kernels.worth(x):
        from oracles import rows_triton  # of a package that comes with torch for CUDA alone

        return rows_triton.vary(x)
    groups = formats.grouped(x.abs(), formats.GROUP).sort(-1).values
    return (2 * _distinct(groups) >= (groups != 0).sum(-1)).all(-1)


def _places(group: int, like: torch.Tensor) -> torch.Tensor:
    """float64 [group]: weights by which the elements of two groups that differ hardly ever sum alike."""
    return torch.arange(1, group + 1, dtype=like.dtype, device=like.device).sqrt()


def _distinct(ordered: torch.Tensor) -> torch.Tensor:
    """Number of different non-zero values along the last axis, which is sorted."""
    first = (ordered[..., :1] != 0).sum(-1)
    return first + (ordered[..., 1:] != ordered[..., :-1]).sum(-1)
