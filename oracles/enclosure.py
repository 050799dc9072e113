"""The set of answers that a right implementation may give, element by element."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FINITE, POS_INF, NEG_INF, NAN = 1, 2, 4, 8
"""Bits of `Enclosure.kinds`."""
ANY = FINITE | POS_INF | NEG_INF | NAN

LAMBDA = 9.0
"""Hoeffding: a sum of independent errors bounded by r_i leaves lambda * sqrt(sum r_i^2) with probability at most
2 exp(-lambda^2 / 2) = 5e-18. The budget of a campaign is 1e-6: 10^5 scenarios of 5e5 outputs, and about three
intermediate values behind each, are 2e11 such claims."""

RADIUS_MODEL = 4
"""Version of the radius model. A stored verdict names it, so that a replay judges alike or says that it cannot."""


@dataclass(frozen=True, kw_only=True)
class Enclosure:
    """What a right implementation may answer; all tensors [M, H] on the problem's device.

    center: float64, the recipe's value, rounded to the output dtype. hard, sharp: float64 radii, 0 <= sharp <= hard;
    outside `hard` is impossible under the declared Numerics, outside `sharp` implausible. kinds: uint8, the bit set of
    what the value may be: exactly FINITE means that it must be finite and inside; without FINITE it must be
    non-finite; with both, nothing is claimed.
    """

    center: torch.Tensor
    hard: torch.Tensor
    sharp: torch.Tensor
    kinds: torch.Tensor
