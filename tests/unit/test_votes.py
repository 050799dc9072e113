"""Votes of several candidates: who stands alone, which pairs agree, and that it works across processes."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import candidates
import pytest
import torch

from difftest import campaign, suite
from difftest.findings import Finding, Summary
from difftest.isolation.executors import Executors, Isolation
from difftest.judging import ballots
from difftest.judging.ballots import Ballot, Poll
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.trial import InProcess
from difftest.judging.votes import AGREE, DIFFER, UNASKED, Pairs, Votes
from difftest.options import Options
from difftest.output import describe
from oracles.enclosure import ANY, FINITE, NAN, POS_INF, Enclosure
from oracles.problem import build
from oracles.reference import enclose
from strategies.scenario import Parallel, Scenario, Shape

DROPPED = Scenario(
    shape=Shape(tokens=6, hidden=64, intermediate=32, experts=4, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1)
)
"""What `candidates.SlotDropped` gets wrong."""


def spec(name: str) -> str:
    return f"{candidates.FILE}:{name}"


def ballot(output: list[float], center: list[float], hard: float = 0.0, kinds: int = FINITE) -> Ballot:
    one = torch.tensor([center], dtype=torch.float64)
    enclosure = Enclosure(
        center=one,
        hard=torch.full_like(one, hard),
        sharp=torch.full_like(one, hard / 2),
        kinds=torch.full_like(one, kinds, dtype=torch.uint8),
    )
    return Ballot.of(torch.tensor([output]), enclosure)


# --- two ballots -----------------------------------------------------------------------------------------------------


def test_pairs_are_judged_by_both_radii_and_recipes() -> None:
    """|a - b| <= r_a + r_b + |ref_a - ref_b|."""
    first = ballot([1.0], [1.0], hard=0.25)
    for value, hard, agrees in ((1.75, 0.5, True), (1.76, 0.5, False), (1.75, 0.25, False), (0.25, 0.5, True)):
        second = ballot([value], [1.0], hard=hard)
        assert first.agrees(second, "impossible") == second.agrees(first, "impossible") == agrees
    assert first.agrees(ballot([3.25], [3.0], hard=0.0), "impossible")  # another recipe, 2 away
    assert not first.agrees(ballot([1.75], [1.0], hard=0.5), "implausible")  # half the radii


def test_what_is_not_finite_is_compared_too() -> None:
    finite, nan, infinite = ballot([1.0], [1.0]), ballot([math.nan], [1.0]), ballot([math.inf], [1.0])
    assert not finite.agrees(nan, "impossible")
    assert not finite.agrees(infinite, "impossible")
    assert nan.agrees(nan, "impossible")
    lost, kept = ballot([1.0], [0.0], kinds=NAN), ballot([math.nan], [0.0], kinds=NAN)
    assert not lost.agrees(kept, "must_be_nonfinite")
    assert (lost.is_right("must_be_nonfinite"), kept.is_right("must_be_nonfinite")) == (False, True)
    infinity = ballot([math.inf], [0.0], kinds=NAN)
    assert not infinity.agrees(kept, "must_be_nonfinite")
    assert not infinity.is_right("must_be_nonfinite")
    assert ballot([math.inf], [0.0], kinds=NAN | POS_INF).agrees(kept, "must_be_nonfinite")  # either may be right
    assert ballot([7.0], [0.0], kinds=ANY).agrees(kept, "impossible")  # nothing is claimed there


def test_ballots_survive_the_file(tmp_path: Path) -> None:
    problem = build(DROPPED)
    made = Ballot.of(problem.hidden_states, enclose(problem, candidates.Right().numerics))
    made.save(tmp_path / "ballot.npz")
    read = Ballot.load(tmp_path / "ballot.npz")
    for name, value in vars(made).items():
        assert torch.equal(getattr(read, name), value)
    assert [path.name for path in tmp_path.iterdir()] == ["ballot.npz"]


# --- a poll ----------------------------------------------------------------------------------------------------------


def poll(*names: str) -> tuple[Poll, list[InProcess]]:
    processes = [InProcess(name if "-" in name else spec(name), "reference") for name in names]
    return Poll({process.candidate: process.ballot for process in processes}), processes


def outcomes(processes: list[InProcess], scenario: Scenario) -> list[Outcome]:
    return [process.run(scenario, ()) for process in processes]


def test_one_stands_alone() -> None:
    asked, processes = poll("SlotDropped", "grouped-mm", "Right", "Narrow")
    finding = processes[0].run(DROPPED, ())
    votes = asked.votes(finding)
    assert votes == Votes(against=("grouped-mm", spec("Right")), silent=(spec("Narrow"),))
    assert votes.alone
    assert Votes.from_json(votes.to_json()) == votes


def test_two_share_a_mistake() -> None:
    twin = InProcess(spec("SlotDropped"), "reference")
    asked, processes = poll("SlotDropped", "grouped-mm")
    asked = Poll({"twin": twin.ballot, **{process.candidate: process.ballot for process in processes}})
    votes = asked.votes(processes[0].run(DROPPED, ()))
    assert votes == Votes(beside=("twin",), against=("grouped-mm",))
    assert not votes.alone


def test_a_radius_that_is_too_wide_decides_nothing() -> None:
    """The finding is off by less than the other's radius."""
    exact = ballot([1.125], [1.0])
    wide = ballot([1.0], [1.0], hard=0.5)
    assert ballots._place(exact, wide, "impossible") == "undecided"
    assert ballots._place(exact, ballot([9.0], [1.0]), "impossible") == "apart"


def test_pairs_are_counted() -> None:
    asked, processes = poll("SlotDropped", "grouped-mm", "Narrow")
    right = Scenario(shape=Shape(tokens=1, hidden=64, intermediate=32, experts=4, top_k=2))
    for scenario in (DROPPED, right):
        asked.count(outcomes(processes, scenario))
    names = [process.candidate for process in processes]
    assert asked.pairs.counts == {
        (names[0], names[1]): {DIFFER: 1, AGREE: 1},
        (names[0], names[2]): {AGREE: 1},  # it does not support the other
        (names[1], names[2]): {AGREE: 1},
    }
    assert Pairs.from_json(asked.pairs.to_json()) == asked.pairs
    assert (asked.pairs + asked.pairs).counts[names[0], names[1]] == {DIFFER: 2, AGREE: 2}


def test_nothing_is_asked_when_all_are_right() -> None:
    """Inside both enclosures two candidates agree, by the triangle inequality."""
    _, processes = poll("Right", "grouped-mm")

    asked = Poll({process.candidate: lambda *_: pytest.fail("asked") for process in processes})
    asked.count(outcomes(processes, DROPPED))
    assert asked.pairs.counts[processes[0].candidate, "grouped-mm"] == {AGREE: 1}


def test_enough_of_one_bucket_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballots, "PER_BUCKET", 1)
    asked, processes = poll("SlotDropped", "grouped-mm")
    for _ in range(3):
        asked.count(outcomes(processes, DROPPED))
    assert asked.pairs.counts[processes[0].candidate, "grouped-mm"] == {DIFFER: 1, UNASKED: 2}


@pytest.mark.usefixtures("warm")
def test_a_worker_votes(tmp_path: Path) -> None:
    name = spec("SlotDropped")
    with Executors((name,), Isolation(all=True)) as executors:
        worker = executors.of(name, "reference")
        assert worker.isolated
        assert worker.ballot(DROPPED, tmp_path / "there.npz")
    here = InProcess(name, "reference")
    assert here.ballot(DROPPED, tmp_path / "here.npz")
    assert torch.equal(Ballot.load(tmp_path / "there.npz").output, Ballot.load(tmp_path / "here.npz").output)


@pytest.mark.parametrize("name", ["Rejects", "Narrow"])
def test_who_does_not_answer_has_no_vote(name: str, tmp_path: Path) -> None:
    wide = Scenario(shape=Shape(tokens=2, hidden=96, intermediate=32, experts=4, top_k=2))
    assert not InProcess(spec(name), "reference").ballot(wide, tmp_path / "ballot.npz")
    assert list(tmp_path.iterdir()) == []


# --- a campaign ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _own_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def run(tmp_path: Path, *names: str, reference: str = "reference") -> tuple[Summary, Options]:
    """With the suite's ledger, so that only what is planted is shrunk."""
    folder = shutil.copytree(Path(suite.__file__).parent / "cases", tmp_path / "cases")
    options = Options(candidates=names, examples=8, profile="quick", seed=1, cases=folder, reference=reference)
    return campaign.run(options, lambda _: None), options


def test_a_campaign_says_who_stands_alone(tmp_path: Path) -> None:
    pytest.importorskip("ggml")
    planted = spec("SlotDropped")
    summary, options = run(tmp_path, "grouped-mm", "ggml", "ggml-repacked", planted)
    finding = next(found for found in summary.findings if found.bucket.oracle == planted)
    votes = finding.votes
    assert votes is not None
    assert "grouped-mm" in votes.against
    assert votes.alone
    assert {*votes.against, *votes.undecided, *votes.silent} == {"grouped-mm", "ggml", "ggml-repacked"}
    lines = describe.finding_lines(finding, options)
    assert any(line.startswith("  votes          stands alone: grouped-mm") for line in lines)
    pairs = summary.pairs.counts
    assert len(pairs) == 6
    assert pairs["grouped-mm", planted][DIFFER] >= finding.seen
    assert pairs["grouped-mm", "ggml"][AGREE] > 0
    assert Summary.from_json(summary.to_json()).pairs == summary.pairs
    assert Finding.from_json(finding.to_json()) == finding
    assert "pairwise agreement, answer against answer, of the scenarios that both answered:" in describe.summary_lines(
        summary, options
    )


def test_another_reference_has_no_radius_of_its_own(tmp_path: Path) -> None:
    summary, _ = run(tmp_path, "grouped-mm", spec("Right"), reference=spec("Narrow"))
    assert summary.pairs.counts == {}


# --- in words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "line"),
    [
        (Votes(against=("a",)), "stands alone: a agrees with the reference"),
        (Votes(against=("a", "b"), silent=("c",)), "stands alone: a and b agree with the reference; no answer from c"),
        (Votes(against=("a",), beside=("b",)), "b agrees with it, against a and the reference"),
        (Votes(beside=("a", "b", "c")), "a, b and c agree with it, against the reference alone"),
        (Votes(undecided=("a",)), "no other candidate decides; a cannot tell, the radius holds both"),
        (Votes(against=("a",), apart=("b",)), "stands alone: a agrees with the reference; b agrees with neither"),
    ],
)
def test_votes_in_words(votes: Votes, line: str) -> None:
    assert describe.votes_line(votes) == line


def test_pairs_in_words() -> None:
    pairs = Pairs()
    assert describe.pair_lines(pairs) == []
    pairs.add("ggml", "grouped-mm", AGREE, 40)
    pairs.add("ggml", "x", DIFFER, 2)
    pairs.add("ggml", "x", UNASKED)
    assert describe.pair_lines(pairs) == [
        "pairwise agreement, answer against answer, of the scenarios that both answered:",
        "  ggml        grouped-mm  40 of 40 agree",
        "  ggml        x           0 of 2 agree, 2 differ, 1 not looked into",
    ]


def test_the_verdict_of_a_finding_that_is_no_answer_gets_no_votes() -> None:
    asked, processes = poll("Rejects", "grouped-mm")
    wide = Scenario(shape=Shape(tokens=2, hidden=96, intermediate=32, experts=4, top_k=2))
    finding = processes[0].run(wide, ())
    assert finding.verdict is Verdict.REJECTED
    assert asked.votes(finding) is None
