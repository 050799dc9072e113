"""Each reference-free check finds the mistake that it is about, and lets a right oracle pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from captured import Captured, FrozenCounts, FrozenRouting, LeakyPadding, SecondReplay, StaleX
from fakes import Change, Fake

from difftest.engine import Engine
from difftest.judging.checks import CHECKS
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.trial import InProcess
from difftest.judging.variants import take_rows
from oracles.enclosure import Enclosure
from oracles.grouped_mm import Prepared
from oracles.numerics import Numerics
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies.capability import Capability
from strategies.scenario import (
    Execution,
    Layer,
    MaskSlot,
    PaddingRows,
    Parallel,
    Replay,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    ValueEdit,
    Values,
)

PLAIN = Scenario(shape=Shape(tokens=5, hidden=64, intermediate=64, experts=4, top_k=2))
RANK = Scenario(
    shape=Shape(tokens=6, hidden=64, intermediate=64, experts=8, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1)
)
WITH_NAN = Scenario(
    shape=PLAIN.shape,
    values=Values(edits=(ValueEdit(tensor="hidden_states", index=(1, 3), value="nan"),)),
)
SPARSE = Scenario(shape=Shape(tokens=1, hidden=64, intermediate=64, experts=4, top_k=1))
EVERYTHING = Scenario(
    shape=Shape(tokens=7, hidden=64, intermediate=64, experts=32, top_k=2),
    parallel=Parallel(ep_size=2, ep_rank=1),
    layer=Layer(biases="per_expert", routed_scaling_factor=2.5),
    routing=Routing(edits=(MaskSlot(token=0, slot=1), SetWeight(token=2, slot=0, weight=math.nan))),
    values=Values(edits=(ValueEdit(tensor="hidden_states", index=(1, 3), value="inf"),)),
    execution=Execution(padding=2, repeats=3, poison=0xA5),
)


def found(candidate: Fake, scenario: Scenario, check: str) -> Outcome | None:
    """The finding of `check`, run alone."""
    outcome = Engine(candidate).check(scenario, checks={check})
    return next((finding for finding in outcome.findings if finding.check == check), None)


def what_happened(candidate: Fake, scenario: Scenario, check: str) -> str:
    engine = Engine(candidate)
    engine.check(scenario, checks={check})
    (key,) = engine.executor.tally
    assert key[0] == check
    return key[1]


@pytest.mark.parametrize("scenario", [Scenario(), PLAIN, RANK, WITH_NAN, EVERYTHING], ids=lambda s: s.digest)
@pytest.mark.parametrize("invariant", [False, True])
def test_a_right_oracle_passes_them_all(scenario: Scenario, invariant: bool) -> None:
    candidate = RowByRow() if invariant else Fake()
    outcome = Engine(candidate).check(scenario, checks=CHECKS)
    assert outcome.verdict is Verdict.AGREES, str(outcome)


class RowByRow(Fake):
    """One token at a time, so that the batch cannot matter; it says so, and writes where it is told to."""

    batch_invariant = True

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        problem = prepared.problem
        rows = [
            super(RowByRow, self).__call__(
                Prepared(problem=take_rows(problem, torch.tensor([row])), w13=prepared.w13, w2=prepared.w2)
            )
            for row in range(problem.tokens)
        ]
        return torch.cat([problem.hidden_states.new_empty(0, problem.hidden), *rows])

    def run_into(self, prepared: Prepared, output: torch.Tensor) -> None:
        output.copy_(self(prepared))


def test_the_checks_apply_where_there_is_something_to_check() -> None:
    ran = Engine(RowByRow())
    ran.check(EVERYTHING, checks=CHECKS)
    known = {"replay", "replay_eager", "pdl"}  # see `Captured`, `Overlapping`
    assert {check for check, what in ran.executor.tally if what == "ran"} == set(CHECKS) - known


def on_odd_batches(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    return output + problem.tokens % 2


def on_long_batches(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Rows that have an expert change when the batch is padded."""
    return output + ((problem.topk_ids >= 0).any(1, keepdim=True) & (problem.tokens > 5)).to(output.dtype)


def first_row_is_special(output: torch.Tensor, _: Problem) -> torch.Tensor:
    output[:1] += 1.0
    return output


def first_token_id_decides(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Foreign ids, not masked ones, add to the answer."""
    foreign = (problem.topk_ids >= 0) & (problem.local_ids < 0)
    return output + foreign.any(1, keepdim=True).to(output.dtype)


def foreign_id_leaks(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    """A foreign id adds something that depends on it, and -1 the like."""
    leak = torch.where(problem.local_ids < 0, problem.topk_ids, 0).sum(1, keepdim=True)
    return output + leak.to(output.dtype)


def multiplies_every_weight(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    return output + (0.0 * problem.topk_weights.sum(1, keepdim=True)).to(output.dtype)


def reads_every_scale(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    return torch.full_like(output, torch.nan) if bool((problem.w13_scale == 0xFF).any()) else output


def shares_a_scale(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    """A row that is not finite halves the next one."""
    bad = ~problem.hidden_states.isfinite().all(1)
    output[bad.roll(1)] *= 0.5
    return output


def bias_on_every_rank(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    return output + (1.0 if problem.ep_size > 1 else 0.0)


def pads_with_ones(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    output[(problem.topk_ids < 0).all(1)] = 1.0
    return output


def no_empty_batch(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    if problem.tokens == 0:
        raise ValueError("need at least 1 row")
    return output


def one_dimension_when_empty(output: torch.Tensor, problem: Problem) -> torch.Tensor:
    return output if problem.tokens else output.flatten()


def leaves_a_row_unwritten(output: torch.Tensor, _: Problem) -> torch.Tensor:
    written = torch.empty_like(output)
    written[1:] = output[1:]
    return written


@pytest.mark.parametrize(
    ("check", "scenario", "change", "kind"),
    [
        ("pad", PLAIN, pads_with_ones, "not_bit_equal"),
        ("masked_weight", RANK, multiplies_every_weight, "not_bit_equal"),
        ("absent", SPARSE, reads_every_scale, "not_bit_equal"),
        ("isolation", WITH_NAN, shares_a_scale, "not_bit_equal"),
        ("empty", PLAIN, one_dimension_when_empty, "shape_or_dtype"),
        ("poison", PLAIN, leaves_a_row_unwritten, "not_bit_equal"),
    ],
)
def test_a_planted_mistake_is_found(check: str, scenario: Scenario, change: Change, kind: str) -> None:
    finding = found(Fake(change), scenario, check)
    assert finding is not None
    assert (finding.verdict, finding.kind) == (Verdict.DIVERGES, kind)


@pytest.mark.parametrize(
    ("check", "scenario", "change"),
    [
        ("split", PLAIN, on_odd_batches),
        ("permute", PLAIN, first_row_is_special),
        ("pad", PLAIN, on_long_batches),
        ("foreign", RANK, first_token_id_decides),
        ("foreign", RANK, foreign_id_leaks),
        ("ep_sum", RANK, bias_on_every_rank),
    ],
)
def test_a_check_by_radii_finds_a_mistake_without_the_reference(check: str, scenario: Scenario, change: Change) -> None:
    subject, _ = InProcess(Fake(change), "reference").ask(scenario)
    breach = CHECKS[check].run(subject)
    assert breach is not None
    assert breach.kind == "impossible"


def test_a_check_by_radii_does_not_repeat_what_the_reference_said() -> None:
    outcome = Engine(Fake(on_odd_batches)).check(PLAIN, checks=CHECKS)
    assert (outcome.check, outcome.other_findings) == ("reference", ())
    assert what_happened(Fake(on_odd_batches), PLAIN, "split") == "the answer diverges already"


def test_a_rejected_variant_is_a_finding_of_its_check() -> None:
    finding = found(Fake(no_empty_batch), PLAIN, "empty")
    assert finding is not None
    assert (finding.verdict, finding.kind) == (Verdict.REJECTED, "ValueError: need at least # row")
    assert "need at least 1 row" in finding.traceback


def test_a_row_with_no_local_expert_is_zero() -> None:
    scenario = Scenario(shape=RANK.shape, parallel=RANK.parallel, routing=Routing(rule="remote_only"))

    def ones(output: torch.Tensor, _: Problem) -> torch.Tensor:
        return torch.ones_like(output)

    outcome = Engine(Fake(ones)).check(scenario, checks=())
    assert [finding.check for finding in outcome.findings] == ["no_local_expert"]
    assert outcome.kind == "not_bit_equal"


class Alternating(Fake):
    """Every other call answers something else."""

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        output = super().__call__(prepared)
        return torch.nextafter(output, output.new_tensor(math.inf)) if self.calls % 2 == 0 else output


def test_determinism_tells_the_rate() -> None:
    finding = found(Alternating(), PLAIN, "determinism")
    assert finding is not None
    assert (finding.verdict, finding.kind) == (Verdict.NONDETERMINISTIC, "not_bit_equal")
    assert finding.rate is not None
    assert 0 < float(finding.rate) < 1


def test_determinism_repeats_as_often_as_the_scenario_says() -> None:
    class FifthCall(Fake):
        def __call__(self, prepared: Prepared) -> torch.Tensor:
            output = super().__call__(prepared)
            return output + 1.0 if self.calls == 5 else output

    assert found(FifthCall(), PLAIN, "determinism") is None
    often = Scenario(shape=PLAIN.shape, execution=Execution(repeats=6))
    finding = found(FifthCall(), often, "determinism")
    assert finding is not None
    assert str(finding.rate) == "1 of 8 runs"


class Loose(Fake):
    """Differs in the last bits when `change_on(self, problem)`."""

    def __init__(self, change_on: Callable[[Fake, Problem], bool], **promises: bool) -> None:
        super().__init__()
        self._change_on = change_on
        vars(self).update(promises)

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        output = super().__call__(prepared)
        up = torch.nextafter(output, output.new_tensor(math.inf))
        return torch.where(output == 0, output, up) if self._change_on(self, prepared.problem) else output


@pytest.fixture
def wide_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    """Radii that hold a few of bfloat16's last bits."""

    def widened(problem: Problem, numerics: Numerics, *_: object) -> Enclosure:
        exact = enclose(problem, numerics)
        radius = exact.hard + exact.center.abs() / 64
        return replace(exact, hard=radius, sharp=radius)

    monkeypatch.setattr("difftest.judging.checks.enclose", widened)


@pytest.mark.parametrize("check", ["split", "permute", "pad", "foreign"])
@pytest.mark.usefixtures("wide_radius")
def test_batch_checks_allow_what_the_radius_allows_unless_bits_are_promised(check: str) -> None:
    def other_batch(_: Fake, problem: Problem) -> bool:
        return not torch.equal(problem.topk_ids, build(RANK).topk_ids)

    assert found(Loose(other_batch), RANK, check) is None
    finding = found(Loose(other_batch, batch_invariant=True), RANK, check)
    assert finding is not None
    assert finding.kind == "not_bit_equal"


@pytest.mark.usefixtures("wide_radius")
def test_an_oracle_may_declare_that_its_order_is_not_fixed() -> None:
    def every_other_call(candidate: Fake, _: Problem) -> bool:
        return candidate.calls % 2 == 0

    assert found(Loose(every_other_call), EVERYTHING, "determinism") is not None
    declared = Loose(every_other_call, deterministic=False)
    assert what_happened(declared, EVERYTHING, "determinism") == "the oracle declares no fixed order"
    outcome = Engine(declared).check(EVERYTHING, checks=CHECKS)
    assert outcome.verdict is Verdict.AGREES, str(outcome)


class Into(Fake):
    """Writes into the caller's output, `beyond` elements too many, and leaves out the last `short` ones."""

    def __init__(self, beyond: int = 0, short: int = 0) -> None:
        super().__init__()
        self._beyond, self._short = beyond, short

    def run_into(self, prepared: Prepared, output: torch.Tensor) -> None:
        whole = output.as_strided((output.numel() + self._beyond,), (1,), output.storage_offset())
        count = output.numel() - self._short
        whole[:count] = self(prepared).flatten()[:count]
        whole[output.numel() :] = 1.0


def test_a_write_past_the_callers_output_is_found() -> None:
    finding = found(Into(beyond=3), PLAIN, "guard")
    assert finding is not None
    assert (finding.kind, finding.detail) == ("guard_band", "wrote 6 bytes after the caller's output")


def test_an_element_of_the_callers_output_that_is_left_unwritten_is_found() -> None:
    finding = found(Into(short=1), PLAIN, "guard")
    assert finding is not None
    assert finding.kind == "not_bit_equal"
    assert finding.worst is not None
    assert (finding.worst.token, finding.worst.column) == (4, 63)


def test_a_right_write_into_the_callers_output_passes() -> None:
    assert found(Into(), PLAIN, "guard") is None
    assert what_happened(Into(), PLAIN, "guard") == "ran"


def replayed(*changes: Replay, padding: int = 0) -> Scenario:
    return replace(PLAIN, execution=Execution(mode="graph", replays=changes, padding=padding))


EVERY_REPLAY = replayed(*get_args(Replay), "same", padding=2)


def test_right_replays_pass() -> None:
    for scenario in (EVERY_REPLAY, replace(EVERY_REPLAY, shape=RANK.shape, parallel=RANK.parallel)):
        outcome = Engine(Captured()).check(scenario, checks=CHECKS)
        assert outcome.verdict is Verdict.AGREES, str(outcome)
    for check in ("replay", "replay_eager"):
        assert what_happened(Captured(), EVERY_REPLAY, check) == "ran"


@pytest.mark.parametrize(
    ("mistake", "blind", "seeing"),
    [
        (FrozenRouting, replayed("same", "x", "weights"), replayed("ids")),
        (FrozenRouting, replayed("x"), replayed("masks")),
        (FrozenCounts, replayed("x", "empty_expert", "same"), replayed("ids")),
        (SecondReplay, replayed(), replayed("same")),
        (StaleX, replayed("weights", "ids"), replayed("x")),
    ],
)
@pytest.mark.parametrize(("check", "kind"), [("replay", "impossible"), ("replay_eager", "not_bit_equal")])
def test_a_replay_that_depends_on_the_capture_is_found(
    mistake: type[Captured], blind: Scenario, seeing: Scenario, check: str, kind: str
) -> None:
    assert Engine(mistake()).check(blind, checks={check}).verdict is Verdict.AGREES
    finding = found(mistake(), seeing, check)
    assert finding is not None
    assert (finding.verdict, finding.kind) == (Verdict.DIVERGES, kind)
    assert finding.detail.startswith(f"replay 1 ({seeing.execution.replays[0]}): ")


def test_replays_that_a_scenario_asks_for_are_always_checked() -> None:
    engine = Engine(FrozenRouting())
    assert {finding.check for finding in engine.check(replayed("ids")).findings} >= {"replay", "replay_eager"}


def test_an_oracle_without_an_eager_twin_is_judged_by_the_enclosure_alone() -> None:
    class Alone(FrozenRouting):
        eager = None  # type: ignore[assignment]

    reason = "precondition: the oracle has no eager twin"
    assert what_happened(Alone(), replayed("ids"), "replay_eager") == reason
    assert found(Alone(), replayed("ids"), "replay") is not None


@pytest.mark.parametrize("rows", ["masked", "routed"])
def test_padding_that_reaches_other_rows_is_found(rows: PaddingRows) -> None:
    scenario = replace(PLAIN, execution=Execution(padding=2, padding_rows=rows))
    assert Engine(Fake()).check(scenario, checks=CHECKS).verdict is Verdict.AGREES
    subject, _ = InProcess(LeakyPadding(), "reference").ask(scenario)
    breach = CHECKS["pad"].run(subject)
    assert breach is not None
    assert breach.worst is not None
    assert breach.worst.token == 0


class Overlapping(Fake):
    """Without PDL it is right."""

    capability = replace(Fake.capability, pdl=True)

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        wrong = prepared.problem.scenario.execution.pdl is not False
        return super().__call__(prepared) + (1.0 if wrong else 0.0)


def test_launches_that_overlap_wrongly_are_found() -> None:
    for pdl in (None, False, True):
        finding = found(Overlapping(), replace(PLAIN, execution=Execution(pdl=pdl)), "pdl")
        assert finding is not None
        assert finding.kind == "not_bit_equal"


@pytest.mark.parametrize(
    ("check", "scenario", "reason"),
    [
        ("replay", PLAIN, "nothing is captured in eager mode"),
        ("pdl", PLAIN, "the oracle offers no choice of PDL"),
        ("split", Scenario(), "fewer than two rows"),
        ("permute", Scenario(), "fewer than two rows"),
        ("empty", Scenario(shape=Shape(tokens=0)), "the batch is empty itself"),
        ("foreign", PLAIN, "no id of another rank"),
        ("masked_weight", PLAIN, "every slot is local"),
        ("absent", Scenario(), "every local expert is used"),
        ("isolation", PLAIN, "x and router weights are finite"),
        (
            "isolation",
            Scenario(values=WITH_NAN.values, shape=Shape(tokens=2, hidden=64)),
            "precondition: no other row has a local expert",
        ),
        ("ep_sum", PLAIN, "no expert parallelism"),
        (
            "ep_sum",
            Scenario(shape=Shape(experts=16), parallel=Parallel(ep_size=16)),
            "precondition: the whole layer is too large to run",
        ),
        ("guard", PLAIN, "the oracle has no run_into"),
    ],
)
def test_a_check_that_does_not_apply_says_why(check: str, scenario: Scenario, reason: str) -> None:
    if reason.startswith("precondition: no other"):
        masked = Routing(edits=(MaskSlot(token=0, slot=0),))
        scenario = Scenario(shape=scenario.shape, values=scenario.values, routing=masked)
    assert what_happened(Fake(), scenario, check) == reason


@pytest.mark.parametrize(
    ("check", "scenario", "promise", "reason"),
    [
        ("empty", PLAIN, {"empty_batch": False}, "declined: M = 0"),
        ("pad", PLAIN, {"padding": False}, "declined: padded batch"),
        ("foreign", RANK, {"masked_slots": False}, "declined: masked slots"),
        ("ep_sum", RANK, {"expert_parallel": False}, ""),
        ("masked_weight", RANK, {"non_finite": False}, "ran"),
        ("absent", SPARSE, {"special_scale_bytes": False}, "ran"),
    ],
)
def test_no_variant_goes_beyond_what_the_oracle_promises(
    check: str, scenario: Scenario, promise: dict[str, Any], reason: str
) -> None:
    class Narrow(Fake):
        capability = Capability(**promise)

        def unsupported(self, scenario: Scenario) -> str | None:
            return self.capability.objection(scenario)

        def prepare(self, problem: Problem) -> Prepared:
            assert self.unsupported(problem.scenario) is None
            if not self.capability.non_finite:
                assert bool(problem.topk_weights.isfinite().all())
            if not self.capability.special_scale_bytes:
                assert not bool((problem.w13_scale == 0xFF).any())
            return super().prepare(problem)

    engine = Engine(Narrow())
    outcome = engine.check(scenario, checks={check})
    assert not outcome.is_finding, str(outcome)
    assert [what for _, what in engine.executor.tally] == ([reason] if reason else [])
