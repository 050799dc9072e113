"""Where the files of recorded calls are found: by the SHA-256 of their content, in a few folders. No torch."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

VARIABLE = "DIFFTEST_RECORDINGS"
"""Of the environment: folders to look in, so that the processes of a candidate know them too."""

SUFFIX = ".safetensors"


class RecordingNotFound(LookupError):
    """No file has that content. The message is one line that names the digest and the folders."""


def add_folder(folder: Path) -> None:
    """Look in `folder` first, in this process and in those that it starts from now on."""
    known = [path for path in folders() if path != folder.absolute()]
    os.environ[VARIABLE] = os.pathsep.join(map(str, (folder.absolute(), *known)))


def folders() -> list[Path]:
    """Where files are looked for."""
    return [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]


def find(digest: str) -> Path:
    """The file of this content. Raises `RecordingNotFound`."""
    for folder in folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path.is_file() and digest_of(path) == digest:
                return path
    told = ", ".join(map(str, folders())) or "no folder"
    raise RecordingNotFound(
        f"capture.digest = {digest[:12]}...: no *{SUFFIX} in {told} has that content; put the recording beside the case"
    )


def digest_of(path: Path) -> str:
    """The SHA-256 of the file, in hex. Raises OSError."""
    state = path.stat()
    return _digest(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
