from __future__ import annotations

from dataclasses import replace

import pytest
from findings import HERE, FakeEngine, agrees, diverges

from difftest.findings import Finding
from difftest.harvest import FORMS, Harvest
from difftest.judging.outcome import Outcome
from difftest.ledger import cases
from difftest.ledger.claims import Claims
from difftest.ledger.ledger import Ledger
from difftest.options import Options
from difftest.output import events
from difftest.stream import Stream
from strategies import (
    Capability,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Situ,
    scenarios,
)

pytestmark = pytest.mark.usefixtures("unexplained")

QUICK = scenarios(Capability(), profile="quick")
SLOT_DROPPED = Scenario(shape=Shape(tokens=5, experts=2, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1))


def slot_dropped(scenario: Scenario) -> bool:
    return scenario.shape.tokens > 4 and scenario.parallel.ep_rank > 0 and scenario.shape.top_k > 1


def situ_doubled(scenario: Scenario) -> bool:
    return scenario.activation.kind == "situ" and scenario.parallel.ep_size == 1 and scenario.shape.tokens > 0


def stream(shard: int) -> Stream:
    return Stream(QUICK, base_seed=2, shard=shard, count=60)


@pytest.fixture
def harvested(tmp_path):
    """Draws a shard, and shrinks what `answer` makes of it; twice, the second time with what was saved as known."""
    options = Options(candidates=("fake",), examples=60, seed=2, cases=tmp_path)
    seen: list[events.Event] = []

    def run(answer, claims: Claims | None = None) -> Harvest:
        engine = FakeEngine(answer)
        ledger = Ledger(cases.paths(tmp_path), ("fake",), "reference", lambda _: HERE)
        harvest = Harvest(options, seen.append, claims or Claims(), ledger, lambda _: HERE)
        count = 0

        def visit(scenario: Scenario) -> None:
            nonlocal count
            count += 1
            for finding in engine.check(scenario).findings:
                harvest.collect(finding, ledger.explain(finding, engine), 1, count)

        stream(1).each(visit)
        harvest.shrink({"fake": engine}, stream)
        return harvest

    run.seen = seen
    return run


def smallest(findings: list[Finding]) -> list[Scenario]:
    return [finding.smallest.scenario for finding in findings]


def one(scenario: Scenario) -> Outcome:
    return diverges(scenario) if slot_dropped(scenario) else agrees(scenario)


def two(scenario: Scenario) -> Outcome:
    return diverges(scenario) if situ_doubled(scenario) else one(scenario)


def test_one_mistake_is_one_finding(harvested):
    harvest = harvested(one)
    assert smallest(harvest.findings) == [SLOT_DROPPED]
    drawn: list[Scenario] = []
    stream(1).each(drawn.append)
    assert harvest.findings[0].seen == sum(map(slot_dropped, drawn))
    assert slot_dropped(drawn[harvest.findings[0].scenarios_before - 1])


def test_a_second_mistake_in_the_same_bucket_does_not_hide_behind_the_first(harvested):
    harvest = harvested(two)
    assert set(smallest(harvest.findings)) == {SLOT_DROPPED, Scenario(activation=Situ())}
    assert len({finding.case_path for finding in harvest.findings}) == 2
    assert {finding.smallest.bucket for finding in harvest.findings} == {diverges(SLOT_DROPPED).bucket}


def test_nor_behind_a_known_case_of_the_first(harvested):
    known = harvested(one).findings[0].case_path
    harvest = harvested(two)
    assert smallest(harvest.findings) == [Scenario(activation=Situ())]
    assert set(harvest.known) == {known.name}
    assert harvested(two).findings == []


def test_nor_in_the_scenarios_that_have_both(harvested):
    """The second mistake has something to hide behind in every scenario that shows it."""

    def masked(scenario: Scenario) -> bool:
        return any(isinstance(edit, MaskSlot) for edit in scenario.routing.edits)

    def answer(scenario: Scenario) -> Outcome:
        rare = scenario.layer.biases != "none" and masked(scenario)
        return diverges(scenario) if rare or scenario.shape.tokens > 4 else agrees(scenario)

    many = Scenario(shape=Shape(tokens=5))
    rare = Scenario(layer=Layer(biases="per_expert"), routing=Routing(edits=(MaskSlot(token=0, slot=0),)))
    assert set(smallest(harvested(answer).findings)) == {many, rare}


def many_forms(scenario: Scenario) -> Outcome:
    shape = scenario.shape
    return diverges(scenario) if shape.tokens * shape.hidden * shape.experts > 9000 else agrees(scenario)


def test_a_mistake_of_many_forms_does_not_take_all_the_time(harvested):
    assert 1 < len(harvested(many_forms).findings) <= FORMS


def test_what_was_saved_is_known_to_the_next_run_of_the_seed(harvested, tmp_path):
    """Also what no saved form explains: it was counted as the last of them."""
    harvested(many_forms)
    saved = {path: path.read_text() for path in cases.paths(tmp_path)}
    again = harvested(many_forms)
    assert again.findings == []
    assert again.known.total() > 0
    assert {path: path.read_text() for path in cases.paths(tmp_path)} == saved


def test_two_buckets_are_two_findings_and_the_second_starts_small(harvested):
    def answer(scenario: Scenario) -> Outcome:
        outcome = one(scenario)
        beside = (diverges(scenario, check="pad"),) if scenario.shape.tokens > 5 else ()
        return replace(outcome, other_findings=beside) if outcome.is_finding else outcome

    first, second = harvested(answer).findings
    assert [finding.bucket.check for finding in (first, second)] == ["reference", "pad"]
    assert (first.smallest.scenario.shape.tokens, second.smallest.scenario.shape.tokens) == (5, 6)


def test_what_another_process_has_claimed_is_counted(harvested, tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    bucket = diverges(SLOT_DROPPED).bucket
    assert Claims(folder).take(bucket)
    harvest = harvested(one, Claims(folder))
    assert harvest.findings == []
    assert harvest.elsewhere[str(bucket)] > 1


def test_a_claim_is_taken_once(tmp_path):
    bucket = diverges(SLOT_DROPPED).bucket
    mine, other = Claims(tmp_path), Claims(tmp_path)
    assert [mine.take(bucket), other.take(bucket), mine.take(bucket), other.take(bucket)] == [True, False, True, False]
    assert Claims().take(bucket)


def test_each_sighting_is_announced_once(harvested):
    harvested(two)
    found = [event for event in harvested.seen if isinstance(event, events.FindingFound)]
    assert [event.known for event in found] == [None]
    harvested(two)
    found = [event for event in harvested.seen if isinstance(event, events.FindingFound)]
    assert len({event.known for event in found}) == len(found) == 3
