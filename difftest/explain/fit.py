"""Whether a hypothesis gives the candidate's answers.

A recipe has an enclosure of its own, and the candidate's answer must be in it. A fault has an answer only, made by an
implementation with roundings of its own. Where that answer is right, the candidate's must be right too. Where it is
wrong, the two must be as near as two right implementations of the *faulty* layer would be:
|a - b| <= r_a + r_b + |ref_a - ref_b|, with radii about a center that nobody encloses. They are taken from the right
layer, the largest of the row (a fault may move a column's error to another column), scaled as the fault scales the
row, and one ulp of the output is added where the faulty value is rounded anew. Where the right layer is exact and the
faulty one need not be, a rounding of the intermediate is the least that may differ. This is generous, so that the
fault must also be much nearer to the candidate than the right answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from difftest.explain.answers import Answers
from difftest.explain.recipes import Recipe
from difftest.judging.compare import wrong
from difftest.judging.outcome import Bucket
from oracles.enclosure import FINITE, Enclosure

NEEDED = 1 / 16
"""Share of the radius of a recipe that merely allows the errors, which the largest of them must use: random roundings
use a ninth (`LAMBDA`) on average."""

GROSS = 1 / 8
"""Errors of more than this share of a row's largest value are no matter of roundings, whatever room a recipe leaves."""

NEARER = 1 / 2
"""The errors to the fault's answer sum to less than this share of those to the right one."""

_ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""One ulp relative to the value, at most. Subnormal numbers have a larger one; 2**-24 is float16's."""
_SMALLEST = 2.0**-24

_INTERMEDIATE = 2.0**-7
"""One ulp of a bfloat16 intermediate relative to it, at most."""


@dataclass(frozen=True)
class Fit:
    """predicts: the right answer is not what the hypothesis gives, where the candidate is wrong. changed: elements of
    the right answer that the hypothesis changes."""

    predicts: bool
    changed: int


def recipe_fit(mine: Answers, recipe: Recipe) -> Fit | None:
    """How the recipe fits what the candidate answered; None when it does not."""
    bad = mine.wrong(0)
    other = recipe.enclose(mine.exchanges[0].problem, mine.numerics)
    output = mine.exchanges[0].judged
    if not bool(bad.any()) or bool(wrong(output, other).any()):
        return None
    taken = wrong(mine.enclosed(0).center, other)
    if 2 * int((bad & taken).sum()) >= int(bad.sum()):
        return Fit(predicts=True, changed=int(taken.sum()))
    error = (output.double() - other.center).abs()
    size = torch.where(other.center.isfinite(), other.center.abs(), 0.0).amax(1, keepdim=True)
    if bool((bad & (error > GROSS * size)).any()):
        return None
    used = torch.where(bad & (other.sharp > 0), error / other.sharp, 0.0)
    return Fit(predicts=False, changed=int(bad.sum())) if float(used.max()) >= NEEDED else None


def recipe_allows(mine: Answers, recipe: Recipe) -> bool:
    """Whether the recipe holds the candidate's first answer; True where it gave none."""
    if not mine.exchanges:
        return True
    exchange = mine.exchanges[0]
    return not bool(wrong(exchange.judged, recipe.enclose(exchange.problem, mine.numerics)).any())


def fault_fit(mine: Answers, theirs: Answers, bucket: Bucket) -> Fit | None:
    """How the fault's answers fit the candidate's; None when they do not, or when they do not show the bucket."""
    if not theirs.shows(bucket) or not alike(mine, theirs):
        return None
    return Fit(predicts=True, changed=int(theirs.wrong(0).sum()) if theirs.exchanges else 0)


def alike(mine: Answers, theirs: Answers) -> bool:
    """Whether two oracles gave the same answers to the questions that both were asked, and showed the same races and
    breaches that are not about values."""
    if mine.breaches != theirs.breaches or bool(mine.exchanges) != bool(theirs.exchanges):
        return False
    if mine.is_race:
        return _same_sets(mine, theirs)
    return all(
        _close(first.output, second.output, mine.enclosed(position), mine.enclosed(position, theirs.numerics))
        for position, (first, second) in enumerate(zip(mine.exchanges, theirs.exchanges, strict=False))
    )


_DISTINCT = 8
"""Different answers of a race that are compared."""


def _same_sets(mine: Answers, theirs: Answers) -> bool:
    """Whether each answer of one race is among the other's."""
    right = mine.enclosed(0), mine.enclosed(0, theirs.numerics)
    first, second = _distinct(mine), _distinct(theirs)
    return all(any(_close(a, b, *right) for b in second) for a in first) and all(
        any(_close(a, b, *right) for a in first) for b in second
    )


def _distinct(answers: Answers) -> list[torch.Tensor]:
    """The different answers to the first question."""
    problem = answers.exchanges[0].problem
    found: list[torch.Tensor] = []
    for exchange in answers.exchanges:
        if exchange.problem is problem and len(found) < _DISTINCT:
            new = all(not torch.equal(exchange.output.nan_to_num(), output.nan_to_num()) for output in found)
            found += [exchange.output] if new else []
    return found


def _close(mine: torch.Tensor, theirs: torch.Tensor, own: Enclosure, twins: Enclosure) -> bool:
    """Whether two answers are those of one faulty layer. own, twins: what is right for each of the two."""
    if mine.shape != theirs.shape:
        return False
    a, b = mine.double(), theirs.double()
    changed, bad = wrong(theirs, twins), wrong(mine, own)
    if bool((bad & ~changed).any()):
        return False
    finite = a.isfinite() & b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    if bool((changed & ~finite & ~same).any()):
        return False
    compared = changed & finite & ~same
    if not bool(compared.any()):
        return True
    comparable = (own.kinds == FINITE) & (twins.kinds == FINITE)
    radius = torch.where(comparable, own.sharp + twins.sharp + (own.center - twins.center).abs(), 0.0)
    expected = torch.where(comparable, twins.center, 0.0)
    size = torch.where(b.isfinite(), b.abs(), 0.0).amax(1, keepdim=True)
    scale = (size / expected.abs().amax(1, keepdim=True).clamp(min=1e-300)).clamp(1.0, 2.0**16)
    widest = radius.amax(1, keepdim=True) * scale
    widest = torch.where(widest > 0, widest, _INTERMEDIATE * size)
    dtype = str(mine.dtype).removeprefix("torch.")
    allowed = widest + _ULP[dtype] * b.abs() + _SMALLEST * (dtype == "float16")
    error = torch.where(compared, (a - b).abs(), 0.0)
    if bool((error > allowed).any()):
        return False
    away = torch.where(compared & comparable, (a - own.center).abs(), 0.0)
    return bool(torch.where(comparable, error, 0.0).sum() <= NEARER * away.sum())
