"""Steps towards fewer and plainer edits. See `difftest.shrinking.moves`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from difftest.shrinking.refit import with_edits
from difftest.shrinking.search import smaller
from strategies.scenario import (
    AssignExpert,
    DuplicateSlot,
    InvalidScenario,
    MaskRow,
    MaskSlot,
    RoutingEdit,
    Scenario,
    SetWeight,
    StrayId,
    ValueEdit,
)

Edit = RoutingEdit | ValueEdit


def _all_edits(scenario: Scenario) -> list[Edit]:
    return [*scenario.routing.edits, *scenario.values.edits]


def _edited(scenario: Scenario, edits: Sequence[Edit]) -> Iterator[Scenario]:
    routing = [edit for edit in edits if not isinstance(edit, ValueEdit)]
    values = [edit for edit in edits if isinstance(edit, ValueEdit)]
    try:
        yield with_edits(scenario, routing, values)
    except InvalidScenario:  # a simpler edit that needs another slot than there is
        return


def drop_edits(scenario: Scenario) -> Iterator[Scenario]:
    """All of them, then halves, quarters, ... and each."""
    edits = _all_edits(scenario)
    size = len(edits)
    while size:
        for start in range(0, len(edits), size):
            yield from _edited(scenario, edits[:start] + edits[start + size :])
        size //= 2


def without_one_edit(scenario: Scenario) -> Iterator[tuple[Edit, Scenario]]:
    """Each edit, and the scenario without it."""
    edits = _all_edits(scenario)
    for position, edit in enumerate(edits):
        for fewer in _edited(scenario, edits[:position] + edits[position + 1 :]):
            yield edit, fewer


def simplify_edits(scenario: Scenario) -> Iterator[Scenario]:
    """Each edit's places towards 0, its content and its kind to a simpler one."""
    edits = _all_edits(scenario)
    for position, edit in enumerate(edits):
        for simpler in _simpler(edit):
            yield from _edited(scenario, [*edits[:position], simpler, *edits[position + 1 :]])


def _simpler(edit: Edit) -> Iterator[Edit]:
    if isinstance(edit, ValueEdit):
        yield from _simpler_value(edit)
        return
    match edit:
        case MaskRow(token=token):
            yield MaskSlot(token=token, slot=0)
        case DuplicateSlot(token=token, slot=slot, source=source):
            yield MaskSlot(token=token, slot=slot)
            yield DuplicateSlot(token=token, slot=source, source=slot)
        case AssignExpert(token=token, slot=slot):
            yield MaskSlot(token=token, slot=slot)
            yield DuplicateSlot(token=token, slot=slot, source=0 if slot else 1)
        case StrayId(token=token, slot=slot):
            yield MaskSlot(token=token, slot=slot)
            if edit.expert_id < 0:
                yield StrayId(token=token, slot=slot, expert_id=-2)
            for number in smaller(edit.expert_id, 0):
                yield StrayId(token=token, slot=slot, expert_id=number)
        case SetWeight() if edit.weight != 0.0:
            yield dataclasses.replace(edit, weight=0.0)
    for spec in dataclasses.fields(edit):
        place = getattr(edit, spec.name)
        if isinstance(place, int) and spec.name != "expert_id":
            for number in smaller(place, 0):
                change: dict[str, Any] = {spec.name: number}
                yield dataclasses.replace(edit, **change)


def _simpler_value(edit: ValueEdit) -> Iterator[ValueEdit]:
    for axis, place in enumerate(edit.index):
        for number in smaller(place, 0):
            yield dataclasses.replace(edit, index=(*edit.index[:axis], number, *edit.index[axis + 1 :]))
    if isinstance(edit.value, int):
        for byte in smaller(edit.value, 0):
            yield dataclasses.replace(edit, value=byte)
    elif edit.value != "nan":
        yield dataclasses.replace(edit, value="nan")
