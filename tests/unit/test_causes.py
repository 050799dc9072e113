"""A known finding explains another one only when that goes away with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from draws import WHOLE, draws
from findings import HERE, FakeEngine, agrees, case, diverges

from difftest.judging.outcome import Outcome, Verdict
from difftest.ledger import cases, triggers
from difftest.ledger.causes import Cause, alike, explained_by, stripped, without
from difftest.ledger.ledger import Attribution, Ledger
from difftest.ledger.triggers import Trigger
from difftest.shrinking.complexity import covers
from strategies import (
    AssignExpert,
    Capability,
    DuplicateSlot,
    Execution,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    StrayId,
    ValueEdit,
    Values,
)

DUPLICATE = DuplicateSlot(token=0, slot=1, source=0)
NAN_BYTE = ValueEdit(tensor="w2_scale", index=(0, 0, 0), value=255)
PAIR = Shape(experts=2, top_k=2)
TWICE = Scenario(shape=PAIR, routing=Routing(edits=(DUPLICATE,)))
BYTE = Scenario(values=Values(edits=(NAN_BYTE,)))
BIASED = Scenario(layer=Layer(biases="per_expert"))
LARGER = Scenario(
    shape=Shape(tokens=9, hidden=128, experts=8, top_k=4),
    parallel=Parallel(ep_size=2, ep_rank=1),
    routing=Routing(edits=(MaskSlot(token=3, slot=1), replace(DUPLICATE, token=5))),
)


def has_duplicate(scenario: Scenario) -> bool:
    return any(isinstance(edit, DuplicateSlot) for edit in scenario.routing.edits)


def has_nan_byte(scenario: Scenario) -> bool:
    return scenario.values.scale_high == 255 or any(edit.value == 255 for edit in scenario.values.edits)


def is_biased(scenario: Scenario) -> bool:
    return scenario.layer.biases != "none"


def engine_of(*mistakes: Callable[[Scenario], bool], capability: Capability = WHOLE) -> FakeEngine:
    def answer(scenario: Scenario) -> Outcome:
        reason = capability.objection(scenario)
        if reason is not None:
            names = {"candidate": "fake", "reference": "reference"}
            return Outcome(verdict=Verdict.UNSUPPORTED, scenario=scenario, reason=reason, **names)
        return diverges(scenario) if any(mistake(scenario) for mistake in mistakes) else agrees(scenario)

    return FakeEngine(answer)


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Ledger]:
    def of(*known: Outcome, **fields: Any) -> Ledger:
        for path in cases.paths(tmp_path):
            path.unlink()
        for finding in known:
            cases.save(case(finding, **fields), cases.new_path(tmp_path, case(finding)))
        return Ledger(cases.paths(tmp_path), ("fake",), "reference", lambda _: HERE)

    return of


def test_what_goes_away_with_the_known_cause_is_known(ledger) -> None:
    found = ledger(diverges(TWICE)).explain(diverges(LARGER), engine_of(has_duplicate))
    assert found.known is not None
    assert TWICE.digest in found.known.name
    assert found.instead == ()


def test_a_second_mistake_in_the_same_scenario_is_found_without_the_first(ledger) -> None:
    both = replace(LARGER, layer=Layer(biases="per_expert"))
    found = ledger(diverges(TWICE)).explain(diverges(both), engine_of(has_duplicate, is_biased))
    assert found.known is None
    (instead,) = found.instead
    assert is_biased(instead.scenario)
    assert instead.scenario == replace(both, routing=Routing(edits=both.routing.edits[:1]))


def test_a_mistake_that_only_looks_like_the_known_one_is_new(ledger) -> None:
    """The scenario has a duplicate, and what is wrong are its biases."""
    both = replace(LARGER, layer=Layer(biases="per_expert"))
    found = ledger(diverges(TWICE)).explain(diverges(both), engine_of(is_biased))
    assert found.known is None
    assert len(found.instead) == 1


def test_two_known_mistakes_in_one_scenario_are_known(ledger) -> None:
    both = replace(LARGER, values=Values(scale_low=0, scale_high=255))
    known = ledger(diverges(TWICE), diverges(BYTE))
    assert known.explain(diverges(both), engine_of(has_duplicate, has_nan_byte)).known is not None
    found = known.explain(diverges(both), engine_of(has_duplicate, has_nan_byte, lambda s: s.shape.tokens == 9))
    assert (found.known, len(found.instead)) == (None, 1)


def test_the_cause_counts_and_not_the_check_that_sees_it(ledger) -> None:
    poisoned = diverges(LARGER, check="poison", kind="not_bit_equal")
    assert ledger(diverges(TWICE)).explain(poisoned, engine_of(has_duplicate)).known is not None


def test_a_case_is_about_its_oracle_in_other_environments_too(tmp_path: Path) -> None:
    cases.save(case(diverges(TWICE)), cases.new_path(tmp_path, case(diverges(TWICE))))
    known = Ledger(cases.paths(tmp_path), ("fake@1.2.0", "other@1.2.0"), "reference", lambda _: HERE)
    engine = engine_of(has_duplicate)
    assert known.explain(diverges(LARGER, candidate="fake@1.2.0"), engine).known is not None
    assert known.explain(diverges(LARGER, candidate="other@1.2.0"), engine).known is None


ASSIGNED = replace(TWICE, routing=Routing(rule="ties", edits=(AssignExpert(token=0, slot=0, expert=1),)))
"""Row 0 is [1, 1], and nothing says duplicate."""


def repeats_expert(scenario: Scenario) -> bool:
    return triggers.has(Trigger.DUPLICATE_EXPERT, scenario)


def test_a_trigger_is_known_in_whatever_form_it_comes(ledger) -> None:
    """A case of three experts does not cover a scenario of two; one that names its trigger asks for no size."""
    form = diverges(replace(TWICE, shape=Shape(experts=3, top_k=3)))
    nonfinite = diverges(ASSIGNED, check="pad", kind="must_be_finite")
    assert ledger(form).explain(nonfinite, engine_of(repeats_expert)) == Attribution(None)
    known = ledger(form, trigger=Trigger.DUPLICATE_EXPERT)
    assert known.explain(nonfinite, engine_of(repeats_expert)).known is not None
    assert known.has_cause(form.bucket, ASSIGNED)
    assert not known.has_cause(form.bucket, BIASED)


def test_a_trigger_is_taken_from_whatever_has_it() -> None:
    last = Scenario(
        shape=Shape(experts=6, top_k=6), routing=Routing(rule="ties", edits=(DuplicateSlot(token=0, slot=1, source=5),))
    )
    drawn = [last, *filter(repeats_expert, draws("quick", 600, WHOLE))]
    assert len(drawn) > 10
    for scenario in drawn:
        other = triggers.without(Trigger.DUPLICATE_EXPERT, scenario)
        assert not repeats_expert(other)
        kept = len(scenario.routing.edits)
        assert replace(other, routing=replace(other.routing, edits=other.routing.edits[:kept])) == scenario


def test_a_scale_byte_of_0_is_a_trigger_edited_or_drawn() -> None:
    edited = Values(edits=(ValueEdit(tensor="w13_scale", index=(0, 1, 0), value=0),))
    for values, other in (
        (edited, Values(edits=(ValueEdit(tensor="w13_scale", index=(0, 1, 0), value=1),))),
        (Values(scale_low=0, scale_high=255), Values(scale_low=1, scale_high=255)),
        (Values(scale_low=0, scale_high=0), Values(scale_low=1, scale_high=1)),
    ):
        scenario = Scenario(shape=Shape(tokens=2), values=values)
        assert triggers.has(Trigger.SCALE_BYTE_00, scenario)
        assert triggers.without(Trigger.SCALE_BYTE_00, scenario) == replace(scenario, values=other)
        assert not triggers.has(Trigger.SCALE_BYTE_00, replace(scenario, values=other))
    zero = Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="-0"),))
    assert not triggers.has(Trigger.SCALE_BYTE_00, Scenario(values=zero))


def test_nothing_else_hides_behind_a_trigger(ledger) -> None:
    known = ledger(diverges(TWICE), trigger=Trigger.DUPLICATE_EXPERT)
    both = replace(ASSIGNED, layer=Layer(biases="per_expert"))
    for mistakes in ((is_biased,), (is_biased, repeats_expert)):
        found = known.explain(diverges(both), engine_of(*mistakes))
        (instead,) = found.instead
        assert found.known is None
        assert is_biased(instead.scenario)
        assert not repeats_expert(instead.scenario)
    assert known.explain(diverges(BIASED), engine_of(is_biased)) == Attribution(None)
    rejected = replace(diverges(ASSIGNED), verdict=Verdict.REJECTED, kind="ValueError", check="call", worst=None)
    assert known.explain(rejected, engine_of(repeats_expert)) == Attribution(None)


def test_the_very_sightings_of_a_case_are_known(ledger) -> None:
    """What a case was shrunk from may lack what its smallest form has. Nothing can tell them apart but their digest."""
    known = ledger(diverges(TWICE), sightings=(BIASED.digest,))
    always = engine_of(lambda _: True)
    assert known.explain(diverges(BIASED), always).known is not None
    assert known.explain(diverges(BIASED, kind="implausible"), always).known is None
    assert known.explain(diverges(replace(BIASED, shape=Shape(tokens=2))), always).known is None
    # Nor is it new where it is what is left of another one.
    both = replace(BIASED, shape=PAIR, routing=TWICE.routing)
    rest = replace(both, routing=Routing())
    known = ledger(diverges(TWICE), sightings=(rest.digest,))
    assert known.explain(diverges(both), engine_of(is_biased)).known is not None


def test_another_kind_of_verdict_is_another_finding(ledger) -> None:
    crash = Outcome(
        verdict=Verdict.CRASHED,
        scenario=LARGER,
        candidate="fake",
        reference="reference",
        check="process",
        kind="signal SIGSEGV",
        detail="ended by SIGSEGV",
    )
    assert ledger(diverges(TWICE)).explain(crash, engine_of(has_duplicate)).known is None
    assert not alike(crash.bucket, diverges(TWICE).bucket)
    bucket = diverges(TWICE).bucket
    assert alike(replace(bucket, check="poison", kind="not_bit_equal"), bucket)
    assert not alike(replace(bucket, kind="guard_band"), bucket)


def test_a_case_of_which_nothing_can_be_taken_away_explains_its_own_bucket(ledger) -> None:
    known = ledger(diverges(Scenario(), check="empty"))
    always = engine_of(lambda _: True)
    assert known.explain(diverges(LARGER, check="empty"), always).known is not None
    assert known.explain(diverges(LARGER, check="split"), always).known is None


def test_it_does_so_where_another_known_case_was_taken_away(ledger) -> None:
    """Every scenario is wrong. One with the known byte is that, and what is left of it is the plain case, not news."""
    known, always = ledger(diverges(Scenario()), diverges(BYTE)), engine_of(lambda _: True)
    both = replace(LARGER, values=BYTE.values)
    found = known.explain(diverges(both), always)
    assert found.known is not None
    assert Scenario().digest in found.known.name
    assert found.instead == ()


def test_without_anything_to_ask_the_bucket_decides(ledger) -> None:
    known = ledger(diverges(TWICE))
    assert known.explain(diverges(LARGER), None).known is not None
    assert known.explain(diverges(LARGER, check="split"), None).known is None


def test_what_only_the_kernel_demands_is_no_cause() -> None:
    """A kernel that is captured and takes multiples of 128 only: neither is why it loses the slot."""
    capability = Capability(hidden_multiple=128, intermediate_multiple=128, modes=frozenset({"graph"}))
    shape, graph = Shape(hidden=128, intermediate=128), Execution(mode="graph")
    ranks = Shape(hidden=128, intermediate=128, experts=2)
    form = Scenario(shape=ranks, parallel=Parallel(ep_size=2, ep_rank=1), execution=graph)
    engine = engine_of(lambda s: s.parallel.ep_rank > 0, capability=capability)
    larger = replace(form, shape=replace(form.shape, tokens=9, hidden=256))
    assert explained_by([Cause(form)], diverges(larger), engine)
    assert not explained_by(
        [Cause(form)], diverges(larger), engine_of(lambda s: s.shape.tokens == 9, capability=capability)
    )
    assert stripped(diverges(larger), [Cause(Scenario(shape=shape, execution=graph))], engine) is None


FORMS = [
    TWICE,
    BYTE,
    BIASED,
    Scenario(values=Values(edits=(replace(NAN_BYTE, value=0),))),
    Scenario(values=Values(edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="nan"),))),
    Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=float("inf")),))),
    Scenario(routing=Routing(edits=(StrayId(token=0, slot=0, expert_id=1),))),
    Scenario(activation=Situ()),
    Scenario(activation=Situ(beta=1.0)),
    Scenario(shape=Shape(tokens=5, top_k=2, experts=2)),
    Scenario(shape=Shape(hidden=96)),
    Scenario(shape=Shape(intermediate=64), layer=Layer(moe_tp_size=2)),
    Scenario(shape=Shape(experts=2), parallel=Parallel(ep_size=2, ep_rank=1)),
    Scenario(execution=Execution(mode="graph", replays=("ids",))),
    Scenario(execution=Execution(padding=2, padding_rows="routed")),
    Scenario(execution=Execution(poison=255)),
    Scenario(execution=Execution(pdl=False, tactic=1)),
    Scenario(values=Values(rule="wide", x_exponent=2)),
    Scenario(values=Values(scale_low=100, scale_high=110)),
    Scenario(output_dtype="float16", precision="mxfp8xmxfp4"),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.digest)
def test_a_cause_is_taken_away_from_whatever_has_it(form: Scenario) -> None:
    grown = [form, *(scenario for scenario in draws("quick", 600, WHOLE) if covers(form, scenario))]
    for scenario in grown[:50]:
        fewer = list(without(form, scenario))
        assert fewer
        assert not any(covers(form, other) for other in fewer)
    assert len(grown) > 6


def test_of_the_plainest_nothing_can_be_taken_away() -> None:
    assert list(without(Scenario(), LARGER)) == []
    assert list(without(Scenario(shape=Shape(tokens=0)), LARGER)) == []


def test_a_value_of_another_class_is_not_covered() -> None:
    def weighs(weight: float) -> Scenario:
        return Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=weight),)))

    def edited(value: str | int, tensor: str = "hidden_states") -> Scenario:
        index = (0, 0) if tensor == "hidden_states" else (0, 0, 0)
        return Scenario(values=Values(edits=(ValueEdit(tensor=tensor, index=index, value=value),)))  # type: ignore[arg-type]

    classes = [
        *map(weighs, (0.0, 1.0, -1.0, float("nan"), float("inf"))),
        *map(edited, ("nan", "inf", "0", "max", "min_subnormal")),
        *(edited(byte, "w13_scale") for byte in (0, 1, 254, 255)),
    ]
    for one in classes:
        assert [other for other in classes if covers(one, other)] == [one]
    assert covers(edited("inf"), edited("-inf"))
    assert covers(edited(0, "w13_scale"), edited(0, "w2_scale"))
    assert covers(edited(0, "w13_scale"), Scenario(values=Values(scale_low=0)))


def test_what_is_taken_away_later_does_not_bring_an_earlier_cause_back():
    """Slot 0 takes slot 1's expert. So that none comes twice slot 1 gets the one that slot 0 had; and that comes twice
    where the first edit is gone."""
    twice = Scenario(shape=PAIR, routing=Routing(edits=(DuplicateSlot(token=0, slot=0, source=1),)))
    engine = engine_of(lambda scenario: triggers.has(Trigger.DUPLICATE_EXPERT, scenario))
    causes = [Cause(TWICE, Trigger.DUPLICATE_EXPERT), Cause(TWICE)]
    alone = triggers.without(Trigger.DUPLICATE_EXPERT, twice)
    assert any(triggers.has(Trigger.DUPLICATE_EXPERT, other) for other in causes[1].taken_from(alone))
    rest = stripped(diverges(twice), causes, engine)
    assert rest is not None
    assert rest.verdict is Verdict.AGREES
    assert explained_by(causes, diverges(twice), engine)
