"""A GEMM on balls: what the uncertainty of x becomes, what the additions add, and what may be no number at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oracles import accumulation, formats, kinds, one_pass, tensor_core
from oracles.accumulation import Weight
from oracles.ball import F64, HARD, SHARP, Ball, settle
from oracles.enclosure import ANY, FINITE, LAMBDA, NAN
from oracles.numerics import Accumulator
from oracles.partial_sums import block_sums

_MAX = formats.MAX_FINITE["float32"]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Which errors of x [C, T, K] are one and the same variable.

    repeated: bool [C, T, K], elements that come from the same numbers as another one of the row: their errors are
    equal and add linearly. block: elements that share a block scale move together (1: none do).
    """

    repeated: torch.Tensor
    block: int = 1


Undecided = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of a center and a hard radius: bool, where what follows depends on the value within that radius."""


def matmul(
    x: Ball,
    weight: Weight,
    acc: Accumulator,
    correlated: Correlation | None = None,
    undecided: Undecided | None = None,
) -> Ball:
    """x [C, T, K] times weight.value^T -> [C, T, N].

    correlated: None, nothing is known to be independent. undecided: where to spend effort on the sharp radius; None,
    everywhere.
    """
    columns = x.center.shape[-1]
    center = x.center if x.kinds is None else torch.where(x.kinds == FINITE, x.center, 0.0)
    looked = one_pass.look(center, weight.value, acc)
    result = center @ weight.value.mT if looked is None else looked.result
    total, inherited = _through(center, x.radius, weight, correlated)
    grown = total + inherited[HARD]
    grid = accumulation.Grid(center, x.radius[HARD] > 0, weight, acc)
    # What a chain of instructions cuts is all that its additions lose.
    hard = accumulation.hard(grown, columns, grid, acc) if acc.chain is None else torch.zeros_like(grown)
    lost = lost_sharp = torch.zeros_like(grown)
    if acc.inside is not None or acc.chain is not None:
        lost, lost_sharp = tensor_core.cut(center, weight, inherited, grid, acc, looked)
    if acc.flush_to_zero:
        flushed = accumulation.flushed(center, x.radius[HARD], weight, acc)
        lost, lost_sharp = lost + flushed, lost_sharp + flushed
    # What is inherited passes the additions too; and the reference's own K additions, and its ends, are rounded.
    grows = accumulation.growth(columns, acc)
    floor = accumulation.underflow(columns, acc) + (columns + 4) * F64 * grown
    is_exact = (hard + lost + inherited[HARD] == 0) & grid.fits
    floor.masked_fill_(is_exact, 0.0)
    radius = inherited * (1 + grows)
    radius[HARD] += lost
    radius[SHARP:] += lost_sharp
    radius += floor
    if not formats.within(hard, 0.0):
        asked = hard > 0 if undecided is None else undecided(result, radius[HARD] + hard)
        off = inherited[SHARP] + lost_sharp
        seen = acc.measured or acc
        sharp, bias = accumulation.sharp(center, weight, grown, hard, off, asked, seen, grid, looked)
        radius += torch.stack((hard, sharp, bias))
    out = _kinds(x, weight, result, grown * (1 + grows), radius[HARD], acc)
    if tensor_core.is_followed(acc.measured or acc):
        result, radius = _followed(center, x.radius, weight, acc, result, inherited, radius)
    return settle(result, radius, out)


def _followed(
    center: torch.Tensor,
    radius: torch.Tensor,
    weight: Weight,
    acc: Accumulator,
    result: torch.Tensor,
    inherited: torch.Tensor,
    bounds: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(center, radius [3, C, T, N]) where every bit that is cut is known, for x with a radius [3, C, T, K].

    result, bounds: where nothing is cut, and how far what comes out may be from there. Hard is that bound; sharp is
    what the errors of x make, and the cuts that these may change.
    """
    uncertain = radius[SHARP] > 0
    off = torch.zeros_like(result)
    if acc.flush_to_zero:
        off = off + accumulation.flushed(center, radius[SHARP], weight, acc)
    fits = accumulation.Grid(center, uncertain, weight, acc).fits
    off = off + torch.where(fits, 0.0, accumulation.underflow(center.shape[-1], acc))
    made, moved = tensor_core.follow(center, uncertain, weight, inherited[SHARP] + off, acc.measured or acc)
    sharp, bias = inherited[SHARP:] + off + moved
    return made, torch.stack((bounds[HARD] + (made - result).abs(), sharp, bias))


def _through(
    center: torch.Tensor, radius: torch.Tensor, weight: Weight, correlated: Correlation | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum of magnitudes [C, T, N], what the uncertainty of x makes of the product [3, C, T, N]).

    Hard and bias: the sum. Sharp: the smaller of the sum and lambda times the L2 norm over independent groups
    (Hoeffding), round a mean that the bias bounds.
    """
    magnitude = weight.magnitude.mT
    if formats.within(radius, 0.0):
        total = center.abs() @ magnitude
        return total, total.new_zeros(3, *total.shape)
    # In one go: the weight is what is large, and read once.
    total, hard, sharp, bias = (torch.cat((center.abs(), *radius), dim=1) @ magnitude).chunk(4, dim=1)
    if correlated is None:
        return total, torch.stack((hard, sharp, sharp))
    alone = torch.where(correlated.repeated, 0.0, radius[SHARP])
    if correlated.block == 1:
        square = _squares(alone, weight.value)
    else:
        square = block_sums(alone, weight.magnitude, correlated.block).square().sum(1)
    together = torch.where(correlated.repeated, radius[SHARP], 0.0)
    if bool(together.any()):
        square = square + (together @ magnitude).square()
    return total, torch.stack((hard, torch.minimum(sharp, LAMBDA * square.sqrt() + bias), bias))


def _squares(radius: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[C, T, N]: the sum of squares of the products of radius [C, T, K] and weight [C, N, K]."""
    columns = radius.any(1).any(0).nonzero().squeeze(1)
    if 2 * len(columns) < radius.shape[-1]:
        radius, weight = radius[..., columns], weight[..., columns]
    return radius.square() @ weight.square().mT


def _kinds(
    x: Ball, weight: Weight, result: torch.Tensor, grown: torch.Tensor, hard: torch.Tensor, acc: Accumulator
) -> torch.Tensor | None:
    """uint8 [C, T, N], or None: what may come out where an operand is not finite, or where a partial sum may pass the
    largest float32. grown: a bound on every partial sum of any order."""
    overflow: torch.Tensor | None = None if formats.within(grown, _MAX) else grown > _MAX
    inside: torch.Tensor | None = None
    if acc.inside is not None:
        inside = tensor_core.overflows(x, weight, acc)
    elif acc.group > 1 and weight.scale is not None:
        inside = _scale_overflows(x, weight.scale)
    if inside is not None and bool(inside.any()):
        overflow = inside if overflow is None else overflow | inside
    specials = x.kinds is not None or weight.kinds is not None
    if overflow is None:
        if not specials:
            return None
        overflow = torch.zeros_like(result, dtype=torch.bool)
    # Rounding to nearest turns all from half an ulp above the largest into infinity; truncation may stay at it.
    certain = (result.abs() - hard > _MAX * (1 + 2.0**-24)) & (acc.rounding == "nearest")
    plain = torch.where(overflow, torch.where(certain, ANY & ~FINITE, ANY), FINITE).to(torch.uint8)
    if not specials:
        return plain
    low, high = x.center - x.radius[HARD], x.center + x.radius[HARD]
    factor = kinds.of_operand(low, high, x.kinds, flush_to_zero=acc.flush_to_zero)
    # A certain NaN decides its row. In the others only the columns where something is not finite do.
    nan = kinds.is_nan(factor).any(-1, keepdim=True)
    special = (kinds.is_special(factor) & ~nan).any(1).any(0)
    value, own = weight.value, weight.kinds
    if own is not None:
        special |= (own != FINITE).any(1).any(0)
    columns = special.nonzero().squeeze(1)
    if len(columns):
        value, own = value[..., columns], None if own is None else own[..., columns]
        other = kinds.of_operand(value, value, own, flush_to_zero=acc.flush_to_zero)
        plain = kinds.of_matmul(factor[..., columns], other, plain)
    return torch.where(nan, NAN, plain).to(torch.uint8)


def _scale_overflows(x: Ball, scale: torch.Tensor) -> torch.Tensor:
    """bool [C, T, N]: the product of a block's two scales, d of x and that of the weight, may pass the largest float32
    although no element does: infinity times a sum of 0 is NaN. The largest element of a block is 127 d; ggml holds
    the weight's codes doubled, and so its scale halved."""
    top = formats.grouped(x.center.abs() + x.radius[HARD], formats.GROUP).amax(-1)
    product = top.nan_to_num(0.0, 0.0, 0.0) @ (scale / 254).mT  # summed over the blocks, a little more than the largest
    return product > _MAX * (1 - 2.0**-20)
