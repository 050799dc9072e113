"""A GEMM on balls: what the uncertainty of x becomes, what the additions add, and what may be no number at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oracles import accumulation, formats, kinds, tensor_core
from oracles.accumulation import Weight
from oracles.ball import F64, HARD, SHARP, Ball, settle
from oracles.enclosure import ANY, FINITE, LAMBDA
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
    total = center.abs() @ weight.magnitude.mT
    result = center @ weight.value.mT
    inherited = _inherited(x.radius, weight, correlated)
    grown = total + inherited[HARD]
    grid = accumulation.Grid(center, x.radius[HARD] > 0, weight, acc)
    hard = accumulation.hard(grown, columns, grid, acc)
    lost = torch.zeros_like(inherited)
    if acc.flush_to_zero:
        lost += accumulation.flushed(center, x.radius[HARD], weight, acc)
    if acc.inside is not None:
        lost += tensor_core.cut(center, weight, inherited[HARD], grid, acc)
    # What is inherited passes the additions too; and the reference's own K additions, and its ends, are rounded.
    grows = accumulation.growth(columns, acc)
    floor = accumulation.underflow(columns, acc) + (columns + 4) * F64 * grown
    is_exact = (hard == 0) & (lost[HARD] == 0) & (inherited[HARD] == 0) & grid.fits
    radius = torch.where(is_exact, 0.0, inherited * (1 + grows) + lost + floor)
    if bool(hard.any()):
        asked = torch.ones_like(is_exact) if undecided is None else undecided(result, radius[HARD] + hard)
        off = inherited[SHARP] + lost[SHARP]
        seen = acc.measured or acc
        radius += torch.stack((hard, *accumulation.sharp(center, weight, grown, hard, off, asked, seen, grid)))
    return settle(result, radius, _kinds(x, weight, result, grown * (1 + grows), radius[HARD], acc))


def _inherited(radius: torch.Tensor, weight: Weight, correlated: Correlation | None) -> torch.Tensor:
    """[3, C, T, N]: what the uncertainty of x makes of the product. Hard and bias: the sum. Sharp: the smaller of the
    sum and lambda times the L2 norm over independent groups (Hoeffding), round a mean that the bias bounds."""
    if not bool(radius.any()):
        return radius.new_zeros((*radius.shape[:-1], weight.value.shape[1]))
    magnitude = weight.magnitude.mT
    hard, sharp, bias = radius @ magnitude
    if correlated is None:
        return torch.stack((hard, sharp, sharp))
    alone = torch.where(correlated.repeated, 0.0, radius[SHARP])
    if correlated.block == 1:
        square = alone.square() @ weight.value.mT.square()
    else:
        square = block_sums(alone, weight.magnitude, correlated.block).square().sum(1)
    together = torch.where(correlated.repeated, radius[SHARP], 0.0)
    if bool(together.any()):
        square = square + (together @ magnitude).square()
    return torch.stack((hard, torch.minimum(sharp, LAMBDA * square.sqrt() + bias), bias))


def _kinds(
    x: Ball, weight: Weight, result: torch.Tensor, grown: torch.Tensor, hard: torch.Tensor, acc: Accumulator
) -> torch.Tensor | None:
    """uint8 [C, T, N], or None: what may come out where an operand is not finite, or where a partial sum may pass the
    largest float32. grown: a bound on every partial sum of any order."""
    overflow = grown > _MAX
    if acc.inside is not None:
        overflow = overflow | tensor_core.overflows(x, weight, acc)
    elif acc.group > 1 and weight.scale is not None:
        overflow = overflow | _scale_overflows(x, weight.scale)
    specials = x.kinds is not None or weight.kinds is not None
    if not specials and not bool(overflow.any()):
        return None
    # Rounding to nearest turns all from half an ulp above the largest into infinity; truncation may stay at it.
    certain = (result.abs() - hard > _MAX * (1 + 2.0**-24)) & (acc.rounding == "nearest")
    plain = torch.where(overflow, torch.where(certain, ANY & ~FINITE, ANY), FINITE).to(torch.uint8)
    if not specials:
        return plain
    low, high = x.center - x.radius[HARD], x.center + x.radius[HARD]
    factor = kinds.of_operand(low, high, x.kinds, flush_to_zero=acc.flush_to_zero)
    other = kinds.of_operand(weight.value, weight.value, weight.kinds, flush_to_zero=acc.flush_to_zero)
    return kinds.of_matmul(factor, other, plain)


def _scale_overflows(x: Ball, scale: torch.Tensor) -> torch.Tensor:
    """bool [C, T, N]: the product of a block's two scales, d of x and that of the weight, may pass the largest float32
    although no element does: infinity times a sum of 0 is NaN. The largest element of a block is 127 d; ggml holds
    the weight's codes doubled, and so its scale halved."""
    top = formats.grouped(x.center.abs() + x.radius[HARD], formats.GROUP).amax(-1)
    product = top.nan_to_num(0.0, 0.0, 0.0) @ (scale / 254).mT  # summed over the blocks, a little more than the largest
    return product > _MAX * (1 - 2.0**-20)
