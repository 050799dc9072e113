"""Steps towards less of a recorded call. See `difftest.shrinking.moves`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from difftest.shrinking.refit import replaced
from strategies.capture import Axis
from strategies.scenario import GROUP, Scenario


def drop_tensors(scenario: Scenario) -> Iterator[Scenario]:
    """One recorded tensor alone, then all but one; the rule draws the others."""
    tensors = scenario.capture.tensors
    alone = [(name,) for name in tensors] if len(tensors) > 1 else []
    for kept in (*alone, *(tuple(one for one in tensors if one != name) for name in tensors)):
        yield from replaced(scenario, capture=scenario.capture.using(kept))


def drop_places(scenario: Scenario) -> Iterator[Scenario]:
    """On each axis of a recording one half alone, then the other, quarters, ... and each place; or all but these."""
    for axis in typing.get_args(Axis):
        places = getattr(scenario.capture, axis)
        size = len(places) // 2
        while size:
            chunks = range(0, len(places), size)
            for start in chunks:
                yield from _keeping(scenario, axis, places[start : start + size])
            for start in chunks:
                yield from _keeping(scenario, axis, places[:start] + places[start + size :])
            size //= 2


def _keeping(scenario: Scenario, axis: Axis, places: tuple[int, ...]) -> Iterator[Scenario]:
    """The scenario with these places alone on one axis, and as many of them."""
    count, shape = len(places), scenario.shape
    sizes: dict[str, Any] = {
        "tokens": {"tokens": count},
        "slots": {"top_k": count},
        "experts": {"experts": count * scenario.parallel.ep_size},
        "hidden": {"hidden": count * GROUP},
        "intermediate": {"intermediate": count * GROUP * scenario.layer.moe_tp_size},
    }[axis]
    sizes["top_k"] = min(sizes.get("top_k", shape.top_k), sizes.get("experts", shape.experts))
    if count:
        kept: dict[str, Any] = {axis: places}
        capture = dataclasses.replace(scenario.capture, **kept)
        yield from replaced(scenario, shape=dataclasses.replace(shape, **sizes), capture=capture)
