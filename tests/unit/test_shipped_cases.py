"""A mistake that the shipped ledger names is known in every form that campaigns have met it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from difftest.engine import Engine
from difftest.judging.checks import CHECKS
from difftest.ledger import cases
from difftest.ledger.ledger import Ledger
from oracles.ggml import GgmlRepacked
from strategies import (
    AssignExpert,
    DuplicateSlot,
    Execution,
    Parallel,
    Routing,
    RoutingEdit,
    Scenario,
    SetWeight,
    Shape,
)

FIRST_TWICE = DuplicateSlot(token=0, slot=0, source=1)
NONFINITE = SetWeight(token=0, slot=0, weight=float("inf"))


def _scenario(
    tokens: int,
    experts: int,
    top_k: int,
    *edits: RoutingEdit,
    ranks: int = 1,
    seed: int = 0,
    padding: int = 0,
    poison: int = 0,
) -> Scenario:
    return Scenario(
        shape=Shape(tokens=tokens, experts=experts, top_k=top_k),
        parallel=Parallel(ep_size=ranks),
        routing=Routing(seed=seed, edits=edits),
        execution=Execution(padding=padding, poison=poison),
    )


DUPLICATES = {
    "three in one row": _scenario(1, 3, 3, FIRST_TWICE),
    "assigned by hand": _scenario(2, 2, 2, AssignExpert(token=0, slot=1, expert=0)),
    "beside padding": _scenario(1, 9, 5, AssignExpert(token=0, slot=0, expert=0), padding=1),
    "in full memory": _scenario(1, 3, 3, FIRST_TWICE, poison=255),
    "and an infinite weight": _scenario(1, 3, 3, FIRST_TWICE, NONFINITE, poison=255),
    "on a rank": _scenario(1, 4, 4, FIRST_TWICE, ranks=2),
}


@pytest.mark.skipif(GgmlRepacked().missing() is not None, reason=str(GgmlRepacked().missing()))
@pytest.mark.parametrize("name", DUPLICATES)
def test_a_duplicate_expert_of_ggml_repacked_is_known(name: str, tmp_path: Path) -> None:
    engine = Engine("ggml-repacked")
    here = engine.executor.introduction.fingerprint
    ledger = Ledger(cases.known(tmp_path, ["ggml-repacked"]), ["ggml-repacked"], "reference", lambda _: here)
    found = engine.check(DUPLICATES[name], checks=CHECKS).findings
    assert found
    for finding in found:
        known = ledger.explain(finding, engine).known
        assert known is not None, finding
        assert cases.load(known).trigger == "duplicate expert"
