"""The journal: a case is on record before it runs, so that a crash has a name.

One file of JSON lines for each process, in a folder that they share. The owner holds a lock on its file; a file that
nobody holds was left by a process that ended. The case that it had begun and not finished ended it, or it was ended
from outside in the meantime.

A line reaches the kernel in one write before the case runs, which a killed process cannot take back. It is not synced
to the disk: that would cost more than a small case, and only a crash of the whole machine could lose it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from strategies.plain import AnyScenario, InvalidScenario
from strategies.reading import read

FORMAT_VERSION = 1
_SUFFIX = ".journal.jsonl"
_ROOM = 1 << 24
"""Bytes after which a journal starts anew, with its open cases alone."""


class JournalError(OSError):
    """The journal's folder cannot be used. The message names it, and says what to do."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case that a process had begun when it ended. checks: those that ran with it. isolated: in another process."""

    scenario: AnyScenario
    candidate: str
    reference: str
    checks: tuple[str, ...]
    isolated: bool = False


@dataclass(frozen=True)
class Entry:
    """A case that a journal has on record."""

    journal: Journal
    number: int

    def finish(self) -> None:
        """The case is over. Raises `JournalError` when that cannot be written."""
        self.journal.finish(self.number)


class Journal:
    """The journal of this process. Use `begin` before each case, and `close` at the end, or use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        """Raises `JournalError` when `folder` cannot be made or written to."""
        self.path = folder / f"{os.getpid()}-{time.time_ns()}{_SUFFIX}"
        unlocked = self.path.with_suffix(".new")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            unlocked.rename(self.path)  # nobody sees it before it is locked
        except OSError as error:
            raise JournalError(
                f"journal folder {folder}: cannot be written to ({error.strerror}): choose another one"
            ) from error
        self._count = 0
        self._open: dict[int, str] = {}

    def begin(
        self, scenario: AnyScenario, candidate: str, reference: str, checks: Collection[str], *, isolated: bool = False
    ) -> Entry:
        """Record a case before it runs; call `finish` on the entry when it is over, however it ends.

        isolated: it runs in another process, so that the end of this one is not its doing. Raises `JournalError` when
        the record cannot be written: then the case is not to run.
        """
        self._count += 1
        number = self._count
        record: dict[str, object] = {
            "version": FORMAT_VERSION,
            "begun": number,
            "candidate": candidate,
            "reference": reference,
            "checks": sorted(checks),
        }
        if isolated:
            record["isolated"] = True
        line = f'{json.dumps(record)[:-1]}, "scenario": {scenario.text}}}'
        self._write(line)
        self._open[number] = line
        return Entry(self, number)

    def finish(self, number: int) -> None:
        """Record that the case of this number is over."""
        if self._open.pop(number, None) is None:
            return
        self._write(json.dumps({"version": FORMAT_VERSION, "finished": number}))
        if os.fstat(self._file).st_size > _ROOM:
            os.ftruncate(self._file, 0)
            for line in self._open.values():
                self._write(line)

    @contextlib.contextmanager
    def case(self, scenario: AnyScenario, candidate: str, reference: str, checks: Collection[str]) -> Iterator[None]:
        """`begin` before the block and `finish` after it."""
        entry = self.begin(scenario, candidate, reference, checks)
        try:
            yield
        finally:  # an exception, or the user's interrupt, is no crash: this process lives
            entry.finish()

    def _write(self, text: str) -> None:
        line = f"{text}\n".encode()
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise JournalError(f"journal {self.path}: cannot be written to ({error.strerror}): make room") from error
        if written != len(line):
            raise JournalError(f"journal {self.path}: the disk is full: make room")

    def close(self) -> None:
        """Delete the journal: all its cases are finished."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def leftovers(folder: Path) -> Iterator[Case]:
    """The cases that ended their process, of all journals in `folder` that no living process owns.

    A journal is deleted once the caller has taken all its cases. A torn last line, and a line of another version, is
    passed over: what it was about did not run, or is not ours. Raises `JournalError` when the folder cannot be read.
    """
    try:
        for path in sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []:
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield from _unfinished(file.read())
                path.unlink()
    except OSError as error:
        raise JournalError(f"journal folder {folder}: cannot be read ({error.strerror}): choose another one") from error


def _unfinished(content: bytes) -> list[Case]:
    open_cases: dict[int, Case] = {}
    for line in content.split(b"\n"):
        try:
            entry = json.loads(line)
            if entry["version"] != FORMAT_VERSION:
                continue
            if "finished" in entry:
                open_cases.pop(entry["finished"], None)
            else:
                open_cases[entry["begun"]] = Case(
                    scenario=read(entry["scenario"]),
                    candidate=entry["candidate"],
                    reference=entry["reference"],
                    checks=tuple(entry["checks"]),
                    isolated=entry.get("isolated", False),
                )
        except (ValueError, KeyError, TypeError, InvalidScenario):
            continue
    return list(open_cases.values())
