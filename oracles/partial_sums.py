"""How large the partial sums of a dot product are, over the declared orders of additions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracles import formats
from oracles.numerics import Accumulator
from oracles.one_pass import Sums

_STEP = 16
"""Columns that are added in order before a partial sum is looked at, at most (but whole groups); twice as many where
lanes or splits make the sums smaller, and so the look less urgent."""
_ALIGNED = 32
"""The same for truncation: products that a tensor core aligns to the largest of them and cuts there, at most."""
_TILE = 32
"""Columns that may be added apart, in two lanes, before they join the accumulator (AMX)."""
_PIECE = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Partial sums that are held at a time: 2 MiB, what a core's cache holds; 256 MiB, to keep a GPU busy."""
_CALL = 1 << 14
"""Elements below which a call costs more than its work on a CPU; cumsum is slow there but one call."""
_FEW = 16
"""One element in so many is few: these are then looked at one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialSums:
    """Over the partial sums s_k of the declared orders, the largest of each, [C, T, N].

    total: the sum of s_k^2, or for an accumulator that truncates of what each cut is relative to. largest: max |s_k|.
    """

    total: torch.Tensor
    largest: torch.Tensor

    @classmethod
    def of(cls, looked: Sums) -> PartialSums:
        """Of sums that are added in order and to nearest."""
        return cls(total=looked.square, largest=looked.largest)

    def raise_to(self, total: torch.Tensor, largest: torch.Tensor) -> None:
        """Another order: keep the larger of each."""
        torch.maximum(self.total, total, out=self.total)
        torch.maximum(self.largest, largest, out=self.largest)

    def part(self, experts: slice, rows: slice) -> PartialSums:
        """A view of some experts and rows of w."""
        return PartialSums(total=self.total[experts, :, rows], largest=self.largest[experts, :, rows])


def additions(columns: int, acc: Accumulator) -> int:
    """Of any declared order, and of the partial sums that `PartialSums.total` adds up, more than there are."""
    count = 2 * columns // acc.group * (1 + acc.product_roundings)
    # In stripes each is bounded by the spreads of all lanes, of two sums each.
    return count if acc.stripes is None else 2 * max(acc.stripes.lanes) * count


Places = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(expert, token, row) of some elements of [C, T, N], each int64 [P]."""


def few(asked: torch.Tensor) -> Places | None:
    """The places that are set in bool [C, T, N]; None when it is less work to look at all."""
    expert, token, row = asked.nonzero(as_tuple=True)
    return None if len(expert) * _FEW > asked.numel() else (expert, token, row)


def bound(x: torch.Tensor, w: torch.Tensor, acc: Accumulator) -> PartialSums:
    """Of x [C, T, K] times w [C, N, K]."""
    total = x.new_zeros(len(x), x.shape[1], w.shape[1])
    sums = PartialSums(total=total, largest=torch.zeros_like(total))
    _all_at_once(x, w, sums, acc)
    return sums


def bound_at(x: torch.Tensor, w: torch.Tensor, acc: Accumulator, places: Places) -> PartialSums:
    """The same at some places, each [P], of an accumulator that rounds to nearest."""
    expert, token, row = places
    at_once = max(1, _PIECE[x.device.type] * _STEP // x.shape[-1])
    total, largest = x.new_empty(len(expert)), x.new_empty(len(expert))
    for start in range(0, len(expert), at_once):
        part = slice(start, start + at_once)
        products = x[expert[part], token[part]] * w[expert[part], row[part]]
        total[part], largest[part] = _one_by_one(products, acc)
    return PartialSums(total=total, largest=largest)


def block_sums(x: torch.Tensor, w: torch.Tensor, step: int) -> torch.Tensor:
    """[C, K / step, T, N]: the products of x [C, T, K] and w [C, N, K] summed over each run of `step` columns."""
    experts, tokens, columns = x.shape
    if x.is_cuda:
        return _blocks(x, step) @ _blocks(w, step).mT
    out = x.new_empty(experts, columns // step, tokens, w.shape[1])
    for expert in range(experts):  # one at a time needs no copy
        first, second = (formats.grouped(value[expert], step).transpose(0, 1) for value in (x, w))
        torch.bmm(first, second.mT, out=out[expert])
    return out


def _one_by_one(products: torch.Tensor, acc: Accumulator) -> tuple[torch.Tensor, torch.Tensor]:
    """(total, largest), each [P], of products [P, K] that are added to nearest."""
    total = largest = products.new_zeros(len(products))
    for sums, rest in _every_order(products, acc):
        total = torch.maximum(total, sums.square().sum(1) + rest)
        largest = torch.maximum(largest, sums.abs().amax(1))
    if acc.product_roundings:
        total = total + acc.product_roundings * acc.group * products.square().sum(1)
    return total, largest


def _every_order(products: torch.Tensor, acc: Accumulator) -> Iterator[tuple[torch.Tensor, torch.Tensor | float]]:
    """(partial sums [P, additions], the sum of squares [P] of more) of products [P, K] in each declared order."""
    groups = formats.grouped(products, acc.group).sum(-1) if acc.group > 1 else products
    count = groups.shape[1]
    for lanes in acc.lanes:
        main = count - count % lanes
        prefix = formats.grouped(groups[:, :main], lanes).cumsum(1)
        ends = prefix[:, -1:].flatten(1)
        after = ends.sum(1, keepdim=True) + groups[:, main:].cumsum(1)
        # Of the tree in which lanes meet, the root, and the squares of the levels below: 2, 4 ... L / 2 times those of
        # the lanes, at most (Cauchy-Schwarz).
        root = ends.abs().sum(1, keepdim=True) if lanes > 1 else ends[:, :0]
        yield torch.cat((prefix.flatten(1), root, after), 1), max(0, lanes - 2) * ends.square().sum(1)
    for parts in acc.splits:
        if parts > 1 and count % parts == 0:
            prefix = groups.reshape(len(groups), parts, -1).cumsum(2)
            yield torch.cat((prefix.flatten(1), prefix[:, :, -1].cumsum(1)), 1), 0.0
    if 2 in acc.lanes and _TILE % (2 * acc.group) == 0:
        prefix = groups.reshape(len(groups), -1, _TILE // (2 * acc.group), 2).cumsum(2)
        tile = prefix[:, :, -1].sum(-1)
        yield torch.cat((prefix.flatten(1), tile, tile.cumsum(1)), 1), 0.0


def _striped(x: torch.Tensor, w: torch.Tensor, sums: PartialSums, acc: Accumulator) -> None:
    """Any cut of K into stripes. A sum inside one is a lane's sum over all of K so far, less what that was where the
    stripe begins: wherever it does, within the extremes up to here."""
    assert acc.stripes is not None
    core, run = acc.stripes.core, acc.stripes.run
    step, unit = core.columns, 2 * acc.unit_roundoff
    for lanes in acc.stripes.lanes:
        cuts = acc.stripes.cuts(lanes)
        turn = cuts // (lanes * step)
        tail = (0, -x.shape[-1] % cuts)
        x, w = torch.nn.functional.pad(x, tail), torch.nn.functional.pad(w, tail)
        for experts, rows in _pieces(sums.total.shape, x.shape[-1] // step, _PIECE[x.device.type]):
            some, those = (_instructions(value, step, lanes, run) for value in (x[experts], w[experts, rows]))
            products = some @ those.mT
            top = some.abs().amax(-1).unsqueeze(-1) * those.abs().amax(-1).unsqueeze(-2)
            shape = (len(products), lanes, -1, *products.shape[2:])
            products, top = products.view(shape), top.view(shape)
            after = products.cumsum(2)
            before = torch.cat((torch.zeros_like(after[:, :, :1]), after[:, :, :-1]), 2)
            high, low = before.cummax(2).values, before.cummin(2).values
            # An instruction aligns to the sum so far or its largest product, and cuts its result.
            aligned = torch.maximum(torch.maximum(before - low, high - before), top)
            result = torch.maximum(after - low, high - after)
            cut = core.alignment * (step + 1) * aligned.sum((1, 2)) + core.result * result.sum((1, 2))
            # Lanes meet once a stripe, in all with no more than if each turn of all lanes were one; stripes in order.
            ends = products.view(len(products), lanes, -1, turn, *products.shape[3:]).sum(3)
            joined = (lanes - 1) * ends.abs().sum((1, 2)) + ends.sum(1).cumsum(1).abs_().sum(1)
            largest = torch.maximum(aligned, result).amax(2).sum(1)
            sums.part(experts, rows).raise_to(cut / unit + joined, largest)


def _all_at_once(x: torch.Tensor, w: torch.Tensor, sums: PartialSums, acc: Accumulator) -> None:
    if acc.stripes is not None:
        _striped(x, w, sums, acc)
        return
    tiles = torch.zeros_like(sums.total)
    for lanes in acc.lanes:
        orders = _Orders.of(x.shape[-1], lanes, acc)
        for experts, rows in _pieces(sums.total.shape, x.shape[-1] // orders.step, _PIECE[x.device.type]):
            some, those, part = x[experts], w[experts, rows], sums.part(experts, rows)
            orders.look(some, those, part)
            if lanes == 2:
                # Each 32 columns from 0: no sum in a lane passes the bound of its step. In a tile there is one more
                # addition of two lanes, and one to the accumulator: one in 32 of those in order.
                tile = block_sums(some, those, _TILE).abs()
                tiles[experts, :, rows] = (tile if orders.truncates else tile.square()).sum(1)
                part.raise_to(part.total, tile.amax(1))
    if 2 in acc.lanes:
        sums.total.mul_(1 + 1 / _TILE).add_(tiles)
    if acc.product_roundings:
        sums.total.add_(x.square() @ w.square().mT, alpha=acc.product_roundings * acc.group)


def _pieces(shape: torch.Size, steps: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Parts of [C, T, N] with about `size` partial sums: whole experts, or some rows of one."""
    experts, tokens, rows = shape
    together = max(1, size // (tokens * rows * steps))
    part = rows if together > 1 else max(1, size // (tokens * steps))
    for first, row in itertools.product(range(0, experts, together), range(0, rows, part)):
        yield slice(first, first + together), slice(row, row + part)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Orders:
    """Orders of additions that look at the same sums of `step` columns of a lane.

    lanes: interleaved partial accumulators, group by group, over the first `main` columns; they meet in a balanced
    tree, and the other columns follow in order. splits, with one lane: equal ranges, whose sums are added in order.
    """

    lanes: int
    main: int
    step: int
    group: int
    splits: tuple[int, ...]
    truncates: bool

    @classmethod
    def of(cls, columns: int, lanes: int, acc: Accumulator) -> _Orders:
        truncates = acc.rounding == "truncate"
        main = columns - columns % (lanes * acc.group)
        longest = _ALIGNED if truncates else _STEP if lanes == 1 else 2 * _STEP
        splits = tuple(parts for parts in acc.splits if lanes == 1 < parts and columns % (parts * acc.group) == 0)
        # A split must not begin inside a step.
        step = _step(main // math.lcm(lanes, *splits), acc.group, longest) if main else acc.group
        return cls(lanes=lanes, main=main, step=step, group=acc.group, splits=splits, truncates=truncates)

    def look(self, x: torch.Tensor, w: torch.Tensor, sums: PartialSums) -> None:
        """Raise `sums` to those of x [C, T, K] times w [C, N, K]."""
        total, largest, start = torch.zeros_like(sums.total), torch.zeros_like(sums.total), None
        if self.main:
            products, inside = self._steps(x[..., : self.main], w[..., : self.main], self.step, self.lanes)
            for parts in self.splits:
                sums.raise_to(*self._split(products, inside, parts))
            ends, each = _walk(products, inside, self.lanes)
            total, largest, start = self._added(each, self.step), each.amax(1), ends.sum(1)
            if self.lanes > 1:
                # Level by level of the tree, squares are at most 2, 4 ... L times those of the lanes (Cauchy-Schwarz).
                size = ends.abs()
                top = size.sum(1)
                joined = self.lanes * top if self.truncates else 2 * (self.lanes - 1) * size.square().sum(1)
                total, largest = total + joined, torch.maximum(largest, top)
        rest = x.shape[-1] - self.main
        if rest:
            step = _step(rest, self.group, _STEP)
            products, inside = self._steps(x[..., self.main :], w[..., self.main :], step, 1)
            _, each = _walk(products, inside, 1, start)
            total, largest = total + self._added(each, step), torch.maximum(largest, each.amax(1))
        sums.raise_to(total, largest)

    def _steps(
        self, x: torch.Tensor, w: torch.Tensor, step: int, lanes: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[C, steps, T, N]: sums of the products in each step, lane after lane, and of their magnitudes; None for the
        latter when a step is one group, which is added exactly."""
        x, w = (_blocks(value, step, lanes, self.group) for value in (x, w))
        return x @ w.mT, x.abs() @ w.abs().mT if step > self.group else None

    def _split(
        self, products: torch.Tensor, inside: torch.Tensor | None, parts: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(total, largest) of K cut into equal parts, on copies: two steps in one, where a part has an even number."""
        step = self.step
        if inside is None or products.shape[1] % (2 * parts):
            products, inside = products.clone(), None if inside is None else inside.clone()
        else:
            products, inside, step = products[:, ::2] + products[:, 1::2], inside[:, ::2] + inside[:, 1::2], 2 * step
        ends, each = _walk(products, inside, parts)
        joined = ends.cumsum(1).abs_()
        total = self._added(each, step) + (joined if self.truncates else joined.square()).sum(1)
        return total, torch.maximum(each.amax(1), joined.amax(1))

    def _added(self, each: torch.Tensor, step: int) -> torch.Tensor:
        """[C, T, N]: what the steps [C, steps, T, N] add to `PartialSums.total`. A unit that truncates cuts each
        product, and each sum of 4 of them or more."""
        count = step // self.group
        return 1.25 * count * each.sum(1) if self.truncates else count * each.square().sum(1)


def _walk(
    products: torch.Tensor, inside: torch.Tensor | None, parts: int, start: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the parts' sums [C, parts, T, N], a bound on |s| in every step [C, steps, T, N]); changes its arguments.

    start [C, T, N]: what the only part begins with, if not 0. In a step |s| <= (|first| + |last| + inside) / 2 by the
    triangle inequality, `inside` being the sum of |p|. That bounds every sum of consecutive products of the step too,
    and so what a unit that truncates aligns to.
    """
    shape = (len(products), parts, -1, *products.shape[2:])
    prefix = products.view(shape)
    if start is not None:
        products[:, 0] += start
    if products.numel() < _CALL or products.is_cuda:
        prefix.copy_(prefix.cumsum(2))
    else:
        for last, following in itertools.pairwise(prefix.unbind(2)):
            following += last
    ends = prefix[:, :, -1].clone()
    size = products.abs_()
    if inside is None:
        return ends, size
    inside += size
    inside.view(shape)[:, :, 1:] += prefix[:, :, :-1]
    if start is not None:
        inside[:, 0] += start.abs()
    return ends, inside.mul_(0.5)


def _step(columns: int, group: int, longest: int) -> int:
    """The longest run of whole groups, a power of two of them, that divides `columns` and has at most `longest`."""
    step = group
    while 2 * step <= longest and columns % (2 * step) == 0:
        step *= 2
    return step


def _instructions(value: torch.Tensor, step: int, lanes: int, run: int) -> torch.Tensor:
    """[C, T, K] -> [C, K / step, T, step]: what lanes take that have `run` times `step` columns in turn, the first
    lane's, then the second's, and so on."""
    blocks = _blocks(value, run * step, lanes, run * step)
    experts, _, tokens, _ = blocks.shape
    return blocks.view(*blocks.shape[:3], run, step).transpose(2, 3).reshape(experts, -1, tokens, step)


def _blocks(value: torch.Tensor, step: int, lanes: int = 1, group: int = 1) -> torch.Tensor:
    """[C, T, K] -> [C, K / step, T, step]: runs of `step` columns, of the first of the lanes, then of the second,
    and so on."""
    experts, tokens, columns = value.shape
    places = value.reshape(experts, tokens, -1, step // group, lanes, group)  # step of the lane, group, lane, place
    return places.permute(0, 4, 2, 1, 3, 5).reshape(experts, columns // step, tokens, step)
