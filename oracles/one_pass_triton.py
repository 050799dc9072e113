"""The kernel of `oracles.one_pass`. Float64 products go to the tensor cores of a GPU that has such (SM80 and later)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_TOKENS, _ROWS, _WARPS, _STAGES = 16, 32, 2, 4
"""A tile whose six results and operands fit the registers of its warps. Of those that do the quickest on an H200."""


def launch(x: torch.Tensor, w: torch.Tensor, out: Sequence[torch.Tensor], columns: int, instructions: int) -> None:
    """Fill `out`, the fields of `one_pass.Sums` in order, for contiguous float64 x [C, T, K] and w [C, N, K], float64
    or float32. instructions: so many, of `columns` each, make a group."""
    (experts, tokens, depth), rows = x.shape, w.shape[1]
    # Tiles of the same rows run side by side: they read the same part of w, and x is what stays in the cache.
    grid = (triton.cdiv(tokens, _TOKENS), triton.cdiv(rows, _ROWS), experts)
    _sums[grid](
        x,
        w,
        *out,
        tokens,
        rows,
        depth,
        columns=columns,
        instructions=instructions,
        tile_tokens=_TOKENS,
        tile_rows=_ROWS,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )


@triton.jit
def _sums(
    x: tl.tensor,
    w: tl.tensor,
    result: tl.tensor,
    inner: tl.tensor,
    last: tl.tensor,
    top: tl.tensor,
    square: tl.tensor,
    largest: tl.tensor,
    tokens: tl.tensor,
    rows: tl.tensor,
    depth: tl.tensor,
    columns: tl.constexpr,
    instructions: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_rows: tl.constexpr,
) -> None:
    token = tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens).to(tl.int64)[:, None]
    row = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows).to(tl.int64)[None, :]
    expert = tl.program_id(2).to(tl.int64)
    column = tl.arange(0, columns)
    some = x + (expert * tokens + token) * depth + column[None, :]
    those = w + (expert * rows + row) * depth + column[:, None]
    total = tl.zeros((tile_tokens, tile_rows), tl.float64)
    of_inner, of_last, of_square = total, total, total
    of_top = tl.zeros((tile_tokens, tile_rows), tl.int32)
    of_largest = of_top
    for _ in range(0, depth, columns * instructions):
        group = tl.zeros((tile_tokens, tile_rows), tl.float64)
        for instruction in tl.static_range(instructions):
            first = tl.load(some, mask=token < tokens, other=0.0)
            second = tl.load(those, mask=row < rows, other=0.0).to(tl.float64)
            group = tl.dot(first, second, acc=group, out_dtype=tl.float64)
            size = tl.abs(group)
            of_top = tl.maximum(of_top, _upper(size))
            if instruction == instructions - 1:
                of_last += size
            else:
                of_inner += size
            some += columns
            those += columns
        total += group
        of_square += total * total
        of_largest = tl.maximum(of_largest, _upper(tl.abs(total)))
    at = (expert * tokens + token) * rows + row
    inside = (token < tokens) & (row < rows)
    tl.store(result + at, total, mask=inside)
    tl.store(inner + at, of_inner, mask=inside)
    tl.store(last + at, of_last, mask=inside)
    tl.store(top + at, _largest(of_top), mask=inside)
    tl.store(square + at, of_square, mask=inside)
    tl.store(largest + at, _largest(of_largest), mask=inside)


@triton.jit
def _upper(size: tl.tensor) -> tl.tensor:
    """int32: the upper half of a float64 that is not negative, by which such numbers are ordered. A maximum of them is
    one operation, which of float64 is six, and these would be half of all that the kernel does."""
    return (size.to(tl.int64, bitcast=True) >> 32).to(tl.int32)


@triton.jit
def _largest(upper: tl.tensor) -> tl.tensor:
    """The largest float64 with that upper half. That of 0 is 0: no sum of products of float32 is so small otherwise."""
    bits = (upper.to(tl.int64) << 32) | 0xFFFFFFFF
    return tl.where(upper == 0, 0, bits).to(tl.float64, bitcast=True)
