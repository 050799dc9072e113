"""What was measured of an oracle's accumulators on one machine, kept in a file and used to narrow the sharp radius.

The hard radius stays that of what the oracle declares. `difftest.probe` measures.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch

from difftest import fingerprint, probe
from difftest.files import write_whole
from difftest.probe import Addition
from oracles.base import AnyOracle, Oracle
from oracles.formats import GROUP
from oracles.numerics import Accumulator, Numerics, Quantizer

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
VARIABLE = "DIFFTEST_CALIBRATIONS"


class InvalidCalibration(ValueError):
    """A file is no calibration of this version. The message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The additions of both GEMMs of the oracle that `environment` names, taken at an ISO date in UTC."""

    environment: Mapping[str, str]
    gemm1: tuple[Addition, ...]
    gemm2: tuple[Addition, ...]
    taken: str

    @property
    def name(self) -> str:
        """Of its file: the oracle, and 8 hex digits of the environment."""
        return _name(self.environment)

    def applied(self, numerics: Numerics) -> Numerics:
        """What is declared, with the accumulators that were measured beside those declared."""
        gemm1, gemm2 = (dataclasses.replace(acc, measured=narrowed(acc, seen)) for _, acc, seen in self._each(numerics))
        return dataclasses.replace(numerics, gemm1=gemm1, gemm2=gemm2)

    def contradictions(self, numerics: Numerics) -> list[str]:
        """Where the machine adds more coarsely than is declared: the numerics of the oracle are wrong."""
        return [f"{name}: {line}" for name, acc, seen in self._each(numerics) for line in _contradictions(acc, seen)]

    def _each(self, numerics: Numerics) -> Iterator[tuple[str, Accumulator, list[Addition]]]:
        """(GEMM, what is declared, what was seen of the accumulator and not of a quantiser before it)."""
        parts: Sequence[tuple[str, Accumulator, tuple[Addition, ...], Quantizer]] = (
            ("gemm1", numerics.gemm1, self.gemm1, numerics.hidden_quantizer),
            ("gemm2", numerics.gemm2, self.gemm2, numerics.intermediate_quantizer),
        )
        for name, acc, additions, quantizer in parts:
            least = 1 if quantizer == "none" else GROUP
            yield name, acc, [one for one in additions if one.distance >= least and one.bits is not None]

    def lines(self) -> list[str]:
        """What was measured, for people."""
        return [f"{name} {one}" for name in ("gemm1", "gemm2") for one in getattr(self, name)]

    def save(self, folder: Path) -> Path:
        """Write the file, whole or not at all. Raises `OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        write_whole(path, json.dumps({"format": FORMAT_VERSION} | dataclasses.asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises `InvalidCalibration`, or `OSError`."""
        try:
            data = json.loads(path.read_text("utf-8"))
            if data.pop("format") != FORMAT_VERSION:
                raise ValueError("another version of the format")
            gemm1, gemm2 = (tuple(Addition(**one) for one in data.pop(name)) for name in ("gemm1", "gemm2"))
            return cls(gemm1=gemm1, gemm2=gemm2, **data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidCalibration(
                f"{path}: no calibration ({error}); make it again with difftest calibrate"
            ) from None


def narrowed(acc: Accumulator, seen: Sequence[Addition]) -> Accumulator:
    """`acc` with the unit roundoff, the rounding and the alignment that were seen, where these are finer."""
    outer = [one for one in seen if one.distance >= acc.group]
    inner = [one for one in seen if one.distance == 1]
    measured = dataclasses.replace(acc, measured=None)
    if outer:
        bits = min(_bits(one) for one in outer)
        nearest = all(one.rounding == "nearest" for one in outer) and acc.stripes is None
        measured = dataclasses.replace(
            measured,
            unit_roundoff=min(acc.unit_roundoff, 2.0**-bits),
            exact_bits=max(acc.exact_bits, bits),
            rounding="nearest" if nearest else acc.rounding,
        )
    if acc.inside is not None and inner:
        core = dataclasses.replace(acc.inside, alignment=min(acc.inside.alignment, _alignment(inner[0])))
        measured = dataclasses.replace(measured, inside=core)
    if acc.stripes is not None and inner:
        core = acc.stripes.core
        core = dataclasses.replace(core, alignment=min(core.alignment, _alignment(inner[0])))
        measured = dataclasses.replace(measured, stripes=dataclasses.replace(acc.stripes, core=core))
    return measured


def _contradictions(acc: Accumulator, seen: Sequence[Addition]) -> Iterator[str]:
    for one in seen:
        if one.distance >= acc.group:
            if 2.0 ** -_bits(one) > acc.unit_roundoff or _bits(one) < acc.exact_bits:
                yield f"{str(one).strip()}, but a unit roundoff of {acc.unit_roundoff:g} is declared"
            if acc.rounding == "nearest" and one.rounding != "nearest":
                yield f"{str(one).strip()}, but nearest is declared"
        elif acc.inside is not None and _alignment(one) > max(acc.inside.alignment, acc.inside.result):
            yield f"{str(one).strip()}, but an alignment of {acc.inside.alignment:g} is declared"


def _bits(one: Addition) -> int:
    assert one.bits is not None
    return one.bits


def _alignment(one: Addition) -> float:
    return 2.0 ** (1 - _bits(one))


def measure(oracle: Oracle, name: str, device: torch.device) -> Calibration:
    """Measure `oracle`, known as `name`, on problems on `device`. Raises `probe.Unmeasurable`."""
    found: dict[Literal["gemm1", "gemm2"], tuple[Addition, ...]] = probe.measure(oracle, device)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Calibration(environment=environment(oracle, name, device), taken=now, **found)


def find(oracle: AnyOracle, name: str, device: torch.device, place: Path | None = None) -> Calibration | None:
    """The calibration of the oracle in this environment, if there is one. A damaged file is told in the log."""
    place = place or folder()
    if not isinstance(oracle.numerics, Numerics) or not place.is_dir():
        return None
    here = environment(oracle, name, device)
    try:
        found = Calibration.load(place / _name(here))
    except FileNotFoundError:
        return None
    except (InvalidCalibration, OSError) as error:
        _log.warning("not used: %s", error)
        return None
    return found if found.environment == here else None


def folder() -> Path:
    """Where calibrations are kept: $DIFFTEST_CALIBRATIONS, or `difftest/calibrations` in the user's cache folder."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "difftest" / "calibrations"


def environment(oracle: AnyOracle, name: str, device: torch.device) -> dict[str, str]:
    """All that an accumulator may depend on. device: of the problems; an oracle may compute on another one."""
    packages = fingerprint.packages_of(oracle)
    return {
        "oracle": name,
        "device": device.type,
        "gpu": _gpus(),
        "torch": torch.__version__,
        "arch": platform.machine(),
        "cpu": fingerprint.cpu_model(),
        "isa": torch.backends.cpu.get_cpu_capability(),
    } | {f"package {package}": version for package, version in packages.items()}


def _gpus() -> str:
    """Models of the NVIDIA cards, as the driver tells them without a context of CUDA."""
    models = set()
    for told in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", told.read_text(errors="replace"), re.MULTILINE)
        models.add(found.group(1).strip() if found else "unknown")
    return ", ".join(sorted(models))


def _name(environment: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(environment), sort_keys=True).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^a-z0-9_.@+-]+', '-', environment['oracle'].lower())}-{digest}.calibration.json"
