"""Who shrinks a bucket that several shards find: the first one that claims it."""

from __future__ import annotations

from pathlib import Path

from difftest.judging.outcome import Bucket


class Claims:
    """The buckets that are taken: by this process, and with a folder made for the run, by all that share it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._mine: set[Bucket] = set()

    def take(self, bucket: Bucket) -> bool:
        """Whether the bucket is this process's to shrink: true for the first that asks, and for it ever after."""
        if bucket in self._mine:
            return True
        if self._folder is not None:
            try:
                (self._folder / str(bucket)).touch(exist_ok=False)
            except FileExistsError:
                return False
        self._mine.add(bucket)
        return True
