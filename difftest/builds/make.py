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
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from difftest.builds import sources
from difftest.builds.compilation import Compilation, Made
from difftest.builds.request import Request
from difftest.builds.store import MANIFEST, SITE, WORK, Build, Manifest, folder

CACHE = "flashinfer_jit_cache"
"""FlashInfer asks a package of this name for prebuilt libraries before it looks elsewhere."""


def make(request: Request, say: Callable[[str], None]) -> Build:
    """The build that was asked for, made unless it is there. Raises InvalidOption, Missing, BuildFailed."""
    with _overlay(request) as (site, digest):
        name = request.folder_name(digest)
        work = folder() / WORK / name
        with FileLock(f"{work}.lock"):
            done = _finished(folder() / name)
            if done is not None:
                say(f"{name}: is built already")
                return done
            if not work.exists():
                site.parent.rename(work)
            return _make(request, work, digest, say)


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


def _make(request: Request, work: Path, digest: str, say: Callable[[str], None]) -> Build:
    if request.library is not None:
        return _publish(request, work, digest, Made(request.library, (), 0, "given as a library"))
    return _publish(request, work, digest, Compilation(request, work).run(say))


_CACHE_PACKAGE = '''"""Tells FlashInfer where this build's library is, whatever flashinfer-jit-cache is there besides.

0.6.18 asks for one folder. 0.7.0 looks in the package's own first, where the library is, and then asks for others.
"""

import pathlib

__version__ = "{version}"


def get_jit_cache_dir() -> pathlib.Path:
    return pathlib.Path(__file__).parents[1] / "flashinfer" / "data" / "aot"


def get_jit_cache_providers() -> tuple:
    return ()
'''


def _publish(request: Request, work: Path, digest: str, made: Made) -> Build:
    """Put the library where FlashInfer finds it, write the manifest, and rename the folder into the store."""
    cache = work / SITE / CACHE
    place = work / SITE / "flashinfer" / "data" / "aot" / request.module / f"{request.module}.so"
    place.parent.mkdir(parents=True, exist_ok=True)
    cache.mkdir(exist_ok=True)
    shutil.copyfile(made.library, place)
    (cache / "__init__.py").write_text(_CACHE_PACKAGE.format(version=request.package.version))
    for needed_to_build in ("jit", "lib"):
        shutil.rmtree(work / needed_to_build, ignore_errors=True)
    manifest = Manifest(
        version=request.package.version,
        patches=tuple(patch.identity for patch in request.patches),
        arch=request.arch,
        only=request.only.name if request.only else None,
        tiles=request.tiles,
        library=str(place.relative_to(work)),
        sha256=hashlib.sha256(place.read_bytes()).hexdigest(),
        sources=digest,
        instantiations=made.instantiations,
        left_out=made.left_out,
        compiler=made.compiler,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    with open(work / MANIFEST, "w") as file:
        json.dump(manifest.to_json(), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    root = folder() / work.name
    if root.exists():  # without a whole manifest, or it would have been taken
        shutil.rmtree(root)
    work.chmod(0o755)  # a temporary folder is its maker's alone
    work.rename(root)
    return Build(root, manifest)
