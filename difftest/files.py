"""Files that are there whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def can_be_made(path: Path) -> bool:
    """Whether `path` names a file in a folder that exists."""
    return path.parent.is_dir() and not path.is_dir()


def can_be_replaced(path: Path) -> bool:
    """Whether `write_whole` can put a file at `path`: its folder can be written, and it is no folder and no device."""
    folder = path.absolute().parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and (path.is_file() or not path.exists())


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` beside `path`, flush it to the disk, and rename it. Raises OSError, and leaves what was there;
    also where that is no file, such as /dev/null."""
    data = content.encode() if isinstance(content, str) else content
    _whole(path, lambda file: file.write(data))


def copy_whole(source: Path, path: Path) -> None:
    """Copy the file `source` to `path`, as `write_whole` writes."""
    with source.open("rb") as content:
        _whole(path, lambda file: shutil.copyfileobj(content, file))


def _whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Is no regular file", str(path))
    beside = None
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except OSError:
        if beside is not None:
            with contextlib.suppress(OSError):
                os.unlink(beside)
        raise
