"""The kernel libraries that a process has loaded: what was really run, whatever is installed. No torch."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

MAPS = Path("/proc/self/maps")
DEVICE_CODE = b"\0.nv_fatbin\0"
"""The name of the section that holds device code, in an ELF file's table of names."""
_FRAMEWORK = frozenset({"torch", "nvidia", "triton"})
"""Folders of packages whose version says it all."""
_DRIVER = ("libcu", "libnv")


def loaded(maps: Path = MAPS) -> Mapping[str, str]:
    """By path: the sha256 of each mapped file with device code that is not of the driver, CUDA or torch."""
    return {str(path): _digest(path) for path in sorted(_mapped(maps)) if _has_kernels(path)}


def _mapped(maps: Path) -> set[Path]:
    def named() -> Iterator[Path]:
        for line in maps.read_text().splitlines():
            *_, path = line.split(maxsplit=5)  # after address, access, offset, device and inode
            if path.startswith("/") and ".so" in Path(path).name:
                yield Path(path)

    return set(named())


def _has_kernels(path: Path) -> bool:
    if _FRAMEWORK & set(path.parts) or path.name.startswith(_DRIVER):
        return False
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.rfind(DEVICE_CODE) >= 0
    except (OSError, ValueError):  # deleted since, or empty
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
