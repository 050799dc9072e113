"""What a tensor core cuts off while it adds the products of a group (`Accumulator.inside`). Derived in
docs/enclosures.md."""

from __future__ import annotations

import itertools
import math

import torch

from oracles import accumulation, formats
from oracles.accumulation import Grid, Weight
from oracles.ball import HARD, Ball
from oracles.numerics import Accumulator, TensorCore
from oracles.partial_sums import block_sums

_MAX = formats.MAX_FINITE["float32"]
_PIECE = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Sums that are held at a time: 2 MiB, what a core's cache holds; 256 MiB on a GPU."""


def cut(
    x: torch.Tensor, weight: Weight, inherited: torch.Tensor, grid: Grid, acc: Accumulator
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hard, sharp), each [C, T, N]: a bound on all that is cut, of one sign, for x [C, T, K] times the weight
    [C, N, K].

    An instruction cuts each of its products and the sum s so far at a quantum relative to the largest of them, which is
    at most max |x| max |w| of its columns, or |s|; and its result. Or, as in `Grid`: bits are cut of small products
    only, two of the coarsest quantum of the largest addend or sum for each. All of it in units after the group's scale,
    a power of two. Sharp radius and bias are the same, and those of what was measured, if it was.
    inherited [C, T, N]: what the errors of x make of the sum of magnitudes.
    """
    core = _core(acc)
    seen = core if acc.measured is None else _core(acc.measured)
    assert seen.columns == core.columns
    aligned, results, largest = _sums(x, weight, core.columns, acc.group)
    grows = accumulation.growth(x.shape[-1], acc)

    def bound(core: TensorCore) -> torch.Tensor:
        # What x may be instead raises the largest product of each instruction, and the sum so far, by no more in all
        # than is inherited. The sums are what the cuts before have left, and later additions pass a cut on.
        linear = core.alignment * (core.columns + 1) * (aligned + 2 * inherited)
        linear = linear.add_(core.result * (results + 2 * inherited)).mul_(1 + 2.0**-16 + grows)
        bits = 2 - math.frexp(max(core.alignment, core.result))[1]
        count, ulp = grid.small(largest + inherited + linear, bits)
        return torch.minimum(linear, count.mul_(ulp).mul_(2))

    hard = bound(core)
    return hard, hard if seen == core else bound(seen)


def _sums(x: torch.Tensor, weight: Weight, columns: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(sum over all instructions of a bound on the largest addend, sum of |result|, largest of either), [C, T, N]."""
    top_x = formats.grouped(x.abs(), columns).amax(-1)
    top_w = formats.grouped(weight.magnitude, columns).amax(-1)
    aligned = top_x @ top_w.mT
    largest = top_x.amax(-1).unsqueeze(-1) * top_w.amax(-1).unsqueeze(-2)
    results = torch.zeros_like(aligned)
    rows = max(1, _PIECE[x.device.type] * columns // x.numel())
    for first in range(0, aligned.shape[-1], rows):
        part = slice(first, first + rows)
        steps = block_sums(x, weight.value[:, part], columns)
        sums = steps.view(len(steps), -1, group // columns, *steps.shape[2:])
        for last, following in itertools.pairwise(sums.unbind(2)):
            following += last
        inner, last, top = _sizes(sums)
        results[..., part] = inner + last
        aligned[..., part] += inner
        largest[..., part] = torch.maximum(largest[..., part], top)
    return aligned, results, largest


def _sizes(sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the magnitudes of sums [C, groups, instructions, T, N], which may be changed: the sum of all but each group's
    last, the sum of these, and the largest of all."""
    if sums.is_cuda:  # where a norm is one pass over what is far larger than a cache
        norm = torch.linalg.vector_norm
        return norm(sums[:, :, :-1], 1, (1, 2)), norm(sums[:, :, -1], 1, 1), norm(sums, math.inf, (1, 2))
    sums.abs_()
    return sums[:, :, :-1].sum((1, 2)), sums[:, :, -1].sum(1), sums.amax((1, 2))


def overflows(x: Ball, weight: Weight, acc: Accumulator) -> torch.Tensor:
    """bool [C, T, N] or [C, T, 1]: some of a group's products may pass the largest float32 before their scale, however
    small that is."""
    size = (x.center.abs() + x.radius[HARD]).nan_to_num_(0.0, 0.0, 0.0)
    if not size.is_cuda and formats.within(size, _MAX / (formats.E2M1_MAX * acc.group)):
        return torch.zeros(1, 1, 1, dtype=torch.bool)
    groups = formats.grouped(size, acc.group).sum(-1)
    possible = (formats.E2M1_MAX * groups > _MAX).any(-1, keepdim=True)
    if weight.scale is None or not bool(possible.any()):
        return possible
    codes = formats.grouped(weight.magnitude, acc.group) / weight.scale.unsqueeze(-1)
    return block_sums(size, codes.flatten(-2), acc.group).amax(1) > _MAX * (1 - 2.0**-20)


def _core(acc: Accumulator) -> TensorCore:
    assert acc.inside is not None
    return acc.inside
