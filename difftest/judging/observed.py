"""The output that was recorded with a call, judged by what each candidate declares."""

from __future__ import annotations

from collections.abc import Iterable

import torch

import oracles
from difftest.isolation import environment
from difftest.judging.compare import wrong
from oracles.problem import build
from oracles.reference import enclose
from strategies.scenario import Scenario


def lines(output: torch.Tensor, scenario: Scenario, candidates: Iterable[str]) -> list[str]:
    """What of `output` [M, H] no right implementation with a candidate's Numerics gives; a line for each candidate.

    A candidate of another environment is left out: what it declares is known there.
    """
    problem = build(scenario)
    told = []
    for spec in candidates:
        if environment.split(spec)[1]:
            continue
        bad = wrong(output, enclose(problem, oracles.get(spec).numerics))
        rows = bad.any(1)
        first = f", the first of them row {int(rows.nonzero()[0])}" if bool(rows.any()) else ""
        told.append(
            f"recorded output, by the numerics of {spec}: {int(bad.sum())} of {bad.numel()} elements in "
            f"{int(rows.sum())} of {len(rows)} rows are wrong{first}"
        )
    return told
