"""Memory that an oracle gets is never fresh: here it is full of one byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from oracles.problem import Problem

_UNINITIALISED = {
    torch.empty,
    torch.empty_like,
    torch.empty_permuted,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
}
_LARGEST = 1 << 20  # bytes; the allocator returns larger blocks to the operating system, which hands out zeros
_COPIES = 4


class _FillUninitialised(TorchFunctionMode):
    """Every tensor that torch hands out uninitialised is filled first.

    Not a dispatch mode, which would see more: torch loads its whole compiler, for seconds, when one is first used.
    """

    def __init__(self, byte: int) -> None:
        super().__init__()
        self._byte = byte

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        result = function(*arguments, **keywords)
        fresh = function in _UNINITIALISED and keywords.get("out") is None
        if fresh and result.layout == torch.strided and result.device.type != "meta":
            result.untyped_storage().fill_(self._byte)
        return result


@contextmanager
def poisoned(byte: int, problem: Problem, device: torch.device) -> Iterator[None]:
    """While it lasts, uninitialised memory is full of `byte`.

    Certain for what `torch.empty` and its kin return to Python code. Likely, not certain, for what native code takes
    from the allocator: blocks of the sizes that an MoE layer needs are filled and freed just before.
    """
    fill_free_memory(byte, problem, device)
    with _FillUninitialised(byte):
        yield


def fill_free_memory(byte: int, problem: Problem, device: torch.device) -> None:
    """Fill and free blocks of the sizes of the layer's output and intermediates, so that the allocator of `device`
    reuses them."""
    tokens, hidden, inner, top_k = problem.tokens, problem.hidden, problem.intermediate, problem.topk_ids.shape[1]
    elements = {tokens * hidden, tokens * top_k * hidden, tokens * top_k * 2 * inner, tokens * top_k * inner}
    sizes = sorted(size for size in {count * width for count in elements for width in (2, 4)} if size <= _LARGEST)
    blocks = [torch.full((size,), byte, dtype=torch.uint8, device=device) for size in sizes for _ in range(_COPIES)]
    blocks.reverse()  # the smallest are freed last, and so are reused first
    del blocks
