from __future__ import annotations

from pathlib import Path

import pytest

from difftest.options import OPTIONS, PROFILES, InvalidOption, Options, shards_of, share_of


def parse(**given: object) -> Options:
    return Options.parse({"candidate": ["grouped-mm"], "seed": "7"} | given)


def test_defaults():
    options = Options.parse({})
    assert "grouped-mm" in options.candidates
    assert "reference" not in options.candidates
    assert (options.reference, options.profile, options.cases) == ("reference", "default", Path("cases"))
    assert options.examples == PROFILES["default"].examples


def test_a_seed_is_made_once_and_differs_between_runs():
    seeds = {Options.parse({}).seed for _ in range(8)}
    assert len(seeds) > 1
    assert parse(seed="0").seed == 0


def test_examples_come_from_the_profile_or_from_the_user():
    assert parse(profile="quick").examples == PROFILES["quick"].examples
    assert parse(profile="quick", examples="12").examples == 12


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_profile_draws_from_shapes_that_exist(profile):
    from strategies import PROFILES as SHAPES

    assert profile.shapes in SHAPES


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"examples": "0"}, "--examples 0: must be an integer >= 1"),
        ({"examples": "many"}, "--examples many: must be an integer >= 1"),
        ({"seed": "-1"}, "--seed -1: must be an integer in [0, 4294967295]"),
        ({"activation": ["gelu"]}, "--activation gelu: must be one of swiglu, swiglu_oai, situ"),
        ({"profile": "slow"}, "--profile slow: must be one of quick, default, real, nightly"),
        (
            {"reference": "grouped-mm"},
            "--candidate grouped-mm: is the --reference too; an oracle always agrees with itself",
        ),
        (
            {"require": ["ggml"]},
            "--require ggml: is not among the candidates (grouped-mm); add --candidate ggml",
        ),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_option(given, message):
    with pytest.raises(InvalidOption) as raised:
        parse(**given)
    assert str(raised.value) == message


def test_the_folder_of_cases_is_not_a_file(tmp_path):
    path = tmp_path / "cases"
    path.write_text("")
    with pytest.raises(InvalidOption, match="is a file"):
        parse(cases=str(path))


def test_a_repeated_candidate_counts_once():
    assert parse(candidate=["ggml", "grouped-mm", "ggml"]).candidates == ("ggml", "grouped-mm")


def test_json_round_trip():
    options = parse(cases="here", json="out.jsonl", require=["grouped-mm"], activation=["situ"])
    assert Options.from_json(options.to_json()) == options


def test_the_command_gives_the_same_campaign():
    options = parse(candidate=["a.py:A", "ggml"], activation=["situ", "swiglu"], profile="quick", examples="12")
    words = options.command().split()[2:]
    given: dict[str, list[str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        given.setdefault(flag.removeprefix("--"), []).append(value)
    repeatable = {spec.name for spec in OPTIONS if spec.repeatable}
    assert Options.parse({name: v if name in repeatable else v[0] for name, v in given.items()}) == options


@pytest.mark.parametrize("examples", [1, 7, 8, 9, 15, 16, 300, 511, 512, 513, 3000])
def test_shares_of_the_shards_sum_to_the_budget(examples):
    active = shards_of(examples)
    shares = [share_of(examples, shard) for shard in range(active)]
    assert sum(shares) == examples
    assert max(shares) - min(shares) <= 1
    assert [share_of(examples, active + shard) for shard in range(active)] == shares
