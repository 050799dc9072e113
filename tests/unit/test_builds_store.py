"""The store of builds: what is found by name, what is not there, and what a half-made folder is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from difftest import builds
from difftest.builds import store

PLAIN = builds.Manifest(
    version="0.6.18",
    arch="9.0a",
    only="bf16xmxfp4",
    tiles=("64x16x128",),
    library="site/lib.so",
    sha256="0" * 64,
    sources="1" * 64,
    instantiations=("bf16 x e2m1",),
    left_out=3,
    compiler="nvcc 13.0",
    created="2026-01-02T00:00:00+00:00",
)
SITU = builds.Patch(name="situ", sha256="2" * 64)


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a build of this manifest, with changes, in an empty store."""
    monkeypatch.setenv("DIFFTEST_BUILDS", str(tmp_path / "builds"))

    def keep(folder: str, **changes: Any) -> Path:
        path = tmp_path / "builds" / folder
        path.mkdir(parents=True)
        (path / store.MANIFEST).write_text(json.dumps(dataclasses.replace(PLAIN, **changes).to_json()))
        return path

    return keep


def test_a_build_is_found_by_version_and_patches(keep: Any) -> None:
    keep("a")
    path = keep("b", patches=(SITU,))
    for name in ("0.6.18+situ", "0.6.18+situ.patch"):
        build = builds.find(name)
        assert build.name == "0.6.18+situ"
        assert build.path == (path / "site",)
        assert build.library == path / "site/lib.so"
        assert build.variables["FLASHINFER_WORKSPACE_BASE"].startswith(str(path))
    assert builds.find("0.6.18").manifest.patches == ()


def test_the_newest_for_the_architecture_is_taken(keep: Any) -> None:
    keep("old")
    newer = keep("new", created="2026-01-03T00:00:00+00:00")
    other = keep("sm120", arch="12.0a", created="2026-01-04T00:00:00+00:00")
    assert builds.find("0.6.18", arch="9.0a").root == newer
    assert builds.find("0.6.18", arch="12.0a").root == other


def test_a_missing_build_names_the_command(keep: Any) -> None:
    keep("a")
    with pytest.raises(builds.BuildNotFound) as caught:
        builds.find("0.6.18+situ+mine")
    assert "there: 0.6.18)" in str(caught.value)
    assert str(caught.value).endswith("difftest build --version 0.6.18 --patch situ --patch mine")
    with pytest.raises(builds.BuildNotFound, match="must be VERSION"):
        builds.find("situ")


def test_a_half_made_folder_is_no_build(keep: Any) -> None:
    path = keep("a")
    whole = (path / store.MANIFEST).read_text()
    for damaged in (whole[:40], "{}", whole.replace('"format_version": 1', '"format_version": 2')):
        (path / store.MANIFEST).write_text(damaged)
        with pytest.raises(builds.BuildNotFound):
            builds.find("0.6.18")
    (path / store.MANIFEST).unlink()
    with pytest.raises(builds.BuildNotFound):
        builds.find("0.6.18")


def test_a_moved_build_is_found_where_it_lies(keep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("a")
    (tmp_path / "builds").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("DIFFTEST_BUILDS", str(tmp_path / "elsewhere"))
    build = builds.find("0.6.18")
    assert build.library.is_relative_to(tmp_path / "elsewhere")
