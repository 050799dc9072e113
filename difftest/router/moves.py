"""Steps from a router's scenario towards a simpler one. Each move yields valid scenarios, the boldest first."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from difftest.shrinking.search import smaller
from strategies.plain import InvalidScenario
from strategies.router import Logits, RouterEdit, RouterScenario, Scores, SetBias, SetLogit, SetRow, TieExperts

SEEDS = range(8)


def moves(scenario: RouterScenario) -> Iterator[Iterator[RouterScenario]]:
    """What each move makes of `scenario`, in the order in which they are tried."""
    return (move(scenario) for move in (_drop_edits, _default, _sizes, _seeds, _simplify_edits, _reseeded_sizes))


def _changed(scenario: RouterScenario, **changes: Any) -> Iterator[RouterScenario]:
    """The scenario with fields of its parts changed, its edits cut to the new sizes; nothing when that is not valid."""
    try:
        parts = {name: dataclasses.replace(getattr(scenario, name), **fields) for name, fields in changes.items()}
        shape, logits = parts.get("shape", scenario.shape), parts.get("logits", scenario.logits)
        limits = {"token": shape.tokens, "expert": shape.experts, "source": shape.experts}
        edits = [_cut(edit, limits) for edit in logits.edits]
        kept = tuple(dict.fromkeys(edit for edit in edits if edit is not None))
        yield dataclasses.replace(scenario, **{**parts, "logits": dataclasses.replace(logits, edits=kept)})
    except InvalidScenario:
        return


def _cut(edit: RouterEdit, limits: dict[str, int]) -> RouterEdit | None:
    """The edit with its places cut to the sizes; None when nothing is left of it."""
    own = {name: limit for name, limit in limits.items() if hasattr(edit, name)}
    if 0 in own.values():
        return None
    places: dict[str, Any] = {name: min(getattr(edit, name), limit - 1) for name, limit in own.items()}
    if isinstance(edit, TieExperts) and places["expert"] == places["source"]:
        return None
    return dataclasses.replace(edit, **places)


def _drop_edits(scenario: RouterScenario) -> Iterator[RouterScenario]:
    """All of them, then halves, quarters, ... and each."""
    edits = scenario.logits.edits
    size = len(edits)
    while size:
        for start in range(0, len(edits), size):
            yield from _changed(scenario, logits={"edits": edits[:start] + edits[start + size :]})
        size //= 2


def _default(scenario: RouterScenario) -> Iterator[RouterScenario]:
    """Scores and logits to their default, then each field; the number of calls to 1."""
    yield dataclasses.replace(scenario, calls=1)
    groups: list[tuple[str, dict[str, Any]]] = []
    for name, default in (("scores", Scores()), ("logits", Logits())):
        fields = {
            spec.name: getattr(default, spec.name)
            for spec in dataclasses.fields(default)
            if spec.name not in ("seed", "edits")
        }
        groups += [(name, fields), *((name, {field: value}) for field, value in fields.items())]
    for name, changed in groups:
        yield from _changed(scenario, **{name: changed})
    for rule in ("levels", "equal"):
        yield from _changed(scenario, logits={"rule": rule})
    for bias in ("zero", "normal"):
        if scenario.scores.bias not in ("none", bias):
            yield from _changed(scenario, scores={"bias": bias})


def _grouped(
    scenario: RouterScenario, groups: int, per_group: int, kept: int, top_k: int, **more: Any
) -> Iterator[RouterScenario]:
    kept = min(kept, groups)
    shape = {
        "experts": groups * per_group,
        "groups": groups,
        "topk_groups": kept,
        "top_k": min(top_k, kept * per_group),
    }
    yield from _changed(scenario, shape=shape, **more)


def _sizes(scenario: RouterScenario) -> Iterator[RouterScenario]:
    """Tokens; groups, experts of a group, kept groups and K jointly to small combinations, then one at a time."""
    shape = scenario.shape
    for tokens in dict.fromkeys([*range(min(shape.tokens, 2)), *smaller(shape.tokens, 0)]):
        yield from _changed(scenario, shape={"tokens": tokens})
    per_group = shape.experts_per_group
    for groups, size, kept, top_k in itertools.product(
        sorted({1, min(2, shape.groups), shape.groups}),
        sorted({1, min(2, per_group), min(3, per_group), per_group}),
        sorted({1, min(2, shape.topk_groups), shape.topk_groups}),
        sorted({1, min(2, shape.top_k), shape.top_k}),
    ):
        yield from _grouped(scenario, groups, size, kept, top_k)
    yield from _one_at_a_time(scenario)


def _one_at_a_time(scenario: RouterScenario, **more: Any) -> Iterator[RouterScenario]:
    shape = scenario.shape
    groups, per_group, kept, top_k = shape.groups, shape.experts_per_group, shape.topk_groups, shape.top_k
    for number in smaller(groups, 1):
        yield from _grouped(scenario, number, per_group, kept, top_k, **more)
    for number in smaller(per_group, 1):
        yield from _grouped(scenario, groups, number, kept, top_k, **more)
    for number in smaller(kept, 1):
        yield from _grouped(scenario, groups, per_group, number, top_k, **more)
    for number in smaller(top_k, 1):
        yield from _grouped(scenario, groups, per_group, kept, number, **more)


def _seeds(scenario: RouterScenario) -> Iterator[RouterScenario]:
    for seed in SEEDS:
        if seed < scenario.logits.seed:
            yield from _changed(scenario, logits={"seed": seed})


def _reseeded_sizes(scenario: RouterScenario) -> Iterator[RouterScenario]:
    """Smaller sizes under other seeds: logits drawn for fewer experts may have lost the failure by chance."""
    shape = scenario.shape
    groups, per_group = shape.groups, shape.experts_per_group
    for seed in SEEDS:
        logits = {"seed": seed}
        for size in dict.fromkeys((1, 2, 3, per_group - 1)):
            if 0 < size < per_group:
                yield from _grouped(scenario, groups, size, shape.topk_groups, shape.top_k, logits=logits)
        if groups > 1:
            yield from _grouped(scenario, groups - 1, per_group, shape.topk_groups, shape.top_k, logits=logits)
        if shape.top_k > 1:
            yield from _grouped(scenario, groups, per_group, shape.topk_groups, shape.top_k - 1, logits=logits)
        if shape.tokens > 1:
            yield from _changed(scenario, shape={"tokens": 1}, logits=logits)


def _simplify_edits(scenario: RouterScenario) -> Iterator[RouterScenario]:
    """Each edit's places towards 0, its value and its kind to a simpler one."""
    edits = scenario.logits.edits
    for position, edit in enumerate(edits):
        for simpler in _simpler(edit):
            yield from _changed(scenario, logits={"edits": (*edits[:position], simpler, *edits[position + 1 :])})


def _simpler(edit: RouterEdit) -> Iterator[RouterEdit]:
    if isinstance(edit, SetRow):
        yield SetLogit(token=edit.token, expert=0, value=edit.value)
    if isinstance(edit, SetLogit | SetRow | SetBias):
        values = (0.0, 1.0, -1.0) if math.isfinite(edit.value) else (math.nan, math.inf)
        for value in values if isinstance(edit, SetBias) else (math.nan, math.inf, 0.0, 1.0):
            yield dataclasses.replace(edit, value=value)
    for name in ("token", "expert", "source"):
        for number in smaller(getattr(edit, name, 0), 0):
            change: dict[str, Any] = {name: number}
            yield dataclasses.replace(edit, **change)
