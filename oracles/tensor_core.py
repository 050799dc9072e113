"""What a tensor core cuts off while it adds products: those of a group (`Accumulator.inside`), or all of them in a
chain (`Accumulator.chain`). Derived in docs/enclosures.md."""

from __future__ import annotations

import itertools
import math

import torch

from oracles import accumulation, formats
from oracles.accumulation import Grid
from oracles.ball import HARD, SHARP
from oracles.numerics import Accumulator, TensorCore
from oracles.one_pass import Sums
from oracles.partial_sums import block_sums
from oracles.weight import Weight

_MAX = formats.MAX_FINITE["float32"]
_PIECE = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Sums that are held at a time: 2 MiB, what a core's cache holds; 256 MiB on a GPU."""


def cut(
    x: torch.Tensor, weight: Weight, inherited: torch.Tensor, grid: Grid, acc: Accumulator, looked: Sums | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hard, sharp), each [C, T, N]: a bound on all that is cut, of one sign, for x [C, T, K] times the weight
    [C, N, K].

    An instruction cuts each of its products and the sum s so far at a quantum relative to the largest of them, which is
    at most max |x| max |w| of its columns, or |s|; and its result. Or, as in `Grid`: bits are cut of small products
    only, two of the coarsest quantum of the largest addend or sum for each. All of it in units after the group's scale,
    a power of two. Sharp radius and bias are the same, and those of what was measured, if it was.
    inherited [3, C, T, N]: what the errors of x make of the sum of magnitudes. looked: the sums, where they are known.
    """
    core, seen = cores(acc)
    group = acc.group if acc.chain is None else x.shape[-1]
    aligned, results, largest = sums(x, weight, core.columns, group, looked)
    instructions = group // core.columns

    def bound(core: TensorCore, inherited: torch.Tensor) -> torch.Tensor:
        # What x may be instead raises the largest product of an instruction, or the sum so far, by no more than is
        # inherited: all largest products together, and every sum. The sums are what the cuts before have left, and
        # later additions pass a cut on.
        grows = (1 + 2.0**-16) * (1 + accumulation.growth(x.shape[-1], acc, core))
        linear = core.alignment * (core.columns + 1) * (aligned + instructions * inherited)
        linear = linear.add_(core.result * (results + instructions * inherited)).mul_(grows)
        count, ulp = grid.small(largest + inherited + linear, quantum_bits(core))
        return torch.minimum(linear, count.mul_(ulp).mul_(2))

    hard = bound(core, inherited[HARD])
    return hard, hard if seen == core and acc.chain is None else bound(seen, inherited[SHARP])


def quantum_bits(core: TensorCore) -> int:
    """Of a number, so many bits are no finer than the coarsest quantum that it is cut at."""
    return 2 - math.frexp(max(core.alignment, core.result))[1]


def is_followed(acc: Accumulator) -> bool:
    """Whether every bit that is cut is known."""
    core = acc.chain or acc.inside
    return core is not None and core.exactly


def follow(
    x: torch.Tensor, uncertain: torch.Tensor, weight: Weight, off: torch.Tensor, acc: Accumulator
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what comes out, how much further than `off` it may be from there), each [C, T, N], of an accumulator that is
    followed: x [C, T, K] times the weight [C, N, K], instruction by instruction.

    uncertain: bool [C, T, K], elements of x that may be others. off: [C, T, N], how far that may move any sum so far.
    An instruction's cuts depend on the power of two of its largest addend, and that is mostly the same wherever the
    sum is within what it may be: then the same bits are cut of the same products.
    """
    result, moved = torch.zeros_like(off), torch.zeros_like(off)
    core = _core(acc)
    at_once = max(1, _PIECE[x.device.type] // (x.shape[0] * x.shape[1] * core.columns))
    for first in range(0, off.shape[-1], at_once):
        rows = slice(first, first + at_once)
        chain = _Chain(core, off[..., rows] * (1 + 2.0**-40))
        total, further = torch.zeros_like(off[..., rows]), torch.zeros_like(off[..., rows])
        for column in range(0, x.shape[-1], core.columns):
            part = slice(column, column + core.columns)
            products = x[:, :, None, part] * weight.value[:, None, rows, part]
            chain.add(products, uncertain[..., part].sum(-1, keepdim=True))
            if acc.chain is None and part.stop % acc.group == 0:  # added to the others, to nearest
                total = formats.round_to(total + chain.sum, "float32")
                further += chain.further + torch.where(chain.wide > 0, 2.0**-23 * (total.abs() + chain.wide), 0.0)
                chain = _Chain(core, chain.off)
        result[..., rows], moved[..., rows] = (chain.sum, chain.further) if acc.chain is not None else (total, further)
    return result, moved


class _Chain:
    """A sum [C, T, N] that instructions make, one after the other."""

    def __init__(self, core: TensorCore, off: torch.Tensor) -> None:
        self.core, self.off = core, off
        self._moves = bool(off.any())
        self.sum = torch.zeros_like(off)
        self.further = torch.zeros_like(off)
        """What cuts may differ in, where the products do by `off`."""

    @property
    def wide(self) -> torch.Tensor:
        """How far the sum may be elsewhere."""
        return self.off + self.further

    def add(self, products: torch.Tensor, uncertain: torch.Tensor) -> None:
        """products [C, T, N, columns], so many of which may be others: [C, T, 1]."""
        core, size = self.core, self.sum.abs()
        top = products.abs().amax(-1)
        quantum = core.alignment * _power_below(torch.maximum(top, size))
        inverse = 1 / quantum
        cut = (products * inverse.unsqueeze(-1)).trunc_().sum(-1)
        exact = cut.add_((self.sum * inverse).trunc_()).mul_(quantum)
        step = core.result * _power_below(exact.abs())
        self.sum = (exact / step).trunc_().mul_(step)
        if self._moves:
            self._differ(size, top, exact.abs(), uncertain)

    def _differ(self, size: torch.Tensor, top: torch.Tensor, exact: torch.Tensor, uncertain: torch.Tensor) -> None:
        """Two numbers within d of each other, cut towards 0 at one quantum, are within d and one quantum, and equal if
        no multiple of it lies between. Where the quantum may differ too the larger one counts, for each addend.

        size, top: of the sum so far, and of the largest product. exact: of what comes out before it is cut.
        """
        core, wide = self.core, self.wide
        may_be = torch.where(uncertain > 0, wide, 0.0)
        most = _power_below(torch.maximum(top + may_be, size + wide))
        same = most == _power_below(torch.maximum(top - may_be, size - wide).clamp(min=0.0))
        quantum = core.alignment * most
        # The sum so far has no bit below `result` times its own power of two: it is not cut where it is the largest.
        kept = (size - wide >= most) & (core.result >= core.alignment)
        more = torch.where(same, uncertain, core.columns) * quantum
        more += torch.where(same & (kept | _alike(size, wide, quantum)), 0.0, quantum)
        wide = wide + more
        step = core.result * _power_below(exact + wide)
        whole = same & (step <= quantum)  # a multiple of the step already
        apart = core.result * _power_below((exact - wide).clamp(min=0.0)) != step
        more += torch.where(whole | (_alike(exact, wide, step) & ~apart), 0.0, 2 * step)
        self.further = self.further + torch.where(self.wide > 0, more, 0.0)


def _alike(size: torch.Tensor, wide: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """bool: a number of this size, or one within `wide` of it, is cut to the same multiple of the step."""
    return (size >= wide) & (((size - wide) / step).floor() == ((size + wide) / step).floor())


def _power_below(size: torch.Tensor) -> torch.Tensor:
    """The power of two at or below each number; a tiny one below 2**-600."""
    return ((size.clamp(min=2.0**-600).view(torch.int64) >> 52) << 52).view(torch.float64)


def sums(
    x: torch.Tensor, weight: Weight, columns: int, group: int, looked: Sums | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(sum over all instructions of a bound on the largest addend, sum of |result|, largest of either), [C, T, N]."""
    aligned, top_x = tops(x, weight, columns)
    largest = top_x.unsqueeze(-1) * weight.top.unsqueeze(-2)
    if looked is not None:
        return aligned.add_(looked.inner), looked.inner + looked.last, torch.maximum(largest, looked.top)
    results = torch.zeros_like(aligned)
    rows = max(1, _PIECE[x.device.type] * columns // x.numel())
    for first in range(0, aligned.shape[-1], rows):
        part = slice(first, first + rows)
        steps = block_sums(x, weight.value[:, part], columns)
        parts = steps.view(len(steps), -1, group // columns, *steps.shape[2:])
        for last, following in itertools.pairwise(parts.unbind(2)):
            following += last
        inner, last, top = _sizes(parts)
        results[..., part] = inner + last
        aligned[..., part] += inner
        largest[..., part] = torch.maximum(largest[..., part], top)
    return aligned, results, largest


def tops(x: torch.Tensor, weight: Weight, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum over all instructions of a bound on the largest product [C, T, N], the largest magnitude of each row of x
    [C, T])."""
    top_x = formats.grouped(x.abs(), columns).amax(-1)
    return top_x @ weight.tops(columns).mT, top_x.amax(-1)


def _sizes(sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the magnitudes of sums [C, groups, instructions, T, N], which may be changed: the sum of all but each group's
    last, the sum of these, and the largest of all."""
    if sums.is_cuda:  # where a norm is one pass over what is far larger than a cache
        norm = torch.linalg.vector_norm
        return norm(sums[:, :, :-1], 1, (1, 2)), norm(sums[:, :, -1], 1, 1), norm(sums, math.inf, (1, 2))
    sums.abs_()
    return sums[:, :, :-1].sum((1, 2)), sums[:, :, -1].sum(1), sums.amax((1, 2))


def overflows(size: torch.Tensor, largest: float, weight: Weight, acc: Accumulator) -> torch.Tensor | None:
    """bool [C, T, N] or [C, T, 1], or None for nowhere: some of a group's products may pass the largest float32 before
    their scale, however small that is. size [C, T, K]: the largest magnitudes that x may have; largest: of these."""
    if largest <= _MAX / (formats.E2M1_MAX * acc.group):
        return None
    size = size.nan_to_num(0.0, 0.0, 0.0)
    groups = formats.grouped(size, acc.group).sum(-1)
    possible = (formats.E2M1_MAX * groups > _MAX).any(-1, keepdim=True)
    if weight.scale is None or not bool(possible.any()):
        return possible
    codes = formats.grouped(weight.magnitude, acc.group) / weight.scale.unsqueeze(-1)
    return block_sums(size, codes.flatten(-2), acc.group).amax(1) > _MAX * (1 - 2.0**-20)


def cores(acc: Accumulator) -> tuple[TensorCore, TensorCore]:
    """What is declared, and what was measured if anything was."""
    core = _core(acc)
    return core, core if acc.measured is None else _core(acc.measured)


def _core(acc: Accumulator) -> TensorCore:
    core = acc.chain or acc.inside
    assert core is not None
    return core
