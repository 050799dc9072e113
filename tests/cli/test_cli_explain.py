"""What `difftest explain` shows and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def swapped(difftest) -> str:
    """The case of a kernel with a known mistake."""
    budget = ("--profile", "quick", "--examples", "2", "--seed", "7")
    difftest("run", "--candidate", "kernels.py:Swapped", *budget)
    (path,) = Path("cases").glob("*.reference.*.case.json")
    return str(path)


def test_a_known_mistake(swapped, difftest, snapshot):
    result = difftest("explain", swapped, "--json", "out.jsonl")
    assert str(result) == snapshot
    assert result.code == 0
    (event,) = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert event["event"] == "CaseExplained"
    assert event["explanation"]["matches"][0]["name"] == "gate-up-swapped"
    assert "gate-up-swapped" in json.loads(Path(swapped).read_text())["explanation"]


def test_nothing_known_matches(case, difftest, snapshot):
    result = difftest("explain", case("a", "Off"))
    assert str(result) == snapshot
    assert result.code == 0


def test_not_seen_again(case, difftest, snapshot):
    path = case("a", "Off")
    Path("kernels.py").write_text(Path("kernels.py").read_text() + "\n\nOff = Right\n")
    result = difftest("explain", path)
    assert str(result) == snapshot
    assert result.code == 1


def test_damaged_file(difftest, snapshot):
    Path("a.case.json").write_text("not json at all")
    result = difftest("explain", "a.case.json")
    assert str(result) == snapshot
    assert result.code == 2


def test_oracle_file_is_gone(case, difftest, snapshot):
    path = case("a")
    Path("kernels.py").unlink()
    result = difftest("explain", path)
    assert str(result) == snapshot
    assert result.code == 3


def test_not_installed(case, difftest, snapshot):
    path = case("a")
    Path("kernels.py").write_text(Path("kernels.py").read_text() + "\n\nRejects = Absent\n")
    result = difftest("explain", path)
    assert str(result) == snapshot
    assert result.code == 3
