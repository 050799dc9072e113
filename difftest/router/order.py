"""Which of two router scenarios is simpler, and which has all that another one has."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from typing import Any

from strategies.router import (
    BiasRule,
    Logits,
    LogitsDtype,
    LogitsRule,
    RouterScenario,
    Scores,
    Scoring,
    SetBias,
    SetLogit,
    SetRow,
    TieExperts,
)

_EDIT_KINDS = (TieExperts, SetLogit, SetRow, SetBias)
"""Simplest first."""

_LITERALS: dict[str, Any] = {"scoring": Scoring, "bias": BiasRule, "rule": LogitsRule, "dtype": LogitsDtype}
"""Fields that are one of a list, the simplest first."""

_CHOICES = frozenset({"scoring", "rule", "dtype"})
"""Departures of which another one is another departure; a bias is a bias, whatever its values."""

_NOT_TOLD = ("seed", "edits")


def complexity(scenario: RouterScenario) -> tuple[Any, ...]:
    """A sort key. Compared in this order, each smaller first: edits, counted; departures, counted: fields that are not
    at their default; sizes; how far the departures are from their default; what the edits say; the seed; the JSON form.
    """
    shape, distances = scenario.shape, _distances(scenario)
    return (
        len(scenario.logits.edits),
        sum(distance != 0 for distance in distances.values()),
        (shape.groups, shape.experts, shape.top_k, shape.tokens, shape.topk_groups),
        tuple(distances.values()),
        tuple(_edit(edit) for edit in scenario.logits.edits),
        scenario.logits.seed,
        json.dumps(scenario.to_json(), sort_keys=True),
    )


def _distances(scenario: RouterScenario) -> dict[str, int]:
    """For each field of scores and logits, how far it is from its default: 0 at it."""
    found = {}
    for part, default in ((scenario.scores, Scores()), (scenario.logits, Logits())):
        for spec in dataclasses.fields(part):
            value = getattr(part, spec.name)
            if spec.name in _LITERALS:
                found[spec.name] = typing.get_args(_LITERALS[spec.name]).index(value)
            elif spec.name not in _NOT_TOLD:
                found[spec.name] = int(value != getattr(default, spec.name))
    return found


def _edit(edit: Any) -> tuple[Any, ...]:
    """The kind, then places near 0, then the simplest value: NaN, infinities, numbers near 0."""
    value = getattr(edit, "value", 0.0)
    size = (0, 0.0) if math.isnan(value) else (1, value < 0) if math.isinf(value) else (2, abs(value), value < 0)
    places = tuple(getattr(edit, name, 0) for name in ("token", "expert", "source"))
    return (_EDIT_KINDS.index(type(edit)), sum(places), places, size)


def covers(small: RouterScenario, scenario: object) -> bool:
    """Whether `scenario` has all that `small` has: its sizes, each of its departures, each kind of its edits."""
    if not isinstance(scenario, RouterScenario):
        return False
    mine, needed = scenario.shape, small.shape
    if any(getattr(mine, name) < getattr(needed, name) for name in ("tokens", "experts", "top_k", "groups")):
        return False
    has, needs = _distances(scenario), _distances(small)
    for name, distance in needs.items():
        if distance and (has[name] != distance if name in _CHOICES else not has[name]):
            return False
    return not _edit_kinds(small) - _edit_kinds(scenario)


def _edit_kinds(scenario: RouterScenario) -> set[object]:
    """The kinds of its edits, by whether the value is finite; a row of NaN counts as a NaN."""
    return {
        math.isfinite(edit.value) and type(edit) if isinstance(edit, SetLogit | SetRow) else type(edit)
        for edit in scenario.logits.edits
    }
