"""What `difftest replay` shows and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def repair(name: str) -> None:
    """Make the class of kernels.py right."""
    path = Path("kernels.py")
    path.write_text(path.read_text() + f"\n\nclass {name}(GroupedMM):\n    pass\n")


def test_open_and_still_diverging(case, difftest, snapshot):
    result = difftest("replay", case("a", "Off"))
    assert str(result) == snapshot
    assert result.code == 0


def test_open_and_fixed(case, difftest, snapshot):
    path = case("a", "Off")
    repair("Off")
    result = difftest("replay", path)
    assert str(result) == snapshot
    assert result.code == 1


def test_fixed_and_agreeing(case, difftest, snapshot):
    path = case("a", "Off", {"status": "fixed"})
    repair("Off")
    result = difftest("replay", path)
    assert str(result) == snapshot
    assert result.code == 0


def test_fixed_and_diverging_again(case, difftest, snapshot):
    result = difftest("replay", case("a", "Off", {"status": "fixed"}))
    assert str(result) == snapshot
    assert result.code == 1


def test_another_finding_than_the_case_s(case, difftest, snapshot):
    path = case("a", "Off")
    Path("kernels.py").write_text(Path("kernels.py").read_text() + "\n\nOff = Rejects\n")
    result = difftest("replay", path)
    assert str(result) == snapshot
    assert result.code == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"version": 1, "buck', id="truncated"),
        pytest.param(b"not json at all", id="not-json"),
        pytest.param(b"\xff\xfe\x00", id="not-text"),
        pytest.param(b"[1, 2]", id="not-an-object"),
        pytest.param(b"{}", id="no-fields"),
    ],
)
def test_damaged_file_is_errored_not_a_crash(content, difftest, snapshot):
    Path("a.case.json").write_bytes(content)
    result = difftest("replay", "a.case.json")
    assert str(result) == snapshot
    assert result.code == 2
    assert Path("a.case.json").read_bytes() == content


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"version": 5}, id="newer"),
        pytest.param({"version": "one"}, id="version-no-number"),
        pytest.param({"outcome.scenario.version": 99}, id="newer-scenario"),
        pytest.param({"outcome.scenario.shape.hidden": 33}, id="hidden-no-multiple-of-32"),
        pytest.param({"outcome.scenario.shape.experts": -1}, id="no-experts"),
        pytest.param({"outcome.scenario.tokens": 1}, id="unknown-field-in-scenario"),
        pytest.param({"outcome.verdict": "bad"}, id="unknown-verdict"),
        pytest.param({"outcome.candidate": 3}, id="candidate-no-name"),
        pytest.param({"status": "wontfix"}, id="unknown-status"),
        pytest.param({"note": "hello"}, id="unknown-field"),
        pytest.param({"bucket": "other"}, id="other-bucket"),
        pytest.param({"applies_to": {"arch": "x86_64"}}, id="arch-no-list"),
    ],
)
def test_a_field_that_is_not_allowed_is_named(changes, case, difftest, snapshot):
    result = difftest("replay", case("a", changes=changes))
    assert str(result) == snapshot
    assert result.code == 2


def test_oracle_file_is_gone(case, difftest, snapshot):
    path = case("a")
    Path("kernels.py").unlink()
    result = difftest("replay", path)
    assert str(result) == snapshot
    assert result.code == 3


def test_not_installed_is_not_applicable(case, difftest, snapshot):
    path = case("a")
    Path("kernels.py").write_text(Path("kernels.py").read_text() + "\n\nRejects = Absent\n")
    result = difftest("replay", path)
    assert str(result) == snapshot
    assert result.code == 3


def test_another_architecture_is_not_applicable(case, difftest):
    result = difftest("replay", case("a", changes={"applies_to.arch": ["sm120"]}))
    assert result.out.startswith("NOT APPLICABLE  a.case.json  kernels.py:Rejects: it is about sm120, this machine is ")
    assert result.code == 3


def test_folder(case, difftest, snapshot):
    """One of each, in the order of their names: what is damaged hides nothing of the rest."""
    case("cases/a", "Off")
    case("cases/b", "Off", {"status": "fixed"})
    case("cases/c", changes={"version": 5})
    gone = {"outcome.candidate": "gone.py:Kernel", "worst.candidate": "gone.py:Kernel"}
    slug = "gone-py-kernel.call.rejected.runtimeerror-no-kernel-image-is-available.89f39e5c"
    case("cases/d", changes={**gone, "bucket": slug})
    Path("cases/e.json").write_text("not a case")
    result = difftest("replay", "cases")
    assert str(result) == snapshot
    assert result.code == 2


def test_not_applicable_beside_a_case_that_ran(case, difftest):
    """Cases for another machine do not spoil a ledger that holds here."""
    case("cases/a", "Off")
    case("cases/b", changes={"applies_to.packages": {"nothing": ">=1"}})
    result = difftest("replay", "cases")
    assert result.out.endswith("2 cases: 1 STILL DIVERGES, 1 NOT APPLICABLE\n")
    assert result.code == 0


def test_required_oracle_is_missing(case, difftest, snapshot):
    result = difftest("replay", case("a"), "--require", "kernels.py:Absent")
    assert str(result) == snapshot
    assert (result.code, result.out) == (3, "")


@pytest.mark.parametrize("args", [(), ("nowhere.case.json",), ("empty",), ("a.case.json", "--json", "no/where")])
def test_bad_input_is_one_line_and_exit_code_2(args, case, difftest, snapshot):
    Path("empty").mkdir()
    case("a")
    result = difftest("replay", *args)
    assert str(result) == snapshot
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)


def test_json(case, difftest):
    difftest("replay", case("a", "Off"), "--json", "out.jsonl")
    (event,) = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert (event["event"], event["replay"]["status"]) == ("CaseReplayed", "still diverges")
