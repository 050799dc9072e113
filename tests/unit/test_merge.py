"""Parts of a campaign, joined again."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import candidates
import pytest
from findings import case, diverges

from difftest import campaign
from difftest.findings import Finding, Summary
from difftest.judging.outcome import Outcome
from difftest.ledger import cases
from difftest.ledger.cases import Case, Status
from difftest.options import InvalidOption, Options
from difftest.output import events
from difftest.scale import merge, task
from difftest.scale.identity import Identity, ledger_digest
from difftest.scale.merge import NotOneCampaign
from difftest.scale.part import Part, words
from difftest.scale.result import InvalidResult, Result, load
from strategies import Scenario, Shape
from strategies.scenario import MaskSlot, Routing

pytestmark = pytest.mark.usefixtures("unexplained")

REJECTS = f"{candidates.FILE}:Rejects"
EXAMPLES = 24  # three shards


def options(folder: Path, **changes) -> Options:
    given = {"candidates": (REJECTS,), "profile": "quick", "examples": EXAMPLES, "seed": 1, "cases": folder / "cases"}
    return Options(**given | changes)


def part(folder: Path, shards: list[int], emit=lambda _: None, **changes) -> Result:
    given = options(folder, **changes)
    known = cases.known(given.cases, given.candidates)
    return task.run(given, shards, emit, known=known, folder=folder / f"part-{shards[0]}.cases")


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> list[Result]:
    """Shards 0 and 2, and shard 1; as read from their files."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("parts")
        patch.setattr(tempfile, "tempdir", str(folder))
        return [Result.decode(part(folder, shards).encode()) for shards in ([0, 2], [1])]


@pytest.fixture
def named(parts) -> dict[str, Result]:
    return dict(zip(("a.json", "b.json"), parts, strict=True))


def test_parts_join_into_what_one_run_says(parts, named, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    whole = campaign.run(options(tmp_path), lambda _: None)
    merge.check(named)
    joined, found = merge.join(list(reversed(parts)))  # in any order
    for name in ("scenarios", "verdicts", "unsupported", "one_offs", "pairs", "known", "coverage", "exit_code"):
        assert getattr(joined, name) == getattr(whole, name), name
    (mine,), (theirs,) = joined.findings, whole.findings
    for name in ("bucket", "smallest", "worst", "seen", "scenarios_before", "fixed_point"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert [one.outcome for one in found] == [theirs.smallest]
    assert sum(len(one.summary.findings) for one in parts) == 2


def test_cases_are_saved_once_and_then_left_alone(parts, tmp_path):
    told: list[events.Event] = []
    given = options(tmp_path)
    summary = merge.tell(parts, given, told.append)
    (path,) = given.cases.iterdir()
    assert summary.findings[0].case_path == path
    assert [type(event).__name__ for event in told] == ["RunStarted", "CaseSaved", "RunFinished"]
    cases.save(dataclasses.replace(cases.load(path), status=Status.FIXED), path)
    merge.tell(parts, given, told.append)
    assert cases.load(path).status is Status.FIXED
    assert list(given.cases.iterdir()) == [path]


def test_the_ledger_is_replayed_by_the_part_of_shard_0(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cases.save(parts[0].cases[0], tmp_path / "cases" / "known.case.json")
    first, second = (part(tmp_path, [shard], examples=16) for shard in (0, 1))
    assert (first.summary.replays.total(), second.summary.replays.total()) == (1, 0)
    assert (first.summary.findings, second.summary.findings) == ((), ())
    assert first.identity.difference(second.identity) is None
    assert parts[0].identity.difference(dataclasses.replace(first.identity, options=parts[0].identity.options)) == (
        "its known cases are others"
    )


def changed(result: Result, **changes) -> Result:
    return dataclasses.replace(result, identity=dataclasses.replace(result.identity, **changes))


def other_options(result: Result, **changes) -> Result:
    return changed(result, options={**result.identity.options, **changes})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: other_options(r, seed=2), "--seed is 2, not 1"),
        (lambda r: other_options(r, activations=["situ"]), "--activation is situ, not absent"),
        (lambda r: changed(r, versions={**r.identity.versions, "hypothesis": "1"}), "hypothesis's version is 1, not"),
        (lambda r: changed(r, candidates={}), "could run where it was made, and could not elsewhere"),
        (
            lambda r: changed(r, candidates={REJECTS: {**r.identity.candidates[REJECTS], "kernels": "2"}}),
            "kernels is 2, not absent",
        ),
        (lambda r: changed(r, ledger="0"), "its known cases are others"),
    ],
)
def test_results_of_different_campaigns_are_refused(change, told, named):
    with pytest.raises(NotOneCampaign, match=r"b\.json: is of another campaign than a\.json") as raised:
        merge.check(named | {"b.json": change(named["b.json"])})
    line = str(raised.value)
    assert "\n" not in line
    if "could run" not in told:
        assert told in line


def test_a_shard_twice_is_refused(named):
    with pytest.raises(NotOneCampaign, match=r"c\.json: has shard 2/64, which b\.json has too"):
        merge.check(named | {"c.json": named["b.json"]})


def test_a_shard_that_is_missing_is_named(named):
    with pytest.raises(NotOneCampaign, match="missing: shard 1/64, 3/64; run it"):
        merge.check({"b.json": named["b.json"]})


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda _: "", "is no result of `--shard`, or is cut off"),
        (lambda text: text[: len(text) // 2], "is no result of `--shard`, or is cut off"),
        (lambda _: "[" * 100_000, "is no result of `--shard`, or is cut off"),
        (lambda _: "[1]", "is no result of `--shard`, or is cut off"),
        (lambda text: text.replace('"scenarios": 8', '"scenarios": 9', 1), "its content is not what was written"),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), "version = 2: this difftest joins results of"),
    ],
)
def test_a_damaged_file_is_refused(damage, told, parts, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(damage(parts[1].encode().decode()))
    with pytest.raises(InvalidResult) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert told in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        InvalidResult, match="cannot be read: No such file or directory; name the file that --shard wrote"
    ):
        load(tmp_path / "absent.json")


def test_what_does_not_fit_together_is_no_result(parts):
    with pytest.raises(InvalidResult, match="its shards have 9 scenarios, not 8"):
        dataclasses.replace(parts[1], shards={1: 9})
    with pytest.raises(InvalidResult, match="its cases are not those of its findings"):
        dataclasses.replace(parts[1], cases=())


def test_a_result_comes_back_as_it_was_written(parts):
    again = Result.decode(parts[0].encode())
    assert again == parts[0]
    assert json.loads(parts[0].encode())["version"] == 1


# --- findings of one bucket --------------------------------------------------------------------------------------


def one(shard: int, smallest: Outcome, identity: Identity) -> Result:
    finding = Finding(
        bucket=smallest.bucket,
        smallest=smallest,
        worst=smallest,
        seen=2,
        scenarios_before=3,
        shrink_runs_hypothesis=0,
        shrink_runs_reducer=5,
        fixed_point=True,
        case_path=None,
    )
    summary = Summary(scenarios=8, findings=(finding,))
    return Result(identity=identity, shards={shard: 8}, summary=summary, cases=(case(smallest),))


def of(tokens: int, *edits: MaskSlot) -> Scenario:
    return Scenario(shape=Shape(tokens=tokens), routing=Routing(edits=edits))


def test_the_smallest_of_a_bucket_wins_and_what_lacks_a_part_of_it_stands(parts):
    """Three rows explain five; two rows and a masked slot are no three rows, and stand beside them."""
    masked = MaskSlot(token=0, slot=0)
    found = [of(5), of(3), of(2, masked)]
    results = [one(2 - n, diverges(scenario), parts[0].identity) for n, scenario in enumerate(found)]
    summary, joined = merge.join(results)
    assert [one.smallest.scenario for one in summary.findings] == [of(3), of(2, masked)]
    assert [one.seen for one in summary.findings] == [4, 2]
    assert [one.scenarios_before for one in summary.findings] == [8 + 3, 3]
    assert [one.scenario for one in joined] == [of(3), of(2, masked)]


def test_the_worst_is_that_of_all(parts):
    results = [one(n, diverges(of(1 + n), error=1.0 + n), parts[0].identity) for n in range(3)]
    summary, joined = merge.join(results)
    assert [(f.smallest.scenario, f.worst.scenario) for f in summary.findings] == [(of(1), of(3))]
    assert isinstance(joined[0], Case)
    assert joined[0].worst.scenario == of(3)


# --- K/N ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("examples", [1, 24, 300, 20_000])
def test_parts_have_each_shard_once(of, examples):
    shards = [shard for number in range(1, of + 1) for shard in Part(number, of).shards(examples)]
    assert sorted(shards) == Part(1, 1).shards(examples)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/65", "3", "a/b", "1/2/3", "-1/2"])
def test_no_part(text):
    with pytest.raises(InvalidOption, match=f"--shard {text}: must be K/N"):
        Part.parse(text)


def test_a_shard_is_named_as_a_part_of_its_own():
    assert Part.parse("4/64").shards(20_000) == [3]
    assert words([3]) == "4/64"
    assert words([0, 1, 2, 5]) == "1/64 to 3/64, 6/64"


def test_the_day_on_which_a_case_was_seen_makes_no_other_ledger(tmp_path: Path) -> None:
    paths = [tmp_path / "a.case.json", tmp_path / "b.case.json"]
    known = case(diverges())
    cases.save(known, paths[0])
    cases.save(known.seen_today(), paths[1])
    assert paths[0].read_bytes() != paths[1].read_bytes()
    assert ledger_digest(paths[:1]) == ledger_digest(paths[1:]) != ledger_digest(paths)
    cases.save(dataclasses.replace(known, status=Status.FIXED), paths[1])
    assert ledger_digest(paths[:1]) != ledger_digest(paths[1:])
