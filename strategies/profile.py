"""How large the drawn scenarios are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Limits of the free shapes, and how often a model's shape is drawn instead.

    tokens: largest M. width: H and the rank's I are at most this, or one unit more (at least two units).
    experts_local: (experts of a rank, weight), ascending. free: weight of a free shape; small and real: weights of
    each model's shrunken form and of its real rank shape. Their sum over all models stays below 256.
    """

    name: str
    tokens: int
    width: int
    experts_local: tuple[tuple[int, int], ...]
    free: int
    small: int
    real: int


_FEW_EXPERTS = ((1, 2), (2, 4), (3, 1), (4, 5), (5, 1), (6, 1), (7, 1), (8, 3))
_MORE_EXPERTS = (*_FEW_EXPERTS, (16, 1), (28, 1))

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="quick", tokens=40, width=160, experts_local=_FEW_EXPERTS, free=1, small=0, real=0),
        Profile(name="default", tokens=130, width=512, experts_local=_MORE_EXPERTS, free=200, small=1, real=0),
        # One in ten is small or free, so that a shrinker has somewhere to go.
        Profile(name="real", tokens=130, width=512, experts_local=_MORE_EXPERTS, free=8, small=1, real=18),
    )
}
"""quick: for a CPU, dozens of scenarios a second. default: tile boundaries up to 512. real: rank shapes of models."""
