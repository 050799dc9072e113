"""Any scenario from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping

from strategies.plain import AnyScenario, InvalidScenario
from strategies.router import RouterScenario
from strategies.scenario import Scenario


def layer(scenario: AnyScenario) -> Scenario:
    """`scenario`, which must be of a layer. Raises `InvalidScenario` for a router's."""
    if not isinstance(scenario, Scenario):
        raise InvalidScenario(f"scenario.kind = {scenario.kind!r}: must be left out, for a layer's scenario")
    return scenario


def read(data: object) -> AnyScenario:
    """A `RouterScenario` where `data` says so by its "kind", else a `Scenario`. Raises `InvalidScenario`."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind is None:
        return Scenario.from_json(data)
    if kind != RouterScenario.kind:
        raise InvalidScenario(f"kind = {kind!r}: must be {RouterScenario.kind!r}, or left out for a layer's scenario")
    return RouterScenario.from_json(data)
