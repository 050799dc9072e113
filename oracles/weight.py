"""A dequantised weight, and the products with it that bounds are made of."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from oracles import formats, kernels


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A dequantised weight of some experts and what does not depend on the tokens.

    held: float64 or float32 [C, N, K], finite; a GPU reads the shorter one in half the time. unit: float64 [C, N], a
    power of two of which every element of the row is a multiple. spread: magnitudes other than 0 may differ by more
    than 2**16. subnormal: some may be below 2**-126. kinds: uint8 [C, N, K], None when all are FINITE (`held` is 0
    elsewhere). scale: float64 [C, N, K / 32] block scales, where sums of products are scaled and not the weights, else
    None. runs: float64 [C, N, K / 16], the largest magnitude of each `formats.RUN` of a row, where it came with `held`.
    """

    held: torch.Tensor
    unit: torch.Tensor
    spread: bool
    subnormal: bool
    kinds: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    runs: torch.Tensor | None = None

    @functools.cached_property
    def value(self) -> torch.Tensor:
        """float64 [C, N, K]."""
        return self.held.double()

    @functools.cached_property
    def magnitude(self) -> torch.Tensor:
        """float64 [C, N, K]."""
        return self.value.abs()

    @functools.cached_property
    def top(self) -> torch.Tensor:
        """float64 [C, N]: the largest magnitude of each row."""
        return (self.magnitude if self.runs is None else self.runs).amax(-1)

    def tops(self, columns: int) -> torch.Tensor:
        """float64 [C, N, K / columns]: the largest magnitude of each so many columns of a row."""
        if self.runs is None or columns % formats.RUN:
            return formats.grouped(self.magnitude, columns).amax(-1)
        return self.runs if columns == formats.RUN else formats.grouped(self.runs, columns // formats.RUN).amax(-1)

    def magnitudes(self, x: torch.Tensor) -> torch.Tensor:
        """float64 [C, T, N]: the sum over K of x |w|, for x [C, T, K]."""
        if kernels.worth(self.held):
            from oracles import weight_triton  # of a package that comes with torch for CUDA alone

            return weight_triton.products(x, self.held, squares=False)
        return x @ self.magnitude.mT

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        """float64 [C, T, N]: the sum over K of (x w)^2, for x [C, T, K]."""
        if kernels.worth(self.held):
            from oracles import weight_triton  # of a package that comes with torch for CUDA alone

            return weight_triton.products(x.square(), self.held, squares=True)
        value = self.value
        if kernels.look_first(self.held):
            columns = x.any(1).any(0).nonzero().squeeze(1)
            if 2 * len(columns) < x.shape[-1]:
                x, value = x[..., columns], value[..., columns]
        return x.square() @ value.square().mT

    def magnitudes_of_few(self, x: torch.Tensor) -> torch.Tensor | None:
        """`magnitudes` for an x that is 0 in most rows; None where it is in all."""
        if not kernels.look_first(self.held):
            return self.magnitudes(x)
        live = x.any(-1)
        most = int(live.sum(-1).max()) if live.numel() else 0
        if not most:
            return None
        if 2 * most > x.shape[1]:
            return self.magnitudes(x)
        rows = live.sort(-1, descending=True).indices[:, :most].unsqueeze(-1)
        product = self.magnitudes(x.gather(1, rows.expand(-1, -1, x.shape[-1])))
        whole = product.new_zeros(*x.shape[:2], product.shape[-1])
        return whole.scatter_(1, rows.expand(-1, -1, product.shape[-1]), product)
