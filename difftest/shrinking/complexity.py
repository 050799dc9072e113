"""Which of two scenarios is simpler: a total order, well-founded, so that a reducer that follows it ends."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import typing
from typing import Any

from difftest.router import order
from strategies.plain import AnyScenario
from strategies.router import RouterScenario
from strategies.scenario import (
    ACTIVATIONS,
    Activation,
    AssignExpert,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    Mode,
    OutputDtype,
    PaddingRows,
    Precision,
    Replay,
    RoutingEdit,
    RoutingRule,
    Scenario,
    SetWeight,
    Special,
    StrayId,
    ValueEdit,
    ValueRule,
    Values,
)

Key = tuple[Any, ...]

_EDIT_KINDS = (MaskSlot, MaskRow, DuplicateSlot, AssignExpert, SetWeight, StrayId)
"""Simplest first. A duplicate says what it is about at any size, an assigned id only in its own table."""

_CHOICES = frozenset(
    {
        "activation",
        "precision",
        "output_dtype",
        "biases",
        "routing_rule",
        "values_rule",
        "mode",
        "padding_rows",
        "pdl",
        "fused_finalize",
    }
)
"""Departures that are one of a list: another one is another departure."""

SIMPLEST_FACTOR = 2.0
"""Of a router's weights, after 1: it shows a factor that is lost or applied twice, and rounds nothing."""

_UNIT_BYTE, _NAN_BYTE = 127, 0xFF  # E8M0

_REPEATS = "repeats"
"""No departure: they only make a race seen."""


@functools.singledispatch
def complexity(scenario: AnyScenario) -> Key:
    """A sort key for scenarios of one kind. Raises TypeError for a kind that has none."""
    raise TypeError(f"{type(scenario).__name__}: has no order of complexity")


@complexity.register
def _of_layer(scenario: Scenario) -> Key:
    """Compared in this order, each smaller first:

    1. recorded tensors, counted; 2. edits, counted; 3. departures: fields of activation, precision, layer, rules,
    values and execution that are not at their default; 4. sizes: ep_size, experts E, top_k K, tokens M, hidden H,
    intermediate I; 5. ep_rank; 6. how far the departing fields are from their default; 7. what the edits say; 8. seeds;
    9. the JSON form, which decides between any that are left.
    """
    shape, parallel = scenario.shape, scenario.parallel
    routing, values = scenario.routing, scenario.values
    distances = _distances(scenario)
    return (
        len(scenario.capture.tensors),
        len(routing.edits) + len(values.edits),
        sum(distance != 0 for name, distance in distances.items() if name != _REPEATS),
        (parallel.ep_size, shape.experts, shape.top_k, shape.tokens, shape.hidden, shape.intermediate),
        parallel.ep_rank,
        tuple(distances.values()),
        _edits(scenario),
        (routing.seed, values.seed),
        json.dumps(scenario.to_json(), sort_keys=True),
    )


def _position(value: object, literal: Any) -> int:
    """Place in the literal's list of choices, whose first is the simplest."""
    return typing.get_args(literal).index(value)


def _distances(scenario: Scenario) -> dict[str, float]:
    """For each part that has a default, how far it is from it: 0 at the default, more for what is further."""
    layer, values, execution = scenario.layer, scenario.values, scenario.execution
    default = Values()
    return {
        "activation": list(ACTIVATIONS).index(scenario.activation.kind),
        "parameters": _parameters(scenario.activation),
        "precision": _position(scenario.precision, Precision),
        "output_dtype": _position(scenario.output_dtype, OutputDtype),
        "biases": layer.biases != "none",
        "moe_tp": layer.moe_tp_size - 1 + layer.moe_tp_rank,
        "routed_scaling_factor": (1.0, SIMPLEST_FACTOR, layer.routed_scaling_factor).index(layer.routed_scaling_factor),
        "routing_rule": _position(scenario.routing.rule, RoutingRule),
        "values_rule": _position(values.rule, ValueRule),
        "x_exponent": abs(values.x_exponent),
        "scales": abs(values.scale_low - default.scale_low) + abs(values.scale_high - default.scale_high),
        "mode": _position(execution.mode, Mode),
        "replays": sum(1 + _position(change, Replay) for change in execution.replays),
        "padding": execution.padding,
        "padding_rows": _position(execution.padding_rows, PaddingRows),
        "pdl": _switch(execution.pdl),
        "fused_finalize": _switch(execution.fused_finalize),
        "busy": int(execution.busy),
        "tactic": 0 if execution.tactic is None else 1 + execution.tactic,
        "poison": execution.poison,
        _REPEATS: execution.repeats - 1,
    }


def _switch(value: bool | None) -> int:
    return 0 if value is None else 1 + value


def _parameters(activation: Activation) -> int:
    """How many of its parameters are not the kind's default."""
    default = type(activation)()
    return sum(getattr(activation, name) != getattr(default, name) for name in _names(activation))


def _names(activation: Activation) -> list[str]:
    return [spec.name for spec in dataclasses.fields(activation)]


def _edits(scenario: Scenario) -> Key:
    """Simple kinds first, then places near 0, then the simplest content."""
    routing, values = scenario.routing.edits, scenario.values.edits
    kinds = [_EDIT_KINDS.index(type(edit)) for edit in routing]
    places: list[tuple[int, ...]] = [
        (edit.token, getattr(edit, "slot", 0), getattr(edit, "source", 0), getattr(edit, "expert", 0))
        for edit in routing
    ]
    places += [edit.index for edit in values]
    contents = [edit.value if isinstance(edit.value, int) else _position(edit.value, Special) for edit in values]
    return (tuple(kinds), sum(map(sum, places)), tuple(places), tuple(contents))


@functools.singledispatch
def covers(small: AnyScenario, scenario: AnyScenario) -> bool:  # noqa: ARG001
    """Whether `scenario` has all that `small` has. Where `small` is the simplest form of a finding, one that it covers
    may well be the same; one that lacks something of it (an EP rank above 0, a NaN, a fifth token) is another."""
    raise TypeError(f"{type(small).__name__}: is of no kind that covers another")


@covers.register
def _layer_covers(small: Scenario, scenario: AnyScenario) -> bool:
    """No size below its, each of its departures, each kind of its edits, each of its recorded tensors.

    A departure is the same choice from a list (SiTU, the wide rule), or any number that is not the default.
    """
    if not isinstance(scenario, Scenario):
        return False
    if set(small.capture.tensors) - set(scenario.capture.tensors):
        return False
    if scenario.shape.tokens + scenario.execution.padding < small.shape.tokens + small.execution.padding:
        return False
    least = _sizes(small)
    if small.shape.experts == small.shape.top_k:  # as many as K needs, and not for their own sake
        least = (*least[:2], 1, *least[3:])
    if any(size < needed for size, needed in zip(_sizes(scenario), least, strict=True)):
        return False
    mine, needed = _distances(scenario), _distances(small)
    for name in needed.keys() - {_REPEATS}:
        if needed[name] and (mine[name] != needed[name] if name in _CHOICES else not mine[name]):
            return False
    fewer = len(scenario.execution.replays) < len(small.execution.replays)
    if fewer or set(small.execution.replays) - {"same"} - set(scenario.execution.replays):
        return False
    return not edit_kinds(small) - edit_kinds(scenario)


def _sizes(scenario: Scenario) -> tuple[int, ...]:
    shape, parallel = scenario.shape, scenario.parallel
    return (
        shape.hidden,
        scenario.intermediate_local,
        scenario.experts_local,
        shape.top_k,
        parallel.ep_size,
        min(parallel.ep_rank, 1),
    )


def departures(scenario: Scenario) -> set[str]:
    """Names of what is not at its default, as `complexity` counts it."""
    return {name for name, distance in _distances(scenario).items() if distance and name != _REPEATS}


def edit_kinds(scenario: Scenario) -> set[tuple[object, ...]]:
    """What kinds of edits it has, a scale byte 0x00 or 0xFF in the range of all bytes among them."""
    edits = (*scenario.routing.edits, *scenario.values.edits)
    return {edit_kind(edit) for edit in edits} | range_kinds(scenario)


def range_kinds(scenario: Scenario) -> set[tuple[object, ...]]:
    """The scale bytes 0x00 and 0xFF, where they are in the range of all bytes, as kinds of edits."""
    ends = ((scenario.values.scale_low, 0), (scenario.values.scale_high, _NAN_BYTE))
    return {("scale", byte) for bound, byte in ends if bound == byte}


def edit_kind(edit: RoutingEdit | ValueEdit) -> tuple[object, ...]:
    """The kind of an edit. A masked row counts as masked slots; a router weight and an element of x by the class of
    their value; a scale byte 0x00 or 0xFF as one wherever it is, another one by its tensor, and whether it makes larger
    or smaller."""
    match edit:
        case MaskRow():
            return (MaskSlot,)
        case SetWeight(weight=weight):
            if math.isfinite(weight):
                return (SetWeight, (weight > 0) - (weight < 0))
            return (SetWeight, "nan" if math.isnan(weight) else "inf")
        case ValueEdit(tensor=tensor, value=int(byte)):
            return ("scale", byte) if byte in (0, _NAN_BYTE) else (tensor, byte > _UNIT_BYTE)
        case ValueEdit(tensor=tensor, value=value):
            return (tensor, str(value).removeprefix("-"))
    return (type(edit),)


complexity.register(RouterScenario)(order.complexity)
covers.register(RouterScenario)(order.covers)
