"""What the uncertainty of x becomes in a GEMM. Derived in docs/enclosures.md, *Inherited errors*."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from oracles import formats
from oracles.ball import HARD, SHARP
from oracles.enclosure import LAMBDA
from oracles.partial_sums import block_sums
from oracles.weight import Weight


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Which errors of x [C, T, K] are one and the same variable.

    repeated: bool [C, T, K], elements that come from the same numbers as another one of the row: their errors are
    equal and add linearly. block: elements that share a block scale move together (1: none do).
    """

    repeated: torch.Tensor
    block: int = 1


@dataclass(frozen=True, kw_only=True)
class Inherited:
    """Of x times the weight [C, N, K].

    sums: [C, P, T, N], sums of magnitudes: of the products, and where x is not exact (P = 4) of those with its hard,
    its sharp and its bias radius. squares: [C, T, N], of the squares of sharp ones over groups that are independent;
    None where nothing is known to be.
    """

    sums: torch.Tensor
    squares: torch.Tensor | None

    @property
    def total(self) -> torch.Tensor:
        """[C, T, N]: the sum of magnitudes."""
        return self.sums[:, 0]

    @functools.cached_property
    def radius(self) -> torch.Tensor:
        """[3, C, T, N]. Hard and bias: the sum. Sharp: the smaller of the sum and lambda times the L2 norm over
        independent groups (Hoeffding), round a mean that the bias bounds."""
        if self.sums.shape[1] == 1:
            return self.total.new_zeros(3, *self.total.shape)
        _, hard, sharp, bias = self.sums.unbind(1)
        if self.squares is None:
            return torch.stack((hard, sharp, sharp))
        return torch.stack((hard, torch.minimum(sharp, LAMBDA * self.squares.sqrt() + bias), bias))

    @functools.cached_property
    def grown(self) -> torch.Tensor:
        """[C, T, N]: what no sum of any products of x, as it may be, passes."""
        return self.total if self.sums.shape[1] == 1 else self.total + self.sums[:, 1 + HARD]


def inherit(center: torch.Tensor, radius: torch.Tensor, weight: Weight, correlated: Correlation | None) -> Inherited:
    """For x [C, T, K] with a radius [3, C, T, K]. correlated: None, nothing is known to be independent."""
    if formats.is_zero(radius):
        return Inherited(sums=weight.magnitudes(center.abs()).unsqueeze(1), squares=None)
    # In one go: the weight is what is large, and read once.
    factors = center.new_empty(len(center), 4, *center.shape[1:])
    torch.abs(center, out=factors[:, 0])
    factors[:, 1:] = radius.transpose(0, 1)
    sums = weight.magnitudes(factors.flatten(1, 2)).view(*factors.shape[:3], -1)
    if correlated is None:
        return Inherited(sums=sums, squares=None)
    alone = torch.where(correlated.repeated, 0.0, radius[SHARP])
    if correlated.block == 1:
        squares = weight.squares(alone)
    else:
        squares = block_sums(alone, weight.magnitude, correlated.block).square().sum(1)
    together = weight.magnitudes_of_few(torch.where(correlated.repeated, radius[SHARP], 0.0))
    return Inherited(sums=sums, squares=squares if together is None else squares + together.square())
