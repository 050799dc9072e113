"""What `difftest build` is asked for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from difftest.builds import slim, sources
from difftest.builds.store import WORK, arch_here, folder
from difftest.options import InvalidOption, integer

ARCHITECTURES = {"9.0a": "90", "12.0a": "120"}
"""nvcc's name -> the number in the names of FlashInfer's modules."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to build. Raises InvalidOption.

    package: where the sources come from. patches: applied in this order. arch: a key of `ARCHITECTURES`. only: what a
    slim build holds, None for everything; tiles: its GEMM tiles, None for all. library: one that was built elsewhere
    from these sources, to be taken instead of building it. jobs: compilers at a time.
    """

    package: sources.Package
    patches: tuple[sources.PatchFile, ...] = ()
    arch: str
    only: slim.Only | None = None
    tiles: tuple[str, ...] | None = None
    library: Path | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise InvalidOption(f"--arch {self.arch}: must be one of {', '.join(ARCHITECTURES)}")
        if self.only is not None and self.only.arch != self.arch:
            raise InvalidOption(f"--only {self.only.name}: is of arch {self.only.arch}, not {self.arch}")
        if self.library is not None and self.library.read_bytes()[:4] != b"\x7fELF":
            raise InvalidOption(f"--library {self.library}: must be a shared object")
        names = [patch.name for patch in self.patches]
        for name in names:
            if names.count(name) > 1:
                raise InvalidOption(f"--patch: two patches are named {name}; rename one of the files")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """A request from the options of `difftest build`, as typed; None or () where not given."""
        only = given["only"]
        if only is not None and only not in slim.ONLY:
            raise InvalidOption(f"--only {only}: must be one of {', '.join(slim.ONLY)}")
        chosen = slim.ONLY.get(only)
        arch = given["arch"] or (chosen.arch if chosen else arch_here())
        if arch is None:
            raise InvalidOption(f"--arch: there is no device here to take it from; give {' or '.join(ARCHITECTURES)}")
        library = given["library"] and Path(given["library"])
        if library is not None and not library.is_file():
            raise InvalidOption(f"--library {library}: is no file; must be a shared object")
        if library is not None and given["tiles"]:
            raise InvalidOption(f"--tile {given['tiles'][0]}: says what to build, and --library is built already")
        if given["patches"]:
            sources.patcher()  # looked for before a package is downloaded
        package = sources.package(given["version"], given["wheel"] and Path(given["wheel"]), folder() / WORK)
        return cls(
            package=package,
            patches=tuple(sources.patch(name, package.version) for name in given["patches"]),
            arch=arch,
            only=chosen,
            tiles=_tiles(given["tiles"], chosen) if library is None else None,
            library=library,
            jobs=integer("--jobs", given["jobs"], 1) if given["jobs"] else len(os.sched_getaffinity(0)),
        )

    @property
    def name(self) -> str:
        return "+".join([self.package.version, *(patch.name for patch in self.patches)])

    @property
    def module(self) -> str:
        """FlashInfer's name of the library."""
        return f"fused_moe_{ARCHITECTURES[self.arch]}"

    def folder_name(self, digest: str) -> str:
        """Of the finished build: for people, then a key of all that decides what is in it."""
        what = [digest, self.arch, self.only and self.only.name, self.tiles]
        if self.library is not None:
            what.append(hashlib.sha256(self.library.read_bytes()).hexdigest())
        key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        return "-".join([self.name, self.arch, self.only.name if self.only else "everything", key[:8]])


def _tiles(given: tuple[str, ...], only: slim.Only | None) -> tuple[str, ...] | None:
    """The tiles to build; None for all."""
    if not given:
        return only.tiles if only else None
    if only is None:
        raise InvalidOption(f"--tile {given[0]}: goes with --only; without it every tile is built")
    if given == ("all",):
        return None
    for tile in given:
        if not slim.is_tile(tile):
            raise InvalidOption(f"--tile {tile}: must be MxNxK, such as 64x16x128, or `all` alone")
    return tuple(sorted({*given, *(only.tiles or ())}))
