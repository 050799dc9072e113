"""Finished builds on disk: one folder each, found by the name that an oracle spec gives, `VERSION[+PATCH...]`.

A folder holds `manifest.json`, which is written last, and `site/`, whose entries go first on `sys.path`. Nothing in it
knows where it lies: it may be packed, carried to another machine and unpacked in that one's store.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

MANIFEST = "manifest.json"
SITE = "site"
WORK = ".work"
"""Where builds are made; the leading dot keeps it out of the finished ones' names."""
FORMAT_VERSION = 1
NAME = re.compile(r"[0-9][0-9A-Za-z.]*(?:\+[0-9A-Za-z._-]+)*")
"""VERSION[+PATCH...]."""


class BuildNotFound(LookupError):
    """No build has this name. The message is one line and says how to make it."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A unified diff that was applied: its short name, and the sha256 of its text."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was built, for the fingerprint and for people.

    version: of flashinfer-python. arch: as nvcc names it, "9.0a" or "12.0a". only: the operand types of a slim build,
    or None when it holds everything. tiles: "MxNxK" of the GEMM tiles that were asked for; None for all, and for a
    library that was built elsewhere. library: the shared object, relative to the build's folder; sha256: its digest.
    sources: digest of the patched sources. instantiations: GEMM kernels inside, as far as known. left_out: how many of
    the package's are not. compiler: nvcc's own words. created: UTC, ISO 8601.
    """

    version: str
    patches: tuple[Patch, ...] = ()
    arch: str
    only: str | None = None
    tiles: tuple[str, ...] | None = None
    library: str
    sha256: str
    sources: str
    instantiations: tuple[str, ...] = ()
    left_out: int = 0
    compiler: str
    created: str

    @property
    def name(self) -> str:
        return "+".join([self.version, *(patch.name for patch in self.patches)])

    def to_json(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION} | dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read `to_json`'s form; raises ValueError for another format version."""
        data = dict(data)
        found = data.pop("format_version", None)
        if found != FORMAT_VERSION:
            raise ValueError(f"format_version = {found!r}: must be {FORMAT_VERSION}")
        tiles = data["tiles"]
        return cls(
            **data
            | {
                "patches": tuple(Patch(**patch) for patch in data["patches"]),
                "tiles": None if tiles is None else tuple(tiles),
                "instantiations": tuple(data["instantiations"]),
            }
        )


@dataclass(frozen=True)
class Build:
    """A finished build: its folder and what is in it."""

    root: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """As in an oracle spec: "0.6.18+situ"."""
        return self.manifest.name

    @property
    def path(self) -> tuple[Path, ...]:
        """Entries to put first on `sys.path`."""
        return (self.root / SITE,)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that the package needs, to be set before it is imported.

        Its own check that its companion packages have its version is switched off: theirs are of the installed one.
        What it builds at run time goes to a place of its own: its cache tells versions apart, not patches.
        """
        return {
            "FLASHINFER_DISABLE_VERSION_CHECK": "1",
            "FLASHINFER_WORKSPACE_BASE": str(self.root / "workspace"),
        }

    @property
    def library(self) -> Path:
        """The shared object."""
        return self.root / self.manifest.library


def folder() -> Path:
    """Where builds are kept: $DIFFTEST_BUILDS, or `difftest/builds` in the user's cache folder."""
    given = os.environ.get("DIFFTEST_BUILDS")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "difftest" / "builds"


def all_builds() -> list[Build]:
    """Every finished build of the store, the newest first. A folder without a whole manifest is none."""
    found = []
    for path in folder().glob(f"*/{MANIFEST}"):
        try:
            manifest = Manifest.from_json(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            continue
        found.append(Build(path.parent, manifest))
    return sorted(found, key=lambda build: build.manifest.created, reverse=True)


def find(name: str, arch: str | None = None) -> Build:
    """The build of this name; of several the newest for `arch` ("9.0a"), by default that of the current device.

    name: VERSION[+PATCH...], where a patch may be written with its suffix: "0.6.18+situ" and "0.6.18+situ.patch".
    Raises BuildNotFound.
    """
    wanted = normal_name(name)
    named = [build for build in all_builds() if build.name == wanted]
    if len({build.manifest.arch for build in named}) > 1 or arch is not None:
        arch = arch or arch_here()
        named = [build for build in named if arch is None or build.manifest.arch == arch]
    if not named:
        raise BuildNotFound(_advice(name, wanted, arch))
    return named[0]


def normal_name(name: str) -> str:
    """A build's name without the suffixes that its patches may be written with."""
    return "+".join(part.removesuffix(".patch") for part in name.split("+"))


def arch_here() -> str | None:
    """nvcc's name of the current device's architecture; None without a device."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{major}.{minor}a"


def _advice(name: str, wanted: str, arch: str | None) -> str:
    if not NAME.fullmatch(wanted):
        return f"build {name!r}: must be VERSION[+PATCH...], such as 0.6.18+situ"
    version, *patches = wanted.split("+")
    command = ["difftest build", "--version", version, *(f"--patch {patch}" for patch in patches)]
    where = f"{folder()}" if arch is None else f"{folder()} for arch {arch}"
    known = ", ".join(sorted({build.name for build in all_builds()})) or "none"
    return f"build {wanted}: not in {where} (there: {known}); make it: {' '.join(command)}"
