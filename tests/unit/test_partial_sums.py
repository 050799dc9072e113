"""Bounds on partial sums against all partial sums of every declared order, one by one."""

from __future__ import annotations

import dataclasses

import pytest
import simulate
import torch
from simulate import Order, Tensor

from oracles import partial_sums
from oracles.numerics import Accumulator, Stripes, TensorCore


class Recorder(simulate.Adder):
    """Adds exactly and keeps the sum of squares and the largest of what it saw."""

    def __init__(self) -> None:
        super().__init__(bits=53, truncates=False, flush=False)
        object.__setattr__(self, "seen", [])

    def start(self, product: Tensor) -> Tensor:
        """Adding to 0 is exact."""
        return product

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        self.seen.append(a + b)  # type: ignore[attr-defined]
        return a + b

    def totals(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        together = torch.cat([torch.zeros(1, *shape), *(v.reshape(-1, *shape) for v in self.seen)])  # type: ignore[attr-defined]
        return together.square().sum(0), together.abs().amax(0)


def operands(name: str, columns: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(3, columns, generator=generator, dtype=torch.float64)
    w = torch.randn(5, columns, generator=generator, dtype=torch.float64)
    match name:
        case "positive":
            return x.abs(), w.abs()
        case "alternating":
            return x.abs() * (1 - 2 * (torch.arange(columns) % 2)), w.abs()
        case "blocks alternate":
            return x.abs() * (1 - 2 * (torch.arange(columns) // 32 % 2)), w.abs()
        case "one large pair":
            x[:, 1], x[:, -1], w[:, 1], w[:, -1] = 1e4, -1e4, 1e4, 1e4
    return x, w


ORDERS: dict[str, tuple[Accumulator, Order]] = {
    "in order": (Accumulator(), simulate.in_order),
    "2 lanes": (Accumulator(lanes=(1, 2)), simulate.lanes(2)),
    "4 lanes": (Accumulator(lanes=(1, 4)), simulate.lanes(4)),
    "2 splits": (Accumulator(splits=(1, 2)), simulate.splits(2)),
    "4 splits": (Accumulator(splits=(1, 4)), simulate.splits(4)),
    "tiles": (Accumulator(lanes=(1, 2)), simulate.tiles(32, 2)),
    "groups": (Accumulator(group=4), simulate.in_order),
    "blocks": (Accumulator(group=32), simulate.in_order),
    "16 lanes of groups": (Accumulator(group=4, lanes=(16,)), simulate.lanes(16)),
    "8 lanes of groups": (Accumulator(group=4, lanes=(8,)), simulate.lanes(8)),
}


@pytest.mark.parametrize("columns", [32, 64, 96, 160, 256])
@pytest.mark.parametrize("name", ["normal", "positive", "alternating", "blocks alternate", "one large pair"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("few", [False, True])
def test_every_declared_order_is_covered(few: bool, order: str, name: str, columns: int) -> None:
    """A group of 4 does not fill 16 lanes of an odd number of blocks: the last 32 columns follow at the end."""
    acc, run = ORDERS[order]
    x, w = operands(name, columns)
    products = (x.mT.unsqueeze(-1) * w.mT.unsqueeze(-2)).unflatten(0, (-1, acc.group)).sum(1)
    recorder = Recorder()
    run(products, recorder)
    total, largest = recorder.totals(products.shape[1:])
    if few:
        everywhere = torch.ones(1, len(x), len(w), dtype=torch.bool).nonzero(as_tuple=True)
        found = partial_sums.bound_at(x[None], w[None], acc, everywhere)
    else:
        found = partial_sums.bound(x[None], w[None], acc)
    assert bool((total.flatten() <= found.total.flatten() * (1 + 1e-9)).all())
    assert bool((largest.flatten() <= found.largest.flatten() * (1 + 1e-9)).all())


@pytest.mark.parametrize("columns", [64, 96])
@pytest.mark.parametrize("order", ORDERS)
def test_few_places_are_looked_at_more_closely(order: str, columns: int) -> None:
    acc = dataclasses.replace(ORDERS[order][0], product_roundings=1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, columns, generator=generator, dtype=torch.float64)
    w = torch.randn(2, 70, columns, generator=generator, dtype=torch.float64)
    asked = torch.zeros(2, 3, 70, dtype=torch.bool)
    asked[0, 1, 3] = asked[1, 2, 69] = True
    places = partial_sums.few(asked)
    assert places is not None
    assert partial_sums.few(torch.ones_like(asked)) is None
    dense, few = partial_sums.bound(x, w, acc), partial_sums.bound_at(x, w, acc, places)
    for name in ("total", "largest"):
        close, crude = getattr(few, name), getattr(dense, name)[places]
        assert bool((close <= crude * (1 + 1e-12)).all())
        assert bool((close >= crude * 0.05).all())


@pytest.mark.parametrize(
    "acc",
    [
        Accumulator(lanes=(1, 2, 4), splits=(1, 2, 4)),
        Accumulator(rounding="truncate", stripes=Stripes(columns=64, lanes=(2, 4))),
    ],
)
@pytest.mark.parametrize("piece", [1, 100, 3000])
def test_pieces_make_no_difference(piece: int, acc: Accumulator, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 4, 96, generator=generator, dtype=torch.float64)
    w = torch.randn(3, 10, 96, generator=generator, dtype=torch.float64)
    whole = partial_sums.bound(x, w, acc)
    monkeypatch.setitem(partial_sums._PIECE, "cpu", piece)
    cut = partial_sums.bound(x, w, acc)
    assert torch.allclose(whole.total, cut.total, rtol=1e-12)
    assert torch.allclose(whole.largest, cut.largest, rtol=1e-12)


def test_large_sums_run_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sums are made by additions in place, short ones by cumsum."""
    x, w = operands("normal", 256)
    acc = Accumulator(lanes=(1, 4), splits=(1, 2))
    short = partial_sums.bound(x[None], w[None], acc)
    monkeypatch.setattr(partial_sums, "_CALL", 0)
    long = partial_sums.bound(x[None], w[None], acc)
    assert torch.allclose(short.total, long.total, rtol=1e-12)
    assert torch.allclose(short.largest, long.largest, rtol=1e-12)


@pytest.mark.parametrize("columns", [32, 96, 256])
@pytest.mark.parametrize("name", ["normal", "positive", "alternating", "blocks alternate", "one large pair"])
@pytest.mark.parametrize("cuts", [64, 128, 1024])
@pytest.mark.parametrize(("lanes", "run"), [(2, 1), (4, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("alignment", [2.0**-23, 2.0**-25])
def test_every_stripe_is_covered(alignment: float, lanes: int, run: int, cuts: int, name: str, columns: int) -> None:
    """All that is cut: each addend of an instruction at the largest of them, and its result; and what is joined."""
    x, w = operands(name, columns)
    products = x.mT.unsqueeze(-1) * w.mT.unsqueeze(-2)
    nothing = products.new_zeros(3, 5)
    total = largest = joined = nothing
    stripes = Stripes(columns=64, lanes=(lanes,), run=run, core=TensorCore(alignment=alignment))
    for part in products.split(max(cuts, stripes.cuts(lanes))):
        ends = nothing
        for lane in range(lanes):
            start = nothing
            for block in (block for turn in part.split(16 * run)[lane::lanes] for block in turn.split(16)):
                aligned_to = torch.cat((start[None], block)).abs().amax(0)
                start = start + block.sum(0)
                total = total + (17 * alignment * aligned_to + 2.0**-23 * start.abs()) / 2.0**-23
                largest = torch.maximum(largest, torch.maximum(aligned_to, start.abs()))
            ends = ends + start
            total = total + ends.abs() * (lane > 0)
        joined = joined + ends
        total = total + joined.abs()
        largest = torch.maximum(largest, torch.maximum(ends.abs(), joined.abs()))
    acc = Accumulator(rounding="truncate", stripes=stripes)
    found = partial_sums.bound(x[None], w[None], acc)
    assert bool((total <= found.total[0] * (1 + 1e-9)).all())
    assert bool((largest <= found.largest[0] * (1 + 1e-9)).all())


def test_two_instructions_in_a_row_are_another_order() -> None:
    """The large products cancel in one warp that takes columns 0 to 31, and are two warps' where 16 are a turn."""
    x = torch.zeros(1, 1, 64, dtype=torch.float64)
    x[0, 0, 0], x[0, 0, 16], x[0, 0, 40] = 2.0**20, -(2.0**20), 1.0
    found = [
        partial_sums.bound(
            x, torch.ones_like(x), Accumulator(rounding="truncate", stripes=Stripes(columns=64, lanes=(2,), run=run))
        )
        for run in (1, 2)
    ]
    assert float(found[0].total) > 1.2 * float(found[1].total)
    assert Stripes(columns=64, lanes=(2, 4), run=2).cuts(4) == 128


def test_stripes_truncate_and_hold_whole_turns() -> None:
    with pytest.raises(ValueError, match="columns = 64: must be a multiple of lanes times 16"):
        Stripes(columns=64, lanes=(2, 3))
    with pytest.raises(ValueError, match="rounding = 'nearest': must be \"truncate\" with stripes or a chain"):
        Accumulator(stripes=Stripes(columns=64, lanes=(4,)))
    with pytest.raises(ValueError, match=r"unit_roundoff = .*: must be at least half of the core's 0.0625"):
        Accumulator(rounding="truncate", stripes=Stripes(columns=64, lanes=(4,), core=TensorCore(alignment=2.0**-4)))


def test_block_sums() -> None:
    x, w = operands("normal", 64)
    blocks = partial_sums.block_sums(x[None], w[None], 32)
    assert blocks.shape == (1, 2, 3, 5)
    assert torch.allclose(blocks.sum(1), (x @ w.mT)[None])
