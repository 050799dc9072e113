from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Change, Fake

import difftest
import difftest.engine
from difftest.engine import Engine
from difftest.journal import Journal
from difftest.judging import trial
from difftest.judging.checks import CHECKS
from difftest.judging.guard import PHASES, Spans, without_digits
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.trial import Done, InProcess
from oracles.base import OracleNotFound
from oracles.enclosure import Enclosure
from oracles.grouped_mm import Prepared
from oracles.kept import Kept
from oracles.numerics import Numerics
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies.scenario import Execution, Parallel, Routing, Scenario, SetWeight, Shape, ValueEdit, Values

PLAIN = Scenario(shape=Shape(tokens=5, hidden=64, intermediate=64, experts=4, top_k=2))


def test_agreement() -> None:
    outcome = difftest.check(PLAIN, "grouped-mm")
    assert outcome.verdict is Verdict.AGREES
    assert (outcome.candidate, outcome.reference) == ("grouped-mm", "reference")
    assert outcome.stats is not None
    assert (outcome.stats.elements, outcome.stats.mismatches) == (320, 0)


def test_importing_difftest_does_not_import_torch() -> None:
    code = "import sys, difftest, difftest.judging.outcome, difftest.journal; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_attribute_of_the_package_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        difftest.chekc  # noqa: B018


def test_an_unknown_oracle_or_check_is_an_error() -> None:
    with pytest.raises(OracleNotFound, match="'grouped'"):
        Engine("grouped")
    with pytest.raises(ValueError, match="'splitt' is not a check: use some of determinism"):
        Engine(Fake()).check(PLAIN, checks={"splitt"})
    with pytest.raises(ValueError, match="'splitt' is not a check"):
        Engine(Fake(), checks={"splitt"})


def test_outcomes_are_remembered_by_scenario_and_checks() -> None:
    candidate = Fake()
    engine = Engine(candidate)
    first = engine.check(PLAIN, checks=())
    assert engine.check(replace(PLAIN), checks=()) is first
    assert (engine.runs, candidate.calls) == (1, 1)
    engine.check(PLAIN, checks={"split"})
    assert engine.runs == 2
    assert engine.run(PLAIN, ()) == first
    assert engine.runs == 3


def test_the_oldest_outcome_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difftest.engine, "MEMO_SIZE", 2)
    engine = Engine(Fake())
    scenarios = [Scenario(values=Values(seed=seed)) for seed in range(3)]
    for scenario in [*scenarios, scenarios[2], scenarios[1], scenarios[0]]:
        engine.check(scenario, checks=())
    assert engine.runs == 4


def test_the_checks_of_a_campaign_are_a_sample_by_the_scenario() -> None:
    engine = Engine(Fake())
    counts = dict.fromkeys(CHECKS, 0)
    for seed in range(800):
        scenario = Scenario(values=Values(seed=seed))
        assert engine._sample(scenario) == engine._sample(replace(scenario))
        for name in engine._sample(scenario):
            counts[name] += 1
    for name, check in CHECKS.items():
        assert 0.6 < counts[name] * check.every / 800 < 1.5, name


def test_a_scenario_that_asks_for_a_check_gets_it() -> None:
    sample = Engine(Fake())._sample
    nan = ValueEdit(tensor="hidden_states", index=(0, 0), value="nan")
    for seed in range(20):
        assert "determinism" in sample(Scenario(execution=Execution(repeats=2), values=Values(seed=seed)))
        assert "isolation" in sample(Scenario(values=Values(seed=seed, edits=(nan,))))
        weight = SetWeight(token=0, slot=0, weight=float("inf"))
        assert "isolation" in sample(Scenario(routing=Routing(edits=(weight,)), values=Values(seed=seed)))
    assert Engine(Fake(), checks={"split"})._sample(Scenario(execution=Execution(repeats=2))) <= {"split"}


@pytest.mark.parametrize(
    "name", ["reference", "prepare", "call", "unsupported", "inputs", "no_local_expert", "process"]
)
def test_the_check_of_any_bucket_may_be_asked_for(name: str) -> None:
    assert Engine(Fake()).check(Scenario(), checks={name}).verdict is Verdict.AGREES


# --- what an oracle may say ----------------------------------------------------------------------------------------


class Says(Fake):
    """Each step does what `steps` says, in place of what it should."""

    def __init__(self, **steps: Callable[[], Any]) -> None:
        super().__init__()
        self._steps = steps

    def unsupported(self, _: Scenario) -> str | None:
        return self._steps["unsupported"]() if "unsupported" in self._steps else None

    def prepare(self, problem: Problem) -> Prepared:
        return self._steps["prepare"]() if "prepare" in self._steps else super().prepare(problem)

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        return self._steps["call"]() if "call" in self._steps else super().__call__(prepared)


def test_unsupported() -> None:
    outcome = Engine(Says(unsupported=lambda: "H is odd")).check(PLAIN)
    assert (outcome.verdict, outcome.reason) == (Verdict.UNSUPPORTED, "H is odd")
    assert not outcome.is_finding


def test_a_missing_oracle_is_unsupported() -> None:
    class Missing(Fake):
        def missing(self) -> str | None:
            return "not installed: pip install difftest[ggml]"

    outcome = Engine(Missing()).check(PLAIN)
    assert (outcome.verdict, outcome.reason) == (Verdict.UNSUPPORTED, "not installed: pip install difftest[ggml]")


@pytest.mark.parametrize("answer", [False, "", " ", 0])
def test_a_reason_that_is_none_is_a_rejection(answer: object) -> None:
    outcome = Engine(Says(unsupported=lambda: answer)).check(PLAIN)
    assert (outcome.verdict, outcome.check) == (Verdict.REJECTED, "unsupported")
    assert outcome.kind.startswith("TypeError: unsupported returned")


# --- what an oracle may answer -------------------------------------------------------------------------------------


def impossible(output: torch.Tensor, _: Problem) -> torch.Tensor:
    output[3, 7] += 1.0
    return output


def test_divergence_names_the_element() -> None:
    outcome = Engine(Fake(impossible)).check(PLAIN, checks=())
    assert (outcome.verdict, outcome.check, outcome.kind) == (Verdict.DIVERGES, "reference", "impossible")
    assert outcome.worst is not None
    assert (outcome.worst.token, outcome.worst.column) == (3, 7)
    assert outcome.stats is not None
    assert outcome.other_findings == ()


def test_two_mistakes_are_two_findings() -> None:
    def both(output: torch.Tensor, problem: Problem) -> torch.Tensor:
        output[0, 0] = torch.nan
        return impossible(output, problem)

    outcome = Engine(Fake(both)).check(PLAIN, checks=())
    assert [finding.kind for finding in outcome.findings] == ["must_be_finite", "impossible"]
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_an_answer_in_one_buffer_every_time_is_read_before_the_next() -> None:
    class OneBuffer(Fake):
        buffer: torch.Tensor | None = None

        def __call__(self, prepared: Prepared) -> torch.Tensor:
            output = super().__call__(prepared)
            if self.buffer is None or self.buffer.shape != output.shape:
                self.buffer = output
            return self.buffer.copy_(output)

    assert Engine(OneBuffer()).check(PLAIN, checks=CHECKS).verdict is Verdict.AGREES


def test_a_gradient_is_no_obstacle() -> None:
    def with_gradient(output: torch.Tensor, _: Problem) -> torch.Tensor:
        return output.requires_grad_()

    assert Engine(Fake(with_gradient)).check(PLAIN, checks=CHECKS).verdict is Verdict.AGREES


class Flaky(Fake):
    """Wrong in calls number 1, 1 + period, ..."""

    def __init__(self, period: int, change: Change = impossible) -> None:
        super().__init__(change)
        self._wrong, self._period = change, period

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        self._change = self._wrong if self.calls % self._period == 0 else None
        return super().__call__(prepared)


def test_a_divergence_that_does_not_repeat_is_nondeterministic() -> None:
    outcome = Engine(Flaky(period=4)).check(PLAIN, checks=())
    assert (outcome.verdict, outcome.check, outcome.kind) == (Verdict.NONDETERMINISTIC, "reference", "impossible")
    assert str(outcome.rate) == "2 of 8 runs"
    assert outcome.worst is not None


def test_a_race_is_one_bucket_whichever_check_sees_it() -> None:
    class Race(Fake):
        def __call__(self, prepared: Prepared) -> torch.Tensor:
            output = super().__call__(prepared)
            # Wrong in all but the first call, and each time in another way: the reference sees nothing.
            return output if self.calls == 1 else output + self.calls

    outcome = Engine(Race()).check(PLAIN, checks=set(CHECKS) - {"poison", "determinism"})
    assert [str(finding.bucket) for finding in outcome.findings] == ["fake.determinism.nondeterministic.not_bit_equal"]
    assert "(seen in split)" in outcome.detail


# --- implausible ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sharp_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sharp radius is 0, the hard one wide: every difference is implausible."""

    def altered(problem: Problem, numerics: Numerics, *_: object) -> Enclosure:
        center = enclose(problem, numerics).center
        return replace(enclose(problem, numerics), hard=center.abs() + 10.0, sharp=torch.zeros_like(center))

    monkeypatch.setattr("difftest.judging.checks.enclose", altered)


def off_by_one(output: torch.Tensor, _: Problem) -> torch.Tensor:
    return output + 1.0


@pytest.mark.usefixtures("sharp_is_zero")
def test_implausible_on_every_redraw_is_a_finding() -> None:
    outcome = Engine(Fake(off_by_one)).check(PLAIN, checks=())
    assert (outcome.verdict, outcome.kind) == (Verdict.DIVERGES, "implausible")
    assert outcome.detail.endswith("and so in 3 redraws of signs")


@pytest.mark.usefixtures("sharp_is_zero")
@pytest.mark.parametrize("last", [1, 2, 3])
def test_implausible_that_a_redraw_does_not_repeat_is_counted_only(last: int) -> None:
    class Once(Fake):
        def __call__(self, prepared: Prepared) -> torch.Tensor:
            output = super().__call__(prepared)
            return output + 1.0 if self.calls <= last else output

    outcome = Engine(Once()).check(PLAIN, checks=())
    assert outcome.verdict is Verdict.AGREES
    assert outcome.stats is not None
    assert outcome.stats.one_offs == 1


@pytest.mark.usefixtures("sharp_is_zero")
def test_impossible_on_a_redraw_is_impossible() -> None:
    class Worse(Fake):
        def __call__(self, prepared: Prepared) -> torch.Tensor:
            output = super().__call__(prepared)
            return output + (1.0 if self.calls == 1 else 1e6)

    outcome = Engine(Worse()).check(PLAIN, checks=())
    assert (outcome.verdict, outcome.kind) == (Verdict.DIVERGES, "impossible")
    assert outcome.detail.endswith("(after redraw 0 of signs)")


@pytest.mark.usefixtures("sharp_is_zero")
@pytest.mark.parametrize(("last", "kinds"), [(2, ["must_be_finite"]), (99, ["must_be_finite", "implausible"])])
def test_implausible_beside_another_finding_still_needs_its_redraws(last: int, kinds: list[str]) -> None:
    class Both(Fake):
        def __call__(self, prepared: Prepared) -> torch.Tensor:
            output = super().__call__(prepared)
            output = output + 1.0 if self.calls <= last else output
            output[1, 1] = torch.nan
            return output

    findings = Engine(Both()).check(PLAIN, checks=()).findings
    assert [(finding.verdict, finding.kind) for finding in findings] == [(Verdict.DIVERGES, kind) for kind in kinds]


# --- another reference ---------------------------------------------------------------------------------------------


def test_two_candidates() -> None:
    assert Engine("grouped-mm", Fake()).check(PLAIN, checks=CHECKS).verdict is Verdict.AGREES
    outcome = Engine(Fake(impossible), "grouped-mm").check(PLAIN, checks=())
    assert (outcome.verdict, outcome.kind, outcome.reference) == (Verdict.DIVERGES, "impossible", "grouped-mm")
    # The mistake is the reference's own, and the report says which one that was.
    assert Engine("grouped-mm", Fake(impossible)).check(PLAIN, checks=()).reference == "fake"


def test_the_reference_may_decline() -> None:
    outcome = Engine(Fake(), Says(unsupported=lambda: "M is 5")).check(PLAIN)
    assert (outcome.verdict, outcome.reason) == (Verdict.UNSUPPORTED, "reference fake: M is 5")


def test_what_the_reference_writes_to_its_inputs_is_not_the_candidates_mistake() -> None:
    class Writes(Fake):
        def prepare(self, problem: Problem) -> Prepared:
            prepared = super().prepare(replace(problem, hidden_states=problem.hidden_states.clone()))
            problem.hidden_states.zero_()
            return prepared

    assert Engine(Fake(), Writes()).check(PLAIN, checks=CHECKS).verdict is Verdict.AGREES


def test_a_mistake_of_the_reference_is_told_as_such() -> None:
    def fail() -> None:
        raise ValueError("no 3")

    for steps in ({"unsupported": fail}, {"prepare": fail}, {"call": fail}):
        outcome = Engine(Says(), Says(**steps)).check(PLAIN, checks=())
        assert (outcome.verdict, outcome.check) == (Verdict.REJECTED, "reference")
        assert outcome.detail == "reference fake: ValueError: no 3"
    outcome = Engine(Says(), Says(call=lambda: None)).check(PLAIN, checks=())
    assert outcome.detail.startswith("reference fake: returned NoneType")


def test_the_reference_as_a_candidate() -> None:
    assert Engine(Reference()).check(PLAIN, checks=CHECKS).verdict is Verdict.AGREES


# --- the rest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size 12 != 7", "size # != #"),
        ("shape [1, 22, 3] at 0xdeadBEEF", "shape [#] at #"),
        ("1e-5 and 3.25", "# and #"),
        ("(-1, 5)", "(-#)"),
        ("no digits", "no digits"),
        ("assertion failed: x (/build/a-1.2//csrc/moe.cuh:4061)", "assertion failed: x (#)"),
        ("K/32 of out/put", "K/# of out/put"),
    ],
)
def test_digits_are_taken_out(text: str, expected: str) -> None:
    assert without_digits(text) == expected


def test_time_is_told_by_phase() -> None:
    engine = Engine(Fake())
    engine.check(PLAIN, checks=CHECKS)
    seconds = engine.spans.seconds
    assert all(seconds[name] > 0 for name in PHASES)
    assert 0 < engine.spans.overhead < seconds["total"]


def test_the_time_of_a_block_in_another_one_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    spans = Spans()
    with spans.measure("total"), spans.measure("checks"), spans.measure("kernel"):
        pass
    assert (spans.seconds["total"], spans.seconds["checks"], spans.seconds["kernel"]) == (5, 2, 1)
    assert spans.overhead == 2


class Elsewhere:
    """An executor that is not this process."""

    candidate, reference, isolated = "far", "reference", True

    def __init__(self) -> None:
        self.asked: list[tuple[Scenario, frozenset[str]]] = []

    def submit(self, scenario: Scenario, checks: frozenset[str]) -> Done:
        self.asked.append((scenario, checks))
        hung = Outcome(
            verdict=Verdict.HUNG,
            scenario=scenario,
            candidate="far",
            reference="reference",
            check="process",
            kind="timeout",
            detail="no answer in 60 s",
        )
        return Done(hung)


def test_another_executor_is_asked_once_and_journaled(tmp_path: Path) -> None:
    elsewhere = Elsewhere()
    with Journal(tmp_path) as journal:
        engine = Engine("far", executor=elsewhere, journal=journal)  # type: ignore[arg-type]  # has but what is asked
        assert engine.check(PLAIN, checks={"split"}).verdict is Verdict.HUNG
        engine.check(PLAIN, checks={"split"})
        assert elsewhere.asked == [(PLAIN, frozenset({"split"}))]
        assert '"candidate": "far"' in journal.path.read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_is_judged_by_its_own_enclosure() -> None:
    scenario = Scenario(shape=Shape(tokens=3, experts=4, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1))

    def all_ranks(*_: object) -> torch.Tensor:
        whole = build(replace(scenario, parallel=Parallel()))
        return Fake()(Fake().prepare(whole))

    assert Engine(Fake(all_ranks)).check(scenario, checks=()).kind == "impossible"


@pytest.mark.parametrize(
    ("tokens", "hidden", "checks", "made", "enclosed"),
    [
        (1, 64, {"reference"}, "cpu", "cpu"),
        (1 << 10, 64, {"reference"}, "cpu", "meta"),
        (1, 1 << 13, {"reference"}, "meta", "meta"),
        (1, 64, {"inputs"}, "meta", "meta"),
    ],
)
def test_the_size_of_a_scenario_says_where_it_is_judged(
    monkeypatch: pytest.MonkeyPatch, tokens: int, hidden: int, checks: set[str], made: str, enclosed: str
) -> None:
    """Of a candidate that brings its tensors to a GPU. There is none here: what is asked for is noted."""
    asked: list[torch.device | None] = []

    def building(scenario: Scenario, device: torch.device) -> Problem:
        asked.append(device)
        return build(scenario)

    def enclosing(problem: Problem, numerics: Numerics, _: Kept, device: torch.device | None) -> Enclosure:
        asked.append(device)
        return enclose(problem, numerics)

    monkeypatch.setattr(trial, "build", building)
    monkeypatch.setattr(trial, "SMALL", 1 << 20)
    monkeypatch.setattr(trial, "MADE", 1 << 20)
    monkeypatch.setattr("difftest.judging.checks.enclose", enclosing)
    process = InProcess(Fake(), "reference", device="meta", by_size=True)
    scenario = Scenario(shape=Shape(tokens=tokens, hidden=hidden, intermediate=64, experts=2, top_k=1))
    assert Engine(Fake(), executor=process).check(scenario, checks=checks).verdict is Verdict.AGREES
    assert asked == [torch.device(made), torch.device(enclosed)]


def test_a_few_scenarios_of_any_size_are_made_where_the_candidate_works() -> None:
    process = InProcess(Fake(), "reference", device="meta", by_size=True)
    devices = [process._places(Scenario(values=Values(seed=seed)), ())[0].type for seed in range(2000)]
    assert 0.5 < devices.count("meta") * trial.SEEN / len(devices) < 1.5
