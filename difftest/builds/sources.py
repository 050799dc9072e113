"""The private overlay: a copy of flashinfer-python's files, with unified diffs applied to it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from difftest.builds.store import Patch
from difftest.options import InvalidOption
from difftest.preflight import Missing

DISTRIBUTION = "flashinfer-python"
SUFFIX = ".patch"
_SHIPPED = re.compile(r"flashinfer-(?P<version>[0-9][0-9A-Za-z.]*)-(?P<name>[0-9A-Za-z._-]+)\.patch")


@dataclass(frozen=True)
class Package:
    """A flashinfer-python to copy from. wheel: a file, or None for the installed one."""

    version: str
    wheel: Path | None = None

    def copy(self, site: Path) -> None:
        """Put the package and its metadata in `site`, an empty folder."""
        if self.wheel is not None:
            with zipfile.ZipFile(self.wheel) as archive:
                archive.extractall(site)
            return
        distribution = importlib.metadata.distribution(DISTRIBUTION)
        files = [file for file in distribution.files or () if file.parts[0] != ".." and file.suffix != ".pyc"]
        if not any(file.parts[:2] == ("flashinfer", "data") for file in files):
            raise Missing(
                f"{DISTRIBUTION} {self.version} is installed without its sources (an editable install?); give --wheel"
            )
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), site / file)


def package(version: str | None, wheel: Path | None, downloads: Path) -> Package:
    """The package that was asked for: a wheel file, or a version, installed or else brought by pip to `downloads`.

    Raises InvalidOption for a wheel that is none and a version that differs from it, Missing when there is no package.
    """
    if wheel is not None:
        found = _version_of(wheel)
        if version not in (None, found):
            raise InvalidOption(f"--version {version}: {wheel.name} is {found}; leave out one of the two")
        return Package(found, wheel)
    installed = _installed()
    if installed is not None and version in (None, installed):
        return Package(installed)
    if version is None:
        raise Missing(f"{DISTRIBUTION} is not installed; name one with --version or --wheel")
    return Package(version, _download(version, downloads))


def _installed() -> str | None:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_of(wheel: Path) -> str:
    name = re.match(r"flashinfer_python-([^-]+)-.*\.whl$", wheel.name)
    if name is None or not wheel.is_file() or not zipfile.is_zipfile(wheel):
        raise InvalidOption(f"--wheel {wheel}: must be a wheel of {DISTRIBUTION} (flashinfer_python-VERSION-...whl)")
    return name[1]


def _download(version: str, downloads: Path) -> Path:
    def there() -> list[Path]:
        return sorted(downloads.glob(f"flashinfer_python-{version}-*.whl"))

    if not there():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(downloads)]
        done = subprocess.run([*command, f"{DISTRIBUTION}=={version}"], capture_output=True, text=True)
        if done.returncode or not there():
            reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise Missing(f"{DISTRIBUTION} {version} is not installed, and pip does not bring it: {reason}")
    return there()[0]


def patcher() -> str:
    """The tool that applies diffs. Raises Missing where there is none."""
    tool = shutil.which("patch")
    if tool is None:
        raise Missing("there is no `patch` here, which applies the diffs; install it (Debian: apt install patch)")
    return tool


@dataclass(frozen=True)
class PatchFile:
    """A unified diff against the package's root (paths `a/flashinfer/...`), and the name that the build will carry."""

    name: str
    path: Path

    @property
    def identity(self) -> Patch:
        return Patch(name=self.name, sha256=hashlib.sha256(self.path.read_bytes()).hexdigest())

    def apply(self, site: Path) -> None:
        """Apply it, without fuzz. Raises InvalidOption when it does not apply, and then nothing of it is applied."""
        tool = patcher()
        for dry in (["--dry-run"], []):
            done = subprocess.run(
                [tool, "--batch", "--forward", "--fuzz=0", "-p1", "-d", str(site), "-i", str(self.path), *dry],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise InvalidOption(f"--patch {self.path}: does not apply: {_first_trouble(done.stdout)}")


def _first_trouble(output: str) -> str:
    """The file and hunk that fail first, from what `patch` prints."""
    file = ""
    for line in output.splitlines():
        if line.startswith(("checking file ", "patching file ")):
            file = line.split(" ", 2)[2]
        elif "FAILED" in line or "previously applied" in line or "No file to patch" in line:
            return f"{file}: {line.strip().rstrip('.')}" if file else line.strip().rstrip(".")
    return (output.strip().splitlines() or ["not a unified diff"])[-1]


def patch(given: str, version: str) -> PatchFile:
    """A diff by its file, or by the short name of one that is shipped for `version`. Raises InvalidOption."""
    path = Path(given)
    if path.is_file():
        shipped = _SHIPPED.fullmatch(path.name)
        name = shipped["name"] if shipped else path.name.removesuffix(SUFFIX).removesuffix(".diff")
        return PatchFile(re.sub(r"[^0-9A-Za-z._-]", "-", name), path.absolute())
    for found, path in shipped_patches(version).items():
        if given.removesuffix(SUFFIX) == found:
            return PatchFile(found, path)
    known = ", ".join(shipped_patches(version)) or "none"
    raise InvalidOption(f"--patch {given}: is no file, and not a patch that is shipped for {version} ({known})")


def shipped_patches(version: str) -> dict[str, Path]:
    """Patches of package data for this version, by short name."""
    folder = Path(str(importlib.resources.files("oracles"))) / "patches"
    matches = [(path, _SHIPPED.fullmatch(path.name)) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return {match["name"]: path for path, match in matches if match and match["version"] == version}


def overlay(source: Package, patches: Sequence[PatchFile], site: Path) -> str:
    """Copy the package to `site`, apply the patches in order, and return the digest of all files."""
    site.mkdir(parents=True)
    source.copy(site)
    for file in patches:
        file.apply(site)
    return digest(site)


def digest(folder: Path) -> str:
    """sha256 of every file's name and contents."""
    total = hashlib.sha256()
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            total.update(str(path.relative_to(folder)).encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
