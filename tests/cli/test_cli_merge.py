"""`difftest run --shard` and `difftest merge`: what they show and how they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def parts(run):
    """Two parts of a campaign whose candidate rejects everything; their exit codes."""
    return [run("Rejects", "--shard", f"{number}/2", examples=16).code for number in (1, 2)]


def test_parts_end_as_one_run(parts, run, difftest, snapshot):
    assert parts == [1, 1]
    assert sorted(map(str, Path().glob("shard-*"))) == [
        "shard-1-of-2.cases",
        "shard-1-of-2.json",
        "shard-2-of-2.cases",
        "shard-2-of-2.json",
    ]
    assert not Path("cases").exists()
    joined = difftest("merge", "shard-1-of-2.json", "shard-2-of-2.json")
    assert str(joined) == snapshot
    assert joined.code == 1
    assert len(list(Path("cases").glob("*.case.json"))) == 1

    shutil.copy("shard-2-of-2.json", "again.json")
    missing = difftest("merge", "shard-2-of-2.json")
    twice = difftest("merge", "shard-1-of-2.json", "shard-2-of-2.json", "again.json")
    Path("cut.json").write_bytes(Path("shard-1-of-2.json").read_bytes()[:1000])
    damaged = difftest("merge", "shard-2-of-2.json", "cut.json")
    run("Rejects", "--shard", "1/2", "--result", "other.json", "--activation", "swiglu", examples=16)
    other = difftest("merge", "shard-2-of-2.json", "other.json")
    for refused in (missing, twice, damaged, other):
        assert str(refused) == snapshot
        assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)


def test_a_part_tells_what_it_found_and_where_it_is(run, snapshot):
    result = run("Off", "--shard", "1/1", "--result", "part.json", "--json", "events.jsonl", examples=1)
    assert str(result) == snapshot
    started = json.loads(Path("events.jsonl").read_text().splitlines()[0])
    assert started["scenarios"] == 1
    assert Path("part.json").is_file()


def test_a_part_without_work_is_no_failure(run):
    """Also where all that it drew is unsupported: the parts together decide."""
    assert run("Right", "--shard", "2/2").code == 0
    assert run("Declines", "--shard", "1/2").code == 0


def test_parts_that_are_idle_together_are(run, difftest):
    for number in (1, 2):
        run("Declines", "--shard", f"{number}/2")
    joined = difftest("merge", "shard-1-of-2.json", "shard-2-of-2.json")
    assert joined.code == 3
    assert "nothing was compared" in joined.out


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("--shard", "3/2"), id="shard-out-of-range"),
        pytest.param(("--shard", "1/2", "--result", "nowhere/a.json"), id="result-folder-absent"),
        pytest.param(("--shard", "1/2", "--result", ""), id="result-is-empty"),
        pytest.param(("--shard", "1/2", "--result", "/dev/null"), id="result-is-a-device"),
        pytest.param(("--result", "a.json"), id="result-without-shard"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, run, snapshot):
    result = run("Right", *args)
    assert str(result) == snapshot
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)


def test_a_part_needs_a_seed(difftest):
    result = difftest("run", "--candidate", "kernels.py:Right", "--shard", "1/2")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--shard 1/2: needs --seed N" in result.err


def test_a_result_that_cannot_be_written_is_told_after_the_findings(run, monkeypatch):
    def full(path, _content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("difftest.cli.write_whole", full)
    result = run("Right", "--shard", "1/1", "--result", "part.json", examples=1)
    assert result.code == 3
    assert result.err == "difftest: error: --result part.json: cannot be written: No space left on device\n"
