"""Layouts of Marlin's W4A16 MoE GEMM with MXFP4 weights: conversions with their inverses.

Written from the layout's definition, in plain tensor operations that run anywhere. The weight is repacked by the
package's own kernel, as its users do; `repack_weight` says what that must do. K is a GEMM's depth, N its width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oracles.formats import pack, unpack
from oracles.problem import Problem

TILE_ROWS, TILE_COLUMNS = 64, 16
"""Rows (of N) and columns (of K) that are moved together."""


def repack_weight(packed: torch.Tensor) -> torch.Tensor:
    """Canonical codes, uint8 [E, N, K/2], as the kernel reads them: int32 [E, K/16, 2N].

    A word holds the eight codes of one thread of a tensor core's warp: rows n and n + 8, columns k, k + 1, k + 8 and
    k + 9. A thread's four words, 16 rows apart, lie side by side. Raises `ValueError` when N is not a multiple of 64 or
    K one of 16.
    """
    experts, rows, half = packed.shape
    if rows % TILE_ROWS or 2 * half % TILE_COLUMNS:
        raise ValueError(f"weight.shape = {list(packed.shape)}: N must be a multiple of 64 and K/2 a multiple of 8")
    # [E, row / 64, row / 16, row + 8?, row, column / 16, column + 8?, column / 2, odd column?]
    codes = unpack(packed).view(experts, rows // TILE_ROWS, 4, 2, 8, 2 * half // TILE_COLUMNS, 2, 4, 2)
    words = codes.permute(0, 5, 1, 4, 7, 2, 8, 3, 6).reshape(experts, 2 * half // TILE_COLUMNS, 2 * rows, 8)
    return pack(words.contiguous()).view(torch.int32).squeeze(-1)


def unpack_weight(weight: torch.Tensor) -> torch.Tensor:
    """Inverse of `repack_weight`: int32 [E, K/16, 2N] -> uint8 [E, N, K/2]."""
    experts, tiles, words = weight.shape
    codes = unpack(weight.contiguous().view(torch.uint8)).view(experts, tiles, words // 128, 8, 4, 4, 2, 2, 2)
    split = codes.permute(0, 2, 5, 7, 3, 1, 8, 4, 6)
    return pack(split.reshape(experts, words // 2, tiles * TILE_COLUMNS))


def permute_scale(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes [E, N, K/32] -> [E, K/32, N], in the order in which a warp's threads read them.

    The eight rows n, n + 8, ... n + 56 of one thread lie side by side, with the middle two of each four exchanged: the
    kernel makes bytes 0 and 2 into bfloat16 together. Raises `ValueError` when N is not a multiple of 64.
    """
    experts, rows, groups = scale.shape
    if rows % TILE_ROWS:
        raise ValueError(f"scale.shape = {list(scale.shape)}: N must be a multiple of 64")
    split = scale.mT.reshape(experts, groups, rows // TILE_ROWS, 2, 2, 2, 8)
    return split.permute(0, 1, 2, 6, 3, 5, 4).reshape(experts, groups, rows)


def unpermute_scale(scale: torch.Tensor) -> torch.Tensor:
    """Inverse of `permute_scale`: [E, K/32, N] -> [E, N, K/32]."""
    experts, groups, rows = scale.shape
    split = scale.reshape(experts, groups, rows // TILE_ROWS, 8, 2, 2, 2).permute(0, 1, 2, 4, 6, 5, 3)
    return split.reshape(experts, groups, rows).mT.contiguous()


def permute_bias(bias: torch.Tensor) -> torch.Tensor:
    """[E, N], in each 32 the pairs (n, n + 1), (n + 8, n + 9), ... that a thread adds lie side by side."""
    return bias.view(len(bias), -1, 4, 4, 2).transpose(2, 3).reshape(bias.shape)


def unpermute_bias(bias: torch.Tensor) -> torch.Tensor:
    """`permute_bias` is its own inverse."""
    return permute_bias(bias)


def padded(intermediate: int) -> int:
    """The width to which I is padded with zeros, for H that is a multiple of 128."""
    return -(-intermediate // TILE_ROWS) * TILE_ROWS


def pad_rows(rows: torch.Tensor, intermediate: int) -> torch.Tensor:
    """[E, 2I, ...] -> the same with each half padded by zeros to `intermediate` rows."""
    halves = rows.view(rows.shape[0], 2, -1, *rows.shape[2:])
    whole = halves.new_zeros(rows.shape[0], 2, intermediate, *rows.shape[2:])
    whole[:, :, : halves.shape[2]] = halves
    return whole.flatten(1, 2)


def pad_columns(columns: torch.Tensor, width: int) -> torch.Tensor:
    """[..., w] -> [..., width], with zeros."""
    return torch.nn.functional.pad(columns, (0, width - columns.shape[-1]))


@dataclass(frozen=True, kw_only=True)
class Operands:
    """A rank's weights in the checkpoint's order, I padded with zeros to `intermediate`. A bias is None where there is
    none; that of w2 belongs to moe_tp_rank 0 alone."""

    intermediate: int
    w13: torch.Tensor
    w13_scale: torch.Tensor
    w13_bias: torch.Tensor | None
    w2: torch.Tensor
    w2_scale: torch.Tensor
    w2_bias: torch.Tensor | None

    @classmethod
    def of(cls, problem: Problem, there: Callable[[torch.Tensor], torch.Tensor]) -> Operands:
        """there: brings a tensor to the device."""
        inner = padded(problem.intermediate)
        w2_bias = problem.w2_bias if problem.scenario.layer.moe_tp_rank == 0 else None
        return cls(
            intermediate=inner,
            w13=pad_rows(there(problem.w13), inner),
            w13_scale=pad_rows(there(problem.w13_scale), inner),
            w13_bias=None if problem.w13_bias is None else pad_rows(there(problem.w13_bias), inner),
            w2=pad_columns(there(problem.w2), inner // 2),
            w2_scale=pad_columns(there(problem.w2_scale), inner // 32),
            w2_bias=None if w2_bias is None else there(w2_bias),
        )
