from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from difftest.judging.outcome import Agreement, Bucket, InvalidOutcome, Outcome, Rate, Verdict, Worst
from strategies.scenario import Scenario, Shape

STATS = Agreement(
    elements=64,
    compared=60,
    exact=40,
    mismatches=3,
    median_ratio=0.1,
    max_ratio=0.9,
    rms=1.5,
    mean_radius=1e-3,
    radius_model=1,
    lam=9.0,
    unit_roundoffs=(2.0**-24, 2.0**-24),
)
WORST = Worst(token=1, column=2, got=3.0, center=1.0, hard=(0.5, 1.5), sharp=(0.75, 1.25), radius=0.5)
BASE: dict[str, Any] = {"scenario": Scenario(), "candidate": "grouped-mm", "reference": "reference"}
FINDING: dict[str, Any] = {"check": "reference", "kind": "impossible", "detail": "3 elements"}

AGREES = Outcome(verdict=Verdict.AGREES, stats=STATS, **BASE)
DIVERGES = Outcome(verdict=Verdict.DIVERGES, worst=WORST, stats=STATS, **BASE, **FINDING)
REJECTED = Outcome(
    verdict=Verdict.REJECTED,
    check="call",
    kind="ValueError: # rows",
    detail="ValueError: 3 rows",
    traceback="x",
    **BASE,
)
NONDETERMINISTIC = Outcome(
    verdict=Verdict.NONDETERMINISTIC,
    check="determinism",
    kind="not_bit_equal",
    detail="3 of 8 runs",
    rate=Rate(failures=3, runs=8),
    **BASE,
)
UNSUPPORTED = Outcome(verdict=Verdict.UNSUPPORTED, reason="activation situ", **BASE)
CRASHED = Outcome(verdict=Verdict.CRASHED, check="process", kind="SIGSEGV", detail="killed by SIGSEGV", **BASE)
HUNG = Outcome(verdict=Verdict.HUNG, check="process", kind="deadline", detail="no answer in 60 s", **BASE)
WORST_JSON, STATS_JSON = DIVERGES.to_json()["worst"], DIVERGES.to_json()["stats"]
ALL = [AGREES, DIVERGES, REJECTED, NONDETERMINISTIC, UNSUPPORTED, CRASHED, HUNG]


@pytest.mark.parametrize("outcome", ALL, ids=lambda outcome: outcome.verdict)
def test_json_round_trip(outcome: Outcome) -> None:
    text = json.dumps(outcome.to_json(), allow_nan=False)
    assert Outcome.from_json(json.loads(text)) == outcome


def test_json_round_trip_with_other_findings_and_non_finite_numbers() -> None:
    worst = replace(WORST, got=math.nan, center=math.inf, hard=(-math.inf, math.inf))
    lost = replace(DIVERGES, kind="must_be_finite", worst=worst, stats=None)
    outcome = replace(DIVERGES, other_findings=(lost, REJECTED))
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json(), allow_nan=False))) == outcome
    assert outcome.findings == (DIVERGES, lost, REJECTED)


def test_which_verdicts_are_findings() -> None:
    assert [outcome.verdict for outcome in ALL if not outcome.is_finding] == [Verdict.AGREES, Verdict.UNSUPPORTED]
    assert AGREES.findings == ()


@pytest.mark.parametrize(
    ("outcome", "changes", "message"),
    [
        (AGREES, {"stats": None}, "stats = None: must be given for agrees"),
        (AGREES, {"check": "reference"}, "check = 'reference': must be empty for agrees"),
        (AGREES, {"reason": "x"}, "reason = 'x': must be left out"),
        (AGREES, {"candidate": ""}, "candidate = '': must be given"),
        (DIVERGES, {"worst": None}, "worst = None: must be given for diverges impossible"),
        (DIVERGES, {"kind": "shape_or_dtype"}, "must be left out for diverges shape_or_dtype"),
        (DIVERGES, {"detail": ""}, "detail = '': must be given for diverges"),
        (DIVERGES, {"rate": Rate(failures=1, runs=2)}, "rate = .*: must be left out"),
        (DIVERGES, {"traceback": "x"}, "traceback = 'x': must be left out"),
        (NONDETERMINISTIC, {"rate": None}, "rate = None: must be given"),
        (UNSUPPORTED, {"reason": ""}, "reason = '': must be given"),
        (DIVERGES, {"other_findings": (AGREES,)}, r"other_findings\[0\] = 'agrees': must be a finding"),
        (DIVERGES, {"other_findings": (DIVERGES,)}, r"other_findings\[0\].bucket"),
        (
            DIVERGES,
            {"other_findings": (replace(CRASHED, scenario=Scenario(shape=Shape(tokens=2))),)},
            r"other_findings\[0\].scenario",
        ),
    ],
)
def test_each_verdict_has_its_own_fields(outcome: Outcome, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOutcome, match=message):
        replace(outcome, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "perhaps"}, "verdict = 'perhaps': must be one of agrees, diverges"),
        ({"verdict": None}, "verdict = None: must be one of"),
        ({"surprise": 1}, "surprise = 1: must be left out"),
        ({"scenario": {"version": 1, "shape": {"hidden": 33}}}, "scenario.shape.hidden = 33"),
        ({"scenario": {"version": 99}}, "scenario.version = 99"),
        ({"worst": {"token": 1}}, "worst.column = None: must be given"),
        ({"worst": 3}, "worst = 3: must be a JSON object"),
        ({"worst": WORST_JSON | {"got": "big"}}, "worst.got"),
        ({"worst": WORST_JSON | {"hard": [1.0]}}, "worst.hard = .*: must be a list of 2"),
        ({"worst": WORST_JSON | {"token": 1.5}}, "worst.token = 1.5: must be an integer"),
        ({"worst": WORST_JSON | {"token": -1}}, "worst.token = -1: must be an integer >= 0"),
        ({"other_findings": {}}, "other_findings = {}: must be a list"),
        ({"other_findings": [{}]}, r"other_findings\[0\].verdict = None: must be given"),
        ({"stats": STATS_JSON | {"exact": 90}}, "stats"),
        ({"candidate": 3}, "candidate = 3: must be a string"),
    ],
)
def test_malformed_json_is_an_error_that_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOutcome, match=message):
        Outcome.from_json(DIVERGES.to_json() | changes)


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_json_that_is_no_object(data: object) -> None:
    with pytest.raises(InvalidOutcome, match=r"outcome = .*: must be a JSON object"):
        Outcome.from_json(data)


def test_a_line_for_people() -> None:
    digest = Scenario().digest
    assert str(AGREES) == f"{digest} grouped-mm agrees with reference: 40 of 60 exact, error/radius at most 0.9"
    assert str(UNSUPPORTED) == f"{digest} grouped-mm unsupported: activation situ"
    both = replace(DIVERGES, other_findings=(REJECTED,))
    assert str(both) == f"{digest} grouped-mm diverges in reference: 3 elements (and 1 more)"


def test_worst_tells_error_and_ratio() -> None:
    assert (WORST.error, WORST.ratio) == (2.0, 4.0)
    assert replace(WORST, radius=0.0).ratio is None
    assert replace(WORST, got=math.nan).ratio is None


def bucket(**changes: str) -> Bucket:
    return replace(DIVERGES.bucket, **changes)


def test_the_slug_of_a_bucket_is_short_and_its_own() -> None:
    assert str(bucket()) == "grouped-mm.reference.diverges.impossible"
    buckets = [
        bucket(),
        bucket(oracle="Grouped-mm"),
        bucket(oracle="a/kernel.py:Kernel"),
        bucket(oracle="b/kernel.py:Kernel"),
        bucket(kind="ValueError: a, b"),
        bucket(kind="ValueError: a; b"),
        bucket(kind="x" * 300),
        bucket(kind="x" * 301),
    ]
    slugs = [str(each) for each in buckets]
    assert len(set(slugs)) == len(buckets)
    assert all(len(slug) <= 80 and slug == slug.strip(".") and not set(slug) & set(" /:,;") for slug in slugs)
    assert hash(bucket()) == hash(bucket())
