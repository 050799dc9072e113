"""How wrong values relate to right ones: 0 instead, twice as large, another row's, in other columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oracles.enclosure import FINITE, Enclosure
from oracles.problem import Problem

SAME = 2.0**-6
"""Relative to the largest value of the row: two bfloat16 ulps, which a sum of two rounded values may be off."""

FEW = 4
"""Fewer values than this have a factor in common by chance."""

ROWS = 64
"""Wrong rows that are compared with all others."""


@dataclass(frozen=True)
class Relation:
    """words: as in "the wrong values are ...". kind: the class of mistake that it points to."""

    words: str
    kind: str


def relation(output: torch.Tensor, bad: torch.Tensor, right: Enclosure, problem: Problem) -> Relation | None:
    """What all wrong values (bool [M, H] `bad`) of an answer [M, H] have in common; None when that is nothing."""
    got, center = output.double(), torch.where(right.kinds == FINITE, right.center, torch.nan)
    wrong = got[bad]
    poison = problem.scenario.execution.poison
    if poison and bool((output.contiguous().view(torch.uint8).view(*output.shape, -1)[bad] == poison).all()):
        return Relation(f"what memory was filled with, byte {poison:#04x}", "memory")
    if bool((wrong == 0).all()):
        return Relation("0", "routing")
    if bool((~wrong.isfinite()).all()):
        return Relation("NaN" if bool(wrong.isnan().all()) else "not finite", "non-finite")
    if not bool(center[bad].isfinite().all() & wrong.isfinite().all()):
        return None
    return _factor(got, center, bad) or _moved(got, center, bad)


def _factor(got: torch.Tensor, center: torch.Tensor, bad: torch.Tensor) -> Relation | None:
    """One factor on all wrong values, of which there are some."""
    largest = (center * bad).abs().argmax()
    if int(bad.sum()) < FEW or center.flatten()[largest] == 0:
        return None
    factor = float(got.flatten()[largest] / center.flatten()[largest])
    size = (center.abs() * bad).amax(1, keepdim=True).expand_as(center)
    if abs(factor - 1) <= SAME or bool(((got - factor * center).abs() > SAME * abs(factor) * size)[bad].any()):
        return None
    return Relation(f"{factor:.4g} times the right ones", "routing")


def _moved(got: torch.Tensor, center: torch.Tensor, bad: torch.Tensor) -> Relation | None:
    """Another row's values, or the row's own in other columns."""
    rows = bad.any(1).nonzero().flatten()[:ROWS]
    size = center[rows].abs().amax(1, keepdim=True)

    def close(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        return ((found - expected).abs() <= SAME * size).all(1)

    if bool(close(got[rows], center[rows]).any()):
        return None
    others = [close(got[rows], center[other].expand(len(rows), -1)) for other in range(min(len(center), ROWS))]
    if bool(torch.stack(others).any(0).all()):
        return Relation("those of other rows", "routing")
    ordered = close(got[rows].sort(-1).values, center[rows].sort(-1).values)
    return Relation("the right ones in other columns", "layout") if bool(ordered.all()) else None
