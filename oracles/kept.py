"""What was made of some tensors, kept for when it is wanted again.

While a finding is shrunk, most cases have the weights of one before, and many the same rows and experts too; so have
the questions by which one of a check is explained. A result is found by what it was made from, to the bit, never by who
asks or where that lies. So no answer depends on the cases before: a candidate that writes to its tensors is asked about
other bytes from then on, and finds none of what is kept, which reaches it as a copy or not at all.

What a candidate itself makes of the weights is not kept: that is what is tested, and it may depend on more than them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")

BYTES = 1 << 28
"""That what is kept may take, and what it was made from."""
MOST = 32
"""Results that are kept: those of the last few problems."""


def same_bytes(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two tensors have the same device, dtype, shape and bits; or are both none."""
    if first is None or second is None:
        return first is second
    if (first.device, first.dtype, first.shape) != (second.device, second.dtype, second.shape):
        return False
    # A single element counts as contiguous with any stride, and is no bytes with another than 1.
    one, other = (tensor.contiguous().as_strided((tensor.numel(),), (1,)) for tensor in (first, second))
    # Words of eight bytes are compared several times as fast as bytes.
    words = all(flat.nbytes % 8 == 0 and flat.storage_offset() * flat.itemsize % 8 == 0 for flat in (one, other))
    dtype = torch.int64 if words else torch.uint8
    return torch.equal(one.view(dtype), other.view(dtype))


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A result, and what it was made from."""

    key: Hashable
    mark: int
    tensors: tuple[torch.Tensor | None, ...]
    result: Any
    size: int


class Kept:
    """Results of pure functions, those used last. asked: how often, by the name and whether it was there."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, bool]] = Counter()
        self._entries: list[_Entry] = []

    def of(self, name: str, key: Hashable, tensors: Sequence[torch.Tensor | None], make: Callable[[], _T]) -> _T:
        """`make()`, or what it gave before for the same name, key and tensors. Neither the result nor `tensors` may be
        written to from then on.

        key: all that the result depends on besides the bits of `tensors`. What would take more than a quarter of
        `BYTES` is not kept.
        """
        mark = hash((name, key))  # which tells most keys apart sooner than they do
        for place in reversed(range(len(self._entries))):
            entry = self._entries[place]
            if entry.mark == mark and entry.key == (name, key) and all(map(same_bytes, entry.tensors, tensors)):
                self._entries.append(self._entries.pop(place))
                self.asked[name, True] += 1
                found: _T = entry.result
                return found
        self.asked[name, False] += 1
        made = make()
        size = _bytes(made) + _bytes(tensors)
        if size <= BYTES // 4:
            self._entries.append(_Entry((name, key), mark, tuple(tensors), made, size))
            while len(self._entries) > MOST or sum(entry.size for entry in self._entries) > BYTES:
                del self._entries[0]
        return made

    def forget(self) -> None:
        """Keep none of what is kept, and count anew."""
        self._entries.clear()
        self.asked.clear()


def _bytes(of: object) -> int:
    """Of all tensors in it, a dataclass or a sequence of such."""
    if isinstance(of, torch.Tensor):
        return of.nbytes
    parts: Iterable[object] = ()
    if isinstance(of, tuple | list):
        parts = of
    elif dataclasses.is_dataclass(of):
        parts = vars(of).values()
    return sum(map(_bytes, parts))


KEPT = Kept()
"""This process's."""
