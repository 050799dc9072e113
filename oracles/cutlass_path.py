"""A path through `cutlass_fused_moe`: what it takes for one precision on one kind of card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from oracles.numerics import Numerics
from oracles.problem import Problem
from strategies.scenario import OutputDtype, Precision

There = Callable[[torch.Tensor], torch.Tensor]
"""Makes a contiguous tensor that is not the problem's own."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """precision, output_dtypes: what it computes. numerics: as it declares them. x_dtype, weight_dtype: as the package
    is told them. flags: keywords that choose it.

    layer: the keywords that hold weights and scales, for a problem. states: those that hold x, which a captured graph
    reads anew.
    """

    precision: Precision
    output_dtypes: frozenset[OutputDtype]
    numerics: Numerics
    x_dtype: torch.dtype
    weight_dtype: torch.dtype
    flags: Mapping[str, bool]
    layer: Callable[[Problem, There], dict[str, Any]]
    states: Callable[[Problem, There], dict[str, torch.Tensor]]
