"""What a kernel accepts, as data: it shapes what is drawn, and explains what is not run."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass

from strategies.scenario import (
    ACTIVATIONS,
    GROUP,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    Mode,
    OutputDtype,
    Precision,
    Scenario,
    SetWeight,
    StrayId,
    Swiglu,
)

_ALL_ACTIVATIONS = frozenset(ACTIVATIONS)
_KNOWN: dict[str, frozenset[str]] = {
    "activations": _ALL_ACTIVATIONS,
    "precisions": frozenset(typing.get_args(Precision)),
    "output_dtypes": frozenset(typing.get_args(OutputDtype)),
    "modes": frozenset(typing.get_args(Mode)),
}


@dataclass(frozen=True, kw_only=True)
class Capability:
    """The scenarios that a kernel promises to compute. The default promises all of eager mode in bf16 x MXFP4.

    hidden_multiple, intermediate_multiple: H and the rank's own I are multiples of these (each a multiple of 32).
    experts_multiple: the rank's own E is a multiple of it.
    stray_ids: ids that name no expert, other than -1, contribute nothing.
    padding: rows at the end of the batch with garbage in x and every slot masked, even without `masked_slots`.
    tactics: how many the kernel has. pdl, fused_finalize: whether a scenario may switch them. busy: whether another
    stream can work beside the call.
    Raises ValueError, naming the field, for a value that promises nothing sensible.
    """

    hidden_multiple: int = 32
    intermediate_multiple: int = 32
    experts_multiple: int = 1
    activations: frozenset[str] = _ALL_ACTIVATIONS
    per_expert_activation: bool = True
    precisions: frozenset[str] = frozenset({"bf16xmxfp4"})
    output_dtypes: frozenset[str] = frozenset({"bfloat16"})
    modes: frozenset[str] = frozenset({"eager"})
    expert_parallel: bool = True
    moe_tp: bool = True
    biases: bool = True
    masked_slots: bool = True
    stray_ids: bool = False
    duplicate_experts: bool = True
    non_finite: bool = True
    special_scale_bytes: bool = True
    empty_batch: bool = True
    padding: bool = True
    tactics: int = 0
    pdl: bool = False
    fused_finalize: bool = False
    busy: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden_multiple", "intermediate_multiple"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < GROUP or value % GROUP:
                raise ValueError(f"{name} = {value!r}: must be a positive multiple of {GROUP}, the MXFP4 scale group")
        if not isinstance(self.experts_multiple, int) or self.experts_multiple < 1:
            raise ValueError(f"experts_multiple = {self.experts_multiple!r}: must be a positive integer")
        for name, known in _KNOWN.items():
            value = getattr(self, name)
            if not isinstance(value, frozenset) or not value or not value <= known:
                raise ValueError(
                    f"{name} = {value!r}: must be a frozenset of one or more of {', '.join(sorted(known))}"
                )
        if not isinstance(self.tactics, int) or self.tactics < 0:
            raise ValueError(f"tactics = {self.tactics!r}: must be the number of tactics, 0 or more")

    def objection(self, scenario: Scenario) -> str | None:
        """Why this kernel does not promise `scenario`, in a few words that group well; None when it does."""
        return next(self._objections(scenario), None)

    def _objections(self, scenario: Scenario) -> Iterator[str]:
        shape, execution = scenario.shape, scenario.execution
        if shape.hidden % self.hidden_multiple:
            yield f"H is not a multiple of {self.hidden_multiple}"
        if scenario.intermediate_local % self.intermediate_multiple:
            yield f"I of a rank is not a multiple of {self.intermediate_multiple}"
        if scenario.experts_local % self.experts_multiple:
            yield f"E of a rank is not a multiple of {self.experts_multiple}"
        if scenario.activation.kind not in self.activations:
            yield f"activation {scenario.activation.kind}"
        per_expert = not isinstance(scenario.activation, Swiglu) and scenario.activation.per_expert
        if per_expert and not self.per_expert_activation:
            yield "activation parameters per expert"
        if scenario.precision not in self.precisions:
            yield f"precision {scenario.precision}"
        if scenario.output_dtype not in self.output_dtypes:
            yield f"output dtype {scenario.output_dtype}"
        if execution.mode not in self.modes:
            yield f"execution mode {execution.mode}"
        if scenario.parallel.ep_size > 1 and not self.expert_parallel:
            yield "expert parallelism"
        if scenario.layer.moe_tp_size > 1 and not self.moe_tp:
            yield "I sharded over ranks (moe_tp)"
        if scenario.layer.biases != "none" and not self.biases:
            yield "biases"
        edits = scenario.routing.edits
        masks = {"masks", "empty_expert"} & set(execution.replays)
        if not self.masked_slots and (masks or any(isinstance(edit, MaskSlot | MaskRow) for edit in edits)):
            yield "masked slots"
        if not self.stray_ids and any(isinstance(edit, StrayId) for edit in edits):
            yield "an id that names no expert"
        if not self.duplicate_experts and any(isinstance(edit, DuplicateSlot) for edit in edits):
            yield "one expert twice in a row"
        routed = execution.padding > 0 and execution.padding_rows == "routed"
        if not self.non_finite and (routed or _has_non_finite(scenario)):
            yield "NaN or infinity in x or in a router weight"
        if not self.special_scale_bytes and _has_special_scale_byte(scenario):
            yield "E8M0 byte 0x00 or 0xFF"
        if shape.tokens == 0 and not self.empty_batch:
            yield "M = 0"
        if (execution.padding or "fewer_tokens" in execution.replays) and not self.padding:
            yield "padded batch"
        if execution.tactic is not None and execution.tactic >= self.tactics:
            yield f"a tactic beyond its {self.tactics}"
        if execution.pdl is not None and not self.pdl:
            yield "a choice of PDL"
        if execution.fused_finalize is not None and not self.fused_finalize:
            yield "a choice of finalize"
        if execution.busy and not self.busy:
            yield "a busy stream beside the call"

    def union(self, other: Capability) -> Capability:
        """A capability that holds what either promises, and no more than its fields can tell apart."""

        def either(name: str) -> bool:
            return bool(getattr(self, name) or getattr(other, name))

        return Capability(
            hidden_multiple=math.gcd(self.hidden_multiple, other.hidden_multiple),
            intermediate_multiple=math.gcd(self.intermediate_multiple, other.intermediate_multiple),
            experts_multiple=math.gcd(self.experts_multiple, other.experts_multiple),
            activations=self.activations | other.activations,
            precisions=self.precisions | other.precisions,
            output_dtypes=self.output_dtypes | other.output_dtypes,
            modes=self.modes | other.modes,
            tactics=max(self.tactics, other.tactics),
            **{name: either(name) for name in _FLAGS},
        )


_FLAGS = tuple(name for name, default in vars(Capability()).items() if isinstance(default, bool))


def _has_non_finite(scenario: Scenario) -> bool:
    weights = (edit.weight for edit in scenario.routing.edits if isinstance(edit, SetWeight))
    return any(edit.value in ("nan", "inf", "-inf") for edit in scenario.values.edits) or any(
        weight != weight or weight in (float("inf"), float("-inf")) for weight in weights
    )


def _has_special_scale_byte(scenario: Scenario) -> bool:
    values = scenario.values
    edited = (edit.value for edit in values.edits if edit.tensor != "hidden_states")
    return values.scale_low == 0 or values.scale_high == 255 or any(byte in (0, 255) for byte in edited)
