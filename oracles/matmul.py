"""A GEMM on balls: what the uncertainty of x becomes, what the additions add, and what may be no number at all."""

from __future__ import annotations

from collections.abc import Callable

import torch

from oracles import accumulation, epilogue, formats, kinds, one_pass, tensor_core
from oracles.ball import F64, HARD, SHARP, Ball, settle
from oracles.enclosure import ANY, FINITE, NAN
from oracles.inherited import Correlation, Inherited, inherit
from oracles.numerics import Accumulator
from oracles.weight import Weight

_MAX = formats.MAX_FINITE["float32"]


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
    everywhere, and so it is where that costs nothing more.
    """
    columns = x.center.shape[-1]
    center = x.center if x.kinds is None else torch.where(x.kinds == FINITE, x.center, 0.0)
    looked = one_pass.look(center, weight.held, acc)
    result = center @ weight.value.mT if looked is None else looked.result
    known = inherit(center, x.radius, weight, correlated)
    grid = accumulation.Grid(center, x.radius[HARD] > 0, weight, acc)
    flushed = accumulation.flushed(center, x.radius[HARD], weight, acc)
    grows = 1 + accumulation.growth(columns, acc)
    if looked is not None and epilogue.applies(acc):
        radius, sums = epilogue.radius(center, weight, acc, known, grid, flushed, looked)
    else:
        radius, sums = _radius(center, weight, acc, known, grid, flushed, looked, undecided, result), known.grown
    largest, inside = _overflows_inside(x, sums, weight, acc)
    overflow = None if largest * grows <= _MAX else known.grown * grows > _MAX
    out = _kinds(x, weight, result, overflow, inside, radius[HARD], acc)
    if tensor_core.is_followed(acc.measured or acc):
        result, radius = _followed(center, x.radius, weight, acc, result, known.radius, radius)
    return settle(result, radius, out)


def _radius(
    center: torch.Tensor,
    weight: Weight,
    acc: Accumulator,
    known: Inherited,
    grid: accumulation.Grid,
    flushed: torch.Tensor,
    looked: one_pass.Sums | None,
    undecided: Undecided | None,
    result: torch.Tensor,
) -> torch.Tensor:
    """[3, C, T, N]. `epilogue` has the same in one pass; what is changed here is changed there."""
    columns = center.shape[-1]
    grown, inherited = known.grown, known.radius
    # What a chain of instructions cuts is all that its additions lose.
    hard = accumulation.hard(grown, columns, grid, acc) if acc.chain is None else torch.zeros_like(grown)
    lost = lost_sharp = flushed
    if acc.inside is not None or acc.chain is not None:
        cut, cut_sharp = tensor_core.cut(center, weight, inherited, grid, acc, looked)
        lost, lost_sharp = cut + flushed, cut_sharp + flushed
    # What is inherited passes the additions too; and the reference's own K additions, and its ends, are rounded.
    floor = accumulation.underflow(columns, acc) + (columns + 4) * F64 * grown
    is_exact = (hard + lost + inherited[HARD] == 0) & grid.fits
    floor.masked_fill_(is_exact, 0.0)
    radius = inherited * (1 + accumulation.growth(columns, acc))
    radius[HARD] += lost
    radius[SHARP:] += lost_sharp
    radius += floor
    if not formats.is_zero(hard):
        asked = None
        if looked is None:
            asked = hard > 0 if undecided is None else undecided(result, radius[HARD] + hard)
        off = inherited[SHARP] + lost_sharp
        seen = acc.measured or acc
        sharp, bias = accumulation.sharp(center, weight, grown, hard, off, asked, seen, grid, looked)
        radius += torch.stack((hard, sharp, bias))
    return radius


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
    off = accumulation.flushed(center, radius[SHARP], weight, acc)
    fits = accumulation.Grid(center, uncertain, weight, acc).fits
    off = off + torch.where(fits, 0.0, accumulation.underflow(center.shape[-1], acc))
    made, moved = tensor_core.follow(center, uncertain, weight, inherited[SHARP] + off, acc.measured or acc)
    sharp, bias = inherited[SHARP:] + off + moved
    return made, torch.stack((bounds[HARD] + (made - result).abs(), sharp, bias))


def _kinds(
    x: Ball,
    weight: Weight,
    result: torch.Tensor,
    overflow: torch.Tensor | None,
    inside: torch.Tensor | None,
    hard: torch.Tensor,
    acc: Accumulator,
) -> torch.Tensor | None:
    """uint8 [C, T, N], or None: what may come out where an operand is not finite, or where a partial sum may pass the
    largest float32. overflow: bool [C, T, N], where that is so in some order; inside: inside a group; None: nowhere."""
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


def _overflows_inside(
    x: Ball, sums: torch.Tensor, weight: Weight, acc: Accumulator
) -> tuple[float, torch.Tensor | None]:
    """(the largest of `sums`, bool [C, T, N] or [C, T, 1] where something may pass the largest float32 inside a group,
    None for nowhere). Both at once: a GPU is waited for."""
    if acc.inside is None:
        scale = weight.scale if acc.group > 1 else None
        return formats.largest(sums)[0], None if scale is None else _scale_overflows(x, scale)
    size = x.center.abs() + x.radius[HARD]
    largest, largest_x = formats.largest(sums, size)
    return largest, tensor_core.overflows(size, largest_x, weight, acc)


def _scale_overflows(x: Ball, scale: torch.Tensor) -> torch.Tensor:
    """bool [C, T, N]: the product of a block's two scales, d of x and that of the weight, may pass the largest float32
    although no element does: infinity times a sum of 0 is NaN. The largest element of a block is 127 d; ggml holds
    the weight's codes doubled, and so its scale halved."""
    top = formats.grouped(x.center.abs() + x.radius[HARD], formats.GROUP).amax(-1)
    product = top.nan_to_num(0.0, 0.0, 0.0) @ (scale / 254).mT  # summed over the blocks, a little more than the largest
    return product > _MAX * (1 - 2.0**-20)
