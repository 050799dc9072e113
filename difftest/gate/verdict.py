"""The verdict of a gate, as a file that a release can be held to. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT_VERSION = 2
AGREES, KNOWN = "agrees", "known"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One named scenario on one kernel.

    answer: "agrees", "known" (an expected gap: a case of the ledger), or why it fails, in one line. ratio: the largest
    error / radius, None where every output had to be exact or nothing was compared. exact: outputs that had to be, and
    were.
    """

    kernel: str
    name: str
    answer: str
    ratio: float | None = None
    exact: int = 0

    @property
    def passed(self) -> bool:
        return self.answer in (AGREES, KNOWN)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Microseconds of a call on one named scenario, over `calls` of them."""

    kernel: str
    name: str
    median: float
    least: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """target, emulated, require_situ, seed: what was asked. parts: the matrix. drawn: by kernel, what became of the
    drawn scenarios (verdicts, and findings that the ledger knows). gaps: by case file, how often it explained what was
    seen, and the name of what the kernel does otherwise. not_emulable: named scenarios that an emulation does not have.
    kernels: by kernel, versions, device, what was measured of its accumulators, and the sha256 of each kernel library
    that was loaded. failures: why it is not passed, a line each; none when it is. timings: of what passed.
    """

    target: str
    emulated: bool
    require_situ: bool
    seed: int
    parts: tuple[Part, ...]
    drawn: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    gaps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    not_emulable: tuple[str, ...] = ()
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    timings: tuple[Timed, ...] = ()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """An emulation passes nothing."""
        return not self.failures and not self.emulated

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.failures:
            more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
            return f"not passed: {self.failures[0]}{more}"
        return "not passed (emulated): nothing was found, and no kernel was run" if self.emulated else "passed"

    def groups(self) -> dict[str, dict[str, Any]]:
        """By kernel, activation and what the scenarios are about: how many ran, agree and are expected gaps, and the
        largest error / radius."""
        found: dict[str, dict[str, Any]] = {}
        for part in self.parts:
            activation, group = part.name.split("/")[:2]
            row = found.setdefault(
                f"{part.kernel} {activation} {group}", {"ran": 0, "agree": 0, "gaps": 0, "ratio": None}
            )
            row["ran"] += 1
            row["agree"] += part.answer == AGREES
            row["gaps"] += part.answer == KNOWN
            if part.ratio is not None:
                row["ratio"] = max(part.ratio, row["ratio"] or 0.0)
        return found

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "version": FORMAT_VERSION,
            "passed": self.passed,
            "verdict": self.line,
            **dataclasses.asdict(self),
            "groups": self.groups(),
        }
