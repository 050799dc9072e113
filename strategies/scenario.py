"""The scenario: everything that happens in one differential test, as pure data.

A `Scenario` holds no tensor. `oracles.problem.build` turns it into tensors, and is a pure function of it: two equal
scenarios are the same test on every machine. The simplest value of each field is its default, which is what a
shrinker moves towards: one token, one expert, no edits, eager.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from strategies.capture import NO_CAPTURE, Axis, Capture
from strategies.plain import FLOAT32_MAX as FLOAT32_MAX
from strategies.plain import (
    AnyScenario,
    is_finite_float32,
    require,
    require_choice,
    require_int,
    require_items,
    require_number,
    require_part,
)
from strategies.plain import InvalidScenario as InvalidScenario

FORMAT_VERSION = 1
"""Version of a `Scenario`'s JSON form. A reader refuses any other one."""

GROUP = 32
"""Elements under one E8M0 scale byte (OCP MX). H and the I of one rank are multiples of it."""

Precision = Literal["bf16xmxfp4", "mxfp8xmxfp4"]
OutputDtype = Literal["bfloat16", "float16"]
RoutingRule = Literal["uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties"]
ValueRule = Literal["normal", "integer", "index", "one_hot", "wide"]
Mode = Literal["eager", "graph"]
Replay = Literal["same", "x", "weights", "ids", "masks", "empty_expert", "fewer_tokens", "all"]
PaddingRows = Literal["masked", "routed"]
Special = Literal["nan", "inf", "-inf", "0", "-0", "max", "-max", "min_subnormal"]
EditedTensor = Literal["hidden_states", "w13_scale", "w2_scale"]
Biases = Literal["none", "per_expert"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the whole layer: tokens M, hidden H, intermediate I, experts E over all ranks, top_k K."""

    tokens: int = 1
    hidden: int = GROUP
    intermediate: int = GROUP
    experts: int = 1
    top_k: int = 1

    def __post_init__(self) -> None:
        require_int("shape.tokens", self.tokens, 0)
        for name in ("hidden", "intermediate"):
            value = getattr(self, name)
            require_int(f"shape.{name}", value, GROUP)
            require(value % GROUP == 0, f"shape.{name}", value, f"a multiple of {GROUP}, the MXFP4 scale group")
        require_int("shape.experts", self.experts, 1)
        require_int("shape.top_k", self.top_k, 1, self.experts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """Expert parallelism: rank r of ep_size holds the experts [r * E / ep_size, (r + 1) * E / ep_size)."""

    ep_size: int = 1
    ep_rank: int = 0

    def __post_init__(self) -> None:
        require_int("parallel.ep_size", self.ep_size, 1)
        require_int("parallel.ep_rank", self.ep_rank, 0, self.ep_size - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Swiglu:
    """silu(gate) * up."""

    kind: ClassVar[str] = "swiglu"


@dataclass(frozen=True, kw_only=True, slots=True)
class SwigluOai:
    """g = min(gate, limit), u = clamp(up, -limit, limit): g * sigmoid(alpha * g) * (u + beta).

    per_expert: expert e (global id) uses its own parameters, `expert_factor(e)` times these.
    """

    kind: ClassVar[str] = "swiglu_oai"
    alpha: float = 1.702
    beta: float = 1.0
    limit: float = 7.0
    per_expert: bool = False

    def __post_init__(self) -> None:
        require_number("activation.alpha", self.alpha)
        require_number("activation.beta", self.beta)
        require_number("activation.limit", self.limit, positive=True, finite=False)
        require(isinstance(self.per_expert, bool), "activation.per_expert", self.per_expert, "true or false")


@dataclass(frozen=True, kw_only=True, slots=True)
class Situ:
    """beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta).

    per_expert: expert e (global id) uses its own parameters, `expert_factor(e)` times these.
    """

    kind: ClassVar[str] = "situ"
    beta: float = 4.0
    linear_beta: float = 25.0
    per_expert: bool = False

    def __post_init__(self) -> None:
        require_number("activation.beta", self.beta, positive=True)
        require_number("activation.linear_beta", self.linear_beta, positive=True)
        require(isinstance(self.per_expert, bool), "activation.per_expert", self.per_expert, "true or false")


Activation = Swiglu | SwigluOai | Situ
ACTIVATIONS: dict[str, type[Activation]] = {cls.kind: cls for cls in (Swiglu, SwigluOai, Situ)}


def expert_factor(expert: int) -> float:
    """Factor on the activation parameters of global expert `expert` when they are per expert: 1, 1.125, ... 1.875.

    A hash, so that whatever the offset of a wrong index, seven experts of eight read another value.
    """
    mixed = expert * 0x9E3779B1 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & 0xFFFFFFFF
    return 1.0 + (mixed >> 29) / 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """What surrounds the two GEMMs. With moe_tp a rank holds I / moe_tp_size columns and its output is a partial sum;
    the bias of the second GEMM belongs to moe_tp_rank 0 alone."""

    biases: Biases = "none"
    moe_tp_size: int = 1
    moe_tp_rank: int = 0
    routed_scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        require_choice("layer.biases", self.biases, Biases)
        require_int("layer.moe_tp_size", self.moe_tp_size, 1)
        require_int("layer.moe_tp_rank", self.moe_tp_rank, 0, self.moe_tp_size - 1)
        require_number("layer.routed_scaling_factor", self.routed_scaling_factor, positive=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSlot:
    """topk_ids[token, slot] = -1."""

    edit: ClassVar[str] = "mask_slot"
    token: int
    slot: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskRow:
    """topk_ids[token, :] = -1."""

    edit: ClassVar[str] = "mask_row"
    token: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignExpert:
    """topk_ids[token, slot] = expert (a global id)."""

    edit: ClassVar[str] = "assign_expert"
    token: int
    slot: int
    expert: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateSlot:
    """topk_ids[token, slot] = topk_ids[token, source]: the same expert twice in one row."""

    edit: ClassVar[str] = "duplicate_slot"
    token: int
    slot: int
    source: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SetWeight:
    """topk_weights[token, slot] = weight, any float32, NaN and infinities included."""

    edit: ClassVar[str] = "set_weight"
    token: int
    slot: int
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StrayId:
    """topk_ids[token, slot] = expert_id, an int32 that names no expert and is not -1: it contributes nothing."""

    edit: ClassVar[str] = "stray_id"
    token: int
    slot: int
    expert_id: int


RoutingEdit = MaskSlot | MaskRow | AssignExpert | DuplicateSlot | SetWeight | StrayId


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """The routing table: a rule and its seed, then edits in order. `oracles.routing` defines the rules."""

    rule: RoutingRule = "uniform"
    seed: int = 0
    edits: tuple[RoutingEdit, ...] = ()

    def __post_init__(self) -> None:
        require_choice("routing.rule", self.rule, RoutingRule)
        require_int("routing.seed", self.seed, 0, 2**32 - 1)
        require_items("routing.edits", self.edits, RoutingEdit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueEdit:
    """One element set by hand.

    tensor and index: hidden_states [token, column]; w13_scale [expert, row, group] and w2_scale [expert, row, group]
    with the expert's global id (an edit of an expert that another rank holds changes nothing here).
    value: a `Special` for hidden_states (max and min_subnormal of bfloat16, or of E4M3 for mxfp8xmxfp4, which has no
    infinity: "inf" is then E4M3's NaN), an E8M0 byte for the scales.
    """

    tensor: EditedTensor
    index: tuple[int, ...]
    value: Special | int

    def __post_init__(self) -> None:
        require_choice("values.edits.tensor", self.tensor, EditedTensor)
        require(isinstance(self.index, tuple), "values.edits.index", self.index, "a tuple of integers")
        if self.tensor == "hidden_states":
            require_choice("values.edits.value", self.value, Special)
        else:
            require_int("values.edits.value", self.value, 0, 255)


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """Content of x, weights and biases: a rule and its seed, then edits in order. `oracles.content` defines the rules.

    x_exponent: x is multiplied by 2**x_exponent. Scale bytes are drawn from [scale_low, scale_high], ends included.
    """

    rule: ValueRule = "normal"
    seed: int = 0
    x_exponent: int = 0
    scale_low: int = 118
    scale_high: int = 122
    edits: tuple[ValueEdit, ...] = ()

    def __post_init__(self) -> None:
        require_choice("values.rule", self.rule, ValueRule)
        require_int("values.seed", self.seed, 0, 2**32 - 1)
        require_int("values.x_exponent", self.x_exponent, -100, 100)
        require_int("values.scale_low", self.scale_low, 0, 255)
        require_int("values.scale_high", self.scale_high, self.scale_low, 255)
        require_items("values.edits", self.edits, ValueEdit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """How the oracle is run.

    replays: further replays of one captured graph (mode graph only), each with what is changed in place before it,
    counted from the scenario's own contents: "same", these again; "x", "weights", "ids", "masks", other ones;
    "empty_expert", no token for the expert that had most; "fewer_tokens", half of the batch is padding; "all", x, ids
    and weights together. `difftest.judging.variants.replayed` makes them.
    padding: rows appended to the batch as serving does, up to a captured size, NaN throughout x. padding_rows: their
    slots are masked and weigh 0, or are routed as further tokens would be.
    tactic: index into the kernel's own list, None for its default. pdl: programmatic dependent launch; fused_finalize:
    the last sum in the second GEMM's epilogue; None for the kernel's own choice. busy: another stream of the device
    works beside each call.
    repeats: calls that must agree bit for bit. poison: the byte that fills output and workspace before each call.
    """

    mode: Mode = "eager"
    replays: tuple[Replay, ...] = ()
    padding: int = 0
    padding_rows: PaddingRows = "masked"
    tactic: int | None = None
    pdl: bool | None = None
    fused_finalize: bool | None = None
    busy: bool = False
    repeats: int = 1
    poison: int = 0

    def __post_init__(self) -> None:
        require_choice("execution.mode", self.mode, Mode)
        require_items("execution.replays", self.replays, str)
        for position, change in enumerate(self.replays):
            require_choice(f"execution.replays[{position}]", change, Replay)
        graph = self.mode == "graph"
        require(graph or not self.replays, "execution.replays", self.replays, "empty unless mode is graph")
        require_int("execution.padding", self.padding, 0)
        require_choice("execution.padding_rows", self.padding_rows, PaddingRows)
        for name in ("pdl", "fused_finalize"):
            value = getattr(self, name)
            require(value is None or isinstance(value, bool), f"execution.{name}", value, "true, false or null")
        require(isinstance(self.busy, bool), "execution.busy", self.busy, "true or false")
        if self.tactic is not None:
            require_int("execution.tactic", self.tactic, 0)
        require_int("execution.repeats", self.repeats, 1)
        require_int("execution.poison", self.poison, 0, 255)


_PARTS: dict[str, Any] = {
    "shape": Shape,
    "parallel": Parallel,
    "activation": Activation,
    "layer": Layer,
    "routing": Routing,
    "values": Values,
    "execution": Execution,
    "capture": Capture,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario(AnyScenario):
    """One differential test of a layer. Raises `InvalidScenario`, naming the field, when its parts do not fit.

    capture: recorded tensors that stand for what routing and values would draw; their edits come after.
    """

    format_version: ClassVar[int] = FORMAT_VERSION
    always_told: ClassVar[tuple[str, ...]] = ("shape",)

    shape: Shape = Shape()
    parallel: Parallel = Parallel()
    activation: Activation = Swiglu()
    precision: Precision = "bf16xmxfp4"
    output_dtype: OutputDtype = "bfloat16"
    layer: Layer = Layer()
    routing: Routing = Routing()
    values: Values = Values()
    execution: Execution = Execution()
    capture: Capture = NO_CAPTURE

    def __post_init__(self) -> None:
        for name, cls in _PARTS.items():
            require_part(name, getattr(self, name), cls)
        require_choice("precision", self.precision, Precision)
        require_choice("output_dtype", self.output_dtype, OutputDtype)
        require(
            self.shape.experts % self.parallel.ep_size == 0,
            "parallel.ep_size",
            self.parallel.ep_size,
            f"a divisor of shape.experts = {self.shape.experts}",
        )
        require(
            self.shape.intermediate % (GROUP * self.layer.moe_tp_size) == 0,
            "layer.moe_tp_size",
            self.layer.moe_tp_size,
            f"such that shape.intermediate = {self.shape.intermediate} splits into multiples of {GROUP}",
        )
        for position, edit in enumerate(self.routing.edits):
            self._check_routing_edit(f"routing.edits[{position}]", edit)
        for position, value_edit in enumerate(self.values.edits):
            self._check_value_edit(f"values.edits[{position}]", value_edit)
        self.capture.check(self.capture_sizes)
        for tensor in self.capture.tensors:
            held = not tensor.endswith("_bias") or self.layer.biases != "none"
            held = held and (tensor != "w2_bias" or self.layer.moe_tp_rank == 0)
            require(held, "capture.tensors", tensor, "left out where the layer has none")

    def _check_routing_edit(self, where: str, edit: RoutingEdit) -> None:
        require(self.shape.tokens > 0, where, edit, "left out where shape.tokens = 0")
        require_int(f"{where}.token", edit.token, 0, self.shape.tokens - 1)
        for name in ("slot", "source"):
            if hasattr(edit, name):
                require_int(f"{where}.{name}", getattr(edit, name), 0, self.shape.top_k - 1)
        if isinstance(edit, AssignExpert):
            require_int(f"{where}.expert", edit.expert, 0, self.shape.experts - 1)
        if isinstance(edit, StrayId):
            stray = isinstance(edit.expert_id, int) and not -1 <= edit.expert_id < self.shape.experts
            ok = stray and -(2**31) <= edit.expert_id < 2**31
            require(ok, f"{where}.expert_id", edit.expert_id, "an int32 below -1 or from shape.experts on")
        if isinstance(edit, SetWeight):
            weight = edit.weight
            ok = isinstance(weight, float) and (not math.isfinite(weight) or is_finite_float32(weight))
            require(ok, f"{where}.weight", weight, "a float that float32 can hold")

    def _check_value_edit(self, where: str, edit: ValueEdit) -> None:
        sizes = {
            "hidden_states": (self.shape.tokens, self.shape.hidden),
            "w13_scale": (self.shape.experts, 2 * self.intermediate_local, self.shape.hidden // GROUP),
            "w2_scale": (self.shape.experts, self.shape.hidden, self.intermediate_local // GROUP),
        }[edit.tensor]
        require(len(edit.index) == len(sizes), f"{where}.index", edit.index, f"{len(sizes)} indices into {edit.tensor}")
        require(sizes[0] > 0, where, edit, "left out where shape.tokens = 0")
        for axis, (index, size) in enumerate(zip(edit.index, sizes, strict=True)):
            require_int(f"{where}.index[{axis}]", index, 0, size - 1)

    @property
    def experts_local(self) -> int:
        """Experts that this rank holds, E / ep_size."""
        return self.shape.experts // self.parallel.ep_size

    @property
    def first_expert(self) -> int:
        """Global id of this rank's first expert."""
        return self.parallel.ep_rank * self.experts_local

    @property
    def intermediate_local(self) -> int:
        """Columns of the intermediate that this rank holds, I / moe_tp_size."""
        return self.shape.intermediate // self.layer.moe_tp_size

    @property
    def capture_sizes(self) -> dict[Axis, int]:
        """Places on each axis that a `Capture` may have tensors of."""
        return {
            "tokens": self.shape.tokens,
            "slots": self.shape.top_k,
            "experts": self.experts_local,
            "hidden": self.shape.hidden // GROUP,
            "intermediate": self.intermediate_local // GROUP,
        }

    @property
    def repeats(self) -> int:
        return self.execution.repeats

    def repeated(self, repeats: int) -> Self:
        return replace(self, execution=replace(self.execution, repeats=repeats))
