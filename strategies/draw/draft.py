"""A scenario before its choices are fitted together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from strategies.capability import Capability
from strategies.draw.aim import Aim, Target
from strategies.draw.change import Change
from strategies.draw.departure import Departure
from strategies.draw.routing import RuleByPlace, routing
from strategies.draw.routing_edits import SlotDraft
from strategies.draw.sizes import SizesDraft
from strategies.draw.value_edits import ElementDraft
from strategies.draw.values import Scaling
from strategies.scenario import (
    Activation,
    Execution,
    Layer,
    OutputDtype,
    Precision,
    Scenario,
    ValueRule,
    Values,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Every choice of a scenario, the sizes first and the departures last, as a shrinker should meet them."""

    sizes: SizesDraft
    activation: Activation
    precision: Precision
    output_dtype: OutputDtype
    execution: Execution
    routing_rules: RuleByPlace
    value_rule: ValueRule
    scaling: Scaling
    seed: int
    aim: Aim
    departures: list[Departure]

    def fit(self, capability: Capability) -> Scenario:
        """The scenario, within `capability`."""
        activation = self.activation
        changed: dict[str, dict[str, Any]] = {"layer": {}, "values": {}, "execution": {}}
        model = self.sizes.base.model
        if model is not None and self.sizes.base.as_served:
            if model.activation.kind in capability.activations:
                activation = model.activation
            if capability.biases:
                changed["layer"]["biases"] = model.biases
            changed["layer"]["routed_scaling_factor"] = model.routed_scaling_factor
        target = None if self.aim == "apart" else Target.of(self.departures)
        departures = self.departures if target is None else target.moved(self.departures, self.aim)
        for departure in departures:
            if isinstance(departure, Change):
                changed[departure.part].update(departure.fields)
        layer = Layer(**changed["layer"])
        sizes = self.sizes.fit(capability, layer.moe_tp_size)
        slots = [departure.fit(sizes.shape) for departure in departures if isinstance(departure, SlotDraft)]
        if target is not None and self.aim == "slot" and capability.duplicate_experts:
            slots.insert(0, target.routed(sizes))  # the expert may be in the row already
        elements = (departure.fit(sizes) for departure in departures if isinstance(departure, ElementDraft))
        value_edits = tuple(edit for edits in elements for edit in edits)
        scale_low, scale_high = self.scaling.scale_bytes(self.value_rule, sizes.shape.hidden)
        return Scenario(
            shape=sizes.shape,
            parallel=sizes.parallel,
            activation=activation,
            precision=self.precision,
            output_dtype=self.output_dtype,
            layer=layer,
            routing=dataclasses.replace(
                routing(self.routing_rules, self.seed, sizes), edits=tuple(edit for edit in slots if edit is not None)
            ),
            values=Values(
                rule=self.value_rule,
                seed=self.seed,
                scale_low=scale_low,
                scale_high=scale_high,
                edits=value_edits,
                **changed["values"],
            ),
            execution=dataclasses.replace(self.execution, **changed["execution"]),
        )
