"""Who shrinks a bucket that several shards find: the first one that claims it."""

from __future__ import annotations

from pathlib import Path

from difftest.judging.outcome import Bucket


class Claims:
    """The buckets that are taken: by this owner, and with a folder made for the run, by all that share it."""

    def __init__(self, folder: Path | None = None, owner: str = "") -> None:
        """owner: what is done here, such as a shard, so that whoever does it again after a crash has its claims; empty
        for nobody who comes again."""
        self._folder = folder
        self._owner = owner
        self._mine: set[Bucket] = set()

    def take(self, bucket: Bucket) -> bool:
        """Whether the bucket is this owner's to shrink: true for the first that asks, and for it ever after."""
        if bucket in self._mine:
            return True
        if self._folder is not None:
            claim = self._folder / str(bucket)
            try:
                with claim.open("x") as file:
                    file.write(self._owner)
            except FileExistsError:
                if not self._owner or claim.read_text() != self._owner:
                    return False
        self._mine.add(bucket)
        return True
