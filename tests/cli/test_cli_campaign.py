"""`difftest campaign`, as far as it needs no Ray; tests/drills/test_cluster.py has the rest."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ASKED = ("--candidate", "kernels.py:Right", "--profile", "quick", "--seed", "7")


def test_without_ray_it_says_what_to_install(difftest, monkeypatch, snapshot):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = difftest("campaign", "store", *ASKED)
    assert str(result) == snapshot
    assert (result.code, result.out) == (3, "")
    assert not Path("store").exists()


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("nosuch://bucket/nightly", *ASKED), id="store-of-no-kind"),
        pytest.param(("kernels.py", *ASKED), id="store-is-a-file"),
        pytest.param(("store", *ASKED, "--hours", "0"), id="hours-zero"),
        pytest.param(("store", *ASKED, "--hours", "nan"), id="hours-no-number"),
        pytest.param(("store", *ASKED, "--gpus", "2"), id="gpus-above-one"),
        pytest.param(("", *ASKED), id="store-is-empty"),
        pytest.param(("store", "--candidate", "absent.py:Kernel"), id="candidate-absent"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, difftest, monkeypatch, snapshot):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    result = difftest("campaign", *args)
    assert str(result) == snapshot
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
