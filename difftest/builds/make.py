"""Make a build: overlay, FlashInfer's generator, compilers, and at the very end one rename into the store.

Everything is made in a folder of its own beside the store's, under a lock, and keeps its objects: a build that was
interrupted or failed goes on where it stopped. No one finds it before its manifest is written and the folder renamed.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from difftest.builds import slim, sources, toolkit
from difftest.builds.store import MANIFEST, SITE, Build, Manifest, arch_here, folder
from difftest.options import InvalidOption, integer

WORK = ".work"
"""Beside the finished builds; the leading dot keeps it out of their names."""

ARCHITECTURES = {"9.0a": "90", "12.0a": "120"}
"""nvcc's name -> the number in the names of FlashInfer's modules."""

CACHE = "flashinfer_jit_cache"
"""FlashInfer asks a package of this name for prebuilt libraries before it looks elsewhere."""


class BuildFailed(RuntimeError):
    """The generator, a compiler or the linker failed. The message is one line and names the log."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to build. Raises InvalidOption.

    package: where the sources come from. patches: applied in this order. arch: a key of `ARCHITECTURES`. only: what a
    slim build holds, None for everything; tiles: its GEMM tiles, None for all. jobs: compilers at a time.
    """

    package: sources.Package
    patches: tuple[sources.PatchFile, ...] = ()
    arch: str
    only: slim.Only | None = None
    tiles: tuple[str, ...] | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise InvalidOption(f"--arch {self.arch}: must be one of {', '.join(ARCHITECTURES)}")
        if self.only is not None and self.only.arch != self.arch:
            raise InvalidOption(f"--only {self.only.name}: is of arch {self.only.arch}, not {self.arch}")
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
        package = sources.package(given["version"], given["wheel"] and Path(given["wheel"]), folder() / WORK)
        return cls(
            package=package,
            patches=tuple(sources.patch(name, package.version) for name in given["patches"]),
            arch=arch,
            only=chosen,
            tiles=_tiles(given["tiles"], chosen),
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


def make(request: Request, say: Callable[[str], None]) -> Build:
    """The build that was asked for, made unless it is there. Raises InvalidOption, Missing, BuildFailed."""
    tools = toolkit.find()
    with _overlay(request) as (site, digest):
        name = request.folder_name(digest)
        work = folder() / WORK / name
        work.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{work}.lock"):
            done = _finished(folder() / name)
            if done is not None:
                say(f"{name}: is built already")
                return done
            if not work.exists():
                site.parent.rename(work)
            return _make(request, tools, work, digest, say)


@contextlib.contextmanager
def _overlay(request: Request) -> Iterator[tuple[Path, str]]:
    """A patched copy of the sources and its digest; what is left of it at the end is deleted."""
    (folder() / WORK).mkdir(parents=True, exist_ok=True)
    parent = Path(tempfile.mkdtemp(dir=folder() / WORK, prefix="overlay-"))
    try:
        yield parent / SITE, sources.overlay(request.package, request.patches, parent / SITE)
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _finished(root: Path) -> Build | None:
    try:
        return Build(root, Manifest.from_json(json.loads((root / MANIFEST).read_text())))
    except (OSError, ValueError):
        return None


def _make(request: Request, tools: toolkit.Toolkit, work: Path, digest: str, say: Callable[[str], None]) -> Build:
    log = work / "build.log"
    say(f"{work.name}: building with {tools.compiler}; log: {log}")
    steps = _Steps(request, tools, work, log)
    plan = steps.generate()
    say(f"{len(plan['objects'])} sources, {len(plan['instantiations'])} GEMM kernels, {len(plan['left_out'])} left out")
    steps.compile(plan)
    library = steps.link(plan)
    place = work / SITE / CACHE / "jit_cache" / request.module / library.name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, place)
    (work / SITE / CACHE / "__init__.py").write_text(_CACHE_PACKAGE.format(version=request.package.version))
    manifest = Manifest(
        version=request.package.version,
        patches=tuple(patch.identity for patch in request.patches),
        arch=request.arch,
        only=request.only.name if request.only else None,
        tiles=request.tiles,
        library=str(place.relative_to(work)),
        sha256=hashlib.sha256(place.read_bytes()).hexdigest(),
        sources=digest,
        instantiations=tuple(plan["instantiations"]),
        left_out=len(plan["left_out"]),
        compiler=tools.compiler,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    return _publish(work, manifest)


_CACHE_PACKAGE = '''"""Tells FlashInfer where this build's library is."""

import pathlib

__version__ = "{version}"


def get_jit_cache_dir() -> pathlib.Path:
    return pathlib.Path(__file__).parent / "jit_cache"
'''


def _publish(work: Path, manifest: Manifest) -> Build:
    """Drop what was needed to build only, write the manifest, rename."""
    shutil.rmtree(work / "jit")
    shutil.rmtree(work / "lib")
    with open(work / MANIFEST, "w") as file:
        json.dump(manifest.to_json(), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    root = folder() / work.name
    if root.exists():  # without a whole manifest, or it would have been taken
        shutil.rmtree(root)
    work.rename(root)
    return Build(root, manifest)


class _Steps:
    """The steps of one build, each with its output in the log."""

    def __init__(self, request: Request, tools: toolkit.Toolkit, work: Path, log: Path) -> None:
        self.request, self.tools, self.work, self.log = request, tools, work, log
        self.stubs = work / "lib" / "left_out.o"

    def generate(self) -> dict[str, Any]:
        """FlashInfer's own list of sources and flags, as a ninja file."""
        self.tools.stand_ins(self.work / "lib")
        only = self.request.only
        question = {
            "package": str(self.work / SITE / "flashinfer"),
            "arch": ARCHITECTURES[self.request.arch],
            "only": None if only is None else slim.request(only, self.request.tiles),
        }
        asked, answer = self.work / "request.json", self.work / "plan.json"
        asked.write_text(json.dumps(question))
        variables = self.tools.variables(self.work / "lib")
        if only is not None:
            variables["FLASHINFER_EXTRA_LDFLAGS"] += f" {self.stubs}"
        variables |= {
            "FLASHINFER_CUDA_ARCH_LIST": self.request.arch,
            "FLASHINFER_WORKSPACE_BASE": str(self.work / "jit"),
            "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        }
        script = Path(__file__).with_name("generate.py")
        self._run("FlashInfer's generator", [sys.executable, str(script), str(asked), str(answer)], variables)
        plan: dict[str, Any] = json.loads(answer.read_text())
        if only is not None and not plan["instantiations"]:
            tiles = " ".join(self.request.tiles or ())
            raise InvalidOption(f"--tile: {self.request.name} has no GEMM kernel of {only.name} with tile {tiles}")
        return plan

    def compile(self, plan: dict[str, Any]) -> None:
        """All objects."""
        self._ninja("the compiler", plan, plan["objects"])

    def link(self, plan: dict[str, Any]) -> Path:
        """The shared object, with a stub for every function that was left out."""
        if self.request.only is not None:
            missing = slim.undefined(self._symbols(plan["objects"]))
            source = self.stubs.with_suffix(".cpp")
            source.write_text(slim.stubs(missing, self.request.only.name))
            command = [self.tools.cxx, "-O1", "-fPIC", "-c", str(source), "-o", str(self.stubs)]
            self._run("the compiler", command, {})
        self._ninja("the linker", plan, [])
        library = Path(plan["folder"]) / f"{self.request.module}.so"
        left = slim.undefined(self._symbols([str(library)]))
        if left:
            raise self._failed("the linker", f"{len(left)} functions have no definition, {left[0]} among them")
        self._check_target(library)
        return library

    def _check_target(self, library: Path) -> None:
        """All device code must be for the architecture that was asked for. What there is goes to `elf.txt`."""
        if self.tools.cuobjdump is None:
            return
        listing = self.work / "elf.txt"
        with open(listing, "w") as file:
            subprocess.run([self.tools.cuobjdump, "--list-elf", str(library)], stdout=file, check=True)
        target = f"sm_{self.request.arch.replace('.', '')}"
        targets = set(re.findall(r"\.(sm_\w+)\.cubin", listing.read_text()))
        if targets != {target}:
            raise self._failed("the compiler", f"{target} was asked for, and the library has {sorted(targets)}")

    def _symbols(self, files: list[str]) -> str:
        """What `nm -P` says of all of them."""
        return subprocess.run([self.tools.nm, "-P", *files], capture_output=True, text=True, check=True).stdout

    def _ninja(self, what: str, plan: dict[str, Any], targets: list[str]) -> None:
        command = [self.tools.ninja, "-v", "-j", str(self.request.jobs), "-C", plan["folder"], *targets]
        self._run(what, command, {})

    def _run(self, what: str, command: list[str], variables: dict[str, str]) -> None:
        with open(self.log, "a") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            path = os.pathsep.join(filter(None, [str(self.work / SITE), os.environ.get("PYTHONPATH")]))
            done = subprocess.run(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path} | variables,
            )
        if done.returncode:
            raise self._failed(what, _trouble(self.log))

    def _failed(self, what: str, why: str) -> BuildFailed:
        return BuildFailed(f"{self.work.name}: {what} failed: {why}; log: {self.log}")


def _trouble(log: Path) -> str:
    """The last line of the log that says error, or the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not line.startswith(("$", "[", "FAILED"))]
    return (named or lines)[-1][:300]
