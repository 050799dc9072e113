"""What `difftest oracles` shows."""

from __future__ import annotations

import pytest

import oracles


@pytest.fixture
def installed(monkeypatch):
    """Stands in for the entry points of a machine."""
    specs = {"absent": "Absent", "broken": "Nothing", "declared": "Loose", "unsure": "DoesNotKnow"}
    find = oracles.find
    monkeypatch.setattr(oracles, "names", lambda: sorted(specs))
    monkeypatch.setattr(oracles.base, "find", lambda name: find(f"kernels.py:{specs[name]}" if name in specs else name))


@pytest.mark.usefixtures("installed")
def test_each_is_available_or_says_what_it_lacks(difftest, snapshot):
    result = difftest("oracles")
    assert str(result) == snapshot
    assert result.code == 0


def test_those_of_this_project(difftest):
    result = difftest("oracles")
    assert result.code == 0
    for name in ("reference", "grouped-mm"):
        line = next(line for line in result.out.splitlines() if line.startswith(name))
        assert line.split() == [name, "available"]


def test_no_oracle_at_all(difftest, monkeypatch, snapshot):
    """difftest that is on the path but was not installed has no entry points."""
    monkeypatch.setattr(oracles, "names", list)
    assert str(difftest("oracles")) == snapshot
