"""A candidate that spoils what it is given is found, attributed and shrunk the same whatever ran before it: neither its
weights nor what it made of them reach another case."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from difftest.engine import Engine
from difftest.explain.explanation import Explanation
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.trial import InProcess
from difftest.shrinking.shrink import Shrinker
from oracles import kept
from oracles.faults import FAULTS, Twin
from oracles.grouped_mm import GroupedMM, Prepared
from oracles.kept import KEPT
from oracles.problem import Problem
from strategies import MaskSlot, Routing, Scenario, Shape, Values

START = Scenario(
    shape=Shape(tokens=5, hidden=96, intermediate=64, experts=3, top_k=2),
    routing=Routing(seed=3, edits=(MaskSlot(token=1, slot=0),)),
    values=Values(seed=11),
)


def spoil(tensor: torch.Tensor) -> None:
    """Write behind torch's back, as a kernel does: no version of the tensor tells of it."""
    version = tensor._version
    tensor.detach().view(torch.uint8).numpy()[...] ^= 0x11
    assert tensor._version == version


class InPrepare(GroupedMM):
    """Spoils its weights before it converts them, where H is 64 or more."""

    name = "in-prepare"

    def prepare(self, problem: Problem) -> Prepared:
        if problem.hidden >= 64:
            spoil(problem.w13)
        return super().prepare(problem)


class InCall(GroupedMM):
    """Spoils a scale of its weights in each call, after it has answered."""

    name = "in-call"

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        output = super().__call__(prepared)
        spoil(prepared.problem.w2_scale)
        return output


class Late(GroupedMM):
    """Spoils its weights when it is asked about the same problem again, which no comparison of inputs sees."""

    name = "late"

    def __init__(self) -> None:
        self._last: Prepared | None = None

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        if self._last is prepared:
            spoil(prepared.problem.w13)
        self._last = prepared
        return super().__call__(prepared)


class OwnWeights(GroupedMM):
    """Spoils what it made of the weights, so that the next call on it answers wrongly, where I is 64 or more."""

    name = "own-weights"

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        output = super().__call__(prepared)
        if prepared.problem.intermediate >= 64:
            spoil(prepared.w2.view(torch.int16))
        return output


CANDIDATES = [InPrepare, InCall, Late, OwnWeights]


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    KEPT.forget()


def outcome(candidate: GroupedMM, scenario: Scenario) -> Outcome:
    """With all that is told of it, but for the lines of a traceback."""
    return InProcess(candidate, "reference").run(scenario, {"determinism", "poison", "permute", "guard"})


def shrunk(candidate: GroupedMM, first: Outcome) -> Outcome:
    return Shrinker(Engine(candidate), first, lambda *_: None).shrink(None).smallest


def explained(candidate: Twin, smallest: Outcome, worst: Outcome) -> Explanation:
    return InProcess(candidate, "reference").explain(smallest, worst)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_right_candidate_is_right_after_one_that_spoils_its_weights(candidate: type[GroupedMM]) -> None:
    for _ in range(2):
        found = outcome(candidate(), START)
        assert outcome(GroupedMM(), START).verdict is Verdict.AGREES
    assert KEPT.asked["w13", True] > 0
    KEPT.forget()
    assert outcome(candidate(), START) == found


@pytest.mark.parametrize("candidate", [InPrepare, InCall, OwnWeights])
def test_a_spoiler_is_found_and_shrunk_the_same_whatever_ran_before(candidate: type[GroupedMM]) -> None:
    first = outcome(candidate(), START)
    alone = shrunk(candidate(), first)
    for other in CANDIDATES:  # and now with the weights of all these cases at hand
        for scenario in (START, alone.scenario, replace(START, values=Values(seed=0))):
            outcome(other(), scenario)
    assert outcome(candidate(), START) == first
    assert shrunk(candidate(), first) == alone
    KEPT.forget()
    assert outcome(candidate(), START) == first
    assert outcome(candidate(), alone.scenario).bucket == alone.bucket


def test_where_a_spoiler_ends() -> None:
    ends = {
        candidate.name: shrunk(candidate(), outcome(candidate(), START))
        for candidate in (InPrepare, InCall, OwnWeights)
    }
    assert {name: end.bucket.check for name, end in ends.items()} == {
        "in-prepare": "inputs",
        "in-call": "inputs",
        "own-weights": "determinism",
    }
    assert ends["in-prepare"].scenario == Scenario(shape=Shape(tokens=0, hidden=64))
    assert ends["in-call"].scenario == Scenario(shape=Shape(tokens=0))
    assert ends["own-weights"].scenario.shape == Shape(intermediate=64)


def test_a_finding_of_a_check_is_explained_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS["tail-scale-out-of-bounds"].oracle
    worst, smallest = outcome(fault(), START), outcome(fault(), Scenario())
    first = explained(fault(), smallest, worst)
    assert "tail-scale-out-of-bounds" in str(first)
    assert KEPT.asked["w13", True] > 100
    monkeypatch.setattr(kept, "MOST", 0)
    KEPT.forget()
    assert explained(fault(), smallest, worst) == first
    assert KEPT.asked["w13", True] == 0
