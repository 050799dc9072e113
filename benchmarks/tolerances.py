"""Fixed tolerances that are in use elsewhere, to show what they see beside an enclosure. Nothing else uses them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from oracles.enclosure import FINITE, Enclosure


def _within(got: torch.Tensor, expected: torch.Tensor, atol: float | torch.Tensor, rtol: float) -> torch.Tensor:
    return (got - expected).abs() <= atol + rtol * expected.abs()


TOLERANCES: dict[str, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    "0.1": lambda got, expected: bool(_within(got, expected, 0.1, 0.1).all()),
    "0.2": lambda got, expected: bool(_within(got, expected, 0.2, 0.2).all()),
    "0.15max": lambda got, expected: bool(_within(got, expected, 0.15 * expected.abs().max(), 0.1).all()),
    "cosine": lambda got, expected: _cosine(got, expected) > 0.99,
    "95%": lambda got, expected: bool(_within(got, expected, 0.01, 0.01).double().mean() >= 0.95),
}
"""rtol = atol; atol 0.15 of the largest value and rtol 0.1; cosine of the whole answer; 95 % of elements in 0.01."""


def _cosine(got: torch.Tensor, expected: torch.Tensor) -> float:
    norm = got.norm() * expected.norm()
    return float((got * expected).sum() / norm) if norm > 0 else float(bool(got.eq(expected).all()))


def passed(output: torch.Tensor, enclosure: Enclosure) -> set[str]:
    """The tolerances that accept `output`. A value that must be finite and is not, or that must not be, fails all."""
    must = enclosure.kinds == FINITE
    got = output.double()
    certain = enclosure.kinds & FINITE == 0
    if bool((must & ~got.isfinite()).any()) or bool((certain & got.isfinite()).any()):
        return set()
    if not bool(must.any()):
        return set(TOLERANCES)
    return {name for name, accepts in TOLERANCES.items() if accepts(got[must], enclosure.center[must])}
