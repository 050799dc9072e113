"""Properties of a problem's rows and columns that a kernel may trip over, each as the rows or columns that have it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracles.problem import Problem

TILES = (16, 32, 64, 128, 256)
"""Sizes of a kernel's tiles, of rows or of columns."""

EXPERTS = 64
"""Experts that are named one by one: the rank's first ones."""


@dataclass(frozen=True)
class Mark:
    """words: what the rows (or columns) are, to go on after "rows". where: bool [M] (or [H]), the ones that have it."""

    words: str
    where: torch.Tensor


def row_marks(problem: Problem) -> Iterator[Mark]:
    """Marks of the M rows, the plainest first; those that no row has are left out."""
    for mark in (*_routing(problem), *_values(problem), *_places(problem)):
        if bool(mark.where.any()):
            yield mark


def column_marks(problem: Problem) -> Iterator[Mark]:
    """Marks of the H columns of the output, the plainest first; those that no column has are left out."""
    hidden = problem.hidden
    column = torch.arange(hidden, device=problem.hidden_states.device)
    marks = [Mark("the first column", column == 0), Mark("the last column", column == hidden - 1)]
    marks += [Mark(f"the first {tile} columns", column < tile) for tile in TILES if hidden > tile]
    marks += [Mark(f"columns from {tile} on", column >= tile) for tile in TILES if hidden > tile]
    marks += [
        Mark(f"the last columns, {hidden - hidden % tile} on", column >= hidden - hidden % tile)
        for tile in TILES[1:]
        if hidden > tile and hidden % tile
    ]
    marks += [Mark(f"the last {tile} columns", column >= hidden - tile) for tile in TILES if hidden > tile]
    marks += [Mark("the first half", column < hidden // 2), Mark("the second half", column >= hidden // 2)]
    marks += [Mark("even columns", column % 2 == 0), Mark("odd columns", column % 2 == 1)]
    scale = problem.w2_scale.amax((0, 2)), problem.w2_scale.amin((0, 2))
    marks += [Mark(f"columns with a w2 scale byte {words}", where) for words, where in _extremes(*scale)]
    for mark in marks:
        if bool(mark.where.any()):
            yield mark


def _routing(problem: Problem) -> Iterator[Mark]:
    ids, local = problem.topk_ids, problem.local_ids
    mine, masked = local >= 0, ids < 0
    foreign = ~mine & ~masked
    slots = ids.shape[1]
    padding = torch.arange(len(ids), device=ids.device) >= problem.scenario.shape.tokens
    yield Mark("that pad the batch", padding)
    yield Mark("that pad the batch not", ~padding & padding.any())
    yield Mark("with a masked slot", masked.any(1) & ~padding)
    yield Mark("without a masked slot", ~masked.any(1) & masked.any())
    yield Mark("with an expert of another rank", foreign.any(1))
    yield Mark("with experts of this rank alone", (mine | masked).all(1) & mine.any(1) & foreign.any())
    yield Mark("without an expert of this rank", ~mine.any(1) & ~padding)
    equal = (ids[:, :, None] == ids[:, None, :]) & ~masked[:, :, None]
    twice = (equal.sum((1, 2)) > (~masked).sum(1)) & ~padding
    yield Mark("with the same expert twice", twice)
    yield Mark("with an expert of this rank", mine.any(1))
    last = problem.experts_local - 1
    if last > 0:
        yield Mark("of the rank's last expert", (local == last).any(1))
        yield Mark("of the rank's first expert", (local == 0).any(1))
        yield Mark("of any but the rank's first expert", (local > 0).any(1))
        yield Mark("of any but the rank's last expert", (mine & (local < last)).any(1))
        for expert in range(1, min(last, EXPERTS)):
            yield Mark(f"of expert {problem.first_expert + expert}", (local == expert).any(1))
    if slots > 1:
        yield Mark("with two experts of this rank", mine.sum(1) > 1)
        for slot in range(slots):
            yield Mark(f"with slot {slot} on this rank", mine[:, slot])
    place, count = _places_in_expert(problem)
    yield Mark("whose expert has other rows too", (mine & (count > 1)).any(1))
    yield Mark("alone with their expert", (mine & (count == 1)).any(1))
    yield Mark("that are not the first of their expert", (mine & (place > 0)).any(1))
    yield Mark("that are the last of their expert", (mine & (place == count - 1)).any(1))
    for tile in (8, *TILES):
        yield Mark(f"after the first {tile} of their expert", (mine & (place >= tile)).any(1))
        full = count - count % tile
        yield Mark(f"in the last, partial tile of {tile} of their expert", (mine & (place >= full) & (full > 0)).any(1))


def _places_in_expert(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """(place, count), int64 [M, K]: of each pair among those of its expert, in the order of tokens; and how many."""
    local = problem.local_ids
    flat = local.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat + 1, minlength=problem.experts_local + 1)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(flat)
    place[order] = torch.arange(len(flat), device=flat.device) - starts[flat[order] + 1]
    return place.view_as(local), counts[flat + 1].view_as(local)


def _values(problem: Problem) -> Iterator[Mark]:
    x, weights, mine = problem.hidden_states, problem.topk_weights, problem.local_ids >= 0
    padding = torch.arange(len(x), device=x.device) >= problem.scenario.shape.tokens
    dirty = ~x.isfinite().all(1) & ~padding
    yield Mark("with NaN or infinity in x", dirty)
    yield Mark("with NaN or infinity in a router weight", ~weights.isfinite().all(1))
    tainted = _experts(problem, dirty)
    shares = (mine & tainted[problem.local_ids.clamp(min=0)]).any(1) & ~dirty
    yield Mark("that share an expert with a row that has NaN or infinity in x", shares)
    beside = torch.zeros_like(dirty)
    beside[1:] |= dirty[:-1]
    beside[:-1] |= dirty[1:]
    yield Mark("beside a row with NaN or infinity in x", beside & ~dirty)
    yield Mark("without NaN and infinity", ~dirty & dirty.any())
    yield Mark("with a router weight of 0", ((weights == 0) & mine).any(1))
    yield Mark("with a negative router weight", ((weights < 0) & mine).any(1))
    yield Mark("with a router weight above 1", ((weights > 1) & mine).any(1))
    size = x.abs().float()
    yield Mark("with a very large x", ((size > 1e30) & (size < torch.inf)).any(1))
    yield Mark("with a subnormal x", ((size < 2.0**-126) & (size > 0)).any(1))
    high = torch.maximum(problem.w13_scale.amax((1, 2)), problem.w2_scale.amax((1, 2)))
    low = torch.minimum(problem.w13_scale.amin((1, 2)), problem.w2_scale.amin((1, 2)))
    for words, experts in _extremes(high, low):
        rows = (mine & experts[problem.local_ids.clamp(min=0)]).any(1)
        yield Mark(f"of an expert with a scale byte {words}", rows)


def _experts(problem: Problem, rows: torch.Tensor) -> torch.Tensor:
    """bool [E_local]: experts of any of the `rows`, bool [M]."""
    used = torch.zeros(problem.experts_local + 1, dtype=torch.bool, device=rows.device)
    used[problem.local_ids[rows].flatten() + 1] = True
    return used[1:]


def _extremes(high: torch.Tensor, low: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Where the largest and the smallest scale byte are at the ends of E8M0."""
    yield "0xFF (NaN)", high == 0xFF
    yield "0xFE (the largest)", high == 0xFE
    yield "above 0xF0", high > 0xF0
    yield "0x00 (the smallest)", low == 0
    yield "below 0x10", low < 0x10


def _places(problem: Problem) -> Iterator[Mark]:
    rows = problem.tokens
    row = torch.arange(rows, device=problem.hidden_states.device)
    yield Mark("0, the first", row == 0)
    yield Mark(f"{rows - 1}, the last", row == rows - 1)
    tiles = [tile for tile in TILES if rows > tile]
    for tile in tiles:
        yield Mark(f"from {tile} on", row >= tile)
        yield Mark(f"before {tile}", row < tile)
    for tile in tiles:
        yield Mark(f"in the last, partial tile of {tile}", row >= rows - rows % tile)
    yield Mark("from 1 on", row > 0)
    yield Mark("with an even number", row % 2 == 0)
    yield Mark("with an odd number", row % 2 == 1)
