"""Where a breach is: the rows and columns that carry it, and the plainest property that tells them from the others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from difftest.explain.marks import Mark, column_marks, row_marks
from oracles.enclosure import ANY, Enclosure
from oracles.problem import Problem

SHOWN = 6
"""Rows or columns that are listed one by one when nothing tells them apart."""

NEARLY = 0.9
"""From this share on it is nearly all: by chance a wrong value is a right one now and then."""

PAIRED = 30
"""Marks that are tried in pairs."""

Wrong = tuple[torch.Tensor, Enclosure, Problem]
"""An answer that is wrong: bool [M, H] where, what was allowed, and the question."""


def describe(seen: Sequence[Wrong]) -> str:
    """A few words on answers of one candidate that are wrong, the case's own first; "" when there are none.

    A property that tells bad rows from good ones may do so by chance: that counts which does in most answers.
    """
    if not seen:
        return ""
    rows, columns = [], []
    for bad, right, problem in seen:
        possible = _possible(bad, right, problem)
        rows.append(_Split(bad.any(1), possible.any(1), tuple(row_marks(problem))))
        columns.append(_Split(bad.any(0), possible.any(0), tuple(column_marks(problem))))
    text = f"{_most(rows, 'row')}, {_most(columns, 'column')}"
    bad = seen[0][0]
    inside = bad[bad.any(1)][:, bad.any(0)]
    share = float(inside.double().mean())
    return text if share > 0.5 else f"{text}; {share:.0%} of the elements there"


def is_range_of_columns(bad: torch.Tensor, right: Enclosure, problem: Problem) -> bool:
    """Whether the columns that are wrong lie together, and a part of the others is right."""
    possible = _possible(bad, right, problem).any(0)
    places = bad.any(0).nonzero().flatten()
    inside = possible[int(places[0]) : int(places[-1]) + 1]
    return bool(bad.any(0)[places[0] : places[-1] + 1][inside].double().mean() >= NEARLY) and (
        int(possible.sum()) - int(inside.sum()) > int(possible.sum()) * (1 - NEARLY)
    )


def _possible(bad: torch.Tensor, right: Enclosure, problem: Problem) -> torch.Tensor:
    """bool [M, H]: elements that are wrong, or could be and would be seen to be: something is added up there, and what
    must come out is certain."""
    certain = (right.kinds != ANY) & ((right.kinds & (right.kinds - 1)) == 0)
    return bad | (certain & (problem.local_ids >= 0).any(1)[:, None])


@dataclass(frozen=True)
class _Split:
    """bad, possible: bool [M] or [H], the ones that are wrong, and those that could be."""

    bad: torch.Tensor
    possible: torch.Tensor
    marks: tuple[Mark, ...]

    @property
    def share(self) -> float:
        """Of those that could be wrong, how many are."""
        return float(self.bad.sum() / self.possible.sum())

    def fitting(self) -> Iterator[str]:
        """Words of the marks, and of pairs of them, that hold for the bad ones alone."""
        necessary = [mark for mark in self.marks if not bool((self.bad & ~mark.where).any())]
        single = [mark for mark in necessary if self._is_bad(mark.where)]
        yield from (mark.words for mark in single)
        if not single:
            for first, second in itertools.combinations(necessary[:PAIRED], 2):
                if self._is_bad(first.where & second.where):
                    yield f"{first.words} and {second.words}"

    def _is_bad(self, where: torch.Tensor) -> bool:
        return bool(((where & self.possible) == self.bad).all())


def _most(splits: Sequence[_Split], noun: str) -> str:
    """What tells the bad ones apart in most answers."""
    partial = [split for split in splits if split.share < NEARLY]
    if 2 * len(partial) < len(splits):
        whole = sum(split.share == 1 for split in splits)
        return f"every {noun}" if 2 * whole > len(splits) else f"nearly every {noun}"
    counts: Counter[str] = Counter()
    for split in partial:
        counts.update(dict.fromkeys(split.fitting(), 1))
    if counts:
        words, count = max(counts.items(), key=lambda item: item[1])  # the first of equals is the plainest
        if 2 * count > len(partial):
            return _phrase(noun, words)
    first = partial[0]
    number, total = int(first.bad.sum()), int(first.possible.sum())
    if number <= SHOWN:
        one = "" if number == 1 else "s"
        return f"{noun}{one} {', '.join(map(str, first.bad.nonzero().flatten().tolist()))} of {len(first.bad)}"
    return f"{number} of {total} {noun}s, with nothing in common"


def _phrase(noun: str, words: str) -> str:
    return words if words.startswith(("the ", "even ", "odd ", "columns ")) else f"{noun}s {words}"
