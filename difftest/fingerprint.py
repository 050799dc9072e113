"""Where a case was found: everything that may change an answer. No torch until one is taken."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oracles.base import AnyOracle


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """An environment.

    arch: the machine architecture ("x86_64"). isa: the vector instructions that torch's CPU kernels use. packages:
    versions of the distributions that the candidate comes from. radius_model, lam: version of the radius model of
    the reference and its lambda, by which the outcome was judged.
    """

    difftest: str
    python: str
    torch: str
    platform: str
    arch: str
    cpu: str
    isa: str
    packages: Mapping[str, str]
    radius_model: int
    lam: float


def take(candidate: AnyOracle) -> Fingerprint:
    """The fingerprint of this process for `candidate`."""
    import torch

    from oracles.enclosure import LAMBDA, RADIUS_MODEL

    return Fingerprint(
        difftest=importlib.metadata.version("difftest"),
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        arch=platform.machine(),
        cpu=cpu_model(),
        isa=torch.backends.cpu.get_cpu_capability(),
        packages=packages_of(candidate),
        radius_model=RADIUS_MODEL,
        lam=LAMBDA,
    )


def packages_of(candidate: AnyOracle) -> dict[str, str]:
    """Versions of the distributions that the oracle names in `packages`, or else of the one that defines it."""
    named: Iterable[str] | None = getattr(candidate, "packages", None)
    if named is None:
        module = type(candidate).__module__.partition(".")[0]
        named = importlib.metadata.packages_distributions().get(module, ())
    versions = {}
    for name in sorted(set(named)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """What the machine calls its processor."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor()
