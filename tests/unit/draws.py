"""Scenarios drawn once, for tests of what is drawn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from difftest.stream import Stream
from oracles.problem import build
from strategies import Capability, Execution, Layer, Scenario, Values, scenarios

DEFAULT = Capability()
WHOLE = Capability(
    precisions=frozenset({"bf16xmxfp4", "mxfp8xmxfp4"}),
    output_dtypes=frozenset({"bfloat16", "float16"}),
    modes=frozenset({"eager", "graph"}),
    stray_ids=True,
    tactics=4,
    pdl=True,
    fused_finalize=True,
    busy=True,
)
"""Everything that a scenario can ask for."""


@functools.cache
def draws(profile: str, count: int, capability: Capability = DEFAULT) -> tuple[Scenario, ...]:
    """`count` scenarios as a campaign draws them, the same ones at each call and in each process."""
    found: list[Scenario] = []
    Stream(scenarios(capability, profile=profile), base_seed=20, shard=0, count=count).each(found.append)
    return tuple(found)


class Table(NamedTuple):
    """The routing table of a scenario: ids of experts [M, K], global and of this rank (-1 elsewhere)."""

    topk_ids: torch.Tensor
    local_ids: torch.Tensor


@functools.cache
def routed(scenario: Scenario) -> Table:
    """The routing table, which depends on neither widths nor content, by way of a small problem."""
    shape = dataclasses.replace(scenario.shape, hidden=32, intermediate=32)
    small = dataclasses.replace(scenario, shape=shape, layer=Layer(), values=Values(), execution=Execution())
    problem = build(small)
    return Table(problem.topk_ids, problem.local_ids)


def share(scenarios: Iterable[Scenario], holds: Callable[[Scenario], object]) -> float:
    """The share of `scenarios` for which `holds`; there must be enough of them to speak of one."""
    verdicts = [bool(holds(scenario)) for scenario in scenarios]
    assert len(verdicts) >= 100
    return sum(verdicts) / len(verdicts)
