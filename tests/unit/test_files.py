"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from difftest.files import can_be_replaced, write_whole


def test_a_file_replaces_a_file(tmp_path):
    path = tmp_path / "a.json"
    for content in ("1", "2"):
        assert can_be_replaced(path)
        write_whole(path, content)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.json", "2")]


def test_what_is_no_file_stays(tmp_path):
    """As root a rename would put a file where /dev/null was."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert not can_be_replaced(path)
    with pytest.raises(OSError, match="Is no regular file"):
        write_whole(path, "1")
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_file_can_be(tmp_path):
    assert not can_be_replaced(tmp_path)
    assert not can_be_replaced(tmp_path / "nowhere" / "a.json")
