"""What a smallest scenario cannot do without, and the class of mistake that each of it points to.

The reducer tried the scenario without each of these, and there the finding was gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from strategies.capability import Capability
from strategies.scenario import (
    AssignExpert,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    Scenario,
    SetWeight,
    Swiglu,
    Values,
)

TILE = 64
"""Columns of the narrowest tile of K: beyond it, a width that is no multiple has a tail."""


@dataclass(frozen=True)
class Need:
    """words: as in "the smallest scenario needs ...". kind: class of mistake that it points to, "" for none."""

    words: str
    kind: str


def needs(scenario: Scenario, capability: Capability) -> list[Need]:
    """The needs of `scenario`, those that say most of the mistake first. capability: of the kernel that it is for."""
    parts = (_recorded, _execution, _values, _activation, _routing)
    return [need for part in parts for need in part(scenario)] + list(_sizes(scenario, capability))


def _recorded(scenario: Scenario) -> Iterator[Need]:
    if scenario.capture:
        yield Need(f"recorded {', '.join(scenario.capture.tensors)}", "")


def _execution(scenario: Scenario) -> Iterator[Need]:
    execution = scenario.execution
    if execution.mode == "graph":
        replays = f", replayed with other {', '.join(execution.replays)}" if execution.replays else ""
        yield Need(f"a captured graph{replays}", "execution")
    if execution.tactic is not None:
        yield Need(f"tactic {execution.tactic}", "execution")
    for name in ("pdl", "fused_finalize"):
        if getattr(execution, name) is not None:
            yield Need(f"{name} {'on' if getattr(execution, name) else 'off'}", "execution")
    if execution.busy:
        yield Need("a busy stream beside", "execution")
    if execution.padding:
        if execution.padding_rows == "masked":
            yield Need("rows that pad the batch", "routing")
        else:
            yield Need("routed rows that pad the batch", "non-finite")  # they hold NaN
    if execution.poison:
        yield Need(f"memory full of byte {execution.poison:#04x}", "memory")


def _values(scenario: Scenario) -> Iterator[Need]:
    values = scenario.values
    for edit in values.edits:
        place = ", ".join(map(str, edit.index))
        if isinstance(edit.value, int):
            kind = "non-finite" if edit.value == 0xFF else _of_size(edit.value)
            yield Need(f"scale byte {edit.value:#04x} at {edit.tensor}[{place}]", kind)
        else:
            kind = "non-finite" if edit.value in ("nan", "inf", "-inf") else "numerics"
            yield Need(f"{edit.value} at {edit.tensor}[{place}]", kind)
    default = Values()
    if values.scale_high > default.scale_high:
        kind = "non-finite" if values.scale_high == 0xFF else _of_size(values.scale_high)
        yield Need(f"scale bytes up to {values.scale_high:#04x}", kind)
    if values.scale_low < default.scale_low:
        yield Need(f"scale bytes down to {values.scale_low:#04x}", _of_size(values.scale_low))
    if values.x_exponent:
        yield Need(f"x times 2**{values.x_exponent}", "numerics")
    if values.rule == "wide":
        yield Need("x of very different sizes", "numerics")
    for weight in scenario.routing.edits:
        if isinstance(weight, SetWeight):
            kind = "routing" if math.isfinite(weight.weight) else "non-finite"
            yield Need(f"router weight {weight.weight} at [{weight.token}, {weight.slot}]", kind)


def _of_size(byte: int) -> str:
    """Only scales at an end of E8M0 point to how numbers are read."""
    return "numerics" if byte < 0x10 or byte > 0xF0 else ""


def _activation(scenario: Scenario) -> Iterator[Need]:
    activation = scenario.activation
    if not isinstance(activation, Swiglu):
        per_expert = ", parameters per expert" if activation.per_expert else ""
        yield Need(f"activation {activation.kind}{per_expert}", "activation")


def _routing(scenario: Scenario) -> Iterator[Need]:
    parallel, routing, layer = scenario.parallel, scenario.routing, scenario.layer
    if parallel.ep_size > 1:
        yield Need(f"EP rank {parallel.ep_rank} of {parallel.ep_size}", "routing")
    words = {
        MaskSlot: "a masked slot",
        MaskRow: "a row that is masked",
        DuplicateSlot: "one expert twice in a row",
        AssignExpert: "an expert assigned by hand",
    }
    kinds = [type(edit) for edit in routing.edits]
    for kind, told in words.items():
        if kind in kinds:
            yield Need(told, "routing")
    if routing.rule != "uniform":
        yield Need(f"routing {routing.rule}", "routing")
    if scenario.shape.experts > 1 and parallel.ep_size == 1:
        yield Need(f"{scenario.shape.experts} experts", "routing" if scenario.shape.top_k > 1 else "")
    if scenario.shape.top_k > 1:
        yield Need(f"top {scenario.shape.top_k}", "routing")
    if layer.routed_scaling_factor != 1:
        yield Need(f"routed_scaling_factor {layer.routed_scaling_factor}", "routing")


def _sizes(scenario: Scenario, capability: Capability) -> Iterator[Need]:
    shape, layer = scenario.shape, scenario.layer
    if layer.biases != "none":
        yield Need("biases", "")
    if layer.moe_tp_size > 1:
        yield Need(f"moe_tp rank {layer.moe_tp_rank} of {layer.moe_tp_size}", "")
    if scenario.precision != "bf16xmxfp4":
        yield Need(scenario.precision, "")
    if scenario.output_dtype != "bfloat16":
        yield Need(f"{scenario.output_dtype} output", "")
    if shape.tokens != 1:
        yield Need(f"M = {shape.tokens}", "")
    for name, size, unit in (
        ("H", shape.hidden, capability.hidden_multiple),
        ("I", scenario.intermediate_local, capability.intermediate_multiple),
    ):
        if size > unit:
            tail = size % TILE != 0 and size > TILE
            yield Need(f"{name} = {size}", "numerics" if tail else "")
