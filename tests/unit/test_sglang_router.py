"""SGLang's router: what it promises, and its plain torch path where the package is installed."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings

from difftest.engine import check
from difftest.judging.outcome import Verdict
from oracles import sglang_package
from oracles.sglang_router import SglangRouter, SglangRouterInterpreted, SglangRouterNative
from strategies import RouterCapability, RouterScenario, RouterShape, Scores, router_scenarios

ALL = (SglangRouter(), SglangRouterNative(), SglangRouterInterpreted())
installed = pytest.mark.skipif(
    sglang_package.version() is None, reason="sglang is not installed: it is of the extra 'sglang', and no CI has it"
)


def scenario(*, groups=1, **scores):
    return RouterScenario(shape=RouterShape(experts=4, groups=groups), scores=Scores(**scores))


@pytest.mark.parametrize("oracle", ALL, ids=lambda oracle: oracle.name)
def test_what_its_configuration_cannot_say_is_declined(oracle):
    assert oracle.unsupported(scenario(scoring="softmax", bias="normal", groups=2)) is not None
    assert oracle.unsupported(scenario(bias="normal", groups=4)) == "a bias with groups of one expert"
    assert oracle.unsupported(scenario()) == "sigmoid without a bias or group limits"
    for promised in (
        scenario(bias="zero"),
        scenario(groups=2),
        scenario(scoring="softmax"),
        scenario(scoring="softmax", bias="normal"),
    ):
        assert oracle.unsupported(promised) is None


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert SglangRouterInterpreted().missing() == "Triton's interpreter is off: run with TRITON_INTERPRET=1"
    monkeypatch.setattr(sglang_package, "version", lambda: None)
    assert SglangRouterNative().missing() == "not installed: pip install 'difftest[sglang]'"


@installed
@given(router_scenarios(RouterCapability(empty_batch=False), profile="quick"))
@settings(max_examples=60, deadline=None)
def test_plain_torch_agrees(drawn):
    # Where a kept group's score underflows an expert of a dropped one is chosen: a known finding, with a case.
    assume(drawn.shape.groups == 1 or all(abs(getattr(edit, "value", 0.0)) < 80 for edit in drawn.logits.edits))
    assert check(drawn, SglangRouterNative()).verdict in (Verdict.AGREES, Verdict.UNSUPPORTED)
