"""Where the parts of a campaign meet: a shared folder, or a bucket of an object store, by fsspec. No torch."""

from __future__ import annotations

from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from difftest.files import write_whole
from difftest.options import InvalidOption


class Store:
    """Files by name. Each is there whole or not at all, whoever reads while it is written: in a folder by a rename, in
    an object store because an object is put at once."""

    def __init__(self, url: str) -> None:
        """url: a path, or what fsspec takes, such as s3://bucket/nightly. Raises `InvalidOption`."""
        if not url:
            raise InvalidOption(
                "STORE: is empty; name a folder that all nodes share, or a URL such as s3://bucket/night"
            )
        self.url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
            self._files.makedirs(self._root, exist_ok=True)
        except Exception as error:  # each file system has its own
            reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
            raise InvalidOption(f"{url}: cannot be used as a store: {reason}") from None

    def names(self, folder: str) -> list[str]:
        """The names of the files in `folder`, as `read` takes them; sorted."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        last = (path.rpartition("/")[2] for path in found)
        return sorted(f"{folder}/{name}" for name in last if not name.startswith("."))  # with a dot: on its way

    def read(self, name: str) -> bytes | None:
        """The file's content; None where there is no such file."""
        try:
            content: bytes = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Raises OSError."""
        path = self._path(name)
        if isinstance(self._files, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(Path(path), content)
        else:
            self._files.pipe_file(path, content)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
