"""The build of 0.6.18 with the shipped patch: SiTU is right, SwiGLU is what it was, and what was left out says so.

Needs the builds `0.6.18+situ` and `0.6.18` (`difftest build ... --only bf16xmxfp4`) in the store. Run with -s for the
table.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from difftest import builds
from difftest.judging.compare import judge
from oracles.cutlass_sm90 import PATH
from oracles.problem import build as problem_of
from oracles.reference import enclose
from strategies import scenarios
from strategies.capability import Capability
from strategies.scenario import Execution, Parallel, Scenario, Shape, Situ, Values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CAPABILITY = Capability(
    hidden_multiple=128,
    intermediate_multiple=128,
    duplicate_experts=False,
    special_scale_bytes=False,
    empty_batch=False,
)
KIMI_K3 = Scenario(
    shape=Shape(tokens=128, hidden=3584, intermediate=3072, experts=896, top_k=16),
    parallel=Parallel(ep_size=32, ep_rank=7),
    values=Values(scale_low=114, scale_high=118),
)
SITUS = (
    Situ(),
    Situ(beta=1.5, linear_beta=3.0),
    Situ(beta=0.25, linear_beta=100.0),
    Situ(per_expert=True),
    Situ(beta=2.0, linear_beta=7.0, per_expert=True),
)


Answer = torch.Tensor | str
PLAIN = Scenario(shape=Shape(tokens=4, hidden=256, intermediate=256, experts=2, top_k=1))


def draws(count: int) -> list[Scenario]:
    """`count` scenarios of the quick profile, the same ones at each call; eager, with the default tactic."""
    found: list[Scenario] = []

    @seed(11)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(CAPABILITY, profile="quick"))
    def collect(scenario: Scenario) -> None:
        found.append(replace(scenario, execution=Execution(poison=scenario.execution.poison)))

    collect()
    return found


@functools.cache
def drawn() -> list[Scenario]:
    return draws(300)


def situ() -> list[Scenario]:
    small = [replace(scenario, activation=SITUS[n % 5]) for n, scenario in enumerate(drawn())]
    return small + [replace(KIMI_K3, activation=situ) for situ in SITUS]


def default_situ() -> list[Scenario]:
    return [replace(scenario, activation=Situ()) for scenario in (*drawn()[:60], KIMI_K3)]


def swiglu() -> list[Scenario]:
    return [scenario for scenario in drawn() if not isinstance(scenario.activation, Situ)] + [KIMI_K3]


TACTICS = [replace(PLAIN, execution=Execution(tactic=tactic)) for tactic in range(12)]


def answers(name: str, asked: Sequence[tuple[Scenario, bool]], folder: Path) -> dict[tuple[Scenario, bool], Answer]:
    """What the build answers, by scenario and whether SiTU's parameters are passed."""
    try:
        build = builds.find(name, arch="9.0a")
    except builds.BuildNotFound as missing:
        pytest.skip(str(missing))
    request, found = folder / "request.json", folder / "answers.pt"
    request.write_text(json.dumps([[scenario.to_json(), keep] for scenario, keep in asked]))
    path = os.pathsep.join([*map(str, build.path), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("answers.py")), str(request), str(found)],
        env=os.environ | build.variables | {"PYTHONPATH": path},
        check=True,
    )
    return dict(zip(asked, torch.load(found), strict=True))


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Scenario, bool], Answer]:
    asked = [(scenario, True) for scenario in dict.fromkeys(situ() + default_situ() + swiglu() + TACTICS)]
    return answers(
        "0.6.18+situ", [*asked, *((scenario, False) for scenario in default_situ())], tmp_path_factory.mktemp("patched")
    )


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Scenario, bool], Answer]:
    asked = [(scenario, True) for scenario in [*swiglu(), replace(PLAIN, activation=Situ())]]
    return answers("0.6.18", asked, tmp_path_factory.mktemp("stock"))


def same_bits(one: Answer, other: Answer) -> bool:
    assert isinstance(one, torch.Tensor), one
    assert isinstance(other, torch.Tensor), other
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_situ_is_right(patched: dict[tuple[Scenario, bool], Answer]) -> None:
    wrong, ratios = [], []
    for scenario in situ():
        output = patched[scenario, True]
        assert isinstance(output, torch.Tensor), f"{output}: {scenario.to_json()}"
        problem = problem_of(scenario, "cuda")
        found = judge(output.cuda(), enclose(problem, PATH.numerics), PATH.numerics)
        wrong += [(breach.detail, scenario.to_json()) for breach in found.breaches[:1]]
        ratios += [] if found.stats.max_ratio is None else [(found.stats.median_ratio or 0.0, found.stats.max_ratio)]
    medians, largest = zip(*ratios, strict=True)
    print(f"\nSiTU: {len(ratios)} judged, error/radius median {statistics.median(medians):.3f}, max {max(largest):.3f}")
    assert len(ratios) > 200
    assert wrong == []


def test_without_parameters_the_caps_are_4_and_25(patched: dict[tuple[Scenario, bool], Answer]) -> None:
    assert all(same_bits(patched[scenario, True], patched[scenario, False]) for scenario in default_situ())


def test_swiglu_has_the_bits_of_the_stock_build(
    patched: dict[tuple[Scenario, bool], Answer], stock: dict[tuple[Scenario, bool], Answer]
) -> None:
    assert len(swiglu()) > 100
    assert all(same_bits(patched[scenario, True], stock[scenario, True]) for scenario in swiglu())


def test_the_stock_build_refuses_situ(stock: dict[tuple[Scenario, bool], Answer]) -> None:
    assert "fc1_expert_weights inter size must be" in str(stock[replace(PLAIN, activation=Situ()), True])


def test_a_tile_that_was_left_out_says_so(patched: dict[tuple[Scenario, bool], Answer]) -> None:
    """The package lists every tactic; of most the slim build has no kernel."""
    told = [found for scenario in TACTICS if isinstance(found := patched[scenario, True], str)]
    assert told
    assert all("not in this build of FlashInfer, which holds only bf16xmxfp4: " in line for line in told)
