"""A scenario with some of it changed, and its edits fitted to the new shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from strategies.capture import NO_CAPTURE, Capture
from strategies.scenario import GROUP, DuplicateSlot, InvalidScenario, RoutingEdit, Scenario, ValueEdit

_Edit = TypeVar("_Edit", RoutingEdit, ValueEdit)


def replaced(scenario: Scenario, **parts: Any) -> Iterator[Scenario]:
    """The scenario with other parts (`layer=Layer()`) but its own edits; nothing when that is not a valid one."""
    try:
        bare_parts: dict[str, Any] = {"routing": scenario.routing, "values": scenario.values} | parts
        for name in ("routing", "values"):
            bare_parts[name] = dataclasses.replace(bare_parts[name], edits=())
        capture = bare_parts.pop("capture", scenario.capture)
        bare = with_capture(dataclasses.replace(scenario, **bare_parts, capture=NO_CAPTURE), capture)
        routing = _fitted(bare, scenario.routing.edits, fit_routing_edit)
        values = _fitted(bare, scenario.values.edits, fit_value_edit)
        yield with_edits(bare, routing, values)
    except InvalidScenario:
        return


def changed(scenario: Scenario, **changes: Mapping[str, Any]) -> Iterator[Scenario]:
    """The scenario with fields of its parts changed (`layer={"biases": "none"}`); nothing when that is not valid."""
    try:
        parts = {name: dataclasses.replace(getattr(scenario, name), **fields) for name, fields in changes.items()}
    except InvalidScenario:
        return
    yield from replaced(scenario, **parts)


def with_capture(scenario: Scenario, capture: Capture) -> Scenario:
    """`scenario`, which has none, with what it has room for of `capture`. Raises `InvalidScenario` when it has more."""
    biased = scenario.layer.biases != "none"
    tensors = [name for name in capture.tensors if biased or not name.endswith("_bias")]
    if scenario.layer.moe_tp_rank > 0:
        tensors = [name for name in tensors if name != "w2_bias"]
    return dataclasses.replace(scenario, capture=capture.using(tuple(tensors)).fitted(scenario.capture_sizes))


def with_edits(scenario: Scenario, routing: Sequence[RoutingEdit], values: Sequence[ValueEdit]) -> Scenario:
    """The scenario with these edits for its own. Raises `InvalidScenario` when one does not fit."""
    return dataclasses.replace(
        scenario,
        routing=dataclasses.replace(scenario.routing, edits=tuple(routing)),
        values=dataclasses.replace(scenario.values, edits=tuple(values)),
    )


def _fitted(scenario: Scenario, edits: Sequence[_Edit], fit: Callable[[Scenario, _Edit], _Edit | None]) -> list[_Edit]:
    fitted = (fit(scenario, edit) for edit in edits)
    return list(dict.fromkeys(edit for edit in fitted if edit is not None))


def fit_routing_edit(scenario: Scenario, edit: RoutingEdit) -> RoutingEdit | None:
    """The edit with its places clamped to the shape; None when nothing is left of it."""
    shape = scenario.shape
    if shape.tokens == 0:
        return None
    limits = {"token": shape.tokens, "slot": shape.top_k, "source": shape.top_k, "expert": shape.experts}
    places: dict[str, Any] = {
        name: min(getattr(edit, name), limit - 1) for name, limit in limits.items() if hasattr(edit, name)
    }
    if isinstance(edit, DuplicateSlot) and places["slot"] == places["source"]:
        return None
    return dataclasses.replace(edit, **places)


def fit_value_edit(scenario: Scenario, edit: ValueEdit) -> ValueEdit | None:
    """The edit with its index clamped to the shape; None when nothing is left of it."""
    shape = scenario.shape
    if edit.tensor == "hidden_states":
        sizes: tuple[int, ...] = (shape.tokens, shape.hidden)
    elif edit.tensor == "w13_scale":
        sizes = (shape.experts, 2 * scenario.intermediate_local, shape.hidden // GROUP)
    else:
        sizes = (shape.experts, shape.hidden, scenario.intermediate_local // GROUP)
    if 0 in sizes:
        return None
    return dataclasses.replace(edit, index=tuple(map(min, edit.index, (size - 1 for size in sizes))))
