"""All that is asked of a GEMM's partial sums, in one pass over its operands: a kernel of Triton, on a GPU.

There are K / 16 sums for each element of the result. Written out, as they are elsewhere (`oracles.tensor_core`,
`oracles.partial_sums`), they take some twenty passes over memory; here none of them leaves its registers. Additions in
float64 have another order, and so may differ in their last places: the reference's own arithmetic is in the radii.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oracles import kernels
from oracles.numerics import Accumulator

LARGE = 1 << 16
"""Products from which the kernel is used; see `kernels.LARGE`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Of x [C, T, K] times w [C, N, K], added group by group, and inside a group instruction by instruction.

    All float64 [C, T, N]. result: the product. inner, last: the sum over all groups of |sum so far| after each of a
    group's instructions but the last, and after the last. top: the largest of all these. square, largest: the sum of
    squares of the sums of groups 0 to g over all g, and the largest of their magnitudes. The largest are
    rounded up, by less than 2**-20 of themselves.
    """

    result: torch.Tensor
    inner: torch.Tensor
    last: torch.Tensor
    top: torch.Tensor
    square: torch.Tensor
    largest: torch.Tensor


def look(x: torch.Tensor, w: torch.Tensor, acc: Accumulator) -> Sums | None:
    """The sums of float64 x [C, T, K] and w [C, N, K], float64 or float32; None where they are few, in other orders, or
    on no GPU."""
    size = x.numel() * w.shape[1]
    if not x.is_cuda or size < LARGE or not _in_order(acc) or not kernels.usable():
        return None
    from oracles import one_pass_triton  # of a package that comes with torch for CUDA alone

    assert acc.inside is not None
    out = [x.new_empty(*x.shape[:2], w.shape[1]) for _ in range(6)]
    one_pass_triton.launch(x.contiguous(), w.contiguous(), out, acc.inside.columns, acc.group // acc.inside.columns)
    result, inner, last, top, square, largest = out
    return Sums(result=result, inner=inner, last=last, top=top, square=square, largest=largest)


def _in_order(acc: Accumulator) -> bool:
    """Whether groups of a tensor core's instructions are added, in order only. The kernel adds 16 columns at a time."""
    core = acc.inside if acc.chain is None else None
    return core is not None and core.columns == 16 and acc.lanes == acc.splits == (1,)
