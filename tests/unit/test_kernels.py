from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

import oracles
from oracles import kernels


def round_to(*_: object) -> torch.Tensor:
    raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable")


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", kernels.usable.__wrapped__)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))  # on no GPU


def given(monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "oracles.formats_triton", module)
    monkeypatch.setattr(oracles, "formats_triton", module, raising=False)


def test_kernels_are_used_where_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SimpleNamespace(round_to=lambda value, *_: value))
    assert kernels.usable()


def test_without_triton_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not kernels.usable()


def test_what_triton_lacks_is_one_line_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given(monkeypatch, SimpleNamespace(round_to=round_to))
    assert not kernels.usable()
    assert caplog.messages == [
        "Triton makes no kernel here (Failed to find C compiler. Please specify via CC environment variable): large "
        "cases take longer"
    ]
