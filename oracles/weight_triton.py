"""The kernel of `oracles.weight`. Float64 products go to the tensor cores of a GPU that has such (SM80 and later)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from oracles import formats

_TOKENS, _ROWS, _WARPS, _STAGES = 32, 64, 4, 3
"""Of five tiles the quickest on an H200: 60 TFLOP/s of magnitudes, where torch makes 57 of float64 that are there."""


def products(x: torch.Tensor, w: torch.Tensor, *, squares: bool) -> torch.Tensor:
    """float64 [C, T, N]: the sums over K of x |w|, or of x w^2, for float64 x [C, T, K] and w [C, N, K], float64 or
    float32, K a multiple of 32."""
    (experts, tokens, columns), rows = x.shape, w.shape[1]
    out = x.new_empty(experts, tokens, rows)
    tile = min(_TOKENS, max(16, triton.next_power_of_2(tokens)))
    # Tiles of the same rows run side by side: they read the same part of w.
    grid = (triton.cdiv(tokens, tile), triton.cdiv(rows, _ROWS), experts)
    _products[grid](
        x.contiguous(),
        w.contiguous(),
        out,
        tokens,
        rows,
        columns,
        squares=squares,
        tile_tokens=tile,
        tile_rows=_ROWS,
        tile_columns=formats.GROUP,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return out


@triton.jit
def _products(
    x: tl.tensor,
    w: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    squares: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
) -> None:
    token = tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens).to(tl.int64)[:, None]
    row = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows).to(tl.int64)[None, :]
    expert = tl.program_id(2).to(tl.int64)
    column = tl.arange(0, tile_columns)
    some = x + (expert * tokens + token) * columns + column[None, :]
    those = w + (expert * rows + row) * columns + column[:, None]
    total = tl.zeros((tile_tokens, tile_rows), tl.float64)
    for _ in range(0, columns, tile_columns):
        left = tl.load(some, mask=token < tokens, other=0.0)
        right = tl.load(those, mask=row < rows, other=0.0).to(tl.float64)
        right = right * right if squares else tl.abs(right)
        total = tl.dot(left, right, acc=total, out_dtype=tl.float64)
        some += tile_columns
        those += tile_columns
    tl.store(out + (expert * tokens + token) * rows + row, total, mask=(token < tokens) & (row < rows))
