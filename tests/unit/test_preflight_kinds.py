"""Routers and layers do not mix in one campaign."""

from __future__ import annotations

import pytest

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
