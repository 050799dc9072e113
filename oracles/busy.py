"""Other work on a device beside a call: what a race needs that shows only where warps wait for each other."""

from __future__ import annotations

import functools

import torch

_SIZE, _PRODUCTS = 2048, 4


class Busy:
    """A stream of `device` with matrix products in it, queued anew with each call: some 0.1 ms each on an H200."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._matrix = torch.randn(_SIZE, _SIZE, dtype=torch.bfloat16, device=device)

    def queue(self) -> None:
        """Queue the products. They wait for nothing, and nothing waits for them."""
        with torch.cuda.stream(self._stream):
            for _ in range(_PRODUCTS):
                torch.mm(self._matrix, self._matrix)


@functools.cache
def on(device: torch.device) -> Busy:
    """The device's own, for as long as the process lives."""
    return Busy(device)
