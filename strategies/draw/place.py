"""Places in a tensor of any size."""

from __future__ import annotations

from strategies.draw.weighted import weighted

_LAST = 2**31
_EDGES = tuple(tile + offset for tile in (16, 32, 64, 128, 256, 512, 1024, 2048) for offset in (-1, 0, 1))

PLACES = weighted(
    (0, 6), (1, 5), (2, 3), (3, 3), (4, 2), (5, 2), (6, 2), (7, 2), *((edge, 1) for edge in _EDGES), (_LAST, 8)
)
"""An index along one axis, to be cut to its size: near the start, around a tile's edge, or the last."""


def cut(place: int, size: int) -> int:
    """`place` as an index below `size`."""
    return min(place, size - 1)
