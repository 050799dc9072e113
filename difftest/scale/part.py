"""`--shard 3/64`: which of a campaign's shards one machine runs. No torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from difftest.options import SHARDS, InvalidOption, shards_of


@dataclass(frozen=True)
class Part:
    """The `number`-th of `of` parts, counted from 1: every `of`-th shard."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `InvalidOption`."""
        read = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        part = cls(int(read[1]), int(read[2])) if read else cls(0, 0)
        if not 1 <= part.number <= part.of <= SHARDS:
            raise InvalidOption(f"--shard {text}: must be K/N with 1 <= K <= N <= {SHARDS}, such as 3/{SHARDS}")
        return part

    def shards(self, examples: int) -> list[int]:
        """Of a campaign of `examples` scenarios; none when it has fewer shards than parts."""
        return list(range(self.number - 1, shards_of(examples), self.of))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def words(shards: Collection[int]) -> str:
    """Shards as `--shard` names them alone: `3/64, 7/64 to 9/64`; by number alone those of a campaign by time."""
    return ", ".join(_range(first, last) for first, last in _runs(sorted(shards)))


def _range(first: int, last: int) -> str:
    ends = [f"{shard + 1}/{SHARDS}" if shard < SHARDS else str(shard + 1) for shard in dict.fromkeys((first, last))]
    return " to ".join(ends)


def _runs(shards: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of neighbours."""
    run: list[int] = []
    for shard in shards:
        if run and shard != run[-1] + 1:
            yield run[0], run[-1]
            run = []
        run.append(shard)
    if run:
        yield run[0], run[-1]
