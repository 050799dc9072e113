"""How large the partial sums of a dot product are, over the declared orders of additions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from oracles.numerics import Accumulator

_STEP = 16
"""Columns that are added in order before a partial sum is looked at, at most (but whole groups); twice as many where
lanes or splits make the sums smaller, and so the look less urgent."""
_ALIGNED = 32
"""The same for truncation: products that a tensor core aligns to the largest of them and cuts there, at most."""
_TILE = 32
"""Columns that may be added apart, in two lanes, before they join the accumulator (AMX)."""
_PIECE = 1 << 18
"""Partial sums that are held at a time, 2 MiB: what a core's cache holds."""
_CALL = 1 << 14
"""Elements below which a call costs more than its work; cumsum is slow but one call."""
_FEW = 16
"""One element in so many is few: these are then looked at one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialSums:
    """Over the partial sums s_k of the declared orders, the largest of each, [C, T, N].

    total: the sum of s_k^2, or for an accumulator that truncates of what each cut is relative to. largest: max |s_k|.
    """

    total: torch.Tensor
    largest: torch.Tensor

    def raise_to(self, total: torch.Tensor, largest: torch.Tensor) -> None:
        """Another order: keep the larger of each."""
        torch.maximum(self.total, total, out=self.total)
        torch.maximum(self.largest, largest, out=self.largest)

    def part(self, experts: slice, rows: slice) -> PartialSums:
        """A view of some experts and rows of w."""
        return PartialSums(total=self.total[experts, :, rows], largest=self.largest[experts, :, rows])


def bound(
    x: torch.Tensor, w: torch.Tensor, acc: Accumulator, grown: torch.Tensor, asked: torch.Tensor | None = None
) -> PartialSums:
    """Of x [C, T, K] times w [C, N, K]. grown [C, T, N]: a bound on every partial sum of any order.

    asked: bool [C, T, N], where to look. If that is at few places, `grown` has to do elsewhere (and only to nearest:
    None asks everywhere).
    """
    places = None if asked is None else asked.nonzero()
    if places is None or len(places) * _FEW > grown.numel():
        sums = PartialSums(total=torch.zeros_like(grown), largest=torch.zeros_like(grown))
        _look(_Matrices(x, w), sums, acc)
        return sums
    columns = x.shape[-1]
    additions = 2 * columns // acc.group * (1 + acc.product_roundings)
    sums = PartialSums(total=additions * grown.square(), largest=grown.clone())
    at_once = max(1, _PIECE * _STEP // columns)
    for start in range(0, len(places), at_once):
        expert, token, row = places[start : start + at_once].unbind(1)
        found = PartialSums(total=grown.new_zeros(len(expert), 1, 1), largest=grown.new_zeros(len(expert), 1, 1))
        _look(_Products(x[expert, token] * w[expert, row]), found, acc)
        sums.total[expert, token, row] = found.total.flatten()
        sums.largest[expert, token, row] = found.largest.flatten()
    return sums


def block_sums(x: torch.Tensor, w: torch.Tensor, step: int) -> torch.Tensor:
    """[C, K / step, T, N]: the products of x [C, T, K] and w [C, N, K] summed over each run of `step` columns."""
    return _blocks(x, step) @ _blocks(w, step).mT


class _Operands(Protocol):
    """A set of dot products, C times T times N of them, of K columns."""

    @property
    def columns(self) -> int: ...

    def steps(self, columns: slice, step: int, lanes: int, group: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[C, steps, T, N]: sums of the products in each step, lane after lane, and of their magnitudes; None for the
        latter when a step is one group, which is added exactly."""

    def squares(self) -> torch.Tensor:
        """[C, T, N]: the sum of the squared products."""

    def pieces(self, steps: int) -> Iterator[tuple[_Operands, slice, slice]]:
        """Parts with about _PIECE partial sums, and the experts and rows that they are."""


@dataclass(frozen=True, slots=True)
class _Matrices:
    """All products of x [C, T, K] and w [C, N, K]."""

    x: torch.Tensor
    w: torch.Tensor

    @property
    def columns(self) -> int:
        return self.x.shape[-1]

    def steps(self, columns: slice, step: int, lanes: int, group: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, w = (_blocks(value[..., columns], step, lanes, group) for value in (self.x, self.w))
        return x @ w.mT, x.abs() @ w.abs().mT if step > group else None

    def squares(self) -> torch.Tensor:
        return self.x.square() @ self.w.square().mT

    def pieces(self, steps: int) -> Iterator[tuple[_Operands, slice, slice]]:
        (experts, tokens, _), rows = self.x.shape, self.w.shape[1]
        together = max(1, _PIECE // (tokens * rows * steps))
        part = rows if together > 1 else max(1, _PIECE // (tokens * steps))
        for first, row in itertools.product(range(0, experts, together), range(0, rows, part)):
            some, those = slice(first, first + together), slice(row, row + part)
            yield _Matrices(self.x[some], self.w[some, those]), some, those


@dataclass(frozen=True, slots=True)
class _Products:
    """Some dot products, given by their products [C, K]; T = N = 1."""

    value: torch.Tensor

    @property
    def columns(self) -> int:
        return self.value.shape[-1]

    def steps(self, columns: slice, step: int, lanes: int, group: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        places = self.value[:, columns].reshape(len(self.value), -1, step // group, lanes, group)

        def added(value: torch.Tensor) -> torch.Tensor:
            return value.sum((2, 4)).mT.reshape(len(value), -1, 1, 1)

        return added(places), added(places.abs()) if step > group else None

    def squares(self) -> torch.Tensor:
        return self.value.square().sum(-1)[:, None, None]

    def pieces(self, steps: int) -> Iterator[tuple[_Operands, slice, slice]]:
        del steps  # there are few
        yield self, slice(None), slice(None)


def _look(operands: _Operands, sums: PartialSums, acc: Accumulator) -> None:
    tiles = torch.zeros_like(sums.total)
    for lanes in acc.lanes:
        orders = _Orders.of(operands.columns, lanes, acc)
        for piece, experts, rows in operands.pieces(operands.columns // orders.step):
            part = sums.part(experts, rows)
            orders.look(piece, part)
            if lanes == 2:
                # Each 32 columns from 0: no sum in a lane passes the bound of its step. In a tile there is one more
                # addition of two lanes, and one to the accumulator: one in 32 of those in order.
                tile = piece.steps(slice(None), _TILE, 1, _TILE)[0].abs()
                tiles[experts, :, rows] = (tile if orders.truncates else tile.square()).sum(1)
                part.raise_to(part.total, tile.amax(1))
    if 2 in acc.lanes:
        sums.total.mul_(1 + 1 / _TILE).add_(tiles)
    if acc.product_roundings:
        sums.total.add_(operands.squares(), alpha=acc.product_roundings * acc.group)


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

    def look(self, operands: _Operands, sums: PartialSums) -> None:
        """Raise `sums` to those of the operands."""
        total, largest, start = torch.zeros_like(sums.total), torch.zeros_like(sums.total), None
        if self.main:
            products, inside = operands.steps(slice(0, self.main), self.step, self.lanes, self.group)
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
        rest = operands.columns - self.main
        if rest:
            step = _step(rest, self.group, _STEP)
            products, inside = operands.steps(slice(self.main, None), step, 1, self.group)
            _, each = _walk(products, inside, 1, start)
            total, largest = total + self._added(each, step), torch.maximum(largest, each.amax(1))
        sums.raise_to(total, largest)

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
    if products.numel() < _CALL:
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


def _blocks(value: torch.Tensor, step: int, lanes: int = 1, group: int = 1) -> torch.Tensor:
    """[C, T, K] -> [C, K / step, T, step]: runs of `step` columns, of the first of the lanes, then of the second,
    and so on."""
    experts, tokens, columns = value.shape
    places = value.reshape(experts, tokens, -1, step // group, lanes, group)  # step of the lane, group, lane, place
    return places.permute(0, 4, 2, 1, 3, 5).reshape(experts, columns // step, tokens, step)
