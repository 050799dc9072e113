"""What a case may name as the one thing that shows its finding, in whatever form a scenario has it.

A case without one explains the scenarios that have all of its own. Where one thing suffices at any size, in any check
and however it came into the scenario, those are too few, and the same mistake would come up again in form after form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import StrEnum

from strategies.plain import AnyScenario
from strategies.scenario import AssignExpert, DuplicateSlot, Scenario


class Trigger(StrEnum):
    """duplicate expert: a token routes to one expert twice, by an edit or in a recorded table. scale byte 0x00: an E8M0
    byte of the weights is, or may be drawn as, 0."""

    DUPLICATE_EXPERT = "duplicate expert"
    SCALE_BYTE_00 = "scale byte 0x00"


def has(trigger: Trigger, scenario: AnyScenario) -> bool:
    """Whether the trigger is in the scenario."""
    match trigger:
        case Trigger.DUPLICATE_EXPERT:
            return isinstance(scenario, Scenario) and any(_distinct(scenario))
        case Trigger.SCALE_BYTE_00:
            return isinstance(scenario, Scenario) and _without_zero_scales(scenario) != scenario


def without(trigger: Trigger, scenario: AnyScenario) -> AnyScenario:
    """The scenario less its trigger and nothing else."""
    match trigger:
        case Trigger.DUPLICATE_EXPERT:
            assert isinstance(scenario, Scenario)
            edits = (*scenario.routing.edits, *_distinct(scenario))
            return dataclasses.replace(scenario, routing=dataclasses.replace(scenario.routing, edits=edits))
        case Trigger.SCALE_BYTE_00:
            assert isinstance(scenario, Scenario)
            return _without_zero_scales(scenario)


def _without_zero_scales(scenario: Scenario) -> Scenario:
    """Each scale byte at least 0x01, edited or drawn."""
    values = scenario.values
    edits = tuple(dataclasses.replace(edit, value=1) if edit.value == 0 else edit for edit in values.edits)
    low, high = max(1, values.scale_low), max(1, values.scale_high)
    return dataclasses.replace(
        scenario, values=dataclasses.replace(values, edits=edits, scale_low=low, scale_high=high)
    )


def _distinct(scenario: Scenario) -> Iterator[AssignExpert]:
    """For each slot whose expert is in an earlier one of its row: the next expert that is in none."""
    by_edit = any(isinstance(edit, AssignExpert | DuplicateSlot) for edit in scenario.routing.edits)
    if not by_edit and "topk_ids" not in scenario.capture.tensors:
        return  # the rows of every rule are distinct
    import torch

    from oracles import captures, routing

    device, experts = torch.device("cpu"), scenario.shape.experts
    ids, _ = routing.route(scenario, device, captures.taken(scenario, device))
    for token, row in enumerate(ids[: scenario.shape.tokens].tolist()):
        for slot, expert in enumerate(row):
            if 0 <= expert < experts and expert in row[:slot]:
                others = (other % experts for other in range(expert + 1, expert + experts))
                row[slot] = next(other for other in others if other not in row)
                yield AssignExpert(token=token, slot=slot, expert=row[slot])
