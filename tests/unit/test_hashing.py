"""The hash behind all content: pinned, and random enough for the statistics that build on it."""

from __future__ import annotations

import hashlib
import math

import torch

from oracles import hashing


def places(columns: int, rows: int, experts: int) -> torch.Tensor:
    arange = torch.arange
    return hashing.hashed(hashing.key(7, 3), arange(columns), arange(rows)[:, None], arange(experts)[:, None, None])


def signs(h: torch.Tensor) -> torch.Tensor:
    """float32 [..., 64]: the bits as -1 and 1."""
    return (((h[..., None] >> torch.arange(64)) & 1) * 2 - 1).float()


def in_plain_integers(key: int, column: int, row: int, expert: int) -> int:
    mask = (1 << 64) - 1
    h = (((row << 21) + (expert << 42)) ^ key) + column & mask
    for _ in range(2):
        h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93 & mask
    return h ^ (h >> 32)


def test_equals_its_definition_in_plain_integers() -> None:
    h = places(5, 3, 2)
    for column, row, expert in ((0, 0, 0), (4, 0, 0), (0, 2, 1), (3, 1, 1)):
        got = h[expert, row, column].item() & ((1 << 64) - 1)
        assert got == in_plain_integers(hashing.key(7, 3), column, row, expert)


def test_keys_are_pinned() -> None:
    assert hashing.key(0, 0) == 0xD6BE2295FEC1B7EE
    assert hashing.key(2**32 - 1, 104) == 0xAA37DB553A779FF6


def test_table_of_normal_quantiles_is_pinned() -> None:
    table = hashing.normal(torch.arange(4096))
    assert hashlib.sha256(table.numpy().tobytes()).hexdigest()[:16] == "6b47c2782a4c85c8"
    assert torch.equal(table, -table.flip(0))
    assert abs(table.double().square().mean().item() - 1) < 1e-3


def test_every_bit_is_random_along_each_axis() -> None:
    bits = signs(places(64, 64, 16))
    count = bits[..., 0].numel()
    limit = 5.0  # sigmas; some 1,000 statistics
    assert bits.mean((0, 1, 2)).abs().max() * math.sqrt(count) < limit
    for axis in range(3):
        size = bits.shape[axis]
        for lag in (1, 2, 4, 8):
            pairs = bits.narrow(axis, lag, size - lag) * bits.narrow(axis, 0, size - lag)
            assert pairs.mean((0, 1, 2)).abs().max() * math.sqrt(pairs[..., 0].numel()) < limit


def test_bits_of_one_hash_and_of_neighbours_are_unrelated() -> None:
    bits = signs(places(64, 64, 16))
    flat = bits.flatten(0, 2)
    within = (flat.T @ flat).fill_diagonal_(0)
    assert within.abs().max() / math.sqrt(len(flat)) < 5.5
    left, right = bits[:, :, 1:].flatten(0, 2), bits[:, :, :-1].flatten(0, 2)
    assert (left.T @ right).abs().max() / math.sqrt(len(left)) < 5.5


def test_streams_and_seeds_are_unrelated() -> None:
    column = torch.arange(1 << 14)
    first = signs(hashing.hashed(hashing.key(1, 1), column))
    for seed, stream in ((2, 1), (1, 2), (0, 0)):
        other = signs(hashing.hashed(hashing.key(seed, stream), column))
        assert (first * other).mean(0).abs().max() * math.sqrt(len(column)) < 5.0


def test_below_covers_its_range_evenly() -> None:
    h = places(64, 64, 16)
    for shift in (0, 32):
        counts = torch.bincount(hashing.below(h, 25, shift=shift).flatten(), minlength=25)
        expected = h.numel() / 25
        assert len(counts) == 25
        assert ((counts - expected).square() / expected).sum() < 60  # chi square, 24 degrees of freedom
