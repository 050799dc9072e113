"""What the fingerprint reads from the machine."""

from __future__ import annotations

import pytest

from difftest.fingerprint import driver_version


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12", "535.183.01"),
        ("GCC version:  gcc version 13.3.0", None),
    ],
)
def test_the_driver_is_told_by_its_own_number(told: str, version: str | None) -> None:
    assert driver_version(told) == version
