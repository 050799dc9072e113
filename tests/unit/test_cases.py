from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import platform
from typing import Any

import pytest
from findings import HERE, SCENARIO, agrees, case, diverges, races

from difftest.judging.outcome import Outcome, Verdict
from difftest.ledger import cases
from difftest.ledger.cases import AppliesTo, Case, CaseNotWritten, InvalidCase, Status
from difftest.ledger.triggers import Trigger
from difftest.report.paths import relative_in
from strategies import Scenario, Shape

KINDS = {
    "plain": case(),
    "fixed": case(status=Status.FIXED, upstream="https://example.org/issues/1"),
    "explained": case(explanation="the second slot is lost", deviation="duplicate expert"),
    "by hand": case(found=None),
    "of one thing": case(trigger=Trigger.DUPLICATE_EXPERT, seen="2026-11-30"),
    "of more": case(sightings=("0123abcd", "4567ef01")),
    "elsewhere": case(applies_to=AppliesTo(packages={"kernels": ">=1.2,<2"}, arch=("x86_64", "aarch64"))),
    "worst elsewhere": case(worst=diverges(Scenario(shape=Shape(tokens=99)), error=math.nan)),
    "race": case(races(SCENARIO, 3, 64)),
    "rejected": case(
        Outcome(
            verdict=Verdict.REJECTED,
            scenario=SCENARIO,
            candidate="fake",
            reference="reference",
            check="call",
            kind="ValueError",
            detail="no kernel",
            traceback="Traceback",
        )
    ),
}


@pytest.mark.parametrize("saved", KINDS.values(), ids=KINDS)
def test_round_trip(saved, tmp_path):
    path = cases.new_path(tmp_path, saved)
    cases.save(saved, path)
    assert repr(cases.load(path)) == repr(saved)  # a NaN is not equal to itself
    assert path.read_text() == path.read_text().encode("ascii").decode()
    assert cases.paths(tmp_path) == [path]


def test_the_name_tells_the_bucket_and_the_scenario(tmp_path):
    assert cases.new_path(tmp_path, case()).name == f"fake.reference.diverges.impossible-{SCENARIO.digest}.case.json"


def test_a_new_name_is_never_that_of_another_file(tmp_path):
    for _ in range(3):
        cases.save(case(), cases.new_path(tmp_path, case()))
    assert len(cases.paths(tmp_path)) == 3


def test_there_are_no_cases_where_there_is_no_folder(tmp_path):
    assert cases.paths(tmp_path / "none") == []


def test_saving_again_replaces_the_file(tmp_path):
    path = tmp_path / "a.case.json"
    cases.save(case(), path)
    cases.save(case(status=Status.FIXED), path)
    assert cases.load(path).status is Status.FIXED
    assert os.listdir(tmp_path) == ["a.case.json"]


# --- damaged files -----------------------------------------------------------------------------------------------


def edited(**changes: Any) -> str:
    data = json.loads(json.dumps(case().to_json()))
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        part = data
        for parent in parents:
            part = part[parent]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return json.dumps(data)


DAMAGED = {
    "": "is empty",
    "{": "is not JSON, or is cut off, at line 1: Expecting property name enclosed in double quotes",
    edited()[:200]: "is not JSON, or is cut off, at line 1: ",
    "[]": "case = []: must be a JSON object",
    "null": "case = None: must be a JSON object",
    edited(version=5): "version = 5: written by a newer difftest; this one reads 4",
    edited(version="1"): "version = '1': must be an integer in [1, 4]",
    edited(version=True): "version = True: must be an integer in [1, 4]",
    edited(version=...): "version = None: must be an integer in [1, 4]",
    edited(outcome=...): "outcome: must be given",
    edited(outcome=3): "outcome.outcome = 3: must be a JSON object",
    edited(outcome__verdict="wrong"): "outcome.verdict = 'wrong': must be one of agrees, diverges",
    edited(outcome__scenario__shape__hidden=33): "outcome.scenario.shape.hidden = 33: must be a multiple of 32",
    edited(version=3, seen="yesterday"): "seen = 'yesterday': must be a day, as '2026-11-30'",
    edited(version=3, seen="20261130"): "seen = '20261130': must be a day, as '2026-11-30'",
    edited(version=2, seen="2026-11-30"): "seen = '2026-11-30': must be left out; the fields are ",
    edited(version=4, trigger="full moon"): "trigger = 'full moon': must be one of duplicate expert",
    edited(version=3, trigger="duplicate expert"): "trigger = 'duplicate expert': must be left out; the fields are ",
    edited(version=4, sightings="0123abcd"): "sightings = '0123abcd': must be a list of strings",
    edited(outcome__scenario__version=9): "outcome.scenario.version = 9: must be 1",
    edited(outcome=agrees().to_json()): "outcome.verdict = 'agrees': must be a finding's",
    edited(worst=diverges(kind="implausible").to_json()): "worst = fake.reference.diverges.implausible: must be",
    edited(bucket="another"): "bucket = 'another': must be 'fake.reference.diverges.impossible', that of the outcome",
    edited(status="closed"): "status = 'closed': must be one of open, fixed",
    edited(status=["open"]): "status = ['open']: must be one of open, fixed",
    edited(upstream=7): "upstream = 7: must be a string",
    edited(explanation=7): "explanation = 7: must be a string",
    edited(deviation=7): "deviation = 7: must be a string",
    edited(comment="hm"): "comment = 'hm': must be left out; the fields are applies_to, bucket, deviation, environment",
    edited(applies_to__arch="x86_64"): "applies_to.arch = 'x86_64': must be a list of strings",
    edited(applies_to__packages={"kernels": "new"}): "applies_to.packages.kernels = 'new': must be a version specifier",
    edited(applies_to__versions=[]): "applies_to.versions = []: must be left out; the fields are arch, packages",
    edited(found__seed=-1): "found.seed = -1: must be an integer >= 0",
    edited(found__shard=...): "found.shard: must be given",
    edited(environment__lam=0): "environment.lam = 0: must be a positive number",
    edited(environment__torch=2): "environment.torch = 2: must be a string",
    edited(environment__packages=[]): "environment.packages = []: must be a JSON object",
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.items(), ids=range(len(DAMAGED)))
def test_a_damaged_file_is_one_line_that_names_file_and_field(text, message, tmp_path):
    path = tmp_path / "a.case.json"
    path.write_text(text)
    with pytest.raises(InvalidCase) as raised:
        cases.load(path)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def test_no_part_of_a_file_is_a_case(tmp_path):
    path = tmp_path / "a.case.json"
    cases.save(case(), path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidCase):
            cases.load(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00" * 8])
def test_a_file_that_is_not_text(content, tmp_path):
    path = tmp_path / "a.case.json"
    path.write_bytes(content)
    with pytest.raises(InvalidCase, match=r"a\.case\.json: is not"):
        cases.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidCase, match="No such file"):
        cases.load(tmp_path / "a.case.json")


# --- folders that cannot be written ------------------------------------------------------------------------------


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "cases").write_text("")
    with pytest.raises(CaseNotWritten, match=r"a\.case\.json: cannot be written: (Not a directory|File exists)"):
        cases.save(case(), tmp_path / "cases" / "a.case.json")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.case.json"
    cases.save(case(), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CaseNotWritten, match="cannot be written: No space left on device"):
        cases.save(case(status=Status.FIXED), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.case.json"]


def test_others_may_read_a_case(tmp_path):
    path = tmp_path / "new" / "a.case.json"
    cases.save(case(), path)
    assert path.stat().st_mode & 0o777 == 0o644


# --- where a case applies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("applies_to", "objection"),
    [
        (AppliesTo(), None),
        (AppliesTo(arch=("x86_64",)), None),
        (AppliesTo(arch=("aarch64", "sm120")), "it is about aarch64, sm120, this machine is x86_64"),
        (AppliesTo(packages={"kernels": ">=1.0,<2"}), None),
        (AppliesTo(packages={"kernels": "<1.2"}), "it is about kernels <1.2, installed is 1.2.0"),
        (AppliesTo(packages={"engine": ""}), "it is about engine, which the candidate does not come from here"),
    ],
)
def test_where_a_case_applies(applies_to, objection):
    assert applies_to.objection(HERE) == objection


def test_a_development_version_counts():
    here = dataclasses.replace(HERE, packages={"kernels": "1.3.dev1+g123"})
    assert AppliesTo(packages={"kernels": ">=1.2"}).objection(here) is None


def test_a_case_of_two_findings_is_none():
    both = dataclasses.replace(diverges(), other_findings=(diverges(check="pad"),))
    with pytest.raises(InvalidCase, match="must be one finding"):
        Case(outcome=both, worst=diverges(), environment=HERE)


def test_the_fingerprint_of_this_process():
    from difftest import fingerprint
    from oracles.grouped_mm import GroupedMM

    here = fingerprint.take(GroupedMM())
    assert here.arch == platform.machine()
    assert here.packages == {"difftest": here.difftest}
    assert dataclasses.replace(case(), environment=here).to_json()["environment"]["radius_model"] >= 1


def test_the_shipped_ledger_is_that_of_the_candidates(tmp_path) -> None:
    cases.save(case(), tmp_path / f"mine{cases.SUFFIX}")
    shipped = {path: cases.load(path) for path in cases.paths(cases.SHIPPED)}
    assert all(saved.explanation and saved.status is Status.OPEN for saved in shipped.values())
    named = {saved.candidate for saved in shipped.values()}
    assert named >= {"ggml", "ggml-repacked", "sglang-flashinfer", "cutlass", "cutlass-graph", "marlin"}
    ours = [saved.applies_to for saved in shipped.values() if saved.candidate.startswith("cutlass")]
    versions = {applies_to.packages["flashinfer-python"] for applies_to in ours}
    assert versions == {">=0.6.18,<0.7.1", "===0.6.18", "<0.6.18"}  # the patched 0.6.18 has another name
    for names in ((), ("ggml",), ("ggml", "ggml-repacked")):
        expected = [path for path, saved in shipped.items() if saved.candidate in names]
        assert cases.known(tmp_path, names) == [*expected, tmp_path / f"mine{cases.SUFFIX}"]


def test_the_shipped_ledger_names_no_machines_paths() -> None:
    for path in cases.paths(cases.SHIPPED):
        data = cases.load(path).to_json()
        assert relative_in(data) == data, path.name


def test_a_patched_build_is_another_version_than_the_stock_one() -> None:
    here = dataclasses.replace(HERE, build={"name": "1.2.0+situ.patch+more"})
    stock, any_build = (AppliesTo(packages={"kernels": versions}) for versions in ("===1.2.0", ">=1.2,<1.3"))
    assert stock.objection(HERE) is None
    assert stock.objection(here) == "it is about kernels ===1.2.0, installed is 1.2.0+situ.patch.more"
    assert any_build.objection(here) is None
    assert stock.objection(dataclasses.replace(HERE, build={"name": "1.2.0"})) is None
