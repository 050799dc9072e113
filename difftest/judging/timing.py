"""How long a candidate's call takes on its CUDA device, by CUDA events."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from oracles.base import Oracle
from oracles.problem import Problem

WARM_UP = 3
CALLS = 30


class Untimed(RuntimeError):
    """The candidate cannot be timed here. The message says why in one line."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Microseconds of a call, launch to end, over `calls` of them."""

    median: float
    least: float
    calls: int = CALLS


def timed(oracle: Oracle, problem: Problem) -> Timing:
    """Time `oracle` on `problem`, whose tensors are on the CUDA device.

    What is timed is `oracle.launch(prepared)` where there is one, the kernel's own work without poison and copies, else
    the call. An event waits for all that was launched before it, so a call does not overlap its neighbours. Raises
    `Untimed`.
    """
    if not _on_card(problem):
        raise Untimed(f"{oracle.name}: runs on the {problem.hidden_states.device.type}, where there are no CUDA events")
    launch = getattr(oracle, "launch", oracle)
    prepared = oracle.prepare(problem)
    for _ in range(WARM_UP):
        launch(prepared)
    marks = [(_event(), _event()) for _ in range(CALLS)]
    for start, end in marks:
        start.record()
        launch(prepared)
        end.record()
    torch.cuda.synchronize()
    spent = [1000.0 * float(start.elapsed_time(end)) for start, end in marks]
    return Timing(median=statistics.median(spent), least=min(spent))


def _on_card(problem: Problem) -> bool:
    return problem.hidden_states.device.type == "cuda"


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
