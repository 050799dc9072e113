"""What an oracle says of itself, as data: so that nobody needs its packages to know. No torch until one is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from difftest import fingerprint
from difftest.fingerprint import Fingerprint

if TYPE_CHECKING:
    from oracles.base import AnyCapability, AnyNumerics, AnyOracle


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """missing: what lacks to run it where it was asked, None when it can run. numerics: the roundings it declares.
    calibrated: when its accumulators were measured there, None when they were not. fingerprint: of the process that it
    runs in."""

    missing: str | None
    capability: AnyCapability
    numerics: AnyNumerics
    calibrated: str | None
    fingerprint: Fingerprint


def introduce(
    oracle: AnyOracle, name: str, device: str = "cpu", build: Mapping[str, str] | None = None
) -> Introduction:
    """Ask `oracle` in this process, where it would run with tensors on `device`.

    name: as the user gave it. build: see `Fingerprint`.
    """
    import torch

    from difftest import calibration
    from oracles.base import capability_of, missing_of

    missing = missing_of(oracle)
    known = None if missing else calibration.find(oracle, name, torch.device(device))
    return Introduction(
        missing=missing,
        capability=capability_of(oracle),
        numerics=oracle.numerics,
        calibrated=None if known is None else known.taken,
        fingerprint=fingerprint.take(oracle, device, build or {}),
    )
