"""A finding is explained by the rounding or the mistake that it comes of, or else described."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from findings import diverges

from difftest.engine import Engine
from difftest.explain.explainer import Explainer, explain, faults_of, unasked
from difftest.explain.explanation import Explanation, Match
from difftest.explain.further import near
from difftest.explain.recipes import recipes
from difftest.findings import Finding, mistakes
from difftest.judging.outcome import Outcome, Verdict
from oracles.emulated_sm120 import EmulatedSm120
from oracles.faults import FAULTS, SM120_FAULTS
from oracles.grouped_mm import GroupedMM
from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import build
from oracles.reference import Reference, enclose
from strategies import (
    AssignExpert,
    Capability,
    DuplicateSlot,
    Execution,
    Layer,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    SwigluOai,
    ValueEdit,
    Values,
)
from strategies.scenario import FLOAT32_MAX

SMALL = Scenario(shape=Shape(tokens=3, hidden=64, intermediate=64, experts=2, top_k=2))
PLAIN = Capability(precisions=frozenset({"bf16xmxfp4"}), non_finite=False, special_scale_bytes=False)


def finding(candidate, scenario: Scenario, check: str = "reference") -> Outcome:
    outcome = Engine(candidate, "reference").check(scenario, checks={check})
    return next(found for found in outcome.findings if found.check == check)


def explained(candidate, scenario: Scenario = SMALL, check: str = "reference", **options) -> Explanation:
    found = finding(candidate, scenario, check)
    return Explainer(candidate, **options).explain(found, found)


# --- recipes -------------------------------------------------------------------------------------------------------


class Follows(Reference):
    """Declares one recipe, and follows another."""

    name = "follows"
    capability = PLAIN

    def __init__(self, follows: Numerics) -> None:
        self._follows = follows

    def __call__(self, prepared):
        return enclose(prepared, self._follows).center.to(prepared.output_dtype)


@pytest.mark.parametrize(
    ("follows", "name"),
    [
        (Numerics(intermediate="float32"), "intermediate=float32"),
        (Numerics(intermediate="float16"), "intermediate=float16"),
        (Numerics(gemm1_output="float32"), "gemm1_output=float32"),
        (Numerics(gemm2_output="float32"), "gemm2_output=float32"),
        (Numerics(gemm1_output="float32", intermediate="float32"), "gemm1_output=intermediate=float32"),
    ],
)
def test_a_rounding_that_is_not_declared(follows, name):
    explanation = explained(Follows(follows))
    assert explanation.matches[0].name == name
    assert explanation.matches[0].predicts
    assert explanation.matches[0].contradicted == 0
    assert explanation.suspected == "numerics"
    assert str(explanation).startswith("agrees if ")


def test_a_recipe_that_is_declared_is_no_hypothesis():
    declared = Numerics(intermediate="float32", gemm1=Accumulator(flush_to_zero=True))
    names = [recipe.name for recipe in recipes(build(SMALL), declared)]
    assert "intermediate=float32" not in names
    assert "gemm1.flush_to_zero" not in names
    assert "intermediate=bfloat16" in names
    assert len(names) == len(set(names))


class RoundsRouterWeights(Reference):
    capability = PLAIN

    def prepare(self, problem):
        return replace(problem, topk_weights=problem.topk_weights.bfloat16().float())


def test_router_weights_that_are_rounded():
    assert explained(RoundsRouterWeights()).matches[0].name == "topk_weights=bfloat16"


class RoundsTheOutputTwice(Reference):
    capability = PLAIN

    def __call__(self, prepared):
        other = replace(prepared, scenario=replace(prepared.scenario, output_dtype="float16"))
        return enclose(other, self.numerics).center.to(torch.bfloat16)


def test_an_output_that_is_rounded_twice():
    scenario = replace(SMALL, shape=replace(SMALL.shape, tokens=6, hidden=256))
    assert explained(RoundsTheOutputTwice(), scenario).matches[0].name == "output=float16"


class AddsInBfloat16(GroupedMM):
    capability = PLAIN
    numerics = Numerics(
        weights="bfloat16", bias_before_rounding=False, activation=Transcendental(exp_ulps=1.0, tanh_ulps=1.0)
    )

    def __call__(self, prepared):
        return super().__call__(replace(prepared, w13=prepared.w13 * (1 + 2**-7)))


def test_a_recipe_that_only_leaves_room_says_so():
    """Weights that are off by a bfloat16 ulp: no recipe is that, and the errors fit in a coarse accumulator."""
    explanation = explained(AddsInBfloat16())
    assert not any(match.predicts for match in explanation.matches if match.source == "recipe")
    for match in explanation.matches:
        assert match.contradicted == 0


# --- faults --------------------------------------------------------------------------------------------------------


class Swapped(GroupedMM):
    """Another implementation than the faults', with one of their mistakes: other roundings, other bits."""

    def prepare(self, problem):
        swapped = {
            name: torch.cat(getattr(problem, name).chunk(2, dim=1)[::-1], dim=1) for name in ("w13", "w13_scale")
        }
        if problem.w13_bias is not None:
            swapped["w13_bias"] = torch.cat(problem.w13_bias.chunk(2, dim=1)[::-1], dim=1)
        return super().prepare(replace(problem, **swapped))


class SwigluInstead(GroupedMM):
    def prepare(self, problem):
        kind = "swiglu" if problem.activation.kind == "situ" else problem.activation.kind
        return super().prepare(replace(problem, activation=replace(problem.activation, kind=kind)))


class LosesDuplicates(GroupedMM):
    def prepare(self, problem):
        ids = problem.topk_ids.clone()
        for slot in range(1, ids.shape[1]):
            ids[:, slot][(ids[:, :slot] == ids[:, slot, None]).any(1)] = -1
        return super().prepare(replace(problem, topk_ids=ids))


class IgnoresOffset(GroupedMM):
    def prepare(self, problem):
        ids = torch.where(problem.topk_ids < problem.experts_local, problem.topk_ids, -1)
        ids = torch.where(ids >= 0, ids + problem.first_expert, ids)
        return super().prepare(replace(problem, topk_ids=ids))


TWICE = Routing(edits=(DuplicateSlot(token=0, slot=0, source=1),))
SECOND_RANK = replace(SMALL, parallel=Parallel(ep_size=2, ep_rank=1))


@pytest.mark.parametrize(
    ("candidate", "scenario", "fault"),
    [
        (Swapped, SMALL, "gate-up-swapped"),
        (SwigluInstead, replace(SMALL, activation=Situ()), "swiglu-for-situ"),
        (LosesDuplicates, replace(SMALL, routing=TWICE), "duplicate-lost"),
        (IgnoresOffset, SECOND_RANK, "ep-offset-ignored"),
    ],
)
def test_a_fault_in_another_implementation(candidate, scenario, fault):
    explanation = explained(candidate(), scenario)
    assert [match.name for match in explanation.matches] == [fault]
    assert explanation.suspected == FAULTS[fault].kind
    assert explanation.matches[0].confirmed > 0
    assert explanation.asked >= explanation.matches[0].confirmed


class ForgetsInputScales(EmulatedSm120):
    """An SM120 kernel that declares another order of additions, and takes the scales of x for 1."""

    numerics = replace(EmulatedSm120.numerics, gemm1=Accumulator(group=32, splits=(2,)))

    def prepare(self, problem):
        assert problem.hidden_scale is not None
        one = torch.full_like(problem.hidden_scale, 127)
        return super().prepare(replace(problem, hidden_scale=one))


MXFP8 = replace(SMALL, shape=Shape(tokens=3, hidden=128, intermediate=128, experts=2, top_k=2), precision="mxfp8xmxfp4")


def test_a_fault_of_the_mxfp8_path_explains_a_kernel_of_that_path():
    explanation = explained(ForgetsInputScales(), MXFP8)
    assert [match.name for match in explanation.matches] == ["sm120-input-sf-dropped"]
    assert explanation.suspected == "numerics"
    assert explanation.matches[0].confirmed > 0


def test_faults_of_the_mxfp8_path_are_for_kernels_that_quantise_between_the_gemms():
    assert faults_of(EmulatedSm120()).keys() == FAULTS.keys() | SM120_FAULTS.keys()
    assert faults_of(FAULTS["gate-up-swapped"].oracle()).keys() == FAULTS.keys()


def test_what_fits_the_case_alone_is_ruled_out():
    """One slot, one expert, and the first rank's ids in the second: both ways to get the offset wrong give 0."""
    scenario = Scenario(
        shape=Shape(experts=4),
        parallel=Parallel(ep_size=2, ep_rank=1),
        routing=Routing(edits=(AssignExpert(token=0, slot=0, expert=3),)),
    )
    explanation = explained(IgnoresOffset(), scenario)
    assert [match.name for match in explanation.matches] == ["ep-offset-ignored"]
    assert "fault ep-offset-twice" in explanation.refuted


class SwappedWithASecondMistake(Swapped):
    """On top of it every negative output is 0 for every ninth number of rows."""

    def __call__(self, prepared):
        output = super().__call__(prepared)
        return output.clamp(min=0) if len(output) % 9 == 8 else output


def test_a_second_mistake_does_not_hide_the_first():
    explanation = explained(SwappedWithASecondMistake())
    assert [match.name for match in explanation.matches] == ["gate-up-swapped"]


def test_what_no_scenario_near_the_case_tells_apart_is_drawn_for():
    """A batch of padding alone has no slot to mask: whether padding or any masked slot is routed shows elsewhere."""
    scenario = Scenario(shape=Shape(tokens=0), execution=Execution(padding=1))
    explanation = explained(FAULTS["masked-slot-wraps"].oracle(), scenario, "no_local_expert")
    assert [match.name for match in explanation.matches] == ["masked-slot-wraps"]
    assert "fault padding-is-routed" in explanation.refuted


def test_a_case_by_another_check():
    fault = FAULTS["masked-slot-wraps"].oracle()
    scenario = Scenario(routing=Routing(edits=(DuplicateSlot(token=0, slot=0, source=0),)), shape=Shape(tokens=2))
    scenario = replace(scenario, execution=Execution(padding=1))
    explanation = explained(fault, scenario, "no_local_expert")
    assert [match.name for match in explanation.matches] == ["masked-slot-wraps"]


# --- what nothing matches ------------------------------------------------------------------------------------------


class Off(GroupedMM):
    def __call__(self, prepared):
        output = super().__call__(prepared)
        twice = (prepared.problem.topk_ids[:, :1] == prepared.problem.topk_ids).sum(1) > 1
        output[twice] += 1
        return output


def test_what_is_wrong_is_described():
    explanation = explained(Off(), replace(SMALL, routing=TWICE))
    assert explanation.matches == ()
    assert explanation.bad_set.startswith("rows with the same expert twice, ")
    assert explanation.suspected == "routing"
    assert "one expert twice in a row" in explanation.needs
    assert str(explanation).startswith("nothing known matches; suspected class: routing. Wrong: rows with the same")


ONE_ROW = Scenario(shape=Shape(tokens=1, hidden=32, intermediate=32, experts=1, top_k=1))
TWO_ROWS = replace(ONE_ROW, shape=replace(ONE_ROW.shape, tokens=2))
TWO_EXPERTS = replace(TWO_ROWS, shape=replace(TWO_ROWS.shape, experts=2))
GRAPH = Execution(mode="graph", replays=("masks",))
SECOND = Parallel(ep_size=2, ep_rank=1)
INFINITE = Routing(edits=(SetWeight(token=0, slot=0, weight=float("-inf")),))
NAN_IN_THE_FIRST = Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="nan"),))


@pytest.mark.parametrize(
    ("fault", "scenario", "check"),
    [
        # A question of the check is answered wrongly by itself too: what was asked before is not to blame.
        ("decode-drops-odd-tail-of-intermediate", replace(TWO_ROWS, shape=Shape(tokens=2, intermediate=96)), "split"),
        ("idle-experts-skipped", replace(TWO_EXPERTS, execution=GRAPH), "replay"),
        # By itself it is answered rightly.
        ("graph-replays-routing", replace(TWO_EXPERTS, execution=replace(GRAPH, replays=("ids",))), "replay_eager"),
        ("call-changes-weights", ONE_ROW, "guard"),
        ("writes-past-end", replace(ONE_ROW, shape=Shape(tokens=0)), "guard"),
        # What memory holds shows, whichever check sees it.
        (
            "idle-rows-unwritten",
            replace(ONE_ROW, shape=Shape(tokens=0), execution=Execution(padding=1, poison=1)),
            "no_local_expert",
        ),
        # Infinite by overflow alone, and the answer is a number as any other; or what saturates.
        (
            "decode-forgets-scaling-factor",
            replace(
                ONE_ROW,
                layer=Layer(routed_scaling_factor=2.0),
                routing=Routing(edits=(SetWeight(token=0, slot=0, weight=FLOAT32_MAX),)),
            ),
            "reference",
        ),
        (
            "output-saturates",
            replace(ONE_ROW, output_dtype="float16", values=Values(x_exponent=20)),
            "reference",
        ),
        # The columns that are wrong are those of a scale byte, not of a tile.
        (
            "scale-byte-zero-is-zero",
            replace(ONE_ROW, values=Values(edits=(ValueEdit(tensor="w2_scale", index=(0, 0, 0), value=0),))),
            "reference",
        ),
        # An infinite weight makes it show, and it is wrong with ordinary values too.
        (
            "w2-not-interleaved",
            replace(ONE_ROW, shape=Shape(intermediate=64), routing=INFINITE),
            "reference",
        ),
        ("ep-offset-twice", replace(ONE_ROW, shape=Shape(experts=2), parallel=SECOND, routing=INFINITE), "reference"),
        (
            "hidden-scales-column-major",
            replace(TWO_ROWS, shape=Shape(tokens=2, hidden=64), precision="mxfp8xmxfp4", values=NAN_IN_THE_FIRST),
            "isolation",
        ),
        ("nan-input-is-zero", replace(ONE_ROW, values=NAN_IN_THE_FIRST), "reference"),
        # What a later question leaves unwritten is what memory holds.
        ("row-after-tile-unwritten", replace(ONE_ROW, shape=Shape(tokens=17), execution=Execution(padding=1)), "pad"),
        # One kernel of several has another activation.
        (
            "tactic-ignores-small-limit",
            replace(
                ONE_ROW,
                activation=SwigluOai(limit=1.0),
                execution=Execution(tactic=6),
                values=Values(scale_high=126),
            ),
            "reference",
        ),
    ],
)
def test_the_class_of_what_nothing_matches(fault, scenario, check):
    explanation = explained(FAULTS[fault].oracle(), scenario, check, faults={})
    assert explanation.matches == ()
    assert explanation.suspected == FAULTS[fault].kind


class Sometimes(GroupedMM):
    """Wrong once, never again."""

    calls = 0

    def __call__(self, prepared):
        self.calls += 1
        return super().__call__(prepared) + (self.calls == 1)


def test_what_is_not_seen_again():
    found = diverges()
    explanation = Explainer(GroupedMM()).explain(found, found)
    assert not explanation.reproduced
    assert explanation.headline == "not seen again"


class Deadly(GroupedMM):
    def __call__(self, _prepared):
        raise SystemExit("would have taken the process with it")


@pytest.mark.parametrize(("verdict", "suspected"), [(Verdict.CRASHED, "memory"), (Verdict.HUNG, "execution")])
def test_a_candidate_that_takes_its_process_along_is_not_asked(verdict, suspected):
    found = Outcome(
        verdict=verdict,
        scenario=SMALL,
        candidate="deadly",
        reference="reference",
        check="process",
        kind="SIGSEGV",
        detail="ended",
    )
    explanation = explain(Deadly(), found, found)
    assert (explanation.suspected, explanation.asked) == (suspected, 0)
    assert explanation == unasked(found)


# --- further scenarios ---------------------------------------------------------------------------------------------


def test_further_scenarios_are_near_the_case_and_the_same_every_time():
    case = replace(SMALL, activation=Situ(), values=Values(rule="wide"), routing=TWICE)
    found = list(near(case, GroupedMM.capability, 30))
    assert len(found) == len(set(found)) == 30
    assert found == list(near(case, GroupedMM.capability, 30))
    assert case not in found
    assert sum(scenario.activation.kind == "situ" for scenario in found) > 15
    assert len({scenario.values.seed for scenario in found}) > 15
    assert all(scenario.shape.tokens + scenario.execution.padding <= 64 for scenario in found)


# --- as data -------------------------------------------------------------------------------------------------------

MATCH = Match(
    name="gate-up-swapped", source="fault", kind="layout", summary="Halves swapped.", predicts=True, changed=9
)
OTHER = replace(MATCH, name="rows-interleaved", summary="Rows interleaved.", confirmed=3, contradicted=1)


def test_json_round_trip():
    explanation = Explanation(
        matches=(MATCH, OTHER), bad_set="every row", needs=("M = 3",), suspected="layout", refuted=("x",), asked=4
    )
    assert Explanation.from_json(explanation.to_json()) == explanation


def test_the_headline_tells_what_could_not_be_told_apart():
    explanation = Explanation(matches=(OTHER, MATCH), suspected="layout")
    assert explanation.headline == (
        "does what fault rows-interleaved does (layout): Rows interleaved; so in 3 of 4 further scenarios; "
        "not told apart from fault gate-up-swapped"
    )


def a_finding(candidate: str, check: str, *matches: Match) -> Finding:
    found = diverges(candidate=candidate, check=check)
    return Finding(
        bucket=found.bucket,
        smallest=found,
        worst=found,
        seen=1,
        scenarios_before=1,
        shrink_runs_hypothesis=0,
        shrink_runs_reducer=0,
        fixed_point=True,
        case_path=None,
        explanation=Explanation(matches=matches, suspected="layout"),
    )


def test_findings_that_one_explanation_covers_are_one_mistake():
    both, first, none = a_finding("a", "reference", OTHER, MATCH), a_finding("a", "split", MATCH), a_finding("a", "pad")
    elsewhere = a_finding("b", "reference", MATCH)
    found = mistakes([none, both, elsewhere, first])
    assert [(mistake.match, mistake.findings) for mistake in found] == [
        (MATCH, (both, first)),
        (MATCH, (elsewhere,)),
        (None, (none,)),
    ]
    assert sum(len(mistake.findings) for mistake in found) == 4


def test_a_finding_survives_json_with_its_explanation():
    found = a_finding("a", "reference", MATCH)
    assert Finding.from_json(found.to_json()) == found
