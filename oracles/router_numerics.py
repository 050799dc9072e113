"""What a router declares: the roundings of its scores, and what it promises of a NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oracles.numerics import Transcendental

_PRECISE = Transcendental()


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterNumerics:
    """The recipe, in the order of the computation.

    scores: dtype that a score is rounded to, and a weight that is not divided by the sum ("logits": that of the logits;
    "either": float32 or that). A sum with the bias, of a group's best two and of the chosen weights, and the division,
    are float32.
    transcendental: accuracy of exp and of the division.
    nan: where a NaN score ranks. "last": behind every number, "first": before every number, "any": no promise.
    """

    scores: Literal["float32", "logits", "either"] = "float32"
    transcendental: Transcendental = _PRECISE
    nan: Literal["last", "first", "any"] = "any"

    @property
    def unit_roundoffs(self) -> tuple[float, float]:
        """u of the sum of the chosen weights, and of the division by it."""
        return (2.0**-24, 2.0**-24)

    @property
    def calibrated(self) -> bool:
        """Nothing here is left to measure: IEEE operations only."""
        return False
