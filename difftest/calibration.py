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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from difftest import fingerprint, probe, recognition
from difftest.files import write_whole
from difftest.probe import Addition
from difftest.recognition import Gemm, Instruction
from oracles.base import AnyOracle, Oracle
from oracles.formats import GROUP
from oracles.numerics import Accumulator, Numerics, Quantizer, TensorCore

_log = logging.getLogger(__name__)

FORMAT_VERSION = 2
VARIABLE = "DIFFTEST_CALIBRATIONS"
_FLOAT32 = 2.0**-23
"""What float32 cuts at."""


class InvalidCalibration(ValueError):
    """A file is no calibration of this version. The message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The additions of both GEMMs of the oracle that `environment` names, taken at an ISO date in UTC.

    known: by GEMM, the instruction that was recognised.
    """

    environment: Mapping[str, str]
    gemm1: tuple[Addition, ...]
    gemm2: tuple[Addition, ...]
    taken: str
    known: Mapping[Gemm, Instruction] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its file: the oracle, and 8 hex digits of the environment."""
        return _name(self.environment)

    def applied(self, numerics: Numerics) -> Numerics:
        """What is declared, with the accumulators that were measured beside those declared."""
        gemm1, gemm2 = (
            dataclasses.replace(acc, measured=self._measured(name, acc, seen))
            for name, acc, seen in self._each(numerics)
        )
        return dataclasses.replace(numerics, gemm1=gemm1, gemm2=gemm2)

    def contradictions(self, numerics: Numerics) -> list[str]:
        """Where the machine adds more coarsely than is declared: the numerics of the oracle are wrong."""
        return [f"{name}: {line}" for name, acc, seen in self._each(numerics) for line in _contradictions(acc, seen)]

    def blind(self, numerics: Numerics) -> list[str]:
        """Where a chain adds with less than float32, in a way that is not known: the bound sees large mistakes only."""
        found = []
        for name, acc, seen in self._each(numerics):
            measured = self._measured(name, acc, seen)
            core = None if acc.chain is None else measured.chain or measured.inside
            if core is not None and not core.exactly and max(core.alignment, core.result) > _FLOAT32:
                found.append(f"{name}: cuts at {core.alignment:g}, and not as any instruction that is known")
        return found

    def _measured(self, name: Gemm, acc: Accumulator, seen: Sequence[Addition]) -> Accumulator:
        if acc.chain is not None and name in self.known:
            return self.known[name].accumulator(acc)
        return narrowed(acc, seen)

    def _each(self, numerics: Numerics) -> Iterator[tuple[Gemm, Accumulator, list[Addition]]]:
        """(GEMM, what is declared, what was seen of the accumulator and not of a quantiser before it)."""
        parts: Sequence[tuple[Gemm, Accumulator, tuple[Addition, ...], Quantizer]] = (
            ("gemm1", numerics.gemm1, self.gemm1, numerics.hidden_quantizer),
            ("gemm2", numerics.gemm2, self.gemm2, numerics.intermediate_quantizer),
        )
        for name, acc, additions, quantizer in parts:
            least = 1 if quantizer == "none" else GROUP
            within = probe.VISIBLE if quantizer.startswith("mxfp8") else range(0)
            yield name, acc, [one for one in additions if one.bits and (one.distance >= least or one.bits in within)]

    def lines(self) -> list[str]:
        """What was measured, for people."""
        found = [f"{name} {one}" for name in ("gemm1", "gemm2") for one in getattr(self, name)]
        return [*found, *(f"{name} {instruction}" for name, instruction in self.known.items())]

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
            known = {name: Instruction(**one) for name, one in data.pop("known").items()}
            return cls(gemm1=gemm1, gemm2=gemm2, known=known, **data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidCalibration(
                f"{path}: no calibration ({error}); make it again with difftest calibrate"
            ) from None


def narrowed(acc: Accumulator, seen: Sequence[Addition]) -> Accumulator:
    """`acc` with the unit roundoff, the rounding and the alignment that were seen, where these are finer."""
    if acc.chain is not None:
        return _narrowed_chain(acc, acc.chain, seen)
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


def _narrowed_chain(acc: Accumulator, core: TensorCore, seen: Sequence[Addition]) -> Accumulator:
    """Between instructions it is the sum so far that addends are aligned to. Where they are added to nearest that is no
    instruction's work, and only what was seen within one tells how it cuts."""
    within = [_alignment(one) for one in seen if one.distance < core.columns]
    beyond = [one for one in seen if one.distance >= core.columns]
    cuts = [] if any(one.rounding != "truncate" for one in beyond) else [_alignment(one) for one in beyond]
    coarsest = max(within + cuts) if (cuts or within) else core.alignment
    finer = dataclasses.replace(core, alignment=min(core.alignment, coarsest), result=min(core.result, coarsest))
    return dataclasses.replace(acc, chain=finer, measured=None)


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
    found: dict[Gemm, tuple[Addition, ...]] = probe.measure(oracle, device)
    known = recognition.recognise(oracle, found, device)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Calibration(environment=environment(oracle, name, device), taken=now, known=known, **found)


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
