"""Where a case was found: everything that may change an answer. No torch until one is taken."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oracles.base import AnyOracle


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """An environment.

    arch: the GPU's architecture ("sm90") for a candidate that was asked on one, else the machine's ("x86_64"). isa: the
    vector instructions that torch's CPU kernels use. packages: versions of the distributions that the candidate comes
    from. radius_model, lam: version of the radius model of the reference and its lambda, by which the outcome was
    judged. device: the GPU, its driver and CUDA's version, "" without one. build: of a private build of the package,
    its name, architecture, the sha256 of its library and of each patch; empty without one.
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
    device: str = ""
    build: Mapping[str, str] = field(default_factory=dict)


def take(candidate: AnyOracle, device: str = "cpu", build: Mapping[str, str] | None = None) -> Fingerprint:
    """The fingerprint of this process for `candidate`, with tensors on `device`."""
    import torch

    from oracles.base import runs_on
    from oracles.enclosure import LAMBDA, RADIUS_MODEL

    on_gpu = "cuda" in (runs_on(candidate), torch.device(device).type) and torch.cuda.is_available()
    return Fingerprint(
        difftest=importlib.metadata.version("difftest"),
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        arch=_gpu_arch() if on_gpu else platform.machine(),
        cpu=cpu_model(),
        isa=torch.backends.cpu.get_cpu_capability(),
        packages=packages_of(candidate),
        radius_model=RADIUS_MODEL,
        lam=LAMBDA,
        device=_gpu() if on_gpu else "",
        build=dict(build or {}),
    )


def packages_of(candidate: AnyOracle) -> dict[str, str]:
    """Versions of the distributions that the oracle names in `packages`, or else of the one that defines it."""
    named: Iterable[str] | None = getattr(candidate, "packages", None)
    if named is None:
        module = type(candidate).__module__.partition(".")[0]
        named = _distributions().get(module, ())
    versions = {}
    for name in sorted(set(named)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """By module, the distributions that bring it. It takes seconds to find out, and every trial asks."""
    return importlib.metadata.packages_distributions()


def _gpu_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm{major}{minor}"


def _gpu() -> str:
    import torch

    try:
        version = driver_version(Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        version = None
    driver = f", driver {version}" if version else ""
    return f"{torch.cuda.get_device_name()}{driver}, CUDA {torch.version.cuda}"


def driver_version(told: str) -> str | None:
    """NVIDIA's driver version, by what /proc tells: after the words and the architecture that it is for."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", told)
    return found.group(1) if found else None


def cpu_model() -> str:
    """What the machine calls its processor."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor()
