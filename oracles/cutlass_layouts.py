"""Weight layouts of FlashInfer's SM90 mixed-input GEMM (bfloat16 x MXFP4): conversions with their inverses.

Written from the layout's definition, in plain tensor operations that run anywhere. The oracle uses the package's own
helpers, as its users do; these say what those helpers must do, and bring a kernel's bytes back to canonical ones.
"""

from __future__ import annotations

import functools

import torch

from oracles.formats import GROUP

BLOCK_ROWS, BLOCK_COLUMNS = 16, 64
"""The weight's bytes move within blocks of 16 rows and 64 columns."""
FOLD_ROWS, FOLD_COLUMNS = 64, 128
"""The scale's bytes of 64 rows and 128 columns, 256 of them, lie side by side."""

_SLICES, _GROUPS = FOLD_ROWS // 16, FOLD_COLUMNS // GROUP

# A 32-bit word of the kernel's holds eight codes of one thread: rows r and r + 8, columns c, c + 1, c + 8 and c + 9.
# Codes of even columns are in its low half, those of odd columns in the same places of the high half, so that one
# shift and one mask turn two codes into two bfloat16. By (c + 8?, r + 8?): the places of a code's bits 0 to 3.
_PLACES = {
    (False, False): (6, 7, 8, 15),
    (False, True): (3, 4, 5, 12),
    (True, False): (0, 1, 2, 9),
    (True, True): (13, 10, 11, 14),
}


def swap_halves(rows: torch.Tensor) -> torch.Tensor:
    """[gate; up] <-> [up; gate]: [E, 2I, ...] with its two halves exchanged; its own inverse."""
    gate, up = rows.chunk(2, dim=1)
    return torch.cat((up, gate), dim=1)


def interleave_weight(packed: torch.Tensor) -> torch.Tensor:
    """Canonical codes, uint8 [E, N, K/2], as the kernel reads them: the same shape.

    Raises `ValueError` when N is not a multiple of 16 or K one of 64.
    """
    experts, rows, half = _checked_weight(packed)
    # [E, block, row + 8?, row, block, column / 32, column / 16 odd?, column + 8?, pair] of two codes a byte
    split = packed.view(experts, rows // BLOCK_ROWS, 2, 8, 2 * half // BLOCK_COLUMNS, 2, 2, 2, 4)
    # A word's four bytes last, ordered by (column + 8?, row + 8?). The parity of column / 16 becomes "row + 8".
    words = split.permute(0, 1, 6, 3, 4, 5, 8, 7, 2)
    return _permuted_bits(words, _bit_order(inverse=False)).reshape(experts, rows, half)


def deinterleave_weight(weight: torch.Tensor) -> torch.Tensor:
    """Inverse of `interleave_weight`."""
    experts, rows, half = _checked_weight(weight)
    words = weight.reshape(experts, rows // BLOCK_ROWS, 2, 8, 2 * half // BLOCK_COLUMNS, 2, 4, 2, 2)
    split = _permuted_bits(words, _bit_order(inverse=True)).permute(0, 1, 8, 3, 4, 5, 2, 7, 6)
    return split.reshape(experts, rows, half)


def fold_scale(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes [E, N, K/32] -> [E, N/64, K/128, 16, 16].

    Of a block of 64 rows and 4 groups, byte [i, 4 s + g] belongs to row 16 s + i and group g. Raises `ValueError` when
    N is not a multiple of 64 or K one of 128.
    """
    experts, rows, groups = scale.shape
    if rows % FOLD_ROWS or groups % _GROUPS:
        raise ValueError(f"scale.shape = {list(scale.shape)}: N must be a multiple of 64 and K/32 a multiple of 4")
    split = scale.reshape(experts, rows // FOLD_ROWS, _SLICES, 16, groups // _GROUPS, _GROUPS)
    return split.permute(0, 1, 4, 3, 2, 5).reshape(experts, rows // FOLD_ROWS, groups // _GROUPS, 16, 16)


def unfold_scale(folded: torch.Tensor) -> torch.Tensor:
    """Inverse of `fold_scale`: [E, N/64, K/128, 16, 16] -> [E, N, K/32]."""
    experts, blocks, columns = folded.shape[:3]
    split = folded.reshape(experts, blocks, columns, 16, _SLICES, _GROUPS).permute(0, 1, 4, 3, 2, 5)
    return split.reshape(experts, blocks * FOLD_ROWS, columns * _GROUPS)


def swizzle_scale(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes [..., N, G] -> [..., pad128(N) * pad4(G)], the 128x4 layout of block-scaled tensor cores.

    Tiles of 128 rows by 4 groups, those of the same rows side by side; a tile is 32 lines of rows r, r + 32, r + 64 and
    r + 96, 4 groups each. Rows and groups beyond the scale's own are 0.
    """
    *batch, rows, groups = scale.shape
    padded = torch.nn.functional.pad(scale, (0, -groups % 4, 0, -rows % 128))
    tiles = padded.view(*batch, padded.shape[-2] // 128, 4, 32, padded.shape[-1] // 4, 4)
    last = tiles.dim()
    order = (*range(last - 5), last - 5, last - 2, last - 3, last - 4, last - 1)
    return tiles.permute(order).flatten(-5)


def unswizzle_scale(swizzled: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """Inverse of `swizzle_scale`: [..., rows, groups]."""
    across, down = -(-groups // 4), -(-rows // 128)
    tiles = swizzled.view(*swizzled.shape[:-1], down, across, 32, 4, 4)
    last = tiles.dim()
    order = (*range(last - 5), last - 5, last - 2, last - 3, last - 4, last - 1)
    return tiles.permute(order).reshape(*swizzled.shape[:-1], down * 128, across * 4)[..., :rows, :groups]


def _checked_weight(packed: torch.Tensor) -> tuple[int, int, int]:
    experts, rows, half = packed.shape
    if rows % BLOCK_ROWS or 2 * half % BLOCK_COLUMNS:
        raise ValueError(f"weight.shape = {list(packed.shape)}: N must be a multiple of 16 and K/2 a multiple of 32")
    return experts, rows, half


@functools.cache
def _bit_order(*, inverse: bool) -> tuple[int, ...]:
    """For each of a word's 32 bits, lowest first, the bit that it is taken from."""
    taken = [0] * 32
    for (far_column, far_row), places in _PLACES.items():
        byte = 2 * far_column + far_row
        for bit, place in enumerate(places):
            for odd in range(2):
                source, target = 8 * byte + 4 * odd + bit, place + 16 * odd
                taken[source if inverse else target] = target if inverse else source
    return tuple(taken)


def _permuted_bits(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """uint8 [..., 2, 2], four bytes a word, with its bits reordered."""
    shifts = torch.arange(8, dtype=torch.uint8, device=words.device)
    bits = ((words.unsqueeze(-1) >> shifts) & 1).flatten(-3)
    moved = bits[..., torch.tensor(order, device=words.device)].view(*words.shape, 8)
    return (moved << shifts).sum(-1, dtype=torch.uint8)
