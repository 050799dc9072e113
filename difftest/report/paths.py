"""Text without the paths of the machine that it comes from."""

from __future__ import annotations

import re
from typing import Any

_PATH = re.compile(r"(?<![\w./~-])/(?:[\w.+@~-]+/+)+[\w.+@~-]*")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/+")
_KEPT = ("/usr/", "/opt/", "/proc/", "/dev/")
"""Beginnings of paths that are the same on many machines, and say something."""


def relative(text: str) -> str:
    """`text` with each absolute path cut: that of a package's file to begin at the package, any other to its name."""

    def cut(found: re.Match[str]) -> str:
        path = found.group()
        inside, count = _PACKAGES.subn("", path)
        if count:
            return inside
        return path if path.startswith(_KEPT) else f".../{path.rstrip('/').rpartition('/')[2]}"

    return _PATH.sub(cut, text)


def relative_in(data: Any) -> Any:
    """JSON-able `data` with every string in it `relative`."""
    if isinstance(data, str):
        return relative(data)
    if isinstance(data, dict):
        return {key: relative_in(value) for key, value in data.items()}
    return [relative_in(item) for item in data] if isinstance(data, list) else data
