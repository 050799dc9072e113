"""Whatever an oracle does, it becomes a typed outcome of its scenario, and the next scenario loses nothing."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from difftest.engine import Engine
from difftest.judging.checks import CHECKS
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.variants import clone_tensors, with_tensors
from oracles.grouped_mm import GroupedMM, Prepared
from oracles.problem import Problem
from strategies.scenario import Scenario, Shape

BAD = Scenario(shape=Shape(tokens=5, hidden=64, experts=4, top_k=2))
GOOD = Scenario(shape=Shape(tokens=4, hidden=64, experts=4, top_k=2))


class Misbehaving(GroupedMM):
    """grouped-mm that does `what(answer)` in `step` when the batch has five rows."""

    name = "misbehaving"

    def __init__(self, step: str, what: Callable[[Any], Any]) -> None:
        self._step, self._what = step, what

    def _maybe(self, step: str, tokens: int, answer: Any) -> Any:
        return self._what(answer) if (step, tokens) == (self._step, 5) else answer

    def unsupported(self, scenario: Scenario) -> str | None:
        return self._maybe("unsupported", scenario.shape.tokens, super().unsupported(scenario))

    def prepare(self, problem: Problem) -> Prepared:
        return self._maybe("prepare", problem.tokens, super().prepare(problem))

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        return self._maybe("call", prepared.problem.tokens, super().__call__(prepared))


def run(step: str, what: Callable[[Any], Any]) -> Outcome:
    """The outcome of BAD; GOOD agrees before and after it."""
    engine = Engine(Misbehaving(step, what))
    assert engine.run(GOOD, ()).verdict is Verdict.AGREES
    outcome = engine.check(BAD, checks=CHECKS)
    assert engine.run(GOOD, ()).verdict is Verdict.AGREES
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert outcome.is_finding
    return outcome


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises(error: BaseException) -> Callable[[Any], Any]:
    def what(_: Any) -> Any:
        raise error

    return what


def recurses(answer: Any) -> Any:
    return recurses(answer)


def exhausts_memory(_: Any) -> Any:
    return torch.empty(1 << 60)


@pytest.mark.parametrize("step", ["unsupported", "prepare", "call"])
@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (raises(ValueError("shape [5, 64] at 0x7f3a: need 128\nand more")), "ValueError: shape [#] at #: need #"),
        (raises(RuntimeError("\n\n  CUDA error\n")), "RuntimeError: CUDA error"),
        (raises(AssertionError()), "AssertionError"),
        (raises(Speechless()), "Speechless"),
        (raises(SystemExit(3)), "SystemExit: #"),
        (raises(GeneratorExit()), "GeneratorExit"),
        (raises(MemoryError()), "MemoryError"),
        (raises(StopIteration()), "StopIteration"),
        (recurses, "RecursionError: maximum recursion depth exceeded"),
        (exhausts_memory, "RuntimeError: "),
        (lambda _: sys.exit("out of tiles"), "SystemExit: out of tiles"),
    ],
)
def test_whatever_it_raises_is_a_rejection(step: str, what: Callable[[Any], Any], kind: str) -> None:
    outcome = run(step, what)
    assert (outcome.verdict, outcome.check) == (Verdict.REJECTED, step)
    assert outcome.kind.startswith(kind)
    assert outcome.kind == kind or kind.startswith(("Rec", "Run"))
    assert "Traceback" in outcome.traceback
    assert len(outcome.traceback) < 10_000
    assert "\n" not in outcome.detail


@pytest.mark.parametrize("step", ["unsupported", "prepare", "call"])
def test_the_users_interrupt_passes(step: str) -> None:
    engine = Engine(Misbehaving(step, raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        engine.check(BAD, checks=())
    assert engine.check(GOOD, checks=()).verdict is Verdict.AGREES


@pytest.mark.parametrize(
    "what",
    [
        lambda _: None,
        lambda answer: answer.tolist(),
        lambda answer: (answer, answer),
        lambda answer: answer[:-1],
        lambda answer: answer.flatten(),
        lambda answer: answer.float(),
        lambda answer: answer.to(torch.float16),
        lambda answer: answer.to_sparse(),
        lambda answer: answer.to("meta"),
    ],
)
def test_what_is_no_answer_diverges(what: Callable[[Any], Any]) -> None:
    outcome = run("call", what)
    assert (outcome.verdict, outcome.check, outcome.kind) == (Verdict.DIVERGES, "reference", "shape_or_dtype")
    assert "must be [5, 64] torch.bfloat16 on cpu" in outcome.detail


def test_nan_diverges() -> None:
    outcome = run("call", lambda answer: answer * torch.nan)
    assert (outcome.verdict, outcome.kind) == (Verdict.DIVERGES, "must_be_finite")


@pytest.mark.parametrize(
    ("step", "write"),
    [
        ("prepare", lambda prepared: prepared.problem.w13.bitwise_xor_(0x88)),
        ("prepare", lambda prepared: prepared.problem.hidden_states.zero_()),
        ("prepare", lambda prepared: prepared.problem.topk_ids.add_(1)),
        ("prepare", lambda prepared: prepared.problem.topk_weights.mul_(2)),
    ],
)
def test_a_write_to_the_inputs_is_found_and_blamed_alone(step: str, write: Callable[[Prepared], Any]) -> None:
    """The weights are converted before they are overwritten, so that the answer to what was asked may be right."""

    def what(prepared: Prepared) -> Prepared:
        kept = Prepared(problem=_copy(prepared.problem), w13=prepared.w13, w2=prepared.w2)
        write(prepared)
        return kept

    outcome = run(step, what)
    assert [(finding.check, finding.kind) for finding in outcome.findings] == [("inputs", "inputs_changed")]
    assert outcome.detail.startswith("wrote to its inputs: ")


def _copy(problem: Problem) -> Problem:
    return with_tensors(problem, clone_tensors(problem))


def test_an_answer_from_overwritten_inputs_is_judged_by_what_was_asked() -> None:
    def what(prepared: Prepared) -> Prepared:
        prepared.problem.hidden_states.add_(1)
        return prepared

    kinds = [(finding.check, finding.kind) for finding in run("prepare", what).findings]
    assert kinds == [("inputs", "inputs_changed"), ("reference", "impossible")]


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_that_changes_is_nondeterministic_and_nothing_is_read_into_it(seed: int) -> None:
    draw = random.Random(seed)
    findings = run("call", lambda answer: answer + 0.5 * draw.randrange(3)).findings
    assert {finding.check for finding in findings} <= {"reference", "determinism", "poison"}
    (race,) = (finding for finding in findings if finding.check == "determinism")
    assert (race.verdict, race.kind) == (Verdict.NONDETERMINISTIC, "not_bit_equal")


def test_a_view_of_the_inputs_is_an_answer_like_any_other() -> None:
    class View(GroupedMM):
        def __call__(self, prepared: Prepared) -> torch.Tensor:
            return prepared.problem.hidden_states

    outcome = Engine(View()).check(BAD, checks=())
    assert (outcome.verdict, outcome.kind) == (Verdict.DIVERGES, "impossible")
