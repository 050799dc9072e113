from __future__ import annotations

import os
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st

from difftest.stream import Enough, Stream, round_seed
from strategies import Capability, Scenario, Shape, scenarios

QUICK = scenarios(Capability(), profile="quick")
FEW = st.sampled_from([Scenario(shape=Shape(tokens=tokens)) for tokens in range(1, 4)])


def stream(shard: int = 0, count: int = 20, base_seed: int = 5, strategy=QUICK) -> Stream:
    return Stream(strategy, base_seed=base_seed, shard=shard, count=count)


def drawn(shard: int = 0, count: int = 20, **given) -> list[Scenario]:
    found: list[Scenario] = []
    stream(shard, count, **given).each(found.append)
    return found


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("count", [1, 8, 60])
def test_a_shard_gives_as_many_distinct_scenarios_as_asked(shard, count):
    found = drawn(shard, count)
    assert len(found) == len(set(found)) == count


def test_the_same_seed_gives_the_same_scenarios():
    assert drawn(3) == drawn(3)
    assert not set(drawn(3)) & set(drawn(4))
    assert not set(drawn(3)) & set(drawn(3, base_seed=6))


def test_a_larger_budget_begins_with_a_smaller_ones_whole_rounds():
    assert drawn(3, 30)[:18] == drawn(3, 18)


def test_what_hypothesis_always_tries_first_is_counted_once():
    first = drawn(0)[0]
    assert first == drawn(0, base_seed=6)[0]
    assert first not in drawn(0)[1:] + drawn(1) + drawn(2)


def test_no_seed_is_shared():
    seeds = {round_seed(base, shard, number) for base in range(20) for shard in range(64) for number in range(8)}
    assert len(seeds) == 20 * 64 * 8


def test_a_small_space_ends_early():
    assert len(drawn(0, 8, strategy=FEW)) == 3
    assert len(drawn(1, 8, strategy=FEW)) == 2
    assert drawn(1, 8, strategy=st.just(Scenario())) == []


PROGRAM = """
import sys
{imports}
from difftest.stream import Stream
from strategies import Capability, scenarios
stream = Stream(scenarios(Capability(), profile="quick"), base_seed=5, shard=3, count=200)
stream.each(lambda scenario: print(scenario.digest))
"""


def test_the_draws_do_not_depend_on_the_process(tmp_path):
    # 4099 is a constant that Hypothesis would draw for a seed, were it to look at the modules that are loaded.
    (tmp_path / "local.py").write_text("NUMBERS = (" + "".join(f"{4099 + 7 * n}, " for n in range(500)) + ")\n")

    def run(imports: str, hash_seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "CI": "1"}
        program = PROGRAM.format(imports=imports)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert run("", "1") == run("import oracles, local", "2")


def test_a_profile_of_hypothesis_changes_nothing():
    before = drawn(3)
    previous = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.register_profile("difftest-test", derandomize=True, max_examples=3, deadline=1)
    hypothesis.settings.load_profile("difftest-test")
    try:
        assert drawn(3) == before
    finally:
        hypothesis.settings.load_profile(previous)


def test_enough_ends_the_draw():
    found: list[Scenario] = []

    def visit(scenario: Scenario) -> None:
        found.append(scenario)
        if len(found) == 5:
            raise Enough

    stream().each(visit)
    assert len(found) == 5


@pytest.mark.parametrize("error", [ValueError("the tool's own mistake"), KeyboardInterrupt()])
@pytest.mark.parametrize("method", ["each", "shrink"])
def test_an_error_comes_out_at_once(method, error):
    calls = 0

    def visit(_: Scenario) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error

    with pytest.raises(type(error)):
        getattr(stream(), method)(visit)
    assert calls == 3


def test_shrinking_starts_from_the_campaigns_own_scenarios():
    calls: list[Scenario] = []

    def fails(scenario: Scenario) -> bool:
        calls.append(scenario)
        return scenario.shape.tokens > 4

    stream(2).shrink(fails)
    before = drawn(2)
    first = next(n for n, scenario in enumerate(before) if scenario.shape.tokens > 4)
    assert calls[: first + 1] == before[: first + 1]
    assert min(scenario.shape.tokens for scenario in calls if scenario.shape.tokens > 4) == 5


def test_shrinking_where_nothing_fails_draws_it_all():
    calls: list[Scenario] = []
    stream().shrink(lambda scenario: bool(calls.append(scenario)))
    assert calls == drawn()
