"""A counter-based hash, the same on every device: where all content of a `Problem` comes from.

A value is a pure function of the key of its stream, `key(seed, stream)`, and of its place in the whole layer (expert,
row, column). So it does not depend on how large the layer is, nor on which part of it a rank holds.
"""

from __future__ import annotations

import functools
import statistics

import torch

_MASK = (1 << 64) - 1
_FACTOR = 0xD6E8FEB86659FD93  # the multiplier of "degski64", whose two rounds of xor-shift by 32 and multiply these are
_ROW, _EXPERT = 21, 42  # first bit of a place's fields; below 2**21 rows and columns no two places are the same
_TABLE_BITS = 12


def key(seed: int, stream: int) -> int:
    """64 bits that select one stream: what a number is for. seed and stream in [0, 2**32)."""
    h = (seed << 32 | stream) ^ 0x9E3779B97F4A7C15  # the all-zero key must not hash place 0 to 0
    for _ in range(3):
        h = ((h ^ (h >> 32)) * _FACTOR) & _MASK
    return h ^ (h >> 32)


def hashed(
    key: int,
    column: torch.Tensor,
    row: torch.Tensor | int = 0,
    expert: torch.Tensor | int = 0,
) -> torch.Tensor:
    """int64, all 64 bits random, in the broadcast shape of the three int64 indices."""
    h = ((row << _ROW) + (expert << _EXPERT) ^ _signed(key)) + column
    halves = h.view(torch.int32)  # in pairs: low and high, on every device that torch runs on
    low, high = halves[..., 0::2], halves[..., 1::2]
    low ^= high  # h ^= h >> 32, as unsigned numbers
    h *= _signed(_FACTOR)
    low ^= high
    h *= _signed(_FACTOR)
    low ^= high
    return h


def below(h: torch.Tensor, count: int, *, shift: int = 0) -> torch.Tensor:
    """int64 in [0, count), count < 2**31, by the 32 bits of a hash from bit `shift` on."""
    return (((h >> shift) & 0xFFFFFFFF) * count) >> 32


def normal(h: torch.Tensor) -> torch.Tensor:
    """float32, standard normal by the low 12 bits of a hash: the 4096 quantiles of (i + 1/2) / 4096."""
    return _quantiles(h.device)[h & ((1 << _TABLE_BITS) - 1)]


@functools.cache
def _quantiles(device: torch.device) -> torch.Tensor:
    size = 1 << _TABLE_BITS
    quantile = statistics.NormalDist().inv_cdf
    return torch.tensor([quantile((i + 0.5) / size) for i in range(size)], dtype=torch.float32, device=device)


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
