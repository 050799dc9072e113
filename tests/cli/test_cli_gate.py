"""What `difftest gate` shows where no card is."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a card is not refused")


def test_without_the_card_it_refuses_in_one_line(difftest, snapshot):
    result = difftest("gate", "sm120", "--require-situ")
    assert str(result) == snapshot
    assert result.code == 3


def test_a_target_without_an_emulation(difftest, snapshot):
    assert str(difftest("gate", "sm90", "--emulate")) == snapshot


def test_an_unknown_target(difftest, snapshot):
    assert str(difftest("gate", "sm42")) == snapshot


def test_a_build_that_is_not_there(difftest, snapshot, monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFTEST_BUILDS", str(tmp_path / "builds"))
    result = difftest("gate", "sm90", "--environment", "0.6.18+situ")
    assert str(result) == snapshot
    assert result.code == 3
