"""What of the space of scenarios a campaign has drawn: each value of each axis, and each pair of values of two axes.

A mistake that takes two axes to meet is seen only where they met. No torch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from strategies.capability import Capability
from strategies.scenario import (
    GROUP,
    AssignExpert,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    Scenario,
    SetWeight,
    StrayId,
    Swiglu,
)


@dataclass(frozen=True)
class Axis:
    """One thing that scenarios differ in. values: all there are. of: those that a scenario has, at least one."""

    name: str
    values: tuple[str, ...]
    of: Callable[[Scenario], Iterable[str]]


_NON_FINITE = ("nan", "inf", "-inf")


def _tokens(scenario: Scenario) -> Iterator[str]:
    tokens = scenario.shape.tokens
    yield str(tokens) if tokens < 2 else "2-8" if tokens <= 8 else "9-32" if tokens <= 32 else "33+"


def _width(width: int) -> str:
    groups = width // GROUP
    return "one group" if groups == 1 else "odd groups" if groups % 2 else "128s" if groups % 4 == 0 else "64s"


def _some(number: int) -> str:
    return str(number) if number < 3 else "3-8" if number <= 8 else "9+"


def _rank(scenario: Scenario) -> Iterator[str]:
    size, rank = scenario.parallel.ep_size, scenario.parallel.ep_rank
    yield "only" if size == 1 else "first" if rank == 0 else "last" if rank == size - 1 else "middle"


def _activation(scenario: Scenario) -> Iterator[str]:
    activation = scenario.activation
    if isinstance(activation, Swiglu) or activation == type(activation)():
        yield activation.kind
    else:
        yield f"{activation.kind} {'per expert' if activation.per_expert else 'other'}"


def _slots(scenario: Scenario) -> Iterator[str]:
    """Edits of the routing table."""
    names = {MaskSlot: "masked", MaskRow: "masked row", AssignExpert: "assigned", DuplicateSlot: "twice"}
    for edit in scenario.routing.edits:
        if isinstance(edit, SetWeight):
            yield "weight 0" if edit.weight == 0 else "weight" if math.isfinite(edit.weight) else "weight not finite"
        else:
            yield "stray" if isinstance(edit, StrayId) else names[type(edit)]
    if not scenario.routing.edits:
        yield "plain"


def _elements(scenario: Scenario) -> Iterator[str]:
    """Edits of x and of scales."""
    for edit in scenario.values.edits:
        if edit.tensor == "hidden_states":
            yield "x not finite" if edit.value in _NON_FINITE else "x"
        else:
            yield f"scale {edit.value:#04x}" if edit.value in (0, 255) else "scale"
    if not scenario.values.edits:
        yield "plain"


def _scales(scenario: Scenario) -> Iterator[str]:
    low, high = scenario.values.scale_low, scenario.values.scale_high
    yield "0x00" if low == 0 else "top" if high >= 250 else "narrow" if high - low <= 4 else "wide"


def _size_of_x(scenario: Scenario) -> Iterator[str]:
    exponent = scenario.values.x_exponent
    yield "usual" if abs(exponent) <= 2 else "large" if exponent > 0 else "small"


def _mode(scenario: Scenario) -> Iterator[str]:
    execution = scenario.execution
    yield "replayed" if execution.replays else execution.mode


def _switch(name: str) -> Axis:
    return Axis(name, ("None", "False", "True"), lambda scenario: (str(getattr(scenario.execution, name)),))


AXES: tuple[Axis, ...] = (
    Axis("tokens", ("0", "1", "2-8", "9-32", "33+"), _tokens),
    Axis("H", ("one group", "odd groups", "64s", "128s"), lambda s: (_width(s.shape.hidden),)),
    Axis("I", ("one group", "odd groups", "64s", "128s"), lambda s: (_width(s.intermediate_local),)),
    Axis("experts", ("1", "2", "3-8", "9+"), lambda s: (_some(s.experts_local),)),
    Axis("top_k", ("1", "2", "3-8", "9+"), lambda s: (_some(s.shape.top_k),)),
    Axis("rank", ("only", "first", "middle", "last"), _rank),
    Axis(
        "activation",
        ("swiglu", *(f"{kind}{how}" for kind in ("swiglu_oai", "situ") for how in ("", " other", " per expert"))),
        _activation,
    ),
    Axis("precision", ("bf16xmxfp4", "mxfp8xmxfp4"), lambda s: (s.precision,)),
    Axis("output", ("bfloat16", "float16"), lambda s: (s.output_dtype,)),
    Axis("biases", ("none", "per_expert"), lambda s: (s.layer.biases,)),
    Axis(
        "moe_tp",
        ("whole", "first", "later"),
        lambda s: ("whole" if s.layer.moe_tp_size == 1 else "later" if s.layer.moe_tp_rank else "first",),
    ),
    Axis("factor", ("1", "other"), lambda s: ("1" if s.layer.routed_scaling_factor == 1.0 else "other",)),
    Axis(
        "rule",
        ("uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties"),
        lambda s: (s.routing.rule,),
    ),
    Axis(
        "slots",
        (
            *("plain", "masked", "masked row", "assigned", "twice", "stray"),
            *("weight", "weight 0", "weight not finite"),
        ),
        _slots,
    ),
    Axis("values", ("normal", "integer", "index", "one_hot", "wide"), lambda s: (s.values.rule,)),
    Axis("scales", ("narrow", "wide", "0x00", "top"), _scales),
    Axis("x", ("usual", "small", "large"), _size_of_x),
    Axis("elements", ("plain", "x", "x not finite", "scale", "scale 0x00", "scale 0xff"), _elements),
    Axis("mode", ("eager", "graph", "replayed"), _mode),
    Axis(
        "padding",
        ("none", "masked", "routed"),
        lambda s: (s.execution.padding_rows if s.execution.padding else "none",),
    ),
    Axis("tactic", ("default", "given"), lambda s: ("default" if s.execution.tactic is None else "given",)),
    _switch("pdl"),
    _switch("fused_finalize"),
    Axis("beside", ("nothing", "a busy stream"), lambda s: ("a busy stream" if s.execution.busy else "nothing",)),
    Axis("poison", ("0x00", "other"), lambda s: ("other" if s.execution.poison else "0x00",)),
)

Value = tuple[str, str]
"""An axis by its name, and one of its values."""
Pair = tuple[Value, Value]

_EDITED = ("masked", "masked row", "assigned", "twice", "stray", "weight", "weight 0", "weight not finite")


def _never_meet(first: Value, second: Value) -> bool:
    """Whether two values, in the order of the axes, exclude each other."""
    match first, second:
        case ("tokens", "0"), ("slots", what):
            return what in _EDITED
        case ("tokens", "0"), ("elements", "x" | "x not finite"):
            return True
        case (("top_k", "1"), ("slots", "twice")) | (("rank", "only"), ("rule", "remote_only")):
            return True
    return False


def _lacks(capability: Capability, value: Value) -> bool:
    """Whether a kernel of this capability never gets the value."""
    match value:
        case "activation", what:
            per_expert = what.endswith("per expert") and not capability.per_expert_activation
            return what.split()[0] not in capability.activations or per_expert
        case "precision", what:
            return what not in capability.precisions
        case "output", what:
            return what not in capability.output_dtypes
        case "mode", what:
            return ("eager" if what == "eager" else "graph") not in capability.modes
        case "tokens", "0":
            return not capability.empty_batch
        case ("H" | "I") as axis, what:
            unit = (capability.hidden_multiple if axis == "H" else capability.intermediate_multiple) // GROUP
            return (unit % 4 == 0 and what != "128s") or (unit % 2 == 0 and what in ("one group", "odd groups"))
        case "experts", "1":
            return capability.experts_multiple > 1
        case "rank", what:
            return what != "only" and not capability.expert_parallel
        case "rule", "remote_only":
            return not capability.expert_parallel
        case "biases", "per_expert":
            return not capability.biases
        case "moe_tp", what:
            return what != "whole" and not capability.moe_tp
        case "slots", "masked" | "masked row":
            return not capability.masked_slots
        case "slots", "assigned" | "twice":
            return not capability.duplicate_experts
        case "slots", "stray":
            return not capability.stray_ids
        case ("slots", "weight not finite") | ("elements", "x not finite") | ("scales", "top") | ("x", "large"):
            return not capability.non_finite
        case ("elements", "scale 0x00" | "scale 0xff") | ("scales", "0x00"):
            return not capability.special_scale_bytes
        case "padding", what:
            return (what != "none" and not capability.padding) or (what == "routed" and not capability.non_finite)
        case "tactic", "given":
            return capability.tactics == 0
        case ("pdl" | "fused_finalize") as name, what:
            return what != "None" and not getattr(capability, name)
        case "beside", "a busy stream":
            return not capability.busy
    return False


_VALUES: tuple[Value, ...] = tuple((axis.name, value) for axis in AXES for value in axis.values)
_PLACE = {value: place for place, value in enumerate(_VALUES)}


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """values: scenarios by axis value, 0 for one that could have been drawn and was not. pairs: pairs of values of two
    axes, in the order of the axes, that met in one scenario. `+` joins parts of a campaign."""

    values: Mapping[Value, int] = field(default_factory=dict)
    pairs: frozenset[Pair] = frozenset()

    def __add__(self, other: Coverage) -> Coverage:
        either = [value for value in _VALUES if value in self.values or value in other.values]
        values = {value: self.values.get(value, 0) + other.values.get(value, 0) for value in either}
        return Coverage(values=values, pairs=self.pairs | other.pairs)

    @property
    def missing_values(self) -> list[Value]:
        return [value for value, count in self.values.items() if not count]

    @property
    def possible_pairs(self) -> frozenset[Pair]:
        """Every pair of `values` that one scenario can have."""
        return _possible_pairs(tuple(self.values))

    @property
    def missing_pairs(self) -> frozenset[Pair]:
        return self.possible_pairs - self.pairs

    def to_json(self) -> dict[str, Any]:
        """{"values": {axis: {value: scenarios}}, "pairs": [[place, places], ...]}: the place of a value among all of
        `AXES`, and those of the values of later axes that it met."""
        values: dict[str, dict[str, int]] = {}
        for (axis, value), count in self.values.items():
            values.setdefault(axis, {})[value] = count
        met: dict[int, list[int]] = {}
        for first, second in sorted((_PLACE[a], _PLACE[b]) for a, b in self.pairs):
            met.setdefault(first, []).append(second)
        return {"values": values, "pairs": [[first, seconds] for first, seconds in met.items()]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        values = {(axis, value): count for axis, counts in data["values"].items() for value, count in counts.items()}
        pairs = {(_VALUES[first], _VALUES[second]) for first, seconds in data["pairs"] for second in seconds}
        return cls(values=values, pairs=frozenset(pairs))


class Tally:
    """Counts the scenarios that a campaign for kernels of some capability draws."""

    def __init__(self, capability: Capability) -> None:
        self._values = {value: 0 for value in _VALUES if not _lacks(capability, value)}
        self._pairs: set[Pair] = set()

    def take(self, scenario: Scenario) -> None:
        has = [[(axis.name, value) for value in dict.fromkeys(axis.of(scenario))] for axis in AXES]
        for value in itertools.chain.from_iterable(has):
            self._values[value] = self._values.get(value, 0) + 1
        for first, second in itertools.combinations(has, 2):
            self._pairs.update(itertools.product(first, second))

    @property
    def coverage(self) -> Coverage:
        return Coverage(values=dict(self._values), pairs=frozenset(self._pairs))


@functools.cache
def _possible_pairs(values: tuple[Value, ...]) -> frozenset[Pair]:
    return frozenset(
        (first, second)
        for first, second in itertools.combinations(values, 2)
        if first[0] != second[0] and not _never_meet(first, second)
    )
