"""What is refused before a run starts: routers and layers in one campaign, a device that is not there."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from difftest import preflight
from difftest.options import InvalidOption, Options


def options(*candidates, reference="reference"):
    return Options(candidates=candidates, reference=reference, examples=1, seed=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (options("router-torch", "grouped-mm"), "--candidate router-torch: is a router, others are not"),
        (options("router-torch", reference="grouped-mm"), "--reference grouped-mm: must be 'reference' for routers"),
        (options("grouped-mm", reference="router-torch"), "--reference router-torch: is a router, the candidates are"),
    ],
)
def test_what_does_not_fit(given, message):
    with pytest.raises(InvalidOption, match=message):
        preflight.check_kinds(given)


def test_each_kind_alone():
    preflight.check_kinds(options("router-torch"))
    preflight.check_kinds(options("grouped-mm"))


@pytest.mark.parametrize(("name", "devices", "lacks"), [("cuda", 0, True), ("cuda", 1, False), ("cpu", 0, False)])
def test_a_device_that_is_named_is_there(monkeypatch, name, devices, lacks) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(preflight.Missing, match=f"--device {name}: there is no") if lacks else nullcontext():
        preflight.check_device(name)
