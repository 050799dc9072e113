"""How the oracle is run."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.change import Change
from strategies.draw.weighted import weighted
from strategies.scenario import Execution, Replay

_REPLAYS: tuple[tuple[tuple[Replay, ...], int], ...] = (
    ((), 4),
    (("same",), 1),
    (("x",), 1),
    (("weights",), 1),
    (("ids",), 1),
    (("masks", "same"), 1),
    (("empty_expert", "same"), 2),
    (("fewer_tokens", "same"), 2),
    (("all", "same"), 1),
    (("all", "empty_expert", "all"), 1),
    (("fewer_tokens", "ids", "masks", "same"), 1),
)
"""What changes between replays: each change alone, and then back, which is where a captured value shows."""


def executions(capability: Capability) -> SearchStrategy[Execution]:
    """The mode and the tactic: whatever `capability` has, eager with the default tactic first."""
    eager = [(Execution(), 14)] if "eager" in capability.modes else []
    lacking = {"masks", "empty_expert"} if not capability.masked_slots else set()
    if not capability.padding:
        lacking.add("fewer_tokens")
    graph = [(Execution(mode="graph", replays=replays), n) for replays, n in _REPLAYS if not lacking & set(replays)]
    modes = weighted(*eager, *(graph if "graph" in capability.modes else ()))
    if capability.tactics == 0:
        return modes
    default: int | None = None
    tactics = weighted((default, capability.tactics), *((tactic, 1) for tactic in range(capability.tactics)))
    return st.builds(_with_tactic, modes, tactics)


def _with_tactic(execution: Execution, tactic: int | None) -> Execution:
    return dataclasses.replace(execution, tactic=tactic)


def execution_changes(capability: Capability) -> list[tuple[Change, int]]:
    """(change, weight): repeats, poison bytes, padded batches, switches, a stream beside."""
    changes = [(Change("execution", {"repeats": repeats}), weight) for repeats, weight in ((2, 5), (3, 2))]
    # 0xFF is NaN in every float format, 0x7F is near the largest bfloat16.
    changes += [(Change("execution", {"poison": byte}), weight) for byte, weight in ((0xFF, 10), (0x7F, 3), (0x80, 2))]
    if capability.padding:
        changes += [(Change("execution", {"padding": rows}), 2) for rows in (1, 2, 3, 7, 8)]
        if capability.non_finite:
            changes += [(Change("execution", {"padding": rows, "padding_rows": "routed"}), 1) for rows in (1, 3, 8)]
    for name in ("pdl", "fused_finalize"):
        if getattr(capability, name):
            changes += [(Change("execution", {name: value}), 2) for value in (False, True)]
    if capability.busy:
        changes.append((Change("execution", {"busy": True}), 2))
    return changes
