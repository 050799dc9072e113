"""The `--json` report: one JSON object a line, written as the run goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from difftest.options import InvalidOption
from difftest.output.events import Event, to_json


class JsonLines:
    """A handler that appends each event to a file.

    A line goes out in one write, so that a run that is killed leaves whole lines. An error of the disk does not end
    the run: `error` keeps its text, and nothing more is written.
    """

    def __init__(self, path: Path) -> None:
        """Empty or create the file. Raises `InvalidOption` when that is not possible."""
        self.error: str | None = None
        self._path = path
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise InvalidOption(
                f"--json {path}: cannot be written ({error.strerror}); name a file in a folder that exists"
            ) from None

    def __call__(self, event: Event) -> None:
        self.write(to_json(event))

    def write(self, data: Mapping[str, Any]) -> None:
        """Append one event in its JSON form."""
        if self.error is not None:
            return
        line = json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                self.error = f"--json {self._path}: the disk took a part of a line; the file is not complete"
        except OSError as error:
            self.error = f"--json {self._path}: {error.strerror}; the file is not complete"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
