"""The kernel of `oracles.epilogue`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from oracles.enclosure import LAMBDA
from oracles.epilogue import Elements, Factors, Tables

_BLOCK, _WARPS = 256, 4
"""Two elements a thread: what is known of them fits its registers. Of seven the quickest on an H200."""


def launch(elements: Elements, tables: Tables, factors: Factors) -> tuple[torch.Tensor, torch.Tensor]:
    """(radius [3, C, T, N], the largest sums of magnitudes, each of some elements), float64."""
    inherited, looked = elements.inherited, elements.looked
    grid, stagnation, under = tables.grid, tables.stagnation, tables.stagnation.under
    experts, planes, tokens, rows = inherited.sums.shape
    depth = stagnation.ordered.shape[-1]
    blocks = triton.cdiv(rows, _BLOCK)
    radius = looked.top.new_empty(3, experts, tokens, rows)
    largest = looked.top.new_empty(experts * tokens * blocks)
    none = radius  # a pointer that is not read
    _radius[(len(largest),)](
        inherited.sums,
        none if inherited.squares is None else inherited.squares,
        elements.aligned,
        looked.inner,
        looked.last,
        looked.top,
        looked.square,
        looked.largest,
        elements.flushed,
        grid.below,
        grid.lowest,
        grid.least,
        tables.top,
        tables.independent,
        stagnation.ordered,
        stagnation.before,
        stagnation.zeros,
        tables.unit,
        stagnation.top,
        stagnation.threshold,
        none if under is None else under[0],
        none if under is None else under[1],
        radius,
        largest,
        tokens,
        rows,
        depth,
        grid.smallest,
        factors.growth,
        factors.own,
        factors.underflow,
        factors.cut.alignment,
        factors.cut.result,
        factors.cut_growth,
        factors.seen_cut.alignment,
        factors.seen_cut.result,
        2 * factors.seen_roundoff,
        factors.seen_error,
        factors.roots,
        bits=factors.bits,
        cut_bits=factors.cut.bits,
        seen_cut_bits=factors.seen_cut.bits,
        seen_bits=factors.seen_bits,
        instructions=factors.instructions,
        bins=grid.BINS,
        halvings=depth.bit_length(),
        planes=planes,
        has_squares=inherited.squares is not None,
        has_flushed=elements.flushed.dim() > 0,
        has_under=under is not None,
        finer=factors.seen_cut != factors.cut,
        limit=LAMBDA,
        block=_BLOCK,
        num_warps=_WARPS,
        # A product and a sum in one rounding would be another number than torch's.
        enable_fp_fusion=False,
    )
    return radius, largest


@triton.jit(do_not_specialize=["tokens"])
def _radius(
    sums: tl.tensor,
    squares: tl.tensor,
    aligned: tl.tensor,
    inner: tl.tensor,
    last: tl.tensor,
    top: tl.tensor,
    square: tl.tensor,
    largest: tl.tensor,
    flushed: tl.tensor,
    below: tl.tensor,
    lowest: tl.tensor,
    least: tl.tensor,
    top_x: tl.tensor,
    independent: tl.tensor,
    ordered: tl.tensor,
    before: tl.tensor,
    zeros: tl.tensor,
    unit: tl.tensor,
    top_w: tl.tensor,
    threshold: tl.tensor,
    under_sum: tl.tensor,
    under_count: tl.tensor,
    radius: tl.tensor,
    largest_sum: tl.tensor,
    tokens: tl.tensor,
    rows: tl.tensor,
    depth: tl.tensor,
    smallest: tl.float64,
    growth: tl.float64,
    own: tl.float64,
    underflow: tl.float64,
    cut_alignment: tl.float64,
    cut_result: tl.float64,
    cut_growth: tl.float64,
    seen_cut_alignment: tl.float64,
    seen_cut_result: tl.float64,
    seen_step: tl.float64,
    seen_error: tl.float64,
    roots: tl.float64,
    bits: tl.constexpr,
    cut_bits: tl.constexpr,
    seen_cut_bits: tl.constexpr,
    seen_bits: tl.constexpr,
    instructions: tl.constexpr,
    bins: tl.constexpr,
    halvings: tl.constexpr,
    planes: tl.constexpr,
    has_squares: tl.constexpr,
    has_flushed: tl.constexpr,
    has_under: tl.constexpr,
    finer: tl.constexpr,
    limit: tl.constexpr,
    block: tl.constexpr,
) -> None:
    blocks = tl.cdiv(rows, block)
    line = (tl.program_id(0) // blocks).to(tl.int64)  # of x: those of an expert, one after the other
    expert = line // tokens
    row = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    inside = row < rows
    at = line * rows + row
    of_weight = expert * rows + row
    plane = tokens.to(tl.int64) * rows
    some = sums + (expert * (planes - 1) * plane) + at  # of plane 0: (expert * planes * tokens + token) * rows + row

    # What is inherited, and with it `accumulation.hard`.
    grown = tl.load(some, mask=inside, other=0.0)
    hard = tl.zeros((block,), tl.float64)
    sharp, bias = hard, hard
    if planes == 4:
        hard = tl.load(some + plane, mask=inside, other=0.0)
        sharp = tl.load(some + 2 * plane, mask=inside, other=0.0)
        bias = sharp
        if has_squares:
            bias = tl.load(some + 3 * plane, mask=inside, other=0.0)
            sharp = tl.minimum(sharp, limit * tl.sqrt(tl.load(squares + at, mask=inside, other=0.0)) + bias)
        grown = grown + hard
    tl.store(largest_sum + tl.program_id(0), tl.max(grown, 0))
    own_unit = tl.load(unit + of_weight, mask=inside, other=1.0)
    table = below + line * (bins + 1)
    exponent = tl.load(lowest + line).to(tl.int32) + _exponent(own_unit)
    count, ulp = _small(grown * (1 + growth), bits, table, exponent, bins)
    any_order = tl.minimum(growth * grown, count * ulp)

    # `tensor_core.cut`
    most = tl.load(aligned + at, mask=inside, other=0.0)
    result = tl.load(inner + at, mask=inside, other=0.0)
    most = most + result
    result = result + tl.load(last + at, mask=inside, other=0.0)
    own_top = tl.load(top_w + of_weight, mask=inside, other=0.0)
    addend = tl.maximum(tl.load(top_x + line) * own_top, tl.load(top + at, mask=inside, other=0.0))
    linear = cut_alignment * (most + instructions * hard)
    linear = (linear + cut_result * (result + instructions * hard)) * cut_growth
    count, ulp = _small(addend + hard + linear, cut_bits, table, exponent, bins)
    lost = tl.minimum(linear, count * ulp * 2)
    lost_sharp = lost
    if finer:
        linear = seen_cut_alignment * (most + instructions * sharp)
        linear = (linear + seen_cut_result * (result + instructions * sharp)) * cut_growth
        count, ulp = _small(addend + sharp + linear, seen_cut_bits, table, exponent, bins)
        lost_sharp = tl.minimum(linear, count * ulp * 2)
    if has_flushed:
        zeroed = tl.load(flushed + at, mask=inside, other=0.0)
        lost, lost_sharp = lost + zeroed, lost_sharp + zeroed

    # `accumulation.sharp`
    off = sharp + lost_sharp
    error = (tl.sqrt(tl.load(square + at, mask=inside, other=0.0)) + roots * off) * seen_error
    error = error * error
    sum_ = tl.load(largest + at, mask=inside, other=0.0) + off + limit * tl.sqrt(error)
    count, ulp = _small(sum_, seen_bits, table, exponent, bins)
    # torch divides by a number in that way, on a GPU
    error = tl.minimum(error, count * (ulp * ulp) * (1.0 / 3.0))
    step = seen_step * sum_
    # `Stagnation.lost`: how many of x are below, by halves.
    line_of_x = ordered + line * depth
    limit_x = tl.where(own_top > 0, step / tl.load(threshold + of_weight, mask=inside, other=1.0), 0.0)
    index = tl.zeros((block,), tl.int32)
    for half in tl.static_range(halvings):
        next_ = index + (1 << (halvings - 1 - half))
        value = tl.load(line_of_x + next_ - 1, mask=inside & (next_ <= depth), other=float("inf"))
        index = tl.where(value < limit_x, next_, index)
    number = tl.maximum(index - tl.load(zeros + line), 0).to(tl.float64)
    total = tl.load(before + line * (depth + 1) + index)
    stagnant = tl.minimum(total * own_top, step * 0.5 * number)
    if has_under:
        small = tl.load(line_of_x + depth - 1) * tl.load(under_sum + of_weight, mask=inside, other=0.0)
        number = tl.load(under_count + of_weight, mask=inside, other=0).to(tl.float64)
        stagnant = stagnant + tl.minimum(small, step * 0.5 * number)
    added_bias = tl.where(tl.load(independent + line), tl.minimum(stagnant, any_order), any_order)
    added_sharp = tl.minimum(limit * tl.sqrt(error) + added_bias, any_order)

    # `matmul.matmul`
    is_exact = (any_order + lost + hard == 0) & (tl.load(least + line) * own_unit >= smallest)
    floor = tl.where(is_exact, 0.0, underflow + own * grown)
    to = radius + at
    next_plane = plane * (tl.num_programs(0) // blocks // tokens)
    tl.store(to, hard * (1 + growth) + lost + floor + any_order, mask=inside)
    tl.store(to + next_plane, sharp * (1 + growth) + lost_sharp + floor + added_sharp, mask=inside)
    tl.store(to + 2 * next_plane, bias * (1 + growth) + lost_sharp + floor + added_bias, mask=inside)


@triton.jit
def _exponent(value: tl.tensor) -> tl.tensor:
    """int32: biased, of what is not negative."""
    return (value.to(tl.int64, bitcast=True) >> 52).to(tl.int32)


@triton.jit
def _small(
    largest: tl.tensor, bits: tl.constexpr, table: tl.tensor, lowest: tl.tensor, bins: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """`Grid.small`"""
    exponent = _exponent(largest * (1 + 2.0**-20)) - (bits - 1)
    ulp = (tl.maximum(exponent, 1).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    return tl.load(table + tl.minimum(tl.maximum(exponent - lowest, 0), bins)), ulp
