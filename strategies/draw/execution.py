"""How the oracle is run."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.change import Change
from strategies.draw.weighted import weighted
from strategies.scenario import Execution


def executions(capability: Capability) -> SearchStrategy[Execution]:
    """The mode and the tactic: whatever `capability` has, eager with the default tactic first."""
    eager = [(Execution(), 4)] if "eager" in capability.modes else []
    graph = [(Execution(mode="graph", replays=replays), 1) for replays in range(4)]
    modes = weighted(*eager, *(graph if "graph" in capability.modes else ()))
    if capability.tactics == 0:
        return modes
    default: int | None = None
    tactics = weighted((default, capability.tactics), *((tactic, 1) for tactic in range(capability.tactics)))
    return st.builds(_with_tactic, modes, tactics)


def _with_tactic(execution: Execution, tactic: int | None) -> Execution:
    return Execution(mode=execution.mode, replays=execution.replays, tactic=tactic)


def execution_changes(capability: Capability) -> list[tuple[Change, int]]:
    """(change, weight): repeats, poison bytes, padded batches."""
    changes = [(Change("execution", {"repeats": repeats}), weight) for repeats, weight in ((2, 5), (3, 2))]
    # 0xFF is NaN in every float format, 0x7F is near the largest bfloat16.
    changes += [(Change("execution", {"poison": byte}), weight) for byte, weight in ((0xFF, 10), (0x7F, 3), (0x80, 2))]
    if capability.padding:
        changes += [(Change("execution", {"padding": rows}), 2) for rows in (1, 2, 3, 7, 8)]
    return changes
